//! Whole images for nodes that bring processes back. Here: a thread for each image that is being sent, of which there are few at
//! once. There: [`fetch()`], which blocks; or [`Images::open`], where the log service is the node's own.
//!
//! An image that is being sent is an open file: a commit that deletes its name takes nothing away. The receiver checks its code
//! over what it has received, so it is not read twice for that.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::FallocateFlags;
use radic_wire::ids::ProcessId;
use radic_wire::login::{Channel, NOT_HELD, OFFER};
use radic_wire::mac::{JobKey, MAC};
use radic_wire::record::{HEAD, OVERHEAD, Opener, RECORD, Sealer};

use super::client::Client;
use super::disk::{Done, Waker};
use super::files::image_path;
use super::verify::{self, BadImage};
use crate::store::Speaker;

/// Images that are sent at once.
const AT_ONCE: usize = 4;
/// Images that may wait for that.
const WAITING: usize = 1_024;
/// Bytes that the receiver reads at once.
const PIECE: usize = 1 << 20;
/// A directory in memory, of bounded size.
pub const MEMORY: &str = "/dev/shm";
/// Time in which nothing may come or go. While others are sent before it, an image waits.
const SILENCE: Duration = Duration::from_secs(30);
/// Time after which a waiting thread looks whether its image is still wanted.
const LOOK: Duration = Duration::from_millis(250);
/// Time to connect and log in.
const LOGIN: Duration = Duration::from_secs(3);

/// Why an image could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The connection.
    #[error("the log service at {0}: {1}")]
    Service(SocketAddr, io::Error),
    /// It was replaced, or never there.
    #[error("the log service at {0} does not hold image {1}, or not with the length that was said")]
    NotHeld(SocketAddr, u64),
    /// It is not what was stored.
    #[error("image {0}: {1}")]
    Bad(u64, BadImage),
    /// There is nowhere to put it.
    #[error("there is no room for image {image} of {bytes} bytes in {}: {error}", .dir.display())]
    Room {
        /// Its number.
        image: u64,
        /// Its length.
        bytes: u64,
        /// Where it was to go.
        dir: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The image is not wanted any more.
    #[error("given up")]
    GivenUp,
}

/// An image that the node at the other end of the socket wants.
#[derive(Debug)]
pub struct Fetch {
    socket: TcpStream,
    sealer: Sealer,
    process: ProcessId,
    image: u64,
    /// Its length. None if it is not held.
    bytes: Option<u64>,
}

impl Fetch {
    pub fn new(socket: TcpStream, sealer: Sealer, process: ProcessId, image: u64, bytes: Option<u64>) -> Self {
        Fetch { socket, sealer, process, image, bytes }
    }

    /// Sends the image, or that there is none. An error is the receiver's: it is gone, or takes nothing.
    fn send(mut self, dir: &Path) -> io::Result<()> {
        self.socket.set_nonblocking(false)?;
        self.socket.set_write_timeout(Some(SILENCE))?;
        let path = image_path(dir, self.process, self.image);
        let Some((mut file, bytes, code)) = self.bytes.and_then(|bytes| open(&path, bytes)) else {
            return self.send_record(&mut offer(NOT_HELD, [0; MAC]), false);
        };
        self.send_record(&mut offer(bytes, code), false)?;
        let mut record = vec![0; OVERHEAD + RECORD.min(bytes as usize)];
        let mut left = bytes;
        while left > 0 {
            let body = left.min(RECORD as u64) as usize;
            file.read_exact(&mut record[HEAD..HEAD + body])?;
            self.send_record(&mut record[..OVERHEAD + body], false)?;
            left -= body as u64;
        }
        self.send_record(&mut record[..OVERHEAD], true)?;
        self.socket.shutdown(Shutdown::Write)
    }

    fn send_record(&mut self, record: &mut [u8], is_last: bool) -> io::Result<()> {
        self.sealer.seal(record, is_last);
        (&self.socket).write_all(record)
    }
}

fn open(path: &Path, bytes: u64) -> Option<(fs::File, u64, [u8; MAC])> {
    let (file, code) = (fs::File::open(path).ok()?, verify::read_code(path).ok()?);
    (file.metadata().ok()?.len() == bytes).then_some((file, bytes, code))
}

