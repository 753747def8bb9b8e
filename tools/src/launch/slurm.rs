//! All nodes by one `srun`, inside an allocation of Slurm.
//!
//! The step has to survive what the allocation survives: `--no-kill` (a node is lost), `--kill-on-bad-exit=0` (a daemon ends with an error),
//! `--wait=0` (one ends before the others); and that srun itself is killed ([`release`]). Its agents stay, as parents of their daemons: so all that a
//! daemon starts belongs to the step.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use radic_protector::folder::Folder;
use radic_wire::ids::NodeName;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::client::Cluster;
use crate::format::report;
use crate::local_node::{self, StartOptions};

use super::bearer::Bearer;
use super::complete;
use super::hosts::Host;
use super::plan::{Action, Plan};
use super::protocol::{self, Go, LINE, Said, What};
use super::ssh::{block_on, dictate};
use super::{
    LaunchArgs, Launched, Planned, READY, assign_roles, last_complaint, order, prefix, record, tell, variable, watch_for,
};

/// How many ranks the user has asked for.
pub(crate) const TASKS: &str = "SLURM_NTASKS";
/// Time for a step to begin on all its nodes.
const BEGIN: Duration = Duration::from_secs(60);
/// Time for the last words of agents, and for a step to end.
const END: Duration = Duration::from_secs(10);
/// What srun takes from its environment, and would apply to our step: what the user has asked for is meant for his program.
const FOR_OTHERS: &[&str] = &[
    TASKS,
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_SOCKET",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPU_BIND",
    "SLURM_CPU_BIND_LIST",
    "SLURM_CPU_BIND_TYPE",
    "SLURM_CPU_BIND_VERBOSE",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_HINT",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_WHOLE",
    "SLURM_THREADS_PER_CORE",
    "SLURM_CORE_SPEC",
    "SLURM_STDOUTMODE",
    "SLURM_STDERRMODE",
    "SLURM_STDINMODE",
    "SLURM_LABELIO",
    "SLURM_MULTI_PROG",
    "SLURM_TIMELIMIT",
];

/// The cluster's folder in an allocation, if no other is named: a job that is queued again, and a second job of this user, have another.
pub(crate) fn default_dir() -> Option<PathBuf> {
    let job = variable("SLURM_JOB_ID")?;
    let restarts = variable("SLURM_RESTART_COUNT").map_or_else(String::new, |count| format!("-{count}"));
    Some(std::env::home_dir()?.join(".radic").join(format!("slurm-{job}{restarts}")))
}

/// An allocation.
struct Allocation {
    job: String,
    nodes: Vec<AllocatedNode>,
    /// Whether Slurm queues the job again when it has killed it.
    requeued: bool,
    /// Whether `--no-kill` was seen.
    stays: bool,
}

struct AllocatedNode {
    name: NodeName,
    address: String,
    slots: Option<u32>,
}

impl Allocation {
    /// The one that this process is in, or that `SLURM_JOB_ID` names.
    fn read() -> Result<Allocation> {
        let job = variable("SLURM_JOB_ID").context(
            "no allocation: run this in a script of sbatch or under salloc, or set SLURM_JOB_ID to the job that `salloc --no-shell` has made",
        )?;
        let shown = output("scontrol", &["show", "job", "--oneliner", &job])?;
        let list = field(&shown, "NodeList").filter(|list| *list != "(null)");
        let list = list.with_context(|| format!("job {job} has no nodes: does it run (`scontrol show job {job}`)?"))?;
        let shown_nodes = output("scontrol", &["show", "node", "--oneliner", list])?;
        let addresses: HashMap<&str, &str> =
            shown_nodes.lines().filter_map(|line| Some((field(line, "NodeName")?, field(line, "NodeAddr")?))).collect();
        let slots = slots()?;
        let names = output("scontrol", &["show", "hostnames", list])?;
        let node = |name: &str| {
            Ok(AllocatedNode {
                name: name.parse()?,
                address: (*addresses.get(name).unwrap_or(&name)).to_owned(),
                slots: slots.get(name).copied(),
            })
        };
        let nodes = names.lines().map(node).collect::<Result<Vec<_>>>()?;
        let requeued = field(&shown, "Requeue") == Some("1");
        Ok(Allocation { stays: stays(&job), job, nodes, requeued })
    }

