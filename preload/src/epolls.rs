//! What the program's epolls watch. The kernel gets a key of ours with each watched descriptor, and gives it back with each event: so it is known which
//! descriptor is ready (a determinant names descriptors, never the program's word, which holds addresses), and which word the program wants to see.
//!
//! The kernel knows a watch by descriptor *and* open file: a number that was closed and used again may be watched twice, if the first file stays open
//! under another number, in this process or in a child. Such a watch can be reported still, but no call can name it any more. So a key names one watch
//! with one word forever; the last `REMEMBERED` that ended are remembered, with their words.
//!
//! A watch ends with its number: the next file under that number is watched when the program says so, and not before.
//!
//! No system call here: [`Epoll::control`] is handed the kernel's.

use std::collections::{BTreeMap, VecDeque};

use rustix::io::Errno;

/// Ended watches of an epoll that are remembered with their words.
const REMEMBERED: usize = 1_024;

/// `epoll_ctl`'s operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// EPOLL_CTL_ADD.
    Add,
    /// EPOLL_CTL_MOD.
    Modify,
    /// EPOLL_CTL_DEL.
    Delete,
}

/// One watched descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch {
    /// Its number when it was added.
    pub fd: i32,
    /// The events that are wanted, with EPOLLET and the like.
    pub events: u32,
    /// The program's word.
    pub word: u64,
    /// An EPOLLONESHOT that was reported without the kernel: what the kernel says is not for the program, until it is modified.
    pub disarmed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    generation: u32,
    watch: Watch,
}

/// One epoll: perhaps under several descriptors.
#[derive(Debug, Default)]
pub struct Epoll {
    places: Vec<Place>,
    /// The newest watch of each descriptor.
    newest: BTreeMap<i32, u32>,
    /// Places of watches that have ended, the oldest first.
    ended: VecDeque<u32>,
    /// When it was last looked whether something protected is watched, in whatever numbers the caller counts by.
    pub looked: Option<Looked>,
}

/// The state of things that may make a watched descriptor a protected one.
pub type Looked = (u32, usize, u64);

impl Epoll {
    fn key(&self, index: u32) -> u64 {
        u64::from(self.places[index as usize].generation) << 32 | u64::from(index)
    }

    /// A place for a watch that the kernel may refuse.
    fn place(&mut self, watch: Watch) -> u32 {
        if self.ended.len() > REMEMBERED
            && let Some(index) = self.ended.pop_front()
        {
            let place = &mut self.places[index as usize];
            *place = Place { generation: place.generation.wrapping_add(1), watch };
            return index;
        }
        self.places.push(Place { generation: 0, watch });
        u32::try_from(self.places.len() - 1).expect("descriptors and remembered watches are far fewer than 2^32")
    }

