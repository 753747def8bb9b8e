//! A simulated cluster: what there is, and how it goes on from event to event.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use radic_protector::node::Input;
use radic_protector::store::Speaker;
use radic_wire::event::EventName;
use radic_wire::ids::{Epoch, ProcessId, Rank};

use super::check::Checks;
use super::counts::{Breaks, Counts};
use super::formed::Formed;
use super::images::Saved;
use super::judge::Crashes;
use super::machine::Machine;
use super::net::Net;
use super::past::Pasts;
use super::plan::{Fault, Plan, When};
use super::process::Process;
use super::queue::{Event, Queue};
use super::suspension::Command;
use super::terminal::Terminal;
use crate::dice::Dice;
use crate::scale::watch::Watch;

/// Virtual time that a job may take, from its start: the longest waits of the protocol are of 60 s, and some follow each other.
const HANG: Duration = Duration::from_secs(400);
/// Events of one seed; one that has more goes round in circles.
const EVENTS: u64 = 4_000_000;

/// See the module's text.
#[expect(missing_docs, reason = "the names say it; what each is, its type does")]
pub struct World {
    pub plan: Plan,
    pub dice: Dice,
    pub now: Duration,
    pub queue: Queue,
    pub machines: Vec<Machine>,
    pub processes: Vec<Process>,
    pub net: Net,
    pub saved: Vec<Saved>,
    /// Where each process listens, as the programs of an epoch know it.
    pub addresses: BTreeMap<(ProcessId, Epoch), SocketAddr>,
    pub terminal: Terminal,
    /// The command that suspends the job, or resumes it.
    pub command: Command,
    /// Suspensions that have not been begun.
    pub suspensions: u32,
    pub checks: Checks,
    /// What each state depends on.
    pub pasts: Pasts,
    /// From which machine's log each incarnation was begun, and how often that machine had been switched on.
    pub brought_back: BTreeMap<Speaker, (usize, u32)>,
    pub counts: Counts,
    /// Of each rank, what homes that are lost have kept for the next terminal.
    pub kept: BTreeMap<Rank, Vec<Range<usize>>>,
    /// The home where the job has ended well, and whether it is lost: no other node knows how.
    pub over: Option<(usize, bool)>,
    pub crashes: Crashes,
    /// Processes that were killed when they had been let go.
    pub killed_late: BTreeSet<u32>,
    pub breaks: Breaks,
    /// What the nodes of a plan that is measured have had for some time.
    pub formed: Formed,
    /// The measurement, if there is one.
    pub watch: Option<Box<Watch>>,
    tracing: bool,
    /// When the job was started.
    pub started: Option<Duration>,
    /// Events that were recorded since.
    pub seen: BTreeMap<EventName, u32>,
    /// Faults that have not come.
    pub pending: Vec<(When, Fault)>,
    /// A digest of the trace.
    digest: u64,
}

impl World {
    /// The cluster of a plan; no job runs.
    pub fn new(mut plan: Plan, breaks: Breaks, tracing: bool) -> World {
        plan.stays &= plan.causal && plan.replicas == 1;
        let (queue, machines, processes, net, saved) = Default::default();
        let (command, suspensions) = (Command::default(), plan.suspensions);
        let (terminal, checks, pasts, counts, kept, over, crashes, started, seen) = Default::default();
        let (dice, pending) = (Dice::new(plan.seed), plan.faults.clone());
        let now = Duration::ZERO;
        let (formed, watch) = Default::default();
        let mut world = World {
            plan,
            dice,
            now,
            queue,
            machines,
            processes,
            net,
            saved,
            addresses: BTreeMap::new(),
            terminal,
            command,
            suspensions,
            checks,
            pasts,
            brought_back: BTreeMap::new(),
            counts,
            kept,
            over,
            crashes,
            killed_late: BTreeSet::new(),
            breaks,
            formed,
            watch,
            tracing,
            started,
            seen,
            pending,
            digest: 0,
        };
        world.machines = (0..world.plan.machines).map(|at| world.machine(at, 0)).collect();
        if world.plan.quiet.is_some() {
            world.form();
        }
        (0..world.plan.machines).for_each(|at| world.switch_on(at));
        world
    }

    /// Runs everything to its end.
    pub fn run(&mut self) {
        let all = self.plan.machines;
        self.run_until(Duration::from_secs(60), |world| {
            let complete = |m: &Machine| m.node.as_ref().and_then(|n| n.view()).is_some_and(|view| view.members.len() == all);
            world.machines.iter().all(complete)
        });
        self.start_job();
        self.run_until(HANG, |world| world.terminal.outcome.is_some());
        self.check_outcome();
        self.settle();
        self.counts.virtual_ms = self.now.as_millis() as u64;
        self.counts.job_restarts = self.checks.epoch.count.into();
    }

