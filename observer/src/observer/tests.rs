//! Whole calls of one observer, whose peers and protector are played by the test.

use std::time::Duration;

use radic_wire::determinant::{ConnectionId, Determinant, KernelCall};
use radic_wire::ids::{BootId, Epoch, Incarnation, JobId, ProcessId, Rank};
use radic_wire::link_frame::{LINK_FRAME, LinkFrame};
use radic_wire::log::{FromProtector, Greeting, ImageRange};

use super::answers::{Answer, Input, Reading, Ready, Receive, Send, Source, Transmit, Unread, Wait};
use super::{Config, Observer, RoomBy};
use crate::causes::Bounds;
use crate::connection::{Link, Phase, Waits, Welcome};
use crate::error::Error;
use crate::standstill::{STANDS, Standstill};

mod receiving;

/// What `process` says first on its first connection.
fn first_greeting(process: ProcessId, incarnation: Incarnation) -> Greeting {
    let connection = ConnectionId { opener: process, number: 0 };
    let (attempt, received, stable) = (0, 0, 0);
    Greeting { process, incarnation, connection, attempt, received, stable, kept: 0, finish: None, settled: true, ends: None }
}

/// A peer that has closed its end wants nothing more. What is still sent to it is passed over and waits for no link: else a blocking `send`, which returns
/// when the link has everything, would wait forever.
#[test]
fn what_nobody_wants_waits_for_no_link() {
    let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
    let (me, opener) = (process(0), process(1));
    let mut observer = Observer::new(me, &Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..Config::default() });
    let connection = ConnectionId { opener, number: 0 };
    let greeting =
        |attempt, received, stable| Greeting { attempt, received, stable, ..first_greeting(opener, Incarnation::FIRST) };
    let Ok(Welcome::Link(slot, _)) = observer.handle_greeting(&greeting(0, 0, 0)) else { panic!("no link") };
    observer.handle_accepted(0, 3, 4, connection, ([10, 0, 0, 1], 1).into()).unwrap();
    let position = observer.journal().end();
    observer.poll_journal();
    observer.handle_protector(&FromProtector::JournalStable { position }).unwrap();
    assert_eq!(observer.send(0, 4, b"wanted", 0, true), Ok(Send::Taken { len: 6, whole: true }));
    assert_eq!(observer.poll_transmit(slot), Some(Transmit::Bytes(0)));
    observer.handle_transmitted(slot, LINK_FRAME as u64 + 6);
    // The peer greets again: it has closed its end.
    let again = observer.handle_greeting(&greeting(1, 6, u64::MAX));
    assert!(matches!(again, Ok(Welcome::Link(same, _)) if same == slot), "{again:?}");
    assert_eq!(observer.send(0, 4, b"too late", 0, true), Ok(Send::Taken { len: 8, whole: true }));
    assert_eq!(observer.poll_transmit(slot), None);
    assert_eq!(observer.table().get(slot).unwrap().outgoing().unsent(), 0);
    // The peer's next incarnation has not closed it yet. It will not want that, either, and is told that it is gone.
    let next = Greeting { received: 2, attempt: 1, ..first_greeting(opener, Incarnation::restarted(1)) };
    let Ok(Welcome::Link(_, Some(answer))) = observer.handle_greeting(&next) else { panic!("no link") };
    assert_eq!(answer.kept, 14);
}

/// All that has happened is at the protector.
fn stable(observer: &mut Observer) {
    let position = observer.journal().end();
    observer.poll_journal();
    observer.handle_protector(&FromProtector::JournalStable { position }).unwrap();
}

/// As a kernel has it: how much may wait for a peer that reads nothing is bounded, however large the outbox is.
#[test]
fn a_send_that_does_not_wait_is_taken_in_part_while_much_waits_for_its_socket() {
    let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
    let config = Config { outbox_blocks: 8, unsent: 10, connections: 4, descriptors: 16, ..Config::default() };
    let mut observer = Observer::new(process(0), &config);
    let hello = first_greeting(process(1), Incarnation::FIRST);
    let Ok(Welcome::Link(slot, _)) = observer.handle_greeting(&hello) else { panic!("no link") };
    observer.handle_accepted(0, 3, 4, hello.connection, ([10, 0, 0, 1], 1).into()).unwrap();
    stable(&mut observer);
    assert_eq!(observer.send(0, 4, &[7; 12], 0, false), Ok(Send::Taken { len: 10, whole: true }));
    assert!(!observer.has_room(slot));
    assert!(matches!(observer.send_whole(0, 4, 1, false), Ok(None)));
    stable(&mut observer);
    assert_eq!(observer.send(0, 4, &[7; 1], 0, false), Ok(Send::Failed(11)), "EAGAIN");
    assert_eq!(observer.poll_transmit(slot), Some(Transmit::Bytes(0)));
    observer.handle_transmitted(slot, LINK_FRAME as u64 + 4);
    assert!(!observer.has_room(slot), "not for each piece");
    assert!(matches!(observer.send_whole(0, 4, 5, false), Ok(None)));
    observer.handle_transmitted(slot, 1);
    assert!(observer.has_room(slot));
}

/// A process that has accepted a connection of `opener` and read six bytes, which its protector does not hold.
fn reader(opener: ProcessId) -> Observer {
    reader_with(opener, Config::default())
}

