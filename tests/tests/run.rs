//! `radic run`: exit codes, what is left afterwards, placement, environment, standard input, signals.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use radic_tests::client::describe;
use radic_tests::cluster::{Cluster, Kind, Setup, program};
use radic_tests::library::{MPICH, OPENMPI, OPENMPI5};
use radic_tests::protection::Protected;
use radic_tests::random::Random;
use radic_wire::event::{Event, EventName};
use rustix::process::Signal;

/// Time for ranks that ignore SIGTERM: the grace between it and SIGKILL, and some for the rest.
const GRACE: Duration = Duration::from_secs(4);

/// Ranks of one node that take longer to be started than heartbeats may stay away, on any machine.
const RANKS_OF_ONE: usize = 500;

/// Ranks of a job on all nodes.
const RANKS_OF_ALL: usize = 1000;

fn sh(script: &str) -> [&str; 3] {
    ["sh", "-c", script]
}

#[test]
fn the_exit_code_is_the_first_that_is_not_zero() {
    let cluster = Cluster::start(Kind::Logical, 3);
    let run = |script: &str| cluster.job(3, "", &sh(script)).run();
    run("true").expect(0);
    let waiting = "[ $RADIC_RANK = 2 ] && exit 3; exec sleep 1000";
    run(waiting).expect(3).expect_stderr(&["rank 2 on n3 exited with code 3"]);
    // The others are ended by a signal, and what they make of it does not count.
    run("[ $RADIC_RANK = 1 ] && exit 5; trap 'exit 9' TERM; while :; do sleep 0.02; done").expect(5);
    run("[ $RADIC_RANK = 1 ] && kill -9 $$; exec sleep 1000").expect(137).expect_stderr(&["rank 1 on n2", "SIGKILL"]);
    run("[ $RADIC_RANK = 0 ] && kill -SEGV $$; exec sleep 1000").expect(139).expect_stderr(&["rank 0 on n1", "SIGSEGV"]);
    cluster.assert_idle();
    cluster.stop();
}

/// Protection is the default; a program that cannot be protected is no reason to refuse it, but the user is told.
#[test]
fn what_cannot_be_protected_runs_without_and_is_told() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let code = cluster.dir().join("program.c");
    fs::write(&code, "#include <stdio.h>\nint main(void) { return puts(\"here\") < 0; }\n").expect("a new file");
    let make = |name: &str, flags: &[&str]| {
        let program = cluster.dir().join(name);
        cluster.invocation("gcc").args(flags).args(["-o".as_ref(), program.as_os_str(), code.as_os_str()]).run().expect(0);
        program.display().to_string()
    };
    let (program, fixed) = (make("program", &[]), make("fixed", &["-static"]));
    let run = |flags: &str, words: &[&str]| {
        let finished = cluster.job(2, flags, words).run().expect(0);
        assert_eq!(finished.stdout(), "here\nhere\n", "{finished}");
        finished
    };
    let finished = run("", &[&program]);
    assert_eq!(finished.stderr(), "", "a program that is protected needs no words");
    Protected::newest(&cluster, 2).check();
    let finished = run("", &[&fixed]).expect_stderr(&["warning", "UNPROTECTED", "statically linked"]);
    assert_eq!(finished.stderr().lines().count(), 1, "{finished}");
    assert_eq!(run("--protect none", &[&fixed]).stderr(), "");
    // A shell is protected; its children are not.
    let shell = format!("{program}; true");
    let finished = run("", &sh(&shell)).expect_stderr(&["warning", "is a shell"]);
    // That a child runs may be known before the job is over.
    let of_child = |line: &&str| line.starts_with("radic: warning: a child of rank ");
    assert_eq!(finished.stderr().lines().filter(|line| !of_child(line)).count(), 1, "{finished}");
    Protected::newest(&cluster, 2).check();
    cluster.assert_idle();
    cluster.stop();
}

