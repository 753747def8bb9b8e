//! The output of many ranks as one readable text: whole lines, each stream in its own order.
//!
//! No file and no clock in here. Bytes come in through [`Printer::handle_output`], what is to be written comes out of
//! [`Printer::poll_piece`].
//!
//! A line is printed when it is complete. There are two exceptions, and in both the unfinished line *owns* its place: the
//! lines of others wait until it is complete.
//! - Rank 0 reads the terminal, so what it wrote [`QUIET`] ago without a newline may be a prompt, and is shown as long as there
//!   may be input.
//! - A line longer than [`LINE`] is shown as it comes.
//!
//! Waiting has bounds: when more than [`HELD`] bytes wait (the ranks would block for want of a reader), or when the others have
//! waited for [`PATIENCE`] in front of a person, the owner's line is broken with a newline.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use radic_wire::ids::Rank;
use radic_wire::job::OutputStream;

use crate::ledger::Range;

/// Longest unfinished line that is held back, in bytes.
pub(crate) const LINE: usize = 64 << 10;
/// Most bytes that are held back in all. Well below the window of the daemon, which would stop sending otherwise.
pub(crate) const HELD: usize = 256 << 10;
/// An unfinished line of rank 0 that has not grown for so long may be a prompt.
pub(crate) const QUIET: Duration = Duration::from_millis(100);
/// On a terminal the lines of one source wait no longer than this for another source's unfinished line.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

const _: () = assert!(LINE < HELD && HELD + radic_wire::limits::CHUNK < radic_wire::limits::OUTPUT_WINDOW);

/// Where a byte of output comes from.
type Source = (Rank, OutputStream);

/// What the printer has to know about the places it prints to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// Whether each line begins with `[rank] `.
    pub(crate) label: bool,
    /// Whether stdout and stderr end up in the same file or terminal.
    pub(crate) shared: bool,
    /// Whether stdout and stderr are terminals.
    pub(crate) terminal: [bool; 2],
}

/// Bytes to write, whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where to.
    pub(crate) stream: OutputStream,
    /// What.
    pub(crate) bytes: Vec<u8>,
    /// The parts of the ranks' output it holds, labels not counted.
    pub(crate) ranges: Vec<Range>,
}

/// Bytes of one source that were not printed yet.
#[derive(Debug)]
struct Pending {
    text: Vec<u8>,
    /// Where in the job's output they stood; the lengths add up to that of the text.
    ranges: VecDeque<Range>,
    /// When it last grew.
    at: Instant,
    /// Nothing follows.
    ended: bool,
}

impl Pending {
    fn push(&mut self, now: Instant, offset: u64, data: &[u8]) {
        self.text.extend_from_slice(data);
        self.at = now;
        match self.ranges.back_mut() {
            Some((start, length)) if *start + *length == offset => *length += data.len() as u64,
            _ => self.ranges.push_back((offset, data.len() as u64)),
        }
    }

    fn take(&mut self, count: usize) -> (Vec<u8>, Vec<Range>) {
        let mut ranges = Vec::new();
        let mut left = count as u64;
        while left > 0 {
            let (start, length) = self.ranges.pop_front().expect("the ranges cover the text");
            if length > left {
                self.ranges.push_front((start + left, length - left));
            }
            ranges.push((start, length.min(left)));
            left -= length.min(left);
        }
        (self.text.drain(..count).collect(), ranges)
    }
}

/// A place where lines appear. There is one for both streams if they end up in the same file.
#[derive(Debug, Default)]
struct Sink {
    /// The source of the unfinished line that was printed, and when the line last grew.
    owner: Option<(Source, Instant)>,
    /// The owner says nothing more: its line gives way to the next.
    over: bool,
    /// Sources with whole lines that wait for the owner, in the order of their coming; each once.
    waiting: VecDeque<Source>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Printer {
    style: Style,
    /// Whether rank 0 may be waiting for input.
    prompts: bool,
    pending: BTreeMap<Source, Pending>,
    /// Bytes in `pending`.
    held: usize,
    sinks: [Sink; 2],
    pieces: VecDeque<Piece>,
    line_limit: usize,
    held_limit: usize,
}

impl Printer {
    pub(crate) fn new(style: Style) -> Self {
        Self::with_limits(style, LINE, HELD)
    }

    fn with_limits(style: Style, line_limit: usize, held_limit: usize) -> Self {
        Printer {
            style,
            prompts: true,
            pending: BTreeMap::new(),
            held: 0,
            sinks: Default::default(),
            pieces: VecDeque::new(),
            line_limit,
            held_limit,
        }
    }

