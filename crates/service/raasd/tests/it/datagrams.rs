//! Datagram sockets through the daemons: between two hosts, on one, and what is dropped and refused.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use control::DatagramRow;
use raas::{BindError, DatagramError, DatagramOptions, DatagramSocket, Readiness, Reason, Session, StreamError};

use crate::hosts::{Host, PATIENCE, bounded, eventually, pattern};

fn bind(session: &Session, port: u16) -> DatagramSocket {
    let socket = DatagramSocket::bind_with(session, ("0.0.0.0", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn rows(host: &Host) -> Vec<DatagramRow> {
    raas::inspect::datagrams(Some(&host.config.socket)).unwrap()
}

fn drops(host: &Host, reason: &str) -> u64 {
    let stat = host.stat();
    let name = format!("datagram_{reason}");
    stat.drops.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no drop reason {name}: {stat:?}")).1
}

fn error_of(error: &std::io::Error) -> DatagramError {
    *error.get_ref().unwrap().downcast_ref::<DatagramError>().unwrap_or_else(|| panic!("{error:?}"))
}

#[test]
fn datagrams_go_there_and_back_between_two_hosts() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (client, server) = (bind(&a.session(), 0), bind(&b.session(), 7001));
        assert_eq!(server.local_addr().unwrap(), SocketAddr::new(b.address(), 7001));
        let max = client.max_payload(server.local_addr().unwrap()).unwrap();
        assert_eq!(max, 4096 - 16, "the path MTU of the loopback device, less the header");
        let mut buffer = [0; 4096];
        for (round, len) in [0, 1, 7, 8, 9, 1000, max - 1, max].into_iter().cycle().take(400).enumerate() {
            let sent = pattern(len, round as u8);
            assert_eq!(client.send_to(&sent, server.local_addr().unwrap()).unwrap(), len);
            let (got, from) = server.recv_from(&mut buffer).unwrap();
            assert_eq!((from, &buffer[..got]), (client.local_addr().unwrap(), &sent[..]));
            server.send_to(&buffer[..got], from).unwrap();
            let (got, from) = client.recv_from(&mut buffer).unwrap();
            assert_eq!((from, &buffer[..got]), (server.local_addr().unwrap(), &sent[..]));
        }
        for (host, socket) in [(&a, &client), (&b, &server)] {
            assert_eq!((host.stat().ud_qps, host.stat().rc_qps), (1, 1));
            let [row] = &rows(host)[..] else { panic!("{:?}", rows(host)) };
            assert_eq!(
                (row.local, row.id, row.app_pid),
                (socket.local_addr().unwrap(), socket.id(), std::process::id())
            );
            assert_eq!((row.tx_datagrams, row.rx_datagrams), (400, 400));
            assert!(row.drops.is_empty(), "{row:?}");
        }
        drop(client);
        eventually("a closed socket leaves the table", || rows(&a).is_empty());
    });
}

#[test]
fn datagrams_on_one_host_do_not_touch_the_device() {
    bounded(|| {
        let a = Host::started();
        let (one, two) = (bind(&a.session(), 0), bind(&a.session(), 0));
        let mut buffer = [0; 4096];
        for i in 0..200u8 {
            let sent = pattern(4080, i);
            one.send_to(&sent, two.local_addr().unwrap()).unwrap();
            let (len, from) = two.recv_from(&mut buffer).unwrap();
            assert_eq!((from, &buffer[..len]), (one.local_addr().unwrap(), &sent[..]));
        }
        // To itself too.
        one.send_to(b"me", one.local_addr().unwrap()).unwrap();
        assert_eq!(one.recv_from(&mut buffer).unwrap(), (2, one.local_addr().unwrap()));
        let stat = a.stat();
        assert_eq!(stat.verbs.send, 0, "{stat:?}");
    });
}

