//! What is lost comes back, or its job restarts, or says why it ends: whatever is lost, and in whatever order the news of it
//! comes.

mod ending;
mod fences;
mod listeners;
mod next_home;

use radic_wire::peer::{Standing, Stood};
use radic_wire::process::StreamEnd;

use super::*;
use crate::membership::ring::watcher_of;

/// Enough for everything that takes no time of its own.
const SOON: Duration = Duration::from_millis(50);

/// With [`Cluster::jitter`]: most that a message is under way.
pub(super) const JITTER_US: u64 = 4_000;

/// A program that puts a key, enters a fence, gets what the others have put, and so on.
#[derive(Debug, Default)]
pub(super) struct Program {
    initialized: bool,
    /// Fences that it was let out of.
    fences: u64,
    /// Questions since the last fence.
    asked: u32,
    /// Questions, and answers that it has had, in this incarnation.
    lines: (usize, usize),
    finalized: bool,
}

impl Program {
    pub(super) fn restored(fences: u64) -> Self {
        Program { initialized: true, fences, ..Program::default() }
    }
}

impl Cluster {
    /// A protected job with one rank on each of the first `ranks` nodes. All libraries are through with `MPI_Init`, and all ranks
    /// have an image.
    pub(super) fn start_recoverable(&mut self, node: usize, ranks: u32) -> JobId {
        self.start_recoverable_on(node, &(1..=ranks as usize).collect::<Vec<_>>())
    }

    fn start_recoverable_on(&mut self, node: usize, nodes: &[usize]) -> JobId {
        let (ranks, nodes) = (nodes.len() as u32, nodes.iter().map(|node| name(*node)).collect());
        let protection = Protection { replicas: self.replicas, ..never() };
        let spec = JobSpec { protection, nodes, restart_on: self.restart_on, on_loss: self.on_loss, ..spec(ranks) };
        self.hello(node, 1, Request::Run { spec: Box::new(spec), attach: true });
        self.run_until(|c| c.ranks.len() == ranks as usize);
        let job = self.ranks.keys().next().expect("it has started").job;
        for rank in 0..ranks {
            self.say(job, rank, join(job, rank));
            self.pmi(at(job, rank), "cmd=init pmi_version=1 pmi_subversion=1");
        }
        self.run_until(|c| (0..ranks).all(|rank| matches!(c.told(rank), [FromNode::Joined { .. }])));
        (0..ranks).for_each(|rank| self.commit(job, rank, 0));
        job
    }

    /// An image of a rank is committed at its protector, and with two replicas at the next node, after this many fences.
    pub(super) fn commit(&mut self, job: JobId, rank: u32, fences: u64) {
        let host = &self.ranks[&at(job, rank)].0;
        let protector = self.nodes[host].holder_of(at(job, rank));
        let view = self.nodes[&protector.name].view().expect("a member");
        let copy = watcher_of(view, &protector).filter(|next| self.replicas == 2 && next.id.name != *host);
        let copy = copy.map(|next| next.id.name.clone());
        copy.into_iter().chain([protector.name]).for_each(|node| _ = self.images.insert((node, at(job, rank)), fences));
    }

    /// Whether a rank runs that has joined, and its protector is there.
    fn can_commit(&self, job: JobId, rank: u32) -> bool {
        let node = &self.nodes[&self.ranks[&at(job, rank)].0];
        let joined = node.observers.processes.contains_key(&at(job, rank));
        self.runs(job, rank) && joined && !self.dead.contains(&node.holder_of(at(job, rank)).name)
    }

    /// What has happened since the job began, and the state of each rank.
    pub(super) fn story(&self, job: JobId, ranks: u32) -> String {
        let mut events: Vec<_> = self.nodes.values().flat_map(|node| node.events.all()).filter(|e| e.job == Some(job)).collect();
        events.sort_by_key(|event| event.at_ms);
        let told = events.into_iter().map(|e| format!("{} {}: {:?}: {}\n", e.at_ms, e.node, e.event, e.text));
        let stands = (0..ranks).filter_map(|rank| self.ranks.get(&at(job, rank)).map(|rank_there| (rank, rank_there)));
        let stands = stands.map(|(rank, (node, r))| format!("rank {rank} at {node}, ended: {}, {:?}\n", r.ended, r.program));
        told.chain(stands).collect()
    }

    fn runs(&self, job: JobId, rank: u32) -> bool {
        let (host, pretended) = &self.ranks[&at(job, rank)];
        !pretended.ended && !self.dead.contains(host)
    }

    /// Nodes that die at the same moment: what they had is gone with them.
    pub(super) fn kill_all(&mut self, nodes: &[usize]) {
        for node in nodes {
            self.kill(&name(*node));
            self.images.retain(|(holder, _), _| *holder != name(*node));
        }
    }

