//! Scenarios and random faults on the simulated cluster.

use std::sync::Arc;
use std::time::Duration;

use radic_wire::ids::NodeId;
use radic_wire::membership::{Ballot, Change, MembershipBody, MembershipMessage, Proposal, Refusal, Role, View};

use super::sim::{CALM, Network, Sim, State, member, ms};
use super::{Membership, MembershipEvent, Output, Reason, Timing};

#[test]
fn sixty_four_join_at_once() {
    let mut sim = Sim::new(1);
    let founder = sim.found(member(0, 1));
    let seed = sim.nodes[founder].member.address;
    for i in 1..64 {
        sim.join_through(member(i, 1), vec![seed]);
    }
    let time = sim.run_until(ms(1_500), "all have joined", Sim::converged);
    let (views, sent) = (sim.newest().number, sim.total_sent());
    println!("64 joins at once: {time:?}, {views} views, {sent} messages: {:?}", sim.sent);
    assert!(views <= 16 && sent <= 64 * 16 * 3, "{views} views, {sent} messages");
    assert_none_suspected(&sim);
}

#[test]
fn sixty_four_join_one_after_the_other_through_anybody() {
    let mut sim = Sim::new(2);
    sim.found(member(0, 1));
    for i in 1..64 {
        sim.join(member(i, 1));
        let pause = sim.random.duration(ms(40));
        sim.run(pause);
    }
    sim.run_until(ms(3_000), "all have joined", Sim::converged);
    println!("64 joins in sequence: {} views, {} messages: {:?}", sim.newest().number, sim.total_sent(), sim.sent);
    assert_none_suspected(&sim);
}

#[test]
fn a_calm_ring_stays_calm() {
    let mut sim = Sim::formed(3, 64);
    let gossip = |sim: &Sim| sim.sent["probe request"] + sim.sent["probe result"];
    let (sent, gossiped, heartbeats) = (sim.total_sent(), gossip(&sim), sim.heartbeats);
    sim.run(ms(10_000));
    let gossiped = gossip(&sim) - gossiped;
    assert_eq!(sim.total_sent() - sent, gossiped, "nothing but gossip and heartbeats: {:?}", sim.sent);
    assert!(gossiped < 64 * 2 * 7, "{gossiped}");
    let heartbeats = sim.heartbeats - heartbeats;
    assert!((64 * 95..=64 * 101).contains(&heartbeats), "{heartbeats}");
    assert_none_suspected(&sim);
}

fn assert_none_suspected(sim: &Sim) {
    for node in &sim.nodes {
        assert_eq!(node.events, [], "{:?}", node.member.id);
    }
}

/// Ends `victims`, places in the ring of 64, and returns when all survivors know.
fn end_of_64(seed: u64, victims: &[usize], end: impl Fn(&mut Sim, usize)) -> Duration {
    let mut sim = Sim::formed(seed, 64);
    let offset = sim.random.duration(ms(100));
    sim.run(offset);
    let before = sim.total_sent();
    let ring = sim.newest();
    for victim in victims.iter().map(|place| &ring.members[*place].id) {
        let node = sim.nodes.iter().position(|node| node.member.id == *victim).unwrap();
        end(&mut sim, node);
    }
    let time = sim.run_until(ms(10_000), "the survivors agree", Sim::converged);
    println!("{victims:?} of 64: {time:?}, {} messages: {:?}", sim.total_sent() - before, sim.sent);
    time
}

#[test]
fn five_of_sixty_four_die_at_once() {
    let places: [&[usize]; 5] =
        [&[7, 19, 23, 40, 63], &[0, 1, 2, 3, 4], &[0, 13, 26, 39, 52], &[59, 60, 61, 62, 63], &[0, 1, 31, 62, 63]];
    for (i, victims) in places.into_iter().enumerate() {
        let killed = end_of_64(i as u64, victims, Sim::kill);
        assert!(killed < ms(1_000), "{killed:?}");
        let silent = end_of_64(i as u64, victims, Sim::silence);
        assert!(silent < ms(2_000), "{silent:?}");
    }
}

#[test]
fn a_dozen_neighbours_fall_silent() {
    let time = end_of_64(5, &[20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31], Sim::silence);
    assert!(time < ms(2_000), "{time:?}");
}

