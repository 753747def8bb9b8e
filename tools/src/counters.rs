//! What protected processes have counted, as `radic status` sums it up, and `radic checkpoint`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use radic_wire::ids::JobId;
use radic_wire::job::exit_code;
use radic_wire::local::{Reply, Request};
use radic_wire::process::{Counters, Protect};
use radic_wire::report::{LogSizes, ProcessInfo, RankCheckpoint};

use crate::client::{ClientError, Cluster, ask_status};
use crate::format::{Table, bytes, duration, print, print_json};
use crate::progress::{Progress, TICK, Unit};

/// Processes of which is shown what they wait for.
const WAITING: usize = 8;
/// Time that all checkpoints of a job may take, with some for the answer: longer than protectors wait for them.
const CHECKPOINTS: Duration = Duration::from_secs(620);

/// One line for each job with protected processes that run; empty if there are none.
pub(crate) fn table(processes: &[ProcessInfo]) -> String {
    let mut jobs: BTreeMap<JobId, Vec<&ProcessInfo>> = BTreeMap::new();
    for process in processes.iter().filter(|process| process.running && process.protect != Protect::None) {
        jobs.entry(process.job).or_default().push(process);
    }
    if jobs.is_empty() {
        return String::new();
    }
    let headings = ["PROTECTED JOB", ">JOINED", ">IN", ">OUT", ">EVENTS", ">OUTBOX", ">LOG", ">GATE", ">CKPTS", ">LONGEST"];
    let mut table = Table::new(&headings);
    for (job, processes) in jobs {
        let joined = processes.iter().filter(|process| process.joined).count();
        let sums = sum(processes.iter().filter_map(|process| process.counters));
        table.row(vec![
            job.to_string(),
            format!("{joined}/{}", processes.len()),
            bytes(sums.bytes_in),
            bytes(sums.bytes_out),
            sums.events.to_string(),
            bytes(sums.outbox),
            bytes(processes.iter().filter_map(|process| process.logs.first()).map(|log| log.journal + log.payload).sum()),
            duration(sums.gate_ns / 1_000_000),
            sums.committed.to_string(),
            format!("{:.1} ms", sums.longest_pause_ns as f64 / 1e6),
        ]);
    }
    table.text() + &waiting(processes)
}

/// Why protectors do not take logs of processes for now: a line for each of the first few.
fn waiting(processes: &[ProcessInfo]) -> String {
    let running = processes.iter().filter(|process| process.running);
    let waits = running.flat_map(|process| process.logs.iter().filter_map(move |log| Some((process, log, log.waits.as_ref()?))));
    let line = |(process, log, why): (&ProcessInfo, &LogSizes, &String)| {
        format!("rank {} of job {}, at its protector {}: {why}\n", process.rank, process.job, log.node)
    };
    waits.take(WAITING).map(line).collect()
}

/// What is shown of them, together. The longest pause is that of one of them.
fn sum(all: impl Iterator<Item = Counters>) -> Counters {
    all.fold(Counters::default(), |a, b| Counters {
        bytes_in: a.bytes_in.saturating_add(b.bytes_in),
        bytes_out: a.bytes_out.saturating_add(b.bytes_out),
        events: a.events.saturating_add(b.events),
        outbox: a.outbox.saturating_add(b.outbox),
        gate_ns: a.gate_ns.saturating_add(b.gate_ns),
        committed: a.committed.saturating_add(b.committed),
        longest_pause_ns: a.longest_pause_ns.max(b.longest_pause_ns),
        // Places in journals: there is no sum of them.
        replayed: 0,
        again: 0,
        waits: 0,
        awaited: 0,
        looks: 0,
        ..a
    })
}

/// A checkpoint of each rank of a job, now, or why there is none.
pub(crate) fn make_checkpoints(cluster: &Cluster, job: String, progress: &Progress) -> Result<Vec<RankCheckpoint>> {
    let (all, incomplete) = ask_checkpoints(cluster, job, progress)?;
    incomplete.map_or(Ok(all), |error| Err(error.into()))
}

