//! Real software that nobody here wrote, as it is in Debian and on PyPI: undisturbed, and with the node of the server, of the client or of a rank killed. What comes out is compared with
//! what comes out without protection, and the data say themselves whether each value came once. `make foreign` runs all of it, several times; without that a small sample runs, of
//! what is installed. What came of it is in docs/programs.md.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::{deps, script};
use radic_tests::random::Random;
use radic_tests::recovery::{SOON, end_well, events_of, first_checkpoints, is_long, story};
use radic_tests::redis::{self, free_port};
use radic_tests::{Finished, Running};
use radic_wire::event::{Event, EventName};
use radic_wire::ids::Rank;
use rustix::process::Signal;

/// The client is rank 0 on n2, the server rank 1 on n3; the terminal is on n1.
const PROTECTED: &str = "--nodes n2,n3 --protect on --ckpt-interval 0.3";
const BARE: &str = "--nodes n2,n3 --protect none";
/// Time for one run: a busy machine takes long for programs that poll.
const LIMIT: Duration = Duration::from_secs(300);
/// Whose node dies, and its name.
const NODES: [(&str, &str); 2] = [(SERVER, "n3"), ("rank 0 (the client)", "n2")];
const SERVER: &str = "rank 1 (the server)";
/// Files that nginx serves.
const FILES: usize = 20;

/// Where one run takes place.
struct Place {
    dir: PathBuf,
    port: String,
}

impl Place {
    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// A job of two programs: rank 0 executes the first, and rank 1 the second.
    fn two(client: &str, server: &str) -> String {
        format!("[ $RADIC_RANK = 1 ] && exec {server}; exec {client}")
    }
}

/// When a node dies, after the first checkpoints.
enum Moment {
    /// When the client has counted so far: one of twenty parts of this number.
    Counted(u32),
    /// When a line with one of these has been printed.
    Line(&'static [&'static str]),
    /// In the first half of the shortest undisturbed run.
    FirstHalf,
}

/// A node that is to die.
#[derive(Clone, Copy)]
struct Death<'a> {
    /// Whose node it is, in words.
    whose: &'a str,
    node: &'a str,
    /// How long the shortest undisturbed run took.
    shortest: Duration,
}

/// What came of a run.
struct Ran {
    result: Vec<String>,
    /// How often processes were brought back, and the job was begun anew.
    counted: [usize; 2],
    elapsed: Duration,
}

