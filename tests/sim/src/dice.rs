//! The dice that decide what happens: the same seed throws the same.

use crate::app::mix;

/// A sequence of throws.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// The throws of this seed.
    pub fn new(seed: u64) -> Dice {
        Dice(mix(seed, 77))
    }

    /// A number below `sides`.
    pub fn below(&mut self, sides: usize) -> usize {
        self.0 = mix(self.0, 1);
        (self.0 >> 16) as usize % sides.max(1)
    }

    /// True once in `sides` times.
    pub fn one_in(&mut self, sides: usize) -> bool {
        self.below(sides) == 0
    }
}
