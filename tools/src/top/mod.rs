//! `radic top`: the cluster on one screen, while it changes.
//!
//! One thread asks for the state, one follows events, one reads keys, one waits for signals; all tell the first thread, which alone has the model and draws.

mod draw;
mod model;
mod rows;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use nix::poll::{PollFd, PollFlags};
use radic_wire::event::Event;
use radic_wire::ids::{JobId, Rank};
use radic_wire::local::{ClusterStatus, Reply, Request, Traffic};
use radic_wire::log::HeldLog;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event as Typed, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};

use crate::client::{self, ClientError, Cluster, ask_status};
use crate::format::print;
use crate::log::Held;
use crate::terminal::Signals;

use self::draw::{Theme, draw};
use self::model::{Key, Model};

/// Inputs that were not handled yet; a thread with more waits.
const INPUTS: usize = 64;
/// Time between two looks at how much each rank of a job has sent to each: the nodes look through their streams for that.
const TRAFFIC: Duration = Duration::from_secs(2);
/// The screen of `--once`, if the environment does not say another size.
const SIZE: (u16, u16) = (80, 24);

/// Flags of `radic top`.
#[derive(Args)]
pub(crate) struct TopArgs {
    /// Time between two looks at the cluster, in seconds: 0.5, 2
    #[arg(long, short, value_name = "S", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// Print one screen and end; no terminal is needed. It is COLUMNS wide and LINES high, or 80 and 24, and takes one interval: rates are of two looks
    #[arg(long)]
    once: bool,
    /// Begin with the ranks of this job: a job, or its first digits
    #[arg(value_name = "JOB")]
    job: Option<String>,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "an interval is 0.1 to 3600 seconds".to_owned())
}

/// The job and the rank on the screen.
type Wanted = Option<(JobId, Option<Rank>)>;

/// What happens.
enum Input {
    Status(ClusterStatus),
    Log(JobId, Rank, Result<HeldLog, String>),
    Traffic(JobId, Traffic),
    Trouble(String),
    FirstEvents,
    Events(Vec<Event>),
    Key(Key),
    /// The terminal has another size.
    Resized,
    Quit,
}

/// `radic top`.
pub(crate) fn top(cluster: &Cluster, args: &TopArgs) -> Result<()> {
    // That there is no cluster is said in words, before the terminal is ours.
    let status = ask_status(cluster)?;
    let mut model = Model::new();
    model.handle_status(Duration::ZERO, status);
    if let Some(job) = &args.job {
        open_job(&mut model, job)?;
    }
    if args.once {
        return once(cluster, args.interval, model);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!(
            "standard input and output are no terminal: `radic top --once` prints one screen, `radic status --json` is for programs"
        );
    }
    interactive(cluster, args.interval, model)
}

fn open_job(model: &mut Model, wanted: &str) -> Result<()> {
    let jobs = model.now.iter().flat_map(|now| &now.status.jobs);
    let wanted = wanted.to_ascii_lowercase();
    let found: Vec<JobId> = jobs.map(|job| job.job).filter(|job| job.to_string().starts_with(&wanted)).collect();
    match found[..] {
        [job] => model.screen = model::Screen::Ranks(job),
        [] => bail!("there is no job {wanted}: `radic jobs --all` lists them"),
        _ => bail!("several jobs begin with {wanted}: give more digits"),
    }
    Ok(())
}

/// NO_COLOR, if it says anything, asks for none (no-color.org); so does a terminal that has none.
fn theme() -> Theme {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    Theme { color: set("NO_COLOR").is_none() && set("TERM").is_some_and(|term| term != "dumb" && term != "vt100") }
}

fn once(cluster: &Cluster, interval: Duration, mut model: Model) -> Result<()> {
    let started = Instant::now();
    show_traffic(cluster, &mut model);
    let mut connection = cluster.connect(None)?;
    connection.send(&Request::Events { follow: true })?;
    // Events that come meanwhile are shown, too.
    while let Some(reply) = connection.wait(Some(started + interval))? {
        if let Reply::Events(events) = reply {
            model.handle_events(events);
        }
    }
    model.handle_status(started.elapsed(), ask_status(cluster)?);
    show_traffic(cluster, &mut model);
    let size = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (width, height) = (size("COLUMNS", SIZE.0).clamp(20, 1000), size("LINES", SIZE.1).clamp(5, 1000));
    Ok(print(&text(&model, width, height)?)?)
}

/// Of the job on the screen. Without it no rank says with which others it has to do.
fn show_traffic(cluster: &Cluster, model: &mut Model) {
    if let Some((job, _)) = model.wanted()
        && let Some(traffic) = ask_traffic(cluster, job)
    {
        model.handle_traffic(job, traffic);
    }
}

fn ask_traffic(cluster: &Cluster, job: JobId) -> Option<Traffic> {
    match cluster.ask(&Request::Traffic(job), client::ANSWER) {
        Ok(Reply::Traffic(traffic)) => Some(traffic),
        // The state says what is wrong.
        _ => None,
    }
}

/// A screen as lines of text.
fn text(model: &Model, width: u16, height: u16) -> Result<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height))?;
    terminal.draw(|frame| draw(model, Theme { color: false }, frame))?;
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    Ok((0..height).map(|y| format!("{}\n", line(y).trim_end())).collect())
}

