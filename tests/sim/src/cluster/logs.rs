//! The log service of one machine: the real [`LogServer`], with connections of the simulated network, and a disk and a verifier that take their time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use radic_protector::fetching::Offer;
use radic_protector::logserver::{
    self, Action, ConnectionNumber, Gone, LogServer, Next, Reason, Reply, Role, StoreOrder, Verification, What,
};
use radic_protector::node::Input;
use radic_protector::store::{self, File, NoRestart, Place, Restart, Speaker, StoreError};
use radic_wire::ids::{Incarnation, JobId, ProcessId};
use radic_wire::log::{FromProtector, LogPart, ToProtector};
use radic_wire::login::Channel;
use radic_wire::peer::Answer;

use super::counts::Breaks;
use super::images::code_of;
use super::net::{ConnId, Owner, Packet, Word, machine_of};
use super::outgoing::Line;
use super::queue::Event;
use super::world::World;

/// Bytes of one write, and of all that are on their way: few, so that much is under way when a machine dies.
const WRITE: usize = 256;
const WRITING: usize = 8 * WRITE;
/// Bytes that may wait for a connection, and for a replica: few, so that what comes from a process waits, too.
const ANSWERS: usize = 256;
const FORWARDS: usize = 256;
/// Bytes of an image that are sent at once.
const PIECE: usize = 16;

/// What the disk and the verifier have done, and times.
#[derive(Debug, Clone)]
pub enum Done {
    /// A write.
    Written(u64),
    /// A verification.
    Verified(Verification),
    /// A read, for this connection.
    Read(ConnectionNumber, File, u64, usize),
    /// The image that is to be sent on this connection is read.
    Opened(ConnectionNumber, Vec<u8>),
    /// There may be room for more in the socket of this connection.
    Room(ConnId),
    /// The server's next time.
    Timeout,
}

/// See the module's text.
pub struct Logs {
    /// The real thing.
    pub server: LogServer,
    /// What is on the disk.
    pub files: BTreeMap<File, Vec<u8>>,
    /// What is to be.
    writes: BTreeMap<u64, store::Write>,
    disk_free: Duration,
    /// When the server is called, as far as that is scheduled.
    timeout: Option<Duration>,
    /// The socket of each connection, and what waits for it.
    pub(super) lines: BTreeMap<ConnId, Line>,
    /// Connections for which something was queued.
    pub(super) touched: Vec<ConnId>,
    /// Connections that are to be read again.
    again: Vec<ConnId>,
    /// What has come on a connection and was not read.
    pub(super) waiting: BTreeMap<ConnId, VecDeque<Packet>>,
    /// For the judge: the incarnation that speaks for itself on a connection.
    speakers: BTreeMap<ConnId, Speaker>,
    /// As which incarnation a replica is logged in at.
    dialed: BTreeMap<ConnId, Speaker>,
    /// For the judge: processes that have said in their last hello that what is held lacks something, or is of an earlier incarnation.
    pub behind: BTreeSet<ProcessId>,
    /// For the judge: processes that were fenced for the next epoch of their job, or were heard in it where a log of an earlier epoch was held: what was held may go.
    pub of_before: BTreeSet<ProcessId>,
    /// For the judge: processes that have found, at their last hello, a log that another protector goes on with: this log restarts nothing, and begins again with nothing.
    pub let_go: BTreeSet<ProcessId>,
    /// For the judge: incarnations that have said hello here themselves since the machine was switched on.
    greeted: BTreeSet<Speaker>,
}

impl Logs {
    /// An empty one.
    pub fn new(store: store::Config) -> Logs {
        let bounds = logserver::Config {
            store,
            processes: 1_000,
            connections: 1_000,
            writing: WRITING,
            write: WRITE,
            answers: ANSWERS,
            forwards: FORWARDS,
        };
        Logs {
            server: LogServer::new(bounds),
            files: BTreeMap::new(),
            writes: BTreeMap::new(),
            disk_free: Duration::ZERO,
            timeout: None,
            lines: BTreeMap::new(),
            touched: Vec::new(),
            again: Vec::new(),
            waiting: BTreeMap::new(),
            speakers: BTreeMap::new(),
            dialed: BTreeMap::new(),
            behind: BTreeSet::new(),
            of_before: BTreeSet::new(),
            let_go: BTreeSet::new(),
            greeted: BTreeSet::new(),
        }
    }

