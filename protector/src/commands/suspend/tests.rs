use radic_wire::bytes::Writer;
use radic_wire::causes::Cause;
use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{BootId, Epoch, ProcessId, Seat};
use radic_wire::job::OutputStream;
use radic_wire::log::LineMark;
use serde_bytes::ByteBuf;

use super::*;
use crate::commands::tests::suspension;

const JOB: JobId = JobId::from_bits(7);

fn image(number: u64, cut: u64, line: LineMark) -> HeldImage {
    HeldImage { image: number, parent: None, cut, bytes: 5, line, state: ImageState::Committed }
}

/// What is held of a rank: an image at 10, and the journal up to `end`.
fn log(rank: u32, end: u64) -> HeldLog {
    HeldLog {
        process: ProcessId { job: JOB, rank: Rank(rank) },
        incarnation: Incarnation::FIRST,
        current: true,
        journal: Span { start: 4, end },
        stable: end,
        causes: Span { start: 0, end: 0 },
        forgotten: Vec::new(),
        streams: Vec::new(),
        images: vec![image(1, 10, LineMark::default())],
    }
}

/// A command that is handed what it asks for.
struct Run {
    suspend: Suspend<&'static str>,
    now: Duration,
    done: Vec<String>,
}

impl Run {
    fn new() -> Run {
        Run { suspend: Suspend::new("7".to_owned()), now: Duration::ZERO, done: Vec::new() }
    }

    /// One whose two ranks are stopped.
    fn stopped() -> Run {
        let mut run = Run::new();
        assert!(matches!(run.next(), Action::Checkpoint(job) if job == "7"));
        run.suspend.handle_checkpoints(run.now, &[]);
        assert!(matches!(run.next(), Action::Ask(Request::Suspend { job }) if job == "7"));
        let (rank, stream, data) = (Rank(1), OutputStream::Stdout, ByteBuf::from("x"));
        run.suspend.handle_reply(run.now, Reply::Output { rank, stream, offset: 3, data });
        run.suspend.handle_reply(run.now, Reply::Suspending(Box::new(suspension(JOB, 2))));
        assert!(matches!(run.next(), Action::Stopped(JOB)));
        run
    }

    /// Time passes until something but a ping is due. How often the node was told that the command gets on.
    fn wait(&mut self) -> usize {
        let mut pings = 0;
        loop {
            self.now = self.suspend.poll_timeout().expect("whatever waits has a limit");
            if !self.suspend.take_ping(self.now) {
                self.suspend.handle_timeout(self.now);
                return pings;
            }
            pings += 1;
        }
    }

    fn next(&mut self) -> Action<&'static str> {
        self.suspend.poll_action().expect("there is something to do")
    }

    fn list(&mut self, logs: &[HeldLog]) {
        for log in logs {
            assert!(matches!(self.next(), Action::List(rank) if rank == log.process.rank));
            assert!(self.suspend.poll_action().is_none(), "one log after the other");
            self.suspend.handle_log(self.now, log.clone());
        }
    }

    /// Carries out what concerns the files, up to where the logs are listed again.
    fn copy(&mut self) {
        loop {
            if matches!(self.suspend.actions.front(), Some(Action::List(_))) {
                return;
            }
            match self.next() {
                Action::Begin(size) => {
                    self.done.push(format!("begin {size}"));
                    continue;
                }
                Action::Create(rank, file) => self.done.push(format!("{rank} {file:?}")),
                Action::Copy(_, part, Span { start, end }) => self.done.push(format!("{part:?} {start}..{end}")),
                Action::Append(bytes) => self.done.push(format!("and {bytes:?}")),
                Action::Close => {}
                other => panic!("{other:?}"),
            }
            self.suspend.handle_done(self.now);
        }
    }

    fn over(&mut self) -> Over<&'static str> {
        let Action::Over(over) = self.next() else { panic!("it is not over") };
        assert!(self.suspend.poll_action().is_none() && self.suspend.poll_timeout().is_none());
        over
    }

    fn goes_on(&mut self, why: &str) {
        let over = self.over();
        let Over::GoesOn(failure) = over else { panic!("{over:?}") };
        assert!(failure.to_string().contains(why), "{failure}");
    }
}

fn two() -> [HeldLog; 2] {
    [log(0, 12), log(1, 10)]
}

