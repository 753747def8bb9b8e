//! The Debian package of what `cargo build --release` has built: made by cargo-deb, read by lintian, installed in a clean Debian 12, run there, and removed.
//! packaging/test.sh has the steps.
#![forbid(unsafe_code)]

use std::env;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::command::Invocation;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Time for the package, and for all parts that are tried at once: they wait for the network, and what computes has the lowest priority.
const LONG: Duration = Duration::from_secs(600);
/// Each tool, and how it is had. The last one is for a clean root alone.
const TOOLS: [(&str, &str); 5] = [
    ("cargo-deb", "scripts/deps.sh cargo-deb"),
    ("lintian", "apt-get install lintian"),
    ("systemd-analyze", "apt-get install systemd"),
    ("man", "apt-get install man-db"),
    ("mmdebstrap", "apt-get install mmdebstrap"),
];

/// Where programs are looked for: `make deps` has put cargo-deb into .deps.
fn path() -> Vec<PathBuf> {
    let ours = Path::new(REPOSITORY).join(".deps/cargo-deb/bin");
    [ours].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())).collect()
}

/// What this machine lacks of these tools.
fn missing(tools: &[(&str, &str)]) -> Option<String> {
    let is_there = |tool: &str| path().iter().any(|folder| folder.join(tool).is_file());
    let (tool, how) = tools.iter().find(|(tool, _)| !is_there(tool))?;
    Some(format!("there is no {tool}: {how}, or RADIC_DEPS=all scripts/deps.sh"))
}

/// Whether the test can run. Why not is printed. Where scripts/deps.sh was asked for everything (RADIC_DEPS), that is a failure.
fn can_run(missing: Option<String>) -> bool {
    let Some(why) = missing else { return true };
    let everything = env::var_os("RADIC_DEPS").is_some_and(|value| value == "all");
    assert!(!everything, "RADIC_DEPS is set, so this may not be left out: {why}");
    println!("SKIPPED: {why}");
    false
}

/// A command in the repository. What it starts is found if the test is killed; it knows nothing of this test's Cargo and make.
fn invocation(cluster: &Cluster, words: &[&str]) -> Invocation {
    let invocation = cluster.invocation(words[0]).args(&words[1..]).dir(REPOSITORY).limit(LONG);
    let clean = ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "RADIC_CLUSTER"];
    let invocation = clean.into_iter().fold(invocation, Invocation::env_remove);
    invocation.env("PATH", env::join_paths(path()).expect("they come from a PATH"))
}

/// Makes the package, once for all tests, of what is built.
fn make() {
    static MADE: LazyLock<Result<(), String>> = LazyLock::new(|| {
        let cluster = Cluster::empty(Kind::Logical);
        let made = invocation(&cluster, &["nice", "-n", "19", "make", "--old-file=build", "deb"]).run();
        if made.code() == Some(0) { Ok(()) } else { Err(made.to_string()) }
    });
    MADE.as_ref().unwrap_or_else(|why| panic!("{why}"));
}

/// Tries parts of packaging/test.sh, which names what it leaves out.
fn try_parts(parts: &[&str]) {
    make();
    let cluster = Cluster::empty(Kind::Logical);
    let words: Vec<_> = ["packaging/test.sh"].iter().chain(parts).copied().collect();
    print!("{}", invocation(&cluster, &words).run().expect(0).stdout());
}

#[test]
fn the_package_is_made_and_neither_lintian_nor_systemd_nor_man_finds_an_error() {
    if can_run(missing(&TOOLS[..4])) {
        try_parts(&["lintian", "unit", "man", "completions", "settings", "tarball", "install"]);
    }
}

#[test]
fn the_package_installs_runs_and_removes_itself_in_a_clean_debian() {
    let no_root = || (!Kind::all().contains(&Kind::Namespaces)).then(|| "a clean root needs root, and namespaces".to_owned());
    if can_run(missing(&TOOLS).or_else(no_root)) {
        try_parts(&["account", "debian", "newcomer"]);
    }
}
