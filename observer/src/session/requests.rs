//! Requests for checkpoints: which image answers which.

use radic_wire::process::ToNode;

/// The image under way, and whether the node waits to hear of one.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    under_way: Option<u64>,
    /// The node wants to hear what becomes of the first image that began since: of this one or a later one.
    asked: Option<u64>,
    /// The number of its last request, which is said with the answer: an answer that is on its way answers no later request.
    request: u64,
    /// One was wanted while another was under way.
    again: bool,
}

/// What an image's end causes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// It was the one under way.
    pub was_under_way: bool,
    /// The next one is wanted at once.
    pub again: bool,
    /// The node hears this.
    pub answer: Option<ToNode>,
}

impl Requests {
    /// The image that is being made or shipped.
    pub fn under_way(&self) -> Option<u64> {
        self.under_way
    }

    /// Whether the node waits to hear of an image.
    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// The node wants a checkpoint.
    pub fn handle_request(&mut self, number: u64) {
        self.request = number;
        self.asked = Some(self.under_way.map_or(0, |image| image + 1));
    }

    /// A checkpoint is wanted. False: another image is under way, and this one begins when that has ended.
    pub fn may_begin(&mut self) -> bool {
        self.again = self.under_way.is_some();
        !self.again
    }

    /// An image begins.
    pub fn handle_begun(&mut self, image: u64) {
        self.under_way = Some(image);
    }

    /// No image could be made. What the node hears.
    pub fn handle_failed(&mut self, why: String) -> Option<ToNode> {
        self.under_way = None;
        self.answer(Err(why))
    }

    /// The protector has committed an image, or refused it. If it began before one was asked for, that one comes next.
    pub fn handle_done(&mut self, image: u64, result: Result<u64, String>) -> Done {
        if self.under_way.take_if(|of| *of == image).is_none() {
            return Done::default();
        }
        let again = std::mem::take(&mut self.again);
        let answer = if self.asked.is_none_or(|first| image >= first) { self.answer(result) } else { None };
        Done { was_under_way: true, again, answer }
    }

    /// The protector is gone, and with it the image that was under way. True: there was one.
    pub fn handle_lost(&mut self) -> bool {
        self.under_way.take().is_some()
    }

    fn answer(&mut self, result: Result<u64, String>) -> Option<ToNode> {
        let request = self.request;
        self.asked.take().map(|_| ToNode::Checkpointed { request, result })
    }
}
