//! What a bad network does to frames: a state machine that takes frames and time, and gives out what is due.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use super::segment::{self, Mac, Segment};
use crate::random::Random;

/// Daemons lose one frame of a connection in so long, and none that begins one: two in a row, or a call's first one, may cost a second and more, and then the
/// silent daemon is rightly taken for dead.
const SPARED: Duration = Duration::from_secs(1);

/// What is done: to one of so many frames; 0 is never.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// It is held back, so that others overtake it.
    pub delayed: usize,
    /// For so long at most.
    pub delay: Duration,
    /// It comes twice.
    pub doubled: usize,
    /// The second time so much later at most.
    pub late: Duration,
    /// It is lost.
    pub lost: usize,
    /// It is the last one of its connection, at one of its ends or at both. Only of connections between processes.
    pub reset: usize,
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// Frames that came.
    pub frames: usize,
    /// Frames that were held back.
    pub delayed: usize,
    /// Segments that came to their end before an earlier one of their connection did.
    pub overtook: usize,
    /// Frames that came twice.
    pub doubled: usize,
    /// Frames that were lost.
    pub lost: usize,
    /// Resets that were sent: to one end each.
    pub resets: usize,
    /// Resets that ended a connection there, as the kernel there says.
    pub broken: usize,
}

/// What is due.
#[derive(Debug, PartialEq, Eq)]
pub enum Due {
    /// A frame, at this port.
    Frame(usize, Vec<u8>),
    /// A reset, at this port.
    Reset(usize, Vec<u8>),
}

/// One direction of a connection.
type Flow = (SocketAddrV4, SocketAddrV4);

/// What is known of it.
#[derive(Debug, Default)]
struct Seen {
    /// How far its numbers have come to their end; none before the first.
    end: Option<u32>,
    /// Segments that are held back.
    held: usize,
    /// When one of it was lost.
    lost: Option<Instant>,
}

/// Something that waits for its time.
#[derive(Debug)]
struct Waiting {
    port: usize,
    what: What,
}

#[derive(Debug)]
enum What {
    Frame { frame: Vec<u8>, is_held: bool },
    Reset { macs: (Mac, Mac), flow: Flow, seq: u32 },
}

/// A bad network, or a good one if it has no faults.
#[derive(Debug)]
pub struct BadNetwork {
    random: Random,
    faults: Option<Faults>,
    /// Where daemons listen: whatever goes there, or comes from there, is not between processes.
    daemons: BTreeSet<SocketAddrV4>,
    /// By time, and in the order in which it came.
    order: BinaryHeap<Reverse<(Instant, u64)>>,
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
    flows: BTreeMap<Flow, Seen>,
    /// Between processes; of all others.
    done: [Done; 2],
}

impl BadNetwork {
    /// One without faults.
    pub fn new() -> Self {
        let (order, waiting, flows, done) = Default::default();
        BadNetwork { random: Random::new(0), faults: None, daemons: BTreeSet::new(), order, waiting, next: 0, flows, done }
    }

    /// From now on it has these faults; daemons listen at these ports.
    pub fn begin(&mut self, faults: Faults, seed: u64, daemons: BTreeSet<SocketAddrV4>) {
        (self.faults, self.random, self.daemons) = (Some(faults), Random::new(seed), daemons);
    }

    /// From now on it has none.
    pub fn end(&mut self) {
        self.faults = None;
    }

    /// What was done to frames between processes, and to all others.
    pub fn done(&self) -> [Done; 2] {
        self.done
    }

    /// A reset has ended a connection.
    pub fn has_broken(&mut self) {
        self.done[0].broken += 1;
    }

    /// Takes a frame that is to leave by port `to`; its sender is at port `from`.
    pub fn take(&mut self, now: Instant, from: usize, to: usize, frame: &[u8]) {
        let segment = Segment::read(frame);
        let Some(faults) = self.faults else { return self.wait(now, to, frame, false) };
        let kind = usize::from(!segment.is_some_and(|segment| self.is_between_processes(&segment)));
        self.done[kind].frames += 1;
        if self.is_lost(now, &faults, kind, segment.as_ref()) {
            self.done[kind].lost += 1;
            return;
        }
        let is_held = self.one_of(faults.delayed);
        let due = if is_held { now + self.up_to(faults.delay) } else { now };
        self.done[kind].delayed += usize::from(is_held);
        self.wait(due, to, frame, is_held);
        if kind == 0
            && let Some(segment) = segment.filter(Segment::is_of_a_connection)
            && self.one_of(faults.reset)
        {
            self.reset(due, (from, to), frame, &segment);
        }
        if self.one_of(faults.doubled) {
            self.done[kind].doubled += 1;
            // Every other one at once.
            let again = if self.one_of(2) { due } else { due + self.up_to(faults.late) };
            self.wait(again, to, frame, false);
        }
    }

