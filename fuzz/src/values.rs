//! Values of which first inputs are made: a small job and what is around it.

use std::net::{IpAddr, SocketAddr};

use radic_wire::bytes::Writer;
use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{BootId, Epoch, JobId, NodeId, ProcessId, Rank};
use radic_wire::job::{JobSpec, MapBy, Placement, RestartOn, Ward};
use radic_wire::membership::{Member, Role};
use radic_wire::process::Protection;
use radic_wire::suspension::Suspension;
use serde_bytes::ByteBuf;

/// The job.
pub fn job() -> JobId {
    JobId::from_bits(0xabc)
}

/// One of its processes.
pub fn process(rank: u32) -> ProcessId {
    ProcessId { job: job(), rank: Rank(rank) }
}

/// A connection that rank 9 has opened.
pub fn connection(number: u64) -> ConnectionId {
    ConnectionId { opener: process(9), number }
}

/// What comes from rank 9 on it.
pub fn stream(number: u64) -> StreamId {
    StreamId { connection: connection(number), from_opener: true }
}

/// An address.
pub fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A node.
pub fn node(name: &str) -> NodeId {
    NodeId { name: name.parse().expect("a name"), boot: BootId(1) }
}

/// Its entry in a view.
pub fn member(name: &str) -> Member {
    Member { id: node(name), address: address(7), data: address(7).ip(), log_port: 9, role: Role::Node, slots: 2 }
}

/// What runs.
pub fn spec(ranks: u32) -> JobSpec {
    JobSpec {
        program: ByteBuf::from("/bin/true"),
        args: vec![ByteBuf::from("true")],
        env: vec![(ByteBuf::from("HOME"), ByteBuf::from("/root"))],
        templates: vec![("A".into(), "{rank}".into())],
        dir: ByteBuf::from("/"),
        ranks,
        nodes: vec![],
        map_by: MapBy::Node,
        umask: 0o22,
        protection: Protection::default(),
        mtbf_s: 86_400,
        restart_on: RestartOn::Spare,
        on_loss: radic_wire::job::OnLoss::Fail,
        life: 0,
    }
}

/// Where.
pub fn placement(ranks: u32) -> Placement {
    Placement { nodes: vec![node("n1")], rank_nodes: vec![0; ranks as usize] }
}

/// Both, and the keys.
pub fn ward() -> Ward {
    let keys = vec![("a".into(), "b".into())];
    Ward { epoch: Epoch::FIRST, spec: spec(1), placement: placement(1), fence: 2, keys }
}

/// The job when it is suspended.
pub fn suspension() -> Suspension {
    let origins = vec![IpAddr::from([127, 0, 0, 1])];
    Suspension { job: job(), ward: ward(), started_ms: 5, origins, output: vec![[10, 0]], line: 2 }
}

/// What `write` writes.
pub fn written(write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = vec![0; 256];
    loop {
        let mut writer = Writer::new(&mut out);
        write(&mut writer);
        if let Some(length) = writer.finish() {
            out.truncate(length);
            return out;
        }
        out.resize(out.len() * 2, 0);
    }
}
