//! The rivals' own benchmark programs: ucx_perftest and fi_pingpong. Owns their installation, their settings and the
//! reading of their tables.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::measured::Measured;
use super::place::{End, INTERFACE, Place, at};
use super::process::Beside;
use harness::child::{self, Stream};
use harness::packages;
use harness::repo::Repo;

/// The programs, and the Debian packages that have them.
const NEEDS: [packages::Need; 2] = [("ucx_perftest", "ucx-utils"), ("fi_pingpong", "libfabric-bin")];
/// One run of a rival, on a machine that is busy too.
const RUN_LIMIT: Duration = Duration::from_secs(30);
/// How long a rival's server needs to listen; it says nothing when it does.
const LISTEN: Duration = Duration::from_millis(150);
/// Ports of their control connections.
const UCX_PORT: u16 = 14_555;
/// Counts runs over iceoryx2.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// A load of a rival.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rival {
    /// ucx_perftest: test, bytes, iterations.
    Ucx(&'static str, u32, u32),
    /// fi_pingpong: provider, endpoint type, bytes, iterations. It has no stream; ping-pongs of large messages stand
    /// for it.
    Libfabric(&'static str, &'static str, u32, u32),
    /// A ping-pong of ours over iceoryx2 (bench/iceoryx2): bytes, seconds.
    Iceoryx2(u32, u32),
}

/// The program over iceoryx2, in a build directory of its own.
const ICEORYX2: &str = "target/iceoryx2/release/iceoryx2-pingpong";
const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);

/// Builds the program over iceoryx2, which needs libclang; says why it is not there.
pub(crate) fn build_iceoryx2(repo: &Repo) -> Option<String> {
    let arguments = ["build", "--release", "--manifest-path", "bench/iceoryx2/Cargo.toml"];
    let mut command = repo.command("cargo", &[&arguments[..], &["--target-dir", "target/iceoryx2"]].concat());
    let why = match child::run_quiet(&mut command, BUILD_LIMIT) {
        Ok(built) if built.success() => return None,
        Ok(built) => {
            let text = built.text(Stream::Err);
            text.lines().find(|line| line.contains("error")).unwrap_or("the build failed").trim().to_owned()
        }
        Err(e) => e.to_string(),
    };
    Some(format!("iceoryx2: bench/iceoryx2 cannot be built: {why}"))
}

/// Installs what is not there, where this may be. To be called where there is a network.
pub(crate) fn install() {
    packages::install(&NEEDS);
}

/// Says what is missing.
pub(crate) fn missing() -> Vec<String> {
    let missing = NEEDS.iter().filter(|(program, _)| !packages::is_here(program));
    missing
        .map(|(program, package)| format!("{program}: not here, and Debian's {package} cannot be installed"))
        .collect()
}

impl Rival {
    /// Whether its program is here.
    pub(crate) fn is_here(self) -> bool {
        match self {
            Self::Ucx(..) => packages::is_here("ucx_perftest"),
            Self::Libfabric(..) => packages::is_here("fi_pingpong"),
            Self::Iceoryx2(..) => Path::new(ICEORYX2).is_file(),
        }
    }

