//! Lanes that operators reset, and daemons that take this one's place.

use control::{HandOverRefusal, InspectAnswer, Successor};

use super::*;

fn asker(uid: u32) -> Party {
    Party { client: client(9), pid: 9, uid }
}

fn actions(d: &mut Machine) -> Vec<Action<(), ()>> {
    std::iter::from_fn(|| d.poll_action(Time::ZERO)).collect()
}

fn answer(actions: &[Action<(), ()>]) -> Option<&InspectAnswer> {
    match actions {
        [Action::Reply { reply: Reply::Inspected { answer, .. }, .. }] => Some(answer),
        _ => None,
    }
}

#[test]
fn a_lane_is_reset_at_each_engine_and_for_operators_alone() {
    let mut d = daemon(Encrypt::Off);
    let reset = Request::ResetLane { request: 5, peer: ip(PEER) };
    assert_eq!(d.handle_operator(asker(1000), reset.clone()), None);
    assert!(matches!(&actions(&mut d)[..], [Action::Detach { reason: Reason::Policy, .. }]));
    assert_eq!(d.handle_operator(asker(0), reset), None);
    let asked = actions(&mut d);
    assert!(
        matches!(&asked[..], [Action::ResetLane { engine: 0, .. }, Action::ResetLane { engine: 1, .. }]),
        "{asked:?}"
    );
    d.on_lane_was_reset(client(9), 5, true);
    assert!(actions(&mut d).is_empty(), "one engine has not answered");
    d.on_lane_was_reset(client(9), 5, false);
    assert_eq!(answer(&actions(&mut d)), Some(&InspectAnswer::LaneReset(true)));
    d.on_lane_was_reset(client(9), 5, false);
    assert!(actions(&mut d).is_empty(), "it was answered");
}

#[test]
fn a_daemon_makes_way_for_one_with_which_programs_and_peers_can_go_on() {
    let SessionShape { slots, engines } = SHAPE;
    let same = Successor { slots, engines, peer_address: (ip(OWN), 1).into() };
    let ask = |d: &mut Machine, uid, successor| {
        assert_eq!(d.handle_operator(asker(uid), Request::HandOver { request: 1, successor }), None);
        actions(d)
    };
    let mut d = daemon(Encrypt::Off);
    assert!(matches!(&ask(&mut d, 1000, same)[..], [Action::Detach { reason: Reason::Policy, .. }]));
    let refused = |why| Some(InspectAnswer::HandsOver(Err(why)));
    let other_sessions = ask(&mut d, 0, Successor { slots: slots + 1, ..same });
    assert_eq!(answer(&other_sessions).cloned(), refused(HandOverRefusal::Sessions { slots, engines }));
    let elsewhere = ask(&mut d, 0, Successor { peer_address: (ip(OWN), 2).into(), ..same });
    assert_eq!(answer(&elsewhere).cloned(), refused(HandOverRefusal::PeerAddress(same.peer_address)));
    assert!(!d.hands_over());
    d.operators.place.is_managers = true;
    assert_eq!(answer(&ask(&mut d, 0, same)).cloned(), refused(HandOverRefusal::ServiceManager));
    d.operators.place.is_managers = false;
    assert_eq!(answer(&ask(&mut d, 0, same)), Some(&InspectAnswer::HandsOver(Ok(()))));
    assert!(d.hands_over());
}
