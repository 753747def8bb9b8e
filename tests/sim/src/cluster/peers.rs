//! Connections between daemons: the real [`Peers`] and [`Heartbeats`] of each machine, over the simulated network.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use radic_protector::membership::{Peer, Timing};
use radic_protector::peers::{Action, Beat, ConnectionId, Gone, Heartbeats, HeartbeatsAction, Peers, Reason};
use radic_wire::membership::Member;

use super::daemon::Timer;
use super::net::{ConnId, Owner, Packet, Word};
use super::restores::Restores;
use super::world::World;

/// Up to so many connections are all looked at each time that something happens to one.
const FEW: usize = 32;
/// Of more connections, so many on average.
const LOOKED_AT: usize = 4;

/// A connection of a daemon in the network.
#[derive(Debug, Clone, Copy)]
struct Known {
    id: ConnectionId,
    /// The side that is the daemon's.
    side: usize,
    /// The peer's machine has taken it.
    taken: bool,
}

/// Something that the machine wants done, one after the other: what is done about one may make the machine want another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driving {
    No,
    Yes,
}

/// What a daemon has besides its node.
#[derive(Debug)]
pub struct Connections {
    machine: Peers,
    known: BTreeMap<ConnId, Known>,
    conns: BTreeMap<ConnectionId, ConnId>,
    driving: Driving,
    /// How often something has happened since all was looked at.
    unchecked: usize,
    /// When the machine is called, as far as that is scheduled.
    timeout: Option<Duration>,
    beats: Heartbeats,
    /// The connection of the heartbeats, and whether the watcher's machine has taken it.
    beat: Option<(ConnId, bool)>,
    beats_timeout: Option<Duration>,
    /// Processes on their way back.
    pub restores: Restores,
}

impl Connections {
    /// None yet.
    pub fn new(me: Member) -> Connections {
        Connections {
            machine: Peers::new(me.clone()),
            known: BTreeMap::new(),
            conns: BTreeMap::new(),
            driving: Driving::No,
            unchecked: 0,
            timeout: None,
            beats: Heartbeats::new(me, &Timing::default()),
            beat: None,
            beats_timeout: None,
            restores: Restores::default(),
        }
    }

    /// Whether this daemon's heartbeats leave on this connection.
    pub fn is_of_heartbeats(&self, conn: ConnId) -> bool {
        self.beat.is_some_and(|(of, _)| of == conn)
    }

    fn add(&mut self, conn: ConnId, known: Known) {
        self.known.insert(conn, known);
        self.conns.insert(known.id, conn);
    }

    fn remove(&mut self, conn: ConnId) {
        self.known.remove(&conn).into_iter().for_each(|known| _ = self.conns.remove(&known.id));
    }
}

impl World {
    /// What the daemon of a machine has.
    pub fn peers(&mut self, at: usize) -> &mut Connections {
        &mut self.machines[at].peers
    }

    /// Something happens to the connections of a daemon; what the machine wants then is done.
    pub fn drive_peers<T>(&mut self, at: usize, input: impl FnOnce(&mut Peers, Duration) -> T) -> T {
        let now = self.now;
        let peers = self.peers(at);
        let result = input(&mut peers.machine, now);
        if std::mem::replace(&mut peers.driving, Driving::Yes) == Driving::Yes {
            return result;
        }
        while self.is_up(at)
            && let Some(action) = self.peers(at).machine.poll_action()
        {
            self.carry_out_for_peers(at, action);
        }
        let peers = self.peers(at);
        peers.driving = Driving::No;
        peers.unchecked += 1;
        if peers.known.len() <= FEW || peers.unchecked * LOOKED_AT > peers.known.len() {
            peers.unchecked = 0;
            peers.machine.check_invariants();
        }
        let is_scheduled = |due: &Duration| peers.timeout.is_some_and(|at| at <= *due && at > now);
        if let Some(due) = peers.machine.poll_timeout().filter(|due| !is_scheduled(due)) {
            peers.timeout = Some(due);
            self.daemon_later(at, due.saturating_sub(now), Timer::Peers);
        }
        result
    }

