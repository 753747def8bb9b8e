//! A folder into which a job is being suspended.
//!
//! The manifest is written last and put in its place by one rename, so a folder holds the suspension before until the new one is whole. The files of the two have
//! different names ([`SECOND`]); those of the one before go when the new manifest is on the disk. What a command that was killed has left goes when the next one
//! writes there: the lock on `unfinished` says that none does.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use radic_protector::commands::file::File;
use radic_protector::folder;
use radic_wire::ids::Rank;
use radic_wire::key::ClusterKey;
use radic_wire::log::LogPart;
use radic_wire::mac::{Code, JobKey};
use radic_wire::span::Span;
use radic_wire::suspension::{SavedFile, begin_code};
use rustix::fs::FlockOperation;

use crate::log::Held;

use super::content::{self, MANIFEST, Mark, NEW_MANIFEST, SECOND, Saved, Source, UNFINISHED};

/// After so many bytes of a file the disk is waited for. So no wait for a disk that gets on is long, and one that is long means that the disk hangs:
/// the command is given up then (`SILENCE` in `protector/src/commands/suspend.rs`).
const SYNC: usize = 64 << 20;

/// A folder that is being written; what is in it goes again unless it is finished.
pub(super) struct Folder {
    files: folder::Folder,
    /// It was not there before.
    is_new: bool,
    written: Vec<String>,
    /// What the names of its files end with.
    suffix: &'static str,
    /// The files of the suspension before, and its mark.
    old: Vec<String>,
    /// The code of the manifest, once that is written.
    id: String,
    _lock: Option<OwnedFd>,
}

impl Folder {
    /// For a job, or the first digits of one: a folder that is new, empty, or holds a suspension from which that very job has gone on, or one whose job has come to its
    /// good end.
    pub(super) fn create(dir: &Path, key: &ClusterKey, job: &str) -> Result<Self> {
        Folder::open(dir, key, Some(job))
    }

    /// Whether there will be room for a job that is not there yet.
    pub(super) fn check(dir: &Path, key: &ClusterKey) -> Result<()> {
        Folder::open(dir, key, None).map(drop)
    }

    fn open(dir: &Path, key: &ClusterKey, job: Option<&str>) -> Result<Self> {
        let (files, is_new) = folder::Folder::make(dir)?;
        let names = files.names()?;
        if let Some(other) = names.iter().find(|name| !content::is_ours(name)) {
            bail!("the folder {} is not empty: {other} is no part of a suspended job; name a new folder", dir.display());
        }
        let mut folder =
            Folder { files, is_new, written: Vec::new(), suffix: "", old: Vec::new(), id: String::new(), _lock: None };
        // Before the lock makes a file that would say that there never was a manifest.
        if !names.is_empty() && !names.iter().any(|name| name == MANIFEST || name == UNFINISHED) {
            bail!(
                "the folder {} is not empty: it has files of a suspended job and no manifest; remove them if they are of no use",
                dir.display()
            );
        }
        folder.lock()?;
        let saved = match names.iter().any(|name| name == MANIFEST) {
            true => Some(Source::open(dir, radic_ckpt::trusted::Owners::Trusted)?.saved(key)?),
            false => None,
        };
        if let Some(saved) = &saved {
            check_over(dir, saved, job)?;
            folder.old = names.iter().filter(|name| saved.has(name) && *name != MANIFEST).cloned().collect();
            folder.suffix = if saved.names().any(|name| name.ends_with(SECOND)) { "" } else { SECOND };
        }
        let kept = |name: &str| name == UNFINISHED || saved.as_ref().is_some_and(|saved| saved.has(name));
        for name in names.iter().filter(|name| !kept(name)) {
            folder.files.remove(name)?;
        }
        Ok(folder)
    }

