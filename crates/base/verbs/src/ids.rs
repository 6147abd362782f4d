//! Numbers with a meaning, each its own type.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub u32);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

id!(
    /// Queue pair number, 24 bits (IBTA 3.5.1). It also names the QP towards its provider.
    Qpn
);
id!(
    /// Completion queue of one provider.
    CqId
);
id!(
    /// Shared receive queue of one provider.
    SrqId
);
id!(
    /// Memory region of one provider.
    MrId
);
id!(
    /// Address handle of one provider (UD destinations).
    AhId
);
id!(
    /// Local key of a memory region.
    Lkey
);
id!(
    /// Remote key of a memory region (IBTA 10.6.3).
    Rkey
);
id!(
    /// Queue key of datagram QPs (IBTA 10.2.5).
    Qkey
);

/// Packet sequence number, 24 bits, compared modulo 2^24 (IBTA 9.7.2). It has no `Ord` on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// One more than the largest number.
    pub const MODULUS: u32 = 1 << 24;

    /// The low 24 bits of `n`.
    pub const fn new(n: u32) -> Self {
        Self(n & (Self::MODULUS - 1))
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// This number advanced by `n` packets.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// Distance from `earlier` forward to `self`, below 2^24.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & (Self::MODULUS - 1)
    }

    /// Whether `self` lies in the half of the number space that follows `other` (equal is not after).
    pub const fn is_after(self, other: Self) -> bool {
        let d = self.since(other);
        d != 0 && d < Self::MODULUS / 2
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

/// Global identifier of a port; a RoCEv2 GID is an IP address, an IPv4 one mapped to `::ffff:a.b.c.d`
/// (IBTA annex A17.4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gid(pub Ipv6Addr);

impl Gid {
    /// The address as the IP layer names it: IPv4 if mapped.
    pub fn ip(self) -> IpAddr {
        self.0.to_canonical()
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped()),
            IpAddr::V6(v6) => Self(v6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_wraps_and_compares_modulo() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert!(last.plus(1).is_after(last));
        assert!(!last.is_after(last.plus(1)));
        assert!(!last.is_after(last));
        assert_eq!(Psn::new(3).since(last), 4);
        assert!(!Psn::new(0x80_0000).is_after(Psn::new(0)));
        assert!(Psn::new(0x7f_ffff).is_after(Psn::new(0)));
    }
}