    fn remove_files(&mut self, of: impl Fn(File) -> bool) {
        self.files.retain(|file, _| !of(*file));
        self.writes.retain(|_, write| !of(write.file));
    }

    /// The machine that replicates a process.
    pub fn replica(&self, process: ProcessId) -> Option<usize> {
        self.server.replica(process).map(machine_of)
    }

    /// Whether the job is over, as it was told.
    pub fn has_ended(&self, job: JobId) -> bool {
        self.server.has_ended(job)
    }

    /// For the judge: the bytes of a committed image.
    pub fn committed(&self, process: ProcessId, image: u64) -> Option<Vec<u8>> {
        let length = self.server.store().committed_image(process, image)? as usize;
        self.files.get(&File::Image(process, image))?.get(..length).map(<[u8]>::to_vec)
    }
}

/// As a log server would reply that takes more for stable than it has.
fn too_stable(reply: Reply) -> Reply {
    match reply {
        Reply::Answer(node, number, Answer::Stable(units)) => Reply::Answer(node, number, Answer::Stable(units + 1_000)),
        other => other,
    }
}

impl World {
    pub(super) fn logs(&mut self, at: usize) -> &mut Logs {
        &mut self.machines[at].logs
    }

    // ---- the node

    /// What the node orders.
    pub fn order_store(&mut self, at: usize, order: StoreOrder) {
        self.note_order(at, &order);
        let now = self.now;
        match order {
            StoreOrder::Fence(process, incarnation, sets, line) => {
                let sets = if self.breaks.unlearned { &[] } else { sets.as_slice() };
                self.fence(at, process, incarnation, sets, line);
            }
            StoreOrder::Read(node, number, process, part, position, most) => {
                let (after, read) = self.read_part(at, process, part, position, most);
                let (boot, read) = (self.machines[at].boot, Answer::LogBytes(read.map(Into::into)));
                self.schedule(self.now + after, Event::Input(at, boot, Box::new(Input::StoreAnswer(node, number, read))));
            }
            order => {
                let reply = self.logs(at).server.handle_order(now, order);
                let reply = reply.map(|reply| if self.breaks.stable { too_stable(reply) } else { reply });
                let name = self.machines[at].member.id.name.clone();
                reply.into_iter().for_each(|reply| self.input_soon(at, Input::reply(&name, reply)));
            }
        }
        self.serve_logs(at);
    }

    /// Some bytes of what a store holds, and how long that takes.
    fn read_part(
        &mut self,
        at: usize,
        process: ProcessId,
        part: LogPart,
        position: u64,
        most: usize,
    ) -> (Duration, Result<Vec<u8>, String>) {
        let logs = self.logs(at);
        match logs.server.store().find(process, part, position, most) {
            Some(Place::Memory(bytes)) => (super::LOCAL, Ok(bytes)),
            Some(Place::File(file, length)) => {
                let bytes = logs.files[&file][position as usize..][..length].to_vec();
                (self.disk_time(at), Ok(bytes))
            }
            None => (super::LOCAL, Err(format!("{part:?} of {process} is not held from {position}"))),
        }
    }

