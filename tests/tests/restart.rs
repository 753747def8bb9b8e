//! A rank that is killed goes on from its last checkpoint, on its own node: nothing of what it sends and prints is missing, and nothing comes twice.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use radic_tests::Running;
use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::{LIBRARIES, Library, MPICH, compiled, script};
use radic_tests::process::{Process, eventually};
use radic_tests::protection::ON;
use radic_tests::random::Random;
use radic_tests::recovery::sample;
use radic_tests::redis::free_port;
use radic_wire::event::{Event, EventName};
use radic_wire::ids::Rank;
use radic_wire::limits::LAYERS;
use rustix::process::Signal;

/// Time for one job, its restarts included.
const LIMIT: Duration = Duration::from_secs(120);
/// Time for something that takes far less.
const SOON: Duration = Duration::from_secs(60);

/// The pid of a rank of the newest job and how many of its checkpoints are committed, if it runs.
fn look(cluster: &Cluster, rank: u32) -> Option<(u32, u64)> {
    let status = cluster.status();
    let newest = status.jobs.iter().max_by_key(|job| job.started_ms)?.job;
    let mut processes =
        status.processes.iter().filter(|process| process.job == newest && process.rank.0 == rank && process.running);
    let process = processes.next()?;
    Some((process.pid, process.counters.as_ref()?.committed))
}

/// Kills a rank after so many more checkpoints of it, and waits until it is live again.
fn kill(cluster: &Cluster, rank: u32, checkpoints: u64) {
    kill_after(cluster, rank, checkpoints, || {});
}

/// The same, after something else has been done.
fn kill_after(cluster: &Cluster, rank: u32, checkpoints: u64, something: impl FnOnce()) {
    let mut events = cluster.events_at("n1");
    let mut found = None;
    let before = look(cluster, rank).map_or(0, |(_, committed)| committed);
    eventually(SOON, "checkpoints are committed", || {
        found = look(cluster, rank).filter(|(_, committed)| *committed >= before + checkpoints);
        found.is_some()
    });
    let pid = found.expect("it was waited for").0;
    something();
    Process::open(pid).expect("a rank that runs").signal(Signal::KILL);
    events.expect("the rank to be live again", SOON, |event| {
        event.event == EventName::Live && event.rank.is_some_and(|r| r.0 == rank)
    });
}

fn finish(running: Running) -> Vec<String> {
    let finished = running.give(LIMIT).wait().expect(0);
    finished.stdout().lines().map(str::to_owned).collect()
}

/// Every way to print, and three deaths.
#[test]
fn what_is_printed_comes_once_and_in_order() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let program = compiled("net", "prints");
    let running = cluster.job(1, ON, &[&program, "6000", "1"]).limit(LIMIT).start();
    for _ in 0..3 {
        kill(&cluster, 0, 2);
    }
    let finished = running.give(LIMIT).wait().expect(0);
    let lines: Vec<String> = finished.stdout().lines().map(str::to_owned).collect();
    let due: Vec<String> = (0..6000).map(|at| format!("line {at}")).chain(["done".to_owned()]).collect();
    assert_eq!(lines.iter().zip(&due).position(|(line, due)| line != due), None);
    assert_eq!(lines.len(), due.len());
    let errors: Vec<_> = finished.stderr().lines().filter(|line| line.starts_with("error")).map(str::to_owned).collect();
    let due: Vec<_> = (9..6000)
        .step_by(10)
        .flat_map(|at| [format!("error {at}: No such file or directory"), format!("error again {at}")])
        .collect();
    assert_eq!(errors, due);
    cluster.assert_idle();
}

