//! A whole cluster in one thread: processes (application and observer), their protectors, the sockets between them, and a dice
//! that decides what happens next. After every step the guarantees are checked.

use std::collections::{BTreeMap, VecDeque};

use radic_observer::connection::{Connection, Forgettable, Link, Slot, Welcome};
use radic_observer::{Accept, Config, Error, Observer, Ready, Receive, Send, Source, Transmit, Wait};
use radic_protector::store::{self, NoRestart, Output, Speaker, Store, StoreError};
use radic_wire::bytes::Writer;
use radic_wire::determinant::{ReadyFd, StreamId};
use radic_wire::ids::{Incarnation, JobId, ProcessId, Rank};
use radic_wire::log::{FromProtector, GREETING, Greeting, ToProtector};

use super::app::{App, LISTENER, Op};
use crate::dice::Dice;

/// What kind of cluster.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Processes, each with a protector.
    pub nodes: usize,
    /// Log and images at two protectors.
    pub replicas: bool,
    /// Protectors acknowledge only what is in their files.
    pub durable: bool,
    /// Deaths, breaks and the like among so many steps.
    pub steps: usize,
}

const CONFIG: Config = Config {
    outbox_blocks: 10,
    outbox_block: 8,
    journal: 256,
    determinant: 64,
    payload: 64,
    payload_pieces: 8,
    connections: 6,
    descriptors: 8,
    threads: 1,
};

/// One incarnation of a process, and what is under way between it and its protector.
struct Process {
    observer: Observer,
    app: App,
    /// Bytes that a `send` has not got rid of, whether it may wait, and how many it has.
    rest: Option<(usize, Vec<u8>, bool, usize)>,
    /// A replayed `recv` under way: what is there of it.
    partial: Vec<u8>,
    links: BTreeMap<Slot, usize>,
    journal: VecDeque<Vec<u8>>,
    bulk: VecDeque<Vec<u8>>,
    answers: VecDeque<Vec<u8>>,
    fenced: bool,
}

struct Saved {
    observer: Observer,
    app: App,
}

struct Node {
    /// The newest last; those before it are zombies: declared dead, yet running.
    processes: Vec<Process>,
    dead: bool,
    /// Its restart has begun: the incarnation that died is not listened to any more.
    fenced: bool,
    incarnation: u32,
    images: BTreeMap<u64, Saved>,
    /// From which journal position on its state depends on which bytes.
    depends: Vec<(u64, StreamId, u64)>,
    store: Store,
    replica: Option<Replica>,
    files: BTreeMap<store::File, Vec<u8>>,
}

struct Replica {
    store: Store,
    speaker: Option<Speaker>,
    queue: VecDeque<Vec<u8>>,
    answers: VecDeque<Vec<u8>>,
    files: BTreeMap<store::File, Vec<u8>>,
}

/// A TCP connection: side 0 dialed.
struct Socket {
    ends: [(usize, Incarnation); 2],
    greeting: Option<Vec<u8>>,
    answer: Option<Vec<u8>>,
    /// Bytes on the way to each side, and whether the sender ended.
    bytes: [VecDeque<u8>; 2],
    ended: [bool; 2],
    broken: bool,
}

/// See the module's text.
pub struct World {
    plan: Plan,
    dice: Dice,
    nodes: Vec<Node>,
    sockets: Vec<Socket>,
    /// What was received first, by stream, as far as a state depends on it that no death has undone: whatever comes later must be
    /// the same.
    truth: BTreeMap<StreamId, Vec<u8>>,
    /// What has happened.
    pub counts: Counts,
}

/// What has happened, in numbers.
#[derive(Debug, Default, Clone, Copy)]
#[expect(missing_docs, reason = "they say it themselves")]
pub struct Counts {
    pub restarts: u64,
    pub breaks: u64,
    pub commits: u64,
    pub zombies: u64,
    pub replaced: u64,
    pub delivered: u64,
    pub again: u64,
    pub forgotten: u64,
}

fn process(node: usize) -> ProcessId {
    ProcessId { job: JobId::from_bits(7), rank: Rank(node as u32) }
}

/// Whether `node` receives this stream, in a ring or a pair where each connects to the next.
fn receives(node: usize, nodes: usize, stream: &StreamId) -> bool {
    let opener = stream.connection.opener.rank.0 as usize;
    if stream.from_opener { node == (opener + 1) % nodes } else { node == opener }
}

fn code(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = vec![0; 600];
    let mut writer = Writer::new(&mut out);
    write(&mut writer);
    let length = writer.finish().expect("the test's messages are short");
    out.truncate(length);
    out
}

fn framed(head: &[u8], tail: &[u8], write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    code(|out| {
        write(out);
        out.raw(head);
        out.raw(tail);
    })
}

impl World {
    /// A cluster in which every process is protected.
    pub fn new(seed: u64, plan: Plan) -> World {
        let mut dice = Dice::new(seed);
        let durable = plan.durable;
        let config = store::Config { memory: if durable { 40 } else { 200 }, log: 600, image: 100, durable };
        let nodes = (0..plan.nodes)
            .map(|node| {
                let quota = 20 + dice.below(60) as u64;
                // Two nodes: one connection each way or one only. A ring: each connects to the next.
                let connects = match plan.nodes {
                    2 if node == 1 && seed.is_multiple_of(2) => Vec::new(),
                    nodes => vec![process((node + 1) % nodes)],
                };
                let accepts = usize::from(!(plan.nodes == 2 && node == 0 && seed.is_multiple_of(2)));
                let (observer, app) =
                    (Observer::new(process(node), &CONFIG), App::new(seed, connects, accepts, quota, node == 0));
                let (files, speaker, queue, answers) = Default::default();
                // Only the first of a chain waits at the bound (`LogServer::greet`).
                let replica =
                    Replica { store: Store::new(store::Config { log: u64::MAX, ..config }), speaker, queue, answers, files };
                Node {
                    processes: vec![Process::new(observer, app)],
                    dead: false,
                    fenced: false,
                    incarnation: 0,
                    images: BTreeMap::new(),
                    depends: Vec::new(),
                    store: Store::new(config),
                    replica: plan.replicas.then_some(replica),
                    files: BTreeMap::new(),
                }
            })
            .collect();
        let counts = Counts::default();
        let mut world = World { plan, dice, nodes, sockets: Vec::new(), truth: BTreeMap::new(), counts };
        for node in 0..plan.nodes {
            world.hello(node, 0);
            world.settle_protectors(node);
            if world.plan.replicas {
                world.nodes[node].store.set_replica(process(node), true);
            }
            // The first image, right after the beginning: before it a death means starting over.
            for _ in 0..400 {
                if !world.is_protected(node) {
                    world.checkpoint(node, 0);
                    world.settle_protectors(node);
                }
            }
            assert!(world.is_protected(node), "the first image is committed");
        }
        world
    }

