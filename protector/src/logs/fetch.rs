//! Fetching the images of a process that is brought back: drives a [`Fetch`], with a socket, files and the clock of its thread.
//!
//! This thread reads and writes no file. Those that do have a time in which they must go on (`Driver::bounded`): one that hangs at a
//! disk is left, and the images come from elsewhere.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::FallocateFlags;
use radic_wire::login::Channel;
use radic_wire::mac::{Code, JobKey, MAC};
use radic_wire::record::Opener;

use super::arrival::{Arrival, Arriving, arrival};
use super::client::Client;
use super::files::{ImagePlace, image_path};
use super::verify;
use crate::fetching::{Fetch, FetchAction, FetchError, LOGIN, SILENCE};
use crate::folder::Folder;
use crate::machine;
use crate::store::Speaker;
use crate::watched::{Thread, Watched};

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
#[derive(Debug)]
pub struct Assembling(Working<Result<(), String>>);

impl Assembling {
    /// Starts it.
    pub fn begin(work: impl FnOnce(&Watched) -> Result<(), String> + Send + 'static) -> io::Result<Assembling> {
        Working::begin("assemble", work).map(Assembling)
    }
}

/// A thread that works at something which may hang.
#[derive(Debug)]
struct Working<T> {
    thread: Thread,
    result: Receiver<T>,
}

impl<T: Send + 'static> Working<T> {
    fn begin(name: &'static str, work: impl FnOnce(&Watched) -> T + Send + 'static) -> io::Result<Working<T>> {
        let (sender, result) = mpsc::channel();
        // Nothing may be left that wants it.
        let thread = Thread::start(name, move |watched| _ = sender.send(work(watched)))?;
        Ok(Working { thread, result })
    }

    /// Waits for the result. The thread is left if what it is at has no answer for so long, or nothing of it is wanted any more.
    fn result(self, given_up: &AtomicBool, patience: Duration) -> Result<T, Stopped> {
        let begun = Instant::now();
        loop {
            match self.result.recv_timeout(LOOK.min(patience)) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Disconnected) => return Err(Stopped::Other("the thread has ended".to_owned())),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if given_up.load(Ordering::Relaxed) {
                return Err(Stopped::Other("it is not wanted any more".to_owned()));
            }
            let now = Instant::now();
            let at = self.thread.watched().at();
            if at.as_ref().map_or(begun, |at| at.since.max(begun)) + patience <= now {
                let at = at.map_or_else(|| "its thread".to_owned(), |at| at.to_string());
                return Err(Stopped::Hangs(format!("{at}: no answer within {} s", patience.as_secs_f64())));
            }
        }
    }
}

/// Why there is no result.
#[derive(Debug)]
enum Stopped {
    Hangs(String),
    Other(String),
}

impl Stopped {
    fn why(self) -> String {
        match self {
            Stopped::Hangs(why) | Stopped::Other(why) => why,
        }
    }
}