/// Standard error goes where standard output goes (`2>&1`), after a restart, too.
#[test]
fn what_is_printed_to_one_pipe_stays_together() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let program = format!("exec {} 4000 1 2>&1", compiled("net", "prints"));
    let running = cluster.job(1, ON, &["sh", "-c", &program]).limit(LIMIT).start();
    kill(&cluster, 0, 2);
    let finished = running.give(LIMIT).wait().expect(0);
    let of = |text: &str, what: &str| text.lines().filter(|line| line.starts_with(what)).count();
    let (out, err) = (finished.stdout(), finished.stderr());
    assert_eq!((of(&out, "line "), of(&out, "error "), of(&err, "error ")), (4000, 800, 0), "{finished}");
    cluster.assert_idle();
}

/// Threads that wake each other by an eventfd which an epoll watches beside a connection: a thread is not told of it before the other one has written.
#[test]
fn a_thread_is_woken_when_the_other_one_has_woken_it() {
    let cluster = Cluster::start(Kind::Logical, 4);
    let program = ["python3", &script("wakes.py"), &free_port(), "3000"];
    let mut running = cluster.job(2, ON, &program).limit(LIMIT).start();
    for asked in ["asked 0", "asked 1500"] {
        running.until_line(asked);
        kill(&cluster, 1, 1);
    }
    assert_eq!(finish(running).last().map(String::as_str), Some("OK wakes 3000"));
    cluster.assert_idle();
}

/// On the way back a thread does not look at the clock any more, because the lock is free for which it did: the file is gone. Nothing depends on what it saw. The process notices that no
/// thread of it can go on, and comes back by its log all the same.
#[test]
fn a_thread_that_reads_the_clock_less_often_comes_back() {
    let cluster = Cluster::start(Kind::Logical, 4);
    let lock = cluster.dir().join("lock");
    fs::write(&lock, "").expect("a file");
    let program = ["python3", &script("wakes.py"), &free_port(), "3000", &lock.display().to_string()];
    let mut running = cluster.job(2, "--protect on --ckpt-interval 0.5", &program).limit(LIMIT).start();
    running.until_line("asked 0");
    let mut events = cluster.events_at("n1");
    kill_after(&cluster, 1, 1, || fs::remove_file(&lock).expect("it was there"));
    assert!(events.wait(Duration::ZERO, |event| event.event == EventName::Restart).is_none(), "it has begun anew");
    assert_eq!(finish(running).last().map(String::as_str), Some("OK wakes 3000"));
    cluster.assert_idle();
}

/// The descriptors of a listener have one socket again: a call is taken at any of them.
#[test]
fn a_listener_with_three_descriptors_comes_back_as_one() {
    let cluster = Cluster::start(Kind::Logical, 4);
    let program = ["python3", &script("thrice.py"), &free_port(), "1500"];
    let mut running = cluster.job(2, ON, &program).limit(LIMIT).start();
    for counted in ["counted to 75", "counted to 750"] {
        running.until_line(counted);
        kill(&cluster, 1, 1);
    }
    assert_eq!(finish(running).last().map(String::as_str), Some("OK thrice 1500"));
    cluster.assert_idle();
}

/// A process that has made more checkpoints than one chain of increments may have.
#[test]
fn a_rank_comes_back_after_many_checkpoints() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let program = compiled("net", "prints");
    let running = cluster.job(1, "--protect on --ckpt-interval 0.02", &[&program, "12000", "1"]).limit(LIMIT).start();
    kill(&cluster, 0, 2 * LAYERS as u64 + 3);
    let lines = finish(running);
    let due: Vec<String> = (0..12000).map(|at| format!("line {at}")).chain(["done".to_owned()]).collect();
    assert!(lines == due, "{} lines", lines.len());
    cluster.assert_idle();
}

/// Where the processor's counter traps, it does so wherever the program is, in a process that was brought back, too; and a fault of the program is what it is without that.
#[test]
fn the_counter_traps_everywhere_and_faults_are_the_program_s() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let flags = "--protect on --ckpt-interval 0.3 --record-tsc --on-loss fail";
    let running = cluster.job(1, flags, &[&compiled("net", "traps"), "400"]).limit(LIMIT).start();
    kill(&cluster, 0, 2);
    assert_eq!(finish(running), ["OK traps"]);
    cluster.assert_idle();
}