fn reader_with(opener: ProcessId, config: Config) -> Observer {
    let me = ProcessId { job: JobId::from_bits(1), rank: Rank(0) };
    let config = Config { outbox_blocks: 8, outbox_block: 16, connections: 4, descriptors: 16, ..config };
    let mut observer = Observer::new(me, &config);
    let hello = first_greeting(opener, Incarnation::FIRST);
    assert!(matches!(observer.handle_greeting(&hello), Ok(Welcome::Link(..))));
    observer.handle_accepted(0, 3, 4, hello.connection, ([10, 0, 0, 1], 1).into()).unwrap();
    assert!(matches!(observer.receive(0, 4, 100, false), Ok(Receive::Take { source: Source::Link, .. })));
    assert_eq!(observer.handle_received(0, 4, Source::Link, b"wanted"), Ok(Some(6)));
    stable(&mut observer);
    observer
}

/// The outbox of a peer fills with what was received here: of what it holds from a unit on.
#[test]
fn room_is_made_by_an_image_where_little_is_kept_and_by_a_line_otherwise() {
    let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(1) };
    let mut observer = reader(opener);
    let connection = |number| ConnectionId { opener, number };
    assert_eq!(observer.room_for(connection(0), 0), RoomBy::Image);
    assert_eq!(observer.room_for(connection(0), 6), RoomBy::Line, "nothing of it was received");
    assert_eq!(observer.room_for(connection(9), 0), RoomBy::Line, "no such connection");
    assert_eq!(observer.send(0, 4, &[7; 9], 0, true), Ok(Send::Taken { len: 9, whole: true }));
    assert_eq!(observer.room_for(connection(0), 0), RoomBy::Line, "it keeps much itself");
    let room = observer.most_kept().expect("one receiver has all of it");
    assert_eq!((room.receiver, room.connection, room.from), (opener, connection(0), 0));
}

/// Until the protector has what was read of a connection, the next incarnation may want it again, though the program has closed it.
#[test]
fn a_process_that_has_closed_wants_what_is_not_safe() {
    let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(1) };
    let mut observer = reader(opener);
    assert_eq!(observer.close(4), Ok(None));
    let stable = |observer: &mut Observer, attempt| {
        let again = Greeting { attempt, ..first_greeting(opener, Incarnation::FIRST) };
        let Ok(Welcome::Link(_, Some(answer))) = observer.handle_greeting(&again) else { panic!("no link") };
        answer.stable
    };
    assert_eq!(stable(&mut observer, 1), 0);
    observer.handle_protector(&FromProtector::PayloadStable { position: 6 }).unwrap();
    assert_eq!(stable(&mut observer, 2), u64::MAX);
}

/// The program has shut down reading, and is told that nothing comes. Its peer goes on, and closes later, somewhere else.
#[test]
fn a_shutdown_of_reading_is_no_end_of_the_stream() {
    let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(1) };
    let mut observer = reader(opener);
    let image = observer.clone();
    let begin = observer.journal().end();
    observer.shut_reading(4).unwrap();
    assert!(matches!(observer.receive(0, 4, 100, true), Ok(Receive::Take { source: Source::Link, offset: 6, .. })));
    assert_eq!(observer.handle_shut(0, 4), Ok(Receive::End));
    assert_eq!(observer.handle_peeked_end(0, 4), Ok(Receive::End));
    observer.handle_broken(0);
    assert_eq!(observer.receive(0, 4, 100, true), Ok(Receive::End), "there is no link");
    assert_eq!(observer.peek(0, 4, 100, true), Ok(Receive::End), "there is no link");
    assert_eq!(observer.table().get(0).unwrap().incoming().finish(), None);
    let again = Greeting { attempt: 1, received: 0, finish: Some(50), ..first_greeting(opener, Incarnation::restarted(1)) };
    assert!(matches!(observer.handle_greeting(&again), Ok(Welcome::Link(_, Some(Greeting { received: 6, .. })))));
    assert!(matches!(observer.receive(0, 4, 100, true), Ok(Receive::Take { source: Source::Link, offset: 6, .. })));
    assert_eq!(observer.handle_received(0, 4, Source::Link, b"later"), Ok(Some(5)));
    // The next incarnation is told the same.
    let log = observer.poll_journal().unwrap().head.to_vec();
    let mut next = image;
    next.restart(Incarnation::restarted(1), begin + log.len() as u64, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    next.handle_protector(&FromProtector::Journal { position: begin, bytes: &log }).unwrap();
    next.shut_reading(4).unwrap();
    assert_eq!(next.receive(0, 4, 100, true), Ok(Receive::End));
    assert_eq!(next.peek(0, 4, 100, true), Ok(Receive::End));
    assert_eq!(next.receive(0, 4, 100, true), Ok(Receive::End));
    assert_eq!(next.peek(0, 4, 100, true), Ok(Receive::End));
    assert_eq!(next.receive(0, 4, 100, true), Ok(Receive::Wait(Wait::Event)), "bytes that have to come again");
    assert_eq!(next.table().get(0).unwrap().incoming().finish(), None);
}

/// An earlier incarnation wanted nothing more, and this one does all the same. It gets an error, and no other bytes in the place of those that are gone.
#[test]
fn what_is_gone_is_not_passed_over() {
    let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(1) };
    let mut observer = reader(opener);
    let again = |attempt, kept| Greeting { attempt, kept, ..first_greeting(opener, Incarnation::FIRST) };
    assert!(matches!(observer.handle_greeting(&again(1, 6)), Ok(Welcome::Link(..))));
    assert!(matches!(observer.receive(0, 4, 100, false), Ok(Receive::Take { source: Source::Link, offset: 6, .. })));
    assert!(matches!(observer.handle_greeting(&again(2, 7)), Ok(Welcome::Link(..))));
    assert!(matches!(observer.receive(0, 4, 100, false), Err(Error::Lost { wanted: 6, kept: 7, .. })));
    assert!(matches!(observer.peek(0, 4, 100, false), Err(Error::Lost { wanted: 6, kept: 7, .. })));
}

