//! Images: received, verified, committed, and fetched by the node that brings a process back.

use super::*;

#[test]
fn images_are_verified_coded_and_committed_and_only_then_something_is_forgotten() {
    let mut service = Service::start(|_| ());
    let mut observer = service.observer(0);
    let (speaker, process) = (observer.speaker, observer.speaker.process);
    observer.journal(0, &bytes(0, 100));
    observer.expect("JournalStable { position: 100 }");
    service.image(speaker, &begin(0, None, 60, &[]), &image(1, 0, 700));
    observer.expect_committed(0);
    assert!(service.event(What::Committed(0)).text.contains("image 0"));
    assert!(service.read(process, LogPart::Journal, 59).is_err());
    assert_eq!(service.read(process, LogPart::Journal, 60).unwrap(), bytes(60, 40));
    assert_eq!(service.read(process, LogPart::Image(0), 0).unwrap(), image(1, 0, 700));

    let path = service.logs.image_path(process, 0);
    open_verified(&path, &nodes_key(), process, 0).unwrap();
    // Not even the processes of the job can make such a code.
    for other in [key(), JobKey::derive_for_nodes(&cluster(), JobId::from_bits(1))] {
        assert!(open_verified(&path, &other, process, 0).is_err());
    }
    assert!(open_verified(&path, &nodes_key(), process, 1).is_err());

    service.image(speaker, &begin(1, Some(0), 80, &[]), &image(2, 1, 3));
    observer.expect_committed(1);
    service.image(speaker, &begin(2, Some(1), 90, &[]), &image(3, 77, 3));
    observer.expect("ImageRefused { image: 2 }");
    assert!(service.event(What::Refused).text.contains("000000000000004d"), "not the parent that was announced");
    let restart = service.logs.fence(process, Incarnation::restarted(1), Vec::new(), 0).blocking_recv().unwrap().unwrap();
    assert_eq!((numbers(&restart), restart.cut, restart.log_end), (vec![0, 1], 80, 100));
    let mut changed = fs::read(&path).unwrap();
    changed[5000] ^= 1;
    fs::write(&path, changed).unwrap();
    assert!(open_verified(&path, &nodes_key(), process, 0).is_err());
}

/// What stands in the way is said with the place (once, by a full disk, without).
#[test]
fn an_image_whose_code_cannot_be_written_is_refused_and_the_store_is_named() {
    let mut service = Service::start(|_| ());
    let mut observer = service.observer(0);
    let (speaker, process) = (observer.speaker, observer.speaker.process);
    service.image(speaker, &begin(0, None, 0, &[]), &image(1, 0, 3));
    observer.expect_committed(0);
    service.event(What::Committed(0));
    let mut code = service.logs.image_path(process, 1).into_os_string();
    code.push(".mac");
    fs::create_dir(&code).unwrap();
    service.image(speaker, &begin(1, None, 0, &[]), &image(2, 0, 3));
    observer.expect("ImageRefused { image: 1 }");
    let text = service.event(What::Refused).text;
    assert!(text.contains(&format!("see to {}", service.dir.path().display())), "{text}");
}

