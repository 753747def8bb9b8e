//! Processes that the kernel keeps, and jobs that end because they cannot restart.

use super::*;

/// The next epoch might meet the process on its node: the job ends, with that reason.
#[test]
fn a_job_with_a_process_that_the_kernel_keeps_does_not_restart() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 4);
    let last = (0..4).map(|rank| at(job, rank)).find(|id| ![name(1), name(2)].contains(&cluster.ranks[id].0));
    cluster.unkillable = last;
    cluster.kill_all(&[1, 2]);
    (0..2).for_each(|_| cluster.run_for(Duration::from_secs(40)));
    let Some(Outcome { code: 113, reason: EndReason::RankLost { rank, why, .. } }) = cluster.outcome(1) else {
        panic!("{:?}", cluster.outcome(1));
    };
    assert_eq!(Some(at(job, rank.0)), last);
    assert!(why.contains("was to restart") && why.contains("it waits in the kernel"), "{why}");
    assert_eq!(cluster.launched.len(), 4, "no rank is started once more");
}

/// What a program does outside itself must not be done twice. A job that says so gets an error at once, and is not launched once
/// more.
#[test]
fn a_job_that_must_not_restart_ends_with_an_error() {
    for lost in [[2, 3], [1, 2]] {
        let mut cluster = Cluster::new(5);
        cluster.on_loss = OnLoss::Fail;
        let job = cluster.start_recoverable(5, 4);
        let died = cluster.now;
        cluster.kill_all(&lost);
        cluster.run_until(|c| c.outcome(1).is_some());
        assert!(cluster.now - died < Duration::from_secs(3), "{:?}", cluster.now - died);
        match cluster.outcome(1) {
            Some(Outcome { code: 113, reason: EndReason::RankLost { why, .. } }) => {
                assert!(why.ends_with("it was asked not to restart from its beginning (--on-loss fail)"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        cluster.run_for(SOON);
        assert_eq!(cluster.launched.len(), 4, "no rank is started once more");
        assert!(cluster.nothing_left(), "{}", cluster.story(job, 4));
    }
}

/// It is stopped, or waits for a file of its program: it is killed, and brought back once more.
#[test]
fn a_process_that_does_not_say_where_it_stands_is_killed_and_brought_back() {
    let mut cluster = Cluster::new(5);
    cluster.mute = 1;
    let job = cluster.start_recoverable(5, 4);
    cluster.kill_all(&[2]);
    cluster.run_for(Duration::from_secs(50));
    assert_eq!(cluster.restored.len(), 1, "it may take as long");
    cluster.run_until(|c| c.restored.len() == 2 && c.runs(job, 1));
    cluster.run_for(SOON);
    cluster.end_well(job, 1);
}

#[test]
fn a_process_that_neither_says_where_it_stands_nor_ends_when_it_is_killed_ends_its_job() {
    let mut cluster = Cluster::new(5);
    cluster.mute = 1;
    let job = cluster.start_recoverable(5, 4);
    cluster.unkillable = Some(at(job, 1));
    cluster.kill_all(&[2]);
    (0..4).for_each(|_| cluster.run_for(Duration::from_secs(50)));
    let Some(Outcome { code: 113, reason: EndReason::RankLost { rank: Rank(1), why, .. } }) = cluster.outcome(1) else {
        panic!("{:?}", cluster.outcome(1));
    };
    assert!(why.contains("has not said where it stands") && why.contains("although it was killed"), "{why}");
    assert!(cluster.nothing_left());
}

/// Its job waits for it, and the terminal hears why, once.
#[test]
fn a_process_that_is_stopped_while_it_catches_up_is_named_at_the_terminal() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 3);
    cluster.silent = true;
    REPLAYED.set(Some(10));
    STOPPED.set(true);
    cluster.crash(job, 1);
    cluster.run_until(|c| c.incarnations(job, 1) == [1]);
    cluster.run_for(REPLAY_LIMIT * 3);
    let is_it =
        |reply: &&Reply| matches!(reply, Reply::Notice(text) if text.contains("is stopped by a signal while it catches up"));
    assert_eq!(cluster.replies(1).iter().filter(is_it).count(), 1);
    assert_eq!(cluster.incarnations(job, 1), [1], "it is not given up");
    STOPPED.set(false);
    REPLAYED.set(None);
}

#[test]
fn what_a_rank_waits_for_is_said_at_the_terminal() {
    let mut cluster = Cluster::new(5);
    cluster.start_recoverable(5, 3);
    let what = "its protector does not answer";
    cluster.post(&name(2), Input::Observer(observer_of(1, Incarnation::FIRST), 1001, ToNode::Kept(what.to_owned())));
    cluster.run_for(SOON);
    let is_it = |reply: &Reply| matches!(reply, Reply::Notice(text) if text.starts_with("rank 1 on n2") && text.ends_with(what));
    assert!(cluster.replies(1).iter().any(is_it), "{:?}", cluster.replies(1));
}
