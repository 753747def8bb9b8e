use radic_wire::ids::{JobId, ProcessId, Rank};
use radic_wire::log::{FromProtector, ImageRange};

use super::*;
use crate::{Config, Observer};

const FD: u32 = 5;
const EACCES: u32 = 13;

fn here() -> SocketAddr {
    ([10, 0, 0, 1], 80).into()
}

/// A process with a `bind` under way.
#[derive(Clone)]
struct Side {
    observer: Observer,
    now: Duration,
    bind: Bind,
}

impl Side {
    fn new(bind: Bind) -> Side {
        let me = ProcessId { job: JobId::from_bits(7), rank: Rank(0) };
        let config = Config { connections: 2, descriptors: 16, ..Config::default() };
        Side { observer: Observer::new(me, &config), now: Duration::from_secs(1), bind }
    }

    fn step(&mut self) -> Step {
        self.bind.next(&mut Context { observer: &mut self.observer, now: self.now }).expect("nothing contradicts")
    }

    fn tell(&mut self, input: impl FnOnce(&mut Bind, &mut Context<'_>) -> Result<(), Error>) {
        input(&mut self.bind, &mut Context { observer: &mut self.observer, now: self.now }).expect("nothing contradicts");
    }

    fn is_bound(&mut self) {
        assert_eq!(self.step(), Step::Bind);
        self.tell(|bind, cx| bind.handle_bound(cx, Ok(here())));
        assert_eq!((self.step(), self.step()), (Step::Claim(here()), Step::Claim(here())), "the node has not answered");
    }

    fn is_answered(&mut self, is_taken: bool, later: bool) {
        self.tell(|bind, cx| bind.handle_claimed(cx, is_taken, later));
    }

    /// This one is brought back from `image`, with all of its log. Nothing of that has been shipped.
    fn comes_back(&self, image: &Side) -> Side {
        let mut next = image.clone();
        let end = self.observer.journal().end();
        let log = self.observer.clone().poll_journal().map(|ship| [ship.head, ship.tail].concat()).unwrap_or_default();
        let (incarnation, images) = (Incarnation::restarted(1), ImageRange::default());
        next.observer.restart(incarnation, end, Vec::new(), images, (0, &[]), 64).expect("it restarts");
        next.observer.handle_protector(&FromProtector::Journal { position: 0, bytes: &log }).expect("the log is right");
        next
    }
}

#[test]
fn an_address_of_no_other_process_is_the_program_s() {
    let mut one = Side::new(Bind::new(0, FD));
    one.is_bound();
    one.is_answered(false, false);
    assert_eq!((one.step(), one.step()), (Step::Over(Ok(here())), Step::Over(Ok(here()))));
}

#[test]
fn what_has_come_of_it_is_told_again_after_a_restart() {
    let image = Side::new(Bind::new(0, FD));
    let mut bound = image.clone();
    bound.is_bound();
    bound.is_answered(false, false);
    let mut again = bound.comes_back(&image);
    assert_eq!((again.step(), again.step()), (Step::Again(here()), Step::Over(Ok(here()))));

    let mut taken = image.clone();
    taken.is_bound();
    taken.is_answered(true, false);
    assert_eq!((taken.step(), taken.step()), (Step::GiveBack, Step::GiveBack), "it is not given back yet");
    taken.tell(|bind, cx| bind.handle_given_back(cx, Ok(())));
    assert_eq!(taken.step(), Step::Over(Err(EADDRINUSE)));
    assert_eq!(taken.comes_back(&image).step(), Step::Over(Err(EADDRINUSE)), "no socket is bound again");

    let mut refused = image.clone();
    assert_eq!(refused.step(), Step::Bind);
    refused.tell(|bind, cx| bind.handle_bound(cx, Err(EACCES)));
    assert_eq!(refused.step(), Step::Over(Err(EACCES)));
    assert_eq!(refused.comes_back(&image).step(), Step::Over(Err(EACCES)));
}

#[test]
fn a_process_that_is_lost_is_waited_for_but_not_for_ever() {
    let mut one = Side::new(Bind::new(0, FD));
    one.is_bound();
    for _ in 0..3 {
        one.is_answered(false, true);
        assert_eq!((one.step(), one.step()), (Step::Pause, Step::Claim(here())));
        one.now += RETURN / 3;
    }
    one.is_answered(false, true);
    assert_eq!(one.step(), Step::Over(Ok(here())), "it is not coming back");
}

/// The socket of its image has no address, and the log of the process that was lost may say what it has got.
#[test]
fn a_process_that_is_brought_back_in_its_midst_asks_its_log() {
    let mut image = Side::new(Bind::new(0, FD));
    image.is_bound();
    image.is_answered(false, true);
    assert_eq!(image.step(), Step::Pause);
    let mut bound = image.clone();
    bound.is_answered(false, false);
    let mut again = bound.comes_back(&image);
    assert_eq!((again.step(), again.step()), (Step::Again(here()), Step::Over(Ok(here()))));

    let mut unknown = image.comes_back(&image);
    unknown.is_answered(true, false);
    unknown.is_bound();
    unknown.is_answered(false, false);
    assert_eq!(unknown.step(), Step::Over(Ok(here())), "an answer to the process before it says nothing");
}

#[test]
fn a_socket_that_listens_and_was_not_bound_keeps_what_the_system_has_chosen() {
    let image = Side::new(Bind::chosen(0, FD, here()));
    let mut one = image.clone();
    assert_eq!(one.step(), Step::Over(Ok(here())), "no other process is called by it");
    let mut again = one.comes_back(&image);
    again.bind = Bind::chosen(0, FD, ([10, 0, 0, 2], 81).into());
    assert_eq!(again.step(), Step::Over(Ok(here())), "the program sees what it saw");
}

#[test]
#[should_panic(expected = "no address is claimed")]
fn an_answer_is_to_a_question() {
    Side::new(Bind::new(0, FD)).is_answered(false, false);
}
