//! Calls that make, name and close connections; what peers say when they connect; and when a connection is forgotten.

use radic_wire::determinant::{Call, ConnectionId, Determinant};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::log::Greeting;

use super::answers::{Accept, Address, Wait};
use super::{Observer, Verdict, take_held};
use crate::connection::{Forgettable, Slot, Welcome};
use crate::error::Error;
use crate::gate::Gate;
use crate::replay::Ask;

impl Observer {
    /// The program knows the connection on `from` by the descriptor `to` from now on (`dup`, then `close` of the first).
    pub fn handle_moved(&mut self, from: u32, to: u32) -> Result<(), Error> {
        self.table.rebind(from, to)
    }

    /// `close`: ends the outgoing direction if that was not done, and frees the descriptor.
    pub fn close(&mut self, fd: u32) -> Result<Option<Wait>, Error> {
        if let Some(wait) = self.finish(fd)? {
            return Ok(Some(wait));
        }
        self.table.close(fd, &mut self.outbox)?;
        Ok(None)
    }

    /// `connect` of `fd` to the process `peer`. It leaves (the greeting does), so it waits at the gate.
    pub fn connect(&mut self, fd: u32, peer: ProcessId) -> Result<Result<Slot, Wait>, Error> {
        self.check_voice()?;
        if self.replay.is_none()
            && let Gate::Shut(position) = Gate::of(&self.journal, self.causes.as_ref())
        {
            return Ok(Err(Wait::Stable(position)));
        }
        let slot = self.table.open(self.me, fd, peer)?;
        self.find_held(slot);
        Ok(Ok(slot))
    }

    /// The `errno` of a call that would make one more connection, if the table has no room for it: an outcome then.
    pub fn refuse_connection(&mut self, thread: u32, fd: u32, call: Call) -> Result<Option<u32>, Error> {
        const ENFILE: u32 = 23;
        let (room, _) = self.table.room();
        if room > 0 || self.is_replaying() {
            return Ok(None);
        }
        self.handle_failed(thread, fd, call, ENFILE).map(|()| Some(ENFILE))
    }

    /// A connection that this incarnation makes may have been there in an earlier one: then the protector holds some of it.
    fn find_held(&mut self, slot: Slot) {
        let Some(connection) = self.table.get_mut(slot) else { return };
        let (held, finish) = take_held(&mut self.held, connection.stream_in());
        connection.incoming.held = connection.incoming.held.max(held);
        connection.incoming.finish = connection.incoming.finish.or(finish);
    }

    /// What the next connection that this process opens will be.
    pub fn next_connection(&self) -> ConnectionId {
        self.table.next_connection(self.me)
    }

    /// Is there a recorded outcome for `Bind` or `Target`? Addresses belong to machines, and the process that listened may have
    /// left: a restarted process is told what it was told.
    pub fn address(&mut self, thread: u32, ask: Ask) -> Result<Address, Error> {
        let address = match self.consult(thread, ask, true)? {
            Verdict::Live => return Ok(Address::Live),
            Verdict::Nothing => return Err(self.diverged("an address is nothing that can be asked for in vain")),
            Verdict::Wait(wait) => return Ok(Address::Wait(wait)),
            Verdict::Outcome => match self.outcome()? {
                Determinant::Bound { address, .. } => Address::Again(address, None),
                Determinant::Target { local, peer, .. } => Address::Again(local, peer),
                Determinant::Errno { errno, .. } => Address::Failed(errno),
                _ => return Err(self.diverged("a call for an address had another kind of outcome then")),
            },
        };
        self.handle_served();
        Ok(address)
    }

