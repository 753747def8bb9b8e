//! `radic log show`: what is held of one rank: its journal, what it received, its checkpoints.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use radic_wire::bytes::Reader;
use radic_wire::determinant::{CLOCK_NAMES, Determinant, StreamId};
use radic_wire::ids::{NodeName, Rank};
use radic_wire::job::JobInfo;
use radic_wire::limits;
use radic_wire::local::{Reply, Request};
use radic_wire::log::{HeldLog, ImageState, LogPart};
use radic_wire::span::Span;
use serde_json::{Value, json};

use crate::client::{self, Cluster, Connection};
use crate::format::{Table, bytes, print, print_json};

/// Streams of which a piece is kept: 16 MiB at most.
const PIECES: usize = 64;

/// What can be done with logs.
#[derive(Subcommand)]
pub(crate) enum LogCommand {
    /// Show what is held of a rank: the positions of its journal, the streams that it received, its checkpoints
    #[command(after_help = "Example:\n  radic log show 4f3c 0 --events\n\n\
        A log begins at the cut of the newest committed checkpoint, unless the job was started with --keep-logs; then it can be read \
        after the job's end, too. With --json and --events each event is one line, after one for the rest.")]
    Show {
        /// The job, or its first digits
        job: String,
        /// The rank
        rank: u32,
        /// Each outcome of its journal, on a line of its own
        #[arg(long)]
        events: bool,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

/// `radic log`.
pub(crate) fn dispatch(cluster: &Cluster, command: LogCommand) -> Result<()> {
    let LogCommand::Show { job, rank, events, json } = command;
    let mut held = Held::open(cluster, job, Rank(rank))?;
    match (json, events) {
        (true, false) => print_json(&json!({ "node": held.node, "log": held.log }))?,
        (true, true) => print(&format!("{}\n", json!({ "node": held.node, "log": held.log })))?,
        (false, _) => print(&summary(&held.node, &held.log))?,
    }
    if events { show_events(&mut held, json) } else { Ok(()) }
}

/// The log of a rank, open for reading.
pub(crate) struct Held {
    connection: Connection,
    /// The node that holds it.
    pub(crate) node: NodeName,
    /// What there is.
    pub(crate) log: HeldLog,
    /// The piece of each stream that was read last, from this offset on: a process takes its bytes in pieces of some 10 B, the log gives them in pieces of 256 KiB.
    pieces: BTreeMap<StreamId, (u64, Vec<u8>)>,
}

impl Held {
    /// Finds the log of a rank of `job`, which may be the first digits of one.
    pub(crate) fn open(cluster: &Cluster, job: String, rank: Rank) -> Result<Self> {
        let mut connection = cluster.connect(None)?;
        match connection.ask(&Request::Log { job, rank }, client::ANSWER)? {
            Reply::Log(node, log) => Ok(Held { connection, node, log, pieces: BTreeMap::new() }),
            other => Err(connection.unexpected(&other).into()),
        }
    }

    /// What is known of its job.
    pub(crate) fn job(&self, cluster: &Cluster) -> Result<JobInfo> {
        let mut connection = cluster.connect(None)?;
        match connection.ask(&Request::Status, client::ANSWER)? {
            Reply::Status(status) => {
                let job = status.jobs.into_iter().find(|job| job.job == self.log.process.job);
                job.with_context(|| format!("no node knows job {} any more", self.log.process.job))
            }
            other => Err(connection.unexpected(&other).into()),
        }
    }

    /// Some bytes of a part from this position on; none at the end of what is held.
    pub(crate) fn read(&mut self, part: LogPart, position: u64) -> Result<Vec<u8>> {
        match self.connection.ask(&Request::ReadLog { part, position }, client::ANSWER)? {
            Reply::LogBytes(bytes) if bytes.len() <= limits::LOG_CHUNK => Ok(bytes.into_vec()),
            other => Err(self.connection.unexpected(&other).into()),
        }
    }

    /// So many bytes of a part from this position on. `got_on` is called after each piece.
    pub(crate) fn read_all(
        &mut self,
        part: LogPart,
        position: u64,
        length: usize,
        got_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let piece = self.read(part, position + bytes.len() as u64)?;
            ensure!(!piece.is_empty(), "{part:?} is not held from {position} on, {length} bytes of it should be");
            bytes.extend(piece);
            got_on()?;
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// The received bytes of `stream` from `offset` on, as many as are here; none if they are not held (any more).
    pub(crate) fn received(&mut self, stream: StreamId, offset: u64) -> &[u8] {
        let is_here = |(start, bytes): &(u64, Vec<u8>)| (*start..start + bytes.len() as u64).contains(&offset);
        if !self.pieces.get(&stream).is_some_and(is_here) {
            let bytes = self.read(LogPart::Stream(stream), offset).unwrap_or_default();
            if self.pieces.len() == PIECES {
                self.pieces.clear();
            }
            self.pieces.insert(stream, (offset, bytes));
        }
        let (start, bytes) = &self.pieces[&stream];
        &bytes[(offset - start) as usize..]
    }
}

fn span(span: Span) -> String {
    format!("{} to {} ({})", span.start, span.end, bytes(span.end.saturating_sub(span.start)))
}

fn summary(node: &NodeName, log: &HeldLog) -> String {
    let process = log.process;
    let mut text = format!("rank {} of job {}, incarnation {}, held by {node}\n", process.rank, process.job, log.incarnation);
    _ = writeln!(text, "journal   {}, acknowledged up to {}", span(log.journal), log.stable);
    if !log.images.is_empty() {
        let mut table = Table::new(&[">IMAGE", ">PARENT", ">CUT", ">SIZE", "STATE"]);
        for image in &log.images {
            let parent = image.parent.map_or("-".to_owned(), |parent| parent.to_string());
            let state = match image.state {
                ImageState::UnderWay => "under way",
                ImageState::Committed => "committed",
                ImageState::Superseded => "superseded",
            };
            table.row(vec![image.image.to_string(), parent, image.cut.to_string(), bytes(image.bytes), state.to_owned()]);
        }
        _ = write!(text, "\n{}", table.text());
    }
    if !log.streams.is_empty() {
        let mut table = Table::new(&["STREAM", ">FROM", ">TO", ">SIZE", "ENDED"]);
        for held in &log.streams {
            let Span { start, end } = held.bytes;
            let ended = held.ended.map_or("-".to_owned(), |at| format!("at {at}"));
            let row = [stream_text(&held.stream), start.to_string(), end.to_string(), bytes(end.saturating_sub(start)), ended];
            table.row(row.into());
        }
        _ = write!(text, "\n{}", table.text());
    }
    text
}

/// A stream in short: the opener of the connection, its number, and the direction.
pub(crate) fn stream_text(stream: &StreamId) -> String {
    let direction = if stream.from_opener { "from its opener" } else { "to its opener" };
    format!("{}#{} {direction}", stream.connection.opener, stream.connection.number)
}

/// Reads the journal in pieces; an outcome may lie across two.
fn show_events(held: &mut Held, json: bool) -> Result<()> {
    let Span { start, end } = held.log.journal;
    let (mut position, mut rest) = (start, Vec::new());
    let mut text = if json { String::new() } else { "\n".to_owned() };
    while position + (rest.len() as u64) < end {
        let piece = held.read(LogPart::Journal, position + rest.len() as u64)?;
        if piece.is_empty() {
            break; // A commit has dropped it, or a process that begins anew.
        }
        rest.extend_from_slice(&piece);
        let used = lines(&rest, position, json, &mut text)?;
        rest.drain(..used);
        position += used as u64;
        print(&std::mem::take(&mut text))?;
    }
    match rest.len() {
        0 => Ok(()),
        left => bail!("the journal ends within an outcome: {left} bytes at {position}"),
    }
}

/// Adds a line for each outcome that is whole; returns how many bytes these are.
fn lines(journal: &[u8], position: u64, json: bool, text: &mut String) -> Result<usize> {
    let mut reader = Reader::new(journal);
    let mut used = 0;
    while used < journal.len() {
        let determinant = match Determinant::read(&mut reader) {
            Ok(determinant) => determinant,
            // The longest that there is would be whole.
            Err(error) if journal.len() - used >= limits::DETERMINANT => {
                bail!("the journal at {}: {error}", position + used as u64)
            }
            Err(_) => break,
        };
        let at = position + used as u64;
        let (kind, fields) = describe(&determinant);
        if json {
            _ = writeln!(text, "{}", json!({ "position": at, "event": kind, "fields": fields }));
        } else {
            let fields = fields.as_object().into_iter().flatten();
            let words: String = fields.map(|(name, value)| format!(" {name} {}", value.to_string().replace('"', ""))).collect();
            _ = writeln!(text, "{at:>12}  {kind:<9}{words}");
        }
        used = reader.at();
    }
    Ok(used)
}

/// An outcome: its kind, and the rest.
fn describe(determinant: &Determinant<'_>) -> (&'static str, Value) {
    match *determinant {
        Determinant::Recv { fd, len } => ("recv", json!({ "fd": fd, "bytes": len })),
        Determinant::Peek { fd, len } => ("peek", json!({ "fd": fd, "bytes": len })),
        Determinant::Unread { fd, len } => ("unread", json!({ "fd": fd, "bytes": len })),
        Determinant::Eof { fd } => ("eof", json!({ "fd": fd })),
        Determinant::Errno { fd, call, errno } => {
            ("errno", json!({ "fd": fd, "call": format!("{call:?}").to_lowercase(), "errno": errno }))
        }
        Determinant::Accept { listener, fd, connection, peer } => {
            let connection = format!("{}#{}", connection.opener, connection.number);
            ("accept", json!({ "listener": listener, "fd": fd, "peer": peer.to_string(), "connection": connection }))
        }
        Determinant::Bound { fd, address } => ("bound", json!({ "fd": fd, "address": address.to_string() })),
        Determinant::Target { fd, local, peer } => {
            ("target", json!({ "fd": fd, "local": local.to_string(), "peer": peer.map(|peer| peer.to_string()) }))
        }
        Determinant::Connected { fd } => ("connected", json!({ "fd": fd })),
        Determinant::SoError { fd, errno } => ("so-error", json!({ "fd": fd, "errno": errno })),
        Determinant::Ready { epoll, set } => {
            let ready: Vec<_> = set.iter().map(|ready| json!([ready.fd, ready.events])).collect();
            ("ready", json!({ "epoll": epoll, "set": ready }))
        }
        Determinant::SendPart { fd, len } => ("send-part", json!({ "fd": fd, "bytes": len })),
        Determinant::Input { bytes } => ("input", json!({ "bytes": bytes.len() })),
        Determinant::Nothing => ("nothing", json!({})),
        Determinant::Taken => ("taken", json!({})),
        Determinant::Refused { connection, opened_here } => {
            let connection = format!("{}#{}", connection.opener, connection.number);
            ("refused", json!({ "connection": connection, "opened_here": opened_here }))
        }
        Determinant::Time { clock, skipped, difference } => {
            let clock = CLOCK_NAMES.get(clock as usize).copied().unwrap_or("?");
            ("time", json!({ "clock": clock, "skipped": skipped, "difference_ns": difference }))
        }
        Determinant::Kernel { call, bytes } => {
            ("kernel", json!({ "call": format!("{call:?}").to_lowercase(), "bytes": bytes.len() }))
        }
        Determinant::Empty { count } => ("empty", json!({ "count": count })),
        Determinant::Sent { bytes } => ("sent", json!({ "bytes": bytes })),
        Determinant::Own { bytes } => ("own", json!({ "bytes": bytes })),
        Determinant::Thread { index } => ("thread", json!({ "index": index })),
        Determinant::Begins { index, name } => ("begins", json!({ "index": index, "name": format!("{name:016x}") })),
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::bytes::Writer;
    use radic_wire::determinant::{ReadyFd, ReadySet};

    use super::*;

    #[test]
    fn outcomes_are_lines_and_the_last_may_come_in_two_pieces() {
        let ready = [ReadyFd { fd: 5, events: 1 }, ReadyFd { fd: 9, events: 4 }];
        let all = [
            Determinant::Empty { count: 3 },
            Determinant::Ready { epoll: Some(4), set: ReadySet::new(&ready).unwrap() },
            Determinant::Recv { fd: 5, len: 64 },
        ];
        let mut journal = [0; 100];
        let mut writer = Writer::new(&mut journal);
        all.iter().for_each(|determinant| determinant.write(&mut writer));
        let length = writer.finish().unwrap();
        let mut text = String::new();
        let used = lines(&journal[..length - 1], 1000, false, &mut text).unwrap();
        assert!(used < length && text.lines().count() == 2, "{text}");
        let rest = lines(&journal[used..length], 1000 + used as u64, true, &mut text).unwrap();
        assert_eq!(used + rest, length);
        let shown: Vec<&str> = text.lines().collect();
        assert_eq!(shown[0], "        1000  empty     count 3");
        assert_eq!(shown[1], "        1001  ready     epoll 4 set [[5,1],[9,4]]");
        let last: Value = serde_json::from_str(shown[2]).unwrap();
        assert_eq!((&last["event"], &last["fields"]["bytes"]), (&json!("recv"), &json!(64)));
        let nonsense = [0x0d; limits::DETERMINANT];
        assert!(lines(&nonsense, 0, false, &mut text).is_err(), "no outcome, and longer than any");
    }
}
