//! What goes wrong below the logs and images of protected jobs: the disk, the memory, the clock, the protector itself. A job ends as if nothing had happened,
//! or begins anew; the fault is named where somebody looks.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use radic_tests::Running;
use radic_tests::client::Events;
use radic_tests::cluster::{Cluster, Kind, Setup};
use radic_tests::library::MPICH;
use radic_tests::random::Random;
use radic_tests::recovery::{
    HOSTS, PLAIN, RANKS, SOON, events_of, expect_same, first_checkpoints, is_long, result, rounds, start,
};
use radic_wire::event::{Event, EventName};
use radic_wire::ids::JobId;

/// Rounds with a pause in them: two seconds and more, whatever else the machine does.
const ROUNDS: &str = "--rounds 1500 --mib 4 --pause 1";
/// Checkpoints come only when they are asked for: what is damaged is not replaced by something newer.
const ASKED: &str = "--nodes n2,n3,n4,n5 --protect on --ckpt-interval never";
/// What rank 0 prints when all have their memory.
const BEGIN: &str = "rounds begin";

/// What the undisturbed run prints.
fn due() -> &'static [String] {
    static DUE: OnceLock<Vec<String>> = OnceLock::new();
    DUE.get_or_init(|| {
        let cluster = Setup::new(Kind::Logical, RANKS + 1).start();
        let due = result(&start(&MPICH, &cluster, PLAIN, &rounds(&MPICH, ROUNDS)).wait().expect(0));
        cluster.stop();
        due
    })
}

/// A job under way that everybody has a checkpoint of.
struct Case {
    cluster: Cluster,
    events: Events,
    job: Running,
    id: JobId,
}

impl Case {
    fn start(cluster: Cluster, flags: &str) -> Case {
        due();
        let mut events = cluster.events_at("n1");
        let mut job = start(&MPICH, &cluster, flags, &rounds(&MPICH, ROUNDS));
        let id = first_checkpoints(&mut events, RANKS);
        job.until_line(BEGIN);
        Case { cluster, events, job, id }
    }

    /// A checkpoint of each rank.
    fn checkpoint(&self) {
        self.cluster.radic(["checkpoint", &self.id.to_string()]).limit(SOON).run().expect(0);
    }

    fn kill(&self, node: &str) {
        assert!(!self.job.ends_within(std::time::Duration::ZERO), "the job is too short");
        self.cluster.radic(["inject", "kill-node", node]).run().expect(0);
    }

    /// Ends as the undisturbed run; what happened until then.
    fn end(self, what: &str) -> Vec<Event> {
        let finished = expect_same(&self.cluster, self.job, due(), what);
        println!("{what}: {:.2} s", finished.elapsed.as_secs_f64());
        let seen = events_of(&self.cluster, self.id);
        self.cluster.assert_idle();
        self.cluster.stop();
        seen
    }
}

fn count(events: &[Event], name: EventName, words: &str) -> usize {
    events.iter().filter(|event| event.event == name && event.text.contains(words)).count()
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

/// The images of a rank in the store of a node, oldest first.
fn images(cluster: &Cluster, node: &str, job: JobId, rank: usize) -> Vec<PathBuf> {
    let dir = cluster.node_dir(node).join("store").join(job.to_string()).join(rank.to_string());
    let names =
        fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())).flatten().map(|entry| entry.path());
    let number = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("image.")?.parse::<u64>().ok();
    let mut images: Vec<PathBuf> = names.filter(|path| number(path).is_some()).collect();
    images.sort_by_key(number);
    assert!(!images.is_empty(), "no image in {}", dir.display());
    images
}

/// Images of a rank are damaged in so many stores, its protector's first, and its node dies.
fn images_are_damaged(replicas: usize, stores: usize, random: &mut Random) {
    let case = Case::start(Setup::new(Kind::Logical, RANKS + 1).start(), &format!("{ASKED} --replicas {replicas}"));
    (0..random.below(3)).for_each(|_| case.checkpoint());
    let rank = random.below(RANKS);
    let mut what = format!("{replicas} replicas: {} dies", HOSTS[rank]);
    let which = random.number() as usize;
    for store in 1..=stores {
        let node = format!("n{}", (rank + 1 + store) % (RANKS + 1) + 1);
        let images = images(&case.cluster, &node, case.id, rank);
        let (damage, image) = (Damage::any(random), &images[which % images.len()]);
        damage.hit(image, random);
        what += &format!("; {damage:?} of {} of {} at {node}", image.file_name().expect("a file").display(), images.len());
    }
    case.kill(HOSTS[rank]);
    let events = case.end(&what);
    let is_copied = stores < replicas;
    let refused = count(&events, EventName::Lost, "image ");
    let copied = count(&events, EventName::Store, "its replica's copy is taken");
    let seen = (refused, copied > 0, count(&events, EventName::Restart, ""));
    let expected = if is_copied { (0, true, 0) } else { (1, false, 1) };
    assert_eq!(seen, expected, "{what}: refused, copied, begun anew; {events:#?}");
}

#[test]
fn a_damaged_image_is_never_gone_on_from() {
    let mut random = Random::from_environment();
    for _ in 0..if is_long() { 20 } else { 1 } {
        for (replicas, stores) in [(1, 1), (2, 1), (2, 2)] {
            images_are_damaged(replicas, stores, &mut random);
        }
    }
}
