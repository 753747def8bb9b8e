//! Greetings on sockets: a byte that says how long, the greeting, its code.
//!
//! The code names the process that the greeting is for ([`To`]): one that was overheard greets no other process, and no other incarnation.
//! The code's key is that of the accepting process's job and the connection ([`JobKey::greeting_key`]): a process that opens a connection to another job
//! gets this one key from its node.

use std::os::fd::BorrowedFd;

use radic_wire::bytes::Writer;
use radic_wire::determinant::ConnectionId;
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::log::{GREETING, Greeting};
use radic_wire::mac::{JobKey, MAC, Purpose};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::memory::discreetly;
use crate::sys;

/// Time for the kernel to take a greeting, in milliseconds: its buffer is empty.
const GREETING_MS: u64 = 5_000;
/// The longest, with what is around it.
const LONGEST: usize = 1 + GREETING + MAC;
/// Bytes of [`To`] in the code: job, rank, whether an incarnation is named, and that.
const TO: usize = 8 + 4 + 1 + 24;

/// The process that a greeting is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct To {
    pub process: ProcessId,
    /// None: any incarnation, at a listener of the program's, where the process learns from its node which one calls. At a door,
    /// and as an answer: this incarnation alone.
    pub incarnation: Option<Incarnation>,
}

impl To {
    fn bytes(self) -> [u8; TO] {
        let mut out = [0; TO];
        out[..8].copy_from_slice(&self.process.job.bits().to_le_bytes());
        out[8..12].copy_from_slice(&self.process.rank.0.to_le_bytes());
        out[12] = u8::from(self.incarnation.is_some());
        let Incarnation { epoch, restart } = self.incarnation.unwrap_or_default();
        out[13..21].copy_from_slice(&epoch.view.to_le_bytes());
        out[21..25].copy_from_slice(&epoch.count.to_le_bytes());
        out[25..33].copy_from_slice(&epoch.home.0.to_le_bytes());
        out[33..].copy_from_slice(&restart.to_le_bytes());
        out
    }
}

/// Writes a greeting to a new socket, which has an empty buffer; `key`: that of its connection.
pub fn write(fd: BorrowedFd<'_>, key: &JobKey, to: To, greeting: &Greeting) -> Result<(), Errno> {
    let mut out = [0; LONGEST];
    let mut writer = Writer::new(&mut out[1..=GREETING]);
    greeting.write(&mut writer);
    let length = writer.finish().ok_or(Errno::MSGSIZE)?;
    let code = discreetly(|| key.mac(Purpose::Greeting, &[&out[1..=length], &to.bytes()]));
    out[0] = length as u8;
    out[1 + length..][..MAC].copy_from_slice(&code);
    sys::send_all(fd, &out[..1 + length + MAC], GREETING_MS)
}

/// A greeting that comes in, perhaps in pieces. Not a byte more is taken from the socket: what follows is the program's.
#[derive(Debug)]
pub struct Incoming {
    bytes: [u8; LONGEST],
    filled: usize,
}

impl Default for Incoming {
    fn default() -> Self {
        Incoming { bytes: [0; LONGEST], filled: 0 }
    }
}

