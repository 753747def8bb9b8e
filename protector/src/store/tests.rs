//! The store by hand: what it acknowledges and when, which incarnations it hears, what it forgets. Whole clusters of stores and
//! observers are driven by `observer/tests/cluster`.

mod causes;
mod images;
mod replicas;

use proptest::prelude::*;
use radic_wire::determinant::ConnectionId;
use radic_wire::ids::{BootId, Epoch, JobId, Rank};
use radic_wire::log::{CutStreams, LogPart};
use radic_wire::process::PayloadMode;

use super::*;

const CONFIG: Config = Config { memory: 64, log: 1_000, image: 100, durable: false };

fn speaker(incarnation: u32) -> Speaker {
    let process = ProcessId { job: JobId::from_bits(1), rank: Rank(0) };
    Speaker { process, incarnation: Incarnation::restarted(incarnation) }
}

/// It was launched in the epoch that its home gave after this many others.
fn launched(count: u32) -> Speaker {
    let epoch = Epoch { view: 1, count, home: BootId(1) };
    Speaker { incarnation: Incarnation::launched_in(epoch), ..speaker(0) }
}

fn stream(number: u64) -> StreamId {
    StreamId { connection: ConnectionId { opener: speaker(0).process, number }, from_opener: false }
}

/// A job was suspended and goes on. Its logs here were forgotten, and a process of the life before that still runs says hello: it
/// is told that there is a later one (G4).
#[test]
fn of_a_rank_that_was_resumed_no_earlier_incarnation_is_heard() {
    let mut store = Store::new(CONFIG);
    let (id, by) = (speaker(0).process, |restart| Speaker { incarnation: Incarnation::restarted(restart), ..speaker(0) });
    store.refuse_before(id, by(2).incarnation);
    let refused = store.handle_message(by(1), &hello(by(1), 5));
    assert!(matches!(refused, Err(StoreError::Fenced { .. })), "{refused:?}");
    assert_eq!((store.incarnation(id), said(&mut store).len()), (None, 1));
    store.handle_message(by(2), &hello(by(2), 5)).expect("it begins the life");
    assert_eq!(store.incarnation(id), Some(by(2).incarnation));
    store.remove(id);
    assert!(store.handle_message(by(1), &hello(by(1), 5)).is_err());
    store.refuse_none(id.job);
    store.handle_message(by(1), &hello(by(1), 5)).expect("the job is over");
}

/// The numbers of its images.
fn numbers(restart: &Restart) -> Vec<u64> {
    restart.images.iter().map(|(number, _)| *number).collect()
}

fn hello(by: Speaker, end: u64) -> ToProtector<'static> {
    let span = Span { start: 0, end };
    ToProtector::hello(by.process, by.incarnation, span, span)
}

fn begun(config: Config) -> Store {
    let mut store = Store::new(config);
    store.handle_message(speaker(0), &hello(speaker(0), 0)).unwrap();
    said(&mut store);
    store
}

/// What it has said since, as text: a message borrows its bytes.
fn said(store: &mut Store) -> Vec<String> {
    let outputs = std::iter::from_fn(|| store.poll_output());
    let text = |output: Output| match output {
        Output::Send(_, message) => format!("{:?}", FromProtector::read(&message).unwrap()),
        Output::Forward(_, message) => format!("forward {:?}", ToProtector::read(&message).unwrap()),
        output => format!("{output:?}"),
    };
    outputs.map(text).collect()
}

/// The replica hears what is forwarded to it.
fn pass_on(store: &mut Store, replica: &mut Store) {
    for output in std::iter::from_fn(|| store.poll_output()) {
        if let Output::Forward(id, message) = output {
            let message = ToProtector::read(&message).unwrap();
            let incarnation = match message {
                ToProtector::Hello { incarnation, .. } => incarnation,
                _ => replica.incarnation(id).unwrap(),
            };
            replica.handle_message(Speaker { process: id, incarnation }, &message).unwrap();
        }
    }
}

/// The disk takes everything that there is to write.
fn write_all(store: &mut Store) {
    while let Some(write) = store.poll_write(64) {
        store.handle_written(write.file, write.position + write.bytes.len() as u64);
    }
}

