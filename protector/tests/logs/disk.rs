//! Files: when they are written, cut and removed, and a disk that fails.

use super::*;

#[test]
fn a_commit_deletes_files_and_a_job_leaves_none() {
    let service = Service::start(|config| config.memory = 64 << 10);
    let mut observer = service.observer(0);
    let process = observer.speaker.process;
    let mut bulk = service.open(observer.speaker, Channel::Bulk);
    let length = 40 << 20;
    for at in (0..length).step_by(200_000) {
        let (position, offset) = (at as u64, at as u64);
        let piece = bytes(offset, 200_000.min(length - at));
        bulk.send(&ToProtector::Payload { position, stream: stream(1), offset, bytes: &piece }).unwrap();
    }
    while observer.next() != format!("PayloadStable {{ position: {length} }}") {}
    let segments = || service.files(process).iter().filter(|name| name.starts_with("stream")).count();
    eventually("all segments", || segments() == 3);
    let covered = [(stream(1), (length - 10) as u64)];
    service.image(observer.speaker, &begin(0, None, 0, &covered), &image(1, 0, 1));
    observer.expect_committed(0);
    eventually("one segment", || segments() == 1);
    assert_eq!(service.read(process, LogPart::Stream(stream(1)), covered[0].1).unwrap(), bytes(covered[0].1, 10));
    // The image before the newest stays. Each has a file with its code.
    for number in 1..=3 {
        service.image(observer.speaker, &begin(number, None, 0, &covered), &image(number + 1, 0, 1));
        observer.expect_committed(number);
        eventually("two images", || service.files(process).iter().filter(|name| name.starts_with("image")).count() == 4);
    }

    service.logs.order(StoreOrder::RemoveJob(job()));
    assert!(observer.journal.receive().is_err(), "its connection is closed");
    eventually("no files", || !service.dir.path().join(job().to_string()).exists());
    assert!(Client::open(service.logs.address(), &key(), speaker(0), Channel::Journal, LIMIT).is_err(), "its job has ended");
}

#[test]
fn logs_that_are_kept_stay_readable_from_the_beginning() {
    let service = Service::start(|_| ());
    service.logs.order(StoreOrder::Configure(job(), Protection { keep_logs: true, ..Protection::default() }));
    let mut observer = service.observer(0);
    let process = observer.speaker.process;
    let mut bulk = service.open(observer.speaker, Channel::Bulk);
    for round in 0..5u64 {
        observer.journal(round * 1000, &bytes(round * 1000, 1000));
        observer.expect(&format!("JournalStable {{ position: {} }}", (round + 1) * 1000));
        let (position, offset) = (round * 500, round * 500);
        bulk.send(&ToProtector::Payload { position, stream: stream(1), offset, bytes: &bytes(offset, 500) }).unwrap();
        observer.expect(&format!("PayloadStable {{ position: {} }}", (round + 1) * 500));
        let covered = [(stream(1), if round < 3 { round * 500 + 400 } else { u64::MAX })];
        service.image(observer.speaker, &begin(round, None, round * 1000 + 900, &covered), &image(round + 1, 0, 1));
        observer.expect_committed(round);
    }
    let check = || {
        let held = service.logs.list(process).blocking_recv().unwrap().unwrap();
        assert_eq!(held.journal, Span { start: 0, end: 5000 });
        assert_eq!(held.streams[0].bytes.start, 0);
        assert!(held.streams[0].bytes.end >= 2000);
        let states: Vec<_> = held.images.iter().map(|image| image.state).collect();
        assert_eq!(states, [[ImageState::Superseded; 4].as_slice(), &[ImageState::Committed]].concat());
        assert_eq!(service.read(process, LogPart::Journal, 0).unwrap(), bytes(0, 5000));
        assert_eq!(service.read(process, LogPart::Stream(stream(1)), 0).unwrap()[..2000], bytes(0, 2000));
        for number in 0..5 {
            assert_eq!(service.read(process, LogPart::Image(number), 0).unwrap(), image(number + 1, 0, 1));
        }
    };
    check();
    service.logs.order(StoreOrder::RemoveJob(job()));
    check();
    let in_memory = || service.logs.status(job()).blocking_recv().unwrap()[0].1.usage.memory;
    eventually("all of it in files", || in_memory() == 0);
    check();
}

#[test]
fn durable_is_in_the_file_when_it_is_acknowledged() {
    let service = Service::start(|config| config.durable = true);
    let mut observer = service.observer(0);
    for round in 0..20u64 {
        observer.journal(round * 50, &bytes(round * 50, 50));
        observer.expect(&format!("JournalStable {{ position: {} }}", (round + 1) * 50));
        let file = service.dir.path().join(format!("{}/0/journal.0000000000000000", job()));
        assert_eq!(fs::read(file).unwrap(), bytes(0, (round as usize + 1) * 50));
    }
}

