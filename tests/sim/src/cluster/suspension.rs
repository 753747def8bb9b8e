//! `radic suspend`: has the ranks stopped, reads what their logs hold at one moment, and ends the job. Written after `tools/src/suspend/`. What it has written goes on by
//! [`super::resumption`].

use std::collections::BTreeMap;
use std::time::Duration;

use radic_protector::node::{ClientId, Input, Node};
use radic_protector::store::Place;
use radic_wire::causes::{Elsewhere, NotWhole};
use radic_wire::ids::{Incarnation, ProcessId, Rank};
use radic_wire::job::{EndReason, ExitStatus, Outcome, OutputStream};
use radic_wire::local::{Reply, Request};
use radic_wire::log::{HeldImage, HeldLog, HeldStream, ImageState, LogPart};
use radic_wire::span::Span;
use radic_wire::suspension::Suspension;

use super::machine::name;
use super::process::Process;
use super::queue::Event;
use super::resumption::Resuming;
use super::world::World;

/// The first number of a command; a terminal that takes its place counts on from there.
const COMMAND: u64 = 1 << 20;
/// The first number of its questions for logs.
const LOGS: u64 = 1 << 10;
/// Time until a command gives up.
const PATIENCE: Duration = Duration::from_secs(30);
/// So often the suspension of a job is tried, and that it goes on.
const TRIES: u32 = 12;
const RESUMES: u32 = 100;

/// What is saved of a rank.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as `radic_wire::suspension::SavedRank` has them")]
pub struct SavedRank {
    pub incarnation: Incarnation,
    pub images: Vec<(HeldImage, Vec<u8>)>,
    pub journal: (Span, Vec<u8>),
    pub streams: Vec<(HeldStream, Vec<u8>)>,
}

/// A folder.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as `radic_wire::suspension::Manifest` has them")]
pub struct Folder {
    pub suspension: Box<Suspension>,
    pub unprinted: Vec<(Rank, u64, Vec<u8>)>,
    pub ranks: Vec<SavedRank>,
}

/// The logs of all ranks, each with the machine that holds it.
type Logs = BTreeMap<Rank, (usize, HeldLog)>;

/// How far the command is.
#[derive(Debug, Default)]
pub enum Stage {
    /// None runs.
    #[default]
    Idle,
    /// The ranks are to stop; this output has come, which nobody has printed.
    Stopping(Vec<(Rank, u64, Vec<u8>)>),
    /// They are, and the logs are listed.
    Listing(Box<Suspension>, Vec<(Rank, u64, Vec<u8>)>, Logs),
    /// The job is to end.
    Ending(Folder),
    /// It has ended.
    Away(Folder),
    /// It is to go on.
    Resuming(Folder, Resuming),
}

/// What is not known when a command was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsure {
    /// Whether the job has ended, which is written down.
    Ended,
    /// Whether it has gone on.
    GoneOn,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Command {
    /// Which one it is of all.
    pub number: u64,
    /// The machine that it runs on.
    pub at: usize,
    /// How far it is.
    pub stage: Stage,
    tries: u32,
    resumes: u32,
    /// What no command knows.
    pub unsure: Option<Unsure>,
}

impl Command {
    /// Its number, as a client of its node.
    pub fn client(&self) -> u64 {
        self.number * COMMAND
    }

    /// Whether the job is in a folder, and nowhere else.
    pub fn is_away(&self) -> bool {
        matches!(self.stage, Stage::Away(_) | Stage::Resuming(..))
    }

    /// Whether it has written the job down, and waits for its end.
    pub fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Ending(_))
    }

    /// Whether it was tried often enough that the job goes on, this time included.
    pub fn is_tried_enough(&mut self) -> bool {
        self.resumes += 1;
        self.resumes > RESUMES
    }

    /// The job goes on: the next suspension is another one.
    pub fn resumed(&mut self) {
        (self.number, self.tries, self.resumes) = (self.number + 1, 0, 0);
    }

    fn owns(&self, client: u64) -> bool {
        self.number > 0 && client / COMMAND == self.number && client % COMMAND < LOGS + LOGS
    }
}

/// What a log holds, for people.
fn told(log: &HeldLog) -> String {
    let HeldLog { incarnation, journal, stable, causes, forgotten, images, .. } = log;
    let cuts: Vec<_> = images.iter().map(|image| (image.image, image.cut, image.state)).collect();
    format!(
        "incarnation {incarnation}, journal {journal:?}, stable {stable}, causes {causes:?}, forgotten {forgotten:?}, images {cuts:?}"
    )
}