fn image(store: &mut Store, number: u64, cut: u64, streams: &[(StreamId, u64)]) {
    image_after(store, number, cut, 0, streams);
}

/// An image that covers so much of the payload log.
fn image_after(store: &mut Store, number: u64, cut: u64, payload: u64, streams: &[(StreamId, u64)]) {
    let (streams, ended) = (CutStreams::new(streams).unwrap(), CutStreams::new(&[]).unwrap());
    let begin = ToProtector::image_by_itself(number, None, (cut, payload), 0, streams, ended);
    let chunk = ToProtector::ImageChunk { image: number, offset: 0, bytes: b"image" };
    for message in [begin, chunk, ToProtector::ImageEnd { image: number, length: 5 }] {
        store.handle_message(speaker(0), &message).unwrap();
    }
}

/// Two images, the journal cut at 2 and at 4 of 6, and a stream read up to 3 and up to 5 of 8.
fn two_images(config: Config) -> Store {
    let mut store = begun(config);
    let id = speaker(0).process;
    store.handle_message(speaker(0), &ToProtector::Journal { position: 0, bytes: b"abcdef" }).unwrap();
    let bytes = b"received";
    store.handle_message(speaker(0), &ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes }).unwrap();
    for (number, cut, read) in [(0, 2, 3), (1, 4, 5)] {
        image_after(&mut store, number, cut, read, &[(stream(1), read)]);
        store.handle_verified(id, number, true);
    }
    store
}

/// The process is restarted as these incarnations, one after the other, none of which becomes live. Returns the image that each
/// comes from.
fn restarted_as(store: &mut Store, incarnations: std::ops::Range<u32>) -> Vec<(u64, u64)> {
    let restart = |restart| store.restart(speaker(0).process, Incarnation::restarted(restart)).unwrap();
    incarnations.map(restart).map(|restart| (restart.images.last().unwrap().0, restart.cut)).collect()
}

#[test]
fn an_older_incarnation_is_told_and_changes_nothing() {
    let mut store = begun(CONFIG);
    let journal = ToProtector::Journal { position: 0, bytes: b"new" };
    store.fence(speaker(0).process, Incarnation::restarted(2));
    assert!(matches!(store.handle_message(speaker(0), &journal), Err(StoreError::Fenced { .. })));
    assert!(matches!(store.handle_message(speaker(0), &hello(speaker(0), 0)), Err(StoreError::Fenced { .. })));
    assert_eq!(said(&mut store)[0], format!("Fenced {{ newest: {:?} }}", Incarnation::restarted(2)));
    assert_eq!(store.journal_end(speaker(0).process), 0);
    store.handle_message(speaker(2), &journal).unwrap();
    assert_eq!(store.journal_end(speaker(0).process), 3);
}

#[test]
fn durable_means_written() {
    let mut store = begun(Config { durable: true, ..CONFIG });
    store.handle_message(speaker(0), &ToProtector::Journal { position: 0, bytes: b"abcdef" }).unwrap();
    assert_eq!(said(&mut store), [""; 0]);
    let write = store.poll_write(4).unwrap();
    assert_eq!((write.position, &write.bytes[..]), (0, &b"abcd"[..]));
    store.handle_written(write.file, 4);
    assert_eq!(said(&mut store), ["JournalStable { position: 4 }"]);
}

/// Payload over the bound fills a process's share of memory, and waits there for the checkpoint that lets it be acknowledged:
/// that must find room, and be committed. (With hundreds of processes at one protector a share is less than what a process sends
/// unacknowledged.)
#[test]
fn an_image_finds_room_beside_payload_that_waits_for_it() {
    for durable in [false, true] {
        let mut store = begun(Config { memory: 2, log: 4, durable, ..CONFIG });
        let id = speaker(0).process;
        store.set_replica(id, !durable);
        store
            .handle_message(speaker(0), &ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"first" })
            .unwrap();
        write_all(&mut store);
        assert!(!store.has_room_for_payload(id) && store.has_room(id) && store.has_room_for_journal(id));
        image_after(&mut store, 0, 0, 5, &[(stream(1), 5)]);
        assert!(!store.has_room(id), "none for more, until it is written");
        write_all(&mut store);
        assert!(store.has_room(id));
        store.handle_verified(id, 0, true);
        store.handle_replica(id, &FromProtector::Committed { image: 0, oldest: 0 });
        assert!(store.can_restart(id) && store.has_room_for_payload(id));
    }
}

