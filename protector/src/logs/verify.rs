//! Verification of images, on a thread of its own: it may take seconds, and a gate must not wait for it.
//!
//! An image that is whole and undamaged gets a code ([`Purpose::Image`]) over its process, its number and all its bytes, with a
//! key that no process has ([`JobKey::derive_for_nodes`]). A restart checks it: [`open_verified`].

use std::fs;
use std::io::{self, BufRead, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc;

use radic_ckpt::image;
use radic_wire::ids::ProcessId;
use radic_wire::key::ClusterKey;
use radic_wire::mac::{Code, JobKey, MAC, Purpose};

use super::disk::Waker;
use super::files::{code_path, image_path, open_image};
use crate::fetching::WRONG_CODE;
use crate::logserver::Verification;

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
    dir: &Path,
    key: &ClusterKey,
    durable: bool,
    tasks: mpsc::Receiver<Task>,
    verdicts: mpsc::Sender<Verdict>,
    waker: Waker,
) {
    for Task(of) in tasks {
        let Verification { process, parent, .. } = of;
        let key = JobKey::derive_for_nodes(key, process.job);
        let parent = parent.map(|parent| image_path(dir, process, parent));
        let result = verify(dir, &of, parent.as_deref(), &key, durable);
        if verdicts.send(Verdict { of, result }).is_err() {
            return;
        }
        waker.wake();
    }
}

fn verify(dir: &Path, of: &Verification, parent: Option<&Path>, key: &JobKey, durable: bool) -> Result<u64, BadImage> {
    let Verification { process, image: number, bytes, .. } = *of;
    let path = &image_path(dir, process, number);
    let file = open_image(path)?;
    if file.metadata()?.len() > bytes {
        end_at(path, bytes, durable)?;
    }
    let mut input = Coded { input: file, code: begin(key, process, number), bytes: 0 };
    let mut reader = io::BufReader::with_capacity(PIECE, &mut input);
    let (header, _) = image::verify(&mut reader)?;
    // The code is over all of the file, so all of it must be the image.
    if !reader.fill_buf()?.is_empty() {
        return Err(image::ImageError::from(image::FormatError::Invalid("bytes follow its end")).into());
    }
    let expected = parent.map(image::chain::read_header).transpose()?.map_or(0, |parent| parent.id);
    if header.parent != expected {
        return Err(BadImage::Parent { parent: header.parent });
    }
    write_code(&code_path(path), &input.code.finish(), durable)?;
    Ok(input.bytes)
}

/// The file was another image's, and a longer one.
fn end_at(path: &Path, bytes: u64, durable: bool) -> io::Result<()> {
    let file = fs::File::options().write(true).open(path)?;
    file.set_len(bytes)?;
    if durable { file.sync_all() } else { Ok(()) }
}

/// Opens an image, the file `path`, and checks the code of what it has opened (`path` with `.mac`). The file is at its beginning, and stays what it is whatever becomes
/// of its name.
pub fn open_verified(path: &Path, key: &JobKey, process: ProcessId, image: u64) -> Result<fs::File, BadImage> {
    read_verified(path, key, process, image, |_| Ok(()))
}

/// The same; meanwhile `see` gets the bytes, of which it is not known yet whether they are the image.
pub fn read_verified(
    path: &Path,
    key: &JobKey,
    process: ProcessId,
    image: u64,
    mut see: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<fs::File, BadImage> {
    let stored = read_code(path)?;
    let mut input = Coded { input: open_image(path)?, code: begin(key, process, image), bytes: 0 };
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
pub fn read_code(image: &Path) -> Result<[u8; MAC], BadImage> {
    let mut stored = Vec::new();
    let code = fs::File::open(code_path(image)).map_err(|_| BadImage::Code)?;
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

/// Codes what is read.
struct Coded {
    input: fs::File,
    code: Code,
    bytes: u64,
}

impl Read for Coded {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = self.input.read(out)?;
        self.code.update(&out[..length]);
        self.bytes += length as u64;
        Ok(length)
    }
}

fn write_code(path: &Path, code: &[u8; MAC], durable: bool) -> io::Result<()> {
    let mut file = fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(code)?;
    if durable {
        file.sync_all()?;
        path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())?;
    }
    Ok(())
}
