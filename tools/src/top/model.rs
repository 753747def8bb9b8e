//! What `radic top` shows: from states of the cluster, events and keys to what is on the screen. No terminal, no clock, no connection.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use radic_wire::event::Event;
use radic_wire::ids::{JobId, Rank};
use radic_wire::local::Traffic;
use radic_wire::log::HeldLog;
use radic_wire::partners::{Overhead, Peers};
use radic_wire::report::ProcessInfo;
use radic_wire::since::{Sample, Since};

use super::rows::{self, Row, Subject};

/// Events that are kept.
const EVENTS: usize = 512;
/// Rows that a page moves.
const PAGE: usize = 10;
/// Longest text to filter by, in characters.
const FILTER: usize = 40;

/// What the large part of the screen has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Screen {
    Jobs,
    Nodes,
    Ranks(JobId),
    Rank(JobId, Rank),
}

/// A key, as far as it means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Enter,
    Back,
    Erase,
    Char(char),
}

/// Which part of its time a process is kept from its work, and when that was looked at.
#[derive(Debug, Default)]
struct Share {
    overhead: Overhead,
    part: Option<f64>,
    at: Duration,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) now: Option<Sample>,
    before: Option<Sample>,
    overhead: HashMap<(JobId, Rank), Share>,
    /// Of the job on the screen: how much its ranks have sent to each other, and what follows from that.
    traffic: Option<(JobId, Traffic, Peers)>,
    pub(super) events: VecDeque<Event>,
    /// Why the state is old.
    pub(super) trouble: Option<String>,
    pub(super) screen: Screen,
    /// The rank on the screen: what is held of it, or why that is not known.
    pub(super) log: Option<Result<HeldLog, String>>,
    /// Which row; of a rank: how many lines are above the screen.
    pub(super) selected: usize,
    sort: Option<usize>,
    reversed: bool,
    pub(super) filter: String,
    /// The filter is being typed.
    pub(super) typing: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) over: bool,
}

impl Model {
    pub(super) fn new() -> Model {
        Model {
            now: None,
            before: None,
            overhead: HashMap::new(),
            traffic: None,
            events: VecDeque::new(),
            trouble: None,
            screen: Screen::Jobs,
            log: None,
            selected: 0,
            sort: None,
            reversed: false,
            filter: String::new(),
            typing: false,
            paused: false,
            help: false,
            over: false,
        }
    }

    pub(super) fn handle_status(&mut self, at: Duration, status: radic_wire::local::ClusterStatus) {
        self.trouble = None;
        if !self.paused {
            for process in &status.processes {
                let known = self.overhead.entry((process.job, process.rank)).or_default();
                known.part = known.overhead.handle(at, process);
                known.at = at;
            }
            // What is there no more was looked at before.
            self.overhead.retain(|_, known| known.at == at);
            self.before = self.now.replace(Sample { at, status });
            self.clamp();
        }
    }

    /// The state could not be asked for.
    pub(super) fn handle_trouble(&mut self, why: String) {
        self.trouble = Some(why);
    }

    /// A daemon tells of events, from the oldest on that it knows.
    pub(super) fn handle_first_events(&mut self) {
        self.events.clear();
    }

    pub(super) fn handle_events(&mut self, events: Vec<Event>) {
        self.events.extend(events);
        let superfluous = self.events.len().saturating_sub(EVENTS);
        self.events.drain(..superfluous);
    }

    pub(super) fn handle_log(&mut self, job: JobId, rank: Rank, log: Result<HeldLog, String>) {
        if self.wanted() == Some((job, Some(rank))) && !self.paused {
            self.log = Some(log);
        }
    }

    pub(super) fn handle_traffic(&mut self, job: JobId, traffic: Traffic) {
        if self.wanted().is_some_and(|(wanted, _)| wanted == job) && !self.paused {
            let before = self.traffic.take().filter(|(known, ..)| *known == job).map(|(_, before, _)| before);
            let peers = Peers::new(before.as_ref(), &traffic);
            self.traffic = Some((job, traffic, peers));
        }
    }

    /// The job of which the traffic is to be asked for, and the rank of which the log is.
    pub(super) fn wanted(&self) -> Option<(JobId, Option<Rank>)> {
        match self.screen {
            Screen::Ranks(job) => Some((job, None)),
            Screen::Rank(job, rank) => Some((job, Some(rank))),
            Screen::Jobs | Screen::Nodes => None,
        }
    }

    /// Which ranks of this job have to do with each other, if that is known.
    pub(super) fn peers(&self, job: JobId) -> Option<&Peers> {
        self.traffic.as_ref().filter(|(known, ..)| *known == job).map(|(.., peers)| peers)
    }

