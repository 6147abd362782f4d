//! Lanes between daemons that are encrypted, in the clear, or refused.

use control::{PeerMessage, Reason};
use raas::{Region, RegionKey, RegionOptions, Stream};
use sha2::{Digest, Sha256};
use softnic::RecordLimit;
use verbs::{Encrypt, Wire, WirePolicy};

use crate::hosts::{Host, PATIENCE, bounded, check_echo, pattern};
use crate::middle::{Change, Middle};

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
            ((Preferred, auto), (Preferred, roce), Ok(true)),
            ((Required, auto), (Off, auto), refused),
            ((Off, auto), (Required, auto), refused),
            ((Required, auto), (Preferred, roce), Ok(true)),
            ((Required, roce), (Preferred, auto), Ok(true)),
            ((Required, roce), (Required, roce), Ok(true)),
            ((Required, roce), (Off, roce), refused),
            ((Off, auto), (Required, roce), refused),
            ((Off, roce), (Preferred, roce), Ok(false)),
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
                assert_eq!(lane.cipher.as_deref(), expected.unwrap().then_some("AES-128-GCM"));
                assert_eq!(lane.keys_age_us.is_some(), expected.unwrap());
                assert!(lane.encryption_reason.as_ref().is_some_and(|why| !why.is_empty()));
            }
        }
    });
}

/// Datagrams beside a lane of either wire are encrypted if both hosts encrypt, and in the clear if neither requires it.
#[test]
fn datagrams_are_encrypted_where_lanes_are() {
    bounded(|| {
        use Encrypt::{Off, Preferred, Required};
        let wires = [Wire::Roce, Wire::Iwarp].map(WirePolicy::Only);
        for (modes, is_encrypted) in
            [([Required, Required], true), ([Required, Preferred], true), ([Off, Preferred], false)]
        {
            for wire in [wires[0], wires[1], WirePolicy::Auto] {
                let [a, b] = modes.map(|mode| host(mode, wire));
                let socket = |host: &Host, port| {
                    let socket = raas::DatagramSocket::bind_with(&host.session(), ("0.0.0.0", port)).unwrap();
                    socket.set_read_timeout(Some(PATIENCE)).unwrap();
                    socket.set_write_timeout(Some(PATIENCE)).unwrap();
                    socket
                };
                let (client, server) = (socket(&a, 0), socket(&b, 7001));
                let at = std::net::SocketAddr::new(b.address(), 7001);
                let max = client.max_payload(at).unwrap();
                let mut buffer = [0; 4096];
                for round in 0..20 {
                    let sent = pattern(if round == 0 { max } else { 100 }, round);
                    client.send_to(&sent, at).unwrap();
                    let (got, from) = server.recv_from(&mut buffer).unwrap();
                    assert!(buffer[..got] == sent);
                    server.send_to(&buffer[..got], from).unwrap();
                    assert_eq!(client.recv_from(&mut buffer).unwrap().0, got);
                }
                for host in [&a, &b] {
                    assert_eq!(host.counter("rx_sealed") >= 20, is_encrypted, "{modes:?} {wire}");
                    assert_eq!(host.dropped("in_the_clear"), 0);
                }
            }
        }
    });
}

/// Where the flags of the part about TCP are behind that about RoCEv2, and the one of who seals packets
/// (docs/inside/control-link.md).
const FLAGS_AT: usize = 34 + 2 + 38;
const FLAG_SEALS_PACKETS: u8 = 64;

