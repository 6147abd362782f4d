//! `raas policy check`, `raas stat --tenant`, and what a policy refuses, through the commands.

use crate::rig::{Cluster, Daemon, Ended, raas, run};

const POLICY: &str = r#"
[[tenant]]
name = "mine"
users = [UID]
listen = [7000, "7100-7199"]
connect = ["127.0.0.1"]
regions = "open"
listeners_max = 1

[others]
listen = []
"#;

fn own(text: &str) -> String {
    text.replace("UID", &rustix::process::geteuid().as_raw().to_string())
}

fn policy(args: &[&str]) -> Ended {
    run(raas().args(["policy", "check"]).args(args))
}

#[test]
fn a_policy_is_checked_and_says_whose_a_process_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.toml");
    std::fs::write(&file, own(POLICY)).unwrap();
    let path = file.to_str().unwrap();
    let pid = std::process::id().to_string();
    let checked = policy(&[path, "--pid", &pid, "--json"]);
    assert_eq!(checked.code(), 0, "{checked:?}");
    let value = checked.json();
    assert_eq!((&value["schema"], &value["tenant"]), (&"raas.policy/1".into(), &"mine".into()));
    let mine = &value["tenants"][0];
    assert_eq!(
        (&mine["listen"][1][1], &mine["regions"], &mine["listeners_max"]),
        (&7199.into(), &"open".into(), &1.into())
    );
    assert_eq!(value["tenants"][1]["listen"], serde_json::json!([]));
    let text = policy(&[path]).stdout;
    assert!(text.contains("7000, 7100-7199") && text.contains("1 listeners") && text.contains("none"), "{text}");

    std::fs::write(&file, own(POLICY).replace("listeners_max", "listener_max")).unwrap();
    let wrong = policy(&[path]);
    assert_eq!(wrong.code(), 2);
    assert!(
        wrong
            .stderr
            .contains(&format!("{path}:8: tenant \"mine\": unknown key `listener_max`; did you mean `listeners_max`?")),
        "{wrong:?}"
    );
    let none = policy(&["/no/such/file"]);
    assert!(none.code() == 2 && none.stderr.contains("/no/such/file: "), "{none:?}");
}

#[test]
fn what_a_policy_does_not_give_is_refused_with_its_code_and_tenants_are_shown() {
    let cluster = Cluster::new();
    let place = cluster.dir.path();
    let (policy, config) = (place.join("policy.toml"), place.join("raasd.toml"));
    std::fs::write(&policy, own(POLICY)).unwrap();
    std::fs::write(&config, format!("policy = {policy:?}\n")).unwrap();
    let host = Daemon::start_as(&cluster, &["--config", config.to_str().unwrap()]);
    let made = run(&mut host.command(&["region", "create", "r", "4096"]));
    assert_eq!(made.code(), 4, "{made:?}");
    let refused = run(&mut host.command(&["recv", "6999"]));
    assert!(refused.code() == 4 && refused.stderr.contains("policy"), "{refused:?}");
    let shown = run(&mut host.command(&["stat", "--tenant", "--json"])).json();
    assert_eq!((&shown["tenants"][0]["name"], &shown["tenants"][0]["listeners_max"]), (&"mine".into(), &1.into()));
    let text = run(&mut host.command(&["stat", "--tenant"])).stdout;
    assert!(text.contains("mine") && text.contains("0 of 1"), "{text}");
    host.stop();
}
