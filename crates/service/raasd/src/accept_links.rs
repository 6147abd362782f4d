//! Control links that other daemons, or strangers, open.
//!
//! Owns the tasks that serve them. It must never keep anything for a stranger beyond its place ([`Strangers`]) and the
//! time that a handshake may take, and must never wait for a stranger before it closes the descriptor.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::Reason;
use plane::{Entered, LinkId, Opening, Permit, PermitNumber, Refusal, Strangers};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::direct_socket::accept_direct;
use crate::limits::count;
use crate::link::{LinkContext, LinkInput, Wire, fresh, run};
use crate::log_quota::LogQuota;
use crate::opening::{NotOpened, Opened, open};
use crate::shutdown::Shutdown;

/// Time at the end for the last messages.
const FAREWELL: Duration = Duration::from_millis(500);
/// Lines of log about strangers in a while.
const LOG_LINES: u32 = 10;
/// Pause after accepting failed, mostly for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Links that lost their place and have not closed their descriptor yet: with more of them nobody is accepted.
const ENDING_MAX: usize = 8;

#[derive(Debug)]
struct Door {
    strangers: Strangers,
    /// How links learn that their place was given to another.
    evictions: BTreeMap<PermitNumber, oneshot::Sender<()>>,
    log: LogQuota,
}

/// A link's place at the door; given back when dropped.
#[derive(Debug)]
struct AtDoor {
    door: Arc<Mutex<Door>>,
    place: Permit,
    /// Ready when the place was given to another.
    evicted: oneshot::Receiver<()>,
    /// Its descriptor's share of what strangers may hold open, those that lost their place among them.
    _descriptor: OwnedSemaphorePermit,
}

impl AtDoor {
    fn enter(door: &Arc<Mutex<Door>>, source: SocketAddr, descriptor: OwnedSemaphorePermit) -> Self {
        let (tell, told) = oneshot::channel();
        let mut guard = door.lock().unwrap_or_else(PoisonError::into_inner);
        let Entered { place, evicted } = guard.strangers.enter(source.ip());
        guard.evictions.insert(place.number(), tell);
        let evicted = evicted.and_then(|number| guard.evictions.remove(&number));
        drop(guard);
        if let Some(evicted) = evicted {
            // It may be leaving just as well.
            let _ = evicted.send(());
            log_line(door, |left_out| {
                tracing::warn!(%source, left_out, "too many control links without proof; closing the oldest for a new one");
            });
        }
        Self { door: Arc::clone(door), place, evicted: told, _descriptor: descriptor }
    }
}

impl Drop for AtDoor {
    fn drop(&mut self) {
        let mut door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        door.evictions.remove(&self.place.number());
        door.strangers.leave(&self.place);
    }
}

