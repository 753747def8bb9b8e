//! Pseudo-random numbers from a seed that is printed, so that a run can be repeated.

use std::time::SystemTime;

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded from RADIC_SEED, or from the clock; printed.
    pub fn from_environment() -> Self {
        Self::seed_from_environment().1
    }

    /// The same, with the seed.
    pub fn seed_from_environment() -> (u64, Self) {
        let given = std::env::var("RADIC_SEED").ok().map(|seed| seed.parse().expect("RADIC_SEED is a number"));
        let clock = || SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64);
        let seed = given.unwrap_or_else(clock);
        println!("RADIC_SEED={seed} repeats the random choices of this run");
        (seed, Random(seed))
    }

    /// Seeded by `seed`.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0. The bias is far below what a test notices.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound as u64) as usize
    }

    /// Any bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.number() as u8).collect()
    }

    /// Different ones of `items`, in order.
    pub fn choose<T: Ord + Clone>(&mut self, count: usize, items: &[T]) -> Vec<T> {
        assert!(count <= items.len(), "{count} of {}", items.len());
        let mut rest = items.to_vec();
        let mut chosen: Vec<_> = (0..count).map(|_| rest.swap_remove(self.below(rest.len()))).collect();
        chosen.sort();
        chosen
    }
}
