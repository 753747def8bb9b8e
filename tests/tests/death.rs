//! The death of nodes: a job that stood on one ends in time, with a message and exit code 113, and leaves nothing anywhere.
#![forbid(unsafe_code)]

use std::io::Write;
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind, Setup};
use radic_tests::process;
use radic_tests::{Finished, Running};
use radic_wire::event::EventName;
use radic_wire::job::exit_code::NODE_LOST;
use radic_wire::local::NodeState;

/// What a death does to jobs that do not survive it: those that do are in `recover`.
const UNPROTECTED: &str = "--protect none";

/// Detection (500 ms), confirmation (250 ms, or 1 s for a daemon that hangs on a machine that is up), agreement, and the end of the other
/// ranks.
const DETECTED: Duration = Duration::from_secs(2);
/// A rank that has a child, and one that has left its session, says where it is, and never ends by itself.
const SLEEPER: [&str; 3] = ["sh", "-c", "sleep 1000 & setsid sleep 1000 & echo rank $RADIC_RANK on $RADIC_NODE; exec sleep 1000"];

/// Starts a job of four ranks, one a node, with its terminal connected to the first node; waits until all run.
fn start_sleepers(cluster: &Cluster, flags: &str) -> Running {
    let mut job = cluster.job(4, &format!("{UNPROTECTED} {flags}"), &SLEEPER).start();
    job.until("four ranks", |out, _| (out.lines().count() == 4).then_some(()));
    job
}

/// The rank that runs on a node, as it said.
fn rank_on(job: &Running, node: &str) -> String {
    let out = job.stdout();
    let mut lines = out.lines().filter_map(|line| line.strip_prefix("rank ")?.split_once(" on "));
    lines.find(|(_, at)| *at == node).unwrap_or_else(|| panic!("no rank on {node}: {out}")).0.to_owned()
}

/// The job's end is due: within the time since `then`, with the right code and message, and nothing is left.
fn expect_lost(cluster: &Cluster, job: Running, node: &str, then: Instant, what: &str) -> Finished {
    let rank = rank_on(&job, node);
    let finished = job.wait().expect(NODE_LOST).expect_stderr(&[&format!("node {node} is gone"), &format!("rank {rank} ")]);
    let took = then.elapsed();
    println!("{what}: the job ended after {} ms", took.as_millis());
    assert!(took < DETECTED, "{what}: {took:?}; {finished}");
    cluster.assert_idle();
    finished
}

#[test]
fn a_killed_node_ends_the_jobs_that_stand_on_it() {
    for kind in Kind::all() {
        let cluster = Cluster::start(kind, 5);
        // By the command, and without it: the protector is killed, and what it hosts dies with it.
        let job = start_sleepers(&cluster, "--nodes n1,n2,n3,n4");
        let then = Instant::now();
        cluster.radic(["inject", "kill-node", "n3"]).run().expect(0);
        expect_lost(&cluster, job, "n3", then, &format!("{kind:?}: kill-node"));
        let job = start_sleepers(&cluster, "--nodes n1,n2,n4,n5 ");
        let then = Instant::now();
        cluster.kill("n4");
        expect_lost(&cluster, job, "n4", then, &format!("{kind:?}: SIGKILL of radicd"));
        let states = cluster.status().nodes;
        let dead = states.iter().filter(|node| node.state == NodeState::Dead).map(|node| node.name.as_str());
        assert_eq!(dead.collect::<Vec<_>>(), ["n3", "n4"]);
        cluster.stop();
    }
}

#[test]
fn a_node_without_ranks_of_the_job_may_die() {
    let cluster = Cluster::start(Kind::Logical, 5);
    let script = "echo here; read line; echo $line; exit 5";
    let mut job = cluster.job(1, "--protect none --nodes n1", &["sh", "-c", script]).stdin_open().start();
    job.until_line("here");
    let mut events = cluster.events_at("n1");
    cluster.kill("n4");
    let gone = |event: &radic_wire::event::Event| event.event == EventName::View && event.text.contains("gone: n4");
    events.expect("n4 to be declared dead", DETECTED, gone);
    job.type_in(b"still there\n");
    let finished = job.wait().expect(5);
    assert_eq!(finished.stdout(), "here\nstill there\n");
    cluster.stop();
}

