//! `radic bench net`: what protection costs, compared with the library's own mpiexec.
//!
//! The same program runs natively, under the library with every call passing through (`--protect off`), protected, and natively once more, in turn, so that whatever
//! else the machine does hits all of them. A ratio is a time under RADIC divided by the native one of its round. Of messages and collective operations each run
//! reports the median of its own; of applications, the time of the whole. Where the two native runs differ by more than a tenth, in the median of the rounds, the
//! machine was not quiet enough: the figures are shown, and judged by nothing.
//!
//! That a run was protected is not taken on trust: every rank must have joined, and, of applications, have committed checkpoints.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use radic_wire::local::{ClusterStatus, Reply, Request};
use radic_wire::process::Counters;
use serde::Serialize;

use super::figures::{Comparison, busy, load};
use super::plot::{Panel, PlotArgs, Row};
use super::runs::{Library, Runs, Temporary, figure, find_program};
use super::shaped::{self, Rate, Shaped};
use crate::client::{self, Cluster};
use crate::progress::{Progress, Unit};

/// The most that interposition alone may cost.
const OFF_TARGET: f64 = 1.03;
/// How much two native runs of a round may differ, in the median, where figures are judged.
const QUIET: f64 = 0.10;
const OFF: [&str; 2] = ["--protect", "off"];
const ON: [&str; 2] = ["--protect", "on"];
const NONE: [&str; 2] = ["--protect", "none"];

/// What is measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Group {
    /// A message to and fro, 8 B to 4 MiB, between two ranks
    Messages,
    /// Sixteen messages in flight at once, 64 KiB and 4 MiB; a round includes a short answer
    Windows,
    /// Sixty-four messages of 8 B in flight at once
    Rate,
    /// All-reduce and all-to-all of four ranks, 8 B and 64 KiB
    Collectives,
    /// Jacobi's iteration, a halo in three dimensions, and a sort, on four ranks with checkpoints
    Applications,
}

/// What one line of the report is about.
struct Work {
    name: &'static str,
    group: Group,
    ranks: u32,
    program: &'static str,
    options: &'static [&'static str],
    /// The most that protection may cost.
    target: f64,
    /// Whether the target is a share of the bandwidth. Then it goes on for some checkpoints, and memory for what is kept is used for the second time; where payload is shipped it is a
    /// tenth as long: there no message is kept for long, and each takes several times as much.
    is_bandwidth: bool,
}

