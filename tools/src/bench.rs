//! `radic bench launch`: what `radic run` costs, compared with the library's own mpiexec.
//!
//! Both start the same program with the same settings of the library, in turn: native, RADIC, native, RADIC and so on, so that
//! whatever else the machine does hits both. Each run reports the median of its own exchanges; the medians over the runs are
//! compared. A ratio is RADIC's time divided by the native one: above 1, RADIC is slower. On a machine whose load changes, the
//! median of the ratios of neighbouring runs is the better witness, so it is reported, too.

use std::fs;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use nix::poll::{PollFd, PollFlags};
use radic_wire::job::placeholder;
use serde::Serialize;

use crate::client::{self, Cluster};
use crate::cluster::{self, StartOptions};
use crate::mpi::{self, Plan};
use crate::show::{print, print_json, report};
use crate::terminal::Signals;

/// Time that one run may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Longest output of one run, in bytes.
const OUTPUT: usize = 64 << 10;
/// Message sizes in bytes, and how many exchanges of each in one run.
const EXCHANGES: [(u64, u32); 2] = [(8, 20_000), (4 << 20, 150)];
/// A setting for ranks without mpirun; mpirun itself does not start without its session directory.
const NOT_NATIVE: &str = "OMPI_MCA_orte_create_session_dirs";
/// Launches that are timed.
const LAUNCHES: u32 = 3;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Compare message times and launching with the library's own mpiexec
    #[command(after_help = "Example:\n  radic bench launch --mpi mpich\n\n\
        Messages of 8 B and 4 MiB between two ranks, under mpiexec and under `radic run` in turn, with the same settings of the \
        library; then the time to launch many ranks, up to their end. Times are half round trips; a ratio is RADIC's median \
        divided by the native one; beside it stands the median of the ratios of the pairs. It runs on the chosen cluster if that is alive, else on one of 2 nodes that it starts and \
        stops itself; the comparison is fair for nodes on this machine's loopback network.")]
    Launch(LaunchArgs),
}

/// Flags of `radic bench launch`.
#[derive(Args)]
pub(crate) struct LaunchArgs {
    /// The library
    #[arg(long, value_enum, default_value_t = Library::Mpich)]
    mpi: Library,
    /// A ping-pong program with the options --size, --count and --json [default: that of `make deps`]
    #[arg(long)]
    program: Option<PathBuf>,
    /// The library's mpiexec [default: the one beside the program's libmpi]
    #[arg(long)]
    mpiexec: Option<PathBuf>,
    /// Pairs of runs for each message size
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Ranks to launch; 0: none
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(0..=4096))]
    ranks: u32,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Library {
    /// MPICH
    Mpich,
    /// Intel MPI, with the program for MPICH
    Intel,
    /// Open MPI 4
    Openmpi,
}

impl Library {
    /// The folder of programs for it.
    fn folder(self) -> &'static str {
        if self == Library::Openmpi { "openmpi" } else { "mpich" }
    }

    /// What mpiexec needs in order to do as RADIC does: no shared memory, no binding to cores. Both sides get it.
    fn further_settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Library::Mpich => &[("MPIR_CVAR_NOLOCAL", "1")],
            Library::Intel => &[("I_MPI_PIN", "0")],
            Library::Openmpi => &[
                ("OMPI_MCA_hwloc_base_binding_policy", "none"),
                ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
                ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
                ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ],
        }
    }
}

/// Least and middle of several times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Times {
    min: f64,
    median: f64,
}

impl Times {
    fn of(mut times: Vec<f64>) -> Self {
        assert!(!times.is_empty(), "at least one run is asked for");
        times.sort_by(f64::total_cmp);
        Times { min: times[0], median: times[times.len() / 2] }
    }
}

/// The same under mpiexec and under RADIC.
#[derive(Debug, Serialize)]
struct Comparison {
    native: Times,
    radic: Times,
    /// Of the medians.
    ratio: f64,
    /// The median of the ratios of the pairs.
    pair_ratio: f64,
}

impl Comparison {
    fn of(pairs: &[(f64, f64)]) -> Self {
        let (native, radic) = pairs.iter().copied().unzip();
        let (native, radic) = (Times::of(native), Times::of(radic));
        let ratios = pairs.iter().map(|(native, radic)| radic / native);
        Comparison { native, radic, ratio: radic.median / native.median, pair_ratio: Times::of(ratios.collect()).median }
    }
}

