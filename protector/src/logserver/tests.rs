//! What the server decides about connections, with no network at all. What is held and acknowledged is the store's, and has its
//! tests there.

use std::net::SocketAddr;

use proptest::prelude::*;
use radic_wire::bytes::Writer;
use radic_wire::ids::Rank;
use radic_wire::peer::Revival;
use radic_wire::span::Span;

use super::*;
use crate::store::{self, NoRestart, StoreError};

const REPLICA: &str = "10.0.0.2:9";

fn config() -> Config {
    let store = store::Config { memory: 1 << 20, log: 1 << 20, image: 1 << 20, durable: false };
    Config { store, processes: 4, connections: 8, writing: 1 << 20, write: 1 << 16, answers: 1 << 20, forwards: 4 << 20 }
}

fn process(rank: u32) -> ProcessId {
    ProcessId { job: JobId::from_bits(7), rank: Rank(rank) }
}

fn speaker(rank: u32, restart: u32) -> Speaker {
    Speaker { process: process(rank), incarnation: Incarnation::restarted(restart) }
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
    hello_with_image(speaker, None)
}

/// With an image under way.
fn hello_with_image(speaker: Speaker, image: Option<u64>) -> Vec<u8> {
    let Speaker { process, incarnation } = speaker;
    let (journal, payload) = (Span::default(), Span::default());
    encoded(&radic_wire::log::ToProtector::Hello { process, incarnation, journal, payload, image, committed: None })
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

/// A server that is a member and hears ranks 0 and 1.
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

/// What a fence answers, with a log of which the replica has not acknowledged what came last.
fn fences_what_is_not_stable() -> LogServer {
    let mut server = server();
    assert_eq!(connect(&mut server, 1, speaker(0, 0), Channel::Journal), Next::Read);
    assert_eq!(server.handle_frame(at(2), 1, &hello(speaker(0, 0))), Next::Answer);
    commit_an_image(&mut server, 2);
    server.set_replica(at(2), process(0), Some(REPLICA.parse().expect("an address")));
    let journal = radic_wire::log::ToProtector::Journal { position: 0, bytes: b"12345" };
    _ = server.handle_frame(at(2), 1, &encoded(&journal));
    actions(&mut server);
    server.fence(at(3), process(0), Incarnation::restarted(1), &[], 0);
    server.handle_round();
    assert_eq!(fenced(&mut server), [], "the replica has said nothing");
    server
}

fn image_begin(image: u64) -> Vec<u8> {
    let streams = || radic_wire::log::CutStreams::new(&[]).expect("none");
    let (streams, ended) = (streams(), streams());
    encoded(&radic_wire::log::ToProtector::image_by_itself(image, None, (0, 0), 0, streams, ended))
}

/// The first image of rank 0.
fn commit_an_image(server: &mut LogServer, connection: ConnectionNumber) {
    begin_an_image(server, connection);
    finish_an_image(server, connection);
    assert!(server.store().can_restart(process(0)));
}

fn begin_an_image(server: &mut LogServer, connection: ConnectionNumber) {
    assert_eq!(connect(server, connection, speaker(0, 0), Channel::Image), Next::Read);
    _ = server.handle_frame(at(2), connection, &image_begin(0));
}

/// What is answered meanwhile.
fn finish_an_image(server: &mut LogServer, connection: ConnectionNumber) -> Vec<String> {
    let mut answers = Vec::new();
    _ = server.handle_image_bytes(at(2), connection, b"an image");
    server.handle_image_end(at(2), connection);
    while let Some(action) = server.poll_action() {
        match action {
            Action::Write(ticket, _) => server.handle_written(at(2), ticket),
            Action::Verify(verification) => server.handle_verdict(at(2), verification, Ok(())),
            Action::Answer(_, _, answer) => answers.push(shown(&answer)),
            _ => {}
        }
    }
    answers
}

fn shown(answer: &[u8]) -> String {
    format!("{:?}", radic_wire::log::FromProtector::read(answer).expect("a message"))
}

/// What the server says to processes.
fn answers(server: &mut LogServer) -> Vec<String> {
    let answer = |action| if let Action::Answer(_, _, answer) = action { Some(shown(&answer)) } else { None };
    actions(server).into_iter().filter_map(answer).collect()
}

/// The connection of the journal breaks while an image is on its way over another one.
#[test]
fn an_image_outlives_the_connection_of_the_journal() {
    let mut server = server();
    assert_eq!(connect(&mut server, 1, speaker(0, 0), Channel::Journal), Next::Read);
    assert_eq!(server.handle_frame(at(2), 1, &hello(speaker(0, 0))), Next::Answer);
    begin_an_image(&mut server, 2);
    server.handle_closed(at(2), 1, Gone::Ended);
    assert_eq!(connect(&mut server, 3, speaker(0, 0), Channel::Journal), Next::Read);
    assert_eq!(server.handle_frame(at(3), 3, &hello_with_image(speaker(0, 0), Some(0))), Next::Answer);
    assert_eq!(answers(&mut server)[2..], ["Welcome { journal: 0, payload: 0, image: None }", "ImageWanted"]);
    assert!(finish_an_image(&mut server, 2).contains(&"Committed { image: 0, oldest: 0 }".to_owned()));
    // Had that answer been lost, too:
    server.handle_closed(at(4), 3, Gone::Ended);
    assert_eq!(connect(&mut server, 4, speaker(0, 0), Channel::Journal), Next::Read);
    assert_eq!(server.handle_frame(at(4), 4, &hello_with_image(speaker(0, 0), Some(0))), Next::Answer);
    let due = ["Welcome { journal: 0, payload: 0, image: Some(0) }", "Committed { image: 0, oldest: 0 }"];
    assert_eq!(answers(&mut server), due);
}

/// The process would wait for it forever, and make no other one.
#[test]
fn an_image_whose_connection_breaks_before_it_has_begun_is_refused() {
    let under_way = encoded(&radic_wire::log::ToProtector::ImageUnderWay { image: 7 });
    for breaks_first in [false, true] {
        let mut server = server();
        assert_eq!(connect(&mut server, 1, speaker(0, 0), Channel::Journal), Next::Read);
        assert_eq!(server.handle_frame(at(2), 1, &hello(speaker(0, 0))), Next::Answer);
        assert_eq!(connect(&mut server, 2, speaker(0, 0), Channel::Image), Next::Read);
        answers(&mut server);
        if breaks_first {
            server.handle_closed(at(2), 2, Gone::Ended);
        }
        assert_eq!(server.handle_frame(at(2), 1, &under_way), Next::Read);
        if !breaks_first {
            assert_eq!(answers(&mut server), [""; 0], "it is about to begin");
            server.handle_closed(at(2), 2, Gone::Ended);
        }
        server.handle_round();
        assert_eq!(answers(&mut server), ["ImageRefused { image: 7 }"]);
    }
    // It broke before the connection of the journal did, and the refusal was lost with that.
    let mut server = server();
    assert_eq!(connect(&mut server, 1, speaker(0, 0), Channel::Journal), Next::Read);
    assert_eq!(server.handle_frame(at(2), 1, &hello_with_image(speaker(0, 0), Some(7))), Next::Answer);
    assert!(answers(&mut server).contains(&"ImageRefused { image: 7 }".to_owned()));
}

fn fenced(server: &mut LogServer) -> Vec<Action> {
    actions(server).into_iter().filter(|action| matches!(action, Action::Fenced(..))).collect()
}

#[test]
fn a_fence_answers_when_the_log_is_stable() {
    let mut server = fences_what_is_not_stable();
    server.set_replica(at(5), process(0), None);
    server.handle_round();
    let answers = fenced(&mut server);
    assert!(matches!(answers[..], [Action::Fenced(_, Incarnation { restart: 1, .. }, Ok(_))]), "{answers:?}");
    server.handle_round();
    assert_eq!(fenced(&mut server), [], "once");
}

#[test]
fn a_fence_does_not_wait_for_ever() {
    let mut server = fences_what_is_not_stable();
    let limit = at(3) + jobs::STABLE;
    assert!(server.poll_timeout().is_some_and(|due| due <= limit));
    server.handle_timeout(limit - at(1));
    assert_eq!(fenced(&mut server), []);
    server.handle_timeout(limit);
    assert_eq!(fenced(&mut server), [Action::Fenced(process(0), Incarnation::restarted(1), Err(NoRestart::Unstable))]);
}

/// Else it would pass for one that is committed after the restart, and what the restart counts as tried would be forgotten.
#[test]
fn an_image_that_a_fence_commits_is_told_before_the_answer() {
    let mut server = server();
    assert_eq!(connect(&mut server, 1, speaker(0, 0), Channel::Journal), Next::Read);
    assert_eq!(server.handle_frame(at(2), 1, &hello(speaker(0, 0))), Next::Answer);
    assert_eq!(connect(&mut server, 2, speaker(0, 0), Channel::Image), Next::Read);
    let streams = || radic_wire::log::CutStreams::new(&[]).expect("none");
    let (streams, ended) = (streams(), streams());
    let line = radic_wire::log::LineMark { newest: 1, joins: true };
    let (image, cut) = (0, 0);
    let begin =
        radic_wire::log::ToProtector::ImageBegin { image, parent: None, cut, payload: 0, causes: 0, line, streams, ended };
    _ = server.handle_frame(at(2), 2, &encoded(&begin));
    finish_an_image(&mut server, 2);
    assert!(!server.store().can_restart(process(0)), "the line is not known to be complete");
    server.fence(at(3), process(0), Incarnation::restarted(1), &[], 1);
    let told = actions(&mut server);
    let place = |of: fn(&Action) -> bool| told.iter().position(of).unwrap_or_else(|| panic!("{told:?}"));
    let committed = place(|of| matches!(of, Action::Tell(Event { what: What::Committed(0), .. })));
    assert!(committed < place(|of| matches!(of, Action::Fenced(_, _, Ok(_)))), "{told:?}");
}

#[test]
fn a_fence_tells_older_incarnations_before_it_closes_them() {
    let mut server = server();
    assert_eq!(connect(&mut server, 1, speaker(0, 0), Channel::Journal), Next::Read);
    assert_eq!(connect(&mut server, 2, speaker(0, 0), Channel::Bulk), Next::Read);
    assert_eq!(server.handle_frame(at(2), 1, &hello(speaker(0, 0))), Next::Answer);
    actions(&mut server);
    server.fence(at(3), process(0), Incarnation::restarted(1), &[], 0);
    let told = actions(&mut server);
    assert!(matches!(told[0], Action::Answer(1, _, _)), "{told:?}");
    let fenced = Action::Fenced(process(0), Incarnation::restarted(1), Err(NoRestart::NoImage));
    assert_eq!(told[1..], [Action::Close(1, Reason::Fenced), Action::Close(2, Reason::Fenced), fenced]);
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
fn what_a_lost_command_has_given_is_forgotten_and_nothing_more_of_it_is_heard() {
    let (mut server, job) = (server(), process(0).job);
    server.revive_job(at(1), revival());
    for (number, speaker) in [(1, speaker(0, 1)), (2, speaker(1, 2)), (3, speaker(2, 1))] {
        assert_eq!(connect(&mut server, number, speaker, Channel::Journal), Next::Read);
    }
    // Of rank 0 the command speaks, and rank 1 has been brought back; of rank 2 the command is about to speak.
    assert_eq!(server.handle_frame(at(2), 1, &hello(speaker(0, 1))), Next::Answer);
    assert_eq!(server.handle_frame(at(2), 2, &hello(speaker(1, 2))), Next::Answer);
    server.forget_given(at(3), job);
    let mut refused = closed(&mut server);
    refused.sort_by_key(|(connection, _)| *connection);
    assert_eq!(refused, [(1, Reason::Fenced), (3, Reason::Fenced)]);
    for (number, channel) in [(4, Channel::Journal), (5, Channel::Bulk), (6, Channel::Image)] {
        assert_eq!(connect(&mut server, number, speaker(0, 1), channel), Next::Closed);
    }
    assert_eq!(server.store().of_job(job), [process(1)]);
    assert_eq!(connect(&mut server, 7, speaker(0, 2), Channel::Journal), Next::Read, "its ranks are heard");
}

/// The home has said that the job goes on, and the chain of a log is made only when the node of the command is lost. The log server that leads forwards
/// what the command had given there, in the command's incarnation. What is left of the life before is not taken.
#[test]
fn a_copy_of_a_log_that_a_lost_command_has_given_elsewhere_is_taken() {
    let (mut server, job) = (server(), process(0).job);
    server.revive_job(at(1), revival());
    server.forget_given(at(2), job);
    for (number, restart, next) in [(1, 0, Next::Closed), (2, 1, Next::Answer)] {
        assert_eq!(connect(&mut server, number, speaker(0, restart), Channel::Replica), Next::Read);
        assert_eq!(server.handle_frame(at(3), number, &hello(speaker(0, restart))), next, "restart {restart}");
    }
    let journal = radic_wire::log::ToProtector::Journal { position: 0, bytes: b"given" };
    assert_eq!(server.handle_frame(at(4), 2, &encoded(&journal)), Next::Read);
    assert_eq!(server.store().journal_end(process(0)), 5);
}

/// The same, and the chain was made before.
#[test]
fn a_copy_of_a_log_that_a_command_has_given_elsewhere_stays_when_its_node_is_lost() {
    let (mut server, job) = (server(), process(0).job);
    server.revive_job(at(1), revival());
    assert_eq!(connect(&mut server, 1, speaker(0, 1), Channel::Replica), Next::Read);
    assert_eq!(server.handle_frame(at(2), 1, &hello(speaker(0, 1))), Next::Answer);
    server.forget_given(at(3), job);
    assert_eq!(closed(&mut server), []);
    assert_eq!(server.store().of_job(job), [process(0)]);
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
        server.handle_dial_failed(now, process(0), "there is no listener");
        told += actions(&mut server).len();
        assert_eq!(server.poll_timeout(), Some(now + at(wait)));
        now += at(wait);
        server.handle_timeout(now);
    }
    assert_eq!(told, 1);
    actions(&mut server);
    // A connection to an address that is no longer wanted counts for nothing.
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

/// Nodes that want image 0 of rank 0, on these connections.
fn wish(server: &mut LogServer, connections: std::ops::Range<ConnectionNumber>) {
    for number in connections {
        assert_eq!(connect(server, number, speaker(0, 1), Channel::Fetch), Next::Read);
        assert!(server.handle_wish(at(3), number, 0));
        assert_eq!(server.role(number), None, "it counts no more among the connections");
    }
}

fn sent(server: &mut LogServer) -> Vec<ConnectionNumber> {
    let send = |action| match action {
        Action::SendImage(connection, of, 0, Some(_)) if of == process(0) => Some(connection),
        _ => None,
    };
    actions(server).into_iter().filter_map(send).collect()
}

#[test]
fn few_images_are_sent_at_once_and_the_others_in_turn() {
    let mut server = server();
    assert_eq!(connect(&mut server, 1, speaker(0, 0), Channel::Journal), Next::Read);
    assert_eq!(server.handle_frame(at(2), 1, &hello(speaker(0, 0))), Next::Answer);
    commit_an_image(&mut server, 2);
    server.fence(at(3), process(0), Incarnation::restarted(1), &[], 0);
    _ = actions(&mut server);
    wish(&mut server, 10..16);
    assert_eq!(sent(&mut server), [10, 11, 12, 13]);
    server.handle_image_sent(at(4), 12);
    assert_eq!(sent(&mut server), [14]);
    // A driver that says so twice starts no more than one in its place.
    server.handle_image_sent(at(4), 12);
    assert_eq!(sent(&mut server), []);
    wish(&mut server, 16..16 + 1_023);
    assert_eq!(connect(&mut server, 5_000, speaker(0, 1), Channel::Fetch), Next::Read);
    assert!(!server.handle_wish(at(3), 5_000, 0));
    assert_eq!(closed(&mut server), [(5_000, Reason::Busy)]);
}

/// What may happen to a server.
#[derive(Debug, Clone)]
enum Happens {
    Accepted,
    Proven(u32, u32, usize),
    Hello(u32, u32),
    Frame(Vec<u8>),
    Journal(u64, Vec<u8>),
    ImageBegin(u64),
    ImageBytes(Vec<u8>),
    ImageEnd,
    Wish(u64),
    Closed,
    Connected,
    Sent(usize),
    Replica(u32, Option<u16>),
    Fence(u32, u32),
    LetGo(u32),
    TakeOver(u32),
    RemoveProcess(u32),
    RemoveJob,
    ReviveJob,
    ForgetGiven,
    /// Everything that the server wants is done, well or not.
    CarriedOut(bool),
    Later(u64),
}

fn revival() -> Revival {
    let incarnations = vec![Incarnation::restarted(1); 3];
    Revival { job: process(0).job, protection: Protection::default(), life: 1, incarnations }
}

fn happens() -> impl Strategy<Value = Happens> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let (rank, restart) = (|| 0u32..3, || 0u32..4);
    prop_oneof![
        6 => Just(Happens::Accepted),
        8 => (rank(), restart(), 0usize..5).prop_map(|(rank, restart, channel)| Happens::Proven(rank, restart, channel)),
        8 => (rank(), restart()).prop_map(|(rank, restart)| Happens::Hello(rank, restart)),
        2 => bytes().prop_map(Happens::Frame),
        4 => (0u64..60, bytes()).prop_map(|(position, bytes)| Happens::Journal(position, bytes)),
        3 => (0u64..3).prop_map(Happens::ImageBegin),
        3 => bytes().prop_map(Happens::ImageBytes),
        2 => Just(Happens::ImageEnd),
        1 => (0u64..3).prop_map(Happens::Wish),
        3 => Just(Happens::Closed),
        3 => Just(Happens::Connected),
        2 => (0usize..3_000_000).prop_map(Happens::Sent),
        4 => (rank(), prop::option::of(1u16..3)).prop_map(|(rank, port)| Happens::Replica(rank, port)),
        2 => (rank(), restart()).prop_map(|(rank, restart)| Happens::Fence(rank, restart)),
        1 => rank().prop_map(Happens::LetGo),
        1 => rank().prop_map(Happens::TakeOver),
        1 => rank().prop_map(Happens::RemoveProcess),
        1 => Just(Happens::RemoveJob),
        1 => Just(Happens::ReviveJob),
        1 => Just(Happens::ForgetGiven),
        6 => any::<bool>().prop_map(Happens::CarriedOut),
        3 => (1u64..4_000).prop_map(Happens::Later),
    ]
}

const CHANNELS: [Channel; 5] = [Channel::Journal, Channel::Bulk, Channel::Image, Channel::Replica, Channel::Fetch];

/// Carries out what is wanted, and closes what is to be closed.
fn carry_out(server: &mut LogServer, now: Duration, next: &mut ConnectionNumber, well: bool) {
    while let Some(action) = server.poll_action() {
        match action {
            Action::Dial(speaker, address) if well => {
                *next += 1;
                _ = server.handle_dialing(now, speaker.process, address, *next);
            }
            Action::Dial(speaker, _) => server.handle_dial_failed(now, speaker.process, "there is no listener"),
            Action::Write(ticket, _) if well => server.handle_written(now, ticket),
            Action::Write(ticket, write) => server.handle_write_failed(now, ticket, write.file.process(), "no room"),
            Action::Read(connection, file, position, _) => {
                server.handle_read(now, connection, file, position, if well { Ok(b"bytes") } else { Err("gone") });
            }
            Action::Verify(of) => server.handle_verdict(now, of, if well { Ok(()) } else { Err("damaged".into()) }),
            Action::Close(connection, _) => assert_eq!(server.role(connection), None, "what is to be closed is forgotten"),
            Action::SendImage(connection, ..) => server.handle_image_sent(now, connection),
            _ => {}
        }
    }
}

fn happen(server: &mut LogServer, now: &mut Duration, next: &mut ConnectionNumber, connection: ConnectionNumber, what: Happens) {
    let at = *now;
    match what {
        Happens::Accepted => {
            *next += 1;
            _ = server.handle_accepted(at, *next);
        }
        Happens::Proven(rank, restart, channel) if server.role(connection) == Some(Role::Unproven) => {
            _ = server.handle_proven(at, connection, speaker(rank, restart), CHANNELS[channel]);
        }
        Happens::Proven(..) => {}
        Happens::Hello(rank, restart) if server.may_read(connection) => {
            _ = server.handle_frame(at, connection, &hello(speaker(rank, restart)));
        }
        Happens::Hello(..) => {}
        Happens::Frame(bytes) => _ = server.handle_frame(at, connection, &bytes),
        Happens::Journal(position, bytes) => {
            let message = radic_wire::log::ToProtector::Journal { position, bytes: &bytes };
            _ = server.handle_frame(at, connection, &encoded(&message));
        }
        Happens::ImageBegin(image) => {
            _ = server.handle_frame(at, connection, &image_begin(image));
        }
        Happens::ImageBytes(bytes) => _ = server.handle_image_bytes(at, connection, &bytes),
        Happens::ImageEnd => server.handle_image_end(at, connection),
        Happens::Wish(image) => _ = server.handle_wish(at, connection, image),
        Happens::Closed => server.handle_closed(at, connection, Gone::Broke("reset")),
        Happens::Connected => server.handle_welcome(at, connection),
        Happens::Sent(waiting) => {
            server.handle_sent(connection, waiting);
            _ = server.may_go_on(connection);
        }
        Happens::Replica(rank, port) => server.set_replica(at, process(rank), port.map(|port| ([10, 0, 0, 2], port).into())),
        Happens::Fence(rank, restart) => server.fence(at, process(rank), Incarnation::restarted(restart), &[], 0),
        Happens::LetGo(rank) => server.let_go(process(rank)),
        Happens::TakeOver(rank) => server.take_over(process(rank)),
        Happens::RemoveProcess(rank) => server.remove_process(at, process(rank)),
        Happens::RemoveJob => server.remove_job(at, process(0).job),
        Happens::ReviveJob => server.revive_job(at, revival()),
        Happens::ForgetGiven => server.forget_given(at, process(0).job),
        Happens::CarriedOut(well) => carry_out(server, at, next, well),
        Happens::Later(ms) => {
            *now += Duration::from_millis(ms);
            server.handle_timeout(*now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// Whatever callers say and the node orders, in whatever order: the parts of the server agree, and all that waits comes to an
    /// end.
    #[test]
    fn its_parts_agree(steps in prop::collection::vec((0u64..9, happens()), 1..120)) {
        let (mut server, mut now, mut next) = (server(), at(1), 0);
        for (back, what) in steps {
            let connection = next - back.min(next);
            happen(&mut server, &mut now, &mut next, connection, what);
            server.handle_round();
            server.check_invariants();
        }
        carry_out(&mut server, now, &mut next, true);
        server.remove_job(now, process(0).job);
        carry_out(&mut server, now, &mut next, true);
        server.check_invariants();
        assert!(server.store().of_job(process(0).job).is_empty(), "a job that has ended leaves nothing");
        server.handle_timeout(now + Duration::from_millis(limits::HANDSHAKE_MS));
        assert_eq!(server.poll_timeout(), None, "nothing is waited for");
    }
}
