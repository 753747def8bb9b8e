//! Network namespaces: whether they can be made, and work that is done inside one.

use std::path::Path;
use std::process::Command;

/// Whether namespaces can be made here; if not, why.
pub fn available() -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("network namespaces need root".to_owned());
    }
    let probe = Command::new("unshare").args(["--net", "true"]).output().map_err(|e| format!("unshare: {e}"))?;
    if !probe.status.success() {
        return Err(format!("the kernel refuses: {}", String::from_utf8_lossy(&probe.stderr).trim()));
    }
    // Root on a machine that allows it: the tests are to run, not to be skipped.
    let found = Command::new("ip").arg("-V").output();
    assert!(found.is_ok_and(|ip| ip.status.success()), "no `ip` command (package iproute2): run `make deps`");
    Ok(())
}

/// Does something inside a namespace (`/proc/PID/ns/net`), on a thread of its own: sockets that are made there are of that network.
///
/// # Panics
/// If it does, or there is no such namespace.
pub fn inside<T: Send>(namespace: &Path, work: impl FnOnce() -> T + Send) -> T {
    let file = std::fs::File::open(namespace).unwrap_or_else(|error| panic!("{}: {error}", namespace.display()));
    let enter = || nix::sched::setns(&file, nix::sched::CloneFlags::CLONE_NEWNET).expect("root may enter a namespace");
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter();
            work()
        });
        thread.join().expect("what is done there does not panic")
    })
}
