//! Where the daemon's socket lies: one rule for the daemon, the library and the command.
//!
//! Owns the order of the places: the one where a daemon serves, and those where a program looks. It must never create
//! or look at a file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Environment variable that names the socket.
pub const SOCKET_VARIABLE: &str = "RAAS_SOCKET";

/// Where the daemon of the whole host serves, which root or a system service starts.
const SYSTEM: &str = "/run/raas/raasd.sock";

/// The socket that a daemon serves: `explicit` (from `--socket` or a builder), else `$RAAS_SOCKET`, else
/// `$XDG_RUNTIME_DIR/raas/raasd.sock`, else `/run/raas/raasd.sock` for root and `/tmp/raas-$UID/raasd.sock` for others.
pub fn socket_path(explicit: Option<&Path>) -> PathBuf {
    socket_path_from(explicit, |name| std::env::var_os(name), rustix::process::getuid().as_raw())
}

/// As [`socket_path`], with environment and user as arguments. Empty variables count as absent.
pub fn socket_path_from(explicit: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>, uid: u32) -> PathBuf {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    if let Some(path) = explicit {
        path.to_path_buf()
    } else if let Some(path) = set(SOCKET_VARIABLE) {
        PathBuf::from(path)
    } else if let Some(runtime) = set("XDG_RUNTIME_DIR") {
        Path::new(&runtime).join("raas/raasd.sock")
    } else if uid == 0 {
        PathBuf::from(SYSTEM)
    } else {
        of_user(uid)
    }
}

fn of_user(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/raas-{uid}/raasd.sock"))
}

/// Where a program looks for the daemon, in this order: only at `explicit` if it is given, else only at `$RAAS_SOCKET`
/// if it is set, else at each place where a daemon of this user or of the whole host may serve:
/// `$XDG_RUNTIME_DIR/raas/raasd.sock`, `/tmp/raas-$UID/raasd.sock` (not for root), `/run/raas/raasd.sock`.
pub fn socket_places(explicit: Option<&Path>) -> Vec<PathBuf> {
    socket_places_from(explicit, |name| std::env::var_os(name), rustix::process::getuid().as_raw())
}

/// As [`socket_places`], with environment and user as arguments. Empty variables count as absent.
pub fn socket_places_from(
    explicit: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
    uid: u32,
) -> Vec<PathBuf> {
    let named = explicit.is_some() || variable(SOCKET_VARIABLE).is_some_and(|value| !value.is_empty());
    let mut places = vec![socket_path_from(explicit, variable, uid)];
    if !named {
        places.extend((uid != 0).then(|| of_user(uid)));
        places.push(PathBuf::from(SYSTEM));
        places.dedup();
    }
    places
}

/// Whether any user of the host could have made this place for user `uid`. Then the program must check which user
/// serves it.
pub fn is_in_public_directory(path: &Path, uid: u32) -> bool {
    path == of_user(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_in_their_order() {
        let both = |name: &str| match name {
            "RAAS_SOCKET" => Some("/a/s".into()),
            "XDG_RUNTIME_DIR" => Some("/run/user/7".into()),
            _ => None,
        };
        let runtime = |name: &str| both(name).filter(|_| name == "XDG_RUNTIME_DIR");
        let empty = |_: &str| Some(OsString::new());
        assert_eq!(socket_path_from(Some(Path::new("/x")), both, 7), Path::new("/x"));
        assert_eq!(socket_path_from(None, both, 7), Path::new("/a/s"));
        assert_eq!(socket_path_from(None, runtime, 7), Path::new("/run/user/7/raas/raasd.sock"));
        assert_eq!(socket_path_from(None, empty, 0), Path::new("/run/raas/raasd.sock"));
        assert_eq!(socket_path_from(None, |_| None, 7), Path::new("/tmp/raas-7/raasd.sock"));
    }

    #[test]
    fn a_program_looks_where_daemons_may_serve() {
        let none = |_: &str| None;
        let runtime = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| OsString::from("/run/user/7"));
        let named = |name: &str| (name == SOCKET_VARIABLE).then(|| OsString::from("/a/s"));
        let (of_session, system) = ("/run/user/7/raas/raasd.sock", "/run/raas/raasd.sock");
        let places = |variable: &dyn Fn(&str) -> Option<OsString>, uid| -> Vec<String> {
            let places = socket_places_from(None, variable, uid);
            places.iter().map(|place| place.display().to_string()).collect()
        };
        assert_eq!(places(&none, 7), ["/tmp/raas-7/raasd.sock", system]);
        assert_eq!(places(&runtime, 7), [of_session, "/tmp/raas-7/raasd.sock", system]);
        assert_eq!(places(&none, 0), [system]);
        assert_eq!(places(&runtime, 0), [of_session, system]);
        assert_eq!(places(&named, 7), ["/a/s"]);
        assert_eq!(socket_places_from(Some(Path::new("/x")), named, 7), [Path::new("/x")]);
        // Where a daemon serves is always the first place.
        for (variable, uid) in [(&none as &dyn Fn(&str) -> Option<OsString>, 7), (&runtime, 7), (&none, 0), (&named, 7)]
        {
            assert_eq!(places(variable, uid)[0], socket_path_from(None, variable, uid).display().to_string());
        }
        assert!(is_in_public_directory(Path::new("/tmp/raas-7/raasd.sock"), 7));
        assert!(!is_in_public_directory(Path::new(system), 7) && !is_in_public_directory(Path::new(system), 0));
    }
}
