//! Heartbeats, from a thread of their own.
//!
//! They say that the daemon lives, so they must not wait for anything else that it does: not for a view of thousands of members,
//! nor for a hundred handshakes. The daemon's loop gives each heartbeat here, and one that the loop is late with is repeated for
//! a while. Only for a while, because a loop that has stopped for good is as dead as a daemon that was killed, and no other node
//! would notice.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use radic_wire::PROTOCOL_VERSION;
use radic_wire::ids::NodeId;
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use radic_wire::membership::Member;
use radic_wire::peer::{Heartbeat, Hello, Purpose};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant as TokioInstant, timeout_at};

use super::wire::Connection;
use crate::membership::Timing;
use crate::node::Input;

/// Time for a connection and its handshake.
const HANDSHAKE: Duration = Duration::from_millis(limits::HANDSHAKE_MS);

/// A heartbeat of the loop.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Beat {
    peer: NodeId,
    address: SocketAddr,
    view: u64,
    /// When the loop gave it.
    at: Instant,
}

/// When a heartbeat that the loop is late with is repeated.
#[derive(Debug, Clone, Copy)]
struct Rhythm {
    /// Time between two of them.
    every: Duration,
    /// Time after the loop's last one for which it is repeated.
    patience: Duration,
}

impl Rhythm {
    /// The loop may be busy with something else for as long as probes wait for a daemon on a machine that answers.
    fn new(timing: &Timing) -> Rhythm {
        Rhythm { every: timing.heartbeat, patience: timing.answer }
    }

    /// When the loop's heartbeat of `given` is to be sent again, if it was last sent at `sent`. The first repetition is half an
    /// interval late, so that a loop that is merely not exact is not doubled.
    fn again(&self, given: Instant, sent: Instant) -> Option<Instant> {
        let late = if sent.saturating_duration_since(given) < self.every { self.every / 2 } else { Duration::ZERO };
        let at = sent + self.every + late;
        (at <= given + self.patience).then_some(at)
    }
}

/// The thread, as the loop sees it; it ends when this is dropped.
pub struct Beats {
    newest: watch::Sender<Option<Beat>>,
}

impl Beats {
    /// Starts the thread. A connection to the watcher that breaks becomes an input.
    pub fn start(me: Member, key: ClusterKey, timing: &Timing, inputs: mpsc::Sender<Input>) -> io::Result<Beats> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (newest, beats) = watch::channel(None);
        let rhythm = Rhythm::new(timing);
        let run = move || runtime.block_on(Sender { me, key, rhythm, inputs, beats }.run());
        thread::Builder::new().name("heartbeats".into()).spawn(run)?;
        Ok(Beats { newest })
    }

    /// Sends a heartbeat to this node's watcher, which may be another one than before.
    pub fn send(&self, peer: &NodeId, address: SocketAddr, view: u64) {
        self.newest.send_replace(Some(Beat { peer: peer.clone(), address, view, at: Instant::now() }));
    }
}

/// The loop has ended.
struct Ended;

/// The thread's own.
struct Sender {
    me: Member,
    key: ClusterKey,
    rhythm: Rhythm,
    inputs: mpsc::Sender<Input>,
    beats: watch::Receiver<Option<Beat>>,
}

impl Sender {
    async fn run(mut self) {
        while self.over_one_connection().await.is_ok() {}
    }

    /// Sends heartbeats to one watcher over one connection as long as both are.
    async fn over_one_connection(&mut self) -> Result<(), Ended> {
        self.beats.changed().await.map_err(|_| Ended)?;
        let Some(first) = self.beats.borrow_and_update().clone() else { return Ok(()) };
        let hello =
            Hello { version: PROTOCOL_VERSION, from: self.me.clone(), to: Some(first.peer.clone()), purpose: Purpose::Heartbeat };
        let key = self.key.clone();
        let connecting = Connection::connect(first.address, &key, &hello, HANDSHAKE);
        let connection = tokio::select! {
            connected = connecting => connected.ok().map(|(connection, _)| connection),
            end = self.until_another(&first.peer) => return end,
        };
        // The next heartbeat is the next try.
        let Some(mut connection) = connection else { return Ok(()) };
        self.beat(&first.peer, &mut connection).await
    }

    /// Waits until there is another watcher: its first heartbeat is still to be sent.
    async fn until_another(&self, peer: &NodeId) -> Result<(), Ended> {
        let is_another = |beat: &Option<Beat>| beat.as_ref().is_some_and(|beat| beat.peer != *peer);
        // Not `beats` itself, which would count as read what was only looked at.
        self.beats.clone().wait_for(is_another).await.map(drop).map_err(|_| Ended)
    }

