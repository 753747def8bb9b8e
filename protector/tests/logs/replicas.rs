//! A log service with a replica.

use super::*;

#[test]
fn the_replica_decides() {
    let (mut first, second, third) = (Service::start(|_| ()), Service::start(|_| ()), Service::start(|_| ()));
    let process = speaker(0).process;
    first.logs.order(StoreOrder::SetReplica(process, Some(second.logs.address())));
    let mut observer = first.observer(0);
    while observer.next() != "ImageWanted" {}
    observer.journal(0, &bytes(0, 100));
    while observer.next() != "JournalStable { position: 100 }" {}
    assert_eq!(second.read(process, LogPart::Journal, 0).unwrap(), bytes(0, 100));
    let mut bulk = first.open(observer.speaker, Channel::Bulk);
    bulk.send(&ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"payload" }).unwrap();
    while observer.next() != "PayloadStable { position: 7 }" {}
    assert_eq!(second.read(process, LogPart::Stream(stream(1)), 0).unwrap(), b"payload");
    first.image(observer.speaker, &begin(0, None, 50, &[(stream(1), 4)]), &image(1, 0, 300));
    while !is_committed(&observer.next(), 0) {}
    assert_eq!(second.read(process, LogPart::Image(0), 0).unwrap(), image(1, 0, 300));
    open_verified(&second.logs.image_path(process, 0), &nodes_key(), process, 0).unwrap();
    assert!(second.read(process, LogPart::Journal, 49).is_err());

    // It dies: the gate is shut until another holds what was not stable.
    drop(second);
    assert!(first.event(What::Replica).text.contains("out of reach"));
    observer.journal(100, &bytes(100, 100));
    assert!(observer.is_silent());
    first.logs.order(StoreOrder::SetReplica(process, Some(third.logs.address())));
    while observer.next() != "JournalStable { position: 200 }" {}
    assert_eq!(third.read(process, LogPart::Journal, 100).unwrap(), bytes(100, 100));
    let none = CutStreams::new(&[]).unwrap();
    let begin = ToProtector::image_by_itself(1, None, (150, 7), 0, none, none);
    first.image(observer.speaker, &begin, &image(2, 0, 3));
    while !is_committed(&observer.next(), 1) {}
    // While it follows, it brings no process back. Then the protector is lost, and the process speaks to the replica.
    let refused = third.logs.fence(process, Incarnation::FIRST, Vec::new(), 0).blocking_recv().unwrap();
    assert_eq!(refused, Err(NoRestart::NoImage));
    drop(first);
    let mut next = Observer { speaker: observer.speaker, journal: third.open(observer.speaker, Channel::Journal) };
    next.send(&hello(observer.speaker, 200, 7));
    while !is_committed(&next.next(), 1) {}
    assert!(
        third.logs.fence(process, Incarnation::restarted(1), Vec::new(), 0).blocking_recv().unwrap().is_ok(),
        "the replica can restart it"
    );
}

#[test]
fn a_replica_that_comes_back_is_told_what_it_missed() {
    let (mut first, mut second) = (Service::start(|_| ()), Service::start(|_| ()));
    let process = speaker(0).process;
    let mut observer = first.observer(0);
    first.logs.order(StoreOrder::SetReplica(process, Some(second.logs.address())));
    observer.expect("ImageWanted");
    observer.journal(0, b"abc");
    while observer.next() != "JournalStable { position: 3 }" {}
    // The replica forgets the process: it closes its connections.
    second.logs.order(StoreOrder::ForgetProcess(asker(), 0, process));
    assert_eq!(first.event(What::Replica).process, Some(process));
    observer.journal(3, b"def");
    while observer.next() != "JournalStable { position: 6 }" {}
    assert_eq!(second.read(process, LogPart::Journal, 3).unwrap(), b"def");
    assert!(second.events.try_recv().is_err());
}

#[test]
fn what_waits_for_the_replica_leaves_memory_when_it_has_come() {
    let small = |config: &mut Config| config.memory = 64 << 10;
    let (first, second) = (Service::start(small), Service::start(small));
    let process = speaker(0).process;
    let mut observer = first.observer(0);
    first.logs.order(StoreOrder::SetReplica(process, Some(second.logs.address())));
    let (journal, payload) = (bytes(0, 3 << 20), bytes(0, 8 << 20));
    let mut bulk = first.open(observer.speaker, Channel::Bulk);
    let piece = 100_000;
    for at in (0..payload.len()).step_by(piece) {
        let (offset, end) = (at as u64, (at + piece).min(payload.len()));
        bulk.send(&ToProtector::Payload { position: offset, stream: stream(1), offset, bytes: &payload[at..end] }).unwrap();
        if at < journal.len() {
            observer.journal(offset, &journal[at..(at + piece).min(journal.len())]);
        }
    }
    let mut waited =
        vec![format!("JournalStable {{ position: {} }}", 3 << 20), format!("PayloadStable {{ position: {} }}", 8 << 20)];
    while !waited.is_empty() {
        let next = observer.next();
        waited.retain(|wanted| *wanted != next);
    }
    for service in [&first, &second] {
        assert_eq!(service.read(process, LogPart::Journal, 0).unwrap(), journal);
        assert_eq!(service.read(process, LogPart::Stream(stream(1)), 0).unwrap(), payload);
        let memory = || service.logs.status(job()).blocking_recv().unwrap()[0].1.usage.memory;
        eventually("the bound on memory", || memory() < 128 << 10);
    }
}
