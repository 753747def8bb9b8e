//! The connection on which this daemon's heartbeats go to its watcher.
//!
//! A heartbeat says that the daemon lives, so a heartbeat that the daemon is late with is repeated for a while. Only for a while,
//! because a daemon whose loop has stopped for good is as dead as one that was killed, and no other node would notice.
//!
//! There is one connection at a time: what comes of the one before [`HeartbeatsAction::Close`] is for the driver to drop.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::PROTOCOL_VERSION;
use radic_wire::ids::NodeId;
use radic_wire::membership::Member;
use radic_wire::peer::{Heartbeat, Hello, Purpose, Welcome};

use super::{CONNECT, HANDSHAKE, decoded, encoded};
use crate::membership::Timing;
use crate::node::Input;

/// A heartbeat, as the node gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// The watcher.
    pub peer: NodeId,
    /// Where it listens.
    pub address: SocketAddr,
    /// This node's view.
    pub view: u64,
    /// When the node gave it.
    pub given: Duration,
}

/// Something for the driver to do, in this order.
#[derive(Debug)]
pub enum HeartbeatsAction {
    /// Connect to this address; then [`Heartbeats::handle_connected`] or [`Heartbeats::handle_closed`].
    Dial(SocketAddr),
    /// Send this frame.
    Send(Vec<u8>),
    /// A heartbeat waits: send what [`Heartbeats::poll_frame`] gives.
    Write,
    /// Close the connection at once.
    Close,
    /// Tell the node.
    Tell(Input),
}

/// When a heartbeat that the node is late with is repeated.
#[derive(Debug, Clone, Copy)]
struct Rhythm {
    /// Time between two of them.
    every: Duration,
    /// Time after the node's last one for which it is repeated.
    patience: Duration,
}

impl Rhythm {
    /// The daemon may be busy with something else for as long as probes wait for it on a machine that answers.
    fn new(timing: &Timing) -> Rhythm {
        Rhythm { every: timing.heartbeat, patience: timing.answer }
    }

    /// When the node's heartbeat of `given` is to be sent again, if it was last sent at `sent`. The first repetition is half an
    /// interval late, so that a daemon that is merely not exact is not doubled.
    fn again(&self, given: Duration, sent: Duration) -> Option<Duration> {
        let late = if sent.saturating_sub(given) < self.every { self.every / 2 } else { Duration::ZERO };
        let at = sent + self.every + late;
        (at <= given + self.patience).then_some(at)
    }
}

/// How far the connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There is none. The next heartbeat is the next try.
    None,
    /// The watcher's machine has not taken it. `newer`: there was another heartbeat meanwhile, which is a try of its own.
    Connecting { begun: Duration, newer: bool },
    /// The watcher has not welcomed it.
    Greeting { begun: Duration, newer: bool },
    /// The newest heartbeat was sent, and is to be sent again then.
    Up { again: Option<Duration> },
    /// The driver was told that a heartbeat waits, and has not taken it. A newer one takes its place.
    Writing,
}

/// See the module's text.
#[derive(Debug)]
pub struct Heartbeats {
    me: Member,
    rhythm: Rhythm,
    /// The newest.
    beat: Option<Beat>,
    stage: Stage,
    actions: VecDeque<HeartbeatsAction>,
}

