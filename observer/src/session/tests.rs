use std::net::{IpAddr, Ipv4Addr};

use radic_wire::ids::{Incarnation, JobId, Rank};
use radic_wire::log::ImageRange;

use super::*;
use crate::{Config, Observer};

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

fn process(rank: u32) -> ProcessId {
    ProcessId { job: JobId::from_bits(7), rank: Rank(rank) }
}

struct Side {
    observer: Observer,
    session: Session,
    now: Duration,
}

impl Side {
    fn new(session: Session) -> Side {
        let config = Config { connections: 4, descriptors: 8, ..Config::default() };
        Side { observer: Observer::new(process(0), &config), session, now: Duration::from_secs(1) }
    }

    /// With a protector at port 1 that takes the log.
    fn up() -> Side {
        let mut side = Side::new(Session::new(at(1)));
        assert_eq!(side.tick(Duration::ZERO), [Action::LogIn(at(1))]);
        assert_eq!(side.logs_in(), [Action::Use { is_another: true }]);
        assert_eq!(side.is_welcomed(), []);
        side
    }

    fn drive<T>(&mut self, input: impl FnOnce(&mut Session, &mut Context<'_>) -> T) -> (T, Vec<Action>) {
        let value = input(&mut self.session, &mut Context { observer: &mut self.observer, now: self.now });
        (value, std::iter::from_fn(|| self.session.poll_action()).collect())
    }

    fn tick(&mut self, pause: Duration) -> Vec<Action> {
        self.now += pause;
        let (result, actions) = self.drive(Session::handle_timeout);
        result.expect("the limit is far");
        actions
    }

    fn logs_in(&mut self) -> Vec<Action> {
        self.drive(|session, cx| session.handle_logged_in(cx)).1
    }

    fn is_welcomed(&mut self) -> Vec<Action> {
        let welcome = FromProtector::Welcome { journal: self.observer.journal().end(), payload: 0, image: None };
        let (result, actions) = self.drive(|session, cx| session.handle_protector(cx, &welcome));
        result.expect("a welcome");
        assert!(self.session.is_up());
        actions
    }

    fn loses(&mut self) {
        assert_eq!(self.drive(|session, cx| session.handle_lost(cx)).1, []);
        assert!(!self.session.is_up());
    }

    fn hears_of(&mut self, port: u16) {
        assert_eq!(self.drive(|session, cx| session.handle_named(cx, at(port))).1, []);
    }
}

#[test]
fn a_lost_protector_is_tried_again_until_another_is_named() {
    let mut side = Side::up();
    side.loses();
    assert_eq!(side.tick(Duration::ZERO), [Action::LogIn(at(1))], "at once");
    side.drive(|session, cx| session.handle_login_failed(cx));
    assert_eq!(side.tick(Duration::ZERO), [], "then after a pause");
    side.hears_of(2);
    assert_eq!(side.tick(RETRY), [Action::LogIn(at(2))]);
    assert_eq!(side.logs_in(), [Action::Use { is_another: true }]);
    assert_eq!(side.is_welcomed(), []);
    assert_eq!(side.session.protector(), at(2));
}

#[test]
fn one_whose_connections_broke_is_no_other_one() {
    let mut side = Side::up();
    for _ in 0..2 {
        side.loses();
        side.tick(Duration::ZERO);
        assert_eq!(side.logs_in(), [Action::Use { is_another: false }]);
        assert_eq!(side.is_welcomed(), []);
    }
    // One that has welcomed nothing has not taken the log.
    side.hears_of(2);
    side.tick(Duration::ZERO);
    assert_eq!(side.logs_in(), [Action::Use { is_another: true }]);
    side.hears_of(1);
    side.tick(Duration::ZERO);
    assert_eq!(side.logs_in(), [Action::Use { is_another: false }]);
}

#[test]
fn one_that_does_not_answer_has_a_limit_and_so_has_the_whole() {
    let mut side = Side::up();
    side.loses();
    let lost = side.now;
    let result = loop {
        let due = side.session.poll_timeout().expect("it does not wait forever");
        side.now = side.now.max(due);
        // Neither the login nor the welcome is answered.
        match side.drive(Session::handle_timeout) {
            (Ok(()), actions) if actions == [Action::LogIn(at(1))] => _ = side.logs_in(),
            (result, _) => match result {
                Ok(()) => {}
                Err(failure) => break failure,
            },
        }
    };
    assert_eq!(result, Failure::OutOfReach { protector: at(1), limit: REPLACED });
    assert!(side.now - lost >= REPLACED && side.now - lost < REPLACED + 3 * LOGIN);
}

#[test]
fn a_named_protector_is_moved_to_while_the_old_one_is_in_use() {
    let mut side = Side::up();
    side.hears_of(2);
    assert!(side.session.is_up() && side.session.poll_timeout() == Some(Duration::ZERO));
    assert_eq!(side.tick(Duration::ZERO), [Action::LogIn(at(2))]);
    assert!(side.session.is_up() && side.session.protector() == at(1));
    // It is not there yet.
    side.drive(|session, cx| session.handle_login_failed(cx));
    assert!(side.session.is_up());
    assert_eq!(side.tick(Duration::ZERO), []);
    assert_eq!(side.tick(MOVE_AGAIN), [Action::LogIn(at(2))]);
    assert_eq!(side.logs_in(), [Action::Use { is_another: true }]);
    assert_eq!(side.is_welcomed(), []);
    assert_eq!((side.session.protector(), side.session.has_to_settle()), (at(2), false));
}

#[test]
fn the_last_that_was_named_is_the_one() {
    let mut side = Side::up();
    side.hears_of(2);
    side.tick(Duration::ZERO);
    // While the login there is under way.
    side.hears_of(3);
    assert_eq!(side.logs_in(), [], "that login is of no use any more");
    assert_eq!(side.tick(Duration::ZERO), [Action::LogIn(at(3))]);
    side.hears_of(1);
    assert_eq!(side.logs_in(), [], "that login is of no use any more");
    // It may have let this process go when another one was named.
    assert_eq!(side.tick(Duration::ZERO), [Action::LogIn(at(1))]);
    assert_eq!(side.logs_in(), [Action::Use { is_another: false }]);
    assert_eq!(side.is_welcomed(), []);
    side.hears_of(1);
    assert_eq!(side.tick(MOVE_AGAIN), [], "it stays where it is");
    // The current protector is lost in the middle of a move.
    side.hears_of(4);
    side.tick(Duration::ZERO);
    side.loses();
    assert_eq!(side.tick(Duration::ZERO), [Action::LogIn(at(4))]);
}

#[test]
fn one_that_welcomes_nothing_is_left_for_the_one_that_is_named() {
    let mut side = Side::up();
    side.loses();
    side.tick(Duration::ZERO);
    side.logs_in();
    assert!(side.session.is_greeting());
    side.hears_of(2);
    assert_eq!(side.tick(Duration::ZERO), [Action::LogIn(at(2))]);
}

#[test]
fn a_process_that_reads_its_log_stays_with_the_protector_that_has_it() {
    let images = ImageRange::default();
    let mut side = Side::new(Session::restarted(at(1), 0));
    side.observer.restart(Incarnation::restarted(1), 0, Vec::new(), images, (0, &[]), 64).expect("it begins");
    assert_eq!(side.tick(Duration::ZERO), [Action::LogIn(at(1))]);
    side.logs_in();
    side.hears_of(2);
    assert!(side.session.is_greeting(), "no other one has the log");
    assert_eq!(side.is_welcomed(), []);
    let ((), actions) = side.drive(|session, cx| session.look_at_log(cx));
    assert_eq!(actions, [Action::Live { events: 0 }, Action::Say(ToProtector::Live)]);
    let ((), actions) = side.drive(|session, cx| session.look_at_log(cx));
    assert_eq!(actions, [], "it is told once");
    let actions = side.tick(Duration::ZERO);
    assert_eq!(actions, [Action::Tell(ToNode::LogRead), Action::Checkpoint, Action::LogIn(at(2))]);
}

#[test]
fn a_process_that_ends_says_so_and_waits_until_all_is_safe() {
    let mut side = Side::up();
    let (may_end, _) = side.drive(|session, cx| session.may_end(cx));
    assert!(!may_end, "it runs");
    let ((), actions) = side.drive(|session, cx| session.handle_leaving(cx.now, None));
    assert_eq!(actions, [Action::Say(ToProtector::Closing)]);
    // Something that it has sent is not safe.
    let slot = side.observer.connect(3, process(1)).expect("there is room").expect("the gate is open");
    let stream = side.observer.table().get(slot).expect("it is open").stream_out();
    side.observer.send(0, 3, b"abc", 0, true).expect("it is taken");
    let (may_end, actions) = side.drive(|session, cx| session.may_end(cx));
    let ask = Action::Tell(ToNode::AskStable { stream, receiver: process(1) });
    assert_eq!((may_end, actions), (false, vec![Action::Tell(ToNode::Closing), ask.clone()]));
    side.now += Duration::from_secs(1);
    assert_eq!(side.drive(|session, cx| session.may_end(cx)), (false, vec![]), "it has asked");
    let (result, _) = side.drive(|session, cx| session.handle_stable(cx, stream, 1));
    result.expect("so much was sent");
    side.now += Duration::from_secs(1);
    assert_eq!(side.drive(|session, cx| session.may_end(cx)), (false, vec![ask]));
    let (result, _) = side.drive(|session, cx| session.handle_stable(cx, stream, 3));
    result.expect("so much was sent");
    assert_eq!(side.drive(|session, cx| session.may_end(cx)), (true, vec![]));
    // Another protector has not heard it.
    side.loses();
    side.tick(Duration::ZERO);
    side.logs_in();
    assert_eq!(side.is_welcomed(), [Action::Say(ToProtector::Closing)]);
}
