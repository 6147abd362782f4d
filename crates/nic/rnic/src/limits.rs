//! Named bounds of everything that grows.

/// Memory regions of a device.
pub const MAX_MR: u32 = 1 << 16;
/// Protection domains of a device beside its own.
pub const MAX_PD: u32 = 1 << 15;
/// Memory keys that were given up last and are not given out again.
pub const RECENT_KEYS: usize = 4_096;
/// Asynchronous events that wait to be taken; later ones are counted and lost.
pub const MAX_EVENTS: usize = 65_536;

/// Bounds of a device's tables that [`verbs::DeviceAttr`] does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLimits {
    /// CQs.
    pub max_cq: u32,
    /// SRQs.
    pub max_srq: u32,
}
