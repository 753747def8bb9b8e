//! The redis server, as Debian has it.

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cluster::Cluster;

/// A free port of this machine's loopback address, for programs that want to be told one. The kernel gives it to no caller, neither of this test nor of another program,
/// which could take it before the program does; and no two calls get the same one.
///
/// # Panics
/// If every such port is taken.
pub fn free_port() -> String {
    /// Below all that the kernel chooses itself, unless it is told to.
    const PORTS: std::ops::Range<u16> = 20_000..30_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = PORTS.len() as u32;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut ports = (0..number).map(|_| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id());
        PORTS.start + (next % number) as u16
    });
    ports.find(free).expect("a free port").to_string()
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
