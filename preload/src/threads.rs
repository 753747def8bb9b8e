//! The program's threads: names that are the same in each incarnation, and places in the observer's table.
//!
//! A thread's name follows from the name of the thread that created it, and from how many that one had created before. Neither
//! depends on the order in which threads run. The journal has the name with the thread's first outcome, so replay knows which
//! thread each outcome belongs to ([`radic_observer::journal`]). Threads that are created without `pthread_create` (C11's, a
//! timer's) are named in the order of their first calls, which may be another one in replay.
//!
//! A thread gets its place with its first call, and its end frees that: the last round of destructors of thread-specific data
//! notes it here, without the layer's lock. The next thread that begins makes use of it.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use radic_observer::Observer;

use crate::ending::sure;
use crate::here;

/// The name of a thread that has none. The process's first thread is 0.
const NAMELESS: u64 = u64::MAX;
/// Threads at once that may have places: the observer's default.
const MOST: usize = 4 << 10;
/// Keys of thread-specific data below this lie in the thread itself: for others the C library would use the program's heap.
const KEYS_WITHOUT_HEAP: u32 = 32;
/// How often the C library calls a destructor that sets its value again, at least (PTHREAD_DESTRUCTOR_ITERATIONS).
const ROUNDS: usize = 4;

thread_local! {
    static NAME: Cell<u64> = const { Cell::new(NAMELESS) };
    /// Threads that this one has created.
    static CREATED: Cell<u64> = const { Cell::new(0) };
}

/// Places of threads that have ended, of which the observer does not know yet: a bit each.
static ENDED: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];
/// The key of thread-specific data whose destructor tells of a thread's end.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
/// Threads that were named in the order of their first calls.
static FOUND: AtomicU64 = AtomicU64::new(0);

/// Runs with the library's other constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = register;

/// Without a key threads do not give back their places, and there are [`MOST`] of them in all.
extern "C" fn register() {
    let mut key = 0;
    // SAFETY: the key is written, and the destructor stays where it is.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(handle_end)) } == 0 && key < KEYS_WITHOUT_HEAP {
        KEY.store(key, Ordering::Relaxed);
    }
}

/// A number that depends on every bit of both (the finalizer of MurmurHash3, after a multiplication by an odd number).
fn mix(name: u64, number: u64) -> u64 {
    let mut mixed = (name.rotate_left(32) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number);
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    // Neither of the two that mean something else.
    (mixed ^ mixed >> 33).clamp(1, NAMELESS - 1)
}

/// The name of the calling thread.
fn name() -> u64 {
    if NAME.get() == NAMELESS {
        let is_first = rustix::thread::gettid() == rustix::process::getpid();
        NAME.set(if is_first { 0 } else { mix(NAMELESS, FOUND.fetch_add(1, Ordering::Relaxed)) });
    }
    NAME.get()
}

/// The name of the next thread that the calling one creates.
pub fn name_next() -> u64 {
    let number = CREATED.get();
    CREATED.set(number + 1);
    mix(name(), number)
}

/// The thread of the last name was not created.
pub fn take_back() {
    CREATED.set(CREATED.get().saturating_sub(1));
}

/// The calling thread has just begun.
pub fn begin(name: u64) {
    NAME.set(name);
}

/// The place of the calling thread, if it has one.
pub fn known() -> Option<u32> {
    here::place()
}

/// The place of the calling thread.
pub fn place(observer: &mut Observer) -> u32 {
    known().unwrap_or_else(|| begin_here(observer))
}

#[cold]
fn begin_here(observer: &mut Observer) -> u32 {
    take_ended(observer);
    let place = sure(observer.begin_thread(name()));
    here::set_place(Some(place));
    watch(1);
    place
}

