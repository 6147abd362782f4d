//! How many bytes of packets fit the receive buffer: what own peers may have in flight. Pure arithmetic.

use verbs::PathMtu;

/// Bytes that the kernel accounts for one received packet of a full path MTU (`skb->truesize`), measured on Linux 6.18
/// over loopback one packet at a time, the dearest way in: the data area is a power of two that has room for headers
/// and 320 bytes of `skb_shared_info`, and the `sk_buff` takes 256. Merged packets cost a twentieth more than they
/// hold.
const fn packet_memory_bytes(mtu: PathMtu) -> u64 {
    match mtu {
        PathMtu::Mtu256 | PathMtu::Mtu512 => 1_280,
        PathMtu::Mtu1024 => 2_304,
        PathMtu::Mtu2048 => 4_352,
        PathMtu::Mtu4096 => 8_448,
    }
}

/// Payload bytes that the device announces as its receive budget, from `granted_bytes` of packet memory. It holds if
/// senders charge every packet, however short, a full path MTU.
pub(crate) fn rx_budget_bytes(granted_bytes: usize, mtu: PathMtu) -> u32 {
    // While its reader is behind, the kernel gives back memory only in steps of a quarter of the buffer.
    let usable = granted_bytes as u64 / 4 * 3;
    let packets = usable / packet_memory_bytes(mtu);
    u32::try_from(packets * mtu.bytes() as u64).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_grows_with_buffer_and_holds_whole_packets() {
        assert_eq!(rx_budget_bytes(0, PathMtu::Mtu4096), 0);
        for mtu in PathMtu::ALL {
            let small = rx_budget_bytes(212_992, mtu);
            let large = rx_budget_bytes(8 << 20, mtu);
            assert!(small > 0 && small < large && (large as usize) < 8 << 20, "{mtu:?}: {small} {large}");
            assert_eq!(small as usize % mtu.bytes(), 0);
        }
    }
}
