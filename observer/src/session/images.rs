//! Checkpoints of this process: when an image is begun, which earlier image it is an increment of, and what the node hears of it. A value without sockets and
//! clocks: the driver makes the image, says how that went (`handle_*`), and carries out what it is told ([`Images::poll_action`]).
//!
//! For each image the driver logs in at the protector's log ([`Images::begin`]), cuts the process and writes what begins the image ([`Images::cut`]), has the
//! engine save the process ([`Images::handle_begun`]), and sends what it has saved ([`Images::handle_saved`]). Nothing else happens in the process meanwhile.
//!
//! - One image is made and shipped at a time. A checkpoint that is wanted meanwhile begins when that one has ended.
//! - A request of the node is answered by the first image that begins after it. An image that was under way when the request came says nothing of it.
//! - Each image is an increment of the last one that the protector has committed, but a whole one is made when there is none,
//!   after [`limits::LAYERS`] layers, when the protector wants one (increments save nothing, or the chain has become two times as
//!   long as its longest image), and after the protector has refused an image.
//! - What the engine refuses costs the process a pause each time. So after a refusal the engine rests, twice as long after each further one in a row.

use std::collections::VecDeque;
use std::time::Duration;

use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::limits;
use radic_wire::log::{FromProtector, ToProtector};
use radic_wire::process::ToNode;

use crate::observer::RoomBy;
use crate::{Context, Error, Observer};

/// The first rest of the engine after a refusal.
const REST: Duration = Duration::from_millis(500);
/// Time between two attempts at an image that the protector wants.
const AGAIN: Duration = Duration::from_millis(100);
/// No rest is longer than 2^`DOUBLINGS` of the first.
const DOUBLINGS: u32 = 7;
/// Why a rank has no image of a line.
const NOT_TAKEN: &str = "its image of that recovery line was not taken";

/// What the caller has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A checkpoint is wanted: call [`Images::begin`] as soon as an image can be made.
    Want,
    /// Say this to the node.
    Tell(ToNode),
    /// The protector need not wait for this image.
    Abandon(u64),
    /// Say to the protector that this image is under way.
    Remind(u64),
    /// The same, but do not wait for a protector that is lost: the next hello says it.
    Announce(u64),
}

/// Why an image that was to begin does not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotBegun {
    /// The process was not let in with it. The program has waited for that.
    #[error("the protector's log: {0}")]
    NotLetIn(String),
    /// The process cannot be cut.
    #[error("{0}")]
    NotCut(Error),
    /// The process catches up: its journal would not be its own.
    #[error("the process is catching up with its log")]
    CatchingUp,
    /// What begins it could not be written.
    #[error("the connection for the image: {0}")]
    NotWritten(String),
}

/// An image, by its number and by the engine's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    /// The number under which the protector has it.
    pub image: u64,
    /// The engine's name, never 0.
    pub engine: u64,
}

/// The image that is made or shipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UnderWay {
    image: u64,
    /// The engine's name, once the process has been saved.
    engine: Option<u64>,
    /// Images that a restart from it reads, itself among them.
    layers: usize,
    /// The recovery line of which it is one.
    line: Option<u64>,
    /// The request of the node that it answers.
    answers: Option<u64>,
}

/// The newest image that the protector has committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Committed {
    parent: Parent,
    layers: usize,
}

/// The engine's refusals, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Refusals {
    in_a_row: u32,
    /// Until when the engine rests, and why.
    rest: Option<(Duration, String)>,
}

/// The images of a process.
#[derive(Debug, Clone, Default)]
pub struct Images {
    under_way: Option<UnderWay>,
    /// A checkpoint was wanted while another image was under way.
    again: bool,
    committed: Option<Committed>,
    /// The layers of the image for which the process was cut.
    next_layers: usize,
    /// The protector wants a whole image, and none was committed since.
    whole: bool,
    /// The protector wants an image, and none was committed since. When it is to be tried again.
    wanted: Option<Duration>,
    /// The newest request of the node that the next image answers, and with it the requests before. One that came while an image
    /// was under way is not answered by that one.
    asked: Option<u64>,
    /// The recovery line of which the next image is to be one.
    line: Option<u64>,
    refusals: Refusals,
    actions: VecDeque<Action>,
}

impl Images {
    /// What the caller has to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The image that is made or shipped.
    pub fn under_way(&self) -> Option<u64> {
        self.under_way.map(|image| image.image)
    }

