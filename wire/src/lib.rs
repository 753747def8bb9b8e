//! RADIC's vocabulary on the wire.
//!
//! Everything that two RADIC programs say to each other is defined here, and nothing here does any input or output:
//!
//! - [`ids`]: nodes, boots, jobs, ranks, incarnations; [`address`]: addresses as they are compared;
//! - [`key`]: the cluster key;
//! - [`channel`]: the authenticated, encrypted channel between two protectors (Noise NNpsk0), as a state machine over bytes;
//! - [`frame`]: length-prefixed frames, bounded before a byte is buffered;
//! - [`codec`]: the only place that knows bincode, always with a limit;
//! - [`peer`]: what protectors say to each other; [`membership`]: the part of it that agrees on views;
//! - [`local`]: what the `radic` command and its protector say to each other over the unix socket;
//! - [`determinant`]: the outcomes that a journal keeps; [`log`]: what observers say to their protectors and to each other; [`bytes`]:
//!   the hand-written codes of both;
//! - [`process`]: what observers say to the protector of their own node; [`login`]: how they begin at the log of the next node's;
//!   [`record`]: how what follows is protected there; [`mac`]: the keys of jobs; [`replay`]: what a process that is replayed offline says;
//! - [`report`]: what a node says of itself; [`event`]: what happened, with a timestamp;
//! - [`limits`]: every bound in one place.
#![forbid(unsafe_code)]

pub mod address;
pub mod bytes;
pub mod causes;
pub mod channel;
pub mod codec;
pub mod determinant;
pub mod event;
pub mod fault;
pub mod frame;
pub mod ids;
pub mod job;
pub mod key;
pub mod limits;
pub mod link_frame;
pub mod local;
pub mod log;
pub mod login;
pub mod mac;
pub mod membership;
pub mod partners;
pub mod peer;
pub mod process;
pub mod record;
pub mod replay;
pub mod report;
pub mod since;
pub mod span;
pub mod suspension;
pub mod token;

/// Version of everything in this crate that another process can see. Two programs that disagree refuse each other by name.
pub const PROTOCOL_VERSION: u16 = 46;