    fn has_restarted(&self, job: JobId) -> bool {
        let incarnations =
            self.nodes.iter().filter(|(node, _)| !self.dead.contains(*node)).flat_map(|(_, node)| node.hosts.get(&job));
        let incarnations: BTreeSet<_> = incarnations.map(|host| host.epoch()).collect();
        // The next one, or if the home was lost, the one after that.
        incarnations.len() == 1 && incarnations.iter().all(|incarnation| matches!(incarnation.count, 1 | 2))
    }

    /// All ranks of the job exit; it ends with 0.
    fn end_well(&mut self, job: JobId, client: u64) {
        let within: Vec<_> =
            self.ranks.iter().filter(|(id, (_, rank))| id.job == job && !rank.ended).map(|(id, _)| *id).collect();
        // Ranks that were launched once more have not called MPI_Init.
        if !self.has_restarted(job) {
            within.into_iter().for_each(|id| self.pmi(id, "cmd=finalize"));
        }
        self.run_for(SOON);
        self.exit_all(job);
        self.run_until(|c| c.outcome(client).is_some() && c.nothing_left());
        assert_eq!(self.outcome(client), Some(Outcome { code: 0, reason: EndReason::Finished }));
    }
}

#[test]
fn a_rank_goes_on_at_the_protector_of_its_node() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    cluster.kill_all(&[2]);
    cluster.run_until(|c| !c.restored.is_empty());
    assert_eq!(cluster.restored, [(at(job, 1), Incarnation::restarted(1), name(3))]);
    cluster.run_for(SOON);
    cluster.end_well(job, 1);
}

#[test]
fn the_home_and_its_protector_are_lost_together_and_the_job_restarts() {
    for lost in [[1, 2], [2, 1]] {
        let mut cluster = Cluster::new(5);
        let job = cluster.start_recoverable(5, 4);
        let died = cluster.now;
        cluster.kill_all(&lost);
        cluster.run_until(|c| c.has_restarted(job) && c.launched.len() == 8);
        assert!(cluster.now - died < Duration::from_secs(3), "{:?}", cluster.now - died);
        cluster.run_for(SOON);
        cluster.end_well(job, 1);
    }
}

/// The log is at the next two nodes. The ranks that are left go on, whichever death is heard of first, and no other rank goes
/// back.
#[test]
fn with_two_replicas_a_node_and_its_protector_are_lost_and_the_next_one_brings_back_what_was_there() {
    let mut taken_over = 0;
    for seed in 0..200 {
        for lost in [[1, 2], [2, 3], [3, 4]] {
            let mut cluster = Cluster::new(7);
            cluster.replicas = 2;
            let job = cluster.start_recoverable(7, 4);
            cluster.run_for(SOON);
            cluster.jitter = Some(Random::new(seed));
            let mut random = Random::new(seed);
            let (first, second) = if random.next().is_multiple_of(2) { (lost[0], lost[1]) } else { (lost[1], lost[0]) };
            cluster.kill_all(&[first]);
            // This is before any rank goes on elsewhere and waits for a checkpoint there.
            cluster.run_for(Duration::from_micros(random.next() % 10_000));
            cluster.kill_all(&[second]);
            let until = cluster.now + Duration::from_secs(10);
            while !(0..4).all(|rank| cluster.runs(job, rank)) {
                assert!(cluster.now < until, "seed {seed}, {lost:?}: it hangs\n{}", cluster.story(job, 4));
                cluster.run_for(LATENCY);
            }
            cluster.run_for(SOON);
            let told =
                || format!("seed {seed}: {first} and {second} are lost: {:?}\n{}", cluster.restored, cluster.story(job, 4));
            // A rank that was brought back on the node that died then is brought back once more.
            assert!(cluster.launched.len() == 4 && matches!(cluster.restored.len(), 2 | 3), "it restarted: {}", told());
            let copy = name(lost[1] + 1);
            let orders = cluster.orders.iter().filter(|(node, order)| *node == copy && matches!(order, StoreOrder::TakeOver(_)));
            // Otherwise the host has found its next protector in time.
            taken_over += orders.count();
            cluster.end_well(job, 1);
        }
    }
    assert!(taken_over > 200, "only {taken_over} ranks of 600 were brought back by a node that only had the copy");
}

