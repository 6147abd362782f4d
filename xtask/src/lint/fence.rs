//! Two fences in the source text: where unsafe code may stand, and which crates may not reach the outside world.

use super::source::{Source, Sources, code_only, has_word};
use anyhow::{Context, Result};
use harness::repo::{Package, Repo};
use std::path::Path;

/// Crates that may contain unsafe code, each block with its SAFETY line (clippy holds them to that).
const UNSAFE_CRATES: &[&str] = &["shm", "softnic", "rdmacore"];
const FORBID: &str = "#![forbid(unsafe_code)]";

/// Crates that are pure state machines.
const SANS_IO_DIRS: &[&str] = &["crates/nic/roce/src", "crates/service/engine/src"];
/// What a pure state machine has no business with; addresses as plain values are fine.
const OUTSIDE: &[&str] = &[
    "UdpSocket",
    "TcpStream",
    "TcpListener",
    "UnixStream",
    "UnixListener",
    "UnixDatagram",
    "std::thread",
    "thread::spawn",
    "thread::sleep",
    "Instant::now",
    "SystemTime",
    "std::env",
    "std::fs",
    "std::process",
    "OsRng",
    "SysRng",
    "thread_rng",
    "rand::rng",
    "from_os_rng",
    "make_rng",
    "getrandom",
    "RandomState",
];

/// Every crate outside the fence forbids unsafe code at each of its roots, and no file of it has any.
pub(super) fn unsafe_code(repo: &Repo, sources: &Sources) -> Result<Vec<String>> {
    let mut findings = vec![];
    for package in repo.packages.iter().filter(|package| !UNSAFE_CRATES.contains(&package.name.as_str())) {
        findings.extend(roots_without_forbid(repo, package)?);
        let dir = repo.relative(&package.dir);
        for file in sources.rust().filter(|file| file.path.starts_with(dir)) {
            findings.extend(lines_with(file, &["unsafe"], "unsafe code outside the fence"));
        }
    }
    Ok(findings)
}

fn roots_without_forbid(repo: &Repo, package: &Package) -> Result<Vec<String>> {
    let mut findings = vec![];
    let product =
        |kind: &String| matches!(kind.as_str(), "lib" | "bin" | "cdylib" | "rlib" | "staticlib" | "proc-macro");
    for target in package.targets.iter().filter(|target| target.kinds.iter().any(product)) {
        let text = std::fs::read_to_string(&target.source)
            .with_context(|| format!("cannot read {}", target.source.display()))?;
        if !code_only(&text).lines().any(|line| line.trim() == FORBID) {
            let path = repo.relative(&target.source).display();
            findings.push(format!("{path}: crate {} ({}) lacks {FORBID}", package.name, target.name));
        }
    }
    Ok(findings)
}

/// The state machines do not mention sockets, threads, clocks, randomness, files or the environment. Their tests may.
pub(super) fn sans_io(sources: &Sources) -> Vec<String> {
    let pure = |file: &&Source| SANS_IO_DIRS.iter().any(|dir| file.path.starts_with(dir)) && !is_test_file(&file.path);
    sources.rust().filter(pure).flat_map(|file| lines_with(file, OUTSIDE, "not for a state machine")).collect()
}

fn is_test_file(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "tests.rs") || path.components().any(|part| part.as_os_str() == "tests")
}

fn lines_with(file: &Source, words: &[&str], why: &str) -> Vec<String> {
    let code = code_only(&file.text);
    let mut findings = vec![];
    for (number, line) in code.lines().enumerate() {
        for word in words.iter().filter(|word| has_word(line, word)) {
            findings.push(format!("{}:{}: {word}: {why}", file.path.display(), number + 1));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn one(path: &str, text: &str) -> Sources {
        Sources { files: vec![Source { path: PathBuf::from(path), text: text.to_owned() }] }
    }

    #[test]
    fn a_clock_in_a_state_machine_is_found_and_a_comment_is_not() {
        let clock = "fn f() { let t = std::time::Instant::now(); }";
        assert_eq!(sans_io(&one("crates/nic/roce/src/qp.rs", clock)).len(), 1);
        assert_eq!(sans_io(&one("crates/service/engine/src/qp.rs", "use std::thread;")).len(), 1);
        assert_eq!(
            sans_io(&one("crates/service/engine/src/qp.rs", "// never Instant::now\nuse std::net::IpAddr;")).len(),
            0
        );
        assert_eq!(sans_io(&one("crates/service/engine/src/qp/tests.rs", "use std::thread;")).len(), 0);
        assert_eq!(sans_io(&one("crates/nic/softnic/src/a.rs", clock)).len(), 0);
    }

    #[test]
    fn unsafe_is_seen_in_code_only() {
        let file = Source { path: PathBuf::from("a.rs"), text: "let s = \"unsafe\"; unsafe { f() }".to_owned() };
        assert_eq!(lines_with(&file, &["unsafe"], "x").len(), 1);
    }
}
