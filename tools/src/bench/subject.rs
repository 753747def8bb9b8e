//! The program that `radic bench ckpt` saves, restarts and times: memory with random content, one thread that dirties some of its
//! pages all the time. Either it notes the gaps in its own clock in a file until it is killed, or it goes through its memory a number of
//! times and says how long that took.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use nix::sys::prctl;
use rustix::time::{ClockId, clock_gettime};

/// A gap that is worth a line, in nanoseconds: above what noting one takes.
const GAP: u64 = 100_000;
/// It ends by itself after this, in nanoseconds, so it cannot be forgotten.
const LIFE: u64 = 300_000_000_000;
/// Words of a page.
const PAGE: usize = 512;
/// The report's first line.
pub(super) const READY: &str = "ready";

/// Flags of the program.
#[derive(Args)]
pub(crate) struct SubjectArgs {
    /// Memory in MiB
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
    /// How many of its pages it dirties, in percent; spread evenly
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100))]
    dirty_percent: u64,
    /// Leave huge pages to the C library (GLIBC_TUNABLES) instead of forbidding them
    #[arg(long)]
    huge_pages: bool,
    /// Where to note gaps: a line for each, CLOCK_MONOTONIC at its end and its length, both in nanoseconds
    #[arg(long, value_name = "FILE", conflicts_with = "passes", required_unless_present = "passes")]
    report: Option<PathBuf>,
    /// Instead: wait for a line on stdin, go through the memory so many times, print the nanoseconds that took
    #[arg(long, value_name = "N")]
    passes: Option<u32>,
}

/// The program.
pub(super) fn run(args: &SubjectArgs) -> Result<()> {
    prctl::set_thp_disable(!args.huge_pages).context("huge pages cannot be forbidden")?;
    let mut memory = vec![0u64; (args.mib << 17) as usize];
    let mut random = Random(1);
    memory.fill_with(|| random.next());
    let dirty = dirty_words(memory.len(), args.dirty_percent);
    match (&args.report, args.passes) {
        (Some(report), _) => note_gaps(&mut memory, &dirty, report),
        (None, passes) => pass(&mut memory, &dirty, passes.unwrap_or(1)),
    }
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// One word in each page to dirty: of so many consecutive pages one, any of them.
fn dirty_words(words: usize, percent: u64) -> Vec<usize> {
    let mut random = Random(2);
    let pages = (words / PAGE) as u64;
    let count = (pages * percent / 100).max(1);
    let page = |i: u64| i * pages / count;
    (0..count).map(|i| (page(i) + random.next() % (page(i + 1) - page(i))) as usize * PAGE).collect()
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn note_gaps(memory: &mut [u64], dirty: &[usize], path: &Path) -> Result<()> {
    let what = || path.display().to_string();
    let mut report = File::create_new(path).with_context(what)?;
    writeln!(report, "{READY}").with_context(what)?;
    let (begin, mut last) = (now(), now());
    for word in dirty.iter().cycle() {
        memory[*word] = memory[*word].wrapping_add(last);
        let time = now();
        if time - last > GAP {
            // One write: the reader meets whole lines.
            report.write_all(format!("{time} {}\n", time - last).as_bytes()).with_context(what)?;
        }
        if time - begin > LIFE {
            break;
        }
        last = time;
    }
    Ok(())
}

/// Reads all of the memory and writes the words to dirty, again and again.
fn pass(memory: &mut [u64], dirty: &[usize], passes: u32) -> Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{READY}")?;
    io::stdin().read_line(&mut String::new()).context("stdin")?;
    let begin = now();
    for _ in 0..passes {
        let sum = memory.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
        for word in dirty {
            memory[*word] = memory[*word].wrapping_add(sum);
        }
    }
    let took = now() - begin;
    std::hint::black_box(memory);
    Ok(writeln!(out, "{took}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_pages_are_dirtied_and_each_once() {
        for percent in [1, 7, 50, 100] {
            let words = dirty_words(1000 * PAGE, percent);
            assert_eq!(words.len() as u64, 10 * percent);
            assert!(words.windows(2).all(|pair| pair[0] < pair[1]), "{percent} %");
            assert!(words.iter().all(|word| word % PAGE == 0 && *word < 1000 * PAGE));
        }
        assert_eq!(dirty_words(PAGE, 1), [0]);
    }
}
