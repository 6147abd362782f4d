//! Somebody on the path of an encrypted lane: he has no keys of it, and what he does to its records reaches no program.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use control::{PeerMessage, Reason};
use raas::Stream;
use verbs::{Encrypt, Wire, WirePolicy};

use crate::hosts::{Host, bounded, check_echo};
use crate::middle::{Change, Middle, connect_from};

/// First byte of an endpoint with TCP alone (docs/inside/control-link.md, "Endpoints").
const KIND_TCP: u8 = 3;
/// Where the port of its listener is, where its flags are, and how long it is without a secret.
const PORT_AT: usize = 21;
const FLAGS_AT: usize = 39;
const CLEAR_BYTES: usize = 45;
const FLAG_SECRET_REQUIRED: u8 = 16;
/// Records that pass before he strikes.
const RECORDS_BEFORE: usize = 8;

/// What becomes of two records in a row, and whether the connection goes on.
type Attack = fn(Vec<u8>, Vec<u8>) -> (Vec<u8>, bool);

/// Passes TCP connections of lanes on, keeps what it hears, and strikes once when it is armed.
struct Relay {
    at: SocketAddr,
    /// What to do, and to whose records: true for those of the end that listens.
    armed: Arc<Mutex<Option<(Attack, bool)>>>,
    heard: Arc<Mutex<Vec<u8>>>,
    connections: Arc<AtomicUsize>,
}

impl Relay {
    fn to(source: IpAddr, listener: SocketAddr) -> Self {
        let accepting = TcpListener::bind((listener.ip(), 0)).unwrap();
        let relay = Self {
            at: accepting.local_addr().unwrap(),
            armed: Arc::default(),
            heard: Arc::default(),
            connections: Arc::default(),
        };
        let (armed, heard, connections) =
            (Arc::clone(&relay.armed), Arc::clone(&relay.heard), Arc::clone(&relay.connections));
        std::thread::spawn(move || {
            for near in accepting.incoming() {
                let (near, far) = (near.unwrap(), connect_from(source, listener));
                connections.fetch_add(1, Ordering::SeqCst);
                let clone = |s: &TcpStream| s.try_clone().unwrap();
                for (from, into, of_listener) in [(clone(&near), clone(&far), false), (far, near, true)] {
                    let (armed, heard) = (Arc::clone(&armed), Arc::clone(&heard));
                    std::thread::spawn(move || {
                        // An end that closed is the end.
                        let _ = pass(&from, &into, of_listener, &armed, &heard);
                        for end in [from, into] {
                            let _ = end.shutdown(Shutdown::Both);
                        }
                    });
                }
            }
        });
        relay
    }
}

fn pass(
    mut from: &TcpStream,
    mut into: &TcpStream,
    of_listener: bool,
    armed: &Mutex<Option<(Attack, bool)>>,
    heard: &Mutex<Vec<u8>>,
) -> std::io::Result<()> {
    if !of_listener {
        // MPA's request, which is in the clear: 20 bytes, of which the last two say how many follow.
        let mut request = vec![0; 20];
        from.read_exact(&mut request)?;
        let more = usize::from(u16::from_be_bytes([request[18], request[19]]));
        request.resize(20 + more, 0);
        from.read_exact(&mut request[20..])?;
        into.write_all(&request)?;
    }
    for number in 0_usize.. {
        let first = record(from)?;
        heard.lock().unwrap().extend(&first);
        let attack = armed.lock().unwrap().take_if(|(_, whose)| *whose == of_listener && number >= RECORDS_BEFORE);
        let Some((attack, _)) = attack else {
            into.write_all(&first)?;
            continue;
        };
        let (bytes, goes_on) = attack(first, record(from)?);
        into.write_all(&bytes)?;
        if !goes_on {
            return Ok(());
        }
    }
    Ok(())
}

/// A record: he sees its length.
fn record(mut from: &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 5];
    from.read_exact(&mut bytes)?;
    assert_eq!(bytes[..3], [23, 3, 3], "no record of TLS 1.3");
    let more = usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
    bytes.resize(5 + more, 0);
    from.read_exact(&mut bytes[5..])?;
    Ok(bytes)
}

fn host(encrypt: Encrypt, kernel_tls: bool) -> Host {
    let mut host = Host::new();
    (host.config.encrypt, host.config.wire) = (encrypt, WirePolicy::Only(Wire::Iwarp));
    host.config.kernel_tls = kernel_tls;
    host
}

/// Whose records are their kernel's, where it has TLS.
const KERNELS: [[bool; 2]; 4] = [[true; 2], [true, false], [false, true], [false; 2]];

/// All of a host's connections are encrypted, and by the kernel if it has TLS (by its own statistics) and is asked to.
fn check_who_encrypts(host: &Host) {
    let by_kernel = host.config.kernel_tls && std::path::Path::new("/proc/net/tls_stat").exists();
    let counted = ["tcp_encrypted", "tcp_kernel_opened", "tcp_kernel_sealed"].map(|name| host.counter(name));
    let expected = if by_kernel { counted[0] } else { 0 };
    assert!(counted[0] > 0 && counted[1..] == [expected; 2], "by the kernel: {by_kernel}, {counted:?}");
    let why = host.stat().lanes.first().unwrap().encryption_reason.clone().unwrap();
    assert_eq!(why.contains("by its kernel's TLS"), by_kernel, "{why}");
}

fn connect(a: &Host, b: &Host) -> Result<Stream, Option<Reason>> {
    let port = b.echo(&b.session());
    Stream::connect_with(&a.session(), (b.address(), port)).map_err(|e| e.reason())
}

