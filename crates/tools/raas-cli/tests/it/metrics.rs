//! The endpoint for Prometheus, by a daemon that serves: what it says, judged by parsers that are not ours; who may ask;
//! clients that misbehave; and that the daemon does not depend on it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::rig::{Cluster, Running, WATCHDOG, address, raas, run, wait_until};
use raas::{Listener, Stream};

/// A daemon with this in its configuration; its socket, and where its metrics are.
fn daemon(cluster: &Cluster, further: impl Fn(SocketAddr) -> String) -> (Running, std::path::PathBuf, SocketAddr) {
    let (ip, place) = (address(), cluster.dir.path());
    let (config, socket, at) =
        (place.join(format!("{ip}.toml")), place.join(format!("{ip}.sock")), SocketAddr::new(ip, 9464));
    let text = format!("listen = \"{ip}\"\nsocket = {socket:?}\nkey_file = {:?}\n{}\n", cluster.key(), further(at));
    std::fs::write(&config, text).unwrap();
    let mut command = raas();
    command.args(["daemon", "--until-stdin-closes", "--config"]).arg(&config).stdin(Stdio::piped());
    let mut daemon = Running::start(&mut command);
    daemon.wait_for("ready socket=");
    (daemon, socket, at)
}

fn metrics_at(at: SocketAddr) -> String {
    format!("metrics = \"{at}\"")
}

