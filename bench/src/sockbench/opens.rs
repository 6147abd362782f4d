//! Connections that are opened, used once and closed, again and again: one after the other, or many under way at a
//! time, as a program does that opens them all before it uses one.
//!
//! Both sides go through a batch in the same order, and the client says with each message whether its batch is the last.

use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::Transport;
use super::link::{Link, Listener, Opening};
use super::wire::{Spec, read_u64, write_u64};

/// First byte of a message: its batch is the last one before the client says more on the first connection.
const LAST: u8 = 1;

/// Accepts batches and answers each message, until the client ends.
pub(crate) fn serve(listener: &Listener, control: &Link, spec: Spec) -> Result<()> {
    let mut message = vec![0; spec.size_bytes as usize];
    while read_u64(control).is_ok() {
        let mut served = 0_u64;
        loop {
            let links = (0..spec.connections).map(|_| listener.accept()).collect::<Result<Vec<_>>>()?;
            for link in &links {
                link.read_exact(&mut message)?;
                link.write_all(&message)?;
            }
            served += links.len() as u64;
            for link in links {
                ensure!(link.read(&mut message[1..])? == 0, "more than one message on a connection");
            }
            if message.first() == Some(&LAST) {
                break;
            }
        }
        write_u64(control, served)?;
    }
    Ok(())
}

/// Says `warm` when connections have come and gone once, waits for a line on stdin, and measures.
pub(crate) fn run(transport: Transport, to: &str, spec: Spec, duration: Duration) -> Result<Value> {
    let control = Link::connect(transport, to, false)?;
    spec.agree(&control)?;
    batches(transport, to, (&control, spec), Duration::ZERO)?;
    println!("warm");
    std::io::stdin().lock().read_line(&mut String::new())?;
    let (opened, took) = batches(transport, to, (&control, spec), duration)?;
    Ok(json!({
        "path": control.path(), "size_bytes": spec.size_bytes, "at_a_time": spec.connections, "opened": opened,
        "seconds": took.as_secs_f64(), "us": took.as_secs_f64() * 1e6 / opened as f64,
    }))
}

/// How many connections came and went, and in which time; one batch at least.
fn batches(transport: Transport, to: &str, at: (&Link, Spec), duration: Duration) -> Result<(u64, Duration)> {
    let (control, spec) = at;
    let mut message = vec![0; spec.size_bytes as usize];
    let mut opened = 0;
    let begin = Instant::now();
    write_u64(control, 1)?;
    loop {
        let is_last = begin.elapsed() >= duration;
        let opening = (0..spec.connections).map(|_| Opening::begin(transport, to)).collect::<Result<Vec<_>>>()?;
        let links = opening.into_iter().map(Opening::finish).collect::<Result<Vec<_>>>()?;
        message[0] = if is_last { LAST } else { 0 };
        for link in &links {
            link.write_all(&message)?;
        }
        for link in &links {
            link.read_exact(&mut message)?;
        }
        opened += links.len() as u64;
        drop(links);
        if is_last {
            break;
        }
    }
    ensure!(read_u64(control)? == opened, "the server had other connections");
    Ok((opened, begin.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockbench::Test;

    #[test]
    fn each_connection_is_served_once_and_the_server_ends_with_its_client() {
        for at_a_time in [1, 7] {
            let listener = Listener::bind(Transport::Tcp, "127.0.0.1:0", false, 0).expect("a listener");
            let at = listener.address().expect("an address");
            let server = std::thread::spawn(move || crate::sockbench::load::serve(&listener));
            let control = Link::connect(Transport::Tcp, &at, false).expect("a connection");
            let spec = Spec { test: Test::Opens, size_bytes: 8, connections: at_a_time, warm_up_ms: 0, measured_ms: 0 };
            spec.agree(&control).expect("an answer");
            for duration in [Duration::ZERO, Duration::from_millis(5)] {
                let (opened, took) = batches(Transport::Tcp, &at, (&control, spec), duration).expect("batches");
                assert!(opened % u64::from(at_a_time) == 0 && opened > 0 && took >= duration, "{opened} in {took:?}");
            }
            drop(control);
            server.join().expect("it ends").expect("in order");
        }
    }
}
