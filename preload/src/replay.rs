//! A process that was restored for `radic replay`: it re-executes from its image to the end of its log, alone. The command that restored it stands for its
//! protector, its node and its peers; nothing else hears of it, and what it sends is compared, not delivered.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};

use radic_observer::connection::Slot;
use radic_observer::standstill::PATIENCE;
use radic_observer::{Error, Observer, Wait};
use radic_wire::codec;
use radic_wire::determinant::StreamId;
use radic_wire::frame::{self, FrameReader};
use radic_wire::limits;
use radic_wire::log::{FromProtector, ImageRange};
use radic_wire::replay::{FRAME, FromReplayer, ToReplayer, socket_name};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::ending::{self, fail, sure};
use crate::{standstill, sys};

/// Time for the command to answer, in milliseconds.
const ANSWER_MS: u64 = 60_000;
/// Empty outcomes, after the end of the log, after which a process has sent all that it will.
const AFTERWARDS: u64 = 100_000;
/// Time without an outcome after which a process that waits goes no further, in nanoseconds: another thread may compute for as long.
const STANDSTILL_NS: u64 = 120_000_000_000;
/// Bytes of journal that are here at once.
const BUFFER: usize = 1 << 20;

/// The connection to the command.
#[derive(Debug)]
pub struct Replayer {
    fd: OwnedFd,
    frames: FrameReader,
    settled: bool,
    /// Empty outcomes since it sent something, or since the log was over.
    idle: u64,
    /// Where a call that waits has found the log last, and since when it has stood there.
    moved: Option<(u64, u64)>,
}

impl Replayer {
    /// Finds the command, which is this process's parent and waits at the socket of this number, and begins the replay.
    pub fn begin(observer: &mut Observer, launcher: u64) -> Replayer {
        match Replayer::try_begin(observer, launcher) {
            Ok(replayer) => replayer,
            Err(error) => fail(&format!("it was restored, and no command replays it: {error}")),
        }
    }