/// Fetches the images of a process. `store` is the folder of this node's log service: its own images are there, and others go
/// into files without names in it, or in memory. While the last one comes, the others being here, `assemble` begins with them,
/// the newest first; if that image turns out not to be sound, or to come from elsewhere, it fails, and is begun once more. On
/// success all are sound, and what is restored from them comes to the end, and runs, when what is returned is finished.
pub fn fetch(
    wanted: &mut Fetch,
    begun: Instant,
    key: &JobKey,
    store: &Arc<Folder>,
    given_up: &AtomicBool,
    assemble: &dyn Fn(Vec<Layer>) -> io::Result<Assembling>,
) -> Result<Arrival, FetchError> {
    let (speaker, patience, disk_hangs) = (wanted.speaker(), SILENCE, false);
    let (way, image, code, files) = Default::default();
    let streamed = None;
    let mut driver =
        Driver { begun, key, store, given_up, patience, disk_hangs, speaker, assemble, way, image, code, files, streamed };
    let mut fetched = None;
    loop {
        if given_up.load(Ordering::Relaxed) {
            wanted.handle_given_up();
        }
        match wanted.poll_action() {
            Some(FetchAction::Assemble) => fetched = driver.assemble_all(wanted),
            Some(FetchAction::Over(result)) => return result.map(|()| fetched.expect("what succeeds was put together")),
            Some(action) => driver.act(wanted, action),
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
    store: &'a Arc<Folder>,
    given_up: &'a AtomicBool,
    /// Time in which a file must go on.
    patience: Duration,
    /// The disk of the store has not done so: what is fetched goes into memory.
    disk_hangs: bool,
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
                let result = self.open(image).map(|file| self.files.push((image, file)));
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
                let file = self.reserve(bytes).and_then(Writing::begin).map_err(|error| self.no_room(&error));
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

    /// Does something with files of this node.
    fn bounded<T: Send + 'static>(&mut self, work: impl FnOnce(&Watched) -> T + Send + 'static) -> Result<T, String> {
        let working = Working::begin("image", work).map_err(|error| format!("there is no thread for it: {error}"))?;
        working.result(self.given_up, self.patience).map_err(|stopped| {
            self.disk_hangs |= matches!(stopped, Stopped::Hangs(_));
            stopped.why()
        })
    }

    /// Opens an image of this node.
    fn open(&mut self, image: u64) -> Result<fs::File, String> {
        let (store, key, process) = (self.store.clone(), self.key.clone(), self.speaker.process);
        self.bounded(move |watched| {
            let path = image_path(store.path(), process, image);
            watched.during("read of", &path, || {
                let place = ImagePlace::of(&store, process, image).map_err(|error| error.to_string())?;
                verify::read_verified(&place, &key, process, image, watched, |_| Ok(())).map_err(|error| error.to_string())
            })
        })?
    }

    /// Reads the last image from this node's own file.
    fn read(&mut self, image: u64, chain: &[u64]) -> Result<(), String> {
        let (store, key, process) = (self.store.clone(), self.key.clone(), self.speaker.process);
        self.read_by(chain, move |arrival, is_wanted, watched| {
            let path = image_path(store.path(), process, image);
            let pass_on = |bytes: &[u8]| {
                while !arrival.has_room(LOOK)? {
                    if !is_wanted.load(Ordering::Relaxed) {
                        return Err(io::Error::other("it is not wanted any more"));
                    }
                }
                watched.goes_on();
                arrival.push(bytes);
                Ok(())
            };
            watched.during("read of", &path, || {
                let place = ImagePlace::of(&store, process, image).map_err(|error| error.to_string())?;
                verify::read_verified(&place, &key, process, image, watched, pass_on).map(drop).map_err(|error| error.to_string())
            })
        })
    }

    /// Has a thread read the last image, which looks whether it is still wanted.
    fn read_by(
        &mut self,
        chain: &[u64],
        read: impl FnOnce(&mut Arrival, &AtomicBool, &Watched) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let (mut arrival, assembling) = self.stream(chain)?;
        let (breaker, is_wanted) = (arrival.breaker(), Arc::new(AtomicBool::new(true)));
        let its = is_wanted.clone();
        let result = self.bounded(move |watched| {
            read(&mut arrival, &its, watched)?;
            arrival.pass_on();
            Ok(arrival)
        });
        match result.and_then(|read| read) {
            Ok(arrival) => {
                self.image = Some(Target::Stream(arrival, assembling));
                Ok(())
            }
            Err(why) => {
                // A thread that hangs ends nothing itself.
                breaker.break_off();
                is_wanted.store(false, Ordering::Relaxed);
                Err(why)
            }
        }
    }

    /// Makes room for an image.
    fn reserve(&mut self, bytes: u64) -> io::Result<fs::File> {
        if !self.disk_hangs {
            let store = self.store.clone();
            let reserved = self.bounded(move |watched| watched.during("new file in", store.path(), || reserved(&store, bytes)));
            if !self.disk_hangs {
                return reserved.map_err(io::Error::other)?;
            }
        }
        Folder::open_foreign(Path::new(MEMORY)).and_then(|memory| memory.nameless()).map_err(io::Error::from)
    }

    /// All images are here, and sound. If putting them together hangs, other copies of them are fetched.
    fn assemble_all(&mut self, wanted: &mut Fetch) -> Option<Arrival> {
        let Some((arrival, Assembling(working))) = self.streamed.take() else {
            wanted.handle_assembled(Err("the last one was not put together with the others".to_owned()));
            return None;
        };
        match working.result(self.given_up, self.patience) {
            Ok(result) => {
                let arrival = result.is_ok().then_some(arrival);
                wanted.handle_assembled(result);
                return arrival;
            }
            Err(Stopped::Hangs(why)) => {
                self.disk_hangs = true;
                self.files.clear();
                wanted.handle_stuck(self.now(), &format!("putting them together: {why}"));
            }
            Err(Stopped::Other(why)) => wanted.handle_assembled(Err(why)),
        }
        None
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
        let place = if self.disk_hangs { Path::new(MEMORY) } else { self.store.path() };
        format!("in {}: {error}", place.display())
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
        if let Some(target) = &mut self.image {
            match target.has_room(self.patience) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    self.disk_hangs |= matches!(target, Target::File(_));
                    wanted.handle_no_room(now, error.to_string());
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
        match self.image.as_mut().map_or(Ok(()), |image| image.end(self.given_up, self.patience)) {
            Ok(()) => wanted.handle_end(self.now(), &code),
            Err(error) => wanted.handle_no_room(self.now(), self.no_room(&error)),
        }
    }
}

impl Target {
    /// Whether there is room for what comes next, or will be in a moment. An error if there has been none for so long.
    fn has_room(&mut self, patience: Duration) -> io::Result<bool> {
        match self {
            Target::File(file) => file.has_room(patience),
            Target::Stream(arrival, _) => {
                arrival.has_room(LOOK).map_err(|error| io::Error::new(error.kind(), format!("in memory: {error}")))
            }
        }
    }

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
    fn end(&mut self, given_up: &AtomicBool, patience: Duration) -> io::Result<()> {
        match self {
            Target::File(file) => file.end(given_up, patience),
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
    /// A piece for which there was no room.
    waits: Option<Vec<u8>>,
    /// None: all has been written, or not all can be.
    pieces: Option<SyncSender<Vec<u8>>>,
    /// Told when a piece is written.
    written: Receiver<()>,
    working: Option<Working<io::Result<fs::File>>>,
    file: Option<fs::File>,
}

impl Writing {
    fn begin(mut file: fs::File) -> io::Result<Writing> {
        let (pieces, received) = mpsc::sync_channel::<Vec<u8>>(PIECES);
        let (tells, written) = mpsc::channel();
        let working = Working::begin("image", move |watched| {
            let path = path_of(&file);
            for piece in received {
                watched.during("write of", &path, || file.write_all(&piece))?;
                _ = tells.send(());
            }
            io::Seek::rewind(&mut file).map(|()| file)
        })?;
        Ok(Writing {
            piece: Vec::with_capacity(PIECE),
            waits: None,
            pieces: Some(pieces),
            written,
            working: Some(working),
            file: None,
        })
    }

    /// Whether there is room for another piece, or will be in a moment. An error if the file has not taken one for so long.
    fn has_room(&mut self, patience: Duration) -> io::Result<bool> {
        // Only how many are written matters, not when.
        while self.written.try_recv().is_ok() {}
        if self.try_send()? {
            return Ok(true);
        }
        // A thread that cannot write any more has ended: the next try says so.
        _ = self.written.recv_timeout(LOOK.min(patience));
        match self.working.as_ref().and_then(|working| working.thread.watched().hangs(Instant::now(), patience)) {
            Some(begun) => {
                Err(io::Error::new(ErrorKind::TimedOut, format!("{begun}: no answer within {} s", patience.as_secs_f64())))
            }
            None => self.try_send(),
        }
    }

    /// Hands over the piece that waits. False: there is no room for it yet. An error is that of a piece before.
    fn try_send(&mut self) -> io::Result<bool> {
        let Some(piece) = self.waits.take() else { return Ok(true) };
        match self.pieces.as_ref().map(|pieces| pieces.try_send(piece)) {
            Some(Ok(())) => Ok(true),
            Some(Err(TrySendError::Full(piece))) => {
                self.waits = Some(piece);
                Ok(false)
            }
            Some(Err(TrySendError::Disconnected(_))) | None => {
                // It has ended, so it is not waited for.
                self.join(&AtomicBool::new(false), LOOK).and(Err(io::Error::other("it was not written")))
            }
        }
    }

    /// To be called when there is room.
    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.waits = Some(std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE)));
            self.try_send()?;
        }
        Ok(())
    }

    /// All has come: waits until it is written. The file is at its beginning then.
    fn end(&mut self, given_up: &AtomicBool, patience: Duration) -> io::Result<()> {
        for last in [None, Some(std::mem::take(&mut self.piece))] {
            self.waits = self.waits.take().or(last);
            while !self.has_room(patience)? {
                if given_up.load(Ordering::Relaxed) {
                    return Err(io::Error::other("it is not wanted any more"));
                }
            }
        }
        self.join(given_up, patience)
    }

    fn join(&mut self, given_up: &AtomicBool, patience: Duration) -> io::Result<()> {
        self.pieces = None;
        let Some(working) = self.working.take() else { return Ok(()) };
        let written = working.result(given_up, patience).map_err(|stopped| io::Error::other(stopped.why()))?;
        self.file = Some(written?);
        Ok(())
    }

    fn whole(self) -> Option<fs::File> {
        self.file
    }
}

