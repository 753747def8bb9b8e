//! How much can be received, what a program was shown is there, and the shorter way of a `recv` to the link.

use super::*;

/// The next incarnation of a process with the image, which has all of its log from `begin` on.
fn catches_up(image: Observer, begin: u64, log: &[u8]) -> Observer {
    let mut next = image;
    next.restart(Incarnation::restarted(1), begin + log.len() as u64, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    next.handle_protector(&FromProtector::Journal { position: begin, bytes: log }).unwrap();
    next
}

/// How much can be received is told again as it was told then, after as many questions that found nothing, and once that much is there.
#[test]
fn what_fionread_says_is_said_again() {
    let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(1) };
    let mut observer = reader(opener);
    let (image, begin) = (observer.clone(), observer.journal().end());
    let asks = |observer: &mut Observer, there| observer.unread(0, 4, (there, &[])).unwrap();
    for there in [0, 0, 5] {
        assert_eq!(asks(&mut observer, there), Unread::Told(there as usize));
    }
    let begun = observer.journal().end();
    assert_eq!(observer.handle_received(0, 4, Source::Link, b"12"), Ok(Some(2)));
    assert_eq!(
        [0, 0, 3].map(|there| asks(&mut observer, there)),
        [Unread::Told(3); 3],
        "the link may be gone, but not these bytes"
    );
    assert_eq!(observer.handle_received(0, 4, Source::Link, b"345"), Ok(Some(3)));
    assert!(begun - begin < 12, "it is short");
    assert_eq!(asks(&mut observer, 0), Unread::Told(0));
    let log = observer.poll_journal().unwrap().head.to_vec();

    let mut next = catches_up(image, begin, &log);
    assert_eq!([9, 9].map(|there| asks(&mut next, there)), [Unread::Told(0); 2], "found nothing then, whatever is there by now");
    assert_eq!(asks(&mut next, 9), Unread::Wait(Wait::Event), "there is no link yet");
    assert!(matches!(next.handle_greeting(&first_greeting(opener, Incarnation::restarted(1))), Ok(Welcome::Link(..))));
    assert_eq!(asks(&mut next, 4), Unread::Wait(Wait::Event), "less than was promised");
    assert_eq!(asks(&mut next, 9), Unread::Told(5));
    assert!(matches!(next.receive(0, 4, 9, false), Ok(Receive::Take { len: 2, owed: true, .. })));
    assert_eq!(next.handle_received(0, 4, Source::Link, b"12"), Ok(Some(2)));
    assert_eq!([7; 3].map(|there| asks(&mut next, there)), [Unread::Told(3); 3]);
    assert!(matches!(next.receive(0, 4, 9, false), Ok(Receive::Take { len: 3, owed: true, .. })));
    assert_eq!(next.handle_received(0, 4, Source::Link, b"345"), Ok(Some(3)));
    assert_eq!((next.left_of_log(), asks(&mut next, 0)), (0, Unread::Told(0)));
}

/// The log ends where the program knows of bytes that it has not taken. No call of the next incarnation finds nothing there, though its peer is not
/// back yet: it waits, as it did not have to then.
#[test]
fn bytes_that_were_shown_are_there() {
    let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(1) };
    for peeks in [false, true] {
        let mut observer = reader(opener);
        let (image, begin) = (observer.clone(), observer.journal().end());
        if peeks {
            assert!(matches!(observer.peek(0, 4, 9, false), Ok(Receive::Take { owed: false, .. })));
            assert_eq!(observer.handle_peeked(0, 4, 5), Ok(Some(5)));
        } else {
            assert_eq!(observer.unread(0, 4, (5, &[])), Ok(Unread::Told(5)));
        }
        assert_eq!(observer.takes_from_link(4, 9), None, "the socket may have none of them");
        assert!(matches!(observer.receive(0, 4, 9, false), Ok(Receive::Take { source: Source::Link, len: 9, owed: true, .. })));
        let log = observer.poll_journal().unwrap().head.to_vec();

        let mut next = catches_up(image, begin, &log);
        let back = |settled| Greeting { settled, ..first_greeting(opener, Incarnation::restarted(1)) };
        assert!(matches!(next.handle_greeting(&back(false)), Ok(Welcome::Link(..))));
        if peeks {
            assert!(matches!(next.peek(0, 4, 9, false), Ok(Receive::Take { len: 5, owed: true, .. })));
            assert_eq!(next.handle_peeked(0, 4, 5), Ok(Some(5)));
        } else {
            assert_eq!(next.unread(0, 4, (5, &[])), Ok(Unread::Told(5)));
        }
        assert_eq!((next.phase(), next.waits()), (Phase::Settled, Waits::CatchesUp));
        assert_eq!(next.receive(0, 4, 9, false), Ok(Receive::Wait(Wait::Peers)));
        assert_eq!(next.unread(0, 4, (5, &[])), Ok(Unread::Wait(Wait::Peers)));
        assert!(matches!(next.handle_greeting(&Greeting { attempt: 1, ..back(true) }), Ok(Welcome::Link(..))));
        assert!(matches!(next.receive(0, 4, 9, false), Ok(Receive::Take { source: Source::Link, owed: true, .. })));
        assert_eq!(next.phase(), Phase::Live);
    }
}

