//! Finding the daemon: looks at each place where one may serve this user.
//!
//! Owns what is made of the places of [`control::socket_places`]. It must never choose a socket in a directory that
//! anybody could have made, unless this user or root serves it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::control_socket::knock;
use crate::error::SessionError;

/// The socket of the first daemon that serves this user. A place that was named is not checked: a program that attaches
/// to it learns what is wrong there. `timeout` bounds the whole search.
pub(crate) fn find(named: Option<&Path>, timeout: Duration) -> Result<PathBuf, SessionError> {
    let places = control::socket_places(named);
    if let [only] = places.as_slice() {
        return Ok(only.clone());
    }
    let deadline = Instant::now() + timeout;
    let mut failures = Vec::new();
    for path in places {
        match knock(&path, deadline) {
            Ok(_) => return Ok(path),
            Err(e @ (SessionError::NoDaemon { .. } | SessionError::Denied { .. } | SessionError::Impostor { .. })) => {
                failures.push(e);
            }
            Err(e) => return Err(e),
        }
    }
    Err(together(failures))
}

/// What lies at each place where [`find`] would look.
pub(crate) fn look(named: Option<&Path>, timeout: Duration) -> Vec<(PathBuf, Result<(), SessionError>)> {
    let deadline = Instant::now() + timeout;
    let tried = |path: PathBuf| {
        let found = knock(&path, deadline).map(drop);
        (path, found)
    };
    control::socket_places(named).into_iter().map(tried).collect()
}

/// One error for all places: a daemon that does not let this user in says most, then a socket of another user.
fn together(failures: Vec<SessionError>) -> SessionError {
    let denied = |e: &&SessionError| matches!(e, SessionError::Denied { .. });
    let impostor = |e: &&SessionError| matches!(e, SessionError::Impostor { .. });
    if let Some(telling) = failures.iter().find(denied).or_else(|| failures.iter().find(impostor)) {
        return telling.clone();
    }
    let mut places = failures.into_iter().filter_map(|e| match e {
        SessionError::NoDaemon { path, cause } => Some((path, cause)),
        _ => None,
    });
    let (path, mut all) = places.next().unwrap_or_default();
    for (other, cause) in places {
        all.push_str(&format!("; nor at {} ({cause})", other.display()));
    }
    SessionError::NoDaemon { path, cause: all }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_telling_failure_is_told_and_else_all_places() {
        let none = |path: &str| SessionError::NoDaemon { path: path.into(), cause: "no such file".into() };
        let denied = SessionError::Denied { path: "/run/d".into(), mode: Some(0o660), group: Some("rdma".into()) };
        let impostor = SessionError::Impostor { path: "/tmp/d".into(), uid: 7 };
        let words = together(vec![none("/a"), none("/b"), none("/c")]).to_string();
        assert!(words.contains("at /a (no such file; nor at /b (no such file); nor at /c (no such file))"), "{words}");
        assert!(matches!(together(vec![none("/a"), impostor.clone()]), SessionError::Impostor { .. }));
        assert!(matches!(together(vec![impostor, none("/a"), denied]), SessionError::Denied { .. }));
    }

    #[test]
    fn a_named_place_is_the_only_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert_eq!(find(Some(&path), Duration::from_secs(60)).unwrap(), path);
        let seen = look(Some(&path), Duration::from_secs(60));
        assert!(matches!(seen.as_slice(), [(at, Err(SessionError::NoDaemon { .. }))] if *at == path), "{seen:?}");
    }
}
