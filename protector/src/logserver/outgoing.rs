//! What leaves a log server on one connection, and in which order: words of the login, frames for which a gate waits,
//! acknowledgements, and payload and images when nothing else waits.
//!
//! There is no socket and no key here. The driver says how frames become records, writes what [`Outgoing::poll_transmit`]
//! gives, and says how much of it the socket has taken. What has begun to leave leaves first: a record is never cut.
//!
//! # Bounds
//!
//! [`Outgoing::new`] has the most bytes that may wait. If more would, the peer takes nothing: nothing is kept for it any more ([`Outgoing::is_given_up`]).

use std::collections::VecDeque;

use radic_wire::bytes::Writer;
use radic_wire::frame::{self, HEADER};
use radic_wire::limits;
use radic_wire::log::FromProtector;

use super::Precedence;

/// Longest frame of an acknowledgement.
const ACKNOWLEDGEMENT: usize = 16;
/// Bytes that may wait besides what a new replica is told at once.
const LOST: usize = 64 << 20;

/// Bytes that may wait on one connection, with so much memory for each process. A new replica is told at once all that memory
/// has of its process: the store reads journal up to four times its memory, and payload up to twice.
pub fn most(memory: usize) -> usize {
    LOST + 6 * memory
}

/// Whether the peer is still sent anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Peer {
    #[default]
    Takes,
    /// More waited than may: the connection is over.
    GivenUp,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Outgoing {
    most: usize,
    peer: Peer,
    /// Being sent, up to `gone` gone: as it goes to the socket.
    under_way: Vec<u8>,
    gone: usize,
    /// Words of the login, which go before all else and in no record.
    words: Vec<u8>,
    /// Frames that go first.
    urgent: Vec<u8>,
    /// Frames that are being put into records.
    frames: Vec<u8>,
    /// Frames that go when nothing else does.
    later: VecDeque<Vec<u8>>,
    later_bytes: usize,
    /// Of acknowledgements only the newest says something.
    journal_stable: Option<u64>,
    payload_stable: Option<u64>,
}

impl Outgoing {
    /// Of a new connection, for which at most so many bytes may wait.
    pub fn new(most: usize) -> Self {
        Outgoing { most, ..Outgoing::default() }
    }

    // ---- what is to leave

    /// A word of the login.
    pub fn handle_words(&mut self, bytes: &[u8]) {
        if self.has_room(bytes.len()) {
            self.words.extend_from_slice(bytes);
        }
        self.assert_bounds();
    }

    /// A message to the incarnation that speaks on this connection.
    pub fn handle_answer(&mut self, body: &[u8]) {
        match FromProtector::read(body) {
            _ if self.peer == Peer::GivenUp => {}
            Ok(FromProtector::JournalStable { position }) => self.journal_stable = Some(position),
            Ok(FromProtector::PayloadStable { position }) => self.payload_stable = Some(position),
            _ => self.push_urgent(body),
        }
        self.assert_bounds();
    }

    /// A message to a replica.
    pub fn handle_forward(&mut self, precedence: Precedence, body: &[u8]) {
        match precedence {
            Precedence::Barrier => {
                self.fence();
                self.push_urgent(body);
            }
            Precedence::Urgent => self.push_urgent(body),
            Precedence::Later => self.push_later(body),
        }
        self.assert_bounds();
    }

    fn push_urgent(&mut self, body: &[u8]) {
        if self.has_room(HEADER + body.len()) {
            frame::encode_into(&mut self.urgent, body, limits::LOG_FRAME);
        }
    }

    fn push_later(&mut self, body: &[u8]) {
        if self.has_room(HEADER + body.len()) {
            let mut framed = Vec::with_capacity(body.len() + HEADER);
            frame::encode_into(&mut framed, body, limits::LOG_FRAME);
            self.later_bytes += framed.len();
            self.later.push_back(framed);
        }
    }

