//! What must hold for any bytes: a check for each parser of bytes from elsewhere, and first inputs for it, made of real values.
//!
//! A check panics where something does not hold, and says whether the input was accepted. What each is about is said in its module; how they are run, in
//! `fuzz/README.md`.
#![deny(unsafe_code)]

use std::sync::LazyLock;

pub mod channel;
pub mod frames;
pub mod image;
mod input;
pub mod journal;
pub mod keyfile;
pub mod link_frames;
pub mod log;
pub mod login;
pub mod logservice;
pub mod manifest;
pub mod messages;
pub mod pmi_lines;
pub mod pmi_talk;
pub mod program;
pub mod record;
pub mod storage;
pub mod text;
pub mod values;

// Modules of crates that would bring much more with them, all of which would be built with counters: a quarter of an hour on the way to a few seconds
// of fuzzing. They are built for the fuzzer as they are.
#[allow(unsafe_code, reason = "the processor's own instruction, as the engine uses it")]
#[path = "../../ckpt/src/crc.rs"]
mod crc;
#[allow(dead_code, unused_imports, reason = "not all of it is a parser")]
#[path = "../../protector/src/fetching/mod.rs"]
mod fetching;
#[allow(dead_code, unused_imports, reason = "not all of it is a parser")]
#[path = "../../protector/src/folder.rs"]
mod folder;
#[allow(dead_code, unused_imports, reason = "not all of it is a parser")]
#[path = "../../protector/src/link.rs"]
mod link;
#[allow(dead_code, unused_imports, reason = "not all of it is a parser")]
#[path = "../../protector/src/logs/mod.rs"]
mod logs;
#[allow(dead_code, unused_imports, reason = "not all of it is a parser")]
#[path = "../../protector/src/logserver/mod.rs"]
mod logserver;
#[allow(dead_code, unused_imports, reason = "not all of it is a parser")]
#[path = "../../protector/src/machine.rs"]
mod machine;
#[allow(dead_code, unused_imports, reason = "not all of it is a parser")]
#[path = "../../protector/src/memory.rs"]
mod memory;
#[allow(dead_code, unused_imports, reason = "not all of it is a parser")]
#[path = "../../protector/src/pmi/mod.rs"]
mod pmi;
#[allow(dead_code, unused_imports, reason = "not all of it is a parser")]
#[path = "../../protector/src/store/mod.rs"]
mod store;
#[allow(dead_code, unused_imports, reason = "not all of it is a parser")]
#[path = "../../protector/src/watched.rs"]
mod watched;

#[allow(dead_code, reason = "not all of it is asked for")]
#[path = "../../tools/src/doctor/elf.rs"]
mod doctor_elf;
#[allow(dead_code, reason = "not all of it is asked for")]
#[path = "../../tools/src/mpi/elf.rs"]
mod mpi_elf;

/// Where the reader of `radic doctor` looks for what it shares with that of `radic run`.
mod mpi {
    pub(crate) use crate::mpi_elf as elf;
}

/// First inputs: names and bytes.
pub type Inputs = Vec<(&'static str, Vec<u8>)>;

/// A check.
#[derive(Debug)]
pub struct Target {
    /// What it is called.
    pub name: &'static str,
    /// The check: whether the input is accepted.
    pub check: fn(&[u8]) -> bool,
    /// Inputs that are accepted.
    pub first: fn() -> Inputs,
    /// Longest input, in bytes.
    pub longest: usize,
    /// Most memory that a check may have at once: so many bytes, and so many for each byte of input. None: it has threads, or models as large as
    /// what the input stands for.
    pub memory: Option<(usize, usize)>,
}

/// All checks.
pub static TARGETS: LazyLock<Vec<Target>> = LazyLock::new(|| {
    let target = |name, check, first, longest, memory| Target { name, check, first, longest, memory };
    vec![
        target("image", image::check, image::first, 65_536, None),
        target("frames", frames::check, frames::first, 4_096, Some((64 << 10, 64))),
        target("link-frames", link_frames::check, link_frames::first, 4_096, Some((64 << 10, 64))),
        target("channel", channel::check, channel::first, 4_096, Some((4 << 20, 64))),
        target("messages", messages::check, messages::first, 4_096, Some((4 << 20, 1_024))),
        target("log", log::check, log::first, 4_096, Some((64 << 10, 64))),
        target("login", login::check, login::first, 512, Some((64 << 10, 64))),
        target("record", record::check, record::first, 4_096, Some((64 << 10, 64))),
        target("journal", journal::check, journal::first, 4_096, Some((1 << 20, 256))),
        target("manifest", manifest::check, manifest::first, 4_096, Some((4 << 20, 1_024))),
        target("key-file", keyfile::check, keyfile::first, 512, Some((64 << 10, 64))),
        target("program", program::check, program::first, 4_096, Some((1 << 20, 1_024))),
        target("text", text::check, text::first, 256, Some((64 << 10, 64))),
        target("pmi", pmi_lines::check, pmi_lines::first, 8_192, Some((1 << 20, 256))),
        target("pmi-client", pmi_talk::check, pmi_talk::first, 4_096, Some((1 << 20, 256))),
        target("store", storage::check, storage::first, 4_096, Some((1 << 20, 1_024))),
        target("logs", logservice::check, logservice::first, 4_096, None),
    ]
});

/// The check of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
