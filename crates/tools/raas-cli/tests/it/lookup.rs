//! An ordinary user finds the daemon of the host, learns what stands in the way, and is not deceived by a stranger. In
//! namespaces of its own, whose /run and /tmp are empty and whose daemons nobody else sees, so that nothing of this machine is seen or touched.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::rig::{Cluster, Running, address};

/// Nobody's number on every Linux.
const NOBODY: u32 = 65_534;
/// A group of no host's list.
const GROUP: u32 = 54_321;

/// A shell script in a mount namespace with empty /run and /tmp, run as root. The place of the binary and the key
/// stays.
fn host(cluster: &Cluster, script: &str) -> Command {
    let place = cluster.dir.path();
    std::fs::set_permissions(place, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Where the binary was built may be closed to others.
    std::fs::copy(env!("CARGO_BIN_EXE_raas"), place.join("raas")).unwrap();
    let text = format!(
        "set -e\nip link set lo up\nmkdir -p /mnt/place\nmount -t tmpfs none /mnt\nmkdir /mnt/place\nmount --bind '{place}' /mnt/place\n\
         mount -t tmpfs none /run\nmount -t tmpfs -o mode=1777 none /tmp\n\
         cd /\nR=/mnt/place/raas\nuser() {{ setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups env HOME=/ \"$@\"; }}\n\
         member() {{ setpriv --reuid {NOBODY} --regid {NOBODY} --groups {GROUP} \"$@\"; }}\n\
         serve() {{ : >/mnt/out; \"$@\" >/mnt/out & P=\"$P $!\"; until grep -q ready /mnt/out; do kill -0 $!; sleep 0.02; done; }}\n\
         trap 'kill $P; wait' EXIT\n{script}",
        place = place.display(),
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "sh", "-c", &text]);
    for name in ["RAAS_SOCKET", "XDG_RUNTIME_DIR", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Only root can be two users.
fn can(name: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    let is_there = |tool: &&str| ["/usr/bin", "/usr/sbin", "/sbin"].iter().any(|at| Path::new(at).join(tool).exists());
    let tools = ["unshare", "setpriv", "ip"].iter().all(is_there);
    if !root || !tools {
        eprintln!("SKIP {name}: only root, with unshare, setpriv and ip, can be two users here");
    }
    root && tools
}

fn told(cluster: &Cluster, script: &str) -> String {
    let ended = Running::start(&mut host(cluster, script)).end();
    assert_eq!(ended.code(), 0, "{ended:?}");
    ended.stdout + &ended.stderr
}

#[test]
fn an_ordinary_user_finds_the_daemon_of_the_host() {
    if !can("an_ordinary_user_finds_the_daemon_of_the_host") {
        return;
    }
    let cluster = Cluster::new();
    let ip = address();
    let text = told(
        &cluster,
        &format!(
            "printf 'listen = \"{ip}\"\\nsocket_mode = \"0666\"\\n' > /mnt/config\n\
             serve $R daemon --config /mnt/config --key-file /mnt/place/key\n\
             cat /mnt/out\n\
             user $R ss\n\
             user env XDG_RUNTIME_DIR=/run/user/1 $R doctor\n\
             mkdir -m 755 /tmp/raas-{NOBODY}\n\
             user $R stat | head -1\n"
        ),
    );
    for part in [
        "ready socket=/run/raas/raasd.sock",
        "WHY",
        "/run/user/1/raas/raasd.sock: nobody serves there (No such file",
        &format!("/tmp/raas-{NOBODY}/raasd.sock: nobody serves there"),
        "/run/raas/raasd.sock: a daemon serves there",
        "device",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_user_who_is_not_let_in_hears_of_modes_and_groups() {
    if !can("a_user_who_is_not_let_in_hears_of_modes_and_groups") {
        return;
    }
    let cluster = Cluster::new();
    let ip = address();
    let text = told(
        &cluster,
        &format!(
            "serve $R daemon --listen {ip} --key-file /mnt/place/key\n\
             user $R ss || echo CODE $?\n\
             chmod 755 /run/raas; user $R ss || echo CODE $?\n\
             chgrp {GROUP} /run/raas/raasd.sock; chmod 660 /run/raas/raasd.sock; user $R ss || echo CODE $?\n\
             user $R doctor --json || echo CODE $?\n\
             member $R ss\n"
        ),
    );
    for part in [
        "the directory of the daemon's socket /run/raas/raasd.sock does not let you in",
        "(mode 0600) lets only its own user in: the daemon's configuration must let a group of yours in, with `socket_mode = \"0660\"` and `socket_group",
        &format!("(mode 0660, group {GROUP}) does not let you in: join its group (as root: `usermod -aG {GROUP} USER`"),
        "CODE 4",
        "WHY",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(text.matches("CODE 4").count(), 4, "{text}");
    assert!(!text.contains("raas: no RaaS daemon"), "{text}");
}

#[test]
fn a_stranger_in_the_public_directory_is_passed_over() {
    if !can("a_stranger_in_the_public_directory_is_passed_over") {
        return;
    }
    let cluster = Cluster::new();
    let (strange, ip) = (address(), address());
    let text = told(
        &cluster,
        &format!(
            "other() {{ exec setpriv --reuid 1234 --regid 1234 --clear-groups \"$@\"; }}\n\
             mkdir /mnt/strange; cp /mnt/place/key /mnt/strange/key; chown -R 1234 /mnt/strange\n\
             mkdir -m 755 /tmp/raas-{NOBODY}; chown 1234 /tmp/raas-{NOBODY}\n\
             printf 'listen = \"{strange}\"\\nsocket = \"/tmp/raas-{NOBODY}/raasd.sock\"\\nsocket_mode = \"0666\"\\n' > /mnt/config1\n\
             serve other $R daemon --config /mnt/config1 --key-file /mnt/strange/key\n\
             user $R stat --json || echo CODE $?\n\
             printf 'listen = \"{ip}\"\\nsocket_mode = \"0666\"\\npeer_port = 4799\\n' > /mnt/config2\n\
             serve $R daemon --config /mnt/config2 --key-file /mnt/place/key\n\
             user $R doctor\n"
        ),
    );
    assert!(text.contains("is served by user 1234, not by you or root"), "{text}");
    assert!(text.contains("CODE 4"), "{text}");
    assert!(text.contains("serves /run/raas/raasd.sock"), "{text}");
}

/// Of a directory or a socket without a daemon nobody hears but that one is to be started, at every door.
#[test]
fn what_a_daemon_left_behind_hides_nothing() {
    if !can("what_a_daemon_left_behind_hides_nothing") {
        return;
    }
    let cluster = Cluster::new();
    let ip = address();
    let text = told(
        &cluster,
        &format!(
            "tell() {{ for c in ss 'run --strict true' 'send /dev/null 127.0.0.1:1'; do user $R $c && exit 1; echo $1 $?; done; }}\n\
             mkdir -m 700 /run/raas\n\
             tell DIRECTORY\n\
             user $R doctor --json || echo DOCTOR $?\n\
             rmdir /run/raas\n\
             serve $R daemon --listen {ip} --key-file /mnt/place/key\n\
             chmod 755 /run/raas; user $R ss || echo SERVED $?\n\
             kill -9 $!; wait $! || true; P=; ls -l /run/raas/raasd.sock\n\
             tell SOCKET\n\
             chmod 700 /run/raas\n\
             tell BOTH\n\
             trap - EXIT\n"
        ),
    );
    for what in ["DIRECTORY 3", "SOCKET 3", "BOTH 3"] {
        assert_eq!(text.matches(what).count(), 3, "{what}: {text}");
    }
    assert!(text.contains("DOCTOR 3") && text.contains("SERVED 4"), "{text}");
    // Once for each, and doctor's finding, which has its own words.
    assert!(text.matches("start one with `raas daemon`").count() >= 9, "{text}");
}

/// The quick start of a second user, whose address is the first one's.
#[test]
fn a_second_user_hears_of_the_daemon_that_is_there() {
    if !can("a_second_user_hears_of_the_daemon_that_is_there") {
        return;
    }
    let cluster = Cluster::new();
    let ip = address();
    let text = told(
        &cluster,
        &format!(
            "other() {{ setpriv --reuid 1234 --regid 1234 --clear-groups env HOME=/ \"$@\"; }}\n\
             first() {{ exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups env HOME=/ \"$@\"; }}\n\
             serve first $R daemon --listen {ip}\n\
             other $R daemon --listen {ip} && exit 1; echo CODE $?\n\
             kill $P; wait $P || true; P=\n\
             printf 'listen = \"{ip}\"\\nsocket_mode = \"0666\"\\n' > /mnt/config\n\
             serve $R daemon --config /mnt/config --key-file /mnt/place/key\n\
             other $R daemon --listen {ip} && exit 1; echo CODE $?\n"
        ),
    );
    assert_eq!(text.matches("CODE 1").count(), 2, "{text}");
    let closed =
        format!("the daemon at /tmp/raas-{NOBODY}/raasd.sock (user {NOBODY}) has it: use that one, with --socket");
    assert!(text.contains(&closed), "{text}");
    assert!(text.contains("the daemon at /run/raas/raasd.sock (user 0, process "), "{text}");
    assert_eq!(text.matches("give this one an address of its own, such as --listen 127.0.0.").count(), 2, "{text}");
}

/// A place where this user cannot serve is found by a check, and by a start with the same words.
#[test]
fn a_place_that_is_not_the_users_is_found_by_a_check() {
    if !can("a_place_that_is_not_the_users_is_found_by_a_check") {
        return;
    }
    let cluster = Cluster::new();
    let ip = address();
    let text = told(
        &cluster,
        &format!(
            "judge() {{ for c in --check ''; do user $R daemon --listen {ip} $c --socket $1 && exit 1; echo CODE $?; done; }}\n\
             chmod 755 /run; mkdir /run/a; judge /run/a/raasd.sock\n\
             judge /run/new/raasd.sock\n\
             mkdir /run/b; chown 1234 /run/b; judge /run/b/raasd.sock\n\
             : > /tmp/s.lock; chmod 644 /tmp/s.lock; judge /tmp/s\n\
             trap - EXIT\n"
        ),
    );
    assert_eq!(text.matches("CODE 1").count(), 8, "{text}");
    for part in
        ["/run/a", "its directory cannot be made", "/run/b belongs to user 1234", "its lock file cannot be opened"]
    {
        assert!(text.matches(part).count() >= 2, "{part}: {text}");
    }
}
