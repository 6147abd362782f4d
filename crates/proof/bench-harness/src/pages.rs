//! `cargo xtask pages`: draws figures of result files into pages. A block of a page begins with a comment that names a
//! bench and its cases, and ends with `<!-- end -->`; what stands between them is written by this command. Owns the
//! blocks and their checks; how a row is told is in `table`.
//!
//! Two kinds of blocks: `figures` is a table of values, ratios, bars and verdicts; `promises` has a line for each
//! promise: held, missed or open, by how much, and the command. `docs/proof/benchmarks.md` shows how they are written.

mod table;

use super::kept;
use anyhow::{Context, Result, bail, ensure};
use harness::repo::Repo;
use serde_json::Value;
use std::path::Path;
use std::process::ExitCode;
use table::{Told, Wanted};

/// Where a block ends.
const END: &str = "<!-- end -->";
/// How blocks begin, and what each is.
const BEGINS: [(&str, Kind); 2] = [("<!-- figures: ", Kind::Figures), ("<!-- promises: ", Kind::Promises)];

/// What stands in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Figures,
    Promises,
}

/// What `cargo xtask pages` takes.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Writes nothing; fails where a page is not what this command would write.
    #[arg(long)]
    check: bool,
}

/// Writes all pages, or compares them.
pub fn run(args: &Args) -> Result<ExitCode> {
    let repo = Repo::open()?;
    let pages = pages(&repo)?;
    let findings: Vec<String> = if args.check { findings(&repo)? } else { vec![] };
    findings.iter().for_each(|finding| println!("{finding}"));
    if !args.check {
        for (page, text) in &pages {
            let drawn = drawn(&repo.root, page, text)?;
            if drawn != *text {
                let path = repo.root.join(page);
                std::fs::write(&path, drawn).with_context(|| format!("cannot write {}", path.display()))?;
                println!("{page}");
            }
        }
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What lint tells: pages that are not what this command writes, and benches without one result file.
pub fn findings(repo: &Repo) -> Result<Vec<String>> {
    let mut findings = kept_findings(&repo.root)?;
    for (page, text) in pages(repo)? {
        match drawn(&repo.root, &page, &text) {
            Ok(drawn) if drawn == text => {}
            Ok(drawn) => {
                let same = text.lines().zip(drawn.lines()).take_while(|(a, b)| a == b).count();
                findings.push(format!("{page}:{}: not what the results say; run `cargo xtask pages`", same + 1));
            }
            Err(e) => findings.push(format!("{e:#}")),
        }
    }
    Ok(findings)
}

/// The pages and their text.
fn pages(repo: &Repo) -> Result<Vec<(String, String)>> {
    let files = repo.files()?.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(repo.root.join(&path));
        Ok((path.display().to_string(), text.with_context(|| format!("cannot read {}", path.display()))?))
    };
    // A page that is being moved may be listed and gone.
    files.filter(|path| repo.root.join(path).exists()).map(read).collect()
}

/// Each bench has one file that can be read.
fn kept_findings(root: &Path) -> Result<Vec<String>> {
    let mut findings = vec![];
    let folder = root.join(kept::FOLDER);
    for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let bench = entry?.file_name().to_string_lossy().into_owned();
        if let Err(e) = kept::path(root, &bench).and_then(|path| kept::read(&path)) {
            findings.push(format!("{e:#}"));
        }
    }
    Ok(findings)
}