    /// `epoll_ctl`. `kernel` does it: with the operation, and the key for the event.
    pub fn control(
        &mut self,
        operation: Operation,
        fd: i32,
        events: u32,
        word: u64,
        kernel: impl FnOnce(Operation, u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let watch = Watch { fd, events, word, disarmed: false };
        let known = self.newest.get(&fd).copied();
        match (operation, known) {
            (Operation::Delete, _) => {
                kernel(operation, 0)?;
                self.newest.remove(&fd);
                self.ended.extend(known);
            }
            // What is modified gets a key of its own, too: under this number there may be an older file again, with another watch than the newest. One
            // that is modified without being known was inherited, or added before the library was there.
            (Operation::Add | Operation::Modify, _) => {
                let index = self.place(watch);
                if let Err(error) = kernel(operation, self.key(index)) {
                    self.ended.push_back(index);
                    return Err(error);
                }
                // The file that was watched under this number is another one, or closed.
                self.ended.extend(self.newest.insert(fd, index));
            }
        }
        Ok(())
    }

    /// What an event with this key is about; none: a watch that ended long ago.
    pub fn find(&self, key: u64) -> Option<&Watch> {
        let place = self.places.get(key as u32 as usize)?;
        (place.generation == (key >> 32) as u32).then_some(&place.watch)
    }

    /// The newest watch of a descriptor, and its key.
    pub fn of(&self, fd: i32) -> Option<(u64, &Watch)> {
        let index = *self.newest.get(&fd)?;
        Some((self.key(index), &self.places[index as usize].watch))
    }

    /// The watch that an outcome means by the number `fd`: the newest, or else the last that has ended. A file that is open under
    /// another number may be reported by the number that is closed.
    pub fn meant_by(&self, fd: i32) -> Option<&Watch> {
        let is_it = |watch: &&Watch| watch.fd == fd;
        let ended = || self.ended.iter().rev().map(|index| &self.places[*index as usize].watch).find(is_it);
        self.of(fd).map(|(_, watch)| watch).or_else(ended)
    }

    /// The number `fd` is closed: what the program watches under it from now on is another file.
    pub fn number_closed(&mut self, fd: i32) {
        self.ended.extend(self.newest.remove(&fd));
    }

    /// The watched descriptors, by number.
    pub fn watched(&self) -> impl Iterator<Item = &Watch> {
        self.newest.values().map(|index| &self.places[*index as usize].watch)
    }

    /// The program was told of an EPOLLONESHOT without the kernel. Its key, for the kernel to be told that it is over; none: it is no such watch.
    pub fn disarm(&mut self, fd: i32) -> Option<u64> {
        let index = *self.newest.get(&fd)?;
        let watch = &mut self.places[index as usize].watch;
        if watch.events & libc::EPOLLONESHOT as u32 == 0 {
            return None;
        }
        watch.disarmed = true;
        Some(self.key(index))
    }
}

/// The program's epolls, by descriptor.
#[derive(Debug, Default)]
pub struct Epolls {
    numbers: BTreeMap<i32, usize>,
    epolls: Vec<Epoll>,
    free: Vec<usize>,
}

impl Epolls {
    /// None.
    pub const fn new() -> Self {
        Epolls { numbers: BTreeMap::new(), epolls: Vec::new(), free: Vec::new() }
    }

    /// The program has made an epoll.
    pub fn created(&mut self, fd: i32) {
        self.closed(fd);
        let index = self.free.pop().unwrap_or_else(|| {
            self.epolls.push(Epoll::default());
            self.epolls.len() - 1
        });
        self.numbers.insert(fd, index);
    }

    /// `new` is another descriptor of the epoll `old`.
    pub fn duplicated(&mut self, old: i32, new: i32) {
        if let Some(index) = self.numbers.get(&old).copied().filter(|_| old != new) {
            self.closed(new);
            self.numbers.insert(new, index);
        }
    }

    /// `fd` is closed, or something else now.
    pub fn closed(&mut self, fd: i32) {
        let Some(index) = self.numbers.remove(&fd) else { return };
        if self.numbers.values().all(|other| *other != index) {
            self.epolls[index] = Epoll::default();
            self.free.push(index);
        }
    }

    /// The number `fd` is closed: no epoll watches anything under it.
    pub fn number_closed(&mut self, fd: i32) {
        self.epolls.iter_mut().for_each(|epoll| epoll.number_closed(fd));
    }

    /// The epoll of a descriptor.
    pub fn get(&self, fd: i32) -> Option<&Epoll> {
        self.numbers.get(&fd).map(|index| &self.epolls[*index])
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, fd: i32) -> Option<&mut Epoll> {
        self.numbers.get(&fd).map(|index| &mut self.epolls[*index])
    }

