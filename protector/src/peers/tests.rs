//! What the machine decides, with no network; and two machines with one that breaks whenever it likes.

use proptest::prelude::*;
use radic_wire::ids::BootId;
use radic_wire::membership::{MembershipBody, MembershipMessage, Role as MemberRole};
use radic_wire::peer::{Heartbeat, PeerMessage, Query};

use super::*;
use crate::membership::Peer;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn address(at: usize) -> SocketAddr {
    ([10, 0, 0, (at as u8).wrapping_add(1)], 1).into()
}

fn member(at: usize) -> Member {
    let id = NodeId { name: format!("n{at}").parse().expect("a name"), boot: BootId(1) };
    Member { id, address: address(at), data: address(at).ip(), log_port: 2, role: MemberRole::Node, slots: 1 }
}

fn peer(at: usize) -> Peer {
    Peer { id: member(at).id, address: Some(address(at)) }
}

/// A message that carries a number of its own.
fn number(number: u64) -> PeerMessage {
    PeerMessage::Query(number, Query::Report)
}

fn membership() -> MembershipMessage {
    MembershipMessage { cluster: None, view: 0, body: MembershipBody::Request(Vec::new()) }
}

fn machine() -> Peers {
    Peers::new(member(0))
}

fn hello(at: usize, purpose: Purpose) -> Hello {
    Hello { version: PROTOCOL_VERSION, from: member(at), to: Some(member(0).id), purpose }
}

fn welcome(at: usize, received: u64, refused: Option<&str>) -> Vec<u8> {
    encoded(&Welcome { id: member(at).id, received, refused: refused.map(str::to_owned) })
}

fn data(seq: u64) -> Vec<u8> {
    encoded(&LinkFrame::Data { seq, message: number(seq) })
}

fn actions(machine: &mut Peers) -> Vec<Action> {
    let actions = std::iter::from_fn(|| machine.poll_action()).collect();
    machine.check_invariants();
    actions
}

/// What is to be done, in words.
fn done(machine: &mut Peers) -> String {
    let name = |action| match action {
        Action::Dial(..) => "dial".to_owned(),
        Action::Send(..) => "send".to_owned(),
        Action::Write(_) => "write".to_owned(),
        Action::Close(_, reason) => format!("close({reason:?})").split(['(', ')', ' ']).take(2).collect::<Vec<_>>().join(" "),
        Action::Tell(Input::LinkBroken(_)) => "broken".to_owned(),
        Action::Tell(Input::LinkLost(_)) => "lost".to_owned(),
        Action::Tell(Input::ProbeReached(_)) => "reached".to_owned(),
        Action::Tell(Input::ProbeResult(_, alive)) => format!("alive={alive}"),
        Action::Tell(Input::Message(..)) => "message".to_owned(),
        Action::Tell(Input::Heartbeat(_, view)) => format!("heartbeat={view}"),
        Action::Tell(Input::Note(..)) => "note".to_owned(),
        Action::Tell(_) => "else".to_owned(),
        Action::Refused(..) => "refused".to_owned(),
        Action::Dropped(..) => "dropped".to_owned(),
    };
    actions(machine).into_iter().map(name).collect::<Vec<_>>().join(", ")
}

/// The connection that is to be dialed, and only that.
fn dialed(machine: &mut Peers) -> ConnectionId {
    match actions(machine)[..] {
        [Action::Dial(id, _)] => id,
        ref other => panic!("{other:?}"),
    }
}

/// A link to node 1 on which one message waits.
fn link() -> (Peers, ConnectionId) {
    let mut machine = machine();
    machine.send(ms(0), &peer(1), number(1));
    let id = dialed(&mut machine);
    machine.handle_connected(id);
    machine.handle_frame(ms(1), id, &welcome(1, 0, None));
    assert_eq!(done(&mut machine), "send, write");
    (machine, id)
}