    /// What waits goes before what will.
    fn fence(&mut self) {
        let later = std::mem::take(&mut self.later);
        self.later_bytes = 0;
        later.iter().for_each(|framed| self.urgent.extend_from_slice(framed));
    }

    /// Whether so many bytes more may wait. If not, the peer is given up.
    fn has_room(&mut self, bytes: usize) -> bool {
        if self.peer == Peer::Takes && self.waiting() + bytes > self.most {
            *self = Outgoing { peer: Peer::GivenUp, ..Outgoing::new(self.most) };
        }
        self.peer == Peer::Takes
    }

    // ---- what leaves

    /// What leaves next, if anything does: words of the login as they are, or frames that `seal` puts into records. Without it
    /// frames wait: neither side has proven what it is yet.
    pub fn poll_transmit(&mut self, seal: Option<impl FnOnce(&[u8], &mut Vec<u8>)>) -> Option<&[u8]> {
        if self.gone == self.under_way.len() {
            self.under_way.clear();
            self.gone = 0;
            std::mem::swap(&mut self.under_way, &mut self.words);
            if let (true, Some(seal)) = (self.under_way.is_empty(), seal) {
                self.take_frames();
                if !self.frames.is_empty() {
                    seal(&self.frames, &mut self.under_way);
                }
            }
        }
        let rest = &self.under_way[self.gone..];
        (!rest.is_empty()).then_some(rest)
    }

    /// The socket has taken so many bytes of that.
    pub fn handle_taken(&mut self, bytes: usize) {
        self.gone += bytes;
        self.assert_bounds();
    }

    /// The frames that go next.
    fn take_frames(&mut self) {
        self.frames.clear();
        std::mem::swap(&mut self.frames, &mut self.urgent);
        let journal = self.journal_stable.take().map(|position| FromProtector::JournalStable { position });
        let payload = self.payload_stable.take().map(|position| FromProtector::PayloadStable { position });
        for message in journal.iter().chain(&payload) {
            let mut body = [0; ACKNOWLEDGEMENT];
            let mut writer = Writer::new(&mut body);
            message.write(&mut writer);
            let length = writer.finish().expect("a tag and a number have at most 11 bytes");
            frame::encode_into(&mut self.frames, &body[..length], ACKNOWLEDGEMENT);
        }
        if self.frames.is_empty()
            && let Some(next) = self.later.pop_front()
        {
            self.later_bytes -= next.len();
            self.frames = next;
        }
    }

    // ---- what waits

    /// Bytes that wait. Acknowledgements are not counted: they have no length of their own.
    pub fn waiting(&self) -> usize {
        self.under_way.len() - self.gone + self.words.len() + self.urgent.len() + self.later_bytes
    }

    /// Whether nothing waits, not even an acknowledgement.
    pub fn is_empty(&self) -> bool {
        self.waiting() == 0 && self.journal_stable.is_none() && self.payload_stable.is_none()
    }

    /// Whether more would have waited than may: the peer takes nothing, and its connection is over.
    pub fn is_given_up(&self) -> bool {
        self.peer == Peer::GivenUp
    }

    /// What is cheap to check.
    fn assert_bounds(&self) {
        assert!(self.gone <= self.under_way.len(), "no more leaves than there was");
        // Records are somewhat longer than their frames.
        assert!(self.words.len() + self.urgent.len() + self.later_bytes <= self.most, "no more waits than may");
    }