    /// `accept` on `listener`; which connections have called there the caller knows.
    pub fn accept(
        &mut self,
        thread: u32,
        listener: u32,
        blocking: bool,
        has_called: impl Fn(ConnectionId) -> bool,
    ) -> Result<Accept, Error> {
        match self.consult(thread, Ask::Accept { fd: listener }, blocking)? {
            Verdict::Nothing => Ok(Accept::Nothing),
            Verdict::Wait(wait) => Ok(Accept::Wait(wait)),
            Verdict::Live => match self.table.poll_offer(has_called) {
                Some(connection) => Ok(Accept::Offered(connection)),
                None if blocking => Ok(Accept::Wait(Wait::Event)),
                None => self.handle_nothing(thread).map(|()| Accept::Nothing),
            },
            Verdict::Outcome => match self.outcome()? {
                Determinant::Accept { fd, connection, peer, .. } => {
                    let slot = self.table.accept(connection, fd)?;
                    self.find_held(slot);
                    self.handle_served();
                    Ok(Accept::Again { fd, connection, peer })
                }
                Determinant::Errno { errno, .. } => {
                    self.handle_served();
                    Ok(Accept::Failed(errno))
                }
                _ => Err(self.diverged("accept had another kind of outcome then")),
            },
        }
    }

    /// The program gets `connection` on `fd`, and is told `peer` as its address.
    pub fn handle_accepted(
        &mut self,
        thread: u32,
        listener: u32,
        fd: u32,
        connection: ConnectionId,
        peer: std::net::SocketAddr,
    ) -> Result<(), Error> {
        self.table.accept(connection, fd)?;
        self.journal.append(thread, &Determinant::Accept { listener, fd, connection, peer })
    }

    /// Refuses the connections that wait to be accepted and have called a listener that the program has closed; which ones have
    /// the caller knows. Each is made and closed at once, as if the program had done that: it is recorded, images have it, and
    /// its peer hears of its end ([`Observer::poll_refused`]). A process that catches up refuses those of which its log says so.
    /// Of any other it is not known what the program does before it closes the listener.
    pub fn refuse_callers(&mut self, has_called: impl Fn(ConnectionId) -> bool) -> Result<(), Error> {
        while self.records_refusals()
            && let Some(connection) = self.table.poll_offer(&has_called)
        {
            self.check_voice()?;
            self.table.refuse(connection)?;
            self.journal.append_aside(&Determinant::Refused { connection, opened_here: false })?;
        }
        Ok(())
    }

    /// Whether it can be recorded now that a connection was refused: a caller's here ([`Observer::refuse_callers`]), or a call from here
    /// while it was under way ([`Observer::handle_call_refused`]). Until then nothing need be asked about such a call.
    pub fn records_refusals(&self) -> bool {
        self.replay.is_none() && self.journal.has_room()
    }

    /// The first link of `slot`, which was opened here and is under way, was refused by this `errno`, and no other one is to be
    /// made. It is recorded before the program can hear of it: a later incarnation makes no connection of which its peer has
    /// never heard. False: the log has no room for that now, and it is to be said again. A process that catches up has no call
    /// under way, and goes by its log.
    pub fn handle_call_refused(&mut self, slot: Slot, errno: i32) -> Result<bool, Error> {
        if !self.records_refusals() {
            return Ok(false);
        }
        self.check_voice()?;
        let connection = self.connection(slot)?.id;
        self.journal.append_aside(&Determinant::Refused { connection, opened_here: true })?;
        self.table.refuse_call(slot, errno, &mut self.outbox).map(|()| true)
    }

    /// Refuses again what the log says next was refused.
    pub(super) fn pass_refused(&mut self) -> Result<(), Error> {
        while let Some(replay) = &mut self.replay
            && let Some((connection, opened_here)) = replay.refused_next(&self.journal)?
        {
            if opened_here {
                self.refuse_call_again(connection)?;
            } else {
                let slot = self.table.refuse(connection)?;
                self.find_held(slot);
            }
            self.handle_served();
        }
        Ok(())
    }

    /// The outcome of the call comes first in the log, and the connection is in the table as soon as that is served. The program
    /// is told by outcomes, or hears the `errno` of any refusal.
    fn refuse_call_again(&mut self, connection: ConnectionId) -> Result<(), Error> {
        const ECONNREFUSED: i32 = 111;
        let Some(slot) = self.table.find_end(connection, true) else {
            return Err(self.diverged("a call was refused then that has not been made"));
        };
        self.table.refuse_call(slot, ECONNREFUSED, &mut self.outbox)
    }

