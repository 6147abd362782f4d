//! Control frames on a lane: the bytes of docs/inside/wire.md, section "Lane frames".
//!
//! Owns layout, syntax, and what can be said of a value alone ([`check_ring`], [`check_route`]). It must never judge
//! meaning: whether a route exists or a number is allowed is decided where the record is used. All integers are
//! big-endian; parsing never panics, whatever the bytes are.
//!
//! Over 600 lines because each record has its layout, its reading and its writing here, side by side.

use std::net::{IpAddr, Ipv6Addr};

use control::RegionAccess;
use shm::{KERNEL_BYTES_MAX, OperationStatus};
use verbs::{ENDPOINT_BYTES_MAX, RemoteAddr, Rkey};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ask::Ask;
use crate::choice::Load;
use crate::immediate::ROUTE_BITS;
use crate::limits::{PIECE_BYTES_MIN, RING_BYTES_MIN, WRITE_PLACES_MAX};
use crate::ring_size::RingSize;

/// Version in the header.
pub(crate) const FRAME_VERSION: u8 = 1;
/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = size_of::<WireHeader>();

const KIND_OPEN: u8 = 1;
const KIND_OPEN_ACK: u8 = 2;
const KIND_OPEN_NAK: u8 = 3;
const KIND_HEAD: u8 = 4;
const KIND_FIN: u8 = 5;
const KIND_STOP: u8 = 6;
const KIND_RESET: u8 = 7;
const KIND_RECLAIM: u8 = 8;
const KIND_YIELD: u8 = 9;
const KIND_GROW: u8 = 10;
const KIND_GROW_ANSWER: u8 = 11;
const KIND_GROWN_AT: u8 = 12;
const KIND_EXECUTE: u8 = 13;
const KIND_EXECUTED: u8 = 14;
const KIND_READY: u8 = 15;
const KIND_PULLED: u8 = 16;
const KIND_LOAD: u8 = 17;
const KIND_RUN: u8 = 18;
const KIND_ANSWER: u8 = 19;
const KIND_BACK: u8 = 20;
const KIND_GONE: u8 = 21;
const KIND_UNRELIABLE_OFFER: u8 = 22;
const KIND_UNRELIABLE_ANSWER: u8 = 23;
const KIND_PLACES_ASK: u8 = 24;
const KIND_PLACES: u8 = 25;
const KIND_PLACES_GRANT: u8 = 26;

