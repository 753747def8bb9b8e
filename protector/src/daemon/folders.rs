//! Whether the node's folders are still there.
//!
//! A cluster's folder that is deleted while it runs leaves protectors that no command finds any more. Not all file systems have
//! an event for that, and none has one for a rename of a folder above, so the folders are looked at. A thread of its own does
//! that, because a file server that does not answer must not pass for this node's death.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::folder::Folder;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Watches folders for as long as the receiver lives, and tells the first one whose name does not lead to it any more.
pub fn watch(folders: Vec<Arc<Folder>>) -> io::Result<mpsc::Receiver<PathBuf>> {
    let (sender, gone) = mpsc::channel(1);
    let look = move || {
        while !sender.is_closed() {
            if let Some(folder) = folders.iter().find(|folder| !folder.is_there()) {
                // The daemon may be at its end, and asks no more.
                _ = sender.blocking_send(folder.path().to_owned());
                return;
            }
            thread::sleep(LOOK);
        }
    };
    thread::Builder::new().name("folders".to_owned()).spawn(look)?;
    Ok(gone)
}
