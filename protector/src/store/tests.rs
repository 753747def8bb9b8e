//! The store by hand: what it acknowledges and when, which incarnations it hears, what it forgets. Whole clusters of stores and
//! observers are driven by `observer/tests/cluster`.

use proptest::prelude::*;

use radic_wire::ids::{JobId, Rank};
use radic_wire::log::CutStreams;

use super::*;

const CONFIG: Config = Config { memory: 64, log: 1_000, image: 100, durable: false };

fn speaker(incarnation: u32) -> Speaker {
    let process = ProcessId { job: JobId::from_bits(1), rank: Rank(0) };
    Speaker { process, incarnation: Incarnation(incarnation) }
}

fn stream(number: u64) -> StreamId {
    StreamId { connection: ConnectionId { opener: speaker(0).process, number }, from_opener: false }
}

/// The numbers of its images.
fn numbers(restart: &Restart) -> Vec<u64> {
    restart.images.iter().map(|(number, _)| *number).collect()
}

fn hello(by: Speaker, end: u64) -> ToProtector<'static> {
    let span = Span { start: 0, end };
    ToProtector::Hello { process: by.process, incarnation: by.incarnation, journal: span, payload: span }
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
    let begin = ToProtector::ImageBegin { image: number, parent: None, cut, payload, streams, ended };
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
fn restarted_as(store: &mut Store, lives: std::ops::Range<u32>) -> Vec<(u64, u64)> {
    let restart = |life| store.restart(speaker(0).process, Incarnation(life)).unwrap();
    lives.map(restart).map(|restart| (restart.images.last().unwrap().0, restart.cut)).collect()
}

#[test]
fn a_process_that_does_not_live_again_comes_back_from_the_image_before() {
    let mut store = two_images(CONFIG);
    let id = speaker(0).process;
    assert!(said(&mut store).contains(&"Committed { image: 1, oldest: 0 }".to_owned()));
    assert_eq!(restarted_as(&mut store, 1..4), [(1, 4), (1, 4), (0, 2)]);
    let restart = store.restart(id, Incarnation(4)).unwrap();
    assert_eq!((restart.range, restart.log_end), (ImageRange { oldest: 0, next: 2 }, 6));
    assert_eq!(restart.held, [(stream(1), 8, None)]);
    // All of the log since is there, to catch up from.
    assert_eq!(store.find(id, LogPart::Journal, 2, 9), Some(Place::Memory(b"cdef".to_vec())));
    assert_eq!(store.find(id, LogPart::Stream(stream(1)), 3, 9), Some(Place::Memory(b"eived".to_vec())));
    // There is nothing before that one.
    assert_eq!(restarted_as(&mut store, 5..9), [(0, 2); 4]);
}

/// The next incarnation need not come to the state that the newest image holds: empty outcomes after the last determinant are in
/// no log. So a replica cannot go on from that image, whether it has heard of it at once or only when it was there again.
#[test]
fn a_replica_drops_an_image_that_does_not_restore() {
    for at_once in [true, false] {
        let (mut store, mut replica) = (begun(CONFIG), Store::new(CONFIG));
        let id = speaker(0).process;
        store.set_replica(id, true);
        pass_on(&mut store, &mut replica);
        replica.follow(id);
        for number in 0..2 {
            image(&mut store, number, 0, &[]);
            store.handle_verified(id, number, true);
            pass_on(&mut store, &mut replica);
            replica.handle_verified(id, number, true);
            store.handle_replica(id, &FromProtector::Committed { image: number, oldest: number });
        }
        assert!(replica.has_image(id));
        assert_eq!(restarted_as(&mut store, 1..4), [(1, 0), (1, 0), (0, 0)]);
        if !at_once {
            said(&mut store);
            store.set_replica(id, true);
        }
        pass_on(&mut store, &mut replica);
        replica.take_over(id);
        assert!(!replica.has_image(id), "at once: {at_once}");
    }
}

