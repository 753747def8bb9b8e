//! Frames on the link of a connection ([`radic_observer::frames`]): one byte of how the input comes in pieces, then what arrives on the link.

use radic_observer::causes::{Bounds, Causes};
use radic_observer::frames::Deframer;
use radic_wire::causes::Cause;
use radic_wire::ids::Rank;
use radic_wire::link_frame::{LINK_FRAME, LinkFrame};

use crate::Inputs;
use crate::input::{Input, pieces};
use crate::values::written;

/// The bytes of the program, and what they depend on, are those that a naive reader finds, however they come.
pub fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    let seed = input.u8();
    let expected = naive(input.0);
    assert_eq!(taken([input.0].into_iter()), expected, "all at once");
    assert_eq!(taken(pieces(input.0, seed)), expected, "in pieces");
    if let Some((_, causes)) = &expected {
        // Any bytes may be said to be causes. A process that keeps them keeps them all, or refuses them.
        let mut kept = Causes::new(Rank(1), Bounds::default());
        let good = kept.handle_set(0, causes).is_ok();
        assert!(!good || kept.end() <= causes.len() as u64, "no more is kept than came");
    }
    expected.is_some_and(|(bytes, _)| !bytes.is_empty())
}

/// The bytes of the program, and the causes of frames of which there are some. None: what begins somewhere is no frame.
fn naive(mut bytes: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut all, mut causes) = (Vec::new(), Vec::new());
    while let Some((header, after)) = bytes.split_first_chunk::<LINK_FRAME>() {
        let LinkFrame { payload, causes: length, .. } = LinkFrame::read(header)?;
        let Some((before, after)) = after.split_at_checked(length as usize) else { break };
        causes.extend_from_slice(before);
        let (body, rest) = after.split_at(after.len().min(payload as usize));
        all.extend_from_slice(body);
        bytes = rest;
    }
    Some((all, causes))
}

fn taken<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut deframer, mut all, mut causes) = (Deframer::default(), Vec::new(), Vec::new());
    for piece in pieces {
        let mut piece = piece.to_vec();
        let count = deframer.unframe(&mut piece).ok()?;
        all.extend_from_slice(&piece[..count]);
        causes.extend(deframer.causes());
        deframer.handle_kept();
    }
    Some((all, causes))
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let cause = written(|out| Cause::Part { origin: Rank(2), from: 5, bytes: &[0x20, 8] }.write(out));
    let with = |stable, causes: &[u8], body: &[u8]| {
        [
            &LinkFrame { payload: body.len() as u32, causes: causes.len() as u32, stable, received: stable / 2, line: 3 }.bytes()
                [..],
            causes,
            body,
        ]
        .concat()
    };
    let frame = |stable, body: &[u8]| with(stable, &[], body);
    let input = |frames: &[Vec<u8>]| [&[3][..], &frames.concat()].concat();
    vec![
        ("one", input(&[frame(0, b"payload")])),
        ("some", input(&[frame(1, b"a"), frame(7, &[9; 300]), frame(7, b"z")])),
        ("causes", input(&[with(1, &cause, b"after"), frame(7, b"z")])),
        ("partial", [&input(&[frame(0, b"x")])[..], &[9, 0]].concat()),
    ]
}
