//! Unmodified MPI programs: every library, every kind of node, results checked by the programs themselves.
//!
//! While each runs, the memory maps of its ranks are looked at again and again: no two ranks may share memory. Afterwards nothing
//! of it may be left, neither a process nor a file in shared memory.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::sharing::Sharing;
use radic_tests::{Finished, Running};
use serde_json::Value;

/// Time for one program.
const LIMIT: Duration = Duration::from_secs(60);
/// Time between two looks at the ranks' memory.
const LOOK: Duration = Duration::from_millis(40);
/// How long launching 32 ranks that do next to nothing may take, and their end, in relation to the library's own mpiexec: half to the whole of its time
/// on two cores. Ranks that wait for each other's time slices need many times as long.
const LAUNCH: f64 = 2.0;

/// An MPI library, as `make deps` installs it.
struct Library {
    name: &'static str,
    /// What `radic bench` calls it.
    mpi: &'static str,
    /// Below .deps/programs.
    programs: &'static str,
    /// What the path of the libmpi in use ends in, below .deps if that holds it.
    libmpi: &'static str,
    /// Below .deps: what LD_LIBRARY_PATH is to be.
    library_path: Option<&'static str>,
}

const MPICH: Library =
    Library { name: "mpich", mpi: "mpich", programs: "mpich", libmpi: "mpich/lib/libmpi.so", library_path: None };
// Its run-time has no compiler wrapper: it runs what MPICH's has made, for the two have one ABI.
const INTEL: Library =
    Library { name: "impi", mpi: "intel", programs: "mpich", libmpi: "impi/lib/libmpi.so", library_path: Some("impi/lib") };
const OPENMPI: Library =
    Library { name: "openmpi", mpi: "openmpi", programs: "openmpi", libmpi: "/libmpi.so.40", library_path: None };
const OPENMPI5: Library =
    Library { name: "openmpi5", mpi: "openmpi5", programs: "openmpi5", libmpi: "openmpi5/lib/libmpi.so.40", library_path: None };

/// Programs that end with a line `OK NAME ...`, with arguments that make them long enough to be looked at.
const PROGRAMS: [(&str, &[&str]); 6] = [
    ("ring", &["--laps", "500"]),
    ("pingpong", &[]),
    ("jacobi", &["--iterations", "1000"]),
    ("master_worker", &[]),
    ("collectives", &["--rounds", "150"]),
    ("one_exits_early", &["--rounds", "800"]),
];

/// What `make deps` installs.
fn deps() -> PathBuf {
    let deps = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join(".deps");
    assert!(deps.join("programs").is_dir(), "{} is missing: run `make deps`", deps.display());
    deps
}

impl Library {
    fn start(&self, cluster: &Cluster, ranks: usize, command: &[&str]) -> Running {
        let job = cluster.job(ranks, "", command).limit(LIMIT);
        let job = match self.library_path {
            Some(path) => job.env("LD_LIBRARY_PATH", deps().join(path)),
            None => job,
        };
        job.start()
    }

    /// Runs a program, and looks at its ranks' memory while it runs.
    fn run(&self, cluster: &Cluster, ranks: usize, command: &[&str], must_be_seen: bool) -> Finished {
        let job = self.start(cluster, ranks, command);
        let mut sharing = Sharing::default();
        while !job.ends_within(LOOK) {
            sharing.look(cluster.dir(), ranks);
        }
        let finished = job.wait();
        let violations = sharing.violations();
        assert!(violations.is_empty(), "ranks share memory:\n{}\n{finished}", violations.join("\n"));
        let wrong: Vec<_> = sharing.libraries.iter().filter(|path| !path.contains(self.libmpi)).collect();
        assert!(wrong.is_empty(), "{} runs with {wrong:?}", self.name);
        let failed = finished.code() != Some(0);
        assert!(failed || !must_be_seen || sharing.complete > 0, "the ranks were never seen all at once: {finished}");
        cluster.assert_idle();
        let name = Path::new(command[0]).file_name().unwrap_or_default().to_string_lossy();
        println!(
            "{:8} {name:16} {ranks:2} ranks {:5.2} s, {} looks",
            self.name,
            finished.elapsed.as_secs_f64(),
            sharing.complete
        );
        finished
    }

    fn program(&self, name: &str) -> String {
        let path = deps().join("programs").join(self.programs).join(name);
        assert!(path.is_file(), "{} is missing: run `make deps`", path.display());
        path.display().to_string()
    }

    fn run_program(&self, cluster: &Cluster, ranks: usize, name: &str, args: &[&str]) -> Finished {
        let program = self.program(name);
        let finished = self.run(cluster, ranks, &[&[program.as_str()], args].concat(), true).expect(0);
        let out = finished.stdout();
        let last = out.lines().last().unwrap_or_default();
        assert!(last.starts_with(&format!("OK {name} ")), "no OK: {finished}");
        finished
    }

