//! The test harness: whole clusters, started and ended by a test, whatever becomes of the test.
//!
//! A [`Cluster`] has logical nodes (`radic cluster start`) or nodes in network namespaces of their own ([`Kind`]); a test need
//! not know which. Everything that belongs to a cluster carries [`process::MARK`] with the cluster's directory in its
//! environment: protectors, commands, ranks, their children. So what is left of a cluster can be found, shown and ended, by
//! its own test or, if that was killed, by the next one ([`leftovers`]).
//!
//! Nothing here waits by sleeping where there is something to wait for: commands and their output ([`command`]), ends of
//! processes ([`process`]), events of the cluster ([`client`]). Every wait has a limit.
#![forbid(unsafe_code)]

#[cfg(test)]
mod circles;
pub mod client;
pub mod cluster;
pub mod command;
#[cfg(test)]
mod docs;
pub mod frames;
pub mod gridengine;
pub mod leftovers;
pub mod library;
pub mod namespace;
pub mod netns;
pub mod process;
pub mod protection;
pub mod proxy;
pub mod random;
pub mod recovery;
pub mod redis;
pub mod sharing;
pub mod slurm;
pub mod sockets;
pub mod sshd;
#[cfg(test)]
mod wrong;

pub use cluster::{Cluster, Kind, Setup};
pub use command::{Finished, Running};
