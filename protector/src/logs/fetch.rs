//! Fetching the images of a process that is brought back: drives a [`Fetch`], with a socket, files and the clock of its thread.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::FallocateFlags;
use radic_wire::login::Channel;
use radic_wire::mac::{Code, JobKey, MAC};
use radic_wire::record::Opener;

use super::arrival::{Arrival, Arriving, arrival};
use super::client::Client;
use super::files::image_path;
use super::verify;
use crate::fetching::{Fetch, FetchAction, FetchError, LOGIN};
use crate::machine;
use crate::store::Speaker;

/// Bytes that are read at once, and written.
const PIECE: usize = 1 << 20;
/// Pieces that wait to be written.
const PIECES: usize = 16;
/// A directory in memory, of bounded size.
const MEMORY: &str = "/dev/shm";
/// Time after which a waiting thread looks whether its images are still wanted.
const LOOK: Duration = Duration::from_millis(250);

/// An image that a process is restored from, to be read from its beginning to its end.
#[derive(Debug)]
pub enum Layer {
    /// It is here: a file, and how far it was read.
    Here(fs::File, u64),
    /// It is on its way.
    Arriving(Arriving),
}

impl Read for Layer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Layer::Here(file, at) => {
                let count = file.read_at(buffer, *at)?;
                *at += count as u64;
                Ok(count)
            }
            Layer::Arriving(arriving) => arriving.read(buffer),
        }
    }
}

/// A thread that puts images together while the last one arrives.
pub type Assembling = JoinHandle<Result<(), String>>;

/// Fetches the images of a process. `dir` is the directory of this node's log service: its own images are there, and others go into files without names in it, or in memory. While
/// the last one comes, the others being here, `assemble` begins with them, the newest first; if that image turns out not to be sound, or to come from elsewhere, it fails, and is begun once more.
/// On success all are sound, and what is restored from them comes to the end, and runs, when what is returned is finished.
pub fn fetch(
    wanted: &mut Fetch,
    begun: Instant,
    key: &JobKey,
    dir: &Path,
    given_up: &AtomicBool,
    assemble: &dyn Fn(Vec<Layer>) -> io::Result<Assembling>,
) -> Result<Arrival, FetchError> {
    let (speaker, (way, image, code, files)) = (wanted.speaker(), Default::default());
    let mut driver = Driver { begun, key, dir, given_up, speaker, assemble, way, image, code, files, streamed: None };
    let mut fetched = None;
    loop {
        match wanted.poll_action() {
            Some(FetchAction::Assemble) => wanted.handle_assembled(driver.assembled().map(|arrival| fetched = Some(arrival))),
            Some(FetchAction::Over(result)) => return result.map(|()| fetched.expect("what succeeds was put together")),
            Some(action) => driver.act(wanted, action),
            None if given_up.load(Ordering::Relaxed) => wanted.handle_given_up(),
            None => driver.wait(wanted),
        }
    }
}

/// The connection to a log service.
enum Way {
    /// This node is logged in.
    Admitted(Client),
    /// The image is asked for.
    Receiving(Connection),
}

struct Connection {
    socket: TcpStream,
    opener: Opener,
    piece: Vec<u8>,
}

/// Where an image goes while it comes.
enum Target {
    File(Writing),
    Stream(Arrival, Assembling),
}

struct Driver<'a> {
    /// The machine's time is that since then.
    begun: Instant,
    key: &'a JobKey,
    dir: &'a Path,
    given_up: &'a AtomicBool,
    speaker: Speaker,
    assemble: &'a dyn Fn(Vec<Layer>) -> io::Result<Assembling>,
    way: Option<Way>,
    /// The image on its way, as far as it has come, and the code of that.
    image: Option<Target>,
    code: Option<Code>,
    /// The images that are here, by their numbers, but for one that was streamed.
    files: Vec<(u64, fs::File)>,
    streamed: Option<(Arrival, Assembling)>,
}