    fn sink(&self, stream: OutputStream) -> usize {
        usize::from(stream == OutputStream::Stderr && !self.style.shared)
    }

    /// Takes output of a rank as it came; `offset` counts all output of the job in the order of its coming.
    pub(crate) fn handle_output(&mut self, now: Instant, rank: Rank, stream: OutputStream, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let source = (rank, stream);
        let empty = || Pending { text: Vec::new(), ranges: VecDeque::new(), at: now, ended: false };
        self.pending.entry(source).or_insert_with(empty).push(now, offset, data);
        self.held += data.len();
        self.offer(source);
        self.release(self.sink(stream));
        while self.held > self.held_limit {
            self.relieve();
        }
    }

    /// Nothing more comes from this stream: what it has left unfinished is a line.
    pub(crate) fn handle_end(&mut self, rank: Rank, stream: OutputStream) {
        let (source, sink) = ((rank, stream), self.sink(stream));
        if self.sinks[sink].owner.is_some_and(|(owner, _)| owner == source) {
            self.sinks[sink].over = true;
        }
        if let Some(pending) = self.pending.get_mut(&source) {
            pending.ended = true;
            self.offer(source);
        }
        self.release(sink);
    }

    /// The terminal has no more input: what rank 0 leaves unfinished is not a prompt.
    pub(crate) fn handle_end_of_input(&mut self) {
        self.prompts = false;
    }

    /// A line of RADIC's own on stderr.
    pub(crate) fn handle_message(&mut self, text: &str) {
        let sink = self.sink(OutputStream::Stderr);
        self.take_place(sink);
        self.pieces.push_back(Piece {
            stream: OutputStream::Stderr,
            bytes: format!("{text}\n").into_bytes(),
            ranges: Vec::new(),
        });
        self.release(sink);
    }

    /// When [`Printer::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let prompts = self.prompt_due().map(|(at, _)| at);
        prompts.chain(self.patience_due().map(|(at, _)| at)).min()
    }

