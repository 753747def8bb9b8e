//! The way to a process that is asked for a checkpoint: our signal to it, and its connection back.

use std::io::{self, Cursor, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::{ControlError, failed};
use super::saved::{Saved, receive};
use super::whole::{self, Progress};
use crate::image::format::MAGIC;
use crate::request::{REFUSAL_MAGIC, Request, SECRET_BYTES, SOCKET_NAME, Secret, advice_message};
use crate::sigaction::SIGNAL;
use crate::stop::{NUDGE, REQUEST, SECRET_AT};
use crate::sys::{self, Errno, call, plain};

/// How long a process may take to connect: longer than it may take to stop its threads.
const PATIENCE: Duration = Duration::from_secs(5);
/// A process that does not answer in this time is stuck, not slow. Each read and each write has this time.
const STUCK: Duration = Duration::from_secs(30);
/// Bytes of a refusal that are read.
const MOST_TOLD: u64 = 4096;
/// Names for the socket that may be taken before that is an error.
const NAMES: u32 = 16;

/// A process that can be asked for checkpoints: this one for ever, whatever process gets its id when it has ended.
#[derive(Debug)]
pub struct Target {
    pid: i32,
    pidfd: OwnedFd,
}

impl Target {
    /// The process that has this id now.
    pub fn open(pid: i32) -> Result<Self, ControlError> {
        let fd = plain!(libc::SYS_pidfd_open, pid, 0).map_err(|error| unreachable(pid)(from(error)))?;
        // SAFETY: just opened, and owned by nothing else.
        Ok(Self { pid, pidfd: unsafe { OwnedFd::from_raw_fd(fd as i32) } })
    }

    /// As [`request`](super::request) does.
    pub fn request(&self, what: &Request) -> Result<impl Read + use<>, ControlError> {
        Ok(self.ask(what)?.0)
    }

    /// The image, as [`request`](super::request) gives it, and the user of the process.
    fn ask(&self, what: &Request) -> Result<(impl Read + use<>, u32), ControlError> {
        let unreachable = unreachable(self.pid);
        let (listener, which) = listen().map_err(failed("a socket cannot be made"))?;
        let secret = secret().map_err(failed("there are no random numbers"))?;
        // All that takes time is done before the signal, because then a thread of the process waits for the request.
        let mut message = what.encode().to_vec();
        message.extend(secret.iter().flat_map(|word| word.to_ne_bytes()));
        message.extend(advice_message(&std::fs::read(format!("/proc/{}/smaps", self.pid)).map_err(unreachable)?));
        self.queue(u64::from(REQUEST) << 32 | u64::from(which), secret)?;
        let (mut stream, user) = self.accept(&listener)?;
        // The name is free again.
        drop(listener);
        stream.set_read_timeout(Some(STUCK)).and_then(|()| stream.set_write_timeout(Some(STUCK))).map_err(unreachable)?;
        stream.write_all(&message).map_err(unreachable)?;
        let mut first = [0u8; 8];
        stream.read_exact(&mut first).map_err(unreachable)?;
        if first == REFUSAL_MAGIC {
            let mut text = String::new();
            let _ = stream.take(MOST_TOLD).read_to_string(&mut text);
            return Err(ControlError::Refused(self.pid, text));
        }
        if first != MAGIC {
            return Err(ControlError::Refused(self.pid, "it answered something that is no image".into()));
        }
        Ok((Cursor::new(first).chain(stream), user))
    }

    /// As [`save_watched`](super::save_watched) does.
    pub fn save(&self, what: &Request, path: &Path, progress: Progress<'_>) -> Result<Saved, ControlError> {
        let (image, user) = self.ask(what)?;
        let mut saved = whole::appear(path, |file| receive(image, file, progress))?;
        if plain!(libc::SYS_geteuid) != Ok(user as usize) {
            saved.notes.push(format!("its user: it is user {user}'s, and runs with the rights of the user that restarts it"));
        }
        Ok(saved)
    }

    /// As [`nudge`](super::nudge) does. A process that has not taken our last signal yet, for it is stopped, finds all that there is when it does: queued
    /// signals are counted for all processes of a user.
    pub fn nudge(&self) -> Result<(), ControlError> {
        if is_pending(self.pid).map_err(unreachable(self.pid))? {
            return Ok(());
        }
        self.queue(u64::from(NUDGE) << 32, [0; 2])
    }

    /// Sends the process our signal. The upper half of `value` says what is asked, the lower half names the socket.
    fn queue(&self, value: u64, secret: Secret) -> Result<(), ControlError> {
        let mut info = [0u64; 16];
        info[0] = SIGNAL as u64;
        info[1] = u64::from(libc::SI_QUEUE as u32);
        info[2] = sys::getpid() as u64;
        info[3] = value;
        info[SECRET_AT..][..2].copy_from_slice(&secret);
        // The last thing before the signal, which would end a process that has executed another program meanwhile. If the id has gone to another process by
        // now, ours has ended, and the pidfd says so.
        if !has_library(self.pid).map_err(unreachable(self.pid))? {
            return Err(ControlError::Silent(self.pid));
        }
        // SAFETY: the kernel reads one siginfo.
        let sent = unsafe { call!(libc::SYS_pidfd_send_signal, self.pidfd.as_raw_fd(), SIGNAL, info.as_ptr(), 0) };
        sent.map(drop).map_err(|error| match error {
            Errno(libc::ESRCH) => ControlError::Ended(self.pid),
            error => unreachable(self.pid)(from(error)),
        })
    }

    /// The process's connection, and its user. Any other process may call, too: it is turned away, and gets not a byte.
    fn accept(&self, listener: &UnixListener) -> Result<(UnixStream, u32), ControlError> {
        let deadline = Instant::now() + PATIENCE;
        let unreachable = unreachable(self.pid);
        listener.set_nonblocking(true).map_err(unreachable)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ControlError::Silent(self.pid));
            }
            let [_, ended] = poll([listener.as_raw_fd(), self.pidfd.as_raw_fd()], left).map_err(unreachable)?;
            match listener.accept() {
                Ok((stream, _)) => {
                    let (caller, user) = sys::peer(stream.as_raw_fd()).map_err(|error| unreachable(from(error)))?;
                    // Its id is that of no other process as long as it has not ended. (Its user may be one that has no number here.)
                    let [ended] = poll([self.pidfd.as_raw_fd()], Duration::ZERO).map_err(unreachable)?;
                    if caller == self.pid && !ended {
                        return Ok((stream, user));
                    }
                }
                Err(_) if ended => return Err(ControlError::Ended(self.pid)),
                Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => {}
                Err(error) => return Err(unreachable(error)),
            }
        }
    }
}

