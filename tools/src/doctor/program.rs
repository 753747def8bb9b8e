//! What would be executed: the file that a name leads to, through scripts to their interpreters, and whether the loader can put RADIC's
//! library into it.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, getgid, getuid};
use object::FileKind;
use rustix::io::Errno;

use super::elf::{self, Elf, Executable};
use super::finding::{Finding, Level};
use super::functions;

/// Scripts whose interpreters are scripts: the kernel goes no further.
const SCRIPTS: usize = 5;
/// glibc's loader for x86-64.
const LOADER: &str = "ld-linux-x86-64.so.2";
/// Longest attribute with a file's capabilities, in bytes.
const CAPABILITIES: usize = 64;
/// The finding that the program is a shell.
pub(super) const SHELL: &str = "shell";
const SHELLS: [&str; 9] = ["sh", "bash", "dash", "ksh", "zsh", "csh", "tcsh", "fish", "busybox"];
const LAUNCHERS: [&str; 8] = ["mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun", "srun", "aprun"];

/// Where a name leads.
#[derive(Debug, Default)]
pub(super) struct Traced {
    /// The file, then the interpreter if it is a script, and so on.
    pub(super) files: Vec<PathBuf>,
    /// What is executed in the end, if it is a program for this machine.
    pub(super) elf: Option<Elf>,
    /// What is in the way.
    pub(super) findings: Vec<Finding>,
}

fn stop(name: &'static str, about: String, remedy: &str) -> Finding {
    Finding::new(Level::Stop, name, about, remedy)
}

/// Follows `name` as a shell would in the folder `here`.
pub(super) fn trace(name: &OsStr, path: Option<&OsStr>, here: &Path) -> Traced {
    let mut traced = Traced::default();
    if let Err(finding) = follow(name, path, here, &mut traced) {
        traced.findings.push(finding);
    }
    traced
}

fn follow(name: &OsStr, path: Option<&OsStr>, here: &Path, traced: &mut Traced) -> Result<(), Finding> {
    let mut next = find(name, path, here)?;
    for _ in 0..=SCRIPTS {
        let (file, shown) = (next.clone(), next.display().to_string());
        traced.files.push(next);
        let meta = fs::metadata(&file).map_err(|error| unreadable(&shown, &error))?;
        check(&file, &shown, &meta)?;
        match elf::read(&file, functions::watched).map_err(|error| unreadable(&shown, &error))? {
            Executable::Script(line) => next = interpreter(&line, &shown, path, here, traced)?,
            Executable::Elf(elf) => {
                traced.findings.extend(changes(&file, &shown, &meta));
                traced.findings.extend(loading(&shown, &elf));
                traced.findings.extend(kind_of_program(&file));
                traced.elf = Some(elf);
                return Ok(());
            }
            Executable::Foreign(kind, machine) => return Err(foreign(&shown, kind, machine)),
            Executable::Other => {
                return Err(stop(
                    "format",
                    format!("{shown} is neither an ELF file nor a script that begins with #!"),
                    "give the program itself",
                ));
            }
        }
    }
    Err(stop("script", format!("{} leads through too many interpreters", Path::new(name).display()), "give the program itself"))
}

/// The file that a shell would execute.
fn find(name: &OsStr, path: Option<&OsStr>, here: &Path) -> Result<PathBuf, Finding> {
    let shown = Path::new(name).display();
    if name.as_bytes().contains(&b'/') {
        let file = here.join(name);
        return match fs::metadata(&file) {
            Ok(_) => Ok(file),
            Err(error) => Err(stop("not-found", format!("{shown}: {error}"), "check the path")),
        };
    }
    let candidates = path.into_iter().flat_map(std::env::split_paths).map(|folder| here.join(folder).join(name));
    let mut other = None;
    for file in candidates.filter(|file| !name.is_empty() && file.exists()) {
        if file.is_file() && access(&file, AccessFlags::X_OK).is_ok() {
            return Ok(file);
        }
        other = other.or(Some(file));
    }
    let hint = if here.join(name).is_file() { "write ./ before its name" } else { "give its path, or add its folder to PATH" };
    other.ok_or_else(|| stop("not-found", format!("{shown} is not in PATH"), hint))
}

/// What keeps the kernel from executing `file`, and RADIC from reading it.
fn check(file: &Path, shown: &str, meta: &Metadata) -> Result<(), Finding> {
    if !meta.is_file() {
        let what = if meta.is_dir() { "a folder" } else { "a pipe, a socket or a device" };
        return Err(stop("format", format!("{shown} is {what}"), "give the program itself"));
    }
    if access(file, AccessFlags::X_OK).is_err() {
        let remedy = "chmod +x; if that is set, its file system is mounted noexec, or a folder above it is closed to you";
        return Err(stop("execute", format!("{shown} may not be executed"), remedy));
    }
    if access(file, AccessFlags::R_OK).is_err() {
        let about = format!(
            "{shown} may be executed but not read: the kernel hides such a process even from itself, so it cannot be saved"
        );
        return Err(stop("read", about, "chmod +r"));
    }
    Ok(())
}

