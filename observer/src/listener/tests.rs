use super::*;

fn at(address: &str) -> SocketAddr {
    address.parse().expect("an address")
}

fn named(address: &str) -> Addresses {
    Addresses::of(at(address), || false)
}

fn listening(address: &str) -> Step {
    Step::Tell(at(address), ToNode::Listening(at(address)))
}

fn listening_at(address: &str, there: &str) -> ToNode {
    ToNode::ListeningAt { address: at(address), at: at(there) }
}

/// `fd` listens at this address, and all is said of that.
fn listen(listeners: &mut Listeners, fd: u32, addresses: Addresses, real: &str) {
    let mut listen = Listen::new(fd, None, true);
    assert_eq!(listen.next(listeners), Step::Listen);
    listen.handle_listening(listeners, addresses, Some(at(real)), None);
    while listen.next(listeners) != Step::Over {}
}

fn listeners(open: &[(u32, &str)]) -> Listeners {
    let mut listeners = Listeners::new();
    open.iter().for_each(|(fd, address)| listen(&mut listeners, *fd, named(address), address));
    listeners
}

#[test]
fn the_node_knows_of_an_address_before_the_system_listens_there() {
    let mut listeners = Listeners::new();
    let mut listen = Listen::new(3, Some(named("10.0.0.2:80")), false);
    for _ in 0..2 {
        assert_eq!(listen.next(&listeners), Step::Announce(at("10.0.0.2:80")), "until its node has answered");
    }
    listen.handle_announced();
    assert_eq!(listen.next(&listeners), Step::Listen);
    assert_eq!(listeners.count(), 0, "it does not listen yet");
    listen.handle_listening(&mut listeners, named("10.0.0.2:80"), Some(at("10.0.0.2:80")), None);
    assert_eq!(listen.next(&listeners), listening("10.0.0.2:80"));
    assert_eq!((listen.next(&listeners), listen.next(&listeners)), (Step::Over, Step::Over));
    assert_eq!((listeners.count(), listeners.address_of(3)), (1, Some(at("10.0.0.2:80"))));
}

#[test]
fn nothing_is_announced_that_no_caller_can_know() {
    for (addresses, catches_up) in [(Some(named("10.0.0.2:80")), true), (Some(named("10.0.0.2:0")), false), (None, false)] {
        let mut listeners = Listeners::new();
        let mut listen = Listen::new(3, addresses, catches_up);
        assert_eq!(listen.next(&listeners), Step::Listen, "{addresses:?}");
        listen.handle_listening(&mut listeners, named("10.0.0.2:81"), Some(at("10.0.0.2:81")), None);
        assert_eq!(listen.next(&listeners), listening("10.0.0.2:81"), "what has come of it is said all the same");
        assert_eq!(listen.next(&listeners), Step::Over);
    }
}

#[test]
fn a_socket_for_all_addresses_of_ipv6_has_those_of_ipv4_too() {
    let all = |addresses: Addresses| addresses.iter().collect::<Vec<_>>();
    let both = Addresses::of(at("[::]:80"), || true);
    assert_eq!(all(both), [at("[::]:80"), at("0.0.0.0:80")]);
    assert_eq!(all(Addresses::of(at("[::]:80"), || false)), [at("[::]:80")], "it was told not to");
    for one in ["0.0.0.0:80", "[::1]:80", "10.0.0.2:80"] {
        assert_eq!(all(Addresses::of(at(one), || panic!("{one} is not asked"))), [at(one)]);
    }
    assert_eq!(all(Addresses::of(at("[::ffff:10.0.0.2]:80"), || true)), [at("10.0.0.2:80")], "as nodes know it");
    // Each of them is announced, and each is told.
    let mut listeners = Listeners::new();
    let mut listen = Listen::new(3, Some(both), false);
    for address in both.iter() {
        assert_eq!(listen.next(&listeners), Step::Announce(address));
        listen.handle_announced();
    }
    assert_eq!(listen.next(&listeners), Step::Listen);
    listen.handle_listening(&mut listeners, both, Some(at("[::]:80")), None);
    assert_eq!([listen.next(&listeners), listen.next(&listeners)], [listening("[::]:80"), listening("0.0.0.0:80")]);
    assert_eq!(listen.next(&listeners), Step::Over);
}

