//! From a broken link to a new one: where is the peer, its door is dialed, a greeting is written, the answer comes.

use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::log::Greeting;
use radic_wire::process::{Place, ToNode};

use super::{Action, GIVEN_UP, Install, Links, PATIENCE, RETRY, SocketId, Stage};
use crate::connection::{Connection, Link, Slot};
use crate::{Context, Failure};

/// Links that are looked after at once; others wait.
const AT_ONCE: usize = 64;
/// Time between two looks whether it is a link's turn.
const TURN: Duration = Duration::from_millis(10);
/// Time for the node to say where a peer is, and for a door to take a connection.
pub(super) const CONNECT: Duration = Duration::from_secs(5);
/// Time after which it is asked whether a peer that has not answered is still where it was dialed. It may compute for an hour.
const ANSWER: Duration = Duration::from_secs(5);
/// Attempts to reach the peer of a connection that the program has closed. A peer that has forgotten it, too, does not answer.
const CLOSED_ATTEMPTS: u32 = 100;

impl Links {
    /// A socket that was dialed is connected, or its connection was refused.
    pub fn handle_connected(&mut self, cx: &mut Context<'_>, socket: SocketId, is_connected: bool) {
        let Some(end) = self.dialed.get(&socket).copied() else { return };
        let Some(Stage::Connecting { door, peer, .. }) = self.reconnections.get(&end).map(|of| of.stage) else { return };
        if is_connected {
            self.set_stage(end, Stage::Connected { socket, door, peer });
            self.greet(cx, end);
        } else {
            self.dial_again(cx, end, RETRY);
        }
        self.check_invariants();
    }

    /// Whether the answer to a greeting is awaited on this socket.
    pub fn awaits_answer(&self, socket: SocketId) -> bool {
        let of = self.dialed.get(&socket).and_then(|end| self.reconnections.get(end));
        of.is_some_and(|of| matches!(of.stage, Stage::Greeted { .. }))
    }

    /// The answer to a greeting has come, and its code was right.
    pub fn handle_answer(&mut self, cx: &mut Context<'_>, socket: SocketId, answer: &Greeting) -> Result<(), Failure> {
        let Some(end) = self.dialed.get(&socket).copied().filter(|_| self.awaits_answer(socket)) else { return Ok(()) };
        let Some(slot) = cx.slot(end) else {
            self.give_up(end);
            return Ok(());
        };
        let (process, incarnation) = (answer.process, answer.incarnation);
        let is_right = cx.observer.handle_answer(slot, answer);
        if is_right.map_err(|error| Failure::Greeting { process, incarnation, error })? {
            self.install(cx, Install { end, socket, answer: None, peer: incarnation, ends: None });
        } else {
            self.dial_again(cx, end, RETRY);
        }
        self.check_invariants();
        Ok(())
    }

    /// The link is made once more after a pause.
    pub(super) fn try_again(&mut self, cx: &mut Context<'_>, end: StreamId, pause: Duration) {
        let was_greeted = matches!(self.reconnections.get(&end), Some(of) if matches!(of.stage, Stage::Greeted { .. }));
        self.set_stage(end, Stage::Down { due: cx.now + pause });
        if let Some(slot) = cx.slot(end).filter(|_| was_greeted) {
            cx.observer.handle_broken(slot);
        }
    }

    /// Looks after what is not up.
    pub(super) fn go_on(&mut self, cx: &mut Context<'_>) {
        let is_busy = |stage: &Stage| stage.socket().is_some() || matches!(stage, Stage::Placing { .. });
        let mut busy = self.reconnections.values().filter(|of| is_busy(&of.stage)).count();
        let ends: Vec<StreamId> = self.reconnections.keys().copied().collect();
        for end in ends {
            let Some(stage) = self.reconnections.get(&end).map(|of| of.stage) else { continue };
            let is_wanted = |connection: &Connection| {
                // The peer has left, and now the program has closed its end.
                !(matches!(stage, Stage::Over | Stage::Parting { .. }) && connection.is_closed())
            };
            match cx.connection(end).filter(|(_, connection)| is_wanted(connection)) {
                Some((_, connection)) => {
                    let closed = connection.is_closed();
                    busy += usize::from(self.step(cx, end, closed, busy));
                }
                None => self.give_up(end),
            }
        }
    }

    /// True: the node was asked where the peer is.
    fn step(&mut self, cx: &mut Context<'_>, end: StreamId, closed: bool, busy: usize) -> bool {
        let Some(reconnection) = self.reconnections.get(&end).copied() else { return false };
        match reconnection.stage {
            Stage::Down { due } if due <= cx.now => {
                if closed && reconnection.attempts > CLOSED_ATTEMPTS {
                    self.give_up(end);
                } else if busy >= AT_ONCE {
                    self.try_again(cx, end, TURN);
                } else {
                    let process = reconnection.peer;
                    let ask = self.ask(|ask| ToNode::Where { ask, process });
                    self.set_stage(end, Stage::Placing { ask, since: cx.now });
                    return true;
                }
            }
            Stage::Placing { since, .. } if cx.now - since >= CONNECT => self.try_again(cx, end, Duration::ZERO),
            Stage::Connecting { deadline, .. } if deadline <= cx.now => self.dial_again(cx, end, RETRY),
            Stage::Connected { .. } => self.greet(cx, end),
            Stage::Greeted { socket, door, deadline, ask: None } if deadline <= cx.now => {
                let process = reconnection.peer;
                let ask = Some(self.ask(|ask| ToNode::Where { ask, process }));
                self.set_stage(end, Stage::Greeted { socket, door, deadline, ask });
            }
            _ => {}
        }
        false
    }

