//! A group as somebody sees it who is no member: from the members' memories, by READs.
//!
//! Owns what is said of it. Memories are looked at one after another while the group goes on, so it must take nothing for
//! missing that came later: a memory lags behind what was committed before it was looked at.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use agree::{Beat, Glance, Glanced, Kept, Member, OWNER_AT, Sight, Term};
use raas::{Region, RegionAccess, RegionKey, Session};

use crate::builder::{group_number, region_name};
use crate::class::Class;
use crate::error::GroupError;
use crate::founding::{self, Founded};
use crate::number;
use crate::sign::{self, Sign};

/// A program whose beat stands still for so many periods is taken for dead, but for no less than the second.
const STILL_PERIODS: u32 = 20;
const STILL: Duration = Duration::from_millis(200);
/// A memory that says that its program's periods are longer may be a liar's, and nobody waits for that.
const PERIOD_MAX: Duration = Duration::from_secs(1);

/// A group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Its name.
    pub name: String,
    /// What its acknowledgements are worth.
    pub class: Class,
    /// The round of the greatest term that any memory has.
    pub term: u64,
    /// The host of the member that leads in it, if its program lives.
    pub leader: Option<IpAddr>,
    /// The last entry that is known to be committed.
    pub commit: u64,
    /// The members, by their numbers.
    pub members: Vec<MemberStatus>,
    /// How often another program came to lead after the first one, as the memories that can be seen have counted.
    pub fail_overs: u64,
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberStatus {
    /// Its number in the group.
    pub id: u8,
    /// Its host; none if the member that was asked did not know it.
    pub host: Option<IpAddr>,
    /// What it is.
    pub role: MemberRole,
    /// Bytes of what is committed that its memory does not have; none if the memory cannot be seen.
    pub lag_bytes: Option<u64>,
    /// Bytes of what is committed that its file does not have; none if the group has no files, or the memory cannot be seen.
    pub synced_lag_bytes: Option<u64>,
    /// The system's error number for which its program writes its file no more, and the member does not count.
    pub file_fault: Option<u64>,
    /// Whether its program lives: its beat goes on.
    pub alive: bool,
}

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberRole {
    /// The last one to lead. It does, if its program lives.
    Leader,
    /// It tries to.
    Candidate,
    /// It learns.
    Follower,
    /// Its memory is a new one, which does not count before it has caught up.
    Joining,
    /// Its memory cannot be seen.
    Unreachable,
}

impl MemberRole {
    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Candidate => "candidate",
            Self::Follower => "follower",
            Self::Joining => "joining",
            Self::Unreachable => "unreachable",
        }
    }
}

/// What a program says of itself in its host's memory, and which memory that is.
#[derive(Debug, Clone, Copy)]
struct Facts {
    id: u8,
    number: u64,
    leads: Term,
    alive: bool,
    led: u64,
    /// What it says of its file, if it has one.
    kept: Option<Kept>,
}

/// Looks at a group's memories, beginning with that of `host`, which says who the others are.
pub fn status(session: &Session, host: IpAddr, name: &str, key: RegionKey) -> Result<Status, GroupError> {
    let first = Region::open_for(session, host, &region_name(name), key, RegionAccess::READ)?;
    let (Some(sign), Some(founded)) = (Sign::read(&first)?, founding::list_of(&first)?) else {
        return Err(GroupError::NotOpened { group: name.to_owned(), host });
    };
    drop(first);
    let Founded { members: founders, class, .. } = founded;
    let look = |&(id, at): &(u8, IpAddr)| facts(session, (id, at), (name, key), (sign.period_us, class));
    let mut seen: Vec<(Facts, Region)> = std::thread::scope(|scope| {
        let looks: Vec<_> = sign.hosts.iter().map(|host| scope.spawn(move || look(host))).collect();
        // One that panicked has seen nothing.
        looks.into_iter().filter_map(|look| look.join().ok().flatten()).collect()
    });
    // Whoever leads is looked at first: what others have later is no less.
    seen.sort_by_key(|(facts, _)| std::cmp::Reverse((facts.alive, facts.leads)));
    let seen = seen.iter().filter_map(|(facts, region)| Some((*facts, sight(region, name, &sign, &founders)?)));
    Ok(put_together((name, class), &sign.hosts, &seen.collect::<Vec<_>>()))
}

