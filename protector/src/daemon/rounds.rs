//! How long the daemon's loop is away from its clock, and why.
//!
//! A round of the loop takes one input, and does what the node wants done about it. While it lasts no member is judged, no probe
//! is answered, and no deadline is kept. So a round is cut: it ends after a [`SLICE`], and goes on where it was after others had
//! their turn. If a single piece takes longer than half a heartbeat all the same, it is logged by name. It is also logged whether
//! the thread had a processor meanwhile: the daemon's own work can be cut, but nothing here helps against a machine that does not
//! run the daemon.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use radic_wire::peer::PeerMessage;

use crate::node::{Input, Output};

/// Time after which the loop lets others have their turn: connections, which answer probes, and its own deadlines.
pub const SLICE: Duration = Duration::from_millis(10);
/// Pieces shorter than this are not remembered.
const PIECE: Duration = Duration::from_millis(1);
/// Pieces that one line names.
const NAMED: usize = 3;

/// What a thread has done with its time, as the scheduler counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Times {
    ran: Duration,
    /// It could have run, and had no processor.
    waited: Duration,
}

impl Times {
    /// Of a line like `/proc/thread-self/schedstat`.
    fn parse(line: &str) -> Option<Times> {
        let mut nanoseconds = line.split_ascii_whitespace().map(|word| word.parse().map(Duration::from_nanos));
        Some(Times { ran: nanoseconds.next()?.ok()?, waited: nanoseconds.next()?.ok()? })
    }
}

/// The loop was away for long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Away {
    /// For how long.
    pub took: Duration,
    /// What took so long, the longest first.
    pieces: Vec<(&'static str, Duration)>,
    /// A time, and what the thread has done in it. None: the kernel does not tell.
    times: Option<(Duration, Times)>,
}

/// What kept the loop for most of the time that it was away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It computed.
    Work,
    /// It waited for a processor.
    Processor,
    /// It neither computed nor waited for a processor: a call did not return, or the whole machine stood still.
    Blocked,
}

impl Away {
    /// Why. Where the kernel counts no times, the daemon suspects its own work.
    pub fn cause(&self) -> Cause {
        match self.times {
            Some((_, times)) if times.waited >= self.took / 2 => Cause::Processor,
            Some((of, times)) if of.saturating_sub(times.ran + times.waited) >= self.took / 2 => Cause::Blocked,
            _ => Cause::Work,
        }
    }
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "away for {} ms", self.took.as_millis())?;
        for (at, (what, took)) in self.pieces.iter().take(NAMED).enumerate() {
            write!(f, "{} {what} {} ms", if at == 0 { ":" } else { "," }, took.as_millis())?;
        }
        let Some((of, Times { ran, waited })) = self.times else { return Ok(()) };
        let rest = of.saturating_sub(ran + waited).as_millis();
        let (of, ran, waited) = (of.as_millis(), ran.as_millis(), waited.as_millis());
        write!(f, "; of the last {of} ms it ran {ran}, waited {waited} for a processor, and {rest} for something else")
    }
}

/// The rounds of the loop.
pub struct Rounds {
    /// What takes longer is told.
    limit: Duration,
    scheduled: Option<File>,
    /// When the scheduler's times were looked at, and what they were.
    known: (Instant, Option<Times>),
    /// When this round has begun, or the last one has ended.
    since: Instant,
    pieces: Vec<(&'static str, Duration)>,
    yielded: Instant,
}

impl Rounds {
    /// Those of this thread. What takes longer than half of `heartbeat` is told.
    pub fn new(heartbeat: Duration) -> Rounds {
        let now = Instant::now();
        // A kernel may not count that.
        let scheduled = File::open("/proc/thread-self/schedstat").ok();
        Rounds { limit: heartbeat / 2, scheduled, known: (now, None), since: now, pieces: Vec::new(), yielded: now }
    }

    /// A round begins. The loop wanted to be called at `due`, or before if something happens.
    pub fn begin(&mut self, due: Option<Instant>) -> Option<Away> {
        let (now, ended) = (Instant::now(), self.since);
        self.since = now;
        let late = due.map_or(Duration::ZERO, |due| now.saturating_duration_since(due.max(ended)));
        self.pieces.clear();
        (late > self.limit).then(|| self.away(now, late, vec![("connections", late)]))
    }

    /// A piece of this round is done, which has begun then.
    pub fn note(&mut self, what: &'static str, begun: Instant) {
        let took = begun.elapsed();
        if took < PIECE {
            return;
        }
        match self.pieces.iter_mut().find(|(known, _)| *known == what) {
            Some((_, sum)) => *sum += took,
            None => self.pieces.push((what, took)),
        }
    }

    /// The round ends.
    pub fn end(&mut self) -> Option<Away> {
        let now = Instant::now();
        let took = now.saturating_duration_since(self.since);
        self.since = now;
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        let away = (took > self.limit).then(|| self.away(now, took, pieces));
        // Often enough for what is told to be of about now, and seldom enough to cost nothing.
        if now.saturating_duration_since(self.known.0) > self.limit / 4 {
            self.known = (now, self.times());
        }
        away
    }

    /// Whether others are to have their turn, which counts as given to them.
    pub fn is_to_yield(&mut self) -> bool {
        let now = Instant::now();
        let due = now.saturating_duration_since(self.yielded) >= SLICE;
        if due {
            self.yielded = now;
        }
        due
    }

