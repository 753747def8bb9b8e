//! A `connect` of the program: which process listens at its address, the connection with that process, and the greeting. A value
//! without sockets and clocks: the caller asks what is to be done ([`Connect::next`]), does it, tells what came of it
//! (`handle_*`), and asks again.
//!
//! - *Which process listens.* The log of an earlier incarnation says it, or the nodes do. The socket is bound before they are
//!   asked: the node of the process that listens knows the caller by its address, and tells its process which one has called.
//! - *A protected process.* It is called where it is now. While it is lost and on its way back, it is asked for and called again.
//!   The backlog of a process that listens may be full. A call that does not wait, or has waited for as long as its program
//!   wants, is left under way then: the connection is in the table, and [`Links`] greets when it is there.
//! - *A dead machine.* Where a machine was declared dead no call is made: it may run all the same, and an earlier incarnation of a
//!   process with it, which would take the call. The call is refused, as it is where no process listens (any more, or yet).
//! - *No protected process.* The program's own connection is made. Then the nodes are asked again: a protected process may have
//!   begun to listen meanwhile. The node of that process has not forgotten the first question, and does not take this caller for
//!   an unprotected one. If a call to a machine of the cluster is still under way then, it is made again, for [`RETURN`] at most:
//!   a process may begin to listen there before it arrives.
//!
//! All are outcomes: [`Determinant::Target`] as soon as the process is known, then what the call has come to. A process that is
//! brought back in the midst of a call asks its log again.

use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::address::canonical;
use radic_wire::determinant::{Call, Determinant};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::log::Greeting;
use radic_wire::process::Machine;
#[cfg(doc)]
use radic_wire::process::ToNode;

use crate::connection::Slot;
use crate::found::{Found, Peer};
use crate::links::Links;
use crate::replay::Ask;
use crate::{Address, Context, Error, Ready, Wait};

#[cfg(test)]
mod tests;

/// Time that a process may take to be brought back before it is taken for an unprotected one.
pub const RETURN: Duration = Duration::from_secs(60);
/// Time until a question to the node is asked again. The process looks after everything meanwhile: one that comes back may need what this one has sent.
pub const PAUSE: Duration = Duration::from_millis(20);
/// Time that a connection with a protected process may take to be made. The kernel would try for minutes, but a machine that says
/// nothing may be dead, and the process elsewhere.
const LINK: Duration = Duration::from_secs(1);
/// Time that a connection of a call that does not wait may take: then it is left under way. Long enough for the answer of a
/// machine nearby.
const MOMENT: Duration = Duration::from_millis(20);
/// How often a process is called that listens and does not answer: the node learns in milliseconds that one has died, in a second or two that a machine has.
const CALLS: u32 = 100;

/// Numbers of `errno`.
const EINVAL: u32 = 22;
const ECONNRESET: u32 = 104;
const ENETUNREACH: u32 = 101;
const ETIMEDOUT: u32 = 110;
const ECONNREFUSED: u32 = 111;
const EHOSTUNREACH: u32 = 113;
const EINPROGRESS: u32 = 115;

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Wait for this.
    Wait(Wait),
    /// Give the socket the address that the kernel would give it, if it has none: [`Connect::handle_bound`].
    Bind,
    /// Ask the node by [`ToNode::Connecting`] with the connection that would be the next one: [`Connect::handle_found`].
    Ask {
        /// The socket's own address, as others see it.
        from: SocketAddr,
        /// The address that is called.
        to: SocketAddr,
    },
    /// Look after everything for a moment: a process that is on its way back may need what this one has sent.
    Pause,
    /// Connect the socket to a protected process, for so long at most, and whatever signals come: [`Connect::handle_dialed`].
    Dial {
        /// Where the process is now.
        at: SocketAddr,
        /// When it has taken too long.
        until: Duration,
    },
    /// Make the program's own connection. None: for as long as the program waits, or until a signal comes:
    /// [`Connect::handle_dialed`]. An error that the socket keeps for the program stays there.
    Call {
        /// Where to.
        to: SocketAddr,
        /// When it is left as it is.
        until: Option<Duration>,
    },
    /// What the socket has under way, or has got, goes nowhere: the socket is as before.
    GiveUp,
    /// Say to the node what came of the call: [`ToNode::CallsNobody`].
    Report {
        /// The socket's own address, as others see it.
        from: SocketAddr,
        /// The address that was called.
        to: SocketAddr,
        /// There is a connection, or may be one.
        made: bool,
    },
    /// The descriptor is this protected connection from now on. The socket is its link, and this greeting is written to it first.
    /// None: an earlier incarnation has made it, and it has no link yet: [`Links::handle_taken`].
    Take(Slot, Option<Greeting>),
    /// The descriptor is this protected connection from now on, and its socket is under way still: [`Links::handle_under_way`].
    Leave(Slot),
    /// The call is over.
    Over(Outcome),
}

