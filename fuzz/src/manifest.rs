//! The list of a suspended job ([`radic_wire::suspension`]): a byte of flags, then the list. What says that it was written by this cluster would stop a fuzzer at
//! once; so it is made right first, unless a flag says to leave it.

use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, JobId, Rank};
use radic_wire::job::OutputStream;
use radic_wire::key::ClusterKey;
use radic_wire::log::HeldStream;
use radic_wire::mac::{JobKey, MAC, Purpose};
use radic_wire::span::Span;
use radic_wire::suspension::{HEAD, MAGIC, Manifest, ManifestError, SavedFile, SavedImage, SavedRank, Unprinted, VERSION};
use serde_bytes::ByteBuf;

use crate::Inputs;
use crate::values::{connection, suspension};

/// Flag: the list stays as it is.
const LEAVE: u8 = 1;

fn key() -> ClusterKey {
    ClusterKey::from_bytes([7; 32])
}

/// A list that is accepted names files that are in its folder, is written back to an equal one, and is refused once anything of it is changed.
pub fn check(data: &[u8]) -> bool {
    let Some((&flags, bytes)) = data.split_first() else { return false };
    let mut bytes = bytes.to_vec();
    if flags & LEAVE == 0 {
        repair(&mut bytes);
    }
    let Ok(manifest) = Manifest::decode(&bytes, &key()) else { return false };
    let again = manifest.encode(&key()).expect("a list that was read can be written");
    assert_eq!(Manifest::decode(&again, &key()).as_ref(), Ok(&manifest));
    assert_eq!(Manifest::decode(&bytes, &ClusterKey::from_bytes([8; 32])), Err(ManifestError::Code), "another cluster's");
    let at = usize::from(flags) * 7 % bytes.len();
    bytes[at] ^= 1;
    assert!(Manifest::decode(&bytes, &key()).is_err(), "byte {at} was changed");
    for file in manifest.ranks.iter().flat_map(SavedRank::files) {
        assert!(!file.name.contains(['/', '\0']) && !file.name.starts_with('.'), "{:?} leads elsewhere", file.name);
    }
    assert!(manifest.ranks.iter().all(|rank| rank.received() == rank.streams_file.bytes));
    true
}

/// Makes magic, version, length and code right.
fn repair(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().max(HEAD + MAC), 0);
    let body = bytes.len() - HEAD - MAC;
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[20..28].copy_from_slice(&(body as u64).to_le_bytes());
    let job = bytes[12..20].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let (coded, code) = bytes.split_at_mut(HEAD + body);
    code.copy_from_slice(&JobKey::derive_for_suspension(&key(), JobId::from_bits(job)).mac(Purpose::Suspension, &[coded]));
}

fn manifest() -> Manifest {
    let data = ByteBuf::from("a line\n");
    let unprinted = vec![Unprinted { rank: Rank(0), stream: OutputStream::Stdout, offset: 3, data }];
    let file = |name: &str, bytes| SavedFile { name: name.to_owned(), bytes, code: [1; MAC] };
    let stream = |from_opener, end, closed: bool| HeldStream {
        stream: StreamId { connection: connection(1), from_opener },
        bytes: Span { start: 100, end },
        ended: closed.then_some(end),
        closed,
    };
    let image = |image, parent, cut| SavedImage { image, parent, cut, file: file("rank-0.image", 9) };
    let rank = SavedRank {
        incarnation: Incarnation::restarted(3),
        images: vec![image(4, None, 50), image(5, Some(4), 60)],
        journal: Span { start: 60, end: 80 },
        journal_file: file("rank-0.journal", 20),
        streams: vec![stream(true, 130, false), stream(false, 500, true)],
        streams_file: file("rank-0.received", 30),
    };
    Manifest { suspension: suspension(), unprinted, ranks: vec![rank] }
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let list = manifest().encode(&key()).expect("a list");
    let mut short = manifest();
    short.unprinted.clear();
    let short = short.encode(&key()).expect("a list");
    vec![("list", [&[0], &list[..]].concat()), ("left", [&[LEAVE], &list[..]].concat()), ("silent", [&[0], &short[..]].concat())]
}