    /// Runs it to its end.
    pub fn run(&mut self) {
        for _ in 0..self.plan.steps {
            self.step();
            self.check();
        }
        self.calm_down();
        // Everything is closed. Some are restarted from images that know of less.
        for _ in 0..self.plan.steps / 2 {
            self.step();
            self.check();
        }
        self.calm_down();
    }

    /// Nothing fails until everything has arrived.
    fn calm_down(&mut self) {
        for round in 0..6_000 {
            let is_done = |p: &Process| p.app.op() == Op::Done && !p.observer.is_replaying();
            if self.nodes.iter().all(|node| !node.dead && node.processes.last().is_some_and(is_done)) {
                return self.check_end();
            }
            self.calm_round(round);
            self.check();
        }
        self.nodes.iter().for_each(Node::tell);
        panic!("a hang is worse than an error");
    }

    /// Nothing fails any more, and everything that can move moves.
    fn calm_round(&mut self, round: usize) {
        for node in 0..self.nodes.len() {
            let newest = self.nodes[node].incarnation;
            self.nodes[node].processes.retain(|p| p.observer.incarnation().0 == newest);
            if self.nodes[node].dead {
                self.restart(node);
            }
            let Some(newest) = self.nodes[node].processes.len().checked_sub(1) else { continue };
            self.ship_journal(node, newest);
            self.ship_payload(node, newest);
            self.ask_stable(node, newest);
            self.settle_protectors(node);
            self.notice(node, newest);
            self.answer_greetings(node);
            self.read_answers(node, newest);
            self.dial_down(node, newest);
            (0..3).for_each(|_| self.app_step(node, newest));
            self.transmit_all(node, newest);
            if round % 50 == 49 {
                self.checkpoint(node, newest);
            }
        }
    }

    fn settle_protectors(&mut self, node: usize) {
        for process in 0..self.nodes[node].processes.len() {
            self.deliver(node, process, true, 99);
            self.deliver(node, process, false, 99);
        }
        self.serve(node);
        self.write_files(node, 99);
        self.run_replica(node, 99);
        self.serve(node);
        for process in 0..self.nodes[node].processes.len() {
            self.read_protector(node, process, 99);
        }
    }

    fn step(&mut self) {
        let node = self.dice.below(self.nodes.len());
        let which = match self.nodes[node].processes.len() {
            0 => return self.restart(node),
            // Mostly the newest; a zombie now and then.
            n if self.dice.below(4) > 0 => n - 1,
            n => self.dice.below(n),
        };
        let newest = which + 1 == self.nodes[node].processes.len();
        let some = 1 + self.dice.below(3);
        match self.dice.below(76) {
            0..20 => self.app_step(node, which),
            20..26 => self.ship_journal(node, which),
            26..28 => self.ship_payload(node, which),
            28..33 => self.deliver(node, which, true, some),
            33..37 => self.deliver(node, which, false, some),
            37..42 => self.read_protector(node, which, some),
            42..48 => self.transmit_all(node, which),
            48 => self.break_socket(),
            49..51 => self.dial_down(node, which),
            51 => self.answer_greetings(node),
            52 => self.read_answers(node, which),
            53 => self.notice(node, which),
            54 if newest => self.checkpoint(node, which),
            55 => self.ask_stable(node, which),
            56 => self.hello(node, which),
            57 if self.dice.below(2) == 0 => self.die(node),
            58 if self.nodes[node].dead => self.restart(node),
            59 | 63..68 => self.write_files(node, some),
            60 | 68..74 => self.run_replica(node, some),
            61 if self.dice.below(8) == 0 => self.replace_protector(node),
            62 if self.dice.below(4) == 0 => self.dial_again(node, which),
            _ => {
                self.deliver(node, which, true, some);
                self.read_protector(node, which, some);
            }
        }
        self.serve(node);
    }

    /// A call of the application, as far as it goes now.
    fn app_step(&mut self, node: usize, which: usize) {
        if self.nodes[node].processes[which].fenced {
            return;
        }
        let result = if self.nodes[node].processes[which].rest.is_some() {
            self.send_rest(node, which)
        } else {
            match self.nodes[node].processes[which].app.op() {
                Op::Connect { fd, peer } => self.connect(node, which, fd, peer),
                Op::Accept { fd, blocking } => self.accept(node, which, fd, blocking),
                Op::Poll { blocking } => self.poll(node, which, blocking),
                Op::Receive { socket, max, blocking } => self.receive(node, which, socket, max, blocking),
                Op::Send { socket, bytes, blocking } => self.send(node, which, socket, &bytes, blocking, 0),
                Op::Finish { socket } => self.nodes[node].processes[which].finish(socket),
                Op::Close { socket } => self.nodes[node].processes[which].close(socket),
                Op::Done => {
                    self.nodes[node].processes[which].observer.settle();
                    Ok(())
                }
            }
        };
        self.expect(node, which, result);
        self.fetch_log(node, which);
    }

    /// The newest incarnation never fails; a zombie may, when it is told so or contradicted.
    fn expect(&mut self, node: usize, which: usize, result: Result<(), Error>) {
        let newest = self.is_voice(node, which);
        match result {
            Ok(()) => {}
            Err(error) if newest => panic!("node {node}, incarnation {}: {error}", self.nodes[node].incarnation),
            Err(_) => self.nodes[node].processes[which].fenced = true,
        }
    }

    /// Whether this is the incarnation that speaks for its process: until it is fenced it does, even if it was declared dead.
    fn is_voice(&self, node: usize, which: usize) -> bool {
        let node = &self.nodes[node];
        which + 1 == node.processes.len() && node.processes[which].observer.incarnation().0 == node.incarnation
    }

