//! The `radic` command against a protector that the test plays: what it asks, prints, passes on, and how it ends.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use radic_wire::frame::{FrameReader, encode_into};
use radic_wire::ids::{BootId, Incarnation, JobId, NodeId, NodeName, ProcessId, Rank};
use radic_wire::job::{EndReason, ExitStatus, JobSpec, Outcome, OutputStream, Placement};
use radic_wire::local::{ClusterStatus, NodeInfo, NodeState, Reply, Request};
use radic_wire::log::{HeldImage, HeldLog, ImageState, LineMark, LogPart};
use radic_wire::membership::Role;
use radic_wire::process::{Interval, LogMode, PayloadMode, Protect, Protection};
use radic_wire::report::RankCheckpoint;
use radic_wire::span::Span;
use radic_wire::{PROTOCOL_VERSION, codec, limits};
use serde_bytes::ByteBuf;

use OutputStream::{Stderr, Stdout};

/// Long enough for a machine that does other things, short enough for a test that hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// The directory of a cluster without protectors.
struct Cluster(tempfile::TempDir);

impl Cluster {
    fn new() -> Self {
        Cluster(tempfile::tempdir().unwrap())
    }

    fn dir(&self) -> PathBuf {
        // Longer than a socket address can be.
        self.0.path().join("d".repeat(120))
    }

    fn node(&self, name: &str) -> Node {
        let dir = self.dir().join("nodes").join(name);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).unwrap();
        let open = File::open(&dir).unwrap();
        let listener = UnixListener::bind(format!("/proc/self/fd/{}/control.sock", open.as_raw_fd())).unwrap();
        listener.set_nonblocking(true).unwrap();
        Node { name: name.parse().unwrap(), listener }
    }

    fn command(&self, args: &[&str]) -> Command {
        // Whatever this test was started by: a shell lets what it starts in the background ignore SIGINT and SIGQUIT.
        let mut command = Command::new("env");
        command.args(["--default-signal", env!("CARGO_BIN_EXE_radic"), "--cluster"]).arg(self.dir()).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, args: &[&str]) -> Running {
        Running(Some(self.command(args).spawn().unwrap()))
    }
}

/// A command under way; killed if the test fails.
struct Running(Option<Child>);

impl Running {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    fn signal(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.child().id() as i32), signal).unwrap();
    }

    fn end(mut self) -> (i32, String, String) {
        let Output { status, stdout, stderr } = self.0.take().unwrap().wait_with_output().unwrap();
        let code = status.code().unwrap_or_else(|| panic!("{status}"));
        (code, String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A node with the test as its protector.
struct Node {
    name: NodeName,
    listener: UnixListener,
}

impl Node {
    fn accept(&self) -> Peer {
        let mut fds = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&self.listener), nix::poll::PollFlags::POLLIN)];
        let timeout = nix::poll::PollTimeout::try_from(PATIENCE).unwrap();
        assert_eq!(nix::poll::poll(&mut fds, timeout), Ok(1), "the command does not connect to {}", self.name);
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut peer = Peer { stream, reader: FrameReader::new(limits::LOCAL_FRAME), sent: BTreeMap::new() };
        assert_eq!(peer.receive(), Some(Request::Hello { version: PROTOCOL_VERSION }));
        peer.send(&Reply::Welcome { version: PROTOCOL_VERSION, node: self.name.clone() });
        peer
    }

    /// Accepts a `Run`, and answers that the job has started.
    fn accept_run(&self, nodes: &[&str]) -> (Peer, JobSpec) {
        let mut peer = self.accept();
        let Some(Request::Run { spec, attach: true }) = peer.receive() else { panic!("no Run") };
        peer.send(&attached(nodes));
        peer.send(&Reply::StdinFrom(Some(0)));
        (peer, *spec)
    }
}

/// A command that has connected.
struct Peer {
    stream: UnixStream,
    reader: FrameReader,
    /// Bytes of each rank's streams that were sent, or are taken for it.
    sent: BTreeMap<(u32, OutputStream), u64>,
}

impl Peer {
    /// The next request; nothing at the end of the connection.
    fn receive(&mut self) -> Option<Request> {
        loop {
            if let Some(body) = self.reader.next_frame().unwrap() {
                return Some(codec::decode(body, limits::LOCAL_FRAME).unwrap());
            }
            let mut buffer = [0; 4096];
            let n = self.stream.read(&mut buffer).expect("the command says nothing");
            if n == 0 {
                return None;
            }
            self.reader.push(&buffer[..n]);
        }
    }

