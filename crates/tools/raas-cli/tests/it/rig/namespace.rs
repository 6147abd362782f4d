//! A network namespace of the test's own, without any right on the host: the test program starts itself again in it.

use std::process::{Command, Stdio};

use super::{Running, WATCHDOG};

/// Says to this program, started again, that it is inside.
const INSIDE: &str = "RAAS_TEST_INSIDE_NAMESPACE";

fn inside(addresses: &[&str], program: impl AsRef<std::ffi::OsStr>) -> Command {
    let add = |address: &&str| {
        let family = if address.contains(':') { "-6 addr add {}/128 dev lo nodad" } else { "addr add {}/32 dev lo" };
        format!("ip {}\n", family.replace("{}", address))
    };
    let addresses: String = addresses.iter().map(add).collect();
    let script = format!("set -e\nip link set lo up\n{addresses}exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--fork", "--kill-child", "--", "sh", "-c", &script, "sh"]);
    command.arg(program).stdin(Stdio::null());
    command
}

/// Runs the body of the test `name` in a namespace whose loopback interface has these addresses. Where this machine lets
/// nobody make one it says that the test was skipped, and fails under `CI=true`.
pub(crate) fn in_namespace(name: &str, addresses: &[&str], body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let why = match inside(addresses, "true").output() {
        Ok(out) if out.status.success() => None,
        Ok(out) => Some(String::from_utf8_lossy(&out.stderr).trim().to_owned()),
        Err(e) => Some(format!("no `unshare`: {e}")),
    };
    if let Some(why) = why {
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!ci, "no namespace with {addresses:?} here: {why}");
        eprintln!("SKIP {name}: no namespace with {addresses:?} here: {why}");
        return;
    }
    let mut again = inside(addresses, std::env::current_exe().unwrap());
    // Its own watchdogs say what it waits for, so they come first.
    let again = Running::start(again.args(["--exact", name, "--nocapture"]).env(INSIDE, "1"));
    let ended = again.end_within(4 * WATCHDOG);
    assert_eq!(ended.code(), 0, "{ended:?}");
    assert!(ended.stdout.contains("1 passed"), "{ended:?}");
    eprint!("{}", ended.stderr);
}
