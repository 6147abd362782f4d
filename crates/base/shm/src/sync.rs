//! The few operations that the protocols of this crate need from a shared word.
//!
//! Owns the seam between the algorithms and the memory they run on: words of a mapping in production, loom's atomics
//! in the models. It must never contain an algorithm. The fence is a method so that a model can leave it out and show
//! that the protocol then fails.
use std::sync::atomic::Ordering;

/// One shared word, `u32` or `u64`.
pub(crate) trait AtomicWord<T> {
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn fetch_or(&self, bits: T, order: Ordering) -> T;
    fn fetch_and(&self, bits: T, order: Ordering) -> T;
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    /// Err is the value that was found.
    fn compare_exchange(&self, current: T, new: T, order: Ordering) -> Result<T, T>;
    /// The sequentially consistent fence of the memory that this word lives in.
    fn fence_seq_cst(&self);
    /// This side's half of a fence whose other half another process makes all processors pass: it holds back the
    /// compiler alone.
    fn fence_light(&self);
}

/// A row of shared `u64` words.
pub(crate) trait AtomicRow {
    fn load(&self, index: usize, order: Ordering) -> u64;
    fn fetch_or(&self, index: usize, bits: u64, order: Ordering) -> u64;
    fn fetch_and(&self, index: usize, bits: u64, order: Ordering) -> u64;
    /// The sequentially consistent fence of the memory that this row lives in.
    fn fence_seq_cst(&self);
}

/// [`AtomicWord`] by the type's own methods.
macro_rules! atomic_word {
    ($word:ty, $int:ty) => {
        impl $crate::sync::AtomicWord<$int> for $word {
            #[inline]
            fn load(&self, order: Ordering) -> $int {
                <$word>::load(self, order)
            }
            #[inline]
            fn store(&self, value: $int, order: Ordering) {
                <$word>::store(self, value, order);
            }
            #[inline]
            fn fetch_or(&self, bits: $int, order: Ordering) -> $int {
                <$word>::fetch_or(self, bits, order)
            }
            #[inline]
            fn fetch_and(&self, bits: $int, order: Ordering) -> $int {
                <$word>::fetch_and(self, bits, order)
            }
            #[inline]
            fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                <$word>::fetch_add(self, value, order)
            }
            #[inline]
            fn compare_exchange(&self, current: $int, new: $int, order: Ordering) -> Result<$int, $int> {
                <$word>::compare_exchange(self, current, new, order, Ordering::Relaxed)
            }
            #[inline]
            fn fence_seq_cst(&self) {
                std::sync::atomic::fence(Ordering::SeqCst);
            }
            #[inline]
            fn fence_light(&self) {
                std::sync::atomic::compiler_fence(Ordering::SeqCst);
            }
        }
    };
}
atomic_word!(std::sync::atomic::AtomicU32, u32);
pub(crate) use atomic_word;
