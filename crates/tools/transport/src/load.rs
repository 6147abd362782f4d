//! Loads on one connection and what is measured of them, the same for the demo, `raas perf` and the benches: round
//! trips, and messages one way. Owns what the messages hold and how they are compared; who opens connections and for
//! how long a load runs is for its users.

use std::io::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::Duplex;

/// Share of a ping-pong's time that warms up and is not counted: one tenth.
const WARM_UP_DIVISOR: u32 = 10;
/// Messages of this size and more are each followed by a look at the clock, which costs more than a small one.
const LARGE_BYTES: usize = 4096;
/// Smaller ones between two looks.
const WRITES: u64 = 64;
/// Bytes received at once where messages come one way.
const RECEIVE_BYTES: usize = 256 << 10;
/// Longest half round trip that can be held, in nanoseconds.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// The number of the message after the last one.
const END: u64 = u64::MAX;
/// What messages hold that nobody compares.
const SAME: u8 = 0x5a;

/// What messages hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Always the same, compared by nobody: the load costs nothing but its bytes. The sender ends it by ending its
    /// sending direction.
    Same,
    /// Words that depend on the number of the message, compared by whoever receives it. A message of its own ends the
    /// load, and the connection can be used further. Not for messages of no bytes.
    Numbered,
}

/// When messages one way end.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// When so much time has passed.
    Time(Duration),
    /// When so many have been sent at least.
    Messages(u64),
}

/// Messages one way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pushed {
    /// How many.
    pub messages: u64,
    /// From the first write to the last, or to the answer that all were compared.
    pub took: Duration,
}

