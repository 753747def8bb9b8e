//! Ranges of positions.

use serde::{Deserialize, Serialize};

use crate::bytes::{Malformed, Reader, Writer};

/// A range of positions, `start` included, `end` not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Span {
    /// The first position.
    pub start: u64,
    /// The position after the last.
    pub end: u64,
}

impl Span {
    /// Writes it.
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.varint(self.start);
        out.varint(self.end);
    }

    /// Reads it.
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Span, Malformed> {
        let span = Span { start: from.varint()?, end: from.varint()? };
        if span.start <= span.end { Ok(span) } else { Err(from.malformed("a span that ends before it starts")) }
    }
}
