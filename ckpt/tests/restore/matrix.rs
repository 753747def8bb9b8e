//! Each program in each way to save it, with and without address randomisation, as root and as an ordinary user, through three
//! generations: saved, killed with SIGKILL, restored; at last its exit status and every file it wrote are those of an undisturbed run.
//! A sample of the combinations, with RADIC_LONG=1 all of them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use radic_ckpt::control;

use crate::harness::{self, Images, Process, Random, WAYS, Way};

/// The ordinary user, where the tests run as root.
const NOBODY: u32 = 65534;
/// So often a program is started to see all generations of it.
const ATTEMPTS: usize = 4;
/// Increments before a kill.
const INCREMENTS: usize = 3;
/// Set for the tests' second process, which is the ordinary user's: the folder prepared by root.
const HOME_VARIABLE: &str = "RADIC_MATRIX_HOME";
/// Set with it: which combination was drawn.
const DRAWN_VARIABLE: &str = "RADIC_MATRIX_DRAWN";

/// How a program is made or found.
enum Made {
    /// Compiled from tests/programs: compiler, its flags, source.
    Compiled(&'static str, &'static [&'static str], &'static str),
    /// Compiled by MPICH's wrapper below .deps.
    Mpich(&'static str),
    /// A program of the system, and a file of tests/programs it gets as its last argument.
    Interpreted(&'static str, &'static str),
    /// A program of the system, and bytes that it gets as a file: so many times as much work.
    Fed(&'static str, fn(u32) -> Vec<u8>),
}

struct Program {
    /// The test's name, too.
    name: &'static str,
    made: Made,
    /// `{input}` stands for the file's path.
    arguments: &'static [&'static str],
    /// From when on it is saved.
    begun: fn(&Path) -> bool,
    /// Beyond the comparison, after so many times as much work.
    check: fn(&Path, u32),
    /// Not worth more than one combination and generation in a sample. Takes its time while it is saved: its argument is a file that
    /// appears when that is done.
    large: bool,
}

const NO_CHECK: fn(&Path, u32) = |_, _| ();

const PROGRAMS: &[Program] = &[
    Program {
        name: "counter",
        made: Made::Compiled("gcc", &[], "counter.c"),
        arguments: &[],
        begun: wrote,
        check: NO_CHECK,
        large: false,
    },
    Program {
        name: "threads",
        made: Made::Compiled("gcc", &[], "threads.c"),
        arguments: &[],
        begun: wrote,
        check: NO_CHECK,
        large: false,
    },
    Program {
        name: "openmp",
        made: Made::Compiled("gcc", &["-fopenmp"], "openmp.c"),
        arguments: &[],
        begun: wrote,
        check: NO_CHECK,
        large: false,
    },
    Program {
        name: "numpy",
        made: Made::Interpreted("/usr/bin/python3", "arrays.py"),
        arguments: &["{input}"],
        begun: wrote,
        check: NO_CHECK,
        large: false,
    },
    Program {
        name: "perl",
        made: Made::Interpreted("/usr/bin/perl", "hash.pl"),
        arguments: &["{input}"],
        begun: wrote,
        check: NO_CHECK,
        large: false,
    },
    Program {
        name: "sqlite",
        made: Made::Fed("/usr/bin/sqlite3", statements),
        arguments: &["database", ".read {input}"],
        // What it creates after a checkpoint is not taken back: not before the log is there.
        begun: |place| fs::metadata(place.join("database-wal")).is_ok_and(|data| data.len() > 0),
        check: database,
        large: false,
    },
    Program {
        name: "gzip",
        made: Made::Fed("/usr/bin/gzip", |times| data(40_000_000 * times)),
        arguments: &["-9", "-c", "{input}"],
        begun: wrote,
        check: NO_CHECK,
        large: false,
    },
    Program {
        name: "xz",
        made: Made::Fed("/usr/bin/xz", |times| data(4_000_000 * times)),
        arguments: &["-6", "-T1", "-c", "{input}"],
        begun: wrote,
        check: NO_CHECK,
        large: false,
    },
    Program {
        name: "heap",
        made: Made::Compiled("gcc", &[], "heap.c"),
        arguments: &[],
        begun: wrote,
        check: NO_CHECK,
        large: true,
    },
    Program {
        name: "exceptions",
        made: Made::Compiled("g++", &[], "exceptions.cpp"),
        arguments: &[],
        begun: wrote,
        check: NO_CHECK,
        large: false,
    },
    Program {
        name: "fortran",
        made: Made::Compiled("gfortran", &[], "units.f90"),
        arguments: &[],
        begun: wrote,
        check: NO_CHECK,
        large: false,
    },
    Program { name: "mpich", made: Made::Mpich("singleton.c"), arguments: &[], begun: wrote, check: NO_CHECK, large: false },
];

#[test]
fn counter() {
    survives("counter");
}

#[test]
fn threads() {
    survives("threads");
}

#[test]
fn openmp() {
    survives("openmp");
}

#[test]
fn numpy() {
    survives("numpy");
}

#[test]
fn perl() {
    survives("perl");
}

#[test]
fn sqlite() {
    survives("sqlite");
}

#[test]
fn gzip() {
    survives("gzip");
}

#[test]
fn xz() {
    survives("xz");
}

#[test]
fn heap() {
    survives("heap");
}

#[test]
fn exceptions() {
    survives("exceptions");
}

#[test]
fn fortran() {
    survives("fortran");
}

#[test]
fn mpich() {
    survives("mpich");
}

/// Bytes that compress a little, slowly.
fn data(length: u32) -> Vec<u8> {
    let mut state = 1u64;
    let byte = |i: u32| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        if i.is_multiple_of(3) { (state >> 60) as u8 } else { (i >> 8) as u8 }
    };
    (0..length).map(byte).collect()
}

const TRANSACTIONS: u32 = 800;
const ROWS: u32 = 200;

/// A database in WAL mode: many transactions, an index, a table that shrinks.
fn statements(times: u32) -> Vec<u8> {
    let mut text = String::from(
        "PRAGMA journal_mode = WAL;\nCREATE TABLE numbers (id INTEGER PRIMARY KEY, value INTEGER NOT NULL, text TEXT NOT NULL);\n\
         CREATE INDEX by_value ON numbers (value);\nCREATE TABLE some (value INTEGER NOT NULL);\n",
    );
    for i in 1..=TRANSACTIONS * times {
        text += &format!(
            "BEGIN;\nINSERT INTO numbers (value, text) WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {ROWS})\
             SELECT n * 7919 * {i} % 10007, hex (n * {i}) FROM c;\nINSERT INTO some VALUES ({i}), ({i} * 3);\n\
             DELETE FROM some WHERE value % 2 = 1;\nCOMMIT;\n"
        );
    }
    text.into_bytes()
}

fn database(place: &Path, times: u32) {
    let question = "PRAGMA integrity_check; SELECT count (*), min (id), max (id) FROM numbers;";
    let output = Command::new("/usr/bin/sqlite3").arg(place.join("database")).arg(question).output().unwrap();
    let rows = TRANSACTIONS * times * ROWS;
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("ok\n{rows}|1|{rows}\n"), "{output:?}");
}

