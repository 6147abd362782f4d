//! Where the daemon's socket lies: one rule for the daemon, the library and the command.
//!
//! Owns the order of the places. It must never create or look at a file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Environment variable that names the socket.
pub const SOCKET_VARIABLE: &str = "RAAS_SOCKET";

/// The socket to use: `explicit` (from `--socket` or a builder), else `$RAAS_SOCKET`, else
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
        PathBuf::from("/run/raas/raasd.sock")
    } else {
        PathBuf::from(format!("/tmp/raas-{uid}/raasd.sock"))
    }
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
}
