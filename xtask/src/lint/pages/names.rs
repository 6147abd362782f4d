//! Names of code in pages: `crate::module`, `crate::Type` and `crate::function` between backquotes exist in the sources of
//! that crate. Methods and variants are looked for as words, as their types would be needed for more.

use super::all;
use anyhow::Result;
use harness::repo::{Package, Repo};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Words before a name that declare it.
const DECLARE: &[&str] = &["mod", "struct", "enum", "trait", "type", "fn", "const", "static", "macro_rules!", "union"];

/// What the sources of a crate declare, and all of their words.
#[derive(Debug, Default)]
struct Names {
    declared: BTreeSet<String>,
    words: BTreeSet<String>,
}

/// Every name of a crate's in a page.
pub(in crate::lint) fn names(repo: &Repo) -> Result<Vec<String>> {
    let crates: BTreeMap<String, &Package> =
        repo.packages.iter().map(|package| (package.name.replace('-', "_"), package)).collect();
    let mut known: BTreeMap<&str, Names> = BTreeMap::new();
    let mut findings = vec![];
    for page in all(repo)?.iter().filter(|page| page.path != Path::new("CHANGELOG.md")) {
        for (number, line) in page.prose() {
            for name in paths_of(line) {
                let mut parts = name.split("::");
                let Some((own, package)) = parts.next().and_then(|first| crates.get_key_value(first)) else { continue };
                if !known.contains_key(own.as_str()) {
                    known.insert(own, read(repo, package)?);
                }
                if let Some(part) = unknown(&known[own.as_str()], parts) {
                    findings.push(format!("{}:{number}: `{name}`: {own} has no {part}", page.path.display()));
                }
            }
        }
    }
    Ok(findings)
}

/// The first part that is not there: the part behind the crate is declared, the others are words.
fn unknown<'n>(names: &Names, parts: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let mut declared = &names.declared;
    for part in parts {
        if !declared.contains(part) {
            return Some(part);
        }
        declared = &names.words;
    }
    None
}

/// Paths like `a::b::C` between backquotes, without arguments.
fn paths_of(line: &str) -> Vec<&str> {
    let quoted = line.split('`').skip(1).step_by(2);
    let path = |word: &&str| {
        let plain = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        word.contains("::") && word.split("::").all(plain)
    };
    quoted.map(|word| word.trim_end_matches("()")).filter(path).collect()
}

fn read(repo: &Repo, package: &Package) -> Result<Names> {
    let mut names = Names::default();
    let own = repo.relative(&package.dir).to_path_buf();
    for path in repo.files()? {
        if path.starts_with(&own) && path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(repo.root.join(&path))?;
            let mut before = "";
            let mut exported = false;
            for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
                exported = exported && !line.contains(';') || line.trim_start().starts_with("pub use");
                for word in line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '!') {
                    if word.is_empty() {
                        continue;
                    }
                    if DECLARE.contains(&before) || exported {
                        names.declared.insert(word.to_owned());
                    }
                    names.words.insert(word.to_owned());
                    before = word;
                }
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_and_calls_lose_their_brackets() {
        assert_eq!(paths_of("`a::b`, `a::C::new()`, c::d, `x`, `f(a::b)`, `a::{b}`"), ["a::b", "a::C::new"]);
    }

    #[test]
    fn the_first_part_must_be_declared() {
        let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let names = Names { declared: set(&["admission"]), words: set(&["admission", "users"]) };
        assert_eq!(unknown(&names, ["users"].into_iter()), Some("users"));
        assert_eq!(unknown(&names, ["admission", "users"].into_iter()), None);
    }
}
