//! Reaching another daemon: the sockets of a dial's attempts. Which failures are worth another one, and until when, is
//! [`Dialing`]'s to say; over which paths, [`Ways`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use control::Reason;
use plane::{AfterAttempt, Dialing, Identity, LinkId, LinkPath, Opening, Refusal, Ways};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{timeout, timeout_at};
use verbs::Time;

use crate::link::{LinkContext, LinkInput, Wire, fresh, run};
use crate::opening::{Opened, open};

/// Before the next path is tried beside the ones before, which may only be slow.
const STAGGER: Duration = Duration::from_millis(100);
/// Time of a handshake while there are other paths to try.
const HANDSHAKE_OF_SEVERAL: Duration = Duration::from_secs(1);

/// Dials `peer` and carries the link. `deadline` bounds the attempts.
pub(crate) async fn dial(context: Arc<LinkContext>, link: LinkId, peer: IpAddr, deadline: Time, ways: Ways) {
    let address = context.config.peer_address(peer);
    let Ways { mut paths, replaces, is_probe } = ways;
    if paths.is_empty() {
        paths.push(LinkPath { own: context.config.listen, peer: address.ip() });
    }
    let mut dialing = Dialing::new(deadline, context.config.limits.dial_attempts_max);
    let (refusal, reason) = loop {
        let unreachable = |e: io::Error| Refusal::new(Reason::PeerUnreachable, e.to_string());
        let connect_by = context.instant(dialing.connect_by(context.now()));
        let connected = timeout_at(connect_by, connect_first(&paths, address.port())).await;
        let is_late = connected.is_err();
        let opened = match connected {
            Err(_) => Err(Refusal::new(Reason::PeerUnreachable, "no answer in time")),
            Ok(Err(e)) => Err(unreachable(e)),
            Ok(Ok((stream, place))) => {
                // If it goes wrong there, the others are tried first.
                let path = paths.remove(place);
                paths.push(path);
                match Wire::new(stream) {
                    Ok(wire) => {
                        let limit = if paths.len() > 1 { HANDSHAKE_OF_SEVERAL } else { Duration::MAX };
                        introduce(wire, &context, (link, peer, replaces), deadline, limit).await
                    }
                    Err(e) => Err(unreachable(e)),
                }
            }
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
    if is_probe {
        tracing::debug!(%peer, why = %refusal, "the preferred path to the peer is not there yet");
    } else if refusal.reason != Reason::Closed
        && let Some(left_out) = quota()
    {
        tracing::warn!(%peer, %address, why = %refusal, left_out, "cannot reach the peer's daemon");
    }
    let _ = context.inputs.send(LinkInput::DialFailed { link, reason }).await;
}

/// The TCP connection that is there first, with the place of its path. A path is tried when the one before it has failed,
/// or has had its lead. If all fail, the error is the first path's.
async fn connect_first(paths: &[LinkPath], port: u16) -> io::Result<(TcpStream, usize)> {
    let mut tries = JoinSet::new();
    let mut untried = paths.iter().copied().enumerate();
    let mut failed: Option<(usize, io::Error)> = None;
    loop {
        if let Some((place, path)) = untried.next() {
            let to = SocketAddr::new(path.peer, port);
            tries.spawn(async move { (place, connect(path.own, to).await) });
        }
        let lead = if untried.len() > 0 { STAGGER } else { Duration::MAX };
        match timeout(lead, tries.join_next()).await {
            // It goes on beside the next one.
            Err(_) => {}
            Ok(Some(Ok((place, Ok(stream))))) => return Ok((stream, place)),
            Ok(Some(Ok((place, Err(error))))) => {
                if failed.as_ref().is_none_or(|(other, _)| place < *other) {
                    failed = Some((place, error));
                }
            }
            Ok(Some(Err(_))) => {}
            Ok(None) => break,
        }
    }
    Err(failed.map_or_else(|| io::ErrorKind::AddrNotAvailable.into(), |(_, error)| error))
}

/// Says who we are on a connection that is there, and hears who the peer is.
async fn introduce(
    mut wire: Wire,
    context: &LinkContext,
    (link, peer, replaces): (LinkId, IpAddr, u64),
    deadline: Time,
    limit: Duration,
) -> Result<(Wire, Identity), Refusal> {
    let now = context.now();
    let limit = context.config.limits.handshake().min(deadline.saturating_since(now)).min(limit);
    let own = context.introduction(replaces, Some(peer))?;
    let opening = Opening::dial(now, own, context.keys(), fresh()?, peer, limit);
    match open(&mut wire, context, (link, peer), opening, &mut false).await {
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

/// From our own address, which the peer compares with what we claim. A stream of bulk may get this connection
/// ([`softnic::prepare_stream`]).
pub(crate) async fn connect(own: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    softnic::begin_unpaced(&socket);
    if own.is_ipv4() == to.is_ipv4() {
        socket.bind(SocketAddr::new(own, 0))?;
    }
    socket.connect(to).await
}
