//! Programs that come back with the session that a daemon before this one made (docs/restart.md).
//!
//! Owns the checks of what they bring. It must never use memory of theirs that was not checked, as it would any
//! stranger's.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use control::{RETURNED_MAX, Reason, Request};
use plane::Party;
use shm::{Segment, Session, SessionShape, Sharing};

use super::{Attaching, Client, Hub, ReturnedSession, Stage};

/// Rows of connections that programs brought back have the connections' numbers with this bit.
pub(super) const RETURNED_ROW: u64 = 1 << 61;

impl Hub {
    /// A message of a program that brings its session along. An error is what it did wrong.
    pub(super) fn on_return(
        &mut self,
        party: Party,
        request: Request,
        fds: Vec<OwnedFd>,
        lacks_fds: bool,
    ) -> Result<(), String> {
        let Some(Client { stage: Stage::Returning(returned), next_chunk: chunks, .. }) =
            self.clients.get_mut(&party.client)
        else {
            return Ok(());
        };
        match request {
            Request::Return { slots, engines, session_bytes, next_chunk, used } => {
                if returned.is_some() {
                    return Err("it brings two sessions along".into());
                }
                if lacks_fds {
                    self.refuse_return(party, "this daemon is at its limit of open descriptors");
                    return Ok(());
                }
                let shape = SessionShape { slots, engines };
                if shape != self.shape {
                    let (is, own) = (shape, self.shape);
                    let words = format!("its session is for {is:?}, and this daemon has {own:?}");
                    self.refuse_return(party, &words);
                    return Ok(());
                }
                let session = adopt((shape, session_bytes), fds, self.epoch)?;
                let used = slots_of(&used, slots)?;
                *chunks = next_chunk;
                *returned = Some(Box::new(ReturnedSession { session, used }));
                Ok(())
            }
            Request::ReturnPairs { ends } if returned.is_some() && ends.len() <= RETURNED_MAX => {
                for end in ends {
                    let bytes = (end.tx_bytes, end.rx_bytes);
                    let row = (end.connection | RETURNED_ROW, (end.local, end.peer), bytes);
                    self.fallbacks.handle_returned(party, row)?;
                }
                Ok(())
            }
            Request::ReturnEnd => {
                let session = returned.take().ok_or("ReturnEnd without a session")?;
                self.attach_returned(party, *session);
                Ok(())
            }
            _ => Err("only its session may be said before ReturnEnd".into()),
        }
    }

    fn attach_returned(&mut self, party: Party, returned: ReturnedSession) {
        let ReturnedSession { session, used } = returned;
        let id = party.client;
        let Some(who) = self.clients.get(&id).map(|client| client.who.clone()) else { return };
        match self.ask_engines(id, &who, &session, &used) {
            Ok(fds) => {
                let (unanswered, networks) = (self.engines.count(), self.networks_of(id));
                if let Some(client) = self.clients.get_mut(&id) {
                    client.stage = Stage::Attaching(Attaching { fds, unanswered, refused: None, networks });
                }
            }
            Err(error) => self.refuse_return(party, &error.to_string()),
        }
    }

    /// The program's session is not taken, and it is not the program's fault.
    fn refuse_return(&mut self, party: Party, why: &str) {
        if let Some(left_out) = self.may_log() {
            tracing::warn!(pid = party.pid, uid = party.uid, why, left_out, "the session of a program cannot go on");
        }
        self.send(party.client, self.refused(Reason::DaemonLost), Vec::new());
        self.forget(party.client);
    }
}

/// The session segment that a program brings along.
fn adopt((shape, bytes): (SessionShape, u64), fds: Vec<OwnedFd>, epoch: u64) -> Result<Session, String> {
    let mut fds = fds.into_iter();
    let (Some(fd), None) = (fds.next(), fds.next()) else {
        return Err("Return comes with one descriptor".into());
    };
    if bytes != Session::bytes(shape) {
        return Err(format!("a session of {shape:?} has {} bytes, not {bytes}", Session::bytes(shape)));
    }
    let segment = Segment::accept(fd, bytes, Sharing::ReadWrite).map_err(|e| e.to_string())?;
    Session::adopt(segment.into_region(), shape, epoch).map_err(|e| e.to_string())
}

/// The slots that a bitmap names.
fn slots_of(bitmap: &[u8], slots: u32) -> Result<BTreeSet<u32>, String> {
    let bits = (0_u32..)
        .zip(bitmap)
        .flat_map(|(i, byte)| (0..8).filter(move |bit| byte & 1 << bit != 0).map(move |bit| i.saturating_mul(8) + bit));
    let used: BTreeSet<u32> = bits.collect();
    match used.last() {
        Some(&last) if last >= slots => Err(format!("slot {last} of {slots}")),
        _ => Ok(used),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_names_slots_that_there_are() {
        let of = |bitmap: &[u8]| slots_of(bitmap, 64).map(|used| used.into_iter().collect::<Vec<_>>());
        assert_eq!(of(&[]), Ok(vec![]));
        assert_eq!(of(&[0b101, 0, 0, 0, 0, 0, 0, 0x80]), Ok(vec![0, 2, 63]));
        assert!(of(&[0, 0, 0, 0, 0, 0, 0, 0, 1]).is_err());
    }
}