/// A rank dies; the program sees nothing of it.
fn survives(name: &str, args: &[&str], ranks: usize, killed: &[u32]) {
    survives_with(&MPICH, "", &[&[name], args].concat(), ranks, killed);
}

/// The same with this library, and more flags.
fn survives_with(library: &Library, flags: &str, command: &[&str], ranks: usize, killed: &[u32]) {
    let cluster = Cluster::start(Kind::Logical, 4);
    let program = library.program(command[0]);
    let command = [&[program.as_str()], &command[1..]].concat();
    let due = finish(library.job(&cluster, ranks, "--protect none", &command).limit(LIMIT).start());
    let running = library.job(&cluster, ranks, &format!("{ON} {flags}"), &command).limit(LIMIT).start();
    for rank in killed {
        kill(&cluster, *rank, 1);
    }
    let lines = finish(running);
    assert_eq!(lines, due);
    cluster.assert_idle();
}

/// A benchmark that chooses its repeat counts by the clock.
#[test]
fn a_program_that_times_itself_survives_the_death_of_each_rank() {
    for library in sample(&LIBRARIES.each_ref(), 1, &mut Random::from_environment()) {
        survives_with(library, "--outbox 2M", &["selftimed", "--rounds", "30", "--ms", "50"], 2, &[0, 1, 0]);
    }
}

/// The same by the processor's counter, which no library sees.
#[test]
fn a_program_that_counts_ticks_survives_the_death_of_each_rank() {
    for library in sample(&LIBRARIES.each_ref(), 1, &mut Random::from_environment()) {
        let flags = "--outbox 2M --record-tsc --on-loss fail";
        survives_with(library, flags, &["ticks", "--rounds", "30", "--ms", "50"], 2, &[0, 1, 0]);
    }
}

#[test]
fn a_ring_survives_the_death_of_a_rank() {
    survives("ring", &["--laps", "1500"], 4, &[2, 0]);
}

#[test]
fn a_jacobi_survives_the_death_of_a_rank() {
    survives("jacobi", &["--iterations", "4000"], 4, &[1, 3]);
}

/// Two ranks of a program without MPI, and the folder by which they find each other.
fn pair(cluster: &Cluster, program: &str, folder: &str, flags: &str) -> (Running, PathBuf) {
    let dir = cluster.dir().join(folder);
    fs::create_dir(&dir).expect("a new directory");
    let command = [&compiled("net", program), "rank", dir.to_str().expect("text")];
    (cluster.job(2, flags, &command).limit(LIMIT).start(), dir)
}

fn all_numbers_come(cluster: &Cluster, job: Running) {
    let finished = job.wait().expect(0);
    assert_eq!(finished.stdout().matches("all numbers").count(), 2, "{finished}");
    cluster.assert_idle();
}

/// Sends that its peer refuses, and a direction that it does not read any more: a rank that is brought back is told of them what it was told.
#[test]
fn what_was_refused_is_refused_again() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let (job, _) = pair(&cluster, "net_refused", "refused", "--protect on --ckpt-interval 0.3");
    // Before its image knows of the refusals, after, and once more on the other side.
    for (rank, checkpoints) in [(1, 1), (1, 4), (0, 1)] {
        kill(&cluster, rank, checkpoints);
    }
    all_numbers_come(&cluster, job);
}

/// Calls that were refused because nobody listened yet are refused again in replay, though their peer listens by then: the log has the refusals.
#[test]
fn what_was_called_too_early_is_refused_again() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let (job, dir) = pair(&cluster, "net_early", "early", "--protect on --ckpt-interval 60 --on-loss fail");
    eventually(SOON, "the numbers have begun", || dir.join("early").exists());
    kill(&cluster, 1, 0);
    all_numbers_come(&cluster, job);
}

