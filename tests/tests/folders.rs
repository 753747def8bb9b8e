//! Folders and files that another user has prepared, or that go away: refused by name, and nothing is written through them.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use radic_tests::cluster::{Cluster, Kind, program};
use radic_tests::command::{Invocation, Running};
use radic_tests::library::MPICH;
use radic_tests::process;
use radic_wire::job::exit_code;
use rustix::process::Signal;

/// The user who attacks.
const ATTACKER: u32 = 64_001;
/// An ordinary user with a cluster.
const USER: u32 = 64_002;
/// Time for what should happen at once.
const SOON: Duration = Duration::from_secs(10);
/// How `radicd` ends that cannot run.
const FAILURE: i32 = 1;

/// A folder that everybody may enter, for folders of several users; it goes with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("radic-folders-{name}-{}", std::process::id()));
        DirBuilder::new().mode(0o755).create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Place(path)
    }

    /// A folder of this user and mode.
    fn folder(&self, name: &str, owner: u32, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir(&path).expect("a new folder");
        chown(&path, Some(owner), Some(owner)).expect("the test runs as root");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
        path
    }

    /// A file of root's that must stay as it is.
    fn victim(&self) -> PathBuf {
        let path = self.0.join("victim");
        fs::write(&path, PRECIOUS).expect("a new file");
        path
    }
}

const PRECIOUS: &str = "precious";

impl Drop for Place {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether this test may act for several users; why not is printed.
fn can_be_others() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    let reachable = is_root && Invocation::new(program("radic")).args(["--version"]).user(USER).run().code() == Some(0);
    if !reachable {
        println!("SKIPPED: only root can act for other users, and they must be able to execute what was built");
    }
    reachable
}

/// A shell of the attacker's.
fn attack(script: &str, arguments: &[&Path]) -> Running {
    Invocation::new("sh").args(["-c", script, "attack"]).args(arguments).user(ATTACKER).start()
}

fn only_job(cluster: &Cluster) -> String {
    let jobs = cluster.status().jobs;
    let running = jobs.iter().find(|job| job.outcome.is_none());
    running.unwrap_or_else(|| panic!("no job runs: {jobs:?}")).job.to_string()
}

/// The attacker's links into a folder into which a job is to be suspended lead nowhere, and the job goes on.
#[test]
fn a_job_is_not_suspended_into_a_folder_of_somebody_else() {
    if !can_be_others() {
        return;
    }
    let (cluster, place) = (Cluster::start(Kind::Logical, 2), Place::new("suspend"));
    let words = [&MPICH.program("rounds"), "--rounds", "100000", "--pause", "1"];
    let mut job = MPICH.job(&cluster, 2, "--protect on", &words).limit(Duration::from_secs(60)).start();
    job.until_line("rounds begin");
    let (id, victim) = (only_job(&cluster), place.victim());
    for (name, owner, mode, why) in
        [("theirs", ATTACKER, 0o777, "belongs to uid 64001"), ("shared", 0, 0o777, "others may write")]
    {
        let folder = place.folder(name, owner, mode);
        // It is empty when the command looks, and the links are there when the files are made.
        let names = "rank-0.journal rank-0.received rank-1.journal rank-1.received manifest.new";
        let planting = format!("sleep 0.05; for name in {names}; do ln -s \"$1\" \"$2/$name\"; done");
        let planting = attack(&planting, &[&victim, &folder]);
        let refused = cluster.radic(["suspend".as_ref(), id.as_ref(), folder.as_os_str()]).run();
        drop(planting.wait());
        assert_eq!(fs::read(&victim).expect("it is there"), PRECIOUS.as_bytes(), "it was overwritten through a link");
        refused.expect(exit_code::RADIC).expect_stderr(&[why, name]);
    }
    assert_eq!(only_job(&cluster), id, "it goes on");
    cluster.radic(["kill", &id]).run().expect(0);
    job.wait().expect(137);
    cluster.stop();
}

