use proptest::prelude::*;
use radic_wire::determinant::{ReadyFd, ReadySet};
use radic_wire::ids::{JobId, ProcessId, Rank};

use super::*;

const THREADS: u32 = 3;

/// What a thread did: outcomes with their places.
#[derive(Debug, Clone, Copy)]
struct Step {
    thread: u32,
    empties: u64,
    sent: u64,
    fd: u32,
}

fn step() -> impl Strategy<Value = Step> {
    (0..THREADS, 0u64..4, prop_oneof![Just(0u64), 0u64..300], 0u32..3).prop_map(|(thread, empties, sent, fd)| Step {
        thread,
        empties,
        sent,
        fd,
    })
}

/// What a thread of a program does next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Does {
    FindNothing,
    Send(u64),
    Receive,
}

fn does() -> impl Strategy<Value = Does> {
    prop_oneof![Just(Does::FindNothing), (1u64..9).prop_map(Does::Send), Just(Does::Receive)]
}

fn journal() -> Journal {
    let mut journal = Journal::new(8192, THREADS as usize, 32);
    (1..THREADS).for_each(|thread| assert_eq!(journal.begin_thread(u64::from(thread) + 70), Ok(thread)));
    journal
}

/// Threads that begin in another order than then, and end at another moment: each gets its own outcomes, and the counts of a
/// thread are not those of the next one.
#[test]
fn a_number_means_the_thread_of_then() {
    let mut then = Journal::new(8192, 4, 32);
    let record = |journal: &mut Journal, name, fd| {
        let thread = journal.begin_thread(name).unwrap();
        journal.handle_empty(thread).unwrap();
        journal.append(thread, &Determinant::Recv { fd, len: 1 }).unwrap();
        thread
    };
    let steps = [(91, 1), (92, 2), (91, 3), (93, 4), (94, 5), (93, 6), (92, 7)];
    for (name, fd) in steps {
        let thread = record(&mut then, name, fd);
        if fd == 3 || fd == 5 {
            then.end_thread(thread);
        }
    }
    let ship = then.poll_ship().unwrap();
    let log = [ship.head, ship.tail].concat();
    let (mut now, mut replay) = (Journal::new(8192, 5, 32), Replay::new(0, log.len() as u64, 0, log.len()));
    replay.handle_log(0, &log).unwrap();
    assert_eq!((now.begin_thread(92), now.begin_thread(91)), (Ok(1), Ok(2)));
    for (name, fd) in steps {
        let thread = now.begin_thread(name).unwrap();
        let mut offer = |journal: &Journal, thread| replay.offer(journal, thread, Ask::Recv { fd }, false).unwrap();
        assert_eq!(offer(&now, thread), Served::Nothing, "{name} has found nothing before");
        now.handle_empty(thread).unwrap();
        let waits = |served| matches!(served, Served::Nothing | Served::Turn);
        assert!((0..5).all(|other| other == thread || waits(offer(&now, other))));
        assert_eq!(offer(&now, thread), Served::Outcome, "{name}");
        replay.handle_served(&mut now);
        assert_eq!(now.empties(thread), 0);
        // Another moment than then.
        if name == 94 {
            for name in [91, 94] {
                let ended = now.begin_thread(name).unwrap();
                now.end_thread(ended);
            }
        }
    }
    assert_eq!(replay.offer(&now, 0, Ask::Recv { fd: 1 }, false), Ok(Served::Over));
}

