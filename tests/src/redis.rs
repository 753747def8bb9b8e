//! The redis server, as Debian has it.

use std::net::TcpListener;
use std::path::Path;

use crate::cluster::Cluster;

/// A free port of this machine's loopback address, for programs that want to be told one.
pub fn free_port() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("it is bound").port().to_string()
}

/// The same for many calls at it while nothing listens there: the kernel gives it to none of the callers, which would be in the listener's way.
///
/// # Panics
/// If every such port is taken.
pub fn free_fixed_port() -> String {
    /// Below all that the kernel chooses itself, unless it is told to.
    const PORTS: std::ops::Range<u16> = 20_000..30_000;
    let first = PORTS.start + (std::process::id() % PORTS.len() as u32) as u16;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (first..PORTS.end).chain(PORTS.start..first).find(free).expect("a free port").to_string()
}

/// The command line of a server that keeps nothing on disk. Debian has it under another name in the package with the client; it goes by the name it is
/// called by.
///
/// # Panics
/// If that package is missing.
pub fn server(cluster: &Cluster, address: &str, port: &str) -> String {
    let link = cluster.dir().join("redis-server");
    if !link.exists() {
        let binary = "/usr/bin/redis-check-rdb";
        assert!(Path::new(binary).exists(), "redis-tools is missing: run `make deps`");
        std::os::unix::fs::symlink(binary, &link).expect("in our own directory");
    }
    format!("{} --port {port} --bind {address} --protected-mode no --save '' --appendonly no --daemonize no", link.display())
}