fn unreadable(shown: &str, error: &io::Error) -> Finding {
    let remedy = if error.kind() == io::ErrorKind::InvalidData {
        "build or copy it again: it is damaged"
    } else {
        "see that you may read it"
    };
    stop("read", format!("{shown}: {error}"), remedy)
}

/// The interpreter of a script whose first line is `line`; behind `env` the program that it looks for.
fn interpreter(line: &str, shown: &str, path: Option<&OsStr>, here: &Path, traced: &mut Traced) -> Result<PathBuf, Finding> {
    let mut parts = line.splitn(2, [' ', '\t']);
    let (name, rest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default().trim());
    let missing = |name: &str| {
        let remedy =
            if line.ends_with('\r') { "remove the carriage returns (dos2unix)" } else { "install it, or correct the first line" };
        let about = format!("{shown} is a script for {name:?}, which is not there");
        stop("interpreter", about, remedy)
    };
    let file = here.join(name);
    if name.is_empty() || !file.exists() {
        return Err(missing(name));
    }
    if file.file_name() != Some(OsStr::new("env")) || rest.is_empty() {
        return Ok(file);
    }
    // It is executed, too, before what it looks for.
    let env = fs::metadata(&file).map_err(|error| unreadable(&file.display().to_string(), &error))?;
    traced.findings.extend(changes(&file, &file.display().to_string(), &env));
    traced.files.push(file);
    let wanted = env_program(rest);
    find(OsStr::new(wanted), path, here).map_err(|_| missing(wanted))
}

/// The program that `env` looks for: all that follows it, or with -S the first word that is no option and no variable.
fn env_program(rest: &str) -> &str {
    let Some(rest) = rest.strip_prefix("-S").or_else(|| rest.strip_prefix("--split-string=")) else { return rest };
    let mut words = rest.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "-u" | "-C" => _ = words.next(),
            word if word.starts_with('-') || word.contains('=') => {}
            word => return word,
        }
    }
    ""
}

/// Whether executing the file changes the user or group of the process, or what it may do.
fn changes(file: &Path, shown: &str, meta: &Metadata) -> Vec<Finding> {
    let me = (getuid().as_raw(), getgid().as_raw());
    let mut findings = identity(shown, meta, me);
    let mut value = [0; CAPABILITIES];
    match rustix::fs::getxattr(file, "security.capability", &mut value[..]) {
        Ok(length) => findings.extend(capabilities(shown, &value[..length], me.0)),
        // No value, or a file system that has none.
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
        Err(error) => {
            let about =
                format!("whether {shown} has capabilities is not known ({error}): if it has (getcap), it is not protected");
            findings.push(Finding::new(Level::Limit, "capabilities", about, "see that you may read its attributes"));
        }
    }
    findings
}

/// The same for the file's capabilities, as its attribute has them: a version with flags, then at least 32 bits each of what is permitted
/// and what may be inherited. The kernel ignores them for root, which has them all.
fn capabilities(shown: &str, attribute: &[u8], uid: u32) -> Option<Finding> {
    const EFFECTIVE: u8 = 1;
    // Revision 1 and 2 end with the sets, 3 has a user id behind them.
    let sets = attribute.get(4..attribute.len().min(20)).unwrap_or_default();
    if attribute.first().is_none_or(|flags| flags & EFFECTIVE == 0) && sets.iter().all(|byte| *byte == 0) {
        return None;
    }
    let remedy = "use a copy of your own (cp takes none along), or remove them (setcap -r)";
    Some(if uid == 0 {
        let about = format!("{shown} has capabilities, which change nothing for root, but others' ranks could not be protected");
        Finding::new(Level::Note, "capabilities", about, remedy)
    } else {
        stop("capabilities", format!("{shown} has capabilities: the loader puts no library into such a program"), remedy)
    })
}

/// Whether executing the file changes the user or group of the process, which makes the loader ignore LD_PRELOAD.
fn identity(shown: &str, meta: &Metadata, (uid, gid): (u32, u32)) -> Vec<Finding> {
    let (mode, remedy) = (meta.mode(), "remove the bit from a copy of your own (chmod u-s,g-s)");
    let mut findings = Vec::new();
    // Without the group's x bit, setgid once meant file locks, and does not change the group.
    for (set, name, other) in
        [(mode & 0o4000 != 0, "setuid", meta.uid() != uid), (mode & 0o2010 == 0o2010, "setgid", meta.gid() != gid)]
    {
        if set && other {
            findings.push(stop(name, format!("{shown} is {name}: the loader puts no library into such a program"), remedy));
        } else if set {
            let about =
                format!("{shown} is {name}, which changes nothing for you, but another user's ranks could not be protected");
            findings.push(Finding::new(Level::Note, name, about, remedy));
        }
    }
    findings
}

