//! A report as lines of text.

use std::fmt::Write as _;

use radic_wire::ids::Rank;

use crate::format::{Table, bytes, clean, duration, utc};
use crate::outcome::rank_list;

use super::model::{Checkpoints, Loss, Moment, Overhead, Report, Return};
use super::picture::which;
use super::recoveries::{Cause, End, KnownBy, Step};

/// Events that are printed; `--json` and `--html` have more.
const EVENTS: usize = 80;
/// Ranks that are printed, those that waited most first.
const RANKS: usize = 16;

/// Seconds with as many digits as a clock of milliseconds has.
pub(super) fn seconds(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
}

pub(super) fn percent(part: f64) -> String {
    format!("{:.2} %", part * 100.0)
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1} ms"))
}

/// All of it.
pub(super) fn text(report: &Report) -> String {
    let nodes: Vec<&str> = report.nodes.iter().map(|node| node.as_str()).collect();
    let mut text = format!("job {}  {}\n", report.job, clean(&report.command));
    _ = writeln!(text, "{} ranks on {}", report.ranks, nodes.join(", "));
    let lasted = duration((report.seconds * 1e3) as u64);
    _ = writeln!(
        text,
        "began {}, {lasted} until {}; {}",
        utc(report.started_ms),
        if report.code.is_some() { "its end" } else { "now" },
        clean(&report.state)
    );
    section(&mut text, "WHAT HAPPENED", &events(report));
    section(&mut text, "WHAT EACH DEATH COST (seconds)", &deaths(report));
    section(&mut text, "CHECKPOINTS", &checkpoints(&report.checkpoints));
    section(
        &mut text,
        "WHAT PROTECTION COST",
        &report.overhead.as_ref().map_or_else(|| "nothing is known of it\n".to_owned(), overhead),
    );
    section(&mut text, "ADVICE", &advice(report));
    section(&mut text, "NOT KNOWN", &report.unknown.iter().map(|line| format!("- {line}\n")).collect::<String>());
    text
}

fn section(text: &mut String, heading: &str, body: &str) {
    if !body.is_empty() {
        _ = write!(text, "\n{heading}\n{body}");
    }
}

/// One event on a line.
fn line(moment: &Moment) -> String {
    format!("{:>9.3} s  {:<8} {:<12} {}\n", moment.at_s, moment.node, moment.event.as_str(), clean(&moment.text))
}

fn events(report: &Report) -> String {
    let all = &report.events;
    if all.len() <= EVENTS {
        return all.iter().map(line).collect();
    }
    let half = EVENTS / 2;
    let (first, last) = (all[..half].iter().map(line), all[all.len() - half..].iter().map(line));
    let between = all.len() - EVENTS + report.events_left_out;
    first.chain([format!("            ... {between} more: --json has them\n")]).chain(last).collect()
}

/// How the moment of a death is known.
pub(super) fn known_by(known: KnownBy) -> &'static str {
    match known {
        KnownBy::Injected => "injected",
        KnownBy::LastHeard => "from the last sign of life",
        KnownBy::Seen => "its end was seen",
        KnownBy::Consequence => "from its first consequence",
    }
}

pub(super) fn end(end: End) -> &'static str {
    match end {
        End::Protected => "safe again",
        End::Live => "lives",
        End::UnderWay => "under way",
        End::DiedAgain => "died again",
        End::Restarted => "job restarted from the beginning",
        End::JobOver => "job was over",
    }
}

/// Which ranks a node's death has moved to another protector.
pub(super) fn loss(loss: &Loss) -> String {
    let list = |ranks: &[Rank]| rank_list(ranks);
    let lost = if loss.ranks.is_empty() { "no rank was lost".to_owned() } else { format!("lost: ranks {}", list(&loss.ranks)) };
    let moved = match loss.moved_after_s {
        Some(after) => format!("; ranks {} had a checkpoint at another protector after {after:.3} s", list(&loss.moved)),
        None => String::new(),
    };
    format!(
        "{} died at {:.3} s ({}), certain after {:.3} s; {lost}{moved}",
        loss.node,
        loss.at_s,
        known_by(loss.known_by),
        loss.detected_after_s
    )
}

/// The headings of the table of recoveries, and the cells of a row.
pub(super) const COSTS: [&str; 13] = [
    "LOSS",
    ">AT",
    ">DETECT",
    ">FENCE",
    ">PLACE",
    ">FETCH",
    ">RESTORE",
    ">CATCH UP",
    ">TO LIFE",
    ">TO SAFE",
    ">AGAIN",
    "TO",
    "NOW",
];

pub(super) fn cost(back: &Return) -> Vec<String> {
    let recovery = &back.recovery;
    let steps = [Step::Detect, Step::Fence, Step::Place, Step::Fetch, Step::Restore, Step::CatchUp];
    let mut cells = vec![which(back), seconds(Some(back.at_s))];
    cells.extend(steps.map(|step| seconds(back.took(step))));
    cells.extend([
        seconds(back.to_life_s),
        seconds(back.exposed_s),
        recovery.outcomes.map_or_else(|| "-".to_owned(), |outcomes| outcomes.to_string()),
        recovery.to.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
        end(recovery.end).to_owned(),
    ]);
    cells
}