#[test]
fn a_process_that_lives_again_has_a_good_image() {
    let mut store = two_images(CONFIG);
    for life in 1..9 {
        assert_eq!(restarted_as(&mut store, life..life + 1), [(1, 4)]);
        store.handle_message(speaker(life), &hello(speaker(life), 6)).unwrap();
        store.handle_message(speaker(life), &ToProtector::Live).unwrap();
    }
}

/// Positions in the payload log belong to an incarnation: the older image's belong to the one before.
#[test]
fn an_image_of_an_earlier_life_covers_no_payload_of_this_one() {
    let mut store = two_images(CONFIG);
    let id = speaker(0).process;
    assert_eq!(restarted_as(&mut store, 1..2), [(1, 4)]);
    let (journal, payload) = (Span { start: 4, end: 6 }, Span { start: 0, end: 0 });
    let hello = ToProtector::Hello { process: id, incarnation: Incarnation(1), journal, payload };
    store.handle_message(speaker(1), &hello).unwrap();
    let read = [(stream(1), 8)];
    let (streams, ended) = (CutStreams::new(&read).unwrap(), CutStreams::new(&[]).unwrap());
    let begin = ToProtector::ImageBegin { image: 2, parent: None, cut: 6, payload: 0, streams, ended };
    let chunk = ToProtector::ImageChunk { image: 2, offset: 0, bytes: b"image" };
    for message in [begin, chunk, ToProtector::ImageEnd { image: 2, length: 5 }] {
        store.handle_message(speaker(1), &message).unwrap();
    }
    store.handle_verified(id, 2, true);
    assert!(said(&mut store).contains(&"Committed { image: 2, oldest: 1 }".to_owned()));
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 8, bytes: b"more" };
    store.handle_message(speaker(1), &payload).unwrap();
    assert!(store.holds(id, stream(1), 11), "it is new, not covered");
}

#[test]
fn the_next_commit_drops_what_only_the_image_before_needed() {
    let mut store = two_images(CONFIG);
    let id = speaker(0).process;
    image_after(&mut store, 2, 6, 8, &[(stream(1), 8)]);
    store.handle_verified(id, 2, true);
    assert_eq!(store.find(id, LogPart::Journal, 2, 9), None);
    assert_eq!(store.find(id, LogPart::Journal, 4, 9), Some(Place::Memory(b"ef".to_vec())));
    assert_eq!(store.committed_image(id, 0), None);
    assert_eq!(restarted_as(&mut store, 1..4), [(2, 6), (2, 6), (1, 4)]);
}

/// A log that has room for little more than the newest image needs is cut at that image, and its peers are told. So is one that
/// another protector leads.
#[test]
fn where_there_is_no_room_for_two_the_newest_image_is_the_oldest() {
    let mut store = two_images(Config { log: 20, ..CONFIG });
    assert!(said(&mut store).contains(&"Committed { image: 1, oldest: 0 }".to_owned()));
    store.handle_message(speaker(0), &ToProtector::Journal { position: 6, bytes: b"ghij" }).unwrap();
    assert!(said(&mut store).contains(&"Committed { image: 1, oldest: 1 }".to_owned()));
    assert_eq!(restarted_as(&mut store, 1..5), [(1, 4); 4]);

    let mut store = two_images(CONFIG);
    store.follow(speaker(0).process);
    store.take_over(speaker(0).process);
    assert_eq!(restarted_as(&mut store, 1..5), [(1, 4); 4]);
}

/// Payload that came later than the image that covers it was never here: no process comes back from before it.
#[test]
fn without_all_of_the_log_between_there_is_no_image_to_go_back_to() {
    let mut store = two_images(CONFIG);
    image_after(&mut store, 2, 6, 20, &[(stream(1), 20)]);
    store.handle_verified(speaker(0).process, 2, true);
    assert!(said(&mut store).contains(&"Committed { image: 2, oldest: 2 }".to_owned()));
    assert_eq!(restarted_as(&mut store, 1..5), [(2, 6); 4]);
}

