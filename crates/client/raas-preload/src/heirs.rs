//! Children that have a connection which their parent upgraded: the stream is the parent's. A child that uses it has the
//! parent bring it back to TCP (`connection/back.rs`), where both can go on with it.
//!
//! A connection that nobody has used yet is left to the child. If the parent uses it first all the same, it *claims* it:
//! then it stays on TCP for both.
//!
//! Each fork that leaves such connections to a child makes a *family*: a socket by which the child asks, a page with the
//! claims and the answers, and, if one of the connections is upgraded, a thread of the parent that serves the child
//! until it, and whoever it left the socket to, is gone. Until then a connection that the parent closes is kept: the
//! child may still ask for it.
//!
//! It must never keep a connection longer than a child has it, nor take a lock of the parent in a child.

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::connection::{Claim, Connection, PATIENCE, lock};
use crate::desk::SignalsBlocked;
use crate::kernel_tcp::poll_now;
use crate::shared_page::SharedPage;
use crate::wish::{BACK, CLAIMED, FAILED, Parent, QUESTION_BYTES, Wish, has_claimed};
use crate::{inside, real, table, threads};

/// The stack of a thread that serves a child.
const STACK: usize = 128 << 10;

/// What a process and its child have together.
#[derive(Debug)]
struct Family {
    page: SharedPage,
    /// None: no child may still ask for it.
    members: Vec<Mutex<Option<Arc<Connection>>>>,
    /// It hangs up when nobody is left who may ask.
    socket: OwnedFd,
    /// A thread serves the child.
    is_served: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A fork that is under way in this thread.
struct Fork {
    family: Family,
    to_parent: OwnedFd,
}

thread_local! {
    static FORK: RefCell<Option<Fork>> = const { RefCell::new(None) };
}

/// The families of this process.
static FAMILIES: raas::PerProcess<Mutex<Vec<Arc<Family>>>> = raas::PerProcess::new();

/// Before a fork. `members`: the connections that one of both alone can have over RaaS.
pub(crate) fn prepare(members: Vec<Arc<Connection>>) {
    if members.is_empty() {
        return;
    }
    let _inside = inside::enter();
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
        return;
    }
    // SAFETY: the call above made both, and nobody else has them.
    let [to_child, to_parent] = ends.map(|fd| shm::raised(unsafe { OwnedFd::from_raw_fd(fd) }));
    let Some(page) = SharedPage::new(2 * members.len()) else { return };
    let members = members.into_iter().map(|member| Mutex::new(Some(member))).collect();
    let family =
        Family { page, members, socket: to_child, is_served: AtomicBool::new(false), thread: Mutex::default() };
    FORK.set(Some(Fork { family, to_parent }));
}

/// After the fork, in the parent.
pub(crate) fn serve_child() {
    let _inside = inside::enter();
    let Some(Fork { family, to_parent }) = FORK.take() else { return };
    drop(to_parent);
    let family = Arc::new(family);
    for number in 0..family.members.len() {
        if let Some(member) = family.member(number) {
            member.add_heir(Box::new(OfFamily { family: Arc::downgrade(&family), number }));
        }
    }
    lock(FAMILIES.get()).push(Arc::clone(&family));
    let mut has_used = false;
    for (number, claim) in family.claims().iter().enumerate() {
        if family.member(number).is_some_and(|member| member.is_used()) {
            claim.store(CLAIMED, Ordering::Release);
            has_used = true;
        }
    }
    if has_used {
        family.begin();
    }
}

/// The claim of a connection in a family.
#[derive(Debug)]
struct OfFamily {
    family: Weak<Family>,
    number: usize,
}

impl Claim for OfFamily {
    fn claim(&self) {
        if let Some(family) = self.family.upgrade() {
            has_claimed(&family.claims()[self.number]);
        }
    }
}

/// After the fork, in the child: how it gets each of the connections.
pub(crate) fn wishes_of_child() -> impl Fn(&Connection) -> Option<Wish> {
    let fork = FORK.take();
    let made = fork.map(|Fork { family, to_parent }| {
        let Family { page, mut members, socket, .. } = family;
        drop(socket);
        let address = |member: &mut Mutex<Option<Arc<Connection>>>| {
            member.get_mut().ok().and_then(|member| member.as_ref()).map_or(std::ptr::null(), Arc::as_ptr)
        };
        let known: Vec<*const Connection> = members.iter_mut().map(address).collect();
        // The parent's are left where they are.
        std::mem::forget(members);
        (Arc::new(Parent { socket: to_parent, page }), known)
    });
    move |connection| {
        let (parent, known) = made.as_ref()?;
        let number = known.iter().position(|one| std::ptr::eq(*one, connection))?;
        Some(Wish { parent: Arc::clone(parent), number })
    }
}

