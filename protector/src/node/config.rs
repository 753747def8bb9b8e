//! What a node knows of itself at its start.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use radic_wire::fault::Fault;
use radic_wire::key::ClusterKey;
use radic_wire::membership::Member;
use radic_wire::process::Counters;

use super::host::HostEnvironment;
use super::replays::Activity;
use crate::membership;

/// What a node knows of itself at its start.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// This node, as other nodes will know it.
    pub me: Member,
    /// The node's own part of the environment of ranks.
    pub environment: HostEnvironment,
    /// The wall clock at the daemon's start, in microseconds since 1970.
    pub wall_us: u64,
    /// Seed for job numbers and retry times.
    pub seed: u64,
    /// The addresses to join at. If empty, this node makes view 1 of itself.
    pub join: Vec<SocketAddr>,
    /// How many others must ask this node to be let in before it founds a cluster itself; none: it never does, if it is to join.
    pub found: Option<usize>,
    /// The membership's times.
    pub timing: membership::Timing,
    /// Tells the daemon's resident memory, in bytes.
    pub memory: fn() -> u64,
    /// Memory that the programs of this node may have together, in bytes.
    pub machine_memory: u64,
    /// Tells this machine's addresses.
    pub addresses: fn() -> Vec<IpAddr>,
    /// Tells what the process with this number has counted, if it runs under the library.
    pub counters: fn(u32) -> Option<Counters>,
    /// Tells what the kernel says of the process with this number, if it is there.
    pub activity: fn(u32) -> Option<Activity>,
    /// Time that a process which is catching up may wait without progress. If None, the node computes it.
    pub replay_limit: Option<Duration>,
    /// Tells why a fault cannot be caused at the node with this address, if it cannot.
    pub refuse_fault: fn(Fault, IpAddr) -> Result<(), String>,
    /// Where this daemon serves its page and metrics, if it does.
    pub http: Option<SocketAddr>,
    /// The cluster's key, from which those of jobs are derived.
    pub key: ClusterKey,
}
