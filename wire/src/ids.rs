//! The names of jobs, processes and nodes. docs/glossary.md has the terms.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

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
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
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
        let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
        let bytes = text.as_bytes();
        let good = (1..=limits::NODE_NAME).contains(&bytes.len())
            && bytes[0].is_ascii_alphanumeric()
            && bytes.iter().copied().all(allowed);
        if good { Ok(NodeName(text.into())) } else { Err(IdError::NodeName(text)) }
    }
}

impl FromStr for NodeName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        NodeName::try_from(text.to_owned())
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> String {
        name.0.to_string()
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

/// A protector in one of its boots.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId {
    /// The node's name.
    pub name: NodeName,
    /// Its boot.
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
    pub fn from_bits(bits: u64) -> Self {
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

/// The incarnation of a process, or the epoch of a whole job, from 0. Every message that speaks for a process carries it (G4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default)]
#[serde(transparent)]
pub struct Incarnation(pub u32);

impl Incarnation {
    /// Most incarnations of a process within one epoch of its job. When a job restarts from the beginning, its epoch is the next multiple.
    pub const LIVES: u32 = 1 << 16;

    /// The first incarnation of processes in the job's epoch to which this one belongs.
    pub fn first_of_job(self) -> Incarnation {
        Incarnation(self.0 / Self::LIVES * Self::LIVES)
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
    fn jobs_round_trip_through_text() {
        let job = JobId::from_bits(0xffff_0123_4567_89ab);
        assert_eq!(job.to_string(), "0123456789ab");
        assert_eq!("0123456789ab".parse::<JobId>().unwrap(), job);
        for bad in ["", "123", "+123456789ab", "0123456789abc", "0123456789ag"] {
            assert!(bad.parse::<JobId>().is_err(), "{bad:?}");
        }
    }
}
