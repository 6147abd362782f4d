//! The page of `raas web`: hosts and lanes as a picture, connections with their reasons, plots that move.
//!
//! Owns who gets an answer. State goes only to requests that have the token, which the user who started the command has,
//! and that name this very server as their host: a web site that a browser shows cannot borrow the browser for it. The
//! page puts names in as text, never as markup, and its content policy forbids scripts of any other origin. There is
//! nothing here that changes a daemon.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use control::ConnectionRow;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, StatusCode};
use serde_json::{Value, json};

use crate::server::{Answer, Look, Looker, Site, answer, is_authorized, refused_method, serve, told};
use crate::{Flow, Rates, Sample};

/// Connections that one answer has: those that carry most, then those that have most waiting.
const CONNECTIONS_MAX: usize = 200;
/// Lanes and applications that one answer has, likewise.
const ROWS_MAX: usize = 500;
/// Bytes of the token.
const TOKEN_BYTES: usize = 16;

const HTML: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/page.js");
const STYLE: &str = include_str!("page/page.css");
/// Nothing from elsewhere, nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// Why there is no page.
#[derive(Debug)]
pub enum PageError {
    /// Other hosts could reach this address.
    NotLoopback(IpAddr),
    /// The system said no: to what, and how.
    System(&'static str, std::io::Error),
}

impl std::fmt::Display for PageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotLoopback(address) => write!(
                f,
                "{address} is no loopback address: the page has no encryption, so it is for this host alone; from \
                 another one use a tunnel, such as ssh -L"
            ),
            Self::System(what, error) => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for PageError {}

/// A page that is about to be served.
#[derive(Debug)]
pub struct Web {
    listener: std::net::TcpListener,
    address: SocketAddr,
    token: String,
    socket: Option<PathBuf>,
}

#[derive(Debug)]
struct Page {
    looker: Looker,
    token: String,
    hosts: Vec<String>,
}

impl Web {
    /// Listens at `listen`, a loopback address (port 0: any), for a page about the daemon at `socket` (None: as
    /// [`raas::Session::global`] finds it).
    pub fn bind(listen: SocketAddr, socket: Option<PathBuf>) -> Result<Self, PageError> {
        if !listen.ip().is_loopback() {
            return Err(PageError::NotLoopback(listen.ip()));
        }
        let cannot = |e| PageError::System("cannot listen for the page", e);
        let listener = std::net::TcpListener::bind(listen).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let mut random = [0; TOKEN_BYTES];
        getrandom::fill(&mut random)
            .map_err(|e| PageError::System("randomness", std::io::Error::other(e.to_string())))?;
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { listener, address, token, socket })
    }

    /// What to open. The part behind `#` is the token; browsers send it to nobody.
    pub fn url(&self) -> String {
        format!("http://{}/#{}", self.address, self.token)
    }

    /// Serves until `end` is done.
    pub fn run(self, end: impl Future<Output = ()>) -> Result<(), PageError> {
        let failed = |e| PageError::System("cannot serve the page", e);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let port = self.address.port();
        let hosts = vec![self.address.to_string(), format!("localhost:{port}")];
        let page = Arc::new(Page { looker: Looker::new(self.socket, true), token: self.token, hosts });
        let site: Site = Arc::new(move |request| Box::pin(visit(Arc::clone(&page), request)));
        let served = runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            serve(listener, site, end).await;
            Ok(())
        });
        runtime.shutdown_background();
        served.map_err(failed)
    }
}

