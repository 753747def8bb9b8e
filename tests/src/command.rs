//! Commands: started, watched, waited for, each with a limit in time.

use std::ffi::OsStr;
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::{self, Process};

/// Time that a command has if nothing else was said.
pub const LIMIT: Duration = Duration::from_secs(20);
/// How much of an output is shown with a failure, in bytes.
const SHOWN: usize = 4000;

/// A command that is to be run.
#[derive(Debug)]
pub struct Invocation {
    command: Command,
    stdin: Input,
    limit: Duration,
}

#[derive(Debug)]
enum Input {
    Empty,
    Bytes(Vec<u8>),
    Open,
}

impl Invocation {
    /// Of a program found as usual. Its standard input is empty, and it ignores no signal, whatever this test was started by: a
    /// shell lets what it starts in the background ignore SIGINT and SIGQUIT, and children inherit that.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new("env");
        command.args(["--default-signal".as_ref(), "--".as_ref(), program.as_ref()]);
        Invocation { command, stdin: Input::Empty, limit: LIMIT }
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Removes a variable.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Runs it as this user, and in the group of the same number. Only root can do that.
    pub fn user(mut self, id: u32) -> Self {
        self.command.uid(id).gid(id);
        self
    }

    /// Sets the working directory.
    pub fn dir(mut self, dir: impl AsRef<std::path::Path>) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Its standard input.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Input::Bytes(bytes.into());
        self
    }

    /// Its standard input stays open; [`Running::type_in`] writes to it.
    pub fn stdin_open(mut self) -> Self {
        self.stdin = Input::Open;
        self
    }

    /// Time for the whole; a command that takes longer is killed and fails the test.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it to its end.
    pub fn run(self) -> Finished {
        self.start().wait()
    }

    /// Starts it.
    pub fn start(self) -> Running {
        self.start_with_stderr(Stdio::piped())
    }

    /// Starts it with another stderr than a captured one.
    pub fn start_with_stderr(mut self, stderr: Stdio) -> Running {
        // Without the words of `env`.
        let words = self.command.get_args().skip(2);
        let what = words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
        let stdin = if matches!(self.stdin, Input::Empty) { Stdio::null() } else { Stdio::piped() };
        let spawned = self.command.stdin(stdin).stdout(Stdio::piped()).stderr(stderr).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("cannot start {what}: {error}"));
        let process = Process::open(child.id()).expect("a child that was not waited for");
        let capture = Arc::new(Capture::default());
        let stdout = child.stdout.take().expect("it was piped");
        capture.start(Stream::Out, stdout);
        if let Some(stderr) = child.stderr.take() {
            capture.start(Stream::Err, stderr);
        }
        let stdin = match (self.stdin, child.stdin.take()) {
            (Input::Bytes(bytes), Some(mut pipe)) => {
                // A reader that does not want all of it is no failure of the writer.
                thread::spawn(move || _ = pipe.write_all(&bytes));
                None
            }
            (_, pipe) => pipe,
        };
        let started = Instant::now();
        Running { what, child, process, stdin, capture, started, deadline: started + self.limit }
    }
}

#[derive(Debug, Clone, Copy)]
enum Stream {
    Out,
    Err,
}

/// What a command has said so far.
#[derive(Debug, Default)]
struct Said {
    out: Vec<u8>,
    err: Vec<u8>,
    /// Streams that have not ended.
    open: u32,
}

#[derive(Debug, Default)]
struct Capture {
    said: Mutex<Said>,
    changed: Condvar,
}

impl Capture {
    fn lock(&self) -> MutexGuard<'_, Said> {
        self.said.lock().expect("no reader panics")
    }

    /// Reads a stream to its end, in a thread of its own.
    fn start(self: &Arc<Self>, stream: Stream, mut pipe: impl Read + Send + 'static) {
        self.lock().open += 1;
        let capture = self.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            loop {
                let count = pipe.read(&mut buffer).unwrap_or(0);
                let mut said = capture.lock();
                match stream {
                    Stream::Out => said.out.extend_from_slice(&buffer[..count]),
                    Stream::Err => said.err.extend_from_slice(&buffer[..count]),
                }
                said.open -= u32::from(count == 0);
                capture.changed.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
    }
}

/// A command that runs. It is killed if it is dropped.
#[derive(Debug)]
pub struct Running {
    what: String,
    child: Child,
    process: Process,
    stdin: Option<ChildStdin>,
    capture: Arc<Capture>,
    started: Instant,
    deadline: Instant,
}

impl Running {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Gives it so much time from now on.
    pub fn give(mut self, limit: Duration) -> Self {
        self.deadline = Instant::now() + limit;
        self
    }

    /// Writes to its standard input.
    pub fn type_in(&mut self, bytes: &[u8]) {
        let pipe = self.stdin.as_mut().expect("stdin_open() was asked for");
        pipe.write_all(bytes).expect("the command reads its input");
    }

