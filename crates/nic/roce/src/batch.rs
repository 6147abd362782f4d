//! One send under construction: a UDP payload, or a GSO batch of equal segments plus at most one shorter last one.
//!
//! Owns the layout of the batch and the ICRC of each segment. Payload bytes are copied once, straight to their place,
//! and the ICRC is computed over that private copy, because a tenant may rewrite the source meanwhile.

use std::net::SocketAddr;

use crate::limits::{MAX_GSO_SEGMENTS, MAX_UDP_PAYLOAD_BYTES};
use crate::wire::{Header, ICRC_BYTES, PseudoHeader, pad_bytes};

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
}

impl<'a> Batch<'a> {
    pub(crate) fn new(buf: &'a mut Vec<u8>, limits: BatchLimits) -> Self {
        Self { buf, used: 0, segment_bytes: 0, count: 0, next_id: 0, closed: false, limits }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a packet with so many bytes of headers and payload may be the next segment.
    pub(crate) const fn fits(&self, header_bytes: usize, payload_bytes: usize) -> bool {
        if self.count == 0 {
            return true;
        }
        let len = header_bytes + payload_bytes + pad_bytes(payload_bytes) + ICRC_BYTES;
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
        let header = header.as_bytes();
        let covered = header.len() + payload_bytes + pad_bytes(payload_bytes);
        let end = self.used + covered + ICRC_BYTES;
        if self.buf.len() < end {
            self.buf.resize(end, 0);
        }
        let packet = &mut self.buf[self.used..end];
        let (head, rest) = packet.split_at_mut(header.len());
        head.copy_from_slice(header);
        fill(&mut rest[..payload_bytes])?;
        rest[payload_bytes..covered - header.len()].fill(0);
        let id = match self.limits.id_mode {
            Ipv4IdMode::SegmentIndex => self.next_id,
            Ipv4IdMode::Zero => 0,
        };
        let icrc = route.icrc(&packet[..covered], id);
        packet[covered..].copy_from_slice(&icrc);
        let len = covered + ICRC_BYTES;
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
        Finished { packets: self.count, bytes: self.used, segment_bytes }
    }
}

/// What a batch came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finished {
    pub(crate) packets: usize,
    pub(crate) bytes: usize,
    pub(crate) segment_bytes: Option<u16>,
}