impl Heartbeats {
    /// None was given yet.
    pub fn new(me: Member, timing: &Timing) -> Heartbeats {
        Heartbeats { me, rhythm: Rhythm::new(timing), beat: None, stage: Stage::None, actions: VecDeque::new() }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<HeartbeatsAction> {
        self.actions.pop_front()
    }

    /// When [`Heartbeats::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        match self.stage {
            Stage::Connecting { begun, .. } => Some(begun + CONNECT),
            Stage::Greeting { begun, .. } => Some(begun + HANDSHAKE),
            Stage::Up { again } => again,
            Stage::None | Stage::Writing => None,
        }
    }

    /// The node gives a heartbeat, perhaps for another watcher than before.
    pub fn handle_beat(&mut self, now: Duration, beat: Beat) {
        if self.beat.as_ref().is_some_and(|before| before.peer != beat.peer) && self.stage != Stage::None {
            self.stage = Stage::None;
            self.actions.push_back(HeartbeatsAction::Close);
        }
        self.beat = Some(beat);
        match &mut self.stage {
            Stage::None => self.dial(now),
            Stage::Connecting { newer, .. } | Stage::Greeting { newer, .. } => *newer = true,
            Stage::Up { .. } => self.write(),
            Stage::Writing => {}
        }
    }

    /// The watcher's machine has taken the connection.
    pub fn handle_connected(&mut self) {
        let (Stage::Connecting { begun, newer }, Some(beat)) = (self.stage, &self.beat) else { return };
        let (from, to, purpose) = (self.me.clone(), Some(beat.peer.clone()), Purpose::Heartbeat);
        let hello = Hello { version: PROTOCOL_VERSION, from, to, purpose };
        self.stage = Stage::Greeting { begun, newer };
        self.actions.push_back(HeartbeatsAction::Send(encoded(&hello)));
    }

    /// A frame has come: the welcome. Nothing else ever does.
    pub fn handle_frame(&mut self, now: Duration, frame: &[u8]) {
        let is_welcome = || decoded::<Welcome>(frame).is_ok_and(|welcome| welcome.refused.is_none());
        match self.stage {
            Stage::Greeting { .. } if is_welcome() => self.write(),
            Stage::None => {}
            _ => self.close(now),
        }
    }

    /// The connection has ended, or did not come about.
    pub fn handle_closed(&mut self, now: Duration) {
        let before = std::mem::replace(&mut self.stage, Stage::None);
        match (before, &self.beat) {
            (Stage::Connecting { newer: true, .. } | Stage::Greeting { newer: true, .. }, _) => self.dial(now),
            (Stage::Up { .. } | Stage::Writing, Some(beat)) => {
                let broken = Input::LinkBroken(beat.peer.clone());
                self.actions.push_back(HeartbeatsAction::Tell(broken));
            }
            _ => {}
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        match self.stage {
            Stage::Up { .. } => self.write(),
            _ => self.close(now),
        }
    }

    /// The heartbeat that is sent now, if one waits.
    pub fn poll_frame(&mut self, now: Duration) -> Option<Vec<u8>> {
        let beat = self.beat.as_ref().filter(|_| self.stage == Stage::Writing)?;
        self.stage = Stage::Up { again: self.rhythm.again(beat.given, now) };
        Some(encoded(&Heartbeat { view: beat.view }))
    }

    fn dial(&mut self, now: Duration) {
        if let Some(beat) = &self.beat {
            self.stage = Stage::Connecting { begun: now, newer: false };
            self.actions.push_back(HeartbeatsAction::Dial(beat.address));
        }
    }

    fn write(&mut self) {
        self.stage = Stage::Writing;
        self.actions.push_back(HeartbeatsAction::Write);
    }

    fn close(&mut self, now: Duration) {
        self.actions.push_back(HeartbeatsAction::Close);
        self.handle_closed(now);
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::ids::BootId;
    use radic_wire::membership::Role;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn member(name: &str) -> Member {
        let id = NodeId { name: name.parse().expect("a name"), boot: BootId(1) };
        Member { id, address: ([10, 0, 0, 1], 1).into(), data: [10, 0, 0, 1].into(), log_port: 1, role: Role::Node, slots: 1 }
    }

    fn beat(name: &str, view: u64, given: Duration) -> Beat {
        let Member { id: peer, address, .. } = member(name);
        Beat { peer, address, view, given }
    }

    fn welcome(refused: Option<&str>) -> Vec<u8> {
        encoded(&Welcome { id: member("n2").id, received: 0, refused: refused.map(str::to_owned) })
    }

    fn done(beats: &mut Heartbeats) -> String {
        let name = |action| match action {
            HeartbeatsAction::Dial(_) => "dial",
            HeartbeatsAction::Send(_) => "send",
            HeartbeatsAction::Write => "write",
            HeartbeatsAction::Close => "close",
            HeartbeatsAction::Tell(Input::LinkBroken(_)) => "broken",
            HeartbeatsAction::Tell(_) => "else",
        };
        std::iter::from_fn(|| beats.poll_action()).map(name).collect::<Vec<_>>().join(" ")
    }

    /// A machine whose first heartbeat waits to be sent.
    fn up() -> Heartbeats {
        let mut beats = Heartbeats::new(member("n1"), &Timing::default());
        beats.handle_beat(ms(0), beat("n2", 5, ms(0)));
        beats.handle_connected();
        beats.handle_frame(ms(1), &welcome(None));
        assert_eq!(done(&mut beats), "dial send write");
        beats
    }

    fn view(frame: Option<Vec<u8>>) -> u64 {
        decoded::<Heartbeat>(&frame.expect("a heartbeat waits")).expect("it is one").view
    }

    /// A daemon that is late has its heartbeat repeated, at such times (in milliseconds after it was given).
    #[test]
    fn a_heartbeat_is_repeated_for_a_while_and_no_longer() {
        let rhythm = Rhythm::new(&Timing::default());
        let times = |first: u64| {
            let again = |sent: &Duration| rhythm.again(Duration::ZERO, *sent);
            std::iter::successors(Some(ms(first)), again).map(|at| at.as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(times(1), [1, 151, 251, 351, 451, 551, 651, 751, 851, 951], "then the loop counts as hung");
        assert_eq!(times(300), [300, 400, 500, 600, 700, 800, 900, 1000], "connecting took long");
        assert_eq!(times(5000), [5000]);
        let slow = Rhythm::new(&Timing { heartbeat: ms(1000), ..Timing::default() });
        assert_eq!(slow.again(ms(0), ms(0)), None, "many of these may be missed for as long as a probe takes");
    }

    #[test]
    fn a_late_node_has_its_heartbeat_repeated_and_the_newest_is_what_is_sent() {
        let mut beats = up();
        assert_eq!((view(beats.poll_frame(ms(1))), beats.poll_frame(ms(1))), (5, None));
        let due = beats.poll_timeout().expect("it is repeated");
        beats.handle_timeout(due - ms(1));
        assert_eq!(done(&mut beats), "");
        beats.handle_timeout(due);
        assert_eq!(done(&mut beats), "write");
        beats.handle_beat(due, beat("n2", 6, due));
        assert_eq!(done(&mut beats), "", "the driver knows that one waits");
        assert_eq!(view(beats.poll_frame(due)), 6);
    }

    #[test]
    fn another_watcher_is_dialed_at_once() {
        let mut beats = up();
        beats.handle_beat(ms(2), beat("n3", 6, ms(2)));
        assert_eq!(done(&mut beats), "close dial");
        assert_eq!(beats.poll_frame(ms(2)), None, "the heartbeat for the one before is not sent");
    }

    #[test]
    fn a_connection_that_breaks_is_told_and_the_next_heartbeat_dials() {
        let mut beats = up();
        beats.handle_closed(ms(2));
        assert_eq!((done(&mut beats).as_str(), beats.poll_timeout()), ("broken", None));
        beats.handle_beat(ms(3), beat("n2", 6, ms(3)));
        assert_eq!(done(&mut beats), "dial");
    }

    #[test]
    fn a_connection_that_does_not_come_about_is_closed_in_time_and_another_heartbeat_is_another_try() {
        let mut beats = Heartbeats::new(member("n1"), &Timing::default());
        beats.handle_beat(ms(0), beat("n2", 5, ms(0)));
        assert_eq!(beats.poll_timeout(), Some(CONNECT));
        beats.handle_timeout(CONNECT);
        assert_eq!(done(&mut beats), "dial close");
        beats.handle_beat(ms(2_000), beat("n2", 5, ms(2_000)));
        beats.handle_connected();
        assert_eq!(beats.poll_timeout(), Some(ms(2_000) + HANDSHAKE));
        beats.handle_beat(ms(2_100), beat("n2", 6, ms(2_100)));
        beats.handle_frame(ms(2_200), &welcome(Some("no")));
        assert_eq!(done(&mut beats), "dial send close dial");
    }
}
