//! The death of nodes under protected jobs: each ends by itself, with the exit code and the output of the undisturbed run.
//!
//! A sample of what RADIC_LONG=1 does as a whole: every program, every library, on both kinds of nodes, with twenty deaths each.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use radic_tests::Running;
use radic_tests::cluster::{Cluster, Kind, Setup};
use radic_tests::library::{INTEL, LIBRARIES, Library, MPICH};
use radic_tests::protection::Protected;
use radic_tests::random::Random;
use radic_tests::recovery::{
    self, FLAGS, HOSTS, LIMIT, PROGRAMS, RANKS, SOON, any_library, cluster, command_of, due, expect_same, first_checkpoints,
    is_long, result, rounds, start, story, strike,
};
use radic_wire::event::{Event, EventName};
use radic_wire::ids::JobId;
use rustix::process::Signal;

/// How the undisturbed run of a program ends, and how long it takes under protection.
fn undisturbed(library: &Library, kind: Kind, command: &[String]) -> (Vec<String>, Duration) {
    let cluster = cluster(kind, 0);
    let due = due(library, &cluster, command);
    let protected = start(library, &cluster, FLAGS, command).wait().expect(0);
    assert_eq!(result(&protected), due, "{protected}");
    cluster.stop();
    (due, protected.elapsed)
}

/// A program, and so many deaths of a random node at a random moment.
///
/// A run that was over before its moment came has to be right, too, but is no death: another moment is taken, within what that run took. How long a
/// run takes differs between runs, the more so on a busy machine.
fn survives(library: &Library, kind: Kind, program: (&str, &[&str]), deaths: usize, within: Duration, random: &mut Random) {
    let command = command_of(library, program);
    let (due, time) = undisturbed(library, kind, &command);
    let mut time = time.min(within);
    let (mut struck, mut runs) = (0, 0);
    while struck < deaths {
        runs += 1;
        assert!(runs <= 2 * deaths + 2, "only {struck} of {runs} nodes died before the end of {}", program.0);
        let spares = random.below(2);
        let cluster = cluster(kind, spares);
        let mut events = cluster.events_at("n1");
        let job = start(library, &cluster, FLAGS, &command);
        // Before that there is no job, and its node would be missed by name.
        events.expect("the job to start", SOON, |e| e.event == EventName::JobStart);
        let (node, after) = (HOSTS[random.below(HOSTS.len())], time.mul_f64(random.below(800) as f64 / 1000.0));
        let what = format!("{} {} on {kind:?}, {spares} spares, {node} dies after {after:.2?}", library.name, program.0);
        let in_time = strike(&cluster, &job, node, after);
        let finished = expect_same(&cluster, job, &due, &what);
        let (elapsed, late) = (finished.elapsed.as_secs_f64(), if in_time { "" } else { "; too late" });
        println!("{what}: {elapsed:.2} s, {:.2} s undisturbed{late}", time.as_secs_f64());
        match in_time {
            true => struck += 1,
            false => time = time.min(finished.elapsed),
        }
        cluster.assert_idle();
        cluster.stop();
    }
}

/// One case of the matrix, for an engineer who looks for what happens seldom: `RADIC_CASE="impi jacobi namespaces 20"`. A fifth word says within how many
/// milliseconds nodes die.
fn one_case(case: &str, libraries: &[Library], random: &mut Random) {
    let words: Vec<_> = case.split_whitespace().collect();
    let [library, program, kind, deaths, ref rest @ ..] = words[..] else { panic!("{case}: four or five words") };
    let within = rest.first().map_or(Duration::MAX, |ms| Duration::from_millis(ms.parse().expect("milliseconds")));
    let library = libraries.iter().find(|known| known.name == library).expect("a library");
    let program = PROGRAMS.into_iter().find(|known| known.0 == program).expect("a program");
    let kind = Kind::all().into_iter().find(|known| format!("{known:?}").eq_ignore_ascii_case(kind)).expect("a kind of nodes");
    survives(library, kind, program, deaths.parse().expect("how many deaths"), within, random);
}

#[test]
fn a_node_dies_at_a_random_moment() {
    let mut random = Random::from_environment();
    let libraries = &LIBRARIES;
    if let Ok(case) = std::env::var("RADIC_CASE") {
        return one_case(&case, libraries, &mut random);
    }
    if is_long() {
        for (library, kind) in libraries.iter().flat_map(|library| Kind::all().into_iter().map(move |kind| (library, kind))) {
            PROGRAMS.into_iter().for_each(|program| survives(library, kind, program, 20, Duration::MAX, &mut random));
        }
        return;
    }
    for program in PROGRAMS {
        survives(any_library(&mut random), Kind::Logical, program, 1, Duration::MAX, &mut random);
    }
    for kind in Kind::all().into_iter().filter(|kind| *kind != Kind::Logical) {
        libraries
            .iter()
            .for_each(|library| survives(library, kind, PROGRAMS[random.below(PROGRAMS.len())], 1, Duration::MAX, &mut random));
    }
}

