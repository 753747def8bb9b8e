//! Two different programs as one job, without MPI: a redis server and a client on one connection (a node dies, and the client has seen each value once); a
//! server and a client that connects again for each question.
#![forbid(unsafe_code)]

use std::time::Duration;

use radic_tests::cluster::{Kind, Setup};
use radic_tests::library::script;
use radic_tests::netns;
use radic_tests::random::Random;
use radic_tests::recovery::{LIMIT, end_well, events_of, first_checkpoints, is_long};
use radic_tests::redis;
use radic_wire::event::EventName;
use rustix::process::Signal;

/// The client is rank 0 on n2, the server rank 1 on n3: one dies without the job's home, the other with it.
const FLAGS: &str = "--nodes n2,n3 --protect on --ckpt-interval 0.3";
/// How far the client counts: some seconds, at a round trip each.
const LAST: u32 = 10_000;

/// Where the server listens.
fn place(kind: Kind) -> (String, String) {
    match kind {
        Kind::Logical => ("127.0.0.1".to_owned(), redis::free_port()),
        // Nodes are numbered as they are started: n1 is the first.
        Kind::Namespaces => (netns::address(2).to_string(), "6379".to_owned()),
    }
}

/// Time that a node which was cut off, and is back, has to find out what has become of it, and the time of the cut.
const FENCED: Duration = Duration::from_secs(14);

/// What the client prints.
fn due() -> String {
    let lines = (1..=20).map(|part| format!("counted to {}\n", LAST / 20 * part));
    lines.chain([format!("OK counter {LAST}\n")]).collect()
}

/// A node dies when the client has counted so far, and then some more time has gone by.
fn survives(kind: Kind, node: &str, spares: usize, counted: u32, after: Duration) {
    let what = format!("redis on {kind:?}, {spares} spares, {node} dies {after:.1?} after {counted}");
    let cluster = Setup::new(kind, 4).spares(spares).start();
    let (address, port) = place(kind);
    let (server, client) = (redis::server(&cluster, &address, &port), script("counter.py"));
    let both = format!("[ $RADIC_RANK = 1 ] && exec {server} >/dev/null; exec python3 {client} {address} {port} {LAST}");
    let mut events = cluster.events_at("n1");
    let mut job = cluster.job(2, FLAGS, &["sh", "-c", &both]).limit(LIMIT).start();
    let id = first_checkpoints(&mut events, 2);
    job.until_line(&format!("counted to {counted}"));
    assert!(!job.ends_within(after), "{what}: too late");
    cluster.kill_all_of(node);
    let finished = end_well(&cluster, job, &what);
    assert_eq!(finished.stdout(), due(), "{what}: {finished}");
    let events = events_of(&cluster, id);
    assert_eq!(events.iter().filter(|e| e.event == EventName::Live).count(), 1, "{what}: {events:#?}");
    println!("{what}: {:.2} s", finished.elapsed.as_secs_f64());
    cluster.assert_idle();
    cluster.stop();
}

/// A client that connects while the node of the listener dies, is lost, or is brought back, reaches the listener all the same, only a moment later.
#[test]
fn a_call_to_a_process_that_is_lost_waits_for_it() {
    /// Calls, one after the other: some seconds.
    const CALLS: u32 = 2_000;
    let mut random = Random::from_environment();
    let all = Kind::all().into_iter().flat_map(|kind| [(kind, 0), (kind, 1)]);
    let sample = |(kind, spares): &(Kind, usize)| is_long() || (*kind == Kind::Logical) == (*spares == 0);
    for (kind, spares) in all.filter(sample) {
        // A node that is cut off refuses nothing: it says nothing.
        let is_cut = kind == Kind::Namespaces && spares == 1;
        let after = Duration::from_millis(random.below(300) as u64);
        let how = if is_cut { "is cut off" } else { "dies" };
        let what = format!("calls on {kind:?}, {spares} spares, n3 {how} {after:.1?} after the first fifth");
        let mut cluster = Setup::new(kind, 4).spares(spares).start();
        let (address, port) = place(kind);
        let mut events = cluster.events_at("n1");
        let (program, calls) = (script("calls.py"), CALLS.to_string());
        let mut job = cluster.job(2, FLAGS, &["python3", &program, &address, &port, &calls]).limit(LIMIT).start();
        first_checkpoints(&mut events, 2);
        job.until_line(&format!("called {}", CALLS / 5));
        assert!(!job.ends_within(after), "{what}: too late");
        if is_cut {
            cluster.radic(["inject", "cut-node", "n3", "4"]).run().expect(0);
        } else {
            cluster.kill_all_of("n3");
        }
        let finished = end_well(&cluster, job, &what);
        if is_cut {
            cluster.wait_for_end_of("n3", FENCED).expect(1);
        }
        assert!(finished.stdout().ends_with(&format!("OK calls {CALLS}\n")), "{what}: {finished}");
        println!("{what}: {:.2} s", finished.elapsed.as_secs_f64());
        cluster.assert_idle();
        cluster.stop();
    }
}

