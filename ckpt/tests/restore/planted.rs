//! Another user puts something of his own in the place of what a saved program had open: a restart opens it by its name or its number, and must see that it is
//! not what it was. It must get nothing of the program's memory, and the program nothing of it.

use std::cell::Cell;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use radic_ckpt::Mode;
use radic_ckpt::control::{self, Ids};
use radic_ckpt::trusted::Owners;
use tempfile::TempDir;

use crate::harness::{self, Process, compile, compile_with, library};

/// An ordinary user.
const USER: u32 = 64_001;
/// Another user, the attacker.
const INTRUDER: u32 = 64_002;
/// What the program has in memory.
const SECRET: &str = "what the program knows";
/// What another user would have it read.
const FORGED: &str = "what the intruder says!!";
/// Exit code of a process that cannot be restored.
const REFUSED: i32 = 125;

/// A program that waits for the file "go", and files beside it. Every user may look at them, and make files in the folder "open".
struct Place {
    folder: TempDir,
    /// How much the program had said when it was saved: a restored one goes on writing there.
    said: Cell<usize>,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap(), said: Cell::new(0) };
        fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).unwrap();
        compile("planted", &place.path(""));
        fs::copy(library(), place.path("preload.so")).unwrap();
        fs::create_dir(place.path("open")).unwrap();
        fs::set_permissions(place.path("open"), Permissions::from_mode(0o1777)).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where a file can be planted.
    fn file(&self) -> PathBuf {
        self.path("open/file")
    }

    /// Starts the program as a user.
    fn start_as(&self, user: u32, words: &[&str]) -> Process {
        self.start(user, &self.path("planted"), words)
    }

    fn start(&self, user: u32, program: &Path, words: &[&str]) -> Process {
        let mut command = Command::new(program);
        command.args(words).env("LD_PRELOAD", self.path("preload.so")).current_dir(self.path("")).uid(user).gid(user);
        command.stdin(Stdio::null()).stdout(self.create("output", user)).stderr(self.create("errors", user));
        let mut process = Process::start("planted", &mut command);
        process.says = vec![self.path("errors"), self.path("output")];
        process.until("is ready", || self.read("output").starts_with("ready\n"));
        process
    }

    /// A new file of a user.
    fn create(&self, name: &str, user: u32) -> fs::File {
        let file = harness::create(&self.path(name));
        chown(self.path(name), Some(user), Some(user)).unwrap();
        file
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn save(&self, process: &mut Process) {
        control::save(process.pid(), Mode::Fork, &self.path("image")).unwrap();
        self.said.set(self.read("output").len());
    }

    /// Saves the program and kills it.
    fn take(&self, mut process: Process) {
        self.save(&mut process);
        process.kill();
    }

    /// Restores it as a user, and lets it go on: its exit code, and what it says then.
    fn restore_as(&self, user: u32) -> (Option<i32>, String) {
        fs::OpenOptions::new().write(true).open(self.path("output")).unwrap().set_len(self.said.get() as u64).unwrap();
        fs::write(self.path("go"), "").unwrap();
        let status = Process::start("the restored one", &mut self.command(user)).wait();
        fs::remove_file(self.path("go")).unwrap();
        println!("{}", self.read("errors"));
        (status.code(), self.read("output")[self.said.get()..].to_owned())
    }

    /// What restores it.
    fn command(&self, user: u32) -> Command {
        // Root has saved it, and so the image is root's.
        let mut command =
            control::restart_as(Ids::Old, Owners::Trusted, &self.path("image"), &self.path("preload.so"), &mut |_, _| {})
                .unwrap();
        command.uid(user).gid(user).stdin(Stdio::null()).stdout(Stdio::null()).stderr(self.create("errors", user));
        command
    }

    fn restore(&self) -> (Option<i32>, String) {
        self.restore_as(0)
    }

    /// It is not restored, for a reason that names the file.
    fn is_refused(&self, user: u32, file: &Path) {
        assert_eq!(self.restore_as(user), (Some(REFUSED), String::new()));
        let errors = self.read("errors");
        assert!(errors.contains(file.to_str().unwrap()), "{errors}");
    }
}

/// A file of the other user, which everybody may write, in the place of another one.
fn plant(path: &Path, content: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, content).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
    chown(path, Some(INTRUDER), Some(INTRUDER)).unwrap();
}

/// The file, in another inode of the same owner.
fn renew(path: &Path) {
    let copy = path.with_extension("copy");
    let data = path.metadata().unwrap();
    fs::copy(path, &copy).unwrap();
    fs::set_permissions(&copy, data.permissions()).unwrap();
    chown(&copy, Some(data.uid()), Some(data.gid())).unwrap();
    fs::rename(copy, path).unwrap();
}

