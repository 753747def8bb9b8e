//! Hand-written codes: a writer into memory that is there already and a strict reader, for messages on the data path, where
//! [`crate::codec`] would allocate. What a reader accepts, the writer writes back bit for bit.

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed at byte {at}: {what}")]
pub struct Malformed {
    /// Where, in bytes from the beginning.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// Writes into a slice. Writing past its end is remembered, and told by [`Writer::finish`].
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    /// A writer from the beginning of `out`.
    pub fn new(out: &'a mut [u8]) -> Self {
        Writer { out, at: 0 }
    }

    /// Writes these bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        if let Some(room) = self.at.checked_add(bytes.len()).and_then(|end| self.out.get_mut(self.at..end)) {
            room.copy_from_slice(bytes);
        }
        self.at = self.at.saturating_add(bytes.len());
    }

    /// Writes one byte.
    pub fn u8(&mut self, value: u8) {
        self.raw(&[value]);
    }

    /// Writes four bytes, little endian.
    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    /// Writes eight bytes, little endian.
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// Writes seven bits a byte, the lowest first: 1 to 10 bytes.
    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8);
    }

    /// How many bytes were written, or `None` if they did not fit.
    pub fn finish(self) -> Option<usize> {
        (self.at <= self.out.len()).then_some(self.at)
    }
}

/// Reads from the beginning of a slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub fn at(&self) -> usize {
        self.at
    }

    /// An error at this place.
    pub fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at, what }
    }

    /// The next `length` bytes.
    pub fn raw(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(self.malformed("ends too early"))?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(N)?);
        Ok(array)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// The next byte, which must be 0 or 1.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed("neither 0 nor 1")),
        }
    }

    /// Four bytes, little endian.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes, little endian.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// What [`Writer::varint`] wrote; a longer code of the same number is refused.
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(self.malformed("a number over 64 bits"));
            }
            value |= bits << shift;
            if byte < 0x80 {
                return if byte == 0 && shift > 0 { Err(self.malformed("a number longer than needed")) } else { Ok(value) };
            }
        }
        Err(self.malformed("a number over 64 bits"))
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// The end: nothing may be left.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.malformed("bytes left over")) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_have_one_code(value in prop_oneof![any::<u64>(), 0u64..70_000, Just(u64::MAX)]) {
            let mut out = [0; 10];
            let mut writer = Writer::new(&mut out);
            writer.varint(value);
            let length = writer.finish().unwrap();
            let mut reader = Reader::new(&out[..length]);
            prop_assert_eq!(reader.varint(), Ok(value));
            prop_assert!(reader.finish().is_ok());
        }

        #[test]
        fn what_is_read_is_written_back(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0x80), Just(0)], 0..12)) {
            let mut reader = Reader::new(&bytes);
            if let Ok(value) = reader.varint() {
                let mut out = [0; 10];
                let mut writer = Writer::new(&mut out);
                writer.varint(value);
                let length = writer.finish().unwrap();
                prop_assert_eq!(&out[..length], &bytes[..reader.at()]);
            }
        }
    }

    #[test]
    fn no_room_is_told() {
        let mut out = [0; 3];
        let mut writer = Writer::new(&mut out);
        writer.u32(7);
        writer.u8(1);
        assert_eq!(writer.finish(), None);
        assert_eq!(out, [0; 3]);
    }
}