/// A caller that has said hello for this.
fn caller(machine: &mut Peers, at: usize, purpose: Purpose) -> ConnectionId {
    let id = machine.handle_accepted(ms(0), address(at)).expect("there is room");
    machine.handle_frame(ms(0), id, &encoded(&hello(at, purpose)));
    id
}

#[test]
fn a_link_is_tried_again_after_longer_and_longer_pauses_and_given_up_at_last() {
    let mut machine = machine();
    machine.send(ms(0), &peer(1), number(1));
    let (mut now, mut pauses) = (ms(0), Vec::new());
    let last = loop {
        let id = dialed(&mut machine);
        machine.handle_closed(now, id, Gone::NoWay("no route".into()));
        let Some(due) = machine.poll_timeout() else { break done(&mut machine) };
        assert_eq!(done(&mut machine), "broken");
        pauses.push((due - now).as_millis());
        now = due;
        machine.handle_timeout(now);
    };
    assert_eq!(pauses[..7], [20, 40, 80, 160, 320, 500, 500]);
    assert_eq!(last, "note, lost");
    assert!(now > ms(90_000) && now < ms(91_000) && machine.links.is_empty(), "{now:?}");
}

#[test]
fn a_link_that_was_up_begins_again_with_the_shortest_pause() {
    let (mut machine, id) = link();
    machine.handle_closed(ms(50_000), id, Gone::Broke("reset".into()));
    assert_eq!((done(&mut machine).as_str(), machine.poll_timeout()), ("broken", Some(ms(50_020))));
    machine.handle_timeout(ms(50_020));
    let id = dialed(&mut machine);
    machine.handle_timeout(ms(51_020));
    assert_eq!(done(&mut machine), "broken, close Unreached", "its machine does not take the connection");
    machine.handle_timeout(ms(51_040 + 20));
    assert_ne!(dialed(&mut machine), id, "no number is used twice");
}

#[test]
fn what_was_acknowledged_is_not_sent_again_and_a_false_number_is_not_believed() {
    let (mut machine, id) = link();
    assert!(machine.poll_frame(id).is_some() && machine.poll_frame(id).is_none());
    machine.handle_frame(ms(2), id, &encoded(&LinkFrame::Ack { received: 1 }));
    assert!(!machine.has_unsent());
    machine.handle_frame(ms(3), id, &encoded(&LinkFrame::Ack { received: 2 }));
    assert_eq!(
        done(&mut machine),
        "note, lost, close Numbers",
        "no link that begins again fits the numbers that the peer has seen"
    );
    let (mut machine, id) = link();
    machine.handle_frame(ms(2), id, &data(1));
    assert_eq!(done(&mut machine), "broken, close Misplaced");
}

#[test]
fn a_full_link_is_lost_and_no_other_one_begins() {
    let (mut machine, _) = link();
    (0..limits::LINK_MESSAGES).for_each(|_| machine.send(ms(2), &peer(1), PeerMessage::Unsubscribe));
    assert_eq!(done(&mut machine), "note, close Overfull, lost");
    // Until no view holds the node any more, the node hears of each message that was not sent.
    machine.send(ms(3), &peer(1), number(9));
    assert_eq!((done(&mut machine).as_str(), machine.links.len()), ("lost, dropped", 0));
}

#[test]
fn a_former_member_hears_the_last_words_and_then_its_link_ends() {
    let (mut machine, id) = link();
    machine.forget(ms(2), &member(1).id);
    assert_eq!(done(&mut machine), "");
    assert!(machine.poll_frame(id).is_some() && machine.has_unsent(), "it may wait for just that");
    machine.handle_frame(ms(3), id, &encoded(&LinkFrame::Ack { received: 1 }));
    assert_eq!(done(&mut machine), "close Over");
    assert!(machine.links.is_empty() && !machine.has_unsent());
}

