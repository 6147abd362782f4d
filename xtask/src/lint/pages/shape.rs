//! The shape of pages: how long they and the cells of their tables may be, and what is history and has no place in them.

use anyhow::Result;
use harness::repo::Repo;
use std::path::Path;

/// Lines of a page; those of some pages.
const LINES_MAX: usize = 350;
const LINES_OF: &[(&str, usize)] = &[("README.md", 200), ("CHANGELOG.md", 120)];
/// Letters of a table's cell.
const CELL_MAX: usize = 300;
/// Letters of a line of the page of promises.
const PROMISE_MAX: usize = 200;
const PROMISES: &str = "docs/promises.md";
/// Letters of a line of prose.
const WIDTH_MAX: usize = 120;
/// Words that compare with what was; a page says what is.
const HISTORY: &[&str] = &["earlier run", "earlier build", "another day", "earlier review", "no longer"];
/// Letters of a shortened commit hash, at the least.
const HASH_MIN: usize = 7;
/// Folders of results and of figures drawn from them, and what they may have together.
const RESULTS: &[&str] = &["bench/results/", "docs/figures/"];
const RESULTS_BYTES_MAX: u64 = 400 * 1024;

/// Lengths of pages, cells and lines.
pub(in crate::lint) fn lengths(repo: &Repo) -> Result<Vec<String>> {
    let mut findings = vec![];
    for page in super::all(repo)? {
        let name = page.path.display().to_string();
        let lines = page.text.lines().count();
        let most = LINES_OF.iter().find(|(own, _)| *own == name).map_or(LINES_MAX, |(_, most)| *most);
        if lines > most {
            findings.push(format!("{name}: {lines} lines, not at most {most}"));
        }
        for (number, line) in page.prose() {
            findings.extend(too_long(&name, line).map(|what| format!("{name}:{number}: {what}")));
        }
    }
    Ok(findings)
}

fn too_long(page: &str, line: &str) -> Option<String> {
    if let Some(cell) = cells(line).into_iter().map(|cell| cell.chars().count()).max() {
        if page == PROMISES && line.chars().count() > PROMISE_MAX {
            return Some(format!("a promise of {} letters, not at most {PROMISE_MAX}", line.chars().count()));
        }
        return (cell > CELL_MAX).then(|| format!("a cell of {cell} letters, not at most {CELL_MAX}"));
    }
    // A link may be longer than a line.
    let letters = line.chars().count();
    (letters > WIDTH_MAX && !line.contains("](") && !line.contains("<!--"))
        .then(|| format!("{letters} letters, not at most {WIDTH_MAX}"))
}

/// The cells of a row of a table; none for any other line.
fn cells(line: &str) -> Vec<&str> {
    let line = line.trim();
    match line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) {
        Some(row) => row.split(" | ").map(str::trim).collect(),
        None => vec![],
    }
}

/// Nothing that a page compares with what was.
pub(in crate::lint) fn history(repo: &Repo) -> Result<Vec<String>> {
    let mut findings = vec![];
    for page in super::all(repo)? {
        if page.path == Path::new("CHANGELOG.md") {
            continue;
        }
        for (number, line) in page.prose() {
            let words = HISTORY.iter().find(|words| line.contains(*words)).map(|words| format!("\"{words}\""));
            if let Some(what) = words.or_else(|| hash(line).map(|hash| format!("the commit hash {hash}"))) {
                findings.push(format!("{}:{number}: {what}: a page says what is", page.path.display()));
            }
        }
    }
    Ok(findings)
}

/// A word that can only be a commit hash: hexadecimal, with letters and digits.
fn hash(line: &str) -> Option<&str> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-' && c != '.');
    words.filter(|word| word.len() >= HASH_MIN && word.len() <= 40).find(|word| {
        let digits = word.chars().filter(char::is_ascii_digit).count();
        word.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')) && digits > 0 && digits < word.len()
    })
}

/// The files of results and figures are small enough to be in the tree.
pub(in crate::lint) fn results(repo: &Repo) -> Result<Vec<String>> {
    let mut bytes = 0;
    for path in repo.files()? {
        if RESULTS.iter().any(|folder| path.starts_with(folder)) {
            bytes += std::fs::metadata(repo.root.join(&path))?.len();
        }
    }
    let over = bytes > RESULTS_BYTES_MAX;
    Ok(over
        .then(|| format!("{} have {bytes} bytes, not at most {RESULTS_BYTES_MAX}", RESULTS.join(" and ")))
        .into_iter()
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_cells_lines_and_promises_are_found() {
        let long = "x".repeat(CELL_MAX + 1);
        assert_eq!(
            too_long("docs/a.md", &format!("| a | {long} |")),
            Some("a cell of 301 letters, not at most 300".into())
        );
        assert_eq!(too_long("docs/a.md", &format!("| a | {} |", "x".repeat(CELL_MAX))), None);
        assert!(too_long(PROMISES, &format!("| a | {} |", "x".repeat(PROMISE_MAX))).is_some());
        assert!(too_long("docs/a.md", &"word ".repeat(30)).is_some());
        assert!(too_long("docs/a.md", &format!("[a]({})", "x".repeat(130))).is_none());
    }

    #[test]
    fn hashes_are_told_from_words_and_numbers() {
        assert_eq!(hash("at 57c16871 it was"), Some("57c16871"));
        for line in ["1234567 bytes", "a decade of facades", "0x1234abcd", "eth0 deadbeef", "`fe80::1`"] {
            assert_eq!(hash(line), None, "{line}");
        }
    }
}
