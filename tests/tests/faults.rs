//! What goes wrong below the logs and images of protected jobs: the disk, the memory, the clock, the protector itself. A job ends as if nothing had happened,
//! or restarts from its beginning and does; the fault is named where a user looks.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use radic_tests::Running;
use radic_tests::client::Events;
use radic_tests::cluster::{Cluster, Kind, Setup};
use radic_tests::library::{MPICH, compiled};
use radic_tests::process::eventually;
use radic_tests::random::Random;
use radic_tests::recovery::{
    FLAGS, HOSTS, LIMIT, RANKS, SOON, command_of, due, events_of, expect_same, first_checkpoints, is_long,
};
use radic_wire::event::{Event, EventName};
use radic_wire::ids::{JobId, Rank};
use rustix::process::Signal;

type Program = (&'static str, &'static [&'static str]);

/// Rounds with a pause in them: two seconds and more, whatever else the machine does.
const ROUNDS: Program = ("rounds", &["--rounds", "1500", "--mib", "4", "--pause", "1"]);
/// The same for longer.
const MORE_ROUNDS: Program = ("rounds", &["--rounds", "2500", "--mib", "4", "--pause", "1"]);
/// Each rank receives some 10 MiB.
const JACOBI: Program = ("jacobi", &["--size", "800", "--iterations", "1500", "--progress", "50", "--alone", "0"]);
/// For some seconds, also on a machine with nothing else to do.
const LONG_JACOBI: Program = ("jacobi", &["--size", "800", "--iterations", "4000", "--progress", "100", "--alone", "0"]);
/// Checkpoints come only when they are asked for.
const ASKED: &str = "--nodes n2,n3,n4,n5 --protect on --ckpt-interval never";
/// Images of five ranks and of what is under way.
const SMALL_DISK: &str = "96m";
/// Mounts a file system of its own on a node's store, which ends with the node, and executes the rest of its words.
const MOUNT: &str = "mkdir -p \"$1\" && mount -t tmpfs -o size=$2,mode=700 small \"$1\" && shift 2 && exec \"$@\"";
/// Time in which a node that was given up must find out, when it is awake.
const FENCED: Duration = Duration::from_secs(14);

fn logical() -> Cluster {
    Setup::new(Kind::Logical, RANKS + 1).start()
}

/// As many nodes, each under these commands and with these flags.
fn nodes(wrapper: &[&str], flags: &[&str]) -> Cluster {
    let mut cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    (1..=RANKS + 1).for_each(|number| cluster.start_node_under(wrapper, &format!("n{number}"), flags));
    cluster
}

/// The node that protects a rank.
fn protector(rank: usize) -> String {
    format!("n{}", (rank + 2) % (RANKS + 1) + 1)
}

/// A job under way of which there is a checkpoint of each rank, and what it has to print.
struct Case {
    cluster: Cluster,
    events: Events,
    job: Running,
    id: JobId,
    due: Vec<String>,
}

impl Case {
    fn start(cluster: Cluster, flags: &str, program: Program) -> Case {
        Case::start_with(cluster, flags, program, &[])
    }

    /// With these variables in the command's environment, and that of the ranks.
    fn start_with(cluster: Cluster, flags: &str, program: Program, environment: &[(&str, &str)]) -> Case {
        let command = command_of(&MPICH, program);
        let due = due(&MPICH, &cluster, &command);
        let mut events = cluster.events_at("n1");
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let job = MPICH.job(&cluster, RANKS, flags, &words).limit(LIMIT);
        let mut job = environment.iter().fold(job, |job, (name, value)| job.env(name, value)).start();
        let id = first_checkpoints(&mut events, RANKS);
        job.until("its first line", |out, _| (!out.is_empty()).then_some(()));
        Case { cluster, events, job, id, due }
    }

    /// A checkpoint of each rank.
    fn checkpoint(&self) {
        self.cluster.radic(["checkpoint", &self.id.to_string()]).limit(SOON).run().expect(0);
    }

    fn kill(&self, node: &str) {
        assert!(!self.job.ends_within(Duration::ZERO), "the job is too short");
        self.cluster.radic(["inject", "kill-node", node]).run().expect(0);
    }

    /// Waits for something that happens to a rank.
    fn expect(&mut self, what: &str, rank: usize, name: EventName) -> Event {
        let of_rank = |event: &Event| event.event == name && event.rank == Some(Rank(rank as u32));
        self.events.expect(what, SOON, of_rank)
    }

    /// Ends as the undisturbed run; what happened until then.
    fn end(self, what: &str) -> Seen {
        let finished = expect_same(&self.cluster, self.job, &self.due, what);
        println!("{what}: {:.2} s", finished.elapsed.as_secs_f64());
        let seen = events_of(&self.cluster, self.id);
        self.cluster.assert_idle();
        self.cluster.stop();
        Seen(seen)
    }
}

/// What has happened to a job.
#[derive(Debug)]
struct Seen(Vec<Event>);

impl Seen {
    fn count(&self, name: EventName, words: &str) -> usize {
        self.0.iter().filter(|event| event.event == name && event.text.contains(words)).count()
    }

    /// Ranks that were lost have gone on, so often, and no job restarted from its beginning.
    fn expect_back(&self, times: usize) {
        let seen = (self.count(EventName::Live, ""), self.count(EventName::Restart, ""));
        assert_eq!(seen, (times, 0), "back, restarted: {self:#?}");
    }
}

/// What becomes of a file.
#[derive(Debug, Clone, Copy)]
enum Damage {
    /// Some bits are others.
    Bits,
    /// Its end is missing.
    Cut,
    /// It is gone.
    Gone,
    /// The bits of the code beside it are others.
    Code,
}

impl Damage {
    fn any(random: &mut Random) -> Damage {
        [Damage::Bits, Damage::Bits, Damage::Cut, Damage::Gone, Damage::Code][random.below(5)]
    }

    fn hit(self, image: &Path, random: &mut Random) {
        let code = image.with_file_name(format!("{}.mac", image.file_name().expect("a file").to_string_lossy()));
        let path = if let Damage::Code = self { &code } else { image };
        let mut bytes = fs::read(path).expect("an image that is committed, and its code");
        match self {
            Damage::Gone => return fs::remove_file(path).expect("it is there"),
            Damage::Cut => bytes.truncate(random.below(bytes.len())),
            Damage::Bits | Damage::Code => {
                for _ in 0..=random.below(3) {
                    let bit = random.below(8 * bytes.len());
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            }
        }
        fs::write(path, bytes).expect("the store is ours");
    }
}

/// The files of a rank in the store of a node that begin with this word and a point, and go on with a number if `numbered`, in order.
fn files(cluster: &Cluster, node: &str, job: JobId, rank: usize, word: &str) -> Vec<PathBuf> {
    let dir = cluster.store(node).join(job.to_string()).join(rank.to_string());
    let names = fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(word));
    let mut files: Vec<PathBuf> = names.filter(name).filter(|path| path.extension().is_some_and(|end| end != "mac")).collect();
    files.sort();
    files
}

/// Images of a rank are damaged in so many stores, its protector's first, and its node dies.
fn images_are_damaged(replicas: usize, stores: usize, random: &mut Random) {
    let case = Case::start(logical(), &format!("{ASKED} --replicas {replicas}"), MORE_ROUNDS);
    (0..random.below(3)).for_each(|_| case.checkpoint());
    let rank = random.below(RANKS);
    let mut what = format!("{replicas} replicas: {} dies", HOSTS[rank]);
    let which = random.number() as usize;
    for store in 0..stores {
        let node = protector(rank + store);
        let images = files(&case.cluster, &node, case.id, rank, "image.");
        let (damage, image) = (Damage::any(random), &images[which % images.len()]);
        damage.hit(image, random);
        what += &format!("; {damage:?} of {} of {} at {node}", image.file_name().expect("a file").display(), images.len());
    }
    case.kill(HOSTS[rank]);
    let seen = case.end(&what);
    let copied = seen.count(EventName::Store, "its replica's copy is taken");
    let refused = seen.count(EventName::Lost, "image ");
    let restarts = seen.count(EventName::Restart, "");
    let expected = if stores < replicas { (0, true, 0) } else { (1, false, 1) };
    assert_eq!((refused, copied > 0, restarts), expected, "{what}: refused, copied, restarted; {seen:#?}");
}

#[test]
fn a_damaged_image_is_never_gone_on_from() {
    let mut random = Random::from_environment();
    if !is_long() {
        images_are_damaged(2, 1, &mut random);
        let all = 1 + random.below(2);
        return images_are_damaged(all, all, &mut random);
    }
    for (replicas, stores) in [(1, 1), (2, 1), (2, 2)].into_iter().cycle().take(60) {
        images_are_damaged(replicas, stores, &mut random);
    }
}

/// One bit of a log that was too large for memory: no rank catches up with it.
#[test]
fn a_damaged_log_is_never_gone_on_from() {
    let mut random = Random::from_environment();
    let case = Case::start(nodes(&[], &["--log-memory=1"]), &format!("{ASKED} --payload log"), JACOBI);
    let rank = random.below(RANKS);
    // What the first image covers is not read again: of the log of a rank it is the least.
    let length = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
    let longest = || files(&case.cluster, &protector(rank), case.id, rank, "stream.").into_iter().max_by_key(length);
    eventually(SOON, "log in files", || longest().is_some_and(|path| length(&path) > 1 << 20));
    let path = longest().expect("it was there");
    let file = fs::File::options().read(true).write(true).open(&path).expect("the store is ours");
    let (at, mut byte) = ((1 << 19) + random.below(1 << 19) as u64, [0]);
    file.read_exact_at(&mut byte, at).expect("it is as long as that");
    file.write_all_at(&[byte[0] ^ 1 << random.below(8)], at).expect("the store is ours");
    case.kill(HOSTS[rank]);
    let seen = case.end(&format!("{}, with its log damaged at byte {at} of {}, dies", HOSTS[rank], path.display()));
    let counts = (seen.count(EventName::Lost, "its log cannot be read"), seen.count(EventName::Restart, ""));
    assert_eq!(counts, (1, 1), "refused, restarted: {seen:#?}");
}

/// Nodes with stores on small disks, and a spare of that kind. None: that takes root.
fn small_disks(flags: &[&str]) -> Option<Cluster> {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: to mount a small disk takes root");
        return None;
    }
    let mut cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    for name in ["n1", "n2", "n3", "n4", "n5", "s1"] {
        let store = cluster.node_dir(name).join("store").display().to_string();
        let role = (name == "s1").then_some("--spare");
        let flags: Vec<&str> = flags.iter().copied().chain(role).collect();
        cluster.start_node_under(&["unshare", "--mount", "sh", "-c", MOUNT, "sh", &store, SMALL_DISK], name, &flags);
    }
    Some(cluster)
}

/// Leaves no room on the disks of these nodes.
fn fill(cluster: &Cluster, nodes: &[&str]) {
    for node in nodes {
        let mut ballast = fs::File::options().append(true).create(true).open(cluster.store(node).join("ballast"));
        let file = ballast.as_mut().expect("a directory entry takes no room");
        let full = loop {
            if let Err(error) = file.write_all(&[0; 64 << 10]) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
    }
}

/// There is room again.
fn clear(cluster: &Cluster, nodes: &[&str]) {
    nodes.iter().for_each(|node| fs::remove_file(cluster.store(node).join("ballast")).expect("it was filled"));
}

/// Waits for an event while what is given up anywhere is filled at once.
fn expect_while_full(case: &mut Case, nodes: &[&str], what: &str, mut matches: impl FnMut(&Event) -> bool) -> Event {
    let deadline = Instant::now() + SOON;
    loop {
        fill(&case.cluster, nodes);
        match case.events.wait(Duration::from_millis(20), &mut matches) {
            Some(event) => return event,
            None => assert!(Instant::now() < deadline, "waited for {what}"),
        }
    }
}

/// Whether a store had no room for an image.
fn has_no_room(event: &Event) -> bool {
    event.event == EventName::CheckpointFailed && event.text.contains("No space left on device")
}

/// The one before stays. A rank that is lost then goes on from it, where there is no room on the disk, either.
#[test]
fn a_checkpoint_for_which_there_is_no_room_is_given_up() {
    let Some(cluster) = small_disks(&[]) else { return };
    let mut case = Case::start(cluster, FLAGS, MORE_ROUNDS);
    let all = ["n1", "n2", "n3", "n4", "n5", "s1"];
    // The first one takes the images of all ranks with it, so this may be any rank.
    let failed = expect_while_full(&mut case, &all, "a refusal", has_no_room);
    let rank = failed.rank.expect("it is about a rank").0 as usize;
    let is = move |event: &Event, name, words: &str| {
        event.event == name && event.rank == Some(Rank(rank as u32)) && event.text.contains(words)
    };
    let (node, store) = (protector(rank), case.cluster.node_dir(&protector(rank)).join("store"));
    assert!(failed.node.as_str() == node && failed.text.contains(&format!("make room in {}", store.display())), "{failed:?}");
    case.kill(HOSTS[rank]);
    let left: Vec<&str> = all.into_iter().filter(|node| *node != HOSTS[rank]).collect();
    expect_while_full(&mut case, &left, "the rank to be back", |e| is(e, EventName::Live, ""));
    clear(&case.cluster, &left);
    case.expect("a checkpoint, now that there is room", rank, EventName::Reprotected);
    case.end(&format!("full disks, and {} dies", HOSTS[rank])).expect_back(1);
}

/// Where received bytes stay with their senders, a rank that ends waits for recovery lines, which full disks do not have. All ranks together end without one.
#[test]
fn a_job_whose_disks_are_full_ends_all_the_same() {
    let Some(cluster) = small_disks(&[]) else { return };
    let flags = format!("{FLAGS} --payload sender");
    let mut case = Case::start(cluster, &flags, MORE_ROUNDS);
    let all = ["n1", "n2", "n3", "n4", "n5", "s1"];
    expect_while_full(&mut case, &all, "a refusal", has_no_room);
    expect_while_full(&mut case, &all, "the job's end", |event| event.event == EventName::JobEnd);
    case.end("full disks until the end");
}

/// Waits until a job prints nothing more, and does not end.
fn await_standstill(job: &Running) {
    const STILL: Duration = Duration::from_millis(1_500);
    let deadline = Instant::now() + SOON;
    loop {
        let before = job.stdout();
        assert!(!job.ends_within(STILL), "it did not wait");
        if job.stdout() == before {
            return;
        }
        assert!(Instant::now() < deadline, "it goes on:\n{before}");
    }
}

/// What is more than memory holds waits for room, which is said; with and without a death meanwhile.
#[test]
fn a_log_for_which_there_is_no_room_waits_for_it() {
    let mut random = Random::from_environment();
    let both = [false, true];
    let one = random.below(2);
    for dies in if is_long() { &both[..] } else { &both[one..=one] }.iter().copied() {
        let Some(cluster) = small_disks(&["--log-memory=1"]) else { return };
        let mut case = Case::start(cluster, &format!("{ASKED} --outbox 1M"), LONG_JACOBI);
        let all = ["n1", "n2", "n3", "n4", "n5"];
        let told =
            |e: &Event| e.event == EventName::Store && e.text.contains("its log cannot be written: No space left on device");
        let event = expect_while_full(&mut case, &all, "a log that cannot be written", told);
        assert!(event.text.contains("make room in "), "{event:?}");
        let status = case.cluster.radic(["status"]).run().expect(0).stdout();
        assert!(status.contains("its log cannot be written: No space left on device"), "{status}");
        await_standstill(&case.job);
        let victim = HOSTS[random.below(RANKS)];
        if dies {
            case.kill(victim);
        }
        let left: Vec<&str> = all.into_iter().filter(|node| !dies || *node != victim).collect();
        clear(&case.cluster, &left);
        // The first image at its next protector may have found no room: two seconds later there is another one.
        let restarts = (0..RANKS).find(|rank| dies && HOSTS[*rank] != victim && protector(*rank) == victim);
        let (mut well, mut again) = (false, restarts.is_none());
        case.events.expect("the log to be written, and the rank that lost its protector to have another", SOON, |e| {
            well |= e.event == EventName::Store && e.text.contains("can be written again");
            again |= e.event == EventName::Reprotected && e.rank.map(|rank| rank.0 as usize) == restarts;
            well && again
        });
        let seen = case.end(&format!("no room for logs{}", if dies { ", and a death" } else { "" }));
        seen.expect_back(usize::from(dies));
    }
}

/// Memory for a tenth of the log: the rest is in files. A log at its bound: checkpoints are made that no user has asked for.
#[test]
fn bounds_of_memory_and_of_logs_are_kept() {
    let mut random = Random::from_environment();
    for (flags, name) in [("--payload log", EventName::Checkpoint), ("--log-limit 1M --outbox 1M", EventName::Limit)] {
        let case = Case::start(nodes(&[], &["--log-memory=1"]), &format!("{ASKED} {flags}"), LONG_JACOBI);
        let rank = random.below(RANKS);
        if name == EventName::Limit {
            eventually(SOON, "a checkpoint after the first one", || {
                let processes = case.cluster.status().processes;
                let mine = processes.iter().filter(|process| process.job == case.id && process.rank.0 as usize == rank);
                mine.flat_map(|process| &process.logs).any(|log| log.committed > Some(0))
            });
        } else {
            let spilled = || files(&case.cluster, &protector(rank), case.id, rank, "stream.");
            eventually(SOON, "log in files", || !spilled().is_empty());
        }
        case.kill(HOSTS[rank]);
        let seen = case.end(&format!("--log-memory 1 {flags}: {} dies", HOSTS[rank]));
        let near = seen.count(EventName::Limit, "nears its bound: an image was asked for");
        assert!(name != EventName::Limit || near > 0, "{seen:#?}");
        seen.expect_back(1);
    }
}

/// A message that is longer than the sender's outbox and the receiver's log may be: images are made in its midst, again and again, and the log is cut. The third rank only waits.
#[test]
fn a_message_longer_than_every_bound_arrives() {
    const BOUNDS: &str = "--protect on --ckpt-interval never --log-limit 16M --outbox 4M";
    let command = command_of(&MPICH, ("large", &["--mib", "192", "--rounds", "2"]));
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let cluster = nodes(&[], &["--log-memory=1"]);
    let [native, finished] =
        ["--protect none", BOUNDS].map(|flags| MPICH.job(&cluster, 3, flags, &words).limit(LIMIT).start().wait().expect(0));
    assert_eq!(finished.stdout(), native.stdout(), "{finished}");
    let seen = events_of(&cluster, radic_tests::protection::newest_job(&cluster));
    let is_asked = |event: &Event| event.rank == Some(Rank(1)) && event.event == EventName::Limit;
    assert!(seen.iter().any(is_asked), "the receiver's log has never neared its bound: {seen:?}");
    println!("two messages of 192 MiB: {:.2} s, native {:.2} s", finished.elapsed.as_secs_f64(), native.elapsed.as_secs_f64());
    cluster.assert_idle();
    cluster.stop();
}

/// Only the daemon; its ranks end by the kernel.
#[test]
fn the_protector_alone_is_killed() {
    let mut random = Random::from_environment();
    let case = Case::start(logical(), FLAGS, ROUNDS);
    let node = HOSTS[random.below(RANKS)];
    case.cluster.kill(node);
    case.end(&format!("SIGKILL of the protector of {node}")).expect_back(1);
}

/// Only the daemon: its ranks run on meanwhile, as zombies.
#[test]
fn the_protector_alone_hangs() {
    let mut random = Random::from_environment();
    let seconds = if is_long() { 10 } else { 3 };
    let mut case = Case::start(logical(), FLAGS, ROUNDS);
    let rank = random.below(RANKS);
    let zombie = case.cluster.protector(HOSTS[rank]);
    let then = Instant::now();
    zombie.signal(Signal::STOP);
    case.expect("the rank to live elsewhere", rank, EventName::Live);
    case.job.ends_within(Duration::from_secs(seconds).saturating_sub(then.elapsed()));
    zombie.signal(Signal::CONT);
    assert!(zombie.wait(FENCED), "the node that was given up does not end");
    case.end(&format!("the protector of {} hangs for {seconds} s", HOSTS[rank])).expect_back(1);
}

/// The hours in which lines of a node's log were written, by its own clock.
fn hours(log: &str) -> BTreeSet<u64> {
    log.lines().filter_map(|line| line.split_once('T')?.1.split_once(':')?.0.parse().ok()).collect()
}

/// By an hour, back and forth, in daemons, ranks and the terminal.
#[test]
fn clocks_jump() {
    let mut random = Random::from_environment();
    let library = format!("LD_PRELOAD={}", compiled("net", "clock.so"));
    let (name, value) = library.split_once('=').expect("it has a name");
    let mut case = Case::start_with(nodes(&["env", &library], &[]), FLAGS, ROUNDS, &[(name, value)]);
    let rank = random.below(RANKS);
    case.kill(HOSTS[rank]);
    case.expect("the rank to be back", rank, EventName::Live);
    let hours: BTreeSet<u64> = case.cluster.node_names().iter().flat_map(|node| hours(&case.cluster.log(node))).collect();
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("the test's own clock is right").as_secs() / 3_600 % 24;
    assert!(hours.iter().any(|hour| *hour != now), "it is {now} o'clock, and no node has another time: {hours:?}");
    let seen = case.end(&format!("clocks jump, logs are of {hours:?} o'clock, and {} dies", HOSTS[rank]));
    seen.expect_back(1);
    assert!(
        seen.0.iter().all(|e| e.event != EventName::Confirm || e.subject.as_ref().is_some_and(|of| of.as_str() == HOSTS[rank]))
    );
    for node in ["n1", "n2", "n3", "n4", "n5"] {
        let mut own: Vec<&Event> = seen.0.iter().filter(|event| event.node.as_str() == node).collect();
        own.sort_by_key(|event| event.seq);
        assert!(own.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms), "{own:#?}");
    }
}
