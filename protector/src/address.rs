//! Addresses as people write them: a name or a number, and a port.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The port where none is said.
pub const DEFAULT_PORT: u16 = 7117;
/// Longest name of a host, in bytes.
const NAME: usize = 253;

/// `HOST`, `HOST:PORT`, `192.0.2.1:PORT`, `[2001:db8::1]:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPort {
    host: String,
    port: u16,
}

/// Why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address: write HOST:PORT, with a name or a number for HOST, or HOST alone for port {DEFAULT_PORT}")]
pub struct AddressError(String);

impl HostPort {
    /// All that the name stands for now, each once; asks the resolver of the system, which may take seconds.
    ///
    /// # Errors
    /// Those of the resolver: no such name, or no name server that answers.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let mut found: Vec<SocketAddr> = Vec::new();
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        Ok(found)
    }

    /// That of the addresses which this machine has; one of the loopback network only if there is no other. `own`: the addresses of its
    /// interfaces. A number is taken as it is: it may be one that comes up later.
    ///
    /// # Errors
    /// Those of the resolver, and that none of the addresses is this machine's.
    pub fn resolve_here(&self, own: &[IpAddr]) -> io::Result<SocketAddr> {
        if let Ok(ip) = self.host.parse() {
            return Ok(SocketAddr::new(ip, self.port));
        }
        let found = self.resolve()?;
        let here = |address: &&SocketAddr| own.contains(&address.ip()) || address.ip().is_loopback();
        let fitting = found.iter().filter(here).min_by_key(|address| address.ip().is_loopback());
        fitting.copied().ok_or_else(|| {
            let shown = found.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ");
            io::Error::other(format!("its address, {shown}, is that of another machine"))
        })
    }
}

/// A network: `a.b.c.d/length`, or an address of IPv6 and a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    address: IpAddr,
    length: u32,
}

/// Why a text is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network: write ADDRESS/LENGTH, as 192.0.2.0/24")]
pub struct NetworkError(String);

impl Network {
    /// Whether an address is in it.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.address, ip) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32 - self.length).unwrap_or(0);
                (network.to_bits() ^ ip.to_bits()) & mask == 0
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128 - self.length).unwrap_or(0);
                (network.to_bits() ^ ip.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

impl From<IpAddr> for Network {
    /// That of this address alone.
    fn from(address: IpAddr) -> Network {
        Network { address, length: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let parse = || {
            let (address, length) = text.split_once('/')?;
            let (address, length): (IpAddr, u32) = (address.parse().ok()?, length.parse().ok()?);
            let longest = if address.is_ipv4() { 32 } else { 128 };
            (length <= longest).then_some(Network { address, length })
        };
        parse().ok_or_else(|| NetworkError(text.to_owned()))
    }
}

impl TryFrom<String> for Network {
    type Error = NetworkError;

    fn try_from(text: String) -> Result<Self, NetworkError> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> String {
        network.to_string()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        HostPort { host: address.ip().to_string(), port: address.port() }
    }
}

impl FromStr for HostPort {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, DEFAULT_PORT).into());
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
            None => (text, DEFAULT_PORT),
        };
        let letters = host.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_'));
        // What looks like a number, and is none, is no name.
        let numeric = host.bytes().all(|c| c.is_ascii_digit() || c == b'.');
        if host.is_empty() || host.len() > NAME || !letters || numeric || host.starts_with('-') {
            return Err(wrong());
        }
        Ok(HostPort { host: host.to_owned(), port })
    }
}

