//! Lanes between daemons that are encrypted, in the clear, or refused.

use control::Reason;
use raas::Stream;
use verbs::{Encrypt, Wire, WirePolicy};

use crate::hosts::{Host, bounded, check_echo};

fn host(encrypt: Encrypt, wire: WirePolicy) -> Host {
    let mut host = Host::new();
    (host.config.encrypt, host.config.wire, host.config.tcp_direct) = (encrypt, wire, true);
    host.start();
    host
}

fn connect(a: &Host, b: &Host) -> Result<Stream, Option<Reason>> {
    let port = b.echo(&b.session());
    Stream::connect_with(&a.session(), (b.address(), port)).map_err(|e| e.reason())
}

#[test]
fn each_pair_of_configurations_is_encrypted_in_the_clear_or_refused_by_name() {
    bounded(|| {
        use Encrypt::{Off, Preferred, Required};
        let (auto, roce) = (WirePolicy::Auto, WirePolicy::Only(Wire::Roce));
        let refused = Err(Some(Reason::NotEncrypted));
        let table = [
            ((Required, auto), (Required, auto), Ok(true)),
            ((Preferred, auto), (Required, auto), Ok(true)),
            ((Preferred, auto), (Preferred, auto), Ok(true)),
            ((Preferred, auto), (Off, auto), Ok(false)),
            ((Preferred, auto), (Preferred, roce), Ok(false)),
            ((Required, auto), (Off, auto), refused),
            ((Off, auto), (Required, auto), refused),
            ((Required, auto), (Preferred, roce), refused),
            ((Required, roce), (Preferred, auto), refused),
        ];
        for (of_a, of_b, expected) in table {
            let (a, b) = (host(of_a.0, of_a.1), host(of_b.0, of_b.1));
            let stream = match (connect(&a, &b), expected) {
                (Ok(stream), Ok(_)) => stream,
                (Err(reason), Err(expected)) => {
                    assert_eq!(reason, expected, "{of_a:?} and {of_b:?}");
                    continue;
                }
                (other, _) => panic!("{of_a:?} and {of_b:?}: {other:?}"),
            };
            check_echo(stream, 300_000, 7);
            for host in [&a, &b] {
                let lanes = host.stat().lanes;
                let lane = lanes.first().unwrap();
                assert_eq!(lane.encrypted, expected.ok(), "{of_a:?} and {of_b:?}");
                assert!(lane.encryption_reason.as_ref().is_some_and(|why| !why.is_empty()));
            }
        }
    });
}

/// A host that others must not speak with in the clear is named, and the others are served as before.
#[test]
fn one_peer_may_be_required_and_streams_of_bulk_stay_on_the_lane() {
    bounded(|| {
        let (plain, secret) = (host(Encrypt::Off, WirePolicy::Auto), host(Encrypt::Preferred, WirePolicy::Auto));
        let mut a = Host::new();
        let required = Some(Encrypt::Required);
        a.config.peers.push(raasd::PeerConfig { encrypt: required, ..raasd::PeerConfig::new(secret.address()) });
        a.config.tcp_direct = true;
        a.start();
        check_echo(connect(&a, &plain).unwrap(), 1000, 1);
        // Longer than what makes a stream one of bulk.
        check_echo(connect(&a, &secret).unwrap(), 24 << 20, 1);
        let lanes = a.stat().lanes;
        let of = |host: &Host| lanes.iter().find(|lane| lane.peer.ip() == host.address()).unwrap();
        assert_eq!((of(&plain).encrypted, of(&secret).encrypted), (Some(false), Some(true)));
        assert!(of(&secret).tx_bytes >= 24 << 20, "{} bytes on the lane", of(&secret).tx_bytes);
    });
}