/// A protector is lost with its order to bring a process back, which its stand-in knows and the node that was to carry it out
/// does not. The two must not wait for each other, also if they are one node or the one has the other for its next protector.
#[test]
fn an_order_that_is_lost_with_its_protector_is_given_by_its_stand_in() {
    let (lost, protector, stand_in) = (2, 3, 4);
    for (nodes, target) in [(vec![2, 3, 4, 5], 1), (vec![1, 2, 3, 4], 5), (vec![1, 2, 3], 4)] {
        let mut cluster = Cluster::new(7);
        // The node with the fewest ranks.
        (cluster.replicas, cluster.restart_on) = (2, RestartOn::Any);
        let job = cluster.start_recoverable_on(7, &nodes);
        cluster.run_for(SOON);
        let rank = nodes.iter().position(|node| *node == lost).expect("it has one") as u32;
        cluster.kill_all(&[lost]);
        // The stand-in knows where the process is to go on, not only that it is fenced.
        let known = |c: &Cluster| c.nodes[&name(stand_in)].recovery.wards[&job].ranks[&Rank(rank)].host.name == name(target);
        cluster.run_until(known);
        cluster.kill_all(&[protector]);
        let until = cluster.now + Duration::from_secs(10);
        while cluster.restored.len() < 2 {
            assert!(cluster.now < until, "to {target}: it is not brought back\n{}", cluster.story(job, 4));
            cluster.run_for(LATENCY);
        }
        cluster.run_for(SOON);
        assert!(cluster.restored.contains(&(at(job, rank), Incarnation::restarted(2), name(target))), "{:?}", cluster.restored);
        assert_eq!((cluster.launched.len(), cluster.restored.len()), (nodes.len(), 2), "{}", cluster.story(job, 4));
        cluster.end_well(job, 1);
    }
}

/// A host keeps the protector that it has, though its stand-in is the next one in the ring by now. The stand-in lets the copy go,
/// or two nodes could bring the process back (G1, G4).
#[test]
fn a_stand_in_lets_go_of_what_another_node_protects() {
    for (protector, lets_go) in [(4, false), (3, false), (6, true)] {
        let mut cluster = Cluster::new(7);
        cluster.replicas = 2;
        let job = cluster.start_recoverable(7, 3);
        cluster.run_for(SOON);
        let (process, incarnation, now) = (at(job, 1), Incarnation::FIRST, cluster.now);
        cluster.kill_all(&[3]);
        cluster.run_until(|c| c.nodes[&name(4)].view().is_some_and(|view| view.get(&id(3)).is_none()));
        let node = cluster.nodes.get_mut(&name(4)).expect("it is there");
        node.finish_hosts(now, process, incarnation, &id(2), Some(Some(id(protector))));
        let outputs = std::iter::from_fn(|| node.poll_output()).collect::<Vec<_>>();
        let has_let_go = outputs.iter().any(|output| matches!(output, Output::Store(StoreOrder::LetGo(of)) if *of == process));
        assert_eq!(has_let_go, lets_go, "{protector}: {outputs:?}");
    }
}

/// The news of two deaths comes in another order to each node. A rank that is brought back by a protector which knows of one
/// death only is part of the job all the same, and what is left of an earlier epoch does not end a job that has restarted.
#[test]
fn two_nodes_die_and_the_news_of_it_comes_in_any_order() {
    let (mut restarts, mut moved) = (0, 0);
    for seed in 0..200 {
        for lost in [[1, 2], [2, 1], [2, 3], [3, 2], [1, 3], [3, 1], [2, 4], [4, 2], [1, 4], [4, 1]] {
            let mut cluster = Cluster::new(7);
            // Not with its protector, but where there are fewest ranks: that node may know more than the protector.
            cluster.restart_on = RestartOn::Any;
            let job = cluster.start_recoverable(7, 4);
            cluster.jitter = Some(Random::new(seed));
            cluster.kill_all(&lost[..1]);
            // The node that brings the first one back says nothing to one other node for a while.
            let (from, to) = (id(lost[0] + 1), name(5 + seed as usize % 3));
            cluster.arrivals.insert((from, to), cluster.now + Duration::from_micros(Random::new(seed).next() % 700_000));
            cluster.kill_all(&lost[1..]);
            let until = cluster.now + Duration::from_secs(10);
            let back = |c: &Cluster| c.restored.len() == 2 || c.has_restarted(job) && c.launched.len() == 8;
            while !back(&cluster) {
                assert!(cluster.now < until, "seed {seed}, {lost:?}: it hangs\n{}", cluster.story(job, 4));
                cluster.run_for(LATENCY);
            }
            cluster.run_for(SOON);
            *(if cluster.has_restarted(job) { &mut restarts } else { &mut moved }) += 1;
            cluster.end_well(job, 1);
        }
    }
    assert!(restarts > 300 && moved > 300, "{restarts} jobs have restarted, {moved} went on");
}

