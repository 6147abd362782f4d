//! Counters of a NIC, each with a stable name.

use std::ops::Deref;

use records::PacketRefused;
use rnic::DeviceCounters;
use verbs::Counters;

use crate::wire::PacketFault;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a NIC did since it was made. `drop_*` are packets that had no effect.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct NicCounters {
            $($(#[$doc])* pub $name: u64,)*
            /// What does not depend on the wire.
            pub device: DeviceCounters,
        }

        impl NicCounters {
            /// All counters by name, in a fixed order.
            pub fn list(&self) -> Counters {
                let mut list = vec![$((stringify!($name), self.$name)),*];
                list.extend(self.device.list());
                list
            }
        }
    };
}

counters! {
    /// The ICRC does not match.
    drop_bad_icrc,
    /// Shorter than the headers say.
    drop_truncated,
    /// Length not a multiple of four.
    drop_misshapen,
    /// Transport version not 0.
    drop_version,
    /// Partition key does not match.
    drop_pkey,
    /// Opcode of a service that is not spoken, or that the unreliable services do not have. Unknown ones of the reliable
    /// connected service are answered.
    drop_unknown_opcode,
    /// No QP has that number.
    drop_unknown_qp,
    /// The source address is not the QP's peer.
    drop_wrong_source,
    /// It came to an address of this host that is not the one of the QP, or of the peer's datagrams under these keys.
    drop_wrong_destination,
    /// The source port is not the one from which the QP's peer sends, a software NIC: somebody else of its host, or a
    /// device on the way that changes ports.
    drop_wrong_port,
    /// The QP's state takes no such packet.
    drop_wrong_state,
    /// A packet was missing before this one. On an unreliable connection the message is lost with it.
    drop_out_of_order,
    /// Request so far ahead that the peer cannot have sent it; not answered.
    drop_beyond_window,
    /// Duplicate of a READ or atomic whose answer is no longer known.
    drop_stale_duplicate,
    /// Response to nothing that is outstanding.
    drop_unexpected_response,
    /// AETH syndrome is a reserved value.
    drop_bad_syndrome,
    /// No receive was posted; answered by an RNR NAK.
    drop_not_ready,
    /// Of another transport service than its QP: for example a datagram to a connected one.
    drop_wrong_service,
    /// Datagram with another queue key than its QP's.
    drop_wrong_qkey,
    /// Datagram longer than the port's path MTU.
    drop_datagram_too_long,
    /// Datagram, or message of an unreliable connection, for which no receive was posted.
    drop_no_receive,
    /// Datagram, or message of an unreliable connection, longer than the next receive, which is kept for another one.
    drop_receive_too_short,
    /// On an unreliable connection: of a message whose beginning was lost or dropped.
    drop_rest_of_message,
    /// On an unreliable connection: it breaks a rule (length, rights, key), for which a reliable one would send a NAK.
    drop_invalid_request,
    /// On an unreliable connection: the receive names memory that it may not fill, which ends the QP.
    drop_bad_receive,
    /// A sealed packet that is not what the peer sent: made or changed on the way, or of an older connection.
    drop_forged,
    /// A sealed packet that came before, or so late that nothing remembers whether it did.
    drop_replayed,
    /// A sealed packet to a QP that has no keys, or a datagram under keys that nobody has.
    drop_no_key,
    /// A packet in the clear to a QP, or of a datagram peer, whose packets are sealed.
    drop_in_the_clear,
    /// ICRCs that matched only after the IPv4 identification was solved for (16 bits checked).
    icrc_id_recovered,
    /// Packets that were sent sealed.
    tx_sealed,
    /// Sealed packets that were opened.
    rx_sealed,
    /// Packets that could not be sealed, because their keys are gone or used up. They do not leave.
    tx_unsealed,
    /// UDP payloads sent.
    tx_packets,
    /// UDP payloads received.
    rx_packets,
    /// Bytes of UDP payloads sent.
    tx_bytes,
    /// Bytes of UDP payloads received.
    rx_bytes,
    /// Sends handed out, each one UDP payload or a GSO batch.
    tx_batches,
    /// Request packets sent again.
    retransmits,
    /// ACK timeouts that fired.
    timeouts,
    /// Single packets sent again before the ACK timeout, after a silence of several round trips: they reveal a lost NAK
    /// or last packet within milliseconds and do not count as a retry.
    probes,
    /// NAKs sent, RNR NAKs not included.
    naks_sent,
    /// NAKs received, RNR NAKs not included.
    naks_received,
    /// RNR NAKs sent.
    rnr_naks_sent,
    /// RNR NAKs received.
    rnr_naks_received,
    /// READ responses or atomic answers found missing by a later answer.
    implied_naks,
    /// Positive acknowledgements sent.
    acks_sent,
    /// Positive acknowledgements received.
    acks_received,
    /// Responses to requests that were answered before.
    stale_responses,
    /// Requests that had been executed before.
    duplicates,
    /// Congestion notifications sent.
    notifications_sent,
    /// Congestion notifications received.
    notifications_received,
    /// Messages of unreliable connections that began and will not end, because a packet is missing or was dropped.
    messages_abandoned,
}

impl Deref for NicCounters {
    type Target = DeviceCounters;

    fn deref(&self) -> &DeviceCounters {
        &self.device
    }
}

impl NicCounters {
    /// Counts a packet that could not be parsed.
    pub(crate) fn on_fault(&mut self, fault: PacketFault) {
        *match fault {
            PacketFault::Truncated(_) => &mut self.drop_truncated,
            PacketFault::Misshapen(_) => &mut self.drop_misshapen,
            PacketFault::Version(_) => &mut self.drop_version,
            PacketFault::Pkey(_) => &mut self.drop_pkey,
            PacketFault::Opcode(_) => &mut self.drop_unknown_opcode,
        } += 1;
    }

    /// Counts a sealed packet that was not opened.
    pub(crate) fn on_refused(&mut self, refused: PacketRefused) {
        *match refused {
            PacketRefused::Short { .. } => &mut self.drop_truncated,
            PacketRefused::Repeated { .. } | PacketRefused::Stale { .. } => &mut self.drop_replayed,
            _ => &mut self.drop_forged,
        } += 1;
    }

    /// All packets that were dropped, for whatever reason.
    pub fn drops(&self) -> u64 {
        self.list().iter().filter(|(name, _)| name.starts_with("drop_")).map(|(_, n)| n).sum()
    }
}