impl Driver<'_> {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn act(&mut self, wanted: &mut Fetch, action: FetchAction) {
        match action {
            FetchAction::Open(image) => {
                let path = image_path(self.dir, self.speaker.process, image);
                let opened = verify::open_verified(&path, self.key, self.speaker.process, image);
                let result = opened.map(|file| self.files.push((image, file))).map_err(|error| error.to_string());
                wanted.handle_opened(self.now(), result);
            }
            FetchAction::Read(image) => {
                let result = self.read(image, wanted.chain());
                wanted.handle_opened(self.now(), result);
            }
            FetchAction::Dial(service, speaker) => match Client::open(service, self.key, speaker, Channel::Fetch, LOGIN) {
                Ok(client) => {
                    self.way = Some(Way::Admitted(client));
                    wanted.handle_admitted(self.now());
                }
                Err(error) => wanted.handle_gone(self.now(), &error.to_string()),
            },
            FetchAction::Ask(image) => {
                if let Err(error) = self.ask(image) {
                    wanted.handle_gone(self.now(), &error.to_string());
                }
            }
            FetchAction::Reserve(image, bytes) => {
                let file = reserved(self.dir, bytes).and_then(Writing::begin).map_err(|error| self.no_room(&error));
                self.receive(wanted, image, file.map(Target::File));
            }
            FetchAction::Stream(image) => {
                let stream = self.stream(wanted.chain()).map(|(arrival, assembling)| Target::Stream(arrival, assembling));
                self.receive(wanted, image, stream);
            }
            FetchAction::Keep(image) => match self.image.take() {
                Some(Target::File(file)) => self.files.extend(file.whole().map(|file| (image, file))),
                Some(Target::Stream(arrival, assembling)) => self.streamed = Some((arrival, assembling)),
                None => {}
            },
            FetchAction::Close => (self.way, self.image, self.code) = (None, None, None),
            FetchAction::Assemble | FetchAction::Over(_) => {}
        }
    }

    fn receive(&mut self, wanted: &mut Fetch, image: u64, target: Result<Target, String>) {
        match target {
            Ok(target) => (self.image, self.code) = (Some(target), Some(verify::begin(self.key, self.speaker.process, image))),
            Err(why) => wanted.handle_no_room(self.now(), why),
        }
    }

    /// Begins to put the images together, of which the last one that is not here is about to come.
    fn stream(&self, chain: &[u64]) -> Result<(Arrival, Assembling), String> {
        let (arrival, arriving) = arrival();
        let mut arriving = Some(arriving);
        let layer = |image: &u64| match self.files.iter().find(|(of, _)| of == image) {
            Some((_, file)) => Ok(Layer::Here(file.try_clone()?, 0)),
            None => arriving.take().map(Layer::Arriving).ok_or(io::Error::other("more than one image is not here")),
        };
        let layers = chain.iter().map(layer).collect::<io::Result<Vec<Layer>>>();
        let assembling = layers.and_then(|layers| (self.assemble)(layers));
        assembling.map(|assembling| (arrival, assembling)).map_err(|error| format!("to restore it while it comes: {error}"))
    }

    /// Reads the last image from this node's own file.
    fn read(&mut self, image: u64, chain: &[u64]) -> Result<(), String> {
        let (mut arrival, assembling) = self.stream(chain)?;
        let path = image_path(self.dir, self.speaker.process, image);
        let pass_on = |bytes: &[u8]| {
            while !arrival.has_room(LOOK)? {
                if self.given_up.load(Ordering::Relaxed) {
                    return Err(io::Error::other("it is not wanted any more"));
                }
            }
            arrival.push(bytes);
            Ok(())
        };
        let read = verify::read_verified(&path, self.key, self.speaker.process, image, pass_on);
        read.map_err(|error| error.to_string())?;
        arrival.pass_on();
        self.image = Some(Target::Stream(arrival, assembling));
        Ok(())
    }

    /// All images are here, and sound.
    fn assembled(&mut self) -> Result<Arrival, String> {
        let (arrival, assembling) = self.streamed.take().ok_or("the last one was not put together with the others")?;
        let result = assembling.join().unwrap_or_else(|_| Err("the thread that puts them together has ended".to_owned()));
        result.map(|()| arrival)
    }

    fn ask(&mut self, image: u64) -> io::Result<()> {
        let Some(Way::Admitted(mut client)) = self.way.take() else { return Err(ErrorKind::NotConnected.into()) };
        client.send_bytes(&image.to_le_bytes())?;
        client.socket().set_read_timeout(Some(LOOK))?;
        let (socket, opener) = client.into_receiver();
        self.way = Some(Way::Receiving(Connection { socket, opener, piece: vec![0; PIECE] }));
        Ok(())
    }

    fn no_room(&self, error: &io::Error) -> String {
        format!("in {}: {error}", self.dir.display())
    }

    /// Something comes, or time passes.
    fn wait(&mut self, wanted: &mut Fetch) {
        if let Err(error) = self.take(wanted) {
            wanted.handle_gone(self.now(), &error.to_string());
        }
        wanted.handle_timeout(self.now());
    }

    /// Hands over the next piece that has come, or reads.
    fn take(&mut self, wanted: &mut Fetch) -> io::Result<()> {
        let now = self.now();
        let Some(Way::Receiving(connection)) = &mut self.way else {
            let due = wanted.poll_timeout().unwrap_or(now);
            // Only the time to ask a replica again is waited for without a connection.
            thread::sleep(due.saturating_sub(now).min(LOOK));
            return Ok(());
        };
        if let Some(Target::Stream(arrival, _)) = &mut self.image {
            match arrival.has_room(LOOK) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    wanted.handle_no_room(now, format!("in memory: {error}"));
                    return Ok(());
                }
            }
        }
        let next = connection.opener.next_body().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        match next {
            Some([]) => {}
            Some(body) if wanted.awaits_offer() => wanted.handle_offer(now, body),
            Some(body) => {
                let (Some(target), Some(code)) = (&mut self.image, &mut self.code) else { return Ok(()) };
                code.update(body);
                let count = body.len() as u64;
                match target.push(body) {
                    Ok(()) => wanted.handle_bytes(now, count),
                    Err(error) => wanted.handle_no_room(now, self.no_room(&error)),
                }
            }
            None => {
                if connection.opener.has_ended() {
                    self.end(wanted);
                } else {
                    connection.read()?;
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, wanted: &mut Fetch) {
        let code = self.code.take().map_or([0; MAC], Code::finish);
        match self.image.as_mut().map_or(Ok(()), Target::end) {
            Ok(()) => wanted.handle_end(self.now(), &code),
            Err(error) => wanted.handle_no_room(self.now(), self.no_room(&error)),
        }
    }
}

impl Target {
    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Target::File(file) => file.push(bytes),
            Target::Stream(arrival, _) => {
                arrival.push(bytes);
                Ok(())
            }
        }
    }

    /// All has come.
    fn end(&mut self) -> io::Result<()> {
        match self {
            Target::File(file) => file.end(),
            Target::Stream(arrival, _) => {
                arrival.pass_on();
                Ok(())
            }
        }
    }
}

