//! `radic replay`: re-executes a rank alone, from its last committed image to the end of its log, and compares what it sends with what it sent (G5).
//!
//! The restored process asks its parent, this command, for everything: journal, received bytes, its peers ([`radic_wire::replay`]). What it sends is
//! compared with what its receivers' protectors hold.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write as _};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use nix::fcntl::OFlag;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use radic_ckpt::control;
use radic_wire::bytes::Reader;
use radic_wire::causes;
use radic_wire::codec;
use radic_wire::determinant::{Determinant, StreamId};
use radic_wire::frame::{self, FrameReader};
use radic_wire::ids::Rank;
use radic_wire::limits;
use radic_wire::log::{HeldImage, HeldLog, ImageState, LogPart};
use radic_wire::process::PayloadMode;
use radic_wire::replay::{FRAME, FromReplayer, ToReplayer, socket_name};
use radic_wire::span::Span;
use serde::Serialize;

use crate::client::Cluster;
use crate::format::{Table, bytes, print, print_json};
use crate::log::{Held, stream_text};
use crate::progress::{Progress, Unit};

/// The library's file, beside this command.
const LIBRARY: &str = "libradic.so";
/// Time for the restored process to say something; re-execution computes between what it says.
const SILENCE: Duration = Duration::from_secs(600);
/// Time for it to come back.
const RESTORED: Duration = Duration::from_secs(60);

/// Differences that are listed.
const LISTED: usize = 64;
/// Bytes of each that are shown.
const SHOWN: usize = 32;

/// `radic replay`'s arguments.
#[derive(Args)]
pub(crate) struct ReplayArgs {
    /// The job, or its first digits
    job: String,
    /// The rank
    rank: u32,
    /// Fail if a byte differs, not only if a stream has another length
    #[arg(long)]
    strict: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    job: String,
    rank: Rank,
    image: u64,
    cut: u64,
    end: u64,
    /// Bytes of its journal that follow, and that only the logs of others have (`--log causal`).
    behind: u64,
    /// Outcomes in that part of the log.
    events: u64,
    /// Every one of them was served.
    complete: bool,
    /// Why it ended.
    ended: String,
    compared: u64,
    different: u64,
    first_difference: Option<String>,
    /// The first of them.
    differences: Vec<Difference>,
    streams: Vec<StreamReport>,
    seconds: f64,
}

/// Bytes in a row that were sent otherwise than then: at most [`SHOWN`] of them.
#[derive(Debug, Clone, Serialize)]
struct Difference {
    stream: String,
    offset: u64,
    then: String,
    now: String,
}

#[derive(Debug, Serialize)]
struct StreamReport {
    stream: String,
    /// Where re-execution has begun to send.
    from: Option<u64>,
    /// Where it has ended.
    to: Option<u64>,
    /// Up to where the receiver has it.
    held: u64,
    compared: u64,
    different: u64,
}

impl Report {
    /// Streams that are shorter than what their receivers have: another execution.
    fn shorter(&self) -> impl Iterator<Item = &StreamReport> {
        self.streams.iter().filter(|stream| stream.from.is_some() && stream.to < Some(stream.held))
    }
}

