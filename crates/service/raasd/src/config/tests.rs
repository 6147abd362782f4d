//! Every kind of mistake in a configuration is named with its line.

use super::*;

fn load(text: &str) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raas.toml");
    std::fs::write(&path, text).unwrap();
    Config::load(Some(&path), &Flags::default()).map_err(|mut e| {
        for problem in &mut e.problems {
            *problem = problem.replace(path.to_str().unwrap(), "raas.toml");
        }
        e
    })
}

fn problem(text: &str) -> String {
    load(text).unwrap_err().to_string()
}

#[test]
fn by_default_half_a_minute_of_stillness_is_waited_for_and_shown_after_seconds() {
    let config = Config::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
    // The last heartbeat may have come an interval before the peer stopped, and its next comes a little after it went
    // on.
    let waited = config.heartbeat.patience() - 2 * config.heartbeat.interval;
    assert!(waited >= Duration::from_secs(30), "{waited:?}");
    assert!(config.heartbeat.stalled_after() <= Duration::from_secs(5));
}

#[test]
fn a_full_file_is_read() {
    let config = load(
        r#"
listen = "192.0.2.1"
addresses = ["192.0.2.9", "2001:db8::1"]
socket = "/run/x/s"
socket_mode = "0666"
peer_port = 4000
device = "softnic"
engines = 3
engines_by = "programs"
udp_port = 4801
encrypt = "preferred"
kernel_tls = "off"
dscp = 26
hop_limit = 3
mtu = 1024
key_file = "/etc/raas/key"
accept_key_files = ["/etc/raas/old"]
pcap = "/tmp/p"
log = "raasd=debug"
ring_bytes = 65_536
connect_to = ["192.0.2.0/24", "198.51.100.7", "2001:db8::/32"]
heartbeat_ms = 250
heartbeat_misses = 4

[limits]
apps_max = 7
connect_timeout_ms = 1500
clients_max = 9

[[peer]]
address = "192.0.2.2"
port = 4001
sources = ["198.51.100.2"]
encrypt = "off"
"#,
    )
    .unwrap();
    assert_eq!(config.listen.to_string(), "192.0.2.1");
    assert_eq!((config.socket_mode, config.peer_port, config.udp_port), (0o666, 4000, 4801));
    let admission = config.data_path().admission;
    assert_eq!((admission.engines, admission.spread), (3, plane::SpreadBy::Programs));
    assert_eq!((config.mtu, config.ring_bytes), (Some(PathMtu::Mtu1024), Some(65_536)));
    assert_eq!(config.marks, verbs::PathMarks { traffic_class: 104, hop_limit: 3 });
    assert_eq!(config.heartbeat.patience(), Duration::from_secs(1));
    let others: IpAddr = "192.0.2.3".parse().unwrap();
    let to = |peer| config.data_path().engine.encrypts.get(&peer).copied().unwrap_or(config.encrypt);
    assert_eq!((to("192.0.2.2".parse().unwrap()), to(others)), (Encrypt::Off, Encrypt::Preferred));
    assert!(!config.kernel_tls);
    assert_eq!(config.accept_key_files, [PathBuf::from("/etc/raas/old")]);
    assert_eq!(config.path_limits, BTreeMap::from([("apps_max", 7), ("connect_timeout_ms", 1500)]));
    assert_eq!(config.limits.clients_max, 9);
    let peer: IpAddr = "192.0.2.2".parse().unwrap();
    assert_eq!(config.peer_address(peer).to_string(), "192.0.2.2:4001");
    assert_eq!(config.peer_address("192.0.2.3".parse().unwrap()).to_string(), "192.0.2.3:4000");
    assert_eq!(config.further_sources(), [("198.51.100.2".parse().unwrap(), peer)].into());
    let networks: Vec<_> = config.data_path().engine.connect_to.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["192.0.2.0/24", "198.51.100.7/32", "2001:db8::/32", "192.0.2.2/32"], "and the [[peer]]s");
    let names: Vec<_> = config.host_addresses().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["192.0.2.1", "192.0.2.9", "2001:db8::1", "127.0.0.1", "::1"]);
}