/// A process that found nothing three times, printed, and died; its image is of after this many of these calls.
fn printed_after_nothing(image_after: usize) -> (Observer, u64) {
    let me = ProcessId { job: JobId::from_bits(1), rank: Rank(0) };
    let mut observer = Observer::new(me, &Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..Config::default() });
    let mut again = observer.clone();
    for call in 0..3 {
        assert_eq!(observer.ready(0, None, false, &mut []), Ok(Ready::Live));
        observer.handle_ready(0, None, &[]).unwrap();
        if call + 1 == image_after {
            again = observer.clone();
        }
    }
    assert_eq!(observer.gate(), None, "peers need no record");
    let end = observer.gate_of_output(0).unwrap().expect("the output waits");
    let log = observer.poll_journal().unwrap().head.to_vec();
    observer.handle_protector(&FromProtector::JournalStable { position: end }).unwrap();
    assert_eq!(observer.gate_of_output(0), Ok(None));
    again.restart(Incarnation::restarted(1), end, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    again.handle_protector(&FromProtector::Journal { position: 0, bytes: &log }).unwrap();
    (again, end)
}

#[test]
fn what_is_printed_after_nothing_was_found_is_printed_after_as_much() {
    for image_after in 0..=3 {
        let (mut again, end) = printed_after_nothing(image_after);
        for _ in image_after..3 {
            assert!(!again.settle());
            assert_eq!(again.ready(0, None, false, &mut []), Ok(Ready::Nothing));
        }
        assert_eq!(again.gate_of_output(0), Ok(None));
        assert_eq!(again.ready(0, None, false, &mut []), Ok(Ready::Live), "an image after {image_after} calls");
        assert_eq!(again.journal().end(), end);
    }
}

/// It has no place of its own: nothing was found once before it and twice after it.
#[test]
fn a_caller_that_was_refused_is_no_call_of_the_program() {
    let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
    let config = Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..Config::default() };
    let mut then = Observer::new(process(0), &config);
    let mut again = then.clone();
    let hello = first_greeting(process(1), Incarnation::FIRST);
    assert!(matches!(then.handle_greeting(&hello), Ok(Welcome::Link(..))));
    let mut log = Vec::new();
    for call in 0..3 {
        then.handle_nothing(0).unwrap();
        if call == 0 {
            then.refuse_callers(|connection| connection == hello.connection).unwrap();
        }
    }
    then.handle_input(0, b"a line").unwrap();
    while let Some(ship) = then.poll_journal() {
        log.extend([ship.head, ship.tail].concat());
    }
    let end = log.len() as u64;
    again.restart(Incarnation::restarted(1), end, Vec::new(), ImageRange::default(), (0, &[]), 512).unwrap();
    again.refuse_callers(|_| true).unwrap();
    again.handle_protector(&FromProtector::Journal { position: 0, bytes: &log }).unwrap();
    let mut room = [0; 8];
    for _ in 0..3 {
        assert_eq!(again.input(0, &mut room, false), Ok(Input::Nothing));
        let slot = again.table().find_end(hello.connection, false).expect("the log says so");
        assert!(again.table().get(slot).is_some_and(|connection| connection.is_closed()));
    }
    assert_eq!(again.input(0, &mut room, false), Ok(Input::Again(6)));
    assert_eq!(again.phase(), Phase::Settled);
}

/// A process with one connection to a peer that takes nothing.
fn sender() -> Observer {
    sender_with(Config::default())
}

fn sender_with(config: Config) -> Observer {
    let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
    let config = Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..config };
    let mut observer = Observer::new(process(0), &config);
    observer.connect(3, process(1)).unwrap().unwrap();
    observer
}

