//! A daemon that is none: it answers on a unix socket as one of a large cluster would. For tests, and for measuring what watching costs
//! (`cargo run --release -p radic-web --example feed`).

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use radic_wire::event::{Event, EventName};
use radic_wire::frame::{self, FrameReader};
use radic_wire::ids::{JobId, NodeName, ProcessId, Rank};
use radic_wire::job::JobInfo;
use radic_wire::local::{ClusterStatus, NodeInfo, NodeState, NodeStatus, Reply, Request, SOCKET_NAME, Traffic};
use radic_wire::membership::Role;
use radic_wire::process::{Counters, PayloadMode, Protect};
use radic_wire::report::{LogSizes, ProcessInfo, RankInfo, Report};
use radic_wire::{PROTOCOL_VERSION, codec, limits};

/// Time between two events.
const EVENTS: Duration = Duration::from_millis(200);

/// How large the cluster is.
#[derive(Debug, Clone, Copy)]
pub struct Cluster {
    /// Nodes; every tenth is a spare.
    pub nodes: u32,
    /// Ranks of its one job.
    pub ranks: u32,
}

impl Cluster {
    /// Answers on the socket in this folder, each connection on a thread of its own, until the process ends. Returns where the number of
    /// questions is counted.
    pub fn serve(self, node_dir: &Path) -> io::Result<Arc<AtomicU64>> {
        let listener = UnixListener::bind(node_dir.join(SOCKET_NAME))?;
        let asked = Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let count = count.clone();
                thread::spawn(move || _ = self.converse(stream, &count));
            }
        });
        Ok(asked)
    }

    fn converse(self, mut stream: UnixStream, asked: &AtomicU64) -> io::Result<()> {
        let mut frames = FrameReader::new(limits::LOCAL_FRAME);
        let mut buffer = [0; 4096];
        loop {
            while let Some(body) = frames.next_frame().map_err(io::Error::other)? {
                let request: Request = codec::decode(body, limits::LOCAL_FRAME).map_err(io::Error::other)?;
                let tick = asked.fetch_add(1, Ordering::SeqCst);
                let reply = match request {
                    Request::Hello { .. } => Reply::Welcome { version: PROTOCOL_VERSION, node: self.node(0) },
                    Request::Status => Reply::Status(self.status(tick)),
                    Request::Node => Reply::Node(Box::new(self.node_status(tick))),
                    Request::Traffic(_) => Reply::Traffic(self.traffic(tick)),
                    Request::Events { .. } => return self.tell_events(&mut stream),
                    _ => Reply::Error("that is not simulated".into()),
                };
                say(&mut stream, &reply)?;
            }
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            frames.push(buffer.get(..count).unwrap_or_default());
        }
    }

    /// Checkpoints all the time, and now and then a death with what follows it.
    fn tell_events(self, stream: &mut UnixStream) -> io::Result<()> {
        use EventName::{Checkpoint, Confirm, Fence, Image, Live, Place, Replay, Reprotected};
        const STEPS: [EventName; 7] = [Confirm, Fence, Place, Image, Replay, Live, Reprotected];
        for seq in 0u64.. {
            let recovers = seq / 7 % 4 == 1;
            let event = if recovers { STEPS.into_iter().nth(seq as usize % 7).unwrap_or(Checkpoint) } else { Checkpoint };
            let (node, rank) = (self.node(seq as u32 % self.nodes), if recovers { seq / 7 } else { seq } as u32 % self.ranks);
            let told = Event {
                at_ms: now_ms(),
                node: node.clone(),
                seq,
                event,
                subject: (event == Confirm).then_some(node),
                job: (event != Confirm).then_some(job()),
                rank: (event != Confirm).then_some(Rank(rank)),
                text: format!("<b>event</b> number {seq}"),
            };
            say(stream, &Reply::Events(vec![told]))?;
            thread::sleep(EVENTS);
        }
        Ok(())
    }

    fn node(self, at: u32) -> NodeName {
        format!("node{at}").parse().unwrap_or_else(|_| unreachable!("letters and digits are a name"))
    }

    fn host(self, rank: u32) -> u32 {
        rank % self.nodes
    }

    fn processes(self, tick: u64) -> impl Iterator<Item = ProcessInfo> {
        (0..self.ranks).map(move |rank| ProcessInfo {
            job: job(),
            rank: Rank(rank),
            node: self.node(self.host(rank)),
            pid: 1_000 + rank,
            running: true,
            protect: Protect::On,
            joined: true,
            degraded: rank == 1,
            counters: Some(counters(tick, rank)),
            cpu_ms: None,
            stopped: false,
            logs: vec![LogSizes { node: self.node(self.host(rank + 1)), ..sizes(rank) }],
        })
    }

    fn jobs(self) -> Vec<JobInfo> {
        let nodes = (0..self.nodes.min(8)).map(|at| self.node(at)).collect();
        vec![JobInfo {
            job: job(),
            command: "./solver --steps 1000 <input>".into(),
            ranks: self.ranks,
            running: self.ranks,
            degraded: vec![Rank(1)],
            nodes,
            home: self.node(0),
            started_ms: now_ms().saturating_sub(61_000) / 60_000 * 60_000,
            elapsed_ms: 61_000,
            payload: PayloadMode::Log,
            outcome: None,
        }]
    }

    fn ranks_on(self, at: u32) -> Vec<RankInfo> {
        let here = (0..self.ranks).filter(|rank| self.host(*rank) == at);
        here.map(|rank| RankInfo { job: job(), rank: Rank(rank), pid: 1_000 + rank }).collect()
    }

    /// The cluster, with counters that have grown with each tick.
    pub fn status(self, tick: u64) -> ClusterStatus {
        let node = |at: u32| NodeInfo {
            name: self.node(at),
            address: SocketAddr::from(([10, (at >> 16) as u8, (at >> 8) as u8, at as u8], 7117)),
            state: if at == 3 { NodeState::Dead } else { NodeState::Alive },
            role: if at % 10 == 9 { Role::Spare } else { Role::Node },
            slots: 8,
            ranks: Vec::new(),
            protector: Some(self.node((at + 1) % self.nodes)),
            memory: (64 << 20) + (tick << 16),
            pid: 77,
        };
        let mut nodes: Vec<_> = (0..self.nodes).map(node).collect();
        for rank in 0..self.ranks {
            let info = RankInfo { job: job(), rank: Rank(rank), pid: 1_000 + rank };
            nodes.get_mut(self.host(rank) as usize).into_iter().for_each(|node| node.ranks.push(info.clone()));
        }
        ClusterStatus {
            answered_by: self.node(0),
            view: 7,
            frozen: false,
            nodes,
            jobs: self.jobs(),
            processes: self.processes(tick).collect(),
        }
    }

    /// The first node.
    pub fn node_status(self, tick: u64) -> NodeStatus {
        let processes = self.processes(tick).filter(|process| process.node == self.node(0)).collect();
        let held = (0..self.ranks).filter(|rank| self.host(rank + 1) == 0);
        NodeStatus {
            node: self.node(0),
            role: Role::Node,
            slots: 8,
            http: None,
            view: 7,
            frozen: false,
            members: vec![(Role::Node, self.nodes - self.nodes / 10), (Role::Spare, self.nodes / 10), (Role::Witness, 0)],
            report: Report { ranks: self.ranks_on(0), processes, jobs: self.jobs(), memory: 64 << 20, pid: 77 },
            held: held.map(|rank| (ProcessId { job: job(), rank: Rank(rank) }, sizes(rank))).collect(),
            intervals: vec![(job(), 30_000)],
        }
    }

    fn traffic(self, tick: u64) -> Traffic {
        let to = |rank: u32| [(rank + 1) % self.ranks, (rank + 7) % self.ranks, rank / 2];
        let pairs = (0..self.ranks)
            .flat_map(|rank| to(rank).map(|other| (Rank(rank), Rank(other), u64::from(rank % 13 + 1) * (1_000 + tick))));
        Traffic { pairs: pairs.collect(), others: 0, partial: false }
    }
}

