//! One connection between a worker and a server: messages over kernel TCP, or over RaaS. Owns the framing over TCP.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use raas::{ConnectOptions, MessageStream, Session};

use crate::error::WorkError;
use crate::wire::MESSAGE_BYTES_MAX;

/// Bytes of a ring over RaaS: the longest message fits.
pub(crate) const RING_BYTES: u32 = 512 * 1024;
/// What a read over TCP takes at most.
const READ_BYTES: usize = 64 * 1024;
const LENGTH_BYTES: usize = 4;
const _: () = assert!((RING_BYTES as usize) > MESSAGE_BYTES_MAX);

/// What carries connections.
#[derive(Debug, Clone)]
pub enum Over {
    /// Kernel TCP.
    Tcp,
    /// RaaS, in this session.
    Raas(Session),
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    carrier: Carrier,
    /// The message that was received last.
    received: Vec<u8>,
}

#[derive(Debug)]
enum Carrier {
    Tcp { reader: BufReader<TcpStream>, frame: Vec<u8> },
    Raas(MessageStream),
}

impl Connection {
    pub(crate) fn connect(over: &Over, to: SocketAddr) -> Result<Self, WorkError> {
        match over {
            Over::Tcp => {
                let stream = TcpStream::connect(to).and_then(Self::tcp);
                stream.map_err(|error| WorkError::Connect { to, error })
            }
            Over::Raas(session) => {
                let options = ConnectOptions::new().ring_bytes(RING_BYTES);
                let stream = MessageStream::connect_with(session, to, options);
                stream.map(Self::raas).map_err(|error| WorkError::Reach { to, error })
            }
        }
    }

    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let reader = BufReader::with_capacity(READ_BYTES, stream);
        Ok(Self { carrier: Carrier::Tcp { reader, frame: vec![] }, received: vec![] })
    }

    pub(crate) fn raas(stream: MessageStream) -> Self {
        Self { carrier: Carrier::Raas(stream), received: vec![0; MESSAGE_BYTES_MAX] }
    }

    /// Sends a message of at most [`MESSAGE_BYTES_MAX`].
    pub(crate) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match &mut self.carrier {
            Carrier::Tcp { reader, frame } => {
                let len = u32::try_from(message.len()).map_err(|_| too_long(message.len()))?;
                frame.clear();
                frame.extend(len.to_le_bytes());
                frame.extend(message);
                reader.get_mut().write_all(frame)
            }
            Carrier::Raas(stream) => stream.send(message),
        }
    }

    /// Waits for the next message; none at the end of the connection.
    pub(crate) fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        let Self { carrier, received } = self;
        match carrier {
            Carrier::Tcp { reader, .. } => {
                if reader.fill_buf()?.is_empty() {
                    return Ok(None);
                }
                let mut len = [0; LENGTH_BYTES];
                reader.read_exact(&mut len)?;
                let len = u32::from_le_bytes(len) as usize;
                if len > MESSAGE_BYTES_MAX {
                    return Err(too_long(len));
                }
                received.resize(len, 0);
                reader.read_exact(received)?;
                Ok(Some(received))
            }
            Carrier::Raas(stream) => {
                let len = stream.receive(received)?;
                Ok(len.and_then(|len| received.get(..len)))
            }
        }
    }
}

fn too_long(len: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a message of {len} bytes: at most {MESSAGE_BYTES_MAX}"))
}