    /// Tells the checkers and the trace of an order.
    fn note_order(&mut self, at: usize, order: &StoreOrder) {
        let node = at + 1;
        match order {
            StoreOrder::SetReplica(process, address) => {
                self.trace(|| format!("n{node}: the replica of {process} is {address:?}"))
            }
            StoreOrder::LineComplete(_, _, line) => self.trace(|| format!("n{node}: recovery line {line} is complete")),
            StoreOrder::LinesGivenUp(_, _, after, to) => {
                self.trace(|| format!("n{node}: recovery lines after {after} to {to} are given up"));
            }
            StoreOrder::Fence(process, incarnation, sets, _) => {
                self.checks.handle_fence(*process, *incarnation);
                self.trace(|| format!("n{node} fences {process} below {incarnation}, and learns {} sets", sets.len()));
            }
            StoreOrder::Silence(process, incarnation) => {
                self.note_before(at, *process, *incarnation);
                self.checks.handle_fence(*process, *incarnation);
                self.trace(|| format!("n{node} refuses {process} below {incarnation}"));
            }
            _ => {}
        }
    }

    fn note_before(&mut self, at: usize, process: ProcessId, incarnation: Incarnation) {
        let logs = self.logs(at);
        let is_of_before = |held: Incarnation| held.epoch < incarnation.epoch;
        if logs.server.store().incarnation(process).is_some_and(is_of_before) {
            logs.of_before.insert(process);
        }
    }

    fn fence(&mut self, at: usize, process: ProcessId, incarnation: Incarnation, sets: &[Vec<u8>], line: u64) {
        let (now, breaks) = (self.now, self.breaks);
        self.note_before(at, process, incarnation);
        let logs = self.logs(at);
        if !breaks.fence {
            return logs.server.fence(now, process, incarnation, sets, line);
        }
        let mut other = logs.server.clone();
        other.fence(now, process, incarnation, sets, line);
        let fenced = std::iter::from_fn(|| other.poll_action()).find_map(|action| match action {
            Action::Fenced(_, _, result) => Some(result),
            _ => None,
        });
        self.fenced(at, process, incarnation, fenced.unwrap_or(Err(NoRestart::Unstable)));
    }

    fn fenced(&mut self, at: usize, process: ProcessId, incarnation: Incarnation, result: Result<Restart, NoRestart>) {
        let has_image = self.logs(at).server.store().has_image(process);
        let result = if self.breaks.hopeless { Err(NoRestart::NoImage) } else { result };
        if matches!(result, Err(NoRestart::NoImage)) && !has_image && self.checks.is_voice(process, incarnation) {
            self.checks.trouble_of(process).had_no_image = true;
        }
        if let Ok(restart) = &result {
            let boot = self.machines[at].boot;
            self.brought_back.insert(Speaker { process, incarnation }, (at, boot));
            self.checks.handle_restart(process, incarnation, restart);
        }
        self.trace(|| {
            format!("n{}: log of {process} for incarnation {incarnation}: {:?}", at + 1, result.as_ref().map(|r| r.log_end))
        });
        self.input_soon(at, Input::Fenced(process, incarnation, result));
    }

    // ---- the network

    /// Something came for the service.
    pub fn logs_arrive(&mut self, at: usize, conn: ConnId, packet: Packet) {
        let now = self.now;
        if let Packet::Syn = packet {
            if self.logs(at).server.handle_accepted(now, number(conn)) {
                self.open_line(at, conn);
            } else {
                self.close_log(at, conn);
            }
        } else if self.logs(at).server.role(number(conn)).is_some() {
            self.logs(at).waiting.entry(conn).or_default().push_back(packet);
            self.read_log(at, conn);
        }
        self.serve_logs(at);
    }

    /// Hands over what has come on a connection, as far as it is read.
    fn read_log(&mut self, at: usize, conn: ConnId) {
        while self.logs(at).server.may_read(number(conn)) {
            let Some(packet) = self.logs(at).waiting.get_mut(&conn).and_then(VecDeque::pop_front) else { return };
            self.make_room(conn, self.side_of_logs(at, conn));
            let next = match packet {
                Packet::Word(word) => self.take_word(at, conn, word),
                Packet::Ack => {
                    if let Some(speaker) = self.logs(at).dialed.get(&conn).copied() {
                        self.queue_word(at, conn, Word::Login(speaker, Channel::Replica));
                    }
                    Next::Read
                }
                Packet::End => self.lose_log(at, conn, Gone::Ended),
                Packet::Reset | Packet::Syn | Packet::Bytes(_) => self.lose_log(at, conn, Gone::Broke("reset")),
            };
            self.act_for_logs(at);
            if next != Next::Closed && !self.logs(at).server.may_go_on(number(conn)) {
                return;
            }
        }
    }

