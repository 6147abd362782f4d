//! The first exchange with the daemon: Hello, and Welcome or a refusal.
//!
//! Owns the checks of what a Welcome brings. It must never believe a daemon of another version.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use control::{APP_VERSION, Reply, Request, Role};
use shm::{ENGINES_MAX, EnginePage, LAYOUT_VERSION, Segment, SessionShape, Sharing, WakeSocket};

use crate::{EngineEnd, SessionFault, SessionMemory};

/// The first exchange. The caller sends [`Greeting::hello`] over a fresh control socket, waits as it likes for one
/// message, and hands it in.
#[derive(Debug, Clone)]
pub struct Greeting {
    role: Role,
    name: String,
}

/// What the daemon gave.
#[derive(Debug)]
pub struct Attached {
    /// The daemon's release.
    pub release: String,
    /// The session's number in the daemon.
    pub number: u64,
    /// Addresses that name this host.
    pub addresses: Vec<IpAddr>,
    /// Whether some other host gets no byte in the clear.
    pub requires_encryption: bool,
    /// Memory and wake socket; none for [`Role::Inspector`].
    pub session: Option<Given>,
}

/// Memory and wake socket of an application's session.
#[derive(Debug)]
pub struct Given {
    /// For [`crate::Session::new`].
    pub memory: SessionMemory,
    /// The descriptor of the session segment, for a daemon that comes after this one.
    pub segment: OwnedFd,
    /// The engines' page, in whose place that of such a daemon is put.
    pub page: EnginePage,
    /// The wake sockets of all engines, in whose places those of such a daemon are put.
    pub wakes: Vec<Arc<WakeSocket>>,
    /// Readable when an engine has news while this process sleeps; drained by the caller. All engines write to the one
    /// of engine 0.
    pub wake: Arc<WakeSocket>,
}

impl Greeting {
    /// As what, and under which name for `raas stat` (the daemon keeps 64 bytes).
    pub fn new(role: Role, name: impl Into<String>) -> Self {
        Self { role, name: name.into() }
    }

    /// The first message. A daemon that refuses at once may close before it reads it; its reason can be received all
    /// the same.
    pub fn hello(&self) -> Request {
        Request::Hello { version: APP_VERSION, layout: LAYOUT_VERSION, role: self.role, name: self.name.clone() }
    }

    /// The daemon's answer and its descriptors.
    pub fn answered(self, reply: Reply, fds: Vec<OwnedFd>) -> Result<Attached, SessionFault> {
        match reply {
            Reply::Welcome { version, release, .. } if version != APP_VERSION => {
                Err(SessionFault::Version { version, layout: LAYOUT_VERSION, release })
            }
            Reply::Welcome {
                release,
                session,
                slots,
                engines,
                session_bytes,
                engine_page_bytes,
                addresses,
                requires_encryption,
                ..
            } => {
                let shape = SessionShape { slots, engines };
                let given = match self.role {
                    Role::Application => Some(given(fds, shape, session_bytes, engine_page_bytes)?),
                    // One that returns has its session.
                    Role::Inspector | Role::Returning => None,
                };
                Ok(Attached { release, number: session, addresses, requires_encryption, session: given })
            }
            Reply::Refused { version, layout, release, .. } if (version, layout) != (APP_VERSION, LAYOUT_VERSION) => {
                Err(SessionFault::Version { version, layout, release })
            }
            Reply::Refused { reason, detail, .. } | Reply::Detached { reason, detail } => {
                Err(SessionFault::Refused { reason, detail })
            }
            other => Err(SessionFault::Protocol(format!("the answer to Hello was {other:?}"))),
        }
    }
}

fn given(fds: Vec<OwnedFd>, shape: SessionShape, session_bytes: u64, page_bytes: u64) -> Result<Given, SessionFault> {
    let refused = |e: &dyn std::fmt::Display| SessionFault::Protocol(format!("session memory: {e}"));
    let engines = shape.engines;
    let expected = 2 + engines as usize;
    let mut rest = fds.into_iter();
    let (Some(segment), Some(page), true) = (rest.next(), rest.next(), rest.len() + 2 == expected) else {
        return Err(SessionFault::Protocol(format!("Welcome of {engines} engines without its {expected} descriptors")));
    };
    if !(1..=ENGINES_MAX).contains(&engines) {
        return Err(SessionFault::Protocol(format!("a daemon with {engines} engines; at most {ENGINES_MAX} can be")));
    }
    let segment = Segment::accept(segment, session_bytes, Sharing::ReadWrite).map_err(|e| refused(&e))?;
    let kept = segment.fd().try_clone_to_owned().map_err(|e| SessionFault::os("dup of the session segment", &e))?;
    let session = shm::Session::open(segment.into_region(), shape).map_err(|e| refused(&e))?;
    let page = Segment::accept(page, page_bytes, Sharing::PeerReadOnly).map_err(|e| refused(&e))?;
    let page = EnginePage::open(page.into_region()).map_err(|e| refused(&e))?;
    let wakes = rest.map(|fd| WakeSocket::from_fd(fd).map(Arc::new)).collect::<Result<Vec<_>, _>>();
    let wakes = wakes.map_err(|e| SessionFault::os("wake socket", &e))?;
    let end = |(wake, engine): (&Arc<WakeSocket>, u32)| EngineEnd {
        sleep: page.engine_sleep(engine),
        wake: Arc::clone(wake) as _,
    };
    let Some(wake) = wakes.first().cloned() else {
        return Err(SessionFault::Protocol("Welcome without a wake socket".into()));
    };
    let memory = SessionMemory {
        session,
        engines: wakes.iter().zip(0..).map(end).collect(),
        // Where the kernel cannot make this process pass the daemon's barrier its rings keep their pages.
        can_rest: shm::join_rest_barrier(),
        clock: None,
    };
    Ok(Given { memory, segment: shm::raised(kept), page, wakes, wake })
}

#[cfg(test)]
mod tests {
    use control::Reason;

    use super::*;

    fn greeting() -> Greeting {
        Greeting::new(Role::Inspector, "test")
    }

    #[test]
    fn only_a_daemon_of_this_version_is_believed() {
        let welcome = |version| Reply::Welcome {
            requires_encryption: false,
            version,
            release: "9.9".into(),
            session: 7,
            slots: 64,
            engines: 1,
            session_bytes: 0,
            engine_page_bytes: 0,
            addresses: Vec::new(),
        };
        assert_eq!(greeting().answered(welcome(APP_VERSION), Vec::new()).unwrap().number, 7);
        let other = greeting().answered(welcome(APP_VERSION + 1), Vec::new());
        assert!(matches!(other, Err(SessionFault::Version { version, .. }) if version == APP_VERSION + 1));
        let lacks = Greeting::new(Role::Application, "test").answered(welcome(APP_VERSION), Vec::new());
        assert!(matches!(lacks, Err(SessionFault::Protocol(_))));
    }

    #[test]
    fn a_refusal_keeps_its_reason_unless_the_versions_differ() {
        let refusal = |layout| Reply::Refused {
            version: APP_VERSION,
            layout,
            release: "1".into(),
            reason: Reason::UserPrograms,
            detail: "no more".into(),
        };
        let refused = greeting().answered(refusal(LAYOUT_VERSION), Vec::new());
        assert!(matches!(refused, Err(SessionFault::Refused { reason: Reason::UserPrograms, .. })));
        let other = greeting().answered(refusal(LAYOUT_VERSION + 1), Vec::new());
        assert!(matches!(other, Err(SessionFault::Version { .. })));
    }
}