/// A request as it stands; the whole answer, or nothing.
fn ask(at: SocketAddr, request: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(at) else { return String::new() };
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn scrape(at: SocketAddr, header: &str) -> String {
    ask(at, &format!("GET /metrics HTTP/1.1\r\nHost: {at}\r\n{header}Connection: close\r\n\r\n"))
}

/// The body of the answer when there is one.
fn body(at: SocketAddr) -> String {
    let mut text = String::new();
    wait_until("metrics", || {
        text = scrape(at, "");
        text.starts_with("HTTP/1.1 200")
    });
    text.split_once("\r\n\r\n").unwrap().1.to_owned()
}

fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// Whether this program can be started here.
fn has(program: &str, arguments: &[&str]) -> bool {
    let mut asked = Command::new(program);
    asked.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}

/// Gives a text to a judge on its stdin.
fn judge(program: &str, arguments: &[&str], text: &str) {
    let mut command = Command::new(program);
    let mut child =
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let judged = child.wait_with_output().unwrap();
    assert!(judged.status.success(), "{program} {arguments:?}: {judged:?}\n{text}");
}

/// Debian's, which has Debian's package.
const PYTHON: &str = "/usr/bin/python3";
/// Reads everything with the Python client's parser of OpenMetrics, which is strict.
const PARSE: &str = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
                     samples = [s for f in parse(sys.stdin.read()) for s in f.samples]\nassert len(samples) > 50, samples\n";

#[test]
fn series_follow_what_happens_and_other_parsers_read_them() {
    let cluster = Cluster::new();
    let (_daemon, socket, at) = daemon(&cluster, metrics_at);
    let other = cluster.daemon();
    let before = body(at);
    assert!(before.contains("raas_build_info{device=\"softnic\""), "{before}");
    let server = Listener::bind_with(&other.session("server"), (other.ip, 7000)).unwrap();
    let session = raas::Session::builder().socket(&socket).name("hostile \"name\"\n# EOF").connect().unwrap();
    let mut stream = Stream::connect_with(&session, (other.ip, 7000)).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    stream.write_all(&[7; 100_000]).unwrap();
    accepted.read_exact(&mut [0; 100_000]).unwrap();
    let uid = rustix::process::getuid().as_raw();
    let sent = format!("raas_tenant_sent_bytes_total{{uid=\"{uid}\"}}");
    let mut text = String::new();
    wait_until("the bytes", || {
        text = body(at);
        value(&text, &sent) == Some(100_000.0)
    });
    assert_eq!(value(&text, "raas_lanes{state=\"up\"}"), Some(1.0), "{text}");
    let lane = format!("raas_lane_sent_bytes_total{{lane=\"{}/0\"}}", other.ip);
    assert!(value(&text, &lane) >= Some(100_000.0), "{text}");
    assert!(!text.contains("hostile"), "names are no labels: {text}");
    drop((stream, session));
    wait_until("the end of the program", || value(&body(at), "raas_programs") == Some(0.0));
    assert_eq!(value(&body(at), &sent), Some(100_000.0), "what a program carried stays counted");
    if has(PYTHON, &["-c", "import prometheus_client.openmetrics.parser"]) {
        judge(PYTHON, &["-c", PARSE], &text);
    } else {
        eprintln!("SKIP parser of python3-prometheus-client: the Debian package is not installed");
    }
    prometheus_takes_them(cluster.dir.path(), at);
}

/// Prometheus itself scrapes, and evaluates the alert rules of packaging/.
fn prometheus_takes_them(place: &Path, at: SocketAddr) {
    if !has("prometheus", &["--version"]) {
        eprintln!("SKIP scrape by Prometheus: the Debian package `prometheus` is not installed");
        return;
    }
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging/prometheus/raas.rules.yml");
    let rules = rules.canonicalize().unwrap();
    let config = place.join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\n\
         scrape_configs: [{{job_name: raas, static_configs: [{{targets: ['{at}']}}]}}]\n",
        rules.display()
    );
    std::fs::write(&config, text).unwrap();
    let listen = SocketAddr::new(address(), 9090);
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", place.join("tsdb").display()));
    command.arg(format!("--web.listen-address={listen}"));
    let _prometheus = Running::start(command.stdin(Stdio::null()));
    let query = |of: &str| {
        ask(listen, &format!("GET /api/v1/query?query={of} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    };
    wait_until("a scrape without an error", || query("up").contains(",\"1\"]"));
    wait_until("a counter of ours", || query("raas_work_requests_total").contains("write_imm"));
    let state = query("ALERTS");
    assert!(state.contains("\"success\""), "{state}");
}

#[test]
fn only_who_has_the_token_is_told_and_nothing_else_is_served() {
    let cluster = Cluster::new();
    let token = cluster.dir.path().join("token");
    std::fs::write(&token, "a secret\n").unwrap();
    let (_daemon, _, at) = daemon(&cluster, |at| format!("{}\nmetrics_token_file = {token:?}", metrics_at(at)));
    wait_until("the endpoint", || scrape(at, "").starts_with("HTTP/1.1 401"));
    assert!(scrape(at, "Authorization: Bearer a secre\r\n").starts_with("HTTP/1.1 401"));
    let told = scrape(at, "Authorization: Bearer a secret\r\n");
    assert!(
        told.starts_with("HTTP/1.1 200") && told.contains("openmetrics-text") && told.ends_with("# EOF\n"),
        "{told}"
    );
    let other = |head: &str| ask(at, &format!("{head} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n"));
    assert!(other("GET /").starts_with("HTTP/1.1 404"));
    assert!(other("GET /metrics/../../etc/passwd").starts_with("HTTP/1.1 404"));
    assert!(other("POST /metrics").starts_with("HTTP/1.1 405"));
    assert!(other("rubbish\0").starts_with("HTTP/1.1 400"));
}

#[test]
fn clients_that_say_nothing_hold_nobody_up() {
    let cluster = Cluster::new();
    let (mut daemon, socket, at) = daemon(&cluster, metrics_at);
    body(at);
    // More than it serves at a time: those beyond are closed at once, the others when their time for a head is over.
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(at).unwrap()).collect();
    body(at);
    for mut stream in &silent {
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        let mut answer = Vec::new();
        let ended = stream.read_to_end(&mut answer);
        assert!(ended.is_ok_and(|_| true) || answer.is_empty(), "closed by the daemon");
    }
    let mut endless = TcpStream::connect(at).unwrap();
    endless.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    let line = [b'x'; 64 << 10];
    let refused = (0..1000).find_map(|_| endless.write_all(&line).err());
    assert!(refused.is_some(), "a head without end is not read without end");
    let stat = run(raas().args(["stat", "--json", "--socket"]).arg(&socket));
    assert_eq!(stat.code(), 0, "{stat:?}");
    drop(daemon.stdin());
    assert_eq!(daemon.end().code(), 0);
}

#[test]
fn a_port_that_is_taken_is_told_and_taken_when_it_is_free() {
    let cluster = Cluster::new();
    let taken = std::net::TcpListener::bind((address(), 0)).unwrap();
    let at = taken.local_addr().unwrap();
    let (mut daemon, _, _) = daemon(&cluster, |_| metrics_at(at));
    daemon.wait_for("metrics are not served");
    drop(taken);
    body(at);
}

#[test]
fn mistakes_in_the_configuration_are_told_with_their_line() {
    let cluster = Cluster::new();
    let config = cluster.dir.path().join("raasd.toml");
    for (text, said) in [
        ("metrics = \"here\"", "is no PORT and no ADDRESS:PORT"),
        ("metrics = \"0\"", "is no PORT and no ADDRESS:PORT"),
        ("log_format = \"xml\"", "use \"text\" or \"json\""),
        ("metrics = \"9464\"\nmetrics_token_file = \"/nonexistent\"", "metrics_token_file /nonexistent"),
    ] {
        std::fs::write(&config, text).unwrap();
        let ended = run(raas().args(["daemon", "--check", "--config"]).arg(&config));
        assert_eq!(ended.code(), 2, "{text}: {ended:?}");
        assert!(ended.stderr.contains(said), "{text}: {ended:?}");
    }
}

#[test]
fn in_json_the_log_is_an_object_a_line() {
    let cluster = Cluster::new();
    let (mut daemon, _, _) = daemon(&cluster, |_| "log_format = \"json\"\nlog = \"debug\"".into());
    drop(daemon.stdin());
    let ended = daemon.end();
    assert_eq!(ended.code(), 0, "{ended:?}");
    let lines: Vec<serde_json::Value> = ended.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["timestamp"].is_string() && line["level"].is_string()), "{ended:?}");
    assert!(lines.iter().any(|line| line["fields"]["message"] == "serving"), "{ended:?}");
}