#[test]
fn no_node_that_knows_of_the_job_is_left_and_its_terminal_says_so_at_once() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 1);
    // The node of the command that has started a job knows enough to restart it. The node of this command does not.
    cluster.hello(4, 2, Request::Attach { job: job.to_string() });
    cluster.run_until(|c| c.replies(2).iter().any(|reply| matches!(reply, Reply::Attached { .. })));
    let died = cluster.now;
    cluster.kill_all(&[1, 2]);
    cluster.run_until(|c| c.outcome(2).is_some());
    assert!(cluster.now - died < Duration::from_secs(3), "{:?}", cluster.now - died);
    match cluster.outcome(2) {
        Some(Outcome { code: 113, reason: EndReason::NodeLost { node, ranks, why } }) => {
            assert_eq!((node, ranks), (name(1), vec![Rank(0)]));
            assert!(why.contains("everything is lost that was known of the job"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

impl Cluster {
    /// A rank is ended by a signal that RADIC has not sent it.
    fn crash(&mut self, job: JobId, rank: u32) {
        self.exit(at(job, rank), ExitStatus::Signal(libc::SIGSEGV));
    }

    fn incarnations(&self, job: JobId, rank: u32) -> Vec<u32> {
        self.restored
            .iter()
            .filter(|(process, ..)| *process == at(job, rank))
            .map(|(_, incarnation, _)| incarnation.restart)
            .collect()
    }

    fn holder(&self, node: usize, job: JobId, rank: u32) -> NodeId {
        self.nodes[&name(node)].holder_of(at(job, rank))
    }
}

#[test]
fn a_rank_crashes_while_its_protector_dies_and_the_job_restarts() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 3);
    cluster.crash(job, 1);
    cluster.run_for(Duration::from_micros(50));
    cluster.kill_all(&[3]);
    cluster.run_until(|c| c.has_restarted(job) && c.launched.len() == 6);
    cluster.end_well(job, 1);
}

/// It has not crashed by itself, so its signal is not the job's code: no image brings it back.
#[test]
fn a_rank_that_dies_before_it_lives_again_is_no_failure_of_the_program() {
    let mut cluster = Cluster::new(6);
    let job = cluster.start_apart();
    let incarnations = |cluster: &Cluster| cluster.incarnations(job, 1).len();
    for incarnation in 1..=2 * crate::store::RESTORES as usize {
        cluster.run_until(|c| incarnations(c) == incarnation && c.runs(job, 1));
        assert!(!cluster.has_restarted(job));
        cluster.crash(job, 1);
    }
    cluster.silent = false;
    cluster.run_until(|c| c.has_restarted(job));
    cluster.run_for(SOON);
    cluster.end_well(job, 1);
}

/// It dies between its restore and being live, and its images are gone by then: the signal does not count as a failure of the
/// program at its start. Two that come after it do.
#[test]
fn a_failed_restore_is_none_of_the_two_crashes_that_end_a_job() {
    let mut cluster = Cluster::new(6);
    let job = cluster.start_apart();
    cluster.run_until(|c| c.runs(job, 1));
    for launched in [6, 9] {
        cluster.images.clear();
        cluster.crash(job, 1);
        cluster.run_until(|c| c.outcome(1).is_some() || c.launched.len() == launched);
        assert_eq!(cluster.outcome(1), None);
        cluster.run_for(SOON);
    }
    cluster.crash(job, 1);
    cluster.run_until(|c| c.outcome(1).is_some());
    let outcome = cluster.outcome(1).unwrap();
    assert!(
        outcome.code == 128 + libc::SIGSEGV && matches!(outcome.reason, EndReason::RankFailed { rank: Rank(1), .. }),
        "{outcome:?}"
    );
}

#[test]
fn a_protector_that_has_come_late_knows_which_incarnation_a_process_is_in() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(1, 2);
    cluster.crash(job, 1);
    cluster.run_until(|c| c.incarnations(job, 1) == [1]);
    cluster.commit(job, 1, 0);
    // The node that is next in the ring has heard of nothing that was before it came.
    cluster.kill_all(&[4]);
    cluster.run_for(Duration::from_secs(1));
    cluster.add(5);
    cluster.run_until(|c| c.nodes[&name(5)].view().is_some());
    cluster.run_for(SOON);
    cluster.kill_all(&[3]);
    cluster.run_for(Duration::from_secs(1));
    assert_eq!(cluster.holder(2, job, 1), id(5));
    cluster.commit(job, 1, 0);
    cluster.crash(job, 1);
    cluster.run_until(|c| c.incarnations(job, 1).len() == 2);
    assert_eq!(cluster.incarnations(job, 1), [1, 2], "G4: no two incarnations have one number");
    cluster.run_for(SOON);
    cluster.end_well(job, 1);
}

#[test]
fn an_order_brings_a_process_back_once() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(1, 2);
    cluster.crash(job, 1);
    cluster.run_until(|c| c.incarnations(job, 1) == [1]);
    cluster.run_for(SOON);
    let point = Point { incarnation: Incarnation::restarted(1), cut: 0, output: [0; 2], fences: 0, pmi: (true, false) };
    let message = ToNode::Restored { version: radic_wire::PROTOCOL_VERSION, process: at(job, 1), point };
    cluster.post(&name(2), Input::Observer(ObserverId(77), 1001, message));
    cluster.run_for(SOON);
    assert!(matches!(cluster.told[&ObserverId(77)][..], [FromNode::Refused(_)]), "{:?}", cluster.told[&ObserverId(77)]);
    assert!(cluster.closed.contains(&ObserverId(77)));
}

