//! What dependencies may be, by `deny.toml`: licences, crates that are banned, and where crates come from. Owns the
//! reading of that file, whose form is cargo-deny's; a key that is not read here is refused rather than passed over.
//!
//! cargo-deny itself takes minutes to compile and no registry of packages has it ready. Licences are judged by `spdx`, the
//! library that it uses too.

use anyhow::{Context, Result};
use harness::child::{self, Stream};
use harness::repo::Repo;
use serde::Deserialize;
use serde_json::Value;
use spdx::{Expression, ParseMode};
use std::time::Duration;

const FILE: &str = "deny.toml";
const METADATA_LIMIT: Duration = Duration::from_secs(600);
/// What each source of a registry begins with.
const REGISTRY: &str = "registry+";

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    licenses: Licences,
    bans: Bans,
    sources: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Licences {
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

/// Further licences for one crate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    deny: Vec<Ban>,
    // For cargo-deny; two versions of a crate are no fault here, and Cargo refuses a published `*` itself.
    #[serde(rename = "multiple-versions")]
    _multiple_versions: String,
    #[serde(rename = "wildcards")]
    _wildcards: String,
    #[serde(rename = "allow-wildcard-paths")]
    _allow_wildcard_paths: bool,
}

/// A crate that must not be among the dependencies, but for those of `wrappers`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
    #[serde(default)]
    wrappers: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: String,
    unknown_git: String,
    allow_registry: Vec<String>,
}

/// All findings about the packages of the lock file.
pub(super) fn dependencies(repo: &Repo) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(repo.root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
    let rules: Rules = toml::from_str(&text).with_context(|| format!("{FILE} is not what this check reads"))?;
    let mut metadata = repo.command("cargo", &["metadata", "--locked", "--all-features", "--format-version", "1"]);
    let ended = child::run_quiet(&mut metadata, METADATA_LIMIT)?;
    anyhow::ensure!(ended.success(), "cargo metadata: {}\n{}", ended.describe(), ended.text(Stream::Err));
    let metadata = serde_json::from_str(&ended.text(Stream::Out)).context("cargo metadata is not JSON")?;
    Ok(judge(&rules, &metadata))
}

fn judge(rules: &Rules, metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let mut findings = vec![];
    if packages.is_empty() {
        findings.push("cargo metadata names no package".to_owned());
    }
    for package in packages {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let (name, version) = (text("name"), text("version"));
        if let Err(why) = rules.licenses.allows(name, text("license")) {
            findings.push(format!("{name} {version}: {why}"));
        }
        if let Err(why) = rules.sources.allow(text("source")) {
            findings.push(format!("{name} {version}: {why}"));
        }
    }
    findings.extend(banned(&rules.bans.deny, packages, &metadata["resolve"]["nodes"]));
    findings
}

/// Who uses a banned crate, by what Cargo resolved: what a package declares may be an option that nobody chose.
fn banned(bans: &[Ban], packages: &[Value], nodes: &Value) -> Vec<String> {
    let name_of = |id: &Value| {
        let package = packages.iter().find(|package| package["id"] == *id);
        package.and_then(|package| package["name"].as_str()).unwrap_or_default()
    };
    let mut findings = vec![];
    for node in nodes.as_array().map_or(&[][..], Vec::as_slice) {
        for edge in node["deps"].as_array().map_or(&[][..], Vec::as_slice) {
            let (user, wanted) = (name_of(&node["id"]), name_of(&edge["pkg"]));
            let ban = bans.iter().find(|ban| ban.name == wanted);
            if let Some(ban) = ban.filter(|ban| !ban.wrappers.iter().any(|wrapper| wrapper == user)) {
                findings.push(format!("{user} depends on {wanted}, which {}", ban.reason));
            }
        }
    }
    findings
}

impl Licences {
    fn allows(&self, name: &str, licence: &str) -> Result<(), String> {
        if licence.is_empty() {
            return Err("it names no licence".to_owned());
        }
        let expression = Expression::parse_mode(licence, ParseMode::LAX)
            .map_err(|error| format!("its licence `{licence}` is no SPDX expression: {}", error.reason))?;
        let further = self.exceptions.iter().filter(|exception| exception.name == name);
        let allowed: Vec<&String> = self.allow.iter().chain(further.flat_map(|exception| &exception.allow)).collect();
        if expression.evaluate(|wanted| allowed.iter().any(|allowed| **allowed == wanted.to_string())) {
            Ok(())
        } else {
            Err(format!("its licence `{licence}` is not allowed; {FILE} has those that are"))
        }
    }
}

impl Sources {
    /// A package of this workspace has no source.
    fn allow(&self, source: &str) -> Result<(), String> {
        let (known, rule) = match source.strip_prefix(REGISTRY) {
            Some(registry) => (self.allow_registry.iter().any(|allowed| allowed == registry), &self.unknown_registry),
            None => (source.is_empty(), &self.unknown_git),
        };
        if known || rule != "deny" { Ok(()) } else { Err(format!("it comes from {source}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RULES: &str = r#"
        [licenses]
        allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]
        exceptions = [{ crate = "header", allow = ["MPL-2.0"] }]
        [bans]
        multiple-versions = "warn"
        wildcards = "deny"
        allow-wildcard-paths = true
        deny = [{ crate = "cmake", reason = "needs cmake", wrappers = ["excused"] }]
        [sources]
        unknown-registry = "deny"
        unknown-git = "deny"
        allow-registry = ["https://registry.example"]
    "#;

    fn findings(name: &str, licence: &str, source: &str, needs: &str) -> Vec<String> {
        let registry = "registry+https://registry.example";
        let source = if source.is_empty() { registry } else { source };
        let package = json!({"id": "it", "name": name, "version": "1.0.0", "license": licence, "source": source});
        let other = json!({"id": "other", "name": needs, "version": "1.0.0", "license": "MIT", "source": registry});
        let nodes = json!([{"id": "it", "deps": [{"pkg": "other"}]}]);
        judge(&toml::from_str(RULES).unwrap(), &json!({"packages": [package, other], "resolve": {"nodes": nodes}}))
    }

    #[test]
    fn licences_are_expressions() {
        let none: Vec<String> = vec![];
        for licence in
            ["MIT", "GPL-3.0-only OR MIT", "MIT/Apache-2.0", "Apache-2.0 WITH LLVM-exception", "MIT AND Apache-2.0"]
        {
            assert_eq!(findings("a", licence, "", "b"), none, "{licence}");
        }
        for licence in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "MPL-2.0", "", "Own words"] {
            assert_eq!(findings("a", licence, "", "b").len(), 1, "{licence}");
        }
        assert_eq!(findings("header", "MPL-2.0", "", "b"), none);
    }

    #[test]
    fn bans_and_sources() {
        assert!(findings("a", "MIT", "", "cmake")[0].contains("a depends on cmake, which needs cmake"));
        assert!(findings("excused", "MIT", "", "cmake").is_empty());
        assert_eq!(findings("a", "MIT", "git+https://elsewhere.example", "b").len(), 1);
        assert_eq!(findings("a", "MIT", "registry+https://elsewhere.example", "b").len(), 1);
        assert_eq!(judge(&toml::from_str(RULES).unwrap(), &json!({})).len(), 1);
    }

    #[test]
    fn this_workspace_keeps_its_rules() {
        assert_eq!(dependencies(&Repo::open().unwrap()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_rule_that_is_not_read_is_refused() {
        assert!(toml::from_str::<Rules>(&RULES.replace("unknown-git", "unknown-got")).is_err());
    }
}
