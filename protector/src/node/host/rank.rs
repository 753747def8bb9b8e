//! One rank at its host: the phase of its process, and what is known of it across processes.
//!
//! ```text
//! Starting ──▶ Running ──▶ Exited ──▶ (its home and its protector are told)
//!                 ▲           │
//!             Returning ◀── Lost        a crash of a protected rank: its protector is to bring it back
//! ```
//!
//! An order to bring a rank back makes a new [`LocalRank`] in the phase [`Phase::Returning`], whatever was here before.

use std::collections::VecDeque;
use std::time::Duration;

use radic_wire::job::{ExitStatus, OutputStream};
use radic_wire::peer::MpiPhase;

use super::last_word::LastWord;
use super::{Crash, HostOutput};
use crate::node::outlet::Outlet;
use crate::pmi::Session;

/// A rank may crash and be brought back this often within [`CRASH_TIME`]. One that goes on crashing has a bug, which comes back
/// with it.
const CRASHES: usize = 3;
const CRASH_TIME: Duration = Duration::from_secs(60);
/// A rank that dies before it is live again is brought back this often. After half of the attempts its log goes back to the image
/// before the newest ([`crate::store::RESTORES`]); after all of them no image is left to try.
pub(super) const RESTORES: u32 = 2 * crate::store::RESTORES;
pub(super) const STREAMS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];

/// What there is of a rank's process.
#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    /// The process is to be started here.
    Starting,
    /// The process is being brought back, and has not said yet where it stands. There is a process if there is a number.
    Returning { pid: Option<u32>, limit: Limit },
    /// The process runs.
    Running { pid: u32 },
    /// The process has crashed, and the rank's protector is to bring it back. There is no process.
    Lost(Crash),
    /// The process has ended.
    Exited(Exit),
}

/// How long a process that is being brought back may take until it says where it stands. It may be stopped, or wait in the kernel
/// for a file of its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// The process may take this long, from its start on.
    Takes(Duration),
    /// The process is killed then.
    Kill(Duration),
    /// The process was killed. If it has not ended then, it cannot be brought back here.
    GiveUp(Duration),
}

/// How a process has ended, and which nodes know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exit {
    /// The number that the process had, if it was started.
    pub(super) pid: Option<u32>,
    pub(super) status: ExitStatus,
    /// Since when the process's output is waited for.
    pub(super) at: Duration,
    /// Set if the rank is to be brought back once its output was read.
    pub(super) crashed: Option<Crash>,
    pub(super) reported: Reported,
}

/// Which nodes know how a rank has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reported {
    /// No node: the rank's output is still being read.
    No,
    /// The home knows in another way: the rank was not started, or cannot be brought back.
    Otherwise,
    /// The home was told that the rank has ended by itself.
    Home(ExitStatus, MpiPhase),
    /// The rank's protector was told, too: nothing that the rank has printed is only here.
    Protector(ExitStatus, MpiPhase),
}

/// What a rank needs of the log that it was brought back with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OldLog {
    /// The rank has not caught up. `read`: it needs nothing more of the log all the same, because it has executed another
    /// program.
    CatchingUp { read: bool },
    /// The rank is live, but only that log has what its program has not taken yet.
    Needed,
    /// The rank is live and needs nothing of an old log, or was never brought back.
    Done,
}

/// What this node has decided about a rank, if anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    None,
    /// `radic inject kill-rank`: the rank is killed and brought back, however often. That is no crash of the program.
    KilledAsAsked,
    /// The rank's library has broken the protocol: the rank is killed and stays dead.
    Broken,
    /// The rank cannot be brought back. If there was a process all the same, it was killed, and stays dead.
    Hopeless {
        killed: bool,
    },
}

