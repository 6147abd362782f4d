//! Which operation exists on which transport service: a table, and the errors that name what does not exist.
//!
//! IBTA 9.2 and 10.8.3 have the table; devices and services ask it before they take a work request, so that they refuse
//! alike.

use std::fmt;

use crate::{PathMtu, QpType, SendOp, VerbsError};

/// What a send work request asks for, without its arguments (IBTA 11.4.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Compare and swap.
    CmpSwap,
    /// Fetch and add.
    FetchAdd,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Self; 7] =
        [Self::Send, Self::SendImm, Self::Write, Self::WriteImm, Self::Read, Self::CmpSwap, Self::FetchAdd];

    /// Its name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND with immediate",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE with immediate",
            Self::Read => "READ",
            Self::CmpSwap => "compare-and-swap",
            Self::FetchAdd => "fetch-and-add",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl SendOp {
    /// Which verb it is.
    pub const fn verb(&self) -> Verb {
        match self {
            Self::Send => Verb::Send,
            Self::SendImm(_) => Verb::SendImm,
            Self::Write(_) => Verb::Write,
            Self::WriteImm(..) => Verb::WriteImm,
            Self::Read(_) => Verb::Read,
            Self::CmpSwap { .. } => Verb::CmpSwap,
            Self::FetchAdd { .. } => Verb::FetchAdd,
        }
    }
}

impl QpType {
    /// Every transport service.
    pub const ALL: [Self; 3] = [Self::Rc, Self::Uc, Self::Ud];

    /// Its abbreviation, as the IBTA has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    /// Whether the service has the operation. A reliable connection has all; an unreliable one has those that need no
    /// answer; a datagram has no place in the peer's memory either.
    pub const fn has(self, verb: Verb) -> bool {
        match self {
            Self::Rc => true,
            Self::Uc => matches!(verb, Verb::Send | Verb::SendImm | Verb::Write | Verb::WriteImm),
            Self::Ud => matches!(verb, Verb::Send | Verb::SendImm),
        }
    }

    /// Refuses an operation that the service does not have.
    pub const fn check(self, op: &SendOp) -> Result<(), VerbsError> {
        let verb = op.verb();
        if self.has(verb) { Ok(()) } else { Err(VerbsError::NotOnTransport { qp_type: self, verb }) }
    }

    /// Whether one QP has one peer.
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud)
    }

    /// Longest message in bytes on a device whose connections carry `max_msg_bytes` and whose port has this path MTU:
    /// a datagram is one packet.
    pub fn max_msg_bytes(self, max_msg_bytes: u32, mtu: PathMtu) -> u32 {
        if self.is_connected() {
            return max_msg_bytes;
        }
        u32::try_from(mtu.bytes()).map_or(max_msg_bytes, |mtu| mtu.min(max_msg_bytes))
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RemoteAddr, Rkey};

    fn ops() -> [SendOp; 7] {
        let remote = RemoteAddr { addr: 8, rkey: Rkey(1) };
        [
            SendOp::Send,
            SendOp::SendImm(1),
            SendOp::Write(remote),
            SendOp::WriteImm(remote, 1),
            SendOp::Read(remote),
            SendOp::CmpSwap { remote, compare: 0, swap: 1 },
            SendOp::FetchAdd { remote, add: 1 },
        ]
    }

    /// The rows of the specification's table, and of table I of the paper.
    #[test]
    fn each_operation_on_each_service() {
        let table = [
            (QpType::Rc, [true, true, true, true, true, true, true]),
            (QpType::Uc, [true, true, true, true, false, false, false]),
            (QpType::Ud, [true, true, false, false, false, false, false]),
        ];
        for (qp_type, row) in table {
            for ((op, verb), exists) in ops().iter().zip(Verb::ALL).zip(row) {
                assert_eq!(op.verb(), verb);
                assert_eq!(qp_type.has(verb), exists, "{verb} on {qp_type}");
                let refused = VerbsError::NotOnTransport { qp_type, verb };
                assert_eq!(qp_type.check(op), if exists { Ok(()) } else { Err(refused) });
            }
        }
    }

    #[test]
    fn a_refusal_names_both_and_says_what_to_do() {
        let refused = QpType::Uc.check(&ops()[4]).expect_err("no READ").to_string();
        assert_eq!(refused, "READ does not exist on UC queue pairs: use an RC queue pair");
        let refused = QpType::Ud.check(&ops()[2]).expect_err("no WRITE").to_string();
        assert_eq!(refused, "WRITE does not exist on UD queue pairs: use an RC or UC queue pair");
    }

    #[test]
    fn lengths() {
        assert_eq!(QpType::Uc.max_msg_bytes(1 << 30, PathMtu::Mtu1024), 1 << 30);
        assert_eq!(QpType::Ud.max_msg_bytes(1 << 30, PathMtu::Mtu1024), 1024);
        assert_eq!(QpType::Ud.max_msg_bytes(512, PathMtu::Mtu1024), 512);
    }
}
