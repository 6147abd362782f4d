//! Programs in other languages, as cases of stage `python`: the example for Node under `raas run`, and with `--full` the one
//! for Go over libraas. Owns the scripts, each with a daemon of its own.

use crate::context::Context;
use anyhow::Result;
use harness::child::{self, Ended, Stream};
use harness::packages::{Need, install, lacking};
use harness::tally::Tally;
use harness::{build, programs};
use std::process::Command;
use std::time::Duration;

const SCRIPT_LIMIT: Duration = Duration::from_secs(10 * 60);
const NODE: &[Need] = &[("node", "nodejs")];
/// More than 200 MB when it is installed, so only with `--full`.
const GO: &[Need] = &[("go", "golang-go"), ("gcc", "gcc"), ("pkg-config", "pkg-config")];
/// A daemon that ends with the script, however that ends; `$d` is a directory of the script's.
const DAEMON: &str = r#"set -eu
d=$(mktemp -d)
mkfifo "$d/end" "$d/hold"
head -c 32 /dev/urandom > "$d/key"
chmod 600 "$d/key"
export RAAS_SOCKET="$d/sock"
"$RAAS" daemon --listen 127.0.0.1 --socket "$d/sock" --key-file "$d/key" --until-stdin-closes \
    < "$d/end" > "$d/ready" 2> "$d/log" & daemon=$!
server=
trap 'exec 9>&-; if [ "$server" ]; then kill $server 2>/dev/null || true; fi; rm -rf "$d"' EXIT
exec 9> "$d/end"
# until_says FILE TEXT PID: waits until a program has said something, as long as it lives.
until_says() { until grep -q "$2" "$1"; do kill -0 $3; sleep 0.05; done; }
until_says "$d/ready" ready $daemon
"#;
const NODE_SCRIPT: &str = r#"
"$RAAS" run node "$EXAMPLE" server 127.0.0.1 21960 > "$d/server" 9>&- & server=$!
until_says "$d/server" listening $server
"$RAAS" run node "$EXAMPLE" client 127.0.0.1 21960 10000000 < "$d/hold" > "$d/client" 9>&- & client=$!
exec 8> "$d/hold"
until_says "$d/client" "10000000 bytes came back" $client
"$RAAS" ss --json
exec 8>&-
wait $client
"#;
const GO_SCRIPT: &str = r#"
sh "$FFI/install.sh" "$LIBRARIES" "$d/prefix"
export PKG_CONFIG_PATH="$d/prefix/lib/pkgconfig" LD_LIBRARY_PATH="$d/prefix/lib" GOCACHE="$d/cache" GOFLAGS=-mod=mod
export GOPROXY=off
go build -o "$d/echo" "$FFI/examples/go/echo.go"
"$d/echo" server 21961 > "$d/server" 9>&- & server=$!
until_says "$d/server" listening $server
"$d/echo" client 127.0.0.1 21961 10000000
wait $server
server=
"#;

/// A script of the shell with a daemon.
pub(crate) fn under_daemon(context: &Context, script: &str, values: &[(&str, String)]) -> Result<Ended> {
    let mut command = Command::new("sh");
    command.arg("-c").arg([DAEMON, script].concat()).env("RAAS", programs::path(&context.repo, "raas"));
    command.envs(values.iter().map(|(name, value)| (name, value))).env_remove("PYTHONPATH");
    child::run_quiet(&mut command, SCRIPT_LIMIT)
}

/// What is wrong with the end of a script that must say `wanted`.
pub(crate) fn findings(ended: &Ended, wanted: &str) -> Vec<String> {
    let said = ended.text(Stream::Out);
    if ended.success() && said.contains(wanted) {
        return vec![];
    }
    vec![ended.describe(), format!("no `{wanted}` in: {said}"), ended.text(Stream::Err)]
}

/// What its programs need of Debian.
pub(crate) fn needs(full: bool) -> Vec<Need> {
    if full { [NODE, GO].concat() } else { NODE.to_vec() }
}

pub(crate) fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    programs::build(&context.repo)?;
    install(NODE);
    match &lacking(NODE)[..] {
        [] => tally.check("node: an echo under raas run, over shared memory, every byte checked", || {
            let example = context.repo.root.join("crates/client/raas-preload/examples/echo.js");
            let values = [("EXAMPLE", example.to_string_lossy().into_owned())];
            Ok(findings(&under_daemon(context, NODE_SCRIPT, &values)?, "\"path\":\"shm\""))
        }),
        lacking => tally.skip("node", &format!("{} is not there and cannot be installed", lacking.join(", "))),
    }
    if !context.full {
        return Ok(());
    }
    install(GO);
    match &lacking(GO)[..] {
        [] => tally.check("go: an echo over libraas, every byte checked", || {
            build::must(&mut context.repo.command("cargo", &["build", "--release", "--package", "raas-ffi"]))?;
            let (ffi, libraries) = (context.repo.root.join("crates/client/ffi"), context.repo.target.join("release"));
            let values = [("FFI", ffi), ("LIBRARIES", libraries)];
            let values = values.map(|(name, path)| (name, path.to_string_lossy().into_owned()));
            Ok(findings(&under_daemon(context, GO_SCRIPT, &values)?, "10000000 bytes came back"))
        }),
        lacking => tally.skip("go", &format!("{} is not there and cannot be installed", lacking.join(", "))),
    }
    Ok(())
}
