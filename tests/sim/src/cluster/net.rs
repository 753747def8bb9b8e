//! The network: ordered connections between machines, each with its delays. What is on the way when a connection breaks, or its sender dies, arrives up to some
//! point, and the rest does not.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use radic_protector::store::Speaker;
use radic_wire::ids::ProcessId;
use radic_wire::login::Channel;
use radic_wire::membership::MembershipMessage;
use radic_wire::peer;

use crate::dice::Dice;

/// Number of a connection.
pub type ConnId = usize;

/// The owner of one end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A protector, by machine and boot.
    Daemon(usize, u32),
    /// Its log service.
    Logs(usize, u32),
    /// A process, by number.
    Process(u32),
    /// The thread that fetches the images of a process that comes back.
    Fetcher(usize, u32, ProcessId),
}

/// What travels.
#[derive(Debug, Clone)]
pub enum Packet {
    /// To the other side's listener.
    Syn,
    /// The kernel of the other side has taken it.
    Ack,
    /// A message.
    Word(Word),
    /// Bytes of a stream.
    Bytes(Vec<u8>),
    /// The sender has closed its end.
    End,
    /// The connection is broken.
    Reset,
}

/// Messages, by their speaker.
#[derive(Debug, Clone)]
pub enum Word {
    /// Protectors, first.
    Hello(Box<peer::Hello>),
    /// The answer.
    Welcome(Box<peer::Welcome>),
    /// A frame of a link.
    Frame(Vec<u8>),
    /// Its acknowledgement.
    Received(u64),
    /// A heartbeat, with the view's number.
    Beat(u64),
    /// Of a node that is no member.
    Membership(Box<MembershipMessage>),
    /// To a log service, first.
    Login(Speaker, Channel),
    /// The answer.
    Admitted,
    /// A message of an observer, a protector or a replica.
    Log(Vec<u8>),
    /// An image is wanted.
    Wish(u64),
    /// The image.
    Content(Vec<u8>),
    /// Between two observers.
    Greeting(Vec<u8>),
}

/// One end.
#[derive(Debug, Clone)]
pub struct End {
    /// Its owner.
    pub owner: Owner,
    /// Where.
    pub machine: usize,
    /// Its owner wants to hear nothing more.
    pub closed: bool,
}

#[derive(Debug, Default)]
struct Lane {
    packets: VecDeque<Packet>,
    last: Duration,
}

/// A connection; side 0 has opened it.
#[derive(Debug)]
pub struct Conn {
    /// Its ends.
    pub ends: [End; 2],
    /// What is on the way to each side.
    lanes: [Lane; 2],
    /// Where it is to come to, until it has.
    pub target: Option<SocketAddr>,
    /// Nothing that is sent from now on arrives.
    pub broken: bool,
}

/// All connections, and what is wrong with the network.
#[derive(Debug, Default)]
pub struct Net {
    /// By number.
    pub conns: Vec<Conn>,
    /// Pairs of machines, the lower first, between which nothing passes, and until when.
    pub cuts: BTreeMap<(usize, usize), Duration>,
    /// Machines with slow links: this much is added.
    pub slow: BTreeMap<usize, Duration>,
    /// What listens where.
    pub listeners: BTreeMap<SocketAddr, Owner>,
}

/// The machine with this address.
pub fn machine_of(address: SocketAddr) -> usize {
    match address.ip() {
        std::net::IpAddr::V4(ip) => ip.octets()[3] as usize - 1,
        std::net::IpAddr::V6(_) => unreachable!("the simulated network is IPv4"),
    }
}

impl Net {
    /// Until when nothing passes between two machines.
    pub fn cut_until(&self, one: usize, other: usize, now: Duration) -> Option<Duration> {
        self.cuts.get(&(one.min(other), one.max(other))).copied().filter(|until| one != other && *until > now)
    }

    /// A connection that is being opened.
    pub fn open(&mut self, owner: Owner, from: usize, to: SocketAddr) -> ConnId {
        let end = |owner, machine| End { owner, machine, closed: false };
        // What listens there is seen when it arrives.
        let ends = [end(owner, from), end(owner, machine_of(to))];
        self.conns.push(Conn { ends, lanes: Default::default(), target: Some(to), broken: false });
        self.conns.len() - 1
    }

    /// Puts a packet on the way; when it arrives.
    pub fn send(&mut self, dice: &mut Dice, now: Duration, id: ConnId, from: usize, packet: Packet) -> Option<Duration> {
        let conn = &mut self.conns[id];
        if conn.broken {
            return None;
        }
        let (a, b) = (conn.ends[0].machine, conn.ends[1].machine);
        let base = if a == b { 10 } else { 60 };
        let spread = if a == b { 20 } else { [60, 60, 60, 2_000][dice.below(4)] };
        let slow: Duration = [a, b].iter().filter_map(|m| self.slow.get(m)).copied().sum();
        let latency = Duration::from_micros(base + dice.below(spread) as u64) + if a == b { Duration::ZERO } else { slow };
        let lane = &mut self.conns[id].lanes[1 - from];
        lane.last = lane.last.max(now + latency);
        lane.packets.push_back(packet);
        Some(lane.last)
    }

    /// The next packet for this side.
    pub fn take(&mut self, id: ConnId, side: usize) -> Option<Packet> {
        self.conns[id].lanes[side].packets.pop_front()
    }

    /// Whether something is on the way to this side.
    pub fn is_on_the_way(&self, id: ConnId, side: usize) -> bool {
        !self.conns[id].lanes[side].packets.is_empty()
    }

    /// What is on the way to this side is lost from some point on, perhaps in the midst of a piece.
    pub fn lose_rest(&mut self, dice: &mut Dice, id: ConnId, side: usize) {
        let packets = &mut self.conns[id].lanes[side].packets;
        let keep = dice.below(packets.len() + 1);
        let next = packets.get(keep).cloned();
        packets.truncate(keep);
        if let Some(Packet::Bytes(bytes)) = next {
            let part = dice.below(bytes.len());
            if part > 0 {
                packets.push_back(Packet::Bytes(bytes[..part].to_vec()));
            }
        }
    }
}