#[test]
fn the_home_and_the_terminal_s_node_may_die() {
    for kind in Kind::all() {
        // The command connects to n1, which is also the node of rank 0.
        let cluster = Cluster::start(kind, 5);
        let job = start_sleepers(&cluster, "--nodes n1,n2,n3,n4");
        let then = Instant::now();
        cluster.kill("n1");
        expect_lost(&cluster, job, "n1", then, &format!("{kind:?}: death of the terminal's node, the job's home"));
        // Now it connects to n2. A job that has no rank there goes on, and so does its terminal.
        let pipes = [0, 1].map(|rank| cluster.dir().join(format!("go{rank}")));
        pipes.iter().for_each(|pipe| nix::unistd::mkfifo(pipe, nix::sys::stat::Mode::S_IRWXU).expect("a new name"));
        let script = format!("echo there; read line < {}/go$RADIC_RANK; echo $line; exit 7", cluster.dir().display());
        let mut job = cluster.job(2, "--protect none --nodes n3,n4", &["sh", "-c", &script]).start();
        job.until("both ranks", |out, _| (out == "there\nthere\n").then_some(()));
        let mut events = cluster.events_at("n3");
        cluster.kill("n2");
        events.expect("n2 to be declared dead", DETECTED, |e| e.event == EventName::View && e.text.contains("gone: n2"));
        // Opened for both, so that writing does not wait: the first rank to go on exits with 7, and ends the other.
        let both = |pipe| std::fs::OpenOptions::new().read(true).write(true).open(pipe).expect("our pipe");
        let open: Vec<_> = pipes.iter().map(both).collect();
        open.iter().for_each(|mut pipe| pipe.write_all(b"go on\n").expect("it is open"));
        let finished = job.wait().expect(7).expect_stderr(&["n2"]);
        assert!(finished.stdout().contains("go on"), "{finished}");
        cluster.assert_idle();
        cluster.stop();
    }
}

#[test]
fn a_cut_off_node_is_a_dead_node() {
    if !Kind::all().contains(&Kind::Namespaces) {
        return;
    }
    for (node, role) in [("n4", "a host"), ("n2", "the home")] {
        let mut cluster = Cluster::start(Kind::Namespaces, 5);
        // n1 hosts nothing: the terminal's own node is not the one that is cut off.
        let job = start_sleepers(&cluster, "--nodes n2,n3,n4,n5");
        let pids: Vec<u32> = cluster
            .status_at(node)
            .nodes
            .iter()
            .filter(|n| n.name.as_str() == node)
            .flat_map(|n| n.ranks.iter().map(|r| r.pid))
            .collect();
        assert_eq!(pids.len(), 1, "one rank on {node}");
        let rank = process::Process::open(pids[0]).expect("a rank that runs");
        let then = Instant::now();
        cluster.set_cable(node, false);
        let label = format!("{role} cut off");
        let number = rank_on(&job, node);
        let finished = job.wait().expect(NODE_LOST).expect_stderr(&[&format!("node {node} is gone"), &format!("rank {number} ")]);
        println!("{label}: the job ended after {} ms", then.elapsed().as_millis());
        assert!(then.elapsed() < DETECTED, "{finished}");
        // The other side has no majority and ends its ranks by itself.
        assert!(rank.wait(DETECTED), "the rank on the cut-off node runs on");
        println!("{label}: its rank ended after {} ms", then.elapsed().as_millis());
        cluster.assert_idle();
        let cut = cluster.status_at(node);
        assert!(cut.frozen, "{node} decides things without a majority: {cut:?}");
        // When it hears the others again it learns that it is dead, and ends; then its name is free.
        let mended = Instant::now();
        cluster.set_cable(node, true);
        cluster.wait_for_end_of(node, Duration::from_secs(10)).expect(1);
        let last = cluster.log(node).lines().last().unwrap_or_default().to_owned();
        println!("{label}: its protector ended {} ms after the cable was back: {last}", mended.elapsed().as_millis());
        cluster.start_node(node, &[]);
        cluster.job(5, "", &["true"]).run().expect(0);
        cluster.stop();
    }
}

