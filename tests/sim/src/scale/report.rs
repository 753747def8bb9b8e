//! The command `radic-sim scale`: runs, and shows what came of it.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

use clap::Args;
use radic_wire::limits;
use serde::Serialize;

use super::plot::{Plot, Series};
use super::{AT_ONCE, Conditions, Joining, Outcome, SCENARIOS, join, run};
use crate::cluster::plan::Costs;

/// Measures large clusters of the real state machines in virtual time: detection, agreement, messages of each node, and the time until all know a new place.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  radic-sim scale --nodes 64,256,1000 --runs 5\n  \
    radic-sim scale --nodes 64,256,1000,4000,10000 --runs 1 --svg docs/scale    # the tables of docs/scale.md\n  \
    radic-sim scale --nodes 1000 --message-us 20 --handshake-us 400    # with the processor's time\n\n\
    Progress is on standard error, the tables (or JSON) on standard output. One seed gives one result.")]
pub struct ScaleArgs {
    /// Cluster sizes.
    #[arg(long, value_delimiter = ',', default_value = "64,256,1000", value_name = "N,N...",
          value_parser = clap::value_parser!(u32).range(8..=limits::MEMBERS as i64))]
    nodes: Vec<u32>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs of each scenario, with one seed after the other.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Microseconds of its processor that a daemon spends on each frame that it sends or handles: messages, and what acknowledges them.
    #[arg(long, default_value_t = 0, value_name = "US")]
    message_us: u64,
    /// The same for one end of the handshake of a new connection.
    #[arg(long, default_value_t = 0, value_name = "US")]
    handshake_us: u64,
    /// Another node has died before: every node has a link with the first, and that one with every node.
    #[arg(long)]
    warm: bool,
    /// Only the scenarios with this in their name.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    only: String,
    /// Do not measure joining.
    #[arg(long)]
    no_joins: bool,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
    /// Draw detection.svg, messages.svg and known.svg in this directory.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
struct Results {
    runs: Vec<Outcome>,
    joins: Vec<Joining>,
    failures: Vec<String>,
}

/// Carries out the command: whether every run came to its end.
pub fn scale(args: &ScaleArgs) -> io::Result<bool> {
    let results = measure(args);
    if args.json {
        serde_json::to_writer_pretty(io::stdout().lock(), &results)?;
        println!();
    } else {
        print!("{}", tables(&results));
    }
    if let Some(dir) = &args.svg {
        fs::create_dir_all(dir)?;
        for (name, plot) in plots(&results.runs) {
            fs::write(dir.join(name), plot.svg())?;
        }
    }
    results.failures.iter().for_each(|failure| eprintln!("sim: {failure}"));
    Ok(results.failures.is_empty())
}

fn measure(args: &ScaleArgs) -> Results {
    let us = Duration::from_micros;
    let costs = Costs { message: us(args.message_us), handshake: us(args.handshake_us) };
    let conditions = Conditions { costs, warm: args.warm };
    let mut results = Results::default();
    for nodes in args.nodes.iter().map(|nodes| *nodes as usize) {
        let begin = Instant::now();
        let scenarios = SCENARIOS.iter().filter(|scenario| scenario.name.contains(&args.only));
        for (scenario, more) in scenarios.flat_map(|scenario| (0..u64::from(args.runs)).map(move |more| (scenario, more))) {
            match run(nodes, *scenario, args.seed + more, conditions) {
                Ok(outcome) => results.runs.push(outcome),
                Err(why) => results.failures.push(format!("{nodes} nodes, {}, seed {}: {why}", scenario.name, args.seed + more)),
            }
        }
        for at_once in [false, true].into_iter().filter(|at_once| !args.no_joins && (!at_once || nodes <= AT_ONCE)) {
            match join(nodes, at_once, args.seed, costs) {
                Ok(joining) => results.joins.push(joining),
                Err(why) => results.failures.push(format!("{nodes} nodes join: {why}")),
            }
        }
        eprintln!("{nodes} nodes: {:.0} s; {} MiB at most so far", begin.elapsed().as_secs_f64(), peak_memory() >> 20);
    }
    results
}

/// The most memory that this process ever had, in bytes, if the kernel says so.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// The runs of one row: the same size and scenario.
fn rows(runs: &[Outcome]) -> Vec<Vec<&Outcome>> {
    let mut rows: Vec<Vec<&Outcome>> = Vec::new();
    for run in runs {
        match rows.iter_mut().find(|row| row[0].nodes == run.nodes && row[0].scenario == run.scenario) {
            Some(row) => row.push(run),
            None => rows.push(vec![run]),
        }
    }
    rows
}

