//! What is going to happen, in its order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use radic_protector::node::Input;
use radic_wire::local::Reply;
use radic_wire::process::FromNode;

use super::daemon::Timer;
use super::logs::Done;
use super::net::ConnId;
use super::plan::Fault;

/// Something that is going to happen.
pub enum Event {
    /// A packet arrives at this side.
    Arrive(ConnId, usize),
    /// The daemon of this side has come to what has arrived there: it was busy.
    Served(ConnId, usize),
    /// The kernel of this side gives a link up whose other machine is silent.
    Silent(ConnId, usize),
    /// For the node of a machine.
    Input(usize, u32, Box<Input>),
    /// The same, of this process: nothing, if another has its place.
    OfProcess(usize, u32, u32, Box<Input>),
    /// The node wanted to be called.
    Tick(usize, u32),
    /// A timer of the daemon.
    Daemon(usize, u32, Timer),
    /// Of the log service.
    Logs(usize, u32, Done),
    /// The node tells a process; none: it closes the connection.
    ToProcess(u32, Option<Box<FromNode>>),
    /// A process begins.
    Begin(u32),
    /// A process goes on.
    Step(u32),
    /// A process that was let go is killed.
    Late(u32),
    /// The pipes of a process that has ended are closed.
    OutputEnds(u32),
    /// The terminal hears something.
    Reply(usize, u64, Box<Reply>),
    /// The terminal connects again, for its machine's protector is gone.
    Attach,
    /// Something is due for the command with this number.
    Command(u64, Due),
    /// Something goes wrong.
    Fault(Fault),
}

/// What is due for a command that suspends the job, or resumes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// It begins.
    Begin,
    /// It wants to be called.
    Timer,
    /// Its user waits no longer.
    Late,
    /// It hangs no longer.
    WakeUp,
}

/// When an event comes, in nanoseconds, its number, and where it is in [`Queue::events`], in one number, from the top: one comparison orders them.
type Key = u128;

const NUMBER: u32 = 40;
const PLACE: u32 = 24;

/// Events by time; those of one time in the order in which they were pushed.
#[derive(Default)]
pub struct Queue {
    /// This little is moved about, not the events.
    order: BinaryHeap<Reverse<Key>>,
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    number: u64,
}

impl Queue {
    /// One more.
    pub fn push(&mut self, at: Duration, event: Event) {
        self.number += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        assert!(self.number < 1 << NUMBER && place < 1 << PLACE, "so many events fit into a key");
        let (at, number) = (u64::try_from(at.as_nanos()).expect("some years"), self.number);
        self.order.push(Reverse(Key::from(at) << (NUMBER + PLACE) | Key::from(number << PLACE | place as u64)));
    }

    /// When the next thing happens.
    pub fn next_at(&self) -> Option<Duration> {
        self.order.peek().map(|Reverse(key)| time_of(*key))
    }

    /// What happens next, and when.
    pub fn pop(&mut self) -> Option<(Duration, Event)> {
        let Reverse(key) = self.order.pop()?;
        let place = place_of(key);
        self.free.push(place);
        Some((time_of(key), self.events[place].take().expect("what is in order is there")))
    }

    /// What is to come is kept only if it is wanted.
    pub fn retain(&mut self, wanted: impl Fn(&Event) -> bool) {
        let Queue { order, events, free, .. } = self;
        order.retain(|Reverse(key)| {
            let place = place_of(*key);
            let keep = events[place].as_ref().is_some_and(&wanted);
            if !keep {
                events[place] = None;
                free.push(place);
            }
            keep
        });
    }
}

fn time_of(key: Key) -> Duration {
    Duration::from_nanos((key >> (NUMBER + PLACE)) as u64)
}

fn place_of(key: Key) -> usize {
    key as usize & ((1 << PLACE) - 1)
}
