//! The bits of FLAGS: those of [`raas::Flags`], and two that say whether a call waits.
//!
//! Owns what a call waits for when nothing is said. It must never drop a bit that it does not know.

use std::ffi::c_int;

use raas::Flags;

use crate::failure::Failure;

/// Reliable connection.
pub const RAAS_RC: c_int = 0x01;
/// Unreliable connection.
pub const RAAS_UC: c_int = 0x02;
/// Unreliable datagrams.
pub const RAAS_UD: c_int = 0x04;
/// The verb SEND.
pub const RAAS_SEND: c_int = 0x10;
/// The verb WRITE.
pub const RAAS_WRITE: c_int = 0x20;
/// The verb READ.
pub const RAAS_READ: c_int = 0x40;
/// Atomic operations.
pub const RAAS_ATOMIC: c_int = 0x80;
/// The call waits until it can do something (raas_send, raas_recv, raas_sendto, raas_recvfrom).
pub const RAAS_WAIT: c_int = 0x100;
/// The call fails with EAGAIN instead of waiting (raas_accept, raas_recv_zero_copy, raas_recvfrom_zero_copy).
pub const RAAS_NOWAIT: c_int = 0x200;

/// Whether a call waits when FLAGS say nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    UnlessTold,
    IfTold,
}

/// FLAGS, taken apart: what is asked of the service, and whether the call waits.
pub(crate) fn split(flags: c_int, waits: Waits) -> Result<(Flags, bool), Failure> {
    let asked = Flags::from_bits_retain((flags & !(RAAS_WAIT | RAAS_NOWAIT)).cast_unsigned());
    let waits = match (flags & RAAS_WAIT != 0, flags & RAAS_NOWAIT != 0) {
        (true, true) => {
            return Err(Failure::new(libc::EINVAL, "FLAGS have RAAS_WAIT and RAAS_NOWAIT: name one or none"));
        }
        (true, false) => true,
        (false, true) => false,
        (false, false) => waits == Waits::UnlessTold,
    };
    Ok((asked, waits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_those_of_the_library() {
        let ours = [RAAS_RC, RAAS_UC, RAAS_UD, RAAS_SEND, RAAS_WRITE, RAAS_READ, RAAS_ATOMIC];
        let theirs =
            [Flags::RC, Flags::UC, Flags::UD, Flags::SEND, Flags::WRITE, Flags::READ, Flags::ATOMIC].map(|f| f.bits());
        assert_eq!(ours.map(c_int::cast_unsigned), theirs);
        let all = ours.iter().fold(0, |all, bit| all | bit);
        assert_eq!(Flags::all().bits(), all.cast_unsigned(), "a flag of the library has no name in C");
        assert_eq!(all & (RAAS_WAIT | RAAS_NOWAIT), 0);
    }

    #[test]
    fn waiting_is_said_once() {
        assert!(split(RAAS_RC, Waits::UnlessTold).unwrap().1);
        assert!(!split(RAAS_RC | RAAS_NOWAIT, Waits::UnlessTold).unwrap().1);
        assert!(split(RAAS_WAIT, Waits::IfTold).unwrap().1);
        assert_eq!(split(RAAS_WAIT | RAAS_NOWAIT, Waits::IfTold).unwrap_err().errno, libc::EINVAL);
        let (unknown, _) = split(!RAAS_NOWAIT, Waits::IfTold).unwrap();
        assert!(unknown.check(raas::Transport::Rc).is_err(), "unknown bits are kept and refused");
    }
}
