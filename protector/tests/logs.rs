//! The log service over real sockets and files, by clients that behave and clients that do not.

#[path = "logs/disk.rs"]
mod disk;
#[path = "logs/images.rs"]
mod images;
#[path = "logs/load.rs"]
mod load;
#[path = "logs/replicas.rs"]
mod replicas;

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use proptest::prelude::*;
use radic_ckpt::image::meta::{Backing, RegionRef};
use radic_ckpt::image::{Header, ImageWriter, MetaWriter};
use radic_protector::fetching::{Fetch, FetchError, Source, WRONG_CODE};
use radic_protector::folder::Folder;
use radic_protector::logs::client::Client;
use radic_protector::logs::{self, Assembling, Config, Event, Layer, Logs, Reply, StoreOrder, What, open_verified};
use radic_protector::store::{NoRestart, Restart, Speaker};
use radic_wire::bytes::Writer;
use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{BootId, Epoch, Incarnation, JobId, NodeId, ProcessId, Rank};
use radic_wire::key::ClusterKey;
use radic_wire::log::{CutStreams, FromProtector, ImageState, LogPart, ToProtector};
use radic_wire::login::{Channel, LOGIN, Login, NONCE, OFFER, PROOF, WELCOME};
use radic_wire::mac::JobKey;
use radic_wire::peer::Answer;
use radic_wire::process::Protection;
use radic_wire::record::{Cover, OVERHEAD, RECORD};
use radic_wire::span::Span;
use tokio::sync::mpsc::Receiver;

/// Nothing here takes longer unless it hangs.
const LIMIT: Duration = Duration::from_secs(20);

fn cluster() -> ClusterKey {
    ClusterKey::from_bytes([7; 32])
}

fn job() -> JobId {
    JobId::from_bits(0xab)
}

fn key() -> JobKey {
    JobKey::derive(&cluster(), job())
}

/// What nodes have and processes do not.
fn nodes_key() -> JobKey {
    JobKey::derive_for_nodes(&cluster(), job())
}

/// A node that asks.
fn asker() -> NodeId {
    NodeId { name: "n1".parse().expect("a name"), boot: BootId(1) }
}

fn speaker(rank: u32) -> Speaker {
    Speaker { process: ProcessId { job: job(), rank: Rank(rank) }, incarnation: Incarnation::FIRST }
}

fn stream(number: u64) -> StreamId {
    StreamId { connection: ConnectionId { opener: speaker(9).process, number }, from_opener: true }
}

struct Service {
    logs: Logs,
    events: Receiver<Event>,
    dir: tempfile::TempDir,
}

impl Service {
    fn start(change: impl FnOnce(&mut Config)) -> Service {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new("127.0.0.1".parse().unwrap(), dir.path().into(), cluster());
        change(&mut config);
        let (logs, events) = logs::start(config).unwrap();
        logs.join();
        // As the node does before it has processes protected here.
        (0..10).for_each(|rank| drop(logs.order(StoreOrder::SetReplica(speaker(rank).process, None))));
        Service { logs, events, dir }
    }

    fn open(&self, speaker: Speaker, channel: Channel) -> Client {
        Client::open(self.logs.address(), &channel.key(&cluster(), job()), speaker, channel, LIMIT).unwrap()
    }

    fn observer(&self, rank: u32) -> Observer {
        let speaker = speaker(rank);
        let mut observer = Observer { speaker, journal: self.open(speaker, Channel::Journal) };
        observer.send(&hello(speaker, 0, 0));
        observer.expect("Welcome { journal: 0, payload: 0, image: None }");
        observer.expect("ImageWanted");
        observer
    }

    /// The next event of this kind.
    fn event(&mut self, what: What) -> Event {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        loop {
            let event = runtime.block_on(async { tokio::time::timeout(LIMIT, self.events.recv()).await });
            let event = event.unwrap_or_else(|_| panic!("no event {what:?}")).expect("the service lives");
            if std::mem::discriminant(&event.what) == std::mem::discriminant(&what) {
                return event;
            }
        }
    }

