//! Frames on the link of a connection ([`radic_wire::link_frame`]): how the bytes of the program are put into them, and taken out.
//!
//! Nothing is copied for that. What leaves is a header and then bytes of the outbox, or of the program. What arrives is read into
//! the buffer of the program, and moved together there over the headers between; only a part of a header is held here. So what is
//! readable stays the kernel's affair, but for one case: a read may bring a part of a header, and nothing for the program.
//!
//! Where bytes have causes their header is read before the program is told that there is something. What follows it comes with
//! the same system call, and waits here for the call of the program that takes it ([`Deframer::ahead_room`]).

use std::fmt;

use radic_wire::limits;
use radic_wire::link_frame::{LINK_FRAME, LinkFrame};

/// Bytes that are read ahead at most: a header, its causes, and a small message.
const AHEAD: usize = 2 << 10;

/// Bytes on the link that are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no frame begins so")]
pub struct BadFrame;

/// The frame that leaves: what of it no socket has taken yet, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving<'a> {
    /// Of its header, and of the causes after that.
    pub header: &'a [u8],
    /// Bytes of the stream.
    pub payload: u64,
}

/// What a header says of the stream in the other direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Said {
    /// Units that the receiver of the header need not keep.
    pub stable: u64,
    /// Units that its sender has received.
    pub received: u64,
    /// The newest recovery line for which it has made its image.
    pub line: u32,
}

/// What headers have said, and what they said before the line in the newest one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heard {
    last: Said,
    /// Units that the peer had received when it had not made its image of that line.
    before: u64,
}

impl Heard {
    fn handle(&mut self, said: Said) {
        if said.line > self.last.line {
            self.before = self.last.received;
        }
        self.last = Said { stable: self.last.stable.max(said.stable), ..said };
    }

    /// How much the peer need not be sent again.
    pub fn stable(&self) -> u64 {
        self.last.stable
    }

    /// Units of the stream that the peer had received, at least, when it made its image of this line, or is going to have.
    pub fn received_by(&self, line: u64) -> u64 {
        match u64::from(self.last.line) {
            last if last < line => self.last.received,
            last if last == line => self.before,
            _ => 0,
        }
    }
}

/// The frame that leaves on a link.
#[derive(Debug, Clone, Default)]
pub struct Framer {
    /// The header, and the causes after it.
    header: Vec<u8>,
    /// Bytes of them that have not left.
    unsent: usize,
    payload: u64,
}

impl Framer {
    /// Whether no frame is under way.
    pub fn is_idle(&self) -> bool {
        self.unsent == 0 && self.payload == 0
    }

    /// Begins a frame for the next `payload` bytes (not 0) of the stream, or as many of them as one frame takes. `causes` writes what they depend on.
    ///
    /// # Panics
    /// If one is under way, or there is nothing to send, or more causes are written than a frame has.
    pub fn begin(&mut self, payload: u64, said: Said, causes: impl FnOnce(&mut Vec<u8>)) {
        assert!(self.is_idle() && payload > 0, "a frame of {payload} bytes begins while {self:?} is under way");
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        self.header.clear();
        self.header.resize(LINK_FRAME, 0);
        causes(&mut self.header);
        let causes = self.header.len() - LINK_FRAME;
        assert!(causes <= limits::CAUSES, "{causes} bytes of causes in one frame");
        let Said { stable, received, line } = said;
        let frame = LinkFrame { payload, causes: causes as u32, stable, received, line };
        self.header[..LINK_FRAME].copy_from_slice(&frame.bytes());
        (self.unsent, self.payload) = (self.header.len(), u64::from(payload));
    }

    /// What is to leave next.
    pub fn leaving(&self) -> Leaving<'_> {
        Leaving { header: &self.header[self.header.len() - self.unsent..], payload: self.payload }
    }

    /// The socket has taken this many bytes. Returns how many of them were the stream's.
    ///
    /// # Panics
    /// If the frame has not this many left.
    pub fn handle_sent(&mut self, count: u64) -> u64 {
        let header = count.min(self.unsent as u64);
        self.unsent -= header as usize;
        let payload = count - header;
        assert!(payload <= self.payload, "{payload} bytes have left of a frame of {}", self.payload);
        self.payload -= payload;
        payload
    }

    /// Abandons the frame: the outbox no longer keeps the announced bytes, so nothing more is sent on this link.
    pub fn abandon(&mut self) {
        (self.unsent, self.payload) = (0, 0);
    }
}

/// What arrives on a link.
#[derive(Debug, Clone, Default)]
pub struct Deframer {
    header: [u8; LINK_FRAME],
    /// Bytes of it that are here; all of them: the causes come next.
    have: usize,
    /// Causes of earlier frames that the observer has not taken yet, followed by those of the current frame.
    causes: Vec<u8>,
    /// Of the current frame's causes in `causes`: start, end of what has arrived, end of all.
    of_now: [usize; 3],
    /// Bytes of the current frame that are still to come.
    left: u64,
    heard: Heard,
    ahead: Ahead,
    /// Whether the socket may have more than what is ahead: the reading that filled it was full, or the program was told of more.
    more: bool,
}