    /// What is missing, and what that costs.
    fn warn(&self) {
        if self.stays {
            return;
        }
        let again = if self.requeued { ", and queues the job again, from its beginning" } else { "" };
        report(&format!(
            "radic: warning: job {} shows no --no-kill (Slurm tells of it only in a script): without it Slurm kills all nodes when one is \
             lost{again}; put `#SBATCH --no-kill` into the script, or give it to salloc",
            self.job
        ));
    }
}

/// Whether the allocation is known to stay when a node is lost. Neither scontrol nor squeue of Slurm 22.05 tells it: what the script and the
/// variables for sbatch, salloc and srun say is all there is.
fn stays(job: &str) -> bool {
    let told = ["SBATCH_NO_KILL", "SALLOC_NO_KILL", "SLURM_NO_KILL"].iter().any(|name| variable(name).is_some());
    told || output("scontrol", &["write", "batch_script", job, "-"]).is_ok_and(|script| script_says_no_kill(&script))
}

fn script_says_no_kill(script: &str) -> bool {
    directives(script).any(|word| word == "--no-kill" || word == "-k")
}

/// The words of a script that are for sbatch.
fn directives(script: &str) -> impl Iterator<Item = &str> {
    // Behind the first command sbatch takes them for comments.
    let head = script.lines().take_while(|line| line.starts_with('#') || line.trim().is_empty());
    let directives = head.filter_map(|line| line.strip_prefix("#SBATCH"));
    directives.flat_map(|line| line.split('#').next().unwrap_or_default().split_whitespace())
}

/// The signal that Slurm sends some time before it ends a batch job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BatchSignal {
    /// To the script: its name or number.
    ToScript(String),
    /// To all steps: what was given.
    ToSteps(String),
    /// None was asked for, or it is not known: scontrol and squeue of Slurm 22.05 do not tell.
    Unknown,
}

/// That of the job around this process: what the script and the variable for sbatch say is all there is. The variable wins over the script.
pub(crate) fn batch_signal() -> BatchSignal {
    let Some(job) = variable("SLURM_JOB_ID") else { return BatchSignal::Unknown };
    let script = || output("scontrol", &["write", "batch_script", &job, "-"]).ok();
    let given = variable("SBATCH_SIGNAL").or_else(|| script_signal(&script()?));
    given.map_or(BatchSignal::Unknown, |given| read_signal(&given))
}

/// The last one counts.
fn script_signal(script: &str) -> Option<String> {
    let mut words = directives(script);
    let mut last = None;
    while let Some(word) = words.next() {
        match word.strip_prefix("--signal") {
            Some("") => last = words.next().map(str::to_owned),
            Some(rest) => last = rest.strip_prefix('=').map(str::to_owned).or(last),
            None => {}
        }
    }
    last
}

/// `[R|B:]SIGNAL[@SECONDS]`.
fn read_signal(given: &str) -> BatchSignal {
    let signal = given.split('@').next().unwrap_or_default();
    match signal.split_once(':') {
        Some((to, name)) if to.contains(['B', 'b']) => BatchSignal::ToScript(name.to_owned()),
        _ => BatchSignal::ToSteps(given.to_owned()),
    }
}

/// The slots of each node, if tasks were asked for: one for each.
fn slots() -> Result<HashMap<String, u32>> {
    let (Some(_), Some(list), Some(tasks)) =
        (variable("SLURM_NTASKS"), variable("SLURM_JOB_NODELIST"), variable("SLURM_TASKS_PER_NODE"))
    else {
        return Ok(HashMap::new());
    };
    let names = output("scontrol", &["show", "hostnames", &list])?;
    let tasks = expand(&tasks).with_context(|| format!("SLURM_TASKS_PER_NODE is {tasks:?}, which is not understood"))?;
    Ok(names.lines().map(str::to_owned).zip(tasks).collect())
}

