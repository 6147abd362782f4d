//! Blocks of pages: Rust is listed as doc tests, C compiles, Python runs in the tests of its package, and what Start and Use
//! give to a shell runs as it is pasted, in a home of its own.

mod blocks;
mod session;

use blocks::{Block, all_blocks, root};
use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn every_block_of_rust_is_a_doc_test() {
    let rust = |block: &&Block| block.words.first().is_some_and(|word| word == "rust");
    let blocks = all_blocks();
    let pages: BTreeSet<&str> = blocks.iter().filter(rust).map(|block| block.page.as_str()).collect();
    let listed: BTreeSet<&str> = pages::PAGES.iter().copied().collect();
    assert_eq!(pages, listed, "the pages with blocks of Rust, and the list in crates/proof/pages/src/lib.rs");
    for block in blocks.iter().filter(rust) {
        let known = block.words[1..].iter().all(|word| word == "no_run");
        assert!(
            known,
            "{}:{}: a block of Rust is compiled; `{}` hides it",
            block.page,
            block.line,
            block.words.join(",")
        );
    }
}

#[test]
fn every_block_says_what_it_is() {
    let known =
        ["rust", "sh", "console", "text", "toml", "json", "c", "python", "yaml", "ini", "cpp", "go", "javascript"];
    for block in all_blocks() {
        let Some(first) = block.words.first() else {
            panic!("{}:{}: a block without a language", block.page, block.line)
        };
        assert!(known.contains(&first.as_str()), "{}:{}: `{first}` is none of {known:?}", block.page, block.line);
    }
}

#[test]
fn blocks_of_c_compile() {
    let mut count = 0;
    for block in all_blocks().into_iter().filter(|block| block.words == ["c"]) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("block.c");
        std::fs::write(&file, &block.text).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-fsyntax-only", "-I"]);
        let output = match cc.arg(root().join("crates/client/ffi/include")).arg(&file).output() {
            Ok(output) => output,
            Err(error) => return println!("SKIP blocks_of_c_compile: cc cannot be started: {error}"),
        };
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}:{}: {said}", block.page, block.line);
        count += 1;
    }
    assert!(count > 0, "no page has a block of C");
}

#[test]
fn what_start_and_use_paste_into_a_shell_works() {
    let mut count = 0;
    for page in session::pages() {
        count += 1;
        match session::run(&page) {
            session::Verdict::Works => {}
            session::Verdict::Lacks(what) => {
                println!("SKIP what_start_and_use_paste_into_a_shell_works: {}: {what} is not there", page.name);
            }
            session::Verdict::Fails(said) => panic!("{}: {said}", page.name),
        }
    }
    assert!(count >= 5, "{count} pages have blocks for a shell");
}
