//! Recovery lines ([`line`](super::line)): what a node remembers of them, what its home does about them, and what its hosts and
//! its log service have to do with them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, ProcessId, Rank};
use radic_wire::job::ExitStatus;
use radic_wire::peer::{Answer, JobEnd, Left, LineAnswer, LineStep, MpiPhase, PeerMessage, Query, ToHome, ToHost, ToStore};
use radic_wire::process::{FromNode, Interval, PayloadMode, ProgramEnd, Room};

use super::checkpoints::SHORTEST;
use super::events::About;
use super::home::Home;
use super::line::{JobLines, Step};
use super::observed::Observed;
use super::purpose::Purpose;
use super::stores::StoreOrder;
use super::wards::Protected;
use super::{Node, Output};
use crate::store::LineHeld;

/// What a node remembers of the lines of a job.
#[derive(Debug, Default)]
struct Remembered {
    epoch: Epoch,
    /// The newest line that it was told to be complete; 0: none.
    complete: u64,
    /// The home and its round for which it has promised to remember another one, or the end.
    promise: Option<(NodeId, u64)>,
    /// All ranks have come to their ends.
    end: Option<JobEnd>,
    /// Every node remembers that.
    is_let_go: bool,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Of the jobs whose home is here, in this epoch.
    jobs: BTreeMap<JobId, (Epoch, JobLines)>,
    remembered: BTreeMap<JobId, Remembered>,
}

impl Lines {
    /// When [`Node::look_at_lines`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.jobs.values().filter_map(|(_, lines)| lines.poll_timeout()).min()
    }

    /// Nothing of the job is left here.
    pub(super) fn forget(&mut self, job: JobId) {
        self.jobs.remove(&job);
        self.remembered.remove(&job);
    }

    fn remembered(&mut self, job: JobId, epoch: Epoch) -> &mut Remembered {
        let known = self.remembered.entry(job).or_default();
        if known.epoch < epoch {
            *known = Remembered { epoch, ..Remembered::default() };
        }
        known
    }

    /// The newest line of the job that this node knows to be complete. A protector asks, so what was promised does not hold any more.
    pub(super) fn complete_for_recovery(&mut self, job: JobId, epoch: Epoch) -> u64 {
        let known = self.remembered(job, epoch);
        known.promise = None;
        if known.epoch == epoch { known.complete } else { 0 }
    }

    /// How the job ends, if this node remembers that all ranks have come to their ends in this epoch: none is brought back.
    pub(super) fn end_of(&self, job: JobId, epoch: Epoch) -> Option<JobEnd> {
        self.remembered.get(&job).filter(|known| known.epoch == epoch).and_then(|known| known.end.clone())
    }

    /// A node remembers that all ranks have come to their ends.
    pub(super) fn handle_end(&mut self, job: JobId, epoch: Epoch, end: JobEnd) {
        let known = self.remembered(job, epoch);
        if known.epoch == epoch {
            known.end.get_or_insert(end);
        }
    }

    /// The line is complete.
    pub(super) fn handle_complete(&mut self, job: JobId, epoch: Epoch, line: u64) {
        let known = self.remembered(job, epoch);
        if known.epoch == epoch {
            known.complete = known.complete.max(line);
        }
    }

    /// The highest number that the home here has given to a line of the job.
    pub(super) fn newest(&self, job: JobId) -> u64 {
        self.jobs.get(&job).map_or(0, |(_, lines)| lines.newest())
    }

    /// Whether no line of the job is under way, as far as its home knows.
    fn are_at_rest(&self, job: JobId, epoch: Epoch) -> bool {
        self.jobs.get(&job).is_some_and(|(of, lines)| *of == epoch && !lines.is_under_way())
    }
}

impl Node {
    // ---- at the home

