//! How `radic run` is told to protect a job.

use std::time::Duration;

use clap::Args;
use radic_wire::process::{Interval, Protect, Protection};

/// Flags of `radic run` about protection.
#[derive(Args)]
#[command(next_help_heading = "Protection")]
pub(crate) struct ProtectionArgs {
    /// Whether the ranks survive the death of their node
    #[arg(long, value_enum, default_value_t = ProtectFlag::None, value_name = "HOW")]
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
    /// Memory of each rank for what it has sent and its receiver's protector does not have yet: 64M, 1G
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_bytes)]
    outbox: u64,
    /// Log of each rank above which it is asked for an early checkpoint: 256M, 1G
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_bytes)]
    log_limit: u64,
    /// Keep the logs and checkpoints that no restart needs any more, for `radic replay`, until the cluster is stopped
    #[arg(long)]
    keep_logs: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ProtectFlag {
    /// Log what they receive, make checkpoints
    On,
    /// Load the library, but let every call pass: what interposition alone costs
    Off,
    /// Do not load the library
    None,
}

impl ProtectionArgs {
    /// What a job's description says of it. Its ranges are checked there.
    pub(crate) fn protection(&self) -> Protection {
        Protection {
            protect: match self.protect {
                ProtectFlag::On => Protect::On,
                ProtectFlag::Off => Protect::Off,
                ProtectFlag::None => Protect::None,
            },
            interval: self.ckpt_interval,
            replicas: self.replicas,
            outbox: self.outbox,
            log: self.log_limit,
            keep_logs: self.keep_logs,
        }
    }
}

fn parse_interval(text: &str) -> Result<Interval, String> {
    match text {
        "auto" => Ok(Interval::Auto),
        "never" => Ok(Interval::Never),
        seconds => {
            let seconds: Option<f64> = seconds.trim_end_matches('s').parse().ok();
            // Further bounds are the job's.
            let ms = seconds.map(|s| (s * 1000.0).round()).filter(|ms| (1.0..1e15).contains(ms));
            ms.map(|ms| Interval::Every(ms as u64))
                .ok_or_else(|| "it is a number of seconds like 30 or 0.2, auto, or never".into())
        }
    }
}

/// A number with a unit, of these.
fn parse_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (unit, factor) = units.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
    let value = number * *factor as f64;
    (value.is_finite() && (0.0..1e18).contains(&value)).then_some(value as u64)
}

fn parse_time(text: &str) -> Result<Duration, String> {
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
