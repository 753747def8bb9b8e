//! A hostile network, and a hostile program of the same user: refused by name, at bounded cost, and all other callers are served.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::MPICH;
use radic_tests::process;
use radic_tests::protection::{ON, Protected};
use radic_tests::random::Random;
use radic_tests::sockets;
use radic_wire::channel::Channel;
use radic_wire::event::EventName;
use radic_wire::ids::{BootId, NodeId};
use radic_wire::key::ClusterKey;
use radic_wire::local::Request;
use radic_wire::membership::{Member, Role};
use radic_wire::peer::{Hello, LinkFrame, PeerMessage, Purpose, Welcome};
use radic_wire::{PROTOCOL_VERSION, codec, frame, limits};

/// Bad connections in all.
const ATTACKS: usize = 10_000;
/// What the daemon's memory may have grown by at the end, in KiB: the allocator keeps some of what was freed.
const GROWTH_KIB: u64 = 3 << 10;
/// Time in which the daemon must have closed a bad connection.
const CLOSED: Duration = Duration::from_millis(limits::HANDSHAKE_MS + 1_500);
/// Time for all of a burst of connections to be established: a connection that finds the daemon's queue full takes 1 s more, and
/// so would the probe of a member.
const BURST: Duration = Duration::from_millis(500);
/// Bytes of the second handshake message with its length: all that the sender of a captured first one may get.
const ANSWER: usize = 4 + 50;

/// The daemon under attack.
struct Target {
    address: SocketAddr,
    key: ClusterKey,
    id: NodeId,
    pid: u32,
}

impl Target {
    fn new(cluster: &Cluster, node: &str) -> Self {
        let uid = nix::unistd::geteuid().as_raw();
        let key = ClusterKey::load(&cluster.dir().join("key"), uid).expect("the cluster's key");
        let status = cluster.status_at(node);
        let info = status.nodes.iter().find(|n| n.name.as_str() == node).expect("it knows itself");
        let mut target = Target { address: info.address, key, id: stranger().id, pid: info.pid };
        // A probe that names no node learns which one is there.
        let (_, welcome) = Peer::open(&target).hello(&hello(None, Purpose::Probe));
        target.id = welcome.id;
        target
    }

    fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    fn offer(&self, bytes: &[u8]) -> Vec<u8> {
        offer(self.address, bytes)
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect_timeout(&address, CLOSED).expect("there is a listener");
    socket.set_read_timeout(Some(CLOSED)).expect("a socket option");
    socket.set_nodelay(true).expect("a socket option");
    socket
}

/// Sends bytes and the end; what comes back before the other side closes.
fn offer(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut socket = connect(address);
    // A listener that has closed already has seen enough.
    _ = socket.write_all(bytes);
    _ = socket.shutdown(Shutdown::Write);
    rest(&mut socket)
}

/// What comes until the daemon closes the connection, which it must.
fn rest(socket: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the daemon keeps a bad connection open: {error}; it said {} bytes", bytes.len()),
    }
    bytes
}

/// A member that no node knows.
fn stranger() -> Member {
    let id = NodeId { name: "stranger".parse().expect("a name"), boot: BootId(77) };
    Member { id, address: ([127, 0, 0, 1], 9).into(), data: [127, 0, 0, 1].into(), log_port: 1, role: Role::Node, slots: 1 }
}

fn hello(to: Option<NodeId>, purpose: Purpose) -> Hello {
    Hello { version: PROTOCOL_VERSION, from: stranger(), to, purpose }
}

/// A peer that holds the key.
struct Peer {
    socket: TcpStream,
    channel: Channel,
}

impl Peer {
    fn open(target: &Target) -> Self {
        Peer::with_key(target, &target.key)
    }

    fn with_key(target: &Target, key: &ClusterKey) -> Self {
        Peer { socket: target.connect(), channel: Channel::initiator(key, 4 * limits::PEER_FRAME) }
    }

    fn flush(&mut self) {
        let output = self.channel.take_output();
        _ = self.socket.write_all(&output);
    }

