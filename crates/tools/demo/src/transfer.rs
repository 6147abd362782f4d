//! How an application of the demo sends and receives on hundreds of connections with a few threads.
//!
//! Work goes in *turns*: turn k of a stream is its bytes k * [`TURN_BYTES`] and on. A pool of sending threads and a
//! pool of receiving threads each walk their connections turn by turn, in the order (turn, connection number), at both
//! ends of every connection. That order is total, so threads never wait in a circle: both threads of the first piece of
//! work that is not done work on it. All connections are in use at once. Rings and socket buffers even out the
//! differences.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::links::Links;
use super::protocol::{AppLink, FileRecord};
use super::stream::{self, Arrived, FILE_HEADER_BYTES, FileDigest, STREAM_HEADER_BYTES, StreamParser, TRAILER_BYTES};
use transport::Duplex;

/// Bytes of a stream that are sent before the next connection's turn.
pub(crate) const TURN_BYTES: usize = 256 << 10;
/// Threads that send, and threads that receive, in one application.
pub(crate) const POOL_THREADS_MAX: usize = 4;

/// A file to be sent, its digest computed from the file in a pass of its own.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    /// The file's number.
    pub(crate) file: u32,
    /// Opened for each turn, so that no descriptor is held for a thousand files.
    pub(crate) path: std::path::PathBuf,
    /// Its size when the digest was computed.
    pub(crate) bytes: u64,
    /// Its digest.
    pub(crate) digest: FileDigest,
}

/// What all threads of a transfer share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Bytes received so far.
    pub(crate) received_bytes: AtomicU64,
    /// A thread failed: the others stop at their next piece.
    pub(crate) stop: AtomicBool,
}

/// Sends and receives everything; gives the records of what was sent and of what arrived.
pub(crate) fn run<S: Duplex>(
    open: &Links<S>,
    links: &[AppLink],
    files: &BTreeMap<u32, Outgoing>,
    shared: &Shared,
) -> Result<(Vec<FileRecord>, Vec<FileRecord>), String> {
    let pool = |thread: usize| move |l: &&AppLink| l.peer.app as usize % POOL_THREADS_MAX == thread;
    std::thread::scope(|scope| {
        let mut sending = Vec::new();
        let mut receiving = Vec::new();
        for thread in 0..POOL_THREADS_MAX {
            let mine: Vec<&AppLink> = links.iter().filter(pool(thread)).collect();
            if mine.is_empty() {
                continue;
            }
            let theirs = mine.clone();
            sending.push(scope.spawn(move || guarded(shared, || send_all(open, &mine, files, shared))));
            receiving.push(scope.spawn(move || guarded(shared, || receive_all(open, &theirs, shared))));
        }
        let gather = |threads: Vec<std::thread::ScopedJoinHandle<'_, Result<Vec<FileRecord>, String>>>| {
            let results = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a thread panicked".into())));
            // All threads are joined before the first error is reported.
            results.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>, _>>().map(|parts| parts.concat())
        };
        let (sent, received) = (gather(sending), gather(receiving));
        // The receiver's error says more than the "stopped" of a sender that it made stop, and the other way round.
        match (sent, received) {
            (Ok(sent), Ok(received)) => Ok((sent, received)),
            (Err(a), Err(b)) if a == STOPPED => Err(b),
            (Err(a), _) => Err(a),
            (_, Err(b)) => Err(b),
        }
    })
}

/// What a thread says that ended because another one failed.
const STOPPED: &str = "stopped";

fn guarded<R>(shared: &Shared, work: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    let result = work();
    if result.is_err() {
        shared.stop.store(true, Ordering::Relaxed);
    }
    result
}

fn check_stop(shared: &Shared) -> Result<(), String> {
    if shared.stop.load(Ordering::Relaxed) { Err(STOPPED.into()) } else { Ok(()) }
}

fn link_of<S>(open: &Links<S>, connection: u32) -> Result<Arc<S>, String> {
    open.get(&connection).cloned().ok_or_else(|| format!("connection {connection} is not open"))
}