/// Words that begin with `raas_`, in an expression.
fn series(expression: &str) -> impl Iterator<Item = &str> {
    expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("raas_"))
}

#[test]
fn alert_rules_and_dashboard_are_right_and_name_series_that_exist() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging").canonicalize().unwrap();
    let documented = include_str!("../../../../../docs/operate/metrics.md");
    let dashboard = std::fs::read(packaging.join("grafana/raas.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_slice(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let expressions: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(expressions.len() > 10);
    let rules = std::fs::read_to_string(packaging.join("prometheus/raas.rules.yml")).unwrap();
    for name in expressions.iter().copied().chain([rules.as_str()]).flat_map(series) {
        assert!(documented.contains(&format!("`{name}`")), "{name} is not in docs/operate/metrics.md");
    }
    if !has("promtool", &["--version"]) {
        eprintln!("SKIP promtool: the Debian package `prometheus` is not installed");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let plain = |expression: &str| expression.replace("$instance", ".*").replace("$__rate_interval", "1m");
    let rule = |(n, e): (usize, &&str)| serde_json::json!({ "record": format!("panel:{n}"), "expr": plain(e) });
    let recorded: Vec<_> = expressions.iter().enumerate().map(rule).collect();
    let of_dashboard = place.path().join("dashboard.yml");
    // JSON is YAML too.
    let text = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": recorded }] }).to_string();
    std::fs::write(&of_dashboard, text).unwrap();
    let tests = packaging.join("prometheus/raas.rules.test.yml");
    for (words, file) in [
        (["check", "rules"], packaging.join("prometheus/raas.rules.yml")),
        (["check", "rules"], of_dashboard),
        (["test", "rules"], tests),
    ] {
        let judged = run(Command::new("promtool").args(words).arg(file).stdin(Stdio::null()));
        assert_eq!(judged.code(), 0, "{judged:?}");
    }
}
