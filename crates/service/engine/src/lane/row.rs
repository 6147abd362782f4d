//! A lane as `raas stat` shows it.

use std::net::SocketAddr;

use control::{LEASED_LANE_FIRST, LaneRow};
use verbs::Time;

use super::{Lane, LaneState};
use crate::numbers::{count, micros};

impl Lane {
    /// What `raas ss` calls it.
    pub(crate) fn name(&self) -> String {
        match self.at().leased {
            Some(number) => format!("{}/leased-{}", self.peer, number - LEASED_LANE_FIRST),
            None => format!("{}/{}", self.peer, self.number),
        }
    }

    pub(crate) fn row(&self, now: Time) -> LaneRow {
        let state = match self.qp.state() {
            _ if self.stall.is_some() => "stalled",
            LaneState::Up => "up",
            LaneState::Offered | LaneState::Accepted => "connecting",
            LaneState::Down if self.rest.is_resting() => "resting",
            LaneState::Down if self.dialing.is_wanted() => "connecting",
            LaneState::Down => "failed",
        };
        let link = self.qp.link();
        let cipher = link.and_then(|link| link.cipher);
        LaneRow {
            name: self.name(),
            peer: SocketAddr::new(self.peer, self.qp.peer_port()),
            state: state.into(),
            incarnation: self.qp.incarnation(),
            resets: self.resets.count(),
            qpn: Some(self.qp.qpn().map_or(0, |qpn| qpn.0)),
            peer_qpn: Some(self.qp.peer_qpn().unwrap_or(0)),
            wire: link.map(|link| link.wire.to_string()),
            wire_reason: link.map(|link| link.wire_reason.into()),
            encrypted: link.map(|link| link.cipher.is_some()),
            encryption_reason: link.map(|link| link.encryption_reason.into()),
            cipher: cipher.map(str::to_owned),
            // Each incarnation has keys of its own.
            keys_age_us: cipher.filter(|_| self.qp.is_up()).map(|_| micros(now.saturating_since(self.qp.up_since()))),
            mtu_bytes: count(self.mtu.current().bytes()),
            connections: self.members.count(),
            credits: self.credits.available(),
            granted: self.credits.grant().unused(),
            tx_bytes: self.tx_bytes,
            rx_bytes: self.rx_bytes,
            dials_failed: self.dialing.failures(),
            // The control plane knows them.
            link_path: None,
            link_path_reason: None,
            redial_in_us: if self.holds_dials_back(now) { micros(self.dialing.wait(now)) } else { 0 },
        }
    }
}