impl Cluster {
    /// A job on three nodes. The rank of the second goes on at the fourth, with its log at the third. It has not caught up.
    fn start_apart(&mut self) -> JobId {
        // That is the node with the fewest ranks.
        self.restart_on = RestartOn::Any;
        let job = self.start_recoverable(6, 3);
        self.silent = true;
        self.kill_all(&[2]);
        self.run_until(|c| c.incarnations(job, 1) == [1]);
        self.run_for(SOON);
        assert_eq!(self.restored[0].2, name(4));
        assert_eq!(self.holder(4, job, 1), id(3));
        job
    }
}

#[test]
fn a_rank_crashes_when_its_protector_has_just_let_go_of_it() {
    let mut cluster = Cluster::new(6);
    let job = cluster.start_apart();
    cluster.live(&name(4), 1, Incarnation::restarted(1));
    cluster.read_log(&name(4), 1, Incarnation::restarted(1));
    cluster.crash(job, 1);
    cluster.run_until(|c| c.has_restarted(job) && c.launched.len() == 6);
    cluster.run_for(SOON);
    cluster.end_well(job, 1);
}

/// A rank comes back from an image of before `MPI_Init`, which cannot be used, and the home is lost before it has heard so. The
/// next home restarts the job, and does not take the rank for a failed one.
#[test]
fn an_image_of_before_mpi_init_is_found_when_the_home_is_lost() {
    let mut cluster = Cluster::new(6);
    let job = cluster.start_recoverable_on(6, &[1, 3, 5]);
    (0..3).for_each(|rank| cluster.pmi(at(job, rank), "cmd=barrier_in"));
    cluster.run_for(SOON);
    cluster.early.insert(at(job, 1));
    cluster.kill_all(&[3]);
    cluster.run_until(|c| !c.restored.is_empty());
    cluster.kill_all(&[1]);
    cluster.run_until(|c| c.has_restarted(job) && c.launched.len() == 6);
    assert_eq!(cluster.restored.iter().filter(|(process, ..)| *process == at(job, 1)).count(), 1, "it is tried once");
    cluster.run_for(SOON);
    cluster.end_well(job, 1);
}

/// The protector of a rank is lost, and the node with the copy is the next one: a rank that crashes before it has spoken there is
/// brought back from the copy.
#[test]
fn with_two_replicas_whoever_has_the_copy_and_protects_next_may_use_it() {
    let mut cluster = Cluster::new(6);
    cluster.replicas = 2;
    let job = cluster.start_recoverable(6, 3);
    cluster.run_for(SOON);
    cluster.orders.clear();
    cluster.kill_all(&[3]);
    cluster.run_for(Duration::from_secs(2));
    assert_eq!(cluster.holder(2, job, 1), id(4));
    let order = |wanted: &StoreOrder| cluster.orders.iter().position(|(node, order)| *node == name(4) && order == wanted);
    let replica = SocketAddr::new(address(5).ip(), 105);
    let (follows, taken) = (order(&StoreOrder::SetReplica(at(job, 1), Some(replica))), order(&StoreOrder::TakeOver(at(job, 1))));
    assert!(taken.is_some() && follows < taken, "{:?}", cluster.orders);
}

/// The rank is live, and its program has not taken all that had come to it: only its old log has that.
#[test]
fn a_log_is_lost_before_its_process_has_read_all_of_it_and_the_job_restarts() {
    let mut cluster = Cluster::new(6);
    let job = cluster.start_apart();
    cluster.live(&name(4), 1, Incarnation::restarted(1));
    cluster.run_for(SOON);
    assert_eq!(cluster.holder(4, job, 1), id(3));
    cluster.kill_all(&[3]);
    cluster.run_until(|c| c.has_restarted(job) && c.launched.len() == 6);
    cluster.end_well(job, 1);
}

/// A rank that ends without having taken all of its log needs it no more: the protector of its node answers for it.
#[test]
fn a_process_that_has_ended_before_it_has_read_all_of_its_log_leaves_that() {
    let mut cluster = Cluster::new(6);
    let job = cluster.start_apart();
    cluster.live(&name(4), 1, Incarnation::restarted(1));
    cluster.pmi(at(job, 1), "cmd=finalize");
    cluster.run_for(SOON);
    cluster.exit(at(job, 1), ExitStatus::Code(0));
    cluster.run_for(SOON);
    assert_eq!(cluster.holder(4, job, 1), id(5));
    assert_eq!(cluster.nodes[&name(5)].place_of(at(job, 1)), Some(Place::Left));
    cluster.end_well(job, 1);
}

