//! How a job ended: in words, and as an exit code.

use nix::sys::signal::Signal;
use radic_wire::ids::Rank;
use radic_wire::job::{EndReason, ExitStatus, Outcome};

/// The exit code for a command line that says too little, or what contradicts itself: that of the parser of the command line.
pub(crate) const USAGE_CODE: u8 = 2;

/// A command line that is wrong only where this command runs, so its parser cannot see it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) &'static str);

/// What to tell about a job that did not simply finish.
pub(crate) fn explain(outcome: &Outcome) -> Option<String> {
    let text = match &outcome.reason {
        EndReason::Finished => return None,
        EndReason::RankFailed { rank, node, status } => {
            format!("rank {rank} on {node} {}; the job was ended", status_text(*status))
        }
        EndReason::Aborted { rank, code, message } => {
            let message = message.trim();
            let said = if message.is_empty() { String::new() } else { format!(": {message}") };
            format!("rank {rank} called MPI_Abort with code {code}{said}")
        }
        EndReason::NotFinalized { rank, node } => format!(
            "rank {rank} on {node} exited with code 0 but without MPI_Finalize; the other ranks would have waited for it \
             for ever, so the job was ended"
        ),
        EndReason::NodeLost { node, ranks, why } => format!(
            "node {node} is gone ({why}), and {} with it, so the job was ended.\n\
             radic: `radic nodes` shows what is left, and `radic events` what happened; run the job again to use the other nodes",
            ranks_text(ranks)
        ),
        EndReason::RankLost { rank, node, why } => format!(
            "rank {rank} on {node} cannot go on ({why}), so the job was ended.\n\
             radic: `radic events` shows what happened; run the job again"
        ),
        EndReason::LaunchFailed { rank, node, error, .. } => format!("rank {rank} could not be started on {node}: {error}"),
        EndReason::Killed => "the job was killed".into(),
        EndReason::Suspended => "the job is suspended; `radic resume` goes on with it".into(),
        EndReason::FenceMissed { rank, node, waiting } => format!(
            "rank {rank} on {node} exited with code 0 but without MPI_Init; {} would have waited for it there for ever, so the \
             job was ended",
            ranks_text(waiting)
        ),
    };
    Some(format!("radic: {text}"))
}

/// The outcome in a few words, for a table.
pub(crate) fn in_short(outcome: &Outcome) -> String {
    match &outcome.reason {
        EndReason::Finished => "finished".into(),
        EndReason::RankFailed { rank, status: ExitStatus::Code(code), .. } => format!("rank {rank} exit {code}"),
        EndReason::RankFailed { rank, status: ExitStatus::Signal(signal) | ExitStatus::Ended(signal), .. } => {
            format!("rank {rank} {}", signal_name(*signal).unwrap_or("signal"))
        }
        EndReason::Aborted { code, .. } => format!("abort {code}"),
        EndReason::NotFinalized { rank, .. } => format!("rank {rank} left"),
        EndReason::NodeLost { node, .. } => format!("lost {node}"),
        EndReason::RankLost { rank, .. } => format!("lost rank {rank}"),
        EndReason::LaunchFailed { .. } => "not started".into(),
        EndReason::Killed => "killed".into(),
        EndReason::Suspended => "suspended".into(),
        EndReason::FenceMissed { rank, .. } => format!("rank {rank} left"),
    }
}

/// The exit code of this command. The kernel keeps only its low 8 bits: a failure must not become a 0 there.
pub(crate) fn exit_code(code: i32) -> u8 {
    match code & 0xff {
        0 if code != 0 => 1,
        low => low as u8,
    }
}

fn status_text(status: ExitStatus) -> String {
    let name = match status {
        ExitStatus::Signal(signal) | ExitStatus::Ended(signal) => signal_name(signal),
        ExitStatus::Code(_) => None,
    };
    name.map_or_else(|| status.to_string(), |name| format!("{status} ({name})"))
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Signal::try_from(signal).ok().map(Signal::as_str)
}

/// "rank 3", "ranks 0-2 and 5", and so on.
fn ranks_text(ranks: &[Rank]) -> String {
    match ranks {
        [] => "no ranks".into(),
        [one] => format!("rank {one}"),
        many => format!("ranks {}", rank_list(many)),
    }
}

/// Ranks as a short list: "0-2,5".
pub(crate) fn rank_list(ranks: &[Rank]) -> String {
    let mut ranks: Vec<u32> = ranks.iter().map(|r| r.0).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let runs = runs.iter().map(|(from, to)| match to - from {
        0 => from.to_string(),
        1 => format!("{from},{to}"),
        _ => format!("{from}-{to}"),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_lists_are_short() {
        let list = |ranks: &[u32]| rank_list(&ranks.iter().map(|r| Rank(*r)).collect::<Vec<_>>());
        assert_eq!(list(&[]), "");
        assert_eq!(list(&[3]), "3");
        assert_eq!(list(&[5, 1, 0, 2, 9, 8]), "0-2,5,8,9");
    }

    #[test]
    fn failures_keep_a_nonzero_exit_code() {
        let cases = [(0, 0), (7, 7), (255, 255), (256, 1), (-1, 255), (300, 44), (i32::MIN, 1)];
        for (code, expected) in cases {
            assert_eq!(exit_code(code), expected, "{code}");
        }
    }

    #[test]
    fn a_failure_names_rank_node_and_signal() {
        let reason = EndReason::RankFailed { rank: Rank(3), node: "n4".parse().unwrap(), status: ExitStatus::Signal(9) };
        let text = explain(&Outcome { code: 137, reason }).unwrap();
        assert_eq!(text, "radic: rank 3 on n4 was ended by signal 9 (SIGKILL); the job was ended");
        assert_eq!(explain(&Outcome { code: 0, reason: EndReason::Finished }), None);
    }
}