#[derive(Debug)]
pub(super) struct LocalRank {
    pub(super) phase: Phase,
    pub(super) verdict: Verdict,
    pub(super) old_log: OldLog,
    pub(super) session: Session,
    pub(super) outlets: [Outlet; 2],
    /// Number of fences that the rank was let out of.
    pub(super) fences: u64,
    /// The rank's recent crashes: when, and by which signal.
    crashes: Vec<(Duration, i32)>,
    /// How often in a row the rank has died between its restore and the event `live`.
    failed_restores: u32,
    /// The rank has diverged from its log already since it was last live.
    diverged: bool,
    /// Signals that came before the process did: each once, in the order in which they last came.
    missed: Vec<i32>,
    pub(super) last_word: LastWord,
}

impl LocalRank {
    /// A rank that is to be started.
    pub(super) fn starting(session: Session) -> Self {
        let (phase, verdict, old_log) = (Phase::Starting, Verdict::None, OldLog::Done);
        let (outlets, crashes, missed) = Default::default();
        let (fences, failed_restores, diverged) = Default::default();
        let last_word = LastWord::Unsaid;
        LocalRank { phase, verdict, old_log, session, outlets, fences, crashes, failed_restores, diverged, missed, last_word }
    }

    /// A rank that is to be brought back, of which `before` was here. It counts as let out of `fences`, until it says where it
    /// stands, which takes `takes` at most.
    pub(super) fn returning(session: Session, fences: u64, takes: Duration, before: Option<LocalRank>) -> Self {
        let phase = Phase::Returning { pid: None, limit: Limit::Takes(takes) };
        let old_log = OldLog::CatchingUp { read: false };
        let mut rank = LocalRank { phase, old_log, fences, ..LocalRank::starting(session) };
        if let Some(before) = before {
            (rank.outlets, rank.crashes) = (before.outlets, before.crashes);
            (rank.failed_restores, rank.diverged) = (before.failed_restores, before.diverged);
        }
        rank
    }

    pub(super) fn outlet(&mut self, stream: OutputStream) -> &mut Outlet {
        &mut self.outlets[stream as usize]
    }

    pub(super) fn mpi_phase(&self) -> MpiPhase {
        match (self.session.is_initialized(), self.session.is_finalized()) {
            (_, true) => MpiPhase::After,
            (true, false) => MpiPhase::Within,
            (false, false) => MpiPhase::Before,
        }
    }

    /// How the rank's process has ended, if it has.
    pub(super) fn exit(&self) -> Option<Exit> {
        if let Phase::Exited(exit) = self.phase { Some(exit) } else { None }
    }

    pub(super) fn has_exited(&self) -> bool {
        self.exit().is_some()
    }

    /// Whether the rank has ended, and is not to be brought back.
    pub(super) fn has_ended(&self) -> bool {
        self.exit().is_some_and(|exit| exit.crashed.is_none())
    }

    /// The number of the rank's process, while there is one.
    pub(super) fn pid(&self) -> Option<u32> {
        match self.phase {
            Phase::Returning { pid, .. } => pid,
            Phase::Running { pid } => Some(pid),
            Phase::Starting | Phase::Lost { .. } | Phase::Exited(_) => None,
        }
    }

    /// The number that the rank's process has, or had.
    pub(super) fn last_pid(&self) -> Option<u32> {
        self.pid().or(self.exit().and_then(|exit| exit.pid))
    }

    pub(super) fn is_returning(&self) -> bool {
        matches!(self.phase, Phase::Returning { .. })
    }

    /// Whether the rank is on its way back, and its process was not started.
    pub(super) fn awaits_process(&self) -> bool {
        matches!(self.phase, Phase::Returning { pid: None, .. })
    }

    /// Whether the rank is to be brought back: there is no process, or what that has written is still being read.
    pub(super) fn is_to_be_brought_back(&self) -> bool {
        matches!(self.phase, Phase::Lost(_)) || self.exit().is_some_and(|exit| exit.crashed.is_some())
    }

