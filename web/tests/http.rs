//! The page and the metrics as any client finds them: with and without a token, with anything for a request, and slowly.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use radic_web::server::{CONNECTIONS, HEAD_TIME};

use site::{LIMIT, SECRETS, Site, code, start};

mod site;

#[test]
fn without_a_token_that_is_taken_nothing_is_told() {
    let site = start();
    for path in ["/", "/metrics", "/feed", "/nothing", "/../key", "*"] {
        for token in [None, Some(&site.old), Some(&site.wrong), Some(&"radic-".to_owned())] {
            let answer = site.get(path, token.map(String::as_str));
            assert_eq!(code(&answer), "401", "{path} {token:?}: {answer}");
            assert!(answer.to_lowercase().contains("www-authenticate: basic"), "{answer}");
            assert!(!SECRETS.iter().any(|secret| answer.contains(secret)), "{path} tells: {answer}");
        }
    }
    assert_eq!(site.asked.load(Ordering::SeqCst), 0, "the daemon was asked for somebody without a token");
    let twice = format!("GET / HTTP/1.1\r\nAuthorization: Bearer {0}\r\nAuthorization: Bearer {0}\r\n\r\n", site.token);
    assert_eq!(code(&site.request(&twice)), "401", "two headers: which one counts?");
    assert!(site.get("/", Some(&site.old)).contains("expired"));
}

#[test]
fn with_one_there_is_a_page_and_metrics_and_nothing_to_write() {
    let site = start();
    let page = site.get("/", Some(&site.token));
    assert_eq!(code(&page), "200", "{page}");
    let nonce = page.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    assert!(page.contains(&format!("<script nonce=\"{nonce}\">")) && page.contains(&format!("<style nonce=\"{nonce}\">")));
    assert!(!page.contains("{{") && page.contains("default-src 'none'") && page.contains("no-store"), "{page}");
    let again = site.get("/", Some(&site.token));
    assert!(!again.contains(nonce), "the nonce is the same");
    let metrics = site.get("/metrics", Some(&site.token));
    assert!(metrics.contains("application/openmetrics-text; version=1.0.0") && metrics.ends_with("# EOF\n"), "{metrics}");
    assert!(metrics.contains("radic_node_info{node=\"node0\""), "{metrics}");
    assert_eq!(code(&site.get("/nothing", Some(&site.token))), "404");
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT"] {
        let answer = site.ask(method, "/", Some(&site.token));
        assert_ne!(code(&answer), "200", "{method}: {answer}");
    }
    let long = format!("/{}", "x".repeat(300));
    assert_eq!(code(&site.get(&long, Some(&site.token))), "414");
}

/// The parts of the page: a browser is needed to see them, not to know that they are there, and that the script finds each.
#[test]
fn the_page_has_what_its_script_looks_for() {
    let site = start();
    let page = site.get("/", Some(&site.token));
    let script = page.split("<script").nth(1).unwrap();
    let ids: std::collections::BTreeSet<&str> = ["at(\"", "canvas(\"", "touched(\""]
        .iter()
        .flat_map(|call| script.split(*call).skip(1))
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    assert!(ids.len() >= 15, "{ids:?}");
    for id in ids {
        assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
    }
    for part in ["name=\"viewport\"", "prefers-color-scheme: dark", "max-width: 600px", "<noscript>"] {
        assert!(page.contains(part), "{part}");
    }
    for foreign in ["http://", "https://", "innerHTML", "eval(", "@import", "<script src", "insertAdjacentHTML", "document.write"]
    {
        assert!(!page.split("\r\n\r\n").nth(1).unwrap().contains(foreign), "{foreign}");
    }
}

/// The beginning of the feed of a watcher, up to this many messages, and to the first events, which come when they happen.
fn watch(site: &Site, messages: usize) -> String {
    let mut stream = site.connect();
    let request = format!("GET /feed HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n", site.token);
    stream.write_all(request.as_bytes()).unwrap();
    let (mut told, mut buffer) = (Vec::new(), [0; 4096]);
    let is_enough = |told: &str| told.matches("data: ").count() > messages && told.contains("\"events\":[");
    while !is_enough(&String::from_utf8_lossy(&told)) {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the feed has ended: {}", String::from_utf8_lossy(&told));
        told.extend(&buffer[..count]);
    }
    String::from_utf8_lossy(&told).into_owned()
}

