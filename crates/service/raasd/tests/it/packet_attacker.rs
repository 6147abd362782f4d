//! Somebody on the path of RoCEv2 between two daemons that encrypt: he has no keys, and what he does to packets reaches
//! no program, and resets no lane.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use control::{PeerMessage, Reason};
use raas::{DatagramSocket, Session, Stream};
use verbs::{Capabilities, Encrypt, Wire, WirePolicy};

use crate::hosts::{Host, PATIENCE, bounded, check_echo, eventually, pattern};
use crate::middle::{Change, Middle};

/// First byte of an endpoint with RoCEv2, where the UDP port of it is, and how long it is without further parts
/// (docs/inside/control-link.md, "Endpoints").
const KIND_RC: u8 = 1;
const PORT_AT: usize = 25;
const CLEAR_BYTES: usize = 34;
/// Packets that he looks at together.
const TOGETHER: usize = 8;

/// What becomes of packets of one direction.
type Attack = fn(Vec<Vec<u8>>) -> Vec<Vec<u8>>;

/// Passes packets on, keeps what it hears, and does something to them while it is armed.
struct Relay {
    /// Where the dialer and where the acceptor find the other one.
    ports: [u16; 2],
    armed: Arc<Mutex<Option<Attack>>>,
    heard: Arc<Mutex<Vec<u8>>>,
    strikes: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Relay {
    fn between(ends: [SocketAddr; 2]) -> Self {
        // The socket at an end's address takes what is for that end, and sends what comes from it.
        let sockets = ends.map(|end| Arc::new(UdpSocket::bind((end.ip(), 0)).unwrap()));
        let ports = [1, 0].map(|i: usize| sockets[i].local_addr().unwrap().port());
        let (armed, heard): (Arc<Mutex<_>>, Arc<Mutex<_>>) = Default::default();
        let relay = Self { ports, armed, heard, strikes: Arc::default(), stop: Arc::default() };
        for to in 0..2 {
            let (near, far) = (Arc::clone(&sockets[to]), Arc::clone(&sockets[1 - to]));
            near.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
            let (armed, heard) = (Arc::clone(&relay.armed), Arc::clone(&relay.heard));
            let (strikes, stop) = (Arc::clone(&relay.strikes), Arc::clone(&relay.stop));
            std::thread::spawn(move || {
                let (mut waiting, mut buffer) = (Vec::new(), vec![0; 65_536]);
                while !stop.load(Ordering::Relaxed) {
                    let got = near.recv(&mut buffer).ok();
                    if let Some(got) = got {
                        heard.lock().unwrap().extend_from_slice(&buffer[..got]);
                        waiting.push(buffer[..got].to_vec());
                    }
                    let attack = *armed.lock().unwrap();
                    let is_full = waiting.len() >= TOGETHER;
                    if attack.is_some() && !is_full && got.is_some() {
                        continue;
                    }
                    let packets = std::mem::take(&mut waiting);
                    let packets = match attack.filter(|_| is_full) {
                        Some(attack) => {
                            strikes.fetch_add(1, Ordering::SeqCst);
                            attack(packets)
                        }
                        None => packets,
                    };
                    for packet in packets {
                        // What the end's buffer has no room for is lost, as on any path.
                        let _ = far.send_to(&packet, ends[to]);
                    }
                }
            });
        }
        relay
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn host(encrypt: Encrypt) -> Host {
    let mut host = Host::new();
    (host.config.encrypt, host.config.wire, host.config.engines) = (encrypt, WirePolicy::Only(Wire::Roce), 1);
    host
}

fn connect(a: &Host, b: &Host) -> Result<Stream, Option<Reason>> {
    let port = b.echo(&b.session());
    Stream::connect_with(&a.session(), (b.address(), port)).map_err(|e| e.reason())
}

/// Two hosts between whose devices the relay is. Only one who has the cluster key can move packets so, and have them
/// taken from another port; the relay has nothing.
fn with_relay() -> (Host, Host, Middle, Relay) {
    let (mut a, mut b) = (host(Encrypt::Required), host(Encrypt::Required));
    b.start();
    let relay = Relay::between([&a, &b].map(|host| SocketAddr::new(host.address(), host.config.udp_port)));
    let ports = relay.ports;
    let change: Change = Box::new(move |is_acceptors, mut message| {
        if let PeerMessage::LaneOffer(offer) = &mut message {
            assert_eq!(offer.endpoint[0], KIND_RC);
            // The dialer gets the acceptor's offer.
            let port = ports[usize::from(!is_acceptors)];
            offer.endpoint[PORT_AT..PORT_AT + 2].copy_from_slice(&port.to_be_bytes());
            offer.capabilities &= !Capabilities::FIXED_PORT.bits();
        }
        message
    });
    let middle = Middle::that_changes(&mut a, &b, Some(change));
    a.start();
    (a, b, middle, relay)
}

fn dropped(hosts: [&Host; 2], reason: &str) -> u64 {
    hosts.map(|host| host.dropped(reason)).iter().sum()
}

#[test]
fn packets_that_are_flipped_dropped_repeated_reordered_or_added_reach_nobody_and_reset_nothing() {
    bounded(|| {
        let (a, b, _middle, relay) = with_relay();
        let attacks: [(&str, Attack, Option<&str>); 6] = [
            (
                "flipped",
                |mut packets| {
                    let middle = packets[2].len() / 2;
                    packets[2][middle] ^= 1;
                    packets
                },
                Some("forged"),
            ),
            (
                "dropped",
                |mut packets| {
                    packets.remove(4);
                    packets
                },
                None,
            ),
            ("repeated", |packets| [packets.clone(), packets].concat(), Some("replayed")),
            ("reordered", |packets| packets.into_iter().rev().collect(), None),
            (
                "added, sealed with nothing",
                |mut packets| {
                    let made = [&packets[0][..20], &[7; 100]].concat();
                    // Before the true one, whose number it has.
                    packets.insert(0, made);
                    packets
                },
                Some("forged"),
            ),
            (
                "added, in the clear",
                |mut packets| {
                    let mut made = packets[0].clone();
                    made[0] = 0x0a;
                    packets.push(made);
                    packets
                },
                Some("in_the_clear"),
            ),
        ];
        for (number, (what, attack, reason)) in attacks.into_iter().enumerate() {
            let before = reason.map(|reason| dropped([&a, &b], reason));
            let strikes = relay.strikes.load(Ordering::SeqCst);
            *relay.armed.lock().unwrap() = Some(attack);
            // Whatever arrives is compared with what was sent.
            check_echo(connect(&a, &b).unwrap(), 2 << 20, number as u8);
            *relay.armed.lock().unwrap() = None;
            assert!(relay.strikes.load(Ordering::SeqCst) > strikes, "{what}: he did not strike");
            if let (Some(reason), Some(before)) = (reason, before) {
                assert!(dropped([&a, &b], reason) > before, "{what}: {reason} counts nothing");
            }
            let lanes = a.stat().lanes;
            let lane = lanes.first().unwrap();
            assert_eq!((lane.resets, lane.encrypted), (0, Some(true)), "{what}: {lane:?}");
            assert!(lane.cipher.is_some() && lane.keys_age_us.is_some(), "{what}: {lane:?}");
        }
    });
}

#[test]
fn who_listens_between_devices_finds_no_words() {
    use std::io::{Read, Write};
    const WORDS: &[u8] = b"the words that two programs tell each other";
    bounded(|| {
        let (a, b, _middle, relay) = with_relay();
        let mut stream = connect(&a, &b).unwrap();
        let said = WORDS.repeat(1000);
        stream.write_all(&said).unwrap();
        let mut back = vec![0; said.len()];
        stream.read_exact(&mut back).unwrap();
        assert!(back == said);
        let (client, server) = (bind(&a.session(), 0), bind(&b.session(), 7002));
        client.send_to(WORDS, (b.address(), 7002)).unwrap();
        let mut buffer = [0; 64];
        let (got, _) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..got], WORDS);
        let heard = relay.heard.lock().unwrap();
        assert!(heard.len() >= 2 * said.len(), "{} bytes heard", heard.len());
        assert!(!heard.windows(WORDS.len()).any(|window| window == WORDS));
    });
}

fn bind(session: &Session, port: u16) -> DatagramSocket {
    let socket = DatagramSocket::bind_with(session, ("0.0.0.0", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends numbered datagrams, and takes what comes until nothing comes any more. Says which came; each has to be as it
/// was sent, and to come once.
fn exchange(from: &DatagramSocket, to: &DatagramSocket, at: SocketAddr, seed: u8) -> BTreeSet<u32> {
    const COUNT: u32 = 300;
    let letter = |number: u32| [&number.to_be_bytes()[..], &pattern(600, seed ^ number as u8)].concat();
    let mut came = BTreeSet::new();
    let mut take = |socket: &DatagramSocket| {
        let mut buffer = [0; 4096];
        let Ok((got, _)) = socket.recv_from(&mut buffer) else { return false };
        let number = u32::from_be_bytes(*buffer.first_chunk().unwrap());
        assert!(buffer[..got] == letter(number), "datagram {number} is another one");
        assert!(came.insert(number), "datagram {number} came twice");
        true
    };
    to.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    for number in 0..COUNT {
        from.send_to(&letter(number), at).unwrap();
        // Its ring holds a few.
        while number % 8 == 0 && take(to) {}
    }
    to.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    while take(to) {}
    came
}

#[test]
fn datagrams_arrive_as_they_were_sent_once_or_not_at_all() {
    bounded(|| {
        let (a, b, _middle, relay) = with_relay();
        let (client, server) = (bind(&a.session(), 0), bind(&b.session(), 7001));
        let at = SocketAddr::new(b.address(), 7001);
        client.send_to(&[0; 4], at).unwrap();
        server.recv_from(&mut [0; 64]).unwrap();
        let attacks: [(&str, Attack, Option<&str>); 4] = [
            (
                "flipped",
                |mut packets| {
                    let last = packets[2].len() - 20;
                    packets[2][last] ^= 0x40;
                    packets
                },
                Some("forged"),
            ),
            ("repeated", |packets| [packets.clone(), packets].concat(), Some("replayed")),
            ("reordered", |packets| packets.into_iter().rev().collect(), None),
            (
                "of another key, and in the clear",
                |mut packets| {
                    let (mut other, mut clear) = (packets[0].clone(), packets[0].clone());
                    other[11] ^= 1;
                    clear[0] = 0x64;
                    packets.extend([other, clear]);
                    packets
                },
                Some("no_key"),
            ),
        ];
        for (seed, (what, attack, reason)) in attacks.into_iter().enumerate() {
            let before = reason.map(|reason| dropped([&a, &b], reason));
            *relay.armed.lock().unwrap() = Some(attack);
            let came = exchange(&client, &server, at, seed as u8);
            *relay.armed.lock().unwrap() = None;
            assert!(came.len() > 50, "{what}: {} came", came.len());
            if let (Some(reason), Some(before)) = (reason, before) {
                assert!(dropped([&a, &b], reason) > before, "{what}: {reason} counts nothing");
            }
        }
        assert!(a.stat().lanes.first().is_some_and(|lane| lane.resets == 0));
        // With the lane the keys change.
        assert!(a.reset_lane(b.address()));
        eventually("the lane is up again", || {
            a.stat().lanes.first().is_some_and(|lane| lane.resets > 0 && lane.state == "up")
        });
        assert!(exchange(&client, &server, at, 99).len() > 50);
        assert!(a.counter("tx_sealed") > 0 && b.counter("rx_sealed") > 0);
    });
}

/// Even one who has the cluster key, and so can change what the daemons say, gets no lane in the clear.
#[test]
fn an_offer_without_its_secret_is_refused_where_encryption_is_required() {
    bounded(|| {
        for of_acceptor in [false, true] {
            let (mut a, mut b) = (host(Encrypt::Required), host(Encrypt::Required));
            b.start();
            let change: Change = Box::new(move |is_acceptors, mut message| {
                if let (true, PeerMessage::LaneOffer(offer)) = (is_acceptors == of_acceptor, &mut message) {
                    assert!(offer.endpoint.len() > CLEAR_BYTES);
                    offer.endpoint.truncate(CLEAR_BYTES);
                }
                message
            });
            let _middle = Middle::that_changes(&mut a, &b, Some(change));
            a.start();
            let refused = connect(&a, &b).unwrap_err();
            assert!(refused.is_some(), "{of_acceptor}");
            for host in [&a, &b] {
                let lanes = host.stat().lanes;
                assert!(lanes.iter().all(|lane| lane.encrypted != Some(false)), "{of_acceptor}: {lanes:?}");
            }
            if of_acceptor {
                assert_eq!(refused, Some(Reason::NotEncrypted));
            }
        }
    });
}
