//! `radic bench ckpt`: pauses, bytes, restart and overhead of checkpoints, on one program and in turn.
//!
//! A pause is measured by the program itself, as the longest gap of its own clock between the request and the end of the image. That
//! includes what the machine's other work does to it; the engine's own figure stands beside it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags};
use radic_ckpt::control;
use radic_ckpt::image::Header;
use radic_ckpt::image::format::HEADER_BYTES;
use radic_ckpt::{Mode, Request, Tracking};
use radic_protector::folder;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::figures::{Comparison, Spread, Times, busy};
use super::plot::{Panel, PlotArgs, Row};
use super::rival::Rival;
use super::subject::READY;
use crate::ckpt::library;
use crate::client;
use crate::format::report;
use crate::progress::{Progress, Unit};
use crate::terminal::Signals;

/// Time that any one step may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Time between two checkpoints with tracking on: a long way above what the program takes to dirty all it dirties.
const DIRTYING: Duration = Duration::from_millis(300);
/// Increments of one program.
const INCREMENTS: u32 = 3;
/// Period of the checkpoints of the loop with tracking.
const PERIOD: Duration = Duration::from_secs(1);

/// The most that a pause, and a restart, should take.
const FORK_MS: f64 = 35.0;
const HUGE_MS: f64 = 10.0;
const INCREMENTAL_MS: f64 = 5.0;
const RESTORE_S: f64 = 0.7;
/// Steps of a round: two of fork mode, huge pages, increments, and nine loops. A rival is one more.
const STEPS: u64 = 13;

/// The file that is the program's stderr.
const COMPLAINTS: &str = "stderr";

