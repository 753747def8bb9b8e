//! What the commands that show something print, for people and for programs.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::time::Duration;

use radic_tests::cluster::{Cluster, Kind, Setup, program};
use radic_tests::library::MPICH;
use radic_tests::{Finished, process};
use radic_wire::event::{Event, EventName};
use radic_wire::job::{EndReason, JobInfo};
use radic_wire::local::{ClusterStatus, NodeInfo, NodeState};
use radic_wire::membership::Role;
use radic_wire::report::ProcessInfo;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

fn json<T: DeserializeOwned>(finished: &Finished) -> T {
    serde_json::from_slice(finished.bytes()).unwrap_or_else(|error| panic!("{error} in {finished}"))
}

/// Time for what no event tells of.
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn json_is_what_it_says() {
    let cluster = Setup::new(Kind::Logical, 3).spares(1).slots(5).start();
    let script = "echo ready; [ $RADIC_RANK = 0 ] || exec sleep 1000; read line; exit 3";
    let mut job = cluster.job(4, "", &["sh", "-c", script]).stdin_open().start();
    job.until("all ranks", |out, _| (out.matches("ready").count() == 4).then_some(()));
    let show = |words: &[&str]| cluster.radic(words).run().expect(0);
    let nodes: Vec<NodeInfo> = json(&show(&["nodes", "--json"]));
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["n1", "n2", "n3", "s1"]);
    for node in &nodes {
        assert_eq!((node.state, node.slots, node.role == Role::Spare), (NodeState::Alive, 5, node.name.as_str() == "s1"));
        assert_eq!(node.pid, cluster.protector(node.name.as_str()).pid());
        assert!(node.memory > 0 && node.address.port() > 0);
    }
    // The ring: each of the others protects one, a spare none.
    let protectors: BTreeSet<_> = nodes.iter().filter_map(|n| Some(n.protector.as_ref()?.as_str())).collect();
    assert!(["n1", "n2", "n3"].iter().all(|node| protectors.contains(node)), "{protectors:?}");
    let ranks: BTreeSet<u32> = nodes.iter().flat_map(|node| node.ranks.iter().map(|rank| rank.rank.0)).collect();
    assert_eq!(ranks.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    let value: serde_json::Value = json(&show(&["nodes", "--json"]));
    for field in ["name", "address", "state", "role", "ranks"] {
        assert!(value[0].get(field).is_some(), "an object of `radic nodes --json` lacks {field}");
    }
    let status: ClusterStatus = json(&show(&["status", "--json"]));
    assert!(!status.frozen && status.jobs.len() == 1 && status.nodes.len() == 4);
    let jobs: Vec<JobInfo> = json(&show(&["jobs", "--json"]));
    assert_eq!((jobs[0].ranks, jobs[0].outcome.as_ref()), (4, None));
    job.close_stdin();
    job.wait().expect(3);
    let none: Vec<JobInfo> = json(&show(&["jobs", "--json"]));
    assert_eq!(none, []);
    let all: Vec<JobInfo> = json(&show(&["jobs", "--all", "--json"]));
    let outcome = all[0].outcome.as_ref().expect("it has ended");
    assert!(outcome.code == 3 && matches!(outcome.reason, EndReason::RankFailed { .. }), "{outcome:?}");
    let events: Vec<Event> = show(&["events", "--json"]).stdout().lines().map(parse).collect();
    for name in
        [EventName::Start, EventName::View, EventName::JobStart, EventName::RankStart, EventName::RankExit, EventName::JobEnd]
    {
        assert!(events.iter().any(|event| event.event == name), "no event {}", name.as_str());
    }
    assert!(events.is_sorted_by_key(|event| event.at_ms), "events are not in order of time");
    cluster.stop();
}

fn parse(line: &str) -> Event {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
}

