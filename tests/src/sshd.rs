//! A real sshd on addresses of the loopback network, as an ordinary process: its own configuration, keys and port, all in a test's folder.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::command::{Invocation, Running};
use crate::process::{self, MARK};

const SSHD: &str = "/usr/sbin/sshd";
/// What sshd wants to be there when root starts it; Debian makes it when the service starts.
const RUN: &str = "/run/sshd";

/// Why there can be no sshd here. Where scripts/deps.sh was asked for everything (RADIC_DEPS), that is a failure.
pub fn missing() -> Option<String> {
    let all = Path::new(SSHD).is_file() && Invocation::new("ssh").args(["-V"]).run().code() == Some(0);
    assert!(
        all || std::env::var_os("RADIC_DEPS").is_none(),
        "RADIC_DEPS is set, and scripts/deps.sh has not installed what this test needs"
    );
    (!all).then(|| {
        "there is no sshd: `apt-get install openssh-server openssh-client`, or RADIC_DEPS=all scripts/deps.sh".to_owned()
    })
}

/// Some sshds, and a client's configuration with which they are reached.
#[derive(Debug)]
pub struct Sshd {
    folder: PathBuf,
    port: u16,
    servers: Vec<Running>,
    /// Whether this has made [`RUN`].
    made: bool,
}

impl Sshd {
    /// None is running yet. Hosts are called h1, h2, ..., and m1, m2, ...; see [`address`].
    pub fn new(cluster: &Cluster) -> Sshd {
        let folder = cluster.dir().join("ssh");
        fs::create_dir(&folder).expect("a new folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("a folder of ours");
        for key in ["host", "user"] {
            let path = folder.join(key);
            let words = ["-q", "-t", "ed25519", "-N", "", "-f"];
            Invocation::new("ssh-keygen").args(words).args([&path]).run().expect(0);
        }
        let public = |key: &str| fs::read_to_string(folder.join(format!("{key}.pub"))).expect("its public half");
        fs::write(folder.join("authorized"), public("user")).expect("a new file");
        fs::write(folder.join("known"), format!("* {}", public("host"))).expect("a new file");
        // The addresses are this test's own as long as it runs: tests run one at a time.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr()).expect("a free port").port();
        let at = |name: &str| folder.join(name).display().to_string();
        let mut config = format!(
            "Port {port}\nIdentityFile {}\nIdentitiesOnly yes\nIdentityAgent none\nGlobalKnownHostsFile none\nUserKnownHostsFile {}\n\
             StrictHostKeyChecking yes\nLogLevel ERROR\n",
            at("user"),
            at("known")
        );
        for number in 1..=99 {
            config += &format!("Host h{number}\n  HostName {}\n", address(number));
        }
        config += &format!("Host m*\n  HostName {}\n", address(0));
        fs::write(folder.join("client"), config).expect("a new file");
        let made = nix::unistd::geteuid().is_root() && fs::create_dir(RUN).is_ok();
        Sshd { folder, port, servers: Vec::new(), made }
    }

    /// The port of all of them.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The remote shell that reaches them.
    pub fn shell(&self) -> String {
        format!("ssh -F {}", self.folder.join("client").display())
    }

    /// Starts one sshd for some hosts. The hosts in `refusing` let no user in.
    pub fn serve(&mut self, cluster: &Cluster, hosts: &[u8], refusing: &[u8]) {
        let number = self.servers.len();
        let at = |name: &str| self.folder.join(name).display().to_string();
        let mut config = format!(
            "Port {}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 300\nPrintMotd no\nSetEnv {MARK}={}\n",
            self.port,
            at("host"),
            at("authorized"),
            cluster.dir().display(),
        );
        hosts.iter().for_each(|host| config += &format!("ListenAddress {}\n", address(*host)));
        for host in refusing {
            config += &format!("Match LocalAddress {}\n  AuthorizedKeysFile none\n", address(*host));
        }
        let path = self.folder.join(format!("server{number}"));
        fs::write(&path, config).expect("a new file");
        let server = cluster.invocation(SSHD).args(["-D", "-e", "-f"]).args([&path]).limit(Duration::from_secs(300));
        let mut server = server.start();
        let listening = |err: &str| err.matches("Server listening").count() == hosts.len();
        server.until("sshd to listen", |_, err| listening(err).then_some(()));
        self.servers.push(server);
    }

    /// Ends one of the sshds that [`Sshd::serve`] has started.
    pub fn end(&mut self, number: usize) {
        drop(self.servers.remove(number));
    }

    /// What is still there of the servers, for [`process::wait_none`].
    pub fn processes(&self) -> Vec<u32> {
        self.servers.iter().map(Running::pid).collect()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.servers.clear();
        if self.made {
            // Another test may use it: then it stays.
            _ = fs::remove_dir(RUN);
        }
    }
}

/// The address of a host. Host 0 has that of this machine's loopback interface, as all hosts called m1, m2, ... have: MPI libraries use the
/// addresses of interfaces only.
pub fn address(host: u8) -> Ipv4Addr {
    if host == 0 { Ipv4Addr::LOCALHOST } else { Ipv4Addr::new(127, 0, 7, host) }
}

/// Fails the test if anything of the cluster still runs but the sshds themselves.
pub fn assert_nothing_runs(cluster: &Cluster, sshd: &Sshd) {
    let left = process::wait_none(cluster.dir(), &sshd.processes(), Duration::from_secs(10));
    left.unwrap_or_else(|left| panic!("processes are left:\n{left}"));
}
