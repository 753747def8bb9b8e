//! The files of a suspended rank, and what of a log is in them.

use radic_wire::ids::Incarnation;
use radic_wire::log::{HeldImage, HeldStream};
use radic_wire::span::Span;
use radic_wire::suspension::{SavedFile, SavedImage, SavedRank};

/// A file of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum File {
    /// The image of this number.
    Image(u64),
    /// The journal from the cut of the last image on.
    Journal,
    /// What the rank has received, one stream after the other.
    Received,
}

/// What is saved of a rank's log, without the names and codes of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedLog {
    /// The incarnation that was suspended.
    pub incarnation: Incarnation,
    /// Its committed images, a full one first.
    pub images: Vec<HeldImage>,
    /// Its journal, with what only other ranks' logs had of it.
    pub journal: Span,
    /// What it has received.
    pub streams: Vec<HeldStream>,
}

impl SavedLog {
    /// The same with its files.
    pub fn with_files(self, mut file: impl FnMut(File) -> SavedFile) -> SavedRank {
        let SavedLog { incarnation, images, journal, streams } = self;
        let mut saved = |HeldImage { image, parent, cut, .. }| SavedImage { image, parent, cut, file: file(File::Image(image)) };
        let images = images.into_iter().map(&mut saved).collect();
        let (journal_file, streams_file) = (file(File::Journal), file(File::Received));
        SavedRank { incarnation, images, journal, journal_file, streams, streams_file }
    }
}
