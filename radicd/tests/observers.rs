//! The socket of observers on the real thing: a `radicd`, ranks that it launches, and in them an observer that this test plays instead of
//! the library. The ranks are this very program, told by a variable to run one of the tests that are ignored otherwise.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use radic_protector::logs::client::Client;
use radic_protector::store::Speaker;
use radic_wire::determinant::ConnectionId;
use radic_wire::event::EventName;
use radic_wire::frame::{FrameReader, encode_into};
use radic_wire::ids::{Incarnation, ProcessId, Rank};
use radic_wire::job::{JobSpec, MapBy, OutputStream};
use radic_wire::key::ClusterKey;
use radic_wire::local::{Reply, Request};
use radic_wire::log::{FromProtector, LogPart, ToProtector};
use radic_wire::login::Channel;
use radic_wire::mac::JobKey;
use radic_wire::process::{self, Counters, FromNode, Interval, Protection, ToNode, counters, variable};
use radic_wire::span::Span;
use radic_wire::{PROTOCOL_VERSION, codec, limits};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_bytes::ByteBuf;

const PATIENCE: Duration = Duration::from_secs(20);
/// Which ignored test a rank is to run.
const PART: &str = "RADIC_TEST_PART";
/// Whether it has executed itself already.
const AGAIN: &str = "RADIC_TEST_AGAIN";

/// Frames over a unix socket.
struct Talk {
    socket: UnixStream,
    frames: FrameReader,
    limit: usize,
}

impl Talk {
    fn connect(path: &Path, limit: usize) -> Talk {
        let socket = UnixStream::connect(path).expect("radicd listens");
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Talk { socket, frames: FrameReader::new(limit), limit }
    }

    fn say<T: Serialize>(&mut self, message: &T) {
        self.try_say(message).unwrap();
    }

    fn try_say<T: Serialize>(&mut self, message: &T) -> std::io::Result<()> {
        let mut frame = Vec::new();
        encode_into(&mut frame, &codec::encode(message, self.limit).unwrap(), self.limit);
        self.socket.write_all(&frame)
    }

    /// The next message; none at the end.
    fn hear<T: DeserializeOwned>(&mut self) -> Option<T> {
        loop {
            if let Some(body) = self.frames.next_frame().unwrap() {
                return Some(codec::decode(body, self.limit).unwrap());
            }
            let mut buffer = [0; 4096];
            match self.socket.read(&mut buffer).expect("an answer in time") {
                0 => return None,
                count => self.frames.push(&buffer[..count]),
            }
        }
    }
}

/// A cluster of one node, with an empty file as its library: the loader passes it over.
struct Radicd {
    dir: tempfile::TempDir,
    key: ClusterKey,
    child: Child,
}