    async fn beat(&mut self, peer: &NodeId, connection: &mut Connection) -> Result<(), Ended> {
        loop {
            let Some(beat) = self.beats.borrow_and_update().clone() else { return Ok(()) };
            if beat.peer != *peer {
                self.beats.mark_changed();
                return Ok(());
            }
            let heartbeat = Heartbeat { view: beat.view };
            let mut again = Some(Instant::now());
            while again.is_some() {
                // A connection that takes nothing would keep the next watcher waiting.
                let sent = tokio::select! {
                    sent = connection.send(&heartbeat) => sent.is_ok(),
                    end = self.until_another(peer) => return end,
                };
                if !sent {
                    return self.broken(peer);
                }
                again = self.rhythm.again(beat.at, Instant::now());
                let until = again.map(TokioInstant::from_std);
                tokio::select! {
                    changed = changed_until(&mut self.beats, until) => match changed {
                        Some(Ok(())) => break,
                        Some(Err(_)) => return Err(Ended),
                        None => {}
                    },
                    // Nothing ever comes back, but the end of the connection does.
                    _ = connection.receive::<()>() => return self.broken(peer),
                }
            }
        }
    }

    fn broken(&self, peer: &NodeId) -> Result<(), Ended> {
        // The input is a hint, and the thread does not wait to give it: a loop with so much to do hears of it by its other
        // connections.
        _ = self.inputs.try_send(Input::LinkBroken(peer.clone()));
        Ok(())
    }
}

/// Waits for another heartbeat of the loop. None if none comes until then.
async fn changed_until(
    beats: &mut watch::Receiver<Option<Beat>>,
    until: Option<TokioInstant>,
) -> Option<Result<(), watch::error::RecvError>> {
    match until {
        Some(at) => timeout_at(at, beats.changed()).await.ok(),
        None => Some(beats.changed().await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop that is late has its heartbeat repeated, at such times (in milliseconds after it gave it).
    #[test]
    fn a_heartbeat_is_repeated_for_a_while_and_no_longer() {
        let (given, ms) = (Instant::now(), Duration::from_millis);
        let rhythm = Rhythm::new(&Timing::default());
        let times = |first: u64| {
            let again = |sent: &Duration| rhythm.again(given, given + *sent).map(|at| at - given);
            std::iter::successors(Some(ms(first)), again).map(|at| at.as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(times(1), [1, 151, 251, 351, 451, 551, 651, 751, 851, 951], "then the loop counts as hung");
        assert_eq!(times(300), [300, 400, 500, 600, 700, 800, 900, 1000], "connecting took long");
        assert_eq!(times(5000), [5000]);
        let slow = Rhythm::new(&Timing { heartbeat: ms(1000), ..Timing::default() });
        assert_eq!(slow.again(given, given), None, "many of these may be missed for as long as a probe takes");
    }

    /// The loop gives one heartbeat and is busy then: the watcher hears it for a while, and of another watcher at once.
    #[tokio::test]
    async fn a_busy_loop_is_heard_and_one_that_hangs_is_not() {
        let timing = Timing { heartbeat: Duration::from_millis(20), answer: Duration::from_millis(400), ..Timing::default() };
        let key = ClusterKey::from_bytes([3; 32]);
        let member = |name: &str, address| {
            let id = NodeId { name: name.parse().unwrap(), boot: radic_wire::ids::BootId(1) };
            Member { id, address, log_port: 1, role: radic_wire::membership::Role::Node, slots: 1 }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (inputs, mut broken) = mpsc::channel(4);
        let beats = Beats::start(member("n1", address), key.clone(), &timing, inputs).unwrap();
        for name in ["n2", "n3"] {
            let watcher = member(name, address).id;
            beats.send(&watcher, address, 5);
            let given = Instant::now();
            let (mut connection, hello) = Connection::accept(listener.accept().await.unwrap().0, &key).await.unwrap();
            assert_eq!(hello.to, Some(watcher.clone()));
            let welcome = radic_wire::peer::Welcome { id: watcher.clone(), received: 0, refused: None };
            connection.send(&welcome).await.unwrap();
            let mut heard = 0;
            let silence = Duration::from_millis(1000);
            while let Ok(heartbeat) = tokio::time::timeout(silence, connection.receive::<Heartbeat>()).await {
                assert_eq!(heartbeat.unwrap().view, 5);
                heard += 1;
            }
            assert!(heard >= 5, "{heard} heartbeats of a busy loop");
            assert!(given.elapsed() < timing.answer + silence + Duration::from_secs(5), "it never fell silent");
            assert!(heard <= 1 + 400 / 20, "{heard} heartbeats of a loop that hangs");
            // The loop is back.
            beats.send(&watcher, address, 6);
            assert_eq!(connection.receive::<Heartbeat>().await.unwrap().view, 6);
            if name == "n3" {
                drop(connection);
                // That of the watcher before may have been told first.
                let is_this = |input: Input| matches!(input, Input::LinkBroken(of) if of == watcher);
                while !is_this(broken.recv().await.expect("the thread lives")) {}
            }
        }
    }
}