/// What a call has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// There is a connection with a protected process. To a program that does not wait it looks as it always does: under way, and writable at once.
    Connected,
    /// There is one, and it is under way (EINPROGRESS).
    UnderWay,
    /// The call failed with this `errno`.
    Failed(u32),
    /// A call that does not wait is refused, and not made: programs read the error off the socket, which needs to be refused elsewhere. In replay
    /// a process may listen there by now.
    Refused,
    /// There is, or may be, a connection that is not protected, and this is the `errno` of the call, or 0. None: in replay; the program's call is made again.
    Unprotected(Option<u32>),
}

/// What has come of a socket that was connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialed {
    /// The socket is connected.
    Made,
    /// The socket is not connected, and this `errno` is why.
    Failed(u32),
    /// The call is under way still; the `errno` that has ended the wait, if it was not the time.
    Open(Option<u32>),
}

/// The addresses of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// The local address, as the program is told it.
    pub local: SocketAddr,
    /// The local address, as others see it.
    pub from: SocketAddr,
}

/// How far a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The log is asked which process listened; if it does not know, the nodes are.
    Begun,
    /// The socket gets its address.
    Binding,
    /// The nodes are asked which process listens.
    Finding(Own),
    /// The nodes are to be asked again in a moment.
    Resting(Own),
    /// None listens; the program's own connection is to be made.
    Unprotected(Own),
    /// The program's own connection is being made; this many processes had come back by then.
    Calling { own: Own, returned: u64 },
    /// The connection is made, or is under way for long (`is_open`); the nodes are asked again. This is the call's `errno` if
    /// they say the same.
    Verifying { own: Own, returned: u64, errno: u32, is_open: bool },
    /// A protected process has begun to listen meanwhile, or may have: the connection is given up.
    Withdrawing,
    /// The node is to be told what came of it.
    Reporting { own: Own, unprotected: Unprotected },
    /// The node was told.
    Reported { own: Own, unprotected: Unprotected },
    /// The process is known, an outcome; the log is asked what came of the call.
    Known,
    /// The process is to be called.
    Ready,
    /// The process is being called; this many processes had come back by then.
    Dialing { returned: u64 },
    /// The call has led nowhere.
    Missed { rests: bool },
    /// A moment is to pass before the next call.
    Breathing,
    /// The connection is there, and is to be greeted.
    Linked,
    /// The call is under way, and is left so.
    UnderWay,
    /// The descriptor is the connection that is under way; that is to be recorded.
    Left,
    /// In replay: there was a connection, and the call came to this.
    Again(Outcome),
    /// There may be a connection, of which the log does not say.
    Claimed,
    /// The descriptor is the connection; what has come of the call is to be recorded.
    Taken,
    /// The call has come to this.
    Over(Outcome),
}

/// What has come of a call that no protected process takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unprotected {
    /// There is a connection, or may be one, and the call has this `errno`, or 0.
    Made(u32),
    /// The kernel has failed the call with this `errno`.
    Failed(u32),
    /// The call was not made: its machine is dead.
    Withheld,
}

/// See the module's text.
#[derive(Debug, Clone, PartialEq)]
pub struct Connect {
    thread: u32,
    fd: u32,
    to: SocketAddr,
    blocking: bool,
    /// The incarnation that goes on with it.
    incarnation: Option<Incarnation>,
    /// The socket's own address as the program is told it, and the process that listens, once both are recorded.
    target: Option<(SocketAddr, Peer)>,
    /// An earlier incarnation may have greeted the process, which knows the connection then.
    may_be_known: bool,
    /// The nodes have said to this incarnation where the process is.
    is_placed: bool,
    /// This many processes had come back when the nodes were asked last. What they answer may be of before any that comes back later.
    asked: u64,
    /// A call that waits is left under way then.
    until: Option<Duration>,
    /// How often it was called.
    calls: u32,
    /// Since when it is looked for.
    since: Option<Duration>,
    stage: Stage,
}

