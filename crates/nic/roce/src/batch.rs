//! One send under construction: a UDP payload, or a GSO batch of equal segments plus at most one shorter last one.
//!
//! Owns the layout of the batch and how each segment ends: with its ICRC, or sealed. Payload bytes are copied once,
//! straight to their place, and ICRC or seal are made of that private copy while it is in the cache, because a tenant
//! may rewrite the source meanwhile.

use std::net::SocketAddr;

use records::{PACKET_NUMBER_BYTES, PACKET_SEAL_BYTES, PacketSealer, TAG_BYTES};
use verbs::{Psn, Qpn};

use crate::limits::{MAX_GSO_SEGMENTS, MAX_UDP_PAYLOAD_BYTES};
use crate::wire::{Header, ICRC_BYTES, PseudoHeader, SEALED_HEAD_BYTES, pad_bytes, sealed_head};

/// What the IPv4 identification field of sent segments will be, which the ICRC covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ipv4IdMode {
    /// Segment `i` of a send has id `i`, as Linux numbers them on an unconnected socket with `IP_MTU_DISCOVER` set to
    /// `DO`: batching is allowed.
    #[default]
    SegmentIndex,
    /// One packet a send, with id 0.
    Zero,
}

/// Where and how a built send goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// The address of the NIC that it leaves from: [`crate::NicConfig::local`], or another one of its own.
    pub source: SocketAddr,
    /// The peer's UDP address.
    pub destination: SocketAddr,
    /// Size of each segment except the last, if there is more than one.
    pub segment_bytes: Option<u16>,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit; 0 for the system's own.
    pub hop_limit: u8,
}

/// What a batch may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchLimits {
    pub(crate) segments: usize,
    pub(crate) id_mode: Ipv4IdMode,
}

impl BatchLimits {
    pub(crate) fn new(max_gso_segments: usize, id_mode: Ipv4IdMode) -> Self {
        let segments = match id_mode {
            Ipv4IdMode::Zero => 1,
            Ipv4IdMode::SegmentIndex => max_gso_segments.clamp(1, MAX_GSO_SEGMENTS),
        };
        Self { segments, id_mode }
    }
}

/// What seals the packets of a connection, and the queue pair that opens them.
#[derive(Debug)]
pub(crate) struct Sealing<'a> {
    pub(crate) sealer: &'a mut PacketSealer,
    pub(crate) to: Qpn,
}

/// How a packet ends.
enum Ending<'a> {
    Icrc(&'a PseudoHeader),
    /// Under the clear header that its receiver finds the key with.
    Sealed(&'a mut PacketSealer, [u8; SEALED_HEAD_BYTES]),
}

impl Ending<'_> {
    /// Bytes in front of and behind the packet.
    const fn around(&self) -> (usize, usize) {
        match self {
            Self::Icrc(_) => (0, ICRC_BYTES),
            Self::Sealed(..) => (SEALED_HEAD_BYTES + PACKET_NUMBER_BYTES, TAG_BYTES),
        }
    }
}

