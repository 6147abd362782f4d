//! `raas group status`: a group as a shell sees it, by its members' memories and by the daemon alone.

use std::net::IpAddr;
use std::path::Path;

use raas::RegionKey;
use raas_group::{BadSnapshot, Group, GroupBuilder, Machine, Role};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::rig::{self, Cluster, Daemon, Ended, WATCHDOG, run, wait_until};

const KEY: &str = "47474747474747474747474747474747";
/// More than are under way to one memory at a time.
const COMMANDS: u32 = 200;

/// How many commands there were.
struct Count(u64);

impl Machine for Count {
    fn apply(&mut self, _: u64, _: &[u8]) -> Vec<u8> {
        self.0 += 1;
        Vec::new()
    }
    fn save(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.0.to_le_bytes());
    }
    fn load(&mut self, bytes: &[u8]) -> Result<(), BadSnapshot> {
        self.0 = u64::from_le_bytes(bytes.try_into().map_err(|_| BadSnapshot)?);
        Ok(())
    }
}

/// All members' programs.
fn join(daemons: &[Daemon]) -> Vec<Group<Count>> {
    join_with(daemons, None)
}

/// With a directory for each below that one.
fn join_with(daemons: &[Daemon], dir: Option<&Path>) -> Vec<Group<Count>> {
    let hosts: Vec<(u8, IpAddr)> = (1..).zip(daemons.iter().map(|daemon| daemon.ip)).collect();
    let open = |(me, daemon): (u8, &Daemon)| {
        let key: RegionKey = KEY.parse().unwrap();
        let group = GroupBuilder::new("orders", key)
            .members(&hosts)
            .me(me)
            .command_bytes_max(1024)
            .log_lines(1024)
            .founded_within(WATCHDOG);
        let group = match dir {
            Some(dir) => group.synced(dir.join(me.to_string())),
            None => group,
        };
        group.open(&daemon.session("member"), Count(0)).unwrap()
    };
    std::thread::scope(|scope| {
        let joins: Vec<_> = (1..).zip(daemons).map(|member| scope.spawn(move || open(member))).collect();
        joins.into_iter().map(|join| join.join().unwrap()).collect()
    })
}

fn leader(groups: &[Group<Count>]) -> usize {
    let leads = |group: &Group<Count>| matches!(group.role(), Role::Leader { .. });
    wait_until("somebody leads", || groups.iter().any(leads));
    groups.iter().position(leads).unwrap_or_else(|| leader(groups))
}

/// By whoever leads: on a busy machine that may be another one at any time.
fn propose(groups: &[Group<Count>], command: &[u8]) {
    wait_until("a command is committed", || groups[leader(groups)].propose(command).is_ok());
}

fn status(at: &Daemon, args: &[&str]) -> Ended {
    run(&mut at.command(&[&["group", "status"], args].concat()))
}

fn seen(at: &Daemon) -> Value {
    let ended = status(at, &["orders", "--key", KEY, "--json"]);
    assert_eq!(ended.code(), 0, "{ended:?}");
    let value = ended.json();
    assert_eq!(value["schema"], "raas.group/1");
    value["groups"][0].clone()
}

fn of(group: &Value, key: &str) -> Vec<Value> {
    group["members"].as_array().unwrap().iter().map(|member| member[key].clone()).collect()
}

/// Who leads, by the members' programs and by their memories, which have all that is committed.
fn at_rest(daemons: &[Daemon], groups: &[Group<Count>]) -> (usize, Value) {
    let mut found = None;
    wait_until("programs and memories say the same", || {
        let led = leader(groups);
        let shown = seen(&daemons[(led + 1) % 3]);
        let roles = (0..3).map(|at| json!(if at == led { "leader" } else { "follower" }));
        let same = shown["leader"] == json!(daemons[led].ip)
            && of(&shown, "role") == roles.collect::<Vec<_>>()
            && of(&shown, "lag_bytes") == vec![json!(0); 3];
        found = Some((led, shown));
        same
    });
    found.unwrap()
}

