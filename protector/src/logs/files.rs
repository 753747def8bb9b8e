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
//! used again: a reader holds a shared lock on it ([`open_image`]).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use radic_wire::ids::{JobId, ProcessId};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::StartError;
use crate::store::{File, Write};

/// Bytes of a segment of a log.
const SEGMENT: u64 = 16 << 20;
/// Bytes of a log that have one sum.
const PIECE: u64 = 64 << 10;
/// Files that are open at once; more are opened again.
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
    process_dir(dir, process).join(format!("image.{image}"))
}

/// The file of an image's code.
pub fn code_path(image: &Path) -> PathBuf {
    image.with_extension(format!("{}.mac", image.extension().unwrap_or_default().to_string_lossy()))
}

/// Opens an image to read it. What is opened stays what it is until it is closed.
pub fn open_image(path: &Path) -> io::Result<fs::File> {
    let file = fs::File::open(path)?;
    // Where files cannot be locked none is set aside.
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK) {
        return Err(io::ErrorKind::NotFound.into());
    }
    // It may have been set aside before it was locked.
    let (of, named) = (file.metadata()?, fs::metadata(path)?);
    if (of.dev(), of.ino()) == (named.dev(), named.ino()) { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}

fn path(dir: &Path, file: File, segment: u64) -> PathBuf {
    let process = process_dir(dir, file.process());
    match file {
        File::Journal(_) => process.join(format!("journal.{segment:016x}")),
        File::Stream(_, stream) => {
            let (opener, number) = (stream.connection.opener, stream.connection.number);
            let direction = if stream.from_opener { "from" } else { "to" };
            process.join(format!("stream.{}.{}.{number}.{direction}.{segment:016x}", opener.job, opener.rank))
        }
        File::Image(process, number) => image_path(dir, process, number),
    }
}

