//! The public face of a session with this host's daemon.
//!
//! Owns the choice of the socket and the process-wide session. It must never hand a forked child its parent's session.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::attachment::{Attachment, Config};
use crate::error::SessionError;
use crate::kept::DAEMON_WAIT_DEFAULT;
use crate::lookup;
use crate::park::lock;
use crate::patience::WaitPolicy;
use crate::per_process::PerProcess;

/// How long the daemon may take to answer when the caller gave no time of its own.
pub(crate) const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

static GLOBAL: PerProcess<Mutex<Option<Session>>> = PerProcess::new();

/// A session with this host's daemon: what streams and listeners are made in. Cloning gives another handle on it; it
/// ends when the last handle, stream and listener is dropped.
///
/// A session belongs to the process that made it. In a child made by `fork` every use of it, and of its streams,
/// listeners and sockets, fails with [`SessionError::Forked`] and touches nothing of the parent's; dropping them closes
/// nothing there. [`Session::global`] makes the child a session of its own. A child that lives on with copies of the
/// descriptors hides its parent's death from peers, so let it `exec` or exit; all descriptors are close-on-exec.
#[derive(Clone)]
pub struct Session {
    pub(crate) attachment: Arc<Attachment>,
}

impl Session {
    /// Attaches to the daemon that serves `socket`.
    pub fn connect(socket: impl AsRef<Path>) -> Result<Self, SessionError> {
        Self::builder().socket(socket).connect()
    }

    /// The session that [`Stream::connect`](crate::Stream::connect) and [`Listener::bind`](crate::Listener::bind) use:
    /// made when first asked for, and again in a forked child and after the daemon was lost. While it waits for the next
    /// daemon ([`SessionBuilder::daemon_wait`]), what is asked of it waits too.
    ///
    /// Socket: `$RAAS_SOCKET`, else the first that is served of `$XDG_RUNTIME_DIR/raas/raasd.sock`,
    /// `/tmp/raas-$UID/raasd.sock` (not for root) and `/run/raas/raasd.sock`, where the daemon of the whole host
    /// serves.
    pub fn global() -> Result<Self, SessionError> {
        let mut global = lock(GLOBAL.get());
        let session = match &*global {
            Some(session) if session.attachment.check_fork().is_ok() => match session.reattach() {
                // What is asked of it waits for the next daemon.
                Err(SessionError::NoDaemon { .. }) if session.attachment.may_come_back() => session.clone(),
                other => other?,
            },
            _ => Self::builder().connect()?,
        };
        *global = Some(session.clone());
        Ok(session)
    }

    /// For a session with settings of its own.
    pub fn builder() -> SessionBuilder {
        SessionBuilder::default()
    }

    /// Whether new connections can be made: the daemon is there, and this is the process that made the session.
    pub fn is_usable(&self) -> bool {
        self.attachment.check_fork().is_ok() && self.attachment.daemon_is_there()
    }

    /// This session while its daemon is there. After the daemon was lost: the session that replaces it, attached with
    /// the same settings to the daemon that serves the same socket. All callers get the same one, and so do the
    /// listeners of this session.
    ///
    /// It does not wait for a daemon to come: without one it fails with [`SessionError::NoDaemon`].
    pub fn reattach(&self) -> Result<Self, SessionError> {
        Ok(Self { attachment: self.attachment.successor(self.attachment.config.timeout)? })
    }

    /// The addresses that name this host, as the daemon says.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.attachment.addresses
    }

    /// The daemon's socket.
    pub fn socket(&self) -> &Path {
        &self.attachment.config.path
    }

    /// Whether this host has `encrypt = "required"` for some other host.
    pub fn requires_encryption(&self) -> bool {
        self.attachment.requires_encryption
    }

    /// The daemon's release.
    pub fn release(&self) -> &str {
        &self.attachment.release
    }

    /// The session's number in the daemon.
    pub fn number(&self) -> u64 {
        self.attachment.returning.number()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("socket", &self.attachment.config.path).field("number", &self.number()).finish()
    }
}

/// Settings of a session.
#[derive(Debug, Clone)]
pub struct SessionBuilder {
    socket: Option<std::path::PathBuf>,
    name: Option<String>,
    policy: WaitPolicy,
    timeout: Duration,
    daemon_wait: Duration,
    background: bool,
    is_led_elsewhere: bool,
}