/// Calls to a listener whose backlog is full are under way when the caller dies, or the process that is called: its rank alone, before and after a checkpoint, or its node. All of them get
/// their connections.
#[test]
fn calls_that_are_under_way_survive_the_death_of_either_side() {
    for (rank, interval, checkpoints) in
        [(1, "60", Some(0)), (0, "60", Some(0)), (1, "0.3", Some(1)), (0, "0.3", Some(1)), (1, "60", None), (0, "60", None)]
    {
        let cluster = Cluster::start(Kind::Logical, 4);
        let dir = cluster.dir().join("calls");
        fs::create_dir(&dir).expect("a new directory");
        let command = [&compiled("net", "net_backlog"), "rank", dir.to_str().expect("text"), "dies"];
        let flags = format!("--nodes n2,n3 --protect on --ckpt-interval {interval} --on-loss fail");
        let job = cluster.job(2, &flags, &command).limit(LIMIT).start();
        eventually(SOON, "calls are under way", || dir.join("called").exists());
        match checkpoints {
            Some(checkpoints) => kill(&cluster, rank, checkpoints),
            None => kill_node_of(&cluster, rank),
        }
        fs::write(dir.join("go"), "").expect("a new file");
        let finished = job.wait().expect(0);
        assert_eq!(finished.stdout().matches("OK net_backlog").count(), 2, "{finished}");
        cluster.assert_idle();
        cluster.stop();
    }
}

/// Kills the node of a rank, of a job on n2 and n3, and waits for the rank.
fn kill_node_of(cluster: &Cluster, rank: u32) {
    let mut events = cluster.events_at("n1");
    cluster.radic(["inject", "kill-node", ["n2", "n3"][rank as usize]]).run().expect(0);
    events.expect("the rank to be live again", SOON, |event| {
        event.event == EventName::Live && event.rank.is_some_and(|r| r.0 == rank)
    });
}

/// A rank that goes by the clock, by what it has used and by lots, killed before its first checkpoint and after one: it is told the same again, and sends the same.
#[test]
fn a_program_that_goes_by_the_clock_and_by_lots_is_told_the_same_again() {
    let cluster = Cluster::start(Kind::Logical, 2);
    for (interval, checkpoints) in [("60", 0), ("0.3", 2)] {
        let flags = format!("--protect on --ckpt-interval {interval} --on-loss fail");
        let (job, dir) = pair(&cluster, "net_kernel", &format!("kernel-{checkpoints}"), &flags);
        eventually(SOON, "messages have been sent", || dir.join("sent").exists());
        kill(&cluster, 1, checkpoints);
        all_numbers_come(&cluster, job);
    }
}

