//! What must hold at every step, whatever fails (docs/design.md's guarantees), and when the job is over.
//!
//! | rule | what is looked at |
//! |---|---|
//! | views | all nodes that have a view of one number have the same one |
//! | G1 | nothing leaves a process that depends on outcomes which no protector has acknowledged; what was acknowledged is in the log that a restart gets |
//! | G2 | a byte that its sender does not keep any more is held where its receiver is protected |
//! | G3 | a program gets each byte of a stream once, in order, the same in every incarnation; so does the terminal |
//! | G4 | after a process was fenced no older incarnation of it is acknowledged anything that the newer one's log has not |
//! | G5 | what is sent once more is what was sent then |
//! | G6 | a log loses only what a committed image covers, which is whole, and replicated where that is asked for |
//! | restart | the job restarts from its beginning only where nothing else is left ([`super::anew`]) |
//! | end | the job ends, as it should; nothing is left of it |

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use radic_protector::logserver::LogServer;
use radic_protector::store::{File, Restart, Speaker, Store};
use radic_wire::determinant::StreamId;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, ProcessId, Rank};
use radic_wire::job::{ExitStatus, OutputStream};
use radic_wire::log::{FromProtector, HeldImage, ImageState};
use radic_wire::membership::View;
use radic_wire::peer::{PeerMessage, ToHost};

use super::anew::Trouble;
use super::machine::Machine;
use super::net::machine_of;
use super::process::{Lib, Process};
use super::world::World;

/// What is remembered for the checks.
#[derive(Debug, Default)]
pub struct Checks {
    views: BTreeMap<u64, View>,
    /// The incarnation that speaks for each process.
    voices: BTreeMap<ProcessId, Incarnation>,
    /// How far each incarnation's journal was acknowledged.
    acked: BTreeMap<(ProcessId, Incarnation), u64>,
    /// The newest incarnation of a process when its job was suspended: it has ended.
    suspended: BTreeMap<ProcessId, Incarnation>,
    /// Where the log of each incarnation ended that was brought back.
    begun: BTreeMap<(ProcessId, Incarnation), u64>,
    /// Where in the journal each image of an incarnation stands.
    cuts: BTreeMap<(ProcessId, u64, Incarnation), u64>,
    /// What was received first, by stream, as far as a state depends on it that no death has undone.
    truth: BTreeMap<StreamId, Vec<u8>>,
    /// Other bytes were sent to a lost process from this offset of a stream on. Its log must not have the ones before: that is known when it comes back.
    doubts: Vec<(StreamId, u64)>,
    /// From which journal position on the state of a process depends on which bytes.
    depends: Vec<(ProcessId, u64, StreamId, u64)>,
    /// The epoch of the job.
    pub epoch: Epoch,
    /// The newest epoch in which a node has started a process. That need not know of its epoch yet.
    begun_epoch: Epoch,
    /// Its home has said that there will be another one.
    restarts: bool,
    /// What has gone wrong with each process since it was live last.
    troubles: BTreeMap<ProcessId, Trouble>,
    /// Images of which a bit has flipped after they were verified, in a file or on the way to the process.
    pub damaged: BTreeSet<(ProcessId, u64)>,
    /// The home that gave each epoch of each job, and when.
    homes: BTreeMap<(JobId, Epoch), (NodeId, Duration)>,
    /// The machines that have ever been the home of the job.
    were_home: BTreeSet<usize>,
}

impl Checks {
    /// Whether this incarnation speaks for the process, as far as that is decided.
    pub fn is_voice(&self, process: ProcessId, incarnation: Incarnation) -> bool {
        incarnation >= self.voices.get(&process).copied().unwrap_or_default() && incarnation.epoch == self.epoch
    }

    /// The job is about to restart from its beginning: no process goes on from what there is.
    pub fn handle_job_restart(&mut self) {
        self.restarts = true;
    }

    /// Whether processes are to go on from what there is.
    pub fn counts(&self) -> bool {
        !self.restarts
    }