    fn send(&mut self, reply: &Reply) {
        let mut frame = Vec::new();
        encode_into(&mut frame, &codec::encode(reply, limits::LOCAL_FRAME).unwrap(), limits::LOCAL_FRAME);
        self.stream.write_all(&frame).unwrap();
    }

    fn output(&mut self, rank: u32, stream: OutputStream, data: &str) {
        let next = self.sent.entry((rank, stream)).or_default();
        let offset = std::mem::replace(next, *next + data.len() as u64);
        self.send(&Reply::Output { rank: Rank(rank), stream, offset, data: ByteBuf::from(data) });
    }

    fn finish(&mut self) {
        self.send(&Reply::Ended(Outcome { code: 0, reason: EndReason::Finished }));
    }

    /// Waits until so many bytes are reported as printed; anything else is an error.
    fn expect_printed(&mut self, mut bytes: u64) {
        while bytes > 0 {
            match self.receive() {
                Some(Request::Printed(n)) => bytes = bytes.checked_sub(n).expect("more printed than sent"),
                other => panic!("{other:?} instead of Printed"),
            }
        }
    }

    /// The next request that is not `Printed`.
    fn receive_other(&mut self) -> Option<Request> {
        loop {
            match self.receive() {
                Some(Request::Printed(_)) => {}
                other => return other,
            }
        }
    }
}

const JOB: u64 = 0xabc;

fn node_id(name: &str) -> NodeId {
    NodeId { name: name.parse().unwrap(), boot: BootId(1) }
}

/// One rank on each of these nodes.
fn attached(nodes: &[&str]) -> Reply {
    attached_after(nodes, 0)
}

/// The same, from a job that counts so many bytes as printed.
fn attached_after(nodes: &[&str], consumed: u64) -> Reply {
    let placement =
        Placement { nodes: nodes.iter().map(|n| node_id(n)).collect(), rank_nodes: (0..nodes.len() as u32).collect() };
    Reply::Attached { job: JobId::from_bits(JOB), placement, consumed, dropped: 0 }
}

fn status(nodes: &[(&str, NodeState)]) -> Reply {
    let info = |(name, state): &(&str, NodeState)| NodeInfo {
        name: name.parse().unwrap(),
        address: "127.0.0.1:7".parse().unwrap(),
        state: *state,
        role: Role::Node,
        slots: 1,
        ranks: vec![],
        protector: None,
        memory: 0,
        pid: 0,
    };
    Reply::Status(ClusterStatus {
        answered_by: "n2".parse().unwrap(),
        view: 1,
        frozen: false,
        nodes: nodes.iter().map(info).collect(),
        jobs: vec![],
        processes: vec![],
    })
}

#[test]
fn a_job_is_described_and_its_output_printed_in_whole_lines() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let mut command = cluster.command(&[
        "run",
        "-n",
        "2",
        "--protect",
        "none",
        "--label",
        "--env",
        "A=b",
        "--map-by",
        "slot",
        "--",
        "sh",
        "-c",
        "x",
    ]);
    let running = Running(Some(command.env("OTHER", "o").env("A", "a").spawn().unwrap()));
    let (mut peer, spec) = node.accept_run(&["n1", "n2"]);
    assert_eq!(spec.validate(), Ok(()));
    assert_eq!((spec.ranks, spec.args.len()), (2, 3));
    assert!(spec.program.starts_with(b"/") && spec.program.ends_with(b"/sh"));
    let value = |name: &str| {
        let values: Vec<_> = spec.env.iter().filter(|(k, _)| k.as_slice() == name.as_bytes()).map(|(_, v)| v.to_vec()).collect();
        assert!(values.len() <= 1, "{name} is set twice");
        values.into_iter().next()
    };
    assert_eq!((value("A"), value("OTHER")), (Some(b"b".to_vec()), Some(b"o".to_vec())));
    assert_eq!(
        peer.receive_other(),
        Some(Request::Stdin { offset: 0, data: ByteBuf::new() }),
        "the end of the input is passed on"
    );
    peer.output(0, Stdout, "one ");
    peer.output(1, Stdout, "two\nthree");
    peer.output(1, Stderr, "error\n");
    peer.output(0, Stdout, "line\n");
    // What follows the unfinished "three" is printed, too, but the account has no holes.
    peer.expect_printed(
        "one two
"
        .len() as u64,
    );
    peer.finish();
    let (code, stdout, stderr) = running.end();
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "[1] two\n[0] one line\n[1] three", "[1] error\n"));
}