fn take_ended(observer: &mut Observer) {
    for (word, first) in ENDED.iter().zip((0..).step_by(64)) {
        let mut bits = if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) };
        while bits != 0 {
            observer.end_thread(first + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
}

/// Has [`handle_end`] called with this value, not 0, when the calling thread ends.
fn watch(round: usize) {
    let key = KEY.load(Ordering::Relaxed);
    if key < KEYS_WITHOUT_HEAP {
        // SAFETY: the key was made, and the value is no pointer that anything follows.
        unsafe { libc::pthread_setspecific(key, round as *const c_void) };
    }
}

/// The calling thread ends. Destructors of the program may make calls: in the last round they have.
unsafe extern "C" fn handle_end(round: *mut c_void) {
    let round = round as usize;
    if round < ROUNDS {
        return watch(round + 1);
    }
    if let Some(place) = known()
        && let Some(word) = ENDED.get(place as usize / 64)
    {
        here::set_place(None);
        word.fetch_or(1 << (place % 64), Ordering::Release);
    }
}

/// What a thread executes.
pub type Routine = extern "C" fn(*mut c_void) -> *mut c_void;

/// What a new thread has to know.
#[repr(C)]
struct Start {
    routine: Routine,
    argument: *mut c_void,
    name: u64,
}

/// What a new thread goes on with: in two registers (System V ABI for x86-64).
#[repr(C)]
struct Next {
    routine: Routine,
    argument: *mut c_void,
}

extern "C" fn prepare(start: *mut c_void) -> Next {
    // SAFETY: it comes from `create`, for this thread alone.
    let Start { routine, argument, name } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    begin(name);
    Next { routine, argument }
}

/// The first function of a thread. It has left the stack when the program's begins: `pthread_exit` unwinds all of that, and must find no function of ours.
#[unsafe(naked)]
extern "C" fn run(start: *mut c_void) -> *mut c_void {
    naked_asm!(
        "sub rsp, 8",
        "call {prepare}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        prepare = sym prepare,
    )
}

/// Has `create` create a thread that executes `routine`, with a name.
pub fn create(routine: Routine, argument: *mut c_void, create: impl FnOnce(Routine, *mut c_void) -> c_int) -> c_int {
    let start = Box::into_raw(Box::new(Start { routine, argument, name: name_next() })).cast::<c_void>();
    let result = create(run, start);
    if result != 0 {
        // SAFETY: no thread has got it.
        drop(unsafe { Box::from_raw(start.cast::<Start>()) });
        take_back();
    }
    result
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_follow_from_the_order_of_creation() {
        let names = || {
            let own: Vec<u64> = (0..1000).map(|_| name_next()).collect();
            let children: Vec<u64> = own.iter().flat_map(|name| (0..10).map(|number| mix(*name, number))).collect();
            [own, children].concat()
        };
        let of_a_thread = |first: u64| {
            std::thread::spawn(move || {
                begin(first);
                names()
            })
        };
        let (a, again, b) = (of_a_thread(7), of_a_thread(7), of_a_thread(8));
        let (a, again, b) = (a.join().unwrap(), again.join().unwrap(), b.join().unwrap());
        assert_eq!(a, again);
        assert_eq!(a.iter().chain(&b).collect::<BTreeSet<_>>().len(), a.len() + b.len());
    }

    #[test]
    fn a_thread_that_was_not_created_does_not_count() {
        let threads = std::thread::spawn(|| {
            begin(1);
            let failed = create(run, std::ptr::null_mut(), |_, _| libc::EAGAIN);
            (failed, name_next(), mix(1, 0))
        });
        let (failed, name, first) = threads.join().unwrap();
        assert_eq!((failed, name), (libc::EAGAIN, first));
    }

    /// `pthread_exit` unwinds the stack of a thread that was created here.
    #[test]
    fn a_thread_may_end_by_pthread_exit() {
        let (mut thread, mut value) = (0, std::ptr::null_mut());
        // SAFETY: both are written; the thread is joined.
        let created = create(ends, 7 as *mut c_void, |routine, argument| unsafe {
            libc::pthread_create(&raw mut thread, std::ptr::null(), routine, argument)
        });
        // SAFETY: it was created.
        let joined = unsafe { libc::pthread_join(thread, &raw mut value) };
        assert_eq!((created, joined, value as usize), (0, 0, 7));
    }

    /// Calls `pthread_exit` without a function of Rust on the stack.
    #[unsafe(naked)]
    extern "C" fn ends(value: *mut c_void) -> *mut c_void {
        naked_asm!("sub rsp, 8", "call {exit}", exit = sym libc::pthread_exit)
    }

    /// However many threads there are, one after the other.
    #[test]
    fn a_place_is_free_when_its_thread_has_ended() {
        let config = radic_observer::Config { threads: 2, ..radic_observer::Config::default() };
        let id = "000000000001".parse().unwrap();
        let process = radic_wire::ids::ProcessId { job: id, rank: radic_wire::ids::Rank(0) };
        let observer = std::sync::Arc::new(std::sync::Mutex::new(Observer::new(process, &config)));
        for _ in 0..100 {
            let observer = observer.clone();
            let threads = std::thread::spawn(move || place(&mut observer.lock().unwrap()));
            assert_eq!(threads.join().unwrap(), 1);
        }
    }
}
