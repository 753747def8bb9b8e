//! The images of one process, fetched one by one.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::mac::MAC;

use super::error::{FetchError, WRONG_CODE};
use super::offer::Offer;
use super::order::RestoreOrder;
use crate::store::Speaker;

/// Time to connect and log in.
pub const LOGIN: Duration = Duration::from_secs(3);
/// Time in which nothing may come. The sender uses it for the time in which nothing may go. While others are sent before it, an
/// image waits.
pub const SILENCE: Duration = Duration::from_secs(30);
/// Time that a replica has to hear of the incarnation that is about to begin. Before that it closes the connection.
const HEARD: Duration = Duration::from_secs(3);
/// Time until a log service is asked again.
pub(super) const AGAIN: Duration = Duration::from_millis(50);
/// Time in which the log service that has an image is asked again after its connection broke or did not come about, and no
/// replica has a copy: long enough for a network that stumbles, and for the membership to notice that the node is dead.
pub(super) const REACHED: Duration = Duration::from_secs(2);

/// Where the images are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In files of this node's own log service.
    Here,
    /// At the log service that listens there.
    At(SocketAddr),
}

/// Something for the driver to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchAction {
    /// Open the file of this image and check its code; then [`Fetch::handle_opened`].
    Open(u64),
    /// The same of the last image: the images may be put together while it is read.
    Read(u64),
    /// Connect, and log in as this incarnation; then [`Fetch::handle_admitted`] or [`Fetch::handle_gone`].
    Dial(SocketAddr, Speaker),
    /// Ask for this image on the connection; then [`Fetch::handle_offer`] or [`Fetch::handle_gone`].
    Ask(u64),
    /// Make room for so many bytes of this image; [`Fetch::handle_no_room`] if there is none, also when it is found out later.
    /// Then [`Fetch::handle_bytes`] and [`Fetch::handle_end`].
    Reserve(u64, u64),
    /// This image is the last one: the images may be put together while it comes. Then as after [`FetchAction::Reserve`].
    Stream(u64),
    /// This image is whole: it is kept.
    Keep(u64),
    /// Close the connection, if there is one, and drop what was not kept of the image that came on it.
    Close,
    /// All images are here, and sound: put them together, if that is not done; then [`Fetch::handle_assembled`].
    Assemble,
    /// This is the end. On success what was put together is the process.
    Over(Result<(), FetchError>),
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A file of this node is being opened. The driver, which knows whether it goes on, waits for it with a limit, of [`SILENCE`].
    Opening,
    /// A connection, and the login at the log service there, until a time.
    Connecting(SocketAddr, Duration),
    /// The offer, until a time.
    Asked(SocketAddr, Duration),
    /// The rest of an image.
    Receiving {
        from: SocketAddr,
        /// Bytes that have not come.
        left: u64,
        code: [u8; MAC],
        /// Until when the next bytes must come.
        until: Duration,
    },
    /// The time to ask a log service again.
    Pausing(SocketAddr, Duration),
    /// The images are put together, for which the driver waits as for a file.
    Assembling,
    Over,
}

/// Why the replica's copy of an image is fetched, and until when the replica may not know the incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Substitute {
    of: FetchError,
    heard_by: Duration,
}

/// See the module's text.
#[derive(Debug)]
pub struct Fetch {
    speaker: Speaker,
    source: Source,
    replica: Option<SocketAddr>,
    /// Numbers and lengths, in the order in which they are fetched. The longest comes last: a process is restored from it, and from the others, while it comes.
    images: Vec<(u64, u64)>,
    /// Their numbers, the newest first.
    chain: Vec<u64>,
    /// How many of them are here.
    here: usize,
    stage: Stage,
    /// Set while the replica's copy of the next image is fetched.
    copy: Option<Substitute>,
    /// Until when the log service that has the next image is asked again, once it was out of reach.
    reached_by: Option<Duration>,
    damage: Vec<String>,
    actions: VecDeque<FetchAction>,
}