/// One that cannot be restarted from would be worse than none: the process makes a whole one then.
#[test]
fn a_chain_that_is_too_long_to_be_read_is_refused() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    let streams = CutStreams::new(&[]).unwrap();
    for number in 1..=limits::LAYERS as u64 {
        said(&mut store);
        let (image, parent) = (number, Some(number - 1));
        let begin = ToProtector::ImageBegin { image, parent, cut: 0, payload: 0, streams, ended: streams };
        store.handle_message(speaker(0), &begin).unwrap();
        if number == limits::LAYERS as u64 {
            break;
        }
        store.handle_message(speaker(0), &ToProtector::ImageChunk { image, offset: 0, bytes: b"image" }).unwrap();
        store.handle_message(speaker(0), &ToProtector::ImageEnd { image, length: 5 }).unwrap();
        store.handle_verified(id, image, true);
    }
    assert_eq!(said(&mut store), [format!("ImageRefused {{ image: {} }}", limits::LAYERS)]);
    image(&mut store, limits::LAYERS as u64 + 1, 0, &[]);
    store.handle_verified(id, limits::LAYERS as u64 + 1, true);
    assert!(said(&mut store).iter().any(|text| text.starts_with("Committed")));
}

/// Sixteen increments of a program that changes all of its memory would be sixteen times its memory, to be held and to be read.
#[test]
fn a_whole_image_is_wanted_when_the_increments_are_longer_than_the_last() {
    let mut store = begun(Config { image: 1 << 30, memory: 1 << 30, ..CONFIG });
    let (id, streams) = (speaker(0).process, CutStreams::new(&[]).unwrap());
    let piece = vec![0; limits::CHUNK];
    let mut make = |image: u64, parent: Option<u64>, mib: u64| {
        let begin = ToProtector::ImageBegin { image, parent, cut: 0, payload: 0, streams, ended: streams };
        store.handle_message(speaker(0), &begin).unwrap();
        let length = mib << 20;
        for offset in (0..length).step_by(piece.len()) {
            let bytes = &piece[..piece.len().min((length - offset) as usize)];
            store.handle_message(speaker(0), &ToProtector::ImageChunk { image, offset, bytes }).unwrap();
        }
        store.handle_message(speaker(0), &ToProtector::ImageEnd { image, length }).unwrap();
        store.handle_verified(id, image, true);
        let told = |text: &String| text.starts_with("Committed") || text == "WholeWanted";
        said(&mut store).into_iter().filter(told).collect::<Vec<_>>()
    };
    let committed = |image: u64| format!("Committed {{ image: {image}, oldest: {} }}", image.saturating_sub(1));
    assert_eq!(make(0, None, 30), [committed(0)]);
    assert_eq!(make(1, Some(0), 20), [committed(1)]);
    assert_eq!(make(2, Some(1), 10), [committed(2)], "as long, not longer");
    assert_eq!(make(3, Some(2), 5), [committed(3), "WholeWanted".to_owned()]);
    assert_eq!(make(4, Some(3), 1), [committed(4), "WholeWanted".to_owned()], "until there is one");
    assert_eq!(make(5, None, 1), [committed(5)]);
    assert_eq!(make(6, Some(5), 20), [committed(6)], "a short chain may be of any form");
}

