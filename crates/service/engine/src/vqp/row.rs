//! A connection as `raas ss` shows it, and what it carried as `raas stat` counts it.

use control::{ConnectionRow, ConnectionState, PathKind, Reason};
use verbs::{Link, Wire};

use super::messages::Way;
use super::{Phase, Vqp};
use crate::app::Carried;

/// Of the lane, for the row of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct LaneSeen {
    pub(crate) name: Option<String>,
    /// What carries and protects it.
    pub(crate) link: Option<Link>,
    /// Its peer's daemon says nothing.
    pub(crate) is_silent: bool,
}

impl Vqp {
    /// Bytes sent and received that its application's row does not have yet.
    pub(crate) fn uncounted(&self) -> Carried {
        let (tx, rx) = self.carried();
        Carried { tx: self.tx.uncounted(tx), rx: self.rx.uncounted(rx) }
    }

    /// The same; they count as reported.
    pub(crate) fn take_uncounted(&mut self) -> Carried {
        let carried = self.uncounted();
        self.tx.count(carried.tx);
        self.rx.count(carried.rx);
        carried
    }

    /// Bytes sent and received by both parts of the path.
    fn carried(&self) -> (u64, u64) {
        if let Some(m) = &self.messages {
            return (m.tx_bytes, m.rx_bytes);
        }
        let (direct_tx, direct_rx) = self.slot.direct();
        (self.tx.sent().wrapping_add(direct_tx), self.rx.tail().wrapping_add(direct_rx))
    }

    /// The row of the connection, whose application is process `app_pid`.
    pub(crate) fn row(&self, lane: LaneSeen, app_pid: u32) -> ConnectionRow {
        let (direct_tx_bytes, direct_rx_bytes) = self.slot.direct();
        let (tx_bytes, rx_bytes) = self.carried();
        let is_direct = direct_tx_bytes != 0 || direct_rx_bytes != 0;
        let reason = if is_direct { Reason::BulkStream } else { Reason::OtherHost };
        ConnectionRow {
            id: self.identity.id,
            local: self.identity.local,
            peer: self.identity.peer,
            state: self.state(),
            lane: lane.name,
            route_id: (!matches!(self.phase, Phase::Opening(_))).then_some(self.routes.own),
            path: if is_direct { PathKind::TcpDirect } else { PathKind::Lane },
            // UC is beside a lane of either wire.
            wire: lane.link.map(|link| if self.has_messages() { Wire::Roce } else { link.wire }.to_string()),
            encrypted: lane.link.map(|link| link.cipher.is_some()),
            cipher: lane.link.and_then(|link| link.cipher).map(str::to_owned),
            reason: if lane.is_silent || self.is_away() { Reason::Stalled } else { reason },
            verb: self.verb(),
            verb_asked: self.asked_verb().map(|verb| verb.key().into()),
            verb_reason: self.verb_reason(),
            tx_bytes,
            rx_bytes,
            direct_tx_bytes,
            direct_rx_bytes,
            tx_queued_bytes: self.tx_queued_bytes(),
            rx_queued_bytes: self.rx_queued_bytes(),
            app_pid,
        }
    }

    /// What carried the last bytes.
    fn verb(&self) -> Option<String> {
        let last = self.last_choice().map(|choice| choice.verb.key().into());
        let of_messages = if self.last_way() == Some(Way::Write) { "uc-write" } else { "uc-send" };
        last.or_else(|| self.has_messages().then(|| of_messages.into()))
    }

    /// Why.
    fn verb_reason(&self) -> Option<String> {
        let last = self.last_choice().map(|choice| choice.why.text().into());
        last.or_else(|| {
            let (sent, received, lost) = self.message_counts()?;
            let by_send = match self.last_way() {
                Some(Way::SendForWrite) => "; by SEND, as the peer had no place for a WRITE",
                _ => "",
            };
            Some(format!(
                "messages on UC, which may be lost: {sent} sent, {received} received, {lost} lost before this end{by_send}"
            ))
        })
    }

    fn state(&self) -> ConnectionState {
        if matches!(self.phase, Phase::Opening(_)) {
            ConnectionState::Connecting
        } else if self.close.is_app_released() || self.close.is_reset() {
            ConnectionState::Closing
        } else if self.backlog_port.is_some() {
            ConnectionState::Backlog
        } else {
            match (self.close.is_ending(), self.close.is_fin_received()) {
                (false, false) => ConnectionState::Established,
                (true, false) => ConnectionState::FinSent,
                (false, true) => ConnectionState::FinReceived,
                (true, true) => ConnectionState::Closing,
            }
        }
    }

    /// Bytes written and not yet consumed by the peer, with what the application wrote since its last doorbell.
    fn tx_queued_bytes(&self) -> u64 {
        let (tail, head) = self.messages.as_ref().map_or((self.tx.tail(), self.tx.head()), |m| (m.tx_tail, m.tx_head));
        self.slot.fresh(&self.slot.words().tx_tail, tail, head, self.tx.span().full())
    }

    /// Bytes arrived and not read, with what the application read since its last doorbell.
    fn rx_queued_bytes(&self) -> u64 {
        let (tail, head) = self.messages.as_ref().map_or((self.rx.tail(), self.rx.head()), |m| (m.rx_tail, m.rx_head));
        let unread = tail.wrapping_sub(head);
        unread
            .saturating_sub(self.slot.fresh(&self.slot.words().rx_head, head, head, self.tx.span().full()).min(unread))
    }
}
