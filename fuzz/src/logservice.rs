//! The log service ([`crate::logs`]) on real sockets: up to four connections, each a byte of what for, a byte of which incarnation, a length and what is said on it. With
//! the highest bit of the first byte it is said in frames, each a length and its body, in a record of its own; with the next one in one record; else in none. With
//! the one after that the last record follows.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use radic_wire::frame::{FrameReader, encode_into};
use radic_wire::ids::{BootId, Incarnation, NodeId};
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use radic_wire::log::{FromProtector, ToProtector};
use radic_wire::login::{Channel, LOGIN, Login, NONCE, WELCOME};
use radic_wire::mac::JobKey;
use radic_wire::record::{Opener, Sealer};
use radic_wire::span::Span;

use crate::Inputs;
use crate::input::Input;
use crate::log::to_protector;
use crate::logs::client::Client;
use crate::logs::{self, Logs, StoreOrder};
use crate::store::Speaker;
use crate::values::{job, process, written};

/// Nothing here takes longer unless it hangs.
const LIMIT: Duration = Duration::from_secs(8);
const CONNECTIONS: usize = 4;
const JOURNAL: &[u8] = b"determinants";

/// A service, a process that behaves, and how many connections there were.
struct World {
    logs: Logs,
    honest: Client,
    connections: u32,
    _dir: tempfile::TempDir,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| Mutex::new(World::new()));

fn cluster() -> ClusterKey {
    ClusterKey::from_bytes([7; 32])
}

fn key() -> JobKey {
    JobKey::derive(&cluster(), job())
}

/// A connection, and how far it has come: what it is for, and what its records are opened with.
struct Visit(TcpStream, Option<(Channel, Opener)>);

fn speaker(rank: u32, restart: u32) -> Speaker {
    Speaker { process: process(rank), incarnation: Incarnation::restarted(restart) }
}

/// Whatever is said, each connection comes to its end, what is answered can be read, and the service goes on serving processes that behave.
pub fn check(data: &[u8]) -> bool {
    let mut world = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    let mut input = Input(data);
    let mut connections = Vec::new();
    while !input.is_empty() && connections.len() < CONNECTIONS {
        let (kind, restart, length) = (input.u8(), input.u8(), usize::from(input.u16()));
        connections.push(world.visit(kind, restart, input.take(length)));
    }
    let answers: Vec<usize> = connections.into_iter().flatten().map(end).collect();
    world.still_serves();
    let asker = NodeId { name: "n1".parse().expect("a name"), boot: BootId(1) };
    world.logs.order(StoreOrder::ForgetProcess(asker, 0, process(1)));
    answers.iter().any(|frames| *frames > 0)
}

impl World {
    fn new() -> World {
        // libFuzzer's timer would interrupt calls on sockets, here and in the service. LIMIT says what hangs.
        SigSet::from(Signal::SIGALRM).thread_block().expect("a signal that can be blocked");
        let dir = tempfile::tempdir().expect("a folder");
        let address = SocketAddr::from(([127, 0, 0, 1], 0)).ip();
        let (logs, _) = logs::start(logs::Config::new(address, dir.path().into(), cluster())).expect("a service");
        (0..8).for_each(|rank| drop(logs.order(StoreOrder::SetReplica(process(rank), None))));
        let mut honest = Client::open(logs.address(), &key(), speaker(0, 0), Channel::Journal, LIMIT).expect("a log");
        let none = Span::default();
        let hello = ToProtector::hello(process(0), Incarnation::FIRST, none, none);
        honest.send(&hello).expect("a service that listens");
        honest.send(&ToProtector::Journal { position: 0, bytes: JOURNAL }).expect("a service that listens");
        World { logs, honest, connections: 0, _dir: dir }
    }

    /// The log of the process that behaves is there.
    fn still_serves(&mut self) {
        self.honest.send(&ToProtector::FetchJournal { position: 0 }).expect("a service that listens");
        loop {
            let body = self.honest.receive().expect("a service that answers");
            if let Ok(FromProtector::Journal { position, bytes }) = FromProtector::read(&body) {
                assert_eq!((position, bytes), (0, JOURNAL), "another journal");
                return;
            }
        }
    }

    /// Connects, logs in as this says, and says it. None: it was turned away meanwhile.
    fn visit(&mut self, kind: u8, restart: u8, said: &[u8]) -> Option<Visit> {
        let channel = match kind & 7 {
            2 => Channel::Journal,
            3 => Channel::Bulk,
            4 => Channel::Image,
            5 => Channel::Replica,
            6 => Channel::Fetch,
            _ => Channel::Journal,
        };
        let speaker = speaker(1, u32::from(restart));
        let mut socket = self.connect();
        let entered = match kind & 7 {
            0 | 7 => None,
            1 => {
                login(&mut socket, speaker, channel, 1)?;
                None
            }
            _ => login(&mut socket, speaker, channel, 0)?,
        };
        let Some((mut sealer, opener)) = entered else {
            // A caller that is turned away meanwhile cannot say all of it.
            _ = socket.write_all(said);
            return Some(Visit(socket, None));
        };
        _ = socket.write_all(&records(kind, &mut sealer, said));
        Some(Visit(socket, Some((channel, opener))))
    }

