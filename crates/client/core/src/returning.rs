//! A session that goes on with the daemon that came after its own.
//!
//! Owns what the application tells the new daemon of the session, and the checks of what that gives. It must never go on
//! with a daemon whose session segment would have another shape.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use control::{APP_VERSION, RETURNED_MAX, Reason, Reply, Request};
use shm::{EnginePage, Segment, SessionShape, Sharing, WakeSocket};

use crate::answer::Asked;
use crate::session::Session;
use crate::{RequestId, SessionFault};

/// What the new daemon gave.
#[derive(Debug)]
pub struct Returned {
    /// The session's number in the new daemon.
    pub number: u64,
    /// Its engines' page, for [`EnginePage::follow`].
    pub page: Segment,
    /// How its engines are woken, in their order.
    pub wakes: Vec<WakeSocket>,
}

impl Session {
    /// The daemon has ended: what was asked of it fails with `reason`. Which requests. Those of which nothing was sent
    /// wait for the next one ([`Session::keep_unsent`]). Handles to regions that it gave are over, and so are operation
    /// queues, whose slots the next daemon ends.
    pub fn lose_requests(&mut self, reason: Reason) -> Vec<RequestId> {
        self.daemons += 1;
        self.region_news.clear();
        self.lose_asked(reason)
    }

    /// Daemons that have ended while the session went on. Handles to regions and operation queues are of one daemon.
    pub fn daemons_before(&self) -> u64 {
        self.daemons
    }

    /// Nothing of a request was sent: the daemon has ended. It waits for the next one. False: it cannot be asked again.
    pub fn keep_unsent(&mut self, request: RequestId, message: Request) -> bool {
        // No daemon has heard of it, so an answer is that its own was lost.
        let is_kept = self.requests.ask_again(request).is_some();
        if is_kept {
            self.ports.keep_asked(request, &message);
            self.unsent.keep(request, message);
        }
        is_kept
    }

    /// A request that waits for the next daemon. Once it is sent: [`Session::on_sent`].
    pub fn first_unsent(&self) -> Option<(RequestId, &Request)> {
        self.unsent.first()
    }

    /// A request that waited was sent.
    pub fn on_sent(&mut self, request: RequestId) {
        self.unsent.remove(request);
    }

    /// Whether a request waits for the next daemon.
    pub fn is_unsent(&self, request: RequestId) -> bool {
        self.unsent.has(request)
    }

    /// What the new daemon is told after Hello, with a descriptor each if there is one; `segment` is the session segment's.
    pub fn return_messages(&mut self, segment: &Arc<OwnedFd>) -> Vec<(Request, Option<Arc<OwnedFd>>)> {
        let slots = self.memory().shape().slots;
        let mut used = vec![0_u8; slots.div_ceil(8) as usize];
        for slot in self.used_slots() {
            if let Some(byte) = used.get_mut((slot / 8) as usize) {
                *byte |= 1 << (slot % 8);
            }
        }
        while used.last() == Some(&0) {
            used.pop();
        }
        let mut messages = vec![self.session_message(segment, used)];
        let tickets = self.live_tickets();
        if !tickets.is_empty() {
            messages.extend(self.chunks.iter().filter_map(|(&chunk, place)| {
                let (kept, bytes) = (place.kept.clone()?, place.region.as_ref()?.len());
                Some((Request::ReturnChunk { chunk, kind: place.kind, bytes }, Some(kept)))
            }));
        }
        let tickets = tickets.chunks(RETURNED_MAX).map(|some| Request::ReturnConnections { tickets: some.to_vec() });
        messages.extend(tickets.map(|tickets| (tickets, None)));
        messages.extend(self.pair_messages());
        messages.push((Request::ReturnEnd, None));
        messages
    }

    /// What a daemon is told after Hello to show the connections of pairs, which go on though the session is lost: of all
    /// else it is told nothing. Empty if there are none.
    pub fn show_messages(&self, segment: &Arc<OwnedFd>) -> Vec<(Request, Option<Arc<OwnedFd>>)> {
        let pairs = self.pair_messages();
        if pairs.is_empty() {
            return pairs;
        }
        let mut messages = vec![self.session_message(segment, Vec::new())];
        messages.extend(pairs);
        messages.push((Request::ReturnEnd, None));
        messages
    }

