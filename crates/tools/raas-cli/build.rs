//! Names the commit for `raas --version`, and the file of the library that the binary has in it for `raas run`.
//!
//! It reads `.git` itself, so that no tool is needed; `$RAAS_COMMIT` wins, for builds from an archive. A tree without
//! either says `unknown`. It must never fail a build.

use std::path::{Path, PathBuf};

/// Set by packagers whose tree has no `.git`.
const VARIABLE: &str = "RAAS_COMMIT";
/// Hexadecimal digits of a commit at least (SHA-1) and at most (SHA-256).
const DIGITS: std::ops::RangeInclusive<usize> = 40..=64;
/// Symbolic references that are followed at most.
const HOPS_MAX: usize = 4;
/// Where the crate finds the path of the library.
const LIBRARY_VARIABLE: &str = "RAAS_PRELOAD_FILE";

fn main() {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-changed=build.rs");
    let given = std::env::var(VARIABLE).ok().filter(|text| is_commit(text));
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let commit = given.or_else(|| manifest.ancestors().find_map(|dir| commit_of(&dir.join(".git"))));
    println!("cargo::rustc-env={VARIABLE}={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env={LIBRARY_VARIABLE}={}", library().display());
}

/// Where Cargo leaves the library of `raas-preload`, which it builds before the binary that depends on it: with all
/// that is built for this profile and this target. `cargo check` builds none, and needs a file to include: an empty one.
/// A binary with that is not built (src/run/library.rs).
fn library() -> PathBuf {
    // PROFILE/build/raas-cli-HASH/out
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let file = out.ancestors().nth(3).unwrap_or(&out).join("deps/libraas_preload.so");
    // One that is there stays.
    let _ = std::fs::File::create_new(&file);
    file
}

fn is_commit(text: &str) -> bool {
    DIGITS.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Reads a file and has cargo run this again when it changes.
fn watched(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text.trim().to_owned())
}

/// The commit that is checked out, of a repository or of a worktree of one.
fn commit_of(git: &Path) -> Option<String> {
    let own = if git.is_dir() {
        git.to_owned()
    } else {
        // A worktree: the file names the directory with its HEAD.
        let text = watched(git)?;
        git.parent()?.join(text.strip_prefix("gitdir:")?.trim())
    };
    let shared = match watched(&own.join("commondir")) {
        Some(place) => own.join(place),
        None => own.clone(),
    };
    let mut head = watched(&own.join("HEAD"))?;
    for _ in 0..HOPS_MAX {
        let Some(name) = head.strip_prefix("ref:").map(str::trim) else { break };
        head = watched(&own.join(name)).or_else(|| watched(&shared.join(name))).or_else(|| packed(&shared, name))?;
    }
    is_commit(&head).then_some(head)
}

/// A reference that git has packed away.
fn packed(shared: &Path, name: &str) -> Option<String> {
    let text = watched(&shared.join("packed-refs"))?;
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(_, reference)| *reference == name).map(|(commit, _)| commit.to_owned()).next()
}
