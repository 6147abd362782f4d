//! Which packets of one direction came already: the newest number, and a bit for each of those before it.
//!
//! Owns that memory, of one size whatever comes. It must never take a number twice.

/// How many numbers behind the newest one a packet may come late. Later ones are refused, because nothing remembers
/// whether they came before.
pub const REPLAY_WINDOW_PACKETS: u64 = 4_096;

const WORD_BITS: u64 = 64;
const WORDS: usize = (REPLAY_WINDOW_PACKETS / WORD_BITS) as usize;

/// Why a number is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Repeated,
    Stale,
}

#[derive(Debug, Clone)]
pub(crate) struct ReplayWindow {
    /// One more than the highest number that came; 0: none came.
    next: u64,
    /// Bit `n % REPLAY_WINDOW_PACKETS` is number `n`, for the numbers from `next - REPLAY_WINDOW_PACKETS` on.
    came: [u64; WORDS],
}

impl ReplayWindow {
    pub(crate) const fn new() -> Self {
        Self { next: 0, came: [0; WORDS] }
    }

    /// Whether a packet with this number may be looked at; nothing changes.
    pub(crate) fn check(&self, number: u64) -> Result<(), Known> {
        if number >= self.next {
            return Ok(());
        }
        if self.next - number > REPLAY_WINDOW_PACKETS {
            return Err(Known::Stale);
        }
        let (word, bit) = place(number);
        if self.came[word] & bit != 0 { Err(Known::Repeated) } else { Ok(()) }
    }

    /// The packet with this number, which [`Self::check`] allowed, is authentic. The last number of all is never
    /// sent.
    pub(crate) fn mark(&mut self, number: u64) {
        if number >= self.next {
            self.forget(number - self.next);
            self.next = number.saturating_add(1);
        }
        let (word, bit) = place(number);
        self.came[word] |= bit;
    }

    /// Makes room for the numbers from `next` on: so many that were left out, and one that came.
    fn forget(&mut self, left_out: u64) {
        if left_out >= REPLAY_WINDOW_PACKETS {
            self.came = [0; WORDS];
            return;
        }
        for number in self.next..=self.next + left_out {
            let (word, bit) = place(number);
            self.came[word] &= !bit;
        }
    }
}

/// Word and bit of a number.
const fn place(number: u64) -> (usize, u64) {
    let at = number % REPLAY_WINDOW_PACKETS;
    ((at / WORD_BITS) as usize, 1 << (at % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// All numbers that came, for ever.
    #[derive(Default)]
    struct Model(BTreeSet<u64>);

    impl Model {
        fn check(&self, number: u64) -> Result<(), Known> {
            let newest = self.0.last().copied();
            match newest {
                Some(newest) if newest >= REPLAY_WINDOW_PACKETS && number <= newest - REPLAY_WINDOW_PACKETS => {
                    Err(Known::Stale)
                }
                _ if self.0.contains(&number) => Err(Known::Repeated),
                _ => Ok(()),
            }
        }
    }

    /// Steps from the newest number: near ones, those at the window's edge, and far ones.
    fn step() -> impl Strategy<Value = i64> {
        let window = REPLAY_WINDOW_PACKETS as i64;
        prop_oneof![
            6 => -70..70_i64,
            3 => -window - 3..-window + 3,
            2 => window - 3..window + 3,
            1 => -3 * window..3 * window,
        ]
    }

    proptest! {
        #[test]
        fn it_answers_as_one_who_remembers_everything(steps in prop::collection::vec((step(), 0..4_u8), 1..300)) {
            let (mut window, mut model, mut newest) = (ReplayWindow::new(), Model::default(), 10_000_i64);
            for (step, of_four) in steps {
                let number = (newest + step).max(0) as u64;
                prop_assert_eq!(window.check(number), model.check(number), "{}", number);
                // Not every one that may come is authentic.
                if of_four > 0 && window.check(number).is_ok() {
                    window.mark(number);
                    model.0.insert(number);
                    newest = newest.max(number as i64);
                }
            }
        }
    }

    #[test]
    fn the_edges_of_window_and_of_all_numbers() {
        let mut window = ReplayWindow::new();
        window.mark(0);
        assert_eq!(window.check(0), Err(Known::Repeated));
        window.mark(REPLAY_WINDOW_PACKETS - 1);
        assert_eq!(window.check(0), Err(Known::Repeated));
        window.mark(REPLAY_WINDOW_PACKETS);
        assert_eq!((window.check(0), window.check(1)), (Err(Known::Stale), Ok(())));
        window.mark(u64::MAX - 1);
        assert_eq!(window.check(u64::MAX - 1), Err(Known::Repeated));
        assert_eq!(window.check(REPLAY_WINDOW_PACKETS), Err(Known::Stale));
        assert_eq!(window.check(u64::MAX - REPLAY_WINDOW_PACKETS), Ok(()));
    }
}
