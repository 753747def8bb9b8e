//! Fences of a job whose nodes die.

use super::*;

impl Cluster {
    /// Every rank that has its answer does the next thing. `last`: the number of fences; then it finalizes and exits.
    fn go_through_fences(&mut self, job: JobId, all: u32, last: u64, what: &str) {
        let kvsname = |c: &Cluster, node: &NodeName| c.nodes[node].hosts.get(&job).map(|host| host.kvsname());
        for rank in 0..all {
            let Some((node, pretended)) = self.ranks.get(&at(job, rank)) else { continue };
            let (node, ended) = (node.clone(), pretended.ended);
            let Some(kvsname) = kvsname(self, &node).filter(|_| !ended && !self.dead.contains(&node)) else { continue };
            let (_, pretended) = self.ranks.get_mut(&at(job, rank)).expect("it is there");
            let (answers, program) = (&pretended.answers, &mut pretended.program);
            if program.lines.0 > program.lines.1 {
                let Some(answer) = answers.lines().nth(program.lines.1) else { continue };
                assert!(answer.contains("rc=0"), "{what}: rank {rank}: {answer:?} after {program:?}");
                program.lines.1 += 1;
            }
            if program.finalized {
                self.exit(at(job, rank), ExitStatus::Code(0));
                continue;
            }
            program.asked += 1;
            program.lines.0 += 1;
            let (number, kvs) = (program.fences + 1, format!("kvsname={kvsname}"));
            let line = match program.asked {
                1 if !std::mem::replace(&mut program.initialized, true) => {
                    program.asked = 0;
                    "cmd=init pmi_version=1 pmi_subversion=1".to_owned()
                }
                1 if program.fences == last => {
                    program.finalized = true;
                    "cmd=finalize".to_owned()
                }
                1 => format!("cmd=put {kvs} key=k{number}_{rank} value=v"),
                2 => "cmd=barrier_in".to_owned(),
                asked => {
                    let of = asked - 3;
                    if of + 1 == all {
                        (program.asked, program.fences) = (0, number);
                    }
                    format!("cmd=get {kvs} key=k{number}_{of}")
                }
            };
            self.pmi(at(job, rank), &line);
        }
    }
}

/// Nodes that host ranks and protect others, the home among them, die at random moments of a job that goes through fences, also
/// two of them: it comes to its end.
#[test]
fn a_fence_is_never_lost() {
    const RANKS: u32 = 4;
    const FENCES: u64 = 12;
    let seeds = std::env::var("RADIC_SIM_SEEDS")
        .ok()
        .and_then(|text| text.split_once("..").map(|(a, b)| (a.parse().ok(), b.parse().ok())));
    let (from, to) = match seeds {
        Some((Some(from), Some(to))) => (from, to),
        _ => (0, 300),
    };
    let mut restarts = 0;
    for seed in from..to {
        let mut random = Random::new(seed);
        let mut below = |bound: u64| random.next() % bound;
        let mut cluster = Cluster::new(7);
        let job = cluster.start_recoverable(7, RANKS);
        cluster.jitter = Some(Random::new(seed));
        let mut deaths: Vec<(Duration, usize)> = Vec::new();
        let first = 1 + below(5) as usize;
        deaths.push((cluster.now + Duration::from_micros(below(60_000)), first));
        if below(2) == 0 {
            let apart = [0, 3_000, 30_000, 2_000_000][below(4) as usize];
            let second = 1 + (first + below(4) as usize) % 5;
            deaths.push((deaths[0].0 + Duration::from_micros(below(apart + 1)), second));
        }
        let mut crash = (below(3) == 0).then(|| (cluster.now + Duration::from_micros(below(90_000)), below(RANKS.into()) as u32));
        let what = format!("seed {seed}: nodes die: {deaths:?}, rank crashes: {crash:?}");
        let until = cluster.now + Duration::from_secs(30);
        for rank in 0..RANKS {
            // init was said already.
            cluster.ranks.get_mut(&at(job, rank)).expect("it runs").1.program =
                Program { initialized: true, lines: (1, 0), ..Program::default() };
        }
        while cluster.outcome(1).is_none() {
            assert!(cluster.now < until, "{what}: it hangs\n{}", cluster.story(job, RANKS));
            while deaths.first().is_some_and(|(at, _)| *at <= cluster.now) {
                let (_, node) = deaths.remove(0);
                cluster.kill_all(&[node]);
            }
            if let Some((_, rank)) = crash.take_if(|(at, rank)| *at <= cluster.now && cluster.runs(job, *rank)) {
                cluster.crash(job, rank);
            }
            cluster.run_for(Duration::from_micros(500 + below(1_500)));
            let rank = below(RANKS.into()) as u32;
            if below(20) == 0 && cluster.can_commit(job, rank) {
                let fences = cluster.ranks[&at(job, rank)].1.program.fences;
                cluster.commit(job, rank, fences);
            }
            cluster.go_through_fences(job, RANKS, FENCES, &what);
        }
        restarts += usize::from(cluster.launched.len() > RANKS as usize);
        assert_eq!(cluster.outcome(1), Some(Outcome { code: 0, reason: EndReason::Finished }), "{what}");
        cluster.run_for(SOON);
        assert!(cluster.nothing_left(), "{what}");
    }
    let all = (to - from) as usize;
    assert!(restarts * 2 < all, "{restarts} of {all} jobs have restarted: nothing else was tried");
}
