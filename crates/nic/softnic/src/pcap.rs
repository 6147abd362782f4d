//! Capture of packets into a pcap file that tshark dissects. Sockets show payloads only, so the IP and UDP headers are
//! made here as the wire has them: IPv4 with DF and the identification that the ICRC covers (the place in a batch),
//! valid checksums. It must never disturb the NIC: what cannot be written is counted, not reported.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

/// pcap with nanosecond time stamps, in this machine's byte order.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Packets begin with their IPv4 or IPv6 header.
const LINKTYPE_RAW: u32 = 101;
/// Longest packet: both headers and a full payload.
const SNAPLEN: u32 = 65_575;
const FILE_HEADER_BYTES: u64 = 24;
const RECORD_HEADER_BYTES: u64 = 16;
const IPV4_HEADER_BYTES: u16 = 20;
const UDP_HEADER_BYTES: usize = 8;
/// The protocol, in IP headers.
const UDP: u8 = 17;
/// Shown where the packet's own is not known.
const HOP_LIMIT: u8 = 64;

/// A packet as the socket saw it, with what its headers said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) traffic_class: u8,
    /// 0 where it is not known.
    pub(crate) hop_limit: u8,
    /// IPv4 identification: the packet's place in its batch.
    pub(crate) id: u16,
    pub(crate) payload: &'a [u8],
}

/// Writes packets to a file, up to a limit.
#[derive(Debug)]
pub(crate) struct PcapWriter<W: Write> {
    out: W,
    limit_bytes: u64,
    written_bytes: u64,
    record: Vec<u8>,
    pub(crate) packets: u64,
    pub(crate) left_out: u64,
    unflushed: bool,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file header.
    pub(crate) fn new(mut out: W, limit_bytes: u64) -> io::Result<Self> {
        let mut header = Vec::with_capacity(FILE_HEADER_BYTES as usize);
        header.extend_from_slice(&MAGIC_NANOSECONDS.to_ne_bytes());
        header.extend_from_slice(&2_u16.to_ne_bytes());
        header.extend_from_slice(&4_u16.to_ne_bytes());
        header.extend_from_slice(&[0; 8]);
        header.extend_from_slice(&SNAPLEN.to_ne_bytes());
        header.extend_from_slice(&LINKTYPE_RAW.to_ne_bytes());
        out.write_all(&header)?;
        out.flush()?;
        let written_bytes = FILE_HEADER_BYTES;
        Ok(Self { out, limit_bytes, written_bytes, record: Vec::new(), packets: 0, left_out: 0, unflushed: false })
    }

    /// Captures each segment of `batch` as a packet of its own.
    pub(crate) fn capture(&mut self, batch: Seen<'_>, segment_bytes: Option<usize>) {
        let segment_bytes = segment_bytes.unwrap_or(batch.payload.len()).max(1);
        for (i, payload) in batch.payload.chunks(segment_bytes).enumerate() {
            let id = batch.id.wrapping_add(i as u16);
            self.capture_packet(&Seen { id, payload, ..batch });
        }
    }

    /// Gives what is buffered to the system.
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed)
            && let Err(error) = self.out.flush()
        {
            tracing::warn!(%error, "capture file cannot be written");
        }
    }

    fn capture_packet(&mut self, packet: &Seen<'_>) {
        self.record.clear();
        self.record.extend_from_slice(&[0; RECORD_HEADER_BYTES as usize]);
        if !append_packet(&mut self.record, packet) {
            self.left_out += 1;
            return;
        }
        let len = self.record.len() as u64;
        if self.written_bytes + len > self.limit_bytes {
            self.left_out += 1;
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let bytes = (len - RECORD_HEADER_BYTES) as u32;
        let words = [now.as_secs() as u32, now.subsec_nanos(), bytes, bytes];
        for (slot, word) in self.record.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_ne_bytes());
        }
        if let Err(error) = self.out.write_all(&self.record) {
            tracing::warn!(%error, "capture ends: its file cannot be written");
            self.limit_bytes = 0;
            self.left_out += 1;
            return;
        }
        self.written_bytes += len;
        self.packets += 1;
        self.unflushed = true;
    }
}

