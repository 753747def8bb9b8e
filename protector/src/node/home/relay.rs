//! The output of a job on its way from the hosts to a terminal: what waits for a terminal, and what a terminal has not printed
//! yet.
//!
//! The relay knows how far each stream of each rank has come, so nothing is shown twice (G3). What it wants done it leaves as
//! [`Effect`]s, which its home carries out after each call.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use radic_wire::ids::Rank;
use radic_wire::job::OutputStream;
use radic_wire::limits;
use radic_wire::peer::{SessionId, ToSession};
use serde_bytes::ByteBuf;

/// Bytes of a stream that its host keeps for the next terminal. The host goes on reading while it has up to twice as much.
const KEPT_BY_HOST: u64 = limits::OUTPUT_UNPRINTED as u64 / 2;

/// A piece of a rank's output on its way to a terminal.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) rank: Rank,
    pub(super) stream: OutputStream,
    /// The offset of the first byte.
    pub(super) offset: u64,
    pub(super) data: ByteBuf,
    /// The host was told that it need not keep the piece.
    taken: bool,
}

impl Piece {
    pub(super) fn new(rank: Rank, stream: OutputStream, offset: u64, data: ByteBuf) -> Self {
        Piece { rank, stream, offset, data, taken: false }
    }

    /// The offset after its last byte.
    pub(super) fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }

    /// What it costs to keep: small pieces are dominated by their bookkeeping.
    fn cost(&self) -> usize {
        self.data.len() + size_of::<Piece>()
    }

    /// The piece as a terminal is told it.
    fn shown(&self) -> ToSession {
        let Piece { rank, stream, offset, ref data, .. } = *self;
        ToSession::Output { rank, stream, offset, data: data.clone() }
    }
}

/// How far one stream of a rank has come.
#[derive(Debug, Default, Clone, Copy)]
struct Progress {
    /// Offset of the next byte. A new home does not know it before the host has spoken.
    next: Option<u64>,
    /// The host was told that it need not keep what is before this offset.
    taken: u64,
}

impl Progress {
    /// Bytes that the host keeps.
    fn held(&self) -> u64 {
        self.next.map_or(0, |next| next.saturating_sub(self.taken))
    }
}

/// What the relay wants done.
#[derive(Debug)]
pub(super) enum Effect {
    /// Tell the host of this rank that it need not keep what is before this offset.
    Taken(Rank, OutputStream, u64),
    /// Tell the terminal.
    Show(SessionId, ToSession),
}

/// What a piece of output is, when it comes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// Some of it is new, and waits now; or it is the end of its stream.
    New,
    /// All of it came before. The host was told up to this offset.
    Before { taken: u64 },
    /// This many bytes before it are missing.
    Gap(u64),
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Relay {
    pub(super) terminal: Option<SessionId>,
    /// Pieces that were not sent to any terminal.
    waiting: VecDeque<Piece>,
    waiting_bytes: usize,
    /// Pieces that the terminal was sent and has not printed.
    under_way: VecDeque<Piece>,
    under_way_bytes: usize,
    /// Bytes of the front of `under_way` that were printed.
    printed: usize,
    /// Bytes that a terminal has printed, or that were given up, since the job began.
    consumed: u64,
    /// Bytes given up since the last attach.
    dropped: u64,
    /// Of each stream of each rank.
    progress: BTreeMap<(Rank, OutputStream), Progress>,
    /// Streams of which hosts keep much, or that have ended: [`Relay::relieve`] looks at these.
    pressed: BTreeSet<(Rank, OutputStream)>,
    /// Streams that have ended, of ranks whose hosts wait: of these hosts keep nothing for a terminal that may never come.
    ended: BTreeSet<(Rank, OutputStream)>,
    /// Pieces that are taken may stand after pieces that are not.
    mixed: bool,
    effects: VecDeque<Effect>,
}

impl Relay {
    /// What the relay wants done next.
    pub(super) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// What the waiting output costs to keep, in bytes.
    pub(super) fn backlog(&self) -> usize {
        self.waiting_bytes
    }

