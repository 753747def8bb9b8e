//! Jobs that run in pieces: a signal suspends them, and the same command line goes on with them.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use radic_tests::Running;
use radic_tests::cluster::{Cluster, Kind, Setup};
use radic_tests::library::MPICH;
use radic_tests::recovery;
use radic_wire::event::EventName;
use radic_wire::job::exit_code;
use rustix::process::Signal;

/// Time for one piece, with all that happens to it.
const LIMIT: Duration = Duration::from_secs(120);
/// Time for something that takes far less.
const SOON: Duration = Duration::from_secs(30);
const FLAGS: &str = "--ckpt-interval 0.5";
const RANKS: usize = 4;
const JACOBI: &[&str] = &["--size", "800", "--iterations", "600", "--progress", "2", "--alone", "0"];

/// A folder beside the cluster's own, which goes with it.
fn state(cluster: &Cluster) -> PathBuf {
    cluster.dir().join("state")
}

fn jacobi() -> Vec<String> {
    recovery::command_of(&MPICH, ("jacobi", JACOBI))
}

fn start(cluster: &Cluster, flags: &str) -> Running {
    recovery::start(&MPICH, cluster, flags, &jacobi())
}

/// The line that a script runs again and again.
fn piece(cluster: &Cluster, more: &str) -> Running {
    let dir = state(cluster).display().to_string();
    start(cluster, &format!("{FLAGS} --suspend-on USR1 --suspend-to {dir} --resume-from {dir} {more}"))
}

/// What the job prints when nothing happens to it.
fn undisturbed(cluster: &Cluster) -> String {
    let lines = recovery::due(&MPICH, cluster, &jacobi());
    lines.into_iter().map(|line| line + "\n").collect()
}

/// It has printed so many lines.
fn until_lines(job: &mut Running, lines: usize) {
    job.until(&format!("{lines} lines"), |out, _| (out.lines().count() >= lines).then_some(()));
}

/// The batch system says that the piece is to end. The result is what it has printed.
fn end(cluster: &Cluster, piece: Running) -> String {
    piece.signal(Signal::USR1);
    let finished = piece.wait().expect(exit_code::SUSPENDED);
    let finished = finished.expect_stderr(&["SIGUSR1: suspending job", "are stopped", "is suspended (", "radic resume"]);
    cluster.assert_idle();
    finished.stdout()
}

/// Other nodes, with the same key.
fn next_allocation(cluster: &Cluster) {
    cluster.radic(["cluster", "stop"]).run().expect(0);
    cluster.radic(["cluster", "start", "--nodes", "4", "--spares", "1"]).limit(SOON).run().expect(0);
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Three pieces in three clusters; in the second one a node dies just before the signal, so that a rank is on its way back when it comes.
#[test]
fn a_job_in_three_pieces_prints_what_an_undisturbed_one_does() {
    let cluster = Setup::new(Kind::Logical, 4).spares(1).start();
    let due = undisturbed(&cluster);
    let mut first = piece(&cluster, "");
    until_lines(&mut first, 10);
    let mut shown = end(&cluster, first);
    next_allocation(&cluster);

    let mut second = piece(&cluster, "");
    until_lines(&mut second, 3);
    second.until("where it goes on from", |_, err| err.contains("goes on from").then_some(()));
    // A script that is started twice by mistake.
    piece(&cluster, "").wait().expect(exit_code::RADIC).expect_stderr(&[
        "went on from there at",
        "--resume-again",
        "remove the folder",
    ]);
    let mut events = cluster.events_at("n1");
    events.expect("rank 2 to be protected again", SOON, |e| {
        e.event == EventName::Reprotected && e.rank.is_some_and(|rank| rank.0 == 2) && e.text.contains("committed")
    });
    cluster.kill("n3");
    shown += &end(&cluster, second);
    let of_state = names(&state(&cluster));
    assert!(
        of_state.iter().filter(|name| *name != "manifest").all(|name| name.ends_with(".2")),
        "one suspension, the second: {of_state:?}"
    );
    next_allocation(&cluster);

    shown += &piece(&cluster, "").wait().expect(0).stdout();
    assert_eq!(shown, due);
    // It has come to its end, so the same line begins anew; and then ends by a signal as ever.
    let mut again = piece(&cluster, "");
    again.until("the beginning", |_, err| err.contains("ended with code 0: the program starts from its beginning").then_some(()));
    until_lines(&mut again, 3);
    let begun = end(&cluster, again);
    assert!(due.starts_with(&begun) && !begun.is_empty());
    cluster.stop();
}

/// The terminal is killed while it suspends its job: what was there before is there, whole, and is not gone on with unless the user says so.
#[test]
fn a_suspension_that_is_cut_off_leaves_the_one_before() {
    let cluster = Setup::new(Kind::Logical, 4).spares(1).start();
    let due = undisturbed(&cluster);
    let mut first = piece(&cluster, "");
    until_lines(&mut first, 10);
    let shown = end(&cluster, first);
    let manifest = fs::read(state(&cluster).join("manifest")).unwrap();
    let mut second = piece(&cluster, "");
    until_lines(&mut second, 3);
    second.signal(Signal::USR1);
    second.until("the ranks to be stopped", |_, err| err.contains("are stopped").then_some(()));
    second.signal(Signal::KILL);
    drop(second.wait());
    assert_eq!(fs::read(state(&cluster).join("manifest")).unwrap(), manifest, "it was killed too late");
    let job = cluster.status().jobs.iter().find(|job| job.outcome.is_none()).expect("it goes on").job.to_string();
    piece(&cluster, "").wait().expect(exit_code::RADIC).expect_stderr(&["went on from there"]);
    cluster.radic(["kill", &job]).limit(LIMIT).run().expect(0);
    let mut again = piece(&cluster, "--resume-again");
    until_lines(&mut again, 3);
    let shown = shown + &end(&cluster, again);
    assert_eq!(shown + &piece(&cluster, "").wait().expect(0).stdout(), due);
    cluster.stop();
}

/// What is wrong is said before the job starts, not when the signal comes.
#[test]
fn what_could_not_be_suspended_or_resumed_is_refused_at_once() {
    let cluster = Setup::new(Kind::Logical, 3).start();
    let dir = state(&cluster);
    let refused = |flags: &str, code: i32, parts: &[&str]| {
        start(&cluster, flags).wait().expect(code).expect_stderr(parts);
        assert!(cluster.status().jobs.is_empty(), "something was started");
    };
    let to = format!("--suspend-to {}", dir.display());
    refused(&to, 2, &["which signal", "--suspend-on USR1", "B:USR1"]);
    refused("--suspend-on USR1", 2, &["--suspend-to"]);
    refused(&format!("{to} --suspend-on KILL"), 2, &["choose USR1, USR2, TERM or QUIT"]);
    refused(&format!("{to} --suspend-on USR1 --protect none"), exit_code::RADIC, &["without protection"]);
    refused(&format!("{to}/of/nothing --suspend-on USR1"), exit_code::RADIC, &["--suspend-to", "of/nothing"]);
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("thesis"), "x").unwrap();
    refused(&format!("{to} --suspend-on USR1"), exit_code::RADIC, &["not empty", "thesis"]);
    refused(
        &format!("--resume-from {}", dir.display()),
        exit_code::RADIC,
        &["manifest", "missing", "remove it to start from the beginning"],
    );
    fs::remove_dir_all(&dir).unwrap();
    cluster.stop();
}

