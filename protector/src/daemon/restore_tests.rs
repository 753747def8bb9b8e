//! Programs that are saved by the engine, and brought back by way of a log service, as after the death of their node.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child as StdChild, Command as StdCommand, Stdio};
use std::time::Duration;

use radic_ckpt::control;
use radic_ckpt::{Mode, Request, Tracking};
use radic_wire::ids::Incarnation;
use radic_wire::key::ClusterKey;
use radic_wire::log::{CutStreams, FromProtector, ToProtector};
use radic_wire::login::Channel;
use radic_wire::mac::JobKey;
use radic_wire::span::Span;
use tokio::task::LocalSet;

use super::super::sys;
use super::*;
use crate::logs::client::Client;
use crate::logs::{self, Logs, StoreOrder};
use crate::store::Speaker;

/// Far more than anything takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits for a file, tells its process id, also to the socket that is named in that file, and ends as it is told.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static volatile int terms;
static void term(int signal) { (void)signal; terms++; }

int main(int count, char **words) {
    size_t bytes = (size_t)atoi(words[2]) << 20;
    unsigned char *ballast = malloc(bytes);
    for (size_t at = 0; at < bytes; at++) ballast[at] = at * 7 >> 3;
    signal(SIGTERM, term);
    puts("ready");
    fflush(stdout);
    char name[100] = "";
    int file;
    while ((file = open(words[1], O_RDONLY)) < 0 || read(file, name, sizeof name - 1) <= 0) usleep(1000);
    for (size_t at = 0; at < bytes; at++) if (ballast[at] != (unsigned char)(at * 7 >> 3)) return 3;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path + 1, name);
    int caller = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(caller, (void *)&address, sizeof address.sun_family + 1 + strlen(name))) return 4;
    printf("%d %d %d\n", getpid(), getpgrp(), getsid(0));
    fprintf(stderr, "to stderr\n");
    char line[100];
    if (!fgets(line, sizeof line, stdin)) return 5;
    printf("heard %s", line);
    fflush(stdout);
    if (line[0] == 'e') return 7;
    while (!terms) usleep(1000);
    usleep(50000);
    return 100 + terms;
}
"#;

fn id() -> ProcessId {
    ProcessId { job: JobId::from_bits(0xabc), rank: Rank(0) }
}

fn cluster() -> ClusterKey {
    ClusterKey::from_bytes([3; 32])
}

/// A program that runs under the checkpoint library.
struct Program {
    dir: tempfile::TempDir,
    child: StdChild,
    flag: PathBuf,
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Program {
    fn start(mebibytes: usize) -> Program {
        let dir = tempfile::tempdir().unwrap();
        let (source, program, flag) = (dir.path().join("p.c"), dir.path().join("p"), dir.path().join("flag"));
        std::fs::write(&source, PROGRAM).unwrap();
        let compiled = StdCommand::new("gcc").args(["-O1", "-o"]).args([&program, &source]).status().unwrap();
        assert!(compiled.success());
        let mut command = StdCommand::new(&program);
        command.arg(&flag).arg(mebibytes.to_string()).env("LD_PRELOAD", library()).current_dir(dir.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        sys::prepare_rank(
            &mut command,
            sys::Preparation { pmi_fd: None, limit: (1024, 4096), umask: 0o22, fixed_addresses: true, is_prompt: false },
        );
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Program { dir, child, flag }
    }

    fn kill(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }

    /// A full image and two increments.
    fn save(&self) -> Vec<Vec<u8>> {
        let (mut images, mut parent) = (Vec::new(), 0);
        for _ in 0..3 {
            let path = self.dir.path().join("image");
            let request = Request { mode: Mode::Fork, tracking: Tracking::Best, compress: false, parent };
            let saved = control::save(self.child.id() as i32, request, &path).unwrap();
            assert_eq!(saved.parent, parent);
            parent = saved.id;
            images.push(std::fs::read(path).unwrap());
        }
        images
    }
}

fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libradic_ckpt_preload.so");
    assert!(library.exists(), "{}", library.display());
    library
}

/// A log service that has these images of the process, and has fenced it, and what its next incarnation begins with.
fn lost(dir: &Path, images: &[Vec<u8>]) -> (Logs, Vec<(u64, u64)>) {
    let (logs, _events) = logs::start(logs::Config::new("127.0.0.1".parse().unwrap(), dir.into(), cluster())).unwrap();
    logs.order(StoreOrder::SetReplica(id(), None));
    let key = JobKey::derive(&cluster(), id().job);
    let speaker = Speaker { process: id(), incarnation: Incarnation::FIRST };
    let open = |channel| Client::open(logs.address(), &key, speaker, channel, LIMIT).unwrap();
    let mut journal = open(Channel::Journal);
    let (process, incarnation) = (speaker.process, speaker.incarnation);
    journal.send(&ToProtector::hello(process, incarnation, Span::default(), Span::default())).unwrap();
    for (number, bytes) in images.iter().enumerate() {
        let image = number as u64;
        let (parent, streams) = (image.checked_sub(1), CutStreams::new(&[]).unwrap());
        let mut connection = open(Channel::Image);
        connection.send(&ToProtector::image_by_itself(image, parent, (0, 0), 0, streams, streams)).unwrap();
        connection.send_bytes(bytes).unwrap();
        connection.end().unwrap();
        assert!(connection.receive().is_err());
        let is_committed =
            |body: &[u8]| matches!(FromProtector::read(body), Ok(FromProtector::Committed { image: of, .. }) if of == image);
        while !is_committed(&journal.receive().unwrap()) {}
    }
    let restart = logs.fence(id(), Incarnation::restarted(1), Vec::new(), 0).blocking_recv().unwrap().unwrap();
    assert_eq!(restart.images.len(), images.len());
    (logs, restart.images)
}

/// The daemon's part that brings processes back, and what it has said.
struct Driver {
    processes: Processes,
    prepared: mpsc::Receiver<Prepared>,
    done: mpsc::UnboundedReceiver<Done>,
    inputs: mpsc::Receiver<Input>,
    /// What it has said and was not looked at.
    answers: VecDeque<Input>,
}

impl Driver {
    fn new(store: &Path) -> Driver {
        let (sender, inputs) = mpsc::channel(64);
        let (restores, prepared) = Restores::new(cluster(), std::sync::Arc::new(crate::folder::Folder::open(store).unwrap()));
        let name: NodeName = "n1".parse().unwrap();
        let (launcher, done) = Launcher::start(name.clone(), (1024, 4096), 0x77).unwrap();
        let processes = Processes::new(sender, name, restores, launcher);
        Driver { processes, prepared, done, inputs, answers: VecDeque::new() }
    }