    /// Whether the node waits to hear of an image that has not begun.
    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// The recovery line of which the next image is to be one; none: it is one by itself. So is one that the protector wants,
    /// which may have none: it is not to wait for a line whose home is lost.
    pub fn line(&self) -> Option<u64> {
        self.line.filter(|_| self.wanted.is_none())
    }

    /// The node wants a checkpoint, of this recovery line or any.
    pub fn handle_request(&mut self, cx: &Context<'_>, request: u64, line: Option<u64>) {
        let made = cx.observer.payload().line().map(u64::from);
        if line.is_some() && line <= made {
            // A reminder. If the image of that line was made, and is not on its way any more, it was not taken.
            self.actions.push_back(match self.under_way() {
                Some(image) => Action::Remind(image),
                None => {
                    let result = Err(NOT_TAKEN.to_owned());
                    Action::Tell(ToNode::Checkpointed { request, result })
                }
            });
            return;
        }
        self.line = self.line.max(line);
        self.asked = Some(request);
        self.actions.push_back(Action::Want);
    }

    /// The outbox of the peer on this connection fills with what this process has received from unit `from` on. An image that is
    /// under way makes room, too; if it is not enough the peer says so again.
    pub fn handle_make_room(&mut self, cx: &Context<'_>, connection: ConnectionId, from: u64) {
        if self.under_way.is_some() {
            return;
        }
        self.actions.extend(match cx.observer.room_for(connection, from) {
            RoomBy::Image => Some(Action::Want),
            RoomBy::Line => Some(Action::Tell(ToNode::LineWanted)),
            RoomBy::Committed => None,
        });
    }

