//! What the wire over TCP counts, for [`verbs::Provider::counters`].

use verbs::Counters;

/// What the wire did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TcpCounters {
    pub(crate) tcp_tx_bytes: u64,
    pub(crate) tcp_rx_bytes: u64,
    pub(crate) tcp_tx_syscalls: u64,
    pub(crate) tcp_rx_syscalls: u64,
    pub(crate) tcp_tx_would_block: u64,
    /// Connections that this end began.
    pub(crate) tcp_connects: u64,
    /// Connections of peers that became queue pairs'.
    pub(crate) tcp_accepts: u64,
    /// Connections whose first bytes belonged to no queue pair, or that came too late.
    pub(crate) tcp_refused: u64,
    /// Strangers that had to go because there were too many, or that took too long.
    pub(crate) tcp_strangers_dropped: u64,
    /// Connections of queue pairs that broke.
    pub(crate) tcp_broken: u64,
    /// Connections that went over to a congestion control without pacing.
    pub(crate) tcp_unpaced: u64,
    /// Of them those that went back, because the path loses segments.
    pub(crate) tcp_repaced: u64,
    /// Links that were looked at because of a timer.
    pub(crate) tcp_timers_fired: u64,
    /// Connections that are encrypted, of those that were begun or taken.
    pub(crate) tcp_encrypted: u64,
    /// Of the encrypted ones those whose records the kernel makes, and whose records it opens.
    pub(crate) tcp_kernel_sealed: u64,
    pub(crate) tcp_kernel_opened: u64,
    /// Encrypted connections that ended because a record was not what the peer sent.
    pub(crate) tcp_forged: u64,
    /// Encrypted connections whose owner was told that their keys are worn, and those that ended because it was in vain.
    pub(crate) tcp_keys_worn: u64,
    pub(crate) tcp_keys_used_up: u64,
}

impl TcpCounters {
    pub(super) fn append(&self, out: &mut Counters) {
        out.extend([
            ("tcp_tx_bytes", self.tcp_tx_bytes),
            ("tcp_rx_bytes", self.tcp_rx_bytes),
            ("tcp_tx_syscalls", self.tcp_tx_syscalls),
            ("tcp_rx_syscalls", self.tcp_rx_syscalls),
            ("tcp_tx_would_block", self.tcp_tx_would_block),
            ("tcp_connects", self.tcp_connects),
            ("tcp_accepts", self.tcp_accepts),
            ("tcp_refused", self.tcp_refused),
            ("tcp_strangers_dropped", self.tcp_strangers_dropped),
            ("tcp_broken", self.tcp_broken),
            ("tcp_unpaced", self.tcp_unpaced),
            ("tcp_repaced", self.tcp_repaced),
            ("tcp_timers_fired", self.tcp_timers_fired),
            ("tcp_encrypted", self.tcp_encrypted),
            ("tcp_kernel_sealed", self.tcp_kernel_sealed),
            ("tcp_kernel_opened", self.tcp_kernel_opened),
            ("tcp_forged", self.tcp_forged),
            ("tcp_keys_worn", self.tcp_keys_worn),
            ("tcp_keys_used_up", self.tcp_keys_used_up),
        ]);
    }
}