#[test]
fn the_last_words_wait_for_nobody_who_has_no_listener_any_more() {
    let (mut machine, id) = link();
    assert!(machine.has_unsent());
    machine.handle_closed(ms(3), id, Gone::Ended);
    assert!(machine.has_unsent(), "its connection has ended, which does not say that it has");
    let again = |machine: &mut Peers| {
        machine.handle_timeout(machine.poll_timeout().expect("it is tried again"));
        actions(machine)
            .iter()
            .find_map(|action| if let Action::Dial(id, _) = action { Some(*id) } else { None })
            .expect("a call")
    };
    let id = again(&mut machine);
    machine.handle_closed(ms(40), id, Gone::NoListener);
    assert!(!machine.has_unsent());
    let id = again(&mut machine);
    machine.handle_connected(id);
    machine.handle_frame(ms(100), id, &welcome(1, 0, None));
    assert!(machine.has_unsent(), "one is there again");
}

#[test]
fn a_former_member_out_of_reach_is_given_up_soon() {
    let (mut machine, id) = link();
    machine.forget(ms(2), &member(1).id);
    machine.handle_closed(ms(3), id, Gone::Ended);
    let mut now = ms(3);
    while !machine.links.is_empty() {
        now = machine.poll_timeout().expect("it is tried again");
        machine.handle_timeout(now);
        for action in actions(&mut machine) {
            if let Action::Dial(id, _) = action {
                machine.handle_closed(now, id, Gone::NoListener);
            }
        }
    }
    assert!(now > ms(2_000) && now < ms(3_000), "{now:?}");
}

#[test]
fn a_former_member_is_told_by_one_errand_at_a_time_and_of_the_membership_only() {
    let mut machine = machine();
    machine.forget(ms(0), &member(1).id);
    machine.send(ms(1), &peer(1), PeerMessage::Membership(membership()));
    let id = dialed(&mut machine);
    machine.send(ms(1), &peer(1), PeerMessage::Membership(membership()));
    machine.send(ms(1), &peer(1), number(1));
    assert_eq!(done(&mut machine), "dropped, lost, dropped");
    machine.handle_connected(id);
    machine.handle_frame(ms(2), id, &welcome(1, 0, None));
    assert_eq!(done(&mut machine), "send, send");
    machine.handle_closed(ms(3), id, Gone::Ended);
    assert_eq!(done(&mut machine), "", "its peer closes when it has taken the message");
    machine.send(ms(4), &peer(1), PeerMessage::Membership(membership()));
    let id = dialed(&mut machine);
    machine.handle_connected(id);
    machine.handle_frame(ms(5), id, &welcome(1, 0, Some("no")));
    assert_eq!(done(&mut machine), "send, dropped, close Refused");
}

#[test]
fn an_errand_that_is_not_taken_is_dropped_in_time() {
    let mut machine = machine();
    machine.send_to_seed(ms(0), address(1), &membership());
    let id = dialed(&mut machine);
    machine.handle_connected(id);
    machine.handle_frame(ms(1), id, &welcome(1, 0, None));
    assert_eq!(machine.poll_timeout(), Some(HANDSHAKE));
    machine.handle_timeout(HANDSHAKE);
    assert_eq!(done(&mut machine), "send, send, dropped, close Late");
}

#[test]
fn a_message_to_a_node_without_a_known_address_is_dropped_and_one_that_has_called_is_answered() {
    let mut machine = machine();
    let stranger = Peer { address: None, ..peer(1) };
    machine.send(ms(0), &stranger, number(1));
    assert_eq!(done(&mut machine), "dropped");
    let id = caller(&mut machine, 1, Purpose::Join);
    machine.handle_frame(ms(1), id, &encoded(&membership()));
    assert_eq!(done(&mut machine), "send, message, close Taken");
    machine.send(ms(2), &stranger, number(1));
    assert_eq!(done(&mut machine), "dial");
}