#[test]
fn the_feed_goes_on_and_the_daemon_rests_when_nobody_watches() {
    let site = start();
    let told = watch(&site, 6);
    assert!(told.contains("text/event-stream") && told.contains("\"full\":true") && told.contains("\"events\":["), "{told}");
    // Each update follows on the one before; a watcher that is too slow for that, as on a busy machine, has a whole picture instead.
    let mut before = None;
    for update in told.lines().filter_map(|line| line.strip_prefix("data: {\"n\":")) {
        let Some(number) = update.split_once(',').and_then(|(number, _)| number.parse::<u64>().ok()) else { continue };
        assert!(
            update.contains("\"full\":true") || before.is_some_and(|before| before + 1 == number),
            "{number} after {before:?} in {told}"
        );
        before = Some(number);
    }
    assert!(before >= Some(4), "{before:?} in {told}");
    assert!(told.contains("./solver --steps 1000 <input>") && told.contains("\"pairs\":["), "{told}");
    // The watcher is gone: soon nothing is asked any more.
    let deadline = Instant::now() + LIMIT;
    loop {
        let before = site.asked.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(500));
        if site.asked.load(Ordering::SeqCst) == before {
            break;
        }
        assert!(Instant::now() < deadline, "the daemon is still asked");
    }
    // One that comes later gets everything again.
    assert!(watch(&site, 3).contains("./solver"));
}

#[test]
fn a_slow_caller_is_let_go_and_holds_up_no_other_one() {
    let site = start();
    // More than there is room for, each with half a request.
    let mut slow: Vec<_> = (0..CONNECTIONS + 8).map(|_| site.connect()).collect();
    slow.iter_mut().for_each(|stream| _ = stream.write_all(b"GET / HTTP/1.1\r\nHost"));
    let begun = Instant::now();
    for mut stream in slow {
        let mut rest = Vec::new();
        // Closed, with or without a word.
        _ = stream.read_to_end(&mut rest);
        assert!(begun.elapsed() < HEAD_TIME + Duration::from_secs(5), "a slow one is still there");
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
    assert_eq!(code(&site.get("/metrics", Some(&site.token))), "200");
    // One that reads nothing of the feed does not hold up another one.
    let mut deaf = site.connect();
    deaf.write_all(format!("GET /feed HTTP/1.1\r\nAuthorization: Bearer {}\r\n\r\n", site.token).as_bytes()).unwrap();
    watch(&site, 20);
}

#[test]
fn a_head_has_bounds() {
    let site = start();
    let many: String = (0..100).map(|i| format!("X-{i}: y\r\n")).collect();
    let long = format!("X: {}\r\n", "y".repeat(64 << 10));
    for headers in [&many, &long] {
        let request = format!("GET / HTTP/1.1\r\nAuthorization: Bearer {}\r\n{headers}\r\n", site.token);
        let answer = site.say(request.as_bytes());
        assert!(!answer.contains("<html"), "{}", &answer[..answer.len().min(200)]);
    }
    assert_eq!(code(&site.get("/", Some(&site.token))), "200", "after all that");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Any bytes: an error or nothing, never anything that is told, and the next one is served.
    #[test]
    fn any_bytes_are_refused(
        path in prop_oneof!["/[ -~]{0,80}", "(/|%2e|%2f|\\.\\.|metrics|feed|\\?|#|;){0,20}", prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())],
        name in "[A-Za-z-]{0,20}", value in prop::collection::vec(any::<u8>(), 0..200), method in "(GET|HEAD|POST|get|[A-Z]{0,12})",
    ) {
        static SITE: std::sync::OnceLock<Site> = std::sync::OnceLock::new();
        let site = SITE.get_or_init(start);
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n{name}: ", site.old).into_bytes();
        request.extend(value);
        request.extend(b"\r\n\r\n");
        let answer = site.say(&request);
        prop_assert!(answer.is_empty() || ["400", "401", "414", "431", "505"].contains(&code(&answer)), "{answer}");
        prop_assert!(!SECRETS.iter().any(|secret| answer.contains(secret)), "{answer}");
    }
}