/// Bytes of a frame that are not a kernel's: the header, records that come first in every frame, and the record's own.
pub(crate) const KERNEL_OVERHEAD_BYTES: usize = 128;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireHeader {
    version: u8,
    flags: u8,
    records: U16,
    incarnation: U32,
    sequence: U64,
    credits: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireRecord {
    kind: u8,
    reserved: u8,
    bytes: U16,
    route: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireOpen {
    ring_bytes: U32,
    rkey: U32,
    addr: U64,
    to_port: U16,
    from_port: U16,
    kind: U32,
    to_address: [u8; 16],
    grown_bytes: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireOpenAck {
    route: U32,
    ring_bytes: U32,
    rkey: U32,
    grown_bytes: U32,
    addr: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireBack {
    route: U32,
    flags: U32,
    ring_bytes: U32,
    grown_bytes: U32,
    rkey: U32,
    reserved: U32,
    addr: U64,
    rx_tail: U64,
    rx_head: U64,
    tx_grown_at: U64,
    rx_grown_at: U64,
}

/// A flag of [`WireBack`], above those of [`control::route_flag`].
const BACK_IS_ANSWER: u32 = 1 << 8;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireReason {
    reason: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireCredits {
    count: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireOffset {
    offset: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireReady {
    end: U64,
    addr: U64,
    rkey: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireLoad {
    cpu: u8,
    memory: u8,
    reserved: [u8; 6],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireExecute {
    id: U32,
    opcode: u8,
    reserved: [u8; 3],
    offset: U64,
    operand: U64,
    compare: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireExecuted {
    value: U64,
    status: u8,
    reserved: [u8; 7],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireRun {
    id: U32,
    program: U32,
    access: u8,
    regions: u8,
    reserved: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireRunRegion {
    key: U32,
    access: u8,
    reserved: [u8; 3],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireUnreliableOffer {
    piece_bytes: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WirePlaces {
    addr: U64,
    rkey: U32,
    count: U32,
    bytes: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireAnswer {
    failed: u8,
    reserved: [u8; 3],
}

/// What every frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Records that follow.
    pub(crate) records: u16,
    /// Incarnation of the sender's end of the lane.
    pub(crate) incarnation: u32,
    /// Counts the frames of the incarnation from 1.
    pub(crate) sequence: u64,
    /// SRQ entries given to the receiver since the incarnation began, beyond those of the offer.
    pub(crate) credits: u64,
}

/// A ring that the receiver of the record may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireRing {
    pub(crate) size: RingSize,
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
}

impl WireRing {
    /// Where it begins.
    pub(crate) fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.addr, rkey: Rkey(self.rkey) }
    }
}

/// Asks for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Open {
    /// Route id of the asking end.
    pub(crate) route: u32,
    pub(crate) ring: WireRing,
    pub(crate) to_port: u16,
    pub(crate) from_port: u16,
    /// [`control::Kind::code`], or a number that this release does not know.
    pub(crate) kind: u32,
    /// The address that the application named.
    pub(crate) to_address: IpAddr,
}

/// One end of a connection goes on after its daemon, or the link to the other, was lost. Nothing of the connection is
/// sent before each end has the other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Back {
    /// The receiver's route id.
    pub(crate) route: u32,
    /// The sender's.
    pub(crate) own_route: u32,
    /// The sender has the receiver's, and sends from here on.
    pub(crate) is_answer: bool,
    /// Which of the receiver's ends arrived: bits of [`control::route_flag`].
    pub(crate) flags: u8,
    /// The sender's receive ring.
    pub(crate) ring: WireRing,
    /// What arrived at the sender, and what its application consumed.
    pub(crate) rx_tail: u64,
    pub(crate) rx_head: u64,
    /// From where on the sender uses all of its rings; 0: not yet.
    pub(crate) tx_grown_at: u64,
    pub(crate) rx_grown_at: u64,
}

/// A region that a kernel is to run at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunRegion {
    /// Its key at the owner's device.
    pub(crate) key: u32,
    /// What the program's handle allows.
    pub(crate) access: RegionAccess,
}

/// Memory into which the receiver of the record may WRITE pieces of messages on UC: docs/use/unreliable.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WritePlaces {
    pub(crate) first: RemoteAddr,
    /// 0: there are none.
    pub(crate) count: u32,
    /// Of each; they follow each other.
    pub(crate) bytes: u32,
}

impl WritePlaces {
    /// There are none.
    pub(crate) const NONE: Self = Self { first: RemoteAddr { addr: 0, rkey: Rkey(0) }, count: 0, bytes: 0 };

    fn fits(&self) -> bool {
        let all = u64::from(self.count) * u64::from(self.bytes);
        *self == Self::NONE
            || (1..=WRITE_PLACES_MAX).contains(&self.count)
                && self.bytes >= PIECE_BYTES_MIN
                && self.first.addr.checked_add(all).is_some()
    }
}

/// Asks the owner of a region to run a kernel at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// Comes back in the answer.
    pub(crate) id: u32,
    /// Which of the sender's programs asks: those of one host have their turns.
    pub(crate) program: u32,
    /// The region, and then those that the kernel may use beside it.
    pub(crate) regions: Vec<RunRegion>,
    /// The kernel's name and arguments.
    pub(crate) request: Vec<u8>,
}

/// One thing that a frame says. `route` is the receiver's route id, except in [`Open`]; Reclaim, Yield, and what is said
/// of the UC queue pair, are about the lane, and have none. Execute, Executed, Run and Answer are about regions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    Open(Open),
    /// The connection exists; `own_route` and `ring` are the answering end's.
    OpenAck {
        route: u32,
        own_route: u32,
        ring: WireRing,
    },
    OpenNak {
        route: u32,
        reason: u32,
    },
    Back(Back),
    /// The sender has nothing of the connection that the receiver said is back.
    Gone {
        route: u32,
    },
    /// The application has consumed all bytes before this offset.
    Head {
        route: u32,
        consumed: u64,
    },
    /// No bytes at or after this offset will come.
    Fin {
        route: u32,
        final_tail: u64,
    },
    /// The sender's application will read no more.
    Stop {
        route: u32,
    },
    /// The connection is over, and the sender of the record writes no more.
    Reset {
        route: u32,
        reason: u32,
    },
    /// The receiver of the record is to hold no more than so many credits.
    Reclaim {
        most: u32,
    },
    /// The sender of the record gives up so many credits that it did not use.
    Yield {
        count: u32,
    },
    /// Asks for a larger receive ring.
    Grow {
        route: u32,
    },
    /// Whether there is one.
    GrowAnswer {
        route: u32,
        allowed: bool,
    },
    /// From this offset on the sender of the record uses all of the receive ring.
    GrownAt {
        route: u32,
        at: u64,
    },
    /// The receiver of the record may read the sender's transmit ring, which is `ring`, up to this offset.
    Ready {
        route: u32,
        end: u64,
        ring: RemoteAddr,
    },
    /// The sender of the record reads nothing before this offset of it any more.
    Pulled {
        route: u32,
        end: u64,
    },
    /// How busy the host of the sender is.
    Load(Load),
    /// The sender's end of a UC queue pair beside the lane's, and the longest piece that it takes.
    UnreliableOffer {
        piece_bytes: u32,
        endpoint: Vec<u8>,
    },
    /// The sender took the receiver's end (0), and can receive; or the reason why there will be none.
    UnreliableAnswer {
        reason: u32,
    },
    /// The sender wants to WRITE on the UC queue pair.
    PlacesAsk,
    /// Where it may: numbers below the count.
    Places(WritePlaces),
    /// Numbers below this one are granted.
    PlacesGrant {
        end: u64,
    },
    /// Asks the owner of a region to do something with it; `id` comes back.
    Execute {
        key: u32,
        id: u32,
        offset: u64,
        ask: Ask,
    },
    /// It is done.
    Executed {
        id: u32,
        status: OperationStatus,
        value: u64,
    },
    Run(Run),
    /// What a kernel says, or why it has no answer.
    Answer {
        id: u32,
        failed: bool,
        bytes: Vec<u8>,
    },
}

impl Record {
    /// The connection that it is about, of those that both ends know.
    pub(crate) fn route(&self) -> Option<u32> {
        match self {
            Self::Head { route, .. }
            | Self::Fin { route, .. }
            | Self::Stop { route }
            | Self::Reset { route, .. }
            | Self::Grow { route }
            | Self::GrowAnswer { route, .. }
            | Self::GrownAt { route, .. }
            | Self::Ready { route, .. }
            | Self::Pulled { route, .. } => Some(*route),
            _ => None,
        }
    }

    /// Whether it is about bytes of a ring that both ends count: no connection of messages on UC has such.
    pub(crate) fn is_about_bytes(&self) -> bool {
        matches!(
            self,
            Self::Grow { .. }
                | Self::GrowAnswer { .. }
                | Self::GrownAt { .. }
                | Self::Ready { .. }
                | Self::Pulled { .. }
        )
    }

    /// Whether it is about the lane alone: it does not show that the lane is used.
    pub(crate) fn is_about_credits(&self) -> bool {
        matches!(self, Self::Reclaim { .. } | Self::Yield { .. } | Self::Load(_))
    }
}

/// Bytes that are no frame of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("frame ends within {0}")]
    Truncated(&'static str),
    #[error("frame has version {0}, this build speaks {FRAME_VERSION}")]
    Version(u8),
    #[error("record of unknown kind {0}")]
    Kind(u8),
    #[error("record of kind {kind} says {bytes} bytes")]
    Length { kind: u8, bytes: u16 },
    #[error("{0} bytes follow the last record")]
    Trailing(usize),
    #[error("reserved bits are set in {0}")]
    Reserved(&'static str),
    #[error("route {0:#x} is more than {ROUTE_BITS} bits")]
    Route(u32),
    #[error("ring of {} bytes that grows to {}, where a power of two of at most {} and {} is allowed",
            size.first, size.grown, max.first, max.grown)]
    Ring { size: RingSize, max: RingSize },
    #[error("answer {0} to a question for yes or no")]
    Answer(u32),
    #[error("operation {opcode} with operand {operand:#x}, of which there is none")]
    Operation { opcode: u8, operand: u64 },
    #[error("status {0} of an operation, of which there is none")]
    Status(u8),
    #[error("{found} bytes of a kernel, {max} at most")]
    Kernel { found: usize, max: usize },
    #[error("endpoint of {found} bytes, where 1 to {ENDPOINT_BYTES_MAX} are allowed")]
    Endpoint { found: usize },
    #[error("pieces of {0} bytes, where {PIECE_BYTES_MIN} are the fewest")]
    Piece(u32),
    #[error(
        "{count} places of {bytes} bytes, where at most {WRITE_PLACES_MAX} of at least {PIECE_BYTES_MIN} are allowed"
    )]
    Places { count: u32, bytes: u32 },
}

/// Refuses a ring of the peer that arithmetic or layout cannot take: `max` is the largest that may be meant.
pub(crate) fn check_ring(ring: &WireRing, max: RingSize) -> Result<(), FrameError> {
    let RingSize { first, grown } = ring.size;
    let is_size = |bytes: u32, max| bytes.is_power_of_two() && (RING_BYTES_MIN..=max).contains(&bytes);
    let fits = ring.addr.checked_add(grown.into()).is_some() && first <= grown;
    if !fits || !is_size(first, max.first) || !is_size(grown, max.grown.max(first)) {
        return Err(FrameError::Ring { size: ring.size, max });
    }
    Ok(())
}

/// Refuses a route id that the peer chose and that an immediate could not carry.
pub(crate) const fn check_route(route: u32) -> Result<(), FrameError> {
    if route >> ROUTE_BITS == 0 { Ok(()) } else { Err(FrameError::Route(route)) }
}

/// Takes a frame apart: header, then records.
pub(crate) fn parse(frame: &[u8]) -> Result<(Header, Records<'_>), FrameError> {
    let (h, rest) = WireHeader::ref_from_prefix(frame).map_err(|_| FrameError::Truncated("header"))?;
    if h.version != FRAME_VERSION {
        return Err(FrameError::Version(h.version));
    }
    if h.flags != 0 {
        return Err(FrameError::Reserved("header"));
    }
    let header = Header {
        records: h.records.get(),
        incarnation: h.incarnation.get(),
        sequence: h.sequence.get(),
        credits: h.credits.get(),
    };
    Ok((header, Records { rest, left: header.records }))
}

/// Takes a control frame apart as the engine does; how many records it has, or a text that says what is wrong. This is
/// for tools and fuzzers: the engine itself checks each record where it uses it.
pub fn check_frame(frame: &[u8]) -> Result<usize, String> {
    let (_, records) = parse(frame).map_err(|e| e.to_string())?;
    records.map(|record| record.map(drop).map_err(|e| e.to_string())).try_fold(0, |n, record| record.map(|()| n + 1))
}

/// The records of a frame. Ends after the first error.
#[derive(Debug)]
pub(crate) struct Records<'a> {
    rest: &'a [u8],
    left: u16,
}

impl Iterator for Records<'_> {
    type Item = Result<Record, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            let trailing = std::mem::take(&mut self.rest).len();
            return (trailing > 0).then_some(Err(FrameError::Trailing(trailing)));
        }
        let record = self.take();
        self.left -= 1;
        if record.is_err() {
            self.left = 0;
            self.rest = &[];
        }
        Some(record)
    }
}

