//! Latency and throughput of one connection, between two processes.
//!
//! `pingpong server [ADDR]` in one, `pingpong client ADDR [BYTES] [SECONDS]` in the other. The client prints half the
//! round trip of messages of BYTES, then the throughput of a one-way stream of writes of BYTES. `--spins N` and
//! `--yields N` before the other words set how a thread waits.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use raas::{Listener, Session, Stream};

/// Rounds between two looks at the clock.
const ROUNDS: u32 = 1000;

fn main() -> Result<(), raas::Error> {
    Ok(run()?)
}

fn run() -> io::Result<()> {
    let invalid = |e: std::num::ParseIntError| io::Error::new(io::ErrorKind::InvalidInput, e);
    let mut args: std::collections::VecDeque<String> = std::env::args().skip(1).collect();
    let mut session = Session::builder();
    while args.len() > 1 && args[0].starts_with("--") {
        let (Some(flag), Some(value)) = (args.pop_front(), args.pop_front()) else { break };
        session = match flag.as_str() {
            "--spins" => session.spins(value.parse().map_err(invalid)?),
            _ => session.yields(value.parse().map_err(invalid)?),
        };
    }
    let session = session.connect()?;
    let arg = |i: usize, default: &str| args.get(i).cloned().unwrap_or_else(|| default.into());
    let number = |i: usize, default: &str| arg(i, default).parse::<u64>().map_err(invalid);
    match arg(0, "").as_str() {
        "server" => server(&session, &arg(1, "0.0.0.0:7001")),
        "client" => client(&session, &arg(1, "127.0.0.1:7001"), number(2, "64")?, Duration::from_secs(number(3, "2")?)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "usage: pingpong server [ADDR] | client ADDR [BYTES] [SECONDS]",
        )),
    }
}

/// Answers each message while the first byte is 0; takes in the rest of a stream that begins with 1.
fn server(session: &Session, addr: &str) -> io::Result<()> {
    let listener = Listener::bind_with(session, addr)?;
    println!("listening on {}", listener.local_addr()?);
    for stream in listener.incoming() {
        serve(stream?)?;
    }
    Ok(())
}

fn serve(mut stream: Stream) -> io::Result<()> {
    let mut header = [0; 9];
    stream.read_exact(&mut header)?;
    let [mode, len @ ..] = header;
    let len = usize::try_from(u64::from_le_bytes(len)).map_err(io::Error::other)?;
    let mut buffer = vec![0; len.clamp(1, 16 << 20)];
    if mode == 0 {
        while stream.read_exact(&mut buffer).is_ok() {
            stream.write_all(&buffer)?;
        }
    } else {
        while stream.read(&mut buffer)? > 0 {}
        stream.write_all(&[1])?;
    }
    Ok(())
}

fn client(session: &Session, addr: &str, bytes: u64, time: Duration) -> io::Result<()> {
    let mut buffer = vec![0; usize::try_from(bytes).map_err(io::Error::other)?.clamp(1, 16 << 20)];
    let mut stream = open(session, addr, 0, bytes)?;
    let mut samples = Vec::new();
    let start = Instant::now();
    while start.elapsed() < time {
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            stream.write_all(&buffer)?;
            stream.read_exact(&mut buffer)?;
        }
        samples.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS) / 2.0);
    }
    drop(stream);
    samples.sort_by(f64::total_cmp);
    let at = |share: f64| samples[((samples.len() - 1) as f64 * share) as usize];
    println!(
        "{bytes} bytes, half round trip in us (means of {ROUNDS}): best {:.3}, median {:.3}, worst of 9 in 10 {:.3}",
        at(0.0),
        at(0.5),
        at(0.9)
    );

    let mut stream = open(session, addr, 1, bytes)?;
    let (start, mut sent) = (Instant::now(), 0u64);
    while start.elapsed() < time {
        for _ in 0..ROUNDS.min((64 << 20) / u32::try_from(buffer.len()).unwrap_or(u32::MAX)).max(1) {
            stream.write_all(&buffer)?;
            sent += bytes;
        }
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.read_exact(&mut [0])?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "writes of {bytes} bytes one way: {:.1} Gbit/s, {:.2} million a second, over {:?}",
        sent as f64 * 8.0 / seconds / 1e9,
        sent as f64 / bytes as f64 / seconds / 1e6,
        stream.path()
    );
    Ok(())
}

fn open(session: &Session, addr: &str, mode: u8, bytes: u64) -> io::Result<Stream> {
    let mut stream = Stream::connect_with(session, addr)?;
    stream.write_all(&[&[mode][..], &bytes.to_le_bytes()[..]].concat())?;
    Ok(stream)
}