fn interactive(cluster: &Cluster, interval: Duration, mut model: Model) -> Result<()> {
    // Before any thread begins, so that they are all without these signals.
    let signals = Signals::block(None).context("cannot wait for signals")?;
    let started = Instant::now();
    let (sender, inputs) = sync_channel(INPUTS);
    let (wanted_sender, wanted) = channel();
    let (of_state, state_sender) = (cluster.clone(), sender.clone());
    let (of_events, event_sender, key_sender) = (cluster.clone(), sender.clone(), sender.clone());
    thread::spawn(move || ask(&of_state, interval, &wanted, &state_sender));
    thread::spawn(move || follow(&of_events, interval, &event_sender));
    thread::spawn(move || wait_for_signals(signals, &sender));
    let mut terminal = begin_terminal().context("the terminal cannot be used")?;
    thread::spawn(move || read_keys(&key_sender));
    let result = show(&mut model, &mut terminal, started, &inputs, &wanted_sender);
    ratatui::restore();
    result
}

/// A terminal that does not know its size, as a serial line, has the usual one.
fn begin_terminal() -> io::Result<ratatui::DefaultTerminal> {
    match terminal::size() {
        Ok((0, _) | (_, 0)) => {
            let viewport = Viewport::Fixed(Rect::new(0, 0, SIZE.0, SIZE.1));
            ratatui::try_init_with_options(TerminalOptions { viewport })
        }
        _ => ratatui::try_init(),
    }
}

fn show(
    model: &mut Model,
    terminal: &mut ratatui::DefaultTerminal,
    started: Instant,
    inputs: &Receiver<Input>,
    wanted: &Sender<Wanted>,
) -> Result<()> {
    let theme = theme();
    let mut told = None;
    while !model.over {
        terminal.draw(|frame| draw(model, theme, frame)).context("the terminal cannot be written to")?;
        if model.wanted() != told {
            told = model.wanted();
            let _ = wanted.send(told);
        }
        let Ok(input) = inputs.recv() else { break };
        handle(model, started, input);
        // Whatever waits already is drawn together with it.
        inputs.try_iter().for_each(|input| handle(model, started, input));
    }
    Ok(())
}

fn handle(model: &mut Model, started: Instant, input: Input) {
    match input {
        Input::Status(status) => model.handle_status(started.elapsed(), status),
        Input::Log(job, rank, log) => model.handle_log(job, rank, log),
        Input::Traffic(job, traffic) => model.handle_traffic(job, traffic),
        Input::Trouble(why) => model.handle_trouble(why),
        Input::FirstEvents => model.handle_first_events(),
        Input::Events(events) => model.handle_events(events),
        Input::Key(key) => model.handle_key(key),
        Input::Resized => {}
        Input::Quit => model.over = true,
    }
}

/// Asks for the state, for the traffic of the job that is on the screen, and for the log of the rank that is.
fn ask(cluster: &Cluster, interval: Duration, wanted: &Receiver<Wanted>, inputs: &SyncSender<Input>) {
    let (mut shown, mut traffic_at) = (None, Instant::now());
    loop {
        match wanted.recv_timeout(interval) {
            Ok(other) => (shown, traffic_at) = (other, Instant::now()),
            Err(RecvTimeoutError::Timeout) => {
                let asked = ask_status(cluster);
                let input = asked.map_or_else(|error| Input::Trouble(error.to_string()), Input::Status);
                if inputs.send(input).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let Some((job, rank)) = shown else { continue };
        if traffic_at <= Instant::now()
            && let Some(traffic) = ask_traffic(cluster, job)
        {
            traffic_at = Instant::now() + TRAFFIC;
            let _ = inputs.send(Input::Traffic(job, traffic));
        }
        if let Some(rank) = rank {
            let log = Held::open(cluster, job.to_string(), rank).map(|held| held.log).map_err(|error| format!("{error:#}"));
            let _ = inputs.send(Input::Log(job, rank, log));
        }
    }
}

/// Follows events, at another daemon if need be.
fn follow(cluster: &Cluster, pause: Duration, inputs: &SyncSender<Input>) {
    let follow_one = || -> Result<(), ClientError> {
        let mut connection = cluster.connect(None)?;
        connection.send(&Request::Events { follow: true })?;
        let _ = inputs.send(Input::FirstEvents);
        while let Some(reply) = connection.wait(None)? {
            match reply {
                Reply::Events(events) => _ = inputs.send(Input::Events(events)),
                other => return Err(connection.unexpected(&other)),
            }
        }
        Ok(())
    };
    loop {
        // The state says what is wrong. No event tells when a daemon answers again.
        let _ = follow_one();
        thread::sleep(pause);
    }
}

fn wait_for_signals(mut signals: Signals, inputs: &SyncSender<Input>) {
    loop {
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        if client::poll_fds(&mut fds, None).is_err() {
            return;
        }
        if let Ok(Some(_)) = signals.next() {
            let _ = inputs.send(Input::Quit);
        }
    }
}

fn read_keys(inputs: &SyncSender<Input>) {
    loop {
        let input = match event::read() {
            Ok(Typed::Key(key)) if key.kind != KeyEventKind::Release => key_of(key),
            Ok(Typed::Resize(..)) => Some(Input::Resized),
            Ok(_) => None,
            // The terminal is gone.
            Err(_) => Some(Input::Quit),
        };
        let is_last = matches!(input, Some(Input::Quit));
        if let Some(input) = input
            && (inputs.send(input).is_err() || is_last)
        {
            return;
        }
    }
}

fn key_of(key: KeyEvent) -> Option<Input> {
    let key = match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Some(Input::Quit),
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::First,
        KeyCode::End => Key::Last,
        KeyCode::Enter | KeyCode::Right => Key::Enter,
        KeyCode::Esc | KeyCode::Left => Key::Back,
        KeyCode::Backspace => Key::Erase,
        _ => return None,
    };
    Some(Input::Key(key))
}