    /// A connection is gone: its other end has ended it, or it broke.
    pub(super) fn lose_log(&mut self, at: usize, conn: ConnId, why: Gone<'_>) -> Next {
        let now = self.now;
        self.logs(at).server.handle_closed(now, number(conn), why);
        self.close_log(at, conn);
        Next::Closed
    }

    fn close_log(&mut self, at: usize, conn: ConnId) {
        let logs = self.logs(at);
        logs.waiting.remove(&conn);
        logs.dialed.remove(&conn);
        logs.speakers.remove(&conn);
        logs.lines.remove(&conn);
        self.close(conn, self.side_of_logs(at, conn));
    }

    fn open_line(&mut self, at: usize, conn: ConnId) {
        let logs = self.logs(at);
        logs.lines.insert(conn, Line::new(logs.server.outgoing()));
    }

    /// One message. Both ends have the keys: there is no proof.
    fn take_word(&mut self, at: usize, conn: ConnId, word: Word) -> Next {
        let now = self.now;
        let server = &mut self.logs(at).server;
        let role = server.role(number(conn));
        match word {
            Word::Login(speaker, channel) => {
                let mut next = server.handle_login(now, number(conn), speaker.process.job);
                if next != Next::Closed {
                    next = server.handle_proven(now, number(conn), speaker, channel);
                }
                if next != Next::Closed {
                    if !matches!(channel, Channel::Replica | Channel::Fetch) {
                        self.logs(at).speakers.insert(conn, speaker);
                    }
                    self.queue_word(at, conn, Word::Admitted);
                }
                next
            }
            Word::Admitted => {
                server.handle_welcome(now, number(conn));
                Next::Read
            }
            Word::Wish(image) => {
                // Nothing more is read: the connection rests until it is the image's turn, or the server has it closed.
                _ = server.handle_wish(now, number(conn), image);
                Next::Closed
            }
            // The last record of an image. An end of the connection before it is none of the image.
            Word::ContentEnd => {
                server.handle_image_end(now, number(conn));
                Next::Closed
            }
            Word::Log(bytes) if matches!(role, Some(Role::Image(_, Some(_)))) => {
                let chunk = ToProtector::read(&bytes).expect("an observer's message");
                let ToProtector::ImageChunk { bytes, .. } = chunk else { unreachable!("{chunk:?} in the midst of an image") };
                server.handle_image_bytes(now, number(conn), bytes)
            }
            Word::Log(bytes) => {
                self.note_hello(at, conn, &bytes);
                self.logs(at).server.handle_frame(now, number(conn), &bytes)
            }
            word => unreachable!("{word:?} to {role:?}"),
        }
    }

    // ---- what the judge remembers

    fn note_hello(&mut self, at: usize, conn: ConnId, bytes: &[u8]) {
        let Ok(ToProtector::Hello { process, incarnation, journal, payload, committed, .. }) = ToProtector::read(bytes) else {
            return;
        };
        let role = self.logs(at).server.role(number(conn));
        if !matches!(role, Some(Role::Journal(..) | Role::Forwarder(..))) {
            return;
        }
        let held = self.logs(at).server.store().list(process).map(|held| (held.incarnation, held.journal, held.images));
        self.trace(|| {
            format!(
                "n{}: hello of {process}, incarnation {}, from {journal:?} {payload:?}, {role:?}, held {held:?}",
                at + 1,
                incarnation
            )
        });
        let logs = self.logs(at);
        // Its next incarnation began elsewhere: positions in its payload are not those of the incarnation that is held.
        let held = logs.server.store().incarnation(process);
        let is_of_before = held.is_some_and(|held| held < incarnation);
        if held.is_some_and(|held| held.epoch < incarnation.epoch) {
            // A replica is not fenced: it hears of the next epoch by the hello of an incarnation of that, which need not be the first one.
            logs.of_before.insert(process);
        }
        if is_of_before || logs.server.store().is_behind(process, journal.start, payload.start, committed) {
            logs.behind.insert(process);
        } else {
            logs.behind.remove(&process);
        }
        if is_of_before && logs.server.store().has_let_go(process) {
            logs.let_go.insert(process);
        } else {
            logs.let_go.remove(&process);
        }
        if let Some(Role::Journal(speaker, _)) = role {
            logs.greeted.insert(speaker);
        }
    }

