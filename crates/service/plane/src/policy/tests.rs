//! Whom a tenant takes, and what it may.

use super::*;

fn program(uid: u32, gids: &[u32], cgroup: &str) -> ProgramFacts {
    let units = cgroup.split('/').map(str::to_owned).collect();
    ProgramFacts { uid, gids: gids.to_vec(), cgroup: cgroup.into(), units }
}

fn texts(list: &[&str]) -> Option<BTreeSet<String>> {
    Some(list.iter().map(|text| (*text).to_owned()).collect())
}

fn numbers(list: &[u32]) -> Option<BTreeSet<u32>> {
    Some(list.iter().copied().collect())
}

#[test]
fn the_first_tenant_whose_selectors_all_hold_takes_a_program() {
    let tenant = |name: &str, takes| Tenant { name: name.into(), takes, rights: Rights::default() };
    let policy = Policy::new(
        vec![
            tenant("web", Selector { users: numbers(&[33]), units: texts(&["nginx.service"]), ..Selector::default() }),
            tenant("pods", Selector { cgroups: texts(&["/kubepods.slice/"]), ..Selector::default() }),
            tenant("staff", Selector { groups: numbers(&[50, 51]), ..Selector::default() }),
        ],
        Rights::default(),
    )
    .unwrap();
    for (facts, name) in [
        (program(33, &[33], "/system.slice/nginx.service"), "web"),
        (program(34, &[33], "/system.slice/nginx.service"), OTHERS),
        (program(33, &[33], "/system.slice/nginx.service.d"), OTHERS),
        (program(33, &[33], "/kubepods.slice/pod1/nginx.service"), "web"),
        (program(0, &[0], "/kubepods.slice/pod1/cri-containerd-1.scope"), "pods"),
        (program(0, &[0], "/kubepods.slice"), "pods"),
        (program(0, &[51], "/kubepods.slicer"), "staff"),
        (program(1, &[52], ""), OTHERS),
    ] {
        assert_eq!(&*policy.tenant_of(&facts).name, name, "{facts:?}");
    }
}

#[test]
fn a_name_stands_once() {
    let others = Tenant { name: OTHERS.into(), takes: Selector::default(), rights: Rights::default() };
    assert_eq!(Policy::new(vec![others], Rights::default()), Err(NameTwice(OTHERS.into())));
}

#[test]
fn rights_are_everything_unless_they_are_named() {
    let all = Rights::default();
    let far = IpAddr::from([8, 8, 8, 8]);
    assert!(all.may_listen(1) && all.may_connect(far));
    let some = Rights {
        listen: Some(vec![80..=80, 7000..=7999]),
        connect: Some([IpNet::from(IpAddr::from([10, 0, 0, 1]))].into()),
        ..Rights::default()
    };
    assert!(some.may_listen(80) && some.may_listen(7999));
    assert!(!some.may_listen(81) && !some.may_listen(8000));
    assert!(some.may_connect(IpAddr::from([10, 0, 0, 1])) && !some.may_connect(far));
    let none = Rights { listen: Some(Vec::new()), connect: Some([].into()), ..Rights::default() };
    assert!(!none.may_listen(1) && !none.may_connect(far));
}
