//! The network: ordered connections between machines, each with its delays. What is on the way when a connection breaks, or its sender dies, arrives up to some
//! point, and the rest does not.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use radic_protector::fetching::OrderNumber;
use radic_protector::store::Speaker;
use radic_wire::bytes::Writer;
use radic_wire::limits;
use radic_wire::login::Channel;

use super::calls::is_of_program;
use super::machine::{LOG_PORT, address};
use super::queue::Event;
use super::world::World;
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
    /// A command that resumes the job, by number.
    Command(u64),
    /// The thread that fetches the images of a process that comes back.
    Fetcher(usize, u32, OrderNumber),
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
    /// A frame between daemons.
    Peer(Vec<u8>),
    /// To a log service, first.
    Login(Speaker, Channel),
    /// The answer.
    Admitted,
    /// A message of an observer, a protector or a replica.
    Log(Vec<u8>),
    /// An image is wanted.
    Wish(u64),
    /// What is offered of it.
    Offer(Vec<u8>),
    /// A piece of the image.
    Content(Vec<u8>),
    /// Nothing follows.
    ContentEnd,
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
    /// The address of the socket that has opened it.
    pub from: SocketAddr,
    /// The address that it was opened to.
    pub to: SocketAddr,
    /// It has come there.
    pub arrived: bool,
    /// The backlog there was full.
    held: bool,
    /// Nothing that is sent from now on arrives.
    pub broken: bool,
}

/// A part of the time for which a backlog is full.
const FULL: Duration = Duration::from_millis(60);

/// All connections, and what is wrong with the network.
#[derive(Debug, Default)]
pub struct Net {
    /// By number.
    pub conns: Vec<Conn>,
    /// Pairs of machines, the lower first, between which nothing passes, and until when.
    pub cuts: BTreeMap<(usize, usize), Duration>,
    /// Machines with slow links: this much is added.
    pub slow: BTreeMap<usize, Duration>,
    /// When connections broke last by a fault.
    pub broken: Option<Duration>,
    /// What listens where.
    pub listeners: BTreeMap<SocketAddr, Owner>,
    /// Ports that were given.
    ports: u16,
    /// It only delays, and no delay is long.
    pub quiet: bool,
}

/// The machine with this address.
pub fn machine_of(address: SocketAddr) -> usize {
    match address.ip() {
        std::net::IpAddr::V4(ip) => (ip.to_bits() & 0xff_ffff) as usize - 1,
        std::net::IpAddr::V6(_) => unreachable!("the simulated network is IPv4"),
    }
}

impl Net {
    /// Until when nothing passes between two machines.
    pub fn cut_until(&self, one: usize, other: usize, now: Duration) -> Option<Duration> {
        self.cuts.get(&(one.min(other), one.max(other))).copied().filter(|until| one != other && *until > now)
    }

    /// A connection that is being opened.
    pub fn open(&mut self, owner: Owner, from: SocketAddr, to: SocketAddr) -> ConnId {
        let end = |owner, machine| End { owner, machine, closed: false };
        // What listens there is seen when it arrives.
        let ends = [end(owner, machine_of(from)), end(owner, machine_of(to))];
        self.conns.push(Conn { ends, lanes: Default::default(), from, to, arrived: false, held: false, broken: false });
        self.conns.len() - 1
    }

    /// An address of a machine that no socket has.
    pub fn free_address(&mut self, machine: usize) -> SocketAddr {
        const FIRST: u16 = 30_000;
        self.ports += 1;
        address(machine, FIRST + self.ports)
    }

    /// Puts a packet on the way; when it arrives.
    pub fn send(&mut self, dice: &mut Dice, now: Duration, id: ConnId, from: usize, packet: Packet) -> Option<Duration> {
        let conn = &mut self.conns[id];
        if conn.broken {
            return None;
        }
        let (a, b) = (conn.ends[0].machine, conn.ends[1].machine);
        let (base, spread) = match (a == b, self.quiet) {
            (true, _) => (10, 20),
            (false, true) => (50, 100),
            (false, false) => (60, [60, 60, 60, 2_000][dice.below(4)]),
        };
        let slow: Duration = [a, b].iter().filter_map(|m| self.slow.get(m)).copied().sum();
        let latency = Duration::from_micros(base + dice.below(spread) as u64) + if a == b { Duration::ZERO } else { slow };
        // The channel's handshake is one more round trip, before the first word.
        let ways = if self.quiet && a != b && matches!(packet, Packet::Ack) { 3 } else { 1 };
        let latency = latency * ways;
        let lane = &mut self.conns[id].lanes[1 - from];
        lane.last = lane.last.max(now + latency);
        lane.packets.push_back(packet);
        Some(lane.last)
    }

