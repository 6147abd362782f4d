//! `raas region`: made, looked at, changed, listed and revoked from a shell.

use crate::rig::{self, Cluster, Daemon, Ended, run};

const KEY: &str = "00112233445566778899aabbccddeeff";

fn region(at: &Daemon, args: &[&str]) -> Ended {
    run(&mut at.command(&[&["region"], args].concat()))
}

#[test]
fn a_region_lives_from_create_to_revoke() {
    let cluster = Cluster::new();
    let host = cluster.daemon();
    let made = region(&host, &["create", "counters", "1M", "--key", KEY, "--json"]);
    assert_eq!(made.code(), 0, "{made:?}");
    let made = made.json();
    assert_eq!((&made["schema"], &made["key"]), (&"raas.region/1".into(), &KEY.into()));
    let row = &made["regions"][0];
    assert_eq!((&row["bytes"], &row["epoch"], &row["outlives"]), (&(1 << 20).into(), &1.into(), &true.into()));
    let random = region(&host, &["create", "other", "8", "--json"]).json();
    assert!(random["key"].as_str().is_some_and(|key| key.len() == 32 && key != KEY));

    let add = ["open", "counters", "--key", KEY, "--offset", "8", "--add", "5", "--json"];
    assert_eq!(region(&host, &add).json()["before"], 0);
    assert_eq!(region(&host, &add).json()["before"], 5);
    let read = region(&host, &["open", "counters", "--key", KEY, "--offset", "8", "--read", "9", "--json"]).json();
    assert_eq!(read["data"], "0a0000000000000000");

    let listed = region(&host, &["ls", "--json"]).json();
    assert_eq!(listed["schema"], "raas.region/1");
    let rows = listed["regions"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (key, value) in [("name", "counters".into()), ("owner_pid", serde_json::Value::Null), ("domain", "cpu".into())]
    {
        assert_eq!(rows[0][key], value);
    }
    let text = region(&host, &["ls"]).stdout;
    assert!(text.contains("counters") && text.contains("1,048,576") && !text.contains(KEY), "{text}");

    let revoked = region(&host, &["revoke", "counters", "--key", KEY, "--json"]).json();
    assert_eq!((&revoked["schema"], &revoked["regions"][0]["epoch"]), (&"raas.region/1".into(), &2.into()));
    assert_eq!(region(&host, &["ls", "--json"]).json()["regions"].as_array().unwrap().len(), 1);
    host.stop();
}

#[test]
fn what_cannot_be_has_its_code_and_its_words() {
    let cluster = Cluster::new();
    let host = cluster.daemon();
    region(&host, &["create", "r", "100", "--key", KEY, "--access", "read"]);
    let wrong = "ff112233445566778899aabbccddeeff";
    let cases: &[(&[&str], i32, &str)] = &[
        (&["open", "none", "--key", KEY], 4, "no region of this name"),
        (&["open", "r", "--key", wrong], 4, "the key is not"),
        (&["open", "r", "--key", "12"], 2, "32 hexadecimal digits"),
        (&["open", "r"], 2, "--key-file"),
        (&["open", "r", "--key", KEY, "--add", "1"], 4, "atomic was asked for, and the region allows read"),
        (&["open", "r", "--key", KEY, "--offset", "100"], 2, "64 bytes at offset 100"),
        (&["create", "r", "1"], 4, "already"),
        (&["create", "s", "0"], 2, "0"),
        (&["create", "s", "10T"], 2, "1T"),
        (&["create", "s", "8", "--access", "fly"], 2, "fly"),
        (&["create", &"x".repeat(65), "8"], 2, "65 bytes"),
        (&["revoke", "r", "--key", wrong], 4, "the key is not"),
    ];
    for (args, code, words) in cases {
        let ended = region(&host, args);
        assert_eq!(ended.code(), *code, "{args:?}: {ended:?}");
        assert!(ended.stderr.contains(words), "{args:?}: {ended:?}");
    }
    host.stop();
    assert_eq!(run(rig::raas().args(["region", "ls", "--socket", "/nonexistent/raasd.sock"])).code(), 3);
}
