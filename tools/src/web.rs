//! `radic web`: where the daemons' pages are, and a token for them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use radic_wire::ids::NodeName;
use radic_wire::local::{Reply, Request};
use radic_wire::token::Tokens;

use crate::client::{ClientError, Cluster};
use crate::format::print;
use crate::protection::parse_time;

/// Time that a daemon has to say where its page is.
const ANSWER: Duration = Duration::from_secs(3);

/// Flags of `radic web`.
#[derive(Args)]
pub(crate) struct WebArgs {
    /// How long the token is taken: 30m, 12h, 365d
    #[arg(long = "for", value_name = "TIME", default_value = "12h", value_parser = parse_time)]
    period: Duration,
    /// Print the token alone, for a program: curl, Prometheus
    #[arg(long)]
    token: bool,
}

/// `radic web`.
pub(crate) fn web(cluster: &Cluster, args: &WebArgs) -> Result<()> {
    let key = cluster.load_key().map_err(|error| match error {
        ClientError::NoCluster { .. } if args.token => {
            anyhow!("{error}; for a token of a cluster elsewhere set RADIC_KEY to a copy of its key")
        }
        error => error.into(),
    })?;
    let now = SystemTime::UNIX_EPOCH.elapsed().context("the clock is before 1970: set it")?;
    let until = now.as_secs().checked_add(args.period.as_secs()).context("--for: that is too long; 365d is a year")?;
    let token = Tokens::new(&key).issue(until);
    if args.token {
        return Ok(print(&format!("{token}\n"))?);
    }
    let pages: Vec<_> = cluster.nodes().into_iter().filter_map(|name| page_of(cluster, &name)).collect();
    if pages.is_empty() {
        bail!(
            "no daemon in {} serves a page: start them with --http (`radicd --http`, `radic cluster start --http`); `radic web --token` makes a \
             token for daemons elsewhere",
            cluster.dir().display()
        );
    }
    Ok(print(&pages.iter().map(|(node, address)| format!("{node} {}\n", link(*address, &token))).collect::<String>())?)
}

fn page_of(cluster: &Cluster, name: &str) -> Option<(NodeName, SocketAddr)> {
    match cluster.connect_to(name).and_then(|mut connection| connection.ask(&Request::Node, ANSWER)) {
        Ok(Reply::Node(status)) => Some((status.node.clone(), status.http?)),
        _ => None,
    }
}

/// The daemon is on this machine: an address that stands for all of the machine's is reached by its own.
fn link(mut address: SocketAddr, token: &str) -> String {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    format!("http://radic:{token}@{address}/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_this_machine() {
        let link = |address: &str| link(address.parse().unwrap(), "t");
        assert_eq!(link("0.0.0.0:7118"), "http://radic:t@127.0.0.1:7118/");
        assert_eq!(link("[::]:7118"), "http://radic:t@[::1]:7118/");
        assert_eq!(link("192.0.2.1:80"), "http://radic:t@192.0.2.1:80/");
    }
}