    /// G4: a home launches an epoch, which no other home has given.
    pub fn handle_launch(&mut self, now: Duration, home: &NodeId, job: JobId, epoch: Epoch) {
        let (known, _) = self.homes.entry((job, epoch)).or_insert_with(|| (home.clone(), now));
        assert!(*known == *home, "G4: {home} gives epoch {epoch} of job {job}, as {known} has");
    }

    /// The newest epoch that a home has launched, at another node or at its own. No process of it need have joined.
    pub fn launched(&self) -> Epoch {
        self.homes.keys().map(|(_, epoch)| *epoch).chain([self.epoch, self.begun_epoch]).max().unwrap_or_default()
    }

    /// A process begins as this incarnation, with nothing.
    pub fn handle_incarnation(&mut self, process: ProcessId, incarnation: Incarnation) {
        if incarnation.epoch > self.epoch {
            // The job restarts from its beginning: what was, was not.
            let (views, homes, were_home) =
                (std::mem::take(&mut self.views), std::mem::take(&mut self.homes), std::mem::take(&mut self.were_home));
            *self =
                Checks { views, homes, were_home, begun_epoch: self.begun_epoch, epoch: incarnation.epoch, ..Checks::default() };
        }
        let voice = self.voices.entry(process).or_default();
        *voice = incarnation.max(*voice);
    }

    /// Older incarnations are not listened to any more.
    pub fn handle_fence(&mut self, process: ProcessId, incarnation: Incarnation) {
        if incarnation.epoch == self.epoch {
            let voice = self.voices.entry(process).or_default();
            *voice = incarnation.max(*voice);
        }
    }

    /// A log is there for a restart: it has all that was acknowledged.
    pub fn handle_restart(&mut self, process: ProcessId, incarnation: Incarnation, restart: &Restart) {
        if incarnation.epoch != self.epoch {
            return;
        }
        let first = Incarnation::launched_in(self.epoch);
        for ((_, old), acked) in self.acked.range((process, first)..(process, incarnation)) {
            let end = restart.log_end;
            assert!(
                *acked <= end,
                "G1: incarnation {old} of {process} was acknowledged {acked}, the next one's log ends at {end}"
            );
        }
        self.begun.insert((process, incarnation), restart.log_end);
        self.trouble_of(process).restores += 1;
    }

    /// What has gone wrong with a process since it was live last.
    pub fn trouble(&self, process: ProcessId) -> Trouble {
        self.troubles.get(&process).copied().unwrap_or_default()
    }

    /// The same, to be noted.
    pub fn trouble_of(&mut self, process: ProcessId) -> &mut Trouble {
        self.troubles.entry(process).or_default()
    }

    /// A process is live again.
    pub fn handle_live(&mut self, process: ProcessId) {
        self.troubles.remove(&process);
    }

    /// A protector says something to an observer.
    pub fn handle_answer(&mut self, to: Speaker, message: &FromProtector<'_>) {
        let Speaker { process, incarnation } = to;
        let position = match message {
            FromProtector::JournalStable { position } | FromProtector::Welcome { journal: position, .. } => *position,
            FromProtector::Committed { image, .. } => self.cut_of(to, *image),
            _ => return,
        };
        if incarnation.epoch != self.epoch {
            return; // Of an earlier epoch, perhaps on a side that has not heard of this one: another journal.
        }
        if self.suspended.get(&process).is_some_and(|ended| incarnation <= *ended) {
            return; // What was under way when its job was suspended reaches a log after that.
        }
        let newer = self.begun.range((process, incarnation.next())..).take_while(|((of, _), _)| *of == process);
        for ((_, later), end) in newer {
            assert!(
                position <= *end,
                "G4: incarnation {incarnation} of {process} commits {position}, and incarnation {later} began at {end}"
            );
        }
        let acked = self.acked.entry(to_key(to)).or_default();
        *acked = position.max(*acked);
    }

    /// The job is suspended: what the log of a process was told since it was written down counts for nothing, and the process has not heard that it is held.
    pub fn handle_suspended(&mut self, process: ProcessId, end: u64) {
        if let Some(voice) = self.voices.get(&process) {
            self.suspended.insert(process, *voice);
        }
        let of_process = |key: &(ProcessId, Incarnation)| key.0 == process;
        let acked = self.acked.iter_mut().chain(&mut self.begun).filter(|(key, _)| of_process(key));
        acked.for_each(|(_, position)| *position = end.min(*position));
    }

