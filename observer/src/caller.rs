//! A caller that the system has let in at a listener of the program: whether its other end is protected, and what becomes of
//! it. A value without sockets and clocks: the driver does what [`Caller::next`] says, tells what came of it (`handle_*`), and
//! asks again.
//!
//! - *Which process calls.* The node knows it by the caller's address.
//! - *No protected process.* The connection is the program's at once. One that was given up before it was accepted is nobody's:
//!   on other systems no program sees it.
//! - *A protected process.* Its greeting says which incarnation calls, and whether it is the process that the node has named. A
//!   caller that greets at once is offered to the program. One that does not is one among those at the door: its program makes
//!   no call just now, and its `connect` has not waited. Any other is closed: it is gone already, or calls once more.
//!
//! A caller that waits at a listener which the program closes is reset ([`Refusal`]). To its program the connection was made. To
//! its library a reset says that the link has broken. So it comes to the door, where its connection is refused
//! ([`Observer::refuse_callers`]).

use std::time::Duration;

use radic_wire::determinant::ConnectionId;
use radic_wire::log::Greeting;
#[cfg(doc)]
use radic_wire::process::ToNode;

#[cfg(doc)]
use crate::links::Links;
use crate::{Error, Observer};

/// Time for the greeting of a caller: a `connect` that waits writes it at once.
const GREETING: Duration = Duration::from_millis(50);

/// How far a caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The system has let it in.
    LetIn,
    /// Its node has named this connection.
    Named(ConnectionId),
    /// It is known what becomes of it.
    Settled(Step),
}

/// What is to be done next with a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Ask the node by [`ToNode::Accepted`] which process calls: [`Caller::handle_named`].
    Ask,
    /// Read the greeting, which may take so long at most: [`Caller::handle_heard`].
    Hear(ConnectionId, Duration),
    /// The connection is the program's, and is not protected.
    GiveAway,
    /// The caller is dealt with: say so to the node by [`ToNode::Greeted`]. The observer offers the connection, and the socket is its link.
    Offer,
    /// The socket is one among those at the door: [`Links::handle_visitor`].
    Expect,
    /// Close the socket.
    Close(Cause),
}

/// Why a caller is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The caller has given it up, calls once more, or belongs to what is over.
    #[error("its caller has given it up")]
    GivenUp,
    /// Another process greets than the node has named.
    #[error("its greeting is from another process than its call")]
    AnotherProcess,
    /// Something else came than a greeting, or nothing can come any more.
    #[error("no greeting on it")]
    NoGreeting,
}

impl Cause {
    /// Whether it is none of what honest callers do, and is noted.
    pub fn is_strange(self) -> bool {
        self != Cause::GivenUp
    }
}

/// What was heard of a caller that its node has named.
#[derive(Debug, Clone, Copy)]
pub enum Heard<'a> {
    /// Its greeting.
    Greeting(&'a Greeting),
    /// Nothing in the time that it has.
    Nothing,
    /// The connection was reset, or ended.
    Reset,
    /// Something else, or the socket failed.
    Noise,
}

/// See the module's text.
#[derive(Debug)]
pub struct Caller {
    stage: Stage,
}

impl Default for Caller {
    fn default() -> Self {
        Caller::new()
    }
}

impl Caller {
    /// The system has let it in.
    pub fn new() -> Self {
        Caller { stage: Stage::LetIn }
    }

    /// Whether an `accept` takes callers from the system now. What the log has comes first, and so does what is offered at this listener already.
    pub fn is_wanted(observer: &Observer, is_offered: bool) -> bool {
        !observer.is_replaying() && !is_offered
    }

    /// What is to be done next. When it is known what becomes of the caller, that is said again and again.
    pub fn next(&self) -> Step {
        match self.stage {
            Stage::LetIn => Step::Ask,
            Stage::Named(connection) => Step::Hear(connection, GREETING),
            Stage::Settled(step) => step,
        }
    }