#[test]
fn lag_and_fail_overs_are_shown_by_the_memories_themselves() {
    let cluster = Cluster::new();
    let daemons = [cluster.daemon(), cluster.daemon(), cluster.daemon()];
    let groups = join(&daemons);
    propose(&groups, b"first");
    let hosts: Vec<Value> = daemons.iter().map(|daemon| json!(daemon.ip)).collect();
    let (led, shown) = at_rest(&daemons, &groups);
    assert_eq!((&shown["name"], of(&shown, "host")), (&json!("orders"), hosts));
    assert_eq!(of(&shown, "alive"), vec![json!(true); 3]);
    let (term, commit) = (shown["term"].as_u64().unwrap(), shown["commit"].as_u64().unwrap());
    let fail_overs = shown["fail_overs"].as_u64().unwrap();
    assert!(term > 0 && commit > 0, "{shown}");

    // One memory gets nothing more, and then no program is left.
    let stopped = (led + 2) % 3;
    daemons[stopped].process.signal(Signal::STOP);
    for _ in 0..COMMANDS {
        propose(&groups, &[7; 64]);
    }
    drop(groups);
    daemons[stopped].process.signal(Signal::CONT);
    let shown = seen(&daemons[led]);
    assert_eq!((&shown["leader"], of(&shown, "alive")), (&Value::Null, vec![json!(false); 3]), "{shown}");
    assert!(shown["commit"].as_u64().unwrap() > commit + 100, "{shown}");
    for at in 0..3 {
        let lags = shown["members"][at]["lag_bytes"].as_u64().unwrap() > 0;
        assert_eq!(lags, at == stopped, "{shown}");
    }

    // Programs come back: somebody leads in a higher term, and the memory catches up.
    let groups = join(&daemons);
    propose(&groups, b"last");
    let (led, shown) = at_rest(&daemons, &groups);
    assert!(shown["term"].as_u64().unwrap() > term, "{shown}");
    assert!(shown["fail_overs"].as_u64().unwrap() > fail_overs, "{shown}");
    let text = status(&daemons[led], &["orders", "--key", KEY]).stdout;
    assert!(
        text.contains("group orders: ram-majority, term")
            && !text.contains("SYNCED")
            && text.contains("leader")
            && text.lines().count() == 5,
        "{text}"
    );
    drop(groups);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn a_synced_group_shows_its_class_and_what_files_lack() {
    let (cluster, dir) = (Cluster::new(), tempfile::tempdir().unwrap());
    let daemons = [cluster.daemon(), cluster.daemon(), cluster.daemon()];
    let mut groups = join_with(&daemons, Some(dir.path()));
    propose(&groups, b"first");
    let lags = |shown: &Value| of(shown, "synced_lag_bytes");
    wait_until("all files have all", || lags(&seen(&daemons[0])) == vec![json!(0); 3]);
    let shown = seen(&daemons[0]);
    assert_eq!((&shown["class"], of(&shown, "file_fault")), (&json!("synced-majority"), vec![Value::Null; 3]));
    // A program that has ended keeps no file; its memory is written all the same.
    let stopped = (leader(&groups) + 1) % 3;
    drop(groups.remove(stopped));
    for _ in 0..COMMANDS {
        propose(&groups, &[7; 64]);
    }
    let shown = seen(&daemons[0]);
    assert!(lags(&shown)[stopped].as_u64().unwrap() > 1000, "{shown}");
    let text = status(&daemons[0], &["orders", "--key", KEY]).stdout;
    assert!(text.contains("group orders: synced-majority, term") && text.contains("SYNCED LAG"), "{text}");
    assert_eq!(text.matches(" kept ").count(), 3, "{text}");
    drop(groups);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn without_the_key_a_daemon_tells_who_writes_and_no_more() {
    let cluster = Cluster::new();
    let daemons = [cluster.daemon()];
    assert!(status(&daemons[0], &[]).stdout.contains("no memory of a group"));
    let groups = join(&daemons);
    propose(&groups, b"first");
    let shown = status(&daemons[0], &["--json"]).json()["groups"][0].clone();
    assert_eq!((&shown["name"], &shown["commit"], &shown["members"]), (&json!("orders"), &Value::Null, &json!([])));
    assert!(shown["term"].as_u64().unwrap() > 0, "{shown}");
    // Of all groups, those of the key are seen.
    let all = status(&daemons[0], &["--key", KEY, "--json"]).json();
    assert_eq!(of(&all["groups"][0], "role"), [json!("leader")]);
    let wrong = "ff112233445566778899aabbccddeeff";
    let all = status(&daemons[0], &["--key", wrong, "--json"]);
    assert_eq!((all.code(), &all.json()["groups"][0]["commit"]), (0, &Value::Null));
    let cases: &[(&[&str], i32, &str)] = &[
        (&["orders", "--key", wrong], 4, "the key is not"),
        (&["none", "--key", KEY], 4, "no region of this name"),
        (&["none"], 4, "no memory of a group `none`"),
        (&["orders", "--key", "12"], 2, "32 hexadecimal digits"),
        (&["orders", "--host", "127.0.0.1"], 2, "without the group's key"),
    ];
    for (args, code, words) in cases {
        let ended = status(&daemons[0], args);
        assert_eq!(ended.code(), *code, "{args:?}: {ended:?}");
        assert!(ended.stderr.contains(words), "{args:?}: {ended:?}");
    }
    drop(groups);
    daemons.into_iter().for_each(Daemon::stop);
    assert_eq!(run(rig::raas().args(["group", "status", "--socket", "/nonexistent/raasd.sock"])).code(), 3);
}