    /// Names of the files of a process.
    fn files(&self, process: ProcessId) -> Vec<String> {
        let dir = self.dir.path().join(process.job.to_string()).join(process.rank.to_string());
        let entries = fs::read_dir(dir).into_iter().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Sends an image; its connection ends when this returns.
    fn image(&self, speaker: Speaker, begin: &ToProtector<'_>, bytes: &[u8]) {
        let mut connection = self.open(speaker, Channel::Image);
        connection.send(begin).unwrap();
        connection.send_bytes(bytes).unwrap();
        connection.end().unwrap();
        // To the end: a connection with unread bytes would be reset.
        assert!(connection.receive().is_err());
    }

    fn read(&self, process: ProcessId, part: LogPart, position: u64) -> Result<Vec<u8>, String> {
        let mut all = Vec::new();
        loop {
            let piece = self.logs.read(process, part, position + all.len() as u64, 1 << 20).blocking_recv().unwrap()?;
            if piece.is_empty() {
                return Ok(all);
            }
            all.extend(piece);
        }
    }
}

/// Waits for what some thread will have done in a moment.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what}: not in {LIMIT:?}");
        std::thread::yield_now();
    }
}

struct Observer {
    speaker: Speaker,
    journal: Client,
}

impl Observer {
    fn send(&mut self, message: &ToProtector<'_>) {
        self.journal.send(message).unwrap();
    }

    fn journal(&mut self, position: u64, bytes: &[u8]) {
        self.send(&ToProtector::Journal { position, bytes });
    }

    fn next(&mut self) -> String {
        let body = self.journal.receive().unwrap();
        format!("{:?}", FromProtector::read(&body).unwrap())
    }

    fn expect(&mut self, message: &str) {
        assert_eq!(self.next(), message);
    }

    /// The word that an image is committed comes next, whichever is the oldest then.
    fn expect_committed(&mut self, image: u64) {
        let message = self.next();
        assert!(is_committed(&message, image), "{message}");
    }

    /// Whether something comes within a moment.
    fn is_silent(&mut self) -> bool {
        self.journal.socket().set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let silent = matches!(self.journal.receive(), Err(error) if error.kind() == ErrorKind::WouldBlock);
        self.journal.socket().set_read_timeout(Some(LIMIT)).unwrap();
        silent
    }
}

fn is_committed(message: &str, image: u64) -> bool {
    message.starts_with(&format!("Committed {{ image: {image}, "))
}

/// The numbers of its images.
fn numbers(restart: &Restart) -> Vec<u64> {
    restart.images.iter().map(|(number, _)| *number).collect()
}

fn hello(speaker: Speaker, journal: u64, payload: u64) -> ToProtector<'static> {
    let span = |end| Span { start: 0, end };
    let (journal, payload) = (span(journal), span(payload));
    ToProtector::hello(speaker.process, speaker.incarnation, journal, payload)
}

fn begin<'a>(image: u64, parent: Option<u64>, cut: u64, streams: &'a [(StreamId, u64)]) -> ToProtector<'a> {
    let (streams, ended) = (CutStreams::new(streams).unwrap(), CutStreams::new(&[]).unwrap());
    ToProtector::image_by_itself(image, parent, (cut, 0), 0, streams, ended)
}

/// An image that the checkpoint engine takes for one.
fn image(id: u64, parent: u64, pages: usize) -> Vec<u8> {
    const BASE: u64 = 0x5555_0000_0000;
    let mut meta = vec![0; 16 << 10];
    let mut writer = MetaWriter::new(&mut meta);
    writer.process(77, 0, (1, 2), b"/bin/true", b"true\0", b"/");
    writer.region(&RegionRef {
        start: BASE,
        end: BASE + (pages as u64 + 1) * 4096,
        prot: 3,
        backing: Backing::Anonymous,
        advice: 0,
        has_runs: true,
        offset: 0,
        object: 0,
        size: 0,
        head_crc: 0,
        file: radic_ckpt::image::meta::FileId::default(),
        path: b"[heap]",
    });
    writer.thread(77, 0x40_1000, 0x7ffe_0000, b"true");
    let length = writer.finish().unwrap();
    let header = Header { build: 5, entry: 1, stack: 2, id, parent, ..Header::default() };
    let mut writer = ImageWriter::begin(Vec::new(), header, &meta[..length]).unwrap();
    for page in 0..pages {
        writer.raw(BASE + page as u64 * 4096, &[page as u8 ^ id as u8; 4096]).unwrap();
    }
    writer.finish().unwrap().0
}