    /// Makes the lines that are due, and brings those to an end that are under way.
    pub(super) fn look_at_lines(&mut self, now: Duration) {
        let has_lines = |job: &JobId| self.homes.get(job).is_some_and(|home| home.has_lines() && !home.is_over());
        let jobs: Vec<JobId> = self.homes.keys().copied().filter(has_lines).collect();
        self.lines.jobs.retain(|job, _| jobs.contains(job));
        for job in jobs {
            self.adopt_lines(now, job);
            self.step_lines(now, job, |lines, ranks| lines.poll(now, ranks));
        }
    }

    fn adopt_lines(&mut self, now: Duration, job: JobId) {
        let Some(home) = self.homes.get(&job) else { return };
        let epoch = home.epoch();
        if self.lines.jobs.get(&job).is_some_and(|(of, _)| *of == epoch) {
            return;
        }
        let first = self.line_interval(job).map(|interval| now + interval);
        self.lines.jobs.insert(job, (epoch, JobLines::new(first)));
    }

    /// The time between two lines; none: they are made when they are wanted. Where it is computed it follows what the images of
    /// rank 0 cost, as far as that is known here.
    fn line_interval(&self, job: JobId) -> Option<Duration> {
        match self.homes.get(&job)?.spec().protection.interval {
            Interval::Never => None,
            Interval::Every(ms) => Some(Duration::from_millis(ms)),
            Interval::Auto => self.interval_of(ProcessId { job, rank: Rank(0) }).or(Some(SHORTEST)),
        }
    }

    fn schedule_line(&mut self, now: Duration, job: JobId) {
        let interval = self.line_interval(job);
        if let Some((_, lines)) = self.lines.jobs.get_mut(&job) {
            lines.schedule(interval.map(|interval| now + interval));
        }
    }

    /// Something happens to the lines of a job at its home, and what follows is done.
    fn step_lines(&mut self, now: Duration, job: JobId, act: impl FnOnce(&mut JobLines, &BTreeSet<Rank>) -> Option<Step>) {
        let Some(ranks) = self.homes.get(&job).map(|home| home.ranks_of_lines()) else { return };
        let Some((epoch, lines)) = self.lines.jobs.get_mut(&job) else { return };
        let (epoch, mut next) = (*epoch, act(lines, &ranks));
        while let Some(step) = next {
            self.carry_out_of_lines(now, (job, epoch), step, &ranks);
            next = self.lines.jobs.get_mut(&job).and_then(|(_, lines)| lines.poll(now, &ranks));
        }
        self.freeze_at_rest(now, job);
    }

    fn carry_out_of_lines(&mut self, now: Duration, (job, epoch): (JobId, Epoch), step: Step, ranks: &BTreeSet<Rank>) {
        match step {
            Step::Make(line) => {
                let placement = self.homes.get(&job).map(|home| home.placement().clone());
                for node in placement.iter().flat_map(|placement| &placement.nodes) {
                    let here = placement.iter().flat_map(|placement| placement.ranks_on(node));
                    let ranks: Vec<Rank> = here.filter(|rank| ranks.contains(rank)).collect();
                    if !ranks.is_empty() {
                        self.send(node, PeerMessage::ToHost(job, ToHost::MakeLine { epoch, line, ranks }));
                    }
                }
            }
            Step::Ask(step) => self.gather(now, Purpose::Line(job, epoch, step.clone()), &Query::Line { job, epoch, step }),
            Step::Complete(line) => {
                self.tell_all(&PeerMessage::ToStore(job, ToStore::LineComplete { epoch, line }));
                self.schedule_line(now, job);
            }
            Step::GiveUp(after, to) => {
                self.tell_all(&PeerMessage::ToStore(job, ToStore::LinesGivenUp { epoch, after, to }));
                self.schedule_line(now, job);
                if self.lines.jobs.get(&job).is_some_and(|(_, lines)| lines.has_failed()) {
                    let text = format!("recovery line {to} is given up: not all ranks have an image of it");
                    self.record(now, EventName::CheckpointFailed, About::job(job), text);
                }
            }
            Step::LetGo => {
                let hosts = self.homes.get(&job).map(|home| home.placement().nodes.clone());
                let let_go = PeerMessage::ToHost(job, ToHost::LetGo(epoch));
                hosts.into_iter().flatten().for_each(|node| self.send(&node, let_go.clone()));
            }
        }
    }

