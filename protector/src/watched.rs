//! What a helper thread is at. A disk or a file server may never answer, and a thread that waits for it cannot say so: it says
//! before what it begins, and a thread that waits for no file looks how long ago that was.
//!
//! | thread | begins | looked at by |
//! |---|---|---|
//! | `start` | what a start touches of its user's paths | `launcher` |
//! | `logs disk`, `logs verify`, `logs send` | orders of the log service | `logs` |
//! | `image` | an image of this node that is read for a restore, or images that are put together | `restore` |

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Something that a thread has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// What is done: words that a path follows.
    what: &'static str,
    path: PathBuf,
    /// Since when there was no answer.
    pub since: Instant,
}

impl fmt::Display for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.path.display())
    }
}

/// What one thread is at. Clones are of the same thread.
#[derive(Debug, Clone, Default)]
pub struct Watched(Arc<Mutex<Option<Begun>>>);

impl Watched {
    fn state(&self) -> MutexGuard<'_, Option<Begun>> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something of which it is known meanwhile.
    pub fn during<T>(&self, what: &'static str, path: &Path, work: impl FnOnce() -> T) -> T {
        *self.state() = Some(Begun { what, path: path.to_owned(), since: Instant::now() });
        let result = work();
        *self.state() = None;
        result
    }

    /// Something was answered: what is done goes on.
    pub fn goes_on(&self) {
        if let Some(begun) = self.state().as_mut() {
            begun.since = Instant::now();
        }
    }

    /// What the thread is at. None: nothing that could hang.
    pub fn at(&self) -> Option<Begun> {
        self.state().clone()
    }

    /// What the thread is at if there was no answer for so long.
    pub fn hangs(&self, now: Instant, limit: Duration) -> Option<Begun> {
        self.at().filter(|begun| now.saturating_duration_since(begun.since) >= limit)
    }
}

/// What has changed about a thread since the last look.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// It has had no answer for so long.
    Hangs(Begun, Duration),
    /// What it was told to hang at has an answer, or another one hangs since then.
    GoesOn(Begun),
}

/// What was told of a thread. It is looked at again and again.
#[derive(Debug, Default)]
pub struct Looks(Option<Begun>);

impl Looks {
    /// Looks at it.
    pub fn look(&mut self, watched: &Watched, now: Instant, patience: Duration) -> Option<Change> {
        let hangs = watched.hangs(now, patience);
        if let Some(told) = self.0.take_if(|told| hangs.as_ref() != Some(told)) {
            return Some(Change::GoesOn(told));
        }
        if self.0.is_none()
            && let Some(begun) = hangs
        {
            self.0 = Some(begun.clone());
            let since = now.saturating_duration_since(begun.since);
            return Some(Change::Hangs(begun, since));
        }
        None
    }

    /// What it hangs at, as was told.
    pub fn told(&self) -> Option<&Begun> {
        self.0.as_ref()
    }
}

/// A thread that is watched, and waited for with a limit.
#[derive(Debug)]
pub struct Thread {
    name: &'static str,
    handle: JoinHandle<()>,
    /// Disconnected when the thread is over.
    ended: Receiver<()>,
    watched: Watched,
}

impl Thread {
    /// Starts it.
    pub fn start(name: &'static str, work: impl FnOnce(&Watched) + Send + 'static) -> io::Result<Thread> {
        let (ends, ended) = mpsc::channel::<()>();
        let watched = Watched::default();
        let its = watched.clone();
        let handle = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ends = ends;
            work(&its);
        })?;
        Ok(Thread { name, handle, ended, watched })
    }

    /// What it is at.
    pub fn watched(&self) -> &Watched {
        &self.watched
    }

    /// Waits for its end until then. A thread that hangs is named in the log, and left: it ends with the daemon. Whether it has ended.
    pub fn end(self, until: Instant) -> bool {
        let wait = until.saturating_duration_since(Instant::now());
        if self.ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let at = self.watched.at().map_or_else(|| "what it is at".to_owned(), |begun| begun.to_string());
            tracing::warn!("{}: no answer at this protector's end: its thread \"{}\" is not waited for", at, self.name);
            return false;
        }
        // A panic of the thread has been printed; there is nothing to add.
        _ = self.handle.join();
        true
    }
}

/// Waits for the ends of threads, for so long altogether. Whether all have ended.
pub fn end_all(threads: impl IntoIterator<Item = Thread>, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    let mut all = true;
    // Each is waited for, also after one that hangs.
    threads.into_iter().for_each(|thread| all &= thread.end(until));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far more than anything takes.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn it_is_known_what_a_thread_is_at_and_since_when() {
        let (begins, begun) = mpsc::channel();
        let (goes_on, waits) = mpsc::channel::<()>();
        let thread = Thread::start("test", move |watched| {
            watched.during("write of", Path::new("/x"), || {
                begins.send(()).unwrap();
                _ = waits.recv();
                watched.goes_on();
                begins.send(()).unwrap();
                _ = waits.recv();
            });
            begins.send(()).unwrap();
            _ = waits.recv();
        })
        .unwrap();
        begun.recv().unwrap();
        let at = thread.watched().at().unwrap();
        assert_eq!(at.to_string(), "write of /x");
        assert_eq!(thread.watched().hangs(at.since + LONG, LONG), Some(at.clone()));
        assert_eq!(thread.watched().hangs(at.since, LONG), None);
        goes_on.send(()).unwrap();
        begun.recv().unwrap();
        assert!(thread.watched().at().unwrap().since > at.since);
        goes_on.send(()).unwrap();
        begun.recv().unwrap();
        assert_eq!(thread.watched().at(), None);
        drop(goes_on);
        assert!(thread.end(Instant::now() + LONG));
    }

    #[test]
    fn a_thread_that_hangs_is_told_once_and_so_is_that_it_goes_on() {
        let (watched, mut looks, patience) = (Watched::default(), Looks::default(), Duration::from_secs(20));
        assert_eq!(looks.look(&watched, Instant::now(), patience), None);
        let begun = watched.during("sync of", Path::new("/x"), || {
            let begun = watched.at().unwrap();
            let at = |seconds| begun.since + Duration::from_secs(seconds);
            assert_eq!(looks.look(&watched, at(19), patience), None);
            assert_eq!(looks.look(&watched, at(21), patience), Some(Change::Hangs(begun.clone(), Duration::from_secs(21))));
            assert_eq!((looks.look(&watched, at(26), patience), looks.told()), (None, Some(&begun)));
            begun
        });
        let now = Instant::now();
        assert_eq!(looks.look(&watched, now, patience), Some(Change::GoesOn(begun)));
        assert_eq!((looks.look(&watched, now, patience), looks.told()), (None, None));
    }

    #[test]
    fn a_thread_that_hangs_is_not_waited_for() {
        let (goes_on, waits) = mpsc::channel::<()>();
        let hangs =
            Thread::start("test", move |watched| watched.during("write of", Path::new("/x"), || _ = waits.recv())).unwrap();
        let ends = Thread::start("test", |_| ()).unwrap();
        assert!(!end_all([hangs, ends], Duration::from_millis(20)));
        drop(goes_on);
    }
}
