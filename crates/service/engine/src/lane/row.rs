//! A lane as `raas stat` shows it.

use std::net::SocketAddr;

use control::LaneRow;
use verbs::{Time, Wire};

use super::{Lane, LaneState};

impl Lane {
    /// What `raas ss` calls it.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.peer, self.number)
    }

    /// What carries it; `None` while it has no queue pair that was connected.
    pub(crate) fn wire(&self) -> Option<Wire> {
        self.wire.map(|(wire, _)| wire)
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
        LaneRow {
            name: self.name(),
            peer: SocketAddr::new(self.peer, self.peer_port),
            state: state.into(),
            incarnation: self.incarnation,
            resets: self.resets,
            qpn: Some(if self.has_qp() { self.qpn.0 } else { 0 }),
            peer_qpn: Some(if self.has_qp() { self.peer_qpn } else { 0 }),
            wire: self.wire.map(|(wire, _)| wire.to_string()),
            wire_reason: self.wire.map(|(_, why)| why.into()),
            mtu_bytes: self.mtu.bytes() as u32,
            connections: self.members.count(),
            credits: self.tx.available(),
            granted: self.rx.unused(),
            tx_bytes: self.tx_bytes,
            rx_bytes: self.rx_bytes,
            dials_failed: self.redial.failures(),
            redial_in_us: if self.holds_dials_back(now) { self.redial.wait(now).as_micros() as u64 } else { 0 },
        }
    }
}
