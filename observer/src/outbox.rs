//! The outbox: the sender's copy of sent bytes that the receiver's protector does not hold yet.
//!
//! One pool of blocks for all streams of the process; each stream chains the blocks it needs, so a stream that stalls holds only
//! its own, and one with nothing under way holds none. A stream may take as much as it leaves free: so a stream with a receiver that
//! does not read gets half of the pool, the next a quarter, and there is always something left for those that move. (Else a program
//! could hang here that does not hang on sockets, each of which has a buffer of its own.) Where recovery lines free the outbox it may
//! take seven times what it leaves free: what its receiver has read is kept there, too, and lines are dear. Everything
//! in the outbox has passed the gate: it may leave, and leave again, at any time.
//!
//! The pool has four parts, each of the requested size. A live process uses one. The others hold what an earlier incarnation sent
//! and this one must send again. Without them a thread ahead of its turn could take that room, and the receivers would wait
//! forever. Memory of a part that was never needed is never touched.
//! - When the log is over, bytes that a receiver already has may use two parts: another thread may have filled one with bytes that
//!   the recorded run had not sent. For that reason, and where there are several threads, a share of what a receiver that catches
//!   up may still ask for may use two, too. Other bytes get the share that they get in a live process. So a process with one thread
//!   has at each place of its program at least the room that it had there in any life before, for at least as much is stable: it is
//!   never blocked where it was not then, and its receivers get what they had.
//! - In replay, for a thread ahead of its turn, bytes that some thread sent in the recorded run may use two parts (the log does
//!   not name the thread); bytes that, by the log, no thread had sent get a share of one.
//! - In replay, for the thread whose turn it is, bytes may use two parts and as many blocks more as were taken ahead: all that
//!   filled two parts when the log was over may still be kept, and a later replay sends it in its turn.

use std::ops::Range;

/// A stream may take this many times what it leaves free, where recovery lines free the outbox.
const SHARE_WITH_LINES: usize = 7;
/// Parts for what a thread that the log does not name sent in the recorded run.
const PARTS_OF_ANY: usize = 2;
/// Parts for what has to be sent again.
const PARTS_AGAIN: usize = 2;
/// Parts of the pool: see the module's text.
pub const PARTS: usize = PARTS_AGAIN + PARTS_OF_ANY;
/// No block.
const NONE: u32 = u32::MAX;

/// One stream's part of the outbox. It belongs to exactly one [`Outbox`].
#[derive(Debug, Clone)]
pub struct Queue {
    head: u32,
    tail: u32,
    /// Offset at which the block `head` begins, a multiple of a block.
    base: u64,
    start: u64,
    end: u64,
    /// A block of the chain up to which bytes have left, and the offset at which it begins: what leaves next need not be looked for from `head` on.
    near: u32,
    near_base: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { head: NONE, tail: NONE, base: 0, start: 0, end: 0, near: NONE, near_base: 0 }
    }
}

impl Queue {
    /// Offset of the oldest byte that is kept.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Offset after the newest byte.
    pub fn end(&self) -> u64 {
        self.end
    }
}

/// Where bytes are to be put for which room was taken.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    block: u32,
    /// Offset at which that block begins.
    base: u64,
    at: u64,
}

impl Place {
    /// Offset of the byte that is put there next.
    pub fn at(&self) -> u64 {
        self.at
    }
}

/// The pool of blocks.
#[derive(Debug, Clone)]
pub struct Outbox {
    bytes: Box<[u8]>,
    /// For each block the next of its stream, or of the free ones.
    next: Box<[u32]>,
    block: usize,
    free: u32,
    /// Blocks from here on were never used: neither they nor their `next` was touched, so they cost no memory yet.
    fresh: u32,
    used: usize,
    /// Blocks of one part of the pool.
    part: usize,
    /// Blocks that were taken ahead in this replay.
    early: usize,
    /// A stream may take this many times what it leaves free.
    share: usize,
}

impl Outbox {
    /// `part` blocks of `block` bytes, and as many again for each of the parts that only replay uses.
    ///
    /// # Panics
    /// If a block holds nothing, or there are 2^32 - 1 blocks or more.
    pub fn new(part: usize, block: usize) -> Self {
        let blocks = part * PARTS;
        assert!(block > 0 && blocks < NONE as usize, "{blocks} blocks of {block} bytes");
        let (bytes, next) = (vec![0; blocks * block].into_boxed_slice(), vec![0; blocks].into_boxed_slice());
        Outbox { bytes, next, block, free: NONE, fresh: 0, used: 0, part, early: 0, share: 1 }
    }