#[test]
fn an_older_incarnation_is_told_and_changes_nothing() {
    let mut store = begun(CONFIG);
    let journal = ToProtector::Journal { position: 0, bytes: b"new" };
    store.fence(speaker(0).process, Incarnation(2));
    assert!(matches!(store.handle_message(speaker(0), &journal), Err(StoreError::Fenced { .. })));
    assert!(matches!(store.handle_message(speaker(0), &hello(speaker(0), 0)), Err(StoreError::Fenced { .. })));
    assert_eq!(said(&mut store)[0], "Fenced { newest: Incarnation(2) }");
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

/// A piece that came later was written first, and is not stable for that: a new replica is given it all the same.
#[test]
fn a_new_replica_gets_what_was_written_before_its_turn() {
    for unreplicated in [false, true] {
        let durable = Config { durable: true, memory: 0, ..CONFIG };
        let (mut store, mut replica) = (begun(durable), Store::new(CONFIG));
        let id = speaker(0).process;
        for (position, stream, bytes) in [(0, stream(1), b"first"), (5, stream(2), b"later")] {
            store.handle_message(speaker(0), &ToProtector::Payload { position, stream, offset: 0, bytes }).unwrap();
        }
        let writes: Vec<_> = std::iter::from_fn(|| store.poll_write(100)).collect();
        let later = writes.iter().find(|write| write.file == File::Stream(id, stream(2))).unwrap();
        store.handle_written(later.file, 5);
        assert_eq!(said(&mut store), [""; 0], "the first is not written");
        if unreplicated {
            store.set_replica(id, false);
        }
        store.set_replica(id, true);
        pass_on(&mut store, &mut replica);
        let next = ToProtector::Payload { position: 10, stream: stream(2), offset: 5, bytes: b"next" };
        assert_eq!(replica.handle_message(speaker(0), &next), Ok(()));
    }
}

/// Payload over the bound is not acknowledged before a checkpoint, and may be in a file by then: a new replica is given it all
/// the same.
#[test]
fn a_new_replica_gets_what_is_over_the_bound() {
    let (mut store, mut replica) = (begun(Config { memory: 0, log: 4, ..CONFIG }), Store::new(CONFIG));
    store
        .handle_message(speaker(0), &ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"first" })
        .unwrap();
    write_all(&mut store);
    assert_eq!(store.stable_of(speaker(0).process, stream(1)), 0);
    store.set_replica(speaker(0).process, true);
    pass_on(&mut store, &mut replica);
    let next = ToProtector::Payload { position: 5, stream: stream(1), offset: 5, bytes: b"next" };
    assert_eq!(replica.handle_message(speaker(0), &next), Ok(()));
}

/// Payload over the bound fills a process's share of memory, and waits there for the checkpoint that lets it be acknowledged: that must find room, and be committed. (With hundreds of
/// processes at one protector a share is less than what a process sends unacknowledged.)
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
    store.handle_message(speaker(0), &ToProtector::Hello { process, incarnation, journal, payload }).unwrap();
    // The image has a connection of its own. The process has closed the stream, whose last bytes are still on their way.
    image_after(&mut store, 0, 0, 8, &[(stream(0), u64::MAX)]);
    store.handle_verified(process, 0, true);
    assert!(store.has_image(process));
    let late = ToProtector::Payload { position: 5, stream: stream(0), offset: 62, bytes: b"abc" };
    assert_eq!(store.handle_message(speaker(0), &late), Ok(()));
    assert_eq!(store.usage(process).unwrap().payload, 0);
}

#[test]
fn the_last_replica_decides() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    store.set_replica(id, true);
    said(&mut store);
    store.handle_message(speaker(0), &ToProtector::Journal { position: 0, bytes: b"abc" }).unwrap();
    assert_eq!(said(&mut store), ["forward Journal { position: 0, bytes: [97, 98, 99] }"]);
    store.handle_replica(id, &FromProtector::JournalStable { position: 2 });
    assert_eq!(said(&mut store), ["JournalStable { position: 2 }"]);
    assert_eq!(store.restart(id, Incarnation(1)), Err(NoRestart::NoImage));
    store.set_replica(id, false);
    assert_eq!(said(&mut store), ["JournalStable { position: 3 }"]);
}

