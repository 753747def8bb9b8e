//! Images in files: makes whole ones of increments and packed ones, and files that appear only when they are right.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::error::{ControlError, failed};
use crate::image::chain::{Candidates, Merge, Merged, header_of, merge};
use crate::image::format::Codec;
use crate::image::meta::Process;
use crate::image::{Header, ImageError, Meta, Reader, Sink, WriteSink};
use crate::sys;
use crate::trusted::{self, Owners};

/// Told now and then how far long work has come: bytes done, and bytes in all where that is known.
pub type Progress<'a> = &'a mut dyn FnMut(u64, Option<u64>);

/// Makes a file that appears under its name only when `write` has succeeded and all is on disk.
pub(super) fn appear<T>(path: &Path, write: impl FnOnce(&File) -> Result<T, ControlError>) -> Result<T, ControlError> {
    let failed = |error| ControlError::Io(format!("{} cannot be written", path.display()), error);
    let unfinished = Unfinished::create(path).map_err(failed)?;
    let result = write(&unfinished.file)?;
    unfinished.finish().map_err(failed)?;
    Ok(result)
}

/// A new file of the caller's own. It has no name until it is finished: if the caller is killed, nothing stays behind. Where the file system has no such files
/// it has a name beside the one that it gets, and is removed unless it is finished.
struct Unfinished {
    /// The folder, which is the same one to the end, whatever its name comes to mean.
    folder: File,
    /// The name of now.
    temporary: Option<OsString>,
    name: OsString,
    file: File,
}

impl Unfinished {
    fn create(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
        let folder = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(folder(path))?;
        // No other user may read what was in memory.
        let mut options = File::options();
        options.read(true).write(true).mode(0o600);
        let (file, temporary) = match options.clone().custom_flags(libc::O_TMPFILE).open(place(&folder, OsStr::new("."))) {
            Ok(file) => (file, None),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) => {
                let temporary = temporary(&name);
                // A file, or a link, that is there already is not taken: it is another user's, or in use.
                let file = options.create_new(true).custom_flags(libc::O_NOFOLLOW).open(place(&folder, &temporary))?;
                (file, Some(temporary))
            }
            Err(error) => return Err(error),
        };
        Ok(Self { folder, temporary, name, file })
    }

    fn finish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if self.temporary.is_none() {
            // A file cannot be given a name that another one has, only be renamed to it.
            let temporary = temporary(&self.name);
            let file = CString::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
            let name = CString::new(temporary.as_bytes())?;
            sys::link(&file, self.folder.as_raw_fd(), &name).map_err(|error| io::Error::from_raw_os_error(error.0))?;
            self.temporary = Some(temporary);
        }
        let temporary = self.temporary.as_deref().expect("the file has a name by now");
        std::fs::rename(place(&self.folder, temporary), place(&self.folder, &self.name))?;
        self.temporary = None;
        self.folder.sync_all()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(place(&self.folder, temporary));
        }
    }
}

/// The name of an unfinished file.
fn temporary(name: &OsStr) -> OsString {
    let mut temporary = name.to_owned();
    temporary.push(format!(".{:016x}.partial", crate::identity::new_id()));
    temporary
}

/// A file in an open folder.
fn place(folder: &File, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name)
}

/// The folder that a file is in.
#[must_use]
pub fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Merges an image with its ancestors into a whole one without packed runs, in a file of its own (or in the place of the image itself). The
/// ancestors are looked for among `parents`, or beside the image if there are none. The whole image is the caller's: so all of them must be files that it
/// trusts.
pub fn merge_files(
    image: &Path,
    parents: &[PathBuf],
    owners: Owners,
    output: &Path,
    progress: Progress<'_>,
) -> Result<Merged, ControlError> {
    let layers = Layers::open(trusted::open(image, owners)?, image, parents, owners)?;
    appear(output, |file| Ok(layers.merge(WriteSink(file), progress)?))
}

/// The files of a chain, newest first.
struct Layers(Vec<File>);

