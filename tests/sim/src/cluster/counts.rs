//! What is done wrong on purpose, and what has happened, in numbers.

/// What is done wrong on purpose, so that a checker shows that it bites.
#[derive(Debug, Default, Clone, Copy)]
pub struct Breaks {
    /// Processes do not wait at their gate (G1).
    pub gate: bool,
    /// The log server that is asked says that more is stable than is (G2).
    pub stable: bool,
    /// Bytes arrive twice (G3).
    pub twice: bool,
    /// A fence is none (G4).
    pub fence: bool,
    /// A program draws lots (G5).
    pub lots: bool,
    /// A program that is restarted reads the clocks of its new machine (G5).
    pub time: bool,
    /// It draws other random bytes (G5).
    pub random: bool,
    /// Nodes do not hear of the listeners of their processes (G7).
    pub mute: bool,
    /// Epochs are numbers that a home counts on from what it knows, and nothing more (G4).
    pub epochs: bool,
    /// Damaged images pass for whole (G6).
    pub image: bool,
    /// One node has views of its own.
    pub views: bool,
    /// Output gets lost (G3).
    pub output: bool,
    /// No process hears that another is back, nor where: the job hangs.
    pub deaf: bool,
    /// What bytes depend on is not kept by the process that receives them.
    pub forgetful: bool,
    /// A journal goes to the log without what it depends on.
    pub unclosed: bool,
    /// A lost process is brought back without what others know of it.
    pub unlearned: bool,
    /// A job is suspended without what only other logs have of a rank's journal.
    pub alone: bool,
    /// Rank 0 says that it knows nothing of a lost process.
    pub silent: bool,
    /// A log takes a recovery line for complete as soon as it has its own image of it.
    pub early: bool,
    /// A process that has come to its end ends at once, as if all had.
    pub hasty: bool,
    /// A process that was let go makes an error of its own before it exits.
    pub faulty: bool,
    /// Logs say that they have no image of a process that is lost.
    pub hopeless: bool,
    /// Logs remove the image that a newer one builds upon (G6).
    pub pruned: bool,
    /// What is printed once the job has restarted from its beginning comes as something else (G3).
    pub garbled: bool,
    /// Disks lose images that are committed (G6).
    pub lost: bool,
}

/// What has happened, in numbers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Events.
    pub events: u64,
    /// Images that were begun.
    pub images: u64,
    /// Images that were committed.
    pub commits: u64,
    /// Increments that processes were brought back from, beside the whole image below them.
    pub increments: u64,
    /// Images of which the replica's copy was taken.
    pub copies: u64,
    /// Processes that were brought back.
    pub restarts: u64,
    /// Images that did not restore: in the place of each the one before was taken.
    pub went_back: u64,
    /// Readings of a clock in a log that no thread made any more.
    pub missed_readings: u64,
    /// Jobs that restarted from their beginning.
    pub job_restarts: u64,
    /// Links that were made.
    pub links: u64,
    /// Calls that were left under way.
    pub under_way: u64,
    /// Callers that were refused, because the listener at which they waited was closed.
    pub refused: u64,
    /// Bytes that programs received.
    pub delivered: u64,
    /// Bytes that were sent once more.
    pub again: u64,
    /// The most bytes that have waited for a socket of a log server.
    pub most_waiting: u64,
    /// Suspensions of the job.
    pub suspensions: u64,
    /// Processes that were killed when they had been let go, and had not exited.
    pub killed_late: u64,
    /// Faults.
    pub faults: u64,
    /// Jobs that ended with an error, as they may without a majority.
    pub failed: u64,
    /// Times that output, or how the job has ended, was lost with a home, without a terminal, as it may be.
    pub limits: u64,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
}

impl Counts {
    /// Those of another seed, too.
    pub fn add(&mut self, other: &Counts) {
        let Counts {
            events,
            images,
            commits,
            increments,
            copies,
            restarts,
            went_back,
            job_restarts,
            links,
            delivered,
            again,
            faults,
            failed,
            ..
        } = *other;
        self.events += events;
        self.images += images;
        self.increments += increments;
        self.copies += copies;
        self.commits += commits;
        self.restarts += restarts;
        self.went_back += went_back;
        self.job_restarts += job_restarts;
        self.links += links;
        self.delivered += delivered;
        self.again += again;
        self.faults += faults;
        self.failed += failed;
        self.suspensions += other.suspensions;
        self.missed_readings += other.missed_readings;
        self.under_way += other.under_way;
        self.refused += other.refused;
        self.killed_late += other.killed_late;
        self.most_waiting = self.most_waiting.max(other.most_waiting);
        self.limits += other.limits;
        self.virtual_ms += other.virtual_ms;
    }
}
