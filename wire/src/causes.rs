//! Determinants that a process depends on and that are not known to be stable, as they travel: in front of the bytes that depend on them ([`crate::link_frame`]), to the
//! protectors of the processes that depend on them ([`crate::log`]), and to the protector of a process that is lost.
//!
//! A process's determinants are one sequence of bytes, its journal. So they are named by a rank and a position. A set of causes is one [`Cause`] behind the other; all of them are
//! of one job.

use crate::bytes::{Malformed, Reader, Writer};
use crate::ids::Rank;

/// What a process depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause<'a> {
    /// A part of the journal of a process, of whole determinants.
    Part {
        /// Whose.
        origin: Rank,
        /// Position of the first byte.
        from: u64,
        /// The codes.
        bytes: &'a [u8],
    },
    /// The journal of a process is stable up to a position: its parts before that need not be kept any more.
    Stable {
        /// Whose.
        origin: Rank,
        /// Up to where.
        to: u64,
    },
}

impl<'a> Cause<'a> {
    /// The process.
    pub fn origin(&self) -> Rank {
        let (Cause::Part { origin, .. } | Cause::Stable { origin, .. }) = self;
        *origin
    }

    /// The position that it is about: where the part ends, or up to where the journal is stable.
    pub fn to(&self) -> u64 {
        match *self {
            Cause::Part { from, bytes, .. } => from + bytes.len() as u64,
            Cause::Stable { to, .. } => to,
        }
    }

    /// Writes it.
    pub fn write(&self, out: &mut Writer<'_>) {
        match *self {
            Cause::Part { origin, from, bytes } => {
                Cause::write_head(out, origin, from, bytes.len());
                out.raw(bytes);
            }
            Cause::Stable { origin, to } => {
                out.varint(u64::from(origin.0) << 1 | 1);
                out.varint(to);
            }
        }
    }

    /// Writes what precedes the bytes of a part.
    pub fn write_head(out: &mut Writer<'_>, origin: Rank, from: u64, length: usize) {
        out.varint(u64::from(origin.0) << 1);
        out.varint(from);
        out.varint(length as u64);
    }

    fn read(from: &mut Reader<'a>) -> Result<Cause<'a>, Malformed> {
        let head = from.varint()?;
        let origin = Rank(u32::try_from(head >> 1).map_err(|_| from.malformed("a rank of more than 32 bits"))?);
        let position = from.varint()?;
        if head & 1 == 1 {
            return Ok(Cause::Stable { origin, to: position });
        }
        let length = usize::try_from(from.varint()?).map_err(|_| from.malformed("a part that is too long"))?;
        let bytes = from.raw(length)?;
        if bytes.is_empty() || position.checked_add(length as u64).is_none() {
            return Err(from.malformed("a part of a journal that is empty, or ends beyond 64 bits"));
        }
        Ok(Cause::Part { origin, from: position, bytes })
    }
}

/// The causes in a set, one after the other; the last one is an error if the bytes are none.
pub fn read(set: &[u8]) -> impl Iterator<Item = Result<Cause<'_>, Malformed>> {
    read_with_ends(set).map(|cause| cause.map(|(cause, _)| cause))
}

/// The same, each with where it ends in the set.
pub fn read_with_ends(set: &[u8]) -> impl Iterator<Item = Result<(Cause<'_>, usize), Malformed>> {
    let (mut from, mut failed) = (Reader::new(set), false);
    std::iter::from_fn(move || {
        if failed || from.at() == set.len() {
            return None;
        }
        let cause = Cause::read(&mut from);
        failed = cause.is_err();
        Some(cause.map(|cause| (cause, from.at())))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_is_read_as_it_was_written(causes in prop::collection::vec((any::<u32>(), 0u64..1 << 60, prop::collection::vec(any::<u8>(), 0..20)), 0..10)) {
            let of = |(rank, position, bytes): &'_ (u32, u64, Vec<u8>)| -> (Rank, u64, Vec<u8>) { (Rank(*rank), *position, bytes.clone()) };
            let owned: Vec<_> = causes.iter().map(of).collect();
            let causes: Vec<Cause<'_>> = owned.iter().map(|(origin, from, bytes)| match bytes.is_empty() {
                true => Cause::Stable { origin: *origin, to: *from },
                false => Cause::Part { origin: *origin, from: *from, bytes },
            }).collect();
            let mut bytes = vec![0; 1 << 10];
            let mut out = Writer::new(&mut bytes);
            causes.iter().for_each(|cause| cause.write(&mut out));
            let length = out.finish().unwrap();
            prop_assert_eq!(read(&bytes[..length]).collect::<Result<Vec<_>, _>>().unwrap(), causes);
        }

        #[test]
        fn any_bytes_are_a_set_or_end_with_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let causes: Vec<_> = read(&bytes).collect();
            prop_assert!(causes.iter().rev().skip(1).all(Result::is_ok));
        }
    }
}
