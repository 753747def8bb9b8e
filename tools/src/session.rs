//! This terminal and an attached job: its output comes out here, what is typed and signalled here goes to it.
//!
//! One thread waits for everything at once: the daemon, the signals, standard input, and room in standard output. None of
//! them can hold up the others, so that an interrupt arrives though the output is paged.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::Signal;
use radic_wire::ids::{JobId, Rank};
use radic_wire::job::{EndReason, Outcome, OutputStream, Placement, exit_code};
use radic_wire::local::{NodeState, Reply, Request};
use radic_wire::process::Protect;
use serde_bytes::ByteBuf;

use crate::client::{self, ClientError, Cluster, Connection};
use crate::feed::{Feed, Lost};
use crate::format::report;
use crate::ledger::Ledger;
use crate::outcome;
use crate::printer::Printer;
use crate::suspend::on_signal::{OnSignal, Said, Suspender};
use crate::terminal::{Input, Output, Signals, Typed, WriteError};

/// Time that starting a job may take.
pub(crate) const START: Duration = Duration::from_secs(60);
/// Interrupts within [`INTERRUPT_SPAN`] that end the job.
const INTERRUPTS: usize = 3;
/// See [`INTERRUPTS`].
const INTERRUPT_SPAN: Duration = Duration::from_secs(5);
/// How often a command in the background of its terminal looks whether it has come to the foreground: no event tells.
const BACKGROUND: Duration = Duration::from_secs(1);
/// How long another daemon is asked about the job after the loss of ours: longer than a death takes to be confirmed.
const REATTACH: Duration = Duration::from_secs(10);
/// The pause between two attempts at it.
const REATTACH_PAUSE: Duration = Duration::from_millis(250);

/// Silence of the daemon after which it is asked whether it is there, and time for its answer: one that hangs would leave this
/// terminal waiting for ever, though the others may have declared its node dead.
const SILENCE: Duration = Duration::from_secs(5);

/// Whether the daemon is alive, as far as the connection shows.
struct Pulse {
    heard: Instant,
    asked: Option<Instant>,
}

impl Pulse {
    fn new(now: Instant) -> Self {
        Pulse { heard: now, asked: None }
    }

    /// When it is to be asked, or its time to answer is over.
    fn due(&self) -> Instant {
        self.asked.unwrap_or(self.heard) + SILENCE
    }
}

/// Why the session is over.
enum Ending {
    /// The job ended, and all its output was printed.
    Ended(Outcome),
    /// Another terminal shows the job now.
    TakenOver,
    /// The terminal died; the job goes on.
    Detached,
    /// Our output is closed at the other end.
    OutputClosed,
    /// The user did not want to wait for the end.
    Abandoned,
}

/// How the terminal's time with a job was over.
pub(crate) struct Shown {
    /// The exit code.
    pub(crate) code: u8,
    /// How the job ended; none: it may go on.
    pub(crate) outcome: Option<Outcome>,
}

/// Sends `request`, a `Run` or an `Attach`, and stays with the job until it ends. The result is the exit code.
pub(crate) fn attach(
    cluster: &Cluster,
    mut connection: Connection,
    request: &Request,
    label: bool,
    on_signal: Option<OnSignal>,
) -> Result<u8> {
    // Before the request: an interrupt from here on is one for the job.
    let signals = Signals::block(on_signal.as_ref().map(|on| on.signal)).context("cannot wait for signals")?;
    connection.send(request)?;
    let mut session = Session::new(cluster, connection, signals, label, on_signal);
    session.protected = matches!(request, Request::Run { spec, .. } if spec.protection.protect == Protect::On);
    let ending = session.run();
    let job = session.job.take().map(|(job, _)| job);
    // From here on the signals are deadly again: what follows may take a moment.
    drop(session);
    Ok(finish(cluster, job, ending?)?.code)
}

/// Stays with a job of which the daemon has just said on this connection, by `reply`, that it runs.
pub(crate) fn attached(
    cluster: &Cluster,
    connection: Connection,
    reply: Reply,
    label: bool,
    on_signal: Option<OnSignal>,
) -> Result<Shown> {
    let signals = Signals::block(on_signal.as_ref().map(|on| on.signal)).context("cannot wait for signals")?;
    let mut session = Session::new(cluster, connection, signals, label, on_signal);
    session.protected = true;
    let ending = match session.handle_reply(reply)? {
        Some(ending) => Ok(ending),
        None => session.run(),
    };
    let job = session.job.take().map(|(job, _)| job);
    drop(session);
    finish(cluster, job, ending?)
}