#[derive(Clone, Copy, Debug)]
struct Combination {
    way: Way,
    aslr: bool,
    /// As the ordinary user, where the tests run as root.
    ordinary: bool,
    generations: u32,
}

/// All combinations, or a sample that is another one for each program: one as root and one as an ordinary user, of which one is `drawn`.
fn combinations(program: usize, drawn: usize) -> Vec<Combination> {
    let mut all = Vec::new();
    for way in WAYS {
        for aslr in [true, false] {
            all.extend([false, true].map(|ordinary| Combination { way, aslr, ordinary, generations: 3 }));
        }
    }
    if harness::long() {
        return all;
    }
    // In turn through all generations and through one: the numbers are not divisors of each other's.
    let (first, second) = if program.is_multiple_of(2) { (3, 1) } else { (1, 3) };
    let sample = [(2 * program, first), (2 * program + 3, second)];
    let (index, generations) = if PROGRAMS[program].large { (8, 1) } else { sample[drawn % sample.len()] };
    vec![Combination { generations, ..all[index % all.len()] }]
}

/// The test of one program.
fn survives(name: &str) {
    let index = PROGRAMS.iter().position(|program| program.name == name).unwrap();
    let program = &PROGRAMS[index];
    let mut random = Random::new(name);
    if let Some(home) = std::env::var_os(HOME_VARIABLE) {
        let home = Home { path: home.into(), times: 1 };
        let drawn = std::env::var(DRAWN_VARIABLE).unwrap().parse().unwrap();
        let all = combinations(index, drawn).into_iter().filter(|combination| combination.ordinary);
        all.for_each(|combination| home.survives_all(program, combination, &home.path.join("nobody"), &mut random));
        return;
    }
    let drawn = random.below(2) as usize;
    let (mine, others): (Vec<_>, Vec<_>) =
        combinations(index, drawn).into_iter().partition(|combination| !(harness::root() && combination.ordinary));
    let folder = tempfile::tempdir().unwrap();
    let home = Home::prepare(program, folder.path(), 1);
    mine.into_iter().for_each(|combination| home.survives_all(program, combination, &home.path, &mut random));
    if !others.is_empty() {
        home.as_nobody(name, drawn);
    }
}