#[test]
fn a_job_is_listed_copied_listed_again_and_ended() {
    let mut run = Run::stopped();
    let mut logs = two();
    let stream = |number, closed| HeldStream {
        stream: StreamId { connection: ConnectionId { opener: logs[1].process, number }, from_opener: true },
        bytes: Span { start: 2, end: 6 },
        ended: None,
        closed,
    };
    logs[1].streams = vec![stream(1, false), stream(2, true)];
    run.list(&logs);
    run.copy();
    run.list(&logs);
    let expected = ["begin 16", "0 Image(1)", "Image(1) 0..5", "0 Journal", "Journal 10..12", "and []", "0 Received"];
    assert_eq!(run.done[..7], expected);
    assert_eq!(run.done.len(), 7 + 7, "of the stream that is closed there is nothing: {:?}", run.done);
    let Action::Finish(saved) = run.next() else { panic!("the list is not written") };
    assert_eq!((saved.ranks.len(), saved.unprinted[0].offset, saved.suspension.job), (2, 3, JOB));
    assert_eq!(saved.ranks[1].streams.len(), 2);
    assert!(run.suspend.poll_action().is_none(), "the job does not end before all is written");
    run.suspend.handle_done(run.now);
    assert!(matches!(run.next(), Action::Place));
    assert!(run.suspend.poll_action().is_none(), "the job does not end before the list has its name");
    run.suspend.handle_done(run.now);
    assert!(matches!(run.next(), Action::Ask(Request::EndSuspended)));
    run.suspend.handle_reply(run.now, Reply::Done);
    assert!(matches!(run.over(), Over::Suspended));
}

#[test]
fn without_a_checkpoint_of_each_rank_none_is_stopped() {
    let mut run = Run::new();
    run.next();
    let node = "n1".parse().unwrap();
    run.suspend.handle_checkpoints(run.now, &[RankCheckpoint { rank: Rank(1), node, result: Err("a pipe".to_owned()) }]);
    run.goes_on("rank 1 has no checkpoint: a pipe");
}

#[test]
fn ranks_that_do_not_stop_in_time_go_on() {
    let mut run = Run::new();
    run.next();
    run.suspend.handle_checkpoints(run.now, &[]);
    run.next();
    run.suspend.handle_timeout(STOPPED - Duration::from_nanos(1));
    while run.now < STOPPED {
        assert!(run.suspend.poll_action().is_none());
        run.wait();
    }
    assert_eq!(run.now, STOPPED);
    run.goes_on("do not stop");
}

#[test]
fn a_log_that_cannot_bring_its_rank_back_is_not_copied() {
    let damaged = |damage: &dyn Fn(&mut HeldLog), why: &str| {
        let (mut run, mut logs) = (Run::stopped(), two());
        damage(&mut logs[1]);
        run.list(&logs);
        run.goes_on(why);
    };
    damaged(&|log| log.current = false, "just changed");
    damaged(&|log| log.images.clear(), "no image");
    damaged(&|log| log.incarnation = Incarnation::launched_in(Epoch::FIRST.next(Seat { view: 2, home: BootId(1) })), "restarted");
}

#[test]
fn images_of_two_lines_are_waited_for() {
    let (mut run, mut logs) = (Run::stopped(), two());
    logs[0].images = vec![image(2, 10, LineMark { newest: 2, joins: true })];
    run.list(&logs);
    run.wait();
    logs[1].images = vec![image(3, 10, LineMark { newest: 2, joins: true })];
    run.list(&logs);
    assert!(matches!(run.next(), Action::Begin(_)));

    let (mut run, mut logs) = (Run::stopped(), two());
    logs[0].images = vec![image(2, 10, LineMark { newest: 2, joins: true })];
    run.list(&logs);
    while run.suspend.poll_timeout().is_some() {
        run.wait();
        run.list(&logs);
    }
    assert!((AGREED..AGREED + LOOK_AGAIN).contains(&run.now), "{:?}", run.now);
    run.goes_on("different recovery lines");
}

/// Of another rank's journal behind `from`.
fn set(origin: u32, from: u64, bytes: &[u8]) -> Vec<u8> {
    let mut set = vec![0; 64];
    let mut out = Writer::new(&mut set);
    Cause::Part { origin: Rank(origin), from, bytes }.write(&mut out);
    let length = out.finish().unwrap();
    set.truncate(length);
    set
}

/// Rank 1 keeps this of the journal of rank 0, which ends at 12.
fn keeping(run: &mut Run, from: u64, bytes: &[u8]) -> [HeldLog; 2] {
    let (mut logs, set) = (two(), set(0, from, bytes));
    logs[1].causes = Span { start: 8, end: 8 + set.len() as u64 };
    run.list(&logs);
    assert!(matches!(run.next(), Action::Begin(_)));
    assert!(matches!(run.next(), Action::Read(Rank(1), LogPart::Causes, Span { start: 8, .. })));
    run.suspend.handle_read(set);
    logs
}

#[test]
fn a_journal_is_written_with_what_other_logs_have_of_it() {
    let mut run = Run::stopped();
    let logs = keeping(&mut run, 11, b"bcd");
    assert!(matches!(run.next(), Action::Read(Rank(0), LogPart::Journal, Span { start: 11, end: 12 })));
    run.suspend.handle_read(b"b".to_vec());
    run.copy();
    run.list(&logs);
    assert!(run.done.contains(&"and [99, 100]".to_owned()), "{:?}", run.done);
    let Action::Finish(saved) = run.next() else { panic!("the list is not written") };
    assert_eq!(saved.ranks[0].journal, Span { start: 10, end: 14 });
}