    /// One run: a server, then a client.
    pub(crate) fn measure(self, place: &Place) -> Result<Measured> {
        let (server, client) = self.words(place);
        let start = |end, words: &[String]| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut command = place.command(end, &words);
            command.env("UCX_TLS", if place.is_two_hosts() { "tcp" } else { "posix" });
            if place.is_two_hosts() {
                command.env("UCX_NET_DEVICES", INTERFACE);
            }
            command.env("FI_LOG_LEVEL", "error").env("UCX_WARN_UNUSED_ENV_VARS", "n");
            command
        };
        let serving = Beside::start(&mut start(End::Server, &server))?;
        std::thread::sleep(LISTEN);
        let ended = child::run_quiet(&mut start(End::Client, &client), RUN_LIMIT)?;
        drop(serving);
        if let Self::Iceoryx2(..) = self {
            ensure!(ended.success(), "iceoryx2: {}\n{}", ended.describe(), ended.text(Stream::Err));
            let report = serde_json::from_str(&ended.text(Stream::Out)).context("its report is not JSON")?;
            return Ok(Measured::of_report(&report));
        }
        let text = ended.text(Stream::Out);
        ensure!(ended.success(), "{}: {}\n{text}{}", client.join(" "), ended.describe(), ended.text(Stream::Err));
        match self {
            Self::Ucx(_, bytes, _) => parse_ucx(&text, bytes),
            Self::Libfabric(_, _, bytes, _) => parse_fabric(&text, bytes),
            Self::Iceoryx2(..) => None,
        }
        .with_context(|| format!("{}: {text}", client.join(" ")))
    }

    fn words(self, place: &Place) -> (Vec<String>, Vec<String>) {
        let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
        match self {
            Self::Ucx(test, bytes, iterations) => {
                let port = UCX_PORT.to_string();
                let server = own(&["ucx_perftest", "-p", &port]);
                let (bytes, iterations) = (bytes.to_string(), iterations.to_string());
                let warm_up = "100";
                let mut client = own(&["ucx_perftest", "-p", &port, "-f", "-w", warm_up]);
                client.extend(own(&["-t", test, "-s", &bytes, "-n", &iterations, place.server()]));
                (server, client)
            }
            Self::Libfabric(provider, kind, bytes, iterations) => {
                let (bytes, iterations) = (bytes.to_string(), iterations.to_string());
                let server = own(&["fi_pingpong", "-p", provider, "-e", kind, "-S", &bytes, "-I", &iterations]);
                let mut client = server.clone();
                client.push(place.server().to_owned());
                (server, client)
            }
            Self::Iceoryx2(bytes, seconds) => {
                // A name of its own for each run: what a server that was ended left behind is another's.
                let name = format!("raas-bench/{}/{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
                let (bytes, seconds) = (bytes.to_string(), seconds.to_string());
                (own(&[ICEORYX2, "server", &name, &bytes]), own(&[ICEORYX2, "client", &name, &bytes, &seconds]))
            }
        }
    }
}

/// The line `Final: iterations median average overall | bandwidth average overall | rate average overall`; MB are 2^20.
fn parse_ucx(text: &str, bytes: u32) -> Option<Measured> {
    let line = text.lines().rev().find_map(|line| {
        let line = line.trim();
        line.strip_prefix("Final:").or_else(|| line.chars().next().filter(char::is_ascii_digit).map(|_| line))
    })?;
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [_, median, _, _, _, _, _, rate] = numbers[..] else { return None };
    Some(Measured {
        half_rtt_us: Some(median),
        p50_us: Some(median),
        msgs_per_s: Some(rate),
        gbit_per_s: Some(rate * f64::from(bytes) * 8.0 / 1e9),
        ..Measured::default()
    })
}

/// The line `bytes sent ack total time MB/sec usec/xfer Mxfers/sec`; MB are 10^6.
fn parse_fabric(text: &str, bytes: u32) -> Option<Measured> {
    let line = text.lines().last()?;
    let us: f64 = line.split_whitespace().nth(6)?.parse().ok()?;
    let gbit_per_s = f64::from(bytes) * 8.0 / us / 1e3;
    Some(Measured { half_rtt_us: Some(us), p50_us: Some(us), gbit_per_s: Some(gbit_per_s), ..Measured::default() })
}

/// Where a server of ours listens.
pub(crate) fn any_port(place: &Place) -> String {
    at(place.server(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_ucx_are_read() {
        let text = "|  heading |\nFinal:                300000      0.155     5.258    25.501       11.61       2.39      190178       39215\n";
        let found = parse_ucx(text, 64).expect("a final line");
        assert_eq!((found.p50_us, found.msgs_per_s), (Some(0.155), Some(39_215.0)));
        assert!((found.gbit_per_s.expect("a rate") - 39_215.0 * 512.0 / 1e9).abs() < 1e-9);
        assert!(parse_ucx("nothing", 64).is_none());
    }

    #[test]
    fn tables_of_libfabric_are_read() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n64      20k     =20k     2.4m        6.63s      0.39     165.76       0.01";
        let found = parse_fabric(text, 64).expect("a line");
        assert_eq!(found.half_rtt_us, Some(165.76));
        assert!(parse_fabric("", 64).is_none());
    }
}
