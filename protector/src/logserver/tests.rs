//! What the server decides about connections, with no network at all. What is held and acknowledged is the store's, and has its tests there.

use radic_wire::bytes::Writer;
use radic_wire::ids::Rank;
use radic_wire::log::Span;

use super::*;

const REPLICA: &str = "10.0.0.2:9";

fn config() -> Config {
    let store = store::Config { memory: 1 << 20, log: 1 << 20, image: 1 << 20, durable: false };
    Config { store, processes: 4, connections: 8, writing: 1 << 20, write: 1 << 16 }
}

fn process(rank: u32) -> ProcessId {
    ProcessId { job: JobId::from_bits(7), rank: Rank(rank) }
}

fn speaker(rank: u32, life: u32) -> Speaker {
    Speaker { process: process(rank), incarnation: Incarnation(life) }
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn encoded(message: &radic_wire::log::ToProtector<'_>) -> Vec<u8> {
    let mut body = vec![0; 1 << 10];
    let mut writer = Writer::new(&mut body);
    message.write(&mut writer);
    let length = writer.finish().expect("it fits");
    body[..length].to_vec()
}

fn hello(speaker: Speaker) -> Vec<u8> {
    let Speaker { process, incarnation } = speaker;
    encoded(&radic_wire::log::ToProtector::Hello { process, incarnation, journal: Span::default(), payload: Span::default() })
}

/// Everything that is to be done.
fn actions(server: &mut LogServer) -> Vec<Action> {
    let actions = std::iter::from_fn(|| server.poll_action()).collect();
    server.check_invariants();
    actions
}

fn closed(server: &mut LogServer) -> Vec<(ConnectionNumber, Reason)> {
    let close = |action| match action {
        Action::Close(connection, reason) => Some((connection, reason)),
        _ => None,
    };
    actions(server).into_iter().filter_map(close).collect()
}

/// A server that is a member and listens to ranks 0 and 1.
fn server() -> LogServer {
    let mut server = LogServer::new(config());
    server.handle_member();
    (0..2).for_each(|rank| server.set_replica(at(0), process(rank), None));
    server
}

fn connect(server: &mut LogServer, number: ConnectionNumber, speaker: Speaker, channel: Channel) -> Next {
    assert!(server.handle_accepted(at(1), number));
    assert_eq!(server.handle_login(at(1), number, speaker.process.job), Next::Read);
    server.handle_proven(at(1), number, speaker, channel)
}

#[test]
fn a_caller_that_proves_nothing_is_closed_in_time_and_told_of_once_a_second() {
    let mut server = server();
    for number in [1, 2] {
        assert!(server.handle_accepted(at(5), number));
    }
    let due = server.poll_timeout().expect("a handshake has a limit");
    assert_eq!(due, at(5 + limits::HANDSHAKE_MS));
    server.handle_timeout(due - at(1));
    assert_eq!(closed(&mut server), []);
    server.handle_timeout(due);
    let told = actions(&mut server);
    let intruders = told.iter().filter(|action| matches!(action, Action::Tell(event) if event.what == What::Intruder)).count();
    assert_eq!((told.len(), intruders), (3, 1), "{told:?}");
    assert_eq!(server.poll_timeout(), None);
}

#[test]
fn there_are_no_more_connections_than_there_may_be() {
    let mut server = server();
    assert!((1..=8).all(|number| server.handle_accepted(at(1), number)));
    assert!(!server.handle_accepted(at(1), 9));
    server.handle_closed(at(1), 3, Gone::Ended);
    assert!(server.handle_accepted(at(1), 10));
}

#[test]
fn a_hello_waits_until_the_node_has_said_which_log_server_else_holds_it() {
    let mut server = server();
    assert_eq!(connect(&mut server, 1, speaker(3, 0), Channel::Journal), Next::Read);
    assert!(!server.may_read(1));
    server.handle_round();
    assert_eq!(actions(&mut server), []);
    server.set_replica(at(2), process(3), None);
    server.handle_round();
    assert_eq!(actions(&mut server), [Action::Resume(1)]);
    assert!(server.may_read(1));
}

#[test]
fn a_newer_journal_connection_has_the_voice_and_the_older_is_closed() {
    let mut server = server();
    for number in [1, 2] {
        assert_eq!(connect(&mut server, number, speaker(0, 0), Channel::Journal), Next::Read);
        assert_eq!(server.handle_frame(at(2), number, &hello(speaker(0, 0))), Next::Answer);
    }
    assert_eq!(closed(&mut server), [(1, Reason::Replaced)]);
    assert!(server.status(at(2), process(0).job)[0].1.connected);
}

#[test]
fn a_fence_tells_older_incarnations_before_it_closes_them() {
    let mut server = server();
    assert_eq!(connect(&mut server, 1, speaker(0, 0), Channel::Journal), Next::Read);
    assert_eq!(connect(&mut server, 2, speaker(0, 0), Channel::Bulk), Next::Read);
    assert_eq!(server.handle_frame(at(2), 1, &hello(speaker(0, 0))), Next::Answer);
    actions(&mut server);
    _ = server.fence(at(3), process(0), Incarnation(1));
    let told = actions(&mut server);
    assert!(matches!(told[0], Action::Answer(1, _, _)), "{told:?}");
    assert_eq!(told[1..], [Action::Close(1, Reason::Fenced), Action::Close(2, Reason::Fenced)]);
    // And when it comes again.
    assert_eq!(connect(&mut server, 3, speaker(0, 0), Channel::Journal), Next::Read);
    assert_eq!(server.handle_frame(at(4), 3, &hello(speaker(0, 0))), Next::Closed);
    let told = actions(&mut server);
    assert!(
        matches!(&told[..], [Action::Answer(3, _, _), Action::Close(3, Reason::Store(StoreError::Fenced { .. }))]),
        "{told:?}"
    );
}

#[test]
fn a_replica_is_dialed_again_after_longer_and_longer_times_and_told_of_once() {
    let mut server = server();
    let address: SocketAddr = REPLICA.parse().expect("an address");
    server.set_replica(at(10), process(0), Some(address));
    let mut now = at(10);
    let mut told = 0;
    for wait in [50, 100, 200, 400, 800, 1_600, 2_000, 2_000] {
        let dials = actions(&mut server);
        assert!(dials.contains(&Action::Dial(speaker(0, 0), address)), "{dials:?}");
        server.handle_dial_failed(now, process(0), "nobody listens there");
        told += actions(&mut server).len();
        assert_eq!(server.poll_timeout(), Some(now + at(wait)));
        now += at(wait);
        server.handle_timeout(now);
    }
    assert_eq!(told, 1);
    actions(&mut server);
    // A connection to an address that is not wanted any more is none.
    assert!(!server.handle_dialing(now, process(0), "10.0.0.3:9".parse().expect("an address"), 20));
    assert!(server.handle_dialing(now, process(0), address, 21));
    server.handle_welcome(now, 21);
    assert_eq!(server.role(21), Some(Role::Replica(process(0))));
    actions(&mut server);
    server.remove_job(now, process(0).job);
    assert!(closed(&mut server).contains(&(21, Reason::Replaced)));
    assert_eq!(server.poll_timeout(), None, "nothing is dialed for a job that is over");
}

#[test]
fn a_log_server_follows_another_only_where_the_process_does_not_speak_itself() {
    let mut server = server();
    assert_eq!(connect(&mut server, 1, speaker(0, 0), Channel::Replica), Next::Read);
    assert!(server.is_followed(process(0)));
    assert_eq!(connect(&mut server, 2, speaker(0, 0), Channel::Journal), Next::Read);
    assert_eq!(server.handle_frame(at(2), 2, &hello(speaker(0, 0))), Next::Answer);
    assert_eq!(closed(&mut server), [(1, Reason::Replaced)]);
    assert!(!server.is_followed(process(0)));
    assert_eq!(connect(&mut server, 3, speaker(0, 0), Channel::Replica), Next::Closed);
    assert_eq!(closed(&mut server), [(3, Reason::Early)]);
}

#[test]
fn what_a_role_does_not_allow_closes_its_connection() {
    let mut server = server();
    let journal = encoded(&radic_wire::log::ToProtector::Journal { position: 0, bytes: b"x" });
    for (number, channel) in [(1, Channel::Journal), (2, Channel::Bulk), (3, Channel::Image), (4, Channel::Fetch)] {
        let expected = if channel == Channel::Fetch { Next::Closed } else { Next::Read };
        assert_eq!(connect(&mut server, number, speaker(0, 0), channel), expected, "{channel:?}: nothing is held");
        assert_eq!(server.handle_frame(at(2), number, &journal), Next::Closed, "{channel:?}: before its hello");
        assert!(matches!(closed(&mut server)[..], [(of, Reason::Protocol(_))] if of == number));
    }
    assert_eq!(connect(&mut server, 5, speaker(1, 0), Channel::Journal), Next::Read);
    assert_eq!(server.handle_frame(at(2), 5, &[255, 255]), Next::Closed);
    assert!(matches!(closed(&mut server)[..], [(5, Reason::Malformed(_))]));
}