    async fn bring_back(&mut self, order: RestoreOrder) -> Result<u32, String> {
        assert!(self.processes.handle(id().job, HostOutput::Restore(id().rank, order)).is_none());
        self.answer().await
    }

    async fn answer(&mut self) -> Result<u32, String> {
        loop {
            match self.next().await {
                Input::Fetched(_, Err(error)) => return Err(format!("images: {error}")),
                Input::Spawned(_, result) => return result.map_err(|error| error.error),
                Input::Fetched(_, Ok(())) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// What the node hears next of what is prepared or started.
    async fn next(&mut self) -> Input {
        loop {
            if let Some(input) = self.answers.pop_front() {
                return input;
            }
            let answers = tokio::select! {
                Some(done) = self.done.recv() => self.processes.handle_done(done),
                Some(prepared) = self.prepared.recv() => self.processes.handle_prepared(prepared),
                () = tokio::time::sleep(LIMIT) => panic!("nothing happens"),
            };
            self.answers.extend(answers);
        }
    }

    /// Its whole output up to a line that is as said, or to the end.
    async fn output(&mut self, stream: OutputStream, until: &str) -> String {
        let mut text = String::new();
        while until.is_empty() || !text.contains(until) {
            assert!(self.processes.handle(id().job, HostOutput::Read(id().rank, stream)).is_none());
            match tokio::time::timeout(LIMIT, self.inputs.recv()).await.unwrap().unwrap() {
                Input::ProcessOutput(_, _, piece) if piece.is_empty() => break,
                Input::ProcessOutput(_, of, piece) if of == stream => text += str::from_utf8(&piece).unwrap(),
                Input::StdinTaken(..) => {}
                other => panic!("{other:?} while {text:?} had come"),
            }
        }
        text
    }

    async fn exit(&mut self) -> ExitStatus {
        loop {
            match tokio::time::timeout(LIMIT, self.inputs.recv()).await.unwrap().unwrap() {
                Input::Exited(process, status) => {
                    self.processes.handle_exited(process, status);
                    return status;
                }
                // Whatever was still to be read.
                Input::StdinTaken(..) | Input::ProcessOutput(_, OutputStream::Stdout, _) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(test));
}

/// The socket that the program calls, and the process that calls as the kernel says.
fn meeting(program: &Program) -> UnixListener {
    let name = format!("radic-restore-test-{:016x}", getrandom::u64().unwrap());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    std::fs::write(program.flag.with_extension("new"), &name).unwrap();
    std::fs::rename(program.flag.with_extension("new"), &program.flag).unwrap();
    listener
}

fn caller(listener: &UnixListener) -> u32 {
    let (socket, _) = listener.accept().unwrap();
    nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials).unwrap().pid() as u32
}

fn order(logs: &Logs, local: bool, images: Vec<(u64, u64)>) -> RestoreOrder {
    let library = library().to_string_lossy().into_owned();
    let (process, incarnation, log, kvsname) = (id(), Incarnation::restarted(1), logs.address(), "k".to_owned());
    RestoreOrder { process, incarnation, log, local, replica: None, images, kvsname, stdin: true, library }
}

/// Brings a program back, from its protector's files or from elsewhere, once it was killed, or beside itself where its ids are
/// taken.
fn comes_back(local: bool, killed: bool, last_word: &'static str, expected: ExitStatus) {
    let mut program = Program::start(8);
    let (images, old) = (program.save(), program.child.id());
    if killed {
        program.kill();
    } else {
        // Its ids are taken, and it does not answer in the place of the other.
        nix::sys::signal::kill(Pid::from_raw(old as i32), Signal::SIGSTOP).unwrap();
    }
    let (store, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (logs, images) = lost(store.path(), &images);
    run(async move {
        let mut driver = Driver::new(if local { store.path() } else { elsewhere.path() });
        let pid = driver.bring_back(order(&logs, local, images)).await.unwrap();
        driver.processes.handle_restored(id(), pid + 1);
        assert!(driver.processes.processes[&id()].readers.values().all(|reader| reader.held.is_some()), "that was another");
        // Before it writes anything, as a process that is really brought back waits for its answer.
        driver.processes.handle_restored(id(), pid);
        driver.processes.handle_live(pid);
        let listener = meeting(&program);
        assert_eq!(caller(&listener), pid, "the kernel names the process that was started");
        assert!(killed || pid != old);
        let data = ByteBuf::from(format!("{last_word}\n"));
        driver.processes.handle(id().job, HostOutput::Stdin { number: 1, data });
        let text = driver.output(OutputStream::Stdout, "heard").await;
        let mut words = text.split_whitespace();
        let ids: Vec<u32> = words.by_ref().take(3).map(|word| word.parse().unwrap()).collect();
        if control::kept_by(driver.processes.processes[&id()].child).is_some() {
            assert_eq!(ids, [old; 3], "its own pid, the leader of its group and session: {text}");
        }
        assert_eq!(words.collect::<Vec<_>>(), ["heard", last_word]);
        if expected == ExitStatus::Signal(libc::SIGKILL) {
            driver.processes.handle(id().job, HostOutput::Signal(id().rank, libc::SIGKILL));
        } else if last_word == "wait" {
            driver.processes.handle(id().job, HostOutput::Signal(id().rank, libc::SIGTERM));
        }
        assert_eq!(driver.exit().await, expected);
        let text = driver.output(OutputStream::Stderr, "").await;
        assert_eq!(text, "to stderr\n", "and nothing of ours");
    });
}

#[test]
fn a_process_comes_back_from_another_node_and_its_exit_code_arrives() {
    comes_back(false, true, "end", ExitStatus::Code(7));
}

#[test]
fn a_process_comes_back_from_this_nodes_files_and_hears_a_signal_once() {
    comes_back(true, true, "wait", ExitStatus::Code(101));
}

#[test]
fn a_process_comes_back_whose_ids_are_taken() {
    comes_back(true, false, "wait", ExitStatus::Code(101));
}

#[test]
fn a_process_that_came_back_is_killed() {
    comes_back(false, true, "wait", ExitStatus::Signal(libc::SIGKILL));
    comes_back(false, false, "wait", ExitStatus::Signal(libc::SIGKILL));
}

#[test]
fn what_is_missing_here_is_said_and_what_is_given_up_is_answered() {
    let mut program = Program::start(1);
    let images = program.save();
    program.kill();
    let (store, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (logs, images) = lost(store.path(), &images);
    run(async move {
        let mut driver = Driver::new(elsewhere.path());
        let wanted = order(&logs, false, images.clone());
        let none = RestoreOrder { images: Vec::new(), ..wanted.clone() };
        assert!(driver.bring_back(none).await.unwrap_err().contains("no image"));
        let unknown = RestoreOrder { images: vec![(9, 100)], ..wanted.clone() };
        assert!(driver.bring_back(unknown).await.unwrap_err().contains("image 9"));
        let library = RestoreOrder { library: "/nowhere/lib.so".into(), ..wanted.clone() };
        assert!(driver.bring_back(library).await.unwrap_err().contains("/nowhere/lib.so"));
        // The first order is replaced by the second, which is given up.
        driver.processes.handle(id().job, HostOutput::Restore(id().rank, wanted.clone()));
        driver.processes.handle(id().job, HostOutput::Restore(id().rank, wanted.clone()));
        driver.processes.handle(id().job, HostOutput::Signal(id().rank, libc::SIGTERM));
        assert_eq!(driver.answer().await.unwrap_err(), "images: given up");
        std::fs::rename(program.dir.path().join("p"), program.dir.path().join("q")).unwrap();
        let error = driver.bring_back(wanted.clone()).await.unwrap_err();
        assert!(error.contains("its program") && error.contains("/p is not on this node"), "{error}");
    });
}

/// One bit of one image of three.
#[test]
fn a_damaged_image_is_refused_and_the_replica_s_copy_taken() {
    let mut program = Program::start(1);
    let images = program.save();
    program.kill();
    let (store, copies, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ((logs, images), (replica, _)) = (lost(store.path(), &images), lost(copies.path(), &images));
    let damaged = logs.image_path(id(), 1);
    let mut bytes = std::fs::read(&damaged).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&damaged, bytes).unwrap();
    run(async move {
        for (local, dir) in [(true, store.path()), (false, elsewhere.path())] {
            let mut driver = Driver::new(dir);
            let alone = order(&logs, local, images.clone());
            let error = driver.bring_back(alone.clone()).await.unwrap_err();
            assert!(error.contains("image 1: its code") && error.contains("--replicas 2"), "{error}");
            let unborn =
                RestoreOrder { replica: Some(replica.address()), incarnation: Incarnation::restarted(2), ..alone.clone() };
            let error = driver.bring_back(unborn).await.unwrap_err();
            assert!(error.contains("; and its replica: "), "of an incarnation that it has not heard of: {error}");
            let both = RestoreOrder { replica: Some(replica.address()), ..alone };
            driver.processes.handle(id().job, HostOutput::Restore(id().rank, both));
            let damage = driver.next().await;
            let Input::StoreEvent(EventName::Store, Some(of), text) = &damage else { panic!("{damage:?}") };
            assert!(matches!(driver.next().await, Input::Fetched(_, Ok(()))));
            assert!(matches!(driver.next().await, Input::Spawned(_, Ok(_))));
            assert!(*of == id() && text.starts_with("image 1: its code") && text.ends_with("copy is taken"), "{text}");
        }
    });
}

#[test]
fn four_processes_of_100_mib_are_ready_in_time() {
    let program = Program::start(100);
    let images = program.save();
    let (store, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (logs, images) = lost(store.path(), &images);
    run(async move {
        for (local, chain, what) in [(false, 1, "fetched"), (true, 1, "here"), (false, 3, "fetched, with increments")] {
            let dir = if local { store.path() } else { elsewhere.path() };
            // One each: the service knows only one process.
            let mut drivers = [(); 4].map(|()| Driver::new(dir));
            let began = Instant::now();
            for driver in &mut drivers {
                driver.processes.restores.begin(order(&logs, local, images[..chain].to_vec()));
            }
            for driver in &mut drivers {
                assert!(matches!(driver.next().await, Input::Fetched(_, Ok(()))));
            }
            println!("4 x 100 MiB {what}: verified and ready after {:?}", began.elapsed());
        }
    });
}

/// Its number may be another group's as soon as the rank was waited for.
#[test]
fn a_group_gets_its_last_signal_before_its_rank_is_waited_for() {
    let store = tempfile::tempdir().unwrap();
    run(async move {
        let mut driver = Driver::new(store.path());
        let args = ["sh", "-c", "sleep 1000 & exit 3"].map(ByteBuf::from).to_vec();
        let (program, dir, env, kvsname) = (ByteBuf::from("/bin/sh"), ByteBuf::from("/"), Vec::new(), "k".to_owned());
        let order =
            SpawnOrder { program, args, env, dir, kvsname, stdin: false, umask: 0o22, library: None, is_protected: false };
        assert!(driver.processes.handle(id().job, HostOutput::Spawn(id().rank, order)).is_none());
        let pid = driver.answer().await.unwrap();
        let end = tokio::time::timeout(LIMIT, driver.inputs.recv()).await.unwrap().unwrap();
        let Input::Exited(_, status) = end else { panic!("{end:?}") };
        assert_eq!(status, ExitStatus::Code(3));
        // Nothing was done about that yet.
        let begun = Instant::now();
        while nix::sys::signal::killpg(Pid::from_raw(pid as i32), None) == Ok(()) {
            assert!(begun.elapsed() < Duration::from_secs(5), "what the rank has left waits for a signal by number");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!driver.processes.processes[&id()].is_alive(), "no signal is sent by that number any more");
        driver.processes.handle_exited(id(), status);
    });
}