    /// Stops the ranks of a job that is being suspended, if no line is under way.
    pub(super) fn freeze_at_rest(&mut self, now: Duration, job: JobId) {
        let is_due = |home: &Home| home.waits_for_line() && self.lines.are_at_rest(job, home.epoch());
        if self.homes.get(&job).is_some_and(is_due) {
            self.with_home(now, job, Home::freeze);
        }
    }

    /// All nodes have answered, or some have not.
    pub(super) fn finish_line(
        &mut self,
        now: Duration,
        (job, epoch): (JobId, Epoch),
        step: LineStep,
        answers: BTreeMap<NodeId, Answer>,
        silent: bool,
    ) {
        let of = |answer| if let Answer::Line(answer) = answer { Some(answer) } else { None };
        let answers: Vec<LineAnswer> = answers.into_values().filter_map(of).collect();
        if self.lines.jobs.get(&job).is_some_and(|(of, _)| *of == epoch) {
            let answers = (!silent).then_some(&answers[..]);
            self.step_lines(now, job, |lines, ranks| lines.handle_answers(now, &step, answers, ranks));
        }
    }

    /// What hosts and protectors tell the home of lines. False: it is something else.
    pub(super) fn handle_line_news(&mut self, now: Duration, job: JobId, message: &ToHome) -> bool {
        let is_now = |epoch: Epoch, node: &Node| node.lines.jobs.get(&job).is_some_and(|(of, _)| *of == epoch);
        match *message {
            ToHome::LineReady { epoch, rank, line } if is_now(epoch, self) => {
                self.step_lines(now, job, |lines, ranks| {
                    lines.handle_ready(rank, line);
                    lines.poll(now, ranks)
                });
            }
            ToHome::LineFailed { epoch, line } if is_now(epoch, self) => {
                self.step_lines(now, job, |lines, _| lines.handle_failed(now, line));
            }
            ToHome::LineWanted(epoch) if is_now(epoch, self) => {
                self.step_lines(now, job, |lines, ranks| {
                    lines.want();
                    lines.poll(now, ranks)
                });
            }
            ToHome::LineReady { .. } | ToHome::LineFailed { .. } | ToHome::LineWanted(_) => {}
            _ => return false,
        }
        true
    }

    /// A host says that a rank has come to its end.
    pub(super) fn handle_rank_at_end(&mut self, now: Duration, from: &NodeId, job: JobId, epoch: Epoch, end: (Rank, i32)) {
        if self.homes.get(&job).is_some_and(|home| home.epoch() == epoch && home.has_lines()) {
            self.adopt_lines(now, job);
            self.step_lines(now, job, |lines, ranks| {
                lines.handle_at_end(end.0, from.name.clone(), end.1);
                lines.poll(now, ranks)
            });
        }
    }

    /// What a host or a protector says of a rank that is not brought back: where all ranks have come to their ends it has ended.
    pub(super) fn unless_at_end(&self, job: JobId, message: ToHome) -> ToHome {
        let (ToHome::NoImage { rank, incarnation, .. } | ToHome::Lost { rank, incarnation, .. }) = message else {
            return message;
        };
        self.left_at_end(ProcessId { job, rank }, incarnation.epoch).unwrap_or(message)
    }

    /// That a rank has ended, if all ranks have come to their ends.
    pub(super) fn left_at_end(&self, process: ProcessId, epoch: Epoch) -> Option<ToHome> {
        let ProcessId { job, rank } = process;
        let end = self.lines.end_of(job, epoch)?;
        // No reason names the node of a rank that ends well.
        let (node, code) = end.failure_of(rank).unwrap_or((&self.me().name, 0));
        Some(ToHome::Left { rank, node: node.clone(), epoch, status: ExitStatus::Code(code), phase: MpiPhase::After })
    }