#[test]
fn a_listener_that_is_elsewhere_says_where() {
    let here = at("10.0.0.3:0").ip();
    for (real, at) in [
        ("10.0.0.3:81", Some("10.0.0.3:81")),
        // Another machine cannot call "all addresses".
        ("0.0.0.0:81", Some("10.0.0.3:81")),
        ("[::ffff:10.0.0.3]:81", Some("10.0.0.3:81")),
        ("10.0.0.2:80", None),
    ] {
        let mut listeners = Listeners::new();
        let mut listen = Listen::new(3, None, true);
        assert_eq!(listen.next(&listeners), Step::Listen);
        listen.handle_listening(&mut listeners, named("10.0.0.2:80"), Some(self::at(real)), Some(here));
        let told = at.map_or(ToNode::Listening(self::at("10.0.0.2:80")), |at| listening_at("10.0.0.2:80", at));
        assert_eq!(listen.next(&listeners), Step::Tell(self::at("10.0.0.2:80"), told), "{real}");
    }
    assert_eq!(elsewhere(at("10.0.0.2:80"), Some(at("0.0.0.0:81")), None), None, "it has no address that others can reach");
    assert_eq!(elsewhere(at("10.0.0.2:80"), None, Some(here)), None);
}

#[test]
fn a_listen_that_fails_takes_back_what_was_announced() {
    let listeners = Listeners::new();
    let mut listen = Listen::new(3, Some(named("10.0.0.2:80")), false);
    assert_eq!(listen.next(&listeners), Step::Announce(at("10.0.0.2:80")));
    listen.handle_announced();
    assert_eq!(listen.next(&listeners), Step::Listen);
    listen.handle_failed();
    assert_eq!(listen.next(&listeners), Step::Tell(at("10.0.0.2:80"), ToNode::NotListening(at("10.0.0.2:80"))));
    assert_eq!(listen.next(&listeners), Step::Over);
    // Where nothing was announced, nothing is to be taken back.
    let mut listen = Listen::new(3, Some(named("10.0.0.2:80")), true);
    assert_eq!(listen.next(&listeners), Step::Listen);
    listen.handle_failed();
    assert_eq!(listen.next(&listeners), Step::Over);
}

#[test]
fn a_listen_that_fails_leaves_another_listener_of_the_address_as_it_was() {
    let mut listeners = Listeners::new();
    listen(&mut listeners, 3, named("10.0.0.2:80"), "10.0.0.3:4000");
    let mut again = Listen::new(4, Some(named("10.0.0.2:80")), false);
    again.handle_announced();
    assert_eq!(again.next(&listeners), Step::Listen);
    again.handle_failed();
    assert_eq!(again.next(&listeners), Step::Tell(at("10.0.0.2:80"), listening_at("10.0.0.2:80", "10.0.0.3:4000")));
    assert_eq!(again.next(&listeners), Step::Over);
}

/// Two sockets may share an address (SO_REUSEPORT): each says where it is itself.
#[test]
fn what_is_told_of_a_listen_is_of_its_own_socket() {
    let mut listeners = listeners(&[(3, "10.0.0.2:80")]);
    let mut listen = Listen::new(4, None, true);
    assert_eq!(listen.next(&listeners), Step::Listen);
    listen.handle_listening(&mut listeners, named("10.0.0.2:80"), Some(at("10.0.0.3:4000")), None);
    assert_eq!(listen.next(&listeners), Step::Tell(at("10.0.0.2:80"), listening_at("10.0.0.2:80", "10.0.0.3:4000")));
}

