//! Nginx, loaded by wrk: a small file and a larger one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::compare::{By, Compared, Side, compare, same, words};
use super::serving::Ready;
use super::{At, Measured, RUN, TCP};
use crate::stats::{Bar, Better, Kind};

/// Files that are served: name, bytes, and what is wanted of `raas run`, in TCP's requests a second.
const FILES: [(&str, usize, (f64, Kind)); 2] =
    [("small", 100, (1.2, Kind::Goal)), ("middle", 64 * 1024, (0.9, Kind::Must))];
const CONNECTIONS: &str = "8";
/// Seconds of a load.
const SECONDS: f64 = 1.0;

/// Makes the folder of the files.
pub(super) fn files(at: &At<'_>) -> Result<PathBuf> {
    let www = at.place.file("www");
    std::fs::create_dir_all(&www)?;
    for (name, bytes, _) in FILES {
        std::fs::write(www.join(name), vec![b'w'; bytes])?;
    }
    Ok(www)
}

/// A server of these files.
pub(super) fn server(at: &At<'_>, www: &Path, port: u16) -> Result<Vec<String>> {
    let place = format!("root {};", www.display());
    started(at, port, "", &place)
}

/// A proxy at `port` that keeps connections to the server at `behind`, and that server.
pub(super) fn chain(at: &At<'_>, behind: u16, port: u16, server: &[String]) -> Result<Vec<String>> {
    let upstream = format!("upstream behind {{ server {}:{behind}; keepalive 16; }}", at.place.server());
    let place = "location / { proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection \"\"; }";
    let proxy = started(at, port, &upstream, place)?;
    Ok(words(&["sh", "-c", &format!("{} & exec {}", server.join(" "), proxy.join(" "))]))
}

fn started(at: &At<'_>, port: u16, before: &str, place: &str) -> Result<Vec<String>> {
    let folder = at.place.file(&format!("nginx-{port}"));
    std::fs::create_dir_all(&folder)?;
    let conf = folder.join("conf");
    let listen = format!("{}:{port}", at.place.server());
    std::fs::write(&conf, configuration(&folder, &listen, before, place))?;
    Ok(words(&["nginx", "-c", &conf.display().to_string(), "-e", "stderr"]))
}

pub(super) fn nginx(at: &At<'_>) -> Result<Measured> {
    let www = files(at)?;
    let mut rows = vec![];
    for (name, bytes, (least, kind)) in FILES {
        let mut sides = vec![];
        for (number, (line, by)) in (0..).zip([(TCP, By::Tcp), (RUN, By::Run)]) {
            let port = at.port(number);
            let seconds = format!("{}s", at.seconds(SECONDS).ceil());
            let url = format!("http://{}:{port}/{name}", at.place.server());
            sides.push(Side {
                line,
                by,
                server: server(at, &www, port)?,
                ready: Ready::Listens(port),
                client: words(&["wrk", "-t", "1", "-c", CONNECTIONS, "-d", &seconds, &url]),
            });
        }
        let x = bytes as f64;
        let lines = compare(at.place, at.rounds, &sides, &|text| Ok(vec![(x, wrk(text)?)]))?;
        let compared = Compared {
            case: at.case(&format!("nginx, {bytes} B, {CONNECTIONS} connections")),
            unit: "requests/s",
            better: Better::Higher,
            ours: RUN,
            rival: TCP,
            at: x,
            value: same,
            bar: at.is_one_host().then_some((Bar::RatioAtLeast(least), kind)),
        };
        rows.push(compared.row(&lines));
    }
    Ok(Measured { rows, ..Measured::default() })
}

fn configuration(folder: &Path, listen: &str, before: &str, place: &str) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {}/{kind};\n", folder.display()))
        .concat();
    format!(
        "daemon off; worker_processes 1; pid {0}/pid; error_log stderr; user www-data;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on;\n{temporary}{before}\n\
         server {{ listen {listen}; {place} }} }}\n",
        folder.display(),
    )
}

/// Requests a second; a request that failed is an error.
pub(super) fn wrk(text: &str) -> Result<f64> {
    ensure!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "some requests failed: {text}");
    let rate = text.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:")?.trim().parse::<f64>().ok());
    rate.filter(|rate| *rate > 0.0).with_context(|| format!("no rate in: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_failures_are_none() {
        assert_eq!(wrk("  Latency 1ms\nRequests/sec:  12345.67\nTransfer/sec: 3MB\n").expect("a rate"), 12_345.67);
        assert!(wrk("  Socket errors: connect 0, read 1, write 0, timeout 0\nRequests/sec: 5\n").is_err());
        assert!(wrk("Requests/sec:  0.00\n").is_err());
    }
}
