//! Control links that other daemons, or strangers, open.
//!
//! Owns how many may be unproven at a time, in all and from one address, and how long. It must never keep anything for a
//! stranger beyond these counts.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::Reason;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::handshake::Refusal;
use crate::limits::count;
use crate::link::{LinkContext, LinkInput, Wire, receive, run};
use crate::log_quota::LogQuota;
use crate::peers::LinkId;
use crate::shutdown::Shutdown;

/// Links that we accepted have numbers from here on, those that we dialed below.
const ACCEPTED: u64 = 1 << 63;
/// Time at the end for the last messages.
const FAREWELL: Duration = Duration::from_millis(500);
/// Lines of log about strangers in a while.
const LOG_LINES: u32 = 10;
/// Pause after accepting failed, mostly for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct Strangers {
    by_source: BTreeMap<IpAddr, u64>,
    total: u64,
    log: LogQuota,
}

/// One place among the unproven; given back when dropped.
#[derive(Debug)]
struct Place {
    strangers: Arc<Mutex<Strangers>>,
    source: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        strangers.total -= 1;
        if let Some(n) = strangers.by_source.get_mut(&self.source) {
            *n -= 1;
            if *n == 0 {
                strangers.by_source.remove(&self.source);
            }
        }
    }
}

/// Accepts until told to stop; then the links have [`FAREWELL`] for their last words.
pub(crate) async fn accept_links(listener: TcpListener, context: Arc<LinkContext>, stop: Shutdown) {
    let log = LogQuota::new(LOG_LINES, std::time::Instant::now());
    let strangers = Arc::new(Mutex::new(Strangers { by_source: BTreeMap::new(), total: 0, log }));
    let mut links = JoinSet::new();
    'accepting: for number in ACCEPTED.. {
        let accepted = loop {
            tokio::select! {
                accepted = listener.accept() => break accepted,
                Some(_) = links.join_next() => {}
                () = stop.triggered() => break 'accepting,
            }
        };
        match accepted {
            Ok((stream, source)) => {
                if let Some(place) = take_place(&strangers, source, &context) {
                    links.spawn(serve(stream, source, Arc::clone(&context), LinkId(number), place));
                }
            }
            Err(error) => {
                log_line(&strangers, |left_out| tracing::warn!(%error, left_out, "cannot accept control links"));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    let _ = timeout(FAREWELL, async { while links.join_next().await.is_some() {} }).await;
}

fn take_place(strangers: &Arc<Mutex<Strangers>>, source: SocketAddr, context: &LinkContext) -> Option<Place> {
    let limits = &context.config.limits;
    let ip = source.ip().to_canonical();
    let mut guard = strangers.lock().unwrap_or_else(PoisonError::into_inner);
    let from_there = guard.by_source.get(&ip).copied().unwrap_or(0);
    if guard.total < limits.handshakes_max && from_there < limits.handshakes_per_source_max {
        guard.total += 1;
        guard.by_source.insert(ip, from_there + 1);
        return Some(Place { strangers: Arc::clone(strangers), source: ip });
    }
    drop(guard);
    log_line(strangers, |left_out| tracing::warn!(%source, left_out, "too many control links without proof; closing"));
    None
}

fn log_line(strangers: &Mutex<Strangers>, line: impl FnOnce(Option<u64>)) {
    let mut guard = strangers.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(left_out) = guard.log.take(std::time::Instant::now()) {
        line(left_out);
    }
}

async fn serve(stream: TcpStream, source: SocketAddr, context: Arc<LinkContext>, link: LinkId, place: Place) {
    let Ok(mut wire) = Wire::new(stream) else { return };
    let mut said_hello = false;
    let limit = context.config.limits.handshake();
    let received = timeout(limit, receive(&mut wire, &context, link, source, &mut said_hello)).await;
    let refusal = match received {
        Ok(Ok(peer)) => {
            drop(place);
            tracing::info!(peer = %peer.address, instance = peer.instance, "control link from the peer's daemon is up");
            return run(wire, &context, link, peer).await;
        }
        Ok(Err(refusal)) => refusal,
        Err(_) => Refusal::new(Reason::TimedOut, "the handshake was not finished in time"),
    };
    if said_hello {
        let _ = context.inputs.send(LinkInput::Down { link, reason: Reason::PeerUnreachable }).await;
    }
    if refusal.reason != Reason::Closed {
        log_line(&place.strangers, |left_out| {
            tracing::warn!(%source, why = %refusal, left_out, "refused a control link");
        });
    }
    wire.bye(&refusal).await;
}

/// Bound of the queue from links to the control plane.
pub(crate) fn inputs_max(handshakes_max: u64) -> usize {
    count(handshakes_max).clamp(64, 1024)
}
