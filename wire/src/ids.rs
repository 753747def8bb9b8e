//! The names of jobs, processes and nodes. docs/glossary.md has the terms.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits;

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// A node name has 1 to 64 letters, digits, dots, dashes or underscores, and starts with a letter or digit.
    #[error("{0:?} is not a node name: 1 to 64 letters, digits, '.', '-' or '_', the first a letter or digit")]
    NodeName(String),
    /// A job is written as 12 hexadecimal digits.
    #[error("{0:?} is not a job: 12 hexadecimal digits, as `radic jobs` prints them")]
    Job(String),
}

/// The name of a node. Several nodes may share an address, so a node is its name, not its IP. Shared: nearly everything names nodes, and is cloned with them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for NodeName {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl FromStr for NodeName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
        let bytes = text.as_bytes();
        let good = (1..=limits::NODE_NAME).contains(&bytes.len())
            && bytes[0].is_ascii_alphanumeric()
            && bytes.iter().copied().all(allowed);
        if good { Ok(NodeName(text.into())) } else { Err(IdError::NodeName(text.to_owned())) }
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> String {
        name.0.to_string()
    }
}

// By hand, without a string in between: a state of a large cluster holds thousands of names.
impl Serialize for NodeName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for NodeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = NodeName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a node")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<NodeName, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One run of a protector: a random number drawn at its start. A protector that comes back is another one with the same name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BootId(pub u64);

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A node in one of its boots.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId {
    /// The node's name.
    pub name: NodeName,
    /// The node's boot.
    pub boot: BootId,
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{:?}", self.name, self.boot)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// A job: 48 random bits, so that two protectors never have to agree on the next number. Written as 12 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(u64);

impl JobId {
    /// The job with the low 48 bits of `bits` as its number.
    pub const fn from_bits(bits: u64) -> Self {
        JobId(bits & 0xffff_ffff_ffff)
    }

    /// The number.
    pub fn bits(self) -> u64 {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:012x}", self.0))
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}", self.0)
    }
}

impl FromStr for JobId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let digits = text.len() == 12 && text.bytes().all(|c| c.is_ascii_hexdigit());
        let bits = if digits { u64::from_str_radix(text, 16).ok() } else { None };
        bits.map(JobId).ok_or_else(|| IdError::Job(text.to_owned()))
    }
}

impl Serialize for JobId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { serializer.serialize_u64(self.0) }
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        } else {
            u64::deserialize(deserializer).map(JobId::from_bits)
        }
    }
}

/// A rank of a job, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One attempt to run a whole job. A home that restarts the job from its beginning begins the next one.
///
/// No two homes give the same epoch, whatever each of them has heard of the other: [`Epoch::home`] names the protector that gave it, which counts
/// ([`Epoch::count`]). And a home gives greater ones than any home before it, also those of which it has heard nothing: that home is lost in the view in which
/// this one took its place, so [`Epoch::view`] is greater. (A job that was resumed in a cluster of fewer views brings a greater view along; there the count
/// decides until the cluster has as many.) The order is that of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch {
    /// The view in which its home took over the job; 0 in the first epoch.
    pub view: u64,
    /// How many epochs of the job its home knew of.
    pub count: u32,
    /// The boot of the node that was the home; 0 in the first epoch, which every job begins with: the job's number is its own.
    pub home: BootId,
}

/// Where a home sits: what makes the home's epochs unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// The view in which the home took over the job.
    pub view: u64,
    /// The boot of the home's node.
    pub home: BootId,
}

impl Epoch {
    /// The epoch in which a job is launched.
    pub const FIRST: Epoch = Epoch { view: 0, count: 0, home: BootId(0) };

    /// The epoch that the home in this seat begins; `self` is the greatest epoch that the home knows.
    pub fn next(self, seat: Seat) -> Epoch {
        Epoch { view: seat.view.max(self.view), count: self.count.saturating_add(1), home: seat.home }
    }
}

impl Default for Epoch {
    fn default() -> Self {
        Epoch::FIRST
    }
}

