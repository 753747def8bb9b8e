//! `radic run`: from the command line to a job's description.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use nix::sys::stat;
use nix::unistd::{AccessFlags, access};
use radic_wire::ids::NodeName;
use radic_wire::job::{JobSpec, MapBy, exit_code};
use radic_wire::local::{ClusterStatus, NodeState, Reply, Request};
use radic_wire::membership::Role;
use radic_wire::process::Protect;
use serde::Serialize;
use serde_bytes::ByteBuf;

use crate::client::{self, Cluster};
use crate::format::{print, print_json, report};
use crate::outcome::Usage;
use crate::protection::{Decision, ProtectionArgs};
use crate::resume::Resume;
use crate::suspend::content::{self, Saved, Source};
use crate::suspend::on_signal::{OnSignal, OnSignalArgs};
use crate::{doctor, launch, mpi, session};

/// Flags of `radic run`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  radic run -n 4 -- ./ring\n  radic run -n 8 --label --nodes n1,n2 -- python -m mpi4py.bench helloworld\n  \
    radic run -n 4 --explain -- ./ring\n  \
    radic run -n 4 --resume-from DIR --suspend-to DIR --suspend-on USR1 -- ./ring     # the same line again and again\n\n\
    Standard input goes to rank 0. SIGINT, SIGTERM, SIGQUIT, SIGUSR1 and SIGUSR2 go to every rank; three interrupts within 5 s \
    end the job. SIGTSTP and SIGCONT stop and continue only this command. If the terminal dies, the job goes on: `radic attach` \
    shows it again.\n\n\
    The exit code is the first non-zero one of a rank (128 + n for signal n), or that of MPI_Abort; 113 if a node died that \
    hosted ranks that were not protected, or could not be brought back; 114 if the job was suspended; 125 if RADIC itself failed; 126 and 127 if the program cannot be executed or found."
)]
pub(crate) struct RunArgs {
    /// How many ranks [default: in a job of a batch system as many as it was asked for: SLURM_NTASKS, lines of PBS_NODEFILE, NSLOTS, LSB_DJOB_NUMPROC]
    #[arg(short, long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(radic_wire::limits::RANKS)))]
    n: Option<u32>,
    /// Number of nodes: the first M of `radic nodes`, without spares
    #[arg(short = 'N', long = "node-count", value_name = "M", conflicts_with = "nodes", value_parser = clap::value_parser!(u32).range(1..))]
    node_count: Option<u32>,
    /// Ranks on each node; without -n it also sets the number of ranks
    #[arg(long, value_name = "K", conflicts_with = "map_by", value_parser = clap::value_parser!(u32).range(1..))]
    ntasks_per_node: Option<u32>,
    /// On these nodes only [default: all that are not spares]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    nodes: Vec<NodeName>,
    /// In which order ranks go to nodes
    #[arg(long, value_enum, default_value_t = MapByFlag::Node)]
    map_by: MapByFlag,
    /// The MPI library; what the environment or --env say about its settings wins over RADIC's
    #[arg(long, value_enum, default_value_t = mpi::Choice::Auto)]
    mpi: mpi::Choice,
    /// Begin each line of output with its rank
    #[arg(long)]
    label: bool,
    /// A variable for the ranks; wins over RADIC's own settings
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// The folder in which the ranks start [default: this one]
    #[arg(long, value_name = "DIR")]
    wd: Option<PathBuf>,
    /// Print what was recognised and set, and why; run nothing
    #[arg(long)]
    explain: bool,
    /// With --explain: print JSON, for programs
    #[arg(long, requires = "explain")]
    json: bool,
    /// Start the job, print its name and leave it alone
    #[arg(long, conflicts_with_all = ["label", "suspend_to"])]
    detach: bool,
    #[command(flatten)]
    protection: ProtectionArgs,
    #[command(flatten)]
    on_signal: OnSignalArgs,
    /// Go on with the job that is suspended in this folder; start the program if the folder is absent or empty, or if that job has ended with code 0 since
    #[arg(long, value_name = "DIR", conflicts_with = "detach", help_heading = "Suspension")]
    resume_from: Option<PathBuf>,
    /// With --resume-from: go on from there also if the job has done so before and was not suspended again; what it has done since is done twice
    #[arg(long, requires = "resume_from", help_heading = "Suspension")]
    resume_again: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum MapByFlag {
    /// Round robin over the nodes
    Node,
    /// Fill the slots of one node before the next
    Slot,
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a variable is written NAME=VALUE".into()),
    }
}

