//! Stage `verbs`: programs that use verbs, as Debian has them, under `raas verbs`: two processes at one address of a network
//! namespace that has nothing but loopback, and no RDMA.
//!
//! Owns the cells, and what each must show. It must never install a package: they are unpacked under `target`.

mod cells;
mod judges;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::child::{self, Ended, Stream};
use harness::packages::Need;
use harness::repo::Repo;
use harness::tally::Tally;

use cells::Cell;

/// One cell, on a machine that is busy too.
const CELL_LIMIT: Duration = Duration::from_secs(120);
/// Starts the server, waits until it listens, and starts the client. A server that waits for nobody is enough by itself.
/// The port is 18515 (0x4853), that of all these programs.
const PAIR: &str = r#"
ip link set lo up
server() { $RAAS verbs --why $1; }
if [ -z "$2" ]; then server "$1"; exit $?; fi
if [ -n "$KILLED" ]; then
  $RAAS verbs --why $1 & victim=$!
  for i in $(seq 400); do grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 && break; sleep 0.05; done
  kill -9 $victim; wait $victim 2>/dev/null
  for i in $(seq 400); do grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 || break; sleep 0.05; done
fi
server "$1" & served=$!
for i in $(seq 400); do
  grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 && break
  kill -0 $served 2>/dev/null || break
  sleep 0.05
done
$RAAS verbs --why $2; client=$?
wait $served || { echo "server: exit code $?"; exit 1; }
exit $client
"#;
/// As nobody, without capabilities, and with no way to get any.
const NOBODY: [&str; 6] =
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs"];

/// What the stage needs of Debian, beside the programs that it unpacks.
pub fn needs(_full: bool) -> Vec<Need> {
    vec![("unshare", "util-linux"), ("setpriv", "util-linux"), ("ip", "iproute2"), ("dpkg", "dpkg")]
}

/// The stage.
pub fn run_stage(repo: &Repo, full: bool) -> Result<Tally> {
    let mut tally = Tally::default();
    let root = match judges::unpacked(repo)? {
        Ok(root) => root,
        Err(why) => {
            tally.skip("verbs: programs of Debian", &why);
            return Ok(tally);
        }
    };
    let raas = built(repo)?;
    for cell in cells::all(full) {
        tally.check(&format!("verbs: {}", cell.name()), || {
            let ended = run_one(&root, &raas, &cell)?;
            Ok(cell.findings(&ended))
        });
    }
    Ok(tally)
}

/// `raas`, with the library beside it.
fn built(repo: &Repo) -> Result<std::path::PathBuf> {
    if let Some(named) = std::env::var_os("RAAS_VERBS_JUDGED") {
        return Ok(named.into());
    }
    harness::programs::build(repo)?;
    harness::build::must(&mut repo.command("cargo", &["build", "-p", "ibverbs", "--bin", "raas-libibverbs"]))?;
    Ok(harness::programs::path(repo, "raas"))
}

/// Runs a cell in a network namespace of its own.
fn run_one(root: &Path, raas: &Path, cell: &Cell) -> Result<Ended> {
    let mut command = Command::new("unshare");
    command.arg("--net");
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--", "bash", "-c"]);
    match cell.is_nobodys() && is_root {
        // Loopback is set up before the rights go.
        true => {
            command.arg(format!("ip link set lo up; exec {} bash -c \"$0\" bash \"$@\"", NOBODY.join(" "))).arg(PAIR)
        }
        false => command.arg(PAIR).arg("bash"),
    };
    command.args([cell.server(), cell.client()]);
    let folders =
        ["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"];
    let libraries: Vec<_> = folders.map(|folder| root.join(folder).display().to_string()).to_vec();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("LD_LIBRARY_PATH", libraries.join(":"));
    command.env("PATH", format!("{}:{path}", root.join("usr/bin").display()));
    command.env("RAAS", raas).env_remove("XDG_RUNTIME_DIR");
    if cell.is_killed_first() {
        command.env("KILLED", "1");
    }
    child::run_quiet(&mut command, CELL_LIMIT).context("cannot start `unshare`")
}

/// What both sides said.
fn words(ended: &Ended) -> String {
    format!("{}\n{}", ended.text(Stream::Out), ended.text(Stream::Err))
}