impl Records<'_> {
    fn take(&mut self) -> Result<Record, FrameError> {
        let (head, rest) = WireRecord::ref_from_prefix(self.rest).map_err(|_| FrameError::Truncated("record"))?;
        let bytes = usize::from(head.bytes.get());
        let body_bytes = bytes
            .checked_sub(size_of::<WireRecord>())
            .ok_or(FrameError::Length { kind: head.kind, bytes: head.bytes.get() })?;
        let (body, rest) = rest.split_at_checked(body_bytes).ok_or(FrameError::Truncated("record"))?;
        if head.reserved != 0 {
            return Err(FrameError::Reserved("record"));
        }
        let record = parse_body(head, body)?;
        self.rest = rest;
        Ok(record)
    }
}

fn parse_body(head: &WireRecord, body: &[u8]) -> Result<Record, FrameError> {
    let route = head.route.get();
    let length = FrameError::Length { kind: head.kind, bytes: head.bytes.get() };
    Ok(match head.kind {
        KIND_OPEN => {
            let o = WireOpen::ref_from_bytes(body).map_err(|_| length)?;
            Record::Open(Open {
                route,
                ring: WireRing {
                    size: RingSize { first: o.ring_bytes.get(), grown: o.grown_bytes.get() },
                    rkey: o.rkey.get(),
                    addr: o.addr.get(),
                },
                to_port: o.to_port.get(),
                from_port: o.from_port.get(),
                kind: o.kind.get(),
                to_address: Ipv6Addr::from(o.to_address).to_canonical(),
            })
        }
        KIND_OPEN_ACK => {
            let a = WireOpenAck::ref_from_bytes(body).map_err(|_| length)?;
            let size = RingSize { first: a.ring_bytes.get(), grown: a.grown_bytes.get() };
            let ring = WireRing { size, rkey: a.rkey.get(), addr: a.addr.get() };
            Record::OpenAck { route, own_route: a.route.get(), ring }
        }
        KIND_GONE if body.is_empty() => Record::Gone { route },
        KIND_BACK => {
            let b = WireBack::ref_from_bytes(body).map_err(|_| length)?;
            let flags = b.flags.get();
            let Ok(ends) = u8::try_from(flags & !BACK_IS_ANSWER) else { return Err(FrameError::Reserved("Back")) };
            let size = RingSize { first: b.ring_bytes.get(), grown: b.grown_bytes.get() };
            Record::Back(Back {
                route,
                own_route: b.route.get(),
                is_answer: flags & BACK_IS_ANSWER != 0,
                flags: ends,
                ring: WireRing { size, rkey: b.rkey.get(), addr: b.addr.get() },
                rx_tail: b.rx_tail.get(),
                rx_head: b.rx_head.get(),
                tx_grown_at: b.tx_grown_at.get(),
                rx_grown_at: b.rx_grown_at.get(),
            })
        }
        KIND_OPEN_NAK => {
            Record::OpenNak { route, reason: WireReason::ref_from_bytes(body).map_err(|_| length)?.reason.get() }
        }
        KIND_HEAD => {
            Record::Head { route, consumed: WireOffset::ref_from_bytes(body).map_err(|_| length)?.offset.get() }
        }
        KIND_FIN => {
            Record::Fin { route, final_tail: WireOffset::ref_from_bytes(body).map_err(|_| length)?.offset.get() }
        }
        KIND_STOP if body.is_empty() => Record::Stop { route },
        KIND_STOP => return Err(length),
        KIND_RESET => {
            Record::Reset { route, reason: WireReason::ref_from_bytes(body).map_err(|_| length)?.reason.get() }
        }
        KIND_RECLAIM | KIND_YIELD | KIND_LOAD | KIND_UNRELIABLE_OFFER..=KIND_PLACES_GRANT if route != 0 => {
            return Err(FrameError::Reserved("record"));
        }
        KIND_PLACES_ASK if body.is_empty() => Record::PlacesAsk,
        KIND_PLACES_ASK => return Err(length),
        KIND_PLACES => {
            let p = WirePlaces::ref_from_bytes(body).map_err(|_| length)?;
            let first = RemoteAddr { addr: p.addr.get(), rkey: Rkey(p.rkey.get()) };
            let places = WritePlaces { first, count: p.count.get(), bytes: p.bytes.get() };
            if !places.fits() {
                return Err(FrameError::Places { count: places.count, bytes: places.bytes });
            }
            Record::Places(places)
        }
        KIND_PLACES_GRANT => {
            Record::PlacesGrant { end: WireOffset::ref_from_bytes(body).map_err(|_| length)?.offset.get() }
        }
        KIND_UNRELIABLE_OFFER => parse_unreliable_offer(body, length)?,
        KIND_UNRELIABLE_ANSWER => {
            let reason = WireReason::ref_from_bytes(body).map_err(|_| length)?.reason.get();
            Record::UnreliableAnswer { reason }
        }
        KIND_RECLAIM => Record::Reclaim { most: WireCredits::ref_from_bytes(body).map_err(|_| length)?.count.get() },
        KIND_YIELD => Record::Yield { count: WireCredits::ref_from_bytes(body).map_err(|_| length)?.count.get() },
        KIND_GROW if body.is_empty() => Record::Grow { route },
        KIND_GROW => return Err(length),
        KIND_GROW_ANSWER => match WireReason::ref_from_bytes(body).map_err(|_| length)?.reason.get() {
            allowed @ (0 | 1) => Record::GrowAnswer { route, allowed: allowed == 1 },
            other => return Err(FrameError::Answer(other)),
        },
        KIND_GROWN_AT => {
            Record::GrownAt { route, at: WireOffset::ref_from_bytes(body).map_err(|_| length)?.offset.get() }
        }
        KIND_READY => {
            let r = WireReady::ref_from_bytes(body).map_err(|_| length)?;
            let ring = RemoteAddr { addr: r.addr.get(), rkey: Rkey(r.rkey.get()) };
            Record::Ready { route, end: r.end.get(), ring }
        }
        KIND_PULLED => {
            Record::Pulled { route, end: WireOffset::ref_from_bytes(body).map_err(|_| length)?.offset.get() }
        }
        KIND_LOAD => {
            let l = WireLoad::ref_from_bytes(body).map_err(|_| length)?;
            Record::Load(Load::new(l.cpu, l.memory))
        }
        KIND_EXECUTE => {
            let e = WireExecute::ref_from_bytes(body).map_err(|_| length)?;
            let (opcode, operand) = (e.opcode, e.operand.get());
            let ask = Ask::from_parts(opcode, operand, e.compare.get());
            let ask = ask.ok_or(FrameError::Operation { opcode, operand })?;
            Record::Execute { key: route, id: e.id.get(), offset: e.offset.get(), ask }
        }
        KIND_EXECUTED => {
            let e = WireExecuted::ref_from_bytes(body).map_err(|_| length)?;
            let status = OperationStatus::from_code(e.status).ok_or(FrameError::Status(e.status))?;
            Record::Executed { id: route, status, value: e.value.get() }
        }
        KIND_RUN => Record::Run(parse_run(route, body, length)?),
        KIND_ANSWER => {
            let (a, bytes) = WireAnswer::ref_from_prefix(body).map_err(|_| length)?;
            check_kernel_bytes(bytes)?;
            Record::Answer { id: route, failed: a.failed != 0, bytes: bytes.to_vec() }
        }
        kind => return Err(FrameError::Kind(kind)),
    })
}