    /// The process begins again, and nothing has got ahead yet.
    pub fn handle_restart(&mut self) {
        self.early = 0;
    }

    /// Recovery lines free it.
    pub fn expect_lines(&mut self) {
        self.share = SHARE_WITH_LINES;
    }

    /// The addresses where bytes are kept.
    pub fn memory(&self) -> Range<usize> {
        let Range { start, end } = self.bytes.as_ptr_range();
        start.addr()..end.addr()
    }

    /// Bytes of blocks in use: what the configured bound bounds, except for what replay has taken beyond it.
    pub fn used(&self) -> usize {
        self.used * self.block
    }

    /// Whether an eighth is in use: how fast it fills is of interest from here on.
    pub fn is_filling(&self) -> bool {
        self.used * 8 >= self.part
    }

    /// Whether a quarter is in use: time to ask what is stable, as a single stream may take half or more.
    pub fn is_pressed(&self) -> bool {
        self.used * 4 >= self.part
    }

    /// Bytes that there is room for in a live process.
    pub fn capacity(&self) -> usize {
        self.part * self.block
    }

    /// Bytes that `queue` could take in whole blocks: it is full when there are none.
    pub fn left(&self, queue: &Queue) -> usize {
        self.blocks_for(queue) * self.block
    }

    /// Blocks that `queue` could take.
    fn blocks_for(&self, queue: &Queue) -> usize {
        self.share_of(self.part, queue)
    }

    /// Blocks that `queue` could take of this many. A queue that has none gets one as long as there are any.
    fn share_of(&self, blocks: usize, queue: &Queue) -> usize {
        let (free, own) = (self.free_of(blocks), self.blocks_of(queue));
        let more = (free * self.share).saturating_sub(own) / (self.share + 1);
        if own == 0 { more.max(free.min(1)) } else { more }
    }

    /// Blocks that are left of this many.
    fn free_of(&self, blocks: usize) -> usize {
        blocks.min(self.next.len()).saturating_sub(self.used)
    }

    fn blocks_of(&self, queue: &Queue) -> usize {
        if queue.head == NONE { 0 } else { ((queue.end - queue.base) as usize).div_ceil(self.block) }
    }

    /// Bytes that `queue` could take now.
    pub fn room(&self, queue: &Queue) -> usize {
        self.bytes_in(queue, self.blocks_for(queue))
    }

    /// Free bytes of the queue's last block and of this many more.
    fn bytes_in(&self, queue: &Queue, more: usize) -> usize {
        let filled = (queue.end % self.block as u64) as usize;
        let last = if queue.tail == NONE { 0 } else { (self.block - filled) % self.block };
        // A first block is filled from where the offset stands in it.
        let skipped = if queue.tail == NONE && more > 0 { filled } else { 0 };
        last + more * self.block - skipped
    }

    fn block_taken(&mut self) -> Option<u32> {
        let block = if self.free != NONE {
            let block = self.free;
            self.free = self.next[block as usize];
            block
        } else if (self.fresh as usize) < self.next.len() {
            self.fresh += 1;
            self.fresh - 1
        } else {
            return None;
        };
        self.next[block as usize] = NONE;
        self.used += 1;
        Some(block)
    }

    /// Nothing is kept. Every queue is to be filled again: [`Outbox::refill`].
    pub fn clear(&mut self) {
        (self.free, self.fresh, self.used) = (NONE, 0, 0);
    }

