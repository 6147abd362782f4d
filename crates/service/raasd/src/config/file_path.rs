//! A path in the configuration.
//!
//! Owns the rule: it is relative to the directory of the file that names it, wherever the daemon is started. It must
//! never be had in another way.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};

use crate::toml_file::text_as;

/// A path that is not empty, as it is written.
#[derive(Debug, Clone)]
pub(super) struct FilePath(String);

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let needed =
            |text: String| if text.is_empty() { Err("a path is needed, this is empty".into()) } else { Ok(text) };
        text_as(deserializer, needed).map(Self)
    }
}

impl FilePath {
    /// The path that it means in a file of this directory.
    pub(super) fn from(self, directory: &Path) -> PathBuf {
        directory.join(self.0)
    }
}
