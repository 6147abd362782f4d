//! `raas why` and `raas doctor`, against daemons that run and daemons that do not.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::rig::{Cluster, Daemon, Ended, Running, address, raas, run, wait_until, write_key};
use serde_json::{Value, json};

const CODE_FAILED: i32 = 1;
const CODE_USAGE: i32 = 2;
const CODE_NO_DAEMON: i32 = 3;
const CODE_REFUSED: i32 = 4;

fn why(at: &Daemon, what: &str) -> Ended {
    run(&mut at.command(&["why", what, "--json"]))
}

fn alternatives(of: &Value) -> Vec<&str> {
    of["alternatives"].as_array().unwrap().iter().map(|a| a["path"].as_str().unwrap()).collect()
}

#[test]
fn a_host_is_explained_by_trying_the_way_to_it() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    for what in [b.ip.to_string(), format!("{}:7777", b.ip)] {
        let told = why(&a, &what);
        assert_eq!(told.code(), 0, "{told:?}");
        let told = told.json();
        assert_eq!(told["schema"], "raas.why/1");
        assert_eq!(
            (&told["path"], &told["reason"], &told["verb"]),
            (&json!("lane"), &json!("other-host"), &json!("write_imm"))
        );
        assert_eq!((&told["device"], &told["gid"]), (&json!("softnic"), &json!(a.ip.to_string())));
        assert_eq!(told["lane"]["state"], "up");
        assert!(told["round_trip_us"].as_f64().unwrap() > 0.0);
        assert_eq!(alternatives(&told), ["shm", "leased", "tcp", "tcp-direct"]);
    }
    let own = why(&a, &a.ip.to_string()).json();
    assert_eq!((&own["path"], &own["reason"], &own["device"]), (&json!("shm"), &json!("same-host"), &Value::Null));
    assert_eq!(alternatives(&own), ["lane", "leased", "tcp", "tcp-direct"]);
    let text = run(&mut a.command(&["why", &b.ip.to_string()])).stdout;
    assert!(text.contains("other-host") && text.contains("not       shm"), "{text}");
    // The probes left nothing behind.
    wait_until("no connection", || run(&mut a.command(&["ss", "--json"])).json()["connections"] == json!([]));
    a.stop();
    b.stop();
}

#[test]
fn a_host_that_cannot_be_reached_is_explained_with_the_code_of_the_reason() {
    let cluster = Cluster::new();
    let other_key = cluster.dir.path().join("other");
    write_key(&other_key, 9);
    let (a, stranger) = (cluster.daemon(), Daemon::start(&cluster, &other_key, address()));
    let nobody = why(&a, &address().to_string());
    assert!(nobody.json()["dials_failed"].as_u64() >= Some(1), "{}", nobody.stdout);
    assert_eq!((nobody.code(), &nobody.json()["path"]), (CODE_NO_DAEMON, &Value::Null));
    assert_eq!(nobody.json()["reason"], "peer-unreachable");
    let refused = why(&a, &stranger.ip.to_string());
    assert_eq!((refused.code(), &refused.json()["reason"]), (CODE_REFUSED, &json!("peer-auth")), "{refused:?}");
    a.stop();
    stranger.stop();
}

#[test]
fn a_connection_is_explained_by_its_number() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    for (to, path) in [(&b, "lane"), (&a, "shm")] {
        let mut receiver = Running::start(&mut to.command(&["recv", "7011"]));
        receiver.wait_for("listening on ");
        let mut sender = Running::start(a.command(&["send", "-", &format!("{}:7011", to.ip)]).stdin(Stdio::piped()));
        let mut stdin = sender.stdin();
        stdin.write_all(b"hello").unwrap();
        receiver.wait_for("hello");
        let rows = run(&mut a.command(&["ss", "--json"])).json();
        let id = rows["connections"][0]["id"].as_u64().unwrap();
        let told = why(&a, &id.to_string()).json();
        assert_eq!((&told["id"], &told["path"]), (&json!(id), &json!(path)), "{told}");
        assert_eq!(told["lane"].is_object(), path == "lane", "{told}");
        drop(stdin);
        assert_eq!(sender.end().code(), 0);
        assert_eq!(receiver.end().code(), 0);
    }
    a.stop();
    b.stop();
}

#[test]
fn what_protects_a_lane_is_explained_or_why_nothing_does() {
    let cluster = Cluster::new();
    let start = |options: &[&str]| Daemon::start_as(&cluster, options);
    let a = start(&["--encrypt", "preferred"]);
    let (wants, off, roce) = (start(&["--encrypt", "required"]), start(&[]), start(&["--wire", "roce"]));
    let told = why(&a, &wants.ip.to_string()).json();
    assert_eq!((&told["encrypted"], &told["cipher"]), (&json!(true), &json!("AES-128-GCM")), "{told}");
    assert!(told["keys_age_us"].is_u64(), "{told}");
    let text = run(&mut a.command(&["why", &wants.ip.to_string()])).stdout;
    assert!(text.contains("secrecy   AES-128-GCM, keys made "), "{text}");
    let sealed = Daemon::start_as(&cluster, &["--wire", "roce", "--encrypt", "preferred"]);
    let told = why(&a, &sealed.ip.to_string()).json();
    assert_eq!((&told["encrypted"], &told["cipher"]), (&json!(true), &json!("AES-128-GCM")), "{told}");
    assert!(told["encryption_reason"].as_str().is_some_and(|why| why.contains("each packet")), "{told}");
    sealed.stop();
    for clear in [&off, &roce] {
        let told = why(&a, &clear.ip.to_string()).json();
        assert_eq!((&told["encrypted"], &told["cipher"]), (&json!(false), &Value::Null), "{told}");
        assert_eq!(told["keys_age_us"], Value::Null);
        let text = run(&mut a.command(&["why", &clear.ip.to_string()])).stdout;
        assert!(text.contains("secrecy   in the clear: "), "{text}");
        // The other way round there is none, for a reason.
        let refused = why(&wants, &clear.ip.to_string());
        assert_eq!((refused.code(), &refused.json()["reason"]), (CODE_REFUSED, &json!("not-encrypted")), "{refused:?}");
    }
    for daemon in [a, wants, off, roce] {
        daemon.stop();
    }
}