#[test]
fn an_image_whose_sender_dies_or_that_is_damaged_is_refused() {
    let mut service = Service::start(|config| config.image = 10 << 20);
    let mut observer = service.observer(0);
    let (speaker, process) = (observer.speaker, observer.speaker.process);
    let good = image(1, 0, 500);
    let mut damaged = good.clone();
    damaged[1_000_000] ^= 1;
    let longer = [&good[..], b"x"].concat();
    for (number, bytes) in [&good[..good.len() / 2], &damaged, &longer, b""].into_iter().enumerate() {
        service.image(speaker, &begin(number as u64, None, 0, &[]), bytes);
        observer.expect(&format!("ImageRefused {{ image: {number} }}"));
        service.event(What::Refused);
    }
    // Its process was killed, and the kernel resets the connection.
    let mut connection = service.open(speaker, Channel::Image);
    connection.send(&begin(7, None, 0, &[])).unwrap();
    connection.send_bytes(&good[..1000]).unwrap();
    eventually("its beginning", || service.logs.list(process).blocking_recv().unwrap().unwrap().images[..].len() == 1);
    setsockopt(connection.socket(), sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
    drop(connection);
    observer.expect("ImageRefused { image: 7 }");
    assert!(service.event(What::Refused).text.contains("connection broke"));
    // All of it came, and the message that this is all did not: an attacker could have cut off the rest.
    let mut connection = service.open(speaker, Channel::Image);
    connection.send(&begin(9, None, 0, &[])).unwrap();
    connection.send_bytes(&good).unwrap();
    connection.socket().shutdown(Shutdown::Write).unwrap();
    observer.expect("ImageRefused { image: 9 }");
    // Larger than it may be: the sender need not go on.
    let mut connection = service.open(speaker, Channel::Image);
    connection.send(&begin(10, None, 0, &[])).unwrap();
    let sent = (0..100).try_for_each(|_| connection.send_bytes(&[0; 1 << 20]));
    assert!(sent.is_err());
    observer.expect("ImageRefused { image: 10 }");
    eventually("no image is left", || service.files(process).iter().all(|name| name.starts_with("spare.")));
    assert_eq!(
        service.logs.fence(process, Incarnation::restarted(1), Vec::new(), 0).blocking_recv(),
        Ok(Err(NoRestart::NoImage))
    );
}

#[test]
fn images_are_fetched_whole_and_at_the_speed_of_memory() {
    const PAGES: usize = 25_600;
    let (service, speaker, images) = lost_process(PAGES);
    let to = tempfile::tempdir().unwrap();
    let from =
        |source, dir: &tempfile::TempDir, image| obtain(source, &nodes_key(), speaker, image, dir.path(), &WANTED).unwrap();
    let sources = [(Source::At(service.logs.address()), &to), (Source::Here, &service.dir)];
    for ((source, dir), way) in sources.into_iter().zip(["fetched", "opened"]) {
        let began = Instant::now();
        let contents: Vec<_> = images.iter().map(|image| from(source, dir, *image)).collect();
        let took = began.elapsed();
        let bytes: u64 = images.iter().map(|(_, bytes)| bytes).sum();
        println!("{bytes} bytes {way} and verified in {took:?}: {} MB/s", bytes as u128 / took.as_micros().max(1));
        for ((number, length), content) in images.iter().zip(contents) {
            let pages = [PAGES, 9, 1, 40][*number as usize];
            assert_eq!(content.len() as u64, *length);
            assert!(content == image(number + 1, *number, pages), "image {number}");
        }
    }
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0, "what was fetched has no name");
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| drop(from(sources[0].0, &to, images[0])));
        }
    });
    println!("8 times at once: {:?}", began.elapsed());
}

#[test]
fn an_image_that_is_replaced_while_it_is_fetched_arrives_all_the_same() {
    let (service, speaker, images) = lost_process(20_000);
    let mut client = service.open(speaker, Channel::Fetch);
    client.send_bytes(&0u64.to_le_bytes()).unwrap();
    let (mut socket, mut opener) = client.into_receiver();
    let mut head = [0; OFFER + OVERHEAD];
    socket.read_exact(&mut head).unwrap();
    opener.push(&head);
    assert_eq!(opener.next_body().unwrap().unwrap()[..8], images[0].1.to_le_bytes());
    let mut observer = Observer { speaker, journal: service.open(speaker, Channel::Journal) };
    observer.send(&hello(speaker, 0, 0));
    // The image before the newest stays: only the second commit removes the old ones.
    for number in 4..=5 {
        service.image(speaker, &begin(number, None, 0, &[]), &image(number + 5, 0, 3));
        while !is_committed(&observer.next(), number) {}
    }
    eventually("the old images", || service.files(speaker.process).iter().all(|file| !file.starts_with("image.0")));
    let (mut rest, mut came) = (Vec::new(), Vec::new());
    socket.read_to_end(&mut rest).unwrap();
    opener.push(&rest);
    while let Some(body) = opener.next_body().unwrap() {
        came.extend_from_slice(body);
    }
    assert!(came == image(1, 0, 20_000) && opener.has_ended());
    let late = obtain(Source::At(service.logs.address()), &nodes_key(), speaker, images[0], service.dir.path(), &WANTED);
    assert!(matches!(late, Err(FetchError::NotHeld(..))));
}

