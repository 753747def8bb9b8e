//! The log service of one machine: the real [`Store`], driven as `protector/src/logs` drives it, with a disk that takes its time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use radic_protector::node::Input;
use radic_protector::node::stores::StoreOrder;
use radic_protector::store::{self, File, NoRestart, Notice, Output, Speaker, Store, StoreError};
use radic_wire::event::EventName;
use radic_wire::ids::{Incarnation, JobId, ProcessId};
use radic_wire::log::{FromProtector, ToProtector};
use radic_wire::login::Channel;
use radic_wire::peer::Answer;
use radic_wire::process::Protection;

use super::net::{ConnId, Owner, Packet, Word, machine_of};
use super::world::{Event, World, code};

/// Time that the log of a lost process has to become stable, and until it is asked again, as in `daemon/stores.rs`.
const STABLE: (Duration, Duration) = (Duration::from_secs(90), Duration::from_millis(5));
/// Time until a replica is tried again: as in `logs/replicas.rs`, but that it does not grow.
const DIAL_AGAIN: Duration = Duration::from_millis(50);

/// What a connection is for.
#[derive(Debug, Clone)]
pub enum Role {
    /// It has not said.
    Unproven,
    /// The journal's; whether its hello came.
    Journal(Speaker, bool),
    /// Payload.
    Bulk(Speaker),
    /// An image: its number, once that was said, and how much has come.
    Image(Speaker, Option<u64>, u64),
    /// To the next of the chain; whether it is logged in.
    Replica(ProcessId, bool),
    /// From the one before in the chain.
    Forwarder(ProcessId, Option<Speaker>),
    /// Somebody who fetches an image.
    Fetcher(ProcessId),
}

impl Role {
    fn process(&self) -> Option<ProcessId> {
        match self {
            Role::Unproven => None,
            Role::Journal(speaker, _) | Role::Bulk(speaker) | Role::Image(speaker, ..) => Some(speaker.process),
            Role::Replica(process, _) | Role::Forwarder(process, _) | Role::Fetcher(process) => Some(*process),
        }
    }

    fn speaker(&self) -> Option<Speaker> {
        match self {
            Role::Journal(speaker, _) | Role::Bulk(speaker) | Role::Image(speaker, ..) => Some(*speaker),
            _ => None,
        }
    }
}

/// What the disk and the verifier have done, and times.
#[derive(Debug, Clone)]
pub enum Done {
    /// A write.
    Written(u64),
    /// A verification.
    Verified(ProcessId, u64, u64),
    /// A read, for this connection.
    Fetched(ConnId, File, u64, usize),
    /// It is asked once more whether a log is stable.
    Fence(ProcessId, Incarnation, Duration),
    /// A replica is dialed.
    Dial(ProcessId),
}

/// See the module's text.
pub struct Logs {
    /// The real thing.
    pub store: Store,
    /// What is on the disk.
    pub files: BTreeMap<File, Vec<u8>>,
    writes: BTreeMap<u64, store::Write>,
    ticket: u64,
    disk_free: Duration,
    roles: BTreeMap<ConnId, Role>,
    waiting: BTreeMap<ConnId, VecDeque<Packet>>,
    voices: BTreeMap<Speaker, ConnId>,
    replicas: BTreeMap<ProcessId, (SocketAddr, Option<ConnId>)>,
    followed: BTreeSet<ProcessId>,
    /// Whose last hello said that what is held lacks something, or is of a life before.
    pub behind: BTreeSet<ProcessId>,
    /// Who was fenced for a life of its job that begins anew, or was heard in it where a life of before was held: what was held may go.
    pub of_before: BTreeSet<ProcessId>,
    /// As `Service::is_member`.
    pub is_member: bool,
    jobs: BTreeMap<JobId, Protection>,
    told: BTreeSet<ProcessId>,
    /// Who has said hello here itself since the machine was switched on.
    greeted: BTreeSet<Speaker>,
    ended: Vec<JobId>,
    verifying: BTreeMap<(ProcessId, u64), Option<u64>>,
}

