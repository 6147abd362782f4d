//! Encrypted connections over TCP: who gets one, and what somebody on the path reads and can do.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::rig::{ACCEPT, End, PATIENCE, config, cross, pattern, run};
use softnic::{KernelTls, Progress, RecordLimit, SoftNicConfig};
use verbs::*;

fn open(address: &str, wire: WirePolicy, progress: Progress) -> End {
    open_with(address, wire, progress, KernelTls::Auto)
}

fn open_with(address: &str, wire: WirePolicy, progress: Progress, kernel_tls: KernelTls) -> End {
    End::open(SoftNicConfig { wire, progress, kernel_tls, ..config(address) })
}

/// Who encrypts: both ends' kernels, one's, or none. Where the kernel has no TLS, all are as the last.
const KERNELS: [[KernelTls; 2]; 4] = [
    [KernelTls::Auto, KernelTls::Auto],
    [KernelTls::Auto, KernelTls::Off],
    [KernelTls::Off, KernelTls::Auto],
    [KernelTls::Off, KernelTls::Off],
];

/// Whether the kernel has TLS, by its own statistics of it.
fn kernel_has_tls() -> bool {
    std::path::Path::new("/proc/net/tls_stat").exists()
}

/// So many of its connections each end leaves to the kernel that is asked to, and no other does.
fn check_who_encrypts(end: &End, kernel_tls: KernelTls) {
    let encrypted = end.counter("tcp_encrypted");
    let in_kernel = if kernel_tls == KernelTls::Auto && kernel_has_tls() { encrypted } else { 0 };
    let counted = [end.counter("tcp_kernel_sealed"), end.counter("tcp_kernel_opened")];
    assert!(encrypted > 0 && counted == [in_kernel; 2], "{encrypted} connections, {kernel_tls:?}: {counted:?}");
}

/// On an emulated processor one end may encrypt for longer than a second, while nobody reads for the other: both are in one
/// thread. TCP must not take that for silence.
const PATIENT: AcceptAttr = AcceptAttr { timeout: 20, ..ACCEPT };

/// Both ends of a connection, or why one of them refuses.
fn connect(a: &mut End, b: &mut End, modes: [Encrypt; 2]) -> Result<Link, VerbsError> {
    let (of_a, of_b) = (a.offer_encrypted(modes[0])?, b.offer_encrypted(modes[1])?);
    let there = a.nic.accept(a.qpn, &of_a, &of_b, &PATIENT);
    let back = b.nic.accept(b.qpn, &of_b, &of_a, &PATIENT);
    assert_eq!(there.is_ok(), back.is_ok(), "{there:?} and {back:?}");
    assert_eq!(there.as_ref().ok().map(|l| l.cipher), back.ok().map(|l| l.cipher));
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
            let [mut a, mut b] = [0, 1].map(|_| open("127.0.0.1", WirePolicy::Auto, Progress::Inline));
            let link = connect(&mut a, &mut b, modes);
            let Some(is_encrypted) = expected else {
                assert!(matches!(link, Err(VerbsError::NotEncrypted(_))), "{modes:?}: {link:?}");
                continue;
            };
            let link = link.unwrap();
            assert_eq!(link.cipher.is_some(), is_encrypted, "{modes:?}");
            assert!(!link.encryption_reason.is_empty());
            let data = pattern(1, 300_000);
            a.fill(0, &data);
            b.post_recv(5, 0, 0);
            let to = b.remote(7);
            a.post(1, SendOp::WriteImm(to, 77), 0, 300_000);
            run(&mut a, &mut b, 1, 1);
            assert!(b.bytes(7, 300_000) == data, "{modes:?}");
            assert_eq!(a.counter("tcp_encrypted"), u64::from(is_encrypted));
        }
    }
}

#[test]
fn who_requires_refuses_whoever_has_rocev2_alone_and_does_not_seal_its_packets() {
    let roce = WirePolicy::Only(Wire::Roce);
    let mut without = open("127.0.0.1", roce, Progress::Inline);
    // As hardware and kernel rxe offer it.
    let peer = without.offer();
    let mut end = open("127.0.0.1", WirePolicy::Auto, Progress::Inline);
    let own = end.offer_encrypted(Encrypt::Required).unwrap();
    let refused = end.nic.accept(end.qpn, &own, &peer, &ACCEPT).unwrap_err();
    assert!(matches!(refused, VerbsError::NotEncrypted(_)), "{refused}");
    assert_eq!(end.nic.query_qp(end.qpn).unwrap().state, QpState::Init, "nothing changed");
    let mut end = open("127.0.0.1", WirePolicy::Auto, Progress::Inline);
    let own = end.offer_encrypted(Encrypt::Preferred).unwrap();
    let link = end.nic.accept(end.qpn, &own, &peer, &ACCEPT).unwrap();
    assert!(link.cipher.is_none() && !link.encryption_reason.is_empty(), "{link:?}");
}

