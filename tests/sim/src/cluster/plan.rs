//! What a seed decides before anything happens.

use std::fmt;
use std::time::Duration;

use radic_protector::membership::Timing;
use radic_wire::event::EventName;
use radic_wire::ids::{JobId, ProcessId, Rank};
use radic_wire::job::RestartOn;

use super::program::STARTED;
use crate::app::{App, mix};
use crate::dice::Dice;

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The machine is off: its peers hear nothing of it any more.
    PowerOff(usize),
    /// Its protector is killed, and with it its processes; its kernel says so.
    Kill(usize),
    /// Nothing runs on it for so long.
    Pause(usize, Duration),
    /// Its protector does not run for so long; its processes do.
    Hang(usize, Duration),
    /// Nothing passes between it and the others for so long.
    Cut(usize, Duration),
    /// Nothing passes between those below this number and the others for so long.
    Split(usize, Duration),
    /// Nothing passes between these two for so long.
    Part(usize, usize, Duration),
    /// So many connections break.
    Break(usize),
    /// A rank is ended by a signal.
    Crash(u32),
    /// A rank is stopped, and nobody continues it.
    Stop(u32),
    /// Its links take so much longer, for so long.
    SlowLinks(usize, Duration, Duration),
    /// Its disk takes so much longer, for so long.
    SlowDisk(usize, Duration, Duration),
    /// It is switched on again, and joins as another member.
    Return(usize),
}

/// When it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// So long after the start of the job.
    At(Duration),
    /// So long after this event has been recorded for the nth time, anywhere.
    After(EventName, u32, Duration),
}

/// What the work of a daemon costs in virtual time. Nothing, unless told.
#[derive(Debug, Clone, Copy, Default)]
pub struct Costs {
    /// Sending a frame to another daemon, or handling one. Heartbeats are sent by a thread of their own, and cost the daemon nothing.
    pub message: Duration,
    /// One end of the handshake of a new connection.
    pub handshake: Duration,
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Machines, the terminal's among them, which is the first and hosts no rank.
    pub machines: usize,
    /// How many of them, the last ones, are spares.
    pub spares: usize,
    /// Ranks, one or two on each of the others.
    pub ranks: u32,
    /// Protectors that hold each log.
    pub replicas: u8,
    /// They acknowledge only what is in a file.
    pub durable: bool,
    /// Time between two checkpoints.
    pub interval: Duration,
    /// Time between two calls of a program, about.
    pub pace: Duration,
    /// Bytes that each sends on every connection.
    pub quota: u64,
    /// Where what is lost goes on.
    pub restart_on: RestartOn,
    /// One in so many images is damaged.
    pub bad_images: usize,
    /// One in so many images is whole, and a process that comes back from it dies at once; 0: none.
    pub useless_images: usize,
    /// One in so many processes is killed when it was let go, and has not exited; 0: none.
    pub killed_late: usize,
    /// Whether each rank has a second thread, if it has connections for one.
    pub threads: bool,
    /// Whether these threads meet at a lock.
    pub meets: bool,
    /// Whether each rank but the first executes another program before it does anything.
    pub executes: bool,
    /// Whether rank 1 closes its listener when it has accepted all.
    pub closes: bool,
    /// Whether programs look how much they could receive (FIONREAD).
    pub looks: bool,
    /// Whether no process waits before it sends: what bytes depend on goes with them.
    pub causal: bool,
    /// Whether what a process receives from others of the job stays with its senders.
    pub stays: bool,
    /// How often the job is suspended and goes on.
    pub suspensions: u32,
    /// Bytes that the terminal has for rank 0.
    pub input: u64,
    /// Members that each member tells of a decision.
    pub fan_out: usize,
    /// What goes wrong.
    pub faults: Vec<(When, Fault)>,
    /// If the cluster is one to be measured: nothing goes wrong by itself, the network only delays, and the ranks do nothing but wait.
    /// Its machines have been members of one view for some time, and any of them hosts ranks.
    pub quiet: Option<Costs>,
}

/// Threads, programs that execute others, and standard input of a seed.
fn programs(seed: u64) -> (bool, bool, u64) {
    let mut dice = Dice::new(seed ^ 0x7ead);
    (dice.one_in(3), dice.one_in(8), [0, 0, 30, 90][dice.below(4)])
}

const EVENTS: [EventName; 12] = [
    EventName::RankStart,
    EventName::Suspect,
    EventName::Confirm,
    EventName::View,
    EventName::Fence,
    EventName::Place,
    EventName::Image,
    EventName::Replay,
    EventName::Live,
    EventName::Reprotected,
    EventName::Checkpoint,
    EventName::RankExit,
];

/// From this seed on jobs are suspended and resumed, too.
const SUSPENDED: u64 = 10_000_000;

/// From this seed on most jobs run as they do unless their user says otherwise.
const BY_DEFAULT: u64 = 20_000_000;

