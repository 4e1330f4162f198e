//! Choosing at random, the same in every run.

/// A generator of Marsaglia's.
pub struct Dice(u64);

impl Dice {
    /// Threads have numbers from 0.
    pub fn new(thread: u64) -> Self {
        Dice(0x9e37_79b9_7f4a_7c15 ^ (thread + 1))
    }

    pub fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * count as u128) >> 64) as usize
    }
}