#[test]
fn a_paused_node_is_declared_dead_and_told_so() {
    let mut sim = Sim::formed(4, 5);
    sim.pause(2);
    sim.run_until(ms(1_500), "the others go on", |sim| sim.newest().members.len() == 4);
    sim.run(ms(1_000));
    sim.resume(2);
    sim.run_until(ms(300), "it is told", |sim| sim.nodes[2].excluded);
    let late = |(_, event): &(_, MembershipEvent)| matches!(event, MembershipEvent::Descheduled { late } if *late > ms(1_000));
    assert!(sim.nodes[2].events.iter().any(late), "{:?}", sim.nodes[2].events);
    let accused = |(_, event): &(_, MembershipEvent)| matches!(event, MembershipEvent::Suspected { .. });
    assert!(!sim.nodes[2].events.iter().any(accused), "a late watchdog accuses no member: {:?}", sim.nodes[2].events);
    sim.assert_converged();
}

#[test]
fn a_short_pause_costs_no_member_its_membership() {
    for length in [50, 150, 300, 450, 600, 900, 1_200, 1_350] {
        let mut sim = Sim::formed(length, 5);
        sim.pause(1);
        sim.run(ms(length));
        sim.resume(1);
        sim.run(ms(3_000));
        sim.assert_converged();
        assert_eq!(sim.newest().members.len(), 5, "after {length} ms");
    }
}

/// No member has confirmed a death, or found itself without a majority, and the view is still that of all.
fn assert_no_death(sim: &Sim, seed: u64) {
    for node in &sim.nodes {
        let confirmed = |(_, event): &&(_, MembershipEvent)| matches!(event, MembershipEvent::Confirmed { .. });
        let bad: Vec<_> = node.events.iter().filter(confirmed).collect();
        assert!(bad.is_empty() && node.frozen.is_none(), "seed {seed}, {:?}: {bad:?}, frozen {:?}", node.member.id, node.frozen);
    }
    sim.assert_converged();
    assert_eq!(sim.newest().members.len(), sim.nodes.len(), "seed {seed}");
}

#[test]
fn pauses_of_some_for_almost_a_second_cost_no_member_its_membership() {
    for seed in 0..100 {
        let mut sim = Sim::formed(seed, 12);
        let mut wakes: Vec<(Duration, usize)> = Vec::new();
        let mut rested = [Duration::ZERO; 12];
        let end = sim.now + ms(20_000);
        while sim.now < end {
            // Up to five of twelve at a time: a majority answers. Between two pauses each runs for a moment.
            let place = sim.random.below(12) as usize;
            if wakes.len() < 5 && sim.is_up(place) && rested[place] <= sim.now {
                sim.pause(place);
                let wake = sim.now + ms(50) + sim.random.duration(ms(900));
                wakes.push((wake, place));
                rested[place] = wake + ms(100);
            }
            let step = sim.random.duration(ms(60));
            sim.run(step);
            let now = sim.now;
            for (_, place) in wakes.extract_if(.., |(at, _)| *at <= now) {
                sim.resume(place);
            }
        }
        wakes.into_iter().for_each(|(_, place)| sim.resume(place));
        sim.run(ms(3_000));
        assert_no_death(&sim, seed);
        let suspected = |(_, event): &(_, MembershipEvent)| matches!(event, MembershipEvent::Suspected { .. });
        assert!(sim.nodes.iter().any(|node| node.events.iter().any(suspected)), "no member was missed");
    }
}

/// Every machine runs only now and then, for less than it takes to notice that as an interruption, while connections break.
#[test]
fn machines_that_run_now_and_then_accuse_no_member() {
    for seed in 0..50 {
        let mut sim = Sim::formed(seed, 8);
        let mut turns = [Duration::ZERO; 8];
        let end = sim.now + ms(20_000);
        while sim.now < end {
            let now = sim.now;
            for (place, turn) in turns.iter_mut().enumerate().filter(|(_, turn)| **turn <= now) {
                let paused = sim.nodes[place].state == State::Paused;
                if paused {
                    sim.resume(place)
                } else {
                    sim.pause(place)
                }
                *turn = sim.now + sim.random.duration(if paused { ms(20) } else { ms(190) });
            }
            if sim.random.below(40) == 0 {
                let (a, b) = (sim.random.below(8) as usize, sim.random.below(8) as usize);
                if a != b {
                    sim.break_link(a, b);
                }
            }
            sim.run(ms(5));
        }
        (0..8).for_each(|place| sim.resume(place));
        sim.run(ms(3_000));
        assert_no_death(&sim, seed);
    }
}