    fn connect(&mut self, node: usize, which: usize, fd: u32, peer: ProcessId) -> Result<(), Error> {
        let this = &mut self.nodes[node].processes[which];
        let Ok(slot) = this.observer.connect(fd, peer)? else { return Ok(()) };
        this.app.handle_connected(fd);
        if !this.observer.is_replaying() {
            self.dial(node, which, slot);
        }
        Ok(())
    }

    fn dial(&mut self, node: usize, which: usize, slot: Slot) {
        let this = &mut self.nodes[node].processes[which];
        let Some(greeting) = this.observer.dial(slot) else { return };
        let peer = this.observer.table().get(slot).expect("it was dialed").peer.rank.0 as usize;
        let bytes = code(|out| greeting.write(out));
        assert!(bytes.len() <= GREETING);
        let ends = [(node, this.observer.incarnation()), (peer, Incarnation(u32::MAX))];
        let (bytes_on_the_way, ended, broken) = Default::default();
        let socket = Socket { ends, greeting: Some(bytes), answer: None, bytes: bytes_on_the_way, ended, broken };
        if let Some(old) = this.links.insert(slot, self.sockets.len()) {
            self.sockets[old].broken = true;
        }
        self.sockets.push(socket);
    }

    /// Greetings that wait at this node's listener.
    fn answer_greetings(&mut self, node: usize) {
        for index in 0..self.sockets.len() {
            let Some(newest) = self.nodes[node].processes.len().checked_sub(1).filter(|_| !self.nodes[node].dead) else { return };
            let socket = &mut self.sockets[index];
            if socket.ends[1].0 != node || socket.broken && socket.bytes[1].is_empty() {
                continue;
            }
            let Some(bytes) = socket.greeting.take() else { continue };
            let this = &mut self.nodes[node].processes[newest];
            let greeting = Greeting::read(&bytes).expect("a greeting");
            match this.observer.handle_greeting(&greeting) {
                Ok(Welcome::Link(slot, answer)) => {
                    let socket = &mut self.sockets[index];
                    socket.ends[1].1 = this.observer.incarnation();
                    socket.answer = answer.map(|answer| code(|out| answer.write(out)));
                    if let Some(old) = this.links.insert(slot, index) {
                        self.sockets[old].broken = true;
                    }
                }
                Ok(Welcome::Refuse) => self.sockets[index].broken = true,
                Ok(Welcome::Forgotten) => {
                    let Greeting { connection, process: peer, .. } = greeting;
                    this.say_forgettable(Forgettable { connection, peer, for_good: false });
                    self.sockets[index].broken = true;
                    self.counts.forgotten += 1;
                }
                // A zombie's word may contradict; its connection is closed.
                Err(_) if greeting.incarnation.0 < self.nodes[socket.ends[0].0].incarnation => self.sockets[index].broken = true,
                Err(error) => {
                    self.nodes.iter().for_each(Node::tell);
                    panic!("node {node}: {error}; {greeting:?}")
                }
            }
        }
    }

    fn read_answers(&mut self, node: usize, which: usize) {
        let this = &mut self.nodes[node].processes[which];
        let links: Vec<_> = this.links.iter().map(|(slot, socket)| (*slot, *socket)).collect();
        let mut result = Ok(());
        for (slot, index) in links {
            let socket = &mut self.sockets[index];
            if socket.ends[0] != (node, this.observer.incarnation()) || socket.broken {
                continue;
            }
            let Some(bytes) = socket.answer.take() else { continue };
            let answer = Greeting::read(&bytes).expect("an answer");
            match this.observer.handle_answer(slot, &answer) {
                Ok(true) => {}
                Ok(false) => socket.broken = true,
                Err(error) => result = Err(error),
            }
        }
        self.expect(node, which, result);
    }

    /// Dials for every connection that this process opened and whose link is down.
    fn dial_down(&mut self, node: usize, which: usize) {
        let table = self.nodes[node].processes[which].observer.table();
        let down: Vec<_> = table.iter().filter(|(_, c)| c.opened_here && c.link() == Link::Down).map(|(slot, _)| slot).collect();
        down.into_iter().for_each(|slot| self.dial(node, which, slot));
        self.call_down(node, which);
    }

    /// Calls at the openers of accepted connections whose links are down: who has forgotten one says so.
    fn call_down(&mut self, node: usize, which: usize) {
        let table = self.nodes[node].processes[which].observer.table();
        let is_down = |c: &&Connection| !c.opened_here && c.is_closed() && c.link() == Link::Down;
        let down: Vec<_> = table.iter().map(|(_, c)| c).filter(is_down).map(|c| c.id).collect();
        for id in down {
            let opener = &mut self.nodes[id.opener.rank.0 as usize];
            let Some(newest) = opener.processes.last_mut().filter(|_| !opener.dead) else { continue };
            if let Some(word) = newest.observer.forgotten(id, process(node)) {
                newest.say_forgettable(word);
                self.counts.forgotten += 1;
            }
        }
    }

    /// Dials although there is a link: the peer has not noticed that it is of no use.
    fn dial_again(&mut self, node: usize, which: usize) {
        let table = self.nodes[node].processes[which].observer.table();
        let up: Vec<_> = table.iter().filter(|(_, c)| c.opened_here && c.fd().is_some()).map(|(slot, _)| slot).collect();
        if !up.is_empty() {
            let slot = up[self.dice.below(up.len())];
            self.dial(node, which, slot);
        }
    }

    /// This process learns which of its links are broken, and from its protector which peers were restarted.
    fn notice(&mut self, node: usize, which: usize) {
        let incarnations: Vec<_> = self.nodes.iter().map(|node| Incarnation(node.incarnation)).collect();
        let this = &mut self.nodes[node].processes[which];
        for (other, incarnation) in incarnations.into_iter().enumerate() {
            this.observer.handle_restarted(process(other), incarnation);
        }
        while let Some(slot) = this.observer.poll_dropped() {
            this.links.remove(&slot).into_iter().for_each(|index| self.sockets[index].broken = true);
        }
        let table: Vec<_> = this.observer.table().iter().map(|(slot, c)| (slot, c.link())).collect();
        for (slot, link) in table.into_iter().filter(|(_, link)| *link != Link::Down) {
            let socket = this.links.get(&slot).map(|index| &self.sockets[*index]);
            let unanswered = |socket: &Socket| link == Link::Dialing && socket.greeting.is_none() && socket.answer.is_none();
            if socket.is_none_or(|socket| socket.broken || unanswered(socket)) {
                this.observer.handle_broken(slot);
                this.links.remove(&slot).into_iter().for_each(|index| self.sockets[index].broken = true);
            }
        }
    }

