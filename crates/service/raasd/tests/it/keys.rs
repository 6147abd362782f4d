//! Keys that change while daemons run, and what one without the key can do to a link.

use std::io::Read;
use std::path::PathBuf;

use raas::{Listener, Reason, Stream, StreamError};

use crate::hosts::{Host, PATIENCE, bounded, check_echo, eventually};
use crate::middle::{Tamper, Tamperer};

/// Writes a key beside the host's, and names the files that it has from now on.
fn give_keys(host: &Host, files: &[(&str, u8)]) {
    use std::os::unix::fs::PermissionsExt;
    for (name, byte) in files {
        let path = host.dir.path().join(name);
        std::fs::write(&path, [*byte; 32]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let path = |name: &str| format!("{:?}", host.dir.path().join(name));
    let further: Vec<String> = files[1..].iter().map(|(name, _)| path(name)).collect();
    let text = format!(
        "listen = \"{}\"\nsocket = {:?}\nkey_file = {}\naccept_key_files = [{}]\ntcp_direct = \"off\"\n",
        host.address(),
        host.config.socket,
        path(files[0].0),
        further.join(", "),
    );
    std::fs::write(configuration(host), text).unwrap();
}

fn configuration(host: &Host) -> PathBuf {
    host.dir.path().join("raasd.toml")
}

fn start(files: &[(&str, u8)]) -> Host {
    let mut host = Host::new();
    give_keys(&host, files);
    host.config = raasd::Config::load(Some(&configuration(&host)), &raasd::Flags::default()).unwrap();
    host.start();
    host
}

/// Whether a new link between the two comes up; their last one is ended before.
fn meets(from: &mut Host, to: &Host) -> Result<(), Option<Reason>> {
    let port = to.echo(&to.session());
    match Stream::connect_with(&from.session(), (to.address(), port)) {
        Ok(stream) => {
            check_echo(stream, 1000, 3);
            Ok(())
        }
        Err(error) => Err(error.reason()),
    }
}

/// The three steps of docs/operate/encryption.md, with a connection that lives through all of them, and new daemons that come
/// in each.
#[test]
fn the_key_of_a_cluster_changes_without_a_restart() {
    bounded(|| {
        let (old, new) = (("old", 1), ("new", 2));
        let (mut a, b) = (start(&[old]), start(&[old]));
        let server = b.session();
        let listener = Listener::bind_with(&server, (b.address(), 0)).unwrap();
        let client = a.session();
        let mut living = Stream::connect_with(&client, listener.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = listener.accept_timeout(PATIENCE).unwrap();
        living.set_read_timeout(Some(PATIENCE)).unwrap();
        for (step, files) in [&[old, new][..], &[new, old], &[new]].into_iter().enumerate() {
            for host in [&a, &b] {
                give_keys(host, files);
                host.daemon.as_ref().unwrap().reload();
            }
            // Hosts that are a step behind, and up to date, dial and are dialed.
            for files in [[&[old][..], &[old, new], &[new, old]][step], files] {
                let mut other = start(files);
                eventually("a new host reaches this one", || meets(&mut other, &b).is_ok());
                drop(other);
                let third = start(files);
                eventually("this one reaches a new host", || meets(&mut a, &third).is_ok());
            }
            use std::io::Write;
            accepted.write_all(&[step as u8; 100]).unwrap();
            let mut got = [9; 100];
            living.read_exact(&mut got).unwrap();
            assert_eq!(got, [step as u8; 100]);
        }
        // The old key is over.
        let mut late = start(&[old]);
        assert_eq!(meets(&mut late, &b), Err(Some(Reason::PeerAuth)));
    });
}

#[test]
fn keys_that_cannot_be_read_leave_those_of_before() {
    bounded(|| {
        let a = start(&[("old", 1)]);
        std::fs::remove_file(a.dir.path().join("old")).unwrap();
        a.daemon.as_ref().unwrap().reload();
        std::fs::write(configuration(&a), "key_file = 7").unwrap();
        a.daemon.as_ref().unwrap().reload();
        let mut b = start(&[("old", 1)]);
        meets(&mut b, &a).unwrap();
    });
}

const ATTACKS: [(&str, Tamper); 6] = [
    ("a changed byte", |mut frame| {
        let at = frame.len() / 2;
        frame[at] ^= 4;
        (vec![frame], false)
    }),
    ("a repeated frame", |frame| (vec![frame.clone(), frame], false)),
    ("a cut frame", |frame| (vec![frame[..frame.len() - 1].to_vec()], false)),
    ("a frame of the middle's own", |frame| (vec![vec![0; 40], frame], false)),
    ("no seal", |_| (vec![control::encode(&control::PeerMessage::Heartbeat).unwrap()], false)),
    ("the end of the connection", |frame| (vec![frame], true)),
];

/// One on the path without the key: whatever it does ends the link, and does nothing else.
#[test]
fn who_changes_frames_on_the_way_ends_the_link_and_no_more() {
    bounded(|| {
        for (what, attack) in ATTACKS {
            let (mut a, mut b) = (Host::new(), Host::new());
            for host in [&mut a, &mut b] {
                host.config.heartbeat =
                    raasd::Heartbeat { interval: std::time::Duration::from_millis(100), misses: 1000 };
                // What the end of a link costs is seen at once.
                host.config.set_limit("peer_return_ms", 0).unwrap();
            }
            b.start();
            let tamperer = Tamperer::between(&mut a, &b);
            a.start();
            let (client, server) = (a.session(), b.session());
            let listener = Listener::bind_with(&server, (b.address(), 0)).unwrap();
            let mut stream = Stream::connect_with(&client, listener.local_addr().unwrap()).unwrap();
            let (mut accepted, _) = listener.accept_timeout(PATIENCE).unwrap();
            tamperer.strike(attack);
            // Both daemons know it then: one that did not would call the next link a duplicate, to be dialed again.
            for end in [&mut stream, &mut accepted] {
                end.set_read_timeout(Some(PATIENCE)).unwrap();
                let error = end.read(&mut [0]).unwrap_err();
                assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerLost), "{what}: {error}");
            }
            let port = b.echo(&server);
            check_echo(Stream::connect_with(&client, (b.address(), port)).unwrap(), 1000, 1);
            assert_eq!(tamperer.links(), 2, "{what}");
        }
    });
}

/// What daemons tell each other is not to be read on the way: here the name of a region.
#[test]
fn a_listener_on_the_path_reads_nothing() {
    bounded(|| {
        let (mut a, mut b) = (Host::new(), Host::new());
        b.start();
        let tamperer = Tamperer::between(&mut a, &b);
        a.start();
        let name = "a-name-that-nobody-else-has";
        let refused = raas::Region::open(&a.session(), b.address(), name, raas::RegionKey::new([7; 16]));
        assert!(refused.is_err());
        let heard = tamperer.heard();
        assert!(heard.len() > 500, "{} bytes passed", heard.len());
        let found = |what: &[u8]| heard.windows(what.len()).any(|window| window == what);
        assert!(!found(name.as_bytes()) && !found(&[7; 16]));
        // The release of the two is in the clear, so the search finds what is there.
        assert!(found(env!("CARGO_PKG_VERSION").as_bytes()));
    });
}
