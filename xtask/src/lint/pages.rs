//! What the pages say that the code decides: the files that they name, the versions, the lists of targets and benches.
//! Owns the reading of the pages; a page that says nothing about a number is no finding, except the pages whose subject
//! it is. Links, shape and names of code are in the submodules.

mod links;
mod names;
mod shape;

pub(super) use links::{book, links};
pub(super) use names::names;
pub(super) use shape::{history, lengths, results};

use anyhow::{Context, Result};
use harness::repo::Repo;
use std::path::{Path, PathBuf};

/// Folders whose files pages name by their path from the root.
const FOLDERS: &[&str] = &["crates/", "xtask/", "bench/src/", "docs/", "fuzz/", "tests/", "lints/"];
/// Versions: where the constant is, and the words after which a page has its value.
const VERSIONS: &[(&str, &str, &str, &str)] = &[
    (
        "crates/base/shm/src/layout.rs",
        "LAYOUT_VERSION",
        "docs/inside/shared-memory.md",
        "# Shared-memory layout, version ",
    ),
    ("crates/base/shm/src/layout.rs", "LAYOUT_VERSION", "docs/inside/shared-memory.md", "| 8 | 4 | layout_version | "),
    ("crates/base/control/src/lib.rs", "WIRE_VERSION", "docs/inside/wire.md", "This page describes version "),
];
/// Folders whose files a page has a name for, each in backquotes.
const LISTED: &[(&str, &str)] =
    &[("fuzz/fuzz_targets", "docs/proof/testing.md"), ("crates/proof/vm/src/registry.rs", "docs/proof/guests.md")];

/// One page.
struct Page {
    /// From the root.
    path: PathBuf,
    text: String,
}

impl Page {
    /// Lines with their numbers, without those of fenced blocks.
    fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut fenced = false;
        (1..).zip(self.text.lines()).filter(move |(_, line)| {
            let fence = line.trim_start().starts_with("```");
            fenced ^= fence;
            !fenced && !fence
        })
    }

    /// The anchors of its headings, as GitHub and mdBook make them.
    fn anchors(&self) -> Vec<String> {
        let headings = self.prose().filter_map(|(_, line)| {
            let text = line.trim_start_matches('#');
            (text.len() < line.len()).then(|| text.strip_prefix(' ')).flatten()
        });
        let mut anchors: Vec<String> = vec![];
        for heading in headings {
            let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            let anchor = kept.collect::<String>().to_lowercase().replace(' ', "-");
            let same = anchors.iter().filter(|one| **one == anchor).count();
            anchors.push(if same == 0 { anchor } else { format!("{anchor}-{same}") });
        }
        anchors
    }
}

/// The pages of the repository.
fn all(repo: &Repo) -> Result<Vec<Page>> {
    let pages = repo.files()?.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    pages.map(|path| Ok(Page { text: read(&repo.root.join(&path))?, path })).collect()
}

/// Every file that a page names is there.
pub(super) fn paths(repo: &Repo) -> Result<Vec<String>> {
    let mut findings = vec![];
    for page in repo.files()?.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "md")) {
        // The list of changes names what was.
        if page.file_name().is_some_and(|name| name == "CHANGELOG.md") {
            continue;
        }
        for (number, line) in read(&repo.root.join(&page))?.lines().enumerate() {
            for path in named(line).into_iter().filter(|path| !repo.root.join(path).exists()) {
                findings.push(format!("{}:{}: no {path}", page.display(), number + 1));
            }
        }
    }
    Ok(findings)
}

/// Paths between backquotes; one with a placeholder (`TARGET`, `*`, `{a,b}`) or of something that is made (`target/`)
/// is none.
fn named(line: &str) -> Vec<&str> {
    let quoted = line.split('`').skip(1).step_by(2);
    let plain = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "/._-".contains(c));
    quoted.filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder))).filter(plain).collect()
}

/// The pages' versions are the code's.
pub(super) fn versions(repo: &Repo) -> Result<Vec<String>> {
    let mut findings = vec![];
    for (source, constant, page, before) in VERSIONS {
        let value = constant_of(&read(&repo.root.join(source))?, constant)
            .with_context(|| format!("{source} has no constant {constant}"))?;
        match number_after(&read(&repo.root.join(page))?, before) {
            Some(said) if said == value => {}
            said => findings.push(format!("{page}: `{before}` is followed by {said:?}, {constant} is {value}")),
        }
    }
    Ok(findings)
}

fn constant_of(source: &str, name: &str) -> Option<u64> {
    number_after(source, &format!("pub const {name}: u32 = "))
}

fn number_after(text: &str, before: &str) -> Option<u64> {
    let rest = text.split_once(before)?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Each fuzz target and each suite of the guests has its name on its page.
pub(super) fn lists(repo: &Repo) -> Result<Vec<String>> {
    let mut findings = vec![];
    for (place, page) in LISTED {
        let text = read(&repo.root.join(page))?;
        let names = names_in(&repo.root.join(place))?;
        let missing = names.iter().filter(|name| !text.contains(&format!("`{name}`")));
        findings.extend(missing.map(|name| format!("{page}: does not name `{name}` of {place}")));
    }
    Ok(findings)
}

/// The stems of a folder's files, or the values of `name: "..."` in a file.
fn names_in(place: &Path) -> Result<Vec<String>> {
    if !place.is_dir() {
        let text = read(place)?;
        let values = text.lines().filter_map(|line| line.trim().strip_prefix("name: \"")?.strip_suffix("\","));
        return Ok(values.map(str::to_owned).collect());
    }
    let mut names = vec![];
    for entry in std::fs::read_dir(place).with_context(|| format!("cannot read {}", place.display()))? {
        names.extend(entry?.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_headings() {
        let text = "# `raas demo`: a run\n```sh\n# no heading\n```\n## Two\n## Two\n#no\n".to_owned();
        let page = Page { path: PathBuf::new(), text };
        assert_eq!(page.anchors(), ["raas-demo-a-run", "two", "two-1"]);
        assert_eq!(page.prose().count(), 4);
    }

    #[test]
    fn paths_are_read_from_backquotes_and_patterns_are_none() {
        let line = "see `crates/base/shm/src/ring.rs` and `fuzz/corpus/TARGET/`, `target/debug/raas`, crates/x, `crates/*/src`";
        assert_eq!(named(line), ["crates/base/shm/src/ring.rs"]);
    }

    #[test]
    fn numbers_are_read_after_their_words() {
        assert_eq!(constant_of("/// x\npub const LAYOUT_VERSION: u32 = 12;", "LAYOUT_VERSION"), Some(12));
        assert_eq!(number_after("# Layout, version 4\n", "# Layout, version "), Some(4));
        assert_eq!(number_after("# Layout", "version "), None);
    }
}
