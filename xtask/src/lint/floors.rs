//! The house's floors as a law: which crate may depend on which. The folder that a crate lies in is its floor, so a new
//! crate's place is its folder. Owns the table of floors, and compares the house's description with what Cargo knows.

use anyhow::{Context, Result};
use harness::child::{self, Stream};
use harness::repo::{Dependency, Package, Repo};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Folders of `crates/`, and the other folders whose crates each may use. A crate may use its neighbours too: Cargo
/// refuses circles.
const FLOORS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("nic", &["base"]),
    ("service", &["base", "nic"]),
    ("client", &["base"]),
    ("systems", &[]),
    ("tools", &["base", "nic", "service", "client", "systems"]),
    ("proof", &["base", "nic", "service", "client", "systems", "tools"]),
];
/// The floor of what stands on the library as everybody's programs do, and the library: nothing else of the house is
/// used there.
const ON_THE_LIBRARY: (&str, &str) = ("systems", "raas");
/// Crates that may use less than their floor: state machines that know no device.
const NARROWER: &[(&str, &[&str])] = &[("engine", &["base"]), ("plane", &["base"])];
/// Tests may use this one from every floor: it is written against the trait that it judges.
const TEST_SUITE: &str = "conformance";
/// The page with the table of crates.
const HOUSE: &str = "ARCHITECTURE.md";

/// Crates without I/O.
const PURE: &[&str] =
    &["rnic", "records", "wires", "roce", "iwarp", "engine", "plane", "dispatch", "verbs", "netmodel", "agree"];
/// Crates that bring sockets, an event loop or the system's randomness.
const IO_CRATES: &[&str] = &["tokio", "mio", "async-std", "smol", "socket2", "quinn-udp", "getrandom"];
/// AES-GCM, whose crate can make keys of other kinds from the system's randomness too. `records` gives it its keys.
const CIPHER: &str = "graviola";
/// Features of `rand` that reach for the system's randomness; they are in its default set.
const RAND_OS_FEATURES: &[&str] = &["os_rng", "thread_rng", "getrandom", "default"];
const TREE_LIMIT: Duration = Duration::from_secs(120);

/// The folder of `crates/` that a package lies in; `None` for the harnesses beside it, which ship nothing.
fn floor(repo: &Repo, package: &Package) -> Option<String> {
    let mut parts = repo.relative(&package.dir).iter().map(|part| part.to_string_lossy().into_owned());
    (parts.next()? == "crates").then(|| parts.next()).flatten()
}

/// No crate uses one of a floor that its own does not stand on.
pub(super) fn floors(repo: &Repo) -> Vec<String> {
    let places: BTreeMap<&str, String> =
        repo.packages.iter().filter_map(|p| Some((p.name.as_str(), floor(repo, p)?))).collect();
    repo.packages.iter().flat_map(|package| upward(&places, package)).collect()
}

fn upward(places: &BTreeMap<&str, String>, package: &Package) -> Vec<String> {
    let Some(own) = places.get(package.name.as_str()) else { return vec![] };
    let Some((_, below)) = FLOORS.iter().find(|(name, _)| name == own) else {
        return vec![format!("crate {} lies in crates/{own}; there is no such floor in {}", package.name, file!())];
    };
    let narrower = NARROWER.iter().find(|(name, _)| *name == package.name).map(|(_, floors)| *floors);
    let mut findings = vec![];
    for dependency in &package.dependencies {
        let Some(other) = places.get(dependency.name.as_str()) else { continue };
        let is_test = dependency.kind == "dev";
        let allowed = match narrower {
            Some(floors) if !is_test => floors.contains(&other.as_str()),
            _ => {
                own == other
                    || below.contains(&other.as_str())
                    || (own.as_str(), dependency.name.as_str()) == ON_THE_LIBRARY
                    || is_test && dependency.name == TEST_SUITE
            }
        };
        if !(allowed || is_test && is_beside(own, other)) {
            findings.push(format!(
                "{} (floor {own}) imports upward: {} (floor {other}, {})",
                package.name, dependency.name, dependency.kind
            ));
        }
    }
    findings
}

/// Tests of one side of the control socket may use the other side.
fn is_beside(own: &str, other: &str) -> bool {
    matches!((own, other), ("service", "client" | "nic") | ("client" | "systems", "tools"))
}

/// The table of crates in the description of the house names each crate, and what it uses, as Cargo knows it.
pub(super) fn described(repo: &Repo) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(repo.root.join(HOUSE)).with_context(|| format!("cannot read {HOUSE}"))?;
    Ok(differences(&repo.packages, &text))
}

fn differences(packages: &[Package], text: &str) -> Vec<String> {
    let rows: BTreeMap<&str, BTreeSet<&str>> = text.lines().filter_map(row).collect();
    let ours: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut findings = vec![];
    for package in packages.iter().filter(|package| package.name != "xtask") {
        let normal = package.dependencies.iter().filter(|dependency| dependency.kind == "normal");
        let used: BTreeSet<&str> = normal.map(|d| d.name.as_str()).filter(|name| ours.contains(name)).collect();
        match rows.get(package.name.as_str()) {
            None => findings.push(format!("{HOUSE} has no row for crate {}", package.name)),
            Some(told) if *told != used => {
                findings.push(format!("{HOUSE}: {} uses {used:?}, its row says {told:?}", package.name));
            }
            Some(_) => {}
        }
    }
    findings
}

