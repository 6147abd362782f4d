//! What the errors of libraries print where a program's `main` returns them.
//!
//! Owns that `Debug` is words. It must never print the fields.

/// A program whose `main` returns an error prints its `Debug` form: the words, not the fields.
#[macro_export]
macro_rules! debug_says_the_words {
    ($($error:ty),*) => { $(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )* };
}