#[test]
fn after_a_restart_each_socket_is_opened_once_and_each_address_told() {
    let mut listeners = listeners(&[(5, "10.0.0.2:82")]);
    listen(&mut listeners, 3, Addresses::of(at("[::]:80"), || true), "[::]:80");
    let mut reopening = Reopening::new();
    for _ in 0..2 {
        assert_eq!(reopening.next(&listeners), Reopen::Open(5), "until it is open");
    }
    reopening.handle_opened(&mut listeners, at("10.0.0.3:4001"));
    assert_eq!(reopening.next(&listeners), Reopen::Tell(listening_at("10.0.0.2:82", "10.0.0.3:4001")));
    assert_eq!(reopening.next(&listeners), Reopen::Open(3));
    reopening.handle_opened(&mut listeners, at("10.0.0.3:4002"));
    assert_eq!(reopening.next(&listeners), Reopen::Tell(listening_at("[::]:80", "10.0.0.3:4002")));
    assert_eq!(reopening.next(&listeners), Reopen::Tell(listening_at("0.0.0.0:80", "10.0.0.3:4002")));
    assert_eq!(reopening.next(&listeners), Reopen::Over);
    assert_eq!(Reopening::new().next(&Listeners::new()), Reopen::Over);
    // A `listen` that fails afterwards says what holds now.
    assert_eq!(listeners.word_of(9, at("10.0.0.2:82")), listening_at("10.0.0.2:82", "10.0.0.3:4001"));
}

/// A program may accept at either of them.
#[test]
fn after_a_restart_the_descriptors_of_one_socket_have_one_socket() {
    let mut listeners = listeners(&[(3, "10.0.0.2:80"), (4, "10.0.0.2:80")]);
    listen(&mut listeners, 5, Addresses::of(at("[::]:81"), || true), "[::]:81");
    [(3, 7), (5, 8), (7, 9)].into_iter().for_each(|(old, new)| listeners.handle_duplicated(old, new));
    assert!(listeners.others(7).eq([3, 9]) && listeners.others(4).next().is_none(), "4 has a socket of its own there");
    let (mut reopening, mut steps) = (Reopening::new(), Vec::new());
    let there = |fd: u32| SocketAddr::from(([10, 0, 0, 3], 4000 + fd as u16));
    loop {
        let step = reopening.next(&listeners);
        match step {
            Reopen::Open(fd) => reopening.handle_opened(&mut listeners, there(fd)),
            Reopen::Over => break,
            _ => {}
        }
        steps.push(step);
    }
    let told = |address, fd| Reopen::Tell(ToNode::ListeningAt { address: at(address), at: there(fd) });
    let three = [Reopen::Open(3), told("10.0.0.2:80", 3), Reopen::Open(4), told("10.0.0.2:80", 4)];
    let five = [Reopen::Open(5), told("[::]:81", 5), told("0.0.0.0:81", 5)];
    let others = [(3, 7), (5, 8), (3, 9)].map(|(of, fd)| Reopen::Share { of, fd });
    assert_eq!(steps, [&three[..], &five, &others].concat());
}

#[test]
fn the_callers_of_a_closed_listener_are_refused_with_its_last_descriptor() {
    let mut listeners = listeners(&[(3, "10.0.0.2:80"), (4, "10.0.0.2:81")]);
    listeners.handle_duplicated(3, 7);
    let mut closing = Closing::new(3, false);
    assert_eq!(closing.next(&mut listeners), Close::Over, "7 listens there");
    assert_eq!((listeners.address_of(3), listeners.address_of(7)), (None, Some(at("10.0.0.2:80"))));
    let mut closing = Closing::new(7, false);
    assert_eq!(closing.next(&mut listeners), Close::Refuse);
    assert_eq!(closing.next(&mut listeners), Close::Tell(ToNode::NotListening(at("10.0.0.2:80"))));
    assert_eq!((closing.next(&mut listeners), closing.next(&mut listeners)), (Close::Over, Close::Over));
    assert_eq!((listeners.count(), listeners.address_of(4)), (1, Some(at("10.0.0.2:81"))));
}

