//! The format of data buffers: what `PMIx_Data_pack` adds to one and `PMIx_Data_unpack` takes from it. A buffer travels as bytes between ranks of one job, so it only has to be
//! read by what has written it.
#![forbid(unsafe_code)]

use crate::record::{Reader, write_counted};
use crate::status::Status;
use crate::value::{kind, size_of_number};

/// One of the things that a call packs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// A number, as it is in memory.
    Number(Vec<u8>),
    /// A text, which may be a null pointer.
    Text(Option<Vec<u8>>),
    /// A byte object.
    Bytes(Vec<u8>),
    /// A process: its namespace and rank.
    Process(Vec<u8>, u32),
}

/// Items of one type, as they stand in a buffer.
pub(crate) fn encode(of: u16, items: &[Item]) -> Vec<u8> {
    let mut out = of.to_le_bytes().to_vec();
    out.extend(u32::try_from(items.len()).unwrap_or(u32::MAX).to_le_bytes());
    for item in items {
        match item {
            Item::Number(bytes) => out.extend(bytes),
            Item::Text(text) => {
                out.push(u8::from(text.is_some()));
                write_counted(&mut out, text.as_deref().unwrap_or(&[]));
            }
            Item::Bytes(bytes) => write_counted(&mut out, bytes),
            Item::Process(namespace, rank) => {
                write_counted(&mut out, namespace);
                out.extend(rank.to_le_bytes());
            }
        }
    }
    out
}

/// The items of this type at the front of a buffer, and how many of its bytes they were. The caller has room for `most`.
pub(crate) fn decode(of: u16, buffer: &[u8], most: usize) -> Result<(Vec<Item>, usize), Status> {
    let mut from = Reader(buffer);
    let is = from.u16().ok_or(Status::PAST_END)?;
    if is != of {
        return Err(Status::PACK_MISMATCH);
    }
    let count = from.u32().ok_or(Status::PAST_END)? as usize;
    if count > most {
        return Err(Status::INADEQUATE_SPACE);
    }
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(item(of, &mut from)?.ok_or(Status::PAST_END)?);
    }
    Ok((items, buffer.len() - from.0.len()))
}

fn item(of: u16, from: &mut Reader<'_>) -> Result<Option<Item>, Status> {
    Ok(match of {
        kind::STRING => {
            let there = from.bytes(1).map(|flag| flag[0] != 0);
            there.and_then(|there| from.counted().map(|text| Item::Text(there.then(|| text.to_vec()))))
        }
        kind::BYTE_OBJECT => from.counted().map(|bytes| Item::Bytes(bytes.to_vec())),
        kind::PROC => {
            let namespace = from.counted().map(<[u8]>::to_vec);
            namespace.and_then(|namespace| Some(Item::Process(namespace, from.u32()?)))
        }
        number => {
            let size = size_of_number(number).ok_or(Status::UNKNOWN_DATA_TYPE)?;
            from.bytes(size).map(|bytes| Item::Number(bytes.to_vec()))
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_packed_is_unpacked() {
        let cases = [
            (kind::UINT32, vec![Item::Number(vec![1, 2, 3, 4]), Item::Number(vec![0; 4])]),
            (kind::STRING, vec![Item::Text(Some(b"a port".to_vec())), Item::Text(None), Item::Text(Some(Vec::new()))]),
            (kind::PROC, vec![Item::Process(b"space".to_vec(), 7)]),
            (kind::BYTE_OBJECT, vec![Item::Bytes(vec![0; 300])]),
        ];
        let buffer: Vec<u8> = cases.iter().flat_map(|(of, items)| encode(*of, items)).collect();
        let mut rest = &buffer[..];
        for (of, items) in &cases {
            assert_eq!(decode(*of, rest, items.len() - 1), Err(Status::INADEQUATE_SPACE));
            assert_eq!(decode(kind::INT, rest, 9), Err(Status::PACK_MISMATCH));
            let (unpacked, taken) = decode(*of, rest, items.len()).unwrap();
            assert_eq!(&unpacked, items);
            assert_eq!(decode(*of, &rest[..taken - 1], items.len()), Err(Status::PAST_END));
            rest = &rest[taken..];
        }
        assert_eq!(decode(kind::INT, rest, 1), Err(Status::PAST_END));
        assert_eq!(decode(99, &encode(99, &[Item::Number(vec![1])]), 1), Err(Status::UNKNOWN_DATA_TYPE));
    }

    proptest! {
        #[test]
        fn any_bytes_are_unpacked_or_an_error(of in 0u16..48, bytes in prop::collection::vec(any::<u8>(), 0..80), most in 0usize..5) {
            let bytes = [&of.to_le_bytes()[..], &bytes].concat();
            if let Ok((items, taken)) = decode(of, &bytes, most) {
                prop_assert!(items.len() <= most && taken <= bytes.len());
            }
        }
    }
}
