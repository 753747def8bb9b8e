//! The charts of a report: a time line, and what each death cost.

use std::collections::BTreeSet;

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use radic_wire::ids::Rank;

use crate::chart::{self, Area, BAD, GOOD, INK, Paint, SERIES, SOFT, Scale};

use super::model::{Report, Return};
use super::recoveries::{Cause, Step};

/// Width of the charts.
const WIDTH: u32 = 960;
/// Height of a row.
const ROW: i32 = 20;
/// Room for the names of rows.
const NAMES: i32 = 130;
/// Ranks that have a row of the time line; those that were lost come first.
const RANKS: usize = 40;
/// Deaths that have a row.
const DEATHS: usize = 40;
/// Longest name of a row, in characters.
const NAME: usize = 17;
/// Longest command line, in characters.
const COMMAND: usize = 90;
/// From the upper edge to the first row, and from the last row to the lower edge.
const HEAD: i32 = 72;
const FOOT: i32 = 44;

pub(super) fn paint(step: Step) -> Paint {
    SERIES[step as usize]
}

fn rows_high(rows: usize) -> u32 {
    u32::try_from(HEAD + FOOT + ROW * i32::try_from(rows.max(1)).unwrap_or(0)).unwrap_or(0)
}

/// At most so many characters, and whether some are missing.
fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most { text.to_owned() } else { text.chars().take(most - 3).chain("...".chars()).collect() }
}

/// All of it in one picture.
pub(super) fn whole(report: &Report) -> Result<String> {
    let (line, deaths) = (line_high(report), deaths_high(report));
    chart::svg((WIDTH, line + deaths), &title(report), |area| {
        let (above, below) = area.split_vertically(line);
        draw_line(report, &above)?;
        if deaths > 0 { draw_deaths(report, &below) } else { Ok(()) }
    })
}

/// The time line alone.
pub(super) fn line(report: &Report) -> Result<String> {
    chart::svg((WIDTH, line_high(report)), &title(report), |area| draw_line(report, area))
}

/// What each death cost, if there was one.
pub(super) fn deaths(report: &Report) -> Result<Option<String>> {
    let high = deaths_high(report);
    let draw = || chart::svg((WIDTH, high), "What each loss of a rank cost, step by step", |area| draw_deaths(report, area));
    (high > 0).then(draw).transpose()
}

fn title(report: &Report) -> String {
    format!(
        "Job {}: checkpoints, deaths and recoveries of {} ranks in {}",
        report.job,
        report.ranks,
        chart::seconds(report.seconds)
    )
}

/// The ranks that have a row: those that were lost, then others, in order.
fn ranks(report: &Report) -> Vec<Rank> {
    let lost: BTreeSet<Rank> = report.recoveries.iter().map(|back| back.recovery.rank).collect();
    let all = (0..report.ranks).map(Rank);
    let others = all.filter(|rank| !lost.contains(rank)).take(RANKS.saturating_sub(lost.len()));
    let mut shown: Vec<Rank> = lost.iter().copied().take(RANKS).chain(others).collect();
    shown.sort_unstable();
    shown
}

fn line_high(report: &Report) -> u32 {
    rows_high(ranks(report).len())
}