/// An image holds what was received and not read, and says how far was read: a new replica must not take that for the end of what came.
#[test]
fn an_image_that_says_less_than_was_acknowledged_leaves_no_gap_at_a_new_replica() {
    let (mut store, mut replica) = (begun(CONFIG), Store::new(CONFIG));
    let id = speaker(0).process;
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"received" };
    store.handle_message(speaker(0), &payload).unwrap();
    assert!(said(&mut store).contains(&"PayloadStable { position: 8 }".to_owned()));
    store.set_replica(id, true);
    let streams = [(stream(1), 3)];
    pass_on(&mut store, &mut replica);
    image_after(&mut replica, 0, 0, 8, &streams);
    replica.handle_verified(id, 0, true);
    assert!(replica.can_restart(id));
    let more = ToProtector::Payload { position: 8, stream: stream(1), offset: 8, bytes: b"more" };
    assert_eq!(replica.handle_message(speaker(0), &more), Ok(()));
}

/// A log server that is to hold a copy may have had all of it, because it held it for another protector. Then its welcome is the
/// last that it says, and must open the gate.
#[test]
fn a_replica_that_has_all_already_opens_the_gate() {
    let (mut store, mut replica) = (begun(CONFIG), begun(CONFIG));
    let id = speaker(0).process;
    let journal = ToProtector::Journal { position: 0, bytes: b"abc" };
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"received" };
    for message in [journal, payload] {
        replica.handle_message(speaker(0), &message).unwrap();
    }
    said(&mut replica);
    store.set_replica(id, true);
    said(&mut store);
    for message in [hello(speaker(0), 8), journal, payload] {
        store.handle_message(speaker(0), &message).unwrap();
    }
    assert!(!said(&mut store).iter().any(|said| said.starts_with("JournalStable")));
    store.set_replica(id, true);
    pass_on(&mut store, &mut replica);
    while let Some(output) = replica.poll_output() {
        if let Output::Send(_, message) = output {
            store.handle_replica(id, &FromProtector::read(&message).unwrap());
        }
    }
    let acknowledged = said(&mut store);
    assert_eq!(acknowledged, ["JournalStable { position: 3 }", "PayloadStable { position: 8 }"]);
}

/// The protector is new and the replica is not. The protector claims what the process has announced, also before that has come.
#[test]
fn a_replica_that_knows_more_than_a_new_protector_is_not_contradicted() {
    let (mut store, mut replica) = (Store::new(CONFIG), begun(CONFIG));
    let id = speaker(0).process;
    let journal = ToProtector::Journal { position: 0, bytes: b"abc" };
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"received" };
    for message in [journal, payload] {
        replica.handle_message(speaker(0), &message).unwrap();
    }
    store.handle_message(speaker(0), &hello(speaker(0), 8)).unwrap();
    store.set_replica(id, true);
    store.handle_message(speaker(0), &journal).unwrap();
    // The connection to the replica is there now.
    said(&mut store);
    store.set_replica(id, true);
    pass_on(&mut store, &mut replica);
    while let Some(output) = replica.poll_output() {
        if let Output::Send(_, message) = output {
            store.handle_replica(id, &FromProtector::read(&message).unwrap());
        }
    }
    assert_eq!(said(&mut store)[..], ["JournalStable { position: 3 }"], "payload that is not here is not acknowledged");
}

/// A process is fenced, and its log is not settled yet. A replica that joins now gets what the incarnation before has said, in
/// its name. In the next one's name it would hold payload that that one does not know, and refuse it for ever.
#[test]
fn a_replica_that_joins_after_the_fence_learns_of_one_life_after_the_other() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    store.set_replica(id, true);
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"received" };
    store.handle_message(speaker(0), &payload).unwrap();
    assert_eq!(store.restart(id, Incarnation(1)), Err(NoRestart::Unstable), "the replica has said nothing");
    said(&mut store);
    store.set_replica(id, true);
    let hellos = |store: &mut Store| said(store).into_iter().filter(|said| said.starts_with("forward Hello")).collect::<Vec<_>>();
    let [of_before] = &hellos(&mut store)[..] else { panic!("one hello") };
    assert!(
        of_before.contains("incarnation: Incarnation(0)") && of_before.ends_with("payload: Span { start: 0, end: 8 } }"),
        "{of_before}"
    );
    store.handle_replica(id, &FromProtector::PayloadStable { position: 8 });
    store.restart(id, Incarnation(1)).unwrap();
    let [of_next] = &hellos(&mut store)[..] else { panic!("one hello") };
    assert!(
        of_next.contains("incarnation: Incarnation(1)") && of_next.ends_with("payload: Span { start: 0, end: 0 } }"),
        "{of_next}"
    );
}