/// Serves a child until it is gone.
fn serve(family: &Arc<Family>) {
    let mut bytes = [0u8; QUESTION_BYTES];
    loop {
        // SAFETY: there is room for so many bytes.
        let found = unsafe { real::recv(family.socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if found < 0 && crate::errno::get() == libc::EINTR {
            continue;
        }
        if found != QUESTION_BYTES as isize {
            break;
        }
        let [is_closed, number @ ..] = bytes;
        let number = u32::from_ne_bytes(number) as usize;
        if is_closed == 0 {
            family.bring_back(number, Instant::now() + PATIENCE);
        }
        family.end(number);
    }
    family.end_all();
}

impl Family {
    fn answers(&self) -> &[AtomicU8] {
        &self.page.bytes()[..self.members.len()]
    }

    fn claims(&self) -> &[AtomicU8] {
        &self.page.bytes()[self.members.len()..]
    }

    /// Serves the child from now on.
    fn begin(self: &Arc<Self>) {
        if self.is_served.swap(true, Ordering::AcqRel) {
            return;
        }
        let _blocked = SignalsBlocked::new();
        let served = Arc::clone(self);
        let thread = std::thread::Builder::new().name("raas-run-child".to_owned()).stack_size(STACK);
        match thread.spawn(move || serve(&served)) {
            Ok(thread) => *lock(&self.thread) = Some(thread),
            // The child sees that nobody answers: the socket is closed.
            Err(_) => self.end_all(),
        }
    }

    /// Whether nobody is left who may ask. The thread that serves the child may not have seen it yet.
    fn is_childless(&self) -> bool {
        poll_now(self.socket.as_raw_fd(), 0) & libc::POLLHUP != 0
    }

    fn member(&self, number: usize) -> Option<Arc<Connection>> {
        self.members.get(number).and_then(|member| lock(member).clone())
    }

    /// Brings a connection back to TCP for the child, and says so.
    fn bring_back(&self, number: usize, until: Instant) {
        let (Some(member), Some(answer)) = (self.member(number), self.answers().get(number)) else { return };
        let is_back = bring_back(&member, until);
        answer.store(if is_back { BACK } else { FAILED }, Ordering::Release);
    }

    /// No child has this connection, or it may have it without its parent.
    fn end(&self, number: usize) {
        let Some(member) = self.members.get(number).and_then(|member| lock(member).take()) else { return };
        let kept = member.remove_heir();
        // As where a process closes it: bytes that nobody has read are lost, and TCP is to say so.
        if let Some(kept) = kept.as_ref().filter(|_| member.unread().is_some_and(|unread| unread > 0)) {
            member.spoil(kept.as_raw_fd());
        }
        // What the stream has to say comes before TCP's end.
        let _inside = inside::enter();
        drop(member);
        drop(kept);
        if self.members.iter().all(|member| lock(member).is_none()) {
            lock(FAMILIES.get()).retain(|one| !std::ptr::eq(Arc::as_ptr(one), self));
        }
    }

    /// The parent has closed what nobody used: it is the child's.
    fn forget(&self, connection: &Arc<Connection>) {
        for number in 0..self.members.len() {
            if self.member(number).is_some_and(|member| Arc::ptr_eq(&member, connection)) {
                self.end(number);
            }
        }
    }

    fn end_all(&self) {
        (0..self.members.len()).for_each(|number| self.end(number));
    }
}

/// Brings a connection of this process back to TCP, whichever descriptor it has.
fn bring_back(connection: &Arc<Connection>, until: Instant) -> bool {
    descriptor(connection).is_some_and(|fd| connection.go_back_until(fd.as_raw_fd(), until))
}

/// A descriptor of a connection that stays open: the program may close its own at any time.
pub(crate) fn descriptor(connection: &Arc<Connection>) -> Option<Arc<OwnedFd>> {
    let known = || {
        let copy = duplicate(table::descriptor_of(connection)?)?;
        let is_its_own = !connection.is_used() || connection.is_of_socket(copy.as_raw_fd());
        is_its_own.then(|| Arc::new(copy))
    };
    // In this order: what is kept is kept before the program's own is gone.
    known().or_else(|| connection.kept())
}

fn duplicate(fd: c_int) -> Option<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let copy = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: the call made it, and nobody else has it.
    (copy >= 0).then(|| shm::raised(unsafe { OwnedFd::from_raw_fd(copy) }))
}

/// The program is about to close a descriptor, which is still in the table. A child may want the connection at any
/// moment, so there is a descriptor of it at every moment.
pub(crate) fn keep_for_children(fd: c_int, connection: &Arc<Connection>) {
    if !connection.has_heirs() || !connection.is_used() || connection.is_the_kernels() {
        return;
    }
    let _inside = inside::enter();
    if connection.kept().is_none()
        && let Some(copy) = duplicate(fd)
    {
        connection.keep(copy);
    }
}

/// The descriptor is in the table no more. A connection that nobody used is its children's alone.
pub(crate) fn note_closing(connection: &Arc<Connection>) {
    if !connection.has_heirs() || table::descriptor_of(connection).is_some() {
        return;
    }
    let _inside = inside::enter();
    if !connection.is_used() || connection.is_the_kernels() {
        families().iter().for_each(|family| family.forget(connection));
    }
}

/// The process ends or becomes another program: what children may want goes back to TCP.
pub(crate) fn leave_to_children() {
    let until = Instant::now() + PATIENCE;
    for family in families() {
        if family.is_childless() {
            family.end_all();
            continue;
        }
        for number in 0..family.members.len() {
            if family.member(number).is_some_and(|member| member.is_used() && !member.has_ended_writing()) {
                family.bring_back(number, until);
            }
        }
    }
}

/// All connections are on TCP, for children too, so no thread serves them any more.
pub(crate) fn end_service() {
    leave_to_children();
    for family in families() {
        family.end_all();
        // The thread's call ends.
        // SAFETY: the call takes no pointers.
        unsafe { real::shutdown(family.socket.as_raw_fd(), libc::SHUT_RDWR) };
        threads::await_end(lock(&family.thread).take());
    }
}

fn families() -> Vec<Arc<Family>> {
    let _inside = inside::enter();
    lock(FAMILIES.get()).clone()
}