/// Flags of `radic bench ckpt`.
#[derive(Args)]
pub(crate) struct CkptArgs {
    /// Memory of the program in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
    /// Rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How often the loop goes through the memory
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// Where images go meanwhile [default: TMPDIR, or /tmp]
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    plot: PlotArgs,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

/// What several checkpoints of one kind cost.
#[derive(Debug, Serialize)]
struct Cost {
    /// Longest gap of the program's clock.
    program_pause_ms: Times,
    /// The engine's own figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_pause_ms: Option<Times>,
    /// From the request to the end of the image.
    image_s: Times,
    image_mib: Times,
}

#[derive(Debug, Serialize)]
struct Report {
    mib: u64,
    rounds: u32,
    fork: Cost,
    /// None where the kernel gives none.
    fork_huge_pages: Option<Cost>,
    /// With 1 % of the pages dirty.
    incremental: Cost,
    restore_s: Times,
    rival: Option<&'static str>,
    rival_cost: Option<Cost>,
    /// Why it is not CRIU, or what else is to be known.
    notes: Vec<String>,
    /// Seconds of the loop.
    loop_under_library: Comparison,
    /// With an increment a second.
    loop_tracked: Comparison,
}

/// `radic bench ckpt`.
pub(super) fn measure(args: &CkptArgs) -> Result<()> {
    let file = args.plot.begin()?;
    let mut bench = Bench::new(args)?;
    let (rival, why) = Rival::find();
    let steps = STEPS + u64::from(rival.is_some());
    bench.progress.begin("checkpoints", Unit::Steps, Some(steps * u64::from(args.rounds)));
    let busy = busy();
    let mut samples = Samples::default();
    for round in 1..=args.rounds {
        bench.round = round;
        bench.fork_and_restore(&mut samples)?;
        bench.huge_pages(&mut samples)?;
        bench.incremental(&mut samples)?;
        if let Some(rival) = &rival {
            bench.rival(rival, &mut samples)?;
        }
        bench.loops(&mut samples)?;
    }
    bench.progress.end();
    let mut notes: Vec<String> = why.into_iter().chain(busy).collect();
    if samples.huge.is_empty() {
        notes.push("huge pages were not measured: the kernel gave the program none".into());
    }
    let figures = Report {
        mib: args.mib,
        rounds: args.rounds,
        fork: cost(&samples.fork).context("no checkpoint was made")?,
        fork_huge_pages: cost(&samples.huge),
        incremental: cost(&samples.incremental).context("no increment was made")?,
        restore_s: Times::of(samples.restore),
        rival: rival.as_ref().map(Rival::name),
        rival_cost: cost(&samples.rival),
        notes,
        loop_under_library: Comparison::of(&samples.library),
        loop_tracked: Comparison::of(&samples.tracked),
    };
    args.plot.tell(&figures, args.json, in_words, file, panels)
}

fn panels(report: &Report) -> [Panel; 2] {
    let pause = |what: &str, cost: &Cost, target: f64| {
        let spread = Spread::parts_of(&cost.program_pause_ms, target);
        Row { what: format!("{what} ({target} ms)"), spread, target: Some(1.0) }
    };
    let mut pauses = vec![pause("fork, 4 KiB pages", &report.fork, FORK_MS)];
    pauses.extend(report.fork_huge_pages.as_ref().map(|cost| pause("fork, huge pages", cost, HUGE_MS)));
    pauses.push(pause("incremental, 1 % dirty", &report.incremental, INCREMENTAL_MS));
    let restore = Spread::parts_of(&report.restore_s, RESTORE_S);
    pauses.push(Row { what: format!("restart ({RESTORE_S} s)"), spread: restore, target: Some(1.0) });
    let row = |what: &str, comparison: &Comparison, target| Row {
        what: what.into(),
        spread: comparison.pair_ratios,
        target: Some(target),
    };
    let loops =
        vec![row("loop, no checkpoint", &report.loop_under_library, 1.01), row("loop, one a second", &report.loop_tracked, 1.02)];
    let title = format!("Checkpoints of {} MiB: pauses and restart, {} rounds", report.mib, report.rounds);
    [
        Panel { title, axis: "parts of the target, which is in brackets", rows: pauses },
        Panel { title: "A loop that reads and writes its memory".into(), axis: "times the native one", rows: loops },
    ]
}

#[derive(Default)]
struct Samples {
    fork: Vec<Sample>,
    huge: Vec<Sample>,
    incremental: Vec<Sample>,
    rival: Vec<Sample>,
    restore: Vec<f64>,
    library: Vec<(f64, f64)>,
    tracked: Vec<(f64, f64)>,
}

/// One checkpoint.
struct Sample {
    program_pause_ms: f64,
    engine_pause_ms: Option<f64>,
    image_s: f64,
    image_mib: f64,
}

fn cost(samples: &[Sample]) -> Option<Cost> {
    let times = |of: fn(&Sample) -> f64| (!samples.is_empty()).then(|| Times::of(samples.iter().map(of).collect()));
    let engine: Vec<f64> = samples.iter().filter_map(|sample| sample.engine_pause_ms).collect();
    Some(Cost {
        program_pause_ms: times(|sample| sample.program_pause_ms)?,
        engine_pause_ms: (!engine.is_empty()).then(|| Times::of(engine)),
        image_s: times(|sample| sample.image_s)?,
        image_mib: times(|sample| sample.image_mib)?,
    })
}

fn in_words(report: &Report) -> String {
    let mut text = format!("{} MiB resident, one thread that dirties pages; medians of {} rounds\n\n", report.mib, report.rounds);
    text += &format!("{:<34} {:>10} {:>10} {:>9} {:>9}   target\n", "", "program ms", "engine ms", "image s", "MiB");
    let costs = [
        ("fork, 4 KiB pages", Some(&report.fork), "pause <= 35 ms"),
        ("fork, huge pages", report.fork_huge_pages.as_ref(), "pause <= 10 ms"),
        ("incremental, 1 % dirty", Some(&report.incremental), "pause <= 5 ms, < 25 MiB"),
        (report.rival.unwrap_or_default(), report.rival_cost.as_ref(), "(beside)"),
    ];
    for (what, cost, target) in costs {
        let Some(cost) = cost else { continue };
        let engine = cost.engine_pause_ms.map_or("-".to_owned(), |times| format!("{:.2}", times.median));
        let (program, seconds, mib) = (cost.program_pause_ms.median, cost.image_s.median, cost.image_mib.median);
        text += &format!("{what:<34} {program:>10.2} {engine:>10} {seconds:>9.2} {mib:>9.1}   {target}\n");
    }
    text += &format!("\n{:<34} {:>10} {:>10}\n", "", "min", "median");
    let restore = &report.restore_s;
    text +=
        &format!("{:<34} {:>10.3} {:>10.3} {:>19}   <= 0.7 s\n", "restart, from page cache, s", restore.min, restore.median, "");
    text += &format!("\n{:<34} {:>10} {:>10} {:>9} {:>9}\n", "", "native s", "radic s", "ratio", "of pairs");
    let loops = [
        ("loop, no checkpoint", &report.loop_under_library, "0.99 to 1.01"),
        ("loop, an increment a second", &report.loop_tracked, "<= 1.02"),
    ];
    for (what, Comparison { native, radic, ratio, pair_ratio, .. }, target) in loops {
        text += &format!("{what:<34} {:>10.3} {:>10.3} {ratio:>9.4} {pair_ratio:>9.4}   {target}\n", native.median, radic.median);
    }
    for note in &report.notes {
        text += &format!("\n{note}");
    }
    text + "\n"
}

/// How the program is started.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Native,
    UnderLibrary,
    /// Under the library, with huge pages.
    HugePages,
}

