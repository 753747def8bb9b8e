//! `radic bench net`: what protection costs, compared with the library's own mpiexec.
//!
//! The same program runs natively, under the library with every call passing through (`--protect off`), and protected, in turn, so that whatever
//! else the machine does hits all of them. A ratio is a time under RADIC divided by the native one. Of a ping-pong each run reports the
//! median of its own exchanges; of Jacobi's iteration, the time of the whole.
//!
//! That a run was protected is not taken on trust: every rank must have joined, and, where checkpoints are a part of what is measured, have
//! committed some.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use radic_wire::local::{ClusterStatus, Reply, Request};
use radic_wire::process::Counters;
use serde::Serialize;

use super::plot::{Panel, Row};
use super::runs::{Library, Runs, Temporary, figure, find_program};
use super::{Comparison, PlotArgs, size};
use crate::client::{self, Cluster};
use crate::progress::{Progress, Unit};

/// Messages: bytes, exchanges in one run, and the most that protection may cost.
const EXCHANGES: [Exchange; 3] = [
    Exchange { bytes: 8, count: 20_000, target: 3.5 },
    Exchange { bytes: 64 << 10, count: 5_000, target: 3.0 },
    // At least 0.4 of the bandwidth.
    Exchange { bytes: 4 << 20, count: 150, target: 1.0 / 0.4 },
];
/// The most that interposition alone may cost.
const OFF_TARGET: f64 = 1.03;
/// The most that protection with checkpoints may cost a program that computes, too.
const JACOBI_TARGET: f64 = 1.10;
/// Ranks of Jacobi's iteration, and the square that they share: 512 x 512 each.
const JACOBI_RANKS: u32 = 4;
const JACOBI_SIZE: u32 = 1024;
const OFF: [&str; 2] = ["--protect", "off"];
const ON: [&str; 2] = ["--protect", "on"];

struct Exchange {
    bytes: u64,
    count: u32,
    target: f64,
}

/// Flags of `radic bench net`.
#[derive(Args)]
pub(crate) struct NetArgs {
    /// The library
    #[arg(long, value_enum, default_value_t = Library::Mpich)]
    mpi: Library,
    /// Rounds of native, off and protected runs for each message size
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Rounds of Jacobi's iteration; 0: none
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    jacobi_rounds: u32,
    /// Iterations of each; they must last for some checkpoints
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Seconds between two checkpoints of a rank of Jacobi's iteration
    #[arg(long, default_value_t = 5.0, value_parser = super::parse_seconds, value_name = "S")]
    ckpt_interval: f64,
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
    /// In microseconds.
    off: Comparison,
    off_target: f64,
    /// In microseconds.
    protected: Comparison,
    target: f64,
    /// Protected bandwidth as a part of the native one.
    bandwidth: f64,
}

/// Jacobi's iteration.
#[derive(Debug, Serialize)]
struct Jacobi {
    ranks: u32,
    /// In seconds.
    protected: Comparison,
    target: f64,
    /// Of all ranks and rounds.
    checkpoints: u64,
    longest_pause_ms: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    library: Library,
    mpiexec: PathBuf,
    rounds: u32,
    pingpong: Vec<PingPong>,
    jacobi: Option<Jacobi>,
    notes: Vec<String>,
}

/// `radic bench net`.
pub(super) fn measure(args: &NetArgs) -> Result<()> {
    let file = args.plot.begin()?;
    let program = find_program(args.mpi, "pingpong")?;
    let mut runs = Runs::new(args.mpi, &program, None, Progress::new(args.json))?;
    let steps = u64::from(args.rounds) * EXCHANGES.len() as u64 + u64::from(args.jacobi_rounds);
    runs.progress.begin("messages", Unit::Steps, Some(steps));
    let notes = super::busy().into_iter().collect();
    let mut bench = Bench { runs: &mut runs, program, cluster: Temporary::start(2)? };
    let pingpong = EXCHANGES.iter().map(|exchange| bench.pingpong(exchange, args.rounds)).collect::<Result<_>>()?;
    drop(bench); // One cluster at a time.
    let jacobi = if args.jacobi_rounds > 0 {
        let program = find_program(args.mpi, "jacobi")?;
        Some(Bench { runs: &mut runs, program, cluster: Temporary::start(JACOBI_RANKS)? }.jacobi(args)?)
    } else {
        None
    };
    runs.progress.end();
    let figures = Report { library: args.mpi, mpiexec: runs.mpiexec, rounds: args.rounds, pingpong, jacobi, notes };
    args.plot.tell(&figures, args.json, in_words, file, panels)
}

