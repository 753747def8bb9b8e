//! Chaos: random programs, libraries, nodes, flags and faults, one run after the other. Each must end as if nothing had happened; none may hang.
//!
//! `make chaos MINUTES=10`, for a night `make chaos MINUTES=480`. Each run has a seed of its own, which is printed before it: `make chaos SEED=N` begins with that one.
//! Without minutes one seed is run, always the same. A fault comes when every rank is protected again after the one before: what a cluster survives of faults at the same
//! time is the matter of the simulation and of `recover_many`.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind, Setup};
use radic_tests::library::Library;
use radic_tests::process::Process;
use radic_tests::random::Random;
use radic_tests::recovery::{HOSTS, PLAIN, PROGRAMS, SOON, any_library, command_of, expect_same, result, start};
use radic_tests::{Running, recovery};
use radic_wire::event::EventName;
use radic_wire::ids::JobId;
use radic_wire::local::{ClusterStatus, NodeState};
use radic_wire::report::ProcessInfo;

/// Runs of one program, so that deaths in a row find it still running.
const LONG: (&str, &[&str]) = ("rounds", &["--rounds", "2000", "--mib", "2", "--pause", "1"]);
/// Seconds for which a node hangs, or is cut off: it is given up, and fenced when it is back.
const AWAY: &str = "3";
/// Time that such a node has to find out, after the job's end.
const FENCED: Duration = Duration::from_secs(14);

/// What is done to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// Everything on a node ends.
    Kill,
    /// Its protector ends, and with it the node.
    KillProtector,
    /// One rank ends by a signal.
    Crash,
    /// Everything on a node is stopped.
    Pause,
    /// A node's cable is pulled.
    Cut,
}

impl Fault {
    fn any(kind: Kind, random: &mut Random) -> Fault {
        let all = [Fault::Kill, Fault::Kill, Fault::KillProtector, Fault::Crash, Fault::Pause, Fault::Cut];
        let possible = if kind == Kind::Namespaces { all.len() } else { all.len() - 1 };
        all[random.below(possible)]
    }
}

/// What is drawn for one run.
struct Plan {
    library: &'static Library,
    program: (&'static str, &'static [&'static str]),
    setup: Setup,
    flags: String,
    faults: usize,
}

impl Plan {
    fn draw(random: &mut Random) -> Plan {
        let library = any_library(random);
        let kinds = Kind::all();
        let mut setup = Setup::new(kinds[random.below(kinds.len())], HOSTS.len() + 1).spares(random.below(3));
        if random.below(3) == 0 {
            setup = setup.witness();
        }
        let (interval, nodes) = ([0.1, 0.3, 1.0][random.below(3)], HOSTS.join(","));
        let replicas = 1 + usize::from(random.below(4) == 0);
        let log = ["waiting", "causal"][random.below(2)];
        let flags = format!("--nodes {nodes} --protect on --ckpt-interval {interval} --replicas {replicas} --log {log}");
        let faults = 1 + random.below(3);
        let program = if faults > 1 { LONG } else { PROGRAMS[random.below(PROGRAMS.len())] };
        Plan { library, program, setup, flags, faults }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, Setup { kind, spares, witness, .. }) = (self.program.0, &self.setup);
        let witness = if *witness { ", a witness" } else { "" };
        write!(f, "{} {name} on {kind:?}, {spares} spares{witness}, {}", self.library.name, self.flags)
    }
}

/// A run under way.
struct Run {
    cluster: Cluster,
    job: Running,
    id: JobId,
    /// Protectors of nodes that must end by themselves.
    zombies: Vec<(String, Process)>,
}

impl Run {
    fn start(plan: &Plan) -> Run {
        let cluster = plan.setup.clone().start();
        let mut events = cluster.events_at("n1");
        let job = start(plan.library, &cluster, &plan.flags, &command_of(plan.library, plan.program));
        let event = events.expect("the job to start", SOON, |e| e.event == EventName::JobStart);
        Run { cluster, job, id: event.job.expect("it is of a job"), zombies: Vec::new() }
    }

    fn has_ended(&self) -> bool {
        self.job.ends_within(Duration::ZERO)
    }

    /// The processes of the job that run, but for those on the terminal's node.
    fn targets(&self, status: &ClusterStatus) -> Vec<ProcessInfo> {
        let mine = |process: &&ProcessInfo| process.job == self.id && process.running && process.node.as_str() != "n1";
        status.processes.iter().filter(mine).cloned().collect()
    }

    /// Does it, and waits until every rank is protected again. What was done; none: the job had ended before.
    fn strike(&mut self, fault: Fault, random: &mut Random) -> Option<String> {
        let before = self.targets(&self.cluster.status_at("n1"));
        if before.is_empty() || self.has_ended() {
            return None;
        }
        let target = &before[random.below(before.len())];
        let node = target.node.as_str();
        let is_hit = |process: &&ProcessInfo| match fault {
            Fault::Crash => process.rank == target.rank,
            _ => process.node == target.node,
        };
        let hit: Vec<ProcessInfo> = before.iter().filter(is_hit).cloned().collect();
        let what = match fault {
            Fault::Crash => format!("rank {} crashes", target.rank),
            Fault::Kill => format!("{node} dies"),
            Fault::KillProtector => format!("the protector of {node} dies"),
            Fault::Pause => format!("{node} hangs"),
            Fault::Cut => format!("{node} is cut off"),
        };
        let (rank, job) = (target.rank.to_string(), self.id.to_string());
        match fault {
            // It may have ended just now.
            Fault::Crash => _ = self.cluster.radic(["inject", "kill-rank", &job, &rank]).run(),
            Fault::Kill => self.cluster.kill_all_of(node),
            Fault::KillProtector => self.cluster.kill(node),
            Fault::Pause | Fault::Cut => {
                self.zombies.push((node.to_owned(), self.cluster.protector(node)));
                let fault = if fault == Fault::Cut { "cut-node" } else { "pause-node" };
                self.cluster.radic(["inject", fault, node, AWAY]).run().expect(0);
            }
        }
        self.await_protection(&hit);
        Some(what)
    }

