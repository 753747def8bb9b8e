//! An increment and its ancestors become one whole image. All images ascend, so each is read once, front to back; memory is bounded: one run
//! of each layer, one run that is being put together, the newest image's metadata.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::format::{Codec, FormatError, Header, MAX_RUN_BYTES, Run};
use super::meta::Meta;
use super::read::{ImageError, Reader, read_head};
use super::write::{ImageWriter, Sink};
use crate::trusted::{self, Owners, TrustError};

/// Most images that one restored process may come from: an increment, and 63 before it.
pub const MAX_LAYERS: usize = 64;
/// Most files of a folder that are looked at for ancestors.
const MAX_FILES: usize = 10_000;

/// One image of a chain, at one of its runs.
struct Layer<R> {
    reader: Reader<R>,
    /// Whether the first run was read. Before that only the beginning of the image need be here.
    is_begun: bool,
    run: Option<Run>,
    /// The run's memory, unpacked.
    memory: Vec<u8>,
}

impl<R: Read> Layer<R> {
    fn begin(input: R) -> Result<Self, ImageError> {
        Ok(Self { reader: Reader::begin(input)?, is_begun: false, run: None, memory: Vec::new() })
    }

    /// Goes forward to the first run that ends behind `addr`.
    fn skip_to(&mut self, addr: u64) -> Result<(), ImageError> {
        while !self.is_begun || self.run.is_some_and(|run| run.end() <= addr) {
            self.is_begun = true;
            self.run = self.reader.next_run(&mut self.memory)?;
        }
        Ok(())
    }
}

/// Consecutive pages of the merged memory, at most a run, all in one region.
struct Piece<'a> {
    addr: u64,
    len: usize,
    /// None: all bytes are zero.
    memory: Option<&'a [u8]>,
}

/// The newest image first, a whole one last.
struct Chain<R> {
    layers: Vec<Layer<R>>,
    /// Everything below is done.
    next: u64,
}

impl<R: Read> Chain<R> {
    fn begin(images: impl IntoIterator<Item = R>) -> Result<Self, ImageError> {
        let mut layers: Vec<Layer<R>> = Vec::new();
        for input in images {
            if layers.len() == MAX_LAYERS {
                return Err(FormatError::TooLong("the chain of increments").into());
            }
            let mut layer = Layer::begin(input)?;
            if let Some(child) = layers.last() {
                fits(&child.reader.header, &layer.reader.header)?;
                drop(layer.reader.take_metadata());
            }
            layers.push(layer);
        }
        match layers.last() {
            Some(oldest) if oldest.reader.header.parent == 0 => Ok(Self { layers, next: 0 }),
            _ => Err(FormatError::Invalid("it is an increment, and its parent is missing").into()),
        }
    }

    /// The next pages, from whichever layer has them; none at the end, when all layers have been read and found sound up to theirs.
    fn next_piece(&mut self) -> Result<Option<Piece<'_>>, ImageError> {
        self.layers[0].skip_to(self.next)?;
        let Some(mut run) = self.layers[0].run else {
            self.layers.iter_mut().try_for_each(|layer| layer.skip_to(u64::MAX))?;
            return Ok(None);
        };
        let addr = run.addr.max(self.next);
        let (mut depth, mut end) = (0, run.end());
        while run.codec == Codec::Kept {
            depth += 1;
            assert!(depth < self.layers.len(), "the oldest layer has no parent, and the reader lets no such image keep pages");
            self.layers[depth].skip_to(addr)?;
            let older = self.layers[depth].run.filter(|older| older.addr <= addr);
            run = older.ok_or(FormatError::Invalid("it keeps a page that its parent does not have"))?;
            end = end.min(run.end());
        }
        self.next = end;
        let (from, len) = ((addr - run.addr) as usize, (end - addr) as usize);
        let memory = &self.layers[depth].memory;
        Ok(Some(Piece { addr, len, memory: (run.codec != Codec::Zero).then(|| &memory[from..from + len]) }))
    }
}

fn fits(child: &Header, parent: &Header) -> Result<(), FormatError> {
    if child.parent != parent.id {
        return Err(FormatError::Invalid("it is an increment to another image than the one before it"));
    }
    if child.build != parent.build {
        return Err(FormatError::Invalid("it and its parent were written by different builds of the library"));
    }
    Ok(())
}

/// Puts small pieces together to runs of up to 1 MiB: restoring takes a system call for each.
struct Joiner<S> {
    writer: ImageWriter<S>,
    addr: u64,
    len: usize,
    zero: bool,
    memory: Vec<u8>,
    /// Where the region of the pieces ends: a run lies in one region.
    region_end: u64,
}