impl Radicd {
    fn start(library: bool) -> Radicd {
        let dir = tempfile::tempdir().unwrap();
        let radicd = dir.path().join("radicd");
        fs::copy(env!("CARGO_BIN_EXE_radicd"), &radicd).unwrap();
        if library {
            fs::write(dir.path().join("libradic.so"), "").unwrap();
        }
        let key = ClusterKey::generate().unwrap();
        key.create(&dir.path().join("key")).unwrap();
        let mut command = Command::new(radicd);
        command.arg("--dir").arg(dir.path()).args(["--name", "n1", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("ready n1"), "{ready:?}");
        Radicd { dir, key, child }
    }

    fn node_dir(&self) -> PathBuf {
        self.dir.path().join("nodes/n1")
    }

    fn command(&self) -> Talk {
        let mut talk = Talk::connect(&self.node_dir().join("control.sock"), limits::LOCAL_FRAME);
        talk.say(&Request::Hello { version: PROTOCOL_VERSION });
        assert!(matches!(talk.hear(), Some(Reply::Welcome { .. })));
        talk
    }

    /// Starts two ranks that run this part of this program.
    fn run(&self, part: &str) -> Talk {
        let program = ByteBuf::from(std::env::current_exe().unwrap().into_os_string().into_encoded_bytes());
        let args = ["rank", part, "--exact", "--ignored", "--nocapture", "--test-threads=1"];
        let variables = [(PART, part), ("DIR", self.dir.path().to_str().unwrap())];
        let spec = JobSpec {
            program,
            args: args.into_iter().map(ByteBuf::from).collect(),
            env: variables.into_iter().map(|(name, value)| (ByteBuf::from(name), ByteBuf::from(value))).collect(),
            templates: vec![],
            dir: ByteBuf::from("/"),
            ranks: 2,
            nodes: vec![],
            map_by: MapBy::Node,
            umask: 0o027,
            protection: Protection { interval: Interval::Never, ..Protection::default() },
            mtbf_s: 1,
            restart_on: radic_wire::job::RestartOn::default(),
            on_loss: radic_wire::job::OnLoss::default(),
            life: 0,
        };
        let mut talk = self.command();
        talk.say(&Request::Run { spec: Box::new(spec), attach: true });
        talk
    }

    fn events(&self) -> Vec<(EventName, String)> {
        let mut talk = self.command();
        talk.say(&Request::Events { follow: false });
        let mut events = Vec::new();
        while let Some(Reply::Events(some)) = talk.hear() {
            events.extend(some.into_iter().map(|event| (event.event, event.text)));
        }
        events
    }
}

impl Drop for Radicd {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// What the ranks print, and the code of the job.
fn finish(mut talk: Talk) -> (String, i32) {
    let mut output: BTreeMap<(Rank, OutputStream), Vec<u8>> = BTreeMap::new();
    loop {
        match talk.hear().expect("the job's end") {
            Reply::Attached { .. } | Reply::StdinFrom(_) | Reply::Notice(_) => {}
            Reply::Output { rank, stream, data, .. } => {
                output.entry((rank, stream)).or_default().extend_from_slice(&data);
                // The job may have ended: then the connection has, after its last word.
                _ = talk.try_say(&Request::Printed(data.len() as u64));
            }
            Reply::Ended(outcome) => {
                let text: Vec<_> = output.values().map(|bytes| String::from_utf8_lossy(bytes)).collect();
                return (format!("{}\n{:?}", text.concat(), outcome.reason), outcome.code);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn variable_of(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("no {name}"))
}

/// A rank: itself, and where its node listens.
struct Played {
    process: ProcessId,
    talk: Talk,
}

impl Played {
    fn join() -> (Played, FromNode) {
        let process = ProcessId {
            job: variable_of(variable::JOB).parse().unwrap(),
            rank: Rank(variable_of(variable::RANK).parse().unwrap()),
        };
        let mut talk = Talk::connect(Path::new(&variable_of(variable::SOCKET)), process::FRAME);
        talk.say(&ToNode::Join { version: PROTOCOL_VERSION, process });
        let answer = talk.hear().expect("an answer");
        (Played { process, talk }, answer)
    }

    fn connecting(&mut self, from: &str, to: SocketAddr) -> Option<ProcessId> {
        let connection = ConnectionId { opener: self.process, number: 1 };
        self.talk.say(&ToNode::Connecting { ask: 1, connection, from: from.parse().unwrap(), to });
        let Some(FromNode::Peer { ask: 1, peer, .. }) = self.talk.hear() else { panic!("no answer") };
        peer
    }

    fn accepted(&mut self, from: &str) -> Option<ConnectionId> {
        self.talk.say(&ToNode::Accepted { ask: 2, from: from.parse().unwrap() });
        let Some(FromNode::Caller { ask: 2, caller }) = self.talk.hear() else { panic!("no answer") };
        caller
    }
}

/// A file that one rank makes and the other waits for.
fn await_file(name: &str) -> String {
    let path = Path::new(&variable_of("DIR")).join(name);
    for _ in 0..2000 {
        if let Ok(text) = fs::read_to_string(&path) {
            return text;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no {}", path.display());
}

fn make_file(name: &str, text: &str) {
    let path = Path::new(&variable_of("DIR")).join(name);
    fs::write(path.with_extension("new"), text).unwrap();
    fs::rename(path.with_extension("new"), path).unwrap();
}

#[test]
#[ignore = "a rank of the tests below"]
fn caller_and_listener() {
    assert_eq!(variable_of(PART), "caller_and_listener");
    let (mut me, joined) = Played::join();
    let FromNode::Joined { incarnation: Incarnation::FIRST, key, .. } = joined else { panic!("{joined:?}") };
    make_file(&format!("key{}", me.process.rank), &format!("{:?}", key.to_bytes()));
    if me.process.rank == Rank(1) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        me.talk.say(&ToNode::Listening(address));
        // Asking itself is an answer after which the node has heard it.
        assert_eq!(me.connecting("127.0.0.1:999", address), Some(me.process));
        make_file("address", &address.to_string());
        await_file("called");
        assert_eq!(me.accepted("127.0.0.1:777").map(|c| c.opener.rank), Some(Rank(0)));
        assert_eq!(me.accepted("127.0.0.1:778"), None);
        make_file("done", "");
    } else {
        let address: SocketAddr = await_file("address").parse().unwrap();
        assert_eq!(me.connecting("127.0.0.1:777", address).map(|peer| peer.rank), Some(Rank(1)));
        let (from, nobody) = ("127.0.0.1:776", "127.0.0.1:1".parse().unwrap());
        assert_eq!(me.connecting(from, nobody), None);
        let connection = ConnectionId { opener: me.process, number: 1 };
        me.talk.say(&ToNode::CallsNobody { connection, from: from.parse().unwrap(), to: nobody, made: true });
        make_file("called", "");
        await_file("done");
    }
    let counters = Counters { bytes_in: 4711, ..Counters::default() };
    me.talk.say(&ToNode::Leaving(Box::new(counters)));
    assert_eq!(me.connecting("127.0.0.1:775", "127.0.0.1:1".parse().unwrap()), None, "it was heard before");
    make_file(&format!("left{}", me.process.rank), "");
    await_file("end");
}

#[test]
fn processes_find_each_other() {
    let radicd = Radicd::start(true);
    let talk = radicd.run("caller_and_listener");
    let deadline = std::time::Instant::now() + PATIENCE;
    while !["left0", "left1"].iter().all(|name| radicd.dir.path().join(name).exists()) {
        assert!(std::time::Instant::now() < deadline, "{}", finish(talk).0);
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut command = radicd.command();
    command.say(&Request::Status);
    let Some(Reply::Status(status)) = command.hear() else { panic!("no status") };
    let counted: Vec<_> =
        status.processes.iter().map(|p| (p.rank.0, p.running, p.joined, p.counters.map(|c| c.bytes_in))).collect();
    assert_eq!(counted, [(0, true, true, Some(4711)), (1, true, true, Some(4711))]);
    let job = status.processes[0].job;
    fs::write(radicd.dir.path().join("end"), "").unwrap();
    let (output, code) = finish(talk);
    assert_eq!(code, 0, "{output}");
    for name in ["key0", "key1"] {
        let told = fs::read_to_string(radicd.dir.path().join(name)).unwrap();
        assert_eq!(told, format!("{:?}", JobKey::derive(&radicd.key, job).to_bytes()));
    }
    let unprotected = radicd.events().into_iter().filter(|(event, _)| *event == EventName::Unprotected).count();
    assert_eq!(unprotected, 2, "the peer that rank 0 called, and the one that called rank 1");
    let mut command = radicd.command();
    command.say(&Request::Status);
    let Some(Reply::Status(status)) = command.hear() else { panic!("no status") };
    let counted: Vec<_> = status.processes.iter().map(|p| (p.running, p.counters.map(|c| c.bytes_in))).collect();
    assert_eq!(counted, [(false, Some(4711)), (false, Some(4711))], "the last ones are remembered");
}

const JOURNAL: &[u8] = b"what was decided";

#[test]
#[ignore = "a rank of the tests below"]
fn logging() {
    let (me, joined) = Played::join();
    let FromNode::Joined { incarnation, key, protector, .. } = joined else { panic!("{joined:?}") };
    if me.process.rank == Rank(0) {
        let speaker = Speaker { process: me.process, incarnation };
        let mut log = Client::open(protector, &key, speaker, Channel::Journal, PATIENCE).unwrap();
        let (journal, payload) = (Span::default(), Span::default());
        log.send(&ToProtector::hello(me.process, incarnation, journal, payload)).unwrap();
        log.send(&ToProtector::Journal { position: 0, bytes: JOURNAL }).unwrap();
        let stable = FromProtector::JournalStable { position: JOURNAL.len() as u64 };
        while FromProtector::read(&log.receive().unwrap()).unwrap() != stable {}
        make_file("logged", &me.process.job.to_string());
        await_file("end");
    } else {
        await_file("end");
    }
}

#[test]
fn what_a_process_logs_can_be_read_until_its_job_ends() {
    let radicd = Radicd::start(true);
    let talk = radicd.run("logging");
    let logged = radicd.dir.path().join("logged");
    let deadline = std::time::Instant::now() + PATIENCE;
    while !logged.exists() {
        assert!(std::time::Instant::now() < deadline, "{}", finish(talk).0);
        std::thread::sleep(Duration::from_millis(10));
    }
    let job = fs::read_to_string(logged).unwrap();
    let ask = |rank| {
        let mut command = radicd.command();
        command.say(&Request::Log { job: job[..8].to_owned(), rank: Rank(rank) });
        let reply = command.hear().expect("an answer");
        (command, reply)
    };
    let (mut command, reply) = ask(0);
    let Reply::Log(node, log) = reply else { panic!("{reply:?}") };
    let journal = Span { start: 0, end: JOURNAL.len() as u64 };
    assert_eq!((node.as_str(), log.journal, log.stable), ("n1", journal, journal.end));
    for (position, bytes) in [(0, JOURNAL), (5, &JOURNAL[5..]), (journal.end, &[])] {
        command.say(&Request::ReadLog { part: LogPart::Journal, position });
        assert_eq!(command.hear(), Some(Reply::LogBytes(ByteBuf::from(bytes))), "{position}");
    }
    let mut other = radicd.command();
    other.say(&Request::Status);
    let Some(Reply::Status(status)) = other.hear() else { panic!("no status") };
    let journals: Vec<Vec<u64>> = status.processes.iter().map(|p| p.logs.iter().map(|log| log.journal).collect()).collect();
    assert_eq!(journals, [vec![journal.end], vec![]]);
    command.say(&Request::ReadLog { part: LogPart::Image(3), position: 0 });
    assert!(matches!(command.hear(), Some(Reply::Error(_))), "there is none");
    assert!(matches!(&ask(1).1, Reply::Error(why) if why.contains("nothing is held")));
    assert!(matches!(&ask(2).1, Reply::Error(why) if why.contains("ranks 0 to 1")));
    fs::write(radicd.dir.path().join("end"), "").unwrap();
    let (output, code) = finish(talk);
    assert_eq!(code, 0, "{output}");
    assert!(matches!(&ask(0).1, Reply::Error(why) if why.contains("--keep-logs")));
}

#[test]
#[ignore = "a rank of the tests below"]
fn child_and_exec() {
    if variable_of(PART) == "child" {
        let (_, answer) = Played::join();
        assert!(matches!(&answer, FromNode::Refused(why) if why.contains("a child of rank")), "{answer:?}");
        return;
    }
    let (mut me, joined) = Played::join();
    assert!(matches!(joined, FromNode::Joined { .. }), "{joined:?}");
    let address = SocketAddr::from(([127, 0, 0, 1], 4444 + me.process.rank.0 as u16));
    if std::env::var_os(AGAIN).is_some() {
        assert_eq!(me.connecting("127.0.0.1:1", address), None, "what the program before it listened on is forgotten");
        return;
    }
    me.talk.say(&ToNode::Listening(address));
    assert_eq!(me.connecting("127.0.0.1:1", address), Some(me.process));
    let child = |part: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child_and_exec", "--exact", "--ignored", "--nocapture", "--test-threads=1"]).env(PART, part);
        command
    };
    assert!(child("child").status().unwrap().success());
    let file = Path::new(&variable_of("DIR")).join(format!("mode{}", me.process.rank));
    fs::write(&file, "").unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640, "the command's umask");
    panic!("{}", child("child_and_exec").env(AGAIN, "1").exec());
}

#[test]
fn a_child_is_refused_and_another_program_restarts() {
    let radicd = Radicd::start(true);
    let (output, code) = finish(radicd.run("child_and_exec"));
    assert_eq!(code, 0, "{output}");
    let children = radicd.events().into_iter().filter(|(_, text)| text.contains("a child of rank")).count();
    assert_eq!(children, 2, "one for each rank");
}

#[test]
fn nonsense_and_strangers_are_turned_away() {
    let radicd = Radicd::start(true);
    let path = radicd.node_dir().join(process::SOCKET_NAME);
    let process = ProcessId { job: "00000000abcd".parse().unwrap(), rank: Rank(0) };
    let mut stranger = Talk::connect(&path, process::FRAME);
    stranger.say(&ToNode::Join { version: PROTOCOL_VERSION, process });
    assert!(matches!(stranger.hear(), Some(FromNode::Refused(_))));
    assert_eq!(stranger.hear::<FromNode>(), None, "and the connection is closed");
    let mut hasty = Talk::connect(&path, process::FRAME);
    hasty.say(&ToNode::Initialized);
    assert_eq!(hasty.hear::<FromNode>(), None);
    for bytes in [&[0xff; 64][..], &[1, 0, 0, 0, 0xee]] {
        let mut talk = Talk::connect(&path, process::FRAME);
        talk.socket.write_all(bytes).unwrap();
        assert_eq!(talk.hear::<FromNode>(), None, "{bytes:?}");
    }
    let silent = Talk::connect(&path, process::FRAME);
    let mut buffer = [0];
    assert_eq!((&silent.socket).read(&mut buffer).unwrap(), 0, "a caller that says nothing is not kept");
}

#[test]
fn without_the_library_nothing_starts() {
    let radicd = Radicd::start(false);
    let (output, code) = finish(radicd.run("caller_and_listener"));
    assert_eq!(code, 125, "{output}");
    assert!(output.contains("cannot be protected") && output.contains("--protect none"), "{output}");
}

#[test]
fn a_process_s_counters_are_read_from_its_memory() {
    let length = (1 + counters::WORDS) * 8;
    let words: Vec<u64> = std::iter::once(counters::MAGIC).chain(1..=counters::WORDS as u64).collect();
    assert_eq!(radic_protector::daemon::counters::read(std::process::id()), None, "not under the library");
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED_NOREPLACE | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the mapping replaces none.
    let memory = unsafe { libc::mmap(counters::ADDRESS as *mut libc::c_void, length, prot, flags, -1, 0) };
    assert_eq!(memory as u64, counters::ADDRESS);
    // SAFETY: the mapping is that long, writable, aligned to pages, and has no other owner.
    unsafe { std::slice::from_raw_parts_mut(memory.cast::<u64>(), words.len()) }.copy_from_slice(&words);
    let read = radic_protector::daemon::counters::read(std::process::id()).expect("they are there");
    let words: [u64; counters::WORDS] = words[1..].try_into().expect("as many words");
    assert_eq!((read.bytes_in, read), (1, Counters::from_words(&words)));
    assert_eq!(radic_protector::daemon::counters::read(0), None);
}