    fn break_socket(&mut self) {
        if self.sockets.is_empty() {
            return;
        }
        let first = self.sockets.len().saturating_sub(6);
        let index = first + self.dice.below(self.sockets.len() - first);
        // What was on the way is lost, on one side or on both.
        let socket = &mut self.sockets[index];
        socket.broken = true;
        for bytes in &mut socket.bytes {
            bytes.truncate(self.dice.below(bytes.len() + 1));
        }
        self.counts.breaks += 1;
    }

    fn accept(&mut self, node: usize, which: usize, fd: u32, blocking: bool) -> Result<(), Error> {
        let this = &mut self.nodes[node].processes[which];
        match this.observer.accept(0, LISTENER, blocking)? {
            Accept::Offered(connection) => {
                let address = ([127, 0, 0, 1], connection.number as u16).into();
                this.observer.handle_accepted(0, LISTENER, fd, connection, address)?;
                this.app.handle_accepted(fd, connection.number);
            }
            Accept::Again { fd: then, connection, peer } => {
                assert_eq!((then, peer.port()), (fd, connection.number as u16), "accept tells what it told then");
                this.app.handle_accepted(fd, connection.number);
            }
            Accept::Nothing => this.app.handle_nothing(),
            Accept::Failed(errno) => panic!("no accept failed then: {errno}"),
            Accept::Wait(_) => {}
        }
        Ok(())
    }

    fn poll(&mut self, node: usize, which: usize, blocking: bool) -> Result<(), Error> {
        let this = &mut self.nodes[node].processes[which];
        let mut ready = [ReadyFd { fd: 0, events: 0 }; 8];
        match this.observer.ready(0, None, blocking, &mut ready)? {
            Ready::Live => {
                let me = this.observer.incarnation();
                let mut count = 0;
                for socket in this.app.sockets.iter().filter(|socket| !socket.closed) {
                    let slot = this.observer.table().slot_of(socket.fd)?;
                    let on_link = this.links.get(&slot).is_some_and(|index| {
                        let link = &self.sockets[*index];
                        let side = usize::from(link.ends[0] != (node, me));
                        !link.bytes[side].is_empty()
                    });
                    if this.observer.is_readable(slot) || on_link {
                        ready[count] = ReadyFd { fd: socket.fd, events: 1 };
                        count += 1;
                    }
                }
                if count == 0 && blocking {
                    // It goes on waiting; whether streams have ended shows only when they are read.
                    return self.look_for_ends(node, which);
                }
                this.observer.handle_ready(0, None, &ready[..count])?;
                if count == 0 { this.app.handle_nothing() } else { this.app.handle_ready(&ready[..count]) }
            }
            Ready::Set(count) => this.app.handle_ready(&ready[..count]),
            Ready::Nothing => this.app.handle_nothing(),
            Ready::Outcome(errno) => panic!("no poll failed then: {errno}"),
            Ready::Wait(_) => {}
        }
        Ok(())
    }

    fn look_for_ends(&mut self, node: usize, which: usize) -> Result<(), Error> {
        let slots: Vec<_> = self.nodes[node].processes[which].links.keys().copied().collect();
        slots.into_iter().try_for_each(|slot| self.look_for_end(node, which, slot))
    }

    /// A socket that ended: is it the stream's end, or did its process die? Its newest incarnation knows.
    fn look_for_end(&mut self, node: usize, which: usize, slot: Slot) -> Result<(), Error> {
        let this = &mut self.nodes[node].processes[which];
        let Some(index) = this.links.get(&slot).copied() else { return Ok(()) };
        let socket = &self.sockets[index];
        let side = usize::from(socket.ends[0] != (node, this.observer.incarnation()));
        if !socket.bytes[side].is_empty() || !socket.ended[side] {
            return Ok(());
        }
        let Some(connection) = this.observer.table().get(slot) else {
            // Both ends have forgotten it.
            this.links.remove(&slot);
            return Ok(());
        };
        let (id, peer, wanted) = (connection.id, connection.peer.rank.0 as usize, connection.incoming().wanted());
        let there = self.nodes[peer].processes.last().filter(|_| !self.nodes[peer].dead);
        let there = there.and_then(|p| p.observer.table().get(p.observer.table().find(id)?));
        let finish = there.and_then(|connection| connection.outgoing().finish());
        let this = &mut self.nodes[node].processes[which];
        match finish {
            Some(finish) if finish <= wanted => this.observer.handle_finish(slot, finish),
            _ => {
                this.observer.handle_broken(slot);
                this.links.remove(&slot);
                self.sockets[index].broken = true;
                Ok(())
            }
        }
    }

    fn receive(&mut self, node: usize, which: usize, socket: usize, max: usize, blocking: bool) -> Result<(), Error> {
        let newest = self.is_voice(node, which);
        let this = &mut self.nodes[node].processes[which];
        let fd = this.app.sockets[socket].fd;
        match this.observer.receive(0, fd, max, blocking)? {
            Receive::Take { source, stream, offset, len, owed } => {
                let got = this.app.sockets[socket].received + this.partial.len() as u64;
                assert_eq!(offset, got, "G3: the application has {got}, and is given {offset} of {stream:?}");
                self.take(node, which, (socket, blocking), (source, stream, offset, len, owed))
            }
            Receive::End => {
                let (got, slot) = (this.app.sockets[socket].received, this.observer.table().slot_of(fd)?);
                let stream = this.observer.table().get(slot).expect("it was read").stream_in();
                let all = self.truth.get(&stream).map_or(0, |bytes| bytes.len() as u64);
                assert!(!newest || got == all, "G3: the end after {got} bytes of {all}");
                this.app.handle_end(socket);
                Ok(())
            }
            Receive::Nothing => {
                this.app.handle_nothing();
                Ok(())
            }
            Receive::Failed(errno) => panic!("no recv failed then: {errno}"),
            Receive::Wait(Wait::Payload) => {
                self.ship_payload(node, which);
                Ok(())
            }
            Receive::Wait(_) => Ok(()),
        }
    }

