//! BTH opcodes of the reliable and the unreliable connected service and of unreliable datagrams (IBTA table 38): what
//! each carries after the BTH. One more is of our own, from those that the IBTA leaves to manufacturers (0xc0 to 0xff).
//!
//! Owns the mapping between bytes and operations. It never looks at a packet beyond its first byte.

use verbs::QpType;

/// Reserved, or of a service that this device does not speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("opcode {0:#04x} is neither of the connected services nor an unreliable datagram")]
pub struct UnknownOpcode(pub u8);

impl UnknownOpcode {
    /// Whether it is of the reliable connected service, whose responders answer what they do not support.
    pub const fn is_reliable(self) -> bool {
        self.0 >> 5 == 0
    }
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $byte:literal, $ext:literal;)*) => {
        /// Opcode of a packet.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode { $($(#[$doc])* $name = $byte,)* }

        impl Opcode {
            /// Every opcode, ascending.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The opcode of a BTH's first byte.
            pub const fn from_byte(byte: u8) -> Result<Self, UnknownOpcode> {
                match byte { $($byte => Ok(Self::$name),)* _ => Err(UnknownOpcode(byte)) }
            }

            /// Bytes of extension headers between BTH and payload.
            pub const fn extension_bytes(self) -> usize {
                match self { $(Self::$name => $ext,)* }
            }
        }
    };
}

opcodes! {
    /// SEND, first of several packets.
    SendFirst = 0x00, 0;
    /// SEND, neither first nor last.
    SendMiddle = 0x01, 0;
    /// SEND, last of several.
    SendLast = 0x02, 0;
    /// SEND with immediate, last of several.
    SendLastImm = 0x03, 4;
    /// SEND in one packet.
    SendOnly = 0x04, 0;
    /// SEND with immediate in one packet.
    SendOnlyImm = 0x05, 4;
    /// WRITE, first of several (RETH).
    WriteFirst = 0x06, 16;
    /// WRITE, neither first nor last.
    WriteMiddle = 0x07, 0;
    /// WRITE, last of several.
    WriteLast = 0x08, 0;
    /// WRITE with immediate, last of several.
    WriteLastImm = 0x09, 4;
    /// WRITE in one packet (RETH).
    WriteOnly = 0x0a, 16;
    /// WRITE with immediate in one packet (RETH, then ImmDt).
    WriteOnlyImm = 0x0b, 20;
    /// READ request (RETH).
    ReadRequest = 0x0c, 16;
    /// READ response, first of several (AETH).
    ReadResponseFirst = 0x0d, 4;
    /// READ response, neither first nor last.
    ReadResponseMiddle = 0x0e, 0;
    /// READ response, last of several (AETH).
    ReadResponseLast = 0x0f, 4;
    /// READ response in one packet (AETH).
    ReadResponseOnly = 0x10, 4;
    /// Acknowledgement, positive or not (AETH).
    Acknowledge = 0x11, 4;
    /// Answer to an atomic (AETH, AtomicAckETH).
    AtomicAcknowledge = 0x12, 12;
    /// Compare and swap (AtomicETH).
    CompareSwap = 0x13, 28;
    /// Fetch and add (AtomicETH).
    FetchAdd = 0x14, 28;
    /// SEND with invalidate, last of several (IETH).
    SendLastInvalidate = 0x16, 4;
    /// SEND with invalidate in one packet (IETH).
    SendOnlyInvalidate = 0x17, 4;
    /// SEND on an unreliable connection, first of several packets.
    UnreliableSendFirst = 0x20, 0;
    /// SEND on an unreliable connection, neither first nor last.
    UnreliableSendMiddle = 0x21, 0;
    /// SEND on an unreliable connection, last of several.
    UnreliableSendLast = 0x22, 0;
    /// SEND with immediate on an unreliable connection, last of several.
    UnreliableSendLastImm = 0x23, 4;
    /// SEND on an unreliable connection in one packet.
    UnreliableSendOnly = 0x24, 0;
    /// SEND with immediate on an unreliable connection in one packet.
    UnreliableSendOnlyImm = 0x25, 4;
    /// WRITE on an unreliable connection, first of several (RETH).
    UnreliableWriteFirst = 0x26, 16;
    /// WRITE on an unreliable connection, neither first nor last.
    UnreliableWriteMiddle = 0x27, 0;
    /// WRITE on an unreliable connection, last of several.
    UnreliableWriteLast = 0x28, 0;
    /// WRITE with immediate on an unreliable connection, last of several.
    UnreliableWriteLastImm = 0x29, 4;
    /// WRITE on an unreliable connection in one packet (RETH).
    UnreliableWriteOnly = 0x2a, 16;
    /// WRITE with immediate on an unreliable connection in one packet (RETH, then ImmDt).
    UnreliableWriteOnlyImm = 0x2b, 20;
    /// Datagram (DETH).
    Datagram = 0x64, 8;
    /// Datagram with immediate (DETH, then ImmDt).
    DatagramImm = 0x65, 12;
    /// Notification of congestion (16 reserved bytes; annex A17.9.3).
    CongestionNotification = 0x81, 16;
}

