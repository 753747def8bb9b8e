//! What this node protects, or stands in for: the processes of its wards, as their hosts have told it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, Rank};
use radic_wire::job::Ward;
use radic_wire::peer::{Crashed, Left, ToHome};

/// A process that this node protects, or would protect in place of its protector.
#[derive(Debug)]
pub(super) struct Protected {
    pub(super) host: NodeId,
    pub(super) incarnation: Incarnation,
    /// The protector of the process, if this node only stands in.
    pub(super) protector: Option<NodeId>,
    /// How the process has ended by itself, if it has.
    pub(super) left: Option<Left>,
    /// The process is being fenced, and was not sent anywhere yet.
    pub(super) recovering: bool,
    /// Why the process is not brought back, as its home was told. That home may have been lost since.
    pub(super) hopeless: Option<ToHome>,
    /// How the process has crashed, if it is brought back because of that.
    pub(super) crashed: Option<Crashed>,
    /// The address of the node where the process was first launched, if that is not its host.
    pub(super) origin: Option<IpAddr>,
}

impl Protected {
    pub(super) fn new(host: NodeId, incarnation: Incarnation) -> Protected {
        let (protector, left, recovering, hopeless, crashed, origin) = (None, None, false, None, None, None);
        Protected { host, incarnation, protector, left, recovering, hopeless, crashed, origin }
    }
}

/// What this node protects of one job, and what it stands in for.
#[derive(Debug)]
pub(super) struct Wards {
    pub(super) ward: Ward,
    pub(super) started_ms: u64,
    pub(super) ranks: BTreeMap<Rank, Protected>,
}

impl Wards {
    /// The entry of a job. `now_ms`, in milliseconds since 1970, is taken for the job's start if the job is not known yet.
    pub(super) fn of<'a>(all: &'a mut BTreeMap<JobId, Wards>, job: JobId, ward: &Ward, now_ms: u64) -> &'a mut Wards {
        all.entry(job).or_insert_with(|| Wards { ward: ward.clone(), started_ms: now_ms, ranks: BTreeMap::new() })
    }

    /// The job has restarted with this epoch, so what is known of ranks in an earlier one does not hold any more. Hosts say so by
    /// what they ask to have protected, and the home says it outright, in either order. Returns the ranks that were forgotten.
    pub(super) fn forget_before(&mut self, epoch: Epoch) -> Vec<Rank> {
        let is_old = |(_, protected): &(&Rank, &Protected)| protected.incarnation.epoch < epoch;
        let forgotten: Vec<Rank> = self.ranks.iter().filter(is_old).map(|(rank, _)| *rank).collect();
        self.ranks.retain(|rank, _| !forgotten.contains(rank));
        forgotten
    }
}