    fn take(
        &mut self,
        node: usize,
        which: usize,
        (socket, blocking): (usize, bool),
        (source, stream, offset, len, owed): (Source, StreamId, u64, usize, bool),
    ) -> Result<(), Error> {
        let this = &self.nodes[node].processes[which];
        let fd = this.app.sockets[socket].fd;
        let slot = this.observer.table().slot_of(fd)?;
        let bytes: Vec<u8> = match source {
            Source::Log => {
                let bytes = self.fetch_payload(node, which, stream, offset);
                bytes[..(1 + self.dice.below(len)).min(bytes.len())].to_vec()
            }
            Source::Link => {
                let me = this.observer.incarnation();
                let Some(link) = this.links.get(&slot).map(|index| &mut self.sockets[*index]) else { return Ok(()) };
                let side = usize::from(link.ends[0] != (node, me));
                let len = len.min(link.bytes[side].len());
                let len = len.min(1 + self.dice.below(len));
                link.bytes[side].drain(..len).collect()
            }
        };
        if bytes.is_empty() {
            self.look_for_end(node, which, slot)?;
            let this = &mut self.nodes[node].processes[which];
            if !owed && !blocking && !this.observer.is_readable(slot) {
                this.observer.handle_nothing(0)?;
                this.app.handle_nothing();
            }
            return Ok(());
        }
        let newest = self.is_voice(node, which);
        if newest {
            let truth = self.truth.entry(stream).or_default();
            let known = truth.len().checked_sub(offset as usize).expect("G3: a gap in what is received").min(bytes.len());
            assert_eq!(truth[offset as usize..][..known], bytes[..known], "G3: bytes at {offset} of {stream:?}, {source:?}");
            truth.extend(&bytes[known..]);
        }
        let this = &mut self.nodes[node].processes[which];
        self.counts.delivered += bytes.len() as u64;
        this.partial.extend_from_slice(&bytes);
        if let Some(len) = this.observer.handle_received(0, fd, source, &bytes)? {
            assert_eq!(len, this.partial.len());
            let taken = std::mem::take(&mut this.partial);
            this.app.handle_received(socket, &taken);
            if newest && !this.observer.is_replaying() {
                let position = this.observer.journal().end();
                self.nodes[node].depends.push((position, stream, offset + bytes.len() as u64));
            }
        }
        Ok(())
    }

    fn send(&mut self, node: usize, which: usize, socket: usize, bytes: &[u8], blocking: bool, done: usize) -> Result<(), Error> {
        let newest = self.is_voice(node, which);
        let replica = self.nodes[node].replica.as_ref().map(|replica| replica.store.journal_end(process(node)));
        let held = self.nodes[node].store.journal_end(process(node)).min(replica.unwrap_or(u64::MAX));
        let this = &mut self.nodes[node].processes[which];
        let fd = this.app.sockets[socket].fd;
        // A part that was taken is told with the part, hence after it: what counts is what happened before.
        let (again, position) = (this.observer.is_replaying(), this.observer.journal().end());
        // Some calls have several buffers (sendmsg), offered one after the other: which is the program's, so the same in replay.
        let offset = this.app.sockets[socket].sent as usize + done;
        let first = if offset.is_multiple_of(3) { bytes } else { &bytes[..bytes.len().div_ceil(2)] };
        match this.observer.send(0, fd, first, done, blocking)? {
            Send::Taken { len, whole } => {
                let whole = whole && (len == bytes.len() || len < first.len());
                assert!(!newest || again || position <= held, "G1: bytes leave that depend on {position}, {held} is held");
                // What nobody that counts has received may come out another way: nothing depends on it.
                let connection = this.observer.table().get(this.observer.table().slot_of(fd)?).expect("it took bytes");
                let then = self.truth.get(&connection.stream_out()).and_then(|then| then.get(offset..)).unwrap_or(&[]);
                let known = then.len().min(len);
                assert!(
                    !newest || then[..known] == bytes[..known],
                    "G5: other bytes at {offset} of {:?}",
                    connection.stream_out()
                );
                self.counts.again += known as u64;
                this.rest = (!whole).then(|| (socket, bytes[len..].to_vec(), blocking, done + len));
                if whole {
                    this.app.handle_sent(socket, done + len);
                }
            }
            Send::Failed(errno) => {
                assert_eq!(errno, 11);
                this.app.handle_nothing();
            }
            Send::Wait(_) => {}
        }
        Ok(())
    }

    fn send_rest(&mut self, node: usize, which: usize) -> Result<(), Error> {
        let Some((socket, bytes, blocking, done)) = self.nodes[node].processes[which].rest.clone() else { return Ok(()) };
        self.send(node, which, socket, &bytes, blocking, done)
    }

