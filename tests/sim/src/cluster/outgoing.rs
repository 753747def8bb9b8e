//! What leaves the log services: the real [`Outgoing`] of each connection, and sockets that take little before their peer has read some of it.
//!
//! A socket takes bytes, as the kernel's does; a message is on its way as soon as its last byte is taken. Both ends have the
//! keys: nothing is proven, and a record is its frames.

use std::collections::VecDeque;
use std::time::Duration;

use radic_protector::logserver::{Gone, Outgoing};
use radic_wire::frame::{self, FrameReader, HEADER};
use radic_wire::limits;

use super::logs::{Done, number};
use super::net::{ConnId, Owner, Packet, Word};
use super::queue::Event;
use super::world::World;

/// Bytes that sockets take, by turns, before their peer has read some of them: so few that messages wait and overtake each other.
const SOCKETS: [usize; 3] = [64, 512, 4_096];
/// Time until a socket that has taken a part takes the next.
const AGAIN: Duration = Duration::from_micros(80);

/// The socket of a log service, and what waits for it.
pub struct Line {
    /// The real thing.
    out: Outgoing,
    /// Words of the login. Each is an empty frame there, as no message is.
    words: VecDeque<Word>,
    /// What the socket has taken of a message.
    taken: FrameReader,
}

impl Line {
    /// Of a new connection.
    pub fn new(out: Outgoing) -> Line {
        Line { out, words: VecDeque::new(), taken: FrameReader::new(limits::LOG_FRAME) }
    }

    fn handle_word(&mut self, word: Word) {
        let mut framed = Vec::new();
        frame::encode_into(&mut framed, &[], 0);
        self.words.push_back(word);
        self.out.handle_words(&framed);
    }

    /// The socket takes at most so many bytes: the messages that leave by that, and whether it has taken all there was.
    fn take(&mut self, room: usize) -> (Vec<Word>, bool) {
        let seal = |frames: &[u8], records: &mut Vec<u8>| records.extend_from_slice(frames);
        let Some(bytes) = self.out.poll_transmit(Some(seal)) else { return (Vec::new(), true) };
        let (taken, all) = (bytes.len().min(room), bytes.len());
        self.taken.push(&bytes[..taken]);
        self.out.handle_taken(taken);
        let mut left = Vec::new();
        while let Some(body) = self.taken.next_frame().expect("a frame is no longer than it may be") {
            left.push(match body {
                [] => self.words.pop_front().expect("a word of the login"),
                body => Word::Log(body.to_vec()),
            });
        }
        (left, taken == all)
    }
}

fn bytes_of(packet: &Packet) -> usize {
    if let Packet::Word(Word::Log(bytes)) = packet { HEADER + bytes.len() } else { 0 }
}

impl World {
    /// Something is to leave on a connection.
    pub(super) fn queue_for_log(&mut self, at: usize, conn: ConnId, queue: impl FnOnce(&mut Outgoing)) {
        let Some(line) = self.logs(at).lines.get_mut(&conn) else { return };
        queue(&mut line.out);
        self.touch(at, conn);
    }

    /// A word of the login.
    pub(super) fn queue_word(&mut self, at: usize, conn: ConnId, word: Word) {
        let Some(line) = self.logs(at).lines.get_mut(&conn) else { return };
        line.handle_word(word);
        self.touch(at, conn);
    }

    fn touch(&mut self, at: usize, conn: ConnId) {
        let touched = &mut self.logs(at).touched;
        if touched.last() != Some(&conn) {
            touched.push(conn);
        }
    }

    /// Sends what the socket takes.
    pub(super) fn flush_log(&mut self, at: usize, conn: ConnId) {
        let side = self.side_of_logs(at, conn);
        loop {
            let room = SOCKETS[conn % SOCKETS.len()].saturating_sub(self.unread(conn, 1 - side));
            let Some(line) = self.logs(at).lines.get_mut(&conn) else { return };
            if room == 0 || line.out.is_empty() {
                break;
            }
            let (left, all) = line.take(room);
            left.into_iter().for_each(|word| self.send(conn, side, Packet::Word(word)));
            if !all {
                self.logs_later(at, AGAIN, Done::Room(conn));
                break;
            }
        }
        let Some(line) = self.logs(at).lines.get(&conn) else { return };
        line.out.check_invariants();
        let waiting = line.out.waiting();
        if line.out.is_given_up() {
            self.lose_log(at, conn, Gone::Broke("it takes no answers"));
        } else {
            self.counts.most_waiting = self.counts.most_waiting.max(waiting as u64);
            self.logs(at).server.handle_sent(number(conn), waiting);
        }
    }

    /// Which end of a connection is this log service's.
    pub(super) fn side_of_logs(&self, at: usize, conn: ConnId) -> usize {
        let owner = Owner::Logs(at, self.machines[at].boot);
        usize::from(self.net.conns[conn].ends[0].owner != owner)
    }

    /// Bytes on their way to this side, and those that lie there in the socket of a log service.
    fn unread(&self, conn: ConnId, side: usize) -> usize {
        let lies = match self.net.conns[conn].ends[side].owner {
            Owner::Logs(at, _) => self.machines[at].logs.waiting.get(&conn),
            _ => None,
        };
        self.net.on_the_way(conn, side).chain(lies.into_iter().flatten()).map(bytes_of).sum()
    }

    /// Something was read that lay or was on its way to this side: there is room for more, if a log service has some.
    pub(super) fn make_room(&mut self, conn: ConnId, side: usize) {
        let Owner::Logs(at, boot) = self.net.conns[conn].ends[1 - side].owner else { return };
        let waits = self.machines[at].logs.lines.get(&conn).is_some_and(|line| !line.out.is_empty());
        if waits && self.machines[at].boot == boot {
            self.schedule(self.now, Event::Logs(at, boot, Done::Room(conn)));
        }
    }
}