    /// The next packet for this side.
    pub fn take(&mut self, id: ConnId, side: usize) -> Option<Packet> {
        self.conns[id].lanes[side].packets.pop_front()
    }

    /// What is on the way to this side.
    pub fn on_the_way(&self, id: ConnId, side: usize) -> impl Iterator<Item = &Packet> {
        self.conns[id].lanes[side].packets.iter()
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

/// The code of a message.
pub fn code(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    thread_local!(static ROOM: RefCell<Vec<u8>> = RefCell::new(vec![0; limits::LOG_FRAME]));
    ROOM.with_borrow_mut(|room| {
        let mut writer = Writer::new(room);
        write(&mut writer);
        let length = writer.finish().expect("a message is no longer than a frame");
        room[..length].to_vec()
    })
}

/// A message with its bytes in two pieces.
pub fn framed(parts: &[&[u8]], write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    code(|out| {
        write(out);
        parts.iter().for_each(|part| out.raw(part));
    })
}

impl World {
    /// Opens a connection.
    pub fn connect(&mut self, owner: Owner, from: usize, to: SocketAddr) -> ConnId {
        self.connect_from(owner, address(from, 0), to)
    }

    /// The same from an address of the owner's own.
    pub fn connect_from(&mut self, owner: Owner, from: SocketAddr, to: SocketAddr) -> ConnId {
        let conn = self.net.open(owner, from, to);
        self.send(conn, 0, Packet::Syn);
        conn
    }

    /// Sends on a connection.
    pub fn send(&mut self, conn: ConnId, from: usize, packet: Packet) {
        if self.net.conns[conn].ends[from].closed {
            return;
        }
        self.measure_packet(conn, from, &packet);
        let twice = self.breaks.twice && matches!(packet, Packet::Bytes(_)) && self.dice.one_in(20);
        let leaves = self.leaves(conn, from, &packet);
        for packet in std::iter::repeat_n(packet, if twice { 2 } else { 1 }) {
            if let Some(at) = self.net.send(&mut self.dice, leaves, conn, from, packet) {
                self.schedule(at, Event::Arrive(conn, 1 - from));
            }
        }
    }

    /// Closes one end.
    pub fn close(&mut self, conn: ConnId, side: usize) {
        self.send(conn, side, Packet::End);
        self.net.conns[conn].ends[side].closed = true;
    }

    /// This side resets a connection.
    pub fn reset(&mut self, conn: ConnId, side: usize) {
        self.send(conn, side, Packet::Reset);
        self.net.conns[conn].ends[side].closed = true;
    }

    /// All ends of an owner that has ended: some say so in order, some by a reset.
    pub fn abort_all(&mut self, owner: Owner) {
        for conn in 0..self.net.conns.len() {
            for side in 0..2 {
                let end = &self.net.conns[conn].ends[side];
                if end.owner == owner && !end.closed && (side == 0 || self.net.conns[conn].arrived) {
                    let packet = if self.dice.one_in(2) { Packet::End } else { Packet::Reset };
                    self.send(conn, side, packet);
                    self.net.conns[conn].ends[side].closed = true;
                }
            }
        }
    }

    /// A packet arrives at this side.
    pub fn arrive(&mut self, conn: ConnId, side: usize) {
        let [a, b] = [0, 1].map(|side: usize| self.net.conns[conn].ends[side].machine);
        if let Some(until) = self.net.cut_until(a, b, self.now) {
            let after = Duration::from_micros(100 + self.dice.below(200_000) as u64);
            return self.schedule(until + after, Event::Arrive(conn, side));
        }
        let at = self.net.conns[conn].ends[side].machine;
        if !self.machines[at].power {
            return;
        }
        if self.machines[at].paused > self.now {
            // Its kernel does not run either.
            return self.schedule(self.machines[at].paused, Event::Arrive(conn, side));
        }
        if side == 1
            && self.net.conns[conn].to.port() > LOG_PORT
            && let Some(Owner::Process(pid)) = self.net.listeners.get(&self.net.conns[conn].to).copied()
            && self.is_stopped(pid)
        {
            return self.hold_arrival(pid, conn, side);
        }
        if side == 1 && !self.net.conns[conn].arrived {
            if self.is_full(conn) {
                return self.schedule(self.now + FULL * (1 + conn as u32 % 7), Event::Arrive(conn, side));
            }
            return self.arrive_at_listener(conn);
        }
        let end = &self.net.conns[conn].ends[side];
        let boot = match end.owner {
            Owner::Daemon(_, boot) | Owner::Logs(_, boot) | Owner::Fetcher(_, boot, _) => Some(boot),
            Owner::Process(_) | Owner::Command(_) => None,
        };
        if let Owner::Process(pid) = end.owner
            && self.is_stopped(pid)
        {
            return self.hold_arrival(pid, conn, side);
        }
        match self.ready(at, boot) {
            Some(ready) if ready > self.now => return self.schedule(ready, Event::Arrive(conn, side)),
            _ => {}
        }
        match self.served_at(conn, side) {
            Some(at) if at > self.now => self.schedule(at, Event::Served(conn, side)),
            _ => self.take_in(conn, side),
        }
    }

    /// The owner of this side takes the next packet.
    pub fn take_in(&mut self, conn: ConnId, side: usize) {
        let Some(packet) = self.net.take(conn, side) else { return };
        self.note(&Event::Arrive(conn, side));
        self.hand_over(conn, side, packet);
        self.make_room(conn, side);
    }

    /// The kernel of this side has asked the other one's, and has got no answer.
    pub fn end_silent(&mut self, conn: ConnId, side: usize) {
        if let Owner::Process(pid) = self.net.conns[conn].ends[side].owner
            && self.is_stopped(pid)
        {
            return self.schedule(self.now + Duration::from_secs(1), Event::Silent(conn, side));
        }
        if !self.net.conns[conn].broken {
            self.hand_over(conn, side, Packet::Reset);
            self.net.conns[conn].broken = true;
        }
    }

    /// Whether the backlog of a program's listener is full just now; for a connection only once. Where nothing listens a call is refused at once.
    fn is_full(&mut self, conn: ConnId) -> bool {
        let to = self.net.conns[conn].to;
        let is_full = is_of_program(to) && self.net.listeners.contains_key(&to) && conn.is_multiple_of(5);
        is_full && !std::mem::replace(&mut self.net.conns[conn].held, true)
    }

    /// A connection comes to a listener: the kernel takes it, or refuses.
    fn arrive_at_listener(&mut self, conn: ConnId) {
        let Some(packet) = self.net.take(conn, 1) else { return };
        self.net.conns[conn].arrived = true;
        // A connection is there only when both kernels have spoken: a caller that is over by then does not answer.
        let caller = &self.net.conns[conn].ends[0];
        if caller.closed || !self.machines[caller.machine].power {
            return self.net.conns[conn].ends[1].closed = true;
        }
        let Some(owner) = self.net.listeners.get(&self.net.conns[conn].to).copied() else {
            self.send(conn, 1, Packet::Reset);
            return self.net.conns[conn].ends[1].closed = true;
        };
        self.net.conns[conn].ends[1].owner = owner;
        self.send(conn, 1, Packet::Ack);
        self.hand_over(conn, 1, packet);
    }

    fn hand_over(&mut self, conn: ConnId, side: usize, packet: Packet) {
        let end = self.net.conns[conn].ends[side].clone();
        let over = matches!(packet, Packet::End | Packet::Reset);
        if end.closed {
            if !over {
                // The sender hears that there is no receiver.
                self.net.conns[conn].ends[side].closed = false;
                self.send(conn, side, Packet::Reset);
                self.net.conns[conn].ends[side].closed = true;
            }
            return;
        }
        if let Packet::Reset = packet {
            self.net.conns[conn].ends[side].closed = true;
        }
        match end.owner {
            Owner::Daemon(at, boot) if self.ready(at, Some(boot)).is_some() => self.daemon_arrive(at, conn, packet),
            Owner::Logs(at, boot) if self.ready(at, Some(boot)).is_some() => self.logs_arrive(at, conn, packet),
            Owner::Fetcher(at, boot, number) if self.ready(at, Some(boot)).is_some() => {
                self.fetch_arrive(at, conn, number, packet);
            }
            Owner::Process(pid) => self.process_arrive(pid, conn, side, packet),
            Owner::Command(number) if number == self.command.number => self.command_arrive(conn, packet),
            _ => {}
        }
    }
}