fn worst(row: &[&Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    row.iter().map(|outcome| of(outcome)).fold(f64::MIN, f64::max)
}

/// The tables, as Markdown: of each row the worst run.
fn tables(results: &Results) -> String {
    let mut text = "| nodes | which die | ranks | detected, ms | agreed, first to last, ms | all know, ms | of it spreading, ms \
         | messages of a node: mean | busiest | busiest, KiB | callers of one | turned away | false alarms: suspected, confirmed, frozen |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for row in rows(&results.runs) {
        let (nodes, name) = (row[0].nodes, row[0].scenario);
        let most = |of: &dyn Fn(&Outcome) -> f64| worst(&row, of);
        text += &format!(
            "| {nodes} | {name} | {} | {:.0} | {:.0} to {:.0} | {:.0} | {:.1} | {:.1} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0}, {:.0}, {:.0} |\n",
            row[0].ranks,
            most(&|o| o.detected_ms),
            most(&|o| o.decided_ms),
            most(&|o| o.agreed_ms),
            most(&|o| o.known_ms),
            most(&|o| o.spread_ms),
            most(&|o| o.failure.mean),
            most(&|o| o.failure.most),
            most(&|o| o.failure.most_bytes / 1024.0),
            most(&|o| o.callers as f64),
            most(&|o| o.turned_away as f64),
            most(&|o| o.suspected_alive as f64),
            most(&|o| o.confirmed_alive as f64),
            most(&|o| o.frozen as f64),
        );
    }
    text += "\n| nodes | nothing happens: messages of a node in a second, mean | busiest | bytes, mean | busiest |\n|---:|---:|---:|---:|---:|\n";
    for row in rows(&results.runs).iter().filter(|row| row[0].scenario == SCENARIOS[0].name) {
        let most = |of: &dyn Fn(&Outcome) -> f64| worst(row, of);
        let (mean, busiest) = (most(&|o| o.steady.mean), most(&|o| o.steady.most));
        let (bytes, most_bytes) = (most(&|o| o.steady.mean_bytes), most(&|o| o.steady.most_bytes));
        text += &format!("| {} | {mean:.1} | {busiest:.1} | {bytes:.0} | {most_bytes:.0} |\n", row[0].nodes);
    }
    text += "\n| nodes | which join | all agreed after, ms | messages of a node: mean | busiest | busiest, KiB |\n|---:|---|---:|---:|---:|---:|\n";
    for Joining { nodes, at_once, agreed_ms, load } in &results.joins {
        let who = if *at_once { "all but the first, at once" } else { "one more" };
        let kib = load.most_bytes / 1024.0;
        text += &format!("| {nodes} | {who} | {agreed_ms:.1} | {:.1} | {:.0} | {kib:.0} |\n", load.mean, load.most);
    }
    text
}

fn series(runs: &[Outcome], scenario: &str, name: String, of: impl Fn(&Outcome) -> f64) -> Series {
    let rows = rows(runs).into_iter().filter(|row| row[0].scenario == scenario);
    Series { name, points: rows.map(|row| (row[0].nodes as f64, worst(&row, &of))).collect() }
}

/// The pictures, by the name of their file: of each scenario the worst run.
fn plots(runs: &[Outcome]) -> [(&'static str, Plot); 3] {
    let plot = |title: &str, y: &str, series| Plot { title: title.into(), x: "nodes".into(), y: y.into(), series };
    let each = |of: fn(&Outcome) -> f64| SCENARIOS.iter().map(|s| series(runs, s.name, s.name.into(), of)).collect();
    let mut messages = Vec::new();
    let first = SCENARIOS[0].name;
    messages.push(series(runs, first, "each second, mean".into(), |o| o.steady.mean));
    messages.push(series(runs, first, "each second, busiest".into(), |o| o.steady.most));
    for scenario in [SCENARIOS[0], SCENARIOS[2]] {
        messages.push(series(runs, scenario.name, format!("{}, mean", scenario.name), |o| o.failure.mean));
        messages.push(series(runs, scenario.name, format!("{}, busiest", scenario.name), |o| o.failure.most));
    }
    [
        ("detection.svg", plot("From death to its confirmation", "ms of virtual time", each(|o| o.detected_ms))),
        ("messages.svg", plot("Messages of one node, sent and heard", "messages", messages)),
        ("known.svg", plot("From death until every node knows the new place", "ms of virtual time", each(|o| o.known_ms))),
    ]
}