impl Fetch {
    /// Begins to fetch what an order names.
    pub fn of(now: Duration, order: &RestoreOrder) -> Fetch {
        let speaker = Speaker { process: order.process, incarnation: order.incarnation };
        let source = if order.local { Source::Here } else { Source::At(order.log) };
        Fetch::new(now, speaker, source, order.replica, order.images.clone())
    }

    /// Begins to fetch images (numbers and lengths, the whole one first) for the incarnation that is about to begin.
    pub fn new(
        now: Duration,
        speaker: Speaker,
        source: Source,
        replica: Option<SocketAddr>,
        mut images: Vec<(u64, u64)>,
    ) -> Fetch {
        images.reverse();
        let chain = images.iter().map(|(image, _)| *image).collect();
        if let Some(longest) = (0..images.len()).max_by_key(|at| images[*at].1) {
            let longest = images.remove(longest);
            images.push(longest);
        }
        let (damage, actions) = Default::default();
        let (here, stage, copy, reached_by) = (0, Stage::Opening, None, None);
        let mut fetch = Fetch { speaker, source, replica, images, chain, here, stage, copy, reached_by, damage, actions };
        if fetch.images.is_empty() {
            fetch.end(Err(FetchError::NoImage));
        } else {
            fetch.begin_image(now);
        }
        fetch.check_invariants();
        fetch
    }

    /// The incarnation that is about to begin.
    pub fn speaker(&self) -> Speaker {
        self.speaker
    }

    /// The numbers of the images, the newest first, the whole one last.
    pub fn chain(&self) -> &[u64] {
        &self.chain
    }

    /// What was wrong with images for which the replica's copies were taken.
    pub fn take_damage(&mut self) -> Vec<String> {
        std::mem::take(&mut self.damage)
    }

    /// What the driver is to do next.
    pub fn poll_action(&mut self) -> Option<FetchAction> {
        self.actions.pop_front()
    }

