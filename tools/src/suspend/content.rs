//! What a folder of `radic suspend` holds, and whether that has gone on already.
//!
//! A job that has gone on from a folder must not go on from there once more by accident: what it has done since would be done twice. So a resume leaves a
//! mark in the folder before the job goes on. The mark bears the code of the manifest: the manifest of the next suspension replaces both at once.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use radic_ckpt::trusted::{self, Owners};
use radic_protector::folder;
use radic_wire::ids::JobId;
use radic_wire::job::Outcome;
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use radic_wire::mac::MAC;
use radic_wire::suspension::Manifest;
use serde::{Deserialize, Serialize};

pub(super) const MANIFEST: &str = "manifest";
/// The end of the names of files that are written while the folder holds others without it.
pub(super) const SECOND: &str = ".2";
/// The lock of the command that writes to a folder. In a folder without a manifest it says that there never was one.
pub(super) const UNFINISHED: &str = "unfinished";
/// A manifest that is being written.
pub(super) const NEW_MANIFEST: &str = "manifest.new";
const RESUMED: &str = "resumed-";
/// Longest mark that is read, in bytes.
const MARK: u64 = 1024;

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_millis() as u64)
}

/// Says that a suspended job has gone on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// When, in milliseconds since 1970.
    at_ms: u64,
    /// The exit code of the job, if it has ended since, and not by being suspended again.
    code: Option<i32>,
}

impl Mark {
    pub(super) fn now() -> Mark {
        Mark { at_ms: now_ms(), code: None }
    }

    pub(super) fn ended(outcome: &Outcome) -> Mark {
        Mark { at_ms: now_ms(), code: Some(outcome.code) }
    }

    /// Whether the job has come to its good end.
    pub(crate) fn is_finished(&self) -> bool {
        self.code == Some(0)
    }

    /// What is known of the job.
    pub(crate) fn text(&self) -> String {
        match self.code {
            Some(code) => format!("went on from there and ended with code {code}"),
            None => format!("went on from there at {}", crate::format::utc(self.at_ms)),
        }
    }
}

/// A suspended job.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) manifest: Manifest,
    /// The code of the manifest, in hexadecimal digits.
    id: String,
    pub(crate) mark: Option<Mark>,
}

impl Saved {
    pub(crate) fn job(&self) -> JobId {
        self.manifest.suspension.job
    }

    /// The names of its files in the folder.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.manifest.ranks.iter().flat_map(|rank| rank.files()).map(|file| file.name.as_str())
    }

    fn mark_name(&self) -> String {
        mark_name(&self.id)
    }

    /// Whether a file of this name belongs to it.
    pub(super) fn has(&self, name: &str) -> bool {
        name == MANIFEST || name == self.mark_name() || self.names().any(|known| known == name)
    }

    /// Leaves the mark that the job goes on from here. If another command has just done so, and `again` does not permit it, that is an error.
    pub(crate) fn set_mark(&self, dir: &Path, again: bool) -> Result<()> {
        let files = folder::Folder::open(dir)?;
        if again || self.mark.is_some() {
            return write_mark(&files, &self.id, &Mark::now());
        }
        let mut file = match files.create_new(&self.mark_name()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => bail!(resumed(dir, self.job(), &Mark::now())),
            made => made?,
        };
        file.write_all(&serde_json::to_vec(&Mark::now())?).and_then(|()| file.sync_all())?;
        Ok(files.sync()?)
    }

    /// The job has not gone on after all.
    pub(crate) fn remove_mark(&self, dir: &Path) -> Result<()> {
        match &self.mark {
            Some(mark) => write_mark(&folder::Folder::open(dir)?, &self.id, mark),
            None => Ok(folder::Folder::open(dir)?.remove(&self.mark_name())?),
        }
    }

    /// The job has ended.
    pub(crate) fn mark_ended(&self, dir: &Path, outcome: &Outcome) -> Result<()> {
        write_mark(&folder::Folder::open(dir)?, &self.id, &Mark::ended(outcome))
    }
}

/// What is said of a job that has gone on, to a command that would resume it by accident.
pub(crate) fn resumed(dir: &Path, job: JobId, mark: &Mark) -> String {
    format!(
        "{}: job {job} {}, so what it has done since would be done again: --resume-again does so (or `radic resume {}`); to start from the beginning, \
         remove the folder",
        dir.display(),
        mark.text(),
        dir.display()
    )
}

