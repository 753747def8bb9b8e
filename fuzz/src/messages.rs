//! Messages in bincode ([`radic_wire::codec`]): a byte that says of which type, then the message.

use std::fmt::Debug;

use radic_wire::codec;
use radic_wire::event::{Event, EventName};
use radic_wire::ids::{Epoch, Incarnation, Rank};
use radic_wire::job::{OutputStream, Placement};
use radic_wire::limits;
use radic_wire::local::{Reply, Request};
use radic_wire::log::{ImageRange, LogPart};
use radic_wire::mac::JobKey;
use radic_wire::membership::{Ballot, Change, MembershipBody, MembershipMessage, Proposal, View};
use radic_wire::peer::{
    FromHost, Gift, Heartbeat, Hello, LinkFrame, PeerMessage, Purpose, Query, RestartOrder, SessionId, ToHome, ToHost, ToStore,
    Welcome,
};
use radic_wire::process::{self, FromNode, Protection, ToNode};
use radic_wire::replay::{self, FromReplayer, ToReplayer};
use radic_wire::suspension::{Resumption, Suspension};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_bytes::ByteBuf;

use crate::Inputs;
use crate::link::{LinkReceiver, LinkSender};
use crate::values::{address, connection, job, member, node, placement, process, spec, stream, suspension, ward};

/// What is read is written to bytes that are read as an equal value; what a program checks of it can be checked.
pub fn check(data: &[u8]) -> bool {
    let Some((&kind, bytes)) = data.split_first() else { return false };
    match kind {
        0 => same::<Hello>(bytes, limits::PEER_FRAME).is_some(),
        1 => same::<Welcome>(bytes, limits::PEER_FRAME).is_some(),
        2 => same::<LinkFrame>(bytes, limits::PEER_FRAME).map(|frame| link(&frame)).is_some(),
        3 => same::<Heartbeat>(bytes, limits::PEER_FRAME).is_some(),
        4 => same::<Request>(bytes, limits::LOCAL_FRAME).map(|request| asked(&request)).is_some(),
        5 => same::<Reply>(bytes, limits::LOCAL_FRAME).is_some(),
        6 => same::<ToNode>(bytes, process::FRAME).is_some(),
        7 => same::<FromNode>(bytes, process::FRAME).is_some(),
        8 => same::<ToReplayer>(bytes, replay::FRAME).is_some(),
        9 => same::<FromReplayer>(bytes, replay::FRAME).is_some(),
        _ => false,
    }
}

/// The codes of numbers have second ones that are longer, so it is the value that comes back, and the shortest code.
fn same<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8], limit: usize) -> Option<T> {
    let message: T = codec::decode(bytes, limit).ok()?;
    let code = codec::encode(&message, limit).expect("what was read can be written");
    assert!(code.len() <= bytes.len(), "{message:?} has become longer");
    let again: T = codec::decode(&code, limit).expect("what was written can be read");
    assert_eq!(again, message);
    assert!(codec::encode(&again, limit).is_ok_and(|again| again == code), "a second code of {message:?}");
    assert!(codec::decode::<T>(&code, code.len()).is_ok(), "a limit that it fits");
    assert!(codec::decode::<T>(&code[..code.len() - 1], limit).is_err(), "a message without its end");
    Some(message)
}

/// What a link does with a frame: a number out of order, or an acknowledgement of what was never sent, is an error.
fn link(frame: &LinkFrame) {
    let (mut sender, mut receiver) = (LinkSender::default(), LinkReceiver::default());
    match frame {
        LinkFrame::Ack { received } => {
            sender.push(PeerMessage::Subscribe).expect("an empty link has room");
            assert_eq!(sender.handle_ack(*received).is_ok(), *received <= 1);
        }
        LinkFrame::Data { seq, message } => {
            assert_eq!(receiver.handle_seq(*seq).ok(), (*seq <= 1).then_some(*seq == 1));
            heard(message);
        }
    }
}

fn heard(message: &PeerMessage) {
    match message {
        PeerMessage::Membership(MembershipMessage { body, .. }) => match body {
            MembershipBody::Newest(seen) => view(seen, &[]),
            MembershipBody::Decided { changes, .. } | MembershipBody::Request(changes) => {
                view(&View::founded_by(member("n1")), changes);
            }
            _ => {}
        },
        PeerMessage::ToHome(_, ToHome::Start { spec, placement, .. }) => placed(placement, spec.ranks),
        PeerMessage::ToHost(_, ToHost::Launch { spec, placement, .. }) => placed(placement, spec.ranks),
        PeerMessage::Restart(order) => placed(&order.ward.placement, order.ward.spec.ranks),
        PeerMessage::Query(_, Query::Given(gift)) if gift.is_whole() => {
            let ranks: usize = gift.by_protector().values().map(Vec::len).sum();
            assert_eq!(ranks, gift.ward.spec.ranks as usize, "each rank has one protector");
        }
        PeerMessage::OfLife(_, code) => _ = codec::decode::<PeerMessage>(code, limits::PEER_FRAME),
        _ => {}
    }
}