impl Connect {
    /// `thread` connects `fd`.
    pub fn new(thread: u32, fd: u32, to: SocketAddr, blocking: bool) -> Connect {
        Connect {
            thread,
            fd,
            to,
            blocking,
            incarnation: None,
            target: None,
            may_be_known: false,
            is_placed: false,
            asked: 0,
            until: None,
            calls: 0,
            since: None,
            stage: Stage::Begun,
        }
    }

    /// The program's limit for a call that waits (SO_SNDTIMEO).
    pub fn until(self, until: Option<Duration>) -> Connect {
        Connect { until, ..self }
    }

    /// The process that is called, once that is known, and the socket's own address as the program is told it.
    pub fn target(&self) -> Option<(SocketAddr, ProcessId)> {
        self.target.map(|(local, peer)| (local, peer.process))
    }

    /// What is to be done now.
    pub fn next(&mut self, cx: &mut Context<'_>, links: &Links) -> Result<Step, Error> {
        self.look_for_restart(cx);
        loop {
            if let Some(step) = self.go_on(cx, links)? {
                return Ok(step);
            }
        }
    }

    /// Whether the process was brought back since. What a socket of its image has come to means nothing, and its log may know the outcome of the call.
    fn look_for_restart(&mut self, cx: &Context<'_>) -> bool {
        let incarnation = cx.observer.incarnation();
        let is_restarted = self.incarnation.replace(incarnation).is_some_and(|before| before != incarnation);
        if is_restarted && !matches!(self.stage, Stage::Over(_)) {
            self.stage = if self.target.is_some() { Stage::Known } else { Stage::Begun };
            self.may_be_known = self.target.is_some();
            (self.is_placed, self.since) = (false, None);
        }
        is_restarted
    }

    /// None: the next stage says it.
    fn go_on(&mut self, cx: &mut Context<'_>, links: &Links) -> Result<Option<Step>, Error> {
        let (stage, returned) = (self.stage, links.returned());
        let to = self.to;
        Ok(match stage {
            Stage::Begun => self.consult(cx)?.map(Step::Wait),
            Stage::Binding => Some(Step::Bind),
            Stage::Finding(own) | Stage::Verifying { own, .. } => {
                self.asked = returned;
                Some(Step::Ask { from: canonical(own.from), to: canonical(to) })
            }
            Stage::Resting(own) => self.then(Stage::Finding(own), Step::Pause),
            Stage::Unprotected(own) => match gate(cx) {
                // What the nodes have said is old by then, and they may have died since, with what they knew of this call.
                Some(wait) => self.then(Stage::Finding(own), wait),
                None => {
                    let until = (!self.blocking).then(|| cx.now + if is_here(own, to) { MOMENT } else { LINK });
                    self.then(Stage::Calling { own, returned }, Step::Call { to, until })
                }
            },
            Stage::Withdrawing => self.then(Stage::Begun, Step::GiveUp),
            Stage::Reporting { own, unprotected } => {
                let made = matches!(unprotected, Unprotected::Made(_));
                let report = Step::Report { from: canonical(own.from), to: canonical(to), made };
                self.then(Stage::Reported { own, unprotected }, report)
            }
            Stage::Reported { own, unprotected } => self.record_unprotected(cx, own, unprotected)?,
            Stage::Known => self.consult_outcome(cx)?.map(Step::Wait),
            Stage::Ready => match gate(cx) {
                Some(wait) => Some(wait),
                None => self.dial(cx, returned)?,
            },
            Stage::Missed { rests } => self.then(if rests { Stage::Breathing } else { Stage::Binding }, Step::GiveUp),
            Stage::Breathing => self.then(Stage::Binding, Step::Pause),
            // Another thread may have learnt something since the call began.
            Stage::Linked => match gate(cx) {
                Some(wait) => Some(wait),
                None => self.take(cx)?,
            },
            // A process has come back since the nodes were asked where the peer is. It may be the peer, and no message will say so
            // again: ask again.
            Stage::UnderWay if self.asked != returned => self.enter(Stage::Missed { rests: false }),
            Stage::UnderWay => match gate(cx) {
                Some(wait) => Some(wait),
                None => self.leave(cx)?,
            },
            Stage::Left => {
                cx.observer.handle_failed(self.thread, self.fd, Call::Connect, EINPROGRESS)?;
                self.enter(Stage::Over(Outcome::UnderWay))
            }
            Stage::Again(outcome) => self.take_again(cx, Stage::Over(outcome))?,
            Stage::Claimed => self.take_again(cx, Stage::Taken)?,
            Stage::Taken => self.record_connected(cx)?,
            Stage::Over(outcome) => Some(Step::Over(outcome)),
            Stage::Calling { .. } | Stage::Dialing { .. } => unreachable!("what came of the last step is to be told first"),
        })
    }