struct Program {
    name: &'static str,
    /// What says its version, and fails if it is not installed.
    version: &'static [&'static str],
    /// Prepares the folder, and gives the command for a shell.
    start: fn(&Cluster, &Place) -> String,
    moment: Moment,
    /// What must be the same as without protection.
    result: fn(&Finished, &Place) -> Vec<String>,
    /// Whether it is ended by SIGTERM when the client is through.
    is_told_to_end: bool,
    /// Why the death of its server's node is not to be survived.
    unprotected: Option<&'static str>,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "memcached",
        version: &["memcached", "-V"],
        start: |_, place| {
            let client = format!("python3 {} 127.0.0.1 {} 5000", script("memcached.py"), place.port);
            Place::two(&client, &format!("memcached -u root -t 4 -A -l 127.0.0.1 -p {}", place.port))
        },
        moment: Moment::Counted(5000),
        result: printed,
        is_told_to_end: false,
        unprotected: None,
    },
    Program {
        name: "redis",
        version: &["redis-cli", "--version"],
        start: |cluster, place| {
            let client = format!("python3 {} 127.0.0.1 {} 10000", script("counter.py"), place.port);
            Place::two(&client, &format!("{} >/dev/null", redis::server(cluster, "127.0.0.1", &place.port)))
        },
        moment: Moment::Counted(10_000),
        result: printed,
        is_told_to_end: false,
        unprotected: None,
    },
    Program {
        name: "nginx without workers",
        version: &["/usr/sbin/nginx", "-v"],
        start: |_, place| nginx(place, "master_process off;", ""),
        moment: Moment::Counted(4000),
        result: printed,
        is_told_to_end: true,
        unprotected: None,
    },
    Program {
        name: "nginx with two workers",
        version: &["/usr/sbin/nginx", "-v"],
        // Connections with a worker are not protected, so the client calls again when one is lost.
        start: |_, place| nginx(place, "worker_processes 2;", "again"),
        moment: Moment::Counted(4000),
        result: printed,
        is_told_to_end: true,
        unprotected: Some("its workers take the connections"),
    },
    Program {
        name: "asyncio",
        version: &["python3", "--version"],
        start: |_, place| format!("exec python3 {} {} 16000", script("asyncio_counter.py"), place.port),
        moment: Moment::Counted(16_000),
        result: printed,
        is_told_to_end: false,
        unprotected: None,
    },
    Program {
        name: "pyzmq REQ/REP",
        version: &["PYTHON", "-c", "import zmq; print(zmq.__version__, 'with libzmq', zmq.zmq_version())"],
        start: |_, place| format!("exec {} {} {} 10000 reqrep", python(), script("zmq_counter.py"), place.port),
        moment: Moment::Counted(10_000),
        result: printed,
        is_told_to_end: false,
        unprotected: None,
    },
    Program {
        name: "pyzmq PUSH/PULL",
        version: &["PYTHON", "-c", "import zmq; print(zmq.__version__, 'with libzmq', zmq.zmq_version())"],
        start: |_, place| format!("exec {} {} {} 400000 pushpull", python(), script("zmq_counter.py"), place.port),
        moment: Moment::Counted(400_000),
        result: printed,
        is_told_to_end: false,
        unprotected: None,
    },
    Program {
        name: "grpcio",
        version: &["PYTHON", "-c", "import grpc; print(grpc.__version__)"],
        start: |_, place| format!("exec {} {} {} 2000", python(), script("grpc_counter.py"), place.port),
        moment: Moment::Counted(2000),
        result: printed,
        is_told_to_end: false,
        unprotected: None,
    },
    Program {
        name: "NetPIPE",
        version: &["dpkg-query", "-W", "-f", "${Version}", "netpipe-openmpi"],
        start: |_, place| format!("exec NPopenmpi -u 8192 -o {}", place.file("np.out")),
        moment: Moment::Line(&[" 24 bytes ", " 96 bytes ", " 512 bytes "]),
        result: sizes,
        is_told_to_end: false,
        unprotected: None,
    },
    Program {
        name: "hpcc",
        version: &["dpkg-query", "-W", "-f", "${Version}", "hpcc"],
        start: |_, place| {
            fs::copy(foreign("hpccinf.txt"), place.dir.join("hpccinf.txt")).expect("ours");
            format!("cd {}; exec hpcc", place.dir.display())
        },
        moment: Moment::FirstHalf,
        result: summary,
        is_told_to_end: false,
        unprotected: None,
    },
    Program {
        name: "LAMMPS",
        version: &["dpkg-query", "-W", "-f", "${Version}", "lammps"],
        start: |_, place| {
            format!("exec lmp -log none -screen none -in {} -v out {}", foreign("melt.lammps"), place.file("thermo"))
        },
        moment: Moment::FirstHalf,
        result: thermo,
        is_told_to_end: false,
        unprotected: None,
    },
];

/// Nodes that give a process up which does not get on for five seconds.
fn impatient() -> Cluster {
    let mut cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    ["n1", "n2", "n3", "n4"].iter().for_each(|node| cluster.start_node(node, &["--replay-limit=5"]));
    cluster
}

fn foreign(name: &str) -> String {
    script(&format!("foreign/{name}"))
}

/// The interpreter that has pyzmq and grpcio.
fn python() -> String {
    deps().join("foreign/bin/python").display().to_string()
}

