//! A report as one page that needs nothing else: no script, no font, no picture from elsewhere.

use std::fmt::Write as _;

use anyhow::Result;

use crate::chart::escaped;
use crate::format::{duration, utc};

use super::model::Report;
use super::picture;
use super::text::{BY_RANK, COSTS, checkpoint_lines, cost, loss, overhead_lines, rank_rows};

/// Ranks in the table; `--json` has all.
const RANKS: usize = 512;

/// Nothing but what stands in the page is fetched or executed, whatever a program is called.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const STYLE: &str = ":root { color-scheme: light dark; --ground: #fdfdfc; --ink: #1a1c20; --soft: #5b626d; --edge: #d5d9e0 }
@media (prefers-color-scheme: dark) { :root { --ground: #14161a; --ink: #e6e8ec; --soft: #a0a7b3; --edge: #353a44 } }
body { margin: 0 auto; max-width: 1000px; padding: 1rem; background: var(--ground); color: var(--ink); font: 15px/1.45 system-ui, sans-serif }
h1 { font-size: 1.3rem; overflow-wrap: anywhere } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem } p { margin: .3rem 0 } .soft { color: var(--soft) }
.wide { overflow-x: auto } svg { width: 100%; height: auto; min-width: 640px }
table { border-collapse: collapse; font-size: .87rem; white-space: nowrap; font-variant-numeric: tabular-nums }
th { text-align: left; color: var(--soft); font-weight: 500 } th, td { padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--edge) } .n { text-align: right }
td.said { white-space: normal; overflow-wrap: anywhere } pre { margin: 0; font-size: .87rem; overflow-x: auto } dt { font-weight: 600; margin-top: .6rem } dd { margin: 0 }
@media print { .wide { overflow: visible } }";

/// All of it.
pub(super) fn page(report: &Report) -> Result<String> {
    let title = format!("Job {}", report.job);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n<title>{title}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
    );
    let nodes: Vec<&str> = report.nodes.iter().map(|node| node.as_str()).collect();
    let lasted = duration((report.seconds * 1e3) as u64);
    let until = if report.code.is_some() { "its end" } else { "now" };
    _ = writeln!(out, "<h1>{title}: {}</h1>", escaped(&report.command));
    _ = writeln!(
        out,
        "<p>{} ranks on {}. Began {}, {lasted} until {until}; {}.</p>",
        report.ranks,
        escaped(&nodes.join(", ")),
        utc(report.started_ms),
        escaped(&report.state)
    );
    heading(&mut out, "What happened when");
    wide(&mut out, &picture::line(report)?);
    deaths(&mut out, report)?;
    heading(&mut out, "Checkpoints");
    lines(&mut out, &checkpoint_lines(&report.checkpoints));
    overhead(&mut out, report);
    advice(&mut out, report);
    heading(&mut out, "Not known");
    list(&mut out, report.unknown.iter().map(String::as_str));
    events(&mut out, report);
    Ok(out + "</body>\n</html>\n")
}

fn heading(out: &mut String, text: &str) {
    _ = writeln!(out, "<h2>{text}</h2>");
}

fn wide(out: &mut String, inside: &str) {
    _ = writeln!(out, "<div class=\"wide\">\n{inside}</div>");
}

fn lines(out: &mut String, lines: &[String]) {
    _ = writeln!(out, "<pre>{}</pre>", escaped(&lines.join("\n")));
}

fn list<'a>(out: &mut String, all: impl Iterator<Item = &'a str>) {
    let items: String = all.map(|text| format!("<li>{}</li>\n", escaped(text))).collect();
    _ = writeln!(out, "<ul>\n{items}</ul>");
}

/// A heading that begins with `>` stands for numbers, to the right.
fn table(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let class = |at: usize| if headings[at].starts_with('>') { " class=\"n\"" } else { "" };
    let cells = |tag: &str, cells: &[String]| {
        let cells = cells.iter().enumerate().map(|(at, cell)| format!("<{tag}{}>{}</{tag}>", class(at), escaped(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let names: Vec<String> = headings.iter().map(|heading| heading.trim_start_matches('>').to_lowercase()).collect();
    let body: String = rows.map(|row| cells("td", &row)).collect();
    format!("<table>\n<thead>{}</thead>\n<tbody>\n{body}</tbody>\n</table>\n", cells("th", &names))
}

fn deaths(out: &mut String, report: &Report) -> Result<()> {
    heading(out, "What each death cost");
    if report.deaths.is_empty() && report.recoveries.is_empty() {
        out.push_str("<p>Nothing died.</p>\n");
        return Ok(());
    }
    let losses: Vec<String> = report.deaths.iter().map(loss).collect();
    list(out, losses.iter().map(String::as_str));
    if let Some(chart) = picture::deaths(report)? {
        wide(out, &chart);
        wide(out, &table(&COSTS, report.recoveries.iter().map(cost)));
        out.push_str("<p class=\"soft\">In seconds. Again: outcomes that were executed once more.</p>\n");
    }
    for at in &report.restarts {
        _ = writeln!(out, "<p>The job restarted from the beginning at {at:.3} s.</p>");
    }
    Ok(())
}

fn overhead(out: &mut String, report: &Report) {
    heading(out, "What protection cost");
    let Some(overhead) = &report.overhead else {
        out.push_str("<p>Nothing is known of it.</p>\n");
        return;
    };
    lines(out, &overhead_lines(overhead));
    wide(out, &table(&BY_RANK, rank_rows(overhead, RANKS).into_iter()));
}

fn advice(out: &mut String, report: &Report) {
    heading(out, "Advice");
    if report.advice.is_empty() {
        out.push_str("<p>None: too little is known.</p>\n");
        return;
    }
    let entry = |advice: &super::model::Advice| {
        format!("<dt>{}: {}</dt>\n<dd>{}</dd>\n", escaped(advice.about), escaped(&advice.say), escaped(&advice.why))
    };
    _ = writeln!(out, "<dl>\n{}</dl>", report.advice.iter().map(entry).collect::<String>());
}

fn events(out: &mut String, report: &Report) {
    let row = |moment: &super::model::Moment| {
        let text = escaped(&moment.text);
        let (node, name) = (&moment.node, moment.event.as_str());
        format!("<tr><td class=\"n\">{:.3}</td><td>{node}</td><td>{name}</td><td class=\"said\">{text}</td></tr>\n", moment.at_s)
    };
    let rows: String = report.events.iter().map(row).collect();
    let more = match report.events_left_out {
        0 => String::new(),
        more => format!("<p class=\"soft\">{more} events between the first and the last ones are left out.</p>\n"),
    };
    _ = writeln!(
        out,
        "<h2>Events</h2>\n{more}<div class=\"wide\"><table>\n<thead><tr><th class=\"n\">seconds</th><th>node</th><th>event</th><th></th></tr></thead>\n<tbody>\n\
         {rows}</tbody>\n</table></div>"
    );
}
