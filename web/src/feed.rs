//! Asks the daemon while there are watchers, and tells them what has changed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use radic_protector::daemon::asking::{self, AskError, Connection};
use radic_wire::local::{Reply, Request};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::picture::Picture;

/// Time between two looks at how much each rank has sent to each: the nodes look through their streams for that.
const TRAFFIC: Duration = Duration::from_secs(5);
/// Jobs of which that is asked, the newest ones.
const JOBS: usize = 4;
/// Time before events are followed once more, if that has come to an end.
const AGAIN: Duration = Duration::from_secs(1);
/// Time after which a watcher that was told nothing is told so: whatever is between it and this node keeps the connection.
const QUIET: Duration = Duration::from_secs(15);
/// Watchers at once.
pub const WATCHERS: usize = 16;

/// What watchers are told of.
#[derive(Debug)]
pub struct Feed {
    node_dir: PathBuf,
    interval: Duration,
    picture: Mutex<Picture>,
    /// The number of the last update, and its message.
    updates: watch::Sender<(u64, Bytes)>,
    wanted: Notify,
}

impl Feed {
    /// Of the daemon with its socket in this folder, which is asked at this interval.
    pub fn new(node_dir: PathBuf, interval: Duration) -> Arc<Feed> {
        let updates = watch::Sender::new((0, Bytes::new()));
        Arc::new(Feed { node_dir, interval, picture: Mutex::default(), updates, wanted: Notify::new() })
    }

    fn picture(&self) -> MutexGuard<'_, Picture> {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for as long as there is a page to tell.
    pub async fn run(self: Arc<Self>) {
        loop {
            self.wanted.notified().await;
            self.watch().await;
            self.picture().handle_nobody();
        }
    }

    async fn watch(&self) {
        let begun = Instant::now();
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events = None;
        let mut traffic_at = Instant::now();
        while self.updates.receiver_count() > 0 {
            tokio::select! {
                _ = ticks.tick() => {
                    self.look(begun.elapsed()).await;
                    if traffic_at <= Instant::now() {
                        traffic_at = Instant::now() + TRAFFIC;
                        self.look_at_traffic().await;
                    }
                }
                _ = self.follow(&mut events) => {}
            }
            self.publish();
        }
    }

    async fn look(&self, at: Duration) {
        let asked = asking::ask(&self.node_dir, &Request::Status).await;
        let wall_ms = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_millis() as u64);
        match asked {
            Ok(Reply::Status(status)) => self.picture().handle_status(at, wall_ms, status),
            Ok(_) => self.picture().handle_trouble(&AskError::Unexpected.to_string()),
            Err(error) => self.picture().handle_trouble(&error.to_string()),
        }
        // At once: a whole picture that is asked for meanwhile must not have what the next update tells.
        self.publish();
    }

    async fn look_at_traffic(&self) {
        let jobs = self.picture().running();
        for job in jobs.into_iter().take(JOBS) {
            if let Ok(Reply::Traffic(traffic)) = asking::ask(&self.node_dir, &Request::Traffic(job)).await {
                self.picture().handle_traffic(job, traffic);
                self.publish();
            }
        }
    }

    /// Takes the next events. Whatever it waits for may be given up and waited for again.
    async fn follow(&self, connection: &mut Option<Connection>) {
        let Some(open) = connection else {
            match self.begin_to_follow().await {
                Ok(open) => *connection = Some(open),
                // The state says what is wrong.
                Err(_) => sleep(AGAIN).await,
            }
            return;
        };
        match open.reply().await {
            Ok(Reply::Events(events)) => self.picture().handle_events(&events),
            _ => *connection = None,
        }
    }

    async fn begin_to_follow(&self) -> Result<Connection, AskError> {
        let mut connection = asking::connect(&self.node_dir).await?;
        connection.send(&Request::Events { follow: true }).await?;
        self.picture().handle_first_events();
        Ok(connection)
    }

    fn publish(&self) {
        let update = self.picture().take_update();
        if let Some(update) = update {
            self.updates.send_replace((update.number, update.message));
        }
    }

    /// A watcher: messages come as it takes them, one being kept for it. What it misses because it is slow comes as a whole picture.
    pub fn subscribe(self: &Arc<Self>) -> Option<mpsc::Receiver<Bytes>> {
        if self.updates.receiver_count() >= WATCHERS {
            return None;
        }
        let (sender, messages) = mpsc::channel(1);
        let updates = self.updates.subscribe();
        self.wanted.notify_one();
        tokio::spawn(self.clone().tell(updates, sender));
        Some(messages)
    }

    async fn tell(self: Arc<Self>, mut updates: watch::Receiver<(u64, Bytes)>, watcher: mpsc::Sender<Bytes>) {
        let mut has = None;
        loop {
            let (number, message) = updates.borrow_and_update().clone();
            let message = match has {
                Some(before) if before + 1 == number => Some(message),
                Some(before) if before == number => None,
                _ => {
                    let full = self.picture().full();
                    has = Some(full.number);
                    Some(full.message)
                }
            };
            if has.is_none_or(|before| before < number) {
                has = Some(number);
            }
            if let Some(message) = message
                && watcher.send(message).await.is_err()
            {
                return;
            }
            let alive = Bytes::from_static(b": nothing has changed\n\n");
            tokio::select! {
                changed = updates.changed() => if changed.is_err() { return },
                () = watcher.closed() => return,
                () = sleep(QUIET) => if watcher.send(alive).await.is_err() { return },
            }
        }
    }
}