/// The page with its blocks drawn. An error names page and line.
fn drawn(root: &Path, page: &str, text: &str) -> Result<String> {
    let mut out = String::new();
    let mut is_code = false;
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        out += line;
        out.push('\n');
        is_code ^= line.starts_with("```");
        let begun = BEGINS.iter().find_map(|(begin, kind)| Some((line.strip_prefix(begin)?, *kind)));
        let Some((words, kind)) = begun.filter(|_| !is_code) else { continue };
        let at = || format!("{page}:{}", number + 1);
        let mut words = words.to_owned();
        while !words.contains("-->") {
            let (_, next) = lines.next().with_context(at).context("a block's comment does not end")?;
            out += &format!("{next}\n");
            words += &format!(" {next}");
        }
        let words = words.split_once("-->").map_or("", |(words, _)| words);
        out += &block(root, words, kind).with_context(at)?;
        let ended = lines.by_ref().map(|(_, line)| line).find(|line| *line == END || line.starts_with("<!-- "));
        ensure!(ended == Some(END), "{}: no `{END}` ends this block", at());
        out += &format!("{END}\n");
    }
    // A page without a last line break keeps its form.
    Ok(if text.ends_with('\n') { out } else { out.trim_end_matches('\n').to_owned() })
}

/// What stands between the comments.
fn block(root: &Path, words: &str, kind: Kind) -> Result<String> {
    let wanted = wanted(words)?;
    let read = |(bench, _): &(String, _)| kept::read(&kept::path(root, bench)?);
    let files: Vec<Value> = wanted.iter().map(read).collect::<Result<_>>()?;
    let mut rows = vec![];
    for ((bench, cases), file) in wanted.iter().zip(&files) {
        rows.extend(chosen(file, bench, cases)?);
    }
    Ok(match kind {
        Kind::Figures => table::figures(&rows),
        Kind::Promises => table::promises(&rows),
    })
}

/// `bench/results/NAME "CASE" [beside "RIVAL"]`, as often as there are benches and cases.
fn wanted(words: &str) -> Result<Vec<(String, Vec<Wanted>)>> {
    let mut all: Vec<(String, Vec<Wanted>)> = vec![];
    // Between quotes is every second part.
    for (number, part) in words.split('"').enumerate() {
        if number % 2 == 1 {
            // A comment may be broken between words.
            let quoted = part.split_whitespace().collect::<Vec<_>>().join(" ");
            let (_, cases) = all.last_mut().with_context(|| format!("\"{quoted}\" stands before its bench"))?;
            match cases.last_mut().filter(|last| last.rival.as_deref() == Some("")) {
                Some(last) => last.rival = Some(quoted),
                None => cases.push(Wanted { case: quoted, rival: None }),
            }
            continue;
        }
        for word in part.split_whitespace() {
            let bench = word.strip_prefix(kept::FOLDER).and_then(|rest| rest.strip_prefix('/'));
            let last = all.last_mut().and_then(|(_, cases)| cases.last_mut());
            match (bench, last) {
                (Some(bench), _) => all.push((bench.to_owned(), vec![])),
                // The name comes next.
                (None, Some(last)) if word == "beside" && last.rival.is_none() => last.rival = Some(String::new()),
                _ => bail!("`{word}` is none of {}/NAME, \"CASE\" and beside \"RIVAL\"", kept::FOLDER),
            }
        }
    }
    ensure!(!all.is_empty(), "no {}/NAME", kept::FOLDER);
    Ok(all)
}

