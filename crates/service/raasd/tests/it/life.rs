//! Beginning and end of a daemon.

use control::{Reason, Reply};
use raasd::{Config, Daemon, DaemonError, Shutdown};

use crate::control_socket::RawClient;
use crate::hosts::{Host, bounded};

#[test]
fn ready_is_said_once_and_the_socket_goes_with_the_daemon() {
    bounded(|| {
        let host = Host::new();
        let shutdown = Shutdown::new();
        let (said, ready) = std::sync::mpsc::channel();
        let stop = shutdown.clone();
        let config = host.config.clone();
        let thread =
            std::thread::spawn(move || raasd::run(config, stop, |socket| said.send(socket.to_owned()).unwrap()));
        let socket = ready.recv_timeout(crate::hosts::PATIENCE).unwrap();
        assert_eq!(socket, host.config.socket);
        assert!(socket.exists());
        let mut client = RawClient::attached(&host);
        shutdown.trigger();
        let reply = client.next();
        assert!(matches!(reply, Some(Reply::Detached { reason: Reason::ShuttingDown, .. })), "{reply:?}");
        assert!(client.next().is_none());
        thread.join().unwrap().unwrap();
        assert!(!socket.exists());
        assert!(ready.try_recv().is_err());
    });
}

#[test]
fn a_second_daemon_on_the_socket_or_the_address_is_refused() {
    bounded(|| {
        let first = Host::started();
        let again = Daemon::start(first.config.clone()).unwrap_err();
        assert!(matches!(again, DaemonError::AlreadyRunning { .. }), "{again}");
        let mut other = Host::new();
        other.config.listen = first.address();
        let refused = Daemon::start(other.config.clone()).unwrap_err();
        assert!(matches!(refused, DaemonError::PeerPort { .. }), "{refused}");
        assert!(!other.config.socket.exists());
        assert!(first.stat().uptime_seconds < 3600, "the first one still serves");
    });
}

#[test]
fn check_and_start_agree_about_every_limit() {
    bounded(|| {
        for limit in raasd::LIMITS {
            for value in [limit.min, limit.max] {
                let mut host = Host::new();
                host.config.set_limit(limit.key, value).unwrap();
                let checked = raasd::check(&host.config).map(drop).map_err(|e| e.to_string());
                let started = Daemon::start(host.config.clone()).map(drop).map_err(|e| e.to_string());
                assert_eq!(checked, started, "{} = {value}", limit.key);
            }
        }
    });
}

#[test]
fn what_cannot_be_used_is_said() {
    bounded(|| {
        let mut host = Host::new();
        host.config.device = "rdma-core:no_such_device".parse().unwrap();
        let refused = Daemon::start(host.config.clone()).unwrap_err();
        assert!(refused.to_string().contains("rdma-core:no_such_device"), "{refused}");
        let mut host = Host::new();
        std::fs::remove_file(host.config.key_file.as_ref().unwrap()).unwrap();
        assert!(matches!(Daemon::start(host.config.clone()), Err(DaemonError::Key { .. })));
        assert!(matches!(raasd::check(&host.config), Err(DaemonError::Key { .. })));
        host.write_key([1; 32]);
        raasd::check(&host.config).unwrap();
        host.config.listen = "192.0.2.1".parse().unwrap();
        assert!(matches!(raasd::check(&host.config), Err(DaemonError::PeerPort { .. })));
        assert!(matches!(Daemon::start(host.config.clone()), Err(DaemonError::PeerPort { .. })));
    });
}

#[test]
fn without_a_key_file_one_is_made_and_shared() {
    bounded(|| {
        let (mut a, mut b) = (Host::new(), Host::new());
        a.config.key_file = None;
        b.config.key_file = None;
        b.config.socket = a.dir.path().join("other.sock");
        a.start();
        b.start();
        let server = b.session();
        let port = b.echo(&server);
        let stream = raas::Stream::connect_with(&a.session(), (b.address(), port)).unwrap();
        crate::hosts::check_echo(stream, 1000, 9);
        assert_eq!(std::fs::read(a.dir.path().join(raasd::KEY_FILE_NAME)).unwrap().len(), raasd::KEY_BYTES);
    });
}

#[test]
fn the_default_configuration_is_a_host_of_its_own() {
    let config = Config::new("127.0.0.1".parse().unwrap());
    assert_eq!((config.peer_port, config.udp_port), (4790, 4791));
    assert_eq!(config.limits, raasd::DaemonLimits::default());
}