fn panels(report: &Report) -> [Panel; 1] {
    let row = |what, comparison: &Comparison, target| Row { what, spread: comparison.pair_ratios, target: Some(target) };
    let messages = report.pingpong.iter().flat_map(|of| {
        let size = size(of.bytes);
        [row(format!("{size}, protected"), &of.protected, of.target), row(format!("{size}, protect off"), &of.off, of.off_target)]
    });
    let jacobi = report.jacobi.iter().map(|of| row(format!("Jacobi, {} ranks", of.ranks), &of.protected, of.target));
    let title = format!("What protection costs: times under RADIC, {} rounds", report.rounds);
    [Panel { title, axis: "times the native one", rows: messages.chain(jacobi).collect() }]
}

fn in_words(report: &Report) -> String {
    let mut text = format!("native   {}\n", report.mpiexec.display());
    text += &format!(
        "medians of {} rounds; a ratio is a time divided by the native one, beside it the median of the rounds' own\n\n",
        report.rounds
    );
    text += &format!("{:<18} {:>10} {:>10} {:>7} {:>8}  target\n", "", "native", "radic", "ratio", "of pairs");
    for PingPong { bytes, off, off_target, protected, target, bandwidth } in &report.pingpong {
        text += &row(&format!("{}, us", size(*bytes)), protected, *target);
        if *bytes >= 1 << 20 {
            text += &format!("{:<18} {:>37.2}  >= {:.2} of the native bandwidth\n", "", bandwidth, 1.0 / target);
        }
        text += &row("   protect off", off, *off_target);
    }
    if let Some(Jacobi { ranks, protected, target, checkpoints, longest_pause_ms }) = &report.jacobi {
        text += &row(&format!("Jacobi, {ranks} ranks, s"), protected, *target);
        text += &format!("   {checkpoints} checkpoints, pauses up to {longest_pause_ms:.1} ms\n");
    }
    for note in &report.notes {
        text += &format!("\n{note}");
    }
    text.trim_end().to_owned() + "\n"
}

fn row(what: &str, Comparison { native, radic, ratio, pair_ratio, .. }: &Comparison, target: f64) -> String {
    format!("{what:<18} {:>10.2} {:>10.2} {ratio:>7.3} {pair_ratio:>8.3}  <= {target:.2}\n", native.median, radic.median)
}

struct Bench<'a> {
    runs: &'a mut Runs,
    program: PathBuf,
    cluster: Temporary,
}