#[test]
fn neighbours_that_hang_are_found_side_by_side() {
    let hang = |sim: &mut Sim, place| sim.pause(place);
    for victims in [&[30][..], &[30, 31], &[20, 21, 22, 23, 24, 25, 26, 27, 28], &[0, 1, 2, 63], &[7, 19, 23, 40, 63]] {
        let time = end_of_64(6, victims, hang);
        assert!(ms(1_300) < time && time < ms(2_000), "{victims:?}: {time:?}");
    }
}

/// A machine that member 0 asks to probe member 2, alone: the test is its clock and its network.
struct Witness {
    machine: Membership,
    view: Arc<View>,
    start: Duration,
}

impl Witness {
    fn new() -> Witness {
        let mut sim = Sim::formed(17, 4);
        let (view, start) = (sim.newest(), sim.now);
        let place = sim.nodes.iter().position(|node| node.member.id == view.members[1].id).unwrap();
        Witness { machine: sim.nodes.swap_remove(place).machine, view, start }
    }

    fn ask(&mut self, at: u64) {
        let body = MembershipBody::ProbeRequest(self.view.members[2].id.clone());
        let message = MembershipMessage { cluster: Some(self.view.cluster), view: self.view.number, body };
        self.machine.handle_message(self.start + ms(at), self.view.members[0].id.clone(), message);
    }

    fn reached(&mut self, at: u64) {
        self.machine.handle_probe_reached(self.start + ms(at), self.view.members[2].id.clone());
    }

    /// What it has told about the target.
    fn said(&mut self) -> Option<bool> {
        let verdict = |output| match output {
            Output::Send { message: MembershipMessage { body: MembershipBody::ProbeResult { alive, .. }, .. }, .. } => {
                Some(alive)
            }
            _ => None,
        };
        std::iter::from_fn(|| self.machine.poll_output()).filter_map(verdict).last()
    }

    /// Runs it for a time, called so much late each time, while the others live; when and what it told in that time.
    fn run(&mut self, from: u64, to: u64, late: u64) -> Option<(u64, bool)> {
        let mut told = None;
        while let Some(due) = self.machine.poll_timeout().filter(|due| *due + ms(late) <= self.start + ms(to)) {
            let now = due.max(self.start + ms(from)) + ms(late);
            self.machine.handle_timeout(now);
            for other in [0, 3] {
                self.machine.handle_heartbeat(now, self.view.members[other].id.clone(), self.view.number);
            }
            told = self.said().map(|alive| ((now - self.start).as_millis() as u64, alive)).or(told);
        }
        told
    }
}

#[test]
fn a_witness_says_no_when_its_time_is_over() {
    let mut witness = Witness::new();
    witness.ask(0);
    assert_eq!(witness.run(0, 300, 0), Some((250, false)), "its machine is not there");
    witness.ask(300);
    assert_eq!(witness.run(300, 400, 0), None);
    witness.reached(400);
    assert_eq!(witness.run(400, 1_300, 0), None);
    // Reached again, as after a connection that was closed: that gives no more time.
    witness.reached(1_300);
    assert_eq!(witness.run(1_300, 1_500, 0), Some((1_400, false)), "its machine is there, its daemon is not");
    // There is no listener: a no at once.
    witness.ask(1_500);
    witness.machine.handle_probe_result(witness.start + ms(1_510), witness.view.members[2].id.clone(), false);
    assert_eq!(witness.said(), Some(false));
}

#[test]
fn a_witness_that_was_not_running_does_not_blame_others() {
    let mut witness = Witness::new();
    witness.ask(0);
    witness.reached(0);
    // Half a second in which it does not run: all members have the whole time again.
    assert_eq!(witness.run(0, 700, 0), None);
    assert_eq!(witness.run(1_200, 2_300, 0), Some((2_200, false)));
    // A little late, just when the time is over: the answer has come, but was not read.
    witness.ask(2_300);
    witness.reached(2_300);
    assert_eq!(witness.run(2_300, 3_200, 0), None);
    witness.machine.handle_timeout(witness.start + ms(3_350));
    assert_eq!(witness.said(), None);
    witness.machine.handle_probe_result(witness.start + ms(3_351), witness.view.members[2].id.clone(), true);
    assert_eq!(witness.said(), Some(true));
    // A member that is always late has to judge nevertheless.
    witness.ask(3_400);
    witness.reached(3_400);
    let told = witness.run(3_400, 6_000, 70);
    assert!(matches!(told, Some((4_400..4_700, false))), "{told:?}");
}