/// A send under construction. The buffer keeps its length between sends as long as its owner does not clear it, so that
/// nothing is zeroed in steady state.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    buf: &'a mut Vec<u8>,
    used: usize,
    segment_bytes: usize,
    count: usize,
    /// The identification of the next segment, where segments are numbered.
    next_id: u16,
    closed: bool,
    limits: BatchLimits,
    sealing: Option<Sealing<'a>>,
    /// Packets that could not be sealed, and so did not leave.
    unsealed: u64,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(buf: &'a mut Vec<u8>, limits: BatchLimits) -> Self {
        let (used, segment_bytes, count, next_id, closed) = (0, 0, 0, 0, false);
        Self { buf, used, segment_bytes, count, next_id, closed, limits, sealing: None, unsealed: 0 }
    }

    /// All packets are sealed, if there is something to seal them with.
    pub(crate) fn sealed_by<'b>(self, sealing: Option<Sealing<'b>>) -> Batch<'b>
    where
        'a: 'b,
    {
        Batch { sealing, ..self }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a packet with so many bytes of headers and payload may be the next segment.
    pub(crate) const fn fits(&self, header_bytes: usize, payload_bytes: usize) -> bool {
        let around = if self.sealing.is_some() { SEALED_HEAD_BYTES + PACKET_SEAL_BYTES } else { ICRC_BYTES };
        self.fits_bytes(header_bytes + payload_bytes + pad_bytes(payload_bytes) + around)
    }

    /// The same for a packet that [`Self::push_sealed`] is for.
    pub(crate) const fn fits_sealed(&self, header_bytes: usize, payload_bytes: usize) -> bool {
        let around = SEALED_HEAD_BYTES + PACKET_SEAL_BYTES;
        self.fits_bytes(header_bytes + payload_bytes + pad_bytes(payload_bytes) + around)
    }

    const fn fits_bytes(&self, len: usize) -> bool {
        if self.count == 0 {
            return true;
        }
        !self.closed
            && self.count < self.limits.segments
            && len <= self.segment_bytes
            && self.used + len <= MAX_UDP_PAYLOAD_BYTES
    }

    /// Appends a packet for which [`Self::fits`] holds; `fill` writes the payload. If it fails, the batch stays as it
    /// was.
    pub(crate) fn push<E>(
        &mut self,
        route: &PseudoHeader,
        header: &Header,
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(sealing) = self.sealing.take() else {
            return self.put(Ending::Icrc(route), header, payload_bytes, fill);
        };
        let Sealing { sealer, to } = sealing;
        let [.., high, middle, low] = sealer.next_number().to_be_bytes();
        let head = sealed_head(to, Psn::new(u32::from_be_bytes([0, high, middle, low])));
        let put = self.put(Ending::Sealed(sealer, head), header, payload_bytes, fill);
        self.sealing = Some(Sealing { sealer, to });
        put
    }

    /// The same for a datagram with keys of its own, for which [`Self::fits_sealed`] holds. `key` names them at the
    /// receiver.
    pub(crate) fn push_sealed<E>(
        &mut self,
        (sealer, to, key): (&mut PacketSealer, Qpn, Psn),
        header: &Header,
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.put(Ending::Sealed(sealer, sealed_head(to, key)), header, payload_bytes, fill)
    }

    fn put<E>(
        &mut self,
        ending: Ending<'_>,
        header: &Header,
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let header = header.as_bytes();
        let covered = header.len() + payload_bytes + pad_bytes(payload_bytes);
        let (before, behind) = ending.around();
        let len = before + covered + behind;
        let end = self.used + len;
        if self.buf.len() < end {
            self.buf.resize(end, 0);
        }
        let packet = &mut self.buf[self.used..end];
        let (head, rest) = packet[before..].split_at_mut(header.len());
        head.copy_from_slice(header);
        fill(&mut rest[..payload_bytes])?;
        rest[payload_bytes..covered - header.len()].fill(0);
        match ending {
            Ending::Icrc(route) => {
                let id = match self.limits.id_mode {
                    Ipv4IdMode::SegmentIndex => self.next_id,
                    Ipv4IdMode::Zero => 0,
                };
                let icrc = route.icrc(&packet[..covered], id);
                packet[covered..].copy_from_slice(&icrc);
            }
            Ending::Sealed(sealer, head) => {
                packet[..SEALED_HEAD_BYTES].copy_from_slice(&head);
                if !sealer.seal(packet) {
                    // It never leaves, as if the network had lost it: nothing goes in the clear.
                    self.unsealed += 1;
                    return Ok(());
                }
            }
        }
        if self.count == 0 {
            self.segment_bytes = len;
        }
        self.closed = len < self.segment_bytes;
        self.count += 1;
        self.next_id = self.next_id.wrapping_add(1);
        self.used = end;
        Ok(())
    }

    /// Ends the batch: packets and bytes in it, and the segment size if there are several.
    pub(crate) fn finish(self) -> Finished {
        self.buf.truncate(self.used);
        let segment_bytes = if self.count > 1 { u16::try_from(self.segment_bytes).ok() } else { None };
        Finished { packets: self.count, bytes: self.used, segment_bytes, unsealed: self.unsealed }
    }
}

/// What a batch came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finished {
    pub(crate) packets: usize,
    pub(crate) bytes: usize,
    pub(crate) segment_bytes: Option<u16>,
    /// Packets that could not be sealed, and are lost.
    pub(crate) unsealed: u64,
}