/// While a listener is lost, and when it listens elsewhere, no other process is given its address, which the kernel thinks is free: callers would get to the wrong process.
/// With nodes of one machine Open MPI would hang if a node died while other ranks are about to listen.
#[test]
fn the_address_of_a_lost_listener_stays_its_own() {
    const CALLS: u32 = 8;
    let mut random = Random::from_environment();
    for spares in [0, 1] {
        let cluster = Setup::new(Kind::Logical, 4).spares(spares).start();
        let after = Duration::from_millis(random.below(30) as u64);
        let what = format!("binds, {spares} spares, n3 dies {after:.1?} after the second call");
        let (address, port) = place(Kind::Logical);
        let mut events = cluster.events_at("n1");
        let (program, calls) = (script("binds.py"), CALLS.to_string());
        let mut job = cluster.job(2, FLAGS, &["python3", &program, &address, &port, &calls]).limit(LIMIT).start();
        first_checkpoints(&mut events, 2);
        job.until_line("called 2");
        assert!(!job.ends_within(after), "{what}: too late");
        cluster.radic(["inject", "kill-node", "n3"]).run().expect(0);
        let finished = end_well(&cluster, job, &what);
        assert!(finished.stdout().ends_with(&format!("OK calls {CALLS}\n")), "{what}: {finished}");
        println!("{what}: {:.2} s", finished.elapsed.as_secs_f64());
        cluster.assert_idle();
        cluster.stop();
    }
}

/// Children die with the node, and only their parent comes back: to it they have ended by SIGKILL, as it hears of any child.
#[test]
fn children_that_are_lost_have_ended_to_their_parent() {
    const QUESTIONS: u32 = 10_000;
    let mut random = Random::from_environment();
    let cluster = Setup::new(Kind::Logical, 4).start();
    let mut events = cluster.events_at("n1");
    let (program, port, questions) = (script("loses.py"), redis::free_port(), QUESTIONS.to_string());
    let mut job = cluster.job(2, FLAGS, &["python3", &program, &port, &questions]).limit(LIMIT).start();
    let id = first_checkpoints(&mut events, 2);
    let asked = format!("asked {}", QUESTIONS / 20 * (2 + random.below(14) as u32));
    job.until_line(&asked);
    // The first checkpoint may be of a server without children.
    cluster.radic(["checkpoint", &id.to_string()]).limit(LIMIT).run().expect(0);
    cluster.kill_all_of("n3");
    let what = format!("n3 dies after \"{asked}\"");
    let finished = end_well(&cluster, job, &what);
    let out = finished.stdout();
    for line in ["server: ended by 9 (True), True, -9 told 1", "server: no child is left", "OK loses 10000"] {
        assert!(out.lines().any(|said| said == line), "{what}: no line {line:?} in {finished}");
    }
    let events = events_of(&cluster, id);
    assert_eq!(events.iter().filter(|e| e.event == EventName::Live).count(), 1, "{what}: {events:#?}");
    cluster.assert_idle();
    cluster.stop();
}

/// The children took the connections, and the rank itself accepts nobody. A call while it is being brought back, or before it has children again, is sent away then; later ones are refused, and none
/// is left without an end.
#[test]
fn a_call_of_lost_children_comes_to_an_end() {
    let mut random = Random::from_environment();
    let cluster = Setup::new(Kind::Logical, 4).start();
    let mut events = cluster.events_at("n1");
    let (program, port) = (script("master.py"), redis::free_port());
    let mut job = cluster.job(2, FLAGS, &["python3", &program, &port, "4000"]).limit(LIMIT).start();
    let id = first_checkpoints(&mut events, 2);
    let counted = format!("counted to {}", 200 * (6 + random.below(10)));
    job.until_line(&counted);
    // The first checkpoints may be of a script that looks for the interpreter and executes it, or of a master without children. This one is of a master whose child has taken calls.
    cluster.radic(["checkpoint", &id.to_string()]).limit(LIMIT).run().expect(0);
    cluster.kill_all_of("n3");
    job.until_line("OK master");
    job.signal(Signal::TERM);
    let what = format!("n3 dies after \"{counted}\"");
    let finished = end_well(&cluster, job, &what);
    assert!(finished.stdout().lines().any(|said| said == "refused"), "{what}: {finished}");
    cluster.assert_idle();
    cluster.stop();
}

#[test]
fn each_value_is_seen_once() {
    let mut random = Random::from_environment();
    let deaths = if is_long() { 20 } else { 1 };
    for (kind, node) in Kind::all().into_iter().flat_map(|kind| [(kind, "n3"), (kind, "n2")]) {
        for _ in 0..deaths {
            let (spares, counted, after) = (random.below(2), LAST / 20 * (1 + random.below(14) as u32), random.below(100) as u64);
            survives(kind, node, spares, counted, Duration::from_millis(after));
        }
    }
}
