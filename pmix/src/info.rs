//! What a rank is told of its job without asking: each rank is alone on its node, as PMI-1 says it, too, so that no library shares memory between ranks.
#![forbid(unsafe_code)]

use crate::value::Value;

/// A path that cannot be made: Open MPI creates session directories where it is told nothing.
const NOWHERE: &str = "/dev/null/radic";

/// What is known of a job, and of one process of it.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) hostname: String,
    pub(crate) folder: String,
}

impl Facts {
    /// What is known of the whole job under `key`. The types must be exactly these.
    pub(crate) fn of_job(&self, key: &str) -> Option<Value> {
        Some(match key {
            "pmix.job.size" | "pmix.univ.size" => Value::uint32(self.size),
            "pmix.job.napps" | "pmix.local.size" => Value::uint32(1),
            "pmix.lpeers" => Value::text(self.rank.to_string()),
            "pmix.tmpdir" | "pmix.nsdir" => Value::text(NOWHERE),
            "pmix.wdir" => Value::text(self.folder.clone()),
            _ => return None,
        })
    }

    /// What is known of this process under `key`.
    pub(crate) fn of_self(&self, key: &str) -> Option<Value> {
        Some(match key {
            "pmix.hname" => Value::text(self.hostname.clone()),
            "pmix.lrank" | "pmix.nrank" => Value::uint16(0),
            "pmix.appnum" => Value::uint32(0),
            "pmix.pdir" => Value::text(NOWHERE),
            _ => return None,
        })
    }
}