fn nginx(place: &Place, workers: &str, how: &str) -> String {
    let www = place.dir.join("www");
    fs::create_dir(&www).expect("a new directory");
    for number in 0..FILES {
        let lines: String = (0..number * 40 + 1).map(|line| format!("line {line} of file {number}\n")).collect();
        fs::write(www.join(number.to_string()), lines).expect("our own directory");
    }
    let dir = place.dir.display();
    // As root it would become somebody else, who may not enter our directory.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|of| format!("{of}_temp_path {dir}/{of};")).concat();
    let conf = format!(
        "daemon off; {user} {workers} pid {dir}/pid; error_log {dir}/error.log; events {{ worker_connections 256; }}\nhttp {{ access_log off; \
         keepalive_requests 1000000; {temporary} server {{ listen 127.0.0.1:{}; root {}; }} }}\n",
        place.port,
        www.display()
    );
    fs::write(place.dir.join("conf"), conf).expect("our own directory");
    let client = format!("python3 {} 127.0.0.1 {} 4000 {how}", script("http_client.py"), place.port);
    Place::two(&client, &format!("/usr/sbin/nginx -e {dir}/error.log -c {dir}/conf"))
}

/// All that was printed.
fn printed(finished: &Finished, _: &Place) -> Vec<String> {
    finished.stdout().lines().map(str::to_owned).collect()
}

