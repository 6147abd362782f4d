//! Connecting: the first exchange, and what the transport needs.
//!
//! Owns the making of a link.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use raas::{ConnectOptions, DatagramOptions, MessageStream, Region, RegionKey, Session};

use super::Settings;
use super::link::Link;
use super::messages::Messages;
use super::slots::Slots;
use crate::error::OpenError;
use crate::hello::{HELLO_BYTES_MAX, HELLO_VERSION, Hello, HelloAnswer, Welcome, decode, encode};

/// How long a message for the server may wait for room.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A link, and what the server said.
pub(crate) struct Dialed {
    pub(crate) link: Arc<dyn Link>,
    pub(crate) is_known: bool,
    pub(crate) request_bytes_max: usize,
    pub(crate) response_bytes_max: usize,
}

/// Connects; each step takes at most `timeout`.
pub(crate) fn dial(session: &Session, settings: &Settings, timeout: Duration) -> Result<Dialed, OpenError> {
    let options = ConnectOptions::new().timeout(timeout);
    let stream = MessageStream::connect_with(session, &settings.addresses[..], options)?;
    let socket = match settings.transport.has_slots() {
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
    let Settings { id: client, transport, window, .. } = *settings;
    let hello = Hello { version: HELLO_VERSION, client, transport, window, datagrams };
    let Welcome { is_known, request_bytes_max, response_bytes_max, grant } = exchange(&stream, &hello, timeout)?;
    let link: Arc<dyn Link> = match (socket, grant) {
        (None, None) => Arc::new(Messages::new(stream, response_bytes_max)),
        (Some(socket), Some(grant)) => {
            let host = stream.peer_addr().map_err(OpenError::Silent)?.ip();
            let region = Region::open(session, host, &grant.region, RegionKey::new(grant.key))?;
            // Nobody else's datagrams are taken.
            socket.connect(grant.datagrams).map_err(OpenError::Datagrams)?;
            let limits = (grant, request_bytes_max, response_bytes_max);
            Arc::new(Slots::new(stream, region, socket, transport, limits))
        }
        _ => return Err(OpenError::NotWelcome),
    };
    let [request_bytes_max, response_bytes_max] = [request_bytes_max, response_bytes_max].map(|max| max as usize);
    Ok(Dialed { link, is_known, request_bytes_max, response_bytes_max })
}

fn exchange(stream: &MessageStream, hello: &Hello, timeout: Duration) -> Result<Welcome, OpenError> {
    let mut buffer = [0; HELLO_BYTES_MAX];
    let mut talk = || -> io::Result<Option<usize>> {
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        stream.set_read_timeout(Some(timeout))?;
        stream.send(&encode(hello))?;
        stream.receive(&mut buffer)
    };
    let len = talk().map_err(OpenError::Silent)?;
    let len = len.ok_or_else(|| OpenError::Silent(io::ErrorKind::UnexpectedEof.into()))?;
    let answer: HelloAnswer = decode(&buffer[..len]).ok_or(OpenError::NotWelcome)?;
    Ok(answer?)
}