/// A Jacobi under way, with its first checkpoints committed, and what it has to print.
struct Case {
    cluster: Cluster,
    job: Running,
    /// Its number: while it has no home no node knows it.
    id: JobId,
    due: Vec<String>,
}

impl Case {
    fn start(spares: usize, flags: &str) -> Case {
        let command = command_of(&MPICH, PROGRAMS[2]);
        let cluster = cluster(Kind::Logical, spares);
        let due = due(&MPICH, &cluster, &command);
        let mut events = cluster.events_at("n1");
        let job = start(&MPICH, &cluster, flags, &command);
        let id = first_checkpoints(&mut events, RANKS);
        let mut case = Case { job, id, due, cluster };
        case.job.until("an iteration", |out, _| (!out.is_empty()).then_some(()));
        case
    }

    fn kill(&self, node: &str) {
        self.cluster.radic(["inject", "kill-node", node]).run().expect(0);
    }

    /// Ends as it must; all events until then.
    fn end(self, what: &str) -> Vec<Event> {
        let Case { cluster, job, id, due } = self;
        let finished = expect_same(&cluster, job, &due, what);
        println!("{what}: {:.2} s", finished.elapsed.as_secs_f64());
        let seen = recovery::events_of(&cluster, id);
        cluster.assert_idle();
        cluster.stop();
        seen
    }
}

/// How many ranks go on at this node, as the events say.
fn placed(events: &[Event], node: &str) -> usize {
    events.iter().filter(|e| e.event == EventName::Place && e.text.contains(&format!(" goes on at {node}"))).count()
}

#[test]
fn where_lost_ranks_go_on() {
    for (spares, how, due) in [(1, "", "s1"), (0, "", "n4"), (1, "--restart-on protector", "n4")] {
        let case = Case::start(spares, &format!("{FLAGS} {how}"));
        case.kill("n3");
        let events = case.end(&format!("{spares} spares, {how}"));
        assert_eq!(placed(&events, due), 1, "{events:#?}");
        // No other rank went back.
        assert_eq!(events.iter().filter(|e| e.event == EventName::Live).count(), 1, "{events:#?}");
    }
}

#[test]
fn the_node_of_rank_0_dies() {
    let case = Case::start(1, FLAGS);
    case.kill("n2");
    case.end("death of the node of rank 0");
}

/// The terminal's node, which is the job's home as well; then the command itself.
#[test]
fn the_terminal_s_node_dies() {
    let flags = "--nodes n1,n2,n3,n4 --protect on --ckpt-interval 0.3";
    let case = Case::start(1, flags);
    case.kill("n1");
    case.end("death of the terminal's node and home");
    let case = Case::start(1, flags);
    let before = case.job.stdout();
    let id = case.id.to_string();
    // The terminal is gone, and then its node.
    case.job.signal(Signal::HUP);
    assert!(case.job.ends_within(SOON), "SIGHUP ends the command");
    case.kill("n1");
    let again = Instant::now() + SOON;
    let attached = loop {
        let attached = case.cluster.radic(["attach", &id]).limit(LIMIT).run();
        // Until the job has its new home no node knows it.
        if attached.code() != Some(125) || Instant::now() > again {
            break attached;
        }
    };
    assert_eq!(attached.code(), Some(0), "{attached}\n{}", story(&case.cluster));
    let (out, last) = (attached.stdout(), case.due.last().expect("it prints"));
    assert_eq!(out.lines().last(), Some(last.as_str()), "{attached}");
    // Between the two terminals nothing is missing. What the first has seen the second may see again: only the home and the rank's host knew, and
    // they were on the node that died.
    let lines = before.lines().count() + out.lines().count();
    assert!(lines >= case.due.len() && case.due.ends_with(&result(&attached)), "{before}---\n{attached}");
    case.cluster.stop();
}

/// Intel MPI connects when it first sends. So the lost rank connects again as it did then, later connects to others, and is connected to, all from a
/// node that has none of the addresses that it had: its program, and theirs, must not notice.
#[test]
fn connections_are_made_after_a_move() {
    for kind in Kind::all().into_iter().filter(|kind| *kind != Kind::Logical) {
        let command = command_of(&INTEL, PROGRAMS[2]);
        let (due, _) = undisturbed(&INTEL, kind, &command);
        for node in ["n5", "n2"] {
            let cluster = cluster(kind, 1);
            let mut events = cluster.events_at("n1");
            let job = start(&INTEL, &cluster, FLAGS, &command);
            first_checkpoints(&mut events, RANKS);
            cluster.kill_all_of(node);
            expect_same(&cluster, job, &due, &format!("{node} dies after the first checkpoints"));
            cluster.assert_idle();
            cluster.stop();
        }
    }
}

