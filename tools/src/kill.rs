//! `radic kill`: ends a job, and says meanwhile which of its ranks cannot be ended.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::poll::PollFd;
use radic_protector::daemon::NOT_PERMITTED;
use radic_wire::event::{Event, EventName};
use radic_wire::local::{Reply, Request};

use crate::client::{self, ClientError, Cluster, Connection};
use crate::format::report;

/// Ends a job: a job, or its first digits.
pub(crate) fn kill(cluster: &Cluster, job: &str) -> Result<()> {
    let deadline = Instant::now() + client::ANSWER;
    let mut killing = cluster.connect(None)?;
    // The job is ended whether or not this can be heard of.
    let mut events = follow(cluster).ok();
    killing.send(&Request::Kill { job: job.to_owned() })?;
    let mut said = BTreeSet::new();
    loop {
        let heard = events.as_mut().map_or(Ok(Vec::new()), next_events).unwrap_or_else(|_| {
            events = None;
            Vec::new()
        });
        for event in heard.into_iter().filter(|event| is_obstacle(event, job)) {
            if said.insert((event.node.clone(), event.rank)) {
                report(&format!("radic: {}", event.text));
            }
        }
        match killing.next_reply()? {
            None => {}
            Some(Reply::Done) => return Ok(()),
            Some(Reply::Error(text)) => return Err(ClientError::Refused(text).into()),
            Some(other) => return Err(killing.unexpected(&other).into()),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!(late(job, said.len()));
        }
        if !wait(&mut killing, events.as_mut(), left)? {
            events = None;
        }
    }
}

/// A connection that tells what happens.
fn follow(cluster: &Cluster) -> Result<Connection, ClientError> {
    let mut connection = cluster.connect(None)?;
    connection.send(&Request::Events { follow: true })?;
    Ok(connection)
}

/// Whether an event says why a rank of this job does not end.
fn is_obstacle(event: &Event, job: &str) -> bool {
    let of_job = event.job.is_some_and(|of| of.to_string().starts_with(&job.to_ascii_lowercase()));
    event.event == EventName::Refused && event.rank.is_some() && of_job && event.text.contains(NOT_PERMITTED)
}

fn late(job: &str, obstacles: usize) -> String {
    let why = if obstacles == 0 { "`radic jobs` and `radic events` tell what is left of it" } else { "end what is named above" };
    format!("job {job} has not ended within {} s: {why}", client::ANSWER.as_secs())
}

fn next_events(connection: &mut Connection) -> Result<Vec<Event>, ClientError> {
    let mut all = Vec::new();
    while let Some(reply) = connection.next_reply()? {
        match reply {
            Reply::Events(events) => all.extend(events),
            Reply::Error(text) => return Err(ClientError::Refused(text)),
            other => return Err(connection.unexpected(&other)),
        }
    }
    Ok(all)
}

/// Until one of them has something to say, or the time is over. Whether there are still events to be heard of.
fn wait(killing: &mut Connection, events: Option<&mut Connection>, left: Duration) -> Result<bool, ClientError> {
    let mut fds = vec![PollFd::new(killing.as_fd(), killing.interest())];
    fds.extend(events.as_ref().map(|events| PollFd::new(events.as_fd(), events.interest())));
    client::poll_fds(&mut fds, Some(left)).map_err(ClientError::Poll)?;
    let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
    let mut tend = |connection: &mut Connection| connection.flush().and_then(|()| connection.read());
    let heard = events.filter(|_| ready.get(1) == Some(&true)).map_or(Ok(()), &mut tend);
    if ready.first() == Some(&true) {
        tend(killing)?;
    }
    Ok(heard.is_ok())
}

#[cfg(test)]
mod tests {
    use radic_wire::ids::{JobId, Rank};

    use super::*;

    #[test]
    fn only_what_is_in_the_way_of_this_job_is_said() {
        let event = |event, job: u64, rank: Option<u32>| Event {
            at_ms: 0,
            node: "n1".parse().unwrap(),
            seq: 1,
            event,
            subject: None,
            job: Some(JobId::from_bits(job)),
            rank: rank.map(Rank),
            text: format!("SIGKILL for it {NOT_PERMITTED}"),
        };
        assert!(is_obstacle(&event(EventName::Refused, 0xabc, Some(1)), "000000000ABC"));
        assert!(is_obstacle(&event(EventName::Refused, 0xabc, Some(1)), "00"));
        assert!(!is_obstacle(&event(EventName::Refused, 0xabc, None), "00"));
        assert!(!is_obstacle(&event(EventName::Refused, 0xabc, Some(1)), "01"));
        let other = Event { text: "a stranger was turned away".into(), ..event(EventName::Refused, 0xabc, Some(1)) };
        assert!(!is_obstacle(&other, "00"));
        assert!(!is_obstacle(&event(EventName::Limit, 0xabc, Some(1)), "00"));
    }
}
