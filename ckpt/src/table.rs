//! Lists without a heap.

/// A bounded list of plain values, valid when all bytes are zero.
#[repr(C)]
pub struct Table<T, const N: usize> {
    /// How many are in use.
    pub len: usize,
    /// All of them.
    pub items: [T; N],
}

impl<T: Copy, const N: usize> Table<T, N> {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a value, unless the table is full.
    #[must_use]
    pub fn push(&mut self, item: T) -> bool {
        let free = self.len < N;
        if free {
            self.items[self.len] = item;
            self.len += 1;
        }
        free
    }
}

impl<T, const N: usize> core::ops::Deref for Table<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.items[..self.len]
    }
}

impl<T, const N: usize> core::ops::DerefMut for Table<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..self.len]
    }
}
