//! The command: runs seeds, each at most once, in processes of its own, since a violation ends the process (release builds abort on a panic).
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use radic_sim::scale::report::{self, ScaleArgs};
use radic_sim::seeds::{self, Range};

/// Simulates whole clusters of the real state machines, one for each seed: crashes, pauses, cuts, broken connections, slow links and disks; everything that
/// docs/design.md guarantees is checked at every step.
#[derive(Debug, Parser)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  radic-sim --seeds 1..10000\n  radic-sim --seed 4711 --trace\n\nThe last line says how many seeds passed. The exit code is 1 if any failed."
)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Seeds to run, both ends included; from 10000000 on jobs are suspended and resumed, too; from 20000000 on most run as they do by default
    #[arg(long, default_value = "1..1000", value_name = "FROM..TO")]
    seeds: Range,
    /// One seed only, in this process.
    #[arg(long, conflicts_with = "seeds", value_name = "SEED")]
    seed: Option<u64>,
    /// Print the plan of the seed, and what happens.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Processes that run at once.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Print a summary as JSON, and nothing else.
    #[arg(long)]
    json: bool,
    /// Run these seeds for another process: a line for each.
    #[arg(long, hide = true)]
    worker: Option<Range>,
}

/// What else it does.
#[derive(Debug, Subcommand)]
enum Command {
    Scale(ScaleArgs),
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Scale(args)) = args.command {
        return ended(report::scale(&args));
    }
    if let Some(range) = args.worker {
        seeds::work(range);
        return ExitCode::SUCCESS;
    }
    if let Some(seed) = args.seed {
        return if seeds::run_one(seed, args.trace, args.json) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    ended(seeds::run_all(args.seeds, args.threads.into(), args.json))
}

fn ended(result: std::io::Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim: {error}");
            ExitCode::FAILURE
        }
    }
}