    /// Output that waits for a terminal and that hosts need not keep any more.
    pub(super) fn kept(&self) -> impl Iterator<Item = (Rank, OutputStream, std::ops::Range<u64>)> + '_ {
        let pieces = self.under_way.iter().chain(&self.waiting).filter(|piece| piece.taken);
        pieces.map(|piece| (piece.rank, piece.stream, piece.offset..piece.end()))
    }

    /// Whether no written byte waits for a terminal.
    pub(super) fn is_printed(&self) -> bool {
        // An empty piece says that a rank writes no more. A terminal learns as much from the end of the job, so such a piece need
        // not be printed: waiting for it would withhold the end from a terminal that has not turned to this home yet.
        self.waiting.iter().all(|piece| piece.data.is_empty()) && self.under_way_bytes == 0
    }

    /// Whether the terminal has printed all that it was sent.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether nothing waits to be sent to a terminal.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The offset of the next byte of a stream.
    pub(super) fn next(&self, rank: Rank, stream: OutputStream) -> u64 {
        self.progress.get(&(rank, stream)).and_then(|progress| progress.next).unwrap_or(0)
    }

    /// The streams of a resumed job go on at these offsets.
    pub(super) fn resume(&mut self, rank: Rank, stream: OutputStream, offset: u64) {
        self.progress.insert((rank, stream), Progress { next: Some(offset), taken: offset });
    }

    /// Bytes consumed since the job began, and dropped since the last attach, for a terminal that attaches now.
    pub(super) fn take_counts(&mut self) -> (u64, u64) {
        (self.consumed, std::mem::take(&mut self.dropped))
    }

    /// What waits, as a terminal is told it.
    pub(super) fn unprinted(&self) -> impl Iterator<Item = ToSession> + '_ {
        self.waiting.iter().map(Piece::shown)
    }

    /// A piece of output comes. Bytes that came before are not printed again.
    pub(super) fn handle_output(&mut self, mut piece: Piece) -> Came {
        let stream = (piece.rank, piece.stream);
        let progress = self.progress.entry(stream).or_default();
        let next = progress.next.unwrap_or(piece.offset);
        if piece.offset > next {
            return Came::Gap(piece.offset - next);
        }
        if piece.data.is_empty() {
            self.pressed.insert(stream);
            self.ended.insert(stream);
            return Came::New;
        }
        let known = ((next - piece.offset) as usize).min(piece.data.len());
        progress.next = Some(next.max(piece.end()));
        let taken = progress.taken;
        if progress.held() > KEPT_BY_HOST {
            self.pressed.insert(stream);
        }
        piece.data.drain(..known);
        piece.offset += known as u64;
        if piece.data.is_empty() {
            return Came::Before { taken };
        }
        self.ended.remove(&stream);
        self.add(piece);
        Came::New
    }

    /// Nothing more comes from this rank. An empty piece of each stream tells the terminal so, after the output before it.
    pub(super) fn end(&mut self, rank: Rank) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            self.add(Piece::new(rank, stream, self.next(rank, stream), ByteBuf::new()));
        }
    }

    /// Puts a piece after all that waits.
    fn add(&mut self, piece: Piece) {
        self.waiting_bytes += piece.cost();
        self.waiting.push_back(piece);
    }

    /// What a terminal has not printed waits for the next one.
    pub(super) fn put_back(&mut self) {
        let mut printed = std::mem::take(&mut self.printed);
        while let Some(mut piece) = self.under_way.pop_back() {
            if self.under_way.is_empty() {
                piece.offset += printed as u64;
                piece.data.drain(..std::mem::take(&mut printed));
            }
            self.waiting_bytes += piece.cost();
            self.waiting.push_front(piece);
        }
        self.under_way_bytes = 0;
    }

    /// The terminal has printed this many bytes.
    pub(super) fn handle_printed(&mut self, bytes: u64) {
        // A terminal that claims more than it was sent counts as having printed all of it.
        let bytes = (bytes as usize).min(self.under_way_bytes);
        self.under_way_bytes -= bytes;
        self.printed += bytes;
        self.consumed += bytes as u64;
        let mut done = Vec::new();
        while let Some(front) = self.under_way.front().filter(|front| front.data.len() <= self.printed) {
            self.printed -= front.data.len();
            done.extend(self.under_way.pop_front());
        }
        done.iter_mut().for_each(|piece| self.take(piece));
    }

    /// Sends the terminal what its window has room for. A job without protection (`protected` is false) dies with its home, so a
    /// host need not keep more than the home does.
    pub(super) fn pump(&mut self, terminal: &SessionId, protected: bool) {
        while self.under_way_bytes < limits::OUTPUT_WINDOW {
            let Some(mut piece) = self.waiting.pop_front() else { break };
            self.waiting_bytes -= piece.cost();
            self.under_way_bytes += piece.data.len();
            if !protected {
                self.take(&mut piece);
            }
            let shown = piece.shown();
            self.under_way.push_back(piece);
            self.effects.push_back(Effect::Show(terminal.clone(), shown));
        }
    }

    /// Keeps output while there is no terminal. The hosts keep it as well if `by_hosts`, for the next terminal: this node may be
    /// lost before one attaches. But they keep no more than lets every rank go on writing, and come to its end.
    pub(super) fn keep(&mut self, by_hosts: bool) {
        if !by_hosts {
            self.take_all();
        } else if !self.pressed.is_empty() {
            self.relieve();
        }
        while self.waiting_bytes > limits::OUTPUT_BACKLOG {
            let mut oldest = self.waiting.pop_front().expect("bytes wait, hence a piece");
            self.take(&mut oldest);
            self.waiting_bytes -= oldest.cost();
            self.dropped += oldest.data.len() as u64;
            self.consumed += oldest.data.len() as u64;
        }
    }

    /// No host need keep anything of what waits.
    pub(super) fn take_all(&mut self) {
        // Pieces that are not taken stand after the others, except after `relieve`.
        let last = self.waiting.iter().rposition(|piece| piece.taken).filter(|_| !self.mixed);
        self.mixed = false;
        let from = last.map_or(0, |last| last + 1);
        let mut new = self.waiting.split_off(from);
        new.iter_mut().for_each(|piece| self.take(piece));
        self.waiting.append(&mut new);
    }

    /// Drops what waits.
    pub(super) fn clear(&mut self) {
        (self.waiting, self.waiting_bytes) = (VecDeque::new(), 0);
    }

    /// Lets hosts drop part of each stream of which they keep much, until about half of the allowance is left, and all of a stream that
    /// has ended. Only streams in `pressed` are looked at.
    fn relieve(&mut self) {
        let pressed = std::mem::take(&mut self.pressed);
        let mut waiting = std::mem::take(&mut self.waiting);
        for piece in waiting.iter_mut().filter(|piece| !piece.taken && pressed.contains(&(piece.rank, piece.stream))) {
            let held = self.progress.get(&(piece.rank, piece.stream)).map_or(0, Progress::held);
            let has_ended = self.ended.contains(&(piece.rank, piece.stream));
            if has_ended || held > KEPT_BY_HOST / 2 + piece.data.len() as u64 {
                self.take(piece);
            }
        }
        (self.waiting, self.mixed) = (waiting, true);
    }

    /// The host of the piece's rank may drop the piece from now on.
    fn take(&mut self, piece: &mut Piece) {
        if !std::mem::replace(&mut piece.taken, true) {
            let progress = self.progress.entry((piece.rank, piece.stream)).or_default();
            progress.taken = progress.taken.max(piece.end());
            self.effects.push_back(Effect::Taken(piece.rank, piece.stream, piece.end()));
        }
    }

    /// Panics if its counts contradict its pieces.
    pub(super) fn check_invariants(&self) {
        assert!(self.effects.is_empty(), "{} effects were not carried out", self.effects.len());
        assert!(self.waiting.is_empty() == (self.waiting_bytes == 0), "{} bytes wait", self.waiting_bytes);
        let under_way = (self.under_way_bytes, self.printed);
        assert!(!self.under_way.is_empty() || under_way == (0, 0), "{under_way:?} bytes are under way, and no piece");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, text: &str) -> Piece {
        Piece::new(Rank(1), OutputStream::Stdout, offset, ByteBuf::from(text))
    }

    #[test]
    fn what_came_before_is_not_shown_again_and_a_gap_is_told() {
        let mut relay = Relay::default();
        assert_eq!(relay.handle_output(piece(3, "abc")), Came::New, "a new home takes what comes first for the beginning");
        assert_eq!(relay.handle_output(piece(4, "bc")), Came::Before { taken: 0 });
        assert_eq!(relay.handle_output(piece(5, "cde")), Came::New);
        assert_eq!(relay.handle_output(piece(9, "f")), Came::Gap(1));
        let texts = relay.unprinted().map(|shown| match shown {
            ToSession::Output { offset, data, .. } => (offset, String::from_utf8(data.into_vec()).unwrap()),
            other => panic!("{other:?}"),
        });
        assert_eq!(texts.collect::<Vec<_>>(), [(3, "abc".to_owned()), (6, "de".to_owned())]);
        relay.check_invariants();
    }

    #[test]
    fn a_host_keeps_what_no_terminal_has_printed() {
        let mut relay = Relay::default();
        assert_eq!(relay.handle_output(piece(0, "ab")), Came::New);
        relay.keep(true);
        assert!(relay.poll_effect().is_none() && relay.kept().next().is_none(), "its host has it");
        relay.keep(false);
        assert!(matches!(relay.poll_effect(), Some(Effect::Taken(Rank(1), OutputStream::Stdout, 2))));
        assert_eq!(relay.kept().collect::<Vec<_>>(), [(Rank(1), OutputStream::Stdout, 0..2)]);
        relay.check_invariants();
    }

    #[test]
    fn a_host_keeps_nothing_of_a_stream_that_has_ended() {
        let mut relay = Relay::default();
        assert_eq!(relay.handle_output(piece(0, "ab")), Came::New);
        relay.keep(true);
        assert_eq!(relay.handle_output(piece(2, "")), Came::New);
        relay.keep(true);
        assert!(matches!(relay.poll_effect(), Some(Effect::Taken(Rank(1), OutputStream::Stdout, 2))));
        assert_eq!(relay.kept().collect::<Vec<_>>(), [(Rank(1), OutputStream::Stdout, 0..2)]);
        assert_eq!(relay.handle_output(piece(4, "")), Came::Gap(2), "an end behind what came");
        relay.check_invariants();
    }

    #[test]
    #[should_panic(expected = "effects were not carried out")]
    fn an_effect_that_is_left_is_noticed() {
        let mut relay = Relay::default();
        assert_eq!(relay.handle_output(piece(0, "ab")), Came::New);
        relay.keep(false);
        relay.check_invariants();
    }
}
