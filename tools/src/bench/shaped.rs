//! A network as fast as is asked for, between two nodes of this machine: two network namespaces, the ends of one veth pair in them, and a token bucket (tbf) on each. It takes root, `ip`
//! and `tc`. It is gone when this is dropped.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::format::report;
use crate::local_node::Namespace;

/// Nodes, and namespaces.
pub(super) const NODES: u32 = 2;

/// A rate as `tc` writes it: 10gbit, 500mbit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rate {
    /// Bits in a second.
    bits: u64,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        /// What a token bucket of the kernel can do, and more than no network.
        const RANGE: std::ops::RangeInclusive<u64> = 1_000_000..=1_000_000_000_000;
        let units = [("gbit", 1_000_000_000), ("mbit", 1_000_000)];
        let read = |(unit, factor): &(&str, u64)| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(*factor);
        let bits = units.iter().find_map(read).filter(|bits| RANGE.contains(bits));
        bits.map(|bits| Rate { bits }).ok_or_else(|| "a rate is written like 10gbit or 500mbit, from 1mbit to 1000gbit".into())
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.bits {
            bits if bits.is_multiple_of(1_000_000_000) => write!(f, "{}gbit", bits / 1_000_000_000),
            bits => write!(f, "{}mbit", bits / 1_000_000),
        }
    }
}

impl Serialize for Rate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The namespaces, which have this network.
pub(super) struct Shaped {
    pub(super) namespaces: Vec<Namespace>,
}

impl Shaped {
    pub(super) fn start(rate: Rate) -> Result<Shaped> {
        ensure!(nix::unistd::geteuid().is_root(), "--shaped makes network namespaces, which takes root: run it by sudo");
        let mut shaped = Shaped { namespaces: Vec::new() };
        for number in 1..=NODES as u8 {
            let name = format!("radic-bench-{}-{number}", std::process::id());
            ip(&["netns", "add", &name])?;
            shaped.namespaces.push(Namespace { name, address: IpAddr::V4(Ipv4Addr::new(10, 77, 0, number)) });
        }
        let [one, two] = &shaped.namespaces[..] else { unreachable!("there are two") };
        ip(&["link", "add", "radic0", "netns", &one.name, "type", "veth", "peer", "name", "radic0", "netns", &two.name])?;
        for Namespace { name, address } in &shaped.namespaces {
            ip(&["-n", name, "address", "add", &format!("{address}/24"), "dev", "radic0"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "link", "set", "radic0", "up"])?;
            // As many tokens as go in 5 ms: more than the kernel's tick lets pass at once. What is behind them waits, and nothing is dropped: TCP keeps less under way.
            let (rate, burst) = (rate.to_string(), (rate.bits / 8 / 200).max(64 << 10).to_string());
            told_by(
                "tc",
                &["-n", name, "qdisc", "add", "dev", "radic0", "root", "tbf", "rate", &rate, "burst", &burst, "latency", "50ms"],
            )?;
        }
        shaped.namespaces.iter().try_for_each(await_carrier)?;
        Ok(shaped)
    }
}

/// The kernel's own work says some time after both ends are up that they run, and MPI libraries leave out interfaces that do not. Only a netlink socket hears of it; it is some
/// milliseconds, once.
fn await_carrier(namespace: &Namespace) -> Result<()> {
    const SOON: Duration = Duration::from_secs(5);
    const LOOK: Duration = Duration::from_millis(10);
    let deadline = Instant::now() + SOON;
    while !told_by("ip", &["-n", &namespace.name, "-oneline", "link", "show", "dev", "radic0"])?.contains("state UP") {
        ensure!(Instant::now() < deadline, "the network of {} does not run after {} s", namespace.name, SOON.as_secs());
        std::thread::sleep(LOOK);
    }
    Ok(())
}

impl Drop for Shaped {
    fn drop(&mut self) {
        for Namespace { name, .. } in &self.namespaces {
            // The pair goes with the first of them.
            if let Err(error) = ip(&["netns", "delete", name]) {
                report(&format!("radic: the network namespace {name} is still there: {error:#}"));
            }
        }
    }
}

fn ip(args: &[&str]) -> Result<()> {
    told_by("ip", args).map(drop)
}

/// What a command prints that does not fail.
fn told_by(program: &str, args: &[&str]) -> Result<String> {
    let told = Command::new(program).args(args).stdin(Stdio::null()).output();
    let told = told.with_context(|| format!("cannot run {program}, of the package iproute2"))?;
    if !told.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&told.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&told.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_tc() {
        let read = |text: &str| text.parse::<Rate>().map(|rate| rate.to_string());
        assert_eq!(["10gbit", "500mbit", "1000mbit"].map(|text| read(text).unwrap()), ["10gbit", "500mbit", "1gbit"]);
        for bad in ["", "10", "gbit", "0gbit", "-1gbit", "1.5gbit", "99999999999gbit", "10Gbit; reboot"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
