//! Readiness: epoll, poll and select. Protected descriptors keep their numbers and are real sockets, so the kernel is asked with them; what it
//! does not know (bytes of the protector's log, a connection that has arrived) is added. Which descriptors are ready is an outcome, and is logged, if
//! one of those that are asked about is protected; other calls pass through.
//!
//! A call asks without waiting first. If there is nothing, and it may wait, it waits without the layer, for its own descriptors and the layer's, and asks
//! again: so a process that waits goes on shipping, acknowledging, and learning of failures.

use libc::{epoll_event, pollfd, sigset_t};
use radic_observer::{Ready, Wait};
use radic_wire::determinant::{Call, ReadyFd};
use radic_wire::ids::Incarnation;
use radic_wire::limits::READY_FDS;
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::waiting::{for_turn, take_turns, takes_turns, turn, wait_awhile, without};
use crate::counters::{self, Counter};
use crate::ending::{self, sure};
use crate::epolls::Epoll;
use crate::fds::{self, Kind};
use crate::layer::{self, Held, Layer};
use crate::starved::{self, FULL, is_full};
use crate::watches::{self, EPOLLS, NESTED, disarm, is_known_logged, report_restart, set_logged, watches_protected};
use crate::{polling, sys, threads};

#[cfg(test)]
mod tests;

/// The kernel's bits in the types of `poll` and of determinants.
const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
/// Time between two looks at an outbox that was too full for a send, in nanoseconds.
const RELIEF_NS: u64 = 2_000_000;

/// How long a call may wait, and what may end it.
#[derive(Clone, Copy)]
pub struct Limit<'a> {
    /// In nanoseconds; none: forever.
    pub time: Option<u64>,
    /// The signals that are blocked while it waits, instead of the thread's own.
    pub mask: Option<&'a sigset_t>,
}

/// The same, remembered: a watched socket may become protected (connect, listen) after it was added, so it is looked again whenever one has. The
/// answer depends on nothing but the program's calls: replay finds the same.
fn is_logged(layer: &Layer, epoll: i32) -> bool {
    if is_known_logged(epoll) {
        return true;
    }
    let now = (watches::changes(), layer.listeners.count(), layer.observer.next_connection().number);
    let mut epolls = EPOLLS.lock();
    if epolls.get(epoll).is_none_or(|table| table.looked == Some(now)) {
        return false;
    }
    let logged = watches_protected(&epolls, epoll, 1);
    if let Some(table) = epolls.get_mut(epoll) {
        table.looked = Some(now);
    }
    set_logged(epoll, logged);
    logged
}

/// `epoll_wait` and its kin; `events` has room for at least one. None: the epoll is none that we know; it passes through. Inlined, and what it calls down
/// to the system call, for the processor predicts none of the returns that come after that.
#[inline(always)]
pub fn epoll_wait(epoll: i32, events: &mut [epoll_event], limit: Limit<'_>) -> Option<Result<usize, Errno>> {
    if fds::kind(epoll) != Kind::Epoll {
        layer::tend_in_passing();
        return None;
    }
    let Some(mut layer) = layer::enter() else { return Some(pass(epoll, events, limit)) };
    let logged = is_logged(&layer, epoll);
    if !logged && !must_tend(&layer, limit) {
        drop(layer);
        return Some(pass(epoll, events, limit));
    }
    let room = events.len().min(READY_FDS);
    let asked = Asked::Epoll { epoll, events: &mut events[..room] };
    Some(Waiting::new(asked, limit, logged, layer.thread()).run(layer))
}

/// Without the layer: only the program's words are put in.
fn pass(epoll: i32, events: &mut [epoll_event], limit: Limit<'_>) -> Result<usize, Errno> {
    layer::tend_in_passing();
    let count = polling::epoll_within(epoll, events, limit.time, limit.mask)?;
    Ok(translate(EPOLLS.lock().get(epoll), events, count, |_, _| false, |_| {}))
}

