//! `radic ckpt`: checkpoints of one program, without a cluster.

use std::ffi::OsString;
use std::io::{self, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use radic_ckpt::control::{self, ControlError, Ids, Saved};
use radic_ckpt::image::chain::{Candidates, header_of, read_header};
use radic_ckpt::image::{self, FormatError, Header, ImageError};
use radic_ckpt::launch::DEATH_VARIABLE;
use radic_ckpt::trusted::{self, Owners, TrustError};
use serde::Serialize;

use crate::format;

mod how;
mod library;
mod regular;
mod text;

use how::{How, ModeName};
pub(crate) use library::library;
use text::{Ancestor, Inspected, Meter};

#[derive(Subcommand)]
pub(crate) enum CkptCommand {
    /// Run a program so that it can be saved; with --interval, save it regularly
    #[command(after_help = "Examples:\n  radic ckpt run --interval 60 --dir images -- ./program input\n  \
        radic ckpt run --interval 10 --mode incremental --dir images -- ./program input\n\n\
        The two last images are kept, DIR/image.N, and what they are increments to. The exit code is that of the program, 127 if it is not found and 126 if it cannot be executed.")]
    Run {
        /// Seconds between two checkpoints, like 60 or 0.2; without it, `radic ckpt save` makes them
        #[arg(long, value_name = "S", value_parser = crate::protection::parse_period)]
        interval: Option<Duration>,
        /// Where the images go
        #[arg(long, value_name = "DIR", default_value = ".")]
        dir: PathBuf,
        /// With --mode incremental: every so many images one is whole
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=64))]
        full_every: u64,
        #[command(flatten)]
        how: How,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
    /// Save a running program that was started by `radic ckpt run`
    #[command(after_help = "Examples:\n  radic ckpt save 4711 -o image\n  \
        radic ckpt save 4711 -o first --mode incremental\n  \
        radic ckpt save 4711 -o second --mode incremental --parent first\n\n\
        The program goes on. From the first image in incremental mode on it notes which pages it changes; an image with --parent holds \
        only what has changed since that one, and needs it to be restored: both belong in the same folder.")]
    Save {
        /// The process, or the command that keeps it
        pid: i32,
        /// The image to write [default: image.PID]
        #[arg(short, long, value_name = "IMAGE")]
        output: Option<PathBuf>,
        /// The last image of this process in incremental mode; the new one becomes an increment to it
        #[arg(long, value_name = "IMAGE")]
        parent: Option<PathBuf>,
        #[command(flatten)]
        how: How,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Let a saved program go on from its image
    #[command(
        after_help = "Example:\n  radic ckpt restart image\n\nExit code and signals are the program's. The images that an \
        increment needs are looked for beside it. An increment or a packed image is first unpacked to a temporary file, in TMPDIR or beside it.\n\n\
        To restart an image is to run its program, with your rights: what an image holds is executed as it is. So images, and what they are \
        increments to, are taken only if they are yours or root's and no other user may write them, nor exchange them in their folder. \
        `radic ckpt inspect --trust-owner` shows what is in one, and runs nothing."
    )]
    Restart {
        #[command(flatten)]
        trust: Trust,
        /// Do not ask for the old process and thread ids: for a copy beside the program that still runs
        #[arg(long)]
        new_ids: bool,
        /// Write the registers and the memory map to this new file, if the program dies of a fault
        #[arg(long, value_name = "FILE")]
        death_report: Option<PathBuf>,
        /// The image
        image: PathBuf,
    },
    /// Check an image, and show what it holds
    #[command(after_help = "Example:\n  radic ckpt inspect image --json")]
    Inspect {
        #[command(flatten)]
        trust: Trust,
        /// The image
        image: PathBuf,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Make a whole image of an increment and what it is an increment to
    #[command(after_help = "Examples:\n  radic ckpt merge image.7 -o whole\n  \
        radic ckpt merge image.7 --parent old/image.6 old/image.5\n\n\
        The result is unpacked, and stands for the increment in every way: other increments to that one are increments to it. \
        A whole image is merely unpacked.")]
    Merge {
        #[command(flatten)]
        trust: Trust,
        /// The image
        image: PathBuf,
        /// The image to write; may be IMAGE itself [default: IMAGE.whole]
        #[arg(short, long, value_name = "OUT")]
        output: Option<PathBuf>,
        /// The images among which its ancestors are, in any order [default: all that are beside it]
        #[arg(long, value_name = "FILE", num_args = 1..)]
        parent: Vec<PathBuf>,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Clone, Copy)]
pub(crate) struct Trust {
    /// Take images that another user owns, or that other users may write or exchange: that user, too, decides what is in them
    #[arg(long)]
    trust_owner: bool,
}

impl Trust {
    fn owners(self) -> Owners {
        if self.trust_owner { Owners::Any } else { Owners::Trusted }
    }
}

