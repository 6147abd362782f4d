//! Counters of the TCP wire, each with a stable name.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What streams did. A stream counts from its start; the owner adds them up ([`WireCounters::add`]).
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct WireCounters { $($(#[$doc])* pub $name: u64,)* }

        impl WireCounters {
            /// All counters by name, in a fixed order.
            pub fn list(&self) -> verbs::Counters {
                vec![$((stringify!($name), self.$name)),*]
            }

            /// Adds those of a stream.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Frames handed to TCP whole.
    tcp_frames_sent,
    /// Frames received whole and valid.
    tcp_frames_received,
    /// Payload bytes that were copied on arrival, because they came behind a header.
    tcp_bytes_copied,
    /// Frames whose CRC did not match.
    tcp_crc_mismatches,
    /// Terminate messages sent: the peer, or something here, broke a rule.
    tcp_terminates_sent,
    /// Terminate messages received.
    tcp_terminates_received,
    /// Startup exchanges that failed or were refused, by either end.
    tcp_startups_failed,
}
