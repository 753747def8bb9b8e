//! Whether a restart of the job from its beginning was the last resort. What docs/guarantees.md does not name as its cause is a violation: all that
//! was done is lost, and nothing that
//! is done since is compared with what was done before.

use std::time::Duration;

use radic_protector::fetching::{FetchError, WRONG_CODE};
use radic_protector::store::Speaker;
use radic_wire::ids::{ProcessId, Rank};

use super::machine::name;
use super::net::machine_of;
use super::world::World;

/// So often in a row a process may die between its restore and living again, as in `node/host.rs`.
const DEATHS: u32 = 4;
/// So often in a row the log gives the newest image, as in `store/types.rs`. Where received bytes stay with their senders there is no image before it
/// to go back to.
const RESTORES: u32 = 2;
/// What a home says that finds an epoch ended whose home is lost.
const BEGUN: &str = "its home was lost while the job restarted";
/// What is said when a rank has been stopped for too long.
const STOPPED: &str = "is one stopped?";

/// Time after a connection broke in which images may not come because of that, as in `fetching/fetch.rs`.
const HEARD: Duration = Duration::from_secs(3);

/// What has gone wrong with a process since it was live last, in this epoch.
#[derive(Debug, Default, Clone, Copy)]
pub struct Trouble {
    /// Its images could not be had. "A damaged image: refused; the replica's copy with `--replicas 2`, else the job restarts from its beginning."
    /// A log service that is out of reach
    /// counts as lost: "a node and its protector together: the job restarts from its beginning".
    pub has_no_images: bool,
    /// "A process dies after its restore and before it is live: after four times its job restarts from its beginning."
    pub deaths: u32,
    /// No image of it was committed where it was fenced: "it was lost before a checkpoint". One that is committed since was verified by then, and
    /// its replica had not committed it.
    pub had_no_image: bool,
    /// Logs that were given to bring it back. "After two times from the image before the newest", where there is one.
    pub restores: u32,
}

impl World {
    /// The home on this machine says that the job restarts from its beginning, and why.
    pub fn judge_restart(&mut self, at: usize, text: &str) {
        let Some(job) = self.terminal.job() else { return };
        // A home that the others have declared dead meanwhile speaks of an epoch that is over.
        if self.is_declared_dead(at) {
            return;
        }
        let rank = text.split("rank ").nth(1).and_then(|rest| rest.split(':').next()).and_then(|rank| rank.parse().ok());
        let process = ProcessId { job, rank: Rank(rank.expect("a restart names a rank")) };
        let trouble = self.checks.trouble(process);
        let is_stopped = || (0..self.processes.len() as u32).any(|pid| self.is_stopped(pid));
        let is_excused = trouble.has_no_images
            || trouble.had_no_image
            || trouble.deaths >= DEATHS
            || trouble.restores >= RESTORES && self.plan.stays
            || text.contains(BEGUN) && !self.checks.counts()
            || text.contains(STOPPED) && is_stopped();
        let restorable = self.restorable(at, process);
        assert!(
            is_excused || restorable.is_empty(),
            "restart: n{} says \"{text}\", and machines {restorable:?} hold a log that brings {process} back ({trouble:?})",
            at + 1
        );
    }

    /// The machines in the view of this one that hold a log from which a process could be brought back, with all that was ever acknowledged. "A
    /// node and its protector together: the
    /// job restarts from its beginning, once; with `--replicas 2` survived"; "a node on which a rank is live again, and it has no checkpoint at
    /// the new protector yet".
    fn restorable(&self, at: usize, process: ProcessId) -> Vec<usize> {
        let Some(view) = self.machines[at].node.as_ref().and_then(|node| node.view()) else { return Vec::new() };
        let (epoch, stable) = (self.checks.launched(), self.checks.stable(process));
        let is_member = |of: usize| view.members.iter().any(|member| member.id.name == name(of));
        let holds = |of: &usize| {
            let store = self.machines[*of].logs.server.store();
            store.can_restart(process)
                && store.incarnation(process).is_some_and(|incarnation| incarnation.epoch == epoch)
                && store.journal_end(process) >= stable
        };
        // "A daemon that hangs for longer is taken for dead."
        let counts = |of: &usize| self.is_up(*of) && is_member(*of) && !self.is_declared_dead(*of) && !self.rests(*of);
        (0..self.machines.len()).filter(counts).filter(holds).collect()
    }

    /// The images of a process do not come to this machine: it is judged whether what is said of that is true.
    pub fn judge_fetch(&mut self, at: usize, speaker: Speaker, error: &FetchError) {
        let Speaker { process, incarnation } = speaker;
        if self.is_declared_dead(at) {
            return;
        }
        match error {
            FetchError::GivenUp => return,
            FetchError::Unreplicated(first) => return self.judge_fetch(at, speaker, first),
            FetchError::Neither(first, second) => {
                self.judge_fetch(at, speaker, first);
                return self.judge_fetch(at, speaker, second);
            }
            FetchError::Bad(image, why) => {
                // One that is not there was judged when it was looked for (G6).
                let is_damaged = why != WRONG_CODE || self.checks.damaged.contains(&(process, *image));
                assert!(is_damaged, "restart: n{} takes image {image} of {process} for damaged: {why}", at + 1);
            }
            FetchError::NotHeld(from, image) => {
                let from = machine_of(*from);
                let is_held = self.machines[from].logs.committed(process, *image).is_some();
                assert!(!is_held, "restart: n{} is not given image {image} of {process}, which n{} holds", at + 1, from + 1);
            }
            FetchError::Service(from, why) => {
                let from = machine_of(*from);
                // One that knows another incarnation has lost the log since, or another protector has begun the next one.
                let is_known = self.machines[from].logs.server.store().incarnation(process) == Some(incarnation);
                let is_there = self.is_up(from) && is_known && !self.is_hindered(from, at);
                assert!(!is_there, "restart: n{} gets no image of {process} from n{}, which is there: {why}", at + 1, from + 1);
            }
            FetchError::NoImage
            | FetchError::Room { .. }
            | FetchError::NoThread(_)
            | FetchError::Crowd
            | FetchError::Apart(_) => {
                panic!("restart: n{} gets no image of {process}: {error}", at + 1)
            }
        }
        if self.checks.is_voice(process, incarnation) {
            self.checks.trouble_of(process).has_no_images = true;
        }
    }

    /// Whether this machine's node does nothing for now.
    fn rests(&self, at: usize) -> bool {
        self.machines[at].paused.max(self.machines[at].hung) > self.now
    }

    /// Whether something keeps one of these machines from answering the other.
    fn is_hindered(&self, one: usize, other: usize) -> bool {
        let pair = (one.min(other), one.max(other));
        let is_broken = self.net.broken.is_some_and(|at| self.now < at + HEARD);
        let slow = [one, other].iter().any(|at| self.net.slow.get(at).is_some_and(|more| !more.is_zero()));
        let rests = self.rests(one) || self.rests(other);
        is_broken || slow || rests || self.net.cuts.get(&pair).is_some_and(|until| *until > self.now)
    }
}
