//! `radic bench launch`: what `radic run` costs, compared with the library's own mpiexec.
//!
//! Both start the same program with the same settings of the library, in turn: native, RADIC, native, RADIC and so on, so that
//! whatever else the machine does hits both. Each run reports the median of its own exchanges; the medians over the runs are
//! compared. A ratio is RADIC's time divided by the native one: above 1, RADIC is slower. On a machine whose load changes, the
//! median of the ratios of neighbouring runs is the better witness, so it is reported, too.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use super::figures::{Comparison, size};
use super::plot::{Panel, PlotArgs, Row};
use super::runs::{Library, Runs, Temporary, figure, find_program};
use crate::client::Cluster;
use crate::progress::{Progress, Unit};

/// Message sizes in bytes, and how many exchanges of each in one run: some seconds of large ones, for the network's congestion control needs a while to find its rate.
const EXCHANGES: [(u64, u32); 2] = [(8, 20_000), (4 << 20, 2_000)];
/// What the ping-pong program calls half its median round trip, in microseconds.
const HALF_ROUND_TRIP: &str = "half_round_trip_us";

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
    /// Pairs of runs for each message size; 0: none
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pairs: u32,
    /// Ranks to launch; 0: none
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(0..=4096))]
    ranks: u32,
    /// How often they are launched, by each side
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    launches: u32,
    #[command(flatten)]
    plot: PlotArgs,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
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
    let file = args.plot.begin()?;
    let program = args.program.clone().map_or_else(|| find_program(args.mpi, "pingpong"), Ok)?;
    let program = fs::canonicalize(&program)
        .with_context(|| format!("--program {}: name the program that `make deps` has built, or none", program.display()))?;
    let runs = Runs::new(args.mpi, &program, args.mpiexec.as_deref(), Progress::new(args.json))?;
    ensure!(args.pairs > 0 || args.ranks > 0, "--pairs 0 and --ranks 0: nothing is left to measure");
    let launches = if args.ranks > 0 { args.launches } else { 0 };
    let steps = u64::from(args.pairs) * EXCHANGES.len() as u64 + u64::from(launches);
    runs.progress.begin("launching", Unit::Steps, Some(steps));
    let temporary = if cluster.connect(None).is_ok() { None } else { Some(Temporary::start(2)?) };
    let cluster = temporary.as_ref().map_or(cluster, |t| &t.cluster);
    let mut bench = Bench { runs, program, cluster };
    let mut pingpong = Vec::new();
    for (bytes, count) in EXCHANGES.into_iter().filter(|_| args.pairs > 0) {
        pingpong.push(bench.pingpong(bytes, count, args.pairs)?);
    }
    let launch = if args.ranks > 0 { Some(bench.launch(args.ranks, launches)?) } else { None };
    bench.runs.progress.end();
    let Bench { runs: Runs { mpiexec, .. }, program, .. } = bench;
    let report = Report { library: args.mpi, program, mpiexec, pairs: args.pairs, pingpong, launch };
    args.plot.tell(&report, args.json, report_text, file, panels)
}

fn panels(report: &Report) -> [Panel; 1] {
    let row = |what, comparison: &Comparison| Row { what, spread: comparison.pair_ratios, target: None };
    let messages = report.pingpong.iter().map(|of| row(format!("{}, half round trip", size(of.bytes)), &of.half_round_trip_us));
    let launch = report.launch.iter().map(|of| row(format!("launch of {} ranks", of.ranks), &of.seconds));
    let title = format!("radic run without protection against mpiexec, {} pairs", report.pairs);
    [Panel { title, axis: "times the native one", rows: messages.chain(launch).collect() }]
}

fn report_text(report: &Report) -> String {
    let mut text = format!("program  {}\nnative   {}\n\n", report.program.display(), report.mpiexec.display());
    text.push_str("                   native min   median    RADIC min   median   ratio  of pairs\n");
    for PingPong { bytes, half_round_trip_us } in &report.pingpong {
        text.push_str(&row(&format!("{}, us", size(*bytes)), half_round_trip_us));
    }
    if let Some(Launch { ranks, seconds }) = &report.launch {
        text.push_str(&row(&format!("{ranks} ranks, s"), seconds));
    }
    text
}

fn row(what: &str, Comparison { native, radic, ratio, pair_ratio, .. }: &Comparison) -> String {
    let (native, radic) = [native, radic].map(|t| format!("{:>11.2} {:>8.2}", t.min, t.median)).into();
    format!("{what:<17} {native}  {radic}  {ratio:>6.3}  {pair_ratio:>8.3}\n")
}

/// What is measured, and on what.
struct Bench<'a> {
    runs: Runs,
    program: PathBuf,
    cluster: &'a Cluster,
}

impl Bench<'_> {
    fn native(&mut self, ranks: u32, options: &[String]) -> Result<String> {
        let command = self.runs.native(ranks, &self.program, options);
        self.runs.run(command)
    }

    fn radic(&mut self, ranks: u32, options: &[String]) -> Result<String> {
        let command = self.runs.radic(self.cluster, ranks, &["--protect", "none"], &self.program, options)?;
        self.runs.run(command)
    }

    fn pingpong(&mut self, bytes: u64, count: u32, pairs: u32) -> Result<PingPong> {
        let options = ["--json", "--size", &bytes.to_string(), "--count", &count.to_string()].map(str::to_owned);
        let mut times = Vec::new();
        for pair in 1..=pairs {
            self.runs.progress.say(&format!("{}, pair {pair} of {pairs}", size(bytes)));
            let native = figure(&self.native(2, &options)?, HALF_ROUND_TRIP)?;
            times.push((native, figure(&self.radic(2, &options)?, HALF_ROUND_TRIP)?));
            self.runs.progress.advance(1);
        }
        Ok(PingPong { bytes, half_round_trip_us: Comparison::of(&times) })
    }

    fn launch(&mut self, ranks: u32, launches: u32) -> Result<Launch> {
        let options = ["--size", "8", "--count", "1"].map(str::to_owned);
        let mut times = Vec::new();
        for number in 1..=launches {
            self.runs.progress.say(&format!("{ranks} ranks, launch {number} of {launches}"));
            let start = Instant::now();
            self.native(ranks, &options)?;
            let native = start.elapsed().as_secs_f64();
            let start = Instant::now();
            self.radic(ranks, &options)?;
            times.push((native, start.elapsed().as_secs_f64()));
            self.runs.progress.advance(1);
        }
        Ok(Launch { ranks, seconds: Comparison::of(&times) })
    }
}