/// Messages of one size.
#[derive(Debug, Serialize)]
struct PingPong {
    bytes: u64,
    half_round_trip_us: Comparison,
}

/// Launching many ranks.
#[derive(Debug, Serialize)]
struct Launch {
    ranks: u32,
    seconds: Comparison,
}

#[derive(Debug, Serialize)]
struct Report {
    library: Library,
    program: PathBuf,
    mpiexec: PathBuf,
    pairs: u32,
    pingpong: Vec<PingPong>,
    launch: Option<Launch>,
}

/// `radic bench launch`.
pub(crate) fn launch(cluster: &Cluster, args: &LaunchArgs) -> Result<()> {
    let program = args.program.clone().map_or_else(|| find_program(args.mpi), Ok)?;
    let program = fs::canonicalize(&program).with_context(|| format!("--program {}", program.display()))?;
    let library_path = library_path(args.mpi)?;
    let inherited: Vec<_> = std::env::vars_os().collect();
    let environment = mpi::Environment { inherited: &inherited, explicit: &library_path };
    let plan = mpi::plan(mpi::Choice::Auto, &program, &environment)?;
    let mpiexec = args.mpiexec.clone().map_or_else(|| find_mpiexec(args.mpi, &plan), Ok)?;
    // An interrupt ends the runs, which are in the foreground with us; we end what we have started, and then ourselves.
    let signals = Signals::block().context("cannot wait for signals")?;
    let temporary = if cluster.connect(None).is_ok() { None } else { Some(Temporary::start()?) };
    let cluster = temporary.as_ref().map_or(cluster, |t| &t.cluster);
    let mut bench = Bench { library: args.mpi, program, mpiexec, plan, library_path, cluster, signals };
    let mut pingpong = Vec::new();
    for (bytes, count) in EXCHANGES {
        pingpong.push(bench.pingpong(bytes, count, args.pairs)?);
    }
    let launch = if args.ranks > 0 { Some(bench.launch(args.ranks)?) } else { None };
    let Bench { library, program, mpiexec, .. } = bench;
    let report = Report { library, program, mpiexec, pairs: args.pairs, pingpong, launch };
    if args.json { print_json(&report) } else { Ok(print(&report_text(&report))?) }
}

fn report_text(report: &Report) -> String {
    let mut text = format!("program  {}\nnative   {}\n\n", report.program.display(), report.mpiexec.display());
    text.push_str("                   native min   median    RADIC min   median   ratio  of pairs\n");
    for PingPong { bytes, half_round_trip_us } in &report.pingpong {
        let size = if *bytes < 1 << 20 { format!("{bytes} B") } else { format!("{} MiB", bytes >> 20) };
        text.push_str(&row(&format!("{size}, us"), half_round_trip_us));
    }
    if let Some(Launch { ranks, seconds }) = &report.launch {
        text.push_str(&row(&format!("{ranks} ranks, s"), seconds));
    }
    text
}

fn row(what: &str, Comparison { native, radic, ratio, pair_ratio }: &Comparison) -> String {
    let (native, radic) = [native, radic].map(|t| format!("{:>11.2} {:>8.2}", t.min, t.median)).into();
    format!("{what:<17} {native}  {radic}  {ratio:>6.3}  {pair_ratio:>8.3}\n")
}

/// Everything that a run needs.
struct Bench<'a> {
    library: Library,
    program: PathBuf,
    mpiexec: PathBuf,
    plan: Plan,
    /// LD_LIBRARY_PATH, where the program is to use another library than its own.
    library_path: Vec<(String, String)>,
    cluster: &'a Cluster,
    signals: Signals,
}

