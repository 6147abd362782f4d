//! The crates that a registry may have: those that do not say `publish = false`. Owns the judgement that each could be
//! published as it is; nothing is uploaded.

use super::succeed;
use anyhow::{Context as _, Result};
use harness::repo::Repo;
use harness::tally::Tally;
use serde_json::Value;
use std::time::Duration;

const METADATA_LIMIT: Duration = Duration::from_secs(600);
/// All are compiled from what would be uploaded.
const PACKAGE_LIMIT: Duration = Duration::from_secs(40 * 60);
/// Crates for users, which must be among the public ones.
const MEANT: &[&str] =
    &["raas", "raas-cli", "raas-core", "raas-embedded", "raas-ffi", "raas-group", "raas-rpc", "raas-tonic", "rmem"];

pub(super) fn judge(repo: &Repo, full: bool, tally: &mut Tally) -> Result<()> {
    let text = succeed(
        &mut repo.command("cargo", &["metadata", "--locked", "--no-deps", "--format-version", "1"]),
        METADATA_LIMIT,
    )?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata is not JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    tally.check("crates: the public ones say what a registry wants", || Ok(findings(packages)));
    if !full {
        return Ok(());
    }
    // Published together they find each other, though no registry has them yet.
    let words = ["publish", "--dry-run", "--allow-dirty"];
    tally.check(&format!("crates: cargo {}", words.join(" ")), || {
        let mut command = repo.command("cargo", &words);
        for name in packages.iter().filter(|package| is_public(package)).map(name) {
            command.args(["--package", name]);
        }
        succeed(&mut command, PACKAGE_LIMIT)?;
        Ok(vec![])
    });
    Ok(())
}

/// Cargo prints `null` for a package that may go anywhere, and an empty list for one that may go nowhere.
fn is_public(package: &Value) -> bool {
    package["publish"].is_null()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

fn findings(packages: &[Value]) -> Vec<String> {
    let public: Vec<&str> = packages.iter().filter(|package| is_public(package)).map(name).collect();
    let mut findings: Vec<String> =
        MEANT.iter().filter(|meant| !public.contains(meant)).map(|meant| format!("{meant} is not public")).collect();
    for package in packages.iter().filter(|package| is_public(package)) {
        for key in ["description", "license", "rust_version"] {
            if package[key].as_str().is_none_or(str::is_empty) {
                findings.push(format!("{} has no {key}", name(package)));
            }
        }
        for dependency in package["dependencies"].as_array().map_or(&[][..], Vec::as_slice) {
            let own = !dependency["path"].is_null() && dependency["kind"] != "dev";
            if own && !public.contains(&name(dependency)) {
                findings.push(format!("{} needs {}, which is not public", name(package), name(dependency)));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, publish: Value, needs: &str, kind: Value) -> Value {
        json!({"name": name, "publish": publish, "description": "what it is", "license": "MIT", "rust_version": "1.88",
            "dependencies": [{"name": needs, "path": "/somewhere", "kind": kind}]})
    }

    #[test]
    fn a_public_crate_needs_public_crates() {
        let mut all: Vec<Value> = MEANT.iter().map(|name| package(name, Value::Null, "raas", Value::Null)).collect();
        assert_eq!(findings(&all), Vec::<String>::new());
        all.push(package("own", json!([]), "raas", Value::Null));
        all.push(package("tested", Value::Null, "own", json!("dev")));
        assert_eq!(findings(&all), Vec::<String>::new());
        all.push(package("lost", Value::Null, "own", Value::Null));
        assert_eq!(findings(&all), ["lost needs own, which is not public"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut bare = package("bare", Value::Null, "raas", Value::Null);
        bare["description"] = Value::Null;
        let findings = findings(&[bare]);
        assert!(findings.contains(&"bare has no description".to_owned()), "{findings:?}");
        assert!(findings.contains(&"raas is not public".to_owned()), "{findings:?}");
    }
}
