//! Programs that come back with the session that a daemon before this one made (docs/operate/restart.md).
//!
//! Owns the memory that they bring. It must never use any that was not checked, as it would any stranger's.

use std::collections::BTreeMap;

use control::Request;
use engine::{Returned, ReturnedChunk, SlotSet};
use plane::{Brought, ClientId};
use receivers::Verdict;
use shm::{Region, Segment, Session, SessionShape, Sharing};

use super::{Client, Hub, ReturnedSession, Stage};
use crate::receiving::{With, memory_of};

/// Bytes of one of them. By far the most are room to grow, which nobody has touched; the engine bounds its rings.
const CHUNK_BYTES_MAX: u64 = 16 << 30;

impl Hub {
    /// Memory of a program that brings its session along, which the control plane expects. An error is what it did wrong.
    pub(super) fn on_return(&mut self, id: ClientId, request: Request, with: With) -> Result<(), String> {
        let Some(Client { stage: Stage::Returning(returned), next_chunk: chunks, .. }) = self.clients.get_mut(&id)
        else {
            return Ok(());
        };
        match request {
            Request::Return { .. } if matches!(with, Verdict::NoRoom) => {
                self.daemon.refuse_return(id, "this daemon is at its limit of open descriptors".into());
            }
            Request::Return { slots, session_bytes, next_chunk, used, .. } => {
                let session = adopt((self.shape, session_bytes), &with, self.epoch)?;
                let used = slots_of(&used, slots)?;
                *chunks = next_chunk;
                *returned = Some(Box::new(ReturnedSession { session, used, chunks: BTreeMap::new() }));
            }
            // Without a descriptor of this daemon's its connections end.
            Request::ReturnChunk { chunk, kind, bytes } if !matches!(with, Verdict::NoRoom) => {
                let chunk = ReturnedChunk { chunk, kind, region: region_of(bytes, &with)? };
                returned.iter_mut().for_each(|returned| _ = returned.chunks.insert(chunk.chunk, chunk.clone()));
            }
            _ => {}
        }
        Ok(())
    }
}

impl ReturnedSession {
    /// The session, and for each engine what is its.
    pub(super) fn shared(mut self, brought: Vec<Brought>) -> (Session, Vec<Returned>) {
        let mut of = |brought: Brought| {
            let Brought { chunks, connections, sockets, refused } = brought;
            let chunks = chunks.into_iter().filter_map(|number| self.chunks.remove(&number)).collect();
            Returned { used: self.used.clone(), chunks, connections, sockets, refused }
        };
        let engines = brought.into_iter().map(&mut of).collect();
        (self.session, engines)
    }
}

/// The memory of a chunk that a program brings along.
fn region_of(bytes: u64, with: &With) -> Result<Region, String> {
    let fd = memory_of(with, "a chunk")?;
    if bytes > CHUNK_BYTES_MAX {
        return Err(format!("a chunk of {bytes} bytes is longer than {CHUNK_BYTES_MAX}"));
    }
    let segment = Segment::accept(fd, bytes, Sharing::ReadWrite).map_err(|e| e.to_string())?;
    Ok(segment.into_region())
}

/// The session segment that a program brings along.
fn adopt((shape, bytes): (SessionShape, u64), with: &With, epoch: u64) -> Result<Session, String> {
    let fd = memory_of(with, "a session")?;
    if bytes != Session::bytes(shape) {
        return Err(format!("a session of {shape:?} has {} bytes, not {bytes}", Session::bytes(shape)));
    }
    let segment = Segment::accept(fd, bytes, Sharing::ReadWrite).map_err(|e| e.to_string())?;
    Session::adopt(segment.into_region(), shape, epoch).map_err(|e| e.to_string())
}

/// The slots that a bitmap names.
fn slots_of(bitmap: &[u8], slots: u32) -> Result<SlotSet, String> {
    let used = SlotSet::from_bitmap(bitmap);
    match used.last_below(u32::MAX) {
        Some(last) if last >= slots => Err(format!("slot {last} of {slots}")),
        _ => Ok(used),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_names_slots_that_there_are() {
        let of = |bitmap: &[u8]| {
            slots_of(bitmap, 64).map(|used| (0..64).filter(|slot| used.contains(*slot)).collect::<Vec<u32>>())
        };
        assert_eq!(of(&[]), Ok(vec![]));
        assert_eq!(of(&[0b101, 0, 0, 0, 0, 0, 0, 0x80]), Ok(vec![0, 2, 63]));
        assert!(of(&[0, 0, 0, 0, 0, 0, 0, 0, 1]).is_err());
    }
}