#[test]
fn what_names_nothing_is_not_found_and_a_wrong_port_is_a_usage_error() {
    let cluster = Cluster::new();
    let a = cluster.daemon();
    for (what, code) in [("424242", CODE_FAILED), ("no such host", CODE_FAILED), ("host:port", CODE_USAGE)] {
        let ended = why(&a, what);
        assert_eq!(ended.code(), code, "{what}: {ended:?}");
        assert!(ended.stdout.is_empty() && ended.stderr.contains(what), "{what}: {ended:?}");
    }
    assert_eq!(run(&mut a.command(&["why"])).code(), CODE_USAGE);
    assert_eq!(run(&mut a.command(&["doctor", "--peer", "no such host"])).code(), CODE_FAILED);
    assert_eq!(run(&mut a.command(&["doctor", "--config", "/nonexistent/raas.toml"])).code(), CODE_USAGE);
    a.stop();
    let missing = cluster.dir.path().join("none.sock");
    let ended = run(raas().args(["why", "127.0.0.1", "--socket"]).arg(missing));
    assert_eq!(ended.code(), CODE_NO_DAEMON, "{ended:?}");
}

/// The finding with this id, about this peer or none.
fn finding<'r>(report: &'r Value, id: &str, peer: Option<&str>) -> &'r Value {
    let list = report["findings"].as_array().unwrap();
    let found = list.iter().find(|f| f["id"] == id && f["peer"].as_str() == peer);
    found.unwrap_or_else(|| panic!("no finding {id} about {peer:?}: {report}"))
}

#[test]
fn a_healthy_host_and_its_peer_are_found_so() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let peer = b.ip.to_string();
    let ended = run(&mut a.command(&["doctor", "--json", "--peer", &peer]));
    assert_eq!(ended.code(), 0, "{ended:?}");
    let report = ended.json();
    assert_eq!((&report["schema"], &report["ok"]), (&json!("raas.doctor/1"), &json!(true)));
    for id in [
        "kernel",
        "udp-offload",
        "udp-buffer",
        "daemon",
        "descriptors",
        "memlock",
        "key",
        "device",
        "gid",
        "mtu",
        "run",
    ] {
        assert_eq!(finding(&report, id, None)["ok"], true, "{id}: {report}");
    }
    for id in ["peer-link", "peer-lane", "peer-tcp", "peer-udp", "path-mtu"] {
        assert_eq!(finding(&report, id, Some(&peer))["level"], "ok", "{id}: {report}");
    }
    // The key is the one that the daemon was started with, and every warning has a fix.
    let key = finding(&report, "key", None)["value"].as_str().unwrap();
    assert_eq!(key, cluster.key().to_str().unwrap());
    for f in report["findings"].as_array().unwrap() {
        assert_eq!(f["fix"].is_null(), f["level"] == "ok", "{f}");
    }
    // Without --peer it looks at the hosts that there is a lane to.
    let text = run(&mut a.command(&["doctor"]));
    assert_eq!(text.code(), 0);
    assert!(text.stdout.contains(&format!("peer-lane {peer}")), "{text:?}");
    a.stop();
    b.stop();
}

#[test]
fn what_is_wrong_is_found_with_its_fix_and_code() {
    let cluster = Cluster::new();
    let other_key = cluster.dir.path().join("other");
    write_key(&other_key, 9);
    let (a, stranger) = (cluster.daemon(), Daemon::start(&cluster, &other_key, address()));
    let (nobody, stranger_ip) = (address().to_string(), stranger.ip.to_string());

    let ended = run(&mut a.command(&["doctor", "--json", "--peer", &nobody]));
    assert_eq!(ended.code(), CODE_NO_DAEMON, "{ended:?}");
    let report = ended.json();
    assert_eq!(report["ok"], false);
    let link = finding(&report, "peer-link", Some(&nobody));
    assert!(link["ok"] == false && link["fix"].as_str().unwrap().contains(&nobody), "{link}");
    for id in ["peer-udp", "peer-tcp"] {
        assert_eq!(finding(&report, id, Some(&nobody))["ok"], false, "{id}");
    }

    let ended = run(&mut a.command(&["doctor", "--json", "--peer", &stranger_ip]));
    assert_eq!(ended.code(), CODE_REFUSED, "{ended:?}");
    let lane = &finding(&ended.json(), "peer-lane", Some(&stranger_ip))["value"].clone();
    assert_eq!(lane, "peer-auth");

    // A key that others may read, found through the running daemon's command line.
    std::fs::set_permissions(cluster.key(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let ended = run(&mut a.command(&["doctor", "--json"]));
    assert_eq!(ended.code(), 1, "{ended:?}");
    let key = finding(&ended.json(), "key", None).clone();
    assert!(key["ok"] == false && key["fix"].as_str().unwrap().contains("chmod 600"), "{key}");
    a.stop();
    stranger.stop();

    let ended = run(raas().args(["doctor", "--json", "--socket"]).arg(cluster.dir.path().join("none.sock")));
    assert_eq!(ended.code(), CODE_NO_DAEMON, "{ended:?}");
    assert!(finding(&ended.json(), "daemon", None)["fix"].as_str().unwrap().contains("raas daemon"));
}