/// A folder with a job that nothing has gone on with is not overwritten, and goes on only as what it is.
#[test]
fn a_suspended_job_is_neither_lost_nor_taken_for_another() {
    let cluster = Setup::new(Kind::Logical, 3).start();
    let mut first = piece(&cluster, "");
    until_lines(&mut first, 3);
    drop(end(&cluster, first));
    let dir = state(&cluster).display().to_string();
    let refused = |finished: radic_tests::Finished, parts: &[&str]| drop(finished.expect(exit_code::RADIC).expect_stderr(parts));
    refused(start(&cluster, &format!("--suspend-on USR1 --suspend-to {dir}")).wait(), &["is suspended there", "another job"]);
    let other = |words: &[&str]| MPICH.job(&cluster, RANKS, &format!("--resume-from {dir}"), words).limit(LIMIT).run();
    refused(
        other(&[&MPICH.program("jacobi"), "--size", "9"]),
        &["is suspended there, which is", "not what this command line says"],
    );
    refused(other(&["true"]), &["not what this command line says"]);
    let more = MPICH.job(&cluster, 5, &format!("--resume-from {dir}"), &[&[&*MPICH.program("jacobi")], JACOBI].concat()).run();
    refused(more, &["has 4 ranks, and -n is 5"]);
    let manifest = state(&cluster).join("manifest");
    let good = fs::read(&manifest).unwrap();
    fs::write(&manifest, &good[1..]).unwrap();
    refused(piece(&cluster, "").wait(), &["manifest", "restore the folder"]);
    fs::write(&manifest, good).unwrap();
    piece(&cluster, "").wait().expect(0);
    cluster.stop();
}

/// A node that is told to end has its jobs make a checkpoint first, so that its ranks go on from the moment of its end.
#[test]
fn a_node_with_a_grace_leaves_after_a_checkpoint() {
    let cluster = Setup::new(Kind::Logical, 3).grace(60).start();
    let due = undisturbed(&cluster);
    // Of itself it makes only the first one.
    let mut job = start(&cluster, "--ckpt-interval never");
    until_lines(&mut job, 20);
    let mut events = cluster.events_at("n1");
    cluster.protector("n2").signal(Signal::TERM);
    let note = |parts: &'static str| move |e: &radic_wire::event::Event| e.event == EventName::Note && e.text.contains(parts);
    events.expect("the node to leave by and by", SOON, note("n2 leaves within 60 s"));
    events.expect("the checkpoints", SOON, note("n2 leaves: 4 ranks of the jobs here have made a checkpoint"));
    events.expect("rank 1 to live again", SOON, |e| e.event == EventName::Live && e.rank.is_some_and(|rank| rank.0 == 1));
    let finished = job.wait().expect(0);
    assert_eq!(finished.stdout(), due);
    cluster.stop();
}
