//! What two observers say when they connect.

use std::net::SocketAddr;

use super::codes::{read_incarnation, read_option, write_incarnation, write_option, write_process};
use crate::bytes::{Malformed, Reader, Writer};
use crate::determinant::{ConnectionId, read_address, read_process, write_address};
use crate::ids::{Incarnation, ProcessId};

/// Both ends of a connection, as the program that has opened it sees them: where processes have moved, the sockets have others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The opener's own end.
    pub from: SocketAddr,
    /// The acceptor's end.
    pub to: SocketAddr,
}

/// The hello of docs/design.md's data path: what the connecting observer writes on a new socket, and what the accepting one answers
/// when the connection was there before (`attempt` above 0). A MAC goes around it: the caller's affair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// The sender.
    pub process: ProcessId,
    /// The greeting process's incarnation.
    pub incarnation: Incarnation,
    /// About which connection.
    pub connection: ConnectionId,
    /// Which attempt of this incarnation of its opener to connect it, from 0; an answer repeats it.
    pub attempt: u32,
    /// The offset up to which the sender has received the other direction: go on there.
    pub received: u64,
    /// The offset up to which the sender's protector holds that direction: bytes before it need not be kept any longer.
    pub stable: u64,
    /// The offset of the oldest byte that the sender keeps of its own direction. It is above what the receiver wants only if the
    /// receiver wanted nothing more in an earlier incarnation.
    pub kept: u64,
    /// The offset after the last byte of the sender's own direction, if it has ended that.
    pub finish: Option<u64>,
    /// Whether the sender has replayed its log. If not, it will still take more than `received` says, and a receiver that replays, too,
    /// must send that again before it goes live (Gate B).
    pub settled: bool,
    /// What the opener sees, in a greeting of the opener. The acceptor's greetings (an answer, or a call) have none.
    pub ends: Option<Ends>,
}

/// Longest greeting, in bytes.
pub const GREETING: usize = 184;

impl Greeting {
    /// Whether the connection's acceptor has sent it. As the first message on a link it is then a call, which says only that the link is broken.
    pub fn is_call(&self) -> bool {
        self.process != self.connection.opener
    }

    /// Writes it: at most [`GREETING`] bytes.
    pub fn write(&self, out: &mut Writer<'_>) {
        write_process(out, &self.process);
        write_incarnation(out, self.incarnation);
        self.connection.write(out);
        out.varint(u64::from(self.attempt));
        out.varint(self.received);
        out.varint(self.stable);
        out.varint(self.kept);
        write_option(out, self.finish);
        out.u8(u8::from(self.settled));
        out.u8(u8::from(self.ends.is_some()));
        if let Some(Ends { from, to }) = &self.ends {
            write_address(out, from);
            write_address(out, to);
        }
    }

    /// Reads it from all of `bytes`.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let from = &mut Reader::new(bytes);
        let (process, incarnation, connection) = (read_process(from)?, read_incarnation(from)?, ConnectionId::read(from)?);
        let attempt = from.varint()?;
        let attempt = u32::try_from(attempt).map_err(|_| from.malformed("an attempt over 32 bits"))?;
        let (received, stable, kept) = (from.varint()?, from.varint()?, from.varint()?);
        let finish = read_option(from)?;
        let settled = from.bool()?;
        let ends = if from.bool()? { Some(Ends { from: read_address(from)?, to: read_address(from)? }) } else { None };
        let greeting = Greeting { process, incarnation, connection, attempt, received, stable, kept, finish, settled, ends };
        from.clone().finish()?;
        Ok(greeting)
    }
}
