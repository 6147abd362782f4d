//! Seals tickets: what a daemon must know to go on with what a daemon before it made, kept by the program
//! (docs/operate/restart.md).
//!
//! Owns the seal, which only a daemon with the socket's secret can make, and only for one user. It must never say of a
//! ticket what it says before the seal was checked.

use control::Ticket;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// First bytes of what is sealed.
const DOMAIN: &[u8] = b"raas ticket 2\0";
/// Bytes of a seal.
const SEAL_BYTES: usize = 32;
/// Bytes of a secret.
pub const TICKET_SECRET_BYTES: usize = 32;

/// Makes and checks seals.
#[derive(Clone)]
pub struct Tickets([u8; TICKET_SECRET_BYTES]);

impl Tickets {
    /// With the secret of the socket.
    pub fn new(secret: [u8; TICKET_SECRET_BYTES]) -> Self {
        Self(secret)
    }

    /// Seals what the engine says of a connection, for programs of this user. Nothing stays nothing.
    pub fn seal(&self, uid: u32, mut ticket: Vec<u8>) -> Vec<u8> {
        if !ticket.is_empty() {
            ticket.extend(self.of(uid, &ticket));
        }
        ticket
    }

    /// What a sealed ticket says. None: it was not made for this user by a daemon of this socket.
    pub fn open(&self, uid: u32, sealed: &[u8]) -> Option<Ticket> {
        let (ticket, seal) = sealed.split_at_checked(sealed.len().checked_sub(SEAL_BYTES)?)?;
        let is_ours = bool::from(self.of(uid, ticket)[..].ct_eq(seal));
        is_ours.then(|| control::decode(ticket).ok())?
    }

    fn of(&self, uid: u32, ticket: &[u8]) -> [u8; SEAL_BYTES] {
        // A key of HMAC may have any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return [0; SEAL_BYTES] };
        mac.update(DOMAIN);
        mac.update(&uid.to_be_bytes());
        mac.update(ticket);
        mac.finalize().into_bytes().into()
    }
}

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use control::{Kind, LaneTicket, SocketTicket, TicketRing};

    use super::*;

    fn ticket() -> Ticket {
        let at = "10.0.0.1:7".parse().unwrap();
        let ring = TicketRing { chunk: 1, offset: 4096 };
        Ticket::Lane(LaneTicket {
            id: 9,
            local: at,
            peer: at,
            kind: Kind::Stream,
            is_outgoing: true,
            own_route: 5,
            peer_route: 6,
            slot: 2,
            generation: 3,
            tx: ring,
            rx: ring,
            size: (4096, 4096),
            allocated: (4096, 8192),
        })
    }

    #[test]
    fn what_a_ticket_is_for_is_under_the_seal() {
        let tickets = Tickets::new([1; 32]);
        let Ticket::Lane(LaneTicket { id, local, slot, generation, tx, rx, .. }) = ticket() else { unreachable!() };
        let socket = Ticket::Socket(SocketTicket { id, local, slot, generation, tx, rx, ring_bytes: 4096 });
        let sealed = tickets.seal(7, control::encode(&socket).unwrap());
        assert_eq!(tickets.open(7, &sealed), Some(socket));
        assert_eq!((socket.slot(), socket.allocated(), socket.is_in(1)), (2, (4096, 4096), true));
    }

    #[test]
    fn only_the_daemons_of_the_socket_make_tickets_and_each_for_one_user() {
        let (ours, others) = (Tickets::new([1; 32]), Tickets::new([2; 32]));
        let sealed = ours.seal(1000, control::encode(&ticket()).unwrap());
        assert_eq!(ours.open(1000, &sealed), Some(ticket()));
        assert_eq!((ours.open(1001, &sealed), others.open(1000, &sealed)), (None, None));
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(ours.open(1000, &changed), None, "byte {at}");
        }
        assert!((0..sealed.len()).all(|len| ours.open(1000, &sealed[..len]).is_none()));
        assert!(ours.seal(1000, Vec::new()).is_empty());
    }
}