/// Takes possession of a directory. It is made if need be. What an earlier daemon left there is removed: it is not needed,
/// because a daemon that comes back is another member.
pub fn take(dir: &Path) -> Result<Flock<fs::File>, StartError> {
    let failed = |what: &str, error| StartError::System { what: format!("{what} {}", dir.display()), error };
    fs::DirBuilder::new().recursive(true).create(dir).map_err(|error| failed("cannot make the store", error))?;
    let lock = fs::File::options().create(true).truncate(false).write(true).mode(0o600).open(dir.join(LOCK));
    let lock = lock.map_err(|error| failed("cannot write in the store", error))?;
    let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|_| StartError::InUse(dir.to_owned()))?;
    for entry in fs::read_dir(dir).map_err(|error| failed("cannot read the store", error))? {
        let entry = entry.map_err(|error| failed("cannot read the store", error))?;
        if entry.file_name().to_string_lossy().parse::<JobId>().is_ok() {
            fs::remove_dir_all(entry.path()).map_err(|error| failed("cannot clear the store", error))?;
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
    dir: PathBuf,
    durable: bool,
    open: HashMap<(File, u64), fs::File>,
    segments: HashMap<File, BTreeMap<u64, Sums>>,
    /// Written since the last [`Files::sync`].
    touched: HashSet<(File, u64)>,
    /// The files that are set aside, with their lengths, the longest last: that is the next one to be used.
    spares: HashMap<ProcessId, Vec<(u64, PathBuf)>>,
    /// The number of the next one.
    next_spare: u64,
}

impl Files {
    pub fn new(dir: PathBuf, durable: bool) -> Self {
        let (open, segments, touched, spares) = Default::default();
        Files { dir, durable, open, segments, touched, spares, next_spare: 0 }
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
        let path = path(&self.dir, file, segment);
        match self.open.entry((file, segment)) {
            std::collections::hash_map::Entry::Occupied(open) => Ok(open.into_mut()),
            std::collections::hash_map::Entry::Vacant(vacant) => {
                let new = create && !self.segments.get(&file).is_some_and(|segments| segments.contains_key(&segment));
                if new {
                    let process = process_dir(&self.dir, file.process());
                    fs::DirBuilder::new().recursive(true).create(&process)?;
                    if let File::Image(process, _) = file
                        && let Some((_, spare)) = self.spares.get_mut(&process).and_then(Vec::pop)
                    {
                        // Without it the image gets a file of its own.
                        _ = fs::rename(spare, &path);
                    }
                }
                let opened = fs::File::options().read(true).write(true).create(create).truncate(false).mode(0o600).open(&path)?;
                if new {
                    self.segments.entry(file).or_default().insert(segment, Sums::default());
                    if self.durable {
                        sync_dirs(&self.dir, &path)?;
                    }
                }
                Ok(vacant.insert(opened))
            }
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
        let path = path(&self.dir, file, segment);
        if let File::Image(process, _) = file {
            _ = fs::remove_file(code_path(&path));
            if self.set_aside(process, &path).is_ok() {
                return;
            }
        }
        // What cannot be removed is removed with the job.
        _ = fs::remove_file(&path);
    }

    /// Keeps the file of an image, without its name, unless it is being read or there are enough of them that are longer.
    fn set_aside(&mut self, process: ProcessId, image: &Path) -> io::Result<()> {
        let spares = self.spares.entry(process).or_default();
        let kept = fs::symlink_metadata(image)?;
        if !kept.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if spares.len() >= SPARES && spares[0].0 >= kept.len() {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let file = fs::File::open(image)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let spare = image.with_file_name(format!("spare.{}", self.next_spare));
        fs::rename(image, &spare)?;
        self.next_spare += 1;
        if spares.len() >= SPARES {
            _ = fs::remove_file(spares.remove(0).1);
        }
        let longer = spares.partition_point(|(length, _)| *length <= kept.len());
        spares.insert(longer, (kept.len(), spare));
        Ok(())
    }

    /// Makes room. False: there were none.
    fn remove_spares(&mut self) -> bool {
        let spares: Vec<(u64, PathBuf)> = std::mem::take(&mut self.spares).into_values().flatten().collect();
        spares.iter().for_each(|(_, spare)| _ = fs::remove_file(spare));
        !spares.is_empty()
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
    }

    /// Removes everything of a process.
    pub fn remove_process(&mut self, process: ProcessId) {
        self.forget(|of| of == process);
        _ = fs::remove_dir_all(process_dir(&self.dir, process));
    }

    /// Removes everything of a job.
    pub fn remove_job(&mut self, job: JobId) {
        self.forget(|of| of.job == job);
        _ = fs::remove_dir_all(self.dir.join(job.to_string()));
    }
}

/// The directories above a new file, up to the store's own, are on the disk.
fn sync_dirs(store: &Path, file: &Path) -> io::Result<()> {
    let above = file.ancestors().skip(1).take_while(|dir| dir.starts_with(store));
    above.into_iter().try_for_each(|dir| fs::File::open(dir)?.sync_all())
}

#[cfg(test)]
mod tests {
    use radic_wire::determinant::{ConnectionId, StreamId};
    use radic_wire::ids::Rank;

    use super::*;

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
            let mut files = Files::new(dir.path().to_owned(), true);
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
        let (mut files, file) = (Files::new(dir.path().to_owned(), false), File::Journal(process()));
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
        let mut files = Files::new(dir.path().to_owned(), true);
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
        let mut files = Files::new(dir.path().to_owned(), false);
        let path = image_path(dir.path(), process(), 1);
        write(&mut files, image(1), b"one");
        let reader = open_image(&path).unwrap();
        files.delete(image(1));
        write(&mut files, image(2), b"two");
        assert_eq!(std::io::read_to_string(reader).unwrap(), "one");
        assert_eq!(names(dir.path()), ["image.2"]);
        assert_eq!(open_image(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_directory_has_one_owner_and_begins_empty() {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("0123456789ab/3");
        fs::create_dir_all(&old).unwrap();
        fs::write(dir.path().join("not ours"), "").unwrap();
        let lock = take(dir.path()).unwrap();
        assert!(!old.exists() && dir.path().join("not ours").exists());
        assert!(matches!(take(dir.path()), Err(StartError::InUse(_))));
        drop(lock);
        take(dir.path()).unwrap();
    }

    #[test]
    fn the_code_lies_beside_its_image() {
        let image = image_path(Path::new("/s"), process(), 12);
        assert_eq!(code_path(&image), Path::new("/s/0000000000ab/7/image.12.mac"));
    }
}
