//! Other users at the socket between a process and the requester of a checkpoint: they give no image, and get none.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

use radic_ckpt::control::{self, ControlError};
use radic_ckpt::{Mode, Request, image};

use crate::harness::{self, Process, compile, library, signal};

/// An ordinary user.
const USER: u32 = 64_001;
/// Another user, the attacker.
const INTRUDER: u32 = 64_002;
/// The user as which a process sees all users that have no number in its namespace.
const UNMAPPED: u32 = 65_534;

/// A folder that every user may read, with programs and the library. Names of abstract sockets are this thread's and its children's alone: the attacker takes the first
/// request that it sees, which must not be that of another test.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        harness::own_names().unwrap();
        let place = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        for program in ["counter", "itself", "intruder"] {
            compile(program, place.path());
        }
        fs::copy(library(), place.library()).unwrap();
        place
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn library(&self) -> PathBuf {
        self.path().join("library.so")
    }

    /// Starts a program that can be saved, by way of another command.
    fn start(&self, program: &str, under: &mut Command) -> Process {
        under.arg("/usr/bin/env").arg(format!("LD_PRELOAD={}", self.library().display())).arg(self.path().join(program));
        under.current_dir(self.path()).stdin(Stdio::null()).stdout(Stdio::null());
        Process::start(program, under)
    }

    /// A program that counts, of a user in a user namespace in which there is no other.
    fn start_in_namespace(&self, user: u32) -> Process {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", &format!("--map-user={user}"), &format!("--map-group={user}"), "--"]);
        self.start("counter", unshare.uid(user).gid(user))
    }

    /// The other user, who says the content of a file.
    fn intrude(&self, how: &str, says: &Path) -> Intruder {
        fs::set_permissions(says, Permissions::from_mode(0o644)).unwrap();
        let mut command = Command::new(self.path().join("intruder"));
        command.args([how, "radic-ckpt-"]).arg(says).uid(INTRUDER).gid(INTRUDER).stdout(Stdio::piped());
        let mut process = Process::start("intruder", &mut command);
        let stdout = BufReader::new(process.child.stdout.take().unwrap());
        Intruder { process, stdout }
    }
}

struct Intruder {
    process: Process,
    stdout: BufReader<ChildStdout>,
}

impl Intruder {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn result(mut self) -> String {
        let line = self.line();
        assert!(self.process.wait().success(), "{line}");
        line
    }
}

fn program_of(path: &Path) -> PathBuf {
    let report = image::inspect(fs::File::open(path).unwrap()).unwrap();
    String::from_utf8(report.meta.process.exe).unwrap().into()
}

/// The name where the requester waits is no secret. The kernel says which process calls; no other is heard, and the right one is waited for.
#[test]
fn an_image_is_taken_from_the_process_alone() {
    if !harness::root() {
        return;
    }
    let place = Place::new();
    assert_eq!(place.start("itself", Command::new("env").current_dir(place.path())).wait().code(), Some(0));
    let forged = place.path().join("image");
    let mut process = place.start("counter", Command::new("setpriv").args(["--reuid=64001", "--regid=64001", "--clear-groups"]));
    let (pid, saved) = (process.pid(), place.path().join("saved"));
    // It cannot answer before the intruder has called.
    signal(pid, libc::SIGSTOP).unwrap();
    let mut intruder = place.intrude("call", &forged);
    let result = std::thread::scope(|scope| {
        let saving = scope.spawn(|| control::save(pid, Mode::Fork, &saved));
        assert_eq!(intruder.line(), "first");
        signal(pid, libc::SIGCONT).unwrap();
        saving.join().unwrap()
    });
    result.unwrap();
    assert_eq!(program_of(&saved), place.path().join("counter"));
    let got = intruder.result();
    assert!(got.ends_with(" 0 bytes"), "nobody else hears what is asked: {got}");
    assert_eq!(process.wait().code(), Some(7));
}

/// A process in a user namespace sees root as it sees every user that has no number there.
#[test]
fn root_saves_a_process_that_knows_no_root() {
    if !harness::root() {
        return;
    }
    let place = Place::new();
    for user in [USER, UNMAPPED] {
        let mut process = place.start_in_namespace(user);
        let saved = place.path().join(format!("saved-{user}"));
        let told = control::save(process.pid(), Mode::Fork, &saved).unwrap_or_else(|error| panic!("user {user}: {error}"));
        assert!(told.notes.iter().any(|note| note.contains(&format!("it is user {user}'s"))), "{:?}", told.notes);
        assert_eq!(program_of(&saved), place.path().join("counter"));
        assert_eq!(process.wait().code(), Some(7));
    }
}

/// The requester has gone, and another user has taken its name. The process has been asked, and calls there: it gives nothing away.
#[test]
fn an_image_is_given_to_the_requester_alone() {
    if !harness::root() {
        return;
    }
    let place = Place::new();
    for user in [USER, UNMAPPED] {
        // The best request that can be made without the secret of this one.
        let request = place.path().join("request");
        fs::write(&request, [&Request::from(Mode::Fork).encode()[..], &[0; 64]].concat()).unwrap();
        let mut process = place.start_in_namespace(user);
        let pid = process.pid();
        signal(pid, libc::SIGSTOP).unwrap();
        let mut squatter = place.intrude("squat", &request);
        let error = control::save(pid, Mode::Fork, &place.path().join("saved")).unwrap_err();
        assert!(matches!(error, ControlError::Silent(_)), "{error}");
        assert_eq!((squatter.line(), squatter.line()), ("seen".into(), "bound".into()));
        signal(pid, libc::SIGCONT).unwrap();
        let got = squatter.result();
        assert!(got.starts_with("1 calls") && !got.contains("RADICKPT"), "user {user}: {got}");
        assert_eq!(process.wait().code(), Some(7));
    }
}