/// None: the memory cannot be seen.
fn facts(
    session: &Session,
    (id, host): (u8, IpAddr),
    (name, key): (&str, RegionKey),
    (period_us, class): (u64, Class),
) -> Option<(Facts, Region)> {
    let region = Region::open_for(session, host, &region_name(name), key, RegionAccess::READ).ok()?;
    let beat = || {
        let mut bytes = [0; Beat::BYTES];
        region.read(OWNER_AT, &mut bytes).ok()?;
        Beat::decode(&bytes)
    };
    let period = Duration::from_micros(period_us).min(PERIOD_MAX);
    let (first, begin) = (beat()?, Instant::now());
    let mut last = first;
    while last.beat == first.beat && begin.elapsed() < STILL.max(period * STILL_PERIODS) {
        std::thread::sleep(period);
        last = beat()?;
    }
    let (alive, led) = (last.beat != first.beat, sign::led(&region).ok()?);
    let number = number::of(&region, class).ok()?;
    let kept = || {
        let mut bytes = [0; Kept::BYTES];
        region.read(Kept::AT, &mut bytes).ok()?;
        Kept::decode(&bytes)
    };
    let kept = class.is_synced().then(kept).flatten();
    Some((Facts { id, number, leads: last.leads, alive, led, kept }, region))
}

/// What a memory holds; none if it is another group's, or lost meanwhile.
fn sight(region: &Region, name: &str, sign: &Sign, founders: &[Member]) -> Option<Sight> {
    let (group, members) = (group_number(name), founders.to_vec());
    let (mut glance, mut next) = Glance::begin(group, sign.layout, members, sign.command_bytes_max, region.id());
    loop {
        match next {
            Glanced::Read { offset, bytes } => {
                let mut found = vec![0; bytes];
                region.read(offset, &mut found).ok()?;
                next = glance.on_read(&found);
            }
            Glanced::Seen(sight) => return Some(sight),
            Glanced::Foreign => return None,
        }
    }
}

