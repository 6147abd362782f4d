//! What several users of one daemon see of each other, and what one of them can take from the others.
//!
//! The kernel tells the daemon the user of the thread that opens the control socket, so other users are threads here.
//! Only root can be others: elsewhere these tests are skipped.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use control::{ConnectionRow, DatagramRow, PathKind, Reason, Request, Stat};
use raas::{ConnectError, DatagramSocket, Session, Stream};
use rustix::process::{Uid, geteuid};

use crate::control_socket::RawClient;
use crate::hosts::{Host, bounded, eventually};

pub(crate) const USER: u32 = 4001;
pub(crate) const OTHER: u32 = 4002;

/// Does something as another user.
pub(crate) fn as_user<T: Send>(uid: u32, body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let run = || {
            let uid = Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            body()
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub(crate) fn is_root() -> bool {
    if geteuid().is_root() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "only root can be several users");
    eprintln!("SKIP several users: only root can be others");
    false
}

/// A host whose socket everybody may use.
pub(crate) fn open_host(configure: impl FnOnce(&mut Host)) -> Host {
    let mut host = Host::new();
    std::fs::set_permissions(host.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    host.config.socket_mode = 0o666;
    configure(&mut host);
    host.start();
    host
}

fn seen(host: &Host, uid: u32) -> (Vec<ConnectionRow>, Vec<DatagramRow>, Stat) {
    let socket = host.config.socket.as_path();
    as_user(uid, || {
        let connections = raas::inspect::connections(Some(socket)).unwrap();
        (connections, raas::inspect::datagrams(Some(socket)).unwrap(), raas::inspect::stat(Some(socket)).unwrap())
    })
}

#[test]
fn a_user_sees_its_own_rows_and_root_all() {
    if !is_root() {
        return;
    }
    bounded(|| {
        let (host, far) = (open_host(|_| {}), Host::started());
        let (far_session, own_session) = (far.session(), host.session());
        let far_port = far.echo(&far_session);
        let here = host.echo(&own_session);
        let socket = host.config.socket.as_path();
        // Of each path one: a lane, a pair with root's listener, kernel TCP, and a datagram socket.
        let held: Vec<_> = [USER, OTHER]
            .map(|uid| {
                as_user(uid, || {
                    let session = Session::connect(socket).unwrap();
                    let lane = Stream::connect_with(&session, (far.address(), far_port)).unwrap();
                    let pair = Stream::connect_with(&session, (host.address(), here)).unwrap();
                    let datagram = DatagramSocket::bind_with(&session, (host.address(), 0)).unwrap();
                    let raw = RawClient::attached(&host);
                    let (local, peer): (SocketAddr, SocketAddr) =
                        ("10.1.1.1:1".parse().unwrap(), "10.1.1.2:2".parse().unwrap());
                    raw.send(&Request::TcpOpened { number: 1, local, peer });
                    (session, lane, pair, datagram, raw)
                })
            })
            .into();
        let root = || raas::inspect::connections(Some(socket)).unwrap();
        eventually("all rows are there", || root().len() == 2 + 4 + 2);
        let pids = std::process::id();
        for uid in [USER, OTHER] {
            let (connections, datagrams, stat) = seen(&host, uid);
            let mut paths: Vec<_> = connections.iter().map(|c| format!("{:?}", c.path)).collect();
            paths.sort();
            assert_eq!(paths, ["Lane", "Shm", "Tcp"], "its own end of each");
            assert!(connections.iter().all(|c| c.app_pid == pids));
            assert_eq!(datagrams.len(), 1);
            assert!(!stat.all_users && stat.drops.is_empty() && stat.counters.is_empty());
            assert!(!stat.apps.is_empty() && stat.apps.iter().all(|a| a.uid == uid), "{:?}", stat.apps);
            assert!(stat.lanes.len() == 1 && stat.lanes[0].qpn.is_none() && stat.lanes[0].peer_qpn.is_none());
            assert_eq!(stat.lanes[0].connections, 1);
            assert_eq!((stat.rc_qps, stat.srqs, stat.device.as_str()), (1, 1, "softnic"));
        }
        let routes = |rows: &[ConnectionRow]| rows.iter().filter_map(|r| r.route_id).collect::<Vec<_>>();
        let (all, one) = (root(), seen(&host, USER).0);
        assert!(routes(&all).len() == 2 && routes(&one).len() == 1, "no route of another's");
        assert!(one.iter().all(|row| all.iter().any(|r| r.id == row.id && r.path == row.path)));
        let (none, no_sockets, stat) = seen(&host, 4003);
        assert!(none.is_empty() && no_sockets.is_empty() && stat.apps.is_empty() && stat.lanes.is_empty());
        let stat = host.stat();
        assert!(stat.all_users && !stat.counters.is_empty() && stat.lanes[0].qpn.is_some());
        assert_eq!(root().iter().filter(|r| r.path == PathKind::Shm).count(), 4);
        drop(held);
    });
}

fn reason(result: Result<Stream, ConnectError>) -> Option<Reason> {
    result.err().and_then(|e| e.reason())
}

#[test]
fn pairs_lanes_and_connections_have_shares_and_the_errors_say_what_to_do() {
    if !is_root() {
        return;
    }
    bounded(|| {
        let host = open_host(|host| {
            host.config.set_limit("pairs_max", 4).unwrap();
            host.config.set_limit("lanes_max", 4).unwrap();
            host.config.set_limit("connections_max", 8).unwrap();
        });
        let (far, third) = (Host::started(), Host::started());
        let (far_session, third_session) = (far.session(), third.session());
        let (far_port, third_port) = (far.echo(&far_session), third.echo(&third_session));
        let servers = [host.session(), host.session()];
        let ports = servers.each_ref().map(|s| SocketAddr::new(host.address(), host.echo(s)));
        let socket = host.config.socket.as_path();
        as_user(USER, || {
            let session = Session::connect(socket).unwrap();
            let _first = Stream::connect_with(&session, ports[0]).unwrap();
            let _again = Stream::connect_with(&session, ports[0]).unwrap();
            let refused = Stream::connect_with(&session, ports[1]);
            let text = refused.as_ref().unwrap_err().to_string();
            assert!(text.contains("`pairs_max` or `user_share_percent`"), "{text}");
            assert_eq!(reason(refused), Some(Reason::UserPairs));
            let _lane = Stream::connect_with(&session, (far.address(), far_port)).unwrap();
            let refused = Stream::connect_with(&session, (third.address(), third_port));
            let text = refused.as_ref().unwrap_err().to_string();
            assert!(text.contains("`lanes_max` or `user_share_percent`"), "{text}");
            assert_eq!(reason(refused), Some(Reason::UserLanes));
            let _lane = Stream::connect_with(&session, (far.address(), far_port)).unwrap();
            let refused = Stream::connect_with(&session, (far.address(), far_port));
            assert_eq!(reason(refused), Some(Reason::UserConnections));
        });
        as_user(OTHER, || {
            let session = Session::connect(socket).unwrap();
            Stream::connect_with(&session, ports[1]).unwrap();
            Stream::connect_with(&session, (third.address(), third_port)).unwrap();
        });
    });
}

#[test]
fn hosts_that_the_configuration_does_not_name_are_refused_by_policy() {
    bounded(|| {
        let far = Host::started();
        let mut host = Host::new();
        host.config.connect_to = Some(vec!["192.0.2.0/24".parse().unwrap()]);
        host.start();
        let refused = Stream::connect_with(&host.session(), (far.address(), 7));
        let text = refused.as_ref().unwrap_err().to_string();
        assert!(text.contains("connect_to"), "{text}");
        assert_eq!(reason(refused), Some(Reason::Policy));
        assert!(host.stat().lanes.is_empty(), "nobody was dialed");
    });
}