/// What was read before the program has asked for it, as it came from the link: from `at` to `end`. It begins with bytes of the program, if there is something.
#[derive(Clone, Default)]
struct Ahead {
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ahead").field(&self.slice()).finish()
    }
}

impl Ahead {
    fn slice(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }
}

impl Deframer {
    /// Bytes of the current frame that are still to come. If there are some, they come next, and go to the program as they are.
    #[inline]
    pub fn left(&self) -> u64 {
        if self.have == 0 { self.left } else { 0 }
    }

    /// Between two frames: room for what is missing of the header, or of the causes after it, which come next.
    #[inline]
    pub fn header_room(&mut self) -> &mut [u8] {
        if self.have == LINK_FRAME {
            &mut self.causes[self.of_now[1]..]
        } else if self.left == 0 {
            &mut self.header[self.have..]
        } else {
            &mut []
        }
    }

    /// Between two frames: room for the header that comes next, and for some of what follows. Empty: bytes of the program come next.
    pub fn ahead_room(&mut self) -> &mut [u8] {
        if self.header_room().is_empty() {
            return &mut [];
        }
        assert!(!self.has_ahead(), "what is here already begins with bytes of the program");
        self.ahead.bytes.resize(AHEAD, 0);
        &mut self.ahead.bytes
    }

    /// This many bytes were read into [`Deframer::ahead_room`].
    pub fn handle_ahead(&mut self, count: usize) -> Result<(), BadFrame> {
        (self.ahead.at, self.ahead.end) = (0, count);
        self.more = count == AHEAD;
        self.pass_headers()
    }

    /// Whether a call that takes all that is ahead, or a whole frame, should look into the socket for more.
    #[inline]
    pub fn expects_more(&self) -> bool {
        self.more || self.left() > 0
    }

    /// True: the program learns how much is there, and expects that much of its next call. False: the socket has no more.
    #[inline]
    pub fn expect_more(&mut self, more: bool) {
        self.more = more;
    }

    /// Bytes that are here and that no socket has any more: of the program, and then perhaps headers, too.
    #[inline]
    pub fn ahead(&self) -> usize {
        self.ahead.end - self.ahead.at
    }

    /// Whether there are some.
    #[inline]
    pub fn has_ahead(&self) -> bool {
        self.ahead() > 0
    }

    /// Moves bytes of the program that are here to `buffer`, as many as it takes. Returns how many they are.
    pub fn take_ahead(&mut self, buffer: &mut [u8]) -> Result<usize, BadFrame> {
        let mut taken = 0;
        while self.has_ahead() && taken < buffer.len() {
            let left = usize::try_from(self.left).unwrap_or(usize::MAX);
            let count = self.ahead.slice().len().min(left).min(buffer.len() - taken);
            buffer[taken..taken + count].copy_from_slice(&self.ahead.slice()[..count]);
            self.ahead.at += count;
            self.handle_payload(count);
            taken += count;
            self.pass_headers()?;
        }
        Ok(taken)
    }

    /// Takes all that is here back, as it came from the link.
    pub fn give_back_ahead(&mut self) -> Vec<u8> {
        let Ahead { bytes, at, end } = std::mem::take(&mut self.ahead);
        bytes[at..end].to_vec()
    }

    /// Headers of what is here, up to the next byte of the program.
    fn pass_headers(&mut self) -> Result<(), BadFrame> {
        let mut ahead = std::mem::take(&mut self.ahead);
        while ahead.at < ahead.end && self.left() == 0 {
            let room = self.header_room();
            let count = room.len().min(ahead.slice().len());
            room[..count].copy_from_slice(&ahead.slice()[..count]);
            ahead.at += count;
            self.handle_header(count)?;
        }
        self.ahead = ahead;
        Ok(())
    }

    /// The causes of frames of which bytes have come, or come next: to be kept before the program is told of these bytes.
    pub fn causes(&self) -> &[u8] {
        &self.causes[..self.complete()]
    }

    /// The causes are kept.
    pub fn handle_kept(&mut self) {
        let complete = self.complete();
        self.causes.drain(..complete);
        self.of_now = self.of_now.map(|at| at.saturating_sub(complete));
    }

    /// Where the causes end of which all is here.
    fn complete(&self) -> usize {
        if self.have == LINK_FRAME { self.of_now[0] } else { self.causes.len() }
    }

    /// What the headers have said of the stream in the other direction.
    pub fn heard(&self) -> &Heard {
        &self.heard
    }

    /// This many bytes were read into [`Deframer::header_room`].
    pub fn handle_header(&mut self, count: usize) -> Result<(), BadFrame> {
        assert!(count <= self.header_room().len(), "more of a header than there is: {self:?} and {count}");
        if self.have == LINK_FRAME {
            self.of_now[1] += count;
        } else {
            self.have += count;
            if self.have < LINK_FRAME {
                return Ok(());
            }
            let LinkFrame { payload, causes, stable, received, line } = LinkFrame::read(&self.header).ok_or(BadFrame)?;
            self.heard.handle(Said { stable, received, line });
            self.left = u64::from(payload);
            let begin = self.causes.len();
            self.of_now = [begin, begin, begin + causes as usize];
            self.causes.resize(self.of_now[2], 0);
        }
        if self.of_now[1] == self.of_now[2] {
            self.have = 0;
        }
        Ok(())
    }

