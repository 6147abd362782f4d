//! The demo's message rate: small messages one way on one connection, one write each, each compared on arrival.

use std::io;
use std::time::{Duration, Instant};

use super::ping::MESSAGE_BYTES;
use transport::Duplex;

/// How long messages are sent.
const LIMIT: Duration = Duration::from_millis(300);
/// Messages between two looks at the clock.
const BATCH: u64 = 256;
/// Bytes received at once.
const RECEIVE_BYTES: usize = 64 << 10;
/// The number of the message after the last one.
const END: u64 = u64::MAX;

/// What the sending end measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rate {
    /// Messages that the other end compared.
    pub(super) messages: u64,
    /// From the first message to the answer to the last.
    pub(super) took: Duration,
}

/// The sending end.
pub(super) fn measure(stream: &impl Duplex) -> io::Result<Rate> {
    let begin = Instant::now();
    let mut number = 0;
    while number == 0 || begin.elapsed() < LIMIT {
        for _ in 0..BATCH {
            stream.send_all(&message(number))?;
            number += 1;
        }
    }
    stream.send_all(&message(END))?;
    let mut answer = [0; 8];
    stream.recv_exact(&mut answer)?;
    let took = begin.elapsed();
    match u64::from_le_bytes(answer) {
        counted if counted == number => Ok(Rate { messages: number, took }),
        counted => Err(invalid(format!("{number} messages sent, {counted} arrived"))),
    }
}

/// The receiving end: compares each message, answers with their count.
pub(super) fn answer(stream: &impl Duplex) -> io::Result<()> {
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut filled = 0;
    let mut number = 0u64;
    loop {
        let n = stream.recv(buffer.get_mut(filled..).unwrap_or_default())?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += n;
        let whole = filled - filled % MESSAGE_BYTES;
        for came in buffer.get(..whole).unwrap_or_default().chunks_exact(MESSAGE_BYTES) {
            if came == message(number) {
                number += 1;
            } else if came == message(END) {
                return stream.send_all(&number.to_le_bytes());
            } else {
                return Err(invalid(format!("message {number} came altered")));
            }
        }
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Message `number`: eight words that depend on it.
fn message(number: u64) -> [u8; MESSAGE_BYTES] {
    let mut out = [0; MESSAGE_BYTES];
    let mut word = number;
    for place in out.chunks_exact_mut(8) {
        place.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use transport::{Accept, Tcp, Transport};

    fn pair() -> (impl Duplex, impl Duplex) {
        let limit = Duration::from_secs(60);
        let listener = Tcp.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let stream = Tcp.connect(listener.local_addr(), limit).unwrap();
        let accepted = listener.accept_timeout(limit).unwrap().unwrap();
        (stream, accepted)
    }

    #[test]
    fn every_message_is_counted_and_a_wrong_one_is_found() {
        let (ours, theirs) = pair();
        let answering = std::thread::spawn(move || answer(&theirs));
        let rate = measure(&ours).unwrap();
        assert!(rate.messages >= BATCH && rate.took >= LIMIT);
        answering.join().unwrap().unwrap();
        let (ours, theirs) = pair();
        ours.send_all(&message(0)).unwrap();
        ours.send_all(&message(2)).unwrap();
        let error = answer(&theirs).unwrap_err();
        assert!(error.to_string().contains("message 1 came altered"), "{error}");
    }
}
