//! Promises about datagrams: none that nobody sent, none altered, cut or joined, none at another socket, none more
//! often than the network made copies of it. Each one that was sent is accounted for in the end, as delivered or as
//! dropped for a reason.
//!
//! Datagrams are known by what is in them: a number in the first eight bytes, and after it bytes that follow from the
//! number. Shorter ones follow from sender, receiver and length, and are counted together. Packets are checked in the
//! network too, by the layout in docs/inside/wire.md, so that a copy that the network made is not taken for one that a host
//! made.

use std::collections::{BTreeMap, BTreeSet};

use control::Reason;
use engine::Engine;
use verbs::Time;

use super::Checks;
use crate::content::{self, mix};
use crate::tap::Tap;

/// A socket's place: host and port.
pub(crate) type End = (usize, u16);

/// Bytes of the number at the beginning.
const NUMBER_BYTES: usize = 8;
/// BTH and DETH stand in front of a datagram's own header in a packet (IBTA 9.2, 9.3.3).
const PACKET_HEADERS_BYTES: usize = 20;
/// A datagram's own header.
const HEADER_BYTES: usize = 16;
/// Bytes of the ICRC at the end of a packet.
const ICRC_BYTES: usize = 4;
/// The opcodes of UD are those whose highest three bits are these (IBTA 9.2.1).
const UD_OPCODES: u8 = 0b011;

/// What distinguishes a datagram from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Number(u64),
    /// Sender, receiver, length.
    Short(End, End, u16),
}

/// What became of the datagrams of a name; of a number there is one.
#[derive(Debug, Clone)]
struct Fate {
    from: End,
    to: End,
    bytes: usize,
    /// Put into the sender's ring.
    sent: u32,
    /// Left a host as a packet.
    left: u32,
    /// Arrived at a host as a packet, whole.
    arrived: u32,
    /// Taken by a program.
    taken: u32,
}

/// One life of a host.
#[derive(Debug, Clone, Default)]
struct Account {
    /// Put into rings.
    sent: u64,
    /// Packets that left, and those that arrived whole.
    left: u64,
    arrived: u64,
    /// Taken out of rings.
    taken: u64,
    /// Programs with sockets that died, and may have left something in a ring.
    deaths: u64,
    /// Sockets that were closed. Until the engine hears of it, it puts what arrives into a ring that nobody reads.
    closes: u64,
    /// Lay in rings when their programs brought them back, and count as delivered by the daemon before.
    found: u64,
    /// Binds that were asked for.
    binds: BTreeMap<u16, u32>,
    /// Those of the life before, whose answers may be read late.
    binds_before: BTreeMap<u16, u32>,
}

/// A socket that its program has open, in one life of its host.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    port: u16,
    /// Put into its ring.
    sent: u64,
    /// Taken out of its ring, and how many of those the daemon before had put there.
    taken: u64,
    found: u64,
    /// The daemon has it. What goes in and out of it without a daemon is in no account of a daemon.
    is_known: bool,
    /// It outlived a daemon.
    is_back: bool,
}

/// Where a socket is: its host, and its number there.
pub(crate) type SocketAt = (usize, u64);

/// What lies in the rings of a socket that comes back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InRings {
    /// Datagrams that are still to be sent.
    pub(crate) to_send: u64,
    /// Datagrams that its program has not taken.
    pub(crate) to_take: u64,
}

/// What the checker of datagrams remembers.
#[derive(Debug, Default)]
pub struct Datagrams {
    seed: u64,
    /// Bytes of the packets of hosts' devices.
    mtus: Vec<usize>,
    fates: BTreeMap<Name, Fate>,
    last_number: u64,
    accounts: BTreeMap<usize, Account>,
    open: BTreeMap<SocketAt, Open>,
    /// Sockets that went on with the next daemon, and datagrams that they took afterwards which it had delivered.
    pub returned: u64,
    /// See `returned`.
    pub taken_after_return: u64,
    /// Sockets that a daemon did not take over.
    not_taken: BTreeSet<SocketAt>,
    /// Datagrams put into rings.
    pub sent: u64,
    /// Datagrams taken out of rings and found right.
    pub taken: u64,
    /// Drops that hosts counted in lives that were seen to their end, by reason.
    pub drops: BTreeMap<&'static str, u64>,
}

/// Sender, receiver, and what names a datagram, of a packet; `None` if it is none of UD.
fn name_of_packet(from: usize, to: usize, packet: &[u8]) -> Option<(Name, End, End)> {
    if packet.first()? >> 5 != UD_OPCODES {
        return None;
    }
    let short = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
    let at = PACKET_HEADERS_BYTES;
    let (from, to) = ((from, short(at)?), (to, short(at + 2)?));
    let bytes = short(at + 6)?;
    let payload = packet.get(at + HEADER_BYTES..packet.len().checked_sub(ICRC_BYTES)?)?;
    Some((name_of(from, to, payload.get(..bytes.into())?), from, to))
}