impl Layers {
    /// An open image, with its name for those beside it.
    fn open(image: File, path: &Path, parents: &[PathBuf], owners: Owners) -> Result<Self, ControlError> {
        let header = header_of(&image)?;
        let ancestors = match parents {
            _ if header.parent == 0 => Vec::new(),
            [] => Candidates::in_folder(folder(path), owners)?.ancestors(&header)?,
            named => Candidates::files(named, owners)?.ancestors(&header)?,
        };
        let mut files = vec![image];
        for ancestor in ancestors {
            files.push(trusted::open(&ancestor, owners)?);
        }
        Ok(Self(files))
    }

    fn merge(&self, sink: impl Sink<Error = io::Error>, progress: Progress<'_>) -> Result<Merged, ImageError> {
        for mut file in &self.0 {
            file.rewind()?;
        }
        let total = self.0.iter().map(|file| file.metadata().map(|data| data.len())).sum::<io::Result<u64>>()?;
        let meter = std::cell::RefCell::new(Meter { done: 0, total, progress });
        merge(self.0.iter().map(|file| Watched { file, meter: &meter }), sink)
    }
}

struct Meter<'a> {
    done: u64,
    total: u64,
    progress: Progress<'a>,
}

/// A file that reports how much of it was read.
struct Watched<'a, 'p> {
    file: &'a File,
    meter: &'a std::cell::RefCell<Meter<'p>>,
}

impl Read for Watched<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read(buffer)?;
        let mut meter = self.meter.borrow_mut();
        meter.done += len as u64;
        let (done, total) = (meter.done, meter.total);
        (meter.progress)(done, Some(total));
        Ok(len)
    }
}

/// A whole image without packed runs, which the restorer can read from its beginning to its end: a file, or a pipe.
#[derive(Debug)]
pub struct Restorable {
    pub(super) file: File,
    pub(super) meta: Meta,
}

impl Restorable {
    /// An image and its ancestors, the newest first, the whole one last, whose ends may still be on their way. They become one whole image while it is
    /// restored, which has no place of its own, on a disk or in memory. The restored process begins to run when all of them have come to their ends, which the
    /// caller lets them do only if they are what they were when they were made (by a code over them, say). Otherwise the restorer finds that the image ends
    /// early, and `failed` is told why.
    pub fn of_verified<R: Read + Send + 'static>(
        chain: Vec<R>,
        failed: impl FnOnce(&ImageError) + Send + 'static,
    ) -> Result<Self, ControlError> {
        let merge = Merge::begin(chain)?;
        let meta = merge.meta().clone();
        let file = stream(merge, failed).map_err(self::failed("the image cannot be merged while it is restored"))?;
        Ok(Restorable { file, meta })
    }

    /// The program, and where it stood, of which both must be here, and the id that it had.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.meta.process
    }
}

/// Bytes that a merged image is ahead of the restorer: as many as the kernel lets any user have in a pipe.
const AHEAD: i32 = 1 << 20;

/// The end of a pipe that a whole image comes out of while a thread merges it. The thread ends with the merge, or when nothing reads the pipe any more.
fn stream<R: Read + Send + 'static>(merge: Merge<R>, failed: impl FnOnce(&ImageError) + Send + 'static) -> io::Result<File> {
    let (from, to) = io::pipe()?;
    let to = File::from(OwnedFd::from(to));
    // A shorter pipe does as well, with more changes of thread.
    _ = sys::fcntl(to.as_raw_fd(), libc::F_SETPIPE_SZ, AHEAD as usize);
    let work = move || match merge.write(WriteSink(to)) {
        // The restored process has ended, or is not wanted any more.
        Err(ImageError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => failed(&error),
        Ok(_) => {}
    };
    std::thread::Builder::new().name("merge".into()).spawn(work)?;
    Ok(OwnedFd::from(from).into())
}

/// An image as the restorer can read it, whole and without packed runs, verified from its beginning to its end: the file itself if it is
/// that already, else a file without a name. At its beginning. Ancestors are looked for as [`merge_files`] does.
pub(super) fn restorable(
    image: &Path,
    parents: &[PathBuf],
    owners: Owners,
    progress: Progress<'_>,
) -> Result<Restorable, ControlError> {
    let mut file = trusted::open(image, owners)?;
    if let Some((_, meta)) = verified_raw(&file)? {
        file.rewind().map_err(failed("the image cannot be read from its beginning"))?;
        return Ok(Restorable { file, meta });
    }
    let mut folders = vec![std::env::temp_dir(), folder(image).to_owned()];
    folders.dedup();
    let (file, meta) = unpacked(&Layers::open(file, image, parents, owners)?, &folders, progress)?;
    Ok(Restorable { file, meta })
}

/// Most threads that verify an image: beyond them memory is the limit.
const MAX_VERIFIERS: usize = 4;

/// Verifies a whole image of raw runs, by several threads; none if it is another kind of image, as far as it was read.
fn verified_raw(file: &File) -> Result<Option<(Header, Meta)>, ImageError> {
    let verifiers = std::thread::available_parallelism().map_or(1, |all| all.get().min(MAX_VERIFIERS));
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..verifiers).map(|which| scope.spawn(move || verified_share(file, which, verifiers))).collect();
        let own = verified_share(file, 0, verifiers);
        let others = others.into_iter().map(|other| other.join().expect("a thread that verifies does not panic"));
        others.fold(own, |known, other| match (known?, other?) {
            (Some(_), known) => Ok(known),
            (None, _) => Ok(None),
        })
    })
}

