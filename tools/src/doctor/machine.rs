//! What this machine and this shell allow: the kernel, namespaces, limits, the environment. All of it is only read.

use std::env;
use std::fs;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::utsname::uname;
use nix::unistd::Uid;

use super::finding::{Finding, Level};

/// Descriptors from this number on are RADIC's.
const DESCRIPTORS: u64 = 1024 + 64;
/// A process may need so many more for its checkpoints, in processes of its user.
const PROCESSES: u64 = 64;
/// Least address space in which RADIC's own reservations do not matter, in bytes.
const ADDRESSES: u64 = 64 << 30;
/// The first kernel with PAGEMAP_SCAN, by which pages that have changed are found.
const INCREMENTAL: (u32, u32) = (6, 7);
/// CAP_SYS_ADMIN's place in a set of capabilities.
const SYS_ADMIN: u32 = 21;

/// The kernel's version as it says it, and what was found out about the machine.
pub(super) fn examine() -> (String, Vec<Finding>) {
    let kernel = uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut findings: Vec<Finding> =
        tracking(&kernel, number("/proc/sys/vm/unprivileged_userfaultfd").is_some()).into_iter().collect();
    let capabilities = field(&status, "CapEff").and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
    findings.extend(namespaces(Uid::effective().is_root(), capabilities >> SYS_ADMIN & 1 == 1, number));
    if field(&status, "Seccomp") == Some("2") {
        findings.push(Finding::new(
            Level::Limit,
            "seccomp",
            "a seccomp filter is in force (in a container, say): it may forbid what checkpoints and restarts need (userfaultfd, clone3, unshare, personality)",
            "allow these calls in the container's profile, and try `radic ckpt run` and `radic ckpt restart` there",
        ));
    }
    if status.is_empty() {
        findings.push(Finding::new(Level::Stop, "proc", "/proc is not mounted: checkpoints read the process there", "mount it"));
    }
    findings.extend(limits(|resource| getrlimit(resource).ok()));
    (kernel, findings)
}

/// What the environment holds that the ranks would get.
pub(super) fn environment() -> Vec<Finding> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned());
    let mut findings = Vec::new();
    for name in ["LD_PRELOAD", "LD_AUDIT"] {
        if let Some(value) = set(name) {
            findings.push(Finding::new(
                Level::Limit,
                "preload",
                format!("{name} is set ({value}): that library comes between the program and RADIC's, which sees only what it lets through"),
                format!("unset {name}, unless that library leaves sockets, threads and memory alone"),
            ));
        }
    }
    findings
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A line of /proc/self/status.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Whether increments can be found by the kernel's notes.
fn tracking(kernel: &str, has_userfaultfd: bool) -> Option<Finding> {
    let mut parts = kernel.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    let (major, minor) = (parts.next().flatten()?, parts.next().flatten()?);
    let why = if (major, minor) < INCREMENTAL {
        format!("Linux {major}.{minor} cannot say which pages have changed (6.7 can)")
    } else if !has_userfaultfd {
        "this kernel was built without userfaultfd".to_owned()
    } else {
        return None;
    };
    Some(Finding::new(
        Level::Limit,
        "incremental",
        format!("{why}: checkpoints of only what has changed compare hashes of all pages instead, about 60 ms more a GiB"),
        "use Linux 6.7 or newer, or checkpoint less often",
    ))
}

/// Whether a process can have its old ids after a restart, as root or in a user namespace. `read` gives the number in a file.
fn namespaces(root: bool, admin: bool, read: impl Fn(&str) -> Option<u64>) -> Option<Finding> {
    let why = if admin {
        return None;
    } else if root {
        "this root has no CAP_SYS_ADMIN, as in a container".to_owned()
    } else if read("/proc/sys/user/max_user_namespaces").is_none_or(|most| most == 0) {
        "user namespaces are off (user.max_user_namespaces)".to_owned()
    } else if read("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        "only root may make user namespaces (kernel.unprivileged_userns_clone is 0)".to_owned()
    } else if read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        "AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1)".to_owned()
    } else {
        return None;
    };
    Some(Finding::new(
        Level::Limit,
        "namespaces",
        format!("{why}: after a restart a process may have other process and thread ids than it remembers"),
        "have the administrator allow user namespaces; else only programs that keep no ids are sure to go on",
    ))
}