/// From this seed on several machines are off at once, and a decision reaches most nodes by others, so that some miss views.
const AT_ONCE: u64 = 30_000_000;

/// Not with two threads: that a send was taken is recorded before output without its thread, which is known and not mended (docs/regressions.md).
fn suspensions(seed: u64, threads: bool) -> u32 {
    if threads || seed < SUSPENDED { 0 } else { [0, 0, 1, 2][Dice::new(seed ^ 0x5059).below(4)] }
}

/// Not with two threads, which share what was accepted.
fn closes(seed: u64, threads: bool) -> bool {
    !threads && Dice::new(seed ^ 0xc105e).one_in(2)
}

/// Every second one of the later seeds.
fn meets(seed: u64) -> bool {
    seed >= BY_DEFAULT && Dice::new(seed ^ 0x10c4).one_in(2)
}

/// Whether programs look how much they could receive.
fn looks(seed: u64) -> bool {
    Dice::new(seed ^ 0x100c5).one_in(4)
}

/// Where what is received stays with its senders, in every second seed.
fn killed_late(seed: u64) -> usize {
    [0, 0, 1, 3][Dice::new(seed ^ 0x1a7ed).below(4)]
}

/// Every second seed, if it is causal and has one replica.
fn stays(seed: u64) -> bool {
    Dice::new(seed ^ 0x57a75).one_in(2)
}

impl Plan {
    /// Three of four of the last seeds: no send waits, there is one replica, and what is received stays with its senders.
    fn often_by_default(self) -> Plan {
        let is_default = self.seed >= BY_DEFAULT && !Dice::new(self.seed ^ 0xdefa17).one_in(4);
        if is_default { Plan { causal: true, stays: true, replicas: 1, ..self } } else { self }
    }

    /// Two or three of the nodes are off within some milliseconds, and there are members enough for a majority without them. Each
    /// member tells one other of a decision, or two: if that one is off, the rest misses the view.
    fn at_once(self) -> Plan {
        if self.seed < AT_ONCE {
            return self;
        }
        let mut dice = Dice::new(self.seed ^ 0xa70ce);
        let (hosts, spares) = (4 + dice.below(3), 1 + dice.below(3));
        let dead = 2 + dice.below(((hosts + spares) / 2 - 1).min(2));
        let mut victims: Vec<usize> = (1..=hosts).collect();
        let ranks = (2 + dice.below(hosts - 1)) as u32;
        let (machines, fan_out) = (1 + hosts + spares, 1 + dice.below(2));
        let mut plan = Plan { machines, spares, ranks, fan_out, faults: Vec::new(), ..self };
        let at = Duration::from_millis(200 + dice.below(1_200) as u64);
        for _ in 0..dead {
            let victim = victims.swap_remove(dice.below(victims.len()));
            let when = When::At(at + Duration::from_micros(dice.below(60_000) as u64));
            plan.faults.push((when, if dice.one_in(3) { Fault::Kill(victim) } else { Fault::PowerOff(victim) }));
        }
        if dice.one_in(4) {
            plan.add_fault(&mut dice);
        }
        plan
    }

    /// The plan of a seed.
    pub fn new(seed: u64) -> Plan {
        let mut dice = Dice::new(seed ^ 0x5eed);
        let dice = &mut dice;
        let spares = [0, 0, 1, 2][dice.below(4)];
        let hosts = 2 + dice.below(4);
        let machines = 1 + hosts + spares;
        let ms = |ms: usize| Duration::from_millis(ms as u64);
        let (threads, executes, input) = programs(seed);
        let mut plan = Plan {
            seed,
            machines,
            spares,
            ranks: (2 + dice.below(3)) as u32,
            replicas: if machines > 3 && dice.one_in(3) { 2 } else { 1 },
            durable: dice.one_in(4),
            interval: ms(100 + dice.below(700)),
            pace: Duration::from_micros(3_000 + dice.below(12_000) as u64),
            quota: 40 + dice.below(260) as u64,
            restart_on: [RestartOn::Spare, RestartOn::Protector, RestartOn::Any][dice.below(3)],
            bad_images: 40,
            useless_images: [0, 0, 20, 4][Dice::new(seed ^ 0x1a6e).below(4)],
            killed_late: killed_late(seed),
            threads,
            meets: threads && meets(seed),
            executes,
            closes: closes(seed, threads),
            looks: looks(seed),
            causal: Dice::new(seed ^ 0xca05a1).one_in(2),
            stays: stays(seed),
            suspensions: suspensions(seed, threads),
            input,
            fan_out: Timing::default().fan_out,
            faults: Vec::new(),
            quiet: None,
        };
        for _ in 0..[0, 1, 1, 1, 2, 2, 3, 4, 6][dice.below(9)] {
            plan.add_fault(dice);
        }
        plan.often_by_default().at_once()
    }

