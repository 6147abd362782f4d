//! How much of a host one user may have.
//!
//! It must never hold what anybody has: that is counted where the places are.

/// What the programs of one user may have of each limit of a host, in percent of it. Root and the daemon's own user are
/// not bounded by it, for they could end the daemon anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserShare(u8);

impl UserShare {
    /// All of it: only the host's limit bounds a user.
    pub const ALL: Self = Self(100);

    /// 1 to 100 percent; what is outside becomes the nearest.
    pub fn percent(percent: u64) -> Self {
        Self(u8::try_from(percent).map_or(100, |percent| percent.clamp(1, 100)))
    }

    /// What of `max` places one user may have: rounded up, so at least one of a limit that is not 0. No number bounds who
    /// may have all, so that the host's limit is the one that is told.
    pub fn of(self, max: u64) -> u64 {
        if self == Self::ALL {
            return u64::MAX;
        }
        let exact = (u128::from(max) * u128::from(self.0)).div_ceil(100);
        u64::try_from(exact).unwrap_or(max)
    }

    /// The same of a table.
    pub fn of_table(self, max: u32) -> u32 {
        u32::try_from(self.of(max.into())).unwrap_or(u32::MAX)
    }
}

impl Default for UserShare {
    /// A quarter.
    fn default() -> Self {
        Self(25)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_up_and_all_is_no_bound() {
        let of = |percent, max| UserShare::percent(percent).of(max);
        assert_eq!([of(25, 4096), of(25, 5), of(25, 1), of(25, 0), of(1, 64)], [1024, 2, 1, 0, 1]);
        assert_eq!([of(100, u64::MAX), of(25, u64::MAX), of(0, 100), of(900, 7)], [u64::MAX, 1 << 62, 1, u64::MAX]);
        assert_eq!((UserShare::default(), UserShare::ALL), (UserShare::percent(25), UserShare::percent(100)));
        assert_eq!(UserShare::default().of_table(u32::MAX), 1 << 30);
    }
}