fn name_of(from: End, to: End, payload: &[u8]) -> Name {
    match payload.first_chunk::<NUMBER_BYTES>() {
        Some(number) => Name::Number(u64::from_le_bytes(*number)),
        None => Name::Short(from, to, payload.len() as u16),
    }
}

impl Datagrams {
    pub(crate) fn new(seed: u64, mtus: Vec<usize>) -> Self {
        Self { seed: mix(seed ^ 0xda7a), mtus, ..Self::default() }
    }

    fn account(&mut self, host: usize) -> &mut Account {
        self.accounts.entry(host).or_default()
    }

    /// The bytes of a datagram of that name and length.
    fn fill(&self, name: Name, out: &mut [u8]) {
        match name {
            Name::Number(number) => {
                let (head, rest) = out.split_at_mut(NUMBER_BYTES);
                head.copy_from_slice(&number.to_le_bytes());
                content::fill(mix(self.seed ^ number), 0, rest);
            }
            Name::Short(from, to, bytes) => {
                let key = (from.0 as u64) << 48 ^ u64::from(from.1) << 32 ^ (to.0 as u64) << 24 ^ u64::from(to.1) << 4;
                content::fill(mix(self.seed ^ key ^ u64::from(bytes)), 0, out);
            }
        }
    }

    // ---- what the world tells

    /// A host begins a life with nothing in it.
    pub(crate) fn on_host_start(&mut self, host: usize) {
        let before = self.accounts.remove(&host).map(|account| account.binds).unwrap_or_default();
        self.accounts.insert(host, Account { binds_before: before, ..Account::default() });
        for (_, open) in self.open.range_mut((host, 0)..=(host, u64::MAX)) {
            *open = Open { port: open.port, is_back: open.is_back, ..Open::default() };
        }
    }

    /// A bind is asked for.
    pub(crate) fn on_bind(&mut self, at: End) {
        *self.account(at.0).binds.entry(at.1).or_default() += 1;
    }

    /// Whether another bind of the port explains that it was refused.
    pub(crate) fn explains_port_in_use(&self, at: End) -> bool {
        self.accounts
            .get(&at.0)
            .is_some_and(|a| [&a.binds, &a.binds_before].iter().any(|b| b.get(&at.1).is_some_and(|n| *n > 1)))
    }

    /// A socket has nothing in its rings yet. Its daemon may have died since it bound it.
    pub(crate) fn on_bound(&mut self, at: SocketAt, port: u16, is_known: bool) {
        self.open.insert(at, Open { port, is_known, ..Open::default() });
    }

    /// A socket was closed; its row is gone or goes.
    pub(crate) fn on_closed(&mut self, at: SocketAt) {
        self.forget(at);
        self.account(at.0).closes += 1;
    }

    /// A program that had a socket died.
    pub(crate) fn on_socket_dead(&mut self, at: SocketAt) {
        self.forget(at);
        self.account(at.0).deaths += 1;
    }

    /// A socket is of no use any more. What no daemon took of it does not count.
    fn forget(&mut self, at: SocketAt) {
        let Some(open) = self.open.remove(&at).filter(|open| !open.is_known) else { return };
        let account = self.account(at.0);
        account.sent -= open.sent;
        account.taken -= open.taken;
    }

    /// The daemon has taken a socket over that outlived the one before, with what lay in its rings then.
    pub(crate) fn on_socket_back(&mut self, at: SocketAt, port: u16, in_rings: InRings) {
        let InRings { to_send, to_take } = in_rings;
        self.returned += 1;
        let before = self.open.get(&at).copied();
        let account = self.accounts.entry(at.0).or_default();
        account.sent += to_send;
        *account.binds.entry(port).or_default() += 1;
        let Some(open) = before else {
            // Its program closed it, or what it sent last is still to go.
            account.closes += 1;
            return;
        };
        account.sent -= open.sent;
        account.taken -= open.taken;
        account.found += to_take;
        let back = Open { port: open.port, sent: to_send, taken: 0, found: to_take, is_known: true, is_back: true };
        self.open.insert(at, back);
    }

    /// The daemon did not take a socket over.
    pub(crate) fn on_socket_not_taken(&mut self, at: SocketAt, port: u16) {
        *self.account(at.0).binds.entry(port).or_default() += 1;
        self.not_taken.insert(at);
    }