    /// Waits until the ranks that were hit run elsewhere, or as new processes, and every rank has a checkpoint where it is protected; or the job has ended.
    fn await_protection(&self, hit: &[ProcessInfo]) {
        let deadline = Instant::now() + SOON;
        while !self.has_ended() && Instant::now() < deadline {
            let status = self.cluster.status_at("n1");
            let now = self.targets(&status);
            let is_restart =
                |then: &ProcessInfo| now.iter().all(|p| p.rank != then.rank || (&p.node, p.pid) != (&then.node, then.pid));
            let job = status.jobs.iter().find(|job| job.job == self.id);
            // A rank that crashes twice before its first checkpoint ends its job, as documented.
            let has_image = |process: &ProcessInfo| process.counters.as_ref().is_some_and(|counters| counters.committed > 0);
            if hit.iter().all(is_restart)
                && now.iter().all(has_image)
                && job.is_none_or(|job| job.degraded.is_empty() && job.running == job.ranks)
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The end of the job, and that of every node that the others have given up.
    fn end(self, due: &[String], what: &str) -> Duration {
        let finished = expect_same(&self.cluster, self.job, due, what);
        let status = self.cluster.status_at("n1");
        let given_up =
            |node: &str| status.nodes.iter().all(|known| known.name.as_str() != node || known.state != NodeState::Alive);
        for (node, protector) in &self.zombies {
            assert!(!given_up(node) || protector.wait(FENCED), "{what}: {node} was given up, and its protector does not end");
        }
        self.cluster.assert_idle();
        self.cluster.stop();
        finished.elapsed
    }
}

/// How the undisturbed run of each program ends.
#[derive(Default)]
struct Expected(BTreeMap<(&'static str, &'static str), Vec<String>>);

impl Expected {
    fn of(&mut self, plan: &Plan) -> Vec<String> {
        let run = || {
            let cluster = recovery::cluster(Kind::Logical, 0);
            let command = command_of(plan.library, plan.program);
            let finished = start(plan.library, &cluster, PLAIN, &command).wait().expect(0);
            cluster.stop();
            result(&finished)
        };
        self.0.entry((plan.library.name, plan.program.0)).or_insert_with(run).clone()
    }
}

/// What was done, and how often.
#[derive(Default)]
struct Report {
    runs: usize,
    by_library: BTreeMap<&'static str, usize>,
    by_fault: BTreeMap<Fault, usize>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chaos: {} of {} runs right", self.runs, self.runs)?;
        self.by_library.iter().try_for_each(|(library, runs)| write!(f, "; {library} {runs}"))?;
        self.by_fault.iter().try_for_each(|(fault, times)| write!(f, "; {fault:?} {times}"))
    }
}

fn run(seed: u64, expected: &mut Expected, report: &mut Report) {
    let mut random = Random::new(seed);
    let plan = Plan::draw(&mut random);
    println!("seed {seed}: {plan}");
    let due = expected.of(&plan);
    let mut run = Run::start(&plan);
    let mut what = format!("seed {seed}: {plan}");
    for _ in 0..plan.faults {
        let (fault, after) = (Fault::any(plan.setup.kind, &mut random), Duration::from_millis(random.below(1500) as u64));
        if run.job.ends_within(after) {
            break;
        }
        let Some(done) = run.strike(fault, &mut random) else { break };
        println!("    {done} after {after:.2?}");
        what += &format!("; {done} after {after:.2?}");
        *report.by_fault.entry(fault).or_default() += 1;
    }
    let elapsed = run.end(&due, &what);
    println!("    right, {:.2} s", elapsed.as_secs_f64());
    report.runs += 1;
    *report.by_library.entry(plan.library.name).or_default() += 1;
}

#[test]
fn every_run_ends_as_if_nothing_had_happened() {
    /// Without minutes: one run, and a short one.
    const SHORT: u64 = 2;
    let minutes = std::env::var("RADIC_CHAOS_MINUTES").ok().map(|text| text.parse().expect("RADIC_CHAOS_MINUTES is a number"));
    let deadline = minutes.map(|minutes: f64| Instant::now() + Duration::from_secs_f64(minutes * 60.0));
    let given = std::env::var("RADIC_SEED").ok().map(|seed| seed.parse().expect("RADIC_SEED is a number"));
    let drawn = || if deadline.is_some() { Random::from_environment().number() % 1_000_000_000 } else { SHORT };
    let first: u64 = given.unwrap_or_else(drawn);
    let (mut expected, mut report) = (Expected::default(), Report::default());
    for seed in first.. {
        run(seed, &mut expected, &mut report);
        if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
            break;
        }
    }
    println!("{report}");
}