/// A poll in vain is told by the counters alone, as long as the next outcome is that of a later call of its thread.
#[test]
fn a_poll_in_vain_is_known_without_the_outcome() {
    let mut then = journal();
    let poll = |journal: &mut Journal, times: u64| (0..times).for_each(|_| journal.handle_empty(1).unwrap());
    poll(&mut then, 5);
    then.append(1, &Determinant::Recv { fd: 3, len: 1 }).unwrap();
    poll(&mut then, 3);
    then.append(1, &Determinant::Nothing).unwrap();
    let log = then.poll_ship().map(|ship| [ship.head, ship.tail].concat()).unwrap();
    let (mut now, mut replay) = (journal(), Replay::new(0, log.len() as u64, 0, log.len()));
    assert!(!replay.is_in_vain(&now, 1), "the log is not here");
    replay.handle_log(0, &log).unwrap();
    let offer = |replay: &mut Replay, now: &Journal, thread| replay.offer(now, thread, Ask::Recv { fd: 3 }, false).unwrap();
    assert_eq!(offer(&mut replay, &now, 1), Served::Nothing);
    for _ in 0..5 {
        assert!(replay.is_in_vain(&now, 1) && !replay.is_in_vain(&now, 2), "the turn is another thread's");
        assert_eq!(offer(&mut replay, &now, 1), Served::Nothing);
        poll(&mut now, 1);
    }
    assert!(!replay.is_in_vain(&now, 1), "its place is here");
    assert_eq!(offer(&mut replay, &now, 1), Served::Outcome);
    replay.handle_served(&mut now);
    assert_eq!(offer(&mut replay, &now, 1), Served::Nothing);
    assert!(!replay.is_in_vain(&now, 1), "that nothing was found is recorded for what left later, and may have happened");
}

fn record(steps: &[Step]) -> Vec<u8> {
    let mut journal = journal();
    for step in steps {
        (0..step.empties).for_each(|_| journal.handle_empty(step.thread).unwrap());
        journal.handle_sent(step.thread, step.sent);
        journal.append(step.thread, &Determinant::Recv { fd: step.fd, len: 1 }).unwrap();
    }
    let ship = journal.poll_ship().map(|ship| [ship.head, ship.tail].concat());
    ship.unwrap_or_default()
}

fn fetch(replay: &mut Replay, log: &[u8], most: usize) {
    if let Some((from, room)) = replay.wanted() {
        let to = (from as usize + room.min(most)).min(log.len());
        replay.handle_log(from, &log[from as usize..to]).unwrap();
    }
}

