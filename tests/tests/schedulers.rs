//! Clusters in jobs of PBS, Grid Engine and LSF, as far as that can be seen without one: the variables and files that they make, and a remote shell that
//! stays on this machine.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::command::Invocation;
use radic_tests::process;
use radic_wire::event::EventName;

/// Time for what takes far less.
const SOON: Duration = Duration::from_secs(30);

/// A batch system, its variables, of which `FILE` names the file, and the file. Each has asked for four ranks.
type Job = (&'static str, &'static [(&'static str, &'static str)], &'static str);

/// What each batch system says of a job. All name the same nodes.
const JOBS: [Job; 4] = [
    ("pbs", &[("PBS_JOBID", "7.s"), ("PBS_NODEFILE", "FILE")], "127.0.0.2\n127.0.0.2\n127.0.0.3\n127.0.0.4\n"),
    (
        "gridengine",
        &[("JOB_ID", "7"), ("PE_HOSTFILE", "FILE"), ("NSLOTS", "4")],
        "127.0.0.2 2 all.q@a UNDEFINED\n127.0.0.3 1 all.q@b <NULL>\n127.0.0.4 1 all.q@c UNDEFINED\n",
    ),
    (
        "lsf",
        &[("LSB_JOBID", "7"), ("LSB_DJOB_HOSTFILE", "FILE"), ("LSB_DJOB_NUMPROC", "4")],
        "127.0.0.2\n127.0.0.2\n127.0.0.3\n127.0.0.4\n",
    ),
    ("lsf", &[("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "127.0.0.2 2 127.0.0.3 1 127.0.0.4 1"), ("LSB_DJOB_NUMPROC", "4")], ""),
];

/// A script for a shell, in the cluster's folder.
fn command(cluster: &Cluster, name: &str, script: &str) -> PathBuf {
    let path = cluster.dir().join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a new file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("a file of ours");
    path
}

/// A remote shell that runs everything here.
fn shell(cluster: &Cluster) -> PathBuf {
    command(cluster, "shell", "shift\nexec sh -c \"$1\"")
}

/// A command in a job. A test may run in one itself.
fn within(invocation: Invocation, variables: &[(&str, &str)], file: &str) -> Invocation {
    let all = JOBS.iter().flat_map(|(_, variables, _)| variables.iter().map(|(name, _)| *name)).chain(["SLURM_NTASKS"]);
    let clean = all.fold(invocation, |invocation, name| invocation.env_remove(name));
    variables.iter().fold(clean, |invocation, (name, value)| invocation.env(name, value.replace("FILE", file)))
}

#[test]
fn a_job_s_nodes_become_a_cluster_and_ranks_see_nothing_of_the_script_s_node() {
    for (system, variables, contents) in JOBS {
        let cluster = Cluster::empty(Kind::Logical);
        let file = cluster.dir().join("nodefile").display().to_string();
        fs::write(&file, contents).expect("a new file");
        let radic = |args: &[&str]| within(cluster.radic(args), variables, &file);
        let shell = shell(&cluster).display().to_string();
        let started = radic(&["cluster", "start", "--scheduler", system, "--rsh", &shell, "--spares", "1"]).run().expect(0);
        assert!(started.stdout().contains("cluster of 2 nodes and 1 spare"), "{system}: {started}");
        let slots: Vec<_> = cluster.status().nodes.into_iter().map(|node| (node.name.to_string(), node.slots)).collect();
        for expected in [("127.0.0.2", 2), ("127.0.0.3", 1), ("127.0.0.4", 1)] {
            assert!(slots.contains(&(expected.0.to_owned(), expected.1)), "{system}: {slots:?}");
        }
        let shown = radic(&["run", "--protect", "none", "--mpi", "mpich", "--", "env"]).run().expect(0).stdout();
        let job = variables[0].0;
        assert_eq!(shown.lines().filter(|line| line.starts_with(&format!("{job}="))).count(), 4, "{system}: {shown}");
        assert!(!shown.contains(&file), "{system}: {shown}");
        radic(&["cluster", "stop"]).run().expect(0);
        process::wait_none(cluster.dir(), &[], Duration::from_secs(5)).expect("nothing of it runs any more");
    }
}

/// What cancels a job notes what it is told, and the exit code of the program. The host of the script must be one of the list: the others are only names here, and all nodes have one address.
#[test]
fn when_the_script_s_node_is_lost_the_job_of_the_batch_system_ends_with_the_program() {
    for ((system, variables, _), cancelled) in JOBS.iter().zip(["qdel 7.s code 3", "qdel 7 code 3", "bkill 7 code 3"]) {
        let cluster = Cluster::empty(Kind::Logical);
        let (file, noted, goal) = (cluster.dir().join("nodefile"), cluster.dir().join("noted"), cluster.dir().join("goal"));
        let here = nix::unistd::gethostname().expect("this host has a name").to_string_lossy().into_owned();
        let words = if *system == "gridengine" { " 1 all.q UNDEFINED" } else { "" };
        fs::write(&file, [&*here, "n2", "n3", "n4"].map(|host| format!("{host}{words}\n")).concat()).expect("a new file");
        for name in ["qdel", "bkill"] {
            command(&cluster, name, &format!("echo {name} \"$@\" code $RADIC_EXIT_CODE >>{}", noted.display()));
        }
        let path = format!("{}:{}", cluster.dir().display(), std::env::var("PATH").unwrap_or_default());
        let file = file.display().to_string();
        let radic = |args: &[&str]| within(cluster.radic(args), variables, &file).env("PATH", &path);
        let shell = shell(&cluster).display().to_string();
        let start = ["cluster", "start", "--scheduler", system, "--rsh", &shell, "--control-network", "127.0.0.0/8"];
        radic(&start).run().expect(0);
        let script = format!("while [ ! -e {} ]; do sleep 0.05; done; exit 3", goal.display());
        let job = radic(&["run", "--nodes", "n2,n3", "--protect", "none", "--", "sh", "-c", &script]).start();
        process::eventually(SOON, "the job to run", || cluster.status().jobs.iter().any(|job| job.outcome.is_none()));
        let mut events = cluster.events_at("n2");
        let first = cluster.status().nodes[0].name.to_string();
        cluster.kill(&first);
        events.expect("the loss to be known", SOON, |event| event.event == EventName::Confirm);
        assert!(!noted.exists(), "{system}: a program runs still");
        fs::write(&goal, "").expect("a new file");
        process::eventually(SOON, "the job to be cancelled", || {
            fs::read_to_string(&noted).is_ok_and(|text| text.ends_with('\n'))
        });
        assert_eq!(fs::read_to_string(&noted).expect("it is there").trim_end(), cancelled, "{system}");
        drop(job);
        // The command ends no node: they end themselves.
        process::wait_none(cluster.dir(), &[], SOON).expect("nothing of it runs any more");
    }
}

#[test]
fn outside_of_a_job_the_error_says_what_is_missing() {
    let cluster = Cluster::empty(Kind::Logical);
    for (system, parts) in [
        ("pbs", ["PBS_JOBID is not set", "qsub"]),
        ("gridengine", ["JOB_ID is not set", "qsub -pe"]),
        ("lsf", ["LSB_JOBID is not set", "bsub"]),
    ] {
        let start = within(cluster.radic(["cluster", "start", "--scheduler", system]), &[], "");
        start.run().expect(125).expect_stderr(&parts);
    }
    let unknown = cluster.radic(["cluster", "start", "--scheduler", "moab"]).run().expect(2);
    assert!(unknown.stderr().contains("gridengine"), "{unknown}");
}