/// `poll` and, in its terms, `select`. None: none of these descriptors is protected; it passes through. Inlined as [`epoll_wait`] is.
#[inline(always)]
pub fn poll(fds: &mut [pollfd], limit: Limit<'_>) -> Option<Result<usize, Errno>> {
    let kinds = || fds.iter().map(|entry| (entry.fd, fds::kind(entry.fd)));
    let waits = limit.time != Some(0);
    if !waits && kinds().all(|(_, kind)| matches!(kind, Kind::Other | Kind::Bound | Kind::Random)) {
        layer::tend_in_passing();
        return None;
    }
    let mut layer = layer::enter()?;
    let logged = kinds().any(|(fd, kind)| match kind {
        Kind::Connection | Kind::Listener | Kind::Alias | Kind::Input => true,
        Kind::Epoll => is_logged(&layer, fd),
        Kind::Other | Kind::Own | Kind::Output | Kind::Pmi | Kind::Bound | Kind::Random => false,
    });
    if !logged && !must_tend(&layer, limit) {
        return None;
    }
    Some(Waiting::new(Asked::Poll { fds }, limit, logged, layer.thread()).run(layer))
}

/// Whether a peer may wait for what only this call can do: let bytes go that a socket has not taken yet, or answer the door.
fn must_tend(layer: &Layer, limit: Limit<'_>) -> bool {
    /// The connections that are always listened to: journal and node.
    const ALWAYS: usize = 2;
    limit.time != Some(0) && layer.awaited().nth(ALWAYS).is_some()
}

/// What the program asks about.
enum Asked<'a> {
    Epoll { epoll: i32, events: &'a mut [epoll_event] },
    Poll { fds: &'a mut [pollfd] },
}

impl Asked<'_> {
    fn epoll(&self) -> Option<u32> {
        match self {
            Asked::Epoll { epoll, .. } => Some(*epoll as u32),
            Asked::Poll { .. } => None,
        }
    }

    /// What is ready now, in the program's buffer and in `found`, at most [`READY_FDS`].
    #[inline(always)]
    fn ask(&mut self, layer: &mut Layer, mask: Option<&sigset_t>, found: &mut Vec<ReadyFd>) -> Result<usize, Errno> {
        match self {
            Asked::Epoll { epoll, events } => {
                let count = polling::epoll_now(*epoll, events, mask)?;
                let more = knows_more(layer);
                if count == 0 && !more {
                    return Ok(0);
                }
                layer.look_at_under_way(true);
                examine(layer, &ended(*epoll, &events[..count]));
                let count = {
                    let epolls = EPOLLS.lock();
                    let Some(table) = epolls.get(*epoll) else { return Err(Errno::BADF) };
                    let is_away = |fd, bits: u32| layer.is_away(fd) || bits & IN != 0 && layer.has_only_header(fd);
                    translate(Some(table), events, count, is_away, |ready| found.push(ready))
                };
                if more || layer.links.is_any_down() { add_known(layer, *epoll, events, found) } else { Ok(count) }
            }
            Asked::Poll { fds } => {
                let count = polling::poll_now(fds, mask)?;
                if count == 0 && !knows_more(layer) {
                    return Ok(0);
                }
                layer.look_at_under_way(true);
                let told = |entry: &pollfd| (entry.fd, u32::from(entry.revents as u16));
                let ended: Vec<_> = fds.iter().map(told).filter(|(fd, bits)| is_end(*fd, *bits)).collect();
                examine(layer, &ended);
                for entry in fds.iter_mut() {
                    let is_readable_there = u32::from(entry.revents as u16) & IN != 0;
                    if entry.revents != 0 && (layer.is_away(entry.fd) || is_readable_there && layer.has_only_header(entry.fd)) {
                        entry.revents &= OUT as i16;
                    }
                    if u32::from(entry.events as u16) & IN != 0 && is_readable(layer, entry.fd, 1) {
                        entry.revents |= IN as i16;
                    }
                    if u32::from(entry.revents as u16) & OUT != 0 && is_full(entry.fd) {
                        entry.revents &= !OUT as i16;
                    }
                    if found.len() == READY_FDS {
                        entry.revents = 0;
                    } else if entry.revents != 0 {
                        found.push(ReadyFd { fd: entry.fd as u32, events: u32::from(entry.revents as u16) });
                    }
                }
                Ok(found.len())
            }
        }
    }

    /// What was ready then, for the program. None: it does not ask about one of these.
    fn show(&mut self, ready: &[ReadyFd]) -> Option<usize> {
        match self {
            Asked::Epoll { epoll, events } => {
                let mut epolls = EPOLLS.lock();
                let table = epolls.get_mut(*epoll)?;
                for (event, ready) in events.iter_mut().zip(ready) {
                    let watch = table.meant_by(ready.fd as i32)?;
                    *event = epoll_event { events: ready.events, u64: watch.word };
                    disarm(table, *epoll, ready.fd as i32);
                }
                (ready.len() <= events.len()).then_some(ready.len())
            }
            Asked::Poll { fds } => {
                fds.iter_mut().for_each(|entry| entry.revents = 0);
                let mut entries = fds.iter_mut();
                // In the order of the program's array, as it was logged.
                for ready in ready {
                    entries.find(|entry| entry.fd as u32 == ready.fd)?.revents = ready.events as i16;
                }
                Some(ready.len())
            }
        }
    }

    /// What was ready then, and that it is not asked about now: the report of a replay that ends here.
    #[cold]
    fn differs(&self, layer: &Layer, ready: &[ReadyFd]) -> String {
        let named = |fd: i32| format!("{fd} ({:?})", fds::kind(fd));
        let then: Vec<String> = ready.iter().map(|ready| format!("{} {:#x}", named(ready.fd as i32), ready.events)).collect();
        let now: Vec<String> = match self {
            Asked::Epoll { epoll, .. } => {
                EPOLLS.lock().get(*epoll).into_iter().flat_map(Epoll::watched).map(|watch| named(watch.fd)).collect()
            }
            Asked::Poll { fds } => fds.iter().map(|entry| named(entry.fd)).collect(),
        };
        let (then, now, which) = (then.join(", "), now.join(", "), self.epoll());
        let (position, thread) = (layer.observer.log_position(), threads::known().unwrap_or(0));
        format!(
            "replay diverged before journal position {position}, in a poll, select or epoll_wait of thread {thread}: ready then: {then}; asked about now (epoll {which:?}): {now}"
        )
    }

    /// What to wait for: the program's own.
    fn awaited(&self) -> Vec<pollfd> {
        match self {
            Asked::Epoll { epoll, .. } => vec![pollfd { fd: *epoll, events: IN as i16, revents: 0 }],
            Asked::Poll { fds } => fds.to_vec(),
        }
    }
}