    fn session_message(&self, segment: &Arc<OwnedFd>, used: Vec<u8>) -> (Request, Option<Arc<OwnedFd>>) {
        let SessionShape { slots, engines } = self.memory().shape();
        let session_bytes = shm::Session::bytes(self.memory().shape());
        let session = Request::Return { slots, engines, session_bytes, next_chunk: self.next_chunk, used };
        (session, Some(Arc::clone(segment)))
    }

    fn pair_messages(&self) -> Vec<(Request, Option<Arc<OwnedFd>>)> {
        let ends: Vec<_> = self.returned_ends().collect();
        let pairs = ends.chunks(RETURNED_MAX).map(|ends| Request::ReturnPairs { ends: ends.to_vec() });
        pairs.map(|pairs| (pairs, None)).collect()
    }

    /// Slots that the application uses.
    pub fn used_slots(&self) -> impl Iterator<Item = u32> {
        (0..self.memory().slots()).filter(|&slot| self.daemon().is_used(slot))
    }

    /// The tickets of connections whose slots were not given to others since, open or not: what was written before a close
    /// is still to be delivered. The others are forgotten.
    pub fn live_tickets(&mut self) -> Vec<Vec<u8>> {
        let memory = self.memory().clone();
        self.tickets.retain(|&slot, ticket| {
            memory.slot(slot).generation.load(Ordering::Acquire) == ticket.generation && !ticket.sealed.is_empty()
        });
        self.tickets.values().map(|ticket| ticket.sealed.clone()).collect()
    }

    /// The new daemon's answer and its descriptors.
    pub fn returned(&self, reply: Reply, fds: Vec<OwnedFd>) -> Result<Returned, SessionFault> {
        let shape = self.memory().shape();
        match reply {
            Reply::Welcome { version, release, .. } if version != APP_VERSION => {
                Err(SessionFault::Version { version, layout: shm::LAYOUT_VERSION, release })
            }
            Reply::Welcome { session, slots, engines, engine_page_bytes, .. } => {
                if (SessionShape { slots, engines }) != shape {
                    let is = format!("{slots} slots and {engines} engines, not {} and {}", shape.slots, shape.engines);
                    return Err(SessionFault::Protocol(format!("the new daemon has {is}")));
                }
                given(session, engines, engine_page_bytes, fds)
            }
            Reply::Refused { version, layout, release, .. }
                if (version, layout) != (APP_VERSION, shm::LAYOUT_VERSION) =>
            {
                Err(SessionFault::Version { version, layout, release })
            }
            Reply::Refused { reason, detail, .. } | Reply::Detached { reason, detail } => {
                Err(SessionFault::Refused { reason, detail })
            }
            other => Err(SessionFault::Protocol(format!("the answer to Return was {other:?}"))),
        }
    }

    /// The session goes on with the new daemon, which is to open the ports again.
    pub fn on_returned(&mut self) {
        // Rings that it had asked of the old one are asked of nobody.
        for port in self.ports.all_open() {
            let id = self.begin(Asked::Listen);
            let request = self.ports.ask_again(id, port);
            request.into_iter().for_each(|request| self.tell(request));
        }
    }

    /// Whether a port could not be opened again at the new daemon, and nobody knows yet.
    pub fn is_port_lost(&self, port: u16) -> bool {
        self.ports.is_lost(port)
    }

    /// As [`Session::is_port_lost`], once.
    pub fn take_lost_port(&mut self, port: u16) -> bool {
        self.ports.take_lost(port)
    }
}

fn given(number: u64, engines: u32, page_bytes: u64, fds: Vec<OwnedFd>) -> Result<Returned, SessionFault> {
    let mut rest = fds.into_iter();
    let expected = engines as usize;
    let (Some(page), true) = (rest.next(), rest.len() == expected) else {
        return Err(SessionFault::Protocol(format!("Welcome of {engines} engines without their descriptors")));
    };
    let refused = |e: &dyn std::fmt::Display| SessionFault::Protocol(format!("engine page: {e}"));
    let page = Segment::accept(page, page_bytes, Sharing::PeerReadOnly).map_err(|e| refused(&e))?;
    EnginePage::open(page.region().clone()).map_err(|e| refused(&e))?;
    let wakes = rest.map(WakeSocket::from_fd).collect::<Result<Vec<_>, _>>();
    Ok(Returned { number, page, wakes: wakes.map_err(|e| SessionFault::os("wake socket", &e))? })
}
