//! Against servers that answer what no etcd would. A real etcd is asked in raas-cli/tests/it/etcd.rs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::mpsc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::*;

const PREFIX: &str = "/raas/hosts/";

fn own() -> Member {
    Member { address: [10, 0, 0, 1].into(), name: Some("one".into()), services: vec!["store".into()] }
}

fn etcd(endpoints: &[&str]) -> Etcd {
    let endpoints = endpoints.iter().map(ToString::to_string).collect();
    let config = EtcdConfig { endpoints, prefix: "/raas/".into(), lease_seconds: 30 };
    let mut etcd = Etcd::new(&config, Duration::from_secs(5));
    // Nothing here depends on the speed of this machine.
    etcd.gateway = Gateway::new(etcd.asked(), Duration::from_secs(120));
    etcd
}

/// What a server was asked: path and body.
type Asked = (String, Value);

/// A server that lets `answer` write what it likes to each question; its endpoint, and the questions.
fn server(
    mut answer: impl FnMut(&Asked, &mut TcpStream) -> std::io::Result<()> + Send + 'static,
) -> (String, mpsc::Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (tell, asked) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let Ok(question) = question(&stream) else { continue };
            // A client that has enough closes.
            let _ = answer(&question, &mut stream);
            if tell.send(question).is_err() {
                return;
            }
        }
    });
    (endpoint, asked)
}

fn question(stream: &TcpStream) -> std::io::Result<Asked> {
    let mut reader = BufReader::new(stream);
    let (mut path, mut bytes) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(rest) = line.strip_prefix("post /v3/") {
            path = rest.split(' ').next().unwrap_or_default().to_owned();
        } else if let Some(length) = line.strip_prefix("content-length:") {
            bytes = length.trim().parse().unwrap();
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; bytes];
    reader.read_exact(&mut body)?;
    Ok((path, serde_json::from_slice(&body)?))
}

