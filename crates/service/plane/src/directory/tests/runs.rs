//! Kernels that the daemon runs for programs of this host.

use super::*;

#[test]
fn a_run_needs_handles_that_allow_it_and_a_revoke_ends_runs_first() {
    let mut desk = desk();
    let (owner, user) = (party(1, 5), party(2, 5));
    let all = RegionAccess::ALL | RegionAccess::EXECUTE;
    let made = desk.create(owner, RegionSpec { access: all, ..spec("a", 100) }).unwrap();
    let other = desk.create(owner, spec("b", 100)).unwrap();
    let runs = desk.open(user, RegionWish { access: RegionAccess::EXECUTE, ..wish("a") }).unwrap();
    let reads = desk.open(user, RegionWish { access: RegionAccess::READ, ..wish("a") }).unwrap();
    let begin = |desk: &mut Desk, by: Party, opens: &[u64]| desk.directory.begin_run(by.client, opens);
    let (asked, allowed) = (RegionAccess::EXECUTE, RegionAccess::READ);
    assert_eq!(begin(&mut desk, user, &[reads.open]), Err(RegionRefusal::NoAccess { asked, allowed }));
    assert_eq!(begin(&mut desk, user, &[made.open]), Err(RegionRefusal::Unknown), "another program's handle");
    assert_eq!(begin(&mut desk, user, &[runs.open, other.open]), Err(RegionRefusal::Unknown));
    // Nothing ran: a revoke has nothing to wait for.
    desk.directory.handle_revoke(T0, owner, 9, ("b", KEY), None);
    desk.settle();
    assert!(desk.far.is_empty(), "{:?}", desk.far);
    // The first handle needs the right, the others bring what they allow.
    let (region, access) = (made.info.region, RegionAccess::EXECUTE);
    let places = begin(&mut desk, user, &[runs.open, reads.open]);
    assert_eq!(places, Ok(vec![(region, access), (region, RegionAccess::READ)]));
    assert_eq!(begin(&mut desk, owner, &[made.open]), Ok(vec![(region, all)]));
    desk.directory.handle_revoke(T0, owner, 10, ("a", KEY), None);
    assert_eq!(begin(&mut desk, user, &[runs.open]), Err(RegionRefusal::Busy), "none begins from here on");
    desk.settle();
    assert_eq!(
        desk.far,
        [DirectoryAction::Engine(RegionCommand::Deregister { region, epoch: 1 })],
        "the engine ends them"
    );
    assert_eq!(begin(&mut desk, user, &[runs.open]), Err(RegionRefusal::Unknown));
    desk.directory.handle_moved(owner.client, made.open, 2);
    desk.settle();
    desk.far.clear();
    // Of the new epoch nothing ran yet.
    desk.directory.handle_revoke(T0, owner, 11, ("a", KEY), None);
    desk.settle();
    assert!(desk.far.is_empty(), "{:?}", desk.far);
}
