//! Streams on connections that are all written at the same time, each by a thread, and read at the same time. What
//! arrives within a time is counted where it arrives, for each connection, so that nothing need drain: over a lossy
//! line that would take longer than the measurement. Each word of a stream says where it belongs, and is compared.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::link::{Link, Listener};
use super::wire::{Spec, read_u64, write_u64};

/// Buffer of a reader.
const READ_BYTES: usize = 64 << 10;
const WORD: usize = 8;
/// The first answer of a server whose streams were not what was sent.
const HARMED: u64 = u64::MAX;

/// What the readers found.
#[derive(Debug)]
struct Arrived {
    bytes: Vec<AtomicU64>,
    harmed: AtomicBool,
}

/// Reads all connections, measures, and tells the client.
pub(crate) fn serve(listener: &Listener, control: &Link, spec: Spec) -> Result<()> {
    let count = spec.connections as usize;
    let arrived =
        Arc::new(Arrived { bytes: (0..count).map(|_| AtomicU64::new(0)).collect(), harmed: AtomicBool::new(false) });
    for index in 0..count {
        let (link, arrived) = (listener.accept()?, arrived.clone());
        std::thread::spawn(move || read_all(&link, &arrived, index));
    }
    let look = || arrived.bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect::<Vec<_>>();
    std::thread::sleep(Duration::from_millis(spec.warm_up_ms.into()));
    let (begin, before) = (Instant::now(), look());
    std::thread::sleep(Duration::from_millis(spec.measured_ms.into()));
    let (took, after) = (begin.elapsed(), look());
    let harmed = arrived.harmed.load(Ordering::Relaxed);
    write_u64(control, if harmed { HARMED } else { u64::try_from(took.as_nanos())? })?;
    for (after, before) in after.iter().zip(&before) {
        write_u64(control, after - before)?;
    }
    // Until the client has read it and ends, with all its connections.
    let _ = control.read(&mut [0]);
    Ok(())
}

/// Until the peer ends, which it does in the middle.
fn read_all(link: &Link, arrived: &Arrived, index: usize) {
    let mut buffer = vec![0; READ_BYTES];
    let mut at = 0_u64;
    while let Ok(count @ 1..) = link.read(&mut buffer) {
        // Read on all the same: a reset would tell the client less than the answer does.
        if !is_stream(&buffer[..count], at) {
            arrived.harmed.store(true, Ordering::Relaxed);
        }
        at += count as u64;
        arrived.bytes[index].store(at, Ordering::Relaxed);
    }
}

/// The byte of a stream at this offset: a part of the number of its word.
fn byte(at: u64) -> u8 {
    (at / WORD as u64).to_le_bytes()[at as usize % WORD]
}

/// Fills a buffer with what belongs at this offset, which is a multiple of a word.
fn fill(buffer: &mut [u8], at: u64) {
    for (word, number) in buffer.chunks_mut(WORD).zip(at / WORD as u64..) {
        word.copy_from_slice(&number.to_le_bytes()[..word.len()]);
    }
}

fn is_stream(bytes: &[u8], at: u64) -> bool {
    let head = (WORD - at as usize % WORD) % WORD;
    let (head, rest) = bytes.split_at(head.min(bytes.len()));
    let first = (at + head.len() as u64) / WORD as u64;
    head.iter().zip(at..).all(|(b, at)| *b == byte(at))
        && rest.chunks(WORD).zip(first..).all(|(word, number)| *word == number.to_le_bytes()[..word.len()])
}

/// Opens a connection, for any thread.
pub(crate) type Connect = Arc<dyn Fn() -> Result<Link> + Send + Sync>;

/// Writes all connections until the server has told what arrived. The threads that write end with this process: they
/// may hang in a write over a line that is slow, and nobody waits for them.
pub(crate) fn run(connect: &Connect, spec: Spec) -> Result<Value> {
    ensure!(spec.connections > 0, "streams need a connection");
    ensure!(
        (spec.size_bytes as usize).is_multiple_of(WORD),
        "writes are whole words of {WORD} bytes, not {}",
        spec.size_bytes
    );
    let control = connect()?;
    spec.agree(&control)?;
    let all_open = Arc::new(Barrier::new(spec.connections as usize));
    let over = Arc::new(AtomicBool::new(false));
    for index in 0..spec.connections {
        let (connect, all_open, over) = (connect.clone(), all_open.clone(), over.clone());
        std::thread::spawn(move || {
            let written = write_on(&connect, &all_open, spec);
            // The server would wait for this connection, so the test is over.
            if let (Err(e), false) = (written, over.load(Ordering::SeqCst)) {
                eprintln!("stream {index}: {e:#}");
                std::process::exit(1);
            }
        });
    }
    let nanos = read_u64(&control).context("what arrived")?;
    ensure!(nanos != HARMED, "other bytes arrived than were sent");
    let bytes = (0..spec.connections).map(|_| read_u64(&control)).collect::<Result<Vec<_>, _>>()?;
    // The server ends when `control` does, and with it every stream in the middle of a write.
    over.store(true, Ordering::SeqCst);
    Ok(report(&control.path(), nanos, &bytes))
}