    /// The node has said which protected process calls, if one does. Whether the connection was reset already is looked at only if none does.
    ///
    /// # Panics
    /// If this was not asked.
    pub fn handle_named(&mut self, caller: Option<ConnectionId>, is_reset: impl FnOnce() -> bool) {
        assert_eq!(self.stage, Stage::LetIn, "the node is asked once which process calls");
        self.stage = match caller {
            Some(connection) => Stage::Named(connection),
            None if is_reset() => Stage::Settled(Step::Close(Cause::GivenUp)),
            None => Stage::Settled(Step::GiveAway),
        };
    }

    /// What was heard on the socket.
    ///
    /// # Panics
    /// If the node has not named the caller, or this is known.
    pub fn handle_heard(&mut self, observer: &mut Observer, heard: Heard<'_>) -> Result<(), Error> {
        let Stage::Named(named) = self.stage else { panic!("a caller is heard once, when it is named: {:?}", self.stage) };
        let step = match heard {
            Heard::Greeting(greeting) if observer.handle_first_greeting(named, greeting)? => Step::Offer,
            Heard::Greeting(greeting) if greeting.connection.opener == named.opener => Step::Close(Cause::GivenUp),
            Heard::Greeting(_) => Step::Close(Cause::AnotherProcess),
            Heard::Nothing => Step::Expect,
            Heard::Reset => Step::Close(Cause::GivenUp),
            Heard::Noise => Step::Close(Cause::NoGreeting),
        };
        self.stage = Stage::Settled(step);
        Ok(())
    }
}

/// What is to be done next with a caller that is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refuse {
    /// Ask the node by [`ToNode::Accepted`] which process calls: [`Refusal::handle_named`].
    Ask,
    /// The caller is dealt with: say so to the node by [`ToNode::Greeted`].
    SendOff,
    /// End the connection by a reset, as the system does it with those that no process has accepted.
    Reset,
}

/// How far a refusal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// The system has let the caller in.
    LetIn,
    /// Its node has named its connection.
    Named,
    /// The connection is to end.
    Over,
}

/// A caller that has waited at a listener of the program until that was closed. See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    stage: Refused,
}

impl Refusal {
    /// The system has let the caller in. `is_over`: the connection is over already. Its caller has given it up, and comes once more.
    pub fn new(is_over: bool) -> Self {
        Refusal { stage: if is_over { Refused::Over } else { Refused::LetIn } }
    }

    /// What is to be done next. The question and the reset are said again and again, the word to the node once.
    pub fn next_step(&mut self) -> Refuse {
        match self.stage {
            Refused::LetIn => Refuse::Ask,
            Refused::Named => {
                self.stage = Refused::Over;
                Refuse::SendOff
            }
            Refused::Over => Refuse::Reset,
        }
    }

