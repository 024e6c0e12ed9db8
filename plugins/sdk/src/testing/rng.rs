//! A seeded generator for property tests: SplitMix64 (Steele, Lea, Flood 2014), four lines, no dependency.

/// Random numbers that depend on the seed alone.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        assert!(low <= high, "{low} to {high} is no range");
        let span = u64::from(high - low) + 1;
        low + u32::try_from(self.next_u64() % span).expect("less than the span")
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: u32) -> bool {
        self.between(1, n) == 1
    }
}