/// A log takes its time to become stable, and its process is lost once more meanwhile. The wait for the earlier incarnation
/// changes nothing of the one that speaks.
#[test]
fn a_life_that_was_fenced_while_its_log_was_waited_for_gets_nothing() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    store.set_replica(id, true);
    let payload = |position, offset| ToProtector::Payload { position, stream: stream(1), offset, bytes: b"received" };
    store.handle_message(speaker(0), &payload(0, 0)).unwrap();
    for life in [1, 2] {
        assert_eq!(store.restart(id, Incarnation(life)), Err(NoRestart::Unstable));
    }
    store.handle_replica(id, &FromProtector::PayloadStable { position: 8 });
    store.restart(id, Incarnation(2)).unwrap();
    store.handle_message(speaker(2), &hello(speaker(2), 0)).unwrap();
    store.handle_message(speaker(2), &payload(0, 8)).unwrap();
    store.handle_replica(id, &FromProtector::PayloadStable { position: 8 });
    said(&mut store);
    assert_eq!(store.restart(id, Incarnation(1)), Err(NoRestart::NoImage));
    assert_eq!(said(&mut store), [""; 0]);
    store.handle_message(speaker(2), &payload(8, 16)).unwrap();
}

/// A replica commits an image before the protector that leads. If the replica answered for it and was lost with the receiver
/// then, the receiver would come back from an older image and need bytes that their sender had dropped by the replica's word.
#[test]
fn only_a_log_that_can_bring_the_receiver_back_says_what_is_stable() {
    let mut store = Store::new(CONFIG);
    let (speaker, life) = (speaker(0), Incarnation(0));
    store.handle_message(speaker, &hello(speaker, 0)).unwrap();
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"12345" };
    store.handle_message(speaker, &payload).unwrap();
    let says = |store: &Store| store.stable_in(speaker.process, life, stream(1));
    assert_eq!(says(&store), 5);
    store.follow(speaker.process);
    assert_eq!((says(&store), store.stable_of(speaker.process, stream(1))), (0, 5), "the one that leads says it");
    store.take_over(speaker.process);
    assert_eq!(says(&store), 5);
    store.let_go(speaker.process);
    assert_eq!(says(&store), 0, "the log goes on elsewhere");
}

/// The store holds nothing of what another protector held. For the sender it is enough that the receiver has it: a process that
/// is brought back from here comes back from an image that has it.
#[test]
fn a_new_protector_knows_where_streams_go_on_before_it_has_an_image() {
    let mut store = Store::new(CONFIG);
    let speaker = speaker(0);
    let span = Span { start: 7, end: 7 };
    let hello = ToProtector::Hello { process: speaker.process, incarnation: speaker.incarnation, journal: span, payload: span };
    store.handle_message(speaker, &hello).unwrap();
    assert_eq!(store.stable_of(speaker.process, stream(1)), 0);
    let goes_on = |stream, offset| ToProtector::Payload { position: 7, stream, offset, bytes: b"" };
    store.handle_message(speaker, &goes_on(stream(1), 5)).unwrap();
    assert_eq!(store.stable_of(speaker.process, stream(1)), 5);
    store.handle_message(speaker, &goes_on(stream(1), 9)).unwrap();
    assert_eq!(store.stable_of(speaker.process, stream(1)), 5, "it is known already");
    let more = ToProtector::Payload { position: 7, stream: stream(1), offset: 5, bytes: b"more" };
    store.handle_message(speaker, &more).unwrap();
    assert_eq!(store.stable_of(speaker.process, stream(1)), 9);
    image_after(&mut store, 0, 7, 11, &[(stream(1), 9)]);
    store.handle_verified(speaker.process, 0, true);
    store.handle_message(speaker, &goes_on(stream(2), 5)).unwrap();
    assert_eq!(store.stable_of(speaker.process, stream(2)), 0, "the process with the image knows itself");
}

