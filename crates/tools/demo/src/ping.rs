//! The demo's latency measurement: a ping-pong on one of its connections while the others are open and idle.

use std::io;
use std::time::{Duration, Instant};

use transport::Duplex;

/// Bytes of a message.
pub(crate) const MESSAGE_BYTES: usize = 64;
/// Round trips before the counted ones, and the time that they may take.
const WARM_UP: usize = 300;
const WARM_UP_LIMIT: Duration = Duration::from_millis(250);
/// Round trips that count, at most.
const COUNTED: usize = 6000;
/// The measurement ends after this time, but not before one counted round trip.
const LIMIT: Duration = Duration::from_secs(1);
/// The first byte of a message: another one follows, or this was the last.
const MORE: u8 = 1;
const LAST: u8 = 2;

/// The measuring end: half round trips in nanoseconds.
pub(crate) fn measure(stream: &impl Duplex) -> io::Result<Vec<u64>> {
    let mut message = [0x33; MESSAGE_BYTES];
    let mut times = Vec::with_capacity(COUNTED);
    let begin = Instant::now();
    let mut rounds = 0;
    let mut is_warm = false;
    loop {
        is_warm |= rounds >= WARM_UP || begin.elapsed() > WARM_UP_LIMIT;
        let last = is_warm && (times.len() + 1 == COUNTED || begin.elapsed() > LIMIT);
        message[0] = if last { LAST } else { MORE };
        let sent = Instant::now();
        stream.send_all(&message)?;
        stream.recv_exact(&mut message)?;
        let half = sent.elapsed() / 2;
        rounds += 1;
        if is_warm {
            times.push(u64::try_from(half.as_nanos()).unwrap_or(u64::MAX));
        }
        if last {
            return Ok(times);
        }
    }
}

/// The other end: sends every message back.
pub(crate) fn answer(stream: &impl Duplex) -> io::Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    loop {
        stream.recv_exact(&mut message)?;
        stream.send_all(&message)?;
        match message[0] {
            MORE => {}
            LAST => return Ok(()),
            _ => return Err(io::Error::other("no ping")),
        }
    }
}
