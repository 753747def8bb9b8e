//! Processes that die at their very end, when they were let go: the job's result is what its ranks have said.

use radic_wire::process::{LogMode, PayloadMode, ProgramEnd};

use super::*;

const KILLED: ExitStatus = ExitStatus::Signal(libc::SIGKILL);

/// A job of two ranks whose received bytes stay with their senders.
fn start(cluster: &mut Cluster) -> JobId {
    let sender = Protection { log_mode: LogMode::Causal, payload: PayloadMode::Sender, ..never() };
    cluster.start_protected(2, sender)
}

fn say_end(cluster: &mut Cluster, job: JobId, rank: u32, code: i32) {
    cluster.say(job, rank, ToNode::AtEnd(ProgramEnd { code, output: [0, 0] }));
}

fn leave(cluster: &mut Cluster, job: JobId, rank: u32) {
    cluster.say(job, rank, ToNode::Leaving(Box::default()));
}

/// The same, and both have come to their ends and were let go; rank 1 has exited.
fn let_go(cluster: &mut Cluster) -> JobId {
    let job = start(cluster);
    say_end(cluster, job, 0, 0);
    cluster.run_for(Duration::from_secs(1));
    assert!(!cluster.told(0).contains(&FromNode::MayEnd), "rank 1 goes on");
    say_end(cluster, job, 1, 0);
    cluster.run_until(|c| (0..2).all(|rank| c.told(rank).contains(&FromNode::MayEnd)));
    leave(cluster, job, 1);
    cluster.exit(at(job, 1), ExitStatus::Code(0));
    job
}

fn outcome(cluster: &mut Cluster) -> Outcome {
    cluster.run_until(|c| c.outcome(1).is_some());
    assert!(cluster.restored.is_empty(), "{:?}", cluster.restored);
    cluster.outcome(1).expect("it was waited for")
}

#[test]
fn a_rank_that_is_killed_when_it_was_let_go_counts_with_what_it_said() {
    for leaves in [false, true] {
        let mut cluster = Cluster::new(3);
        let job = let_go(&mut cluster);
        if leaves {
            leave(&mut cluster, job, 0);
        }
        cluster.exit(at(job, 0), KILLED);
        assert_eq!(outcome(&mut cluster), Outcome { code: 0, reason: EndReason::Finished }, "it has left: {leaves}");
        cluster.run_for(Duration::from_secs(1));
        assert!(cluster.nothing_left());
    }
}

/// Only what is left of its program runs then.
#[test]
fn what_a_rank_does_itself_when_it_has_left_is_its_end() {
    for (status, code) in [(ExitStatus::Signal(libc::SIGSEGV), 139), (ExitStatus::Code(5), 5)] {
        let mut cluster = Cluster::new(3);
        let job = let_go(&mut cluster);
        leave(&mut cluster, job, 0);
        cluster.exit(at(job, 0), status);
        assert_eq!(outcome(&mut cluster).code, code);
    }
}

#[test]
fn a_rank_whose_exit_ends_the_job_counts_with_what_it_said_if_it_is_killed_instead() {
    for leaves in [false, true] {
        let mut cluster = Cluster::new(3);
        let job = start(&mut cluster);
        say_end(&mut cluster, job, 0, 3);
        cluster.run_until(|c| c.told(0).contains(&FromNode::MayEnd));
        if leaves {
            leave(&mut cluster, job, 0);
        }
        cluster.exit(at(job, 0), KILLED);
        let Outcome { code: 3, reason: EndReason::RankFailed { rank, status, .. } } = outcome(&mut cluster) else {
            panic!("{:?}", cluster.outcome(1));
        };
        assert_eq!((rank, status), (Rank(0), ExitStatus::Code(3)));
    }
}

/// It counts as crashed, and comes to its end once more.
#[test]
fn a_rank_that_is_killed_before_all_have_come_to_their_ends_is_to_be_brought_back() {
    for leaves in [false, true] {
        let mut cluster = Cluster::new(3);
        let job = start(&mut cluster);
        say_end(&mut cluster, job, 0, 0);
        cluster.run_for(Duration::from_millis(100));
        if leaves {
            leave(&mut cluster, job, 0);
        }
        cluster.exit(at(job, 0), KILLED);
        cluster.run_until(|c| c.recorded(EventName::Suspect) > 0);
        assert_eq!(cluster.outcome(1), None);
    }
}

/// A word that was under way when the node forgot the job, or that no node may say, lets nobody go.
#[test]
fn no_process_is_let_go_where_the_end_is_not_remembered() {
    let mut cluster = Cluster::new(3);
    let job = start(&mut cluster);
    cluster.post(&name(1), Input::Message(id(1), PeerMessage::ToHost(job, ToHost::LetGo(Epoch::FIRST))));
    cluster.run_for(Duration::from_secs(1));
    assert!(!cluster.told(0).contains(&FromNode::MayEnd));
}