    /// An incarnation that is listened to is never contradicted, and never unknown where it is protected. (At a replica it may be: the replica may have a log of a time when it was the
    /// protector, which the one before it in the chain catches up with. It is dialed again.)
    fn check_refusal(&self, at: usize, speaker: Speaker, error: &StoreError) {
        let Speaker { process, incarnation } = speaker;
        let logs = &self.machines[at].logs;
        let is_excused = match error {
            StoreError::Fenced { .. } => true,
            // It has gone on to another protector, which has had this one forget it, before its last words came; or it begins an image, and has not noticed yet that the machine was off meanwhile.
            StoreError::Stranger(of) => {
                self.is_protected_elsewhere(*of, at)
                    || *of == process && self.machines[at].boot > 0 && !logs.greeted.contains(&speaker)
            }
            // It catches up with a log that is lost: the machine was switched on again, under its old address, before any node has seen that it was off.
            StoreError::Contradiction { process: of, .. } => *of == process && self.is_of_a_lost_log(at, speaker),
        };
        assert!(is_excused || !self.checks.is_voice(process, incarnation), "store: {error}");
    }

    /// Whether this incarnation was begun from the log that this machine had before it was off.
    fn is_of_a_lost_log(&self, at: usize, speaker: Speaker) -> bool {
        self.brought_back.get(&speaker).is_some_and(|(by, boot)| *by == at && *boot < self.machines[at].boot)
    }

    // ---- what the server wants

    /// Does what the server wants, until it wants nothing more.
    pub fn serve_logs(&mut self, at: usize) {
        loop {
            self.act_for_logs(at);
            self.logs(at).server.handle_round();
            self.act_for_logs(at);
            let again = std::mem::take(&mut self.logs(at).again);
            if again.is_empty() {
                break;
            }
            again.into_iter().for_each(|conn| self.read_log(at, conn));
        }
        let logs = self.logs(at);
        logs.server.check_invariants();
        let next = logs.server.poll_timeout();
        if let Some(next) = next.filter(|next| logs.timeout.is_none_or(|at| *next < at)) {
            logs.timeout = Some(next);
            let boot = self.machines[at].boot;
            self.schedule(next.max(self.now), Event::Logs(at, boot, Done::Timeout));
        }
    }

    fn act_for_logs(&mut self, at: usize) {
        loop {
            while let Some(action) = self.logs(at).server.poll_action() {
                self.act_for_log(at, action);
            }
            let Some(conn) = self.logs(at).touched.pop() else { return };
            self.flush_log(at, conn);
        }
    }

