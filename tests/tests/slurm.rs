//! Clusters in an allocation of a real Slurm, of five nodes on this machine.
#![forbid(unsafe_code)]

use std::fs;
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind, program};
use radic_tests::library::{Library, MPICH};
use radic_tests::process;
use radic_tests::random::Random;
use radic_tests::recovery::any_library;
use radic_tests::slurm::{self, Slurm};
use radic_wire::event::{Event, EventName};
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(30);
/// Time for Slurm to end a job after its script.
const ENDED: Duration = Duration::from_secs(5);
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

fn jacobi(library: &Library) -> String {
    format!("{} --size 400 --iterations 3000 --progress 100 --alone 0", library.program("jacobi"))
}

/// Waits for an event about rank 1 at a node, after the script has started its cluster.
fn expect_rank1(cluster: &Cluster, node: &str, name: EventName) {
    let rank1 = |event: &Event| event.event == name && event.rank.is_some_and(|rank| rank.0 == 1);
    cluster.events_at(node).expect(name.as_str(), SOON, rank1);
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
    assert!(said.contains("5 protectors have ended"), "{said}");
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
        "2 protectors have ended",
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
        .expect_stderr(&["--when-over", "no node of job 1"]);
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

/// How often each death is tried: `RADIC_REPEAT`, else once. Each time the library is another one, perhaps.
fn repeats() -> usize {
    std::env::var("RADIC_REPEAT").ok().and_then(|count| count.parse().ok()).unwrap_or(1)
}

/// What dies while the job runs.
#[derive(Debug, Clone, Copy)]
enum Dies {
    /// A node with ranks: all that is in it.
    Node,
    /// The protector of such a node.
    Daemon,
    /// The srun that has started all nodes.
    Srun,
}

/// The job goes on, the script comes to its end, and Slurm ends the allocation then.
fn goes_on(library: &Library, dies: Dies) {
    let Some((cluster, mut slurm)) = setup() else { return };
    let what = format!("{}: {dies:?}", library.name);
    let path = library.library_path().map_or_else(String::new, |path| format!("export LD_LIBRARY_PATH={}\n", path.display()));
    let script = format!(
        "{path}radic cluster start --slurm --spares 1 && echo started\nradic run -n 4 --ckpt-interval 0.5 -- {}\necho code $?\n\
         radic cluster stop\necho over\n",
        jacobi(library)
    );
    let job = slurm.submit(&cluster, "--no-kill", &["-N5"], &script);
    slurm.until(&job, "started\n", SOON);
    process::eventually(SOON, "the job to run", || cluster.status().jobs.iter().any(|job| job.outcome.is_none()));
    expect_rank1(&cluster, "v1", EventName::Checkpoint);
    let placed = cluster.status();
    let victim =
        placed.nodes.iter().find(|node| !node.ranks.is_empty() && node.name.as_str() != "v1").expect("a node with ranks");
    match dies {
        Dies::Node => slurm.kill(&cluster, victim.name.as_str()),
        Dies::Daemon => cluster.kill(victim.name.as_str()),
        Dies::Srun => {
            // Alone: what would end the step after it is not there any more.
            let marked = process::marked(cluster.dir());
            let sruns = marked.iter().filter(|process| process::command_line(process.pid()).contains("srun --job-name=radic"));
            assert_eq!(sruns.map(|srun| srun.signal(Signal::KILL)).count(), 1, "{what}: there is an srun, and no child of it");
        }
    }
    let said = slurm.until(&job, "over\n", LONG);
    let over = Instant::now();
    assert!(said.contains("code 0\n") && said.contains("iteration 3000"), "{what}: {said}");
    // Not killed, nor queued again.
    process::eventually(ENDED, "the script to have ended well", || slurm.state(&cluster, &job).starts_with("COMPLET"));
    println!("{what}: the allocation has ended {:?} after the script", over.elapsed());
}

fn again_and_again(dies: Dies) {
    let mut random = Random::from_environment();
    (0..repeats()).for_each(|_| goes_on(any_library(&mut random), dies));
}

#[test]
fn a_node_is_lost_and_the_script_goes_on() {
    again_and_again(Dies::Node);
}

#[test]
fn a_protector_is_killed_and_the_script_goes_on() {
    again_and_again(Dies::Daemon);
}

#[test]
fn the_srun_of_the_nodes_is_killed_and_the_script_goes_on() {
    again_and_again(Dies::Srun);
}

#[test]
fn the_script_s_node_is_lost_and_the_allocation_ends_with_the_job() {
    let Some((cluster, mut slurm)) = setup() else { return };
    let script = format!(
        "radic cluster start --slurm --spares 1 && echo started\nradic run -n 4 --ckpt-interval 0.5 -- {}\necho never\n",
        jacobi(&MPICH)
    );
    let job = slurm.submit(&cluster, "--no-kill", &["-N5"], &script);
    slurm.until(&job, "started\n", SOON);
    process::eventually(SOON, "the job to run", || cluster.status().jobs.iter().any(|job| job.outcome.is_none()));
    expect_rank1(&cluster, "v1", EventName::Checkpoint);
    let id = cluster.status().jobs[0].job.to_string();
    slurm.kill(&cluster, "v1");
    assert_eq!(slurm.state(&cluster, &job), "RUNNING", "the allocation stays");
    // Until another node has taken the place of its home it may be that no node knows of it.
    process::eventually(SOON, "the job to go on", || cluster.status_at("v2").jobs.iter().any(|job| job.outcome.is_none()));
    let shown = cluster.radic(["attach", &id]).limit(SOON).run().expect(0);
    assert!(shown.stdout().contains("iteration 3000"), "{shown}");
    let over = Instant::now();
    let mut states: Vec<(String, Duration)> = Vec::new();
    process::eventually(SOON, "the allocation to end", || {
        let state = slurm.state(&cluster, &job);
        if states.last().is_none_or(|(last, _)| *last != state) {
            states.push((state.clone(), over.elapsed()));
        }
        state.starts_with("CANCELLED")
    });
    println!("the allocation's states after the job's end: {states:?}");
    // Its nodes are told to end; that they have ended is the last state.
    assert!(states.iter().any(|(state, at)| state != "RUNNING" && *at < ENDED), "{states:?}");
    assert!(!slurm.said(&job).contains("never"), "{}", slurm.said(&job));
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