    /// Whether the home here has not asked yet what nodes remember of the job.
    pub(super) fn seeks_lines(&self, job: JobId) -> bool {
        self.homes.get(&job).is_some_and(|home| home.has_lines())
            && self.lines.jobs.get(&job).is_none_or(|(_, lines)| lines.is_seeking())
    }

    // ---- at every node

    /// The home of a job asks.
    pub(super) fn handle_line_query(
        &mut self,
        now: Duration,
        from: &NodeId,
        number: u64,
        (job, epoch): (JobId, Epoch),
        step: LineStep,
    ) {
        let known = self.lines.remembered(job, epoch);
        let line = match step {
            LineStep::Seek => 0,
            LineStep::Promise { line, round } => {
                known.promise = Some((from.clone(), round));
                line
            }
            LineStep::Record { line, round } => {
                let is_kept = known.epoch == epoch && known.promise == Some((from.clone(), round));
                known.complete = if is_kept { known.complete.max(line) } else { known.complete };
                let answer =
                    LineAnswer { recorded: known.complete, is_busy: !is_kept, end: known.end.clone(), ..LineAnswer::default() };
                return self.send(from, PeerMessage::Answer(number, Answer::Line(answer)));
            }
            LineStep::PromiseEnd { round } => {
                known.promise = Some((from.clone(), round));
                let end = known.end.clone();
                let host = self.hosts.get(&job).filter(|host| host.epoch() == epoch);
                let here = |rank| (rank, self.incarnation_here(ProcessId { job, rank }));
                let has = host.map_or_else(Vec::new, |host| host.ranks_at_end().map(here).collect());
                let restarted = self.restarted_ranks(job, epoch);
                let answer = LineAnswer { is_busy: self.brings_back(job), has, restarted, end, ..LineAnswer::default() };
                return self.send(from, PeerMessage::Answer(number, Answer::Line(answer)));
            }
            LineStep::RecordEnd { round, end } => {
                let is_kept = known.epoch == epoch && known.promise == Some((from.clone(), round));
                known.end = known.end.take().or(is_kept.then_some(end));
                let answer = LineAnswer { is_busy: !is_kept, end: known.end.clone(), ..LineAnswer::default() };
                self.tell_host_of_end(now, job, epoch);
                return self.send(from, PeerMessage::Answer(number, Answer::Line(answer)));
            }
        };
        self.outputs.push_back(Output::Store(StoreOrder::HeldOfLine(from.clone(), number, (job, epoch), line)));
    }

    /// The log service says what it has of a line.
    pub(super) fn handle_line_held(&mut self, asker: &NodeId, number: u64, (job, epoch): (JobId, Epoch), held: LineHeld) {
        let LineHeld { newest, has, lacks } = held;
        let is_busy = self.brings_back(job);
        let known = self.lines.remembered(job, epoch);
        let (recorded, end) = (known.complete, known.end.clone());
        let restarted = self.restarted_ranks(job, epoch);
        let answer = LineAnswer { recorded, newest, is_busy, has, lacks, restarted, end };
        self.send(asker, PeerMessage::Answer(number, Answer::Line(answer)));
    }

    /// The ranks of the job that were brought back in this epoch, or are about to be, as far as this node was told or asked.
    fn restarted_ranks(&self, job: JobId, epoch: Epoch) -> Vec<(Rank, Incarnation)> {
        let of_job = self.recovery.restarted.iter().filter(|(process, of)| process.job == job && of.epoch == epoch);
        of_job.map(|(process, incarnation)| (process.rank, *incarnation)).collect()
    }