struct Bench {
    mib: u64,
    rounds: u32,
    passes: u32,
    round: u32,
    folder: Folder,
    library: PathBuf,
    signals: Signals,
    progress: Progress,
}

impl Bench {
    fn new(args: &CkptArgs) -> Result<Self> {
        let folder = Folder::new(args.dir.clone().unwrap_or_else(std::env::temp_dir))?;
        let library = library()?;
        // An interrupt ends the program, which is in the foreground with us; we remove what we have made, and end then.
        let signals = Signals::block(None).context("cannot wait for signals")?;
        Ok(Self {
            mib: args.mib,
            rounds: args.rounds,
            passes: args.passes,
            round: 0,
            folder,
            library,
            signals,
            progress: Progress::new(args.json),
        })
    }

    fn step(&mut self, what: &str) -> Result<()> {
        self.progress.say(&format!("round {} of {}: {what}", self.round, self.rounds));
        self.progress.advance(1);
        self.not_interrupted()
    }

    fn not_interrupted(&mut self) -> Result<()> {
        ensure!(self.signals.next().context("signals")?.is_none(), "interrupted");
        Ok(())
    }

    fn spawn(&self, command: &mut Command) -> Result<Subject> {
        let child = self.signals.unblocked(|| command.spawn()).context("signals")?.context("the program cannot be executed")?;
        Ok(Subject { child, report: self.folder.path().join("gaps") })
    }