fn parse_unreliable_offer(body: &[u8], length: FrameError) -> Result<Record, FrameError> {
    let (offer, endpoint) = WireUnreliableOffer::ref_from_prefix(body).map_err(|_| length)?;
    if !(1..=ENDPOINT_BYTES_MAX).contains(&endpoint.len()) {
        return Err(FrameError::Endpoint { found: endpoint.len() });
    }
    let piece_bytes = offer.piece_bytes.get();
    if piece_bytes < PIECE_BYTES_MIN {
        return Err(FrameError::Piece(piece_bytes));
    }
    Ok(Record::UnreliableOffer { piece_bytes, endpoint: endpoint.to_vec() })
}

fn parse_run(key: u32, body: &[u8], length: FrameError) -> Result<Run, FrameError> {
    let (r, mut rest) = WireRun::ref_from_prefix(body).map_err(|_| length)?;
    check_kernel_bytes(rest)?;
    let mut regions = vec![RunRegion { key, access: r.access.into() }];
    for _ in 0..r.regions {
        let (region, behind) = WireRunRegion::ref_from_prefix(rest).map_err(|_| length)?;
        regions.push(RunRegion { key: region.key.get(), access: region.access.into() });
        rest = behind;
    }
    Ok(Run { id: r.id.get(), program: r.program.get(), regions, request: rest.to_vec() })
}