/// Bytes that tell their position.
fn bytes(from: u64, length: usize) -> Vec<u8> {
    (from..from + length as u64).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

/// A daemon that is back under its old address is found by its processes before its node knows that they are protected here, and
/// which other service has their logs.
#[test]
fn a_process_of_which_the_node_has_not_told_waits() {
    let service = Service::start(|_| {});
    let stranger = speaker(10);
    let mut client = service.open(stranger, Channel::Journal);
    client.send(&hello(stranger, 0, 0)).unwrap();
    // What is asked after that is answered after that.
    assert_eq!(service.logs.list(stranger.process).blocking_recv().unwrap(), None);
    service.observer(0);
    assert_eq!(service.logs.list(stranger.process).blocking_recv().unwrap(), None, "it was heard");
    service.logs.order(StoreOrder::SetReplica(stranger.process, None));
    let mut observer = Observer { speaker: stranger, journal: client };
    observer.expect("Welcome { journal: 0, payload: 0, image: None }");
}

#[test]
fn what_is_logged_is_acknowledged_and_comes_back() {
    let service = Service::start(|_| ());
    let mut observer = service.observer(0);
    let process = observer.speaker.process;
    observer.journal(0, b"determinants");
    observer.expect("JournalStable { position: 12 }");
    let mut bulk = service.open(observer.speaker, Channel::Bulk);
    bulk.send(&ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"payload" }).unwrap();
    bulk.send(&ToProtector::PayloadEnd { position: 7, stream: stream(1), offset: 7 }).unwrap();
    while observer.next() != "PayloadStable { position: 8 }" {}
    observer.send(&ToProtector::FetchJournal { position: 5 });
    observer.expect(&format!("{:?}", FromProtector::Journal { position: 5, bytes: b"minants" }));
    observer.send(&ToProtector::FetchPayload { stream: stream(1), offset: 3 });
    observer.expect(&format!("{:?}", FromProtector::Payload { stream: stream(1), offset: 3, bytes: b"load" }));

    let held = service.logs.list(process).blocking_recv().unwrap().unwrap();
    assert_eq!((held.journal, held.stable), (Span { start: 0, end: 12 }, 12));
    assert_eq!((held.streams[0].bytes, held.streams[0].ended), (Span { start: 0, end: 7 }, Some(7)));
    assert_eq!(service.read(process, LogPart::Journal, 2).unwrap(), b"terminants");
    for (number, units) in [(1, 8), (2, 0)] {
        let order = StoreOrder::StableOf(asker(), 7, process, Epoch::FIRST, stream(number));
        assert_eq!(service.logs.order(order).blocking_recv(), Ok(Reply::Answer(asker(), 7, Answer::Stable(units))));
    }
    let status = service.logs.status(job()).blocking_recv().unwrap();
    assert_eq!(
        (status[0].0, status[0].1.usage.journal, status[0].1.usage.payload, status[0].1.connected),
        (process, 12, 7, true)
    );
    assert_eq!(service.logs.list(speaker(5).process).blocking_recv(), Ok(None));
}