impl Bench<'_> {
    fn pingpong(&mut self, bytes: u64, count: u32, pairs: u32) -> Result<PingPong> {
        let options = ["--json", "--size", &bytes.to_string(), "--count", &count.to_string()].map(str::to_owned);
        let mut times = Vec::new();
        for pair in 1..=pairs {
            report(&format!("radic: {bytes} B, pair {pair} of {pairs}"));
            let native = half_round_trip(&self.run(self.native(2, &options))?)?;
            times.push((native, half_round_trip(&self.run(self.radic(2, &options)?)?)?));
        }
        Ok(PingPong { bytes, half_round_trip_us: Comparison::of(&times) })
    }

    fn launch(&mut self, ranks: u32) -> Result<Launch> {
        let options = ["--size", "8", "--count", "1"].map(str::to_owned);
        let mut times = Vec::new();
        for number in 1..=LAUNCHES {
            report(&format!("radic: {ranks} ranks, launch {number} of {LAUNCHES}"));
            let start = Instant::now();
            self.run(self.native(ranks, &options))?;
            let native = start.elapsed().as_secs_f64();
            let start = Instant::now();
            self.run(self.radic(ranks, &options)?)?;
            times.push((native, start.elapsed().as_secs_f64()));
        }
        Ok(Launch { ranks, seconds: Comparison::of(&times) })
    }

    /// The program under the library's own mpiexec.
    fn native(&self, ranks: u32, options: &[String]) -> Command {
        let mut command = Command::new(&self.mpiexec);
        command.arg("-n").arg(ranks.to_string()).arg(&self.program).args(options);
        for removed in &self.plan.removed {
            command.env_remove(&removed.name);
        }
        for (name, value) in self.plan.templates().into_iter().filter(|(name, _)| name != NOT_NATIVE) {
            if let Some(value) = on_loopback(&value) {
                command.env(name, value);
            }
        }
        command.envs(self.library.further_settings().iter().copied());
        command.envs(self.library_path.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The program under `radic run`.
    fn radic(&self, ranks: u32, options: &[String]) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("where this command is")?);
        command.arg("--cluster").arg(self.cluster.dir()).args(["run", "-n", &ranks.to_string()]);
        command.args(self.library.further_settings().iter().map(|(name, value)| format!("--env={name}={value}")));
        command.args(self.library_path.iter().map(|(name, value)| format!("--env={name}={value}")));
        command.arg("--").arg(&self.program).args(options);
        Ok(command)
    }

    /// Runs a command to its end; what it printed.
    fn run(&mut self, mut command: Command) -> Result<String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let name = command.get_program().display().to_string();
        let child = self.signals.unblocked(|| command.spawn()).context("signals")?;
        let mut child = child.with_context(|| format!("cannot start {name}"))?;
        let output = read_output(&mut child);
        if output.is_err() {
            // It may have ended by itself meanwhile.
            let _ = child.kill();
        }
        let status = child.wait().with_context(|| format!("waiting for {name}"))?;
        ensure!(self.signals.next().context("signals")?.is_none(), "interrupted");
        let output = output.with_context(|| name.clone())?;
        ensure!(status.success(), "{name} failed ({status}):\n{output}");
        Ok(output)
    }
}

fn read_output(child: &mut Child) -> Result<String> {
    let mut stdout = child.stdout.take().context("the pipe that was asked for")?;
    let deadline = Instant::now() + LIMIT;
    let mut output = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "it takes longer than {} s", LIMIT.as_secs());
        ensure!(output.len() < OUTPUT, "it prints more than {OUTPUT} bytes");
        let ready = {
            let mut fds = [PollFd::new(std::os::fd::AsFd::as_fd(&stdout), PollFlags::POLLIN)];
            client::poll_fds(&mut fds, Some(left)).context("waiting for output")?;
            fds[0].any().unwrap_or(false)
        };
        let mut buffer = [0; 4096];
        if ready {
            match stdout.read(&mut buffer).context("reading output")? {
                0 => return String::from_utf8(output).context("its output is no text"),
                n => output.extend_from_slice(&buffer[..n]),
            }
        }
    }
}

/// What the ping-pong program says: half the median round trip, in microseconds.
fn half_round_trip(output: &str) -> Result<f64> {
    let line = output.lines().find(|line| line.starts_with('{')).with_context(|| format!("no JSON line in:\n{output}"))?;
    let value: serde_json::Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
    value["half_round_trip_us"].as_f64().with_context(|| format!("no half_round_trip_us in {line}"))
}

/// What a setting is for ranks on this machine's loopback network that another launcher starts; nothing if it is about ours.
fn on_loopback(value: &str) -> Option<String> {
    if [placeholder::JOBNUM, placeholder::RADIC_PMI, placeholder::RANK].iter().any(|p| value.contains(p)) {
        return None;
    }
    let value = value.replace(placeholder::IFACE, "lo").replace(placeholder::ADDRESS, "127.0.0.1");
    Some(value.replace(placeholder::PREFIX, "127.0.0.0/8"))
}