    /// Whether it was here, is not now, and will be here again, in a job that was let out of `fence` fences. A rank behind the last
    /// fence repeats what it did before it: its peers have the keys that it had published, and may dial it before it listens again.
    pub(super) fn is_away(&self, fence: u64) -> bool {
        let repeats = !self.has_exited() && (self.is_catching_up() || self.fences < fence);
        !self.is_hopeless() && (repeats || self.is_to_be_brought_back())
    }

    pub(super) fn is_hopeless(&self) -> bool {
        matches!(self.verdict, Verdict::Hopeless { .. })
    }

    pub(super) fn is_catching_up(&self) -> bool {
        matches!(self.old_log, OldLog::CatchingUp { .. })
    }

    /// Whether the node has killed the rank, and it is not to come back.
    pub(super) fn is_killed_for_good(&self) -> bool {
        matches!(self.verdict, Verdict::Broken | Verdict::Hopeless { killed: true })
    }

    /// Whether the home was told all that it waits for.
    pub(super) fn is_reported(&self) -> bool {
        self.exit().is_some_and(|exit| exit.reported != Reported::No)
    }

    /// How the rank has ended by itself, if its home was told.
    pub(super) fn end(&self) -> Option<(ExitStatus, MpiPhase)> {
        match self.exit()?.reported {
            Reported::Home(status, phase) | Reported::Protector(status, phase) => Some((status, phase)),
            Reported::No | Reported::Otherwise => None,
        }
    }

    /// Whether the rank cannot go on without the log that it is, or was, brought back with.
    pub(super) fn needs_log(&self) -> bool {
        let reads = matches!(self.old_log, OldLog::CatchingUp { read: false } | OldLog::Needed);
        self.is_to_be_brought_back() || reads && !self.has_exited()
    }

    /// Whether the rank's process waits at its end, and the home was told.
    pub(super) fn is_at_end(&self) -> bool {
        matches!(self.last_word, LastWord::Told(_)) && self.pid().is_some()
    }

    /// The exit code to report to the home: set once the rank is at its end and all output is printed or kept elsewhere.
    pub(super) fn take_end_to_tell(&mut self) -> Option<i32> {
        let LastWord::Said(end) = self.last_word else { return None };
        let is_printed = self.outlets.iter().zip(end.output).all(|(outlet, at)| outlet.is_printed_to(at));
        if !matches!(self.phase, Phase::Running { .. }) || !is_printed {
            return None;
        }
        self.last_word = LastWord::Told(end);
        Some(end.code)
    }

    /// The streams of which the home is to be told that they end, and where: the rank has come to its end, and waits for what it has printed.
    pub(super) fn take_stream_ends(&mut self) -> Vec<(OutputStream, u64)> {
        let end = self.last_word.end().filter(|_| matches!(self.phase, Phase::Running { .. }));
        let Some(end) = end else { return Vec::new() };
        let outlets = self.outlets.iter_mut().zip(STREAMS).zip(end.output);
        outlets.filter_map(|((outlet, stream), at)| Some((stream, outlet.take_end_to_tell(at)?))).collect()
    }

    /// There is another home.
    pub(super) fn forget_end_told(&mut self) {
        self.last_word = self.last_word.untell();
        self.outlets.iter_mut().for_each(Outlet::forget_end_told);
    }

    /// The rank is not brought back, because all ranks had come to their ends.
    pub(super) fn exit_at_end(&mut self, status: ExitStatus, now: Duration) {
        self.exit_with(status, now);
        if let Phase::Exited(exit) = &mut self.phase {
            exit.crashed = None;
        }
    }

    /// The rank's process was started.
    pub(super) fn handle_pid(&mut self, number: u32, now: Duration) {
        match &mut self.phase {
            Phase::Returning { pid, limit } => {
                *pid = Some(number);
                if let Limit::Takes(takes) = *limit {
                    *limit = Limit::Kill(now + takes);
                }
            }
            Phase::Exited(Exit { pid, .. }) => *pid = Some(number),
            phase => *phase = Phase::Running { pid: number },
        }
    }

