//! `radic report`: one page about a job, after it or while it runs: what happened when, what each death cost, what protection cost, and what that suggests.
//!
//! - [`recoveries`]: from events to deaths and to the steps by which ranks came back;
//! - [`model`]: from events, job and counters to the report;
//! - [`advice`]: what the report suggests;
//! - [`text`], [`picture`], [`html`]: the report for people.

mod advice;
mod html;
mod model;
mod picture;
mod recoveries;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use radic_wire::event::Event;
use radic_wire::job::JobInfo;
use radic_wire::limits;
use radic_wire::local::{Reply, Request};

use crate::client::{self, ClientError, Cluster, ask_status};
use crate::file::NewFile;
use crate::format::{print, print_json, report as say};
use crate::protection::parse_time;

use self::model::{Facts, Report};

/// Events that are taken, of all nodes together.
const EVENTS: usize = 1 << 20;

/// Flags of `radic report`.
#[derive(Args)]
pub(crate) struct ReportArgs {
    /// The job, or its first digits
    job: String,
    /// Write the time line and what each death cost to this new file, as a picture
    #[arg(long, value_name = "FILE", conflicts_with = "html")]
    svg: Option<PathBuf>,
    /// Write all of it to this new file, as one page that needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Mean time between two failures of one node, for the advice: 90s, 30m, 24h, 30d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_time)]
    mtbf: Duration,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

/// `radic report`.
pub(crate) fn report(cluster: &Cluster, args: &ReportArgs) -> Result<()> {
    let facts = ask(cluster, &args.job, args.mtbf)?;
    let report = assemble(&facts);
    if let Some(path) = args.svg.as_ref().or(args.html.as_ref()) {
        let file = NewFile::create(path)?;
        let text = if args.svg.is_some() { picture::whole(&report)? } else { html::page(&report)? };
        file.finish(&text)?;
        say(&format!("radic: the report about job {} is in {}", report.job, path.display()));
    }
    match (args.json, args.svg.is_some() || args.html.is_some()) {
        (true, _) => print_json(&report),
        (false, true) => Ok(()),
        (false, false) => Ok(print(&text::text(&report))?),
    }
}

/// The report, with what it suggests.
fn assemble(facts: &Facts) -> Report {
    let mut report = Report::of(facts);
    report.advice = advice::of(&report, &facts.events, facts.mtbf);
    report
}

/// What the cluster remembers of the job.
fn ask(cluster: &Cluster, wanted: &str, mtbf: Duration) -> Result<Facts> {
    let status = ask_status(cluster)?;
    let job = choose(status.jobs, wanted)?;
    let events = ask_events(cluster)?;
    if !events.iter().any(|event| event.job == Some(job.job)) {
        bail!(
            "nothing is remembered of job {}: each node keeps its last {} events, and those of this job are not among them any more; \
             `radic events --follow --json` into a file keeps all",
            job.job,
            limits::EVENTS
        );
    }
    let processes = status.processes.into_iter().filter(|process| process.job == job.job).collect();
    Ok(Facts { job, events, processes, mtbf })
}

/// The job with these first digits.
fn choose(jobs: Vec<JobInfo>, wanted: &str) -> Result<JobInfo> {
    let wanted = wanted.to_ascii_lowercase();
    let mut found: Vec<JobInfo> = jobs.into_iter().filter(|job| job.job.to_string().starts_with(&wanted)).collect();
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => bail!(
            "there is no job {wanted:?}: `radic jobs --all` lists those that are remembered (the last {} that have ended)",
            limits::FINISHED_JOBS
        ),
        _ => bail!("several jobs begin with {wanted}: give more digits"),
    }
}

/// The events of all nodes, oldest first.
fn ask_events(cluster: &Cluster) -> Result<Vec<Event>> {
    let mut connection = cluster.connect(None)?;
    connection.send(&Request::Events { follow: false })?;
    let mut all = Vec::new();
    loop {
        match connection.wait(Some(Instant::now() + client::ANSWER))? {
            Some(Reply::Events(events)) if all.len() + events.len() <= EVENTS => all.extend(events),
            Some(Reply::Events(_)) => bail!("the nodes remember more than {EVENTS} events: a report is made of no more"),
            Some(Reply::Done) => return Ok(all),
            Some(Reply::Error(text)) => return Err(ClientError::Refused(text).into()),
            Some(other) => return Err(connection.unexpected(&other).into()),
            None => return Err(ClientError::Late { node: connection.node().to_owned(), limit: client::ANSWER }.into()),
        }
    }
}