/// An installation without the library is not one that quietly protects nothing.
#[test]
fn a_missing_library_is_told_with_the_way_out() {
    let cluster = Cluster::start(Kind::Logical, 1);
    let (bin, other) = (cluster.dir().join("bin"), cluster.dir().join("other"));
    fs::create_dir(&bin).expect("a new directory");
    for name in ["radic", "radicd"] {
        fs::copy(program(name), bin.join(name)).expect("a copy");
    }
    let radic =
        |words: &[&str]| cluster.invocation(bin.join("radic")).args(["--cluster".as_ref(), other.as_os_str()]).args(words).run();
    radic(&["cluster", "start", "--nodes", "1"]).expect(0);
    radic(&["run", "-n", "1", "--", "cat"]).expect(125).expect_stderr(&["libradic.so", "--protect none"]);
    radic(&["run", "-n", "1", "--protect", "none", "--", "cat"]).expect(0);
    radic(&["cluster", "stop"]).expect(0);
    cluster.stop();
}

#[test]
fn what_cannot_be_executed_is_told_apart() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let path = |name: &str| cluster.dir().join(name).display().to_string();
    let put = |name: &str, text: &str, mode| {
        fs::write(cluster.dir().join(name), text).expect("a new file");
        fs::set_permissions(cluster.dir().join(name), fs::Permissions::from_mode(mode)).expect("a file of ours");
    };
    put("data", "#!/bin/sh\n", 0o644);
    put("lost", "#!/no/such/interpreter\n", 0o755);
    // An ELF header of no machine at all: no shell is to take it for a script.
    put("foreign", &format!("\u{7f}ELF{}", "\0".repeat(60)), 0o755);
    let run = |program: &str| cluster.job(2, "", &[program]).run();
    run("/no/such/program").expect(127).expect_stderr(&["/no/such/program"]);
    cluster.job(2, "", &["no-such-program"]).env("PATH", "/usr/bin:/bin").run().expect(127).expect_stderr(&["no-such-program"]);
    run(&path("data")).expect(126).expect_stderr(&["data"]);
    run(&path("nodes")).expect(126).expect_stderr(&["nodes"]);
    run(&path("lost")).expect(127).expect_stderr(&["lost"]);
    run(&path("foreign")).expect(126).expect_stderr(&["foreign"]);
    // A directory of PATH that may not be searched hides nothing that was found. Root may search all, but for its capabilities.
    let locked = cluster.dir().join("locked");
    fs::create_dir(&locked).expect("a new directory");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).expect("a directory of ours");
    let locked_path = format!("{}:/usr/bin:/bin", locked.display());
    let unprivileged = |name: &str| {
        let drop: &[&str] = if nix::unistd::geteuid().is_root() { &["--inh-caps=-all", "--bounding-set=-all"] } else { &[] };
        let command = cluster.invocation("setpriv").args(drop).args([program("radic").as_os_str()]);
        command.args(["run", "-n", "2", "--", name]).env("PATH", &locked_path).run()
    };
    unprivileged("no-such-program").expect(127).expect_stderr(&["no-such-program: not found in PATH", "locked may not be"]);
    unprivileged("true").expect(0);
    cluster.job(2, "--wd /no/such/directory", &["true"]).run().expect(125).expect_stderr(&["/no/such/directory"]);
    cluster.job(2, "--nodes n9", &["true"]).run().expect(125).expect_stderr(&["n9"]);
    cluster.job(2, "--colour", &["true"]).run().expect(2);
    cluster.job(0, "", &["true"]).run().expect(2);
    let empty = cluster.dir().join("empty");
    cluster.job(2, "", &["true"]).env("RADIC_CLUSTER", &empty).run().expect(125).expect_stderr(&["radic cluster start"]);
    cluster.assert_idle();
    cluster.stop();
}

