//! The page of `raas web`: who gets it, what it says, and how it looks in a browser that shows it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::rig::{Cluster, Daemon, Running, WATCHDOG, raas, run, wait_until};
use raas::{Listener, Stream};
use serde_json::Value;

/// A name that would be a script if the page took it for markup. The daemon keeps 64 bytes of names.
const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\"></td>";

/// A page about this daemon: the process, its address and its token.
fn page(daemon: &Daemon) -> (Running, SocketAddr, String) {
    let mut web = Running::start(&mut daemon.command(&["web", "--listen", "127.0.0.1:0"]));
    web.wait_for("/#");
    let url = web.stdout().trim().to_owned();
    let (address, token) = url.strip_prefix("http://").unwrap().split_once("/#").unwrap();
    (web, address.parse().unwrap(), token.to_owned())
}

fn get(at: SocketAddr, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn state(at: SocketAddr, token: &str) -> Value {
    let answer = get(at, "/api/state", &format!("Host: {at}\r\nAuthorization: Bearer {token}\r\n"));
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap_or_else(|e| panic!("{e}: {answer}"))
}

#[test]
fn the_page_tells_its_own_user_what_the_daemon_does_and_ends_in_order() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let server = Listener::bind_with(&b.session("server"), (b.ip, 7000)).unwrap();
    let mut stream = Stream::connect_with(&a.session(HOSTILE), (b.ip, 7000)).unwrap();
    let _accepted = server.accept().unwrap();
    let (web, at, token) = page(&a);
    wait_until("rates", || {
        stream.write_all(&[1; 100]).unwrap();
        state(at, &token)["connections"][0]["tx_bytes_per_s"].as_f64().is_some_and(|rate| rate > 0.0)
    });
    let told = state(at, &token);
    assert_eq!(told["schema"], "raas.web/1");
    assert_eq!(told["connections"][0]["reason"], "other-host");
    assert_eq!(told["lanes"][0]["name"], format!("{}/0", b.ip));
    assert_eq!(told["apps"][0]["name"], HOSTILE, "as it is: the page makes text of it");
    a.stop();
    wait_until("the daemon's absence", || {
        state(at, &token)["error"].as_str().is_some_and(|error| error.contains("daemon"))
    });
    web.signal(rustix::process::Signal::INT);
    assert_eq!(web.end().code(), 0);
}

#[test]
fn strangers_and_web_sites_are_told_nothing() {
    let cluster = Cluster::new();
    let daemon = cluster.daemon();
    let (_web, at, token) = page(&daemon);
    let own = format!("Host: {at}\r\n");
    let bearer = format!("Authorization: Bearer {token}\r\n");
    assert!(get(at, "/api/state", &own).starts_with("HTTP/1.1 401"));
    assert!(
        get(at, "/api/state", &format!("{own}Authorization: Bearer {}\r\n", "0".repeat(32)))
            .starts_with("HTTP/1.1 401")
    );
    assert!(
        get(at, "/api/state", &format!("Host: evil.example:{}\r\n{bearer}", at.port())).starts_with("HTTP/1.1 421")
    );
    assert!(get(at, "/api/state", &format!("Host: 127.0.0.1\r\n{bearer}")).starts_with("HTTP/1.1 421"), "another port");
    assert!(get(at, "/../Cargo.toml", &own).starts_with("HTTP/1.1 404"));
    for path in ["/", "/page.js", "/page.css"] {
        let answer = get(at, path, &own);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(
            answer.contains("default-src 'none'") && answer.contains("nosniff") && !answer.contains(&token),
            "{answer}"
        );
        assert!(!answer.to_lowercase().contains("access-control-allow"), "{answer}");
    }
    let ended = run(&mut daemon.command(&["web", "--listen", "0.0.0.0:0"]));
    assert_eq!(ended.code(), 2, "{ended:?}");
    assert!(ended.stderr.contains("no loopback address"), "{ended:?}");
    assert_eq!(run(raas().args(["web", "--socket", "/nonexistent/raasd.sock"])).code(), 3);
}

/// The first of these browsers that can be started.
fn browser() -> Option<&'static str> {
    let works = |name: &&str| {
        let mut asked = Command::new(name);
        asked.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        asked.status().is_ok_and(|status| status.success())
    };
    ["chromium-headless-shell", "chromium"].into_iter().find(works)
}

/// The page in a browser of this width: its elements after some turns, and a picture of it.
fn show(browser: &str, place: &Path, url: &str, width: u32) -> (String, Vec<u8>) {
    let picture = place.join(format!("page-{width}.png"));
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]);
    command.args(["--virtual-time-budget=4000", &format!("--window-size={width},900")]);
    command.arg(format!("--user-data-dir={}", place.join(format!("browser-{width}")).display()));
    command.arg(format!("--screenshot={}", picture.display())).args(["--dump-dom", url]);
    let shown = run(command.stdin(Stdio::null()));
    assert_eq!(shown.code(), 0, "{shown:?}");
    (shown.stdout, std::fs::read(picture).unwrap())
}

#[test]
fn a_browser_shows_it_wide_and_on_a_phone_and_runs_no_name() {
    let Some(browser) = browser() else {
        eprintln!("SKIP page in a browser: the Debian package chromium-headless-shell is not installed");
        return;
    };
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let server = Listener::bind_with(&b.session("server"), (b.ip, 7000)).unwrap();
    let mut stream = Stream::connect_with(&a.session(HOSTILE), (b.ip, 7000)).unwrap();
    stream.write_all(&[1; 1000]).unwrap();
    let _accepted = server.accept().unwrap();
    let (_web, at, token) = page(&a);
    for width in [1280, 390] {
        let (dom, picture) = show(browser, cluster.dir.path(), &format!("http://{at}/#{token}"), width);
        assert!(dom.contains(&format!("{}:7000", b.ip)) && dom.contains("other-host"), "{dom}");
        assert!(dom.contains(&format!("{}/0  up", b.ip)), "the picture of lanes: {dom}");
        assert!(dom.contains("&lt;img src=x") && !dom.contains("<img"), "a name is text: {dom}");
        assert!(dom.contains("<title>RaaS</title>"), "no script of a name ran: {dom}");
        assert!(dom.contains("<polyline"), "curves: {dom}");
        assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000, "{} bytes", picture.len());
        if let Ok(keep) = std::env::var("RAAS_TEST_PICTURES") {
            std::fs::write(Path::new(&keep).join(format!("page-{width}.png")), &picture).unwrap();
        }
    }
    let (dom, _) = show(browser, cluster.dir.path(), &format!("http://{at}/#wrong"), 500);
    assert!(dom.contains("no answer: open the address that"), "{dom}");
}
