//! A small HTTP server in a thread of its own, and with it the endpoint for Prometheus.
//!
//! Owns the bounds: connections at a time, time and bytes of a request's head, time of a connection. It must never keep
//! anything of a client behind its connection, and asks the daemon at most once in [`SAMPLE_AGE`], whatever number of
//! clients ask it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::exposition::{CONTENT_TYPE, Exposition};
use crate::{Rates, Sample};

/// Connections at a time. For one more, one ends that was not served yet.
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

/// A connection of a client.
#[derive(Debug)]
struct Client {
    task: AbortHandle,
    /// It got what it asked for, so it is no stranger who only holds a place.
    is_served: Arc<AtomicBool>,
}

/// Connections, the oldest first.
#[derive(Debug, Default)]
struct Connections(VecDeque<Client>);

impl Connections {
    /// Makes room for one more: the oldest of those that were never served ends, else the oldest.
    fn make_room(&mut self) {
        self.0.retain(|held| !held.task.is_finished());
        if self.0.len() >= CONNECTIONS_MAX {
            let at = self.0.iter().position(|held| !held.is_served.load(Ordering::Relaxed)).unwrap_or(0);
            if let Some(held) = self.0.remove(at) {
                held.task.abort();
            }
        }
    }
}

/// Serves until `end` is done.
pub(crate) async fn serve(listener: TcpListener, site: Site, end: impl Future<Output = ()>) {
    let mut connections = Connections::default();
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
        connections.make_room();
        let (site, is_served) = (Arc::clone(&site), Arc::new(AtomicBool::new(false)));
        let served = Arc::clone(&is_served);
        let service = service_fn(move |request| {
            let (answered, served) = (site(request), Arc::clone(&served));
            async move {
                let answer = answered.await;
                served.fetch_or(answer.status().is_success(), Ordering::Relaxed);
                Ok::<_, Infallible>(answer)
            }
        });
        let task = tokio::spawn(async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(HEAD_BYTES_MAX);
            let connection = http.serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
        });
        connections.0.push_back(Client { task: task.abort_handle(), is_served });
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

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

    /// Asks once on a connection; the first line of the answer.
    async fn ask(stream: &mut TcpStream) -> io::Result<String> {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await?;
        let mut answer = vec![0; 4096];
        let len = stream.read(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer[..len]).lines().next().unwrap_or_default().to_owned())
    }

    #[tokio::test]
    async fn connections_that_say_nothing_keep_nobody_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let site: Site = Arc::new(|_| Box::pin(async { told(StatusCode::OK, "here") }));
        let serving = tokio::spawn(serve(listener, site, std::future::pending()));
        let mut first = TcpStream::connect(at).await.unwrap();
        assert_eq!(ask(&mut first).await.unwrap(), "HTTP/1.1 200 OK");
        let mut silent = Vec::new();
        for _ in 0..2 * CONNECTIONS_MAX {
            silent.push(TcpStream::connect(at).await.unwrap());
        }
        let mut newcomer = TcpStream::connect(at).await.unwrap();
        assert_eq!(ask(&mut newcomer).await.unwrap(), "HTTP/1.1 200 OK");
        assert_eq!(ask(&mut first).await.unwrap(), "HTTP/1.1 200 OK", "who was served stays");
        serving.abort();
    }
}