    fn then(&mut self, stage: Stage, step: Step) -> Option<Step> {
        self.stage = stage;
        Some(step)
    }

    /// Goes on at the next stage.
    fn enter<T>(&mut self, stage: Stage) -> Option<T> {
        self.stage = stage;
        None
    }

    // ---- what the log says

    fn consult(&mut self, cx: &mut Context<'_>) -> Result<Option<Wait>, Error> {
        Ok(match cx.observer.address(self.thread, Ask::Target { fd: self.fd })? {
            Address::Wait(wait) => Some(wait),
            Address::Live => match cx.observer.refuse_connection(self.thread, self.fd, Call::Connect)? {
                Some(errno) => self.enter(Stage::Over(Outcome::Failed(errno))),
                None => self.enter(Stage::Binding),
            },
            Address::Again(local, Some(process)) => {
                (self.target, self.may_be_known) = (Some((local, Peer { process, at: None })), true);
                self.enter(Stage::Known)
            }
            Address::Again(_, None) => self.enter(Stage::Over(Outcome::Unprotected(None))),
            Address::Failed(ECONNREFUSED) if !self.blocking => self.enter(Stage::Over(Outcome::Refused)),
            Address::Failed(errno) => self.enter(Stage::Over(Outcome::Failed(errno))),
        })
    }

    fn consult_outcome(&mut self, cx: &mut Context<'_>) -> Result<Option<Wait>, Error> {
        self.calls = 0;
        Ok(match cx.observer.ask(self.thread, Ask::Connect { fd: self.fd }, true)? {
            Ready::Wait(wait) => Some(wait),
            Ready::Live => self.enter(if self.is_placed { Stage::Ready } else { Stage::Binding }),
            Ready::Outcome(0) => self.enter(Stage::Again(Outcome::Connected)),
            Ready::Outcome(EINPROGRESS) => self.enter(Stage::Again(Outcome::UnderWay)),
            Ready::Outcome(errno) => self.enter(Stage::Over(Outcome::Failed(errno))),
            Ready::Nothing | Ready::Set(_) => self.enter(Stage::Over(Outcome::Failed(EINVAL))),
        })
    }

    // ---- which process listens

    /// The socket has got its address; or this `errno` is why not.
    pub fn handle_bound(&mut self, cx: &mut Context<'_>, bound: Result<Own, u32>) -> Result<(), Error> {
        if self.look_for_restart(cx) {
            return Ok(());
        }
        assert_eq!(self.stage, Stage::Binding, "the socket was to be bound");
        match bound {
            Ok(own) => {
                self.since.get_or_insert(cx.now);
                self.stage = Stage::Finding(own);
            }
            Err(errno) => self.fail(cx, errno)?,
        }
        Ok(())
    }

    /// The nodes have said which process listens.
    pub fn handle_found(&mut self, cx: &mut Context<'_>, links: &Links, found: Found) -> Result<(), Error> {
        if self.look_for_restart(cx) {
            return Ok(());
        }
        let is_of_before = self.asked != links.returned();
        let in_time = self.since.is_some_and(|since| cx.now < since + RETURN);
        match self.stage {
            Stage::Finding(_) if is_of_before => {}
            Stage::Finding(own) if found.later && in_time => self.stage = Stage::Resting(own),
            Stage::Finding(own) => self.find(cx, own, &found)?,
            Stage::Verifying { own, returned, errno, is_open } => {
                // Another machine of the cluster that does not answer is cut off: a process may begin to listen there before the
                // call arrives. On this one a backlog is full.
                let may_come = is_open && found.machine == Machine::Member && in_time && !is_here(own, self.to);
                let is_same = found.peer.is_none() && !found.later && returned == links.returned();
                let stays = is_same && !may_come && found.machine != Machine::Dead;
                let unprotected = Unprotected::Made(errno);
                self.stage = if stays { Stage::Reporting { own, unprotected } } else { Stage::Withdrawing };
            }
            stage => unreachable!("which process listens was not asked in {stage:?}"),
        }
        Ok(())
    }

