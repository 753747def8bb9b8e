//! The `radic` command: starts and stops clusters, runs MPI programs on them, and shows what goes on.
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use radic_wire::ids::NodeName;
use radic_wire::job::exit_code;
use radic_wire::key::ClusterKey;
use radic_wire::local::Request;

use crate::client::Cluster;
use crate::format::Format;
use crate::record::Record;

mod bench;
mod chart;
mod ckpt;
mod client;
mod cluster;
mod counters;
mod doctor;
mod explain;
mod feed;
mod file;
mod format;
mod inject;
mod kill;
mod launch;
mod ledger;
mod local_node;
mod log;
mod manual;
mod mpi;
mod outcome;
mod printer;
mod progress;
mod protection;
mod record;
mod remove;
mod replay;
mod report;
mod resume;
mod run;
mod session;
mod show;
mod spare;
mod suspend;
mod terminal;
mod top;
mod web;

#[derive(Parser)]
#[command(
    name = "radic",
    version = radic_version::SHORT,
    long_version = radic_version::long(),
    about = "Runs MPI programs that survive the death of machines",
    after_help = "Example:\n  radic cluster start --nodes 4\n  radic run -n 4 -- ./program\n  radic cluster stop\n\n\
        Exit codes: that of the program; 113 if a node died that the program could not do without; 114 if the job was suspended; 125 if RADIC itself failed; \
        126 and 127 if the program cannot be executed or found; 2 for wrong usage. `radic explain CODE` says what to do."
)]
struct Cli {
    /// The cluster's folder on this machine [default: ~/.radic/cluster]
    #[arg(long, global = true, env = "RADIC_CLUSTER", value_name = "DIR")]
    cluster: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a cluster key: a new file that only you may read
    #[command(
        after_help = "Example:\n  radic key ~/.radic/key\n\nAn existing file is never overwritten: a running cluster may need it."
    )]
    Key {
        /// The file to make
        path: PathBuf,
    },
    /// Save one program while it runs, and let it go on from there: without a cluster
    #[command(subcommand)]
    Ckpt(ckpt::CkptCommand),
    /// Start or stop a cluster of logical nodes on this machine
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Run a program on the cluster and show its output here
    Run(Box<run::RunArgs>),
    /// Say before a run whether a program can be protected, and what stands in the way
    Doctor(doctor::DoctorArgs),
    /// Show a running job here, as if it had been started here
    #[command(after_help = "Example:\n  radic attach 4f3c\n\n\
        Another terminal that showed the job stops doing so. The exit code is that of the job. To leave again without ending \
        the job, close the terminal or send SIGHUP to this command.")]
    Attach {
        /// The job, or its first digits
        job: String,
        /// Begin each line with its rank
        #[arg(long)]
        label: bool,
    },
    /// End a job, and wait until nothing of it is left
    #[command(after_help = "Example:\n  radic kill 4f3c")]
    Kill {
        /// The job, or its first digits
        job: String,
    },
    /// Make a checkpoint of every rank of a job now, and wait until it is committed
    #[command(after_help = "Example:\n  radic checkpoint 4f3c\n\n\
        The exit code is 0 if every rank has a checkpoint that was committed since the command was given, else 125.")]
    Checkpoint {
        /// The job, or its first digits
        job: String,
        #[command(flatten)]
        format: Format,
    },
    /// Stop a job where it is, write all of it to a folder, and end it; `radic resume` goes on with it
    #[command(
        after_help = "Example:\n  radic suspend 4f3c /scratch/4f3c\n  radic cluster stop\n  ...\n  radic resume /scratch/4f3c\n\n\
        Each rank makes a checkpoint; then all are stopped, and their checkpoints, their logs, and how far their output has come are \
        written. If that fails, or this command is interrupted, the job goes on as if nothing had been. `radic run` ends with exit code \
        114. Only a protected job all of whose ranks run can be suspended."
    )]
    Suspend(suspend::SuspendArgs),
    /// Go on with a job that was suspended, on whatever nodes there are
    #[command(after_help = "Examples:\n  radic resume /scratch/4f3c\n  radic resume /scratch/4f3c --nodes n2,n3\n\n\
        Every file is verified before anything starts. The cluster needs the key that the old one had (see `radic key`), and its nodes the \
        program, its libraries and its files, under the same paths. Output goes on behind the last byte that a terminal had printed; \
        standard input is read from this terminal from now on. \
        The folder stays, and says from now on that the job has gone on: as long as the job does not run it can be resumed from there again by this command, \
        but `radic run --resume-from` wants --resume-again for that.")]
    Resume(resume::ResumeArgs),
    /// Look at the logs of protected ranks
    #[command(subcommand)]
    Log(log::LogCommand),
    /// Replay one rank alone, from its last checkpoint to the end of its log, and compare the bytes it sends with those it sent
    #[command(after_help = "Example:\n  radic run -n 4 --protect on --keep-logs -- ./program\n  radic replay 4f3c 0\n\n\
        Needs a committed checkpoint, and the program's files as they were. Of a job that has ended the logs are there only if it was \
        started with --keep-logs; without it, what the receivers' own checkpoints have made superfluous cannot be compared either. The \
        exit code is 0 if the whole log was replayed and every stream is as long as its receiver has it.")]
    Replay(replay::ReplayArgs),
    /// List the running jobs
    #[command(after_help = "Example:\n  radic jobs --all --json")]
    Jobs {
        /// Those that have ended, too
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        format: Format,
    },
    /// List the nodes and what runs on them
    #[command(after_help = "Example:\n  radic nodes --json")]
    Nodes {
        #[command(flatten)]
        format: Format,
    },
    /// List spares: nodes that take the ranks of a node that dies
    #[command(subcommand)]
    Spare(spare::SpareCommand),
    /// Show the state of the cluster
    #[command(after_help = "Example:\n  radic status")]
    Status {
        #[command(flatten)]
        format: Format,
    },
    /// Watch nodes, jobs, ranks and events on one screen
    #[command(after_help = "Examples:\n  radic top\n  radic top 4f3c --interval 0.5\n  radic top --once\n\n\
        Enter opens a job's ranks and a rank's streams, Esc goes back, s sorts, / filters, ? explains keys and columns, q leaves. Only what `radic status` tells is \
        asked for: no rank is stopped or slowed. NO_COLOR in the environment turns colours off.")]
    Top(top::TopArgs),
    /// Print the address of the page that radicd serves (`radicd --http`), with a token for it
    #[command(after_help = "Examples:\n  radic web\n  radic web --token --for 365d > /etc/prometheus/radic.token\n  \
        curl -H \"Authorization: Bearer $(radic web --token)\" http://127.0.0.1:7118/metrics\n\n\
        The token is made from the cluster's key, so it is taken by every node, and until its time is over or the cluster has another key. Whoever has it can look at \
        everything, and change nothing.")]
    Web(web::WebArgs),
    /// Show what has happened, on all nodes
    #[command(after_help = "Example:\n  radic events --follow --json\n\nWith --json each event is one line.")]
    Events {
        /// Keep printing events as they happen
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        format: Format,
    },
    /// Report on a job: what happened when, what deaths and protection cost, what to change
    #[command(
        after_help = "Examples:\n  radic report 4f3c\n  radic report 4f3c --html report.html\n  radic report 4f3c --svg report.svg --mtbf 30d\n\n\
        Of a job that runs, or of one that has ended and is still remembered: the nodes keep their last events, and what ranks have counted. What is not known \
        is said. A file that is there already stays as it is; new ones are readable by you alone. No rank is asked for anything."
    )]
    Report(report::ReportArgs),
    /// Say what an exit code of `radic run`, or the name of an event, means, and what can be done
    Explain(explain::ExplainArgs),
    /// Measure what RADIC costs
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Cause a failure, for tests
    #[command(subcommand)]
    Inject(inject::InjectCommand),
    /// Print a shell completion script
    #[command(after_help = "Examples:\n  radic completions bash > ~/.local/share/bash-completion/completions/radic\n  \
        radic completions zsh > ~/.zfunc/_radic\n  radic completions fish > ~/.config/fish/completions/radic.fish\n\n\
        Packages and `make install` have done so already.")]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: manual::Shell,
        /// The program whose command line is completed
        #[arg(long, value_enum, default_value_t = manual::Program::Radic)]
        of: manual::Program,
    },
    /// Write the manual pages of radic and radicd to a folder: for packages
    #[command(hide = true, after_help = "Example:\n  radic man target/man && man -l target/man/radic-run.1")]
    Man {
        /// The folder; it is made if need be
        dir: PathBuf,
    },
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Start a cluster in the background, on this machine or on others; no root needed
    #[command(after_help = "Examples:\n  radic cluster start --nodes 4 --spares 1\n  radic run -n 4 -- ./program\n\n  \
        radic cluster start --nodes 4 --http && radic web\n\n  \
        radic cluster start --hosts node1,node2,node3,node4 --spares 1\n  \
        radic cluster start --hosts hostfile --rsh \"ssh -p 2222\"\n  \
        radic cluster start --slurm --spares 1\n  \
        radic cluster start --scheduler gridengine --spares 1\n\n\
        With --nodes every node is a daemon (radicd) with a port of its own on 127.0.0.1. Nodes are called n1, n2, ..., spares s1, s2, ..., \
        a witness w1. With --hosts nodes have the names of their hosts; the last host is the witness, those before it the spares. A host that \
        cannot be reached is told, and the others go on without it. With --slurm, in a script of sbatch or under salloc, it is the same with the \
        allocation's nodes; DIR is ~/.radic/slurm-JOB then, if no other is named. With --scheduler pbs, gridengine or lsf, in a script of that batch \
        system, it is the same with the nodes of its job. DIR/nodes/NAME/log, on its host, holds what a node has to say.")]
    Start {
        /// How many nodes, on this machine
        #[arg(long, short, value_name = "N", required_unless_present_any = ["hosts", "slurm", "scheduler"], value_parser = clap::value_parser!(u32).range(1..=1024))]
        nodes: Option<u32>,
        /// How many spares: nodes that host nothing until another has died
        #[arg(long, value_name = "S", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1024))]
        spares: u32,
        /// Add a witness, w1: it votes on which nodes are dead, and hosts nothing; so two nodes, or the last two of more, survive the death of one
        #[arg(long)]
        witness: bool,
        /// Ranks that `radic run --map-by slot` places on a node before it goes to the next [default: the number of cores]
        #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
        slots: Option<u32>,
        /// Time between two heartbeats, in milliseconds [default: 100]
        #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
        heartbeat_ms: Option<u64>,
        /// Time for the jobs on a node to make a checkpoint when its daemon gets SIGTERM, in seconds, before the node leaves [default: 0]
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
        grace: Option<u64>,
        /// Every node serves a page and OpenMetrics over HTTP: on this address, which may lack its port (7118), or on loopback; `radic web` tells where, with a token.
        /// [default: no page]
        #[arg(long, value_name = "ADDR:PORT", value_parser = radic_protector::config::parse_http)]
        http: Option<Option<SocketAddr>>,
        #[command(flatten)]
        launch: Box<launch::LaunchArgs>,
        /// The cluster's folder, the same on every host; the same as --cluster
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        #[command(flatten)]
        format: Format,
    },
    /// Start one node with settings from standard input (internal)
    #[command(
        hide = true,
        after_help = "Example:\n  ssh n1 radic cluster agent --name n1\n\n\
        What is said is private to one release."
    )]
    Agent(launch::agent::AgentArgs),
    /// End the batch job when its script's node is lost (internal)
    #[command(hide = true, after_help = "Example:\n  radic cluster watch --name n2 --lost n1 --dir DIR -- 'qdel 7'")]
    Watch(launch::watch::WatchArgs),
    /// End a job of Slurm whose script is lost, with the exit code of its program
    #[command(
        hide = true,
        after_help = "Example:\n  radic cluster complete-slurm 4711 0\n\n\
        A node runs this when the node of the script is lost and the programs have ended (`radic cluster start --when-over` says another command). The \
        library of the installed Slurm is asked to, in a process of its own: Slurm shows the job as COMPLETED, or as FAILED with its code. If the code is not known, or \
        the library is not found, fails or takes longer than 10 s, the job is ended by scancel, and the reason is told. If the library says that Slurm's controller is not \
        reached, nothing is done: the node tries again 10 s later."
    )]
    CompleteSlurm(launch::complete::CompleteArgs),
    /// End the cluster and every job on it
    #[command(
        after_help = "Example:\n  radic cluster stop\n\nA cluster that was started on other hosts from here is ended on each of them, by the same \
        remote shell. The key stays, the nodes' logs do not."
    )]
    Stop {
        /// Stop only this node's daemon on this host
        #[arg(long, value_name = "NAME", hide = true)]
        only: Option<NodeName>,
        /// The cluster's folder; the same as --cluster
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        #[command(flatten)]
        format: Format,
    },
}

