//! `radic suspend`: its connections to nodes, and its folder. What it does next says [`Suspend`]. What it has written goes on by [`super::resumption`].

use std::collections::BTreeMap;
use std::time::Duration;

use radic_protector::commands::file::{File, SavedLog};
use radic_protector::commands::suspend::{Action, Failure, Over, Saved, Suspend};
use radic_protector::node::{ClientId, Input, Node};
use radic_wire::ids::{ProcessId, Rank};
use radic_wire::job::{EndReason, ExitStatus, Outcome};
use radic_wire::local::{Reply, Request};
use radic_wire::log::{HeldLog, HeldStream, LogPart};
use radic_wire::mac::MAC;
use radic_wire::report::RankCheckpoint;
use radic_wire::span::Span;
use radic_wire::suspension::{Manifest, SavedFile};

use super::process::Process;
use super::queue::{Due, Event};
use super::resumption::Resuming;
use super::world::World;
use crate::dice::Dice;

/// The first number of a command; a terminal that takes its place counts on from there.
const COMMAND: u64 = 1 << 20;
/// The first number of its questions.
const QUESTIONS: u64 = 1 << 10;
/// Time until a command is ended by its user.
const PATIENCE: Duration = Duration::from_secs(30);
/// So often the suspension of a job is tried, and that it goes on.
const TRIES: u32 = 12;
const RESUMES: u32 = 100;

/// One of so many commands hangs, before one of so many actions: for less time than its node waits for it, or for more.
const HANGS: usize = 8;
const ACTIONS: usize = 60;
const SHORT: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(100);

/// What is said of a log that has not what it was listed with.
const NOT_HELD: &str = "is not held";

/// A folder.
#[derive(Debug, Clone)]
pub struct Folder {
    /// The list of its files.
    pub manifest: Manifest,
    /// They.
    pub files: BTreeMap<(Rank, File), Vec<u8>>,
}

/// What is asked of a node, by a connection of its own.
#[derive(Debug)]
enum Question {
    /// What has come of checkpoints.
    Checkpoints(Vec<RankCheckpoint>),
    /// What a log holds.
    List,
    /// Bytes of the log of a rank.
    Read(Rank, Option<Reading>),
}

/// What is read of a log, and what has come.
#[derive(Debug)]
struct Reading {
    part: LogPart,
    span: Span,
    bytes: Vec<u8>,
    /// It goes to the file that is open.
    is_copy: bool,
}

impl Reading {
    fn request(&self) -> Request {
        Request::ReadLog { part: self.part, position: self.span.start + self.bytes.len() as u64 }
    }
}

/// A job that is being suspended.
#[derive(Debug)]
pub struct Suspending {
    job: String,
    decides: Suspend<String>,
    /// When it wants to be called.
    timer: Option<Duration>,
    /// Questions so far, and the last one.
    questions: u64,
    question: Option<Question>,
    /// The file that is open, and all.
    file: Option<(Rank, File)>,
    files: BTreeMap<(Rank, File), Vec<u8>>,
    /// What each rank had been acknowledged when the logs were listed.
    acked: BTreeMap<Rank, u64>,
    /// All is written, and the list has not got its name.
    list: Option<Folder>,
    /// It has, and the job is to end.
    folder: Option<Folder>,
    /// It hangs when it has done so much more.
    hangs_after: Option<usize>,
}

/// A command that hangs.
#[derive(Debug)]
struct Hang {
    since: Duration,
    /// What it is told meanwhile.
    heard: Vec<(u64, Reply)>,
}

