//! Two network namespaces with a wire between them. The user of the run makes them for that run.
//!
//! Owns the processes that hold them: nothing is left when they end. It must never touch an interface of the host.

use std::ffi::OsStr;
use std::io::Write;
use std::net::IpAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::host::WATCHDOG;

/// Set in the process that is already in a namespace of its own.
const INSIDE: &str = "RAAS_FORGER_INSIDE";
/// The wire has this name on both sides.
const INTERFACE: &str = "forger0";
/// A user that owns nothing: `nobody` of most systems.
const NOBODY: &str = "65534";

/// Addresses of the two hosts, of the range for private use.
pub(super) const ADDRESSES: [&str; 2] = ["10.98.0.1", "10.98.0.2"];

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

/// The other host's namespace, and the wire.
#[derive(Debug)]
pub(super) struct Field {
    holder: Child,
}

impl Field {
    /// Host 0 is where this process is.
    pub(super) fn make() -> Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", "ip link set lo up && cat"]);
        let holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start `unshare`")?;
        let mut field = Self { holder };
        // The answer comes from a process that is inside.
        if let (Some(stdin), Some(stdout)) = (&mut field.holder.stdin, &mut field.holder.stdout) {
            stdin.write_all(b"here")?;
            std::io::Read::read_exact(stdout, &mut [0; 4]).context("the other namespace does not come up")?;
        }
        let pid = field.holder.id().to_string();
        run(Command::new("ip")
            .args(["link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", &pid]))?;
        for (host, address) in ADDRESSES.iter().enumerate() {
            let ip = |words: &[&str]| run(field.command(host, "ip").args(words));
            ip(&["address", "add", &format!("{address}/24"), "dev", INTERFACE])?;
            ip(&["link", "set", INTERFACE, "up"])?;
        }
        Ok(field)
    }

    /// A command at a host.
    pub(super) fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        if host == 0 {
            return Command::new(program);
        }
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).arg("--").arg(program);
        command
    }

    /// A command at host 1 as a user who owns nothing and may do nothing. An error says why there is no such user.
    pub(super) fn as_nobody(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let user = [&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups", "--no-new-privs"];
        let tried = self.command(1, "setpriv").args(user).arg("true").output()?;
        ensure!(tried.status.success(), "{}", String::from_utf8_lossy(&tried.stderr).trim());
        let mut command = self.command(1, "setpriv");
        command.args(user).arg("--").arg(program);
        Ok(command)
    }

    /// A command at host 1 without any right over its namespace, where there is one user only.
    pub(super) fn without_rights(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command(1, "setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]).arg(program);
        command
    }

    /// The addresses of the hosts.
    pub(super) fn addresses() -> Result<[IpAddr; 2]> {
        Ok([ADDRESSES[0].parse()?, ADDRESSES[1].parse()?])
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn run(command: &mut Command) -> Result<()> {
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