    /// Whether this node is about to bring back a rank of the job.
    fn brings_back(&self, job: JobId) -> bool {
        let is_under_way = |of: &Protected| of.recovering && of.protector.is_none();
        self.recovery.wards.get(&job).is_some_and(|wards| wards.ranks.values().any(is_under_way))
    }

    /// A process that this node would bring back has ended, if all ranks have come to their ends.
    pub(super) fn count_as_ended(&mut self, now: Duration, process: ProcessId) -> bool {
        let ProcessId { job, rank } = process;
        let protected = self.recovery.wards.get_mut(&job).and_then(|wards| wards.ranks.get_mut(&rank));
        let Some(protected) = protected else { return false };
        let epoch = protected.incarnation.epoch;
        let Some(end) = self.lines.end_of(job, epoch) else { return false };
        let (status, phase) = (ExitStatus::Code(end.code_of(rank)), MpiPhase::After);
        protected.recovering = false;
        if protected.left.is_none() {
            protected.left = Some(Left { status, phase, finals: Vec::new() });
        }
        let text = format!("rank {rank} had come to its end, and so had all others: it is not brought back");
        self.record(now, EventName::RankExit, About::rank(job, rank), text);
        self.tell_home_of_ends(job);
        self.tell_host_of_end(now, job, epoch);
        true
    }

    /// The host here, if there is one, hears that all ranks have come to their ends, if this node remembers it.
    fn tell_host_of_end(&mut self, now: Duration, job: JobId, epoch: Epoch) {
        if let Some(end) =
            self.lines.end_of(job, epoch).filter(|_| self.hosts.get(&job).is_some_and(|host| host.epoch() == epoch))
        {
            self.with_host(now, job, |host| host.handle_all_at_end(now, end));
        }
    }

    /// The log service has a rank's image of a line, whole and verified: its home is told.
    pub(super) fn handle_line_ready(&mut self, process: ProcessId, line: u64) {
        let Some(wards) = self.recovery.wards.get(&process.job) else { return };
        let Some(protected) = wards.ranks.get(&process.rank) else { return };
        let (home, epoch) = (wards.ward.placement.home().clone(), protected.incarnation.epoch);
        let ready = ToHome::LineReady { epoch, rank: process.rank, line };
        self.send(&home, PeerMessage::ToHome(process.job, ready));
    }

    /// A home says that a line is complete.
    pub(super) fn handle_line_complete(&mut self, job: JobId, epoch: Epoch, line: u64) {
        self.lines.handle_complete(job, epoch, line);
        self.outputs.push_back(Output::Store(StoreOrder::LineComplete(job, epoch, line)));
    }

    /// The newest line of the job that this node remembers to be complete (for tests of G2).
    pub fn remembered_line(&self, job: JobId) -> u64 {
        self.lines.remembered.get(&job).map_or(0, |known| known.complete)
    }

    /// Where the lines of all jobs stand (for a failing seed's report).
    pub fn standing_of_lines(&self) -> String {
        format!("{:?}", self.lines)
    }

    // ---- at a host

    /// A process of this node has come to its end.
    pub(super) fn handle_at_end(&mut self, now: Duration, process: ProcessId, end: ProgramEnd) {
        if self.hosts.get(&process.job).is_some_and(|host| host.fails_with(process.rank, end.code)) {
            // Its exit ends the job, and no other rank is waited for.
            self.with_host(now, process.job, |host| host.handle_let_go_alone(process.rank, end.code));
            let observer = self.observers.processes.get(&process).and_then(Observed::observer);
            self.outputs.extend(observer.map(|observer| Output::Observer(observer, FromNode::MayEnd)));
            return;
        }
        self.with_host(now, process.job, |host| host.handle_at_end(process.rank, end));
        if self.lines.remembered.get(&process.job).is_some_and(|known| known.is_let_go) {
            self.let_go(process.job);
        }
    }