fn send_all<S: Duplex>(
    open: &Links<S>,
    links: &[&AppLink],
    files: &BTreeMap<u32, Outgoing>,
    shared: &Shared,
) -> Result<Vec<FileRecord>, String> {
    let mut buffer = vec![0; TURN_BYTES];
    let mut sent = Vec::new();
    let mut live = Vec::new();
    for link in links {
        let outgoing = link.files.iter().map(|f| files.get(f).ok_or(format!("file {f} was not announced")));
        let outgoing = outgoing.collect::<Result<Vec<_>, _>>()?;
        sent.extend(outgoing.iter().map(|o| record(link.connection, o.file, o.bytes, &o.digest, &o.digest)));
        live.push((link_of(open, link.connection)?, link.connection, OutStream::new(link.connection, &outgoing)));
    }
    while !live.is_empty() {
        for (stream, connection, out) in &mut live {
            check_stop(shared)?;
            let n = out.fill(&mut buffer).map_err(|e| format!("connection {connection}: {e}"))?;
            let turn = buffer.get(..n).unwrap_or_default();
            stream.send_all(turn).map_err(|e| format!("sending on connection {connection}: {e}"))?;
        }
        live.retain(|(_, _, out)| !out.is_complete());
    }
    Ok(sent)
}

fn receive_all<S: Duplex>(open: &Links<S>, links: &[&AppLink], shared: &Shared) -> Result<Vec<FileRecord>, String> {
    let mut buffer = vec![0; TURN_BYTES];
    let mut records = Vec::new();
    let mut arrived = Vec::new();
    let mut live = Vec::new();
    for link in links {
        live.push((link_of(open, link.connection)?, link.connection, StreamParser::new(link.connection)));
    }
    while !live.is_empty() {
        for (stream, connection, parser) in &mut live {
            check_stop(shared)?;
            receive_turn(stream.as_ref(), parser, &mut buffer, &mut arrived, shared)
                .map_err(|e| format!("receiving on connection {connection}: {e}"))?;
            records.extend(arrived.drain(..).map(|a| record(*connection, a.file, a.bytes, &a.computed, &a.announced)));
        }
        live.retain(|(_, _, parser)| !parser.is_complete());
    }
    Ok(records)
}

/// Receives one turn's bytes of a stream.
fn receive_turn(
    stream: &impl Duplex,
    parser: &mut StreamParser,
    buffer: &mut [u8],
    arrived: &mut Vec<Arrived>,
    shared: &Shared,
) -> io::Result<()> {
    let mut turn_left = TURN_BYTES;
    while turn_left > 0 && !parser.is_complete() {
        let wanted = usize::try_from(parser.bytes_left()).unwrap_or(usize::MAX).min(turn_left).min(buffer.len());
        let part = buffer.get_mut(..wanted).unwrap_or_default();
        let n = match stream.recv(part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        parser.push(part.get(..n).unwrap_or_default(), arrived).map_err(io::Error::other)?;
        shared.received_bytes.fetch_add(n as u64, Ordering::Relaxed);
        turn_left -= n;
    }
    Ok(())
}

fn record(connection: u32, file: u32, bytes: u64, computed: &FileDigest, announced: &FileDigest) -> FileRecord {
    let hex = |d: &FileDigest| d.iter().map(|b| format!("{b:02x}")).collect::<String>();
    FileRecord { connection, file, bytes, sha256: hex(computed), announced: hex(announced) }
}

/// A piece of an outgoing stream.
#[derive(Debug)]
enum Piece<'a> {
    Header(Vec<u8>),
    File(&'a Outgoing),
}

impl Piece<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Header(bytes) => bytes.len() as u64,
            Self::File(f) => f.bytes,
        }
    }
}

/// An outgoing stream, read piece by piece from its files.
#[derive(Debug)]
struct OutStream<'a> {
    pieces: Vec<Piece<'a>>,
    /// The piece to be read next, and where in it.
    at: (usize, u64),
}