/// The bits of an opcode that say which service it is of, for the unreliable connected one.
const UNRELIABLE: u8 = 0x20;

impl Opcode {
    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// The transport service whose QPs take it; `None` for a notification of congestion, which each connected one takes.
    pub const fn service(self) -> Option<QpType> {
        match self {
            Self::CongestionNotification => None,
            Self::Datagram | Self::DatagramImm => Some(QpType::Ud),
            _ if self.byte() >> 5 == UNRELIABLE >> 5 => Some(QpType::Uc),
            _ => Some(QpType::Rc),
        }
    }

    /// What it asks for, as the opcode of a reliable connection: the two connected services number their SENDs and
    /// WRITEs alike.
    pub const fn request(self) -> Self {
        match self.service() {
            Some(QpType::Uc) => Self::other_service(self, self.byte() ^ UNRELIABLE),
            _ => self,
        }
    }

    /// A SEND or WRITE as it is on an unreliable connection. Other opcodes, which that has not, stay what they are.
    pub const fn on_unreliable(self) -> Self {
        Self::other_service(self, self.byte() | UNRELIABLE)
    }

    const fn other_service(self, byte: u8) -> Self {
        match Self::from_byte(byte) {
            Ok(opcode) => opcode,
            Err(_) => self,
        }
    }

    /// Opcode of a SEND packet at a place in its message.
    pub const fn send(start: bool, end: bool, imm: bool) -> Self {
        match (start, end, imm) {
            (true, false, _) => Self::SendFirst,
            (false, false, _) => Self::SendMiddle,
            (false, true, false) => Self::SendLast,
            (false, true, true) => Self::SendLastImm,
            (true, true, false) => Self::SendOnly,
            (true, true, true) => Self::SendOnlyImm,
        }
    }

    /// Opcode of a WRITE packet at a place in its message.
    pub const fn write(start: bool, end: bool, imm: bool) -> Self {
        match (start, end, imm) {
            (true, false, _) => Self::WriteFirst,
            (false, false, _) => Self::WriteMiddle,
            (false, true, false) => Self::WriteLast,
            (false, true, true) => Self::WriteLastImm,
            (true, true, false) => Self::WriteOnly,
            (true, true, true) => Self::WriteOnlyImm,
        }
    }

    /// Opcode of a READ response packet at a place in its response.
    pub const fn read_response(start: bool, end: bool) -> Self {
        match (start, end) {
            (true, false) => Self::ReadResponseFirst,
            (false, false) => Self::ReadResponseMiddle,
            (false, true) => Self::ReadResponseLast,
            (true, true) => Self::ReadResponseOnly,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_an_opcode_or_refused() {
        let mut known = 0;
        for byte in 0..=255u8 {
            match Opcode::from_byte(byte) {
                Ok(opcode) => {
                    assert_eq!(opcode.byte(), byte);
                    known += 1;
                }
                Err(UnknownOpcode(b)) => assert_eq!(b, byte),
            }
        }
        assert_eq!(known, Opcode::ALL.len());
        assert_eq!(known, 38);
        // 0x15 is reserved, as are UD's SENDs of several packets; UC has no READ; 0x40 and 0xa0 belong to RD and XRC.
        for byte in [0x15, 0x18, 0x2c, 0x31, 0x40, 0x60, 0x63, 0x66, 0x80, 0xa0, 0xd1] {
            assert!(Opcode::from_byte(byte).is_err(), "{byte:#x}");
        }
    }

    #[test]
    fn services_by_the_highest_bits() {
        for &opcode in Opcode::ALL {
            let service = match opcode.byte() {
                0..=0x1f => Some(QpType::Rc),
                0x20..=0x3f => Some(QpType::Uc),
                0x81 => None,
                _ => Some(QpType::Ud),
            };
            assert_eq!(opcode.service(), service, "{opcode:?}");
            let request = opcode.request();
            assert_eq!(request.extension_bytes(), opcode.extension_bytes());
            if service == Some(QpType::Uc) {
                assert_eq!((request.byte(), request.on_unreliable()), (opcode.byte() - 0x20, opcode));
            } else {
                assert_eq!(request, opcode);
            }
        }
        assert_eq!(Opcode::ReadRequest.on_unreliable(), Opcode::ReadRequest, "UC has none");
    }
}
