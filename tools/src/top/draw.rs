//! The screen of `radic top`, drawn from its model.

use std::borrow::Cow;
use std::ops::Range;

use radic_wire::event::EventName;
use radic_wire::local::{ClusterStatus, NodeState};
use radic_wire::log::ImageState;
use radic_wire::membership::Role;
use radic_wire::process::Counters;
use radic_wire::since::Health;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};

use crate::format::{bytes, clean, duration, utc};
use crate::log::stream_text;

use super::model::{Model, Screen};
use super::rows::{self, Cell, Row};

/// Rows of nodes above jobs and ranks; `n` shows all of them.
const RING: usize = 5;
/// Lines of events, if there is room.
const EVENTS: u16 = 5;
/// Space between two columns.
const GAP: usize = 1;

const HELP: &str = "\
Up Down PgUp PgDn Home End   select
Enter                        a job's ranks; a rank's streams
Esc Backspace                back
j n                          jobs; nodes
s r                          sort by the next column; reverse
/                            only rows with a text; Enter keeps it, Esc drops it
Space p                      hold the picture, go on
q Ctrl-C                     leave

DOES        sends, receives and waits: with the ranks that is about; a rank
            waits for those that do something, also by way of others that wait
IN/s OUT/s  received and sent on protected connections
OUTBOX      what receivers' protectors do not have yet
LOG IMAGES  what the rank's protector holds for a restart
CKPT        age of the last checkpoint (of a job: the oldest)
OVHD        part of the last seconds at the gate (sends wait for the log) and
            in pauses for checkpoints; of a job: the mean of its ranks
LOAD STORE  ranks for each slot; logs and images held there";

/// How things stand out. Without colour (NO_COLOR) bold and reverse remain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Theme {
    pub(super) color: bool,
}

impl Theme {
    fn with(self, color: Color, modifier: Modifier) -> Style {
        let style = Style::new().add_modifier(modifier);
        if self.color { style.fg(color) } else { style }
    }

    fn health(self, health: Health) -> Style {
        match health {
            Health::Good => Style::new(),
            Health::Troubled => self.with(Color::Yellow, Modifier::BOLD),
            Health::Gone => self.with(Color::DarkGray, Modifier::empty()),
        }
    }

    fn heading(self) -> Style {
        self.with(Color::Cyan, Modifier::BOLD)
    }

    fn alarm(self) -> Style {
        self.with(Color::Red, Modifier::BOLD)
    }
}

pub(super) fn draw(model: &Model, theme: Theme, frame: &mut Frame<'_>) {
    let area = frame.area();
    let ring = match model.screen {
        Screen::Jobs | Screen::Ranks(_) => model.now.as_ref().map_or(0, |now| now.status.nodes.len().min(RING) + 2),
        Screen::Nodes | Screen::Rank(..) => 0,
    };
    // A low terminal keeps the rows, and loses nodes and events.
    let ring = (ring as u16).min(area.height.saturating_sub(10));
    let events = (EVENTS + 1).min(area.height.saturating_sub(ring + 8));
    let parts = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(ring),
        Constraint::Min(1),
        Constraint::Length(events),
        Constraint::Length(1),
    ]);
    let [head, ring, main, events, keys] = parts.areas(area);
    draw_head(model, theme, frame, head);
    if let Some(now) = &model.now {
        draw_ring(&now.status, theme, frame, ring);
    }
    match model.screen {
        Screen::Rank(..) => draw_rank(model, theme, frame, main),
        _ => draw_rows(model, theme, frame, main),
    }
    draw_events(model, theme, frame, events);
    frame.render_widget(Paragraph::new(keys_line(model, theme)), keys);
    if model.help {
        let lines = HELP.lines().count() as u16;
        let box_ = Rect { height: lines.min(area.height.saturating_sub(3)), y: 2, ..area };
        frame.render_widget(Clear, box_);
        frame.render_widget(Paragraph::new(HELP), box_);
    }
}

fn draw_head(model: &Model, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    let mut first = vec![Span::styled("radic top", theme.heading())];
    let Some(now) = &model.now else {
        let why = model.trouble.clone().unwrap_or_else(|| "asking the cluster".into());
        return frame.render_widget(Paragraph::new(format!("radic top  {}", clean(&why))), area);
    };
    let status = &now.status;
    let alive = status.nodes.iter().filter(|node| node.state == NodeState::Alive).count();
    let running = status.jobs.iter().filter(|job| job.outcome.is_none()).count();
    first.push(Span::raw(format!(
        "  view {} as {} sees it  {alive} of {} nodes alive  jobs running: {running}",
        status.view,
        status.answered_by,
        status.nodes.len()
    )));
    if model.paused {
        first.push(Span::styled("  HELD", theme.alarm()));
    }
    if status.frozen {
        first.push(Span::styled("  FROZEN: no majority", theme.alarm()));
    }
    let second = match &model.trouble {
        Some(why) => Line::styled(clean(why), theme.alarm()),
        None => Line::raw(ring_text(status)),
    };
    frame.render_widget(Paragraph::new(vec![Line::from(first), second]), area);
}