/// The kernel's events become the program's: the word instead of our key. Returns how many there are, for those of forgotten watches are left out.
/// A descriptor that `is_away` has a placeholder, which can always be written. What else is reported of it is of the socket before it, and is left out.
fn translate(
    table: Option<&Epoll>,
    events: &mut [epoll_event],
    count: usize,
    mut is_away: impl FnMut(i32, u32) -> bool,
    mut tell: impl FnMut(ReadyFd),
) -> usize {
    let mut kept = 0;
    for at in 0..count.min(events.len()) {
        let epoll_event { events: mut bits, u64: key } = events[at];
        if let Some(watch) = table.and_then(|table| table.find(key)).filter(|watch| !watch.disarmed) {
            // A watch that is reported once (EPOLLONESHOT) is reported all the same: else the kernel would have to be told that it was not.
            let once = watch.events & libc::EPOLLONESHOT as u32 != 0;
            if bits != OUT && is_away(watch.fd, if once { bits & !IN } else { bits }) {
                bits &= OUT;
                if bits == 0 {
                    continue;
                }
            }
            if bits & OUT != 0 && !once && is_full(watch.fd) {
                bits &= !OUT;
                if bits == 0 {
                    continue;
                }
            }
            events[kept] = epoll_event { events: bits, u64: watch.word };
            tell(ReadyFd { fd: watch.fd as u32, events: bits });
            kept += 1;
        }
    }
    kept
}

/// Whether something may be ready that the kernel knows nothing of. In the first incarnation: a connection between its arrival and the program's accept.
#[inline]
fn knows_more(layer: &mut Layer) -> bool {
    layer.observer.incarnation() > Incarnation::FIRST
        || !layer.arrived.is_empty()
        || layer.links.is_any_down()
        || layer.has_ahead()
}

/// What the kernel reports where something is over.
const ENDS: u32 = (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP) as u32;

/// Whether the kernel reports that something is over on a protected connection.
fn is_end(fd: i32, bits: u32) -> bool {
    bits & ENDS != 0 && matches!(fds::kind(fd), Kind::Connection | Kind::Alias)
}