    /// The home says that all nodes remember the end, so this one does. What dies here from now on does not change it: the host
    /// knows before the first process is let go.
    pub(super) fn handle_let_go(&mut self, now: Duration, job: JobId, epoch: Epoch) {
        if self.lines.end_of(job, epoch).is_some() {
            self.lines.remembered(job, epoch).is_let_go = true;
            self.tell_host_of_end(now, job, epoch);
            self.let_go(job);
        }
    }

    fn let_go(&mut self, job: JobId) {
        let here = self.observers.processes.iter().filter(|(process, _)| process.job == job);
        let told =
            here.filter_map(|(_, observed)| observed.observer()).map(|observer| Output::Observer(observer, FromNode::MayEnd));
        self.outputs.extend(told);
    }

    /// The home wants a line: these ranks make their images. One that is about to begin, or to be back, makes none.
    pub(super) fn handle_make_line(
        &mut self,
        now: Duration,
        home: &NodeId,
        job: JobId,
        (epoch, line): (Epoch, u64),
        ranks: &[Rank],
    ) {
        let is_here = self.hosts.get(&job).is_some_and(|host| host.epoch() == epoch);
        let mut is_failed = !is_here;
        for process in ranks.iter().filter(|_| is_here).map(|rank| ProcessId { job, rank: *rank }) {
            if self.request_line(now, process, line) {
                self.nudge(process);
            } else {
                is_failed = true;
            }
        }
        if is_failed {
            self.send(home, PeerMessage::ToHome(job, ToHome::LineFailed { epoch, line }));
        }
    }

    /// A rank of this node makes no image of the line.
    pub(super) fn tell_line_failed(&mut self, process: ProcessId, line: u64) {
        let Some(host) = self.hosts.get(&process.job) else { return };
        let (home, epoch) = (host.placement().home().clone(), host.epoch());
        self.send(&home, PeerMessage::ToHome(process.job, ToHome::LineFailed { epoch, line }));
    }

    /// The outbox of a process here fills: an image of the receiver of most of it is asked for, or of each rank.
    pub(super) fn handle_pressed(&mut self, now: Duration, process: ProcessId, room: Option<Room>) {
        let room = room.filter(|room| room.receiver.job == process.job);
        let of = room.map_or_else(|| "each rank".to_owned(), |room| format!("rank {}", room.receiver.rank));
        let text = format!("the outbox of rank {} fills: an image of {of} was asked for", process.rank);
        self.handle_store_event(now, EventName::Limit, Some(process), text);
        match room {
            Some(room) => {
                let make = ToHost::MakeRoom { epoch: self.running_epoch(process.job), room };
                self.send_to_host(room.receiver, &PeerMessage::ToHost(process.job, make));
            }
            None => self.want_line(process.job),
        }
    }

    /// A process here wants a recovery line.
    pub(super) fn want_line(&mut self, job: JobId) {
        let Some(host) = self.hosts.get(&job) else { return };
        let (home, epoch) = (host.placement().home().clone(), host.epoch());
        self.send(&home, PeerMessage::ToHome(job, ToHome::LineWanted(epoch)));
    }

    /// An image of a process here makes room in the outbox of another one. It says itself if it takes a recovery line.
    pub(super) fn handle_make_room(&mut self, job: JobId, epoch: Epoch, Room { receiver, connection, from }: Room) {
        let is_here = receiver.job == job && self.hosts.get(&job).is_some_and(|host| host.epoch() == epoch);
        let observer = self.observers.processes.get(&receiver).filter(|_| is_here).and_then(Observed::observer);
        if let Some(observer) = observer {
            self.outputs.push_back(Output::Observer(observer, FromNode::MakeRoom { connection, from }));
            self.outputs.push_back(Output::Nudge(observer));
        }
    }

    /// Whether images of the job's ranks are made in lines, and not at an interval of each.
    pub(super) fn makes_lines(&self, job: JobId) -> bool {
        self.hosts.get(&job).is_some_and(|host| host.protection().payload == PayloadMode::Sender)
    }
}