proptest! {
    /// Whatever calls the program makes between them, and however the log arrives: each outcome once, in order, at its place.
    #[test]
    fn every_outcome_at_its_place(
        steps in prop::collection::vec(step(), 0..40), calls in prop::collection::vec((0..THREADS, 0u32..3, 1usize..9), 1..40),
    ) {
        let log = record(&steps);
        let (mut journal, mut next) = (journal(), 0);
        let mut replay = Replay::new(0, log.len() as u64, 0, 64);
        let mut calls = calls.iter().cycle();
        for round in 0..20_000 {
            let (thread, fd, most) = *calls.next().unwrap();
            // Every third call is the one that the original made, so that it ends.
            let (thread, fd) = match steps.get(next) {
                Some(step) if round % 3 == 0 => (step.thread, step.fd),
                _ => (thread, fd),
            };
            match replay.offer(&journal, thread, Ask::Recv { fd }, false).unwrap() {
                Served::Early(..) | Served::Missed => unreachable!("no clock is read"),
                Served::Over => break,
                Served::Fetch => fetch(&mut replay, &log, most),
                Served::Nothing => {
                    journal.handle_empty(thread).unwrap();
                    let step = &steps[next];
                    if journal.sent() < step.sent {
                        journal.handle_sent(step.thread, (step.sent - journal.sent()).min(100));
                    }
                }
                Served::Turn => {
                    fetch(&mut replay, &log, most);
                    let step = &steps[next];
                    journal.handle_sent(step.thread, step.sent.saturating_sub(journal.sent()));
                }
                Served::Outcome => {
                    let step = &steps[next];
                    prop_assert_eq!((thread, fd), (step.thread, step.fd));
                    prop_assert!(journal.empties(thread) >= step.empties);
                    prop_assert_eq!(journal.sent(), step.sent, "Gate A");
                    prop_assert_eq!(replay.outcome(), Some(Determinant::Recv { fd, len: 1 }));
                    replay.handle_served(&mut journal);
                    next += 1;
                }
            }
        }
        prop_assert_eq!(next, steps.len());
    }

    /// Threads that do then and now the same, each for itself, in whatever order they come to it: each finds nothing as often as
    /// then, and then has its outcome.
    #[test]
    fn each_thread_finds_nothing_as_often_as_then(
        does in prop::collection::vec((0..THREADS, does()), 0..60), order in prop::collection::vec(0..THREADS, 1..60), most in 1usize..40,
    ) {
        let mut then = journal();
        for (thread, does) in &does {
            match *does {
                Does::FindNothing => then.handle_empty(*thread).unwrap(),
                Does::Send(bytes) => then.handle_sent(*thread, bytes),
                Does::Receive => then.append(*thread, &Determinant::Recv { fd: *thread, len: 1 }).unwrap(),
            }
        }
        let log = then.poll_ship().map(|ship| [ship.head, ship.tail].concat()).unwrap_or_default();
        let (mut now, mut replay) = (journal(), Replay::new(0, log.len() as u64, 0, 512));
        let mut left: Vec<Vec<Does>> = (0..THREADS)
            .map(|thread| does.iter().rev().filter(|does| does.0 == thread).map(|does| does.1).collect())
            .collect();
        for thread in order.iter().copied().cycle().take(1_000).chain((0..THREADS).cycle().take(2_000)) {
            let Some(does) = left[thread as usize].last().copied() else { continue };
            if let Does::Send(bytes) = does {
                now.handle_sent(thread, bytes);
                left[thread as usize].pop();
                continue;
            }
            match replay.offer(&now, thread, Ask::Recv { fd: thread }, false).unwrap() {
                Served::Turn | Served::Fetch => fetch(&mut replay, &log, most),
                Served::Nothing => {
                    prop_assert_eq!(does, Does::FindNothing, "thread {}", thread);
                    now.handle_empty(thread).unwrap();
                    left[thread as usize].pop();
                }
                Served::Outcome => {
                    prop_assert_eq!(does, Does::Receive, "thread {}", thread);
                    replay.handle_served(&mut now);
                    left[thread as usize].pop();
                }
                // What was found after the last outcome of all is in no log.
                Served::Early(..) | Served::Missed => unreachable!("no clock is read"),
                Served::Over => _ = left[thread as usize].pop(),
            }
        }
        prop_assert!(left.iter().all(Vec::is_empty), "{:?}", left);
    }

    #[test]
    fn a_broken_log_is_an_error(log in prop::collection::vec(any::<u8>(), 1..200)) {
        let (mut replay, journal) = (Replay::new(0, log.len() as u64, 0, 64), journal());
        for _ in 0..400 {
            match replay.offer(&journal, 0, Ask::Recv { fd: 1 }, false) {
                Ok(Served::Fetch) => fetch(&mut replay, &log, 64),
                Ok(Served::Outcome) => replay.handle_served(&mut self::journal()),
                Ok(Served::Nothing | Served::Turn | Served::Early(..) | Served::Missed | Served::Over) | Err(_) => break,
            }
        }
    }
}

#[test]
fn a_thread_that_cannot_be_is_an_error_for_sends_that_were_taken_too() {
    let log = [235, 31];
    let mut replay = Replay::new(0, log.len() as u64, 0, 64);
    replay.handle_log(0, &log).unwrap();
    assert_eq!(replay.offer(&journal(), 0, Ask::Recv { fd: 1 }, false), Err(Error::Thread(14)));
}

/// The log of an outcome of thread 1, a reading of thread 0 so much later than its last one, and an outcome of thread 0 after it has found nothing once.
fn replay_of_a_reading(difference: i64) -> Replay {
    let mut then = journal();
    then.append(1, &Determinant::Recv { fd: 1, len: 1 }).unwrap();
    then.append(0, &Determinant::Time { clock: 0, skipped: 0, difference }).unwrap();
    then.handle_empty(0).unwrap();
    then.append(0, &Determinant::Recv { fd: 2, len: 1 }).unwrap();
    let log = then.poll_ship().unwrap().head.to_vec();
    let mut replay = Replay::new(0, log.len() as u64, 0, 64);
    replay.handle_log(0, &log).unwrap();
    replay
}