    /// Does what has become due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let impatient: Vec<_> = self.patience_due().filter(|(at, _)| *at <= now).collect();
        for (_, sink) in impatient {
            self.take_place(sink);
            self.release(sink);
        }
        let prompts: Vec<_> = self.prompt_due().filter(|(at, _)| *at <= now).collect();
        for (_, source) in prompts {
            // Both streams may prompt into the same place: the first one has it now.
            if self.sinks[self.sink(source.1)].owner.is_none() {
                self.print(source, usize::MAX);
            }
        }
    }

    /// What to write next.
    pub(crate) fn poll_piece(&mut self) -> Option<Piece> {
        self.pieces.pop_front()
    }

    /// Prints what is left: no more output comes.
    pub(crate) fn finish(&mut self) {
        self.prompts = false;
        for sink in 0..self.sinks.len() {
            while let Some(source) = self.sinks[sink].waiting.pop_front() {
                self.print_whole(source);
            }
        }
        let rest: Vec<_> = self.pending.keys().copied().collect();
        for source in rest {
            self.print_whole(source);
        }
        assert!(self.held == 0 && self.pending.is_empty(), "{} bytes of output were not printed", self.held);
    }

    /// Rank 0's unfinished lines that may be shown, and when.
    fn prompt_due(&self) -> impl Iterator<Item = (Instant, Source)> {
        let streams: &[OutputStream] = if self.prompts { &[OutputStream::Stdout, OutputStream::Stderr] } else { &[] };
        let free = streams.iter().filter(|s| self.sinks[self.sink(**s)].owner.is_none());
        free.filter_map(|s| Some((self.pending.get(&(Rank(0), *s))?.at + QUIET, (Rank(0), *s))))
    }

    /// Terminals on which a source waits, and until when.
    fn patience_due(&self) -> impl Iterator<Item = (Instant, usize)> {
        let sinks = self.sinks.iter().enumerate();
        let waited_for = sinks.filter(|(i, sink)| self.style.terminal[*i] && !sink.waiting.is_empty());
        waited_for.filter_map(|(i, sink)| Some((sink.owner?.1 + PATIENCE, i)))
    }

    /// Prints what may be printed of `source` now, or lets it wait.
    fn offer(&mut self, source: Source) {
        let Some(pending) = self.pending.get(&source) else { return };
        let (at, ended) = (pending.at, pending.ended);
        let lines = pending.text.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        let whole = if ended { pending.text.len() } else { lines };
        let rest = pending.text.len() - whole;
        let sink = self.sink(source.1);
        if self.sinks[sink].over && self.sinks[sink].owner.is_some_and(|(owner, _)| owner != source) {
            self.take_place(sink);
        }
        match self.sinks[sink].owner {
            None if rest >= self.line_limit => self.print(source, usize::MAX),
            None => self.print(source, whole),
            Some((owner, _)) if owner == source => {
                self.sinks[sink].owner = Some((owner, at));
                self.print(source, if whole > 0 { whole } else { usize::MAX });
            }
            Some(_) => {
                let waiting = &mut self.sinks[sink].waiting;
                if (whole > 0 || rest >= self.line_limit) && !waiting.contains(&source) {
                    waiting.push_back(source);
                }
            }
        }
    }

    /// Prints the lines that wait, as long as no source owns the place.
    fn release(&mut self, sink: usize) {
        while self.sinks[sink].owner.is_none() || self.sinks[sink].over {
            let Some(source) = self.sinks[sink].waiting.pop_front() else { break };
            self.offer(source);
        }
    }

    /// Too much is held back: the largest part of it goes out, even if another source owns the place.
    fn relieve(&mut self) {
        let largest = self.pending.iter().max_by_key(|(_, pending)| pending.text.len());
        let Some((source, _)) = largest else { return };
        let source = *source;
        let sink = self.sink(source.1);
        self.take_place(sink);
        self.sinks[sink].waiting.retain(|s| *s != source);
        self.print(source, usize::MAX);
        self.release(sink);
    }

    /// Breaks the unfinished line that stands there, if any.
    fn take_place(&mut self, sink: usize) {
        self.sinks[sink].over = false;
        if let Some(((_, stream), _)) = self.sinks[sink].owner.take() {
            self.pieces.push_back(Piece { stream, bytes: b"\n".to_vec(), ranges: Vec::new() });
        }
    }

    /// Prints all of `source`, even if another source owns the place.
    fn print_whole(&mut self, source: Source) {
        let sink = self.sink(source.1);
        if self.sinks[sink].owner.is_some_and(|(owner, _)| owner != source) {
            self.take_place(sink);
        }
        self.print(source, usize::MAX);
    }

    /// Prints the first `count` bytes of `source`, which has the place or finds it free, and keeps the account of the owner.
    fn print(&mut self, source: Source, count: usize) {
        let sink = self.sink(source.1);
        let owner = self.sinks[sink].owner;
        assert!(owner.is_none_or(|(owner, _)| owner == source), "{source:?} would print into the line of {owner:?}");
        let Some(pending) = self.pending.get_mut(&source) else { return };
        let count = count.min(pending.text.len());
        if count == 0 {
            return;
        }
        let (text, ranges) = pending.take(count);
        let (at, ended) = (pending.at, pending.ended);
        if pending.text.is_empty() {
            self.pending.remove(&source);
        }
        self.held -= count;
        let unfinished = text.last() != Some(&b'\n');
        let bytes = if self.style.label { labelled(source.0, &text, owner.is_some()) } else { text };
        self.sinks[sink].owner = unfinished.then_some((source, at));
        self.sinks[sink].over = unfinished && ended;
        self.pieces.push_back(Piece { stream: source.1, bytes, ranges });
    }
}

