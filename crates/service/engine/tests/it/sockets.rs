//! Datagram sockets as an application holds them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use control::{Connection, Path};
use shm::{DatagramRecord, RECORD_HEADER_BYTES, RingMemory, RingReader, RingWriter, Session, SlotWords};
use verbs::Region;

/// An application's end of a datagram socket.
pub(crate) struct SimSocket {
    pub(crate) local: SocketAddr,
    pub(crate) words: SlotWords,
    pub(crate) writer: RingWriter,
    pub(crate) reader: RingReader,
    pub(crate) tx: RingMemory,
}

impl SimSocket {
    pub(crate) fn new(session: &Session, chunks: &BTreeMap<u32, Region>, connection: &Connection) -> (u32, Self) {
        let Path::Lane { slot, generation, tx_chunk, tx_offset, rx_chunk, rx_offset, ring_bytes, .. } = connection.path
        else {
            panic!("not a slot: {connection:?}")
        };
        let words = session.slot(slot);
        let ring = |chunk: u32, offset| RingMemory { region: chunks[&chunk].clone(), offset, bytes: ring_bytes.into() };
        let (tx, rx) = (ring(tx_chunk, tx_offset), ring(rx_chunk, rx_offset));
        let reader = RingReader::new(rx, words.rx_tail.clone(), words.rx_head.clone(), 0).unwrap();
        let writer = RingWriter::new(tx.clone(), words.tx_tail.clone(), words.tx_head.clone(), 0).unwrap();
        words.app_generation.store(generation, Ordering::Release);
        (slot, Self { local: connection.local, words, writer, reader, tx })
    }

    /// Puts a datagram into the ring; false if it has no room.
    pub(crate) fn send(&mut self, to: SocketAddr, payload: &[u8]) -> bool {
        let record = DatagramRecord { addr: to, bytes: payload.len() as u16 };
        self.writer.free().expect("the engine keeps to the rules") >= record.ring_bytes()
            && self.writer.write_ahead(0, &record.to_bytes())
            && self.writer.write_ahead(RECORD_HEADER_BYTES as u64, payload)
            && self.writer.commit(record.ring_bytes())
    }

    pub(crate) fn receive(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        let available = self.reader.available().expect("the engine keeps to the rules");
        if available == 0 {
            return None;
        }
        let mut header = [0; RECORD_HEADER_BYTES];
        assert_eq!(self.reader.peek_ahead(0, &mut header), header.len());
        let record = DatagramRecord::parse(&header).expect("the engine writes records");
        assert!(record.ring_bytes() <= available, "a record is there as a whole");
        let mut payload = vec![0; record.bytes.into()];
        self.reader.peek_ahead(RECORD_HEADER_BYTES as u64, &mut payload);
        self.reader.consume(record.ring_bytes());
        Some((record.addr, payload))
    }
}