#[test]
fn payload_that_an_image_covers_may_come_after_it() {
    let mut store = Store::new(CONFIG);
    let (journal, payload) = (Span { start: 0, end: 0 }, Span { start: 5, end: 8 });
    let Speaker { process, incarnation } = speaker(0);
    store.handle_message(speaker(0), &ToProtector::hello(process, incarnation, journal, payload)).unwrap();
    // The image has a connection of its own. The process has closed the stream, whose last bytes are still on their way.
    image_after(&mut store, 0, 0, 8, &[(stream(0), u64::MAX)]);
    store.handle_verified(process, 0, true);
    assert!(store.has_image(process));
    let late = ToProtector::Payload { position: 5, stream: stream(0), offset: 62, bytes: b"abc" };
    assert_eq!(store.handle_message(speaker(0), &late), Ok(()));
    assert_eq!(store.usage(process).unwrap().payload, 0);
}

#[test]
fn nothing_is_forgotten_before_the_commit() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    store.handle_message(speaker(0), &ToProtector::Journal { position: 0, bytes: b"abcdef" }).unwrap();
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"received" };
    store.handle_message(speaker(0), &payload).unwrap();
    image(&mut store, 0, 4, &[(stream(1), 3)]);
    assert!(said(&mut store).contains(&format!("{:?}", Output::Verify(id, 0))));
    assert_eq!(store.restart(id, Incarnation::FIRST), Err(NoRestart::Unstable), "its first image is here, and will be verified");
    let fetch = ToProtector::FetchJournal { position: 0 };
    store.handle_message(speaker(0), &fetch).unwrap();
    store.handle_verified(id, 0, true);
    assert!(store.handle_message(speaker(0), &fetch).is_err(), "the journal before the cut is gone");
    let restart = store.restart(id, Incarnation::restarted(1)).unwrap();
    assert_eq!((numbers(&restart), restart.cut, restart.log_end), (vec![0], 4, 6));
    assert_eq!(restart.held, [(stream(1), 8, None)]);
}

#[test]
fn an_image_that_is_not_whole_or_not_good_is_refused() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, false);
    assert!(said(&mut store).contains(&"ImageRefused { image: 0 }".to_owned()));
    image(&mut store, 1, 0, &[]);
    store
        .handle_message(
            speaker(0),
            &ToProtector::image_by_itself(2, Some(1), (0, 0), 0, CutStreams::new(&[]).unwrap(), CutStreams::new(&[]).unwrap()),
        )
        .unwrap();
    assert!(said(&mut store).contains(&"ImageRefused { image: 2 }".to_owned()), "an increment of what is not committed");
    store.handle_verified(id, 1, true);
    assert!(!store.has_image(id), "it was given up for another");
}

/// Each image has a connection of its own, so one that its process has given up may begin here after the next one.
#[test]
fn an_image_that_was_given_up_and_comes_late_is_refused() {
    for is_announced in [false, true] {
        let mut store = begun(CONFIG);
        let id = speaker(0).process;
        if is_announced {
            store.handle_message(speaker(0), &ToProtector::ImageUnderWay { image: 1 }).unwrap();
        } else {
            image(&mut store, 1, 0, &[]);
        }
        said(&mut store);
        image(&mut store, 0, 0, &[]);
        assert_eq!(said(&mut store), ["ImageRefused { image: 0 }"], "{is_announced}");
        assert_eq!(store.awaits_image(id), is_announced);
        if is_announced {
            image(&mut store, 1, 0, &[]);
        }
        store.handle_verified(id, 1, true);
        assert!(said(&mut store).iter().any(|said| said.starts_with("Committed { image: 1")));
    }
}

/// An observer that says that a stream has 2^64 bytes: what is held of it is not less than what came.
#[test]
fn a_stream_that_ends_where_numbers_do_is_held() {
    let (mut store, last) = (begun(CONFIG), u64::MAX - 1);
    let (streams, ended) = ([(stream(1), last)], [(stream(1), u64::MAX)]);
    let (streams, ended) = (CutStreams::new(&streams).unwrap(), CutStreams::new(&ended).unwrap());
    let begin = ToProtector::image_by_itself(1, None, (0, 0), 0, streams, ended);
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: last, bytes: b"x" };
    store.handle_message(speaker(0), &begin).unwrap();
    store.handle_message(speaker(0), &ToProtector::ImageEnd { image: 1, length: 0 }).unwrap();
    store.handle_verified(speaker(0).process, 1, true);
    store.handle_message(speaker(0), &payload).unwrap();
    assert!(store.holds(speaker(0).process, stream(1), last));
}