    fn command(&self, start: Start, options: &[&str]) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("where this command is")?);
        command.args(["bench", "subject", "--mib", &self.mib.to_string()]).args(options);
        // Not our stderr, which may be a file: a restored program cuts its files to the length they had.
        let complaints = self.folder.0.replace(COMPLAINTS).context("the program's stderr")?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(complaints).env_remove("LD_PRELOAD");
        if start != Start::Native {
            command.env("LD_PRELOAD", &self.library);
        }
        if start == Start::HugePages {
            // madvise(MADV_HUGEPAGE) for whatever the program allocates.
            command.arg("--huge-pages").env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        }
        Ok(command)
    }

    /// The program that notes gaps, ready.
    fn subject(&mut self, start: Start, dirty_percent: u64) -> Result<Subject> {
        let report = self.folder.path().join("gaps");
        let _ = fs::remove_file(&report);
        let mut command = self.command(start, &["--dirty-percent", &dirty_percent.to_string()])?;
        let mut subject = self.spawn(command.arg("--report").arg(report))?;
        subject.until("is ready", |said| said.starts_with(READY).then_some(()))?;
        self.not_interrupted()?;
        Ok(subject)
    }

    fn fork_and_restore(&mut self, samples: &mut Samples) -> Result<()> {
        self.step("fork mode")?;
        let image = self.folder.path().join("image");
        let mut subject = self.subject(Start::UnderLibrary, 100)?;
        samples.fork.push(subject.save(Mode::Fork.into(), &image)?.1);
        subject.end()?;
        self.step("restart")?;
        let begin = now();
        let mut command = control::restart(&image, &self.library)?;
        let mut restored = self.spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
        // The first line after the restart is about the time without a process.
        let again = restored.until("goes on after its restart", |said| gaps(said).map(|gap| gap.end).find(|end| *end > begin))?;
        samples.restore.push((again - begin) as f64 / 1e9);
        restored.end()?;
        Ok(fs::remove_file(&image)?)
    }

    fn huge_pages(&mut self, samples: &mut Samples) -> Result<()> {
        self.step("fork mode, huge pages")?;
        let mut subject = self.subject(Start::HugePages, 100)?;
        // Most of its memory, or the figure would be about something else.
        if subject.huge_mib()? >= self.mib / 2 {
            samples.huge.push(subject.save(Mode::Fork.into(), &self.folder.path().join("image"))?.1);
        }
        subject.end()
    }

    fn incremental(&mut self, samples: &mut Samples) -> Result<()> {
        self.step("incremental")?;
        let image = self.folder.path().join("image");
        let mut subject = self.subject(Start::UnderLibrary, 1)?;
        let (mut parent, _) = subject.save(tracked(0), &image)?;
        for _ in 0..INCREMENTS {
            std::thread::sleep(DIRTYING);
            let (header, sample) = subject.save(tracked(parent.id), &image)?;
            ensure!(header.parent == parent.id, "the program did not track its changes: the image is whole");
            samples.incremental.push(sample);
            parent = header;
        }
        subject.end()
    }

    fn rival(&mut self, rival: &Rival, samples: &mut Samples) -> Result<()> {
        self.step(rival.name())?;
        let folder = self.folder.path().join("rival");
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let subject = self.subject(Start::Native, 100)?;
        let (begin, mut command) = (now(), rival.save(subject.child.id(), &folder));
        // It stays in the foreground: an interrupt reaches it, too.
        let output = self.signals.unblocked(|| command.stdin(Stdio::null()).output()).context("signals")?;
        let output = output.with_context(|| format!("{} cannot be executed", rival.name()))?;
        let end = now();
        ensure!(output.status.success(), "{} failed: {}", rival.name(), String::from_utf8_lossy(&output.stderr).trim());
        let bytes = fs::read_dir(&folder)?.map(|entry| Ok(entry?.metadata()?.len())).sum::<Result<u64>>()?;
        samples.rival.push(Sample {
            program_pause_ms: subject.longest_gap(begin, end)?,
            engine_pause_ms: None,
            image_s: (end - begin) as f64 / 1e9,
            image_mib: bytes as f64 / f64::from(1 << 20),
        });
        fs::remove_dir_all(&folder)?;
        subject.end()
    }

    /// The three in turns, so that none is always the first: what a pass takes depends by percents on what memory a process got.
    fn loops(&mut self, samples: &mut Samples) -> Result<()> {
        const KINDS: [(&str, Start, bool); 3] = [
            ("loop: native", Start::Native, false),
            ("loop: under the library", Start::UnderLibrary, false),
            ("loop: with an increment a second", Start::UnderLibrary, true),
        ];
        for first in 0..KINDS.len() {
            let mut seconds = [0.0; KINDS.len()];
            for kind in (0..KINDS.len()).map(|number| (first + number) % KINDS.len()) {
                let (what, start, track) = KINDS[kind];
                self.step(what)?;
                seconds[kind] = self.pass(start, track)?;
            }
            let [native, library, tracked] = seconds;
            samples.library.push((native, library));
            samples.tracked.push((native, tracked));
        }
        Ok(())
    }

    /// Seconds that the loop takes.
    fn pass(&mut self, start: Start, track: bool) -> Result<f64> {
        let passes = self.passes.to_string();
        let mut command = self.command(start, &["--dirty-percent", "1", "--passes", &passes])?;
        let mut subject = self.spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let mut stdin = subject.child.stdin.take().context("the pipe that was asked for")?;
        let mut stdout = BufReader::new(subject.child.stdout.take().context("the pipe that was asked for")?);
        ensure!(readable(&stdout, LIMIT)?, "the program is not ready after {} s", LIMIT.as_secs());
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        ensure!(line.trim_end() == READY, "the program said {line:?}");
        let nowhere = Path::new("/dev/null");
        let mut parent = if track { Some(subject.save(tracked(0), nowhere)?.0) } else { None };
        stdin.write_all(b"go\n")?;
        let deadline = Instant::now() + LIMIT;
        while !readable(&stdout, if track { PERIOD } else { LIMIT })? {
            ensure!(Instant::now() < deadline, "the loop takes longer than {} s: give fewer --passes", LIMIT.as_secs());
            let last = parent.context("the loop takes too long: give fewer --passes")?;
            parent = Some(subject.save(tracked(last.id), nowhere)?.0);
        }
        line.clear();
        stdout.read_line(&mut line)?;
        let nanoseconds: u64 = line.trim_end().parse().with_context(|| format!("the program said {line:?}"))?;
        subject.end()?;
        self.not_interrupted()?;
        Ok(nanoseconds as f64 / 1e9)
    }
}

