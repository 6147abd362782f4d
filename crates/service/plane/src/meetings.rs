//! Where the two ends of a kernel TCP connection find each other, so that a stream can replace it (docs/use/run.md).
//!
//! Owns which ends wait, and which hosts have no daemon; no I/O. It must answer each request at most once, and never
//! bring two ends together that are not those of one connection. That a program has the end that it names was checked
//! before, at its socket. Two ends of one network namespace with the same addresses are those of one connection; two of
//! different ones must show it (`joints`). Another daemon is believed for the addresses of its own host alone.

mod joints;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use control::{MeetMessage, MeetProof, MeetingPlace, Reason, Rendezvous, Reply, TcpEnd};
use verbs::Time;

use crate::user_places::give_back;
use crate::{ClientId, Party};
use joints::{Joints, Namespace, Proved, Side};

/// Ends of one program that wait.
pub(crate) const MEETINGS_PER_PROGRAM_MAX: usize = 16_384;
/// Ends of one user's programs that wait, and questions of one other daemon.
pub(crate) const MEETINGS_PER_ASKER_MAX: usize = 32_768;
/// A host without a daemon is not asked again for so long.
pub(crate) const ABSENT: Duration = Duration::from_secs(30);
/// Hosts without a daemon that are remembered.
const ABSENT_MAX: usize = 4096;

/// What the daemon does for meetings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MeetingAction {
    /// Have a link to the host made if the program may reach it. Answered by [`Meetings::on_path`].
    Path { client: ClientId, request: u64, host: IpAddr },
    /// Say something to another daemon. If there is no link to it, [`Meetings::handle_peer_gone`] follows.
    Tell { peer: IpAddr, message: MeetMessage },
    /// Send a message to a program.
    Send { client: ClientId, reply: Reply },
    /// The connection stays on TCP: for its row in `raas ss`.
    Stays { client: ClientId, request: u64, reason: Reason },
}

/// A connection: the address that accepted it, and the one that connected.
type Tuple = (SocketAddr, SocketAddr);

/// A connection as one namespace has it: there are no two.
type Place = (Tuple, Namespace);

/// One end of a TCP connection, by the kernel's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MeetingEnd {
    /// Which end the program says that it has.
    pub end: TcpEnd,
    /// Its own address.
    pub local: SocketAddr,
    /// The other end's.
    pub peer: SocketAddr,
    /// The network namespace, where it is not the daemon's.
    pub foreign: Option<u64>,
}

/// Who has the end that connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connector {
    Here {
        client: ClientId,
        request: u64,
    },
    /// `stays`: the two may learn of each other, and stay on TCP.
    Far {
        peer: IpAddr,
        number: u64,
        stays: bool,
    },
}

#[derive(Debug, Clone, Copy)]
struct Acceptor {
    client: ClientId,
    request: u64,
    at: Rendezvous,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// This end waits for one that connected.
    Accepted(Place),
    /// This end waits for one of this host that accepted.
    Here(Place),
    /// No daemon is where it connected to, which may be a namespace of this host.
    Lone,
    /// A link to the other host is being made.
    Linking(Tuple),
    /// The other host's daemon was asked.
    Asked { host: IpAddr, number: u64 },
}

#[derive(Debug)]
struct Wish {
    uid: u32,
    standing: Standing,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Meetings {
    addresses: Vec<IpAddr>,
    /// Where connections of this host to itself are made.
    local: IpAddr,
    wishes: BTreeMap<(ClientId, u64), Wish>,
    per_program: BTreeMap<ClientId, usize>,
    per_user: BTreeMap<u32, usize>,
    accepted: BTreeMap<Place, Acceptor>,
    connected: BTreeMap<Place, Connector>,
    joints: Joints,
    /// Questions of other daemons, and how many each has.
    far: BTreeMap<(IpAddr, u64), Tuple>,
    per_peer: BTreeMap<IpAddr, usize>,
    /// Questions to other daemons.
    asked: BTreeMap<u64, (ClientId, u64)>,
    last: u64,
    absent: BTreeMap<IpAddr, Time>,
    actions: VecDeque<MeetingAction>,
}

impl Meetings {
    /// Nobody waits yet. `addresses` name this host, and `local` is the one that its own connections show.
    pub(crate) fn new(addresses: Vec<IpAddr>, local: IpAddr) -> Self {
        Self {
            addresses,
            local,
            wishes: BTreeMap::new(),
            per_program: BTreeMap::new(),
            per_user: BTreeMap::new(),
            accepted: BTreeMap::new(),
            connected: BTreeMap::new(),
            joints: Joints::default(),
            far: BTreeMap::new(),
            per_peer: BTreeMap::new(),
            asked: BTreeMap::new(),
            last: 0,
            absent: BTreeMap::new(),
            actions: VecDeque::new(),
        }
    }

