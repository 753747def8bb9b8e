//! What this log server is for one process: whether it leads, follows, or has let the process go, and how far its replica is.

/// Whether another protector has what a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Elsewhere {
    /// The process speaks here, or did so last.
    #[default]
    No,
    /// Another protector forwards all of it, and acknowledges nothing that is not here.
    Forwards,
    /// Another protector has it since. What is held here may be less than that one has acknowledged.
    Since,
    /// The process speaks here again. What it had said to another protector before is on the way, up to these ends of its journal
    /// and its payload.
    Until(u64, u64),
}

/// How far the replica has acknowledged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replica {
    pub(super) journal: u64,
    pub(super) payload: u64,
    pub(super) causes: u64,
    /// Hellos that it has not answered.
    owed: u32,
}

impl Replica {
    /// The replica is said hello to, and counts for what is stable here already.
    pub(super) fn at(journal: u64, payload: u64) -> Replica {
        Replica { journal, payload, causes: 0, owed: 1 }
    }

    /// The replica is said hello to for the next incarnation, whose payload begins at 0.
    pub(super) fn renew(&mut self) {
        self.payload = 0;
        self.owed += 1;
    }

    /// The replica has answered a hello. It may have had all of the log before it was told, and says so only once.
    pub(super) fn handle_welcome(&mut self, journal: u64, payload: u64) {
        self.owed = self.owed.saturating_sub(1);
        self.handle_journal(journal);
        self.handle_payload(payload);
    }

    pub(super) fn handle_journal(&mut self, position: u64) {
        self.journal = self.journal.max(position);
    }

    /// Positions in the payload belong to an incarnation. What comes before the answer to the last hello is of the one before.
    pub(super) fn handle_payload(&mut self, position: u64) {
        if self.owed == 0 {
            self.payload = self.payload.max(position);
        }
    }
}

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub(super) struct Role {
    pub(super) elsewhere: Elsewhere,
    /// Where the journal and the payload of the process ended when it last said hello. No more than that can have been
    /// acknowledged elsewhere.
    pub(super) told: (u64, u64),
    /// How much of both an image covers that has begun here: a replica that has committed it has as much, whatever has come here.
    pub(super) covered: (u64, u64),
    pub(super) replica: Option<Replica>,
}

impl Role {
    /// Whether nothing was acknowledged elsewhere that is not here, with a journal and a payload that end there.
    pub(super) fn is_current(&self, journal: u64, payload: u64) -> bool {
        match self.elsewhere {
            Elsewhere::No => true,
            Elsewhere::Until(journal_end, payload_end) => journal >= journal_end && payload >= payload_end,
            Elsewhere::Forwards | Elsewhere::Since => false,
        }
    }

    /// The process speaks here again.
    pub(super) fn take_up(&mut self) {
        self.elsewhere = Elsewhere::Until(self.told.0, self.told.1);
    }
}