fn unreachable(pid: i32) -> impl Fn(io::Error) -> ControlError + Copy {
    move |error| ControlError::Unreachable(pid, error)
}

fn from(error: Errno) -> io::Error {
    io::Error::from_raw_os_error(error.0)
}

/// Whether the process handles our signal, which would end it otherwise.
pub(super) fn has_library(pid: i32) -> io::Result<bool> {
    let maps = std::fs::read(format!("/proc/{pid}/maps"))?;
    let state = format!("{:x}-", crate::arena::STATE_BASE);
    if !crate::maps::lines(&maps).any(|line| line.starts_with(state.as_bytes())) {
        return Ok(false);
    }
    has_signal(pid, b"SigCgt:")
}

/// Whether our signal waits for the process. One that waits for a single thread is glibc's.
fn is_pending(pid: i32) -> io::Result<bool> {
    has_signal(pid, b"ShdPnd:")
}

/// Whether our signal is in this set of the process.
fn has_signal(pid: i32, set: &[u8]) -> io::Result<bool> {
    let status = std::fs::read(format!("/proc/{pid}/status"))?;
    let mask = crate::maps::field(&status, set).map_or(0, |mask| crate::maps::hex(mask).0);
    Ok(mask >> (SIGNAL - 1) & 1 == 1)
}

/// A socket with a name that no other process can know before it is there, and its number. Then every process can.
fn listen() -> io::Result<(UnixListener, u32)> {
    let mut last = io::ErrorKind::AddrInUse.into();
    for _ in 0..NAMES {
        let which = secret()?[0] as u32;
        let mut name = SOCKET_NAME[1..].to_vec();
        name.extend_from_slice(format!("{which:08x}").as_bytes());
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?) {
            Ok(listener) => return Ok((listener, which)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn secret() -> io::Result<Secret> {
    let mut words = Secret::default();
    // SAFETY: the kernel writes so many bytes.
    let got = unsafe { call!(libc::SYS_getrandom, words.as_mut_ptr(), SECRET_BYTES, 0) }.map_err(from)?;
    if got == SECRET_BYTES { Ok(words) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Waits until something comes, at most so long; which of them have something.
fn poll<const N: usize>(fds: [i32; N], patience: Duration) -> io::Result<[bool; N]> {
    let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: so many pollfds.
    let result = unsafe { libc::poll(polls.as_mut_ptr(), N as libc::nfds_t, patience.as_millis() as i32) };
    match io::Error::last_os_error() {
        error if result < 0 && error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(polls.map(|poll| result > 0 && poll.revents != 0)),
    }
}
