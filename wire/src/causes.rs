//! Determinants that a process depends on and that are not known to be stable, as they travel: in front of the bytes that depend
//! on them ([`crate::link_frame`]), to the protectors of the processes that depend on them ([`crate::log`]), and to the protector
//! of a process that is lost.
//!
//! A process's determinants are one sequence of bytes, its journal. So they are named by a rank and a position. A set of causes
//! is one [`Cause`] after the other; all of them are of one job.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::bytes::{Malformed, Reader, Writer};
use crate::ids::Rank;
use crate::span::Span;

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

/// The causes of a set, each with where it ends in the set.
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

/// Why the logs of one moment cannot be made whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotWhole {
    /// Something depends on outcomes that no log has.
    #[error(
        "the log of rank {keeper} depends on the journal of rank {origin} up to {depends}, and all logs together have that up to {end} only"
    )]
    Lacking {
        /// Whose log it is that depends on more.
        keeper: Rank,
        /// Whose journal it depends on.
        origin: Rank,
        /// Up to where, at least.
        depends: u64,
        /// Up to where there is something.
        end: u64,
    },
    /// Two logs have different bytes at one position of a journal.
    #[error("the log of rank {keeper} has other outcomes of rank {origin} behind {from} of its journal than another log has")]
    Contradiction {
        /// Whose log it is that has others.
        keeper: Rank,
        /// Whose journal it is.
        origin: Rank,
        /// The part that differs begins there.
        from: u64,
    },
}

/// A part of a journal: where it begins, its codes, and whose log keeps it.
type Part<'a> = (u64, &'a [u8], Rank);

/// What the logs of all ranks of a job keep of each other's journals, at one moment. Each log is closed: what an outcome in it
/// depends on is among its causes, or is stable. So the journals together with what is kept of them elsewhere are a state that
/// all ranks can be brought to.
#[derive(Debug, Default)]
pub struct Elsewhere<'a> {
    /// By whose journal it is.
    parts: BTreeMap<Rank, Vec<Part<'a>>>,
    /// By whose journal it is: what is forgotten of it ends there, and whose log has forgotten it.
    forgotten: BTreeMap<Rank, Vec<(u64, Rank)>>,
}

impl<'a> Elsewhere<'a> {
    /// The causes that are held with the journal of a rank, and up to where it depends on others by causes that were forgotten.
    pub fn add(&mut self, keeper: Rank, set: &'a [u8], forgotten: &[(Rank, u64)]) -> Result<(), Malformed> {
        for (origin, to) in forgotten {
            self.forgotten.entry(*origin).or_default().push((*to, keeper));
        }
        for cause in read(set) {
            if let Cause::Part { origin, from, bytes } = cause? {
                self.parts.entry(origin).or_default().push((from, bytes, keeper));
            }
        }
        Ok(())
    }

    /// The least part of the journal of a rank, held from `start` to `end`, that has all that [`Elsewhere::rest`] reads of it.
    pub fn compared(&self, origin: Rank, Span { start, end }: Span) -> Span {
        let parts = self.parts.get(&origin).into_iter().flatten();
        let held = parts.map(|(from, bytes, _)| ((*from).max(start), (from + bytes.len() as u64).min(end)));
        let least = held.filter(|(from, to)| from < to).reduce(|(start, end), (from, to)| (start.min(from), end.max(to)));
        least.map_or(Span { start: end, end }, |(start, end)| Span { start, end })
    }