impl<S: Sink> Joiner<S> {
    fn add(&mut self, piece: &Piece<'_>, meta: &Meta) -> Result<(), S::Error> {
        let joins = self.len > 0
            && self.zero == piece.memory.is_none()
            && self.addr + self.len as u64 == piece.addr
            && piece.addr < self.region_end
            && self.len + piece.len <= MAX_RUN_BYTES;
        if !joins {
            self.flush()?;
            self.region_end = meta.region_of(piece.addr, 1).map_or(0, |region| region.end);
            // Not worth a copy.
            if let Some(memory) = piece.memory.filter(|_| piece.len > MAX_RUN_BYTES / 2) {
                return self.writer.raw(piece.addr, memory);
            }
            (self.addr, self.zero) = (piece.addr, piece.memory.is_none());
        }
        self.memory.extend_from_slice(piece.memory.unwrap_or_default());
        self.len += piece.len;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), S::Error> {
        let (addr, len) = (self.addr, std::mem::take(&mut self.len));
        match (len, self.zero) {
            (0, _) => {}
            (_, true) => self.writer.zero(addr, len)?,
            (_, false) => self.writer.raw(addr, &self.memory)?,
        }
        self.memory.clear();
        Ok(())
    }
}

/// What a merged image is.
#[derive(Debug)]
pub struct Merged {
    /// Its header: that of the newest image, without a parent.
    pub header: Header,
    /// Its metadata: that of the newest image.
    pub meta: Meta,
    /// Bytes of the whole stream.
    pub bytes: u64,
}

/// An image and its ancestors that are about to become a whole image without packed runs: what the restorer reads. A whole image alone is unpacked.
pub struct Merge<R> {
    chain: Chain<R>,
    header: Header,
    /// As it is stored.
    metadata: Vec<u8>,
}

impl<R: Read> Merge<R> {
    /// Reads the headers and metadata, the newest image first, and checks that each image is an increment to the one after it. The rest may still be on its
    /// way.
    pub fn begin(images: impl IntoIterator<Item = R>) -> Result<Self, ImageError> {
        let mut chain = Chain::begin(images)?;
        let newest = &mut chain.layers[0].reader;
        let (header, metadata) = (Header { parent: 0, ..newest.header }, newest.take_metadata());
        Ok(Self { chain, header, metadata })
    }

    /// The metadata of the newest image, which is that of the whole one.
    pub fn meta(&self) -> &Meta {
        &self.chain.layers[0].reader.meta
    }

    /// Writes the whole image. It is valid only if this succeeds: all images are checked up to their end before the end record is written. (An
    /// ancestor that keeps a page which its own parent lacks is found out only if the newest image comes to need that page.)
    pub fn write(mut self, sink: impl Sink<Error = io::Error>) -> Result<Merged, ImageError> {
        let meta = self.meta().clone();
        let writer = ImageWriter::begin(sink, self.header, &self.metadata).map_err(ImageError::Write)?;
        let mut joiner = Joiner { writer, addr: 0, len: 0, zero: false, memory: Vec::new(), region_end: 0 };
        while let Some(piece) = self.chain.next_piece()? {
            joiner.add(&piece, &meta).map_err(ImageError::Write)?;
        }
        joiner.flush().map_err(ImageError::Write)?;
        let (_, bytes) = joiner.writer.finish().map_err(ImageError::Write)?;
        Ok(Merged { header: self.header, meta, bytes })
    }
}

/// Merges an image with its ancestors, newest first, as [`Merge`] does.
pub fn merge<R: Read>(images: impl IntoIterator<Item = R>, sink: impl Sink<Error = io::Error>) -> Result<Merged, ImageError> {
    Merge::begin(images)?.write(sink)
}

/// Why the ancestors of an image cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum AncestorError {
    /// One is not there.
    #[error(
        "image {child:016x} is an increment to image {id:016x}, which is not among the {looked_at} images {place}: bring it there, or name it \
         with `radic ckpt merge --parent`"
    )]
    Missing {
        /// The one that is missing.
        id: u64,
        /// The image that needs it.
        child: u64,
        /// How many images were looked at.
        looked_at: usize,
        /// Where.
        place: String,
    },
    /// There are too many, or they go round in circles.
    #[error("image {0:016x} has more than {max} ancestors: the images are damaged or hostile", max = MAX_LAYERS - 1)]
    TooMany(u64),
    /// The folder has too many files.
    #[error("{0} holds more than {MAX_FILES} files: name the parents one by one, or move the images to a folder of their own")]
    Crowded(PathBuf),
    /// It is there, and another user decides what is in it.
    #[error("image {child:016x} is an increment to image {id:016x}, and {reason}")]
    Untrusted {
        /// The one that is not trusted.
        id: u64,
        /// The image that needs it.
        child: u64,
        /// Why.
        reason: TrustError,
    },
    /// A file that is said to be an image is not trusted.
    #[error(transparent)]
    Named(TrustError),
    /// A file that is said to be an image cannot be read, or is none.
    #[error("{0}: {1}")]
    Unreadable(PathBuf, ImageError),
}