    /// The process that was brought back has said where it stands.
    pub(super) fn handle_returned(&mut self) {
        if let Phase::Returning { pid: Some(pid), .. } = self.phase {
            self.phase = Phase::Running { pid };
        }
    }

    /// When the rank's return has taken too long.
    pub(super) fn limit_at(&self) -> Option<Duration> {
        match self.phase {
            Phase::Returning { limit: Limit::Kill(at) | Limit::GiveUp(at), .. } => Some(at),
            _ => None,
        }
    }

    /// Takes the limit that the rank's return has come to, if it has come to one. If the process is to be killed, `killed` is how
    /// long it may take to end.
    pub(super) fn take_limit(&mut self, now: Duration, killed: Duration) -> Option<Limit> {
        self.limit_at().filter(|at| *at <= now)?;
        let Phase::Returning { limit, .. } = &mut self.phase else { return None };
        Some(std::mem::replace(limit, Limit::GiveUp(now + killed)))
    }

    /// The rank has caught up.
    pub(super) fn handle_live(&mut self) {
        (self.failed_restores, self.diverged) = (0, false);
        self.old_log = match self.old_log {
            OldLog::CatchingUp { read: false } | OldLog::Needed => OldLog::Needed,
            OldLog::CatchingUp { read: true } | OldLog::Done => OldLog::Done,
        };
    }

    /// The rank needs nothing more of its old log.
    pub(super) fn handle_log_read(&mut self) {
        self.old_log = match self.old_log {
            OldLog::CatchingUp { .. } => OldLog::CatchingUp { read: true },
            OldLog::Needed | OldLog::Done => OldLog::Done,
        };
    }

    /// The rank cannot be brought back. Returns whether there is a process all the same, which is to be killed: the next attempt
    /// would start from the same.
    pub(super) fn handle_not_restored(&mut self, now: Duration) -> bool {
        self.outlets.iter_mut().for_each(Outlet::close);
        let killed = self.pid().is_some();
        self.verdict = Verdict::Hopeless { killed: killed || self.is_killed_for_good() };
        if let Phase::Returning { pid: Some(pid), .. } = self.phase {
            self.phase = Phase::Running { pid };
        } else if !killed {
            self.exit_with(ExitStatus::Signal(libc::SIGKILL), now);
        }
        killed
    }

    /// The rank's process has ended; what is known of an end before that stays.
    pub(super) fn exit_with(&mut self, status: ExitStatus, at: Duration) {
        let pid = self.last_pid();
        let (crashed, reported) = self.exit().map_or((None, Reported::No), |exit| (exit.crashed, exit.reported));
        self.phase = Phase::Exited(Exit { pid, status, at, crashed, reported });
    }

    /// Records which nodes know how the rank ended.
    pub(super) fn handle_reported(&mut self, now_reported: Reported) {
        if let Phase::Exited(exit) = &mut self.phase {
            exit.reported = now_reported;
        }
    }

    /// The rank's library has broken the protocol, and the rank is killed for that.
    pub(super) fn handle_broken(&mut self) {
        self.verdict = if self.is_hopeless() { Verdict::Hopeless { killed: true } } else { Verdict::Broken };
    }

    /// The rank's process was ended by this signal: decides what becomes of the rank. Returns false if it was brought back often
    /// enough.
    pub(super) fn handle_ended_by(&mut self, now: Duration, signal: i32) -> bool {
        let (crashed, goes_on) = match self.verdict {
            Verdict::KilledAsAsked => (Some(Crash { signal, live: !self.is_catching_up() }), true),
            _ if !self.is_catching_up() => (self.handle_crashed(now, signal), true),
            _ => {
                let crashed = self.handle_restore_failed(signal);
                (crashed, crashed.is_some())
            }
        };
        if let Phase::Exited(exit) = &mut self.phase {
            exit.crashed = crashed;
        }
        if !goes_on {
            self.verdict = Verdict::Hopeless { killed: false };
        }
        goes_on
    }