/// A program that cannot be run, and the exit code that a shell has for it.
#[derive(Debug, PartialEq, Eq)]
struct NotRunnable {
    code: i32,
    why: String,
}

/// `radic run`. The result is the exit code.
pub(crate) fn run(cluster: &Cluster, args: &RunArgs) -> Result<u8> {
    let here = env::current_dir().context("the current directory")?;
    let program = match resolve(&args.command[0], env::var_os("PATH").as_deref(), &here) {
        Ok(program) => program,
        Err(NotRunnable { code, why }) => {
            report(&format!("radic: {why}"));
            return Ok(crate::outcome::exit_code(code));
        }
    };
    let inherited: Vec<_> = env::vars_os().collect();
    let environment = mpi::Environment { inherited: &inherited, explicit: &args.env };
    let plan = mpi::plan(args.mpi, &program, &environment)?;
    let decision = args.protection.decide(|| doctor::obstacles(&program, &plan, &environment));
    if args.explain {
        let explained = Explained { plan: &plan, protection: &decision };
        return if args.json { print_json(&explained) } else { Ok(print(&format!("{plan}\n{decision}"))?) }.map(|()| 0);
    }
    if let Some(why) = decision.refusal() {
        bail!(why);
    }
    if let Some(warning) = decision.warning() {
        report(&format!("radic: warning: {warning}"));
    }
    if let Some((dir, source, saved)) = suspended(cluster, args, &program)? {
        let on_signal = args.on_signal.decide(cluster, Some(dir))?;
        report(&format!("radic: job {} goes on from {}", saved.job(), dir.display()));
        let resume = Resume { dir, nodes: &args.nodes, label: args.label, again: args.resume_again, must_mark: true };
        return resume.go_on(cluster, &cluster.load_key()?, &source, saved, on_signal);
    }
    let on_signal = on_signal(cluster, args, &decision)?;
    let size = size(cluster, args)?;
    let spec = job_spec(args, size, &here, &program, inherited, &plan, &decision)?;
    spec.validate().context("this job cannot be started")?;
    let mut connection = cluster.connect(None)?;
    let request = Request::Run { spec: Box::new(spec), attach: !args.detach };
    if !args.detach {
        return session::attach(cluster, connection, &request, args.label, on_signal);
    }
    match connection.ask(&request, session::START)? {
        Reply::Attached { job, .. } => print(&format!("{job}\n"))?,
        other => return Err(connection.unexpected(&other).into()),
    }
    Ok(0)
}

/// What is to suspend a job that starts.
fn on_signal(cluster: &Cluster, args: &RunArgs, decision: &Decision) -> Result<Option<OnSignal>> {
    ensure!(
        !args.on_signal.is_given() || decision.protection.protect == Protect::On,
        "--suspend-to: a job without protection has no checkpoints, so it cannot be suspended; `radic doctor -- PROGRAM` says what stands in the way"
    );
    args.on_signal.decide(cluster, None)
}

/// The job that `--resume-from` means; none: the program is to be started.
fn suspended<'a>(cluster: &Cluster, args: &'a RunArgs, program: &Path) -> Result<Option<(&'a Path, Source, Saved)>> {
    let Some(dir) = args.resume_from.as_deref() else { return Ok(None) };
    let look = Source::look(dir, || Ok(cluster.load_key()?));
    let found = look.context("--resume-from: restore the folder, or remove it to start from the beginning")?;
    let why = match &found {
        None => "holds no suspended job".to_owned(),
        Some((_, saved)) => match &saved.mark {
            Some(mark) if mark.is_finished() => format!("held job {}, which {}", saved.job(), mark.text()),
            Some(mark) if !args.resume_again => bail!(content::resumed(dir, saved.job(), mark)),
            _ => {
                check_same(args, program, saved).with_context(|| format!("--resume-from {}", dir.display()))?;
                return Ok(found.map(|(source, saved)| (dir, source, saved)));
            }
        },
    };
    report(&format!("radic: {} {why}: the program starts from its beginning", dir.display()));
    Ok(None)
}