impl Bench<'_> {
    fn native(&mut self, ranks: u32, options: &[String], name: &str) -> Result<f64> {
        let command = self.runs.native(ranks, &self.program, options);
        figure(&self.runs.run(command)?, name)
    }

    fn radic(&mut self, ranks: u32, flags: &[&str], options: &[String], name: &str) -> Result<f64> {
        let command = self.runs.radic(&self.cluster.cluster, ranks, flags, &self.program, options)?;
        figure(&self.runs.run(command)?, name)
    }

    fn pingpong(&mut self, exchange: &Exchange, rounds: u32) -> Result<PingPong> {
        let Exchange { bytes, count, target } = *exchange;
        let options = ["--json", "--size", &bytes.to_string(), "--count", &count.to_string()].map(str::to_owned);
        let (mut off, mut protected) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            self.runs.progress.say(&format!("{}, round {round} of {rounds}", size(bytes)));
            let name = "half_round_trip_us";
            let native = self.native(2, &options, name)?;
            off.push((native, self.radic(2, &OFF, &options, name)?));
            protected.push((native, self.radic(2, &ON, &options, name)?));
            self.newest_job(2)?;
            self.runs.progress.advance(1);
        }
        let (off, protected) = (Comparison::of(&off), Comparison::of(&protected));
        let bandwidth = 1.0 / protected.ratio;
        Ok(PingPong { bytes, off, off_target: OFF_TARGET, protected, target, bandwidth })
    }

    fn jacobi(&mut self, args: &NetArgs) -> Result<Jacobi> {
        let (size, iterations) = (JACOBI_SIZE.to_string(), args.iterations.to_string());
        let options = ["--json", "--alone", "0", "--size", &size, "--iterations", &iterations].map(str::to_owned);
        let interval = args.ckpt_interval.to_string();
        let flags = [&ON[..], &["--ckpt-interval", &interval]].concat();
        let mut times = Vec::new();
        let (mut checkpoints, mut longest) = (0, 0);
        for round in 1..=args.jacobi_rounds {
            self.runs.progress.say(&format!("Jacobi, round {round} of {}", args.jacobi_rounds));
            let native = self.native(JACOBI_RANKS, &options, "seconds")?;
            times.push((native, self.radic(JACOBI_RANKS, &flags, &options, "seconds")?));
            for counters in self.newest_job(JACOBI_RANKS)? {
                ensure!(
                    counters.committed > 0,
                    "a rank has committed no checkpoint: more --iterations, or a shorter --ckpt-interval"
                );
                checkpoints += counters.committed;
                longest = longest.max(counters.longest_pause_ns);
            }
            self.runs.progress.advance(1);
        }
        let protected = Comparison::of(&times);
        let longest_pause_ms = longest as f64 / 1e6;
        Ok(Jacobi { ranks: JACOBI_RANKS, protected, target: JACOBI_TARGET, checkpoints, longest_pause_ms })
    }

    /// What the ranks of the newest job have counted; an error unless all of them were protected.
    fn newest_job(&self, ranks: u32) -> Result<Vec<Counters>> {
        let status = self.status()?;
        let job = status.jobs.iter().max_by_key(|job| job.started_ms).context("the protectors know no job")?.job;
        let counters: Vec<_> =
            status.processes.iter().filter(|p| p.job == job && p.joined).filter_map(|process| process.counters).collect();
        ensure!(counters.len() == ranks as usize, "only {} of {ranks} ranks were protected; see `radic doctor`", counters.len());
        Ok(counters)
    }

    fn status(&self) -> Result<ClusterStatus> {
        let cluster: &Cluster = &self.cluster.cluster;
        match cluster.ask(&Request::Status, client::ANSWER)? {
            Reply::Status(status) => Ok(status),
            other => bail!("{other:?} instead of a status"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_beside_their_targets() {
        let comparison = || Comparison::of(&[(10.0, 30.0)]);
        let pingpong = |bytes, target| {
            let (off, protected) = (Comparison::of(&[(10.0, 10.1)]), comparison());
            PingPong { bytes, off, off_target: OFF_TARGET, protected, target, bandwidth: 1.0 / 3.0 }
        };
        let jacobi = Jacobi { ranks: 4, protected: comparison(), target: 1.1, checkpoints: 9, longest_pause_ms: 1.5 };
        let text = in_words(&Report {
            library: Library::Mpich,
            mpiexec: "mpiexec".into(),
            rounds: 1,
            pingpong: vec![pingpong(8, 3.5), pingpong(4 << 20, 2.5)],
            jacobi: Some(jacobi),
            notes: vec!["the machine was busy".into()],
        });
        for part in [
            "8 B, us",
            "4 MiB, us",
            "3.000    3.000  <= 3.50",
            "0.33  >= 0.40",
            "1.010    1.010  <= 1.03",
            "9 checkpoints",
            "busy",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }
}