    /// The rank crashed while it was live. It is brought back, unless it has crashed too often lately.
    fn handle_crashed(&mut self, now: Duration, signal: i32) -> Option<Crash> {
        self.crashes.retain(|(at, _)| *at + CRASH_TIME > now);
        let crashed = (self.crashes.len() < CRASHES).then_some(Crash { signal, live: true });
        self.crashes.push((now, signal));
        crashed
    }

    /// The rank died between its restore and the event `live`. That is a failure of the restore, not of the program, so it is
    /// brought back a few more times.
    fn handle_restore_failed(&mut self, signal: i32) -> Option<Crash> {
        self.failed_restores += 1;
        (self.failed_restores < RESTORES).then_some(Crash { signal, live: false })
    }

    /// The rank diverges from its log, or makes no progress in it. Returns whether to try again: once, because threads may
    /// interleave differently.
    pub(super) fn handle_diverged(&mut self) -> bool {
        !std::mem::replace(&mut self.diverged, true)
    }

    /// The signal of its last crash while it was live, if it is this one.
    pub(super) fn last_crash(&self, signal: i32) -> Option<i32> {
        self.crashes.last().map(|(_, own)| *own).filter(|own| *own == signal)
    }

    /// Remembers a signal that comes before its process does.
    pub(super) fn miss(&mut self, signal: i32) {
        self.missed.retain(|missed| *missed != signal);
        self.missed.push(signal);
    }

