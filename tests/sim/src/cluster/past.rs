//! What each state depends on, as the simulation sees it, and the check that it is held (G1): if the state of a process depends on an outcome of another one, that outcome is stable
//! where it belongs, or a process that runs keeps it, or the log of one.
//!
//! Bytes depend on all that their sender depends on when their frame begins. That is noted beside the network, and goes over to the receiver with the bytes.

use std::collections::BTreeMap;

use radic_observer::connection::{Connection, Slot};
use radic_observer::frames::Leaving;
use radic_wire::causes::{self, Cause};
use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, JobId, ProcessId, Rank};

use super::net::ConnId;
use super::world::World;

/// Up to which position of the journal of each rank something depends on it.
type Past = BTreeMap<Rank, u64>;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Pasts {
    /// By process, from which position of its own journal on it depends on what.
    of: BTreeMap<ProcessId, Vec<(u64, Past)>>,
    /// By connection and side that sends: to which offset of the stream its frames go, and what they depend on.
    on_links: BTreeMap<(ConnId, usize), Vec<(u64, Past)>>,
}

fn merge(into: &mut Past, from: &Past) {
    for (rank, position) in from {
        let known = into.entry(*rank).or_default();
        *known = (*known).max(*position);
    }
}

impl Pasts {
    /// All begins anew.
    pub fn clear(&mut self) {
        *self = Pasts::default();
    }

    /// A process begins with nothing.
    pub fn forget(&mut self, process: ProcessId) {
        self.of.remove(&process);
    }

    fn newest(&self, process: ProcessId) -> Past {
        self.of.get(&process).and_then(|of| of.last()).map(|(_, past)| past.clone()).unwrap_or_default()
    }

    /// A process is brought back with a log that ends there.
    pub fn undo(&mut self, process: ProcessId, log_end: u64) {
        self.of.entry(process).or_default().retain(|(position, _)| *position <= log_end);
    }
}

impl World {
    /// A frame is about to begin on the link of a connection, if none is under way.
    pub fn begins_frame(&mut self, pid: u32, slot: Slot) -> bool {
        self.plan.causal
            && self.lib(pid).observer.table().get(slot).is_some_and(|connection| connection.outgoing().is_between_frames())
    }

    /// It has begun, with bytes from this offset on.
    pub fn note_frame(&mut self, pid: u32, slot: Slot, (conn, side): (ConnId, usize), offset: u64) {
        let me = self.processes[pid as usize].id;
        let observer = &self.lib(pid).observer;
        let Some(Leaving { payload, .. }) = observer.leaving(slot) else { return };
        // What is sent again depends on nothing but the log, as far as that was served.
        let own = (me.rank, observer.log_position());
        let mut past = self.pasts.newest(me);
        merge(&mut past, &Past::from([own]));
        self.pasts.on_links.entry((conn, side)).or_default().push((offset + payload, past));
    }

    /// The program of a process depends on the bytes of this stream before `offset`, or on there being some.
    pub fn note_past(&mut self, pid: u32, slot: Slot, stream: StreamId, offset: u64) {
        let me = self.processes[pid as usize].id;
        if !self.plan.causal || !self.is_voice(pid) || self.lib(pid).observer.is_replaying() {
            return;
        }
        let end = self.lib(pid).observer.table().get(slot).map(Connection::stream_out);
        let Some((conn, side)) = end.and_then(|end| self.lib(pid).sockets.conn(end)) else { return };
        let mut past = self.pasts.newest(me);
        let before = past.clone();
        for (to, of_frame) in self.pasts.on_links.get(&(conn, 1 - side)).into_iter().flatten() {
            merge(&mut past, of_frame);
            if *to >= offset {
                break;
            }
        }
        past.remove(&me.rank);
        if past != before {
            let position = self.lib(pid).observer.journal().end();
            self.trace(|| format!("{me} depends on {past:?} from {position} on, by {stream:?} before {offset}"));
            self.pasts.of.entry(me).or_default().push((position, past.clone()));
            self.check_past(pid, &past, stream);
        }
    }