/// A rank looks for what has come by FIONREAD, or MSG_PEEK, and a sleep alone, and decides by it. Its node dies before its first checkpoint, or it dies itself
/// after some: it goes on, and what it has said and printed of its decisions is the same. The node of its peer dies: it finds the peer again.
#[test]
fn a_program_that_only_looks_how_much_has_come_decides_the_same_again() {
    for (interval, payload, rank, checkpoints) in
        [("60", "sender", 1, None), ("60", "log", 1, None), ("0.3", "sender", 1, Some(2)), ("60", "sender", 0, None)]
    {
        let cluster = Cluster::start(Kind::Logical, 4);
        let flags = format!("--nodes n2,n3 --protect on --ckpt-interval {interval} --on-loss fail --payload {payload}");
        let (job, dir) = pair(&cluster, "net_unread", "unread", &flags);
        eventually(SOON, "messages have been sent", || dir.join("sent").exists());
        match checkpoints {
            Some(checkpoints) => kill(&cluster, rank, checkpoints),
            None => kill_node_of(&cluster, rank),
        }
        let finished = job.wait().expect(0);
        let of = |side: &str| {
            finished.stdout().lines().filter_map(|line| line.strip_prefix(side)).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(of("client"), of("server"), "{finished}");
        assert!(of("client").len() > 300, "{finished}");
        cluster.assert_idle();
        cluster.stop();
    }
}

/// In its second incarnation a rank waits for something that never comes, while its log has more for it. It is given up in time, and the job
/// restarts from its beginning, or ends with a reason.
#[test]
fn a_rank_that_does_not_catch_up_is_given_up() {
    const REPLAY_LIMIT: &str = "--replay-limit=3";
    let mut cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    ["n1", "n2", "n3"].iter().for_each(|node| cluster.start_node(node, &[REPLAY_LIMIT]));
    let program = compiled("net", "net_stuck");
    for (on_loss, payload) in [("restart", "log"), ("fail", "log"), ("restart", "sender")] {
        let dir = cluster.dir().join(format!("{on_loss}-{payload}"));
        fs::create_dir(&dir).expect("a new directory");
        let mut events = cluster.events_at("n1");
        let flags = format!("--nodes n1,n2 --protect on --ckpt-interval 1.5 --on-loss {on_loss} --payload {payload}");
        let job = cluster.job(2, &flags, &[&program, "rank", dir.to_str().expect("text")]).limit(LIMIT).start();
        // Its nodes also tell of the job before.
        let place = dir.display().to_string();
        let id = events.expect("the job's start", SOON, |e| e.event == EventName::JobStart && e.text.contains(&place)).job;
        let mut of_rank_1 =
            |what: &str, event: EventName| events.expect(what, SOON, |e| (e.event, e.job, e.rank) == (event, id, Some(Rank(1))));
        of_rank_1("a checkpoint of rank 1", EventName::Checkpoint);
        // Its first rank has begun: it takes away what a job before has left.
        eventually(SOON, "the server listens", || dir.join("ports").exists());
        fs::write(dir.join("go"), "").expect("a new file");
        of_rank_1("rank 1 to catch up", EventName::Replay);
        let lost = of_rank_1("rank 1 to be given up", EventName::Lost);
        assert!(lost.text.contains("rank 1: it does not catch up: it stands at "), "{}", lost.text);
        assert!(lost.text.contains("the limit is 3.0 s"), "{}", lost.text);
        let finished = job.wait();
        match on_loss {
            "restart" => {
                let finished = finished.expect(0);
                assert_eq!(finished.stdout().matches("all numbers").count(), 2, "{finished}");
            }
            _ => _ = finished.expect(113).expect_stderr(&["rank 1", "does not catch up", "--on-loss fail"]),
        }
        cluster.assert_idle();
    }
    cluster.stop();
}

/// All ranks have come to their ends and were let go, and what is left of a program runs: destructors are through. That rank is
/// killed, and its job ends as the programs have said. What the program does itself then is its end.
#[test]
fn a_rank_that_is_killed_at_its_very_end_counts_with_what_it_said() {
    for (said, what, code) in [("0", "wait", 0), ("3", "wait", 3), ("0", "fault", 139), ("0", "exit", 5)] {
        let cluster = Cluster::start(Kind::Logical, 2);
        let mut events = cluster.events_at("n1");
        let (folder, late) = (cluster.dir().display().to_string(), cluster.dir().join("late"));
        let program = [&MPICH.program("ends"), &folder, "0", said, what];
        let job = MPICH.job(&cluster, 2, "--protect on --ckpt-interval never", &program).limit(LIMIT).start();
        eventually(SOON, "rank 0 is at its end", || late.exists());
        if what == "wait" {
            let is_other = |event: &Event| event.event == EventName::RankExit && event.rank == Some(Rank(1));
            events.expect("the other rank to exit", SOON, is_other);
            let pid = fs::read_to_string(&late).expect("it is there").trim().parse().expect("a number");
            Process::open(pid).expect("a rank that waits").signal(Signal::KILL);
        }
        job.wait().expect(code);
        let is_back = |event: &Event| event.event == EventName::Restart || event.event == EventName::Live;
        assert!(events.wait(Duration::ZERO, is_back).is_none(), "{what}: it has come back");
        cluster.assert_idle();
        cluster.stop();
    }
}