#[test]
fn the_exit_code_and_the_reason_are_told() {
    let n2: NodeName = "n2".parse().unwrap();
    let failed = EndReason::RankFailed { rank: Rank(1), node: n2.clone(), status: ExitStatus::Signal(9) };
    let lost = EndReason::NodeLost { node: n2, ranks: vec![Rank(1), Rank(2)], why: "silent".into() };
    let aborted = EndReason::Aborted { rank: Rank(0), code: 256, message: "enough".into() };
    let cases = [
        (0, EndReason::Finished, 0, ""),
        (137, failed, 137, "rank 1 on n2 was ended by signal 9 (SIGKILL)"),
        (113, lost, 113, "node n2 is gone (silent), and ranks 1,2 with it"),
        (256, aborted, 1, "rank 0 called MPI_Abort with code 256: enough"),
    ];
    for (code, reason, expected, text) in cases {
        let cluster = Cluster::new();
        let node = cluster.node("n1");
        let running = cluster.start(&["run", "-n", "1", "--", "true"]);
        let (mut peer, _) = node.accept_run(&["n1"]);
        peer.send(&Reply::Ended(Outcome { code, reason }));
        let (code, _, stderr) = running.end();
        assert_eq!(code, expected, "{stderr}");
        assert!(stderr.contains(text), "{stderr}");
    }
}

#[test]
fn standard_input_goes_out_piece_by_piece() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let mut running = Running(Some(cluster.command(&["run", "-n", "1", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap()));
    let mut stdin = running.child().stdin.take().unwrap();
    let text: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
    let writer = std::thread::spawn({
        let text = text.clone();
        move || stdin.write_all(&text).unwrap()
    });
    let (mut peer, _) = node.accept_run(&["n1"]);
    let mut seen = Vec::new();
    loop {
        let Some(Request::Stdin { offset, data: piece }) = peer.receive() else { panic!("no input") };
        assert_eq!(offset, seen.len() as u64);
        if piece.is_empty() {
            break;
        }
        assert!(piece.len() <= limits::CHUNK);
        seen.extend_from_slice(&piece);
        // The answer to this shows that no second piece came in between.
        peer.output(0, Stdout, "x\n");
        peer.expect_printed(2);
        peer.send(&Reply::StdinFrom(Some(seen.len() as u64)));
    }
    writer.join().unwrap();
    assert!(seen == text, "{} bytes instead of {}", seen.len(), text.len());
    // Rank 0 was brought back: what it has not read is said again, and the end after it.
    peer.send(&Reply::StdinFrom(Some(199_990)));
    assert_eq!(peer.receive(), Some(Request::Stdin { offset: 199_990, data: ByteBuf::from(&text[199_990..]) }));
    peer.send(&Reply::StdinFrom(Some(200_000)));
    assert_eq!(peer.receive(), Some(Request::Stdin { offset: 200_000, data: ByteBuf::new() }));
    peer.finish();
    assert_eq!(running.end().0, 0);
}

#[test]
fn signals_are_passed_on_and_the_third_interrupt_ends_the_job() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let mut running = cluster.start(&["run", "-n", "1", "--", "true"]);
    let (mut peer, _) = node.accept_run(&["n1"]);
    assert!(matches!(peer.receive(), Some(Request::Stdin { .. })), "attached");
    for signal in [Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGQUIT, Signal::SIGINT, Signal::SIGINT] {
        running.signal(signal);
        assert_eq!(peer.receive(), Some(Request::Signal(signal as i32)));
    }
    running.signal(Signal::SIGINT);
    let mut killer = node.accept();
    assert_eq!(killer.receive(), Some(Request::Kill { job: JobId::from_bits(JOB).to_string() }));
    assert_eq!(peer.receive(), Some(Request::Signal(2)));
    peer.send(&Reply::Ended(Outcome { code: 137, reason: EndReason::Killed }));
    let (code, _, stderr) = running.end();
    assert_eq!(code, 137);
    assert!(stderr.contains("two more within 5 s end the job") && stderr.contains("the job was killed"), "{stderr}");
}

