//! A value of PMIx, out of its C form.
#![forbid(unsafe_code)]

/// The number of a type, as `pmix_data_type_t` has it.
pub(crate) mod kind {
    pub(crate) const BOOL: u16 = 1;
    pub(crate) const STRING: u16 = 3;
    pub(crate) const SIZE: u16 = 4;
    pub(crate) const INT: u16 = 6;
    pub(crate) const INT64: u16 = 10;
    pub(crate) const UINT16: u16 = 13;
    pub(crate) const UINT32: u16 = 14;
    pub(crate) const PROC: u16 = 22;
    pub(crate) const INFO: u16 = 24;
    pub(crate) const BYTE_OBJECT: u16 = 27;
    pub(crate) const DATA_ARRAY: u16 = 39;
    pub(crate) const PROC_RANK: u16 = 40;
}

/// How many bytes a number of this type has, if it is one that values and data buffers may hold.
pub(crate) fn size_of_number(of: u16) -> Option<usize> {
    Some(match of {
        // BOOL, BYTE, INT8, UINT8
        1 | 2 | 7 | 12 => 1,
        // INT16, UINT16
        8 | 13 => 2,
        // PID, INT, INT32, UINT, UINT32, FLOAT, STATUS, PROC_RANK
        5 | 6 | 9 | 11 | 14 | 16 | 20 | 40 => 4,
        // SIZE, INT64, UINT64, DOUBLE, TIME
        4 | 10 | 15 | 17 | 19 => 8,
        _ => return None,
    })
}

/// A value: a number, a text or bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    /// The number of its type: one that [`size_of_number`] knows, `STRING` or `BYTE_OBJECT`.
    pub(crate) kind: u16,
    /// A number as it is in memory; a text without the zero at its end.
    pub(crate) bytes: Vec<u8>,
}

impl Value {
    pub(crate) fn text(text: impl Into<Vec<u8>>) -> Self {
        Value { kind: kind::STRING, bytes: text.into() }
    }

    pub(crate) fn uint16(number: u16) -> Self {
        Value { kind: kind::UINT16, bytes: number.to_ne_bytes().to_vec() }
    }

    pub(crate) fn uint32(number: u32) -> Self {
        Value { kind: kind::UINT32, bytes: number.to_ne_bytes().to_vec() }
    }

    pub(crate) fn size(number: u64) -> Self {
        Value { kind: kind::SIZE, bytes: number.to_ne_bytes().to_vec() }
    }

    /// Whether the bytes are as the type wants them.
    pub(crate) fn is_sound(&self) -> bool {
        match self.kind {
            kind::STRING => !self.bytes.contains(&0),
            kind::BYTE_OBJECT => true,
            other => size_of_number(other) == Some(self.bytes.len()),
        }
    }

    /// The number, of a type of whole numbers.
    pub(crate) fn number(&self) -> Option<u64> {
        let is_signed = matches!(self.kind, kind::INT | kind::INT64 | 7..=9);
        let is_whole = is_signed || matches!(self.kind, kind::BOOL | kind::SIZE | 2 | 11..=15 | kind::PROC_RANK);
        let negative = is_signed && self.bytes.last().is_some_and(|byte| *byte > 127);
        if !is_whole || negative || self.bytes.len() > 8 {
            return None;
        }
        let mut bytes = [0; 8];
        bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
        Some(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_whatever_their_size() {
        assert_eq!(Value::uint16(700).number(), Some(700));
        assert_eq!(Value::uint32(70_000).number(), Some(70_000));
        assert_eq!(Value::size(1 << 40).number(), Some(1 << 40));
        let int = |number: i32| Value { kind: kind::INT, bytes: number.to_ne_bytes().to_vec() };
        assert_eq!((int(600).number(), int(-1).number()), (Some(600), None));
        assert_eq!(Value::text("7").number(), None);
        let double = Value { kind: 17, bytes: vec![0; 8] };
        assert!(double.is_sound() && double.number().is_none());
        assert!(!Value { kind: kind::UINT16, bytes: vec![1] }.is_sound());
        assert!(!Value { kind: kind::DATA_ARRAY, bytes: Vec::new() }.is_sound());
        assert!(!Value::text([1, 0]).is_sound());
    }
}