fn finish(cluster: &Cluster, job: Option<JobId>, ending: Ending) -> Result<Shown> {
    let code = match ending {
        Ending::Ended(outcome) => return Ok(Shown { code: outcome::exit_code(outcome.code), outcome: Some(outcome) }),
        Ending::TakenOver => {
            eprintln!("radic: the job is shown at another terminal now; its end will be reported there");
            outcome::exit_code(exit_code::RADIC)
        }
        Ending::Detached => signal_code(Signal::SIGHUP),
        Ending::OutputClosed => {
            // As SIGPIPE would have ended a program whose reader wants no more.
            if let Some(job) = job {
                cluster.ask(&Request::Kill { job: job.to_string() }, client::ANSWER)?;
            }
            signal_code(Signal::SIGPIPE)
        }
        Ending::Abandoned => {
            let left = match job {
                Some(job) => format!("`radic jobs` shows whether job {job} is still there, `radic kill {job}` ends it"),
                None => "the job may be starting: see `radic jobs`".into(),
            };
            eprintln!("radic: not waiting any longer; {left}");
            signal_code(Signal::SIGINT)
        }
    };
    Ok(Shown { code, outcome: None })
}

/// The exit code of a shell for a command that a signal ended.
fn signal_code(signal: Signal) -> u8 {
    outcome::exit_code(128 + signal as i32)
}

/// What `poll` found.
struct Ready {
    signals: bool,
    suspender: bool,
    socket: bool,
    outlets: [bool; 2],
    input: PollFlags,
}

struct Session<'a> {
    cluster: &'a Cluster,
    connection: Connection,
    signals: Signals,
    job: Option<(JobId, Placement)>,
    /// Whether the job is known to go on without its home.
    protected: bool,
    /// When the daemon must have answered to `Run` or `Attach`.
    answer_by: Option<Instant>,
    pulse: Pulse,
    /// Signals that came before the job was there.
    early: Vec<Signal>,
    printer: Printer,
    ledger: Ledger,
    /// Of each stream that has spoken: the offset of the byte that was not seen yet.
    next: BTreeMap<(Rank, OutputStream), u64>,
    output: Output,
    input: Input,
    feed: Feed,
    /// Recent interrupts.
    interrupts: VecDeque<Instant>,
    hinted: bool,
    /// Carries `Kill`; kept until the end, as closing it might be taken for a change of mind.
    killer: Option<Connection>,
    outcome: Option<Outcome>,
    /// The signal that suspends the job, and what has become of it.
    on_signal: Option<OnSignal>,
    suspending: Suspending,
}

/// Whether this terminal suspends its job.
enum Suspending {
    No,
    /// As soon as there is a job.
    Wanted,
    Begun(Suspender),
}

impl<'a> Session<'a> {
    fn new(cluster: &'a Cluster, connection: Connection, signals: Signals, label: bool, on_signal: Option<OnSignal>) -> Self {
        let output = Output::new();
        Session {
            cluster,
            connection,
            signals,
            job: None,
            protected: false,
            answer_by: Some(Instant::now() + START),
            pulse: Pulse::new(Instant::now()),
            early: Vec::new(),
            printer: Printer::new(output.style(label)),
            ledger: Ledger::default(),
            next: BTreeMap::new(),
            output,
            input: Input::new(),
            feed: Feed::default(),
            interrupts: VecDeque::new(),
            hinted: false,
            killer: None,
            outcome: None,
            on_signal,
            suspending: Suspending::No,
        }
    }

    fn run(&mut self) -> Result<Ending> {
        loop {
            while let Some(piece) = self.printer.poll_piece() {
                self.output.push(piece);
            }
            let told = match &mut self.suspending {
                Suspending::Begun(suspender) if self.outcome.is_some() => suspender.is_told(Instant::now()),
                _ => true,
            };
            if self.output.is_empty()
                && told
                && let Some(outcome) = self.outcome.take()
            {
                return Ok(Ending::Ended(outcome));
            }
            let ready = self.wait()?;
            if let Some(ending) = self.handle_ready(&ready)? {
                return Ok(ending);
            }
        }
    }

