//! What is left of a process that was brought back and has died before it was live: the engine's report of its last moment, in a
//! file of its own, and the event that names it.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use radic_ckpt::death::{MOST_READ, Report, signal_name};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::job::ExitStatus;

use crate::folder::Folder;

/// The folder of reports, in the store.
const FOLDER: &str = "deaths";
/// How a report's name ends.
const ENDING: &str = "txt";
/// Reports that are kept: the oldest go.
const MOST: usize = 64;
/// Bytes of what the engine has said that an event repeats.
const MOST_SAID: usize = 300;

/// A process that was brought back and is not live yet.
#[derive(Debug)]
pub struct Return {
    process: ProcessId,
    restart: Incarnation,
    began: Instant,
    /// Where it reports its death, or why it cannot.
    report: Result<PathBuf, String>,
}

/// A path for the report of this incarnation's death: in a folder for this user only, where nothing has this name.
pub fn make_room(store: &Folder, process: ProcessId, restart: Incarnation) -> Result<PathBuf, String> {
    let folder =
        store.subfolder(FOLDER).map_err(|error| format!("{error}: reports need a folder for this user only (mode 0700)"))?;
    if !folder.is_only_ours() {
        return Err(format!("{} is not a folder for the protector's user only (mode 0700): remove it", folder.path().display()));
    }
    remove_oldest(&folder).map_err(|error| format!("{}: {error}", folder.path().display()))?;
    let name = format!("{}-{}-{}.{ENDING}", process.job, process.rank, restart);
    folder.remove(&name).map_err(|error| error.to_string())?;
    Ok(folder.path().join(name))
}

/// There is room for one more.
fn remove_oldest(folder: &Folder) -> io::Result<()> {
    let is_report = |name: &String| Path::new(name).extension().is_some_and(|ending| ending == ENDING);
    let changed = |name: &str| folder.read(name).ok().and_then(|file| file.metadata().ok()?.modified().ok());
    let names = folder.names()?.into_iter().filter(is_report);
    let mut reports: Vec<(SystemTime, String)> =
        names.map(|name| (changed(&name).unwrap_or(SystemTime::UNIX_EPOCH), name)).collect();
    reports.sort();
    let old = (reports.len() + 1).saturating_sub(MOST);
    Ok(reports.iter().take(old).try_for_each(|(_, name)| folder.remove(name))?)
}

/// The folder of a report, and its name there.
fn place(path: &Path) -> io::Result<(Folder, &str)> {
    let parts = path.parent().zip(path.file_name().and_then(|name| name.to_str()));
    let (folder, name) = parts.ok_or(io::ErrorKind::InvalidInput)?;
    Ok((Folder::open(folder)?, name))
}

/// Removes a report. That there is none is no error.
fn remove(path: &Path) -> io::Result<()> {
    let (folder, name) = place(path)?;
    Ok(folder.remove(name)?)
}

impl Return {
    /// It begins.
    pub fn new(process: ProcessId, restart: Incarnation, report: Result<PathBuf, String>) -> Return {
        Return { process, restart, began: Instant::now(), report }
    }

    /// How long it has lasted.
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// The process is live, or its end needs no explanation: a report of something that its program has survived is removed.
    /// Waits for the disk.
    pub fn forget(self) {
        if let Ok(path) = &self.report
            && let Err(error) = remove(path)
        {
            tracing::warn!(path = %path.display(), %error, "a report that is not needed stays");
        }
    }

    /// Its end in one line, for an event: how long it lasted, and what the engine had said. Waits for the disk.
    pub fn explain(self, status: ExitStatus, after: Duration, said: &str) -> String {
        let end = match status {
            ExitStatus::Signal(signal) | ExitStatus::Ended(signal) => format!("of {}", signal_name(signal)),
            ExitStatus::Code(code) => format!("with exit code {code}"),
        };
        let what = match &self.report {
            Err(why) => format!("there is no report of it: {why}"),
            Ok(path) => match read(path) {
                Ok(bytes) if bytes.is_empty() => format!("its report is empty: {}", path.display()),
                Ok(bytes) => match Report::parse(&bytes) {
                    Some(report) => format!("{report}; report: {}", path.display()),
                    None => format!("its report says nothing that is understood: {}", path.display()),
                },
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    "it has left no report: it was killed, or has ended itself".to_owned()
                }
                Err(error) => format!("its report cannot be read: {}: {error}", path.display()),
            },
        };
        let said: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST_SAID).collect();
        let said = said.trim();
        let said = if said.is_empty() { String::new() } else { format!("; it said: {said}") };
        let (rank, restart, seconds) = (self.process.rank, self.restart, after.as_secs_f64());
        format!(
            "rank {rank}, incarnation {restart}: died {end} {seconds:.3} s after it was brought back, before it lived: {what}{said}"
        )
    }
}