/// How far the command is.
#[derive(Debug, Default)]
pub enum Stage {
    /// None runs.
    #[default]
    Idle,
    /// The job is to be written down, and to end.
    Suspending(Box<Suspending>),
    /// It has ended.
    Away(Folder),
    /// It is to go on.
    Resuming(Folder, Box<Resuming>),
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
    /// It hangs: it was stopped, or its disk does not answer.
    hang: Option<Hang>,
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
        matches!(&self.stage, Stage::Suspending(suspending) if suspending.folder.is_some())
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
        self.number > 0 && client / COMMAND == self.number
    }

    fn suspending(&mut self) -> Option<&mut Suspending> {
        if let Stage::Suspending(suspending) = &mut self.stage { Some(suspending) } else { None }
    }

    /// The number of its last question, as a client of its node.
    fn question(&self) -> Option<u64> {
        let Stage::Suspending(suspending) = &self.stage else { return None };
        suspending.question.is_some().then(|| self.client() + QUESTIONS + suspending.questions)
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
        self.schedule(self.now + PATIENCE, Event::Command(number, Due::Late));
        true
    }

    /// The next command of this kind begins so much later.
    pub fn command_later(&mut self, most_ms: usize) {
        let (after, number) = (Duration::from_millis(50 + self.dice.below(most_ms) as u64), self.command.number);
        self.schedule(self.now + after, Event::Command(number, Due::Begin));
    }

    /// It is time for a command to begin, to go on, or to give up.
    pub fn command_due(&mut self, number: u64, due: Due) {
        if number != self.command.number || self.terminal.outcome.is_some() {
            return;
        }
        if self.command.hang.is_some() && due != Due::WakeUp {
            return;
        }
        match (&self.command.stage, due) {
            (Stage::Idle, Due::Begin) => self.suspend(),
            (Stage::Away(_), Due::Begin) => self.resume(),
            (Stage::Suspending(_), Due::Timer) => self.drive_suspend(|decides, now| decides.handle_timeout(now)),
            (Stage::Suspending(_), Due::WakeUp) => self.wake_command(),
            (Stage::Suspending(_) | Stage::Resuming(..), Due::Late) => self.give_up_command("it takes too long"),
            _ => {}
        }
    }

    fn suspend(&mut self) {
        let Some(job) = self.terminal.job().filter(|_| self.place_command()) else { return self.suspend_again() };
        let (at, job) = (self.command.at, job.to_string());
        self.trace(|| format!("a command on n{} suspends the job", at + 1));
        self.command.stage = Stage::Suspending(Box::new(Suspending {
            decides: Suspend::new(job.clone()),
            job,
            timer: None,
            questions: 0,
            question: None,
            file: None,
            files: BTreeMap::new(),
            acked: BTreeMap::new(),
            list: None,
            folder: None,
            hangs_after: None,
        }));
        self.drive_suspend(|_, _| ());
    }

    fn suspend_again(&mut self) {
        self.command.tries += 1;
        self.command.stage = Stage::Idle;
        if self.command.tries < TRIES {
            self.command_later(250);
        }
    }

    /// The command ends: it was killed, or it cannot go on.
    pub fn give_up_command(&mut self, why: &str) {
        self.trace(|| format!("the command gives up: {why}"));
        self.hang_up(self.command.at, self.command.client());
        self.hang_up_question();
        self.command.hang = None;
        match std::mem::take(&mut self.command.stage) {
            Stage::Idle => {}
            // The folder says that the job may have gone on: nobody goes on from there.
            Stage::Suspending(suspending) if suspending.folder.is_some() => self.command.unsure = Some(Unsure::Ended),
            Stage::Suspending(_) => self.suspend_again(),
            stage @ Stage::Away(_) => self.command.stage = stage,
            Stage::Resuming(folder, resuming) => self.give_up_resuming(folder, &resuming),
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
        if let Some(hang) = &mut self.command.hang {
            return hang.heard.push((client, reply));
        }
        let is_main = client == self.command.client();
        match (&self.command.stage, reply) {
            (_, Reply::Welcome { .. }) => {}
            (Stage::Suspending(_), reply) if is_main => self.drive_suspend(|decides, now| decides.handle_reply(now, reply)),
            (Stage::Suspending(_), reply) if self.command.question() == Some(client) => self.question_hears(reply),
            (Stage::Resuming(..), reply) if is_main => self.drive_resume(|decides| decides.handle_reply(reply)),
            _ => {}
        }
    }

    /// Something happens to a suspension; what is to be done then is done.
    fn drive_suspend(&mut self, input: impl FnOnce(&mut Suspend<String>, Duration)) {
        let now = self.now;
        if let Some(suspending) = self.command.suspending() {
            input(&mut suspending.decides, now);
        }
        while !self.begins_to_hang()
            && let Some(action) = self.command.suspending().and_then(|suspending| suspending.decides.poll_action())
        {
            self.carry_out_suspend(action);
        }
        if self.command.hang.is_some() {
            return;
        }
        if self.command.suspending().is_some_and(|suspending| suspending.decides.take_ping(now)) {
            self.command_says(self.command.client(), Request::Ping);
        }
        let number = self.command.number;
        if let Some(suspending) = self.command.suspending()
            && let Some(due) = suspending.decides.poll_timeout().filter(|due| suspending.timer != Some(*due))
        {
            suspending.timer = Some(due);
            self.schedule(due, Event::Command(number, Due::Timer));
        }
    }

    /// One of so many commands hangs while all ranks are stopped, and does not hear that its user waits no longer.
    fn plan_hang(&mut self) {
        let mut dice = Dice::new(self.plan.seed ^ 0x4a17 ^ self.command.number << 32);
        if let Some(suspending) = self.command.suspending()
            && dice.one_in(HANGS)
        {
            suspending.hangs_after = Some(dice.below(ACTIONS));
        }
    }

    fn begins_to_hang(&mut self) -> bool {
        let Some(suspending) = self.command.suspending() else { return false };
        match &mut suspending.hangs_after {
            None => false,
            Some(0) => {
                suspending.hangs_after = None;
                let (since, number) = (self.now, self.command.number);
                let lasts = if self.dice.one_in(2) { SHORT } else { LONG };
                self.trace(|| format!("the command hangs for {} s", lasts.as_secs()));
                self.command.hang = Some(Hang { since, heard: Vec::new() });
                self.schedule(since + lasts, Event::Command(number, Due::WakeUp));
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }

    /// The command goes on where it was. If it has hung for long its node has given it up, and the ranks have not stayed stopped.
    fn wake_command(&mut self) {
        let (now, client) = (self.now, self.command.client());
        let Some(Hang { since, heard }) = self.command.hang.take() else { return };
        let is_told = heard.iter().any(|(to, reply)| *to == client && matches!(reply, Reply::Error(_) | Reply::Done));
        assert!(is_told || now - since < LONG || self.command.is_ending(), "hang: a command that hangs is not given up");
        self.trace(|| "the command goes on".to_owned());
        // What it was about to do may be done before it hears what it was told.
        if self.dice.one_in(2)
            && let Some(action) = self.command.suspending().and_then(|suspending| suspending.decides.poll_action())
        {
            self.carry_out_suspend(action);
        }
        heard.into_iter().for_each(|(client, reply)| self.command_hears(client, reply));
        self.schedule(now + PATIENCE, Event::Command(self.command.number, Due::Late));
        self.drive_suspend(|decides, now| decides.handle_timeout(now));
    }

    fn carry_out_suspend(&mut self, action: Action<String>) {
        let (client, now) = (self.command.client(), self.now);
        let Some(suspending) = self.command.suspending() else { return };
        let job = suspending.job.clone();
        match action {
            Action::Checkpoint(job) => self.ask_question(Question::Checkpoints(Vec::new()), Request::Checkpoint { job }),
            Action::Ask(request @ Request::EndSuspended) => self.command_says(client, request),
            Action::Ask(request) => self.command_asks(client, request),
            Action::Stopped(_) => {
                self.trace(|| "all ranks are stopped".to_owned());
                self.plan_hang();
            }
            Action::List(rank) => self.ask_question(Question::List, Request::Log { job, rank }),
            Action::Begin(_) => self.begin_files(),
            Action::Read(rank, part, span) => self.read_held(rank, Reading { part, span, bytes: Vec::new(), is_copy: false }),
            Action::Copy(rank, part, span) => self.read_held(rank, Reading { part, span, bytes: Vec::new(), is_copy: true }),
            Action::Create(rank, file) => {
                suspending.file = Some((rank, file));
                suspending.files.insert((rank, file), Vec::new());
                suspending.decides.handle_done(now);
            }
            Action::Append(bytes) => {
                let is_alone = self.breaks.alone;
                self.append(if is_alone { Vec::new() } else { bytes });
            }
            Action::Close => suspending.decides.handle_done(now),
            Action::Finish(saved) => self.finish_folder(*saved),
            Action::Place => {
                suspending.folder = suspending.list.take();
                suspending.decides.handle_done(now);
            }
            // It is taken for one with a mark from its list on, for a command that is lost leaves none.
            Action::Mark => {}
            Action::Over(Over::Suspended) => self.handle_suspended(),
            Action::Over(Over::GoesOn(failure) | Over::Unsure(failure)) => {
                self.check_failure(&failure);
                self.give_up_command(&failure.to_string());
            }
        }
    }

    /// Logs that do not change lack nothing.
    fn check_failure(&self, failure: &Failure<String>) {
        let is_held = !matches!(failure, Failure::Undone(why) if why.contains(NOT_HELD));
        assert!(is_held, "G6: {failure}");
        let is_whole = !matches!(failure, Failure::NotWhole(_)) || !self.checks.counts() || self.is_excused();
        assert!(is_whole, "G1: what is suspended is not whole: {failure}");
    }

    fn hang_up_question(&mut self) {
        if let Some(client) = self.command.question() {
            self.hang_up(self.command.at, client);
        }
        self.command.suspending().into_iter().for_each(|suspending| suspending.question = None);
    }

    fn ask_question(&mut self, question: Question, request: Request) {
        self.hang_up_question();
        let Some(suspending) = self.command.suspending() else { return };
        suspending.questions += 1;
        suspending.question = Some(question);
        if let Some(client) = self.command.question() {
            self.command_asks(client, request);
        }
    }

    fn read_held(&mut self, rank: Rank, reading: Reading) {
        let Some(suspending) = self.command.suspending() else { return };
        if reading.span.start == reading.span.end {
            return self.handle_read(reading);
        }
        match &mut suspending.question {
            Some(Question::Read(open, wants)) if *open == rank => {
                let request = wants.insert(reading).request();
                self.ask_further(request);
            }
            _ => {
                let job = suspending.job.clone();
                self.ask_question(Question::Read(rank, Some(reading)), Request::Log { job, rank });
            }
        }
    }

    fn ask_further(&mut self, request: Request) {
        if let Some(client) = self.command.question() {
            self.command_says(client, request);
        }
    }

    /// An answer to the last question.
    fn question_hears(&mut self, reply: Reply) {
        let Some(suspending) = self.command.suspending() else { return };
        match (&mut suspending.question, reply) {
            (Some(Question::Checkpoints(all)), Reply::Checkpoints(some)) => all.extend(some),
            (Some(Question::Checkpoints(all)), Reply::Done) => {
                let all = std::mem::take(all);
                self.drive_suspend(|decides, now| decides.handle_checkpoints(now, &all));
            }
            (Some(Question::List), Reply::Log(node, log)) => {
                self.trace(|| format!("the log of {} on {node}: {}", log.process.rank, told(&log)));
                self.drive_suspend(|decides, now| decides.handle_log(now, log));
            }
            (Some(Question::Read(_, Some(reading))), Reply::Log(..)) => {
                let request = reading.request();
                self.ask_further(request);
            }
            (Some(Question::Read(_, wants)), Reply::LogBytes(bytes)) => {
                let Some(mut reading) = wants.take() else { return };
                let (length, is_end) = ((reading.span.end - reading.span.start) as usize, bytes.is_empty());
                reading.bytes.extend_from_slice(&bytes);
                if reading.bytes.len() < length && !is_end {
                    let request = wants.insert(reading).request();
                    return self.ask_further(request);
                }
                if is_end {
                    let why = format!("{:?} {NOT_HELD} up to {}", reading.part, reading.span.end);
                    return self.drive_suspend(|decides, _| decides.handle_failed(why));
                }
                reading.bytes.truncate(length);
                self.handle_read(reading);
                self.drive_suspend(|_, _| ());
            }
            (_, reply) => {
                suspending.question = None;
                let why = if let Reply::Error(text) = reply { text } else { format!("unexpected: {reply:?}") };
                self.drive_suspend(|decides, _| decides.handle_failed(why));
            }
        }
    }

    fn handle_read(&mut self, reading: Reading) {
        if reading.is_copy {
            return self.append(reading.bytes);
        }
        self.command.suspending().into_iter().for_each(|suspending| suspending.decides.handle_read(reading.bytes.clone()));
    }

    fn append(&mut self, bytes: Vec<u8>) {
        let now = self.now;
        let Some(suspending) = self.command.suspending() else { return };
        let file = suspending.file.and_then(|file| suspending.files.get_mut(&file));
        file.expect("a file is open").extend(bytes);
        suspending.decides.handle_done(now);
    }

    /// The logs are listed: if they have not changed when they are listed again, they are those of this moment.
    fn begin_files(&mut self) {
        let Some(job) = self.terminal.job() else { return };
        let ranks = (0..self.plan.ranks).map(Rank);
        let acked = ranks.map(|rank| (rank, self.checks.stable(ProcessId { job, rank }))).collect();
        let Some(suspending) = self.command.suspending() else { return };
        suspending.files.clear();
        suspending.acked = acked;
    }

    fn finish_folder(&mut self, saved: Saved) {
        let Some(suspending) = self.command.suspending() else { return };
        let (files, acked) = (std::mem::take(&mut suspending.files), std::mem::take(&mut suspending.acked));
        let Saved { suspension, unprinted, ranks } = saved;
        let length = |rank, file| files[&(rank, file)].len() as u64;
        let of_rank = |(rank, mut log): (Rank, SavedLog)| {
            log.journal.end = log.journal.start + length(rank, File::Journal);
            log.with_files(|file| SavedFile { name: String::new(), bytes: length(rank, file), code: [0; MAC] })
        };
        let ranks: Vec<_> = (0..).map(Rank).zip(ranks).map(of_rank).collect();
        let ends: BTreeMap<Rank, u64> = (0..).map(Rank).zip(&ranks).map(|(rank, saved)| (rank, saved.journal.end)).collect();
        self.check_suspended(suspension.job, &ends);
        for (rank, end) in ends.iter().filter(|_| self.checks.counts()) {
            let acked = acked[rank];
            assert!(acked <= *end, "G1: rank {rank} was acknowledged {acked}, and its suspended journal ends at {end}");
        }
        self.trace(|| format!("the job is written down, its journals up to {ends:?}"));
        self.hang_up_question();
        let now = self.now;
        let Some(suspending) = self.command.suspending() else { return };
        suspending.list = Some(Folder { manifest: Manifest { suspension, unprinted, ranks }, files });
        suspending.decides.handle_done(now);
    }

    /// The command, or the terminal, hears that the job is suspended.
    pub fn handle_suspended(&mut self) {
        let Some(folder) = self.command.suspending().and_then(|suspending| suspending.folder.take()) else { return };
        self.trace(|| "the job is suspended".to_owned());
        self.command.hang = None;
        self.counts.suspensions += 1;
        for (rank, saved) in (0..).map(Rank).zip(&folder.manifest.ranks) {
            let (process, end) = (ProcessId { job: folder.manifest.suspension.job, rank }, saved.journal.end);
            let units = |of: &HeldStream| of.bytes.end + u64::from(of.ended == Some(of.bytes.end));
            let open = saved.streams.iter().filter(|of| !of.closed);
            let held: Vec<_> = open.map(|of| (of.stream, units(of), of.ended)).collect();
            self.checks.handle_suspended(process, end);
            self.checks.undo(process, end, &held);
            self.pasts.undo(process, end);
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
        let is_ending = |job| (0..self.machines.len()).any(|at| ends_here(at, job) && is_there(at));
        is_over || self.processes.iter().any(is_ended) || self.terminal.job().is_some_and(is_ending)
    }

    /// Whether something of a process may be lost that others depend on: the job begins anew when that is noticed.
    fn is_excused(&self) -> bool {
        let breaks = self.breaks;
        breaks.forgetful || breaks.unclosed || breaks.unlearned || breaks.silent
    }
}