    fn transmit_all(&mut self, node: usize, which: usize) {
        let slots: Vec<_> = self.nodes[node].processes[which].observer.table().iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.transmit(node, which, slot);
        }
    }

    fn transmit(&mut self, node: usize, which: usize, slot: Slot) {
        let this = &mut self.nodes[node].processes[which];
        let Some(link) = this.links.get(&slot).map(|index| &mut self.sockets[*index]) else { return };
        let side = usize::from(link.ends[0] == (node, this.observer.incarnation()));
        match this.observer.poll_transmit(slot) {
            Some(Transmit::Bytes(offset)) => {
                let bytes: Vec<u8> = this.observer.outgoing(slot, offset).flatten().copied().collect();
                let bytes = &bytes[..1 + self.dice.below(bytes.len())];
                if !link.broken {
                    link.bytes[side].extend(bytes);
                }
                this.observer.handle_transmitted(slot, bytes.len() as u64);
            }
            Some(Transmit::End) => {
                link.ended[side] = !link.broken;
                this.observer.handle_transmitted(slot, 1);
            }
            None => {}
        }
    }

    fn hello(&mut self, node: usize, which: usize) {
        // A new pair of connections to the protector: what was on the way on the old ones is lost.
        let this = &mut self.nodes[node].processes[which];
        this.journal.clear();
        this.bulk.clear();
        this.answers.clear();
        if this.observer.checkpoints().under_way().is_some() {
            this.observer.handle_abandoned();
        }
        let hello = this.observer.hello();
        let hello = code(|out| hello.write(out));
        self.tell_store(node, which, &hello);
        self.serve(node);
        self.read_protector(node, which, 99);
    }

    fn ship_journal(&mut self, node: usize, which: usize) {
        let this = &mut self.nodes[node].processes[which];
        if let Some(ship) = this.observer.poll_journal() {
            let message = ToProtector::Journal { position: ship.position, bytes: &[] };
            this.journal.push_back(framed(ship.head, ship.tail, |out| message.write(out)));
        }
    }

    fn ship_payload(&mut self, node: usize, which: usize) {
        let this = &mut self.nodes[node].processes[which];
        while let Some(piece) = this.observer.poll_payload() {
            let (position, stream, offset) = (piece.position, piece.stream, piece.offset);
            let message = if piece.is_end {
                code(|out| ToProtector::PayloadEnd { position, stream, offset }.write(out))
            } else {
                framed(piece.head, piece.tail, |out| ToProtector::Payload { position, stream, offset, bytes: &[] }.write(out))
            };
            this.bulk.push_back(message);
        }
    }

    fn ask_stable(&mut self, node: usize, which: usize) {
        let this = &mut self.nodes[node].processes[which];
        let streams: Vec<_> = this.observer.table().iter().map(|(_, connection)| connection.stream_out()).collect();
        let asks = streams.into_iter().map(|stream| code(|out| ToProtector::AskStable { stream }.write(out)));
        this.bulk.extend(asks);
        if let Some(word) = this.observer.poll_forget() {
            this.say_forgettable(word);
        }
    }

    fn checkpoint(&mut self, node: usize, which: usize) {
        let number = self.dice.below(40);
        let this = &mut self.nodes[node].processes[which];
        if this.rest.is_some() || this.observer.checkpoints().under_way().is_some() || this.fenced {
            return;
        }
        let (mut streams, mut ended) = (Vec::new(), Vec::new());
        let Ok(Some(cut)) = this.observer.checkpoint(&mut streams, &mut ended) else { return };
        let (begin, image) = (code(|out| cut.message(None).write(out)), cut.mark.image);
        let content = vec![image as u8; number];
        this.bulk.push_back(begin);
        for (index, bytes) in content.chunks(16).enumerate() {
            let offset = index as u64 * 16;
            this.bulk.push_back(code(|out| ToProtector::ImageChunk { image, offset, bytes }.write(out)));
        }
        this.bulk.push_back(code(|out| ToProtector::ImageEnd { image, length: number as u64 }.write(out)));
        let saved = Saved { observer: this.observer.clone(), app: this.app.clone() };
        if self.is_voice(node, which) {
            self.nodes[node].images.insert(image, saved);
        }
    }

    fn deliver(&mut self, node: usize, which: usize, journal: bool, most: usize) {
        for _ in 0..most {
            let Some(this) = self.nodes[node].processes.get_mut(which) else { return };
            let Some(message) = (if journal { this.journal.pop_front() } else { this.bulk.pop_front() }) else { return };
            self.tell_store(node, which, &message);
        }
    }

    fn tell_store(&mut self, node: usize, which: usize, message: &[u8]) {
        let incarnation = self.nodes[node].processes[which].observer.incarnation();
        let speaker = Speaker { process: process(node), incarnation };
        let message = ToProtector::read(message).expect("a message");
        match self.nodes[node].store.handle_message(speaker, &message) {
            Ok(()) => {}
            Err(StoreError::Fenced { .. }) => assert!(incarnation.0 < self.nodes[node].incarnation, "the newest was fenced"),
            // After its protector was replaced a zombie is unknown there, or says what cannot be.
            Err(_) if incarnation.0 < self.nodes[node].incarnation => {}
            Err(error) => panic!("node {node}: {error}: {message:?}"),
        }
    }

    /// What the protector wants done.
    fn serve(&mut self, node: usize) {
        while let Some(output) = self.nodes[node].store.poll_output() {
            match output {
                Output::Send(to, message) => {
                    if let Ok(FromProtector::Committed { .. }) = FromProtector::read(&message) {
                        self.counts.commits += 1;
                    }
                    self.tell_observer(to, message);
                }
                Output::Forward(_, message) => {
                    self.nodes[node].replica.as_mut().into_iter().for_each(|replica| replica.queue.push_back(message.clone()));
                }
                Output::Verify(id, image) => {
                    let good = self.dice.below(16) > 0;
                    self.nodes[node].store.handle_verified(id, image, good);
                }
                Output::AskStable(to, stream) => {
                    let opener = stream.connection.opener.rank.0 as usize;
                    let sender = to.process.rank.0 as usize;
                    let receiver = if stream.from_opener { self.peer_of(node, stream) } else { Some(opener) };
                    let Some(receiver) = receiver.filter(|receiver| *receiver != sender) else { continue };
                    let offset = self.nodes[receiver].store.stable_of(process(receiver), stream);
                    self.tell_observer(to, code(|out| FromProtector::StreamStable { stream, offset }.write(out)));
                }
                Output::Forget(from, connection, for_good) => {
                    // Of the pair or the ring; its end may be forgotten here.
                    let opener = connection.opener.rank.0 as usize;
                    let to = if from.process == connection.opener { (opener + 1) % self.nodes.len() } else { opener };
                    let speaker = Speaker { process: process(to), incarnation: Incarnation(self.nodes[to].incarnation) };
                    self.tell_observer(speaker, code(|out| FromProtector::Forget { connection, for_good }.write(out)));
                }
                Output::Read(to, file, position, length) => {
                    let bytes = self.nodes[node].files[&file][position as usize..position as usize + length].to_vec();
                    let bytes = &bytes[..];
                    self.tell_observer(
                        to,
                        match file {
                            store::File::Stream(_, stream) => {
                                code(|out| FromProtector::Payload { stream, offset: position, bytes }.write(out))
                            }
                            _ => code(|out| FromProtector::Journal { position, bytes }.write(out)),
                        },
                    );
                }
                Output::Truncate(..) => {}
                Output::Delete(file) => {
                    self.nodes[node].files.remove(&file);
                }
            }
        }
    }

    fn peer_of(&self, node: usize, stream: StreamId) -> Option<usize> {
        let table = self.nodes[node].processes.last()?.observer.table();
        Some(table.get(table.find(stream.connection)?)?.peer.rank.0 as usize)
    }

    fn tell_observer(&mut self, to: Speaker, message: Vec<u8>) {
        let node = &mut self.nodes[to.process.rank.0 as usize];
        let process = node.processes.iter_mut().find(|process| process.observer.incarnation() == to.incarnation);
        process.into_iter().for_each(|process| process.answers.push_back(message.clone()));
    }

    fn read_protector(&mut self, node: usize, which: usize, most: usize) {
        for _ in 0..most {
            let Some(this) = self.nodes[node].processes.get_mut(which) else { return };
            let Some(message) = this.answers.pop_front() else { return };
            let message = FromProtector::read(&message).expect("an answer");
            let result = this.observer.handle_protector(&message);
            self.expect(node, which, result);
        }
    }

    fn write_files(&mut self, node: usize, most: usize) {
        for _ in 0..most {
            let node = &mut self.nodes[node];
            let mut some = write_file(&mut node.store, &mut node.files);
            if let Some(replica) = &mut node.replica {
                some |= write_file(&mut replica.store, &mut replica.files);
            }
            if !some {
                return;
            }
        }
    }

    fn run_replica(&mut self, node: usize, most: usize) {
        let Some(replica) = &mut self.nodes[node].replica else { return };
        for _ in 0..most {
            let Some(message) = replica.queue.pop_front() else { break };
            let message = ToProtector::read(&message).expect("a message");
            if let ToProtector::Hello { process, incarnation, .. } = message {
                replica.speaker = Some(Speaker { process, incarnation });
            }
            let Some(speaker) = replica.speaker else { continue };
            replica
                .store
                .handle_message(speaker, &message)
                .unwrap_or_else(|error| panic!("replica of {node}: {error}: {message:?}"));
            replica.store.follow(speaker.process);
        }
        while let Some(output) = replica.store.poll_output() {
            match output {
                Output::Send(_, message) => replica.answers.push_back(message),
                Output::Verify(id, image) => replica.store.handle_verified(id, image, true),
                Output::Delete(file) => {
                    replica.files.remove(&file);
                }
                _ => {}
            }
        }
        let answers = std::mem::take(&mut replica.answers);
        for message in answers {
            let message = FromProtector::read(&message).expect("an answer");
            self.nodes[node].store.handle_replica(process(node), &message);
        }
    }

    fn is_protected(&self, node: usize) -> bool {
        self.nodes[node].store.has_image(process(node))
    }

    fn die(&mut self, node: usize) {
        if self.nodes[node].dead || !self.is_protected(node) {
            return;
        }
        self.counts.restarts += 1;
        (self.nodes[node].dead, self.nodes[node].fenced) = (true, false);
        let promote = self.plan.replicas && self.dice.below(3) == 0;
        if promote {
            // Its protector may have gone back to an image before the newest, which leaves none there.
            self.run_replica(node, 99);
        }
        let replica_ready = self.nodes[node].replica.as_ref().is_some_and(|replica| replica.store.has_image(process(node)));
        if promote && replica_ready {
            // Its protector dies with it: the second one goes on alone.
            let mut replica = self.nodes[node].replica.take().expect("it was looked at");
            replica.store.take_over(process(node));
            (self.nodes[node].store, self.nodes[node].files) = (replica.store, replica.files);
        }
        if !promote && self.dice.below(3) == 0 {
            self.counts.zombies += 1;
            return;
        }
        let Some(gone) = self.nodes[node].processes.pop() else { return };
        // The kernel closes its sockets: what was written may still arrive, or is lost in a reset.
        for index in gone.links.values() {
            let socket = &mut self.sockets[*index];
            let side = usize::from(socket.ends[0] == (node, gone.observer.incarnation()));
            if self.dice.below(2) == 0 {
                socket.broken = true;
            } else {
                socket.ended[side] = true;
            }
        }
    }

    fn restart(&mut self, node: usize) {
        if !self.nodes[node].dead {
            return;
        }
        if !std::mem::replace(&mut self.nodes[node].fenced, true) {
            self.nodes[node].incarnation += 1;
        }
        let incarnation = Incarnation(self.nodes[node].incarnation);
        self.write_files(node, 4);
        self.run_replica(node, 99);
        let restart = match self.nodes[node].store.restart(process(node), incarnation) {
            Ok(restart) => restart,
            Err(NoRestart::Unstable) => return self.serve(node),
            Err(NoRestart::NoImage) => panic!("node {node} died while it was protected"),
        };
        self.nodes[node].dead = false;
        let image = restart.images.last().expect("an image").0;
        let saved = &self.nodes[node].images[&image];
        let mut observer = saved.observer.clone();
        let held = restart.held.clone();
        observer
            .restart(incarnation, restart.log_end, restart.held, restart.range, 128)
            .unwrap_or_else(|error| panic!("node {node}: {error}"));
        let app = saved.app.clone();
        for (other, incarnation) in self.nodes.iter().map(|node| Incarnation(node.incarnation)).enumerate() {
            observer.handle_restarted(process(other), incarnation);
        }
        // Its death has undone what was not stable: what it received then may come out another way.
        self.nodes[node].depends.retain(|depends| depends.0 <= restart.log_end);
        let (depends, nodes) = (&self.nodes[node].depends, self.nodes.len());
        for (stream, truth) in self.truth.iter_mut().filter(|(stream, _)| receives(node, nodes, stream)) {
            let replayed = depends.iter().filter(|depends| depends.1 == *stream).map(|depends| depends.2).max();
            let held = held.iter().find(|held| held.0 == *stream).map(|held| held.2.map_or(held.1, |end| end.min(held.1)));
            truth.truncate(replayed.max(held).unwrap_or(0) as usize);
        }
        self.nodes[node].processes.push(Process::new(observer, app));
        let newest = self.nodes[node].processes.len() - 1;
        self.serve(node);
        self.hello(node, newest);
    }

    /// The protector dies and another takes over, which holds nothing: until an image is committed there, a death would mean
    /// starting over.
    fn replace_protector(&mut self, node: usize) {
        let newest = self.nodes[node].processes.len() - 1;
        let this = &self.nodes[node].processes[newest];
        if self.nodes[node].dead || this.observer.needs_log() || self.plan.replicas {
            return;
        }
        self.counts.replaced += 1;
        let durable = self.plan.durable;
        let config = store::Config { memory: 100, log: 600, image: 100, durable };
        self.nodes[node].store = Store::new(config);
        self.nodes[node].files.clear();
        // Zombies lose theirs too, and find another only under their old number.
        self.nodes[node].processes.drain(..newest);
        self.hello(node, 0);
    }

    fn fetch_log(&mut self, node: usize, which: usize) {
        let this = &self.nodes[node].processes[which];
        let Some((position, most)) = this.observer.wanted_log().filter(|_| !this.fenced) else { return };
        if which + 1 < self.nodes[node].processes.len() || self.nodes[node].dead {
            return;
        }
        let message = self.fetch(node, which, ToProtector::FetchJournal { position });
        let Some(FromProtector::Journal { position, bytes }) =
            message.as_deref().map(|m| FromProtector::read(m).expect("journal"))
        else {
            panic!("no journal from {position}");
        };
        let most = 1 + self.dice.below(most.min(bytes.len()));
        let answer = FromProtector::Journal { position, bytes: &bytes[..most] };
        let result = self.nodes[node].processes[which].observer.handle_protector(&answer);
        self.expect(node, which, result);
    }

    fn fetch_payload(&mut self, node: usize, which: usize, stream: StreamId, offset: u64) -> Vec<u8> {
        let message = self.fetch(node, which, ToProtector::FetchPayload { stream, offset });
        match message.as_deref().map(|message| FromProtector::read(message).expect("payload")) {
            Some(FromProtector::Payload { offset: got, bytes, .. }) if got == offset => bytes.to_vec(),
            _ => Vec::new(),
        }
    }

    fn fetch(&mut self, node: usize, which: usize, ask: ToProtector<'_>) -> Option<Vec<u8>> {
        self.serve(node);
        let waiting = std::mem::take(&mut self.nodes[node].processes[which].answers);
        self.tell_store(node, which, &code(|out| ask.write(out)));
        self.serve(node);
        std::mem::replace(&mut self.nodes[node].processes[which].answers, waiting).pop_front()
    }

    /// G2 for every stream: what its sender does not keep any more is held by the receiver's protector, or covered there.
    fn check(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(sender) = node.processes.last().filter(|_| !node.dead) else { continue };
            for (_, connection) in sender.observer.table().iter() {
                let (stream, receiver) = (connection.stream_out(), connection.peer.rank.0 as usize);
                let kept = connection.outgoing().start();
                if kept == 0 || !self.is_protected(receiver) {
                    continue;
                }
                let store = &self.nodes[receiver].store;
                // Two commits cover that the receiver has closed it: its protector has forgotten it.
                let there = self.nodes[receiver].processes.last().map(|process| process.observer.table());
                let there = || there.and_then(|table| table.get(table.find(connection.id)?));
                let is_closed = || there().is_none_or(|c| c.fd().is_none());
                let forgotten = |store: &Store| store.stable_of(process(receiver), stream) == 0 && is_closed();
                let replica = self.nodes[receiver].replica.as_ref().map(|replica| &replica.store);
                let held = |store: &Store| store.holds(process(receiver), stream, kept - 1) || forgotten(store);
                let held = held(store) && replica.is_none_or(held);
                assert!(
                    held,
                    "G2: node {index} keeps {stream:?} from {kept}, but its receiver's protector, or its replica, does not hold the byte before"
                );
            }
        }
    }

    fn check_end(&self) {
        for node in &self.nodes {
            let last = node.processes.last().expect("all live");
            let is_over = last.app.sockets.iter().all(|socket| socket.finished && socket.ended);
            assert!(is_over && last.app.sockets.len() == last.app.connects.len() + last.app.accepts);
        }
        let sockets = || self.nodes.iter().flat_map(|node| &node.processes.last().expect("all live").app.sockets);
        let known: u64 = self.truth.values().map(|bytes| bytes.len() as u64).sum();
        let (sent, received) = sockets().fold((0, 0), |(sent, received), s| (sent + s.sent, received + s.received));
        assert_eq!((sent, known), (received, received), "G3: everything arrived");
    }
}