    fn handle_ready(&mut self, ready: &Ready) -> Result<Option<Ending>> {
        if ready.signals
            && let Some(ending) = self.handle_signals()?
        {
            return Ok(Some(ending));
        }
        if ready.suspender {
            self.handle_suspender();
        }
        for outlet in (0..2).filter(|i| ready.outlets[*i]) {
            if let Some(ending) = self.handle_writable(outlet)? {
                return Ok(Some(ending));
            }
        }
        if !ready.input.is_empty() {
            self.handle_input(ready.input)?;
        }
        let now = Instant::now();
        self.printer.handle_timeout(now);
        let ending = if ready.socket { self.handle_socket()? } else { None };
        if self.answer_by.is_some_and(|limit| limit <= now) {
            return Err(ClientError::Late { node: self.connection.node().to_owned(), limit: START }.into());
        }
        if ending.is_some() { Ok(ending) } else { self.check_pulse(now) }
    }

    /// Called after everything that has come was read.
    fn check_pulse(&mut self, now: Instant) -> Result<Option<Ending>> {
        if !self.has_pulse() || now < self.pulse.due() {
            return Ok(None);
        }
        if self.pulse.asked.is_some() {
            let silent = ClientError::Late { node: self.connection.node().to_owned(), limit: SILENCE };
            return self.handle_replies(Some(silent));
        }
        self.pulse.asked = Some(now);
        self.send(&Request::Ping)?;
        Ok(None)
    }

    /// Whether anything is to be expected of the daemon: a job is attached, and its end has not been told.
    fn has_pulse(&self) -> bool {
        self.job.is_some() && self.answer_by.is_none() && self.outcome.is_none()
    }