/// A reading whose record comes after an outcome of another thread waits for that a while. Then it is told what is recorded, for
/// its thread may hold a lock that the other one needs; where its record is next it is passed over, and what the thread has found
/// empty since still counts.
#[test]
fn a_reading_is_told_before_its_turn_if_that_does_not_come() {
    let mut replay = replay_of_a_reading(900);
    let mut now = journal();
    let turns = (0..TURNS).take_while(|_| replay.offer_time(&now, 0, (0, 0, 5)) == Ok(Served::Turn)).count();
    assert_eq!(turns, READING_TURNS as usize);
    assert_eq!(now.clocks.by_early_record(0, 0, 900, 0), Ok(900));
    now.handle_empty(0).unwrap();
    assert_eq!(replay.offer(&now, 0, Ask::Recv { fd: 2 }, true), Ok(Served::Nothing), "the other thread comes first");
    assert_eq!(replay.offer(&now, 1, Ask::Recv { fd: 1 }, true), Ok(Served::Outcome));
    replay.handle_served(&mut now);
    let NextReading { number, clock, skipped, .. } = replay.reading_next(&now).unwrap().expect("the record is next");
    assert_eq!(now.clocks.handle_recorded(number, clock, skipped), Ok(true), "it was told");
    replay.pass_reading(&mut now);
    assert_eq!(now.empties(0), 1);
    assert_eq!(replay.offer(&now, 0, Ask::Recv { fd: 2 }, false), Ok(Served::Outcome));
}

/// A reading by the rule has a record for what its thread printed later. On the way back the thread has gone on when that record
/// is next: it has found nothing since, and has read the clock once more. Both still count, the reading as the first one after
/// the record.
#[test]
fn what_a_thread_has_had_since_a_reading_still_counts_when_that_is_passed() {
    let mut replay = replay_of_a_reading(0);
    let mut now = journal();
    let read = |now: &mut Journal| {
        now.clocks.by_rule(0, 0).unwrap();
        let (skipped, difference) = now.clocks.as_record(0, 0).unwrap();
        now.handle_reading(0, 0, skipped, difference).unwrap();
    };
    read(&mut now);
    now.handle_empty(0).unwrap();
    read(&mut now);
    assert_eq!(replay.offer(&now, 1, Ask::Recv { fd: 1 }, true), Ok(Served::Outcome));
    replay.handle_served(&mut now);
    let NextReading { number, clock, skipped, .. } = replay.reading_next(&now).unwrap().expect("the record is next");
    assert_eq!(now.clocks.handle_recorded(number, clock, skipped), Ok(true), "it was made");
    replay.pass_reading(&mut now);
    assert_eq!(now.empties(0), 1);
    assert_eq!(replay.offer(&now, 0, Ask::Recv { fd: 2 }, false), Ok(Served::Outcome));
    assert_eq!(now.record_choices(0), Ok(Some((0, 0))));
}

/// A thread that waits for something else makes no reading before: it was made for a lock that another thread had. A process with one thread goes another way.
#[test]
fn a_thread_that_waits_makes_no_reading_any_more() {
    let mut replay = replay_of_a_reading(900);
    let mut now = journal();
    assert_eq!(replay.offer(&now, 1, Ask::Recv { fd: 1 }, true), Ok(Served::Outcome));
    replay.handle_served(&mut now);
    assert_eq!(replay.offer(&now, 0, Ask::Recv { fd: 2 }, false), Ok(Served::Nothing), "it may be made after that");
    assert_eq!(replay.offer(&now, 0, Ask::Recv { fd: 2 }, true), Ok(Served::Missed));
    let mut alone = replay.clone();
    (1..THREADS).for_each(|thread| now.end_thread(thread));
    assert!(matches!(alone.offer(&now, 0, Ask::Recv { fd: 2 }, true), Err(Error::Diverged { .. })));
    replay.pass_missed(&mut now);
    assert_eq!(replay.offer(&now, 0, Ask::Recv { fd: 2 }, true), Ok(Served::Outcome));
}

