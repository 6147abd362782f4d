//! `raas send` and `raas recv`: one stream of bytes from one program to the other. The sender half-closes after its
//! last byte and ends well only after the receiver has taken everything and closed in order. Over kernel TCP, where a
//! process that was killed closes in order too, the receiver says with one byte that everything is written.

mod leftover;
mod target;

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use target::Target;
use terminal::Failure;
use terminal::out;
use transport::{Accept, Connection, Duplex, Transport, stream_failure};

/// Bytes copied at once.
const COPY_BYTES: usize = 256 << 10;
/// How long a connection may take to be made. The daemon gives up before, as it is configured (`connect_timeout_ms`), and
/// kernel TCP at about this time by itself.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(130);
/// What a receiver answers over kernel TCP when everything is written: ASCII's ACK.
const WRITTEN: u8 = 6;
/// How often a waiting receiver looks around.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends `file` (`-` is stdin) to the first of these hosts that answers.
pub(crate) fn send<T: Transport>(transport: &T, file: &Path, hosts: &[SocketAddr]) -> Result<(), Failure> {
    // The file first: a wrong name must not disturb the receiver.
    let mut source = open_source(file)?;
    let (stream, to) = connect(transport, hosts)?;
    let bar = progress_bar("sending", source.bytes);
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let n = match source.reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Failure::failed(source.name, e)),
        };
        let part = buffer.get(..n).unwrap_or_default();
        stream.send_all(part).map_err(|e| stream_failure(format!("sending to {to}"), &e))?;
        bar.inc(n as u64);
    }
    stream.finish_sending().map_err(|e| stream_failure(format!("sending to {to}"), &e))?;
    let mut answer = [0; 1];
    match (stream.recv(&mut answer), stream.fallback()) {
        (Ok(0), None) => {}
        (Ok(1), Some(_)) if answer == [WRITTEN] => {}
        (Ok(0), Some(_)) => return Err(Failure::Failed(format!("{to} ended before everything was written"))),
        (Ok(_), _) => return Err(Failure::Failed(format!("{to} sent bytes back: that is no `raas recv`"))),
        (Err(e), _) => return Err(stream_failure(format!("{to} did not take everything"), &e)),
    }
    bar.finish();
    Ok(())
}

/// Connects to the first that answers. If none does the failure is that of the last one.
fn connect<T: Transport>(transport: &T, hosts: &[SocketAddr]) -> Result<(T::Stream, SocketAddr), Failure> {
    let mut failure = Failure::Usage("the name has no address".into());
    for to in hosts {
        match transport.connect(*to, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok((stream, *to)),
            Err(e) => failure = e,
        }
    }
    Err(failure)
}

/// Accepts one connection at `at` and writes its bytes to `output` (`-` is stdout).
pub(crate) fn recv<T: Transport>(transport: &T, at: SocketAddr, output: &Path) -> Result<(), Failure> {
    let mut target = Target::open(output)?;
    let listener = transport.listen(at)?;
    out::say(format_args!("listening on {}", listener.local_addr()));
    let stream = loop {
        if let Some(stream) = listener.accept_timeout(ACCEPT_TIMEOUT)? {
            break stream;
        }
    };
    // Nobody else is wanted: a second sender is refused instead of left waiting.
    drop(listener);
    let from = stream.peer_addr();
    if let Some(cause) = stream.fallback() {
        out::say(format_args!("raas: from {from} over kernel TCP ({}): {cause}", raas::Reason::TcpFallback.key()));
    }
    let bar = progress_bar("receiving", None);
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let n = match stream.recv(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(stream_failure(format!("receiving from {from}"), &e)),
        };
        let part = buffer.get(..n).unwrap_or_default();
        target.write_all(part)?;
        bar.inc(n as u64);
    }
    target.finish()?;
    bar.finish();
    if stream.fallback().is_some() {
        stream.send_all(&[WRITTEN]).map_err(|e| stream_failure(format!("answering {from}"), &e))?;
    }
    // The sender gets the end only now, when every byte is out of this process.
    stream.finish_sending().map_err(|e| stream_failure(format!("closing with {from}"), &e))
}

struct Source {
    reader: File,
    name: String,
    bytes: Option<u64>,
}

fn open_source(path: &Path) -> Result<Source, Failure> {
    if path == Path::new("-") {
        // The descriptor itself: bytes go on as they come, not by lines or small buffers.
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        return Ok(Source { reader: stdin.into(), name: "stdin".into(), bytes: None });
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|e| Failure::Usage(format!("{name}: {e}")))?;
    let metadata = file.metadata().map_err(|e| Failure::Usage(format!("{name}: {e}")))?;
    if metadata.is_dir() {
        return Err(Failure::Usage(format!("{name} is a directory; `tar c {name} | raas send - HOST:PORT` sends it")));
    }
    let bytes = metadata.is_file().then_some(metadata.len());
    Ok(Source { reader: file, name, bytes })
}

/// A bar on a terminal, nothing elsewhere: stderr of a script stays clean.
fn progress_bar(what: &'static str, total_bytes: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match total_bytes {
        Some(total) => (
            ProgressBar::new(total),
            "{msg} [{bar:40}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
        ),
        None => (ProgressBar::new_spinner(), "{msg} {decimal_bytes} {decimal_bytes_per_sec}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.with_message(what)
}