/// The beginning of a report, if it is a file of this user: the process that has written it may have put anything there.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let (folder, name) = place(path)?;
    let file = folder.read(name)?;
    if file.metadata()?.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::other("it is no file of the protector's user"));
    }
    let mut bytes = Vec::new();
    file.take(MOST_READ as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use radic_wire::ids::{JobId, Rank};

    use super::*;

    fn id() -> ProcessId {
        ProcessId { job: JobId::from_bits(0xabc), rank: Rank(2) }
    }

    fn explained(report: &Path, said: &str) -> String {
        let back = Return::new(id(), Incarnation::restarted(3), Ok(report.to_owned()));
        back.explain(ExitStatus::Signal(libc::SIGSEGV), Duration::from_millis(1250), said)
    }

    #[test]
    fn the_event_tells_the_report_or_that_there_is_none() {
        let store = tempfile::tempdir().unwrap();
        let path = make_room(&Folder::open(store.path()).unwrap(), id(), Incarnation::restarted(3)).unwrap();
        assert!(path.ends_with("deaths/000000000abc-2-3.txt"), "{}", path.display());
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o7777, 0o700);
        let begin = "rank 2, incarnation 3: died of SIGSEGV 1.250 s after it was brought back, before it lived: ";
        let none = explained(&path, "");
        assert_eq!(none, format!("{begin}it has left no report: it was killed, or has ended itself"));
        fs::write(&path, "").unwrap();
        assert!(explained(&path, "").contains("its report is empty: /"));
        fs::write(&path, "\u{1b}[2J").unwrap();
        assert!(explained(&path, "").contains("says nothing that is understood: /"));
        fs::write(&path, "signal: 11\ncode: 1\naddress: 0x10\n").unwrap();
        let told = explained(&path, "radic: odd\x1b\n");
        assert_eq!(told, format!("{begin}SIGSEGV at address 0x10; report: {}; it said: radic: odd", path.display()));
        Return::new(id(), Incarnation::restarted(3), Ok(path.clone())).forget();
        assert!(!path.exists());
        let refused = Return::new(id(), Incarnation::restarted(3), Err("no room".to_owned()));
        let text = refused.explain(ExitStatus::Code(125), Duration::ZERO, "");
        assert!(text.contains("died with exit code 125") && text.ends_with("there is no report of it: no room"), "{text}");
    }

    #[test]
    fn what_is_no_file_of_ours_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("secret"), "reason: secret\n").unwrap();
        symlink(at("secret"), at("link")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::create_dir(at("folder")).unwrap();
        let mut names = vec!["link", "pipe", "folder"];
        if nix::unistd::geteuid().is_root() {
            fs::write(at("foreign"), "reason: secret\n").unwrap();
            chown(at("foreign"), Some(64_001), None).unwrap();
            names.push("foreign");
        }
        for name in names {
            let text = explained(&at(name), "");
            assert!(text.contains("cannot be read") && !text.contains("secret"), "{name}: {text}");
        }
    }

    #[test]
    fn reports_go_into_a_folder_of_this_user_only() {
        let store = tempfile::tempdir().unwrap();
        let (folder, elsewhere) = (store.path().join(FOLDER), store.path().join("elsewhere"));
        let room = || make_room(&Folder::open(store.path()).unwrap(), id(), Incarnation::restarted(1));
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, &folder).unwrap();
        assert!(room().unwrap_err().contains("mode 0700"));
        fs::remove_file(&folder).unwrap();
        let path = room().unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(room().unwrap_err().contains("mode 0700"));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        if nix::unistd::geteuid().is_root() {
            chown(&folder, Some(64_001), None).unwrap();
            assert!(room().unwrap_err().contains("mode 0700"));
            chown(&folder, Some(0), None).unwrap();
        }
        // The link with the name of the report is gone, and what it leads to is not.
        fs::write(elsewhere.join("victim"), "x").unwrap();
        symlink(elsewhere.join("victim"), &path).unwrap();
        assert_eq!(room().unwrap(), path);
        assert!(fs::symlink_metadata(&path).is_err() && elsewhere.join("victim").exists());
    }

    #[test]
    fn the_oldest_reports_go() {
        let store = tempfile::tempdir().unwrap();
        for restart in 0..2 * MOST as u32 {
            let path = make_room(&Folder::open(store.path()).unwrap(), id(), Incarnation::restarted(restart)).unwrap();
            let file = File::create(path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(restart.into())).unwrap();
        }
        let left: Vec<_> = fs::read_dir(store.path().join(FOLDER)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), MOST);
        assert!(left.contains(&"000000000abc-2-127.txt".into()) && !left.contains(&"000000000abc-2-63.txt".into()));
    }
}
