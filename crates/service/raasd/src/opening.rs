//! The first messages of a control link, on its socket.
//!
//! Owns reading and sending them; their order and what follows is [`Opening`]'s. It must never wait longer than that
//! allows.

use std::net::IpAddr;

use control::{PeerMessage, Reason};
use plane::{DirectHello, Identity, LinkId, Opening, OpeningAction, Refusal};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::link::{LinkContext, LinkInput, Wire};

/// A link that did not come up.
#[derive(Debug)]
pub(crate) struct NotOpened {
    pub(crate) refusal: Refusal,
    /// The peer is told.
    pub(crate) says_why: bool,
}

/// What a connection turned out to be.
#[derive(Debug)]
pub(crate) enum Opened {
    /// A control link.
    Link(Identity),
    /// One that comes for an offer; nothing is proven yet.
    Direct(DirectHello),
}

/// Opens a link. `source` is where an accepted one came from; `said_hello` is set once the control plane knows of the
/// link.
pub(crate) async fn open(
    wire: &mut Wire,
    context: &LinkContext,
    (link, source): (LinkId, IpAddr),
    mut opening: Opening,
    said_hello: &mut bool,
) -> Result<Opened, NotOpened> {
    let deadline = opening.deadline().unwrap_or_default();
    let carried = carry(wire, context, (link, source), &mut opening, said_hello);
    if let Ok(end) = timeout_at(context.instant(deadline), carried).await {
        return end;
    }
    opening.handle_timeout(deadline.max(context.now()));
    loop {
        match opening.poll_action() {
            Some(OpeningAction::Refuse(refusal)) => return Err(NotOpened { refusal, says_why: true }),
            Some(OpeningAction::GiveUp(refusal)) => return Err(NotOpened { refusal, says_why: false }),
            // It could not be carried out in time.
            Some(_) => {}
            None => {
                let refusal = Refusal::new(Reason::TimedOut, "the handshake was not finished in time");
                return Err(NotOpened { refusal, says_why: true });
            }
        }
    }
}

async fn carry(
    wire: &mut Wire,
    context: &LinkContext,
    (link, source): (LinkId, IpAddr),
    opening: &mut Opening,
    said_hello: &mut bool,
) -> Result<Opened, NotOpened> {
    loop {
        while let Some(action) = opening.poll_action() {
            match action {
                OpeningAction::Send(message) => {
                    if let Err(lost) = wire.send(&message).await {
                        // A peer that closed meanwhile may have said why.
                        match wire.next().await {
                            Ok(said) => opening.handle_message(said),
                            Err(_) => opening.handle_lost(lost),
                        }
                    }
                }
                OpeningAction::Judge(hello) => {
                    let (verdict, answer) = oneshot::channel();
                    let _ = context.inputs.send(LinkInput::Hello { link, source, hello, verdict }).await;
                    *said_hello = true;
                    match answer.await {
                        Ok(verdict) => opening.on_verdict(verdict),
                        Err(_) => opening.handle_lost(Refusal::new(Reason::ShuttingDown, "this daemon stops")),
                    }
                }
                OpeningAction::Up(peer) => {
                    wire.seal_by(opening.take_seal());
                    return Ok(Opened::Link(peer));
                }
                OpeningAction::Refuse(refusal) => return Err(NotOpened { refusal, says_why: true }),
                OpeningAction::GiveUp(refusal) => return Err(NotOpened { refusal, says_why: false }),
            }
        }
        match wire.next().await {
            Ok(PeerMessage::DirectHello { number, nonce, mac }) if opening.awaits_first() => {
                return Ok(Opened::Direct(DirectHello { number, nonce, mac }));
            }
            Ok(message) => opening.handle_message(message),
            Err(lost) => opening.handle_lost(lost),
        }
    }
}