#[test]
fn what_memory_does_not_hold_comes_back_from_files() {
    let service = Service::start(|config| config.memory = 64 << 10);
    let mut observer = service.observer(0);
    let process = observer.speaker.process;
    let (journal, payload) = (bytes(1, 300_000), bytes(2, 5_000_000));
    for (at, piece) in journal.chunks(9_000).enumerate() {
        observer.journal(at as u64 * 9_000, piece);
    }
    while observer.next() != "JournalStable { position: 300000 }" {}
    let mut bulk = service.open(observer.speaker, Channel::Bulk);
    for (at, piece) in payload.chunks(100_000).enumerate() {
        let at = at as u64 * 100_000;
        bulk.send(&ToProtector::Payload { position: at, stream: stream(1), offset: at, bytes: piece }).unwrap();
    }
    while observer.next() != "PayloadStable { position: 5000000 }" {}
    let in_memory = || service.logs.status(job()).blocking_recv().unwrap()[0].1.usage.memory;
    eventually("the bound on memory", || in_memory() < 128 << 10);
    assert_eq!(service.read(process, LogPart::Journal, 0).unwrap(), journal);
    assert_eq!(service.read(process, LogPart::Stream(stream(1)), 0).unwrap(), payload);

    let mut fetched = Vec::new();
    while fetched.len() < payload.len() {
        observer.send(&ToProtector::FetchPayload { stream: stream(1), offset: fetched.len() as u64 });
        let body = observer.journal.receive().unwrap();
        let Ok(FromProtector::Payload { bytes, .. }) = FromProtector::read(&body) else { panic!("{body:?}") };
        fetched.extend_from_slice(bytes);
    }
    assert_eq!(fetched, payload);
}

#[test]
fn an_older_incarnation_is_told_and_not_listened_to() {
    let service = Service::start(|_| ());
    let mut old = service.observer(0);
    let process = old.speaker.process;
    service.image(old.speaker, &begin(0, None, 0, &[]), &image(1, 0, 1));
    old.expect_committed(0);
    old.journal(0, b"abc");
    old.expect("JournalStable { position: 3 }");
    let restart = service.logs.fence(process, Incarnation::restarted(1), Vec::new(), 0).blocking_recv().unwrap().unwrap();
    assert_eq!((numbers(&restart), restart.log_end), (vec![0], 3));
    old.expect(&format!("Fenced {{ newest: {:?} }}", Incarnation::restarted(1)));
    assert!(old.journal.receive().is_err());
    // It tries again.
    let mut again = Observer { speaker: old.speaker, journal: service.open(old.speaker, Channel::Journal) };
    again.send(&hello(old.speaker, 3, 0));
    again.expect(&format!("Fenced {{ newest: {:?} }}", Incarnation::restarted(1)));
    let new = Speaker { process, incarnation: Incarnation::restarted(1) };
    let mut new = Observer { speaker: new, journal: service.open(new, Channel::Journal) };
    new.send(&hello(new.speaker, 3, 0));
    new.expect("Welcome { journal: 3, payload: 0, image: Some(0) }");
    new.expect_committed(0);
    new.journal(3, b"d");
    new.expect("JournalStable { position: 4 }");
}

#[test]
fn a_lost_connection_is_made_again_and_the_old_one_is_closed() {
    let service = Service::start(|_| ());
    let mut before = service.observer(0);
    before.journal(0, b"abc");
    before.expect("JournalStable { position: 3 }");
    let mut after = Observer { speaker: before.speaker, journal: service.open(before.speaker, Channel::Journal) };
    after.send(&hello(before.speaker, 5, 0));
    after.expect("Welcome { journal: 3, payload: 0, image: None }");
    after.expect("ImageWanted");
    assert!(before.journal.receive().is_err());
    after.journal(3, b"de");
    after.expect("JournalStable { position: 5 }");
    // The process executes another program.
    service.logs.order(StoreOrder::ForgetProcess(asker(), 0, before.speaker.process));
    assert!(after.journal.receive().is_err());
    service.observer(0).journal(0, b"other");
}