/// Which node watches which: each is watched by the next.
fn ring_text(status: &ClusterStatus) -> String {
    let member = |role: Role| {
        let there = status
            .nodes
            .iter()
            .filter(move |node| node.role == role && matches!(node.state, NodeState::Alive | NodeState::Silent));
        there.map(|node| node.name.as_str()).collect::<Vec<_>>()
    };
    let of_ring = member(Role::Node);
    let mut text = format!("ring  {}", of_ring.join(" > "));
    if of_ring.len() > 1 {
        text += " > (first)";
    }
    for (role, what) in [(Role::Spare, "spares"), (Role::Witness, "witness")] {
        let names = member(role);
        if !names.is_empty() {
            text += &format!("   {what} {}", names.join(" "));
        }
    }
    text
}

fn draw_ring(status: &ClusterStatus, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    if area.height == 0 {
        return;
    }
    let room = usize::from(area.height.saturating_sub(2));
    let (all, width) = (status.nodes.len(), usize::from(area.width));
    if all > room {
        let shown = room.saturating_sub(1);
        let rows = rows::troubled_nodes(status, shown);
        let mut lines = table(rows::NODES, &rows, None, None, 0..shown, width, theme);
        lines.push(Line::raw(format!("and {} more: n shows them", all - shown)));
        return frame.render_widget(Paragraph::new(lines), area);
    }
    let lines = table(rows::NODES, &rows::nodes(status), None, None, 0..all, width, theme);
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_rows(model: &Model, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    let rows = model.rows();
    let room = usize::from(area.height.saturating_sub(1));
    let above = (model.selected + 1).saturating_sub(room);
    let (shown, width) = (above..above + room, usize::from(area.width));
    let mut lines = table(model.columns(), &rows, model.sorted_by(), Some(model.selected), shown, width, theme);
    if rows.is_empty() && model.now.is_some() {
        let nothing = if model.filter.is_empty() { "nothing here" } else { "no row has this text" };
        lines.push(Line::raw(nothing));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Lines as wide as the screen: a heading, and one for each row that is shown. Columns are as wide as all rows want them, so they stay where they are.
fn table(
    columns: &[&str],
    rows: &[Row],
    sorted: Option<usize>,
    selected: Option<usize>,
    shown: Range<usize>,
    width: usize,
    theme: Theme,
) -> Vec<Line<'static>> {
    let headings: Vec<String> = columns
        .iter()
        .enumerate()
        .map(|(at, heading)| format!("{}{}", heading.trim_start_matches('>'), if sorted == Some(at) { "*" } else { "" }))
        .collect();
    let widest = |at: usize| {
        let cells = rows.iter().map(|row| row.cells[at].width());
        cells.chain([headings[at].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(widest).collect();
    let line = |cells: Vec<Cow<'_, str>>| {
        let padded = cells.iter().enumerate().map(|(at, cell)| {
            let w = widths[at];
            if columns[at].starts_with('>') { format!("{cell:>w$}") } else { format!("{cell:<w$}") }
        });
        let text = padded.collect::<Vec<_>>().join(&" ".repeat(GAP));
        let text: String = text.chars().take(width).collect();
        format!("{text:<width$}")
    };
    let mut lines = vec![Line::styled(line(headings.iter().map(Cow::from).collect()), theme.heading())];
    for (at, row) in rows.iter().enumerate().take(shown.end).skip(shown.start) {
        let style = theme.health(row.health);
        let style = if selected == Some(at) { style.add_modifier(Modifier::REVERSED) } else { style };
        lines.push(Line::styled(line(row.cells.iter().map(Cell::text).collect()), style));
    }
    lines
}

fn draw_rank(model: &Model, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    let mut lines = Vec::new();
    let Some(process) = model.process() else {
        let text = "nothing is known of this rank: it is not protected, or its job is gone";
        return frame.render_widget(Paragraph::new(text), area);
    };
    let title =
        format!("rank {} of job {} on {}, pid {}: {}", process.rank, process.job, process.node, process.pid, model.does(process));
    lines.push(Line::styled(title, theme.heading()));
    let share = model.overhead(process).map_or("not known yet".to_owned(), rows::share);
    lines.extend(counter_lines(&process.counters.unwrap_or_default(), &share).map(Line::raw));
    for log in &process.logs {
        let committed = match (log.committed, log.committed_ms) {
            (Some(image), Some(ms)) => format!("image {image} committed {} ago", duration(ms)),
            _ => "no image committed".to_owned(),
        };
        let (journal, payload, images) = (bytes(log.journal), bytes(log.payload), bytes(log.images));
        lines.push(Line::raw(format!("at {}: journal {journal}, payload {payload}, images {images}; {committed}", log.node)));
        if let Some(why) = &log.waits {
            lines.push(Line::styled(format!("at {}: {}", log.node, clean(why)), theme.alarm()));
        }
    }
    match &model.log {
        None => lines.push(Line::raw("asking its protector for its streams")),
        Some(Err(why)) => lines.push(Line::styled(clean(why), theme.alarm())),
        Some(Ok(log)) => {
            let committed = log.images.iter().filter(|image| image.state == ImageState::Committed).count();
            lines.push(Line::raw(format!(
                "incarnation {}, {committed} images committed, {} streams",
                log.incarnation,
                log.streams.len()
            )));
            lines.push(Line::styled(format!("{:<44}{:>14}{:>10} ENDED", "RECEIVED ON STREAM", "UP TO", "HELD"), theme.heading()));
            let streams = log.streams.iter().skip(model.selected).map(|held| {
                let ended = held.ended.map_or("-".to_owned(), |at| format!("at {at}"));
                let held_bytes = rows::size(held.bytes.end.saturating_sub(held.bytes.start) as f64);
                Line::raw(format!("{:<44}{:>14}{held_bytes:>10} {ended}", stream_text(&held.stream), held.bytes.end))
            });
            lines.extend(streams);
        }
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn counter_lines(counters: &Counters, share: &str) -> impl Iterator<Item = String> {
    let ms = |ns: u64| format!("{:.1} ms", ns as f64 / 1e6);
    let Counters { bytes_in, messages_in, bytes_out, messages_out, events, gate_waits, gate_ns, outbox, .. } = *counters;
    [
        format!(
            "received {} in {messages_in} calls, sent {} in {messages_out}; outbox {}; {} connections",
            bytes(bytes_in),
            bytes(bytes_out),
            bytes(outbox),
            counters.connections
        ),
        format!(
            "the outbox had no room {} times, {} in all, the longest {}",
            counters.full_waits,
            ms(counters.full_ns),
            ms(counters.longest_full_ns)
        ),
        format!("outcomes {events}, and {} of nothing; gate shut {gate_waits} times, {} in all", counters.empty, ms(gate_ns)),
        format!(
            "checkpoints {}, committed {}; pauses {} in all, the longest {}",
            counters.checkpoints,
            counters.committed,
            ms(counters.pause_ns),
            ms(counters.longest_pause_ns)
        ),
        format!("of the last seconds, at the gate and in pauses: {share}"),
    ]
    .into_iter()
}

fn draw_events(model: &Model, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    if area.height < 2 {
        return;
    }
    let room = usize::from(area.height) - 1;
    let last = model.events.iter().skip(model.events.len().saturating_sub(room));
    let mut lines = vec![Line::styled(format!("{:<1$}", "EVENTS (UTC)", usize::from(area.width)), theme.heading())];
    lines.extend(last.map(|event| {
        let time = utc(event.at_ms);
        let time = time.get(11..19).unwrap_or_default();
        let text = format!("{time} {:<8} {:<11} {}", event.node, event.event.as_str(), clean(&event.text));
        let style = match event.event {
            EventName::Confirm | EventName::Frozen | EventName::Restart | EventName::Death => theme.alarm(),
            EventName::Suspect | EventName::CheckpointFailed | EventName::Limit => theme.health(Health::Troubled),
            _ => Style::new(),
        };
        Line::styled(text, style)
    }));
    frame.render_widget(Paragraph::new(lines), area);
}

fn keys_line(model: &Model, theme: Theme) -> Line<'static> {
    if model.typing {
        return Line::styled(format!("filter: {}_   Enter keep   Esc drop", model.filter), theme.heading());
    }
    let keys = match model.screen {
        Screen::Jobs => "q quit  Enter ranks  n nodes  s sort  r reverse  / filter  Space hold  ? help",
        Screen::Nodes => "q quit  j jobs  s sort  r reverse  / filter  Space hold  ? help",
        Screen::Ranks(_) => "q quit  Enter rank  Esc jobs  s sort  r reverse  / filter  Space hold  ? help",
        Screen::Rank(..) => "q quit  Esc ranks  Up Down streams  Space hold  ? help",
    };
    // A filter stands in the place of that word. All keys fit into 80 columns.
    let keys = match model.filter.chars().count() {
        0 => keys.to_owned(),
        1..=7 => keys.replace("/ filter", &format!("/ [{}]", model.filter)),
        _ => keys.replace("/ filter", &format!("/ [{}..]", model.filter.chars().take(5).collect::<String>())),
    };
    Line::styled(keys, theme.with(Color::Reset, Modifier::BOLD))
}
