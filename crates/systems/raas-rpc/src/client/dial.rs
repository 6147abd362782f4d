//! Connecting: the first exchange, and what the transport needs.
//!
//! Owns the making of a channel.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use raas::{ConnectOptions, DatagramOptions, MessageStream, PathKind, Region, RegionKey, RegionOptions, Session};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Settings;
use super::channel::Channel;
use super::messages::Messages;
use super::slots::Slots;
use super::turns::Turns;
use crate::error::OpenError;
use crate::hello::{
    HELLO_BYTES_MAX, HELLO_VERSION, Hello, HelloAnswer, RingAnswer, RingName, Transport, Welcome, decode, encode,
};
use crate::layout::Layout;

/// How long a message for the server may wait for room.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A region is made of whole pages.
const RING_BYTES_MIN: u64 = 4096;

/// A channel, and what the server said.
pub(crate) struct Dialed {
    pub(crate) channel: Arc<dyn Channel>,
    pub(crate) is_known: bool,
    pub(crate) is_one_host: bool,
    pub(crate) request_bytes_max: usize,
    pub(crate) response_bytes_max: usize,
}

/// Connects; each step takes at most `timeout`.
pub(crate) fn dial(
    session: &Session,
    settings: &Settings,
    transport: Transport,
    timeout: Duration,
) -> Result<Dialed, OpenError> {
    let options = ConnectOptions::new().timeout(timeout);
    let stream = MessageStream::connect_with(session, &settings.addresses[..], options)?;
    let socket = match transport.has_slots() {
        true => Some(
            DatagramOptions::new()
                .ring_bytes(settings.datagram_ring_bytes)
                .bind(session, (stream.local_addr().map_err(OpenError::Silent)?.ip(), 0)),
        ),
        false => None,
    };
    let socket = socket.transpose().map_err(|e| OpenError::Datagrams(e.into()))?;
    let datagrams = match &socket {
        Some(socket) => Some(socket.local_addr().map_err(OpenError::Datagrams)?),
        None => None,
    };
    let Settings { id: client, window, .. } = *settings;
    let is_one_host = stream.path() == PathKind::Shm;
    let hello = Hello { version: HELLO_VERSION, client, transport, window, datagrams };
    let set = || stream.set_write_timeout(Some(SEND_TIMEOUT)).and_then(|()| stream.set_read_timeout(Some(timeout)));
    set().map_err(OpenError::Silent)?;
    let answer: HelloAnswer = exchange(&stream, &hello)?;
    let Welcome { is_known, request_bytes_max, response_bytes_max, grant } = answer?;
    let channel: Arc<dyn Channel> = match (socket, grant) {
        (None, None) => Arc::new(Messages::new(stream, response_bytes_max)),
        (Some(socket), Some(grant)) => {
            let host = stream.peer_addr().map_err(OpenError::Silent)?.ip();
            let region = Region::open(session, host, &grant.region, RegionKey::new(grant.key))?;
            let layout = Layout::new(grant.slots, request_bytes_max, response_bytes_max);
            let turns = match grant.seating {
                Some(seating) => {
                    Some(Turns::new(tell_ring(session, &stream, layout.ring_bytes(window))?, seating, &layout))
                }
                None => None,
            };
            // Nobody else's datagrams are taken.
            socket.connect(grant.datagrams).map_err(OpenError::Datagrams)?;
            let limits = (grant, layout, response_bytes_max);
            Arc::new(Slots::new(stream, region, socket, transport, limits, turns))
        }
        _ => return Err(OpenError::NotWelcome),
    };
    let [request_bytes_max, response_bytes_max] = [request_bytes_max, response_bytes_max].map(|max| max as usize);
    Ok(Dialed { channel, is_known, is_one_host, request_bytes_max, response_bytes_max })
}

/// Makes the client's memory for requests that the server fetches, and tells the server of it.
fn tell_ring(session: &Session, stream: &MessageStream, bytes: u64) -> Result<Region, OpenError> {
    let mut name = [0; 8];
    getrandom::fill(&mut name)?;
    let name = format!("rpc-ring-{:016x}", u64::from_ne_bytes(name));
    let ring = RegionOptions::new().create(session, &name, bytes.max(RING_BYTES_MIN))?;
    let answer: RingAnswer = exchange(stream, &RingName { region: name, key: *ring.key().as_bytes() })?;
    answer?;
    Ok(ring)
}

/// Says something, and takes the answer.
fn exchange<A: DeserializeOwned>(stream: &MessageStream, words: &impl Serialize) -> Result<A, OpenError> {
    let mut buffer = [0; HELLO_BYTES_MAX];
    let len = stream.send(&encode(words)).and_then(|()| stream.receive(&mut buffer)).map_err(OpenError::Silent)?;
    let len = len.ok_or_else(|| OpenError::Silent(io::ErrorKind::UnexpectedEof.into()))?;
    decode(&buffer[..len]).ok_or(OpenError::NotWelcome)
}
