//! This end of the UC queue pair beside a lane, and how far it and the peer's are.
//!
//! Owns what each end still has to say. It must never say that it can receive before its queue pair can, and never let a
//! piece leave before the peer said so.
//!
//! ```text
//!   made -> offered -> the peer's offer taken -> answered        (in either order of the two offers)
//!                      the peer's answer came -> ready
//! ```
//!
//! Places for WRITEs are asked for when this end is ready. Everything ends with the lane's own queue pair.

use control::Reason;
use verbs::{Endpoint, Qpn};

use crate::frame::{FrameWriter, UnreliableRecord, WritePlaces};
use crate::lane_part::LanePart;
use crate::limits::PIECE_BYTES_MAX;
use crate::unreliable::places::{OwnPlaces, PeerPlaces};
use crate::violation::Violation;

/// How far this end is with the peer's places.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Nobody needed them.
    #[default]
    No,
    /// The peer is to be asked.
    Owed,
    /// Its answer has not come.
    Yes,
    Answered,
}

/// This end.
#[derive(Debug, Default)]
pub(crate) struct UnreliableEnd {
    qp: Option<(Qpn, Endpoint)>,
    /// Its number among those of the engine.
    number: u32,
    is_offer_owed: bool,
    answer_owed: Option<u32>,
    has_peers_offer: bool,
    has_peers_answer: bool,
    is_accepted: bool,
    is_peer_ready: bool,
    is_refused: bool,
    piece_bytes: u32,
    asked: Asked,
    peer_places: Option<PeerPlaces>,
    has_peers_ask: bool,
    places_owed: Option<WritePlaces>,
    own_places: Option<OwnPlaces>,
}

impl UnreliableEnd {
    /// The queue pair, if there is one.
    pub(crate) fn qpn(&self) -> Option<Qpn> {
        self.qp.as_ref().map(|(qpn, _)| *qpn)
    }

    /// The queue pair that waits for the peer's offer, and its endpoint.
    pub(crate) fn offered(&self) -> Option<(Qpn, &Endpoint)> {
        self.qp.as_ref().filter(|_| !self.is_accepted).map(|(qpn, own)| (*qpn, own))
    }

    /// As connections know it.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Longest piece that both ends take.
    pub(crate) fn piece_bytes(&self) -> u32 {
        self.piece_bytes
    }