impl Default for SessionBuilder {
    fn default() -> Self {
        Self {
            socket: None,
            name: None,
            policy: WaitPolicy::default(),
            timeout: TIMEOUT_DEFAULT,
            daemon_wait: DAEMON_WAIT_DEFAULT,
            background: false,
            is_led_elsewhere: false,
        }
    }
}

impl SessionBuilder {
    /// The daemon's socket, instead of the rule of [`Session::global`].
    #[must_use]
    pub fn socket(mut self, path: impl AsRef<Path>) -> Self {
        self.socket = Some(path.as_ref().to_path_buf());
        self
    }

    /// Name for `raas stat`; the daemon keeps 64 bytes. Default: the name of the program.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How often a waiting thread looks with only a processor pause between, before it yields.
    #[must_use]
    pub fn spins(mut self, spins: u32) -> Self {
        self.policy.spins = spins;
        self
    }

    /// How often a waiting thread then looks with a `sched_yield` between, before it sleeps. The default is about 50 us
    /// on an idle core: waking a sleeping thread takes 15 to 25 us.
    #[must_use]
    pub fn yields(mut self, yields: u32) -> Self {
        self.policy.yields = yields;
        self
    }

    /// How long the daemon may take to answer a connect, a bind or a question for which no time is given. Default: 60 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long the session waits for the next daemon when its own ended without a word, as one that was killed does. What
    /// can go on waits meanwhile, and what is asked of the daemon is asked of the next one; only what was asked and not
    /// answered before fails. Afterwards, and at once with 0, the daemon is lost. Default: 5 s.
    #[must_use]
    pub fn daemon_wait(mut self, wait: Duration) -> Self {
        self.daemon_wait = wait;
        self
    }

    /// Starts the session's watcher thread now: it answers the daemon and other processes while no thread waits in a
    /// call of this library. Without this the watcher is started when a program asks for a descriptor or a task polls.
    /// While there is a watcher, it wakes the threads that wait, which costs each wake one more switch between threads.
    /// Default: off.
    #[must_use]
    pub fn background(mut self, on: bool) -> Self {
        self.background = on;
        self
    }

    /// Starts the watcher as [`SessionBuilder::background`] does, but has it follow the session only while threads sleep
    /// as [`elsewhere`](crate::elsewhere) has it and none of them follows it, and once a second. Who waits for this
    /// session's streams in other ways than by blocking calls and `elsewhere` learns of changes late. Default: off.
    #[must_use]
    pub fn led_elsewhere(mut self, on: bool) -> Self {
        self.is_led_elsewhere = on;
        self.background |= on;
        self
    }

    /// Attaches to the daemon.
    pub fn connect(self) -> Result<Session, SessionError> {
        let path = lookup::find(self.socket.as_deref(), self.timeout)?;
        let name = self.name.unwrap_or_else(program_name);
        let Self { policy, timeout, daemon_wait, is_led_elsewhere, .. } = self;
        let config = Config { path, name, policy, timeout, daemon_wait, is_led_elsewhere };
        let attachment = Attachment::connect(config, self.timeout)?;
        if self.background {
            attachment.ensure_watched()?;
        }
        Ok(Session { attachment })
    }
}

fn program_name() -> String {
    name_of(&std::env::args_os().next().unwrap_or_default().to_string_lossy())
}

/// The last part of a path. A program may have written a title over it, which has paths behind its first word alone.
fn name_of(word: &str) -> String {
    match word.split_once(' ') {
        Some((first, _)) if !first.contains('/') => word.to_owned(),
        _ => word.rsplit('/').next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn programs_are_called_by_their_title_or_the_last_part_of_their_path() {
        let names = ["/usr/bin/my prog", "/opt/my dir/prog", "./prog", "prog", "", "redis-server *:6390"].map(name_of);
        assert_eq!(names, ["my prog", "prog", "prog", "prog", "", "redis-server *:6390"]);
        assert_eq!(name_of("nginx: worker process /etc/conf -e x"), "nginx: worker process /etc/conf -e x");
    }
}
