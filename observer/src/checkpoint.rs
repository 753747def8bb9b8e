//! G6: what a checkpoint covers, and what need not be shipped any more when it is committed.

use crate::error::Error;

/// Where the logs stood when an image was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The image's number.
    pub image: u64,
    /// Position in the journal: the cut.
    pub journal: u64,
    /// Position in the payload log.
    pub payload: u64,
}

/// Which images there are.
#[derive(Debug, Clone, Default)]
pub struct Checkpoints {
    next: u64,
    under_way: Option<Mark>,
    /// The newest that is committed, as far as this process was told.
    committed: Option<u64>,
}

impl Checkpoints {
    /// An image begins. The process is copied after this, so that its copy knows which image it is.
    pub fn begin(&mut self, journal: u64, payload: u64) -> Result<Mark, Error> {
        if self.under_way.is_some() {
            return Err(Error::Full("place for an image under way"));
        }
        let mark = Mark { image: self.next, journal, payload };
        self.next += 1;
        self.under_way = Some(mark);
        Ok(mark)
    }

    /// The image that is being made or shipped.
    pub fn under_way(&self) -> Option<Mark> {
        self.under_way
    }

    /// The protector has committed `image`. Returns what may be forgotten now, if this is news.
    pub fn handle_committed(&mut self, image: u64) -> Option<Mark> {
        self.committed = self.committed.max(Some(image));
        self.under_way.take_if(|mark| mark.image == image)
    }

    /// The newest image of which a protector has said that it is committed.
    pub fn committed(&self) -> Option<u64> {
        self.committed
    }

    /// The image will not be: it could not be made, was refused, or its protector died.
    pub fn handle_abandoned(&mut self) {
        self.under_way = None;
    }

    /// The process has been restarted from the image that was under way when it was copied, or from its first state. Numbers below `next` were given, perhaps
    /// after that image.
    pub fn handle_restart(&mut self, next: u64) {
        self.under_way = None;
        self.next = self.next.max(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_forgotten_before_the_commit_of_that_very_image() {
        let mut checkpoints = Checkpoints::default();
        let first = checkpoints.begin(10, 20).unwrap();
        assert!(checkpoints.begin(11, 21).is_err());
        assert_eq!(checkpoints.handle_committed(first.image + 1), None);
        let copy = checkpoints.clone();
        checkpoints.handle_abandoned();
        let second = checkpoints.begin(30, 40).unwrap();
        assert_eq!(checkpoints.handle_committed(first.image), None, "an abandoned image covers nothing");
        assert_eq!(checkpoints.handle_committed(second.image), Some(second));
        assert_eq!(checkpoints.handle_committed(second.image), None);
        let mut restarted = copy;
        restarted.handle_restart(2);
        assert_eq!(restarted.under_way(), None);
        assert_eq!(restarted.begin(10, 20).map(|mark| mark.image), Ok(2), "no number is given twice");
    }
}