/// Writes for ever, from when all connections are open: over a full link further ones would take seconds to open.
fn write_on(connect: &Connect, all_open: &Barrier, spec: Spec) -> Result<()> {
    let link = connect()?;
    all_open.wait();
    let mut message = vec![0; spec.size_bytes as usize];
    let mut at = 0;
    loop {
        fill(&mut message, at);
        link.write_all(&message).context("writing")?;
        at += u64::from(spec.size_bytes);
    }
}

fn report(path: &str, nanos: u64, bytes: &[u64]) -> Value {
    let seconds = nanos as f64 / 1e9;
    let gbit_per_s: Vec<f64> = bytes.iter().map(|bytes| *bytes as f64 * 8.0 / 1e9 / seconds).collect();
    json!({
        "path": path, "seconds": seconds, "connections": bytes.len(), "bytes": bytes.iter().sum::<u64>(),
        "gbit_per_s": gbit_per_s.iter().sum::<f64>(), "fairness": fairness(bytes),
        "slowest_gbit_per_s": gbit_per_s.iter().copied().fold(f64::INFINITY, f64::min),
        "fastest_gbit_per_s": gbit_per_s.iter().copied().fold(0.0, f64::max),
    })
}

/// Jain's index: 1 where all have as much, 1/n where one has all; none where nothing arrived.
fn fairness(bytes: &[u64]) -> Option<f64> {
    let (sum, squares) = bytes.iter().fold((0.0, 0.0), |(sum, squares), bytes| {
        let bytes = *bytes as f64;
        (sum + bytes, squares + bytes * bytes)
    });
    (squares > 0.0).then(|| sum * sum / (bytes.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockbench::{Test, Transport};

    #[test]
    fn a_stream_is_known_wherever_it_is_cut_and_other_bytes_are_not() {
        let mut stream = vec![0; 4096];
        fill(&mut stream, 1 << 40);
        for (from, to) in [(0, 4096), (1, 2), (3, 8), (7, 9), (8, 16), (9, 9), (13, 4001), (4090, 4096)] {
            let at = (1 << 40) + from as u64;
            assert!(is_stream(&stream[from..to], at), "{from} to {to}");
            if to - from >= 2 * WORD {
                assert!(!is_stream(&stream[from..to], at + 8), "{from} to {to} at another place");
            }
            if from < to {
                let mut other = stream[from..to].to_vec();
                other[(to - from) / 2] ^= 1;
                assert!(!is_stream(&other, at), "{from} to {to} with one bit turned over");
            }
        }
    }

    #[test]
    fn a_server_that_ends_first_ends_no_client_that_has_its_figures() {
        let listener = Listener::bind(Transport::Tcp, "127.0.0.1:0", false, 0).expect("a listener");
        let at = listener.address().expect("an address");
        let server = std::thread::spawn(move || -> Result<()> {
            let control = listener.accept()?;
            let spec = Spec::hear(&control)?;
            let _streams = (0..spec.connections).map(|_| listener.accept()).collect::<Result<Vec<_>, _>>()?;
            for figure in 0..=u64::from(spec.connections) {
                write_u64(&control, figure + 1)?;
            }
            let _ = control.read(&mut [0]);
            Ok(())
        });
        let spec = Spec { test: Test::Streams, size_bytes: 65_536, connections: 4, warm_up_ms: 1, measured_ms: 20 };
        let report = run(&(Arc::new(move || Link::connect(Transport::Tcp, &at, false)) as Connect), spec);
        assert!(report.is_ok(), "{report:?}");
        server.join().expect("it ends").expect("in order");
        // Time for the streams to meet that: one that took it for a failure would end this process.
        std::thread::sleep(Duration::from_millis(200));
    }

    #[test]
    fn fairness_goes_from_one_of_all_to_one() {
        assert_eq!(fairness(&[5, 5, 5, 5]), Some(1.0));
        assert_eq!(fairness(&[0, 0, 9, 0]), Some(0.25));
        assert_eq!(fairness(&[0, 0]), None);
    }

    #[test]
    fn rates_are_of_the_time_that_was_measured() {
        let report = report("tcp", 500_000_000, &[62_500_000, 125_000_000]);
        assert_eq!((&report["gbit_per_s"], &report["slowest_gbit_per_s"]), (&json!(3.0), &json!(1.0)));
        assert_eq!((&report["fastest_gbit_per_s"], &report["bytes"]), (&json!(2.0), &json!(187_500_000)));
    }
}
