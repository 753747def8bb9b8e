//! What benchmarks of MPI programs share: the same program under the library's own mpiexec and under `radic run`, with the same settings of
//! the library, on a cluster that may be started for this.

use std::fs;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use nix::poll::{PollFd, PollFlags};
use radic_wire::job::placeholder;
use serde::Serialize;

use crate::client::{self, Cluster};
use crate::cluster;
use crate::format::report;
use crate::local_node::{Namespace, StartOptions};
use crate::mpi::{self, Plan};
use crate::progress::{Progress, TICK};
use crate::terminal::Signals;

/// Time that one run may take, unless more is given.
const LIMIT: Duration = Duration::from_secs(120);
/// Longest output of one run, in bytes.
const OUTPUT: usize = 64 << 10;
/// A setting for ranks without mpirun; mpirun itself does not start without its session directory.
const NOT_NATIVE: &str = "OMPI_MCA_orte_create_session_dirs";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Library {
    /// MPICH
    Mpich,
    /// Intel MPI, with the program for MPICH
    Intel,
    /// Open MPI 4
    Openmpi,
    /// Open MPI 5
    Openmpi5,
}

impl Library {
    /// The folder of programs for it.
    fn folder(self) -> &'static str {
        match self {
            Library::Openmpi => "openmpi",
            Library::Openmpi5 => "openmpi5",
            Library::Mpich | Library::Intel => "mpich",
        }
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
            Library::Openmpi5 => &[
                ("PRTE_MCA_hwloc_default_binding_policy", "none"),
                ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
                ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
                ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
                ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
                ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ],
        }
    }
}

/// Everything that a run needs but its program.
pub(super) struct Runs {
    library: Library,
    pub(super) mpiexec: PathBuf,
    plan: Plan,
    /// LD_LIBRARY_PATH, where the program is to use another library than its own.
    library_path: Vec<(String, String)>,
    signals: Signals,
    /// Time that one run may take.
    limit: Duration,
    /// How far the benchmark is.
    pub(super) progress: Progress,
}

impl Runs {
    /// Runs of this program, and of others that use the same library.
    pub(super) fn new(library: Library, program: &Path, mpiexec: Option<&Path>, progress: Progress) -> Result<Self> {
        let library_path = library_path(library)?;
        let inherited: Vec<_> = std::env::vars_os().collect();
        let environment = mpi::Environment { inherited: &inherited, explicit: &library_path };
        let plan = mpi::plan(mpi::Choice::Auto, program, &environment)?;
        let mpiexec = mpiexec.map_or_else(|| find_mpiexec(library, &plan), |path| Ok(path.to_owned()))?;
        // An interrupt ends the runs, which are in the foreground with us; we end what we have started, and then ourselves.
        let signals = Signals::block(None).context("cannot wait for signals")?;
        Ok(Runs { library, mpiexec, plan, library_path, signals, limit: LIMIT, progress })
    }

    /// Runs of this program under RADIC only: no mpiexec is needed.
    pub(super) fn protected(library: Library, program: &Path, progress: Progress) -> Result<Self> {
        Self::new(library, program, Some(Path::new("mpiexec")), progress)
    }

    /// Runs that may take so long, if that is more than others may.
    pub(super) fn lasting(self, limit: Duration) -> Self {
        Runs { limit: self.limit.max(limit), ..self }
    }

    /// The program under the library's own mpiexec.
    pub(super) fn native(&self, ranks: u32, program: &Path, options: &[String]) -> Command {
        let mut command = Command::new(&self.mpiexec);
        command.arg("-n").arg(ranks.to_string()).arg(program).args(options);
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

    /// The program under `radic run` with these flags.
    pub(super) fn radic(
        &self,
        cluster: &Cluster,
        ranks: u32,
        flags: &[&str],
        program: &Path,
        options: &[String],
    ) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("where this command is")?);
        command.arg("--cluster").arg(cluster.dir()).args(["run", "-n", &ranks.to_string()]).args(flags);
        command.args(self.library.further_settings().iter().map(|(name, value)| format!("--env={name}={value}")));
        command.args(self.library_path.iter().map(|(name, value)| format!("--env={name}={value}")));
        command.arg("--").arg(program).args(options);
        Ok(command)
    }

    /// Runs a command to its end; what it printed.
    pub(super) fn run(&mut self, command: Command) -> Result<String> {
        let started = self.start(command)?;
        self.finish(started)
    }

    /// Starts a command.
    pub(super) fn start(&self, mut command: Command) -> Result<Started> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let name = command.get_program().display().to_string();
        let child = self.signals.unblocked(|| command.spawn()).context("signals")?;
        Ok(Started { child: child.with_context(|| format!("cannot start {name}"))?, name })
    }

    /// Waits for its end; what it printed.
    pub(super) fn finish(&mut self, started: Started) -> Result<String> {
        let name = started.name.clone();
        let (code, output) = self.end(started)?;
        ensure!(code == Some(0), "{name} failed (exit code {code:?}):\n{output}");
        Ok(output)
    }

    /// Waits for its end; its exit code and what it printed.
    pub(super) fn end(&mut self, mut started: Started) -> Result<(Option<i32>, String)> {
        let output = read_output(&mut started.child, self.limit, &self.progress);
        if output.is_err() {
            // It may have ended by itself meanwhile.
            let _ = started.child.kill();
        }
        let name = started.name.clone();
        let status = started.child.wait().with_context(|| format!("waiting for {name}"))?;
        self.not_interrupted()?;
        Ok((status.code(), output.with_context(|| name.clone())?))
    }

    /// An interrupt was for us, too.
    pub(super) fn not_interrupted(&mut self) -> Result<()> {
        ensure!(self.signals.next().context("signals")?.is_none(), "interrupted");
        Ok(())
    }
}

