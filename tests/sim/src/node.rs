//! How the protectors of simulated clusters are configured.

use std::net::SocketAddr;

use radic_protector::membership::Timing;
use radic_protector::node::NodeConfig;
use radic_protector::node::host::HostEnvironment;
use radic_wire::key::ClusterKey;
use radic_wire::membership::Member;

/// The configuration of this member, which joins by the nodes at these addresses.
pub fn node_config(me: Member, seed: u64, join: Vec<SocketAddr>) -> NodeConfig {
    let environment = HostEnvironment {
        address: me.address.ip(),
        iface: "eth0".into(),
        prefix: "10.0.0.0/8".into(),
        radic_pmi: "/lib/libradic_pmi.so".into(),
        radic_pmix: "/lib/libradic_pmix.so".into(),
        library: "/lib/libradic.so".into(),
        process_socket: "/process.sock".into(),
        node: me.id.name.to_string(),
    };
    NodeConfig {
        me,
        environment,
        wall_us: 1_000_000,
        seed,
        join,
        found: None,
        timing: Timing::default(),
        memory: || 0,
        machine_memory: 16 << 30,
        addresses: Vec::new,
        counters: |_| None,
        activity: |_| None,
        replay_limit: None,
        refuse_fault: |_, _| Ok(()),
        http: None,
        key: ClusterKey::from_bytes([1; 32]),
    }
}