    /// Whether pieces may leave.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_accepted && self.is_peer_ready && !self.is_refused
    }

    /// Whether there will be none beside this incarnation of the lane.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// The queue pair was made: the peer is to be told.
    pub(crate) fn on_made(&mut self, qpn: Qpn, own: Endpoint, number: u32) {
        self.qp = Some((qpn, own));
        self.number = number;
        self.is_offer_owed = true;
    }

    /// The peer's offer came.
    pub(crate) fn on_offer(&mut self, piece_bytes: u32) -> Result<(), Violation> {
        if std::mem::replace(&mut self.has_peers_offer, true) {
            return Err(Violation::Unreliable("a second offer"));
        }
        self.piece_bytes = piece_bytes.min(PIECE_BYTES_MAX);
        Ok(())
    }

    /// The peer's offer was taken.
    pub(crate) fn on_accepted(&mut self) {
        self.is_accepted = true;
        self.answer_owed = Some(0);
    }

    /// There will be none; the peer is told if it offered.
    pub(crate) fn refuse(&mut self, reason: Reason) {
        self.is_refused = true;
        if self.has_peers_offer {
            self.answer_owed = Some(reason.code());
        }
    }

    /// The peer's answer came. True: it can receive.
    pub(crate) fn on_answer(&mut self, reason: u32) -> Result<bool, Violation> {
        let is_first = !std::mem::replace(&mut self.has_peers_answer, true);
        if self.qp.is_none() || self.is_offer_owed || !is_first {
            return Err(Violation::Unreliable("an answer to no offer"));
        }
        match reason {
            0 => self.is_peer_ready = true,
            _ => self.is_refused = true,
        }
        Ok(reason == 0)
    }

    // ---- places

    /// A connection wants to WRITE, and the peer knows of places. Whether its answer is here.
    pub(crate) fn want_places(&mut self) -> bool {
        if self.asked == Asked::No {
            self.asked = Asked::Owed;
        }
        self.asked == Asked::Answered
    }

    /// It came.
    pub(crate) fn on_places(&mut self, places: WritePlaces) -> Result<(), Violation> {
        if self.asked != Asked::Yes {
            return Err(Violation::Unreliable("places that nobody asked for"));
        }
        (self.asked, self.peer_places) = (Asked::Answered, PeerPlaces::new(places));
        Ok(())
    }

    /// The peer grants numbers below `end`.
    pub(crate) fn on_grant(&mut self, end: u64) -> Result<(), Violation> {
        let places = self.peer_places.as_mut().ok_or(Violation::Unreliable("a grant of places that are not there"))?;
        places.on_grant(end);
        Ok(())
    }

    /// Where this end may WRITE.
    pub(crate) fn peer_places(&mut self) -> Option<&mut PeerPlaces> {
        self.peer_places.as_mut()
    }

    /// The peer asks for places.
    pub(crate) fn on_places_ask(&mut self) -> Result<(), Violation> {
        if !self.is_accepted || std::mem::replace(&mut self.has_peers_ask, true) {
            return Err(Violation::Unreliable("places asked for again, or for no queue pair"));
        }
        Ok(())
    }

    /// It gets these, or none.
    pub(crate) fn give_places(&mut self, own: Option<OwnPlaces>) {
        self.places_owed = Some(own.as_ref().map_or(WritePlaces::NONE, OwnPlaces::told));
        self.own_places = own;
    }

    /// Those of this host.
    pub(crate) fn own_places(&self) -> Option<&OwnPlaces> {
        self.own_places.as_ref()
    }

    pub(crate) fn own_places_mut(&mut self) -> Option<&mut OwnPlaces> {
        self.own_places.as_mut()
    }

    /// The queue pair is gone: nobody writes there any more.
    pub(crate) fn take_own_places(&mut self) -> Option<OwnPlaces> {
        self.own_places.take()
    }

    // ---- to the peer

    /// Says it. False: the frame is full.
    pub(crate) fn write(&mut self, frame: &mut FrameWriter<'_>) -> bool {
        if self.is_offer_owed
            && let Some((_, own)) = &self.qp
        {
            let endpoint = own.as_bytes().to_vec();
            if !frame.push(&UnreliableRecord::Offer { piece_bytes: PIECE_BYTES_MAX, endpoint }) {
                return false;
            }
            self.is_offer_owed = false;
        }
        if let Some(reason) = self.answer_owed {
            if !frame.push(&UnreliableRecord::Answer { reason }) {
                return false;
            }
            self.answer_owed = None;
        }
        self.write_places(frame)
    }

    fn write_places(&mut self, frame: &mut FrameWriter<'_>) -> bool {
        if self.asked == Asked::Owed {
            if !frame.push(&UnreliableRecord::PlacesAsk) {
                return false;
            }
            self.asked = Asked::Yes;
        }
        if let Some(places) = self.places_owed {
            if !frame.push(&UnreliableRecord::Places(places)) {
                return false;
            }
            self.places_owed = None;
        }
        if let Some(own) = &mut self.own_places
            && let Some(end) = own.owed()
        {
            if !frame.push(&UnreliableRecord::PlacesGrant { end }) {
                return false;
            }
            own.on_told(end);
        }
        true
    }
}

impl LanePart for UnreliableEnd {
    #[inline]
    fn wants_frame(&self) -> bool {
        self.is_offer_owed
            || self.answer_owed.is_some()
            || self.asked == Asked::Owed
            || self.places_owed.is_some()
            || self.own_places.as_ref().is_some_and(|own| own.owed().is_some())
    }

    /// Neither end waits for the other.
    fn is_quiet(&self) -> bool {
        let is_connected = self.qp.is_none() || self.is_refused || self.is_ready();
        !self.wants_frame() && is_connected && self.asked != Asked::Yes
    }

    fn forget_queue_pair(&mut self) {
        *self = Self::default();
    }
}