    /// This many bytes of the current frame have gone to the program as they came.
    ///
    /// # Panics
    /// If the frame has not this many left.
    pub fn handle_payload(&mut self, count: usize) {
        assert!(self.have == 0 || count == 0, "its header comes first");
        self.left = self.left.checked_sub(count as u64).expect("no more is read than the frame has");
    }

    /// Takes the program's bytes out of `bytes`, as they came from the link, and moves them to its beginning. Returns how many they are.
    ///
    /// # Panics
    /// If bytes are here that came before these.
    pub fn unframe(&mut self, bytes: &mut [u8]) -> Result<usize, BadFrame> {
        assert!(!self.has_ahead(), "what was read ahead comes first");
        let (mut at, mut taken) = (0, 0);
        while at < bytes.len() {
            let rest = bytes.len() - at;
            if self.left() > 0 {
                let count = rest.min(usize::try_from(self.left).unwrap_or(usize::MAX));
                bytes.copy_within(at..at + count, taken);
                self.handle_payload(count);
                (at, taken) = (at + count, taken + count);
            } else {
                let room = self.header_room();
                let count = rest.min(room.len());
                room[..count].copy_from_slice(&bytes[at..at + count]);
                self.handle_header(count)?;
                at += count;
            }
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However the kernel cuts what leaves and what arrives, the program gets the stream, up to where a frame is abandoned at the latest.
        #[test]
        fn the_stream_arrives(steps in prop::collection::vec((0u8..8, 1usize..40), 1..120)) {
            let (mut framer, mut deframer) = (Framer::default(), Deframer::default());
            let (mut sent, mut link, mut got, mut is_over) = (0u64, Vec::<u8>::new(), Vec::<u8>::new(), false);
            let (mut all_causes, mut causes) = (Vec::new(), Vec::new());
            for (step, number) in steps {
                match step {
                    0 | 1 if framer.is_idle() && !is_over => {
                        let set: Vec<u8> = (0..number % 5).map(|at| (all_causes.len() + at) as u8).collect();
                        framer.begin(number as u64, Said { stable: sent, ..Said::default() }, |out| out.extend(&set));
                        all_causes.extend(set);
                    }
                    0..=2 => {
                        let Leaving { header, payload } = framer.leaving();
                        let stream = (sent..sent + payload).map(|at| at as u8);
                        let all: Vec<u8> = header.iter().copied().chain(stream).collect();
                        let count = number.min(all.len());
                        link.extend(&all[..count]);
                        sent += framer.handle_sent(count as u64);
                    }
                    3 => {
                        is_over |= number > 35;
                        if is_over {
                            framer.abandon();
                            prop_assert!(framer.is_idle());
                        }
                    }
                    4 => {
                        // As a process looks: a header and whatever follows, if one comes next.
                        let room = deframer.ahead_room();
                        let count = room.len().min(number).min(link.len());
                        if !room.is_empty() {
                            room[..count].copy_from_slice(&link.drain(..count).collect::<Vec<_>>());
                            deframer.handle_ahead(count).unwrap();
                        }
                    }
                    _ if deframer.has_ahead() => {
                        let mut buffer = vec![0; number];
                        let taken = deframer.take_ahead(&mut buffer).unwrap();
                        prop_assert!(taken > 0);
                        got.extend(&buffer[..taken]);
                        causes.extend(deframer.causes());
                        deframer.handle_kept();
                    }
                    _ => {
                        // As a process reads: the rest of a frame as it is, or a header and whatever follows.
                        let mut buffer = vec![0; number];
                        let room = deframer.header_room().len();
                        let count = number.min(link.len()).min(room + number);
                        let (left, read) = (deframer.left(), link.drain(..count).collect::<Vec<_>>());
                        if left >= count as u64 {
                            deframer.handle_payload(count);
                            got.extend(read);
                        } else {
                            buffer[..count].copy_from_slice(&read);
                            let taken = deframer.unframe(&mut buffer[..count]).unwrap();
                            got.extend(&buffer[..taken]);
                        }
                        causes.extend(deframer.causes());
                        deframer.handle_kept();
                    }
                }
            }
            let mut link = [deframer.give_back_ahead(), link].concat();
            let taken = deframer.unframe(&mut link).unwrap();
            got.extend(&link[..taken]);
            causes.extend(deframer.causes());
            prop_assert!(got.len() as u64 <= sent);
            prop_assert!(all_causes.starts_with(&causes));
            for (at, byte) in got.iter().enumerate() {
                prop_assert_eq!(*byte, at as u8);
            }
            prop_assert!(deframer.heard().stable() <= sent);
        }

        /// Any bytes are taken apart or refused.
        #[test]
        fn any_bytes_are_taken_apart_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let length = bytes.len();
            let taken = Deframer::default().unframe(&mut bytes);
            prop_assert!(taken.is_err() || taken.unwrap() <= length);
        }
    }
}
