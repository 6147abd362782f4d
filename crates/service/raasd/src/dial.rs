//! Reaching another daemon: the sockets of a dial's attempts. Which failures are worth another one, and until when, is
//! [`Dialing`]'s to say.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};

use control::Reason;
use plane::{AfterAttempt, Dialing, Identity, LinkId, Opening, Refusal};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout_at;
use verbs::Time;

use crate::link::{LinkContext, LinkInput, Wire, fresh, run};
use crate::opening::{Opened, open};

/// Dials `peer` and carries the link. `deadline` bounds the attempts.
pub(crate) async fn dial(context: Arc<LinkContext>, link: LinkId, peer: IpAddr, deadline: Time) {
    let address = context.config.peer_address(peer);
    let mut dialing = Dialing::new(deadline, context.config.limits.dial_attempts_max);
    let (refusal, reason) = loop {
        let unreachable = |e: io::Error| Refusal::new(Reason::PeerUnreachable, e.to_string());
        let connect_by = context.instant(dialing.connect_by(context.now()));
        let connected = timeout_at(connect_by, connect(context.config.listen, address)).await;
        let is_late = connected.is_err();
        let opened = match connected {
            Err(_) => Err(Refusal::new(Reason::PeerUnreachable, "no answer in time")),
            Ok(Err(e)) => Err(unreachable(e)),
            Ok(Ok(stream)) => match Wire::new(stream) {
                Ok(wire) => introduce(wire, &context, link, address, deadline).await,
                Err(e) => Err(unreachable(e)),
            },
        };
        let refusal = match opened {
            Ok((wire, identity)) => {
                tracing::info!(%peer, instance = identity.instance, "control link to the peer's daemon is up");
                return run(wire, &context, link, identity).await;
            }
            Err(refusal) => refusal,
        };
        let now = context.now();
        let after = if is_late { dialing.handle_late(now) } else { dialing.handle_failed(now, refusal.reason) };
        match after {
            AfterAttempt::Again(at) => tokio::time::sleep_until(context.instant(at)).await,
            AfterAttempt::GiveUp(reason) => break (refusal, reason),
        }
    };
    let quota = || context.log.lock().unwrap_or_else(PoisonError::into_inner).take(std::time::Instant::now());
    if refusal.reason != Reason::Closed
        && let Some(left_out) = quota()
    {
        tracing::warn!(%peer, %address, why = %refusal, left_out, "cannot reach the peer's daemon");
    }
    let _ = context.inputs.send(LinkInput::DialFailed { link, reason }).await;
}

/// Says who we are on a connection that is there, and hears who the peer is.
async fn introduce(
    mut wire: Wire,
    context: &LinkContext,
    link: LinkId,
    address: SocketAddr,
    deadline: Time,
) -> Result<(Wire, Identity), Refusal> {
    let now = context.now();
    let limit = context.config.limits.handshake().min(deadline.saturating_since(now));
    let opening = Opening::dial(now, context.introduction()?, context.keys(), fresh()?, address.ip(), limit);
    match open(&mut wire, context, (link, address.ip()), opening, &mut false).await {
        Ok(Opened::Link(identity)) => Ok((wire, identity)),
        // The dialing side takes it for what it is not.
        Ok(Opened::Direct(_)) => Err(Refusal::new(Reason::Unspecified, "an offer's proof where Hello was due")),
        Err(not_opened) => {
            if not_opened.says_why {
                wire.bye(&not_opened.refusal).await;
            }
            Err(not_opened.refusal)
        }
    }
}

/// From our own address, which the peer compares with what we claim. A stream of bulk may get this connection, so its
/// pacing is to be settled ([`softnic::settle_pacing`]).
pub(crate) async fn connect(own: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    softnic::begin_unpaced(&socket);
    if own.is_ipv4() == to.is_ipv4() {
        socket.bind(SocketAddr::new(own, 0))?;
    }
    socket.connect(to).await
}
