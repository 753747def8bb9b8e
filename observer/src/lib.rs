//! The observer: the runtime inside each protected process.
//!
//! This crate will hold the state machines of DESIGN's data path, without sockets or clocks (stream, outbox, journal, replay,
//! gate), and apart from them the system-call layer that drives them. It is empty until issue 4.
#![forbid(unsafe_code)]