    /// Whether this incarnation is of the job's epoch, and of its life since it was suspended last.
    pub fn is_of_now(&self, process: ProcessId, incarnation: Incarnation) -> bool {
        incarnation.epoch == self.epoch && self.suspended.get(&process).is_none_or(|ended| incarnation > *ended)
    }

    /// Up to where the journal of a process is stable: no death undoes what is before.
    pub fn stable(&self, process: ProcessId) -> u64 {
        let of = (process, Incarnation::FIRST)..=(process, self.voices.get(&process).copied().unwrap_or_default());
        let acked = self.acked.range(of.clone()).map(|(_, position)| *position);
        acked.chain(self.begun.range(of).map(|(_, position)| *position)).max().unwrap_or(0)
    }

    /// An image of an incarnation stands here.
    pub fn handle_image(&mut self, of: Speaker, image: u64, cut: u64) {
        self.cuts.insert((of.process, image, of.incarnation), cut);
    }

    /// Where the image stands of which an incarnation hears: its own, or that of an incarnation before it. One that others have left behind goes on making
    /// images until it is told, and their numbers are given again.
    fn cut_of(&self, to: Speaker, image: u64) -> u64 {
        let Speaker { process, incarnation } = to;
        let first = Incarnation::launched_in(incarnation.epoch);
        self.cuts.range((process, image, first)..=(process, image, incarnation)).next_back().map_or(0, |(_, cut)| *cut)
    }

    /// What a process received after its log ends is undone by its death: it may come out another way.
    pub fn undo(&mut self, process: ProcessId, log_end: u64, held: &[(StreamId, u64, Option<u64>)]) {
        self.depends.retain(|(of, position, ..)| *of != process || *position <= log_end);
        for (stream, truth) in self.truth.iter_mut().filter(|(stream, _)| receiver_of(stream) == process) {
            let replayed = self.depends.iter().filter(|d| d.0 == process && d.2 == *stream).map(|d| d.3).max();
            let held = held.iter().find(|held| held.0 == *stream).map(|held| held.2.map_or(held.1, |end| end.min(held.1)));
            truth.truncate(replayed.max(held).unwrap_or(0) as usize);
            let doubt = self.doubts.iter().filter(|doubt| doubt.0 == *stream).map(|doubt| doubt.1).min();
            assert!(
                doubt.is_none_or(|from| from >= truth.len() as u64),
                "G5: other bytes at {doubt:?} of {stream:?}, which its receiver's log has"
            );
        }
        self.doubts.retain(|(stream, _)| receiver_of(stream) != process);
    }
}

/// Standard output that the home keeps on a machine, if it is the home.
fn kept_at(machine: &Machine, job: Option<JobId>) -> Vec<(Rank, Range<usize>)> {
    let kept = job.and_then(|job| machine.node.as_ref().map(|node| node.kept_output(job))).unwrap_or_default();
    let kept = kept.into_iter().filter(|(_, stream, _)| *stream == OutputStream::Stdout);
    kept.map(|(rank, _, range)| (rank, range.start as usize..range.end as usize)).collect()
}

/// An image, and those that it builds upon: the whole one comes last. One that is not held any more ends the chain.
fn chain_of(held: &[HeldImage], newest: u64) -> Vec<u64> {
    let parent = |image: &u64| held.iter().find(|of| of.image == *image)?.parent;
    std::iter::successors(Some(newest), parent).collect()
}

