//! A bad network between a port and its callers: it delays, cuts messages in pieces, and resets connections at any byte. What was said on it can
//! be said once more, by another caller.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::namespace::inside;
use crate::random::Random;

/// Bytes that are read at once.
const READ: usize = 16 << 10;
/// Connections at once; one more is closed.
const CONNECTIONS: usize = 1_024;
/// Connections of which it is kept what the caller has said.
const RECORDINGS: usize = 256;
/// Bytes of each.
const RECORDED: usize = 16 << 10;
/// Time to connect, on one machine.
const CONNECT: Duration = Duration::from_secs(5);

/// What a proxy does to what passes.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// Longest delay of a piece. One of 64 is delayed.
    pub delay: Duration,
    /// Longest piece.
    pub piece: usize,
    /// One of so many pieces is the last one of its connection, and perhaps not whole. 0: none.
    pub reset: usize,
}

/// What a proxy has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// Connections that were made.
    pub connections: usize,
    /// Pieces that have passed.
    pub pieces: usize,
    /// Connections that were reset.
    pub resets: usize,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    faults: Faults,
    random: Mutex<Random>,
    connections: AtomicUsize,
    open: AtomicUsize,
    pieces: AtomicUsize,
    resets: AtomicUsize,
    recordings: Mutex<Vec<Vec<u8>>>,
    /// Both ends of each connection that is open.
    sockets: Mutex<Vec<(usize, TcpStream, TcpStream)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread of a proxy panics")
}

/// A proxy. It ends, and its connections with it, when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    listener: TcpListener,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens at `at`, for `target`: in this namespace, if it is said, else in the caller's.
    ///
    /// # Panics
    /// If it cannot.
    pub fn start(at: SocketAddr, target: SocketAddr, faults: Faults, seed: u64, namespace: Option<PathBuf>) -> Proxy {
        let bind = || TcpListener::bind(at).unwrap_or_else(|error| panic!("a proxy at {at}: {error}"));
        let listener = namespace.as_ref().map_or_else(bind, |namespace| inside(namespace, bind));
        let random = Mutex::new(Random::new(seed));
        let ([connections, open, pieces, resets], recordings, sockets) = Default::default();
        let shared = Arc::new(Shared { target, faults, random, connections, open, pieces, resets, recordings, sockets });
        let (accepting, of) = (listener.try_clone().expect("a descriptor"), shared.clone());
        let thread = thread::spawn(move || match namespace {
            Some(namespace) => inside(&namespace, || accept(&accepting, &of)),
            None => accept(&accepting, &of),
        });
        Proxy { listener, shared, thread: Some(thread) }
    }

    /// What it has done so far.
    pub fn done(&self) -> Done {
        let of = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let Shared { connections, pieces, resets, .. } = &*self.shared;
        Done { connections: of(connections), pieces: of(pieces), resets: of(resets) }
    }

    /// Resets the connection that has been open for longest. False: none is open.
    pub fn reset_oldest(&self) -> bool {
        let sockets = locked(&self.shared.sockets);
        let Some((_, caller, called)) = sockets.first() else { return false };
        self.shared.resets.fetch_add(1, Ordering::Relaxed);
        reset(caller);
        reset(called);
        true
    }

    /// The beginnings of what the callers have said.
    pub fn recordings(&self) -> Vec<Vec<u8>> {
        locked(&self.shared.recordings).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It wakes the thread that accepts.
        _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        _ = self.thread.take().map(JoinHandle::join);
        locked(&self.shared.sockets).iter().for_each(|(_, a, b)| [a, b].into_iter().for_each(|s| _ = s.shutdown(Shutdown::Both)));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        match listener.accept() {
            Ok((client, _)) => serve(client, shared),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            Err(_) => return,
        }
    }
}

/// Connects to the target, and passes on what comes, both ways. Where nothing listens the caller is reset, as it would be without a proxy.
fn serve(client: TcpStream, shared: &Arc<Shared>) {
    let number = shared.connections.fetch_add(1, Ordering::Relaxed);
    let server = TcpStream::connect_timeout(&shared.target, CONNECT);
    let Ok(server) = server.and_then(|server| server.set_nodelay(true).map(|()| server)) else { return reset(&client) };
    if client.set_nodelay(true).is_err() || shared.open.load(Ordering::Relaxed) >= CONNECTIONS {
        return reset(&client);
    }
    let copies = || Some((client.try_clone().ok()?, server.try_clone().ok()?));
    let (Some(one), Some(other), Some((from, to))) = (copies(), copies(), copies()) else { return reset(&client) };
    shared.open.fetch_add(1, Ordering::Relaxed);
    locked(&shared.sockets).push((number, from, to));
    let recorded = {
        let mut recordings = locked(&shared.recordings);
        recordings.push(Vec::new());
        (recordings.len() <= RECORDINGS).then(|| recordings.len() - 1)
    };
    let (here, there) = (shared.clone(), shared.clone());
    thread::spawn(move || {
        let back = thread::spawn(move || pump(&there, other.1, other.0, None));
        pump(&here, one.0, one.1, recorded);
        _ = back.join();
        locked(&here.sockets).retain(|(of, ..)| *of != number);
        here.open.fetch_sub(1, Ordering::Relaxed);
    });
}