    /// Ends its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// What it has said on stdout so far.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.capture.lock().out).into_owned()
    }

    /// What it has said on stderr so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.capture.lock().err).into_owned()
    }

    /// Waits until what it has said on stdout and stderr is such that `look` finds something.
    pub fn until<T>(&mut self, goal: &str, mut look: impl FnMut(&str, &str) -> Option<T>) -> T {
        let capture = self.capture.clone();
        let mut said = capture.lock();
        loop {
            let found = look(&String::from_utf8_lossy(&said.out), &String::from_utf8_lossy(&said.err));
            let left = self.deadline.saturating_duration_since(Instant::now());
            match found {
                Some(found) => return found,
                None if said.open == 0 || left.is_zero() => {
                    let why = if said.open == 0 { "it ended without it" } else { "it did not come in time" };
                    drop(said);
                    self.fail(&format!("waited for {goal}: {why}"));
                }
                None => said = capture.changed.wait_timeout(said, left).expect("no reader panics").0,
            }
        }
    }

    /// Waits for a line on stdout.
    pub fn until_line(&mut self, line: &str) {
        self.until(&format!("the line {line:?}"), |out, _| out.lines().any(|l| l == line).then_some(()));
    }

    /// Whether it ends within this time.
    pub fn ends_within(&self, limit: Duration) -> bool {
        self.process.wait(limit)
    }

    /// Whether it ends before its time is over.
    pub fn ends_by_itself(&self) -> bool {
        self.process.wait(self.deadline.saturating_duration_since(Instant::now()))
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Finished {
        self.stdin = None;
        if !self.ends_by_itself() {
            self.fail("it did not end in time");
        }
        let elapsed = self.started.elapsed();
        let status = self.child.wait().expect("a child of ours");
        let capture = self.capture.clone();
        let mut said = capture.lock();
        while said.open > 0 {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(said);
                self.fail("it ended, but something holds its output open");
            }
            said = capture.changed.wait_timeout(said, left).expect("no reader panics").0;
        }
        let (out, err) = (std::mem::take(&mut said.out), std::mem::take(&mut said.err));
        Finished { what: self.what.clone(), status, out, err, elapsed }
    }

    /// Kills it and fails the test. What it and its cluster's processes make of signals is shown: it may have waited for one.
    pub fn fail(&mut self, why: &str) -> ! {
        let signals = process::signals_of_cluster(self.pid());
        self.process.signal(Signal::KILL);
        let after = self.started.elapsed();
        let (out, err) = (self.stdout(), self.stderr());
        panic!("{}\n{why} (after {after:.1?})\n{}\n--- signals\n{signals}", self.what, shown(&out, &err))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.signal(Signal::KILL);
        _ = self.child.wait();
    }
}

fn shown(out: &str, err: &str) -> String {
    format!("--- stdout\n{}\n--- stderr\n{}", tail(out), tail(err))
}

/// The end of a text.
pub(crate) fn tail(text: &str) -> &str {
    let mut start = text.len().saturating_sub(SHOWN);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    what: String,
    status: ExitStatus,
    out: Vec<u8>,
    err: Vec<u8>,
    /// How long it took.
    pub elapsed: Duration,
}

impl Finished {
    /// Its exit code; none if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// What it wrote to stdout.
    pub fn bytes(&self) -> &[u8] {
        &self.out
    }

    /// What it wrote to stdout, as text.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// What it wrote to stderr.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.err).into_owned()
    }

    /// Fails the test unless it ended with this exit code.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), Some(code), "exit code of {self}");
        self
    }

    /// Fails the test unless stderr holds each of these.
    pub fn expect_stderr(self, parts: &[&str]) -> Self {
        let err = self.stderr();
        parts.iter().for_each(|part| assert!(err.contains(part), "{part:?} is missing in stderr of {self}"));
        self
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finished { what, status, elapsed, .. } = self;
        write!(f, "{what}\n{status} after {elapsed:.1?}\n{}", shown(&self.stdout(), &self.stderr()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Invocation {
        Invocation::new("sh").args(["-c", script])
    }

    #[test]
    fn output_and_code_are_captured() {
        let finished = sh("cat; echo err >&2; exit 3").stdin("in\n").run().expect(3).expect_stderr(&["err"]);
        assert_eq!(finished.stdout(), "in\n");
    }

    #[test]
    fn what_is_typed_arrives_and_the_end_too() {
        let mut cat = Invocation::new("cat").stdin_open().start();
        cat.type_in(b"one\n");
        cat.until_line("one");
        cat.close_stdin();
        cat.wait().expect(0);
    }

    #[test]
    #[should_panic(expected = "did not end in time")]
    fn a_hang_fails() {
        sh("echo before; exec sleep 1000").limit(Duration::from_millis(200)).run();
    }

    #[test]
    #[should_panic(expected = "waited for the line \"never\": it ended without it")]
    fn waiting_for_what_never_comes_fails() {
        sh("echo something else").start().until_line("never");
    }
}
