//! The fenced blocks of the pages.

use std::path::{Path, PathBuf};

/// One block.
#[derive(Debug)]
pub(crate) struct Block {
    /// The page, from the root of the repository.
    pub(crate) page: String,
    /// The line of its fence.
    pub(crate) line: usize,
    /// What stands behind the fence, cut at commas: a language, then how it is used.
    pub(crate) words: Vec<String>,
    pub(crate) text: String,
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Every block of README and docs.
pub(crate) fn all_blocks() -> Vec<Block> {
    let mut pages = vec![];
    collect(&root().join("docs"), &mut pages);
    pages.push(root().join("README.md"));
    pages.sort();
    pages.iter().flat_map(|page| blocks_of(page)).collect()
}

fn collect(dir: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, pages);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            pages.push(path);
        }
    }
}

fn blocks_of(path: &Path) -> Vec<Block> {
    let page = path.strip_prefix(root()).unwrap().display().to_string();
    let text = std::fs::read_to_string(path).unwrap();
    let mut blocks = vec![];
    let mut open: Option<Block> = None;
    for (line, content) in (1..).zip(text.lines()) {
        match (content.trim_start().strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(words), None) => {
                let words =
                    words.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect();
                open = Some(Block { page: page.clone(), line, words, text: String::new() });
            }
            (None, Some(mut block)) => {
                block.text.push_str(content);
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{page}: a block is not closed");
    blocks
}
