//! The buffers of a vectored call, and parts of them.

use std::io::{IoSlice, IoSliceMut};

/// Most buffers of one call (the kernel's UIO_MAXIOV).
pub(crate) const BUFFERS: usize = 1024;

/// `len` bytes from `skip` on of what the program offers, as slices for a call.
pub(crate) fn clip<'a>(buffers: &'a [IoSlice<'_>], mut skip: usize, mut len: usize) -> Vec<IoSlice<'a>> {
    let mut clipped = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        let from = buffer.len().min(skip);
        let take = (buffer.len() - from).min(len);
        if take > 0 {
            clipped.push(IoSlice::new(&buffer[from..from + take]));
        }
        skip -= from;
        len -= take;
    }
    clipped
}

/// Room for `len` bytes from `skip` on, as slices for a call.
pub(crate) fn clip_mut<'a>(buffers: &'a mut [IoSliceMut<'_>], mut skip: usize, mut len: usize) -> Vec<IoSliceMut<'a>> {
    let mut clipped = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        let from = buffer.len().min(skip);
        let take = (buffer.len() - from).min(len);
        if take > 0 {
            clipped.push(IoSliceMut::new(&mut buffer[from..from + take]));
        }
        skip -= from;
        len -= take;
    }
    clipped
}

/// The bytes from `skip` on, `len` of them, in pieces.
pub(crate) fn pieces<'a>(buffers: &'a [IoSliceMut<'_>], skip: usize, len: usize) -> impl Iterator<Item = &'a [u8]> + Clone {
    let mut state = (skip, len);
    buffers.iter().map_while(move |buffer| {
        let from = buffer.len().min(state.0);
        let take = (buffer.len() - from).min(state.1);
        state = (state.0 - from, state.1 - take);
        (take > 0 || state.1 > 0).then(|| &buffer[from..from + take])
    })
}
