//! Programs of many threads: any number of them one after the other, ends while they are in the middle of calls, and deaths. And programs that go another way when they execute
//! again, which is no end by itself.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::{compiled, script};
use radic_tests::protection::ON;
use radic_tests::random::Random;
use radic_tests::recovery::{SOON, events_of, first_checkpoints, is_long, sample, story};
use radic_tests::{Finished, Running};
use radic_wire::event::{Event, EventName};

/// Time for one program.
const LIMIT: Duration = Duration::from_secs(60);
/// How a process may end, as net_ends names it.
const WAYS: [&str; 8] = ["return", "exit", "_exit", "quick_exit", "thread", "pthread_exit", "signal_exit", "signal__exit"];
/// The code with which it does.
const CODE: i32 = 7;

fn text(path: &std::path::Path) -> String {
    path.to_str().expect("the path of a temporary directory is text").to_owned()
}

/// A program of two sides as two ranks, in a new directory.
fn start(cluster: &Cluster, number: usize, flags: &str, command: &[&str], args: &[&str]) -> Running {
    let dir = cluster.dir().join(format!("pair-{number}"));
    fs::create_dir(&dir).expect("a new directory");
    let dir = text(&dir);
    let role: &[&str] = if command[0] == "python3" { &[&dir] } else { &["rank", &dir] };
    cluster.job(2, flags, &[command, role, args].concat()).limit(LIMIT).start()
}

/// What the program itself has said, and how it has ended.
fn end_of(finished: &Finished) -> (Option<i32>, String, String) {
    // What `radic run` says of the end; and that a distribution's python3 may be a script.
    let of_program = |line: &&str| !["radic: rank 0 on ", "radic: warning: "].iter().any(|said| line.starts_with(said));
    (finished.code(), finished.stdout(), finished.stderr().lines().filter(of_program).collect())
}

#[test]
fn a_thread_for_each_request() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let program = compiled("net", "net_threads");
    let finished = start(&cluster, 0, ON, &[&program], &[]).wait().expect(0);
    assert_eq!(finished.stdout().matches("OK net_threads ").count(), 2, "{finished}");
    cluster.assert_idle();
    cluster.stop();
}

/// Code and output are as without RADIC, wherever the other threads are.
fn ends_as_it_should(command: &[&str], payload: &str, ways: &[&str]) {
    let cluster = Cluster::start(Kind::Logical, 2);
    let mut runs = 0..;
    let mut run = |flags: &str, way: &str| {
        let number = runs.next().expect("any number of runs");
        end_of(&start(&cluster, number, flags, command, &[way]).wait())
    };
    for way in ways {
        // Without RADIC the caller may be told that its connection was reset, when the process at the other end has ended in the middle of a call.
        let due = (0..20).map(|_| run("--protect none", way)).find(|due| due.2.is_empty());
        let due = due.unwrap_or_else(|| panic!("{way}: no run without RADIC has ended without a word"));
        assert_eq!(due.0, Some(CODE), "{way}: {due:?}");
        for _ in 0..if is_long() { 300 } else { 12 } {
            assert_eq!(run(&format!("--protect on --ckpt-interval 0.05 --payload {payload}"), way), due, "{way}, {payload}");
        }
    }
    cluster.assert_idle();
    cluster.stop();
}

#[test]
fn a_process_ends_while_its_threads_are_in_calls() {
    let program = compiled("net", "net_ends");
    ends_as_it_should(&[&program], "log", &WAYS);
    ends_as_it_should(&[&program], "sender", &["return"]);
}

/// The interpreter ends its daemon threads by `pthread_exit`, where their calls return.
#[test]
fn a_process_ends_while_daemon_threads_of_python_are_in_calls() {
    for payload in ["log", "sender"] {
        ends_as_it_should(&["python3", &script("daemons.py")], payload, &["exit"]);
    }
}

/// A job on n2 and n3, of which a rank has crashed after its first checkpoint and a while.
fn crashed(cluster: &Cluster, flags: &str, program: &str, args: &[&str], rank: u32, after: Duration) -> (Running, Instant) {
    let mut events = cluster.events_at("n1");
    let job = start(cluster, 0, &format!("--nodes n2,n3 --protect on {flags}"), &[program], args);
    let id = first_checkpoints(&mut events, 2);
    assert!(!job.ends_within(after), "the job is too short");
    cluster.radic(["inject", "kill-rank", &id.to_string(), &rank.to_string()]).run().expect(0);
    (job, Instant::now())
}

