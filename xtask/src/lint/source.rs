//! The repository's source files for the rules about files and words. Reads only.

use anyhow::{Context, Result};
use harness::repo::Repo;
use std::path::{Path, PathBuf};

/// Kinds of files that people write and the rules about words hold for.
const WRITTEN: &[&str] = &["rs", "toml", "sh", "py", "c", "h", "yml"];

/// All written source files.
pub(crate) struct Sources {
    pub(crate) files: Vec<Source>,
}

/// One file.
pub(crate) struct Source {
    /// Relative to the repository's root.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl Sources {
    pub(crate) fn read(repo: &Repo) -> Result<Sources> {
        let mut files = vec![];
        for path in repo.files()? {
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            let script = extension.is_empty() && starts_with_shebang(&repo.root.join(&path));
            if !script && !WRITTEN.contains(&extension) {
                continue;
            }
            let full = repo.root.join(&path);
            let bytes = std::fs::read(&full).with_context(|| format!("cannot read {}", full.display()))?;
            files.push(Source { path, text: String::from_utf8_lossy(&bytes).into_owned() });
        }
        Ok(Sources { files })
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = &Source> {
        self.files.iter().filter(|file| file.path.extension().is_some_and(|extension| extension == "rs"))
    }
}

fn starts_with_shebang(path: &Path) -> bool {
    use std::io::Read;
    let mut first = [0; 2];
    std::fs::File::open(path).is_ok_and(|mut file| file.read_exact(&mut first).is_ok() && first == *b"#!")
}

/// Whether `word` stands in `line` with no letter, digit or underscore touching it.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back().is_some_and(is_word);
        let after = line[start + word.len()..].chars().next().is_some_and(is_word);
        let open_start = word.starts_with(is_word) && before;
        let open_end = word.ends_with(is_word) && after;
        !open_start && !open_end
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_edges() {
        assert!(has_word("unsafe {", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
        assert!(has_word("a std::thread::spawn", "std::thread"));
        assert!(!has_word("mktemp x.ABCABC", "ABC"));
    }
}
