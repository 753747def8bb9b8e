//! Which images a process comes back from.

use radic_wire::limits;
use radic_wire::log::LineMark;

use super::*;

#[test]
fn a_process_that_does_not_live_again_comes_back_from_the_image_before() {
    let mut store = two_images(CONFIG);
    let id = speaker(0).process;
    assert!(said(&mut store).contains(&"Committed { image: 1, oldest: 0 }".to_owned()));
    assert_eq!(restarted_as(&mut store, 1..4), [(1, 4), (1, 4), (0, 2)]);
    let restart = store.restart(id, Incarnation::restarted(4)).unwrap();
    assert_eq!((restart.range, restart.log_end), (ImageRange { next: 2, ..ImageRange::default() }, 6));
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
    for incarnation in 1..9 {
        assert_eq!(restarted_as(&mut store, incarnation..incarnation + 1), [(1, 4)]);
        store.handle_message(speaker(incarnation), &hello(speaker(incarnation), 6)).unwrap();
        store.handle_message(speaker(incarnation), &ToProtector::Live).unwrap();
    }
}

/// Positions in the payload log belong to an incarnation: the older image's belong to the one before.
#[test]
fn an_image_of_an_earlier_incarnation_covers_no_payload_of_this_one() {
    let mut store = two_images(CONFIG);
    let id = speaker(0).process;
    assert_eq!(restarted_as(&mut store, 1..2), [(1, 4)]);
    let (journal, payload) = (Span { start: 4, end: 6 }, Span { start: 0, end: 0 });
    let hello = ToProtector::hello(id, Incarnation::restarted(1), journal, payload);
    store.handle_message(speaker(1), &hello).unwrap();
    let read = [(stream(1), 8)];
    let (streams, ended) = (CutStreams::new(&read).unwrap(), CutStreams::new(&[]).unwrap());
    let begin = ToProtector::image_by_itself(2, None, (6, 0), 0, streams, ended);
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
        let begin = ToProtector::image_by_itself(image, parent, (0, 0), 0, streams, streams);
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
fn a_whole_image_is_wanted_when_the_chain_is_two_times_as_long_as_one() {
    let mut store = begun(Config { image: 1 << 30, memory: 1 << 30, ..CONFIG });
    let (id, streams) = (speaker(0).process, CutStreams::new(&[]).unwrap());
    let piece = vec![0; limits::CHUNK];
    let mut make = |image: u64, parent: Option<u64>, mib: u64| {
        let begin = ToProtector::image_by_itself(image, parent, (0, 0), 0, streams, streams);
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
    assert_eq!(make(7, Some(6), 70), [committed(7)], "its memory has grown: a whole one would be as long");
    assert_eq!(make(8, Some(7), 70), [committed(8), "WholeWanted".to_owned()]);
}

/// Its node may not have known the process when it was told, or told too much at once.
#[test]
fn that_an_image_waits_for_its_line_is_told_again_when_the_process_says_that_it_is_under_way() {
    let mut store = begun(CONFIG);
    let (id, none) = (speaker(0).process, CutStreams::new(&[]).unwrap());
    let line = LineMark { newest: 1, joins: true };
    let begin =
        ToProtector::ImageBegin { image: 3, parent: None, cut: 0, payload: 0, causes: 0, line, streams: none, ended: none };
    let chunk = ToProtector::ImageChunk { image: 3, offset: 0, bytes: b"image" };
    for message in [begin, chunk, ToProtector::ImageEnd { image: 3, length: 5 }] {
        store.handle_message(speaker(0), &message).unwrap();
    }
    let ready = |store: &mut Store| {
        let notices = std::iter::from_fn(|| store.poll_notice());
        notices.filter(|notice| matches!(notice, Notice::LineReady(process, 1) if *process == id)).count()
    };
    assert_eq!(ready(&mut store), 0, "it is not verified");
    store.handle_verified(id, 3, true);
    assert_eq!(ready(&mut store), 1);
    store.handle_message(speaker(0), &ToProtector::ImageUnderWay { image: 2 }).unwrap();
    assert_eq!(ready(&mut store), 0, "that is another one");
    store.handle_message(speaker(0), &ToProtector::ImageUnderWay { image: 3 }).unwrap();
    assert_eq!(ready(&mut store), 1);
}
