//! The repository's source files for the rules, and a small lexer that separates Rust code from comments and literals,
//! so that a rule about code is not set off by a sentence. Reads only.

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

/// Rust source with comments and the inside of string and character literals replaced by blanks; lines stay where they
/// are.
pub(crate) fn code_only(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < letters.len() {
        let end = skipped_until(&letters, at);
        if end == at {
            out.push(letters[at]);
            at += 1;
        } else {
            out.extend(letters[at..end].iter().map(|letter| if *letter == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// Where the comment or literal that starts at `at` ends; `at` itself if none starts here.
fn skipped_until(letters: &[char], at: usize) -> usize {
    let peek = |offset: usize| letters.get(at + offset).copied();
    match letters[at] {
        '/' if peek(1) == Some('/') => letters[at..].iter().position(|c| *c == '\n').map_or(letters.len(), |n| at + n),
        '/' if peek(1) == Some('*') => block_comment_end(letters, at),
        '"' => quoted_end(letters, at + 1, '"'),
        'r' if !follows_word(letters, at) => raw_string_end(letters, at),
        // A character literal, as opposed to a lifetime.
        '\'' if peek(1) == Some('\\') || peek(2) == Some('\'') => quoted_end(letters, at + 1, '\''),
        _ => at,
    }
}

fn follows_word(letters: &[char], at: usize) -> bool {
    // `br"..."` is a raw string too, so a lone `b` in front does not count as a word.
    let before = |n: usize| at.checked_sub(n).and_then(|i| letters.get(i)).copied().unwrap_or(' ');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    is_word(before(1)) && (before(1) != 'b' || is_word(before(2)))
}

fn block_comment_end(letters: &[char], at: usize) -> usize {
    let mut depth = 0_usize;
    let mut i = at;
    while i < letters.len() {
        match (letters[i], letters.get(i + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                i += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                i += 2;
                if depth == 0 {
                    return i;
                }
            }
            _ => i += 1,
        }
    }
    letters.len()
}

fn quoted_end(letters: &[char], from: usize, quote: char) -> usize {
    let mut i = from;
    while i < letters.len() {
        match letters[i] {
            '\\' => i += 2,
            letter if letter == quote => return i + 1,
            _ => i += 1,
        }
    }
    letters.len()
}

fn raw_string_end(letters: &[char], at: usize) -> usize {
    let hashes = letters[at + 1..].iter().take_while(|c| **c == '#').count();
    if letters.get(at + 1 + hashes) != Some(&'"') {
        return at;
    }
    let mut i = at + 2 + hashes;
    while i < letters.len() {
        let tail = &letters[i + 1..];
        if letters[i] == '"' && tail.len() >= hashes && tail[..hashes].iter().all(|c| *c == '#') {
            return i + 1 + hashes;
        }
        i += 1;
    }
    letters.len()
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
    fn comments_and_literals_are_blanked() {
        let text =
            "let a = \"unsafe \\\" x\"; // unsafe\n/* unsafe /* nested */ unsafe */ let b = r#\"unsafe \" \"#;\n";
        let code = code_only(text);
        assert!(!code.contains("unsafe"), "{code}");
        assert!(code.contains("let a =") && code.contains("let b ="), "{code}");
        assert_eq!(code.lines().count(), text.lines().count());
    }

    #[test]
    fn lifetimes_and_characters_do_not_open_strings() {
        let text =
            "fn f<'a>(x: &'a str) -> char { let q = '\"'; let e = '\\''; unsafe_name(q, e, b'x', br\"unsafe\") }";
        let code = code_only(text);
        assert!(code.contains("unsafe_name") && !code.contains("unsafe\""), "{code}");
        assert!(code.contains("fn f<'a>(x: &'a str)"), "{code}");
    }

    #[test]
    fn words_have_edges() {
        assert!(has_word("unsafe {", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
        assert!(has_word("a std::thread::spawn", "std::thread"));
        assert!(!has_word("mktemp x.ABCABC", "ABC"));
    }
}