/// A release that encrypts streams over TCP alone gets such lanes. Datagrams are in the clear, or there are none.
#[test]
fn with_a_release_that_seals_no_packets_lanes_are_on_tcp_and_no_datagram_leaves_where_encryption_is_required() {
    bounded(|| {
        for mode in [Encrypt::Preferred, Encrypt::Required] {
            let (mut a, mut b) = (Host::new(), Host::new());
            for host in [&mut a, &mut b] {
                (host.config.encrypt, host.config.wire, host.config.engines) = (mode, WirePolicy::Auto, 1);
            }
            b.start();
            let change: Change = Box::new(|_, mut message| {
                if let PeerMessage::LaneOffer(offer) = &mut message {
                    assert_eq!(offer.endpoint[FLAGS_AT] & FLAG_SEALS_PACKETS, FLAG_SEALS_PACKETS);
                    offer.endpoint[FLAGS_AT] &= !FLAG_SEALS_PACKETS;
                }
                message
            });
            let _middle = Middle::that_changes(&mut a, &b, Some(change));
            a.start();
            check_echo(connect(&a, &b).unwrap(), 300_000, 7);
            let lanes = a.stat().lanes;
            let lane = lanes.first().unwrap();
            assert_eq!((lane.encrypted, lane.wire.as_deref()), (Some(true), Some("iwarp")), "{lane:?}");
            let client = raas::DatagramSocket::bind_with(&a.session(), ("0.0.0.0", 0)).unwrap();
            client.set_write_timeout(Some(PATIENCE)).unwrap();
            let told = client.max_payload(std::net::SocketAddr::new(b.address(), 7001));
            assert_eq!(told.is_ok(), mode == Encrypt::Preferred, "{told:?}");
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

/// Records of one key before it is worn.
const WORN_AFTER: u64 = 1024;
/// Most bytes of the stream in a record.
const RECORD_BYTES: usize = 16 * 1024;

/// Sends so many bytes of a pattern; both ends' digests are equal.
fn send_all(client: &raas::Session, server: &raas::Session, address: std::net::IpAddr, bytes: usize) {
    use std::io::{Read, Write};
    let listener = raas::Listener::bind_with(server, ("0.0.0.0", 0)).unwrap();
    let at = (address, listener.local_addr().unwrap().port());
    std::thread::scope(|scope| {
        let received = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let (mut digest, mut all, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
            loop {
                let got = stream.read(&mut buffer).unwrap();
                if got == 0 {
                    return (digest.finalize(), all);
                }
                digest.update(&buffer[..got]);
                all += got;
            }
        });
        let mut stream = Stream::connect_with(client, at).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let (mut digest, mut left, part) = (Sha256::new(), bytes, pattern(1_000_003, 5));
        while left > 0 {
            let part = &part[..part.len().min(left)];
            stream.write_all(part).unwrap();
            digest.update(part);
            left -= part.len();
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let (told, all) = received.join().unwrap();
        assert_eq!(all, bytes);
        assert!(told == digest.finalize(), "other bytes came");
    });
}

/// Whose records are their kernel's: all that can be told apart where the kernel has TLS.
fn kernels() -> Vec<[bool; 2]> {
    let has_tls = std::path::Path::new("/proc/net/tls_stat").exists();
    let of_kernels = [[true, true], [true, false], [false, true]].into_iter().filter(|_| has_tls);
    of_kernels.chain([[false, false]]).collect()
}

fn host_with_short_keys(kernel_tls: bool, until_worn: u64) -> Host {
    let mut host = Host::new();
    (host.config.encrypt, host.config.wire) = (Encrypt::Required, WirePolicy::Only(Wire::Iwarp));
    (host.config.kernel_tls, host.config.engines) = (kernel_tls, 1);
    host.config.record_limit = RecordLimit::lowered_to(until_worn, 64 * until_worn);
    host.start();
    host
}

/// A stream goes on over lanes whose keys are worn again and again, whoever makes the records. It is the same at both ends.
#[test]
fn worn_keys_are_changed_under_a_stream_and_no_change_counts_as_a_fault() {
    // More than sixteen: the bound on faults would end the lane. Kernels with TLS are mostly those of emulated processors here,
    // which need a minute for each hundred megabytes.
    let keys = if kernels().len() == 1 { 18 } else { 4 };
    for kernels in kernels() {
        bounded(move || {
            let hosts = kernels.map(|kernel_tls| host_with_short_keys(kernel_tls, WORN_AFTER));
            let [a, b] = &hosts;
            send_all(&a.session(), &b.session(), b.address(), keys as usize * WORN_AFTER as usize * RECORD_BYTES);
            let renewed: u64 = hosts.iter().map(|host| host.counter("keys_renewed")).sum();
            assert!(renewed >= keys - 1, "{renewed} changes of keys, {kernels:?}");
            for host in &hosts {
                assert_eq!(host.counter("tcp_keys_used_up"), 0, "{kernels:?}");
                assert_eq!(host.counter("lane_failures"), 0, "{kernels:?}");
                let lanes = host.stat().lanes;
                let lane = lanes.first().unwrap();
                assert!(lane.resets >= keys - 1 && lane.encrypted == Some(true), "{lane:?}");
            }
        });
    }
}

/// Operations of both hosts on regions of each other: none of them has an unknown outcome because a key was changed under it.
#[test]
fn operations_end_before_keys_are_changed() {
    const KEY: RegionKey = RegionKey::new([9; 16]);
    const TIMES: u64 = 600;
    for kernels in kernels() {
        bounded(move || {
            let hosts = kernels.map(|kernel_tls| host_with_short_keys(kernel_tls, 150));
            let sessions = [0, 1].map(|host| hosts[host].session());
            let own = [0, 1].map(|n| RegionOptions::new().key(KEY).create(&sessions[n], "count", 4096).unwrap());
            std::thread::scope(|scope| {
                for n in [0, 1] {
                    let (session, owner) = (&sessions[n], hosts[1 - n].address());
                    scope.spawn(move || {
                        let far = Region::open(session, owner, "count", KEY).unwrap();
                        for time in 0..TIMES {
                            far.write(64, &pattern(1000, time as u8)).unwrap();
                            assert_eq!(far.fetch_add(0, 1).unwrap(), time);
                        }
                    });
                }
            });
            assert_eq!(own.map(|region| region.load(0).unwrap()), [TIMES; 2]);
            let renewed: u64 = hosts.iter().map(|host| host.counter("keys_renewed")).sum();
            assert!(renewed >= 5, "{renewed} changes of keys, {kernels:?}");
            assert!(hosts.iter().all(|host| host.counter("tcp_keys_used_up") == 0), "{kernels:?}");
        });
    }
}
