//! Clusters on other hosts, started by ssh: real sshds on addresses of the loopback network.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use radic_tests::cluster::{Cluster, Kind, program};
use radic_tests::library::MPICH;
use radic_tests::process;
use radic_tests::sshd::{self, Sshd, address};
use radic_wire::event::{Event, EventName};
use radic_wire::local::NodeState;
use radic_wire::membership::Role;
use rustix::process::Signal;
use serde_json::Value;

/// A cluster's folder and sshds; none if this machine has no sshd. Why is printed.
fn setup() -> Option<(Cluster, Sshd)> {
    if let Some(why) = sshd::missing() {
        println!("SKIPPED: {why}");
        return None;
    }
    let cluster = Cluster::empty(Kind::Logical);
    let sshd = Sshd::new(&cluster);
    Some((cluster, sshd))
}

fn names(of: &Value, key: &str) -> Vec<String> {
    let list = of.as_array().expect("a list");
    list.iter().map(|one| one[key].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn of_sixteen_hosts_three_are_not_there_and_one_refuses_the_key() {
    let Some((cluster, mut sshd)) = setup() else { return };
    // h1 and h9 refuse the connection, h5 takes it and says nothing, h12 does not let this user in.
    let there: Vec<u8> = (1..=16).filter(|host| ![1, 5, 9].contains(host)).collect();
    sshd.serve(&cluster, &there, &[12]);
    let _silent = TcpListener::bind((address(5), sshd.port())).expect("a free address");
    let file = cluster.dir().join("hosts");
    let lines: String =
        (1..=16).map(|host| if host % 2 == 0 { format!("h{host}:2\n") } else { format!("h{host} slots=3 # odd\n") }).collect();
    fs::write(&file, lines).expect("a new file");
    let args = ["cluster", "start", "--spares", "1", "--json", "--rsh", &sshd.shell(), "--hosts"];
    let started = cluster.radic(args).args([&file]).run().expect(0);
    println!("{started}");
    assert!(started.elapsed < Duration::from_secs(10), "it took {:?}", started.elapsed);

    let said: Value = serde_json::from_slice(started.bytes()).expect("JSON");
    let expected: Vec<String> = there.iter().filter(|host| **host != 12).map(|host| format!("h{host}")).collect();
    assert_eq!(names(&said["nodes"], "name"), expected);
    assert_eq!(
        names(&said["failed"], "host").into_iter().collect::<BTreeSet<_>>(),
        ["h1", "h12", "h5", "h9"].map(Into::into).into()
    );
    let err = started.stderr();
    for (host, what) in [("h1", "refused"), ("h9", "refused"), ("h12", "Permission denied"), ("h5", "try `ssh")] {
        let line = err.lines().find(|line| line.starts_with(&format!("radic: {host}: not started: "))).expect("a line for it");
        assert!(line.contains(what) || line.contains("no answer within"), "{line}");
    }
    assert_eq!(err.lines().filter(|line| line.contains(": started at ")).count(), 12, "{err}");

    let status = cluster.status();
    assert_eq!(status.nodes.iter().filter(|node| node.state == NodeState::Alive).count(), 12, "{status:?}");
    for node in &status.nodes {
        let number: u8 = node.name.as_str()[1..].parse().expect("h and a number");
        assert_eq!(node.address.ip(), address(number), "{status:?}");
        assert_eq!(node.slots, if number.is_multiple_of(2) { 2 } else { 3 }, "{status:?}");
        assert_eq!(node.role, if number == 16 { Role::Spare } else { Role::Node }, "{status:?}");
    }
    let key = fs::metadata(cluster.dir().join("key")).expect("the key");
    assert_eq!(key.permissions().mode() & 0o7777, 0o600);

    let where_run = cluster.job(11, "--protect none", &["sh", "-c", "echo $RADIC_NODE"]).run().expect(0).stdout();
    let on: BTreeSet<&str> = where_run.lines().collect();
    assert_eq!(on.len(), 11, "{where_run}");
    let stopped = cluster.radic(["cluster", "stop"]).run().expect(0);
    println!("{stopped}");
    assert!(stopped.stdout().contains("the cluster has ended on 12 hosts\n"), "{stopped}");
    sshd::assert_nothing_runs(&cluster, &sshd);
    assert!(!cluster.dir().join("nodes").exists() && !cluster.dir().join("hosts.json").exists());
}

#[test]
fn a_node_that_was_started_by_ssh_dies_and_its_rank_goes_on() {
    let Some((cluster, mut sshd)) = setup() else { return };
    sshd.serve(&cluster, &[0], &[]);
    let args = ["cluster", "start", "--spares", "1", "--rsh", &sshd.shell(), "--hosts", "m1,m2,m3,m4"];
    let started = cluster.radic(args).run().expect(0);
    assert!(started.stdout().contains("cluster of 3 nodes and 1 spare"), "{started}");
    let program = MPICH.program("jacobi");
    let words = [program.as_str(), "--size", "400", "--iterations", "1500", "--progress", "100", "--alone", "0"];
    let job = MPICH
        .job(&cluster, 3, "--protect on --ckpt-interval 0.5 --nodes m1,m2,m3", &words)
        .limit(Duration::from_secs(60))
        .start();
    let mut events = cluster.events_at("m1");
    let rank1 = |event: &Event, name| event.event == name && event.rank.is_some_and(|rank| rank.0 == 1);
    events.expect("a checkpoint", Duration::from_secs(20), |event| rank1(event, EventName::Checkpoint));
    cluster.kill("m2");
    events.expect("its rank to live", Duration::from_secs(20), |event| rank1(event, EventName::Live));
    job.wait().expect(0);
    cluster.radic(["cluster", "stop"]).run().expect(0);
    sshd::assert_nothing_runs(&cluster, &sshd);
}

/// The lines of the table in docs/clusters.md, with what they are to show.
#[test]
fn what_was_mpirun_before_has_its_line() {
    let Some((cluster, mut sshd)) = setup() else { return };
    sshd.serve(&cluster, &[0], &[]);
    let start = |hosts: &str| cluster.radic(["cluster", "start", "--rsh", &sshd.shell(), "--hosts", hosts]).run().expect(0);
    let stop = || cluster.radic(["cluster", "stop"]).run().expect(0);
    let run = |args: &[&str]| {
        let job = cluster.radic(["run", "--protect", "none"]).args(args).env("VAR", "passed").run().expect(0);
        let mut lines: Vec<String> = job.stdout().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let show = |what: &str| ["--".to_owned(), "sh".to_owned(), "-c".to_owned(), format!("echo {what}")];
    let with = |flags: &[&str], what: &str| {
        let show = show(what);
        run(&flags.iter().copied().chain(show.iter().map(String::as_str)).collect::<Vec<_>>())
    };
    // mpirun --host m1:2,m2:2, and a file with the same.
    let file = cluster.dir().join("H");
    fs::write(&file, "m1 slots=2\nm2:2\n").expect("a new file");
    start(&file.display().to_string());
    stop();
    start("m1:2,m2:2");
    // mpirun -np 4 -x VAR ./p: the whole environment passes.
    assert_eq!(with(&["-n", "4"], "$VAR"), ["passed"; 4]);
    assert_eq!(with(&["-n", "2", "--env", "VAR=other"], "$VAR"), ["other"; 2]);
    // As mpirun --map-by node, and as mpirun by default, which fills the slots of a node first.
    assert_eq!(with(&["-n", "3"], "$RADIC_RANK $RADIC_NODE"), ["0 m1", "1 m2", "2 m1"]);
    assert_eq!(with(&["-n", "3", "--map-by", "slot"], "$RADIC_RANK $RADIC_NODE"), ["0 m1", "1 m1", "2 m2"]);
    // mpirun --host m2; srun -w m2.
    assert_eq!(with(&["-n", "2", "--nodes", "m2"], "$RADIC_NODE"), ["m2", "m2"]);
    // mpirun -N 2 (Open MPI), mpiexec -ppn 2 (MPICH); srun -N 1 --ntasks-per-node=2.
    assert_eq!(with(&["--ntasks-per-node", "2"], "$RADIC_NODE"), ["m1", "m1", "m2", "m2"]);
    assert_eq!(with(&["-N", "1", "--ntasks-per-node", "2"], "$RADIC_NODE"), ["m1", "m1"]);
    // mpirun --tag-output, mpiexec -l, srun -l.
    let labelled = with(&["-n", "2", "--label"], "x");
    assert!(labelled.len() == 2 && labelled.iter().all(|line| line.len() > 1 && line.ends_with('x')), "{labelled:?}");
    // mpirun --wdir, srun --chdir.
    assert_eq!(with(&["-n", "1", "--wd", "/"], "$PWD"), ["/"]);
    cluster.radic(["run", "true"]).env_remove("SLURM_NTASKS").run().expect(2).expect_stderr(&["how many ranks"]);
    stop();
    sshd::assert_nothing_runs(&cluster, &sshd);
}

#[test]
fn a_host_that_is_gone_at_the_end_is_told_and_the_others_end() {
    let Some((cluster, mut sshd)) = setup() else { return };
    sshd.serve(&cluster, &[1, 2], &[]);
    sshd.serve(&cluster, &[3], &[]);
    let start = |hosts: &str| cluster.radic(["cluster", "start", "--rsh", &sshd.shell(), "--hosts", hosts]).run();
    start("h1,h2,h3").expect(0);
    start("h1").expect(125).expect_stderr(&["runs in", "radic cluster stop"]);
    sshd.end(1);
    let stopped =
        cluster.radic(["cluster", "stop"]).run().expect(0).expect_stderr(&["radic: h3: ", "refused", "if the host lives"]);
    assert!(stopped.stdout().contains("the cluster has ended on 2 hosts; 1 host could not be asked"), "{stopped}");
    // The others have told it to end.
    sshd::assert_nothing_runs(&cluster, &sshd);
}

#[test]
fn what_cannot_be_started_is_said_and_nothing_is_left() {
    let Some((cluster, mut sshd)) = setup() else { return };
    sshd.serve(&cluster, &[1, 2], &[2]);
    let shell = sshd.shell();
    let start = |hosts: &str, more: &[&str]| cluster.radic(["cluster", "start", "--rsh", &shell, "--hosts", hosts]).args(more);
    start("h1,h2", &["--prefix", "/no/such/folder"]).run().expect(125).expect_stderr(&[
        "h1: not started",
        "--prefix",
        "no node was started",
    ]);
    start("h1", &["--spares", "1"]).run().expect(125).expect_stderr(&["of 1 hosts 1"]);
    start("h1:none", &[]).run().expect(125).expect_stderr(&["h1:none", "number of slots"]);
    start("h2", &[]).run().expect(125).expect_stderr(&["h2: not started", "Permission denied", "try `ssh"]);
    sshd::assert_nothing_runs(&cluster, &sshd);
    // Interrupted while one host has not answered: the other one, which has started, does not stay.
    let _silent = TcpListener::bind((address(3), sshd.port())).expect("a free address");
    let mut waiting = start("h1,h3", &[]).start();
    waiting.until("the first to be started", |_, err| err.contains("h1: started at").then_some(()));
    waiting.signal(Signal::INT);
    waiting.wait().expect(125).expect_stderr(&["interrupted; nothing of the cluster is left"]);
    sshd::assert_nothing_runs(&cluster, &sshd);
    assert!(!cluster.dir().join("hosts.json").exists());
}

/// The order that an agent on a host `n1` gets: a remote shell has kept it. It has the cluster's folder get a key.
fn order(cluster: &Cluster) -> Value {
    let kept = cluster.dir().join("order");
    let shell = script(cluster, "keep", &format!("head -n 1 >{}", kept.display()));
    cluster.radic(["cluster", "start", "--rsh", &shell, "--hosts", "n1"]).run().expect(125).expect_stderr(&["n1: not started"]);
    let line = fs::read_to_string(kept).expect("the shell has kept it");
    serde_json::from_str(line.strip_prefix("radic-agent ").expect("the word of the launcher")).expect("JSON")
}

/// A script for a shell, in the cluster's folder.
fn script(cluster: &Cluster, name: &str, text: &str) -> String {
    let path = cluster.dir().join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a new file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("a file of ours");
    path.display().to_string()
}

/// A host that has a folder of its own at the path of the cluster's, behind a remote shell on which somebody listens.
struct Tapped {
    cluster: Cluster,
    /// The cluster's folder.
    dir: std::path::PathBuf,
    host: radic_tests::command::Running,
}

impl Tapped {
    /// None if this user may not make one. Why is printed.
    fn new() -> Option<Tapped> {
        let cluster = Cluster::empty(Kind::Logical);
        let dir = cluster.dir().join("c");
        fs::create_dir_all(cluster.dir().join("home")).expect("a new folder");
        fs::create_dir(&dir).expect("a new folder");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("a folder of ours");
        let hide = format!("mount -t tmpfs -o mode=700 none {} && echo there && exec sleep 600", dir.display());
        let mut host = cluster.invocation("unshare").args(["-m", "sh", "-c", &hide]).limit(Duration::from_secs(120)).start();
        let is_there = host.until("a folder of its own", |out, err| match (out, err) {
            ("there\n", _) => Some(true),
            (_, err) => (!err.is_empty()).then_some(false),
        });
        if !is_there {
            println!("SKIPPED: no other mounts can be made here: {}", host.stderr());
            return None;
        }
        Some(Tapped { cluster, dir, host })
    }

    /// A remote shell of this name. `before` is what it does on the host first.
    fn shell(&self, name: &str, before: &str) -> String {
        let tap = self.cluster.dir().join("tap");
        let there = format!("nsenter -m -t {} sh -c", self.host.pid());
        script(&self.cluster, name, &format!("{before}\nshift\ntee -a {} | {there} \"$1\"", tap.display()))
    }

    fn radic(&self, args: &[&str]) -> radic_tests::command::Invocation {
        self.cluster.radic(args).env("RADIC_CLUSTER", &self.dir).env("HOME", self.cluster.dir().join("home"))
    }

    /// Starts a node on the host, with a key that is not there yet.
    fn start(&self, shell: &str, more: &[&str]) -> radic_tests::command::Finished {
        let host = self.host.pid().to_string();
        let nothing = format!("rm -rf {}/key {}/nodes", self.dir.display(), self.dir.display());
        self.cluster.invocation("nsenter").args(["-m", "-t", &host, "sh", "-c", &nothing]).run().expect(0);
        let tap = self.cluster.dir().join("tap");
        _ = fs::remove_file(tap);
        self.radic(&["cluster", "start", "--rsh", shell, "--hosts", "h1"]).args(more).run()
    }

    /// Whether the key was seen on the way.
    fn key_was_seen(&self) -> bool {
        let key = fs::read_to_string(self.dir.join("key")).expect("the key");
        let digits = key.lines().nth(1).expect("two lines");
        let seen = fs::read_to_string(self.cluster.dir().join("tap")).expect("what was tapped");
        assert!(seen.contains("radic-agent "), "{seen}");
        seen.contains(digits)
    }

    fn stop(&self) {
        self.radic(&["cluster", "stop"]).run().expect(0);
        process::wait_none(&self.dir, &[self.host.pid()], Duration::from_secs(5)).expect("nothing of it runs");
    }
}

/// Whoever listens to what a batch system or rsh passes on learns nothing of the cluster's key.
#[test]
fn the_key_goes_only_where_it_is_not_seen() {
    let Some(tapped) = Tapped::new() else { return };
    let elsewhere = tapped.shell("rsh", "export HOME=/no/such/home");
    let refused = tapped.start(&elsewhere, &[]);
    assert!(!tapped.key_was_seen(), "{refused}");
    refused.expect(125).expect_stderr(&["h1: not started", "c/key", "does not encrypt", "put the key there", "--send-key"]);
    // Hosts that share the user's home folder find it there, as long as the start takes.
    let started = tapped.start(&tapped.shell("qrsh", ""), &[]);
    assert!(!tapped.key_was_seen(), "{started}");
    started.expect(0);
    let left = fs::read_dir(tapped.cluster.dir().join("home/.radic")).expect("a folder").count();
    assert_eq!(left, 0, "a copy of the key has stayed");
    tapped.stop();
    // It is sent if the user says so, and by what is called ssh.
    for (shell, more) in
        [(elsewhere, ["--send-key"].as_slice()), (tapped.shell("ssh", "export HOME=/no/such/home\nshift 6"), &[])]
    {
        tapped.start(&shell, more).expect(0);
        assert!(tapped.key_was_seen());
        tapped.stop();
    }
}

#[test]
fn an_agent_whose_launcher_goes_leaves_nothing_and_what_it_cannot_do_it_says() {
    let cluster = Cluster::empty(Kind::Logical);
    let given = order(&cluster);
    let version = given["version"].as_str().expect("the order names its release").to_owned();
    let order = |version: &str, code: &str| {
        let mut order = given.clone();
        order["version"] = version.into();
        order["proof"]["code"] = code.into();
        order["nodes"][0]["address"] = "127.0.0.1".into();
        format!("radic-agent {order}\n")
    };
    let code = given["proof"]["code"].as_str().expect("the order proves that the launcher has the key").to_owned();
    let agent =
        |input: String| cluster.invocation(program("radic")).args(["cluster", "agent", "--name", "n1"]).stdin(input).run();
    let failed = |input: String, part: &str| {
        let out = agent(input).expect(1).stdout();
        assert!(out.contains("failed") && out.contains(part), "{out}");
    };
    failed(order("0.0.0 (protocol 0)", &code), "install one release");
    failed(order(&version, &"ab".repeat(32)), "another key");
    failed(order(&version, "short"), "another key");
    failed(order(&version, &code), "the launcher has gone");
    failed("radic-agent {}\n".into(), "both sides of one release");
    failed("hello\n".into(), "before it said its order");
    let founding = format!("{}radic-agent {{\"found\":\"n1\"}}\n", order(&version, &code));
    let mut agent = cluster.invocation(program("radic")).args(["cluster", "agent", "--name", "n1"]).stdin_open().start();
    agent.type_in(founding.as_bytes());
    agent.until("its node to be ready", |out, _| out.contains("ready").then_some(()));
    assert_eq!(cluster.status().nodes.len(), 1);
    agent.close_stdin();
    agent.wait().expect(1);
    process::wait_none(cluster.dir(), &[], Duration::from_secs(5)).expect("its protector has ended");
}
