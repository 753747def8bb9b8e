//! Frames on the link of a connection ([`radic_observer::frames`]): one byte of how the input comes in pieces, then what arrives on the link.

use radic_observer::frames::Deframer;
use radic_wire::link_frame::{LINK_FRAME, LinkFrame};

use crate::Inputs;
use crate::input::{Input, pieces};

/// The bytes of the program are those that a naive reader finds, however they come.
pub fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    let seed = input.u8();
    let expected = naive(input.0);
    assert_eq!(taken([input.0].into_iter()), expected, "all at once");
    assert_eq!(taken(pieces(input.0, seed)), expected, "in pieces");
    expected.is_some_and(|bytes| !bytes.is_empty())
}

/// None: what begins somewhere is no frame.
fn naive(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    while let Some((header, after)) = bytes.split_first_chunk::<LINK_FRAME>() {
        let LinkFrame { payload, .. } = LinkFrame::read(header)?;
        let (body, rest) = after.split_at(after.len().min(payload as usize));
        all.extend_from_slice(body);
        bytes = rest;
    }
    Some(all)
}

fn taken<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let (mut deframer, mut all) = (Deframer::default(), Vec::new());
    for piece in pieces {
        let mut piece = piece.to_vec();
        let count = deframer.unframe(&mut piece).ok()?;
        all.extend_from_slice(&piece[..count]);
    }
    Some(all)
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let frame = |stable, body: &[u8]| [&LinkFrame { payload: body.len() as u32, stable }.bytes()[..], body].concat();
    let input = |frames: &[Vec<u8>]| [&[3][..], &frames.concat()].concat();
    vec![
        ("one", input(&[frame(0, b"payload")])),
        ("some", input(&[frame(1, b"a"), frame(7, &[9; 300]), frame(7, b"z")])),
        ("partial", [&input(&[frame(0, b"x")])[..], &[9, 0]].concat()),
    ]
}
