//! The agent of a port: one process of a network namespace, which lives as long as a NIC has a place.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::group::Group;
use super::{ADDRESSES_MAX, GENERATIONS, HEAD_BYTES, HELLO, SLOTS, addresses, name, octets};

/// How long the agent stays after the last NIC is gone, so that programs which start one after the other find it.
const STAYS: Duration = Duration::from_secs(2);
/// Connections at most: of members, and of those that have not said yet what they want.
const CONNECTIONS_MAX: usize = SLOTS + 64;
/// How long one may take to say it.
const SAYS_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait between two looks at the clock.
const LOOK: Duration = Duration::from_millis(500);

/// Serves the port until nobody has had a place for a while. `ready` is called when members can come; not if another agent
/// has the port already, which is no error.
pub fn serve(port: u16, ready: impl FnOnce()) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match rustix::net::bind(&listener, &name(port)?) {
        Err(Errno::ADDRINUSE) => return Ok(()),
        other => other?,
    }
    rustix::net::listen(&listener, 64)?;
    ready();
    let mut agent = Agent::new(port);
    let mut last_used = Instant::now();
    while agent.is_used() || last_used.elapsed() < STAYS {
        if agent.is_used() {
            last_used = Instant::now();
        }
        agent.turn(&listener)?;
    }
    Ok(())
}

/// A process that has a slot, or is about to ask for one.
#[derive(Debug)]
struct Connection {
    fd: OwnedFd,
    since: Instant,
    slot: Option<usize>,
}

#[derive(Debug)]
struct Agent {
    port: u16,
    user: u32,
    groups: BTreeMap<IpAddr, Group>,
    connections: Vec<Connection>,
    /// By slot: the generation of whom it was lent to last.
    generations: Vec<u32>,
    /// Slots that were given back, oldest first.
    free: VecDeque<usize>,
}

impl Agent {
    fn new(port: u16) -> Self {
        let user = rustix::process::geteuid().as_raw();
        // Slot 0 is the agent's own.
        let generations = vec![0];
        Self { port, user, groups: BTreeMap::new(), connections: Vec::new(), generations, free: VecDeque::new() }
    }

    fn is_used(&self) -> bool {
        !self.connections.is_empty()
    }

    /// Waits for words or ends, and takes them.
    fn turn(&mut self, listener: &OwnedFd) -> io::Result<()> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        let mut fds: Vec<_> = std::iter::once(listener.as_fd())
            .chain(self.connections.iter().map(|connection| connection.fd.as_fd()))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let comes = ready.remove(0);
        for (index, is_ready) in ready.into_iter().enumerate().rev() {
            if (is_ready && !self.hear(index)) || self.is_silent(index) {
                self.leave(index);
            }
        }
        if comes && let Ok(fd) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            // One too many is closed at once.
            if self.connections.len() < CONNECTIONS_MAX {
                self.connections.push(Connection { fd, since: Instant::now(), slot: None });
            }
        }
        Ok(())
    }

    fn is_silent(&self, index: usize) -> bool {
        self.connections.get(index).is_some_and(|one| one.slot.is_none() && one.since.elapsed() > SAYS_WITHIN)
    }

    /// Takes what a connection says. False: it is gone, or has no place here.
    fn hear(&mut self, index: usize) -> bool {
        let Some(connection) = self.connections.get(index) else { return true };
        let mut words = [0_u8; HELLO.len() + ADDRESSES_MAX * 16];
        let said = rustix::net::recv(&connection.fd, &mut words[..], RecvFlags::empty());
        let said = match said {
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Ok((len, _)) if len > 0 => words.get(..len).unwrap_or(&[]),
            _ => return false,
        };
        // A member says one thing, once.
        if connection.slot.is_some() {
            return false;
        }
        let user = socket_peercred(&connection.fd).map(|peer| peer.uid.as_raw());
        let answer = user.map_err(|e| e.to_string()).and_then(|user| self.admit(said, user));
        let Some(connection) = self.connections.get_mut(index) else { return true };
        match answer {
            Ok((slot, wanted)) => {
                connection.slot = Some(slot);
                let fd = connection.fd.as_fd();
                lend(fd, slot, self.generations.get(slot).copied().unwrap_or(0), &wanted, &self.groups).is_ok()
            }
            Err(why) => {
                let mut refusal = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                refusal.extend_from_slice(why.as_bytes());
                let _ = rustix::net::send(&connection.fd, &refusal, SendFlags::NOSIGNAL);
                false
            }
        }
    }

    /// A slot for who says this, with sockets at the addresses that it names.
    fn admit(&mut self, said: &[u8], user: u32) -> Result<(usize, Vec<IpAddr>), String> {
        if user != self.user {
            let own = self.user;
            return Err(format!(
                "the NICs of this port are of user {own}, who has it for all of them (you are {user})"
            ));
        }
        let named = said.strip_prefix(&HELLO).and_then(addresses);
        let wanted = named.ok_or("the agent is of another release: end its programs, and start again")?;
        let slot = self.free.front().copied().unwrap_or(self.generations.len());
        if slot >= SLOTS {
            return Err(format!("{} processes of this host share the port already", SLOTS - 1));
        }
        for address in &wanted {
            self.group(*address, slot + 1)?;
        }
        match self.free.pop_front() {
            Some(slot) => {
                if let Some(generation) = self.generations.get_mut(slot) {
                    *generation = (*generation + 1) % GENERATIONS;
                }
            }
            None => self.generations.push(0),
        }
        self.groups.values().for_each(|group| group.empty(slot));
        Ok((slot, wanted))
    }

    /// The sockets of an address, for as many slots at least.
    fn group(&mut self, address: IpAddr, slots: usize) -> Result<(), String> {
        let group = match self.groups.entry(address) {
            std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                free.insert(Group::new(address, self.port).map_err(|e| e.to_string())?)
            }
        };
        group.extend(slots).map_err(|e| e.to_string())
    }

    /// A process is gone, or never was a member.
    fn leave(&mut self, index: usize) {
        let gone = self.connections.swap_remove(index);
        self.free.extend(gone.slot);
    }
}

/// Answers with the sockets of a slot.
fn lend(
    to: BorrowedFd<'_>,
    slot: usize,
    generation: u32,
    wanted: &[IpAddr],
    groups: &BTreeMap<IpAddr, Group>,
) -> Result<(), Errno> {
    let mut words = Vec::with_capacity(HEAD_BYTES + wanted.len() * 16);
    let slot_number = u32::try_from(slot).unwrap_or(u32::MAX);
    words.extend([0, slot_number, generation].into_iter().flat_map(u32::to_ne_bytes));
    words.extend(wanted.iter().flat_map(|address| octets(*address)));
    let sockets: Vec<_> = wanted.iter().filter_map(|address| groups.get(address)?.of(slot)).collect();
    let mut room = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ADDRESSES_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    if sockets.len() != wanted.len() || !ancillary.push(SendAncillaryMessage::ScmRights(&sockets)) {
        return Err(Errno::MSGSIZE);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(to, &[io::IoSlice::new(&words)], &mut ancillary, flags).map(|_| ())
}