#[test]
fn logs_that_are_not_whole_are_no_suspension_unless_they_have_changed() {
    let mut run = Run::stopped();
    let logs = keeping(&mut run, 13, b"d");
    run.list(&logs);
    run.goes_on("depends on the journal of rank 0 up to 14");

    let mut run = Run::stopped();
    let mut logs = keeping(&mut run, 13, b"d");
    logs[1].causes = Span { start: 0, end: 0 };
    run.list(&logs);
    run.list(&logs);
    assert!(matches!(run.next(), Action::Begin(_)));
}

#[test]
fn what_changes_is_copied_again_and_not_for_ever() {
    let mut run = Run::stopped();
    for attempt in 0..u64::from(ATTEMPTS) {
        run.list(&[log(0, 12 + attempt), log(1, 10)]);
        run.copy();
        run.list(&[log(0, 13 + attempt), log(1, 10)]);
    }
    run.goes_on("goes on changing");
}

#[test]
fn a_copy_that_fails_is_made_again_if_the_logs_have_changed() {
    let mut run = Run::stopped();
    run.list(&two());
    run.next();
    assert!(matches!(run.next(), Action::Create(..)));
    run.suspend.handle_failed("no such image");
    run.list(&[log(0, 13), log(1, 10)]);
    run.list(&two());
    run.next();
    run.next();
    run.suspend.handle_failed("no space");
    run.list(&two());
    run.goes_on("no space");
}

#[test]
fn ranks_that_go_on_meanwhile_end_the_command_in_each_phase() {
    let phases: [&dyn Fn() -> Run; 4] = [
        &Run::stopped,
        &|| {
            let mut run = Run::stopped();
            run.next();
            run
        },
        &|| {
            let mut run = Run::stopped();
            run.list(&two());
            run.next();
            run.next();
            run
        },
        &|| {
            let mut run = Run::stopped();
            run.list(&two());
            run.copy();
            run
        },
    ];
    for begin in phases {
        let mut run = begin();
        run.suspend.handle_reply(run.now, Reply::Error("its home was lost".to_owned()));
        run.goes_on("its home was lost");
        let mut run = begin();
        run.suspend.handle_lost("the node went away");
        run.goes_on("the node went away");
        run.suspend.handle_lost("once more");
        assert!(run.suspend.poll_action().is_none());
    }
}

#[test]
fn a_job_that_is_written_and_does_not_end_is_marked() {
    let finished = || {
        let mut run = Run::stopped();
        run.list(&two());
        run.copy();
        run.list(&two());
        assert!(matches!(run.next(), Action::Finish(_)));
        run
    };
    let mut run = finished();
    run.suspend.handle_failed("no space");
    run.goes_on("no space");
    let mut run = finished();
    run.suspend.handle_done(run.now);
    assert!(matches!(run.next(), Action::Place));
    run.suspend.handle_failed("no such name");
    run.goes_on("no such name");
    let ending = || {
        let mut run = finished();
        run.suspend.handle_done(run.now);
        run.next();
        run.suspend.handle_done(run.now);
        run.next();
        run
    };
    let mut run = ending();
    assert!(run.wait() >= 10, "its node hears nothing of it");
    assert!(matches!(run.next(), Action::Mark));
    assert!(matches!(run.over(), Over::Unsure(Failure::NotEnded)));
    let mut run = ending();
    run.suspend.handle_lost("too late");
    assert!(matches!(run.next(), Action::Mark));
    assert!(matches!(run.over(), Over::Unsure(Failure::Undone("too late"))));
}

#[test]
fn a_command_that_no_daemon_answers_gives_up() {
    let mut run = Run::new();
    run.next();
    run.suspend.handle_failed("no daemon answers");
    run.goes_on("no daemon answers");
}

/// While the ranks may be stopped the node hears again and again that the command gets on, and only when it does.
#[test]
fn the_node_hears_that_the_command_gets_on() {
    let mut run = Run::new();
    run.now = PING * 3;
    assert!(!run.suspend.take_ping(run.now), "the ranks run");
    run.next();
    run.suspend.handle_checkpoints(run.now, &[]);
    assert!(!run.suspend.take_ping(run.now), "it has just asked for something");
    assert_eq!(run.wait(), STOPPED.div_duration_f64(PING) as usize);
    run.goes_on("do not stop");

    let mut run = Run::stopped();
    run.list(&two());
    run.next();
    for _ in 0..20 {
        run.now += PING;
        assert!(run.suspend.take_ping(run.now) && !run.suspend.take_ping(run.now));
        run.suspend.handle_reply(run.now, Reply::Pong);
    }
    run.suspend.handle_reply(run.now, Reply::Error("it was given up".to_owned()));
    assert!(!run.suspend.take_ping(run.now + PING), "nobody waits for that");
    run.goes_on("it was given up");
    assert!(SILENCE > PING * 4 && SILENCE > STOPPED);
}

/// A command that was given up while it wrote the list hears so before the list has its name.
#[test]
fn a_list_that_is_late_gets_no_name() {
    let mut run = Run::stopped();
    run.list(&two());
    run.copy();
    run.list(&two());
    assert!(matches!(run.next(), Action::Finish(_)));
    run.suspend.handle_done(run.now);
    run.suspend.handle_reply(run.now, Reply::Error("it was given up".to_owned()));
    run.goes_on("it was given up");
}