fn main() -> ExitCode {
    match dispatch(Cli::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(e) if is_broken_pipe(&e) => ExitCode::from(128 + nix::sys::signal::Signal::SIGPIPE as u8),
        Err(e) => {
            format::report(&format!("radic: {e:#}"));
            let of_radic = || outcome::exit_code(exit_code::RADIC);
            ExitCode::from(if e.is::<outcome::Usage>() { outcome::USAGE_CODE } else { of_radic() })
        }
    }
}

/// Whether the reader of our output went away, which is no failure of ours.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

fn dispatch(cli: Cli) -> Result<u8> {
    let dir_of_job = || match &cli.command {
        Command::Cluster(ClusterCommand::Start { launch, .. }) => launch.default_dir(),
        _ => None,
    };
    // Else that of the job of a batch system around this process, if it has a cluster.
    let there = || launch::default_dir().filter(|dir| dir.is_dir());
    // An empty variable is as good as none.
    let named = cli.cluster.clone().filter(|dir| !dir.as_os_str().is_empty());
    let cluster = Cluster::new(named.or_else(dir_of_job).or_else(there))?;
    match cli.command {
        Command::Key { path } => make_key(&path)?,
        Command::Cluster(command) => return control_cluster(cluster, command),
        Command::Run(args) => return run::run(&cluster, &args),
        Command::Doctor(args) => return doctor::run(&args),
        Command::Attach { job, label } => {
            return session::attach(&cluster, cluster.connect(None)?, &Request::Attach { job }, label, None);
        }
        Command::Kill { job } => kill::kill(&cluster, &job)?,
        Command::Checkpoint { job, format } => return counters::checkpoint(&cluster, job, format.json),
        Command::Suspend(args) => suspend::suspend(&cluster, &args)?,
        Command::Resume(args) => return resume::resume(&cluster, &args),
        Command::Log(command) => log::dispatch(&cluster, command)?,
        Command::Replay(args) => replay::replay(&cluster, args)?,
        Command::Jobs { all, format } => show::jobs(&cluster, all, format.json)?,
        Command::Nodes { format } => show::nodes(&cluster, format.json)?,
        Command::Status { format } => show::status(&cluster, format.json)?,
        Command::Top(args) => top::top(&cluster, &args)?,
        Command::Web(args) => web::web(&cluster, &args)?,
        Command::Events { follow, format } => show::events(&cluster, follow, format.json)?,
        Command::Report(args) => report::report(&cluster, &args)?,
        Command::Ckpt(command) => return ckpt::dispatch(command),
        Command::Bench(command) => bench::dispatch(&cluster, &command)?,
        Command::Inject(command) => inject::inject(&cluster, command)?,
        Command::Spare(command) => spare::dispatch(&cluster, command)?,
        Command::Explain(args) => explain::run(&args)?,
        Command::Completions { shell, of } => manual::complete(shell, of)?,
        Command::Man { dir } => manual::write(&dir)?,
    }
    Ok(0)
}

