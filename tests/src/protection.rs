//! What a protected job's processes say about themselves, and what must be true of all of them.

use radic_wire::ids::JobId;
use radic_wire::process::Counters;
use radic_wire::report::ProcessInfo;

use crate::cluster::Cluster;

/// How jobs are protected in tests if nothing else matters: with a checkpoint of each rank five times a second.
pub const ON: &str = "--protect on --ckpt-interval 0.2";

/// The job that was started last.
///
/// # Panics
/// If there is none.
pub fn newest_job(cluster: &Cluster) -> JobId {
    let jobs = cluster.status().jobs;
    jobs.iter().max_by_key(|job| job.started_ms).expect("a job was started").job
}

/// The protected processes of a job, by rank.
#[derive(Debug)]
pub struct Protected(Vec<(ProcessInfo, Counters)>);

impl Protected {
    /// Those of the newest job of a cluster, which has so many ranks.
    ///
    /// # Panics
    /// Unless every rank has joined, and has counted.
    pub fn newest(cluster: &Cluster, ranks: usize) -> Protected {
        Protected::of(cluster, newest_job(cluster), ranks)
    }

    /// Those of a job that has so many ranks.
    ///
    /// # Panics
    /// Unless every rank has joined, and has counted.
    pub fn of(cluster: &Cluster, job: JobId, ranks: usize) -> Protected {
        let mut processes = cluster.status().processes;
        processes.retain(|process| process.job == job);
        processes.sort_by_key(|process| process.rank);
        let numbers: Vec<usize> = processes.iter().map(|process| process.rank.0 as usize).collect();
        assert_eq!(numbers, (0..ranks).collect::<Vec<_>>(), "ranks of {job} that are protected: {processes:#?}");
        let counted = |process: ProcessInfo| match process.counters {
            Some(counters) if process.joined => (process, counters),
            _ => panic!("rank {} of {job} was not protected: {process:#?}", process.rank),
        };
        Protected(processes.into_iter().map(counted).collect())
    }

    /// The counters of each rank.
    pub fn counters(&self) -> impl Iterator<Item = &Counters> {
        self.0.iter().map(|(_, counters)| counters)
    }

    /// A figure, over all ranks.
    pub fn sum(&self, figure: impl Fn(&Counters) -> u64) -> u64 {
        self.counters().map(figure).sum()
    }

    /// Everything was protected, and nothing was received that was not sent.
    ///
    /// # Panics
    /// If not.
    pub fn check(&self) {
        let (sent, received) = (self.sum(|c| c.bytes_out), self.sum(|c| c.bytes_in));
        assert!(received <= sent, "{received} bytes received of {sent}: {self:#?}");
        assert!(self.counters().all(|c| c.committed <= c.checkpoints), "{self:#?}");
    }

    /// Each rank has talked to protected peers only, and has made at least so many checkpoints that were committed.
    ///
    /// # Panics
    /// If not.
    pub fn check_ranks(&self, checkpoints: u64) {
        self.check();
        for (process, counters) in &self.0 {
            assert_eq!(counters.unprotected, 0, "rank {} has peers that are not protected: {counters:#?}", process.rank);
            let few = counters.committed < checkpoints;
            assert!(
                !few,
                "rank {} has {} committed checkpoints of {checkpoints}: {counters:#?}",
                process.rank, counters.committed
            );
        }
    }

    /// What was counted, in a few words.
    pub fn in_words(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let longest = self.counters().map(|c| c.longest_pause_ns).max().unwrap_or_default();
        let waits = self.sum(|c| c.gate_waits);
        let wait = self.sum(|c| c.gate_ns) as f64 / 1e3 / waits.max(1) as f64;
        format!(
            "{:.1} MiB and {} messages received, {} events, {waits} gate waits of {wait:.1} us, {} checkpoints, pauses up to {:.1} ms",
            mib(self.sum(|c| c.bytes_in)),
            self.sum(|c| c.messages_in),
            self.sum(|c| c.events),
            self.sum(|c| c.committed),
            longest as f64 / 1e6,
        )
    }
}