/// A way to the service on which byte number `at` of what it says is changed (`flip`), or after which nothing comes (`cut`: the
/// end).
fn way(service: SocketAddr, at: u64, flip: bool, cut: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(service).unwrap();
        let (from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        std::thread::spawn(move || _ = std::io::copy(&mut &from, &mut to));
        _ = std::io::copy(&mut (&far).take(at), &mut &near);
        let mut byte = [0];
        if flip && (&far).read_exact(&mut byte).is_ok() {
            _ = (&near).write_all(&[byte[0] ^ 1]);
            _ = std::io::copy(&mut &far, &mut &near);
        } else if cut {
            _ = near.shutdown(Shutdown::Both);
        } else {
            _ = near.set_read_timeout(Some(LIMIT));
            _ = (&near).read(&mut byte);
        }
    });
    address
}

#[test]
fn an_image_that_does_not_arrive_as_it_was_is_refused() {
    let (service, speaker, images) = lost_process(2_000);
    let to = tempfile::tempdir().unwrap();
    let by = |address| {
        let to = tempfile::tempdir().unwrap();
        obtain(Source::At(address), &nodes_key(), speaker, images[0], to.path(), &WANTED).map(drop)
    };
    let login = (NONCE + WELCOME) as u64;
    let before = login + (OVERHEAD + OFFER) as u64;
    let records = images[0].1.div_ceil(RECORD as u64);
    let length = images[0].1 + (records + 1) * OVERHEAD as u64;
    by(way(service.logs.address(), before + length, false, true)).unwrap();
    let changed = [3, NONCE as u64, login - 1, login, login + 8, before, before + length / 2, before + length - 1];
    // The last one: only the end is missing.
    let short = [login + 3, before, before + length / 2, before + length - 1, before + length - OVERHEAD as u64];
    let ways = changed.map(|at| (at, true, false)).into_iter().chain(short.map(|at| (at, false, true)));
    // At once: some of them are known only by what does not come any more.
    std::thread::scope(|scope| {
        let fetches = ways.map(|(at, change, end)| {
            let address = way(service.logs.address(), at, change, end);
            (at, scope.spawn(move || by(address)))
        });
        for (at, fetch) in fetches.collect::<Vec<_>>() {
            let error = fetch.join().unwrap().unwrap_err();
            assert!(matches!(error, FetchError::Service(..)), "byte {at}: {error}");
        }
    });
    // Nothing comes any more, and then it is not wanted any more.
    let (address, given_up) = (way(service.logs.address(), before + length / 2, false, false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let fetching =
            scope.spawn(|| obtain(Source::At(address), &nodes_key(), speaker, images[0], to.path(), &given_up).map(drop));
        given_up.store(true, Ordering::Relaxed);
        assert!(matches!(fetching.join().unwrap(), Err(FetchError::GivenUp)));
    });
    // On the disk of its own node.
    let path = service.logs.image_path(speaker.process, 3);
    let mut changed = fs::read(&path).unwrap();
    changed[5000] ^= 1;
    fs::write(&path, changed).unwrap();
    let here = |image| obtain(Source::Here, &nodes_key(), speaker, image, service.dir.path(), &WANTED).unwrap_err();
    assert_eq!(here(images[3]), FetchError::Bad(3, WRONG_CODE.to_owned()));
    fs::remove_file(service.logs.image_path(speaker.process, 1).with_extension("1.mac")).unwrap();
    assert_eq!(here(images[1]), FetchError::Bad(1, WRONG_CODE.to_owned()));
    let gone = obtain(Source::At(service.logs.address()), &nodes_key(), speaker, images[1], to.path(), &WANTED);
    assert!(matches!(gone, Err(FetchError::NotHeld(..))), "an image without a code is not even sent");
}

#[test]
fn a_service_that_ends_waits_for_no_receiver() {
    let (service, speaker, images) = lost_process(20_000);
    let mut clients: Vec<_> = (0..10).map(|_| service.open(speaker, Channel::Fetch)).collect();
    clients.iter_mut().for_each(|client| client.send_bytes(&images[0].0.to_le_bytes()).unwrap());
    let mut first = [0];
    clients[0].socket().read_exact(&mut first).unwrap();
    let began = Instant::now();
    drop(service);
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
}