#[test]
fn pmi_alone_tells_abort_and_a_missing_finalize() {
    let cluster = Cluster::start(Kind::Logical, 3);
    let bash = |script: &str| cluster.job(3, "", &["bash", "-c", script]).run();
    // What MPI_Init and MPI_Abort of a library say; bash has descriptors of any number.
    let init = "eval \"exec 9<&$PMI_FD 8>&$PMI_FD\"; echo 'cmd=init pmi_version=1 pmi_subversion=1' >&8; read -r answer <&9;";
    bash(&format!("{init} [ $PMI_RANK = 1 ] && echo 'cmd=abort exitcode=7' >&8; sleep 1000"))
        .expect(7)
        .expect_stderr(&["rank 1", "MPI_Abort"]);
    bash(&format!("{init} [ $PMI_RANK = 2 ] && exit 0; sleep 1000")).expect(1).expect_stderr(&["rank 2 on n3", "MPI_Finalize"]);
    bash(&format!("{init} echo cmd=finalize >&8; read -r answer <&9; echo $answer")).expect(0);
    // What the library never says is answered with an error, not with silence.
    let unknown = bash(&format!("{init} echo cmd=spawn >&8; read -r -t 5 answer <&9; echo got $answer; exit 3"));
    assert!(unknown.expect(3).stdout().contains("rc=-1"));
    // Nonsense ends the rank.
    bash(&format!("{init} head -c 100000 /dev/zero >&8; sleep 1000")).expect(137);
    cluster.assert_idle();
    cluster.stop();
}

#[test]
fn nothing_is_left_of_a_job() {
    for kind in Kind::all() {
        let cluster = Cluster::start(kind, 3);
        // Children, and children of children, of a rank that ends by itself or is ended.
        let children = "sleep 1000 & (sleep 1000 & exec sleep 1000) & ";
        cluster.job(3, "", &sh(&format!("{children} exit 0"))).run().expect(0);
        cluster.assert_idle();
        cluster.job(3, "", &sh(&format!("{children} [ $RADIC_RANK = 1 ] && exit 4; wait"))).run().expect(4);
        cluster.assert_idle();
        // Ranks and children that ignore SIGTERM.
        let stubborn = "trap '' TERM; sleep 1000 & [ $RADIC_RANK = 1 ] && exit 4; wait";
        let finished = cluster.job(3, "", &sh(stubborn)).run().expect(4);
        assert!(finished.elapsed < GRACE, "{finished}");
        cluster.assert_idle();
        // Stopped ranks.
        let stopped = "[ $RADIC_RANK = 1 ] && { sleep 0.2; exit 4; }; kill -STOP $$";
        cluster.job(3, "", &sh(stopped)).run().expect(4);
        cluster.assert_idle();
        // What has left the rank's process group and session, and holds its output; it does not delay the end either.
        let away = "set -m; sleep 1000 & (setsid sh -c 'sleep 1000 & exec sleep 1000' &);";
        let finished = cluster.job(3, "", &sh(&format!("{away} exit 0"))).run().expect(0);
        assert!(finished.elapsed < Duration::from_secs(2), "{finished}");
        cluster.assert_idle();
        cluster.job(3, "", &sh(&format!("{away} [ $RADIC_RANK = 1 ] && exit 4; exec sleep 1000"))).run().expect(4);
        cluster.assert_idle();
        cluster.stop();
    }
}

/// The lines of a job in the order of their ranks, which stand at their beginnings.
fn by_rank(out: &str) -> Vec<String> {
    let mut lines: Vec<_> = out.lines().map(|line| line.split_once(' ').expect("a rank and more")).collect();
    lines.sort_by_key(|(rank, _)| rank.parse::<u32>().expect("a rank"));
    lines.iter().map(|(_, rest)| (*rest).to_owned()).collect()
}

