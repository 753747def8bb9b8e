//! Nodes with addresses of their own: a network namespace for each, and one more for the switch between them, if that is the kernel's.
//!
//! No namespace has a name, hence none can be left behind: each is held by a process that ends when the pipe from the test does,
//! however the test ended. Nothing is set up outside these namespaces, so the machine's own network never notices.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::frames;
use crate::process::MARK;

/// A namespace, held by a process.
#[derive(Debug)]
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new(mark: &Path) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo; exec cat"]).env(MARK, mark);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare starts");
        let stdout = holder.stdout.take().expect("it was piped");
        // The line says that the namespace is there.
        let count = BufReader::new(stdout).read_line(&mut String::new()).expect("a pipe can be read");
        assert_eq!(count, 1, "unshare --net failed: {:?}", holder.wait());
        let namespace = Namespace { holder };
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    /// `nsenter` and its arguments, before those of the program that is to run inside.
    fn enter(&self) -> Vec<OsString> {
        vec!["nsenter".into(), format!("--net=/proc/{}/ns/net", self.holder.id()).into(), "--".into()]
    }

    fn ip(&self, args: &[&str]) {
        let enter = self.enter();
        let output = Command::new(&enter[0]).args(&enter[1..]).arg("ip").args(args).output().expect("nsenter starts");
        assert!(output.status.success(), "ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        _ = self.holder.kill();
        _ = self.holder.wait();
    }
}

/// What is between the nodes.
#[derive(Debug)]
enum Between {
    /// A bridge of the kernel.
    Bridge(Namespace),
    /// A switch of the test.
    Frames(frames::Switch),
}

/// Nodes on one switch.
#[derive(Debug)]
pub struct Network {
    between: Between,
    nodes: Vec<Namespace>,
}

impl Network {
    /// A switch without ports. `mark` is the cluster's directory.
    pub fn new(mark: &Path) -> Self {
        let switch = Namespace::new(mark);
        switch.ip(&["link", "add", "switch", "type", "bridge"]);
        switch.ip(&["link", "set", "switch", "up"]);
        Network { between: Between::Bridge(switch), nodes: Vec::new() }
    }

    /// The same, on a switch of the test's own.
    pub fn of_frames() -> Self {
        Network { between: Between::Frames(frames::Switch::new()), nodes: Vec::new() }
    }

    /// The switch, if it is the test's own.
    pub fn frames(&self) -> Option<&frames::Switch> {
        match &self.between {
            Between::Bridge(_) => None,
            Between::Frames(switch) => Some(switch),
        }
    }

    /// Connects one more node; its number.
    pub fn add(&mut self, mark: &Path) -> usize {
        let number = self.nodes.len();
        let node = Namespace::new(mark);
        let (port, there) = (port(number), node.holder.id());
        match &self.between {
            Between::Frames(switch) => switch.add(there),
            Between::Bridge(switch) => {
                switch.ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &there.to_string()]);
                switch.ip(&["link", "set", &port, "master", "switch", "up"]);
            }
        }
        node.ip(&["address", "add", &format!("{}/16", address(number)), "dev", "eth0"]);
        node.ip(&["link", "set", "eth0", "up"]);
        self.nodes.push(node);
        number
    }

    /// Connects a node to a second network, with a bridge of its own.
    ///
    /// # Panics
    /// If the first one is the test's own switch.
    pub fn add_second(&self, number: usize) {
        let Between::Bridge(switch) = &self.between else { panic!("a second network is a bridge of the kernel") };
        if number == 0 {
            switch.ip(&["link", "add", "second", "type", "bridge"]);
            switch.ip(&["link", "set", "second", "up"]);
        }
        let (node, port) = (&self.nodes[number], Which::Second.port(number));
        let there = node.holder.id().to_string();
        switch.ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth1", "netns", &there]);
        switch.ip(&["link", "set", &port, "master", "second", "up"]);
        node.ip(&["address", "add", &format!("{}/16", second_address(number)), "dev", "eth1"]);
        node.ip(&["link", "set", "eth1", "up"]);
    }

    /// Pulls a node's cable of one of two networks, or puts it back.
    ///
    /// # Panics
    /// If the first one is the test's own switch.
    pub fn set_cable_of(&self, which: Which, number: usize, plugged: bool) {
        let Between::Bridge(switch) = &self.between else { panic!("a second network is a bridge of the kernel") };
        switch.ip(&["link", "set", &which.port(number), if plugged { "up" } else { "down" }]);
    }

    /// The processes that hold the namespaces.
    pub fn holders(&self) -> Vec<u32> {
        let switch = if let Between::Bridge(switch) = &self.between { Some(switch) } else { None };
        self.nodes.iter().chain(switch).map(|namespace| namespace.holder.id()).collect()
    }

    /// The command prefix that runs something on a node.
    pub fn enter(&self, number: usize) -> Vec<OsString> {
        self.nodes[number].enter()
    }

    /// Pulls a node's cable, or puts it back.
    pub fn set_cable(&self, number: usize, plugged: bool) {
        match &self.between {
            Between::Bridge(switch) => switch.ip(&["link", "set", &port(number), if plugged { "up" } else { "down" }]),
            Between::Frames(switch) => switch.set_cable(number, plugged),
        }
    }
}

/// One of two networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// That of every cluster.
    First,
    /// The one that was added.
    Second,
}

impl Which {
    fn port(self, number: usize) -> String {
        match self {
            Which::First => port(number),
            Which::Second => format!("second{number}"),
        }
    }
}

/// The address of a node in the second network.
pub fn second_address(number: usize) -> Ipv4Addr {
    let [_, _, high, low] = address(number).octets();
    Ipv4Addr::new(10, 78, high, low)
}

/// The address of a node.
pub fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, (number / 250) as u8, (number % 250) as u8 + 1)
}

fn port(number: usize) -> String {
    format!("port{number}")
}
