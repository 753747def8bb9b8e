//! The real server, of a simulated daemon.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use radic_web::simulated::Cluster;
use radic_wire::key::ClusterKey;
use radic_wire::token::Tokens;

/// What no answer without a token may have: the simulated cluster's words.
pub(crate) const SECRETS: [&str; 5] = ["node0", "node1", "solver", "4f3c", "radic_"];
/// Longer than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    pub(crate) asked: Arc<AtomicU64>,
    pub(crate) token: String,
    pub(crate) old: String,
    pub(crate) wrong: String,
    _dir: tempfile::TempDir,
}

pub(crate) fn start() -> Site {
    let dir = tempfile::tempdir().unwrap();
    let asked = Cluster { nodes: 8, ranks: 16 }.serve(dir.path()).unwrap();
    let key = ClusterKey::from_bytes([5; 32]);
    let (listener, address) = radic_web::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let tokens = Tokens::new(&key);
    let (token, old) = (tokens.issue(now + 600), tokens.issue(now - 1));
    let wrong = Tokens::new(&ClusterKey::from_bytes([6; 32])).issue(now + 600);
    let interval = Duration::from_millis(50);
    let folder = dir.path().to_owned();
    radic_web::start(listener, radic_web::Settings { node_dir: folder.clone(), store: folder, key, interval }).unwrap();
    Site { address, asked, token, old, wrong, _dir: dir }
}

impl Site {
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// All of the answer to these bytes, after which nothing comes: the server may see that first, and say nothing.
    pub(crate) fn say(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // It may answer and close before it has read everything.
        _ = stream.write_all(bytes);
        _ = stream.shutdown(std::net::Shutdown::Write);
        let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
        // Of the feed, which does not end, its beginning.
        while !String::from_utf8_lossy(&answer).contains("text/event-stream") {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => answer.extend(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&answer)),
            }
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub(crate) fn get(&self, path: &str, token: Option<&str>) -> String {
        self.ask("GET", path, token)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, token: Option<&str>) -> String {
        let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
        self.request(&format!("{method} {path} HTTP/1.1\r\nHost: here\r\n{token}\r\n"))
    }

    /// All of the answer to this whole request.
    pub(crate) fn request(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

pub(crate) fn code(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}
