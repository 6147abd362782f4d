//! Types that are words in remote memory.
//!
//! Owns how a value becomes words.

use crate::ptr::Ptr;

/// A value of a fixed number of words.
pub trait Object: Sized + Send {
    /// Words of 8 bytes that it takes.
    const WORDS: usize;

    /// Puts it into [`Object::WORDS`] words.
    fn put(&self, words: &mut [u64]);

    /// The value of these words. It must take whatever stands in memory that others write.
    fn get(words: &[u64]) -> Self;
}

/// A value of one word, which compare-and-swap changes.
pub trait Word: Object + Copy {}

macro_rules! one_word {
    ($($of:ty),*) => {$(
        impl Object for $of {
            const WORDS: usize = 1;

            fn put(&self, words: &mut [u64]) {
                words[0] = *self as u64;
            }

            fn get(words: &[u64]) -> Self {
                words[0] as $of
            }
        }

        impl Word for $of {}
    )*};
}

one_word!(u64, i64, u32, i32, u16, u8, usize);

impl Object for bool {
    const WORDS: usize = 1;

    fn put(&self, words: &mut [u64]) {
        words[0] = u64::from(*self);
    }

    fn get(words: &[u64]) -> Self {
        words[0] != 0
    }
}

impl Word for bool {}

impl<T> Object for Ptr<T> {
    const WORDS: usize = 1;

    fn put(&self, words: &mut [u64]) {
        words[0] = self.bits();
    }

    fn get(words: &[u64]) -> Self {
        Self::from_bits(words[0])
    }
}

impl<T> Word for Ptr<T> {}

impl<T: Object + Copy, const N: usize> Object for [T; N] {
    const WORDS: usize = N * T::WORDS;

    fn put(&self, words: &mut [u64]) {
        for (value, words) in self.iter().zip(words.chunks_exact_mut(T::WORDS)) {
            value.put(words);
        }
    }

    fn get(words: &[u64]) -> Self {
        std::array::from_fn(|at| T::get(&words[at * T::WORDS..(at + 1) * T::WORDS]))
    }
}

impl<A: Object, B: Object> Object for (A, B) {
    const WORDS: usize = A::WORDS + B::WORDS;

    fn put(&self, words: &mut [u64]) {
        let (a, b) = words.split_at_mut(A::WORDS);
        self.0.put(a);
        self.1.put(b);
    }

    fn get(words: &[u64]) -> Self {
        (A::get(words), B::get(&words[A::WORDS..]))
    }
}

/// Bytes as words: their number first.
pub(crate) fn words_of(bytes: &[u8]) -> Vec<u64> {
    let word = |piece: &[u8]| {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        u64::from_ne_bytes(word)
    };
    std::iter::once(bytes.len() as u64).chain(bytes.chunks(8).map(word)).collect()
}

/// The bytes of such words; as many as there are, if the number says more.
pub(crate) fn bytes_of(words: &[u64]) -> Vec<u8> {
    let Some((count, words)) = words.split_first() else { return Vec::new() };
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.truncate(usize::try_from(*count).unwrap_or(usize::MAX));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_bytes_come_back_from_their_words() {
        type Pair = ([i64; 2], (bool, Ptr<u64>));
        let value: Pair = ([-3, 4], (true, Ptr::from_bits(77)));
        let mut words = [0; Pair::WORDS];
        value.put(&mut words);
        assert_eq!((Pair::get(&words), Pair::WORDS), (value, 4));
        for len in 0..20u8 {
            let bytes: Vec<u8> = (0..len).collect();
            assert_eq!(bytes_of(&words_of(&bytes)), bytes);
        }
        assert_eq!(bytes_of(&[100, 1]).len(), 8, "a length that lies");
        assert!(bytes_of(&[]).is_empty());
    }
}