/// Where a file without a name is, as the kernel says.
fn path_of(file: &fs::File) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file))).unwrap_or_default()
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
fn reserved(store: &Folder, bytes: u64) -> io::Result<fs::File> {
    let memory = || Folder::open_foreign(Path::new(MEMORY));
    if belongs_in_memory(bytes)
        && let Ok(file) = memory().and_then(|memory| memory.nameless())
    {
        return Ok(file);
    }
    let reserve = |folder: &Folder| -> io::Result<fs::File> {
        let file = folder.nameless()?;
        let length = i64::try_from(bytes.max(1)).map_err(io::Error::other)?;
        match nix::fcntl::fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length) {
            // Not all file systems can: then it is found out while it is written.
            Ok(()) | Err(Errno::EOPNOTSUPP) => Ok(file),
            Err(error) => Err(error.into()),
        }
    };
    match reserve(store) {
        Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            memory().map_err(io::Error::from).and_then(|memory| reserve(&memory)).map_err(|_| error)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::ids::{Incarnation, JobId, ProcessId, Rank};
    use radic_wire::key::ClusterKey;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);
    /// Far more than anything takes.
    const LONG: Duration = Duration::from_secs(60);

    /// A disk that takes no answer: the thread that reads of it is left, what is restored from it gets no end but an error, and the images come from elsewhere.
    #[test]
    fn an_image_that_a_disk_does_not_give_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Folder::open(dir.path()).unwrap());
        let process = ProcessId { job: JobId::from_bits(7), rank: Rank(0) };
        let key = JobKey::derive_for_nodes(&ClusterKey::from_bytes([3; 32]), process.job);
        let (layers, read) = mpsc::channel();
        let assemble = |mut of: Vec<Layer>| {
            let (mut layer, layers) = (of.pop().unwrap(), layers.clone());
            Assembling::begin(move |_| {
                _ = layers.send(layer.read_to_end(&mut Vec::new()).map_err(|error| error.kind()));
                Ok(())
            })
        };
        let speaker = Speaker { process, incarnation: Incarnation::restarted(1) };
        let (begun, given_up) = (Instant::now(), AtomicBool::new(false));
        let (store, key, assemble, way, image, code) = (&store, &key, &assemble, None, None, None);
        let (given_up, patience, disk_hangs, files, streamed) = (&given_up, PATIENCE, false, Vec::new(), None);
        let mut driver =
            Driver { begun, key, store, given_up, patience, disk_hangs, speaker, assemble, way, image, code, files, streamed };
        let (answers, answer) = mpsc::channel::<()>();
        let why = driver.read_by(&[1], move |_, _, watched| {
            watched.during("read of", Path::new("/x"), || answer.recv().map_err(|_| String::new()))
        });
        assert_eq!(why.unwrap_err(), "read of /x: no answer within 1 s");
        assert_eq!(read.recv_timeout(LONG).expect("the reader waits for a thread that hangs"), Err(ErrorKind::ConnectionAborted));
        assert!(driver.disk_hangs);
        let place = path_of(&driver.reserve(100).unwrap());
        assert!(place.starts_with(MEMORY), "{}", place.display());
        drop(answers);
    }

    /// The last bytes of an image do not reach the disk, or none do.
    #[test]
    fn a_file_that_takes_nothing_is_not_waited_for() {
        let (pieces, received) = mpsc::sync_channel(PIECES);
        let (_tells, written) = mpsc::channel();
        let (answers, answer) = mpsc::channel::<()>();
        let working = Working::begin("image", move |watched| {
            watched.during("write of", Path::new("/x"), || {
                _ = answer.recv();
                drop(received);
                Err(io::Error::other("too late"))
            })
        });
        let (piece, waits, file) = Default::default();
        let mut writing = Writing { piece, waits, pieces: Some(pieces), written, working: Some(working.unwrap()), file };
        let begun = Instant::now();
        let error = loop {
            match writing.has_room(PATIENCE) {
                Ok(true) => writing.push(&vec![0; PIECE]).unwrap(),
                Ok(false) => assert!(begun.elapsed() < LONG),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().starts_with("write of /x: no answer within"), "{error}");
        let error = writing.end(&AtomicBool::new(false), PATIENCE).unwrap_err();
        assert!(error.to_string().starts_with("write of /x: no answer within"), "{error}");
        drop(answers);
    }
}
