//! How an image gets from its process to a file.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use serde::Serialize;

use super::error::{ControlError, failed};
use super::whole::Progress;

/// What was saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Saved {
    /// Size of the image in bytes.
    pub bytes: u64,
    /// Names the image.
    #[serde(serialize_with = "crate::image::as_hexadecimal")]
    pub id: u64,
    /// The image it is an increment to; 0: it is whole.
    #[serde(serialize_with = "crate::image::as_hexadecimal")]
    pub parent: u64,
    /// What will not be as it was, in words.
    pub notes: Vec<String>,
}

/// Verifies an image while it is written to a file.
pub(super) fn receive(image: impl Read, file: &File, progress: Progress<'_>) -> Result<Saved, ControlError> {
    let mut copier = Copier { from: image, to: file, bytes: 0, error: None, progress };
    let mut input = BufReader::with_capacity(COPIED_AT_ONCE, &mut copier);
    let result = crate::image::verify(&mut input);
    if let Some(error) = copier.error {
        return Err(failed("the image cannot be written")(error));
    }
    let (header, meta) = result?;
    Ok(Saved { bytes: copier.bytes, id: header.id, parent: header.parent, notes: meta.notes })
}

/// Bytes of an image that are read from its process with one call.
const COPIED_AT_ONCE: usize = 1 << 20;

/// Whatever is read from `from` is written to `to`.
struct Copier<'a, R> {
    from: R,
    to: &'a File,
    bytes: u64,
    /// Why it could not be written.
    error: Option<io::Error>,
    progress: Progress<'a>,
}

impl<R: Read> Read for Copier<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.from.read(buffer)?;
        if let Err(error) = self.to.write_all(&buffer[..len]) {
            self.error = Some(error);
            return Err(io::ErrorKind::Other.into());
        }
        self.bytes += len as u64;
        (self.progress)(self.bytes, None);
        Ok(len)
    }
}