/// The view after this one keeps what a view must keep.
fn view(view: &View, changes: &[Change]) {
    if view.check().is_err() {
        return;
    }
    let leave = view.members.first().map(|member| Change::Leave(member.id.clone()));
    let join = Change::Join(member("new"));
    for changes in [changes.to_vec(), leave.into_iter().chain([join]).collect()] {
        if let Ok(next) = view.next(&changes) {
            assert_eq!(next.check(), Ok(()));
            assert!(next.number > view.number);
        }
    }
}

/// Of a placement that is valid each rank has one node.
fn placed(placement: &Placement, ranks: u32) {
    if placement.is_valid(ranks) {
        _ = placement.home();
        let all: usize = placement.nodes.iter().map(|node| placement.ranks_on(node).count()).sum();
        assert_eq!(all, ranks as usize);
    }
}

fn asked(request: &Request) {
    match request {
        Request::Run { spec, .. } => _ = spec.validate().map(|()| spec.command_line()),
        Request::Resume(suspension, _) => {
            let Suspension { ward, .. } = &**suspension;
            placed(&ward.placement, ward.spec.ranks);
        }
        _ => {}
    }
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let mut inputs = Inputs::new();
    peers(&mut inputs);
    jobs(&mut inputs);
    locals(&mut inputs);
    processes(&mut inputs);
    inputs
}

fn add<T: Serialize>(inputs: &mut Inputs, kind: u8, name: &'static str, message: &T) {
    let code = codec::encode(message, limits::LOCAL_FRAME).expect("a small message");
    inputs.push((name, [&[kind], &code[..]].concat()));
}

fn data(inputs: &mut Inputs, name: &'static str, message: PeerMessage) {
    add(inputs, 2, name, &LinkFrame::Data { seq: 1, message });
}

fn peers(inputs: &mut Inputs) {
    add(inputs, 0, "hello", &Hello { version: 6, from: member("n1"), to: Some(node("n2")), purpose: Purpose::Link });
    add(inputs, 1, "welcome", &Welcome { id: node("n1"), received: 300, refused: Some("no".into()) });
    add(inputs, 2, "ack", &LinkFrame::Ack { received: 1 });
    add(inputs, 3, "heartbeat", &Heartbeat { view: 70_000 });
    let founded = View::founded_by(member("n1"));
    let joined = founded.next(&[Change::Join(member("n2"))]).expect("room for two");
    let ballot = Ballot { round: 2, proposer: node("n1") };
    let proposal = Proposal { ballot: ballot.clone(), changes: vec![Change::Dead(node("n2"))] };
    for (name, body) in [
        ("newest", MembershipBody::Newest(joined)),
        ("decided", MembershipBody::Decided { changes: vec![Change::Join(member("n3"))], root: 0 }),
        ("promise", MembershipBody::Promise { ballot, accepted: Some(proposal) }),
    ] {
        data(inputs, name, PeerMessage::Membership(MembershipMessage { cluster: None, view: 1, body }));
    }
    let text = "the whole story".to_owned();
    let (node, subject) = (node("n1").name, Some(node("n2").name));
    let event = Event { at_ms: 1, node, seq: 2, event: EventName::Confirm, subject, job: Some(job()), rank: None, text };
    data(inputs, "events", PeerMessage::Events(vec![event]));
}

