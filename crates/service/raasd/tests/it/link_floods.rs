//! Programs that ask another host without end: they wait for their turn, and cost nobody the control link.

use control::{RegionAccess, RegionKey, Reply, Request};
use raas::{Region, RegionOptions, Stream};

use crate::control_socket::RawClient;
use crate::hosts::{Host, bounded, check_echo};

const KEY: RegionKey = RegionKey::new([7; 16]);
/// More than any queue between program and peer has room for.
const REQUESTS: u64 = 5000;

fn started() -> Host {
    let mut host = Host::new();
    host.config.limits.link_queue_max = 16;
    // On a busy machine the flood lasts longer than an unused lane does.
    host.config.set_limit("lane_rest_ms", 0).unwrap();
    host.start();
    host
}

/// Sends all, and takes the answers meanwhile, as a program must; how many came.
fn flood(client: &mut RawClient, answered: bool, request: impl Fn(u64) -> Request) {
    let mut answers = 0;
    let mut count = |reply| match reply {
        Reply::RegionOpened { result: Err(_), .. } => answers += 1,
        other => panic!("{other:?}"),
    };
    for number in 0..REQUESTS {
        let request = request(number);
        while !client.try_send(&request) {
            std::thread::yield_now();
            std::iter::from_fn(|| client.try_next()).for_each(&mut count);
        }
        std::iter::from_fn(|| client.try_next()).for_each(&mut count);
    }
    if answered {
        while answers < REQUESTS {
            let reply = client.next().expect("the daemon goes on");
            assert!(matches!(reply, Reply::RegionOpened { result: Err(_), .. }), "{reply:?}");
            answers += 1;
        }
    }
}

#[test]
fn requests_without_end_cost_nobody_the_link() {
    bounded(|| {
        let (a, b) = (started(), started());
        let (owner, polite) = (b.session(), a.session());
        let _far = RegionOptions::new().key(KEY).create(&owner, "far", 4096).unwrap();
        let opened = Region::open(&polite, b.address(), "far", KEY).unwrap();
        let stream = Stream::connect_with(&polite, (b.address(), b.echo(&owner))).unwrap();
        let host = b.address();
        let wrong = RegionKey::new([1; 16]);
        let mut client = RawClient::attached(&a);
        flood(&mut client, true, |request| Request::RegionOpen {
            request,
            host,
            name: "far".into(),
            key: wrong,
            access: RegionAccess::READ,
            lease: None,
            leased_lane: false,
        });
        flood(&mut client, false, |lease| Request::RegionLoansBack { host, lease, key: wrong, loans: u64::MAX });
        opened.store(0, 5).unwrap();
        check_echo(stream, 100_000, 7);
        for host in [&a, &b] {
            let lanes = host.stat().lanes;
            assert_eq!(lanes.iter().map(|lane| (lane.incarnation, lane.resets)).collect::<Vec<_>>(), [(1, 0)]);
        }
    });
}