/// A rank that does nothing holds up all others: `radic top` names it in the row of each.
#[test]
fn top_names_the_rank_that_the_others_wait_for() {
    let cluster = Cluster::start(Kind::Logical, 4);
    let program = MPICH.program("jacobi");
    let words = [&program, "--size", "100", "--iterations", "100000000", "--alone", "0"];
    let job = cluster.job(4, "", &words).start();
    let ready = |status: &ClusterStatus| {
        let counted = |process: &ProcessInfo| process.counters.is_some_and(|counters| counters.messages_in > 1_000);
        status.processes.iter().filter(|process| counted(process)).count() == 4
    };
    process::eventually(MINUTE, "all ranks to communicate", || ready(&cluster.status()));
    let status = cluster.status();
    let last = status.processes.iter().find(|process| process.rank.0 == 3).expect("rank 3");
    let (pid, name) = (Pid::from_raw(last.pid as i32).expect("a process"), last.job.to_string());
    kill_process(pid, Signal::STOP).expect("it is ours");
    let rows = || cluster.radic(["top", "--once", &name]).run().expect(0).stdout();
    let shows = |rows: &str, rank: &str, does: &str| {
        rows.lines().any(|row| row.trim_start().starts_with(&format!("{rank} n")) && row.contains(does))
    };
    process::eventually(MINUTE, "rank 3 to be shown as what the others wait for", || {
        let shown = rows();
        ["0", "1", "2"].iter().all(|rank| shows(&shown, rank, "waits for 3 ")) && shows(&shown, "3", "stopped ")
    });
    kill_process(pid, Signal::CONT).expect("it is ours");
    process::eventually(MINUTE, "all ranks to communicate", || {
        let shown = rows();
        ["0", "1", "2", "3"].iter().all(|rank| shows(&shown, rank, "communicates "))
    });
    cluster.radic(["kill", &name]).run().expect(0);
    job.wait().expect(137);
    cluster.stop();
}

#[test]
fn following_events_ends_with_its_reader() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let radic = cluster.invocation("sh").args(["-c", "\"$RADIC\" events --follow | head -1"]).env("RADIC", program("radic"));
    // The cluster is quiet: no event tells the command that `head` has ended.
    assert_eq!(radic.limit(Duration::from_secs(10)).run().expect(0).stdout().lines().count(), 1);
    cluster.stop();
}

#[test]
fn events_are_followed_across_all_nodes() {
    let cluster = Cluster::start(Kind::Logical, 3);
    let mut follower = cluster.radic(["events", "--follow", "--json"]).start();
    cluster.job(3, "", &["true"]).run().expect(0);
    let ended = |out: &str| {
        let events: Vec<Event> = out.lines().filter(|line| line.ends_with('}')).map(parse).collect();
        let exits: BTreeSet<_> = events.iter().filter(|e| e.event == EventName::RankExit).map(|e| e.node.clone()).collect();
        let end = events.iter().any(|e| e.event == EventName::JobEnd);
        (end && exits.len() == 3).then_some(events)
    };
    let events = follower.until("the end of the job and of ranks on three nodes", |out, _| ended(out));
    let mut known = BTreeSet::new();
    assert!(events.iter().all(|event| known.insert((event.node.clone(), event.seq))), "an event came twice");
    follower.signal(rustix::process::Signal::INT);
    follower.wait();
    cluster.stop();
}

#[test]
fn tables_name_what_there_is() {
    let cluster = Setup::new(Kind::Logical, 2).spares(1).start();
    let show = |words: &[&str]| cluster.radic(words).run().expect(0).stdout();
    let (nodes, status, events) = (show(&["nodes"]), show(&["status"]), show(&["events"]));
    assert!(["n1", "n2", "s1", "alive", "spare"].iter().all(|word| nodes.contains(word)), "{nodes}");
    assert!(nodes.lines().all(|line| line.len() <= 80), "{nodes}");
    assert!(status.contains("3 alive"), "{status}");
    assert!(events.lines().count() >= 6, "{events}");
    assert!(show(&["jobs"]).contains("no job"));
    cluster
        .radic(["nodes"])
        .env("RADIC_CLUSTER", "/no/such")
        .run()
        .expect(125)
        .expect_stderr(&["/no/such", "radic cluster start"]);
    cluster.radic(["nodes", "--cluster", "/no/such"]).run().expect(125).expect_stderr(&["/no/such"]);
    cluster.stop();
}