/// `radic replay`. Fails if the log could not be replayed whole, or what was sent has another length.
pub(crate) fn replay(cluster: &Cluster, args: ReplayArgs) -> Result<()> {
    let began = Instant::now();
    let mut session = Session::open(cluster, &args)?;
    let progress = Progress::new(args.json);
    let images = session.fetch_images(&progress)?;
    let launcher = getrandom::u64().map_err(|error| anyhow!("no random bytes from the system: {error}"))?;
    let name = socket_name(launcher);
    let address = SocketAddr::from_abstract_name(name.as_bytes()).context("the socket's name")?;
    let listener = UnixListener::bind_addr(&address).context("cannot listen for the restored process")?;
    let mut child = Kept(restore(images, launcher)?);
    progress.begin("restoring the process", Unit::Steps, None);
    let mut talk = accept(listener, &mut child.0, &progress)?;
    let (complete, ended) = session.serve(&mut talk, &mut child.0, &progress)?;
    drop(progress);
    let report = session.report(complete, ended, began.elapsed());
    if args.json {
        print_json(&report)?
    } else {
        print(&text(&report))?
    }
    ensure!(report.complete, "the log was not replayed to its end: {}", report.ended);
    // What its receivers have more it has sent by outcomes that its own log does not have yet.
    if let Some(short) = report.shorter().next().filter(|_| report.behind == 0) {
        bail!("stream {} was sent again up to {} only, its receiver has {}", short.stream, short.to.unwrap_or(0), short.held);
    }
    ensure!(!args.strict || report.different == 0, "{} bytes differ", report.different);
    Ok(())
}

/// A process that ends with this value.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Restores the last of these images, which builds upon the others. `launcher` is the number of the socket.
fn restore(images: Vec<File>, launcher: u64) -> Result<Child> {
    let library = std::env::current_exe().context("cannot find radic's own path")?.with_file_name(LIBRARY);
    ensure!(library.exists(), "{} is missing beside this command: install both together", library.display());
    let paths: Vec<PathBuf> = images.iter().map(|file| format!("/proc/self/fd/{}", file.as_raw_fd()).into()).collect();
    let (image, parents) = paths.split_last().context("there is no image")?;
    let mut command = control::restart_alone(image, parents, &library, launcher)?;
    drop(images);
    // What it prints it has printed before.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    command.spawn().context("the process cannot be restored")
}

/// The connection of the restored process. Whatever other process calls is turned away, and gets not a byte: the socket's name is there for every user to see.
fn accept(listener: UnixListener, child: &mut Child, progress: &Progress) -> Result<Talk> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + RESTORED;
    loop {
        ensure!(Instant::now() < deadline, "the restored process made no call on its connections within {RESTORED:?}");
        match listener.accept() {
            Ok((socket, _)) if !is_child(&socket, child)? => {}
            Ok((socket, _)) => {
                socket.set_nonblocking(false)?;
                socket.set_read_timeout(Some(SILENCE))?;
                return Ok(Talk { socket, frames: FrameReader::new(FRAME) });
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if let Some(status) = child.try_wait()? {
                    bail!("the restored process has ended at once: {status}");
                }
                let mut poll = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&listener), nix::poll::PollFlags::POLLIN)];
                nix::poll::poll(&mut poll, nix::poll::PollTimeout::from(100u8))?;
                progress.tick();
            }
            Err(error) => return Err(error).context("cannot accept the restored process"),
        }
    }
}

/// Whether the child is at the other end. This command has not waited for it yet when it calls, so its id is no other process's.
fn is_child(socket: &UnixStream, child: &Child) -> Result<bool> {
    let peer = getsockopt(socket, PeerCredentials).context("the kernel does not tell the process that calls")?;
    Ok(peer.pid() == child.id().cast_signed() && peer.uid() == nix::unistd::geteuid().as_raw())
}

/// The connection to the restored process.
struct Talk {
    socket: UnixStream,
    frames: FrameReader,
}

impl Talk {
    /// The next message; none: it is gone.
    fn hear(&mut self) -> Result<Option<ToReplayer>> {
        loop {
            if let Some(frame) = self.frames.next_frame()? {
                return Ok(Some(codec::decode(frame, FRAME)?));
            }
            let mut buffer = vec![0; 64 << 10];
            match self.socket.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(count) => self.frames.push(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).with_context(|| format!("the restored process says nothing for {SILENCE:?}")),
            }
        }
    }

    fn say(&mut self, message: &FromReplayer) -> Result<()> {
        let mut out = Vec::new();
        frame::encode_into(&mut out, &codec::encode(message, FRAME)?, FRAME);
        self.socket.write_all(&out).context("the restored process is gone")
    }
}