/// The record of an offer, to be sealed.
fn offer(bytes: u64, code: [u8; MAC]) -> [u8; OVERHEAD + OFFER] {
    let mut out = [0; OVERHEAD + OFFER];
    let (length, rest) = out[HEAD..HEAD + OFFER].split_at_mut(8);
    length.copy_from_slice(&bytes.to_le_bytes());
    rest.copy_from_slice(&code);
    out
}

/// The images that are being sent.
#[derive(Debug)]
pub struct Fetches {
    dir: PathBuf,
    done: Sender<Done>,
    waker: Waker,
    next: u64,
    /// Each with its socket, so that it can be ended.
    running: HashMap<u64, (JoinHandle<()>, TcpStream)>,
    waiting: VecDeque<Fetch>,
}

impl Fetches {
    pub fn new(dir: PathBuf, done: Sender<Done>, waker: Waker) -> Self {
        Fetches { dir, done, waker, next: 0, running: HashMap::new(), waiting: VecDeque::new() }
    }

    /// Sends an image as soon as its turn has come. Returns false if it will not be sent.
    pub fn begin(&mut self, fetch: Fetch) -> bool {
        if self.running.len() < AT_ONCE {
            return self.start(fetch).is_ok();
        }
        let has_room = self.waiting.len() < WAITING;
        self.waiting.extend(has_room.then_some(fetch));
        has_room
    }

    fn start(&mut self, fetch: Fetch) -> io::Result<()> {
        let (number, socket) = (self.next, fetch.socket.try_clone()?);
        self.next += 1;
        let (dir, done, waker) = (self.dir.clone(), self.done.clone(), self.waker.clone());
        let thread = thread::Builder::new().name("logs fetch".into()).spawn(move || {
            // The receiver knows what became of it, and says so.
            _ = fetch.send(&dir);
            _ = done.send(Done::Sent(number));
            waker.wake();
        })?;
        self.running.insert(number, (thread, socket));
        Ok(())
    }

    /// An image is sent, or its receiver gone: the next ones begin.
    pub fn handle_sent(&mut self, number: u64) {
        // Its thread has nothing left to do.
        self.running.remove(&number).into_iter().for_each(|(thread, _)| _ = thread.join());
        while self.running.len() < AT_ONCE
            && let Some(fetch) = self.waiting.pop_front()
        {
            // Where there is no thread for it, its connection is closed, which its receiver notices.
            _ = self.start(fetch);
        }
    }

    /// The service ends.
    pub fn end(&mut self) {
        self.waiting.clear();
        for (_, (thread, socket)) in self.running.drain() {
            _ = socket.shutdown(Shutdown::Both);
            _ = thread.join();
        }
    }
}

/// Where the images of a process that is to be brought back are.
#[derive(Debug, Clone)]
pub enum Images {
    /// In the directory of this node's own log service.
    Here(PathBuf),
    /// At this log service; they go into files without names in this directory.
    At(SocketAddr, PathBuf),
}

impl Images {
    /// Opens this image (number, length), or fetches it: verified, at its beginning. `speaker` is the incarnation that is about
    /// to begin.
    pub fn open(&self, key: &JobKey, speaker: Speaker, image: (u64, u64), given_up: &AtomicBool) -> Result<fs::File, FetchError> {
        match self {
            Images::Here(dir) => {
                let path = image_path(dir, speaker.process, image.0);
                verify::open_verified(&path, key, speaker.process, image.0).map_err(|error| FetchError::Bad(image.0, error))
            }
            Images::At(service, dir) => fetch(*service, key, speaker, image, dir, given_up),
        }
    }

    /// A directory with room for images.
    pub fn dir(&self) -> &Path {
        let (Images::Here(dir) | Images::At(_, dir)) = self;
        dir
    }
}

