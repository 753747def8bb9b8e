use radic_wire::ids::{JobId, Rank};
use radic_wire::log::{FromProtector, ImageRange};
use radic_wire::process::{FromNode, Machine};

use super::*;
use crate::{Config, Observer};

const ME: u32 = 0;
const FD: u32 = 5;

fn process(rank: u32) -> ProcessId {
    ProcessId { job: JobId::from_bits(7), rank: Rank(rank) }
}

fn at(host: u8, port: u16) -> SocketAddr {
    ([10, 0, 0, host], port).into()
}

fn own() -> Own {
    Own { local: at(1, 40_000), from: at(1, 40_000) }
}

/// A process with a call under way to 10.0.0.2:80.
#[derive(Clone)]
struct Caller {
    observer: Observer,
    links: Links,
    now: Duration,
    call: Connect,
}

impl Caller {
    fn new(blocking: bool) -> Caller {
        let config = Config { connections: 2, descriptors: 16, ..Config::default() };
        let call = Connect::new(0, FD, at(2, 80), blocking);
        Caller { observer: Observer::new(process(ME), &config), links: Links::default(), now: Duration::from_secs(1), call }
    }

    fn tell(&mut self, input: impl FnOnce(&mut Connect, &mut Context<'_>, &Links) -> Result<(), Error>) {
        let mut cx = Context { observer: &mut self.observer, now: self.now };
        input(&mut self.call, &mut cx, &self.links).expect("nothing contradicts");
    }

    /// The next step; waiting at the gate is over at once.
    fn step(&mut self) -> Step {
        loop {
            let mut cx = Context { observer: &mut self.observer, now: self.now };
            match self.call.next(&mut cx, &self.links).expect("nothing contradicts") {
                Step::Wait(Wait::Stable(position)) => {
                    self.observer.poll_journal();
                    self.observer.handle_protector(&FromProtector::JournalStable { position }).expect("it is stable");
                }
                step => return step,
            }
        }
    }

    fn is_asked(&mut self) {
        assert_eq!(self.step(), Step::Ask { from: own().from, to: at(2, 80) });
    }

    fn binds(&mut self) {
        assert_eq!(self.step(), Step::Bind);
        self.tell(|call, cx, _| call.handle_bound(cx, Ok(own())));
    }

    fn hears(&mut self, peer: Option<Peer>, later: bool) {
        self.finds(Found { peer, later, machine: Machine::Foreign });
    }

    fn finds(&mut self, found: Found) {
        self.tell(|call, cx, links| call.handle_found(cx, links, found));
    }

    fn dialed(&mut self, dialed: Dialed) {
        self.tell(|call, cx, links| call.handle_dialed(cx, links, dialed));
    }

    /// Up to the answer of the nodes.
    fn asks(&mut self) {
        self.binds();
        self.is_asked();
    }

    fn dials(&mut self, there: SocketAddr) {
        let until = self.now + if self.call.blocking { LINK } else { MOMENT };
        assert_eq!(self.step(), Step::Dial { at: there, until });
    }

    fn is_taken(&mut self) {
        let step = self.step();
        assert!(matches!(step, Step::Take(_, Some(greeting)) if greeting.connection.opener == process(ME)), "{step:?}");
        assert_eq!(self.step(), Step::Over(Outcome::Connected));
        assert_eq!(self.step(), Step::Over(Outcome::Connected), "what is over stays over");
    }

    /// The socket is under way still, and the program does not wait.
    fn is_left(&mut self) -> Slot {
        self.dialed(Dialed::Open(None));
        let Step::Leave(slot) = self.step() else { panic!("it waits") };
        assert_eq!(self.step(), Step::Over(Outcome::UnderWay));
        slot
    }

    /// From the question to the greeting.
    fn reaches_its_peer(&mut self) {
        self.asks();
        self.hears(Some(PEER), false);
        self.dials(at(2, 80));
        self.dialed(Dialed::Made);
        self.is_taken();
    }

    /// Another process has come back: so the links have heard.
    fn one_returns(&mut self) {
        let word =
            FromNode::Restarted { process: process(3), incarnation: Incarnation::restarted(1), log_end: 0, door: at(4, 1) };
        self.links
            .handle_node(&mut Context { observer: &mut self.observer, now: self.now }, &word, 0)
            .expect("nothing contradicts");
    }

    /// This one is brought back from `image`, with all of its log. Nothing of that has been shipped.
    fn comes_back(&self, image: &Caller) -> Caller {
        let mut next = image.clone();
        let (begin, end) = (image.observer.journal().end(), self.observer.journal().end());
        let mut before = self.observer.clone();
        let log = before.poll_journal().map(|ship| [ship.head, ship.tail].concat()).unwrap_or_default();
        let log = &log[log.len() - (end - begin) as usize..];
        next.observer
            .restart(Incarnation::restarted(1), end, Vec::new(), ImageRange::default(), (0, &[]), 64)
            .expect("it restarts");
        next.observer.handle_protector(&FromProtector::Journal { position: begin, bytes: log }).expect("the log is right");
        next
    }
}

const PEER: Peer = Peer { process: ProcessId { job: JobId::from_bits(7), rank: Rank(1) }, at: None };

#[test]
fn a_protected_process_is_called_and_greeted() {
    for blocking in [true, false] {
        let mut one = Caller::new(blocking);
        one.asks();
        one.hears(Some(PEER), false);
        one.dials(at(2, 80));
        assert_eq!(one.call.target(), Some((own().local, process(1))));
        one.dialed(Dialed::Made);
        one.is_taken();
    }
}

#[test]
fn a_process_that_has_moved_is_called_where_it_is() {
    let mut one = Caller::new(true);
    one.asks();
    // It is lost, and on its way back.
    one.hears(None, true);
    assert_eq!(one.step(), Step::Pause);
    one.is_asked();
    one.hears(Some(Peer { at: Some(at(3, 81)), ..PEER }), false);
    one.dials(at(3, 81));
    // It is lost once more.
    one.dialed(Dialed::Failed(ECONNREFUSED));
    assert_eq!((one.step(), one.step()), (Step::GiveUp, Step::Pause));
    one.asks();
    one.hears(Some(Peer { at: Some(at(4, 82)), ..PEER }), false);
    one.dials(at(4, 82));
    // One has come back while the link was made: it may lead to an incarnation that is over.
    one.one_returns();
    one.dialed(Dialed::Made);
    assert_eq!(one.step(), Step::GiveUp);
    one.reaches_its_peer();
}

#[test]
fn what_was_asked_before_a_process_came_back_is_asked_again() {
    let mut one = Caller::new(true);
    one.asks();
    // Where its peer was, then that one has come back: the first may have been said of the time before.
    one.one_returns();
    one.hears(Some(PEER), false);
    one.is_asked();
    one.hears(None, false);
    assert_eq!(one.step(), Step::Call { to: at(2, 80), until: None });
    one.dialed(Dialed::Made);
    one.is_asked();
    // A protected process may have let this one in, which has come back since.
    one.one_returns();
    one.hears(None, false);
    assert_eq!(one.step(), Step::GiveUp);
    one.reaches_its_peer();
}

#[test]
fn a_process_that_does_not_come_back_is_refused_in_time() {
    let mut one = Caller::new(true);
    one.asks();
    one.hears(None, true);
    assert_eq!(one.step(), Step::Pause);
    one.is_asked();
    one.now += RETURN;
    one.hears(None, true);
    assert_eq!(one.step(), Step::Call { to: at(2, 80), until: None });

    let mut one = Caller::new(true);
    one.asks();
    one.hears(Some(PEER), false);
    for _ in 1..CALLS {
        one.dials(at(2, 80));
        one.dialed(Dialed::Open(None));
        assert_eq!((one.step(), one.step()), (Step::GiveUp, Step::Pause));
        one.asks();
        one.hears(Some(PEER), false);
    }
    one.dials(at(2, 80));
    one.dialed(Dialed::Failed(ETIMEDOUT));
    assert_eq!((one.step(), one.step()), (Step::GiveUp, Step::Pause));
    one.asks();
    one.hears(Some(PEER), false);
    assert_eq!(one.step(), Step::Over(Outcome::Failed(ECONNREFUSED)));
}

#[test]
fn a_call_to_no_protected_process_is_the_programs_own() {
    let mut one = Caller::new(true);
    one.asks();
    one.hears(None, false);
    assert_eq!(one.step(), Step::Call { to: at(2, 80), until: None });
    one.dialed(Dialed::Made);
    one.is_asked();
    one.hears(None, false);
    assert_eq!(one.step(), Step::Report { from: own().from, to: at(2, 80), made: true });
    assert_eq!(one.step(), Step::Over(Outcome::Unprotected(Some(0))));

    let mut one = Caller::new(false);
    let until = Some(one.now + LINK);
    one.asks();
    one.hears(None, false);
    assert_eq!(one.step(), Step::Call { to: at(2, 80), until });
    one.dialed(Dialed::Open(None));
    one.is_asked();
    one.hears(None, false);
    assert_eq!(one.step(), Step::Report { from: own().from, to: at(2, 80), made: true });
    assert_eq!(one.step(), Step::Over(Outcome::Unprotected(Some(EINPROGRESS))));
}

/// A listener that came between the question and the connection: the nodes are asked again, and the connection is made again, with a greeting.
#[test]
fn a_process_that_has_begun_to_listen_meanwhile_is_called_anew() {
    let came = [(Dialed::Made, Some(PEER), false), (Dialed::Made, None, true), (Dialed::Open(None), None, true)];
    for (dialed, peer, later) in came {
        let mut one = Caller::new(true);
        one.asks();
        one.hears(None, false);
        assert_eq!(one.step(), Step::Call { to: at(2, 80), until: None });
        one.dialed(dialed);
        one.is_asked();
        one.hears(peer, later);
        assert_eq!(one.step(), Step::GiveUp);
        one.reaches_its_peer();
    }
}

/// A machine of the cluster is cut off: a process may begin to listen there before the call arrives.
#[test]
fn a_call_that_does_not_arrive_is_made_again_for_a_while() {
    let nobody = Found { machine: Machine::Member, ..Found::default() };
    let mut one = Caller::new(false);
    let begin = one.now;
    while one.now < begin + RETURN {
        one.asks();
        one.finds(nobody);
        assert_eq!(one.step(), Step::Call { to: at(2, 80), until: Some(one.now + LINK) });
        one.now += LINK;
        one.dialed(Dialed::Open(None));
        one.is_asked();
        one.finds(nobody);
        if one.now < begin + RETURN {
            assert_eq!(one.step(), Step::GiveUp);
        }
    }
    assert!(matches!(one.step(), Step::Report { made: true, .. }));
    assert_eq!(one.step(), Step::Over(Outcome::Unprotected(Some(EINPROGRESS))));

    // A program that is interrupted is told so at once.
    const EINTR: u32 = 4;
    let mut one = Caller::new(true);
    one.asks();
    one.finds(nobody);
    assert!(matches!(one.step(), Step::Call { .. }));
    one.dialed(Dialed::Open(Some(EINTR)));
    one.is_asked();
    one.finds(nobody);
    assert!(matches!(one.step(), Step::Report { made: true, .. }));
}

/// On this machine the call arrives, and no process lets it in.
#[test]
fn a_call_to_a_full_backlog_of_this_machine_is_left_to_its_program() {
    let mut one = Caller::new(false);
    one.call.to = at(1, 80);
    let until = Some(one.now + MOMENT);
    let ask = Step::Ask { from: own().from, to: at(1, 80) };
    one.binds();
    assert_eq!(one.step(), ask);
    let nobody = Found { machine: Machine::Member, ..Found::default() };
    one.finds(nobody);
    assert_eq!(one.step(), Step::Call { to: at(1, 80), until });
    one.dialed(Dialed::Open(None));
    assert_eq!(one.step(), ask);
    one.finds(nobody);
    assert_eq!(one.step(), Step::Report { from: own().from, to: at(1, 80), made: true });
    assert_eq!(one.step(), Step::Over(Outcome::Unprotected(Some(EINPROGRESS))));
}

/// The gate is shut between the answer of the nodes and the call: what they have said is old when it opens.
#[test]
fn a_call_that_waits_at_the_gate_asks_once_more() {
    let mut one = Caller::new(true);
    one.asks();
    // Another outcome is not stable yet.
    one.observer.handle_outcome(0, &Determinant::Connected { fd: 9 }).expect("there is room");
    one.hears(None, false);
    one.is_asked();
    one.hears(None, false);
    assert!(matches!(one.step(), Step::Call { .. }));
}

#[test]
fn what_was_refused_is_refused_again() {
    for (blocking, told, again) in [
        (true, Outcome::Failed(ECONNREFUSED), Outcome::Failed(ECONNREFUSED)),
        (false, Outcome::Failed(EINPROGRESS), Outcome::Refused),
    ] {
        let mut one = Caller::new(blocking);
        let image = one.clone();
        one.asks();
        one.hears(None, false);
        assert!(matches!(one.step(), Step::Call { .. }));
        one.dialed(Dialed::Failed(ECONNREFUSED));
        assert_eq!(one.step(), Step::Report { from: own().from, to: at(2, 80), made: false });
        assert_eq!(one.step(), Step::Over(told));
        assert_eq!(one.comes_back(&image).step(), Step::Over(again));
    }
}

/// The machine was declared dead, and runs all the same: an earlier incarnation of a process listens there.
#[test]
fn a_call_to_a_dead_machine_is_refused_and_not_made() {
    let dead = Found { machine: Machine::Dead, ..Found::default() };
    let refused = [(true, Outcome::Failed(ECONNREFUSED)), (false, Outcome::Refused)];
    for (blocking, told) in refused {
        let mut one = Caller::new(blocking);
        let image = one.clone();
        one.asks();
        one.finds(dead);
        assert_eq!(one.step(), Step::Report { from: own().from, to: at(2, 80), made: false });
        assert_eq!(one.step(), Step::Over(told));
        assert_eq!(one.comes_back(&image).step(), Step::Over(told));
    }
    // What is on its way back is waited for, and what is back is called where it is.
    let mut one = Caller::new(true);
    one.asks();
    one.finds(Found { later: true, ..dead });
    assert_eq!(one.step(), Step::Pause);
    one.is_asked();
    one.finds(Found { peer: Some(PEER), ..dead });
    one.dials(at(2, 80));

    // The machine is declared dead while it is called.
    for (blocking, told) in refused {
        let mut one = Caller::new(blocking);
        one.asks();
        one.hears(None, false);
        assert!(matches!(one.step(), Step::Call { .. }));
        one.dialed(Dialed::Made);
        one.is_asked();
        one.finds(dead);
        assert_eq!(one.step(), Step::GiveUp);
        one.asks();
        one.finds(dead);
        assert_eq!(one.step(), Step::Report { from: own().from, to: at(2, 80), made: false });
        assert_eq!(one.step(), Step::Over(told));
    }
}

/// The image stands in the midst of the call: what its socket comes to means nothing, and the log knows the outcome, or that there was none.
#[test]
fn a_call_that_was_interrupted_goes_back_to_its_log() {
    let mut one = Caller::new(true);
    one.asks();
    one.hears(Some(PEER), false);
    let Step::Wait(Wait::Stable(_)) =
        one.call.next(&mut Context { observer: &mut one.observer, now: one.now }, &one.links).expect("nothing contradicts")
    else {
        panic!("the gate is open")
    };
    let image = one.clone();
    // The outcome was lost with the process: the nodes are asked again where the other one is.
    let mut next = one.comes_back(&image);
    next.dialed(Dialed::Failed(EINVAL));
    next.asks();
    next.hears(Some(Peer { at: Some(at(9, 80)), ..PEER }), false);
    next.dials(at(9, 80));
    next.dialed(Dialed::Made);
    next.is_taken();
    // It was recorded: that is what it comes to.
    one.observer.handle_outcome(0, &Determinant::Connected { fd: FD }).expect("there is room");
    let mut next = one.comes_back(&image);
    let step = next.step();
    assert!(matches!(step, Step::Take(_, None)), "{step:?}");
    assert_eq!(next.step(), Step::Over(Outcome::Connected));
}

/// The process that was called may know the connection, and has closed its listener: it says what has become of that. Otherwise
/// the next connection would have its number.
#[test]
fn a_call_that_may_have_arrived_is_not_refused() {
    let mut one = Caller::new(true);
    let before = one.clone();
    one.asks();
    one.hears(Some(PEER), false);
    let image = one.clone();
    for image in [before, image] {
        let mut next = one.comes_back(&image);
        next.asks();
        next.hears(None, false);
        let Step::Take(slot, None) = next.step() else { panic!("it is refused") };
        assert_eq!(next.step(), Step::Over(Outcome::Connected));
        next.tell(|_, _, links| {
            assert!(!links.is_any_down(), "it has no link");
            Ok(())
        });
        let mut cx = Context { observer: &mut next.observer, now: next.now };
        next.links.handle_taken(&mut cx, slot);
        assert!(next.links.is_any_down() && next.observer.next_connection().number == 1);
    }
    // Of a call of this incarnation it knows nothing before it is greeted.
    one.dials(at(2, 80));
    one.dialed(Dialed::Failed(ECONNREFUSED));
    assert_eq!((one.step(), one.step()), (Step::GiveUp, Step::Pause));
    one.asks();
    one.hears(None, false);
    assert_eq!(one.step(), Step::Over(Outcome::Failed(ECONNREFUSED)));
}

/// A call that does not wait has made a connection: what is sent on it waits until the log says so, and the next incarnation
/// greets no peer as one that has received nothing.
#[test]
fn a_connection_of_a_call_that_does_not_wait_is_in_the_log_before_it_is_used() {
    let mut one = Caller::new(false);
    one.asks();
    one.hears(Some(PEER), false);
    one.dials(at(2, 80));
    let image = one.clone();
    one.dialed(Dialed::Made);
    one.is_taken();
    assert!(image.observer.journal().end() < one.observer.journal().end(), "the connection is an outcome");
    assert_eq!(one.observer.gate(), Some(one.observer.journal().end()));
    let mut next = one.comes_back(&image);
    let step = next.step();
    assert!(matches!(step, Step::Take(_, None)), "{step:?}");
    assert_eq!(next.step(), Step::Over(Outcome::Connected));
}

/// The backlog of the process that is called may be full: a program that does not wait is told at once that the call is under way, and again in replay.
#[test]
fn a_call_that_does_not_wait_is_left_under_way() {
    let mut one = Caller::new(false);
    one.asks();
    one.hears(Some(PEER), false);
    one.dials(at(2, 80));
    let image = one.clone();
    one.now += MOMENT;
    let slot = one.is_left();
    let connection = one.observer.table().get(slot).expect("it is there");
    assert!(connection.attempt().is_none() && connection.link() == crate::connection::Link::Down, "it was not greeted");
    let mut next = one.comes_back(&image);
    let step = next.step();
    assert!(matches!(step, Step::Take(_, None)), "{step:?}");
    assert_eq!(next.step(), Step::Over(Outcome::UnderWay));
}

#[test]
fn a_call_that_waits_is_left_under_way_when_its_time_is_over() {
    let mut one = Caller::new(true);
    let limit = one.now + LINK + LINK / 2;
    one.call = one.call.until(Some(limit));
    one.asks();
    one.hears(Some(PEER), false);
    one.dials(at(2, 80));
    one.now += LINK;
    one.dialed(Dialed::Open(None));
    assert_eq!((one.step(), one.step()), (Step::GiveUp, Step::Pause));
    one.asks();
    one.hears(Some(PEER), false);
    assert_eq!(one.step(), Step::Dial { at: at(2, 80), until: limit });
    one.now = limit;
    one.is_left();
}

/// What is under way may lead to an incarnation that is over.
#[test]
fn a_call_is_not_left_under_way_when_a_process_has_come_back() {
    for returns_before_the_call in [true, false] {
        let mut one = Caller::new(false);
        one.asks();
        one.hears(Some(PEER), false);
        if returns_before_the_call {
            one.one_returns();
        }
        one.dials(at(2, 80));
        if !returns_before_the_call {
            one.one_returns();
        }
        one.dialed(Dialed::Open(None));
        assert_eq!(one.step(), Step::GiveUp);
        one.reaches_its_peer();
    }
}

#[test]
fn a_table_without_room_refuses() {
    let mut one = Caller::new(true);
    for fd in [3, 4] {
        one.observer.connect(fd, process(1)).expect("there is room").expect("the gate is open");
    }
    assert_eq!(one.step(), Step::Over(Outcome::Failed(23)));
}
