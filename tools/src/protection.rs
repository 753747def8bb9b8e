//! How `radic run` is told to protect a job.

use std::fmt;
use std::time::Duration;

use clap::Args;
use radic_wire::job::{OnLoss, RestartOn};
use radic_wire::limits;
use radic_wire::process::{Interval, LogMode, PayloadMode, Protect, Protection};
use serde::Serialize;

use crate::doctor::Obstacles;

/// Flags of `radic run` about protection.
#[derive(Args)]
#[command(next_help_heading = "Protection")]
pub(crate) struct ProtectionArgs {
    /// Whether the ranks are protected. A program that cannot be (`radic doctor` says why) runs without, with a warning; one that would use
    /// UCX is refused
    #[arg(long, value_enum, default_value_t = ProtectFlag::On)]
    protect: ProtectFlag,
    /// Time between two checkpoints of a rank: seconds (0.2, 30), auto (from what one costs and --mtbf), or never
    #[arg(long, value_name = "S|auto|never", default_value = "auto", value_parser = parse_interval)]
    ckpt_interval: Interval,
    /// Mean time between two failures of one node, for --ckpt-interval auto: 90s, 30m, 24h, 30d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_time)]
    pub(crate) mtbf: Duration,
    /// Nodes that hold a copy of each log and checkpoint: with 2 the job survives the death of a node and its protector together
    #[arg(long, value_name = "1|2", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    replicas: u8,
    /// Memory per rank for sent data that a receiver may need again: 128M, 1G [default: an eighth of its node's memory, which the job's ranks there
    /// share, from 64M to 2G for each; with payload in the log 64M]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    outbox: Option<u64>,
    /// Log of each rank above which it is asked for an early checkpoint: 256M, 1G
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_bytes)]
    log_limit: u64,
    /// What a rank does before it sends to another rank of the job
    #[arg(long, value_enum, default_value_t = LogFlag::Causal)]
    log: LogFlag,
    /// Where what a rank has received from others of the job is kept until its checkpoint covers it
    #[arg(long, value_enum, default_value_t = PayloadFlag::Auto)]
    payload: PayloadFlag,
    /// Where the ranks of a node that has died go on
    #[arg(long, value_enum, default_value_t = RestartOnFlag::Spare)]
    restart_on: RestartOnFlag,
    /// What becomes of the job when ranks are lost with all that they could go on from (a node and its protector at once, or before the first checkpoint)
    #[arg(long, value_enum, default_value_t = OnLossFlag::Restart)]
    on_loss: OnLossFlag,
    /// Keep the logs and checkpoints that no restart needs any more, for `radic replay`, until the cluster is stopped
    #[arg(long)]
    keep_logs: bool,
    /// Record what the program reads of clocks, and tell it the same after a restart: programs choose by the clock how often they do something. Without it
    /// a reading costs less, and such a program may go another way after a restart, which ends as --on-loss says
    #[arg(long, value_enum, default_value_t = RecordTimeFlag::On)]
    record_time: RecordTimeFlag,
    /// Record what the program reads of the processor's own counter, too (rdtsc, rdtscp), for a program that decides something by it; `radic doctor` names programs that may read
    /// it. Each reading then takes microseconds, also those of its MPI library, and each message may: the processor traps the instruction
    #[arg(long)]
    record_tsc: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ProtectFlag {
    /// Log what they receive, make checkpoints
    On,
    /// Load the library, but let every call pass: what interposition alone costs
    Off,
    /// Do not load the library: nothing is logged or saved, and everything is as fast as without RADIC
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
enum RecordTimeFlag {
    /// clock_gettime, gettimeofday, time, clock, times, getrusage and MPI_Wtime
    On,
    /// None; random bytes are recorded all the same
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
enum LogFlag {
    /// Send only when the protector holds all that the message depends on
    Waiting,
    /// Send at once; what the message depends on travels with it
    Causal,
}

#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
enum PayloadFlag {
    /// With its senders; in its log with --log waiting, --replicas 2, --keep-logs, or an --outbox under 64M
    Auto,
    /// In its log: it ships all of it to its protector
    Log,
    /// With the ranks that have sent it, in --outbox: nothing is shipped, and the checkpoints of all ranks are made together. With --log causal and one replica
    Sender,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum RestartOnFlag {
    /// On a spare; where there is none, on the node that protects them
    Spare,
    /// On the node that protects them: it has their logs and checkpoints
    Protector,
    /// On the node with the fewest ranks of the job
    Any,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum OnLossFlag {
    /// Restart the job from the beginning, with a notice
    Restart,
    /// End the job with exit code 113: for what must not be done twice
    Fail,
}

impl ProtectionArgs {
    /// Where payload is kept. Replay needs logs that have all that was received, and a second replica images that count by themselves. A small outbox would be full
    /// so soon that recovery lines follow each other.
    fn payload_mode(&self) -> PayloadMode {
        let is_possible = self.log == LogFlag::Causal && self.replicas == 1 && !self.keep_logs;
        let is_large = self.outbox.is_none_or(|outbox| outbox >= limits::OUTBOX);
        match self.payload {
            PayloadFlag::Sender => PayloadMode::Sender,
            PayloadFlag::Auto if is_possible && is_large => PayloadMode::Sender,
            PayloadFlag::Auto | PayloadFlag::Log => PayloadMode::Log,
        }
    }

    /// How a job is protected, given what is in the way of that. Its ranges are checked with the job's description.
    pub(crate) fn decide(&self, find_obstacles: impl FnOnce() -> Obstacles) -> Decision {
        let asked = match self.protect {
            ProtectFlag::On => Protect::On,
            ProtectFlag::Off => Protect::Off,
            ProtectFlag::None => Protect::None,
        };
        // A job without protection has no obstacle.
        let obstacles = if asked == Protect::On { find_obstacles() } else { Obstacles::default() };
        let protection = Protection {
            protect: if obstacles.stops.is_empty() && obstacles.refusals.is_empty() { asked } else { Protect::None },
            interval: self.ckpt_interval,
            replicas: self.replicas,
            outbox: self.outbox,
            log: self.log_limit,
            keep_logs: self.keep_logs,
            record_time: self.record_time == RecordTimeFlag::On,
            record_tsc: self.record_tsc,
            log_mode: if self.log == LogFlag::Causal { LogMode::Causal } else { LogMode::Waiting },
            payload: self.payload_mode(),
        };
        let restart_on = match self.restart_on {
            RestartOnFlag::Spare => RestartOn::Spare,
            RestartOnFlag::Protector => RestartOn::Protector,
            RestartOnFlag::Any => RestartOn::Any,
        };
        let on_loss = match self.on_loss {
            OnLossFlag::Restart => OnLoss::Restart,
            OnLossFlag::Fail => OnLoss::Fail,
        };
        Decision { protection, restart_on, on_loss, obstacles }
    }
}

/// How a job is protected, and what of it is not (G7).
#[derive(Debug, Serialize)]
pub(crate) struct Decision {
    #[serde(flatten)]
    pub(crate) protection: Protection,
    pub(crate) restart_on: RestartOn,
    pub(crate) on_loss: OnLoss,
    pub(crate) obstacles: Obstacles,
}

impl Decision {
    /// Why nothing is to be started at all: one line.
    pub(crate) fn refusal(&self) -> Option<String> {
        let why = &self.obstacles.refusals;
        let what = "nothing is started: UCX cannot be protected (--protect none runs it all the same, unprotected)";
        (!why.is_empty()).then(|| format!("{what}: {}", why.join("; ")))
    }

    /// What the user must be told before the job starts: one line.
    pub(crate) fn warning(&self) -> Option<String> {
        match (&self.obstacles.stops[..], &self.obstacles.children) {
            ([], None) => None,
            ([], Some(children)) => Some(children.clone()),
            (stops, _) => {
                Some(format!("this job runs UNPROTECTED (--protect none says so without a warning): {}", stops.join("; ")))
            }
        }
    }
}

/// For `radic run --explain`.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Protection { protect, interval, replicas, payload, .. } = &self.protection;
        let how = match protect {
            Protect::On => {
                let interval = match interval {
                    Interval::Auto => "as often as --mtbf and their cost suggest".to_owned(),
                    Interval::Every(ms) => format!("every {} s", *ms as f64 / 1e3),
                    Interval::Never => "on request only".to_owned(),
                };
                let payload = match payload {
                    PayloadMode::Sender => {
                        "what each rank receives is kept by the ranks that have sent it, and its order is logged at another node"
                            .to_owned()
                    }
                    PayloadMode::Log => format!("what each rank receives is logged at {replicas} other node(s)"),
                };
                format!("on: {payload}; checkpoints {interval}")
            }
            Protect::Off => "off: RADIC's library is loaded, and lets every call pass".to_owned(),
            Protect::None => "none".to_owned(),
        };
        writeln!(f, "protection {how}")?;
        if *protect == Protect::On {
            let place = match self.restart_on {
                RestartOn::Spare => "on a spare, or else on the node that protects them",
                RestartOn::Protector => "on the node that protects them",
                RestartOn::Any => "on the node with the fewest ranks of the job",
            };
            let lost = match self.on_loss {
                OnLoss::Restart => "restarts from the beginning",
                OnLoss::Fail => "ends with an error",
            };
            writeln!(f, "           the ranks of a node that dies go on {place}; if that is not possible, the job {lost}")?;
        }
        for line in self.refusal().into_iter().chain(self.warning()) {
            writeln!(f, "           {line}")?;
        }
        Ok(())
    }
}

fn parse_interval(text: &str) -> Result<Interval, String> {
    match text {
        "auto" => Ok(Interval::Auto),
        "never" => Ok(Interval::Never),
        // Further bounds are the job's.
        seconds => parse_milliseconds(seconds)
            .map(Interval::Every)
            .ok_or_else(|| "it is a number of seconds like 30 or 0.2, auto, or never".into()),
    }
}

/// Seconds like 30, 0.2 or 30s, in milliseconds: at least one.
fn parse_milliseconds(seconds: &str) -> Option<u64> {
    let seconds: f64 = seconds.trim_end_matches('s').parse().ok()?;
    let ms = (seconds * 1000.0).round();
    (1.0..1e15).contains(&ms).then_some(ms as u64)
}

/// The time between two checkpoints of a program without a cluster, written and bounded like that of a job.
pub(crate) fn parse_period(text: &str) -> Result<Duration, String> {
    let ms = parse_milliseconds(text).filter(|ms| (10..=30 * 24 * 3_600_000).contains(ms));
    ms.map(Duration::from_millis).ok_or_else(|| "it is a number of seconds like 30 or 0.2, 0.01 to 30 days".into())
}

/// A number with a unit, of these.
fn parse_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (unit, factor) = units.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
    let value = number * *factor as f64;
    (value.is_finite() && (0.0..1e18).contains(&value)).then_some(value as u64)
}

pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400), ("", 1)];
    let seconds = parse_unit(text, &units).filter(|seconds| *seconds > 0);
    seconds.map(Duration::from_secs).ok_or_else(|| "a time is written like 90s, 30m, 24h or 30d".into())
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let units = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40), ("", 1)];
    let number = text.trim_end_matches("iB").trim_end_matches('B');
    parse_unit(number, &units).ok_or_else(|| "a size is written like 64M or 1G".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        protection: ProtectionArgs,
    }

    #[test]
    fn intervals_are_seconds_or_words() {
        assert_eq!(parse_interval("0.2"), Ok(Interval::Every(200)));
        assert_eq!(parse_interval("30s"), Ok(Interval::Every(30_000)));
        assert_eq!((parse_interval("auto"), parse_interval("never")), (Ok(Interval::Auto), Ok(Interval::Never)));
        for bad in ["", "0", "-1", "often", "NaN", "inf", "1e300"] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_program_of_its_own_is_saved_at_any_sensible_time() {
        let ms = |text| parse_period(text).map(|period| period.as_millis());
        assert_eq!((ms("60"), ms("0.2"), ms("0.01"), ms("90s")), (Ok(60_000), Ok(200), Ok(10), Ok(90_000)));
        for bad in ["", "0", "0.001", "-1", "never", "NaN", "inf", "1e9"] {
            assert!(parse_period(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_protected_runs_without_and_says_so() {
        let decide = |words: &[&str], stops: &[&str], children: Option<&str>| {
            let command = <Command as clap::Parser>::parse_from([&["radic"], words].concat());
            let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
            let decision =
                command.protection.decide(|| Obstacles { stops, children: children.map(str::to_owned), ..Obstacles::default() });
            (decision.protection.protect, decision.warning())
        };
        assert_eq!(decide(&[], &[], None), (Protect::On, None), "the default");
        let (protect, warning) = decide(&[], &["it is static", "it is setuid"], None);
        assert_eq!(protect, Protect::None);
        assert!(warning.is_some_and(|text| text.contains("UNPROTECTED") && text.contains("it is static; it is setuid")));
        assert_eq!(decide(&["--protect", "on"], &["it is static"], None).0, Protect::None);
        assert_eq!(decide(&[], &[], Some("a shell")), (Protect::On, Some("a shell".to_owned())));
        assert_eq!(decide(&["--protect", "none"], &["it is static"], None), (Protect::None, None));
        assert_eq!(decide(&["--protect", "off"], &[], Some("a shell")), (Protect::Off, None));
    }

    #[test]
    fn payload_stays_with_its_senders_where_it_can() {
        let payload = |flags: &str| {
            let command = <Command as clap::Parser>::parse_from(["radic"].into_iter().chain(flags.split_whitespace()));
            command.protection.decide(Obstacles::default).protection.payload
        };
        for flags in ["", "--outbox 64M", "--payload sender --outbox 1M", "--log causal"] {
            assert_eq!(payload(flags), PayloadMode::Sender, "{flags}");
        }
        for flags in ["--payload log", "--log waiting", "--replicas 2", "--keep-logs", "--outbox 63M"] {
            assert_eq!(payload(flags), PayloadMode::Log, "{flags}");
        }
    }

    #[test]
    fn what_would_use_ucx_is_refused_and_not_run_without_protection() {
        let decision = |refusals: &[&str]| {
            let refusals: Vec<_> = refusals.iter().map(|text| (*text).to_owned()).collect();
            Decision {
                protection: Protection::default(),
                restart_on: RestartOn::Spare,
                on_loss: OnLoss::Restart,
                obstacles: Obstacles { refusals, ..Obstacles::default() },
            }
        };
        assert_eq!(decision(&[]).refusal(), None);
        let refused = decision(&["you set A=ucx (way out: unset A)"]);
        assert_eq!(refused.warning(), None);
        let text = refused.refusal().unwrap();
        assert!(text.contains("nothing is started") && text.contains("unset A") && text.contains("--protect none"), "{text}");
        assert!(refused.to_string().contains("unset A"), "--explain says so, too");
    }

    #[test]
    fn what_explain_says_of_restarts() {
        let decision = |protect| Decision {
            protection: Protection { protect, ..Protection::default() },
            restart_on: RestartOn::Protector,
            on_loss: OnLoss::Fail,
            obstacles: Obstacles::default(),
        };
        let text = decision(Protect::On).to_string();
        assert!(
            text.contains("go on on the node that protects them; if that is not possible, the job ends with an error"),
            "{text}"
        );
        assert!(!decision(Protect::Off).to_string().contains("go on"), "nothing is restarted");
    }

    #[test]
    fn times_and_sizes_have_units() {
        let seconds = |text| parse_time(text).map(|t| t.as_secs());
        assert_eq!(
            [seconds("90"), seconds("30m"), seconds("1.5h"), seconds("2d")].map(Result::unwrap),
            [90, 1800, 5400, 172_800]
        );
        assert_eq!(["64M", "1GiB", "100", "1.5K"].map(|text| parse_bytes(text).unwrap()), [64 << 20, 1 << 30, 100, 1536]);
        for bad in ["", "M", "-1G", "1X", "1e30T", "NaN"] {
            assert!(parse_bytes(bad).is_err() && parse_time(bad).is_err(), "{bad}");
        }
    }
}
