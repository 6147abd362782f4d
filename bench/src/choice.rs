//! Choices that look random and are the same in each run: xorshift64* (Marsaglia 2003, Vigna 2016).

/// A sequence of choices.
#[derive(Debug, Clone)]
pub(crate) struct Choice(u64);

impl Choice {
    /// The sequence of a seed; different seeds give different ones.
    pub(crate) fn new(seed: u64) -> Self {
        // The state must not be 0, which is the only one that leads to itself.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// One of `0..count`; 0 if there is none.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        // The upper half of the product spreads the bits over the range evenly enough for a load.
        ((u128::from(bits) * u128::from(count)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Choice;

    #[test]
    fn all_are_chosen_and_none_beyond() {
        let mut choice = Choice::new(3);
        let mut counts = [0_u32; 7];
        (0..7000).for_each(|_| counts[choice.below(7) as usize] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        assert_eq!(choice.below(0), 0);
        assert_ne!(Choice::new(1).below(u64::MAX), Choice::new(2).below(u64::MAX));
    }
}