#[test]
fn ranks_land_where_they_should() {
    let cluster = Setup::new(Kind::Logical, 3).spares(1).slots(2).start();
    let nodes = |ranks, flags: &str| {
        by_rank(&cluster.job(ranks, flags, &sh("echo $RADIC_RANK $RADIC_NODE")).run().expect(0).stdout()).join(" ")
    };
    assert_eq!(nodes(5, ""), "n1 n2 n3 n1 n2");
    assert_eq!(nodes(5, "--map-by node"), "n1 n2 n3 n1 n2");
    assert_eq!(nodes(5, "--map-by slot"), "n1 n1 n2 n2 n3");
    assert_eq!(nodes(8, "--map-by slot"), "n1 n1 n2 n2 n3 n3 n1 n1");
    assert_eq!(nodes(4, "--nodes n3,n1"), "n3 n1 n3 n1");
    assert_eq!(nodes(3, "--map-by slot --nodes n2,n1"), "n2 n2 n1");
    cluster.job(1, "--nodes s1", &["true"]).run().expect(125).expect_stderr(&["s1", "spare"]);
    cluster.job(2, "--nodes n1,n1", &["true"]).run().expect(125).expect_stderr(&["n1"]);
    cluster.stop();
}

#[test]
fn environment_and_directory_are_those_of_the_caller() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let script = "echo \"$RADIC_RANK $RADIC_SIZE|$MINE|$GIVEN|$PWD|$(pwd)|$PMI_SIZE\"";
    let here = fs::canonicalize(cluster.dir()).expect("it is there");
    let wd = here.join("a b");
    fs::create_dir(&wd).expect("a new directory");
    let run = |flags: &[&str]| {
        let args = [&["run", "-n", "2"], flags, &["--", "sh", "-c", script]].concat();
        let job = cluster.radic(args).env("MINE", "my own ").env("GIVEN", "old").dir(&here);
        by_rank(&job.run().expect(0).stdout())
    };
    let (here, there) = (here.display().to_string(), wd.display().to_string());
    let line = |given: &str, dir: &str| format!("2|my own |{given}|{dir}|{dir}|2");
    assert_eq!(run(&[]), vec![line("old", &here); 2]);
    assert_eq!(run(&["--env", "GIVEN=a=b c", "--wd", "a b"]), vec![line("a=b c", &there); 2]);
    assert_eq!(run(&["--env", "GIVEN=", "--wd", &there]), vec![line("", &there); 2]);
    // What another launcher has left in the environment is not passed on.
    let inherited = cluster.job(1, "", &sh("echo $PMIX_RANK.$PMI_RANK.$PMI_PORT"));
    let inherited = inherited.env("PMIX_RANK", "5").env("PMI_RANK", "5").env("PMI_PORT", "host:1").run().expect(0);
    assert_eq!(inherited.stdout(), ".0.\n");
    cluster.stop();
}

#[test]
fn standard_input_goes_to_rank_0_whole_and_ends() {
    for kind in Kind::all() {
        let cluster = Cluster::start(kind, 3);
        let sent = Random::from_environment().bytes(1 << 20);
        let finished = cluster.job(1, "", &["cat"]).stdin(sent.clone()).run().expect(0);
        println!("{kind:?}: 1 MiB through cat in {:.0?}", finished.elapsed);
        assert!(finished.bytes() == sent, "{} bytes came back, not those sent", finished.bytes().len());
        let counted = cluster.job(3, "", &sh("echo $RADIC_RANK $(wc -c)")).stdin(sent.clone()).run().expect(0);
        assert_eq!(by_rank(&counted.stdout()), ["1048576", "0", "0"]);
        // A rank that does not want its input holds no other one up, and one that reads late misses nothing.
        cluster.job(2, "", &["true"]).stdin(sent.clone()).run().expect(0);
        cluster.job(2, "", &sh("exec <&-; exit 0")).stdin(sent.clone()).run().expect(0);
        let late = cluster.job(1, "", &sh("sleep 0.3; exec wc -c")).stdin(sent).run().expect(0);
        assert_eq!(late.stdout().trim(), "1048576");
        cluster.stop();
    }
}

