//! What each descriptor of the program is to the layer: one byte, read without the lock, because most calls are about descriptors that are none
//! of its business.

use std::sync::atomic::{AtomicU8, Ordering};

/// Descriptors from here on are never protected.
pub const DESCRIPTORS: usize = 64 << 10;

/// What a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// None of ours: every call passes through.
    Other = 0,
    /// A protected connection.
    Connection = 1,
    /// A TCP socket that listens.
    Listener = 2,
    /// An epoll that was made by the program.
    Epoll = 3,
    /// One of the layer's own: for the program it is not open.
    Own = 4,
    /// Another descriptor of a protected connection.
    Alias = 5,
    /// A pipe to the node: standard output or standard error.
    Output = 6,
    /// The connection to the process manager.
    Pmi = 7,
    /// The pipe from the node: standard input.
    Input = 8,
    /// A TCP socket with an address, and no peer yet.
    Bound = 9,
    /// The kernel's source of random bytes, opened by the program.
    Random = 10,
}

const KIND: u8 = 0x0f;
const NONBLOCKING: u8 = 0x80;

static KINDS: [AtomicU8; DESCRIPTORS] = [const { AtomicU8::new(0) }; DESCRIPTORS];

fn entry(fd: i32) -> Option<&'static AtomicU8> {
    KINDS.get(usize::try_from(fd).ok()?)
}

/// What `fd` is.
pub fn kind(fd: i32) -> Kind {
    match entry(fd).map_or(0, |entry| entry.load(Ordering::Relaxed)) & KIND {
        1 => Kind::Connection,
        2 => Kind::Listener,
        3 => Kind::Epoll,
        4 => Kind::Own,
        5 => Kind::Alias,
        6 => Kind::Output,
        7 => Kind::Pmi,
        8 => Kind::Input,
        9 => Kind::Bound,
        10 => Kind::Random,
        _ => Kind::Other,
    }
}

/// Whether a protected connection is behind `fd`.
pub(crate) fn is_connection(fd: i32) -> bool {
    matches!(kind(fd), Kind::Connection | Kind::Alias)
}

/// Whether calls on `fd` wait, as far as its flags say. Known for connections and listeners.
pub fn is_blocking(fd: i32) -> bool {
    entry(fd).is_none_or(|entry| entry.load(Ordering::Relaxed) & NONBLOCKING == 0)
}

/// `fd` is this from now on, without marks. False: its number is too high to be protected.
#[must_use]
pub fn set(fd: i32, kind: Kind, blocking: bool) -> bool {
    let value = kind as u8 | if blocking { 0 } else { NONBLOCKING };
    entry(fd).map(|entry| entry.store(value, Ordering::Relaxed)).is_some()
}

/// `fd` is this from now on, and otherwise like `other`: both are the same socket.
pub fn set_like(fd: i32, kind: Kind, other: i32) {
    let Some(value) = entry(other).map(|entry| entry.load(Ordering::Relaxed) & !KIND) else { return };
    if let Some(entry) = entry(fd) {
        entry.store(kind as u8 | value, Ordering::Relaxed);
    }
}

/// `fd` is closed, or nothing of ours any more.
pub fn clear(fd: i32) {
    _ = set(fd, Kind::Other, true);
}

fn set_bit(fd: i32, bit: u8, on: bool) {
    if let Some(entry) = entry(fd).filter(|_| kind(fd) != Kind::Other) {
        let value = entry.load(Ordering::Relaxed) & !bit;
        entry.store(value | if on { bit } else { 0 }, Ordering::Relaxed);
    }
}

/// The program has set or cleared O_NONBLOCK.
pub fn set_blocking(fd: i32, blocking: bool) {
    set_bit(fd, NONBLOCKING, !blocking);
}

/// What the program has set on a socket that calls on it must look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mark {
    /// SO_RCVTIMEO.
    ReceiveLimit = 0x40,
    /// SO_SNDTIMEO.
    SendLimit = 0x20,
    /// SO_LINGER.
    Linger = 0x10,
}

/// Whether `fd` has this mark.
pub fn has(fd: i32, mark: Mark) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Ordering::Relaxed) & mark as u8 != 0)
}

/// The program has set or cleared it.
pub fn set_mark(fd: i32, mark: Mark, on: bool) {
    set_bit(fd, mark as u8, on);
}

/// All descriptors of a kind.
pub fn all(wanted: Kind) -> impl Iterator<Item = i32> {
    (0..DESCRIPTORS as i32).filter(move |fd| kind(*fd) == wanted)
}
