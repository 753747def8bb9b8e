//! Many callers at once, and how long gates wait.

use super::*;

#[test]
fn a_caller_that_asks_without_end_and_takes_no_answer_waits() {
    let service = Service::start(|_| ());
    let mut observer = service.observer(0);
    let journal = bytes(0, 200_000);
    observer.journal(0, &journal);
    observer.expect("JournalStable { position: 200000 }");
    // 2,000 answers of 200,000 bytes, and none of the first is read. Questions are small: they fit the kernel's buffers.
    (0..2_000).for_each(|_| observer.send(&ToProtector::FetchJournal { position: 0 }));
    let mut other = service.observer(1);
    other.journal(0, b"x");
    other.expect("JournalStable { position: 1 }");
    for _ in 0..2_000 {
        let body = observer.journal.receive().unwrap();
        assert!(matches!(FromProtector::read(&body), Ok(FromProtector::Journal { position: 0, bytes }) if bytes == journal));
    }
}

#[test]
fn a_thousand_processes_at_once() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let count = if hard < 9_000 { 200 } else { 1_000 };
    let service = Service::start(|_| ());
    (0..1_000).for_each(|rank| drop(service.logs.order(StoreOrder::SetReplica(speaker(rank).process, None))));
    let mut observers: Vec<Observer> = std::thread::scope(|scope| {
        let open = |part: u32| (part..count).step_by(4).map(|rank| service.observer(rank)).collect::<Vec<_>>();
        let parts: Vec<_> = (0..4).map(|part| scope.spawn(move || open(part))).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    for round in 0..3u64 {
        observers.iter_mut().for_each(|observer| observer.journal(round * 60, &[1; 60]));
        let stable = format!("JournalStable {{ position: {} }}", (round + 1) * 60);
        observers.iter_mut().for_each(|observer| observer.expect(&stable));
    }
    let mut bulk: Vec<Client> = observers.iter().map(|observer| service.open(observer.speaker, Channel::Bulk)).collect();
    for client in &mut bulk {
        client.send(&ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: &[2; 10_000] }).unwrap();
    }
    observers.iter_mut().for_each(|observer| observer.expect("PayloadStable { position: 10000 }"));
    assert_eq!(service.logs.status(job()).blocking_recv().unwrap().len() as u32, count);
}

/// Times from a journal's message to its acknowledgement, sorted.
fn gates(observer: &mut Observer, rounds: u64) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..rounds)
        .map(|round| {
            let begun = Instant::now();
            observer.journal(round * 60, &[3; 60]);
            let body = observer.journal.receive().unwrap();
            let elapsed = begun.elapsed();
            assert_eq!(FromProtector::read(&body), Ok(FromProtector::JournalStable { position: (round + 1) * 60 }));
            elapsed
        })
        .collect();
    times.sort_unstable();
    let at = |part: usize| times[times.len() * part / 1000];
    println!("60 bytes of journal, acknowledged: median {:?}, 90 % {:?}, 99 % {:?}", at(500), at(900), at(990));
    times
}

/// Prints the time that a gate waits: on an idle machine, with `--release --nocapture`, the figure of `logs/mod.rs`.
#[test]
fn a_gate_is_one_round_trip() {
    let service = Service::start(|_| ());
    let times = gates(&mut service.observer(0), 20_000);
    let median = times[times.len() / 2];
    assert!(median < Duration::from_millis(5), "a gate that waits this long is broken: {median:?}");
}

#[test]
fn a_stream_of_images_does_not_shut_the_gates_of_others() {
    let service = Service::start(|_| ());
    let mut gate = service.observer(0);
    let whole = image(1, 0, 25_000);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (mut images, begun) = (0, Instant::now());
    let times = std::thread::scope(|scope| {
        let stream = scope.spawn(|| {
            let mut observer = service.observer(1);
            let mut number = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) || number < 2 {
                service.image(observer.speaker, &begin(number, None, 0, &[]), &whole);
                observer.expect_committed(number);
                number += 1;
            }
            number
        });
        let times = gates(&mut gate, 5_000);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        images = stream.join().unwrap();
        times
    });
    println!("meanwhile: {images} images of {} bytes in {:?}", whole.len(), begun.elapsed());
    let late = times[times.len() * 9 / 10];
    assert!(late < Duration::from_millis(100), "one gate in ten waited for an image: {late:?}");
}

#[test]
fn garbage_silence_and_floods_cost_nothing() {
    let service = Service::start(|_| ());
    let address = service.logs.address();
    let connect = || TcpStream::connect(address).unwrap();
    let mut slow = connect();
    let silent: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
    let mut garbage = connect();
    garbage.write_all(&[0xff; LOGIN]).unwrap();
    assert!(closed(garbage));
    // One byte at a time is slow, and allowed for as long as a login may take.
    let login = Login { process: speaker(3).process, incarnation: Incarnation::FIRST, channel: Channel::Journal, nonce: [2; 16] };
    login.encode(&key()).iter().for_each(|byte| slow.write_all(&[*byte]).unwrap());
    let mut nonce = [0; NONCE];
    slow.read_exact(&mut nonce).unwrap();
    let before = Instant::now();
    assert!(silent.into_iter().all(closed), "a half-open connection stays");
    assert!(before.elapsed() < Duration::from_secs(5));
    assert!(closed(slow), "it was asked for a proof, and its time is over too");

    // More than may be unproven at once: the oldest go. The others stay, and so does one that proves something.
    let mut flood: Vec<TcpStream> = (0..400).map(|_| connect()).collect();
    let mut observer = service.observer(0);
    let newest = flood.split_off(390);
    flood.truncate(100);
    assert!(flood.into_iter().all(closed));
    for mut socket in newest {
        socket.write_all(&login.encode(&key())).unwrap();
        socket.read_exact(&mut nonce).unwrap();
    }
    // A caller that is logged in may still say nonsense.
    let frames: [&[u8]; 4] = [&[255, 255, 255, 255], &[1, 0, 0, 0, 99], &[0, 0, 0, 0], &[2, 0, 0, 0, 9, 0]];
    for (channel, frame) in
        [Channel::Journal, Channel::Bulk, Channel::Image, Channel::Replica].iter().flat_map(|c| frames.map(|f| (*c, f)))
    {
        let mut client = service.open(speaker(1), channel);
        // It may have been turned away before it has ended.
        _ = client.send_bytes(frame).and_then(|()| client.end());
        assert!(client.receive().is_err(), "{channel:?} {frame:?}");
    }
    observer.journal(0, b"still here");
    observer.expect("JournalStable { position: 10 }");
}