#[test]
fn machines_that_all_pause_at_once_accuse_none() {
    let mut sim = Sim::formed(5, 8);
    (0..8).for_each(|place| sim.pause(place));
    sim.run(ms(5_000));
    for place in 0..8 {
        sim.resume(place);
        sim.run(ms(5));
    }
    sim.run(ms(3_000));
    sim.assert_converged();
    assert_eq!(sim.newest().members.len(), 8);
    for node in &sim.nodes {
        assert!(node.events.iter().all(|(_, event)| matches!(event, MembershipEvent::Descheduled { .. })), "{:?}", node.events);
    }
}

#[test]
fn the_leader_dies_at_every_message() {
    let mut most = 0;
    for count in 0.. {
        let mut sim = Sim::formed(count, 5);
        sim.kill_after(0, count);
        // Something to decide: two join, one dies.
        sim.join_through(member(5, 1), vec![sim.nodes[1].member.address, sim.nodes[0].member.address]);
        sim.kill(3);
        let joiner = member(6, 1);
        sim.join_through(joiner, vec![sim.nodes[2].member.address]);
        sim.run(ms(6_000));
        sim.assert_converged();
        if sim.is_up(0) {
            most = count;
            break;
        }
        assert_eq!(sim.newest().members.len(), 5, "{}", sim.describe());
    }
    println!("the leader sends at most {most} messages");
    assert!(most > 20);
}

#[test]
fn two_propose_together() {
    for seed in 0..50 {
        let mut sim = Sim::formed(seed, 7);
        sim.network = Network { delay: (ms(1), ms(30)), ..CALM };
        // Each takes itself for the first member alive.
        let (a, b) = (sim.id(0), sim.id(1));
        sim.nodes[1].machine.want(Change::Dead(a), true);
        sim.nodes[2].machine.want(Change::Dead(b), true);
        for place in [1, 2] {
            let now = sim.now;
            sim.nodes[place].machine.handle_timeout(now);
        }
        sim.join(member(7, 1));
        sim.run(ms(5_000));
        sim.assert_converged();
    }
}

#[test]
fn the_value_of_the_highest_ballot_is_proposed_again() {
    for swap in [false, true] {
        let mut sim = Sim::formed(16, 5);
        let view = sim.newest();
        let by = |place: usize| view.members[place].id.clone();
        let second = sim.nodes.iter_mut().find(|node| node.member.id == by(1));
        let machine = &mut second.unwrap().machine;
        machine.want(Change::Dead(by(0)), true);
        machine.pursue();
        let body = |output| if let Output::Send { message, .. } = output { Some(message.body) } else { None };
        let sent: Vec<MembershipBody> = std::iter::from_fn(|| machine.poll_output()).filter_map(body).collect();
        let [MembershipBody::Prepare(ballot)] = &sent[..] else { panic!("{sent:?}") };
        assert!(ballot.round == 1 && ballot.proposer == by(1), "{ballot:?}");
        // Rounds 0 and 1 of others, of which the later binds.
        let accepted = |round, proposer, joiner| {
            let ballot = Ballot { round, proposer: by(proposer) };
            Some(Proposal { ballot, changes: vec![Change::Join(member(joiner, 1))] })
        };
        let (mut lower, mut higher) = (accepted(0, 0, 7), accepted(1, 0, 8));
        if swap {
            std::mem::swap(&mut lower, &mut higher);
        }
        for (from, accepted) in [(2, lower), (3, higher)] {
            let body = MembershipBody::Promise { ballot: ballot.clone(), accepted };
            let message = MembershipMessage { cluster: Some(view.cluster), view: view.number, body };
            machine.handle_message(sim.now, by(from), message);
        }
        let sent: Vec<MembershipBody> = std::iter::from_fn(|| machine.poll_output()).filter_map(body).collect();
        let again = Proposal { ballot: ballot.clone(), changes: vec![Change::Join(member(8, 1))] };
        assert_eq!(sent, [MembershipBody::Accept(again)]);
    }
}