/// Whether the suspended job is what this command line would start.
fn check_same(args: &RunArgs, program: &Path, saved: &Saved) -> Result<()> {
    let (job, spec) = (saved.job(), &saved.manifest.suspension.ward.spec);
    let same = spec.program == program.as_os_str().as_bytes()
        && spec.args.iter().skip(1).map(|word| &word[..]).eq(args.command.iter().skip(1).map(|word| word.as_bytes()));
    let what = "`radic resume` goes on with it; to start from the beginning, remove the folder or name another";
    ensure!(same, "job {job} is suspended there, which is `{}`, not what this command line says; {what}", spec.command_line());
    ensure!(
        args.n.is_none_or(|n| n == spec.ranks),
        "job {job} is suspended there, which has {} ranks, and -n is {}; {what}",
        spec.ranks,
        args.n.unwrap_or_default()
    );
    Ok(())
}

/// What `--explain --json` prints.
#[derive(Serialize)]
struct Explained<'a> {
    #[serde(flatten)]
    plan: &'a mpi::Plan,
    protection: &'a Decision,
}

/// How many ranks a job has, and on which nodes; none: on all that are no spares.
#[derive(Debug, PartialEq, Eq)]
struct Size {
    ranks: u32,
    nodes: Vec<NodeName>,
}

/// What the flags, or else the allocation around this command, say.
fn size(cluster: &Cluster, args: &RunArgs) -> Result<Size> {
    let needed = args.node_count.is_some() || args.ntasks_per_node.is_some();
    let members = match &args.nodes[..] {
        [] if needed => match cluster.ask(&Request::Status, client::ANSWER)? {
            Reply::Status(status) => regular(&status),
            other => bail!("the daemon answered {other:?} to a question about the nodes"),
        },
        named => named.to_vec(),
    };
    // What the flags say need not be looked for.
    let asked = if args.n.or(args.ntasks_per_node).is_none() { launch::tasks() } else { None };
    let tasks = asked.map(|(source, tasks)| tasks.with_context(|| format!("{source}: say -n")).map(|tasks| (source, tasks)));
    let tasks = tasks.transpose()?;
    work_out(args.n, args.node_count, args.ntasks_per_node, members, tasks.as_ref().map(|(source, tasks)| (*source, &**tasks)))
}

/// The nodes that host ranks now, in the order in which ranks go to them.
fn regular(status: &ClusterStatus) -> Vec<NodeName> {
    let hosts = status.nodes.iter().filter(|node| node.state == NodeState::Alive && node.role == Role::Node);
    hosts.map(|node| node.name.clone()).collect()
}

/// `nodes`: those to choose from, if it matters.
fn work_out(
    n: Option<u32>,
    count: Option<u32>,
    each: Option<u32>,
    mut nodes: Vec<NodeName>,
    tasks: Option<(&str, &str)>,
) -> Result<Size> {
    if let Some(count) = count {
        ensure!(
            count as usize <= nodes.len(),
            "-N {count}: the cluster has {} nodes that host ranks; `radic nodes` shows them",
            nodes.len()
        );
        nodes.truncate(count as usize);
    }
    let room = each.map(|each| each.saturating_mul(nodes.len() as u32));
    let ranks = match (n, room, tasks) {
        (Some(n), Some(room), _) if n > room => {
            bail!("-n {n}: {} nodes with --ntasks-per-node {} take {room} ranks", nodes.len(), room / nodes.len() as u32)
        }
        (Some(n), _, _) => n,
        (None, Some(room), _) => room,
        (None, None, Some((source, tasks))) => {
            tasks.parse().ok().with_context(|| format!("{source} is {tasks:?}, which is no number: say -n"))?
        }
        (None, None, None) => {
            let what = "how many ranks? Say -n N, or --ntasks-per-node K; in a script of sbatch, qsub or bsub the number of its tasks or slots counts";
            return Err(Usage(what).into());
        }
    };
    Ok(Size { ranks, nodes })
}