    /// A datagram is put into the ring of the socket at `from`; its bytes are drawn here.
    pub(crate) fn on_sent(&mut self, at: SocketAt, from: End, to: End, payload: &mut [u8]) {
        let name = if payload.len() < NUMBER_BYTES {
            Name::Short(from, to, payload.len() as u16)
        } else {
            self.last_number += 1;
            Name::Number(mix(self.seed ^ self.last_number))
        };
        self.fill(name, payload);
        let fate = Fate { from, to, bytes: payload.len(), sent: 0, left: 0, arrived: 0, taken: 0 };
        self.fates.entry(name).or_insert(fate).sent += 1;
        self.sent += 1;
        self.account(from.0).sent += 1;
        self.open.entry(at).or_default().sent += 1;
    }

    /// Datagrams that the socket of that port on each host sent and nobody took.
    pub(crate) fn missing(&self, port: u16) -> Vec<(End, End)> {
        self.fates.values().filter(|f| f.from.1 == port && f.taken < f.sent).map(|f| (f.from, f.to)).collect()
    }
}

impl Checks {
    /// A packet leaves a host.
    pub(crate) fn on_packet_sent(&mut self, now: Time, hosts: (usize, usize), packet: &[u8]) {
        let Some((name, from, to)) = name_of_packet(hosts.0, hosts.1, packet) else { return };
        self.datagrams.account(from.0).left += 1;
        let what = match self.datagrams.fates.get_mut(&name) {
            None => "nobody sent",
            Some(fate) if (fate.from, fate.to) != (from, to) => "was to go elsewhere",
            Some(fate) => {
                fate.left += 1;
                if fate.left <= fate.sent {
                    return;
                }
                "left already"
            }
        };
        self.fail(now, "datagrams", format!("host {} sends to {to:?} what {what}: {name:?} of {from:?}", hosts.0));
    }

    /// A packet arrives at a host that is up as it was sent.
    pub(crate) fn on_packet_whole(&mut self, hosts: (usize, usize), packet: &[u8]) {
        let Some((name, ..)) = name_of_packet(hosts.0, hosts.1, packet) else { return };
        self.datagrams.account(hosts.1).arrived += 1;
        if let Some(fate) = self.datagrams.fates.get_mut(&name) {
            fate.arrived += 1;
        }
    }

    /// A socket that its program has open has ended.
    pub(crate) fn on_socket_ended(&mut self, now: Time, at: SocketAt, own: End, reason: Reason) {
        *self.explained.entry(reason.key()).or_default() += 1;
        let is_explained = match reason {
            Reason::PortInUse => self.datagrams.explains_port_in_use(own),
            Reason::DaemonLost => self.causes.has_tight_limits(),
            _ => false,
        };
        if !is_explained || !self.datagrams.not_taken.contains(&at) {
            let detail = format!("socket {own:?} ended: `{}`, for which there is no cause", reason.key());
            self.fail(now, "unexplained", detail);
        }
    }

    /// A program takes a datagram out of the ring of its socket at `to`.
    pub(crate) fn on_datagram(&mut self, now: Time, at: SocketAt, from: End, to: End, payload: &[u8]) {
        let name = name_of(from, to, payload);
        let found = match self.datagrams.fates.get_mut(&name) {
            None => Err("nobody sent it".to_owned()),
            Some(fate) => {
                fate.taken += 1;
                // On one host there is no network that could make copies.
                let most = if fate.from.0 == fate.to.0 { fate.sent } else { fate.arrived };
                match fate.clone() {
                    f if f.from != from => Err(format!("it is from {:?}", f.from)),
                    f if f.to != to => Err(format!("it was sent to {:?}", f.to)),
                    f if f.bytes != payload.len() => Err(format!("{} bytes of it were sent", f.bytes)),
                    f if f.taken > most => Err(format!("it is taken {} times, {most} arrived", f.taken)),
                    _ => Ok(()),
                }
            }
        };
        let right = || {
            let mut right = vec![0; payload.len()];
            self.datagrams.fill(name, &mut right);
            let at = right.iter().zip(payload).position(|(a, b)| a != b);
            at.map_or(Ok(()), |at| Err(format!("byte {at} is wrong")))
        };
        if let Err(what) = found.and_then(|()| right()) {
            let detail = format!("{to:?} takes {} bytes from {from:?}, {name:?}: {what}", payload.len());
            return self.fail(now, "datagrams", detail);
        }
        self.bytes_checked += payload.len() as u64;
        self.datagrams.taken += 1;
        self.datagrams.account(to.0).taken += 1;
        let open = self.datagrams.open.entry(at).or_default();
        open.taken += 1;
        if open.is_known && open.is_back && open.taken > open.found {
            self.datagrams.taken_after_return += 1;
        }
    }

