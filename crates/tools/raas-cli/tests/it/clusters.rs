//! Hosts by list and by DNS, names where addresses are wanted, and configurations that cannot be.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::rig::discovery::{Host, configure};
use crate::rig::namespace::in_namespace;
use crate::rig::{Cluster, Running, address, raas, run, wait_until};
use raas::LookupError;

fn hosts_of(list: &[(&Host, &str)]) -> String {
    let entry = |(host, services): &(&Host, &str)| {
        format!("[[cluster.host]]\naddress = \"{}\"\nservices = [{services}]\n", host.ip)
    };
    format!("[cluster]\n{}", list.iter().map(entry).collect::<String>())
}

#[test]
fn a_service_is_named_where_an_address_is_wanted() {
    let cluster = Cluster::new();
    let b = Host::start(&cluster, "");
    let a = Host::start(&cluster, &hosts_of(&[(&b, "\"store\"")]));
    wait_until("the list", || a.knows() == [b.ip]);
    let mut receiver = Running::start(&mut b.command(&["recv", "7000"]));
    receiver.wait_for("listening on");
    let file = cluster.dir.path().join("file");
    std::fs::write(&file, "by name").unwrap();
    let sent = run(a.command(&["send"]).arg(&file).arg("store:7000"));
    assert_eq!(sent.code(), 0, "{sent:?}");
    assert_eq!(receiver.end_bytes(), b"by name");
    let why = run(&mut a.command(&["why", "store", "--json"]));
    assert_eq!(why.json()["peer"], b.ip.to_string(), "{why:?}");
    let text = run(&mut a.command(&["cluster", "store"])).stdout;
    assert!(text.contains(&b.ip.to_string()) && text.contains("static"), "{text}");
    assert!(!run(&mut a.command(&["cluster", "other"])).stdout.contains(&b.ip.to_string()));
    assert_eq!(a.finding()["level"], "ok");
}

#[test]
fn a_name_that_nobody_has_is_refused_with_what_to_do() {
    let cluster = Cluster::new();
    let b = Host::start(&cluster, "");
    let a = Host::start(&cluster, &hosts_of(&[(&b, "\"store\"")]));
    let told = run(a.command(&["send"]).arg(cluster.key()).arg("stor.invalid:7000"));
    assert_eq!(told.code(), 1, "{told:?}");
    assert!(
        told.stderr.contains("`stor.invalid` is no service") && told.stderr.contains("`raas cluster` lists"),
        "{told:?}"
    );
    let told = run(b.command(&["send"]).arg(cluster.key()).arg("stor.invalid:7000"));
    assert!(told.code() == 1 && told.stderr.contains("no [cluster]"), "{told:?}");
    assert!(run(&mut b.command(&["cluster"])).stdout.contains("docs/operate/clusters.md"));
    let error = raas::ConnectOptions::new().connect_named(&a.session(), "stor.invalid:7000").unwrap_err();
    let raas::ConnectError::Resolve(inner) = error else { panic!("{error}") };
    assert!(matches!(inner.get_ref().unwrap().downcast_ref(), Some(LookupError::Unknown { .. })), "{inner}");
    assert!(matches!(a.session().lookup("store"), Err(LookupError::Form(_))));
}

#[test]
fn one_host_of_several_is_dead_and_the_next_one_takes_the_file() {
    let cluster = Cluster::new();
    let b = Host::start(&cluster, "");
    let nobody = address();
    let list =
        format!("{}[[cluster.host]]\naddress = \"{nobody}\"\nservices = [\"store\"]\n", hosts_of(&[(&b, "\"store\"")]));
    let a = Host::start(&cluster, &list);
    wait_until("the list", || a.knows().len() == 2);
    // Each look-up begins with another host, so one of these begins with the dead one.
    for _ in 0..2 {
        let mut receiver = Running::start(&mut b.command(&["recv", "7000"]));
        receiver.wait_for("listening on");
        let sent = run(a.command(&["send"]).arg(cluster.key()).arg("store:7000"));
        assert_eq!(sent.code(), 0, "{sent:?}");
        assert_eq!(receiver.end_bytes(), [7; 32]);
    }
}

#[test]
fn a_configuration_that_cannot_be_is_refused_with_its_lines() {
    let cluster = Cluster::new();
    let text =
        "[cluster]\nservices = [\"store\"]\ndns = [\"a b\"]\nrefresh = 5\n[[cluster.host]]\naddress = \"0.0.0.0\"";
    let (_, config, _) = configure(&cluster, text);
    let told = run(raas().args(["daemon", "--check", "--config"]).arg(&config));
    assert_eq!(told.code(), 2, "{told:?}");
    for part in [":6: `services`: nobody hears", ":7: `dns`", ":8: unknown key `refresh`", ":10: `address`: 0.0.0.0"] {
        assert!(told.stderr.contains(part), "{part}: {told:?}");
    }
}