/// No file of a folder keeps `radic resume` waiting, leads elsewhere, or is taken from another user.
#[test]
fn what_is_no_file_of_one_s_own_is_not_resumed_from() {
    let (cluster, place) = (Cluster::empty(Kind::Logical), Place::new("resume"));
    cluster.make_key();
    let folder = place.folder("job", nix::unistd::geteuid().as_raw(), 0o700);
    let manifest = folder.join("manifest");
    let refused = |what: &str| {
        let before = Instant::now();
        let finished = cluster.radic(["resume".as_ref(), folder.as_os_str()]).limit(SOON).run().expect(exit_code::RADIC);
        finished.expect_stderr(&["manifest", what]);
        println!("{what}: refused after {:.0?}", before.elapsed());
        fs::remove_file(&manifest).expect("it was there");
    };
    mkfifo(&manifest, Mode::S_IRWXU).expect("a pipe");
    refused("no regular file");
    let listener = UnixListener::bind(&manifest).expect("a socket");
    refused("no regular file");
    drop(listener);
    symlink("/dev/zero", &manifest).expect("a link");
    refused("no regular file");
    if nix::unistd::geteuid().is_root() {
        if mknod(&manifest, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).is_ok() {
            refused("no regular file");
        } else {
            println!("SKIPPED: no device can be made here");
        }
        fs::write(&manifest, "x").expect("a file");
        chown(&manifest, Some(ATTACKER), None).expect("the test runs as root");
        refused("--trust-owner");
        fs::write(&manifest, "x").expect("a file");
        chown(&manifest, Some(ATTACKER), None).expect("the test runs as root");
        let trusted = cluster.radic(["resume".as_ref(), folder.as_os_str(), "--trust-owner".as_ref()]).run();
        assert!(!trusted.expect(exit_code::RADIC).stderr().contains("belongs to"), "it is another fault that is named");
    }
}

/// `radicd` with these folders, which must not come up.
fn refused(cluster: &Cluster, dir: &Path, extra: &[&Path], parts: &[&str]) {
    let key = cluster.dir().join("key");
    let daemon =
        cluster.invocation(program("radicd")).args(["--dir".as_ref(), dir.as_os_str(), "--key".as_ref(), key.as_os_str()]);
    let daemon = daemon.args(["--name", "n1", "--listen", "127.0.0.1:0"]).args(extra.iter().map(|word| word.as_os_str()));
    daemon.limit(SOON).run().expect(FAILURE).expect_stderr(parts);
}

#[test]
fn a_protector_writes_into_no_folder_of_somebody_else() {
    if !can_be_others() {
        return;
    }
    let (cluster, place) = (Cluster::empty(Kind::Logical), Place::new("daemon"));
    cluster.make_key();
    let victim = place.victim();
    let theirs = place.folder("theirs", ATTACKER, 0o777);
    // All may write to it: whoever runs as root may not notice.
    let planted = attack("mkdir -m 777 -p \"$2/nodes/n1\" && ln -s \"$1\" \"$2/nodes/n1/pid\"", &[&victim, &theirs]).wait();
    planted.expect(0);
    refused(&cluster, &theirs, &[], &["theirs", "belongs to uid 64001"]);
    refused(&cluster, &place.folder("shared", 0, 0o777), &[], &["shared", "others may write"]);
    let ours = place.folder("ours", 0, 0o755);
    let store = place.folder("store", ATTACKER, 0o777);
    refused(&cluster, &ours, &["--store".as_ref(), &store], &["store", "belongs to uid 64001"]);
    // One of the folders below is a link, or another user's.
    fs::remove_dir_all(ours.join("nodes")).expect("it was made");
    symlink(theirs.join("nodes"), ours.join("nodes")).expect("a link");
    refused(&cluster, &ours, &[], &["ours/nodes", "no folder but a link"]);
    fs::remove_file(ours.join("nodes")).expect("it is a link");
    fs::create_dir(ours.join("nodes")).expect("a new folder");
    fs::create_dir(ours.join("nodes/n1")).expect("a new folder");
    chown(ours.join("nodes/n1"), Some(ATTACKER), None).expect("the test runs as root");
    refused(&cluster, &ours, &[], &["ours/nodes/n1", "belongs to uid 64001"]);
    assert_eq!(fs::read(&victim).expect("it is there"), PRECIOUS.as_bytes(), "it was overwritten through a link");
    for command in [["cluster", "start", "--nodes", "1", "--dir"].as_slice(), &["cluster", "stop", "--dir"]] {
        let words = command.iter().map(OsString::from).chain([theirs.clone().into_os_string()]);
        cluster.radic(words).run().expect(exit_code::RADIC).expect_stderr(&["theirs", "belongs to uid 64001"]);
        assert!(!theirs.join("lock").exists());
    }
}

