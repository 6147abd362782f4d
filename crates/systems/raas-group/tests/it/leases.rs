//! Reads that a leader answers by itself for a time.

use std::time::{Duration, Instant};

use raas_group::GroupError;

use crate::groups::{Hosts, PATIENCE, commit, leader, read};

const LEASE: Duration = Duration::from_millis(400);

/// The others' daemons end, so no majority can be read: what is answered then is answered by a lease, or by a look before.
#[test]
fn a_leader_with_a_lease_answers_right_and_in_the_end_not_at_all() {
    let mut hosts = Hosts::new(10, 3);
    let groups = hosts.all_with(LEASE);
    commit(&groups, 1, 1, b"first");
    assert_eq!(read(&groups), [b"first"]);
    let led = groups.iter().position(|group| std::ptr::eq(group, leader(&groups))).expect("it is one of them");
    let (others, begin) = ((0..3).filter(|at| *at != led), Instant::now());
    others.for_each(|at| hosts.end(at));
    // While it still leads it answers right or not at all, and in the end not at all.
    let mut answers = 0;
    while let Ok(found) = groups[led].read(|journal| journal.0.clone()) {
        assert_eq!(found, [b"first"]);
        answers += 1;
        assert!(begin.elapsed() < PATIENCE, "{answers} answers");
    }
}

#[test]
fn a_lease_that_is_not_the_founders_is_refused() {
    let hosts = Hosts::new(11, 1);
    let groups = hosts.all_with(LEASE);
    commit(&groups, 1, 1, b"first");
    drop(groups);
    let refused = hosts.join_with(1, Duration::ZERO).expect_err("another lease");
    assert!(matches!(refused, GroupError::OtherLease { its: LEASE, given: Duration::ZERO, .. }), "{refused}");
    assert!(refused.to_string().contains("400ms"), "{refused}");
    let groups = hosts.all_with(LEASE);
    assert_eq!(read(&groups), [b"first"]);
}