impl fmt::Display for Epoch {
    /// `0`, and for a later one `2v17h3f`: the third of the job, begun by the home that took over in view 17; the last two digits
    /// are of the boot of that home's node.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Epoch::FIRST => f.write_str("0"),
            Epoch { view, count, home } => write!(f, "{count}v{view}h{:02x}", home.0 as u8),
        }
    }
}

/// One attempt to run a process: which restart of it, within an epoch of its job. Every message that speaks for a process carries it (G4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default)]
pub struct Incarnation {
    /// The job's epoch.
    pub epoch: Epoch,
    /// From 0, which is launched and not restored.
    pub restart: u32,
}

impl Incarnation {
    /// The incarnation of a process of a job that has just been launched.
    pub const FIRST: Incarnation = Incarnation { epoch: Epoch::FIRST, restart: 0 };

    /// The incarnation of a process that is launched in this epoch.
    pub const fn launched_in(epoch: Epoch) -> Incarnation {
        Incarnation { epoch, restart: 0 }
    }

    /// The next incarnation of the same process in the same epoch.
    pub const fn next(self) -> Incarnation {
        Incarnation { restart: self.restart.saturating_add(1), ..self }
    }

    /// Whether the process was launched, and not restored.
    pub const fn is_launched(self) -> bool {
        self.restart == 0
    }

    /// In the first epoch of a job, after this many restarts.
    pub const fn restarted(restart: u32) -> Incarnation {
        Incarnation { epoch: Epoch::FIRST, restart }
    }
}

impl fmt::Display for Incarnation {
    /// `3`, and in a later epoch of the job `2v17h3f.3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.epoch != Epoch::FIRST {
            write!(f, "{}.", self.epoch)?;
        }
        self.restart.fmt(f)
    }
}

/// A process: docs/design.md's (job, rank).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// The job.
    pub job: JobId,
    /// The rank in it.
    pub rank: Rank,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_are_checked() {
        for good in ["n1", "a", "node-07.cluster_x", &"x".repeat(64)] {
            assert_eq!(good.parse::<NodeName>().unwrap().as_str(), good);
        }
        for bad in ["", "-n", ".n", "a b", "a/b", "ä", &"x".repeat(65), "a\n"] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn two_homes_that_know_the_same_begin_different_epochs() {
        let seat = |view, home| Seat { view, home: BootId(home) };
        let (one, other) = (Epoch::FIRST.next(seat(7, 9)), Epoch::FIRST.next(seat(8, 3)));
        assert!(Epoch::FIRST < one && one < other);
        let further = one.next(seat(7, 9)).next(seat(7, 9));
        assert!(one < further && further < other, "the later home's are greater, also than those of which it knows nothing");
        assert_ne!(Epoch::FIRST.next(seat(7, 3)), one);
        // Of a home that has taken over in a view before: it is never smaller than what is known.
        assert!(other.next(seat(6, 1)) > other && other.next(seat(6, 1)) != other.next(seat(6, 2)));
    }

    #[test]
    fn incarnations_follow_each_other_within_an_epoch() {
        let epoch = Epoch::FIRST.next(Seat { view: 17, home: BootId(0xa3f) });
        let launched = Incarnation::launched_in(epoch);
        assert!(Incarnation::restarted(u32::MAX) < launched && launched < launched.next());
        assert!(launched.is_launched() && !launched.next().is_launched());
        assert_eq!((Incarnation::restarted(3).to_string(), launched.next().to_string()), ("3".into(), "1v17h3f.1".into()));
    }

    #[test]
    fn jobs_round_trip_through_text() {
        let job = JobId::from_bits(0xffff_0123_4567_89ab);
        assert_eq!(job.to_string(), "0123456789ab");
        assert_eq!("0123456789ab".parse::<JobId>().unwrap(), job);
        for bad in ["", "123", "+123456789ab", "0123456789abc", "0123456789ag"] {
            assert!(bad.parse::<JobId>().is_err(), "{bad:?}");
        }
    }
}