#[test]
fn explain_tells_what_would_be_set_and_runs_nothing() {
    let cluster = Cluster::start(Kind::Logical, 1);
    let touched = cluster.dir().join("touched");
    let words = ["touch", &touched.display().to_string()].map(str::to_owned);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let text = cluster.job(2, "--explain", &words).run().expect(0).stdout();
    assert!(text.contains("touch") && text.contains("FI_PROVIDER"), "{text}");
    let value: serde_json::Value = json(&cluster.job(2, "--explain --json", &words).run().expect(0));
    assert_eq!(value["recognition"]["flavour"], "unknown");
    assert_eq!(value["protection"]["protect"], "on");
    // What the user says wins, and is shown to win.
    let own = cluster.job(2, "--explain --env FI_PROVIDER=mine", &words).run().expect(0).stdout();
    assert!(own.lines().any(|line| line.contains("FI_PROVIDER") && line.contains("mine")), "{own}");
    let own = cluster.job(1, "--env FI_PROVIDER=mine", &["sh", "-c", "echo $FI_PROVIDER"]).run().expect(0);
    assert_eq!(own.stdout(), "mine\n");
    let own = cluster.job(1, "", &["sh", "-c", "echo $FI_PROVIDER"]).env("FI_PROVIDER", "theirs").run().expect(0);
    assert_eq!(own.stdout(), "theirs\n");
    let none = cluster.job(1, "--mpi none", &["sh", "-c", "echo .$FI_PROVIDER"]).run().expect(0);
    assert_eq!(none.stdout(), ".\n");
    assert!(!touched.exists(), "--explain has run the program");
    cluster.stop();
}

#[test]
fn a_cluster_starts_once_and_stops_whole() {
    let cluster = Cluster::start(Kind::Logical, 4);
    let pids: Vec<u32> = cluster.node_names().iter().map(|node| cluster.protector(node).pid()).collect();
    cluster.radic(["cluster", "start", "--nodes", "2"]).run().expect(125).expect_stderr(&["already", "radic cluster stop"]);
    // A job that runs goes with it.
    let mut job = cluster.job(4, "", &["sh", "-c", "echo ready; exec sleep 1000"]).start();
    job.until("four ranks", |out, _| (out.matches("ready").count() == 4).then_some(()));
    let stopped = cluster.radic(["cluster", "stop"]).run().expect(0);
    println!("4 nodes with a job stopped in {:.0?}: {}", stopped.elapsed, stopped.stdout().trim());
    let finished = job.wait();
    assert_ne!(finished.code(), Some(0), "{finished}");
    assert!(pids.iter().all(|pid| process::Process::open(*pid).is_none_or(|p| p.wait(std::time::Duration::ZERO))));
    cluster.radic(["cluster", "stop"]).run().expect(125).expect_stderr(&["no cluster"]);
    // The same directory serves again, with the same key.
    let key = std::fs::read(cluster.dir().join("key")).expect("the key stays");
    cluster.radic(["cluster", "start", "--nodes", "3"]).run().expect(0);
    assert_eq!(std::fs::read(cluster.dir().join("key")).expect("the key stays"), key);
    // One that was killed whole leaves its directory; a new one takes it over.
    ["n1", "n2", "n3"].iter().for_each(|node| cluster.kill(node));
    process::wait_none(cluster.dir(), &[], std::time::Duration::from_secs(5)).expect("all were killed");
    cluster.radic(["status"]).run().expect(125).expect_stderr(&["radic cluster stop"]);
    cluster.radic(["cluster", "start", "--nodes", "3"]).run().expect(0);
    cluster.job(3, "", &["true"]).run().expect(0);
    cluster.stop();
}
