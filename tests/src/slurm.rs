//! A real Slurm of several nodes on this machine: its daemons as ordinary processes of this user, with everything in a test's folder.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::{Cluster, program};
use crate::command::{Finished, Invocation, Running};
use crate::leftovers;
use crate::process::{self, Process};

const DAEMONS: [&str; 3] = ["/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd"];
/// Time for anything that Slurm does by itself.
const SOON: Duration = Duration::from_secs(30);

/// Why there can be no Slurm here. Where scripts/deps.sh was asked for everything (RADIC_DEPS), that is a failure.
pub fn missing() -> Option<String> {
    let all = DAEMONS.iter().all(|path| Path::new(path).is_file()) && Path::new("/usr/bin/srun").is_file();
    assert!(
        all || std::env::var_os("RADIC_DEPS").is_none(),
        "RADIC_DEPS is set, and scripts/deps.sh has not installed what this test needs"
    );
    (!all).then(|| {
        "there is no Slurm: `apt-get install slurmctld slurmd slurm-client munge`, or RADIC_DEPS=all scripts/deps.sh".to_owned()
    })
}

/// A Slurm that runs. Its nodes are called v1, v2, ... It ends when it is dropped; so it must be dropped before its cluster.
#[derive(Debug)]
pub struct Slurm {
    folder: PathBuf,
    /// How many nodes there are, dead ones among them.
    count: usize,
    /// Those that live.
    nodes: Vec<(String, Running)>,
    _controller: Running,
    _munged: Running,
}

impl Slurm {
    /// Starts it, and waits until all nodes are idle.
    pub fn start(cluster: &Cluster, nodes: usize) -> Slurm {
        let folder = cluster.dir().join("slurm");
        fs::create_dir_all(folder.join("state")).expect("a new folder");
        let at = |name: &str| folder.join(name).display().to_string();
        fs::write(folder.join("munge.key"), [7; 64]).expect("a new file");
        fs::set_permissions(folder.join("munge.key"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .expect("a file of ours");
        // Held until all are known, so that they differ.
        let free: Vec<_> = (0..=nodes).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port")).collect();
        let ports: Vec<u16> = free.iter().map(|free| free.local_addr().expect("it is bound").port()).collect();
        drop(free);
        fs::write(folder.join("slurm.conf"), configuration(&folder, &ports)).expect("a new file");
        // What it finds too open is a folder that only this user can enter.
        let options = [
            "--foreground".to_owned(),
            "--force".to_owned(),
            format!("--key-file={}", at("munge.key")),
            format!("--socket={}", at("munge")),
            format!("--pid-file={}", at("munge.pid")),
            format!("--log-file={}", at("munge.log")),
            format!("--seed-file={}", at("munge.seed")),
        ];
        let munged = daemon(cluster, &folder, DAEMONS[0], &options);
        process::eventually(SOON, "munged", || folder.join("munge").exists());
        let controller = daemon(cluster, &folder, DAEMONS[1], &["-D".to_owned()]);
        let mut slurm =
            Slurm { count: nodes, nodes: Vec::new(), folder: folder.clone(), _controller: controller, _munged: munged };
        (1..=nodes).for_each(|number| slurm.start_node(cluster, &format!("v{number}")));
        slurm.wait_idle(cluster);
        slurm
    }

    fn start_node(&mut self, cluster: &Cluster, name: &str) {
        let slurmd = daemon(cluster, &self.folder, DAEMONS[2], &["-D", "-N", name].map(str::to_owned));
        self.nodes.push((name.to_owned(), slurmd));
    }

    /// Waits until all nodes are idle.
    ///
    /// # Panics
    /// If they are not in time.
    pub fn wait_idle(&self, cluster: &Cluster) {
        let states = || self.command(cluster, "sinfo", &["-h", "-N", "-o", "%T"]).run().stdout();
        let idle = || states().lines().filter(|state| *state == "idle").count();
        process::eventually(SOON, "all nodes to be idle", || idle() == self.count);
    }

    /// Nodes that were killed come back, as after a repair that has lost their disks. It ends when all nodes are idle.
    ///
    /// # Panics
    /// If Slurm does not take them.
    pub fn revive(&mut self, cluster: &Cluster) {
        for name in (1..=self.count).map(|number| format!("v{number}")) {
            if self.nodes.iter().any(|(living, _)| *living == name) {
                continue;
            }
            _ = fs::remove_dir_all(self.folder.join(format!("spool.{name}")));
            self.start_node(cluster, &name);
            // Refused where the node has registered, and is idle by that.
            let node = format!("nodename={name}");
            self.command(cluster, "scontrol", &["update", &node, "state=resume"]).run();
        }
        self.wait_idle(cluster);
    }

    /// A command of Slurm.
    pub fn command(&self, cluster: &Cluster, program: &str, args: &[&str]) -> Invocation {
        invocation(cluster, &self.folder, program).args(args)
    }

    /// Submits a script, with options that stand in it and others that do not. The result is its job's number.
    pub fn submit(&self, cluster: &Cluster, directives: &str, options: &[&str], script: &str) -> String {
        let radic = program("radic");
        let path = radic.parent().expect("it is in a folder").display().to_string();
        let text = format!(
            "#!/bin/sh\n#SBATCH --output={} {directives}\nPATH={path}:$PATH\n{script}",
            self.folder.join("out.%j").display()
        );
        let sbatch = self.command(cluster, "sbatch", &["--parsable"]).args(options).stdin(text).run().expect(0);
        sbatch.stdout().trim().to_owned()
    }

    /// Submits a script of the repository with arguments, in a folder that is also its home and has its temporary files. Options win over those in the script. The
    /// result is its job's number.
    pub fn submit_file(&self, cluster: &Cluster, script: &str, home: &Path, options: &[&str], arguments: &[&str]) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository").join(script);
        let radic = program("radic");
        let folder = radic.parent().expect("it is in a folder").display().to_string();
        let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
        let output = format!("--output={}", self.folder.join("out.%j").display());
        let sbatch = self.command(cluster, "sbatch", &["--parsable", &output]).args(options).args([script]).args(arguments);
        let sbatch = sbatch.env("PATH", path).env("HOME", home).env("TMPDIR", home).dir(home).run().expect(0);
        sbatch.stdout().trim().to_owned()
    }

    /// What its controller has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("slurmctld.log")).unwrap_or_default()
    }

