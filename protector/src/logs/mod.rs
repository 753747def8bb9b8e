//! The log service: takes what the observers of protected processes log, on sockets, and keeps it in memory and files.
//!
//! It drives a [`crate::logserver::LogServer`], which decides everything. It has threads of its own, because latency matters:
//! each time a process sends after it has received, it waits for one round trip to this service (G1). Its address goes into
//! `Member::log_port`. The rest of the protector talks to it through [`Logs`] and hears from it by [`Event`]s:
//!
//! ```no_run
//! # fn f(key: radic_wire::key::ClusterKey, job: radic_wire::ids::JobId) -> Result<(), Box<dyn std::error::Error>> {
//! use radic_protector::logs::{self, Config, StoreOrder};
//! let (logs, mut events) = logs::start(Config::new("127.0.0.1".parse()?, "/var/lib/radic/store".into(), key))?;
//! let port = logs.address().port();                    // into Member::log_port, before the node joins
//! logs.join();                                         // this node is a member
//! logs.order(StoreOrder::Configure(job, Default::default()));  // a job has processes that this node protects
//! let event = events.blocking_recv();                  // in the daemon: events.recv().await; none: the service has ended
//! logs.order(StoreOrder::RemoveJob(job));              // the job has ended
//! # Ok(()) }
//! ```
//!
//! Questions give a [`oneshot::Receiver`]: await it, or `blocking_recv` outside of a runtime. It fails only when the service has
//! ended.
//! When the last clone of [`Logs`] is dropped the service ends, within a moment.
//!
//! # Map
//!
//! | module | what | thread |
//! |---|---|---|
//! | `service` | start and end; the rounds: two sets of descriptors, what is urgent first | `logs` |
//! | `callers` | accepting, logging in, frames into the [`crate::logserver`] | `logs` |
//! | `connection` | one socket: how far its login is, partial input, what waits to be sent | `logs` |
//! | `carry_out` | what the log server wants done, what the node asks, what the other threads have done | `logs` |
//! | `disk`, `files` | writing, reading, retrying; names, segments, the directory's lock | `logs disk` |
//! | `verify` | checksums and codes of images | `logs verify` |
//! | `send` | whole images to nodes that bring processes back | `logs send` |
//! | `fetch` | the same on such a node: drives a [`crate::fetching::Fetch`] | the caller's |
//! | `types`, `waker` | what the service is told and asked; waking its thread | all |
//! | [`client`] | a blocking client for tests, tools and measurements | |
//!
//! # What an observer has to know
//!
//! - After the login ([`radic_wire::login`]) the journal's connection begins with a hello. Payload is sent on a bulk connection
//!   after the welcome; a hello there is passed over. All answers, also about payload and images, go to the newest journal
//!   connection of that incarnation; an older one is closed.
//! - An image has a connection of its own: `ImageBegin` as a frame in records of its own, then its bytes to the last record ([`radic_wire::record`]).
//!   It is closed early when the image is refused. A connection that ends in another way, or is reset, refuses the image.
//! - After a hello comes, behind the welcome, `Committed` with the newest image, because the first such message may have been
//!   lost, or `ImageWanted`. Behind any `Committed` may come `WholeWanted`: increments save nothing, or the chain has become
//!   two times as long as its longest image.
//! - `AskStable` and `Forget` are not answered here: an observer asks the protector of its own node, which knows where the other end is.
//!
//! # Invariants
//!
//! - *An acknowledgement leaves in the round in which its message came*, unless a file or a replica decides. There is no timer on that way.
//! - *Nothing that takes long is done on the service's thread*: no file is touched, no image hashed there. One bulk connection is served
//!   between two looks at the journals, with at most a chunk.
//! - *Reading stops before memory is full*: a connection is not read while the store has no room for what it brings (images and payload at
//!   twice the process's share, its journal later), while its replica is behind, or while it takes no answers. Payload over twice the
//!   bound of the log waits for a commit; images never wait for that.
//! - *A disk that does not answer is told* ([`What::Disk`], [`Config::patience`]): the service's thread looks at what the
//!   others are at. Its end waits for none of them for long.
//! - *What is reported as written has no gap*: writes of a process are done in order, also when they are tried again; what was written
//!   before a failed `fdatasync` is written again. A write of a file that was deleted meanwhile reports nothing.
//! - *What is read of a log is what was written*: sums of what went to files stay in memory. A log that is not what was written
//!   brings no process back ([`What::Unreadable`]): its job restarts from the beginning.
//! - *No image without a code*: it is written when the image has been verified whole and before it is committed ([`open_verified`]).
//! - *A caller that has not proven that it has the job's key* costs one of 256 places for at most 3 s. It is not answered. If it
//!   repeats a login that it has overheard, it gets a random number. A process of an ended job is not let in.
//! - *What only nodes ask for is proven with a key that only nodes have*: whole images, and what is forwarded.
//! - Replication: from [`StoreOrder::SetReplica`] on nothing new is acknowledged without the replica, connected or not. After an exec or another restart
//!   of the process from nothing, `remove_process` belongs to both services.
//!
//! With `keep_logs` nothing is truncated or deleted before the job's end plus 63 other such jobs; what memory would forget goes
//! to files first. A protector that starts clears its directory: it is another member, and what it held is held elsewhere, or
//! lost.
//!
//! # Measured
//!
//! 2 cores, release build, with other builds running (`cargo test --release -p radic-protector --test logs -- --nocapture
//! --test-threads 1 gate`): a message of 60 bytes of journal is acknowledged in 4.3 us (median; 90 %: 4.7, 99 %: 13); while
//! another process ships images of 103 MB, each verified and committed (0.45 s), in 4.6 us (90 %: 5.6 to 91; 99 %: 3 to 4 ms, the
//! scheduler's share: both cores are busy).