/// What was sent on one stream, and what its receiver has of it.
#[derive(Debug, Default)]
struct Sent {
    from: Option<u64>,
    to: u64,
    compared: u64,
    different: u64,
}

/// The logs that are needed.
struct Session {
    own: Held,
    /// The other ranks' logs.
    peers: BTreeMap<Rank, Held>,
    images: Vec<HeldImage>,
    /// Bytes of its journal that only the logs of others have.
    behind: u64,
    journal: Vec<u8>,
    sent: BTreeMap<StreamId, Sent>,
    differences: Vec<Difference>,
}

impl Session {
    fn open(cluster: &Cluster, args: &ReplayArgs) -> Result<Self> {
        let (me, first) = (Rank(args.rank), Held::open(cluster, args.job.clone(), Rank(args.rank))?);
        let job = first.log.process.job.to_string();
        let of_job = first.job(cluster)?;
        ensure!(
            of_job.payload == PayloadMode::Log,
            "no log has what the job's ranks have received: it stays with the ranks that have sent it; start the job with --payload log to replay it"
        );
        let (mut peers, mut known) = (BTreeMap::new(), 0);
        for rank in (0..of_job.ranks).map(Rank).filter(|rank| *rank != me) {
            // A rank without a log has received nothing that could be compared.
            if let Ok(mut held) = Held::open(cluster, job.clone(), rank) {
                known = known.max(known_of(me, &mut held));
                peers.insert(rank, held);
            }
        }
        // After those of its receivers: while the rank runs its log has all by which it had sent what they have, or they have it as causes.
        let own = Held::open(cluster, job, me)?;
        let images = chain(&own.log)?;
        let behind = known.saturating_sub(own.log.journal.end);
        let (journal, sent, differences) = Default::default();
        let mut session = Session { own, peers, images, behind, journal, sent, differences };
        session.fetch_journal()?;
        Ok(session)
    }

    fn cut(&self) -> u64 {
        self.images.last().map_or(0, |image| image.cut)
    }

    fn fetch_journal(&mut self) -> Result<()> {
        let (cut, end) = (self.cut(), self.own.log.journal.end);
        while cut + (self.journal.len() as u64) < end {
            let piece = self.own.read(LogPart::Journal, cut + self.journal.len() as u64)?;
            if piece.is_empty() {
                bail!("the journal has moved on while it was read: the rank has committed another checkpoint; run this again");
            }
            self.journal.extend_from_slice(&piece);
        }
        self.journal.truncate((end - cut) as usize);
        Ok(())
    }

    /// The image, last, and those that it builds upon, in files without names: nothing is left behind, however this command ends.
    fn fetch_images(&mut self, progress: &Progress) -> Result<Vec<File>> {
        progress.begin("fetching the images", Unit::Bytes, Some(self.images.iter().map(|image| image.bytes).sum()));
        let folder = std::env::temp_dir();
        let mut files = Vec::new();
        for image in &self.images {
            let mut options = File::options();
            options.read(true).write(true).mode(0o600).custom_flags(OFlag::O_TMPFILE.bits());
            let file = options.open(&folder).with_context(|| format!("{} takes no file for an image", folder.display()))?;
            let mut position = 0;
            while position < image.bytes {
                let piece = self.own.read(LogPart::Image(image.image), position)?;
                ensure!(!piece.is_empty(), "image {} has been replaced while it was read; run this again", image.image);
                (&file).write_all(&piece)?;
                position += piece.len() as u64;
                progress.advance(piece.len() as u64);
            }
            files.push(file);
        }
        Ok(files)
    }