#[test]
fn signals_before_the_job_is_there_are_for_the_job() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let mut running = cluster.start(&["run", "-n", "1", "--", "true"]);
    let mut peer = node.accept();
    assert!(matches!(peer.receive(), Some(Request::Run { .. })));
    running.signal(Signal::SIGTERM);
    peer.send(&attached(&["n1"]));
    let requests = [peer.receive().unwrap(), peer.receive().unwrap()];
    assert!(requests.contains(&Request::Signal(15)), "{requests:?}");
    peer.finish();
    assert_eq!(running.end().0, 0);
}

#[test]
fn a_dead_terminal_leaves_the_job_alone() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let mut running = cluster.start(&["run", "-n", "1", "--", "true"]);
    let (mut peer, _) = node.accept_run(&["n1"]);
    assert!(matches!(peer.receive(), Some(Request::Stdin { .. })), "attached");
    running.signal(Signal::SIGHUP);
    assert_eq!(peer.receive(), None);
    let (code, stdout, stderr) = running.end();
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (129, "", ""));
}

#[test]
fn a_closed_output_ends_the_job_quietly() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let mut running = cluster.start(&["run", "-n", "1", "--", "true"]);
    drop(running.child().stdout.take());
    let (mut peer, _) = node.accept_run(&["n1"]);
    peer.output(0, Stdout, "line\n");
    let mut killer = node.accept();
    assert_eq!(killer.receive(), Some(Request::Kill { job: JobId::from_bits(JOB).to_string() }));
    killer.send(&Reply::Done);
    let (code, _, stderr) = running.end();
    assert_eq!((code, stderr.as_str()), (141, ""));
}

#[test]
fn a_reader_that_is_slow_does_not_hold_up_signals() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let mut running = cluster.start(&["run", "-n", "1", "--", "true"]);
    let (mut peer, _) = node.accept_run(&["n1"]);
    let line = format!("{}\n", "x".repeat(limits::CHUNK - 1));
    let pieces = limits::OUTPUT_WINDOW / limits::CHUNK;
    for _ in 0..pieces {
        peer.output(0, Stdout, &line);
    }
    // The first report shows that it prints; the pipe holds less than the window.
    assert!(matches!(peer.receive(), Some(Request::Stdin { .. } | Request::Printed(_))));
    running.signal(Signal::SIGTERM);
    while peer.receive_other() != Some(Request::Signal(15)) {}
    peer.finish();
    let (code, stdout, _) = running.end();
    assert_eq!((code, stdout.len()), (0, pieces * limits::CHUNK));
}

#[test]
fn a_reader_that_never_comes_back_is_not_waited_for() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let mut running = cluster.start(&["run", "-n", "1", "--", "true"]);
    let _unread = running.child().stdout.take().unwrap();
    let (mut peer, _) = node.accept_run(&["n1"]);
    for _ in 0..4 {
        peer.output(0, Stdout, &"x\n".repeat(limits::CHUNK / 2));
    }
    peer.send(&Reply::Ended(Outcome { code: 3, reason: EndReason::Killed }));
    // A signal that comes before the end is passed on, and the next one is tried.
    peer.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "it waits for its reader");
        running.signal(Signal::SIGTERM);
        if matches!(peer.stream.read(&mut [0; 4096]), Ok(0)) {
            break;
        }
    }
    assert_eq!(running.end().0, 3);
}

#[test]
fn a_job_shown_elsewhere_is_no_success() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let running = cluster.start(&["attach", "abc"]);
    let mut peer = node.accept();
    assert_eq!(peer.receive(), Some(Request::Attach { job: "abc".into() }));
    peer.send(&attached(&["n1"]));
    peer.send(&Reply::TakenOver);
    let (code, _, stderr) = running.end();
    assert_eq!(code, 125);
    assert!(stderr.contains("another terminal"), "{stderr}");
}