/// A folder with a program and the result of its undisturbed run.
struct Home {
    path: PathBuf,
    /// So many times as much work as at first.
    times: u32,
}

impl Home {
    fn prepare(program: &Program, path: &Path, times: u32) -> Self {
        let home = Self { path: path.into(), times };
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        match program.made {
            Made::Compiled(compiler, flags, source) => drop(harness::compile_with(Path::new(compiler), flags, source, path)),
            Made::Mpich(source) => home.compile_mpich(source),
            Made::Interpreted(_, source) => drop(fs::copy(harness::source(source), path.join("input")).unwrap()),
            Made::Fed(_, bytes) => fs::write(path.join("input"), bytes(times)).unwrap(),
        }
        let place = home.place(path, "undisturbed");
        let mut process = Process::start(program.name, &mut home.command(program, &place));
        let status = process.wait();
        let errors = fs::read_to_string(place.join("errors")).unwrap();
        assert!(status.code().is_some() && errors.is_empty(), "undisturbed: {status}: {errors}(run scripts/deps.sh?)");
        fs::write(path.join("status"), status.to_string()).unwrap();
        (program.check)(&place, times);
        home
    }

    /// With MPICH's library beside it: the ordinary user may not get to the repository.
    fn compile_mpich(&self, source: &str) {
        let mpich = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.deps/mpich");
        harness::compile_with(&mpich.join("bin/mpicc"), &["-Wl,-rpath,$ORIGIN,--disable-new-dtags"], source, &self.path);
        let mut copy = Command::new("cp");
        copy.arg("-r").args([mpich.join("lib/libmpi.so.12"), mpich.join("lib/mpich")]).arg(&self.path);
        assert!(copy.status().unwrap().success(), "{copy:?}: run scripts/deps.sh");
    }

    fn place(&self, below: &Path, name: &str) -> PathBuf {
        let place = below.join(name);
        fs::create_dir(&place).unwrap_or_else(|e| panic!("{}: {e}", place.display()));
        place
    }

    fn command(&self, program: &Program, place: &Path) -> Command {
        let input = self.path.join("input");
        let input = input.to_str().unwrap();
        let mut command = match program.made {
            Made::Compiled(_, _, source) | Made::Mpich(source) => Command::new(self.path.join(source).with_extension("")),
            Made::Interpreted(name, _) | Made::Fed(name, _) => {
                assert!(Path::new(name).exists(), "{name} is missing: run scripts/deps.sh");
                Command::new(name)
            }
        };
        command.args(program.arguments.iter().map(|argument| argument.replace("{input}", input)));
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(place).stdin(Stdio::null());
        command.stdout(harness::create(&place.join("output"))).stderr(harness::create(&place.join("errors")));
        command
    }

    /// The same combinations, in a process of the ordinary user.
    fn as_nobody(&self, name: &str, drawn: usize) {
        let tests = self.path.join("tests");
        // Another process writes what is executed: a descriptor of this one may be in a child that another test has just forked, and the file would be busy.
        let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&tests).status().unwrap();
        assert!(copied.success());
        let library = harness::library();
        fs::copy(&library, self.path.join(library.file_name().unwrap())).unwrap();
        chown(self.place(&self.path, "nobody"), Some(NOBODY), Some(NOBODY)).unwrap();
        let mut command = Command::new(tests);
        command.args(["--exact", &format!("matrix::{name}"), "--nocapture"]).uid(NOBODY).gid(NOBODY).current_dir(&self.path);
        command.env_clear().env("PATH", "/usr/bin:/bin").env(HOME_VARIABLE, &self.path).env(DRAWN_VARIABLE, drawn.to_string());
        command.envs(std::env::vars_os().filter(|(name, _)| name == "RADIC_LONG" || name == "RADIC_SEED"));
        // It bounds its waits itself.
        let output = command.stdin(Stdio::null()).output().unwrap_or_else(|e| {
            panic!("{}: {e}: can an ordinary user get there? TMPDIR names another folder", self.path.display());
        });
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().filter(|line| line.starts_with(name)).for_each(|line| println!("{line}"));
        assert!(output.status.success(), "as an ordinary user:\n{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("1 passed"), "the test did not run: {text}");
    }

    /// One combination, with all its generations: on a busy machine the program may be done before, and is started again; with more to do, where that can be had.
    fn survives_all(&self, program: &Program, combination: Combination, below: &Path, random: &mut Random) {
        let survives = |attempt| match program.made {
            Made::Fed(..) if attempt > 0 => {
                let folder = tempfile::tempdir_in(below).unwrap();
                let home = Home::prepare(program, folder.path(), 1u32 << attempt);
                home.survives(program, combination, below, random)
            }
            _ => self.survives(program, combination, below, random),
        };
        let all = (0..ATTEMPTS).any(survives);
        assert!(all, "{}: {combination:?}: always done before it could be saved so often", program.name);
    }

