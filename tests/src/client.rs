//! A protector's unix socket, spoken to directly: one given node answers, not just any.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use radic_wire::event::Event;
use radic_wire::frame::{self, FrameReader};
use radic_wire::local::{ClusterStatus, Reply, Request, SOCKET_NAME};
use radic_wire::{PROTOCOL_VERSION, codec, limits};

/// Time that a protector has for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// A connection that has said hello.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    frames: FrameReader,
}

impl Client {
    /// Connects to the protector that has its socket in `node_dir`.
    pub fn connect(node_dir: &Path) -> io::Result<Client> {
        let mut client = Client { stream: connect(node_dir)?, frames: FrameReader::new(limits::LOCAL_FRAME) };
        match client.ask(&Request::Hello { version: PROTOCOL_VERSION })? {
            Reply::Welcome { .. } => Ok(client),
            other => Err(io::Error::other(format!("{other:?} instead of a welcome"))),
        }
    }

    /// Sends a request.
    pub fn send(&mut self, request: &Request) -> io::Result<()> {
        let body = codec::encode(request, limits::LOCAL_FRAME).map_err(io::Error::other)?;
        let mut bytes = Vec::new();
        frame::encode_into(&mut bytes, &body, limits::LOCAL_FRAME);
        self.stream.write_all(&bytes)
    }

    /// Sends a request and waits for a reply.
    pub fn ask(&mut self, request: &Request) -> io::Result<Reply> {
        self.send(request)?;
        self.reply(Instant::now() + ANSWER)?.ok_or_else(|| io::ErrorKind::TimedOut.into())
    }

    /// The state of the cluster as this protector sees it.
    pub fn status(mut self) -> io::Result<ClusterStatus> {
        match self.ask(&Request::Status)? {
            Reply::Status(status) => Ok(status),
            other => Err(io::Error::other(format!("{other:?} instead of a status"))),
        }
    }

    /// The next reply; none if it does not come in time.
    pub fn reply(&mut self, deadline: Instant) -> io::Result<Option<Reply>> {
        loop {
            if let Some(body) = self.frames.next_frame().map_err(io::Error::other)? {
                return codec::decode(body, limits::LOCAL_FRAME).map(Some).map_err(io::Error::other);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut buffer = [0; 16 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.frames.push(&buffer[..count]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Connects without a word. A cluster's directory may be deeper than a socket address is long, so the way is by the open directory.
pub fn connect(node_dir: &Path) -> io::Result<UnixStream> {
    let dir = OpenOptions::new().read(true).custom_flags((OFlag::O_PATH | OFlag::O_DIRECTORY).bits()).open(node_dir)?;
    UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET_NAME}", dir.as_raw_fd()))
}

/// The events of a cluster as they happen, the past ones first.
#[derive(Debug)]
pub struct Events {
    client: Client,
    seen: Vec<Event>,
    /// How many of `seen` were looked at by [`Events::wait`].
    next: usize,
}

impl Events {
    /// Follows them at this connection's protector.
    pub fn follow(mut client: Client) -> io::Result<Events> {
        client.send(&Request::Events { follow: true })?;
        Ok(Events { client, seen: Vec::new(), next: 0 })
    }

    /// The next event that matches, each being looked at once; none if it does not come in time.
    ///
    /// # Panics
    /// If the protector is gone.
    pub fn wait(&mut self, limit: Duration, mut matches: impl FnMut(&Event) -> bool) -> Option<Event> {
        let deadline = Instant::now() + limit;
        loop {
            while let Some(event) = self.seen.get(self.next) {
                self.next += 1;
                if matches(event) {
                    return Some(event.clone());
                }
            }
            match self.client.reply(deadline) {
                Ok(Some(Reply::Events(events))) => self.seen.extend(events),
                Ok(None) => return None,
                other => panic!("events cannot be followed any more: {other:?}"),
            }
        }
    }

    /// The next event that matches.
    ///
    /// # Panics
    /// If it does not come in time.
    pub fn expect(&mut self, what: &str, limit: Duration, matches: impl FnMut(&Event) -> bool) -> Event {
        self.wait(limit, matches).unwrap_or_else(|| {
            let last: Vec<_> = self.seen.iter().rev().take(20).rev().map(describe).collect();
            panic!("no event within {limit:.1?}: {what}; the last ones:\n{}", last.join("\n"))
        })
    }

    /// All events so far.
    pub fn seen(&self) -> &[Event] {
        &self.seen
    }
}

/// An event in one line.
pub fn describe(event: &Event) -> String {
    let subject = event.subject.as_ref().map(|node| format!(" {node}")).unwrap_or_default();
    format!("  {} {}: {}{subject}: {}", event.at_ms, event.node, event.event.as_str(), event.text)
}
