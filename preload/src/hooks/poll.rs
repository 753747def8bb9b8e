//! Readiness: epoll, poll, select.

use std::ffi::{c_int, c_ulong};
use std::slice;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use radic_wire::limits::READY_FDS;
use rustix::io::Errno;

use super::result::finish_int;
use crate::epolls::Operation;
use crate::memory::discreetly;
use crate::ops::ready::{self, Limit};
use crate::{fds, ops, phase, pointers, real, sys, watches};

hooks! {
    unsafe fn epoll_create(size: c_int) -> c_int => on_epoll_create {
        created(unsafe { real!(epoll_create)(size) })
    }

    unsafe fn epoll_create1(flags: c_int) -> c_int => on_epoll_create1 {
        created(unsafe { real!(epoll_create1)(flags) })
    }

    unsafe fn epoll_wait(epoll: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int => on_epoll_wait {
        let limit = Limit { time: milliseconds(timeout), mask: None };
        unsafe { waited(epoll, events, room, limit).unwrap_or_else(|| real!(epoll_wait)(epoll, events, room, timeout)) }
    }

    unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int => on_poll {
        let limit = Limit { time: milliseconds(timeout), mask: None };
        unsafe { polled(fds, count, limit).unwrap_or_else(|| real!(poll)(fds, count, timeout)) }
    }

    unsafe fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int => on_poll_chk {
        unsafe { if fits(count, room) { on_poll(fds, count, timeout) } else { real!(__poll_chk)(fds, count, timeout, room) } }
    }

    unsafe fn __ppoll_chk(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t
    ) -> c_int => on_ppoll_chk {
        if !fits(count, room) {
            return unsafe { real!(__ppoll_chk)(fds, count, timeout, mask, room) };
        }
        unsafe { on_ppoll(fds, count, timeout, mask) }
    }

    unsafe fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    ) -> c_int => on_select {
        let ours = unsafe { selected_within(count, [read, write, except], timeout) };
        ours.unwrap_or_else(|| unsafe { real!(select)(count, read, write, except, timeout) })
    }

    unsafe fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int => on_pselect {
        let ours = unsafe { limit(timeout, mask).and_then(|limit| selected(count, [read, write, except], limit)) };
        let ours = ours.map(|result| finish_int(result, number));
        ours.unwrap_or_else(|| unsafe { real!(pselect)(count, read, write, except, timeout, mask) })
    }
}

redhook::hook! {
    // `polling` makes this call, too, so `real` finds what is behind it.
    unsafe fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int => on_epoll_ctl {
        control(epoll, operation, fd, event).unwrap_or_else(|| unsafe { real::epoll_ctl(epoll, operation, fd, event) })
    }
}