fn closed(mut socket: TcpStream) -> bool {
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut rest = Vec::new();
    match socket.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_caller_without_the_key_is_not_heard() {
    let mut service = Service::start(|_| ());
    let address = service.logs.address();
    // The key of another cluster, and that of another job.
    for other in [JobKey::derive(&ClusterKey::from_bytes([8; 32]), job()), JobKey::derive(&cluster(), JobId::from_bits(1))] {
        assert!(Client::open(address, &other, speaker(0), Channel::Journal, LIMIT).is_err());
    }
    // A recording of everything that an observer said.
    let login = Login { process: speaker(0).process, incarnation: Incarnation::FIRST, channel: Channel::Journal, nonce: [1; 16] };
    let talk = |proof: Option<[u8; PROOF]>| {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(&login.encode(&key())).unwrap();
        let mut nonce = [0; NONCE];
        socket.read_exact(&mut nonce).unwrap();
        let proof = proof.unwrap_or_else(|| login.prove(&key(), &nonce));
        socket.write_all(&proof).unwrap();
        (socket, proof)
    };
    let (genuine, proof) = talk(None);
    let (replayed, _) = talk(Some(proof));
    assert!(closed(replayed));
    assert!(service.event(What::Intruder).text.contains("it has another key"));
    drop(genuine);
    assert_eq!(service.logs.list(speaker(0).process).blocking_recv(), Ok(None));
}

/// What comes back for this, when it is all that is said.
fn answer_to(address: SocketAddr, said: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.write_all(said).unwrap();
    _ = socket.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    if let Err(error) = socket.read_to_end(&mut answer) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    answer
}

/// A stranger that names any job gets nothing that was made with the job's key: it gets nothing. A caller that repeats what an
/// observer has said gets a number.
#[test]
fn a_stranger_gets_nothing_that_follows_from_a_key() {
    let service = Service::start(|_| ());
    let address = service.logs.address();
    for channel in [Channel::Journal, Channel::Bulk, Channel::Image, Channel::Replica, Channel::Fetch] {
        let login = Login { process: speaker(0).process, incarnation: Incarnation::FIRST, channel, nonce: [1; 16] };
        let right = login.encode(&channel.key(&cluster(), job()));
        let mut without_code = right;
        without_code[LOGIN - 16..].fill(0);
        let guessed = JobKey::from_bytes([0; 32]);
        for said in [without_code, login.encode(&guessed), login.encode(&JobKey::derive(&cluster(), JobId::from_bits(1)))] {
            assert_eq!(answer_to(address, &said), [0; 0], "{channel:?}");
        }
        let overheard = answer_to(address, &right);
        assert_eq!(overheard.len(), NONCE, "{channel:?}");
        assert_ne!(answer_to(address, &right), overheard, "it is a number, made of nothing");
        assert_eq!(answer_to(address, &[&right[..], &[0; PROOF]].concat()).len(), NONCE, "{channel:?}");
    }
}

/// All that an observer has said, said once more, as itself, and as another process, of another job, in another incarnation.
#[test]
fn what_an_observer_has_said_is_not_heard_from_anybody_else() {
    let mut service = Service::start(|_| ());
    let frame = |message: &ToProtector<'_>| {
        let mut body = vec![0; 256];
        let mut writer = Writer::new(&mut body);
        message.write(&mut writer);
        let length = writer.finish().unwrap();
        [&(length as u32).to_le_bytes()[..], &body[..length]].concat()
    };
    let Speaker { process, incarnation } = speaker(0);
    let login = Login { process, incarnation, channel: Channel::Journal, nonce: [1; 16] };
    let connect = || TcpStream::connect(service.logs.address()).unwrap();
    let mut genuine = connect();
    genuine.write_all(&login.encode(&key())).unwrap();
    let (mut nonce, mut welcome) = ([0; NONCE], [0; WELCOME]);
    genuine.read_exact(&mut nonce).unwrap();
    let proof = login.prove(&key(), &nonce);
    genuine.write_all(&proof).unwrap();
    genuine.read_exact(&mut welcome).unwrap();
    let cover = login.welcomed(&key(), &nonce, &welcome).unwrap();
    let record = ToProtector::Journal { position: 0, bytes: b"what was said" };
    let mut records = Vec::new();
    login
        .records_of_caller(&key(), &nonce, cover)
        .0
        .seal_into(&[&frame(&hello(speaker(0), 13, 0)), &frame(&record)], &mut records);
    genuine.write_all(&records).unwrap();
    let said = [&proof[..], &records].concat();
    let held = |process| service.logs.list(process).blocking_recv().unwrap().map(|log| (log.incarnation, log.journal.end));
    eventually("the record", || held(process) == Some((incarnation, 13)));
    let other_job = ProcessId { job: JobId::from_bits(1), ..process };
    for other in [
        login,
        Login { process: speaker(1).process, ..login },
        Login { process: other_job, ..login },
        Login { incarnation: Incarnation::restarted(1), ..login },
        Login { channel: Channel::Replica, ..login },
    ] {
        // As if even the first word of such a login had been overheard.
        let first = other.encode(&other.channel.key(&cluster(), other.process.job));
        let mut replayed = connect();
        replayed.write_all(&[&first[..], &said].concat()).unwrap();
        assert!(closed(replayed), "{other:?}");
    }
    let now = [process, speaker(1).process, other_job].map(held);
    assert_eq!(now, [Some((incarnation, 13)), None, None]);
    assert!(service.event(What::Intruder).text.contains("its proof is wrong"));
    drop(genuine);
}