    fn try_begin(observer: &mut Observer, launcher: u64) -> Result<Replayer, Errno> {
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let fd = sys::high(fd)?;
        rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(socket_name(launcher).as_bytes())?)?;
        if !is_parent(sys::peer(fd.as_fd())?) {
            return Err(Errno::PERM);
        }
        let mut replayer = Replayer { fd, frames: FrameReader::new(FRAME), settled: false, idle: 0, moved: None };
        let (process, incarnation, cut) = (observer.process(), observer.incarnation(), observer.journal().end());
        match replayer.ask(&ToReplayer::Restored { process, incarnation, cut })? {
            FromReplayer::Setup { incarnation, log_end, held } => {
                sure(observer.restart(incarnation, log_end, held, ImageRange::default(), (0, &[]), BUFFER));
                replayer.look(observer);
                Ok(replayer)
            }
            _ => Err(Errno::PROTO),
        }
    }

    fn send(&mut self, message: &ToReplayer) -> Result<(), Errno> {
        let body = codec::encode(message, FRAME).map_err(|_| Errno::MSGSIZE)?;
        let mut out = Vec::with_capacity(body.len() + frame::HEADER);
        frame::encode_into(&mut out, &body, FRAME);
        sys::send_all(self.fd.as_fd(), &out, ANSWER_MS)
    }

    fn ask(&mut self, question: &ToReplayer) -> Result<FromReplayer, Errno> {
        self.send(question)?;
        loop {
            if let Some(frame) = self.frames.next_frame().map_err(|_| Errno::PROTO)? {
                return codec::decode(frame, FRAME).map_err(|_| Errno::PROTO);
            }
            let mut buffer = [0; 16 << 10];
            match rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(Errno::CONNRESET),
                Ok((_, count)) => self.frames.push(&buffer[..count]),
                Err(Errno::AGAIN) => sys::wait_for(self.fd.as_fd(), PollFlags::IN, ANSWER_MS)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The value. If the command does not listen any more, the replay was given up, and the process ends.
    fn or_end<T>(result: Result<T, Errno>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => fail(&format!("the command that replays it is gone: {error}")),
        }
    }

    /// Something was served: was it the last of the log?
    pub fn look(&mut self, observer: &Observer) {
        use radic_observer::connection::Phase;
        if !self.settled && observer.phase() != Phase::Replaying {
            (self.settled, self.idle) = (true, 0);
            Self::or_end(self.send(&ToReplayer::Settled));
        }
    }

    /// The process found nothing to do. At the end of the log that is the end.
    pub fn handle_nothing(&mut self, observer: &Observer) {
        // What it sends after its last outcome, perhaps after having looked a few times more, is compared, too.
        self.idle += 1;
        if self.settled && self.idle > AFTERWARDS {
            self.end("the log is over");
        }
        if let Some(overdue) = observer.overdue(PATIENCE) {
            self.end(&format!("it goes another way: {overdue:?}"));
        }
    }

    /// A call waits. The process ends if there is no other thread that it could wait for, if the command is gone, or if nothing has happened for long.
    pub fn handle_wait(&mut self, observer: &mut Observer) {
        if standstill::is_alone() {
            return self.wait_for(observer, Wait::Event);
        }
        let mut fds = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::empty())];
        _ = sys::poll(&mut fds, Some(sys::span(0)));
        if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            fail("the command that replays it is gone");
        }
        let (now, position) = (sys::now(), observer.log_position());
        if self.moved.is_none_or(|(at, _)| at != position) {
            self.moved = Some((position, now));
        }
        if self.moved.is_some_and(|(_, since)| now >= since + STANDSTILL_NS) {
            self.end(&format!("it stands still at position {position} of its log: it went another way"));
        }
    }

    /// It goes no further.
    pub fn end(&mut self, why: &str) -> ! {
        _ = self.send(&ToReplayer::Ended(why.to_owned()));
        ending::end_process(0)
    }

    /// What the call waits for.
    pub fn wait_for(&mut self, observer: &mut Observer, what: Wait) {
        match what {
            Wait::Log => {
                let Some((position, room)) = observer.wanted_log() else { self.end("it wants log, and no piece of it") };
                let room = room.min(limits::LOG_CHUNK) as u32;
                match Self::or_end(self.ask(&ToReplayer::FetchJournal { position, room })) {
                    FromReplayer::Journal(bytes) if !bytes.is_empty() => {
                        sure(observer.handle_protector(&FromProtector::Journal { position, bytes: &bytes }));
                    }
                    _ => self.end(&format!("the journal is not held from position {position} on")),
                }
            }
            // At the end of the log a waiting call waits for peers, which are not there; before it, for bytes that no log holds.
            Wait::Peers => {
                // The last of it may have been passed over.
                self.look(observer);
                self.end("the log is over")
            }
            Wait::Event if self.settled => self.end("the log is over"),
            _ => self.end("it waits for bytes that its log does not hold: the job runs, and they are not shipped yet, or it went another way"),
        }
    }

    /// Received bytes, into the program's buffers. Returns how many.
    pub fn fetch(&mut self, stream: StreamId, offset: u64, room: &mut [IoSliceMut<'_>]) -> usize {
        let most = room.iter().map(|part| part.len()).sum::<usize>().min(limits::LOG_CHUNK);
        let bytes = match Self::or_end(self.ask(&ToReplayer::FetchPayload { stream, offset, room: most as u32 })) {
            FromReplayer::Payload(bytes) if !bytes.is_empty() && bytes.len() <= most => bytes,
            _ => self.end(&format!("bytes of {stream:?} are not held from offset {offset} on")),
        };
        let mut rest = &bytes[..];
        for part in room {
            let (now, later) = rest.split_at(rest.len().min(part.len()));
            part[..now.len()].copy_from_slice(now);
            rest = later;
        }
        bytes.len()
    }

    /// What is in the outbox of `slot` and has not left is compared instead, and need not be kept.
    pub fn transmit(&mut self, observer: &mut Observer, slot: Slot) -> Result<(), Error> {
        let Some(connection) = observer.table().get(slot) else { return Ok(()) };
        let (stream, unsent) = (connection.stream_out(), connection.outgoing().unsent());
        let end = connection.outgoing().start() + connection.outgoing().kept();
        let mut offset = end - unsent;
        while offset < end {
            let piece = observer.outgoing(slot, offset).next().unwrap_or(&[]).to_vec();
            if piece.is_empty() {
                break;
            }
            let length = piece.len() as u64;
            Self::or_end(self.send(&ToReplayer::Sent { stream, offset, bytes: piece.into() }));
            observer.handle_passed(slot, length);
            offset += length;
            self.idle = 0;
        }
        observer.handle_protector(&FromProtector::StreamStable { stream, offset: end })
    }
}

/// Whether these are the process and the user of this process's parent, which has restored it: any user may have taken the
/// socket's name when the command has gone.
fn is_parent((process, user): (i32, u32)) -> bool {
    let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    process == parent && user == rustix::process::geteuid().as_raw()
}