/// A command that was started; killed when dropped.
pub(super) struct Started {
    child: Child,
    name: String,
}

impl Started {
    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().with_context(|| format!("waiting for {}", self.name))?.is_some())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // One that has ended, and was waited for, is left alone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_output(child: &mut Child, limit: Duration, progress: &Progress) -> Result<String> {
    let mut stdout = child.stdout.take().context("the pipe that was asked for")?;
    let deadline = Instant::now() + limit;
    let mut output = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "it takes longer than {} s", limit.as_secs());
        ensure!(output.len() < OUTPUT, "it prints more than {OUTPUT} bytes");
        let ready = {
            let mut fds = [PollFd::new(std::os::fd::AsFd::as_fd(&stdout), PollFlags::POLLIN)];
            // A reader of the line on the terminal sees that time passes.
            let wait = if progress.is_shown() { left.min(TICK) } else { left };
            client::poll_fds(&mut fds, Some(wait)).context("waiting for output")?;
            progress.tick();
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

/// A number in the line of JSON that a program has printed.
pub(super) fn figure(output: &str, name: &str) -> Result<f64> {
    let line = output.lines().find(|line| line.starts_with('{')).with_context(|| format!("no JSON line in:\n{output}"))?;
    let value: serde_json::Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
    value[name].as_f64().with_context(|| format!("no {name} in {line}"))
}

/// What a setting is for ranks on this machine's loopback network that another launcher starts; nothing if it is about ours.
fn on_loopback(value: &str) -> Option<String> {
    use placeholder::{JOBNUM, RADIC_PMI, RADIC_PMIX, RANK};
    if [JOBNUM, RADIC_PMI, RADIC_PMIX, RANK].iter().any(|p| value.contains(p)) {
        return None;
    }
    let value = value.replace(placeholder::IFACE, "lo").replace(placeholder::ADDRESS, "127.0.0.1");
    Some(value.replace(placeholder::PREFIX, "127.0.0.0/8"))
}

/// A cluster for this run only.
pub(super) struct Temporary {
    pub(super) cluster: Cluster,
}

impl Temporary {
    pub(super) fn start(nodes: u32) -> Result<Self> {
        Self::with_spares(nodes, 0)
    }

    pub(super) fn with_spares(nodes: u32, spares: u32) -> Result<Self> {
        Self::within(&[], nodes, spares)
    }

    /// In these network namespaces, one node in each; none: on the loopback network.
    pub(super) fn within(namespaces: &[Namespace], nodes: u32, spares: u32) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("radic-bench-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let temporary = Temporary { cluster: Cluster::new(Some(dir))? };
        cluster::start(
            &temporary.cluster,
            &StartOptions { namespaces, nodes, spares, witness: false, slots: None, heartbeat_ms: None, grace: None, http: None },
        )?;
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

/// One of the test programs, compiled for this library.
pub(super) fn find_program(library: Library, name: &str) -> Result<PathBuf> {
    in_deps(&format!("programs/{}/{name}", library.folder()))
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
    let names: &[&str] = match library {
        Library::Openmpi | Library::Openmpi5 => &["mpirun.openmpi", "mpirun"],
        Library::Mpich | Library::Intel => &["mpiexec.hydra", "mpiexec"],
    };
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
    fn settings_are_those_of_the_loopback_network() {
        assert_eq!(on_loopback("{iface}").as_deref(), Some("lo"));
        assert_eq!(on_loopback("{prefix}").as_deref(), Some("127.0.0.0/8"));
        assert_eq!(on_loopback("tcp,self").as_deref(), Some("tcp,self"));
        assert_eq!(on_loopback("{radic_pmi}"), None);
        assert_eq!(on_loopback("{radic_pmix}"), None);
    }

    #[test]
    fn the_program_s_report_is_read() {
        let output = "warning\n{\"bytes\":8,\"half_round_trip_us\":4.5}\nOK\n";
        assert_eq!(figure(output, "half_round_trip_us").unwrap(), 4.5);
        assert!(figure("OK\n", "half_round_trip_us").is_err());
        assert!(figure("{\"bytes\":8}\n", "half_round_trip_us").is_err());
    }
}
