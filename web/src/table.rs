//! Rows by their names, in the order in which they came last. Nearly always they come in that order again, so a row is found where the one before it ends.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// See the module.
#[derive(Debug)]
pub struct Table<K, R> {
    rows: Vec<Entry<K, R>>,
    /// Where each row is, if in this look they have come in another order than in the one before.
    places: HashMap<K, usize>,
    /// Which look this is.
    look: u64,
    /// Rows that have come in this look.
    come: usize,
    /// Where the next one is likely to be.
    next: usize,
    /// What was there when changes were taken last, and is no more.
    gone: BTreeSet<K>,
}

#[derive(Debug)]
struct Entry<K, R> {
    name: K,
    row: R,
    changed: bool,
    /// The last look in which it was there, and after how many others it came.
    look: u64,
    order: usize,
}

/// A row that has come.
#[derive(Debug)]
pub struct Come<'a, R> {
    /// The row.
    pub row: &'a mut R,
    /// It must be told.
    pub changed: &'a mut bool,
    /// It has come in this look already.
    pub again: bool,
}

impl<K, R> Default for Table<K, R> {
    fn default() -> Self {
        Table { rows: Vec::new(), places: HashMap::new(), look: 0, come: 0, next: 0, gone: BTreeSet::new() }
    }
}

impl<K: Clone + Eq + Hash + Ord, R> Table<K, R> {
    /// All rows come, one after the other.
    pub fn begin(&mut self) {
        self.look += 1;
        (self.come, self.next) = (0, 0);
    }

    /// The row of this name, made if there is none.
    pub fn come(&mut self, name: &K, make: impl FnOnce() -> R) -> Come<'_, R> {
        let place = match self.rows.get(self.next) {
            Some(entry) if entry.name == *name => self.next,
            _ => self.place(name).unwrap_or(self.rows.len()),
        };
        if place == self.rows.len() {
            self.gone.remove(name);
            self.places.insert(name.clone(), place);
            self.rows.push(Entry { name: name.clone(), row: make(), changed: true, look: 0, order: 0 });
        }
        (self.next, self.come) = (place + 1, self.come + 1);
        // `place` is that of a row by now.
        #[allow(clippy::indexing_slicing, reason = "it was found there, or has been put there")]
        let entry = &mut self.rows[place];
        let again = entry.look == self.look;
        if !again {
            (entry.look, entry.order) = (self.look, self.come);
        }
        Come { row: &mut entry.row, changed: &mut entry.changed, again }
    }

    fn place(&mut self, name: &K) -> Option<usize> {
        if self.places.is_empty() {
            self.places = self.rows.iter().enumerate().map(|(at, entry)| (entry.name.clone(), at)).collect();
        }
        self.places.get(name).copied()
    }

    /// All have come: those that have not are gone. The others are in the order in which they came.
    pub fn end(&mut self) {
        if !self.places.is_empty() || self.come < self.rows.len() {
            let (look, gone) = (self.look, &mut self.gone);
            self.rows.retain(|entry| {
                let is_there = entry.look == look;
                if !is_there {
                    gone.insert(entry.name.clone());
                }
                is_there
            });
            self.rows.sort_by_key(|entry| entry.order);
            self.places = HashMap::new();
        }
    }

    /// Whether there is something to be told.
    pub fn has_changed(&self) -> bool {
        !self.gone.is_empty() || self.rows.iter().any(|entry| entry.changed)
    }

    /// What has changed since this was asked last; None: it is gone.
    pub fn take_changes(&mut self) -> Vec<(&K, Option<&R>)> {
        let (rows, gone) = (&mut self.rows, &self.gone);
        let changed =
            rows.iter_mut().filter_map(|entry| std::mem::take(&mut entry.changed).then_some((&entry.name, Some(&entry.row))));
        changed.chain(gone.iter().map(|name| (name, None))).collect()
    }

    /// That was told.
    pub fn forget_gone(&mut self) {
        self.gone.clear();
    }

    /// All of it.
    pub fn all(&self) -> Vec<(&K, Option<&R>)> {
        self.rows.iter().map(|entry| (&entry.name, Some(&entry.row))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn look(table: &mut Table<u8, u8>, names: &[u8], value: u8) {
        table.begin();
        for name in names {
            let come = table.come(name, || value);
            *come.changed |= std::mem::replace(come.row, value) != value;
        }
        table.end();
    }

    proptest! {
        /// The changes make the whole, whatever comes in whatever order.
        #[test]
        fn changes_make_the_whole(looks in prop::collection::vec((prop::collection::vec(0u8..9, 0..9), 0u8..2, any::<bool>()), 1..20)) {
            let (mut table, mut told) = (Table::default(), BTreeMap::new());
            for (names, value, is_told) in looks {
                look(&mut table, &names, value);
                let all: BTreeMap<u8, u8> = table.all().into_iter().map(|(name, row)| (*name, *row.unwrap())).collect();
                prop_assert_eq!(&all, &names.iter().map(|name| (*name, value)).collect());
                prop_assert_eq!(all.len(), table.all().len());
                if is_told {
                    let has_changed = table.has_changed();
                    let changes = table.take_changes();
                    prop_assert_eq!(has_changed, !changes.is_empty());
                    let names: BTreeSet<u8> = changes.iter().map(|(name, _)| **name).collect();
                    prop_assert_eq!(names.len(), changes.len(), "each is told once");
                    for (name, row) in changes {
                        match row {
                            Some(row) => _ = told.insert(*name, *row),
                            None => _ = told.remove(name),
                        }
                    }
                    table.forget_gone();
                    prop_assert_eq!(&told, &all);
                    prop_assert!(!table.has_changed());
                }
            }
        }
    }

    #[test]
    fn rows_are_in_the_order_in_which_they_came_last() {
        let mut table = Table::default();
        let order = |table: &Table<u8, u8>| table.all().iter().map(|(name, _)| **name).collect::<Vec<_>>();
        look(&mut table, &[1, 2, 3], 0);
        look(&mut table, &[3, 1, 4, 2], 0);
        assert_eq!(order(&table), [3, 1, 4, 2]);
        look(&mut table, &[3, 4, 2, 3], 0);
        assert_eq!(order(&table), [3, 4, 2]);
        assert!(table.places.is_empty());
    }
}