/// A replica that is told to begin while an image is on its way gets the log from after that image's cut. With that image it
/// would hold a stream with a hole, and take nothing more of it.
#[test]
fn an_image_of_before_the_log_begins_is_refused() {
    let mut store = Store::new(CONFIG);
    let speaker = speaker(0);
    let (journal, payload) = (Span { start: 5, end: 5 }, Span { start: 8, end: 8 });
    let hello = ToProtector::Hello { process: speaker.process, incarnation: speaker.incarnation, journal, payload };
    store.handle_message(speaker, &hello).unwrap();
    said(&mut store);
    image_after(&mut store, 0, 5, 7, &[(stream(1), 7)]);
    assert_eq!(said(&mut store), ["ImageRefused { image: 0 }"]);
    let piece = ToProtector::Payload { position: 8, stream: stream(1), offset: 8, bytes: b"more" };
    assert_eq!(store.handle_message(speaker, &piece), Ok(()));
    image_after(&mut store, 1, 5, 8, &[(stream(1), 8)]);
    assert!(said(&mut store).iter().any(|said| said.starts_with("Verify")));
}

/// A node that is to protect a process of a job that has restarted, and has heard nothing of it since, has nothing to bring it
/// back from: what it holds is of another past.
#[test]
fn nobody_comes_back_from_a_log_of_before_the_job_began_anew() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    assert!(store.clone().restart(id, Incarnation(1)).is_ok());
    said(&mut store);
    for life in [Incarnation::LIVES + 1, Incarnation::LIVES + 2] {
        assert_eq!(store.restart(id, Incarnation(life)), Err(NoRestart::NoImage));
    }
    assert!(said(&mut store).iter().any(|said| said.starts_with("Delete(Image")));
    let anew = speaker(2 * Incarnation::LIVES);
    store.handle_message(anew, &hello(anew, 0)).unwrap();
    assert!(said(&mut store).contains(&"ImageWanted".to_owned()));
}

/// A node that has not heard that a job restarts still has a log of an earlier epoch. That log is of no use, and must not be in
/// the way of the next one. A replica still holds its copy.
#[test]
fn a_job_that_begins_anew_has_no_log_of_before() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    store.handle_message(speaker(0), &ToProtector::Journal { position: 0, bytes: b"abcdef" }).unwrap();
    store.set_replica(id, true);
    said(&mut store);
    let anew = speaker(Incarnation::LIVES);
    assert_eq!(store.handle_message(anew, &hello(anew, 0)), Ok(()));
    assert_eq!((store.journal_end(id), store.is_replicated(id)), (0, true));
    let forwarded = said(&mut store).into_iter().find(|said| said.starts_with("forward Hello")).expect("its replica hears of it");
    assert!(forwarded.contains("Incarnation(65536), journal: Span { start: 0, end: 0 }"), "{forwarded}");
    assert!(store.handle_message(speaker(1), &hello(speaker(1), 6)).is_err(), "a life of before");
}

/// The store has an image and a log, but another protector has acknowledged more since.
#[test]
fn what_another_protector_has_led_since_restarts_nothing() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    assert!(store.can_restart(id));
    store.let_go(id);
    assert!(!store.can_restart(id));
    assert_eq!(store.restart(id, Incarnation(1)), Err(NoRestart::NoImage));
    // The process comes back, and what it has kept goes on where this log ends.
    assert_eq!(store.handle_message(speaker(1), &hello(speaker(1), 0)), Ok(()));
    store.take_up(id);
    assert!(store.restart(id, Incarnation(2)).is_ok());
    // In an incarnation that began elsewhere it cannot go on: some payload of the one before may be missing.
    store.let_go(id);
    assert_eq!(store.handle_message(speaker(3), &hello(speaker(3), 0)), Ok(()));
    store.take_up(id);
    assert!(!store.has_image(id) && !store.can_restart(id));
}