fn make_key(path: &std::path::Path) -> Result<()> {
    ClusterKey::generate()?.create(path)?;
    format::report(&format!(
        "radic: a new key is in {}; every node of the cluster needs it, and no one else may have it",
        path.display()
    ));
    Ok(())
}

fn control_cluster(cluster: Cluster, command: ClusterCommand) -> Result<u8> {
    match command {
        ClusterCommand::Start { nodes, spares, witness, slots, heartbeat_ms, grace, http, launch, dir, format } => {
            let cluster = dir.map_or(Ok(cluster), |dir| Cluster::new(Some(dir)))?;
            let options = local_node::StartOptions {
                namespaces: &[],
                nodes: nodes.unwrap_or(0),
                spares,
                witness,
                slots,
                heartbeat_ms,
                grace,
                http,
            };
            let launched = match &launch.hosts {
                Some(hosts) => launch::start_hosts(&cluster, hosts, &launch, &options)?,
                None if launch.slurm => launch::slurm::start(&cluster, &launch, &options)?,
                None => match launch.scheduler {
                    Some(scheduler) => launch::start_batch(&cluster, scheduler, &launch, &options)?,
                    None => cluster::start(&cluster, &options)?,
                },
            };
            cluster::show_started(&cluster, &launched, format.json)?;
        }
        ClusterCommand::Agent(args) => return launch::agent::run(&args),
        ClusterCommand::Watch(args) => return launch::watch::run_alone(args),
        ClusterCommand::CompleteSlurm(args) => return launch::complete::run(&args),
        ClusterCommand::Stop { only, dir, format } => {
            let cluster = dir.map_or(Ok(cluster), |dir| Cluster::new(Some(dir)))?;
            if let Some(name) = only {
                cluster::show_stopped(&local_node::stop_only(&cluster, name.as_str())?, format.json)?;
            } else if let Some(record) =
                Record::read(cluster.dir())?.filter(|record| !record.batch || cluster.connect(None).is_err())
            {
                cluster::show_stopped(&cluster::stop_hosts(&cluster, &record)?, format.json)?;
            } else {
                cluster::show_stopped(&cluster::stop(&cluster)?, format.json)?;
            }
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_s_help_holds_an_example() {
        fn check(command: &clap::Command) {
            let leaf = command.get_subcommands().filter(|c| c.get_name() != "help").map(check).count() == 0;
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(!leaf || help.contains("Example"), "{} has no example", command.get_name());
        }
        check(&Cli::command());
    }
}
