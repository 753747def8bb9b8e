//! The images of one process: those that are committed, and the one that is under way.

use radic_wire::determinant::StreamId;
use radic_wire::limits;
use radic_wire::log::{HeldImage, ImageState, LineMark};

use super::log::Log;

/// An image, whole or on its way.
#[derive(Debug, Clone)]
pub(super) struct Image {
    pub(super) number: u64,
    pub(super) parent: Option<u64>,
    pub(super) cut: u64,
    pub(super) payload: u64,
    pub(super) causes: u64,
    /// Where it stands among recovery lines.
    pub(super) line: LineMark,
    /// The image lacks nothing but that the line is complete, and the node was told so.
    pub(super) is_told: bool,
    pub(super) streams: Vec<(StreamId, u64)>,
    pub(super) ended: Vec<(StreamId, u64)>,
    pub(super) content: Log,
    /// Whole and verified here.
    pub(super) verified: bool,
    pub(super) length: Option<u64>,
    /// Committed by the replica.
    pub(super) replicated: bool,
}

impl Image {
    /// The image as `radic log show` has it.
    pub(super) fn described(&self, state: ImageState) -> HeldImage {
        let Image { number, parent, cut, line, ref content, .. } = *self;
        HeldImage { image: number, parent, cut, bytes: content.end(), line, state }
    }
}

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub(super) struct Images {
    /// Committed images, oldest first. A restart from the newest one reads the last of them; one from the image before it reads
    /// the others.
    pub(super) committed: Vec<Image>,
    /// The log begins at the cut of this image or before. It is the newest image, or the one before it.
    pub(super) oldest: Option<u64>,
    /// Image numbers below this one were used.
    pub(super) next: u64,
    /// The newest image that did not restore, if none was committed since. From the image before it the process may take another
    /// path.
    pub(super) useless: Option<u64>,
    /// Restarts from the newest image since it was committed, or since the process was live last.
    pub(super) restores: u32,
    /// There is no way back to before the newest image: senders of what the one before it needs have forgotten that. So it is
    /// where received bytes stay with their senders.
    pub(super) are_final: bool,
    /// The image that is under way.
    pub(super) incoming: Option<Image>,
    /// The image that the process has under way, and that has not begun here.
    pub(super) announced: Option<u64>,
    /// An image was asked for, and none came since.
    pub(super) wanted: bool,
}

impl Images {
    /// Whether another protector has committed an image that is not here, and a process that began with an older one would lack
    /// what its peers have forgotten since.
    pub(super) fn are_behind(&self, committed: Option<u64>) -> bool {
        self.are_final && self.newest().map(|image| image.number) < committed
    }

    /// The newest committed image.
    pub(super) fn newest(&self) -> Option<&Image> {
        self.committed.last()
    }

    /// The images that a restart reads.
    pub(super) fn chain(&self) -> &[Image] {
        let whole = self.committed.iter().rposition(|image| image.parent.is_none());
        &self.committed[whole.unwrap_or(0)..]
    }

    /// All images, the one that is under way included.
    pub(super) fn all(&self) -> impl Iterator<Item = &Image> {
        self.committed.iter().chain(&self.incoming)
    }

    /// The image that is under way, if it has this number.
    pub(super) fn incoming(&self, number: u64) -> Option<&Image> {
        self.incoming.as_ref().filter(|image| image.number == number)
    }

    /// The same, to change it.
    pub(super) fn incoming_mut(&mut self, number: u64) -> Option<&mut Image> {
        self.incoming.as_mut().filter(|image| image.number == number)
    }

    /// The newest image that is on its way here, as far as that is known.
    pub(super) fn newest_under_way(&self) -> Option<u64> {
        self.announced.max(self.incoming.as_ref().map(|image| image.number))
    }

    /// Whether a restart could use this image, after those that are committed.
    pub(super) fn fits(&self, image: &Image) -> bool {
        match image.parent {
            None => image.number >= self.next,
            // An increment builds upon the newest image, because the observer's tracker compares with that one only. An increment
            // that no restart could read would be worse than none.
            Some(parent) => {
                let newest = self.newest().map(|newest| newest.number);
                newest == Some(parent) && parent < image.number && self.chain().len() < limits::LAYERS
            }
        }
    }

    /// Whether the next image should be a whole one: the last increment is about as long as the longest other image of the chain,
    /// so increments save nothing, or the chain is longer than two times its longest image. A whole one is at least as long as
    /// that: of a process whose memory grows the first image says little.
    pub(super) fn wants_whole(&self) -> bool {
        let lengths: Vec<u64> = self.chain().iter().map(|image| image.content.end()).collect();
        let Some((last, others)) = lengths.split_last() else { return false };
        let (all, other) = (lengths.iter().sum::<u64>(), others.iter().copied().max().unwrap_or(0));
        let saves_nothing = last.abs_diff(other) < other / 8;
        all > limits::CHAIN && (saves_nothing || all > 2 * other.max(*last))
    }
}
