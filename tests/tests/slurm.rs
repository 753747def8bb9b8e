//! Clusters in an allocation of a real Slurm, of five nodes on this machine.
#![forbid(unsafe_code)]

use std::fs;
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind, program};
use radic_tests::library::MPICH;
use radic_tests::process;
use radic_tests::slurm::{self, Slurm};
use radic_wire::event::EventName;

const SOON: Duration = Duration::from_secs(30);
/// Time for one piece of a job.
const LONG: Duration = Duration::from_secs(120);

/// A cluster's folder and a Slurm; none if this machine has none. Why is printed.
fn setup() -> Option<(Cluster, Slurm)> {
    if let Some(why) = slurm::missing() {
        println!("SKIPPED: {why}");
        return None;
    }
    let cluster = Cluster::empty(Kind::Logical);
    let slurm = Slurm::start(&cluster, 5);
    Some((cluster, slurm))
}

#[test]
fn an_allocation_becomes_a_cluster_and_ranks_see_nothing_of_its_steps() {
    let Some((cluster, slurm)) = setup() else { return };
    let script = "set -e\nradic cluster start --slurm --spares 1 --witness\necho folder $RADIC_CLUSTER\n\
        radic run --mpi mpich --protect none -- sh -c 'env | grep ^SLURM | sed s/^/RANK-/'\n\
        radic run -N 2 --ntasks-per-node 3 --protect none -- sh -c 'echo on $RADIC_NODE'\n\
        SLURM_NTASKS=1 radic run --protect none -- sh -c 'echo alone $SLURM_JOB_ID'\n\
        radic nodes\nradic cluster stop\necho over\n";
    let job = slurm.submit(&cluster, "--no-kill", &["-N5", "--ntasks-per-node=2"], script);
    let said = slurm.until(&job, "over\n", SOON);
    println!("{said}");
    assert!(said.contains("cluster of 3 nodes and 1 spare and 1 witness"), "{said}");
    for (node, role) in [("v1", ""), ("v2", ""), ("v3", ""), ("v4", ", a spare"), ("v5", ", the witness")] {
        let lines = said.lines().filter(|line| line.starts_with(&format!("radic: {node}: started at 127.0.0.1:")));
        assert!(lines.filter(|line| line.ends_with(role)).count() == 1, "{node}: {said}");
    }
    assert!(!said.contains("no --no-kill"), "{said}");
    let of_ranks = |name: &str| said.lines().filter(|line| line.starts_with(&format!("RANK-{name}="))).count();
    assert_eq!(of_ranks("SLURM_JOB_ID"), 10, "as many ranks as tasks: {said}");
    for name in [
        "SLURMD_NODENAME",
        "SLURM_TASK_PID",
        "SLURM_TOPOLOGY_ADDR",
        "SLURM_TOPOLOGY_ADDR_PATTERN",
        "SLURM_PROCID",
        "SLURM_NODEID",
    ] {
        assert_eq!(of_ranks(name), 0, "{name}: {said}");
    }
    for node in ["v1", "v2", "v3"] {
        assert!([0, 3].contains(&said.matches(&format!("on {node}\n")).count()), "{said}");
    }
    assert_eq!(said.matches("on v").count(), 6, "{said}");
    assert_eq!(said.matches(&format!("alone {job}\n")).count(), 1, "{said}");
    // Slots are the tasks of the node, of which there are two.
    let slots = said.lines().filter(|line| line.starts_with('v') && line.contains("alive"));
    let slots: Vec<&str> = slots.filter_map(|line| line.split("127.0.0.1:").nth(1)?.split_whitespace().nth(1)).collect();
    assert_eq!(slots, ["2"; 5], "{said}");
    assert!(said.contains("5 daemons have ended"), "{said}");
}

#[test]
fn what_is_missing_in_the_allocation_is_said() {
    let Some((cluster, slurm)) = setup() else { return };
    let script = "radic cluster start --slurm --spares 2; echo code $?\nradic cluster start --slurm --json; radic cluster stop\n\
        unset SLURM_JOB_ID; radic cluster start --slurm; radic run true\necho over\n";
    let job = slurm.submit(&cluster, "", &["-N2"], script);
    let said = slurm.until(&job, "over\n", SOON);
    for part in [
        "of 2 hosts 2 are to be spares",
        "code 125",
        "shows no --no-kill",
        "queues the job again",
        "no majority is left",
        "\"failed\": []",
        "2 daemons have ended",
        "no allocation: run this in a script of sbatch",
    ] {
        assert!(said.contains(part), "{part:?} is missing in:\n{said}");
    }
}

#[test]
fn an_allocation_without_a_script_is_used_from_outside() {
    let Some((cluster, slurm)) = setup() else { return };
    slurm.command(&cluster, "salloc", &["--no-shell", "--no-kill", "-N3"]).run().expect(0);
    let radic = program("radic").display().to_string();
    let inside = |args: &[&str]| slurm.command(&cluster, &radic, args).env("SLURM_JOB_ID", "1");
    inside(&["cluster", "start", "--slurm", "--when-over", "true"])
        .run()
        .expect(125)
        .expect_stderr(&["--when-over", "no node of the job"]);
    let started = inside(&["cluster", "start", "--slurm"]).run().expect(0);
    assert!(started.stdout().contains("cluster of 3 nodes"), "{started}");
    assert_eq!(inside(&["run", "-n", "3", "--", "sh", "-c", "echo $RADIC_NODE"]).run().expect(0).stdout().lines().count(), 3);
    // What ends a node from a host that is none of the cluster's.
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(cluster.dir().join("hosts.json")).expect("a record")).expect("JSON");
    let shell: Vec<&str> = record["shell"].as_array().expect("words").iter().filter_map(serde_json::Value::as_str).collect();
    let there = slurm.command(&cluster, shell[0], &shell[1..]).args(["v2", "echo on $SLURMD_NODENAME"]).run().expect(0);
    assert_eq!(there.stdout(), "on v2\n");
    inside(&["cluster", "stop"]).run().expect(0);
    assert!(!cluster.dir().join("hosts.json").exists());
    slurm.command(&cluster, "scancel", &["1"]).run().expect(0);
}