/// Those of an epoll's events.
fn ended(epoll: i32, events: &[epoll_event]) -> Vec<(i32, u32)> {
    if events.iter().all(|event| event.events & ENDS == 0) {
        return Vec::new(); // As a rule: no lock is taken for that.
    }
    let epolls = EPOLLS.lock();
    let table = epolls.get(epoll);
    let of = |event: &epoll_event| Some((table?.find(event.u64)?.fd, event.events));
    events.iter().filter_map(of).filter(|(fd, bits)| is_end(*fd, *bits)).collect()
}

/// What looks like an end may be a broken link, of which the program is told nothing.
fn examine(layer: &mut Layer, ended: &[(i32, u32)]) {
    for (fd, bits) in ended {
        layer.examine(*fd, bits & libc::EPOLLERR as u32 != 0);
    }
}

/// Whether `fd` has something to read that the kernel knows nothing of.
fn is_readable(layer: &Layer, fd: i32, depth: u32) -> bool {
    match fds::kind(fd) {
        Kind::Connection | Kind::Alias => {
            let slot = layer.observer.table().slot_of(layer.primary(fd) as u32);
            // The end that was told stays ready.
            let over = |slot| layer.is_away(fd) && layer.is_at_end(slot);
            slot.is_ok_and(|slot| layer.observer.is_readable(slot) || over(slot))
        }
        Kind::Listener => layer.has_arrived(fd),
        Kind::Epoll if depth < NESTED => {
            let watched: Vec<i32> = EPOLLS.lock().get(fd).into_iter().flat_map(reading).collect();
            watched.into_iter().any(|fd| is_readable(layer, fd, depth + 1))
        }
        Kind::Epoll | Kind::Other | Kind::Own | Kind::Output | Kind::Input | Kind::Pmi | Kind::Bound | Kind::Random => false,
    }
}

/// The descriptors that an epoll watches for reading.
fn reading(table: &Epoll) -> impl Iterator<Item = i32> {
    table.watched().filter(|watch| watch.events & IN != 0 && !watch.disarmed).map(|watch| watch.fd)
}

/// Adds what the kernel does not know to what it has said.
fn add_known(layer: &Layer, epoll: i32, events: &mut [epoll_event], found: &mut Vec<ReadyFd>) -> Result<usize, Errno> {
    // Not under the lock: it is taken for an epoll within.
    let watched: Vec<i32> = EPOLLS.lock().get(epoll).into_iter().flat_map(reading).collect();
    let known = watched.into_iter().filter(|fd| is_readable(layer, *fd, 1)).collect::<Vec<_>>();
    let mut epolls = EPOLLS.lock();
    let Some(table) = epolls.get_mut(epoll) else { return Err(Errno::BADF) };
    for fd in known {
        if let Some(at) = found.iter().position(|ready| ready.fd == fd as u32) {
            found[at].events |= IN;
            events[at].events |= IN;
        } else if let (Some((_, watch)), Some(event)) = (table.of(fd), events.get_mut(found.len())) {
            *event = epoll_event { events: IN, u64: watch.word };
            found.push(ReadyFd { fd: fd as u32, events: IN });
            disarm(table, epoll, fd);
        }
    }
    Ok(found.len())
}

/// Time for a descriptor of the program's own to be ready as the log has it, in nanoseconds.
const PATIENCE_NS: u64 = 10_000_000_000;

/// Whether the recorded readiness of the program's own descriptors (eventfds, pipes, timers) is true now. Threads wake each other
/// by them: reported too early, a thread would find nothing and then wait forever. `due`: until when the call waits for it.
fn is_so(set: &[ReadyFd], due: &mut Option<u64>) -> bool {
    let is_waited_for = |fd: u32| !watches::is_given_up(fd as i32);
    let own = set.iter().filter(|ready| fds::kind(ready.fd as i32) == Kind::Other && is_waited_for(ready.fd));
    let is_missing = |ready: &&ReadyFd| {
        let mut polled = [pollfd { fd: ready.fd as i32, events: ready.events as i16, revents: 0 }];
        polling::poll_now(&mut polled, None) == Ok(0)
    };
    let Some(missing) = own.into_iter().find(is_missing) else { return true };
    let now = sys::now();
    if now < *due.get_or_insert(now + PATIENCE_NS) {
        return false;
    }
    watches::give_up(missing.fd as i32);
    *due = None;
    is_so(set, due)
}

/// The sleep of a call that gives way, in nanoseconds.
const GIVES_WAY_NS: u64 = 500_000;

