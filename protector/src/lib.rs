//! The protector: the daemon `radicd` that runs on every node.
//!
//! - [`node`]: one protector as a state machine, composed of [`membership`], jobs, [`pmi`] and the connected commands;
//! - [`store`]: the logs and images of the processes it protects;
//! - [`logserver`]: what decides about those, by which connections they come and go;
//! - [`logs`]: the service that drives it: sockets, files, threads of its own;
//! - [`fetching`]: what decides how images come to a node that brings a process back;
//! - [`peers`]: what decides about connections with other protectors;
//! - [`commands`]: what decides what `radic suspend` and `radic resume` do;
//! - [`link`]: reliable messages across broken connections;
//! - [`daemon`]: what drives them: sockets, processes, signals, the clock;
//! - [`config`]: flags, environment and file;
//! - [`folder`]: folders that no other user can write to, and the files in them, also for `radic`;
//! - `watched`: what helper threads are at, for those that look whether one hangs.
//!
//! Everything but [`daemon`], [`logs`], [`config`] and [`folder`] is without input and output, so that a test or a simulation
//! drives it by hand.
#![deny(unsafe_code)]

pub mod address;
pub mod commands;
pub mod config;
pub mod daemon;
pub mod fetching;
pub mod folder;
pub mod link;
pub mod logs;
pub mod logserver;
mod machine;
pub mod membership;
mod memory;
pub mod node;
pub mod peers;
pub mod pmi;
mod random;
pub mod store;
mod watched;
