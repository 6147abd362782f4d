//! The page of each crate: the head of its `lib.rs` (or `main.rs`) says what the crate owns, what it must never do, what it
//! may use of the house, and in which order it is called. What it uses is compared with what Cargo knows.

use anyhow::{Context, Result};
use harness::repo::{Package, Repo};
use std::collections::BTreeSet;

/// What each page says, as words that a sentence of it has.
const SAID: &[(&str, &[&str])] = &[
    ("what it owns", &["owns", "own"]),
    ("what it must never do", &["must never"]),
    ("what it may use (`May use ...`)", &["May use"]),
    ("in which order it is called", &["Order of calls"]),
];
/// Where the list of crates begins.
const USES: &str = "May use ";
/// What a crate says that uses none of ours.
const NOTHING: &str = "nothing of the house";

/// One line for each page that lacks something, or that says another list than Cargo's.
pub(super) fn said(repo: &Repo) -> Result<Vec<String>> {
    let ours: BTreeSet<&str> = repo.packages.iter().map(|package| package.name.as_str()).collect();
    let mut findings = vec![];
    for package in &repo.packages {
        let file =
            ["src/lib.rs", "src/main.rs"].map(|file| package.dir.join(file)).into_iter().find(|file| file.exists());
        let file = file.with_context(|| format!("crate {} has neither lib.rs nor main.rs", package.name))?;
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = repo.relative(&file).display().to_string();
        findings.extend(lacking(&head(&text), &used(package, &ours)).into_iter().map(|what| format!("{name}: {what}")));
    }
    Ok(findings)
}

/// The crates of ours that it needs to be built.
fn used<'p>(package: &'p Package, ours: &BTreeSet<&str>) -> BTreeSet<&'p str> {
    let normal = package.dependencies.iter().filter(|dependency| dependency.kind == "normal");
    normal.map(|dependency| dependency.name.as_str()).filter(|name| ours.contains(name)).collect()
}

/// The head of a file as one line.
fn head(text: &str) -> String {
    let lines = text.lines().take_while(|line| line.starts_with("//!"));
    lines.flat_map(|line| line.trim_start_matches("//!").split_whitespace()).collect::<Vec<_>>().join(" ")
}

fn lacking(head: &str, used: &BTreeSet<&str>) -> Vec<String> {
    let words: BTreeSet<&str> = head.split(|c: char| !c.is_alphanumeric()).collect();
    let has = |said: &&str| if said.contains(' ') { head.contains(said) } else { has_word(&words, said) };
    let mut findings: Vec<String> = SAID
        .iter()
        .filter(|(_, said)| !said.iter().any(has))
        .map(|(what, _)| format!("its head does not say {what}"))
        .collect();
    if let Some(told) = told(head)
        && told != *used
    {
        findings.push(format!("it may use {told:?}, and uses {used:?}"));
    }
    findings
}

fn has_word(words: &BTreeSet<&str>, said: &str) -> bool {
    words.iter().any(|word| word.eq_ignore_ascii_case(said))
}

/// What the sentence `May use ...` lists.
fn told(head: &str) -> Option<BTreeSet<&str>> {
    let list = head.split_once(USES)?.1.split_once('.')?.0;
    if list == NOTHING {
        return Some(BTreeSet::new());
    }
    Some(list.split('`').skip(1).step_by(2).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "//! Owns rings. It must never wait.\n//!\n//! May use `control`,\n//! `shm`. Order of calls: none.\nmod a;";

    #[test]
    fn a_page_says_all_four() {
        let used = BTreeSet::from(["control", "shm"]);
        assert_eq!(lacking(&head(GOOD), &used), Vec::<String>::new());
        assert_eq!(lacking(&head("//! Rings.\nmod a;"), &used).len(), 4);
        for word in ["Owns ", "must never ", "Order of calls"] {
            assert_eq!(lacking(&head(&GOOD.replace(word, "")), &used).len(), 1, "{word}");
        }
    }

    #[test]
    fn what_it_uses_is_what_cargo_knows() {
        assert_eq!(
            lacking(&head(GOOD), &BTreeSet::from(["shm"])),
            [r#"it may use {"control", "shm"}, and uses {"shm"}"#]
        );
        let alone = GOOD.replace("`control`,\n//! `shm`", "nothing of the house");
        assert_eq!(lacking(&head(&alone), &BTreeSet::new()), Vec::<String>::new());
        assert_eq!(lacking(&head(&alone), &BTreeSet::from(["shm"])).len(), 1);
    }
}