    /// Whether [`Images::handle_timeout`] may have something to do.
    pub fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    /// Time has passed. What the protector wants is tried until it has it: the process may not have been able to, or its image did not come there.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.under_way.is_none() && self.wanted.is_some_and(|at| at <= now) {
            self.wanted = Some(now + AGAIN);
            self.actions.push_back(Action::Want);
        }
    }

    /// `MPI_Init` has returned: what was asked for in its midst is begun now.
    pub fn handle_initialized(&mut self) {
        if self.is_asked() {
            self.actions.push_back(Action::Want);
        }
    }

    /// A checkpoint is wanted, and an image can be made now. Whether one begins: then [`Images::cut`] follows, or [`Images::handle_not_begun`].
    pub fn begin(&mut self, cx: &Context<'_>, is_initializing: bool) -> bool {
        if self.under_way.is_some() {
            self.again = true;
            return false;
        }
        // It is wanted again when `MPI_Init` has returned.
        if is_initializing {
            return false;
        }
        if let Some((_, why)) = self.refusals.rest.as_ref().filter(|(until, _)| cx.now < *until) {
            let why = format!("not tried again so soon: {why}");
            self.refuse(why);
            return false;
        }
        if cx.observer.is_replaying() {
            self.refuse("the process is catching up with its log".to_owned());
            return false;
        }
        true
    }

    /// The protector lets the image in: cuts the process here. Returns what begins the image, which is to be written first, and what it is an increment of, if
    /// it is no whole one; then [`Images::handle_begun`] follows. `streams` is filled with where each stream stands, and `ended` with where those end that did.
    pub fn cut<'a>(
        &mut self,
        observer: &mut Observer,
        streams: &'a mut Vec<(StreamId, u64)>,
        ended: &'a mut Vec<(StreamId, u64)>,
    ) -> Result<(ToProtector<'a>, Option<Parent>), NotBegun> {
        let cut = observer.checkpoint(self.line(), streams, ended).map_err(NotBegun::NotCut)?.ok_or(NotBegun::CatchingUp)?;
        let last = self.committed.filter(|last| last.layers < limits::LAYERS && !self.whole);
        self.next_layers = last.map_or(1, |last| last.layers + 1);
        let parent = last.map(|last| last.parent);
        Ok((cut.message(parent.map(|parent| parent.image)), parent))
    }

    /// What begins the image is written. The engine saves the process now: [`Images::handle_saved`] or [`Images::handle_unsaved`].
    ///
    /// # Panics
    /// If the process was not cut.
    pub fn handle_begun(&mut self, cx: &mut Context<'_>) {
        assert!(self.under_way.is_none(), "one image at a time");
        let image = cx.observer.image_under_way().expect("the process was cut");
        cx.observer.pack_outbox(self.line());
        let line = self.line.take_if(|_| self.wanted.is_none());
        let (layers, answers) = (self.next_layers, self.asked.take());
        self.under_way = Some(UnderWay { image, engine: None, layers, line, answers });
        self.actions.push_back(Action::Announce(image));
        self.check_invariants();
    }

    /// No image could be begun. If the attempt has held up the program, it rests.
    ///
    /// # Panics
    /// If one is under way.
    pub fn handle_not_begun(&mut self, cx: &mut Context<'_>, why: &NotBegun) {
        assert!(self.under_way.is_none(), "one image at a time");
        cx.observer.handle_abandoned();
        let text = why.to_string();
        if matches!(why, NotBegun::NotLetIn(_)) {
            self.rest(cx.now, &text);
        }
        self.refuse(text);
    }

    /// The process was saved, under this name of the engine; the image is shipped now.
    pub fn handle_saved(&mut self, cx: &mut Context<'_>, engine: u64) {
        cx.observer.handle_saved();
        self.refusals = Refusals::default();
        if let Some(image) = &mut self.under_way {
            image.engine = Some(engine).filter(|engine| *engine != 0);
        }
    }

    /// The engine has made no image of the process.
    pub fn handle_unsaved(&mut self, cx: &mut Context<'_>, why: String) {
        cx.observer.handle_saved();
        if let Some(image) = self.abandon(cx.observer) {
            self.actions.push_back(Action::Abandon(image));
        }
        self.rest(cx.now, &why);
        self.refuse(why);
    }

    /// What the protector says, on the connection of the journal that is in use. Whether the image that was under way is committed.
    pub fn handle_protector(&mut self, observer: &mut Observer, message: &FromProtector<'_>) -> bool {
        match *message {
            FromProtector::Welcome { image, .. } => self.handle_welcome(image),
            FromProtector::Committed { image, .. } => return self.handle_committed(image),
            FromProtector::ImageRefused { image } => self.handle_refused(image),
            FromProtector::WholeWanted => self.whole = true,
            FromProtector::ImageWanted => self.handle_wanted(observer),
            _ => {}
        }
        false
    }

    /// The protector's newest image. If it is the one under way, this process did not know that it was committed, and the
    /// protector says so next. If it is neither that one nor the last committed one, no increment is made on the latter: the
    /// protector lost what it had.
    fn handle_welcome(&mut self, newest: Option<u64>) {
        if newest.is_none() || newest != self.under_way() {
            self.committed.take_if(|last| newest != Some(last.parent.image));
        }
    }

    /// The protector needs an image that counts by itself. One of a recovery line counts when its home says so, and that home may be lost.
    fn handle_wanted(&mut self, observer: &mut Observer) {
        self.wanted = Some(Duration::ZERO);
        if self.under_way.is_some_and(|image| image.line.is_some()) {
            let abandoned = self.abandon(observer).map(Action::Abandon);
            self.actions.extend(abandoned);
            self.refuse(NOT_TAKEN.to_owned());
        }
        self.actions.push_back(Action::Want);
    }

    fn handle_committed(&mut self, image: u64) -> bool {
        let Some(done) = self.end(image) else { return false };
        self.committed = done.engine.map(|engine| Committed { parent: Parent { image, engine }, layers: done.layers });
        self.whole &= done.layers > 1;
        self.wanted = None;
        self.end_with(done.answers, Ok(image));
        true
    }

    /// The next image is a whole one.
    fn handle_refused(&mut self, image: u64) {
        if let Some(done) = self.end(image) {
            self.committed = None;
            self.end_with(done.answers, Err("the protector has refused the image".to_owned()));
        }
    }

    /// The process has come back from an image: what was under way, and asked for, was another incarnation's.
    pub fn handle_restored(&mut self) {
        (self.under_way, self.committed, self.asked, self.line, self.again) = (None, None, None, None, false);
        self.wanted = None;
        self.actions.clear();
    }

    /// Another protector takes the log from now on: the images that the one before has are of no use any more.
    pub fn handle_another_protector(&mut self, observer: &mut Observer) {
        self.abandon(observer);
        self.committed = None;
        self.refusals = Refusals::default();
    }

    fn abandon(&mut self, observer: &mut Observer) -> Option<u64> {
        let image = self.under_way.take()?;
        // The next image answers what this one was to answer.
        self.asked = self.asked.max(image.answers);
        observer.handle_abandoned();
        self.want_again();
        Some(image.image)
    }

    fn end(&mut self, image: u64) -> Option<UnderWay> {
        self.under_way.take_if(|of| of.image == image)
    }

    /// The image that answers this request has come to its end.
    fn end_with(&mut self, answers: Option<u64>, result: Result<u64, String>) {
        self.again |= self.line.is_some();
        self.want_again();
        if result.is_err() && answers.is_some() && self.asked.is_none() {
            self.line = None;
        }
        self.tell(answers, result);
        self.check_invariants();
    }

    fn want_again(&mut self) {
        if std::mem::take(&mut self.again) {
            self.actions.push_back(Action::Want);
        }
    }

    /// No image is made of what was asked for.
    fn refuse(&mut self, why: String) {
        self.line = None;
        let asked = self.asked.take();
        self.tell(asked, Err(why));
    }

    fn tell(&mut self, request: Option<u64>, result: Result<u64, String>) {
        self.actions.extend(request.map(|request| Action::Tell(ToNode::Checkpointed { request, result })));
    }

    fn rest(&mut self, now: Duration, why: &str) {
        let Refusals { in_a_row, rest } = &mut self.refusals;
        *rest = Some((now + REST * (1 << (*in_a_row).min(DOUBLINGS)), why.to_owned()));
        *in_a_row = in_a_row.saturating_add(1);
    }

    fn check_invariants(&self) {
        let layers = self.under_way.map(|image| image.layers).max(self.committed.map(|last| last.layers)).unwrap_or(1);
        assert!((1..=limits::LAYERS).contains(&layers), "a chain of {layers} images");
        let is_behind = |image: UnderWay| self.committed.is_none_or(|last| last.parent.image < image.image);
        assert!(self.under_way.is_none_or(is_behind), "{self:?}");
        assert!(!self.again || self.under_way.is_some(), "{self:?}");
        assert!(self.wanted.is_none() || self.under_way.is_none_or(|image| image.line.is_none()), "{self:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use radic_wire::ids::{JobId, ProcessId, Rank};

    use super::*;
    use crate::Config;

    struct Side {
        images: Images,
        observer: Observer,
        now: Duration,
    }

    impl Side {
        fn new() -> Side {
            let me = ProcessId { job: JobId::from_bits(1), rank: Rank(0) };
            let config = Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..Config::default() };
            Side { images: Images::default(), observer: Observer::new(me, &config), now: Duration::ZERO }
        }

        /// Begins an image if one may begin; what it is upon.
        fn begin(&mut self, image: u64) -> Option<Option<u64>> {
            let mut cx = Context { observer: &mut self.observer, now: self.now };
            if !self.images.begin(&cx, false) {
                return None;
            }
            let mut upon = None;
            let (mut streams, mut ended) = (Vec::new(), Vec::new());
            // The observer numbers them; of the ones before the machine alone has heard.
            while cx.observer.image_under_way().is_none_or(|number| number < image) {
                cx.observer.handle_abandoned();
                let (message, parent) = self.images.cut(cx.observer, &mut streams, &mut ended).expect("it can be cut");
                upon = parent.map(|parent| parent.image);
                assert!(matches!(message, ToProtector::ImageBegin { parent, .. } if parent == upon));
            }
            self.images.handle_begun(&mut cx);
            assert_eq!(self.images.under_way(), Some(image));
            Some(upon)
        }

        fn saved(&mut self, engine: u64) {
            let mut cx = Context { observer: &mut self.observer, now: self.now };
            self.images.handle_saved(&mut cx, engine);
        }

        fn not_begun(&mut self, why: &NotBegun) {
            let mut cx = Context { observer: &mut self.observer, now: self.now };
            self.images.handle_not_begun(&mut cx, why);
        }

        /// Begins one and commits it.
        fn commit(&mut self, image: u64) -> Option<Option<u64>> {
            let parent = self.begin(image)?;
            self.saved(image + 100);
            assert!(self.images.handle_committed(image));
            Some(parent)
        }

        fn request(&mut self, number: u64, line: Option<u64>) {
            let cx = Context { observer: &mut self.observer, now: self.now };
            self.images.handle_request(&cx, number, line);
        }

        fn protector(&mut self, message: &FromProtector<'_>) -> bool {
            self.images.handle_protector(&mut self.observer, message)
        }

        fn unsaved(&mut self, why: &str) {
            let mut cx = Context { observer: &mut self.observer, now: self.now };
            self.images.handle_unsaved(&mut cx, why.to_owned());
        }

        /// Each image is announced when it begins.
        fn actions(&mut self) -> Vec<Action> {
            std::iter::from_fn(|| self.images.poll_action()).filter(|action| !matches!(action, Action::Announce(_))).collect()
        }
    }

    fn answer(request: u64, result: Result<u64, &str>) -> Action {
        Action::Tell(ToNode::Checkpointed { request, result: result.map_err(str::to_owned) })
    }

    #[test]
    fn an_image_answers_the_request_before_it_and_no_later_one() {
        let mut side = Side::new();
        assert_eq!(side.begin(4), Some(None));
        side.request(9, None);
        assert_eq!(side.begin(5), None, "one at a time");
        assert_eq!(side.actions(), [Action::Want]);
        assert!(side.images.handle_committed(4));
        assert_eq!(side.actions(), [Action::Want], "it began before the request");
        side.begin(5);
        assert!(!side.images.handle_committed(4));
        assert!(side.images.handle_committed(5));
        assert_eq!(side.actions(), [answer(9, Ok(5))]);
        assert!(!side.images.is_asked());
    }

    /// A process in a call that is none of the layer hears of a commit with the next request only. Such requests may come as fast as images are made.
    #[test]
    fn a_request_is_answered_though_each_commit_is_heard_of_after_the_next_request() {
        let mut side = Side::new();
        for request in 1..20 {
            side.request(request, None);
            if request > 1 {
                assert!(side.images.handle_committed(request - 1));
                assert!(side.actions().contains(&answer(request - 1, Ok(request - 1))), "{request}");
            }
            side.begin(request).expect("nothing else is under way");
        }
    }

    #[test]
    fn a_whole_image_comes_often_enough() {
        let mut side = Side::new();
        let (mut layers, mut before, mut most) = (0, None, 0);
        for number in 0..5 * limits::LAYERS as u64 {
            let parent = side.commit(number).unwrap();
            assert!(parent.is_none() || parent == before);
            layers = if parent.is_some() { layers + 1 } else { 1 };
            (before, most) = (Some(number), most.max(layers));
        }
        assert_eq!(most, limits::LAYERS);
    }

    #[test]
    fn what_the_protector_wants_is_tried_until_it_has_it_and_the_line_comes_after_it() {
        let mut side = Side::new();
        side.protector(&FromProtector::ImageWanted);
        side.request(7, Some(3));
        assert_eq!(side.actions(), [Action::Want, Action::Want]);
        for (at, is_tried) in [(Duration::ZERO, true), (AGAIN / 2, false), (AGAIN, true)] {
            side.images.handle_timeout(at);
            assert_eq!(!side.actions().is_empty(), is_tried, "{at:?}");
        }
        assert_eq!(side.images.line(), None, "it is one by itself");
        side.begin(4);
        side.images.handle_timeout(AGAIN * 2);
        assert_eq!(side.actions(), [], "it is on its way");
        assert!(side.images.handle_committed(4) && !side.images.is_wanted());
        assert_eq!(side.actions(), [Action::Want, answer(7, Ok(4))]);
        assert_eq!(side.images.line(), Some(3));
        side.begin(5);
        assert_eq!(side.images.line(), None);
        // The image of the line is under way, and the protector has lost what it had.
        side.protector(&FromProtector::ImageWanted);
        assert_eq!(side.actions(), [Action::Abandon(5), Action::Want]);
        side.begin(6);
        assert!(side.images.handle_committed(6), "it waits for no line");
    }

    /// Where the image of a line is given up for one by itself the node hears it, and the home of the line from it.
    #[test]
    fn an_image_of_a_line_gives_way_to_one_that_the_protector_wants() {
        let mut side = Side::new();
        side.request(7, Some(3));
        side.begin(4);
        side.actions();
        side.protector(&FromProtector::ImageWanted);
        assert_eq!(side.actions(), [Action::Abandon(4), answer(7, Err(NOT_TAKEN)), Action::Want]);
    }

    #[test]
    fn a_whole_image_that_is_wanted_is_made_until_it_is_committed() {
        let mut side = Side::new();
        side.commit(1);
        assert_eq!(side.commit(2), Some(Some(1)));
        side.protector(&FromProtector::WholeWanted);
        assert_eq!(side.begin(3), Some(None));
        side.saved(103);
        // It was lost on its way: the one before it is still the newest, and a whole one is wanted still.
        side.images.abandon(&mut side.observer);
        assert_eq!(side.commit(4), Some(None));
        assert_eq!(side.commit(5), Some(Some(4)));
    }

    #[test]
    fn after_a_refusal_of_the_protector_and_at_a_new_one_the_next_image_is_a_whole_one() {
        let mut side = Side::new();
        side.commit(1);
        assert_eq!(side.begin(2), Some(Some(1)));
        side.request(7, None);
        side.protector(&FromProtector::ImageRefused { image: 2 });
        assert_eq!(side.commit(3), Some(None));
        assert_eq!(side.actions(), [Action::Want, answer(7, Ok(3))], "what was refused began before the request");
        side.images.handle_another_protector(&mut side.observer);
        assert_eq!(side.commit(4), Some(None));
    }

    /// The connections to the protector broke, and it is the same one.
    #[test]
    fn what_the_protector_still_has_is_built_upon() {
        let welcome = |newest| FromProtector::Welcome { journal: 0, payload: 0, image: newest };
        let mut side = Side::new();
        side.commit(1);
        side.protector(&welcome(Some(1)));
        assert_eq!(side.begin(2), Some(Some(1)));
        side.saved(102);
        // Its commit was not heard: it is said after the welcome.
        side.protector(&welcome(Some(2)));
        assert!(side.protector(&FromProtector::Committed { image: 2, oldest: 1 }));
        assert_eq!(side.begin(3), Some(Some(2)));
        side.protector(&welcome(Some(2)));
        assert_eq!(side.images.under_way(), Some(3), "it goes on, over its own connection");
        // The protector has begun again, and has nothing.
        side.protector(&welcome(None));
        side.protector(&FromProtector::ImageRefused { image: 3 });
        assert_eq!(side.begin(4), Some(None));
    }

    #[test]
    fn a_request_during_mpi_init_is_begun_after_it() {
        let mut side = Side::new();
        side.images.handle_initialized();
        assert_eq!(side.actions(), []);
        side.request(1, None);
        let cx = Context { observer: &mut side.observer, now: side.now };
        assert!(!side.images.begin(&cx, true));
        side.images.handle_initialized();
        assert_eq!(side.actions(), [Action::Want, Action::Want]);
        assert_eq!(side.begin(1), Some(None));
    }

    #[test]
    fn after_refusals_the_engine_rests_longer_and_longer_but_not_for_ever() {
        let (mut side, mut last) = (Side::new(), Duration::ZERO);
        for image in 0..40 {
            side.begin(image).expect("it has rested");
            side.request(image, None);
            side.unsaved("too many sockets");
            let why = answer(image, Err("too many sockets"));
            assert_eq!(side.actions(), [Action::Want, Action::Abandon(image), why]);
            let begun = side.now;
            let rest = (0..).map(|doublings| REST * (1 << doublings)).find(|rest| {
                side.now = begun + *rest - Duration::from_nanos(1);
                side.request(77, None);
                assert_eq!(side.begin(image + 1), None);
                assert_eq!(side.actions(), [Action::Want, answer(77, Err("not tried again so soon: too many sockets"))]);
                side.now = begun + *rest;
                let rests = side.images.refusals.rest.as_ref().is_some_and(|(until, _)| side.now < *until);
                !rests
            });
            let rest = rest.unwrap();
            assert!(rest == last * 2 || last.is_zero() || rest == last && rest == REST * (1 << DOUBLINGS));
            last = rest;
        }
        side.begin(50);
        side.saved(150);
        assert_eq!(side.images.refusals, Refusals::default());
    }

    /// What was cut for it would be in the way of each later image.
    #[test]
    fn an_image_that_does_not_begin_is_not_in_the_way_of_the_next_one() {
        let whys =
            [NotBegun::NotLetIn("no".to_owned()), NotBegun::NotCut(Error::Full("cut")), NotBegun::NotWritten("no".to_owned())];
        for why in whys {
            let mut side = Side::new();
            side.request(1, None);
            let cx = Context { observer: &mut side.observer, now: side.now };
            assert!(side.images.begin(&cx, false));
            let (mut streams, mut ended) = (Vec::new(), Vec::new());
            _ = side.images.cut(&mut side.observer, &mut streams, &mut ended).expect("it can be cut");
            side.not_begun(&why);
            assert_eq!(side.actions(), [Action::Want, answer(1, Err(&why.to_string()))]);
            let rests = side.images.refusals.rest.is_some();
            assert_eq!(rests, matches!(why, NotBegun::NotLetIn(_)), "the program has waited for the login only");
            side.now += REST;
            assert_eq!(side.begin(1), Some(None));
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Request(Option<u64>),
        Begin,
        NotBegun(bool),
        Saved(u64),
        Unsaved,
        Committed(bool),
        Refused,
        Whole,
        Wanted,
        AnotherProtector,
        Welcome(usize),
        Restored,
        Later(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => prop::option::of(1u64..4).prop_map(Step::Request),
            1 => Just(Step::Wanted),
            4 => Just(Step::Begin),
            1 => any::<bool>().prop_map(Step::NotBegun),
            4 => (0u64..3).prop_map(Step::Saved),
            1 => Just(Step::Unsaved),
            4 => any::<bool>().prop_map(Step::Committed),
            1 => Just(Step::Refused),
            1 => Just(Step::Whole),
            1 => Just(Step::AnotherProtector),
            1 => (0usize..4).prop_map(Step::Welcome),
            1 => Just(Step::Restored),
            1 => (0u64..100_000).prop_map(Step::Later),
        ]
    }

    proptest! {
        /// Whatever happens, each request is answered once at most, with those before it, and an increment is upon an image that
        /// is committed. The invariants hold after each step.
        #[test]
        fn an_increment_is_upon_what_is_committed(steps in prop::collection::vec(step(), 0..200)) {
            let (mut side, mut number, mut committed) = (Side::new(), 0, None);
            let (mut requests, mut open) = (0, BTreeSet::new());
            for step in steps {
                match step {
                    Step::Request(line) => {
                        requests += 1;
                        open.insert(requests);
                        side.request(requests, line);
                    }
                    Step::Begin => {
                        number += 1;
                        if let Some(Some(parent)) = side.begin(number) {
                            prop_assert_eq!(Some(parent), committed);
                        }
                    }
                    Step::NotBegun(has_cost) if side.images.under_way().is_none() => {
                        let why = if has_cost { NotBegun::NotLetIn("no".to_owned()) } else { NotBegun::CatchingUp };
                        side.not_begun(&why);
                    }
                    Step::NotBegun(_) => {}
                    Step::Saved(engine) => side.saved(engine),
                    Step::Unsaved => side.unsaved("no"),
                    Step::Committed(is_newest) => {
                        let image = if is_newest { side.images.under_way().unwrap_or(number) } else { number / 2 };
                        if side.images.handle_committed(image) {
                            committed = Some(image);
                        }
                    }
                    Step::Refused => _ = side.protector(&FromProtector::ImageRefused { image: number }),
                    Step::Wanted => _ = side.protector(&FromProtector::ImageWanted),
                    Step::Whole => _ = side.protector(&FromProtector::WholeWanted),
                    Step::Welcome(newest) => {
                        let newest = [None, committed, side.images.under_way(), Some(number + 1)][newest];
                        let welcome = FromProtector::Welcome { journal: 0, payload: 0, image: newest };
                        prop_assert!(!side.protector(&welcome));
                        // What the protector has, and what it has not.
                        committed = if newest == side.images.under_way() { committed } else { committed.filter(|_| newest == committed) };
                    }
                    Step::AnotherProtector => {
                        side.images.handle_another_protector(&mut side.observer);
                        committed = None;
                    }
                    Step::Restored => {
                        side.images.handle_restored();
                        committed = None;
                        open.clear();
                    }
                    Step::Later(ms) => side.now += Duration::from_millis(ms),
                }
                side.images.check_invariants();
                for action in side.actions() {
                    if let Action::Tell(ToNode::Checkpointed { request, .. }) = action {
                        prop_assert!(open.contains(&request));
                        open = open.split_off(&(request + 1));
                    }
                }
            }
        }
    }
}