/// A reading before a call that finds nothing, which alone the log has of the thread: it was by the rule, and has no turn to wait
/// for. The other thread may need what this one does next.
#[test]
fn a_reading_before_the_last_record_of_its_thread_waits_for_no_turn() {
    for others_first in [false, true] {
        let mut then = journal();
        if others_first {
            then.append(1, &Determinant::Recv { fd: 1, len: 1 }).unwrap();
        }
        then.append(0, &Determinant::Nothing).unwrap();
        then.append(1, &Determinant::Recv { fd: 1, len: 1 }).unwrap();
        let log = then.poll_ship().unwrap().head.to_vec();
        let mut replay = Replay::new(0, log.len() as u64, 0, 64);
        replay.handle_log(0, &log).unwrap();
        let mut now = journal();
        assert_eq!(replay.offer_time(&now, 0, (0, 0, 5)), Ok(Served::Nothing), "{others_first}");
        // After that call it may be a new one, as soon as the others have had their outcomes.
        now.handle_empty(0).unwrap();
        let after = if others_first { Served::Turn } else { Served::Outcome };
        assert_eq!(replay.offer_time(&now, 0, (0, 0, 5)), Ok(after), "{others_first}");
    }
}

#[test]
fn readiness_is_served_as_it_was() {
    let mut journal = journal();
    let members = [ReadyFd { fd: 7, events: 1 }, ReadyFd { fd: 3, events: 5 }];
    journal.append(0, &Determinant::Ready { epoll: Some(4), set: ReadySet::new(&members).unwrap() }).unwrap();
    let log = journal.poll_ship().unwrap().head.to_vec();
    let mut replay = Replay::new(0, log.len() as u64, 0, 64);
    replay.handle_log(0, &log).unwrap();
    let journal = Journal::new(256, 1, 32);
    assert_eq!(replay.offer(&journal, 0, Ask::Ready { epoll: None }, false), Ok(Served::Nothing));
    assert!(matches!(replay.offer(&journal, 0, Ask::Recv { fd: 7 }, true), Err(Error::Diverged { .. })));
    assert_eq!(replay.offer(&journal, 0, Ask::Ready { epoll: Some(4) }, true), Ok(Served::Outcome));
    let Some(Determinant::Ready { set, .. }) = replay.outcome() else { panic!("no set") };
    assert!(set.iter().eq(members));
}

/// A process that has moved is told the address that it had then, and the process that it connected to, whatever listens there now. What failed fails again.
#[test]
fn addresses_are_served_as_they_were() {
    let mut journal = journal();
    let (address, peer) = ("10.0.0.5:7000".parse().unwrap(), ProcessId { job: JobId::from_bits(1), rank: Rank(2) });
    let outcomes = [
        Determinant::Bound { fd: 7, address },
        Determinant::Target { fd: 7, local: address, peer: Some(peer) },
        Determinant::Errno { fd: 7, call: Call::Connect, errno: 111 },
        Determinant::Errno { fd: 8, call: Call::Bind, errno: 98 },
    ];
    outcomes.iter().for_each(|outcome| journal.append(0, outcome).unwrap());
    let log = journal.poll_ship().unwrap().head.to_vec();
    let mut replay = Replay::new(0, log.len() as u64, 0, 64);
    replay.handle_log(0, &log).unwrap();
    let mut journal = Journal::new(256, 1, 32);
    // What was asked for then, and what would be another way.
    let asked = [
        (Ask::Bind { fd: 7 }, Ask::Bind { fd: 8 }),
        (Ask::Target { fd: 7 }, Ask::Connect { fd: 7 }),
        (Ask::Connect { fd: 7 }, Ask::Bind { fd: 7 }),
        (Ask::Bind { fd: 8 }, Ask::Target { fd: 8 }),
    ];
    for ((ask, other), outcome) in asked.into_iter().zip(outcomes) {
        assert!(matches!(replay.offer(&journal, 0, other, true), Err(Error::Diverged { .. })), "{other:?}");
        assert_eq!(replay.offer(&journal, 0, ask, true), Ok(Served::Outcome), "{ask:?}");
        assert_eq!(replay.outcome(), Some(outcome));
        replay.handle_served(&mut journal);
    }
    assert_eq!(replay.offer(&journal, 0, Ask::Bind { fd: 7 }, true), Ok(Served::Over));
}