/// Between an observer and its log an attacker changes one byte after the other of what passes, leaves out, or says again what it
/// has seen.
#[test]
fn what_is_changed_on_the_way_is_not_heard() {
    for cover in [Cover::Encrypted, Cover::Authenticated] {
        let service = Service::start(|config| config.cover = cover);
        let end = |rank| service.logs.list(speaker(rank).process).blocking_recv().unwrap().unwrap().journal.end;
        // Bytes that are no record of this connection: only its two ends can make one.
        let nonsense: [&[u8]; 3] = [&[0; 60], &[[5, 0, 0, 0].as_slice(), &[1; 21]].concat(), &[255; 8]];
        for (rank, said) in (0..).zip(nonsense) {
            let mut observer = service.observer(rank);
            observer.journal(0, b"what was said");
            observer.expect("JournalStable { position: 13 }");
            observer.journal.socket().write_all(said).unwrap();
            observer.journal.socket().shutdown(Shutdown::Write).unwrap();
            assert!(observer.journal.receive().is_err(), "{cover:?}");
            assert_eq!(end(rank), 13);
        }
    }
}

/// With the default no one on the way can read what passes. Where a site trusts its network, they can, and can change nothing.
#[test]
fn what_passes_can_be_read_only_where_that_is_said() {
    const SECRET: &[u8] = b"the words of a program that no one else may read";
    for (cover, read) in [(Cover::Encrypted, false), (Cover::Authenticated, true)] {
        let service = Service::start(|config| config.cover = cover);
        let (way, heard) = overheard(service.logs.address());
        let speaker = speaker(0);
        let mut journal = Client::open(way, &key(), speaker, Channel::Journal, LIMIT).unwrap();
        journal.send(&hello(speaker, 0, 0)).unwrap();
        journal.send(&ToProtector::Journal { position: 0, bytes: SECRET }).unwrap();
        journal.send(&ToProtector::FetchJournal { position: 0 }).unwrap();
        while !journal.receive().unwrap().windows(SECRET.len()).any(|bytes| bytes == SECRET) {}
        drop(journal);
        let heard = heard.recv().unwrap();
        let times = heard.windows(SECRET.len()).filter(|bytes| *bytes == SECRET).count();
        assert_eq!(times, if read { 2 } else { 0 }, "{cover:?}: it was said and answered");
    }
}

/// A way to the service, and all that passes on it, in both directions, when both have ended.
fn overheard(service: SocketAddr) -> (SocketAddr, std::sync::mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, (sender, receiver)) = (listener.local_addr().unwrap(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(service).unwrap();
        let copy = |mut from: &TcpStream, mut to: &TcpStream| {
            let (mut all, mut piece) = (Vec::new(), [0; 4096]);
            while let Ok(count @ 1..) = from.read(&mut piece) {
                all.extend_from_slice(&piece[..count]);
                _ = to.write_all(&piece[..count]);
            }
            _ = to.shutdown(Shutdown::Write);
            all
        };
        let all = std::thread::scope(|scope| {
            let there = scope.spawn(|| copy(&near, &far));
            let back = copy(&far, &near);
            [there.join().unwrap(), back].concat()
        });
        _ = sender.send(all);
    });
    (address, receiver)
}

