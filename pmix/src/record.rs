//! How values travel: what a rank has put, in pieces that fit into values of PMI-1, and what it publishes under a name.
#![forbid(unsafe_code)]

use radic_pmi_client::VALUE;

use crate::value::Value;

/// Bytes of a piece: what one value of PMI-1 holds, however it is escaped.
pub(crate) const PIECE: usize = VALUE - 1;
/// Longest record, in bytes: what one rank may put between two commits.
pub(crate) const RECORD: usize = 1 << 20;

/// Reads numbers and bytes from the front of a slice.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(crate) fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.number().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.number().map(u32::from_le_bytes)
    }

    /// Bytes with their length before them.
    pub(crate) fn counted(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.bytes(length as usize)
    }
}

/// Writes bytes with their length before them.
pub(crate) fn write_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend(length.to_le_bytes());
    out.extend(bytes.iter().take(length as usize));
}

/// Keys and values as one record.
pub(crate) fn encode<'a>(entries: impl IntoIterator<Item = (&'a [u8], &'a Value)>) -> Vec<u8> {
    let mut record = Vec::new();
    for (key, value) in entries {
        write_counted(&mut record, key);
        record.extend(value.kind.to_le_bytes());
        write_counted(&mut record, &value.bytes);
    }
    record
}

/// The keys and values of a record; none of one that is damaged.
pub(crate) fn decode(record: &[u8]) -> Option<Vec<(Vec<u8>, Value)>> {
    let mut from = Reader(record);
    let mut entries = Vec::new();
    while !from.0.is_empty() {
        let key = from.counted()?.to_vec();
        let value = Value { kind: from.u16()?, bytes: from.counted()?.to_vec() };
        if !value.is_sound() {
            return None;
        }
        entries.push((key, value));
    }
    Some(entries)
}

/// A record in pieces. The first one begins with the length of all.
pub(crate) fn split(record: &[u8]) -> Vec<Vec<u8>> {
    let mut whole = Vec::with_capacity(record.len() + 4);
    write_counted(&mut whole, record);
    whole.chunks(PIECE).map(<[u8]>::to_vec).collect()
}

/// Puts a record together of its pieces, which `piece` fetches by their number. None: a piece is missing, or they are no record.
pub(crate) fn join<E>(mut piece: impl FnMut(usize) -> Result<Option<Vec<u8>>, E>) -> Result<Option<Vec<u8>>, E> {
    let Some(mut whole) = piece(0)? else { return Ok(None) };
    let Some(length) = Reader(&whole).u32().map(|length| length as usize).filter(|length| *length <= RECORD) else {
        return Ok(None);
    };
    let mut number = 0;
    while whole.len() < length + 4 {
        number += 1;
        match piece(number)?.filter(|piece| !piece.is_empty()) {
            Some(piece) => whole.extend(piece),
            None => return Ok(None),
        }
    }
    Ok((whole.len() == length + 4).then(|| whole.split_off(4)))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;
    use crate::value::kind;

    fn joined(pieces: &[Vec<u8>]) -> Option<Vec<u8>> {
        let Ok(joined) = join(|number| Ok::<_, Infallible>(pieces.get(number).cloned()));
        joined
    }

    #[test]
    fn a_record_in_pieces_comes_back() {
        for length in [0, 1, PIECE - 4, PIECE - 3, PIECE, 10 * PIECE + 7] {
            let record: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let pieces = split(&record);
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE));
            assert_eq!(joined(&pieces), Some(record), "{length}");
            assert_eq!(joined(&pieces[..pieces.len() - 1]), None, "{length}");
        }
        assert_eq!(joined(&[u32::MAX.to_le_bytes().to_vec()]), None, "longer than any record");
        assert_eq!(joined(&[vec![9, 0, 0, 0], Vec::new()]), None, "an empty piece");
        assert_eq!(joined(&[vec![1, 0, 0, 0, 7, 8]]), None, "more than it says");
    }

    proptest! {
        #[test]
        fn entries_come_back(keys in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..20), prop::collection::vec(any::<u8>(), 0..50)), 0..5)) {
            let entries: Vec<_> =
                keys.into_iter().map(|(key, bytes)| (key, Value { kind: kind::BYTE_OBJECT, bytes })).collect();
            let record = encode(entries.iter().map(|(key, value)| (&key[..], value)));
            prop_assert_eq!(decode(&record), Some(entries));
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Some(entries) = decode(&bytes) {
                prop_assert!(entries.iter().all(|(_, value)| value.is_sound()));
            }
        }
    }
}