/// The rows of what is wanted; without a wish all that have a bar. Rows that differ in the bar alone stand together.
fn chosen<'f>(file: &'f Value, bench: &'f str, wanted: &[Wanted]) -> Result<Vec<Told<'f>>> {
    let rows = || file["rows"].as_array().into_iter().flatten();
    let mut all: Vec<Told<'f>> = vec![];
    let mut add = |row: &'f Value| {
        let is_same = |told: &&mut Told<'_>| told.row["case"] == row["case"] && told.row["rival"] == row["rival"];
        match all.iter_mut().find(is_same) {
            Some(told) => told.bars.push(row),
            None => all.push(Told { file, bench, row, bars: vec![row] }),
        }
    };
    if wanted.is_empty() {
        rows().filter(|row| !row["bar"].is_null()).for_each(&mut add);
    }
    for wish in wanted {
        let mut found = rows().filter(|row| wish.is(row)).peekable();
        found.peek().with_context(|| {
            let mut cases: Vec<&str> = rows().filter_map(|row| row["case"].as_str()).collect();
            cases.dedup();
            format!("{bench} has no case {wish}; it has {}", cases.join("; "))
        })?;
        found.for_each(&mut add);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root with the results of bench `b`, cases `x` and `y`.
    fn root() -> Result<tempfile::TempDir> {
        let root = tempfile::tempdir()?;
        kept::write(root.path(), "b", "one", kept::tests::file("one", &["x", "y"]), false)?;
        Ok(root)
    }

    const TABLE: &str = "\
| case | ours (p10..p90) | beside | ratio (p10..p90) | bar | verdict |
|---|---|---|---|---|---|
| x | 1.12 us (1.02..1.21) | tcp: 2.00 us | 0.56 (0.50..0.62) | <=0.6 | met |

2 rounds on CPU of the test, 2 cores, load 0.1 before.
";

    #[test]
    fn a_block_is_drawn_and_the_rest_of_the_page_stays() -> Result<()> {
        let root = root()?;
        let page = |inside: &str| {
            format!("# A\n<!-- figures: bench/results/b \"x\" beside\n\"tcp\" -->\n{inside}<!-- end -->\nafter\n")
        };
        let once = drawn(root.path(), "a.md", &page("old\n"))?;
        assert_eq!(once, page(TABLE));
        assert_eq!(drawn(root.path(), "a.md", &once)?, once);
        let both = wanted("bench/results/b \"x\" bench/results/c \"y\" beside \"z\"")?;
        assert_eq!(
            both.iter().map(|(bench, cases)| (bench.as_str(), cases.len())).collect::<Vec<_>>(),
            [("b", 1), ("c", 1)]
        );
        assert_eq!(both[1].1[0].rival.as_deref(), Some("z"));
        let code = "```text\n<!-- figures: bench/results/none -->\n```\nend";
        assert_eq!(drawn(root.path(), "a.md", code)?, code, "an example in a page is none");
        Ok(())
    }

    #[test]
    fn what_is_wrong_with_a_block_is_told_with_page_and_line() -> Result<()> {
        let root = root()?;
        for (begin, told) in [
            ("figures: bench/results/none \"x\" -->", "no results of none"),
            ("figures: results/b \"x\" -->", "`results/b` is none of bench/results/NAME"),
            ("figures: \"x\" -->", "\"x\" stands before its bench"),
            ("figures: -->", "no bench/results/NAME"),
            ("figures: bench/results/b \"z\" -->", "b has no case \"z\"; it has x; y"),
            ("figures: bench/results/b \"x\" beside \"ucx\" -->", "b has no case \"x\" beside \"ucx\""),
            ("figures: bench/results/b x -->", "`x` is none of"),
            ("promises: bench/results/b \"x\" since \"y\" -->", "`since` is none of"),
            ("figures: bench/results/b \"x\"", "does not end"),
        ] {
            let error = drawn(root.path(), "docs/a.md", &format!("# A\n\n<!-- {begin}\n"));
            let error = format!("{:#}", error.expect_err(begin));
            assert!(error.contains("docs/a.md:3") && error.contains(told), "{begin}: {error}");
        }
        let open = "<!-- figures: bench/results/b -->\nold\n<!-- figures: bench/results/b -->\n<!-- end -->\n";
        let error = format!("{:#}", drawn(root.path(), "a.md", open).expect_err("the first does not end"));
        assert!(error.contains("a.md:1: no `<!-- end -->`"), "{error}");
        Ok(())
    }

    #[test]
    fn a_bench_with_two_files_or_a_broken_one_is_told() -> Result<()> {
        let root = root()?;
        assert_eq!(kept_findings(root.path())?, [""; 0]);
        std::fs::write(root.path().join("bench/results/b/other.json"), "{}")?;
        std::fs::create_dir_all(root.path().join("bench/results/c"))?;
        std::fs::write(root.path().join("bench/results/c/one.json"), "{}")?;
        let mut told = kept_findings(root.path())?;
        told.sort();
        assert!(told[0].contains("c/one.json has no `schema`") && told[1].contains("several result files"), "{told:?}");
        Ok(())
    }
}