    /// A connection that was refused, and whose end may leave now (G1): the node is to be told, and the socket, if there is one, is the library's own.
    pub fn poll_refused(&mut self) -> Option<Slot> {
        let is_shut = self.replay.is_none() && Gate::of(&self.journal, self.causes.as_ref()) != Gate::Open;
        if is_shut || self.fenced.is_some() { None } else { self.table.poll_refused(&mut self.outbox) }
    }

    /// The next greeting to dial the peer of `slot` with, if this process opened the connection. It waits at the gate.
    pub fn dial(&mut self, slot: Slot) -> Option<Greeting> {
        self.table.dial(slot, (self.me, self.incarnation), self.phase(), &self.payload)
    }

    /// A greeting came on a socket that was dialed to this process.
    pub fn handle_greeting(&mut self, greeting: &Greeting) -> Result<Welcome, Error> {
        self.check_voice()?;
        let (me, phase) = ((self.me, self.incarnation), self.phase());
        let held = |stream| take_held(&mut self.held, stream);
        self.table.handle_greeting((&mut self.outbox, &self.payload), me, greeting, phase, held)
    }

    /// A greeting came on a socket that the program's listener has accepted; its node has named `called` as the connection.
    /// Whether the socket is that connection's link. Two threads of the opener may have called at once: only the greeting says
    /// which connection this is. An answer is wanted by reconnections only, which do not come to a listener of the program.
    pub fn handle_first_greeting(&mut self, called: ConnectionId, greeting: &Greeting) -> Result<bool, Error> {
        if greeting.connection.opener != called.opener {
            return Ok(false);
        }
        self.handle_greeting(greeting).map(|welcome| matches!(welcome, Welcome::Link(_, None)))
    }

    /// The answer came on a socket that this process has dialed. False: close that socket.
    pub fn handle_answer(&mut self, slot: Slot, answer: &Greeting) -> Result<bool, Error> {
        self.check_voice()?;
        let phase = self.phase();
        self.table.handle_answer(&mut self.outbox, slot, answer, phase)
    }

    /// A link that was given up here: its socket is to be closed, and the opener of the connection dials again.
    pub fn poll_dropped(&mut self) -> Option<Slot> {
        self.table.poll_dropped()
    }

    /// `process` speaks as `incarnation` now, the protector says. A restarted process is told this of all processes before it hears any of them.
    pub fn handle_restarted(&mut self, process: ProcessId, incarnation: Incarnation) {
        self.table.handle_restarted(process, incarnation);
    }

    /// The link of `slot` broke, or its socket ended without [`Observer::handle_finish`] having said that the stream ends there.
    pub fn handle_broken(&mut self, slot: Slot) {
        self.table.handle_broken(slot);
    }

    /// The sender of the incoming stream of `slot` says that it ends at `offset`.
    pub fn handle_finish(&mut self, slot: Slot, offset: u64) -> Result<(), Error> {
        self.table.handle_finish(slot, offset)
    }

    /// The peer of this connection has ended: it wants nothing more, and had received this many units.
    pub fn handle_left(&mut self, connection: ConnectionId, received: u64) {
        self.table.handle_left(connection, received, &mut self.outbox);
    }

    /// What a peer is to be told by [`ToProtector::Forget`](radic_wire::log::ToProtector::Forget).
    pub fn poll_forget(&mut self) -> Option<Forgettable> {
        self.table.poll_forget(&mut self.outbox)
    }

    /// A connection of which neither side will ask anything any more: the node is to be told.
    pub fn poll_over(&mut self) -> Option<ConnectionId> {
        self.table.poll_over()
    }

    /// The acceptor `peer` reports a broken link of a connection that this process no longer has. Returns the `Forget` to repeat,
    /// if it was forgotten.
    pub fn forgotten(&self, connection: ConnectionId, peer: ProcessId) -> Option<Forgettable> {
        self.table.forgotten(connection, peer, self.phase())
    }
}
