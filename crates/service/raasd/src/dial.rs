//! Reaching another daemon: attempts, their pauses and their end.
//!
//! Owns which failures are worth another attempt. It must never try longer than a connect may take.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use control::Reason;
use plane::{Identity, LinkId, Refusal};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};

use crate::link::{LinkContext, LinkInput, Wire, greet, run};

/// Pause before the second attempt; it doubles.
const PAUSE: Duration = Duration::from_millis(50);

/// Dials `peer` and carries the link. `deadline` bounds the attempts.
pub(crate) async fn dial(context: Arc<LinkContext>, link: LinkId, peer: IpAddr, deadline: Instant) {
    let address = context.config.peer_address(peer);
    let mut pause = PAUSE;
    let mut refusal = Refusal::new(Reason::PeerUnreachable, "not tried");
    for attempt in 1..=context.config.limits.dial_attempts_max {
        match attempt_once(&context, address, deadline).await {
            Ok((wire, identity)) => {
                tracing::info!(%peer, instance = identity.instance, "control link to the peer's daemon is up");
                return run(wire, &context, link, identity).await;
            }
            Err(failure) => refusal = failure,
        }
        if !is_worth_another(refusal.reason) || Instant::now() + pause >= deadline {
            break;
        }
        if attempt < context.config.limits.dial_attempts_max {
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }
    let quota = || context.log.lock().unwrap_or_else(PoisonError::into_inner).take(std::time::Instant::now());
    if refusal.reason != Reason::Closed
        && let Some(left_out) = quota()
    {
        tracing::warn!(%peer, %address, why = %refusal, left_out, "cannot reach the peer's daemon");
    }
    let _ = context.inputs.send(LinkInput::DialFailed { link, reason: told(refusal.reason) }).await;
}

async fn attempt_once(
    context: &LinkContext,
    address: SocketAddr,
    deadline: Instant,
) -> Result<(Wire, Identity), Refusal> {
    let unreachable = |e: io::Error| Refusal::new(Reason::PeerUnreachable, e.to_string());
    let late = |_| Refusal::new(Reason::PeerUnreachable, "no answer in time");
    let stream = timeout_at(deadline, connect(context.config.listen, address)).await.map_err(late)?;
    let mut wire = Wire::new(stream.map_err(unreachable)?).map_err(unreachable)?;
    let deadline = deadline.min(Instant::now() + context.config.limits.handshake());
    match timeout_at(deadline, greet(&mut wire, context, address.ip())).await {
        Ok(Ok(identity)) => Ok((wire, identity)),
        // Somebody listens there, and went away.
        Ok(Err(Refusal { reason: Reason::PeerLost, detail })) => Err(Refusal { reason: Reason::PeerBusy, detail }),
        Ok(Err(refusal)) => {
            wire.bye(&refusal).await;
            Err(refusal)
        }
        Err(_) => Err(Refusal::new(Reason::PeerBusy, "the peer's daemon does not finish its part of the handshake")),
    }
}

/// From our own address, which the peer compares with what we claim.
async fn connect(own: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if own.is_ipv4() == to.is_ipv4() {
        socket.bind(SocketAddr::new(own, 0))?;
    }
    socket.connect(to).await
}

/// A daemon that is just starting, that died under the handshake, or that many others want, may be there a moment later.
fn is_worth_another(reason: Reason) -> bool {
    matches!(reason, Reason::PeerUnreachable | Reason::PeerBusy)
}

/// What the application gets.
fn told(reason: Reason) -> Reason {
    match reason {
        Reason::Closed | Reason::PeerAuth | Reason::PeerVersion | Reason::BadAddress | Reason::PeerLimit => reason,
        Reason::PeerBusy => reason,
        Reason::LocalLimit => Reason::PeerLimit,
        _ => Reason::PeerUnreachable,
    }
}
