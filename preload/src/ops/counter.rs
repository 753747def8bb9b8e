//! The processor's time stamp counter, which a program reads by an instruction (`--record-tsc`): what it is told is a reading of
//! CLOCK_MONOTONIC_RAW, counted in the ticks of the machine where the program began.
//!
//! So a reading is recorded and told again as any other of that clock is. The counter itself is not read, for two reasons. While
//! the instruction traps, the thread would have to allow it and to forbid it again: each changes a control register, which costs
//! microseconds in a virtual machine. And the ticks stay as long as they were when the process goes on at a machine whose counter
//! has another rate, and the program has measured that rate before.

use std::sync::OnceLock;

use super::time;

/// The place of CLOCK_MONOTONIC_RAW among the clocks.
const RAW: u32 = libc::CLOCK_MONOTONIC_RAW as u32;
/// Bits after the point of a rate.
const FRACTION: u32 = 32;

/// The scale by which the counter is told, from the beginning of the process on. It is in each image.
static SCALE: OnceLock<Scale> = OnceLock::new();

/// An instruction that reads the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// `rdtsc`.
    Counter,
    /// `rdtscp`: it tells a number of the processor, too.
    CounterAndProcessor,
}

impl Instruction {
    /// Decodes the instruction; `byte(i)` returns its i-th byte. Reads no byte that the processor would not have read.
    pub fn decode(mut byte: impl FnMut(usize) -> u8) -> Option<Instruction> {
        if byte(0) != 0x0f {
            return None;
        }
        match byte(1) {
            0x31 => Some(Instruction::Counter),
            0x01 if byte(2) == 0xf9 => Some(Instruction::CounterAndProcessor),
            _ => None,
        }
    }

    /// Its bytes.
    pub fn length(self) -> usize {
        match self {
            Instruction::Counter => 2,
            Instruction::CounterAndProcessor => 3,
        }
    }
}

/// What the counter and the clock said at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The counter.
    pub ticks: u64,
    /// The clock, in nanoseconds.
    pub ns: i64,
}

/// How the counter follows from the clock.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    origin: Moment,
    /// Ticks in a nanosecond, with [`FRACTION`] bits after the point.
    rate: u64,
}

impl Scale {
    /// By two moments. None: the counter does not count as a clock does.
    pub fn new(first: Moment, second: Moment) -> Option<Scale> {
        let ticks = second.ticks.checked_sub(first.ticks).filter(|ticks| *ticks > 0)?;
        let ns = second.ns.checked_sub(first.ns).and_then(|ns| u64::try_from(ns).ok()).filter(|ns| *ns > 0)?;
        let rate = (u128::from(ticks) << FRACTION) / u128::from(ns);
        // Between 1 MHz and 1 THz.
        let rate = u64::try_from(rate).ok().filter(|rate| ((1 << FRACTION) / 1_000..=1_000 << FRACTION).contains(rate))?;
        Some(Scale { origin: first, rate })
    }

    /// The counter when the clock says so.
    fn ticks(&self, ns: i64) -> u64 {
        let since = i128::from(ns) - i128::from(self.origin.ns);
        let ticks = (since * i128::from(self.rate)) >> FRACTION;
        self.origin.ticks.wrapping_add(ticks as u64)
    }
}

/// From now on the counter is told by this scale.
pub fn begin(scale: Scale) {
    _ = SCALE.set(scale);
}

/// What the program is told of the counter: recorded, if the layer is free. `clock` reads CLOCK_MONOTONIC_RAW.
pub fn read(clock: impl Fn() -> i64) -> u64 {
    tell(time::read(RAW, || Some(clock())).unwrap_or_else(clock))
}

/// The counter when the clock says so.
pub fn tell(ns: i64) -> u64 {
    SCALE.get().map_or(0, |scale| scale.ticks(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Option<Instruction> {
        Instruction::decode(|at| bytes[at])
    }

    #[test]
    fn the_two_instructions_are_told_from_others() {
        assert_eq!(decode(&[0x0f, 0x31]), Some(Instruction::Counter));
        assert_eq!(decode(&[0x0f, 0x01, 0xf9]), Some(Instruction::CounterAndProcessor));
        assert_eq!([Instruction::Counter, Instruction::CounterAndProcessor].map(Instruction::length), [2, 3]);
        // rdpmc, rdmsr, swapgs, monitorx, hlt, int3.
        for other in [&[0x0f, 0x33][..], &[0x0f, 0x32], &[0x0f, 0x01, 0xf8], &[0x0f, 0x01, 0xfa], &[0xf4], &[0xcc]] {
            assert_eq!(decode(other), None, "{other:x?}");
        }
    }

    /// They may be the last ones of the last page: `decode` above would panic.
    #[test]
    fn no_byte_behind_an_instruction_is_looked_at() {
        for last in [&[0x90][..], &[0xf4], &[0x0f, 0x0b], &[0x0f, 0x31], &[0x0f, 0x01, 0xd0]] {
            decode(last);
        }
    }

    #[test]
    fn ticks_follow_from_the_clock() {
        let first = Moment { ticks: 1_000, ns: 5_000_000_000 };
        let scale = Scale::new(first, Moment { ticks: 1_000 + 52_000_000, ns: 5_020_000_000 }).unwrap();
        for (ns, ticks) in [(0, 1_000), (10, 1_026), (1_000_000_000, 2_600_001_000)] {
            assert!(scale.ticks(5_000_000_000 + ns).abs_diff(ticks) <= 1, "{ns}");
        }
        let year = 365 * 24 * 3_600 * 1_000_000_000i64;
        let (told, due) = (scale.ticks(5_000_000_000 + year), 1_000 + year as u64 / 10 * 26);
        assert!(told.abs_diff(due) < due / 1_000_000_000, "{told} for {due}");
        // A machine that has booted later.
        assert_eq!(
            Scale::new(Moment { ticks: 26_000, ..first }, Moment { ticks: 28_600, ns: first.ns + 1_000 })
                .unwrap()
                .ticks(first.ns - 1_000),
            23_400
        );
    }

    #[test]
    fn a_counter_that_is_no_clock_is_refused() {
        let first = Moment { ticks: 1_000, ns: 1_000 };
        for (ticks, ns) in [(1_000, 2_000), (999, 2_000), (2_000, 1_000), (2_000, 0), (1_001, 20_000_000), (u64::MAX, 1_001)] {
            assert!(Scale::new(first, Moment { ticks, ns }).is_none(), "{ticks} {ns}");
        }
    }
}
