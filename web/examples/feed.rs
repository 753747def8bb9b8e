//! Serves the page of a simulated cluster, and says every second what that costs:
//! `cargo run --release -p radic-web --example feed -- NODES RANKS UPDATES_PER_SECOND [SECONDS]`

use std::time::{Duration, Instant, SystemTime};

use radic_web::simulated::Cluster;
use radic_wire::key::ClusterKey;
use radic_wire::token::Tokens;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u32>().expect("numbers"));
    let mut number = |default| numbers.next().unwrap_or(default);
    let (cluster, rate, seconds) = (Cluster { nodes: number(1000), ranks: number(4000) }, number(10), number(3600));
    let dir = tempfile::tempdir().expect("a folder");
    cluster.serve(dir.path()).expect("a socket");
    let key = ClusterKey::generate().expect("a key");
    let until = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs() + 86_400;
    let (listener, address) = radic_web::bind(([127, 0, 0, 1], 0).into()).expect("an address");
    println!("http://radic:{}@{address}/", Tokens::new(&key).issue(until));
    let folder = dir.path().to_owned();
    let interval = Duration::from_secs(1) / rate;
    let settings = radic_web::Settings { node_dir: folder.clone(), store: folder, key, interval };
    radic_web::start(listener, settings).expect("a thread");
    let (begun, mut before) = (Instant::now(), 0.0);
    while begun.elapsed() < Duration::from_secs(u64::from(seconds)) {
        std::thread::sleep(Duration::from_secs(1));
        let now = radic_web::simulated::processor_time("web");
        println!("{:6.2} % of a core", 100.0 * (now - before));
        before = now;
    }
}