/// Verifies all records, and the runs of one thread's share: of each `of` runs the one with the number `which`.
fn verified_share(file: &File, which: usize, of: usize) -> Result<Option<(Header, Meta)>, ImageError> {
    let (mut reader, mut memory) = (Reader::begin(Place { file, at: 0 })?, Vec::new());
    if reader.header.parent != 0 {
        return Ok(None);
    }
    for number in (0..of).cycle() {
        match if number == which { reader.next_run(&mut memory)? } else { reader.skip_run()? } {
            None => break,
            Some(run) if run.codec == Codec::Lz4 => return Ok(None),
            Some(_) => {}
        }
    }
    Ok(Some((reader.header, reader.meta)))
}

/// A file that is read from a place of the reader's own.
struct Place<'a> {
    file: &'a File,
    at: u64,
}

impl Read for Place<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(buffer, self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for Place<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.file.metadata()?.len().checked_add_signed(by),
        };
        self.at = to.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Merges to a file without a name in the first of these folders that has room.
fn unpacked(layers: &Layers, folders: &[PathBuf], progress: Progress<'_>) -> Result<(File, Meta), ControlError> {
    let (mut needed, mut reasons) = (None, Vec::new());
    for folder in folders {
        let reason = match nameless(folder) {
            Ok(mut file) => {
                let mut full = None;
                let merged = layers.merge(WhileThereIsRoom { to: &file, full: &mut full }, progress)?;
                needed = Some(merged.bytes);
                let Some(error) = full else {
                    file.rewind().map_err(failed("the unpacked image cannot be read from its beginning"))?;
                    return Ok((file, merged.meta));
                };
                error
            }
            Err(error) => error,
        };
        reasons.push(format!("{}: {reason}", folder.display()));
    }
    let reasons = reasons.join("; ");
    Err(match needed {
        Some(needed) => ControlError::NoRoom { needed, reasons },
        None => ControlError::NoTemporary(reasons),
    })
}

fn nameless(folder: &Path) -> io::Result<File> {
    File::options().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(folder)
}

/// Writes until there is no room. The writer goes on counting what would come after.
struct WhileThereIsRoom<'a> {
    to: &'a File,
    full: &'a mut Option<io::Error>,
}