/// The log has no more of the thread that knows of these bytes, and has more of another one: it waits for that.
#[test]
fn bytes_that_were_shown_are_there_where_another_thread_goes_on() {
    let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(1) };
    let mut observer = reader(opener);
    let (image, begin) = (observer.clone(), observer.journal().end());
    assert_eq!(observer.unread(0, 4, (5, &[])), Ok(Unread::Told(5)));
    let other = observer.begin_thread(7).unwrap();
    observer.handle_kernel(other, KernelCall::Random, b"four").unwrap();
    let log = observer.poll_journal().unwrap().head.to_vec();
    let mut next = catches_up(image, begin, &log);
    assert!(matches!(next.handle_greeting(&first_greeting(opener, Incarnation::restarted(1))), Ok(Welcome::Link(..))));
    assert_eq!(next.unread(0, 4, (5, &[])), Ok(Unread::Told(5)));
    assert_eq!(next.receive(0, 4, 9, false), Ok(Receive::Wait(Wait::Event)));
    assert_eq!(next.begin_thread(7), Ok(other));
    assert_eq!(next.kernel(other, KernelCall::Random, &mut [0; 4]), Ok(Answer::Again(4)));
    assert!(matches!(next.receive(0, 4, 9, false), Ok(Receive::Take { source: Source::Link, owed: true, .. })));
}

/// What `receive` would say where the program has read six bytes, and nothing keeps it from the link; and what does: bits of
/// `hinders`, where the stream ends, and the link. `base` has no room for more bytes, or for more of what those depend on, if the
/// test wants that.
fn before_receive(base: &Observer, hinders: u32, finish: Option<u64>, link: Link) -> Observer {
    let is = |bit: u32| hinders & 1 << bit != 0;
    let mut observer = base.clone();
    let position = observer.journal().end();
    if is(0) {
        let incarnation = Incarnation::restarted(1);
        observer.restart(incarnation, position + 8, Vec::new(), ImageRange::default(), (0, &[]), 64).unwrap();
    }
    while is(1) && observer.journal.has_room() {
        observer.journal.append(0, &Determinant::Eof { fd: 9 }).unwrap();
    }
    observer.fenced = is(2).then(|| Incarnation::restarted(2));
    let connection = observer.table.on(4).unwrap();
    let incoming = &mut connection.incoming;
    let taken = incoming.taken;
    incoming.held = if is(3) { taken + 3 } else { incoming.held };
    incoming.gone = if is(4) { taken + 9 } else { 0 };
    incoming.shut = is(5);
    incoming.finish = finish.map(|after| taken + after);
    connection.link = link;
    observer
}

/// The common case is said twice: for each call, and by the way that looks at less.
#[test]
fn bytes_are_taken_from_the_link_where_receive_says_so() {
    let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(1) };
    let small = Config { journal: 1 << 10, determinant: 64, payload: 64, threads: 1, ..Config::default() };
    let causes = Some(Bounds { kept: 0, ..Bounds::default() });
    let bases = [small, Config { payload_pieces: 1, ..small }, Config { causes, ..small }];
    let (mut takes, mut takes_not) = (0, 0);
    for (config, is_full) in bases.into_iter().flat_map(|config| [(config, false), (config, true)]) {
        let mut base = reader_with(opener, config);
        if let Some(causes) = base.causes.as_mut().filter(|_| is_full) {
            let mut set = [0; 32];
            let mut out = radic_wire::bytes::Writer::new(&mut set);
            radic_wire::causes::Cause::Part { origin: Rank(1), from: 0, bytes: &[7; 8] }.write(&mut out);
            let length = out.finish().unwrap();
            causes.handle_set(0, &set[..length]).unwrap();
        }
        for (hinders, finish) in (0..1 << 6).flat_map(|hinders| [None, Some(0), Some(5)].map(|finish| (hinders, finish))) {
            for link in [Link::Down, Link::GivenUp, Link::Dialing, Link::Up] {
                let mut observer = before_receive(&base, hinders, finish, link);
                let said = observer.takes_from_link(4, 100);
                let is_taken = match observer.receive(0, 4, 100, false) {
                    Ok(Receive::Take { source: Source::Link, len, owed: false, .. }) => Some(len),
                    _ => None,
                };
                assert_eq!(said, is_taken.filter(|_| finish.is_none()), "{hinders:b}, {finish:?}, {link:?}: {config:?}");
                (takes, takes_not) = (takes + u32::from(said.is_some()), takes_not + u32::from(said.is_none()));
            }
        }
    }
    assert!(takes > 0 && takes_not > 0, "{takes} and {takes_not}");
}
