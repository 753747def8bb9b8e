//! Ranks that are killed again and again, before they are live and soon after: images of second, third and hundredth incarnations, made at any moment of them, and each restores.
//!
//! `make lives RESTORES=10000`, for as many restores; each job has a seed of its own, which is printed before it: `make lives SEED=N` begins with that one.
#![forbid(unsafe_code)]

use std::num::NonZero;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::thread::{available_parallelism, panicking, scope, sleep};
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind, Setup};
use radic_tests::library::{LIBRARIES, Library};
use radic_tests::process::eventually;
use radic_tests::random::Random;
use radic_tests::recovery::{RANKS, SOON, command_of, due, expect_same, first_checkpoints};
use radic_wire::event::{Event, EventName};
use radic_wire::ids::JobId;
use radic_wire::report::ProcessInfo;

/// Images in quick succession: as soon as a process is live, and all the time.
const FLAGS: &str = "--protect on --ckpt-interval 0.15";
/// Time for one job, which gets on only between deaths.
const LIMIT: Duration = Duration::from_secs(1200);
/// Restores when nothing else is said: some of each library.
const SAMPLE: usize = 12;
/// Restores in one job; then it is left alone until it ends.
const OF_A_JOB: usize = 150;
/// A rank is killed at most so many milliseconds after one that was killed is live again.
const WITHIN: usize = 200;
/// One of so many restores is cut short by another death.
const CUT_SHORT: usize = 4;
/// At most so many milliseconds after it was restored.
const CUT_WITHIN: usize = 20;
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("rounds", &["--rounds", "3000", "--mib", "1", "--pause", "1"]),
    ("ring", &["--laps", "2500"]),
    ("master_worker", &["--tasks", "12000"]),
    ("collectives", &["--rounds", "400"]),
];

/// One job, and what has become of those that were killed.
struct Lives<'a> {
    cluster: &'a Cluster,
    job: JobId,
    events: radic_tests::client::Events,
    restores: usize,
}

impl Lives<'_> {
    /// Kills a rank, if it runs.
    fn kill(&self, rank: usize) -> bool {
        let words = ["inject", "kill-rank", &self.job.to_string(), &rank.to_string()].map(str::to_owned);
        self.cluster.radic(words).limit(SOON).run().code() == Some(0)
    }

    /// The next event of this kind of a rank. None: the job has ended.
    fn next(&mut self, name: EventName, rank: usize) -> Option<Event> {
        let job = Some(self.job);
        let counts = |event: &Event| {
            let of_rank = event.event == name && event.rank.is_some_and(|of| of.0 as usize == rank);
            event.job == job && (of_rank || event.event == EventName::JobEnd)
        };
        let found = self.events.expect(&format!("{} of rank {rank}", name.as_str()), SOON, counts);
        Some(found).filter(|found| found.event == name)
    }

    /// A rank dies and comes back, perhaps twice. False: the job has ended.
    fn strike(&mut self, random: &mut Random) -> bool {
        let rank = random.below(RANKS);
        sleep(Duration::from_millis(random.below(WITHIN) as u64));
        if !self.kill(rank) {
            // It has ended by itself, and so will the others.
            let is_end = |event: &Event| event.event == EventName::JobEnd && event.job == Some(self.job);
            self.events.expect("the end of the job", SOON, is_end);
            return false;
        }
        if random.below(CUT_SHORT) == 0 {
            if self.next(EventName::Replay, rank).is_none() {
                return false;
            }
            self.restores += 1;
            sleep(Duration::from_millis(random.below(CUT_WITHIN) as u64));
            // It may be live already: then this is one more death of a live rank.
            if self.kill(rank) && self.next(EventName::Replay, rank).is_none() {
                return false;
            }
        }
        let lives = self.next(EventName::Live, rank).is_some();
        self.restores += usize::from(lives);
        lives
    }

    /// No rank has died but of what was done here, and the job has not restarted from its beginning.
    fn check(&self, what: &str) {
        let of_job = self.events.seen().iter().filter(|event| event.job == Some(self.job));
        let explained = |event: &&Event| event.event != EventName::Death || event.text.contains("SIGKILL");
        let wrong = of_job.filter(|event| event.event == EventName::Restart || !explained(event)).collect::<Vec<_>>();
        assert!(wrong.is_empty(), "{what}: {wrong:#?}");
    }
}

/// One job from its start to its end; restores.
fn run(library: &Library, program: (&str, &[&str]), most: usize, random: &mut Random) -> usize {
    let what = format!("{} {}", library.name, program.0);
    let cluster = Setup::new(Kind::Logical, 3).start();
    let command = command_of(library, program);
    let due = due(library, &cluster, &command);
    let mut events = cluster.events_at("n1");
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let running = library.job(&cluster, RANKS, FLAGS, &words).limit(LIMIT).start();
    let job = first_checkpoints(&mut events, RANKS);
    // An image of before MPI_Init restarts nothing, as documented: what each makes once all have sent something is of after it.
    eventually(SOON, "each rank to have sent something", || {
        let status = cluster.status_at("n1");
        let sent = |process: &ProcessInfo| process.counters.as_ref().is_some_and(|counters| counters.messages_out > 0);
        status.processes.iter().filter(|process| process.job == job && sent(process)).count() == RANKS
    });
    cluster.radic(["checkpoint", &job.to_string()]).limit(SOON).run().expect(0);
    let mut lives = Lives { cluster: &cluster, job, events, restores: 0 };
    while lives.restores < most && lives.strike(random) {}
    expect_same(&cluster, running, &due, &what);
    lives.check(&what);
    let restores = lives.restores;
    cluster.assert_idle();
    cluster.stop();
    restores
}

#[test]
fn every_image_of_a_later_incarnation_restores() {
    let number =
        |name| std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")));
    let wanted = number("RADIC_RESTORES").unwrap_or(SAMPLE as u64) as usize;
    let first = Random::from_environment().number();
    let first = number("RADIC_SEED").unwrap_or(first >> 16);
    let progress = Progress { wanted, first, begun: Instant::now(), next: AtomicU64::new(first), restores: AtomicUsize::new(0) };
    let at_once = available_parallelism().map_or(1, NonZero::get);
    scope(|threads| {
        for _ in 0..at_once {
            threads.spawn(|| progress.work());
        }
    });
}

/// What the jobs of one run have done together: as many run at once as there are processors.
struct Progress {
    wanted: usize,
    first: u64,
    begun: Instant,
    /// The seed of the next job.
    next: AtomicU64,
    restores: AtomicUsize,
}

/// A worker. One that fails lets the others begin no other job.
struct Working<'a>(&'a Progress);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if panicking() {
            self.0.restores.fetch_add(self.0.wanted, Relaxed);
        }
    }
}

impl Progress {
    /// Runs one job after the other until there were enough restores, and one job of each library.
    fn work(&self) {
        let _working = Working(self);
        loop {
            let seed = self.next.fetch_add(1, Relaxed);
            if self.restores.load(Relaxed) >= self.wanted && seed >= self.first + LIBRARIES.len() as u64 {
                return;
            }
            let mut random = Random::new(seed);
            let library = &LIBRARIES[seed as usize % LIBRARIES.len()];
            let program = PROGRAMS[random.below(PROGRAMS.len())];
            println!("seed {seed}: {} {}", library.name, program.0);
            let restores = run(library, program, OF_A_JOB.min(self.wanted.div_ceil(3)), &mut random);
            let all = self.restores.fetch_add(restores, Relaxed) + restores;
            println!("seed {seed}: {restores} restores; {all} of {}, {:.0} s", self.wanted, self.begun.elapsed().as_secs_f64());
        }
    }
}