fn put_together((name, class): (&str, Class), hosts: &[(u8, IpAddr)], seen: &[(Facts, Sight)]) -> Status {
    let term = seen.iter().map(|(_, sight)| sight.term).max().unwrap_or(Term::NONE);
    let leads = |facts: &Facts| facts.id == term.member() && facts.leads == term;
    // What the leader has, who was looked at first, others must have. Without one nothing changes meanwhile.
    let of_leader = seen.first().filter(|(facts, _)| facts.alive && leads(facts));
    let known = seen.iter().max_by_key(|(_, sight)| sight.commit);
    let (commit, commit_end) = of_leader.or(known).map_or((0, 0), |(_, sight)| (sight.commit, sight.commit_end));
    let members = seen.iter().max_by_key(|(_, sight)| sight.last).map(|(_, sight)| &sight.members);
    let member = |member: Member| {
        let host = hosts.iter().find(|(id, _)| *id == member.id).map(|(_, host)| *host);
        let found = seen.iter().find(|(facts, _)| facts.id == member.id);
        let role = match found.map(|(facts, _)| facts) {
            None => MemberRole::Unreachable,
            Some(facts) if facts.number != member.number => MemberRole::Joining,
            Some(facts) if leads(facts) => MemberRole::Leader,
            Some(facts) if facts.leads > Term::NONE => MemberRole::Candidate,
            Some(_) => MemberRole::Follower,
        };
        let lag_bytes = found.map(|(_, sight)| commit_end.saturating_sub(sight.end));
        let kept = found.and_then(|(facts, _)| facts.kept);
        MemberStatus {
            id: member.id,
            host,
            role,
            lag_bytes,
            synced_lag_bytes: kept.map(|kept| commit_end.saturating_sub(kept.end)),
            file_fault: kept.map(|kept| kept.fault).filter(|fault| *fault != 0),
            alive: found.is_some_and(|(facts, _)| facts.alive),
        }
    };
    let members: Vec<MemberStatus> = members.into_iter().flat_map(|members| members.iter().map(member)).collect();
    let leader = members.iter().find(|member| member.role == MemberRole::Leader && member.alive);
    let led = seen.iter().fold(0u64, |sum, (facts, _)| sum.saturating_add(facts.led));
    Status {
        name: name.to_owned(),
        class,
        term: term.round(),
        leader: leader.and_then(|member| member.host),
        commit,
        fail_overs: led.saturating_sub(1),
        members,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agree::Members;

    const fn host(id: u8) -> (u8, IpAddr) {
        (id, IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, id)))
    }

    const HOSTS: [(u8, IpAddr); 3] = [host(1), host(2), host(3)];

    fn facts(id: u8, leads: Term, alive: bool) -> Facts {
        Facts { id, number: u64::from(id) * 10, leads, alive, led: 1, kept: None }
    }

    fn sight(term: Term, last: u64, commit: u64) -> Sight {
        let members = Members::new(&[1, 2, 3].map(|id| Member { id, number: u64::from(id) * 10 }));
        Sight { term, last, end: last * 128, commit, commit_end: commit * 128, members }
    }

    #[test]
    fn a_memory_lags_behind_what_the_leader_had_committed_and_no_more() {
        let term = Term::new(7, 2);
        let seen = [
            (facts(2, term, true), sight(term, 100, 99)),
            // Looked at later, it has more.
            (facts(1, Term::NONE, true), sight(term, 120, 119)),
            (facts(3, Term::NONE, false), sight(Term::new(5, 1), 90, 80)),
        ];
        let status = put_together(("g", Class::RamMajority), &HOSTS, &seen);
        assert_eq!((status.term, status.leader, status.commit), (7, Some(HOSTS[1].1), 99));
        assert_eq!(status.fail_overs, 2);
        let lags: Vec<_> = status.members.iter().map(|member| (member.role.name(), member.lag_bytes)).collect();
        assert_eq!(lags, [("follower", Some(0)), ("leader", Some(0)), ("follower", Some(9 * 128))]);
        assert_eq!(status.members.iter().map(|member| member.alive).collect::<Vec<_>>(), [true, true, false]);
    }

    #[test]
    fn nobody_leads_whose_program_is_silent_and_a_memory_that_is_gone_has_no_lag() {
        let term = Term::new(7, 2);
        let mut stranger = facts(1, Term::NONE, true);
        stranger.number = 99;
        let seen = [(stranger, sight(Term::NONE, 0, 0)), (facts(2, term, false), sight(term, 100, 99))];
        let status = put_together(("g", Class::RamMajority), &HOSTS, &seen);
        assert_eq!((status.term, status.leader, status.commit), (7, None, 99));
        let roles: Vec<_> = status.members.iter().map(|member| (member.role.name(), member.lag_bytes)).collect();
        assert_eq!(roles, [("joining", Some(99 * 128)), ("leader", Some(0)), ("unreachable", None)]);
        assert_eq!(status.members[0].host, Some(HOSTS[0].1));
    }

    #[test]
    fn counts_that_nobody_can_have_counted_are_only_large() {
        let liar = |id| Facts { led: u64::MAX, ..facts(id, Term::NONE, true) };
        let seen = [1, 2].map(|id| (liar(id), sight(Term::new(7, 2), 100, 99)));
        assert_eq!(put_together(("g", Class::RamMajority), &HOSTS, &seen).fail_overs, u64::MAX - 1);
    }
}
