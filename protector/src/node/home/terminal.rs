//! The terminal of a job at its home: its output, and standard input.

use radic_wire::ids::{NodeId, NodeName, Rank};
use radic_wire::job::{EndReason, Outcome, OutputStream, exit_code};
use radic_wire::peer::{SessionId, StdinWanted, ToHost, ToSession, Unprotected};
use serde_bytes::ByteBuf;

use super::super::stdin::Next;
use super::relay::{Came, Effect, Piece};
use super::suspending::Stage;
use super::{Home, Phase};

impl Home {
    /// A node is lost, and the terminals on it with it. Without this, the output would wait forever for such a terminal to
    /// print.
    pub fn handle_terminal_lost(&mut self, node: &NodeId) {
        self.lose_terminal(node);
    }

    pub(super) fn lose_terminal(&mut self, node: &NodeId) {
        if self.suspending.as_ref().is_some_and(|suspending| suspending.session.node == *node) {
            self.thaw("the node of the command is lost");
        }
        if self.relay.terminal.as_ref().is_some_and(|t| t.node == *node) {
            self.drop_terminal();
        }
        self.waiters.retain(|w| w.node != *node);
    }

    pub(super) fn handle_stdin(&mut self, session: SessionId, offset: u64, data: ByteBuf) {
        if self.relay.terminal.as_ref() != Some(&session) || self.is_over() {
            return;
        }
        match self.stdin.handle_piece(session, offset, data) {
            Next::Pass { number, data } => self.tell_host(self.placement.home().clone(), ToHost::Stdin { number, data }),
            Next::Ask => self.ask_for_stdin(),
            Next::Wait => {}
        }
    }

    pub(super) fn handle_stdin_taken(&mut self, number: u64) {
        if self.stdin.handle_taken(number) {
            self.go_on_with_stdin();
        }
    }

    /// Rank 0 has another pipe, or will have one. What was in the old one and was not read is needed again.
    pub(super) fn restart_stdin(&mut self, wanted: StdinWanted) {
        self.stdin.restart(wanted);
        self.go_on_with_stdin();
    }

    fn go_on_with_stdin(&mut self) {
        self.ask_for_stdin();
        if let Some((session, offset, data)) = self.stdin.poll_waiting() {
            self.handle_stdin(session, offset, data);
        }
    }

    /// Tells the terminal, if there is one, which piece may come.
    fn ask_for_stdin(&mut self) {
        if let (Some(terminal), Some(from)) = (self.relay.terminal.clone(), self.stdin.asks_from()) {
            self.tell_session(terminal, ToSession::StdinFrom(from));
        }
    }

    /// The terminal is told of the first of each kind, if there is one; the events have all.
    pub(super) fn handle_unprotected(&mut self, kind: Unprotected, text: String) {
        if self.relay.terminal.is_some() && self.unprotected_told.insert(kind) {
            self.tell_terminal(text);
        }
    }

    /// What the terminal shows beside the output, if there is one.
    pub(super) fn tell_terminal(&mut self, text: String) {
        if let Some(terminal) = self.relay.terminal.clone() {
            self.tell_session(terminal, ToSession::Notice(text));
        }
    }

    pub(super) fn attach(&mut self, session: SessionId) {
        if let Some(old) = self.relay.terminal.take().filter(|old| *old != session) {
            self.tell_session(old, ToSession::TakenOver);
        }
        self.relay.put_back();
        let (placement, (consumed, dropped)) = (self.placement.clone(), self.relay.take_counts());
        let attached = ToSession::Attached { job: self.job, placement, consumed, dropped, protected: self.is_protected() };
        self.tell_session(session.clone(), attached);
        self.relay.terminal = Some(session);
        self.ask_for_stdin();
        self.pump();
    }

    pub(super) fn detach(&mut self, session: &SessionId) {
        self.waiters.remove(session);
        if self.suspending.as_ref().is_some_and(|suspending| suspending.session == *session) {
            self.thaw("the command is gone");
        }
        if self.relay.terminal.as_ref() == Some(session) {
            self.drop_terminal();
        }
    }

    fn drop_terminal(&mut self) {
        self.relay.terminal = None;
        self.relay.put_back();
        self.pump();
        self.check_frozen();
    }

    pub(super) fn tell_taken(&mut self, rank: Rank, stream: OutputStream, offset: u64) {
        let node = self.placement.node_of(rank).expect("checked when the piece came").clone();
        self.tell_host(node, ToHost::OutputTaken { rank, stream, offset });
    }

    /// A piece of output. A gap ends the job, because it would go unnoticed.
    pub(super) fn handle_output(&mut self, node: NodeName, piece: Piece) {
        let (rank, stream, end) = (piece.rank, piece.stream, piece.end());
        match self.suspending.as_mut().map(|suspending| &mut suspending.stage) {
            Some(Stage::Stopped { held }) => return held.push_back((node, piece)),
            // The resumed job writes it once more, so the host need not wait until it is printed.
            Some(Stage::Written) => return self.tell_taken(rank, stream, end),
            Some(Stage::Waiting | Stage::Stopping { .. }) | None => {}
        }
        match self.relay.handle_output(piece) {
            Came::New => self.pump(),
            Came::Before { taken } => self.tell_taken(rank, stream, taken),
            Came::Gap(bytes) => {
                let why = format!("{bytes} bytes of what rank {rank} wrote are lost");
                // No terminal prints this piece, but the host waits for it before it lets the job go.
                self.tell_taken(rank, stream, end);
                let reason = EndReason::RankLost { rank, node, why };
                self.end(Outcome { code: exit_code::NODE_LOST, reason });
            }
        }
    }

    /// Nothing more comes from this rank.
    pub(super) fn end_output(&mut self, rank: Rank) {
        self.relay.end(rank);
        self.pump();
    }

    pub(super) fn handle_printed(&mut self, session: &SessionId, bytes: u64) {
        if self.relay.terminal.as_ref() == Some(session) {
            self.relay.handle_printed(bytes);
            self.carry_out();
            self.pump();
            self.check_frozen();
        }
    }

    /// Moves output towards the terminal, and lets hosts read on for what has moved.
    pub(super) fn pump(&mut self) {
        if self.suspending.as_ref().is_some_and(|suspending| matches!(suspending.stage, Stage::Stopped { .. })) {
            return; // The command that writes the job down has the output.
        }
        let Some(terminal) = self.relay.terminal.clone() else {
            self.relay.keep(self.is_protected() && self.phase == Phase::Running);
            return self.carry_out();
        };
        self.relay.pump(&terminal, self.is_protected());
        self.carry_out();
        if self.is_over() && self.relay.is_empty() {
            let outcome = self.outcome.clone().expect("a job that is over has an outcome");
            self.relay.terminal = None;
            self.tell_session(terminal, ToSession::Ended(outcome));
        }
    }

    /// Does what the relay wants done.
    pub(super) fn carry_out(&mut self) {
        while let Some(effect) = self.relay.poll_effect() {
            match effect {
                Effect::Taken(rank, stream, offset) => self.tell_taken(rank, stream, offset),
                Effect::Show(terminal, output) => self.tell_session(terminal, output),
            }
        }
    }
}