/// A daemon that is back under its old address is found before it is a member: it takes no copy, because the job may end without its hearing so.
#[test]
fn who_is_no_member_takes_no_copies() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _events) = logs::start(Config::new("127.0.0.1".parse().unwrap(), dir.path().into(), cluster())).unwrap();
    let forward = || {
        let client = Client::open(logs.address(), &nodes_key(), speaker(0), Channel::Replica, LIMIT);
        client.is_ok_and(|mut client| client.send(&hello(speaker(0), 0, 0)).is_ok() && client.receive().is_ok())
    };
    assert!(!forward());
    assert!(logs.list(speaker(0).process).blocking_recv().unwrap().is_none());
    logs.join();
    assert!(forward());
    assert!(logs.list(speaker(0).process).blocking_recv().unwrap().is_some());
}

/// Some message, of which most contradict what came before.
fn any_message() -> impl Strategy<Value = (Channel, Vec<u8>)> {
    let channel = prop_oneof![Just(Channel::Journal), Just(Channel::Bulk), Just(Channel::Image), Just(Channel::Replica)];
    let number = || prop_oneof![0u64..300, Just(u64::MAX), Just(u64::MAX - 1), any::<u64>()];
    let parts = (0u8..16, number(), number(), 0usize..400);
    (channel, parts).prop_map(|(channel, (kind, a, b, length))| {
        let (held, pair) = (vec![7; length], [(stream(a % 3), b), (stream(1), a)]);
        let (image, position, offset, bytes, stream) = (a, b, a, &held[..], stream(b % 3));
        let streams = CutStreams::new(&pair[..length % 3]).unwrap();
        let message = match kind {
            0 => ToProtector::Journal { position, bytes },
            1 => ToProtector::Payload { position, stream, offset, bytes },
            2 => ToProtector::PayloadEnd { position, stream, offset },
            3 => ToProtector::image_by_itself(image, None, (b, a), 0, streams, streams),
            4 => ToProtector::ImageChunk { image, offset: b, bytes },
            5 => ToProtector::ImageEnd { image, length: b },
            6 => ToProtector::ImageAbandoned { image },
            7 => ToProtector::FetchJournal { position },
            8 => ToProtector::FetchPayload { stream, offset },
            9 => ToProtector::AskStable { stream },
            10 => ToProtector::Forget { connection: stream.connection, for_good: position & 1 == 1 },
            11 => ToProtector::Live,
            12 => ToProtector::Closing,
            _ => hello(speaker(a as u32 % 2), a.max(b), b),
        };
        let mut body = vec![0; 4096];
        let mut writer = Writer::new(&mut body);
        message.write(&mut writer);
        let length = writer.finish().unwrap();
        body.truncate(length);
        (channel, body)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// Whatever a caller with the key says, others are served.
    #[test]
    fn nobody_breaks_it(messages in prop::collection::vec(any_message(), 0..150)) {
        let service = Service::start(|config| (config.memory, config.durable) = (100, messages.len() % 2 == 0));
        service.logs.order(StoreOrder::Configure(job(), Protection { log: 2_000, keep_logs: messages.len() % 3 == 0, ..Protection::default() }));
        let mut clients = HashMap::new();
        for (channel, body) in &messages {
            if !clients.contains_key(channel) {
                let key = channel.key(&cluster(), job());
                // What is forwarded is not taken while the process speaks here itself.
                let opened = Client::open(service.logs.address(), &key, speaker(0), *channel, LIMIT);
                prop_assert!(opened.is_ok() || *channel == Channel::Replica);
                let Ok(mut client) = opened else { continue };
                if matches!(channel, Channel::Journal | Channel::Replica) {
                    client.send(&hello(speaker(0), 1 << 40, 1 << 40)).unwrap();
                }
                clients.insert(*channel, client);
            }
            let client = clients.get_mut(channel).unwrap();
            let mut framed = (body.len() as u32).to_le_bytes().to_vec();
            framed.extend_from_slice(body);
            if client.send_bytes(&framed).is_err() {
                clients.remove(channel);
            }
        }
        let mut other = service.observer(7);
        other.journal(0, b"served");
        other.expect("JournalStable { position: 6 }");
        prop_assert!(service.logs.fence(speaker(0).process, Incarnation::restarted(1), Vec::new(), 0).blocking_recv().is_ok());
    }
}

/// The process as its next incarnation.
fn next_incarnation(of: Speaker) -> Speaker {
    Speaker { incarnation: of.incarnation.next(), ..of }
}

/// A service with one process that has committed a full image of so many pages and three increments, and was fenced.
fn lost_process(pages: usize) -> (Service, Speaker, Vec<(u64, u64)>) {
    let service = Service::start(|_| ());
    let mut observer = service.observer(0);
    let speaker = observer.speaker;
    for (number, pages) in [(0, pages), (1, 9), (2, 1), (3, 40)] {
        let parent = (number > 0).then(|| number - 1);
        service.image(speaker, &begin(number, parent, 0, &[]), &image(number + 1, number, pages));
        observer.expect_committed(number);
    }
    let next = next_incarnation(speaker);
    let restart = service.logs.fence(next.process, next.incarnation, Vec::new(), 0).blocking_recv().unwrap().unwrap();
    assert_eq!(numbers(&restart), [0, 1, 2, 3]);
    (service, next, restart.images)
}

static WANTED: AtomicBool = AtomicBool::new(false);

fn folder(dir: &Path) -> Arc<Folder> {
    Arc::new(Folder::open(dir).unwrap())
}

/// One image (number, length), from there, or why it cannot be had.
fn obtain(
    source: Source,
    key: &JobKey,
    speaker: Speaker,
    image: (u64, u64),
    dir: &Path,
    given_up: &AtomicBool,
) -> Result<Vec<u8>, FetchError> {
    let mut wanted = Fetch::new(Duration::ZERO, speaker, source, None, vec![image]);
    let (came, arrived) = std::sync::mpsc::channel();
    let assemble = |mut layers: Vec<Layer>| {
        let (mut layer, came) = (layers.pop().unwrap(), came.clone());
        // What is not sound has no end.
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            layer.read_to_end(&mut bytes).is_ok().then(|| came.send(bytes))
        });
        Assembling::begin(|_| Ok(()))
    };
    let arrival = logs::fetch(&mut wanted, Instant::now(), key, &folder(dir), given_up, &assemble)
        .map_err(|error| error.cause().clone())?;
    arrival.finish();
    Ok(arrived.recv().unwrap())
}

