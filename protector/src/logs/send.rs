//! Sending whole images to nodes that bring processes back: a thread for each image that is being sent. Which ones are is decided
//! by the log server.
//!
//! An image that is being sent is an open file: a commit that deletes its name takes nothing away. The receiver checks its code
//! over what it has received, so it is not read twice for that.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use radic_wire::ids::ProcessId;
use radic_wire::login::OFFER;
use radic_wire::record::{HEAD, OVERHEAD, RECORD, Sealer};

use super::disk::Done;
use super::files::ImagePlace;
use super::verify;
use super::waker::Waker;
use crate::fetching::{Offer, SILENCE};
use crate::folder::Folder;
use crate::logserver::ConnectionNumber;
use crate::watched::{Thread, Watched, end_all};

/// Time that a thread which has sent its image, or cannot, has to end.
const END: Duration = Duration::from_secs(1);

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
    fn send(mut self, store: &Folder, watched: &Watched) -> io::Result<()> {
        self.socket.set_nonblocking(false)?;
        self.socket.set_write_timeout(Some(SILENCE))?;
        let place = watched.during("image in", store.path(), || ImagePlace::of(store, self.process, self.image));
        let path = place.as_ref().map(ImagePlace::path).unwrap_or_default();
        let found = place.and_then(|place| watched.during("read of", &path, || open(&place))).ok();
        let offer = Offer::of(self.bytes, found.as_ref().map(|(_, offer)| *offer));
        let mut record = [0; OVERHEAD + OFFER];
        record[HEAD..HEAD + OFFER].copy_from_slice(&Offer::encode(offer));
        self.send_record(&mut record, false)?;
        let (Some((mut file, _)), Some(Offer { bytes, .. })) = (found, offer) else { return Ok(()) };
        let mut record = vec![0; OVERHEAD + RECORD.min(bytes as usize)];
        let mut left = bytes;
        while left > 0 {
            let body = left.min(RECORD as u64) as usize;
            watched.during("read of", &path, || file.read_exact(&mut record[HEAD..HEAD + body]))?;
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
fn open(place: &ImagePlace) -> io::Result<(fs::File, Offer)> {
    let (file, code) = (place.open()?, verify::read_code(place).map_err(io::Error::other)?);
    let bytes = file.metadata()?.len();
    Ok((file, Offer { bytes, code }))
}

/// The threads that send images.
#[derive(Debug)]
pub struct Sending {
    store: Arc<Folder>,
    done: mpsc::Sender<Done>,
    waker: Waker,
    /// Each with its socket, so that it can be ended.
    running: HashMap<ConnectionNumber, (Thread, TcpStream)>,
}

impl Sending {
    pub fn new(store: Arc<Folder>, done: mpsc::Sender<Done>, waker: Waker) -> Self {
        Sending { store, done, waker, running: HashMap::new() }
    }

    /// Sends an image. [`Done::Sent`] follows unless this fails.
    pub fn begin(&mut self, number: ConnectionNumber, sender: Sender) -> io::Result<()> {
        let socket = sender.socket.try_clone()?;
        let (store, done, waker) = (self.store.clone(), self.done.clone(), self.waker.clone());
        let thread = Thread::start("logs send", move |watched| {
            // The receiver knows what became of it, and says so.
            _ = sender.send(&store, watched);
            _ = done.send(Done::Sent(number));
            waker.wake();
        })?;
        self.running.insert(number, (thread, socket));
        Ok(())
    }

    /// An image is sent, or its receiver gone.
    pub fn handle_sent(&mut self, number: ConnectionNumber) {
        // Its thread has nothing left to do.
        self.running.remove(&number).into_iter().for_each(|(thread, _)| _ = thread.end(Instant::now() + END));
    }

    /// The service ends.
    pub fn end(&mut self) {
        self.running.values().for_each(|(_, socket)| _ = socket.shutdown(Shutdown::Both));
        end_all(self.running.drain().map(|(_, (thread, _))| thread), END);
    }
}
