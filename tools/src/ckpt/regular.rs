//! `radic ckpt run`: a program, and images of it at regular times.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;
use std::{env, fs, io};

use anyhow::{Context, Result, bail};
use radic_ckpt::control::{Saved, Target};
use radic_wire::job::exit_code;

use super::how::{How, ModeName};
use super::library::library;
use crate::{format, outcome};

/// The highest number of an image after which a program can go on: no run makes as many as there are above it.
const HIGHEST: u64 = u64::MAX / 2;
/// How many images of a program are kept, besides those that they are increments to.
const KEPT: usize = 2;

/// Which images are to be made.
pub(super) struct Images {
    /// Where they go.
    pub(super) dir: PathBuf,
    pub(super) how: How,
    /// In incremental mode: one of so many is whole.
    pub(super) full_every: u64,
}

pub(super) fn run(interval: Option<Duration>, images: Images, program: &[OsString]) -> Result<u8> {
    let mut preload = library()?.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let dir = || images.dir.display().to_string();
    // No other user may read what was in memory; and images are taken only from a folder that no other user may write.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&images.dir).with_context(dir)?;
    let first_number = first_number(&images.dir)?;
    let (first, rest) = program.split_first().context("no program is given")?;
    let mut child = match Command::new(first).args(rest).env("LD_PRELOAD", preload).spawn() {
        Ok(child) => child,
        Err(error) => return Ok(not_executed(first, &error)),
    };
    // Now, before this process waits for it: its id may be another process's afterwards.
    let target = match interval.map(|_| Target::open(child.id().cast_signed())).transpose() {
        Ok(target) => target,
        Err(error) => {
            child.kill()?;
            child.wait()?;
            return Err(error).context("the program cannot be saved regularly, and is ended");
        }
    };
    let (ended, end) = mpsc::channel::<()>();
    let saver = interval.zip(target).map(|(interval, target)| {
        std::thread::spawn(move || Saver::new(target, images, first_number).save_regularly(interval, &end))
    });
    let status = child.wait()?;
    drop(ended);
    if let Some(saver) = saver {
        let _ = saver.join();
    }
    // A shell's way to tell of a signal.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(outcome::exit_code(code))
}

/// Says that there is no program, and what a shell's exit code would be.
fn not_executed(program: &OsStr, error: &io::Error) -> u8 {
    let program = Path::new(program).display();
    format::report(&format!(
        "radic: {program} cannot be executed: {error}; `radic doctor -- {program}` says what stands in the way"
    ));
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    outcome::exit_code(if is_missing { exit_code::NOT_FOUND } else { exit_code::CANNOT_EXECUTE })
}

/// The number of the first image of this run: images of earlier runs are not overwritten. What another user has put there is none of them.
fn first_number(dir: &Path) -> Result<u64> {
    let shown = || dir.display().to_string();
    let me = nix::unistd::geteuid().as_raw();
    let mut last = 0;
    for entry in fs::read_dir(dir).with_context(shown)? {
        let entry = entry.with_context(shown)?;
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|name| name.strip_prefix("image.")?.parse::<u64>().ok()) else { continue };
        // Of a link it is the link that is looked at.
        let own = entry.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.uid() == me);
        if own && number > HIGHEST {
            bail!("{} leaves no number for another image: remove it, or choose another folder", entry.path().display());
        }
        last = if own { number.max(last) } else { last };
    }
    Ok(last + 1)
}

/// Saves a process again and again.
struct Saver {
    target: Target,
    images: Images,
    /// Number of the next image.
    number: u64,
    /// What is on disk, oldest first.
    history: History,
    notes_told: HashSet<String>,
}

impl Saver {
    fn new(target: Target, images: Images, number: u64) -> Self {
        Self { target, images, number, history: History::default(), notes_told: HashSet::new() }
    }

    /// Until the process has ended. A checkpoint that fails is reported; the next may succeed.
    fn save_regularly(&mut self, interval: Duration, end: &Receiver<()>) {
        while end.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            let path = self.images.dir.join(format!("image.{}", self.number));
            let parent = match self.images.how.mode {
                ModeName::Incremental => self.history.parent(self.images.full_every),
                ModeName::Fork | ModeName::Stop => 0,
            };
            match self.target.save(&self.images.how.request(parent), &path, &mut |_, _| {}) {
                Ok(saved) => self.saved(path, saved),
                Err(error) => format::report(&format!("radic: checkpoint {} failed: {error}", self.number)),
            }
            self.number += 1;
        }
    }

    fn saved(&mut self, path: PathBuf, saved: Saved) {
        for old in self.history.add(path, saved.id, saved.parent) {
            if let Err(error) = fs::remove_file(&old) {
                format::report(&format!("radic: {} is not needed any more and cannot be removed: {error}", old.display()));
            }
        }
        for note in saved.notes {
            if !self.notes_told.contains(&note) {
                format::report(&format!("radic: will not be as it was: {note}"));
                self.notes_told.insert(note);
            }
        }
    }
}

