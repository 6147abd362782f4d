//! Rules about files and words. Each function returns one line per finding, with file and line.

use super::source::{Source, Sources, has_word};

/// Above this a file has to give its reason.
const LINES_MAX: usize = 600;
const REASON: &str = "over 600 lines because";

/// Pieces that must not be left in the tree; written in two halves so that this file does not contain them.
const BANNED: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimpl", "emented!("),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("#[ig", "nore"),
];

/// Names of modules that collect what has no place.
const DRAWERS: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc"];

/// Every Rust file opens with a `//!` header.
pub(super) fn headers(sources: &Sources) -> Vec<String> {
    let lacks = |file: &&Source| !file.text.lines().find(|line| !line.trim().is_empty()).is_some_and(is_header);
    sources.rust().filter(lacks).map(|file| format!("{}: no //! header", file.path.display())).collect()
}

/// A long file says in its header why it is one.
pub(super) fn long_files(sources: &Sources) -> Vec<String> {
    sources.rust().filter_map(long_file).collect()
}

fn long_file(file: &Source) -> Option<String> {
    let lines = file.text.lines().count();
    let header: Vec<&str> = file.text.lines().take_while(|line| is_header(line)).collect();
    let header = header.join(" ").replace("//!", " ");
    let reasoned = header.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase().contains(REASON);
    (lines > LINES_MAX && !reasoned).then(|| {
        format!("{}: {lines} lines, and its header does not say \"{REASON} ...\"; split it", file.path.display())
    })
}

/// Nothing unfinished and no test that is switched off.
pub(super) fn banned_words(sources: &Sources) -> Vec<String> {
    let mut findings = vec![];
    for file in &sources.files {
        for (number, line) in file.text.lines().enumerate() {
            for word in BANNED.iter().filter(|word| has_word(line, word)) {
                findings.push(format!("{}:{}: {word}", file.path.display(), number + 1));
            }
        }
    }
    findings
}

/// Modules are named after what they own.
pub(super) fn drawers(sources: &Sources) -> Vec<String> {
    let is_drawer = |file: &&Source| {
        let stem = file.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let parent =
            file.path.parent().and_then(|dir| dir.file_name()).and_then(|dir| dir.to_str()).unwrap_or_default();
        DRAWERS.contains(&stem) || (stem == "mod" && DRAWERS.contains(&parent))
    };
    sources
        .rust()
        .filter(is_drawer)
        .map(|file| format!("{}: name it after what it owns", file.path.display()))
        .collect()
}

fn is_header(line: &str) -> bool {
    line.trim_start().starts_with("//!")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn sources(path: &str, text: &str) -> Sources {
        Sources { files: vec![Source { path: PathBuf::from(path), text: text.to_owned() }] }
    }

    #[test]
    fn a_long_file_needs_its_reason() {
        let body = "fn f() {}\n".repeat(LINES_MAX);
        let plain = format!("//! A header.\n{body}");
        let reasoned = format!("//! A header. Over 600 lines\n//! because one state machine stays together.\n{body}");
        assert_eq!(long_files(&sources("a.rs", &plain)).len(), 1);
        assert_eq!(long_files(&sources("a.rs", &reasoned)).len(), 0);
        assert_eq!(long_files(&sources("a.rs", "fn f() {}\n")).len(), 0);
    }

    #[test]
    fn each_banned_word_is_found() {
        for word in BANNED {
            assert_eq!(banned_words(&sources("a.rs", &format!("ok\n  {word} x"))).len(), 1, "{word}");
        }
        assert_eq!(banned_words(&sources("a.sh", &format!("mktemp a.{}", "X".repeat(6)))).len(), 0);
    }

    #[test]
    fn headers_and_names() {
        assert_eq!(headers(&sources("a.rs", "\n//! Owns a.\nfn f() {}")).len(), 0);
        assert_eq!(headers(&sources("a.rs", "fn f() {}")).len(), 1);
        assert_eq!(drawers(&sources("src/util.rs", "")).len(), 1);
        assert_eq!(drawers(&sources("src/common/mod.rs", "")).len(), 1);
        assert_eq!(drawers(&sources("src/ring.rs", "")).len(), 0);
    }
}
