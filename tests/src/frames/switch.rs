//! The switch: a TAP device in each node's namespace, and a thread that passes frames between them, over a bad network.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::faults::{BadNetwork, Done, Due, Faults};
use super::segment::{self, Mac};
use crate::namespace::{self, inside};

/// The longest payload of a frame, as networks of clusters have it, and the longest frame.
const MTU: u16 = 9_000;
const FRAME: usize = 14 + MTU as usize;
/// Frames that a device keeps for the switch: more than the windows of all connections.
const QUEUE: u32 = 5_000;
/// Before all programs that are not as urgent.
const PRIORITY: i32 = -15;
/// Frames that are taken from a port before it is the next one's turn.
const BATCH: usize = 64;
/// The thread looks around as often, if there is nothing to do.
const TICK: Duration = Duration::from_millis(20);

struct Port {
    device: Arc<SyncDevice>,
    is_plugged: bool,
    /// Where the kernel tells what has become of that namespace's connections.
    counters: PathBuf,
}

impl Port {
    /// Connections that have ended all at once.
    fn resets(&self) -> u64 {
        let text = fs::read_to_string(&self.counters).unwrap_or_default();
        let mut lines = text.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
        let (Some(mut names), Some(mut values)) = (lines.next(), lines.next()) else { return 0 };
        let place = names.position(|name| name == "EstabResets");
        place.and_then(|place| values.nth(place)?.parse().ok()).unwrap_or(0)
    }

    /// Puts a frame out, if the port is plugged in. That a device has no room, or is down, is a loss like any other.
    fn send(&self, frame: &[u8]) {
        if self.is_plugged {
            _ = self.device.send(frame);
        }
    }
}

#[derive(Default)]
struct State {
    ports: Vec<Port>,
    /// Behind which port an address was seen.
    known: BTreeMap<Mac, usize>,
    network: BadNetwork,
    is_over: bool,
    /// The longest time for which something lay here that was due.
    late: Duration,
}

impl State {
    /// Puts out whatever is due.
    fn deliver(&mut self) {
        let now = Instant::now();
        while let Some((since, due)) = self.network.due(now) {
            self.late = self.late.max(since.elapsed());
            match due {
                Due::Frame(port, frame) => self.ports[port].send(&frame),
                Due::Reset(port, frame) => {
                    let before = self.ports[port].resets();
                    self.ports[port].send(&frame);
                    if self.ports[port].resets() > before {
                        self.network.has_broken();
                    }
                }
            }
        }
    }

    /// Takes a frame that has come from a port.
    fn take(&mut self, from: usize, frame: &[u8]) {
        let Some((to, sender)) = segment::macs(frame).filter(|_| self.ports[from].is_plugged) else { return };
        self.known.insert(sender, from);
        let now = Instant::now();
        match self.known.get(&to) {
            Some(port) if *port == from => {}
            Some(port) => self.network.take(now, from, *port, frame),
            None => (0..self.ports.len()).filter(|port| *port != from).for_each(|port| self.network.take(now, from, port, frame)),
        }
    }

    /// Time until something is due.
    fn wait(&self) -> Duration {
        self.network.next().map_or(TICK, |due| due.saturating_duration_since(Instant::now()).min(TICK))
    }
}

/// Whether there can be a switch of the test's own here. Why not is printed.
pub fn is_possible() -> bool {
    let device =
        || fs::File::options().read(true).write(true).open("/dev/net/tun").map_err(|error| format!("/dev/net/tun: {error}"));
    let possible = namespace::available().and_then(|()| device());
    if let Err(why) = &possible {
        println!("SKIPPED: no switch of the test's own: {why}");
    }
    possible.is_ok()
}

/// A switch. Its devices are gone when it is dropped, or its process is.
pub struct Switch {
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("the switch does not panic")
}

impl Switch {
    /// A switch without ports, and without faults.
    pub fn new() -> Switch {
        let state = Arc::new(Mutex::new(State::default()));
        let of = state.clone();
        Switch { state, thread: Some(thread::spawn(move || run(&of))) }
    }

    /// Gives the namespace of a process the interface `eth0`, at the next port.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn add(&self, process: u32) {
        let of = |what: &str| PathBuf::from(format!("/proc/{process}/{what}"));
        // It belongs to the namespace in which it is made, and neither sums nor cuts anything later: what is read here is what would be on a cable.
        let device = || DeviceBuilder::new().name("eth0").layer(Layer::L2).mtu(MTU).tx_queue_len(QUEUE).build_sync();
        let device = inside(&of("ns/net"), device).unwrap_or_else(|error| panic!("a TAP device (/dev/net/tun): {error}"));
        device.set_nonblocking(true).expect("a device can be made not to wait");
        locked(&self.state).ports.push(Port { device: device.into(), is_plugged: true, counters: of("net/snmp") });
    }

    /// Pulls the cable of a port, or puts it back.
    pub fn set_cable(&self, port: usize, is_plugged: bool) {
        locked(&self.state).ports[port].is_plugged = is_plugged;
    }

    /// From now on the network has these faults. What goes to these ports of daemons, or comes from there, is not between processes.
    pub fn begin(&self, faults: Faults, seed: u64, daemons: BTreeSet<SocketAddrV4>) {
        locked(&self.state).network.begin(faults, seed, daemons);
    }

    /// From now on it has none.
    pub fn end(&self) {
        locked(&self.state).network.end();
    }

    /// What was done so far to frames between processes, and to all others.
    pub fn done(&self) -> [Done; 2] {
        locked(&self.state).network.done()
    }

    /// The longest time for which a frame has waited for the switch itself: it cannot be quicker than the machine.
    pub fn late(&self) -> Duration {
        locked(&self.state).late
    }
}

impl Default for Switch {
    fn default() -> Self {
        Switch::new()
    }
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch").finish_non_exhaustive()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_over = true;
        _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(state: &Mutex<State>) {
    // Of this thread alone. No network waits until the programs on its nodes leave it a processor. That may be forbidden: then it is a slower one.
    _ = rustix::process::setpriority_process(None, PRIORITY);
    let mut buffer = vec![0; FRAME + 1];
    loop {
        let (devices, wait) = {
            let mut state = locked(state);
            if state.is_over {
                return;
            }
            state.deliver();
            (state.ports.iter().map(|port| port.device.clone()).collect::<Vec<_>>(), state.wait())
        };
        let asked = Instant::now();
        let ready = wait_for(&devices, wait);
        let mut state = locked(state);
        if ready.is_empty() {
            state.late = state.late.max(asked.elapsed().saturating_sub(wait));
        }
        for port in ready {
            for _ in 0..BATCH {
                match devices[port].recv(&mut buffer) {
                    Ok(count) => state.take(port, &buffer[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        }
    }
}

/// The ports at which something has come, within this time.
fn wait_for(devices: &[Arc<SyncDevice>], wait: Duration) -> Vec<usize> {
    let mut fds: Vec<_> = devices.iter().map(|device| PollFd::new(device, PollFlags::IN)).collect();
    let wait = Timespec::try_from(wait).expect("a short time");
    match poll(&mut fds, Some(&wait)) {
        Ok(_) => (0..fds.len()).filter(|port| fds[*port].revents().contains(PollFlags::IN)).collect(),
        Err(error) if error == rustix::io::Errno::INTR => Vec::new(),
        Err(error) => panic!("poll: {error}"),
    }
}