/// A DNS server that knows one name; with no addresses it says nothing at all.
struct NameServer {
    ip: Ipv4Addr,
    answers: Arc<Mutex<Vec<Ipv4Addr>>>,
}

/// The name that it knows, as it stands in a packet.
const LABELS: &[u8] = b"\x05hosts\x07cluster\x07invalid\0";
const NAME: &str = "hosts.cluster.invalid";

impl NameServer {
    fn start() -> Self {
        let std::net::IpAddr::V4(ip) = address() else { unreachable!("the rig gives IPv4 addresses") };
        let socket = UdpSocket::bind((ip, 53)).unwrap();
        let answers = Arc::<Mutex<Vec<Ipv4Addr>>>::default();
        let known = Arc::clone(&answers);
        std::thread::spawn(move || {
            let mut packet = [0; 512];
            while let Ok((bytes, from)) = socket.recv_from(&mut packet) {
                if let Some(answer) = answer(&packet[..bytes], &known.lock().unwrap()) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Self { ip, answers }
    }

    fn says(&self, addresses: &[Ipv4Addr]) {
        *self.answers.lock().unwrap() = addresses.to_vec();
    }
}

/// RFC 1035: the header, the question again, and a record for each address.
fn answer(question: &[u8], addresses: &[Ipv4Addr]) -> Option<Vec<u8>> {
    if addresses.is_empty() {
        return None;
    }
    let end = 12 + question.get(12..)?.iter().position(|byte| *byte == 0)? + 1;
    let (name, kind) = (question.get(12..end)?, question.get(end..end + 4)?);
    let is_known = name.eq_ignore_ascii_case(LABELS);
    // Type A, class IN.
    let told: &[Ipv4Addr] = if is_known && kind == [0, 1, 0, 1] { addresses } else { &[] };
    let mut packet = question.get(..2)?.to_vec();
    // An answer that ends the search: of a name that is not known, code 3.
    packet.extend([0x85, if is_known { 0x80 } else { 0x83 }, 0, 1, 0, told.len() as u8, 0, 0, 0, 0]);
    packet.extend(question.get(12..end + 4)?);
    for address in told {
        packet.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        packet.extend(address.octets());
    }
    Some(packet)
}

#[test]
fn hosts_come_and_go_by_dns() {
    in_namespace("clusters::hosts_come_and_go_by_dns", &[], by_dns);
}

/// Inside a network namespace, where port 53 is anybody's.
fn by_dns() {
    let cluster = Cluster::new();
    let server = NameServer::start();
    let place = cluster.dir.path();
    let (resolv, switch) = (place.join("resolv.conf"), place.join("nsswitch.conf"));
    std::fs::write(&resolv, format!("nameserver {}\noptions timeout:1 attempts:1\n", server.ip)).unwrap();
    std::fs::write(&switch, "hosts: files dns\n").unwrap();
    for file in [&resolv, &switch] {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let [first, second] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
    server.says(&[second, first]);
    // The server of an etcd is looked up too, by the daemon that is killed for what it must not do.
    let text = format!(
        "[cluster]\ndns = [\"{NAME}\"]\nrefresh_ms = 200\n[cluster.etcd]\nendpoints = [\"http://etcd.cluster.invalid:9\"]"
    );
    let a = Host::start_by(&cluster, &text, |config| {
        let script = format!(
            "mount --bind {resolv:?} /etc/resolv.conf && mount --bind {switch:?} /etc/nsswitch.conf && exec \"$@\""
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, "sh"]).arg(raas().get_program());
        command.args(["daemon", "--until-stdin-closes", "--config"]).arg(config).stdin(Stdio::piped());
        command
    });
    let knows = |addresses: &[Ipv4Addr]| a.knows() == addresses;
    wait_until("the hosts", || knows(&[first, second]));
    assert_eq!(a.cluster()["hosts"][0]["services"][0], NAME);
    let stat = run(&mut a.command(&["stat", "--json"])).json();
    assert_eq!(stat["sandbox"]["calls_filtered"], true, "{stat}");
    wait_until("an etcd that has no address", || {
        let told = a.cluster();
        told["directories"][1]["error"]
            .as_str()
            .is_some_and(|error| error.contains("etcd.cluster.invalid:9 does not answer"))
    });
    let found = a.session().lookup(&format!("{NAME}:7000")).unwrap();
    assert_eq!(found.len(), 2, "the daemon knows what this process's system does not");
    server.says(&[second]);
    wait_until("one host less", || knows(&[second]));
    server.says(&[]);
    wait_until("the trouble", || {
        assert!(knows(&[second]), "those of before stay");
        a.trouble().is_some_and(|error| error.contains(NAME))
    });
    assert_eq!(a.finding()["level"], "warn");
    server.says(&[first]);
    wait_until("another host", || knows(&[first]) && a.trouble().is_none());
    // The name server is silent again, and the end does not wait for it.
    server.says(&[]);
    a.stop();
}