    fn lock(&mut self) -> Result<()> {
        let file = OwnedFd::from(self.files.append(UNFINISHED)?);
        let path = self.files.path();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).with_context(|| {
            format!("another command is writing to the folder {}; name another, or wait for that command", path.display())
        })?;
        self._lock = Some(file);
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        self.files.path()
    }

    /// A file, by its name in a folder without another suspension.
    pub(super) fn create_file(&mut self, name: &str) -> Result<(String, fs::File)> {
        let name = format!("{name}{}", self.suffix);
        if self.written.contains(&name) {
            // What it held was copied a moment too early.
            return Ok((name.clone(), self.files.replace(&name)?));
        }
        let file = self.files.create_new(&name)?;
        self.written.push(name.clone());
        Ok((name, file))
    }

    /// The last file, not in its place. All of it is on the disk then.
    pub(super) fn write_manifest(&mut self, manifest: &[u8]) -> Result<()> {
        let mut file = self.files.create_new(NEW_MANIFEST)?;
        self.written.push(NEW_MANIFEST.to_owned());
        let written = file.write_all(manifest).and_then(|()| file.sync_all());
        written.with_context(|| self.files.path().join(MANIFEST).display().to_string())?;
        // The names that it lists, before it.
        self.files.sync()?;
        self.id = content::id_of(manifest);
        Ok(())
    }

    /// The last file gets its name: from here on the folder holds this job.
    pub(super) fn place_manifest(&mut self) -> Result<()> {
        self.files.rename(NEW_MANIFEST, MANIFEST)?;
        self.files.sync()?;
        self.written.clear();
        self.is_new = false;
        // What cannot be removed goes when the next suspension is written here.
        self.old.drain(..).for_each(|name| _ = self.files.remove(&name));
        Ok(())
    }

    /// Marks what was finished.
    pub(super) fn mark(&self, mark: &Mark) -> Result<()> {
        content::write_mark(&self.files, &self.id, mark)
    }
}

/// Whether the job of a suspension needs it no more, so that this one may be written in its place.
fn check_over(dir: &Path, saved: &Saved, job: Option<&str>) -> Result<()> {
    let is_it = job.is_some_and(|job| saved.job().to_string().starts_with(&job.to_ascii_lowercase()));
    let over = saved.mark.as_ref().is_some_and(|mark| is_it || mark.is_finished());
    ensure!(
        over,
        "the folder {} is not empty: job {} is suspended there, and what would be written is {}; go on with it (`radic resume`, or `radic run --resume-from`), \
         name another folder, or remove this one",
        dir.display(),
        saved.job(),
        if is_it { "no continuation of it" } else { "another job" }
    );
    Ok(())
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Without the lock these are not ours to remove.
        if self._lock.is_some() {
            for name in self.written.iter().map(String::as_str).chain([UNFINISHED]) {
                let _ = self.files.remove(name);
            }
        }
        if self.is_new {
            let _ = fs::remove_dir(self.files.path());
        }
    }
}

/// A file that is being written.
pub(super) struct Saving {
    name: String,
    path: PathBuf,
    file: fs::File,
    code: Code,
    bytes: u64,
    /// Bytes since the disk was waited for last.
    unsynced: usize,
}

impl Saving {
    pub(super) fn create(folder: &mut Folder, rank: Rank, file: File, key: &JobKey) -> Result<Self> {
        let kind = match file {
            File::Image(image) => format!("image-{image}"),
            File::Journal => "journal".to_owned(),
            File::Received => "received".to_owned(),
        };
        let (name, file) = folder.create_file(&format!("rank-{rank}.{kind}"))?;
        let path = folder.files.path().join(&name);
        let code = begin_code(key, &name);
        Ok(Saving { name, path, file, code, bytes: 0, unsynced: 0 })
    }

    /// Exactly this part of what is held. `copied` hears of each piece.
    pub(super) fn copy(
        &mut self,
        held: &mut Held,
        part: LogPart,
        Span { start, end }: Span,
        copied: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let mut position = start;
        while position < end {
            let mut piece = held.read(part, position)?;
            ensure!(!piece.is_empty(), "{part:?} is not held from {position} on, it should be up to {end}");
            piece.truncate(usize::try_from(end - position).unwrap_or(usize::MAX));
            self.write(&piece)?;
            position += piece.len() as u64;
            copied(piece.len() as u64)?;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, piece: &[u8]) -> Result<()> {
        self.file.write_all(piece).with_context(|| self.path.display().to_string())?;
        self.unsynced += piece.len();
        if self.unsynced >= SYNC {
            self.file.sync_data().with_context(|| self.path.display().to_string())?;
            self.unsynced = 0;
        }
        self.code.update(piece);
        self.bytes += piece.len() as u64;
        Ok(())
    }

    pub(super) fn finish(self) -> Result<SavedFile> {
        self.file.sync_all().with_context(|| self.path.display().to_string())?;
        Ok(SavedFile { name: self.name, bytes: self.bytes, code: self.code.finish() })
    }
}
