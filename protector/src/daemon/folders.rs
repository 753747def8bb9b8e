//! Whether the node's folders are still there.
//!
//! A cluster's folder that is deleted while it runs leaves protectors that nobody finds any more. There is no event for that on all file
//! systems, and none for a rename of a folder above, so they are looked at; in a thread of its own, for a file server that does not
//! answer must not pass for our death.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::folder::Folder;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Watches folders for as long as the receiver lives: tells the first whose name leads to it no more.
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
