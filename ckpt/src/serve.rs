//! A request from outside: the thread that got the signal connects to the requester, reads what is asked and answers.

use core::sync::atomic::Ordering::SeqCst;

use crate::arena::{self, state};
use crate::maps::numbered;
use crate::refusal::Refusal;
use crate::request::{
    ADVISED_BYTES, Advised, MAX_ADVISED, Mode, REFUSAL_MAGIC, REQUEST_BYTES, Request, SECRET_BYTES, SOCKET_NAME, Secret,
};
use crate::sys::{self, Errno, plain};
use crate::{gather, hooks, identity, save};

/// Answers a request, unless the library puts it off: then it stays where it is noted. `rewound`, not 0: the thread makes an interrupted call again; `context`
/// is where it was.
pub extern "C" fn serve(rewound: u64, context: *mut libc::ucontext_t) {
    if !hooks::may_serve() {
        return;
    }
    let which = state().asked.swap(0, SeqCst) as u32;
    // Before all else: the next request may come at any time.
    let secret = [0, 1].map(|word| state().secret[word].load(SeqCst));
    if let Ok(fd) = connect(which) {
        converse(fd, secret, rewound != 0, context);
        sys::close(fd);
    }
    hooks::served();
}

/// Reads the request on its connection, and answers it.
fn converse(fd: i32, secret: Secret, rewound: bool, context: *mut libc::ucontext_t) {
    let result = match request(fd, secret) {
        Some(request) => {
            limit(fd, libc::SO_SNDTIMEO, if request.mode == Mode::Stop { WRITING_STOPPED_S } else { WRITING_S });
            // SAFETY: `stop::on_own_stack`, which has called `serve`, asserts that this thread holds `busy`.
            unsafe { save::make(&request, fd.into(), context, rewound) }
        }
        None => Err(Refusal {
            what: "the request is none of this version, does not come, or is not from the sender of the signal; seconds waited at most:",
            number: ASKING_S as i32,
        }),
    };
    if let Err(refusal) = result {
        let mut text = [0u8; 64];
        let number = numbered(&mut text, b" ", refusal.number, b"");
        for part in [&REFUSAL_MAGIC[..], refusal.what.as_bytes(), &number[..number.len() - 1]] {
            let _ = sys::write_all(fd, part);
        }
        save::swallow_sigpipe(context);
    }
}

/// How long a request may take, in seconds: a thread of the program waits for it.
const ASKING_S: u64 = 1;
/// How long the requester may read nothing while all threads wait, in seconds; then there is no image.
const WRITING_STOPPED_S: u64 = 5;
/// The same while a child writes.
const WRITING_S: u64 = 60;

/// Bounds how long one read or write may wait.
fn limit(fd: i32, option: i32, seconds: u64) {
    let mut time = [0u8; 16];
    time[..8].copy_from_slice(&seconds.to_ne_bytes());
    let _ = sys::set_socket_option(fd, option, &time);
}

/// The user as which a process sees all users that have no number in its user namespace, root among them.
const UNMAPPED: u32 = 65_534;

/// Connects to the requester's socket, and makes sure that it may belong to root or the same user; that it is the requester's it has to show (`request`). The
/// descriptor is a high one: those the program expects to get next stay free.
fn connect(which: u32) -> Result<i32, Errno> {
    let mut address = [0u8; 2 + SOCKET_NAME.len() + 8];
    address[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    address[2..14].copy_from_slice(SOCKET_NAME);
    for (i, digit) in address[14..].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(which >> (28 - 4 * i) & 15) as usize];
    }
    let low = plain!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)? as i32;
    let fd = sys::fcntl(low, libc::F_DUPFD_CLOEXEC, identity::HIGH_FD as usize).map_or(low, |fd| fd as i32);
    if fd != low {
        sys::close(low);
    }
    // A thread of the program waits in connect while others crowd at the socket.
    limit(fd, libc::SO_SNDTIMEO, ASKING_S);
    limit(fd, libc::SO_RCVTIMEO, ASKING_S);
    let user =
        sys::to_address(libc::SYS_connect, fd, &address).and_then(|()| Ok((sys::peer(fd)?.1, plain!(libc::SYS_geteuid)? as u32)));
    match user {
        Ok((peer, own)) if [own, 0, UNMAPPED].contains(&peer) => Ok(fd),
        Ok(_) => {
            sys::close(fd);
            Err(Errno(libc::EPERM))
        }
        Err(error) => {
            sys::close(fd);
            Err(error)
        }
    }
}

/// Reads the request; none if it is not one, or not from the sender of the signal.
fn request(fd: i32, secret: Secret) -> Option<Request> {
    let deadline = sys::clock(libc::CLOCK_MONOTONIC) + ASKING_S * 1_000_000_000;
    let read_all = |bytes: &mut [u8]| read_all(fd, bytes, deadline);
    let mut bytes = [0u8; REQUEST_BYTES];
    read_all(&mut bytes)?;
    let request = Request::decode(&bytes)?;
    let mut shown = [0u8; SECRET_BYTES];
    read_all(&mut shown)?;
    if shown.as_chunks::<8>().0 != secret.map(u64::to_ne_bytes) {
        return None;
    }
    let mut count = [0u8; 4];
    read_all(&mut count)?;
    // SAFETY: as in `converse`; the metadata is written later.
    let (tables, room) = unsafe { (arena::tables(), arena::scratch(arena::SCRATCH_META)) };
    let count = u32::from_le_bytes(count) as usize;
    let regions = room.get_mut(..count.min(MAX_ADVISED + 1) * ADVISED_BYTES).filter(|_| count <= MAX_ADVISED)?;
    read_all(regions)?;
    gather::keep_advice(tables, regions.as_chunks().0.iter().map(Advised::decode));
    Some(request)
}

fn read_all(fd: i32, bytes: &mut [u8], deadline: u64) -> Option<()> {
    let mut have = 0;
    while have < bytes.len() {
        if sys::clock(libc::CLOCK_MONOTONIC) > deadline {
            return None;
        }
        match sys::read(fd, &mut bytes[have..]) {
            Ok(0) | Err(_) => return None,
            Ok(more) => have += more,
        }
    }
    Some(())
}