#[test]
fn signals_reach_every_rank() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let start = |script: &str| {
        let mut job = cluster.job(2, "", &sh(&format!("{script} echo ready; while :; do sleep 0.02; done"))).start();
        job.until("both ranks", |out, _| (out == "ready\nready\n").then_some(()));
        job
    };
    for (signal, name) in [(Signal::INT, "INT"), (Signal::TERM, "TERM"), (Signal::QUIT, "QUIT"), (Signal::USR1, "USR1")] {
        let job = start(&format!("trap 'echo {name} $RADIC_RANK; exit 0' {name};"));
        job.signal(signal);
        let finished = job.wait().expect(0);
        let mut seen: Vec<_> = finished.stdout().lines().skip(2).map(str::to_owned).collect();
        seen.sort();
        assert_eq!(seen, [format!("{name} 0"), format!("{name} 1")], "{finished}");
    }
    let job = start("");
    job.signal(Signal::TERM);
    job.wait().expect(143);
    // The third interrupt ends a job that takes no notice.
    let mut job = start("trap '' INT;");
    job.signal(Signal::INT);
    job.until("a hint", |_, err| err.contains("two more").then_some(()));
    job.signal(Signal::INT);
    // Two signals of one kind that come before the first is looked at are one.
    std::thread::sleep(Duration::from_millis(100));
    job.signal(Signal::INT);
    job.wait().expect(137).expect_stderr(&["killed"]);
    cluster.assert_idle();
    cluster.stop();
}

/// Signals 32 and 33 are glibc's own: no program can set what happens to them.
const SETTABLE: u64 = !(0b11 << 31);

#[test]
fn signals_reach_ranks_of_a_cluster_that_ignores_them() {
    // As a script's background does it (SIGINT, SIGQUIT), nohup (SIGHUP), and worse.
    let cluster = Cluster::empty(Kind::Logical);
    let signals = ["--ignore-signal=HUP,INT,QUIT,USR1,CHLD,PIPE", "--block-signal=TERM,USR2,CHLD"];
    let radic = program("radic");
    let start = cluster.invocation("env").args(signals).args([radic.as_os_str()]);
    start.args(["cluster", "start", "--nodes", "2"]).run().expect(0);
    let status = cluster.job(2, "", &["cat", "/proc/self/status"]).run().expect(0).stdout();
    let masks: Vec<_> = status.lines().filter(|line| line.starts_with("SigBlk:") || line.starts_with("SigIgn:")).collect();
    assert_eq!(masks.len(), 4, "{status}");
    for mask in masks {
        let bits = mask.split_once('\t').and_then(|(_, bits)| u64::from_str_radix(bits, 16).ok());
        assert_eq!(bits.map(|bits| bits & SETTABLE), Some(0), "{mask}");
    }
    let script = "trap 'exit 3' QUIT; echo ready; while :; do sleep 0.02; done";
    let mut job = cluster.job(2, "", &sh(script)).start();
    job.until("both ranks", |out, _| (out == "ready\nready\n").then_some(()));
    job.signal(Signal::QUIT);
    job.wait().expect(3);
    cluster.assert_idle();
    cluster.stop();
}

#[test]
fn a_signal_that_the_command_was_told_to_ignore_is_not_passed_on() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let radic = program("radic");
    let command = cluster.invocation("env").args(["--ignore-signal=HUP,INT"]).args([radic.as_os_str()]);
    let script = "trap 'echo INT' INT; trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let mut job = command.args(["run", "-n", "2", "--"]).args(sh(script)).start();
    job.until("both ranks", |out, _| (out == "ready\nready\n").then_some(()));
    // Were they taken, then in this order: the smallest number first.
    [Signal::HUP, Signal::INT, Signal::TERM].into_iter().for_each(|signal| job.signal(signal));
    assert_eq!(job.wait().expect(0).stdout(), "ready\nready\n");
    cluster.stop();
}