/// A call under way.
struct Waiting<'a> {
    asked: Asked<'a>,
    limit: Limit<'a>,
    logged: bool,
    thread: u32,
    /// In the time of [`sys::now`], since it has begun to wait.
    deadline: Option<u64>,
    /// Until when it waits for what its outcome says of the program's own descriptors, once it does.
    due: Option<u64>,
    /// It does not wait, and has slept all the same.
    has_slept: bool,
}

impl<'a> Waiting<'a> {
    fn new(asked: Asked<'a>, limit: Limit<'a>, logged: bool, thread: u32) -> Self {
        Waiting { asked, limit, logged, thread, deadline: None, due: None, has_slept: false }
    }

    #[inline(always)]
    fn run(mut self, mut layer: Held) -> Result<usize, Errno> {
        loop {
            if self.logged
                && let Some(result) = self.consult(&mut layer)
            {
                match result {
                    Again::Over(result) => return result,
                    Again::Wait => {
                        layer = for_turn(layer, |layer| self.wait(layer))?;
                        continue;
                    }
                    Again::Turn => {
                        layer = take_turns(layer, Wait::Turn)?;
                        continue;
                    }
                    Again::Now => continue,
                }
            }
            layer.drain();
            relieve(&mut layer);
            let mut found = std::mem::take(&mut layer.found);
            found.clear();
            let asked = self.asked.ask(&mut layer, self.limit.mask, &mut found);
            layer.found = found;
            match asked {
                Ok(0) if self.left() == Some(0) => {
                    if !self.logged || self.has_slept || !layer.gives_way() {
                        return Ok(self.nothing(&mut layer));
                    }
                    layer = self.give_way(layer)?;
                }
                // It waits for other threads, and none of its descriptors is in the log.
                Ok(0) if !self.logged && self.limit.time.is_none() => {
                    layer = for_turn(layer, |layer| self.wait(layer))?;
                }
                Ok(0) => layer = self.wait(layer)?,
                Ok(count) => return Ok(self.ready(&mut layer, count)),
                Err(error) => return Err(self.failed(&mut layer, error)),
            }
        }
    }

    /// Asks the observer. None: the kernel is to be asked.
    #[inline]
    fn consult(&mut self, layer: &mut Layer) -> Option<Again> {
        if !layer.observer.is_replaying()
            && let Ok(Ready::Live) = layer.observer.ready_when(self.thread, self.asked.epoll(), false, &mut [], |_| true)
        {
            return None;
        }
        self.consult_log(layer)
    }

    #[cold]
    fn consult_log(&mut self, layer: &mut Layer) -> Option<Again> {
        let (mut room, waits) = (Vec::new(), self.limit.time.is_none());
        // A program may have polled in vain a million times between two outcomes.
        if layer.observer.is_replaying() && (waits || !layer.observer.is_in_vain(self.thread)) {
            room.resize(READY_FDS, ReadyFd { fd: 0, events: 0 });
        }
        let (epoll, due) = (self.asked.epoll(), &mut self.due);
        let answer = layer.observer.ready_when(self.thread, epoll, waits, &mut room, |set| is_so(set, due));
        Some(match sure(answer) {
            Ready::Live => return None,
            Ready::Set(count) => match self.asked.show(&room[..count]) {
                Some(count) => Again::Over(Ok(count)),
                None => ending::diverged(&self.asked.differs(layer, &room[..count])),
            },
            Ready::Outcome(errno) => Again::Over(Err(Errno::from_raw_os_error(errno as i32))),
            Ready::Nothing => {
                layer.note_nothing();
                Again::Over(Ok(0))
            }
            Ready::Wait(Wait::Event) => Again::Wait,
            Ready::Wait(Wait::Turn) => Again::Turn,
            Ready::Wait(Wait::Peers) if layer.replayer.is_none() => Again::Wait,
            Ready::Wait(other) => {
                layer.wait_for(other);
                Again::Now
            }
        })
    }

    /// What is left of its time, in nanoseconds; none: it may wait forever. The clock is read only by calls that wait.
    #[inline]
    fn left(&mut self) -> Option<u64> {
        let time = self.limit.time.filter(|time| *time > 0);
        let Some(time) = time else { return self.limit.time };
        let now = sys::now();
        Some(self.deadline.get_or_insert(now.saturating_add(time)).saturating_sub(now))
    }

