//! The daemon of one machine: the real [`Node`], and its processes.

use std::time::Duration;

use radic_protector::fetching::OrderNumber;
use radic_protector::node::host::{HostOutput, RestoreOrder};
use radic_protector::node::{Input, Node, ObserverId, Output};
use radic_wire::ids::{JobId, ProcessId};
use radic_wire::process::FromNode;

use super::queue::Event;
use super::world::World;

/// Timers.
#[derive(Debug, Clone, Copy)]
pub enum Timer {
    /// What decides about connections.
    Peers,
    /// What decides about heartbeats.
    Heartbeats,
    /// What decides about the images that an order names.
    Fetch(OrderNumber),
    /// A file of the machine's own log service is read, for an order.
    Opened(OrderNumber, u64),
}

impl World {
    fn node(&mut self, at: usize) -> &mut Node {
        self.machines[at].node.as_mut().expect("a daemon that is up has a node")
    }

    /// Something happened to the node.
    pub fn input(&mut self, at: usize, input: Input) {
        if !self.is_up(at) {
            return;
        }
        let now = self.now;
        self.node(at).handle(now, input);
        self.after_node(at);
    }

    /// What follows each thing that a daemon does, as in its loop: outputs, then timers.
    pub fn after_node(&mut self, at: usize) {
        let now = self.now;
        let due = loop {
            while self.is_up(at)
                && let Some(output) = self.node(at).poll_output()
            {
                self.carry_out(at, output);
            }
            if !self.is_up(at) {
                return;
            }
            match self.node(at).poll_timeout() {
                Some(due) if due <= now && self.machines[at].free <= now => self.node(at).handle_timeout(now),
                due => break due.map(|due| due.max(self.machines[at].free)),
            }
        };
        let boot = self.machines[at].boot;
        if let Some(due) = due.filter(|due| self.machines[at].tick.is_none_or(|tick| *due < tick || tick <= now)) {
            self.machines[at].tick = Some(due);
            self.schedule(due, Event::Tick(at, boot));
        }
        self.check_view(at);
        self.measure_view(at);
        self.check_home(at);
        self.note_knowledge(at);
    }

    fn carry_out(&mut self, at: usize, output: Output) {
        match output {
            Output::Send(to, message) => {
                self.check_launch(at, &message);
                self.measure_sent(at, &message);
                self.drive_peers(at, |machine, now| machine.send(now, &to, message));
            }
            Output::SendToSeed(seed, message) => {
                self.measure_join(at, &message);
                self.drive_peers(at, |machine, now| machine.send_to_seed(now, seed, &message));
            }
            Output::Heartbeat(to, view) => {
                self.measure_beat(at);
                self.heartbeat(at, to, view);
            }
            Output::Probe(member) => {
                self.measure_probe(at);
                self.probe(at, member);
            }
            Output::Reply(client, reply) => {
                self.schedule(self.now + super::LOCAL, Event::Reply(at, client.0, Box::new(reply)));
            }
            Output::CloseClient(_) => {}
            Output::Process(job, output) => self.process_output(at, job, output),
            Output::Observer(observer, message) => self.tell_observer(observer, Some(Box::new(message))),
            Output::CloseObserver(observer) => self.tell_observer(observer, None),
            Output::Nudge(observer) => {
                if let Some(pid) = self.program_of(observer) {
                    self.step_at(pid, self.now + super::LOCAL);
                }
            }
            Output::Store(order) => self.order_store(at, order),
            Output::Members(count) => self.drive_peers(at, |machine, now| machine.handle_members(now, count)),
            Output::Forget(node) => self.drive_peers(at, |machine, now| machine.forget(now, &node)),
            Output::Log(event) => self.handle_event(at, &event),
            Output::Ready(view) => {
                self.machines[at].logs.server.handle_member();
                self.trace(|| format!("n{} is a member in view {view}", at + 1));
            }
            Output::Stop(why) => {
                self.trace(|| format!("n{} ends: {why:?}", at + 1));
                self.measure_stop(at);
                self.kill_daemon(at);
            }
            Output::Die => self.kill_daemon(at),
            Output::Fault(_) => unreachable!("faults are the plan's"),
        }
    }

    /// The process whose program this is; none, if it has executed another one since.
    fn program_of(&self, observer: ObserverId) -> Option<u32> {
        let pid = observer.0 as u32;
        (self.processes[pid as usize].observer_id(pid) == observer).then_some(pid)
    }

    fn tell_observer(&mut self, observer: ObserverId, message: Option<Box<FromNode>>) {
        if let Some(pid) = self.program_of(observer) {
            self.schedule(self.now + super::LOCAL, Event::ToProcess(pid, message));
        }
    }

    /// Something is due later, unless the machine has been switched off by then.
    pub fn daemon_later(&mut self, at: usize, after: Duration, timer: Timer) {
        let boot = self.machines[at].boot;
        self.schedule(self.now + after, Event::Daemon(at, boot, timer));
    }

    /// A timer of the daemon.
    pub fn daemon_timer(&mut self, at: usize, timer: Timer) {
        match timer {
            Timer::Peers => self.peers_due(at),
            Timer::Heartbeats => self.heartbeats_due(at),
            Timer::Fetch(number) => self.fetch_due(at, number),
            Timer::Opened(number, image) => self.image_opened(at, number, image),
        }
    }
}

/// Its processes.
impl World {
    fn process_output(&mut self, at: usize, job: JobId, output: HostOutput) {
        let id = |rank| ProcessId { job, rank };
        match output {
            HostOutput::Spawn(rank, _) => {
                self.note_begun(at, job);
                self.spawn(at, id(rank));
            }
            HostOutput::Restore(_, order) => self.drive_orders(at, |orders| orders.handle_order(order)),
            HostOutput::Stdin { number, data } => self.give_input(at, job, number, data),
            HostOutput::Read(rank, stream) => {
                if let Some(pid) = self.machines[at].ranks.get(&id(rank)).copied() {
                    self.want_output(pid, stream);
                }
            }
            HostOutput::Signal(rank, signal) => self.signal(at, id(rank), signal),
            HostOutput::Over => {
                self.measure_miss(|| format!("the job is over on node {at}"));
                self.forget_orders(at, |process| process.job == job);
            }
            HostOutput::Close(..) | HostOutput::Pmi(..) => {}
            HostOutput::ToHome(_) | HostOutput::Name(..) | HostOutput::Lost(..) => unreachable!(),
            HostOutput::Warning(..) | HostOutput::Note(..) => unreachable!(),
            HostOutput::Unrestorable(..) | HostOutput::Left(_) | HostOutput::Fenced | HostOutput::Frozen => unreachable!(),
        }
    }

    fn signal(&mut self, at: usize, process: ProcessId, signal: i32) {
        self.measure_miss(|| format!("rank {} is sent signal {signal}", process.rank.0));
        if let (libc::SIGSTOP | libc::SIGCONT, Some(pid)) = (signal, self.machines[at].ranks.get(&process).copied()) {
            return if signal == libc::SIGSTOP { self.stop(pid) } else { self.continue_after_stop(pid) };
        }
        // The programs of the simulation end by the same signals.
        if !RestoreOrder::is_given_up_by(signal) {
            return;
        }
        if self.drive_orders(at, |orders| orders.give_up(process)) {
            return;
        }
        if let Some(pid) = self.machines[at].ranks.get(&process).copied() {
            self.end_process(pid, radic_wire::job::ExitStatus::Signal(signal));
        }
    }
}