fn job_spec(
    args: &RunArgs,
    size: Size,
    here: &Path,
    program: &Path,
    inherited: Vec<(OsString, OsString)>,
    plan: &mpi::Plan,
    decision: &Decision,
) -> Result<JobSpec> {
    let dir = args.wd.as_ref().map_or_else(|| here.to_owned(), |wd| here.join(wd));
    ensure!(dir.is_dir(), "--wd {}: no such folder", dir.display());
    let mut words = args.command.clone();
    // What the program makes of its own name must hold in its directory.
    if dir != here && words[0].as_bytes().contains(&b'/') {
        words[0] = program.into();
    }
    Ok(JobSpec {
        program: bytes(program.as_os_str()),
        args: words.iter().map(|word| bytes(word)).collect(),
        env: environment(inherited, plan, &args.env, &dir),
        templates: plan.templates(),
        dir: bytes(dir.as_os_str()),
        ranks: size.ranks,
        nodes: size.nodes,
        map_by: match args.map_by {
            MapByFlag::Node => MapBy::Node,
            MapByFlag::Slot => MapBy::Slot,
        },
        umask: umask(),
        protection: decision.protection.clone(),
        mtbf_s: args.protection.mtbf.as_secs(),
        restart_on: decision.restart_on,
        on_loss: decision.on_loss,
        life: 0,
    })
}

/// This command's file mode creation mask: it can only be read by setting it, which no other thread sees here.
fn umask() -> u32 {
    let mask = stat::umask(stat::Mode::empty());
    stat::umask(mask);
    mask.bits()
}

fn bytes(text: &OsStr) -> ByteBuf {
    ByteBuf::from(text.as_bytes())
}

/// The caller's environment, without what a launcher around us has left there, and with what the user adds.
fn environment(
    inherited: Vec<(OsString, OsString)>,
    plan: &mpi::Plan,
    explicit: &[(String, String)],
    dir: &Path,
) -> Vec<(ByteBuf, ByteBuf)> {
    let passed_on = inherited.into_iter().filter(|(name, _)| name != "PWD" && !plan.removes(name));
    let ours = passed_on.chain([("PWD".into(), dir.into())]);
    let mut variables: Vec<_> =
        ours.map(|(name, value)| (ByteBuf::from(name.into_vec()), ByteBuf::from(value.into_vec()))).collect();
    for (name, value) in explicit {
        variables.retain(|(known, _)| known.as_slice() != name.as_bytes());
        variables.push((ByteBuf::from(name.as_bytes()), ByteBuf::from(value.as_bytes())));
    }
    variables
}

/// Finds a program as a shell does: a name with a slash is a path, any other is looked for in `path`.
fn resolve(name: &OsStr, path: Option<&OsStr>, here: &Path) -> Result<PathBuf, NotRunnable> {
    let shown = name.display();
    let missing = |why| Err(NotRunnable { code: exit_code::NOT_FOUND, why });
    if name.as_bytes().contains(&b'/') {
        let program = here.join(name);
        return match check(&program) {
            Found::Program => Ok(program),
            Found::Nothing => missing(format!("{shown}: no such file; give the program's path")),
            Found::Hidden => Err(NotRunnable {
                code: exit_code::CANNOT_EXECUTE,
                why: format!("{shown}: permission denied: a folder on the way to it may not be searched"),
            }),
            Found::Other(why) => Err(NotRunnable { code: exit_code::CANNOT_EXECUTE, why: format!("{shown}: {why}") }),
        };
    }
    let (mut other, mut closed) = (None, None);
    // An empty entry of PATH stands for the current directory; joining gives just that.
    for dir in path.into_iter().flat_map(env::split_paths) {
        let program = here.join(dir).join(name);
        match check(&program) {
            Found::Program => return Ok(program),
            Found::Nothing => {}
            // It cannot be known whether it is in a directory that may not be searched: that is not to have found it.
            Found::Hidden => closed = closed.or(program.parent().map(|dir| format!("; {} may not be searched", dir.display()))),
            Found::Other(why) => other = other.or(Some(format!("{}: {why}", program.display()))),
        }
    }
    match other {
        Some(why) => Err(NotRunnable { code: exit_code::CANNOT_EXECUTE, why }),
        None => {
            let here =
                if here.join(name).is_file() { format!("; did you mean ./{shown}?") } else { "; give its path".to_owned() };
            missing(format!("{shown}: not found in PATH{}{here}", closed.unwrap_or_default()))
        }
    }
}