/// Bytes both ways at once, and READs, in all progress modes.
#[test]
fn megabytes_cross_each_other() {
    for (kernels, progress) in KERNELS.into_iter().flat_map(|k| [(k, Progress::Inline), (k, Progress::Helper)]) {
        let [mut a, mut b] = kernels.map(|k| open_with("127.0.0.1", WirePolicy::Auto, progress, k));
        connect(&mut a, &mut b, [Encrypt::Required; 2]).unwrap();
        let half = 2 << 20;
        cross(&mut a, &mut b, half, 4);
        let from = b.remote(0);
        a.post(9, SendOp::Read(from), half as u64, half as u32);
        run(&mut a, &mut b, 1, 0);
        assert!(a.bytes(half as u64, half) == b.bytes(0, half));
        check_who_encrypts(&a, kernels[0]);
        check_who_encrypts(&b, kernels[1]);
    }
}

/// What somebody on the path does with what one end sends to the other: it gets all bytes so far, and the new ones.
type Attack = fn(&mut Vec<u8>, usize) -> bool;

/// Passes the connections to a listener on, keeps what it hears, and does something to the direction of the end that
/// connects once 10,000 bytes have passed.
struct Relay {
    heard: Arc<Mutex<Vec<u8>>>,
    at: SocketAddr,
}

impl Relay {
    fn to(listener: SocketAddr, attack: Attack) -> Self {
        let accepting = TcpListener::bind(SocketAddr::new(listener.ip(), 0)).unwrap();
        let at = accepting.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let keeps = Arc::clone(&heard);
        std::thread::spawn(move || {
            let Ok((near, _)) = accepting.accept() else { return };
            let Ok(far) = TcpStream::connect(listener) else { return };
            let (near_too, far_too, heard) = (near.try_clone().unwrap(), far.try_clone().unwrap(), Arc::clone(&keeps));
            let back = std::thread::spawn(move || pass(far_too, near_too, &heard, |_, _| true));
            pass(near, far, &keeps, attack);
            let _ = back.join();
        });
        Self { heard, at }
    }
}

fn pass(mut from: TcpStream, mut into: TcpStream, heard: &Mutex<Vec<u8>>, attack: Attack) {
    let (mut passed, mut buffer, mut struck) = (0, vec![0; 1 << 16], false);
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        let mut bytes = buffer[..got].to_vec();
        heard.lock().unwrap().extend(&bytes);
        let mut goes_on = true;
        if passed > 10_000 && !struck {
            struck = true;
            goes_on = attack(&mut bytes, passed);
        }
        passed += got;
        if into.write_all(&bytes).is_err() || !goes_on {
            break;
        }
    }
    for end in [from, into] {
        let _ = end.shutdown(Shutdown::Both);
    }
}

/// An endpoint of TCP alone whose listener is the relay.
fn behind(endpoint: &Endpoint, attack: Attack) -> (Endpoint, Relay) {
    let mut bytes = endpoint.as_bytes().to_vec();
    assert_eq!(bytes[0], 3, "an endpoint of TCP alone");
    let listener = SocketAddr::from(([127, 0, 0, 2], u16::from_be_bytes([bytes[21], bytes[22]])));
    let relay = Relay::to(listener, attack);
    bytes[21..23].copy_from_slice(&relay.at.port().to_be_bytes());
    (Endpoint::new(bytes).unwrap(), relay)
}

/// Two ends, the first of which connects through a relay.
fn through(attack: Attack, mode: Encrypt, kernels: [KernelTls; 2]) -> (End, End, Relay) {
    let of = |address, kernel| open_with(address, WirePolicy::Only(Wire::Iwarp), Progress::Inline, kernel);
    let (mut a, mut b) = (of("127.0.0.1", kernels[0]), of("127.0.0.2", kernels[1]));
    let (of_a, of_b) = (a.offer_encrypted(mode).unwrap(), b.offer_encrypted(mode).unwrap());
    let (moved, relay) = behind(&of_b, attack);
    a.nic.accept(a.qpn, &of_a, &moved, &ACCEPT).unwrap();
    b.nic.accept(b.qpn, &of_b, &of_a, &ACCEPT).unwrap();
    (a, b, relay)
}

#[test]
fn who_listens_on_the_path_finds_nothing_of_the_data() {
    let modes = KERNELS.into_iter().flat_map(|k| [(k, Encrypt::Off, true), (k, Encrypt::Required, false)]);
    for (kernels, mode, is_found) in modes {
        let (mut a, mut b, relay) = through(|_, _| true, mode, kernels);
        let secret = b"the words that nobody but the two ends may read".as_slice();
        a.fill(0, &secret.repeat(1000));
        let to = b.remote(0);
        b.post_recv(1, 0, 0);
        a.post(1, SendOp::WriteImm(to, 1), 0, secret.len() as u32 * 1000);
        run(&mut a, &mut b, 1, 1);
        assert!(b.bytes(0, secret.len() * 1000) == secret.repeat(1000));
        let heard = relay.heard.lock().unwrap();
        assert!(heard.len() > secret.len() * 1000);
        assert_eq!(heard.windows(secret.len()).any(|window| window == secret), is_found, "{mode} {kernels:?}");
    }
}