    fn find(&mut self, cx: &mut Context<'_>, own: Own, found: &Found) -> Result<(), Error> {
        match (self.target, found.peer) {
            (None, None) if found.machine == Machine::Dead => {
                self.stage = Stage::Reporting { own, unprotected: Unprotected::Withheld };
            }
            (None, None) => self.stage = Stage::Unprotected(own),
            (None, Some(peer)) => {
                let target = Determinant::Target { fd: self.fd, local: own.local, peer: Some(peer.process) };
                cx.observer.handle_outcome(self.thread, &target)?;
                (self.target, self.is_placed, self.stage) = (Some((own.local, peer)), true, Stage::Known);
                self.since = None;
            }
            (Some((local, known)), Some(peer)) if known.process == peer.process => {
                (self.target, self.is_placed, self.stage) = (Some((local, peer)), true, Stage::Ready);
                self.since = None;
            }
            // It may have left since the log was written: then nothing answers.
            (Some(_), _) => self.handle_unheard(cx)?,
        }
        Ok(())
    }

    /// The process listens there no more. If it may know the connection, this is what the call has made, and the links find out
    /// what has become of it: refused here, the number would be the next connection's.
    fn handle_unheard(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        if !self.may_be_known {
            return self.fail(cx, ECONNREFUSED);
        }
        self.stage = Stage::Claimed;
        Ok(())
    }

    // ---- the connection

    /// What has come of a socket that was to be connected.
    pub fn handle_dialed(&mut self, cx: &mut Context<'_>, links: &Links, dialed: Dialed) -> Result<(), Error> {
        if self.look_for_restart(cx) {
            return Ok(());
        }
        match (self.stage, dialed) {
            (Stage::Calling { own, returned }, Dialed::Made) => {
                let errno = if self.blocking { 0 } else { EINPROGRESS };
                self.stage = Stage::Verifying { own, returned, errno, is_open: false };
            }
            (Stage::Calling { own, .. }, Dialed::Failed(errno)) => {
                self.stage = Stage::Reporting { own, unprotected: Unprotected::Failed(errno) };
            }
            (Stage::Calling { own, returned }, Dialed::Open(errno)) => {
                // What has ended the wait, a signal for one, is told to the program at once.
                let is_open = errno.is_none();
                self.stage = Stage::Verifying { own, returned, errno: errno.unwrap_or(EINPROGRESS), is_open };
            }
            // The link may lead to an incarnation that is over, and what says so has been heard already.
            (Stage::Dialing { returned }, Dialed::Made) if returned != links.returned() => {
                self.stage = Stage::Missed { rests: false }
            }
            (Stage::Dialing { .. }, Dialed::Made) => self.stage = Stage::Linked,
            (Stage::Dialing { .. }, Dialed::Open(_)) if !self.may_wait(cx) => self.stage = Stage::UnderWay,
            (Stage::Dialing { .. }, Dialed::Open(_)) => self.stage = Stage::Missed { rests: true },
            (Stage::Dialing { .. }, Dialed::Failed(ECONNREFUSED | ECONNRESET | ETIMEDOUT | EHOSTUNREACH | ENETUNREACH)) => {
                self.stage = Stage::Missed { rests: true };
            }
            (Stage::Dialing { .. }, Dialed::Failed(errno)) => self.fail(cx, errno)?,
            (stage, _) => unreachable!("nothing was dialed in {stage:?}"),
        }
        Ok(())
    }