#[test]
fn a_probe_is_answered_by_this_very_member_or_by_no_listener() {
    let ends = [
        (Some(welcome(1, 0, None)), "alive=true, close Answered"),
        (Some(welcome(2, 0, None)), "alive=false, close Answered"),
        (Some(welcome(1, 0, Some("no"))), "alive=false, close Answered"),
        (Some(vec![255; 9]), "alive=false, close Malformed"),
        (None, "alive=false"),
    ];
    for (frame, expected) in ends {
        let mut machine = machine();
        machine.probe(ms(0), peer(1));
        let id = dialed(&mut machine);
        match frame {
            Some(frame) => {
                machine.handle_connected(id);
                assert_eq!(done(&mut machine), "send, reached");
                machine.handle_frame(ms(1), id, &frame);
            }
            None => machine.handle_closed(ms(1), id, Gone::NoListener),
        }
        assert_eq!(done(&mut machine), expected);
        assert!(machine.probes.is_empty());
    }
}

#[test]
fn a_probe_whose_target_may_listen_is_tried_again_and_silence_is_not_told() {
    let mut machine = machine();
    machine.probe(ms(0), peer(1));
    let mut now = ms(0);
    for gone in [Gone::NoWay("no route".into()), Gone::Ended, Gone::Broke("reset".into())] {
        let id = dialed(&mut machine);
        machine.handle_closed(now, id, gone);
        assert_eq!(machine.poll_timeout(), Some(now + ms(20)));
        now += ms(20);
        machine.handle_timeout(now);
    }
    dialed(&mut machine);
    assert_eq!(machine.poll_timeout(), Some(HANDSHAKE), "the time is that of the whole probe");
    machine.handle_timeout(HANDSHAKE);
    assert_eq!((done(&mut machine).as_str(), machine.poll_timeout()), ("close Unreached", None));
}

#[test]
fn there_are_no_more_probes_and_errands_than_there_may_be() {
    let mut machine = machine();
    (0..PROBES + 1).for_each(|_| machine.probe(ms(0), peer(1)));
    let closed = actions(&mut machine).iter().filter(|action| matches!(action, Action::Close(_, Reason::Crowd))).count();
    assert_eq!((closed, machine.probes.len()), (1, PROBES));
    (0..ERRANDS + 1).for_each(|_| machine.send_to_seed(ms(0), address(1), &membership()));
    let dropped = actions(&mut machine).iter().filter(|action| matches!(action, Action::Dropped(..))).count();
    assert_eq!(dropped, 1);
}