/// What it makes is for its user only, and a link of its own in the way of its process number is replaced, not followed.
#[test]
fn a_protector_s_folders_are_private() {
    let (mut cluster, place) = (Cluster::empty(Kind::Logical), Place::new("private"));
    cluster.make_key();
    let (victim, node) = (place.victim(), cluster.node_dir("n1"));
    DirBuilder::new().recursive(true).mode(0o700).create(&node).expect("a new folder");
    symlink(&victim, node.join("pid")).expect("a link");
    cluster.start_node("n1", &[]);
    assert_eq!(fs::read(&victim).expect("it is there"), PRECIOUS.as_bytes());
    cluster.protector("n1");
    let mode = |path: &Path| fs::symlink_metadata(path).expect("it is there").mode() & 0o7777;
    assert_eq!((mode(&node.join("pid")), mode(&node.join("store"))), (0o600, 0o700));
    cluster.stop();
}

#[test]
fn a_protector_whose_folder_is_deleted_ends_and_says_why() {
    let mut cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    for node in ["n1", "n2", "n3"] {
        cluster.start_node(node, &[]);
    }
    let mut log = File::open(cluster.node_dir("n3").join("log")).expect("it has a log");
    // One that is renamed is as good as one that is deleted.
    fs::rename(cluster.node_dir("n3"), cluster.dir().join("away")).expect("a new name");
    assert_eq!(cluster.wait_for_end_of("n3", SOON).code(), Some(FAILURE));
    let mut text = String::new();
    log.read_to_string(&mut text).expect("it is text");
    assert!(text.contains("was removed, renamed or replaced while this protector ran"), "{text}");
    process::eventually(SOON, "n3 to have left", || {
        cluster.status_at("n1").nodes.iter().filter(|node| node.pid != 0).count() >= 2
    });
    fs::remove_dir_all(cluster.dir().join("nodes")).expect("it is there");
    for node in ["n1", "n2"] {
        assert_eq!(cluster.wait_for_end_of(node, SOON).code(), Some(FAILURE));
    }
    cluster.radic(["cluster", "stop"]).run().expect(exit_code::RADIC).expect_stderr(&["nothing to stop"]);
}

/// Those that cannot look at their folder are found all the same.
#[test]
fn protectors_that_nobody_finds_in_the_folder_are_stopped() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let protectors = ["n1", "n2"].map(|node| cluster.protector(node));
    protectors.iter().for_each(|protector| protector.signal(Signal::STOP));
    fs::remove_dir_all(cluster.dir().join("nodes/n1")).expect("it is there");
    fs::remove_file(cluster.dir().join("nodes/n2/pid")).expect("it is there");
    let stopped = cluster.radic(["cluster", "stop"]).limit(Duration::from_secs(30)).run().expect(0);
    let said = stopped.stdout();
    assert!(said.contains("2 daemons have ended") && said.contains("the folders of n1, n2 had been removed"), "{said}");
    assert!(protectors.iter().all(|protector| protector.wait(Duration::ZERO)), "they live on");
}

/// Protectors of the same cluster from two folders, as on two machines.
#[test]
fn all_protectors_of_a_cluster_are_counted_when_it_stops() {
    let (mut cluster, place) = (Cluster::empty(Kind::Logical), Place::new("count"));
    cluster.make_key();
    cluster.start_node("n1", &[]);
    let address = cluster.status_at("n1").nodes[0].address.to_string();
    let elsewhere = place.folder("elsewhere", nix::unistd::geteuid().as_raw(), 0o700);
    let start = |name: &str| {
        let key = cluster.dir().join("key");
        let words = ["--dir".as_ref(), elsewhere.as_os_str(), "--key".as_ref(), key.as_os_str()];
        let daemon = cluster.invocation(program("radicd")).args(words).args([
            "--name",
            name,
            "--listen",
            "127.0.0.1:0",
            "--join",
            &address,
        ]);
        let mut daemon = daemon.start();
        daemon.until("it to be a member", |out, _| out.starts_with("ready").then_some(()));
        daemon
    };
    let others = [start("m1"), start("m2")];
    let said = cluster.radic(["cluster", "stop"]).run().expect(0).stdout();
    assert_eq!(said, "1 daemon has ended; 2 more of the cluster, elsewhere, were told to end: m1, m2\n");
    for other in others {
        other.give(SOON).wait().expect(0);
    }
}