impl Node {
    /// What is known when nothing moves any more.
    fn tell(&self) {
        if self.processes.is_empty() {
            println!("none: dead {}, fenced {}, incarnation {}", self.dead, self.fenced, self.incarnation);
        }
        for process in &self.processes {
            println!(
                "{:?}, log wanted {:?}, fenced {}, dead {}",
                process.observer.phase(),
                process.observer.wanted_log(),
                process.fenced,
                self.dead
            );
            let (observer, app) = (&process.observer, &process.app);
            println!("{:?}, rest {:?}, partial {:?}, op {:?}", observer.incarnation(), process.rest, process.partial, app.op());
            println!(
                "  replaying {}, journal {:?} stable {}, outbox {}, payload {:?}, image {:?}",
                observer.is_replaying(),
                observer.journal().span(),
                observer.journal().stable(),
                observer.outbox().used(),
                observer.payload().span(),
                observer.checkpoints()
            );
            observer.table().iter().for_each(|(slot, connection)| println!("  {slot} {connection:?}"));
            app.sockets.iter().for_each(|socket| println!("  {socket:?}"));
        }
    }
}

/// False: there was nothing to write.
fn write_file(store: &mut Store, files: &mut BTreeMap<store::File, Vec<u8>>) -> bool {
    let Some(write) = store.poll_write(16) else { return false };
    let file = files.entry(write.file).or_default();
    let (from, to) = (write.position as usize, write.position as usize + write.bytes.len());
    file.resize(file.len().max(to), 0);
    file[from..to].copy_from_slice(&write.bytes);
    store.handle_written(write.file, to as u64);
    true
}

impl Process {
    fn say_forgettable(&mut self, word: Forgettable) {
        let Forgettable { connection, for_good, .. } = word;
        self.bulk.push_back(code(|out| ToProtector::Forget { connection, for_good }.write(out)));
    }

    fn new(observer: Observer, app: App) -> Process {
        let (rest, partial, links) = Default::default();
        let (journal, bulk, answers, fenced) = Default::default();
        Process { observer, app, rest, partial, links, journal, bulk, answers, fenced }
    }

    fn finish(&mut self, socket: usize) -> Result<(), Error> {
        if self.observer.finish(self.app.sockets[socket].fd)?.is_none() {
            self.app.handle_finished(socket);
        }
        Ok(())
    }

    fn close(&mut self, socket: usize) -> Result<(), Error> {
        let fd = self.app.sockets[socket].fd;
        if self.observer.close(fd)?.is_none() {
            self.app.handle_closed(socket);
        }
        Ok(())
    }
}
