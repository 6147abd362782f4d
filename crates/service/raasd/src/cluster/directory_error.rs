//! Why a directory has no answer. What a directory sent may be part of the words: they are short, and have no control
//! characters.

/// Letters of foreign words at most.
const WORDS_MAX: usize = 400;

/// A directory was asked in vain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum DirectoryError {
    /// Nobody answered.
    #[error("{0}")]
    Silent(String),
    /// The answer says no, or cannot be used.
    #[error("{0}")]
    Refused(String),
    /// Names that the system could not look up.
    #[error("{0}")]
    Names(String),
    /// The hosts came, and more than are kept.
    #[error("it names more than the {kept} hosts that are kept")]
    TooMany { kept: usize },
}

/// Words that came from elsewhere.
pub(super) fn plain(words: &str) -> String {
    // An answer in several lines is told in one.
    let lines = words.replace(['\r', '\n', '\t'], " ");
    let mut plain: String = control::plain(&lines).chars().take(WORDS_MAX).collect();
    if words.chars().nth(WORDS_MAX).is_some() {
        plain.push_str(" ...");
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_words_are_short_and_plain() {
        assert_eq!(plain("a\x1b[2Jb\nc"), "a\u{fffd}[2Jb c");
        assert_eq!(plain(&"ä".repeat(WORDS_MAX)), "ä".repeat(WORDS_MAX));
        let long = plain(&"ä".repeat(1 << 20));
        assert_eq!(long.chars().count(), WORDS_MAX + 4);
    }
}
