//! Views with the places of their members, each computed once: a machine adopts a moment later what it accepted, and in a
//! simulation all machines share one [`Views`]. Without that ten thousand machines would hold ten thousand views of ten thousand
//! members each.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use radic_wire::ids::NodeId;
use radic_wire::membership::{BadView, Change, View};

/// Views that are remembered: one that is decided, and some that were merely proposed beside it.
const REMEMBERED: usize = 4;

/// A view, and where in it each member stands.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) view: Arc<View>,
    pub(super) index: Arc<BTreeMap<NodeId, usize>>,
    /// The changes by which it came of the view before; none if it came whole.
    pub(super) why: Arc<[Change]>,
}

impl Known {
    fn new(view: Arc<View>) -> Known {
        let index = view.members.iter().enumerate().map(|(i, member)| (member.id.clone(), i)).collect();
        Known { view, index: Arc::new(index), why: Arc::new([]) }
    }
}

/// A view that was computed: from which view, unless it came whole.
#[derive(Debug)]
struct Remembered {
    from: Option<Arc<View>>,
    known: Known,
}

/// The views that were computed last. A clone is the same memory.
#[derive(Debug, Clone, Default)]
pub struct Views(Rc<RefCell<VecDeque<Remembered>>>);

impl Views {
    /// The view that follows `view` when `changes` are made: [`View::next`].
    pub(super) fn next(&self, view: &Arc<View>, changes: &[Change]) -> Result<Known, BadView> {
        let is_from = |from: &Arc<View>| Arc::ptr_eq(from, view);
        let is_it = |remembered: &Remembered| remembered.from.as_ref().is_some_and(is_from) && *remembered.known.why == *changes;
        if let Some(known) = self.find(is_it) {
            return Ok(known);
        }
        let next = view.next(changes)?;
        // Another machine may have come to the same view by other steps, or was sent it whole.
        let known = self.find(|remembered| *remembered.known.view == next).unwrap_or_else(|| Known::new(Arc::new(next)));
        let known = Known { why: changes.into(), ..known };
        self.remember(Remembered { from: Some(view.clone()), known: known.clone() });
        Ok(known)
    }

    /// A view that came whole.
    pub(super) fn whole(&self, view: View) -> Known {
        self.find(|remembered| *remembered.known.view == view).unwrap_or_else(|| self.add(Arc::new(view)))
    }

    /// A view that others have, too.
    pub(super) fn shared(&self, view: &Arc<View>) -> Known {
        self.find(|remembered| Arc::ptr_eq(&remembered.known.view, view)).unwrap_or_else(|| self.add(view.clone()))
    }

    fn add(&self, view: Arc<View>) -> Known {
        let known = Known::new(view);
        self.remember(Remembered { from: None, known: known.clone() });
        known
    }

    fn find(&self, is_it: impl Fn(&Remembered) -> bool) -> Option<Known> {
        self.0.borrow().iter().find(|remembered| is_it(remembered)).map(|remembered| remembered.known.clone())
    }

    fn remember(&self, new: Remembered) {
        let mut all = self.0.borrow_mut();
        all.push_back(new);
        while all.len() > REMEMBERED {
            all.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sim::member;
    use super::*;

    #[test]
    fn a_view_is_worked_out_once_however_one_comes_to_it() {
        let views = Views::default();
        let first = views.whole(View::founded_by(member(0, 1)));
        let joins = [Change::Join(member(1, 1))];
        let next = views.next(&first.view, &joins).unwrap();
        assert_eq!(*next.view, first.view.next(&joins).unwrap());
        assert_eq!(next.index[&member(1, 1).id], 1);
        let again =
            [views.clone().next(&first.view, &joins).unwrap(), views.whole(View::clone(&next.view)), views.shared(&next.view)];
        assert!(again.iter().all(|known| Arc::ptr_eq(&known.view, &next.view) && Arc::ptr_eq(&known.index, &next.index)));
        let other = views.next(&first.view, &[Change::Join(member(2, 1))]).unwrap();
        assert_ne!(other.view, next.view);
        assert!(views.next(&first.view, &[Change::Dead(member(9, 1).id)]).is_err());
    }

    #[test]
    fn few_are_remembered() {
        let views = Views::default();
        let mut known = views.whole(View::founded_by(member(0, 1)));
        for i in 1..50 {
            known = views.next(&known.view, &[Change::Join(member(i, 1))]).unwrap();
        }
        assert_eq!(views.0.borrow().len(), REMEMBERED);
        assert_eq!(known.view.members.len(), 50);
    }
}
