//! Machines: how one is switched on and off, and the faults that a plan has for them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use radic_protector::node::Node;
use radic_protector::store;
use radic_wire::event::EventName;
use radic_wire::ids::{BootId, NodeId, NodeName, ProcessId};
use radic_wire::job::ExitStatus;
use radic_wire::membership::{Member, Role};

use super::logs::Logs;
use super::net::{Conn, ConnId, End, Owner, Packet, machine_of};
use super::peers::Connections;
use super::plan::{Fault, Told, When};
use super::process::Process;
use super::queue::Event;
use super::world::World;
use crate::node::node_config;

const DAEMON_PORT: u16 = 1;
/// The last port of a daemon: processes have others.
pub const LOG_PORT: u16 = 2;

/// One machine.
pub struct Machine {
    /// How its protector is known.
    pub member: Member,
    /// How often its protector was started before.
    pub boot: u32,
    /// It is switched on.
    pub power: bool,
    /// Its protector; none: it is dead.
    pub node: Option<Box<Node>>,
    /// What its driver has.
    pub peers: Connections,
    /// Its log service.
    pub logs: Logs,
    /// Its processes.
    pub ranks: BTreeMap<ProcessId, u32>,
    /// When it goes on, if it stands still.
    pub paused: Duration,
    /// The same of its protector.
    pub hung: Duration,
    /// When its daemon has done all that it has to do, if that takes time.
    pub free: Duration,
    /// When the node is called next.
    pub tick: Option<Duration>,
    /// Time that its disk takes, at most.
    pub disk: Duration,
    /// The last view that was looked at.
    pub view: u64,
    /// Whether it has ever had anything of the job.
    pub knew: bool,
}

/// Where something listens on a machine.
pub fn address(at: usize, port: u16) -> SocketAddr {
    (Ipv4Addr::from_bits(10 << 24 | (at as u32 + 1)), port).into()
}

/// The name of a machine's node.
pub fn name(at: usize) -> NodeName {
    format!("n{}", at + 1).parse().expect("a name")
}

impl World {
    /// A machine that is off, and was switched on so often before.
    pub fn machine(&self, at: usize, boot: u32) -> Machine {
        let id = NodeId { name: name(at), boot: BootId(u64::from(boot) * 100 + at as u64 + 1) };
        let role = if at >= self.plan.machines - self.plan.spares { Role::Spare } else { Role::Node };
        let durable = self.plan.durable;
        let memory = if durable { 40 } else { 400 };
        let config = store::Config { memory, log: 1 << 20, image: 4_096, durable };
        let member = Member {
            id,
            address: address(at, DAEMON_PORT),
            data: address(at, DAEMON_PORT).ip(),
            log_port: LOG_PORT,
            role,
            slots: 2,
        };
        Machine {
            peers: Connections::new(member.clone()),
            member,
            boot,
            power: true,
            node: None,
            logs: Logs::new(config),
            ranks: BTreeMap::new(),
            paused: Duration::ZERO,
            hung: Duration::ZERO,
            free: Duration::ZERO,
            tick: None,
            disk: Duration::from_micros(400),
            view: 0,
            knew: false,
        }
    }

    /// The kernel of a machine that was switched on knows nothing of connections of before, and says so to a peer that sends on one; here at once.
    fn reset_connections(&mut self, at: usize) {
        if self.machines[at].boot == 0 {
            return;
        }
        for conn in 0..self.net.conns.len() {
            let ends = &self.net.conns[conn].ends;
            let there = (0..2).find(|side| ends[*side].machine == at && ends[1 - side].machine != at && !ends[1 - side].closed);
            if let Some(side) = there.filter(|_| !self.net.conns[conn].broken) {
                self.net.lose_rest(&mut self.dice, conn, side);
                // Its own end may be closed by now.
                if let Some(arrives) = self.net.send(&mut self.dice, self.now, conn, side, Packet::Reset) {
                    self.schedule(arrives, Event::Arrive(conn, 1 - side));
                }
                self.net.conns[conn].broken = true;
            }
        }
    }

    /// Its daemon begins.
    pub fn switch_on(&mut self, at: usize) {
        self.reset_connections(at);
        let boot = self.machines[at].boot;
        let others = (0..self.plan.machines).filter(|other| *other != at && (boot > 0 || *other == 0));
        let join = others.map(|other| address(other, DAEMON_PORT)).collect();
        let seed = self.plan.seed.wrapping_mul(64) + at as u64 + u64::from(boot) * 1_000;
        let mut config = node_config(self.machines[at].member.clone(), seed, join);
        config.timing.fan_out = self.plan.fan_out;
        let node = self.formed.node(self.now, at, boot, config);
        self.machines[at].node = Some(Box::new(node));
        self.net.listeners.insert(address(at, DAEMON_PORT), Owner::Daemon(at, boot));
        self.net.listeners.insert(address(at, LOG_PORT), Owner::Logs(at, boot));
        self.after_node(at);
    }

