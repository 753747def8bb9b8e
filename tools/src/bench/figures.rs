//! Figures of several runs, and what else they depend on.

use serde::Serialize;

/// Of a message.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Programs that compute, over the last minute; 0 if that is not known.
pub(super) fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// Whether other work will be a part of the figures: there is some before we begin.
pub(super) fn busy() -> Option<String> {
    let load = load();
    let cores = std::thread::available_parallelism().ok()?;
    (load > 0.5).then(|| format!("the machine was busy before (load {load:.1} on {cores} cores): the figures include that"))
}

pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|s| (0.01..=3600.0).contains(s)).ok_or_else(|| "it is a number of seconds, 0.01 to 3600".into())
}

/// Least, middle and most of several times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Times {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) max: f64,
}

impl Times {
    pub(super) fn of(mut times: Vec<f64>) -> Self {
        assert!(!times.is_empty(), "at least one run is asked for");
        times.sort_by(f64::total_cmp);
        Times { min: times[0], median: times[times.len() / 2], max: times[times.len() - 1] }
    }
}

/// The same without RADIC and under it.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) native: Times,
    pub(super) radic: Times,
    /// Of the medians.
    pub(super) ratio: f64,
    /// The median of the ratios of the pairs.
    pub(super) pair_ratio: f64,
    /// All ratios of the pairs.
    pub(super) pair_ratios: Spread,
}

impl Comparison {
    pub(super) fn of(pairs: &[(f64, f64)]) -> Self {
        let (native, radic) = pairs.iter().copied().unzip();
        let (native, radic) = (Times::of(native), Times::of(radic));
        let ratios = Times::of(pairs.iter().map(|(native, radic)| radic / native).collect());
        let pair_ratios = Spread::parts_of(&ratios, 1.0);
        Comparison { native, radic, ratio: radic.median / native.median, pair_ratio: ratios.median, pair_ratios }
    }
}

/// Least, middle and most of several figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Times as parts of another time.
    pub(super) fn parts_of(times: &Times, whole: f64) -> Spread {
        Spread { min: times.min / whole, median: times.median / whole, max: times.max / whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(Times::of(vec![3.0, 1.0, 2.0]), Times { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(Times::of(vec![5.0]), Times { min: 5.0, median: 5.0, max: 5.0 });
    }

    #[test]
    fn intervals_are_seconds() {
        assert_eq!(parse_seconds("0.2"), Ok(0.2));
        assert!(["0", "-1", "NaN", "often", "1e9"].iter().all(|text| parse_seconds(text).is_err()));
    }

    #[test]
    fn a_ratio_above_1_says_that_radic_is_slower() {
        let Comparison { native, radic, ratio, pair_ratio, pair_ratios } =
            Comparison::of(&[(1.0, 2.0), (10.0, 30.0), (2.0, 3.0)]);
        assert_eq!((native.median, radic.median, ratio, pair_ratio), (2.0, 3.0, 1.5, 2.0));
        assert_eq!(pair_ratios, Spread { min: 1.5, median: 2.0, max: 3.0 });
    }
}
