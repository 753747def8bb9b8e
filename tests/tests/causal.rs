//! `radic run --log causal`: no process waits before it sends, and what it has not told its log comes back from those that depend on it.
#![forbid(unsafe_code)]

use radic_tests::cluster::{Kind, Setup};
use radic_tests::library::{LIBRARIES, Library};
use radic_tests::random::Random;
use radic_tests::recovery::{PROGRAMS, SOON, command_of, expect_same, first_checkpoints, result, rounds, sample, start};
use radic_wire::event::{Event, EventName};

const FLAGS: &str = "--protect on --ckpt-interval 0.3 --log causal";
/// Received bytes stay with their senders, and images are made in recovery lines.
const SENDER: &str = "--protect on --ckpt-interval 0.3 --payload sender";

fn libraries(random: &mut Random) -> Vec<&'static Library> {
    sample(&LIBRARIES.each_ref(), 1, random)
}

/// The nodes die at one moment after the first checkpoints, and the job ends as the undisturbed one.
fn survives(library: &Library, flags: &str, dead: &[&str]) {
    let (command, what) = (&rounds(library, "--rounds 3000 --mib 1 --pause 1"), &format!("{}, {flags}, {dead:?}", library.name));
    let cluster = Setup::new(Kind::Logical, 4).spares(2).start();
    let due = result(&start(library, &cluster, "--protect none", command).wait().expect(0));
    let mut events = cluster.events_at("n1");
    let job = start(library, &cluster, flags, command);
    first_checkpoints(&mut events, 4);
    dead.iter().for_each(|node| cluster.kill_all_of(node));
    for _ in dead {
        events.expect("a lost rank to live again", SOON, |e: &Event| e.event == EventName::Live);
    }
    let finished = expect_same(&cluster, job, &due, what);
    println!("{what}: {:.2} s", finished.elapsed.as_secs_f64());
    cluster.assert_idle();
    cluster.stop();
}

/// One node, and two at one moment.
fn all_survive(flags: &str) {
    let mut random = Random::from_environment();
    for library in libraries(&mut random) {
        for dead in [&["n3"][..], &["n2", "n4"]] {
            survives(library, flags, dead);
        }
    }
}

#[test]
fn one_node_and_two_at_one_moment_die() {
    all_survive(FLAGS);
}

#[test]
fn one_node_and_two_die_where_received_bytes_stay_with_their_senders() {
    all_survive(SENDER);
}

/// Without a death each program ends as it does natively.
#[test]
fn programs_end_as_they_do_natively() {
    let mut random = Random::from_environment();
    for library in libraries(&mut random) {
        let cluster = Setup::new(Kind::Logical, 4).start();
        for program in PROGRAMS {
            let command = command_of(library, program);
            let due = result(&start(library, &cluster, "--protect none", &command).wait().expect(0));
            for flags in [FLAGS, SENDER] {
                let protected = start(library, &cluster, flags, &command).wait().expect(0);
                assert_eq!(result(&protected), due, "{} {} {flags}: {protected}", library.name, program.0);
            }
        }
        cluster.stop();
    }
}