#[test]
fn a_loopback_host_has_only_its_own_address() {
    let config = load("listen = \"127.0.0.2\"").unwrap();
    assert_eq!(config.host_addresses(), ["127.0.0.2".parse::<IpAddr>().unwrap()]);
}

#[test]
fn mistakes_are_named_with_file_and_line() {
    let cases = [
        ("\npeer_prot = 1\n", "raas.toml:2: unknown key `peer_prot`; did you mean `peer_port`?"),
        ("frobnicate = 1", "raas.toml:1: unknown key `frobnicate`; see docs/operate/configuration.md"),
        ("\n\npeer_port = 0", "raas.toml:3: `peer_port`: 0 is not allowed, 1..=65535 is"),
        ("peer_port = -1", "raas.toml:1: `peer_port`: -1 is not allowed, 1..=65535 is"),
        (
            "engines_by = \"users\"",
            "raas.toml:1: `engines_by`: \"users\" is not allowed; use \"connections\", \"programs\" or \"tenants\"",
        ),
        ("peer_port = 70000", "raas.toml:1: `peer_port`: 70000 is not allowed, 1..=65535 is"),
        ("peer_port = \"1\"", "raas.toml:1: `peer_port`: invalid type: string \"1\", expected i64"),
        ("listen = 1", "raas.toml:1: `listen`: \"1\" is no IP address"),
        ("listen = \"host\"", "raas.toml:1: `listen`: \"host\" is no IP address"),
        (
            "listen = \"0.0.0.0\"",
            "raas.toml:1: `listen`: 0.0.0.0 names no host; use the address by which other hosts reach this one",
        ),
        (
            "connect_to = \"10.0.0.0/8\"",
            "raas.toml:1: `connect_to`: invalid type: string \"10.0.0.0/8\", expected a sequence",
        ),
        (
            "connect_to = [\"10.0.0/8\"]",
            "raas.toml:1: `connect_to`: \"10.0.0/8\" is no network; write ADDRESS/BITS, such as 10.1.0.0/16",
        ),
        (
            "connect_to = [\"10.1.0.0/8\"]",
            "raas.toml:1: `connect_to`: 10.1.0.0/8 has bits behind its prefix; the network is 10.0.0.0/8",
        ),
        ("mtu = 1500", "raas.toml:1: `mtu`: 1500 is not allowed; 256, 512, 1024, 2048 and 4096 are"),
        ("ring_bytes = 65535", "raas.toml:1: `ring_bytes`: 65535 is not a power of two"),
        (
            "device = \"mlx5\"",
            "raas.toml:1: `device`: `mlx5` is no device; use auto, softnic, rdma-core or rdma-core:NAME",
        ),
        (
            "socket_mode = \"0466\"",
            "raas.toml:1: `socket_mode`: \"0466\" is not allowed, octal modes from \"0600\" to \"0777\" are",
        ),
        ("[limits]\n\napp_max = 3", "raas.toml:3: unknown key `app_max`; did you mean `apps_max`?"),
        ("[limits]\nlisteners_max = 0", "raas.toml:2: `listeners_max`: 0 is not allowed, 1..=65536 is"),
        ("[limits]\nring_bytes_max = 5000", "raas.toml:2: `ring_bytes_max`: 5000 is not a power of two"),
        (
            "\n[limits]\nlane_inflight_bytes_max = 200_000",
            "raas.toml:3: `lane_inflight_bytes_max`: 200000 is not allowed, 262144..=1099511627776 is",
        ),
        ("apps_max = 3", "raas.toml:1: `apps_max` is a limit: write it under [limits]"),
        ("[limits]\napps_max = \"3\"", "raas.toml:2: `apps_max`: invalid type: string \"3\", expected i64"),
        ("[limits]\nlanes_max = -1", "raas.toml:2: `lanes_max`: -1 is negative"),
        ("addresses = [\"10.0.0.1\", \"x\"]", "raas.toml:1: `addresses`: \"x\" is no IP address"),
        (
            "socket_group = \"rdma\"\nsocket_mode = \"0600\"",
            "raas.toml:2: `socket_mode`: 0600 shuts the group of `socket_group` out; use \"0660\"",
        ),
        ("limits = 3", "raas.toml:1: `limits`: invalid type: integer `3`, expected a map"),
        ("peer = 3", "raas.toml:1: `peer`: invalid type: integer `3`, expected a sequence"),
        ("\n[[peer]]\nport = 5", "raas.toml:2: `peer`: missing field `address`"),
        (
            "[[peer]]\naddress = \"::1\"\nsource = []",
            "raas.toml:3: peer \"::1\": unknown key `source`; did you mean `sources`?",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problem(text), expected);
    }
}

