//! Records about connections: how they begin and end, what was consumed, rings that grow or are lent.

use std::net::{IpAddr, Ipv6Addr};

use verbs::{RemoteAddr, Rkey};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::FrameRecord;
use super::error::FrameError;
use super::reader::RawRecord;
use super::writer::FrameWriter;
use crate::immediate::ROUTE_BITS;
use crate::limits::RING_BYTES_MIN;
use crate::ring_size::RingSize;

const KIND_OPEN: u8 = 1;
const KIND_OPEN_ACK: u8 = 2;
const KIND_OPEN_NAK: u8 = 3;
const KIND_HEAD: u8 = 4;
const KIND_FIN: u8 = 5;
const KIND_STOP: u8 = 6;
const KIND_RESET: u8 = 7;
const KIND_GROW: u8 = 10;
const KIND_GROW_ANSWER: u8 = 11;
const KIND_GROWN_AT: u8 = 12;
const KIND_READY: u8 = 15;
const KIND_PULLED: u8 = 16;
const KIND_BACK: u8 = 20;
const KIND_GONE: u8 = 21;

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
struct WireReady {
    end: U64,
    addr: U64,
    rkey: U32,
    reserved: U32,
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

impl Open {
    fn read(raw: &RawRecord<'_>) -> Result<Self, FrameError> {
        let o = raw.body::<WireOpen>()?;
        let size = RingSize { first: o.ring_bytes.get(), grown: o.grown_bytes.get() };
        Ok(Self {
            route: raw.route,
            ring: WireRing { size, rkey: o.rkey.get(), addr: o.addr.get() },
            to_port: o.to_port.get(),
            from_port: o.from_port.get(),
            kind: o.kind.get(),
            to_address: Ipv6Addr::from(o.to_address).to_canonical(),
        })
    }