fn foreign(shown: &str, kind: FileKind, machine: u16) -> Finding {
    let machine = match machine {
        3 => "x86".to_owned(),
        62 => "x86-64".to_owned(),
        183 => "ARM64".to_owned(),
        243 => "RISC-V".to_owned(),
        21 => "POWER".to_owned(),
        other => format!("machine {other}"),
    };
    let bits = if kind == FileKind::Elf32 { "32-bit" } else { "64-bit" };
    stop("architecture", format!("{shown} is a {bits} program for {machine}"), "build it for 64-bit x86-64: RADIC knows no other")
}

/// Whether the loader is glibc's.
fn loading(shown: &str, elf: &Elf) -> Option<Finding> {
    if !elf.is_loadable {
        return Some(stop("format", format!("{shown} is an object file or a core dump, no program"), "link it"));
    }
    let Some(loader) = &elf.interpreter else {
        let about = format!("{shown} is statically linked: no loader is asked, so RADIC's library cannot be put into it");
        return Some(stop("static", about, "link it dynamically (without -static)"));
    };
    let file = Path::new(loader);
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if name.starts_with("ld-musl") {
        return Some(stop(
            "libc",
            format!("{shown} uses the C library musl ({loader})"),
            "build it with glibc: RADIC's library needs that",
        ));
    }
    if name != LOADER {
        let about = format!("{shown} asks for the loader {loader}, which is not that of glibc");
        return Some(stop("libc", about, "build it with glibc: RADIC's library needs that"));
    }
    (!file.is_file()).then(|| {
        stop("loader", format!("{shown} asks for the loader {loader}, which is not there"), "install glibc's, or build it here")
    })
}

/// Programs that leave the work to others.
fn kind_of_program(file: &Path) -> Option<Finding> {
    let real = fs::canonicalize(file).unwrap_or_default();
    let is =
        |names: &[&str]| [file, &real].iter().any(|path| names.iter().any(|name| path.file_name() == Some(OsStr::new(name))));
    if is(&LAUNCHERS) {
        let about = format!("{} is another launcher: it, not RADIC, would start the ranks", file.display());
        return Some(stop("launcher", about, "give the MPI program itself: `radic run -n N -- PROGRAM`"));
    }
    is(&SHELLS).then(|| {
        let about = format!(
            "{} is a shell: it is protected, and what it executes in its own place (exec), but nothing that it starts",
            file.display()
        );
        stop(SHELL, about, "give the program itself; variables for it by `radic run --env NAME=VALUE`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_is_seen_through() {
        let cases = [
            ("python3", "python3"),
            ("-S python3 -u", "python3"),
            ("-S A=1 -i -u B perl -w", "perl"),
            ("python3 -u", "python3 -u"),
            ("-S", ""),
        ];
        for (line, program) in cases {
            assert_eq!(env_program(line), program, "{line}");
        }
    }

    #[test]
    fn capabilities_are_in_the_way_of_everybody_but_root() {
        let judged = |bytes: &[u8], uid| capabilities("x", bytes, uid).map(|finding| finding.level);
        // Revision 2: cap_net_raw, permitted and effective, as `setcap cap_net_raw+ep` sets it; the same without +e; only inheritable;
        // none at all.
        let value = |flags: u8, permitted: u8, inheritable: u8| {
            let mut bytes = [0; 20];
            (bytes[0], bytes[3], bytes[5], bytes[9]) = (flags, 2, permitted, inheritable);
            bytes
        };
        for granted in [value(1, 0x20, 0), value(0, 0x20, 0), value(0, 0, 0x20), value(1, 0, 0)] {
            assert_eq!((judged(&granted, 64_001), judged(&granted, 0)), (Some(Level::Stop), Some(Level::Note)));
        }
        assert_eq!(judged(&value(0, 0, 0), 64_001), None);
        for cut in 0..20 {
            _ = judged(&value(1, 0x20, 0)[..cut], 64_001);
        }
        // Revision 3 for a user namespace's root: the id behind the sets grants nothing.
        assert_eq!(judged(&[&value(0, 0, 0)[..], &[1, 0, 0, 0]].concat(), 64_001), None);
    }

    #[test]
    fn only_another_identity_is_in_the_way() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        let judged = |mode: u32, ids: (u32, u32)| {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            let found = identity("x", &file.path().metadata().unwrap(), ids);
            found.into_iter().map(|f| (f.name, f.level)).collect::<Vec<_>>()
        };
        let meta = file.path().metadata().unwrap();
        let (me, other) = ((meta.uid(), meta.gid()), (meta.uid() + 1, meta.gid() + 1));
        assert_eq!(judged(0o755, other), []);
        assert_eq!(judged(0o4755, me), [("setuid", Level::Note)]);
        assert_eq!(judged(0o4755, other), [("setuid", Level::Stop)]);
        assert_eq!(judged(0o6755, other), [("setuid", Level::Stop), ("setgid", Level::Stop)]);
        assert_eq!(judged(0o2745, other), [], "without the group's x bit");
    }
}