    /// What to do next.
    pub(crate) fn poll_action(&mut self) -> Option<MeetingAction> {
        self.actions.pop_front()
    }

    /// Ends and questions that wait.
    pub(crate) fn count(&self) -> usize {
        self.wishes.len() + self.far.len()
    }

    // ---- programs

    /// A program has one end of a connection. An error is what it did wrong. `words` are fresh and random.
    pub(crate) fn handle_meet(
        &mut self,
        now: Time,
        party: Party,
        (request, end): (u64, MeetingEnd),
        words: &mut dyn FnMut() -> u64,
    ) -> Result<(), String> {
        let Party { client, uid, .. } = party;
        let MeetingEnd { end, local, peer, foreign } = end;
        if self.wishes.contains_key(&(client, request)) {
            return Err(format!("meeting {request} was asked for before"));
        }
        let (local, peer) = (canonical(local), canonical(peer));
        let (tuple, side) = match end {
            TcpEnd::Accepted(_) => ((local, peer), Side::Accepted),
            TcpEnd::Connected => ((peer, local), Side::Connected),
            TcpEnd::Stays(reason) => {
                self.refuse(client, request, reason);
                return Ok(());
            }
        };
        let own = self.per_program.get(&client).copied().unwrap_or(0);
        let of_user = self.per_user.get(&uid).copied().unwrap_or(0);
        if own >= MEETINGS_PER_PROGRAM_MAX || of_user >= MEETINGS_PER_ASKER_MAX {
            self.refuse(client, request, Reason::LocalLimit);
            return Ok(());
        }
        let place = (tuple, foreign);
        match end {
            TcpEnd::Accepted(at) => self.take_acceptor(place, uid, Acceptor { client, request, at }),
            _ if foreign.is_some() || self.is_here(peer.ip(), local.ip()) => {
                self.take_connector_of_this_host(place, uid, client, request);
            }
            _ if self.is_absent(now, peer.ip()) => {
                self.keep(client, request, Wish { uid, standing: Standing::Linking(tuple) });
                self.on_no_daemon(client, request, peer.ip(), Reason::PeerUnreachable);
            }
            _ => {
                self.keep(client, request, Wish { uid, standing: Standing::Linking(tuple) });
                self.actions.push_back(MeetingAction::Path { client, request, host: peer.ip() });
            }
        }
        if self.wishes.contains_key(&(client, request)) {
            let mut say = Vec::new();
            let strangers = self.joints.add(((client, request), uid), (tuple, side, foreign), words, &mut say);
            self.say(say);
            if !strangers.is_empty() {
                self.stays(client, request, Reason::ForeignSocket);
            }
            strangers.into_iter().for_each(|(client, request)| self.stays(client, request, Reason::ForeignSocket));
        }
        Ok(())
    }

    fn take_acceptor(&mut self, place: Place, uid: u32, acceptor: Acceptor) {
        let Acceptor { client, request, .. } = acceptor;
        if let Some(connector) = self.connected.remove(&place) {
            return self.bring_together(connector, acceptor);
        }
        self.keep(client, request, Wish { uid, standing: Standing::Accepted(place) });
        // A process that got the connection by fork: it has it now.
        if let Some(before) = self.accepted.insert(place, acceptor) {
            self.drop_wish(before.client, before.request);
            self.refuse(before.client, before.request, Reason::Closed);
        }
        self.stays(client, request, not_met(place));
    }