    /// The next thing that is due, and since when.
    pub fn due(&mut self, now: Instant) -> Option<(Instant, Due)> {
        let Reverse((due, number)) = *self.order.peek().filter(|Reverse((due, _))| *due <= now)?;
        self.order.pop();
        let Waiting { port, what } = self.waiting.remove(&number).expect("whatever has its turn waits");
        let due_now = match what {
            What::Frame { frame, is_held } => {
                self.arrives(&frame, is_held);
                Due::Frame(port, frame)
            }
            What::Reset { macs, flow, seq } => {
                let end = |flow| self.flows.get(&flow).and_then(|seen| seen.end);
                let (seq, ack) = (end(flow).unwrap_or(seq), end((flow.1, flow.0)).unwrap_or(0));
                self.done[0].resets += 1;
                Due::Reset(port, segment::reset(macs, flow.0, flow.1, seq, ack))
            }
        };
        Some((due, due_now))
    }

    /// When something is due next.
    pub fn next(&self) -> Option<Instant> {
        self.order.peek().map(|Reverse((due, _))| *due)
    }

    fn is_between_processes(&self, segment: &Segment) -> bool {
        ![segment.from, segment.to].iter().any(|end| self.daemons.contains(end))
    }

    fn one_of(&mut self, many: usize) -> bool {
        many > 0 && self.random.below(many) == 0
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        most.mul_f64((1 + self.random.below(1_000)) as f64 / 1e3)
    }

    fn is_lost(&mut self, now: Instant, faults: &Faults, kind: usize, segment: Option<&Segment>) -> bool {
        let Some(segment) = segment.filter(|_| self.one_of(faults.lost)) else { return false };
        if kind == 0 {
            return true;
        }
        let ends = (segment.from.min(segment.to), segment.from.max(segment.to));
        let last = &mut self.flows.entry(ends).or_default().lost;
        let may_be = !segment.is_first() && last.is_none_or(|last| now.duration_since(last) > SPARED);
        if may_be {
            *last = Some(now);
        }
        may_be
    }

    fn wait(&mut self, due: Instant, port: usize, frame: &[u8], is_held: bool) {
        if let Some(segment) = Segment::read(frame).filter(|_| is_held) {
            self.flows.entry((segment.from, segment.to)).or_default().held += 1;
        }
        self.put(due, port, What::Frame { frame: frame.to_vec(), is_held });
    }

    fn put(&mut self, due: Instant, port: usize, what: What) {
        self.order.push(Reverse((due, self.next)));
        self.waiting.insert(self.next, Waiting { port, what });
        self.next += 1;
    }

    /// Resets a connection just after a segment of it has come to its end: there, where that came from, or both.
    fn reset(&mut self, due: Instant, (from, to): (usize, usize), frame: &[u8], segment: &Segment) {
        let Some((to_mac, from_mac)) = segment::macs(frame) else { return };
        let which = self.random.below(3);
        if which != 0 {
            self.put(due, to, What::Reset { macs: (to_mac, from_mac), flow: (segment.from, segment.to), seq: segment.end() });
        }
        if which != 1 {
            self.put(due, from, What::Reset { macs: (from_mac, to_mac), flow: (segment.to, segment.from), seq: segment.ack });
        }
    }

    fn arrives(&mut self, frame: &[u8], was_held: bool) {
        let Some(segment) = Segment::read(frame) else { return };
        let kind = usize::from(!self.is_between_processes(&segment));
        let seen = self.flows.entry((segment.from, segment.to)).or_default();
        seen.held -= usize::from(was_held);
        let end = segment.end();
        let is_ahead = seen.end.is_none_or(|before| end.wrapping_sub(before).cast_signed() >= 0);
        if segment.is_first() || is_ahead {
            seen.end = Some(end);
        }
        self.done[kind].overtook += usize::from(!was_held && is_ahead && seen.held > 0 && segment.length > 0);
    }
}

