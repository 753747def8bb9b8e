//! What tests of both commands need.

use std::net::{IpAddr, Ipv4Addr};

use radic_wire::ids::{BootId, Epoch, JobId, NodeId};
use radic_wire::job::{Placement, Ward};
use radic_wire::suspension::Suspension;

use crate::node::tests::spec;

/// What the home knows of a job of so many ranks.
pub(super) fn suspension(job: JobId, ranks: u32) -> Suspension {
    let spec = spec(ranks);
    let all = ranks as usize;
    let node = NodeId { name: "n1".parse().unwrap(), boot: BootId(1) };
    let placement = Placement { nodes: vec![node], rank_nodes: vec![0; all] };
    let ward = Ward { epoch: Epoch::FIRST, spec, placement, fence: 2, keys: vec![] };
    let origins = vec![IpAddr::V4(Ipv4Addr::LOCALHOST); all];
    Suspension { job, ward, started_ms: 5, origins, output: vec![[0, 0]; all], line: 3 }
}
