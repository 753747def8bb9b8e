//! Standard input of a job on its way through the home: from the terminal, one piece at a time, to rank 0.
//!
//! Each byte has an offset, counted over all terminals of the job. The home says from which offset on it wants a piece, the
//! terminal sends one, and the next one is wanted when rank 0's pipe has taken it. When rank 0 is brought back, what its old pipe
//! held is gone: nothing is passed on until rank 0 has caught up with its log and says how much it has read, and the terminal
//! sends again from there. So every byte comes exactly once, whatever dies, except what only a terminal had that is gone itself.

use radic_wire::peer::{SessionId, StdinWanted};
use serde_bytes::ByteBuf;

/// A piece of a terminal, and the offset of its first byte.
type Piece = (SessionId, u64, ByteBuf);

/// See the module.
#[derive(Debug)]
pub(super) struct Stdin {
    pub(super) wanted: StdinWanted,
    /// The end of standard input was passed on.
    over: bool,
    /// The piece that rank 0 has not taken: its number and length.
    under_way: Option<(u64, u64)>,
    /// The piece that came meanwhile.
    waiting: Option<Piece>,
    pieces: u64,
}

/// What is to be done with a piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Send it to rank 0's host.
    Pass { number: u64, data: ByteBuf },
    /// The piece is not the one that is wanted: tell the terminal which one is.
    Ask,
    /// The piece waits.
    Wait,
}

impl Stdin {
    pub(super) fn new(wanted: StdinWanted) -> Self {
        Stdin { wanted, over: false, under_way: None, waiting: None, pieces: 0 }
    }

    /// A terminal sends a piece.
    pub(super) fn handle_piece(&mut self, session: SessionId, offset: u64, data: ByteBuf) -> Next {
        match self.wanted {
            StdinWanted::From(next) if next != offset && self.under_way.is_none() => return Next::Ask,
            StdinWanted::From(_) | StdinWanted::Unknown if self.under_way.is_none() => {}
            _ => {
                // A terminal has one piece under way. If it sends a later one, that was asked for after a restart, and is the
                // right one.
                self.waiting = Some((session, offset, data));
                return Next::Wait;
            }
        }
        self.pieces += 1;
        self.under_way = Some((self.pieces, data.len() as u64));
        self.wanted = StdinWanted::From(offset);
        self.over = data.is_empty();
        Next::Pass { number: self.pieces, data }
    }

    /// Rank 0 has taken a piece. Returns false if it was under way to a pipe that is gone.
    pub(super) fn handle_taken(&mut self, number: u64) -> bool {
        let Some((_, length)) = self.under_way.take_if(|(under_way, _)| *under_way == number) else { return false };
        if let StdinWanted::From(next) = &mut self.wanted {
            *next += length;
        }
        true
    }

    /// Rank 0 has another pipe.
    pub(super) fn restart(&mut self, wanted: StdinWanted) {
        (self.wanted, self.over, self.under_way) = (wanted, false, None);
    }

    /// The offset from which a terminal is to send now, if it is to send. The inner None: the terminal must know by itself.
    pub(super) fn asks_from(&self) -> Option<Option<u64>> {
        match self.wanted {
            _ if self.over || self.under_way.is_some() => None,
            StdinWanted::Nothing => None,
            StdinWanted::From(next) => Some(Some(next)),
            StdinWanted::Unknown => Some(None),
        }
    }

    /// The piece that waited, if it is the one that is wanted now.
    pub(super) fn poll_waiting(&mut self) -> Option<Piece> {
        if self.wanted == StdinWanted::Nothing || self.under_way.is_some() {
            return None;
        }
        let is_wanted = |piece: &Piece| self.wanted == StdinWanted::From(piece.1);
        self.waiting.take().filter(is_wanted)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use radic_wire::ids::{BootId, NodeId};

    use super::*;

    fn session() -> SessionId {
        SessionId { node: NodeId { name: "n1".parse().expect("a name"), boot: BootId(1) }, number: 1 }
    }

    proptest! {
        /// Whatever rank 0 loses by being brought back, and however late old answers come, its new incarnation goes on with the
        /// byte after the last one that it has read.
        #[test]
        fn every_byte_comes_once(steps in prop::collection::vec((0u8..6, 1usize..9), 0..200)) {
            let text: Vec<u8> = (0..200).collect();
            let mut stdin = Stdin::new(StdinWanted::From(0));
            // The pipe of rank 0, what it has read, what its terminal was asked for, and pieces that the host has not answered.
            let (mut pipe, mut read, mut asked, mut taken) = (Vec::new(), Vec::new(), vec![0u64], Vec::new());
            let rest = std::iter::repeat_n([(0, 8), (1, 1), (2, 8), (5, 1)], 400).flatten();
            for (step, size) in steps.into_iter().chain(rest) {
                let mut next = None;
                match step {
                    0 => if let Some(from) = asked.pop() {
                        let from = from as usize;
                        next = Some((session(), from as u64, ByteBuf::from(&text[from..text.len().min(from + size)])));
                    },
                    1 => if let Some(number) = taken.pop() && stdin.handle_taken(number) {
                        asked.extend(stdin.asks_from().flatten());
                        next = stdin.poll_waiting();
                    },
                    2 | 3 => {
                        let some = pipe.len().min(size);
                        read.extend(pipe.drain(..some));
                    }
                    4 => {
                        pipe.clear();
                        stdin.restart(StdinWanted::Nothing);
                    }
                    _ => if stdin.wanted == StdinWanted::Nothing {
                        stdin.restart(StdinWanted::From(read.len() as u64));
                        asked.extend(stdin.asks_from().flatten());
                        next = stdin.poll_waiting();
                    },
                }
                while let Some((session, offset, data)) = next.take() {
                    match stdin.handle_piece(session, offset, data) {
                        Next::Pass { number, data } => {
                            pipe.extend_from_slice(&data);
                            taken.push(number);
                        }
                        Next::Ask => asked.extend(stdin.asks_from().flatten()),
                        Next::Wait => {}
                    }
                }
                prop_assert!(read[..] == text[..read.len()]);
            }
            prop_assert_eq!(read.len(), text.len(), "{:?}", stdin);
        }
    }
}