/// The log of a process has just gone to its node's protector, which knows nothing of it yet, when the process executes another
/// program. The new one's journal is to begin behind that of the one before: the node that had that is asked, too.
#[test]
fn the_protector_before_is_asked_where_the_journal_of_a_replaced_program_ends() {
    let mut cluster = Cluster::new(6);
    let job = cluster.start_apart();
    cluster.live(&name(4), 1, Incarnation::restarted(1));
    cluster.read_log(&name(4), 1, Incarnation::restarted(1));
    cluster.run_until(|c| c.holder(4, job, 1) == id(5));
    let pid = cluster.nodes[&name(4)].hosts[&job].pid(Rank(1)).expect("it runs");
    cluster.post(&name(4), Input::Observer(ObserverId(90), pid, join(job, 1)));
    cluster.run_for(SOON);
    assert_eq!(cluster.forgotten_at(at(job, 1)), ["n5", "n3"]);
}

#[test]
fn a_protector_that_is_slow_to_let_go_is_asked_again() {
    let mut cluster = Cluster::new(6);
    let job = cluster.start_apart();
    cluster.deaf = Some(name(3));
    cluster.live(&name(4), 1, Incarnation::restarted(1));
    cluster.read_log(&name(4), 1, Incarnation::restarted(1));
    cluster.run_for(Duration::from_secs(7));
    assert_eq!(cluster.holder(4, job, 1), id(3), "it may still bring it back");
    cluster.deaf = None;
    for query in std::mem::take(&mut cluster.unheard) {
        cluster.post(&name(3), query);
    }
    cluster.run_for(Duration::from_secs(6));
    assert_eq!(cluster.holder(4, job, 1), id(5));
    let place = cluster.nodes[&name(3)].place_of(at(job, 1));
    assert_eq!(place, None, "two nodes would bring it back");
    cluster.end_well(job, 1);
}

/// A rank that is replayed, and had to do with a rank that has ended since, must not wait for that one: its protector answers,
/// and when that is lost too, the home.
#[test]
fn how_a_rank_has_ended_is_known_when_its_node_and_its_protector_are_gone() {
    let mut cluster = Cluster::new(6);
    let job = cluster.start_recoverable(6, 4);
    let stream = StreamId { connection: ConnectionId { opener: at(job, 0), number: 7 }, from_opener: false };
    let end = StreamEnd { offset: 9, closed: true, received: 4 };
    cluster.say(job, 1, ToNode::Finished { stream, end });
    cluster.pmi(at(job, 1), "cmd=finalize");
    cluster.run_for(SOON);
    cluster.exit(at(job, 1), ExitStatus::Code(0));
    cluster.run_for(SOON);
    let ask = |cluster: &mut Cluster, ask| {
        cluster.say(job, 0, ToNode::Where { ask, process: at(job, 1) });
        cluster.say(job, 0, ToNode::Ended { ask: ask + 1, stream, sender: at(job, 1) });
        cluster.run_for(SOON);
        let [.., FromNode::Place { ask: first, place }, FromNode::Final { ask: second, end }] = *cluster.told(0) else {
            panic!("{:?}", cluster.last_told(0))
        };
        assert_eq!((first, second), (ask, ask + 1));
        (place, end)
    };
    assert_eq!(ask(&mut cluster, 10), (Place::Left, Some(end)), "its node");
    cluster.kill_all(&[2]);
    cluster.run_for(Duration::from_secs(1));
    assert_eq!(ask(&mut cluster, 20), (Place::Left, Some(end)), "its protector");
    cluster.kill_all(&[3]);
    cluster.run_until(|c| c.incarnations(job, 2) == [1]);
    cluster.run_for(Duration::from_secs(1));
    // Without what it had received, a rank that goes back could send other bytes than before (Gate B).
    assert_eq!(ask(&mut cluster, 30), (Place::Left, Some(end)), "the home");
    // The rank is not brought back, so what was sent to it need not be kept.
    let stream = StreamId { from_opener: true, ..stream };
    cluster.say(job, 0, ToNode::AskStable { stream, receiver: at(job, 1) });
    cluster.run_for(SOON);
    assert_eq!(*cluster.last_told(0), FromNode::Stable { stream, offset: u64::MAX });
    cluster.end_well(job, 1);
}

