//! How often calls that find nothing look at the clock: a program that polls without a pause does so many times before the kernel's clock ticks, and a
//! reading takes as long as a tenth of all that the layer does for such a poll.

/// Calls between two looks, at most: so many that a program which begins to pause between its polls makes before each of them looks again.
const MOST: u32 = 8;

/// Which calls look.
#[derive(Debug, Default)]
pub(super) struct Seldom {
    /// Calls before the next one that looks.
    left: u32,
    /// How many there were before the last one.
    were: u32,
    /// What the clock said.
    told: u64,
}

impl Seldom {
    /// What the clock says, if this call is to look.
    #[inline]
    pub(super) fn look(&mut self, clock: impl FnOnce() -> u64) -> Option<u64> {
        if self.left > 0 {
            self.left -= 1;
            return None;
        }
        let now = clock();
        self.were = if now == self.told { (2 * self.were + 1).min(MOST - 1) } else { 0 };
        (self.left, self.told) = (self.were, now);
        Some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_polls_look_seldom_and_others_always() {
        let mut seldom = Seldom::default();
        let looks = |seldom: &mut Seldom, times: &mut dyn Iterator<Item = u64>| {
            times.filter(|time| seldom.look(|| *time).is_some()).count()
        };
        assert_eq!(looks(&mut seldom, &mut (1..=100)), 100, "the clock ticks between all of them");
        assert_eq!(looks(&mut seldom, &mut std::iter::repeat_n(100, 1 + 3 + 7 + 80)), 3 + 10);
        let before = (200..).take_while(|time| seldom.look(|| *time).is_none()).count();
        assert!(before < MOST as usize, "{before}");
        assert_eq!(looks(&mut seldom, &mut (300..400)), 100);
    }
}