impl World {
    /// The command asks its node.
    pub fn command_asks(&mut self, client: u64, request: Request) {
        self.input_soon(
            self.command.at,
            Input::Client(ClientId(client), Request::Hello { version: radic_wire::PROTOCOL_VERSION }),
        );
        self.command_says(client, request);
    }

    /// The same, once more.
    pub fn command_says(&mut self, client: u64, request: Request) {
        self.input_soon(self.command.at, Input::Client(ClientId(client), request));
    }

    /// A machine for a command. None: all are off.
    pub fn place_command(&mut self) -> bool {
        let up: Vec<usize> = (0..self.machines.len()).filter(|at| self.is_up(*at)).collect();
        let Some(at) = up.get(self.dice.below(up.len().max(1))).copied() else { return false };
        self.command.at = at;
        self.command.number += 1;
        let number = self.command.number;
        self.schedule(self.now + PATIENCE, Event::Command(number, true));
        true
    }

    /// The next command of this kind begins so much later.
    pub fn command_later(&mut self, most_ms: usize) {
        let (after, number) = (Duration::from_millis(50 + self.dice.below(most_ms) as u64), self.command.number);
        self.schedule(self.now + after, Event::Command(number, false));
    }

    /// It is time for a command to begin, or to give up.
    pub fn command_due(&mut self, number: u64, is_late: bool) {
        if number != self.command.number || self.terminal.outcome.is_some() {
            return;
        }
        match &self.command.stage {
            Stage::Idle if !is_late => self.suspend(),
            Stage::Away(_) if !is_late => self.resume(),
            Stage::Idle | Stage::Away(_) => {}
            _ if is_late => self.give_up_command("it takes too long"),
            _ => {}
        }
    }

    fn suspend(&mut self) {
        let Some(job) = self.terminal.job().filter(|_| self.place_command()) else { return self.suspend_again() };
        let at = self.command.at;
        self.trace(|| format!("a command on n{} suspends the job", at + 1));
        self.command.stage = Stage::Stopping(Vec::new());
        self.command_asks(self.command.client(), Request::Suspend { job: job.to_string() });
    }

    fn suspend_again(&mut self) {
        self.command.tries += 1;
        self.command.stage = Stage::Idle;
        if self.command.tries < TRIES {
            self.command_later(500);
        }
    }

    /// The command ends: it was killed, or it cannot go on.
    pub fn give_up_command(&mut self, why: &str) {
        self.trace(|| format!("the command gives up: {why}"));
        self.hang_up(self.command.at, self.command.client());
        match std::mem::take(&mut self.command.stage) {
            Stage::Idle => {}
            Stage::Stopping(_) | Stage::Listing(..) => self.suspend_again(),
            // The folder says that the job may have gone on: nobody goes on from there.
            Stage::Ending(_) => self.command.unsure = Some(Unsure::Ended),
            stage @ Stage::Away(_) => self.command.stage = stage,
            Stage::Resuming(folder, resuming) => self.give_up_resuming(folder, resuming),
        }
    }

    /// A machine is lost.
    pub fn lose_command(&mut self, at: usize) {
        let runs = !matches!(self.command.stage, Stage::Idle | Stage::Away(_));
        if runs && self.command.at == at {
            self.give_up_command("its machine is lost");
        }
    }

    /// Whether an answer is the command's.
    pub fn is_for_command(&self, at: usize, client: u64) -> bool {
        self.command.at == at && self.command.owns(client)
    }

    /// The command hears something.
    pub fn command_hears(&mut self, client: u64, reply: Reply) {
        match (&mut self.command.stage, reply) {
            (_, Reply::Welcome { .. }) => {}
            (Stage::Stopping(unprinted), Reply::Output { rank, stream: OutputStream::Stdout, offset, data }) => {
                unprinted.push((rank, offset, data.into_vec()));
            }
            (Stage::Stopping(unprinted), Reply::Suspending(suspension)) => {
                let unprinted = std::mem::take(unprinted);
                self.command.stage = Stage::Listing(suspension, unprinted, Logs::new());
                self.list_logs();
            }
            (Stage::Listing(..), Reply::Log(node, log)) => self.note_log(client, &node.to_string(), log),
            (Stage::Ending(_), Reply::Done) => self.handle_suspended(),
            (Stage::Resuming(..), reply) => self.resuming_hears(reply),
            (_, Reply::Error(text)) => self.give_up_command(&text),
            _ => {}
        }
    }

