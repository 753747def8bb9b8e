//! One remote shell for each host, all at once.

use std::collections::VecDeque;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use radic_protector::folder::Folder;
use radic_wire::ids::NodeName;

use crate::client::Cluster;
use crate::local_node::quoted;

use super::bearer::Bearer;
use super::key::KeyText;
use super::plan::{Action, Plan, Planned};
use super::protocol::{self, Go, LINE, Order, Said, What};
use super::{LaunchArgs, Launched, READY, Way, last_complaint, tell};

/// Time for a remote shell to end when it is not needed any more, before it is killed.
const END: Duration = Duration::from_secs(2);
/// Time for what a remote shell has complained about to arrive after its end. A connection that is shared, and stays, may hold the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// How much is kept of what a remote shell complains about, in bytes.
const COMPLAINTS: usize = 4096;
/// The words that run something on this host; they are given a host, too.
const HERE: [&str; 3] = ["sh", "-c", "exec sh -c \"$1\""];
/// The folder of the complaints of remote shells that stay, in that of the cluster.
const COMPLAINTS_FOLDER: &str = "launch";
/// Bytes that login scripts may print before the agent speaks.
const NOISE: usize = 1 << 20;
/// Time to connect, for a shell that is told one: the rest of the host's time is for logging in.
const CONNECT: u64 = 5;

/// The words by which something is run on a host.
#[derive(Debug, Clone)]
pub(crate) struct Shell {
    words: Vec<String>,
    /// Options that belong behind the user's own, which win: the first value of an option counts for ssh.
    more: Vec<String>,
}

impl Shell {
    /// These words, `ssh` with options of RADIC behind them. A host has `limit` to answer.
    pub(crate) fn of(words: Vec<String>, limit: Duration) -> Result<Shell> {
        ensure!(!words.is_empty(), "--rsh: a command is missing");
        let is_ssh = is_ssh(&words);
        let connect = format!("ConnectTimeout={}", limit.as_secs().min(CONNECT));
        let options: &[&str] = if is_ssh { &["-x", "-T", "-o", "BatchMode=yes", "-o", &connect] } else { &[] };
        let more = options.iter().map(|option| (*option).to_owned()).collect();
        Ok(Shell { words, more })
    }

    /// Whether nobody on the way sees what is said.
    fn is_encrypted(&self) -> bool {
        is_ssh(&self.words)
    }

    /// The command, as a person would type it.
    pub(crate) fn words(&self) -> String {
        self.words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// The command that runs `remote` on `target`. It does not see the signals of the terminal.
    pub(crate) fn command(&self, target: &str, remote: &str) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).args(&self.more).arg(target).arg(remote);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        command
    }
}

fn is_ssh(words: &[String]) -> bool {
    words.first().and_then(|program| Path::new(program).file_name()).is_some_and(|name| name == "ssh")
}

/// Does something that needs a runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    // Three descriptors for each host at once. If the system does not allow it, the hosts that have none say so.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?.block_on(future)
}

/// What a host's session tells.
enum Heard {
    Said(What),
    /// The remote shell has ended, or cannot be understood.
    Lost(String),
}

/// Starts the nodes of a cluster by a remote shell.
pub(crate) struct Launcher {
    shell: Shell,
    /// What starts a node on this host, and which one that is.
    here: Option<(NodeName, Shell)>,
    /// Remote shells stay with the nodes: then this folder gets their complaints, which nothing reads any more when this process has ended.
    complaints: Option<PathBuf>,
    prefix: String,
    order: Arc<str>,
    bearer: Bearer,
    limit: Duration,
}