const fn message(name: &'static str, options: &'static [&'static str], target: f64) -> Work {
    let is_bandwidth = target == SHARE;
    Work { name, group: Group::Messages, ranks: 2, program: "pingpong", options, target, is_bandwidth }
}

const fn window(name: &'static str, group: Group, options: &'static [&'static str], target: f64) -> Work {
    let is_bandwidth = target == WINDOW_SHARE;
    Work { name, group, ranks: 2, program: "traffic", options, target, is_bandwidth }
}

const fn collective(name: &'static str, options: &'static [&'static str]) -> Work {
    Work { name, group: Group::Collectives, ranks: 4, program: "traffic", options, target: PROGRAMS, is_bandwidth: false }
}

const fn application(name: &'static str, program: &'static str, options: &'static [&'static str]) -> Work {
    Work { name, group: Group::Applications, ranks: 4, program, options, target: PROGRAMS, is_bandwidth: false }
}

/// Times of short messages, and of those of some pages, as parts of the native ones.
const SHORT: f64 = 1.25;
const PAGES: f64 = 1.30;
/// Of the native bandwidth: three quarters, and 0.85 where messages queue up.
const SHARE: f64 = 1.0 / 0.75;
const WINDOW_SHARE: f64 = 1.0 / 0.85;
/// Collective operations and applications.
const PROGRAMS: f64 = 1.10;

/// By the number of ranks: there is one cluster at a time.
const WORKS: [Work; 17] = [
    message("8 B", &["--size", "8", "--count", "20000"], SHORT),
    message("1 KiB", &["--size", "1024", "--count", "20000"], SHORT),
    message("16 KiB", &["--size", "16384", "--count", "10000"], PAGES),
    message("64 KiB", &["--size", "65536", "--count", "5000"], PAGES),
    message("256 KiB", &["--size", "262144", "--count", "2000"], PAGES),
    message("1 MiB", &["--size", "1048576", "--count", "12000"], SHARE),
    message("4 MiB", &["--size", "4194304", "--count", "5000"], SHARE),
    window("16 x 64 KiB", Group::Windows, &["--window", "16", "--bytes", "65536", "--rounds", "30000"], WINDOW_SHARE),
    window("16 x 4 MiB", Group::Windows, &["--window", "16", "--bytes", "4194304", "--rounds", "600"], WINDOW_SHARE),
    window("64 x 8 B", Group::Rate, &["--window", "64", "--bytes", "8", "--rounds", "2000"], SHORT),
    collective("all-reduce, 8 B", &["--allreduce", "--bytes", "8", "--rounds", "40000"]),
    collective("all-reduce, 64 KiB", &["--allreduce", "--bytes", "65536", "--rounds", "5000"]),
    collective("all-to-all, 8 B", &["--alltoall", "--bytes", "8", "--rounds", "40000"]),
    collective("all-to-all, 64 KiB", &["--alltoall", "--bytes", "65536", "--rounds", "5000"]),
    application("Jacobi", "jacobi", &["--alone", "0", "--size", "1024", "--iterations", ITERATIONS]),
    application("halo", "halo", &["--alone", "0", "--size", "128", "--steps", STEPS]),
    application("sort", "samplesort", &["--keys", "200000", "--rounds", SORTS]),
];

/// Stand for how long an application is to last.
const ITERATIONS: &str = "{iterations}";
const STEPS: &str = "{steps}";
const SORTS: &str = "{sorts}";

/// Flags of `radic bench net`.
#[derive(Args)]
pub(crate) struct NetArgs {
    /// The library
    #[arg(long, value_enum, default_value_t = Library::Mpich)]
    mpi: Library,
    /// Only these [default: all]
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1.., value_name = "GROUP")]
    only: Vec<Group>,
    /// Rounds of native, off, waiting, protected (payload in the log, and by default) and native runs of everything but applications
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Rounds of applications; 0: none
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    application_rounds: u32,
    /// Iterations of Jacobi's; the other applications last about as long. They must last for some checkpoints
    #[arg(long, default_value_t = 16_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    iterations: u32,
    /// Seconds between two checkpoints of a rank
    #[arg(long, default_value_t = 5.0, value_parser = super::figures::parse_seconds, value_name = "S")]
    ckpt_interval: f64,
    /// On two nodes with a network of so many bits a second between them: 10gbit, 500mbit. It takes root; native runs are then those of `radic run --protect none`
    #[arg(long, value_name = "RATE")]
    shaped: Option<Rate>,
    #[command(flatten)]
    plot: PlotArgs,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

impl NetArgs {
    /// How often this is measured; 0: not at all.
    fn rounds_of(&self, work: &Work) -> u32 {
        let is_wanted = self.only.is_empty() || self.only.contains(&work.group);
        match work.group {
            _ if !is_wanted => 0,
            Group::Applications => self.application_rounds,
            _ => self.rounds,
        }
    }

    fn options(&self, work: &Work, ships_payload: bool) -> Vec<String> {
        let number = |option: &str| match option {
            ITERATIONS => self.iterations.to_string(),
            STEPS => (self.iterations / 3).max(1).to_string(),
            SORTS => (self.iterations / 80).max(1).to_string(),
            other => other.to_owned(),
        };
        let mut options: Vec<_> = std::iter::once("--json").chain(work.options.iter().copied()).map(number).collect();
        // A network of 10 Gbit/s takes about ten times as long as the loopback network.
        if work.is_bandwidth && (ships_payload || self.shaped.is_some()) {
            // A tenth of the count, which comes last.
            options.last_mut().map(String::pop);
        }
        options
    }
}

/// What was measured of one thing.
#[derive(Debug, Serialize)]
struct Measured {
    name: &'static str,
    group: Group,
    ranks: u32,
    /// Of all times: `us` or `s`.
    unit: &'static str,
    /// Native runs against the native ones of the same rounds: the noise.
    again: Comparison,
    /// Whether `again` lets the figures be judged.
    judged: bool,
    off: Comparison,
    off_target: f64,
    /// With `--log waiting`, for comparison: it has no target.
    waiting: Comparison,
    /// As `radic run` protects it by default.
    protected: Comparison,
    /// With `--payload log`, for comparison: it has no target.
    shipped: Comparison,
    target: f64,
    /// Protected bandwidth as a part of the native one, where that is what the target is about.
    bandwidth: Option<f64>,
    /// Of all ranks and rounds.
    checkpoints: u64,
    longest_pause_ms: f64,
    /// Of the machine, over the last minute, before and after.
    load: [f64; 2],
}

#[derive(Debug, Serialize)]
struct Report {
    library: Library,
    mpiexec: PathBuf,
    /// Between the nodes, which then start native runs, too; none: the loopback network, and native runs by mpiexec.
    network: Option<Rate>,
    ckpt_interval_s: f64,
    works: Vec<Measured>,
    notes: Vec<String>,
}

/// `radic bench net`.
pub(super) fn measure(args: &NetArgs) -> Result<()> {
    let file = args.plot.begin()?;
    let works: Vec<&Work> = WORKS.iter().filter(|work| args.rounds_of(work) > 0).collect();
    ensure!(!works.is_empty(), "nothing is to be measured: only applications are wanted, and --application-rounds is 0");
    let programs = works.iter().map(|work| find_program(args.mpi, work.program)).collect::<Result<Vec<_>>>()?;
    let runs = Runs::new(args.mpi, &programs[0], None, Progress::new(args.json))?;
    let steps = works.iter().map(|work| u64::from(args.rounds_of(work))).sum();
    runs.progress.begin("rounds", Unit::Steps, Some(steps));
    let network = args.shaped.map(Shaped::start).transpose()?;
    let (mut bench, mut measured) = (Bench { runs, args, cluster: None, network }, Vec::new());
    for (work, program) in works.iter().zip(programs) {
        measured.push(bench.measure(work, &program)?);
    }
    bench.cluster = None;
    bench.runs.progress.end();
    let notes = busy().into_iter().chain(restless(&measured)).collect();
    let ckpt_interval_s = args.ckpt_interval;
    let mpiexec = bench.runs.mpiexec;
    let figures = Report { library: args.mpi, mpiexec, network: args.shaped, ckpt_interval_s, works: measured, notes };
    args.plot.tell(&figures, args.json, in_words, file, panels)
}

/// Says what is not judged, and why.
fn restless(measured: &[Measured]) -> Option<String> {
    let names: Vec<&str> = measured.iter().filter(|of| !of.judged).map(|of| of.name).collect();
    let limit = QUIET * 100.0;
    (!names.is_empty()).then(|| {
        format!(
            "not judged, because native runs differ from native runs by more than {limit:.0} %: {}; measure on a quiet machine",
            names.join(", ")
        )
    })
}

fn panels(report: &Report) -> [Panel; 1] {
    let rows = report.works.iter().flat_map(|of| {
        let row = |what, comparison: &Comparison, target| Row { what, spread: comparison.pair_ratios, target };
        let (target, off_target) = (of.judged.then_some(of.target), of.judged.then_some(of.off_target));
        [
            row(format!("{}, protected", of.name), &of.protected, target),
            row(format!("{}, payload log", of.name), &of.shipped, None),
            row(format!("{}, log waiting", of.name), &of.waiting, None),
            row(format!("{}, protect off", of.name), &of.off, off_target),
            row(format!("{}, native again", of.name), &of.again, None),
        ]
    });
    [Panel { title: "What protection costs: times under RADIC".into(), axis: "times the native one", rows: rows.collect() }]
}

fn in_words(report: &Report) -> String {
    let mut text = match report.network {
        Some(rate) => format!("native   radic run --protect none, on two nodes with {rate} between them\n"),
        None => format!("native   {}\n", report.mpiexec.display()),
    };
    text += "medians; a ratio is a time divided by the native one of its round: the median, and from least to most\n\n";
    text += &format!("{:<24} {:>10} {:>10} {:>7}  {:>15}  target\n", "", "native", "radic", "ratio", "least to most");
    for of in &report.works {
        let judged = |target: String| if of.judged { target } else { "not judged".to_owned() };
        let target = match of.bandwidth {
            Some(share) => format!("{share:.2} of the native bandwidth, {}", judged(format!(">= {:.2}", 1.0 / of.target))),
            None => judged(format!("<= {:.2}", of.target)),
        };
        text += &row(&format!("{}, {}", of.name, of.unit), &of.protected, &target);
        text += &row("   payload log", &of.shipped, "");
        text += &row("   log waiting", &of.waiting, "");
        text += &row("   protect off", &of.off, &judged(format!("<= {:.2}", of.off_target)));
        text += &row("   native again", &of.again, "");
        if of.group == Group::Applications {
            text += &format!("   {} checkpoints, pauses up to {:.1} ms\n", of.checkpoints, of.longest_pause_ms);
        }
    }
    for note in &report.notes {
        text += &format!("\n{note}");
    }
    text.trim_end().to_owned() + "\n"
}

fn row(what: &str, Comparison { native, radic, pair_ratios, .. }: &Comparison, target: &str) -> String {
    let spread = format!("{:.3} to {:.3}", pair_ratios.min, pair_ratios.max);
    let line =
        format!("{what:<24} {:>10.2} {:>10.2} {:>7.3}  {spread:>15}  {target}", native.median, radic.median, pair_ratios.median);
    line.trim_end().to_owned() + "\n"
}

struct Bench<'a> {
    runs: Runs,
    args: &'a NetArgs,
    /// Of so many nodes.
    cluster: Option<(u32, Temporary)>,
    /// Of two nodes, if that is asked for. After the cluster, which ends first.
    network: Option<Shaped>,
}

