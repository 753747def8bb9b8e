//! What the commands `radic suspend` and `radic resume` decide: which log service is asked for what and in which order, what becomes of an answer that does
//! not come, when a folder holds a job, and when that job begins again. `radic` drives them with sockets and files, the simulation with its network.
//!
//! Each is handed an answer for each action that says so, one after the other: [`suspend::Suspend::poll_action`] has no further action until then.

pub mod file;
pub mod resume;
pub mod suspend;

#[cfg(test)]
mod tests;