#[test]
fn a_side_without_majority_freezes_and_is_told_when_the_cut_heals() {
    for hold in [false, true] {
        let mut sim = Sim::formed(6, 7);
        sim.cut(&[0, 3, 5], hold);
        sim.run_until(ms(4_000), "both sides know", |sim| {
            let frozen = |place: &usize| sim.nodes[*place].frozen.as_ref().is_some_and(|unreachable| unreachable.len() == 4);
            [0, 3, 5].iter().all(frozen) && sim.newest().members.len() == 4
        });
        assert!([1, 2, 4, 6].iter().all(|place| sim.nodes[*place].frozen.is_none()));
        sim.run(ms(3_000));
        sim.heal();
        sim.run_until(ms(3_000), "they are told", |sim| [0, 3, 5].iter().all(|place| sim.nodes[*place].excluded));
        sim.assert_converged();
    }
}

#[test]
fn one_cut_off_alone_freezes_soon() {
    let mut sim = Sim::formed(7, 64);
    sim.cut(&[40], false);
    let time = sim.run_until(ms(2_500), "it is frozen", |sim| sim.nodes[40].frozen.is_some());
    println!("one of 64 cut off: frozen after {time:?}");
    assert_eq!(sim.nodes[40].frozen.as_ref().unwrap().len(), 63);
    assert_eq!(sim.newest().members.len(), 63);
}

#[test]
fn a_cut_into_halves_that_heals_costs_no_member_its_membership() {
    for (seed, hold) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut sim = Sim::formed(seed, 6);
        sim.cut(&[0, 2, 5], hold);
        let time = sim.run_until(ms(5_000), "all are frozen", |sim| sim.nodes.iter().all(|node| node.frozen.is_some()));
        let longer = sim.random.duration(ms(4_000));
        sim.run(longer);
        sim.heal();
        sim.run(ms(6_000));
        sim.assert_converged();
        assert_eq!(sim.newest().members.len(), 6, "frozen after {time:?}");
    }
}

#[test]
fn the_survivor_of_two_is_frozen() {
    let mut sim = Sim::formed(8, 2);
    sim.kill(0);
    let time = sim.run_until(ms(1_000), "it is frozen", |sim| sim.nodes[1].frozen.is_some());
    println!("one of two killed: frozen after {time:?}");
    // A node that comes back is told why it cannot join.
    let back = sim.join_through(member(0, 2), vec![sim.nodes[1].member.address]);
    sim.run(ms(1_000));
    assert_eq!(sim.nodes[back].refusals.first(), Some(&Refusal::Frozen { reachable: 1, needed: 2 }));
    assert_eq!(sim.newest().members.len(), 2);
}

#[test]
fn a_daemon_that_restarts_joins_under_its_name() {
    let mut sim = Sim::formed(9, 5);
    for boot in 2..5 {
        let old = sim.nodes.iter().rposition(|node| node.member.id.name == sim.nodes[0].member.id.name).unwrap();
        sim.kill(old);
        sim.join(member(0, boot));
        let time =
            sim.run_until(ms(1_500), "it is back", |sim| sim.converged() && sim.newest().get(&member(0, boot).id).is_some());
        println!("back after {time:?}");
        assert_eq!(sim.newest().members.len(), 5);
    }
}

#[test]
fn a_name_in_use_is_refused_and_granted_when_it_is_free() {
    let mut sim = Sim::formed(10, 4);
    for holder in [0, 2] {
        let late = sim.join_through(member(holder, 2), vec![sim.nodes[3].member.address, sim.nodes[0].member.address]);
        sim.run(ms(1_200));
        let address = sim.nodes[holder].member.address;
        let refusal = Refusal::NameInUse { name: sim.nodes[holder].member.id.name.clone(), address };
        assert!(!sim.nodes[late].refusals.is_empty() && sim.nodes[late].refusals.iter().all(|other| *other == refusal));
        sim.leave(holder);
        sim.run_until(ms(1_500), "the name is free", Sim::converged);
        assert!(sim.nodes[holder].left && sim.newest().members.len() == 4);
    }
}

#[test]
fn members_leave_until_none_is_left() {
    let mut sim = Sim::formed(11, 6);
    for place in [0, 3, 5, 1, 4, 2] {
        sim.leave(place);
        sim.run_until(ms(500), "it has left", |sim| sim.nodes[place].left);
        if place != 2 {
            sim.run_until(ms(500), "the others know", Sim::converged);
        }
    }
    let accused = |(_, event): &(_, MembershipEvent)| !matches!(event, MembershipEvent::Descheduled { .. });
    assert!(!sim.nodes.iter().any(|node| node.events.iter().any(accused)));
}