    /// Writes the greeting, if the gate is open (G1: it says what was received). The acceptor only says that the link is broken.
    fn greet(&mut self, cx: &mut Context<'_>, end: StreamId) {
        let Some(reconnection) = self.reconnections.get(&end).copied() else { return };
        let Stage::Connected { socket, door, peer } = reconnection.stage else { return };
        let Some((slot, connection)) = cx.connection(end).filter(|_| cx.is_gate_open()) else { return };
        let to = (reconnection.peer, peer);
        if !connection.opened_here {
            let greeting = Box::new(call(cx, connection));
            self.actions.push_back(Action::Greet { socket, peer: to, greeting });
            self.end_vain(end);
            return self.try_again(cx, end, until_next_call(reconnection.attempts));
        }
        let Some(hello) = cx.observer.dial(slot) else { return self.try_again(cx, end, RETRY) };
        self.actions.push_back(Action::Greet { socket, peer: to, greeting: Box::new(hello) });
        // The first greeting of all is not answered: the peer's program may not run just now.
        if cx.observer.table().get(slot).is_some_and(|connection| connection.link() == Link::Up) {
            return self.install(cx, Install { end, socket, answer: None, peer, ends: None });
        }
        self.set_stage(end, Stage::Greeted { socket, door, deadline: cx.now + ANSWER, ask: None });
    }

    fn dial(&mut self, cx: &Context<'_>, end: StreamId, door: SocketAddr, peer: Incarnation) {
        let socket = self.new_socket();
        if let Some(reconnection) = self.reconnections.get_mut(&end) {
            reconnection.attempts += 1;
            reconnection.vain.handle_dial(cx.now, door, peer);
            self.set_stage(end, Stage::Connecting { socket, door, peer, deadline: cx.now + CONNECT });
            self.actions.push_back(Action::Dial(socket, door));
        }
    }

    pub(super) fn handle_place(&mut self, cx: &mut Context<'_>, ask: u64, place: Place) {
        let is_this = |stage: &Stage| match *stage {
            Stage::Placing { ask: of, .. } | Stage::Greeted { ask: Some(of), .. } => of == ask,
            _ => false,
        };
        let Some((end, peer)) = self.reconnections.iter().find(|(_, of)| is_this(&of.stage)).map(|(end, of)| (*end, of.peer))
        else {
            return;
        };
        match place {
            Place::Here { incarnation, door } => {
                self.hear_of(cx, peer, incarnation);
                match self.reconnections.get(&end).map(|of| of.stage) {
                    // The peer is where it was, and merely computes.
                    Some(Stage::Greeted { socket, door: dialed, .. }) if dialed == door => {
                        self.end_vain(end);
                        self.set_stage(end, Stage::Greeted { socket, door, deadline: cx.now + ANSWER, ask: None });
                    }
                    Some(_) => self.dial(cx, end, door, incarnation),
                    None => {}
                }
            }
            Place::Away => {
                self.end_vain(end);
                self.try_again(cx, end, PATIENCE);
            }
            Place::Left => self.handle_left(cx, end),
        }
    }

    fn hear_of(&mut self, cx: &mut Context<'_>, process: ProcessId, incarnation: Incarnation) {
        if incarnation > Incarnation::FIRST {
            cx.observer.handle_restarted(process, incarnation);
            self.break_dropped(cx);
        }
    }

    /// A process has come back: the sockets of its earlier incarnations are dead, whatever they look like.
    pub(super) fn handle_restarted(
        &mut self,
        cx: &mut Context<'_>,
        process: ProcessId,
        incarnation: Incarnation,
        door: SocketAddr,
    ) {
        self.returned += 1;
        self.hear_of(cx, process, incarnation);
        // In question, and now there is no question; or closed by the program long ago, and now wanted again.
        let is_meant = |c: &Connection| {
            c.peer == process && !c.is_unheard_of() && (c.link().is_down() || self.is_in_question(c.stream_out()))
        };
        let meant = cx.observer.table().iter().filter(|(_, c)| is_meant(c));
        let meant: Vec<(Slot, StreamId, bool)> = meant.map(|(slot, c)| (slot, c.stream_out(), c.opened_here)).collect();
        for (slot, end, opened_here) in meant {
            if !self.is_down(end) || self.is_in_question(end) || self.is_under_way(end) {
                self.break_link(cx, slot, GIVEN_UP);
            }
            if opened_here {
                self.dial(cx, end, door, incarnation);
            } else {
                self.try_again(cx, end, PATIENCE);
            }
        }
    }
}

/// Time until an opener that was called so often is called again: longer and longer. One that catches up does not say of each
/// connection what has become of it, and one that computes hears nothing.
fn until_next_call(calls: u32) -> Duration {
    (RETRY * 2u32.pow(calls.saturating_sub(1).min(8))).min(PATIENCE)
}

/// What the acceptor of a connection says to its opener: that the link of this attempt is broken.
fn call(cx: &Context<'_>, connection: &Connection) -> Greeting {
    Greeting {
        process: cx.observer.process(),
        incarnation: cx.observer.incarnation(),
        connection: connection.id,
        attempt: connection.attempt().map_or(0, |(_, attempt)| attempt),
        received: 0,
        stable: 0,
        kept: 0,
        finish: None,
        settled: false,
        ends: None,
    }
}
