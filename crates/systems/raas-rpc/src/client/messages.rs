//! Requests and responses as messages of one connection.
//!
//! Owns the connection. It is reliable, so nothing is repeated on it.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raas::{MessageStream, Readiness};

use super::channel::{Channel, ChannelOver, Deliver};
use crate::client::ClientCounters;
use crate::frame::{RESPONSE_HEADER_BYTES, RequestHeader, ResponseHeader, request_flag};
use crate::server::lock;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Messages {
    stream: MessageStream,
    buffer: Mutex<Vec<u8>>,
    requests: AtomicU64,
}

impl Messages {
    pub(crate) fn new(stream: MessageStream, response_bytes_max: u32) -> Self {
        let buffer = Mutex::new(vec![0; RESPONSE_HEADER_BYTES + response_bytes_max as usize]);
        Self { stream, buffer, requests: AtomicU64::new(0) }
    }
}

impl Messages {
    /// Takes a response, or waits for one for as long as was set. False: none came.
    fn take(&self, deliver: &mut Deliver<'_>) -> Result<bool, ChannelOver> {
        let mut buffer = lock(&self.buffer);
        match self.stream.receive(&mut buffer) {
            Ok(Some(len)) => match ResponseHeader::decode(&buffer[..len]) {
                Some((header, payload)) => deliver(header, payload.to_vec()),
                None => return Err(ChannelOver("the server sent what is no response".into())),
            },
            Ok(None) => return Err(ChannelOver("the server closed the connection".into())),
            Err(e) if e.kind() == io::ErrorKind::TimedOut => return Ok(false),
            Err(e) => return Err(e.into()),
        }
        Ok(true)
    }
}

impl Channel for Messages {
    fn send(&self, header: RequestHeader, payload: &[u8]) -> Result<(), ChannelOver> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(self.stream.send(&header.encode(payload))?)
    }

    fn receive(&self, until: Instant, deliver: &mut Deliver<'_>) -> Result<Vec<u64>, ChannelOver> {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
        self.stream.set_read_timeout(Some(left))?;
        if self.take(deliver)? { self.look(deliver) } else { Ok(Vec::new()) }
    }

    fn look(&self, deliver: &mut Deliver<'_>) -> Result<Vec<u64>, ChannelOver> {
        while self.stream.readiness()?.contains(Readiness::READ) {
            self.take(deliver)?;
        }
        Ok(Vec::new())
    }

    fn cancel(&self, header: RequestHeader) {
        // If it does not arrive the call is executed, and its response thrown away.
        let _ = self.stream.send(&RequestHeader { flags: request_flag::CANCEL, len: 0, ..header }.encode(&[]));
    }

    fn repeat_after(&self) -> Option<Duration> {
        None
    }

    fn count(&self, counters: &mut ClientCounters) {
        counters.requests += self.requests.load(Ordering::Relaxed);
    }
}