    fn dial(&mut self, cx: &mut Context<'_>, returned: u64) -> Result<Option<Step>, Error> {
        if self.calls == CALLS {
            return self.handle_unheard(cx).map(|()| None);
        }
        self.calls += 1;
        let at = self.target.and_then(|(_, peer)| peer.at).unwrap_or(self.to);
        let until = cx.now + if self.blocking { LINK } else { MOMENT };
        let until = self.until.map_or(until, |limit| limit.min(until));
        Ok(self.then(Stage::Dialing { returned }, Step::Dial { at, until }))
    }

    /// Whether the program waits for longer.
    fn may_wait(&self, cx: &Context<'_>) -> bool {
        self.blocking && self.until.is_none_or(|until| cx.now < until)
    }

    // ---- outcomes

    /// The call fails: an outcome.
    fn fail(&mut self, cx: &mut Context<'_>, errno: u32) -> Result<(), Error> {
        self.stage = Stage::Over(Outcome::Failed(errno));
        cx.observer.handle_failed(self.thread, self.fd, Call::Connect, errno)
    }

    /// The descriptor becomes the connection.
    fn take(&mut self, cx: &mut Context<'_>) -> Result<Option<Step>, Error> {
        Ok(match self.open(cx)? {
            Err(wait) => Some(Step::Wait(wait)),
            Ok(slot) => {
                let greeting = cx.observer.dial(slot);
                assert!(greeting.is_some(), "a connection that was opened here has a greeting");
                self.then(Stage::Taken, Step::Take(slot, greeting))
            }
        })
    }

    /// The descriptor becomes the connection, which an earlier incarnation has made, or may have.
    fn take_again(&mut self, cx: &mut Context<'_>, then: Stage) -> Result<Option<Step>, Error> {
        Ok(match self.open(cx)? {
            Err(wait) => Some(Step::Wait(wait)),
            Ok(slot) => self.then(then, Step::Take(slot, None)),
        })
    }

    /// The descriptor becomes the connection, which is under way still.
    fn leave(&mut self, cx: &mut Context<'_>) -> Result<Option<Step>, Error> {
        Ok(match self.open(cx)? {
            Err(wait) => Some(Step::Wait(wait)),
            Ok(slot) => self.then(Stage::Left, Step::Leave(slot)),
        })
    }

    fn open(&self, cx: &mut Context<'_>) -> Result<Result<Slot, Wait>, Error> {
        let Some((_, peer)) = self.target else { unreachable!("a process that is called is known") };
        cx.observer.connect(self.fd, peer.process)
    }

    /// Also of a call that does not wait: what the program sends on the connection leaves after that. So an incarnation whose log
    /// does not say that there is a connection finds a peer that has received nothing on it.
    fn record_connected(&mut self, cx: &mut Context<'_>) -> Result<Option<Step>, Error> {
        cx.observer.handle_outcome(self.thread, &Determinant::Connected { fd: self.fd })?;
        Ok(self.enter(Stage::Over(Outcome::Connected)))
    }

    fn record_unprotected(&mut self, cx: &mut Context<'_>, own: Own, unprotected: Unprotected) -> Result<Option<Step>, Error> {
        // A call that does not wait is told of a refusal by the socket, which knows nothing of a call that was not made.
        let (errno, outcome) = match unprotected {
            Unprotected::Made(errno) => {
                let target = Determinant::Target { fd: self.fd, local: own.local, peer: None };
                cx.observer.handle_outcome(self.thread, &target)?;
                return Ok(self.enter(Stage::Over(Outcome::Unprotected(Some(errno)))));
            }
            Unprotected::Withheld if !self.blocking => (ECONNREFUSED, Outcome::Refused),
            Unprotected::Withheld => (ECONNREFUSED, Outcome::Failed(ECONNREFUSED)),
            Unprotected::Failed(ECONNREFUSED) if !self.blocking => (ECONNREFUSED, Outcome::Failed(EINPROGRESS)),
            Unprotected::Failed(errno) => (errno, Outcome::Failed(errno)),
        };
        self.fail(cx, errno)?;
        Ok(self.enter(Stage::Over(outcome)))
    }
}

/// Whether the address that is called is this machine's: the kernel gives a caller the same one.
fn is_here(own: Own, to: SocketAddr) -> bool {
    canonical(own.from).ip() == canonical(to).ip()
}

/// G1: a call leaves the process.
fn gate(cx: &Context<'_>) -> Option<Step> {
    cx.observer.gate().map(|position| Step::Wait(Wait::Stable(position)))
}