    /// An application learned a path: the smaller packet of both ends, less a header. Shorter ones are tried after an
    /// outage.
    pub(crate) fn on_path_told(&mut self, now: Time, hosts: (usize, usize), payload_max: u32) {
        let mtu = |host: usize| self.datagrams.mtus.get(host).copied().unwrap_or(0);
        let right = mtu(hosts.0).min(mtu(hosts.1)).saturating_sub(HEADER_BYTES) as u32;
        let is_narrow = payload_max < right && self.causes.was_reset_between(hosts.0, hosts.1);
        if payload_max != right && !is_narrow {
            let detail = format!("path of {hosts:?}: datagrams of {payload_max} bytes, where {right} are right");
            self.fail(now, "datagrams", detail);
        }
    }

    /// Nothing is on its way, and the sockets are still there: their rows say what happened to each datagram of theirs.
    pub(crate) fn on_sockets_at_rest(&mut self, now: Time, host: usize, engine: &Engine) {
        const AT_THE_RECEIVER: &str = "ring_full";
        let mut findings = Vec::new();
        let rows = engine.datagram_sockets();
        for (&(_, id), open) in self.datagrams.open.range((host, 0)..=(host, u64::MAX)).filter(|(_, o)| o.is_known) {
            let Some(row) = rows.iter().find(|row| row.id == id) else {
                findings.push(format!("host {host}: its socket {id} is gone: {open:?}"));
                continue;
            };
            let dropped: u64 = row.drops.iter().filter(|(why, _)| why != AT_THE_RECEIVER).map(|(_, n)| n).sum();
            let is_right = row.tx_datagrams + dropped == open.sent && row.rx_datagrams + open.found == open.taken;
            if !is_right || row.local.port() != open.port {
                findings.push(format!("host {host}: for its program it is {open:?}, but the row is {row:?}"));
            }
        }
        findings.into_iter().for_each(|f| self.fail(now, "datagrams", f));
    }

    /// All programs are gone and nothing is on its way: what went in came out, or was dropped for a reason that was
    /// counted.
    pub(crate) fn on_datagrams_at_rest(&mut self, now: Time, host: usize, engine: &Engine, tap: &Tap) {
        let account = self.datagrams.accounts.get(&host).cloned().unwrap_or_default();
        let totals = engine.totals();
        let counter = |name: &str| totals.counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value);
        let drops =
            || totals.counters.iter().filter_map(|(n, value)| Some((n.strip_prefix("drop_datagram_")?, *value)));
        let at_device = counter("drop_datagram_device");
        let dropped: u64 = drops().map(|(_, n)| n).sum::<u64>() - at_device;
        let nic = tap.nic.counters_detail();
        let (sent, local, received) =
            (counter("datagrams_sent"), counter("datagrams_local"), counter("datagrams_received"));
        let mut findings = Vec::new();
        let mut check = |holds: bool, what: String| {
            if !holds {
                findings.push(format!("host {host} at rest: {what}; {:?}, {account:?}", totals.counters));
            }
        };
        let (into, out) = (account.sent + nic.served_datagram, sent + local + received + dropped);
        // Those that the device lost are among those that were sent, or never got so far.
        let lost = into.checked_sub(out).filter(|lost| *lost <= at_device);
        check(lost.is_some(), format!("{into} datagrams came in, {out} have an end, the device lost {at_device}"));
        let left = sent.checked_sub(account.left);
        check(left.is_some_and(|n| n <= at_device), format!("{} packets left", account.left));
        let refused =
            nic.drop_no_receive + nic.drop_wrong_qkey + nic.drop_datagram_too_long + nic.drop_receive_too_short;
        let ended = nic.served_datagram + refused;
        let others = nic.drop_unknown_qp + nic.drop_wrong_state;
        let unseen = account.arrived.checked_sub(ended);
        check(unseen.is_some_and(|n| n <= others), format!("{} packets arrived, {ended} ended", account.arrived));
        let delivered = local + received;
        let untaken = (delivered + account.found).checked_sub(account.taken);
        check(
            untaken.is_some_and(|n| n == 0 || account.deaths + account.closes > 0),
            format!("{delivered} were delivered, programs took {}", account.taken),
        );
        check(engine.datagram_sockets().is_empty(), format!("sockets are left: {:?}", engine.datagram_sockets()));
        drops().filter(|(_, n)| *n > 0).for_each(|(why, n)| *self.datagrams.drops.entry(why).or_default() += n);
        findings.into_iter().for_each(|f| self.fail(now, "datagrams", f));
    }
}