    fn away(&mut self, now: Instant, took: Duration, pieces: Vec<(&'static str, Duration)>) -> Away {
        let ((at, before), times) = (std::mem::replace(&mut self.known, (now, None)), self.times());
        self.known.1 = times;
        let since = |times: Times, before: Times| Times {
            ran: times.ran.saturating_sub(before.ran),
            waited: times.waited.saturating_sub(before.waited),
        };
        let times = times.zip(before).map(|(times, before)| (now.saturating_duration_since(at), since(times, before)));
        Away { took, pieces, times }
    }

    fn times(&self) -> Option<Times> {
        let mut line = [0; 128];
        let count = self.scheduled.as_ref()?.read_at(&mut line, 0).ok()?;
        Times::parse(str::from_utf8(&line[..count]).ok()?)
    }
}

/// What an input is, for people.
pub fn of_input(input: &Input) -> &'static str {
    match input {
        Input::Message(_, PeerMessage::Membership(_)) => "a message about membership",
        Input::Message(_, PeerMessage::ToHome(..)) => "a message to a job's home",
        Input::Message(_, PeerMessage::ToHost(..)) => "a message to a job's host",
        Input::Message(..) => "a message",
        Input::Heartbeat(..) => "a heartbeat",
        Input::LinkBroken(_) | Input::LinkLost(_) => "a broken connection",
        Input::ProbeReached(_) | Input::ProbeResult(..) => "a probe",
        Input::Client(..) | Input::ClientGone(_) => "a command",
        Input::Spawned(..) => "a start",
        Input::Fetched(..) => "images",
        Input::ProcessOutput(..) => "output of a rank",
        Input::Exited(..) => "the end of a rank",
        Input::Pmi(..) => "PMI",
        Input::StdinTaken(..) => "standard input",
        Input::Observer(..) | Input::ObserverGone(_) => "an observer",
        Input::StoreAnswer(..)
        | Input::LineHeld(..)
        | Input::LineReady(..)
        | Input::StoreCauses(..)
        | Input::Fenced(..)
        | Input::StoreEvent(..)
        | Input::Unreadable(..) => "the log service",
        Input::Note(..) => "a note",
        Input::Leave => "leaving",
    }
}

/// What an output is, for people.
pub fn of_output(output: &Output) -> &'static str {
    match output {
        Output::Send(..) | Output::SendToSeed(..) => "sending",
        Output::Heartbeat(..) => "sending a heartbeat",
        Output::Probe(_) => "probing",
        Output::Reply(..) | Output::CloseClient(_) => "answering a command",
        Output::Process(..) => "handling a process",
        Output::Observer(..) | Output::Nudge(_) | Output::CloseObserver(_) => "answering an observer",
        Output::Store(_) => "ordering of the log service",
        Output::Members(_) => "counting the members",
        Output::Forget(_) => "forgetting a node",
        Output::Log(_) => "logging",
        Output::Ready(_) | Output::Stop(_) | Output::Die | Output::Fault(_) => "beginning or ending",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: Duration = Duration::from_millis(20);

    fn work(time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn the_scheduler_s_line_is_read() {
        let ns = Duration::from_nanos;
        assert_eq!(Times::parse("5000 70 3\n"), Some(Times { ran: ns(5000), waited: ns(70) }));
        for bad in ["", "5000", "5000 x 3", "-1 2 3"] {
            assert_eq!(Times::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn what_takes_long_is_named_with_the_longest_piece_first() {
        let mut rounds = Rounds::new(HEARTBEAT);
        rounds.begin(None);
        let begun = Instant::now();
        work(HEARTBEAT);
        rounds.note("walking", begun);
        // From before that: so it has taken longer, however busy the machine is.
        rounds.note("running", begun - HEARTBEAT);
        rounds.note("sleeping", Instant::now());
        let away = rounds.end().expect("it has taken longer than half a heartbeat");
        let text = away.to_string();
        assert!(away.took >= HEARTBEAT, "{text}");
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is not in: {text}"));
        assert!(at(": running") < at(", walking"), "{text}");
        rounds.limit = Duration::from_secs(60);
        rounds.begin(None);
        assert_eq!(rounds.end(), None, "a short round is not told");
    }

    /// A loop that is called late was kept by something else than its own rounds, and not longer than since the last one.
    #[test]
    fn lateness_counts_from_the_end_of_the_round_before() {
        let mut rounds = Rounds::new(HEARTBEAT);
        let due = Instant::now();
        rounds.begin(None);
        work(HEARTBEAT);
        assert!(rounds.end().is_some());
        let ended = rounds.since;
        work(HEARTBEAT);
        let away = rounds.begin(Some(due)).expect("it is late");
        assert_eq!(away.took, rounds.since - ended, "the rest was told");
        rounds.end();
        let later = Instant::now() + HEARTBEAT;
        assert_eq!(rounds.begin(Some(later)), None, "it is early");
    }

    #[test]
    fn only_computing_is_the_daemon_s_own_work() {
        let ms = Duration::from_millis;
        let away = |ran, waited| Away {
            took: ms(100),
            pieces: Vec::new(),
            times: Some((ms(110), Times { ran: ms(ran), waited: ms(waited) })),
        };
        assert_eq!(away(10, 60).cause(), Cause::Processor);
        assert_eq!(away(70, 30).cause(), Cause::Work);
        assert_eq!(away(10, 40).cause(), Cause::Blocked);
        assert_eq!(Away { times: None, ..away(0, 0) }.cause(), Cause::Work);
        let text = away(10, 40).to_string();
        assert_eq!(text, "away for 100 ms; of the last 110 ms it ran 10, waited 40 for a processor, and 60 for something else");
    }

    #[test]
    fn others_have_their_turn_after_a_slice() {
        let mut rounds = Rounds::new(HEARTBEAT);
        assert!(!rounds.is_to_yield());
        work(SLICE);
        assert!(rounds.is_to_yield() && !rounds.is_to_yield());
    }
}