    /// A digest of all that has happened.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    fn run_until(&mut self, limit: Duration, done: impl Fn(&World) -> bool) {
        let until = self.now + limit;
        while !done(self) {
            assert!(self.now < until, "hang: nothing came of it in {limit:?} of virtual time\n{}", self.standing());
            assert!(self.counts.events < EVENTS, "hang: {EVENTS} events, and no end\n{}", self.standing());
            self.next();
        }
    }

    /// The next thing happens.
    pub fn next(&mut self) {
        let Some((at, event)) = self.queue.pop() else { panic!("hang: nothing is going to happen") };
        self.now = at;
        self.counts.events += 1;
        self.happen(event);
    }

    /// Tells what happens, if the run is traced.
    pub fn trace(&self, what: impl FnOnce() -> String) {
        if self.tracing {
            let text = what();
            let at = self.now.saturating_sub(self.started.unwrap_or_default());
            println!("{:>12.6} {text}", at.as_secs_f64());
        }
    }

    /// Something is going to happen.
    pub fn schedule(&mut self, at: Duration, event: Event) {
        self.queue.push(at, event);
    }

    /// For the node of a machine, in a moment.
    pub fn input_soon(&mut self, at: usize, input: Input) {
        let boot = self.machines[at].boot;
        self.schedule(self.now + super::LOCAL, Event::Input(at, boot, Box::new(input)));
    }

    fn happen(&mut self, event: Event) {
        let (at, boot) = match &event {
            Event::Input(at, boot, _) | Event::Tick(at, boot) | Event::Daemon(at, boot, _) | Event::Logs(at, boot, _) => {
                (*at, Some(*boot))
            }
            Event::OfProcess(at, boot, ..) => (*at, Some(*boot)),
            Event::ToProcess(pid, _) | Event::Begin(pid) | Event::Step(pid) | Event::Late(pid) | Event::OutputEnds(pid) => {
                (self.processes[*pid as usize].machine, None)
            }
            Event::Arrive(conn, side) => return self.arrive(*conn, *side),
            Event::Served(conn, side) => return self.take_in(*conn, *side),
            Event::Silent(conn, side) => (self.net.conns[*conn].ends[*side].machine, None),
            Event::Reply(..) | Event::Fault(_) | Event::Attach | Event::Command(..) => (usize::MAX, None),
        };
        if at != usize::MAX {
            match self.ready(at, boot) {
                None => return,
                Some(ready) if ready > self.now => return self.schedule(ready, event),
                Some(_) => {}
            }
        }
        self.note(&event);
        match event {
            Event::Arrive(..) | Event::Served(..) => unreachable!("handled above"),
            Event::Silent(conn, side) => self.end_silent(conn, side),
            Event::Input(at, _, input) => self.input(at, *input),
            Event::OfProcess(at, _, pid, input) => {
                let id = self.processes[pid as usize].id;
                if self.machines[at].ranks.get(&id) == Some(&pid) {
                    self.input(at, *input);
                }
            }
            Event::Tick(at, _) => self.tick(at),
            Event::Daemon(at, _, timer) => self.daemon_timer(at, timer),
            Event::Logs(at, _, done) => self.logs_done(at, done),
            Event::ToProcess(pid, message) => self.hear(pid, message.map(|message| *message)),
            Event::Begin(pid) => self.begin(pid),
            Event::Step(pid) => self.step(pid),
            Event::Late(pid) => self.kill_late(pid),
            Event::OutputEnds(pid) => self.end_output(pid),
            Event::Reply(at, client, reply) if (at, client) == (self.terminal.at, self.terminal.calls) => self.hear_reply(*reply),
            Event::Reply(at, client, reply) if self.is_for_command(at, client) => self.command_hears(client, *reply),
            Event::Reply(..) => {}
            Event::Attach => self.attach(),
            Event::Command(number, due) => self.command_due(number, due),
            Event::Fault(fault) => self.cause(fault),
        }
    }

    /// The same seed has the same digest.
    pub fn note(&mut self, event: &Event) {
        let kind = match event {
            Event::Arrive(conn, side) | Event::Served(conn, side) => 1 + 16 * (*conn as u64 * 2 + *side as u64),
            Event::Input(at, ..) => 2 + 16 * *at as u64,
            Event::OfProcess(_, _, pid, _) => 3 + 16 * u64::from(*pid),
            Event::Tick(at, _) => 4 + 16 * *at as u64,
            Event::Daemon(at, ..) => 5 + 16 * *at as u64,
            Event::Logs(at, ..) => 6 + 16 * *at as u64,
            Event::ToProcess(pid, _) => 7 + 16 * u64::from(*pid),
            Event::Begin(pid) => 8 + 16 * u64::from(*pid),
            Event::Step(pid) => 9 + 16 * u64::from(*pid),
            Event::Late(pid) => 16 * (u64::from(*pid) + 1),
            Event::OutputEnds(pid) => 15 + 16 * u64::from(*pid),
            Event::Reply(..) => 10,
            Event::Fault(_) => 11,
            Event::Attach => 12,
            Event::Command(..) => 14,
            Event::Silent(conn, side) => 13 + 16 * (*conn as u64 * 2 + *side as u64),
        };
        self.digest = crate::app::mix(self.digest ^ self.now.as_nanos() as u64, kind);
    }
}
