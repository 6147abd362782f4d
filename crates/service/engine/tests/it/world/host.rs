//! How one host of the world begins, and what its daemon does for the engine: ring chunks and wakes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use control::{ChunkKind, Reason};
use engine::Engine;
use roce::{Ipv4IdMode, Nic, NicConfig, NicLimits};
use shm::EnginePage;
use verbs::{Capabilities, PathMtu, Region};

use super::desk::{Desk, HostConfig};
use super::{Host, OWNER, addr, udp_port};

impl Host {
    pub(super) fn new(index: usize, seed: u64, able: Capabilities, configure: &impl Fn(&mut HostConfig)) -> Self {
        let addr = addr(index);
        let config = NicConfig {
            local: SocketAddr::new(addr, udp_port(index)),
            standby: Vec::new(),
            mtu: PathMtu::Mtu4096,
            limits: NicLimits::default(),
            rx_budget_bytes: if able == Capabilities::SOFTWARE_NIC { 1 << 20 } else { u32::MAX },
            capabilities: able,
            name: "sim".into(),
            max_gso_segments: 16,
            id_mode: Ipv4IdMode::SegmentIndex,
        };
        let mut entropy = [index as u8; 32];
        entropy[..8].copy_from_slice(&seed.to_le_bytes());
        let mut nic = Nic::new(config, entropy);
        let page = EnginePage::format(Region::anonymous(EnginePage::BYTES as usize).unwrap(), 1).unwrap();
        let mut config = HostConfig::new(addr, OWNER);
        // Tests let minutes pass in which nothing goes over a lane; `lane_rest` has those of rests.
        config.engine.lane_rest_after = None;
        configure(&mut config);
        let desk = Desk::new(config.admission);
        let number = config.engine.number;
        let engine = Engine::new(config.engine, &mut nic, page.clone(), entropy).unwrap();
        Self {
            addr,
            nic,
            engine,
            desk,
            page,
            number,
            apps: BTreeMap::new(),
            faults: Vec::new(),
            gone: Vec::new(),
            regions: Vec::new(),
            queues_over: Vec::new(),
            lane_failures: Vec::new(),
            lane_resets: Vec::new(),
            wanted: Vec::new(),
            strange_ports: Vec::new(),
            locals: Vec::new(),
            refuse_chunks: false,
            holds_chunks: false,
            chunks_wanted: Vec::new(),
            chunks_without_pages: false,
            gives_lanes_up: false,
            wakes: BTreeSet::new(),
            next_request: 0,
            asleep: false,
            holds_rests: false,
            ud_qpn: 0,
        }
    }

    /// Another engine, that says where applications look whether it sleeps.
    pub(super) fn renew_engine(&mut self, seed: u64, configure: &impl Fn(&mut HostConfig)) {
        let mut config = HostConfig::new(self.addr, OWNER);
        config.engine.lane_rest_after = None;
        configure(&mut config);
        let mut entropy = [7; 32];
        entropy[..8].copy_from_slice(&seed.to_le_bytes());
        let Self { engine, nic, page, .. } = self;
        *engine = Engine::new(config.engine, nic, page.clone(), entropy).unwrap();
    }

    /// What the engine asked for is made, or refused.
    pub(crate) fn make_chunks(&mut self) {
        for (app, size, rings) in std::mem::take(&mut self.chunks_wanted) {
            let Some(sim) = self.apps.get_mut(&app) else { continue };
            if self.refuse_chunks {
                self.engine.chunks_refused(app, size, Reason::LocalLimit);
                continue;
            }
            for kind in [ChunkKind::Tx, ChunkKind::Rx] {
                let make = if self.chunks_without_pages { Region::without_pages } else { Region::anonymous };
                let region = make(size.grown as usize * rings as usize).unwrap();
                let number = sim.next_chunk;
                sim.next_chunk += 1;
                sim.chunks.insert(number, region.clone());
                self.engine.add_chunk(&mut self.nic, app, number, kind, size, region).unwrap();
            }
        }
    }

    pub(crate) fn wake(&mut self) {
        self.engine.end_sleep();
        self.asleep = false;
    }
}
