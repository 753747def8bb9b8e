//! G1: nothing leaves the process before every determinant that precedes it is stable.

use crate::causes::Causes;
use crate::journal::Journal;

/// Whether something may leave now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// What is to leave may leave.
    Open,
    /// What is to leave may do so when the journal is stable up to this position, and the protector has the causes of that.
    Shut(u64),
}

impl Gate {
    /// The gate of a process with this journal. Empty outcomes that no other followed are not waited for: after the log ends,
    /// Gate B repeats them until what left has left again. Before output, which no peer asks for again, they are recorded first:
    /// [`crate::Observer::gate_of_output`].
    pub fn of(journal: &Journal, causes: Option<&Causes>) -> Gate {
        let are_held = causes.is_none_or(|causes| causes.are_held(journal.end()));
        if journal.stable() >= journal.end() && are_held { Gate::Open } else { Gate::Shut(journal.end()) }
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::determinant::Determinant;

    use super::*;

    #[test]
    fn it_opens_when_the_last_outcome_is_stable_and_not_before() {
        let mut journal = Journal::new(256, 1, 32);
        assert_eq!(Gate::of(&journal, None), Gate::Open);
        journal.append(0, &Determinant::Eof { fd: 1 }).unwrap();
        let first = journal.end();
        journal.append(0, &Determinant::Eof { fd: 2 }).unwrap();
        assert_eq!(Gate::of(&journal, None), Gate::Shut(journal.end()));
        journal.poll_ship();
        journal.handle_stable(first).unwrap();
        assert_eq!(Gate::of(&journal, None), Gate::Shut(journal.end()));
        journal.handle_stable(journal.end()).unwrap();
        assert_eq!(Gate::of(&journal, None), Gate::Open);
        // The protector dies; the next one holds less.
        journal.handle_welcome(first).unwrap();
        assert_eq!(Gate::of(&journal, None), Gate::Shut(journal.end()));
    }
}