    /// What follows in the journal of a rank that is held from `start` to `end`. `own` reads this many bytes of that from a position on.
    pub fn rest<E: From<NotWhole>>(
        &self,
        origin: Rank,
        Span { start, end }: Span,
        mut own: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        let mut rest: Vec<u8> = Vec::new();
        let mut parts = self.parts.get(&origin).cloned().unwrap_or_default();
        parts.sort_unstable();
        for (from, bytes, keeper) in parts {
            let (to, at) = (from + bytes.len() as u64, end + rest.len() as u64);
            if from > at {
                return Err(NotWhole::Lacking { keeper, origin, depends: to, end: at }.into());
            }
            // An image covers what is before the start.
            let begin = from.max(start).min(to);
            let in_own = begin..to.min(end).max(begin);
            let in_rest = begin.max(end).min(to)..to.min(at).max(begin);
            let part = |range: &Range<u64>| &bytes[(range.start - from) as usize..(range.end.max(range.start) - from) as usize];
            let known = rest.get(in_rest.start.saturating_sub(end) as usize..in_rest.end.saturating_sub(end) as usize);
            if !in_own.is_empty() && own(in_own.start, part(&in_own).len())? != part(&in_own)
                || !in_rest.is_empty() && known != Some(part(&in_rest))
            {
                return Err(NotWhole::Contradiction { keeper, origin, from }.into());
            }
            rest.extend(bytes.get((at - from) as usize..).unwrap_or(&[]));
        }
        let whole = end + rest.len() as u64;
        let forgotten = self.forgotten.get(&origin).into_iter().flatten();
        match forgotten.filter(|(depends, _)| *depends > whole).max() {
            Some((depends, keeper)) => Err(NotWhole::Lacking { keeper: *keeper, origin, depends: *depends, end: whole }.into()),
            None => Ok(rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(origin: Rank, from: u64, bytes: &[u8]) -> Vec<u8> {
        let mut set = vec![0; 64 + bytes.len()];
        let mut out = Writer::new(&mut set);
        Cause::Part { origin, from, bytes }.write(&mut out);
        let length = out.finish().unwrap();
        set.truncate(length);
        set
    }

    /// Of rank 0, whose own log has "abcd" from 10 on.
    fn rest(kept: &[(u32, u64, &[u8])], forgotten: &[(Rank, u64)]) -> Result<Vec<u8>, NotWhole> {
        let sets: Vec<_> = kept.iter().map(|(keeper, from, bytes)| (*keeper, set(Rank(0), *from, bytes))).collect();
        let mut elsewhere = Elsewhere::default();
        sets.iter().for_each(|(keeper, set)| elsewhere.add(Rank(*keeper), set, forgotten).unwrap());
        elsewhere.rest(Rank(0), Span { start: 10, end: 14 }, |at, length| Ok(b"abcd"[at as usize - 10..][..length].to_vec()))
    }

    #[test]
    fn logs_that_contradict_each_other_or_lack_something_are_named() {
        assert_eq!(rest(&[(1, 12, b"cdef"), (2, 14, b"efg")], &[(Rank(0), 17)]), Ok(b"efg".to_vec()));
        assert_eq!(rest(&[(1, 5, b"-----a"), (2, 8, b"--ab")], &[]), Ok(vec![]), "an image covers what is before");
        let contradiction = |keeper, from| Err(NotWhole::Contradiction { keeper: Rank(keeper), origin: Rank(0), from });
        assert_eq!(rest(&[(1, 12, b"cxef")], &[]), contradiction(1, 12));
        assert_eq!(rest(&[(1, 14, b"ef"), (2, 15, b"xg")], &[]), contradiction(2, 15));
        let lacking = |keeper, depends, end| Err(NotWhole::Lacking { keeper: Rank(keeper), origin: Rank(0), depends, end });
        assert_eq!(rest(&[(3, 15, b"fg")], &[]), lacking(3, 17, 14));
        assert_eq!(rest(&[(3, 14, b"ef")], &[(Rank(0), 18)]), lacking(3, 18, 16));
        let text = rest(&[(3, 15, b"fg")], &[]).unwrap_err().to_string();
        assert!(text.contains("rank 3") && text.contains("rank 0"), "{text}");
    }

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

        /// Whatever parts logs have, of any length and however they overlap: a journal is followed by all that nothing is missing before.
        #[test]
        fn a_journal_goes_on_with_what_others_keep(
            (start, end) in (0u64..40, 0u64..40).prop_map(|(start, length)| (start, start + length)),
            parts in prop::collection::vec((0u64..100, 1u64..30, 1u32..4), 0..8)
        ) {
            let byte = |at: u64| (at * 7 + at / 5) as u8;
            let span = |from: u64, to: u64| (from..to).map(byte).collect::<Vec<u8>>();
            let sets: Vec<_> = parts.iter().map(|(from, length, keeper)| (*keeper, set(Rank(0), *from, &span(*from, from + length)))).collect();
            let mut elsewhere = Elsewhere::default();
            sets.iter().for_each(|(keeper, set)| elsewhere.add(Rank(*keeper), set, &[]).unwrap());
            let mut due = end;
            while let Some((from, length, _)) = parts.iter().find(|(from, length, _)| *from <= due && from + length > due) {
                due = from + length;
            }
            let has_gap = parts.iter().any(|(from, ..)| *from > due);
            let compared = elsewhere.compared(Rank(0), Span { start, end });
            assert!(start <= compared.start && compared.start <= compared.end && compared.end <= end, "that is held");
            let rest = elsewhere.rest(Rank(0), Span { start, end }, |at, length| {
                assert!(compared.start <= at && at + length as u64 <= compared.end, "only what is compared is read");
                Ok::<_, NotWhole>(span(at, at + length as u64))
            });
            match rest {
                Ok(rest) => prop_assert_eq!((rest, has_gap), (span(end, due), false)),
                Err(error) => prop_assert!(has_gap && matches!(error, NotWhole::Lacking { .. }), "{}", error),
            }
        }

        #[test]
        fn any_bytes_are_a_set_or_end_with_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let causes: Vec<_> = read(&bytes).collect();
            prop_assert!(causes.iter().rev().skip(1).all(Result::is_ok));
        }
    }
}