#[test]
fn the_loss_of_the_protector_is_survived_by_the_terminal() {
    let cluster = Cluster::new();
    let (n1, n2) = (cluster.node("n1"), cluster.node("n2"));
    let running = cluster.start(&["run", "-n", "1", "--", "true"]);
    let (mut peer, _) = n1.accept_run(&["n2"]);
    assert_eq!(peer.receive(), Some(Request::Stdin { offset: 0, data: ByteBuf::new() }));
    peer.output(0, Stdout, "one\n");
    peer.expect_printed(4);
    // An unfinished line: not printed, not reported, so the next protector sends it again.
    peer.output(0, Stdout, "tw");
    drop((peer, n1));
    let mut peer = n2.accept();
    assert_eq!(peer.receive(), Some(Request::Attach { job: JobId::from_bits(JOB).to_string() }));
    peer.send(&attached_after(&["n2"], 4));
    // What comes again is reported again, though nothing is printed: the job waits for it.
    peer.output(0, Stdout, "one\n");
    peer.expect_printed(4);
    peer.output(0, Stdout, "two\n");
    peer.finish();
    let (code, stdout, stderr) = running.end();
    assert_eq!((code, stdout.as_str()), (0, "one\ntwo\n"), "{stderr}");
    assert!(stderr.contains("the daemon on n1 went away"), "{stderr}");
}

#[test]
fn the_loss_of_the_job_with_its_protector_is_the_loss_of_a_node() {
    let cluster = Cluster::new();
    let (n1, n2) = (cluster.node("n1"), cluster.node("n2"));
    let running = cluster.start(&["run", "-n", "2", "--protect", "none", "--", "true"]);
    drop(n1.accept_run(&["n1", "n2"]));
    drop(n1);
    // Its death is confirmed only at the second question.
    for state in [NodeState::Silent, NodeState::Dead] {
        let mut peer = n2.accept();
        assert_eq!(peer.receive(), Some(Request::Status));
        peer.send(&status(&[("n1", state), ("n2", NodeState::Alive)]));
    }
    let (code, _, stderr) = running.end();
    assert_eq!(code, 113, "{stderr}");
    assert!(stderr.contains("node n1 is gone") && stderr.contains("and rank 0 with it"), "{stderr}");
}

#[test]
fn the_loss_of_the_last_protector_is_an_error() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let running = cluster.start(&["run", "-n", "1", "--", "true"]);
    drop(node.accept_run(&["n1"]));
    drop(node);
    let (code, _, stderr) = running.end();
    assert_eq!(code, 125);
    assert!(stderr.contains("no daemon of the cluster"), "{stderr}");
}

#[test]
fn errors_say_what_to_do() {
    let cluster = Cluster::new();
    let (code, _, stderr) = cluster.start(&["nodes"]).end();
    assert_eq!(code, 125);
    assert!(stderr.contains("radic cluster start"), "{stderr}");

    let node = cluster.node("n1");
    let running = cluster.start(&["run", "-n", "1", "--", "true"]);
    let mut peer = node.accept();
    assert!(matches!(peer.receive(), Some(Request::Run { .. })));
    peer.send(&Reply::Error("no room".into()));
    assert_eq!(running.end(), (125, String::new(), "radic: no room\n".into()));

    let running = cluster.start(&["run", "-n", "1", "--", "./no-such-program"]);
    assert_eq!(running.end(), (127, String::new(), "radic: ./no-such-program: no such file; give the program's path\n".into()));
    assert_eq!(cluster.start(&["run", "--", "true"]).end().0, 2, "wrong usage");
}

#[test]
fn a_detached_job_is_named() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let running = cluster.start(&["run", "-n", "1", "--detach", "--", "true"]);
    let mut peer = node.accept();
    assert!(matches!(peer.receive(), Some(Request::Run { attach: false, .. })));
    peer.send(&attached(&["n1"]));
    assert_eq!(running.end(), (0, format!("{}\n", JobId::from_bits(JOB)), String::new()));
}