    /// Whether its protector is there.
    pub fn is_up(&self, at: usize) -> bool {
        let machine = &self.machines[at];
        machine.power && machine.node.is_some()
    }

    /// Until when the machine, or its protector if `boot` names one, stands still and cannot do this; none: it is gone.
    pub fn ready(&self, at: usize, boot: Option<u32>) -> Option<Duration> {
        let machine = &self.machines[at];
        match boot {
            Some(boot) => (self.is_up(at) && machine.boot == boot).then_some(machine.paused.max(machine.hung)),
            None => machine.power.then_some(machine.paused),
        }
    }

    /// The node wanted to be called.
    pub fn tick(&mut self, at: usize) {
        let now = self.now;
        if self.machines[at].tick.is_some_and(|tick| tick > now) {
            return;
        }
        let Machine { free, boot, .. } = self.machines[at];
        if free > now {
            self.machines[at].tick = Some(free);
            return self.schedule(free, Event::Tick(at, boot));
        }
        self.machines[at].tick = None;
        if let Some(node) = self.machines[at].node.as_mut().filter(|node| node.poll_timeout().is_some_and(|due| due <= now)) {
            node.handle_timeout(now);
        }
        self.after_node(at);
    }
}

/// Faults.
impl World {
    /// An event was recorded.
    pub fn handle_event(&mut self, at: usize, event: &radic_wire::event::Event) {
        self.measure_event(at, event);
        self.trace(|| format!("n{}: {}: {}", at + 1, event.event.as_str(), event.text));
        if self.started.is_none() {
            return;
        }
        if event.event == EventName::JobEnd && event.text.starts_with("code 0") {
            self.over = Some((at, false));
        }
        if event.event == EventName::Restart {
            self.judge_restart(at, &event.text);
            self.checks.handle_job_restart();
        }
        let seen = self.seen.entry(event.event).or_default();
        *seen += 1;
        let nth = *seen;
        let now = self.now;
        for (when, fault) in std::mem::take(&mut self.pending) {
            match when {
                When::After(name, of, after) if name == event.event && of == nth => {
                    self.schedule(now + after, Event::Fault(fault))
                }
                _ => self.pending.push((when, fault)),
            }
        }
    }

    /// Something goes wrong.
    pub fn cause(&mut self, fault: Fault) {
        self.trace(|| format!("FAULT: {}", Told(fault)));
        self.counts.faults += 1;
        let now = self.now;
        let all: BTreeSet<usize> = (0..self.machines.len()).collect();
        match fault {
            Fault::PowerOff(at) => self.power_off(at),
            Fault::Kill(at) => self.kill_daemon(at),
            Fault::Pause(at, time) => self.machines[at].paused = self.machines[at].paused.max(now + time),
            Fault::Hang(at, time) => self.machines[at].hung = self.machines[at].hung.max(now + time),
            Fault::Cut(at, time) => self.cut(&BTreeSet::from([at]), &all, now + time),
            Fault::Split(at, time) => self.cut(&(0..at).collect(), &(at..self.machines.len()).collect(), now + time),
            Fault::Part(a, b, time) => self.cut(&BTreeSet::from([a]), &BTreeSet::from([b]), now + time),
            Fault::Break(count) => (0..count).for_each(|_| self.break_any()),
            Fault::Crash(rank) => {
                let is_this = |p: &Process| p.id.rank.0 == rank && p.ended.is_none();
                if let Some(pid) = self.processes.iter().rposition(is_this) {
                    let Process { id, machine, .. } = self.processes[pid];
                    // What is left of an epoch before brings nothing back, nor does what a node has that counts as dead.
                    let (epoch, view) =
                        (self.checks.launched(), self.machines[machine].node.as_ref().and_then(|node| node.view()));
                    let is_member =
                        |at: usize| view.is_some_and(|view| view.members.iter().any(|member| member.id.name == name(at)));
                    let can_restart = |at: usize| {
                        let store = self.machines[at].logs.server.store();
                        let is_current = store.incarnation(id).is_some_and(|of| of.epoch == epoch);
                        self.is_up(at) && is_member(at) && store.can_restart(id) && is_current
                    };
                    // An image of the program before does not count, once the process executes another one: its log is told before the new one joins.
                    let of = &self.processes[pid];
                    let has_begun = !of.has_executed() || of.lib.is_some();
                    let can_restart = has_begun && (0..self.machines.len()).any(can_restart);
                    let is_live = of.lib.as_ref().is_some_and(|lib| !lib.observer.is_replaying());
                    self.crashes.handle_crash(id.rank, (machine, epoch, now), can_restart, is_live);
                    self.end_process(pid as u32, ExitStatus::Signal(libc::SIGSEGV));
                }
            }
            Fault::Stop(rank) => {
                if let Some(pid) = self.processes.iter().rposition(|p| p.id.rank.0 == rank && p.ended.is_none()) {
                    self.stop(pid as u32);
                }
            }
            Fault::SlowLinks(at, more, _) => _ = self.net.slow.insert(at, more),
            Fault::SlowDisk(at, more, _) => self.machines[at].disk = more,
            Fault::Return(at) => self.come_back_on(at),
        }
        match fault {
            Fault::SlowLinks(at, more, time) if !more.is_zero() => {
                self.schedule(now + time, Event::Fault(Fault::SlowLinks(at, Duration::ZERO, Duration::ZERO)));
            }
            Fault::SlowDisk(at, more, time) if more > Duration::from_millis(1) => {
                self.schedule(now + time, Event::Fault(Fault::SlowDisk(at, Duration::from_micros(400), Duration::ZERO)));
            }
            _ => {}
        }
    }

