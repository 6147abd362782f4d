//! What a page gives to a shell, run from its first block to its last, as it is pasted: in a network of its own, with a home
//! of its own, and the `raas` that all tests have on the path. Owns the shell and everything that it starts.

use crate::blocks::{Block, all_blocks};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A page whose blocks still run after this hangs.
const LIMIT: Duration = Duration::from_secs(300);
/// Programs of other people that pages use.
const PROGRAMS: &[&str] = &["redis-server", "redis-benchmark", "redis-cli", "memcached", "nginx", "curl", "python3"];
/// `sleep 1` is enough for a person; a machine that is busy with tests needs more until a server listens.
const PRELUDE: &str = "set -euo pipefail\nsleep() { command sleep 5; }\nip link set lo up\n";
/// Pages of Use begin where Start has ended: a daemon is there.
const DAEMON: &str = "raas daemon --log warn & sleep 1\n";

/// One page's blocks.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) name: String,
    script: String,
}

/// What came of a page.
#[derive(Debug)]
pub(crate) enum Verdict {
    Works,
    /// A program that is not here.
    Lacks(&'static str),
    Fails(String),
}

/// README and the pages of Start and Use that have blocks for a shell.
pub(crate) fn pages() -> Vec<Page> {
    let wanted = |block: &Block| {
        let place = ["docs/start/", "docs/use/"].iter().any(|folder| block.page.starts_with(folder));
        (place || block.page == "README.md") && block.words == ["sh"]
    };
    let mut pages: Vec<Page> = vec![];
    for block in all_blocks().into_iter().filter(wanted) {
        match pages.last_mut().filter(|page| page.name == block.page) {
            Some(page) => page.script.push_str(&block.text),
            None => pages.push(Page { name: block.page, script: block.text }),
        }
    }
    pages
}

/// Runs the page's blocks to their end.
pub(crate) fn run(page: &Page) -> Verdict {
    let has_word = |name: &str| page.script.split(|c: char| !c.is_alphanumeric() && c != '-').any(|word| word == name);
    if let Some(missing) = PROGRAMS.iter().find(|name| has_word(name) && !is_here(name)) {
        return Verdict::Lacks(missing);
    }
    if !is_here("unshare") || !is_here("ip") {
        return Verdict::Lacks("unshare or ip");
    }
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::create_dir(dir.path().join("run")).unwrap();
    std::os::unix::fs::symlink(built("raas"), bin.join("raas")).unwrap();
    let daemon = if page.script.contains("raas daemon") { "" } else { DAEMON };
    let log = dir.path().join("log");
    let mut shell = Command::new("unshare");
    shell.args(["--user", "--map-root-user", "--net", "--", "bash", "-c"]);
    shell.arg([PRELUDE, daemon, &page.script].concat()).current_dir(dir.path()).process_group(0);
    shell.env("HOME", dir.path()).env("XDG_RUNTIME_DIR", dir.path().join("run")).env_remove("RAAS_SOCKET");
    shell.env("PATH", format!("{}:{}:/usr/sbin", bin.display(), std::env::var("PATH").unwrap_or_default()));
    let file = File::create(&log).unwrap();
    shell.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    let mut running = shell.spawn().unwrap();
    let group = i32::try_from(running.id()).ok().and_then(Pid::from_raw).unwrap();
    let begin = Instant::now();
    let ended = loop {
        match running.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if begin.elapsed() > LIMIT => break None,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    // The daemon and the servers that the page left running.
    let _ = kill_process_group(group, Signal::KILL);
    let _ = running.wait();
    match ended {
        Some(status) if status.success() => Verdict::Works,
        Some(status) => Verdict::Fails(format!("{status}\n{}", told(&log))),
        None => Verdict::Fails(format!("its blocks still run after {} s\n{}", LIMIT.as_secs(), told(&log))),
    }
}

fn told(log: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned()
}

/// A program of this repository, beside this test.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(Path::parent).unwrap().join(name);
    assert!(path.exists(), "no {}: build the whole workspace", path.display());
    path
}

fn is_here(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|dir| dir.join(name).is_file())
}
