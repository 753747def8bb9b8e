//! Sending whole images to nodes that bring processes back: a thread for each image that is being sent. Which ones are is decided
//! by the log server.
//!
//! An image that is being sent is an open file: a commit that deletes its name takes nothing away. The receiver checks its code
//! over what it has received, so it is not read twice for that.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use radic_wire::ids::ProcessId;
use radic_wire::login::OFFER;
use radic_wire::record::{HEAD, OVERHEAD, RECORD, Sealer};

use super::disk::{Done, Waker};
use super::files::{image_path, open_image};
use super::verify;
use crate::fetching::{Offer, SILENCE};
use crate::logserver::ConnectionNumber;

/// An image, and the connection of the node that wants it.
#[derive(Debug)]
pub struct Sender {
    socket: TcpStream,
    sealer: Sealer,
    process: ProcessId,
    image: u64,
    /// Its length. None if it is not held.
    bytes: Option<u64>,
}

impl Sender {
    pub fn new(socket: TcpStream, sealer: Sealer, process: ProcessId, image: u64, bytes: Option<u64>) -> Self {
        Sender { socket, sealer, process, image, bytes }
    }

    /// Sends the image, or that there is none. An error is the receiver's: it is gone, or takes nothing.
    fn send(mut self, dir: &Path) -> io::Result<()> {
        self.socket.set_nonblocking(false)?;
        self.socket.set_write_timeout(Some(SILENCE))?;
        let found = open(&image_path(dir, self.process, self.image)).ok();
        let offer = Offer::of(self.bytes, found.as_ref().map(|(_, offer)| *offer));
        let mut record = [0; OVERHEAD + OFFER];
        record[HEAD..HEAD + OFFER].copy_from_slice(&Offer::encode(offer));
        self.send_record(&mut record, false)?;
        let (Some((mut file, _)), Some(Offer { bytes, .. })) = (found, offer) else { return Ok(()) };
        let mut record = vec![0; OVERHEAD + RECORD.min(bytes as usize)];
        let mut left = bytes;
        while left > 0 {
            let body = left.min(RECORD as u64) as usize;
            file.read_exact(&mut record[HEAD..HEAD + body])?;
            self.send_record(&mut record[..OVERHEAD + body], false)?;
            left -= body as u64;
        }
        self.send_record(&mut record[..OVERHEAD], true)?;
        self.socket.shutdown(Shutdown::Write)
    }

    fn send_record(&mut self, record: &mut [u8], is_last: bool) -> io::Result<()> {
        self.sealer.seal(record, is_last);
        (&self.socket).write_all(record)
    }
}

/// The file of an image, its length, and the code beside it.
fn open(path: &Path) -> io::Result<(fs::File, Offer)> {
    let (file, code) = (open_image(path)?, verify::read_code(path).map_err(io::Error::other)?);
    let bytes = file.metadata()?.len();
    Ok((file, Offer { bytes, code }))
}

/// The threads that send images.
#[derive(Debug)]
pub struct Sending {
    dir: PathBuf,
    done: mpsc::Sender<Done>,
    waker: Waker,
    /// Each with its socket, so that it can be ended.
    running: HashMap<ConnectionNumber, (JoinHandle<()>, TcpStream)>,
}

impl Sending {
    pub fn new(dir: PathBuf, done: mpsc::Sender<Done>, waker: Waker) -> Self {
        Sending { dir, done, waker, running: HashMap::new() }
    }

    /// Sends an image. [`Done::Sent`] follows unless this fails.
    pub fn begin(&mut self, number: ConnectionNumber, sender: Sender) -> io::Result<()> {
        let socket = sender.socket.try_clone()?;
        let (dir, done, waker) = (self.dir.clone(), self.done.clone(), self.waker.clone());
        let thread = thread::Builder::new().name("logs send".into()).spawn(move || {
            // The receiver knows what became of it, and says so.
            _ = sender.send(&dir);
            _ = done.send(Done::Sent(number));
            waker.wake();
        })?;
        self.running.insert(number, (thread, socket));
        Ok(())
    }

    /// An image is sent, or its receiver gone.
    pub fn handle_sent(&mut self, number: ConnectionNumber) {
        // Its thread has nothing left to do.
        self.running.remove(&number).into_iter().for_each(|(thread, _)| _ = thread.join());
    }

    /// The service ends.
    pub fn end(&mut self) {
        for (_, (thread, socket)) in self.running.drain() {
            _ = socket.shutdown(Shutdown::Both);
            _ = thread.join();
        }
    }
}
