//! Encrypted connections over RoCEv2: who gets one, and what somebody on the path reads and can do.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::rig::{ACCEPT, End, config, cross, pattern, run, until};
use softnic::{Fabric, Faults, Gso, Progress, SoftNicConfig};
use verbs::*;

fn open(address: &str, progress: Progress) -> End {
    End::open(SoftNicConfig { progress, ..config(address) })
}

/// Both ends of a connection, or why one of them refuses.
fn connect(a: &mut End, b: &mut End, modes: [Encrypt; 2]) -> Result<Link, VerbsError> {
    let (of_a, of_b) = (a.offer_encrypted(modes[0])?, b.offer_encrypted(modes[1])?);
    let there = a.nic.accept(a.qpn, &of_a, &of_b, &ACCEPT);
    let back = b.nic.accept(b.qpn, &of_b, &of_a, &ACCEPT);
    assert_eq!(there.is_ok(), back.is_ok(), "{there:?} and {back:?}");
    assert_eq!(there.as_ref().ok().map(|l| (l.cipher, l.mtu)), back.ok().map(|l| (l.cipher, l.mtu)));
    there
}

#[test]
fn each_pair_of_modes_is_encrypted_in_the_clear_or_refused() {
    use Encrypt::{Off, Preferred, Required};
    let table = [
        ([Off, Off], Some(false)),
        ([Off, Preferred], Some(false)),
        ([Off, Required], None),
        ([Preferred, Preferred], Some(true)),
        ([Preferred, Required], Some(true)),
        ([Required, Required], Some(true)),
    ];
    for (modes, expected) in table {
        for modes in [modes, [modes[1], modes[0]]] {
            let [mut a, mut b] = [0, 1].map(|_| open("127.0.0.1", Progress::Inline));
            let link = connect(&mut a, &mut b, modes);
            let Some(is_encrypted) = expected else {
                assert!(matches!(link, Err(VerbsError::NotEncrypted(_))), "{modes:?}: {link:?}");
                assert_eq!(a.nic.query_qp(a.qpn).unwrap().state, QpState::Init, "nothing changed");
                continue;
            };
            let link = link.unwrap();
            assert_eq!((link.cipher.is_some(), link.wire), (is_encrypted, Wire::Roce), "{modes:?}");
            assert!(!link.encryption_reason.is_empty());
            let data = pattern(1, 300_000);
            a.fill(0, &data);
            b.post_recv(5, 0, 0);
            let to = b.remote(7);
            a.post(1, SendOp::WriteImm(to, 77), 0, 300_000);
            run(&mut a, &mut b, 1, 1);
            assert!(b.bytes(7, 300_000) == data, "{modes:?}");
            assert_eq!(a.counter("tx_sealed") == a.counter("tx_packets"), is_encrypted);
            assert_eq!(b.counter("rx_sealed") > 0, is_encrypted);
        }
    }
}

#[test]
fn hardware_and_older_releases_offer_no_secret_and_get_a_connection_in_the_clear_or_none() {
    let mut other = open("127.0.0.1", Progress::Inline);
    // As kernel rxe offers it.
    let peer = other.offer();
    for (mode, is_refused) in [(Encrypt::Preferred, false), (Encrypt::Required, true)] {
        let mut end = open("127.0.0.1", Progress::Inline);
        let own = end.offer_encrypted(mode).unwrap();
        let accepted = end.nic.accept(end.qpn, &own, &peer, &ACCEPT);
        assert_eq!(accepted.is_err(), is_refused, "{accepted:?}");
        match accepted {
            Ok(link) => assert!(link.cipher.is_none() && !link.encryption_reason.is_empty(), "{link:?}"),
            Err(refused) => assert!(matches!(refused, VerbsError::NotEncrypted(_)), "{refused}"),
        }
    }
}

