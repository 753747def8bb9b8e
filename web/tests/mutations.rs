//! Thousands of requests with changed, missing, doubled and foreign bytes, headers and paths, against the real server: it neither
//! ends nor hangs, and tells nothing to those without a token that is taken.
#![forbid(unsafe_code)]

use std::sync::OnceLock;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestRunner;

use site::{SECRETS, Site, code, start};

mod site;

/// Cases of each test; `RADIC_CASES` says another number.
const CASES: u32 = 4_000;

/// Requests as they may be, and as they may not. `PASS` stands for the header with the token, or for none.
const REQUESTS: [&str; 14] = [
    "GET / HTTP/1.1\r\nHost: here\r\nPASS\r\n",
    "GET /metrics HTTP/1.1\r\nHost: here\r\nPASSAccept: application/openmetrics-text\r\n\r\n",
    "HEAD /metrics HTTP/1.1\r\nHost: here\r\nPASS\r\n",
    "GET /metrics HTTP/1.0\r\nPASS\r\n",
    "GET http://here/metrics HTTP/1.1\r\nHost: elsewhere\r\nPASS\r\n",
    "GET //metrics?a=b&c=%00 HTTP/1.1\r\nHost: here\r\nPASSCookie: a=b; c\r\n\r\n",
    "GET /%2e%2e/%2fkey;x#y HTTP/1.1\r\nHost: here\r\nPASSRange: bytes=0-1\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: here\r\nPASSContent-Length: 5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: here\r\nPASSTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: here\r\nPASSContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nPASS\r\n",
    "GET / HTTP/1.1\r\nHost: here\r\nConnection: upgrade\r\nUpgrade: h2c\r\nExpect: 100-continue\r\nPASS\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: here\r\nPASS\r\n",
    "CONNECT here:22 HTTP/1.1\r\nHost: here\r\nPASS\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nPASS\r\n",
];

/// Bytes that mean something to a reader of requests.
const PIECES: [&[u8]; 16] = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b":",
    b" ",
    b"\t",
    b"\r\n\r\n",
    b"\r\n ",
    b"%0d%0a",
    b"\xff\xfe",
    b"HTTP/1.1",
    b"Authorization: ",
    b"Bearer ",
    b"Basic Og==",
    b"/feed",
];

/// A change of a request.
#[derive(Debug, Clone)]
enum Mutation {
    Flip(Index, u8),
    Insert(Index, Vec<u8>),
    Cut(Index, u8),
    Repeat(Index, u8, u8),
    End(Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let place = any::<Index>;
    prop_oneof![
        3 => (place(), 1..=255u8).prop_map(|(at, bits)| Mutation::Flip(at, bits)),
        3 => (place(), select(&PIECES[..])).prop_map(|(at, piece)| Mutation::Insert(at, piece.to_vec())),
        1 => (place(), vec(any::<u8>(), 1..60)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        2 => (place(), 1..40u8).prop_map(|(at, count)| Mutation::Cut(at, count)),
        2 => (place(), 1..40u8, 1..100u8).prop_map(|(at, count, times)| Mutation::Repeat(at, count, times)),
        1 => place().prop_map(Mutation::End),
    ]
}

fn mutate(bytes: &mut Vec<u8>, mutation: &Mutation) {
    let (Mutation::Flip(at, _) | Mutation::Insert(at, _) | Mutation::Cut(at, _) | Mutation::Repeat(at, ..) | Mutation::End(at)) =
        mutation;
    let at = at.index(bytes.len() + 1);
    let range = |count: u8| at..(at + usize::from(count)).min(bytes.len());
    match mutation {
        Mutation::Flip(_, bits) => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= bits),
        Mutation::Insert(_, piece) => _ = bytes.splice(at..at, piece.iter().copied()),
        Mutation::Cut(_, count) => _ = bytes.drain(range(*count)),
        Mutation::Repeat(_, count, times) => {
            let piece = bytes[range(*count)].repeat(usize::from(*times));
            bytes.splice(at..at, piece);
        }
        Mutation::End(_) => bytes.truncate(at),
    }
}

fn requests(headers: Vec<String>) -> impl Strategy<Value = Vec<u8>> {
    (select(&REQUESTS[..]), select(headers), vec(mutation(), 0..6)).prop_map(|(request, header, mutations)| {
        let mut bytes = request.replace("PASS", &header).into_bytes();
        mutations.iter().for_each(|mutation| mutate(&mut bytes, mutation));
        bytes
    })
}

fn site() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(start)
}

fn config() -> ProptestConfig {
    let cases = std::env::var("RADIC_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES);
    ProptestConfig { cases, max_shrink_iters: 200, ..ProptestConfig::default() }
}

/// What may be said for a token that is none, is old, or is another cluster's.
fn refused() -> Vec<String> {
    let Site { old, wrong, .. } = site();
    let bearer = [old, wrong, "radic-0-0", ""].map(|token| format!("Authorization: Bearer {token}\r\n"));
    let others = [
        "",
        "Authorization: Basic cmFkaWM6eA==\r\n",
        "Proxy-Authorization: Basic cmFkaWM6eA==\r\n",
        "X-Forwarded-For: 127.0.0.1\r\n",
    ];
    bearer.into_iter().chain(others.map(str::to_owned)).collect()
}

/// Every answer in it: several requests may have become of one.
fn codes(answer: &str) -> impl Iterator<Item = &str> {
    answer.match_indices("HTTP/1.").map(|(at, _)| code(&answer[at..]))
}

/// Whether this is so of the answer to every request; and then the server answers as it should.
fn hold(requests: impl Strategy<Value = Vec<u8>>, is_so: impl Fn(&[u8], &str) -> bool) {
    let site = site();
    let tried = TestRunner::new(config()).run(&requests, |request| {
        let answer = site.say(&request);
        prop_assert!(is_so(&request, &answer), "{}\n---\n{answer}", String::from_utf8_lossy(&request));
        Ok(())
    });
    tried.unwrap_or_else(|error| panic!("{error}"));
    let metrics = site.get("/metrics", Some(&site.token));
    assert!(code(&metrics) == "200" && metrics.ends_with("# EOF\n"), "{metrics}");
}

#[test]
fn without_a_token_nothing_is_told() {
    const REFUSALS: [&str; 8] = ["400", "401", "408", "414", "417", "431", "501", "505"];
    hold(requests(refused()), |_, answer| {
        codes(answer).all(|code| REFUSALS.contains(&code)) && !SECRETS.iter().any(|secret| answer.contains(secret))
    });
}

#[test]
fn with_one_a_strange_request_does_no_harm() {
    let token = &site().token;
    hold(requests(vec![format!("Authorization: Bearer {token}\r\n")]), |request, answer| {
        String::from_utf8_lossy(request).contains(token) || !codes(answer).any(|code| code == "200")
    });
}
