//! A network namespace for a judge and all that it starts.
//!
//! Owns how the judge gets there: it starts itself again. It must never touch an interface of the host.

use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::host::WATCHDOG;

/// Set in the process that is already in a namespace of its own.
const INSIDE: &str = "RAAS_HOSTILE_INSIDE";

/// Where this program goes on.
#[derive(Debug)]
pub enum Entered {
    /// This process is in a namespace of its own.
    Inside,
    /// It was started again in one, and has ended.
    Ended(ExitStatus),
    /// None can be made here, for this reason.
    Impossible(String),
}

fn unshare(with_user: bool) -> Command {
    let mut command = Command::new("unshare");
    command.arg("--net");
    if with_user {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--fork", "--kill-child", "--", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    command
}

/// Starts this very command again in a network namespace of its own, unless it is there already. A user other than root
/// gets one in a user namespace, which needs no right where the system allows them.
pub fn enter() -> Result<Entered> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(Entered::Inside);
    }
    for program in ["unshare", "nsenter", "setpriv", "ip"] {
        let found = Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if let Err(error) = found {
            return Ok(Entered::Impossible(format!("no `{program}`: {error}")));
        }
    }
    let mut why = String::new();
    for with_user in [false, true] {
        let tried = unshare(with_user).arg("true").stdin(Stdio::null()).output()?;
        if tried.status.success() {
            let mut again = unshare(with_user);
            again.arg(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(INSIDE, "1");
            return Ok(Entered::Ended(again.status().context("cannot start `unshare`")?));
        }
        String::from_utf8_lossy(&tried.stderr).trim().clone_into(&mut why);
    }
    Ok(Entered::Impossible(format!("no network namespace: {why}")))
}

/// Runs a command that sets something up.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let start = Instant::now();
    loop {
        let ended = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
        let said = String::from_utf8_lossy(&ended.stderr);
        match ended.status.success() {
            true => return Ok(()),
            // The kernel takes interfaces of a namespace down in its own time.
            false if said.contains("Device or resource busy") && start.elapsed() < WATCHDOG => {
                std::thread::sleep(Duration::from_millis(20));
            }
            false => bail!("{command:?}: {}", said.trim()),
        }
    }
}