/// The same numbers under the same keys would give everything away.
#[test]
fn an_offer_is_for_one_connection() {
    for wire in [WirePolicy::Only(Wire::Roce), WirePolicy::Only(Wire::Iwarp)] {
        let [mut a, mut b] = [0, 1].map(|_| End::open(SoftNicConfig { wire, ..config("127.0.0.1") }));
        let of_b = b.offer_encrypted(Encrypt::Required).unwrap();
        let of_a = a.offer_encrypted(Encrypt::Required).unwrap();
        a.nic.accept(a.qpn, &of_a, &of_b, &ACCEPT).unwrap();
        a.nic.modify_qp(a.qpn, &QpModify::Reset).unwrap();
        a.nic.modify_qp(a.qpn, &QpModify::Init { access: Access::all(), qkey: Qkey(0) }).unwrap();
        let refused = a.nic.accept(a.qpn, &of_a, &of_b, &ACCEPT).unwrap_err();
        assert!(matches!(refused, VerbsError::NotEncrypted(_)), "{wire}: {refused}");
        a.nic.modify_qp(a.qpn, &QpModify::Reset).unwrap();
        let again = a.offer_encrypted(Encrypt::Required).unwrap();
        assert_ne!(again, of_a);
        a.nic.accept(a.qpn, &again, &of_b, &ACCEPT).unwrap();
    }
}

/// Bytes both ways at once, and READs, in all progress modes, in batches and packet by packet.
#[test]
fn megabytes_cross_each_other() {
    for (progress, gso) in [(Progress::Inline, Gso::Auto), (Progress::Helper, Gso::Auto), (Progress::Inline, Gso::Off)]
    {
        let [mut a, mut b] = [0, 1].map(|_| End::open(SoftNicConfig { progress, gso, ..config("127.0.0.1") }));
        connect(&mut a, &mut b, [Encrypt::Required; 2]).unwrap();
        let half = 2 << 20;
        cross(&mut a, &mut b, half, 4);
        let from = b.remote(0);
        a.post(9, SendOp::Read(from), half as u64, half as u32);
        run(&mut a, &mut b, 1, 0);
        assert!(a.bytes(half as u64, half) == b.bytes(0, half));
        assert_eq!(a.counter("gso_batches") > 0, gso == Gso::Auto);
        assert_eq!(a.counter("drop_forged") + b.counter("drop_forged"), 0);
    }
}

/// What becomes of packets that one end sent one after the other.
type Attack = fn(Vec<Vec<u8>>) -> Vec<Vec<u8>>;