    fn to_wire(self) -> WireOpen {
        let to = match self.to_address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        WireOpen {
            ring_bytes: self.ring.size.first.into(),
            rkey: self.ring.rkey.into(),
            addr: self.ring.addr.into(),
            to_port: self.to_port.into(),
            from_port: self.from_port.into(),
            kind: self.kind.into(),
            to_address: to.octets(),
            grown_bytes: self.ring.size.grown.into(),
            reserved: 0.into(),
        }
    }
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

impl Back {
    fn read(raw: &RawRecord<'_>) -> Result<Self, FrameError> {
        let b = raw.body::<WireBack>()?;
        let flags = b.flags.get();
        let Ok(ends) = u8::try_from(flags & !BACK_IS_ANSWER) else { return Err(FrameError::Reserved("Back")) };
        let size = RingSize { first: b.ring_bytes.get(), grown: b.grown_bytes.get() };
        Ok(Self {
            route: raw.route,
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

    fn to_wire(self) -> WireBack {
        WireBack {
            route: self.own_route.into(),
            flags: (u32::from(self.flags) | if self.is_answer { BACK_IS_ANSWER } else { 0 }).into(),
            ring_bytes: self.ring.size.first.into(),
            grown_bytes: self.ring.size.grown.into(),
            rkey: self.ring.rkey.into(),
            reserved: 0.into(),
            addr: self.ring.addr.into(),
            rx_tail: self.rx_tail.into(),
            rx_head: self.rx_head.into(),
            tx_grown_at: self.tx_grown_at.into(),
            rx_grown_at: self.rx_grown_at.into(),
        }
    }
}

/// One thing about a connection. `route` is the receiver's route id, except in [`Open`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamRecord {
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
}

impl StreamRecord {
    /// The connection that it is about, of those that both ends know.
    pub(crate) fn route(&self) -> Option<u32> {
        match *self {
            Self::Head { route, .. }
            | Self::Fin { route, .. }
            | Self::Stop { route }
            | Self::Reset { route, .. }
            | Self::Grow { route }
            | Self::GrowAnswer { route, .. }
            | Self::GrownAt { route, .. }
            | Self::Ready { route, .. }
            | Self::Pulled { route, .. } => Some(route),
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
}

impl FrameRecord for StreamRecord {
    fn read(raw: &RawRecord<'_>) -> Result<Option<Self>, FrameError> {
        let route = raw.route;
        Ok(Some(match raw.kind {
            KIND_OPEN => Self::Open(Open::read(raw)?),
            KIND_OPEN_ACK => {
                let a = raw.body::<WireOpenAck>()?;
                let size = RingSize { first: a.ring_bytes.get(), grown: a.grown_bytes.get() };
                let ring = WireRing { size, rkey: a.rkey.get(), addr: a.addr.get() };
                Self::OpenAck { route, own_route: a.route.get(), ring }
            }
            KIND_OPEN_NAK => Self::OpenNak { route, reason: raw.number()? },
            KIND_BACK => Self::Back(Back::read(raw)?),
            KIND_GONE => {
                raw.nothing()?;
                Self::Gone { route }
            }
            KIND_HEAD => Self::Head { route, consumed: raw.offset()? },
            KIND_FIN => Self::Fin { route, final_tail: raw.offset()? },
            KIND_STOP => {
                raw.nothing()?;
                Self::Stop { route }
            }
            KIND_RESET => Self::Reset { route, reason: raw.number()? },
            KIND_GROW => {
                raw.nothing()?;
                Self::Grow { route }
            }
            KIND_GROW_ANSWER => match raw.number()? {
                allowed @ (0 | 1) => Self::GrowAnswer { route, allowed: allowed == 1 },
                other => return Err(FrameError::Answer(other)),
            },
            KIND_GROWN_AT => Self::GrownAt { route, at: raw.offset()? },
            KIND_READY => {
                let r = raw.body::<WireReady>()?;
                let ring = RemoteAddr { addr: r.addr.get(), rkey: Rkey(r.rkey.get()) };
                Self::Ready { route, end: r.end.get(), ring }
            }
            KIND_PULLED => Self::Pulled { route, end: raw.offset()? },
            _ => return Ok(None),
        }))
    }

    fn write(&self, frame: &mut FrameWriter<'_>) -> bool {
        match *self {
            Self::Open(open) => frame.append(KIND_OPEN, open.route, &[open.to_wire().as_bytes()]),
            Self::OpenAck { route, own_route, ring } => {
                let body = WireOpenAck {
                    route: own_route.into(),
                    ring_bytes: ring.size.first.into(),
                    rkey: ring.rkey.into(),
                    grown_bytes: ring.size.grown.into(),
                    addr: ring.addr.into(),
                };
                frame.append(KIND_OPEN_ACK, route, &[body.as_bytes()])
            }
            Self::OpenNak { route, reason } => frame.append_number(KIND_OPEN_NAK, route, reason),
            Self::Back(back) => frame.append(KIND_BACK, back.route, &[back.to_wire().as_bytes()]),
            Self::Gone { route } => frame.append(KIND_GONE, route, &[]),
            Self::Head { route, consumed } => frame.append_offset(KIND_HEAD, route, consumed),
            Self::Fin { route, final_tail } => frame.append_offset(KIND_FIN, route, final_tail),
            Self::Stop { route } => frame.append(KIND_STOP, route, &[]),
            Self::Reset { route, reason } => frame.append_number(KIND_RESET, route, reason),
            Self::Grow { route } => frame.append(KIND_GROW, route, &[]),
            Self::GrowAnswer { route, allowed } => frame.append_number(KIND_GROW_ANSWER, route, allowed.into()),
            Self::GrownAt { route, at } => frame.append_offset(KIND_GROWN_AT, route, at),
            Self::Ready { route, end, ring } => {
                let (addr, rkey) = (ring.addr.into(), ring.rkey.0.into());
                let body = WireReady { end: end.into(), addr, rkey, reserved: 0.into() };
                frame.append(KIND_READY, route, &[body.as_bytes()])
            }
            Self::Pulled { route, end } => frame.append_offset(KIND_PULLED, route, end),
        }
    }
}