/// `2(x3),1` as 2, 2, 2, 1.
fn expand(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (number, times) = match part.split_once("(x") {
            Some((number, times)) => (number, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        let number: u32 = number.parse().ok()?;
        all.extend(std::iter::repeat_n(number, usize::min(times, 65_536)));
    }
    Some(all)
}

/// The value of `NAME=value` in what scontrol shows on one line.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// What a command of Slurm says.
fn output(program: &str, args: &[&str]) -> Result<String> {
    let shown = || format!("{program} {}", args.join(" "));
    let result = Command::new(program).args(args).stdin(Stdio::null()).output();
    let result = result.with_context(|| format!("cannot run `{}`: is Slurm installed here?", shown()))?;
    ensure!(result.status.success(), "`{}` failed: {}", shown(), String::from_utf8_lossy(&result.stderr).trim());
    Ok(String::from_utf8_lossy(&result.stdout).into_owned())
}

/// Starts a cluster on the nodes of the allocation.
///
/// # Errors
/// If there is no allocation, or no node could be started.
pub(crate) fn start(cluster: &Cluster, args: &LaunchArgs, options: &StartOptions) -> Result<Launched> {
    let allocation = Allocation::read()?;
    allocation.warn();
    let host = |node: &AllocatedNode| Host { target: node.name.to_string(), name: node.name.clone(), slots: node.slots };
    let mut planned = assign_roles(allocation.nodes.iter().map(host).collect(), options)?;
    planned.iter_mut().zip(&allocation.nodes).for_each(|(planned, node)| planned.address = Some(node.address.clone()));
    let prefix = prefix(args)?;
    let watch = watch_for(here(&allocation), &complete::command(&prefix, &allocation.job), args)?;
    local_node::prepared(cluster, || {
        let (mut order, key) = order(cluster, args, options, &planned)?;
        order.watch = watch;
        let line = protocol::line(&order)?;
        // What srun passes on is not encrypted.
        let bearer = Bearer::new(key, &order.proof, args.delivery(false));
        let srun = srun(cluster, &allocation, &prefix)?;
        block_on(async {
            let mut step = Step::begin(srun, line, bearer, planned.len())?;
            let result = step.go_on(cluster, Plan::new(planned.clone())).await;
            let recorded = result.and_then(|launched| {
                let shell = remote_shell(&allocation.job);
                record(shell, true, prefix.clone(), &planned, &launched).write(cluster.dir()).map(|()| launched)
            });
            match recorded {
                Ok(launched) => step.keep(&planned, launched).await,
                Err(error) => {
                    step.end().await;
                    Err(error)
                }
            }
        })
    })
}

/// The node of this script, if it is one of the allocation.
fn here(allocation: &Allocation) -> Option<NodeName> {
    let name = variable("SLURMD_NODENAME")?;
    allocation.nodes.iter().find(|node| node.name.as_str() == name).map(|node| node.name.clone())
}

/// The step that is to be all nodes. It leads a session of its own: it is to stay when this terminal goes.
fn srun(cluster: &Cluster, allocation: &Allocation, prefix: &Path) -> Result<tokio::process::Command> {
    let count = allocation.nodes.len();
    let names: Vec<&str> = allocation.nodes.iter().map(|node| node.name.as_str()).collect();
    let mut command = tokio::process::Command::new("setsid");
    command.args(["srun", "--job-name=radic", "--overlap", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"]);
    command.args(["--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL", "--input=all", "--chdir=/", "--unbuffered"]);
    command.args([format!("--jobid={}", allocation.job), format!("--nodes={count}"), format!("--ntasks={count}")]);
    command.args(["--ntasks-per-node=1".to_owned(), format!("--nodelist={}", names.join(","))]);
    command.arg(prefix.join("radic")).args(["cluster", "agent", "--slurm"]);
    FOR_OTHERS.iter().for_each(|name| _ = command.env_remove(name));
    let log = Folder::open(cluster.dir())?.replace(LOG)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    Ok(command)
}

/// What srun complains about.
const LOG: &str = "srun.log";

/// How something is run on one node of the allocation: `target` and the command for a shell there are added.
fn remote_shell(job: &str) -> Vec<String> {
    let srun = format!(
        "exec srun --jobid={job} --overlap --nodes=1 --ntasks=1 --mem=0 --mpi=none --input=none --nodelist=\"$0\" sh -c \"$1\""
    );
    vec!["sh".to_owned(), "-c".to_owned(), srun]
}

/// The running step.
struct Step {
    child: Child,
    stdout: Lines,
    /// What writes to srun: one that waits for free nodes does not read, and whatever is awaited here must see the signals and the limits meanwhile.
    dictating: JoinHandle<bool>,
    go: mpsc::Sender<Go>,
    bearer: Bearer,
    /// Whether agents have been told where the key is. All have heard it then.
    has_answered: bool,
}

impl Step {
    /// `nodes` is how many there are.
    fn begin(mut command: tokio::process::Command, order: String, bearer: Bearer, nodes: usize) -> Result<Step> {
        ensure!(
            order.len() < LINE,
            "too many nodes: what each of them is told would be {} bytes long, the limit is {LINE}",
            order.len()
        );
        let mut child = command.spawn().context("cannot run setsid, of util-linux")?;
        let stdin = child.stdin.take().context("the pipe that was asked for")?;
        let stdout = Lines::new(child.stdout.take().context("the pipe that was asked for")?);
        // Room for all that is ever said: the key, the start of each node, and that they stay.
        let (go, words) = mpsc::channel(nodes + 2);
        let dictating = tokio::spawn(dictate(stdin, order.into(), words));
        Ok(Step { child, stdout, dictating, go, bearer, has_answered: false })
    }

    /// An srun that has ended takes nothing: that is noticed where its output is read.
    fn say(&self, go: Go) {
        let _ = self.go.try_send(go);
    }

    /// An agent has no key. Its question may come after the answer, which all have heard.
    fn answer(&mut self) {
        if !std::mem::replace(&mut self.has_answered, true) {
            let answer = self.bearer.answer();
            self.say(answer);
        }
    }

    async fn go_on(&mut self, cluster: &Cluster, mut plan: Plan) -> Result<Launched> {
        let places: HashMap<NodeName, usize> = plan.hosts().enumerate().map(|(at, host)| (host.host.name.clone(), at)).collect();
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        let begun = Instant::now() + BEGIN;
        let over = begun + 2 * READY;
        while !plan.is_done() {
            let deadline = if Instant::now() < begun { begun } else { over };
            tokio::select! {
                said = self.stdout.hear() => match said? {
                    Some(Said { what: What::NeedsKey, .. }) => self.answer(),
                    Some(said) => _ = places.get(&said.name).map(|at| plan.handle(*at, said.what)),
                    None => {
                        let why = complaint(cluster).unwrap_or_else(|| "srun has ended".to_owned());
                        (0..places.len()).for_each(|at| plan.fail(at, why.clone()));
                    }
                },
                _ = interrupt.recv() => bail!("interrupted; nothing of the cluster is left running"),
                _ = terminate.recv() => bail!("interrupted; nothing of the cluster is left running"),
                () = sleep_until(deadline) => {
                    let late = (0..places.len()).filter(|at| deadline == over || plan.is_called(*at)).collect::<Vec<_>>();
                    let why = complaint(cluster).map_or_else(String::new, |said| format!("; srun says: {said}"));
                    late.into_iter().for_each(|at| plan.fail(at, format!("no answer within {} s{why}", BEGIN.as_secs())));
                }
            }
            for action in plan.actions() {
                match action {
                    Action::Tell(_, go) => self.say(go),
                    Action::Done(at, done) => _ = plan.hosts().nth(at).map(|host| tell(host, &done)),
                }
            }
        }
        Launched::of(plan.finished())
    }

    /// Lets the nodes stay when this process and srun have ended. Each node has said that it does: srun passes the word to one after the other, and a
    /// node that loses srun before it has the word ends.
    async fn keep(mut self, planned: &[Planned], mut launched: Launched) -> Result<Launched> {
        self.say(Go::Keep);
        let mut waiting: Vec<&Planned> = planned.iter().filter(|host| launched.has(host)).collect();
        let deadline = Instant::now() + END;
        while !waiting.is_empty() {
            let why = match timeout_at(deadline, self.stdout.hear()).await {
                Ok(Ok(Some(said))) => {
                    waiting.retain(|host| said.what != What::Kept || host.host.name != said.name);
                    continue;
                }
                Ok(Ok(None)) => "srun has ended".to_owned(),
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "it does not answer any more".to_owned(),
            };
            waiting.drain(..).for_each(|host| launched.lose(host, why.clone()));
        }
        ensure!(!launched.started.is_empty(), "no node answers any more");
        if let Some(srun) = self.child.id() {
            release(srun);
        }
        Ok(launched)
    }

    /// Ends the step: agents end their nodes when their launcher goes.
    async fn end(mut self) {
        // Whatever has not been written is not needed any more; agents see the end of their input.
        self.dictating.abort();
        let _ = (&mut self.dictating).await;
        if timeout(END, self.child.wait()).await.is_err() {
            // Slurm kills its tasks then.
            let _ = self.child.start_kill();
            let _ = self.child.wait().await;
        }
    }
}

/// Ends the process that srun has made to look after it: one that does nothing but wait for the end of srun, and that has Slurm kill the step then. Without it the step
/// stays when srun is killed. An srun that ends by itself tells that process, does not find it, and goes on.
fn release(srun: u32) {
    let link = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let is_of_srun = |pid: &u32| parent(*pid) == Some(srun) && link(*pid).is_some_and(|exe| link(srun) == Some(exe));
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in all.filter(is_of_srun) {
        // It is not waited for by srun before its own end, so the number is no other's.
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
    }
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// What the agents say. A line of which only a part has come is kept here, so that a wait for its rest can be given up and begun again.
struct Lines {
    stdout: BufReader<ChildStdout>,
    line: Vec<u8>,
}

impl Lines {
    fn new(stdout: ChildStdout) -> Lines {
        Lines { stdout: BufReader::new(stdout), line: Vec::new() }
    }

    /// What an agent says next; nothing at the end.
    async fn hear(&mut self) -> Result<Option<Said>> {
        loop {
            let room = (LINE - self.line.len()) as u64;
            let read = (&mut self.stdout).take(room).read_until(b'\n', &mut self.line).await.context("reading from srun")?;
            if read == 0 && self.line.is_empty() {
                return Ok(None);
            }
            // One that is too long, or that the end cuts off, is no agent's.
            let line = std::mem::take(&mut self.line);
            if let Some(said) = protocol::parse(&String::from_utf8_lossy(&line))? {
                return Ok(Some(said));
            }
        }
    }
}

/// The last line that srun has complained with.
fn complaint(cluster: &Cluster) -> Option<String> {
    last_complaint(&cluster.dir().join(LOG))
}

#[cfg(test)]
mod tests {
    use radic_wire::key::ClusterKey;
    use radic_wire::membership::Role;

    use super::super::bearer::Delivery;
    use super::super::key::KeyText;
    use super::*;

    #[test]
    fn what_slurm_writes_is_read() {
        assert_eq!(expand("2(x3),1"), Some(vec![2, 2, 2, 1]));
        assert_eq!(expand("4"), Some(vec![4]));
        assert!(expand("2(x3").is_none() && expand("x").is_none() && expand("").is_none());
        let line = "JobId=2 JobName=NodeList=x NodeList=v[1-3] BatchHost=v1 Requeue=1";
        assert_eq!((field(line, "NodeList"), field(line, "Requeue"), field(line, "Nodes")), (Some("v[1-3]"), Some("1"), None));
    }

    #[test]
    fn the_signal_of_a_batch_job_is_read() {
        let of = |script: &str| script_signal(script).map(|given| read_signal(&given));
        let to_script = |name: &str| Some(BatchSignal::ToScript(name.to_owned()));
        assert_eq!(of("#!/bin/sh\n#SBATCH --signal=B:USR1@300\n"), to_script("USR1"));
        assert_eq!(of("#!/bin/sh\n#SBATCH -N5 --signal B:10\n"), to_script("10"));
        assert_eq!(of("#SBATCH --signal=USR2\n#SBATCH --signal=RB:SIGTERM@60\n"), to_script("SIGTERM"));
        assert_eq!(of("#SBATCH --signal=USR1@60\n"), Some(BatchSignal::ToSteps("USR1@60".to_owned())));
        assert_eq!(of("#!/bin/sh\ntrue\n#SBATCH --signal=B:USR1\n"), None);
    }

    #[test]
    fn a_script_is_searched_for_what_keeps_the_allocation() {
        assert!(script_says_no_kill("#!/bin/sh\n#SBATCH -N 5 --no-kill\n"));
        assert!(script_says_no_kill("#!/bin/sh\n#SBATCH -k\n"));
        for other in
            ["#!/bin/sh\nsrun --no-kill x\n", "#SBATCH -N5 # --no-kill\n", "##SBATCH --no-kill\n", "#SBATCH --no-kill=off\n"]
        {
            assert!(!script_says_no_kill(other), "{other}");
        }
    }

    fn host(name: &str) -> Planned {
        let host = Host { target: name.to_owned(), name: name.parse().unwrap(), slots: None };
        Planned { host, role: Role::Node, slots: None, address: None }
    }

    fn bearer(delivery: Delivery) -> Bearer {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        ClusterKey::generate().unwrap().create(&path).unwrap();
        let key = KeyText::read(&path).unwrap();
        let proof = key.prove("1").unwrap();
        Bearer::new(key, &proof, delivery)
    }

    /// srun passes a line on to all agents: they hear where the key is once, however many ask.
    #[test]
    fn agents_without_a_key_are_answered_once() {
        let dir = tempfile::tempdir().unwrap();
        let heard = dir.path().join("heard");
        let cluster = Cluster::new(Some(dir.path().to_owned())).unwrap();
        let planned: Vec<Planned> = ["v1", "v2"].map(host).into();
        let asks = planned.iter().map(|planned| {
            let said = Said { name: planned.host.name.clone(), what: What::NeedsKey };
            format!("echo '{}'; ", protocol::line(&said).unwrap().trim_end())
        });
        let asks: String = asks.collect();
        // It has what is said until the end of its input, which comes when the step ends.
        let srun = format!("read order; {asks} read one; echo \"$one\" >{0}; exec >&-; cat >>{0}", heard.display());
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", &srun]).stdin(Stdio::piped()).stdout(Stdio::piped());
        block_on(async {
            let mut step = Step::begin(command, "order\n".to_owned(), bearer(Delivery::Session), 2)?;
            step.go_on(&cluster, Plan::new(planned)).await.unwrap_err();
            step.end().await;
            Ok(())
        })
        .unwrap();
        let heard = fs::read_to_string(heard).unwrap();
        assert!(heard.starts_with("radic-agent {\"key\":\"radic cluster key") && heard.lines().count() == 1, "{heard}");
    }

    /// An srun that waits for free nodes reads nothing, and a pipe holds less than an order for many nodes. What is awaited then must hear of signals
    /// and of limits.
    #[test]
    fn an_srun_that_does_not_read_holds_up_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::new(Some(dir.path().to_owned())).unwrap();
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", "exec >&-; exec sleep 60"]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let order = "x".repeat(LINE / 2);
        let sees_the_end = async {
            let mut step = Step::begin(command, order, bearer(Delivery::Home), 1)?;
            step.go_on(&cluster, Plan::new(vec![host("v1")])).await.unwrap_err();
            step.child.start_kill()?;
            step.end().await;
            anyhow::Ok(())
        };
        let in_time = block_on(async { Ok(timeout(Duration::from_secs(20), sees_the_end).await) }).unwrap();
        in_time.expect("the order is written beside everything else").unwrap();
    }

    /// A node that srun has not reached with the word ends with srun: it is none of those that were started.
    #[test]
    fn a_node_that_has_not_said_that_it_stays_has_failed() {
        let planned = ["v1", "v2"].map(host);
        let ready = || Ok(super::super::plan::Ready { address: "127.0.0.1:1".parse().unwrap(), pid: 1 });
        let launched = Launched::of(planned.iter().map(|host| (host.clone(), ready()))).unwrap();
        let kept = protocol::line(&Said { name: "v1".parse().unwrap(), what: What::Kept }).unwrap();
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", &format!("read order; read keep; echo '{}'", kept.trim_end())]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let step = || Step::begin(command, "order\n".to_owned(), bearer(Delivery::Home), 2);
        let launched = block_on(async { step()?.keep(&planned, launched).await }).unwrap();
        assert_eq!(launched.started.iter().map(|node| &*node.name).collect::<Vec<_>>(), ["v1"]);
        assert_eq!(launched.failed.iter().map(|failed| &*failed.host).collect::<Vec<_>>(), ["v2"]);
    }
}