/// Fetches an image (number, length) from the log service at `from` into a file without a name in `dir`, or in memory if that is
/// full: verified, at its beginning.
pub fn fetch(
    from: SocketAddr,
    key: &JobKey,
    speaker: Speaker,
    image: (u64, u64),
    dir: &Path,
    given_up: &AtomicBool,
) -> Result<fs::File, FetchError> {
    let (number, bytes) = image;
    let no_room = |error| FetchError::Room { image: number, bytes, dir: dir.to_owned(), error };
    let failed = |error| FetchError::Service(from, error);
    let mut client = Client::open(from, key, speaker, Channel::Fetch, LOGIN).map_err(failed)?;
    client.send_bytes(&number.to_le_bytes()).map_err(failed)?;
    client.socket().set_read_timeout(Some(LOOK)).map_err(failed)?;
    let (socket, opener) = client.into_receiver();
    let mut receiver = Receiver { socket, opener, piece: vec![0; PIECE], given_up };
    let mut body = Vec::with_capacity(RECORD);
    receiver.next_body(&mut body).map_err(|error| error.of(from))?;
    let offer: [u8; OFFER] = body[..].try_into().map_err(|_| FetchError::NotHeld(from, number))?;
    let (length, code) = offer.split_at(8);
    if length != bytes.to_le_bytes() || bytes == NOT_HELD {
        return Err(FetchError::NotHeld(from, number));
    }
    let file = reserved(dir, bytes).map_err(no_room)?;
    let mut sum = verify::begin(key, speaker.process, number);
    let mut left = bytes;
    while receiver.next_body(&mut body).map_err(|error| error.of(from))? {
        left = left.checked_sub(body.len() as u64).ok_or(FetchError::NotHeld(from, number))?;
        sum.update(&body);
        (&file).write_all(&body).map_err(no_room)?;
    }
    if left > 0 {
        return Err(FetchError::NotHeld(from, number));
    }
    if sum.finish() != *code {
        return Err(FetchError::Bad(number, BadImage::Code));
    }
    io::Seek::rewind(&mut &file).map_err(no_room)?;
    Ok(file)
}

/// Why nothing more is received.
enum Ended {
    Io(io::Error),
    GivenUp,
}

impl Ended {
    fn of(self, service: SocketAddr) -> FetchError {
        match self {
            Ended::Io(error) => FetchError::Service(service, error),
            Ended::GivenUp => FetchError::GivenUp,
        }
    }
}

struct Receiver<'a> {
    socket: TcpStream,
    opener: Opener,
    piece: Vec<u8>,
    given_up: &'a AtomicBool,
}

impl Receiver<'_> {
    /// Puts the body of the next record into `body`. False: the last one has come.
    fn next_body(&mut self, body: &mut Vec<u8>) -> Result<bool, Ended> {
        body.clear();
        while !self.opener.has_ended() {
            let next = self.opener.next_body().map_err(|error| Ended::Io(io::Error::new(ErrorKind::InvalidData, error)))?;
            if let Some(next) = next {
                body.extend_from_slice(next);
                if !body.is_empty() {
                    return Ok(true);
                }
                continue;
            }
            let came = self.read()?;
            self.opener.push(&self.piece[..came]);
        }
        Ok(false)
    }

    /// At least one byte of the piece.
    fn read(&mut self) -> Result<usize, Ended> {
        let end = Instant::now() + SILENCE;
        loop {
            if self.given_up.load(Ordering::Relaxed) {
                return Err(Ended::GivenUp);
            }
            match self.socket.read(&mut self.piece) {
                Ok(0) => return Err(Ended::Io(io::Error::new(ErrorKind::UnexpectedEof, "it has closed the connection"))),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if Instant::now() >= end {
                        let text = format!("it has sent nothing for {SILENCE:?}");
                        return Err(Ended::Io(io::Error::new(ErrorKind::TimedOut, text)));
                    }
                }
                Err(error) => return Err(Ended::Io(error)),
            }
        }
    }
}

/// A file without a name that has room for this many bytes: in this directory, or in [`MEMORY`] if there is no room. A full disk
/// stops checkpoints, but should not stop a process from being brought back.
fn reserved(dir: &Path, bytes: u64) -> io::Result<fs::File> {
    let reserve = |dir: &Path| -> io::Result<fs::File> {
        let file = nameless(dir)?;
        let length = i64::try_from(bytes.max(1)).map_err(io::Error::other)?;
        match nix::fcntl::fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length) {
            // Not all file systems can: then it is found out while it is written.
            Ok(()) | Err(Errno::EOPNOTSUPP) => Ok(file),
            Err(error) => Err(error.into()),
        }
    };
    match reserve(dir) {
        Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            reserve(Path::new(MEMORY)).map_err(|_| error)
        }
        other => other,
    }
}

/// A file without a name, which is gone as soon as it is closed. A file system that cannot make such gets a file that loses its
/// name at once.
pub fn nameless(dir: &Path) -> io::Result<fs::File> {
    let mut options = fs::File::options();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(dir) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) => {
            let number = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
            let path = dir.join(format!("fetched.{number:016x}"));
            let file = options.create_new(true).open(&path)?;
            fs::remove_file(&path)?;
            Ok(file)
        }
        other => other,
    }
}