fn mark_name(id: &str) -> String {
    format!("{RESUMED}{id}")
}

/// In the place of the mark that is there, if there is one.
pub(super) fn write_mark(files: &folder::Folder, id: &str, mark: &Mark) -> Result<()> {
    let (name, unfinished) = (mark_name(id), format!("{RESUMED}{id}.new"));
    let mut file = files.replace(&unfinished)?;
    file.write_all(&serde_json::to_vec(mark)?).and_then(|()| file.sync_all()).context(unfinished.clone())?;
    files.rename(&unfinished, &name)?;
    Ok(files.sync()?)
}

/// The code at the end of a manifest, in hexadecimal digits.
pub(super) fn id_of(manifest: &[u8]) -> String {
    let code = &manifest[manifest.len().saturating_sub(MAC)..];
    code.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a suspension could have made a file of this name.
pub(super) fn is_ours(name: &str) -> bool {
    let of_rank = || {
        let (rank, kind) = name.strip_prefix("rank-")?.split_once('.')?;
        let kind = kind.strip_suffix(SECOND).unwrap_or(kind);
        let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let known = kind == "journal" || kind == "received" || kind.strip_prefix("image-").is_some_and(number);
        Some(known && number(rank))
    };
    [MANIFEST, NEW_MANIFEST, UNFINISHED].contains(&name) || name.starts_with(RESUMED) || of_rank().unwrap_or(false)
}

/// A folder that a job is resumed from.
pub(crate) struct Source {
    files: folder::Folder,
    owners: Owners,
}

impl Source {
    pub(crate) fn open(dir: &Path, owners: Owners) -> Result<Self> {
        let files = folder::Folder::open_foreign(dir)?;
        if owners == Owners::Trusted {
            trusted::check(&File::from(files.as_fd().try_clone_to_owned()?), dir)?;
        }
        Ok(Source { files, owners })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// A file of the folder. It is no link, and nothing that would keep us waiting.
    pub(crate) fn read(&self, name: &str, if_missing: &str) -> Result<File> {
        let file = match self.files.read(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!("{if_missing}"),
            opened => opened?,
        };
        if self.owners == Owners::Trusted {
            trusted::check(&file, &self.path(name))?;
        }
        Ok(file)
    }

    /// The suspended job that is there.
    pub(crate) fn saved(&self, key: &ClusterKey) -> Result<Saved> {
        let path = self.path(MANIFEST);
        let what = || path.display().to_string();
        let mut bytes = Vec::new();
        let missing = format!(
            "{}: no job is suspended there, or its list is missing; name the folder that `radic suspend` has written",
            path.display()
        );
        let file = self.read(MANIFEST, &missing)?;
        file.take(limits::SUSPENSION as u64 + 1024).read_to_end(&mut bytes).with_context(what)?;
        let manifest = Manifest::decode(&bytes, key).with_context(what)?;
        let id = id_of(&bytes);
        let mark = self.mark(&id)?;
        Ok(Saved { manifest, id, mark })
    }

    /// A mark says by its presence alone that the job has gone on.
    fn mark(&self, id: &str) -> Result<Option<Mark>> {
        let file = match self.files.read(&mark_name(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        let read = file.take(MARK).read_to_end(&mut bytes).ok().and_then(|_| serde_json::from_slice(&bytes).ok());
        Ok(Some(read.unwrap_or(Mark { at_ms: 0, code: None })))
    }

    /// The job that is suspended there; none: the folder is absent or empty, or what was to be the first suspension into it was cut off.
    ///
    /// # Errors
    /// If there is something else, or what is there is damaged.
    pub(crate) fn look(dir: &Path, key: impl FnOnce() -> Result<ClusterKey>) -> Result<Option<(Source, Saved)>> {
        if matches!(fs::symlink_metadata(dir), Err(error) if error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let source = Source::open(dir, Owners::Trusted)?;
        let names = source.files.names()?;
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        if names.is_empty() || !has(MANIFEST) && has(UNFINISHED) {
            return Ok(None);
        }
        let saved = source.saved(&key()?)?;
        Ok(Some((source, saved)))
    }
}
