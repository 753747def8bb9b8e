//! The library's own heap, so that none of its memory is the program's: whatever the library allocates must move nothing of what the program
//! allocates (docs/design.md: heap history is what makes Open MPI's bytes differ). It is one mapping at a fixed far address, reserved at
//! the first use, and travels in the image like the rest of the process.
//!
//! Blocks come in size classes, four to a doubling; a freed block waits in its class's list for the next of its size and is never joined with
//! others. Large ones give their pages back meanwhile. So memory is bounded by the sum of the classes' peaks, and after the start the library allocates
//! nearly nothing (`observer/tests/no_allocation.rs`). No call of the C library, no thread-local.
//!
//! What is very large has a mapping of its own (`memory/apart.rs`).
//!
//! Secrets lie apart ([`SECRET_BASE`]), in memory that no image has: whatever is aligned as [`radic_wire::mac::SECRET_ALIGN`] says is one. What a computation
//! with a secret leaves on the stack and in registers is overwritten at its end: [`discreetly`]. After a restore all secrets are zeroes: the
//! process gets them from its node again, and looks at none before that.
//!
//! A signal's handler may allocate if [`is_held`] says that no thread is in here: it may have interrupted just that one, and would wait for itself. The
//! engine itself needs nothing of this for a checkpoint; what the layer does before and after it does.
#![allow(unsafe_code)]

mod apart;

use std::alloc::{GlobalAlloc, Layout};
use std::arch::asm;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use radic_wire::mac::SECRET_ALIGN;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use apart::PAGE;

use crate::lock::{Guard, Lock};

/// Where it lies: below what `ckpt/src/arena.rs` uses, above the counters (`radic_wire::process::counters`).
pub const BASE: usize = 0x3b10_0000_0000;
/// Bytes that are asked for; where the system allows no such reservation (strict accounting, RLIMIT_AS), the next smaller.
const SPANS: [usize; 3] = [4 << 30, 1 << 30, 256 << 20];
/// Where secrets lie. No other mapping touches it, so the engine finds it apart from them.
pub const SECRET_BASE: usize = 0x3b08_0000_0000;
/// Bytes for them: a KiB for a key, two for a connection.
const SECRET_SPAN: usize = 64 << 20;
/// Alignment that every block has.
const GRAIN: usize = 16;
/// Freed blocks of at least this many bytes give their pages back.
const LARGE: usize = 128 << 10;
/// Sizes of 16, 32, 48, 64, then four to each doubling up to 4 GiB.
const CLASSES: usize = 4 + 4 * 26;

/// The class of blocks of at least `size` bytes (not 0); none: it is too large for this heap.
fn class_of(size: usize) -> Option<usize> {
    let last = size.wrapping_sub(1);
    let class = if last < 64 {
        last / GRAIN
    } else {
        let shift = last.ilog2() as usize;
        4 + (shift - 6) * 4 + (last >> (shift - 2) & 3)
    };
    (class < CLASSES).then_some(class)
}

/// Bytes of a block.
fn size_of_class(class: usize) -> usize {
    match class {
        0..4 => (class + 1) * GRAIN,
        _ => {
            let (shift, quarter) = ((class - 4) / 4 + 6, (class - 4) % 4);
            (1 << shift) + (quarter + 1) * (1 << (shift - 2))
        }
    }
}

/// The smallest class with blocks that suit `layout`: blocks are as aligned as their size is round, up to a page.
fn class_for(layout: Layout) -> Option<usize> {
    if layout.align() > PAGE {
        return None;
    }
    let first = class_of(layout.size())?;
    (first..CLASSES).find(|class| size_of_class(*class).is_multiple_of(layout.align()))
}

/// First word of a free block.
type Link = *mut c_void;

struct Heap {
    base: usize,
    spans: &'static [usize],
    /// First byte that no block has had; 0: nothing is reserved yet.
    next: usize,
    /// First byte after the reserved range.
    end: usize,
    /// Free blocks of each class; null: none.
    free: [Link; CLASSES],
}

// SAFETY: the links point into the mapping, which belongs to no thread.
unsafe impl Send for Heap {}

