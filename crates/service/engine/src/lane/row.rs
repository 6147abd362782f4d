//! A lane as `raas stat` shows it.

use std::net::SocketAddr;

use control::{LEASED_LANE_FIRST, LaneRow};
use verbs::{Link, Time, Wire};

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

    /// What carries and protects it; `None` while it has no queue pair that was connected.
    pub(crate) fn link(&self) -> Option<Link> {
        self.link
    }

    /// What carries it, likewise.
    pub(crate) fn wire(&self) -> Option<Wire> {
        self.link.map(|link| link.wire)
    }

    pub(crate) fn row(&self, now: Time) -> LaneRow {
        let state = match self.state {
            _ if self.stall.is_some() => "stalled",
            LaneState::Up => "up",
            LaneState::Offered | LaneState::Accepted => "connecting",
            LaneState::Down if self.is_resting => "resting",
            LaneState::Down if self.is_wanted => "connecting",
            LaneState::Down => "failed",
        };
        let cipher = self.link.and_then(|link| link.cipher);
        LaneRow {
            name: self.name(),
            peer: SocketAddr::new(self.peer, self.peer_port),
            state: state.into(),
            incarnation: self.incarnation,
            resets: self.resets,
            qpn: Some(if self.has_qp() { self.qpn.0 } else { 0 }),
            peer_qpn: Some(if self.has_qp() { self.peer_qpn } else { 0 }),
            wire: self.link.map(|link| link.wire.to_string()),
            wire_reason: self.link.map(|link| link.wire_reason.into()),
            encrypted: self.link.map(|link| link.cipher.is_some()),
            encryption_reason: self.link.map(|link| link.encryption_reason.into()),
            cipher: cipher.map(str::to_owned),
            // Each incarnation has keys of its own.
            keys_age_us: cipher
                .filter(|_| self.state == LaneState::Up)
                .map(|_| micros(now.saturating_since(self.up_since))),
            mtu_bytes: count(self.mtu.bytes()),
            connections: self.members.count(),
            credits: self.tx.available(),
            granted: self.rx.unused(),
            tx_bytes: self.tx_bytes,
            rx_bytes: self.rx_bytes,
            dials_failed: self.redial.failures(),
            // The control plane knows them.
            link_path: None,
            link_path_reason: None,
            redial_in_us: if self.holds_dials_back(now) { micros(self.redial.wait(now)) } else { 0 },
        }
    }
}