/// Whatever stands there in place of one of the words of a key, the words are named.
#[test]
fn words_that_are_allowed_are_named_whatever_else_is_there() {
    let keys: [(&str, &[&str]); 9] = [
        ("encrypt", &["off", "preferred", "required"]),
        ("wire", &["auto", "roce", "iwarp"]),
        ("device", &["auto", "softnic", "rdma-core"]),
        ("sandbox", &["auto", "required", "off"]),
        ("sandbox_violation", &["refuse", "kill"]),
        ("engines_by", &["connections", "programs", "tenants"]),
        ("kernel_tls", &["auto", "off"]),
        ("run_lanes", &["auto", "always"]),
        ("log_format", &["text", "json"]),
    ];
    for (key, words) in keys {
        for value in ["true", "false", "1", "0.5", "\"on\"", "\"\""] {
            let told = problem(&format!("\n{key} = {value}\n"));
            assert!(told.starts_with(&format!("raas.toml:2: `{key}`: ")), "{told}");
            assert!(words.iter().all(|word| told.contains(word)), "{told}");
        }
    }
    let told = problem("[[peer]]\naddress = \"192.0.2.7\"\nencrypt = true\n");
    let words = "\"true\" is not allowed; use \"off\", \"preferred\" or \"required\"";
    assert_eq!(told, format!("raas.toml:3: peer \"192.0.2.7\": `encrypt`: {words}"));
    // What could be such a text is none without its quotes.
    assert_eq!(problem("socket_group = 5"), "raas.toml:1: `socket_group`: a text stands in quotes: \"5\"");
    assert_eq!(problem("key_file = 5"), "raas.toml:1: `key_file`: a text stands in quotes: \"5\"");
}

/// Every key that names a file, and one of several.
#[test]
fn paths_are_relative_to_the_file_that_names_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sub/raas.toml");
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    let text = "socket = \"s\"\nkey_file = \"../key\"\naccept_key_files = [\"old/a\", \"/etc/b\"]\npcap = \"p\"\n\
                policy = \"policy.toml\"\nmetrics_token_file = \"token\"\n";
    std::fs::write(&path, text).unwrap();
    let config = Config::load(Some(&path), &Flags::default()).unwrap();
    let here = |name: &str| path.parent().unwrap().join(name);
    assert_eq!((config.socket.clone(), config.key_file.clone()), (here("s"), Some(here("../key"))));
    assert_eq!(config.accept_key_files, [here("old/a"), "/etc/b".into()]);
    assert_eq!((config.pcap, config.policy), (Some(here("p")), Some(here("policy.toml"))));
    assert_eq!(config.metrics_token_file, Some(here("token")));
    std::fs::write(&path, "calibration = \"measured.json\"\n").unwrap();
    let told = Config::load(Some(&path), &Flags::default()).unwrap_err().to_string();
    assert!(told.contains(here("measured.json").to_str().unwrap()), "{told}");
    // A path of the command line is the shell's.
    std::fs::write(&path, text).unwrap();
    let flags = Flags { key_file: Some("mine".into()), ..Flags::default() };
    assert_eq!(Config::load(Some(&path), &flags).unwrap().key_file, Some("mine".into()));
}

#[test]
fn broken_toml_is_named_with_its_line_and_all_mistakes_at_once() {
    assert!(problem("listen = \"127.0.0.1\"\nsocket = \n").starts_with("raas.toml:2: "), "{}", problem("a\n"));
    assert!(problem("a = 1\na = 2").starts_with("raas.toml:2: "));
    assert_eq!(load("peer_port = 0\nudp_port = 0\n").unwrap_err().problems.len(), 2);
    let none = Config::load(Some(Path::new("/nonexistent/raas.toml")), &Flags::default()).unwrap_err();
    assert!(none.to_string().starts_with("/nonexistent/raas.toml: "), "{none}");
}