fn counted(events: &[Event]) -> BTreeMap<&'static str, usize> {
    let told = [EventName::Replay, EventName::Live, EventName::Death, EventName::Lost, EventName::Restart];
    told.map(|name| (name.as_str(), events.iter().filter(|event| event.event == name).count())).into()
}

/// Threads that wait for each other's outcomes, that have ended and that have come: each gets its own again.
#[test]
fn threads_are_told_apart_when_a_process_executes_again() {
    let program = compiled("net", "net_threads");
    for (rank, after) in [(0, 1500), (0, 2200), (1, 1800)] {
        let cluster = Cluster::start(Kind::Logical, 4);
        // The second checkpoint never comes: what the log has goes back to the beginning of the threads.
        let after = Duration::from_millis(after);
        let (job, crash) = crashed(&cluster, "--ckpt-interval 20", &program, &["turns"], rank, after);
        let finished = job.wait().expect(0);
        let events = events_of(&cluster, radic_tests::protection::newest_job(&cluster));
        let due = [("replay", 1), ("live", 1), ("death", 0), ("lost", 0), ("restart", 0)].into();
        assert_eq!(counted(&events), due, "{finished}\n{}", story(&cluster));
        let took = events.iter().find(|event| event.event == EventName::Live).map(|event| event.text.clone());
        println!("rank {rank} crashed after {after:?}: {took:?}, the end {:.2} s later", crash.elapsed().as_secs_f64());
        cluster.assert_idle();
        cluster.stop();
    }
}

/// Nodes that give a process up which does not get on for two seconds.
fn impatient() -> Cluster {
    let mut cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    ["n1", "n2", "n3", "n4"].iter().for_each(|node| cluster.start_node(node, &["--replay-limit=2"]));
    cluster
}

/// A program that does something else than its log says is brought back once more. Then its job restarts from its beginning, soon, or ends with the reason.
fn goes_astray(how: &str, within: Duration, said: &[&str]) {
    let program = compiled("net", "net_astray");
    for on_loss in sample(&["restart", "fail"], 1, &mut Random::from_environment()) {
        let cluster = impatient();
        // The second checkpoint never comes, so there is something to execute again.
        let flags = format!("--ckpt-interval 20 --on-loss {on_loss}");
        let (job, crash) = crashed(&cluster, &flags, &program, &[how, "600"], 1, Duration::from_millis(800));
        let mut events = cluster.events_at("n1");
        events.expect("that it is lost", SOON, |event| event.event == EventName::Lost);
        let took = crash.elapsed();
        assert!(took < within, "{how}: {took:?}\n{}", story(&cluster));
        let finished = job.wait().expect(if on_loss == "restart" { 0 } else { 113 });
        let events = events_of(&cluster, radic_tests::protection::newest_job(&cluster));
        let restarts = usize::from(on_loss == "restart");
        let counted = counted(&events);
        assert_eq!((counted["replay"], counted["live"], counted["lost"], counted["restart"]), (2, 0, 1, restarts), "{finished}");
        let why = &events.iter().find(|event| event.event == EventName::Lost).expect("it was counted").text;
        assert!(said.iter().all(|part| why.contains(part)), "{why}");
        if on_loss == "restart" {
            assert_eq!(finished.stdout().matches("OK ").count(), 2, "{finished}");
        } else {
            assert!(said.iter().all(|part| finished.stderr().contains(part)), "{finished}");
        }
        println!("{how}, --on-loss {on_loss}: lost after {took:.2?}: {why}");
        cluster.assert_idle();
        cluster.stop();
    }
}

#[test]
fn a_program_that_spins_for_what_never_comes() {
    goes_astray(
        "spins",
        SOON,
        &["replay diverged at journal position ", "thread 0 had the outcome of a recv", " bytes were sent"],
    );
}

#[test]
fn a_program_that_sends_what_it_did_not_send_then() {
    goes_astray(
        "beats",
        SOON,
        &["it does not catch up: it stands at ", "thread 0 had the outcome of a recv", "; the limit is 2.0 s"],
    );
}

#[test]
fn a_program_that_waits_for_what_did_not_come_then() {
    goes_astray(
        "blocks",
        SOON,
        &["it does not catch up: it stands at ", "thread 0 had the outcome of a recv", "; the limit is 2.0 s"],
    );
}

#[test]
fn a_program_that_makes_no_call_any_more() {
    goes_astray("sleeps", SOON, &["it does not catch up: it stands at ", "; the limit is 2.0 s"]);
}
