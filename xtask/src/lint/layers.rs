//! The house's floors as a law: which crate may depend on which. Owns the table; a new crate gets its floor here.

use crate::child::{self, Stream};
use crate::repo::{Dependency, Package, Repo};
use anyhow::Result;
use std::time::Duration;

/// Each crate may use only crates on floors below its own. The harnesses on top (tests, benches, simulation) ship nothing.
const FLOORS: &[(&str, u32)] = &[
    ("shm", 0),
    ("verbs", 1),
    ("control", 1),
    ("conformance", 2),
    ("roce", 2),
    ("engine", 2),
    ("softnic", 3),
    ("rdmacore", 3),
    ("raas", 3),
    ("raas-ffi", 4),
    ("raas-preload", 4),
    ("ibverbs", 4),
    ("raasd", 4),
    ("raas-cli", 5),
    ("raas-embedded", 5),
    ("raas-tonic", 5),
    ("interop", 6),
    ("hostile", 6),
    ("fuzz-targets", 6),
    ("sim", 6),
    ("bench", 6),
    ("xtask", 6),
];

/// Crates without I/O.
const PURE: &[&str] = &["roce", "engine", "verbs"];
/// Crates that bring sockets, an event loop or the system's randomness.
const IO_CRATES: &[&str] = &["tokio", "mio", "async-std", "smol", "socket2", "quinn-udp", "getrandom"];
/// Features of `rand` that reach for the system's randomness; they are in its default set.
const RAND_OS_FEATURES: &[&str] = &["sys_rng", "thread_rng", "getrandom", "default"];
const TREE_LIMIT: Duration = Duration::from_secs(120);

fn floor(name: &str) -> Option<u32> {
    FLOORS.iter().find(|(known, _)| *known == name).map(|(_, floor)| *floor)
}

/// No crate uses one on its own floor or above. Tests may use a neighbour on the same floor.
pub(super) fn floors(packages: &[Package]) -> Vec<String> {
    let mut findings = vec![];
    for package in packages {
        let Some(own) = floor(&package.name) else {
            findings.push(format!("crate {} has no floor; give it one in xtask/src/lint/layers.rs", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            let Some(other) = floor(&dependency.name) else { continue };
            if !packages.iter().any(|package| package.name == dependency.name) {
                continue;
            }
            let allowed = if dependency.kind == "dev" { other <= own } else { other < own };
            if !allowed {
                findings.push(format!(
                    "{} (floor {own}) imports upward: {} (floor {other}, {})",
                    package.name, dependency.name, dependency.kind
                ));
            }
        }
    }
    findings
}

/// Who may use the daemon: the command, the crate that puts it inside a process, and the fuzzers of its parsers.
const DAEMON_USERS: &[&str] = &["raas-cli", "raas-embedded", "fuzz-targets"];

/// The daemon is used by its users and by nobody else.
pub(super) fn daemon(packages: &[Package]) -> Vec<String> {
    packages
        .iter()
        .filter(|package| !DAEMON_USERS.contains(&package.name.as_str()))
        .filter(|package| package.dependencies.iter().any(|dependency| dependency.name == "raasd"))
        .map(|package| format!("{} depends on raasd; only {} may", package.name, DAEMON_USERS.join(" and ")))
        .collect()
}

/// The pure crates pull in no sockets, event loop or system randomness, directly or through others.
pub(super) fn io_free(repo: &Repo) -> Result<Vec<String>> {
    let mut findings = vec![];
    for package in repo.packages.iter().filter(|package| PURE.contains(&package.name.as_str())) {
        let reaching = package.dependencies.iter().filter(|dependency| reaches_os_randomness(dependency));
        findings.extend(reaching.map(|_| format!("{}: rand with the system's randomness", package.name)));
        let args = ["tree", "--package", &package.name, "--edges", "normal", "--prefix", "none", "--format", "{p}"];
        let tree = child::run_quiet(&mut repo.command("cargo", &args), TREE_LIMIT)?;
        if !tree.success() {
            findings.push(format!("cargo {}: {}\n{}", args.join(" "), tree.describe(), tree.text(Stream::Err)));
        }
        let text = tree.text(Stream::Out);
        let names = text.lines().filter_map(|line| line.split_whitespace().next());
        let mut found: Vec<&str> = names.filter(|name| IO_CRATES.contains(name)).collect();
        found.sort_unstable();
        found.dedup();
        findings.extend(found.iter().map(|name| format!("{} pulls in {name}", package.name)));
    }
    Ok(findings)
}

fn reaches_os_randomness(dependency: &Dependency) -> bool {
    let by_feature = dependency.features.iter().any(|feature| RAND_OS_FEATURES.contains(&feature.as_str()));
    dependency.name == "rand" && dependency.kind == "normal" && (dependency.default_features || by_feature)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn package(name: &str, dependencies: &[(&str, &str)]) -> Package {
        let dependency = |(name, kind): &(&str, &str)| Dependency {
            name: (*name).to_owned(),
            kind: (*kind).to_owned(),
            features: vec![],
            default_features: true,
        };
        Package {
            name: name.to_owned(),
            dir: PathBuf::new(),
            dependencies: dependencies.iter().map(dependency).collect(),
            targets: vec![],
        }
    }

    #[test]
    fn upward_imports_and_unknown_crates_are_found() {
        let packages = [
            package("shm", &[]),
            package("roce", &[("shm", "normal"), ("engine", "dev")]),
            package("engine", &[("roce", "normal")]),
            package("mystery", &[]),
        ];
        let findings = floors(&packages);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("engine (floor 2) imports upward: roce"), "{findings:?}");
        assert!(findings[1].contains("mystery"), "{findings:?}");
    }

    #[test]
    fn only_the_command_may_use_the_daemon() {
        let packages = [package("raas-cli", &[("raasd", "normal")]), package("raas", &[("raasd", "dev")])];
        assert_eq!(daemon(&packages), ["raas depends on raasd; only raas-cli and raas-embedded and fuzz-targets may"]);
    }

    #[test]
    fn default_features_of_rand_reach_the_system() {
        let rand = &package("roce", &[("rand", "normal")]).dependencies[0];
        assert!(reaches_os_randomness(rand));
        let seeded = Dependency { default_features: false, features: vec!["std_rng".to_owned()], ..rand.clone() };
        assert!(!reaches_os_randomness(&seeded));
    }
}