/// A rank that is catching up waits for what is not in its log. It is given up, and its job restarts, or ends with a reason if it
/// was asked to.
#[test]
fn a_rank_that_does_not_get_on_is_given_up_and_its_job_restarts() {
    for on_loss in [OnLoss::Restart, OnLoss::Fail] {
        let mut cluster = Cluster::new(5);
        cluster.on_loss = on_loss;
        let job = cluster.start_recoverable(5, 3);
        cluster.silent = true;
        REPLAYED.set(Some(10));
        cluster.crash(job, 1);
        cluster.run_until(|c| c.incarnations(job, 1) == [1]);
        // It makes progress for a while, more slowly than it may wait.
        for replayed in 11..15 {
            cluster.run_for(REPLAY_LIMIT - Duration::from_secs(2));
            REPLAYED.set(Some(replayed));
        }
        assert_eq!(cluster.recorded(EventName::Lost), 0);
        // It is brought back once more.
        cluster.run_until(|c| c.incarnations(job, 1) == [1, 2]);
        assert_eq!(cluster.recorded(EventName::Lost), 0);
        cluster.run_for(REPLAY_LIMIT * 3 / 2);
        let story = cluster.story(job, 3);
        let said = "rank 1: it does not catch up: it stands at 14 of its journal (from 0 to 100); now it waits for something that is not in it";
        assert!(story.contains(said), "{story}");
        REPLAYED.set(None);
        cluster.silent = false;
        match on_loss {
            OnLoss::Restart => {
                cluster.run_until(|c| c.has_restarted(job));
                cluster.run_for(SOON);
                cluster.end_well(job, 1);
            }
            OnLoss::Fail => {
                cluster.run_until(|c| c.outcome(1).is_some());
                let ended = cluster.outcome(1);
                let is_it = |outcome: &Outcome| matches!(&outcome.reason, EndReason::RankLost { why, .. } if why.contains("does not catch up"));
                assert!(ended.as_ref().is_some_and(is_it), "{ended:?}");
            }
        }
    }
}

/// A rank says that it does something else than its log: it is brought back once more, at once; then its job restarts from its beginning.
#[test]
fn a_rank_that_goes_another_way_has_one_more_try() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 3);
    cluster.silent = true;
    cluster.crash(job, 1);
    for incarnations in [&[1][..], &[1, 2]] {
        cluster.run_until(|c| c.incarnations(job, 1) == incarnations);
        assert_eq!(cluster.recorded(EventName::Lost), 0);
        cluster.run_for(Duration::from_secs(1));
        let incarnation =
            cluster.restored.iter().rfind(|(process, ..)| *process == at(job, 1)).map(|(_, incarnation, _)| *incarnation);
        let (observer, node) = (observer_of(1, incarnation.expect("it was restored")), cluster.ranks[&at(job, 1)].0.clone());
        let diverged = ToNode::Diverged("replay diverged: as a test says".to_owned());
        cluster.post(&node, Input::Observer(observer, 1001, diverged));
    }
    cluster.silent = false;
    cluster.run_until(|c| c.has_restarted(job));
    assert_eq!((cluster.recorded(EventName::Death), cluster.recorded(EventName::Lost)), (1, 1));
    cluster.run_for(SOON);
    cluster.end_well(job, 1);
}

/// A rank says that no process of its kind comes back by its log: its job restarts from its beginning at once, without another try.
#[test]
fn a_rank_of_a_kind_that_does_not_come_back_is_not_tried_twice() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 3);
    cluster.silent = true;
    cluster.crash(job, 1);
    cluster.run_until(|c| c.incarnations(job, 1) == [1]);
    cluster.run_for(Duration::from_secs(1));
    let restored = cluster.restored.iter().rfind(|(process, ..)| *process == at(job, 1));
    let incarnation = restored.map(|(_, incarnation, _)| *incarnation).expect("it was restored");
    let (observer, node) = (observer_of(1, incarnation), cluster.ranks[&at(job, 1)].0.clone());
    let doubts = ToNode::Doubts { why: "as a test says".to_owned(), patience: Duration::ZERO };
    cluster.post(&node, Input::Observer(observer, 1001, doubts));
    cluster.silent = false;
    cluster.run_until(|c| c.has_restarted(job));
    assert_eq!((cluster.recorded(EventName::Death), cluster.recorded(EventName::Lost)), (0, 1));
    cluster.run_for(SOON);
    cluster.end_well(job, 1);
}

/// A rank that has caught up is not looked at any more, and one that crashes meanwhile is brought back.
#[test]
fn a_rank_that_lives_may_wait_as_long_as_it_likes() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 3);
    REPLAYED.set(Some(10));
    cluster.crash(job, 1);
    cluster.run_until(|c| c.incarnations(job, 1) == [1]);
    cluster.run_for(REPLAY_LIMIT * 5);
    REPLAYED.set(None);
    assert_eq!(cluster.recorded(EventName::Lost), 0);
    cluster.end_well(job, 1);
}

/// A question waits for a node that says nothing. The process that has asked crashes, and is back when that node is declared
/// dead: the answer is dropped, because the new incarnation has not asked.
#[test]
fn the_answer_to_an_earlier_incarnation_is_dropped() {
    let mut cluster = Cluster::new(6);
    let job = cluster.start_recoverable(6, 3);
    cluster.dead.insert(name(5)); // Silently.
    cluster.say(job, 0, ToNode::Where { ask: 1, process: at(job, 1) });
    cluster.run_for(SOON);
    cluster.crash(job, 0);
    cluster.run_until(|c| c.incarnations(job, 0) == [1]);
    cluster.run_until(|c| c.nodes[&name(1)].view().is_some_and(|view| view.named(&name(5)).is_none()));
    cluster.run_for(SOON);
    cluster.end_well(job, 1);
}