redhook::hook! {
    // `polling` makes this call, too, so `real` finds what is behind it.
    unsafe fn epoll_pwait(
        epoll: c_int, events: *mut epoll_event, room: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int => on_epoll_pwait {
        let limit = unsafe { signals(mask) }.map(|mask| Limit { time: milliseconds(timeout), mask });
        let ours = limit.and_then(|limit| unsafe { waited(epoll, events, room, limit) });
        ours.unwrap_or_else(|| unsafe { real::epoll_pwait(epoll, events, room, timeout, mask) })
    }
}

redhook::hook! {
    // `polling` makes this call, too, so `real` finds what is behind it.
    unsafe fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int => on_ppoll {
        let ours = unsafe { limit(timeout, mask).and_then(|limit| polled(fds, count, limit)) };
        ours.unwrap_or_else(|| unsafe { real::ppoll(fds, count, timeout, mask) })
    }
}

redhook::hook! {
    // Not every C library has it, so `real` finds what is behind it.
    unsafe fn epoll_pwait2(
        epoll: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int => on_epoll_pwait2 {
        let ours = unsafe { limit(timeout, mask).and_then(|limit| waited(epoll, events, room, limit)) };
        ours.unwrap_or_else(|| unsafe { real::epoll_pwait2(epoll, events, room, timeout, mask) })
    }
}

/// The kernel's limit on the descriptors of one `poll`, if `count` may be above it.
fn most_descriptors(count: nfds_t) -> nfds_t {
    /// A process that may open fewer has been given few on purpose.
    const ALWAYS: nfds_t = 64;
    if count <= ALWAYS {
        return ALWAYS;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(nfds_t::MAX).min(nfds_t::from(u32::MAX))
}

fn number(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

fn milliseconds(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| ms * 1_000_000)
}

/// A time as C has it; none: it is no valid one, and the kernel says so.
pub(super) fn nanoseconds(seconds: i64, rest: i64) -> Option<u64> {
    let rest = u64::try_from(rest).ok().filter(|rest| *rest < 1_000_000_000)?;
    Some(u64::try_from(seconds).ok()?.saturating_mul(1_000_000_000).saturating_add(rest))
}

/// The signals of a call with this pointer, which may be null; none: it leads nowhere, and the kernel says so.
unsafe fn signals<'a>(mask: *const sigset_t) -> Option<Option<&'a sigset_t>> {
    if mask.is_null() {
        return Some(None);
    }
    // As long as it is for the C library: the layer copies it.
    let there = pointers::is_readable(mask, size_of::<sigset_t>());
    if there { Some(unsafe { mask.as_ref() }) } else { None }
}

/// The limit of a call with these pointers, which may be null; none: the time is not valid, or a pointer leads nowhere.
unsafe fn limit<'a>(time: *const timespec, mask: *const sigset_t) -> Option<Limit<'a>> {
    let mask = unsafe { signals(mask) }?;
    if time.is_null() {
        return Some(Limit { time: None, mask });
    }
    let time = pointers::read(time)?;
    Some(Limit { time: Some(nanoseconds(time.tv_sec, time.tv_nsec)?), mask })
}

/// The program has a new epoll, if it was made.
fn created(epoll: c_int) -> c_int {
    watches::created(epoll);
    epoll
}

/// Changes what is watched, if that is ours to do.
fn control(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> Option<c_int> {
    let operation_of = match operation {
        libc::EPOLL_CTL_ADD => Some(Operation::Add),
        libc::EPOLL_CTL_MOD => Some(Operation::Modify),
        libc::EPOLL_CTL_DEL => Some(Operation::Delete),
        _ => None,
    };
    // Of what it is to delete the kernel does not look at the event.
    let event_there = if operation_of == Some(Operation::Delete) { None } else { pointers::read(event) };
    let (events, word) = event_there.map_or((0, 0), |event| (event.events, event.u64));
    // What the kernel refuses whatever we know: it says how.
    if operation_of == Some(Operation::Add) && ops::child::is_child() {
        ops::child::wait_for_callers(fd);
    }
    let ours = operation_of.filter(|operation| event_there.is_some() || *operation == Operation::Delete);
    let result = ours.and_then(|operation| watches::control(epoll, operation, fd, events, word))?;
    Some(finish_int(result, |()| 0))
}

/// Waits for events, if the epoll is one that we know.
#[inline(always)]
unsafe fn waited(epoll: c_int, events: *mut epoll_event, room: c_int, limit: Limit<'_>) -> Option<c_int> {
    /// The kernel refuses to tell more at once.
    const MOST_EVENTS: usize = c_int::MAX as usize / size_of::<epoll_event>();
    let room = usize::try_from(room).ok().filter(|room| (1..=MOST_EVENTS).contains(room))?;
    // The layer never tells of more.
    let room = room.min(READY_FDS);
    pointers::is_writable(events, room * size_of::<epoll_event>()).then_some(())?;
    let result = ready::epoll_wait(epoll, unsafe { slice::from_raw_parts_mut(events, room) }, limit)?;
    Some(finish_int(result, number))
}

/// Polls, if one of the descriptors is protected.
#[inline(always)]
unsafe fn polled(fds: *mut pollfd, count: nfds_t, limit: Limit<'_>) -> Option<c_int> {
    if count > most_descriptors(count) || !pointers::is_writable(fds, count as usize * size_of::<pollfd>()) {
        return None;
    }
    let count = count as usize;
    if count > 0 && !fds.is_aligned() {
        return unsafe { polled_unaligned(fds, count, limit) };
    }
    polled_aligned(if count == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(fds, count) } }, limit)
}

/// The kernel takes them, Rust does not.
#[cold]
unsafe fn polled_unaligned(fds: *mut pollfd, count: usize, limit: Limit<'_>) -> Option<c_int> {
    let mut copies: Vec<pollfd> = discreetly(|| (0..count).map(|at| unsafe { fds.add(at).read_unaligned() }).collect());
    let result = polled_aligned(&mut copies, limit);
    copies.iter().enumerate().for_each(|(at, entry)| unsafe { fds.add(at).write_unaligned(*entry) });
    discreetly(|| drop(copies));
    result
}

#[inline(always)]
fn polled_aligned(fds: &mut [pollfd], limit: Limit<'_>) -> Option<c_int> {
    if ops::child::is_child() {
        fds.iter().for_each(|entry| ops::child::wait_for_callers(entry.fd));
    }
    let result = ready::poll(fds, limit)?;
    Some(finish_int(result, number))
}

/// Too little room: the next one ends the program, as it does without us.
fn fits(count: nfds_t, room: size_t) -> bool {
    count as usize <= room / size_of::<pollfd>()
}

/// The sets of one `select`, which may be null, of descriptors below `count`. A set may be longer than an fd_set.
struct Sets {
    count: c_int,
    /// Read, write, except.
    sets: [*mut c_ulong; 3],
}

/// What `poll` calls that which each set asks for, and what the kernel counts as it.
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const TOLD: [i16; 3] = [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];
const BITS: usize = c_ulong::BITS as usize;

impl Sets {
    unsafe fn has(&self, set: usize, fd: c_int) -> bool {
        let (word, bit) = (fd as usize / BITS, fd as usize % BITS);
        !self.sets[set].is_null() && unsafe { self.sets[set].add(word).read_unaligned() } >> bit & 1 == 1
    }

    unsafe fn clear(&self) {
        let words = (self.count as usize).div_ceil(BITS);
        for set in self.sets.iter().filter(|set| !set.is_null()) {
            unsafe { set.write_bytes(0, words) };
        }
    }

    unsafe fn set(&self, set: usize, fd: c_int) {
        let word = unsafe { self.sets[set].add(fd as usize / BITS) };
        unsafe { word.write_unaligned(word.read_unaligned() | 1 << (fd as usize % BITS)) };
    }

    /// The same in `poll`'s terms.
    unsafe fn asked(&self) -> Vec<pollfd> {
        let events = |fd| (0..3).filter(|set| unsafe { self.has(*set, fd) }).map(|set| ASKED[set]).sum();
        (0..self.count).map(|fd| pollfd { fd, events: events(fd), revents: 0 }).filter(|entry| entry.events != 0).collect()
    }

    /// Puts in what came of it, and counts. Nothing is put in where there is nothing.
    unsafe fn tell(&self, entries: &[pollfd]) -> Result<usize, Errno> {
        if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
            return Err(Errno::BADF);
        }
        let ready = |entry: &pollfd, set: usize| entry.events & ASKED[set] != 0 && entry.revents & TOLD[set] != 0;
        let told = || entries.iter().flat_map(|entry| (0..3).filter(|set| ready(entry, *set)).map(|set| (set, entry.fd)));
        let count = told().count();
        if count > 0 {
            unsafe { self.clear() };
            told().for_each(|(set, fd)| unsafe { self.set(set, fd) });
        }
        Ok(count)
    }
}

/// Selects, if one of the descriptors is protected.
unsafe fn selected(count: c_int, sets: [*mut fd_set; 3], mut limit: Limit<'_>) -> Option<Result<usize, Errno>> {
    if !phase::is_active() && !ops::child::is_child() || !(0..=fds::DESCRIPTORS as c_int).contains(&count) {
        return None;
    }
    let bytes = (count as usize).div_ceil(BITS) * size_of::<c_ulong>();
    if sets.iter().any(|set| !set.is_null() && !pointers::is_writable(set.cast::<u8>(), bytes)) {
        return None;
    }
    let deadline = limit.time.map(|time| sys::now().saturating_add(time));
    let sets = Sets { count, sets: sets.map(<*mut fd_set>::cast) };
    let mut entries = unsafe { sets.asked() };
    if ops::child::is_child() {
        entries.iter().for_each(|entry| ops::child::wait_for_callers(entry.fd));
        return None;
    }
    loop {
        let over = limit.time == Some(0);
        let told = match ready::poll(&mut entries, limit)? {
            Ok(0) => 0,
            Ok(_) => match unsafe { sets.tell(&entries) } {
                // A hang-up is no event for a set that asks for writing only: the kernel's select goes on waiting.
                Ok(0) if !over => {
                    entries.retain(|entry| entry.revents == 0);
                    limit.time = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
                    continue;
                }
                Ok(told) => told,
                error => return Some(error),
            },
            error => return Some(error),
        };
        if told == 0 {
            unsafe { sets.clear() };
        }
        return Some(Ok(told));
    }
}

/// The same for `select`, which also tells what is left of its time.
unsafe fn selected_within(count: c_int, sets: [*mut fd_set; 3], timeout: *mut timeval) -> Option<c_int> {
    let time = match pointers::read(timeout) {
        None if timeout.is_null() => None,
        // It leads nowhere, or is no time.
        time => match time.as_ref().and_then(microseconds) {
            None => return None,
            time => time,
        },
    };
    let began = time.map(|_| sys::now());
    let result = unsafe { selected(count, sets, Limit { time, mask: None }) }?;
    if let (Some(time), Some(began)) = (time, began) {
        // Linux tells what is left.
        let left = time.saturating_sub(sys::now() - began);
        unsafe { *timeout = timeval { tv_sec: (left / 1_000_000_000) as i64, tv_usec: (left % 1_000_000_000 / 1_000) as i64 } };
    }
    Some(finish_int(result, number))
}

/// The time of a `select`. Its microseconds may be more than a second.
fn microseconds(time: &timeval) -> Option<u64> {
    let (seconds, rest) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_usec).ok()?);
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(rest.saturating_mul(1_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(nanoseconds(1, 999_999_999), Some(1_999_999_999));
        assert_eq!((nanoseconds(-1, 0), nanoseconds(0, -1), nanoseconds(0, 1_000_000_000)), (None, None, None));
        assert_eq!(nanoseconds(i64::MAX, 0), Some(u64::MAX));
        assert_eq!(microseconds(&timeval { tv_sec: 1, tv_usec: 2_000_000 }), Some(3_000_000_000));
        assert_eq!((milliseconds(-1), milliseconds(i32::MAX)), (None, Some(2_147_483_647_000_000)));
    }

    #[test]
    fn sets_become_entries_and_back() {
        let mut words = [[0u64; 3]; 3];
        // 1 for reading and writing, 70 for writing, 130 for reading and exceptions; 140 is after the last one that counts.
        (words[0][0], words[0][2], words[1][0], words[1][1], words[2][2]) = (2, 4 | 1 << 12, 2, 1 << 6, 4);
        let pointers = words.each_mut().map(|set| set.as_mut_ptr());
        let sets = Sets { count: 131, sets: pointers };
        // SAFETY: the sets have room for 192 descriptors.
        unsafe {
            let mut entries = sets.asked();
            let asked: Vec<_> = entries.iter().map(|entry| (entry.fd, entry.events)).collect();
            let (read, write, except) = (libc::POLLIN, libc::POLLOUT, libc::POLLPRI);
            assert_eq!(asked, [(1, read | write), (70, write), (130, read | except)]);
            // Nothing that select tells: the sets stay.
            entries[1].revents = libc::POLLHUP;
            assert_eq!((sets.tell(&entries), sets.has(0, 1)), (Ok(0), true));
            // An error is both readable and writable; a hang-up is readable.
            (entries[0].revents, entries[2].revents) = (libc::POLLERR, libc::POLLHUP);
            assert_eq!(sets.tell(&entries), Ok(3));
            let told: Vec<_> =
                (0..131).flat_map(|fd| (0..3).map(move |set| (set, fd))).filter(|(set, fd)| sets.has(*set, *fd)).collect();
            assert_eq!(told, [(0, 1), (1, 1), (0, 130)]);
            entries[0].revents = libc::POLLNVAL;
            assert_eq!(sets.tell(&entries), Err(Errno::BADF));
        }
    }
}