    fn take_connector_of_this_host(&mut self, place: Place, uid: u32, client: ClientId, request: u64) {
        let connector = Connector::Here { client, request };
        if let Some(acceptor) = self.accepted.remove(&place) {
            return self.bring_together(connector, acceptor);
        }
        self.keep(client, request, Wish { uid, standing: Standing::Here(place) });
        if let Some(Connector::Here { client, request }) = self.connected.insert(place, connector) {
            self.drop_wish(client, request);
            self.refuse(client, request, Reason::Closed);
        }
        self.stays(client, request, not_met(place));
    }

    /// A program says what came of a step by which its end is shown to be one of a connection between two namespaces.
    /// `words` are fresh and random.
    pub(crate) fn handle_proof(
        &mut self,
        client: ClientId,
        request: u64,
        proof: MeetProof,
        words: &mut dyn FnMut() -> u64,
    ) {
        let mut say = Vec::new();
        let proved = self.joints.hear((client, request), proof, words, &mut say);
        self.say(say);
        match proved {
            Proved::Nothing => {}
            Proved::Joined(connected, accepted) => self.join(connected, accepted),
            Proved::Lies => {
                self.handle_unmeet(client, request);
                self.refuse(client, request, Reason::ForeignSocket);
            }
        }
    }

    fn join(&mut self, connected: (ClientId, u64), accepted: (ClientId, u64)) {
        let Some(Standing::Accepted(place)) = self.wishes.get(&accepted).map(|wish| wish.standing) else { return };
        let Some(acceptor) = self.accepted.get(&place).copied() else { return };
        self.handle_unmeet(connected.0, connected.1);
        self.handle_unmeet(accepted.0, accepted.1);
        let (client, request) = connected;
        self.bring_together(Connector::Here { client, request }, acceptor);
    }

    fn say(&mut self, say: Vec<joints::Say>) {
        for ((client, request), step) in say {
            self.actions.push_back(MeetingAction::Send { client, reply: Reply::MeetStep { request, step } });
        }
    }

    fn bring_together(&mut self, connector: Connector, acceptor: Acceptor) {
        let Acceptor { client, request, at } = acceptor;
        self.drop_wish(client, request);
        if let Connector::Far { peer, number, stays: true } = connector {
            self.drop_question(peer, number);
            self.refuse(client, request, Reason::PolledTcp);
            return self.tell(peer, MeetMessage::Answer { number, result: Err(Reason::PolledTcp) });
        }
        let place = MeetingPlace { at: SocketAddr::new(self.local, at.port), token: at.token };
        self.actions.push_back(MeetingAction::Send { client, reply: Reply::Met { request, result: Ok(place) } });
        match connector {
            Connector::Here { client, request } => {
                self.drop_wish(client, request);
                self.actions
                    .push_back(MeetingAction::Send { client, reply: Reply::Met { request, result: Ok(place) } });
            }
            Connector::Far { peer, number, .. } => {
                self.drop_question(peer, number);
                self.tell(peer, MeetMessage::Answer { number, result: Ok(at) });
            }
        }
    }

    /// The program does not want the meeting any more; nothing if it is over.
    pub(crate) fn handle_unmeet(&mut self, client: ClientId, request: u64) {
        let Some(wish) = self.drop_wish(client, request) else { return };
        match wish.standing {
            Standing::Accepted(place) => {
                if self.accepted.get(&place).is_some_and(|a| (a.client, a.request) == (client, request)) {
                    self.accepted.remove(&place);
                }
            }
            Standing::Here(place) => {
                if self.connected.get(&place) == Some(&Connector::Here { client, request }) {
                    self.connected.remove(&place);
                }
            }
            Standing::Linking(_) | Standing::Lone => {}
            Standing::Asked { host, number } => {
                self.asked.remove(&number);
                self.tell(host, MeetMessage::Withdraw { number });
            }
        }
    }

    /// The program is gone, and with it its sockets.
    pub(crate) fn handle_gone(&mut self, client: ClientId) {
        let own: Vec<u64> =
            self.wishes.range((client, 0)..=(client, u64::MAX)).map(|((_, request), _)| *request).collect();
        own.into_iter().for_each(|request| self.handle_unmeet(client, request));
    }

