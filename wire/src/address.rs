//! Socket addresses as they are compared.

use std::net::SocketAddr;

/// Without IPv6's zones and its way to write IPv4: the same address always looks the same.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
