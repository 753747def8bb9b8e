//! The end of a cluster that was started on other hosts.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::Cluster;
use crate::format::report;
use crate::local_node::quoted;
use crate::record::{Record, Remote};

use super::Failed;
use super::ssh::{Complaints, Shell, block_on};

/// Time that a host has to answer and to end its node: longer than that takes by the worst way.
const LIMIT: Duration = Duration::from_secs(30);

/// How a cluster on other hosts was ended.
#[derive(Debug, serde::Serialize)]
pub(crate) struct StoppedHosts {
    /// Hosts on which no node of the cluster runs any more.
    hosts: usize,
    /// Nodes that had to be killed.
    killed: Vec<String>,
    /// Hosts that could not be asked.
    unreached: Vec<Failed>,
}

impl fmt::Display for StoppedHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = |n: usize| if n == 1 { "1 host".to_owned() } else { format!("{n} hosts") };
        write!(f, "the cluster has ended on {}", hosts(self.hosts))?;
        if !self.killed.is_empty() {
            write!(f, "; {} had to be killed", self.killed.join(", "))?;
        }
        if !self.unreached.is_empty() {
            write!(f, "; {} could not be asked", hosts(self.unreached.len()))?;
        }
        Ok(())
    }
}

/// Ends every node on its own host, all at once. Hosts that are not reached are told.
///
/// # Errors
/// If no host at all was reached: then what is known of them stays, for the next attempt.
pub(crate) fn stop(cluster: &Cluster, record: &Record) -> Result<StoppedHosts> {
    let shell = Shell::of(record.shell.clone(), LIMIT)?;
    let dir = cluster.dir().to_str().context("the cluster's folder is no text (UTF-8)")?;
    let radic = quoted(record.prefix.join("radic").to_str().context("the folder of RADIC is no text (UTF-8)")?);
    let remote = |name: &str| format!("exec {radic} cluster stop --json --only {name} --dir {}", quoted(dir));
    let commands = record.nodes.iter().map(|node| (node.clone(), shell.command(&node.target, &remote(node.name.as_str()))));
    let commands: Vec<_> = commands.collect();
    let results = block_on(async move {
        let mut tasks = JoinSet::new();
        commands
            .into_iter()
            .for_each(|(node, command)| _ = tasks.spawn(async move { end(command).await.map_err(|why| (node, why)) }));
        Ok(tasks.join_all().await)
    })?;
    let mut stopped = StoppedHosts { hosts: 0, killed: Vec::new(), unreached: Vec::new() };
    for result in results {
        match result {
            Ok(ended) => {
                stopped.hosts += 1;
                stopped.killed.extend(ended.killed);
            }
            Err((Remote { target, name }, why)) => {
                report(&format!(
                    "radic: {name}: {why}; if the host lives, end what is left there: `{} {target} {}`",
                    shell.words(),
                    quoted(&remote(name.as_str()))
                ));
                stopped.unreached.push(Failed { host: name.to_string(), why });
            }
        }
    }
    ensure!(
        stopped.unreached.len() < record.nodes.len(),
        "none of the hosts was reached; if none of them is up any more, remove {}",
        cluster.dir().display()
    );
    Ok(stopped)
}

/// What one host says of its end.
#[derive(serde::Deserialize)]
struct Ended {
    killed: Vec<String>,
}

async fn end(mut command: tokio::process::Command) -> Result<Ended, String> {
    let program = command.as_std().get_program().display().to_string();
    let mut child = command.spawn().map_err(|error| format!("cannot run {program}: {error}"))?;
    drop(child.stdin.take());
    let complaints = Complaints::default();
    let gathering = child.stderr.take().map(|stderr| tokio::spawn(complaints.clone().gather(stderr)));
    let mut text = String::new();
    let answer = async {
        if let Some(stdout) = child.stdout.take() {
            tokio::io::AsyncReadExt::read_to_string(&mut tokio::io::AsyncReadExt::take(stdout, 1 << 20), &mut text).await?;
        }
        child.wait().await
    };
    let status = timeout(LIMIT, answer).await;
    if let Some(gathering) = gathering {
        // What it has said by now is enough.
        let _ = timeout(Duration::from_millis(300), gathering).await;
    }
    match status {
        Err(_) => Err(format!("not ended within {} s", LIMIT.as_secs())),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(status)) => parse(&text).ok_or_else(|| match complaints.last() {
            none if none.is_empty() => format!("the remote shell ended with {status}"),
            complaint => complaint,
        }),
    }
}

/// The answer, behind what login scripts may have printed.
fn parse(text: &str) -> Option<Ended> {
    text.match_indices('{').find_map(|(at, _)| serde_json::from_str(text[at..].trim_end()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_found_behind_noise() {
        let text = "Welcome {to} n1\n{\"nodes\": 1, \"killed\": [], \"elsewhere\": []}\n";
        assert!(parse(text).unwrap().killed.is_empty());
        assert!(parse("Welcome\n").is_none());
    }
}
