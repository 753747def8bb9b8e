//! Numbers of connections.

/// A connection of a `radic` command. The driver numbers them and never uses a number twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// A connection of an observer; the driver numbers them and never uses a number twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObserverId(pub u64);
