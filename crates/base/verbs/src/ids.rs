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
    /// Protection domain (IBTA 10.2.3): memory of one is of no use to queue pairs of another. 0 is the device's own, which
    /// is always there.
    PdId
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

    /// Places at which the arithmetic wraps or changes its mind.
    const EDGES: [u32; 4] = [0, Psn::MODULUS / 2, Psn::MODULUS - 1, 0x12_3456];

    #[test]
    fn every_distance_from_the_edges_is_told_and_halved_right() {
        for base in EDGES.map(Psn::new) {
            for distance in 0..Psn::MODULUS {
                let later = base.plus(distance);
                assert_eq!(later.since(base), distance);
                assert_eq!(later.is_after(base), (1..Psn::MODULUS / 2).contains(&distance), "{base:?} + {distance}");
            }
        }
    }

    #[test]
    fn all_pairs_near_the_edges_agree_with_whole_numbers() {
        const NEAR: i64 = 100;
        let modulus = i64::from(Psn::MODULUS);
        let near = |edge: u32| (-NEAR..=NEAR).map(move |n| (i64::from(edge) + n).rem_euclid(modulus));
        let psn = |n: i64| Psn::new(u32::try_from(n).expect("below the modulus"));
        for a in EDGES.into_iter().flat_map(near) {
            for b in EDGES.into_iter().flat_map(near) {
                assert_eq!(i64::from(psn(a).since(psn(b))), (a - b).rem_euclid(modulus));
                let both = [psn(a).is_after(psn(b)), psn(b).is_after(psn(a))];
                // Equal numbers, and numbers half the space apart, are not after each other; of all others one is.
                let apart = (a - b).rem_euclid(modulus);
                assert_eq!(both.contains(&true), apart != 0 && apart != modulus / 2, "{a} {b}");
                assert!(!(both[0] && both[1]), "{a} {b}");
            }
        }
    }
}