#[test]
fn how_a_job_is_protected_is_passed_on() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let flags = "--protect on --ckpt-interval 0.2 --replicas 2 --outbox 1M --log-limit 2G --keep-logs --record-time off --record-tsc --log waiting --mtbf 2h";
    let words: Vec<&str> = ["run", "-n", "1", "--detach"].into_iter().chain(flags.split(' ')).chain(["--", "true"]).collect();
    for (words, protection, mtbf_s) in [
        (
            &words[..],
            Protection {
                protect: Protect::On,
                interval: Interval::Every(200),
                replicas: 2,
                outbox: Some(1 << 20),
                log: 2 << 30,
                keep_logs: true,
                record_time: false,
                record_tsc: true,
                log_mode: LogMode::Waiting,
                payload: PayloadMode::Log,
            },
            7200,
        ),
        (
            &["run", "-n", "1", "--detach", "--protect=off", "--ckpt-interval=never", "--", "true"][..],
            Protection {
                protect: Protect::Off,
                interval: Interval::Never,
                log_mode: LogMode::Causal,
                payload: PayloadMode::Sender,
                ..Protection::default()
            },
            86_400,
        ),
    ] {
        let running = cluster.start(words);
        let mut peer = node.accept();
        let Some(Request::Run { spec, .. }) = peer.receive() else { panic!("no Run") };
        assert_eq!((spec.protection, spec.mtbf_s), (protection, mtbf_s));
        peer.send(&attached(&["n1"]));
        assert_eq!(running.end().0, 0);
    }
    for (flag, part) in [("--outbox=1K", "the outbox"), ("--ckpt-interval=0.001", "interval"), ("--replicas=3", "1..=2")] {
        let (code, _, stderr) = cluster.start(&["run", "-n", "1", "--protect", "on", flag, "--", "true"]).end();
        assert!(code != 0 && stderr.contains(part), "{flag}: {stderr}");
    }
}

#[test]
fn checkpoints_are_told_rank_by_rank_and_one_that_failed_is_a_failure() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let rank = |rank, result| RankCheckpoint { rank: Rank(rank), node: "n1".parse().unwrap(), result };
    for (last, code) in [(Ok(4), 0), (Err("it has ended".to_owned()), 125)] {
        let running = cluster.start(&["checkpoint", "abc"]);
        let mut peer = node.accept();
        assert_eq!(peer.receive(), Some(Request::Checkpoint { job: "abc".into() }));
        peer.send(&Reply::Checkpoints(vec![rank(0, Ok(3))]));
        peer.send(&Reply::Checkpoints(vec![rank(1, last)]));
        peer.send(&Reply::Done);
        let (exit, stdout, stderr) = running.end();
        assert_eq!((exit, stdout.lines().count(), stderr.as_str()), (code, 2, ""), "{stdout}");
    }
}

#[test]
fn a_log_is_shown_outcome_by_outcome() {
    let cluster = Cluster::new();
    let node = cluster.node("n2");
    // recv of 64 bytes on descriptor 5, of 9000 on 100: two bytes and four.
    let journal: &[u8] = &[0x50, 64, 0xf0, 85, 0xa8, 0x46];
    let running = cluster.start(&["log", "show", "abc", "1", "--events"]);
    let mut peer = node.accept();
    assert_eq!(peer.receive(), Some(Request::Log { job: "abc".into(), rank: Rank(1) }));
    let process = ProcessId { job: JobId::from_bits(JOB), rank: Rank(1) };
    let image =
        HeldImage { image: 2, parent: Some(1), cut: 1000, bytes: 2048, line: LineMark::default(), state: ImageState::Committed };
    peer.send(&Reply::Log(
        "n3".parse().unwrap(),
        HeldLog {
            process,
            incarnation: Incarnation::FIRST,
            current: true,
            journal: Span { start: 1000, end: 1006 },
            stable: 1006,
            causes: Span::default(),
            forgotten: vec![],
            streams: vec![],
            images: vec![image],
        },
    ));
    // The second outcome comes in two pieces.
    for (position, bytes) in [(1000, &journal[..4]), (1004, &journal[4..])] {
        assert_eq!(peer.receive(), Some(Request::ReadLog { part: LogPart::Journal, position }));
        peer.send(&Reply::LogBytes(ByteBuf::from(bytes)));
    }
    let (code, stdout, stderr) = running.end();
    assert_eq!((code, stderr.as_str()), (0, ""));
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines[0], "rank 1 of job 000000000abc, incarnation 0, held by n3");
    assert_eq!(lines[4].split_whitespace().collect::<Vec<_>>(), ["2", "1", "1000", "2.0", "KiB", "committed"], "{stdout}");
    let events = ["        1000  recv      bytes 64 fd 5", "        1002  recv      bytes 9000 fd 100"];
    assert_eq!(lines[lines.len() - 2..], events, "{stdout}");
}