    /// When [`Fetch::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        match self.stage {
            Stage::Connecting(_, until) | Stage::Asked(_, until) | Stage::Pausing(_, until) => Some(until),
            Stage::Receiving { until, .. } => Some(until),
            Stage::Opening | Stage::Assembling | Stage::Over => None,
        }
    }

    /// Whether the offer is waited for: what comes next is that, and no part of an image.
    pub fn awaits_offer(&self) -> bool {
        matches!(self.stage, Stage::Asked(..))
    }

    // ---- what happens

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return;
        }
        match self.stage {
            Stage::Connecting(from, _) => self.lose(now, from, &format!("no login within {LOGIN:?}")),
            Stage::Asked(from, _) | Stage::Receiving { from, .. } => {
                self.fail(now, FetchError::Service(from, format!("it has sent nothing for {SILENCE:?}")));
            }
            Stage::Pausing(from, _) => self.dial(now, from),
            Stage::Opening | Stage::Assembling | Stage::Over => {}
        }
        self.check_invariants();
    }

    /// The file of an image is open and has the right code, or what is wrong with it.
    pub fn handle_opened(&mut self, now: Duration, result: Result<(), String>) {
        if self.stage == Stage::Opening {
            match result {
                Ok(()) => self.keep(now),
                Err(why) => self.fail(now, FetchError::Bad(self.image().0, why)),
            }
        }
        self.check_invariants();
    }

    /// The log service has let this node in.
    pub fn handle_admitted(&mut self, now: Duration) {
        if let Stage::Connecting(from, _) = self.stage {
            self.stage = Stage::Asked(from, now + SILENCE);
            self.actions.push_back(FetchAction::Ask(self.image().0));
        }
        self.check_invariants();
    }

    /// The answer of the log service has come.
    pub fn handle_offer(&mut self, now: Duration, bytes: &[u8]) {
        if let Stage::Asked(from, _) = self.stage {
            let (image, length) = self.image();
            match Offer::read(bytes).filter(|offer| offer.bytes == length) {
                Some(offer) => {
                    self.stage = Stage::Receiving { from, left: length, code: offer.code, until: now + SILENCE };
                    self.actions.push_back(if self.is_last() {
                        FetchAction::Stream(image)
                    } else {
                        FetchAction::Reserve(image, length)
                    });
                }
                None => self.fail(now, FetchError::NotHeld(from, image)),
            }
        }
        self.check_invariants();
    }

    /// So many more bytes of the image have come.
    pub fn handle_bytes(&mut self, now: Duration, count: u64) {
        if let Stage::Receiving { from, ref mut left, ref mut until, .. } = self.stage {
            match left.checked_sub(count) {
                Some(rest) => (*left, *until) = (rest, now + SILENCE),
                None => self.fail(now, FetchError::NotHeld(from, self.image().0)),
            }
        }
        self.check_invariants();
    }

    /// The log service has said that nothing follows; the code of what has come is this.
    pub fn handle_end(&mut self, now: Duration, of: &[u8; MAC]) {
        let image = self.images.get(self.here).map_or(0, |(image, _)| *image);
        match self.stage {
            Stage::Receiving { left: 0, ref code, .. } if code == of => self.keep(now),
            Stage::Receiving { left: 0, .. } => self.fail(now, FetchError::Bad(image, WRONG_CODE.to_owned())),
            Stage::Asked(from, _) | Stage::Receiving { from, .. } => self.fail(now, FetchError::NotHeld(from, image)),
            _ => {}
        }
        self.check_invariants();
    }

    /// There is no room for the image.
    pub fn handle_no_room(&mut self, now: Duration, why: String) {
        if let Stage::Receiving { .. } = self.stage {
            let (image, bytes) = self.image();
            self.fail(now, FetchError::Room { image, bytes, why });
        }
        self.check_invariants();
    }

    /// The connection did not come about, broke, or was closed.
    pub fn handle_gone(&mut self, now: Duration, why: &str) {
        if let Stage::Connecting(from, _) | Stage::Asked(from, _) | Stage::Receiving { from, .. } = self.stage {
            self.lose(now, from, why);
        }
        self.check_invariants();
    }

    /// The images were put together, or do not fit.
    pub fn handle_assembled(&mut self, result: Result<(), String>) {
        if self.stage == Stage::Assembling {
            self.end(result.map_err(FetchError::Apart));
        }
        self.check_invariants();
    }

    /// The images could not be put together in time: where they are does not answer. The replica has copies of all of them.
    pub fn handle_stuck(&mut self, now: Duration, why: &str) {
        if self.stage == Stage::Assembling {
            match self.replica.filter(|replica| self.source != Source::At(*replica)) {
                Some(replica) => {
                    self.damage.push(format!("{why}; its replica's copies are taken"));
                    (self.source, self.here) = (Source::At(replica), 0);
                    self.actions.push_back(FetchAction::Close);
                    self.begin_image(now);
                }
                None => self.end(Err(FetchError::Apart(why.to_owned()))),
            }
        }
        self.check_invariants();
    }

    /// The process is not wanted any more.
    pub fn handle_given_up(&mut self) {
        if self.stage != Stage::Over {
            self.actions.clear();
            self.end(Err(FetchError::GivenUp));
        }
        self.check_invariants();
    }

    // ---- what follows

    /// The image that comes next: its number and its length.
    fn image(&self) -> (u64, u64) {
        self.images[self.here]
    }

    /// Whether all others are here.
    fn is_last(&self) -> bool {
        self.here + 1 == self.images.len()
    }

    fn begin_image(&mut self, now: Duration) {
        match self.source {
            Source::Here => {
                let image = self.image().0;
                self.stage = Stage::Opening;
                self.actions.push_back(if self.is_last() { FetchAction::Read(image) } else { FetchAction::Open(image) });
            }
            Source::At(service) => self.dial(now, service),
        }
    }

    fn dial(&mut self, now: Duration, service: SocketAddr) {
        self.stage = Stage::Connecting(service, now + LOGIN);
        self.actions.push_back(FetchAction::Dial(service, self.speaker));
    }

    fn keep(&mut self, now: Duration) {
        self.actions.extend([FetchAction::Keep(self.image().0), FetchAction::Close]);
        self.damage.extend(self.copy.take().map(|copy| format!("{}; its replica's copy is taken", copy.of)));
        self.here += 1;
        self.reached_by = None;
        if self.here < self.images.len() {
            return self.begin_image(now);
        }
        self.stage = Stage::Assembling;
        self.actions.push_back(FetchAction::Assemble);
    }

    /// A log service is out of reach. Without a replica there is no other one, and what its job would lose is all of its work: it
    /// is asked again, for some time.
    fn lose(&mut self, now: Duration, service: SocketAddr, why: &str) {
        let reached_by = *self.reached_by.get_or_insert(now + REACHED);
        if self.replica.is_some() || now >= reached_by {
            self.fail(now, FetchError::Service(service, why.to_owned()));
        } else {
            self.pause(now, service);
        }
    }

    /// The next image cannot be had where it was looked for. The replica is asked once for a copy, and again only while it may not
    /// have heard of the incarnation. If it has none, a log service that was out of reach is asked again.
    fn fail(&mut self, now: Duration, error: FetchError) {
        let is_refused = matches!(error, FetchError::Service(..));
        match (self.copy.take(), self.replica) {
            (None, None) => self.end(Err(FetchError::Unreplicated(Box::new(error)))),
            (None, Some(replica)) => {
                self.actions.push_back(FetchAction::Close);
                self.copy = Some(Substitute { of: error, heard_by: now + HEARD });
                self.dial(now, replica);
            }
            (Some(copy), Some(replica)) if is_refused && now < copy.heard_by => {
                self.pause(now, replica);
                self.copy = Some(copy);
            }
            (Some(copy), _) => match (&copy.of, self.source) {
                (FetchError::Service(..), Source::At(service)) if self.reached_by.is_some_and(|until| now < until) => {
                    self.pause(now, service);
                }
                _ => self.end(Err(FetchError::Neither(Box::new(copy.of), Box::new(error)))),
            },
        }
    }

    fn pause(&mut self, now: Duration, service: SocketAddr) {
        self.actions.push_back(FetchAction::Close);
        self.stage = Stage::Pausing(service, now + AGAIN);
    }

    fn end(&mut self, result: Result<(), FetchError>) {
        self.stage = Stage::Over;
        self.copy = None;
        self.actions.extend([FetchAction::Close, FetchAction::Over(result)]);
    }

    /// Panics if the parts contradict each other.
    pub fn check_invariants(&self) {
        let is_whole = self.here == self.images.len();
        match self.stage {
            Stage::Opening => {
                assert!(self.source == Source::Here && self.copy.is_none() && !is_whole, "a file of this node is opened");
            }
            Stage::Connecting(from, _) | Stage::Asked(from, _) | Stage::Receiving { from, .. } => {
                let expected = if self.copy.is_some() { self.replica } else { Some(from) };
                assert!(expected == Some(from) && !is_whole, "a copy comes from the replica");
                assert!(self.copy.is_some() || self.source == Source::At(from), "an image comes from where the order says");
            }
            Stage::Pausing(from, _) => {
                let expected = if self.copy.is_some() { self.replica == Some(from) } else { self.source == Source::At(from) };
                assert!(expected && !is_whole, "what is asked again was asked before");
                assert!(self.copy.is_some() || self.reached_by.is_some(), "the only log service is asked again for some time");
            }
            Stage::Assembling => assert!(is_whole && self.copy.is_none(), "all images are here"),
            Stage::Over => assert!(self.copy.is_none(), "nothing is fetched any more"),
        }
        if let Stage::Receiving { left, .. } = self.stage {
            assert!(left <= self.image().1, "no more is expected than was offered");
        }
        assert!(self.actions.len() <= 16, "the driver does what is wanted before it says what happens next");
    }
}