#[test]
fn a_longer_datagram_is_refused_with_the_limit() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (client, server) = (bind(&a.session(), 0), bind(&b.session(), 0));
        let to = server.local_addr().unwrap();
        for target in [to, client.local_addr().unwrap()] {
            let error = client.send_to(&[0; 4081], target).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!(error_of(&error), DatagramError::TooLong { len: 4081, max: 4080, to: target });
            assert!(error.to_string().contains("4080"), "{error}");
        }
        client.send_to(&[7; 4080], to).unwrap();
        let mut small = [0; 100];
        let error = server.recv_from(&mut small).unwrap_err();
        assert_eq!(error_of(&error), DatagramError::BufferTooSmall { len: 4080, buffer: 100 });
        assert_eq!(server.recv_from(&mut [0; 4080]).unwrap(), (4080, client.local_addr().unwrap()), "it was kept");
    });
}

#[test]
fn ports_are_their_own_and_one_sockets_at_a_time() {
    bounded(|| {
        let a = Host::started();
        let (session, other) = (a.session(), a.session());
        let listener = raas::Listener::bind_with(&session, ("0.0.0.0", 4242)).unwrap();
        let socket = bind(&session, 4242);
        for who in [&session, &other] {
            let error = DatagramSocket::bind_with(who, ("0.0.0.0", 4242)).unwrap_err();
            assert!(matches!(error, BindError::Refused { reason: Reason::PortInUse, .. }), "{error:?}");
            assert_eq!(std::io::Error::from(error).kind(), ErrorKind::AddrInUse);
        }
        // A port is free as soon as its socket is dropped.
        drop(socket);
        for _ in 0..100 {
            drop(bind(&other, 4242));
            drop(bind(&session, 4242));
        }
        drop(listener);
        let nowhere = DatagramSocket::bind_with(&session, ("192.0.2.1", 1)).unwrap_err();
        assert!(matches!(nowhere, BindError::NotThisHost { .. }), "{nowhere:?}");
    });
}

#[test]
fn unknown_ports_and_full_rings_are_counted() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let client = bind(&a.session(), 0);
        let server = DatagramOptions::new().ring_bytes(16 << 10).bind(&b.session(), ("0.0.0.0", 0)).unwrap();
        client.send_to(b"nobody", (b.address(), 1)).unwrap();
        eventually("a datagram for an unknown port is counted", || drops(&b, "no_socket") == 1);
        // 16 KiB hold three of the longest.
        for i in 0..8 {
            client.send_to(&pattern(4080, i), server.local_addr().unwrap()).unwrap();
        }
        eventually("what the ring does not hold is counted", || drops(&b, "ring_full") == 5);
        let [row] = &rows(&b)[..] else { panic!("{:?}", rows(&b)) };
        assert_eq!((row.rx_datagrams, &row.drops[..]), (3, &[("ring_full".to_string(), 5)][..]));
        let mut buffer = [0; 4080];
        for i in 0..3 {
            server.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..], pattern(4080, i));
        }
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.recv_from(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn hosts_that_cannot_be_reached_are_an_error_and_not_a_silence() {
    bounded(|| {
        let a = Host::started();
        let socket = bind(&a.session(), 0);
        let error = socket.send_to(b"?", ("127.0.0.250", 1)).unwrap_err();
        let reason = Reason::PeerUnreachable;
        assert_eq!(error_of(&error), DatagramError::Unreachable { host: "127.0.0.250".parse().unwrap(), reason });
        assert_eq!(error.kind(), ErrorKind::HostUnreachable);
        for nowhere in ["224.0.0.1:5", "255.255.255.255:5"] {
            let error = socket.send_to(b"?", nowhere).unwrap_err();
            assert!(
                matches!(error_of(&error), DatagramError::Unreachable { reason: Reason::BadAddress, .. }),
                "{error}"
            );
        }
    });
}

#[test]
fn a_socket_that_does_not_block_says_when_it_can_go_on() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (client, server) = (bind(&a.session(), 0), bind(&b.session(), 0));
        for socket in [&client, &server] {
            socket.set_nonblocking(true).unwrap();
        }
        let mut buffer = [0; 4096];
        assert_eq!(server.recv_from(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        let arrived = server.ready_fd().unwrap();
        assert!(!server.readiness().unwrap().contains(Readiness::READ));
        // The first look is always the caller's, and so is the first question for a path.
        let fd = client.ready_fd().unwrap();
        let mut tries = 0;
        while let Err(error) = client.send_to(b"now", server.local_addr().unwrap()) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            tries += 1;
            while !client.readiness().unwrap().contains(Readiness::WRITE) {
                wait_readable(fd);
            }
        }
        assert!(tries > 0, "there was no link");
        while !server.readiness().unwrap().contains(Readiness::READ) {
            wait_readable(arrived);
        }
        assert_eq!(server.recv_from(&mut buffer).unwrap(), (3, client.local_addr().unwrap()));
    });
}

