//! Counters of a device that do not depend on its wire, each with a stable name.

use verbs::Counters;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a device did since it was made, over all of its wires.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct DeviceCounters { $($(#[$doc])* pub $name: u64,)* }

        impl DeviceCounters {
            /// All counters by name, in a fixed order.
            pub fn list(&self) -> Counters {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    /// Asynchronous events lost because nobody took them.
    events_lost,
    /// Completions lost to a full CQ.
    cq_overflows,
    /// Completions with an error status.
    completions_failed,
    /// SEND work requests posted.
    verbs_send,
    /// SEND with immediate work requests posted.
    verbs_send_imm,
    /// WRITE work requests posted.
    verbs_write,
    /// WRITE with immediate work requests posted.
    verbs_write_imm,
    /// READ work requests posted.
    verbs_read,
    /// Atomic work requests posted.
    verbs_atomic,
    /// Datagram work requests posted, with and without immediate.
    verbs_datagram,
    /// Receive work requests posted, to QPs and SRQs.
    verbs_recv,
    /// SENDs of peers completed here.
    served_send,
    /// WRITEs of peers completed here.
    served_write,
    /// WRITEs with immediate of peers completed here.
    served_write_imm,
    /// READs of peers accepted here.
    served_read,
    /// Atomics of peers executed here.
    served_atomic,
    /// Datagrams completed here.
    served_datagram,
}

impl DeviceCounters {
    /// Counts a send work request that was posted to a connected QP.
    pub fn on_posted(&mut self, op: &verbs::SendOp) {
        use verbs::SendOp;
        *match op {
            SendOp::Send => &mut self.verbs_send,
            SendOp::SendImm(_) => &mut self.verbs_send_imm,
            SendOp::Write(_) => &mut self.verbs_write,
            SendOp::WriteImm(..) => &mut self.verbs_write_imm,
            SendOp::Read(_) => &mut self.verbs_read,
            _ => &mut self.verbs_atomic,
        } += 1;
    }
}
