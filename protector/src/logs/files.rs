//! The files of the store: names, segments, and the directory's owner.
//!
//! `DIR/<job>/<rank>/journal.<position>`, `stream.<opener's job>.<opener's rank>.<number>.<from|to>.<position>`,
//! `image.<number>`, and beside each verified image `image.<number>.mac`. Logs are cut into segments of [`SEGMENT`] bytes, so
//! that forgetting the beginning of one deletes files; the position in the name (16 hexadecimal digits) is that of the segment's
//! first byte. A log need not begin where its first segment does.
//!
//! What is read of a log is what was written, or an error: its sums are in memory ([`Sums`]). Images have codes of their own.
//!
//! The file of an image that is not needed any more is set aside, as `spare.<number>`, and the next image of its process is written over it: the kernel has its memory and its blocks
//! already, and new ones cost several times as much as the copy (most of all on a virtual machine, which gives freed memory back to its host). A file that is being read is not
//! used again: a reader holds a shared lock on it ([`ImagePlace::open`]).
//!
//! All of it is reached from the descriptor of the store's folder, through no link, and nothing is written to what this service
//! has not made ([`crate::folder`]).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{Flock, FlockArg};
use radic_wire::ids::{JobId, ProcessId};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::types::StartError;
use crate::folder::{Folder, FolderError};
use crate::store::{File, Write};

/// Bytes of a segment of a log.
const SEGMENT: u64 = 16 << 20;
/// Bytes of a log that have one sum.
const PIECE: u64 = 64 << 10;
/// Files that are open at once, and folders; more are opened again.
const OPEN: usize = 512;
/// Files of images of one process that are set aside, the longest: a whole image and its increments are deleted together.
const SPARES: usize = 3;
const LOCK: &str = "lock";

/// The directory of a process.
pub fn process_dir(dir: &Path, process: ProcessId) -> PathBuf {
    dir.join(process.job.to_string()).join(process.rank.to_string())
}

/// The file of an image.
pub fn image_path(dir: &Path, process: ProcessId, image: u64) -> PathBuf {
    process_dir(dir, process).join(image_name(image))
}

fn image_name(image: u64) -> String {
    format!("image.{image}")
}

/// The name of the code of an image with this name.
fn code_name(image: &str) -> String {
    format!("{image}.mac")
}

/// Where an image is: its process's folder, and its name there.
#[derive(Debug)]
pub struct ImagePlace {
    folder: Folder,
    name: String,
}

impl ImagePlace {
    /// That of an image in this store.
    pub fn of(store: &Folder, process: ProcessId, image: u64) -> io::Result<Self> {
        let folder = store.subfolder_there(&process.job.to_string())?.subfolder_there(&process.rank.to_string())?;
        Ok(ImagePlace { folder, name: image_name(image) })
    }

    /// That of a file.
    pub fn at(path: &Path) -> io::Result<Self> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        Ok(ImagePlace { folder: Folder::open(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?, name })
    }

    /// Its path, for people.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    /// Opens the image to read it. What is opened stays what it is until it is closed.
    pub fn open(&self) -> io::Result<fs::File> {
        let file = self.folder.read(&self.name)?;
        // Where files cannot be locked none is set aside.
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK) {
            return Err(io::ErrorKind::NotFound.into());
        }
        // It may have been set aside before it was locked.
        if self.folder.is_named(&self.name, &file) { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Ends the image there: its file was another one's, and a longer one.
    pub fn end_at(&self, bytes: u64, durable: bool) -> io::Result<()> {
        let file = self.folder.update(&self.name)?;
        file.set_len(bytes)?;
        if durable { file.sync_all() } else { Ok(()) }
    }

    /// Opens the code beside it.
    pub fn read_code(&self) -> io::Result<fs::File> {
        Ok(self.folder.read(&code_name(&self.name))?)
    }

    /// Puts its code beside it.
    pub fn write_code(&self, code: &[u8], durable: bool) -> io::Result<()> {
        let mut file = self.folder.replace(&code_name(&self.name))?;
        io::Write::write_all(&mut file, code)?;
        if durable {
            file.sync_all()?;
            self.folder.sync()?;
        }
        Ok(())
    }
}

/// The name of a file, or of its segment, in the folder of its process.
fn name(file: File, segment: u64) -> String {
    match file {
        File::Journal(_) => format!("journal.{segment:016x}"),
        File::Stream(_, stream) => {
            let (opener, number) = (stream.connection.opener, stream.connection.number);
            let direction = if stream.from_opener { "from" } else { "to" };
            format!("stream.{}.{}.{number}.{direction}.{segment:016x}", opener.job, opener.rank)
        }
        File::Image(_, number) => image_name(number),
    }
}

/// Takes possession of a store. What an earlier daemon left there is removed: it is not needed, because a daemon that comes back
/// is another member.
pub fn take(store: &Folder) -> Result<Flock<fs::File>, StartError> {
    let failed = |what: &str, error: FolderError| StartError::System {
        what: format!("{what} {}", store.path().display()),
        error: error.into(),
    };
    let lock = store.append(LOCK).map_err(|error| failed("cannot write in the store", error))?;
    let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|_| StartError::InUse(store.path().to_owned()))?;
    for name in store.names().map_err(|error| failed("cannot read the store", error))? {
        if name.parse::<JobId>().is_ok() {
            store.remove_all(&name).map_err(|error| failed("cannot clear the store", error))?;
        }
    }
    Ok(lock)
}

