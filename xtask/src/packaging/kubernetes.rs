//! The Kubernetes manifests: judged against the published schemas (`kubernetes-validate` from PyPI carries them), and by
//! `tests/packaging/manifests`, which also writes the plan by which a guest runs them. Owns the virtual environment.

use super::succeed;
use anyhow::Result;
use harness::child::{self, Stream};
use harness::packages::{self, Need};
use harness::repo::Repo;
use harness::result_lines::counted;
use harness::tally::Tally;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PYTHON: &str = "/usr/bin/python3";
/// What the environment needs, and the Debian package that has it.
pub(super) const NEEDED: &[Need] = &[(PYTHON, "python3"), ("/usr/share/python-wheels", "python3-venv")];
const VALIDATOR: &str = "kubernetes-validate>=1.37,<2";
/// The oldest release whose schema the manifests must keep, and the newest that is known.
const RELEASES: [&str; 2] = ["1.28", "1.37"];
const MANIFESTS: [&str; 3] =
    ["packaging/kubernetes/raas.yaml", "packaging/kubernetes/pod.yaml", "packaging/kubernetes/sidecar.yaml"];
const LIMIT: Duration = Duration::from_secs(5 * 60);

pub(super) fn judge(repo: &Repo, tally: &mut Tally) -> Result<()> {
    packages::install(NEEDED);
    let lacking = packages::lacking(NEEDED);
    if !lacking.is_empty() {
        tally.skip("kubernetes", &format!("{} is not there and cannot be installed", lacking.join(", ")));
        return Ok(());
    }
    let venv = repo.target.join("kubernetes-venv");
    let validator = venv.join("bin/kubernetes-validate");
    if !validator.exists() && !install(&venv) {
        tally.skip("kubernetes", "kubernetes-validate cannot be installed from PyPI into a virtual environment");
        return Ok(());
    }
    for release in RELEASES {
        tally.check(&format!("kubernetes: the manifests keep the schema of {release}"), || {
            let files = MANIFESTS.map(|file| repo.root.join(file));
            succeed(&mut validate(&validator, release, &files), LIMIT)?;
            Ok(vec![])
        });
    }
    tally.check("kubernetes: a manifest with a wrong key is refused", || {
        let text = std::fs::read_to_string(repo.root.join(MANIFESTS[0]))?;
        let wrong = repo.target.join("wrong.yaml");
        std::fs::write(&wrong, text.replace("hostNetwork:", "hostNetwrok:"))?;
        let ended = child::run_quiet(&mut validate(&validator, RELEASES[0], &[wrong]), LIMIT)?;
        let named = ended.lines.iter().any(|(_, line)| line.contains("hostNetwrok"));
        Ok(if !ended.success() && named { vec![] } else { vec![format!("it was not: {}", ended.describe())] })
    });
    let plan = repo.target.join("packaging/pods");
    let mut command = repo.command(&venv.join("bin/python").to_string_lossy(), &["tests/packaging/manifests"]);
    let ended = child::run(command.arg("packaging/kubernetes").arg(&plan), LIMIT, |_, line| println!("     {line}"))?;
    tally.add(counted(ended.lines.iter().map(|(_, line)| line.as_str())));
    let findings = if ended.success() { vec![] } else { vec![ended.describe(), ended.text(Stream::Err)] };
    tally.case("kubernetes: the manifests were judged", ended.took, &findings);
    tally.check("kubernetes: the daemon takes its configuration", || {
        let key = plan.join("cluster.key");
        super::put(&key, &[7; 32], 0o600)?;
        let raas = repo.target.join("release/raas");
        let mut check = repo.command(&raas.to_string_lossy(), &["daemon", "--check", "--config"]);
        // As in the guest, any group by its number is one.
        succeed(check.arg(plan.join("raasd.toml")).arg("--key-file").arg(&key), LIMIT)?;
        Ok(vec![])
    });
    Ok(())
}

fn install(venv: &Path) -> bool {
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", VALIDATOR]);
    succeed(Command::new(PYTHON).args(["-m", "venv"]).arg(venv), LIMIT).is_ok() && succeed(&mut pip, LIMIT).is_ok()
}

fn validate(validator: &Path, release: &str, files: &[PathBuf]) -> Command {
    let mut command = Command::new(validator);
    command.args(["--strict", "--quiet", "--kubernetes-version", release]).args(files);
    command
}