fn say(stream: &mut UnixStream, reply: &Reply) -> io::Result<()> {
    let body = codec::encode(reply, limits::LOCAL_FRAME).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    frame::encode_into(&mut bytes, &body, limits::LOCAL_FRAME);
    stream.write_all(&bytes)
}

fn job() -> JobId {
    JobId::from_bits(0x4f3c)
}

fn counters(tick: u64, rank: u32) -> Counters {
    let grown = tick * (1_000 + u64::from(rank));
    Counters {
        bytes_in: grown,
        bytes_out: grown * 2,
        messages_in: tick,
        messages_out: tick,
        events: tick,
        gate_ns: tick * 1_000,
        outbox: u64::from(rank) * 100,
        checkpoints: tick / 50,
        committed: tick / 50,
        pause_ns: tick * 10_000,
        connections: 6,
        ..Counters::default()
    }
}

fn sizes(rank: u32) -> LogSizes {
    let node = "node0".parse().unwrap_or_else(|_| unreachable!("letters and digits are a name"));
    let (journal, payload, images) = (1_000, 50_000 + u64::from(rank), 4 << 20);
    LogSizes { node, journal, payload, images, committed: Some(3), committed_ms: Some(12_000), waits: None }
}

fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_millis() as u64)
}

/// Seconds of processor time that this process's threads of this name have had.
pub fn processor_time(name: &str) -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of = |path: std::path::PathBuf| {
        let is_it = std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name);
        let text = std::fs::read_to_string(path.join("schedstat")).ok().filter(|_| is_it)?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    tasks.filter_map(|task| of(task.path())).sum::<f64>() / 1e9
}
