//! Why a run has no answer.
//!
//! Owns that its words, which may be another host's, can be shown: they are made plain where they are made and where they
//! are read.

use serde::{Deserialize, Serialize};

use crate::limits::{NAME_BYTES_MAX, WORDS_BYTES_MAX};

/// Why a run has no answer. What it had written before stays.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// No kernel has this name. Nothing was done.
    #[error("there is no kernel `{name}`: take a built-in one, or have the region's owner install it")]
    Unknown {
        /// The name, or its beginning.
        #[serde(deserialize_with = "control::foreign")]
        name: String,
    },
    /// The region does not allow what the kernel tried.
    #[error("the region does not allow the kernel to {right}: have it made or opened with that access")]
    NoRight {
        /// What it tried.
        #[serde(deserialize_with = "control::foreign")]
        right: String,
    },
    /// The arguments cannot be read, or make no sense. Nothing was done.
    #[error("the arguments cannot be: {words}")]
    BadArguments {
        /// What is wrong with them.
        #[serde(deserialize_with = "control::foreign")]
        words: String,
    },
    /// It ran to its limit: perhaps it loops, as in a list that is a ring.
    #[error("the kernel spent all of its {limit} units of fuel: ask for less in one run, or raise `kernel_fuel_max`")]
    OutOfFuel {
        /// Units of one run.
        limit: u64,
    },
    /// A user kernel broke a rule of WebAssembly.
    #[error("the kernel trapped: {words}")]
    Trap {
        /// What happened.
        #[serde(deserialize_with = "control::foreign")]
        words: String,
    },
    /// It asked for bytes that do not lie in the region.
    #[error("the kernel asked for {len} bytes at offset {offset} of a region of {bytes}")]
    OutOfBounds {
        /// Where they begin.
        offset: u64,
        /// How many they are.
        len: u64,
        /// Bytes of the region.
        bytes: u64,
    },
    /// The region was revoked, or ended, before the kernel had an answer.
    #[error("the region was revoked before the kernel had an answer")]
    Revoked,
    /// The answer does not fit.
    #[error("the kernel's answer has {bytes} bytes, and {max} fit: have it written to the region")]
    AnswerTooLong {
        /// Its bytes.
        bytes: u64,
        /// How many fit.
        max: u64,
    },
    /// As many runs wait as may. Nothing was done.
    #[error("{max} runs wait at that host: try again")]
    QueueFull {
        /// How many may wait.
        max: u64,
    },
    /// The checksum never was that of the bytes.
    #[error("the checksum was not that of the bytes in {tries} tries: a writer is busy, or the checksum is wrong")]
    NotConsistent {
        /// How often it looked.
        tries: u32,
    },
    /// A partition has no room for the next item.
    #[error("partition {partition} is full with {capacity} items")]
    PartitionFull {
        /// Which, counted from 0.
        partition: u32,
        /// Items that it holds.
        capacity: u64,
    },
}

control::debug_says_the_words!(Failure);

impl Failure {
    /// Bad arguments, with what is wrong with them.
    pub(crate) fn bad(words: impl Into<String>) -> Self {
        Self::BadArguments { words: cut(&words.into(), WORDS_BYTES_MAX) }
    }

    pub(crate) fn unknown(name: &str) -> Self {
        Self::Unknown { name: cut(name, NAME_BYTES_MAX) }
    }

    /// As it travels.
    pub fn to_bytes(&self) -> Vec<u8> {
        // A value of strings and numbers can always be written.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Reads one. `None`: the bytes are none, or go on behind it.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (failure, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(failure)
    }
}

/// The beginning of a text, of at most so many bytes, as it can be shown.
pub(crate) fn cut(text: &str, max: usize) -> String {
    let text = control::plain(text);
    let end = (0..=max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_another_host_cannot_write_to_a_terminal() {
        let evil = "\u{1b}]0;owned\u{7}\n\u{202e}";
        let [name, right, words] = [(); 3].map(|()| evil.to_owned());
        let said = [
            Failure::Unknown { name },
            Failure::NoRight { right },
            Failure::BadArguments { words: words.clone() },
            Failure::Trap { words },
        ];
        for failure in said {
            let shown = Failure::parse(&failure.to_bytes()).unwrap().to_string();
            assert!(shown.chars().all(control::is_plain) && shown.contains("owned"), "{shown:?}");
        }
        assert_eq!(Failure::unknown(evil), Failure::parse(&Failure::unknown(evil).to_bytes()).unwrap());
    }
}