    /// The signals that came before its process.
    pub(super) fn take_missed(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.missed)
    }

    /// Orders reads of the streams that may be read.
    pub(super) fn read(&mut self, rank: radic_wire::ids::Rank, outputs: &mut VecDeque<HostOutput>) {
        for (outlet, stream) in self.outlets.iter_mut().zip(STREAMS) {
            if outlet.ask() {
                outputs.push_back(HostOutput::Read(rank, stream));
            }
        }
    }

    /// Panics if the parts of its state contradict each other.
    pub(super) fn check_invariants(&self) {
        let is_open = self.outlets.iter().any(Outlet::is_open);
        match self.phase {
            Phase::Starting => assert!(!is_open, "it has output and was not started"),
            Phase::Returning { .. } | Phase::Running { .. } => {
                assert!(self.verdict != Verdict::Hopeless { killed: false }, "it cannot be brought back, and runs");
            }
            Phase::Lost { .. } => assert!(!is_open, "it is lost, and its output is still being read"),
            Phase::Exited(exit) => assert!(
                matches!(exit.reported, Reported::No | Reported::Otherwise) || !self.is_hopeless(),
                "it has ended by itself, and cannot be brought back"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::ids::Rank;

    use super::*;

    fn session() -> Session {
        Session::new(Rank(0), 1, "space".to_owned())
    }

    /// A rank that was brought back, said where it stands, and runs as process 7.
    fn back(before: Option<LocalRank>) -> LocalRank {
        let mut rank = LocalRank::returning(session(), 0, Duration::ZERO, before);
        rank.handle_pid(7, Duration::ZERO);
        assert!(rank.is_returning() && rank.pid() == Some(7));
        rank.handle_returned();
        assert!(matches!(rank.phase, Phase::Running { pid: 7 }));
        rank
    }

    fn ends_by(rank: &mut LocalRank, second: u64, signal: i32) -> bool {
        let now = Duration::from_secs(second);
        rank.exit_with(ExitStatus::Signal(signal), now);
        let goes_on = rank.handle_ended_by(now, signal);
        rank.check_invariants();
        goes_on
    }

    #[test]
    fn a_rank_needs_its_old_log_until_it_has_read_it_and_is_live() {
        let mut rank = back(None);
        assert!(rank.needs_log() && rank.is_catching_up());
        rank.handle_live();
        assert!(rank.needs_log() && !rank.is_catching_up());
        rank.handle_log_read();
        assert!(!rank.needs_log());
        let mut other_program = back(None);
        other_program.handle_log_read();
        assert!(!other_program.needs_log() && other_program.is_catching_up());
        other_program.handle_live();
        assert_eq!(other_program.old_log, OldLog::Done);
    }

    /// It was brought back to print what its last incarnation had not.
    #[test]
    fn a_rank_that_ends_by_itself_while_it_catches_up_is_not_awaited() {
        let mut rank = back(None);
        assert!(rank.is_away(0));
        rank.exit_with(ExitStatus::Code(0), Duration::ZERO);
        rank.check_invariants();
        assert!(rank.is_catching_up() && !rank.is_away(0) && !rank.is_away(1));
        let mut crashed = back(None);
        assert!(ends_by(&mut crashed, 1, libc::SIGSEGV) && crashed.is_away(0));
        crashed.handle_live();
        assert!(!back(None).is_hopeless() && crashed.is_away(0), "it is to be brought back");
    }

    #[test]
    fn a_rank_that_dies_before_it_is_live_is_given_up_in_the_end() {
        let mut rank = back(None);
        for attempt in 1..RESTORES {
            assert!(ends_by(&mut rank, 1, libc::SIGSEGV), "attempt {attempt}");
            assert!(rank.is_to_be_brought_back());
            rank = back(Some(rank));
        }
        assert!(!ends_by(&mut rank, 1, libc::SIGSEGV));
        assert!(rank.is_hopeless() && !rank.is_to_be_brought_back() && rank.pid().is_none() && rank.last_pid() == Some(7));
    }

    #[test]
    fn a_rank_that_goes_another_way_has_one_more_try() {
        let mut rank = back(None);
        for _ in 0..3 {
            assert!(rank.handle_diverged() && ends_by(&mut rank, 1, libc::SIGKILL));
            rank = back(Some(rank));
            assert!(!rank.handle_diverged());
            rank.handle_live();
        }
    }

    #[test]
    fn a_rank_that_crashes_too_often_is_left_alone_but_not_one_that_is_killed_as_asked() {
        let mut rank = back(None);
        for second in 1..=2 * CRASHES as u64 {
            rank.handle_live();
            rank.verdict = Verdict::KilledAsAsked;
            assert!(ends_by(&mut rank, second, libc::SIGKILL) && rank.is_to_be_brought_back());
            rank = back(Some(rank));
        }
        for second in 1..=CRASHES as u64 {
            rank.handle_live();
            assert!(ends_by(&mut rank, second, libc::SIGABRT) && rank.is_to_be_brought_back());
            rank = back(Some(rank));
        }
        rank.handle_live();
        assert!(ends_by(&mut rank, 5, libc::SIGABRT) && !rank.is_to_be_brought_back(), "its end is that of the program");
        assert_eq!((rank.last_crash(libc::SIGABRT), rank.last_crash(libc::SIGSEGV)), (Some(libc::SIGABRT), None));
    }

    #[test]
    fn a_process_that_is_there_all_the_same_is_killed_and_stays_dead() {
        let mut rank = back(None);
        assert!(rank.handle_not_restored(Duration::ZERO), "there is one");
        rank.check_invariants();
        assert!(rank.is_killed_for_good() && rank.pid() == Some(7));
        let mut none = LocalRank::returning(session(), 0, Duration::ZERO, None);
        assert!(!none.handle_not_restored(Duration::ZERO), "there is none");
        none.check_invariants();
        assert!(none.has_exited() && none.is_hopeless() && !none.is_killed_for_good());
    }

    #[test]
    #[should_panic(expected = "it cannot be brought back, and runs")]
    fn a_contradiction_is_noticed() {
        let mut rank = back(None);
        rank.verdict = Verdict::Hopeless { killed: false };
        rank.check_invariants();
    }
}