impl Logs {
    /// An empty one.
    pub fn new(config: store::Config) -> Logs {
        Logs {
            store: Store::new(config),
            files: BTreeMap::new(),
            writes: BTreeMap::new(),
            ticket: 0,
            disk_free: Duration::ZERO,
            roles: BTreeMap::new(),
            waiting: BTreeMap::new(),
            voices: BTreeMap::new(),
            replicas: BTreeMap::new(),
            followed: BTreeSet::new(),
            behind: BTreeSet::new(),
            of_before: BTreeSet::new(),
            is_member: false,
            jobs: BTreeMap::new(),
            told: BTreeSet::new(),
            greeted: BTreeSet::new(),
            ended: Vec::new(),
            verifying: BTreeMap::new(),
        }
    }

    fn has_room(&self, role: &Role) -> bool {
        match role {
            Role::Journal(speaker, false) if !self.told.contains(&speaker.process) => false,
            Role::Journal(speaker, _) => self.store.has_room_for_journal(speaker.process),
            Role::Bulk(speaker) => self.store.has_room_for_payload(speaker.process),
            Role::Image(speaker, ..) => self.store.has_room(speaker.process),
            Role::Forwarder(process, _) => self.store.has_room(*process),
            _ => true,
        }
    }

    fn cancel_writes(&mut self, gone: impl Fn(&File) -> bool) {
        self.writes.retain(|_, write| !gone(&write.file));
    }

    /// The machine that replicates a process; who follows has none.
    pub fn replica(&self, process: ProcessId) -> Option<usize> {
        let replica = self.replicas.get(&process).filter(|_| !self.followed.contains(&process));
        replica.map(|(address, _)| machine_of(*address))
    }

    /// Whether the job is over, as it was told.
    pub fn has_ended(&self, job: JobId) -> bool {
        self.ended.contains(&job)
    }

    /// The bytes of a committed image.
    pub fn committed(&self, process: ProcessId, image: u64) -> Option<Vec<u8>> {
        let length = self.store.committed_image(process, image)? as usize;
        self.files.get(&File::Image(process, image)).filter(|bytes| bytes.len() >= length).map(|bytes| bytes[..length].to_vec())
    }
}

