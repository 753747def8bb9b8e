//! Deaths in an allocation of a real Slurm, of five nodes on this machine: the job's result is that of the undisturbed program, and the allocation ends soon after it.
//!
//! One death of each kind, with a library that is drawn. `make slurm RUNS=20` makes a matrix of all kinds and all libraries of it: a line for each run and each cell, all
//! that failed at the end. One Slurm serves many runs; nodes that died come back in between, and what a failed run has left goes with its Slurm.
#![forbid(unsafe_code)]

use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::{LIBRARIES, Library};
use radic_tests::process;
use radic_tests::random::Random;
use radic_tests::recovery::{self, RANKS, SOON, any_library, due, story};
use radic_tests::slurm::{self, Slurm};
use radic_wire::event::EventName;
use radic_wire::ids::JobId;
use rustix::process::Signal;

/// Time for Slurm to end a job after its program.
const ENDED: Duration = Duration::from_secs(5);
/// Time for a program with a death in it to print its next line.
const LONG: Duration = Duration::from_secs(120);
/// It prints a line each 100 iterations.
const PROGRAM: [&str; 8] = ["--size", "400", "--iterations", "6000", "--progress", "100", "--alone", "0"];
/// The death comes after the first checkpoints and so many lines, at most.
const LINES: usize = 30;

/// What dies while the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dies {
    /// A node with ranks: all that is in it.
    Node,
    /// The node of the script, which is also that of the terminal.
    Script,
    /// The srun that has started all nodes.
    Srun,
    /// The protector of a node with ranks.
    Daemon,
}

const DEATHS: [Dies; 4] = [Dies::Node, Dies::Script, Dies::Srun, Dies::Daemon];

/// A Slurm and its folder, which goes last.
struct Place {
    slurm: Slurm,
    cluster: Cluster,
}

impl Place {
    fn new() -> Place {
        let cluster = Cluster::empty(Kind::Logical);
        Place { slurm: Slurm::start(&cluster, 5), cluster }
    }
}

/// One run of the program in an allocation.
struct Run<'a> {
    slurm: &'a mut Slurm,
    cluster: &'a Cluster,
    job: String,
}

impl Run<'_> {
    fn submit<'a>(slurm: &'a mut Slurm, cluster: &'a Cluster, library: &Library) -> Run<'a> {
        let path = library.library_path().map_or_else(String::new, |path| format!("export LD_LIBRARY_PATH={}\n", path.display()));
        let script = format!(
            "{path}radic cluster start --slurm --spares 1 && echo started\n\
             radic run -n {RANKS} --ckpt-interval 0.5 -- {} >{result}\necho code $?\nradic cluster stop\n",
            command(library).join(" "),
            result = cluster.dir().join("result").display(),
        );
        let job = slurm.submit(cluster, "--no-kill", &["-N5"], &script);
        slurm.until(&job, "started\n", SOON);
        Run { slurm, cluster, job }
    }

    /// Something dies at a moment that is drawn. The job, and what it was.
    fn strike(&mut self, dies: Dies, random: &mut Random) -> (JobId, String) {
        let mut events = self.cluster.events_at("v1");
        let job = recovery::first_checkpoints(&mut events, RANKS);
        let lines = random.below(LINES);
        process::eventually(LONG, "the moment to come", || self.printed().lines().count() >= lines);
        let over = events.wait(Duration::ZERO, |event| event.event == EventName::JobEnd);
        assert!(over.is_none(), "the job ended before the death");
        let hosts = self.cluster.status().nodes.into_iter().filter(|node| !node.ranks.is_empty() && node.name.as_str() != "v1");
        let hosts: Vec<String> = hosts.map(|node| node.name.to_string()).collect();
        let drawn = &hosts[random.below(hosts.len())];
        let victim = match dies {
            Dies::Node => self.kill(drawn),
            Dies::Script => self.kill("v1"),
            Dies::Srun => self.kill_srun(),
            Dies::Daemon => {
                self.cluster.kill(drawn);
                drawn.clone()
            }
        };
        (job, format!("{victim} after {lines} lines"))
    }

    fn kill(&mut self, node: &str) -> String {
        self.slurm.kill(self.cluster, node);
        node.to_owned()
    }

    /// It alone: what would end the step after it is not there any more.
    fn kill_srun(&self) -> String {
        let marked = process::marked(self.cluster.dir());
        let sruns = marked.iter().filter(|process| process::command_line(process.pid()).contains("srun --job-name=radic"));
        assert_eq!(sruns.map(|srun| srun.signal(Signal::KILL)).count(), 1, "there is an srun, and no child of it");
        "srun".to_owned()
    }

    /// The result of the program, whose code is 0, as a user gets it.
    fn result(&self, dies: Dies, job: JobId) -> Vec<String> {
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        if dies == Dies::Script {
            assert_eq!(self.state(), "RUNNING", "the allocation stays");
            // Until another node has taken the place of its home it may be that no node knows of it.
            process::eventually(SOON, "a node to know of the job", || !self.cluster.status_at("v2").jobs.is_empty());
            return lines(&self.cluster.radic(["attach", &job.to_string()]).limit(5 * LONG).run().expect(0).stdout());
        }
        let (mut length, mut since) = (0, Instant::now());
        while !self.slurm.said(&self.job).contains("code ") {
            if self.printed().len() > length {
                (length, since) = (self.printed().len(), Instant::now());
            }
            let end = self.printed().lines().last().unwrap_or_default().to_owned();
            assert!(since.elapsed() < LONG, "the program prints nothing for {LONG:?} after {end:?}");
            // No event tells of either.
            std::thread::sleep(Duration::from_millis(20));
        }
        let said = self.slurm.said(&self.job);
        assert!(said.contains("code 0\n"), "{said}");
        lines(&self.printed())
    }

    /// What the program has printed so far, if the script's node has not died.
    fn printed(&self) -> String {
        fs::read_to_string(self.cluster.dir().join("result")).unwrap_or_default()
    }

    fn state(&self) -> String {
        self.slurm.state(self.cluster, &self.job)
    }

    /// How long after the program's end the allocation ends, by itself: not killed, nor queued again; if the script is lost, by what one of its nodes does.
    fn end(&self) -> Duration {
        let over = Instant::now();
        let mut states: Vec<(String, Duration)> = Vec::new();
        while states.last().is_none_or(|(last, _)| last != "COMPLETED") {
            assert!(over.elapsed() < SOON, "the job does not end as COMPLETED: {states:?}");
            let state = self.state();
            if states.last().is_none_or(|(last, _)| *last != state) {
                states.push((state, over.elapsed()));
            }
            // No event tells of a job's state.
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(over.elapsed() < ENDED, "the job ends too late: {states:?}");
        over.elapsed()
    }
}

