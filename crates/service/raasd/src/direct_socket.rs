//! TCP connections for streams of bulk: connecting to the daemon that offered one, and proving the token on both sides
//! (docs/inside/kernel-tcp.md).
//!
//! Owns the sockets until the control plane has them. It must never read a byte behind the proof: those are the
//! applications', and never wait without a bound.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use control::{CHALLENGE_BYTES, PeerMessage, Reason, decode, encode, with_length};
use plane::{DirectHello, DirectProof, OFFER_TIME, Refusal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use verbs::PathMarks;

use crate::dial::connect;
use crate::link::{LinkContext, LinkInput, Wire};

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
    let frame =
        encode(&PeerMessage::from(proof.hello())).map_err(|e| Refusal::new(Reason::Unspecified, e.to_string()))?;
    stream.write_all(&with_length(&frame)).await.map_err(unreachable)?;
    proof.judge(read_answer(&mut stream).await?)?;
    into_socket(stream, context.config.marks).map_err(|e| Refusal::new(Reason::LocalLimit, e.to_string()))
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

/// The socket as applications get it.
fn into_socket(stream: TcpStream, marks: PathMarks) -> io::Result<OwnedFd> {
    let socket = OwnedFd::from(stream.into_std()?);
    softnic::prepare_stream(&socket, marks)?;
    Ok(socket)
}