impl Launcher {
    pub(crate) fn new(
        args: &LaunchArgs,
        cluster: &Cluster,
        way: &Way,
        prefix: &Path,
        (order, key): (&Order, KeyText),
    ) -> Result<Launcher> {
        let limit = Duration::from_secs(args.host_timeout);
        let prefix =
            prefix.to_str().context("the folder of RADIC is no text (UTF-8), which a remote shell needs: say --prefix")?;
        let shell = Shell::of(way.shell.clone(), limit)?;
        let bearer = Bearer::new(key, &order.proof, args.delivery(shell.is_encrypted()));
        let order = protocol::line(order)?;
        ensure!(
            order.len() < LINE,
            "too many hosts: what each of them is told would be {} bytes long, the limit is {LINE}",
            order.len()
        );
        let local = |name: &NodeName| Shell::of(HERE.map(str::to_owned).to_vec(), limit).map(|shell| (name.clone(), shell));
        let complaints = if way.stays {
            let folder = Folder::open(cluster.dir())?.subfolder(COMPLAINTS_FOLDER)?;
            Some(folder.path().to_owned())
        } else {
            None
        };
        Ok(Launcher {
            shell,
            here: way.here.as_ref().map(local).transpose()?,
            complaints,
            prefix: prefix.to_owned(),
            order: order.into(),
            bearer,
            limit,
        })
    }

    /// Starts them, and calls `record` with what has been started before it is told to stay. If it is interrupted, or `record` fails, nothing
    /// is left.
    pub(crate) fn run(mut self, planned: Vec<Planned>, record: impl FnOnce(&Launched) -> Result<()>) -> Result<Launched> {
        block_on(async move {
            let (sender, events) = mpsc::channel(64);
            let mut sessions = Sessions { tasks: JoinSet::new(), go: Vec::new(), events };
            for (at, host) in planned.iter().enumerate() {
                let (go, orders) = mpsc::channel(4);
                sessions.go.push(Some(go));
                sessions.tasks.spawn(self.session(at, host)?.run(orders, sender.clone()));
            }
            drop(sender);
            let result = self.go_on(&mut sessions, Plan::new(planned), record).await;
            sessions.end().await;
            result
        })
    }

    fn session(&self, at: usize, host: &Planned) -> Result<Session> {
        let radic = quoted(&format!("{}/radic", self.prefix));
        let stay = if self.complaints.is_some() { " --stay" } else { "" };
        let remote = format!("exec {radic} cluster agent --name {}{stay}", host.host.name);
        let here = self.here.as_ref().filter(|(name, _)| *name == host.host.name);
        let shell = here.map_or(&self.shell, |(_, shell)| shell);
        let mut command = shell.command(&host.host.target, &remote);
        let complaints = match &self.complaints {
            Some(folder) => {
                let folder = Folder::open(folder)?;
                command.stderr(folder.replace(host.host.name.as_str())?).kill_on_drop(false);
                Some(folder.path().join(host.host.name.as_str()))
            }
            None => None,
        };
        let trial = format!("{} {} true", shell.words(), host.host.target);
        Ok(Session { at, command, complaints, order: self.order.clone(), trial, prefix: self.prefix.clone() })
    }

    async fn go_on(
        &mut self,
        sessions: &mut Sessions,
        mut plan: Plan,
        record: impl FnOnce(&Launched) -> Result<()>,
    ) -> Result<Launched> {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        let answered = Instant::now() + self.limit;
        let over = answered + 2 * READY + END;
        while !plan.is_done() {
            let now = Instant::now();
            let deadline = if now < answered { answered } else { over };
            tokio::select! {
                heard = sessions.events.recv() => match heard {
                    Some((at, Heard::Said(What::NeedsKey))) => sessions.tell(at, self.bearer.answer()).await,
                    Some((at, Heard::Said(what))) => plan.handle(at, what),
                    Some((at, Heard::Lost(why))) => plan.fail(at, why),
                    None => bail!("the remote shells have all ended"),
                },
                _ = interrupt.recv() => bail!("interrupted; nothing of the cluster is left running"),
                _ = terminate.recv() => bail!("interrupted; nothing of the cluster is left running"),
                () = sleep_until(deadline) => {
                    let late = (0..sessions.go.len()).filter(|at| deadline == over || plan.is_called(*at));
                    for at in late.collect::<Vec<_>>() {
                        let seconds = if deadline == over { (self.limit + 2 * READY).as_secs() } else { self.limit.as_secs() };
                        plan.fail(at, format!("no answer within {seconds} s; a slow host gets more by --host-timeout"));
                    }
                }
            }
            sessions.act(&mut plan).await;
        }
        sessions.keep(plan, record).await
    }
}

struct Sessions {
    tasks: JoinSet<()>,
    /// The way to each session. One that is not needed any more has none.
    go: Vec<Option<mpsc::Sender<Go>>>,
    events: mpsc::Receiver<(usize, Heard)>,
}