    /// A small cluster on which very much goes wrong: two to four ranks that crash, and connections that break, again and again; now and then a machine is off for a while.
    pub fn dense(seed: u64) -> Plan {
        let mut dice = Dice::new(seed ^ 0xde45e);
        let dice = &mut dice;
        let hosts = 2 + dice.below(3);
        let ms = |ms: usize| Duration::from_millis(ms as u64);
        let (threads, executes, input) = programs(seed);
        let mut plan = Plan {
            seed,
            machines: 1 + hosts,
            spares: 0,
            ranks: hosts.min(3) as u32,
            replicas: if hosts > 2 && dice.one_in(2) { 2 } else { 1 },
            durable: dice.one_in(3),
            interval: ms(40 + dice.below(200)),
            pace: Duration::from_micros(1_000 + dice.below(4_000) as u64),
            quota: 100 + dice.below(200) as u64,
            restart_on: RestartOn::Protector,
            bad_images: 40,
            useless_images: 0,
            killed_late: killed_late(seed),
            threads,
            meets: threads && meets(seed),
            executes,
            closes: closes(seed, threads),
            looks: looks(seed),
            causal: Dice::new(seed ^ 0xca05a1).one_in(2),
            stays: stays(seed),
            suspensions: suspensions(seed, threads),
            input,
            fan_out: Timing::default().fan_out,
            faults: Vec::new(),
            quiet: None,
        };
        for _ in 0..4 + dice.below(16) {
            let (at, victim) = (ms(dice.below(2_500)), 1 + dice.below(hosts));
            let fault = match dice.below(16) {
                0..6 => Fault::Crash(dice.below(plan.ranks as usize) as u32),
                6 => Fault::Kill(victim),
                7 => Fault::PowerOff(victim),
                _ => Fault::Break(1 + dice.below(3)),
            };
            plan.faults.push((When::At(at), fault));
            if matches!(fault, Fault::Kill(_) | Fault::PowerOff(_)) {
                plan.faults.push((When::At(at + ms(300 + dice.below(1_500))), Fault::Return(victim)));
            }
        }
        plan.often_by_default()
    }

    /// So many machines that are measured, with a job of so many ranks, one on each of the first of them.
    pub fn quiet(seed: u64, machines: usize, ranks: u32, costs: Costs) -> Plan {
        Plan {
            seed,
            machines,
            spares: 0,
            ranks,
            replicas: 1,
            durable: false,
            interval: Duration::ZERO,
            pace: Duration::from_millis(200),
            quota: 0,
            restart_on: RestartOn::Protector,
            bad_images: 0,
            useless_images: 0,
            killed_late: 0,
            threads: false,
            meets: false,
            executes: false,
            closes: false,
            looks: false,
            causal: false,
            stays: false,
            suspensions: 0,
            input: 0,
            fan_out: Timing::default().fan_out,
            faults: Vec::new(),
            quiet: Some(costs),
        }
    }

    fn add_fault(&mut self, dice: &mut Dice) {
        let ms = |ms: usize| Duration::from_millis(ms as u64);
        let when = match dice.below(3) {
            0 => When::After(
                EVENTS[dice.below(EVENTS.len())],
                1 + dice.below(4) as u32,
                Duration::from_micros(dice.below(20_000) as u64),
            ),
            _ => When::At(ms(dice.below(1_800))),
        };
        // The terminal's machine stays.
        let victim = 1 + dice.below(self.machines - 1);
        let any = dice.below(self.machines);
        let long = ms([200, 700, 1_500, 4_000, 15_000][dice.below(5)] + dice.below(200));
        let fault = match dice.below(20) {
            0..4 => Fault::PowerOff(victim),
            4..7 => Fault::Kill(victim),
            7 | 8 => Fault::Pause(any, long),
            9 | 10 => Fault::Hang(victim, long),
            11 => Fault::Cut(victim, long),
            12 => Fault::Split(1 + dice.below(self.machines - 1), long),
            13 => Fault::Part(victim, (victim + 1 + dice.below(self.machines - 1)) % self.machines, long),
            14 | 15 => Fault::Break(1 + dice.below(8)),
            16 | 17 => Fault::Crash(dice.below(self.ranks as usize) as u32),
            18 => Fault::SlowLinks(any, ms(1 + dice.below(60)), long),
            _ => Fault::SlowDisk(any, ms(5 + dice.below(300)), long),
        };
        self.faults.push((when, fault));
        if let (Fault::PowerOff(_) | Fault::Kill(_), When::At(at), true) = (fault, when, dice.one_in(4)) {
            self.faults.push((When::At(at + ms(300 + dice.below(4_000))), Fault::Return(victim)));
        }
    }