/// Does what was asked; the exit code.
pub(crate) fn dispatch(command: CkptCommand) -> Result<u8> {
    match command {
        CkptCommand::Run { interval, dir, full_every, how, program } => {
            return regular::run(interval, regular::Images { dir, how, full_every }, &program);
        }
        CkptCommand::Save { pid, output, parent, how, json } => {
            save(pid, &output.unwrap_or_else(|| format!("image.{pid}").into()), parent.as_deref(), how, json)?;
        }
        CkptCommand::Restart { trust, new_ids, death_report, image } => {
            let ids = if new_ids { Ids::New } else { Ids::Old };
            let mut meter = Meter::new("unpacked");
            let command = control::restart_as(ids, trust.owners(), &image, &library()?, &mut |done, all| meter.show(done, all));
            drop(meter);
            // Replaces this command; what comes back is an error.
            let mut command = named(command, &image)?;
            if let Some(report) = death_report {
                command.env(DEATH_VARIABLE, std::path::absolute(report).context("--death-report")?);
            }
            let error = command.exec();
            return Err(error).with_context(|| format!("the program of {} cannot be executed", image.display()));
        }
        CkptCommand::Inspect { trust, image, json } => inspect(&image, trust.owners(), json)?,
        CkptCommand::Merge { trust, image, output, parent, json } => {
            let output = output.unwrap_or_else(|| with_suffix(&image, ".whole"));
            merge(&image, &parent, trust.owners(), &output, json)?;
        }
    }
    Ok(0)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// For the JSON of `save` and `merge`: the image's file, too.
#[derive(Serialize)]
struct Named<'a> {
    image: &'a Path,
    #[serde(flatten)]
    saved: &'a Saved,
}

fn save(pid: i32, output: &Path, parent: Option<&Path>, how: How, json: bool) -> Result<()> {
    let parent = parent.map(|parent| parent_header(parent, output, how)).transpose()?;
    let Some(target) = control::restored_pid(pid) else {
        if pid <= 0 || !Path::new(&format!("/proc/{pid}")).exists() {
            bail!("there is no process {pid}: name one that `radic ckpt run` or `radic ckpt restart` has started");
        }
        bail!("process {pid} does not run under the checkpoint library; start it with `radic ckpt run -- PROGRAM`");
    };
    let request = how.request(parent.map_or(0, |header| header.id));
    let mut meter = Meter::new("saved");
    let saved = control::save_watched(target, request, output, &mut |done, all| meter.show(done, all))?;
    drop(meter);
    for note in &saved.notes {
        format::report(&format!("radic: will not be as it was: {note}"));
    }
    if let Some(parent) = parent.filter(|_| saved.parent == 0) {
        format::report(&format!(
            "radic: process {target} does not know what has changed since image {:016x} (it was not its last one in incremental mode): \
             the new image is whole",
            parent.id
        ));
    }
    if json {
        return format::print_json(&Named { image: output, saved: &saved });
    }
    format::report(&format!("radic: process {target} is saved in {} ({} bytes)", output.display(), saved.bytes));
    Ok(())
}

fn parent_header(parent: &Path, output: &Path, how: How) -> Result<Header> {
    if how.mode != ModeName::Incremental {
        bail!("--parent needs --mode incremental: the other modes save all of the memory");
    }
    let header = named(read_header(parent), parent)?;
    let folder = |path: &Path| control::folder(path).canonicalize().ok();
    if folder(parent) != folder(output) {
        format::report(&format!(
            "radic: {} will need {}, which is in another folder: bring them together before `radic ckpt restart`",
            output.display(),
            parent.display()
        ));
    }
    Ok(header)
}

/// What went wrong with an image, with its name and the way out.
fn named<T>(result: Result<T, impl Into<ControlError>>, image: &Path) -> Result<T> {
    result.map_err(|error| {
        let error = error.into();
        let way_out = way_out(&error);
        match error {
            // It names the file or folder that it is about.
            ControlError::Untrusted(_) => anyhow!("{error}{way_out}"),
            error => anyhow!("{}: {error}{way_out}", image.display()),
        }
    })
}

/// What can be done about an image that is not taken, where the error does not say so.
fn way_out(error: &ControlError) -> &'static str {
    match error {
        ControlError::Untrusted(TrustError::Io { error, .. }) | ControlError::Image(ImageError::Io(error)) => {
            match error.kind() {
                io::ErrorKind::PermissionDenied => "; run this as its owner",
                _ => "; name an image that `radic ckpt save` or `radic ckpt run --interval` has written",
            }
        }
        ControlError::Image(ImageError::Format(error)) => match error {
            FormatError::NotAnImage => "; `radic ckpt save PID -o IMAGE` writes one",
            FormatError::Version(_) => "; use the release of RADIC that wrote it",
            _ => "; take another copy of it, or the image before it",
        },
        _ => "",
    }
}

fn merge(image: &Path, parents: &[PathBuf], owners: Owners, output: &Path, json: bool) -> Result<()> {
    let mut meter = Meter::new("merged");
    let merged = control::merge_files(image, parents, owners, output, &mut |done, all| meter.show(done, all));
    drop(meter);
    let merged = named(merged, image)?;
    let saved = Saved { bytes: merged.bytes, id: merged.header.id, parent: merged.header.parent, notes: merged.meta.notes };
    if json {
        return format::print_json(&Named { image: output, saved: &saved });
    }
    format::report(&format!("radic: {} is the whole of {} ({} bytes)", output.display(), image.display(), saved.bytes));
    Ok(())
}

fn inspect(path: &Path, owners: Owners, json: bool) -> Result<()> {
    let mut file = named(trusted::open(path, owners), path)?;
    let header = named(header_of(&file), path)?;
    named(file.rewind().map_err(ImageError::Io), path)?;
    let report = named(image::inspect(file), path)?;
    let (mut ancestors, mut missing) = (Vec::new(), None);
    if header.parent != 0 {
        match Candidates::in_folder(control::folder(path), owners).and_then(|candidates| candidates.ancestors(&header)) {
            Ok(paths) => {
                for path in paths {
                    let header = named(read_header(&path), &path)?;
                    ancestors.push(Ancestor { id: image::hexadecimal(header.id), image: path });
                }
            }
            Err(error) => missing = Some(error.to_string()),
        }
    }
    let inspected = Inspected { report, ancestors, missing };
    if json { format::print_json(&inspected) } else { Ok(format::print(&text::in_words(&inspected))?) }
}