/// A host hears of a new view before its protector, and tells it at once what it protects. The replica is the next node of the
/// new ring all the same.
#[test]
fn a_replica_that_is_lost_is_replaced_whichever_node_hears_of_it_first() {
    for seed in 0..40 {
        let mut cluster = Cluster::new(6);
        cluster.replicas = 2;
        let job = cluster.start_recoverable(6, 3);
        cluster.jitter = Some(Random::new(seed));
        cluster.kill_all(&[4]);
        cluster.run_until(|c| {
            c.nodes.iter().all(|(n, node)| c.dead.contains(n) || node.view().is_some_and(|v| v.members.len() == 5))
        });
        cluster.run_for(SOON);
        for rank in 0..3 {
            let protector = cluster.nodes[&cluster.ranks[&at(job, rank)].0].holder_of(at(job, rank)).name;
            let orders = cluster.orders.iter().rev().filter(|(node, _)| *node == protector);
            let replica = orders.filter_map(|(_, order)| match order {
                StoreOrder::SetReplica(process, replica) if *process == at(job, rank) => Some(*replica),
                _ => None,
            });
            let replica = replica.map(|replica| replica.map(|at| name((at.port() - 100).into()))).next().flatten();
            assert!(replica.as_ref().is_some_and(|replica| *replica != name(4)), "seed {seed}: rank {rank}: {replica:?}");
        }
    }
}

/// A node that protected a process of an earlier epoch has nothing to replicate of it: it may be the replica of the present
/// protector. The two would tell each other what each had said.
#[test]
fn a_node_that_protected_an_earlier_epoch_has_no_replica_of_it() {
    let mut cluster = Cluster::new(6);
    cluster.replicas = 2;
    let job = cluster.start_recoverable(6, 3);
    cluster.images.clear();
    cluster.kill_all(&[2]);
    cluster.run_until(|c| c.has_restarted(job) && c.launched.len() == 6);
    cluster.run_for(SOON);
    let process = at(job, 1);
    let protector = cluster.nodes[&cluster.ranks[&process].0].holder_of(process).name;
    assert_ne!(protector, name(3), "it has another one since");
    let orders = cluster.orders.iter().rev().filter(|(node, _)| *node == name(3));
    let mut replicas = orders.filter_map(|(_, order)| match order {
        StoreOrder::SetReplica(of, replica) if *of == process => Some(*replica),
        _ => None,
    });
    assert_eq!(replicas.next(), Some(None));
    cluster.end_well(job, 1);
}

/// The protector of a process is out of reach of its node alone. That node asks again, and the process waits as long as one that
/// runs would.
#[test]
fn a_process_that_restarts_waits_for_its_protector() {
    for comes_back in [true, false] {
        let mut cluster = Cluster::new(3);
        let job = cluster.start_protected(1, never());
        cluster.deaf = Some(name(2));
        cluster.post(&name(1), Input::Observer(ObserverId(50), 1000, join(job, 0)));
        cluster.run_for(Duration::from_secs(40));
        assert!(!cluster.told.contains_key(&ObserverId(50)), "{:?}", cluster.told);
        cluster.deaf = cluster.deaf.filter(|_| !comes_back);
        cluster.run_for(Duration::from_secs(10));
        cluster.run_for(Duration::from_secs(50));
        match &cluster.told[&ObserverId(50)][..] {
            [FromNode::Joined { .. }] if comes_back => {}
            [FromNode::Refused(why)] if !comes_back => assert!(why.contains("does not answer"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}

/// An image that was committed at a lost protector protects nothing, though the rank's word of it comes when the loss is known:
/// the node waits for the first image at the next protector.
#[test]
fn an_image_at_the_protector_before_does_not_protect() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(1, 1);
    cluster.say(job, 0, ToNode::Initialized);
    cluster.run_until(|c| c.told(0).contains(&FromNode::Checkpoint { request: 1, line: None }));
    let before = cluster.nodes[&name(1)].holder_of(at(job, 0)).name;
    cluster.kill(&before);
    cluster.run_until(|c| c.told(0).contains(&FromNode::Checkpoint { request: 2, line: None }));
    let degraded = |cluster: &Cluster| cluster.nodes[&name(1)].is_degraded(at(job, 0));
    let expected = [(1, Ok(4), true), (2, Err("no room".to_owned()), true), (2, Ok(5), false)];
    for (request, result, is_degraded) in expected {
        assert!(degraded(&cluster));
        cluster.say(job, 0, ToNode::Checkpointed { request, result });
        cluster.run_for(SOON);
        assert_eq!(
            (degraded(&cluster), cluster.recorded(EventName::Reprotected)),
            (is_degraded, usize::from(!is_degraded)),
            "request {request}"
        );
    }
}
