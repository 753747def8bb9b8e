//! Whether the node's folders are still there.
//!
//! A cluster's folder that is deleted while it runs leaves protectors that no command finds any more. Not all file systems have
//! an event for that, and none has one for a rename of a folder above, so the folders are looked at. A thread of its own does
//! that, because a file server that does not answer must not pass for this node's death.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use radic_wire::event::EventName;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use crate::folder::Folder;
use crate::node::Input;
use crate::watched::{Change, Looks, Thread, Watched};

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Time after which a look that has no answer is an event.
const PATIENCE: Duration = Duration::from_secs(20);

/// Watches folders for as long as the receiver lives, and tells the first one whose name does not lead to it any more. That one
/// does not answer becomes an input. To be called within the daemon's set of tasks.
pub fn watch(folders: Vec<Arc<Folder>>, inputs: mpsc::Sender<Input>) -> io::Result<mpsc::Receiver<PathBuf>> {
    let (sender, gone) = mpsc::channel(1);
    let thread = Thread::start("folders", move |watched| {
        while !sender.is_closed() {
            if let Some(folder) = folders.iter().find(|folder| !watched.during("look at", folder.path(), || folder.is_there())) {
                // The daemon may be at its end, and asks no more.
                _ = sender.blocking_send(folder.path().to_owned());
                return;
            }
            thread::sleep(LOOK);
        }
    })?;
    spawn_local(tell(thread.watched().clone(), inputs, PATIENCE));
    Ok(gone)
}

/// Tells that a look has no answer, and that it has one after all.
async fn tell(watched: Watched, inputs: mpsc::Sender<Input>, patience: Duration) {
    let mut looks = Looks::default();
    loop {
        let text = match looks.look(&watched, Instant::now(), patience) {
            Some(Change::Hangs(begun, since)) => {
                Some(format!("no answer since {} s: {begun}: see to the disk or file server of that folder", since.as_secs()))
            }
            Some(Change::GoesOn(begun)) => {
                Some(format!("there is an answer again, within {} s: {begun}", begun.since.elapsed().as_secs()))
            }
            None => None,
        };
        if let Some(text) = text
            && inputs.send(Input::StoreEvent(EventName::Store, None, text)).await.is_err()
        {
            return;
        }
        tokio::time::sleep(LOOK.min(patience)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc as std_mpsc;

    use tokio::task::LocalSet;

    use super::*;

    #[test]
    fn a_folder_that_does_not_answer_is_told() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (answers, answer) = std_mpsc::channel::<()>();
        let thread =
            Thread::start("test", move |watched| watched.during("look at", Path::new("/x"), || _ = answer.recv())).unwrap();
        let (sender, mut inputs) = mpsc::channel(4);
        runtime.block_on(LocalSet::new().run_until(async {
            spawn_local(tell(thread.watched().clone(), sender, Duration::from_millis(20)));
            let mut answers = Some(answers);
            for said in ["no answer since ", "there is an answer again, within "] {
                let input = tokio::time::timeout(Duration::from_secs(60), inputs.recv()).await.unwrap().unwrap();
                let Input::StoreEvent(EventName::Store, None, text) = &input else { panic!("{input:?}") };
                assert!(text.starts_with(said) && text.contains(" s: look at /x"), "{text}");
                answers = None;
            }
            assert!(answers.is_none());
        }));
    }
}