impl<'a> OutStream<'a> {
    fn new(connection: u32, files: &[&'a Outgoing]) -> Self {
        let total = stream::stream_bytes(files.iter().map(|f| f.bytes));
        let count = u32::try_from(files.len()).unwrap_or(u32::MAX);
        let mut pending = Vec::with_capacity(STREAM_HEADER_BYTES + FILE_HEADER_BYTES);
        pending.extend(stream::stream_header(connection, count, total));
        let mut pieces = Vec::with_capacity(files.len() * 2 + 1);
        for file in files {
            pending.extend(stream::file_header(file.file, file.bytes));
            pieces.push(Piece::Header(std::mem::take(&mut pending)));
            pieces.push(Piece::File(file));
            pending.reserve(TRAILER_BYTES + FILE_HEADER_BYTES);
            pending.extend(file.digest);
        }
        pieces.push(Piece::Header(pending));
        Self { pieces, at: (0, 0) }
    }

    fn is_complete(&self) -> bool {
        self.at.0 >= self.pieces.len()
    }

    /// Fills `buffer` with the next bytes of the stream; says how many, fewer than it holds only at the end.
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(piece) = self.pieces.get(self.at.0) {
            let rest = buffer.get_mut(filled..).unwrap_or_default();
            let n = usize::try_from(piece.len() - self.at.1).unwrap_or(usize::MAX).min(rest.len());
            let part = rest.get_mut(..n).unwrap_or_default();
            match piece {
                Piece::Header(bytes) => {
                    let from = usize::try_from(self.at.1).unwrap_or(usize::MAX);
                    part.copy_from_slice(bytes.get(from..from + n).unwrap_or_default());
                }
                Piece::File(file) if n > 0 => {
                    File::open(&file.path).and_then(|f| f.read_exact_at(part, self.at.1)).map_err(|e| {
                        io::Error::new(e.kind(), format!("{}: {e} (was it changed?)", file.path.display()))
                    })?;
                }
                Piece::File(_) => {}
            }
            filled += n;
            self.at.1 += n as u64;
            if self.at.1 < piece.len() {
                break;
            }
            self.at = (self.at.0 + 1, 0);
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn turns_put_together_are_the_stream() {
        let dir = tempfile::tempdir().unwrap();
        let contents: Vec<Vec<u8>> = [0usize, 1, 1000, 5000].iter().map(|&n| vec![n as u8; n]).collect();
        let outgoing: Vec<Outgoing> = contents
            .iter()
            .enumerate()
            .map(|(i, data)| {
                let path = dir.path().join(i.to_string());
                std::fs::write(&path, data).unwrap();
                Outgoing { file: i as u32, path, bytes: data.len() as u64, digest: Sha256::digest(data).into() }
            })
            .collect();
        let outgoing: Vec<&Outgoing> = outgoing.iter().collect();
        for turn in [1, 33, 700, 100_000] {
            let mut out = OutStream::new(5, &outgoing);
            let mut parser = StreamParser::new(5);
            let (mut arrived, mut buffer) = (Vec::new(), vec![0; turn]);
            while !out.is_complete() {
                let n = out.fill(&mut buffer).unwrap();
                assert!(n == turn || out.is_complete());
                parser.push(&buffer[..n], &mut arrived).unwrap();
            }
            assert!(parser.is_complete(), "turn {turn}: {parser:?}");
            assert!(arrived.iter().all(|a| a.computed == a.announced));
            assert_eq!(arrived.len(), 4);
        }
    }

    #[test]
    fn a_file_that_shrank_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shrinks");
        std::fs::write(&path, b"12").unwrap();
        let file = Outgoing { file: 0, path, bytes: 10, digest: [0; 32] };
        let error = OutStream::new(0, &[&file]).fill(&mut [0; 1000]).unwrap_err();
        assert!(error.to_string().contains("shrinks"), "{error}");
    }
}