#[test]
fn a_folder_whose_name_is_no_text_is_refused_by_name() {
    let (cluster, place) = (Cluster::empty(Kind::Logical), Place::new("text"));
    let odd = place.0.join(OsString::from_vec(b"caf\xe9".to_vec()));
    let lossy = place.0.join("caf\u{fffd}");
    for command in [["status"].as_slice(), &["cluster", "start", "--nodes", "1"], &["run", "-n", "1", "--", "true"], &["events"]]
    {
        let finished = cluster.radic(command).env("RADIC_CLUSTER", &odd).run().expect(exit_code::RADIC);
        finished.expect_stderr(&["UTF-8", "RADIC_CLUSTER"]);
    }
    cluster.make_key();
    let daemon = cluster
        .invocation(program("radicd"))
        .env("RADIC_KEY", cluster.dir().join("key"))
        .args(["--listen=127.0.0.1:0", "--name=n1"]);
    let daemon = daemon.args(["--dir".as_ref(), odd.as_os_str()]).limit(SOON).run();
    daemon.expect(FAILURE).expect_stderr(&["UTF-8", "--dir"]);
    assert!(!odd.exists() && !lossy.exists(), "a folder was made");
}

/// `radic cluster stop` follows no link that was planted under a name which it removes: not in a folder of the attacker's, and not below one of its own.
#[test]
fn the_end_of_a_node_removes_nothing_behind_a_link() {
    if !can_be_others() {
        return;
    }
    let (cluster, place) = (Cluster::empty(Kind::Logical), Place::new("stop"));
    let precious = place.folder("precious", 0, 0o700);
    let victim = precious.join("n1");
    fs::create_dir(&victim).expect("a new folder");
    let stop = |dir: &Path| {
        let words = ["cluster", "stop", "--only", "n1", "--dir"].map(OsString::from);
        cluster.radic(words.into_iter().chain([dir.as_os_str().to_owned()])).run()
    };
    let theirs = place.folder("theirs", ATTACKER, 0o755);
    attack("ln -s \"$1\" \"$2/nodes\"", &[&precious, &theirs]).wait().expect(0);
    let refused = stop(&theirs);
    assert!(victim.exists(), "a folder of root's was deleted: {refused}");
    refused.expect(exit_code::RADIC).expect_stderr(&["theirs", "belongs to uid 64001"]);
    let shared = place.folder("shared", 0, 0o777);
    attack("ln -s \"$1\" \"$2/nodes\"", &[&precious, &shared]).wait().expect(0);
    stop(&shared).expect(exit_code::RADIC).expect_stderr(&["shared", "others may write"]);
    let ours = place.folder("ours", 0, 0o755);
    symlink(&precious, ours.join("nodes")).expect("a link");
    stop(&ours).expect(exit_code::RADIC).expect_stderr(&["ours/nodes/n1", "is not followed"]);
    assert!(victim.exists());
    // A link to a node's folder goes as such. That there is no folder is no error.
    fs::remove_file(ours.join("nodes")).expect("it is a link");
    fs::create_dir(ours.join("nodes")).expect("a new folder");
    symlink(&victim, ours.join("nodes/n1")).expect("a link");
    stop(&ours).expect(0);
    assert!(victim.exists() && !ours.join("nodes/n1").exists());
    stop(&place.0.join("absent")).expect(0);
}

