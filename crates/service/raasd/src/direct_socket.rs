//! TCP connections for streams of bulk: connecting to the daemon that offered one, and proving the token on both sides
//! (docs/inside/kernel-tcp.md).
//!
//! Owns the sockets until the control plane has them. It must never read a byte behind the proof: those are the
//! applications', and never wait without a bound.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use control::{CHALLENGE_BYTES, PeerMessage, Reason, decode, encode, with_length};
use plane::{DirectHello, DirectProof, OFFER_TIME, Refusal, Side};
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use verbs::PathMarks;

use crate::dial::connect;
use crate::link::{LinkContext, LinkInput, Wire};

/// Silence after which the kernel asks the peer's host whether it is there, the pause between such questions, and how
/// many may stay without an answer. They are for firewalls on the way, which forget connections that rest; what they
/// would find the lane has found long before.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(60), 127);
/// Longest answer of the daemon that offered.
const ANSWER_BYTES_MAX: usize = 256;

/// An offer of a peer, and what it is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerOffer {
    pub(crate) peer: IpAddr,
    pub(crate) number: u64,
    pub(crate) token: [u8; CHALLENGE_BYTES],
    pub(crate) connection: u64,
}

/// Connects for an offer and tells the control plane what became of it.
pub(crate) async fn dial_direct(context: Arc<LinkContext>, offer: PeerOffer) {
    let result = match timeout(OFFER_TIME, prove(&context, offer)).await {
        Ok(result) => result,
        Err(_) => Err(Refusal::new(Reason::TimedOut, "no answer in time")),
    };
    let PeerOffer { peer, number, connection, .. } = offer;
    let result = result.map_err(|refusal| {
        tracing::debug!(%peer, why = %refusal, "no TCP connection for a stream of bulk");
        refusal.reason
    });
    let _ = context.inputs.send(LinkInput::DirectDialed { peer, number, connection, result }).await;
}

async fn prove(context: &LinkContext, offer: PeerOffer) -> Result<OwnedFd, Refusal> {
    let unreachable = |e: io::Error| Refusal::new(Reason::PeerUnreachable, e.to_string());
    let mut nonce = [0; CHALLENGE_BYTES];
    getrandom::fill(&mut nonce).map_err(|e| Refusal::new(Reason::LocalLimit, e.to_string()))?;
    let PeerOffer { peer, number, token, .. } = offer;
    let proof = DirectProof { number, token, nonce };
    let mut stream = connect(context.config.listen, context.config.peer_address(peer)).await.map_err(unreachable)?;
    let hello = PeerMessage::DirectHello { number, nonce, mac: proof.mac(Side::Dialer) };
    let frame = encode(&hello).map_err(|e| Refusal::new(Reason::Unspecified, e.to_string()))?;
    stream.write_all(&with_length(&frame)).await.map_err(unreachable)?;
    match read_answer(&mut stream).await? {
        PeerMessage::DirectProof { mac } if proof.is_proven(Side::Acceptor, &mac) => {
            into_socket(stream, context.config.marks).map_err(|e| Refusal::new(Reason::LocalLimit, e.to_string()))
        }
        PeerMessage::Bye { reason, detail } => Err(Refusal::new(reason, detail)),
        _ => Err(Refusal::new(Reason::PeerAuth, "the peer's daemon did not prove the token")),
    }
}

/// One message, and no byte of what follows.
async fn read_answer(stream: &mut TcpStream) -> Result<PeerMessage, Refusal> {
    let lost = |e: io::Error| Refusal::new(Reason::PeerLost, e.to_string());
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).await.map_err(lost)?;
    let len = u32::from_be_bytes(prefix) as usize;
    if len > ANSWER_BYTES_MAX {
        return Err(Refusal::new(Reason::Unspecified, format!("an answer of {len} bytes")));
    }
    let mut frame = vec![0; len];
    stream.read_exact(&mut frame).await.map_err(lost)?;
    decode(&frame).map_err(|e| Refusal::new(Reason::Unspecified, e.to_string()))
}

/// Serves a connection whose first message came for an offer. An error is said to its other end.
pub(crate) async fn accept_direct(mut wire: Wire, context: &LinkContext, hello: DirectHello) -> Result<(), Refusal> {
    let refused = || Refusal::new(Reason::PeerAuth, "there is no such offer");
    let (verdict, answer) = oneshot::channel();
    let _ = context.inputs.send(LinkInput::DirectHello { hello, verdict }).await;
    let Ok(Some(mac)) = answer.await else {
        wire.dismiss(&refused());
        return Err(refused());
    };
    let said = timeout(OFFER_TIME, wire.send(&PeerMessage::DirectProof { mac })).await;
    let socket = match said {
        // Before it has the proof an honest daemon says nothing more.
        Ok(Ok(())) => wire.into_stream().and_then(|stream| into_socket(stream, context.config.marks).ok()),
        _ => None,
    };
    let _ = context.inputs.send(LinkInput::DirectSocket { number: hello.number, socket }).await;
    Ok(())
}

/// The socket as applications get it: marked as the device's packets are. It has no `TCP_USER_TIMEOUT`, which would
/// also break the connection to a reader that takes nothing for so long, because it rests, or because the daemons that
/// owe it the bytes before the switch are away. Whether the other host is there the lane knows.
fn into_socket(stream: TcpStream, marks: PathMarks) -> io::Result<OwnedFd> {
    let is_ipv4 = stream.local_addr()?.is_ipv4();
    let socket = OwnedFd::from(stream.into_std()?);
    let (idle, pause, count) = KEEPALIVE;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, idle)?;
    sockopt::set_tcp_keepintvl(&socket, pause)?;
    sockopt::set_tcp_keepcnt(&socket, count)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    softnic::mark_socket(&socket, is_ipv4, marks)?;
    softnic::settle_pacing(&socket);
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest time for which connections may be told to wait for the other host's daemon.
    const WAIT_MAX: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn no_silence_for_which_the_lane_waits_breaks_it() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let socket = into_socket(stream, PathMarks::default()).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 0);
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        let (idle, pause) = (sockopt::tcp_keepidle(&socket).unwrap(), sockopt::tcp_keepintvl(&socket).unwrap());
        assert!(idle + pause * sockopt::tcp_keepcnt(&socket).unwrap() > WAIT_MAX);
    }
}