    fn carry_out_for_peers(&mut self, at: usize, action: Action) {
        match action {
            Action::Dial(id, address) => {
                let conn = self.dial_for_daemon(at, address);
                self.peers(at).add(conn, Known { id, side: 0, taken: false });
            }
            Action::Send(id, frame) => self.send_for_peers(at, id, frame),
            Action::Write(id) => {
                while let Some(frame) = self.peers(at).machine.poll_frame(id) {
                    self.send_for_peers(at, id, frame);
                }
            }
            Action::Close(id, reason) => {
                check_reason(&reason);
                if reason == Reason::Crowd {
                    self.measure_turned_away();
                }
                if let Some(conn) = self.peers(at).conns.get(&id).copied() {
                    let side = self.peers(at).known[&conn].side;
                    self.peers(at).remove(conn);
                    self.close(conn, side);
                }
            }
            Action::Tell(input) => {
                self.measure_heard(at, &input);
                self.input(at, input);
            }
            Action::Refused(from, reason) => self.trace(|| format!("n{} refuses {from}: {reason}", at + 1)),
            Action::Dropped(to, _, reason) => self.trace(|| format!("n{} drops what is for {to:?}: {reason}", at + 1)),
        }
    }

    fn dial_for_daemon(&mut self, at: usize, address: SocketAddr) -> ConnId {
        let owner = Owner::Daemon(at, self.machines[at].boot);
        self.connect(owner, at, address)
    }

    fn send_for_peers(&mut self, at: usize, id: ConnectionId, frame: Vec<u8>) {
        if let Some(conn) = self.peers(at).conns.get(&id).copied() {
            let side = self.peers(at).known[&conn].side;
            self.send(conn, side, Packet::Word(Word::Peer(frame)));
        }
    }

    /// Something came for the daemon.
    pub fn daemon_arrive(&mut self, at: usize, conn: ConnId, packet: Packet) {
        if self.peers(at).is_of_heartbeats(conn) {
            return self.arrive_for_heartbeats(at, conn, packet);
        }
        if let Packet::Syn = packet {
            return self.accept_for_daemon(at, conn);
        }
        let Some(known) = self.peers(at).known.get_mut(&conn) else { return };
        let Known { id, side, taken } = *known;
        match packet {
            Packet::Ack => {
                known.taken = true;
                self.drive_peers(at, |machine, _| machine.handle_connected(id));
            }
            Packet::Word(Word::Peer(frame)) => {
                self.drive_peers(at, |machine, now| machine.handle_frame(now, id, &frame));
                if !self.net.is_on_the_way(conn, side) {
                    self.drive_peers(at, |machine, _| machine.handle_quiet(id));
                }
            }
            Packet::End | Packet::Reset => {
                self.peers(at).remove(conn);
                self.close(conn, side);
                let gone = gone(&packet, taken);
                self.drive_peers(at, |machine, now| machine.handle_closed(now, id, gone));
            }
            packet => unreachable!("{packet:?} between daemons"),
        }
    }

    fn accept_for_daemon(&mut self, at: usize, conn: ConnId) {
        let from = self.net.conns[conn].from;
        match self.drive_peers(at, |machine, now| machine.handle_accepted(now, from)) {
            Some(id) => {
                self.peers(at).add(conn, Known { id, side: 1, taken: true });
                if let Some(costs) = self.plan.quiet {
                    self.work(at, costs.handshake);
                }
            }
            None => {
                self.measure_turned_away();
                self.close(conn, 1);
            }
        }
    }

    /// Finds out whether this member answers.
    pub fn probe(&mut self, at: usize, member: Peer) {
        self.drive_peers(at, |machine, now| machine.probe(now, member));
    }

    /// The time of the machine has come.
    pub fn peers_due(&mut self, at: usize) {
        let now = self.now;
        let peers = self.peers(at);
        if peers.timeout.is_some_and(|due| due <= now) {
            peers.timeout = None;
        }
        self.drive_peers(at, Peers::handle_timeout);
    }
}