/// Another user who knows the number of the next job cannot keep it from starting, nor have it use a folder of his.
#[test]
fn nobody_knows_the_folder_of_a_batch_job_s_cluster_before() {
    let (cluster, place) = (Cluster::empty(Kind::Logical), Place::new("chained"));
    let (home, commands) = (place.folder("home", nix::unistd::geteuid().as_raw(), 0o700), place.0.join("bin"));
    fs::create_dir(&commands).expect("a new folder");
    // The commands of the script do nothing but note the cluster's folder.
    for name in ["radic", "scontrol"] {
        let text = "#!/bin/sh\n[ \"$1\" != key ] || echo key >\"$2\"\n[ \"$1\" != run ] || ls -ld \"$RADIC_CLUSTER\" >>\"$HOME/folders\"\n";
        fs::write(commands.join(name), text).expect("a new file");
        fs::set_permissions(commands.join(name), Permissions::from_mode(0o755)).expect("it is ours");
    }
    let path = format!("{}:{}", commands.display(), std::env::var("PATH").unwrap_or_default());
    fs::create_dir(place.0.join("radic-7-0")).expect("a new folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/slurm/chained.sh");
    for _ in 0..2 {
        let piece = cluster.invocation("sh").args([script.as_os_str(), "true".as_ref()]).env("PATH", &path).env("HOME", &home);
        let piece = piece.env("TMPDIR", &place.0).env("SLURM_JOB_ID", "7").env("SLURM_SUBMIT_DIR", &home);
        piece.env_remove("SLURM_RESTART_COUNT").limit(SOON).run().expect(0);
    }
    let noted = fs::read_to_string(home.join("folders")).expect("the program was run");
    let names: Vec<&str> = noted.lines().map(|line| line.split_whitespace().last().expect("a name")).collect();
    assert!(noted.lines().all(|line| line.starts_with("drwx------")) && names.len() == 2 && names[0] != names[1], "{noted}");
    assert!(names.iter().all(|name| !Path::new(name).exists()), "a folder has stayed: {noted}");
}

const BECOME_ROOT: &str = "#include <stdio.h>\n#include <unistd.h>\n\
    int main(void) { if (setgid(0) || setuid(0)) return 3; puts(\"root\"); fflush(stdout); for (;;) pause(); }";

/// A rank that has become another user cannot be killed by its protector: that is said at once, and where, and how it is done.
#[test]
fn a_rank_that_may_not_be_killed_is_named() {
    if !can_be_others() {
        return;
    }
    let (cluster, place) = (Cluster::empty(Kind::Logical), Place::new("kill"));
    let home = place.folder("home", USER, 0o700);
    let (source, rank) = (place.0.join("rank.c"), place.0.join("rank"));
    fs::write(&source, BECOME_ROOT).expect("a new file");
    let words = ["-o".as_ref(), rank.as_os_str(), source.as_os_str()];
    Invocation::new("gcc").args(words).run().expect(0);
    fs::set_permissions(&rank, Permissions::from_mode(0o4755)).expect("it is ours");
    let radic = |words: &[&str]| cluster.radic(words).env("RADIC_CLUSTER", &home).user(USER).limit(Duration::from_secs(40));
    radic(&["cluster", "start", "--nodes", "2"]).run().expect(0);
    let path = rank.display().to_string();
    let mut job = radic(&["run", "-n", "1", "--protect", "none", "--", &path]).start();
    job.until_line("root");
    let jobs = radic(&["jobs", "--json"]).run().expect(0).stdout();
    let jobs: serde_json::Value = serde_json::from_str(&jobs).expect("it is JSON");
    let id = jobs[0]["job"].as_str().unwrap_or_else(|| panic!("no job: {jobs}")).to_owned();
    let mut killing = radic(&["kill", &id]).start().give(SOON);
    let pid = killing.until("it to say which rank", |_, err| {
        let line =
            err.lines().find(|line| line.contains("rank 0 on n1") && line.contains("(EPERM)") && line.contains("uid 0"))?;
        line.split_once("kill -KILL -- -")?.1.trim_matches(['`', ')']).parse::<u32>().ok()
    });
    // What it says is to be done is done, and the job is over.
    process::Process::open(pid).expect("the rank runs").signal(Signal::KILL);
    killing.wait().expect(0);
    job.wait().expect(137);
    radic(&["cluster", "stop"]).run().expect(0);
}
