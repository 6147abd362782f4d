//! Devices that cannot do everything.

use std::net::SocketAddr;

use control::Reason;
use engine::{Engine, EngineConfig, SetupError};
use roce::{Ipv4IdMode, Nic, NicConfig, NicLimits};
use shm::EnginePage;
use verbs::{Capabilities, PathMtu, Region, VerbsError};

use crate::world::{World, addr};

const NO_DATAGRAMS: Capabilities = Capabilities::SRQ.union(Capabilities::IMMEDIATE);

#[test]
fn without_datagrams_there_are_streams_and_sockets_of_one_host() {
    for able in [[NO_DATAGRAMS, Capabilities::SOFTWARE_NIC], [Capabilities::ROCE, NO_DATAGRAMS]] {
        let mut w = World::of_devices(&able, 5);
        let (a, b) = (w.attach(0, 64), w.attach(1, 64));
        for (host, app) in [(0, a), (1, b)] {
            let ud_qps = u32::from(able[host].contains(Capabilities::DATAGRAMS));
            assert_eq!(w.hosts[host].engine.totals().ud_qps, ud_qps);
            // Asked before there is a link, and after.
            assert_eq!(w.path(host, app, 1 - host), Err(Reason::NoDatagrams), "{host} of {able:?}");
            assert!(w.path(host, app, host).is_ok());
        }
        let (sa, _) = w.pair(a, b, 7, 65_536);
        assert_eq!(w.path(0, a, 1), Err(Reason::NoDatagrams));
        let slot = w.bind(0, a, 9, 0).unwrap();
        w.send(0, a, slot, SocketAddr::new(addr(0), 9), b"to this host");
        w.send(0, a, slot, SocketAddr::new(addr(1), 9), b"to nobody");
        w.tell(0, a, sa, |c| c.to_send = 200_000);
        w.settle();
        assert_eq!(w.app(1, b).conns.values().map(|c| c.received).sum::<u64>(), 200_000);
        assert_eq!(w.counter(0, "datagrams_local"), 1);
        assert_eq!(w.counter(0, "drop_datagram_no_peer"), 1);
    }
}

#[test]
fn a_device_that_lanes_cannot_use_is_refused_by_what_it_lacks() {
    for (able, lacks) in [(Capabilities::IMMEDIATE, "shared receive queues"), (Capabilities::SRQ, "immediate data")] {
        let config = NicConfig {
            local: SocketAddr::new(addr(0), 4791),
            standby: Vec::new(),
            mtu: PathMtu::Mtu1024,
            limits: NicLimits::default(),
            rx_budget_bytes: u32::MAX,
            capabilities: able,
            name: "poor".into(),
            max_gso_segments: 1,
            id_mode: Ipv4IdMode::Zero,
        };
        let mut nic = Nic::new(config, [1; 32]);
        let page = EnginePage::format(Region::anonymous(EnginePage::BYTES as usize).unwrap(), 1).unwrap();
        let refused = Engine::new(EngineConfig::new(vec![addr(0)]), &mut nic, page, [1; 32]).unwrap_err();
        match refused {
            SetupError::Verbs(VerbsError::Unsupported { device, what }) => {
                assert_eq!(device, "poor");
                assert!(what.starts_with(lacks), "{what}");
            }
            other => panic!("{other}"),
        }
    }
}
