//! How an image of a program is made.

use clap::{Args, ValueEnum};
use radic_ckpt::{Mode, Request, Tracking};

#[derive(Args, Clone, Copy)]
pub(crate) struct How {
    /// Which process writes the image, and what of the memory
    #[arg(long, value_enum, default_value = "fork")]
    pub(super) mode: ModeName,
    /// Whether pages are packed (LZ4): where a sample says that it pays, or never [default: auto; never in stop mode, where the program waits for it].
    /// A packed image is unpacked before a restart
    #[arg(long, value_enum)]
    compress: Option<Compress>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ModeName {
    /// A copy of the program, all of the memory
    Fork,
    /// The program, while it waits, all of the memory
    Stop,
    /// A copy of the program, and only what has changed since the last image
    Incremental,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Compress {
    Auto,
    Never,
}

impl How {
    /// `parent`: the image that this one shall be an increment to, or 0.
    pub(super) fn request(self, parent: u64) -> Request {
        Request {
            mode: if self.mode == ModeName::Stop { Mode::Stop } else { Mode::Fork },
            tracking: if self.mode == ModeName::Incremental { Tracking::Best } else { Tracking::Off },
            compress: self.compress.map_or(self.mode != ModeName::Stop, |compress| compress == Compress::Auto),
            parent,
        }
    }
}