/// Limits of this shell, which a cluster started from it hands on to ranks.
fn limits(read: impl Fn(Resource) -> Option<(u64, u64)>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |level, name, about: String, remedy: &str| findings.push(Finding::new(level, name, about, remedy));
    if let Some((_, hard)) = read(Resource::RLIMIT_NOFILE).filter(|limit| limit.1 < DESCRIPTORS) {
        let about = format!(
            "a process may have {hard} descriptors at most: RADIC keeps its own from number 1000 on, behind the program's"
        );
        add(Level::Stop, "nofile", about, "raise the hard limit (`ulimit -Hn`) to 4096 or more before `radic cluster start`");
    }
    if let Some((soft, _)) = read(Resource::RLIMIT_AS).filter(|limit| limit.0 < ADDRESSES) {
        let about = format!(
            "the address space is limited to {} MiB: what RADIC reserves counts, too, and it maps at far addresses",
            soft >> 20
        );
        add(Level::Limit, "as", about, "`ulimit -v unlimited`; to bound memory use a cgroup");
    }
    if let Some((soft, _)) = read(Resource::RLIMIT_NPROC).filter(|limit| limit.0 < PROCESSES && !Uid::effective().is_root()) {
        let about =
            format!("only {soft} processes and threads: each checkpoint is written by a copy of the process, which counts");
        add(Level::Limit, "nproc", about, "`ulimit -u` with a few hundred more than the program needs");
    }
    if let Some((soft, _)) = read(Resource::RLIMIT_STACK).filter(|limit| limit.0 < 1 << 20) {
        let about = format!("the stack is limited to {} KiB: signal handlers of RADIC's checkpoints run on it, too", soft >> 10);
        add(Level::Limit, "stack", about, "`ulimit -s 8192`");
    }
    if let Some((soft, _)) = read(Resource::RLIMIT_FSIZE).filter(|limit| limit.0 != nix::libc::RLIM_INFINITY) {
        let about = format!("files may have {} MiB at most: a protector's logs and images are files", soft >> 20);
        add(Level::Limit, "fsize", about, "`ulimit -f unlimited` before `radic cluster start`");
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(findings: impl IntoIterator<Item = Finding>) -> Vec<&'static str> {
        findings.into_iter().map(|finding| finding.name).collect()
    }

    #[test]
    fn old_kernels_cannot_track() {
        assert!(tracking("6.6.12-amd64", true).is_some_and(|f| f.about.contains("6.6") && f.level == Level::Limit));
        assert!(tracking("5.15", true).is_some() && tracking("6.18.44", false).is_some());
        assert!(tracking("6.7.0-rc1", true).is_none() && tracking("10.0", true).is_none());
        assert!(
            tracking("", true).is_none() && tracking("x.99999999999999", true).is_none(),
            "nothing is said of what is not known"
        );
    }

    #[test]
    fn ids_need_namespaces_or_privilege() {
        let on = |_: &str| Some(1u64);
        let debian = |name: &str| Some(u64::from(!name.ends_with("userns_clone") && !name.contains("apparmor")));
        let apart = |name: &str| Some(if name.contains("apparmor") { 0 } else { 1000 });
        assert!(namespaces(true, true, |_| None).is_none() && namespaces(false, false, apart).is_none());
        for finding in [namespaces(true, false, apart), namespaces(false, false, |_| None), namespaces(false, false, debian)] {
            assert_eq!(names(finding), ["namespaces"]);
        }
        assert!(namespaces(false, false, on).is_some_and(|f| f.about.contains("AppArmor")));
    }

    #[test]
    fn limits_that_are_too_low_are_found() {
        assert_eq!(names(limits(|_| Some((u64::MAX, u64::MAX)))), Vec::<&str>::new());
        assert_eq!(names(limits(|_| None)), Vec::<&str>::new());
        let low = names(limits(|_| Some((32, 32))));
        assert!(low.starts_with(&["nofile", "as"]) && low.ends_with(&["stack", "fsize"]), "{low:?}");
    }

    #[test]
    fn fields_of_status_have_their_whole_name() {
        let status = "Name:\tx\nSeccomp_filters:\t3\nSeccomp:\t2\n";
        assert_eq!(field(status, "Seccomp"), Some("2"));
        assert_eq!(field(status, "CapEff"), None);
    }
}