    fn check_past(&mut self, pid: u32, past: &Past, stream: StreamId) {
        let me = self.processes[pid as usize].id;
        if !self.checks.counts() {
            return;
        }
        let job = (me.job, self.checks.epoch);
        let kept = self.processes.iter().filter(|process| process.ended.is_none()).filter_map(|process| process.lib.as_deref());
        let kept = kept.filter_map(|lib| lib.observer.causes()).map(|causes| causes.set());
        let on = self.machines.iter().filter(|machine| machine.power);
        let logged = on.flat_map(|machine| machine.logs.server.store().causes_of(job.0, job.1));
        let sets: Vec<Vec<u8>> = kept.chain(logged).collect();
        let reach = |rank: &Rank, from: u64| {
            let mut at = from;
            let parts = sets.iter().flat_map(|set| causes::read(set)).map_while(Result::ok);
            let mut parts: Vec<(u64, u64)> = parts
                .filter(|cause| cause.origin() == *rank)
                .filter_map(|cause| if let Cause::Part { from, .. } = cause { Some((from, cause.to())) } else { None })
                .collect();
            parts.sort_unstable();
            for (from, end) in parts {
                at = if from <= at { at.max(end) } else { at };
            }
            at
        };
        // A rank of which all that something depends on was known, and which is lost with the log that had some of it: with these went what only they kept of others. That is found out when the rank comes
        // back, and the job begins anew (docs/design.md, what may be lost).
        let is_gone = |rank: &Rank, to: u64| {
            let process = ProcessId { rank: *rank, ..me };
            let is_known = reach(rank, self.checks.stable(process)) >= to;
            self.is_lost(process) && is_known && reach(rank, self.end_of_logs(process)) < to
        };
        let gone: Vec<Rank> = past.iter().filter(|(rank, to)| is_gone(rank, **to)).map(|(rank, _)| *rank).collect();
        for (rank, to) in past.iter().filter(|(rank, _)| gone.iter().all(|gone| gone == *rank)) {
            let origin = ProcessId { rank: *rank, ..me };
            let at = reach(rank, self.checks.stable(origin));
            assert!(
                at >= *to,
                "G1: {me} depends on {to} of the journal of {origin} by {stream:?}; it is held up to {at}, stable up to {}",
                self.checks.stable(origin)
            );
        }
    }

    /// Up to where the logs of all machines that are there have the journal of this process.
    fn end_of_logs(&self, process: ProcessId) -> u64 {
        let on = self.machines.iter().filter(|machine| machine.power).map(|machine| machine.logs.server.store());
        let now = on.filter(|store| store.incarnation(process).is_some_and(|of| of.epoch == self.checks.epoch));
        now.map(|store| store.journal_end(process)).max().unwrap_or(0)
    }

    /// The journals of a suspended job end there: nothing in them depends on what is not in them (G1).
    pub fn check_suspended(&self, job: JobId, ends: &BTreeMap<Rank, u64>) {
        if !self.plan.causal || !self.checks.counts() {
            return;
        }
        for (rank, end) in ends {
            let me = ProcessId { job, rank: *rank };
            let of = self.pasts.of.get(&me).and_then(|of| of.iter().rev().find(|(position, _)| position < end));
            for (other, to) in of.iter().flat_map(|(_, past)| past) {
                assert!(
                    *to <= ends[other],
                    "G1: {me} is suspended at {end}, which depends on {to} of the journal of rank {other}, and that ends at {}, stable up to {}",
                    ends[other],
                    self.checks.stable(ProcessId { job, rank: *other })
                );
            }
        }
    }

    /// A process is brought back.
    pub fn undo_past(&mut self, pid: u32, incarnation: Incarnation, log_end: u64) {
        let me = self.processes[pid as usize].id;
        if self.checks.is_voice(me, incarnation) {
            self.pasts.undo(me, log_end);
        }
    }
}