#[test]
fn many_ranks_and_several_jobs_at_once() {
    let cluster = Cluster::start(Kind::Logical, 4);
    let finished = cluster.job(32, "", &sh("echo $RADIC_RANK $RADIC_NODE")).run().expect(0);
    println!("32 ranks, started and ended in {:.0?}", finished.elapsed);
    assert!(finished.elapsed < Duration::from_secs(3), "{finished}");
    assert_eq!(by_rank(&finished.stdout()).len(), 32);
    // The jobs share nodes and nothing else: each has its own input, output and code.
    let mut jobs: Vec<_> = (0..8)
        .map(|i| cluster.job(4, "", &sh(&format!("read line; echo $RADIC_RANK $line; exit $((RADIC_RANK == 0 ? {i} : 0))"))))
        .map(|job| job.stdin_open().start())
        .collect();
    let then = Instant::now();
    for (i, job) in jobs.iter_mut().enumerate().rev() {
        job.type_in(format!("job {i}\n").as_bytes());
    }
    for (i, job) in jobs.into_iter().enumerate() {
        let finished = job.wait().expect(i as i32);
        assert!(finished.stdout().lines().any(|line| line == format!("0 job {i}")), "{finished}");
    }
    println!("8 jobs at once ended {:.0?} after their input came", then.elapsed());
    assert_eq!(cluster.status().jobs.len(), 9);
    cluster.assert_idle();
    cluster.stop();
}

/// A daemon misses no heartbeat, and owes no member an answer, because of its own work: to start all ranks in one go takes longer than heartbeats may stay
/// away, and what a home hears of a thousand ranks takes longer than an answer may.
#[test]
fn nodes_that_start_a_thousand_ranks_are_not_suspected() {
    let cluster = Setup::new(Kind::Logical, 3).spares(1).start();
    let mut events = cluster.events_at("n2");
    for (ranks, flags) in [(RANKS_OF_ONE, "--nodes n1"), (RANKS_OF_ALL, "")] {
        let finished = cluster.job(ranks, flags, &["true"]).limit(Duration::from_secs(60)).run().expect(0);
        println!("{ranks} ranks, started and ended in {:.0?}", finished.elapsed);
        let is_last = |event: &Event| event.event == EventName::JobEnd;
        let job = events.expect("the job's end", Duration::from_secs(5), is_last).job;
        let is_start = |event: &&Event| event.event == EventName::RankStart && event.job == job;
        assert_eq!(events.seen().iter().filter(is_start).count(), ranks);
    }
    let bad = |event: &&Event| match event.event {
        EventName::Suspect | EventName::Confirm => true,
        EventName::Descheduled => event.text.contains("own work"),
        _ => false,
    };
    let bad: Vec<_> = events.seen().iter().filter(bad).map(describe).collect();
    assert!(bad.is_empty(), "a node was silent or busy for long:\n{}", bad.join("\n"));
    cluster.assert_idle();
    cluster.stop();
}

/// The node's address is none that an interface of this machine carries (all of 127.0.0.0/8 is this machine, but its interface has one of
/// them): the libraries are not told of any interface, and choose.
#[test]
fn a_node_with_an_address_that_no_interface_carries() {
    let mut cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    ["n1", "n2"].iter().for_each(|node| cluster.start_node(node, &["--listen=127.0.0.11:0"]));
    let said =
        cluster.job(1, "--mpi mpich", &sh("echo ${FI_TCP_IFACE-unset} ${UCX_NET_DEVICES-unset} $FI_PROVIDER")).run().expect(0);
    assert_eq!(said.stdout(), "unset unset tcp\n", "{said}");
    let said = cluster.job(1, "--mpi openmpi", &sh("echo ${OMPI_MCA_btl_tcp_if_include-unset} $OMPI_MCA_btl")).run().expect(0);
    assert_eq!(said.stdout(), "unset tcp,self\n", "{said}");
    for library in [MPICH, OPENMPI, OPENMPI5] {
        library.job(&cluster, 2, "", &[&library.program("ring"), "--laps", "10"]).run().expect(0);
    }
    cluster.assert_idle();
    cluster.stop();
}