    /// Answers the process until it goes no further. Whether it was served everything, and why it ended.
    fn serve(&mut self, talk: &mut Talk, child: &mut Child, progress: &Progress) -> Result<(bool, String)> {
        progress.begin("executing again, by the journal", Unit::Bytes, Some(self.journal.len() as u64));
        let mut settled = false;
        loop {
            let Some(message) = talk.hear()? else {
                let status = child.wait()?;
                return Ok((settled, format!("the process has ended: {status}")));
            };
            match message {
                ToReplayer::Restored { process, cut, .. } => {
                    ensure!(process == self.own.log.process, "the image is of {process}");
                    ensure!(cut == self.cut(), "the image stands at {cut} of the journal, not at {}", self.cut());
                    talk.say(&self.setup())?;
                }
                ToReplayer::FetchJournal { position, room } => {
                    let from = position.saturating_sub(self.cut()) as usize;
                    progress.reach(from as u64);
                    let rest = self.journal.get(from..).unwrap_or(&[]);
                    talk.say(&FromReplayer::Journal(rest[..rest.len().min(room as usize)].to_vec().into()))?;
                }
                ToReplayer::FetchPayload { stream, offset, room } => {
                    let bytes = self.own.received(stream, offset);
                    talk.say(&FromReplayer::Payload(bytes[..bytes.len().min(room as usize)].to_vec().into()))?;
                }
                ToReplayer::Sent { stream, offset, bytes } => {
                    progress.tick();
                    self.compare(stream, offset, &bytes)?;
                }
                ToReplayer::Settled => settled = true,
                ToReplayer::Ended(why) => return Ok((settled, why)),
            }
        }
    }

    fn setup(&self) -> FromReplayer {
        let log = &self.own.log;
        let held = log.streams.iter().map(|held| {
            let units = held.bytes.end + u64::from(held.ended == Some(held.bytes.end));
            (held.stream, units, held.ended)
        });
        FromReplayer::Setup { incarnation: log.incarnation.next(), log_end: log.journal.end, held: held.collect() }
    }

    fn compare(&mut self, stream: StreamId, offset: u64, again: &[u8]) -> Result<()> {
        let sent = self.sent.entry(stream).or_default();
        sent.from.get_or_insert(offset);
        sent.to = offset + again.len() as u64;
        // Its own log, too: a process may be connected to itself.
        let receiver =
            self.peers.values_mut().chain([&mut self.own]).find(|held| held.log.streams.iter().any(|held| held.stream == stream));
        let Some(receiver) = receiver else { return Ok(()) };
        let mut at = offset;
        while at < sent.to {
            let then = receiver.received(stream, at);
            if then.is_empty() {
                break; // Dropped by a commit of the receiver, or not there yet: it cannot be compared.
            }
            let now = &again[(at - offset) as usize..];
            let length = then.len().min(now.len());
            sent.compared += length as u64;
            let mut from = 0;
            for row in then[..length].iter().zip(now).collect::<Vec<_>>().chunk_by(|a, b| (a.0 == a.1) == (b.0 == b.1)) {
                let same = row[0].0 == row[0].1;
                sent.different += if same { 0 } else { row.len() as u64 };
                if !same && self.differences.len() < LISTED {
                    let offset = at + from;
                    let (then, now) = (hex(row.iter().map(|(then, _)| **then)), hex(row.iter().map(|(_, now)| **now)));
                    self.differences.push(Difference { stream: stream_text(&stream), offset, then, now });
                }
                from += row.len() as u64;
            }
            at += length as u64;
        }
        Ok(())
    }