#[test]
fn only_the_incarnation_that_is_to_begin_fetches_what_is_there() {
    let (service, speaker, images) = lost_process(500);
    let to = tempfile::tempdir().unwrap();
    let fetch = |key: &JobKey, speaker, image| {
        obtain(Source::At(service.logs.address()), key, speaker, image, to.path(), &WANTED).map(drop).unwrap_err()
    };
    // Nor with the key that every process of the job has.
    for other in [JobKey::derive_for_nodes(&ClusterKey::from_bytes([9; 32]), job()), key()] {
        assert!(matches!(fetch(&other, speaker, images[0]), FetchError::Service(..)));
    }
    assert!(Client::open(service.logs.address(), &key(), speaker, Channel::Replica, LIMIT).is_err());
    for incarnation in [0, 2] {
        let speaker = Speaker { incarnation: Incarnation::restarted(incarnation), ..speaker };
        assert!(matches!(fetch(&nodes_key(), speaker, images[0]), FetchError::Service(..)), "incarnation {incarnation}");
    }
    let stranger = Speaker { incarnation: Incarnation::restarted(1), ..self::speaker(7) };
    assert!(matches!(fetch(&nodes_key(), stranger, images[0]), FetchError::Service(..)));
    let (number, length) = images[0];
    for wrong in [(number, length + 1), (9, length), (number, 0), (number, u64::MAX)] {
        assert!(matches!(fetch(&nodes_key(), speaker, wrong), FetchError::NotHeld(..)), "{wrong:?}");
    }
    // Only the last one needs no room.
    let nowhere = &folder(Path::new("/proc"));
    let mut wanted = Fetch::new(Duration::ZERO, speaker, Source::At(service.logs.address()), None, images[..2].to_vec());
    let unexpected = |_| unreachable!("the first one has no room");
    let error = logs::fetch(&mut wanted, Instant::now(), &nodes_key(), nowhere, &WANTED, &unexpected).unwrap_err().to_string();
    assert!(error.contains("no room for image 1 of") && error.contains("/proc"), "{error}");
}
