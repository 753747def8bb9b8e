//! Some ranks of the job wait for each other. PMI-1 has a barrier of all ranks only, so each of these publishes a name and looks for those of the others.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use radic_pmi_client::{Client, Failure, Stream};

use crate::record::PIECE;
use crate::status::Status;

/// Most calls of a poll between two looks: each look is a question to all nodes.
const LONGEST: u32 = 1 << 10;

/// A meeting under way.
#[derive(Debug)]
pub(crate) struct Meeting {
    prefix: String,
    missing: Vec<u32>,
    /// What each rank has brought.
    pub(crate) found: BTreeMap<u32, Vec<u8>>,
    /// What this rank published for the meeting before: all have come to this one, so nobody looks for it any more.
    last: Option<String>,
    /// Polls until the next look, and how many there were before the last one.
    pace: (u32, u32),
}

/// The meetings of a process, by what they are about: they are numbered, so that one is not taken for the next.
#[derive(Debug, Default)]
pub(crate) struct Meetings(BTreeMap<u64, u64>);

impl Meetings {
    /// Begins one of `members` about `tag`, to which this rank brings `data`.
    pub(crate) fn begin<S: Stream>(
        &mut self,
        client: &mut Client<S>,
        tag: &str,
        members: &[u32],
        data: &[u8],
    ) -> Result<Meeting, Status> {
        if data.len() > PIECE {
            return Err(Status::BAD_PARAM);
        }
        let mut hasher = DefaultHasher::new();
        (tag, members).hash(&mut hasher);
        let subject = hasher.finish();
        let number = self.0.entry(subject).or_default();
        let (me, space) = (client.rank as u32, client.kvsname.clone());
        let prefix = |number: u64| format!("{space}/{subject:016x}/{number}/");
        let last = (*number > 0).then(|| format!("{}{me}", prefix(*number - 1)));
        let prefix = prefix(*number);
        client.publish(format!("{prefix}{me}").as_bytes(), data).map_err(|failure| match failure {
            Failure::Refused(_) => Status::OUT_OF_RESOURCE,
            other => other.into(),
        })?;
        *number += 1;
        let missing = members.iter().copied().filter(|rank| *rank != me).rev().collect();
        Ok(Meeting { prefix, missing, found: BTreeMap::from([(me, data.to_vec())]), last, pace: (1, 1) })
    }
}

impl Meeting {
    /// Looks once for the next rank that is missing. True: all are there.
    pub(crate) fn look<S: Stream>(&mut self, client: &mut Client<S>) -> Result<bool, Status> {
        while let Some(rank) = self.missing.last() {
            match client.lookup(format!("{}{rank}", self.prefix).as_bytes()) {
                Ok(data) => {
                    self.found.insert(*rank, data);
                    self.missing.pop();
                }
                Err(Failure::Refused(_)) => return Ok(false),
                Err(failure) => return Err(failure.into()),
            }
        }
        if let Some(last) = self.last.take() {
            match client.unpublish(last.as_bytes()) {
                Ok(()) | Err(Failure::Refused(_)) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(true)
    }

    /// The same, for a caller that comes very often. Calls are counted, not timed: so an execution of the same calls asks the same.
    pub(crate) fn poll<S: Stream>(&mut self, client: &mut Client<S>) -> Result<bool, Status> {
        self.pace.0 -= 1;
        if self.pace.0 > 0 {
            return Ok(false);
        }
        let longer = (self.pace.1 * 2).min(LONGEST);
        self.pace = (longer, longer);
        self.look(client)
    }

    /// Waits for all.
    pub(crate) fn wait<S: Stream>(&mut self, client: &mut Client<S>, nap: fn(Duration)) -> Result<(), Status> {
        let mut naps = Naps::default();
        while !self.look(client)? {
            nap(naps.next());
        }
        Ok(())
    }
}

/// Times between two looks of a caller that waits.
#[derive(Debug, Default)]
pub(crate) struct Naps {
    count: u32,
    /// All of them.
    pub(crate) total: Duration,
}

impl Naps {
    const SHORTEST: Duration = Duration::from_millis(1);
    const MOST_DOUBLINGS: u32 = 5;

    pub(crate) fn next(&mut self) -> Duration {
        let next = Self::SHORTEST * (1 << self.count.min(Self::MOST_DOUBLINGS));
        self.count += 1;
        self.total += next;
        next
    }
}
