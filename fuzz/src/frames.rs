//! Frames ([`radic_wire::frame`]): two bytes of limit, one of how the input comes in pieces, then the bytes of a connection.

use radic_wire::frame::{FrameReader, HEADER, encode_into};

use crate::Inputs;
use crate::input::{Input, pieces};

/// What reading has given: the frames, whether one was too long, and what is left.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    frames: Vec<Vec<u8>>,
    refused: bool,
    rest: Vec<u8>,
}

/// The frames are those that a naive reader finds, however the bytes come, and are written back to the same bytes.
pub fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    let (limit, seed) = (usize::from(input.u16()), input.u8());
    let expected = naive(input.0, limit);
    assert_eq!(read([input.0].into_iter(), limit), expected, "all at once");
    assert_eq!(read(pieces(input.0, seed), limit), expected, "in pieces");
    let mut again = Vec::new();
    expected.frames.iter().for_each(|frame| encode_into(&mut again, frame, limit));
    again.extend_from_slice(&expected.rest);
    assert!(again == input.0, "the frames and the rest are other bytes");
    !expected.frames.is_empty() && !expected.refused
}

fn naive(mut bytes: &[u8], limit: usize) -> Read {
    let mut read = Read { frames: Vec::new(), refused: false, rest: Vec::new() };
    while let Some((head, after)) = bytes.split_first_chunk::<HEADER>() {
        let length = u32::from_le_bytes(*head) as usize;
        read.refused = length > limit;
        let Some((body, after)) = after.split_at_checked(length).filter(|_| !read.refused) else { break };
        read.frames.push(body.to_vec());
        bytes = after;
    }
    read.rest = bytes.to_vec();
    read
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>, limit: usize) -> Read {
    let (mut reader, mut frames, mut refused) = (FrameReader::new(limit), Vec::new(), false);
    for piece in pieces {
        reader.push(piece);
        while !refused {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(frame.to_vec()),
                Ok(None) => break,
                Err(_) => refused = true,
            }
        }
    }
    let buffered = reader.buffered();
    let rest = reader.into_rest();
    assert_eq!(rest.len(), buffered);
    Read { frames, refused, rest }
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let input = |bodies: &[&[u8]]| {
        let mut out = vec![200, 0, 3];
        bodies.iter().for_each(|body| encode_into(&mut out, body, 200));
        out
    };
    vec![
        ("one", input(&[b"frame"])),
        ("some", input(&[b"", b"a", &[7; 200]])),
        ("partial", [&input(&[b"x"])[..], &[9, 0]].concat()),
    ]
}