impl Sink for WhileThereIsRoom<'_> {
    type Error = io::Error;

    fn put(&mut self, head: &[u8], tail: &[u8]) -> io::Result<()> {
        if self.full.is_none() {
            *self.full = WriteSink(self.to).put(head, tail).err();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::image;
    use super::*;
    use crate::image::format::{HEADER_BYTES, RECORD_BYTES};
    use crate::image::meta::RegionRef;
    use crate::image::{ImageWriter, MetaWriter};

    /// Puts an image in a file.
    fn stored(folder: &tempfile::TempDir, packed: bool) -> PathBuf {
        let path = folder.path().join("image");
        std::fs::write(&path, image(packed)).unwrap();
        path
    }

    fn content(mut file: File) -> Vec<u8> {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_packed_image_becomes_raw_in_the_first_folder_that_takes_it() {
        let home = tempfile::tempdir().unwrap();
        let path = stored(&home, true);
        let mut told = 0;
        let Restorable { file, meta } =
            restorable(&path, &[], Owners::Trusted, &mut |done, all| told = done.max(all.unwrap() - done)).unwrap();
        assert_eq!((content(file), meta.process.pid), (image(false), 77));
        assert!(told > 0);
        let layers = Layers::open(File::open(&path).unwrap(), &path, &[], Owners::Trusted).unwrap();
        let folders = ["/proc".into(), home.path().to_owned()];
        assert_eq!(content(unpacked(&layers, &folders, &mut |_, _| {}).unwrap().0), image(false));
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1, "it has no name");
        let error = unpacked(&layers, &folders[..1], &mut |_, _| {}).unwrap_err();
        assert!(matches!(error, ControlError::NoTemporary(_)), "{error}");
    }

    #[test]
    fn a_raw_image_is_taken_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        let path = stored(&home, false);
        let Restorable { file, .. } =
            restorable(&path, &[], Owners::Trusted, &mut |_, _| panic!("there is nothing to do")).unwrap();
        std::fs::write(&path, "the same file").unwrap();
        assert_eq!(content(file), b"the same file");
    }

    /// Whichever run is damaged, whichever thread verifies it, it is found; and a file that ends early.
    #[test]
    fn damage_is_found_in_every_share() {
        let (mut buffer, start, runs) = ([0; 1024], 0x1000, 7);
        let mut meta = MetaWriter::new(&mut buffer);
        meta.process(77, 0, (1, 2), b"/bin/true", b"true\0", b"/tmp");
        meta.region(&RegionRef { start, end: start + runs * 4096, prot: 3, has_runs: true, ..RegionRef::default() });
        meta.thread(77, 0, 0, b"true");
        let len = meta.finish().unwrap();
        let mut writer = ImageWriter::begin(Vec::new(), Header { id: 7, ..Header::default() }, &buffer[..len]).unwrap();
        let begin = HEADER_BYTES + len;
        for run in 0..runs {
            writer.raw(start + run * 4096, &[run as u8; 4096]).unwrap();
        }
        let whole = writer.finish().unwrap().0;
        let folder = tempfile::tempdir().unwrap();
        let sound = |bytes: &[u8]| {
            std::fs::write(folder.path().join("image"), bytes).unwrap();
            let file = File::open(folder.path().join("image")).unwrap();
            let shares = (0..3).map(|which| verified_share(&file, which, 3).is_ok()).collect::<Vec<_>>();
            assert_eq!(verified_raw(&file).is_ok(), shares == [true; 3]);
            shares
        };
        assert_eq!(sound(&whole), [true; 3]);
        for at in (begin..whole.len()).step_by(499) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(sound(&damaged).contains(&false), "byte {at}");
            assert_eq!(sound(&whole[..at]), [false; 3], "cut at {at}");
        }
        // Only the thread that has a run in its share knows the run's content.
        let mut damaged = whole.clone();
        damaged[begin + RECORD_BYTES + 4096 + RECORD_BYTES] ^= 1;
        assert_eq!(sound(&damaged), [true, false, true]);
    }

    /// What the restorer would read of an image that was verified, and what was told of an error.
    fn streamed(file: File) -> Result<(Vec<u8>, Option<String>), ControlError> {
        let (tell, told) = std::sync::mpsc::channel();
        let restorable = Restorable::of_verified(vec![file], move |error| tell.send(error.to_string()).unwrap())?;
        assert_eq!(restorable.process().pid, 77);
        Ok((content(restorable.file), told.recv().ok()))
    }

    #[test]
    fn of_what_was_verified_a_whole_image_is_made_while_it_is_read() {
        let home = tempfile::tempdir().unwrap();
        for packed in [false, true] {
            let (read, told) = streamed(File::open(stored(&home, packed)).unwrap()).unwrap();
            assert_eq!((read, told), (image(false), None));
        }
        std::fs::write(home.path().join("image"), &image(false)[..300]).unwrap();
        let error = streamed(File::open(home.path().join("image")).unwrap()).unwrap_err();
        assert!(matches!(error, ControlError::Image(_)), "{error}");
    }

    /// The end record comes only after all has been read and found sound, so the restorer takes nothing else for a whole image.
    #[test]
    fn what_ends_early_while_it_is_merged_has_no_end_record() {
        let home = tempfile::tempdir().unwrap();
        let packed = image(true);
        for cut in [1, RECORD_BYTES, RECORD_BYTES + 1] {
            std::fs::write(home.path().join("image"), &packed[..packed.len() - cut]).unwrap();
            let (read, told) = streamed(File::open(home.path().join("image")).unwrap()).unwrap();
            assert!(told.is_some() && read.len() <= image(false).len() - RECORD_BYTES, "cut by {cut}: {told:?}");
        }
    }

    #[test]
    fn a_merge_ends_when_nothing_reads_it() {
        let (mut buffer, start, len) = ([0; 1024], 0x1000, 1 << 20);
        let mut meta = MetaWriter::new(&mut buffer);
        meta.process(77, 0, (1, 2), b"/bin/true", b"true\0", b"/tmp");
        meta.region(&RegionRef { start, end: start + 4 * len, prot: 3, has_runs: true, ..RegionRef::default() });
        meta.thread(77, 0, 0, b"true");
        let used = meta.finish().unwrap();
        let mut writer = ImageWriter::begin(Vec::new(), Header { id: 7, ..Header::default() }, &buffer[..used]).unwrap();
        let memory = vec![5; len as usize];
        for run in 0..4 {
            writer.lz4(start + run * len, &memory, &lz4_flex::block::compress(&memory)).unwrap();
        }
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("image"), writer.finish().unwrap().0).unwrap();
        let file = File::open(home.path().join("image")).unwrap();
        let (ended, end) = std::sync::mpsc::channel::<()>();
        // More than a pipe has room for.
        let restorable = Restorable::of_verified(vec![file], move |_| drop(ended)).unwrap();
        drop(restorable);
        assert!(end.recv().is_err(), "the thread drops what it has when it ends");
    }

    /// What comes after the end record is in no sum, so nothing vouches for it.
    #[test]
    fn what_follows_the_end_is_refused_however_the_image_is_read() {
        let home = tempfile::tempdir().unwrap();
        let follows = |result: Result<(), ControlError>, how: &str| {
            let error = result.expect_err(how).to_string();
            assert!(error.contains("something follows its end record"), "{how}: {error}");
        };
        for packed in [false, true] {
            let path = stored(&home, packed);
            let mut longer = image(packed);
            longer.push(0);
            std::fs::write(&path, &longer).unwrap();
            let file = || File::open(&path).unwrap();
            follows(restorable(&path, &[], Owners::Trusted, &mut |_, _| {}).map(drop), "restart");
            match streamed(file()) {
                Ok((_, told)) => {
                    assert!(told.is_some_and(|told| told.contains("something follows its end record")), "while it is merged")
                }
                Err(error) => follows(Err(error), "restart of what was verified"),
            }
            follows(merge_files(&path, &[], Owners::Trusted, &home.path().join("whole"), &mut |_, _| {}).map(drop), "merge");
            follows(crate::image::inspect(file()).map(drop).map_err(ControlError::from), "inspect");
            follows(crate::image::verify(file()).map(drop).map_err(ControlError::from), "verify");
            assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1, "nothing is left behind");
        }
    }

    #[test]
    fn without_room_it_is_known_how_much_would_be_needed() {
        let home = tempfile::tempdir().unwrap();
        let path = stored(&home, true);
        let layers = Layers::open(File::open(&path).unwrap(), &path, &[], Owners::Trusted).unwrap();
        let (to, mut full) = (File::options().write(true).open("/dev/full").unwrap(), None);
        let merged = layers.merge(WhileThereIsRoom { to: &to, full: &mut full }, &mut |_, _| {}).unwrap();
        assert_eq!(full.unwrap().kind(), io::ErrorKind::StorageFull);
        assert_eq!(merged.bytes, image(false).len() as u64);
    }
}