/// The script is lost with its node, and the program fails after that: Slurm shows the job as it would if the script had ended with that code.
#[test]
fn a_program_that_outlives_its_script_and_fails_fails_the_job_with_its_code() {
    let Some((cluster, mut slurm)) = setup() else { return };
    let goal = cluster.dir().join("goal");
    let script = format!(
        "radic cluster start --slurm && radic run -n 2 --nodes v2,v3 --protect none -- \
         sh -c 'echo runs; while [ ! -e {} ]; do sleep 0.05; done; exit 3'\n",
        goal.display()
    );
    let job = slurm.submit(&cluster, "--no-kill", &["-N5"], &script);
    slurm.until(&job, "runs\n", SOON);
    let mut events = cluster.events_at("v2");
    slurm.kill(&cluster, "v1");
    events.expect("the loss to be known", SOON, |event| event.event == EventName::Confirm);
    assert_eq!(slurm.state(&cluster, &job), "RUNNING", "the program runs still");
    fs::write(&goal, "").unwrap();
    let is_over = || !["RUNNING", "COMPLETING"].contains(&&*slurm.state(&cluster, &job));
    process::eventually(SOON, "the job to end", is_over);
    assert_eq!((&*slurm.state(&cluster, &job), slurm.field(&cluster, &job, "ExitCode").as_deref()), ("FAILED", Some("3:0")));
}

/// What a job has come to that no node knows is not told as a success.
#[test]
fn a_script_that_is_lost_with_no_program_cancels_the_job_and_a_node_s_log_says_why() {
    let Some((cluster, mut slurm)) = setup() else { return };
    let script = "radic cluster start --slurm && echo started && sleep 60\n";
    let job = slurm.submit(&cluster, "--no-kill", &["-N3"], script);
    slurm.until(&job, "started\n", SOON);
    slurm.kill(&cluster, "v1");
    process::eventually(SOON, "the job to be cancelled", || slurm.state(&cluster, &job) == "CANCELLED");
    let log = |node: &str| fs::read_to_string(cluster.dir().join("nodes").join(node).join("log")).unwrap();
    let logs = ["v2", "v3"].map(log).concat();
    assert!(logs.contains("v1 is lost and no job runs any more: "), "{logs}");
    assert!(
        logs.contains(&format!("job {job} cannot be ended with the code of its program, so it is cancelled: the code is not")),
        "{logs}"
    );
}

/// The script of packaging/slurm, as a user would submit it. The end of the time is not waited for: the signal that Slurm would send before it is sent.
#[test]
fn a_job_in_three_pieces_of_a_batch_system() {
    let Some((cluster, slurm)) = setup() else { return };
    let program = MPICH.program("jacobi");
    let command = [&*program, "--size", "800", "--iterations", "600", "--progress", "2", "--alone", "0"];
    cluster.radic(["cluster", "start", "--nodes", "3"]).run().expect(0);
    let due = MPICH.job(&cluster, 4, "--protect none", &command).limit(LONG).run().expect(0).stdout();
    cluster.radic(["cluster", "stop"]).run().expect(0);
    let home = cluster.dir().join("home");
    fs::create_dir(&home).unwrap();
    let job = slurm.submit_file(&cluster, "packaging/slurm/chained.sh", &home, &["--time=30"], &command);
    let wait = |goal: &str, is_there: &dyn Fn() -> bool| {
        let deadline = Instant::now() + LONG;
        while !is_there() {
            assert!(
                Instant::now() < deadline && slurm.state(&cluster, &job) != "FAILED",
                "waited for {goal}, and job {job} is {} and has said:\n{}\n--- slurmctld\n{}",
                slurm.state(&cluster, &job),
                slurm.said(&job),
                slurm.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    for piece in 0..2 {
        let before = slurm.said(&job).matches("iteration").count();
        wait("the piece to get on", &|| slurm.said(&job).matches("iteration").count() > before + 5);
        slurm.command(&cluster, "scancel", &["--batch", "--signal=USR1", &job]).run().expect(0);
        wait("the job to be suspended", &|| slurm.said(&job).matches("is suspended (").count() == piece + 1);
        wait("the job to be queued again", &|| slurm.state(&cluster, &job) == "PENDING");
        // It would wait for two minutes. In the second of its end slurmd would refuse it, as revoked: the end has no finer time.
        let pending = Instant::now();
        wait("another second", &|| pending.elapsed() > Duration::from_secs(2));
        slurm.command(&cluster, "scontrol", &["update", &format!("jobid={job}"), "StartTime=now"]).run().expect(0);
    }
    wait("the script to have ended well", &|| slurm.state(&cluster, &job) == "COMPLETED");
    let said = slurm.said(&job);
    let lines = |text: &str| {
        text.lines().filter(|line| due.lines().any(|due| due == *line)).map(|line| format!("{line}\n")).collect::<String>()
    };
    assert_eq!(lines(&said), due, "{said}");
    assert_eq!(said.matches("goes on from").count(), 2, "{said}");
    assert!(!home.join(format!("radic-{job}")).exists(), "the folder goes with the job");
}
