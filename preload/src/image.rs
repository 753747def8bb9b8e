//! What the images of this process need: what they are sealed with on their way, and whether the process has come back from one.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use radic_ckpt::Through;
use radic_observer::session::images::{self};
use radic_wire::determinant::StreamId;
use radic_wire::limits;
use radic_wire::mac::SECRET_ALIGN;
use radic_wire::record::{HEAD, OVERHEAD, RECORD, Sealer};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::sys;

/// This process has come back from an image and the layer does not know yet.
static RESTORED: AtomicBool = AtomicBool::new(false);

/// A record in the making. It lies where secrets do: no image has it, for it changes while one is written.
#[repr(align(1024))]
struct Record {
    bytes: [u8; OVERHEAD + RECORD],
    /// Of them, in the body.
    filled: usize,
}

const _: () = assert!(align_of::<Record>() == SECRET_ALIGN);

/// What an image is sealed with on its way. The child that writes the image changes only its own copy: this is in the image.
pub(crate) struct Sealing {
    sealer: Option<Sealer>,
    record: Box<Record>,
}

impl std::fmt::Debug for Sealing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealing({:?}, {} bytes)", self.sealer, self.record.filled)
    }
}

impl Sealing {
    fn new() -> Box<Self> {
        Box::new(Sealing { sealer: None, record: Box::new(Record { bytes: [0; OVERHEAD + RECORD], filled: 0 }) })
    }

    /// A new image begins, which is sealed with this.
    pub(crate) fn begin(&mut self, sealer: Sealer) {
        (self.sealer, self.record.filled) = (Some(sealer), 0);
    }

    /// More of the image, which goes to `fd`.
    fn put(&mut self, fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            let record = &mut *self.record;
            let (now, later) = bytes.split_at(bytes.len().min(RECORD - record.filled));
            record.bytes[HEAD + record.filled..][..now.len()].copy_from_slice(now);
            record.filled += now.len();
            bytes = later;
            if record.filled == RECORD {
                self.write(fd, false)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, fd: BorrowedFd<'_>, is_last: bool) -> Result<(), Errno> {
        let filled = std::mem::take(&mut self.record.filled);
        let record = &mut self.record.bytes[..OVERHEAD + filled];
        self.sealer.as_mut().ok_or(Errno::PROTO)?.seal(record, is_last);
        let mut left = &*record;
        while !left.is_empty() {
            match rustix::net::send(fd, left, SendFlags::NOSIGNAL) {
                Ok(count) => left = &left[count..],
                Err(Errno::INTR) => {}
                // Also if the protector takes nothing for so long as the socket allows.
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What the engine is to call for each piece of the image.
    pub(crate) fn through(&mut self) -> Through {
        let context = (&raw mut *self).expose_provenance() as u64;
        Through { context, write: put_sealed, end: end_sealed }
    }
}

/// Runs where the image is written: no allocation, no libc.
fn put_sealed(context: u64, fd: i32, head: &[u8], tail: &[u8]) -> Result<(), i32> {
    let sealing = sealing(context);
    let fd = sys::borrow(fd);
    sealing.put(fd, head).and_then(|()| sealing.put(fd, tail)).map_err(Errno::raw_os_error)
}

/// The same at its end.
fn end_sealed(context: u64, fd: i32) -> Result<(), i32> {
    sealing(context).write(sys::borrow(fd), true).map_err(Errno::raw_os_error)
}

#[allow(unsafe_code)]
fn sealing(context: u64) -> &'static mut Sealing {
    // SAFETY: `Images` has it as long as the process lives, and gives it to no other image before the engine has said that no child writes this one any more.
    unsafe { &mut *std::ptr::with_exposed_provenance_mut(context as usize) }
}

/// The images of this process: what decides about them, and what making one needs.
#[derive(Debug)]
pub(crate) struct Images {
    /// What the next image is sealed with, and the last one, which a child may write still.
    pub(crate) sealings: [Box<Sealing>; 2],
    /// The streams of a cut, to be filled without allocating.
    pub(crate) streams: Vec<(StreamId, u64)>,
    pub(crate) ended: Vec<(StreamId, u64)>,
    /// The connection on which the image is written.
    pub(crate) connection: Option<OwnedFd>,
    /// Decides when an image begins, which image it builds on, and what the node is told.
    pub(crate) machine: images::Images,
}

impl Images {
    /// No image yet; at most this many connections.
    pub(crate) fn new(connections: usize) -> Self {
        let most = connections.min(limits::CUT_STREAMS);
        Images {
            sealings: [Sealing::new(), Sealing::new()],
            streams: Vec::with_capacity(most),
            ended: Vec::with_capacity(most),
            connection: None,
            machine: images::Images::default(),
        }
    }

    /// The process has come back from an image: what was under way was another incarnation's.
    pub(crate) fn handle_restored(&mut self) {
        if let Some(connection) = self.connection.take() {
            sys::close_own(connection);
        }
        self.machine.handle_restored();
    }
}

/// Whether this process has come back from an image and the layer does not know yet.
pub(crate) fn is_restored() -> bool {
    RESTORED.load(Ordering::Relaxed)
}

/// This process has come back from an image.
pub(crate) fn note_restored() {
    RESTORED.store(true, Ordering::Relaxed);
}

/// Whether this process has come back from an image, once.
pub(crate) fn take_restored() -> bool {
    RESTORED.load(Ordering::Relaxed) && RESTORED.swap(false, Ordering::Relaxed)
}