fn check_kernel_bytes(bytes: &[u8]) -> Result<(), FrameError> {
    let max = KERNEL_BYTES_MAX as usize;
    if bytes.len() > max { Err(FrameError::Kernel { found: bytes.len(), max }) } else { Ok(()) }
}

/// Writes one frame into a buffer that is used again and again.
#[derive(Debug)]
pub(crate) struct FrameWriter<'a> {
    buf: &'a mut Vec<u8>,
    max: usize,
    records: u16,
}

impl<'a> FrameWriter<'a> {
    /// Begins a frame of at most `max` bytes; what was in `buf` is gone.
    pub(crate) fn new(buf: &'a mut Vec<u8>, max: usize) -> Self {
        buf.clear();
        buf.resize(HEADER_BYTES, 0);
        Self { buf, max, records: 0 }
    }

    /// Bytes so far, with the header.
    pub(crate) fn len(&self) -> usize {
        self.buf.len()
    }

    /// Records so far.
    pub(crate) fn records(&self) -> u16 {
        self.records
    }

    /// Whether no record was written.
    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Appends a record; false if it does not fit.
    pub(crate) fn push(&mut self, record: &Record) -> bool {
        match *record {
            Record::Run(ref run) => self.append_run(run),
            Record::Answer { id, failed, ref bytes } => {
                let head = WireAnswer { failed: failed.into(), reserved: [0; 3] };
                self.append(KIND_ANSWER, id, &[head.as_bytes(), bytes].concat())
            }
            Record::Open(o) => {
                let to = match o.to_address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                let body = WireOpen {
                    ring_bytes: o.ring.size.first.into(),
                    rkey: o.ring.rkey.into(),
                    addr: o.ring.addr.into(),
                    to_port: o.to_port.into(),
                    from_port: o.from_port.into(),
                    kind: o.kind.into(),
                    to_address: to.octets(),
                    grown_bytes: o.ring.size.grown.into(),
                    reserved: 0.into(),
                };
                self.append(KIND_OPEN, o.route, body.as_bytes())
            }
            Record::Gone { route } => self.append(KIND_GONE, route, &[]),
            Record::Back(back) => {
                let body = WireBack {
                    route: back.own_route.into(),
                    flags: (u32::from(back.flags) | if back.is_answer { BACK_IS_ANSWER } else { 0 }).into(),
                    ring_bytes: back.ring.size.first.into(),
                    grown_bytes: back.ring.size.grown.into(),
                    rkey: back.ring.rkey.into(),
                    reserved: 0.into(),
                    addr: back.ring.addr.into(),
                    rx_tail: back.rx_tail.into(),
                    rx_head: back.rx_head.into(),
                    tx_grown_at: back.tx_grown_at.into(),
                    rx_grown_at: back.rx_grown_at.into(),
                };
                self.append(KIND_BACK, back.route, body.as_bytes())
            }
            Record::OpenAck { route, own_route, ring } => {
                let body = WireOpenAck {
                    route: own_route.into(),
                    ring_bytes: ring.size.first.into(),
                    rkey: ring.rkey.into(),
                    grown_bytes: ring.size.grown.into(),
                    addr: ring.addr.into(),
                };
                self.append(KIND_OPEN_ACK, route, body.as_bytes())
            }
            Record::OpenNak { route, reason } => self.append_reason(KIND_OPEN_NAK, route, reason),
            Record::Head { route, consumed } => self.append_offset(KIND_HEAD, route, consumed),
            Record::Fin { route, final_tail } => self.append_offset(KIND_FIN, route, final_tail),
            Record::Stop { route } => self.append(KIND_STOP, route, &[]),
            Record::Reset { route, reason } => self.append_reason(KIND_RESET, route, reason),
            Record::Reclaim { most } => self.append_credits(KIND_RECLAIM, most),
            Record::Yield { count } => self.append_credits(KIND_YIELD, count),
            Record::Grow { route } => self.append(KIND_GROW, route, &[]),
            Record::GrowAnswer { route, allowed } => self.append_reason(KIND_GROW_ANSWER, route, allowed.into()),
            Record::GrownAt { route, at } => self.append_offset(KIND_GROWN_AT, route, at),
            Record::Ready { route, end, ring } => {
                let (addr, rkey) = (ring.addr.into(), ring.rkey.0.into());
                let body = WireReady { end: end.into(), addr, rkey, reserved: 0.into() };
                self.append(KIND_READY, route, body.as_bytes())
            }
            Record::Pulled { route, end } => self.append_offset(KIND_PULLED, route, end),
            Record::UnreliableOffer { piece_bytes, ref endpoint } => {
                let head = WireUnreliableOffer { piece_bytes: piece_bytes.into(), reserved: 0.into() };
                self.append(KIND_UNRELIABLE_OFFER, 0, &[head.as_bytes(), endpoint].concat())
            }
            Record::UnreliableAnswer { reason } => self.append_reason(KIND_UNRELIABLE_ANSWER, 0, reason),
            Record::PlacesAsk => self.append(KIND_PLACES_ASK, 0, &[]),
            Record::Places(WritePlaces { first, count, bytes }) => {
                let (addr, rkey) = (first.addr.into(), first.rkey.0.into());
                let body = WirePlaces { addr, rkey, count: count.into(), bytes: bytes.into(), reserved: 0.into() };
                self.append(KIND_PLACES, 0, body.as_bytes())
            }
            Record::PlacesGrant { end } => self.append_offset(KIND_PLACES_GRANT, 0, end),
            Record::Load(Load { cpu, memory }) => {
                self.append(KIND_LOAD, 0, WireLoad { cpu, memory, reserved: [0; 6] }.as_bytes())
            }
            Record::Execute { key, id, offset, ask } => {
                let (opcode, operand, compare) = ask.to_parts();
                let body = WireExecute {
                    id: id.into(),
                    opcode,
                    reserved: [0; 3],
                    offset: offset.into(),
                    operand: operand.into(),
                    compare: compare.into(),
                };
                self.append(KIND_EXECUTE, key, body.as_bytes())
            }
            Record::Executed { id, status, value } => {
                let body = WireExecuted { value: value.into(), status: status.code(), reserved: [0; 7] };
                self.append(KIND_EXECUTED, id, body.as_bytes())
            }
        }
    }