/// `text` with `[rank] ` before each line, but not before the first if that is the rest of one.
fn labelled(rank: Rank, text: &[u8], continued: bool) -> Vec<u8> {
    let label = format!("[{rank}] ");
    let mut out = Vec::with_capacity(text.len() + label.len() * 8);
    for (i, line) in text.split_inclusive(|b| *b == b'\n').enumerate() {
        if i > 0 || !continued {
            out.extend_from_slice(label.as_bytes());
        }
        out.extend_from_slice(line);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use OutputStream::{Stderr, Stdout};

    const PLAIN: Style = Style { label: false, shared: false, terminal: [false; 2] };

    fn output(printer: &mut Printer, now: Instant, rank: u32, stream: OutputStream, data: &[u8]) {
        printer.handle_output(now, Rank(rank), stream, 0, data);
    }

    fn drain(printer: &mut Printer) -> [String; 2] {
        let mut out = [Vec::new(), Vec::new()];
        while let Some(piece) = printer.poll_piece() {
            out[usize::from(piece.stream == Stderr)].extend_from_slice(&piece.bytes);
        }
        out.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    fn stdout(printer: &mut Printer) -> String {
        let [stdout, stderr] = drain(printer);
        assert_eq!(stderr, "");
        stdout
    }

    #[test]
    fn lines_are_whole_and_labelled() {
        let now = Instant::now();
        let mut printer = Printer::new(Style { label: true, ..PLAIN });
        output(&mut printer, now, 0, Stdout, b"ab");
        output(&mut printer, now, 1, Stdout, b"x\ny\nz");
        output(&mut printer, now, 0, Stdout, b"c\n");
        assert_eq!(stdout(&mut printer), "[1] x\n[1] y\n[0] abc\n");
        printer.finish();
        assert_eq!(stdout(&mut printer), "[1] z", "the end of the output is not given a newline that is not there");
    }

    #[test]
    fn unfinished_lines_at_the_end_are_not_glued_together() {
        let now = Instant::now();
        let mut printer = Printer::new(PLAIN);
        output(&mut printer, now, 1, Stdout, b"one");
        output(&mut printer, now, 2, Stdout, b"two");
        printer.finish();
        assert_eq!(stdout(&mut printer), "one\ntwo");
    }

    #[test]
    fn the_last_line_of_a_rank_is_printed_when_no_more_comes_from_it() {
        let now = Instant::now();
        let mut printer = Printer::new(PLAIN);
        output(&mut printer, now, 1, Stdout, b"one\ntw");
        output(&mut printer, now, 2, Stdout, b"three");
        assert_eq!(stdout(&mut printer), "one\n");
        printer.handle_end(Rank(1), Stdout);
        assert_eq!(stdout(&mut printer), "tw");
        output(&mut printer, now, 2, Stdout, b"\nfour");
        assert_eq!(stdout(&mut printer), "\nthree\n", "what has ended gives way");
        printer.handle_end(Rank(2), Stdout);
        printer.handle_end(Rank(3), Stdout);
        assert_eq!(stdout(&mut printer), "four");
        printer.finish();
        assert_eq!(stdout(&mut printer), "");
    }

    #[test]
    fn a_prompt_is_shown_and_others_wait_for_its_line() {
        let start = Instant::now();
        let mut printer = Printer::new(PLAIN);
        output(&mut printer, start, 1, Stdout, b"not a prompt");
        assert_eq!(printer.poll_timeout(), None);
        output(&mut printer, start, 0, Stdout, b"n? ");
        assert_eq!(printer.poll_timeout(), Some(start + QUIET));
        printer.handle_timeout(start + QUIET / 2);
        assert_eq!(stdout(&mut printer), "");
        printer.handle_timeout(start + QUIET);
        assert_eq!(stdout(&mut printer), "n? ");
        output(&mut printer, start + QUIET, 1, Stdout, b"\n");
        assert_eq!((stdout(&mut printer).as_str(), printer.poll_timeout()), ("", None));
        output(&mut printer, start + QUIET, 0, Stdout, b"4\nm? ");
        assert_eq!(stdout(&mut printer), "4\nnot a prompt\n");
    }

    #[test]
    fn without_input_there_are_no_prompts() {
        let start = Instant::now();
        let mut printer = Printer::new(PLAIN);
        output(&mut printer, start, 0, Stdout, b"...");
        printer.handle_end_of_input();
        assert_eq!(printer.poll_timeout(), None);
        printer.handle_timeout(start + QUIET * 9);
        assert_eq!(stdout(&mut printer), "");
    }

    #[test]
    fn a_person_does_not_wait_for_ever() {
        let start = Instant::now();
        let mut printer = Printer::new(Style { terminal: [true, true], shared: true, ..PLAIN });
        output(&mut printer, start, 0, Stdout, b"n? ");
        printer.handle_timeout(start + QUIET);
        output(&mut printer, start + QUIET, 3, Stderr, b"help\n");
        assert_eq!(stdout(&mut printer), "n? ");
        let due = printer.poll_timeout().unwrap();
        assert_eq!(due, start + PATIENCE);
        printer.handle_timeout(due);
        assert_eq!(drain(&mut printer), ["\n".to_owned(), "help\n".to_owned()]);
    }

    #[test]
    fn a_message_of_ours_starts_a_line() {
        let start = Instant::now();
        let mut printer = Printer::new(Style { shared: true, ..PLAIN });
        output(&mut printer, start, 0, Stdout, b"n? ");
        printer.handle_timeout(start + QUIET);
        printer.handle_message("radic: hello");
        assert_eq!(drain(&mut printer), ["n? \n".to_owned(), "radic: hello\n".to_owned()]);
    }

    #[test]
    fn an_endless_line_holds_nobody_up_for_ever() {
        let now = Instant::now();
        let mut printer = Printer::new(PLAIN);
        output(&mut printer, now, 1, Stdout, &[b'a'; LINE]);
        assert_eq!(stdout(&mut printer).len(), LINE, "a long line is shown as it comes");
        let mut shown = 0;
        for _ in 0..=HELD / 2 {
            output(&mut printer, now, 2, Stdout, b"b\n");
            shown += stdout(&mut printer).matches('b').count();
        }
        assert!(shown > HELD / 4, "{shown} lines got past an endless one");
    }

    /// A line of a rank that can be told from every other one.
    fn line(rank: u32, number: usize, length: usize) -> String {
        format!("<{rank}.{number}.{}>", "x".repeat(length))
    }

    prop_compose! {
        /// For each of four ranks the lengths of its lines, and an interleaving: (which source, how many bytes, milliseconds).
        fn traffic()(
            lengths in prop::collection::vec(prop::collection::vec(0usize..30, 0..12), 4),
            steps in prop::collection::vec((0usize..4, 1usize..40, 0u64..60), 0..200),
        ) -> (Vec<Vec<usize>>, Vec<(usize, usize, u64)>) {
            (lengths, steps)
        }
    }

    proptest! {
        #[test]
        fn no_line_is_torn_and_each_stream_keeps_its_order((lengths, steps) in traffic(), shared: bool) {
            let streams: Vec<Vec<String>> = (0..).zip(&lengths)
                .map(|(rank, l)| l.iter().enumerate().map(|(i, n)| line(rank, i, *n)).collect())
                .collect();
            let mut left: Vec<Vec<u8>> = streams.iter()
                .map(|lines| lines.iter().flat_map(|l| format!("{l}\n").into_bytes()).collect())
                .collect();
            let total: usize = left.iter().map(Vec::len).sum();
            let stream = |i: usize| if i.is_multiple_of(2) { Stdout } else { Stderr };
            let mut printer = Printer::new(Style { label: true, shared, terminal: [false; 2] });
            let mut now = Instant::now();
            let mut offset = 0;
            // Whatever the interleaving leaves comes at the end.
            let rest = (0..4).map(|i| (i, usize::MAX, 1));
            for (i, count, ms) in steps.into_iter().chain(rest) {
                now += Duration::from_millis(ms);
                printer.handle_timeout(now);
                let count = count.min(left[i].len());
                let data: Vec<u8> = left[i].drain(..count).collect();
                printer.handle_output(now, Rank(i as u32), stream(i), offset, &data);
                offset += data.len() as u64;
            }
            printer.finish();
            let mut printed = vec![0; total];
            let mut text = [String::new(), String::new()];
            while let Some(piece) = printer.poll_piece() {
                for (start, length) in &piece.ranges {
                    printed[*start as usize..(start + length) as usize].iter_mut().for_each(|times| *times += 1);
                }
                let sink = usize::from(piece.stream == Stderr && !shared);
                text[sink].push_str(&String::from_utf8(piece.bytes).unwrap());
            }
            prop_assert!(printed.iter().all(|times| *times == 1), "{printed:?}");
            let printed: Vec<&str> = text.iter().flat_map(|t| t.lines()).collect();
            for (rank, lines) in streams.iter().enumerate() {
                let label = format!("[{rank}] ");
                let seen: Vec<&str> = printed.iter().filter_map(|l| l.strip_prefix(&label)).collect();
                prop_assert_eq!(&seen, lines);
            }
        }

        #[test]
        fn no_byte_is_lost_or_moved_whatever_the_limits(
            steps in prop::collection::vec((0u8..4, prop::collection::vec(0u8..20, 1..80), 0u64..400), 0..80),
            line_limit in 1usize..60,
            held_limit in 60usize..200,
            terminal: bool,
        ) {
            let style = Style { label: false, shared: false, terminal: [terminal; 2] };
            let mut printer = Printer::with_limits(style, line_limit, held_limit);
            let mut now = Instant::now();
            let mut expected = vec![Vec::new(); 4];
            for (rank, data, ms) in &steps {
                now += Duration::from_millis(*ms);
                printer.handle_timeout(now);
                // The source is in the upper bits of its bytes; 0 stands for a newline.
                let data: Vec<u8> = data.iter().map(|b| if *b == 0 { b'\n' } else { (rank + 1) << 5 | b }).collect();
                printer.handle_output(now, Rank((*rank).into()), Stdout, 0, &data);
                expected[usize::from(*rank)].extend(data.into_iter().filter(|b| *b != b'\n'));
                prop_assert!(printer.held <= held_limit);
            }
            printer.finish();
            let mut seen = vec![Vec::new(); 4];
            while let Some(piece) = printer.poll_piece() {
                for byte in piece.bytes.into_iter().filter(|b| *b != b'\n') {
                    seen[usize::from(byte >> 5) - 1].push(byte);
                }
            }
            prop_assert_eq!(seen, expected);
        }
    }
}
