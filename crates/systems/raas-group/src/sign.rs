//! What a memory says to whoever looks at its group from outside.
//!
//! Owns the words behind the list of founders: the hosts and sizes as this member's program was given them, and how often
//! programs of this host came to lead. It must never say anything of which a part is missing.

use std::net::{IpAddr, Ipv6Addr};

use agree::{Layout, MEMBERS_MAX, OWNER_AT};
use raas::{Region, RegionError};

/// Where they stand: in the last quarter of the owner's page.
const SIGN_AT: u64 = OWNER_AT + 3072;
/// Where it is counted how often a program of this host came to lead.
const LED_AT: u64 = OWNER_AT + 1024;
const MAGIC: u64 = 0x7261_6173_6772_7032;
/// Begin, four sizes, count, number and address of each host, checksum.
const SIGN_WORDS: usize = 6 + 3 * MEMBERS_MAX + 1;
const SIGN_BYTES: usize = SIGN_WORDS * 8;

/// See the head of this file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sign {
    pub(crate) layout: Layout,
    pub(crate) command_bytes_max: usize,
    pub(crate) period_us: u64,
    /// At most nine are told.
    pub(crate) hosts: Vec<(u8, IpAddr)>,
}

impl Sign {
    pub(crate) fn write(&self, own: &Region) -> Result<(), RegionError> {
        own.write(SIGN_AT, &self.encode())
    }

    /// None: no program has opened the group there yet.
    pub(crate) fn read(region: &Region) -> Result<Option<Self>, RegionError> {
        let mut bytes = [0; SIGN_BYTES];
        region.read(SIGN_AT, &mut bytes)?;
        Ok(Self::decode(&bytes))
    }

    fn encode(&self) -> Vec<u8> {
        let hosts = &self.hosts[..self.hosts.len().min(MEMBERS_MAX)];
        let sizes = [self.layout.snapshot_bytes(), self.layout.ring_lines(), self.command_bytes_max as u64];
        let mut words = vec![MAGIC, sizes[0], sizes[1], sizes[2], self.period_us, hosts.len() as u64];
        for (id, host) in hosts {
            let bits = match host {
                IpAddr::V4(host) => host.to_ipv6_mapped().to_bits(),
                IpAddr::V6(host) => host.to_bits(),
            };
            words.extend([u64::from(*id), (bits >> 64) as u64, bits as u64]);
        }
        words.resize(SIGN_WORDS - 1, 0);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let sum = u64::from(crc32c::crc32c(&bytes));
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u64> =
            bytes.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(*word.first_chunk()?))).collect();
        let summed = bytes.get(..SIGN_BYTES - 8)?;
        let [magic, snapshot_bytes, ring_lines, command_bytes_max, period_us, count, hosts @ .., sum] = &words[..]
        else {
            return None;
        };
        if *magic != MAGIC || u64::from(crc32c::crc32c(summed)) != *sum {
            return None;
        }
        let host = |words: &[u64]| {
            let host = Ipv6Addr::from_bits(u128::from(words[1]) << 64 | u128::from(words[2]));
            Some((u8::try_from(words[0]).ok()?, host.to_canonical()))
        };
        let count = usize::try_from(*count).ok().filter(|count| *count <= MEMBERS_MAX)?;
        Some(Self {
            layout: Layout::new(*snapshot_bytes, *ring_lines).ok()?,
            command_bytes_max: usize::try_from(*command_bytes_max).ok()?,
            period_us: *period_us,
            hosts: hosts.chunks_exact(3).take(count).map(host).collect::<Option<_>>()?,
        })
    }
}

/// How often a program of the memory's host came to lead.
pub(crate) fn led(region: &Region) -> Result<u64, RegionError> {
    let mut word = [0; 8];
    region.read(LED_AT, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// It did once more.
pub(crate) fn count_led(own: &Region) -> Result<(), RegionError> {
    own.write(LED_AT, &led(own)?.saturating_add(1).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_is_read_as_it_was_written_and_nothing_else_is_one() {
        let hosts = vec![(1, IpAddr::from([10, 0, 0, 1])), (200, IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 2]))];
        let layout = Layout::new(64 << 10, 512).expect("a layout");
        let sign = Sign { layout, command_bytes_max: 1024, period_us: 5000, hosts };
        let bytes = sign.encode();
        assert_eq!(bytes.len(), SIGN_BYTES);
        assert!(SIGN_AT + SIGN_BYTES as u64 <= OWNER_AT + 4096);
        assert_eq!(Sign::decode(&bytes), Some(sign));
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert_eq!(Sign::decode(&torn), None, "byte {at}");
        }
        assert_eq!(Sign::decode(&[0; SIGN_BYTES]), None);
        assert_eq!(Sign::decode(&bytes[..64]), None);
    }
}