impl TryFrom<String> for HostPort {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<HostPort> for String {
    fn from(address: HostPort) -> String {
        address.to_string()
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Through which members to join, and whether this node may found the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seeds {
    /// The addresses of others.
    pub join: Vec<SocketAddr>,
    /// If this node is the first of the list: how many others must be there, and in no cluster, before it founds one.
    pub found: Option<usize>,
}

/// What the list of `--join`, resolved, means for the node at `own`. `expect`: how many nodes are to be there when a cluster is founded;
/// else the majority of the list.
///
/// # Errors
/// What cannot be is said.
pub fn seeds(list: &[Vec<SocketAddr>], own: SocketAddr, expect: Option<u32>) -> Result<Seeds, String> {
    let place = list.iter().position(|addresses| addresses.contains(&own));
    let mut join: Vec<SocketAddr> = Vec::new();
    // A name may stand for several addresses; those of this node's own are all left out.
    for (at, addresses) in list.iter().enumerate() {
        let others = addresses.iter().filter(|address| Some(at) != place && **address != own);
        join.extend(others);
    }
    let mut known = std::collections::HashSet::new();
    join.retain(|address| known.insert(*address));
    let expected = match expect {
        None => list.len() / 2 + 1,
        Some(expect) if place.is_none() => {
            return Err(format!(
                "bootstrap-expect is {expect}, and the list of --join does not have this node, {own}: name it there, too"
            ));
        }
        Some(expect) if !(1..=list.len()).contains(&(expect as usize)) || expect as usize <= list.len() / 2 => {
            let (half, all) = (list.len() / 2 + 1, list.len());
            return Err(format!(
                "bootstrap-expect is {expect}; of {all} addresses it must be {half} to {all}: less would allow two clusters"
            ));
        }
        Some(expect) => expect as usize,
    };
    let found = (place == Some(0) && !join.is_empty()).then_some(expected - 1);
    Ok(Seeds { join, found })
}

/// Whether so much of the list of `--join` is known that the node at `own` need not wait for the rest. One other node is enough to join through. The first of the
/// list, which may found the cluster, needs so many that it can: it counts only nodes whose addresses it knew when it began.
pub fn is_enough(list: &[Vec<SocketAddr>], own: SocketAddr, expect: Option<u32>) -> bool {
    let others = list.iter().filter(|addresses| !addresses.is_empty() && !addresses.contains(&own)).count();
    let is_first = list.first().is_some_and(|first| first.contains(&own));
    let expected = if is_first { expect.map_or(list.len() / 2 + 1, |expect| expect as usize) } else { 2 };
    others >= expected.max(2) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_holds_the_addresses_of_its_length() {
        let holds = |network: &str, ip: &str| network.parse::<Network>().unwrap().contains(ip.parse().unwrap());
        assert!(holds("10.1.0.0/16", "10.1.255.3") && !holds("10.1.0.0/16", "10.2.0.1"));
        assert!(holds("10.1.0.7/32", "10.1.0.7") && !holds("10.1.0.7/32", "10.1.0.6") && holds("0.0.0.0/0", "10.2.0.1"));
        assert!(holds("fd00:1::/32", "fd00:1::9") && !holds("fd00:1::/32", "fd00:2::9") && !holds("0.0.0.0/0", "::1"));
        for bad in ["10.1.0.0", "10.1.0.0/33", "x/8", "::/129", "10.1/16", ""] {
            assert!(bad.parse::<Network>().unwrap_err().to_string().contains("192.0.2.0/24"), "{bad}");
        }
    }

    #[test]
    fn names_and_numbers_are_read_and_written() {
        for (text, shown) in [
            ("node1", "node1:7117"),
            ("node1.example.org:5", "node1.example.org:5"),
            ("192.0.2.1:0", "192.0.2.1:0"),
            ("192.0.2.1", "192.0.2.1:7117"),
            ("[2001:db8::1]:5", "[2001:db8::1]:5"),
            ("2001:db8::1", "[2001:db8::1]:7117"),
        ] {
            let address: HostPort = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse::<HostPort>().unwrap(), address);
        }
        for wrong in ["", ":5", "a:b", "a b:5", "192.0.2:5", "a:70000", "-x", "a:1:2", "[::1"] {
            assert!(wrong.parse::<HostPort>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_name_stands_for_an_address_of_this_machine() {
        let here = |text: &str| text.parse::<HostPort>().unwrap().resolve_here(&[]);
        assert!(here("localhost:5").unwrap().ip().is_loopback());
        assert_eq!(here("192.0.2.77:5").unwrap(), "192.0.2.77:5".parse().unwrap(), "a number is taken as it is");
        assert!(here("no-such-host.invalid:5").is_err());
    }

    fn list(ports: &[u16]) -> Vec<Vec<SocketAddr>> {
        ports.iter().map(|port| vec![at(*port)]).collect()
    }

    fn at(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn the_first_of_the_list_may_found_and_nobody_joins_itself() {
        let of = |ports: &[u16], own, expect| seeds(&list(ports), at(own), expect).map(|seeds| (seeds.join.len(), seeds.found));
        assert_eq!(of(&[1, 2, 3], 1, None), Ok((2, Some(1))), "a majority of three are two");
        assert_eq!(of(&[1, 2, 3], 1, Some(3)), Ok((2, Some(2))));
        assert_eq!(of(&[1, 2, 3], 2, None), Ok((2, None)));
        assert_eq!(of(&[1, 2, 3], 4, None), Ok((3, None)));
        assert_eq!(of(&[1], 1, None), Ok((0, None)), "there is no other node: it founds");
        assert_eq!(of(&[], 1, None), Ok((0, None)));
        let twice = [vec![at(1), "[::1]:1".parse().unwrap()], vec![at(2), at(2)]];
        assert_eq!(seeds(&twice, at(1), None), Ok(Seeds { join: vec![at(2)], found: Some(1) }), "a name with two addresses");
        assert!(of(&[1, 2, 3], 1, Some(1)).unwrap_err().contains("2 to 3"));
        assert!(of(&[1, 2, 3], 1, Some(4)).unwrap_err().contains("2 to 3"));
        assert!(of(&[1, 2], 3, Some(2)).unwrap_err().contains("name it there"));
    }

    #[test]
    fn the_first_of_the_list_waits_for_as_many_names_as_it_needs_to_found() {
        // 0 stands for a name that nobody knows yet.
        let known =
            |ports: &[u16]| -> Vec<_> { ports.iter().map(|port| if *port == 0 { vec![] } else { vec![at(*port)] }).collect() };
        let enough = |ports: &[u16], own, expect| is_enough(&known(ports), at(own), expect);
        assert!(!enough(&[1, 2, 0, 0, 0], 1, None) && enough(&[1, 2, 0, 4, 0], 1, None), "a majority of five are three");
        assert!(!enough(&[1, 2, 3, 0, 0], 1, Some(4)) && enough(&[1, 2, 3, 4, 0], 1, Some(4)));
        assert!(
            !enough(&[0, 2, 0], 2, None) && enough(&[0, 2, 3], 2, None) && enough(&[1, 2, 0], 2, None),
            "it joins through any"
        );
        assert!(!enough(&[0, 0], 9, None) && enough(&[0, 2], 9, None));
        assert!(!enough(&[1], 1, None) && !enough(&[], 1, None) && !enough(&[1, 0], 1, Some(0)), "there is no other");
    }
}
