//! Stage `python`: the tests of the Python package (`crates/systems/raas-python`) on Debian's Python against a daemon, and
//! its wheel. The package is laid together below `target/` as a wheel has it; maturin comes from PyPI into a virtual
//! environment there.

use crate::context::Context;
use crate::languages;
use anyhow::{Context as _, Result, ensure};
use harness::child::{self, Stream};
use harness::packages::{Need, install, lacking};
use harness::tally::Tally;
use harness::{build, programs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const TESTS_LIMIT: Duration = Duration::from_secs(15 * 60);
const PIP_LIMIT: Duration = Duration::from_secs(5 * 60);
const PACKAGE: &str = "crates/systems/raas-python";
/// The native part, as Cargo names it and as Python looks for it.
const NATIVE: [&str; 2] = ["lib_raas.so", "_raas.abi3.so"];
const PYTHON: &str = "/usr/bin/python3";
/// What is needed, and the Debian package that has it.
pub(crate) const NEEDED: &[Need] = &[
    (PYTHON, "python3"),
    ("/usr/lib/python3/dist-packages/pytest/__init__.py", "python3-pytest"),
    ("/usr/lib/python3/dist-packages/numpy/__init__.py", "python3-numpy"),
    // The wheels that `python3 -m venv` installs.
    ("/usr/share/python-wheels", "python3-venv"),
];
/// What some tests skip themselves without, with a word.
const WISHED: &[Need] = &[("/usr/lib/python3/dist-packages/torch/__init__.py", "python3-torch")];
/// Fewer would mean that the tests were not found.
const CASES_MIN: u64 = 20;
/// How a wheel's name ends that every later Python can load.
const ABI: &str = "-cp311-abi3-";
/// Run by the Python that has the wheel: a connection to itself.
const SMOKE: &str = "import raas; s = raas.create_server(('127.0.0.1', 0)); \
    c = raas.create_connection(s.getsockname(), timeout=60); a, _ = s.accept(); c.sendall(b'wheel'); \
    assert a.recv(9) == b'wheel'; print(raas.__file__)";

pub(crate) fn run(context: &Context) -> Result<Tally> {
    let mut tally = Tally::default();
    install(NEEDED);
    install(WISHED);
    let lacking = lacking(NEEDED);
    if !lacking.is_empty() {
        tally.skip("python", &format!("{} is not there and cannot be installed", lacking.join(", ")));
        return Ok(tally);
    }
    programs::build(&context.repo)?;
    let place = lay_together(context)?;
    pytest(context, &place, &mut tally)?;
    languages::run(context, &mut tally)?;
    if context.full {
        tally.check("python: it builds, and no Python is asked for that", || builds_without_python(context));
        wheel(context, &mut tally)?;
    }
    Ok(tally)
}

/// The native part must not need a Python to be built.
fn builds_without_python(context: &Context) -> Result<Vec<String>> {
    let words = ["build", "--release", "--package", "raas-python"];
    // Those that are asked for their version and paths fail.
    let none = context.repo.target.join("no-python");
    std::fs::create_dir_all(&none)?;
    for name in ["python", "python3"] {
        let file = none.join(name);
        std::fs::write(&file, "#!/bin/sh\nexit 1\n")?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
    }
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(none).chain(std::env::split_paths(&rest)))?;
    build::must(context.repo.command("cargo", &words).env("PATH", path))?;
    Ok(vec![])
}

/// The package as a wheel has it; returns the directory for Python's path.
fn lay_together(context: &Context) -> Result<PathBuf> {
    let place = context.repo.target.join("python");
    let package = place.join("raas");
    if package.exists() {
        std::fs::remove_dir_all(&package)?;
    }
    std::fs::create_dir_all(&package)?;
    for entry in std::fs::read_dir(context.repo.root.join(PACKAGE).join("python/raas"))? {
        let path = entry?.path();
        if path.is_file() {
            std::fs::copy(&path, package.join(path.file_name().context("a file has a name")?))?;
        }
    }
    let native = programs::path(&context.repo, NATIVE[0]);
    std::fs::copy(&native, package.join(NATIVE[1])).with_context(|| format!("no {}", native.display()))?;
    Ok(place)
}

