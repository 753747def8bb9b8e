//! From outside: asks a process for a checkpoint, and starts a process from an image. Ordinary code, for the command line, the
//! daemon and tests.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::image::format::MAGIC;
use crate::image::{ImageError, meta::Meta};
use crate::keeper::{self, Identity};
use crate::launch::RESTORE_VARIABLE;
use crate::save::{Mode, REFUSAL_MAGIC, REQUEST_BYTES, REQUEST_MAGIC, SOCKET_NAME};
use crate::stop::{REQUEST, SIGNAL};
use crate::sys::{self, call};

/// Why there is no checkpoint, or no restored process.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The process cannot be asked.
    #[error("process {0} cannot be asked for a checkpoint: {1}")]
    Unreachable(i32, io::Error),
    /// The process does not answer.
    #[error("process {0} does not answer: it does not run under the checkpoint library, or is saving itself already")]
    Silent(i32),
    /// The process says why it cannot be saved.
    #[error("process {0} cannot be saved: {1}")]
    Refused(i32, String),
    /// The image is not sound.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Anything else.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
}

/// How long a process may take to begin its answer: longer than it may take to stop its threads.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks a process for a checkpoint. The image comes out of the stream that is given back, to be read up to its end; only its end record
/// makes it valid.
pub fn request(pid: i32, mode: Mode) -> Result<impl Read, ControlError> {
    let unreachable = |error| ControlError::Unreachable(pid, error);
    // si_value: what is asked above, which socket below.
    let (listener, which) = listen().map_err(|e| ControlError::Io("a socket cannot be made", e))?;
    let mut info = [0u64; 16];
    info[0] = SIGNAL as u64;
    info[1] = u64::from(libc::SI_QUEUE as u32);
    info[2] = sys::getpid() as u64;
    info[3] = u64::from(REQUEST) << 32 | u64::from(which);
    if !has_library(pid).map_err(unreachable)? {
        return Err(ControlError::Silent(pid));
    }
    // SAFETY: the kernel reads one siginfo.
    unsafe { call!(libc::SYS_rt_sigqueueinfo, pid, SIGNAL, info.as_ptr()) }
        .map_err(|e| unreachable(io::Error::from_raw_os_error(e.0)))?;
    let mut stream = accept(&listener).map_err(unreachable)?.ok_or(ControlError::Silent(pid))?;
    let mut bytes = [0u8; REQUEST_BYTES];
    bytes[..8].copy_from_slice(&REQUEST_MAGIC);
    bytes[8] = u8::from(mode == Mode::Fork);
    stream.write_all(&bytes).map_err(unreachable)?;
    let mut first = [0u8; 8];
    stream.read_exact(&mut first).map_err(unreachable)?;
    if first == REFUSAL_MAGIC {
        let mut text = String::new();
        let _ = stream.take(4096).read_to_string(&mut text);
        return Err(ControlError::Refused(pid, text));
    }
    if first != MAGIC {
        return Err(ControlError::Refused(pid, "it answered something that is no image".into()));
    }
    Ok(io::Cursor::new(first).chain(stream))
}

/// The signal would end a process that does not handle it.
fn has_library(pid: i32) -> io::Result<bool> {
    let status = std::fs::read(format!("/proc/{pid}/status"))?;
    let caught = crate::maps::field(&status, b"SigCgt:").map_or(0, |mask| crate::maps::hex(mask).0);
    let maps = std::fs::read(format!("/proc/{pid}/maps"))?;
    let state = format!("{:x}-", crate::arena::STATE_BASE);
    Ok(caught >> (SIGNAL - 1) & 1 == 1 && crate::maps::lines(&maps).any(|line| line.starts_with(state.as_bytes())))
}

fn listen() -> io::Result<(UnixListener, u32)> {
    let which = crate::identity::new_id() as u32;
    let mut name = SOCKET_NAME[1..].to_vec();
    name.extend_from_slice(format!("{which:08x}").as_bytes());
    Ok((UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?, which))
}

