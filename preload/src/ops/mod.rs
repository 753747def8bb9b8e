//! What the program's calls do when they are about something of ours. No unsafe code: hooks hand in slices and numbers.

pub mod accept;
pub mod address;
pub(crate) mod child;
pub mod connect;
pub mod counter;
pub mod descriptor;
pub(crate) mod input;
pub mod kernel;
pub(crate) mod output;
pub(crate) mod pmi;
pub mod ready;
pub mod socket;
pub mod time;
mod waiting;
