//! The door: connections that peers make to this process's own listening socket.

use std::time::Duration;

use radic_wire::log::Greeting;

use super::{Action, GIVEN_UP, Install, Links, SocketId, Stage};
use crate::connection::{Forgettable, Link, Welcome};
use crate::{Context, Failure};

/// Connections at the door that have not been let in: one more, and the oldest goes.
pub(super) const VISITORS: usize = 64;
/// Time for a visitor's greeting: it is written as soon as the connection is there.
const VISIT: Duration = Duration::from_secs(5);

/// A connection at the door.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    pub socket: SocketId,
    deadline: Duration,
    greeting: Option<Greeting>,
}

impl Visitor {
    pub fn has_greeted(&self) -> bool {
        self.greeting.is_some()
    }

    pub fn due(&self) -> Option<Duration> {
        (!self.has_greeted()).then_some(self.deadline)
    }
}

impl Links {
    /// A connection came to the door.
    pub fn handle_visitor(&mut self, now: Duration) -> SocketId {
        let socket = self.new_socket();
        if self.visitors.len() >= VISITORS
            && let Some(oldest) = self.visitors.pop_front()
        {
            self.actions.push_back(Action::Close(oldest.socket));
        }
        self.visitors.push_back(Visitor { socket, deadline: now + VISIT, greeting: None });
        socket
    }

    /// Whether this visitor has greeted and waits for the gate. If its other side gives it up meanwhile, that is [`Links::handle_socket_gone`].
    pub fn has_greeted(&self, socket: SocketId) -> bool {
        self.visitors.iter().any(|visitor| visitor.socket == socket && visitor.has_greeted())
    }

    /// A visitor's greeting has come, and its code was right. `is_gone`: the other side has given the socket up since.
    pub fn handle_greeting(
        &mut self,
        cx: &mut Context<'_>,
        socket: SocketId,
        greeting: &Greeting,
        is_gone: bool,
    ) -> Result<(), Failure> {
        if let Some(visitor) = self.visitors.iter_mut().find(|visitor| visitor.socket == socket) {
            visitor.greeting = Some(*greeting);
        }
        if is_gone {
            self.handle_socket_gone(cx, socket);
        }
        self.receive_visitors(cx)?;
        self.check_invariants();
        Ok(())
    }

    /// A socket that is no link has ended, or has brought something else than a greeting. A caller says nothing more than that its link is broken, and
    /// that stands; the socket of an opener is of no use any more.
    pub fn handle_socket_gone(&mut self, cx: &mut Context<'_>, socket: SocketId) {
        let is_gone = |visitor: &Visitor| visitor.socket == socket && !visitor.greeting.is_some_and(|of| of.is_call());
        if let Some(at) = self.visitors.iter().position(is_gone) {
            self.visitors.remove(at);
            self.actions.push_back(Action::Close(socket));
        }
        if let Some(end) = self.dialed.get(&socket).copied() {
            self.dial_again(cx, end, super::RETRY);
        }
        self.check_invariants();
    }

    /// Lets in those that have greeted, if the gate is open (G1: the answer says what was received); sends away those that are late.
    pub(super) fn receive_visitors(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        for _ in 0..self.visitors.len() {
            let Some(visitor) = self.visitors.pop_front() else { break };
            match visitor.greeting {
                Some(greeting) if cx.is_gate_open() => self.welcome(cx, visitor.socket, &greeting)?,
                None if cx.now >= visitor.deadline => self.actions.push_back(Action::Close(visitor.socket)),
                _ => self.visitors.push_back(visitor),
            }
        }
        Ok(())
    }

    fn welcome(&mut self, cx: &mut Context<'_>, socket: SocketId, hello: &Greeting) -> Result<(), Failure> {
        if hello.is_call() {
            self.actions.push_back(Action::Close(socket));
            self.handle_call(cx, hello);
            return Ok(());
        }
        let is_known = cx.observer.table().find_end(hello.connection, false).is_some();
        match cx.observer.handle_greeting(hello) {
            Ok(Welcome::Refuse) => self.actions.push_back(Action::Close(socket)),
            Ok(Welcome::Forgotten) => {
                self.actions.push_back(Action::Close(socket));
                self.say_forgettable(Forgettable { connection: hello.connection, peer: hello.process, for_good: false });
            }
            Ok(Welcome::Link(slot, answer)) => {
                let end = cx.observer.table().get(slot).map(|connection| connection.stream_out());
                let (peer, ends) = (hello.incarnation, hello.ends);
                match end {
                    Some(end) => self.install(cx, Install { end, socket, answer, peer, ends }),
                    None => self.actions.push_back(Action::Close(socket)),
                }
            }
            Err(error) if is_known => {
                return Err(Failure::Greeting { process: hello.process, incarnation: hello.incarnation, error });
            }
            // Of a program that this process ran before (exec), or more connections than there is room for.
            Err(error) => {
                self.actions.push_back(Action::Close(socket));
                self.actions.push_back(Action::Refused(error));
            }
        }
        Ok(())
    }

    /// The acceptor of a connection that was opened here says that its link is broken.
    fn handle_call(&mut self, cx: &mut Context<'_>, hello: &Greeting) {
        let Some(slot) = cx.observer.table().find_end(hello.connection, true) else {
            if let Some(word) = cx.observer.forgotten(hello.connection, hello.process) {
                self.say_forgettable(word);
            }
            return;
        };
        let me = cx.observer.incarnation();
        let connection = cx.observer.table().get(slot).filter(|c| c.peer == hello.process);
        let Some(connection) = connection.filter(|c| hello.incarnation >= c.peer_incarnation()) else { return };
        // The acceptor may mean a link that was replaced since. It answers no first attempt (number 0), so if it names another
        // attempt, that one was of an earlier incarnation, and the acceptor never read the greeting of this one.
        let is_of_now = connection.attempt().is_none_or(|(of, attempt)| of != me || attempt == 0 || attempt == hello.attempt);
        let is_answered = connection.attempt() == Some((me, hello.attempt));
        let (link, end) = (connection.link(), connection.stream_out());
        match self.reconnections.get(&end).map(|of| of.stage) {
            Some(Stage::Down { .. }) => self.set_stage(end, Stage::Down { due: Duration::ZERO }),
            // The acceptor has answered this attempt, and given its link up since. The answer is on another socket, and is not read yet.
            Some(Stage::Greeted { .. }) if is_answered => self.try_again(cx, end, Duration::ZERO),
            Some(stage) if !matches!(stage, Stage::Asked { .. }) => {}
            _ if link == Link::Up && is_of_now => self.break_link(cx, slot, GIVEN_UP),
            _ => {}
        }
    }

    /// A socket is a link from now on, and nothing more is to be done about it.
    pub(super) fn install(&mut self, cx: &Context<'_>, install: Install) {
        self.owing.remove(&install.end);
        // Its own socket is a link now, and is not closed.
        self.dialed.remove(&install.socket);
        if let Some(reconnection) = self.reconnections.remove(&install.end) {
            if let Some(other) = reconnection.stage.socket().filter(|other| *other != install.socket) {
                self.dialed.remove(&other);
                self.actions.push_back(Action::Close(other));
            }
            self.handle_reached(cx, reconnection.peer);
        }
        self.actions.push_back(Action::Install(Box::new(install)));
        self.changed = true;
    }
}