/// The images of one process that are on disk, oldest first.
#[derive(Default)]
struct History {
    images: Vec<Entry>,
    /// Images since the last whole one, that one included.
    since_whole: u64,
}

struct Entry {
    path: PathBuf,
    id: u64,
    parent: u64,
}

impl History {
    /// What the next image shall be an increment to; 0: it shall be whole.
    fn parent(&self, full_every: u64) -> u64 {
        self.images.last().filter(|_| self.since_whole < full_every).map_or(0, |last| last.id)
    }

    /// Adds the newest; gives the files that are not needed any more.
    fn add(&mut self, path: PathBuf, id: u64, parent: u64) -> Vec<PathBuf> {
        self.since_whole = if parent == 0 { 1 } else { self.since_whole + 1 };
        self.images.push(Entry { path, id, parent });
        let parents: HashMap<u64, u64> = self.images.iter().map(|image| (image.id, image.parent)).collect();
        let mut needed = HashSet::new();
        for image in self.images.iter().rev().take(KEPT) {
            let mut next = Some(image.id);
            // Each id once: the walk ends even if ids went round in circles.
            while let Some(id) = next.filter(|id| needed.insert(*id)) {
                next = parents.get(&id).copied();
            }
        }
        self.images.extract_if(.., |image| !needed.contains(&image.id)).map(|image| image.path).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images 1, 2, 3...; each third is whole.
    #[test]
    fn chains_stay_whole_and_nothing_else_stays() {
        let mut history = History::default();
        let mut removed = Vec::new();
        let mut requests = Vec::new();
        for id in 1..=9u64 {
            let parent = history.parent(3);
            requests.push(parent);
            let gone = history.add(id.to_string().into(), id, parent);
            removed.push(gone.iter().map(|path| path.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" "));
        }
        assert_eq!(requests, [0, 1, 2, 0, 4, 5, 0, 7, 8]);
        // 4 and 3 are kept as 4 comes, hence 2 and 1, too; with 5 they go.
        assert_eq!(removed, ["", "", "", "", "1 2 3", "", "", "4 5 6", ""]);
    }

    #[test]
    fn a_process_may_make_a_whole_image_of_its_own_accord() {
        let mut history = History::default();
        for (id, parent) in [(1, 0), (2, 1), (3, 0)] {
            history.add(id.to_string().into(), id, parent);
        }
        assert_eq!(history.parent(3), 3);
        history.add("4".into(), 4, 3);
        assert_eq!(history.since_whole, 2);
        let left: Vec<_> = history.images.iter().map(|image| image.id).collect();
        assert_eq!(left, [3, 4]);
    }

    #[test]
    fn whole_images_are_kept_two_at_a_time() {
        let mut history = History::default();
        let removed: Vec<_> = (1..=4u64).map(|id| history.add(id.to_string().into(), id, 0).len()).collect();
        assert_eq!(removed, [0, 0, 1, 1]);
    }

    #[test]
    fn images_of_earlier_runs_are_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(first_number(dir.path()).unwrap(), 1);
        for name in ["image.7", "image.12", "image.12.whole", "image.13.partial", "other.99"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(first_number(dir.path()).unwrap(), 13);
    }

    /// Names that somebody has planted neither move the numbers on nor have them begin again at those of earlier images.
    #[test]
    fn the_numbers_of_images_do_not_wrap() {
        let dir = tempfile::tempdir().unwrap();
        let highest = format!("image.{}", u64::MAX);
        fs::write(dir.path().join("image.12"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join(&highest)).unwrap();
        fs::create_dir(dir.path().join("image.99")).unwrap();
        assert_eq!(first_number(dir.path()).unwrap(), 13);
        let planted = dir.path().join("image.77");
        fs::write(&planted, "").unwrap();
        if std::os::unix::fs::chown(&planted, Some(64_001), None).is_ok() {
            assert_eq!(first_number(dir.path()).unwrap(), 13, "it is another user's");
        }
        fs::remove_file(dir.path().join(&highest)).unwrap();
        fs::write(dir.path().join(&highest), "").unwrap();
        let error = first_number(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&highest) && error.contains("remove it"), "{error}");
    }
}