/// A cluster for this run only.
struct Temporary {
    cluster: Cluster,
}

impl Temporary {
    fn start() -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("radic-bench-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let temporary = Temporary { cluster: Cluster::new(Some(dir))? };
        cluster::start(&temporary.cluster, &StartOptions { nodes: 2, spares: 0, slots: None, heartbeat_ms: None })?;
        Ok(temporary)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // If it never came to a start, there are no nodes.
        let stopped = if self.cluster.nodes_dir().exists() { cluster::stop(&self.cluster).map(drop) } else { Ok(()) };
        let result = stopped.and_then(|()| Ok(fs::remove_dir_all(self.cluster.dir())?));
        if let Err(e) = result {
            report(&format!("radic: what the benchmark started in {} is still there: {e:#}", self.cluster.dir().display()));
        }
    }
}

/// A path under .deps: of this directory, or of the tree that this command was built in.
fn in_deps(path: &str) -> Result<PathBuf> {
    let exe = std::env::current_exe().unwrap_or_default();
    let roots = std::env::current_dir().into_iter().chain(exe.ancestors().skip(1).map(Path::to_owned));
    let mut candidates = roots.map(|root| root.join(".deps").join(path));
    candidates.find(|p| p.exists()).with_context(|| format!("there is no .deps/{path}: run `make deps` first, or give --program"))
}

fn find_program(library: Library) -> Result<PathBuf> {
    in_deps(&format!("programs/{}/pingpong", library.folder()))
}

/// Intel MPI runs the program that was built with MPICH.
fn library_path(library: Library) -> Result<Vec<(String, String)>> {
    if library != Library::Intel {
        return Ok(Vec::new());
    }
    let mut path = fs::canonicalize(in_deps("impi/lib")?)?.into_os_string();
    if let Some(inherited) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(inherited);
    }
    let path = path.into_string().map_err(|path| anyhow!("LD_LIBRARY_PATH is no text: {}", path.display()))?;
    Ok(vec![("LD_LIBRARY_PATH".into(), path)])
}

/// The mpiexec of the library that the program loads.
fn find_mpiexec(library: Library, plan: &Plan) -> Result<PathBuf> {
    let names: &[&str] = if library == Library::Openmpi { &["mpirun.openmpi", "mpirun"] } else { &["mpiexec.hydra", "mpiexec"] };
    let libmpi = plan.recognition.library.as_deref().map(Path::new);
    let Some(libmpi) = libmpi else { bail!("which libmpi the program loads is not known: give --mpiexec") };
    let libmpi = fs::canonicalize(libmpi).with_context(|| libmpi.display().to_string())?;
    let prefixes = libmpi.ancestors().skip(2);
    let mut candidates = prefixes.flat_map(|prefix| names.iter().map(|name| prefix.join("bin").join(name)).collect::<Vec<_>>());
    let found = candidates.find(|path| path.is_file());
    found.with_context(|| format!("there is no mpiexec beside {}: give --mpiexec", libmpi.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(Times::of(vec![3.0, 1.0, 2.0]), Times { min: 1.0, median: 2.0 });
        assert_eq!(Times::of(vec![5.0]), Times { min: 5.0, median: 5.0 });
    }

    #[test]
    fn a_ratio_above_1_says_that_radic_is_slower() {
        let Comparison { native, radic, ratio, pair_ratio } = Comparison::of(&[(1.0, 2.0), (10.0, 30.0), (2.0, 3.0)]);
        assert_eq!((native.median, radic.median, ratio, pair_ratio), (2.0, 3.0, 1.5, 2.0));
    }

    #[test]
    fn settings_are_those_of_the_loopback_network() {
        assert_eq!(on_loopback("{iface}").as_deref(), Some("lo"));
        assert_eq!(on_loopback("{prefix}").as_deref(), Some("127.0.0.0/8"));
        assert_eq!(on_loopback("tcp,self").as_deref(), Some("tcp,self"));
        assert_eq!(on_loopback("{radic_pmi}"), None);
    }

    #[test]
    fn the_program_s_report_is_read() {
        let output = "warning\n{\"bytes\":8,\"half_round_trip_us\":4.5}\nOK\n";
        assert_eq!(half_round_trip(output).unwrap(), 4.5);
        assert!(half_round_trip("OK\n").is_err());
        assert!(half_round_trip("{\"bytes\":8}\n").is_err());
    }
}