impl Sessions {
    async fn act(&mut self, plan: &mut Plan) {
        for action in plan.actions() {
            match action {
                Action::Tell(at, go) => self.tell(at, go).await,
                Action::Done(at, done) => {
                    if let Some(host) = plan.hosts().nth(at) {
                        tell(host, &done);
                    }
                    if done.is_err() {
                        self.go[at] = None;
                    }
                }
            }
        }
    }

    async fn tell(&mut self, at: usize, go: Go) {
        if let Some(sender) = &self.go[at] {
            // A session that has ended has said so.
            let _ = sender.send(go).await;
        }
    }

    /// Lets all stay that have been started.
    async fn keep(&mut self, plan: Plan, record: impl FnOnce(&Launched) -> Result<()>) -> Result<Launched> {
        let finished = plan.finished();
        let runs = finished.iter().enumerate().filter(|(_, (_, result))| result.is_ok());
        let places: Vec<(usize, Planned)> = runs.map(|(at, (host, _))| (at, host.clone())).collect();
        let mut launched = Launched::of(finished)?;
        record(&launched)?;
        for (at, _) in &places {
            self.tell(*at, Go::Keep).await;
        }
        for (at, why) in self.lost(places.iter().map(|(at, _)| *at).collect()).await {
            if let Some((_, host)) = places.iter().find(|(other, _)| *other == at) {
                launched.lose(host, why);
            }
        }
        Ok(launched)
    }

    /// Those of the sessions in `waiting` that end before they have said that their node stays, and why.
    async fn lost(&mut self, mut waiting: Vec<usize>) -> Vec<(usize, String)> {
        let deadline = Instant::now() + END;
        let mut lost = Vec::new();
        while !waiting.is_empty() {
            match tokio::time::timeout_at(deadline, self.events.recv()).await {
                Ok(Some((at, Heard::Said(What::Kept)))) => waiting.retain(|other| *other != at),
                Ok(Some((at, Heard::Lost(why)))) if waiting.contains(&at) => {
                    waiting.retain(|other| *other != at);
                    lost.push((at, why));
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => {
                    let silent = std::mem::take(&mut waiting).into_iter();
                    lost.extend(silent.map(|at| (at, "it does not answer any more".to_owned())));
                }
            }
        }
        lost
    }

    /// Ends the sessions. Agents end the nodes that are not to stay.
    async fn end(&mut self) {
        self.go.clear();
        self.events.close();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // The rest is killed when it is dropped.
        let _ = timeout(END + END, all).await;
    }
}

/// The session with one host.
struct Session {
    at: usize,
    command: Command,
    /// The remote shell stays with its node, and complains into this file.
    complaints: Option<PathBuf>,
    order: Arc<str>,
    trial: String,
    prefix: String,
}

impl Session {
    async fn run(mut self, orders: mpsc::Receiver<Go>, events: mpsc::Sender<(usize, Heard)>) {
        let why = match self.command.spawn() {
            Ok(child) => self.speak(child, orders, &events).await,
            Err(error) => Some(format!("cannot run {:?}: {error}", self.command.as_std().get_program())),
        };
        if let Some(why) = why {
            // The launcher may have ended.
            let _ = events.send((self.at, Heard::Lost(why))).await;
        }
    }

    /// Why the session has ended, unless the launcher wanted that.
    async fn speak(&self, mut child: Child, orders: mpsc::Receiver<Go>, events: &mpsc::Sender<(usize, Heard)>) -> Option<String> {
        let (stdin, stdout) = (child.stdin.take()?, child.stdout.take()?);
        let complaints = Complaints::default();
        let gather = |stderr| tokio::spawn(complaints.clone().gather(stderr));
        let complaining = child.stderr.take().map(gather);
        let mut dictating = tokio::spawn(dictate(stdin, self.order.clone(), orders));
        let why = tokio::select! {
            why = self.hear(stdout, events) => why,
            // The launcher needs this session no more.
            kept = &mut dictating => match kept {
                Ok(true) if self.complaints.is_some() => return None,
                _ => None,
            },
        };
        dictating.abort();
        let status = match timeout(END, child.wait()).await {
            Ok(status) => status.ok(),
            Err(_) => {
                // Killed when it is dropped, too; this waits for it.
                let _ = child.kill().await;
                None
            }
        };
        if let Some(complaining) = complaining {
            let _ = timeout(LAST_WORDS, complaining).await;
        }
        let complaint = self.complaints.as_deref().and_then(last_complaint).unwrap_or_else(|| complaints.last());
        why.map(|why| self.explain(why, status, &complaint))
    }

