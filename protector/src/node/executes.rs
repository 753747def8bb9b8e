//! A process executes another program (exec): what its protectors hold of the one before is forgotten first.

use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{NodeId, ProcessId};
use radic_wire::limits;
use radic_wire::peer::Query;

use super::Node;
use super::checkpoints::Schedule;
use super::events::About;
use super::numbers::ObserverId;
use super::observers::STORE;
use super::purpose::Purpose;

/// Time during which a protector that does not say that it has forgotten a process is asked again: as long as a process without a
/// protector waits for one.
const FORGET: Duration = Duration::from_secs(90);

impl Node {
    /// The process executes another program. What was logged of the one before must be forgotten before the new one logs.
    pub(super) fn begin_from_nothing(&mut self, now: Duration, observer: ObserverId, process: ProcessId) {
        self.registry.forget(process);
        self.handle_log_read(now, process);
        if let Some(observed) = self.observers.processes.get_mut(&process) {
            observed.schedule = Schedule::default();
            observed.counters = None;
        }
        // The protector first: its replica must not be told again what it has forgotten.
        let two = self.hosts.get(&process.job).is_some_and(|host| host.protection().replicas == 2);
        let mut holders: Vec<NodeId> = self.protectors.iter().flatten().take(if two { 2 } else { 1 }).cloned().collect();
        // It may have logged elsewhere until just now: the new program's journal is to begin after that, too.
        let former = self.former_holders(process);
        holders.extend(former.into_iter().filter(|node| !self.protectors.iter().flatten().any(|now| now == node)));
        let journal = self.here(process).map_or(0, |here| here.log_end.max(here.begins));
        self.forget_at(now, (now + FORGET, journal), observer, process, holders);
    }

    fn forget_at(
        &mut self,
        now: Duration,
        (until, journal): (Duration, u64),
        observer: ObserverId,
        process: ProcessId,
        mut holders: Vec<NodeId>,
    ) {
        if holders.is_empty() {
            // No position stands for two outcomes. Others may keep a little more of the journal than its log had, and the log may be lost with its node.
            let journal = journal + limits::LOG_CHUNK as u64;
            self.recovery.here.entry(process).or_default().begins = journal;
            return self.welcome(now, observer, process, journal);
        }
        let node = holders.remove(0);
        let purpose = Purpose::Anew { observer, process, node: node.clone(), then: holders, until, journal };
        self.gather_from(now, purpose, &Query::ForgetProcess(process), vec![node], STORE);
    }

    /// A protector has forgotten a process (`silent` is None), or has not said so.
    pub(super) fn finish_from_nothing(
        &mut self,
        now: Duration,
        (until, journal): (Duration, u64),
        (observer, process): (ObserverId, ProcessId),
        silent: Option<NodeId>,
        mut then: Vec<NodeId>,
    ) {
        if !self.is_newest(observer, process) {
            return;
        }
        if now < until || silent.is_none() {
            // A node that only this node does not reach is not dead, and a side without a majority declares no node dead: so it
            // is asked again.
            silent.into_iter().for_each(|node| then.insert(0, node));
            return self.forget_at(now, (until, journal), observer, process, then);
        }
        let text = "its protector does not answer, and may hold the log of the program before it".to_owned();
        self.record(now, EventName::Refused, About::rank(process.job, process.rank), text.clone());
        self.refuse(observer, text);
    }
}