#[test]
fn a_protector_that_hangs_is_dead_and_ends_when_it_wakes() {
    let mut cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    ["n1", "n2", "n3", "n4", "n5"].iter().for_each(|node| cluster.start_node(node, &[]));
    let job = start_sleepers(&cluster, "--nodes n2,n3,n4,n5");
    let protector = cluster.protector("n4");
    let then = Instant::now();
    protector.signal(rustix::process::Signal::STOP);
    let number = rank_on(&job, "n4");
    job.wait().expect(NODE_LOST).expect_stderr(&["node n4 is gone", &format!("rank {number} ")]);
    println!("stopped: the job ended after {} ms", then.elapsed().as_millis());
    assert!(then.elapsed() < DETECTED);
    // A zombie: it still has its rank. It must find out by itself, and may not take another process along.
    protector.signal(rustix::process::Signal::CONT);
    cluster.wait_for_end_of("n4", DETECTED).expect(1);
    cluster.assert_idle();
    let status = cluster.status();
    assert_eq!(status.nodes.iter().filter(|node| node.state == NodeState::Alive).count(), 4, "{status:?}");
    cluster.stop();
}

#[test]
fn without_a_majority_jobs_end_and_none_starts() {
    for (nodes, killed) in [(2, &["n2"][..]), (5, &["n3", "n4", "n5"])] {
        let cluster = Cluster::start(Kind::Logical, nodes);
        // Of these two jobs one stands on the dead, the other does not.
        // Unprotected: a protected one would have its protector among the dead here, and wait for a majority with its side.
        let flags = "--nodes n1 --protect none";
        let mut apart = cluster.job(1, flags, &["sh", "-c", "read line; echo $line; exit 8"]).stdin_open().start();
        let script = "echo there; exec sleep 1000";
        let mut job = cluster.job(2, &format!("{UNPROTECTED} --nodes n1,{}", killed[0]), &["sh", "-c", script]).start();
        job.until("both ranks", |out, _| (out == "there\nthere\n").then_some(()));
        let then = Instant::now();
        let victims: Vec<_> = killed.iter().map(|node| cluster.protector(node)).collect();
        // Stopped first, so that the last of them cannot help to decide the death of the first: on a busy machine there is time for that.
        victims.iter().for_each(|victim| victim.signal(rustix::process::Signal::STOP));
        victims.iter().for_each(|victim| victim.signal(rustix::process::Signal::KILL));
        job.wait().expect(NODE_LOST).expect_stderr(&[&format!("node {}", killed[0]), "no majority"]);
        println!("{} of {nodes} killed: the job ended after {} ms", killed.len(), then.elapsed().as_millis());
        assert!(then.elapsed() < DETECTED);
        let status = cluster.status_at("n1");
        assert!(status.frozen && status.nodes.len() == nodes, "{status:?}");
        cluster.job(1, "--nodes n1", &["true"]).run().expect(125).expect_stderr(&["majority"]);
        apart.type_in(b"still there\n");
        assert_eq!(apart.wait().expect(8).stdout(), "still there\n");
        cluster.assert_idle();
        cluster.stop();
    }
}

#[test]
fn a_node_comes_back_under_its_old_name() {
    let mut cluster = Setup::new(Kind::Logical, 4).start();
    let mut events = cluster.events_at("n1");
    cluster.kill("n3");
    // At once: the others have not even noticed its death. It waits until they have.
    let then = Instant::now();
    cluster.start_node("n3", &[]);
    println!("back after {} ms", then.elapsed().as_millis());
    events.expect("n3 to join again", DETECTED, |e| e.event == EventName::View && e.text.contains("joined: n3"));
    let status = cluster.status();
    let alive: Vec<_> = status.nodes.iter().filter(|n| n.state == NodeState::Alive).map(|n| n.name.as_str()).collect();
    assert_eq!((alive.len(), status.nodes.len()), (4, 4), "{status:?}");
    let finished = cluster.job(4, "", &["sh", "-c", "echo $RADIC_NODE"]).run().expect(0);
    let out = finished.stdout();
    let mut nodes: Vec<_> = out.lines().collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["n1", "n2", "n3", "n4"]);
    cluster.stop();
}