#[test]
fn who_changes_repeats_leaves_out_or_cuts_on_the_path_breaks_the_connection_and_nothing_else() {
    let attacks: [(&str, Attack, bool); 5] = [
        (
            "a flipped bit",
            |bytes, _| {
                // The middle may be where a record begins. A kernel's TLS does not look at the first byte of one, on which
                // nothing depends; behind the head each bit counts.
                let at = (bytes.len() / 2 + 7).min(bytes.len() - 1);
                bytes[at] ^= 1;
                true
            },
            true,
        ),
        (
            "bytes repeated",
            |bytes, _| {
                let again = bytes.clone();
                bytes.extend(again);
                true
            },
            true,
        ),
        (
            "bytes left out",
            |bytes, _| {
                let keeps = bytes.len().min(64) / 2;
                bytes.drain(..keeps);
                true
            },
            true,
        ),
        (
            "bytes of its own",
            |bytes, _| (bytes.splice(0..0, [23, 3, 3, 0, 40].into_iter().chain([7; 40]))).count() == 0,
            true,
        ),
        (
            "the end, within a record",
            |bytes, _| {
                bytes.truncate(bytes.len() / 2);
                false
            },
            false,
        ),
    ];
    for (kernels, (what, attack, is_forged)) in KERNELS.into_iter().flat_map(|k| attacks.map(|attack| (k, attack))) {
        let (mut a, mut b, _relay) = through(attack, Encrypt::Required, kernels);
        let data = pattern(3, 1 << 20);
        a.fill(0, &data);
        let to = b.remote(0);
        b.post_recv(1, 0, 0);
        a.post(1, SendOp::WriteImm(to, 1), 0, 1 << 20);
        let begin = Instant::now();
        let mut got = Vec::new();
        while b.nic.query_qp(b.qpn).unwrap().state != QpState::Err {
            a.poll();
            got.extend(b.poll());
            assert!(begin.elapsed() < PATIENCE, "{what}: the QP still works: {:?}", b.nic.counters());
        }
        got.extend(b.poll());
        assert!(got.iter().all(|c| c.status != Status::Success), "{what}: {got:?}");
        assert_eq!(b.counter("tcp_forged"), u64::from(is_forged), "{what} {kernels:?}");
        check_who_encrypts(&b, kernels[1]);
        // What was placed before is what was sent.
        let placed = b.bytes(0, 1 << 20);
        assert!(
            placed.iter().zip(&data).all(|(got, sent)| got == sent || *got == 0),
            "{what}: other bytes were placed"
        );
    }
}

/// Who owns the queue pair is told in time, and told again. If it does nothing, the connection ends before a key has protected
/// one record more than it may.
#[test]
fn worn_keys_are_told_and_a_connection_whose_key_is_used_up_breaks() {
    const MIB: u32 = 1 << 20;
    let (until_worn, most) = (512, 4096);
    for kernels in KERNELS {
        let [mut a, mut b] = kernels.map(|kernel_tls| {
            let record_limit = RecordLimit::lowered_to(until_worn, most);
            let wire = WirePolicy::Only(Wire::Iwarp);
            End::open(SoftNicConfig { wire, kernel_tls, record_limit, ..config("127.0.0.1") })
        });
        connect(&mut a, &mut b, [Encrypt::Required; 2]).unwrap();
        a.fill(0, &pattern(3, MIB as usize));
        let (mut told, mut arrived) = ([Vec::new(), Vec::new()], 0);
        let begin = Instant::now();
        for number in 0.. {
            b.post_recv(number, 0, 0);
            let to = b.remote(0);
            a.post(number, SendOp::WriteImm(to, 1), 0, MIB);
            let mut got = Vec::new();
            while got.is_empty() {
                a.poll();
                got = b.poll();
                for (end, told) in [&mut a, &mut b].into_iter().zip(&mut told) {
                    while let Some(event) = end.nic.poll_event() {
                        if let AsyncEvent::KeysWorn { qpn, is_due } = event {
                            assert_eq!(qpn, end.qpn);
                            told.push(is_due);
                        }
                    }
                }
                assert!(begin.elapsed() < PATIENCE, "{kernels:?}: {arrived} arrived, {:?}", a.nic.counters());
            }
            if got[0].status != Status::Success {
                break;
            }
            arrived += 1;
        }
        // A MiB has 65 records or so. The device does not use the last thousand of a kernel's: it knows how many there were.
        assert!((40..=64).contains(&arrived), "{arrived} MiB arrived, {kernels:?}");
        for told in told {
            assert!(told.len() >= 4 && !told[0] && told[1..].iter().all(|due| *due), "{told:?} {kernels:?}");
        }
        assert_eq!(a.counter("tcp_keys_used_up") + b.counter("tcp_keys_used_up"), 1, "{kernels:?}");
        assert_eq!((a.counter("tcp_forged"), b.counter("tcp_forged")), (0, 0));
        let states = [&a, &b].map(|end| end.nic.query_qp(end.qpn).unwrap().state);
        assert!(states.contains(&QpState::Err), "{states:?}");
        check_who_encrypts(&a, kernels[0]);
        check_who_encrypts(&b, kernels[1]);
    }
}
