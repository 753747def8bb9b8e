//! The property test of issue 4: endpoints, protectors, random sizes, partial reads and writes, broken connections, deaths and
//! restarts from any cut, zombies. After every step G1, G2 and G3 hold; at the end everything has arrived.
//!
//! `RADIC_CASES=n` runs n cases of each kind (100,000 in all by default, in release), `RADIC_SEED=s` runs one case, or from there.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use radic_sim::data::world::{Counts, Plan, World};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs `cases` cases, or as many as the environment says, and prints the seed of the first that fails.
fn run(plan: Plan, cases: u64) {
    let cases = number("RADIC_CASES").unwrap_or(if cfg!(debug_assertions) { cases / 50 } else { cases });
    let first = number("RADIC_SEED").unwrap_or(0);
    let mut sum = Counts::default();
    for seed in first..first + cases {
        let counts = catch_unwind(AssertUnwindSafe(|| {
            let mut world = World::new(seed, plan);
            world.run();
            world.counts
        }));
        let Ok(counts) = counts else { panic!("{plan:?}: to repeat this case: RADIC_SEED={seed} RADIC_CASES=1") };
        sum.restarts += counts.restarts;
        sum.breaks += counts.breaks;
        sum.commits += counts.commits;
        sum.zombies += counts.zombies;
        sum.replaced += counts.replaced;
        sum.delivered += counts.delivered;
        sum.again += counts.again;
        sum.forgotten += counts.forgotten;
    }
    println!("{cases} cases of {plan:?}: {sum:?}");
    let met = sum.restarts > 0 && sum.breaks > 0 && sum.commits > 0 && sum.again > 0 && sum.forgotten > 0;
    assert!(cases < 100 || met, "the dice never threw what this is about: {sum:?}");
}

#[test]
fn two_endpoints() {
    run(Plan { nodes: 2, replicas: false, durable: false, steps: 500 }, 55_000);
}

#[test]
fn two_endpoints_with_replicas() {
    run(Plan { nodes: 2, replicas: true, durable: false, steps: 500 }, 20_000);
}

#[test]
fn two_endpoints_and_durable_protectors() {
    run(Plan { nodes: 2, replicas: false, durable: true, steps: 500 }, 10_000);
}

#[test]
fn a_ring_of_three() {
    run(Plan { nodes: 3, replicas: false, durable: false, steps: 600 }, 10_000);
}

#[test]
fn a_ring_of_four() {
    run(Plan { nodes: 4, replicas: true, durable: true, steps: 1_000 }, 5_000);
}
