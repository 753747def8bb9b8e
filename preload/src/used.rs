//! What the program was told of the processor's time, which only goes forward.

/// The fields of `getrusage`, and of `times`, with its result.
pub(crate) const USAGE: usize = 18;
/// As above.
pub(crate) const TIMES: usize = 5;
/// Whose usage the kernel tells: the process's, its children's and the thread's.
pub(crate) const WHOSE: [i32; 3] = [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN, libc::RUSAGE_THREAD];

/// A time that only goes forward: the kernel counts that of a restored process from 0.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Forward {
    told: i64,
    behind: i64,
}

impl Forward {
    pub(crate) fn tell(&mut self, real: i64) -> i64 {
        self.behind = self.behind.max(self.told.saturating_sub(real));
        self.told = real.saturating_add(self.behind);
        self.told
    }

    /// In replay.
    pub(crate) fn handle_told(&mut self, told: i64) {
        self.told = self.told.max(told);
    }
}

/// What the program was told of the processor's time.
#[derive(Debug, Default)]
pub(crate) struct Used {
    /// The process's times since a restart count on from here. A thread's are told of one thread only: of others it says nothing.
    pub(crate) usage: [[Forward; 4]; WHOSE.len()],
    pub(crate) times: [Forward; TIMES],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_on_from_where_they_were() {
        let mut time = Forward::default();
        assert_eq!((time.tell(5), time.tell(9)), (5, 9));
        // Restored from an earlier image, it is told the last one again, and then its own time has begun again.
        time.handle_told(20);
        assert_eq!((time.tell(1), time.tell(4)), (20, 23));
    }
}