    fn act_for_log(&mut self, at: usize, action: Action) {
        match action {
            Action::Answer(to, speaker, bytes) => {
                // What a copy has, its leader may be told; the process hears of it from the leader.
                if !self.logs(at).server.is_followed(speaker.process) {
                    self.checks.handle_answer(speaker, &FromProtector::read(&bytes).expect("the store's own message"));
                }
                self.queue_for_log(at, conn(to), |out| out.handle_answer(&bytes));
            }
            Action::Forward(to, precedence, bytes) => {
                self.queue_for_log(at, conn(to), |out| out.handle_forward(precedence, &bytes));
            }
            Action::Close(of, reason) => self.handle_log_closed(at, conn(of), &reason),
            Action::Resume(of) => self.logs(at).again.push(conn(of)),
            Action::Dial(speaker, address) => self.dial_replica(at, speaker, address),
            Action::Write(ticket, write) => {
                self.logs(at).writes.insert(ticket, write);
                let after = self.disk_time(at);
                self.logs_later(at, after, Done::Written(ticket));
            }
            Action::Read(to, file, position, length) => {
                let after = self.disk_time(at);
                self.logs_later(at, after, Done::Read(to, file, position, length));
            }
            Action::Truncate(file, position) => self.check_truncation(at, file, Some(position)),
            Action::Delete(file) => {
                self.check_truncation(at, file, None);
                self.logs(at).remove_files(|of| of == file);
            }
            Action::RemoveProcess(process) => self.logs(at).remove_files(|file| file.process() == process),
            Action::RemoveJob(job) => self.logs(at).remove_files(|file| file.process().job == job),
            Action::Verify(verification) => {
                let after = self.disk_time(at);
                self.logs_later(at, after, Done::Verified(verification));
            }
            Action::SendImage(to, process, image, bytes) => self.send_image(at, conn(to), (process, image), bytes),
            Action::Fenced(process, incarnation, result) => self.fenced(at, process, incarnation, result),
            Action::Tell(event) => {
                match (event.what, event.process) {
                    (What::LineReady(line), Some(process)) if self.breaks.early => {
                        let (now, epoch) = (self.now, self.checks.epoch);
                        self.logs(at).server.handle_line_complete(now, (process.job, epoch), line);
                    }
                    (What::Committed(image), Some(process)) => {
                        self.counts.commits += 1;
                        self.measure_image(process);
                        self.checks.trouble_of(process).restores = 0;
                        self.check_commit(at, process, image);
                        self.lose_images(at, process, image);
                    }
                    (What::Useless, _) => self.counts.went_back += 1,
                    _ => {}
                }
                self.input_soon(at, event.into());
            }
        }
    }

    /// What is done wrong on purpose with images once this one is committed: its parent is removed, or its file is lost.
    fn lose_images(&mut self, at: usize, process: ProcessId, image: u64) {
        let Breaks { pruned, lost, .. } = self.breaks;
        let held = self.logs(at).server.store().list(process);
        let parent = held.and_then(|held| held.images.iter().find(|of| of.image == image)?.parent);
        if let Some(parent) = parent.filter(|_| pruned) {
            self.check_truncation(at, File::Image(process, parent), None);
        }
        self.logs(at).remove_files(|file| lost && file == File::Image(process, image));
    }

    /// Sends an image, as the thread of a service does, as far as it is held when it is opened.
    fn send_image(&mut self, at: usize, conn: ConnId, (process, image): (ProcessId, u64), held: Option<u64>) {
        let file = File::Image(process, image);
        let found = held.and_then(|held| self.logs(at).files.get(&file)?.get(..held as usize)).map(<[u8]>::to_vec);
        let offer = Offer::of(held, found.as_ref().map(|image| Offer { bytes: image.len() as u64, code: code_of(image) }));
        self.send(conn, 1, Packet::Word(Word::Offer(Offer::encode(offer).to_vec())));
        let after = self.disk_time(at);
        let mut bytes = found.unwrap_or_default();
        let is_damaged = self.is_damaged_since(process, image);
        bytes.iter_mut().take(usize::from(is_damaged)).for_each(|byte| *byte ^= 64);
        self.logs_later(at, after, Done::Opened(number(conn), bytes));
    }

    fn send_content(&mut self, at: usize, conn: ConnId, image: &[u8]) {
        for piece in image.chunks(PIECE) {
            self.send(conn, 1, Packet::Word(Word::Content(piece.to_vec())));
        }
        if !image.is_empty() {
            self.send(conn, 1, Packet::Word(Word::ContentEnd));
        }
        self.close_log(at, conn);
        let now = self.now;
        self.logs(at).server.handle_image_sent(now, number(conn));
    }