    /// Whether a process that comes back from this image, by its place among all of them, dies at once.
    pub fn is_useless(&self, saved: usize) -> bool {
        self.useless_images > 0 && Dice::new(self.seed ^ (saved as u64) << 20).one_in(self.useless_images)
    }

    /// A job of this cluster.
    pub fn process(job: JobId, rank: u32) -> ProcessId {
        ProcessId { job, rank: Rank(rank) }
    }

    /// The program of a rank: each connects to those above it, and accepts those below.
    pub fn app_of(&self, job: JobId, rank: u32) -> App {
        if self.quiet.is_some() {
            let mut app = App::new(self.seed, Vec::new(), 0, self.quota, false);
            app.rests = Some(STARTED);
            return app;
        }
        let connects = (rank + 1..self.ranks).map(|other| Plan::process(job, other)).collect();
        let mut app = App::new(self.seed, connects, rank as usize, self.quota, rank == 0);
        (app.forks, app.reads_input) = (self.threads, rank == 0);
        app.looks = self.looks;
        (app.closes, app.calls_again) = (self.closes && rank == 1, self.closes && rank == 0);
        app
    }

    /// The byte of standard input at this offset.
    pub fn input_at(&self, offset: u64) -> u8 {
        mix(self.seed, offset) as u8
    }

    /// How many of them may be dead, off or cut off without a majority being in question, at worst.
    pub fn is_gentle(&self) -> bool {
        let harmful = |fault: &Fault| {
            matches!(
                fault,
                Fault::PowerOff(_) | Fault::Kill(_) | Fault::Pause(..) | Fault::Hang(..) | Fault::Cut(..) | Fault::Part(..)
            )
        };
        let split = self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Split(..)));
        !split && 2 * self.faults.iter().filter(|(_, fault)| harmful(fault)).count() < self.machines
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { seed, machines, spares, ranks, replicas, durable, interval, pace, quota, restart_on, .. } = self;
        writeln!(
            f,
            "seed {seed}: {machines} machines (n1 has the terminal; {spares} are spares), {ranks} ranks, {replicas} replicas"
        )?;
        if self.threads || self.executes || self.input > 0 {
            let (threads, executes, input) = (self.threads, self.executes, self.input);
            writeln!(f, "  two threads: {threads}, executes another program: {executes}, {input} bytes of standard input")?;
        }
        if self.closes {
            writeln!(f, "  rank 1 closes its listener, and rank 0 calls it once more")?;
        }
        if self.causal {
            writeln!(f, "  no process waits before it sends")?;
            if self.stays && self.replicas == 1 {
                writeln!(f, "  what is received stays with its senders")?;
            }
        }
        if self.suspensions > 0 {
            writeln!(f, "  it is suspended {} times", self.suspensions)?;
        }
        if self.useless_images > 0 {
            writeln!(f, "  one in {} images does not restore", self.useless_images)?;
        }
        if self.killed_late > 0 {
            writeln!(f, "  one in {} processes is killed when it was let go", self.killed_late)?;
        }
        writeln!(
            f,
            "  durable: {durable}, checkpoints every {interval:?}, a call every {pace:?}, {quota} bytes each way, restart on {restart_on:?}"
        )?;
        for (when, fault) in &self.faults {
            match when {
                When::At(at) => writeln!(f, "  {at:?} after the start: {}", Told(*fault))?,
                When::After(event, nth, after) => {
                    writeln!(f, "  {after:?} after event {} no. {nth}: {}", event.as_str(), Told(*fault))?
                }
            }
        }
        Ok(())
    }
}

/// A fault, for people.
pub struct Told(pub Fault);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Fault::PowerOff(at) => write!(f, "n{} is switched off", at + 1),
            Fault::Kill(at) => write!(f, "the protector of n{} is killed", at + 1),
            Fault::Pause(at, time) => write!(f, "n{} stands still for {time:?}", at + 1),
            Fault::Hang(at, time) => write!(f, "the protector of n{} hangs for {time:?}", at + 1),
            Fault::Cut(at, time) => write!(f, "n{} is cut off for {time:?}", at + 1),
            Fault::Split(at, time) => write!(f, "n1 to n{at} and the others are cut off from each other for {time:?}"),
            Fault::Part(a, b, time) => write!(f, "n{} and n{} are cut off from each other for {time:?}", a + 1, b + 1),
            Fault::Break(count) => write!(f, "{count} connections break"),
            Fault::Crash(rank) => write!(f, "rank {rank} crashes"),
            Fault::Stop(rank) => write!(f, "rank {rank} is stopped"),
            Fault::SlowLinks(at, more, time) => write!(f, "links of n{} take {more:?} longer for {time:?}", at + 1),
            Fault::SlowDisk(at, more, time) => write!(f, "the disk of n{} takes up to {more:?} longer for {time:?}", at + 1),
            Fault::Return(at) => write!(f, "n{} is switched on again", at + 1),
        }
    }
}
