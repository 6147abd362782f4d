//! How a process takes connections into use, and gives back those that it does not want.

use control::{Connection, Reason};
use verbs::Time;

use super::App;
use crate::check::{Checks, RecordId, Side};
use crate::conn::Conn;

impl App {
    pub(super) fn on_connected(
        &mut self,
        now: Time,
        request: u64,
        result: Result<(Connection, RecordId), Reason>,
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
        match (result, asked) {
            (Ok((connection, record)), asked) => {
                let slot = self.adopt(now, &connection, (record, Side::Connector), checks);
                if asked.is_some() {
                    self.answers.connected += 1;
                } else if let Some(slot) = slot {
                    self.give_up(slot, checks);
                }
            }
            (Err(reason), Some(asked)) => {
                *self.answers.refused.entry(reason.key()).or_default() += 1;
                checks.on_refused(now, &asked, reason);
            }
            (Err(_), None) => {}
        }
    }

    pub(super) fn adopt(
        &mut self,
        now: Time,
        connection: &Connection,
        whose: (RecordId, Side),
        checks: &mut Checks,
    ) -> Option<u32> {
        match Conn::new(&self.session, &self.chunks, connection, whose, &self.plan.talk, &mut self.rng) {
            Ok((slot, conn)) => {
                let old = self.conns.insert(slot, conn);
                if old.is_some_and(|c| !c.closed) {
                    checks.fail(now, "connect", format!("slot {slot} was given to two connections"));
                }
                self.open += 1;
                self.ready.insert(slot);
                Some(slot)
            }
            Err(why) => {
                checks.fail(now, "connect", why);
                None
            }
        }
    }

    /// Gives a slot back that nobody here wants.
    pub(super) fn give_up(&mut self, slot: u32, checks: &mut Checks) {
        if let Some(conn) = self.conns.get_mut(&slot).filter(|c| !c.closed) {
            conn.refuse(checks);
            self.open -= 1;
            self.ring(slot);
            self.ready.insert(slot);
        }
    }
}