/// Accepts until it is stopped. Then the links have [`FAREWELL`] for their last messages.
pub(crate) async fn accept_links(listeners: Vec<TcpListener>, context: Arc<LinkContext>, stop: Shutdown) {
    let limits = &context.config.limits;
    let known = context.config.peer_sources();
    let handshakes_max = count(limits.handshakes_max);
    let strangers = Strangers::new(handshakes_max, handshakes_max.div_ceil(2), known);
    let descriptors_max = strangers.capacity().saturating_add(ENDING_MAX).min(Semaphore::MAX_PERMITS);
    let descriptors = Arc::new(Semaphore::new(descriptors_max));
    let door = Arc::new(Mutex::new(Door {
        strangers,
        evictions: BTreeMap::new(),
        log: LogQuota::new(LOG_LINES, std::time::Instant::now()),
    }));
    let mut links = JoinSet::new();
    'accepting: for number in LinkId::FIRST_ACCEPTED.0.. {
        let next = async {
            // Never closed. A link that lost its place ends without waiting for anybody, so there is one soon.
            let descriptor = Arc::clone(&descriptors).acquire_owned().await.map_err(std::io::Error::other)?;
            Ok::<_, std::io::Error>((accept_any(&listeners, number as usize).await?, descriptor))
        };
        tokio::pin!(next);
        let accepted = loop {
            tokio::select! {
                accepted = &mut next => break accepted,
                Some(_) = links.join_next() => {}
                () = stop.triggered() => break 'accepting,
            }
        };
        match accepted {
            Ok(((stream, source), descriptor)) => {
                let place = AtDoor::enter(&door, source, descriptor);
                links.spawn(serve(stream, source, Arc::clone(&context), LinkId(number), place));
            }
            Err(error) => {
                log_line(&door, |left_out| tracing::warn!(%error, left_out, "cannot accept control links"));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listeners);
    let _ = timeout(FAREWELL, async { while links.join_next().await.is_some() {} }).await;
}

/// The next connection at any of the addresses, which have the first look in turn.
async fn accept_any(listeners: &[TcpListener], turn: usize) -> std::io::Result<(TcpStream, SocketAddr)> {
    std::future::poll_fn(|context| {
        for at in 0..listeners.len() {
            let listener = &listeners[turn.wrapping_add(at) % listeners.len()];
            if let std::task::Poll::Ready(accepted) = listener.poll_accept(context) {
                return std::task::Poll::Ready(accepted);
            }
        }
        std::task::Poll::Pending
    })
    .await
}

fn log_line(door: &Mutex<Door>, line: impl FnOnce(Option<u64>)) {
    let mut guard = door.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(left_out) = guard.log.take(std::time::Instant::now()) {
        line(left_out);
    }
}

async fn serve(stream: TcpStream, source: SocketAddr, context: Arc<LinkContext>, link: LinkId, mut at: AtDoor) {
    let Ok(mut wire) = Wire::new(stream) else { return };
    let known = context.config.peer_sources().get(&source.ip().to_canonical()).copied();
    let (introduction, secret) = match (context.introduction(0, known), fresh()) {
        (Ok(introduction), Ok(secret)) => (introduction, secret),
        (Err(refusal), _) | (_, Err(refusal)) => return wire.dismiss(&refusal),
    };
    let limit = context.config.limits.handshake();
    let opening = Opening::accept(context.now(), introduction, context.keys(), secret, limit);
    let mut said_hello = false;
    let opened = tokio::select! {
        biased;
        opened = open(&mut wire, &context, (link, source.ip()), opening, &mut said_hello) => Some(opened),
        _ = &mut at.evicted => None,
    };
    let refused = match opened {
        Some(Ok(Opened::Direct(hello))) => {
            let served = tokio::select! {
                biased;
                served = accept_direct(wire, &context, hello) => served,
                _ = &mut at.evicted => Ok(()),
            };
            if let Err(refusal) = served {
                log_line(&at.door, |left_out| {
                    tracing::warn!(%source, why = %refusal, left_out, "refused a TCP connection for a stream of bulk");
                });
            }
            return;
        }
        Some(Ok(Opened::Link(peer))) => {
            drop(at);
            tracing::info!(peer = %peer.address, instance = peer.instance, "control link from the peer's daemon is up");
            return run(wire, &context, link, peer).await;
        }
        Some(Err(refused)) => Some(refused),
        None => None,
    };
    if said_hello {
        let _ = context.inputs.send(LinkInput::Down { link, reason: Reason::PeerUnreachable }).await;
    }
    let Some(NotOpened { refusal, says_why }) = refused else {
        return wire.dismiss(&Refusal::new(Reason::PeerBusy, "too many others want a link to this daemon: try again"));
    };
    if refusal.reason == Reason::PeerLost && !wire.has_heard() {
        // Somebody has looked whether the port is open, as `raas doctor` and monitors do.
        tracing::debug!(%source, "a connection ended before its first byte");
    } else if refusal.reason != Reason::Closed {
        log_line(&at.door, |left_out| {
            tracing::warn!(%source, why = %refusal, left_out, "refused a control link");
        });
    }
    if !says_why {
        return;
    }
    tokio::select! {
        biased;
        () = wire.bye(&refusal) => {}
        _ = &mut at.evicted => {}
    }
}

/// Bound of the queue from links to the control plane.
pub(crate) fn inputs_max(handshakes_max: u64) -> usize {
    count(handshakes_max).clamp(64, 1024)
}
