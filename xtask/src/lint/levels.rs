//! Which lints hold where. Cargo takes the workspace's table or a crate's own, never both, so the few crates with
//! `unsafe` code have a table of their own: this compares it with the workspace's. What the lints find is judged by the
//! compiler and clippy.

use anyhow::{Context, Result};
use harness::repo::Repo;
use std::collections::BTreeSet;
use std::path::Path;

/// Crates that may contain unsafe code, each block with its SAFETY line (clippy holds them to that).
const UNSAFE_CRATES: &[&str] =
    &["shm", "softnic", "rdmacore", "ibverbs", "receivers", "raas-ffi", "raas-preload", "raas-python", "tap"];
/// The line of the workspace's table that they do not have.
const FORBID: &str = "unsafe_code = \"forbid\"";
/// Crates that are state machines, and crates whose threads share no words; each links to the list of what it may not
/// name.
const DISALLOWED: &[(&str, &[&str])] = &[
    (
        "lints/sans-io.toml",
        &["verbs", "genslab", "rnic", "wires", "roce", "iwarp", "engine", "plane", "dispatch", "agree"],
    ),
    ("lints/never-waits.toml", &["raas-core"]),
    ("lints/no-atomics.toml", &["control", "rdmacore", "raasd"]),
];

/// Every crate has the workspace's lints, and `unsafe` is forbidden in all but the few.
pub(super) fn levels(repo: &Repo) -> Result<Vec<String>> {
    let workspace = read(&repo.root.join("Cargo.toml"))?;
    let mut findings = vec![];
    for package in &repo.packages {
        let manifest = read(&package.dir.join("Cargo.toml"))?;
        findings.extend(differences(&package.name, &workspace, &manifest));
    }
    Ok(findings)
}

fn differences(name: &str, workspace: &str, manifest: &str) -> Vec<String> {
    if !UNSAFE_CRATES.contains(&name) {
        let inherits = section(manifest, "[lints]").contains("workspace = true");
        return if inherits { vec![] } else { vec![format!("{name}: [lints] is not `workspace = true`")] };
    }
    let mut findings = vec![];
    for tool in ["rust", "clippy"] {
        let mut wanted = section(workspace, &format!("[workspace.lints.{tool}]"));
        let had = section(manifest, &format!("[lints.{tool}]"));
        wanted.remove(FORBID);
        let missing = wanted.difference(&had).map(|line| format!("{name}: [lints.{tool}] lacks `{line}`"));
        let more =
            had.difference(&wanted).map(|line| format!("{name}: [lints.{tool}] has `{line}`, the workspace not"));
        findings.extend(missing.chain(more));
    }
    findings
}

/// The lines of a table without comments.
fn section<'t>(text: &'t str, heading: &str) -> BTreeSet<&'t str> {
    let inside = text.lines().skip_while(|line| line.trim() != heading).skip(1);
    let inside = inside.take_while(|line| !line.starts_with('['));
    inside.map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// The state machines and the others are held to their lists: clippy reads `clippy.toml` beside a crate's manifest.
pub(super) fn disallowed(repo: &Repo) -> Result<Vec<String>> {
    let mut findings = vec![];
    for (list, crates) in DISALLOWED {
        let wanted = repo.root.join(list).canonicalize().with_context(|| format!("no {list}"))?;
        for name in *crates {
            let package = repo.packages.iter().find(|package| package.name == *name);
            let file = package.map(|package| package.dir.join("clippy.toml").canonicalize());
            if !file.is_some_and(|file| file.is_ok_and(|file| file == wanted)) {
                findings.push(format!("{name}: its clippy.toml is not a link to {list}"));
            }
        }
    }
    Ok(findings)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str =
        "[workspace.lints.rust]\nunsafe_code = \"forbid\"\na = \"warn\"\n\n[workspace.lints.clippy]\nb = \"deny\"\n";

    #[test]
    fn a_crate_has_the_workspaces_lints_or_the_same_with_unsafe() {
        assert_eq!(differences("roce", WORKSPACE, "[lints]\nworkspace = true\n"), [""; 0]);
        assert_eq!(differences("roce", WORKSPACE, "[lints.rust]\na = \"warn\"\n").len(), 1);
        let own = "[lints.rust]\n# why\na = \"warn\"\n\n[lints.clippy]\nb = \"deny\"\n\n[dependencies]\nc = \"1\"\n";
        assert_eq!(differences("shm", WORKSPACE, own), [""; 0]);
        assert_eq!(differences("shm", WORKSPACE, &own.replace("deny", "warn")).len(), 2);
    }
}