    /// Waits, without the layer, for the program's descriptors and the layer's.
    #[cold]
    fn wait(&mut self, mut layer: Held) -> Result<Held, Errno> {
        if layer.replayer.is_some() {
            let until = self.left().map_or(u64::MAX, |left| sys::now().saturating_add(left));
            return wait_awhile(layer, &[], until);
        }
        let signals = layer.take_signals();
        layer.tend();
        if layer.links.take_changed() {
            layer.give_signals(signals);
            return Ok(layer);
        }
        let starved = starved::are_there();
        // What is writable for the kernel only would end the wait at once.
        let mut set = if starved || takes_turns(&layer) { Vec::new() } else { self.asked.awaited() };
        set.extend(layer.awaited().map(|(fd, events)| pollfd { fd, events: events.bits() as i16, revents: 0 }));
        let mut left = self.left();
        if starved {
            left = Some(left.map_or(RELIEF_NS, |left| left.min(RELIEF_NS)));
        }
        if let Some(due) = layer.due() {
            let due = due.saturating_sub(sys::now());
            left = Some(left.map_or(due, |left| left.min(due)));
        }
        if let Some(turn) = turn(&layer) {
            left = Some(left.map_or(turn, |left| left.min(turn)));
        }
        let mask = self.limit.mask.copied().unwrap_or_else(|| signals.mask());
        let (mut layer, polled) = without(layer, || polling::poll_within(&mut set, left, Some(&mask)))?;
        layer.give_signals(signals);
        match polled {
            Ok(_) => Ok(layer),
            // In replay the log has the signals that ended calls.
            Err(Errno::INTR) if layer.observer.is_replaying() => Ok(layer),
            Err(error) => Err(self.failed(&mut layer, error)),
        }
    }

    /// Sleeps until there is something, and not for long.
    #[cold]
    fn give_way(&mut self, layer: Held) -> Result<Held, Errno> {
        self.has_slept = true;
        // What is writable for the kernel only would end the sleep at once.
        let set = if starved::are_there() { Vec::new() } else { self.asked.awaited() };
        let set: Vec<_> = set.iter().map(|polled| (polled.fd, PollFlags::from_bits_retain(polled.events as u16))).collect();
        wait_awhile(layer, &set, sys::now() + GIVES_WAY_NS)
    }

    #[inline]
    fn nothing(&self, layer: &mut Layer) -> usize {
        if self.logged {
            sure(layer.observer.handle_nothing(self.thread));
            layer.note_nothing();
        }
        0
    }

    /// Not shipped at once: what the program does next with a readiness set is to receive, and that outcome takes this one along; or to send, and
    /// then the gate ships it.
    fn ready(&self, layer: &mut Layer, count: usize) -> usize {
        if self.logged {
            let Layer { observer, found, .. } = layer;
            sure(observer.handle_ready(self.thread, self.asked.epoll(), found));
            counters::add(Counter::Events, 1);
        }
        count
    }

    /// A signal, or a mistake of the program.
    fn failed(&self, layer: &mut Layer, error: Errno) -> Errno {
        if self.logged {
            let fd = self.asked.epoll().unwrap_or(0);
            sure(layer.observer.handle_failed(self.thread, fd, Call::Ready, error.raw_os_error() as u32));
            counters::add(Counter::Events, 1);
        }
        error
    }
}

/// What the observer's answer means for the loop.
enum Again {
    Over(Result<usize, Errno>),
    Wait,
    /// After the calls of other threads.
    Turn,
    Now,
}

/// Asks what is stable, and has the kernel report again, to edge-triggered epolls, the connections for which there is room again.
#[inline]
fn relieve(layer: &mut Layer) {
    if starved::are_there() {
        relieve_starved(layer);
    }
}

#[cold]
fn relieve_starved(layer: &mut Layer) {
    let (now, mut full) = (sys::now(), FULL.lock());
    if now - full.asked >= RELIEF_NS {
        full.asked = now;
        layer.hear_node();
        layer.ask_stable();
    }
    let epolls = EPOLLS.lock();
    full.retain(|fd| {
        let slot = layer.observer.table().slot_of(layer.primary(*fd) as u32);
        let starved = slot.ok().filter(|slot| !layer.observer.has_room(*slot));
        match starved {
            Some(slot) => layer.tell_pressed(slot),
            None => report_restart(&epolls, *fd),
        }
        starved.is_some()
    });
}