#[test]
fn a_caller_of_another_version_or_for_another_daemon_is_told_why_and_is_no_broken_link() {
    let good = hello(1, Purpose::Link);
    let version = Hello { version: PROTOCOL_VERSION + 1, ..good.clone() };
    let another = Hello { to: Some(member(2).id), ..good.clone() };
    let myself = Hello { from: member(0), ..good };
    for (hello, words) in [(version, "speaks version"), (another, "meant for"), (myself, "it says that it is me")] {
        let mut machine = machine();
        let id = machine.handle_accepted(ms(0), address(1)).expect("there is room");
        machine.handle_frame(ms(0), id, &encoded(&hello));
        match &actions(&mut machine)[..] {
            [Action::Send(_, frame), Action::Refused(_, Reason::Unwelcome(_)), Action::Close(_, Reason::Unwelcome(_))] => {
                let Welcome { refused, .. } = decoded(frame).expect("a welcome");
                assert!(refused.expect("a reason").contains(words));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_caller_that_says_no_hello_is_closed_in_time_and_told_of() {
    let mut machine = machine();
    machine.handle_accepted(ms(5), address(1)).expect("there is room");
    assert_eq!(machine.poll_timeout(), Some(ms(5) + HANDSHAKE));
    machine.handle_timeout(ms(5) + HANDSHAKE);
    assert_eq!((done(&mut machine).as_str(), machine.poll_timeout()), ("refused, close Late", None));
}

#[test]
fn a_flood_of_silent_callers_closes_the_oldest_of_them_and_no_caller_that_is_served() {
    let mut machine = machine();
    let served = caller(&mut machine, 1, Purpose::Heartbeat);
    actions(&mut machine);
    let silent: Vec<_> = (0..limits::HANDSHAKES + 1).map(|_| machine.handle_accepted(ms(1), address(2)).expect("room")).collect();
    match actions(&mut machine)[..] {
        [Action::Close(id, Reason::Crowd)] => assert_eq!(id, silent[0]),
        ref other => panic!("{other:?}"),
    }
    machine.handle_frame(ms(2), served, &encoded(&Heartbeat { view: 7 }));
    assert_eq!(done(&mut machine), "heartbeat=7");
}

#[test]
fn all_members_may_call_at_once_and_as_many_strangers_as_ever() {
    const MEMBERS: usize = 1_000;
    let mut machine = machine();
    machine.handle_members(ms(1), MEMBERS);
    let mut call = || machine.handle_accepted(ms(1), address(2)).expect("room");
    let callers: Vec<_> = (0..limits::HANDSHAKES + MEMBERS).map(|_| call()).collect();
    assert_eq!(done(&mut machine), "", "no caller is turned away");
    callers[..MEMBERS].iter().for_each(|id| machine.handle_frame(ms(2), *id, &encoded(&hello(1, Purpose::Link))));
    assert_eq!(actions(&mut machine).len(), MEMBERS, "each is welcomed");
    (0..MEMBERS).for_each(|_| _ = machine.handle_accepted(ms(3), address(2)).expect("room"));
    assert_eq!(done(&mut machine), "", "those that are served take no place of those that are not");
    let ends_the_oldest = |machine: &mut Peers, oldest| match actions(machine)[..] {
        [Action::Close(id, Reason::Crowd)] => assert_eq!(id, oldest),
        ref other => panic!("{other:?}"),
    };
    machine.handle_accepted(ms(3), address(2)).expect("room");
    ends_the_oldest(&mut machine, callers[MEMBERS]);
    machine.handle_members(ms(4), MEMBERS - 1);
    ends_the_oldest(&mut machine, callers[MEMBERS + 1]);
    machine.check_invariants();
}

#[test]
fn in_the_largest_cluster_there_are_no_more_connections_than_in_a_small_one() {
    const MOST: usize = limits::CONNECTIONS + limits::HANDSHAKES;
    let mut machine = machine();
    machine.handle_members(ms(0), limits::MEMBERS);
    let served: Vec<_> = (0..100).map(|_| caller(&mut machine, 1, Purpose::Link)).collect();
    let silent: Vec<_> = (0..MOST).map(|_| machine.handle_accepted(ms(1), address(2)).expect("room")).collect();
    let closed = actions(&mut machine).into_iter().filter_map(|action| match action {
        Action::Close(id, Reason::Crowd) => Some(id),
        _ => None,
    });
    assert!(closed.eq(silent[..served.len()].iter().copied()), "the oldest that say nothing, and no others");
    assert_eq!(machine.connections.len(), MOST);
}

#[test]
fn there_are_no_more_callers_than_there_may_be() {
    let mut machine = machine();
    (0..limits::CONNECTIONS).for_each(|_| _ = caller(&mut machine, 1, Purpose::Link));
    actions(&mut machine);
    assert_eq!(machine.handle_accepted(ms(1), address(2)), None);
    assert_eq!(done(&mut machine), "refused");
}

#[test]
fn messages_are_acknowledged_after_64_or_when_nothing_more_comes() {
    let mut machine = machine();
    let id = caller(&mut machine, 1, Purpose::Link);
    actions(&mut machine);
    (1..=64).for_each(|seq| machine.handle_frame(ms(1), id, &data(seq)));
    let last = actions(&mut machine).pop();
    let Some(Action::Send(_, frame)) = last else { panic!("{last:?}") };
    assert_eq!(decoded::<LinkFrame>(&frame).expect("a frame"), LinkFrame::Ack { received: 64 });
    machine.handle_quiet(id);
    assert_eq!(done(&mut machine), "");
    machine.handle_frame(ms(2), id, &data(64));
    machine.handle_quiet(id);
    assert_eq!(done(&mut machine), "send", "what comes twice is acknowledged, and not told");
    machine.handle_frame(ms(3), id, &data(66));
    assert_eq!(done(&mut machine), "refused, broken, close Numbers");
}

#[test]
fn numbers_outlive_connections_until_many_others_have_departed() {
    let mut machine = machine();
    let received = |machine: &mut Peers| {
        caller(machine, 1, Purpose::Link);
        let Action::Send(_, frame) = &actions(machine)[0] else { panic!("no welcome") };
        decoded::<Welcome>(frame).expect("a welcome").received
    };
    let id = caller(&mut machine, 1, Purpose::Link);
    machine.handle_frame(ms(1), id, &data(1));
    machine.handle_closed(ms(2), id, Gone::Ended);
    actions(&mut machine);
    assert_eq!(received(&mut machine), 1);
    machine.forget(ms(3), &member(1).id);
    assert_eq!(received(&mut machine), 1);
    (0..limits::DEPARTED).for_each(|at| machine.forget(ms(4), &member(at + 2).id));
    assert_eq!(received(&mut machine), 0);
}

#[test]
fn of_nodes_that_want_to_join_only_the_last_are_remembered() {
    let mut machine = machine();
    for at in 1..STRANGERS + 10 {
        let id = caller(&mut machine, at, Purpose::Join);
        machine.handle_frame(ms(1), id, &encoded(&membership()));
    }
    assert_eq!(machine.received.len(), STRANGERS);
}

// ---- two machines

/// What happens to two daemons and what lies between them.
#[derive(Debug, Clone)]
enum Step {
    /// One has a message for the other.
    Send(usize),
    /// The oldest connection that is dialed comes about, or does not.
    Connect(bool),
    /// The oldest frame of a connection arrives at this side.
    Arrive(usize, usize),
    /// A connection breaks.
    Break(usize),
    Quiet(usize),
    Later(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0usize..2).prop_map(Step::Send),
        4 => prop::bool::weighted(0.8).prop_map(Step::Connect),
        12 => (0usize..4, 0usize..2).prop_map(|(pipe, side)| Step::Arrive(pipe, side)),
        2 => (0usize..4).prop_map(Step::Break),
        4 => (0usize..4).prop_map(Step::Quiet),
        3 => (1u64..150).prop_map(Step::Later),
    ]
}

#[derive(Debug)]
enum Item {
    Frame(Vec<u8>),
    End,
}

/// A connection: the machines and their names for it, and what is on the way to each.
#[derive(Debug)]
struct Pipe {
    ends: [(usize, ConnectionId); 2],
    lanes: [VecDeque<Item>; 2],
    open: [bool; 2],
}

/// Two daemons, and what they have told their nodes.
struct Pair {
    machines: [Peers; 2],
    now: Duration,
    dials: VecDeque<(usize, ConnectionId)>,
    pipes: Vec<Pipe>,
    sent: [u64; 2],
    heard: [Vec<u64>; 2],
    faults: Vec<Reason>,
    /// When a connection breaks the peers forget what they have received, which they must not.
    forgets: bool,
}

impl Pair {
    fn new(forgets: bool) -> Pair {
        let machines = [0, 1].map(|at| Peers::new(member(at)));
        let (dials, pipes, sent, heard, faults) = Default::default();
        Pair { machines, now: ms(0), dials, pipes, sent, heard, faults, forgets }
    }

    fn end_of(&self, at: usize, id: ConnectionId) -> Option<(usize, usize)> {
        let sides = self.pipes.iter().enumerate().flat_map(|(pipe, of)| (0..2).map(move |side| (pipe, side, of.ends[side])));
        sides.into_iter().find(|(.., end)| *end == (at, id)).map(|(pipe, side, _)| (pipe, side))
    }

    fn put(&mut self, at: usize, id: ConnectionId, item: Item) {
        if let Some((pipe, side)) = self.end_of(at, id) {
            self.pipes[pipe].open[side] &= !matches!(item, Item::End);
            self.pipes[pipe].lanes[1 - side].push_back(item);
        }
    }

    fn carry_out(&mut self, at: usize) {
        while let Some(action) = self.machines[at].poll_action() {
            match action {
                Action::Dial(id, _) => self.dials.push_back((at, id)),
                Action::Send(id, frame) => self.put(at, id, Item::Frame(frame)),
                Action::Write(id) => {
                    while let Some(frame) = self.machines[at].poll_frame(id) {
                        self.put(at, id, Item::Frame(frame));
                    }
                }
                Action::Close(id, reason) => {
                    self.faults.extend(Some(reason).filter(Reason::is_fault));
                    self.dials.retain(|dial| *dial != (at, id));
                    self.put(at, id, Item::End);
                }
                Action::Tell(Input::Message(_, PeerMessage::Query(number, _))) => self.heard[at].push(number),
                Action::Tell(_) => {}
                Action::Refused(_, reason) | Action::Dropped(_, _, reason) => self.faults.push(reason),
            }
        }
        self.machines[at].check_invariants();
    }

    fn drive(&mut self, at: usize, input: impl FnOnce(&mut Peers, Duration)) {
        input(&mut self.machines[at], self.now);
        self.carry_out(at);
    }

    fn connect(&mut self, comes_about: bool) {
        let Some((at, id)) = self.dials.pop_front() else { return };
        if !comes_about {
            return self.drive(at, |machine, now| machine.handle_closed(now, id, Gone::NoListener));
        }
        let there = self.machines[1 - at].handle_accepted(self.now, address(at)).expect("there is room");
        self.pipes.push(Pipe { ends: [(at, id), (1 - at, there)], lanes: Default::default(), open: [true; 2] });
        self.drive(at, |machine, _| machine.handle_connected(id));
    }

    fn arrive(&mut self, pipe: usize, side: usize) {
        let Some(pipe) = self.pipes.get_mut(pipe) else { return };
        let (at, id) = pipe.ends[side];
        let Some(item) = pipe.lanes[side].pop_front().filter(|_| pipe.open[side]) else { return };
        match item {
            Item::Frame(frame) => self.drive(at, |machine, now| machine.handle_frame(now, id, &frame)),
            Item::End => {
                pipe.open[side] = false;
                self.drive(at, |machine, now| machine.handle_closed(now, id, Gone::Ended));
            }
        }
    }

    fn happen(&mut self, step: &Step) {
        match *step {
            Step::Send(at) => {
                self.sent[at] += 1;
                let message = number(self.sent[at]);
                self.drive(at, |machine, now| machine.send(now, &peer(1 - at), message));
            }
            Step::Connect(comes_about) => self.connect(comes_about),
            Step::Arrive(pipe, side) => self.arrive(pipe, side),
            Step::Break(pipe) if pipe < self.pipes.len() => {
                let Pipe { ends, open, .. } = self.pipes.remove(pipe);
                for ((at, id), _) in ends.into_iter().zip(open).filter(|(_, open)| *open) {
                    self.drive(at, |machine, now| machine.handle_closed(now, id, Gone::Broke("reset".into())));
                }
                if self.forgets {
                    self.machines.iter_mut().for_each(|machine| machine.received.clear());
                }
            }
            Step::Break(_) => {}
            Step::Quiet(pipe) => {
                let ends = self.pipes.get(pipe).map(|pipe| pipe.ends);
                ends.into_iter().flatten().for_each(|(at, id)| self.drive(at, |machine, _| machine.handle_quiet(id)));
            }
            Step::Later(by) => {
                self.now += ms(by);
                (0..2).for_each(|at| self.drive(at, Peers::handle_timeout));
            }
        }
        self.pipes.retain(|pipe| pipe.open != [false; 2]);
    }

    /// Nothing breaks any more: everything comes about and arrives.
    fn heal(&mut self) {
        for _ in 0..60 {
            (0..4).for_each(|_| self.connect(true));
            for _ in 0..400 {
                (0..self.pipes.len()).for_each(|pipe| (0..2).for_each(|side| self.arrive(pipe, side)));
            }
            (0..self.pipes.len()).for_each(|pipe| self.happen(&Step::Quiet(pipe)));
            self.happen(&Step::Later(100));
        }
    }

    /// Each message was heard once and in order, and nothing waits.
    fn judge(&self) -> Result<(), String> {
        for at in 0..2 {
            let all: Vec<u64> = (1..=self.sent[1 - at]).collect();
            if self.heard[at] != all {
                return Err(format!("n{at} was to hear {all:?}, and heard {:?}", self.heard[at]));
            }
        }
        let waits = self.machines.iter().any(Peers::has_unsent);
        if waits || !self.faults.is_empty() { Err(format!("something waits: {waits}; {:?}", self.faults)) } else { Ok(()) }
    }
}

/// What comes of these steps.
fn run(steps: &[Step], forgets: bool) -> Result<(), String> {
    let mut pair = Pair::new(forgets);
    steps.iter().for_each(|step| pair.happen(step));
    pair.heal();
    pair.judge()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// Whatever breaks, each message is told once and in order when the network is well again.
    #[test]
    fn each_message_is_told_once_and_in_order(steps in prop::collection::vec(step(), 1..150)) {
        prop_assert_eq!(run(&steps, false), Ok(()));
    }
}

/// The property notices a daemon that forgets what it has received.
#[test]
fn a_daemon_that_forgets_its_numbers_is_noticed() {
    let deliver = (0..4).flat_map(|_| [Step::Arrive(0, 1), Step::Arrive(0, 0)]);
    let steps: Vec<Step> = [Step::Send(0), Step::Connect(true)].into_iter().chain(deliver).collect();
    let again = |quiet: Option<Step>| {
        let steps: Vec<Step> = steps.iter().cloned().chain(quiet).chain([Step::Break(0), Step::Send(0)]).collect();
        (run(&steps, false), run(&steps, true).is_err())
    };
    assert_eq!(again(None), (Ok(()), true), "a message that was not acknowledged is told twice");
    assert_eq!(again(Some(Step::Quiet(0))), (Ok(()), true), "the next number is not the one that is awaited");
}

#[test]
#[should_panic(expected = "a link has one connection")]
fn a_second_connection_of_a_link_is_noticed() {
    let (mut machine, _) = link();
    machine.dial(ms(2), address(1), Role::Link(member(1).id), ms(3));
    machine.check_invariants();
}

#[test]
#[should_panic(expected = "the connection of the link to")]
fn a_connection_that_is_of_another_link_is_noticed() {
    let (mut machine, id) = link();
    machine.connections.get_mut(&id).expect("it is there").role = Role::Link(member(2).id);
    machine.check_invariants();
}

#[test]
#[should_panic(expected = "a probe has one attempt")]
fn an_attempt_of_no_probe_is_noticed() {
    let mut machine = machine();
    machine.dial(ms(2), address(1), Role::Probe(7), ms(3));
    machine.check_invariants();
}

#[test]
#[should_panic(expected = "each caller that has said hello is counted")]
fn a_caller_that_is_counted_twice_is_noticed() {
    let mut machine = machine();
    caller(&mut machine, 1, Purpose::Link);
    machine.served += 1;
    machine.check_invariants();
}