/// Two hosts between whose lanes the relay is. Only one who has the cluster key can move a lane so; the relay has nothing.
fn with_relay(encrypt: Encrypt, kernels: [bool; 2]) -> (Host, Host, Middle, Relay) {
    // The end with the smaller address connects.
    let (mut a, mut b) = (host(encrypt, kernels[0]), host(encrypt, kernels[1]));
    b.start();
    let relay = Relay::to(a.address(), SocketAddr::new(b.address(), b.config.udp_port));
    let port = relay.at.port();
    let change: Change = Box::new(move |is_acceptors, mut message| {
        if let (true, PeerMessage::LaneOffer(offer)) = (is_acceptors, &mut message) {
            assert_eq!(offer.endpoint[0], KIND_TCP);
            offer.endpoint[PORT_AT..PORT_AT + 2].copy_from_slice(&port.to_be_bytes());
        }
        message
    });
    let middle = Middle::that_changes(&mut a, &b, Some(change));
    a.start();
    (a, b, middle, relay)
}

fn forged(hosts: [&Host; 2]) -> u64 {
    hosts.map(|host| host.counter("tcp_forged")).iter().sum()
}

#[test]
fn records_that_are_flipped_dropped_repeated_reordered_or_cut_reset_the_lane_and_streams_go_on() {
    KERNELS.into_iter().for_each(|kernels| bounded(move || attack_each_way(kernels)));
}

fn attack_each_way(kernels: [bool; 2]) {
    let (a, b, _middle, relay) = with_relay(Encrypt::Required, kernels);
    let attacks: [(&str, Attack, bool); 6] = [
        (
            "flipped",
            |mut first, second| {
                let middle = first.len() / 2;
                first[middle] ^= 1;
                ([first, second].concat(), true)
            },
            true,
        ),
        ("dropped", |_, second| (second, true), true),
        ("repeated", |first, second| ([first.clone(), first, second].concat(), true), true),
        ("reordered", |first, second| ([second, first].concat(), true), true),
        ("cut within a record", |first, _| (first[..first.len() / 2].to_vec(), false), false),
        ("cut between records", |first, _| (first, false), false),
    ];
    for (number, (what, attack, is_forged)) in attacks.into_iter().enumerate() {
        let of_listener = number % 2 == 1;
        let stream = connect(&a, &b).unwrap();
        let (before, connections) = (forged([&a, &b]), relay.connections.load(Ordering::SeqCst));
        // Not before: he keeps a record until the next one comes, and of a connect there may be one alone.
        *relay.armed.lock().unwrap() = Some((attack, of_listener));
        // Whatever arrives is compared with what was sent.
        check_echo(stream, 4 << 20, number as u8);
        assert!(relay.armed.lock().unwrap().is_none(), "{what}: he did not strike");
        assert_eq!(forged([&a, &b]) - before, u64::from(is_forged), "{what} {kernels:?}");
        assert!(relay.connections.load(Ordering::SeqCst) > connections, "{what}: the lane has no new connection");
        let lanes = a.stat().lanes;
        let lane = lanes.first().unwrap();
        assert!(lane.resets > number as u64, "{what}: {lane:?}");
        assert!(lane.cipher.is_some() && lane.keys_age_us.is_some(), "{what}: {lane:?}");
    }
    check_who_encrypts(&a);
    check_who_encrypts(&b);
}

#[test]
fn who_listens_between_daemons_finds_the_words_of_a_lane_in_the_clear_and_no_others() {
    const WORDS: &[u8] = b"the words that two programs tell each other";
    bounded(|| {
        for kernels in KERNELS {
            let (a, b, _middle, relay) = with_relay(Encrypt::Required, kernels);
            let mut stream = connect(&a, &b).unwrap();
            let said = WORDS.repeat(1000);
            stream.write_all(&said).unwrap();
            let mut back = vec![0; said.len()];
            stream.read_exact(&mut back).unwrap();
            assert!(back == said);
            let heard = relay.heard.lock().unwrap();
            assert!(heard.len() >= 2 * said.len(), "{} bytes heard", heard.len());
            assert!(!heard.windows(WORDS.len()).any(|window| window == WORDS));
        }
    });
}

/// Even one who has the cluster key, and so can change what the daemons say, gets no lane in the clear.
#[test]
fn an_offer_without_its_secret_is_refused_where_encryption_is_required() {
    bounded(|| {
        for of_acceptor in [false, true] {
            for keeps_flag in [false, true] {
                let (mut a, mut b) = (host(Encrypt::Required, true), host(Encrypt::Required, true));
                b.start();
                let change: Change = Box::new(move |is_acceptors, mut message| {
                    if let (true, PeerMessage::LaneOffer(offer)) = (is_acceptors == of_acceptor, &mut message) {
                        assert!(offer.endpoint.len() > CLEAR_BYTES);
                        offer.endpoint.truncate(CLEAR_BYTES);
                        assert_eq!(offer.endpoint[FLAGS_AT] & FLAG_SECRET_REQUIRED, FLAG_SECRET_REQUIRED);
                        if !keeps_flag {
                            offer.endpoint[FLAGS_AT] &= !FLAG_SECRET_REQUIRED;
                        }
                    }
                    message
                });
                let _middle = Middle::that_changes(&mut a, &b, Some(change));
                a.start();
                let refused = connect(&a, &b).unwrap_err();
                assert!(refused.is_some(), "{of_acceptor} {keeps_flag}");
                for host in [&a, &b] {
                    let lanes = host.stat().lanes;
                    assert!(
                        lanes.iter().all(|lane| lane.encrypted != Some(false)),
                        "{of_acceptor} {keeps_flag}: {lanes:?}"
                    );
                }
                // Its own end refuses what it gets; the other one hears of it.
                if of_acceptor {
                    assert_eq!(refused, Some(Reason::NotEncrypted), "{keeps_flag}");
                }
            }
        }
    });
}
