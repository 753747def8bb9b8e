//! The page and the metrics of a real cluster, through a node's death: what `radic web` prints leads there, and what happens is told.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::MPICH;
use radic_tests::recovery::{FLAGS, HOSTS, SOON, first_checkpoints, rounds, start, strike};
use serde_json::Value;

/// A daemon's page, and the token for it.
struct Page {
    address: String,
    token: String,
}

impl Page {
    /// Of this node, as `radic web` tells.
    fn of(cluster: &Cluster, node: &str) -> Page {
        let told = cluster.radic(["web"]).run().expect(0).stdout();
        let link = told.lines().find_map(|line| line.strip_prefix(node)).unwrap_or_else(|| panic!("no page of {node} in {told}"));
        let (token, address) =
            link.trim().trim_start_matches("http://radic:").split_once('@').expect("a password and an address");
        Page { address: address.trim_end_matches('/').to_owned(), token: token.to_owned() }
    }

    fn begin(&self, path: &str, token: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("the page");
        stream.set_read_timeout(Some(SOON)).expect("a socket");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).expect("the request is taken");
        stream
    }

    fn get(&self, path: &str, token: &str) -> String {
        let mut answer = String::new();
        self.begin(path, token).read_to_string(&mut answer).expect("an answer");
        answer
    }
}

/// What the feed tells, update by update.
struct Feed {
    stream: TcpStream,
    rest: String,
    events: Vec<Value>,
    last: Value,
    pairs: usize,
}

impl Feed {
    fn of(page: &Page) -> Feed {
        Feed { stream: page.begin("/feed", &page.token), rest: String::new(), events: Vec::new(), last: Value::Null, pairs: 0 }
    }

    /// Reads on until this is so.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Feed) -> bool) {
        let deadline = Instant::now() + SOON;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what}: it was not told; the last update is {}", self.last);
            let mut buffer = [0; 16 << 10];
            let count = self.stream.read(&mut buffer).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(count > 0, "{what}: the feed has ended");
            self.rest += std::str::from_utf8(&buffer[..count]).expect("all that is told here is ASCII");
            self.take();
        }
    }

    fn take(&mut self) {
        while let Some(at) = self.rest.find("\n\n") {
            let block: String = self.rest.drain(..at + 2).collect();
            // What chunks of HTTP have around it, and comments, are no data.
            let Some(data) = block.lines().find_map(|line| line.strip_prefix("data: ")) else { continue };
            let Ok(told) = serde_json::from_str::<Value>(data) else { panic!("{data} is no JSON") };
            self.events.extend(told["events"].as_array().into_iter().flatten().cloned());
            let traffic = told["traffic"].as_object().into_iter().flatten();
            self.pairs = traffic.map(|(_, of)| of["pairs"].as_array().map_or(0, Vec::len)).max().unwrap_or(self.pairs);
            self.last = told;
        }
    }

    fn has(&self, name: &str) -> bool {
        self.events.iter().any(|event| event[2] == name)
    }
}

