//! The operation queue of a session, on which all its handles to regions of other hosts submit.
//!
//! Owns the turns of the threads. It must end each of its operations before the next caller begins one, so that no
//! caller gets another's completion.

use std::io;
use std::sync::{Arc, Mutex, Weak};

use control::{Reason, RegionRefusal};
use raas_core::{Answer, Failed, Rx};
use shm::{CompletionRecord, Submission};

use super::ask::ask;
use super::error::RegionError;
use crate::attachment::Attachment;
use crate::conn::Conn;
use crate::error::{SessionError, StreamError};
use crate::operation_queue::OperationQueue;
use crate::park::lock;

/// Bytes of each ring of a session's queue.
const RING_BYTES: u32 = 256 << 10;
/// Operations of one call that are under way at a time: their records and those of their completions fit the rings.
const UNDER_WAY_MAX: usize = 32;
/// See the head of this file. Threads take turns.
#[derive(Debug)]
struct Queue {
    conn: Arc<Conn>,
    /// The next tag.
    turn: Mutex<u64>,
}

/// The session's queue, opened when it is first asked for.
pub(super) fn queue_of(attachment: &Arc<Attachment>) -> Result<Arc<dyn OperationQueue>, RegionError> {
    let mut place = lock(&attachment.operations);
    // Dropped with the last handle to a region of another host.
    if let Some(queue) = place.as_ref().and_then(Weak::upgrade) {
        return Ok(queue);
    }
    let connection = match ask(attachment, |session| session.open_operations(RING_BYTES))? {
        Answer::Connected(Ok(connection)) => *connection,
        Answer::Connected(Err(Failed::Reason(reason))) => {
            return Err(RegionError::refused("", RegionRefusal::Reason(reason)));
        }
        other => return Err(SessionError::Protocol(format!("the answer to OpenOperations was {other:?}")).into()),
    };
    let queue: Arc<dyn OperationQueue> =
        Arc::new(Queue { conn: Conn::adopt(attachment, connection), turn: Mutex::new(0) });
    *place = Some(Arc::downgrade(&queue));
    Ok(queue)
}

impl OperationQueue for Queue {
    fn run<'a>(
        &self,
        count: usize,
        operation: &dyn Fn(usize) -> (Submission, &'a [u8]),
        done: &mut dyn FnMut(usize, &CompletionRecord, &Rx),
    ) -> Result<(), SessionError> {
        self.conn.check_fork()?;
        let mut turn = lock(&self.turn);
        let first = *turn;
        *turn += count as u64;
        let (mut begun, mut ended) = (0, 0);
        while ended < count {
            while begun < count && begun - ended < UNDER_WAY_MAX {
                let (submission, payload) = operation(begun);
                let submission = Submission { tag: first + begun as u64, ..submission };
                let bytes = usize::try_from(submission.ring_bytes()).unwrap_or(usize::MAX);
                let room = self.conn.reserve(bytes).map_err(|e| lost(&e))?;
                room.put_submission(self.conn.endpoint(), &submission, payload);
                begun += 1;
            }
            let closed = || lost(&io::ErrorKind::BrokenPipe.into());
            let mut lent = self.conn.loan().map_err(|e| lost(&e))?.ok_or_else(closed)?;
            let broken = |e: raas_core::NotARecord| SessionError::Protocol(e.to_string());
            let record = lent.rx.completion(lent.bytes).map_err(broken)?;
            // One of an earlier call that failed in the middle has no caller any more.
            if let Some(number) = record.tag.checked_sub(first).and_then(|n| usize::try_from(n).ok()) {
                done(number, &record, &lent.rx);
                ended += 1;
            }
            self.conn.consume(&mut lent.rx, record.ring_bytes());
        }
        Ok(())
    }
}

/// The queue ended: with the session, or because the daemon has no place for it.
fn lost(error: &io::Error) -> SessionError {
    let reason = StreamError::reason_of(error).unwrap_or(Reason::DaemonLost);
    SessionError::Lost { reason }
}
