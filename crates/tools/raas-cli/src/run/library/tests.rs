//! Where the library is written, and what is refused there.

use std::os::unix::fs::symlink;

use super::*;

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn the_binary_has_a_library_of_this_machine() {
    let bytes = bytes::<1>();
    assert_eq!(bytes[..4], *b"\x7fELF");
    let own = std::fs::read("/proc/self/exe").unwrap();
    assert_eq!(bytes[4..6], own[4..6], "word size and byte order");
    assert_eq!(bytes[18..20], own[18..20], "processor");
}

#[test]
fn the_file_is_written_once_and_mended() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("cache/raas");
    let path = place(&dir, user(), b"library").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"library");
    let written = std::fs::metadata(&path).unwrap();
    assert_eq!(place(&dir, user(), b"library").unwrap(), path);
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), written.ino(), "not written again");
    assert_ne!(place(&dir, user(), b"another").unwrap(), path);
    std::fs::write(&path, b"planted").unwrap();
    assert_eq!(place(&dir, user(), b"library").unwrap(), path);
    assert_eq!(std::fs::read(&path).unwrap(), b"library");
    set_mode(&path, 0o666);
    place(&dir, user(), b"library").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o644, "others could have written it");
    let elsewhere = home.path().join("elsewhere");
    std::fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    place(&dir, user(), b"library").unwrap();
    assert!(std::fs::symlink_metadata(&path).unwrap().is_file(), "a link is replaced");
}

#[test]
fn a_directory_that_others_can_change_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("raas");
    std::fs::create_dir(&dir).unwrap();
    set_mode(&dir, 0o777);
    place(&dir, user(), b"library").unwrap_err();
    set_mode(&dir, 0o700);
    place(&dir, user(), b"library").unwrap();
    place(&dir, user() + 1, b"library").unwrap_err();
    set_mode(home.path(), 0o777);
    place(&dir, user(), b"library").unwrap_err();
    set_mode(home.path(), 0o700);
    let link = home.path().join("link");
    symlink(&dir, &link).unwrap();
    place(&link, user(), b"library").unwrap_err();
    place(&home.path().join("with space/raas"), user(), b"library").unwrap_err();
}

#[test]
fn old_files_go() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("raas");
    let [old, recent] = [&b"old"[..], b"recent"].map(|bytes| place(&dir, user(), bytes).unwrap());
    let other = dir.join("raasd.sock");
    std::fs::write(&other, "").unwrap();
    let long_ago = SystemTime::now() - KEPT - Duration::from_secs(60);
    for path in [&old, &other] {
        std::fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }
    let new = place(&dir, user(), b"new").unwrap();
    assert_eq!([&old, &recent, &other, &new].map(|path| path.exists()), [false, true, true, true]);
}

#[test]
fn the_places_in_their_order() {
    let all = |name: &str| match name {
        "HOME" => Some("/home/a".into()),
        "XDG_RUNTIME_DIR" => Some("/run/user/7".into()),
        _ => None,
    };
    let of = |user, variable: &dyn Fn(&str) -> Option<PathBuf>| {
        places(user, variable).iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(of(7, &all), ["/home/a/.cache/raas", "/run/user/7/raas", "/tmp/raas-7"]);
    assert_eq!(of(0, &all)[..2], ["/var/cache/raas", "/home/a/.cache/raas"]);
    assert_eq!(of(7, &|_| None), ["/tmp/raas-7"]);
    assert_eq!(of(7, &|name| (name == "HOME").then(|| "relative".into())), ["/tmp/raas-7"]);
    let cache = |name: &str| (name == "XDG_CACHE_HOME").then(|| PathBuf::from("/c"));
    assert_eq!(of(0, &cache), ["/c/raas", "/var/cache/raas", "/tmp/raas-0"]);
}