/// What became of the ranks' checkpoints, and why nothing is known of others.
fn ask_checkpoints(cluster: &Cluster, job: String, progress: &Progress) -> Result<(Vec<RankCheckpoint>, Option<ClientError>)> {
    let ranks = if progress.is_shown() { ranks_of(cluster, &job) } else { None };
    progress.begin("checkpoints", Unit::Steps, ranks);
    let mut connection = cluster.connect(None)?;
    connection.send(&Request::Checkpoint { job })?;
    let deadline = Instant::now() + CHECKPOINTS;
    let mut all: Vec<RankCheckpoint> = Vec::new();
    let incomplete = loop {
        match connection.wait(Some(deadline.min(Instant::now() + TICK)))? {
            Some(Reply::Checkpoints(some)) => all.extend(some),
            Some(Reply::Done) => break None,
            Some(Reply::Error(error)) => break Some(ClientError::Refused(error)),
            Some(other) => return Err(connection.unexpected(&other).into()),
            None if Instant::now() < deadline => progress.tick(),
            None => break Some(ClientError::Late { node: connection.node().to_owned(), limit: CHECKPOINTS }),
        }
        progress.reach(all.len() as u64);
    };
    Ok((all, incomplete))
}

/// How many ranks a job has, if that is known.
fn ranks_of(cluster: &Cluster, job: &str) -> Option<u64> {
    let jobs = ask_status(cluster).ok()?.jobs;
    let mut found =
        jobs.iter().filter(|known| known.outcome.is_none() && known.job.to_string().starts_with(&job.to_ascii_lowercase()));
    found.next().map(|job| u64::from(job.ranks))
}

/// `radic checkpoint`. The result is the exit code.
pub(crate) fn checkpoint(cluster: &Cluster, job: String, json: bool) -> Result<u8> {
    let (all, incomplete) = ask_checkpoints(cluster, job, &Progress::new(json))?;
    if json {
        print_json(&all)?
    } else {
        print(&lines(&all))?
    }
    match incomplete {
        Some(error) => Err(error.into()),
        None if all.iter().all(|rank| rank.result.is_ok()) => Ok(0),
        None => Ok(crate::outcome::exit_code(exit_code::RADIC)),
    }
}

fn lines(all: &[RankCheckpoint]) -> String {
    let line = |RankCheckpoint { rank, node, result }: &RankCheckpoint| match result {
        Ok(image) => format!("rank {rank} on {node}: checkpoint {image} committed\n"),
        Err(why) => format!("rank {rank} on {node}: no checkpoint: {why}\n"),
    };
    all.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use radic_wire::ids::Rank;

    use super::*;

    #[test]
    fn a_job_s_processes_are_one_line() {
        let process = |rank, running, pause| ProcessInfo {
            job: JobId::from_bits(0xabc),
            rank: Rank(rank),
            node: "n1".parse().unwrap(),
            pid: 7,
            running,
            protect: Protect::On,
            joined: rank != 1,
            degraded: false,
            logs: vec![LogSizes {
                node: "n2".parse().unwrap(),
                journal: 1024,
                payload: 1024,
                images: 0,
                committed: None,
                committed_ms: None,
                waits: None,
            }],
            counters: Some(Counters { bytes_in: 2048, events: 5, longest_pause_ns: pause, ..Counters::default() }),
            cpu_ms: None,
            stopped: false,
        };
        assert_eq!(table(&[process(0, false, 1)]), "", "they have ended");
        let text = table(&[process(0, true, 1_500_000), process(1, true, 900_000)]);
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(cells[..6], ["000000000abc", "1/2", "4.0", "KiB", "0", "B"]);
        assert_eq!(text.lines().count(), 2, "{text}");
        let mut held = process(1, true, 0);
        held.logs[0].waits = Some("no room".into());
        assert!(table(&[held]).ends_with("\nrank 1 of job 000000000abc, at its protector n2: no room\n"));
        assert!(text.contains("4.0 KiB  ") && text.contains(" 10 ") && text.contains("1.5 ms"), "{text}");
    }

    #[test]
    fn each_rank_says_what_became_of_it() {
        let rank = |rank, result| RankCheckpoint { rank: Rank(rank), node: "n1".parse().unwrap(), result };
        let text = lines(&[rank(0, Ok(3)), rank(1, Err("it has ended".to_owned()))]);
        assert_eq!(text, "rank 0 on n1: checkpoint 3 committed\nrank 1 on n1: no checkpoint: it has ended\n");
    }
}