impl Incoming {
    /// Reads a greeting for `me`, whose key depends on the connection that it is about; waits for it for this many milliseconds. None: it has not come.
    pub fn read_within(
        &mut self,
        milliseconds: u64,
        fd: BorrowedFd<'_>,
        me: To,
        key_of: impl Fn(&ConnectionId) -> JobKey,
    ) -> Result<Option<Greeting>, Errno> {
        loop {
            if let Some(greeting) = self.read(fd, me, &key_of)? {
                return Ok(Some(greeting));
            }
            match sys::wait_for(fd, PollFlags::IN, milliseconds) {
                Ok(()) => {}
                Err(Errno::TIMEDOUT) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes what is there for `me`, without waiting. None: there is more to come. The socket's end, or anything but a greeting
    /// with the right code, is an error.
    pub fn read(
        &mut self,
        fd: BorrowedFd<'_>,
        me: To,
        key_of: impl FnOnce(&ConnectionId) -> JobKey,
    ) -> Result<Option<Greeting>, Errno> {
        loop {
            let total = if self.filled == 0 { 1 } else { 1 + usize::from(self.bytes[0]) + MAC };
            if total > LONGEST {
                return Err(Errno::PROTO);
            }
            if self.filled == total && total > 1 {
                return self.check(me, key_of).map(Some);
            }
            match rustix::net::recv(fd, &mut self.bytes[self.filled..total], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(Errno::CONNRESET),
                Ok((_, count)) => self.filled += count,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn check(&self, me: To, key_of: impl FnOnce(&ConnectionId) -> JobKey) -> Result<Greeting, Errno> {
        let (body, code) = self.bytes[1..self.filled].split_at(usize::from(self.bytes[0]));
        let greeting = Greeting::read(body).map_err(|_| Errno::PROTO)?;
        let right = discreetly(|| key_of(&greeting.connection).verify(Purpose::Greeting, &[body, &me.bytes()], code));
        if right { Ok(greeting) } else { Err(Errno::ACCESS) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use radic_wire::ids::{JobId, Rank};
    use radic_wire::key::ClusterKey;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn greeting() -> Greeting {
        let process = ProcessId { job: JobId::from_bits(7), rank: Rank(3) };
        let connection = ConnectionId { opener: process, number: 9 };
        let (incarnation, attempt, finish) = (Incarnation::restarted(2), 5, Some(77));
        Greeting {
            process,
            incarnation,
            connection,
            attempt,
            received: 1 << 40,
            stable: 3,
            kept: 1,
            finish,
            settled: true,
            ends: None,
        }
    }

    fn process(job: u64, rank: u32) -> ProcessId {
        ProcessId { job: JobId::from_bits(job), rank: Rank(rank) }
    }

    fn me() -> To {
        To { process: process(7, 4), incarnation: Some(Incarnation::restarted(1)) }
    }

    /// What was said to a process, said once more.
    #[test]
    fn a_greeting_that_was_overheard_greets_no_other_process_job_or_incarnation() {
        let cluster = ClusterKey::from_bytes([1; 32]);
        let say = |to: To, me: To| {
            let (one, other) = pair();
            let key = |to: To, connection: &ConnectionId| JobKey::derive(&cluster, to.process.job).greeting_key(connection);
            write(other.as_fd(), &key(to, &greeting().connection), to, &greeting()).unwrap();
            Incoming::default().read(one.as_fd(), me, |connection| key(me, connection)).map(|greeting| greeting.is_some())
        };
        let incarnations = [None, Some(Incarnation::FIRST), Some(Incarnation::restarted(1)), Some(Incarnation::restarted(2))];
        let all = [process(7, 3), process(7, 4), process(7, 5), process(8, 4)]
            .map(|process| incarnations.map(|incarnation| To { process, incarnation }))
            .concat();
        for (to, me) in all.iter().flat_map(|to| all.iter().map(move |me| (*to, *me))) {
            assert_eq!(say(to, me), if to == me { Ok(true) } else { Err(Errno::ACCESS) }, "to {to:?}, heard by {me:?}");
        }
    }

    #[test]
    fn it_comes_in_pieces_and_what_follows_is_left() {
        let (key, (one, other), (wire, tap)) = (JobKey::from_bytes([7; 32]), pair(), pair());
        write(wire.as_fd(), &key, me(), &greeting()).unwrap();
        let mut bytes = [0; 1 + GREETING + MAC];
        let (_, length) = rustix::net::recv(&tap, &mut bytes[..], RecvFlags::DONTWAIT).unwrap();
        let mut incoming = Incoming::default();
        for at in 0..length {
            assert_eq!(incoming.read(one.as_fd(), me(), |_| key.clone()), Ok(None));
            rustix::net::send(&other, &bytes[at..=at], SendFlags::empty()).unwrap();
        }
        rustix::net::send(&other, b"stream", SendFlags::empty()).unwrap();
        assert_eq!(incoming.read(one.as_fd(), me(), |_| key.clone()), Ok(Some(greeting())));
        let mut rest = [0; 16];
        assert_eq!(rustix::net::recv(&one, &mut rest[..], RecvFlags::DONTWAIT).unwrap().1, 6);
    }

    #[test]
    fn strangers_are_refused() {
        let key = JobKey::from_bytes([7; 32]);
        let read = |bytes: &[u8]| {
            let (one, other) = pair();
            rustix::net::send(&other, bytes, SendFlags::empty()).unwrap();
            drop(other);
            Incoming::default().read(one.as_fd(), me(), |_| key.clone())
        };
        assert_eq!(read(&[]), Err(Errno::CONNRESET));
        assert_eq!(read(&[255; 200]), Err(Errno::PROTO), "longer than any greeting");
        assert_eq!(read(&[0; 1 + MAC]), Err(Errno::PROTO), "no greeting");
        let (one, other) = pair();
        write(other.as_fd(), &JobKey::from_bytes([8; 32]), me(), &greeting()).unwrap();
        assert_eq!(Incoming::default().read(one.as_fd(), me(), |_| key.clone()), Err(Errno::ACCESS), "another job's key");
    }
}
