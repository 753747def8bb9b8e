//! What a store has of the causes of a process, and learns for it.

use radic_wire::bytes::Writer;
use radic_wire::causes::Cause;
use radic_wire::log::{LogPart, NewCauses};
use radic_wire::span::Span;

use super::*;

fn part(rank: u32, from: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 64];
    let mut writer = Writer::new(&mut out);
    Cause::Part { origin: Rank(rank), from, bytes }.write(&mut writer);
    let length = writer.finish().unwrap();
    out.truncate(length);
    out
}

fn say(store: &mut Store, position: u64, (start, at, set): (u64, u64, &[u8]), bytes: &[u8]) -> Result<(), StoreError> {
    let causes = NewCauses { start, position: at, bytes: set };
    store.handle_message(speaker(0), &ToProtector::JournalAfter { position, causes, bytes })
}

fn id() -> ProcessId {
    speaker(0).process
}

fn with_image() -> Store {
    let mut store = begun(CONFIG);
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id(), 0, true);
    write_all(&mut store);
    said(&mut store);
    store
}

#[test]
fn the_journal_and_its_causes_come_together_and_go_from_their_beginning() {
    let mut store = with_image();
    let (one, two) = (part(1, 0, b"abc"), part(1, 3, b"de"));
    say(&mut store, 0, (0, 0, &one), b"xy").unwrap();
    let end = one.len() as u64;
    assert!(said(&mut store).contains(&format!("CausesHeld {{ position: {end} }}")));
    assert_eq!(store.causes_of(id().job, Epoch::FIRST), vec![one.clone()]);
    // A part that came before, and one that is new; what the process keeps no more is forgotten.
    say(&mut store, 2, (end, end, &two), b"z").unwrap();
    assert_eq!(store.causes_of(id().job, Epoch::FIRST), vec![two.clone()]);
    // It is not forgotten up to where the journal depends on them.
    let held = store.list(id()).unwrap();
    assert_eq!((held.causes, held.forgotten), (Span { start: end, end: end + two.len() as u64 }, vec![(Rank(1), 3)]));
    assert_eq!(store.find(id(), LogPart::Causes, end, 100), Some(Place::Memory(two)));
    assert_eq!(store.find(id(), LogPart::Causes, 0, 100), None);
    assert!(say(&mut store, 3, (end, end + 100, &one), b"").is_err(), "a gap");
}

/// What is left would be no causes to the replica that gets them (found by the fuzzer).
#[test]
fn causes_that_begin_in_the_midst_of_one_are_refused() {
    let (one, two) = (part(1, 0, b"abc"), part(1, 3, b"de"));
    let (end, both) = (one.len() as u64, [&one[..], &two].concat());
    for (start, at, set) in [(1, end, &two), (0, end - 1, &both), (end + 1, end, &two)] {
        let mut store = with_image();
        say(&mut store, 0, (0, 0, &one), b"xy").unwrap();
        assert!(say(&mut store, 2, (start, at, set), b"z").is_err(), "{start} {at}");
    }
}

#[test]
fn a_log_learns_what_others_know_up_to_the_first_gap_and_what_that_depends_on() {
    let mut store = with_image();
    store.handle_message(speaker(0), &ToProtector::Journal { position: 0, bytes: b"own" }).unwrap();
    let sets = [[part(0, 3, b"de"), part(4, 9, b"of")].concat(), part(0, 1, b"wnd"), part(0, 6, b"behind")];
    store.learn(id(), Incarnation::restarted(1), &sets);
    let restart = store.restart(id(), Incarnation::restarted(1)).unwrap();
    assert_eq!((restart.log_end, restart.causes), (5, (0, part(4, 9, b"of"))));
    let journal = store.find(id(), LogPart::Journal, 0, 100);
    assert_eq!(journal, Some(Place::Memory(b"ownde".to_vec())));
    // Once more: it is known.
    store.learn(id(), Incarnation::restarted(2), &sets);
    assert_eq!(store.restart(id(), Incarnation::restarted(2)).map(|restart| restart.log_end), Ok(5));
}
