//! How the last views came about, for members that have missed some.
//!
//! A member passes every view, one after the other, also when it hears of several at once: where the ranks of lost nodes go depends
//! on the view in which each was lost. A node that saw only the last view would place them elsewhere than the others.

use std::collections::VecDeque;
use std::sync::Arc;

use radic_wire::limits;
use radic_wire::membership::{Change, Departure};

use super::output::Loss;
use super::views::Known;

/// The changes that led to the last views, oldest first.
#[derive(Debug, Default)]
pub(super) struct Steps {
    steps: VecDeque<Arc<[Change]>>,
    changes: usize,
}

impl Steps {
    /// These changes led to the view that is now the newest. The oldest steps are forgotten beyond
    /// [`limits::REMEMBERED_CHANGES`], but not the last one.
    pub(super) fn push(&mut self, changes: Arc<[Change]>) {
        self.changes += changes.len();
        self.steps.push_back(changes);
        while self.steps.len() > 1 && (self.changes > limits::REMEMBERED_CHANGES || self.steps.len() > limits::DEPARTED) {
            self.changes -= self.steps.pop_front().map_or(0, |oldest| oldest.len());
        }
    }

    /// The steps from view `from` to the newest one, which has the number `newest`; none if they are not all remembered.
    pub(super) fn since(&self, from: u64, newest: u64) -> Option<Vec<Vec<Change>>> {
        let count = usize::try_from(newest.checked_sub(from)?).ok()?;
        let first = self.steps.len().checked_sub(count)?;
        Some(self.steps.range(first..).map(|changes| changes.to_vec()).collect())
    }
}

/// The members that `after`, the next view, has lost, in the order in which the view before has them.
pub(super) fn losses(before: &Known, after: &Known) -> Vec<Loss> {
    let removed = |change: &Change| match change {
        Change::Join(_) => None,
        Change::Dead(id) => Some((*before.index.get(id)?, Departure::Died)),
        Change::Leave(id) => Some((*before.index.get(id)?, Departure::Left)),
    };
    let mut removed: Vec<(usize, Departure)> = after.why.iter().filter_map(removed).collect();
    removed.sort_unstable_by_key(|(place, _)| *place);
    let loss = |(place, how): (usize, Departure)| Loss {
        before: before.view.clone(),
        after: after.view.clone(),
        member: before.view.members[place].clone(),
        how,
    };
    removed.into_iter().map(loss).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use radic_wire::membership::{MembershipBody, MembershipMessage, View};

    use super::super::Output;
    use super::super::sim::{Sim, member};
    use super::super::views::Views;
    use super::*;

    fn joins(count: usize) -> Arc<[Change]> {
        (0..count).map(|i| Change::Join(member(i, 1))).collect()
    }

    #[test]
    fn only_a_whole_way_is_given() {
        let mut steps = Steps::default();
        (1..=3).for_each(|count| steps.push(joins(count)));
        let counts = |from| steps.since(from, 10).map(|steps| steps.iter().map(Vec::len).collect::<Vec<_>>());
        assert_eq!(counts(10), Some(vec![]));
        assert_eq!(counts(8), Some(vec![2, 3]));
        assert_eq!(counts(7), Some(vec![1, 2, 3]));
        assert_eq!((counts(6), counts(0), counts(11)), (None, None, None));
    }

    #[test]
    fn the_last_step_is_remembered_however_large_it_is() {
        let mut steps = Steps::default();
        steps.push(joins(1));
        steps.push(joins(limits::REMEMBERED_CHANGES));
        assert_eq!((steps.since(8, 10).is_some(), steps.since(9, 10).is_some()), (false, true));
        (0..2 * limits::DEPARTED).for_each(|_| steps.push(joins(1)));
        assert_eq!(steps.steps.len(), limits::DEPARTED);
    }

    #[test]
    fn a_view_loses_its_members_in_their_order() {
        let views = Views::default();
        let before = views.next(&views.whole(View::founded_by(member(0, 1))).view, &joins(5)[1..]).unwrap();
        let changes = [Change::Leave(member(3, 1).id), Change::Join(member(7, 1)), Change::Dead(member(1, 1).id)];
        let after = views.next(&before.view, &changes).unwrap();
        let lost: Vec<_> = losses(&before, &after).into_iter().map(|loss| (loss.member.id, loss.how)).collect();
        assert_eq!(lost, [(member(1, 1).id, Departure::Died), (member(3, 1).id, Departure::Left)]);
    }

    #[test]
    fn a_member_that_missed_more_than_others_remember_ends() {
        let mut sim = Sim::formed(17, 3);
        let (cluster, number) = (sim.newest().cluster, sim.newest().number + 9);
        let machine = &mut sim.nodes[0].machine;
        let mut asked = Vec::new();
        let ended = 'ended: loop {
            let message = MembershipMessage { cluster: Some(cluster), view: number, body: MembershipBody::Forgotten };
            machine.handle_message(sim.now, member(9, 1).id, message);
            sim.now += machine.timing.ask();
            machine.handle_timeout(sim.now);
            while let Some(output) = machine.poll_output() {
                match output {
                    Output::Send { to, message } if message.body == MembershipBody::Ask => asked.push(to[0].id.name.to_string()),
                    Output::Outrun { number } => break 'ended number,
                    _ => {}
                }
            }
        };
        assert_eq!(ended, number);
        assert!(asked.len() >= super::super::FORGOTTEN, "{asked:?}");
        assert_eq!(asked[1..].iter().collect::<BTreeSet<_>>().len(), 2, "each of the others is asked: {asked:?}");
    }
}