fn jobs(inputs: &mut Inputs) {
    let session = SessionId { node: node("n1"), number: 4 };
    let (spec, placement) = (Box::new(spec(2)), placement(2));
    let start = ToHome::Start { spec: spec.clone(), placement: placement.clone(), session: Some(session) };
    data(inputs, "start", PeerMessage::ToHome(job(), start));
    let hangs = ToHome::SuspenderHangs(SessionId { node: node("n2"), number: 7 });
    data(inputs, "suspender-hangs", PeerMessage::ToHome(job(), hangs));
    let launch = ToHost::Launch { epoch: Epoch::FIRST, spec, placement };
    data(inputs, "launch", PeerMessage::ToHost(job(), launch));
    let said = FromHost::Output { rank: Rank(1), stream: OutputStream::Stderr, offset: 5, data: ByteBuf::from("line\n") };
    let output = ToHome::Host { epoch: Epoch::FIRST, said };
    data(inputs, "output", PeerMessage::ToHome(job(), output));
    let protect = ToStore::Protect {
        ranks: vec![(Rank(0), Incarnation::restarted(1))],
        origins: [(Rank(0), address(1).ip())].into(),
        ward: Box::new(ward()),
    };
    data(inputs, "protect", PeerMessage::ToStore(job(), protect));
    let order = RestartOrder {
        process: process(0),
        incarnation: Incarnation::restarted(1),
        ward: ward(),
        origin: address(1).ip(),
        log: address(2),
        replica: Some(address(3)),
        range: ImageRange { oldest: 3, next: 5, line: 2 },
        images: vec![(1, 100)],
        cut: 5,
        log_end: 90,
        held: vec![(stream(1), 7, Some(7))],
        causes: (3, ByteBuf::from(vec![5, 9])),
    };
    let restart = PeerMessage::Restart(Box::new(order));
    let code = codec::encode(&restart, limits::PEER_FRAME).expect("it is short");
    data(inputs, "of-a-life", PeerMessage::OfLife(1 << 32 | 7, ByteBuf::from(code)));
    data(inputs, "restart", restart);
    let ranks = vec![Rank(0), Rank(1)];
    data(inputs, "lost", PeerMessage::Query(7, Query::Lost { job: job(), epoch: Epoch::FIRST, ranks, view: 3 }));
    let ward = ward();
    let protectors = ward.placement.nodes.clone();
    let ranks = vec![(Incarnation::restarted(2), address(1).ip()); ward.spec.ranks as usize];
    data(inputs, "given", PeerMessage::Query(8, Query::Given(Box::new(Gift { job: job(), ward, protectors, ranks }))));
}

fn resumption() -> Resumption {
    Resumption { incarnations: vec![Incarnation::restarted(1); 2] }
}

fn locals(inputs: &mut Inputs) {
    add(inputs, 4, "run", &Request::Run { spec: Box::new(spec(2)), attach: true });
    add(inputs, 4, "resume", &Request::Resume(Box::new(suspension()), Box::new(resumption())));
    add(inputs, 4, "read-log", &Request::ReadLog { part: LogPart::Stream(stream(2)), position: 9 });
    add(inputs, 4, "events?", &Request::Events { follow: false });
    add(inputs, 5, "reply", &Reply::Error("no such job".into()));
    add(inputs, 5, "attached", &Reply::Attached { job: job(), placement: placement(2), consumed: 0, dropped: 1 });
    add(inputs, 5, "bytes", &Reply::LogBytes(ByteBuf::from("journal")));
}

fn processes(inputs: &mut Inputs) {
    add(inputs, 6, "join", &ToNode::Join { version: 6, process: process(1) });
    let (from, to, connection) = (address(1), address(2), connection(3));
    add(inputs, 6, "child-listens", &ToNode::ChildListens { version: 6, process: process(1), address: from });
    add(inputs, 6, "child-accepted", &ToNode::ChildAccepted { version: 6, process: process(1), from });
    add(inputs, 6, "child-refuses", &ToNode::ChildRefuses { version: 6, process: process(1), from });
    add(inputs, 6, "holds", &ToNode::Holds { ask: 3, causes: ByteBuf::from(vec![5, 9]) });
    add(inputs, 6, "connecting", &ToNode::Connecting { ask: 1, connection, from, to });
    add(inputs, 6, "leaving", &ToNode::Leaving(Box::default()));
    add(inputs, 6, "note", &ToNode::Note("a note".into()));
    add(inputs, 6, "kept", &ToNode::Kept("its protector is silent".into()));
    add(inputs, 6, "doubts", &ToNode::Doubts { why: "its threads".into(), patience: std::time::Duration::from_secs(1) });
    let (key, protection) = (JobKey::from_bytes([3; 32]), Protection::default());
    let joined = FromNode::Joined {
        incarnation: Incarnation::FIRST,
        key,
        protector: address(4),
        protection,
        journal: 0,
        inherited: false,
    };
    add(inputs, 7, "joined", &joined);
    add(inputs, 7, "protector", &FromNode::Protector(address(5)));
    let bytes = ByteBuf::from("sent");
    add(inputs, 8, "sent", &ToReplayer::Sent { stream: stream(1), offset: 3, bytes });
    add(inputs, 8, "restored", &ToReplayer::Restored { process: process(1), incarnation: Incarnation::restarted(1), cut: 9 });
    let setup = FromReplayer::Setup { incarnation: Incarnation::restarted(1), log_end: 9, held: vec![(stream(1), 2, None)] };
    add(inputs, 9, "setup", &setup);
    add(inputs, 9, "piece", &FromReplayer::Journal(ByteBuf::from("xy")));
}