/// Refuses requests that do not mean this server, and says to browsers what the page may do.
async fn visit(page: Arc<Page>, request: Request<Incoming>) -> Answer {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let mut answer = match host {
        Some(host) if page.hosts.iter().any(|own| own == host) => page.answer(&request).await,
        _ => told(StatusCode::MISDIRECTED_REQUEST, "this is not the host that you named\n"),
    };
    let with = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in with {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

impl Page {
    async fn answer(&self, request: &Request<Incoming>) -> Answer {
        let file = match request.uri().path() {
            "/" => Some(("text/html; charset=utf-8", HTML)),
            "/page.js" => Some(("text/javascript; charset=utf-8", SCRIPT)),
            "/page.css" => Some(("text/css; charset=utf-8", STYLE)),
            "/api/state" => None,
            _ => return told(StatusCode::NOT_FOUND, ""),
        };
        match (refused_method(request.method()), file) {
            (Some(refused), _) => refused,
            (None, Some((kind, text))) => answer(StatusCode::OK, kind, text),
            (None, None) => self.state(request.headers()).await,
        }
    }

    async fn state(&self, headers: &HeaderMap) -> Answer {
        if !is_authorized(headers, &self.token) {
            return told(StatusCode::UNAUTHORIZED, "open the address that `raas web` printed\n");
        }
        let body = |status, value: Value| answer(status, "application/json", value.to_string());
        match self.looker.look().await {
            Ok(look) => body(StatusCode::OK, to_json(&look)),
            Err(error) => body(StatusCode::SERVICE_UNAVAILABLE, json!({ "schema": "raas.web/1", "error": error })),
        }
    }
}

fn to_json(look: &Look) -> Value {
    let Look { sample, rates } = look;
    let Sample { stat, connections, took, .. } = &**sample;
    let none = Rates::default();
    let rates = rates.as_deref().unwrap_or(&none);
    let with = |mut row: Value, flow: Option<&Flow>| {
        let flow = flow.copied().unwrap_or_default();
        row["tx_bytes_per_s"] = json!(flow.tx_bytes_per_s);
        row["rx_bytes_per_s"] = json!(flow.rx_bytes_per_s);
        row
    };
    let lanes: Vec<Value> =
        stat.lanes.iter().take(ROWS_MAX).map(|l| with(json!(l), rates.lanes.get(&l.name))).collect();
    let apps: Vec<Value> =
        stat.apps.iter().take(ROWS_MAX).map(|a| with(json!(a), rates.apps.get(&a.session))).collect();
    let shown = busiest(connections, rates);
    let rows: Vec<Value> = shown.iter().map(|c| with(connection(c), rates.connections.get(&c.id))).collect();
    let by_reason: serde_json::Map<String, Value> = stat.drops.iter().map(|(r, n)| (r.clone(), json!(n))).collect();
    json!({
        "schema": "raas.web/1",
        "device": stat.device,
        "device_reason": stat.device_reason,
        "uptime_seconds": stat.uptime_seconds,
        "all_users": stat.all_users,
        "answer_us": u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        "seconds": rates.seconds,
        "tx_bytes_per_s": rates.lanes_total.tx_bytes_per_s,
        "rx_bytes_per_s": rates.lanes_total.rx_bytes_per_s,
        "work_requests_per_s": rates.work_requests_per_s,
        "stages": rates.stages.iter().map(|s| json!({
            "name": s.name, "count": s.count(), "p50_ns": s.quantile_ns(0.5), "p99_ns": s.quantile_ns(0.99)
        })).collect::<Vec<_>>(),
        "drops": by_reason,
        "drops_per_s": rates.drops_per_s.iter().map(|(_, n)| n).sum::<f64>(),
        "lanes_total": stat.lanes.len(),
        "lanes": lanes,
        "apps_total": stat.apps.len(),
        "apps": apps,
        "connections_total": connections.len(),
        "connections": rows,
    })
}

fn busiest<'a>(connections: &'a [ConnectionRow], rates: &Rates) -> Vec<&'a ConnectionRow> {
    let mut all: Vec<&ConnectionRow> = connections.iter().collect();
    let rate = |c: &ConnectionRow| rates.connections.get(&c.id).map_or(0.0, |flow| flow.bytes_per_s());
    let queued = |c: &ConnectionRow| c.tx_queued_bytes.saturating_add(c.rx_queued_bytes);
    all.sort_by(|a, b| rate(b).total_cmp(&rate(a)).then(queued(b).cmp(&queued(a))).then(a.id.cmp(&b.id)));
    all.truncate(CONNECTIONS_MAX);
    all
}

fn connection(c: &ConnectionRow) -> Value {
    json!({
        "id": c.id,
        "local": c.local,
        "peer": c.peer,
        "state": c.state.as_str(),
        "path": c.path.as_str(),
        "wire": c.wire,
        "lane": c.lane,
        "reason": c.reason.key(),
        "verb": c.verb,
        "tx_bytes": c.tx_bytes,
        "rx_bytes": c.rx_bytes,
        "queued_bytes": c.tx_queued_bytes.saturating_add(c.rx_queued_bytes),
        "app_pid": c.app_pid,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::rates::tests::{connection as row, sample};

    #[test]
    fn an_answer_has_the_busiest_connections_and_the_number_of_all() {
        let begin = Instant::now();
        let mut before = sample(begin);
        before.connections = (0..1000).map(|id| row(id, 0)).collect();
        let mut now = sample(begin + Duration::from_secs(1));
        now.connections = (0..1000).map(|id| row(id, if id == 777 { 5 } else { 0 })).collect();
        now.connections[500].tx_queued_bytes = 9;
        let rates = Rates::between(&before, &now).map(Arc::new);
        let told = to_json(&Look { sample: Arc::new(now), rates });
        assert_eq!(told["connections_total"], 1000);
        let rows = told["connections"].as_array().unwrap();
        assert_eq!(rows.len(), CONNECTIONS_MAX);
        assert_eq!((&rows[0]["id"], &rows[0]["rx_bytes_per_s"]), (&json!(777), &json!(5.0)));
        assert_eq!((&rows[1]["id"], &rows[1]["queued_bytes"]), (&json!(500), &json!(9)));
        assert_eq!(told["drops"]["bad_icrc"], 2);
        assert_eq!(told["lanes"][0]["name"], "10.0.0.2/0");
    }

    #[test]
    fn only_this_host_can_reach_it() {
        let refused = Web::bind("0.0.0.0:0".parse().unwrap(), None);
        assert!(matches!(refused, Err(PageError::NotLoopback(_))), "{refused:?}");
        let [one, other] = [(); 2].map(|()| Web::bind("127.0.0.1:0".parse().unwrap(), None).unwrap().url());
        assert_ne!(one.split('#').nth(1), other.split('#').nth(1), "a token of its own");
        assert_eq!(one.split('#').nth(1).map(str::len), Some(2 * TOKEN_BYTES));
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere_and_puts_no_markup_in() {
        for text in [HTML, SCRIPT, STYLE] {
            let urls: Vec<_> = text.match_indices("http").map(|(at, _)| &text[at..(at + 40).min(text.len())]).collect();
            assert!(urls.iter().all(|url| url.starts_with("http://www.w3.org/2000/svg")), "{urls:?}");
        }
        for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("] {
            assert!(!SCRIPT.contains(forbidden), "{forbidden}");
        }
        assert!(!HTML.contains("style=") && !HTML.contains("onload"), "inline code is forbidden by the policy");
    }
}
