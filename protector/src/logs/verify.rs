//! Verification of images, on a thread of its own: it may take seconds, and a gate must not wait for it.
//!
//! An image that is whole and undamaged gets a code ([`Purpose::Image`]) over its process, its number and all its bytes, with a
//! key that no process has ([`JobKey::derive_for_nodes`]). A restart checks it: [`open_verified`].

use std::fs;
use std::io::{self, BufRead, Read, Seek};
use std::path::Path;
use std::sync::mpsc;

use radic_ckpt::image;
use radic_wire::ids::ProcessId;
use radic_wire::key::ClusterKey;
use radic_wire::mac::{Code, JobKey, MAC, Purpose};

use super::files::{ImagePlace, image_path};
use super::waker::Waker;
use crate::fetching::WRONG_CODE;
use crate::folder::Folder;
use crate::logserver::Verification;
use crate::watched::Watched;

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// Why an image is not what a restart may use.
#[derive(Debug, thiserror::Error)]
pub enum BadImage {
    /// It is not whole, or damaged.
    #[error("{0}")]
    Image(#[from] image::ImageError),
    /// It builds upon another image than it was said to.
    #[error("it builds upon image id {parent:016x}, and that is not the image it was announced to build upon")]
    Parent {
        /// What its header says; 0: none.
        parent: u64,
    },
    /// The files could not be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Its code is not there or not that of these bytes.
    #[error("{}", WRONG_CODE)]
    Code,
}

/// An image that is to be verified.
#[derive(Debug)]
pub struct Task(pub Verification);

/// What came of it: its length in bytes, or what is wrong.
#[derive(Debug)]
pub struct Verdict {
    pub of: Verification,
    pub result: Result<u64, BadImage>,
}

/// Verifies images until `tasks` ends. At most one image of a process is under way, so neither queue grows beyond their number.
pub fn run(
    store: &Folder,
    key: &ClusterKey,
    durable: bool,
    tasks: mpsc::Receiver<Task>,
    verdicts: mpsc::Sender<Verdict>,
    (waker, watched): (Waker, &Watched),
) {
    for Task(of) in tasks {
        let key = JobKey::derive_for_nodes(key, of.process.job);
        let path = image_path(store.path(), of.process, of.image);
        let result = watched.during("verification of", &path, || verify(store, &of, &key, durable, watched));
        if verdicts.send(Verdict { of, result }).is_err() {
            return;
        }
        waker.wake();
    }
}

fn verify(store: &Folder, of: &Verification, key: &JobKey, durable: bool, watched: &Watched) -> Result<u64, BadImage> {
    let Verification { process, image: number, parent, bytes, .. } = *of;
    let place = ImagePlace::of(store, process, number)?;
    let file = place.open()?;
    if file.metadata()?.len() > bytes {
        place.end_at(bytes, durable)?;
    }
    let mut input = Coded { input: file, code: begin(key, process, number), bytes: 0, watched };
    let mut reader = io::BufReader::with_capacity(PIECE, &mut input);
    let (header, _) = image::verify(&mut reader)?;
    // The code is over all of the file, so all of it must be the image.
    if !reader.fill_buf()?.is_empty() {
        return Err(image::ImageError::from(image::FormatError::Invalid("bytes follow its end")).into());
    }
    let id_of = |parent: u64| -> Result<u64, BadImage> {
        Ok(image::chain::header_of(&ImagePlace::of(store, process, parent)?.open()?)?.id)
    };
    if header.parent != parent.map(id_of).transpose()?.unwrap_or(0) {
        return Err(BadImage::Parent { parent: header.parent });
    }
    place.write_code(&input.code.finish(), durable)?;
    Ok(input.bytes)
}

/// Opens an image, the file `path`, and checks the code of what it has opened (`path` with `.mac`). The file is at its beginning, and stays what it is whatever becomes
/// of its name.
pub fn open_verified(path: &Path, key: &JobKey, process: ProcessId, image: u64) -> Result<fs::File, BadImage> {
    read_verified(&ImagePlace::at(path)?, key, process, image, &Watched::default(), |_| Ok(()))
}

/// The same of an image at its place; meanwhile `see` gets the bytes, of which it is not known yet whether they are the image.
pub fn read_verified(
    place: &ImagePlace,
    key: &JobKey,
    process: ProcessId,
    image: u64,
    watched: &Watched,
    mut see: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<fs::File, BadImage> {
    let stored = read_code(place)?;
    let mut input = Coded { input: place.open()?, code: begin(key, process, image), bytes: 0, watched };
    let mut piece = vec![0; PIECE];
    loop {
        match input.read(&mut piece)? {
            0 => break,
            count => see(&piece[..count])?,
        }
    }
    if input.code.finish() != stored {
        return Err(BadImage::Code);
    }
    input.input.rewind()?;
    Ok(input.input)
}

/// The code beside an image.
pub fn read_code(image: &ImagePlace) -> Result<[u8; MAC], BadImage> {
    let mut stored = Vec::new();
    let code = image.read_code().map_err(|_| BadImage::Code)?;
    code.take(MAC as u64 + 1).read_to_end(&mut stored)?;
    stored.try_into().map_err(|_| BadImage::Code)
}

/// The code of an image, before its bytes.
pub fn begin(key: &JobKey, process: ProcessId, image: u64) -> Code {
    let mut code = key.begin(Purpose::Image);
    code.update(&process.rank.0.to_le_bytes());
    code.update(&image.to_le_bytes());
    code
}

/// Codes what is read, and says that it goes on.
struct Coded<'a> {
    input: fs::File,
    code: Code,
    bytes: u64,
    watched: &'a Watched,
}

impl Read for Coded<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = self.input.read(out)?;
        self.watched.goes_on();
        self.code.update(&out[..length]);
        self.bytes += length as u64;
        Ok(length)
    }
}
