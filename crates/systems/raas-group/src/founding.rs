//! Who the members of a group were when it began, how long its leases are, and what its acknowledgements are worth.
//!
//! Owns the list of both in each member's memory, behind the words of its owner's page. A memory that lost its bytes
//! must never be taken for one of a founder: so a list that anybody has counts, and a new one is made only when all
//! memories are there and none has any, by the member with the lowest number.

use std::time::{Duration, Instant};

use agree::{Member, OWNER_AT};
use raas::{Region, RegionAccess, RegionError};

use crate::class::Class;
use crate::error::GroupError;
use crate::memories::Places;
use crate::number;

/// Where the list stands: in the second half of the owner's page.
const LIST_AT: u64 = OWNER_AT + 2048;
const MEMBERS_MAX: usize = 9;
/// What begins a list.
const MAGIC: u64 = 0x7261_6173_6772_7034;
/// Begin, lease, class, count, number and memory of each, checksum.
const LIST_WORDS: usize = 4 + 2 * MEMBERS_MAX + 1;
const PAUSE: Duration = Duration::from_millis(20);

/// What all programs of a group must have alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Founded {
    pub(crate) members: Vec<Member>,
    pub(crate) lease_us: u64,
    pub(crate) class: Class,
}

/// The members, as whoever knows them says, or as they are founded now. Leases of another length than the founder's are
/// refused: a leader that believes for longer than another one waits would answer what was. So is another class.
pub(crate) fn members(
    places: &Places,
    own: &Region,
    (group, lease_us): (&str, u64),
    within: Duration,
) -> Result<Founded, GroupError> {
    let founded = found(places, own, (group, lease_us), within)?;
    if founded.class != places.class {
        let (group, its, given) = (group.to_owned(), founded.class, places.class);
        return Err(GroupError::OtherClass { group, its, given });
    }
    if founded.lease_us == lease_us {
        return Ok(founded);
    }
    let [its, given] = [founded.lease_us, lease_us].map(Duration::from_micros);
    Err(GroupError::OtherLease { group: group.to_owned(), its, given })
}

fn found(
    places: &Places,
    own: &Region,
    (group, lease_us): (&str, u64),
    within: Duration,
) -> Result<Founded, GroupError> {
    let begin = Instant::now();
    loop {
        if let Some(list) = list_of(own)? {
            return Ok(list);
        }
        let (mut all, mut missing) = (vec![Member { id: places.me, number: places.number }], Vec::new());
        for &(id, host) in places.hosts.iter().filter(|(id, _)| *id != places.me) {
            let found = Region::open_for(&places.session, host, &places.region, places.key, RegionAccess::READ)
                .and_then(|region| Ok((number::of(&region, places.class)?, list_of(&region)?)));
            match found {
                Ok((_, Some(list))) => {
                    write(own, &list)?;
                    return Ok(list);
                }
                Ok((0, None)) => missing.push(id),
                Ok((number, None)) => all.push(Member { id, number }),
                Err(error) => {
                    tracing::debug!(group, member = id, %error, "its memory is not there yet");
                    missing.push(id);
                }
            }
        }
        let is_founder = places.hosts.iter().all(|(id, _)| *id >= places.me);
        if missing.is_empty() && is_founder {
            all.sort_unstable();
            let founded = Founded { members: all, lease_us, class: places.class };
            write(own, &founded)?;
            tracing::info!(group, members = founded.members.len(), "the group begins");
            return Ok(founded);
        }
        if begin.elapsed() >= within {
            let missing = if missing.is_empty() { vec![places.founder()] } else { missing };
            return Err(GroupError::NotFounded { group: group.to_owned(), missing, waited: within });
        }
        std::thread::sleep(PAUSE);
    }
}

pub(crate) fn write(own: &Region, founded: &Founded) -> Result<(), RegionError> {
    own.write(LIST_AT, &encode(founded))
}

/// The list in a memory; none if it has none.
pub(crate) fn list_of(region: &Region) -> Result<Option<Founded>, RegionError> {
    let mut bytes = [0; LIST_WORDS * 8];
    region.read(LIST_AT, &mut bytes)?;
    Ok(decode(&bytes))
}

pub(crate) fn encode(Founded { members, lease_us, class }: &Founded) -> Vec<u8> {
    let mut words = [0u64; LIST_WORDS];
    words[..4].copy_from_slice(&[MAGIC, *lease_us, u64::from(class.is_synced()), members.len() as u64]);
    for (place, member) in words[4..].chunks_exact_mut(2).zip(members) {
        (place[0], place[1]) = (u64::from(member.id), member.number);
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let at = bytes.len() - 8;
    let sum = crc32c::crc32c(&bytes[..at]);
    bytes[at..].copy_from_slice(&u64::from(sum).to_le_bytes());
    bytes
}

pub(crate) fn decode(bytes: &[u8]) -> Option<Founded> {
    let words: Vec<u64> =
        bytes.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(*word.first_chunk()?))).collect();
    let (&sum, rest) = words.split_last()?;
    let (&magic, rest) = rest.split_first()?;
    let (&lease_us, rest) = rest.split_first()?;
    let (&is_synced, rest) = rest.split_first()?;
    let (&count, rest) = rest.split_first()?;
    let summed = bytes.len().checked_sub(8).and_then(|at| bytes.get(..at))?;
    if magic != MAGIC || u64::from(crc32c::crc32c(summed)) != sum {
        return None;
    }
    let count = usize::try_from(count).ok().filter(|count| (1..=MEMBERS_MAX).contains(count))?;
    let member = |pair: &[u64]| Some(Member { id: u8::try_from(pair[0]).ok()?, number: pair[1] });
    let members = rest.chunks_exact(2).take(count).map(member).collect::<Option<_>>()?;
    let class = if is_synced == 1 { Class::SyncedMajority } else { Class::RamMajority };
    Some(Founded { members, lease_us, class })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written_and_nothing_else_is_one() {
        let members = vec![Member { id: 1, number: 10 }, Member { id: 200, number: u64::MAX }];
        let list = Founded { members, lease_us: 20_000, class: Class::SyncedMajority };
        let bytes = encode(&list);
        assert_eq!(bytes.len(), LIST_WORDS * 8);
        assert_eq!(decode(&bytes), Some(list));
        assert_eq!(decode(&[0; LIST_WORDS * 8]), None);
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert_eq!(decode(&torn), None, "byte {at}");
        }
        assert_eq!(decode(&bytes[..40]), None);
        assert_eq!(decode(&[]), None);
    }
}