    fn wait(&self) -> Result<Ready> {
        let talking = self.outcome.is_none();
        let wants_input = talking && self.job.is_some() && self.feed.is_hungry() && self.input.is_open();
        let background = wants_input && self.input.in_background();
        let (out, err, stdin) = (io::stdout(), io::stderr(), io::stdin());
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        let mut add = |wanted: bool, fd| {
            wanted.then(|| {
                fds.push(fd);
                fds.len() - 1
            })
        };
        let socket = add(talking, PollFd::new(self.connection.as_fd(), self.connection.interest()));
        let outlets = [0, 1].map(|i| {
            let stream = self.output.wanted(i);
            let fd = if stream == Some(radic_wire::job::OutputStream::Stdout) { out.as_fd() } else { err.as_fd() };
            add(stream.is_some(), PollFd::new(fd, PollFlags::POLLOUT))
        });
        let input = add(wants_input && !background, PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        let suspender = match &self.suspending {
            Suspending::Begun(suspender) => Some(suspender),
            _ => None,
        };
        let said = suspender.and_then(|suspender| add(true, PollFd::new(suspender.as_fd(), PollFlags::POLLIN)));
        let pulse = self.has_pulse().then(|| self.pulse.due());
        let told = suspender.and_then(Suspender::due);
        let due = self.printer.poll_timeout().into_iter().chain(self.answer_by).chain(pulse).chain(told).min();
        let limit = due.map(|due| due.saturating_duration_since(Instant::now())).into_iter();
        let limit = limit.chain(background.then_some(BACKGROUND)).min();
        client::poll_fds(&mut fds, limit).context("waiting for the job")?;
        let events = |index: Option<usize>| index.and_then(|i| fds[i].revents()).unwrap_or(PollFlags::empty());
        Ok(Ready {
            signals: !events(Some(0)).is_empty(),
            suspender: !events(said).is_empty(),
            socket: !events(socket).is_empty(),
            outlets: outlets.map(|i| !events(i).is_empty()),
            input: events(input),
        })
    }

    fn handle_signals(&mut self) -> Result<Option<Ending>> {
        while let Some(signal) = self.signals.next().context("reading signals")? {
            if signal == Signal::SIGHUP {
                return Ok(Some(Ending::Detached));
            }
            if self.is_to_suspend(signal) {
                self.begin_suspending();
                continue;
            }
            // The job is over; only its output is still to be read, by a reader that takes its time.
            if let Some(outcome) = self.outcome.take() {
                return Ok(Some(Ending::Ended(outcome)));
            }
            if signal == Signal::SIGINT
                && let Some(ending) = self.handle_interrupt()
            {
                return Ok(Some(ending));
            }
            match self.job {
                Some(_) => self.send(&Request::Signal(signal as i32))?,
                None => self.early.push(signal),
            }
        }
        Ok(None)
    }

    fn is_to_suspend(&self, signal: Signal) -> bool {
        self.on_signal.as_ref().is_some_and(|on| on.signal == signal)
    }

    fn begin_suspending(&mut self) {
        let (Some(on), None) = (&self.on_signal, &self.outcome) else { return };
        self.suspending = match (std::mem::replace(&mut self.suspending, Suspending::No), &self.job) {
            (begun @ Suspending::Begun(_), _) => {
                self.printer.handle_message(&format!("radic: {}: the job is being suspended already", on.signal));
                begun
            }
            (_, None) => Suspending::Wanted,
            (_, Some((job, _))) => {
                let (signal, dir) = (on.signal, on.dir.display());
                self.printer.handle_message(&format!("radic: {signal}: suspending job {job} into {dir}"));
                match Suspender::begin(self.cluster, *job, on) {
                    Ok(suspender) => Suspending::Begun(suspender),
                    Err(error) => {
                        self.printer.handle_message(&format!("radic: it cannot be suspended, and goes on: {error}"));
                        Suspending::No
                    }
                }
            }
        };
    }

    fn handle_suspender(&mut self) {
        let Suspending::Begun(suspender) = &mut self.suspending else { return };
        let mut is_over = false;
        for said in suspender.said() {
            match said {
                Said::Line(line) => self.printer.handle_message(&line),
                Said::Over => is_over = true,
            }
        }
        if is_over {
            self.suspending = Suspending::No;
        }
    }

    fn handle_interrupt(&mut self) -> Option<Ending> {
        if self.killer.is_some() {
            return Some(Ending::Abandoned);
        }
        let now = Instant::now();
        self.interrupts.retain(|at| now.duration_since(*at) < INTERRUPT_SPAN);
        self.interrupts.push_back(now);
        if self.interrupts.len() < INTERRUPTS {
            if !std::mem::replace(&mut self.hinted, true) {
                let span = INTERRUPT_SPAN.as_secs();
                let hint = format!("radic: interrupt passed on to the ranks; two more within {span} s end the job");
                self.printer.handle_message(&hint);
            }
            return None;
        }
        let Some((job, _)) = self.job else { return Some(Ending::Abandoned) };
        self.printer.handle_message("radic: ending the job; one more interrupt, and it is not waited for");
        // On a connection of its own: ours may be stuck.
        let killer = self.cluster.connect(None).and_then(|mut connection| {
            connection.send(&Request::Kill { job: job.to_string() })?;
            Ok(connection)
        });
        match killer {
            Ok(connection) => self.killer = Some(connection),
            Err(e) => self.printer.handle_message(&format!("radic: {e}")),
        }
        None
    }

    fn handle_writable(&mut self, outlet: usize) -> Result<Option<Ending>> {
        match self.output.write(outlet) {
            Ok(ranges) => {
                ranges.into_iter().for_each(|range| self.ledger.handle_printed(range));
                self.report_printed()?;
                Ok(None)
            }
            Err(WriteError::Closed) => Ok(Some(Ending::OutputClosed)),
            Err(WriteError::Terminal) => Ok(Some(Ending::Detached)),
            Err(WriteError::Failed(e)) => Err(e).context(self.detached("the output cannot be written")),
        }
    }

    /// Tells the job what was printed since it was told last: it sends no more than a window ahead of that.
    fn report_printed(&mut self) -> Result<()> {
        let credit = self.ledger.poll_credit();
        if credit > 0 && self.outcome.is_none() {
            self.send(&Request::Printed(credit))?;
        }
        Ok(())
    }

    fn detached(&self, what: &str) -> String {
        match self.job {
            Some((job, _)) => format!("{what}; job {job} goes on without this terminal: `radic attach {job}`"),
            None => what.to_owned(),
        }
    }

    fn handle_input(&mut self, events: PollFlags) -> Result<()> {
        match self.input.read(events) {
            Typed::Nothing | Typed::Gone => {}
            Typed::Bytes(bytes) if bytes.is_empty() => self.feed.handle_end(),
            Typed::Bytes(bytes) => self.feed.handle_typed(&bytes),
        }
        self.send_input()?;
        if !self.input.is_open() {
            self.printer.handle_end_of_input();
        }
        Ok(())
    }

    /// Sends, or looks for another daemon if this one is gone.
    fn send(&mut self, request: &Request) -> Result<()> {
        match self.connection.send(request) {
            // The reader finds out soon enough, and knows what to do.
            Err(ClientError::Lost { .. }) => Ok(()),
            result => Ok(result?),
        }
    }

    fn handle_socket(&mut self) -> Result<Option<Ending>> {
        let lost = self.connection.flush().and_then(|()| self.connection.read()).err();
        self.handle_replies(lost)
    }

    /// Handles what has come; first, if it is so, that the daemon is lost.
    fn handle_replies(&mut self, mut lost: Option<ClientError>) -> Result<Option<Ending>> {
        // Every reply that is here is handled: the socket may never poll readable again.
        while self.outcome.is_none() {
            let ending = match lost.take().map_or_else(|| self.connection.next_reply(), Err) {
                Ok(None) => break,
                Ok(Some(reply)) => self.handle_reply(reply)?,
                Err(lost) => self.reattach(lost)?,
            };
            if ending.is_some() {
                return Ok(ending);
            }
        }
        Ok(None)
    }

    fn handle_reply(&mut self, reply: Reply) -> Result<Option<Ending>> {
        self.pulse = Pulse::new(Instant::now());
        match reply {
            Reply::Pong => {}
            Reply::Attached { job, placement, dropped, .. } => {
                self.handle_attached(job, placement, dropped)?;
            }
            Reply::Output { rank, stream, offset, data } => self.handle_output(rank, stream, offset, &data)?,
            Reply::StdinFrom(from) => self.handle_input_wanted(from)?,
            Reply::Notice(text) => report(&format!("radic: warning: {text}")),
            Reply::TakenOver => return Ok(Some(Ending::TakenOver)),
            Reply::Ended(outcome) => self.handle_ended(outcome),
            Reply::Error(text) => return Err(ClientError::Refused(text).into()),
            other => return Err(self.connection.unexpected(&other).into()),
        }
        Ok(None)
    }

    fn handle_input_wanted(&mut self, from: Option<u64>) -> Result<()> {
        match self.feed.handle_asked(from) {
            Ok(()) => self.send_input(),
            Err(lost) => Err(self.give_up(lost)),
        }
    }

    fn send_input(&mut self) -> Result<()> {
        match self.feed.poll_piece() {
            Some((offset, data)) => self.send(&Request::Stdin { offset, data: ByteBuf::from(data) }),
            None => Ok(()),
        }
    }

    /// Rank 0 would read on at another place than it stands: the job ends instead.
    fn give_up(&mut self, lost: Lost) -> anyhow::Error {
        let Some((job, _)) = self.job else { return lost.into() };
        match self.cluster.ask(&Request::Kill { job: job.to_string() }, client::ANSWER) {
            Ok(_) => anyhow::Error::from(lost).context(format!("job {job} was ended")),
            Err(error) => anyhow::Error::from(lost)
                .context(format!("job {job} cannot go on, and cannot be ended ({error}): `radic kill {job}`")),
        }
    }

    /// Output of a rank, or its end (none). After the death of a daemon some comes again.
    fn handle_output(&mut self, rank: Rank, stream: OutputStream, offset: u64, data: &[u8]) -> Result<()> {
        let next = self.next.entry((rank, stream)).or_insert(offset);
        let lost = offset.saturating_sub(*next);
        let known = next.saturating_sub(offset).min(data.len() as u64);
        *next = (*next).max(offset + data.len() as u64);
        if lost > 0 {
            self.printer
                .handle_message(&format!("radic: {lost} bytes of rank {rank}'s output were dropped: they were not read in time"));
        }
        let new = &data[known as usize..];
        let start = self.ledger.receive(known, new.len() as u64);
        self.printer.handle_output(Instant::now(), rank, stream, start, new);
        if data.is_empty() {
            self.printer.handle_end(rank, stream);
        }
        // What comes again is not printed again, so it is reported here: else a whole window of it would never count as printed.
        if known > 0 { self.report_printed() } else { Ok(()) }
    }

    fn handle_attached(&mut self, job: JobId, placement: Placement, dropped: u64) -> Result<()> {
        self.job = Some((job, placement));
        self.answer_by = None;
        if dropped > 0 {
            self.printer
                .handle_message(&format!("radic: {dropped} bytes of earlier output were dropped: they were not read in time"));
        }
        if matches!(self.suspending, Suspending::Wanted) {
            self.begin_suspending();
        }
        self.send_early()
    }

    /// Passes on the signals that came before there was a job to pass them on to.
    fn send_early(&mut self) -> Result<()> {
        for signal in std::mem::take(&mut self.early) {
            self.send(&Request::Signal(signal as i32))?;
        }
        Ok(())
    }

    fn handle_ended(&mut self, outcome: Outcome) {
        self.printer.finish();
        if let Some(text) = outcome::explain(&outcome) {
            self.printer.handle_message(&text);
        }
        self.outcome = Some(outcome);
    }

    /// Our daemon is gone. The job may go on elsewhere, and if it died with that node, the others can tell.
    fn reattach(&mut self, lost: ClientError) -> Result<Option<Ending>> {
        let Some((job, placement)) = self.job.clone() else {
            return Err(lost).context("whether the job has started is not known: see `radic jobs`");
        };
        let node = self.connection.node().to_owned();
        self.printer.handle_message(&format!("radic: {lost}; asking the other nodes about job {job}"));
        let deadline = Instant::now() + REATTACH;
        let mut why = lost;
        while Instant::now() < deadline {
            match self.ask_others(&node, job, &placement) {
                Ok(()) => {
                    self.send_early()?;
                    return Ok(None);
                }
                Err(e @ (ClientError::NoAnswer { .. } | ClientError::NoCluster { .. })) => return Err(e.into()),
                Err(e) => why = e,
            }
            let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            client::poll_fds(&mut fds, Some(REATTACH_PAUSE)).context("waiting for a daemon")?;
            match self.signals.next().context("reading signals")? {
                Some(Signal::SIGHUP) => return Ok(Some(Ending::Detached)),
                Some(signal) if self.is_to_suspend(signal) => self.begin_suspending(),
                Some(Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT) => return Ok(Some(Ending::Abandoned)),
                Some(signal) => self.early.push(signal),
                None => {}
            }
        }
        Err(why).context(self.detached("this terminal has lost its job"))
    }

    fn ask_others(&mut self, lost: &str, job: JobId, placement: &Placement) -> Result<(), ClientError> {
        let mut connection = self.cluster.connect(Some(lost))?;
        let home = placement.home();
        if home.name.as_str() == lost {
            return match connection.ask(&Request::Status, client::ANSWER)? {
                Reply::Status(status) => {
                    let member = |state| matches!(state, NodeState::Alive | NodeState::Silent);
                    if status.nodes.iter().any(|n| n.name == home.name && member(n.state)) {
                        return Err(ClientError::Refused(format!("the other nodes have not declared {lost} dead")));
                    }
                    // A protected job gets a new home; one that has it already is asked for there.
                    if status.jobs.iter().any(|j| j.job == job) {
                        return self.attach_at(self.cluster.connect(Some(lost))?, job);
                    }
                    if self.protected || status.processes.iter().any(|p| p.job == job && p.protect == Protect::On) {
                        return Err(ClientError::Refused(format!("job {job} has no new home yet")));
                    }
                    let why = "its daemon closed the connection, and the others declared it dead".into();
                    let reason = EndReason::NodeLost { node: home.name.clone(), ranks: placement.ranks_on(home).collect(), why };
                    self.handle_ended(Outcome { code: exit_code::NODE_LOST, reason });
                    Ok(())
                }
                other => Err(connection.unexpected(&other)),
            };
        }
        self.attach_at(connection, job)
    }

    /// Goes on with the job at another daemon.
    fn attach_at(&mut self, mut connection: Connection, job: JobId) -> Result<(), ClientError> {
        match connection.ask(&Request::Attach { job: job.to_string() }, client::ANSWER)? {
            Reply::Attached { .. } => {}
            other => return Err(connection.unexpected(&other)),
        }
        self.connection = connection;
        self.pulse = Pulse::new(Instant::now());
        self.ledger.handle_reattached();
        Ok(())
    }
}