#[test]
fn all_but_one_leave_at_once() {
    for seed in 0..20 {
        let mut sim = Sim::formed(seed, 6);
        (0..5).for_each(|place| sim.leave(place));
        sim.run_until(ms(3_000), "they have left", |sim| (0..5).all(|place| sim.nodes[place].left));
        sim.run(ms(500));
        sim.assert_converged();
        assert_eq!(sim.newest().members.len(), 1);
    }
}

#[test]
fn a_late_request_brings_no_member_back() {
    let mut sim = Sim::formed(12, 3);
    sim.kill(2);
    sim.run_until(ms(1_500), "it is gone", |sim| sim.newest().members.len() == 2);
    let number = sim.newest().number;
    let request = |from: usize| {
        let body = MembershipBody::Request(vec![Change::Join(member(from, 1))]);
        (member(from, 1).id, MembershipMessage { cluster: None, view: 0, body })
    };
    let (from, message) = request(2);
    let now = sim.now;
    for place in [0, 1] {
        sim.nodes[place].machine.handle_message(now, from.clone(), message.clone());
    }
    sim.run(ms(1_000));
    assert_eq!(sim.newest().number, number);
    // A member that asks once more is told the view.
    let (from, message) = request(1);
    sim.nodes[0].machine.handle_message(sim.now, from, message);
    let answer = sim.nodes[0].machine.poll_output();
    assert!(
        matches!(answer, Some(Output::Send { message: MembershipMessage { body: MembershipBody::Newest(_), .. }, .. })),
        "{answer:?}"
    );
}

#[test]
fn spares_are_watched_and_watch_a_lonely_ring() {
    let mut sim = Sim::new(13);
    sim.found(member(0, 1));
    for i in 1..5 {
        sim.join(super::Member { role: Role::Spare, ..member(i, 1) });
    }
    sim.run_until(ms(2_000), "all have joined", Sim::converged);
    sim.kill(0);
    sim.run_until(ms(1_500), "the only ring member is missed", |sim| sim.newest().members.len() == 4);
    sim.silence(3);
    sim.run_until(ms(1_500), "a spare is missed", |sim| sim.newest().members.len() == 3);
    sim.assert_converged();
}

#[test]
fn a_broken_link_alone_kills_no_member() {
    let mut sim = Sim::formed(14, 6);
    for round in 0..30 {
        let (a, b) = (round % 6, (round + 1 + round / 6) % 6);
        if a != b {
            sim.break_link(a, b);
        }
        let pause = sim.random.duration(ms(200));
        sim.run(pause);
    }
    sim.run(ms(1_000));
    sim.assert_converged();
    assert_eq!(sim.newest().members.len(), 6);
    let suspected =
        |(_, event): &(_, MembershipEvent)| matches!(event, MembershipEvent::Suspected { reason: Reason::LinkBroken, .. });
    assert!(sim.nodes.iter().any(|node| node.events.iter().any(suspected)), "the watchers noticed");
}

#[test]
fn a_member_to_which_a_link_is_lost_leaves_though_it_lives() {
    let mut sim = Sim::formed(16, 5);
    let (sender, receiver) = (sim.id(1), sim.id(3));
    sim.lose_link(1, 3);
    sim.run_until(ms(1_000), "the receiver's departure", |sim| sim.newest().members.len() == 4);
    let members: Vec<NodeId> = sim.newest().members.iter().map(|member| member.id.clone()).collect();
    assert!(members.contains(&sender) && !members.contains(&receiver), "{members:?}");
}

