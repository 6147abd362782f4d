//! Route ids: how peers name connections.
//!
//! Owns the way between the keys of the table of connections and the ids that are said on the wire: a permutation of 27
//! bits that the engine's entropy chooses. Keys are counted up, so they would show an outsider which ids are in use.
//! The permutation keeps what keys promise (a stale key differs from a live one for at least 511 uses of its index),
//! because it maps one to one. It is a hurdle for guessers, not a cipher. It must never give out 0, which means "none".

use rand::{Rng, RngExt};

use crate::ids::RouteId;
use crate::immediate::ROUTE_BITS;
use crate::table::Key;

const MASK: u32 = (1 << ROUTE_BITS) - 1;
/// A shift by half of the bits or more, done twice, leaves nothing, so that the step undoes itself.
const HALF: u32 = ROUTE_BITS.div_ceil(2);

/// The permutation: rounds of a multiplication, which carries bits up, and a shift, which carries them down.
#[derive(Debug)]
pub(crate) struct RouteNames {
    start: u32,
    /// Odd factors, each with its inverse modulo 2^27.
    rounds: [(u32, u32); 3],
}

impl RouteNames {
    pub(crate) fn new(rng: &mut impl Rng) -> Self {
        let rounds = [(); 3].map(|()| {
            let factor = rng.random::<u32>() | 1;
            (factor, inverse(factor))
        });
        Self { start: rng.random::<u32>() & MASK, rounds }
    }

    /// The id that the peer gets.
    pub(crate) fn name(&self, route: RouteId) -> u32 {
        match self.permute(route.bits()) {
            // No connection has key 0, so its place is free.
            0 => self.permute(0),
            name => name,
        }
    }

    /// The connection that a peer names. Any number is safe; one that was never given out names none.
    #[inline]
    pub(crate) fn route(&self, name: u32) -> RouteId {
        let bits = match name {
            0 => 0,
            _ if name > MASK => 0,
            _ => match self.restore(name) {
                0 => self.restore(0),
                bits => bits,
            },
        };
        RouteId::from_bits(bits)
    }

    fn permute(&self, bits: u32) -> u32 {
        self.rounds.iter().fold(bits ^ self.start, |x, (factor, _)| {
            let x = x.wrapping_mul(*factor) & MASK;
            x ^ (x >> HALF)
        })
    }

    fn restore(&self, name: u32) -> u32 {
        let bits =
            self.rounds.iter().rev().fold(name, |x, (_, inverse)| (x ^ (x >> HALF)).wrapping_mul(*inverse) & MASK);
        bits ^ self.start
    }
}

/// Of an odd number modulo 2^32: each step of Newton's method doubles the bits that are right, of which three are at
/// first.
const fn inverse(odd: u32) -> u32 {
    let mut x = odd;
    let mut right_bits = 3;
    while right_bits < 32 {
        x = x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x)));
        right_bits *= 2;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn names(seed: u8) -> RouteNames {
        RouteNames::new(&mut StdRng::from_seed([seed; 32]))
    }

    #[test]
    fn names_lead_back_and_none_is_zero() {
        for seed in 0..20 {
            let n = names(seed);
            // The key that would be called 0 is among them, as are the first and last ones.
            let special = [1, 2, MASK, MASK - 1, n.restore(0)];
            for bits in special.into_iter().chain((0..2_000).map(|i| i * 67_108 + 1)).filter(|b| *b != 0) {
                let name = n.name(RouteId::from_bits(bits));
                assert!(name != 0 && name <= MASK, "{bits:#x} is called {name:#x}");
                assert_eq!(n.route(name).bits(), bits, "seed {seed}");
            }
        }
    }

    #[test]
    fn numbers_that_are_no_names_lead_to_no_connection() {
        let n = names(1);
        let known = n.name(RouteId::from_bits(1 << 18));
        for name in [0, known | 1 << 27, known | 1 << 31, MASK + 1, u32::MAX] {
            assert_eq!(n.route(name).bits(), 0, "{name:#x}");
        }
    }

    #[test]
    fn the_names_of_connections_made_in_turn_do_not_follow_each_other() {
        let (a, b) = (names(1), names(2));
        let of = |n: &RouteNames| -> Vec<u32> { (0..1000).map(|i| n.name(RouteId::from_bits(1 << 18 | i))).collect() };
        let (first, second) = (of(&a), of(&b));
        assert_ne!(first[0], second[0], "two engines");
        let mut steps: Vec<u32> = first.windows(2).map(|w| w[1].wrapping_sub(w[0]) & MASK).collect();
        steps.sort_unstable();
        steps.dedup();
        assert!(steps.len() > 900, "only {} distances between neighbours", steps.len());
        let near = first.windows(2).filter(|w| w[0].abs_diff(w[1]) < 1 << 12).count();
        assert!(near < 20, "{near} of 1,000 lie next to the one before");
    }
}