/// A folder in the place of a file of process 0, which cannot be written, as on a disk that is full, until this path is removed.
fn fill(service: &Service, file: &str) -> PathBuf {
    let dir = service.dir.path().join(format!("{}/0", job()));
    fs::create_dir_all(&dir).unwrap();
    fs::create_dir(dir.join(file)).unwrap();
    dir.join(file)
}

#[test]
fn what_cannot_be_written_is_not_acknowledged_and_is_tried_again() {
    let mut service = Service::start(|config| config.durable = true);
    let (full, _) = (fill(&service, "journal.0000000000000000"), fill(&service, "image.0"));
    let mut observer = service.observer(0);
    observer.journal(0, b"abc");
    let event = service.event(What::Disk);
    assert_eq!(event.process, Some(observer.speaker.process));
    assert!(event.text.contains("Is a directory"), "{}", event.text);
    observer.journal(3, b"def");
    service.image(observer.speaker, &begin(0, None, 0, &[]), &image(1, 0, 1));
    observer.expect("ImageRefused { image: 0 }");
    assert!(service.event(What::Refused).text.contains("Is a directory"));
    assert!(observer.is_silent(), "nothing is held as it should be");
    // Another process has another file.
    let mut other = service.observer(1);
    other.journal(0, b"abc");
    other.expect("JournalStable { position: 3 }");
    fs::remove_dir(full).unwrap();
    service.event(What::DiskWell);
    while observer.next() != "JournalStable { position: 6 }" {}
    assert_eq!(service.read(observer.speaker.process, LogPart::Journal, 0).unwrap(), b"abcdef");
    service.image(observer.speaker, &begin(1, None, 0, &[]), &image(1, 0, 1));
    observer.expect_committed(1);
}

#[test]
fn a_disk_that_takes_nothing_stops_the_reading_before_memory_is_full() {
    let mut service = Service::start(|config| config.memory = 64 << 10);
    let name = format!("stream.{}.9.1.from.0000000000000000", job());
    let full = fill(&service, &name);
    let mut observer = service.observer(0);
    let mut bulk = service.open(observer.speaker, Channel::Bulk);
    bulk.socket().set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let payload = bytes(0, 30 << 20);
    let mut sent = 0;
    for piece in payload.chunks(100_000) {
        let message = ToProtector::Payload { position: sent, stream: stream(1), offset: sent, bytes: piece };
        if bulk.send(&message).is_err() {
            break;
        }
        sent += piece.len() as u64;
    }
    assert!(sent < payload.len() as u64, "it was read although there was no room");
    service.event(What::Disk);
    let memory = service.logs.status(job()).blocking_recv().unwrap()[0].1.usage.memory;
    assert!(memory < 1 << 20, "{memory}");
    observer.journal(0, b"the gate is open");
    while observer.next() != "JournalStable { position: 16 }" {}
    fs::remove_dir(full).unwrap();
    service.event(What::DiskWell);
    // Part of a frame was sent on that connection.
    drop(bulk);
    let status = || service.logs.status(job()).blocking_recv().unwrap()[0].1.clone();
    eventually("what was sent", || status().usage.payload_stable == sent && status().usage.memory < 128 << 10);
    assert_eq!(service.read(observer.speaker.process, LogPart::Stream(stream(1)), 0).unwrap(), payload[..sent as usize]);
}

#[test]
fn the_directory_is_taken_and_given_back() {
    let service = Service::start(|_| ());
    let config = Config::new("127.0.0.1".parse().unwrap(), service.dir.path().into(), cluster());
    assert!(logs::start(config.clone()).is_err(), "two services in one directory");
    let mut observer = service.observer(0);
    let Service { logs, dir, .. } = service;
    drop(logs);
    assert!(observer.journal.receive().is_err(), "it has ended, and closed everything");
    assert!(logs::start(config).is_ok());
    drop(dir);
}

#[test]
fn a_log_that_is_gone_from_the_disk_is_told() {
    let mut service = Service::start(|config| config.memory = 64 << 10);
    let mut observer = service.observer(0);
    let process = observer.speaker.process;
    observer.journal(0, &bytes(0, 200_000));
    observer.expect("JournalStable { position: 200000 }");
    let in_memory = || service.logs.status(job()).blocking_recv().unwrap()[0].1.usage.memory;
    eventually("the bound on memory", || in_memory() < 64 << 10);
    // An attacker cuts it.
    let file = service.dir.path().join(format!("{}/0/journal.0000000000000000", job()));
    fs::File::options().write(true).open(file).unwrap().set_len(1_000).unwrap();
    let error = service.read(process, LogPart::Journal, 0).unwrap_err();
    assert!(error.contains("cannot be read") || error.contains("cannot read"), "{error}");
    observer.send(&ToProtector::FetchJournal { position: 0 });
    assert!(observer.journal.receive().is_err(), "no answer, but no wrong one");
    let event = service.event(What::Unreadable);
    assert!(event.process == Some(process) && event.text.contains("its log cannot be read from 0"), "{}", event.text);
}