#[test]
fn strangers_and_nonsense_change_nothing() {
    let mut sim = Sim::formed(15, 3);
    let mut other = Membership::bootstrap(sim.now, member(9, 9), Timing::default(), 1);
    other.handle_message(
        sim.now,
        member(0, 1).id,
        MembershipMessage { cluster: Some(sim.newest().cluster), view: 3, body: MembershipBody::Newest((*sim.newest()).clone()) },
    );
    let bad = std::iter::from_fn(|| other.poll_output())
        .any(|output| matches!(output, Output::Event(MembershipEvent::BadMessage { .. })));
    assert!(bad && other.view().unwrap().number == 1);
    let view = sim.newest();
    let ballot = |round, proposer: usize| Ballot { round, proposer: member(proposer, 1).id };
    let proposal = |round, proposer, changes| Proposal { ballot: ballot(round, proposer), changes };
    let nonsense = [
        MembershipBody::Prepare(ballot(1, 2)),
        MembershipBody::Prepare(ballot(0, 1)),
        MembershipBody::Accept(proposal(0, 1, vec![])),
        MembershipBody::Accept(proposal(1, 1, vec![Change::Dead(member(7, 1).id)])),
        MembershipBody::Accept(proposal(1, 1, vec![Change::Join(member(2, 5))])),
        MembershipBody::Newest(super::View { number: 0, ..(*view).clone() }),
        MembershipBody::Newest(super::View { members: vec![], number: 99, ..(*view).clone() }),
    ];
    let steps = MembershipBody::Steps(vec![vec![], vec![Change::Dead(member(7, 1).id)]]);
    let nonsense = nonsense.map(|body| (view.number, body)).into_iter().chain([(view.number + 2, steps)]);
    for (number, body) in nonsense {
        let what = format!("{body:?}");
        let message = MembershipMessage { cluster: Some(view.cluster), view: number, body };
        let machine = &mut sim.nodes[0].machine;
        machine.handle_message(sim.now, member(1, 1).id, message);
        let outputs: Vec<Output> = std::iter::from_fn(|| machine.poll_output()).collect();
        assert!(matches!(outputs[..], [Output::Event(MembershipEvent::BadMessage { .. })]), "{what}: {outputs:?}");
        assert_eq!(machine.view(), Some(&view));
    }
}

/// Random faults, then peace. Afterwards all members must agree, or be frozen for want of a majority.
fn random_run(seed: u64) -> Sim {
    let mut sim = Sim::new(seed);
    sim.found(member(0, 1));
    let mut names = 1 + sim.random.below(6) as usize;
    for i in 1..names {
        sim.join(member(i, 1));
    }
    if sim.random.below(2) == 0 {
        sim.run(ms(2_500));
    }
    let faults = 3 + sim.random.below(12);
    for _ in 0..faults {
        inject(&mut sim, &mut names);
        let most = if sim.random.below(2) == 0 { 30 } else { 1_500 };
        let pause = sim.random.duration(ms(most));
        sim.run(pause);
    }
    sim.end_faults();
    sim.run(ms(15_000));
    sim
}

fn inject(sim: &mut Sim, names: &mut usize) {
    let count = sim.nodes.len() as u64;
    let place = sim.random.below(count) as usize;
    let up = sim.is_up(place);
    let alive = sim.nodes.iter().filter(|node| matches!(node.state, State::Up | State::Paused)).count() as u64;
    match sim.random.below(16) {
        0 if up && alive > 2 => sim.kill(place),
        1 if up && alive > 2 => sim.silence(place),
        2 if up => {
            let messages = sim.random.below(30);
            sim.kill_after(place, messages);
        }
        3 | 4 => sim.pause(place),
        5 => (0..sim.nodes.len()).for_each(|place| sim.resume(place)),
        6 | 7 => {
            let other = sim.random.below(count) as usize;
            if other != place {
                sim.break_link(place, other);
            }
        }
        8 | 9 => {
            let (pattern, hold) = (sim.random.next(), sim.random.below(2) == 0);
            let apart: Vec<usize> = (0..sim.nodes.len()).filter(|place| pattern >> place & 1 == 1).collect();
            sim.cut(&apart, hold);
        }
        10 => sim.heal(),
        11 | 12 if alive < 9 => {
            // A new node, or one that is down comes back with another boot.
            let lives = sim.nodes.iter().filter(|node| node.member.id.name == sim.nodes[place].member.id.name);
            let down = lives.clone().all(|life| !matches!(life.state, State::Up | State::Paused));
            let boot = 1 + lives.count() as u64;
            let mut joiner = if down { member(name_of(sim, place), boot) } else { member(*names, 1) };
            *names += usize::from(!down);
            joiner.role =
                [Role::Node, Role::Node, Role::Node, Role::Node, Role::Spare, Role::Witness][sim.random.below(6) as usize];
            sim.join(joiner);
        }
        13 if up && alive > 1 => sim.leave(place),
        14 => sim.network = Network { delay: (ms(0), ms(1 + sim.random.below(300))), ..sim.network.clone() },
        15 => sim.network = Network { doubled: 100, reordered: 200, lost: sim.random.below(100), ..sim.network.clone() },
        _ => {}
    }
}

fn name_of(sim: &Sim, place: usize) -> usize {
    sim.nodes[place].member.id.name.as_str()[1..].parse().unwrap()
}

