//! What leaves a process between two calls of its program: journal and payload for its protector, and frames on its links.

use radic_observer::Transmit;
use radic_observer::connection::Slot;
use radic_observer::frames::Leaving;
use radic_observer::journal::Ship;
use radic_wire::log::ToProtector;

use super::net::{Packet, Word, code, framed};
use super::world::World;

impl World {
    /// Ships what waits of the journal.
    pub(super) fn ship_journal(&mut self, pid: u32) {
        let unclosed = self.breaks.unclosed;
        let lib = self.lib(pid);
        let Some([conn, _]) = lib.conns.used else { return };
        lib.haste.handle_shipped();
        while let Some(ship) = self.lib(pid).observer.poll_journal() {
            let Ship { position, head, tail, causes } = ship;
            let bytes = match causes {
                None => framed(&[head, tail], |out| ToProtector::Journal { position, bytes: &[] }.write(out)),
                Some(_) if unclosed => framed(&[head, tail], |out| ToProtector::Journal { position, bytes: &[] }.write(out)),
                Some(causes) => framed(&[causes.bytes, head, tail], |out| causes.write_head(out, position)),
            };
            self.send(conn, 0, Packet::Word(Word::Log(bytes)));
        }
    }

    /// The same of what was received.
    pub(super) fn ship_payload(&mut self, pid: u32) {
        let Some(conns) = self.lib(pid).conns.used.filter(|_| self.lib(pid).is_log_up()) else { return };
        while let Some(piece) = self.lib(pid).observer.poll_payload(usize::MAX) {
            let (position, stream, offset) = (piece.position, piece.stream, piece.offset);
            let bytes = if piece.is_end {
                code(|out| ToProtector::PayloadEnd { position, stream, offset }.write(out))
            } else {
                framed(&[piece.head, piece.tail], |out| ToProtector::Payload { position, stream, offset, bytes: &[] }.write(out))
            };
            self.send(conns[1], 0, Packet::Word(Word::Log(bytes)));
        }
    }

    /// Bytes of all streams leave, as far as sockets take them.
    pub(super) fn transmit_all(&mut self, pid: u32) {
        let slots: Vec<Slot> = self.lib(pid).observer.table().iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            // A socket takes some, not always all.
            let most = 1 + self.dice.below(3);
            _ = (0..most).all(|_| self.transmit(pid, slot));
        }
    }

    /// False: there is nothing to send, or no link.
    fn transmit(&mut self, pid: u32, slot: Slot) -> bool {
        let end = self.end_of(pid, slot).filter(|end| !self.lib(pid).sockets.is_silent(*end));
        let Some((conn, side)) = end.and_then(|end| self.lib(pid).sockets.conn(end)) else { return false };
        let begins = self.begins_frame(pid, slot);
        match self.lib(pid).observer.poll_transmit(slot) {
            Some(Transmit::Bytes(offset)) => {
                if begins {
                    self.note_frame(pid, slot, (conn, side), offset);
                }
                let observer = &self.lib(pid).observer;
                let Leaving { header, payload } = observer.leaving(slot).expect("a frame is under way");
                let stream = observer.outgoing(slot, offset).flatten().take(payload as usize);
                let bytes: Vec<u8> = header.iter().chain(stream).copied().collect();
                // A part of a frame that arrived twice would be none, and be refused.
                let count = if self.breaks.twice { bytes.len() } else { 1 + self.dice.below(bytes.len()) };
                let bytes = bytes[..count].to_vec();
                self.lib(pid).observer.handle_transmitted(slot, bytes.len() as u64);
                self.send(conn, side, Packet::Bytes(bytes));
            }
            Some(Transmit::End) => {
                self.lib(pid).observer.handle_passed(slot, 1);
                self.send(conn, side, Packet::End);
            }
            None => return false,
        }
        true
    }
}