impl Default for BadNetwork {
    fn default() -> Self {
        BadNetwork::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment::tests::{at, frame};
    use super::*;

    const NONE: Faults = Faults { delayed: 0, delay: Duration::ZERO, doubled: 0, late: Duration::ZERO, lost: 0, reset: 0 };
    const ACK: u8 = 16;
    const SYN: u8 = 2;

    fn network(faults: Faults) -> BadNetwork {
        let mut network = BadNetwork::new();
        network.begin(faults, 1, [at(2, 7117)].into());
        network
    }

    fn all(network: &mut BadNetwork, now: Instant) -> Vec<Due> {
        std::iter::from_fn(|| network.due(now)).map(|(_, due)| due).collect()
    }

    #[test]
    fn without_faults_all_frames_pass_in_order() {
        let (mut network, now) = (network(NONE), Instant::now());
        let frames: Vec<_> = (0..100).map(|seq| frame(at(1, 5), at(2, 6), seq, 1, ACK)).collect();
        frames.iter().for_each(|frame| network.take(now, 0, 1, frame));
        assert_eq!(all(&mut network, now), frames.into_iter().map(|frame| Due::Frame(1, frame)).collect::<Vec<_>>());
        assert_eq!(network.done()[0], Done { frames: 100, ..Done::default() });
    }

    #[test]
    fn what_is_delayed_is_overtaken() {
        let (delay, now) = (Duration::from_millis(10), Instant::now());
        let mut network = network(Faults { delayed: 4, delay, ..NONE });
        let frames: Vec<_> = (0..200).map(|seq| frame(at(1, 5), at(2, 6), seq, 1, ACK)).collect();
        frames.iter().for_each(|frame| network.take(now, 0, 1, frame));
        let mut came = all(&mut network, now);
        let at_once = came.len();
        assert!((100..200).contains(&at_once));
        came.append(&mut all(&mut network, now + delay));
        let Done { delayed, overtook, .. } = network.done()[0];
        assert!(delayed == 200 - at_once && overtook > 50, "{:?}", network.done());
        let mut bytes: Vec<_> =
            came.into_iter().map(|due| if let Due::Frame(1, frame) = due { frame } else { panic!("{due:?}") }).collect();
        assert_ne!(bytes, frames);
        bytes.sort();
        assert_eq!(bytes, frames);
    }

    #[test]
    fn a_connection_is_reset_at_what_its_end_expects() {
        let (mut network, now) = (network(Faults { reset: 1, ..NONE }), Instant::now());
        let sides: BTreeSet<_> = (0..20)
            .map(|number| {
                network.take(now, 0, 1, &frame(at(1, 5), at(2, 6), 1_000 * number, 10, ACK));
                let sides = all(&mut network, now)
                    .into_iter()
                    .filter_map(|due| if let Due::Reset(port, frame) = due { Some((port, frame)) } else { None });
                let sides: Vec<_> = sides.map(|(port, frame)| (port, Segment::read(&frame).unwrap())).collect();
                for (port, segment) in &sides {
                    // Where nothing has come from the other end it is taken at its word: it expects 77.
                    let due = if *port == 1 { (at(1, 5), 1_000 * number + 10) } else { (at(2, 6), 77) };
                    assert_eq!((segment.from, segment.seq), due);
                }
                sides.iter().map(|(port, _)| *port).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(sides, [vec![0], vec![1], vec![1, 0]].into());
    }

    #[test]
    fn daemons_are_spared() {
        let (mut network, now) = (network(Faults { reset: 1, lost: 1, ..NONE }), Instant::now());
        let daemon = |network: &mut BadNetwork, now, flags| {
            network.take(now, 0, 1, &frame(at(1, 5), at(2, 7117), 0, 1, flags));
            all(network, now).len()
        };
        // The first of a connection passes, another one is lost, and then none for a while: also not on its way back.
        assert_eq!([SYN, ACK, ACK].map(|flags| daemon(&mut network, now, flags)), [1, 0, 1]);
        network.take(now, 1, 0, &frame(at(2, 7117), at(1, 5), 0, 1, ACK));
        assert_eq!(all(&mut network, now).len(), 1);
        assert_eq!(daemon(&mut network, now + 2 * SPARED, ACK), 0);
        // Of what is no TCP nothing is lost: its sender would ask again only a second later.
        network.take(now, 0, 1, &[0xff; 60]);
        assert_eq!(all(&mut network, now).len(), 1);
        assert_eq!(network.done(), [Done::default(), Done { frames: 6, lost: 2, ..Done::default() }]);
        // Between processes everything is.
        network.take(now, 0, 1, &frame(at(1, 5), at(2, 6), 0, 1, SYN));
        assert!(all(&mut network, now).is_empty());
    }

    #[test]
    fn what_comes_twice_comes_at_once_or_later() {
        let (late, now) = (Duration::from_millis(100), Instant::now());
        let mut network = network(Faults { doubled: 1, late, ..NONE });
        for number in 0..50 {
            network.take(now, 0, 1, &frame(at(1, 5), at(2, 6), number, 1, ACK));
        }
        let at_once = all(&mut network, now).len();
        assert!((60..90).contains(&at_once), "{at_once}");
        assert_eq!(at_once + all(&mut network, now + late).len(), 100);
        assert!(network.next().is_none());
    }
}
