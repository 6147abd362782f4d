//! A user's share of the host: one user cannot keep the others out, and the refusal names the limit.

use crate::rig::{Cluster, OpenHost, Running, WATCHDOG, run, wait_until};

/// A receiver of another user. The daemon releases what an ended program held a little later, so the receiver may have
/// to try again.
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
fn a_user_sees_its_own_connections_and_others_are_as_if_they_were_not() {
    let name = "a_user_sees_its_own_connections_and_others_are_as_if_they_were_not";
    let cluster = Cluster::new();
    let Some(host) = OpenHost::start(&cluster, name, "") else { return };
    let mut receiver = Running::start(&mut host.as_owner(&["recv", "7031"]));
    receiver.wait_for("listening on ");
    let to = format!("{}:7031", host.ip);
    let sender = Running::start(host.as_owner(&["send", "-", &to]).stdin(std::process::Stdio::piped()));
    let rows = || run(&mut host.as_owner(&["ss", "--json"])).json()["connections"].as_array().unwrap().clone();
    wait_until("both ends are there", || rows().len() == 2);
    let id = rows()[0]["id"].to_string();
    assert_eq!(run(&mut host.as_owner(&["why", &id])).code(), 0);
    let shown = run(&mut host.as_nobody(&["ss", "--json"])).json();
    assert_eq!(shown["connections"].as_array().map(Vec::len), Some(0), "{shown}");
    let told = |id: &str| {
        let ended = run(&mut host.as_nobody(&["why", id]));
        (ended.code(), ended.stderr.replace(id, "ID"))
    };
    let (unknown, others) = (told("999999999"), told(&id));
    assert_eq!(unknown, others, "another user's connection is no other than one that does not exist");
    assert_eq!(unknown.0, 1);
    let stat = run(&mut host.as_nobody(&["stat", "--json"])).json();
    for key in ["device", "lanes", "rc_qps", "ud_qps", "cqs", "srqs", "srq_free", "mrs", "pinned_bytes", "fds", "drops"]
    {
        assert!(stat.get(key).is_some(), "{key}");
    }
    let nothing = serde_json::json!([]);
    assert_eq!((&stat["apps"], &stat["all_users"]), (&nothing, &serde_json::json!(false)));
    let stat = || run(&mut host.as_owner(&["stat", "--json"])).json();
    assert_eq!(stat()["all_users"], true);
    wait_until("the programs of this user are left", || stat()["apps"].as_array().is_some_and(|apps| apps.len() == 2));
    drop((sender, receiver));
}

#[test]
fn a_user_has_a_share_of_each_table_and_others_have_theirs() {
    let name = "a_user_has_a_share_of_each_table_and_others_have_theirs";
    for (limits, named) in [
        ("apps_max = 8", "`apps_max`"),
        ("listeners_max = 8", "`listeners_max` or `user_share_percent`"),
        ("clients_max = 8", "limits.clients_max, limits.user_share_percent"),
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

/// Processes that are killed and reaped when the test ends, however it ends.
struct Crowd(Vec<std::process::Child>);

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

#[test]
fn three_hundred_processes_of_one_user_fit_a_daemon_without_any_settings() {
    const PROCESSES: usize = 300;
    let cluster = Cluster::new();
    let name = "three_hundred_processes_of_one_user_fit_a_daemon_without_any_settings";
    // As many shells give a program: far too few descriptors, of which it may have more.
    let Some(host) = OpenHost::start_under(&cluster, name, "", "ulimit -Sn 256") else { return };
    let quiet = |port: usize| {
        let mut command = host.as_nobody(&["recv", &port.to_string()]);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap()
    };
    let mut crowd = Crowd((0..PROCESSES).map(|i| quiet(20_000 + i)).collect());
    let attached = || run(&mut host.as_owner(&["stat", "--json"])).json()["apps"].as_array().unwrap().len();
    wait_until("all of them", || {
        let gone = crowd.0.iter_mut().find_map(|child| child.try_wait().unwrap());
        assert!(gone.is_none(), "one was refused: {gone:?}");
        attached() == PROCESSES
    });
    let stat = run(&mut host.as_owner(&["stat", "--json"])).json();
    let descriptors = stat["fds"].as_u64().unwrap();
    assert!(descriptors > 256, "{descriptors}");
    // What the daemon reckons with when it fits its limits to the machine.
    assert!(descriptors < 512 + 8 * PROCESSES as u64, "{descriptors} descriptors of {PROCESSES} programs");
}

#[test]
fn members_of_the_socket_group_may_use_the_daemon_and_others_may_not() {
    let name = "members_of_the_socket_group_may_use_the_daemon_and_others_may_not";
    let cluster = Cluster::new();
    let Some(host) = OpenHost::start_for_group(&cluster, name) else { return };
    let member = run(&mut host.as_nobody(&["stat", "--json"]));
    assert_eq!(member.code(), 0, "{member:?}");
    assert_eq!(member.json()["device"], "softnic");
    let mut stranger = host.as_nobody(&["stat", "--json"]);
    let stranger = run(std::os::unix::process::CommandExt::gid(&mut stranger, 4242));
    assert_eq!(stranger.code(), 4, "{stranger:?}");
    assert!(stranger.stderr.contains("socket_group"), "{stranger:?}");
}
