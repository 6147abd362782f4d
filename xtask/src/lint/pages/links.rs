//! Links of pages: each leads to a file that is there, and to a heading that it has; the book's list has every page.

use super::{Page, read};
use anyhow::Result;
use harness::repo::Repo;
use std::path::{Component, Path, PathBuf};

/// The book's list of pages.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Every relative link of a page.
pub(in crate::lint) fn links(repo: &Repo) -> Result<Vec<String>> {
    let mut findings = vec![];
    for page in super::all(repo)? {
        for (number, line) in page.prose() {
            for link in links_of(line) {
                if let Some(why) = broken(repo, &page, link)? {
                    findings.push(format!("{}:{number}: {link}: {why}", page.path.display()));
                }
            }
        }
    }
    Ok(findings)
}

/// The book has each page of docs, and each once.
pub(in crate::lint) fn book(repo: &Repo) -> Result<Vec<String>> {
    let summary = read(&repo.root.join(SUMMARY))?;
    let listed: Vec<&str> = summary.lines().flat_map(links_of).collect();
    let mut findings = vec![];
    for page in super::all(repo)? {
        let Ok(below) = page.path.strip_prefix("docs") else { continue };
        if page.path == Path::new(SUMMARY) {
            continue;
        }
        let name = below.to_string_lossy();
        let count = listed.iter().filter(|link| **link == name).count();
        if count != 1 {
            findings.push(format!("{SUMMARY}: {name} stands there {count} times"));
        }
    }
    Ok(findings)
}

/// What stands in `](...)`, and behind `[name]:`, of links within the repository.
fn links_of(line: &str) -> Vec<&str> {
    let mut found = vec![];
    if let Some((_, link)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
        return if link.contains("://") { vec![] } else { vec![link.trim()] };
    }
    let mut rest = line;
    while let Some((_, after)) = rest.split_once("](") {
        let Some((link, behind)) = after.split_once(')') else { break };
        rest = behind;
        if !link.contains("://") && !link.starts_with("mailto:") {
            found.push(link.split_whitespace().next().unwrap_or_default());
        }
    }
    found
}

fn broken(repo: &Repo, page: &Page, link: &str) -> Result<Option<String>> {
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let target = if file.is_empty() { page.path.clone() } else { resolved(&page.path, file) };
    let full = repo.root.join(&target);
    if !full.exists() {
        return Ok(Some("no such file".to_owned()));
    }
    let Some(anchor) = anchor.filter(|_| target.extension().is_some_and(|ending| ending == "md")) else {
        return Ok(None);
    };
    let found = Page { path: target, text: read(&full)? }.anchors().iter().any(|one| one == anchor);
    Ok((!found).then(|| format!("no heading #{anchor}")))
}

/// The path that a link of a page means, from the root.
fn resolved(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().map(Path::to_path_buf).unwrap_or_default();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_and_resolved() {
        assert_eq!(links_of("see [a](../x.md#y), [b](https://z) and [c](#d)."), ["../x.md#y", "#d"]);
        assert_eq!(links_of("[wire]: ../inside/wire.md"), ["../inside/wire.md"]);
        assert_eq!(resolved(Path::new("docs/use/c.md"), "../inside/wire.md"), Path::new("docs/inside/wire.md"));
        assert_eq!(resolved(Path::new("README.md"), "docs/reasons.md"), Path::new("docs/reasons.md"));
    }
}