fn wait_readable(fd: std::os::fd::BorrowedFd<'_>) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)).unwrap(), 1, "nothing happened");
}

#[test]
fn a_connected_socket_hears_its_peer_alone() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (one, two, stranger) = (bind(&a.session(), 0), bind(&b.session(), 0), bind(&b.session(), 0));
        assert_eq!(error_of(&one.send(b"?").unwrap_err()), DatagramError::NotConnected);
        one.connect(two.local_addr().unwrap()).unwrap();
        stranger.send_to(b"not wanted", one.local_addr().unwrap()).unwrap();
        eventually("it arrived", || rows(&a).iter().any(|r| r.rx_datagrams == 1));
        two.send_to(b"hello", one.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(one.recv(&mut buffer).unwrap(), 5);
        one.send(b"hello yourself").unwrap();
        assert_eq!(two.recv_from(&mut buffer).unwrap(), (14, one.local_addr().unwrap()));
    });
}

#[test]
fn the_question_for_the_longest_datagram_does_not_end_with_the_time_of_a_write() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (client, server) = (bind(&a.session(), 0), bind(&b.session(), 0));
        client.set_write_timeout(Some(Duration::from_nanos(1))).unwrap();
        let to = server.local_addr().unwrap();
        assert_eq!(client.send_to(b"1", to).unwrap_err().kind(), ErrorKind::TimedOut, "there is no link yet");
        assert!(client.max_payload(to).is_ok());
    });
}

#[test]
fn the_loss_of_the_daemon_ends_sockets_and_that_of_the_other_does_not() {
    bounded(|| {
        let (mut a, mut b) = (Host::started(), Host::started());
        let (client, server) = (bind(&a.session(), 0), bind(&b.session(), 0));
        let to = server.local_addr().unwrap();
        client.send_to(b"1", to).unwrap();
        server.recv_from(&mut [0; 16]).unwrap();
        b.stop();
        for error in [server.recv_from(&mut [0; 16]).unwrap_err(), server.send_to(b"x", to).unwrap_err()] {
            assert_eq!(StreamError::reason_of(&error), Some(Reason::ShuttingDown), "{error:?}");
        }
        assert!(server.readiness().unwrap().contains(Readiness::ERR));
        eventually("the link's end is noticed", || a.links() == 0);
        client.send_to(b"2", to).unwrap();
        eventually("a datagram without a link is counted", || drops(&a, "no_peer") == 1);
        let unreachable = client.max_payload(to).unwrap_err();
        assert!(matches!(error_of(&unreachable), DatagramError::Unreachable { reason: Reason::PeerUnreachable, .. }));
        b.start();
        let server = bind(&b.session(), to.port());
        // The link is made again by the next datagram, and those before it are lost.
        server.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        eventually("datagrams arrive again", || {
            client.send_to(b"3", to).unwrap();
            server.recv_from(&mut [0; 16]).is_ok()
        });
        a.stop();
        assert!(client.recv_from(&mut [0; 16]).is_err() && client.failure().is_some());
        assert!(client.max_payload(to).is_err());
    });
}

