//! A TCP program as anybody writes it: it knows std::net and nothing of RaaS. A server sends back what comes, a client
//! measures that. The demo starts both as they are, and under `raas run`, which is the only difference.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use control::PathKind;
use serde_json::{Value, json};

use super::MESSAGE_BYTES;
use super::app::{die_with, failure};
use super::cleanup::Cleanup;
use super::host::Host;
use terminal::{Failure, out};
use transport::load::{self, Content};

/// How long round trips are measured.
const TIME: Duration = Duration::from_millis(600);
/// How long the programs may take to start, to measure and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// One end of the program.
#[derive(Debug, Clone, Copy)]
pub struct Echo {
    /// The process that must live for it to live.
    pub parent: u32,
    /// The server's address.
    pub ip: IpAddr,
    /// The server's port; none makes this the server.
    pub port: Option<u16>,
}

/// Runs one end to its end.
pub fn run_echo(echo: &Echo) -> Result<(), Failure> {
    die_with(echo.parent)?;
    let done = match echo.port {
        None => serve(echo.ip),
        Some(port) => measure(SocketAddr::new(echo.ip, port)),
    };
    done.map_err(|e| failure("echo", &e))
}

fn serve(ip: IpAddr) -> io::Result<()> {
    let listener = TcpListener::bind((ip, 0))?;
    transport::set_congestion(&listener)?;
    println(&listener.local_addr()?.port().to_string())?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    load::echo(&stream, MESSAGE_BYTES, Content::Numbered)?;
    // The client ends it.
    stream.read(&mut [0]).map(drop)
}

fn measure(to: SocketAddr) -> io::Result<()> {
    let stream = TcpStream::connect(to)?;
    transport::set_congestion(&stream)?;
    stream.set_nodelay(true)?;
    let latencies = load::ping_pong(&stream, MESSAGE_BYTES, Content::Numbered, TIME)?;
    let (p50_us, p99_us) = (latencies.us(0.5), latencies.us(0.99));
    println(&json!({"p50_us": p50_us, "p99_us": p99_us, "round_trips": latencies.count()}).to_string())?;
    // The connection stays until the demo has seen how its bytes travel.
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn println(line: &str) -> io::Result<()> {
    out::line(line).map(drop).map_err(|e| io::Error::other(e.to_string()))
}

/// Runs both ends at `ip`, under `raas run` if a daemon is given, which must say that they share memory; gives what the
/// client measured.
pub(super) fn run_both(cleanup: &Cleanup, ip: IpAddr, under: Option<&Host<'_>>) -> Result<Value, Failure> {
    let start = |port: Option<&str>| {
        let own = std::env::current_exe()?;
        let mut command = Command::new(&own);
        if let Some(host) = under {
            command.args(["run", "--strict", "--socket"]).arg(&host.socket).arg("--").arg(&own);
        }
        command.args(["demo-echo", "--parent", &std::process::id().to_string(), "--ip", &ip.to_string()]);
        command.args(port.into_iter().flat_map(|port| ["--port", port]));
        cleanup.spawn_lines(&mut command)
    };
    let until = Instant::now() + PATIENCE;
    let failed = |who: &str, how: String| Failure::Failed(format!("the {who} of the TCP program {how}"));
    let ended = |who: &str, pid: u32| match cleanup.wait(pid, until) {
        Some(status) if status.success() => Ok(()),
        Some(status) if status.code() == Some(i32::from(Failure::Unverified(String::new()).code())) => {
            Err(Failure::Unverified(format!("the {who} of the TCP program got other bytes than were sent")))
        }
        Some(status) => Err(failed(who, format!("ended with {status}: see its message above"))),
        None => Err(failed(who, format!("did not end within {PATIENCE:?}"))),
    };
    let says = |who: &str, pid: u32, lines: &mpsc::Receiver<String>| match lines.recv_timeout(PATIENCE) {
        Ok(line) => Ok(line),
        Err(_) => ended(who, pid).and(Err(failed(who, "says nothing".into()))),
    };
    let (server, _server_stdin, lines) = start(None)?;
    let port = says("server", server, &lines)?;
    let (client, client_stdin, lines) = start(Some(&port))?;
    let measured = says("client", client, &lines)?;
    if let Some(host) = under {
        host.check_paths(PathKind::Shm, 2, &[server, client]).map_err(Failure::Failed)?;
    }
    drop(client_stdin);
    ended("client", client)?;
    ended("server", server)?;
    serde_json::from_str(&measured).map_err(|e| failed("client", format!("says `{measured}`: {e}")))
}