    fn report(&self, complete: bool, ended: String, time: Duration) -> Report {
        let held = |stream: &StreamId| {
            let streams = self.peers.values().chain([&self.own]).flat_map(|held| &held.log.streams);
            streams.filter(|held| held.stream == *stream).map(|held| held.bytes.end).max().unwrap_or(0)
        };
        let streams = self.sent.iter().map(|(stream, sent)| StreamReport {
            stream: stream_text(stream),
            from: sent.from,
            to: sent.from.map(|_| sent.to),
            held: held(stream),
            compared: sent.compared,
            different: sent.different,
        });
        let streams: Vec<_> = streams.collect();
        Report {
            job: self.own.log.process.job.to_string(),
            rank: self.own.log.process.rank,
            image: self.images.last().map_or(0, |image| image.image),
            cut: self.cut(),
            end: self.own.log.journal.end,
            behind: self.behind,
            events: events(&self.journal),
            complete,
            ended,
            compared: streams.iter().map(|stream| stream.compared).sum(),
            different: streams.iter().map(|stream| stream.different).sum(),
            first_difference: self.differences.first().map(|first| format!("{} at {}", first.stream, first.offset)),
            differences: self.differences.clone(),
            streams,
            seconds: time.as_secs_f64(),
        }
    }
}

/// Up to where the log of another rank has the journal of this one among its causes. What that has forgotten meanwhile is in this one's log.
fn known_of(rank: Rank, held: &mut Held) -> u64 {
    let Span { start, end } = held.log.causes;
    let set = held.read_all(LogPart::Causes, start, (end - start) as usize, &mut || Ok(())).unwrap_or_default();
    let causes = causes::read(&set).map_while(Result::ok).filter(|cause| cause.origin() == rank);
    causes.map(|cause| cause.to()).max().unwrap_or(0)
}

/// The first bytes of a row, for people.
fn hex(bytes: impl Iterator<Item = u8>) -> String {
    bytes.take(SHOWN).map(|byte| format!("{byte:02x}")).collect()
}

/// The last committed image, after those that it builds upon.
fn chain(log: &HeldLog) -> Result<Vec<HeldImage>> {
    let find = |number| log.images.iter().find(|image| image.image == number).cloned();
    let last = log.images.iter().rfind(|image| image.state == ImageState::Committed);
    let mut images = vec![last.context("no checkpoint of this rank is committed: there is nothing to begin with")?.clone()];
    while let Some(parent) = images.last().and_then(|image| image.parent) {
        images.push(find(parent).with_context(|| format!("image {parent}, on which others build, is not held"))?);
        ensure!(images.len() <= 1 << 16, "images that build upon each other without end");
    }
    images.reverse();
    Ok(images)
}

/// How many outcomes a piece of journal has.
fn events(journal: &[u8]) -> u64 {
    let (mut from, mut count) = (Reader::new(journal), 0);
    while from.at() < journal.len() {
        match Determinant::read(&mut from) {
            Ok(determinant) => count += u64::from(!determinant.is_position()),
            Err(_) => break,
        }
    }
    count
}

fn text(report: &Report) -> String {
    let Report { rank, job, image, cut, end, events, .. } = report;
    let mut text = format!("rank {rank} of job {job}, from image {image}: journal {cut} to {end}, {events} events\n");
    if !report.streams.is_empty() {
        let mut table = Table::new(&["STREAM", ">SENT AGAIN FROM", ">TO", ">RECEIVER HAS", ">COMPARED", ">DIFFERENT"]);
        for stream in &report.streams {
            let number = |offset: Option<u64>| offset.map_or("-".to_owned(), |offset| offset.to_string());
            let row = [stream.stream.clone(), number(stream.from), number(stream.to)];
            let rest = [stream.held, stream.compared, stream.different].map(|count| count.to_string());
            table.row(row.into_iter().chain(rest).collect());
        }
        text += &format!("\n{}\n", table.text());
    }
    let first = report.first_difference.as_deref().unwrap_or("none");
    text += &format!("compared   {} ({})\n", report.compared, bytes(report.compared));
    text += &format!("different  {} (first: {first})\n", report.different);
    if report.behind > 0 {
        text += &format!(
            "behind     {} of its journal, which only the logs of others have: what it has sent by that is not compared\n",
            bytes(report.behind)
        );
    }
    text += &format!("ended      {} after {:.1} s\n", report.ended, report.seconds);
    text
}

const _: () = assert!(limits::LOG_CHUNK < FRAME);