/// Breaks a connection so that the other side is told: there is none.
fn reset(socket: &TcpStream) {
    _ = rustix::net::connect_unspec(socket);
}

/// What happens to the next piece: its length, its delay, whether it is the last.
fn draw(shared: &Shared, have: usize) -> (usize, Duration, bool) {
    let Faults { delay, piece, reset } = shared.faults;
    let mut random = locked(&shared.random);
    let length = 1 + random.below(piece.min(have));
    let pause = if random.below(64) == 0 { delay.mul_f64(random.below(1_000) as f64 / 1e3) } else { Duration::ZERO };
    (length, pause, reset > 0 && random.below(reset) == 0)
}

/// Passes on what comes from one side until it ends, or the connection is reset.
fn pump(shared: &Shared, mut from: TcpStream, mut to: TcpStream, recorded: Option<usize>) {
    let mut buffer = vec![0; READ];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => {
                _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return reset(&to),
        };
        if let Some(recorded) = recorded {
            let recording = &mut locked(&shared.recordings)[recorded];
            let room = RECORDED.saturating_sub(recording.len()).min(count);
            recording.extend_from_slice(&buffer[..room]);
        }
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let (length, pause, is_last) = draw(shared, rest.len());
            thread::sleep(pause);
            let (now, later) = rest.split_at(length);
            if to.write_all(now).is_err() {
                return reset(&from);
            }
            shared.pieces.fetch_add(1, Ordering::Relaxed);
            if is_last {
                shared.resets.fetch_add(1, Ordering::Relaxed);
                reset(&from);
                return reset(&to);
            }
            rest = later;
        }
    }
}

/// Says something that was recorded to the listener at an address. What the answer is, up to the end of the connection.
///
/// # Panics
/// If the connection is not ended in time.
pub fn say_again(recording: &[u8], to: SocketAddr, limit: Duration) -> Vec<u8> {
    let mut socket = TcpStream::connect_timeout(&to, CONNECT).expect("there is a listener");
    socket.set_read_timeout(Some(limit)).expect("a socket option");
    // A listener that has closed already has heard enough.
    _ = socket.write_all(recording);
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("what was recorded is listened to: {error}"),
        _ => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listener that gets all of it, in order, and answers with the length.
    fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut socket in listener.incoming().flatten().take(64) {
                let mut all = Vec::new();
                if socket.read_to_end(&mut all).is_ok() {
                    _ = socket.write_all(&all.len().to_le_bytes());
                }
            }
        });
        address
    }

    /// The proxy chooses its port itself. A port that is free at one moment need not be at the next: a child that is being started meanwhile holds every
    /// socket of this process until its exec.
    const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn everything_passes_in_pieces_and_is_recorded() {
        let faults = Faults { delay: Duration::from_millis(2), piece: 100, reset: 0 };
        let proxy = Proxy::start(ANY_PORT, server(), faults, 1, None);
        let said = vec![7; 30_000];
        let mut socket = TcpStream::connect(proxy.listener.local_addr().unwrap()).unwrap();
        socket.write_all(&said).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let mut answer = [0; 8];
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(usize::from_le_bytes(answer), said.len());
        assert!(proxy.done().pieces > 300, "{:?}", proxy.done());
        assert_eq!(proxy.recordings(), [said[..RECORDED].to_vec()]);
    }

    #[test]
    fn connections_are_reset() {
        let faults = Faults { delay: Duration::ZERO, piece: 10, reset: 20 };
        let proxy = Proxy::start(ANY_PORT, server(), faults, 1, None);
        let mut broken = 0;
        for _ in 0..20 {
            let mut socket = TcpStream::connect(proxy.listener.local_addr().unwrap()).unwrap();
            let said = socket.write_all(&[1; 2_000]).and_then(|()| socket.shutdown(Shutdown::Write));
            broken += usize::from(said.and_then(|()| socket.read_exact(&mut [0; 8])).is_err());
        }
        assert!(broken > 15 && proxy.done().resets > 15, "{broken} {:?}", proxy.done());
    }
}
