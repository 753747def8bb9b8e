//! The writing of a report: lines of `name: value`, put together in a buffer that the caller has, written with system calls only.

use crate::sys;

/// A text on its way to a file. What cannot be written is lost: a report is no reason to fail in another way.
pub struct Text<'a> {
    room: &'a mut [u8],
    used: usize,
    /// Where it goes.
    pub fd: i32,
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

impl<'a> Text<'a> {
    /// Nothing yet.
    pub fn new(room: &'a mut [u8], fd: i32) -> Self {
        Text { room, used: 0, fd }
    }

    /// Adds bytes as they are.
    pub fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let free = &mut self.room[self.used..];
            let (now, later) = bytes.split_at(bytes.len().min(free.len()));
            free[..now.len()].copy_from_slice(now);
            self.used += now.len();
            bytes = later;
            if self.used == self.room.len() {
                self.flush();
            }
        }
    }

    /// Writes what has come together.
    pub fn flush(&mut self) {
        let _ = sys::write_all(self.fd, &self.room[..self.used]);
        self.used = 0;
    }

    /// A line of any bytes without a line's end.
    pub fn line(&mut self, name: &str, value: &[u8]) {
        [name.as_bytes(), b": ", value, b"\n"].iter().for_each(|part| self.put(part));
    }

    /// A line with a word.
    pub fn word(&mut self, name: &str, value: &str) {
        self.line(name, value.as_bytes());
    }

    /// A line with a number.
    pub fn number(&mut self, name: &str, value: u64) {
        self.decimal(name, b": ", value);
    }

    /// A line with a number that may be negative.
    pub fn signed(&mut self, name: &str, value: i32) {
        self.decimal(name, if value < 0 { b": -" } else { b": " }, value.unsigned_abs().into());
    }

    fn decimal(&mut self, name: &str, before: &[u8], value: u64) {
        let (mut digits, mut at, mut left) = ([0; 20], 20, value);
        loop {
            at -= 1;
            digits[at] = DIGITS[(left % 10) as usize];
            left /= 10;
            if left == 0 {
                break;
            }
        }
        [name.as_bytes(), before, &digits[at..], b"\n"].iter().for_each(|part| self.put(part));
    }

    /// A line with a number of 16 hexadecimal digits.
    pub fn hex(&mut self, name: &str, value: u64) {
        let mut digits = *b"0x0000000000000000";
        for (at, digit) in digits[2..].iter_mut().enumerate() {
            *digit = DIGITS[(value >> (60 - 4 * at) & 15) as usize];
        }
        self.line(name, &digits);
    }

    /// Bytes, 32 to a line; a line without any says that there are none.
    pub fn bytes(&mut self, name: &str, bytes: &[u8]) {
        let mut rest = bytes;
        loop {
            let (now, later) = rest.split_at(rest.len().min(32));
            let mut digits = [0; 64];
            for (pair, byte) in digits.chunks_exact_mut(2).zip(now) {
                pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
            }
            self.line(name, &digits[..2 * now.len()]);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
    }

    /// Why the process has ended itself, in one line.
    pub fn reason(&mut self, parts: &[&str]) {
        self.put(b"reason: ");
        for part in parts {
            part.split('\n').enumerate().for_each(|(at, piece)| {
                if at > 0 {
                    self.put(b" ");
                }
                self.put(piece.as_bytes());
            });
        }
        self.put(b"\n");
    }
}
