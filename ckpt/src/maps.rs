//! Reading /proc: lines of `maps`, fields of `stat` and `status`; and making names with numbers in them. Pure functions on bytes.

use crate::image::meta::{MAX_NAME_BYTES, advice};

/// Room for a name that the kernel gives, with a zero byte at its end.
pub const NAME_ROOM: usize = MAX_NAME_BYTES + 1;

/// A line of /proc/self/maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// PROT_*.
    pub prot: u8,
    /// MAP_SHARED?
    pub shared: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Device of the file, as `st_dev` names it.
    pub dev: u64,
    /// Inode; 0: no file.
    pub inode: u64,
    /// Name; may be empty.
    pub path: &'a [u8],
}

/// What is behind a mapping or a descriptor. Inodes are numbered on each device, and segments of System V, whose inode is their id, apart from the files of
/// theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectId {
    /// Its device.
    pub dev: u64,
    /// Its inode.
    pub ino: u64,
    /// It is a segment of System V.
    pub is_segment: bool,
}

impl ObjectId {
    /// The object of this name, device and inode.
    #[must_use]
    pub fn new(name: &[u8], dev: u64, ino: u64) -> ObjectId {
        ObjectId { dev, ino, is_segment: name.starts_with(b"/SYSV") }
    }
}

impl Line<'_> {
    /// What is mapped.
    #[must_use]
    pub fn object(&self) -> ObjectId {
        ObjectId::new(self.path, self.dev, self.inode)
    }
}

/// Reads hexadecimal digits; the number and the rest.
#[must_use]
pub fn hex(text: &[u8]) -> (u64, &[u8]) {
    digits(text, 16)
}

/// Reads decimal digits; the number and the rest.
#[must_use]
pub fn decimal(text: &[u8]) -> (u64, &[u8]) {
    digits(text, 10)
}

fn digits(mut text: &[u8], base: u64) -> (u64, &[u8]) {
    let mut value = 0u64;
    while let [digit, rest @ ..] = text {
        let Some(digit) = (*digit as char).to_digit(base as u32) else { break };
        value = value.wrapping_mul(base).wrapping_add(u64::from(digit));
        text = rest;
    }
    (value, text)
}

/// Writes `before`, a number without its sign, `after` and a zero byte into a buffer.
pub fn numbered<'a>(buffer: &'a mut [u8; 64], before: &[u8], number: i32, after: &[u8]) -> &'a [u8] {
    numbered_wide(buffer, before, number.unsigned_abs().into(), after)
}

/// The same, of a wide number.
pub fn numbered_wide<'a>(buffer: &'a mut [u8; 64], before: &[u8], number: u64, after: &[u8]) -> &'a [u8] {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut left = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    let mut len = 0;
    for part in [before, &digits[at..], after, &[0]] {
        buffer[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    &buffer[..len]
}

/// The lines of `text`.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|b| *b == b'\n').filter(|line| !line.is_empty())
}

/// Reads one line of maps.
#[must_use]
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let (start, rest) = hex(line);
    let (end, rest) = hex(rest.strip_prefix(b"-")?);
    let rest = rest.strip_prefix(b" ")?;
    let (flags, rest) = rest.split_at_checked(4)?;
    let bit = |at: usize, letter: u8, value: u8| if flags[at] == letter { value } else { 0 };
    let (offset, rest) = hex(rest.strip_prefix(b" ")?);
    let rest = rest.strip_prefix(b" ")?;
    let (major, rest) = hex(rest);
    let (minor, rest) = hex(rest.strip_prefix(b":")?);
    let dev = libc::makedev(major as u32, minor as u32);
    let (inode, rest) = decimal(rest.strip_prefix(b" ")?);
    let path = rest.trim_ascii_start();
    let prot = bit(0, b'r', 1) | bit(1, b'w', 2) | bit(2, b'x', 4);
    (start < end).then_some(Line { start, end, prot, shared: flags[3] == b's', offset, dev, inode, path })
}