/// What has been acknowledged elsewhere is still on its way here when the process says hello.
#[test]
fn a_log_that_was_let_go_restarts_nothing_before_it_has_what_was_acknowledged_elsewhere() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    store.let_go(id);
    let told = ToProtector::Hello {
        process: id,
        incarnation: Incarnation(0),
        journal: Span { start: 0, end: 6 },
        payload: Span::default(),
    };
    assert_eq!(store.handle_message(speaker(0), &told), Ok(()));
    store.take_up(id);
    assert!(!store.can_restart(id) && store.has_let_go(id));
    store.follow(id);
    store.take_over(id);
    assert!(!store.can_restart(id), "nor does it follow");
    store.handle_message(speaker(0), &ToProtector::Journal { position: 0, bytes: b"abc" }).unwrap();
    assert!(!store.can_restart(id));
    store.handle_message(speaker(0), &ToProtector::Journal { position: 3, bytes: b"def" }).unwrap();
    assert!(store.can_restart(id) && !store.has_let_go(id));
}

#[test]
fn a_copy_restarts_what_its_leader_was_lost_with_and_nothing_else() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    store.follow(id);
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    assert_eq!(store.restart(id, Incarnation(1)), Err(NoRestart::NoImage), "its leader does that");
    store.take_over(id);
    assert!(store.restart(id, Incarnation(1)).is_ok());
    // What was let go stays so, whatever forwards it and whatever is lost.
    store.let_go(id);
    store.follow(id);
    store.take_over(id);
    assert_eq!(store.restart(id, Incarnation(2)), Err(NoRestart::NoImage));
    assert!(store.has_let_go(id));
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
    assert_eq!(store.restart(id, Incarnation(0)), Err(NoRestart::NoImage));
    let fetch = ToProtector::FetchJournal { position: 0 };
    store.handle_message(speaker(0), &fetch).unwrap();
    store.handle_verified(id, 0, true);
    assert!(store.handle_message(speaker(0), &fetch).is_err(), "the journal before the cut is gone");
    let restart = store.restart(id, Incarnation(1)).unwrap();
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
            &ToProtector::ImageBegin {
                image: 2,
                parent: Some(1),
                cut: 0,
                payload: 0,
                streams: CutStreams::new(&[]).unwrap(),
                ended: CutStreams::new(&[]).unwrap(),
            },
        )
        .unwrap();
    assert!(said(&mut store).contains(&"ImageRefused { image: 2 }".to_owned()), "an increment of what is not committed");
    store.handle_verified(id, 1, true);
    assert!(!store.has_image(id), "it was given up for another");
}

/// An observer that says that a stream has 2^64 bytes: what is held of it is not less than what came.
#[test]
fn a_stream_that_ends_where_numbers_do_is_held() {
    let (mut store, last) = (begun(CONFIG), u64::MAX - 1);
    let (streams, ended) = ([(stream(1), last)], [(stream(1), u64::MAX)]);
    let (streams, ended) = (CutStreams::new(&streams).unwrap(), CutStreams::new(&ended).unwrap());
    let begin = ToProtector::ImageBegin { image: 1, parent: None, cut: 0, payload: 0, streams, ended };
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

/// A process at its end is in no checkpoint any more: it would wait for ever for one that lets its payload be acknowledged.
#[test]
fn a_process_at_its_end_is_acknowledged_over_the_bound() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    store.configure(id, 100, false);
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
    store.restart(id, Incarnation(1)).unwrap();
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
                4 => ToProtector::ImageBegin { image: a, parent: None, cut: b, payload: a, streams, ended },
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
                _ => store.configure(id, 1_000, a % 2 == 0),
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
