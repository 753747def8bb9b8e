//! The TCP sockets of a process, as the kernel shows them.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

/// Local and remote address, as the kernel prints them.
pub type Ends = (String, String);

/// A connected socket, in the kernel's table.
pub const CONNECTED: &str = "01";
/// A listener, in the kernel's table.
pub const LISTENING: &str = "0A";

/// The sockets of a process in this state, each with one of its descriptors.
pub fn of(pid: u32, state: &str) -> BTreeMap<Ends, i32> {
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default());
    let mut by_inode = BTreeMap::new();
    for line in tables.iter().flat_map(|table| table.lines().skip(1)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, local, remote, of, _, _, _, _, _, inode, ..] = words[..]
            && of == state
        {
            by_inode.insert(inode.to_owned(), (local.to_owned(), remote.to_owned()));
        }
    }
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let sockets = entries.filter_map(|entry| {
        let fd: i32 = entry.file_name().to_str()?.parse().ok()?;
        let target = fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        let inode = target.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some((by_inode.get(inode)?.clone(), fd))
    });
    sockets.collect()
}

/// Where a process listens, by IPv4, each with the descriptor.
pub fn listeners(pid: u32) -> BTreeMap<SocketAddr, i32> {
    of(pid, LISTENING).into_iter().filter_map(|((local, _), fd)| Some((address(&local)?, fd))).collect()
}

/// An IPv4 address as the kernel prints it: the bytes of a word in the machine's order, and a port.
pub fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':').filter(|(ip, _)| ip.len() == 8)?;
    let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
    Some(SocketAddr::new(ip.into(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_listener_is_found_by_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let found = listeners(std::process::id());
        assert_eq!(found.get(&listener.local_addr().unwrap()), Some(&listener.as_raw_fd()), "{found:?}");
    }
}