    fn handle_log_closed(&mut self, at: usize, of: ConnId, reason: &Reason) {
        self.trace(|| format!("n{}: a connection to its logs is closed: {reason}", at + 1));
        if let (Reason::Store(error), Some(speaker)) = (reason, self.logs(at).speakers.get(&of).copied()) {
            self.check_refusal(at, speaker, error);
        }
        // What it was told last, as that it is fenced, goes if it can at once.
        self.flush_log(at, of);
        self.close_log(at, of);
    }

    fn dial_replica(&mut self, at: usize, speaker: Speaker, address: SocketAddr) {
        let owner = Owner::Logs(at, self.machines[at].boot);
        let conn = self.connect(owner, at, address);
        let now = self.now;
        if self.logs(at).server.handle_dialing(now, speaker.process, address, number(conn)) {
            self.open_line(at, conn);
            self.logs(at).dialed.insert(conn, speaker);
        } else {
            self.close_log(at, conn);
        }
    }

    // ---- disk, verifier, time

    pub(super) fn logs_later(&mut self, at: usize, after: Duration, done: Done) {
        let boot = self.machines[at].boot;
        self.schedule(self.now + after, Event::Logs(at, boot, done));
    }

    pub(super) fn disk_time(&mut self, at: usize) -> Duration {
        let most = self.machines[at].disk.as_micros() as usize;
        let time = Duration::from_micros(20 + self.dice.below(most) as u64);
        let now = self.now;
        let logs = self.logs(at);
        logs.disk_free = logs.disk_free.max(now) + time;
        logs.disk_free - now
    }

    /// The disk, the verifier or the clock.
    pub fn logs_done(&mut self, at: usize, done: Done) {
        let now = self.now;
        match done {
            Done::Written(ticket) => self.write(at, ticket),
            Done::Verified(verification) => self.verify(at, verification),
            Done::Read(to, file, position, length) => {
                let logs = self.logs(at);
                let bytes = logs.files.get(&file).and_then(|bytes| bytes.get(position as usize..position as usize + length));
                logs.server.handle_read(now, to, file, position, bytes.ok_or("it is not there"));
            }
            Done::Opened(to, image) => self.send_content(at, conn(to), &image),
            Done::Room(conn) => self.flush_log(at, conn),
            Done::Timeout => {
                let logs = self.logs(at);
                if logs.timeout.is_some_and(|at| at <= now) {
                    logs.timeout = None;
                }
                logs.server.handle_timeout(now);
            }
        }
        self.serve_logs(at);
    }

    fn write(&mut self, at: usize, ticket: u64) {
        let now = self.now;
        let logs = self.logs(at);
        let Some(write) = logs.writes.remove(&ticket) else { return };
        let file = logs.files.entry(write.file).or_default();
        let (from, to) = (write.position as usize, write.position as usize + write.bytes.len());
        file.resize(file.len().max(to), 0);
        file[from..to].copy_from_slice(&write.bytes);
        logs.server.handle_written(now, ticket);
    }

    fn verify(&mut self, at: usize, of: Verification) {
        // Now and then a bit has flipped on the way.
        let is_damaged = self.goes_wrong(self.plan.bad_images);
        let Some(bytes) = self.logs(at).files.get_mut(&File::Image(of.process, of.image)) else { return };
        bytes.iter_mut().take(usize::from(is_damaged)).for_each(|byte| *byte ^= 64);
        let bytes = bytes.clone();
        let is_good = self.saved_of(&bytes).is_some() || self.breaks.image;
        let now = self.now;
        self.logs(at).server.handle_verdict(now, of, if is_good { Ok(()) } else { Err("damaged".into()) });
    }
}

pub(super) fn number(conn: ConnId) -> ConnectionNumber {
    conn as ConnectionNumber
}

fn conn(number: ConnectionNumber) -> ConnId {
    number as ConnId
}
