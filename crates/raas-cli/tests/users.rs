//! A user's share of the host: one user cannot keep the others out, and the refusal names the limit.

mod rig;

use rig::{Cluster, OpenHost, Running, WATCHDOG, run, wait_until};

/// A receiver of another user. What an ended program held is given back a little later, so it may have to try again.
fn listen(host: &OpenHost, port: &str) -> Running {
    let begin = std::time::Instant::now();
    loop {
        let mut receiver = Running::start(&mut host.as_nobody(&["recv", port]));
        wait_until("an answer", || receiver.has_ended() || receiver.stderr().contains("listening on "));
        if !receiver.has_ended() {
            return receiver;
        }
        assert!(begin.elapsed() < WATCHDOG, "refused for ever: {}", receiver.stderr());
    }
}

#[test]
fn a_user_has_a_share_of_each_table_and_others_have_theirs() {
    let name = "a_user_has_a_share_of_each_table_and_others_have_theirs";
    for (limits, named) in [
        ("apps_per_user_max = 2", "apps_per_user_max"),
        ("listeners_max = 8", "listeners_per_user_max"),
        ("clients_max = 8", "clients_per_user_max"),
    ] {
        let cluster = Cluster::new();
        let Some(host) = OpenHost::start(&cluster, name, limits) else { return };
        let mut held = vec![listen(&host, "7021"), listen(&host, "7022")];
        let refused = run(&mut host.as_nobody(&["recv", "7023"]));
        assert_eq!(refused.code(), 4, "{limits}: {refused:?}");
        assert!(refused.stderr.contains(named), "{limits}: {refused:?}");
        let mut others: Vec<_> =
            ["7024", "7025", "7026"].map(|p| Running::start(&mut host.as_owner(&["recv", p]))).into();
        others.iter_mut().for_each(|o| o.wait_for("listening on "));
        held.pop();
        listen(&host, "7023");
    }
}
