//! What must hold at the end of a test.

use super::{Host, World};

impl World {
    /// No RNR NAK, no violation, no lane failure, no fault, nothing refused by a device.
    pub(crate) fn assert_clean(&self) {
        for (i, h) in self.hosts.iter().enumerate() {
            let c = h.nic.counters_detail();
            assert_eq!((c.rnr_naks_sent, c.rnr_naks_received), (0, 0), "RNR NAKs at host {i}");
            assert_eq!(h.lane_failures, Vec::<String>::new(), "lane failures at host {i}");
            assert_eq!(h.faults, Vec::new(), "faults at host {i}");
            assert_eq!(h.strange_ports, Vec::new(), "each host sends from its port");
            for name in ["violations", "device_refusals", "app_faults"] {
                assert_eq!(self.counter(i, name), 0, "{name} at host {i}");
            }
        }
    }

    /// As [`Self::assert_clean`], and no connection is left anywhere.
    pub(crate) fn assert_empty(&self) {
        for (i, h) in self.hosts.iter().enumerate() {
            let left = h.engine.connections();
            assert_eq!((left.len(), left.first()), (0, None), "connections left at host {i}");
            assert!(h.engine.apps().iter().all(|a| a.connections == 0));
            let (counted, sockets) = (h.desk.admission.connections(), h.engine.datagram_sockets().len());
            assert_eq!((counted, h.desk.numbers()), (0, sockets), "admitted connections left at host {i}");
            assert!(h.engine.lanes().iter().all(|l| l.connections == 0));
        }
    }

    pub(super) fn dump(&self) {
        for (i, h) in self.hosts.iter().enumerate() {
            eprintln!("host {i} at {:?} ({} steps)", self.now, self.steps);
            h.engine.lanes().iter().for_each(|l| eprintln!("  {l:?}"));
            h.engine.connections().iter().take(8).for_each(|c| eprintln!("  {c:?}"));
            eprintln!("  {:?}", h.engine.totals());
            eprintln!("  failures {:?} faults {:?}", h.lane_failures, h.faults);
        }
    }
}

impl Host {
    /// Memory regions that the device still has registered for applications.
    pub(crate) fn mrs(&self) -> u32 {
        self.engine.totals().mrs
    }
}
