//! Datagrams there and back: `datagram_echo PORT` answers, `datagram_echo HOST:PORT COUNT` asks.
//!
//! The asker sends datagrams of many lengths, each until its answer came, compares every byte, and says how often it
//! had to send one again. Then it sends one that is too long, which must be refused with the limit.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use raas::{DatagramError, DatagramSocket};

/// How long an answer may take before the datagram counts as lost.
const PATIENCE: Duration = Duration::from_millis(200);
/// How often one is sent.
const TRIES: u32 = 50;

fn main() -> Result<(), raas::Error> {
    Ok(run()?)
}

fn run() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    match (args.next(), args.next()) {
        (Some(port), None) => answer(&port),
        (Some(to), Some(count)) => ask(&to, count.parse().map_err(Error::other)?),
        _ => Err(Error::new(ErrorKind::InvalidInput, "usage: datagram_echo PORT, or datagram_echo HOST:PORT COUNT")),
    }
}

fn answer(port: &str) -> std::io::Result<()> {
    let socket = DatagramSocket::bind(format!("0.0.0.0:{port}"))?;
    println!("answering at {}", socket.local_addr()?);
    let mut buffer = [0; 4096];
    loop {
        let (len, from) = socket.recv_from(&mut buffer)?;
        socket.send_to(&buffer[..len], from)?;
    }
}

fn ask(to: &str, count: usize) -> std::io::Result<()> {
    let socket = DatagramSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let max = socket.max_payload(to)?;
    let mut lost = 0;
    for number in 0..count {
        // Eight bytes of number, then as many as still fit.
        let len = 8 + number * 37 % (max - 7);
        let sent: Vec<u8> =
            (0..len).map(|i| number.to_be_bytes().get(i).copied().unwrap_or((i + number) as u8)).collect();
        lost += exchange(&socket, &sent)?;
    }
    let refused = socket.send(&vec![0; max + 1]).map_err(|e| e.get_ref()?.downcast_ref::<DatagramError>().copied());
    match refused {
        Err(Some(DatagramError::TooLong { max: limit, .. })) if limit == max => {}
        other => {
            return Err(Error::other(format!("one byte more than {max} was not refused with that number: {other:?}")));
        }
    }
    println!("{count} datagrams of up to {max} bytes came back; {lost} were sent again");
    Ok(())
}

/// Sends until the answer is there; how often it was sent again.
fn exchange(socket: &DatagramSocket, sent: &[u8]) -> std::io::Result<u32> {
    let mut buffer = [0; 4096];
    for again in 0..TRIES {
        socket.send(sent)?;
        loop {
            match socket.recv(&mut buffer) {
                Ok(len) if buffer[..len] == *sent => return Ok(again),
                // The answer to one before, which was late.
                Ok(len) if len >= 8 && buffer[..8] < sent[..8] => {}
                Ok(len) => return Err(Error::other(format!("{len} bytes came back that were not sent"))),
                Err(e) if e.kind() == ErrorKind::TimedOut => break,
                Err(e) => return Err(e),
            }
        }
    }
    Err(Error::new(ErrorKind::TimedOut, format!("no answer to {TRIES} datagrams of {} bytes", sent.len())))
}