/// Passes the packets of two ends on, each from the address that the other one expects.
struct Relay {
    /// Where each end finds the other one.
    ports: [u16; 2],
    heard: Arc<Mutex<Vec<u8>>>,
    strikes: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Relay {
    fn between(ends: [SocketAddr; 2], attack: Attack) -> Self {
        // The socket at an end's address takes what is for that end, and sends what comes from it.
        let sockets = ends.map(|end| Arc::new(UdpSocket::bind((end.ip(), 0)).unwrap()));
        let ports = [sockets[1].local_addr().unwrap().port(), sockets[0].local_addr().unwrap().port()];
        let relay = Self { ports, heard: Arc::default(), strikes: Arc::default(), stop: Arc::default() };
        for to in 0..2 {
            let (near, far) = (Arc::clone(&sockets[to]), Arc::clone(&sockets[1 - to]));
            near.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            let (heard, strikes, stop) =
                (Arc::clone(&relay.heard), Arc::clone(&relay.strikes), Arc::clone(&relay.stop));
            std::thread::spawn(move || {
                let (mut waiting, mut buffer) = (Vec::new(), vec![0; 65_536]);
                while !stop.load(Ordering::Relaxed) {
                    let got = near.recv(&mut buffer);
                    if let Ok(got) = got {
                        heard.lock().unwrap().extend_from_slice(&buffer[..got]);
                        waiting.push(buffer[..got].to_vec());
                    }
                    if waiting.len() >= 8 || got.is_err() {
                        let full = waiting.len() >= 8;
                        strikes.fetch_add(usize::from(full), Ordering::Relaxed);
                        let packets = std::mem::take(&mut waiting);
                        for packet in if full { attack(packets) } else { packets } {
                            // What its buffer has no room for is lost, as on any path.
                            let _ = far.send_to(&packet, ends[to]);
                        }
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

/// Where the UDP port is in an endpoint (docs/inside/control-link.md, "Endpoints").
const PORT_AT: usize = 25;

/// Two ends that reach each other through a relay alone. The ends take packets from any port of the other's address.
fn through(attack: Attack, mode: Encrypt) -> (End, End, Relay) {
    let [mut a, mut b] = ["127.0.0.1", "127.0.0.2"].map(|address| open(address, Progress::Inline));
    let relay = Relay::between([a.nic.local_address(), b.nic.local_address()], attack);
    let moved = |endpoint: &Endpoint, port: u16| {
        let mut bytes = endpoint.as_bytes().to_vec();
        bytes[PORT_AT..PORT_AT + 2].copy_from_slice(&port.to_be_bytes());
        Endpoint::new(bytes).unwrap()
    };
    let (of_a, of_b) = (a.offer_encrypted(mode).unwrap(), b.offer_encrypted(mode).unwrap());
    let attr = AcceptAttr { peer: ACCEPT.peer - Capabilities::FIXED_PORT, ..ACCEPT };
    a.nic.accept(a.qpn, &of_a, &moved(&of_b, relay.ports[0]), &attr).unwrap();
    b.nic.accept(b.qpn, &of_b, &moved(&of_a, relay.ports[1]), &attr).unwrap();
    (a, b, relay)
}

#[test]
fn who_listens_on_the_path_finds_nothing_of_the_data() {
    let secret = b"the words that nobody but the two ends may read".as_slice();
    for mode in [Encrypt::Off, Encrypt::Required] {
        let (mut a, mut b, relay) = through(|packets| packets, mode);
        a.fill(0, &secret.repeat(1000));
        let (to, bytes) = (b.remote(0), secret.len() as u32 * 1000);
        b.post_recv(1, 0, 0);
        a.post(1, SendOp::WriteImm(to, 1), 0, bytes);
        let found = || relay.heard.lock().unwrap().windows(secret.len()).any(|window| window == secret);
        if mode == Encrypt::Off {
            // The ICRC covers the port that the relay changed, so they do not arrive; but he has read them.
            until("the words were heard", || drop(a.poll()), found);
            continue;
        }
        run(&mut a, &mut b, 1, 1);
        assert!(b.bytes(0, bytes as usize) == secret.repeat(1000));
        assert!(relay.heard.lock().unwrap().len() > bytes as usize);
        assert!(!found());
    }
}

#[test]
fn who_changes_drops_repeats_reorders_or_adds_on_the_path_only_costs_time() {
    let attacks: [(&str, Attack, Option<&str>); 6] = [
        (
            "a flipped bit",
            |mut packets| {
                let middle = packets[3].len() / 2;
                packets[3][middle] ^= 1;
                packets
            },
            Some("drop_forged"),
        ),
        (
            "one left out",
            |mut packets| {
                packets.remove(5);
                packets
            },
            None,
        ),
        ("all repeated", |packets| [packets.clone(), packets].concat(), Some("drop_replayed")),
        ("all reordered", |packets| packets.into_iter().rev().collect(), None),
        (
            "some added",
            |mut packets| {
                let made = [&packets[0][..20], &[7; 100]].concat();
                // Before the true one, whose number it has.
                packets.insert(0, made);
                packets
            },
            Some("drop_forged"),
        ),
        (
            "a number far ahead",
            |mut packets| {
                let mut made = packets[0].clone();
                made[12..20].fill(0xfe);
                packets.insert(0, made);
                packets
            },
            Some("drop_forged"),
        ),
    ];
    for (what, attack, counter) in attacks {
        let (mut a, mut b, relay) = through(attack, Encrypt::Required);
        for round in 0..3 {
            let data = pattern(3 + round, 1 << 20);
            a.fill(0, &data);
            let to = b.remote(0);
            b.post_recv(1, 0, 0);
            a.post(1, SendOp::WriteImm(to, 1), 0, 1 << 20);
            run(&mut a, &mut b, 1, 1);
            assert!(b.bytes(0, 1 << 20) == data, "{what}: other bytes were placed");
        }
        assert!(relay.strikes.load(Ordering::Relaxed) > 0, "{what}: he did not strike");
        if let Some(counter) = counter {
            assert!(a.counter(counter) + b.counter(counter) > 0, "{what}: {counter} counts nothing");
        }
        assert_eq!(b.nic.query_qp(b.qpn).unwrap().state, QpState::Rts, "{what}");
    }
}

/// Over an interface that has no room for the seal beside a packet of the largest path MTU, the next smaller one holds.
#[test]
fn the_path_mtu_leaves_room_for_the_seal() {
    let device = SoftNicConfig { mtu: Some(PathMtu::Mtu4096), ..config("127.0.0.1") };
    let [mut a, mut b] = [0, 1].map(|_| End::open(device.clone()));
    let link = connect(&mut a, &mut b, [Encrypt::Required; 2]).unwrap();
    assert_eq!(link.mtu, PathMtu::Mtu4096, "loopback has room");
    let data = pattern(1, 1 << 20);
    a.fill(0, &data);
    let to = b.remote(0);
    b.post_recv(1, 0, 0);
    a.post(1, SendOp::WriteImm(to, 1), 0, 1 << 20);
    run(&mut a, &mut b, 1, 1);
    assert!(b.bytes(0, 1 << 20) == data);
    assert_eq!(a.counter("tx_too_long"), 0);
}

#[test]
fn a_fabric_that_loses_repeats_and_reorders_carries_sealed_packets() {
    let fabric = Fabric::new(11);
    fabric.set_faults(Faults::per_mille(20));
    let mut ends = Vec::new();
    for ip in ["10.0.0.1", "10.0.0.2"] {
        let mut nic = fabric.host(ip.parse::<IpAddr>().unwrap()).unwrap();
        let cq = nic.create_cq(16).unwrap();
        let qpn = nic.create_qp(&QpInit::new(QpType::Rc, cq, 16)).unwrap();
        let memory = Region::anonymous(1 << 20).unwrap();
        let mr = nic.reg_mr(&memory, 0, 1 << 20, Access::all()).unwrap();
        let attr = OfferAttr {
            access: Access::all(),
            mtu_max: PathMtu::Mtu1024,
            entropy: 5,
            wire: WirePolicy::Auto,
            peer: None,
            encrypt: Encrypt::Required,
            local: None,
        };
        let offer = nic.offer(qpn, &attr).unwrap();
        ends.push((nic, cq, qpn, memory, mr, offer));
    }
    for i in 0..2 {
        let peer = ends[1 - i].5.clone();
        let (nic, _, qpn, _, _, own) = &mut ends[i];
        assert!(nic.accept(*qpn, own, &peer, &ACCEPT).unwrap().cipher.is_some());
    }
    let data = pattern(9, 1 << 20);
    let op = SendOp::Write(RemoteAddr { addr: 0, rkey: ends[1].4.rkey });
    let sges = [Sge { addr: 0, len: 1 << 20, lkey: ends[0].4.lkey }];
    let (nic, cq, qpn, memory, ..) = &mut ends[0];
    memory.write(0, &data).unwrap();
    let (payload, flags) = (Payload::Sges(&sges), SendFlags::SIGNALED);
    nic.post_send(*qpn, &[SendWr { wr_id: 1, op, payload, flags, dest: None }]).unwrap();
    assert!(fabric.run_until_idle());
    let mut done = Vec::new();
    nic.poll_cq(*cq, &mut done, 16).unwrap();
    assert_eq!((done.len(), done[0].status), (1, Status::Success));
    let mut landed = vec![0; 1 << 20];
    ends[1].3.read(0, &mut landed).unwrap();
    assert!(landed == data);
    let counters = ends[1].0.nic_counters();
    assert!(counters.rx_sealed > 1024 && counters.drop_replayed > 0 && counters.drop_forged == 0, "{counters:?}");
}