impl Connection {
    /// Reads what has come. Nothing may have.
    fn read(&mut self) -> io::Result<()> {
        match self.socket.read(&mut self.piece) {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "it has closed the connection")),
            Ok(count) => {
                self.opener.push(&self.piece[..count]);
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A file that is written by a thread of its own: memory and blocks that are new cost as much as all else that is done with a byte, and the next bytes are received meanwhile.
struct Writing {
    piece: Vec<u8>,
    /// None: all has been written, or not all can be.
    pieces: Option<SyncSender<Vec<u8>>>,
    thread: Option<JoinHandle<io::Result<fs::File>>>,
    file: Option<fs::File>,
}

impl Writing {
    fn begin(mut file: fs::File) -> io::Result<Writing> {
        let (pieces, written) = mpsc::sync_channel::<Vec<u8>>(PIECES);
        let thread = thread::Builder::new().name("image".into()).spawn(move || {
            written.iter().try_for_each(|piece| file.write_all(&piece))?;
            io::Seek::rewind(&mut file).map(|()| file)
        })?;
        Ok(Writing { piece: Vec::with_capacity(PIECE), pieces: Some(pieces), thread: Some(thread), file: None })
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() < PIECE { Ok(()) } else { self.pass_on() }
    }

    /// Hands over what has come. An error is that of a piece before.
    fn pass_on(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        if self.pieces.as_ref().is_some_and(|pieces| pieces.send(piece).is_ok()) {
            return Ok(());
        }
        self.join().and(Err(io::Error::other("it was not written")))
    }

    /// All has come: waits until it is written. The file is at its beginning then.
    fn end(&mut self) -> io::Result<()> {
        self.pass_on()?;
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        self.pieces = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let file = thread.join().map_err(|_| io::Error::other("the thread that writes it has ended"))?;
        self.file = Some(file?);
        Ok(())
    }

    fn whole(self) -> Option<fs::File> {
        self.file
    }
}

/// Images fetched into memory may take one of so many parts of what is free there: the process itself takes another one.
const PARTS: u64 = 4;
/// Images from so many bytes on: a disk takes shorter ones in no time.
const LONG: u64 = 64 << 20;

/// Whether an image of so many bytes is to be in [`MEMORY`], which containers often bound to 64 MiB.
fn belongs_in_memory(bytes: u64) -> bool {
    let has_room = || rustix::fs::statvfs(MEMORY).is_ok_and(|of| bytes <= of.f_bavail.saturating_mul(of.f_frsize));
    bytes >= LONG && bytes <= machine::free() / PARTS && has_room()
}

/// A file without a name for this many bytes: in [`MEMORY`] for a long image if there is plenty of it, in this directory otherwise. A disk that is busy with images takes seconds for each
/// GiB, as the kernel makes those wait that write more than it has memory for. If there is no room in the directory it is in memory all the same: a full disk stops checkpoints, but
/// should not stop a process from being brought back.
fn reserved(dir: &Path, bytes: u64) -> io::Result<fs::File> {
    if belongs_in_memory(bytes)
        && let Ok(file) = nameless(Path::new(MEMORY))
    {
        return Ok(file);
    }
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