impl Bench<'_> {
    /// A cluster with a node for each rank, or with two where there is a network of their own.
    fn cluster(&mut self, ranks: u32) -> Result<()> {
        let nodes = if self.network.is_some() { shaped::NODES } else { ranks };
        if self.cluster.as_ref().is_none_or(|(has, _)| *has != nodes) {
            self.cluster = None; // One cluster at a time.
            let namespaces = self.network.as_ref().map_or(&[][..], |network| &network.namespaces);
            self.cluster = Some((nodes, Temporary::within(namespaces, nodes, 0)?));
        }
        Ok(())
    }

    fn temporary(&self) -> Result<&Cluster> {
        self.cluster.as_ref().map(|(_, temporary)| &temporary.cluster).context("there is no cluster")
    }

    fn measure(&mut self, work: &Work, program: &std::path::Path) -> Result<Measured> {
        self.cluster(work.ranks)?;
        let [options, shorter] = [false, true].map(|ships_payload| self.args.options(work, ships_payload));
        let (rounds, before) = (self.args.rounds_of(work), load());
        let (name, unit) = match work.group {
            Group::Messages => ("half_round_trip_us", "us"),
            Group::Applications => ("seconds", "s"),
            _ => ("us", "us"),
        };
        let interval = self.args.ckpt_interval.to_string();
        let with = |more: &[&'static str]| [&ON[..], &["--ckpt-interval", &interval], more].concat();
        let (default, log, log_waiting) = (with(&[]), with(&["--payload", "log"]), with(&["--log", "waiting"]));
        let [mut off, mut waiting, mut protected, mut shipped, mut again] = [const { Vec::new() }; 5];
        let (mut checkpoints, mut longest) = (0, 0);
        for round in 1..=rounds {
            self.runs.progress.say(&format!("{}, round {round} of {rounds}", work.name));
            let native = self.native(work.ranks, program, &options, name)?;
            off.push((native, self.radic(work.ranks, &OFF, program, &options, name)?));
            waiting.push((native, self.radic(work.ranks, &log_waiting, program, &shorter, name)?));
            shipped.push((native, self.radic(work.ranks, &log, program, &shorter, name)?));
            protected.push((native, self.radic(work.ranks, &default, program, &options, name)?));
            for counters in self.newest_job(work.ranks)? {
                ensure!(
                    work.group != Group::Applications || counters.committed > 0,
                    "a rank of {} has committed no checkpoint: more --iterations, or a shorter --ckpt-interval",
                    work.name
                );
                (checkpoints, longest) = (checkpoints + counters.committed, longest.max(counters.longest_pause_ns));
            }
            again.push((native, self.native(work.ranks, program, &options, name)?));
            self.runs.progress.advance(1);
        }
        let [off, waiting, protected, shipped, again] =
            [off, waiting, protected, shipped, again].map(|pairs| Comparison::of(&pairs));
        Ok(Measured {
            name: work.name,
            group: work.group,
            ranks: work.ranks,
            unit,
            judged: (again.pair_ratio - 1.0).abs() <= QUIET,
            again,
            off,
            off_target: OFF_TARGET,
            waiting,
            bandwidth: work.is_bandwidth.then_some(1.0 / protected.pair_ratio),
            protected,
            shipped,
            target: work.target,
            checkpoints,
            longest_pause_ms: longest as f64 / 1e6,
            load: [before, load()],
        })
    }

    fn native(&mut self, ranks: u32, program: &std::path::Path, options: &[String], name: &str) -> Result<f64> {
        if self.network.is_some() {
            return self.radic(ranks, &NONE, program, options, name);
        }
        let command = self.runs.native(ranks, program, options);
        figure(&self.runs.run(command)?, name)
    }

    fn radic(&mut self, ranks: u32, flags: &[&str], program: &std::path::Path, options: &[String], name: &str) -> Result<f64> {
        let command = self.runs.radic(self.temporary()?, ranks, flags, program, options)?;
        figure(&self.runs.run(command)?, name)
    }

    /// What the ranks of the newest job have counted; an error unless all of them were protected.
    fn newest_job(&self, ranks: u32) -> Result<Vec<Counters>> {
        let status = self.status()?;
        let job = status.jobs.iter().max_by_key(|job| job.started_ms).context("the daemons know no job")?.job;
        let counters: Vec<_> =
            status.processes.iter().filter(|p| p.job == job && p.joined).filter_map(|process| process.counters).collect();
        ensure!(counters.len() == ranks as usize, "only {} of {ranks} ranks were protected; see `radic doctor`", counters.len());
        Ok(counters)
    }

    fn status(&self) -> Result<ClusterStatus> {
        match self.temporary()?.ask(&Request::Status, client::ANSWER)? {
            Reply::Status(status) => Ok(status),
            other => bail!("{other:?} instead of a status"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &'static str, group: Group, again: f64) -> Measured {
        let of = |native, radic| Comparison::of(&[(native, radic)]);
        let (again, is_bandwidth) = (of(10.0, 10.0 * again), group == Group::Windows);
        let (off, waiting, protected, shipped, target) =
            (of(10.0, 10.1), of(10.0, 40.0), of(10.0, 30.0), of(10.0, 20.0), if is_bandwidth { WINDOW_SHARE } else { SHORT });
        Measured {
            name,
            group,
            ranks: 2,
            unit: "us",
            judged: (again.pair_ratio - 1.0).abs() <= QUIET,
            again,
            off,
            off_target: OFF_TARGET,
            waiting,
            protected,
            shipped,
            target,
            bandwidth: is_bandwidth.then_some(1.0 / 3.0),
            checkpoints: 9,
            longest_pause_ms: 1.5,
            load: [0.1, 1.2],
        }
    }

    #[test]
    fn figures_stand_beside_their_targets_where_the_machine_was_quiet() {
        let works = vec![
            measured("8 B", Group::Messages, 1.02),
            measured("16 x 4 MiB", Group::Windows, 0.95),
            measured("1 KiB", Group::Messages, 1.2),
            measured("halo", Group::Applications, 1.0),
        ];
        let notes = restless(&works).into_iter().collect();
        let report =
            Report { library: Library::Mpich, mpiexec: "mpiexec".into(), network: None, ckpt_interval_s: 5.0, works, notes };
        let text = in_words(&report);
        for part in [
            "8 B, us                       10.00      30.00   3.000   3.000 to 3.000  <= 1.25",
            "0.33 of the native bandwidth, >= 0.85",
            "1.010   1.010 to 1.010  <= 1.03",
            "1.200   1.200 to 1.200",
            "9 checkpoints",
            "by more than 10 %: 1 KiB;",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert_eq!(text.matches("not judged").count(), 3, "both lines of 1 KiB, and the note:\n{text}");
        assert!(panels(&report)[0].rows.iter().filter(|row| row.what.starts_with("1 KiB")).all(|row| row.target.is_none()));
    }

    #[test]
    fn what_is_measured_is_chosen_by_group() {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            net: NetArgs,
        }
        let args = |line: &[&str]| Line::try_parse_from([&["net"], line].concat()).map(|line| line.net);
        let names =
            |args: &NetArgs| WORKS.iter().filter(|work| args.rounds_of(work) > 0).map(|work| work.name).collect::<Vec<_>>();
        assert_eq!(names(&args(&[]).unwrap()).len(), WORKS.len());
        assert_eq!(names(&args(&["--only", "rate,windows"]).unwrap()), ["16 x 64 KiB", "16 x 4 MiB", "64 x 8 B"]);
        assert_eq!(names(&args(&["--only", "applications", "--application-rounds", "0"]).unwrap()), [""; 0]);
        assert!(args(&["--only", "everything"]).is_err());
        let sort = WORKS.last().unwrap();
        assert_eq!(
            args(&["--iterations", "8000"]).unwrap().options(sort, false),
            ["--json", "--keys", "200000", "--rounds", "100"]
        );
    }

    /// One cluster at a time, and each started once.
    #[test]
    fn works_stand_together_by_ranks() {
        assert!(WORKS.is_sorted_by_key(|work| work.ranks));
    }
}