#[test]
fn all_mistakes_come_at_once_in_the_order_of_the_file() {
    let text = "udp_port = 0\nlissen = \"127.0.0.1\"\naddresses = [\"x\", \"127.0.0.1\", 3]\n\n[limits]\nnonsense = 1\nlanes_max = 0\n\n\
                [[peer]]\naddress = \"::\"\nsources = [\"a\", \"b\"]\n\n[[peer]]\nport = 1\n";
    let problems = load(text).unwrap_err().problems;
    let lines: Vec<usize> = problems.iter().map(|p| p.split(':').nth(1).unwrap().parse().unwrap()).collect();
    assert_eq!(lines, [1, 2, 3, 3, 6, 7, 10, 11, 11, 13], "{problems:#?}");
    // If a file is not TOML, each broken line is reported, and nothing is guessed about the rest.
    let problems = load("listen = 127.0.0.23\nsocket = /run/x\npeer_port = 0\n").unwrap_err().problems;
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert!(problems[0].ends_with("a text stands in quotes: listen = \"127.0.0.23\""), "{problems:#?}");
    assert!(problems[1].ends_with("a text stands in quotes: socket = \"/run/x\""), "{problems:#?}");
}

#[test]
fn a_group_opens_the_socket_to_its_members() {
    let config = load("socket_group = \"rdma\"").unwrap();
    assert_eq!((config.socket_group.as_deref(), config.socket_mode), (Some("rdma"), 0o660));
    let config = load("socket_group = \"rdma\"\nsocket_mode = \"0666\"").unwrap();
    assert_eq!(config.socket_mode, 0o666);
}

#[test]
fn flags_go_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c");
    std::fs::write(&path, "listen = \"127.0.0.1\"\npeer_port = 5\nlog = \"warn\"").unwrap();
    let flags = Flags {
        listen: Some("127.0.0.9".parse().unwrap()),
        device: Some("rdma-core:mlx5_0".into()),
        peer_port: Some(6),
        ..Flags::default()
    };
    let config = Config::load(Some(&path), &flags).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.9");
    assert_eq!((config.peer_port, config.log.as_str()), (6, "warn"));
    assert_eq!(config.device, DeviceChoice::RdmaCore(Some("mlx5_0".into())));
    let wrong = Config::load(None, &Flags { device: Some("x".into()), ..Flags::default() }).unwrap_err();
    assert!(wrong.to_string().starts_with("--device: "));
    let wildcard = Config::load(None, &Flags { listen: Some("::".parse().unwrap()), ..Flags::default() });
    assert!(wildcard.unwrap_err().to_string().starts_with("--listen: "));
}

#[test]
fn parts_that_have_a_limit_together_agree_on_its_default() {
    let path = Config::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).data_path();
    for limit in LIMITS {
        let Target::DataPath { set, value } = limit.target else { continue };
        let mut again = path.clone();
        // It sets all of its parts.
        set(&mut again, value(&path));
        assert_eq!(format!("{again:?}"), format!("{path:?}"), "{}", limit.key);
    }
}

#[test]
fn every_limit_takes_its_least_and_most() {
    let mut config = Config::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
    for limit in LIMITS {
        for value in [limit.min, limit.max] {
            config.set_limit(limit.key, value).unwrap();
            assert_eq!(limit.value(&config), value, "{}", limit.key);
        }
        assert!(config.set_limit(limit.key, limit.max + 1).is_err());
    }
}

#[test]
fn the_documentation_names_every_key_and_default_and_there_are_few() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/operate/configuration.md"))
        .unwrap();
    assert!(file::top_level_keys().contains(&"peer_port".to_string()));
    let tables = |key: &String| ["limits", "peer", "cluster"].contains(&key.as_str());
    for key in file::top_level_keys()
        .into_iter()
        .filter(|key| !tables(key))
        .chain(["address", "port", "sources", "standby"].map(String::from))
    {
        assert!(text.contains(&format!("`{key}`")), "docs/operate/configuration.md does not name `{key}`");
    }
    let config = Config::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
    for limit in LIMITS {
        let row = format!("| `{}` | {} |", limit.key, limit.value(&config));
        assert!(text.contains(&row), "docs/operate/configuration.md lacks the row {row}");
    }
    let table = text.split("| limit | default |").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let unknown: Vec<_> = rows.filter(|key| !LIMITS.iter().any(|limit| limit.key == *key)).collect();
    assert!(unknown.is_empty(), "docs/operate/configuration.md has limits that are none: {unknown:?}");
    // Each key is one more that an operator reads past: what nobody sets is a constant.
    let keys = file::top_level_keys().iter().filter(|key| !tables(key)).count() + LIMITS.len();
    assert!(keys <= 70, "{keys} keys");
}

