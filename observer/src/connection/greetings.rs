//! Links of the connections in the table: dialing, greetings and their answers, links that break, and what a restart makes of it all.

use radic_wire::determinant::StreamId;
use radic_wire::ids::{Epoch, Incarnation, JobId, ProcessId};
use radic_wire::log::Greeting;

use super::table::Table;
use super::{Connection, Hold, Link, Me, Outgoing, Phase, Slot, Waits};
use crate::error::Error;
use crate::outbox::Outbox;
use crate::payload::PayloadLog;

/// What to do with a socket on which a greeting came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Welcome {
    /// The socket is this connection's link now. Close the one before, and write this answer first if there is one.
    Link(Slot, Option<Greeting>),
    /// The greeting is older than the current link, or from a dead incarnation: close the socket.
    Refuse,
    /// Both ends had closed the connection and this one has forgotten it; the image of its opener is older than the word that it may do so, too. Close the
    /// socket, and say that word again ([`Forgettable`](super::Forgettable)).
    Forgotten,
}

impl Table {
    /// The next greeting for a new socket to the peer of `slot`. The first of all goes without an answer, as the peer's backlog
    /// answers for a program that does not run; every other waits for one.
    pub fn dial(&mut self, slot: Slot, me: Me, phase: Phase, payload: &PayloadLog) -> Option<Greeting> {
        let connection = self.get_mut(slot)?;
        if !connection.opened_here || connection.is_unheard_of() {
            return None;
        }
        let first = connection.attempt.is_none() && phase == Phase::Live;
        let attempt = match connection.attempt {
            Some((of, attempt)) if of == me.1 => attempt.saturating_add(1),
            _ => u32::from(!first),
        };
        connection.attempt = Some((me.1, attempt));
        connection.link = if first { Link::Up } else { Link::Dialing };
        connection.handle_new_link();
        // The peer of a new connection has received nothing that would have to be sent again.
        connection.outgoing.peer_settled |= first;
        Some(connection.greeting(me, attempt, phase != Phase::Replaying, payload))
    }

    /// A greeting came on a socket that was dialed to `me`. If the connection is not known it is offered to the program, perhaps
    /// again: `held` is what the protector had of it when this incarnation began, units and where it ends.
    pub fn handle_greeting(
        &mut self,
        (outbox, payload): (&mut Outbox, &PayloadLog),
        me: Me,
        greeting: &Greeting,
        phase: Phase,
        held: impl FnOnce(StreamId) -> (u64, Option<u64>),
    ) -> Result<Welcome, Error> {
        let id = greeting.connection;
        if greeting.process != id.opener {
            return Err(Error::Peer { connection: id, what: "only its opener dials" });
        }
        let oldest = self.incarnation_of(greeting.process);
        if greeting.incarnation < oldest {
            return Ok(Welcome::Refuse);
        }
        let slot = match self.find_end(id, false) {
            Some(slot) => slot,
            None if self.forgotten.contains(&id) => return Ok(Welcome::Forgotten),
            // The greeting was sent before its connection was over, and is read after that. To offer it would give the program a connection that it never had.
            None if self.buried.contains(&id) => return Ok(Welcome::Refuse),
            // Its opener catches up, and its log may still say that this connection was refused. It dials again when that is over.
            None if !greeting.settled => return Ok(Welcome::Refuse),
            None if greeting.received > 0 && phase == Phase::Live => {
                return Err(Error::Orphan { connection: id, received: greeting.received, sent: 0 });
            }
            None => {
                let mut connection = Connection { hold: Hold::Offered, ..Connection::new(id, id.opener, false) };
                (connection.incoming.held, connection.incoming.finish) = held(connection.stream_in());
                let slot = self.insert(connection)?;
                self.offered.push_back(slot as u32);
                slot
            }
        };
        let Some(connection) = self.get_mut(slot) else { return Ok(Welcome::Refuse) };
        let attempt = (greeting.incarnation, greeting.attempt);
        if connection.opened_here || connection.attempt.is_some_and(|newest| attempt <= newest) {
            return Ok(Welcome::Refuse);
        }
        connection.adopt(outbox, greeting, phase)?;
        connection.attempt = Some(attempt);
        let answer =
            (greeting.attempt > 0).then(|| connection.greeting(me, greeting.attempt, phase != Phase::Replaying, payload));
        Ok(Welcome::Link(slot, answer))
    }

    /// The answer came on a socket that this process has dialed. False: it belongs to an older attempt; close that socket.
    pub fn handle_answer(&mut self, outbox: &mut Outbox, slot: Slot, answer: &Greeting, phase: Phase) -> Result<bool, Error> {
        let oldest = self.incarnation_of(answer.process);
        let Some(connection) = self.get_mut(slot) else { return Ok(false) };
        if answer.process != connection.peer || answer.connection != connection.id {
            return Err(connection.peer_error("another process or connection answers"));
        }
        let attempt = connection.attempt.map(|(_, attempt)| attempt);
        if connection.link != Link::Dialing
            || attempt != Some(answer.attempt)
            || answer.incarnation < oldest.max(connection.peer_incarnation)
        {
            return Ok(false);
        }
        connection.adopt(outbox, answer, phase)?;
        Ok(true)
    }

