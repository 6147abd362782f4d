//! What all QPs of a NIC share: the device that does not depend on the wire, and what RoCEv2 adds to it.
//!
//! A QP gets it as an argument, so that no QP can reach another one.

use std::ops::{Deref, DerefMut};

use genslab::GenSlab;
use rnic::DeviceLimits;
use verbs::DeviceAttr;

use crate::counters::NicCounters;
use crate::limits::NicLimits;
use crate::path::Path;
use crate::seals::DatagramSeals;
use crate::wire::IcrcChecker;

/// Shared state of a NIC.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) base: rnic::Device,
    pub(crate) ahs: GenSlab<u32, Path>,
    /// Keys of those of them whose datagrams are sealed.
    pub(crate) seals: DatagramSeals,
    /// Of the wire; those of `base` are beside them.
    pub(crate) counters: NicCounters,
    pub(crate) icrc: IcrcChecker,
}

impl Device {
    pub(crate) fn new(attr: DeviceAttr, limits: &NicLimits) -> Self {
        Self {
            base: rnic::Device::new(attr, DeviceLimits { max_cq: limits.max_cq, max_srq: limits.max_srq }),
            ahs: GenSlab::new(limits.max_ah),
            seals: DatagramSeals::default(),
            counters: NicCounters::default(),
            icrc: IcrcChecker::default(),
        }
    }
}

impl Deref for Device {
    type Target = rnic::Device;

    fn deref(&self) -> &rnic::Device {
        &self.base
    }
}

impl DerefMut for Device {
    fn deref_mut(&mut self) -> &mut rnic::Device {
        &mut self.base
    }
}