/// Heartbeats.
impl World {
    /// The node has a heartbeat for its watcher.
    pub fn heartbeat(&mut self, at: usize, to: Peer, view: u64) {
        let Some(address) = to.address else { return };
        let beat = Beat { peer: to.id, address, view, given: self.now };
        self.drive_heartbeats(at, |machine, now| machine.handle_beat(now, beat));
    }

    fn drive_heartbeats(&mut self, at: usize, input: impl FnOnce(&mut Heartbeats, Duration)) {
        let now = self.now;
        input(&mut self.peers(at).beats, now);
        while self.is_up(at)
            && let Some(action) = self.peers(at).beats.poll_action()
        {
            self.carry_out_for_heartbeats(at, action);
        }
        let peers = self.peers(at);
        let is_scheduled = |due: &Duration| peers.beats_timeout.is_some_and(|at| at <= *due && at > now);
        if let Some(due) = peers.beats.poll_timeout().filter(|due| !is_scheduled(due)) {
            peers.beats_timeout = Some(due);
            self.daemon_later(at, due.saturating_sub(now), Timer::Heartbeats);
        }
    }

    fn carry_out_for_heartbeats(&mut self, at: usize, action: HeartbeatsAction) {
        let now = self.now;
        match action {
            HeartbeatsAction::Dial(address) => {
                let conn = self.dial_for_daemon(at, address);
                self.peers(at).beat = Some((conn, false));
            }
            HeartbeatsAction::Send(frame) => self.send_for_heartbeats(at, frame),
            HeartbeatsAction::Write => {
                let frame = self.peers(at).beats.poll_frame(now);
                frame.into_iter().for_each(|frame| self.send_for_heartbeats(at, frame));
            }
            HeartbeatsAction::Close => {
                let beat = self.peers(at).beat.take();
                beat.into_iter().for_each(|(conn, _)| self.close(conn, 0));
            }
            HeartbeatsAction::Tell(input) => self.input(at, input),
        }
    }

    fn send_for_heartbeats(&mut self, at: usize, frame: Vec<u8>) {
        if let Some((conn, _)) = self.peers(at).beat {
            self.send(conn, 0, Packet::Word(Word::Peer(frame)));
        }
    }

    fn arrive_for_heartbeats(&mut self, at: usize, conn: ConnId, packet: Packet) {
        match packet {
            Packet::Ack => {
                self.peers(at).beat = Some((conn, true));
                self.drive_heartbeats(at, |machine, _| machine.handle_connected());
            }
            Packet::Word(Word::Peer(frame)) => self.drive_heartbeats(at, |machine, now| machine.handle_frame(now, &frame)),
            Packet::End | Packet::Reset => {
                self.peers(at).beat = None;
                self.close(conn, 0);
                self.drive_heartbeats(at, Heartbeats::handle_closed);
            }
            packet => unreachable!("{packet:?} to a daemon that sends heartbeats"),
        }
    }

    /// The time of the heartbeats' machine has come.
    pub fn heartbeats_due(&mut self, at: usize) {
        let now = self.now;
        let peers = self.peers(at);
        if peers.beats_timeout.is_some_and(|due| due <= now) {
            peers.beats_timeout = None;
        }
        self.drive_heartbeats(at, Heartbeats::handle_timeout);
    }
}

fn gone(packet: &Packet, taken: bool) -> Gone {
    match packet {
        _ if !taken => Gone::NoListener,
        Packet::End => Gone::Ended,
        _ => Gone::Broke("reset".to_owned()),
    }
}

/// The daemons of a simulation are honest, and little waits for each.
fn check_reason(reason: &Reason) {
    let is_wrong = matches!(reason, Reason::Overfull(_) | Reason::Numbers(_) | Reason::Malformed(_) | Reason::Misplaced(_));
    assert!(!is_wrong, "a connection between two daemons ended because of this: {reason}");
}