    fn append_run(&mut self, run: &Run) -> bool {
        let Some((first, others)) = run.regions.split_first() else { return true };
        let head = WireRun {
            id: run.id.into(),
            program: run.program.into(),
            access: first.access.bits(),
            regions: u8::try_from(others.len()).unwrap_or(u8::MAX),
            reserved: 0.into(),
        };
        let mut body = head.as_bytes().to_vec();
        for region in others {
            let region = WireRunRegion { key: region.key.into(), access: region.access.bits(), reserved: [0; 3] };
            body.extend_from_slice(region.as_bytes());
        }
        body.extend_from_slice(&run.request);
        self.append(KIND_RUN, first.key, &body)
    }

    fn append_reason(&mut self, kind: u8, route: u32, reason: u32) -> bool {
        self.append(kind, route, WireReason { reason: reason.into(), reserved: 0.into() }.as_bytes())
    }

    fn append_credits(&mut self, kind: u8, count: u32) -> bool {
        self.append(kind, 0, WireCredits { count: count.into(), reserved: 0.into() }.as_bytes())
    }

    fn append_offset(&mut self, kind: u8, route: u32, offset: u64) -> bool {
        self.append(kind, route, WireOffset { offset: offset.into() }.as_bytes())
    }

    fn append(&mut self, kind: u8, route: u32, body: &[u8]) -> bool {
        let bytes = size_of::<WireRecord>() + body.len();
        if self.buf.len() + bytes > self.max || self.records == u16::MAX {
            return false;
        }
        let bytes = u16::try_from(bytes).expect("every body is a struct of a few bytes, or at most a frame");
        let head = WireRecord { kind, reserved: 0, bytes: bytes.into(), route: route.into() };
        self.buf.extend_from_slice(head.as_bytes());
        self.buf.extend_from_slice(body);
        self.records += 1;
        true
    }

    /// Fills in the header. The frame is what the buffer holds.
    pub(crate) fn finish(self, incarnation: u32, sequence: u64, credits: u64) {
        let header = WireHeader {
            version: FRAME_VERSION,
            flags: 0,
            records: self.records.into(),
            incarnation: incarnation.into(),
            sequence: sequence.into(),
            credits: credits.into(),
        };
        self.buf[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    }
}

#[cfg(test)]
mod tests;