fn deaths(report: &Report) -> String {
    if report.deaths.is_empty() && report.recoveries.is_empty() {
        return "nothing died\n".to_owned();
    }
    let mut text: String = report.deaths.iter().map(|death| format!("{}\n", loss(death))).collect();
    if !report.recoveries.is_empty() {
        let mut table = Table::new(&COSTS);
        report.recoveries.iter().for_each(|back| table.row(cost(back)));
        text += &table.text();
        text += "AGAIN: outcomes that were executed once more; TO LIFE and TO SAFE: from the death until the rank lived, and had a checkpoint at its protector\n";
    }
    if report.recoveries.iter().any(|back| back.recovery.cause == Cause::Unknown) {
        text += "of a loss without a node or a crash nothing tells why it was: those events are gone\n";
    }
    for at in &report.restarts {
        _ = writeln!(text, "the job restarted from the beginning at {at:.3} s");
    }
    text
}

/// What is known of checkpoints, a line each.
pub(super) fn checkpoint_lines(checkpoints: &Checkpoints) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(committed) = checkpoints.committed {
        lines
            .push(format!("{committed} committed, as the ranks have counted in their last lives; {} failed", checkpoints.failed));
    }
    let told = checkpoints.told.len();
    if told as u64 + checkpoints.only_counted > 0 {
        lines.push(format!(
            "{told} told by events, which count {} more (of a rank at most one in 10 s is told)",
            checkpoints.only_counted
        ));
    }
    for (full, what) in [(true, "whole images"), (false, "increments")] {
        if let Some([least, middle, most]) = checkpoints.sizes(full) {
            lines.push(format!("{what}: {} to {}, the median {}", bytes(least), bytes(most), bytes(middle)));
        }
    }
    if checkpoints.mean_pause_ms.is_some() {
        lines.push(format!(
            "a pause takes {} on average, the longest was {}",
            ms(checkpoints.mean_pause_ms),
            ms(checkpoints.longest_pause_ms)
        ));
    }
    if let Some(interval) = checkpoints.interval_s {
        lines.push(format!("a rank makes one every {}", duration((interval * 1e3) as u64)));
    }
    lines
}

fn checkpoints(checkpoints: &Checkpoints) -> String {
    let lines = checkpoint_lines(checkpoints);
    if lines.is_empty() {
        "no event and no rank tells of any\n".to_owned()
    } else {
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// What protection cost, a line each.
pub(super) fn overhead_lines(overhead: &Overhead) -> Vec<String> {
    let share = |seconds: f64| percent(overhead.share(seconds));
    let rate = overhead.log_bytes as f64 / overhead.rank_seconds.max(1e-3);
    vec![
        format!("of {} ranks together, in {} of their time:", overhead.known, duration((overhead.rank_seconds * 1e3) as u64)),
        format!("at the gate      {:>10.3} s  {:>8}  {} waits", overhead.gate_s, share(overhead.gate_s), overhead.gate_waits),
        format!("outbox full      {:>10.3} s  {:>8}  {} waits", overhead.full_s, share(overhead.full_s), overhead.full_waits),
        format!("for checkpoints  {:>10.3} s  {:>8}", overhead.pause_s, share(overhead.pause_s)),
        format!("shipped to logs  {:>10}    {:>8}/s for each rank", bytes(overhead.log_bytes), bytes(rate as u64)),
        format!("calls of hooks   {} outcomes recorded, {} calls that found nothing", overhead.outcomes, overhead.empty),
    ]
}

/// The headings of the table of ranks, and the cells of a row.
pub(super) const BY_RANK: [&str; 9] = [">RANK", "NODE", ">TIME", ">GATE", ">PART", ">CKPTS", ">PAUSE", ">LONGEST", ">LOG"];

pub(super) fn rank_rows(overhead: &Overhead, most: usize) -> Vec<Vec<String>> {
    let mut costs: Vec<_> = overhead.of_ranks.iter().collect();
    costs.sort_by(|a, b| (b.gate_s + b.pause_s).total_cmp(&(a.gate_s + a.pause_s)));
    let row = |cost: &&super::model::RankCost| {
        vec![
            cost.rank.to_string(),
            cost.node.to_string(),
            duration((cost.seconds * 1e3) as u64),
            format!("{:.3} s", cost.gate_s),
            percent(cost.gate_s / cost.seconds.max(1e-3)),
            cost.committed.to_string(),
            format!("{:.1} ms", cost.pause_s * 1e3),
            format!("{:.1} ms", cost.longest_pause_s * 1e3),
            bytes(cost.log_bytes),
        ]
    };
    costs.iter().take(most).map(row).collect()
}

fn overhead(overhead: &Overhead) -> String {
    let mut text: String = overhead_lines(overhead).iter().map(|line| format!("{line}\n")).collect();
    let mut table = Table::new(&BY_RANK);
    rank_rows(overhead, RANKS).into_iter().for_each(|row| table.row(row));
    text += &table.text();
    if overhead.of_ranks.len() > RANKS {
        _ = writeln!(text, "and {} more ranks, which waited less: --json has them", overhead.of_ranks.len() - RANKS);
    }
    text
}

fn advice(report: &Report) -> String {
    if report.advice.is_empty() {
        return "none: too little is known\n".to_owned();
    }
    report.advice.iter().map(|advice| format!("{}: {}\n    {}\n", advice.about, advice.say, advice.why)).collect()
}
