//! PMI-1: how the ranks of a job find each other, as MPICH's family speaks it (and Open MPI 4 and 5 through libradic_pmi.so and libradic_pmix.so).
//!
//! PMI-1 is a conversation of text lines between a rank and the daemon that launched it: the rank asks, the daemon answers, one
//! request at a time. Nothing here does input or output, except [`leftovers`], which cleans up after the libraries:
//!
//! - [`Session`]: the daemon's end of one rank's conversation, bytes in, requests out, replies in, bytes out;
//! - [`KeySpace`]: the keys that the ranks of one job put for each other, as one node knows them;
//! - [`leftovers`]: the files that an MPI library leaves behind when its process is killed.
//!
//! Source: the commands and answers that the libraries were seen to use (docs/mpi-libraries.md) and the published PMI-1 API.

mod keyspace;
pub mod leftovers;
mod line;
mod session;

pub use keyspace::{KeySpace, KeySpaceError};
pub use session::{PmiError, Reply, Request, Session};
