//! `radic ckpt`: checkpoints of one program, without a cluster.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use radic_ckpt::image::{self, Report};
use radic_ckpt::{Mode, control};

use crate::show;

/// The library's file, beside this command.
const LIBRARY: &str = "libradic_ckpt_preload.so";
/// How many images of a program `run` keeps.
const KEPT: u64 = 2;

#[derive(Subcommand)]
pub(crate) enum CkptCommand {
    /// Run a program so that it can be saved; with --interval, save it regularly
    #[command(after_help = "Example:\n  radic ckpt run --interval 60 --dir images -- ./program input\n\n\
        The two last images are kept: DIR/image.N. The exit code is that of the program.")]
    Run {
        /// Seconds between two checkpoints; without it, `radic ckpt save` makes them
        #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
        interval: Option<u64>,
        /// Where the images go
        #[arg(long, value_name = "DIR", default_value = ".")]
        dir: PathBuf,
        #[command(flatten)]
        how: How,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
    /// Save a running program that was started by `radic ckpt run`
    #[command(after_help = "Example:\n  radic ckpt save 4711 -o image\n\nThe program goes on.")]
    Save {
        /// The process, or the command that keeps it
        pid: i32,
        /// The image to write [default: image.PID]
        #[arg(short, long, value_name = "IMAGE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        how: How,
    },
    /// Let a saved program go on from its image
    #[command(after_help = "Example:\n  radic ckpt restart image\n\nExit code and signals are the program's.")]
    Restart {
        /// The image
        image: PathBuf,
    },
    /// Check an image, and show what it holds
    #[command(after_help = "Example:\n  radic ckpt inspect image --json")]
    Inspect {
        /// The image
        image: PathBuf,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub(crate) struct How {
    /// Who writes the image: a copy of the program (fork), or the program while it waits (stop)
    #[arg(long, value_enum, default_value = "fork")]
    mode: ModeName,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    Fork,
    Stop,
}

impl How {
    fn mode(&self) -> Mode {
        match self.mode {
            ModeName::Fork => Mode::Fork,
            ModeName::Stop => Mode::Stop,
        }
    }
}

/// Does what was asked; the exit code.
pub(crate) fn dispatch(command: CkptCommand) -> Result<u8> {
    match command {
        CkptCommand::Run { interval, dir, how, program } => return run(interval, &dir, how.mode(), &program),
        CkptCommand::Save { pid, output, how } => {
            let output = output.unwrap_or_else(|| format!("image.{pid}").into());
            let Some(target) = control::restored_pid(pid) else {
                bail!("process {pid} does not run under the checkpoint library; start it with `radic ckpt run -- PROGRAM`");
            };
            let bytes = control::save(target, how.mode(), &output)?;
            show::report(&format!("radic: process {target} is saved in {} ({bytes} bytes)", output.display()));
        }
        CkptCommand::Restart { image } => {
            // Replaces this command; what comes back is an error.
            let error = control::restart(&image, &library()?)?.exec();
            return Err(error).with_context(|| format!("the program of {} cannot be executed", image.display()));
        }
        CkptCommand::Inspect { image, json } => {
            let file = File::open(&image).with_context(|| image.display().to_string())?;
            let report = image::inspect(BufReader::new(file)).with_context(|| image.display().to_string())?;
            if json { show::print_json(&report)? } else { show::print(&in_words(&report))? }
        }
    }
    Ok(0)
}

/// The library of the same build: beside this command.
fn library() -> Result<PathBuf> {
    let library = env::current_exe()?.with_file_name(LIBRARY);
    if !library.exists() {
        bail!("{} is missing: it belongs beside this command (`cargo build --release` puts it there)", library.display());
    }
    Ok(library)
}

fn run(interval: Option<u64>, dir: &Path, mode: Mode, program: &[OsString]) -> Result<u8> {
    let mut preload = library()?.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let (first, rest) = program.split_first().context("no program is given")?;
    let mut child = Command::new(first)
        .args(rest)
        .env("LD_PRELOAD", preload)
        .spawn()
        .with_context(|| format!("{} cannot be executed", Path::new(first).display()))?;
    let (pid, dir) = (child.id().cast_signed(), dir.to_owned());
    let (ended, end) = mpsc::channel::<()>();
    let saver =
        interval.map(|seconds| std::thread::spawn(move || save_regularly(pid, mode, &dir, Duration::from_secs(seconds), &end)));
    let status = child.wait()?;
    drop(ended);
    if let Some(saver) = saver {
        let _ = saver.join();
    }
    // A shell's way to tell of a signal.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(crate::outcome::exit_code(code))
}

/// Saves the process again and again until it has ended. A checkpoint that fails is reported; the next may succeed.
fn save_regularly(pid: i32, mode: Mode, dir: &Path, interval: Duration, end: &Receiver<()>) {
    for number in 1u64.. {
        if end.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let name = |number: u64| dir.join(format!("image.{number}"));
        match control::save(pid, mode, &name(number)) {
            Ok(_) if number > KEPT => {
                let _ = fs::remove_file(name(number - KEPT));
            }
            Ok(_) => {}
            Err(error) => show::report(&format!("radic: checkpoint {number} failed: {error}")),
        }
    }
}

fn in_words(report: &Report) -> String {
    let process = &report.meta.process;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\0', " ").trim_end().to_owned();
    let mut out = format!(
        "program      {}\ncommand      {}\ndirectory    {}\npid          {}\nimage        {:016x}, generation {}\nbytes        {}\n",
        text(&process.exe),
        text(&process.cmdline),
        text(&process.cwd),
        process.pid,
        report.id,
        report.generation,
        report.bytes
    );
    if report.parent != 0 {
        out += &format!("parent       {:016x}\n", report.parent);
    }
    out += &format!(
        "memory       {} bytes raw, {} packed to {}, {} zero, in {} runs\n",
        report.raw_bytes, report.packed_memory_bytes, report.packed_bytes, report.zero_bytes, report.runs
    );
    out += &format!("regions      {}\n", report.meta.regions.len());
    for thread in &report.meta.threads {
        out += &format!("thread       {} {} at {:#x}\n", thread.tid, text(&thread.name), thread.instruction);
    }
    for fd in &report.meta.descriptors {
        out += &format!("descriptor   {} {} {} at {}\n", fd.fd, text(&fd.kind), text(&fd.path), fd.position);
    }
    for note in &report.meta.notes {
        out += &format!("note         {note}\n");
    }
    out
}
