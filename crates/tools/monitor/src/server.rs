//! A small HTTP server in a thread of its own, and with it the endpoint for Prometheus.
//!
//! Owns the bounds: connections at a time, time and bytes of a request's head, time of a connection. It must never keep
//! anything of a client behind its connection, and asks the daemon at most once in [`SAMPLE_AGE`], whatever number of
//! clients ask it.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use crate::exposition::{CONTENT_TYPE, Exposition};
use crate::{Rates, Sample};

/// Connections at a time; more are closed at once.
const CONNECTIONS_MAX: usize = 64;
/// Time for the head of a request, and the longest head.
const HEAD_TIME: Duration = Duration::from_secs(5);
const HEAD_BYTES_MAX: usize = 16 << 10;
/// A connection ends after this long, whatever it does.
const CONNECTION_TIME: Duration = Duration::from_secs(120);
/// An address that is taken is tried again this often.
const BIND_AGAIN: Duration = Duration::from_secs(2);
/// A client that asks sooner gets the answer of before.
pub(crate) const SAMPLE_AGE: Duration = Duration::from_millis(900);

/// What a request gets.
pub(crate) type Answer = Response<String>;
/// A site: what it answers. Boxed, so that the server is compiled once for all sites.
pub(crate) type Site = Arc<dyn Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync>;

/// Text of a kind, such as `text/html`.
pub(crate) fn answer(status: StatusCode, kind: &'static str, text: impl Into<String>) -> Answer {
    let mut answer = Response::new(text.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// A line for people, which ends with a line feed.
pub(crate) fn told(status: StatusCode, text: impl Into<String>) -> Answer {
    answer(status, "text/plain; charset=utf-8", text)
}

/// The answer to a request that would do more than read what is there.
pub(crate) fn refused_method(method: &Method) -> Option<Answer> {
    if [Method::GET, Method::HEAD].contains(method) {
        return None;
    }
    let mut refused = told(StatusCode::METHOD_NOT_ALLOWED, "");
    refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET,HEAD"));
    Some(refused)
}

/// Serves until `end` is done.
pub(crate) async fn serve(listener: TcpListener, site: Site, end: impl Future<Output = ()>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    tokio::pin!(end);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Descriptors are short, or the client is gone already.
                    tracing::debug!(%error, "accept of a tool's connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut end => return,
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let site = Arc::clone(&site);
        let service = service_fn(move |request| {
            let answered = site(request);
            async { Ok::<_, Infallible>(answered.await) }
        });
        tokio::spawn(async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(HEAD_BYTES_MAX);
            let connection = http.serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
            drop(place);
        });
    }
}

/// The last look at a daemon, for all who ask.
#[derive(Debug)]
pub(crate) struct Looker {
    socket: Option<PathBuf>,
    with_connections: bool,
    last: Mutex<Option<Look>>,
}

/// A look, and what happened since the one before.
#[derive(Debug, Clone)]
pub(crate) struct Look {
    pub(crate) sample: Arc<Sample>,
    pub(crate) rates: Option<Arc<Rates>>,
}

impl Looker {
    pub(crate) fn new(socket: Option<PathBuf>, with_connections: bool) -> Self {
        Self { socket, with_connections, last: Mutex::new(None) }
    }

    /// A look that is younger than [`SAMPLE_AGE`]; an error is what the daemon, or its absence, said.
    pub(crate) async fn look(&self) -> Result<Look, String> {
        let mut last = self.last.lock().await;
        if let Some(look) = last.as_ref().filter(|look| look.sample.at.elapsed() < SAMPLE_AGE) {
            return Ok(look.clone());
        }
        let (socket, with_connections) = (self.socket.clone(), self.with_connections);
        let asked = tokio::task::spawn_blocking(move || match with_connections {
            true => Sample::ask(socket.as_deref()),
            false => Sample::ask_stat(socket.as_deref()),
        });
        let sample = Arc::new(asked.await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?);
        let rates = last.as_ref().and_then(|before| Rates::between(&before.sample, &sample)).map(Arc::new);
        Ok(last.insert(Look { sample, rates }).clone())
    }
}

/// Whether a request has the word `Authorization: Bearer TOKEN`. As many steps whatever was given.
pub(crate) fn is_authorized(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    given.is_some_and(|given| bool::from(given.ct_eq(token.as_bytes())))
}

/// The endpoint for Prometheus.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The control socket of the daemon that it asks.
    pub socket: PathBuf,
    /// What a scraper has to say (`Authorization: Bearer`); None: nothing.
    pub token: Option<String>,
}

#[derive(Debug)]
struct Endpoint {
    looker: Looker,
    exposition: Mutex<Exposition>,
    token: Option<String>,
}

/// Starts a thread that serves `GET /metrics` until the process ends. If the address is taken, it says so in the log
/// and tries again: the daemon's service does not depend on it.
pub fn serve_metrics(metrics: Metrics) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let Metrics { listen, socket, token } = metrics;
    let endpoint = Endpoint { looker: Looker::new(Some(socket), false), exposition: Mutex::default(), token };
    let endpoint = Arc::new(endpoint);
    let site: Site = Arc::new(move |request| Box::pin(scrape(Arc::clone(&endpoint), request)));
    let serving = async move {
        let listener = bind(listen).await;
        tracing::info!(%listen, "serving metrics");
        serve(listener, site, std::future::pending()).await;
    };
    std::thread::Builder::new().name("raas-metrics".into()).spawn(move || runtime.block_on(serving)).map(drop)
}

async fn bind(listen: SocketAddr) -> TcpListener {
    let mut is_told = false;
    loop {
        match TcpListener::bind(listen).await {
            Ok(listener) => return listener,
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::error!(%listen, %error, "metrics are not served: cannot listen; trying on");
                }
                tokio::time::sleep_until(Instant::now() + BIND_AGAIN).await;
            }
        }
    }
}

async fn scrape(endpoint: Arc<Endpoint>, request: Request<Incoming>) -> Answer {
    if request.uri().path() != "/metrics" {
        return told(StatusCode::NOT_FOUND, "");
    }
    if let Some(refused) = refused_method(request.method()) {
        return refused;
    }
    if endpoint.token.as_deref().is_some_and(|token| !is_authorized(request.headers(), token)) {
        let text = "the token of `metrics_token_file` is missing or wrong\n";
        let mut refused = told(StatusCode::UNAUTHORIZED, text);
        refused.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return refused;
    }
    match endpoint.looker.look().await {
        Ok(look) => match endpoint.exposition.lock().await.render(&look.sample.stat) {
            Ok(text) => answer(StatusCode::OK, CONTENT_TYPE, text),
            Err(e) => told(StatusCode::INTERNAL_SERVER_ERROR, format!("{e}\n")),
        },
        Err(e) => told(StatusCode::SERVICE_UNAVAILABLE, format!("{e}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            is_authorized(&headers, "secret")
        };
        assert!(with("Bearer secret"));
        for wrong in ["Bearer secre", "Bearer secrets", "Bearer ", "secret", "Basic secret", ""] {
            assert!(!with(wrong), "{wrong}");
        }
        assert!(!is_authorized(&HeaderMap::new(), "secret"));
    }
}