/// Half round trips.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None.
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("these bounds make a histogram"))
    }

    fn record(&mut self, round_trip: Duration) {
        self.0.saturating_record(u64::try_from(round_trip.as_nanos() / 2).unwrap_or(u64::MAX));
    }

    /// Takes over those of another connection.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all histograms here have the same bounds");
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// A quantile in microseconds; none of none.
    pub fn us(&self, quantile: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| in_us(self.0.value_at_quantile(quantile)))
    }

    /// All of them: microseconds, and how many took that.
    pub fn rows(&self) -> Vec<(f64, u64)> {
        let row = |v: hdrhistogram::iterators::IterationValue<u64>| {
            (in_us(v.value_iterated_to()), v.count_since_last_iteration())
        };
        self.0.iter_recorded().map(row).collect()
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

fn in_us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// The end of a ping-pong that measures.
pub fn ping_pong(stream: &impl Duplex, bytes: usize, content: Content, time: Duration) -> Result<Latencies> {
    let mut latencies = Latencies::new();
    let (mut sent, mut back) = (vec![SAME; bytes], vec![0; bytes]);
    let begin = Instant::now();
    for number in 0.. {
        write(&mut sent, content, number);
        let sent_at = Instant::now();
        stream.send_all(&sent)?;
        stream.recv_exact(&mut back)?;
        let round_trip = sent_at.elapsed();
        if content == Content::Numbered && sent != back {
            return Err(altered(number));
        }
        let so_far = begin.elapsed();
        if so_far >= time / WARM_UP_DIVISOR {
            latencies.record(round_trip);
        }
        if so_far >= time {
            break;
        }
    }
    if content == Content::Numbered {
        write(&mut sent, content, END);
        stream.send_all(&sent)?;
        stream.recv_exact(&mut back)?;
    }
    Ok(latencies)
}

/// The other end of a ping-pong: sends every message back. Gives the bytes that came.
pub fn echo(stream: &impl Duplex, bytes: usize, content: Content) -> Result<u64> {
    let (mut came, mut expected) = (vec![0; bytes], vec![0; bytes]);
    for number in 0.. {
        let first = stream.recv(&mut came)?;
        if first == 0 && content == Content::Same {
            return Ok(number * bytes as u64);
        }
        stream.recv_exact(came.get_mut(first..).unwrap_or_default())?;
        let is_last = content == Content::Numbered && is_end_or(&came, &mut expected, number)?;
        stream.send_all(&came)?;
        if is_last {
            return Ok(number * bytes as u64);
        }
    }
    Ok(0)
}

/// Sends messages one way, one write each.
pub fn push(stream: &impl Duplex, bytes: usize, content: Content, until: Until) -> Result<Pushed> {
    let mut message = vec![SAME; bytes];
    let writes = if bytes >= LARGE_BYTES { 1 } else { WRITES };
    let begin = Instant::now();
    let mut messages = 0;
    let goes_on = |messages: u64| match until {
        Until::Time(time) => begin.elapsed() < time,
        Until::Messages(wanted) => messages < wanted,
    };
    while goes_on(messages) {
        for number in messages..messages + writes {
            write(&mut message, content, number);
            stream.send_all(&message)?;
        }
        messages += writes;
    }
    if content == Content::Numbered {
        write(&mut message, content, END);
        stream.send_all(&message)?;
        let mut answer = [0; 8];
        stream.recv_exact(&mut answer)?;
        let compared = u64::from_le_bytes(answer);
        if compared != messages {
            return Err(invalid(format!("{messages} messages sent, {compared} arrived")));
        }
    }
    Ok(Pushed { messages, took: begin.elapsed() })
}

/// The receiving end of messages one way; gives their bytes. Of numbered ones it tells the sender how many it compared.
pub fn take(stream: &impl Duplex, bytes: usize, content: Content) -> Result<u64> {
    match content {
        Content::Same => drain(stream),
        Content::Numbered => compare(stream, bytes),
    }
}

fn drain(stream: &impl Duplex) -> Result<u64> {
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut total = 0;
    loop {
        match stream.recv(&mut buffer)? {
            0 => return Ok(total),
            n => total += n as u64,
        }
    }
}

fn compare(stream: &impl Duplex, bytes: usize) -> Result<u64> {
    let (mut buffer, mut expected) = (vec![0; RECEIVE_BYTES.next_multiple_of(bytes)], vec![0; bytes]);
    let (mut filled, mut number) = (0, 0);
    loop {
        let n = stream.recv(buffer.get_mut(filled..).unwrap_or_default())?;
        if n == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        filled += n;
        let whole = filled - filled % bytes;
        for came in buffer.get(..whole).unwrap_or_default().chunks_exact(bytes) {
            if is_end_or(came, &mut expected, number)? {
                stream.send_all(&number.to_le_bytes())?;
                return Ok(number * bytes as u64);
            }
            number += 1;
        }
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

/// Whether the last message came; an error if it is not the one with this number either.
fn is_end_or(came: &[u8], expected: &mut [u8], number: u64) -> Result<bool> {
    fill(expected, number);
    if came == &*expected {
        return Ok(false);
    }
    fill(expected, END);
    if came == &*expected { Ok(true) } else { Err(altered(number)) }
}

fn altered(number: u64) -> Error {
    invalid(format!("message {number} came altered"))
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

fn write(message: &mut [u8], content: Content, number: u64) {
    if content == Content::Numbered {
        fill(message, number);
    }
}

/// Fills `out` with bytes that differ from those of any other seed: splitmix64.
pub fn fill(out: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
    for place in out.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let word = (z ^ (z >> 31)).to_le_bytes();
        place.copy_from_slice(&word[..place.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    const SHORT: Duration = Duration::from_millis(30);

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    #[test]
    fn numbered_loads_are_compared_and_leave_the_connection_usable() {
        let (ours, theirs) = pair();
        let answering = std::thread::spawn(move || {
            (echo(&theirs, 64, Content::Numbered).unwrap(), take(&theirs, 60, Content::Numbered).unwrap())
        });
        let latencies = ping_pong(&ours, 64, Content::Numbered, SHORT).unwrap();
        assert!(latencies.us(0.5) <= latencies.us(0.99) && latencies.us(0.5) > Some(0.0));
        let pushed = push(&ours, 60, Content::Numbered, Until::Messages(1000)).unwrap();
        let (echoed, taken) = answering.join().unwrap();
        assert!(echoed >= latencies.count() * 64, "the warm-up is not counted");
        assert_eq!((pushed.messages, taken), (1024, 1024 * 60), "in batches");
    }

    #[test]
    fn loads_of_the_same_bytes_end_with_the_sending_direction() {
        for bytes in [64, LARGE_BYTES] {
            let (ours, theirs) = pair();
            let answering = std::thread::spawn(move || {
                let echoed = echo(&theirs, bytes, Content::Same).unwrap();
                theirs.finish_sending().unwrap();
                echoed
            });
            let latencies = ping_pong(&ours, bytes, Content::Same, SHORT).unwrap();
            ours.finish_sending().unwrap();
            assert!(answering.join().unwrap() >= latencies.count() * bytes as u64);
            let (ours, theirs) = pair();
            let taking = std::thread::spawn(move || take(&theirs, bytes, Content::Same).unwrap());
            let pushed = push(&ours, bytes, Content::Same, Until::Time(SHORT)).unwrap();
            ours.finish_sending().unwrap();
            assert_eq!(taking.join().unwrap(), pushed.messages * bytes as u64);
            assert!(pushed.took >= SHORT);
        }
    }

    #[test]
    fn a_wrong_message_and_a_missing_one_are_found() {
        let message = |number| {
            let mut message = [0; 64];
            fill(&mut message, number);
            message
        };
        let (ours, theirs) = pair();
        ours.send_all(&message(0)).unwrap();
        ours.send_all(&message(2)).unwrap();
        let error = take(&theirs, 64, Content::Numbered).unwrap_err();
        assert!(error.to_string().contains("message 1 came altered"), "{error}");
        let (ours, theirs) = pair();
        ours.send_all(&[7; 64]).unwrap();
        assert!(echo(&theirs, 64, Content::Numbered).unwrap_err().to_string().contains("message 0 came altered"));
        let (ours, theirs) = pair();
        theirs.send_all(&[7; 64]).unwrap();
        assert!(ping_pong(&ours, 64, Content::Numbered, SHORT).is_err());
        let (ours, theirs) = pair();
        theirs.send_all(&5u64.to_le_bytes()).unwrap();
        let error = push(&ours, 64, Content::Numbered, Until::Messages(64)).unwrap_err();
        assert!(error.to_string().contains("64 messages sent, 5 arrived"), "{error}");
    }

    #[test]
    fn latencies_add_up() {
        let (mut a, mut b) = (Latencies::new(), Latencies::new());
        assert_eq!((a.us(0.5), a.rows()), (None, vec![]));
        a.record(Duration::from_micros(2));
        b.record(Duration::from_micros(4));
        b.record(Duration::from_secs(1000));
        a.add(&b);
        assert_eq!((a.count(), a.us(0.3), a.us(0.6)), (3, Some(1.0), Some(2.0)));
        assert_eq!(a.rows().iter().map(|(_, count)| count).sum::<u64>(), 3);
    }

    #[test]
    fn bytes_depend_on_the_seed_alone() {
        let of = |seed, bytes| {
            let mut out = vec![0; bytes];
            fill(&mut out, seed);
            out
        };
        let all: Vec<Vec<u8>> = (0..64).chain([END, END - 1]).map(|seed| of(seed, 8)).collect();
        assert!(all.iter().enumerate().all(|(i, a)| all.iter().skip(i + 1).all(|b| a != b)));
        assert_eq!(of(5, 13), of(5, 16)[..13]);
    }
}