#[test]
fn tasks_wait_for_links_room_and_datagrams() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            use raas::aio::DatagramSocket;
            let (near, far) = (a.session(), b.session());
            let client = DatagramSocket::bind_with(&near, "0.0.0.0:0", DatagramOptions::new()).await.unwrap();
            let server = DatagramSocket::bind_with(&far, "0.0.0.0:0", DatagramOptions::new()).await.unwrap();
            let to = server.get_ref().local_addr().unwrap();
            let echo = async {
                let mut buffer = [0; 4096];
                for _ in 0..200 {
                    let (len, from) = server.recv_from(&mut buffer).await.unwrap();
                    server.send_to(&buffer[..len], from).await.unwrap();
                }
            };
            let ask = async {
                let mut buffer = [0; 4096];
                for i in 0..200u8 {
                    let sent = pattern(usize::from(i) * 20, i);
                    client.send_to(&sent, to).await.unwrap();
                    let (len, from) = client.recv_from(&mut buffer).await.unwrap();
                    assert_eq!((from, &buffer[..len]), (to, &sent[..]));
                }
            };
            tokio::time::timeout(PATIENCE, async { tokio::join!(echo, ask) }).await.unwrap();
            let error = client.send_to(&[0; 5000], to).await.unwrap_err();
            assert_eq!(error_of(&error), DatagramError::TooLong { len: 5000, max: 4080, to });
            let nowhere = client.send_to(b"?", "127.0.0.250:1").await.unwrap_err();
            assert!(matches!(error_of(&nowhere), DatagramError::Unreachable { .. }), "{nowhere}");
            let soon = Duration::from_millis(5);
            assert!(tokio::time::timeout(soon, client.recv_from(&mut [0; 16])).await.is_err(), "nothing comes");
        });
    });
}

/// The receiving program is killed: its port is free, what comes for it is counted, and the sender goes on.
#[test]
fn a_killed_receiver_leaves_nothing_and_hurts_nobody() {
    const ROLE: &str = "RAAS_TEST_DATAGRAM_RECEIVER";
    if let Some(path) = std::env::var_os(ROLE) {
        let socket = bind(&Session::connect(path).unwrap(), 7002);
        socket.recv_from(&mut [0; 4096]).unwrap();
        println!("receiving");
        std::thread::sleep(PATIENCE);
        return;
    }
    bounded(|| {
        use std::io::BufRead as _;
        let (a, b) = (Host::started(), Host::started());
        let client = bind(&a.session(), 0);
        let to = SocketAddr::new(b.address(), 7002);
        let mut receiver = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "datagrams::a_killed_receiver_leaves_nothing_and_hurts_nobody", "--nocapture"])
            .env(ROLE, &b.config.socket)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        eventually("the receiver is bound", || rows(&b).len() == 1);
        // It may have the port and not yet its slot: then what comes is dropped.
        let out = receiver.stdout.take().unwrap();
        let receiving = std::thread::spawn(move || {
            std::io::BufReader::new(out).lines().any(|line| line.is_ok_and(|l| l.contains("receiving")))
        });
        eventually("it receives", || {
            client.send_to(&[1; 1000], to).unwrap();
            receiving.is_finished()
        });
        assert!(receiving.join().unwrap());
        for _ in 0..20 {
            client.send_to(&[2; 1000], to).unwrap();
        }
        receiver.kill().unwrap();
        receiver.wait().unwrap();
        eventually("everything of it is released", || rows(&b).is_empty() && b.stat().apps.is_empty());
        let before = drops(&b, "no_socket");
        client.send_to(b"nobody", to).unwrap();
        eventually("what comes for it is counted", || drops(&b, "no_socket") > before);
        let again = bind(&b.session(), 7002);
        client.send_to(b"again", to).unwrap();
        assert_eq!(again.recv_from(&mut [0; 16]).unwrap(), (5, client.local_addr().unwrap()));
    });
}