    /// The command, or the terminal, hears that the job is suspended.
    pub fn handle_suspended(&mut self) {
        let Stage::Ending(folder) = std::mem::take(&mut self.command.stage) else { return };
        self.trace(|| "the job is suspended".to_owned());
        self.counts.suspensions += 1;
        for (rank, saved) in (0..).map(Rank).zip(&folder.ranks) {
            let process = ProcessId { job: folder.suspension.job, rank };
            let units = |of: &HeldStream| of.bytes.end + u64::from(of.ended == Some(of.bytes.end));
            let open = saved.streams.iter().filter(|(of, _)| !of.closed);
            let held: Vec<_> = open.map(|(of, _)| (of.stream, units(of), of.ended)).collect();
            self.checks.handle_suspended(process, saved.journal.0.end);
            self.checks.undo(process, saved.journal.0.end, &held);
            self.pasts.undo(process, saved.journal.0.end);
        }
        self.command.stage = Stage::Away(folder);
        self.leave_terminal();
        self.command_later(1_500);
    }

    /// The terminal hears how the job has ended; whether that is the end.
    pub fn is_end(&mut self, outcome: &Outcome) -> bool {
        if outcome.reason != EndReason::Suspended {
            return true;
        }
        self.handle_suspended();
        if self.command.unsure == Some(Unsure::Ended) {
            return true;
        }
        if !self.command.is_away() {
            // That was the end of the suspension before, as a node knows it that is cut off since.
            self.lose_terminal(self.terminal.at());
        }
        false
    }

    fn list_logs(&mut self) {
        let Stage::Listing(suspension, ..) = &self.command.stage else { return };
        let (job, ranks) = (suspension.job.to_string(), suspension.ward.spec.ranks);
        for rank in 0..ranks {
            let client = self.command.client() + LOGS + u64::from(rank);
            self.command_asks(client, Request::Log { job: job.clone(), rank: Rank(rank) });
        }
    }

    fn note_log(&mut self, client: u64, node: &str, log: HeldLog) {
        let Some(at) = (0..self.machines.len()).find(|at| name(*at).to_string() == *node) else { return };
        let Stage::Listing(suspension, _, logs) = &mut self.command.stage else { return };
        let rank = Rank((client % COMMAND - LOGS) as u32);
        let text = format!("the log of {rank} on n{}: {}", at + 1, told(&log));
        logs.insert(rank, (at, log));
        let is_complete = logs.len() == suspension.ward.spec.ranks as usize;
        self.trace(|| text);
        if !is_complete {
            return;
        }
        match self.read_logs() {
            Ok(Some(ranks)) => self.end_suspended(ranks),
            Ok(None) => self.give_up_command("what the protectors hold has changed"),
            Err(error) => {
                assert!(!self.checks.counts() || self.is_excused(), "G1: what is suspended is not whole: {error}");
                self.give_up_command(&error.to_string());
            }
        }
    }

    /// All that the logs hold at one moment, each journal with what the other logs keep of it. None: they have changed since they were listed.
    fn read_logs(&self) -> Result<Option<Vec<SavedRank>>, NotWhole> {
        let Stage::Listing(suspension, _, logs) = &self.command.stage else { return Ok(None) };
        let process = |rank: &Rank| ProcessId { job: suspension.job, rank: *rank };
        let same = |(rank, (at, log)): (&Rank, &(usize, HeldLog))| {
            let is_up = self.machines[*at].power && self.machines[*at].node.is_some();
            is_up
                && log.current
                && log.incarnation.epoch == suspension.ward.epoch
                && self.machines[*at].logs.server.store().list(process(rank)).as_ref() == Some(log)
        };
        if !logs.iter().all(same) || HeldLog::of_two_lines(logs.values().map(|(_, log)| log)).is_some() {
            return Ok(None);
        }
        let read = |rank: &Rank, part, Span { start, end }: Span| {
            self.read_part(logs[rank].0, process(rank), part, start, (end - start) as usize)
        };
        let sets: Vec<_> = logs.iter().map(|(rank, (_, log))| (*rank, read(rank, LogPart::Causes, log.causes))).collect();
        let mut elsewhere = Elsewhere::default();
        for (rank, set) in &sets {
            elsewhere.add(*rank, set, &logs[rank].1.forgotten).expect("a store holds whole causes");
        }
        let mut ranks = Vec::new();
        for (rank, (_, log)) in logs {
            let committed = log.images.iter().filter(|image| image.state == ImageState::Committed).cloned();
            let images: Vec<_> = committed
                .map(|of| (of.clone(), read(rank, LogPart::Image(of.image), Span { start: 0, end: of.bytes })))
                .collect();
            let Some((HeldImage { cut, .. }, _)) = images.last() else { return Ok(None) };
            let mut journal = Span { start: *cut, end: log.journal.end };
            let mut bytes = read(rank, LogPart::Journal, journal);
            let own =
                |from: u64, length: usize| Ok(read(rank, LogPart::Journal, Span { start: from, end: from + length as u64 }));
            if !self.breaks.alone {
                bytes.extend(elsewhere.rest::<NotWhole>(*rank, journal, own)?);
            }
            journal.end = *cut + bytes.len() as u64;
            let open = log
                .streams
                .iter()
                .map(|of| (of.clone(), if of.closed { Vec::new() } else { read(rank, LogPart::Stream(of.stream), of.bytes) }));
            let streams = open.collect();
            ranks.push(SavedRank { incarnation: log.incarnation, images, journal: (journal, bytes), streams });
        }
        Ok(Some(ranks))
    }