    pub(super) fn handle_key(&mut self, key: Key) {
        if self.typing {
            return self.type_filter(key);
        }
        if std::mem::take(&mut self.help) && key != Key::Char('q') {
            return;
        }
        match key {
            Key::Char('q') => self.over = true,
            Key::Char('?' | 'h') => self.help = true,
            Key::Char(' ' | 'p') => self.paused = !self.paused,
            Key::Char('/') => self.typing = true,
            Key::Char('n') => self.open(if self.screen == Screen::Nodes { Screen::Jobs } else { Screen::Nodes }),
            Key::Char('j') => self.open(Screen::Jobs),
            Key::Char('s') => {
                let columns = self.columns().len();
                // After the last one the order in which rows come.
                self.sort = self.sort.map_or(Some(0), |column| (column + 1 < columns).then_some(column + 1));
            }
            Key::Char('r') => self.reversed = !self.reversed,
            Key::Up => self.selected = self.selected.saturating_sub(1),
            Key::PageUp => self.selected = self.selected.saturating_sub(PAGE),
            Key::Down => self.selected += 1,
            Key::PageDown => self.selected += PAGE,
            Key::First => self.selected = 0,
            Key::Last => self.selected = usize::MAX,
            Key::Enter => self.drill(),
            Key::Back | Key::Erase => self.leave(),
            Key::Char(_) => {}
        }
        self.clamp();
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.typing = false,
            Key::Back => (self.typing, self.filter) = (false, String::new()),
            Key::Erase => _ = self.filter.pop(),
            Key::Char(c) if self.filter.chars().count() < FILTER => self.filter.push(c),
            _ => {}
        }
        self.clamp();
    }

    fn open(&mut self, screen: Screen) {
        (self.screen, self.selected, self.sort, self.reversed, self.log) = (screen, 0, None, false, None);
        self.filter.clear();
    }

    /// Into what is selected.
    fn drill(&mut self) {
        match self.rows().get(self.selected).map(|row| row.subject.clone()) {
            Some(Subject::Job(job)) => self.open(Screen::Ranks(job)),
            Some(Subject::Rank(job, rank)) => self.open(Screen::Rank(job, rank)),
            Some(Subject::Node(_)) | None => {}
        }
    }

    /// Back to where this came from, with the same row selected.
    fn leave(&mut self) {
        let (screen, from) = match self.screen {
            Screen::Rank(job, rank) => (Screen::Ranks(job), Subject::Rank(job, rank)),
            Screen::Ranks(job) => (Screen::Jobs, Subject::Job(job)),
            Screen::Nodes => return self.open(Screen::Jobs),
            Screen::Jobs => return self.filter.clear(),
        };
        self.open(screen);
        self.selected = self.rows().iter().position(|row| row.subject == from).unwrap_or(0);
    }

    fn clamp(&mut self) {
        let lines = match self.screen {
            Screen::Rank(..) => self.log.iter().flatten().map(|log| log.streams.len()).sum(),
            // Nearly always there is nothing to be counted.
            _ if self.selected == 0 => return,
            _ => self.rows().len(),
        };
        self.selected = self.selected.min(lines.saturating_sub(1));
    }

    /// The headings of the screen's rows.
    pub(super) fn columns(&self) -> &'static [&'static str] {
        match self.screen {
            Screen::Jobs => rows::JOBS,
            Screen::Nodes => rows::NODES,
            Screen::Ranks(_) => rows::RANKS,
            Screen::Rank(..) => &[],
        }
    }

    /// The column by which rows are sorted.
    pub(super) fn sorted_by(&self) -> Option<usize> {
        self.sort
    }

    pub(super) fn since(&self) -> Option<Since<'_>> {
        Some(Since::new(self.before.as_ref(), self.now.as_ref()?))
    }

    /// The screen's rows, those of the filter, in their order.
    pub(super) fn rows(&self) -> Vec<Row> {
        let (Some(Sample { status, .. }), Some(since)) = (&self.now, self.since()) else { return Vec::new() };
        let mut rows = match self.screen {
            Screen::Jobs => rows::jobs(status, &since, &|process| self.overhead(process)),
            Screen::Nodes => rows::nodes(status),
            Screen::Ranks(job) => rows::ranks(status, job, &since, self.peers(job), &|process| self.overhead(process)),
            Screen::Rank(..) => Vec::new(),
        };
        if !self.filter.is_empty() {
            let wanted = self.filter.to_lowercase();
            rows.retain(|row| row.cells.iter().any(|cell| cell.text().to_lowercase().contains(&wanted)));
        }
        if let Some(column) = self.sort {
            rows.sort_by(|a, b| {
                let (a, b) = (&a.cells[column], &b.cells[column]);
                match (a.number(), b.number()) {
                    // What is largest is looked for.
                    (Some(a), Some(b)) => b.total_cmp(&a),
                    _ => a.text().cmp(&b.text()),
                }
            });
        }
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Which part of the last seconds it stood at the gate, or was stopped for a checkpoint.
    pub(super) fn overhead(&self, process: &ProcessInfo) -> Option<f64> {
        self.overhead.get(&(process.job, process.rank)).and_then(|known| known.part)
    }

    /// What a rank does, in words.
    pub(super) fn does(&self, process: &ProcessInfo) -> Cow<'static, str> {
        let (Some(now), Some(since)) = (&self.now, self.since()) else { return "".into() };
        let of_job = now.status.processes.iter().filter(|other| other.job == process.job);
        let all = of_job.map(|other| (other.rank, since.of(other).does())).collect();
        let partners = self.peers(process.job).map(|peers| peers.partners(&all)).unwrap_or_default();
        since.of(process).does().with(partners.get(&process.rank).map_or(&[][..], Vec::as_slice))
    }

    /// The rank on the screen.
    pub(super) fn process(&self) -> Option<&ProcessInfo> {
        let (job, Some(rank)) = self.wanted()? else { return None };
        self.now.as_ref()?.status.processes.iter().find(|process| process.job == job && process.rank == rank)
    }
}
