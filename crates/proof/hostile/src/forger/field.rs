//! Two network namespaces with a wire between them. The user of the run makes them for that run.
//!
//! Owns the processes that hold them: nothing is left when they end. It must never touch an interface of the host.

use std::ffi::OsStr;
use std::io::Write;
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::namespace::run;

/// The wire has this name on both sides.
const INTERFACE: &str = "forger0";
/// A user that owns nothing: `nobody` of most systems.
const NOBODY: &str = "65534";

/// Addresses of the two hosts, of the range for private use.
pub(super) const ADDRESSES: [&str; 2] = ["10.98.0.1", "10.98.0.2"];

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