/// As MPICH's ranks have it: memory that they share is a file in /dev/shm.
#[test]
fn shared_memory_of_another_user_gets_nothing() {
    if !harness::root() {
        return;
    }
    for user in [0, USER] {
        let (place, folder) = (Place::new(), tempfile::tempdir_in("/dev/shm").unwrap());
        fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        let memory = folder.path().join("memory");
        place.take(place.start_as(user, &["shared", memory.to_str().unwrap()]));
        plant(&memory, &[0; 4096]);
        place.is_refused(user, &memory);
        let planted = fs::read(&memory).unwrap();
        fs::remove_file(&memory).unwrap();
        assert_eq!(planted, [0; 4096]);
        // On a machine where it is not there, it is made anew.
        assert_eq!(place.restore_as(user), (Some(5), format!("{SECRET}!\n")));
        let made = memory.metadata().unwrap();
        assert_eq!((made.uid(), made.mode() & 0o777), (user, 0o600));
    }
}

#[test]
fn a_file_of_another_user_gets_nothing() {
    if !harness::root() {
        return;
    }
    let (place, file) = (Place::new(), Place::file);
    let file = file(&place);
    place.take(place.start_as(0, &["file", file.to_str().unwrap()]));
    plant(&file, FORGED.as_bytes());
    place.is_refused(0, &file);
    assert_eq!(fs::read_to_string(&file).unwrap(), FORGED);
}

/// A name of another file of the same user: what it leads to would be overwritten, and cut.
#[test]
fn another_file_is_not_overwritten_through_a_link() {
    if !harness::root() {
        return;
    }
    for what in ["file", "shared"] {
        let place = Place::new();
        let (file, other) = (place.file(), place.path("other"));
        let content = [b'o'; 5000];
        fs::write(&other, content).unwrap();
        place.take(place.start_as(0, &[what, file.to_str().unwrap()]));
        for is_hard in [false, true] {
            fs::remove_file(&file).unwrap();
            if is_hard { fs::hard_link(&other, &file) } else { symlink(&other, &file) }.unwrap();
            place.is_refused(0, &file);
            assert_eq!(fs::read(&other).unwrap(), content, "{what}, {is_hard}");
        }
    }
}

/// To open a pipe waits for its other end, for ever.
#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_at_once() {
    if !harness::root() {
        return;
    }
    for what in ["read", "library", "shared"] {
        let place = Place::new();
        let file = place.file();
        make_library(&place);
        if what != "shared" {
            fs::copy(place.path("planted_library"), &file).unwrap();
        }
        place.take(place.start_as(0, &[what, file.to_str().unwrap()]));
        fs::remove_file(&file).unwrap();
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        place.is_refused(0, &file);
    }
}

/// A program reads on in the file that it had open, not in another user's.
#[test]
fn a_file_of_another_user_is_not_read() {
    if !harness::root() {
        return;
    }
    let place = Place::new();
    let file = place.file();
    fs::write(&file, SECRET).unwrap();
    place.take(place.start_as(USER, &["read", file.to_str().unwrap()]));
    plant(&file, FORGED.as_bytes());
    place.is_refused(USER, &file);
}

fn make_library(place: &Place) {
    compile_with(Path::new("gcc"), &["-shared", "-fPIC"], "planted_library.c", &place.path(""));
}

/// A place, and a file there that is the library.
fn with_library() -> (Place, PathBuf) {
    let place = Place::new();
    let file = place.file();
    make_library(&place);
    fs::copy(place.path("planted_library"), &file).unwrap();
    (place, file)
}

/// A library that differs from another one only behind its first page.
fn forge(library: &[u8]) -> Vec<u8> {
    // mov eax, 7
    let code = [0xb8, 7, 0, 0, 0];
    let at = library.windows(code.len()).position(|bytes| bytes == code).unwrap();
    assert!(at >= 4096, "the code is not in the first page");
    let mut forged = library.to_vec();
    forged[at + 1] = 9;
    forged
}

#[test]
fn a_library_of_another_user_does_not_run() {
    if !harness::root() {
        return;
    }
    for user in [0, USER] {
        let (place, file) = with_library();
        let forged = forge(&fs::read(&file).unwrap());
        place.take(place.start_as(user, &["library", file.to_str().unwrap()]));
        plant(&file, &forged);
        place.is_refused(user, &file);
        // Root's own, which everybody may write.
        chown(&file, Some(0), Some(0)).unwrap();
        place.is_refused(user, &file);
    }
}

/// The program itself is executed first, before anything else is looked at.
#[test]
fn a_program_of_another_user_does_not_run() {
    if !harness::root() {
        return;
    }
    for user in [0, USER] {
        let place = Place::new();
        let (program, ran) = (place.path("open/program"), place.path("open/ran"));
        fs::rename(place.path("planted"), &program).unwrap();
        place.take(place.start(user, &program, &["read", "/dev/null"]));
        plant(&program, format!("#!/bin/sh\nid > {}\n", ran.display()).as_bytes());
        fs::set_permissions(&program, Permissions::from_mode(0o777)).unwrap();
        assert!(place.command(user).spawn().is_err());
        let errors = place.read("errors");
        assert!(errors.contains(program.to_str().unwrap()) && errors.contains("another user"), "{errors}");
        assert!(!ran.exists());
    }
}