fn message(write: impl FnOnce(&mut radic_wire::bytes::Writer<'_>)) -> Packet {
    Packet::Word(Word::Log(code(write)))
}

impl World {
    fn logs(&mut self, at: usize) -> &mut Logs {
        &mut self.machines[at].logs
    }

    /// What the node orders.
    pub fn order_store(&mut self, at: usize, order: StoreOrder) {
        let answer = match order {
            StoreOrder::Configure(job, protection) => {
                let logs = self.logs(at);
                for process in logs.store.of_job(job) {
                    logs.store.configure(process, protection.log, protection.keep_logs);
                }
                logs.jobs.insert(job, protection);
                None
            }
            StoreOrder::SetReplica(process, address) => {
                self.trace(|| format!("n{}: the replica of {process} is {address:?}", at + 1));
                self.set_replica(at, process, address);
                self.listen_to(at, process);
                None
            }
            StoreOrder::LetGo(process) => {
                self.logs(at).store.let_go(process);
                None
            }
            StoreOrder::TakeOver(process) => {
                self.logs(at).store.take_over(process);
                self.listen_to(at, process);
                None
            }
            StoreOrder::RemoveJob(job) => {
                self.remove_job(at, job);
                None
            }
            StoreOrder::Fence(process, life) => {
                let until = self.now + STABLE.0;
                self.checks.handle_fence(process, life);
                self.trace(|| format!("n{} fences {process} below {}", at + 1, life.0));
                self.listen_to(at, process);
                self.fence(at, process, life, until);
                None
            }
            StoreOrder::ForgetProcess(node, number, process) => {
                self.silence(at, |of| of == process);
                self.remove_process(at, process);
                Some((node, number, Answer::Forgotten))
            }
            StoreOrder::StableOf(node, number, process, life, stream) => {
                let more = if self.breaks.stable { 1_000 } else { 0 };
                Some((node, number, Answer::Stable(self.logs(at).store.stable_in(process, life, stream) + more)))
            }
            StoreOrder::Sizes(node, number, _) => Some((node, number, Answer::Sizes(Vec::new()))),
            StoreOrder::List(node, number, process) => Some((node, number, Answer::Log(self.logs(at).store.list(process)))),
            StoreOrder::Revive(..) | StoreOrder::Read(..) => unreachable!("nobody resumes or reads logs in this simulation"),
        };
        if let Some((node, number, answer)) = answer {
            self.input_soon(at, Input::StoreAnswer(node, number, answer));
        }
        self.serve_logs(at);
    }

    /// Whoever waits to be heard goes on.
    fn listen_to(&mut self, at: usize, process: ProcessId) {
        if self.logs(at).told.insert(process) {
            self.resume_logs(at);
        }
    }

    fn remove_process(&mut self, at: usize, process: ProcessId) {
        let logs = self.logs(at);
        logs.store.remove(process);
        logs.files.retain(|file, _| file.process() != process);
        logs.cancel_writes(|file| file.process() == process);
        logs.verifying.retain(|(of, _), _| *of != process);
    }

    fn remove_job(&mut self, at: usize, job: JobId) {
        self.silence(at, |of| of.job == job);
        let logs = self.logs(at);
        logs.jobs.remove(&job);
        logs.told.retain(|process| process.job != job);
        logs.replicas.retain(|process, _| process.job != job);
        logs.followed.retain(|process| process.job != job);
        logs.store.of_job(job).into_iter().for_each(|process| logs.store.remove(process));
        logs.files.retain(|file, _| file.process().job != job);
        logs.cancel_writes(|file| file.process().job == job);
        logs.verifying.retain(|(process, _), _| process.job != job);
        logs.ended.push(job);
    }

    fn fence(&mut self, at: usize, process: ProcessId, life: Incarnation, until: Duration) {
        let is_of_before = |held: Incarnation| held.first_of_job() < life.first_of_job();
        if self.logs(at).store.incarnation(process).is_some_and(is_of_before) {
            self.logs(at).of_before.insert(process);
        }
        let result = if self.breaks.fence {
            self.logs(at).store.clone().restart(process, life)
        } else {
            let result = self.logs(at).store.restart(process, life);
            self.close_fenced(at, process, life);
            result
        };
        if result == Err(NoRestart::Unstable) && self.now < until {
            self.logs_later(at, STABLE.1, Done::Fence(process, life, until));
        } else {
            if let Ok(restart) = &result {
                let boot = self.machines[at].boot;
                self.brought_back.insert(Speaker { process, incarnation: life }, (at, boot));
                self.checks.handle_restart(process, life, restart);
            }
            self.trace(|| format!("n{}: log of {process} for life {}: {:?}", at + 1, life.0, result.as_ref().map(|r| r.log_end)));
            self.input_soon(at, Input::Fenced(process, life, result));
        }
    }

    fn close_fenced(&mut self, at: usize, process: ProcessId, newest: Incarnation) {
        let old = |role: &Role| role.speaker().is_some_and(|s| s.process == process && s.incarnation < newest);
        let theirs: Vec<(ConnId, bool)> = (self.logs(at).roles.iter())
            .filter(|(_, role)| old(role))
            .map(|(conn, role)| (*conn, matches!(role, Role::Journal(..))))
            .collect();
        for (conn, journal) in theirs {
            if journal {
                self.send(conn, 1, message(|out| FromProtector::Fenced { newest }.write(out)));
            }
            self.close_log(at, conn);
        }
    }

    fn silence(&mut self, at: usize, of: impl Fn(ProcessId) -> bool) {
        let theirs: Vec<ConnId> =
            self.logs(at).roles.iter().filter(|(_, role)| role.process().is_some_and(&of)).map(|(conn, _)| *conn).collect();
        theirs.into_iter().for_each(|conn| self.close_log(at, conn));
    }

    fn close_log(&mut self, at: usize, conn: ConnId) {
        let logs = self.logs(at);
        let Some(role) = logs.roles.remove(&conn) else { return };
        logs.waiting.remove(&conn);
        logs.voices.retain(|_, of| *of != conn);
        match role {
            Role::Image(speaker, Some(image), _) if logs.store.takes_image(speaker.process, image) => {
                logs.store.refuse_image(speaker.process, image);
            }
            Role::Replica(process, _) => {
                if let Some((_, token)) = logs.replicas.get_mut(&process).filter(|(_, token)| *token == Some(conn)) {
                    *token = None;
                    self.logs_later(at, DIAL_AGAIN, Done::Dial(process));
                }
            }
            _ => {}
        }
        let owner = Owner::Logs(at, self.machines[at].boot);
        let side = usize::from(self.net.conns[conn].ends[0].owner != owner);
        self.close(conn, side);
    }

    fn logs_later(&mut self, at: usize, after: Duration, done: Done) {
        let boot = self.machines[at].boot;
        self.schedule(self.now + after, Event::Logs(at, boot, done));
    }

    fn set_replica(&mut self, at: usize, process: ProcessId, address: Option<SocketAddr>) {
        if self.logs(at).replicas.get(&process).map(|(known, _)| *known) == address {
            return;
        }
        let old = self.logs(at).replicas.remove(&process).and_then(|(_, conn)| conn);
        old.into_iter().for_each(|conn| self.close_log(at, conn));
        let leads = !self.logs(at).followed.contains(&process);
        self.logs(at).store.set_replica(process, address.is_some() && leads);
        if let Some(address) = address {
            self.logs(at).replicas.insert(process, (address, None));
            self.dial_replica(at, process);
        }
    }

    fn dial_replica(&mut self, at: usize, process: ProcessId) {
        let Some((address, None)) = self.logs(at).replicas.get(&process).copied() else { return };
        let has_left = self.logs(at).store.has_let_go(process) && !self.speaks_here(at, process);
        if self.logs(at).followed.contains(&process) || has_left {
            return;
        }
        let owner = Owner::Logs(at, self.machines[at].boot);
        let conn = self.connect(owner, at, address);
        self.logs(at).roles.insert(conn, Role::Replica(process, false));
        self.logs(at).replicas.insert(process, (address, Some(conn)));
    }

    /// As `Service::speaks_here`.
    fn speaks_here(&mut self, at: usize, process: ProcessId) -> bool {
        let is_it = |role: &Role| matches!(role, Role::Journal(speaker, true) if speaker.process == process);
        self.logs(at).roles.values().any(is_it)
    }

    /// As `Service::follow`.
    fn follow(&mut self, at: usize, process: ProcessId) -> bool {
        if self.speaks_here(at, process) {
            return false;
        }
        if self.logs(at).followed.insert(process) {
            let conn = self.logs(at).replicas.get_mut(&process).and_then(|(_, conn)| conn.take());
            conn.into_iter().for_each(|conn| self.close_log(at, conn));
            self.logs(at).store.set_replica(process, false);
        }
        if self.logs(at).store.has_let_go(process) {
            self.silence(at, |of| of == process);
            self.remove_process(at, process);
        }
        true
    }

    /// As `Service::lead`.
    fn lead(&mut self, at: usize, process: ProcessId) {
        if self.logs(at).followed.remove(&process) {
            let forwards = |role: &Role| matches!(role, Role::Forwarder(of, _) if *of == process);
            let theirs: Vec<ConnId> =
                self.logs(at).roles.iter().filter(|(_, role)| forwards(role)).map(|(conn, _)| *conn).collect();
            theirs.into_iter().for_each(|conn| self.close_log(at, conn));
        }
        let logs = self.logs(at);
        if logs.replicas.contains_key(&process) {
            if !logs.store.is_replicated(process) {
                logs.store.set_replica(process, true);
            }
            self.dial_replica(at, process);
        }
    }

    /// Something came for the service.
    pub fn logs_arrive(&mut self, at: usize, conn: ConnId, packet: Packet) {
        if let Packet::Syn = packet {
            self.logs(at).roles.insert(conn, Role::Unproven);
            return;
        }
        if self.logs(at).roles.contains_key(&conn) {
            self.logs(at).waiting.entry(conn).or_default().push_back(packet);
            self.read_log(at, conn);
            self.serve_logs(at);
        }
    }

    /// Handles what has come on a connection, as far as there is room.
    fn read_log(&mut self, at: usize, conn: ConnId) {
        loop {
            let logs = self.logs(at);
            let Some(role) = logs.roles.get(&conn).cloned() else { return };
            if !logs.has_room(&role) {
                return;
            }
            let Some(packet) = logs.waiting.get_mut(&conn).and_then(VecDeque::pop_front) else { return };
            let good = match packet {
                Packet::Word(word) => self.take_word(at, conn, role, word),
                Packet::Ack => {
                    if let Role::Replica(process, _) = role {
                        let incarnation = self.logs(at).store.incarnation(process).unwrap_or(Incarnation(0));
                        let login = Word::Login(Speaker { process, incarnation }, Channel::Replica);
                        self.send(conn, 0, Packet::Word(login));
                    }
                    true
                }
                Packet::End => {
                    self.end_of_log(at, role);
                    false
                }
                Packet::Reset | Packet::Syn | Packet::Bytes(_) => false,
            };
            if !good {
                return self.close_log(at, conn);
            }
            self.serve_logs(at);
        }
    }

    fn end_of_log(&mut self, at: usize, role: Role) {
        if let Role::Image(speaker, Some(image), length) = role {
            let result = self.logs(at).store.handle_message(speaker, &ToProtector::ImageEnd { image, length });
            self.expect_store(at, speaker, result);
        }
    }

    /// One message; false: the connection is to be closed.
    fn take_word(&mut self, at: usize, conn: ConnId, role: Role, word: Word) -> bool {
        match (role, word) {
            (Role::Unproven, Word::Login(speaker, channel)) => self.admit(at, conn, speaker, channel),
            (Role::Replica(process, false), Word::Admitted) => {
                let logs = self.logs(at);
                logs.roles.insert(conn, Role::Replica(process, true));
                logs.store.set_replica(process, true);
                true
            }
            (Role::Replica(process, true), Word::Log(bytes)) => {
                let message = FromProtector::read(&bytes).expect("a replica's message");
                if matches!(message, FromProtector::Fenced { .. }) {
                    return false;
                }
                self.logs(at).store.handle_replica(process, &message);
                // As the service does: what waited for its acknowledgement need not stay in memory. (Seed 508591.)
                self.resume_logs(at);
                true
            }
            (Role::Fetcher(process), Word::Wish(image)) => {
                if let Some(bytes) = self.logs(at).committed(process, image) {
                    self.send(conn, 1, Packet::Word(Word::Content(bytes)));
                }
                false
            }
            (role, Word::Log(bytes)) => {
                let message = ToProtector::read(&bytes).expect("an observer's message");
                self.take_message(at, conn, role, &message)
            }
            (role, word) => unreachable!("{word:?} to {role:?}"),
        }
    }

    fn admit(&mut self, at: usize, conn: ConnId, speaker: Speaker, channel: Channel) -> bool {
        let logs = self.logs(at);
        let known = logs.store.incarnation(speaker.process);
        if logs.ended.contains(&speaker.process.job) || channel == Channel::Fetch && known != Some(speaker.incarnation) {
            return false;
        }
        if channel == Channel::Replica && !(self.logs(at).is_member && self.follow(at, speaker.process)) {
            return false;
        }
        let logs = self.logs(at);
        let role = match channel {
            Channel::Journal => Role::Journal(speaker, false),
            Channel::Bulk => Role::Bulk(speaker),
            Channel::Image => Role::Image(speaker, None, 0),
            Channel::Replica => Role::Forwarder(speaker.process, None),
            Channel::Fetch => Role::Fetcher(speaker.process),
        };
        logs.roles.insert(conn, role);
        if channel == Channel::Journal {
            self.give_voice(at, conn, speaker);
        }
        self.send(conn, 1, Packet::Word(Word::Admitted));
        true
    }

    fn give_voice(&mut self, at: usize, conn: ConnId, speaker: Speaker) {
        let before = self.logs(at).voices.insert(speaker, conn).filter(|before| *before != conn);
        if let Some(before) = before {
            let logs = self.logs(at);
            // Its closing takes no voice that is another's now.
            if !matches!(logs.roles.get(&before), Some(Role::Forwarder(..))) {
                self.close_log(at, before);
            }
        }
    }

    fn take_message(&mut self, at: usize, conn: ConnId, role: Role, message: &ToProtector<'_>) -> bool {
        let speaker = match (role, message) {
            (Role::Journal(speaker, _), ToProtector::Hello { .. }) => {
                self.logs(at).roles.insert(conn, Role::Journal(speaker, true));
                speaker
            }
            (Role::Journal(speaker, true), _) => speaker,
            (Role::Bulk(_), ToProtector::Hello { .. }) => return true,
            (Role::Bulk(speaker), _) => speaker,
            (Role::Forwarder(of, _), ToProtector::Hello { process, incarnation, .. }) => {
                assert_eq!(of, *process, "a replica hears of another process");
                let speaker = Speaker { process: *process, incarnation: *incarnation };
                self.logs(at).roles.insert(conn, Role::Forwarder(of, Some(speaker)));
                speaker
            }
            (Role::Forwarder(_, Some(speaker)), _) => speaker,
            (Role::Image(speaker, None, _), ToProtector::ImageBegin { image, .. }) => {
                self.logs(at).roles.insert(conn, Role::Image(speaker, Some(*image), 0));
                let result = self.logs(at).store.handle_message(speaker, message);
                return self.expect_store(at, speaker, result) && self.logs(at).store.takes_image(speaker.process, *image);
            }
            (Role::Image(speaker, Some(image), _), ToProtector::ImageChunk { offset, bytes, .. }) => {
                self.logs(at).roles.insert(conn, Role::Image(speaker, Some(image), offset + bytes.len() as u64));
                let result = self.logs(at).store.handle_message(speaker, message);
                return self.expect_store(at, speaker, result) && self.logs(at).store.takes_image(speaker.process, image);
            }
            _ => return false,
        };
        if let ToProtector::Hello { journal, payload, .. } = message {
            let logs = self.logs(at);
            // Its next life began elsewhere: positions in its payload are not those of the life that is held. (Seed 25179.)
            let held = logs.store.incarnation(speaker.process);
            let is_of_before = held.is_some_and(|life| life < speaker.incarnation);
            if held.is_some_and(|life| life.first_of_job() < speaker.incarnation.first_of_job()) {
                // A replica is not fenced: it hears of the next life by that one's hello, which need not be the first since the job began anew. (Seed 357735.)
                logs.of_before.insert(speaker.process);
            }
            if is_of_before || logs.store.is_behind(speaker.process, journal.start, payload.start) {
                logs.behind.insert(speaker.process)
            } else {
                logs.behind.remove(&speaker.process)
            };
        }
        let result = self.logs(at).store.handle_message(speaker, message);
        if let ToProtector::Hello { .. } = message {
            self.trace(|| {
                format!("n{}: hello of {} in life {}: {message:?}, {result:?}", at + 1, speaker.process, speaker.incarnation.0)
            });
            self.greet(at, conn, speaker);
        }
        let forwarded = matches!(self.logs(at).roles.get(&conn), Some(Role::Forwarder(..)));
        if let Err(error) = &result {
            self.trace(|| format!("n{}: {message:?} of {} is refused: {error}", at + 1, speaker.process));
        }
        let good = if forwarded { result.is_ok() } else { self.expect_store(at, speaker, result) };
        if let ToProtector::Closing = message {
            self.resume_logs(at);
        }
        if !good {
            self.serve_logs(at);
        }
        good
    }

    fn greet(&mut self, at: usize, conn: ConnId, speaker: Speaker) {
        self.give_voice(at, conn, speaker);
        let logs = self.logs(at);
        let protection = logs.jobs.get(&speaker.process.job).cloned().unwrap_or_default();
        let is_forwarded = matches!(logs.roles.get(&conn), Some(Role::Forwarder(..)));
        let log = if is_forwarded { u64::MAX } else { protection.log };
        logs.store.configure(speaker.process, log, protection.keep_logs);
        if !is_forwarded {
            logs.greeted.insert(speaker);
        }
        if is_forwarded {
            logs.store.follow(speaker.process);
        } else if logs.store.incarnation(speaker.process) == Some(speaker.incarnation) {
            logs.store.take_up(speaker.process);
            self.lead(at, speaker.process);
        }
    }

    /// Who may speak is never contradicted, and never unknown where it is protected. (A replica may be: it may have a log of a time when it was the protector, which the one before it in the chain
    /// catches up with. It is dialed again.)
    fn expect_store(&mut self, at: usize, speaker: Speaker, result: Result<(), StoreError>) -> bool {
        match result {
            Ok(()) => true,
            Err(StoreError::Fenced { .. }) => false,
            // It has gone on to another protector, which has had this one forget it, before its last words came.
            Err(StoreError::Stranger(process)) if self.is_protected_elsewhere(process, at) => false,
            // It begins an image, and has not noticed yet that the machine was off meanwhile.
            Err(StoreError::Stranger(process))
                if process == speaker.process
                    && self.machines[at].boot > 0
                    && !self.machines[at].logs.greeted.contains(&speaker) =>
            {
                false
            }
            // It catches up with a log that is lost: the machine was switched on again, under its old address, before anybody has seen that it was off.
            Err(StoreError::Contradiction { process, .. })
                if process == speaker.process && self.is_of_a_lost_log(at, speaker) =>
            {
                false
            }
            Err(error) => {
                assert!(!self.checks.is_voice(speaker.process, speaker.incarnation), "store: {error}");
                false
            }
        }
    }

    /// Whether this life was begun from the log that this machine had before it was off.
    fn is_of_a_lost_log(&self, at: usize, speaker: Speaker) -> bool {
        self.brought_back.get(&speaker).is_some_and(|(by, boot)| *by == at && *boot < self.machines[at].boot)
    }

    /// Does what the store wants.
    pub fn serve_logs(&mut self, at: usize) {
        let mut freed = false;
        while let Some(output) = self.logs(at).store.poll_output() {
            self.carry_out_of_logs(at, output);
        }
        while let Some(notice) = self.logs(at).store.poll_notice() {
            freed = true;
            self.handle_notice(at, notice);
        }
        self.pump_writes(at);
        self.verify_what_is_written(at);
        if freed {
            self.resume_logs(at);
        }
    }

    fn resume_logs(&mut self, at: usize) {
        let waiting: Vec<ConnId> =
            self.logs(at).waiting.iter().filter(|(_, packets)| !packets.is_empty()).map(|(conn, _)| *conn).collect();
        waiting.into_iter().for_each(|conn| self.read_log(at, conn));
    }

    fn carry_out_of_logs(&mut self, at: usize, output: Output) {
        match output {
            Output::Send(to, bytes) => {
                // What a copy has, its leader may be told; the process hears of it from the leader.
                if !self.logs(at).followed.contains(&to.process) {
                    self.checks.handle_answer(to, &FromProtector::read(&bytes).expect("the store's own message"));
                }
                let Some(conn) = self.logs(at).voices.get(&to).copied() else { return };
                if !matches!(self.logs(at).roles.get(&conn), Some(Role::Journal(_, false))) {
                    self.send(conn, 1, Packet::Word(Word::Log(bytes)));
                }
            }
            Output::Forward(process, bytes) => {
                let conn = self.logs(at).replicas.get(&process).and_then(|(_, conn)| *conn);
                let ready = conn.filter(|conn| matches!(self.logs(at).roles.get(conn), Some(Role::Replica(_, true))));
                ready.into_iter().for_each(|conn| self.send(conn, 0, Packet::Word(Word::Log(bytes.clone()))));
            }
            Output::Verify(process, image) => _ = self.logs(at).verifying.insert((process, image), None),
            Output::Read(to, file, position, length) => {
                if let Some(conn) = self.logs(at).voices.get(&to).copied() {
                    let after = self.disk_time(at);
                    self.logs_later(at, after, Done::Fetched(conn, file, position, length));
                }
            }
            Output::Truncate(file, position) => self.check_truncation(at, file, Some(position)),
            Output::Delete(file) => {
                self.check_truncation(at, file, None);
                let logs = self.logs(at);
                logs.cancel_writes(|of| *of == file);
                logs.files.remove(&file);
                if let File::Image(process, image) = file {
                    logs.verifying.remove(&(process, image));
                }
            }
            Output::AskStable(..) | Output::Forget(..) => {}
        }
    }

    fn handle_notice(&mut self, at: usize, notice: Notice) {
        let (event, process, text) = match notice {
            Notice::Committed(process, image) => {
                self.counts.commits += 1;
                self.check_commit(at, process, image.image);
                (EventName::Checkpoint, process, format!("image {} is committed", image.image))
            }
            Notice::Useless(process, image) => {
                self.counts.went_back += 1;
                (EventName::CheckpointFailed, process, format!("image {image} did not restore"))
            }
            Notice::Refused(process, image) => (EventName::CheckpointFailed, process, format!("image {image} was refused")),
            Notice::LogBound(process) => (EventName::Limit, process, "its log nears its bound".to_owned()),
        };
        self.input_soon(at, Input::StoreEvent(event, Some(process), text));
    }

    fn disk_time(&mut self, at: usize) -> Duration {
        let most = self.machines[at].disk.as_micros() as usize;
        let time = Duration::from_micros(20 + self.dice.below(most) as u64);
        let now = self.now;
        let logs = self.logs(at);
        logs.disk_free = logs.disk_free.max(now) + time;
        logs.disk_free - now
    }

    fn pump_writes(&mut self, at: usize) {
        while self.logs(at).writes.len() < 8
            && let Some(write) = self.logs(at).store.poll_write(256)
        {
            let logs = self.logs(at);
            logs.ticket += 1;
            let ticket = logs.ticket;
            logs.writes.insert(ticket, write);
            let after = self.disk_time(at);
            self.logs_later(at, after, Done::Written(ticket));
        }
    }

    fn verify_what_is_written(&mut self, at: usize) {
        let logs = self.logs(at);
        let waiting = logs.verifying.iter().filter(|(_, ticket)| ticket.is_none()).map(|(of, _)| *of);
        let written: Vec<_> = waiting.filter(|(process, image)| logs.store.image_is_written(*process, *image)).collect();
        for (process, image) in written {
            let logs = self.logs(at);
            logs.ticket += 1;
            let ticket = logs.ticket;
            logs.verifying.insert((process, image), Some(ticket));
            let after = self.disk_time(at);
            self.logs_later(at, after, Done::Verified(process, image, ticket));
        }
    }

    /// The disk, the verifier or a timer.
    pub fn logs_done(&mut self, at: usize, done: Done) {
        match done {
            Done::Written(ticket) => {
                let logs = self.logs(at);
                if let Some(write) = logs.writes.remove(&ticket) {
                    let file = logs.files.entry(write.file).or_default();
                    let (from, to) = (write.position as usize, write.position as usize + write.bytes.len());
                    file.resize(file.len().max(to), 0);
                    file[from..to].copy_from_slice(&write.bytes);
                    logs.store.handle_written(write.file, to as u64);
                    self.resume_logs(at);
                }
            }
            Done::Verified(process, image, ticket) => {
                if self.logs(at).verifying.get(&(process, image)) == Some(&Some(ticket)) {
                    self.logs(at).verifying.remove(&(process, image));
                    let damaged = self.dice.one_in(self.plan.bad_images);
                    let bytes = self.logs(at).files.entry(File::Image(process, image)).or_default();
                    // Now and then a bit has flipped on the way.
                    bytes.iter_mut().take(usize::from(damaged)).for_each(|byte| *byte ^= 64);
                    let bytes = bytes.clone();
                    let good = self.saved_of(&bytes).is_some() || self.breaks.image;
                    self.logs(at).store.handle_verified(process, image, good);
                }
            }
            Done::Fetched(conn, file, position, length) => self.send_read(at, conn, file, position, length),
            Done::Fence(process, life, until) => self.fence(at, process, life, until),
            Done::Dial(process) => self.dial_replica(at, process),
        }
        self.serve_logs(at);
    }

    fn send_read(&mut self, at: usize, conn: ConnId, file: File, position: u64, length: usize) {
        let logs = self.logs(at);
        if !logs.roles.contains_key(&conn) {
            return;
        }
        let from = position as usize;
        let Some(bytes) = logs.files.get(&file).and_then(|bytes| bytes.get(from..from + length)).map(<[u8]>::to_vec) else {
            return self.close_log(at, conn);
        };
        let answer = match file {
            File::Stream(_, stream) => {
                message(|out| FromProtector::Payload { stream, offset: position, bytes: &bytes }.write(out))
            }
            _ => message(|out| FromProtector::Journal { position, bytes: &bytes }.write(out)),
        };
        self.send(conn, 1, answer);
    }
}
