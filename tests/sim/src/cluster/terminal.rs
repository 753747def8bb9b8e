//! The terminal: it starts the job, shows what that prints, and looks for another node when its own is gone.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use radic_protector::node::{ClientId, Input};
use radic_wire::ids::{JobId, ProcessId, Rank};
use radic_wire::job::{EndReason, JobSpec, MapBy, OnLoss, Outcome, OutputStream};
use radic_wire::local::{Reply, Request};
use radic_wire::process::{Interval, LogMode, PayloadMode, Protect, Protection};
use serde_bytes::ByteBuf;

use super::check::covers;
use super::machine::name;
use super::plan::When;
use super::queue::Event;
use super::world::World;

/// Time until the terminal tries another node, and for how long it does: longer than a side without a majority keeps a job.
const ATTACH: Duration = Duration::from_millis(300);
const SEARCH: Duration = Duration::from_secs(150);

/// The terminal that has started the job.
#[derive(Debug, Default)]
pub struct Terminal {
    /// Of each rank.
    pub printed: BTreeMap<Rank, Vec<u8>>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// The job that it shows.
    pub job: Option<JobId>,
    /// The machine that it is connected to, and how often it has connected.
    pub at: usize,
    /// See `at`.
    pub calls: u64,
    /// Since when it looks for a node that knows the job, and whether it has given up.
    since: Option<Duration>,
    /// It has.
    pub gave_up: bool,
    /// Offset after the last byte of standard input that it has sent.
    pub input_sent: u64,
    /// Of each rank, what it was never shown though it went on after it.
    holes: BTreeMap<Rank, Vec<Range<usize>>>,
}

impl Terminal {
    /// The machine that it is connected to.
    pub fn at(&self) -> usize {
        self.at
    }

    /// What it shows.
    pub fn job(&self) -> Option<JobId> {
        self.job
    }

    /// Whether it was never shown what a rank has printed here.
    pub fn is_hole(&self, rank: Rank, at: usize) -> bool {
        self.holes.get(&rank).is_some_and(|holes| holes.iter().any(|hole| hole.contains(&at)))
    }
}

impl World {
    /// The terminal says something to the node that it is connected to.
    pub fn ask(&mut self, request: Request) {
        let Terminal { at, calls, .. } = self.terminal;
        self.input_soon(at, Input::Client(ClientId(calls), request));
    }

    /// The terminal starts the job; the plan's faults begin to count.
    pub fn start_job(&mut self) {
        self.started = Some(self.now);
        let is_quiet = self.plan.quiet.is_some();
        let hosts = if is_quiet { 0..0 } else { 1..self.plan.machines - self.plan.spares };
        let interval = Interval::Every(self.plan.interval.as_millis() as u64);
        let protection = Protection {
            protect: Protect::On,
            // Each rank makes one image, when it has begun.
            interval: if is_quiet { Interval::Never } else { interval },
            replicas: self.plan.replicas,
            log_mode: if self.plan.causal { LogMode::Causal } else { LogMode::Waiting },
            payload: if self.plan.stays { PayloadMode::Sender } else { PayloadMode::Log },
            outbox: Some(1 << 20),
            log: 1 << 20,
            keep_logs: false,
            record_time: true,
            record_tsc: false,
        };
        let spec = JobSpec {
            program: ByteBuf::from("/bin/program"),
            args: vec![ByteBuf::from("program")],
            env: vec![],
            templates: vec![],
            dir: ByteBuf::from("/"),
            ranks: self.plan.ranks,
            nodes: hosts.map(name).collect(),
            map_by: MapBy::Node,
            umask: 0o022,
            protection,
            mtbf_s: 86_400,
            restart_on: self.plan.restart_on,
            on_loss: OnLoss::Restart,
            life: 0,
        };
        self.ask(Request::Hello { version: radic_wire::PROTOCOL_VERSION });
        self.ask(Request::Run { spec: Box::new(spec), attach: !is_quiet });
        self.plan_suspension();
        for (when, fault) in std::mem::take(&mut self.pending) {
            match when {
                When::At(at) => self.schedule(self.now + at, Event::Fault(fault)),
                When::After(..) => self.pending.push((when, fault)),
            }
        }
    }

    /// The terminal hears something.
    pub fn hear_reply(&mut self, reply: Reply) {
        match reply {
            Reply::Attached { job, .. } => {
                (self.terminal.job, self.terminal.since) = (Some(job), None);
                if self.plan.quiet.is_some() {
                    self.leave_terminal();
                }
            }
            Reply::Output { rank, stream: OutputStream::Stdout, offset, data, .. } => {
                self.show(rank, offset, &data);
                self.ask(Request::Printed(data.len() as u64));
            }
            Reply::StdinFrom(from) => self.send_input(from),
            Reply::Ended(outcome) => {
                self.trace(|| format!("the job has ended: {outcome:?}"));
                if self.is_end(&outcome) {
                    self.terminal.outcome = Some(outcome);
                }
            }
            Reply::Error(text) => {
                assert!(self.terminal.calls > 0, "end: the job was refused: {text}");
                self.lose_terminal(self.terminal.at);
            }
            _ => {}
        }
    }