    /// The node has said which protected process calls, if one does. Of a connection with any other the node need not hear.
    ///
    /// # Panics
    /// If this was not asked.
    pub fn handle_named(&mut self, caller: Option<ConnectionId>) {
        assert_eq!(self.stage, Refused::LetIn, "the node is asked once which process calls");
        self.stage = if caller.is_some() { Refused::Named } else { Refused::Over };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use radic_wire::ids::{Incarnation, JobId, ProcessId, Rank};

    use super::*;
    use crate::Config;

    fn process(rank: u32) -> ProcessId {
        ProcessId { job: JobId::from_bits(7), rank: Rank(rank) }
    }

    fn connection(opener: u32, number: u64) -> ConnectionId {
        ConnectionId { opener: process(opener), number }
    }

    fn greeting(opener: u32, number: u64) -> Greeting {
        let (process, connection, incarnation) = (process(opener), connection(opener, number), Incarnation::FIRST);
        let (attempt, received, stable, kept) = (0, 0, 0, 0);
        Greeting { process, incarnation, connection, attempt, received, stable, kept, finish: None, settled: true, ends: None }
    }

    fn observer() -> Observer {
        Observer::new(process(0), &Config { connections: 2, descriptors: 16, ..Config::default() })
    }

    /// A caller that its node has named, and what becomes of it when this is heard.
    fn hears(observer: &mut Observer, named: ConnectionId, heard: Heard<'_>) -> Step {
        let mut caller = Caller::new();
        assert_eq!(caller.next(), Step::Ask);
        caller.handle_named(Some(named), || panic!("it is named: whether it is reset the greeting says"));
        assert_eq!(caller.next(), Step::Hear(named, GREETING));
        caller.handle_heard(observer, heard).expect("nothing contradicts");
        caller.next()
    }

    #[test]
    fn a_caller_that_no_node_knows_is_the_program_s_unless_it_is_gone() {
        for (is_reset, step) in [(false, Step::GiveAway), (true, Step::Close(Cause::GivenUp))] {
            let looks = Cell::new(0);
            let mut caller = Caller::new();
            caller.handle_named(None, || {
                looks.set(looks.get() + 1);
                is_reset
            });
            assert_eq!((caller.next(), looks.get()), (step, 1));
        }
    }

    #[test]
    fn a_caller_that_greets_is_offered_and_only_once() {
        let mut observer = observer();
        let first = greeting(1, 1);
        assert_eq!(hears(&mut observer, connection(1, 1), Heard::Greeting(&first)), Step::Offer);
        assert!(observer.table().iter().any(|(_, connection)| connection.is_offered()));
        // It has called once more, and its first call is read after that.
        assert_eq!(hears(&mut observer, connection(1, 1), Heard::Greeting(&first)), Step::Close(Cause::GivenUp));
    }

    /// Two threads of one process have called at once: only the greeting says which connection this is.
    #[test]
    fn a_greeting_may_be_of_another_connection_but_not_of_another_process() {
        let mut observer = observer();
        assert_eq!(hears(&mut observer, connection(1, 1), Heard::Greeting(&greeting(1, 2))), Step::Offer);
        let step = hears(&mut observer, connection(1, 1), Heard::Greeting(&greeting(2, 1)));
        assert_eq!(step, Step::Close(Cause::AnotherProcess));
        assert!(Cause::AnotherProcess.is_strange());
    }

    #[test]
    fn a_caller_that_says_nothing_is_expected_and_one_that_is_gone_is_closed() {
        let mut observer = observer();
        for (heard, step) in [
            (Heard::Nothing, Step::Expect),
            (Heard::Reset, Step::Close(Cause::GivenUp)),
            (Heard::Noise, Step::Close(Cause::NoGreeting)),
        ] {
            assert_eq!(hears(&mut observer, connection(1, 1), heard), step);
        }
        assert!(!Cause::GivenUp.is_strange() && Cause::NoGreeting.is_strange());
        assert_eq!(observer.table().iter().count(), 0, "nothing is offered");
    }

    #[test]
    fn callers_wait_while_one_is_offered() {
        let observer = observer();
        assert!(Caller::is_wanted(&observer, false) && !Caller::is_wanted(&observer, true));
    }

    #[test]
    #[should_panic(expected = "a caller is heard once, when it is named")]
    fn a_caller_is_not_heard_before_it_is_named() {
        _ = Caller::new().handle_heard(&mut observer(), Heard::Nothing);
    }

    #[test]
    #[should_panic(expected = "the node is asked once")]
    fn a_caller_is_named_once() {
        let mut caller = Caller::new();
        caller.handle_named(Some(connection(1, 1)), || false);
        caller.handle_named(None, || false);
    }

    #[test]
    fn a_caller_that_is_refused_is_sent_off() {
        let mut refusal = Refusal::new(false);
        assert_eq!((refusal.next_step(), refusal.next_step()), (Refuse::Ask, Refuse::Ask), "its node has not answered");
        refusal.handle_named(Some(connection(1, 4)));
        assert_eq!(refusal.next_step(), Refuse::SendOff);
        assert_eq!((refusal.next_step(), refusal.next_step()), (Refuse::Reset, Refuse::Reset));
    }

    #[test]
    fn of_a_caller_that_is_unprotected_or_gone_no_node_hears() {
        assert_eq!(Refusal::new(true).next_step(), Refuse::Reset, "its node is not asked: the caller comes once more");
        let mut refusal = Refusal::new(false);
        refusal.handle_named(None);
        assert_eq!(refusal.next_step(), Refuse::Reset);
    }

    #[test]
    #[should_panic(expected = "the node is asked once")]
    fn a_caller_that_is_gone_is_not_named() {
        Refusal::new(true).handle_named(Some(connection(1, 1)));
    }
}