fn say(stream: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

/// An answer with these hosts.
fn range(hosts: &[Member]) -> Value {
    let entry = |host: &Member| {
        let value = serde_json::to_string(host).unwrap();
        json!({ "key": BASE64.encode(format!("{PREFIX}{}", host.address)), "value": BASE64.encode(value) })
    };
    json!({ "header": { "cluster_id": "18446744073709551615" }, "kvs": hosts.iter().map(entry).collect::<Vec<_>>() })
}

/// What an etcd without hosts answers, but for what a test answers itself.
fn usual(path: &str) -> String {
    match path {
        "lease/grant" => json!({ "ID": "7", "TTL": "30" }),
        "lease/keepalive" => json!({ "result": { "ID": "7", "TTL": "30" } }),
        "kv/range" => range(&[]),
        _ => json!({}),
    }
    .to_string()
}

/// An etcd whose ranges are `body`.
fn with_range(status: &'static str, body: &str) -> (String, mpsc::Receiver<Asked>) {
    let body = body.to_owned();
    server(move |(path, _), stream| match path.as_str() {
        "kv/range" => say(stream, status, &body),
        other => say(stream, "200 OK", &usual(other)),
    })
}

fn paths(asked: &mpsc::Receiver<Asked>, count: usize) -> Vec<String> {
    (0..count).map(|_| asked.recv().unwrap().0).collect()
}

#[test]
fn an_entry_that_is_no_host_is_refused() {
    let judged = |key: &str, value: &str| {
        member(&Entry { key: key.as_bytes().to_vec(), value: value.as_bytes().to_vec() }, PREFIX)
    };
    let good = judged("/raas/hosts/10.0.0.1", r#"{"address":"10.0.0.1","services":["store"]}"#);
    assert_eq!(good.unwrap().services, ["store"]);
    let mapped = judged("/raas/hosts/::ffff:10.0.0.1", r#"{"address":"::ffff:10.0.0.1"}"#).unwrap();
    assert_eq!(mapped.address, IpAddr::from([10, 0, 0, 1]));
    let services = json!({ "address": "10.0.0.1", "services": vec!["a"; 1000] }).to_string();
    let padded = format!("{{\"address\":\"10.0.0.1\"{}}}", " ".repeat(VALUE_BYTES_MAX));
    for (key, value) in [
        ("/raas/hosts/10.0.0.1", &*padded),
        ("/raas/hosts/10.0.0.2", r#"{"address":"10.0.0.1"}"#),
        ("/raas/hosts/0.0.0.0", r#"{"address":"0.0.0.0"}"#),
        ("/raas/hosts/ff02::1", r#"{"address":"ff02::1"}"#),
        ("/raas/hosts/10.0.0.1", r#"{"address":"10.0.0.1","services":["a b"]}"#),
        ("/raas/hosts/10.0.0.1", r#"{"address":"10.0.0.1","name":"\u001b[2J"}"#),
        ("/raas/hosts/10.0.0.1", &services),
        ("/raas/hosts/10.0.0.1", r#"{"services":[]}"#),
        ("/raas/hosts/10.0.0.1", "nothing"),
        ("/raas/hosts/10.0.0.1", ""),
    ] {
        assert!(judged(key, value).is_err(), "{value}");
    }
    assert!(member(&Entry { key: vec![0xff], value: Vec::new() }, PREFIX).is_err());
}

#[test]
fn an_etcd_that_is_not_there_is_named_with_each_endpoint() {
    let mut etcd = etcd(&["http://127.0.0.1:1", "http://127.0.0.1:2/"]);
    let told = etcd.ask(&own());
    let Some(DirectoryError::Silent(words)) = &told.error else { panic!("{told:?}") };
    assert!(words.contains("127.0.0.1:1 does not answer") && words.contains("127.0.0.1:2 does"), "{words}");
    assert!(told.members.is_none() && etcd.prefix == PREFIX);
    etcd.leave();
}

#[test]
fn a_host_says_that_it_is_there_and_takes_it_back() {
    let (endpoint, asked) = with_range("200 OK", &range(&[own()]).to_string());
    let mut etcd = etcd(&["http://127.0.0.1:1", &endpoint]);
    let told = etcd.ask(&own());
    assert_eq!((told.members, told.error), (Some(vec![own()]), None));
    assert_eq!(paths(&asked, 1), ["lease/grant"]);
    let (path, put) = asked.recv().unwrap();
    assert_eq!((path.as_str(), &put["lease"]), ("kv/put", &json!("7")));
    assert_eq!(BASE64.decode(put["key"].as_str().unwrap()).unwrap(), b"/raas/hosts/10.0.0.1");
    assert_eq!(paths(&asked, 1), ["kv/range"]);
    assert_eq!(etcd.period(), Duration::from_secs(5));
    etcd.ask(&own());
    assert_eq!(paths(&asked, 1), ["kv/range"], "the lease is young");
    etcd.lease.as_mut().unwrap().renewed -= Duration::from_secs(10);
    etcd.ask(&own());
    assert_eq!(paths(&asked, 2), ["lease/keepalive", "kv/range"]);
    etcd.leave();
    assert_eq!(asked.recv().unwrap(), ("lease/revoke".into(), json!({ "ID": "7" })));
    etcd.leave();
    assert!(asked.try_recv().is_err(), "once");
}

#[test]
fn a_key_or_a_lease_that_is_gone_is_made_again() {
    let (endpoint, asked) = server(|(path, _), stream| match path.as_str() {
        "lease/keepalive" => say(stream, "200 OK", r#"{"result":{"ID":"7"}}"#),
        other => say(stream, "200 OK", &usual(other)),
    });
    let mut etcd = etcd(&[&endpoint]);
    assert_eq!(etcd.ask(&own()).members, Some(vec![]));
    let again = ["lease/grant", "kv/put", "kv/range", "kv/put"];
    assert_eq!(paths(&asked, 4), again, "the key was not among those of the answer");
    etcd.lease.as_mut().unwrap().renewed -= Duration::from_secs(10);
    etcd.ask(&own());
    assert_eq!(paths(&asked, 5)[..3], ["lease/keepalive", "lease/grant", "kv/put"]);
}

#[test]
fn a_lease_that_is_refused_is_asked_for_anew_and_hosts_are_still_found() {
    let (endpoint, asked) = server(|(path, _), stream| match path.as_str() {
        "kv/put" => say(stream, "404 Not Found", r#"{"error":"etcdserver: requested lease not found"}"#),
        other => say(stream, "200 OK", &usual(other)),
    });
    let mut etcd = etcd(&[&endpoint]);
    let told = etcd.ask(&own());
    assert_eq!(told.members, Some(vec![]));
    assert!(told.error.unwrap().to_string().contains("404 Not Found: {\"error\":\"etcdserver: requested lease"));
    assert_eq!(paths(&asked, 3), ["lease/grant", "kv/put", "kv/range"]);
    etcd.ask(&own());
    assert_eq!(paths(&asked, 1), ["lease/grant"]);
}

#[test]
fn a_lease_of_any_length_is_renewed_in_time_and_not_in_a_loop() {
    for (granted, period) in [("1", 333), ("0", 333), ("-9223372036854775808", 333), ("9223372036854775807", 5000)] {
        let body = json!({ "ID": "7", "TTL": granted }).to_string();
        let (endpoint, _asked) = server(move |_, stream| say(stream, "200 OK", &body));
        let mut etcd = etcd(&[&endpoint]);
        etcd.ask(&own());
        assert_eq!(etcd.period().as_millis(), period, "{granted}");
        assert!(etcd.pause_max() <= PAUSE_MAX && etcd.pause_max() >= Duration::from_millis(333));
    }
}

#[test]
fn answers_that_are_none_are_refused_and_leave_the_hosts_of_before() {
    let deep = "[".repeat(1 << 20);
    let nonsense = [
        ("200 OK", ""),
        ("200 OK", "no JSON"),
        ("200 OK", "[]"),
        ("200 OK", "{}"),
        ("200 OK", r#"{"header":{}}"#),
        ("200 OK", r#"{"header":{"cluster_id":"1"},"kvs":{}}"#),
        ("200 OK", r#"{"header":{"cluster_id":"1"},"kvs":[{}]}"#),
        ("200 OK", r#"{"header":{"cluster_id":"1"},"kvs":[{"key":"?"}]}"#),
        ("200 OK", r#"{"header":{"cluster_id":"1"},"kvs":[{"key":7}]}"#),
        ("200 OK", &deep),
        ("302 Found", ""),
        ("401 Unauthorized", "\u{1b}[2J"),
        ("503 Service Unavailable", &deep),
    ];
    for (status, body) in nonsense {
        let (endpoint, _asked) = with_range(status, body);
        let told = etcd(&[&endpoint]).ask(&own());
        let Some(DirectoryError::Refused(words)) = &told.error else { panic!("{status} {told:?}") };
        assert!(told.members.is_none() && words.len() < 2000 && !words.contains('\u{1b}'), "{words}");
    }
}

#[test]
fn an_answer_without_end_is_cut() {
    let (endpoint, _asked) = server(|(path, _), stream| {
        if path != "kv/range" {
            return say(stream, "200 OK", &usual(path));
        }
        write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
        let part = vec![b' '; 1 << 20];
        loop {
            stream.write_all(&part)?;
        }
    });
    let told = etcd(&[&endpoint]).ask(&own());
    assert!(told.members.is_none() && told.error.is_some(), "{told:?}");
    let (endpoint, _asked) = server(|_, stream| {
        write!(stream, "HTTP/1.1 200 OK\r\n")?;
        loop {
            write!(stream, "X-Header: {}\r\n", "x".repeat(1000))?;
        }
    });
    assert!(etcd(&[&endpoint]).ask(&own()).error.is_some());
}

#[test]
fn a_server_that_answers_by_drops_or_not_at_all_is_silent() {
    let (slow, _asked) = server(|_, stream| {
        write!(stream, "HTTP/1.1 200 OK\r\n\r\n")?;
        loop {
            write!(stream, " ")?;
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    // Its backlog takes the connection, and nobody reads.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf = format!("http://{}", deaf.local_addr().unwrap());
    let mut etcd = etcd(&[&slow, &deaf]);
    etcd.gateway = Gateway::new(etcd.asked(), Duration::from_millis(300));
    let told = etcd.ask(&own());
    assert!(matches!(&told.error, Some(DirectoryError::Silent(_))), "{told:?}");
}

#[test]
fn nobody_is_sent_on_to_another_server() {
    let (other, asked) = with_range("200 OK", &range(&[own()]).to_string());
    let (endpoint, _asked) = server(move |(path, _), stream| {
        write!(stream, "HTTP/1.1 307 Temporary Redirect\r\nLocation: {other}/v3/{path}\r\nContent-Length: 0\r\n\r\n")
    });
    let told = etcd(&[&endpoint]).ask(&own());
    assert!(matches!(&told.error, Some(DirectoryError::Refused(words)) if words.contains("307")), "{told:?}");
    assert!(asked.try_recv().is_err());
}

#[test]
fn more_hosts_than_are_asked_for_are_told() {
    let mut hosts = range(&[own()]);
    hosts["more"] = true.into();
    let (endpoint, _asked) = with_range("200 OK", &hosts.to_string());
    let told = etcd(&[&endpoint]).ask(&own());
    assert_eq!(told.members, Some(vec![own()]));
    assert_eq!(told.error, Some(DirectoryError::TooMany { kept: 1 }));
}

#[test]
fn names_without_end_are_cut() {
    let services: Vec<String> = (0..64).map(|n| format!("s{n}")).collect();
    let host =
        |n: u32| Member { address: (0x0a00_0000 + n).to_be_bytes().into(), name: None, services: services.clone() };
    let hosts: Vec<Member> = (0..5000).map(host).collect();
    let (endpoint, _asked) = with_range("200 OK", &range(&hosts).to_string());
    let told = etcd(&[&endpoint]).ask(&own());
    assert_eq!(told.members.map(|members| members.len()), Some(NAMES_MAX / 64));
    assert_eq!(told.error, Some(DirectoryError::TooMany { kept: NAMES_MAX / 64 }));
}
