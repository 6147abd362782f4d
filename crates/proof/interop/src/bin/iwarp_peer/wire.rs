//! The TCP connection: a socket that does not wait, with what the queue pair wants to send and where it wants to receive.
//!
//! Bytes are copied here; the software NIC lets the kernel do it. The judge looks at what is on the wire.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use anyhow::Result;
use iwarp::{Gather, GatherPiece, Qp, Scatter};
use rnic::Device;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Pieces and bytes that go to the socket at a time.
const PIECES_MAX: usize = 64;
const BYTES_MAX: u64 = 256 << 10;

/// A connection of a queue pair.
pub(crate) struct Wire {
    stream: Option<TcpStream>,
    gather: Gather,
    scatter: Scatter,
    /// The next FPDU that is sent gets its last byte, one of its CRC, turned over.
    pub(crate) breaks_crc: bool,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let gather = Gather::new(PIECES_MAX, BYTES_MAX);
        Ok(Self { stream: Some(stream), gather, scatter: Scatter::new(), breaks_crc: false })
    }

    /// Moves what can be moved; says whether anything did.
    pub(crate) fn step(&mut self, qp: &mut Qp, dev: &mut Device) -> bool {
        let moved = self.send(qp, dev) | self.receive(qp, dev);
        if qp.is_shutdown_due()
            && let Some(stream) = &self.stream
        {
            // A connection that the peer has reset already cannot be shut down, and need not be.
            let _ = stream.shutdown(Shutdown::Write);
        }
        if qp.is_over() {
            self.stream = None;
        }
        moved
    }

    fn send(&mut self, qp: &mut Qp, dev: &mut Device) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        qp.poll_transmit(dev, &mut self.gather);
        if self.gather.is_empty() {
            return false;
        }
        let mut bytes = vec![];
        for piece in self.gather.pieces() {
            match piece {
                GatherPiece::Own(range) => bytes.extend_from_slice(self.gather.own_bytes(range)),
                GatherPiece::Memory(range) => {
                    let start = bytes.len();
                    bytes.resize(start + range.len as usize, 0);
                    range.region.read(range.offset, &mut bytes[start..]).expect("the range was checked");
                }
            }
        }
        if std::mem::take(&mut self.breaks_crc)
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 0xff;
        }
        match stream.write(&bytes) {
            Ok(sent) => qp.sent(dev, sent as u64),
            Err(error) if is_later(error.kind()) => return false,
            Err(_) => qp.broke(dev),
        }
        true
    }

    fn receive(&mut self, qp: &mut Qp, dev: &mut Device) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        qp.want(dev, &mut self.scatter);
        if self.scatter.is_empty() {
            return false;
        }
        let memory = self.scatter.memory_bytes() as usize;
        let mut bytes = vec![0; memory + self.scatter.buffer_bytes];
        match stream.read(&mut bytes) {
            Ok(0) => qp.on_eof(dev),
            Ok(count) => {
                let placed = count.min(memory);
                let mut rest = &bytes[..placed];
                for piece in &self.scatter.pieces {
                    let (now, later) = rest.split_at(rest.len().min(piece.len as usize));
                    piece.region.write(piece.offset, now).expect("the range was checked");
                    rest = later;
                }
                qp.received(dev, placed as u64, &bytes[placed..count]);
            }
            Err(error) if is_later(error.kind()) => return false,
            Err(_) => qp.broke(dev),
        }
        true
    }

    /// Sleeps until the socket is ready, or so long.
    pub(crate) fn wait(&self, most: Duration) {
        let limit = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        let Some(stream) = &self.stream else { return std::thread::sleep(most) };
        let mut flags = PollFlags::empty();
        if !self.scatter.is_empty() {
            flags |= PollFlags::IN;
        }
        if !self.gather.is_empty() {
            flags |= PollFlags::OUT;
        }
        // An interrupted wait is a short one.
        let _ = poll(&mut [PollFd::new(stream, flags)], Some(&limit));
    }
}

fn is_later(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
