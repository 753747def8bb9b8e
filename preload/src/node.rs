//! The connection to the protector of this process's own node.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use radic_wire::codec;
use radic_wire::frame::{self, FrameReader};
use radic_wire::process::{FRAME, FromNode, TEXT, ToNode, restored_socket};
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use crate::memory::discreetly;
use crate::sys;

/// Time for the node to answer a question, in milliseconds: its own limits are below.
const ANSWER_MS: u64 = 10_000;
/// Time for it to take the last words: only figures are lost with them.
const PART_MS: u64 = 2_000;
/// Time for it to take a message.
const WRITE_MS: u64 = 10_000;

/// The number of the connection of a process that has come back; -1: it has none.
static APPOINTED: AtomicI32 = AtomicI32::new(-1);

/// The connection.
#[derive(Debug)]
pub struct Node {
    fd: OwnedFd,
    frames: FrameReader,
    /// What came while an answer was awaited.
    waiting: VecDeque<FromNode>,
    next_ask: u64,
    /// This process is replayed: no node hears it.
    mute: bool,
}

impl Node {
    /// Connects to the socket at `path`; [`Errno::ACCESS`] if it is another user's.
    pub fn connect(path: &[u8]) -> Result<Node, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let fd = sys::high(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)?;
        if let Ok(address) = SocketAddrUnix::new(path) {
            rustix::net::connect(&fd, &address)?;
        } else {
            // Longer than an address can be: by way of its directory.
            let at = path.iter().rposition(|byte| *byte == b'/').ok_or(Errno::NAMETOOLONG)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = rustix::fs::open(&path[..at], flags, Mode::empty())?;
            let short = [format!("/proc/self/fd/{}", sys::number(&directory)).as_bytes(), &path[at..]].concat();
            rustix::net::connect(&fd, &SocketAddrUnix::new(short)?)?;
        }
        check_peer(fd.as_fd())?;
        Ok(Node { fd, frames: FrameReader::forgetting(FRAME), waiting: VecDeque::new(), next_ask: 0, mute: false })
    }

    /// Connects to the node that has restored this process; [`Errno::ACCESS`] if the socket is another user's.
    pub fn of_launcher(launcher: u64) -> Result<Node, Errno> {
        let fd = sys::high(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)?;
        rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(restored_socket(launcher).as_bytes())?)?;
        check_peer(fd.as_fd())?;
        Ok(Node { fd, frames: FrameReader::forgetting(FRAME), waiting: VecDeque::new(), next_ask: 0, mute: false })
    }

    /// Its socket.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Its socket, to be moved to another number.
    pub(crate) fn fd_mut(&mut self) -> &mut OwnedFd {
        &mut self.fd
    }

    /// This is the connection by which [`say_diverged`] speaks.
    pub(crate) fn appoint(&self) {
        APPOINTED.store(if self.mute { -1 } else { sys::number(&self.fd) }, Ordering::Relaxed);
    }

    /// Gives up the connection.
    pub fn close(self) {
        sys::close_own(self.fd);
    }

    /// Nothing is said to the node from now on: it is that of another process, which this one is a copy of.
    pub fn fall_silent(&mut self) {
        self.mute = true;
        self.appoint();
    }

    /// Sends a message.
    pub fn send(&mut self, message: &ToNode) -> Result<(), Errno> {
        if self.mute {
            return Ok(());
        }
        let body = codec::encode(message, FRAME).map_err(|_| Errno::MSGSIZE)?;
        let mut out = Vec::with_capacity(body.len() + frame::HEADER);
        frame::encode_into(&mut out, &body, FRAME);
        sys::send_all(self.fd.as_fd(), &out, WRITE_MS)
    }

    /// Nothing follows what was sent: waits until the node has taken it, which then closes its end. Without that it may learn of the process's end, from the
    /// kernel, before it reads the last words.
    pub fn part(&mut self) {
        if self.mute || rustix::net::shutdown(&self.fd, Shutdown::Write).is_err() {
            return;
        }
        while self.read().is_ok() {
            if sys::wait_for(self.fd.as_fd(), PollFlags::IN, PART_MS).is_err() {
                return;
            }
        }
    }

    /// A new number for a question.
    pub fn number(&mut self) -> u64 {
        self.next_ask += 1;
        self.next_ask
    }

    /// The next message of those that came before an answer.
    pub fn poll_earlier(&mut self) -> Option<FromNode> {
        self.waiting.pop_front()
    }

    /// The next message that has come, without waiting.
    pub fn poll(&mut self) -> Result<Option<FromNode>, Errno> {
        match self.poll_earlier() {
            Some(message) => Ok(Some(message)),
            None => self.read(),
        }
    }

    fn read(&mut self) -> Result<Option<FromNode>, Errno> {
        loop {
            // There may be a key in it.
            let message = discreetly(|| match self.frames.next_frame() {
                Ok(None) => Ok(None),
                Ok(Some(frame)) => codec::decode(frame, FRAME).map(Some).map_err(|_| Errno::PROTO),
                Err(_) => Err(Errno::PROTO),
            });
            if let Some(message) = message? {
                return Ok(Some(message));
            }
            let came = discreetly(|| {
                let mut buffer = [0; 4096];
                let (_, count) = rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::DONTWAIT)?;
                self.frames.push(&buffer[..count]);
                Ok(count)
            });
            match came {
                Ok(0) => return Err(Errno::CONNRESET),
                Err(Errno::AGAIN) => return Ok(None),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The protector that the node has told of last, if it has told of one that this process does not know yet; the other messages wait for [`Node::poll`].
    pub fn next_protector(&mut self) -> Result<Option<SocketAddr>, Errno> {
        while let Some(message) = self.read()? {
            self.waiting.push_back(message);
        }
        let mut next = None;
        self.waiting.retain(|message| match message {
            FromNode::Protector(address) => {
                next = Some(*address);
                false
            }
            _ => true,
        });
        Ok(next)
    }

    /// Sends a question and waits for the message that `is_answer`; others wait for [`Node::poll`].
    pub fn ask(&mut self, question: &ToNode, is_answer: impl Fn(&FromNode) -> bool) -> Result<FromNode, Errno> {
        self.ask_within(ANSWER_MS, question, is_answer)
    }

    /// The same, where the node needs more time, in milliseconds.
    pub fn ask_within(&mut self, ms: u64, question: &ToNode, is_answer: impl Fn(&FromNode) -> bool) -> Result<FromNode, Errno> {
        self.send(question)?;
        loop {
            match self.read()? {
                Some(message) if is_answer(&message) => return Ok(message),
                Some(other) => self.waiting.push_back(other),
                None => sys::wait_for(self.fd.as_fd(), PollFlags::IN, ms)?,
            }
        }
    }
}

/// The last message of a process that diverges from its log, sent by whatever call finds that out; the layer is held. Waits until
/// the node ends the process, a while at most.
pub fn say_diverged(why: &str) {
    const ENDED_MS: u64 = 10_000;
    let fd = APPOINTED.load(Ordering::Relaxed);
    if fd < 0 {
        return;
    }
    let why = why.chars().take(TEXT / 4).collect();
    if let Ok(body) = codec::encode(&ToNode::Diverged(why), FRAME) {
        let mut out = Vec::with_capacity(body.len() + frame::HEADER);
        frame::encode_into(&mut out, &body, FRAME);
        if sys::send_all(sys::borrow(fd), &out, WRITE_MS).is_ok() {
            _ = sys::wait_for(sys::borrow(fd), PollFlags::HUP, ENDED_MS);
        }
    }
}

/// A program that can bind a name can pose as the node. So nothing is said to another user than root and our own: the job's key goes through
/// here.
fn check_peer(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let there = sys::peer_user(fd)?;
    let ours = there == 0 || there == rustix::process::geteuid().as_raw();
    if ours { Ok(()) } else { Err(Errno::ACCESS) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::process::Uid;

    use super::*;

    /// Another user than root.
    const STRANGER: u32 = 64_001;

    /// A folder for sockets, which goes again.
    struct Place(std::path::PathBuf);

    impl Drop for Place {
        fn drop(&mut self) {
            _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Listens at `path` as another user: the kernel notes the socket's owner at that moment.
    fn listen_as(uid: Uid, path: std::path::PathBuf) -> UnixListener {
        let listen = move || {
            // This thread only: the kernel's threads have users of their own, and this one ends here.
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            UnixListener::bind(path).unwrap()
        };
        std::thread::spawn(listen).join().unwrap()
    }

    #[test]
    fn nothing_is_said_to_a_node_of_another_user() {
        let me = rustix::process::geteuid();
        if !me.is_root() {
            println!("SKIPPED: only root can listen as another user");
            return;
        }
        let place = Place(std::env::temp_dir().join(format!("radic-node-{}", std::process::id())));
        std::fs::create_dir(&place.0).unwrap();
        std::fs::set_permissions(&place.0, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        // Once as short as a socket's address, once by way of its folder.
        let long = place.0.join("x".repeat(150));
        std::fs::create_dir(&long).unwrap();
        for folder in [&place.0, &long] {
            let (ours, theirs) = (folder.join("ours"), folder.join("theirs"));
            let bind = |uid, path: &std::path::Path| {
                let short = place.0.join("s");
                let listener = listen_as(uid, short.clone());
                std::fs::rename(short, path).unwrap();
                listener
            };
            let _ours = bind(me, &ours);
            let theirs_listener = bind(Uid::from_raw(STRANGER), &theirs);
            Node::connect(ours.as_os_str().as_encoded_bytes()).unwrap();
            assert_eq!(Node::connect(theirs.as_os_str().as_encoded_bytes()).unwrap_err(), Errno::ACCESS);
            let (mut heard, mut bytes) = (theirs_listener.accept().unwrap().0, Vec::new());
            std::io::Read::read_to_end(&mut heard, &mut bytes).unwrap();
            assert!(bytes.is_empty(), "it was told {} bytes", bytes.len());
        }
    }
}