    /// From another address each time: the ports of one would be used up within a minute.
    fn connect(&mut self) -> TcpStream {
        self.connections += 1;
        let [_, a, b, c] = (self.connections / 64).to_be_bytes();
        let from = SockaddrIn::new(127, a.max(1), b, c.max(1), 0);
        let socket: OwnedFd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        bind(socket.as_raw_fd(), &from).expect("an address of this machine");
        let SocketAddr::V4(to) = self.logs.address() else { panic!("the service listens elsewhere") };
        connect(socket.as_raw_fd(), &SockaddrIn::from(to)).expect("a service that listens");
        let socket = TcpStream::from(socket);
        socket.set_nodelay(true).and_then(|()| socket.set_read_timeout(Some(LIMIT))).expect("a socket");
        socket
    }
}

/// Logs in, with so much xored into the proof. None: it was turned away before that.
fn login(socket: &mut TcpStream, speaker: Speaker, channel: Channel, wrong: u8) -> Option<Option<(Sealer, Opener)>> {
    let (mut nonce, mut theirs, mut welcome) = ([0; NONCE], [0; NONCE], [0; WELCOME]);
    getrandom::fill(&mut nonce).expect("random bytes");
    let (login, key) =
        (Login { process: speaker.process, incarnation: speaker.incarnation, channel, nonce }, channel.key(&cluster(), job()));
    socket.write_all(&login.encode(&key)).ok()?;
    socket.read_exact(&mut theirs).ok()?;
    let mut proof = login.prove(&key, &theirs);
    proof[usize::from(wrong) * 3] ^= wrong;
    socket.write_all(&proof).ok()?;
    if wrong != 0 {
        return Some(None);
    }
    socket.read_exact(&mut welcome).ok()?;
    let cover = login.welcomed(&key, &theirs, &welcome).expect("the service has the key");
    Some(Some(login.records_of_caller(&key, &theirs, cover)))
}

/// What is said, in records as its kind says.
fn records(kind: u8, sealer: &mut Sealer, said: &[u8]) -> Vec<u8> {
    let (mut input, mut out) = (Input(said), Vec::new());
    while kind & 0x80 != 0 && !input.is_empty() {
        let (length, mut frame) = (usize::from(input.u8()), Vec::new());
        encode_into(&mut frame, input.take(length), limits::LOG_FRAME);
        sealer.seal_into(&[&frame], &mut out);
    }
    match kind & 0xc0 {
        0 => out.extend_from_slice(said),
        0x40 => sealer.seal_into(&[said], &mut out),
        _ => {}
    }
    if kind & 0x20 != 0 {
        sealer.seal_end(&mut out);
    }
    out
}

/// Says no more, and reads to the end: how many messages came.
fn end(Visit(mut socket, entered): Visit) -> usize {
    _ = socket.shutdown(Shutdown::Write);
    let mut bytes = Vec::new();
    if let Err(error) = socket.read_to_end(&mut bytes) {
        assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "a connection that does not end");
    }
    let Some((channel, mut opener)) = entered else {
        assert!(bytes.is_empty(), "a stranger got {} bytes", bytes.len());
        return 0;
    };
    opener.push(&bytes);
    let (mut reader, mut count) = (FrameReader::new(limits::LOG_FRAME), 0);
    while let Some(body) = opener.next_body().expect("records") {
        if channel != Channel::Fetch {
            reader.push(body);
        }
    }
    while let Some(body) = reader.next_frame().expect("frames") {
        FromProtector::read(body).expect("what is said can be read");
        count += 1;
    }
    count
}

/// Inputs that are accepted, but for the last, which says what a stranger might.
pub fn first() -> Inputs {
    let mut all = Vec::new();
    to_protector(&mut |name, message| {
        let body = written(|out| message.write(out));
        all.push((name, [&[body.len() as u8], &body[..]].concat()));
    });
    let message = |name: &str| all.iter().find(|(known, _)| *known == name).map_or(Vec::new(), |(_, bytes)| bytes.clone());
    let on = |kind: u8, said: &[u8]| [&[kind, 0], &(said.len() as u16).to_le_bytes()[..], said].concat();
    let journal = on(0x82, &[message("hello"), message("journal"), message("fetch-journal")].concat());
    let bulk = on(0x83, &[message("payload"), message("payload-end")].concat());
    let image = [&message("image-begin")[..], b"\x08no image"].concat();
    let nonce = [3; NONCE];
    let login = Login { process: process(1), incarnation: Incarnation::FIRST, channel: Channel::Bulk, nonce };
    let stranger: [u8; LOGIN] = login.encode(&JobKey::from_bytes([0; 32]));
    vec![
        ("journal", journal.clone()),
        ("payload", [&journal[..], &bulk].concat()),
        ("image", [&journal[..], &on(0xa4, &image)].concat()),
        ("replica", [on(0x85, &[message("hello"), message("journal")].concat()), journal.clone()].concat()),
        ("fetch", [&journal[..], &on(0x46, &[1, 0, 0, 0, 0, 0, 0, 0])].concat()),
        ("no-record", [&journal[..], &on(2, &[9; 40])].concat()),
        ("stranger", [&journal[..], &on(0, &stranger), &on(1, &bulk)].concat()),
    ]
}