#[test]
fn json_is_for_programs() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let running = cluster.start(&["nodes", "--json"]);
    let mut peer = node.accept();
    assert_eq!(peer.receive(), Some(Request::Status));
    peer.send(&status(&[("n1", NodeState::Alive), ("n2", NodeState::Dead)]));
    let (code, stdout, _) = running.end();
    let nodes: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(code, 0);
    assert_eq!(nodes[1]["name"], "n2");
    assert_eq!(nodes[1]["state"], "dead");
    assert_eq!(nodes[0]["ranks"], serde_json::json!([]));
    assert_eq!(nodes[0]["role"], "node");
}

/// A command whose terminal is a pseudo terminal; the other end of it.
fn on_terminal(cluster: &Cluster, args: &[&str]) -> (Running, File) {
    let pty = nix::pty::openpty(None, None).unwrap();
    // A copy of the other end in the command would keep the terminal alive.
    for fd in [&pty.master, &pty.slave] {
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
    }
    let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
    let command = cluster.command(args);
    // The terminal must be the controlling one; setsid(1) sees to that without unsafe code here.
    let mut wrapped = Command::new("setsid");
    wrapped.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
    wrapped.stdin(end(&pty.slave)).stdout(end(&pty.slave)).stderr(end(&pty.slave));
    let child = wrapped.spawn().unwrap();
    (Running(Some(child)), File::from(pty.master))
}

/// Reads from the terminal until `text` has come.
fn expect(terminal: &mut File, text: &str) {
    let deadline = Instant::now() + PATIENCE;
    let mut seen = String::new();
    while !seen.contains(text) {
        assert!(Instant::now() < deadline, "no {text:?} in {seen:?}");
        let mut fds = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&*terminal), nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, nix::poll::PollTimeout::from(1000u16)).unwrap();
        if fds[0].any() == Some(true) {
            let mut buffer = [0; 1000];
            let n = terminal.read(&mut buffer).expect("the terminal is closed");
            seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
    }
}

#[test]
fn a_prompt_is_shown_and_the_answer_passed_on() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let (running, mut terminal) = on_terminal(&cluster, &["run", "-n", "1", "--", "true"]);
    let (mut peer, _) = node.accept_run(&["n1"]);
    peer.output(0, Stdout, "how many? ");
    expect(&mut terminal, "how many? ");
    terminal.write_all(b"4\n").unwrap();
    assert_eq!(peer.receive_other(), Some(Request::Stdin { offset: 0, data: ByteBuf::from(&b"4\n"[..]) }));
    // The interrupt character becomes a signal for the job, and no input.
    terminal.write_all(b"\x03").unwrap();
    assert_eq!(peer.receive_other(), Some(Request::Signal(2)));
    peer.finish();
    expect(&mut terminal, "interrupt passed on");
    assert_eq!(running.end().0, 0);
}

#[test]
fn a_terminal_that_is_closed_ends_nothing_but_the_command() {
    let cluster = Cluster::new();
    let node = cluster.node("n1");
    let (_running, mut terminal) = on_terminal(&cluster, &["run", "-n", "1", "--", "true"]);
    let (mut peer, _) = node.accept_run(&["n1"]);
    peer.output(0, Stdout, "line\n");
    expect(&mut terminal, "line");
    drop(terminal);
    assert_eq!(peer.receive_other(), None, "neither an end of input nor a signal");
}

#[test]
fn a_protector_that_hangs_is_left_for_another() {
    let cluster = Cluster::new();
    let (n1, n2) = (cluster.node("n1"), cluster.node("n2"));
    let running = cluster.start(&["run", "-n", "1", "--", "true"]);
    let (mut peer, _) = n1.accept_run(&["n2"]);
    assert_eq!(peer.receive(), Some(Request::Stdin { offset: 0, data: ByteBuf::new() }));
    assert_eq!(peer.receive(), Some(Request::Ping));
    peer.send(&Reply::Pong);
    assert_eq!(peer.receive(), Some(Request::Ping), "one that answers is asked again");
    // Now it hangs: its connection stays open, and nothing comes.
    let mut other = n2.accept();
    assert_eq!(other.receive(), Some(Request::Attach { job: JobId::from_bits(JOB).to_string() }));
    other.send(&attached(&["n2"]));
    other.finish();
    let (code, _, stderr) = running.end();
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("n1"), "{stderr}");
}