#[test]
fn a_death_is_seen_from_its_detection_to_the_new_checkpoint() {
    let mut cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    cluster.radic(["web"]).run().expect(125).expect_stderr(&["no daemon", "--http"]);
    for node in [&["n1"], &HOSTS[..]].concat() {
        cluster.start_node(node, &["--http", "127.0.0.1:0"]);
    }
    let page = Page::of(&cluster, "n1");
    assert!(page.get("/", &page.token).contains("<title>RADIC</title>"));
    let wrong = page.get("/metrics", &page.token.replace('-', "_"));
    assert!(wrong.starts_with("HTTP/1.1 401") && !wrong.contains("radic_view"), "{wrong}");

    let mut feed = Feed::of(&page);
    let mut events = cluster.events_at("n1");
    let job = start(&MPICH, &cluster, FLAGS, &rounds(&MPICH, "--rounds 3000 --mib 2 --pause 2"));
    let number = first_checkpoints(&mut events, HOSTS.len()).to_string();
    feed.until("which ranks send to which", |feed| feed.pairs > 0);
    let host = Page::of(&cluster, "n2");
    let metrics = host.get("/metrics", &host.token);
    for part in [
        format!("radic_rank_received_bytes_total{{radic_job=\"{number}\",rank=\"0\"}}"),
        format!("radic_job_running_ranks{{radic_job=\"{number}\"}} 4.0"),
        format!("radic_job_checkpoint_interval_seconds{{radic_job=\"{number}\"}} 0.3"),
        "radic_members{role=\"node\"} 5.0".to_owned(),
        "radic_store_free_bytes ".to_owned(),
        "# EOF\n".to_owned(),
    ] {
        assert!(metrics.contains(&part), "{part} is missing in {metrics}");
    }

    // n3 protects the rank of n2.
    let protector = Page::of(&cluster, "n3");
    let (metrics, age) =
        (protector.get("/metrics", &protector.token), format!("radic_job_checkpoint_age_seconds{{radic_job=\"{number}\"}}"));
    assert!(metrics.contains(&age), "{age} is missing in {metrics}");

    assert!(strike(&cluster, &job, "n4", Duration::ZERO), "it was over before n4 died");
    feed.until("the death and all that follows", |feed| {
        ["confirm", "fence", "place", "image", "replay", "live", "re-protected"].iter().all(|name| feed.has(name))
    });
    feed.until("that the node is dead", |feed| feed.last["nodes"]["n4"]["state"] == "dead" || feed.has("job-end"));
    drop(feed);
    check_report(&cluster, &number);
    job.signal(rustix::process::Signal::TERM);
    job.wait();
    // What the ranks have counted is gone with their processes.
    let text = cluster.radic(["report", &number]).run().expect(0).stdout();
    assert!(text.contains("rank 2, n4") && text.contains("nothing is known of it"), "{text}");
    cluster.stop();
}

/// What `radic report` tells of the job of which n4 with its rank 2 has died.
fn check_report(cluster: &Cluster, job: &str) {
    let path = cluster.dir().join("report.html");
    let file = path.display().to_string();
    let written = cluster.radic(["report", job, "--json", "--html", &file]).run().expect(0);
    let report: Value = serde_json::from_slice(written.bytes()).unwrap_or_else(|error| panic!("{error} in {written}"));
    assert_eq!(
        (&report["deaths"][0]["node"], &report["deaths"][0]["ranks"]),
        (&"n4".into(), &serde_json::json!([2])),
        "{report}"
    );
    let back = &report["recoveries"][0];
    assert_eq!((&back["rank"], &back["cause"]["node"], &back["end"]), (&2.into(), &"n4".into(), &"protected".into()), "{back}");
    let steps = back["steps"].as_array().expect("the steps of a recovery");
    assert_eq!(steps.len(), 7, "{back}");
    assert!(steps.iter().all(|taken| taken["to_ms"].as_u64() >= taken["from_ms"].as_u64()), "{back}");
    assert!(report["overhead"]["known"].as_u64() > Some(0) && report["checkpoints"]["committed"].as_u64() > Some(0), "{report}");
    let page = std::fs::read_to_string(&path).expect("the page");
    assert!(page.contains("<svg ") && page.contains("rank 2, n4") && !page.contains("<script"), "{page}");
    cluster.radic(["report", job, "--svg", &file]).run().expect(125).expect_stderr(&["is there already"]);
    assert_eq!(std::fs::read_to_string(&path).expect("the page"), page, "what is there stays");
    cluster.radic(["report", "ffffffffffff"]).run().expect(125).expect_stderr(&["no job", "radic jobs --all"]);
}

#[test]
fn a_cluster_is_started_with_a_page_for_each_node() {
    let cluster = Cluster::empty(Kind::Logical);
    let start = |http: &str| cluster.radic(["cluster", "start", "--nodes", "2", http]).run();
    start("--http=127.0.0.1:7118").expect(125).expect_stderr(&["cannot share a port"]);
    start("--http").expect(0);
    let pages = ["n1", "n2"].map(|node| Page::of(&cluster, node));
    assert_ne!(pages[0].address, pages[1].address);
    for page in pages {
        assert!(page.get("/metrics", &page.token).starts_with("HTTP/1.1 200"), "{}", page.address);
    }
    cluster.stop();
}
