//! The session segment: one application and the daemon's engines.
//!
//! Owns the offsets of the session segment. It must never look at slot contents: those belong to application and
//! engine.
use std::sync::atomic::Ordering;

use super::header::{EPOCH_AT, Header, Kind, OwnerWords, word32, word64};
use super::{LayoutError, check_size, pages};
use crate::limits::{PAGE_BYTES, SessionShape};
use crate::{Doorbell, Region, RegionError, SlotWords, Word32, Word64};

pub(super) const APP_SLEEP_AT: u64 = PAGE_BYTES;
pub(super) const APP_EPOCH_AT: u64 = PAGE_BYTES + 64;
pub(super) const A2E_AT: u64 = 2 * PAGE_BYTES;

pub(super) const SLOT_BYTES: u32 = 256;
pub(super) const TX_TAIL_AT: u64 = 0;
pub(super) const RX_HEAD_AT: u64 = 8;
pub(super) const APP_FLAGS_AT: u64 = 16;
pub(super) const APP_WAIT_AT: u64 = 20;
pub(super) const APP_GENERATION_AT: u64 = 24;
pub(super) const APP_OWNER_PID_AT: u64 = 28;
pub(super) const TX_USE_AT: u64 = 32;
pub(super) const PEER_TIMEOUT_AT: u64 = 36;
pub(super) const DIRECT_TX_AT: u64 = 40;
pub(super) const DIRECT_RX_AT: u64 = 48;
pub(super) const TX_VERB_AT: u64 = 56;
/// On the second line of the application's half: it is written once in 16 KiB.
pub(super) const TX_WRITTEN_AT: u64 = 64;
pub(super) const TX_HEAD_AT: u64 = 128;
pub(super) const RX_TAIL_AT: u64 = 136;
pub(super) const STATE_AT: u64 = 144;
pub(super) const ENGINE_FLAGS_AT: u64 = 148;
pub(super) const REASON_AT: u64 = 152;
pub(super) const GENERATION_AT: u64 = 156;
pub(super) const LANE_EPOCH_AT: u64 = 160;
pub(super) const TX_REST_AT: u64 = 168;
pub(super) const ENGINE_AT: u64 = 172;
pub(super) const TX_GROWN_AT: u64 = 176;
pub(super) const RX_GROWN_AT: u64 = 184;
pub(super) const TX_HOLD_AT: u64 = 192;

/// The session segment: one application and the daemon's engines.
#[derive(Debug, Clone)]
pub struct Session {
    region: Region,
    shape: SessionShape,
    /// By engine.
    a2e: Vec<Doorbell>,
    e2a: Doorbell,
}

impl Session {
    /// Bytes of a session segment of this shape, or with so many slots of one engine (a multiple of 4096).
    pub fn bytes(shape: impl Into<SessionShape>) -> u64 {
        let shape = shape.into();
        slots_offset(shape) + pages(u64::from(shape.slots) * u64::from(SLOT_BYTES))
    }

    /// Writes the header into zeroed memory (daemon side).
    pub fn format(region: Region, shape: impl Into<SessionShape>, epoch: u64) -> Result<Self, RegionError> {
        let session = Self::over(region, shape.into())?;
        session.header().write(&session.region, epoch)?;
        Ok(session)
    }

    /// Checks the header against what the control message said, takes private copies of the geometry.
    pub fn open(region: Region, shape: impl Into<SessionShape>) -> Result<Self, LayoutError> {
        let session = Self::over(region, shape.into())?;
        session.header().check(&session.region)?;
        Ok(session)
    }

    /// As [`Session::open`], for a daemon that came after the one that made the segment: from here on it is its own, with
    /// its `epoch`.
    pub fn adopt(region: Region, shape: impl Into<SessionShape>, epoch: u64) -> Result<Self, LayoutError> {
        let session = Self::open(region, shape)?;
        word64(&session.region, EPOCH_AT).store(epoch, Ordering::Release);
        Ok(session)
    }

    fn over(region: Region, shape: SessionShape) -> Result<Self, RegionError> {
        shape.check()?;
        check_size(&region, Self::bytes(shape))?;
        let bell = |engine| Doorbell::new(&region, a2e_offset(shape, engine), shape.slots_per_engine());
        let a2e = (0..shape.engines).map(bell).collect::<Result<_, _>>()?;
        let e2a = Doorbell::new(&region, e2a_offset(shape), shape.slots)?;
        Ok(Self { region, shape, a2e, e2a })
    }

    fn header(&self) -> Header {
        Header {
            kind: Kind::Session,
            total_bytes: Self::bytes(self.shape),
            slots: self.shape.slots,
            slot_bytes: SLOT_BYTES,
            slots_offset: slots_offset(self.shape),
            a2e_offset: A2E_AT,
            e2a_offset: e2a_offset(self.shape),
            ring_bytes: 0,
            rings_offset: 0,
            engines: self.shape.engines,
        }
    }