/// The tests, each a case.
fn pytest(context: &Context, place: &Path, tally: &mut Tally) -> Result<()> {
    let mut command = context.repo.command(PYTHON, &["-m", "pytest", "-v", "-rs", "-p", "no:cacheprovider"]);
    command.arg(context.repo.root.join(PACKAGE).join("tests")).env("PYTHONPATH", place);
    command.env("RAAS", programs::path(&context.repo, "raas")).env("PYTHONDONTWRITEBYTECODE", "1");
    let ended = child::run_quiet(&mut command, TESTS_LIMIT)?;
    let text = ended.text(Stream::Out);
    let (mut passed, mut findings) = (0, vec![]);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (name, verdict) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        match verdict {
            "PASSED" if name.contains("::") => passed += 1,
            "SKIPPED" if name.contains("::") => tally.skip(&format!("python: {name}"), line),
            _ => {}
        }
    }
    tally.passed += passed;
    println!("     {passed} tests of Python passed");
    if passed < CASES_MIN {
        findings.push(format!("{passed} tests passed, not at least {CASES_MIN}"));
    }
    if !ended.success() {
        findings.push(ended.describe());
        findings.extend(text.lines().map(str::to_owned));
        findings.push(ended.text(Stream::Err));
    }
    tally.case("python: the tests came to their end", ended.took, &findings);
    Ok(())
}

/// Builds the wheel, installs it as a user does, and connects with it.
fn wheel(context: &Context, tally: &mut Tally) -> Result<()> {
    let venv = context.repo.target.join("python-venv");
    let maturin = venv.join("bin/maturin");
    if !maturin.exists() {
        let made = child::run_quiet(Command::new(PYTHON).args(["-m", "venv"]).arg(&venv), PIP_LIMIT)?;
        let mut pip = Command::new(venv.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check", "maturin>=1.7,<2"]);
        let installed = made.success() && child::run_quiet(&mut pip, PIP_LIMIT).is_ok_and(|ended| ended.success());
        if !installed {
            tally.skip("python: the wheel", "maturin cannot be installed from PyPI into a virtual environment");
            return Ok(());
        }
    }
    tally.check("python: the wheel is built, has a stable ABI, and connects", || {
        let out = context.repo.target.join("wheels");
        if out.exists() {
            std::fs::remove_dir_all(&out)?;
        }
        let manifest = context.repo.root.join(PACKAGE).join("Cargo.toml");
        let mut wheel = context.repo.command(&maturin.to_string_lossy(), &["build", "--release", "--quiet", "--out"]);
        wheel.arg(&out).arg("--manifest-path").arg(manifest).args(["--compatibility", "linux"]);
        build::must(&mut wheel)?;
        let wheels: Vec<PathBuf> = std::fs::read_dir(&out)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        let [wheel] = &wheels[..] else { return Ok(vec![format!("the wheels are {wheels:?}")]) };
        if !wheel.to_string_lossy().contains(ABI) {
            return Ok(vec![format!("{} is not of the stable ABI: no `{ABI}`", wheel.display())]);
        }
        let mut pip = Command::new(venv.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-index", "--force-reinstall"]).arg(wheel);
        succeed(&mut pip, PIP_LIMIT)?;
        connects(context, &venv)
    });
    Ok(())
}

/// The wheel's package connects to itself, with a daemon of its own.
fn connects(context: &Context, venv: &Path) -> Result<Vec<String>> {
    let values = [("PYTHON", venv.join("bin/python").to_string_lossy().into_owned()), ("SMOKE", SMOKE.to_owned())];
    let ended = languages::under_daemon(context, "cd /\n\"$PYTHON\" -c \"$SMOKE\"", &values)?;
    Ok(languages::findings(&ended, "site-packages"))
}

fn succeed(command: &mut Command, limit: Duration) -> Result<()> {
    let ended = child::run_quiet(command, limit)?;
    ensure!(ended.success(), "{:?}: {}\n{}", command.get_program(), ended.describe(), ended.text(Stream::Err));
    Ok(())
}
