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

/// A batch system, its variables, of which `FILE` names the file, and the file.
type Job = (&'static str, &'static [(&'static str, &'static str)], &'static str);

/// What each batch system says of a job. All name the same nodes.
const JOBS: [Job; 4] = [
    ("pbs", &[("PBS_JOBID", "7.s"), ("PBS_NODEFILE", "FILE")], "127.0.0.2\n127.0.0.2\n127.0.0.3\n127.0.0.4\n"),
    (
        "gridengine",
        &[("JOB_ID", "7"), ("PE_HOSTFILE", "FILE")],
        "127.0.0.2 2 all.q@a UNDEFINED\n127.0.0.3 1 all.q@b <NULL>\n127.0.0.4 1 all.q@c UNDEFINED\n",
    ),
    ("lsf", &[("LSB_JOBID", "7"), ("LSB_DJOB_HOSTFILE", "FILE")], "127.0.0.2\n127.0.0.2\n127.0.0.3\n127.0.0.4\n"),
    ("lsf", &[("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "127.0.0.2 2 127.0.0.3 1 127.0.0.4 1")], ""),
];

/// A remote shell that runs everything here.
fn shell(cluster: &Cluster) -> PathBuf {
    let path = cluster.dir().join("shell");
    fs::write(&path, "#!/bin/sh\nshift\nexec sh -c \"$1\"\n").expect("a new file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("a file of ours");
    path
}

/// A command in a job. A test may run in one itself.
fn within(invocation: Invocation, variables: &[(&str, &str)], file: &str) -> Invocation {
    let all = JOBS.iter().flat_map(|(_, variables, _)| variables.iter().map(|(name, _)| *name));
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
        let shown = radic(&["run", "-n", "2", "--protect", "none", "--mpi", "mpich", "--", "env"]).run().expect(0).stdout();
        let job = variables[0].0;
        assert_eq!(shown.lines().filter(|line| line.starts_with(&format!("{job}="))).count(), 2, "{system}: {shown}");
        assert!(!shown.contains(&file), "{system}: {shown}");
        radic(&["cluster", "stop"]).run().expect(0);
        process::wait_none(cluster.dir(), &[], Duration::from_secs(5)).expect("nothing of it runs any more");
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