    /// Slots, of all engines.
    pub fn slots(&self) -> u32 {
        self.shape.slots
    }

    /// Slots and engines.
    pub fn shape(&self) -> SessionShape {
        self.shape
    }

    /// The memory.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Application -> the engine with this number, as the engine takes it: slots count from the first of the engine's
    /// range. Panics if there is no such engine.
    pub fn a2e(&self, engine: u32) -> Doorbell {
        let bell = self.a2e.get(engine as usize);
        bell.unwrap_or_else(|| panic!("engine {engine} of {}", self.shape.engines)).clone()
    }

    /// Whose a slot is. `None`: there is no such slot, or it is no engine's.
    pub fn place_of(&self, slot: u32) -> Option<SlotPlace> {
        let each = self.shape.slots_per_engine();
        let (engine, in_range) = (slot / each, slot % each);
        let a2e = self.a2e.get(engine as usize)?.clone();
        Some(SlotPlace { engine, in_range, a2e })
    }

    /// Engines -> application. All of them ring it, and slots count from the first of the session.
    pub fn e2a(&self) -> Doorbell {
        self.e2a.clone()
    }

    /// The application's sleep flag: 1 while it sleeps.
    pub fn app_sleep(&self) -> Word32 {
        word32(&self.region, APP_SLEEP_AT)
    }

    /// See [`Region::has_faulted`].
    pub fn has_faulted(&self) -> bool {
        self.region.has_faulted()
    }

    /// Raised by the application at each attach.
    pub fn app_epoch(&self) -> Word64 {
        word64(&self.region, APP_EPOCH_AT)
    }

    /// Incarnation of the daemon; a restarted daemon that adopts the segment stores its own.
    pub fn epoch(&self) -> Word64 {
        word64(&self.region, EPOCH_AT)
    }

    /// The owner word of end 0 (daemon) or 1 (application); panics on another number.
    pub fn owner(&self, end: usize) -> OwnerWords {
        OwnerWords::of(&self.region, end)
    }

    /// Words of slot `i`; panics if `i >= slots()`.
    pub fn slot(&self, i: u32) -> SlotWords {
        assert!(i < self.shape.slots, "slot {i} of a session with {} slots", self.shape.slots);
        let base = slots_offset(self.shape) + u64::from(i) * u64::from(SLOT_BYTES);
        let region = &self.region;
        SlotWords {
            tx_tail: word64(region, base + TX_TAIL_AT),
            rx_head: word64(region, base + RX_HEAD_AT),
            app_flags: word32(region, base + APP_FLAGS_AT),
            app_wait: word32(region, base + APP_WAIT_AT),
            app_generation: word32(region, base + APP_GENERATION_AT),
            app_owner_pid: word32(region, base + APP_OWNER_PID_AT),
            tx_use: word32(region, base + TX_USE_AT),
            peer_timeout_ms: word32(region, base + PEER_TIMEOUT_AT),
            direct_tx: word64(region, base + DIRECT_TX_AT),
            direct_rx: word64(region, base + DIRECT_RX_AT),
            tx_verb: word32(region, base + TX_VERB_AT),
            tx_written: word64(region, base + TX_WRITTEN_AT),
            tx_head: word64(region, base + TX_HEAD_AT),
            rx_tail: word64(region, base + RX_TAIL_AT),
            state: word32(region, base + STATE_AT),
            engine_flags: word32(region, base + ENGINE_FLAGS_AT),
            reason: word32(region, base + REASON_AT),
            generation: word32(region, base + GENERATION_AT),
            epoch: word64(region, base + LANE_EPOCH_AT),
            tx_rest: word32(region, base + TX_REST_AT),
            tx_grown_at: word64(region, base + TX_GROWN_AT),
            rx_grown_at: word64(region, base + RX_GROWN_AT),
            tx_hold: word32(region, base + TX_HOLD_AT),
            engine: word32(region, base + ENGINE_AT),
        }
    }
}

/// Whose a slot of a session is, and how the application rings for it.
#[derive(Debug, Clone)]
pub struct SlotPlace {
    /// The engine.
    pub engine: u32,
    /// The slot, counted from the first of the engine's range.
    pub in_range: u32,
    /// The doorbell, which is rung with `in_range`.
    pub a2e: Doorbell,
}

impl SlotPlace {
    /// Marks the slot; as [`Doorbell::ring`].
    pub fn ring(&self) {
        self.a2e.ring(self.in_range);
    }
}

/// Each doorbell has pages of its own, so that ringing one disturbs neither the others nor the slots.
fn a2e_offset(shape: SessionShape, engine: u32) -> u64 {
    A2E_AT + u64::from(engine) * pages(Doorbell::bytes(shape.slots_per_engine()))
}

fn e2a_offset(shape: SessionShape) -> u64 {
    a2e_offset(shape, shape.engines)
}

fn slots_offset(shape: SessionShape) -> u64 {
    e2a_offset(shape) + pages(Doorbell::bytes(shape.slots))
}