    // ---- other hosts

    /// Whether there is a link to the host of a wish, or why not. False: no wish waits for it.
    pub(crate) fn on_path(&mut self, now: Time, client: ClientId, request: u64, result: Result<(), Reason>) -> bool {
        let Some(wish) = self.wishes.get_mut(&(client, request)) else { return false };
        let Standing::Linking((to, from)) = wish.standing else { return false };
        match result {
            Ok(()) => {
                self.last += 1;
                let (host, number) = (to.ip(), self.last);
                wish.standing = Standing::Asked { host, number };
                self.asked.insert(number, (client, request));
                self.stays(client, request, Reason::NotMet);
                self.tell(host, MeetMessage::Ask { number, from, to });
            }
            Err(reason) => {
                if matches!(reason, Reason::PeerUnreachable | Reason::PeerAuth | Reason::PeerVersion) {
                    self.note_absent(now, to.ip());
                }
                self.on_no_daemon(client, request, to.ip(), reason);
            }
        }
        true
    }

    /// No link to where a program connected: what is there may be a namespace of this host.
    fn on_no_daemon(&mut self, client: ClientId, request: u64, host: IpAddr, reason: Reason) {
        match self.wishes.get_mut(&(client, request)) {
            Some(wish) if reason == Reason::PeerUnreachable && is_private(host) => {
                wish.standing = Standing::Lone;
                self.stays(client, request, reason);
            }
            _ => {
                self.drop_wish(client, request);
                self.refuse(client, request, reason);
            }
        }
    }

    /// Another daemon speaks. `stays`: connections that its host made to this one stay on TCP, by this daemon's settings,
    /// and both ends are told that they are the two of a connection (`polled-tcp`).
    pub(crate) fn handle_peer(&mut self, peer: IpAddr, message: MeetMessage, stays: bool) {
        match message {
            MeetMessage::Ask { number, from, to } => {
                let connector = Connector::Far { peer, number, stays };
                self.handle_ask(peer, (connector, number), (canonical(to), canonical(from)));
            }
            MeetMessage::Withdraw { number } => {
                if let Some(tuple) = self.drop_question(peer, number) {
                    self.connected.remove(&(tuple, None));
                }
            }
            MeetMessage::Answer { number, result } => {
                let Some(&(client, request)) = self.asked.get(&number) else { return };
                let asked = Standing::Asked { host: peer, number };
                if self.wishes.get(&(client, request)).is_none_or(|wish| wish.standing != asked) {
                    return;
                }
                self.drop_wish(client, request);
                match result {
                    Ok(Rendezvous { port, token }) => {
                        let place = MeetingPlace { at: SocketAddr::new(peer, port), token };
                        let reply = Reply::Met { request, result: Ok(place) };
                        self.actions.push_back(MeetingAction::Send { client, reply });
                    }
                    Err(reason) => self.refuse(client, request, reason),
                }
            }
        }
    }

    fn handle_ask(&mut self, peer: IpAddr, (connector, number): (Connector, u64), tuple: Tuple) {
        let from = tuple.1.ip();
        // Loopback addresses never leave the machine, which has several daemons then.
        let is_its_own = from == peer || (from.is_loopback() && peer.is_loopback());
        let asked = self.per_peer.get(&peer).copied().unwrap_or(0);
        let refusal = match () {
            () if !is_its_own => Some(Reason::Policy),
            () if asked >= MEETINGS_PER_ASKER_MAX => Some(Reason::PeerLimit),
            () if self.connected.contains_key(&(tuple, None)) || self.far.contains_key(&(peer, number)) => {
                Some(Reason::Closed)
            }
            () => None,
        };
        if let Some(reason) = refusal {
            return self.tell(peer, MeetMessage::Answer { number, result: Err(reason) });
        }
        match self.accepted.remove(&(tuple, None)) {
            Some(acceptor) => self.bring_together(connector, acceptor),
            None => {
                self.connected.insert((tuple, None), connector);
                self.far.insert((peer, number), tuple);
                *self.per_peer.entry(peer).or_default() += 1;
            }
        }
    }