static HEAP: Lock<Heap> = Lock::new(Heap::new(BASE, &SPANS));
static SECRETS: Lock<Heap> = Lock::new(Heap::new(SECRET_BASE, &[SECRET_SPAN]));

/// Which of the two a block comes from.
fn heap_of(layout: Layout) -> &'static Lock<Heap> {
    if layout.align() == SECRET_ALIGN { &SECRETS } else { &HEAP }
}

impl Heap {
    const fn new(base: usize, spans: &'static [usize]) -> Self {
        Heap { base, spans, next: 0, end: 0, free: [ptr::null_mut(); CLASSES] }
    }

    fn reserve(&mut self) -> rustix::io::Result<()> {
        if self.next != 0 {
            return Ok(());
        }
        let mut result = Ok(());
        for span in self.spans.iter().copied() {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
            let at = ptr::without_provenance_mut(self.base);
            // SAFETY: NOREPLACE: it hits nothing that is in use.
            let mapped = unsafe { mmap_anonymous(at, span, ProtFlags::READ | ProtFlags::WRITE, flags) };
            match mapped {
                Ok(at) => {
                    (self.next, self.end) = (at.addr(), at.addr() + span);
                    return Ok(());
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// A block, and whether all of it but its first word is zero.
    fn take(&mut self, class: usize) -> Option<(*mut u8, bool)> {
        let (size, block) = (size_of_class(class), self.free[class]);
        if !block.is_null() {
            // SAFETY: a free block of ours: its first word is the link.
            self.free[class] = unsafe { block.cast::<Link>().read() };
            return Some((block.cast(), size >= LARGE));
        }
        self.reserve().ok()?;
        let align = PAGE.min(1 << size.trailing_zeros());
        let start = self.next.next_multiple_of(align);
        self.next = start.checked_add(size).filter(|end| *end <= self.end)?;
        Some((ptr::with_exposed_provenance_mut(start), true))
    }

    /// # Safety
    /// The block is of this class, and not in use any more.
    unsafe fn give(&mut self, block: *mut u8, class: usize) {
        let size = size_of_class(class);
        if size >= LARGE {
            // SAFETY: whole pages of one block, which is not in use. If it fails they are merely kept.
            let forgotten = unsafe { madvise(block.cast(), size, Advice::LinuxDontNeed) };
            if forgotten.is_err() {
                // SAFETY: the same bytes. The next user of the block counts on zeroes.
                unsafe { block.write_bytes(0, size) };
            }
        }
        // SAFETY: every block is large enough for a link, and aligned for it.
        unsafe { block.cast::<Link>().write(self.free[class]) };
        self.free[class] = block.cast();
    }
}

/// Reserves the mappings, for a constructor that wants to say why there is no memory: later, allocation just fails.
pub fn reserve() -> std::io::Result<()> {
    HEAP.lock().reserve()?;
    SECRETS.lock().reserve()?;
    Ok(())
}

/// The addresses of secrets.
pub fn secrets() -> Range<u64> {
    SECRET_BASE as u64..(SECRET_BASE + SECRET_SPAN) as u64
}

/// No image has this memory from now on, and no child: whole pages of blocks of this heap, which only the process itself reads and writes.
pub fn keep_to_itself(memory: Range<usize>) -> rustix::io::Result<()> {
    let (start, end) = (memory.start.next_multiple_of(PAGE), memory.end / PAGE * PAGE);
    // SAFETY: whole pages of one block, which stay mapped and as they are in this process. A child never uses the layer, whose memory that is.
    unsafe { madvise(ptr::with_exposed_provenance_mut(start), end - start, Advice::LinuxDontFork) }?;
    // Most of it is touched for the first time, and page by page that costs more than the copy. Without huge pages it works, too.
    // SAFETY: as above.
    _ = unsafe { madvise(ptr::with_exposed_provenance_mut(start), end - start, Advice::LinuxHugepage) };
    radic_ckpt::leave_out(1, start as u64..end as u64);
    Ok(())
}

/// A child has none of its parent's secrets.
pub fn forget_secrets() {
    if SECRETS.lock().next != 0 {
        // SAFETY: whole pages of the mapping. In a child nothing uses what is there.
        _ = unsafe { madvise(ptr::without_provenance_mut(SECRET_BASE), SECRET_SPAN, Advice::LinuxDontNeed) };
    }
}

/// Bytes of the stack that are overwritten after a key was made, or used for a code: more than any such computation takes, also
/// with a signal's frame in its midst.
const MADE: usize = 16 << 10;
/// The same after records were sealed or opened, which is done in any thread, however small its stack is, and often.
const SEALED: usize = 8 << 10;

/// Makes or uses a key, and then overwrites what that has left on the stack, below the caller, and in registers. The result must
/// hold no secret, but it may point to one that lies where secrets do.
///
/// Without that an image of this process would have them: the stack is in it, and the registers of threads that a checkpoint's signal has interrupted.
pub fn discreetly<R>(compute: impl FnOnce() -> R) -> R {
    let result = called(compute);
    overwrite_stack::<MADE>();
    overwrite_registers();
    result
}

/// The same for sealing and opening records.
pub fn discreetly_with_records<R>(compute: impl FnOnce() -> R) -> R {
    let result = called(compute);
    overwrite_stack::<SEALED>();
    overwrite_registers();
    result
}

/// A call of its own: what it uses of the stack lies below the caller's frame.
#[inline(never)]
fn called<R>(compute: impl FnOnce() -> R) -> R {
    compute()
}

#[inline(never)]
fn overwrite_stack<const BYTES: usize>() {
    let mut room = MaybeUninit::<[u8; BYTES]>::uninit();
    // SAFETY: all of the array, of which any bytes are a value; the direction flag is clear, as the calling convention says.
    unsafe {
        asm!("rep stosb", inout("rcx") BYTES => _, inout("rdi") room.as_mut_ptr() => _, in("al") 0u8,
            options(nostack, preserves_flags));
    }
}

#[inline(never)]
fn overwrite_registers() {
    // SAFETY: says which registers it changes, but for the upper parts of vectors, in which the compiler keeps nothing over a call, and those of AVX-512, which
    // it uses nowhere. Each instruction is one that this processor has.
    unsafe {
        if std::arch::is_x86_feature_detected!("avx512f") {
            asm!(
                "vpxorq zmm16, zmm16, zmm16",
                "vpxorq zmm17, zmm17, zmm17",
                "vpxorq zmm18, zmm18, zmm18",
                "vpxorq zmm19, zmm19, zmm19",
                "vpxorq zmm20, zmm20, zmm20",
                "vpxorq zmm21, zmm21, zmm21",
                "vpxorq zmm22, zmm22, zmm22",
                "vpxorq zmm23, zmm23, zmm23",
                "vpxorq zmm24, zmm24, zmm24",
                "vpxorq zmm25, zmm25, zmm25",
                "vpxorq zmm26, zmm26, zmm26",
                "vpxorq zmm27, zmm27, zmm27",
                "vpxorq zmm28, zmm28, zmm28",
                "vpxorq zmm29, zmm29, zmm29",
                "vpxorq zmm30, zmm30, zmm30",
                "vpxorq zmm31, zmm31, zmm31",
                options(nomem, nostack, preserves_flags)
            );
        }
        if std::arch::is_x86_feature_detected!("avx") {
            asm!("vzeroall", options(nomem, nostack, preserves_flags), out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _,
                out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _);
        } else {
            asm!("xorps xmm0, xmm0", "xorps xmm1, xmm1", "xorps xmm2, xmm2", "xorps xmm3, xmm3", "xorps xmm4, xmm4", "xorps xmm5, xmm5",
                "xorps xmm6, xmm6", "xorps xmm7, xmm7", "xorps xmm8, xmm8", "xorps xmm9, xmm9", "xorps xmm10, xmm10",
                "xorps xmm11, xmm11", "xorps xmm12, xmm12", "xorps xmm13, xmm13", "xorps xmm14, xmm14", "xorps xmm15, xmm15",
                options(nomem, nostack, preserves_flags), out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _,
                out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _);
        }
        asm!("xor edx, edx", "xor esi, esi", "xor r8d, r8d", "xor r9d, r9d", "xor r10d, r10d", "xor r11d, r11d",
            options(nomem, nostack), out("rdx") _, out("rsi") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
}

/// Whether a thread, perhaps the calling one, is in the middle of an allocation: then a signal's handler must not make one.
pub fn is_held() -> bool {
    HEAP.is_held() || SECRETS.is_held() || apart::FREE.is_held()
}

/// Bytes of the mapping that some block has had: a bound on the memory in use.
pub fn used() -> usize {
    HEAP.lock().next.saturating_sub(BASE)
}

/// Keeps all other threads out until [`leave`]: around a fork, or a child might inherit a heap in the middle of something.
pub fn enter() {
    let guards: [Guard<'_, Heap>; 2] = [HEAP.lock(), SECRETS.lock()];
    std::mem::forget((guards, apart::FREE.lock()));
}

/// Ends what [`enter`] began, in the parent and in the child.
pub fn leave() {
    apart::FREE.unlock_forgotten();
    SECRETS.unlock_forgotten();
    HEAP.unlock_forgotten();
}

/// The allocator of all Rust code in the library.
#[derive(Debug)]
pub struct Far;

// SAFETY: a block is taken from the list, or from memory that no block has had, under the lock, so it has no other owner; its class's size is at
// least the layout's, and it is as aligned as its size is round.
unsafe impl GlobalAlloc for Far {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if apart::is_apart(layout) {
            return apart::take(layout);
        }
        let taken = class_for(layout).and_then(|class| heap_of(layout).lock().take(class));
        taken.map_or(ptr::null_mut(), |(block, _)| block)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if apart::is_apart(layout) {
            return apart::take(layout);
        }
        let taken = class_for(layout).and_then(|class| heap_of(layout).lock().take(class));
        let Some((block, zero)) = taken else { return ptr::null_mut() };
        let dirty = if zero { layout.size().min(size_of::<Link>()) } else { layout.size() };
        // SAFETY: the block has at least this size.
        unsafe { block.write_bytes(0, dirty) };
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if apart::is_apart(layout) {
            // SAFETY: the caller's promise: it was allocated with this layout, hence there.
            return unsafe { apart::give(block, layout) };
        }
        if let Some(class) = class_for(layout) {
            // SAFETY: the caller's promise: it was allocated with this layout, hence of this class.
            unsafe { heap_of(layout).lock().give(block, class) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise: `size` is not 0 and does not overflow when it is rounded up to the alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if class_for(wanted) == class_for(layout) && !apart::is_apart(wanted) && !apart::is_apart(layout) {
            return block;
        }
        // SAFETY: both blocks are at least as large as what is copied, and the old one is given up by the caller.
        unsafe {
            let moved = self.alloc(wanted);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

#[global_allocator]
static ALLOCATOR: Far = Far;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;
    use radic_wire::determinant::ConnectionId;
    use radic_wire::ids::{Incarnation, JobId, ProcessId, Rank};
    use radic_wire::login::{Channel, Login, NONCE};
    use radic_wire::mac::{JobKey, Purpose};
    use radic_wire::record::Cover;

    use super::*;

    #[test]
    fn classes_are_tight_and_in_order() {
        for class in 0..CLASSES {
            let size = size_of_class(class);
            assert_eq!((class_of(size), class_of(size + 1)), (Some(class), (class + 1 < CLASSES).then_some(class + 1)));
            assert!(class == 0 || size <= size_of_class(class - 1) * 2 && size.is_multiple_of(GRAIN));
        }
        assert_eq!(
            (class_of(1), class_of(4 << 30), class_of((4 << 30) + 1), class_of(0)),
            (Some(0), Some(CLASSES - 1), None, None)
        );
        assert_eq!(class_for(Layout::from_size_align(1, 8192).unwrap()), None);
    }

    #[test]
    fn this_test_itself_allocates_there() {
        let block = Box::new([1u8; 100]);
        assert!((BASE..BASE + used()).contains(&block.as_ptr().addr()));
        reserve().unwrap();
    }

    #[test]
    fn large_blocks_come_back_and_are_zero() {
        let layout = Layout::from_size_align(1 << 20, 64).unwrap();
        // SAFETY: each block is used within its size and freed once.
        unsafe {
            let first = ALLOCATOR.alloc(layout);
            first.write_bytes(7, 1 << 20);
            ALLOCATOR.dealloc(first, layout);
            let again = ALLOCATOR.alloc_zeroed(layout);
            assert!(std::slice::from_raw_parts(again, 1 << 20).iter().all(|byte| *byte == 0));
            ALLOCATOR.dealloc(again, layout);
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        let layout = Layout::from_size_align(4 << 40, 16).unwrap();
        // SAFETY: the size is not 0.
        assert!(unsafe { ALLOCATOR.alloc(layout) }.is_null());
    }

    /// All that a process does with its keys.
    fn use_keys(through: fn(&mut dyn FnMut()), with_records: fn(&mut dyn FnMut())) {
        let process = ProcessId { job: JobId::from_bits(5), rank: Rank(3) };
        let login = Login { process, incarnation: Incarnation::restarted(1), channel: Channel::Bulk, nonce: [9; NONCE] };
        let connection = ConnectionId { opener: process, number: 1 };
        let (mut key, mut records, mut out) = (None, None, Vec::new());
        // Made here, of bytes that are nowhere before.
        through(&mut || key = Some(JobKey::from_bytes(std::array::from_fn(|at| (at * 37 + 11) as u8 ^ 0xa5))));
        let key = key.unwrap();
        through(&mut || _ = login.encode(&key));
        through(&mut || _ = login.prove(&key, &[4; NONCE]));
        through(&mut || records = Some(login.records_of_caller(&key, &[4; NONCE], Cover::Encrypted)));
        let (mut sealer, mut opener) = records.unwrap();
        with_records(&mut || sealer.seal_into(&[&[1; 5_000]], &mut out));
        opener.push(&out);
        with_records(&mut || _ = opener.next_body());
        through(&mut || _ = key.greeting_key(&connection).mac(Purpose::Greeting, &[b"greeting"]));
        through(&mut || _ = key.clone());
    }

    /// How many pieces of what lies where secrets do also lie on the stack below the caller, or in the library's other memory.
    #[inline(never)]
    fn left_behind(memory: &fs::File) -> usize {
        const STACK: usize = 64 << 10;
        let here = 0u8;
        let read = |start: usize, length: usize| {
            let mut bytes = vec![0; length];
            memory.read_exact_at(&mut bytes, start as u64).unwrap();
            bytes
        };
        let stack = read((&raw const here).addr() - STACK, STACK);
        let secrets = read(SECRET_BASE, SECRETS.lock().next - SECRET_BASE);
        let is_random = |piece: &&[u8]| piece.iter().collect::<BTreeSet<_>>().len() > 8;
        let secrets: BTreeSet<&[u8]> = secrets.chunks(16).filter(is_random).collect();
        assert!(secrets.len() > 4, "there are keys");
        let found = stack.windows(16).enumerate().filter(|(_, window)| secrets.contains(window)).map(|(at, _)| STACK - at);
        let found: Vec<usize> = found.collect();
        println!("left behind, so many bytes below: {:?}", found.iter().max().zip(found.iter().min()));
        found.len()
    }

    /// An image of a process has its stacks, and the registers of its threads: what a computation with a key has left there must be gone.
    #[test]
    fn what_a_key_leaves_behind_is_overwritten() {
        let memory = fs::File::open("/proc/self/mem").unwrap();
        let of = |through: fn(&mut dyn FnMut()), with_records: fn(&mut dyn FnMut())| {
            let memory = memory.try_clone().unwrap();
            let run = move || {
                use_keys(through, with_records);
                left_behind(&memory)
            };
            // A stack that no other thread has used.
            std::thread::Builder::new().stack_size(1 << 20).spawn(run).unwrap().join().unwrap()
        };
        assert!(of(|compute| compute(), |compute| compute()) > 0, "without discretion something is found");
        assert_eq!(of(|compute| discreetly(compute), |compute| discreetly_with_records(compute)), 0);
    }

    #[test]
    fn secrets_lie_apart() {
        let layout = Layout::from_size_align(32, SECRET_ALIGN).unwrap();
        // SAFETY: used within its size and freed once.
        unsafe {
            let block = ALLOCATOR.alloc(layout);
            assert!(secrets().contains(&(block.addr() as u64)));
            ALLOCATOR.dealloc(block, layout);
        }
    }

    #[test]
    fn what_is_very_large_has_a_mapping_of_its_own() {
        let mut blocks: Vec<Vec<u8>> = [200 << 20, 6 << 30, 1 << 30].map(|size| vec![0; size]).into();
        for block in &mut blocks {
            let last = block.len() - 1;
            assert!(block.as_ptr().addr() >= apart::BASE && (block[0], block[last]) == (0, 0));
            (block[0], block[last]) = (1, 2);
        }
        let mut grown = std::mem::take(&mut blocks[0]);
        grown.reserve_exact(200 << 20);
        assert!((grown[0], grown[(200 << 20) - 1], blocks[1][0]) == (1, 2, 1), "what moves takes its bytes along");
        assert!(Vec::<u8>::new().try_reserve_exact(4 << 40).is_err(), "there are no such addresses");
    }

    #[test]
    fn threads_get_blocks_of_their_own() {
        std::thread::scope(|scope| {
            for id in 0..4u8 {
                scope.spawn(move || {
                    for round in 0..2_000usize {
                        let mut block = vec![id; 1 + round * 37 % 5_000];
                        block.extend_from_slice(&[id; 100]);
                        assert!(block.iter().all(|byte| *byte == id));
                    }
                });
            }
        });
    }

    proptest! {
        /// Random allocations: aligned, within the mapping, apart from each other, with their contents kept.
        #[test]
        fn blocks_do_not_overlap(steps in prop::collection::vec((0u8..4, 1usize..300_000, 0u32..13, any::<usize>()), 1..80)) {
            let mut live: BTreeMap<usize, (Layout, u8)> = BTreeMap::new();
            for (index, (what, size, align, pick)) in steps.into_iter().enumerate() {
                let mark = index as u8 | 1;
                let layout = Layout::from_size_align(size, 1 << align).unwrap();
                let chosen = live.keys().nth(pick % live.len().max(1)).copied();
                // SAFETY: blocks are used within their sizes; each is freed with the layout that it was allocated with.
                unsafe {
                    match (what, chosen) {
                        (0 | 1, _) | (_, None) => {
                            let zeroed = what == 1;
                            let block = if zeroed { ALLOCATOR.alloc_zeroed(layout) } else { ALLOCATOR.alloc(layout) };
                            let base = if layout.align() == SECRET_ALIGN { SECRET_BASE } else { BASE };
                            prop_assert!(block.addr() >= base && block.addr().is_multiple_of(layout.align()));
                            prop_assert!(!zeroed || std::slice::from_raw_parts(block, size).iter().all(|byte| *byte == 0));
                            block.write_bytes(mark, size);
                            live.insert(block.expose_provenance(), (layout, mark));
                        }
                        (2, Some(at)) => {
                            let (old, mark) = live.remove(&at).unwrap();
                            let block = ALLOCATOR.realloc(ptr::with_exposed_provenance_mut(at), old, size);
                            let kept = std::slice::from_raw_parts(block, old.size().min(size));
                            prop_assert!(kept.iter().all(|byte| *byte == mark));
                            block.write_bytes(mark, size);
                            live.insert(block.expose_provenance(), (Layout::from_size_align(size, old.align()).unwrap(), mark));
                        }
                        (_, Some(at)) => {
                            let (old, mark) = live.remove(&at).unwrap();
                            let block: *mut u8 = ptr::with_exposed_provenance_mut(at);
                            prop_assert!(std::slice::from_raw_parts(block, old.size()).iter().all(|byte| *byte == mark));
                            ALLOCATOR.dealloc(block, old);
                        }
                    }
                }
                let mut end = 0;
                for (at, (layout, _)) in &live {
                    prop_assert!(*at >= end, "two blocks overlap");
                    end = at + layout.size();
                }
            }
            for (at, (layout, _)) in live {
                // SAFETY: as above.
                unsafe { ALLOCATOR.dealloc(ptr::with_exposed_provenance_mut(at), layout) };
            }
        }
    }
}
