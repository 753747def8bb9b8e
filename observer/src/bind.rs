//! A `bind` of the program: which address its socket gets. A value without sockets and clocks: the caller asks what is to be done
//! ([`Bind::next`]), does it, tells what came of it (`handle_*`), and asks again.
//!
//! - *The log knows it.* A process that catches up is told what it was told, and its socket gets what this machine has.
//! - *The log does not.* The system gives the address first. Then the node is asked for another process that is called by it: one
//!   that has moved to another machine, or one that crashed here and is on its way back. If there is one, the address is given
//!   back, and the program is told that it is in use: an address is that of one process (G3).
//!
//! What has come of it is an outcome, recorded once. A process that is brought back in the midst of a `bind` asks its log again.

use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::determinant::{Call, Determinant};
use radic_wire::ids::Incarnation;
#[cfg(doc)]
use radic_wire::process::ToNode;

use crate::connect::RETURN;
use crate::replay::Ask;
use crate::{Address, Context, Error, Wait};

#[cfg(test)]
mod tests;

/// The number of `errno`.
const EADDRINUSE: u32 = 98;

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Wait for this.
    Wait(Wait),
    /// Give the socket this address, or whatever this machine has instead. What comes of it need not be told.
    Again(SocketAddr),
    /// Give the socket the address that the program wants: [`Bind::handle_bound`].
    Bind,
    /// Ask the node by [`ToNode::Claim`] which other process is called by this address: [`Bind::handle_claimed`].
    Claim(SocketAddr),
    /// Look after everything for a moment: a process that is on its way back may need what this one has sent.
    Pause,
    /// Another process is called by the socket's address: have the system take it back. [`Bind::handle_given_back`].
    GiveBack,
    /// The call is over: the socket has this address, as the program sees it, or this `errno` is why not.
    Over(Result<SocketAddr, u32>),
}

/// How far a `bind` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The log is asked.
    Begun,
    /// The log knew the address, which the socket is to get.
    Again(SocketAddr),
    /// The socket gets its address.
    Binding,
    /// It has this one; the node is asked about that.
    Claiming(SocketAddr),
    /// The node is to be asked again in a moment.
    Resting(SocketAddr),
    /// Another process is called by the address of the socket.
    Taken,
    Over(Result<SocketAddr, u32>),
}

/// See the module's text.
#[derive(Debug, Clone, PartialEq)]
pub struct Bind {
    thread: u32,
    fd: u32,
    /// The address that the system has chosen for a socket that listens, and was not bound.
    chosen: Option<SocketAddr>,
    /// The incarnation that goes on with it.
    incarnation: Option<Incarnation>,
    /// Since when the node is asked.
    since: Option<Duration>,
    stage: Stage,
}

impl Bind {
    /// `thread` binds `fd`.
    pub fn new(thread: u32, fd: u32) -> Bind {
        Bind { thread, fd, chosen: None, incarnation: None, since: None, stage: Stage::Begun }
    }

    /// `thread` lets `fd` listen, which was not bound: the system has chosen this address for it, which it gives to one process
    /// only.
    pub fn chosen(thread: u32, fd: u32, address: SocketAddr) -> Bind {
        Bind { chosen: Some(address), ..Bind::new(thread, fd) }
    }

    /// What is to be done now. It is said again and again until it is told what came of it, but [`Step::Again`] and
    /// [`Step::Pause`], which are said once.
    pub fn next(&mut self, cx: &mut Context<'_>) -> Result<Step, Error> {
        self.look_for_restart(cx);
        if self.stage == Stage::Begun
            && let Some(wait) = self.consult(cx)?
        {
            return Ok(Step::Wait(wait));
        }
        Ok(match self.stage {
            Stage::Begun => unreachable!("the log was asked"),
            Stage::Again(address) => self.then(Stage::Over(Ok(address)), Step::Again(address)),
            Stage::Binding => Step::Bind,
            Stage::Claiming(address) => Step::Claim(address),
            Stage::Resting(address) => self.then(Stage::Claiming(address), Step::Pause),
            Stage::Taken => Step::GiveBack,
            Stage::Over(result) => Step::Over(result),
        })
    }