fn tracked(parent: u64) -> Request {
    Request { mode: Mode::Fork, tracking: Tracking::Best, compress: false, parent }
}

/// Is there something to read within this time?
fn readable(input: &BufReader<std::process::ChildStdout>, limit: Duration) -> Result<bool> {
    let mut fds = [PollFd::new(input.get_ref().as_fd(), PollFlags::POLLIN)];
    client::poll_fds(&mut fds, Some(limit)).context("waiting for the program")?;
    Ok(!input.buffer().is_empty() || fds[0].any().unwrap_or(false))
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A time in which the program did nothing, in nanoseconds of CLOCK_MONOTONIC.
struct Gap {
    begin: u64,
    end: u64,
}

/// The gaps in a program's report; a line that is just being written is left out.
fn gaps(report: &str) -> impl Iterator<Item = Gap> {
    let whole = report.rfind('\n').map_or("", |end| &report[..end]);
    whole.lines().filter_map(|line| {
        let (end, length) = line.split_once(' ')?;
        let (end, length): (u64, u64) = (end.parse().ok()?, length.parse().ok()?);
        Some(Gap { begin: end.checked_sub(length)?, end })
    })
}

/// The program, or what became of it after a restart; killed when dropped.
struct Subject {
    child: Child,
    report: PathBuf,
}

impl Subject {
    /// Waits until its report holds something.
    fn until<T>(&mut self, what: &str, mut there: impl FnMut(&str) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(thing) = fs::read_to_string(&self.report).ok().and_then(|said| there(&said)) {
                return Ok(thing);
            }
            if let Some(status) = self.child.try_wait()? {
                let said = fs::read_to_string(self.report.with_file_name(COMPLAINTS)).unwrap_or_default();
                bail!("the program ended ({status}) before it {what}: {}", said.trim());
            }
            ensure!(Instant::now() < deadline, "the program hangs before it {what}");
            // A file, since CRIU saves no pipe to others: there is no event to wait for. What is measured is in the file.
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Saves it to a file, which is not brought to the disk.
    fn save(&mut self, what: Request, path: &Path) -> Result<(Header, Sample)> {
        let pid = self.child.id().cast_signed();
        // No other user may read it, and it is opened through no link.
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
        let mut file = options.open(path).with_context(|| path.display().to_string())?;
        let begin = now();
        let mut image = control::request(pid, what)?;
        let mut head = [0; HEADER_BYTES];
        image.read_exact(&mut head).context("the image")?;
        let header = Header::decode(&head)?;
        file.write_all(&head)?;
        let (mut buffer, mut bytes) = (vec![0; 1 << 20], head.len() as u64);
        loop {
            match image.read(&mut buffer).context("the image")? {
                0 => break,
                len => {
                    file.write_all(&buffer[..len])?;
                    bytes += len as u64;
                }
            }
        }
        let end = now();
        let sample = Sample {
            program_pause_ms: self.longest_gap(begin, end)?,
            engine_pause_ms: control::last_pause(pid).ok().map(|pause| pause.as_secs_f64() * 1e3),
            image_s: (end - begin) as f64 / 1e9,
            image_mib: bytes as f64 / f64::from(1 << 20),
        };
        Ok((header, sample))
    }

    /// In milliseconds; 0 without a report.
    fn longest_gap(&self, begin: u64, end: u64) -> Result<f64> {
        let said = if self.report.exists() { fs::read_to_string(&self.report)? } else { String::new() };
        let within = gaps(&said).filter(|gap| gap.end >= begin && gap.begin <= end);
        Ok(within.map(|gap| gap.end - gap.begin).max().unwrap_or(0) as f64 / 1e6)
    }

    /// How much of its memory is in huge pages.
    fn huge_mib(&self) -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap_or("0");
        Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? / 1024)
    }

    fn end(mut self) -> Result<()> {
        // It may have ended by itself.
        let _ = self.child.kill();
        Ok(self.child.wait().map(drop)?)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder for this run only.
struct Folder(folder::Folder);

impl Folder {
    fn new(parent: PathBuf) -> Result<Self> {
        let path = parent.join(format!("radic-bench-{}", std::process::id()));
        let (folder, is_new) = folder::Folder::make(&path)?;
        ensure!(is_new, "{} is there already: remove it, or give another --dir", path.display());
        Ok(Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(self.path()) {
            report(&format!("radic: {} is still there: {error}", self.path().display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_read_up_to_the_last_whole_line() {
        let read = |text: &str| gaps(text).map(|gap| (gap.begin, gap.end)).collect::<Vec<_>>();
        assert_eq!(read("ready\n1000 100\n3000 500\n5000 7"), [(900, 1000), (2500, 3000)]);
        assert_eq!(read("rea"), []);
        assert_eq!(read("100 1000\n"), [], "longer than the clock has run");
    }

    #[test]
    fn figures_in_words_hold_the_targets() {
        let sample = || vec![Sample { program_pause_ms: 12.0, engine_pause_ms: Some(11.0), image_s: 0.5, image_mib: 1024.0 }];
        let report = Report {
            mib: 1024,
            rounds: 1,
            fork: cost(&sample()).unwrap(),
            fork_huge_pages: None,
            incremental: cost(&sample()).unwrap(),
            restore_s: Times::of(vec![0.5]),
            rival: Some("gcore"),
            rival_cost: cost(&sample()),
            notes: vec!["CRIU is not in PATH".into()],
            loop_under_library: Comparison::of(&[(2.0, 2.0)]),
            loop_tracked: Comparison::of(&[(2.0, 2.02)]),
        };
        let text = in_words(&report);
        for part in ["12.00", "11.00", "<= 35 ms", "<= 0.7 s", "1.0100", "gcore", "CRIU is not in PATH"] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(!text.contains("huge"), "nothing was measured with huge pages:\n{text}");
    }
}