    /// Bytes of what a store holds.
    fn read_part(&self, at: usize, process: ProcessId, part: LogPart, position: u64, length: usize) -> Vec<u8> {
        let (logs, mut bytes) = (&self.machines[at].logs, Vec::new());
        while bytes.len() < length {
            let from = position + bytes.len() as u64;
            let more = match logs.server.store().find(process, part, from, length - bytes.len()) {
                Some(Place::Memory(piece)) => piece,
                Some(Place::File(file, count)) => logs.files[&file][from as usize..from as usize + count].to_vec(),
                None => Vec::new(),
            };
            assert!(!more.is_empty(), "G6: {part:?} of {process} is not held at {from}");
            bytes.extend(more);
        }
        bytes
    }

    fn end_suspended(&mut self, ranks: Vec<SavedRank>) {
        let Stage::Listing(suspension, unprinted, _) = std::mem::take(&mut self.command.stage) else { return };
        let ends: BTreeMap<Rank, u64> = (0..).map(Rank).zip(&ranks).map(|(rank, saved)| (rank, saved.journal.0.end)).collect();
        self.check_suspended(suspension.job, &ends);
        for (rank, end) in ends.iter().filter(|_| self.checks.counts()) {
            let acked = self.checks.stable(ProcessId { job: suspension.job, rank: *rank });
            assert!(acked <= *end, "G1: rank {rank} was acknowledged {acked}, and its suspended journal ends at {end}");
        }
        self.trace(|| format!("the job is written down, its journals up to {ends:?}"));
        self.command.stage = Stage::Ending(Folder { suspension, unprinted, ranks });
        self.command_says(self.command.client(), Request::EndSuspended);
    }

    /// It is decided how the job ends, by its ranks' own ends or by a loss or a crash that nothing makes good: a rank that is on its way back finds the others gone, and nothing of it
    /// counts any more.
    pub fn is_ended_by_its_home(&self) -> bool {
        let is_there = |at: usize| self.is_up(at) && !self.is_declared_dead(at);
        let is_ended = |process: &Process| {
            let is_of_now = process.incarnation().is_some_and(|incarnation| self.checks.is_of_now(process.id, incarnation));
            process.ended == Some(ExitStatus::Signal(libc::SIGTERM)) && is_of_now && !self.is_declared_dead(process.machine)
        };
        let is_over = self.over.is_some_and(|(at, is_lost)| !is_lost && is_there(at));
        let epoch = Some(self.checks.epoch);
        let ends = |node: &Node, job| node.has_decided_end(job) && node.epoch_at_home(job) == epoch;
        let ends_here = |at: usize, job| self.machines[at].node.as_ref().is_some_and(|node| ends(node, job));
        let is_ending = |job| (0..self.machines.len()).any(|at| is_there(at) && ends_here(at, job));
        is_over || self.processes.iter().any(is_ended) || self.terminal.job().is_some_and(is_ending)
    }

    /// Whether something of a process may be lost that others depend on: the job begins anew when that is noticed.
    fn is_excused(&self) -> bool {
        let breaks = self.breaks;
        breaks.forgetful || breaks.unclosed || breaks.unlearned || breaks.silent
    }
}
