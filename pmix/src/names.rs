//! Values under names, which any rank of any job of the cluster may look up. A value may be longer than one name of PMI-1 holds: its further pieces have names of their own.
#![forbid(unsafe_code)]

use radic_pmi_client::{Client, Failure, Stream};

use crate::record::{self, Reader, write_counted};
use crate::status::Status;
use crate::value::Value;

/// Longest name, in bytes: what PMI-1 takes however it is escaped, less the number of a piece.
const NAME: usize = record::PIECE - 8;
/// Most pieces of one value.
const PIECES: usize = 256;

/// What was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Published {
    /// The namespace of the process that has published it.
    pub(crate) namespace: Vec<u8>,
    /// Its rank.
    pub(crate) rank: u32,
    pub(crate) value: Value,
}

impl Published {
    fn encode(&self) -> Vec<u8> {
        let mut record = Vec::new();
        write_counted(&mut record, &self.namespace);
        record.extend(self.rank.to_le_bytes());
        record.extend(self.value.kind.to_le_bytes());
        write_counted(&mut record, &self.value.bytes);
        record
    }

    fn decode(record: &[u8]) -> Option<Self> {
        let mut from = Reader(record);
        let (namespace, rank) = (from.counted()?.to_vec(), from.u32()?);
        let value = Value { kind: from.u16()?, bytes: from.counted()?.to_vec() };
        (from.0.is_empty() && value.is_sound()).then_some(Published { namespace, rank, value })
    }
}

fn name_of_piece(name: &str, number: usize) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}#{number}") }
}

fn checked(name: &str) -> Result<(), Status> {
    if (1..=NAME).contains(&name.len()) { Ok(()) } else { Err(Status::BAD_PARAM) }
}

/// Publishes. The first piece comes last: what finds it finds all.
pub(crate) fn publish<S: Stream>(client: &mut Client<S>, name: &str, published: &Published) -> Result<(), Status> {
    checked(name)?;
    let pieces = record::split(&published.encode());
    if pieces.len() > PIECES {
        return Err(Status::BAD_PARAM);
    }
    for (number, piece) in pieces.iter().enumerate().rev() {
        match client.publish(name_of_piece(name, number).as_bytes(), piece) {
            Ok(()) => {}
            Err(Failure::Refused(why)) => {
                for published in number + 1..pieces.len() {
                    allowed(client.unpublish(name_of_piece(name, published).as_bytes()))?;
                }
                // The protector's words; else the job may publish no more.
                let is_there = why.contains("published");
                return Err(if is_there { Status::DUPLICATE_KEY } else { Status::OUT_OF_RESOURCE });
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    Ok(())
}

/// Takes a name back.
pub(crate) fn unpublish<S: Stream>(client: &mut Client<S>, name: &str) -> Result<(), Status> {
    checked(name)?;
    if !allowed(client.unpublish(name.as_bytes()))? {
        return Err(Status::NOT_FOUND);
    }
    for number in 1..PIECES {
        if !allowed(client.unpublish(name_of_piece(name, number).as_bytes()))? {
            break;
        }
    }
    Ok(())
}

/// What is published under a name, if anything is.
pub(crate) fn look_up<S: Stream>(client: &mut Client<S>, name: &str) -> Result<Option<Published>, Status> {
    checked(name)?;
    let record = record::join(|number| match client.lookup(name_of_piece(name, number).as_bytes()) {
        _ if number >= PIECES => Ok(None),
        Ok(piece) => Ok(Some(piece)),
        Err(Failure::Refused(_)) => Ok(None),
        Err(failure) => Err(Status::from(failure)),
    })?;
    Ok(record.and_then(|record| Published::decode(&record)))
}

/// Whether it was done; a refusal is an answer.
fn allowed(result: Result<(), Failure>) -> Result<bool, Status> {
    match result {
        Ok(()) => Ok(true),
        Err(Failure::Refused(_)) => Ok(false),
        Err(failure) => Err(failure.into()),
    }
}