/// What a path is to a shell that looks for a program.
enum Found {
    Program,
    Nothing,
    /// Behind a directory that may not be searched.
    Hidden,
    Other(&'static str),
}

fn check(path: &Path) -> Found {
    match fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Found::Hidden,
        Err(_) => Found::Nothing,
        Ok(meta) if meta.is_dir() => Found::Other("is a directory; give the program itself"),
        Ok(_) if access(path, AccessFlags::X_OK).is_err() => Found::Other("may not be executed; `chmod +x` sets its x bit"),
        Ok(_) => Found::Program,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn put(dir: &Path, name: &str, mode: u32) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path();
        put(here, "bin1/tool", 0o644);
        put(here, "bin2/tool", 0o755);
        put(here, "bin1/data", 0o644);
        put(here, "local", 0o755);
        fs::create_dir(here.join("bin1/dir")).unwrap();
        let path = env::join_paths([here.join("bin1"), here.join("bin2")]).unwrap();
        let find = |name: &str| resolve(OsStr::new(name), Some(&path), here).map_err(|e| e.code);
        assert_eq!(find("tool"), Ok(here.join("bin2/tool")), "the first that can be executed");
        assert_eq!(find("./local"), Ok(here.join("./local")));
        assert_eq!(find("bin2/tool"), Ok(here.join("bin2/tool")));
        assert_eq!(find("local"), Err(127));
        assert_eq!(find("absent"), Err(127));
        assert_eq!(find("./absent"), Err(127));
        assert_eq!(find("data"), Err(126));
        assert_eq!(find("bin1/data"), Err(126));
        assert_eq!(find("bin1/dir"), Err(126));
        let hint = resolve(OsStr::new("local"), Some(&path), here).unwrap_err().why;
        assert_eq!(hint, "local: not found in PATH; did you mean ./local?");
        assert_eq!(resolve(OsStr::new("local"), Some(OsStr::new("")), here), Ok(here.join("local")));
    }

    #[test]
    fn the_number_of_ranks_is_what_the_flags_say_and_else_what_the_batch_system_says() {
        let nodes = || ["a", "b", "c"].map(|name| name.parse().unwrap()).to_vec();
        let size = |n, count, each, tasks: Option<&str>| {
            work_out(n, count, each, nodes(), tasks.map(|tasks| ("NSLOTS", tasks))).map(|size| (size.ranks, size.nodes.len()))
        };
        assert_eq!(size(Some(5), None, None, Some("8")).unwrap(), (5, 3));
        assert_eq!(size(None, None, None, Some("8")).unwrap(), (8, 3));
        assert_eq!(size(None, Some(2), None, Some("8")).unwrap(), (8, 2));
        assert_eq!(size(None, None, Some(2), Some("8")).unwrap(), (6, 3));
        assert_eq!(size(None, Some(2), Some(4), None).unwrap(), (8, 2));
        assert_eq!(size(Some(3), Some(2), Some(2), None).unwrap(), (3, 2));
        for (wrong, part) in [
            (size(None, None, None, None), "how many ranks"),
            (size(None, None, None, Some("x")), "NSLOTS"),
            (size(Some(1), Some(4), None, None), "-N 4"),
            (size(Some(5), Some(2), Some(2), None), "take 4 ranks"),
        ] {
            let error = wrong.unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn variables_need_a_name() {
        assert_eq!(parse_variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(parse_variable("A="), Ok(("A".into(), String::new())));
        assert!(parse_variable("=x").is_err() && parse_variable("A").is_err());
    }
}