fn command(library: &Library) -> Vec<String> {
    recovery::command_of(library, ("jacobi", &PROGRAM))
}

/// A run with a death in it. What died, and how long after the program the allocation has ended.
fn one(place: &mut Place, cluster: &Cluster, cell: &Cell, due: &[String], random: &mut Random) -> (String, Duration) {
    place.slurm.revive(&place.cluster);
    let mut run = Run::submit(&mut place.slurm, cluster, cell.library);
    let said = catch_unwind(AssertUnwindSafe(|| {
        let (job, victim) = run.strike(cell.dies, random);
        let result = run.result(cell.dies, job);
        let ended = run.end();
        assert_eq!(result, due, "{victim}: another result than that of the undisturbed program");
        cluster.expect_gone();
        (victim, ended)
    }));
    said.unwrap_or_else(|why| {
        let (state, script) = (run.state(), run.slurm.said(&run.job));
        println!("--- the job is {state}, and its script has said\n{script}\n--- events\n{}", story(cluster));
        println!("--- slurmctld\n{}\n--- status\n{}", run.slurm.log(), cluster.radic(["status", "--json"]).run().stdout());
        std::panic::resume_unwind(why)
    })
}

/// What `panic!` was told.
fn text(why: &(dyn Any + Send)) -> String {
    let text = why.downcast_ref::<String>().map(String::as_str).or_else(|| why.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").lines().next().unwrap_or_default().to_owned()
}

/// Runs of one kind of death with one library.
struct Cell {
    dies: Dies,
    library: &'static Library,
}

impl Cell {
    fn name(&self) -> String {
        format!("{}:{}", format!("{:?}", self.dies).to_lowercase(), self.library.name)
    }

    /// Whether it is named: as a whole, by what dies, by its library, or with all others.
    fn is_meant_by(&self, only: &str) -> bool {
        only.is_empty() || self.name() == only || self.name().split(':').any(|part| part == only)
    }

    /// Runs with consecutive seeds. What failed.
    fn run(&self, place: &mut Option<Place>, seeds: std::ops::Range<u64>) -> Vec<String> {
        let (name, count) = (self.name(), seeds.end - seeds.start);
        let (mut failed, mut times) = (Vec::new(), Vec::new());
        let undisturbed = Cluster::start(Kind::Logical, 2);
        let due = due(self.library, &undisturbed, &command(self.library));
        undisturbed.stop();
        for seed in seeds {
            let begun = Instant::now();
            let cluster = Cluster::empty(Kind::Logical);
            let here = place.get_or_insert_with(Place::new);
            let run = || one(here, &cluster, self, &due, &mut Random::new(seed));
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok((victim, ended)) => {
                    println!("{name} SEED={seed}: right, {victim} dead, ended {ended:.1?} after, {:.1?}", begun.elapsed());
                    times.push(ended);
                }
                Err(why) => {
                    let line = format!("make slurm RUNS=1 ONLY={name} SEED={seed}: {}", text(&*why));
                    println!("FAILED: {line}");
                    failed.push(line);
                    *place = None;
                }
            }
        }
        let (least, most) = (times.iter().min().copied().unwrap_or_default(), times.iter().max().copied().unwrap_or_default());
        println!("CELL {name}: {} of {count} right, the job ended {least:.1?} to {most:.1?} after its program", times.len());
        failed
    }
}

/// What is to be run: all of a matrix or the named part of it, or one of each death.
fn cells(runs: Option<u64>, random: &mut Random) -> Vec<Cell> {
    let only = std::env::var("RADIC_ONLY").unwrap_or_default();
    let libraries = |dies| LIBRARIES.iter().map(move |library| Cell { dies, library });
    match runs {
        Some(_) => DEATHS.into_iter().flat_map(libraries).filter(|cell| cell.is_meant_by(&only)).collect(),
        None => DEATHS.into_iter().map(|dies| Cell { dies, library: any_library(random) }).collect(),
    }
}

#[test]
fn whatever_dies_the_job_ends_well_and_its_allocation_with_it() {
    if let Some(why) = slurm::missing() {
        println!("SKIPPED: {why}");
        return;
    }
    let runs = std::env::var("RADIC_RUNS").ok().map(|runs| runs.parse().expect("RADIC_RUNS is a number"));
    let (first, mut random) = Random::seed_from_environment();
    let mut place = None;
    let cells = cells(runs, &mut random);
    assert!(!cells.is_empty(), "RADIC_ONLY names no cell: they are called node:mpich and so on");
    let failed: Vec<String> = cells.iter().flat_map(|cell| cell.run(&mut place, first..first + runs.unwrap_or(1))).collect();
    assert!(failed.is_empty(), "{} runs failed:\n{}", failed.len(), failed.join("\n"));
}