    /// After [`Outbox::clear`]: these bytes are what the queue keeps, from this offset on.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn refill(&mut self, queue: &mut Queue, from: u64, bytes: &[u8]) {
        *queue = Queue { start: from, end: from, ..Queue::default() };
        // An image may have been made while some of what had been taken ahead was still kept.
        let taken = self.append_within(queue, bytes, usize::MAX, self.next.len());
        assert_eq!(taken, bytes.len(), "what was kept once has room again");
    }

    /// Appends as much of `bytes` as there is room for, and returns how much.
    pub fn append(&mut self, queue: &mut Queue, bytes: &[u8]) -> usize {
        self.append_at_most(queue, bytes, self.room(queue))
    }

    /// Appends in replay, for the thread whose turn it is. It may use all free room, because the recorded run already decided the
    /// shares. The room suffices: what was stable then is stable now, and blocks start at the same offsets. So of each stream at
    /// most the blocks of the recorded run are kept, besides those that were taken ahead.
    pub fn append_again(&mut self, queue: &mut Queue, bytes: &[u8]) -> usize {
        self.append_within(queue, bytes, usize::MAX, self.part * PARTS_AGAIN + self.early)
    }

    /// Appends when the log is over. The first `known` bytes were sent in the recorded run: the receiver has them. Whether the
    /// rest was sent is not known. `is_owed`: the receiver itself is catching up, so it may still ask for some of the rest, and
    /// another thread may have taken the room for that. So it takes a share of more than one part.
    pub fn append_settled(&mut self, queue: &mut Queue, bytes: &[u8], known: usize, is_owed: bool) -> usize {
        let all = self.part * PARTS_AGAIN;
        let owed = if is_owed { self.bytes_in(queue, self.share_of(all, queue)) } else { 0 };
        self.append_within(queue, bytes, known.max(owed), all)
    }

    /// Appends in replay, while it is another thread's turn. The first `then` bytes were sent in the recorded run, perhaps by a
    /// third thread or by the one whose turn it is. The recorded call may not have been over, so the rest takes no more than the
    /// queue's share.
    pub fn append_early(&mut self, queue: &mut Queue, bytes: &[u8], then: usize) -> usize {
        let before = self.used;
        let taken = self.append_within(queue, bytes, then, self.part * PARTS_OF_ANY);
        self.early += self.used - before;
        taken
    }

    /// Appends what the queue's share has room for, and of the first `known` bytes what this many blocks have room for.
    fn append_within(&mut self, queue: &mut Queue, bytes: &[u8], known: usize, blocks: usize) -> usize {
        let all = self.bytes_in(queue, self.free_of(blocks));
        self.append_at_most(queue, bytes, self.room(queue).max(known.min(all)))
    }

    fn append_at_most(&mut self, queue: &mut Queue, bytes: &[u8], room: usize) -> usize {
        let bytes = &bytes[..bytes.len().min(room)];
        let mut place = self.reserve(queue, bytes.len());
        self.fill(&mut place, bytes, <[u8]>::copy_from_slice);
        bytes.len()
    }

    /// Takes room for this many bytes, which [`Outbox::room`] has said there is. They are there when [`Outbox::fill`] has put
    /// them.
    pub fn reserve(&mut self, queue: &mut Queue, bytes: usize) -> Place {
        let (from, mut left) = (queue.end, bytes);
        let mut first = (queue.tail, from - from % self.block as u64);
        while left > 0 {
            let filled = (queue.end % self.block as u64) as usize;
            if filled == 0 || queue.tail == NONE {
                let block = self.block_taken().expect("the room was computed from the free blocks");
                if queue.tail == NONE {
                    (queue.head, queue.base) = (block, queue.end - filled as u64);
                } else {
                    self.next[queue.tail as usize] = block;
                }
                queue.tail = block;
                if queue.end == from {
                    first.0 = block;
                }
            }
            let length = left.min(self.block - filled);
            queue.end += length as u64;
            left -= length;
        }
        Place { block: first.0, base: first.1, at: from }
    }

    /// Has `copy` put these bytes there; the next ones come after them.
    pub fn fill(&mut self, place: &mut Place, mut bytes: &[u8], copy: impl Fn(&mut [u8], &[u8])) {
        while !bytes.is_empty() {
            if place.at == place.base + self.block as u64 {
                (place.block, place.base) = (self.next[place.block as usize], place.at);
            }
            let filled = (place.at - place.base) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(self.block - filled));
            let at = place.block as usize * self.block + filled;
            copy(&mut self.bytes[at..at + now.len()], now);
            place.at += now.len() as u64;
            bytes = later;
        }
    }

    /// Passes over bytes that need not be kept, at the end of a queue that keeps none.
    pub fn skip(&mut self, queue: &mut Queue, bytes: u64) {
        assert!(queue.start == queue.end && queue.head == NONE, "only an empty queue can pass over bytes");
        queue.end += bytes;
        queue.start = queue.end;
    }

    /// Forgets the bytes before `offset`, at most all.
    pub fn trim(&mut self, queue: &mut Queue, offset: u64) {
        queue.start = queue.start.max(offset.min(queue.end));
        while queue.head != NONE && (queue.start == queue.end || queue.base + self.block as u64 <= queue.start) {
            let block = queue.head;
            if block == queue.near {
                queue.near = NONE;
            }
            queue.head = self.next[block as usize];
            queue.base += self.block as u64;
            self.next[block as usize] = self.free;
            self.free = block;
            self.used -= 1;
        }
        if queue.head == NONE {
            queue.tail = NONE;
        }
    }

    /// Bytes have left up to `offset`: those after them are found at once.
    pub fn handle_left(&self, queue: &mut Queue, offset: u64) {
        let (mut block, mut base) = self.before(queue, offset);
        while block != NONE && base + self.block as u64 <= offset && self.next[block as usize] != NONE {
            block = self.next[block as usize];
            base += self.block as u64;
        }
        (queue.near, queue.near_base) = (block, base);
    }

    /// A block at or before `offset` from which the chain leads there, and where it begins.
    fn before(&self, queue: &Queue, offset: u64) -> (u32, u64) {
        let is_near = queue.near != NONE && queue.near_base <= offset;
        if is_near { (queue.near, queue.near_base) } else { (queue.head, queue.base) }
    }

    /// The bytes from `from` on, in order, block by block.
    ///
    /// # Panics
    /// If they are not kept any more.
    pub fn pieces<'a>(&'a self, queue: &'a Queue, from: u64) -> impl Iterator<Item = &'a [u8]> {
        assert!(queue.start <= from, "bytes from {from} wanted, kept from {}", queue.start);
        let ((mut block, mut base), mut from) = (self.before(queue, from), from);
        std::iter::from_fn(move || {
            while block != NONE && base + self.block as u64 <= from {
                block = self.next[block as usize];
                base += self.block as u64;
            }
            if from >= queue.end {
                return None;
            }
            let (skip, until) = ((from - base) as usize, ((queue.end - base) as usize).min(self.block));
            let at = block as usize * self.block;
            from = base + until as u64;
            Some(&self.bytes[at + skip..at + until])
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a model of plain vectors: three streams share a pool.
        #[test]
        fn it_keeps_what_was_not_trimmed(block in 1usize..9, steps in prop::collection::vec((0u8..5, 0usize..3, 0usize..40), 0..120)) {
            let mut outbox = Outbox::new(10, block);
            let mut queues = [Queue::default(), Queue::default(), Queue::default()];
            let mut all: [Vec<u8>; 3] = Default::default();
            for (step, which, number) in steps {
                let (queue, all) = (&mut queues[which], &mut all[which]);
                match step {
                    0 | 1 => {
                        let bytes: Vec<u8> = (0..number).map(|i| (all.len() + i) as u8).collect();
                        let room = outbox.room(queue);
                        let taken = if step == 0 { outbox.append(queue, &bytes) } else { number.min(room) };
                        if step == 1 {
                            // They leave before they are put there, in two parts.
                            let mut place = outbox.reserve(queue, taken);
                            outbox.handle_left(queue, queue.end());
                            let (one, two) = bytes[..taken].split_at(taken / 3);
                            for part in [one, two] {
                                outbox.fill(&mut place, part, <[u8]>::copy_from_slice);
                            }
                        }
                        prop_assert_eq!(taken, number.min(room));
                        all.extend(&bytes[..taken]);
                    }
                    2 => outbox.trim(queue, queue.start() + number as u64),
                    4 => outbox.handle_left(queue, (queue.start() + number as u64).min(queue.end())),
                    _ => if queue.start() == queue.end() {
                        outbox.skip(queue, number as u64);
                        all.resize(all.len() + number, 0);
                    },
                }
                prop_assert_eq!(queue.end() as usize, all.len());
                for from in queue.start()..=queue.end() {
                    let kept: Vec<u8> = outbox.pieces(queue, from).flatten().copied().collect();
                    prop_assert_eq!(&kept, &all[from as usize..]);
                }
            }
            for queue in &mut queues {
                outbox.trim(queue, u64::MAX);
            }
            prop_assert_eq!(outbox.used(), 0, "no block is lost");
        }
    }

    #[test]
    fn pressure_comes_before_it_is_full() {
        let (mut outbox, mut queue) = (Outbox::new(8, 4), Queue::default());
        assert_eq!(outbox.append(&mut queue, &[0; 4]), 4);
        assert!(!outbox.is_pressed());
        assert_eq!(outbox.append(&mut queue, &[0; 1]), 1);
        assert!(outbox.is_pressed() && outbox.room(&queue) == 11);
    }

    #[test]
    fn where_lines_free_it_a_stream_gets_more_and_still_leaves_room_for_others() {
        let mut outbox = Outbox::new(64, 4);
        outbox.expect_lines();
        let mut queues = [Queue::default(), Queue::default(), Queue::default()];
        let taken = queues.each_mut().map(|queue| (0..9).map(|_| outbox.append(queue, &[0; 1_000])).sum::<usize>());
        assert_eq!(taken, [56 * 4, 7 * 4, 4]);
    }

    #[test]
    fn a_stream_that_stalls_leaves_room_for_others() {
        let mut outbox = Outbox::new(8, 4);
        let mut queues = [Queue::default(), Queue::default(), Queue::default()];
        let taken = queues.each_mut().map(|queue| (0..9).map(|_| outbox.append(queue, &[0; 100])).sum::<usize>());
        assert_eq!(taken, [16, 8, 4]);
        assert_eq!(outbox.append_early(&mut queues[0], &[0; 100], 0), 0, "it has its share");
        assert_eq!(outbox.append_early(&mut queues[0], &[0; 100], 3), 3, "what was taken then");
        outbox.trim(&mut queues[0], 17);
        assert_eq!(outbox.append(&mut Queue::default(), &[0; 100]), 8, "half of what the trimmed one left");
    }

    #[test]
    fn what_got_ahead_leaves_room_for_what_is_in_its_turn() {
        let mut outbox = Outbox::new(8, 4);
        let mut queues = [Queue::default(), Queue::default(), Queue::default()];
        let [early, turn, live] = &mut queues;
        assert_eq!(outbox.append_again(turn, &[0; 200]), 64, "nothing has got ahead: two parts");
        outbox.trim(turn, 64);
        assert_eq!(outbox.append_early(early, &[0; 200], 0), 16, "what may not have been sent then has its share of one part");
        assert_eq!(outbox.append_early(early, &[0; 200], 200), 48, "what some thread has sent then fills two");
        assert_eq!(outbox.append_early(early, &[0; 200], 200), 0);
        assert_eq!(outbox.append_again(turn, &[0; 200]), 64, "the other two");
        assert_eq!((outbox.room(live), outbox.left(live), outbox.is_pressed()), (0, 0, true));
        outbox.trim(early, 64);
        outbox.trim(turn, 64 + 48);
        assert_eq!(outbox.append(live, &[0; 100]), 8, "half of what is left of the first part");
    }

    #[test]
    fn after_the_log_s_end_what_receivers_had_or_may_ask_for_has_room_beyond_one_part() {
        let mut outbox = Outbox::new(8, 4);
        let mut queues = [Queue::default(), Queue::default(), Queue::default()];
        let [ahead, owed, had] = &mut queues;
        outbox.append_again(ahead, &[0; 32]);
        assert_eq!(outbox.append_settled(ahead, &[0; 100], 0, false), 0, "one part is full, and its receiver has had no more");
        assert_eq!(outbox.append_settled(owed, &[0; 100], 0, true), 16, "half of what the second part has left");
        assert_eq!(outbox.append_settled(had, &[0; 100], 10, false), 10);
        assert_eq!(outbox.append_settled(had, &[0; 100], 0, false), 2, "the rest of its block");
        assert_eq!(outbox.append_settled(had, &[0; 100], 100, false), 4, "there is no more");
    }

    proptest! {
        /// The same program with one thread lives twice: live, and from a log that is over after some of its sends. What was stable at a
        /// place of the program is stable there in the second life, and perhaps more is. Then there is no less room at any place.
        #[test]
        fn a_later_life_has_at_least_the_room_of_the_one_before(
            block in 1usize..9,
            over in 0usize..60,
            more in 0u64..40,
            lines in any::<bool>(),
            steps in prop::collection::vec((0usize..3, 1usize..40, 0u64..40), 0..60),
        ) {
            let (mut then, mut now) = (Outbox::new(10, block), Outbox::new(10, block));
            if lines {
                then.expect_lines();
                now.expect_lines();
            }
            let (mut before, mut after): ([Queue; 3], [Queue; 3]) = Default::default();
            for (at, (which, bytes, trimmed)) in steps.into_iter().enumerate() {
                let taken = then.append(&mut before[which], &vec![0; bytes]);
                let bytes = vec![0; taken];
                let again = match at < over {
                    true => now.append_again(&mut after[which], &bytes),
                    false => now.append_settled(&mut after[which], &bytes, 0, false),
                };
                prop_assert_eq!(again, taken);
                let stable = before[which].start() + trimmed;
                then.trim(&mut before[which], stable);
                now.trim(&mut after[which], stable + more);
            }
        }
    }
}
