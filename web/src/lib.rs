//! What `radicd --http` serves: a page for people, and metrics in OpenMetrics format. Both can be looked at only, and only with a
//! token ([`radic_wire::token`]).
//!
//! All of it runs on a thread of its own, after everything else on the machine, and asks the daemon over the daemon's unix socket, as the
//! `radic` command does. So neither a slow browser nor a mistake in a picture takes the daemon's time, and it costs nothing while no page is open.
//!
//! - [`server`]: connections and their bounds, tokens, routes;
//! - [`feed`]: asks the daemon while there are watchers, and tells them what has changed;
//! - [`picture`]: from states and events to what the page is told;
//! - [`table`], [`rows`]: the rows of nodes and ranks, and which of them have changed;
//! - [`metrics`]: from the state of this node to OpenMetrics.
#![forbid(unsafe_code)]
// The daemon ends where it panics: whatever is asked here must not end a node.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

pub mod access;
pub mod feed;
pub mod metrics;
pub mod patience;
pub mod picture;
pub mod rows;
pub mod server;
#[doc(hidden)]
pub mod simulated;
pub mod table;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use radic_wire::key::ClusterKey;
use radic_wire::token::Tokens;

/// How much less than other threads this one gets of a processor that is short.
const NICE: i32 = 10;

/// What is served, and of what.
#[derive(Debug)]
pub struct Settings {
    /// The node's own directory, with the daemon's socket.
    pub node_dir: PathBuf,
    /// Where its logs and images are.
    pub store: PathBuf,
    /// What a token is checked with.
    pub key: ClusterKey,
    /// Time between two looks at the cluster, while there are watchers.
    pub interval: Duration,
}

/// Time between two looks at the cluster, if nothing else is said.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be had.
    #[error("--http: cannot listen on {0}: {1}; choose another address or port, or leave --http out")]
    Listen(SocketAddr, io::Error),
    /// The system has no thread.
    #[error("--http: no thread: {0}")]
    Thread(io::Error),
}

/// Takes the address. Nothing is answered yet.
pub fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let bound = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bound().map_err(|error| StartError::Listen(address, error))
}

/// Serves on a thread of its own, until the process ends.
pub fn start(listener: TcpListener, settings: Settings) -> Result<thread::JoinHandle<()>, StartError> {
    let serve = move || {
        // Less of the processor than what keeps the cluster together. Without that it is no less right.
        if let Err(error) = rustix::process::setpriority_process(None, NICE) {
            tracing::debug!(%error, "the page is served with the priority of all else");
        }
        let runtime =
            match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().max_blocking_threads(1).build() {
                Ok(runtime) => runtime,
                Err(error) => return tracing::error!(%error, "--http: nothing is served"),
            };
        runtime.block_on(async {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => server::serve(listener, settings).await,
                Err(error) => tracing::error!(%error, "--http: nothing is served"),
            }
        });
    };
    thread::Builder::new().name("web".into()).spawn(serve).map_err(StartError::Thread)
}

/// The tokens that give access to the page.
fn tokens(settings: &Settings) -> Tokens {
    Tokens::new(&settings.key)
}