/// Images among which the ancestors of another are looked for: by the ids in their headers, whatever their names.
#[derive(Debug)]
pub struct Candidates {
    by_id: HashMap<u64, (PathBuf, Header)>,
    /// Files that are not trusted, and say that they are these.
    refused: HashMap<u64, PathBuf>,
    place: String,
}

impl Candidates {
    fn none(place: String) -> Self {
        Self { by_id: HashMap::new(), refused: HashMap::new(), place }
    }

    /// The images in a folder. Whatever else is there is ignored, what other users have put there, too: it may say anything of itself.
    pub fn in_folder(folder: &Path, owners: Owners) -> Result<Self, AncestorError> {
        let failed = |error: io::Error| AncestorError::Unreadable(folder.to_owned(), ImageError::Io(error));
        let mut found = Self::none(format!("in {}", folder.display()));
        for (number, entry) in fs::read_dir(folder).map_err(failed)?.enumerate() {
            if number == MAX_FILES {
                return Err(AncestorError::Crowded(folder.to_owned()));
            }
            let entry = entry.map_err(failed)?;
            let path = if folder == Path::new(".") { entry.file_name().into() } else { entry.path() };
            // Nothing is to be hoped from one that is just being written.
            if path.extension().is_none_or(|extension| extension != "partial") {
                found.look(path, owners);
            }
        }
        Ok(found)
    }

    /// These files; each must be an image.
    pub fn files(paths: &[PathBuf], owners: Owners) -> Result<Self, AncestorError> {
        let mut found = Self::none("that were named".into());
        for path in paths {
            let file = trusted::open(path, owners).map_err(AncestorError::Named)?;
            let header = header_of(&file).map_err(|error| AncestorError::Unreadable(path.clone(), error))?;
            found.add(path.clone(), header);
        }
        Ok(found)
    }

    /// A file that may be an image.
    fn look(&mut self, path: PathBuf, owners: Owners) {
        match trusted::open(&path, owners) {
            Ok(file) => {
                if let Ok(header) = header_of(&file) {
                    self.add(path, header);
                }
            }
            Err(TrustError::Io { .. }) => {}
            // For the error, should there be no other.
            Err(_) => {
                if let Ok(header) = read_header(&path) {
                    self.refused.insert(header.id, path);
                }
            }
        }
    }

    /// Of several files with the same image a whole one is taken, else the first by name: the same one every time.
    fn add(&mut self, path: PathBuf, header: Header) {
        let known = self.by_id.entry(header.id).or_insert_with(|| (path.clone(), header));
        if (header.parent != 0, &path) < (known.1.parent != 0, &known.0) {
            *known = (path, header);
        }
    }

    /// The ancestors of an image: its parent first, a whole image last. None for a whole image.
    pub fn ancestors(&self, image: &Header) -> Result<Vec<PathBuf>, AncestorError> {
        let (mut paths, mut child) = (Vec::new(), *image);
        while child.parent != 0 {
            if paths.len() == MAX_LAYERS - 1 {
                return Err(AncestorError::TooMany(image.id));
            }
            let Some((path, header)) = self.by_id.get(&child.parent) else { return Err(self.missing(child)) };
            paths.push(path.clone());
            child = *header;
        }
        Ok(paths)
    }

    fn missing(&self, Header { id: child, parent: id, .. }: Header) -> AncestorError {
        match self.refused.get(&id).and_then(|path| trusted::open(path, Owners::Trusted).err()) {
            Some(reason) => AncestorError::Untrusted { id, child, reason },
            None => AncestorError::Missing { id, child, looked_at: self.by_id.len(), place: self.place.clone() },
        }
    }
}

/// The header of an image in a file, checked; nothing behind it is looked at.
pub fn read_header(path: &Path) -> Result<Header, ImageError> {
    // A pipe would wait for its other end.
    header_of(&File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(ImageError::Io)?)
}

/// The same of an open file, at its beginning.
pub fn header_of(mut file: &File) -> Result<Header, ImageError> {
    if !file.metadata().map_err(ImageError::Io)?.is_file() {
        return Err(FormatError::NotAnImage.into());
    }
    Ok(Header::decode(&read_head(&mut file)?)?)
}
