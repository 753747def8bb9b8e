//! Many ranks of a job on one node are started a few at once, and whatever is said about the job meanwhile holds for all of them.

use std::collections::BTreeSet;

use super::*;
use crate::node::launches::AT_ONCE;

/// More than are started at once.
const RANKS: u32 = 2 * AT_ONCE as u32 + 8;

/// A host whose ranks are started one by one.
struct Starting {
    host: Host,
    environment: HostEnvironment,
    /// Ranks whose start was ordered and not answered.
    ordered: BTreeSet<u32>,
    signals: Vec<(u32, i32)>,
    /// Ranks whose end the home was told of.
    ended: Vec<u32>,
    is_over: bool,
}

impl Starting {
    fn new() -> Self {
        let environment = HostEnvironment {
            address: [10, 0, 0, 1].into(),
            iface: "eth0".into(),
            prefix: "10.0.0.0/8".into(),
            radic_pmi: "/lib/libradic_pmi.so".into(),
            radic_pmix: "/lib/libradic_pmix.so".into(),
            library: "/lib/libradic.so".into(),
            process_socket: "/process.sock".into(),
            node: "n1".into(),
        };
        let placement = Placement { nodes: vec![id(1)], rank_nodes: vec![0; RANKS as usize] };
        let host = Host::launch(&id(1), &environment, (JobId::from_bits(7), Epoch::FIRST, 0), &spec(RANKS), placement);
        let (ordered, signals, ended) = Default::default();
        let mut starting = Starting { host, environment, ordered, signals, ended, is_over: false };
        starting.look();
        starting
    }

    fn look(&mut self) {
        while let Some(output) = self.host.poll_output() {
            match output {
                HostOutput::Spawn(rank, _) => assert!(self.ordered.insert(rank.0)),
                HostOutput::Signal(rank, signal) => self.signals.push((rank.0, signal)),
                HostOutput::ToHome(FromHost::Exited { rank, .. }) => self.ended.push(rank.0),
                HostOutput::Over => self.is_over = true,
                _ => {}
            }
        }
        assert!(self.ordered.len() <= AT_ONCE, "{:?} at once", self.ordered);
    }

    fn says(&mut self, message: ToHost) {
        self.host.handle_message(Duration::ZERO, message);
        self.look();
    }

    /// The first of those that were ordered is there.
    fn start_one(&mut self) -> Option<u32> {
        let rank = self.ordered.pop_first()?;
        self.host.handle_spawned(Duration::ZERO, &self.environment, Rank(rank), Ok(100 + rank));
        self.look();
        Some(rank)
    }
}

#[test]
fn they_are_started_a_few_at_once_and_in_order() {
    let mut starting = Starting::new();
    assert_eq!(starting.ordered.len(), AT_ONCE);
    // One that cannot be started makes room, too.
    starting.ordered.pop_first();
    let error = SpawnError { error: "no such file".into(), code: 127 };
    starting.host.handle_spawned(Duration::ZERO, &starting.environment, Rank(0), Err(error));
    starting.look();
    assert_eq!(starting.ordered.len(), AT_ONCE);
    let started: Vec<u32> = std::iter::from_fn(|| starting.start_one()).collect();
    assert_eq!(started, (1..RANKS).collect::<Vec<_>>());
    assert_eq!(starting.signals, []);
}

#[test]
fn signals_reach_those_that_are_not_there_yet_in_order_and_once() {
    let mut starting = Starting::new();
    assert_eq!(starting.start_one(), Some(0));
    for signal in [libc::SIGUSR1, libc::SIGTSTP, libc::SIGCONT, libc::SIGUSR1] {
        starting.says(ToHost::Signal(signal));
    }
    let last = RANKS - 1;
    starting.host.kill(Rank(last));
    while starting.start_one().is_some() {}
    let of = |rank| starting.signals.iter().filter(|(of, _)| *of == rank).map(|(_, signal)| *signal).collect::<Vec<_>>();
    assert_eq!(of(0), [libc::SIGUSR1, libc::SIGTSTP, libc::SIGCONT, libc::SIGUSR1], "it was there");
    assert_eq!(of(1), [libc::SIGTSTP, libc::SIGCONT, libc::SIGUSR1], "its start was under way");
    assert_eq!(of(last), [libc::SIGTSTP, libc::SIGCONT, libc::SIGUSR1, libc::SIGKILL], "its start was not ordered");
}

#[test]
fn a_job_that_ends_while_its_ranks_are_started_starts_no_more_of_them() {
    let mut starting = Starting::new();
    assert_eq!(starting.start_one(), Some(0));
    starting.says(ToHost::End { epoch: Epoch::FIRST, kill: false, restarts: false, written: false });
    let under_way: Vec<u32> = (1..=AT_ONCE as u32).collect();
    let begun: Vec<u32> = std::iter::from_fn(|| starting.start_one()).collect();
    assert_eq!(begun, under_way, "no other is ordered any more");
    assert_eq!(starting.ended, (AT_ONCE as u32 + 1..RANKS).collect::<Vec<_>>(), "they count as killed");
    let killed = |rank: &u32| starting.signals.contains(&(*rank, libc::SIGKILL));
    assert!(under_way.iter().all(killed) && !killed(&0), "{:?}", starting.signals);
    assert!(!starting.is_over);
    for rank in 0..=AT_ONCE as u32 {
        starting.host.handle_exited(Duration::ZERO, Rank(rank), ExitStatus::Signal(libc::SIGKILL));
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            starting.host.handle_output(Rank(rank), stream, ByteBuf::new());
        }
    }
    starting.look();
    assert!(starting.is_over);
}
