use std::net::Ipv4Addr;

use radic_wire::determinant::{Call, ConnectionId, Determinant};
use radic_wire::ids::{JobId, Rank};
use radic_wire::log::{FromProtector, ImageRange};
use radic_wire::process::{Machine, Place};

use super::*;
use crate::connection::Link;
use crate::found::{Found, Peer};
use crate::replay::Ask;
use crate::{Config, Observer, Ready, Receive, Send};

mod vain;

const DOOR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7);

fn process(rank: u32) -> ProcessId {
    ProcessId { job: JobId::from_bits(7), rank: Rank(rank) }
}

/// A process with its links, and what it has told its driver and not been asked about.
struct Side {
    observer: Observer,
    links: Links,
    now: Duration,
}

impl Side {
    fn new(rank: u32) -> Side {
        let config = Config { connections: 8, descriptors: 16, ..Config::default() };
        Side { observer: Observer::new(process(rank), &config), links: Links::default(), now: Duration::from_secs(1) }
    }

    fn drive<T>(&mut self, input: impl FnOnce(&mut Links, &mut Context<'_>) -> T) -> (T, Vec<Action>) {
        let value = input(&mut self.links, &mut Context { observer: &mut self.observer, now: self.now });
        let actions = std::iter::from_fn(|| self.links.poll_action()).collect();
        (value, actions)
    }

    fn tick(&mut self, pause: Duration) -> Vec<Action> {
        self.now += pause;
        let (result, actions) = self.drive(Links::handle_timeout);
        result.expect("nothing contradicts");
        actions
    }

    fn hears(&mut self, message: FromNode, unread: u64) -> (Result<(), Failure>, Vec<Action>) {
        self.drive(|links, cx| links.handle_node(cx, &message, unread))
    }

    fn breaks(&mut self, slot: Slot) -> Vec<Action> {
        self.drive(|links, cx| links.break_link(cx, slot, GIVEN_UP)).1
    }

    /// From a link that is down to a socket that is being dialed.
    fn dials(&mut self) -> SocketId {
        let asked = self.tick(Duration::ZERO);
        let [Action::Tell(ToNode::Where { ask, .. })] = asked[..] else { panic!("{asked:?}") };
        let (result, dialed) = self.hears(here(ask), 0);
        result.expect("nothing contradicts");
        let [Action::Dial(socket, DOOR)] = dialed[..] else { panic!("{dialed:?}") };
        socket
    }

    /// From a link that is down to the greeting.
    fn greets(&mut self) -> (SocketId, Greeting) {
        let socket = self.dials();
        let ((), actions) = self.drive(|links, cx| links.handle_connected(cx, socket, true));
        match &actions[..] {
            [Action::Greet { greeting, .. }, ..] => (socket, **greeting),
            other => panic!("{other:?}"),
        }
    }

    /// A greeting comes to the door.
    fn is_visited(&mut self, greeting: &Greeting) -> (SocketId, Result<(), Failure>, Vec<Action>) {
        let socket = self.links.handle_visitor(self.now);
        let (result, actions) = self.drive(|links, cx| links.handle_greeting(cx, socket, greeting, false));
        (socket, result, actions)
    }
}

fn here(ask: u64) -> FromNode {
    FromNode::Place { ask, place: Place::Here { incarnation: Incarnation::FIRST, door: DOOR } }
}

fn installed(actions: &[Action]) -> Install {
    match actions {
        [.., Action::Install(install)] => **install,
        other => panic!("{other:?}"),
    }
}

/// Two processes with a connection that the first has opened, by the first greeting of all.
fn pair() -> (Side, Side, Slot, Slot) {
    let (mut one, mut other) = (Side::new(0), Side::new(1));
    let slot = one.observer.connect(3, process(1)).expect("there is room").expect("the gate is open");
    one.breaks(slot);
    let (_, hello) = one.greets();
    let (_, result, actions) = other.is_visited(&hello);
    result.expect("it is welcome");
    let install = installed(&actions);
    assert_eq!((install.answer, install.peer), (None, Incarnation::FIRST), "the first greeting of all is not answered");
    assert!(!one.links.is_any_down() && !other.links.is_any_down());
    let there = other.observer.table().find_end(hello.connection, false).expect("it was let in");
    (one, other, slot, there)
}

fn end(side: &Side, slot: Slot) -> StreamId {
    side.observer.table().get(slot).expect("it is there").stream_out()
}

#[test]
fn a_broken_link_is_dialed_greeted_and_answered() {
    let (mut one, mut other, slot, there) = pair();
    let name = end(&one, slot);
    assert_eq!(one.breaks(slot), [Action::Unplug(name)]);
    assert!(one.links.take_changed() && !one.links.take_changed());
    let (socket, hello) = one.greets();
    assert!(one.links.awaits_answer(socket) && hello.attempt == 1);
    let (visitor, result, actions) = other.is_visited(&hello);
    result.expect("it is welcome");
    let install = installed(&actions);
    assert_eq!((install.end, install.socket), (end(&other, there), visitor));
    let answer = install.answer.expect("every greeting but the first is answered");
    let (result, actions) = one.drive(|links, cx| links.handle_answer(cx, socket, &answer));
    result.expect("it is right");
    assert_eq!((installed(&actions).end, installed(&actions).socket), (name, socket));
    assert!(!one.links.is_any_down() && one.links.poll_timeout().is_none());
}

/// It may catch up, and then it does not say what has become of the connection.
#[test]
fn an_opener_is_called_again_later_and_later() {
    let (_, mut other, _, there) = pair();
    other.breaks(there);
    for pause in [100, 200, 400, 800, 1000, 1000] {
        assert!(other.greets().1.is_call());
        assert_eq!(other.links.poll_timeout(), Some(other.now + Duration::from_millis(pause)));
        other.now += Duration::from_millis(pause);
    }
}

/// An acceptor gives up a link that it has just made when its log is over. Its word that it has is on another socket than its answer.
#[test]
fn a_call_that_is_read_before_the_answer_counts() {
    let (mut one, mut other, slot, there) = pair();
    one.breaks(slot);
    let (socket, hello) = one.greets();
    let (_, result, actions) = other.is_visited(&hello);
    result.expect("it is welcome");
    let answer = installed(&actions).answer.expect("every greeting but the first is answered");
    other.breaks(there);
    let (_, call) = other.greets();
    let (visitor, result, actions) = one.is_visited(&call);
    result.expect("it is heard");
    assert_eq!(actions, [Action::Close(visitor), Action::Close(socket)]);
    let (result, actions) = one.drive(|links, cx| links.handle_answer(cx, socket, &answer));
    result.expect("it is of a socket that is closed");
    assert_eq!(actions, []);
    let (_, hello) = one.greets();
    assert_eq!(hello.attempt, 2, "it is dialed at once");
    assert_eq!(installed(&other.is_visited(&hello).2).end, end(&other, there));
}

#[test]
fn the_acceptor_calls_and_the_opener_dials() {
    let (mut one, mut other, slot, there) = pair();
    other.breaks(there);
    let (socket, call) = other.greets();
    assert!(call.is_call() && !other.links.awaits_answer(socket));
    let (visitor, result, actions) = one.is_visited(&call);
    result.expect("it is heard");
    assert_eq!(actions, [Action::Close(visitor), Action::Unplug(end(&one, slot))]);
    // A second call, of the same link, breaks no other one.
    let (visitor, _, actions) = one.is_visited(&call);
    assert_eq!(actions, [Action::Close(visitor)]);
    let (_, hello) = one.greets();
    let (_, result, actions) = other.is_visited(&hello);
    result.expect("it is welcome");
    assert!(installed(&actions).answer.is_some() && !other.links.is_any_down());
}

/// The opener goes back to before its `connect` and makes the connection once more. The acceptor accepted it long ago, so nobody
/// reads the first greeting in its backlog.
#[test]
fn an_acceptor_that_knows_an_earlier_incarnation_is_heard() {
    let (mut one, mut other, slot, there) = pair();
    one.breaks(slot);
    let (_, hello) = one.greets();
    assert_eq!(hello.attempt, 1);
    other.is_visited(&hello).1.expect("it is welcome");
    let mut next = Side::new(0);
    next.observer.restart(Incarnation::restarted(1), 0, Vec::new(), ImageRange::default(), (0, &[]), 64).expect("it restarts");
    let asked = next.observer.address(0, crate::replay::Ask::Target { fd: 3 }).expect("nothing contradicts");
    assert_eq!(asked, crate::Address::Live, "its log is empty");
    let again = next.observer.connect(3, process(1)).expect("there is room").expect("the gate is open");
    let unread = next.observer.dial(again).expect("it was opened here");
    assert_eq!((unread.connection, unread.attempt), (hello.connection, 0));
    other.breaks(there);
    let (_, call) = other.greets();
    assert_eq!(call.attempt, 1);
    let (visitor, result, actions) = next.is_visited(&call);
    result.expect("it is heard");
    assert_eq!(actions, [Action::Close(visitor), Action::Unplug(end(&next, again))]);
}

#[test]
fn a_call_stands_when_its_socket_is_gone_and_an_openers_greeting_does_not() {
    let (mut one, mut other, slot, there) = pair();
    other.breaks(there);
    let (_, call) = other.greets();
    let visitor = one.links.handle_visitor(one.now);
    let (_, actions) = one.drive(|links, cx| links.handle_greeting(cx, visitor, &call, true));
    assert_eq!(actions, [Action::Close(visitor), Action::Unplug(end(&one, slot))]);
    let (_, hello) = one.greets();
    let visitor = other.links.handle_visitor(other.now);
    let (_, actions) = other.drive(|links, cx| links.handle_greeting(cx, visitor, &hello, true));
    assert_eq!(actions, [Action::Close(visitor)]);
}

#[test]
fn greetings_wait_for_the_gate() {
    let (mut one, mut other, slot, _) = pair();
    one.breaks(slot);
    let socket = one.dials();
    shut_gate(&mut one);
    let ((), actions) = one.drive(|links, cx| links.handle_connected(cx, socket, true));
    assert_eq!(actions, []);
    assert!(one.links.waits_at_gate() && one.tick(Duration::from_secs(60)).is_empty());
    open_gate(&mut one);
    let actions = one.tick(Duration::ZERO);
    let [Action::Greet { greeting, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert!(!one.links.waits_at_gate());
    // And so do answers.
    shut_gate(&mut other);
    let (_, result, actions) = other.is_visited(greeting);
    assert!(result.is_ok() && actions.is_empty() && other.links.waits_at_gate());
    open_gate(&mut other);
    assert!(installed(&other.tick(Duration::ZERO)).answer.is_some());
}

fn shut_gate(side: &mut Side) {
    side.observer.handle_outcome(0, &Determinant::Connected { fd: 3 }).expect("there is room");
    assert!(side.observer.gate().is_some(), "the outcome is not stable");
}

fn open_gate(side: &mut Side) {
    _ = side.observer.poll_journal();
    let position = side.observer.journal().end();
    side.observer.handle_protector(&FromProtector::JournalStable { position }).expect("it was shipped");
    assert!(side.observer.gate().is_none());
}

fn asked(actions: &[Action]) -> u64 {
    match actions {
        [Action::Tell(ToNode::Ended { ask, .. })] => *ask,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sockets_end_is_what_the_senders_node_says() {
    let closed = |offset| Some(StreamEnd { offset, closed: true, received: 0 });
    let open = |offset| Some(StreamEnd { offset, closed: false, received: 0 });
    // What the node says, how the socket has ended, how many bytes lie in it; and what is done.
    for (said, why, unread, kept, refused) in [
        (open(5), Ending::End, 5, true, false),
        (open(5), Ending::End, 4, false, false),
        (closed(5), Ending::Reset(32), 5, true, true),
        (open(5), Ending::Reset(32), 5, false, false),
        (closed(5), Ending::Reset(32), 3, false, false),
        (None, Ending::End, 5, false, false),
    ] {
        let (mut one, _, slot, _) = pair();
        let name = end(&one, slot);
        let (is_asked, actions) = one.drive(|links, cx| links.handle_ended(cx, slot, why, unread));
        assert!(is_asked && one.links.is_in_question(name) && one.links.questions() == 1);
        assert_eq!(one.drive(|links, cx| links.handle_ended(cx, slot, why, unread)), (false, vec![]), "it is asked once");
        let (result, actions) = one.hears(FromNode::Final { ask: asked(&actions), end: said }, unread);
        result.expect("nothing contradicts");
        let wanted = match (kept, refused) {
            (true, true) => vec![Action::RefuseSends(name), Action::Restore(name)],
            (true, false) => vec![Action::Restore(name)],
            (false, _) => vec![Action::Unplug(name)],
        };
        assert_eq!((actions, one.links.is_down(name)), (wanted, !kept), "{said:?}, {why:?}, {unread}");
        // The end is known now: the same socket's end needs no question.
        let knows = said.is_some_and(|said| said.offset <= unread) && why == Ending::End;
        assert!(!knows || !one.drive(|links, cx| links.handle_ended(cx, slot, why, unread)).0);
    }
}

#[test]
fn what_a_peer_that_has_left_had_ended_is_whole_or_lost() {
    for (said, result) in [
        (Some(StreamEnd { offset: 0, closed: true, received: 0 }), Ok(())),
        (Some(StreamEnd { offset: 9, closed: true, received: 0 }), Err((0, 9))),
        (None, Ok(())),
    ] {
        let (mut one, _, slot, _) = pair();
        let name = end(&one, slot);
        one.breaks(slot);
        let actions = one.tick(Duration::ZERO);
        let [Action::Tell(ToNode::Where { ask, .. })] = actions[..] else { panic!("{actions:?}") };
        let (_, actions) = one.hears(FromNode::Place { ask, place: Place::Left }, 0);
        let (got, actions) = one.hears(FromNode::Final { ask: asked(&actions), end: said }, 0);
        let lost =
            result.map_err(|(from, to)| Failure::Lost { stream: one.observer.table().get(slot).unwrap().stream_in(), from, to });
        assert_eq!(got, lost);
        let refusal = if said.is_none() { vec![Action::RefuseSends(name)] } else { vec![] };
        assert_eq!(actions, refusal);
    }
}

#[test]
fn a_peer_that_has_come_back_is_dialed_at_once_and_its_old_sockets_are_dead() {
    let (mut one, _, slot, _) = pair();
    let name = end(&one, slot);
    let back = FromNode::Restarted { process: process(1), incarnation: Incarnation::restarted(1), log_end: 0, door: DOOR };
    let (result, actions) = one.hears(back, 0);
    result.expect("nothing contradicts");
    assert!(matches!(actions[..], [Action::Unplug(end), Action::Dial(_, DOOR)] if end == name), "{actions:?}");
    assert_eq!(one.links.returned(), 1);
    // A greeting of an earlier incarnation is refused.
    let (mut one, mut other, slot, _) = pair();
    one.breaks(slot);
    let (_, hello) = one.greets();
    other.observer.handle_restarted(process(0), Incarnation::restarted(1));
    let (visitor, result, actions) = other.is_visited(&hello);
    assert_eq!((result, actions), (Ok(()), vec![Action::Close(visitor)]));
}

#[test]
fn everything_that_waits_has_a_limit() {
    let (mut one, _, slot, _) = pair();
    one.breaks(slot);
    // The node does not say where the peer is.
    let actions = one.tick(Duration::ZERO);
    assert!(matches!(actions[..], [Action::Tell(ToNode::Where { .. })]));
    let due = one.links.poll_timeout().expect("it does not wait forever");
    assert_eq!(one.tick(due - one.now), []);
    // The door does not take the connection.
    let socket = one.dials();
    let due = one.links.poll_timeout().expect("it does not wait forever");
    assert_eq!(one.tick(due - one.now), [Action::Close(socket)]);
    // Nor refuses it.
    one.now += RETRY;
    let socket = one.dials();
    let ((), actions) = one.drive(|links, cx| links.handle_connected(cx, socket, false));
    assert_eq!(actions, [Action::Close(socket)]);
    // The answer does not come: the node says that the peer is where it was.
    one.now += RETRY;
    let (socket, _) = one.greets();
    let due = one.links.poll_timeout().expect("it does not wait forever");
    let actions = one.tick(due - one.now);
    let [Action::Tell(ToNode::Where { ask, .. })] = actions[..] else { panic!("{actions:?}") };
    assert_eq!(one.hears(here(ask), 0), (Ok(()), vec![]));
    assert!(one.links.awaits_answer(socket), "it computes, perhaps for an hour");
    // Or the socket ends.
    let ((), actions) = one.drive(|links, cx| links.handle_socket_gone(cx, socket));
    assert_eq!(actions, [Action::Close(socket)]);
}

#[test]
fn the_door_has_room_for_so_many_and_for_so_long() {
    let mut side = Side::new(0);
    let first = side.links.handle_visitor(side.now);
    for _ in 1..door::VISITORS {
        side.links.handle_visitor(side.now);
    }
    assert_eq!(side.links.poll_action(), None);
    side.links.handle_visitor(side.now);
    assert_eq!(side.links.poll_action(), Some(Action::Close(first)));
    let due = side.links.poll_timeout().expect("they have a limit");
    assert_eq!(side.tick(due - side.now).len(), door::VISITORS);
    assert_eq!(side.links.poll_timeout(), None);
}

#[test]
fn a_stranger_to_the_connection_is_refused_and_a_contradiction_is_fatal() {
    let (mut one, mut other, slot, _) = pair();
    one.breaks(slot);
    let (_, hello) = one.greets();
    let unknown = ConnectionId { opener: process(0), number: 99 };
    let (visitor, result, actions) = other.is_visited(&Greeting { connection: unknown, received: 5, ..hello });
    assert!(result.is_ok() && matches!(actions[..], [Action::Close(of), Action::Refused(_)] if of == visitor), "{actions:?}");
    let (_, result, _) = other.is_visited(&Greeting { received: 5, ..hello });
    assert!(matches!(result, Err(Failure::Greeting { process: of, .. }) if of == process(0)), "{result:?}");
}

#[test]
fn a_restart_makes_all_links_again_and_forgets_what_was_under_way() {
    let (mut one, _, slot, _) = pair();
    one.breaks(slot);
    let old = one.dials();
    let ((), actions) = one.drive(|links, cx| links.handle_restart(cx));
    assert_eq!(actions, [Action::Unplug(end(&one, slot))]);
    let new = one.dials();
    assert_ne!(old, new, "numbers are not given twice");
}

#[test]
fn an_end_is_told_before_it_leaves_and_only_then() {
    let (mut one, _, slot, _) = pair();
    assert_eq!(one.drive(|links, cx| links.tell_finished(cx, slot, false)).1, []);
    assert_eq!(one.observer.finish(3), Ok(None));
    let ((), actions) = one.drive(|links, cx| links.tell_finished(cx, slot, false));
    let wanted = StreamEnd { offset: 0, closed: false, received: 0 };
    assert!(matches!(&actions[..], [Action::Tell(ToNode::Finished { end, .. })] if *end == wanted), "{actions:?}");
}

/// A peer that was catching up when it greeted has still to say what it has: it does so on another link, or has left.
#[test]
fn the_end_of_a_stream_is_no_end_where_a_peer_owes_its_word() {
    for settled in [true, false] {
        let (mut one, mut other, slot, _) = pair();
        let log_end = one.observer.journal().end();
        let restarted = one.observer.restart(Incarnation::restarted(1), log_end, Vec::new(), ImageRange::default(), (0, &[]), 64);
        restarted.expect("it restarts");
        one.drive(|links, cx| links.handle_restart(cx));
        let (socket, hello) = one.greets();
        let (_, result, actions) = other.is_visited(&hello);
        result.expect("it is welcome");
        let answer = Greeting { settled, ..installed(&actions).answer.expect("every greeting but the first is answered") };
        let (result, _) = one.drive(|links, cx| links.handle_answer(cx, socket, &answer));
        result.expect("it is right");
        one.observer.handle_finish(slot, 0).expect("nothing was sent");
        let name = end(&one, slot);
        let (is_asked, actions) = one.drive(|links, cx| links.handle_ended(cx, slot, Ending::End, 0));
        assert!(!is_asked && actions.is_empty(), "where the stream ends is known, and its bytes can be read: {actions:?}");
        let is_unplugged = |actions: &[Action]| actions.contains(&Action::Unplug(name));
        assert!(!is_unplugged(&one.tick(RETRY / 2)), "not at once");
        assert_eq!(is_unplugged(&one.tick(RETRY / 2)), !settled, "settled: {settled}");
    }
}

/// A process with a connection to process 1 that is under way.
fn under_way() -> (Side, Slot, StreamId) {
    let mut one = Side::new(0);
    let slot = one.observer.connect(3, process(1)).expect("there is room").expect("the gate is open");
    let name = end(&one, slot);
    one.drive(|links, cx| links.handle_under_way(cx, slot));
    assert!(one.links.is_under_way(name) && one.links.under_way().eq([name]));
    (one, slot, name)
}

#[test]
fn a_connection_that_was_under_way_is_greeted_when_it_is_there_and_the_gate_is_open() {
    let (mut one, slot, name) = under_way();
    one.observer.handle_outcome(0, &Determinant::Connected { fd: 3 }).expect("there is room");
    assert_eq!(one.drive(|links, cx| links.handle_made(cx, name)).1, []);
    assert!(one.links.is_under_way(name), "G1: the gate is shut");
    let position = one.observer.journal().end();
    one.observer.poll_journal();
    one.observer.handle_protector(&FromProtector::JournalStable { position }).expect("it is stable");
    one.links.take_changed();
    let ((), actions) = one.drive(|links, cx| links.handle_made(cx, name));
    let [Action::Hail(to, greeting)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((*to, greeting.attempt), (name, 0));
    assert!(one.links.take_changed() && !one.links.is_any_down());
    assert_eq!(one.observer.table().get(slot).map(Connection::link), Some(Link::Up));
    // Its peer lets it in like any other.
    let mut other = Side::new(1);
    let (_, result, actions) = other.is_visited(greeting);
    result.expect("it is welcome");
    assert_eq!(installed(&actions).answer, None);
}

/// A caller comes when its listener is closed. That it was refused is in the log before its peer can know it.
#[test]
fn a_caller_that_is_refused_hears_of_the_end_when_that_is_recorded() {
    let (one, mut other, slot, there) = pair();
    let (id, name) = (end(&one, slot).connection, end(&other, there));
    other.observer.refuse_callers(|called| called != id).expect("nothing contradicts");
    assert!(!other.observer.table().has_refused(), "its listener is open");
    other.observer.refuse_callers(|called| called == id).expect("nothing contradicts");
    let is_closed = |side: &Side| side.observer.table().get(there).map(Connection::is_closed);
    assert!(is_closed(&other) == Some(true) && other.observer.table().has_refused());
    assert_eq!((other.tick(Duration::ZERO), other.observer.poll_transmit(there)), (vec![], None), "G1: the gate is shut");
    open_gate(&mut other);
    let ended = StreamEnd { offset: 0, closed: true, received: 0 };
    let word = Action::Tell(ToNode::Finished { stream: name, end: ended });
    assert_eq!(other.tick(Duration::ZERO), [word, Action::Finish(name)]);
    assert_eq!(other.observer.poll_transmit(there), Some(crate::Transmit::End));
    assert!(other.tick(Duration::ZERO).is_empty() && !other.observer.table().has_refused(), "it is said once");
    // Whatever its peer has of it when it is brought back.
    for (restart, received) in [(1, 0), (2, 1)] {
        let incarnation = Incarnation::restarted(restart);
        let hello = Greeting { attempt: 1, received, ..first_greeting(id, incarnation) };
        let (_, result, actions) = other.is_visited(&hello);
        result.expect("nothing contradicts");
        assert_eq!(installed(&actions).answer.and_then(|answer| answer.finish), Some(0));
    }
}

fn first_greeting(connection: ConnectionId, incarnation: Incarnation) -> Greeting {
    let process = connection.opener;
    Greeting {
        process,
        incarnation,
        connection,
        attempt: 0,
        received: 0,
        stable: 0,
        kept: 0,
        finish: None,
        settled: true,
        ends: None,
    }
}

/// The image is of before, in the midst, or after.
#[test]
fn a_process_that_comes_back_has_refused_the_same_callers() {
    for image in 0..3 {
        let (one, mut other, slot, there) = pair();
        let id = end(&one, slot).connection;
        let mut images = vec![Observer::new(process(1), &Config { connections: 8, descriptors: 16, ..Config::default() })];
        other.observer.refuse_callers(|_| true).expect("nothing contradicts");
        let log = other.observer.poll_journal().expect("it is recorded").head.to_vec();
        images.push(other.observer.clone());
        open_gate(&mut other);
        other.tick(Duration::ZERO);
        images.push(other.observer.clone());
        let cut = images[image].journal().end();
        other.observer = images.swap_remove(image);
        let end = log.len() as u64;
        let restarted = other.observer.restart(Incarnation::restarted(1), end, Vec::new(), ImageRange::default(), (0, &[]), 64);
        restarted.expect("it restarts");
        other.drive(Links::handle_restart);
        let rest = log[cut as usize..].to_vec();
        other.observer.handle_protector(&FromProtector::Journal { position: cut, bytes: &rest }).expect("it was asked for");
        assert!(!other.observer.settle(), "its peer may have more of it (Gate B)");
        other.tick(Duration::ZERO);
        let there = other.observer.table().find_end(id, false).unwrap_or(there);
        let connection = other.observer.table().get(there).expect("it was made");
        assert_eq!((connection.is_closed(), connection.outgoing().finish()), (true, Some(0)), "image {image}");
        let hello = Greeting { attempt: 1, received: 1, ..first_greeting(id, Incarnation::FIRST) };
        let (_, result, actions) = other.is_visited(&hello);
        result.expect("nothing contradicts");
        assert_eq!(installed(&actions).answer.and_then(|answer| answer.finish), Some(0));
        assert!(other.observer.settle(), "its peer has no more than was sent again");
    }
}

/// Its peer has died: it comes back, and listens. Or it has stopped listening.
#[test]
fn a_connection_that_was_under_way_is_made_again_or_refused() {
    let (mut one, _, name) = under_way();
    let there = Found { peer: Some(Peer { process: process(1), at: None }), ..Found::default() };
    let (result, actions) = one.drive(|links, cx| links.handle_refused(cx, name, 111, &there));
    result.expect("nothing contradicts");
    assert_eq!(actions, [Action::Unplug(name)]);
    let (_, hello) = one.greets();
    assert_eq!(hello.attempt, 0);

    let (mut one, slot, name) = under_way();
    let (result, actions) = one.drive(|links, cx| links.handle_refused(cx, name, 111, &Found::default()));
    result.expect("nothing contradicts");
    assert_eq!(actions, [Action::RefuseSends(name)]);
    assert_eq!((one.observer.take_refusal(slot), one.observer.take_refusal(slot)), (111, 0), "it is told once");
    // It stays so, also when a process comes back.
    let finish = |side: &Side| side.observer.table().get(slot).and_then(|connection| connection.incoming().finish());
    let (_, actions) = one.hears(returned(process(1)), 0);
    assert_eq!((actions, finish(&one)), (vec![], Some(0)));
    assert_eq!(one.tick(Duration::from_secs(9)), []);
    let ((), actions) = one.drive(Links::handle_restart);
    assert_eq!(actions, [Action::Unplug(name)], "its socket is dead");
    assert_eq!(one.tick(Duration::from_secs(9)), []);
    // Where streams end a restart forgets.
    let log_end = one.observer.journal().end();
    let restarted = one.observer.restart(Incarnation::restarted(1), log_end, Vec::new(), ImageRange::default(), (0, &[]), 64);
    restarted.expect("it restarts");
    one.drive(Links::handle_restart);
    assert_eq!(finish(&one), Some(0), "its program still waits for the end");
}

/// A process whose call was refused while it was under way: its log, and where its program stands in that: before the call, when
/// the call is under way, when it was refused, and when the program has taken the end. Images are from each of these.
fn refused_while_under_way() -> (Vec<u8>, Vec<Observer>, StreamId) {
    let mut images = vec![Side::new(0).observer];
    let (mut one, _, name) = under_way();
    one.observer.handle_failed(0, 3, Call::Connect, 115).expect("there is room");
    images.push(one.observer.clone());
    let (result, _) = one.drive(|links, cx| links.handle_refused(cx, name, 111, &Found::default()));
    result.expect("nothing contradicts");
    images.push(one.observer.clone());
    assert_eq!(one.observer.receive(0, 3, 8, true), Ok(Receive::End));
    images.push(one.observer.clone());
    let ship = one.observer.poll_journal().expect("it is recorded");
    ([ship.head, ship.tail].concat(), images, name)
}

/// The process comes back from one of its images, and has the log up to there.
fn back(image: &Observer, end: usize, name: StreamId) -> Side {
    let mut one = Side { observer: image.clone(), ..Side::new(0) };
    let incoming = StreamId { from_opener: false, ..name };
    let (incarnation, held) = (Incarnation::restarted(1), vec![(incoming, 1, Some(0))]);
    let restarted = one.observer.restart(incarnation, end as u64, held, ImageRange::default(), (0, &[]), 64);
    restarted.expect("it restarts");
    one.drive(Links::handle_restart);
    one
}

fn log_comes(side: &mut Side, log: &[u8], to: u64) {
    let position = side.observer.log_position();
    let bytes = &log[position as usize..to.max(position) as usize];
    side.observer.handle_protector(&FromProtector::Journal { position, bytes }).expect("it was asked for");
}

/// That the call was refused comes up in its log when the peer has been dialed already, or before that.
#[test]
fn a_call_that_was_refused_is_not_made_when_the_caller_is_back() {
    let (log, images, name) = refused_while_under_way();
    let called = images[1].journal().end();
    for (image, late) in [(0, false), (0, true), (1, false), (1, true), (2, false), (3, false)] {
        let (mut one, mut other) = (back(&images[image], log.len(), name), Side::new(1));
        log_comes(&mut one, &log, if late { called } else { log.len() as u64 });
        if image == 0 {
            assert_eq!(one.observer.ask(0, Ask::Connect { fd: 3 }, true), Ok(Ready::Outcome(115)));
            let slot = one.observer.connect(3, process(1)).expect("there is room").expect("the gate is open");
            let ((), actions) = one.drive(|links, cx| links.handle_taken(cx, slot));
            assert_eq!(actions, [], "links that replay wants are looked for");
            if late {
                one.breaks(slot);
            }
        }
        if late {
            // What it was told of the stream's end the peer would take for bytes, or for a new connection.
            let (socket, hello) = one.greets();
            assert_eq!((hello.received, hello.settled), (1, false));
            for hello in [hello, Greeting { received: 0, ..hello }] {
                let (visitor, result, actions) = other.is_visited(&hello);
                result.expect("the peer has nothing to say to that");
                assert_eq!(actions, [Action::Close(visitor)], "image {image}");
            }
            assert_eq!(other.observer.table().iter().count(), 0);
            one.drive(|links, cx| links.handle_socket_gone(cx, socket));
            log_comes(&mut one, &log, log.len() as u64);
        }
        assert_eq!(one.observer.receive(0, 3, 8, true), Ok(Receive::End), "image {image}");
        assert!(one.observer.settle(), "its peer is not waited for (Gate B)");
        one.tick(LOOK);
        assert!(one.links.is_down(name) && one.tick(Duration::from_secs(9)).is_empty(), "image {image}, late: {late}");
        assert_eq!(one.hears(returned(process(1)), 0).1, []);
        assert_eq!(one.observer.send(0, 3, b"word", 0, true), Ok(Send::Failed(111)));
        open_gate(&mut one);
        assert_eq!(one.observer.close(3), Ok(None));
        one.tick(Duration::ZERO);
        assert!(!one.links.is_any_down(), "image {image}");
    }
}

/// A socket is being connected, or has been greeted on, when the log says that the call was refused.
#[test]
fn a_call_that_was_refused_is_given_up_wherever_it_is() {
    let (log, images, name) = refused_while_under_way();
    for stage in 0..3 {
        let mut one = back(&images[1], log.len(), name);
        let socket = one.dials();
        let connects = |one: &mut Side| one.drive(|links, cx| links.handle_connected(cx, socket, true)).1;
        if stage == 2 {
            assert!(matches!(connects(&mut one)[..], [Action::Greet { .. }, ..]));
        }
        log_comes(&mut one, &log, log.len() as u64);
        assert!(!one.observer.settle(), "its program is still to take the end");
        if stage == 1 {
            assert_eq!(connects(&mut one), [Action::Close(socket)]);
        }
        let actions = one.tick(LOOK);
        assert_eq!(actions.contains(&Action::Close(socket)), stage != 1, "{actions:?}");
        assert_eq!(actions.last(), Some(&Action::Unplug(name)));
        assert!(one.links.take_changed() && one.tick(Duration::from_secs(9)).is_empty());
    }
}

/// The program has closed it before the log has come that says so.
#[test]
fn a_call_that_was_refused_and_closed_is_given_up() {
    let (log, images, name) = refused_while_under_way();
    let mut one = back(&images[1], images[2].journal().end() as usize, name);
    one.dials();
    assert_eq!(one.observer.close(3), Ok(None));
    log_comes(&mut one, &log, images[2].journal().end());
    assert!(one.observer.settle(), "its peer is not waited for (Gate B)");
    one.tick(LOOK);
    assert!(!one.links.is_any_down() && one.tick(Duration::from_secs(9)).is_empty());
}

/// Its program has asked the socket why.
#[test]
fn a_refusal_that_the_program_was_told_is_not_told_again() {
    let (mut one, slot, name) = under_way();
    one.observer.handle_failed(0, 3, Call::Connect, 115).expect("there is room");
    let image = one.observer.clone();
    one.drive(|links, cx| links.handle_refused(cx, name, 111, &Found::default())).0.expect("nothing contradicts");
    assert_eq!(one.observer.take_refusal(slot), 111);
    one.observer.handle_outcome(0, &Determinant::SoError { fd: 3, errno: 111 }).expect("there is room");
    let log = one.observer.poll_journal().expect("it is recorded").head.to_vec();
    let mut one = back(&image, log.len(), name);
    log_comes(&mut one, &log, log.len() as u64);
    assert_eq!(one.observer.ask(0, Ask::SoError { fd: 3 }, true), Ok(Ready::Outcome(111)));
    assert!(one.observer.settle(), "its peer is not waited for (Gate B)");
    assert_eq!(one.observer.send(0, 3, b"word", 0, true), Ok(Send::Failed(32)));
}

/// What the program is about to hear is in the log first.
#[test]
fn a_call_is_refused_when_the_log_has_room_for_that() {
    let (mut one, slot, name) = under_way();
    while one.observer.journal().has_room() {
        one.observer.handle_input(0, &[7; 1 << 10]).expect("there is room");
    }
    one.links.take_changed();
    assert!(!one.observer.records_refusals());
    let (result, actions) = one.drive(|links, cx| links.handle_refused(cx, name, 111, &Found::default()));
    assert!(result.is_ok() && actions.is_empty() && one.links.is_under_way(name), "{actions:?}");
    assert!(!one.links.take_changed());
    open_gate(&mut one);
    assert!(one.observer.records_refusals());
    let (result, actions) = one.drive(|links, cx| links.handle_refused(cx, name, 111, &Found::default()));
    assert!(result.is_ok() && actions == [Action::RefuseSends(name)] && one.observer.gate().is_some(), "{actions:?}");
    assert_eq!(one.observer.table().get(slot).and_then(|connection| connection.incoming().finish()), Some(0));
}

/// What the node says decides, and whether the kernel has given up.
#[test]
fn a_peer_that_listens_as_before_and_lets_nobody_in_has_refused_the_call() {
    let found = |process, at, later| Found { peer: Some(Peer { process, at }), later, machine: Machine::Member };
    assert!(found(process(1), None, false).is_there(process(1), 111), "it listens");
    assert!(!found(process(1), None, false).is_there(process(1), 110), "it lets nobody in");
    assert!(found(process(1), Some(DOOR), false).is_there(process(1), 110), "it has moved");
    assert!(!found(process(2), None, false).is_there(process(1), 111), "another process listens there now");
    assert!(found(process(2), None, true).is_there(process(1), 110), "it is about to be back");
}

fn returned(process: ProcessId) -> FromNode {
    FromNode::Restarted { process, incarnation: Incarnation::restarted(1), log_end: 0, door: DOOR }
}

/// What is under way leads to an incarnation that is over, and no process answers there.
#[test]
fn a_connection_that_is_under_way_goes_to_the_door_of_a_process_that_comes_back() {
    let (mut one, _, name) = under_way();
    let (result, actions) = one.hears(returned(process(1)), 0);
    result.expect("nothing contradicts");
    assert!(matches!(actions[..], [Action::Unplug(of), Action::Dial(_, DOOR)] if of == name), "{actions:?}");
}

/// The program gives it up: the peer never hears of it, unless it was sent something.
#[test]
fn a_connection_that_is_closed_while_it_is_under_way_is_not_made() {
    let (mut one, slot, name) = under_way();
    let ((), actions) = one.drive(|links, cx| links.handle_closing(cx, slot));
    assert_eq!(actions, []);
    assert_eq!(one.observer.close(3).expect("it is open"), None);
    assert!(!one.links.is_down(name) && one.tick(Duration::from_secs(9)).is_empty());
    assert_eq!(one.hears(returned(process(1)), 0).1, []);
    let ((), actions) = one.drive(Links::handle_restart);
    assert!(matches!(actions[..], [Action::Tell(ToNode::Finished { .. })]), "{actions:?}");

    let (mut one, slot, name) = under_way();
    one.observer.send(0, 3, b"word", 0, true).expect("it is taken");
    assert_eq!(one.drive(|links, cx| links.handle_closing(cx, slot)).1, [Action::Unplug(name)]);
    one.greets();
}