/// The value after `name` in text made of `name value` lines (`name` with its colon).
#[must_use]
pub fn field<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    lines(text).find_map(|line| line.strip_prefix(name)).map(|value| value.trim_ascii())
}

/// Bits of `image::meta::advice` from the value of a VmFlags line of smaps.
#[must_use]
pub fn advice_of(flags: &[u8]) -> u8 {
    flags.split(|b| *b == b' ').fold(0, |bits, flag| {
        bits | match flag {
            b"dd" => advice::DONT_DUMP,
            b"dc" => advice::DONT_FORK,
            b"hg" => advice::HUGE,
            b"nh" => advice::NO_HUGE,
            b"wf" => advice::WIPE_ON_FORK,
            b"lo" => advice::LOCKED,
            b"nr" => advice::NO_RESERVE,
            _ => 0,
        }
    })
}

/// Numeric fields of /proc/PID/stat after the name, the first being field 4.
#[must_use]
pub fn stat_field(text: &[u8], number: usize) -> u64 {
    let after = text.iter().rposition(|b| *b == b')').map_or(&text[..0], |at| &text[at + 1..]);
    // After the name: " S ppid ...": the state is field 3.
    after.split(|b| *b == b' ').filter(|f| !f.is_empty()).nth(number - 3).map_or(0, |f| decimal(f).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that one process had: the inode alone does not tell the objects apart, nor does the device.
    #[test]
    fn objects_of_one_number() {
        let lines = [
            &b"7ffff52dd000-7ffff56f6000 rw-s 00000000 00:1b 34 /dev/shm/ucx_shm_posix_5d042762 (deleted)"[..],
            b"7ffff56ff000-7ffff5b18000 rw-s 00000000 00:01 34 /SYSV00000000 (deleted)",
            b"7ffff5b18000-7ffff5b21000 rw-s 00000000 00:01 34 /memfd:queue (deleted)",
        ];
        let objects = lines.map(|line| parse(line).unwrap().object());
        assert!(objects[0] != objects[1] && objects[1] != objects[2] && objects[0] != objects[2], "{objects:?}");
        assert_eq!(ObjectId::new(b"/memfd:queue (deleted)", libc::makedev(0, 1), 34), objects[2]);
    }

    #[test]
    fn lines_of_maps() {
        let line = parse(b"7f00dead0000-7f00dead2000 rw-p 00001000 fe:01 1234   /lib/a b.so (deleted)").unwrap();
        assert_eq!((line.start, line.end, line.prot, line.shared), (0x7f00_dead_0000, 0x7f00_dead_2000, 3, false));
        assert_eq!((line.offset, line.inode, line.path), (0x1000, 1234, &b"/lib/a b.so (deleted)"[..]));
        assert_eq!(line.dev, libc::makedev(0xfe, 1));
        let bare = parse(b"1000-2000 ---s 00000000 00:00 0 ").unwrap();
        assert_eq!((bare.prot, bare.shared, bare.inode, bare.path), (0, true, 0, &b""[..]));
        for bad in [&b""[..], b"x", b"1000-", b"1000-2000 rw", b"2000-1000 rw-p 0 0:0 0 "] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn advice_bits() {
        assert_eq!(advice_of(b"rd wr mr mw me ac sd hg"), advice::HUGE);
        assert_eq!(advice_of(b"rd dc dd nr"), advice::DONT_FORK | advice::DONT_DUMP | advice::NO_RESERVE);
    }

    #[test]
    fn fields() {
        assert_eq!(field(b"Name:\tx\nSigPnd:\t00ff\n", b"SigPnd:"), Some(&b"00ff"[..]));
        assert_eq!(field(b"Name:\tx\n", b"SigPnd:"), None);
        let stat = b"12 (a ) b) S 4 5 6 7";
        assert_eq!((stat_field(stat, 4), stat_field(stat, 7), stat_field(stat, 20)), (4, 7, 0));
    }
}