    fn send<T: serde::Serialize>(&mut self, message: &T) {
        self.send_bytes(&codec::encode(message, limits::PEER_FRAME).expect("a short message"));
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        self.channel.send(bytes);
        self.flush();
    }

    /// The next message; none if the daemon closes.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(message) = self.channel.poll_message().expect("the daemon's messages are in order") {
                return Some(message);
            }
            self.flush();
            match self.socket.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.channel.handle_input(&buffer[..count]).expect("the daemon holds the key"),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("neither an answer nor an end: {error}"),
            }
        }
    }

    /// Completes the handshake and says hello.
    fn hello(mut self, hello: &Hello) -> (Self, Welcome) {
        self.send(hello);
        let welcome = self.receive().expect("a holder of the key is welcomed, or told why not");
        let welcome = codec::decode(&welcome, limits::PEER_FRAME).expect("a welcome");
        (self, welcome)
    }

    /// The daemon closes without another word.
    fn expect_closed(mut self) {
        self.flush();
        assert_eq!(self.receive(), None, "an answer to nonsense");
    }
}

/// The first handshake message of a holder of `key`.
fn opening(key: &ClusterKey) -> Vec<u8> {
    Channel::initiator(key, limits::PEER_FRAME).take_output()
}

/// Ways to be a bad peer, each with a name. Each checks what the daemon answers, and that it closes.
type Attack = (&'static str, fn(&Target, &mut Random));

const QUICK: [Attack; 13] = [
    ("garbage", |target, random| {
        let count = 1 + random.below(300);
        assert_eq!(target.offer(&random.bytes(count)), b"", "an answer to garbage");
    }),
    ("a truncated handshake", |target, random| {
        let opening = opening(&target.key);
        assert_eq!(target.offer(&opening[..random.below(opening.len())]), b"");
    }),
    ("an oversized handshake", |target, random| {
        let claim = 97 + random.below(u32::MAX as usize - 97) as u32;
        assert_eq!(target.offer(&claim.to_le_bytes()), b"");
    }),
    ("another key", |target, random| {
        let key = random.bytes(32).try_into().expect("32 bytes");
        assert_eq!(target.offer(&opening(&ClusterKey::from_bytes(key))), b"", "a peer without the key has learnt something");
    }),
    ("a flipped bit", |target, random| {
        let mut opening = opening(&target.key);
        let bit = random.below(8 * opening.len());
        opening[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(target.offer(&opening), b"");
    }),
    ("nothing at all", |target, _| assert_eq!(target.offer(b""), b"")),
    ("a garbled record after the handshake", |target, random| {
        let mut peer = Peer::open(target);
        peer.send(&hello(None, Purpose::Probe));
        while !peer.channel.is_confirmed() {
            let mut buffer = [0; 4096];
            let count = peer.socket.read(&mut buffer).expect("the answer to the handshake");
            peer.channel.handle_input(&buffer[..count]).expect("the daemon holds the key");
        }
        let mut record = peer.channel.take_output();
        let bit = 32 + random.below(8 * record.len() - 32);
        record[bit / 8] ^= 1 << (bit % 8);
        _ = peer.socket.write_all(&record);
        assert_eq!(rest(&mut peer.socket), b"", "an answer to a garbled record");
    }),
    ("a hello that is none", |target, random| {
        let mut peer = Peer::open(target);
        let count = random.below(100);
        peer.send_bytes(&random.bytes(count));
        peer.expect_closed();
    }),
    ("a hello for another node", |target, random| {
        let boot = BootId(random.number());
        let (peer, welcome) = Peer::open(target).hello(&hello(Some(NodeId { boot, ..target.id.clone() }), Purpose::Link));
        assert!(welcome.refused.expect("a reason").contains("meant for"));
        peer.expect_closed();
    }),
    ("a handshake of another version", |target, _| {
        let mut channel = Channel::initiator_of(PROTOCOL_VERSION + 1, &target.key, limits::PEER_FRAME);
        let answer = target.offer(&channel.take_output());
        let error = channel.handle_input(&answer).expect_err("two versions understand each other").to_string();
        let both = format!("the peer speaks wire protocol {PROTOCOL_VERSION}, this program {}", PROTOCOL_VERSION + 1);
        assert!(error.starts_with(&both), "{error}");
    }),
    ("a hello of another version", |target, _| {
        let other = Hello { version: PROTOCOL_VERSION + 1, ..hello(Some(target.id.clone()), Purpose::Link) };
        let (peer, welcome) = Peer::open(target).hello(&other);
        assert!(welcome.refused.expect("a reason").contains("version"));
        peer.expect_closed();
    }),
    ("a link that skips a number", |target, random| {
        let (mut peer, welcome) = Peer::open(target).hello(&hello(Some(target.id.clone()), Purpose::Link));
        assert_eq!(welcome.refused, None);
        peer.send(&LinkFrame::Data { seq: 2 + random.number() / 2, message: PeerMessage::Unsubscribe });
        peer.expect_closed();
    }),
    ("garbage on a link", |target, random| {
        let (mut peer, _) = Peer::open(target).hello(&hello(Some(target.id.clone()), Purpose::Link));
        let count = 1 + random.below(1000);
        peer.send_bytes(&[vec![0xff], random.bytes(count)].concat());
        peer.expect_closed();
    }),
];

/// A holder of the key that is no member tries to give orders.
fn outsider(target: &Target) {
    let (mut peer, welcome) = Peer::open(target).hello(&hello(Some(target.id.clone()), Purpose::Link));
    let orders = [PeerMessage::Die, PeerMessage::Shutdown, PeerMessage::Subscribe];
    for (seq, message) in (welcome.received + 1..).zip(orders) {
        peer.send(&LinkFrame::Data { seq, message });
    }
    let ack = peer.receive().expect("an acknowledgement");
    assert!(matches!(codec::decode(&ack, limits::PEER_FRAME), Ok(LinkFrame::Ack { .. })));
}

/// A captured conversation, sent again.
fn replay(target: &Target) {
    let mut peer = Peer::open(target);
    let mut captured = peer.channel.take_output();
    _ = peer.socket.write_all(&captured);
    let mut answer = [0; ANSWER];
    peer.socket.read_exact(&mut answer).expect("the answer to the handshake");
    peer.channel.handle_input(&answer).expect("the daemon holds the key");
    peer.channel.send(&codec::encode(&hello(None, Purpose::Probe), limits::PEER_FRAME).expect("short"));
    let record = peer.channel.take_output();
    _ = peer.socket.write_all(&record);
    assert!(peer.receive().is_some(), "the original is answered");
    captured.extend(record);
    // The daemon cannot know the first message from a fresh one; what follows does not open.
    assert!(target.offer(&captured).len() <= ANSWER, "a replayed hello was answered");
}

/// A message over the limit, from a holder of the key.
fn oversized(target: &Target) {
    let (mut peer, _) = Peer::open(target).hello(&hello(Some(target.id.clone()), Purpose::Link));
    peer.send_bytes(&vec![0; limits::PEER_FRAME + 1]);
    peer.expect_closed();
}

/// More silent connections than there may be handshakes. While they last the daemon serves a command, and takes in a new member.
fn half_open(cluster: &mut Cluster, target: &Target, newcomer: &str) {
    let then = Instant::now();
    let mut silent: Vec<_> = (0..limits::HANDSHAKES + 100).map(|_| target.connect()).collect();
    let connected = then.elapsed();
    assert!(connected < BURST, "{} connections took {connected:.1?}: the daemon's queue is too short", silent.len());
    let status = cluster.radic(["status"]).run().expect(0);
    let served = Instant::now();
    cluster.start_node(newcomer, &[]);
    let (count, newcomer) = (silent.len(), served.elapsed());
    println!("{count} silent connections in {connected:.0?}: status took {:.0?}, a new member {newcomer:.0?}", status.elapsed);
    silent.iter_mut().for_each(|socket| assert_eq!(rest(socket), b""));
    println!("all closed by the daemon after {:.1?}", then.elapsed());
    assert!(then.elapsed() < CLOSED + Duration::from_secs(2));
}

/// A handshake that comes byte by byte, each in good time.
fn slow_loris(target: &Target) {
    let mut socket = target.connect();
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket option");
    let then = Instant::now();
    for byte in opening(&target.key) {
        if socket.write_all(&[byte]).is_err() {
            break;
        }
        match socket.read(&mut [0; 1]) {
            Ok(count) => {
                assert_eq!(count, 0, "an answer to half a handshake");
                break;
            }
            Err(error) => assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionReset)),
        }
    }
    println!("a handshake of one byte in 100 ms was ended after {:.1?}", then.elapsed());
    assert!(then.elapsed() < CLOSED);
}

