//! `NAME:PORT`: a service of the cluster, the host of that name, or a name that the system knows.
//!
//! Owns the order in which a name is looked for: an address means itself, then the cluster's hosts count as this host's
//! daemon knows them (docs/operate/clusters.md), then what the system says. It must never ask anybody about an address.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use control::{DirectoryRow, debug_says_the_words};

use crate::dial::ConnectOptions;
use crate::error::{ConnectError, SessionError};
use crate::inspect;
use crate::session::Session;
use crate::stream::Stream;

/// A name stands for no address.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The daemon could not be asked, and the system does not know the name.
    #[error("`{name}` is no name that the system knows, and the daemon cannot be asked: {error}")]
    Session {
        /// The name.
        name: String,
        /// Why.
        error: SessionError,
    },
    /// It has no port, or nothing before it.
    #[error("`{0}` cannot be looked up: HOST:PORT or SERVICE:PORT is wanted")]
    Form(String),
    /// Neither the cluster nor the system has it.
    #[error(
        "`{name}` is no service or host of the cluster, and the system does not know it ({system}): {}",
        next(directories)
    )]
    Unknown {
        /// The name.
        name: String,
        /// Where the daemon looked.
        directories: Vec<DirectoryRow>,
        /// What the system said.
        system: io::Error,
    },
}

debug_says_the_words!(LookupError);

/// What to do where a name is not found.
fn next(directories: &[DirectoryRow]) -> String {
    let of = |row: &DirectoryRow| Some(format!("{}: {}", row.source, row.error.as_ref()?));
    let silent: Vec<String> = directories.iter().filter_map(of).collect();
    match (directories.is_empty(), silent.is_empty()) {
        (true, _) => {
            "the daemon's configuration has no [cluster] that names its hosts (docs/operate/clusters.md)".to_owned()
        }
        (false, true) => "`raas cluster` lists all names".to_owned(),
        (false, false) => format!("`raas cluster` lists all names, and {}", silent.join("; ")),
    }
}

impl LookupError {
    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Form(_) => io::ErrorKind::InvalidInput,
            Self::Session { .. } | Self::Unknown { .. } => io::ErrorKind::NotFound,
        }
    }
}

impl From<LookupError> for io::Error {
    fn from(e: LookupError) -> Self {
        Self::new(e.kind(), e)
    }
}

impl Session {
    /// The addresses that `NAME:PORT` stands for, to be tried in turn; one at least. A name is that of a service or a
    /// host of the cluster, as this session's daemon knows them, else one that the system knows. Each call begins with
    /// another host of a service, so that callers spread over them.
    ///
    /// It may wait for the daemon, and for the system's resolver.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), raas::Error> {
    /// let session = raas::Session::global()?;
    /// let store = session.lookup("store:7000")?;
    /// let messages = raas::MessageStream::connect_with(&session, &*store, raas::ConnectOptions::new())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lookup(&self, target: &str) -> Result<Vec<SocketAddr>, LookupError> {
        resolve(Some(self.socket()), target)
    }
}

impl Stream {
    /// Connects, in the process-wide session, to the first host of a service that answers: `NAME:PORT`, looked up as by
    /// [`Session::lookup`]. A name that stands for nothing is [`ConnectError::Resolve`] with a [`LookupError`] inside.
    pub fn connect_named(target: &str) -> Result<Self, ConnectError> {
        ConnectOptions::new().connect_named(&Session::global()?, target)
    }
}

impl ConnectOptions {
    /// As [`Stream::connect_named`], with these settings and in a session of the caller's.
    pub fn connect_named(&self, session: &Session, target: &str) -> Result<Stream, ConnectError> {
        let found = session.lookup(target).map_err(|e| ConnectError::Resolve(e.into()))?;
        self.connect(session, &*found)
    }
}

/// As [`Session::lookup`], for those who have no session: `socket` as in [`inspect::connections`]. Without a daemon the
/// system alone is asked.
pub fn resolve(socket: Option<&Path>, target: &str) -> Result<Vec<SocketAddr>, LookupError> {
    if let Ok(address) = target.parse() {
        return Ok(vec![address]);
    }
    let form = || LookupError::Form(target.to_owned());
    let (name, port) = target.rsplit_once(':').ok_or_else(form)?;
    let port: u16 = port.parse().map_err(|_| form())?;
    if name.is_empty() || name.contains(':') {
        return Err(form());
    }
    let asked = inspect::find(socket, name);
    if let Ok((addresses, _)) = &asked
        && !addresses.is_empty()
    {
        return Ok(addresses.iter().map(|address| SocketAddr::new(*address, port)).collect());
    }
    let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let system = (name, port).to_socket_addrs().map(Vec::from_iter);
    match system.and_then(|found| if found.is_empty() { Err(none()) } else { Ok(found) }) {
        Ok(found) => Ok(found),
        Err(system) => Err(match asked {
            Ok((_, directories)) => LookupError::Unknown { name: name.to_owned(), directories, system },
            Err(error) => LookupError::Session { name: name.to_owned(), error },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(source: &str, error: Option<&str>) -> DirectoryRow {
        let (source, error) = (source.to_owned(), error.map(str::to_owned));
        DirectoryRow { source, asked: Vec::new(), hosts: 0, answered_seconds: None, failed_seconds: None, error }
    }

    #[test]
    fn addresses_are_nobodys_to_tell_and_names_need_a_port() {
        let nowhere = Some(Path::new("/nonexistent/socket"));
        assert_eq!(resolve(nowhere, "[::1]:7").unwrap(), ["[::1]:7".parse().unwrap()]);
        for bad in ["", "store", ":7", "store:", "store:x", "store:70000", "a:b:7", "::1"] {
            assert!(matches!(resolve(nowhere, bad), Err(LookupError::Form(_))), "{bad}");
        }
    }

    #[test]
    fn without_a_daemon_the_system_is_asked_and_the_error_names_both() {
        let nowhere = Some(Path::new("/nonexistent/socket"));
        assert!(resolve(nowhere, "localhost:7").unwrap().iter().all(|at| at.ip().is_loopback() && at.port() == 7));
        let error = resolve(nowhere, "no-such-name.invalid:7").unwrap_err();
        let words = error.to_string();
        assert!(words.contains("no-such-name.invalid") && words.contains("/nonexistent/socket"), "{words}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_error_says_what_to_do_next() {
        let words = |directories| {
            let system = io::Error::other("unknown");
            LookupError::Unknown { name: "store".into(), directories, system }.to_string()
        };
        assert!(words(vec![]).contains("no [cluster]"));
        let known = words(vec![row("static", None)]);
        assert!(
            known.contains("`store` is no service") && known.ends_with("(unknown): `raas cluster` lists all names"),
            "{known}"
        );
        let silent = words(vec![row("static", None), row("etcd", Some("http://a does not answer"))]);
        assert!(silent.ends_with("and etcd: http://a does not answer"), "{silent}");
    }
}
