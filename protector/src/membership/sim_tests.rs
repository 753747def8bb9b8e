//! A simulated cluster.

use radic_wire::ids::{BootId, NodeId};
use radic_wire::membership::Member;

/// Node `n{i}` in its life `boot`.
pub(super) fn member(i: usize, boot: u64) -> Member {
    let id = NodeId { name: format!("n{i}").parse().unwrap(), boot: BootId(boot) };
    Member { id, address: ([10, 0, (i >> 8) as u8, i as u8], 7000 + boot as u16).into(), spare: false, slots: 1 }
}
