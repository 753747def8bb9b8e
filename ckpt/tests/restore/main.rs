//! Programs that are saved, killed with SIGKILL, restored, and must end as if nothing had happened.

mod calls;
mod death;
mod harness;
mod many;
mod matrix;
mod nudge;
mod planted;
mod single;
mod strangers;
