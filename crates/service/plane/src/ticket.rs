//! Seals tickets: what a daemon must know to go on with what a daemon before it made, kept by the program
//! (docs/operate/restart.md).
//!
//! Owns the seals, which only a daemon with the socket's secret can make: one for the user who gets the ticket, and one
//! for the process, which may be another user's by the time it comes back. Either is enough. It must never say of a ticket
//! what it says before a seal was checked.

use control::Ticket;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// First bytes of what is sealed for a user, and for a process.
const OF_USER: &[u8] = b"raas ticket 3 user\0";
const OF_PROCESS: &[u8] = b"raas ticket 3 process\0";
/// Bytes of a seal.
const SEAL_BYTES: usize = 32;
/// Where nobody knows the process. No seal is known to be this one.
const NO_SEAL: [u8; SEAL_BYTES] = [0; SEAL_BYTES];
/// Bytes of a secret.
pub const TICKET_SECRET_BYTES: usize = 32;

/// Who gets a ticket, or brings it back, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder<'h> {
    /// Its user.
    pub uid: u32,
    /// What names this process and no other that there ever was, if that is known.
    pub process: Option<&'h str>,
}

/// Makes and checks seals.
#[derive(Clone)]
pub struct Tickets([u8; TICKET_SECRET_BYTES]);

impl Tickets {
    /// With the secret of the socket.
    pub fn new(secret: [u8; TICKET_SECRET_BYTES]) -> Self {
        Self(secret)
    }

    /// Seals what the engine says of a connection. Nothing stays nothing.
    pub fn seal(&self, holder: Holder<'_>, mut ticket: Vec<u8>) -> Vec<u8> {
        if !ticket.is_empty() {
            let of_process = holder.process.map_or(NO_SEAL, |process| self.of_process(process, &ticket));
            let of_user = self.of_user(holder.uid, &ticket);
            ticket.extend(of_user.into_iter().chain(of_process));
        }
        ticket
    }

    /// What a sealed ticket says. None: a daemon of this socket made it neither for this user nor for this process.
    pub fn open(&self, holder: Holder<'_>, sealed: &[u8]) -> Option<Ticket> {
        let (ticket, seals) = sealed.split_at_checked(sealed.len().checked_sub(2 * SEAL_BYTES)?)?;
        let (of_user, of_process) = seals.split_at(SEAL_BYTES);
        let is_users = self.of_user(holder.uid, ticket).ct_eq(of_user);
        let is_same = holder.process.map(|process| self.of_process(process, ticket).ct_eq(of_process));
        let is_ours = bool::from(is_users) || is_same.is_some_and(bool::from);
        is_ours.then(|| control::decode(ticket).ok())?
    }

    fn of_user(&self, uid: u32, ticket: &[u8]) -> [u8; SEAL_BYTES] {
        self.of(&[OF_USER, &uid.to_be_bytes(), ticket])
    }

    /// The length of the name is before it: no ticket goes on where a name ends.
    fn of_process(&self, process: &str, ticket: &[u8]) -> [u8; SEAL_BYTES] {
        self.of(&[OF_PROCESS, &process.len().to_be_bytes(), process.as_bytes(), ticket])
    }

    fn of(&self, parts: &[&[u8]]) -> [u8; SEAL_BYTES] {
        // A key of HMAC may have any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return NO_SEAL };
        parts.iter().for_each(|part| mac.update(part));
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
        let sealed = tickets.seal(of(7, None), control::encode(&socket).unwrap());
        assert_eq!(tickets.open(of(7, None), &sealed), Some(socket));
        assert_eq!((socket.slot(), socket.allocated(), socket.is_in(1)), (2, (4096, 4096), true));
    }

    fn of(uid: u32, process: Option<&str>) -> Holder<'_> {
        Holder { uid, process }
    }

    #[test]
    fn only_the_daemons_of_the_socket_make_tickets_and_each_for_one_user() {
        let (ours, others) = (Tickets::new([1; 32]), Tickets::new([2; 32]));
        for process in [None, Some("7")] {
            let sealed = ours.seal(of(1000, process), control::encode(&ticket()).unwrap());
            assert_eq!(ours.open(of(1000, None), &sealed), Some(ticket()));
            assert_eq!((ours.open(of(1001, None), &sealed), others.open(of(1000, None), &sealed)), (None, None));
            for at in 0..sealed.len() - SEAL_BYTES {
                let mut changed = sealed.clone();
                changed[at] ^= 1;
                assert_eq!(ours.open(of(1000, None), &changed), None, "byte {at}");
            }
            assert!((0..sealed.len()).all(|len| ours.open(of(1000, process), &sealed[..len]).is_none()));
        }
        assert!(ours.seal(of(1000, Some("7")), Vec::new()).is_empty());
    }

    #[test]
    fn a_process_keeps_its_tickets_when_it_becomes_another_user() {
        let (ours, others) = (Tickets::new([1; 32]), Tickets::new([2; 32]));
        let sealed = ours.seal(of(0, Some("70 5")), control::encode(&ticket()).unwrap());
        assert_eq!(ours.open(of(1000, Some("70 5")), &sealed), Some(ticket()));
        let thieves = [None, Some("70 6"), Some("7"), Some("70 5x"), Some("")];
        assert!(thieves.iter().all(|thief| ours.open(of(1000, *thief), &sealed).is_none()));
        assert_eq!(others.open(of(1000, Some("70 5")), &sealed), None);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            let is_seal_of_user = (sealed.len() - 2 * SEAL_BYTES..sealed.len() - SEAL_BYTES).contains(&at);
            assert_eq!(ours.open(of(1000, Some("70 5")), &changed).is_some(), is_seal_of_user, "byte {at}");
        }
        // What was made for nobody's process is no process's.
        let sealed = ours.seal(of(0, None), control::encode(&ticket()).unwrap());
        assert!(thieves.iter().all(|thief| ours.open(of(1000, *thief), &sealed).is_none()));
    }
}