/// The same files under other numbers, as on another machine: root's library and the user's own file, which its group may write. Restored by a user who has no
/// number for root: in a namespace, because only root may choose a process's id.
#[test]
fn files_of_root_and_of_the_user_are_taken() {
    if !harness::root() {
        return;
    }
    for user in [0, USER] {
        let (place, file) = with_library();
        for _ in 0..2 {
            place.take(place.start_as(user, &["library", file.to_str().unwrap()]));
            renew(&file);
            renew(&place.path("planted"));
            assert_eq!(place.restore_as(user), (Some(5), "7\n".into()), "user {user}");
        }
        let own = place.path("open/own");
        place.take(place.start_as(user, &["file", own.to_str().unwrap()]));
        assert_eq!(own.metadata().unwrap().mode() & 0o777, 0o664);
        renew(&own);
        fs::OpenOptions::new().append(true).open(&own).unwrap().write_all(b"written after the image").unwrap();
        let (code, said) = place.restore_as(user);
        assert_eq!((code, said.trim_end_matches(['\n', '\0'])), (Some(5), SECRET), "user {user}");
        assert_eq!(own.metadata().unwrap().len(), SECRET.len() as u64 + 1);
        // Everybody may write it since the image was made.
        renew(&own);
        fs::set_permissions(&own, Permissions::from_mode(0o666)).unwrap();
        place.is_refused(user, &own);
    }
}

/// A file that belongs to another user was that user's before, too: the program itself had opened it.
#[test]
fn the_very_file_is_taken_whoever_owns_it() {
    if !harness::root() {
        return;
    }
    for user in [0, USER] {
        let place = Place::new();
        let file = place.file();
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        chown(&file, Some(INTRUDER), Some(INTRUDER)).unwrap();
        // In a sticky folder root's kernel does not open another user's file to create it.
        let same = place.path("same");
        fs::rename(&file, &same).unwrap();
        for is_renewed in [false, true] {
            place.take(place.start_as(user, &["file", same.to_str().unwrap()]));
            if is_renewed {
                renew(&same);
            }
            let (code, said) = place.restore_as(user);
            assert_eq!((code, said.trim_end_matches(['\n', '\0'])), (Some(5), SECRET), "user {user}, {is_renewed}");
        }
    }
}

/// A library of a third user, as on machines where programs belong to an account of their own. An ordinary user's process has no number for that user once it
/// was restored, and it is restored again.
#[test]
fn a_library_of_its_owner_is_taken_again_and_again() {
    if !harness::root() {
        return;
    }
    let (place, file) = with_library();
    chown(&file, Some(INTRUDER), Some(INTRUDER)).unwrap();
    place.take(place.start_as(USER, &["library", file.to_str().unwrap()]));
    for _ in 0..2 {
        renew(&file);
        place.take(Process::start("the restored one", &mut place.command(USER)));
    }
    renew(&file);
    assert_eq!(place.restore_as(USER), (Some(5), "7\n".into()));
    chown(&file, Some(INTRUDER + 1), None).unwrap();
    place.is_refused(USER, &file);
}

/// Gives the calling thread, and what it starts, System V objects of its own.
fn own_segments() {
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWIPC) }, 0);
}

#[test]
fn a_segment_of_another_user_gets_nothing() {
    if !harness::root() {
        return;
    }
    own_segments();
    let place = Place::new();
    compile("planted_segment", &place.path(""));
    let process = place.start_as(0, &["segment"]);
    let number = place.read("output").lines().nth(1).unwrap().to_owned();
    place.take(process);
    assert!(Command::new("ipcrm").args(["-m", &number]).status().unwrap().success());
    fs::write("/proc/sys/kernel/shm_next_id", &number).unwrap();
    let mut intruder = Command::new(place.path("planted_segment"));
    intruder.uid(INTRUDER).gid(INTRUDER).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut intruder = Process::start("the intruder", &mut intruder);
    let mut says = BufReader::new(intruder.child.stdout.take().unwrap());
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    assert_eq!(line, format!("made {number}\n"), "the intruder has the segment's number");
    let restored = place.restore();
    intruder.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    line.clear();
    says.read_line(&mut line).unwrap();
    assert_eq!(line, "holds \n");
    assert_eq!(restored, (Some(5), format!("{SECRET}!\n")), "it has a segment of its own");
}

/// A replay runs beside the process that has the segment.
#[test]
fn a_copy_that_changes_nothing_leaves_the_segment_alone() {
    if !harness::root() {
        return;
    }
    own_segments();
    let place = Place::new();
    let mut process = place.start_as(0, &["segment"]);
    place.save(&mut process);
    let pid = process.pid();
    harness::signal(pid, libc::SIGSTOP).unwrap();
    fs::write(place.path("go"), "").unwrap();
    let mut command = control::restart_alone(&place.path("image"), &[], &place.path("preload.so"), 1).unwrap();
    assert_eq!(Process::start("the copy", command.stdin(Stdio::null()).stdout(Stdio::null())).wait().code(), Some(5));
    harness::signal(pid, libc::SIGCONT).unwrap();
    assert_eq!(process.wait().code(), Some(5));
    let output = place.read("output");
    assert!(output.ends_with(&format!("{SECRET}!\n")), "{output}");
}