    /// What the script of a job has printed so far.
    pub fn said(&self, job: &str) -> String {
        fs::read_to_string(self.folder.join(format!("out.{job}"))).unwrap_or_default()
    }

    /// Waits until a job's script has printed this.
    pub fn until(&self, job: &str, text: &str, limit: Duration) -> String {
        process::until_said(limit, text, || self.said(job), String::new)
    }

    /// A job's state, as `scontrol show job` has it.
    pub fn state(&self, cluster: &Cluster, job: &str) -> String {
        self.field(cluster, job, "JobState").unwrap_or_else(|| "gone".to_owned())
    }

    /// Something that `scontrol show job` says of a job, if it knows the job.
    pub fn field(&self, cluster: &Cluster, job: &str, name: &str) -> Option<String> {
        let shown: Finished = self.command(cluster, "scontrol", &["show", "job", "-o", job]).run();
        let out = shown.stdout();
        Some(out.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?.to_owned())
    }

    /// A node dies: its slurmd, its steps and all that is in them, at once, with what they shared in memory; and Slurm is told, as it would find out by itself later.
    pub fn kill(&mut self, cluster: &Cluster, node: &str) {
        let tasks: Vec<Process> =
            process::marked(cluster.dir()).into_iter().filter(|process| is_on(process.pid(), node)).collect();
        let steps: Vec<Process> = tasks.iter().filter_map(|task| parent(task.pid())).filter_map(Process::open).collect();
        let steps = steps.iter().filter(|step| process::command_line(step.pid()).contains("slurmstepd"));
        let at = self.nodes.iter().position(|(name, _)| name == node).expect("a node that runs");
        let shared = leftovers::mapped_by(tasks.iter().map(Process::pid));
        self.nodes[at].1.signal(Signal::KILL);
        steps.chain(&tasks).for_each(|process| process.signal(Signal::KILL));
        // What cleans up on a living node (the keeper) is dead, too.
        shared.iter().for_each(|path| _ = fs::remove_file(path));
        drop(self.nodes.remove(at));
        let down = format!("nodename={node}");
        self.command(cluster, "scontrol", &["update", &down, "state=down", "reason=test"]).run().expect(0);
    }
}

fn daemon(cluster: &Cluster, folder: &Path, path: &str, args: &[String]) -> Running {
    invocation(cluster, folder, path).args(args).start()
}

fn invocation(cluster: &Cluster, folder: &Path, program: &str) -> Invocation {
    let invocation = cluster.invocation(program).env("SLURM_CONF", folder.join("slurm.conf"));
    // A test may run in an allocation itself.
    std::env::vars()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("SLURM"))
        .filter(|name| name != "SLURM_CONF")
        .fold(invocation, |invocation, name| invocation.env_remove(name))
}

fn is_on(pid: u32, node: &str) -> bool {
    process::variable(pid, "SLURMD_NODENAME").is_some_and(|name| name == node.as_bytes())
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn configuration(folder: &Path, ports: &[u16]) -> String {
    let at = folder.display();
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().expect("this user has a name").name;
    let mut text = format!(
        "ClusterName=radic\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={}\nSlurmUser={user}\nSlurmdUser={user}\n\
         AuthType=auth/munge\nAuthInfo=socket={at}/munge\nCryptoType=crypto/munge\nProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\nSelectType=select/cons_tres\nSchedulerType=sched/builtin\nSlurmdParameters=config_overrides\n\
         StateSaveLocation={at}/state\nSlurmctldPidFile={at}/slurmctld.pid\nSlurmctldLogFile={at}/slurmctld.log\n\
         SlurmdSpoolDir={at}/spool.%n\nSlurmdPidFile={at}/slurmd.%n.pid\nSlurmdLogFile={at}/slurmd.%n.log\n\
         SlurmdTimeout=15\nReturnToService=2\nMailProg=/bin/true\nPartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP\n",
        ports[0]
    );
    for (number, port) in (1..).zip(&ports[1..]) {
        text += &format!("NodeName=v{number} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=500\n");
    }
    text
}