fn check_end(sim: &Sim) {
    let up = || sim.nodes.iter().filter(|node| node.state == State::Up);
    // A newer view that no live node knows of does not count.
    let known = up().filter_map(|node| node.machine.view()).max_by_key(|view| view.number);
    let Some(newest) = known else { return };
    let living = newest.members.iter().filter(|member| up().any(|node| node.member.id == member.id)).count();
    if 2 * living > newest.members.len() {
        return sim.assert_converged();
    }
    // A node that was made a member by one that died before it could tell goes on asking.
    for node in up() {
        let Some(view) = node.machine.view() else { continue };
        assert!(node.frozen.is_some() || view.members.len() == 1, "{:?} should be frozen:\n{}", node.member.id, sim.describe());
    }
}

/// How many seeds to try; `RADIC_SIM_SEEDS=from..to` for more.
fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("RADIC_SIM_SEEDS").unwrap_or_else(|_| "0..1000".to_owned());
    let (from, to) = text.split_once("..").expect("RADIC_SIM_SEEDS=from..to");
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn a_thousand_random_runs() {
    let (mut frozen, mut views, mut excluded) = (0, 0, 0);
    for seed in seeds() {
        let run = std::panic::catch_unwind(|| {
            let sim = random_run(seed);
            check_end(&sim);
            sim
        });
        let Ok(sim) = run else { panic!("seed {seed} fails (RADIC_SIM_SEEDS={seed}..{})", seed + 1) };
        frozen += u64::from(!sim.converged());
        views += sim.newest().number;
        excluded += sim.nodes.iter().filter(|node| node.excluded).count();
    }
    println!("{frozen} runs ended frozen; {views} views; {excluded} nodes were told that they are dead");
}

/// The checker must notice if less than a majority decides.
#[test]
fn the_checker_notices_a_broken_quorum() {
    let noticed = (0..20).any(|seed| {
        let run = std::panic::catch_unwind(|| {
            let mut sim = Sim::formed(seed, 6);
            for node in &mut sim.nodes {
                node.machine.quorum = |members| members / 2;
            }
            sim.cut(&[0, 2, 5], false);
            sim.run(ms(4_000));
        });
        let why = run.err().and_then(|why| why.downcast::<String>().ok());
        why.is_some_and(|why| why.contains("no majority of view") || why.contains("two views have one number"))
    });
    assert!(noticed);
}

fn nobody_has_a_view(sim: &Sim) -> bool {
    sim.nodes.iter().all(|node| node.machine.view().is_none())
}

/// Three nodes that have the same list, of which the first may found.
fn listed(sim: &mut Sim, number: usize, boot: u64) -> usize {
    let mut seeds: Vec<_> = (0..3).map(|i| member(i, 1).address).collect();
    seeds.retain(|seed| *seed != member(number, boot).address);
    if number == 0 { sim.join_or_found(member(0, boot), seeds, 1) } else { sim.join_through(member(number, boot), seeds) }
}

#[test]
fn the_first_of_a_list_founds_when_another_one_is_there() {
    for seed in 1..=20 {
        let mut sim = Sim::new(seed);
        listed(&mut sim, 0, 1);
        sim.run(ms(5_000));
        assert!(nobody_has_a_view(&sim), "alone it founds nothing");
        listed(&mut sim, 1, 1);
        listed(&mut sim, 2, 1);
        sim.run(ms(5_000));
        sim.assert_converged();
        assert_eq!(sim.newest().members.len(), 3);
    }
}

#[test]
fn the_others_of_a_list_found_nothing_without_the_first() {
    let mut sim = Sim::new(1);
    listed(&mut sim, 1, 1);
    listed(&mut sim, 2, 1);
    sim.run(ms(10_000));
    assert!(nobody_has_a_view(&sim));
}

#[test]
fn a_first_node_that_comes_back_joins_though_strangers_ask_it_to_be_let_in() {
    for seed in 1..=20 {
        let mut sim = Sim::new(seed);
        let first = listed(&mut sim, 0, 1);
        listed(&mut sim, 1, 1);
        listed(&mut sim, 2, 1);
        sim.run(ms(5_000));
        let founded = sim.newest().cluster;
        sim.kill(first);
        sim.run(ms(5_000));
        // It is not on the list, and asks only the first.
        sim.join_through(member(7, 1), vec![member(0, 2).address]);
        sim.run(ms(1_000));
        listed(&mut sim, 0, 2);
        sim.run(ms(10_000));
        sim.assert_converged();
        assert_eq!((sim.newest().cluster, sim.newest().members.len()), (founded, 4), "seed {seed}");
    }
}