#[test]
fn two_ranks_on_the_dead_node() {
    let cluster = Setup::new(Kind::Logical, 4).spares(1).slots(2).start();
    let command = command_of(&MPICH, PROGRAMS[0]);
    let flags = "--nodes n2,n3 --protect on --ckpt-interval 0.3";
    let due = due(&MPICH, &cluster, &command);
    let job = start(&MPICH, &cluster, flags, &command);
    let mut events = cluster.events_at("n1");
    first_checkpoints(&mut events, RANKS);
    cluster.radic(["inject", "kill-node", "n3"]).run().expect(0);
    expect_same(&cluster, job, &due, "two ranks on the dead node");
    let mut live = BTreeSet::new();
    while live.len() < 2 {
        live.extend(events.expect("both ranks to live again", SOON, |e| e.event == EventName::Live).rank);
    }
    cluster.assert_idle();
    cluster.stop();
}

/// Protectors, logs, doors and the links of ranks have addresses of IPv6.
#[test]
fn a_node_dies_where_addresses_are_of_ipv6() {
    let library = any_library(&mut Random::from_environment());
    let mut cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    for (node, role) in [("n1", None), ("n2", None), ("n3", None), ("n4", None), ("n5", None), ("s1", Some("--spare"))] {
        let flags: Vec<&str> = ["--listen=[::1]:0", "--slots=1"].into_iter().chain(role).collect();
        cluster.start_node(node, &flags);
    }
    let command = command_of(library, PROGRAMS[0]);
    let due = due(library, &cluster, &command);
    let mut events = cluster.events_at("n1");
    let job = start(library, &cluster, FLAGS, &command);
    first_checkpoints(&mut events, RANKS);
    cluster.radic(["inject", "kill-node", "n3"]).run().expect(0);
    expect_same(&cluster, job, &due, "a death among addresses of IPv6");
    events.expect("the rank to live again", SOON, |e| e.event == EventName::Live);
    cluster.assert_idle();
    cluster.stop();
}

/// Nothing is committed yet: the job restarts from its beginning, by itself, and says so.
#[test]
fn a_death_just_after_the_start() {
    let cluster = cluster(Kind::Logical, 1);
    let command = command_of(&MPICH, PROGRAMS[2]);
    let due = due(&MPICH, &cluster, &command);
    let before: Vec<JobId> = cluster.status().jobs.iter().map(|job| job.job).collect();
    let mut events = cluster.events_at("n1");
    let job = start(&MPICH, &cluster, FLAGS, &command);
    let is_new = |e: &Event| e.event == EventName::JobStart && e.job.is_some_and(|job| !before.contains(&job));
    events.expect("the job to start", SOON, is_new);
    assert!(strike(&cluster, &job, "n4", Duration::from_millis(10)), "it ended too early");
    expect_same(&cluster, job, &due, "a death 10 ms after the start");
    events.expect("the job to restart from its beginning", SOON, |e| e.event == EventName::Restart);
    cluster.assert_idle();
    cluster.stop();
}

#[test]
fn a_rank_crashes() {
    let case = Case::start(0, FLAGS);
    case.cluster.radic(["inject", "kill-rank", &case.id.to_string(), "1"]).run().expect(0);
    let events = case.end("crash of a rank");
    assert_eq!(placed(&events, "n3"), 1, "on its own node: {events:#?}");
}

/// A zombie finds out, ends, and leaves the incarnation that has replaced it alone.
#[test]
fn a_node_that_hangs_is_fenced() {
    let case = Case::start(1, FLAGS);
    case.cluster.radic(["inject", "pause-node", "n3", "3"]).run().expect(0);
    let events = case.end("a node that hangs for 3 s");
    assert_eq!(placed(&events, "s1"), 1, "its new incarnation was not ended by the old node's end: {events:#?}");
}

/// An image of before `MPI_Init` would be of no use as soon as another rank has passed it, and would only be in the way of the first one that protects.
#[test]
fn the_first_image_is_that_of_mpi_init() {
    for library in &LIBRARIES {
        let cluster = cluster(Kind::Logical, 0);
        let mut events = cluster.events_at("n1");
        let flags = "--nodes n2,n3,n4,n5 --protect on --ckpt-interval 3600";
        let job = start(library, &cluster, flags, &rounds(library, "--rounds 600 --pause 1"));
        let id = first_checkpoints(&mut events, RANKS);
        job.wait().expect(0);
        let images = Protected::of(&cluster, id, RANKS).sum(|counters| counters.checkpoints);
        assert_eq!(images, RANKS as u64, "{}: one image of each rank", library.name);
        cluster.stop();
    }
}