fn draw_line(report: &Report, area: &Area<'_>) -> Result<()> {
    let ranks = ranks(report);
    let scale = Scale::new(area, NAMES, HEAD, ROW, (0.0, report.seconds.max(0.001)));
    chart::put(area, &format!("Job {}: {}", report.job, short(&report.command, COMMAND)), (12, 18), 19, INK, HPos::Left)?;
    let steps = Step::ALL.map(|step| (paint(step), step.name()));
    let key: Vec<(Paint, &str)> = [(GOOD, "checkpoint"), (BAD, "node dies")].into_iter().chain(steps).collect();
    chart::key(area, (12, 44), &key)?;
    scale.draw(area, ranks.len(), chart::seconds_up_to(report.seconds), "time since the job began")?;
    let row_of = |rank: Rank| ranks.iter().position(|shown| *shown == rank);
    for (row, rank) in ranks.iter().enumerate() {
        chart::put(area, &format!("rank {rank}"), (NAMES - 8, scale.y(row) + ROW / 2), 14, SOFT, HPos::Right)?;
    }
    for told in &report.checkpoints.told {
        if let Some(row) = row_of(told.rank) {
            area.draw(&Rectangle::new(scale.bar(row, told.at_s, told.at_s, 5), GOOD.color().filled()))?;
        }
    }
    for back in &report.recoveries {
        if let Some(row) = row_of(back.recovery.rank) {
            draw_steps(report, area, &scale, row, back)?;
        }
    }
    for death in &report.deaths {
        let x = scale.x(death.at_s);
        area.draw(&PathElement::new([(x, HEAD - 4), (x, scale.y(ranks.len()))], BAD.color().stroke_width(1)))?;
        chart::put(area, &short(death.node.as_str(), NAME), (x, HEAD - 10), 13, BAD, HPos::Center)?;
    }
    let more = report.ranks as usize - ranks.len();
    if more > 0 {
        let text = format!("{more} more ranks, of which none was lost or there is no room");
        chart::put(area, &text, (12, scale.y(ranks.len()) + 28), 13, SOFT, HPos::Left)?;
    }
    Ok(())
}

/// Milliseconds since 1970 as seconds of the job.
fn in_job(report: &Report, ms: u64) -> f64 {
    (ms as f64 - report.started_ms as f64) / 1e3
}

fn draw_steps(report: &Report, area: &Area<'_>, scale: &Scale, row: usize, back: &Return) -> Result<()> {
    for taken in &back.recovery.steps {
        let from = in_job(report, taken.from_ms);
        let to = taken.to_ms.map_or(report.seconds, |ms| in_job(report, ms));
        area.draw(&Rectangle::new(scale.bar(row, from, to, 2), paint(taken.step).color().filled()))?;
    }
    Ok(())
}

fn shown_deaths(report: &Report) -> &[Return] {
    &report.recoveries[..report.recoveries.len().min(DEATHS)]
}

fn deaths_high(report: &Report) -> u32 {
    let rows = shown_deaths(report).len();
    if rows == 0 { 0 } else { rows_high(rows) }
}

/// In a few words, which loss it is.
pub(super) fn which(back: &Return) -> String {
    let rank = back.recovery.rank;
    match &back.recovery.cause {
        Cause::Node { node } => format!("rank {rank}, {node}"),
        Cause::Crash => format!("rank {rank}, crash"),
        Cause::Again => format!("rank {rank}, again"),
        Cause::Unknown => format!("rank {rank}"),
    }
}

fn draw_deaths(report: &Report, area: &Area<'_>) -> Result<()> {
    let rows = shown_deaths(report);
    let lasted = |back: &Return| Step::ALL.iter().filter_map(|step| back.took(*step)).sum::<f64>();
    let longest = rows.iter().map(lasted).fold(0.0, f64::max);
    let scale = Scale::new(area, NAMES, HEAD, ROW, (0.0, longest.max(0.001)));
    chart::put(area, "What each loss cost, from the death until the rank was as safe as before", (12, 18), 19, INK, HPos::Left)?;
    chart::key(area, (12, 44), &Step::ALL.map(|step| (paint(step), step.name())))?;
    scale.draw(area, rows.len(), chart::seconds_up_to(longest), "time since the death")?;
    for (row, back) in rows.iter().enumerate() {
        chart::put(area, &short(&which(back), NAME), (NAMES - 8, scale.y(row) + ROW / 2), 14, SOFT, HPos::Right)?;
        let mut from = 0.0;
        for step in Step::ALL {
            let Some(took) = back.took(step) else { continue };
            area.draw(&Rectangle::new(scale.bar(row, from, from + took, 2), paint(step).color().filled()))?;
            from += took;
        }
    }
    let more = report.recoveries.len() - rows.len();
    if more > 0 {
        chart::put(area, &format!("and {more} more"), (12, scale.y(rows.len()) + 28), 13, SOFT, HPos::Left)?;
    }
    Ok(())
}
