//! Seeded random inputs for checks, benchmarks and tests: SplitMix64 (Steele, Lea, Flood 2014), the same on every machine.

/// A stream of numbers determined by a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A stream for `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True or false.
    pub fn flag(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// A size in `low..=high`.
    pub fn size(&mut self, low: usize, high: usize) -> usize {
        low + (self.bits() % (high - low + 1) as u64) as usize
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.size(0, choices.len() - 1)]
    }

    /// A number in `0..1`.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    /// A number in `-1..1`.
    pub fn number(&mut self) -> f32 {
        2.0 * self.unit() - 1.0
    }

    /// Numbers in `-1..1`.
    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}