impl<W: Write> Drop for PcapWriter<W> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Appends IP header, UDP header and payload; `false` if the families differ or the payload is too long.
fn append_packet(out: &mut Vec<u8>, packet: &Seen<'_>) -> bool {
    let Ok(udp_bytes) = u16::try_from(UDP_HEADER_BYTES + packet.payload.len()) else { return false };
    let begin = out.len();
    let addresses = match (packet.source.ip(), packet.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let Some(bytes) = udp_bytes.checked_add(IPV4_HEADER_BYTES) else { return false };
            out.extend([0x45, packet.traffic_class]);
            out.extend(bytes.to_be_bytes());
            out.extend(packet.id.to_be_bytes());
            // DF, no offset; the checksum follows.
            out.extend([0x40, 0, shown(packet.hop_limit), UDP, 0, 0]);
            out.extend(source.octets());
            out.extend(destination.octets());
            let checksum = checksum(&out[begin..], 0).to_be_bytes();
            out[begin + 10..begin + 12].copy_from_slice(&checksum);
            2 * 4
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            out.extend((6 << 28 | u32::from(packet.traffic_class) << 20).to_be_bytes());
            out.extend(udp_bytes.to_be_bytes());
            out.extend([UDP, shown(packet.hop_limit)]);
            out.extend(source.octets());
            out.extend(destination.octets());
            2 * 16
        }
        _ => return false,
    };
    let udp = out.len();
    out.extend(packet.source.port().to_be_bytes());
    out.extend(packet.destination.port().to_be_bytes());
    out.extend(udp_bytes.to_be_bytes());
    out.extend([0, 0]);
    out.extend_from_slice(packet.payload);
    // The pseudo header has the addresses, which end where UDP begins, the protocol and the length.
    let checksum = match checksum(&out[udp - addresses..], u32::from(UDP) + u32::from(udp_bytes)) {
        // Zero on the wire means that there is none.
        0 => u16::MAX,
        checksum => checksum,
    };
    out[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// Of `bytes` and what else counts (RFC 1071).
fn checksum(bytes: &[u8], more: u32) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)));
    // Of 65,575 bytes at most, so it does not overflow; folded twice, it fits.
    let sum = more + words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum + (sum >> 16)) as u16)
}

const fn shown(hop_limit: u8) -> u8 {
    if hop_limit == 0 { HOP_LIMIT } else { hop_limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen<'a>(source: &str, destination: &str, payload: &'a [u8]) -> Seen<'a> {
        let source = source.parse().unwrap();
        let destination = destination.parse().unwrap();
        Seen { source, destination, traffic_class: 0, hop_limit: 0, id: 0, payload }
    }

    /// Sum of the big-endian 16-bit words, an odd last byte padded with zero, folded (RFC 1071): all ones where the
    /// bytes have their right checksum among them.
    fn folded(bytes: &[u8], more: u64) -> u64 {
        let word = |w: &[u8]| u64::from(w[0]) << 8 | w.get(1).map_or(0, |low| u64::from(*low));
        let mut sum = more + bytes.chunks(2).map(word).sum::<u64>();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum
    }

    #[test]
    fn headers_are_those_of_the_wire() {
        let mut packet = Vec::new();
        let v4 = Seen { traffic_class: 0xb9, id: 0x1234, ..seen("192.0.2.1:4791", "192.0.2.2:4790", b"odd") };
        assert!(append_packet(&mut packet, &v4));
        assert_eq!(packet[..10], [0x45, 0xb9, 0, 31, 0x12, 0x34, 0x40, 0, 64, 17], "with DF and the identification");
        assert_eq!(folded(&packet[..20], 0), 0xffff);
        assert_eq!(folded(&packet[20..], folded(&packet[12..20], 17 + 11)), 0xffff, "UDP with its pseudo header");
        assert_eq!(packet[20..26], [0x12, 0xb7, 0x12, 0xb6, 0, 11]);
        packet.clear();
        let v6 = Seen { traffic_class: 0xb9, ..seen("[2001:db8::1]:1", "[2001:db8::2]:2", b"even") };
        assert!(append_packet(&mut packet, &v6));
        assert_eq!(packet[..8], [0x6b, 0x90, 0, 0, 0, 12, 17, 64]);
        assert_eq!(folded(&packet[40..], folded(&packet[8..40], 17 + 12)), 0xffff);
    }

    #[test]
    fn segments_get_consecutive_identifications() {
        let mut file = Vec::new();
        let mut writer = PcapWriter::new(&mut file, u64::MAX).unwrap();
        writer.capture(seen("192.0.2.1:1", "192.0.2.2:2", &[7; 25]), Some(10));
        writer.capture(seen("[2001:db8::1]:1", "[2001:db8::2]:2", &[7; 25]), None);
        assert_eq!((writer.packets, writer.left_out), (4, 0));
        drop(writer);
        let first = 24 + 16;
        let step = 16 + 20 + 8 + 10;
        for i in 0..3 {
            let ip = &file[first + i * step..];
            assert_eq!(u16::from_be_bytes([ip[4], ip[5]]), i as u16);
        }
        let v6 = first + 2 * step + 20 + 8 + 5 + 16;
        assert_eq!(file[v6] >> 4, 6);
        assert_eq!(file.len(), v6 + 40 + 8 + 25);
    }

    #[test]
    fn the_limit_holds_and_what_is_left_out_is_counted() {
        let mut file = Vec::new();
        let mut writer = PcapWriter::new(&mut file, 200).unwrap();
        for _ in 0..5 {
            writer.capture(seen("192.0.2.1:1", "192.0.2.2:2", &[7; 30]), None);
        }
        assert_eq!((writer.packets, writer.left_out), (2, 3));
        writer.capture(seen("192.0.2.1:1", "[::1]:2", &[7; 3]), None);
        writer.capture(seen("192.0.2.1:1", "192.0.2.2:2", &[7; 65_510]), None);
        assert_eq!(writer.left_out, 5);
        drop(writer);
        assert!(file.len() <= 200);
    }
}