/// Reads ``| `crate` | what | `used`, `used` |``.
fn row(line: &str) -> Option<(&str, BTreeSet<&str>)> {
    let cells: Vec<&str> = line.strip_prefix("| `")?.strip_suffix('|')?.split('|').map(str::trim).collect();
    let [name, _, used] = cells[..] else { return None };
    Some((name.strip_suffix('`')?, used.split('`').skip(1).step_by(2).collect()))
}

/// Who may use the daemon: the command, the crate that puts it inside a process, and the fuzzers of its parsers.
const DAEMON_USERS: &[&str] = &["raas-cli", "raas-embedded", "fuzz-targets", "histories"];

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
        let args = ["tree", "--package", &package.name, "--edges", "normal", "--prefix", "depth", "--format", " {p}"];
        let tree = child::run_quiet(&mut repo.command("cargo", &args), TREE_LIMIT)?;
        if !tree.success() {
            findings.push(format!("cargo {}: {}\n{}", args.join(" "), tree.describe(), tree.text(Stream::Err)));
        }
        let text = tree.text(Stream::Out);
        let found = io_crates(&text);
        findings.extend(found.iter().map(|name| format!("{} pulls in {name}", package.name)));
    }
    Ok(findings)
}

/// The crates with I/O in a tree of `cargo tree --prefix depth`, without what the cipher alone brings.
fn io_crates(tree: &str) -> BTreeSet<&str> {
    let mut cipher = None;
    let mut found = BTreeSet::new();
    for line in tree.lines() {
        let mut words = line.split_whitespace();
        let (Some(depth), Some(name)) = (words.next().and_then(|word| word.parse::<u32>().ok()), words.next()) else {
            continue;
        };
        if cipher.is_some_and(|cipher| depth > cipher) {
            continue;
        }
        cipher = (name == CIPHER).then_some(depth);
        found.extend(IO_CRATES.contains(&name).then_some(name));
    }
    found
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
    fn a_cipher_may_reach_for_randomness_and_nobody_else() {
        let sealed =
            "0 roce v0.1.0\n1 records v0.1.0\n2 graviola v0.4.4\n3 getrandom v0.4.3\n4 libc v0.2.1\n1 rand v1.0.0";
        assert_eq!(io_crates(sealed), BTreeSet::new());
        assert_eq!(io_crates(&format!("{sealed}\n2 getrandom v0.4.3 (*)")), BTreeSet::from(["getrandom"]));
        assert_eq!(io_crates("0 plane v0.1.0\n1 tokio v1.0.0\n1 graviola v0.4.4"), BTreeSet::from(["tokio"]));
    }

    #[test]
    fn upward_imports_and_unknown_floors_are_found() {
        let places = [
            ("shm", "base"),
            ("roce", "nic"),
            ("engine", "service"),
            ("raas", "client"),
            ("raas-core", "client"),
            ("rmem", "systems"),
            ("raas-embedded", "tools"),
            ("x", "attic"),
        ];
        let places: BTreeMap<&str, String> = places.into_iter().map(|(name, floor)| (name, floor.to_owned())).collect();
        let found = |name, uses: &[(&str, &str)]| upward(&places, &package(name, uses));
        assert_eq!(found("shm", &[]), [""; 0]);
        assert_eq!(found("roce", &[("shm", "normal"), ("conformance", "dev")]), [""; 0]);
        assert_eq!(found("engine", &[("shm", "normal"), ("roce", "dev")]), [""; 0]);
        assert_eq!(
            found("engine", &[("roce", "normal")]),
            ["engine (floor service) imports upward: roce (floor nic, normal)"]
        );
        assert_eq!(found("shm", &[("roce", "dev")]), ["shm (floor base) imports upward: roce (floor nic, dev)"]);
        assert_eq!(found("raas", &[("engine", "normal")]).len(), 1);
        let on_the_library = [("raas", "normal"), ("rmem", "normal"), ("raas-embedded", "dev")];
        assert_eq!(found("rmem", &on_the_library), [""; 0]);
        for below in ["raas-core", "shm", "engine"] {
            assert_eq!(found("rmem", &[(below, "normal")]).len(), 1, "{below}");
        }
        assert!(found("x", &[])[0].contains("crates/attic"));
    }

    #[test]
    fn the_table_of_crates_must_be_true() {
        let packages = [package("shm", &[]), package("roce", &[("shm", "normal"), ("rand", "normal")])];
        let table = "| crate | owns | uses |\n| `shm` | memory | |\n| `roce` | `wire` | `shm` |\n";
        assert_eq!(differences(&packages, table), [""; 0]);
        assert_eq!(differences(&packages, "| `shm` | memory | `roce` |").len(), 2);
    }

    #[test]
    fn only_the_command_may_use_the_daemon() {
        let packages = [package("raas-cli", &[("raasd", "normal")]), package("raas", &[("raasd", "dev")])];
        assert_eq!(
            daemon(&packages),
            ["raas depends on raasd; only raas-cli and raas-embedded and fuzz-targets and histories may"]
        );
    }

    #[test]
    fn default_features_of_rand_reach_the_system() {
        let rand = &package("roce", &[("rand", "normal")]).dependencies[0];
        assert!(reaches_os_randomness(rand));
        let seeded = Dependency { default_features: false, features: vec!["std_rng".to_owned()], ..rand.clone() };
        assert!(!reaches_os_randomness(&seeded));
    }
}