pub mod arrival;
mod callers;
mod carry_out;
pub mod client;
mod connection;
mod disk;
mod fetch;
mod files;
mod send;
mod service;
mod types;
mod verify;
mod waker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use radic_wire::ids::{Incarnation, JobId, ProcessId};
use radic_wire::log::{HeldLog, LogPart};
use tokio::sync::{mpsc, oneshot};

pub use self::fetch::{Assembling, Layer, fetch};
use self::types::Request;
pub use self::types::{Config, StartError};
pub use self::verify::{BadImage, open_verified};
pub use crate::logserver::{Event, Reply, Status, StoreOrder, What};
use crate::store::{NoRestart, Restart};

/// Starts the service: it listens when this returns.
pub fn start(config: Config) -> Result<(Logs, mpsc::Receiver<Event>), StartError> {
    let (running, events) = service::start(config)?;
    Ok((Logs(Arc::new(running)), events))
}

/// A running service; its clones are the same one.
#[derive(Debug, Clone)]
pub struct Logs(Arc<service::Running>);

impl Logs {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The node is a member: from now on what other services forward is taken ([`LogServer::handle_member`](crate::logserver::LogServer::handle_member)).
    pub fn join(&self) {
        self.0.ask(Request::Join);
    }

    /// Does what the node orders. Nothing comes for an order that asks for nothing, and for those that [`Logs::fence`] and [`Logs::read`] answer.
    pub fn order(&self, order: StoreOrder) -> oneshot::Receiver<Reply> {
        self.0.question(|answer| Request::Order(Box::new(order), answer))
    }

    /// What is held of this process, if it is known.
    pub fn list(&self, process: ProcessId) -> oneshot::Receiver<Option<HeldLog>> {
        self.0.question(|answer| Request::List(process, answer))
    }

    /// Bytes of a part from `position`, at most `most` and at most [`radic_wire::limits::LOG_CHUNK`]; none at the end of what is
    /// held. An error says what is wrong: not held, or the file cannot be read.
    pub fn read(
        &self,
        process: ProcessId,
        part: LogPart,
        position: u64,
        most: usize,
    ) -> oneshot::Receiver<Result<Vec<u8>, String>> {
        self.0.question(|answer| Request::Read(process, part, position, most, answer))
    }

    /// The state of each log that is held here of the job's processes, by rank.
    pub fn status(&self, job: JobId) -> oneshot::Receiver<Vec<(ProcessId, Status)>> {
        self.0.question(|answer| Request::Status(job, answer))
    }

    /// Fences the older incarnations of this process (G4) and says what a restart as `incarnation` needs, when its log is stable
    /// ([`LogServer::fence`](crate::logserver::LogServer::fence)).
    /// Before, the log learns these sets of causes.
    pub fn fence(
        &self,
        process: ProcessId,
        incarnation: Incarnation,
        sets: Vec<Vec<u8>>,
        line: u64,
    ) -> oneshot::Receiver<Result<Restart, NoRestart>> {
        self.0.question(|answer| Request::Fence(process, incarnation, sets, line, answer))
    }

    /// The file of a committed image, whose code ([`open_verified`]) is to be checked before it is used. It is there until another
    /// image is committed or the process removed.
    pub fn image_path(&self, process: ProcessId, image: u64) -> PathBuf {
        files::image_path(&self.0.dir, process, image)
    }
}
