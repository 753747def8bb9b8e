//! Segments of TCP in frames: read, and made.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Length of an Ethernet header, of an IPv4 header and of a TCP header without options.
const HEADERS: [usize; 3] = [14, 20, 20];
const TCP: u8 = 6;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// The address that a frame goes to, and the one that it comes from.
pub fn macs(frame: &[u8]) -> Option<(Mac, Mac)> {
    Some((*frame.first_chunk()?, *frame.get(6..)?.first_chunk()?))
}

/// What one has to know of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its sender.
    pub from: SocketAddrV4,
    /// Its receiver.
    pub to: SocketAddrV4,
    /// The number of its first byte.
    pub seq: u32,
    /// The number of the next byte that its sender expects.
    pub ack: u32,
    /// How far its numbers go: bytes, and one for SYN and FIN each.
    pub length: u32,
    flags: u8,
}

impl Segment {
    /// The segment in a frame. None: there is something else in it.
    pub fn read(frame: &[u8]) -> Option<Segment> {
        let packet = frame.get(HEADERS[0]..)?;
        if frame[12..HEADERS[0]] != [8, 0] || packet.len() < HEADERS[1] || packet[0] >> 4 != 4 || packet[9] != TCP {
            return None;
        }
        let begin = usize::from(packet[0] & 15) * 4;
        let tcp = packet.get(begin..usize::from(short(packet, 2)))?;
        let is_fragment = short(packet, 6) & 0x3fff != 0;
        if is_fragment || tcp.len() < HEADERS[2] {
            return None;
        }
        let (flags, bytes) = (tcp[13], tcp.len().checked_sub(usize::from(tcp[12] >> 4) * 4)?);
        let address = |at: usize, port| SocketAddrV4::new(Ipv4Addr::from_bits(word(packet, at)), port);
        let length = bytes as u32 + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        let (from, to) = (address(12, short(tcp, 0)), address(16, short(tcp, 2)));
        Some(Segment { from, to, seq: word(tcp, 4), ack: word(tcp, 8), length, flags })
    }

    /// Whether it begins a connection.
    pub fn is_first(&self) -> bool {
        self.flags & SYN != 0
    }

    /// Whether it is of a connection that both sides take for one.
    pub fn is_of_a_connection(&self) -> bool {
        self.flags & (SYN | RST) == 0 && self.flags & ACK != 0
    }

    /// The number after its last one.
    pub fn end(&self) -> u32 {
        self.seq.wrapping_add(self.length)
    }
}

/// A frame that resets a connection at one of its ends: at the one that it goes to, if `seq` is what that one expects.
pub fn reset((to_mac, from_mac): (Mac, Mac), from: SocketAddrV4, to: SocketAddrV4, seq: u32, ack: u32) -> Vec<u8> {
    let mut tcp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    tcp.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
    tcp.extend([(HEADERS[2] as u8 / 4) << 4, RST | ACK, 0, 0, 0, 0, 0, 0]);
    let addresses = [from.ip().octets(), to.ip().octets()].concat();
    let pseudo = [&addresses[..], &[0, TCP, 0, HEADERS[2] as u8], &tcp].concat();
    tcp[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    // Version and length, no service, the packet's length; no identification, never in fragments; 64 hops.
    let mut ip = [&[0x45, 0, 0, (HEADERS[1] + HEADERS[2]) as u8, 0, 0, 0x40, 0, 64, TCP, 0, 0], &addresses[..]].concat();
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [&to_mac[..], &from_mac, &[8, 0], &ip, &tcp].concat()
}

/// The checksum of the Internet (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let pair = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let sum: u32 = bytes.chunks(2).map(pair).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(short(bytes, at)) << 16 | u32::from(short(bytes, at + 2))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A frame with a segment of so many bytes, and with padding as short frames have it.
    pub fn frame(from: SocketAddrV4, to: SocketAddrV4, seq: u32, bytes: usize, flags: u8) -> Vec<u8> {
        let mut frame = reset(([2; 6], [1; 6]), from, to, seq, 77);
        frame[HEADERS[0] + 2..][..2].copy_from_slice(&(40 + bytes as u16).to_be_bytes());
        frame[HEADERS[0] + HEADERS[1] + 13] = flags;
        frame.resize((HEADERS.iter().sum::<usize>() + bytes).max(60), 0);
        frame
    }

    pub fn at(node: u8, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, node), port)
    }

    #[test]
    fn segments_are_read_as_long_as_they_are() {
        let read = |bytes, flags| Segment::read(&frame(at(1, 5), at(2, 6), u32::MAX, bytes, flags)).unwrap();
        let plain = read(3, ACK);
        assert_eq!((plain.from, plain.to, plain.seq, plain.ack, plain.end()), (at(1, 5), at(2, 6), u32::MAX, 77, 2));
        assert!(plain.is_of_a_connection() && !plain.is_first());
        assert!(read(0, SYN | ACK).is_first() && !read(0, SYN | ACK).is_of_a_connection());
        assert_eq!((read(0, SYN).length, read(5, FIN | ACK).length, read(0, ACK).length), (1, 6, 0));
    }

    #[test]
    fn what_is_no_segment_is_none() {
        let whole = frame(at(1, 5), at(2, 6), 9, 10, ACK);
        // But for its padding: there is none.
        (0..whole.len()).for_each(|length| assert_eq!(Segment::read(&whole[..length]), None, "{length}"));
        let with = |at: usize, byte: u8| {
            let mut other = whole.clone();
            other[at] = byte;
            Segment::read(&other)
        };
        // ARP; IPv6; UDP; a fragment; headers longer than the packet.
        let others = [with(13, 6), with(14, 0x65), with(23, 17), with(21, 1), with(14, 0x4f), with(46, 0xf0)];
        assert!(others.iter().all(Option::is_none), "{others:?}");
    }

    #[test]
    fn a_reset_has_the_right_checksums() {
        let frame = reset(([2; 6], [1; 6]), at(1, 40_001), at(2, 7117), 0xfedc_ba98, 5);
        let read = Segment::read(&frame).unwrap();
        assert_eq!(
            (read.from, read.to, read.seq, read.length, read.flags),
            (at(1, 40_001), at(2, 7117), 0xfedc_ba98, 0, RST | ACK)
        );
        assert_eq!(checksum(&frame[14..34]), 0, "a header with its checksum sums up to nothing");
        assert_eq!(checksum(&[&frame[26..34], &[0, TCP, 0, 20], &frame[34..]].concat()), 0);
        // The example of RFC 1071.
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }
}