    /// Panics if its parts contradict each other.
    pub fn check_invariants(&self) {
        self.assert_bounds();
        assert_eq!(self.later_bytes, self.later.iter().map(Vec::len).sum(), "bytes that leave when nothing else does");
        assert!(self.peer == Peer::Takes || self.is_empty(), "nothing is kept for a peer that is given up");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use radic_wire::frame::FrameReader;

    use super::*;

    /// Records of these tests: frames as they are.
    fn seal(frames: &[u8], records: &mut Vec<u8>) {
        records.extend_from_slice(frames);
    }

    fn encoded(message: &FromProtector<'_>) -> Vec<u8> {
        let mut body = vec![0; 64];
        let mut writer = Writer::new(&mut body);
        message.write(&mut writer);
        let length = writer.finish().unwrap();
        body.truncate(length);
        body
    }

    fn bodies(records: &[u8]) -> Vec<Vec<u8>> {
        let mut reader = FrameReader::new(limits::LOG_FRAME);
        reader.push(records);
        std::iter::from_fn(|| reader.next_frame().unwrap().map(<[u8]>::to_vec)).collect()
    }

    /// What leaves at once, at most so many bytes at a time.
    fn drain(out: &mut Outgoing, most: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(bytes) = out.poll_transmit(Some(seal)) {
            let taken = bytes.len().min(most);
            all.extend_from_slice(&bytes[..taken]);
            out.handle_taken(taken);
            out.check_invariants();
        }
        bodies(&all)
    }

    #[test]
    fn what_a_gate_waits_for_overtakes_payload_that_has_not_begun() {
        let mut out = Outgoing::new(1_000);
        out.handle_forward(Precedence::Later, b"payload 1");
        out.handle_forward(Precedence::Later, b"payload 2");
        let begun = out.poll_transmit(Some(seal)).unwrap().to_vec();
        assert_eq!(bodies(&begun), [b"payload 1"]);
        out.handle_taken(3);
        out.handle_forward(Precedence::Urgent, b"journal");
        // What has begun ends first.
        assert_eq!(out.poll_transmit(Some(seal)), Some(&begun[3..]));
        out.handle_taken(begun.len() - 3);
        assert_eq!(drain(&mut out, 5), [b"journal".to_vec(), b"payload 2".to_vec()]);
        assert!(out.is_empty());
    }

    #[test]
    fn nothing_that_waits_is_overtaken_by_another_incarnation() {
        let mut out = Outgoing::new(1_000);
        out.handle_forward(Precedence::Later, b"payload of before");
        out.handle_forward(Precedence::Urgent, b"journal of before");
        out.handle_forward(Precedence::Barrier, b"hello");
        out.handle_forward(Precedence::Later, b"payload");
        out.handle_forward(Precedence::Urgent, b"journal");
        let order = ["journal of before", "payload of before", "hello", "journal", "payload"];
        assert_eq!(drain(&mut out, usize::MAX), order.map(|of| of.as_bytes().to_vec()));
    }

    #[test]
    fn of_acknowledgements_only_the_newest_leaves_behind_other_answers_and_before_payload() {
        let mut out = Outgoing::new(1_000);
        let [old, new] = [3, 4].map(|position| encoded(&FromProtector::JournalStable { position }));
        let payload = encoded(&FromProtector::PayloadStable { position: 9 });
        let wanted = encoded(&FromProtector::ImageWanted);
        out.handle_forward(Precedence::Later, b"later");
        [&old, &payload, &new, &wanted].into_iter().for_each(|answer| out.handle_answer(answer));
        assert!(!out.is_empty());
        assert_eq!(drain(&mut out, 1), [wanted, new, payload, b"later".to_vec()]);
        assert!(out.is_empty());
    }

    #[test]
    fn words_of_the_login_leave_first_and_frames_not_before_there_are_records() {
        let mut out = Outgoing::new(1_000);
        out.handle_answer(&encoded(&FromProtector::JournalStable { position: 1 }));
        assert_eq!(out.poll_transmit(None::<fn(&[u8], &mut Vec<u8>)>), None);
        assert!(!out.is_empty());
        out.handle_words(b"welcome");
        assert_eq!(out.poll_transmit(Some(|_: &[u8], _: &mut Vec<u8>| panic!("words are in no record"))), Some(&b"welcome"[..]));
        out.handle_taken(7);
        assert_eq!(drain(&mut out, usize::MAX).len(), 1);
    }

    #[test]
    fn a_peer_that_takes_nothing_is_given_up_and_costs_nothing_more() {
        for precedence in [Precedence::Later, Precedence::Urgent, Precedence::Barrier] {
            let mut out = Outgoing::new(2 * (HEADER + 10));
            out.handle_forward(Precedence::Later, &[1; 10]);
            out.handle_forward(precedence, &[2; 10]);
            assert_eq!((out.waiting(), out.is_given_up()), (2 * (HEADER + 10), false), "as many bytes wait as may");
            out.handle_forward(precedence, &[]);
            assert_eq!((out.waiting(), out.is_given_up()), (0, true));
            out.handle_words(&[1]);
            out.handle_answer(&encoded(&FromProtector::JournalStable { position: 1 }));
            out.handle_forward(precedence, &[3]);
            assert!(out.is_empty() && out.poll_transmit(Some(seal)).is_none());
            out.check_invariants();
        }
    }

    #[test]
    fn what_has_left_makes_room() {
        let mut out = Outgoing::new(HEADER + 10);
        for _ in 0..3 {
            out.handle_forward(Precedence::Urgent, &[1; 10]);
            assert_eq!(out.poll_transmit(Some(seal)).map(<[u8]>::len), Some(HEADER + 10));
            assert_eq!(out.waiting(), HEADER + 10, "what the socket has not taken waits");
            out.handle_taken(HEADER + 10);
            assert_eq!(out.waiting(), 0);
        }
        assert!(!out.is_given_up());
    }

    #[test]
    #[should_panic(expected = "no more leaves than there was")]
    fn no_more_leaves_than_there_was() {
        Outgoing::new(100).handle_taken(1);
    }

    #[test]
    fn a_new_replica_can_be_told_all_that_memory_has() {
        const MEMORY: usize = 32 << 20;
        assert!(most(MEMORY) > 4 * MEMORY + 2 * MEMORY + limits::LOG_FRAME);
    }

    /// A message of a test: its number, and how it leaves.
    fn sent() -> impl Strategy<Value = (Precedence, usize)> {
        let precedence = prop_oneof![Just(Precedence::Barrier), Just(Precedence::Urgent), Just(Precedence::Later)];
        (precedence, 0usize..40)
    }

    proptest! {
        /// However little the socket takes: each message leaves once and whole, those of one precedence in their order, and none passes a barrier.
        #[test]
        fn each_message_leaves_once_and_in_its_order(steps in prop::collection::vec(sent(), 1..60)) {
            let mut out = Outgoing::new(1 << 20);
            let (mut records, mut of, mut barriers) = (Vec::new(), BTreeMap::new(), 0usize);
            for (number, (precedence, take)) in steps.iter().enumerate() {
                barriers += usize::from(*precedence == Precedence::Barrier);
                // A barrier is the first of what comes after it, and urgent.
                of.insert(number, (barriers, *precedence == Precedence::Later));
                out.handle_forward(*precedence, &(number as u64).to_le_bytes());
                if let Some(bytes) = out.poll_transmit(Some(seal)) {
                    let taken = bytes.len().min(*take);
                    records.extend_from_slice(&bytes[..taken]);
                    out.handle_taken(taken);
                }
                out.check_invariants();
            }
            while let Some(bytes) = out.poll_transmit(Some(seal)) {
                records.extend_from_slice(bytes);
                let all = bytes.len();
                out.handle_taken(all);
            }
            let order: Vec<usize> = bodies(&records).iter().map(|body| u64::from_le_bytes(body[..].try_into().unwrap()) as usize).collect();
            prop_assert_eq!(order.len(), steps.len());
            for (at, one) in order.iter().enumerate() {
                for other in &order[at + 1..] {
                    prop_assert!(of[one].0 <= of[other].0, "{} passes a barrier before {}", one, other);
                    prop_assert!(of[one] != of[other] || one < other, "{} leaves before {}", one, other);
                }
            }
        }
    }
}