    /// One combination. False: the program was done, with the right result, before all generations.
    fn survives(&self, program: &Program, combination: Combination, below: &Path, random: &mut Random) -> bool {
        let begin = Instant::now();
        let label = format!(
            "{} {:?} aslr={} {}",
            program.name,
            combination.way,
            if combination.aslr { "on" } else { "off" },
            if harness::root() { "root" } else { "user" }
        );
        let place = self.place(below, &label.replace(' ', "-"));
        let mut command = self.command(program, &place);
        command.env("LD_PRELOAD", harness::library());
        let enough = below.join("enough");
        if program.large {
            command.arg(&enough);
        }
        if !combination.aslr {
            harness::without_aslr(&mut command);
        }
        let mut process = Process::start(&label, &mut command);
        process.says.push(place.join("errors"));
        process.until("begins", || (program.begun)(&place));
        let said = below.join("said");
        let mut generations = 0;
        while generations < combination.generations {
            let mut images = Images::new();
            let Some(image) = save(&mut images, &mut process, combination.way, random) else { break };
            let status = process.kill();
            if status.signal() != Some(libc::SIGKILL) {
                break;
            }
            let mut command = control::restart(&image, &harness::library()).unwrap_or_else(|e| panic!("{label}: {e}"));
            command.stdin(Stdio::null()).stderr(harness::create(&said));
            process = Process::start(&label, &mut command);
            process.says = vec![place.join("errors"), said.clone()];
            process.try_pid();
            generations += 1;
        }
        fs::write(&enough, "").unwrap();
        let status = process.wait();
        fs::remove_file(enough).unwrap();
        let said = fs::read_to_string(said).unwrap_or_default();
        assert_eq!(said, "", "{label}: {status}: said by the restart");
        compare(&label, status, &self.path, &place);
        (program.check)(&place, self.times);
        let output = String::from_utf8_lossy(&fs::read(place.join("output")).unwrap()[..]).into_owned();
        let first = output.lines().next().filter(|line| line.is_ascii() && line.len() < 80).unwrap_or_default().to_owned();
        fs::remove_dir_all(&place).unwrap();
        println!("{label}: {} generations, {:.1} s; {first:?}", generations, begin.elapsed().as_secs_f64());
        generations == combination.generations
    }
}

/// Saves a process somewhere in the middle; there is nothing to wait for. None if it has ended meanwhile.
fn save(images: &mut Images, process: &mut Process, way: Way, random: &mut Random) -> Option<PathBuf> {
    let pid = process.try_pid()?;
    let mut save = |milliseconds: u64| match (std::thread::sleep(Duration::from_millis(milliseconds)), images.save(pid, way)).1 {
        Ok(image) => Some(image),
        Err(error) => {
            // The only excuse.
            assert!(process.ended_within(Duration::from_secs(10)).is_some(), "{way:?}: {error}");
            None
        }
    };
    let mut image = save(10 + random.below(50))?;
    if way.incremental() {
        for _ in 0..INCREMENTS {
            image = save(3 + random.below(15))?;
        }
        assert_eq!(images.layers(), INCREMENTS + 1, "{way:?}: images that should be increments are whole");
    }
    Some(image)
}

/// Has the program written something?
fn wrote(place: &Path) -> bool {
    fs::read_dir(place).unwrap().flatten().any(|entry| entry.metadata().is_ok_and(|data| data.len() > 0))
}

fn files(place: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap())).collect()
}

/// The end of the restored program is that of the undisturbed one.
fn compare(label: &str, status: ExitStatus, home: &Path, place: &Path) {
    let (expected, found) = (files(&home.join("undisturbed")), files(place));
    let text = |files: &BTreeMap<String, Vec<u8>>, name| String::from_utf8_lossy(files.get(name).map_or(b"", |f| f)).into_owned();
    assert_eq!(text(&found, "errors"), text(&expected, "errors"), "{label}: {status}");
    assert_eq!(status.to_string(), fs::read_to_string(home.join("status")).unwrap(), "{label}: {}", text(&found, "output"));
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected), "{label}");
    for (name, expected) in &expected {
        let found = &found[name];
        let differs = expected.iter().zip(found).position(|(a, b)| a != b);
        assert!(
            expected == found,
            "{label}: another result in {name}: {} bytes and not {}, the first other byte is {differs:?}: {}",
            found.len(),
            expected.len(),
            String::from_utf8_lossy(&found[..found.len().min(500)]).escape_debug()
        );
    }
}
