//! Capture of packets into a pcap file that tshark dissects. Sockets show payloads only, so the IP and UDP headers are
//! made here as the wire has them: IPv4 with DF and the identification that the ICRC covers (the place in a batch),
//! valid checksums. It must never disturb the NIC: what cannot be written is counted, not reported.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

/// pcap with nanosecond time stamps, in this machine's byte order.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Packets begin with their IPv4 or IPv6 header.
const LINKTYPE_RAW: u32 = 101;
/// Longest packet: both headers and a full payload.
const SNAPLEN: u32 = 65_575;
const FILE_HEADER_BYTES: u64 = 24;
const RECORD_HEADER_BYTES: u64 = 16;
const UDP_HEADER_BYTES: usize = 8;
const PROTOCOL_UDP: u8 = 17;
const HOP_LIMIT: u8 = 64;

/// A packet as the socket saw it, with what its headers said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) traffic_class: u8,
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
    let Ok(udp_len) = u16::try_from(packet.payload.len() + UDP_HEADER_BYTES) else { return false };
    let pseudo = match (packet.source.ip(), packet.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let Some(total) = udp_len.checked_add(20) else { return false };
            append_ipv4(out, source, destination, packet, total);
            sum_of(&source.octets()) + sum_of(&destination.octets())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            append_ipv6(out, source, destination, packet, udp_len);
            sum_of(&source.octets()) + sum_of(&destination.octets())
        }
        _ => return false,
    };
    let start = out.len();
    out.extend_from_slice(&packet.source.port().to_be_bytes());
    out.extend_from_slice(&packet.destination.port().to_be_bytes());
    out.extend_from_slice(&udp_len.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(packet.payload);
    let sum = pseudo + u64::from(PROTOCOL_UDP) + u64::from(udp_len) + sum_of(&out[start..]);
    // A checksum of zero means none, so zero is sent as its other representation (RFC 768).
    let checksum = match folded(sum) {
        0 => 0xffff,
        other => other,
    };
    out[start + 6..start + 8].copy_from_slice(&checksum.to_be_bytes());
    true
}

fn append_ipv4(out: &mut Vec<u8>, source: Ipv4Addr, destination: Ipv4Addr, packet: &Seen<'_>, total: u16) {
    const DONT_FRAGMENT: u8 = 0x40;
    let start = out.len();
    out.extend_from_slice(&[0x45, packet.traffic_class]);
    out.extend_from_slice(&total.to_be_bytes());
    out.extend_from_slice(&packet.id.to_be_bytes());
    out.extend_from_slice(&[DONT_FRAGMENT, 0, HOP_LIMIT, PROTOCOL_UDP, 0, 0]);
    out.extend_from_slice(&source.octets());
    out.extend_from_slice(&destination.octets());
    let checksum = folded(sum_of(&out[start..]));
    out[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
}

fn append_ipv6(out: &mut Vec<u8>, source: Ipv6Addr, destination: Ipv6Addr, packet: &Seen<'_>, payload_len: u16) {
    let first = (6_u32 << 28) | (u32::from(packet.traffic_class) << 20);
    out.extend_from_slice(&first.to_be_bytes());
    out.extend_from_slice(&payload_len.to_be_bytes());
    out.extend_from_slice(&[PROTOCOL_UDP, HOP_LIMIT]);
    out.extend_from_slice(&source.octets());
    out.extend_from_slice(&destination.octets());
}

/// Sum of the big-endian 16-bit words of `bytes`, an odd last byte padded with zero (RFC 1071).
fn sum_of(bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .map(|w| match w {
            [high, low] => u64::from(u16::from_be_bytes([*high, *low])),
            [high] => u64::from(*high) << 8,
            _ => 0,
        })
        .sum()
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen<'a>(source: &str, destination: &str, payload: &'a [u8]) -> Seen<'a> {
        let source = source.parse().unwrap();
        let destination = destination.parse().unwrap();
        Seen { source, destination, traffic_class: 0, id: 0, payload }
    }

    #[test]
    fn checksums_of_known_packets() {
        // The example of RFC 1071, section 3.
        assert_eq!(folded(sum_of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), !0xddf2);
        // A receiver sums the header with its checksum and must find all ones.
        let mut packet = Vec::new();
        assert!(append_packet(&mut packet, &seen("192.0.2.1:4791", "192.0.2.2:4791", b"odd")));
        assert_eq!(packet.len(), 31);
        assert_eq!(folded(sum_of(&packet[..20])), 0);
        let pseudo = sum_of(&packet[12..20]) + 17 + 11;
        assert_eq!(folded(pseudo + sum_of(&packet[20..])), 0);
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
