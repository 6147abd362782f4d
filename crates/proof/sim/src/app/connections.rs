//! How a process takes connections into use, and gives back those that it does not want.

use control::{Connection, Reason};
use raas_core::{Answer, DaemonMessage, Failed};
use verbs::Time;

use super::{App, give_back};
use crate::check::{Checks, RecordId, Side};
use crate::conn::Conn;
use crate::direct::SimSocket;

impl App {
    pub(super) fn on_connected(
        &mut self,
        now: Time,
        request: u64,
        result: Result<(Connection, RecordId, Option<SimSocket>), Reason>,
        checks: &mut Checks,
    ) {
        if self.is_bind_refused(now, request, result.as_ref().err(), checks) {
            return;
        }
        let was_cancelled = self.cancelled.remove(&request);
        self.patience.remove(&request);
        let asked = self.asked.remove(&request);
        if asked.is_none() && !was_cancelled {
            checks.fail(now, "connect", format!("request {request} of application {} answered twice", self.uid));
        }
        let (message, record, tcp) = match result {
            Ok((connection, record, tcp)) => (Ok(connection), Some(record), tcp),
            Err(reason) => (Err(reason), None, None),
        };
        // Of a connect that was given up the core drops the connection.
        self.hear(now, DaemonMessage::Connected { request, result: message }, checks);
        match (self.answer(request), record, asked) {
            (Some(Answer::Connected(Ok(connection))), Some(record), Some(_)) => {
                self.adopt(now, (*connection, tcp), (record, Side::Connector), checks);
                self.answers.connected += 1;
            }
            (Some(Answer::Connected(Err(Failed::Reason(reason)))), _, Some(asked)) => {
                *self.answers.refused.entry(reason.key()).or_default() += 1;
                checks.on_refused(now, &asked, reason);
            }
            (Some(other), _, _) => checks.fail(now, "connect", format!("the answer to a connect was {other:?}")),
            (None, Some(record), _) => give_back(checks, (record, Side::Connector)),
            (None, None, _) => {}
        }
    }

    pub(super) fn adopt(
        &mut self,
        now: Time,
        (connection, tcp): (raas_core::Connection, Option<SimSocket>),
        whose: (RecordId, Side),
        checks: &mut Checks,
    ) -> Option<u32> {
        let (slot, conn) = Conn::new(connection, (whose, checks.carries(whose.0)), tcp, &self.plan.talk, &mut self.rng);
        let old = self.conns.insert(slot, conn);
        if old.is_some_and(|c| !c.closed) {
            checks.fail(now, "connect", format!("slot {slot} was given to two connections"));
            return None;
        }
        self.open += 1;
        self.ready.insert(slot);
        Some(slot)
    }
}