#[test]
fn a_cluster_is_found_in_three_ways() {
    let text = "[cluster]\nname = \"one\"\nservices = [\"store\"]\nrefresh_ms = 250\ndns = [\"hosts.example.org\"]\n\
                [[cluster.host]]\naddress = \"10.0.0.7\"\nservices = [\"web\"]\n\
                [cluster.etcd]\nendpoints = [\"http://10.0.0.2:2379\", \"http://[::1]:2379/\"]\nlease_seconds = 3\n";
    let cluster = load(text).unwrap().cluster;
    assert_eq!((cluster.name.as_deref(), &*cluster.services), (Some("one"), &["store".to_owned()][..]));
    assert_eq!((cluster.refresh.as_millis(), cluster.dns.len(), cluster.hosts[0].services.len()), (250, 1, 1));
    let etcd = cluster.etcd.unwrap();
    assert_eq!((etcd.endpoints.len(), &*etcd.prefix, etcd.lease_seconds), (2, "/raas", 3));
}

#[test]
fn mistakes_in_a_cluster_are_named_with_their_lines() {
    let hosts: String = (0..4097).map(|n| format!("{{address=\"10.1.{}.{}\"}},", n / 256, n % 256)).collect();
    let cases = [
        ("name = \"a b\"", ":2: `name`: \"a b\" is no name"),
        ("services = [\"10.0.0.1\"]", ":2: `services`: \"10.0.0.1\" is no name"),
        ("refresh_ms = 5", ":2: `refresh_ms`: 5 is not allowed"),
        ("\ndsn = []", ":3: unknown key `dsn`; did you mean `dns`?"),
        ("dns = [\"\"]", ":2: `dns`: \"\" is no name"),
        ("services = [\"store\"]", ":2: `services`: nobody hears of it without [cluster.etcd]"),
        ("\n[[cluster.host]]\naddress = \"0.0.0.0\"", ":4: `address`: 0.0.0.0 names no host"),
        ("\n[[cluster.host]]\nname = \"x\"", ":3: `host`: missing field `address`"),
        ("\n[cluster.etcd]\nendpoints = []", ":4: `endpoints`: an etcd needs at least one endpoint"),
        ("\n[cluster.etcd]\nprefix = \"/x\"", ":3: `etcd`: missing field `endpoints`"),
        ("\n[cluster.etcd]\nendpoints = [\"http://a:1\"]\nlease_seconds = 1", ":5: `lease_seconds`: 1 is not allowed"),
        ("\n[cluster.etcd]\nendpoints = [\"http://a:1\"]\nprefix = \"raas\"", ":5: `prefix`: \"raas\" is no prefix"),
        (&*format!("host = [{hosts}]"), ":2: `host`: 4097 entries, at most 4096 are allowed"),
    ];
    for (text, expected) in cases {
        let told = problem(&format!("[cluster]\n{text}"));
        assert!(told.starts_with(&format!("raas.toml{expected}")), "{expected}\n{told}");
    }
    for endpoint in [
        "https://a:2379",
        "a:2379",
        "http://a",
        "http://a:0",
        "http://a:99999",
        "http://:2379",
        "http://u:p@a:2379",
        "http://a:2379/v3",
        "http://a:2379/?x",
        "http://a b:2379",
        "ftp://a:1",
        "",
    ] {
        let told = problem(&format!("[cluster.etcd]\nendpoints = [\"{endpoint}\"]"));
        assert!(told.contains(":2: `endpoints`: ") && told.contains("there is no TLS here"), "{endpoint}: {told}");
    }
}