#[test]
fn a_caller_of_a_closed_listener_is_for_none_until_it_listens_there_again() {
    let mut listeners = listeners(&[(3, "10.0.0.2:80"), (4, "10.0.0.2:81")]);
    listeners.handle_duplicated(3, 7);
    let called = Some(at("10.0.0.2:80"));
    let state = |listeners: &Listeners| (listeners.is_closed(called), listeners.takes(4, called));
    for (fd, is_last) in [(3, false), (7, true)] {
        let mut closing = Closing::new(fd, true);
        while closing.next(&mut listeners) != Close::Over {}
        assert_eq!(state(&listeners), (is_last, false), "{fd} is closed");
    }
    assert!(!listeners.is_closed(Some(at("10.0.0.2:79"))) && !listeners.is_closed(None), "it may still begin to listen there");
    listen(&mut listeners, 5, named("10.0.0.2:80"), "10.0.0.2:80");
    assert_eq!((state(&listeners), listeners.takes(5, called)), ((false, false), true));
}

#[test]
fn so_many_closed_listeners_are_remembered() {
    let mut listeners = Listeners::new();
    let ports = 1..=ROOM as u16 + 1;
    let address = |port| SocketAddr::from(([10, 0, 0, 2], port));
    for port in ports.clone() {
        listen(&mut listeners, 3, Addresses::of(address(port), || false), "10.0.0.2:1");
        let mut closing = Closing::new(3, false);
        while closing.next(&mut listeners) != Close::Over {}
    }
    assert!(
        ports.map(|port| listeners.is_closed(Some(address(port)))).eq((0..=ROOM).map(|nth| nth > 0)),
        "the oldest is forgotten"
    );
}

#[test]
fn a_process_that_catches_up_refuses_none_and_says_where_it_does_not_listen() {
    let mut listeners = Listeners::new();
    listen(&mut listeners, 3, Addresses::of(at("[::]:80"), || true), "[::]:80");
    let mut closing = Closing::new(3, true);
    assert_eq!(closing.next(&mut listeners), Close::Tell(ToNode::NotListening(at("[::]:80"))));
    assert_eq!(closing.next(&mut listeners), Close::Tell(ToNode::NotListening(at("0.0.0.0:80"))));
    assert_eq!(closing.next(&mut listeners), Close::Over);
}

#[test]
fn a_connection_that_has_come_to_the_door_is_for_the_listener_that_was_called() {
    let listeners = listeners(&[(3, "10.0.0.2:80"), (4, "0.0.0.0:81"), (5, "[::]:81"), (4, "10.0.0.2:82")]);
    let takers = |to: Option<&str>| [3, 4, 5].map(|fd| listeners.takes(fd, to.map(at)));
    assert_eq!(takers(Some("10.0.0.2:80")), [true, false, false]);
    assert_eq!(takers(Some("[::ffff:10.0.0.2]:80")), [true, false, false]);
    assert_eq!(takers(Some("10.0.0.2:81")), [false, true, true]);
    assert_eq!(takers(Some("10.0.0.2:82")), [false, true, false]);
    assert_eq!(takers(Some("0.0.0.0:80")), [true, false, false], "this machine");
    assert_eq!(takers(Some("10.0.0.2:99")), [true; 3], "it listens there no more");
    assert_eq!(takers(None), [true; 3]);
}

#[test]
#[should_panic(expected = "the system listens after all is announced")]
fn the_system_does_not_listen_before_all_is_announced() {
    let mut listen = Listen::new(3, Some(named("10.0.0.2:80")), false);
    listen.handle_listening(&mut Listeners::new(), named("10.0.0.2:80"), None, None);
}

#[test]
#[should_panic(expected = "no socket was asked for")]
fn a_listener_is_opened_once() {
    let mut listeners = listeners(&[(3, "10.0.0.2:80")]);
    let mut reopening = Reopening::new();
    assert_eq!(reopening.next(&listeners), Reopen::Open(3));
    reopening.handle_opened(&mut listeners, at("10.0.0.3:4001"));
    reopening.handle_opened(&mut listeners, at("10.0.0.3:4002"));
}