/// Nonsense on the unix socket of the same user.
fn bad_commands(cluster: &Cluster, node: &str, count: usize, random: &mut Random) {
    let framed = |body: &[u8], hello: bool| {
        let mut bytes = Vec::new();
        let say = |request: &Request| codec::encode(request, limits::LOCAL_FRAME).expect("a short request");
        if hello {
            frame::encode_into(&mut bytes, &say(&Request::Hello { version: PROTOCOL_VERSION }), limits::LOCAL_FRAME);
        }
        frame::encode_into(&mut bytes, body, limits::LOCAL_FRAME);
        bytes
    };
    for number in 0..count {
        // Some single bytes are commands: one of them ends the cluster, as it should.
        let garbage = loop {
            let length = random.below(200);
            let bytes = random.bytes(length);
            if codec::decode::<Request>(&bytes, limits::LOCAL_FRAME).is_err() {
                break bytes;
            }
        };
        let bytes = match number % 6 {
            0 => garbage,
            1 => framed(&garbage, false),
            2 => framed(&garbage, true),
            3 => (limits::LOCAL_FRAME as u32 + 1 + random.below(1 << 30) as u32).to_le_bytes().to_vec(),
            4 => framed(&codec::encode(&Request::Hello { version: PROTOCOL_VERSION + 1 }, 100).expect("short"), false),
            _ => framed(&codec::encode(&Request::Signal(9), 100).expect("short"), true),
        };
        let mut socket = radic_tests::client::connect(&cluster.node_dir(node)).expect("the daemon listens");
        socket.set_read_timeout(Some(CLOSED)).expect("a socket option");
        _ = socket.write_all(&bytes);
        _ = socket.shutdown(Shutdown::Write);
        match socket.read_to_end(&mut Vec::new()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => panic!("the daemon keeps a bad command connected"),
            _ => {}
        }
    }
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the daemon runs").count()
}