    /// MPI_Abort ends all ranks with its code, whichever.
    fn run_abort(&self, cluster: &Cluster) {
        let program = self.program("abort");
        for (args, code) in [(&[][..], 7), (&["--code", "300"], 44), (&["--code", "256"], 1)] {
            let finished = self.run(cluster, 4, &[&[program.as_str()], args].concat(), false);
            finished.expect(code).expect_stderr(&["rank 3", "MPI_Abort"]);
        }
    }

    /// mpi4py's own tests.
    fn run_python(&self, cluster: &Cluster) {
        let python = deps().join(self.name).join("bin/python").display().to_string();
        let bench = |args: &[&str]| self.run(cluster, 4, &[&[python.as_str(), "-m", "mpi4py.bench"], args].concat(), false);
        let hello = bench(&["helloworld"]).expect(0);
        let out = hello.stdout();
        let mut lines: Vec<_> = out.lines().map(|line| line.split_once(" on ").map_or(line, |(hello, _)| hello)).collect();
        lines.sort_unstable();
        let expected: Vec<_> = (0..4).map(|rank| format!("Hello, World! I am process {rank} of 4")).collect();
        assert_eq!(lines, expected, "{hello}");
        let ring = bench(&["ringtest", "--loop", "700", "--size", "1000"]).expect(0);
        assert!(ring.stdout().contains("700 loops") && ring.stdout().contains("(4 processes, 1000 bytes)"), "{ring}");
    }

    /// Every program on four nodes: with addresses of their own where that can be had (what runs on logical nodes, `protect` compares with protection),
    /// and with RADIC_LONG=1 on each kind.
    fn run_all(&self) {
        let mut kinds = Kind::all();
        if !radic_tests::recovery::is_long() {
            kinds.drain(..kinds.len() - 1);
        }
        for kind in kinds {
            let then = Instant::now();
            println!("{} on {kind:?}", self.name);
            let cluster = Cluster::start(kind, 4);
            for (name, args) in PROGRAMS {
                self.run_program(&cluster, 4, name, args);
            }
            self.run_abort(&cluster);
            self.run_python(&cluster);
            cluster.stop();
            println!("{} on {kind:?}: {:.1?}", self.name, then.elapsed());
        }
    }

    /// More ranks than cores, several on a node: they share no memory either, and do not wait for each other's time slices.
    fn run_many(&self) {
        let cluster = Cluster::start(Kind::Logical, 4);
        self.run_program(&cluster, 8, "collectives", &["--rounds", "100"]);
        // What starting costs, not what protecting 32 processes on two cores does: each makes its first checkpoint there.
        let args = ["bench", "launch", "--mpi", self.mpi, "--pairs", "0", "--ranks", "32", "--launches", "1", "--json"];
        let finished = cluster.radic(args).limit(LIMIT).run().expect(0);
        let report: Value = serde_json::from_slice(finished.bytes()).expect("JSON");
        let ratio = report["launch"]["seconds"]["ratio"].as_f64().expect("a ratio");
        println!("{}: launching 32 ranks takes {ratio:.2} of what its mpiexec takes", self.name);
        assert!(ratio < LAUNCH, "{finished}");
        cluster.assert_idle();
        cluster.stop();
    }
}

/// What the other tests rely on: memory that two ranks do share is noticed.
#[test]
fn shared_memory_would_be_noticed() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let file = cluster.dir().join("shared");
    std::fs::write(&file, [0; 4096]).expect("a new file");
    let script =
        "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 4096); print('mapped', flush=True); input()";
    let python = deps().join("mpich/bin/python").display().to_string();
    let file = file.display().to_string();
    // Only rank 0 has an input to wait for; a child waits for the other.
    let shell = format!("sleep 1000 | {python} -c \"{script}\" {file}");
    let mut job = cluster.job(2, "", &["sh", "-c", &shell]).start();
    job.until("both ranks", |out, _| (out == "mapped\nmapped\n").then_some(()));
    let mut sharing = Sharing::default();
    sharing.look(cluster.dir(), 2);
    let violations = sharing.violations();
    assert!(violations.len() == 1 && violations[0].contains(&file), "{violations:?}");
    job.signal(rustix::process::Signal::TERM);
    job.wait().expect(143);
    cluster.stop();
}

#[test]
fn mpich_on_four_nodes() {
    MPICH.run_all();
}

#[test]
fn intel_mpi_on_four_nodes() {
    INTEL.run_all();
}

#[test]
fn open_mpi_on_four_nodes() {
    OPENMPI.run_all();
}

#[test]
fn open_mpi_5_on_four_nodes() {
    OPENMPI5.run_all();
}

#[test]
fn more_ranks_than_cores() {
    [MPICH, INTEL, OPENMPI, OPENMPI5].iter().for_each(Library::run_many);
}