    /// The link of `slot` broke, or could not be made.
    pub fn handle_broken(&mut self, slot: Slot) {
        if let Some(connection) = self.get_mut(slot) {
            connection.link = Link::Down;
        }
    }

    /// Where the end of a stream is that comes in, as its sender says (a socket that ends may mean that its process died).
    pub fn handle_finish(&mut self, slot: Slot, offset: u64) -> Result<(), Error> {
        let Some(connection) = self.get_mut(slot) else { return Ok(()) };
        connection.handle_finish(offset)
    }

    /// Bytes that were sent again of what the peers have received, on all connections: no more than that counts.
    pub fn sent_again(&self) -> u64 {
        self.iter().map(|(_, c)| c.outgoing.end().min(c.outgoing.peer_has)).sum()
    }

    /// Whether a peer is known to have bytes that this process has not sent again.
    pub(crate) fn owes(&self) -> bool {
        self.iter().any(|(_, c)| !c.is_offered() && c.link == Link::Up && c.outgoing.end() < c.outgoing.peer_has)
    }

    /// Which peers Gate B waits for, if it is not this process itself that has not sent again what they have.
    pub fn waits(&self) -> Waits {
        let open = || self.iter().map(|(_, c)| c).filter(|c| !c.is_offered() && !c.forgettable.1);
        if open().any(|c| c.link == Link::Up && !c.outgoing.peer_settled) {
            return Waits::CatchesUp;
        }
        if open().any(|c| c.link != Link::Up) { Waits::OutOfReach } else { Waits::Not }
    }

    /// Gate B: whether every connection has been reached and was sent again at least what its peer has.
    pub fn all_sent_again(&self) -> bool {
        let sent_again = |o: &Outgoing| o.peer_settled && o.end() >= o.peer_has;
        // A peer that has forgotten the connection, or has left, says nothing. It forgets only a connection that was closed here
        // in an image, after the last byte. Bytes that a departed peer had received are still sent again: other processes may
        // have learned from it what it did with them.
        let is_forgotten =
            |c: &Connection| c.forgettable.1 && (c.forgettable.0 || c.gone_there && c.outgoing.end() >= c.outgoing.peer_has);
        self.iter().all(|(_, c)| c.is_offered() || is_forgotten(c) || c.link == Link::Up && sent_again(&c.outgoing))
    }

    /// The log is over: peers that were told too little before are told again, on new links.
    pub(crate) fn handle_settled(&mut self) {
        for connection in self.iter_mut().filter(|connection| connection.unsettled) {
            connection.unsettled = false;
            connection.drop_link();
        }
    }

    /// A link that was given up here: its socket is to be closed.
    pub fn poll_dropped(&mut self) -> Option<Slot> {
        let slot = self.iter().find(|(_, connection)| connection.link == Link::GivenUp)?.0;
        self.get_mut(slot)?.link = Link::Down;
        Some(slot)
    }

    /// No process of this job speaks in an epoch before this one.
    pub(crate) fn begin(&mut self, job: JobId, epoch: Epoch) {
        self.job = Some((job, epoch));
    }

    fn incarnation_of(&self, process: ProcessId) -> Incarnation {
        let least = self.job.filter(|(job, _)| *job == process.job).map(|(_, epoch)| Incarnation::launched_in(epoch));
        self.restarted.get(&process).copied().max(least).unwrap_or_default()
    }

    /// `process` speaks as `incarnation` now: older ones are not listened to, and links to them are given up.
    pub(crate) fn handle_restarted(&mut self, process: ProcessId, incarnation: Incarnation) {
        if incarnation <= self.incarnation_of(process) {
            return;
        }
        self.restarted.insert(process, incarnation);
        // Where a connection ends of which the peer has never heard does not depend on the peer.
        let is_meant = |c: &&mut Connection| c.peer == process && c.peer_incarnation < incarnation && !c.is_unheard_of();
        for connection in self.iter_mut().filter(is_meant) {
            connection.incoming.handle_incarnations_over();
            connection.drop_link();
        }
    }

    /// A restarted process has none of the sockets of its image, and the peers that dialed it then will dial again.
    pub(crate) fn handle_restart(&mut self, mut held: impl FnMut(StreamId) -> (u64, Option<u64>)) {
        for connection in self.slots.iter_mut().flatten() {
            connection.link = Link::Down;
            let (held, finish) = held(connection.stream_in());
            let incoming = &mut connection.incoming;
            incoming.handle_incarnations_over();
            incoming.held = incoming.held.max(held);
            incoming.finish = incoming.finish.or(finish);
        }
    }
}