fn attack_all(target: &Target, count: usize, random: &mut Random) {
    for (name, attack) in QUICK {
        let then = Instant::now();
        let number = count / QUICK.len() + 1;
        (0..number).for_each(|_| attack(target, random));
        if number > 100 {
            println!("{number} x {name}: {:.1?}", then.elapsed());
        }
    }
}

/// Everything, once: `count` connections of the quick kinds, a fifth of that in bad commands, and the slow ones.
fn attack(cluster: &mut Cluster, target: &Target, count: usize, random: &mut Random, newcomer: &str) {
    let memory = |after: &str| println!("{:6} KiB after {after}", process::resident_kib(target.pid));
    let then = Instant::now();
    attack_all(target, count, random);
    println!("{count} bad connections in {:.1?}", then.elapsed());
    memory("them");
    outsider(target);
    (0..10).for_each(|_| replay(target));
    (0..3).for_each(|_| oversized(target));
    memory("oversized messages");
    bad_commands(cluster, "n1", count / 5, random);
    memory("bad commands");
    slow_loris(target);
    half_open(cluster, target, newcomer);
    memory("slow and half-open connections");
}

#[test]
fn a_hostile_network_costs_bounded_memory_and_time() {
    let mut cluster = Cluster::start(Kind::Logical, 3);
    // It must not notice anything.
    let mut job = cluster.job(3, "", &["cat"]).stdin_open().limit(Duration::from_secs(120)).start();
    let target = Target::new(&cluster, "n1");
    let mut random = Random::from_environment();
    // Whatever is done for the first time may allocate for good.
    attack_all(&target, 200, &mut random);
    bad_commands(&cluster, "n1", 20, &mut random);
    cluster.status_at("n1");
    let (memory, open) = (process::resident_kib(target.pid), descriptors(target.pid));
    attack(&mut cluster, &target, 1_000, &mut random, "n4");
    attack(&mut cluster, &target, ATTACKS, &mut random, "n5");
    // It serves on: commands, the job, the other nodes.
    assert_eq!(cluster.status_at("n1").nodes.len(), 5);
    job.type_in(b"still here\n");
    assert_eq!(job.wait().expect(0).stdout(), "still here\n");
    cluster.job(5, "", &["true"]).run().expect(0);
    // The fifth node has brought connections of its own.
    process::eventually(CLOSED, "the daemon to close what it has opened", || descriptors(target.pid) <= open + 16);
    let (after, left) = (process::resident_kib(target.pid), descriptors(target.pid));
    println!("memory of the daemon: {memory} KiB before, {after} KiB after; descriptors: {open} before, {left} after");
    assert!(after <= memory + GROWTH_KIB, "the daemon has grown by {} KiB", after - memory);
    let mut events = cluster.events_at("n1");
    let refused = events.expect("a refusal", CLOSED, |event| event.event == EventName::Refused);
    println!("a refusal: {}", refused.text);
    let log = cluster.log("n1");
    assert!(log.contains("refused a connection from 127.0.0.1:"), "no refusal is logged");
    let dead = |event: &radic_wire::event::Event| event.event == EventName::Confirm;
    assert!(events.wait(Duration::from_millis(200), dead).is_none(), "a node was declared dead meanwhile");
    cluster.stop();
}