    /// Hands on what the agent says. The result is why it says no more.
    async fn hear(&self, stdout: ChildStdout, events: &mpsc::Sender<(usize, Heard)>) -> Option<String> {
        let mut stdout = BufReader::new(stdout);
        let mut noise = 0;
        loop {
            let mut line = Vec::new();
            let read = (&mut stdout).take(LINE as u64).read_until(b'\n', &mut line).await;
            match read {
                Ok(0) => return Some(String::new()),
                Err(error) => return Some(error.to_string()),
                Ok(_) => {}
            }
            match protocol::parse::<Said>(&String::from_utf8_lossy(&line)) {
                Ok(Some(said)) => events.send((self.at, Heard::Said(said.what))).await.ok()?,
                Ok(None) => noise += line.len(),
                Err(error) => return Some(format!("{error:#}")),
            }
            if noise > NOISE {
                return Some(format!("its login scripts print more than {NOISE} bytes"));
            }
        }
    }

    /// Why there is no node, and what to do.
    fn explain(&self, why: String, status: Option<ExitStatus>, complaint: &str) -> String {
        let complaint = if complaint.is_empty() { String::new() } else { format!("{complaint}; ") };
        match (why.is_empty(), status.and_then(|status| status.code())) {
            (false, _) => why,
            (_, Some(126 | 127)) => {
                format!(
                    "{complaint}RADIC is not in {} there: install it in the same folder on every host, or say where it is with --prefix",
                    self.prefix
                )
            }
            (_, Some(code)) => format!("{complaint}the remote shell ended with code {code}; try `{}`", self.trial),
            (_, None) => format!("{complaint}the remote shell was killed; try `{}`", self.trial),
        }
    }
}

/// Says the order and what follows, until nothing more is to be said. Whether that was that the node is to stay.
pub(crate) async fn dictate(mut stdin: ChildStdin, order: Arc<str>, mut orders: mpsc::Receiver<Go>) -> bool {
    // A shell that has ended takes nothing: what it said before is what counts, and is read elsewhere.
    let mut open = stdin.write_all(order.as_bytes()).await.is_ok();
    let mut kept = false;
    while let Some(go) = orders.recv().await {
        kept = go == Go::Keep;
        if open && let Ok(line) = protocol::line(&go) {
            open = stdin.write_all(line.as_bytes()).await.is_ok();
        }
    }
    kept
}

/// The end of what a remote shell has complained about.
#[derive(Debug, Clone, Default)]
pub(crate) struct Complaints(Arc<Mutex<VecDeque<u8>>>);

impl Complaints {
    pub(crate) async fn gather(self, mut stderr: ChildStderr) {
        let mut buffer = [0; 512];
        while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend(&buffer[..count]);
            let surplus = kept.len().saturating_sub(COMPLAINTS);
            kept.drain(..surplus);
        }
    }

    /// The last line.
    pub(crate) fn last(&self) -> String {
        let kept: Vec<u8> = self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let text = String::from_utf8_lossy(&kept);
        let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        line.chars().filter(|c| !c.is_control()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_asks_nothing_and_the_user_s_own_options_win() {
        let words = |rsh: &str, limit| {
            let shell = Shell::of(super::super::words(rsh), Duration::from_secs(limit));
            let command = shell.unwrap().command("n1", "true");
            let words = command.as_std().get_args().map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words("/usr/bin/ssh -p 22", 8), "-p 22 -x -T -o BatchMode=yes -o ConnectTimeout=5 n1 true");
        assert_eq!(words("ssh", 2), "-x -T -o BatchMode=yes -o ConnectTimeout=2 n1 true");
        assert_eq!(words("rsh", 8), "n1 true");
        assert!(Shell::of(Vec::new(), Duration::from_secs(8)).is_err());
    }
}
