//! The store of a log service ([`crate::store`]): what observers, its replica and its driver may bring, in any order. Each step is a byte of what, a byte of
//! which process, and what belongs to it; a message is its length, and its code.

use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::limits;
use radic_wire::log::{FromProtector, HeldLog, LogPart, ToProtector};
use radic_wire::process::PayloadMode;
use radic_wire::span::Span;

use crate::Inputs;
use crate::input::Input;
use crate::log::to_protector;
use crate::store::{Config, Output, Speaker, Store};
use crate::values::{process, stream, written};

/// The process to which nothing is done.
const HONEST: u32 = 0;
const JOURNAL: &[u8] = b"determinants";

/// What is acknowledged is held, what is said can be read, and a process that no message is about keeps what it has.
pub fn check(data: &[u8]) -> bool {
    let mut store =
        Store::new(Config { memory: 4_096, log: 16_384, image: 8_192, durable: data.first().is_some_and(|b| b & 1 == 1) });
    let honest = say_honestly(&mut store);
    let (mut input, mut accepted) = (Input(data.get(1..).unwrap_or(&[])), 0);
    while !input.is_empty() {
        accepted += usize::from(step(&mut store, &mut input));
        drive(&mut store, data[0] & 2 == 2);
    }
    for rank in 1..4 {
        held(&store, process(rank));
    }
    assert_eq!(store.list(process(HONEST)).as_ref(), Some(&honest), "a message about another process has changed it");
    accepted > 0
}

fn say_honestly(store: &mut Store) -> HeldLog {
    let speaker = Speaker { process: process(HONEST), incarnation: Incarnation::restarted(1) };
    let none = Span::default();
    let hello = ToProtector::hello(speaker.process, speaker.incarnation, none, none);
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"received" };
    for message in [hello, ToProtector::Journal { position: 0, bytes: JOURNAL }, payload] {
        store.handle_message(speaker, &message).expect("what an observer says");
    }
    write(store);
    drive(store, true);
    store.list(speaker.process).expect("a process that has said hello")
}

/// One step; whether it was a message that was accepted.
fn step(store: &mut Store, input: &mut Input<'_>) -> bool {
    let (what, whose) = (input.u8(), input.u8());
    let speaker =
        Speaker { process: process(1 + u32::from(whose % 3)), incarnation: Incarnation::restarted(u32::from(whose >> 4)) };
    let Speaker { process, incarnation } = speaker;
    match what % 16 {
        0 => store.set_replica(process, whose & 8 == 8),
        1 => {
            let length = usize::from(input.u8());
            if let Ok(message) = FromProtector::read(input.take(length)) {
                store.handle_replica(process, &message);
            }
        }
        2 => _ = store.restart(process, incarnation),
        3 => store.fence(process, incarnation),
        4 => store.configure(process, u64::from(input.u16()), whose & 8 == 8, PayloadMode::Log),
        5 if whose & 8 == 8 => store.let_go(process),
        5 => store.take_up(process),
        6 if whose & 8 == 8 => store.end(process),
        6 => store.remove(process),
        7 => store.refuse_image(process, input.u64()),
        8 => write(store),
        _ => {
            let length = usize::from(input.u16());
            let message = ToProtector::read(input.take(length));
            return message.is_ok_and(|message| store.handle_message(speaker, &message).is_ok());
        }
    }
    false
}

/// A disk that takes everything.
fn write(store: &mut Store) {
    while let Some(write) = store.poll_write(1_000) {
        assert!(write.bytes.len() <= limits::LOG_CHUNK);
        store.handle_written(write.file, write.position + write.bytes.len() as u64);
    }
}

/// Does what the store wants done.
fn drive(store: &mut Store, good: bool) {
    while let Some(output) = store.poll_output() {
        match output {
            Output::Send(to, body) => match FromProtector::read(&body).expect("what is said can be read") {
                FromProtector::JournalStable { position } if store.incarnation(to.process) == Some(to.incarnation) => {
                    assert!(position <= store.journal_end(to.process), "journal is acknowledged that did not come");
                }
                _ => {}
            },
            Output::Forward(_, body) => _ = ToProtector::read(&body).expect("what is forwarded can be read"),
            Output::Verify(process, image) => {
                write(store);
                store.handle_verified(process, image, good);
            }
            Output::Read(_, _, _, length) => assert!(length <= limits::LOG_CHUNK),
            _ => {}
        }
    }
    while store.poll_notice().is_some() {}
}

/// What is held of a process is told in a way that makes sense, and can be read where it is told to be.
fn held(store: &Store, process: ProcessId) {
    let Some(log) = store.list(process) else { return };
    assert!(log.journal.start <= log.journal.end, "{log:?}");
    assert!(log.streams.iter().all(|held| held.bytes.start <= held.bytes.end), "{log:?}");
    _ = store.usage(process);
    if log.journal.start < log.journal.end {
        assert!(store.find(process, LogPart::Journal, log.journal.start, 10).is_some(), "{log:?}");
    }
    assert_eq!(
        store.find(process, LogPart::Causes, log.causes.start, 10).is_some(),
        log.causes.start <= log.causes.end,
        "{log:?}"
    );
    for held in log.streams.iter().filter(|held| held.bytes.start < held.bytes.end) {
        assert!(store.find(process, LogPart::Stream(held.stream), held.bytes.start, 10).is_some(), "{log:?}");
    }
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let message = |message: &ToProtector<'_>| {
        let body = written(|out| message.write(out));
        [&[15, 0], &(body.len() as u16).to_le_bytes()[..], &body].concat()
    };
    let mut all = Vec::new();
    to_protector(&mut |name, each| all.push((name, message(&each))));
    let only = |names: &[&str]| -> Vec<u8> {
        let chosen = names.iter().flat_map(|name| all.iter().filter(move |(known, _)| known == name));
        chosen.flat_map(|(_, bytes)| bytes.clone()).collect()
    };
    let everything: Vec<u8> = all.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    let talk = only(&["hello", "journal", "payload", "payload-end"]);
    let image = only(&["image-begin", "image-chunk", "image-end"]);
    vec![
        ("everything", [&[2], &everything[..]].concat()),
        ("talk", [&[0], &talk[..], &[8, 0]].concat()),
        ("durable", [&[1], &talk[..], &[8, 0]].concat()),
        ("commit", [&[2], &talk[..], &image].concat()),
        ("refused", [&[0], &talk[..], &image].concat()),
        ("replica", [&[2], &only(&["hello"])[..], &[0, 8], &only(&["journal", "payload"]), &[1, 0, 2, 2, 2]].concat()),
        ("restart", [&[2], &talk[..], &image, &[3, 16], &[2, 16]].concat()),
    ]
}