    fn cut(&mut self, one: &BTreeSet<usize>, other: &BTreeSet<usize>, until: Duration) {
        for a in one {
            for b in other.iter().filter(|b| *b != a) {
                let cut = self.net.cuts.entry((*a.min(b), *a.max(b))).or_default();
                *cut = until.max(*cut);
            }
        }
    }

    fn power_off(&mut self, at: usize) {
        if !std::mem::replace(&mut self.machines[at].power, false) {
            return;
        }
        self.lose_terminal(at);
        self.lose_command(at);
        self.note_kept(at);
        // What it has sent last arrives up to some point.
        for conn in 0..self.net.conns.len() {
            for side in 0..2 {
                if self.net.conns[conn].ends[1 - side].machine == at {
                    self.net.lose_rest(&mut self.dice, conn, side);
                    self.fall_silent(conn, side);
                }
            }
        }
        for pid in 0..self.processes.len() {
            let process = &mut self.processes[pid];
            if process.machine == at && process.ended.is_none() {
                process.ended = Some(ExitStatus::Signal(libc::SIGKILL));
            }
        }
        self.net.listeners.retain(|address, _| machine_of(*address) != at);
    }

    /// The other machine of a link says nothing any more: the kernel here asks (keepalive), and gives the link up.
    fn fall_silent(&mut self, conn: ConnId, side: usize) {
        let is_process = |end: &End| matches!(end.owner, Owner::Process(_));
        let ends = &self.net.conns[conn].ends;
        if ends.iter().all(is_process) && ends[0].machine != ends[1].machine && !ends[side].closed {
            let after = Duration::from_millis(35_000 + self.dice.below(10_000) as u64);
            self.schedule(self.now + after, Event::Silent(conn, side));
        }
    }

    /// Its protector ends, and what hangs on that.
    pub fn kill_daemon(&mut self, at: usize) {
        if !self.is_up(at) {
            return;
        }
        self.note_kept(at);
        self.machines[at].node = None;
        self.lose_terminal(at);
        self.lose_command(at);
        let boot = self.machines[at].boot;
        for pid in 0..self.processes.len() {
            if self.processes[pid].machine == at {
                self.end_process(pid as u32, ExitStatus::Signal(libc::SIGKILL));
            }
        }
        self.abort_all(Owner::Daemon(at, boot));
        self.abort_all(Owner::Logs(at, boot));
        self.net.listeners.retain(|address, _| machine_of(*address) != at);
    }

    fn come_back_on(&mut self, at: usize) {
        if self.is_up(at) {
            return;
        }
        let mut machine = self.machine(at, self.machines[at].boot + 1);
        machine.disk = self.machines[at].disk;
        // Of its connections of before nothing is known there.
        for conn in &mut self.net.conns {
            conn.ends.iter_mut().filter(|end| end.machine == at).for_each(|end| end.closed = true);
        }
        self.machines[at] = machine;
        self.switch_on(at);
    }

    fn break_any(&mut self) {
        self.net.broken = Some(self.now);
        let live =
            |conn: &Conn| !conn.broken && conn.ends.iter().all(|end| !end.closed) && conn.ends[0].machine != conn.ends[1].machine;
        let live: Vec<ConnId> = (0..self.net.conns.len()).filter(|conn| live(&self.net.conns[*conn])).collect();
        if live.is_empty() {
            return;
        }
        let conn = live[self.dice.below(live.len())];
        for side in 0..2 {
            self.net.lose_rest(&mut self.dice, conn, side);
            self.send(conn, 1 - side, Packet::Reset);
        }
        self.net.conns[conn].broken = true;
    }
}
