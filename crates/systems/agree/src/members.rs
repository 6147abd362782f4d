//! Who is in a group.
//!
//! Owns what a majority is. A member is a host *and* the number of its memory: one that lost its bytes has another
//! number, and must never be counted as the one that it was.

use crate::words::{put, word};

/// Members of a group, at most.
pub const MEMBERS_MAX: usize = 9;
/// Bytes of a list of members.
pub(crate) const MEMBERS_BYTES: usize = 8 + MEMBERS_MAX * 16;

/// A member: a host, and its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The host, by a number of the group's own.
    pub id: u8,
    /// The number that its memory drew when it was made.
    pub number: u64,
}

/// The members of a group at some index of its log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members(Vec<Member>);

impl Members {
    /// In the order of their hosts; of one host the last.
    #[must_use]
    pub fn new(members: &[Member]) -> Self {
        let mut list = Self::default();
        members.iter().for_each(|member| list = list.with(*member));
        list
    }

    /// How many make a majority.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.0.len() / 2 + 1
    }

    /// Whether this very memory is a member.
    #[must_use]
    pub fn contains(&self, id: u8, number: u64) -> bool {
        self.0.contains(&Member { id, number })
    }

    /// Whether the host has a memory in the group.
    #[must_use]
    pub fn has_host(&self, id: u8) -> bool {
        self.0.iter().any(|member| member.id == id)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Member> + '_ {
        self.0.iter().copied()
    }

    /// With this memory, in the place of the host's other one.
    #[must_use]
    pub(crate) fn with(&self, member: Member) -> Self {
        let mut list = self.without(member.id).0;
        list.push(member);
        list.sort_unstable();
        Self(list)
    }

    /// Without this host.
    #[must_use]
    pub(crate) fn without(&self, id: u8) -> Self {
        Self(self.iter().filter(|member| member.id != id).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; MEMBERS_BYTES];
        put(&mut bytes, 0, self.0.len() as u64);
        for (at, member) in self.iter().take(MEMBERS_MAX).enumerate() {
            put(&mut bytes, 8 + at * 16, u64::from(member.id));
            put(&mut bytes, 16 + at * 16, member.number);
        }
        bytes
    }

    /// `None`: these bytes are no list of members.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let count = usize::try_from(word(bytes, 0)?).ok().filter(|count| (1..=MEMBERS_MAX).contains(count))?;
        let member = |at: usize| {
            let id = u8::try_from(word(bytes, 8 + at * 16)?).ok()?;
            Some(Member { id, number: word(bytes, 16 + at * 16)? })
        };
        let list: Vec<Member> = (0..count).map(member).collect::<Option<_>>()?;
        list.windows(2).all(|pair| pair[0].id < pair[1].id).then_some(Self(list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written_and_nothing_else_is_one() {
        let list = Members::new(&[Member { id: 3, number: 30 }, Member { id: 1, number: 10 }]);
        assert_eq!(Members::decode(&list.encode()), Some(list.clone()));
        assert_eq!(Members::decode(&[0; MEMBERS_BYTES]), None);
        let mut twice = list.encode();
        put(&mut twice, 24, 1);
        assert_eq!(Members::decode(&twice), None, "one host twice");
        assert_eq!(Members::decode(&list.encode()[..20]), None);
    }

    #[test]
    fn a_memory_with_another_number_is_no_member() {
        let list = Members::new(&[Member { id: 1, number: 10 }, Member { id: 2, number: 20 }]);
        assert!(list.contains(1, 10) && !list.contains(1, 11) && list.has_host(1));
        assert_eq!(list.with(Member { id: 1, number: 11 }).len(), 2);
        assert_eq!((list.majority(), list.without(1).majority()), (2, 1));
    }
}