#[test]
fn a_full_log_asks_for_an_image_once() {
    let mut store = begun(CONFIG);
    image(&mut store, 0, 0, &[]);
    store.handle_verified(speaker(0).process, 0, true);
    said(&mut store);
    for piece in 0..8u64 {
        let payload = ToProtector::Payload { position: piece * 100, stream: stream(1), offset: piece * 100, bytes: &[0; 100] };
        store.handle_message(speaker(0), &payload).unwrap();
    }
    assert_eq!(said(&mut store).iter().filter(|said| *said == "ImageWanted").count(), 1);
}

/// A process at its end is in no checkpoint any more: it would wait forever for one that lets its payload be acknowledged.
#[test]
fn a_process_at_its_end_is_acknowledged_over_the_bound() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    store.configure(id, 100, false, PayloadMode::Log);
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: &[0; 300] };
    store.handle_message(speaker(0), &payload).unwrap();
    assert!(store.is_over_bound(id));
    assert_eq!(store.stable_of(id, stream(1)), 0);
    store.handle_message(speaker(0), &ToProtector::Closing).unwrap();
    assert!(!store.is_over_bound(id));
    assert_eq!(store.stable_of(id, stream(1)), 300);
    // Its next incarnation has images again.
    store.restart(id, Incarnation::restarted(1)).unwrap();
    assert!(store.is_over_bound(id));
}

proptest! {
    /// Whatever an observer sends, and in whatever order: an error perhaps, never a panic, and memory within the bound that asks
    /// the driver to stop reading.
    #[test]
    fn no_message_breaks_it(messages in prop::collection::vec((0u8..13, 0u64..40, 0u64..40, 0usize..40), 0..60)) {
        let mut store = begun(CONFIG);
        let bytes = [7; 40];
        for (kind, a, b, length) in messages {
            let (bytes, pair) = (&bytes[..length], [(stream(a % 3), b), (stream(b % 3), u64::MAX)]);
            let (streams, ended) = (CutStreams::new(&pair).unwrap(), CutStreams::new(&pair[..1]).unwrap());
            let message = match kind {
                0 => ToProtector::Journal { position: a, bytes },
                1 | 2 => ToProtector::Payload { position: b, stream: stream(a % 3), offset: b, bytes },
                3 => ToProtector::PayloadEnd { position: b, stream: stream(a % 3), offset: b },
                4 => ToProtector::image_by_itself(a, None, (b, a), 0, streams, ended),
                5 => ToProtector::ImageChunk { image: a, offset: 0, bytes },
                6 => ToProtector::ImageEnd { image: a, length: length as u64 },
                7 => ToProtector::FetchPayload { stream: stream(a % 3), offset: b },
                _ => ToProtector::FetchJournal { position: a },
            };
            let id = speaker(0).process;
            match kind {
                0..9 => _ = store.handle_message(speaker(0), &message),
                9 => store.set_replica(id, a % 2 == 0),
                10 => store.handle_replica(id, &FromProtector::JournalStable { position: a }),
                11 => store.handle_replica(id, &FromProtector::PayloadStable { position: b }),
                _ => store.configure(id, 1_000, a % 2 == 0, PayloadMode::Log),
            }
            for output in std::iter::from_fn(|| store.poll_output()).collect::<Vec<_>>() {
                if let Output::Verify(id, number) = output {
                    store.handle_verified(id, number, a % 2 == 0);
                }
            }
            write_all(&mut store);
            // What only a replica can free is the replica's affair.
            prop_assert!(store.has_room(id) || store.is_replicated(id));
            for process in store.processes.values() {
                let mut counted = process.clone();
                counted.recount();
                prop_assert_eq!((counted.log_bytes, counted.in_memory), (process.log_bytes, process.in_memory));
            }
        }
    }
}