/// Whether all of a range is in another.
pub fn covers(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// The process that receives a stream: each rank connects to those above it, one after the other.
fn receiver_of(stream: &StreamId) -> ProcessId {
    let (opener, number) = (stream.connection.opener, stream.connection.number);
    let other = ProcessId { rank: Rank(opener.rank.0 + 1 + number as u32), ..opener };
    if stream.from_opener { other } else { opener }
}

fn to_key(to: Speaker) -> (ProcessId, Incarnation) {
    (to.process, to.incarnation)
}

impl World {
    fn speaks(&self, pid: u32) -> Option<(ProcessId, Incarnation)> {
        let process = &self.processes[pid as usize];
        let incarnation = process.incarnation()?;
        self.checks.is_voice(process.id, incarnation).then_some((process.id, incarnation))
    }

    /// Whether this process is the one that speaks, as far as that is decided.
    pub fn is_voice(&self, pid: u32) -> bool {
        self.speaks(pid).is_some()
    }

    /// Views.
    pub fn check_view(&mut self, at: usize) {
        let Some(view) = self.machines[at].node.as_ref().and_then(|node| node.view()) else { return };
        if self.machines[at].view == view.number {
            return;
        }
        let mut broken = None;
        if self.breaks.views && at == 1 {
            broken.insert(view.clone()).members.pop();
        }
        let view = broken.as_ref().unwrap_or(view);
        let known = self.checks.views.entry(view.number).or_insert_with(|| view.clone());
        assert!(known == view, "views: n{} has {view:?}, another node has {known:?}", at + 1);
        self.machines[at].view = view.number;
    }

    /// Which machines have something of the job.
    pub fn note_knowledge(&mut self, at: usize) {
        let Some(job) = self.terminal.job().filter(|_| !self.machines[at].knew) else { return };
        self.machines[at].knew = self.machines[at].node.as_ref().is_some_and(|node| node.knows(job));
    }

    /// Whether every machine that had something of the job is off, or was: nothing of it is left.
    pub fn has_lost_all(&self) -> bool {
        (0..self.machines.len()).all(|at| !self.machines[at].knew || !self.is_up(at))
    }

    /// G4: nodes that have the newest view agree on where the home of the job is.
    pub fn check_home(&mut self, at: usize) {
        let newest = self.checks.views.last_key_value().map(|(number, _)| *number);
        let epoch_at = |machine: &Machine| {
            let node = machine.node.as_ref().filter(|_| machine.power && Some(machine.view) == newest)?;
            node.epoch_at_home(self.terminal.job()?)
        };
        let Some(here) = epoch_at(&self.machines[at]) else { return };
        self.checks.were_home.insert(at);
        let other =
            self.checks.were_home.iter().copied().find(|other| *other != at && epoch_at(&self.machines[*other]) == Some(here));
        assert!(other.is_none(), "G4: n{} and n{} are both home of epoch {here}", at + 1, other.unwrap_or(at) + 1);
    }

    /// G4: what a home says to its hosts.
    pub fn check_launch(&mut self, at: usize, message: &PeerMessage) {
        let PeerMessage::ToHost(job, ToHost::Launch { epoch, .. }) = *message else { return };
        let epoch = if self.breaks.epochs { Epoch { count: epoch.count, ..Epoch::FIRST } } else { epoch };
        self.checks.handle_launch(self.now, &self.machines[at].member.id, job, epoch);
    }

    /// A node starts a process of the job, in the epoch that has begun there. What a home launches at its own node is in no message.
    pub fn note_begun(&mut self, at: usize, job: JobId) {
        let epoch = self.machines[at].node.as_ref().and_then(|node| node.epoch_here(job)).unwrap_or_default();
        self.checks.begun_epoch = self.checks.begun_epoch.max(epoch);
    }

    /// The machine of the home that has begun the second epoch of the job, and how long after the job's start.
    #[cfg(test)]
    pub fn launched_again(&self) -> Option<(usize, Duration)> {
        let (_, (home, at)) = self.checks.homes.iter().find(|((_, epoch), _)| epoch.count == 1)?;
        let machine = self.machines.iter().position(|machine| machine.member.id.name == home.name)?;
        Some((machine, *at - self.started?))
    }

    /// G1: something leaves a process that has come to this position of its journal.
    pub fn check_departure(&mut self, pid: u32, position: u64) {
        let Some((process, incarnation)) = self.speaks(pid) else { return };
        let acked =
            self.checks.acked.range((process, Incarnation::FIRST)..=(process, incarnation)).map(|(_, position)| *position);
        let begun = self.checks.begun.get(&(process, incarnation)).copied();
        let held = acked.chain(begun).max().unwrap_or(0);
        assert!(position <= held, "G1: something leaves {process} that depends on {position}, {held} is acknowledged");
        for store in self.holders(process).filter(|store| store.incarnation(process) == Some(incarnation)) {
            let held = store.journal_end(process);
            assert!(position <= held, "G1: something leaves {process} that depends on {position}, {held} is held");
        }
    }

    /// The logs that hold what a process has been told is safe: its protector's, and its replica's while that one takes what is forwarded.
    fn holders(&self, process: ProcessId) -> impl Iterator<Item = &Store> {
        let leader =
            self.newest(process).filter(|lib| lib.is_log_up()).map(|lib| &self.machines[machine_of(lib.protector())].logs.server);
        let replica = leader.and_then(|leader| leader.replica_that_is_up(process));
        leader
            .map(LogServer::store)
            .into_iter()
            .chain(replica.map(|address| self.machines[machine_of(address)].logs.server.store()))
    }

    /// G2: what a process does not keep any more of what it has sent.
    pub fn check_kept(&mut self, pid: u32) {
        let Some((sender, _)) = self.speaks(pid).filter(|_| self.checks.counts()) else { return };
        let table = self.processes[pid as usize].lib.as_ref().expect("it speaks").observer.table();
        if table.iter().all(|(_, connection)| connection.outgoing().start() == 0) || self.is_ended_by_its_home() {
            return;
        }
        for (_, connection) in table.iter() {
            let (stream, receiver, kept) = (connection.stream_out(), connection.peer, connection.outgoing().start());
            if kept == 0 {
                continue;
            }
            // Until the receiver has an image at a new protector, the loss of its node makes the job restart from its beginning.
            let protector = self.newest(receiver).and_then(|lib| self.store_of(receiver, machine_of(lib.protector())));
            // What is there of an earlier epoch is dropped when it is to be used, or when an incarnation of this epoch is heard.
            let is_of_now =
                |store: &&Store| store.incarnation(receiver).is_some_and(|incarnation| incarnation.epoch == self.checks.epoch);
            let protector = protector.filter(is_of_now);
            let Some(store) = protector.filter(|store| store.can_restart(receiver)) else { continue };
            let held = store.holds(receiver, stream, kept - 1)
                || store.holds_by_line(receiver, stream, kept - 1, self.remembered_line(receiver.job))
                || self.has_closed(receiver, connection.id)
                || self.has_failed(receiver);
            assert!(
                held,
                "G2: {sender} keeps {stream:?} from {kept}, and the protector of {receiver} does not hold the byte before"
            );
            let incarnation = store.incarnation(receiver);
            for replica in self
                .holders(receiver)
                .skip(1)
                .filter(|store| store.has_image(receiver) && store.incarnation(receiver) == incarnation)
            {
                let held = replica.holds(receiver, stream, kept - 1) || self.has_closed(receiver, connection.id);
                assert!(
                    held,
                    "G2: {sender} keeps {stream:?} from {kept}, and the replica of {receiver} does not hold the byte before"
                );
            }
        }
    }

    /// The newest recovery line that some node remembers: a protector that brings a process back finds it.
    fn remembered_line(&self, job: JobId) -> u64 {
        let nodes = self.machines.iter().filter_map(|machine| machine.node.as_ref());
        nodes.map(|node| node.remembered_line(job)).max().unwrap_or(0)
    }

    /// The log from which a process that speaks to this machine's protector would be brought back: that protector's, or its replica's, if it is lost. The replica may have committed an
    /// image that the lost one had not. A protector that stands still is lost when it is declared dead, though its machine is there.
    fn store_of(&self, process: ProcessId, protector: usize) -> Option<&Store> {
        let replica = || self.machines[protector].logs.replica(process);
        let is_there = |at: &usize| self.is_up(*at) && !self.is_declared_dead(*at);
        let at = Some(protector).filter(is_there).or_else(replica).filter(is_there)?;
        Some(self.machines[at].logs.server.store())
    }

    /// Whether the newest view is without this machine's node.
    pub(super) fn is_declared_dead(&self, at: usize) -> bool {
        let newest = self.checks.views.last_key_value();
        let name = &self.machines[at].member.id.name;
        newest.is_some_and(|(_, view)| view.members.iter().all(|member| member.id.name != *name))
    }

    /// Whether the newest incarnation of a process logs with another machine's protector.
    pub fn is_protected_elsewhere(&self, process: ProcessId, at: usize) -> bool {
        self.newest(process).is_some_and(|lib| machine_of(lib.protector()) != at)
    }

    fn newest(&self, process: ProcessId) -> Option<&Lib> {
        let incarnations = self.processes.iter().filter(|p| p.id == process).filter_map(|p| p.lib.as_deref());
        incarnations.max_by_key(|lib| lib.observer.incarnation())
    }

    /// Whether the newest incarnation of a process has closed this connection, or an earlier one was about to end: then all its outcomes are in its log, and each later one closes
    /// the connection after the same bytes.
    fn has_closed(&self, process: ProcessId, connection: radic_wire::determinant::ConnectionId) -> bool {
        let of_now = self.processes.iter().filter(|p| p.id == process).filter_map(|p| p.lib.as_deref());
        let mut of_now = of_now.filter(|lib| lib.observer.incarnation().epoch == self.checks.epoch);
        if of_now.any(|lib| lib.session.is_leaving()) {
            return true;
        }
        let Some(newest) = self.newest(process) else { return false };
        let table = newest.observer.table();
        table.find(connection).and_then(|slot| table.get(slot)).is_none_or(|connection| connection.fd().is_none())
    }

    /// G3: bytes come to a program.
    pub fn check_bytes(&mut self, pid: u32, stream: StreamId, offset: u64, bytes: &[u8]) {
        if self.speaks(pid).is_none() {
            return;
        }
        let truth = self.checks.truth.entry(stream).or_default();
        let known = truth.len().checked_sub(offset as usize).expect("G3: a gap in what is received").min(bytes.len());
        assert_eq!(truth[offset as usize..][..known], bytes[..known], "G3: bytes at {offset} of {stream:?}");
        truth.extend(&bytes[known..]);
    }

    /// The state of a process depends on bytes up to this offset from now on.
    pub fn note_dependence(&mut self, pid: u32, stream: StreamId, offset: u64) {
        let Some((process, _)) = self.speaks(pid) else { return };
        let observer = &self.lib(pid).observer;
        if !observer.is_replaying() {
            let position = observer.journal().end();
            self.checks.depends.push((process, position, stream, offset));
        }
    }

    /// G3: a program is told the end of a stream.
    pub fn check_stream_end(&mut self, pid: u32, stream: StreamId, got: u64) {
        if self.speaks(pid).is_some() {
            let all = self.checks.truth.get(&stream).map_or(0, |bytes| bytes.len() as u64);
            assert_eq!(got, all, "G3: the end after {got} bytes of {all} of {stream:?}");
        }
    }

    /// Whether no incarnation of the process runs where it counts: on a machine that was declared dead none is listened to any more.
    pub(super) fn is_lost(&self, process: ProcessId) -> bool {
        self.processes.iter().filter(|p| p.id == process).all(|p| p.ended.is_some() || self.is_declared_dead(p.machine))
    }

    /// G5: a program sends.
    pub fn check_sent(&mut self, pid: u32, stream: StreamId, offset: u64, bytes: &[u8]) {
        if self.speaks(pid).is_none() {
            return;
        }
        let then = self.checks.truth.get(&stream).and_then(|then| then.get(offset as usize..)).unwrap_or(&[]);
        let known = then.len().min(bytes.len());
        let standing = || self.processes[pid as usize].lib.as_ref().map(|lib| lib.standing());
        let differs = (0..known).find(|at| then[*at] != bytes[*at]);
        if let Some(at) = differs.filter(|_| self.is_lost(receiver_of(&stream))) {
            return self.checks.doubts.push((stream, offset + at as u64));
        }
        assert!(differs.is_none(), "G5: other bytes at {offset} of {stream:?}\n{:?}", standing());
        self.counts.again += known as u64;
    }

    /// G6: a log is cut, or something of it removed.
    pub fn check_truncation(&mut self, at: usize, file: File, position: Option<u64>) {
        if !self.checks.counts() {
            return; // Its job restarts from its beginning.
        }
        let process = file.process();
        let store = self.machines[at].logs.server.store();
        // What was held of an earlier epoch goes when the first incarnation of the next one speaks.
        let is_of_before = self.machines[at].logs.of_before.contains(&process);
        let begins = |incarnation: Incarnation| {
            (is_of_before || incarnation.epoch > Epoch::FIRST && incarnation.is_launched()) && !store.has_image(process)
        };
        if store.incarnation(process).is_none_or(begins) {
            return;
        }
        // A log of an earlier epoch: no process goes back to that. What such a log's holder still says to a replica that has forgotten it makes a log without a beginning there.
        if store.incarnation(process).is_some_and(|incarnation| incarnation.epoch < self.checks.epoch) {
            return;
        }
        let held = store.list(process).expect("it is known");
        let committed = |image: &&HeldImage| image.state == ImageState::Committed;
        let newest = held.images.iter().filter(committed).max_by_key(|image| image.image);
        // What another node than its protector has, and what lacks something that was acknowledged since, brings no process back: it may go when that node is to hold
        // the log once more.
        let is_elsewhere = self.is_protected_elsewhere(process, at);
        let acked = self.checks.acked.range((process, Incarnation::FIRST)..);
        let acked = acked.take_while(|((of, _), _)| *of == process).map(|(_, acked)| *acked);
        if newest.is_none() && self.machines[at].logs.let_go.contains(&process) {
            return;
        }
        let is_behind = is_elsewhere || self.machines[at].logs.behind.contains(&process);
        if is_behind && newest.is_none() && acked.max().is_some_and(|acked| held.journal.start <= acked) {
            return;
        }
        match (file, position) {
            (File::Journal(_), Some(position)) => {
                let cut = newest.map_or(0, |image| image.cut);
                assert!(position <= cut, "G6: the journal of {process} is cut at {position}, the newest image covers {cut}");
            }
            (File::Image(_, image), None) => {
                let is_needed = newest.is_some_and(|newest| chain_of(&held.images, newest.image).contains(&image));
                assert!(!is_needed, "G6: image {image} of {process} is removed, and the newest one builds upon it, or is it");
            }
            (File::Stream(..), _) => assert!(newest.is_some(), "G6: payload of {process} goes without an image"),
            _ => {}
        }
    }

    /// G6: an image is committed.
    pub fn check_commit(&mut self, at: usize, process: ProcessId, image: u64) {
        let logs = &self.machines[at].logs;
        if logs.server.store().incarnation(process).is_none_or(|incarnation| !self.checks.is_voice(process, incarnation)) {
            return; // A machine that hung, and does not know yet that it is none of the cluster any more.
        }
        if self.is_protected_elsewhere(process, at) {
            return; // The same, and the process has another protector since.
        }
        let held = logs.server.store().list(process).expect("an image of it is committed");
        let mut chain = chain_of(&held.images, image);
        chain.reverse();
        let layers: Option<Vec<Vec<u8>>> = chain.iter().map(|image| logs.committed(process, *image)).collect();
        let whole = layers.is_some_and(|layers| self.saved_of_chain(layers.iter()).is_some());
        assert!(
            whole,
            "G6: image {image} of {process} is committed, and it is not whole with those that it builds upon, {chain:?}"
        );
        if let Some(replica) = logs.replica(process) {
            let replica = &self.machines[replica].logs;
            // It forgets a job that is over, perhaps before the word of its commit is here; and knows nothing if it has died and is back by then.
            let is_back = replica.server.store().incarnation(process).is_none();
            let there =
                replica.server.store().committed_image(process, image).is_some() || replica.has_ended(process.job) || is_back;
            assert!(there, "G6: image {image} of {process} is committed, and its replica has it not");
        }
    }

    /// When the job has ended well: everything has arrived, and was printed once.
    pub fn check_end(&mut self) {
        // The newest; one that was brought back only to print what an earlier incarnation had printed already need not have come to its end.
        let order = |(pid, process): (u32, &Process)| {
            let ended = process.ended == Some(ExitStatus::Code(0)) || self.killed_late.contains(&pid);
            process.incarnation().map(|incarnation| (incarnation.epoch, ended, incarnation))
        };
        let mut last: BTreeMap<ProcessId, (u32, &Process)> = BTreeMap::new();
        for (pid, process) in (0..).zip(&self.processes).filter(|(_, process)| process.lib.is_some()) {
            if order((pid, process)) >= last.get(&process.id).and_then(|known| order(*known)) {
                last.insert(process.id, (pid, process));
            }
        }
        assert_eq!(last.len(), self.plan.ranks as usize, "end: every rank has run");
        let (mut limits, mut sent, mut received) = (0, 0, 0);
        for (id, (_, process)) in last {
            let program = &process.lib.as_ref().expect("it was looked for").program;
            let sockets: Vec<_> = program.threads.iter().flat_map(|thread| &thread.app.sockets).collect();
            let done = sockets.iter().all(|socket| socket.finished && socket.ended);
            let input = program.threads[0].app.input;
            assert!(id.rank > Rank(0) || input == self.plan.input, "G3: {id} has read {input} bytes of standard input");
            let peers = sockets.iter().filter(|socket| !socket.is_late).count();
            assert!(done && peers + 1 == self.plan.ranks as usize, "G3: {id} has not sent and received everything");
            sent += sockets.iter().map(|socket| socket.sent).sum::<u64>();
            received += sockets.iter().map(|socket| socket.received).sum::<u64>();
            let printed = self.terminal.printed.get(&id.rank).map_or(&[][..], |bytes| bytes);
            let missing = printed.len()..program.out.len();
            if !missing.is_empty() && self.lost_with_homes(id.rank).any(|lost| covers(&lost, &missing)) {
                limits += 1;
                continue;
            }
            // What was printed in an earlier epoch is not printed again, whatever it would be now.
            let old = self.printed_before(id).min(printed.len());
            let known = printed.iter().zip(&program.out).enumerate().skip(old);
            let mut known = known.filter(|(at, _)| !self.terminal.is_hole(id.rank, *at));
            let same = printed.len() == program.out.len().max(old) && known.all(|(_, (printed, out))| printed == out);
            assert!(same, "G3: {id} has printed {:?}, the terminal {printed:?}", program.out);
        }
        assert_eq!(sent, received, "G3: what was sent is what was received");
        self.counts.limits += limits;
    }

    /// How much of the output of a rank may be of an earlier epoch of the job: the next one prints on from there.
    pub fn printed_before(&self, process: ProcessId) -> usize {
        let before = self.processes.iter().filter(|of| of.id == process);
        let before = before.filter(|of| of.incarnation().is_some_and(|incarnation| incarnation.epoch < self.checks.epoch));
        before.filter_map(|of| of.lib.as_ref()).map(|lib| lib.program.out.len()).max().unwrap_or(0)
    }

    /// The one documented loss of output: without a terminal the home keeps it, and is lost before another terminal has come. All that homes have kept so that are lost, or
    /// that the terminal's side does not take for a member.
    pub fn lost_with_homes(&self, rank: Rank) -> impl Iterator<Item = Range<usize>> {
        let mut lost = self.kept.get(&rank).cloned().unwrap_or_default();
        let view = self.machines.get(self.terminal.at()).and_then(|machine| machine.node.as_ref()?.view());
        let apart = self.machines.iter().filter(|machine| view.is_some_and(|view| view.get(&machine.member.id).is_none()));
        lost.extend(
            apart.flat_map(|machine| kept_at(machine, self.terminal.job())).filter(|kept| kept.0 == rank).map(|kept| kept.1),
        );
        lost.sort_by_key(|range| range.start);
        // Pieces that follow each other are one.
        let mut joined: Vec<Range<usize>> = Vec::new();
        for range in lost {
            match joined.last_mut().filter(|last| range.start <= last.end) {
                Some(last) => last.end = last.end.max(range.end),
                None => joined.push(range),
            }
        }
        joined.into_iter()
    }

    /// A machine is lost: if it is the home of the job, no other node has what the home keeps there.
    pub fn note_kept(&mut self, at: usize) {
        self.over.iter_mut().filter(|over| over.0 == at).for_each(|over| over.1 = true);
        for (rank, range) in kept_at(&self.machines[at], self.terminal.job()) {
            self.kept.entry(rank).or_default().push(range);
        }
    }
}
