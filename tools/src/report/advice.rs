//! What a run suggests for the next one, each with its reason and figures.

use std::time::Duration;

use radic_wire::event::{Event, EventName};

use crate::format::bytes;

use super::model::{Advice, Figure, Report};

/// The bounds within which radicd chooses an interval by itself, in seconds.
const BOUNDS: (f64, f64) = (10.0, 3_600.0);
/// An interval that differs by less, as a part of the best one, costs about as little.
const NEAR: f64 = 0.25;
/// A log that takes more than this part of its limit asks for early checkpoints soon.
const NEARLY_FULL: f64 = 0.5;
/// Bytes of log for each rank, unless `radic run --log-limit` says otherwise.
const LOG_LIMIT: u64 = 1 << 30;
/// Parts of the deaths in which a second one comes too early, above which two replicas are worth their cost.
const RISK: f64 = 1e-3;

fn figures<const N: usize>(all: [(&'static str, f64); N]) -> Vec<Figure> {
    all.into_iter().map(|(name, value)| Figure { name, value }).collect()
}

/// All that the report and the events suggest.
pub(super) fn of(report: &Report, events: &[Event], mtbf: Duration) -> Vec<Advice> {
    let mtbf_s = mtbf.as_secs_f64();
    let all = [interval(report, mtbf_s), memory(report, events), replicas(report, mtbf_s)];
    all.into_iter().flatten().collect()
}

/// The interval at which the pauses and what a death costs are least together, by Young and Daly: the root of twice the cost times the mean time between
/// two failures that hit the job.
fn young_daly(cost_s: f64, job_mtbf_s: f64) -> f64 {
    (2.0 * cost_s * job_mtbf_s).sqrt()
}

/// The part of the time that is lost: pauses, and after a death on average half of an interval once more.
fn lost_part(interval_s: f64, cost_s: f64, job_mtbf_s: f64) -> f64 {
    cost_s / interval_s + interval_s / 2.0 / job_mtbf_s
}

/// Seconds as people say them.
fn time(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { crate::format::duration((seconds * 1e3) as u64) }
}

fn percent(part: f64) -> String {
    match part * 100.0 {
        part if part >= 1.0 => format!("{part:.1} %"),
        part if part >= 0.001 => format!("{part:.3} %"),
        _ => "less than 0.001 %".to_owned(),
    }
}

fn interval(report: &Report, mtbf_s: f64) -> Option<Advice> {
    let cost = report.checkpoints.mean_pause_ms? / 1e3;
    let nodes = report.nodes.len().max(1);
    let job_mtbf = mtbf_s / nodes as f64;
    let exact = young_daly(cost, job_mtbf);
    let best = exact.clamp(BOUNDS.0, BOUNDS.1);
    let bounded = if best == exact {
        String::new()
    } else {
        format!(" (the formula says {}; 10 s and 1 h are the bounds of auto)", time(exact))
    };
    let mut why = format!(
        "A checkpoint stops a rank for {} on average, and by --mtbf {} one of {nodes} nodes fails every {}: by Young's and Daly's formula the best interval is {}{bounded}; \
         {} of the time is lost then, in pauses and in what is executed again after deaths.",
        time(cost),
        time(mtbf_s),
        time(job_mtbf),
        format_args!("{best:.0} s"),
        percent(lost_part(best, cost, job_mtbf)),
    );
    let deaths = report.deaths.len();
    if deaths > 0 {
        let seen = report.seconds / deaths as f64;
        why += &format!(
            " In this run a node died every {}; if that is usual, the best interval is {}.",
            time(seen),
            time(young_daly(cost, seen).clamp(BOUNDS.0, BOUNDS.1))
        );
    }
    let mut figures =
        figures([("pause_s", cost), ("job_mtbf_s", job_mtbf), ("best_s", best), ("lost_part", lost_part(best, cost, job_mtbf))]);
    let say = match report.checkpoints.interval_s {
        Some(now) => {
            figures.push(Figure { name: "now_s", value: now });
            let lost = percent(lost_part(now, cost, job_mtbf));
            why += &format!(" With a checkpoint every {}, as it was, it is {lost}.", time(now));
            match (now - best) / best {
                part if part.abs() <= NEAR => format!("Leave the interval as it is: a checkpoint every {}.", time(now)),
                part => {
                    let how = if part < 0.0 { "less" } else { "more" };
                    format!("Checkpoint {how} often: `--ckpt-interval auto` (the default), or `--ckpt-interval {best:.0}`.")
                }
            }
        }
        None => format!(
            "Take `--ckpt-interval auto` (the default), or `--ckpt-interval {best:.0}`: no rank has made two checkpoints yet."
        ),
    };
    Some(Advice { about: "checkpoint interval", say, why, figures })
}

fn memory(report: &Report, events: &[Event]) -> Option<Advice> {
    let overhead = report.overhead.as_ref()?;
    let rates = overhead.of_ranks.iter().filter(|cost| cost.seconds > 0.0).map(|cost| cost.log_bytes as f64 / cost.seconds);
    let rate = rates.max_by(f64::total_cmp)?;
    let interval = report.checkpoints.interval_s?;
    // While a checkpoint is on its way the log of the next interval grows already.
    let needed = rate * interval * 1.5;
    let ranks = f64::from(report.ranks) / report.nodes.len().max(1) as f64;
    let near = |event: &&Event| {
        event.event == EventName::Limit && event.job == Some(report.job) && event.text.contains("nears its bound")
    };
    let reached = events.iter().filter(near).count();
    let why = format!(
        "The busiest rank wrote {} of log a second; from one checkpoint to the next ({}) and while one is on its way that is {}, for all ranks of a node {} at its \
         protector, and with --replicas 2 as much at another node. The limit is {} for each rank unless --log-limit says otherwise.",
        bytes(rate as u64),
        time(interval),
        bytes(needed as u64),
        bytes((needed * ranks) as u64),
        bytes(LOG_LIMIT),
    );
    let say = match () {
        () if reached > 0 => format!(
            "Raise `--log-limit` above {}, or checkpoint more often: {reached} times a log came near its bound and asked for an early checkpoint.",
            bytes(needed as u64)
        ),
        () if needed > LOG_LIMIT as f64 * NEARLY_FULL => {
            format!(
                "Give protectors more room: `--log-limit {}M`, or a shorter interval.",
                (needed * 2.0 / f64::from(1 << 20)).ceil()
            )
        }
        () => format!("The logs have room enough: keep {} free at the protector of each node.", bytes((needed * ranks) as u64)),
    };
    let figures = figures([
        ("log_bytes_per_s", rate),
        ("needed_bytes_per_rank", needed),
        ("needed_bytes_per_node", needed * ranks),
        ("limit_reached", reached as f64),
    ]);
    Some(Advice { about: "memory for logs", say, why, figures })
}

fn replicas(report: &Report, mtbf_s: f64) -> Option<Advice> {
    let about = "replicas";
    if let Some(last) = report.restarts.last() {
        let why = format!(
            "The job restarted from the beginning {} times, the last time after {}: nothing was left that a rank could go on from. With two replicas a job survives the loss of a node and of its \
             protector together; a loss before the first checkpoint restarts it from the beginning all the same.",
            report.restarts.len(),
            time(*last)
        );
        let say = "Take `--replicas 2`.".to_owned();
        return Some(Advice {
            about,
            say,
            why,
            figures: figures([("restarts", report.restarts.len() as f64), ("last_restart_s", *last)]),
        });
    }
    let exposed = report.recoveries.iter().filter_map(|back| back.exposed_s).max_by(f64::total_cmp)?;
    // The one node that matters then is the one that holds the log.
    let risk = exposed / mtbf_s;
    let why = format!(
        "After a death its ranks had no checkpoint at their new protector for up to {}. A second death, of the node that holds their logs, within that time would have restarted the \
         job from the beginning: by --mtbf {} in {} of all deaths. Two replicas cost the log and the images twice over the network.",
        time(exposed),
        time(mtbf_s),
        percent(risk)
    );
    let say = if risk > RISK {
        "Take `--replicas 2`."
    } else {
        "One copy of logs and images is enough, unless nodes fail together (one power supply, one switch)."
    };
    Some(Advice { about, say: say.to_owned(), why, figures: figures([("exposed_s", exposed), ("risk_per_death", risk)]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_interval_costs_less_than_others() {
        let best = young_daly(0.05, 3_600.0);
        assert!((best - 18.97).abs() < 0.01, "{best}");
        for other in [best / 2.0, best * 2.0] {
            assert!(lost_part(best, 0.05, 3_600.0) < lost_part(other, 0.05, 3_600.0));
        }
    }

    #[test]
    fn parts_are_never_said_to_be_nothing() {
        assert_eq!([0.5, 0.015, 0.000_5, 1e-9].map(percent), ["50.0 %", "1.5 %", "0.050 %", "less than 0.001 %"]);
    }
}