fn accept(listener: &UnixListener) -> io::Result<Option<UnixStream>> {
    let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    let ready = unsafe { libc::poll(&raw mut poll, 1, PATIENCE.as_millis() as i32) };
    if ready <= 0 {
        return Ok(None);
    }
    let (stream, _) = listener.accept()?;
    // Without an answer in this time the process is stuck, not slow: every read waits anew.
    stream.set_read_timeout(Some(PATIENCE * 6))?;
    Ok(Some(stream))
}

/// Saves a process to a file, which appears under its name only when it is whole, verified and on disk. Gives its size in bytes.
pub fn save(pid: i32, mode: Mode, path: &Path) -> Result<u64, ControlError> {
    let mut image = request(pid, mode)?;
    let mut temporary = OsString::from(path);
    temporary.push(".partial");
    let failed = |error| ControlError::Io("the image cannot be written", error);
    let result = (|| {
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&temporary).map_err(failed)?;
        let bytes = io::copy(&mut image, &mut file).map_err(failed)?;
        file.rewind().map_err(failed)?;
        crate::image::verify(&file)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&temporary, path).map_err(failed)?;
        Ok(bytes)
    })();
    if result.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    result
}

/// The process that a keeper keeps: the one under `pid`, itself or a descendant, that can be asked for a checkpoint.
#[must_use]
pub fn restored_pid(pid: i32) -> Option<i32> {
    if has_library(pid).unwrap_or(false) {
        return Some(pid);
    }
    let children = std::fs::read(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split(|b| *b == b' ').filter(|c| !c.is_empty()).find_map(|child| restored_pid(crate::maps::decimal(child).0 as i32))
}

/// A command that becomes the saved process. `library` is the checkpoint library, the same build that made the image. The image is
/// verified as a whole first. The command's process is a keeper that ends as the saved process ends and passes signals on to it; the
/// saved process itself is its child, under its old pid (`restored_pid`). Descriptors 0 to 2 of the command replace what was inherited there (terminals, other processes' pipes).
pub fn restart(image: &Path, library: &Path) -> Result<Command, ControlError> {
    let mut file = File::open(image).map_err(|e| ControlError::Io("the image cannot be opened", e))?;
    let (header, meta) = crate::image::verify(&file)?;
    if header.parent != 0 {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "it is an increment; merge it with its parents first");
        return Err(ControlError::Io("the image cannot be restored", error));
    }
    file.rewind().map_err(|e| ControlError::Io("the image cannot be read from its beginning", e))?;
    Ok(command(&meta, library, file.into()))
}

fn command(meta: &Meta, library: &Path, image: OwnedFd) -> Command {
    let mut words = meta.process.cmdline.split(|b| *b == 0).map(OsStr::from_bytes);
    let mut command = Command::new(OsStr::from_bytes(&meta.process.exe));
    command.arg0(words.next().unwrap_or_default());
    let words: Vec<_> = words.collect();
    // The last argument ends with a zero byte, after which there is nothing.
    command.args(&words[..words.len().saturating_sub(1)]);
    command.env_clear().env("LD_PRELOAD", library).env(RESTORE_VARIABLE, image.as_raw_fd().to_string());
    let personality = meta.process.personality;
    let process = &meta.process;
    let tids = meta.threads.iter().map(|thread| thread.tid as i32).collect();
    let identity = Identity { pid: process.pid as i32, tids, monotonic: process.monotonic, boottime: process.boottime };
    // SAFETY: system calls only.
    unsafe {
        command.pre_exec(move || {
            // The image stays open over exec.
            libc::fcntl(image.as_fd().as_raw_fd(), libc::F_SETFD, 0);
            libc::personality(libc::c_ulong::from(personality));
            if !keeper::assume(&identity) {
                let text = b"radic: the process is restored under another pid: its own is taken, or may not be chosen here\n";
                let _ = sys::write_all(2, text);
            }
            Ok(())
        });
    }
    command
}