    /// The link to a peer is gone.
    pub(crate) fn handle_peer_gone(&mut self, peer: IpAddr, reason: Reason) {
        let far: Vec<u64> = self.far.range((peer, 0)..=(peer, u64::MAX)).map(|((_, number), _)| *number).collect();
        for number in far {
            if let Some(tuple) = self.drop_question(peer, number) {
                self.connected.remove(&(tuple, None));
            }
        }
        let is_there = |wish: &Wish| matches!(wish.standing, Standing::Asked { host, .. } if host == peer);
        let own: Vec<_> = self.wishes.iter().filter(|(_, wish)| is_there(wish)).map(|(key, _)| *key).collect();
        for (client, request) in own {
            self.drop_wish(client, request);
            self.refuse(client, request, reason);
        }
    }

    // ---- the tables

    fn keep(&mut self, client: ClientId, request: u64, wish: Wish) {
        *self.per_program.entry(client).or_default() += 1;
        *self.per_user.entry(wish.uid).or_default() += 1;
        self.wishes.insert((client, request), wish);
    }

    fn drop_wish(&mut self, client: ClientId, request: u64) -> Option<Wish> {
        let wish = self.wishes.remove(&(client, request))?;
        if let Standing::Asked { number, .. } = wish.standing {
            self.asked.remove(&number);
        }
        self.joints.remove((client, request));
        give_back(&mut self.per_program, client);
        give_back(&mut self.per_user, wish.uid);
        Some(wish)
    }

    fn drop_question(&mut self, peer: IpAddr, number: u64) -> Option<Tuple> {
        let tuple = self.far.remove(&(peer, number))?;
        give_back(&mut self.per_peer, peer);
        Some(tuple)
    }

    fn refuse(&mut self, client: ClientId, request: u64, reason: Reason) {
        self.stays(client, request, reason);
        self.actions.push_back(MeetingAction::Send { client, reply: Reply::Met { request, result: Err(reason) } });
    }

    fn stays(&mut self, client: ClientId, request: u64, reason: Reason) {
        self.actions.push_back(MeetingAction::Stays { client, request, reason });
    }

    fn tell(&mut self, peer: IpAddr, message: MeetMessage) {
        self.actions.push_back(MeetingAction::Tell { peer, message });
    }

    /// Whether both ends of a connection that a program of this host has are on it.
    pub(crate) fn is_of_this_host(&self, local: IpAddr, peer: IpAddr) -> bool {
        self.is_here(peer.to_canonical(), local.to_canonical())
    }

    /// Whether the host that accepted is this one.
    fn is_here(&self, accepted: IpAddr, connected: IpAddr) -> bool {
        let has_loopback = self.addresses.iter().any(IpAddr::is_loopback);
        // Where each address 127.x.y.z is a host, as on a machine with several daemons, `::1` is still no other one.
        if accepted == IpAddr::V6(Ipv6Addr::LOCALHOST) {
            return true;
        }
        self.addresses.contains(&accepted) || ((accepted == connected || accepted.is_loopback()) && !has_loopback)
    }

    fn is_absent(&mut self, now: Time, host: IpAddr) -> bool {
        match self.absent.get(&host) {
            Some(until) if now < *until => true,
            Some(_) => {
                self.absent.remove(&host);
                false
            }
            None => false,
        }
    }

    fn note_absent(&mut self, now: Time, host: IpAddr) {
        if self.absent.len() >= ABSENT_MAX {
            self.absent.retain(|_, until| now < *until);
        }
        if self.absent.len() < ABSENT_MAX {
            self.absent.insert(host, now + ABSENT);
        }
    }
}

/// Why an end whose other end is not there stays on TCP.
fn not_met((_, namespace): Place) -> Reason {
    if namespace.is_some() { Reason::ForeignSocket } else { Reason::NotMet }
}

/// Addresses that a namespace of this host may have without having been given one for the world.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => {
            ip.is_private() || ip.is_link_local() || (ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64)
        }
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests;
