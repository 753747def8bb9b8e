//! `radic bench`: what RADIC costs.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;

use self::plot::{Panel, Spread};
use crate::client::Cluster;
use crate::file::NewFile;
use crate::format::{print, print_json, report};

mod ckpt;
mod launch;
mod net;
mod plot;
mod recover;
mod rival;
mod runs;
mod shaped;
mod subject;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Compare message times and launching with the library's own mpiexec
    #[command(after_help = "Example:\n  radic bench launch --mpi mpich\n\n\
        Messages of 8 B and 4 MiB between two ranks, under mpiexec and under `radic run` in turn, with the same settings of the \
        library; then the time to launch many ranks, up to their end. Times are half round trips; a ratio is RADIC's median \
        divided by the native one; beside it stands the median of the ratios of the pairs. It runs on the chosen cluster if that is alive, else on one of 2 nodes that it starts and \
        stops itself; the comparison is fair for nodes on this machine's loopback network.")]
    Launch(launch::LaunchArgs),
    /// Compare messages, collective operations and applications under protection with the library's own mpiexec
    #[command(
        after_help = "Examples:\n  radic bench net --rounds 5\n  radic bench net --only messages,applications --mpi openmpi --json\n\n\
        Each under mpiexec, with the library loaded but off, protected, and under mpiexec again, in turn: messages of 8 B to 4 MiB and windows of \
        them between two ranks on two nodes; all-reduce and all-to-all of four ranks on four nodes; Jacobi's iteration with 512 x 512 cells for each \
        rank, a stencil on a cube, and a sort, with checkpoints. It starts and stops nodes of its own on this machine's loopback network. Targets \
        stand beside the figures where native runs differ from native runs by at most 10 %, and decide nothing."
    )]
    Net(net::NetArgs),
    /// Measure checkpoints of one program: pauses, bytes, restart, overhead
    #[command(after_help = "Example:\n  radic bench ckpt --rounds 5\n\n\
        One program, which dirties pages all the time and notes the gaps in its own clock: saved in fork mode (4 KiB pages, huge pages) \
        and incrementally, restarted, and saved by CRIU if a working one is in PATH, else by gcore. Then a loop that reads all of its memory \
        and writes some: native, under the library, and with a checkpoint a second. All in turn, round after round; medians count. Targets \
        stand beside the figures and decide nothing. Needs twice the memory of the program, and room for an image in --dir.")]
    Ckpt(ckpt::CkptArgs),
    /// Measure how long it takes from the death of a node until its rank lives again
    #[command(after_help = "Example:\n  radic bench recover --mib 10,100 --rounds 5\n\n\
        Four ranks with so much memory each, on four nodes; one of them is killed, and its rank goes on at a spare. Each step has its column; \
        the job goes on to its end, where each rank checks its memory. Then one job with a death every --every seconds, against the same one \
        undisturbed, restarted as a whole from its last `radic suspend`, and restarted from the beginning. It starts and stops nodes of its own on this machine's loopback \
        network. Targets stand beside the figures and decide nothing. Needs four times the memory of a rank, and room for about six times as much \
        in TMPDIR, or /tmp, for images.")]
    Recover(recover::RecoverArgs),
    /// The program that `radic bench ckpt` measures
    #[command(hide = true, after_help = "Example:\n  radic bench subject --mib 64 --report gaps")]
    Subject(subject::SubjectArgs),
}

/// Measures what was asked for.
pub(crate) fn dispatch(cluster: &Cluster, command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Launch(args) => launch::launch(cluster, args),
        BenchCommand::Net(args) => net::measure(args),
        BenchCommand::Ckpt(args) => ckpt::measure(args),
        BenchCommand::Recover(args) => recover::measure(args),
        BenchCommand::Subject(args) => subject::run(args),
    }
}

/// Of a message.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Where the picture goes.
#[derive(Args)]
struct PlotArgs {
    /// Draw the figures with their spread, and their targets, into this new file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl PlotArgs {
    /// The file, made before anything is measured: minutes later would be too late to hear that it cannot be.
    fn begin(&self) -> Result<Option<NewFile>> {
        self.svg.as_deref().map(NewFile::create).transpose()
    }

    /// Prints what was found, and draws it.
    fn tell<T: Serialize, const N: usize>(
        &self,
        figures: &T,
        json: bool,
        in_words: fn(&T) -> String,
        file: Option<NewFile>,
        panels: fn(&T) -> [Panel; N],
    ) -> Result<()> {
        if json {
            print_json(figures)?
        } else {
            print(&in_words(figures))?
        }
        let (Some(file), Some(path)) = (file, &self.svg) else { return Ok(()) };
        file.finish(&plot::svg(&panels(figures))?)?;
        report(&format!("radic: the picture is in {}", path.display()));
        Ok(())
    }
}

/// Programs that compute, over the last minute; 0 if that is not known.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// Whether other work will be a part of the figures: there is some before we begin.
fn busy() -> Option<String> {
    let load = load();
    let cores = std::thread::available_parallelism().ok()?;
    (load > 0.5).then(|| format!("the machine was busy before (load {load:.1} on {cores} cores): the figures include that"))
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|s| (0.01..=3600.0).contains(s)).ok_or_else(|| "it is a number of seconds, 0.01 to 3600".into())
}

/// Least, middle and most of several times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Times {
    min: f64,
    median: f64,
    max: f64,
}

impl Times {
    fn of(mut times: Vec<f64>) -> Self {
        assert!(!times.is_empty(), "at least one run is asked for");
        times.sort_by(f64::total_cmp);
        Times { min: times[0], median: times[times.len() / 2], max: times[times.len() - 1] }
    }
}

/// The same without RADIC and under it.
#[derive(Debug, Serialize)]
struct Comparison {
    native: Times,
    radic: Times,
    /// Of the medians.
    ratio: f64,
    /// The median of the ratios of the pairs.
    pair_ratio: f64,
    /// All ratios of the pairs.
    pair_ratios: Spread,
}

impl Comparison {
    fn of(pairs: &[(f64, f64)]) -> Self {
        let (native, radic) = pairs.iter().copied().unzip();
        let (native, radic) = (Times::of(native), Times::of(radic));
        let ratios = Times::of(pairs.iter().map(|(native, radic)| radic / native).collect());
        let pair_ratios = Spread::parts_of(&ratios, 1.0);
        Comparison { native, radic, ratio: radic.median / native.median, pair_ratio: ratios.median, pair_ratios }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(Times::of(vec![3.0, 1.0, 2.0]), Times { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(Times::of(vec![5.0]), Times { min: 5.0, median: 5.0, max: 5.0 });
    }

    #[test]
    fn intervals_are_seconds() {
        assert_eq!(parse_seconds("0.2"), Ok(0.2));
        assert!(["0", "-1", "NaN", "often", "1e9"].iter().all(|text| parse_seconds(text).is_err()));
    }

    #[test]
    fn a_ratio_above_1_says_that_radic_is_slower() {
        let Comparison { native, radic, ratio, pair_ratio, pair_ratios } =
            Comparison::of(&[(1.0, 2.0), (10.0, 30.0), (2.0, 3.0)]);
        assert_eq!((native.median, radic.median, ratio, pair_ratio), (2.0, 3.0, 1.5, 2.0));
        assert_eq!(pair_ratios, Spread { min: 1.5, median: 2.0, max: 3.0 });
    }
}
