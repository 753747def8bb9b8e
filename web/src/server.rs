//! Connections and their bounds, tokens, routes. One request for each connection; nothing of a request's body is ever read, for nothing can
//! be written here.

use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use http_body::Frame;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use radic_protector::daemon::asking;
use radic_wire::local::{Reply, Request as Question};
use radic_wire::token::Tokens;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};

use crate::Settings;
use crate::access;
use crate::feed::{Feed, WATCHERS};
use crate::metrics::{self, StoreSpace};
use crate::patience::Patient;

/// Connections at once; one more is closed at once.
pub const CONNECTIONS: usize = 64;
/// Time for the head of a request.
pub const HEAD_TIME: Duration = Duration::from_secs(5);
/// Time in which the other end must take something of what it is sent.
pub const WRITE_TIME: Duration = Duration::from_secs(20);
/// Longest head of a request, in bytes.
pub const HEAD: usize = 16 << 10;
/// Most headers of a request.
pub const HEADERS: usize = 64;
/// Longest path, in bytes.
pub const PATH: usize = 256;
/// What was scraped is given again for so long: several scrapers do not have the daemon asked more often.
const SCRAPE: Duration = Duration::from_millis(250);
/// The page names the scripts and styles that a browser may use by a number that is new each time.
const NONCE: &str = "{{nonce}}";

/// What every request is answered from.
#[derive(Debug)]
struct Site {
    tokens: Tokens,
    node_dir: PathBuf,
    store: PathBuf,
    feed: Arc<Feed>,
    page: String,
    scraped: Mutex<Option<(Instant, Bytes)>>,
    /// The store's file system is being asked: a broken one may never answer.
    asks_store: Arc<AtomicBool>,
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, settings: Settings) {
    let feed = Feed::new(settings.node_dir.clone(), settings.interval);
    tokio::spawn(feed.clone().run());
    let tokens = crate::tokens(&settings);
    let site = Arc::new(Site {
        tokens,
        node_dir: settings.node_dir,
        store: settings.store,
        feed,
        page: page(),
        scraped: Mutex::default(),
        asks_store: Arc::default(),
    });
    let app = app(site);
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::debug!(%error, "--http: cannot accept a connection");
                // Descriptors may be short: it passes.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if let Ok(permit) = room.clone().try_acquire_owned() {
            tokio::spawn(converse(socket, app.clone(), permit));
        }
    }
}

async fn converse(socket: TcpStream, app: Router, _permit: OwnedSemaphorePermit) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(HEAD).max_headers(HEADERS).keep_alive(false);
    let io = TokioIo::new(Patient::new(socket, WRITE_TIME));
    if let Err(error) = http.serve_connection(io, TowerToHyperService::new(app)).await {
        tracing::trace!(%error, "--http: a connection has failed");
    }
}

fn app(site: Arc<Site>) -> Router {
    let routes = Router::new().route("/", get(show_page)).route("/metrics", get(show_metrics)).route("/feed", get(show_feed));
    // Also for what is not found: without a token no client learns what is here.
    routes.fallback(not_found).layer(middleware::from_fn_with_state(site.clone(), guard)).with_state(site)
}

/// What is said with every answer: it is for this page alone, and is not kept.
const SAFE: [(HeaderName, HeaderValue); 4] = [
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff")),
    (HeaderName::from_static("x-frame-options"), HeaderValue::from_static("DENY")),
    (HeaderName::from_static("referrer-policy"), HeaderValue::from_static("no-referrer")),
];

/// Before every answer.
async fn guard(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let mut response = match admit(&site, &request) {
        Ok(()) => next.run(request).await,
        Err((code, why)) => (code, why).into_response(),
    };
    if response.status() == StatusCode::UNAUTHORIZED {
        let challenge =
            HeaderValue::from_static("Basic realm=\"radic: any name, and a token of `radic web`\", charset=\"UTF-8\"");
        response.headers_mut().insert("www-authenticate", challenge);
    }
    response.headers_mut().extend(SAFE);
    response
}

fn admit(site: &Site, request: &Request) -> Result<(), (StatusCode, String)> {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(u64::MAX, |time| time.as_secs());
    let mut headers = request.headers().get_all(AUTHORIZATION).iter();
    let (header, another) = (headers.next().map(HeaderValue::as_bytes), headers.next());
    let shown = if another.is_some() { Err(access::Refusal::Malformed) } else { access::check(&site.tokens, header, now) };
    shown.map_err(|refusal| (StatusCode::UNAUTHORIZED, format!("{refusal}\n")))?;
    if request.uri().path().len() > PATH {
        return Err((StatusCode::URI_TOO_LONG, format!("a path has at most {PATH} bytes\n")));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "here is only something to be looked at: GET\n".to_owned()));
    }
    Ok(())
}

async fn not_found() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "there are /, /metrics and /feed\n")
}

/// The page with all it needs, but for its nonce.
fn page() -> String {
    let (style, script) = (include_str!("../assets/page.css"), include_str!("../assets/page.js"));
    include_str!("../assets/page.html").replace("{{style}}", style).replace("{{script}}", script)
}

async fn show_page(State(site): State<Arc<Site>>) -> Response {
    let Ok(random) = getrandom::u64() else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let nonce = format!("{random:016x}");
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    let headers = [("content-type", "text/html; charset=utf-8".to_owned()), ("content-security-policy", policy)];
    (headers, site.page.replace(NONCE, &nonce)).into_response()
}

async fn show_metrics(State(site): State<Arc<Site>>) -> Response {
    match site.scrape().await {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

impl Site {
    async fn scrape(&self) -> Result<Bytes, String> {
        // One after the other: the daemon has one question at a time from here.
        let mut scraped = self.scraped.lock().await;
        if let Some((at, text)) = &*scraped
            && at.elapsed() < SCRAPE
        {
            return Ok(text.clone());
        }
        let status = match asking::ask(&self.node_dir, &Question::Node).await {
            Ok(Reply::Node(status)) => *status,
            Ok(_) => return Err(asking::AskError::Unexpected.to_string()),
            Err(error) => return Err(error.to_string()),
        };
        let space = self.store_space().await;
        let text: Bytes = metrics::encode(status, space).ok_or("the metrics cannot be written")?.into();
        *scraped = Some((Instant::now(), text.clone()));
        Ok(text)
    }

    /// None if the file system does not answer at once.
    async fn store_space(&self) -> Option<StoreSpace> {
        if self.asks_store.swap(true, Ordering::SeqCst) {
            return None;
        }
        let (store, asks) = (self.store.clone(), self.asks_store.clone());
        let asked = tokio::task::spawn_blocking(move || {
            let found = rustix::fs::statvfs(&store);
            asks.store(false, Ordering::SeqCst);
            found
        });
        let found = tokio::time::timeout(Duration::from_millis(500), asked).await.ok()?.ok()?.ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Some(StoreSpace { free: bytes(found.f_bavail), size: bytes(found.f_blocks) })
    }
}

async fn show_feed(State(site): State<Arc<Site>>) -> Response {
    let Some(messages) = site.feed.subscribe() else {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{WATCHERS} pages are open, more are not served\n")).into_response();
    };
    ([(CONTENT_TYPE, "text/event-stream")], Body::new(Messages(messages))).into_response()
}

/// Messages as the body of an answer that does not end.
struct Messages(mpsc::Receiver<Bytes>);

impl http_body::Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|message| message.map(|bytes| Ok(Frame::data(bytes))))
    }
}