/// The sums of what was written of a segment, by pieces.
#[derive(Default)]
struct Sums {
    /// Each from its position in the segment to its end, with its sum.
    pieces: Vec<(u64, u64, u64)>,
    /// Of the last piece, which grows.
    growing: Xxh3,
}

impl fmt::Debug for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sums", self.pieces.len())
    }
}

impl Sums {
    /// These bytes were written at this place. What was there before is the same: a log is written again only as it was.
    fn add(&mut self, at: u64, bytes: &[u8]) {
        let end = self.pieces.last().map_or(at, |(_, end, _)| *end);
        let mut bytes = bytes.get(usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX)..).unwrap_or(&[]);
        let mut at = at.max(end);
        while !bytes.is_empty() {
            if self.pieces.last().is_none_or(|(start, end, _)| *end != at || end - start >= PIECE) {
                self.growing.reset();
                self.pieces.push((at, at, 0));
            }
            let Some((start, end, sum)) = self.pieces.last_mut() else { return };
            let (now, later) = bytes.split_at(bytes.len().min((PIECE - (*end - *start)) as usize));
            self.growing.update(now);
            (*end, *sum) = (*end + now.len() as u64, self.growing.digest());
            (at, bytes) = (*end, later);
        }
    }

    /// Reads from the file of the segment, if it has there what was written.
    fn read(&self, file: &fs::File, at: u64, out: &mut [u8]) -> io::Result<()> {
        let (mut position, to) = (at, at + out.len() as u64);
        let first = self.pieces.partition_point(|(_, end, _)| *end <= at);
        for (start, end, sum) in self.pieces[first..].iter().take_while(|(start, ..)| *start < to) {
            let mut piece = vec![0; (end - start) as usize];
            file.read_exact_at(&mut piece, *start)?;
            if xxh3_64(&piece) != *sum {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the file has not what was written"));
            }
            if *start > position {
                break;
            }
            let upto = (*end).min(to);
            out[(position - at) as usize..(upto - at) as usize]
                .copy_from_slice(&piece[(position - start) as usize..(upto - start) as usize]);
            position = upto;
        }
        if position == to { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// The open files, and which segments there are.
#[derive(Debug)]
pub struct Files {
    store: Arc<Folder>,
    durable: bool,
    /// Of processes.
    folders: HashMap<ProcessId, Folder>,
    open: HashMap<(File, u64), fs::File>,
    segments: HashMap<File, BTreeMap<u64, Sums>>,
    /// Written since the last [`Files::sync`].
    touched: HashSet<(File, u64)>,
    /// The files that are set aside, with their lengths, the longest last: that is the next one to be used.
    spares: HashMap<ProcessId, Vec<(u64, String)>>,
    /// The number of the next one.
    next_spare: u64,
}

impl Files {
    pub fn new(store: Arc<Folder>, durable: bool) -> Self {
        let (folders, open, segments, touched, spares) = Default::default();
        Files { store, durable, folders, open, segments, touched, spares, next_spare: 0 }
    }

    /// Where the files are, for people.
    pub fn path(&self) -> &Path {
        self.store.path()
    }

    /// Where the segment of a position is, for people.
    pub fn path_of(&self, file: File, position: u64) -> PathBuf {
        process_dir(self.store.path(), file.process()).join(name(file, Self::place(file, position).0))
    }

    /// The folder of a process, which is made if need be.
    fn folder(&mut self, process: ProcessId) -> Result<&Folder, FolderError> {
        self.folder_by(process, Folder::subfolder)
    }

    /// The same, which must be there.
    fn folder_there(&mut self, process: ProcessId) -> Result<&Folder, FolderError> {
        self.folder_by(process, Folder::subfolder_there)
    }

    fn folder_by(
        &mut self,
        process: ProcessId,
        by: impl Fn(&Folder, &str) -> Result<Folder, FolderError>,
    ) -> Result<&Folder, FolderError> {
        if self.folders.len() >= OPEN && !self.folders.contains_key(&process) {
            self.folders.clear();
        }
        match self.folders.entry(process) {
            Entry::Occupied(folder) => Ok(folder.into_mut()),
            Entry::Vacant(vacant) => {
                let job = by(&self.store, &process.job.to_string())?;
                Ok(vacant.insert(by(&job, &process.rank.to_string())?))
            }
        }
    }

    /// The segment of a position, and the position in it.
    fn place(file: File, position: u64) -> (u64, u64) {
        match file {
            File::Image(..) => (0, position),
            File::Journal(_) | File::Stream(..) => (position - position % SEGMENT, position % SEGMENT),
        }
    }

    fn open(&mut self, file: File, segment: u64, create: bool) -> io::Result<&fs::File> {
        if self.open.len() >= OPEN && !self.open.contains_key(&(file, segment)) {
            self.open.clear();
        }
        if !self.open.contains_key(&(file, segment)) {
            let is_known = self.segments.get(&file).is_some_and(|segments| segments.contains_key(&segment));
            let opened = if create && !is_known { self.create(file, segment)? } else { self.open_again(file, segment, create)? };
            self.open.insert((file, segment), opened);
        }
        Ok(&self.open[&(file, segment)])
    }

    /// A file that was not there. What has its name all the same could not be removed before, or is not ours.
    fn create(&mut self, file: File, segment: u64) -> io::Result<fs::File> {
        let (process, name) = (file.process(), name(file, segment));
        let spare = match file {
            File::Image(..) => self.spares.get_mut(&process).and_then(Vec::pop),
            File::Journal(_) | File::Stream(..) => None,
        };
        let durable = self.durable;
        let folder = self.folder(process)?;
        // Without it the image gets a file of its own.
        let reused = spare.and_then(|(_, spare)| folder.rename(&spare, &name).ok()).and_then(|()| folder.update(&name).ok());
        let opened = match reused {
            Some(file) => file,
            None => folder.replace(&name)?,
        };
        if durable {
            folder.sync()?;
            self.store.subfolder_there(&process.job.to_string())?.sync()?;
            self.store.sync()?;
        }
        self.segments.entry(file).or_default().insert(segment, Sums::default());
        Ok(opened)
    }

    /// A file that was there. If it is to be written and somebody has removed it, a new one.
    fn open_again(&mut self, file: File, segment: u64, create: bool) -> io::Result<fs::File> {
        let name = name(file, segment);
        let folder = if create { self.folder(file.process())? } else { self.folder_there(file.process())? };
        match folder.update(&name) {
            Err(error) if create && error.kind() == io::ErrorKind::NotFound => Ok(folder.create_new(&name)?),
            opened => Ok(opened?),
        }
    }

    /// Writes bytes at their place; with `durable` they are on the disk after [`Files::sync`].
    pub fn write(&mut self, write: &Write) -> io::Result<()> {
        let Write { file, mut position, ref bytes } = *write;
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            let (segment, at) = Self::place(file, position);
            let room =
                if matches!(file, File::Image(..)) { bytes.len() } else { (SEGMENT - at).min(bytes.len() as u64) as usize };
            let (now, later) = bytes.split_at(room);
            if let Err(error) = self.open(file, segment, true).and_then(|opened| opened.write_all_at(now, at)) {
                // What is behind the name may be another file when it is tried again.
                self.open.remove(&(file, segment));
                self.folders.remove(&file.process());
                if self.remove_spares() {
                    continue;
                }
                return Err(error);
            }
            if let Some(sums) = self.sums(file, segment) {
                sums.add(at, now);
            }
            if self.durable {
                self.touched.insert((file, segment));
            }
            (position, bytes) = (position + room as u64, later);
        }
        Ok(())
    }

    /// The sums of a segment of a log.
    fn sums(&mut self, file: File, segment: u64) -> Option<&mut Sums> {
        let segments = self.segments.get_mut(&file).filter(|_| !matches!(file, File::Image(..)))?;
        segments.get_mut(&segment)
    }

    /// What was written is on the disk.
    pub fn sync(&mut self) -> io::Result<()> {
        for (file, segment) in std::mem::take(&mut self.touched) {
            if self.segments.get(&file).is_some_and(|segments| segments.contains_key(&segment)) {
                self.open(file, segment, false)?.sync_data()?;
            }
        }
        Ok(())
    }

    /// Exactly so many bytes, or an error.
    pub fn read(&mut self, file: File, mut position: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut rest = &mut bytes[..];
        while !rest.is_empty() {
            let (segment, at) = Self::place(file, position);
            let room = if matches!(file, File::Image(..)) { rest.len() } else { (SEGMENT - at).min(rest.len() as u64) as usize };
            let (now, later) = rest.split_at_mut(room);
            self.open(file, segment, false)?;
            let opened = &self.open[&(file, segment)];
            match self.segments.get(&file).and_then(|segments| segments.get(&segment)) {
                Some(sums) if !matches!(file, File::Image(..)) => sums.read(opened, at, now)?,
                _ => opened.read_exact_at(now, at)?,
            }
            (position, rest) = (position + room as u64, later);
        }
        Ok(bytes)
    }

    fn remove(&mut self, file: File, segment: u64) {
        self.open.remove(&(file, segment));
        self.touched.remove(&(file, segment));
        let (process, name) = (file.process(), name(file, segment));
        if let File::Image(..) = file {
            let removed = self.folder_there(process).map(|folder| folder.remove(&code_name(&name)));
            if removed.is_ok() && self.set_aside(process, &name).is_ok() {
                return;
            }
        }
        // What cannot be removed is removed with the job.
        _ = self.folder_there(process).map(|folder| folder.remove(&name));
    }

    /// Keeps the file of an image, without its name, unless it is being read or there are enough of them that are longer.
    fn set_aside(&mut self, process: ProcessId, image: &str) -> io::Result<()> {
        let spare = format!("spare.{}", self.next_spare);
        let file = self.folder_there(process)?.read(image)?;
        let length = file.metadata()?.len();
        let spares = self.spares.entry(process).or_default();
        if spares.len() >= SPARES && spares[0].0 >= length {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let folder = self.folder_there(process)?;
        folder.rename(image, &spare)?;
        self.next_spare += 1;
        let spares = self.spares.entry(process).or_default();
        let shortest = (spares.len() >= SPARES).then(|| spares.remove(0).1);
        let longer = spares.partition_point(|(of, _)| *of <= length);
        spares.insert(longer, (length, spare));
        if let Some(shortest) = shortest {
            _ = self.folder_there(process)?.remove(&shortest);
        }
        Ok(())
    }

    /// Makes room. False: there were none.
    fn remove_spares(&mut self) -> bool {
        let spares = std::mem::take(&mut self.spares);
        let mut any = false;
        for (process, spare) in
            spares.into_iter().flat_map(|(process, spares)| spares.into_iter().map(move |(_, spare)| (process, spare)))
        {
            any = true;
            _ = self.folder_there(process).map(|folder| folder.remove(&spare));
        }
        any
    }

    /// Nothing before the position is needed.
    pub fn truncate(&mut self, file: File, position: u64) {
        let Some(segments) = self.segments.get_mut(&file) else { return };
        let first = Self::place(file, position).0;
        let kept = segments.split_off(&first);
        let gone = std::mem::replace(segments, kept);
        gone.into_keys().for_each(|segment| self.remove(file, segment));
    }

    /// The file is not needed.
    pub fn delete(&mut self, file: File) {
        let segments = self.segments.remove(&file).unwrap_or_default();
        segments.into_keys().for_each(|segment| self.remove(file, segment));
    }

    fn forget(&mut self, is_gone: impl Fn(ProcessId) -> bool) {
        self.open.retain(|(file, _), _| !is_gone(file.process()));
        self.touched.retain(|(file, _)| !is_gone(file.process()));
        self.segments.retain(|file, _| !is_gone(file.process()));
        self.spares.retain(|process, _| !is_gone(*process));
        self.folders.retain(|process, _| !is_gone(*process));
    }

    /// Removes everything of a process.
    pub fn remove_process(&mut self, process: ProcessId) {
        self.forget(|of| of == process);
        let job = self.store.subfolder_there(&process.job.to_string());
        _ = job.and_then(|job| job.remove_all(&process.rank.to_string()));
    }

    /// Removes everything of a job.
    pub fn remove_job(&mut self, job: JobId) {
        self.forget(|of| of.job == job);
        _ = self.store.remove_all(&job.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use radic_wire::determinant::{ConnectionId, StreamId};
    use radic_wire::ids::Rank;

    use super::*;

    fn store(dir: &Path) -> Arc<Folder> {
        Arc::new(Folder::open(dir).unwrap())
    }

    fn process() -> ProcessId {
        ProcessId { job: JobId::from_bits(0xab), rank: Rank(7) }
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(process_dir(dir, process())).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_log_is_cut_into_files_and_forgotten_by_deleting_them() {
        let dir = tempfile::tempdir().unwrap();
        let connection = ConnectionId { opener: process(), number: 3 };
        for file in [File::Journal(process()), File::Stream(process(), StreamId { connection, from_opener: true })] {
            let mut files = Files::new(store(dir.path()), true);
            let (position, bytes) = (SEGMENT * 2 - 5, b"0123456789".to_vec());
            files.write(&Write { file, position, bytes: bytes.into() }).unwrap();
            files.sync().unwrap();
            assert_eq!(names(dir.path()).len(), 2);
            assert_eq!(files.read(file, position + 3, 4).unwrap(), b"3456");
            assert!(files.read(file, position + 3, 9).is_err(), "beyond the end");
            files.truncate(file, SEGMENT * 2);
            assert_eq!(names(dir.path()).len(), 1);
            assert!(files.read(file, position, 4).is_err());
            assert_eq!(files.read(file, position + 5, 5).unwrap(), b"56789");
            files.delete(file);
            assert_eq!(names(dir.path()), [""; 0]);
        }
    }

    /// However it was written, and written again; and not a byte of what is not so any more.
    #[test]
    fn a_log_is_read_as_it_was_written_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let (mut files, file) = (Files::new(store(dir.path()), false), File::Journal(process()));
        let all: Vec<u8> = (0..300_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let mut write = |from: usize, to: usize| {
            files.write(&Write { file, position: 5 + from as u64, bytes: all[from..to].to_vec().into() }).unwrap();
        };
        (0..1_000).for_each(|i| write(i * 60, i * 60 + 60));
        write(59_000, 200_001);
        write(30_000, 200_000);
        write(200_001, 300_000);
        for (at, length) in [(0, 300_000), (1, 65_536), (65_535, 2), (131_072, 100_000), (299_999, 1)] {
            assert_eq!(files.read(file, 5 + at as u64, length).unwrap(), &all[at..at + length], "{at} {length}");
        }
        assert!(files.read(file, 5, 300_001).is_err(), "beyond the end");
        assert!(files.read(file, 4, 10).is_err(), "before the beginning");
        let path = process_dir(dir.path(), process()).join("journal.0000000000000000");
        let mut bytes = fs::read(&path).unwrap();
        bytes[100_000] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        for (at, is_right) in [(99_990, false), (70_000, false), (60_000, true), (200_000, true)] {
            assert_eq!(files.read(file, 5 + at, 1_000).is_ok(), is_right, "{at}");
        }
    }

    fn image(number: u64) -> File {
        File::Image(process(), number)
    }

    fn write(files: &mut Files, file: File, bytes: &[u8]) {
        files.write(&Write { file, position: 0, bytes: bytes.to_vec().into() }).unwrap();
    }

    #[test]
    fn an_image_is_written_over_one_that_is_not_needed() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::new(store(dir.path()), true);
        let inode = |number| fs::metadata(image_path(dir.path(), process(), number)).unwrap().ino();
        write(&mut files, image(1), b"one");
        let first = inode(1);
        files.delete(image(1));
        assert_eq!(names(dir.path()), ["spare.0"]);
        write(&mut files, image(2), b"2");
        assert_eq!((names(dir.path()), inode(2)), (vec!["image.2".to_owned()], first));
        assert_eq!(files.read(image(2), 0, 1).unwrap(), b"2");
        (3..=8).for_each(|number| write(&mut files, image(number), b"more"));
        (2..=8).for_each(|number| files.delete(image(number)));
        assert_eq!(names(dir.path()).len(), SPARES);
        // The longest is kept, and used first; one that somebody has removed is not missed.
        write(&mut files, image(9), &[9; 100]);
        let long = inode(9);
        files.delete(image(9));
        write(&mut files, image(10), b"ten");
        assert_eq!((names(dir.path()).len(), inode(10)), (SPARES, long));
        for name in names(dir.path()).iter().filter(|name| name.starts_with("spare")) {
            fs::remove_file(process_dir(dir.path(), process()).join(name)).unwrap();
        }
        write(&mut files, image(11), b"eleven");
        files.delete(image(10));
        files.delete(image(11));
        assert!(files.remove_spares() && !files.remove_spares());
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn an_image_that_is_read_stays_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::new(store(dir.path()), false);
        let place = |files: &Files| ImagePlace::of(&files.store, process(), 1);
        write(&mut files, image(1), b"one");
        let reader = place(&files).unwrap().open().unwrap();
        files.delete(image(1));
        write(&mut files, image(2), b"two");
        assert_eq!(std::io::read_to_string(reader).unwrap(), "one");
        assert_eq!(names(dir.path()), ["image.2"]);
        assert_eq!(place(&files).unwrap().open().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_directory_has_one_owner_and_begins_empty() {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("0123456789ab/3");
        fs::create_dir_all(&old).unwrap();
        fs::write(dir.path().join("not ours"), "").unwrap();
        let taken = || take(&store(dir.path()));
        let lock = taken().unwrap();
        assert!(!old.exists() && dir.path().join("not ours").exists());
        assert!(matches!(taken(), Err(StartError::InUse(_))));
        drop(lock);
        taken().unwrap();
    }

    #[test]
    fn the_code_lies_beside_its_image() {
        let image = image_path(Path::new("/s"), process(), 12);
        assert_eq!(image, Path::new("/s/0000000000ab/7/image.12"));
        assert_eq!(code_name("image.12"), "image.12.mac");
    }

    /// Whatever is put under the names of the store while it is used.
    #[test]
    fn nothing_is_written_through_a_link_nor_outside_of_the_folder_that_was_opened() {
        let place = tempfile::tempdir().unwrap();
        let (dir, moved, victims) = (place.path().join("store"), place.path().join("moved"), place.path().join("victims"));
        let its = Folder::make_all(&dir).unwrap();
        fs::create_dir(&victims).unwrap();
        let victim = victims.join("victim");
        fs::write(&victim, "precious").unwrap();
        let mut files = Files::new(Arc::new(its), true);
        // A link in the place of a file that is new, and of one that is opened again.
        let names = process_dir(&dir, process());
        Folder::make_all(&names).unwrap();
        symlink(&victim, names.join("image.1")).unwrap();
        symlink(&victim, names.join("image.1.mac")).unwrap();
        write(&mut files, image(1), b"one");
        ImagePlace::of(&files.store, process(), 1).unwrap().write_code(b"code", true).unwrap();
        assert_eq!(fs::read_to_string(names.join("image.1")).unwrap(), "one");
        files.open.clear();
        fs::rename(names.join("image.1"), names.join("other")).unwrap();
        symlink(&victim, names.join("image.1")).unwrap();
        assert!(files.write(&Write { file: image(1), position: 0, bytes: b"again".to_vec().into() }).is_err());
        assert!(files.read(image(1), 0, 3).is_err() && ImagePlace::of(&files.store, process(), 1).unwrap().open().is_err());
        // A link in the place of a folder, and a folder that others may write to.
        let other = ProcessId { rank: Rank(8), ..process() };
        symlink(&victims, process_dir(&dir, other)).unwrap();
        assert!(files.write(&Write { file: File::Image(other, 1), position: 0, bytes: b"x".to_vec().into() }).is_err());
        files.remove_process(other);
        let shared = ProcessId { rank: Rank(9), ..process() };
        fs::create_dir(process_dir(&dir, shared)).unwrap();
        fs::set_permissions(process_dir(&dir, shared), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(files.write(&Write { file: File::Image(shared, 1), position: 0, bytes: b"x".to_vec().into() }).is_err());
        // Another folder in the place of the store.
        fs::rename(&dir, &moved).unwrap();
        fs::create_dir(&dir).unwrap();
        files.write(&Write { file: File::Journal(process()), position: 0, bytes: b"x".to_vec().into() }).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "what was opened is written to");
        assert_eq!(fs::metadata(process_dir(&moved, process())).unwrap().mode() & 0o7777, 0o700);
        assert_eq!((fs::read_to_string(&victim).unwrap().as_str(), fs::read_dir(&victims).unwrap().count()), ("precious", 1));
    }
}
