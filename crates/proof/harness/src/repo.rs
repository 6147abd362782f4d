//! Where the repository and its build outputs are, and what Cargo says about its packages. Reads only.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The checkout that this run works on.
#[derive(Debug, Clone)]
pub struct Repo {
    /// The workspace root.
    pub root: PathBuf,
    /// Cargo's target directory (`CARGO_TARGET_DIR` or `target/`).
    pub target: PathBuf,
    /// The workspace's packages as `cargo metadata --no-deps` prints them.
    pub packages: Vec<Package>,
}

/// One package of the workspace.
#[derive(Debug, Clone)]
pub struct Package {
    pub name: String,
    /// The directory of its Cargo.toml.
    pub dir: PathBuf,
    pub dependencies: Vec<Dependency>,
    pub targets: Vec<Target>,
}

/// One line of a `[dependencies]` table.
#[derive(Debug, Clone)]
pub struct Dependency {
    pub name: String,
    /// `normal`, `dev` or `build`.
    pub kind: String,
    pub features: Vec<String>,
    pub default_features: bool,
}

/// One build target: a library, binary, test, bench or example.
#[derive(Debug, Clone)]
pub struct Target {
    pub name: String,
    pub kinds: Vec<String>,
    pub source: PathBuf,
}

impl Repo {
    /// Asks Cargo about the workspace that contains the current directory, or the one xtask was started from.
    pub fn open() -> Result<Repo> {
        let mut cargo = Command::new("cargo");
        cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
        if let Some(dir) = std::env::var_os("CARGO_MANIFEST_DIR") {
            cargo.current_dir(dir);
        }
        let output = cargo.output().context("cannot start cargo; is it on PATH?")?;
        if !output.status.success() {
            bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")?;
        let path = |key: &str| {
            metadata[key].as_str().map(PathBuf::from).with_context(|| format!("cargo metadata lacks {key}"))
        };
        let packages = array(&metadata["packages"]).iter().map(package).collect::<Result<_>>()?;
        Ok(Repo { root: path("workspace_root")?, target: path("target_directory")?, packages })
    }

    /// A command that starts in the repository's root, with no colour codes in its output.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.root).env("CARGO_TERM_COLOR", "never").env("NO_COLOR", "1");
        command
    }

    /// Files of the working tree that git tracks or would track, relative to the root, in order.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let output = self.command("git", &args).output().context("cannot start git")?;
        if !output.status.success() {
            bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let mut files: Vec<PathBuf> = output
            .stdout
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()))
            .filter(|path| self.root.join(path).is_file())
            .collect();
        files.sort();
        files.dedup();
        Ok(files)
    }

    /// `path` without the root in front, for messages.
    pub fn relative<'p>(&self, path: &'p Path) -> &'p Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}

fn package(value: &Value) -> Result<Package> {
    let manifest = PathBuf::from(text(&value["manifest_path"]));
    let dir = manifest.parent().context("a package without a directory")?.to_path_buf();
    Ok(Package {
        name: text(&value["name"]),
        dir,
        dependencies: array(&value["dependencies"]).iter().map(dependency).collect(),
        targets: array(&value["targets"]).iter().map(target).collect(),
    })
}

fn dependency(value: &Value) -> Dependency {
    Dependency {
        name: text(&value["name"]),
        kind: value["kind"].as_str().unwrap_or("normal").to_owned(),
        features: array(&value["features"]).iter().map(text).collect(),
        default_features: value["uses_default_features"].as_bool().unwrap_or(true),
    }
}

fn target(value: &Value) -> Target {
    Target {
        name: text(&value["name"]),
        kinds: array(&value["kind"]).iter().map(text).collect(),
        source: PathBuf::from(text(&value["src_path"])),
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Whether a line of Cargo's is only about its progress.
pub fn is_progress(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    matches!(first, "Compiling" | "Checking" | "Downloaded" | "Downloading" | "Updating" | "Blocking" | "Locking")
}