    /// Prints what was not printed before, and only what was not.
    pub(super) fn show(&mut self, rank: Rank, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return; // The end of a stream.
        }
        self.trace(|| format!("the terminal shows {data:?} of {rank} at {offset}"));
        let again = self.terminal.calls > 0;
        let printed = self.terminal.printed.entry(rank).or_default();
        let offset = offset as usize;
        let missing = printed.len()..offset;
        if again && !missing.is_empty() && self.lost_with_homes(rank).any(|lost| covers(&lost, &missing)) {
            self.counts.limits += 1;
            self.terminal.holes.entry(rank).or_default().push(missing);
            self.terminal.printed.entry(rank).or_default().resize(offset, 0);
        }
        let old = self.terminal.job.map_or(0, |job| self.printed_before(ProcessId { job, rank }));
        let printed = self.terminal.printed.entry(rank).or_default();
        // Another terminal may be told what the one before had printed, if that one was lost before it said so.
        assert!(offset == printed.len() || again && offset < printed.len(), "G3: output of {rank} goes on at {offset}");
        let known = (printed.len() - offset).min(data.len());
        let is_hole = |at: usize| self.terminal.holes.get(&rank).is_some_and(|holes| holes.iter().any(|hole| hole.contains(&at)));
        // What was printed in an earlier epoch is not printed again, whatever it would be now.
        let same = (offset..offset + known).all(|at| at < old || printed[at] == data[at - offset] || is_hole(at));
        assert!(same, "G3: other output of {rank} at {offset}");
        let lost = usize::from(self.breaks.output && known < data.len());
        printed.extend(&data[known + lost..]);
    }

    /// The terminal connects again.
    pub fn attach(&mut self) {
        if self.command.is_away() {
            return;
        }
        let since = *self.terminal.since.get_or_insert(self.now);
        let Some(job) = self.terminal.job.filter(|_| self.now < since + SEARCH) else {
            return self.give_up_terminal();
        };
        self.terminal.calls += 1;
        let up: Vec<usize> = (0..self.machines.len()).filter(|at| self.is_up(*at)).collect();
        let Some(at) = up.get(self.dice.below(up.len())).copied() else { return self.schedule(self.now + ATTACH, Event::Attach) };
        self.trace(|| format!("the terminal connects to n{}", at + 1));
        self.terminal.at = at;
        self.ask(Request::Hello { version: radic_wire::PROTOCOL_VERSION });
        self.ask(Request::Attach { job: job.to_string() });
    }

    /// The terminal finds the job nowhere, and no way for it to go on.
    pub fn give_up_terminal(&mut self) {
        self.terminal.gave_up = true;
        let (node, ranks, why) = (name(0), Vec::new(), "its terminal finds it nowhere".to_owned());
        self.terminal.outcome = Some(Outcome { code: 113, reason: EndReason::NodeLost { node, ranks, why } });
    }

    /// A command, or the terminal, ends its connection to a machine, if it has one.
    pub fn hang_up(&mut self, at: usize, client: u64) {
        if at != usize::MAX && self.is_up(at) {
            self.input_soon(at, Input::ClientGone(ClientId(client)));
        }
    }

    /// Its job is suspended, or another command is the terminal from now on: it has one connection at most, and what it has asked for there is void.
    pub fn leave_terminal(&mut self) {
        self.hang_up(self.terminal.at, self.terminal.calls);
        (self.terminal.at, self.terminal.since) = (usize::MAX, None);
    }

    /// A command has resumed the job, and is its terminal from now on.
    pub fn terminal_goes_on(&mut self, at: usize, client: u64) {
        self.leave_terminal();
        (self.terminal.at, self.terminal.calls, self.terminal.since) = (at, client, None);
    }

    /// It is not known whether the job has gone on.
    pub fn terminal_looks(&mut self) {
        self.leave_terminal();
        self.schedule(self.now + ATTACH, Event::Attach);
    }

    /// The next suspension, if the plan has one.
    pub fn plan_suspension(&mut self) {
        if let Some(left) = self.suspensions.checked_sub(1) {
            self.suspensions = left;
            self.command_later(800);
        }
    }

    /// The machine that the terminal is connected to is lost, perhaps, or knows nothing of the job: the terminal has one connection at most.
    pub fn lose_terminal(&mut self, at: usize) {
        if self.terminal.at == at && at != usize::MAX && self.terminal.outcome.is_none() && self.started.is_some() {
            self.terminal.at = usize::MAX;
            self.schedule(self.now + ATTACH, Event::Attach);
        }
    }
}
