//! The same ping-pong as `refbench`'s, over two publish-subscribe services of iceoryx2: samples of shared memory that are
//! loaned, written at both ends, sent, looked at and given back, asking again and again.
//!
//! `iceoryx2-pingpong server NAME SIZE` prints `ready NAME`; `iceoryx2-pingpong client NAME SIZE SECONDS` prints one JSON
//! object.

#[path = "../../src/trips.rs"]
mod trips;

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

/// Looks between two checks whether the other end is there.
const LOOKS: u64 = 1 << 28;

type Service = ipc::Service;

struct End {
    publisher: Publisher<Service, [u8], ()>,
    subscriber: Subscriber<Service, [u8], ()>,
    size: usize,
}

impl End {
    /// `own`: the service in which this end publishes.
    fn new(node: &Node<Service>, own: &str, other: &str, size: usize) -> Result<Self> {
        ensure!(size >= 16, "a sample of {size} bytes has no first and last 8");
        let open = |name: &str| {
            let name: ServiceName = name.try_into().map_err(|e| anyhow!("service name {name}: {e:?}"))?;
            let service = node.service_builder(&name).publish_subscribe::<[u8]>();
            let service = service.max_publishers(1).max_subscribers(1).subscriber_max_buffer_size(8);
            service.open_or_create().map_err(|e| anyhow!("service: {e:?}"))
        };
        let publisher = open(own)?.publisher_builder().initial_max_slice_len(size).create();
        let subscriber = open(other)?.subscriber_builder().create();
        Ok(Self {
            publisher: publisher.map_err(|e| anyhow!("publisher: {e:?}"))?,
            subscriber: subscriber.map_err(|e| anyhow!("subscriber: {e:?}"))?,
            size,
        })
    }

    fn send(&self, value: u64) -> Result<()> {
        let mut sample = self.publisher.loan_slice_uninit(self.size).map_err(|e| anyhow!("loan: {e:?}"))?;
        let payload = sample.payload_mut();
        let last = payload.len() - 8;
        for (at, bytes) in [(0, value.to_ne_bytes()), (last, value.to_ne_bytes())] {
            for (place, byte) in payload[at..at + 8].iter_mut().zip(bytes) {
                place.write(byte);
            }
        }
        // SAFETY: the bytes are those of shared memory that the system zeroed when it was made.
        let sample = unsafe { sample.assume_init() };
        sample.send().map_err(|e| anyhow!("send: {e:?}"))?;
        Ok(())
    }

    fn receive(&self) -> Result<Option<u64>> {
        for _ in 0..LOOKS {
            if let Some(sample) = self.subscriber.receive().map_err(|e| anyhow!("receive: {e:?}"))? {
                let payload = sample.payload();
                ensure!(payload.len() == self.size, "a sample of {} bytes", payload.len());
                let word = |at: usize| payload[at..at + 8].try_into().map(u64::from_ne_bytes);
                let (first, last) = (word(0)?, word(payload.len() - 8)?);
                ensure!(first == last, "a sample begins with {first} and ends with {last}");
                return Ok(Some(first));
            }
            std::hint::spin_loop();
        }
        Ok(None)
    }
}

fn main() -> Result<()> {
    set_log_level(LogLevel::Error);
    let words: Vec<String> = std::env::args().skip(1).collect();
    let node = NodeBuilder::new().create::<Service>().map_err(|e| anyhow!("node: {e:?}"))?;
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", name, size] => {
            let end = End::new(&node, &format!("{name}/answers"), &format!("{name}/questions"), size.parse()?)?;
            println!("ready {name}");
            // Ended by whoever started it.
            loop {
                if let Some(value) = end.receive()? {
                    end.send(value)?;
                }
            }
        }
        ["client", name, size, seconds] => {
            let end = End::new(&node, &format!("{name}/questions"), &format!("{name}/answers"), size.parse()?)?;
            let mut value = 0;
            let report = trips::measure(Duration::from_secs_f64(seconds.parse()?), || {
                value += 1;
                end.send(value)?;
                let back = end.receive()?.context("the server does not answer")?;
                ensure!(back == value, "{back} came back for {value}");
                Ok(())
            })?;
            println!("{report}");
            Ok(())
        }
        _ => bail!("give `server NAME SIZE` or `client NAME SIZE SECONDS`"),
    }
}