    /// The epolls, each by one of its descriptors.
    pub fn all(&self) -> impl Iterator<Item = (i32, &Epoll)> {
        let first = |index: usize| self.numbers.iter().find(|(_, of)| **of == index).map(|(fd, _)| *fd);
        self.epolls.iter().enumerate().filter_map(move |(index, epoll)| Some((first(index)?, epoll)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ok(_: Operation, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    /// The kernel's side: watches by descriptor and open file, with the words that the program gave, beside the keys that we gave.
    #[derive(Default)]
    struct Kernel {
        watches: BTreeMap<(i32, u32), (u64, u64)>,
        /// The open file under each number.
        files: BTreeMap<i32, u32>,
    }

    impl Kernel {
        fn control(&mut self, operation: Operation, fd: i32, key: u64, word: u64) -> Result<(), Errno> {
            let file = *self.files.get(&fd).ok_or(Errno::BADF)?;
            let there = self.watches.contains_key(&(fd, file));
            match operation {
                Operation::Add if there => return Err(Errno::EXIST),
                Operation::Modify | Operation::Delete if !there => return Err(Errno::NOENT),
                Operation::Delete => _ = self.watches.remove(&(fd, file)),
                Operation::Add | Operation::Modify => _ = self.watches.insert((fd, file), (key, word)),
            }
            Ok(())
        }

        /// A file that no number has is closed, unless a child keeps it.
        fn close(&mut self, fd: i32, kept: bool) {
            let Some(file) = self.files.remove(&fd) else { return };
            if !kept && self.files.values().all(|other| *other != file) {
                self.watches.retain(|(_, of), _| *of != file);
            }
        }
    }

    proptest! {
        /// Whatever is closed, duplicated and watched: each event of the kernel gets the word that the program gave for that watch, and each
        /// call fails when the kernel's does.
        #[test]
        fn words_come_back(steps in prop::collection::vec((0u8..7, 0i32..5, 0i32..5, any::<bool>()), 1..200)) {
            let (mut kernel, mut epoll, mut next) = (Kernel::default(), Epoll::default(), 0u32);
            for (word, (what, fd, other, kept)) in (100u64..).zip(steps) {
                match what {
                    0 => {
                        epoll.number_closed(fd);
                        kernel.close(fd, kept);
                        next += 1;
                        kernel.files.insert(fd, next);
                    }
                    1 => {
                        epoll.number_closed(fd);
                        kernel.close(fd, kept);
                    }
                    2 => {
                        if let Some(file) = kernel.files.get(&fd).copied().filter(|_| fd != other) {
                            epoll.number_closed(other);
                            kernel.close(other, kept);
                            kernel.files.insert(other, file);
                        }
                    }
                    _ => {
                        let operation = [Operation::Add, Operation::Add, Operation::Modify, Operation::Delete][usize::from(what - 3)];
                        let mut said = Ok(());
                        let result = epoll.control(operation, fd, 1, word, |operation, key| {
                            said = kernel.control(operation, fd, key, word);
                            said
                        });
                        prop_assert_eq!(result, said);
                    }
                }
                for ((fd, file), (key, word)) in &kernel.watches {
                    let watch = epoll.find(*key).map(|watch| (watch.fd, watch.word));
                    prop_assert_eq!(watch, Some((*fd, *word)), "{} of file {}", fd, file);
                }
                // Whatever is known as a watch of a number now is one of the kernel's, of the file that is there now.
                for fd in epoll.watched().map(|watch| watch.fd) {
                    let file = kernel.files.get(&fd).copied();
                    prop_assert!(file.is_some_and(|file| kernel.watches.contains_key(&(fd, file))), "{} is not watched", fd);
                }
            }
        }
    }

    /// A number is watched for one file, then for a second one, and gets the first again: that watch is modified, and the other keeps its word.
    #[test]
    fn a_modified_watch_takes_no_other_watch_s_word() {
        let mut epoll = Epoll::default();
        epoll.control(Operation::Add, 5, 1, 70, ok).unwrap();
        epoll.control(Operation::Add, 5, 1, 71, ok).unwrap();
        let second = epoll.of(5).unwrap().0;
        epoll.control(Operation::Modify, 5, 1, 72, ok).unwrap();
        assert_eq!(epoll.of(5).map(|(_, watch)| watch.word), Some(72));
        assert_eq!(epoll.find(second).map(|watch| watch.word), Some(71));
    }

    /// The number of a connection that was closed is the next connection's: no epoll watches that yet.
    #[test]
    fn a_watch_ends_with_its_number() {
        let mut epolls = Epolls::new();
        epolls.created(3);
        epolls.get_mut(3).unwrap().control(Operation::Add, 8, 1, 70, ok).unwrap();
        let key = epolls.get(3).unwrap().of(8).unwrap().0;
        epolls.number_closed(8);
        let epoll = epolls.get_mut(3).unwrap();
        assert!(epoll.of(8).is_none() && epoll.watched().next().is_none());
        assert_eq!(epoll.find(key).map(|watch| watch.word), Some(70), "it may be open under another number");
        assert_eq!(epoll.meant_by(8).map(|watch| watch.word), Some(70));
        epoll.control(Operation::Add, 8, 1, 71, ok).unwrap();
        assert_eq!(epoll.meant_by(8).map(|watch| watch.word), Some(71));
        assert!(epoll.meant_by(9).is_none());
    }

    #[test]
    fn ended_watches_are_remembered_for_a_while_and_memory_is_bounded() {
        let mut epoll = Epoll::default();
        epoll.control(Operation::Add, 5, 1, 77, ok).unwrap();
        let first = epoll.of(5).unwrap().0;
        for word in 0..REMEMBERED as u64 {
            epoll.control(Operation::Add, 5, 1, word, ok).unwrap();
        }
        assert_eq!(epoll.find(first).map(|watch| watch.word), Some(77));
        (0..2).for_each(|word| epoll.control(Operation::Add, 5, 1, word, ok).unwrap());
        assert_eq!(epoll.find(first), None, "its place is another's");
        for word in 0..10_000 {
            epoll.control(Operation::Add, 6, 1, word, ok).unwrap();
            epoll.control(Operation::Delete, 6, 0, 0, ok).unwrap();
        }
        assert!(epoll.places.len() <= REMEMBERED + 3, "{}", epoll.places.len());
        assert_eq!(epoll.watched().count(), 1);
    }

    #[test]
    fn a_oneshot_is_over_until_it_is_modified() {
        let mut epoll = Epoll::default();
        let oneshot = libc::EPOLLONESHOT as u32 | 1;
        epoll.control(Operation::Add, 5, 1, 7, ok).unwrap();
        assert_eq!(epoll.disarm(5), None);
        epoll.control(Operation::Modify, 5, oneshot, 8, ok).unwrap();
        let key = epoll.disarm(5).unwrap();
        assert!(epoll.find(key).unwrap().disarmed);
        epoll.control(Operation::Modify, 5, oneshot, 9, ok).unwrap();
        let watch = epoll.of(5).map(|(_, watch)| *watch);
        assert_eq!(watch, Some(Watch { fd: 5, events: oneshot, word: 9, disarmed: false }));
    }

    #[test]
    fn a_refused_call_changes_nothing() {
        let mut epoll = Epoll::default();
        let no = |_: Operation, _: u64| Err(Errno::PERM);
        assert_eq!(epoll.control(Operation::Add, 5, 1, 7, no), Err(Errno::PERM));
        assert!(epoll.of(5).is_none());
        epoll.control(Operation::Add, 5, 1, 7, ok).unwrap();
        for operation in [Operation::Add, Operation::Modify, Operation::Delete] {
            assert_eq!(epoll.control(operation, 5, 2, 8, no), Err(Errno::PERM));
        }
        assert_eq!(epoll.of(5).map(|(_, watch)| (watch.events, watch.word)), Some((1, 7)));
    }

    #[test]
    fn an_epoll_lives_as_long_as_one_of_its_descriptors() {
        let mut epolls = Epolls::new();
        epolls.created(3);
        epolls.get_mut(3).unwrap().control(Operation::Add, 5, 1, 7, ok).unwrap();
        epolls.duplicated(3, 4);
        epolls.closed(3);
        assert!(epolls.get(3).is_none() && epolls.get(4).unwrap().of(5).is_some());
        // The number is used again before it was said that it was closed.
        epolls.created(4);
        assert!(epolls.get(4).unwrap().of(5).is_none());
        assert_eq!(epolls.all().map(|(fd, _)| fd).collect::<Vec<_>>(), [4]);
        for _ in 0..100 {
            epolls.created(6);
            epolls.closed(6);
        }
        assert!(epolls.epolls.len() <= 2);
    }
}