/// The sizes of NetPIPE's messages. How often each was sent follows from the time that it took.
fn sizes(finished: &Finished, place: &Place) -> Vec<String> {
    let file = fs::read_to_string(place.dir.join("np.out")).unwrap_or_else(|error| panic!("np.out: {error}: {finished}"));
    file.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// What hpcc found right or wrong: its file ends with a summary.
fn summary(finished: &Finished, place: &Place) -> Vec<String> {
    let file = fs::read_to_string(place.dir.join("hpccoutf.txt")).unwrap_or_else(|error| panic!("hpccoutf: {error}: {finished}"));
    let (_, summary) = file.rsplit_once("Begin of Summary section.").unwrap_or_else(|| panic!("no summary: {finished}\n{file}"));
    let matters = |line: &&str| {
        ["Success=", "CommWorldProcs="].iter().any(|name| line.starts_with(name))
            || line.contains("Errors")
            || line.contains("_N=")
    };
    summary.lines().filter(matters).map(str::to_owned).collect()
}

/// The melt's energies, to the last digit.
fn thermo(finished: &Finished, place: &Place) -> Vec<String> {
    let file = fs::read_to_string(place.dir.join("thermo")).unwrap_or_else(|error| panic!("thermo: {error}: {finished}"));
    file.lines().map(str::to_owned).collect()
}

impl Program {
    /// Its version. Why it cannot be tried, if it is not installed.
    fn version(&self) -> Result<String, String> {
        let words = self.version.iter().map(|word| if *word == "PYTHON" { python() } else { (*word).to_owned() });
        let words: Vec<String> = words.collect();
        let said = Command::new(&words[0]).args(&words[1..]).output();
        let missing = || format!("{} is not installed: RADIC_DEPS=foreign make deps", self.name);
        let said = said.ok().filter(|said| said.status.success()).ok_or_else(missing)?;
        let text = [said.stdout, said.stderr].concat();
        Ok(String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned())
    }

    /// One run, in which a node may die.
    fn run(&self, flags: &str, dies: Option<Death<'_>>, random: &mut Random) -> Ran {
        let cluster = impatient();
        let place = Place { dir: cluster.dir().join("place"), port: free_port() };
        fs::create_dir(&place.dir).expect("a new directory");
        let command = (self.start)(&cluster, &place);
        let mut events = cluster.events_at("n1");
        let mut job = cluster.job(2, flags, &["sh", "-c", &command]).limit(LIMIT).start();
        let mut what = format!("{} with `{flags}`", self.name);
        if let Some(death) = dies {
            first_checkpoints(&mut events, 2);
            let moment = self.await_moment(&mut job, death.shortest, random);
            what += &format!(", the node of {} dies {moment}", death.whose);
            println!("{what}");
            assert!(!job.ends_within(Duration::ZERO), "{what}: too late");
            cluster.kill_all_of(death.node);
        }
        if self.is_told_to_end {
            let is_end = |event: &Event| event.rank == Some(Rank(0)) && event.text.contains("exited with code");
            events.expect("the client's end", LIMIT, |event| event.event == EventName::RankExit && is_end(event));
            job.signal(Signal::TERM);
        }
        let finished = end_well(&cluster, job, &what);
        let seen = events_of(&cluster, radic_tests::protection::newest_job(&cluster));
        let counted = [EventName::Live, EventName::Restart].map(|name| seen.iter().filter(|event| event.event == name).count());
        println!("{what}: {:.2} s, {} brought back, {} begun anew", finished.elapsed.as_secs_f64(), counted[0], counted[1]);
        if dies.is_some() && counted != [1, 0] {
            println!("{}", story(&cluster));
        }
        let result = (self.result)(&finished, &place);
        assert!(!result.is_empty(), "{what}: it says nothing: {finished}");
        cluster.assert_idle();
        cluster.stop();
        Ran { result, counted, elapsed: finished.elapsed }
    }

    /// Whether the death of this node is to be survived. If not it is said.
    fn is_to_survive(&self, whose: &str) -> bool {
        let why = self.unprotected.filter(|_| whose == SERVER);
        if let Some(why) = why {
            println!("SKIPPED: {}: the node of {whose} dies: {why} (docs/programs.md)", self.name);
        }
        why.is_none()
    }

    /// A run in which a node dies ends as one without RADIC. How often processes were brought back, and the job was begun anew: then what it had printed before comes first.
    fn survives(&self, dies: Death<'_>, due: &[String], random: &mut Random) -> [usize; 2] {
        let Ran { result, counted, .. } = self.run(PROTECTED, Some(dies), random);
        let before = if counted[1] > 0 { result.len().saturating_sub(due.len()) } else { 0 };
        assert_eq!(result[before..], *due, "{}, the node of {} dies", self.name, dies.whose);
        counted
    }

    /// Waits until a node is to die. When that was, in words.
    fn await_moment(&self, job: &mut Running, shortest: Duration, random: &mut Random) -> String {
        const PARTS: u32 = 20;
        match self.moment {
            Moment::Counted(last) => {
                let line = format!("counted to {}", last / PARTS * (4 + random.below(12) as u32));
                job.until_line(&line);
                format!("after \"{line}\"")
            }
            Moment::Line(lines) => {
                let line = lines[random.below(lines.len())];
                job.until(line, |out, err| (out.contains(line) || err.contains(line)).then_some(()));
                format!("after \"{line}\"")
            }
            Moment::FirstHalf => {
                let after = Duration::from_millis(random.below(shortest.as_millis() as usize / 2) as u64);
                assert!(!job.ends_within(after), "too late");
                format!("{after:.1?} after the first checkpoints")
            }
        }
    }
}

/// How often each is tried.
fn runs() -> usize {
    std::env::var("RADIC_RUNS").map_or(3, |runs| runs.parse().expect("RADIC_RUNS is a number"))
}

/// All of one program: `make foreign`.
fn all_of(name: &str) {
    if !is_long() {
        return println!("SKIPPED: {name}: `make foreign` runs it");
    }
    let program = PROGRAMS.iter().find(|program| program.name == name).expect("a program of the table");
    let version = program.version().unwrap_or_else(|why| panic!("{why}"));
    let mut random = Random::from_environment();
    let due = program.run(BARE, None, &mut random).result;
    let mut shortest = LIMIT;
    for _ in 0..runs() {
        let ran = program.run(PROTECTED, None, &mut random);
        assert_eq!(ran.result, due, "{name}, undisturbed");
        shortest = shortest.min(ran.elapsed);
    }
    let mut table = BTreeMap::new();
    for (whose, node) in NODES.into_iter().filter(|dies| program.is_to_survive(dies.0)) {
        for _ in 0..runs() {
            let counted = program.survives(Death { whose, node, shortest }, &due, &mut random);
            *table.entry((whose, counted)).or_insert(0) += 1;
        }
    }
    let runs = runs();
    println!("{name} ({version}): undisturbed {runs} of {runs}");
    for ((whose, [live, restarts]), times) in table {
        println!("{name}: the node of {whose} dies: {times} of {runs}; brought back {live}, begun anew {restarts}");
    }
}

macro_rules! programs {
    ($($function:ident => $name:literal,)*) => {
        $(#[test] fn $function() { all_of($name) })*

        #[test]
        fn each_program_has_its_test() {
            let tested = [$($name),*];
            let names: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
            assert_eq!(tested.to_vec(), names);
        }
    };
}

programs! {
    memcached => "memcached",
    redis_server => "redis",
    nginx_without_workers => "nginx without workers",
    nginx_with_workers => "nginx with two workers",
    asyncio => "asyncio",
    zeromq_questions_and_answers => "pyzmq REQ/REP",
    zeromq_push_and_pull => "pyzmq PUSH/PULL",
    grpc => "grpcio",
    netpipe => "NetPIPE",
    hpcc => "hpcc",
    lammps => "LAMMPS",
}

/// A few, of what is installed, and a death of one of the two nodes.
#[test]
fn a_sample_of_them_survives() {
    const FEW: usize = 2;
    // What polls is slow beside anything else, and what begins anew takes its time to find out that it must.
    const LONG: [&str; 7] = ["nginx without workers", "pyzmq REQ/REP", "pyzmq PUSH/PULL", "grpcio", "NetPIPE", "hpcc", "LAMMPS"];
    let (installed, missing): (Vec<_>, Vec<_>) =
        PROGRAMS.iter().map(|program| (program, program.version())).partition(|it| it.1.is_ok());
    for why in missing.into_iter().filter_map(|(_, version)| version.err()) {
        println!("SKIPPED: {why}");
    }
    if is_long() {
        return println!("SKIPPED: all of them run");
    }
    let mut random = Random::from_environment();
    let short: Vec<&Program> =
        installed.iter().map(|(program, _)| *program).filter(|program| !LONG.contains(&program.name)).collect();
    for at in random.choose(FEW.min(short.len()), &(0..short.len()).collect::<Vec<_>>()) {
        let ran = short[at].run(BARE, None, &mut random);
        let (whose, node) = NODES[random.below(NODES.len())];
        if short[at].is_to_survive(whose) {
            short[at].survives(Death { whose, node, shortest: ran.elapsed }, &ran.result, &mut random);
        }
    }
}

/// PostgreSQL, whose server forks for each connection. As root it would not run, so it is told that it is somebody else.
struct Postgres {
    place: Place,
    go: fs::File,
}

/// Where Debian has it.
const POSTGRES: &str = "/usr/lib/postgresql/15/bin";
const AS_SOMEBODY: [&str; 4] = ["unshare", "--user", "--map-user=1000", "--map-group=1000"];

impl Postgres {
    /// A new database with pgbench's tables, or why there is none.
    fn new(cluster: &Cluster) -> Result<Postgres, String> {
        if !Path::new(POSTGRES).join("pgbench").exists() {
            return Err("PostgreSQL is not installed: RADIC_DEPS=foreign make deps".into());
        }
        let place = Place { dir: cluster.dir().join("place"), port: free_port() };
        fs::create_dir(&place.dir).expect("a new directory");
        let fifo = place.dir.join("go");
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo is there").success());
        // For both ways: so opening it does not wait.
        let go = fs::File::options().read(true).write(true).open(&fifo).expect("it was made");
        let postgres = Postgres { place, go };
        let data = postgres.place.file("data");
        postgres.admin(cluster, "initdb", &["-D", &data, "-U", "radic", "-A", "trust", "-N"]);
        let options = format!("-p {} -k {} -c listen_addresses=", postgres.place.port, postgres.place.dir.display());
        postgres.admin(cluster, "pg_ctl", &["-D", &data, "-o", &options, "-w", "-l", &postgres.place.file("log"), "start"]);
        postgres.ask(cluster, "pgbench", &["-i", "-q", "postgres"]);
        postgres.admin(cluster, "pg_ctl", &["-D", &data, "-w", "stop"]);
        Ok(postgres)
    }

    fn admin(&self, cluster: &Cluster, program: &str, args: &[&str]) {
        let words = if rustix::process::geteuid().is_root() { &AS_SOMEBODY[..] } else { &["env"][..] };
        let program = format!("{POSTGRES}/{program}");
        cluster.invocation(words[0]).args(&words[1..]).args([&program]).args(args).limit(LIMIT).run().expect(0);
    }

    /// By the socket in its folder, without RADIC.
    fn ask(&self, cluster: &Cluster, program: &str, args: &[&str]) -> String {
        let to = ["-h", &self.place.dir.display().to_string(), "-p", &self.place.port, "-U", "radic"].map(str::to_owned);
        let program = format!("{POSTGRES}/{program}");
        cluster.invocation(program).args(to).args(args).limit(LIMIT).run().expect(0).stdout().trim().to_owned()
    }

    /// A server and pgbench, which begins when the server is ready.
    fn start(&mut self, cluster: &Cluster, before_server: &str, transactions: u32) -> Running {
        use std::io::Write;
        let (dir, port) = (self.place.dir.display(), &self.place.port);
        let words = if rustix::process::geteuid().is_root() { AS_SOMEBODY.join(" ") } else { "env".to_owned() };
        let server = format!("{words} {POSTGRES}/postgres -D {dir}/data -p {port} -k {dir} -c listen_addresses=127.0.0.1");
        let client = format!("{POSTGRES}/pgbench -h 127.0.0.1 -p {port} -U radic -n -c 4 -t {transactions} postgres");
        let both = format!("[ $RADIC_RANK = 1 ] && {before_server} exec {server}; read -r line <{dir}/go; exec {client}");
        let mut job = cluster.job(2, PROTECTED, &["sh", "-c", &both]).limit(LIMIT).start();
        job.until("PostgreSQL to be ready", |_, err| err.contains("ready to accept connections").then_some(()));
        self.go.write_all(b"go\n").expect("a pipe has room");
        job
    }

    /// Each transaction is there, and all accounts together say what the history says.
    fn check(&self, cluster: &Cluster, transactions: u32) {
        let number = |query: &str| self.ask(cluster, "psql", &["-A", "-t", "-c", query, "postgres"]);
        assert_eq!(number("select count(*) from pgbench_history"), (4 * transactions).to_string());
        let sums = ["select sum(delta) from pgbench_history", "select sum(abalance) from pgbench_accounts"].map(number);
        assert_eq!(sums[0], sums[1], "history and accounts");
    }
}

/// Its server left unprotected: the client is protected, and nothing is lost, undisturbed.
#[test]
fn postgres_as_a_server_without_protection() {
    const TRANSACTIONS: u32 = 250;
    if !is_long() {
        return println!("SKIPPED: PostgreSQL: `make foreign` runs it");
    }
    let cluster = Cluster::start(Kind::Logical, 4);
    let mut postgres = Postgres::new(&cluster).unwrap_or_else(|why| panic!("{why}"));
    for run in 1..=runs() as u32 {
        let mut job = postgres.start(&cluster, "unset LD_PRELOAD &&", TRANSACTIONS);
        job.until("pgbench's end", |out, _| out.contains("\ntps = ").then_some(()));
        postgres.check(&cluster, run * TRANSACTIONS);
        job.signal(Signal::TERM);
        job.wait().expect(0);
        cluster.assert_idle();
    }
    println!("PostgreSQL, the server without protection: undisturbed {0} of {0}", runs());
    cluster.stop();
}

/// Its server protected: the connections that it leaves to its children are cut off. The client is told so at once, and so is the cluster.
#[test]
fn postgres_as_a_protected_server_is_named() {
    if !is_long() {
        return println!("SKIPPED: PostgreSQL: `make foreign` runs it");
    }
    let cluster = Cluster::start(Kind::Logical, 4);
    let mut postgres = Postgres::new(&cluster).unwrap_or_else(|why| panic!("{why}"));
    let mut events = cluster.events_at("n1");
    let job = postgres.start(&cluster, "", 10);
    events.expect("that the connection is cut off", SOON, |event| event.text.contains("leaves to a child"));
    job.wait().expect(1).expect_stderr(&["server closed the connection unexpectedly"]);
    cluster.assert_idle();
    cluster.stop();
}