/// All ports that RADIC opens: of each daemon two, of each rank one.
#[test]
fn no_port_of_a_node_says_anything_to_strangers() {
    /// The library's own descriptors.
    const HIGH: i32 = 1_000;
    const RANKS: usize = 3;
    let cluster = Cluster::start(Kind::Logical, RANKS);
    let mut random = Random::from_environment();
    let program = MPICH.program("rounds");
    let command = [program.as_str(), "--rounds", "1500", "--pause", "1"];
    let mut job = MPICH.job(&cluster, RANKS, ON, &command).limit(Duration::from_secs(60)).start();
    job.until_line("rounds begin");
    let status = cluster.status();
    let mut ports = Vec::new();
    for node in &status.nodes {
        let listeners = sockets::listeners(node.pid);
        assert_eq!(listeners.len(), 2, "the node's port, and its log service's: {listeners:?}");
        ports.extend(listeners.into_keys());
        for rank in &node.ranks {
            let doors: Vec<_> = sockets::listeners(rank.pid).into_iter().filter(|(_, fd)| *fd >= HIGH).collect();
            assert_eq!(doors.len(), 1, "the door of rank {}: {doors:?}", rank.rank);
            ports.extend(doors.into_iter().map(|(port, _)| port));
        }
    }
    for port in &ports {
        let length = 1 + random.below(300);
        for bytes in [&random.bytes(length)[..], &[255; 300], &[0; 60], b"x", b""] {
            assert_eq!(offer(*port, bytes), b"", "{port} answers {} bytes", bytes.len());
        }
    }
    // All at once, and silent.
    let mut silent: Vec<_> = ports.iter().map(|port| connect(*port)).collect();
    silent.iter_mut().for_each(|socket| assert_eq!(rest(socket), b""));
    println!("{} ports", ports.len());
    let finished = job.wait().expect(0);
    assert!(finished.stdout().contains("OK rounds"), "{finished}");
    Protected::newest(&cluster, RANKS).check_ranks(1);
    cluster.stop();
}