    fn then(&mut self, stage: Stage, step: Step) -> Step {
        self.stage = stage;
        step
    }

    /// Whether the process was brought back since. What a socket of its image has got means nothing, and its log may know the
    /// outcome.
    fn look_for_restart(&mut self, cx: &Context<'_>) -> bool {
        let incarnation = cx.observer.incarnation();
        let is_restarted = self.incarnation.replace(incarnation).is_some_and(|before| before != incarnation);
        if is_restarted && !matches!(self.stage, Stage::Over(_)) {
            (self.stage, self.since) = (Stage::Begun, None);
        }
        is_restarted
    }

    fn consult(&mut self, cx: &mut Context<'_>) -> Result<Option<Wait>, Error> {
        self.stage = match cx.observer.address(self.thread, Ask::Bind { fd: self.fd })? {
            Address::Wait(wait) => return Ok(Some(wait)),
            // The system has chosen one this time, too.
            Address::Again(address, _) if self.chosen.is_some() => Stage::Over(Ok(address)),
            Address::Again(address, _) => Stage::Again(address),
            Address::Failed(errno) => Stage::Over(Err(errno)),
            Address::Live => match self.chosen {
                Some(address) => return self.record(cx, Ok(address)).map(|()| None),
                None => Stage::Binding,
            },
        };
        Ok(None)
    }

    /// The socket has got this address, as the program is to see it, or this `errno` is why not.
    ///
    /// # Panics
    /// If it was not to be bound.
    pub fn handle_bound(&mut self, cx: &mut Context<'_>, bound: Result<SocketAddr, u32>) -> Result<(), Error> {
        if self.look_for_restart(cx) {
            return Ok(());
        }
        assert_eq!(self.stage, Stage::Binding, "the socket was to be bound");
        match bound {
            Ok(address) => self.stage = Stage::Claiming(address),
            Err(errno) => self.record(cx, Err(errno))?,
        }
        Ok(())
    }

    /// The node has said whether another process is called by the address. `later`: one that is lost may be, and the answer may
    /// be another one when it is back. It is waited for, but not longer than [`RETURN`].
    ///
    /// # Panics
    /// If the node was not asked.
    pub fn handle_claimed(&mut self, cx: &mut Context<'_>, is_taken: bool, later: bool) -> Result<(), Error> {
        if self.look_for_restart(cx) {
            return Ok(());
        }
        let Stage::Claiming(address) = self.stage else { panic!("no address is claimed in {:?}", self.stage) };
        let since = *self.since.get_or_insert(cx.now);
        if later && cx.now < since + RETURN {
            self.stage = Stage::Resting(address);
        } else if is_taken {
            self.stage = Stage::Taken;
        } else {
            self.record(cx, Ok(address))?;
        }
        Ok(())
    }

    /// The socket has no address any more; or this `errno` is why it still has one.
    ///
    /// # Panics
    /// If the address was not to be given back.
    pub fn handle_given_back(&mut self, cx: &mut Context<'_>, result: Result<(), u32>) -> Result<(), Error> {
        if self.look_for_restart(cx) {
            return Ok(());
        }
        assert_eq!(self.stage, Stage::Taken, "the address was to be given back");
        self.record(cx, Err(result.err().unwrap_or(EADDRINUSE)))
    }

    fn record(&mut self, cx: &mut Context<'_>, result: Result<SocketAddr, u32>) -> Result<(), Error> {
        self.stage = Stage::Over(result);
        match result {
            Ok(address) => cx.observer.handle_outcome(self.thread, &Determinant::Bound { fd: self.fd, address }),
            Err(errno) => cx.observer.handle_failed(self.thread, self.fd, Call::Bind, errno),
        }
    }
}