/// A send that does not wait was taken, something was printed, and the process died before its peer had what was sent. The next
/// incarnation has the send taken, too, and is not live before that, however much its peer lacks: if the send failed, the program
/// would print something else.
#[test]
fn what_is_printed_after_a_send_was_taken_is_printed_after_one() {
    let image = sender();
    let mut first = image.clone();
    assert_eq!(first.send(0, 3, b"taken", 0, false), Ok(Send::Taken { len: 5, whole: true }));
    assert_eq!((first.gate(), first.journal().end()), (None, 0), "peers need no record");
    let end = first.gate_of_output(0).unwrap().expect("the output waits");
    let log = first.poll_journal().unwrap().head.to_vec();
    first.handle_protector(&FromProtector::JournalStable { position: end }).unwrap();
    assert_eq!(first.gate_of_output(0), Ok(None), "it is recorded once");
    assert_eq!(first.send(0, 3, b"then", 0, true), Ok(Send::Taken { len: 4, whole: true }));
    assert_eq!(first.gate_of_output(0), Ok(None), "a send that waits is always taken");
    let mut again = image;
    again.restart(Incarnation::restarted(1), end, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    again.handle_protector(&FromProtector::Journal { position: 0, bytes: &log }).unwrap();
    assert_eq!(again.gate_of_output(0), Ok(None));
    assert_eq!(again.phase(), Phase::Replaying, "before it has sent that");
    assert_eq!(again.send(0, 3, b"taken", 0, false), Ok(Send::Taken { len: 5, whole: true }));
    assert_eq!(again.gate_of_output(0), Ok(None));
    assert_eq!((again.phase(), again.left_of_log()), (Phase::Settled, 0));
}

/// One thread prints after its own send was taken, and another one had sent before. On the way back the other one sends more,
/// first: the send that was printed of is taken all the same, and the process is not live before that.
#[test]
fn what_is_printed_after_a_send_of_one_of_two_threads_is_printed_after_that_one() {
    let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
    let config = Config { outbox_blocks: 8, connections: 4, descriptors: 16, threads: 2, ..Config::default() };
    let mut image = Observer::new(process(0), &config);
    [(3, 1), (4, 2)].into_iter().for_each(|(fd, rank)| _ = image.connect(fd, process(rank)).unwrap().unwrap());
    image.begin_thread(7).unwrap();
    let mut first = image.clone();
    assert_eq!(first.send(1, 4, b"before", 0, true), Ok(Send::Taken { len: 6, whole: true }));
    assert_eq!(first.send(0, 3, b"taken", 0, false), Ok(Send::Taken { len: 5, whole: true }));
    let end = first.gate_of_output(0).unwrap().expect("the output waits");
    let log = first.poll_journal().unwrap().head.to_vec();
    let mut again = image;
    again.restart(Incarnation::restarted(1), end, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    again.handle_protector(&FromProtector::Journal { position: 0, bytes: &log }).unwrap();
    assert_eq!(again.send(1, 4, b"before", 0, true), Ok(Send::Taken { len: 6, whole: true }));
    assert_eq!(again.send(1, 4, b"more than then", 0, true), Ok(Send::Taken { len: 14, whole: true }));
    assert_eq!(again.ready(1, None, false, &mut []), Ok(Ready::Nothing));
    assert_eq!(again.phase(), Phase::Replaying, "the thread that has printed has not sent");
    assert_eq!(again.send(0, 3, b"taken", 0, false), Ok(Send::Taken { len: 5, whole: true }));
    assert_eq!(again.gate_of_output(0), Ok(None));
    assert_eq!((again.phase(), again.left_of_log()), (Phase::Settled, 0));
}

/// On the way back one thread has had all its outcomes, gets ahead of the other, finds nothing, and prints: what it prints was
/// not printed then, and is in no log. It waits until that can be recorded.
#[test]
fn what_a_thread_prints_beyond_its_log_waits_for_the_other_thread() {
    let config = Config { outbox_blocks: 8, connections: 4, descriptors: 16, threads: 2, ..Config::default() };
    let mut image = Observer::new(ProcessId { job: JobId::from_bits(1), rank: Rank(0) }, &config);
    image.begin_thread(7).unwrap();
    let mut first = image.clone();
    assert_eq!(first.kernel(1, KernelCall::Random, &mut [0; 4]), Ok(Answer::Live));
    first.handle_kernel(1, KernelCall::Random, b"four").unwrap();
    let log = first.poll_journal().unwrap().head.to_vec();
    let mut again = image;
    again.restart(Incarnation::restarted(1), log.len() as u64, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    again.handle_protector(&FromProtector::Journal { position: 0, bytes: &log }).unwrap();
    assert_eq!(again.output_awaits_log(0), Ok(false), "what depends on nothing may leave");
    assert_eq!(again.ready(0, None, false, &mut []), Ok(Ready::Nothing));
    assert_eq!(again.output_awaits_log(0), Ok(true));
    assert_eq!(again.kernel(1, KernelCall::Random, &mut [0; 4]), Ok(Answer::Again(4)));
    assert_eq!((again.phase(), again.output_awaits_log(0)), (Phase::Settled, Ok(false)));
    assert!(again.gate_of_output(0).unwrap().is_some(), "it is recorded first");
}

/// The log is over, and the peer has not said how much it has. What is sent is taken whatever room there is, and that is recorded before anything is printed.
#[test]
fn what_is_printed_after_a_send_of_replay_is_recorded_too() {
    let mut first = sender();
    first.restart(Incarnation::restarted(1), 0, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    assert_eq!(first.send(0, 3, b"taken", 0, false), Ok(Send::Taken { len: 5, whole: true }));
    assert_eq!(first.phase(), Phase::Settled);
    assert!(first.gate_of_output(0).unwrap().is_some());
}

/// The log of a process is over, but it is not live yet. What it prints now depends on choices that are in no log: they are
/// recorded, and the next incarnation prints the same.
#[test]
fn what_is_printed_before_a_process_lives_again_is_recorded_too() {
    let image = sender();
    let mut first = image.clone();
    first.restart(Incarnation::restarted(1), 0, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    assert_eq!(first.gate_of_output(0), Ok(None), "it may be what it has printed before");
    assert_eq!(first.ready(0, None, false, &mut []), Ok(Ready::Nothing), "its peer has not been reached");
    let end = first.gate_of_output(0).unwrap().expect("the output waits");
    let log = first.poll_journal().unwrap().head.to_vec();
    first.handle_protector(&FromProtector::JournalStable { position: end }).unwrap();
    assert_eq!((first.gate_of_output(0), first.settle()), (Ok(None), false));
    let mut second = image;
    second.restart(Incarnation::restarted(2), end, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    second.handle_protector(&FromProtector::Journal { position: 0, bytes: &log }).unwrap();
    assert_eq!(second.phase(), Phase::Replaying);
    assert_eq!(second.ready(0, None, false, &mut []), Ok(Ready::Nothing));
    assert_eq!(second.phase(), Phase::Settled);
}

/// A program that goes by the clock finds nothing less often this time: it waits, or ends, all the same.
#[test]
fn a_replay_that_finds_nothing_less_often_goes_on() {
    let (mut again, _) = printed_after_nothing(0);
    assert_eq!(again.ready(0, None, true, &mut []), Ok(Ready::Live));
    let (mut again, _) = printed_after_nothing(0);
    again.handle_leaving().unwrap();
    assert!(again.settle());
}

/// A protector that has just answered learns first where each stream goes on: what was acknowledged before, or received and not shipped yet.
#[test]
fn a_new_protector_is_told_where_streams_go_on() {
    let mut observer = sender();
    let told = |observer: &mut Observer| {
        let piece = observer.poll_payload(usize::MAX)?;
        Some((piece.position, piece.offset, piece.head.len() + piece.tail.len()))
    };
    observer.handle_received(0, 3, Source::Link, b"shipped").unwrap();
    assert_eq!(told(&mut observer), Some((0, 0, 7)));
    observer.handle_protector(&FromProtector::PayloadStable { position: 7 }).unwrap();
    assert_eq!(told(&mut observer), None);
    observer.handle_protector(&FromProtector::Welcome { journal: observer.journal().end(), payload: 7, image: None }).unwrap();
    assert_eq!(told(&mut observer), Some((7, 7, 0)));
    assert_eq!(told(&mut observer), None, "once");
}

/// No log has anything of that. A process that came back would look for it there, and be refused again and again.
#[test]
fn of_what_stays_with_its_sender_no_protector_is_told() {
    let mut observer = sender_with(Config { payload_stays: true, causes: Some(Bounds::default()), ..Config::default() });
    observer.handle_received(0, 3, Source::Link, b"kept there").unwrap();
    assert!(observer.poll_payload(usize::MAX).is_none());
    observer.handle_protector(&FromProtector::Welcome { journal: 0, payload: 0, image: None }).unwrap();
    assert!(observer.poll_payload(usize::MAX).is_none());
}

/// A peer has ended while this process was lost. What the peer had received may have gone on to others, so that much is sent
/// again before this process is live: else it could go another way.
#[test]
fn what_a_peer_had_received_that_has_left_is_sent_again_first() {
    let mut observer = sender();
    observer.restart(Incarnation::restarted(1), 0, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    assert!(!observer.table().all_sent_again(), "the peer has not said how much it has");
    let stream = observer.table().get(0).unwrap().stream_out();
    observer.handle_left(stream.connection, 5);
    assert!(!observer.table().all_sent_again());
    assert_eq!(observer.send(0, 3, b"four", 0, false), Ok(Send::Taken { len: 4, whole: true }));
    assert!(!observer.table().all_sent_again());
    assert_eq!(observer.send(0, 3, b"five", 0, false), Ok(Send::Taken { len: 4, whole: true }));
    assert!(observer.table().all_sent_again());
}

/// The opener has dialed a connection just before it learned that this is over on both sides. The greeting comes after the word that it is over, and makes no
/// new connection.
#[test]
fn a_call_that_comes_too_late_makes_no_connection() {
    let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
    let opener = process(1);
    let config = Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..Config::default() };
    for is_told_twice in [false, true] {
        let mut observer = Observer::new(process(0), &config);
        let call = first_greeting(opener, Incarnation::FIRST);
        let Ok(Welcome::Link(slot, _)) = observer.handle_greeting(&call) else { panic!("no link") };
        observer.handle_accepted(0, 3, 4, call.connection, ([10, 0, 0, 1], 1).into()).unwrap();
        let position = observer.journal().end();
        observer.poll_journal();
        observer.handle_protector(&FromProtector::JournalStable { position }).unwrap();
        assert_eq!(observer.close(4), Ok(None));
        let (mut streams, mut ended) = (Vec::new(), Vec::new());
        let image = observer.checkpoint(None, &mut streams, &mut ended).unwrap().unwrap().mark.image;
        observer.handle_protector(&FromProtector::Committed { image, oldest: image }).unwrap();
        assert!(observer.poll_forget().is_some());
        if is_told_twice {
            let word = FromProtector::Forget { connection: call.connection, for_good: false };
            observer.handle_protector(&word).unwrap();
            assert_eq!(observer.handle_greeting(&call), Ok(Welcome::Forgotten));
        }
        assert_eq!(observer.poll_over(), None);
        observer.handle_protector(&FromProtector::Forget { connection: call.connection, for_good: true }).unwrap();
        assert!(observer.table().get(slot).is_none());
        assert_eq!((observer.poll_over(), observer.poll_over()), (Some(call.connection), None));
        assert_eq!(observer.handle_greeting(&call), Ok(Welcome::Refuse));
    }
}

/// Processes of an earlier epoch are not dead everywhere at once, and know connections by the same names.
#[test]
fn a_process_of_an_earlier_epoch_is_refused() {
    let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
    let (me, peer) = (process(0), process(1));
    let config = Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..Config::default() };
    let launched = Incarnation::launched_in(Epoch { view: 4, count: 1, home: BootId(7) });
    let mut observer = Observer::as_incarnation(me, launched, &config);
    let stranger = ProcessId { job: JobId::from_bits(99), ..peer };
    observer.handle_restarted(peer, Incarnation::restarted(3));
    assert_eq!(observer.handle_greeting(&first_greeting(peer, Incarnation::restarted(3))).unwrap(), Welcome::Refuse);
    assert!(matches!(observer.handle_greeting(&first_greeting(peer, launched)), Ok(Welcome::Link(..))));
    assert!(
        matches!(observer.handle_greeting(&first_greeting(stranger, Incarnation::FIRST)), Ok(Welcome::Link(..))),
        "epochs of another job are its own"
    );
}

/// Rank 0, with a link of each of these ranks at its descriptor, and with a log that is stable.
fn linked(config: &Config, peers: &[(u32, u32)]) -> Observer {
    let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
    let mut observer = Observer::new(process(0), config);
    for (rank, fd) in peers {
        let hello = first_greeting(process(*rank), Incarnation::FIRST);
        assert!(matches!(observer.handle_greeting(&hello), Ok(Welcome::Link(..))));
        observer.handle_accepted(0, 3, *fd, hello.connection, ([10, 0, 0, 1], 1).into()).unwrap();
    }
    stable(&mut observer);
    observer
}

/// A thread that stood in the midst of a `send`, because the outbox had no more for its stream, gets little further on the way back
/// before the outcomes of another thread that came then: that thread needs room.
#[test]
fn a_send_that_was_not_over_takes_no_room_from_the_thread_whose_turn_it_is() {
    let config = Config { outbox_blocks: 8, outbox_block: 4, connections: 8, descriptors: 16, threads: 2, ..Config::default() };
    let mut observer = linked(&config, &[(1, 4), (2, 5)]);
    let (image, begin) = (observer.clone(), observer.journal().end());
    let stalled = [7; 100];
    assert_eq!(observer.send(1, 4, &stalled, 0, true), Ok(Send::Taken { len: 16, whole: false }), "half of the outbox");
    assert_eq!(observer.send(1, 4, &stalled[16..], 16, true), Ok(Send::Wait(Wait::Outbox)));
    assert_eq!(observer.send(0, 5, b"four", 0, true), Ok(Send::Taken { len: 4, whole: true }));
    assert!(matches!(observer.receive(0, 5, 100, false), Ok(Receive::Take { source: Source::Link, .. })));
    assert_eq!(observer.handle_received(0, 5, Source::Link, b"answer"), Ok(Some(6)));
    let log = observer.poll_journal().unwrap().head.to_vec();
    let mut next = image;
    next.restart(Incarnation::restarted(1), begin + log.len() as u64, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    next.handle_protector(&FromProtector::Journal { position: begin, bytes: &log }).unwrap();
    let sent = 16 + 4;
    assert_eq!(next.send(1, 4, &stalled, 0, true), Ok(Send::Taken { len: sent, whole: false }), "as much as was sent then");
    assert_eq!(next.send(1, 4, &stalled[sent..], sent, true), Ok(Send::Wait(Wait::Outbox)));
    assert_eq!(next.send(0, 5, b"four", 0, true), Ok(Send::Taken { len: 4, whole: true }));
    assert!(matches!(next.receive(0, 5, 100, true), Ok(Receive::Take { .. } | Receive::Wait(_))));
}

/// Where the log of a process with one thread is over, it goes as far as it went when it was live, whether or not its peers catch up: else
/// one of them would have what a later life does not come to.
#[test]
fn one_thread_gets_no_further_after_its_log_than_it_got_when_it_was_live() {
    let config = Config { outbox_blocks: 8, outbox_block: 4, connections: 8, descriptors: 16, threads: 2, ..Config::default() };
    let mut observer = linked(&config, &[(1, 4), (2, 5)]);
    let (mut next, end) = (observer.clone(), observer.journal().end());
    let stalled = [7; 100];
    assert_eq!(observer.send(0, 4, &stalled, 0, true), Ok(Send::Taken { len: 16, whole: false }), "half of the outbox");
    next.restart(Incarnation::restarted(1), end, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    let again = first_greeting(ProcessId { rank: Rank(1), ..next.process() }, Incarnation::restarted(1));
    assert!(matches!(next.handle_greeting(&Greeting { settled: false, ..again }), Ok(Welcome::Link(..))));
    assert_eq!((next.phase(), next.waits()), (Phase::Settled, Waits::CatchesUp));
    let mut other = next.clone();
    assert_eq!(next.send(0, 4, &stalled, 0, true), Ok(Send::Taken { len: 16, whole: false }));
    assert_eq!(next.send(0, 4, &stalled[16..], 16, true), Ok(Send::Wait(Wait::Outbox)));
    // Of two threads one may have taken room that the other had then.
    let thread = other.begin_thread(1).unwrap();
    assert_eq!(other.send(thread, 4, &stalled, 0, true), Ok(Send::Taken { len: 32, whole: false }));
}

/// The log says how much was sent before an outcome, not by which thread. A thread that gets ahead may send as much, and the
/// thread that has sent it then has room for all of it nevertheless.
#[test]
fn what_another_thread_has_sent_ahead_takes_no_room_of_what_was_sent_then() {
    let config = Config { outbox_blocks: 8, outbox_block: 4, connections: 8, descriptors: 16, threads: 2, ..Config::default() };
    let mut observer = linked(&config, &[(1, 4), (2, 5), (3, 6), (4, 7)]);
    let (image, begin) = (observer.clone(), observer.journal().end());
    let send_all = |observer: &mut Observer| {
        for (fd, len) in [(4, 16), (5, 8), (6, 4)] {
            assert_eq!(observer.send(0, fd, &[7; 16][..len], 0, true), Ok(Send::Taken { len, whole: true }), "all but one block");
        }
    };
    send_all(&mut observer);
    assert!(matches!(observer.receive(0, 5, 100, false), Ok(Receive::Take { source: Source::Link, .. })));
    assert_eq!(observer.handle_received(0, 5, Source::Link, b"answer"), Ok(Some(6)));
    let log = observer.poll_journal().unwrap().head.to_vec();
    let mut next = image;
    next.restart(Incarnation::restarted(1), begin + log.len() as u64, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    next.handle_protector(&FromProtector::Journal { position: begin, bytes: &log }).unwrap();
    assert_eq!(next.send(1, 7, &[8; 100], 0, true), Ok(Send::Taken { len: 28, whole: false }), "as much as was sent then");
    assert_eq!(next.send(1, 7, &[8; 72], 28, true), Ok(Send::Wait(Wait::Outbox)));
    send_all(&mut next);
    assert!(matches!(next.receive(0, 5, 100, true), Ok(Receive::Take { .. } | Receive::Wait(_))));
}

/// A frame of the peer says how far the stream that goes to it is safe: that is not kept any more. More than was ever sent cannot be.
#[test]
fn a_frame_says_what_need_not_be_kept() {
    let mut observer = reader(ProcessId { job: JobId::from_bits(1), rank: Rank(1) });
    let slot = observer.table().slot_of(4).unwrap();
    let position = observer.journal().end();
    observer.poll_journal();
    observer.handle_protector(&FromProtector::JournalStable { position }).unwrap();
    assert_eq!(observer.send(0, 4, b"question", 0, true), Ok(Send::Taken { len: 8, whole: true }));
    assert_eq!(observer.poll_transmit(slot), Some(Transmit::Bytes(0)));
    observer.handle_transmitted(slot, LINK_FRAME as u64 + 8);
    let mut answers = |stable, kept| {
        let mut bytes = [&LinkFrame { payload: 1, causes: 0, stable, received: 0, line: 0 }.bytes()[..], b"x"].concat();
        assert_eq!(observer.deframer(slot).unwrap().unframe(&mut bytes), Ok(1));
        let result = observer.handle_received(0, 4, Source::Link, &bytes[..1]);
        assert_eq!(observer.table().get(slot).unwrap().outgoing().kept(), kept);
        result
    };
    assert_eq!(answers(0, 8), Ok(Some(1)));
    assert_eq!(answers(5, 3), Ok(Some(1)));
    assert_eq!(answers(8, 0), Ok(Some(1)));
    assert!(matches!(answers(9, 0), Err(Error::Peer { .. })));
}

/// A send after the peer is gone for good says why, once, and then that there is no reader; so it does when it is executed again,
/// by the log, and afterwards, too.
#[test]
fn what_is_refused_is_refused_again() {
    const RESET: i32 = 104;
    let mut observer = reader(ProcessId { job: JobId::from_bits(1), rank: Rank(1) });
    let slot = observer.table().slot_of(4).unwrap();
    let (image, cut) = (observer.clone(), observer.journal().end());
    observer.refuse_sends(slot, RESET);
    observer.refuse_sends(slot, 32);
    let send = |observer: &mut Observer| observer.send(0, 4, b"too late", 0, true);
    assert_eq!(send(&mut observer), Ok(Send::Failed(RESET as u32)));
    assert_eq!((send(&mut observer), observer.take_refusal(slot)), (Ok(Send::Failed(32)), 0));
    let log = {
        let (head, tail) = observer.journal().slices(cut);
        [head, tail].concat()
    };

    let mut again = image;
    let range = ImageRange { next: 1, ..ImageRange::default() };
    again.restart(Incarnation::restarted(1), cut + log.len() as u64, Vec::new(), range, (0, &[]), 1 << 10).unwrap();
    again.handle_protector(&FromProtector::Journal { position: cut, bytes: &log }).unwrap();
    assert_eq!([send(&mut again), send(&mut again)], [Ok(Send::Failed(RESET as u32)), Ok(Send::Failed(32))]);
    assert_eq!((again.left_of_log(), again.take_refusal(slot)), (0, 0));
}

/// What is to be shipped at once, to a log that has nothing, may be more than one message takes: the causes then go first.
#[test]
fn causes_and_a_journal_that_are_too_much_for_one_message_go_in_two() {
    let me = ProcessId { job: JobId::from_bits(1), rank: Rank(0) };
    let causes = Some(crate::causes::Bounds::default());
    let mut observer =
        Observer::new(me, &Config { outbox_blocks: 8, connections: 4, descriptors: 16, causes, ..Config::default() });
    let mut set = vec![0; 64 << 10];
    let mut out = radic_wire::bytes::Writer::new(&mut set);
    radic_wire::causes::Cause::Part { origin: Rank(1), from: 0, bytes: &[7; 60 << 10] }.write(&mut out);
    let length = out.finish().unwrap();
    observer.causes.as_mut().unwrap().handle_set(0, &set[..length]).unwrap();
    let longest = radic_wire::limits::LOG_CHUNK - length;
    while observer.journal().unshipped() <= longest {
        let input = [7; 1 << 10];
        observer.handle_input(0, &input).unwrap();
    }
    let (end, all) = (observer.journal().end(), observer.journal().unshipped());
    let first = observer.poll_journal().map(|ship| (ship.causes.map(|new| new.bytes.len()), ship.head.len() + ship.tail.len()));
    assert_eq!(first, Some((Some(length), 0)));
    let second = observer.poll_journal().map(|ship| (ship.causes.is_none(), ship.position, ship.head.len() + ship.tail.len()));
    assert_eq!(second, Some((true, end - all as u64, all)));
    assert!(observer.poll_journal().is_none());
}

/// A frame is half out, and the receiver is said to have left. What is not kept any more leaves no link, and no other bytes do in
/// its place: the link is given up.
#[test]
fn a_frame_whose_bytes_are_not_kept_any_more_is_not_finished() {
    let mut observer = linked(&Config::default(), &[(1, 4)]);
    let slot = observer.table().slot_of(4).unwrap();
    assert_eq!(observer.send(0, 4, b"question", 0, true), Ok(Send::Taken { len: 8, whole: true }));
    assert_eq!(observer.poll_transmit(slot), Some(Transmit::Bytes(0)));
    observer.handle_transmitted(slot, LINK_FRAME as u64 + 3);
    let stream = observer.table().get(slot).unwrap().stream_out();
    observer.handle_protector(&FromProtector::StreamStable { stream, offset: 3 }).unwrap();
    assert_eq!(observer.poll_dropped(), None, "what has left need not be kept");
    observer.handle_protector(&FromProtector::StreamStable { stream, offset: u64::MAX }).unwrap();
    assert_eq!((observer.poll_transmit(slot), observer.poll_dropped(), observer.poll_dropped()), (None, Some(slot), None));
    assert_eq!(observer.table().get(slot).unwrap().link(), Link::Down);
}

/// The other thread's reading is next in the log, and no thread goes on: that one waits outside, and has made no call yet. When
/// it reads the clock later it is told what it was told then.
#[test]
fn a_reading_that_no_thread_makes_is_passed() {
    let mut again = catches_up_with_two_readings();
    assert_eq!(again.handle_missed_reading(), Ok(true));
    assert_eq!(again.awaits_reading(), Ok(true), "the second one");
    let stranger = again.begin_thread(77).unwrap();
    assert_eq!(again.clock(stranger, 1), Ok(Reading::Again(70_000)));
    assert_eq!(again.handle_missed_reading(), Ok(false), "the log is over");
}

/// A thread waits for room in the outbox, as it did when another one found a lock taken and read the clock. This time the other one
/// finds the lock free, and ends. A thread that has not sent as much as then may still do what the other one waits for.
#[test]
fn a_thread_that_has_no_room_as_it_had_none_then_does_not_keep_the_log_from_going_on() {
    let config = Config { outbox_blocks: 8, outbox_block: 4, connections: 8, descriptors: 16, threads: 2, ..Config::default() };
    let mut observer = linked(&config, &[(1, 4), (2, 5)]);
    let other = observer.begin_thread(77).unwrap();
    let (mut next, begin) = (observer.clone(), observer.journal().end());
    let stalled = [7; 100];
    assert_eq!(observer.send(0, 4, &stalled, 0, true), Ok(Send::Taken { len: 16, whole: false }), "half of the outbox");
    observer.handle_clock(other, 1, 9_000).unwrap();
    let log = observer.poll_journal().unwrap().head.to_vec();
    next.restart(Incarnation::restarted(1), begin + log.len() as u64, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    next.handle_protector(&FromProtector::Journal { position: begin, bytes: &log }).unwrap();
    let mut ahead = next.clone();
    assert_eq!(next.send(0, 4, &stalled, 0, true), Ok(Send::Taken { len: 16, whole: false }));
    assert_eq!(next.send(0, 4, &stalled[16..], 16, true), Ok(Send::Wait(Wait::Outbox)));
    assert_eq!(next.awaits_reading(), Ok(true));
    assert!(next.waits_for_turn(0, Wait::Outbox) && !next.waits_for_turn(other, Wait::Outbox));
    assert_eq!(next.handle_missed_reading(), Ok(true));
    assert!(!next.waits_for_turn(0, Wait::Outbox), "the log is over");
    assert_eq!(ahead.send(other, 5, &stalled[..16], 0, true), Ok(Send::Taken { len: 16, whole: true }), "of another");
    assert!(ahead.awaits_reading() == Ok(true) && !ahead.waits_for_turn(0, Wait::Outbox));
}

/// Each reading has the whole time, and a thread that is not still keeps it.
#[test]
fn a_reading_is_given_up_when_the_process_stands_still() {
    let mut again = catches_up_with_two_readings();
    let (mut standstill, mut now, ms) = (Standstill::default(), Duration::from_secs(1), Duration::from_millis(1));
    let mut given_up = |span: Duration, still: usize| {
        let until = now + span;
        let mut times = Vec::new();
        while now < until {
            now += ms;
            let asked = standstill.handle_wait(&again, now);
            if standstill.handle_look(&mut again, now, |asked| asked == still).unwrap() {
                times.push(now);
            }
            standstill.handle_wait_over(asked);
        }
        times
    };
    assert_eq!(given_up(STANDS, 1), []);
    assert_eq!(given_up(Duration::from_secs(10), 2), [], "a thread does something");
    let times = given_up(Duration::from_secs(9), 1);
    assert!(times.len() == 2 && times[1] >= times[0] + STANDS, "there are two, and the second has its time, too: {times:?}");
}

/// A process that catches up with the log of one in which another thread has read a clock twice.
fn catches_up_with_two_readings() -> Observer {
    let mut then = sender();
    let stranger = then.begin_thread(77).unwrap();
    for real in [9_000, 70_000] {
        then.handle_clock(stranger, 1, real).unwrap();
    }
    let mut log = Vec::new();
    while let Some(ship) = then.poll_journal() {
        log.extend([ship.head, ship.tail].concat());
    }
    let mut again = sender();
    again.restart(Incarnation::restarted(1), log.len() as u64, Vec::new(), ImageRange::default(), (0, &[]), 512).unwrap();
    assert_eq!(again.awaits_reading(), Ok(false), "the log is not here");
    again.handle_protector(&FromProtector::Journal { position: 0, bytes: &log }).unwrap();
    assert_eq!(again.awaits_reading(), Ok(true));
    again
}
