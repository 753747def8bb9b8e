//! A real Grid Engine of several hosts on this machine: each host is a network namespace with a host name and a list of hosts of its own. Its files are in a test's folder.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cluster::{Cluster, program};
use crate::command::{Invocation, Running};
use crate::{namespace, process};

/// Where Debian has its programs.
const PROGRAMS: &str = "/usr/lib/gridengine";
/// Where Debian has what all of its cells share.
const SHARED: &str = "/var/lib/gridengine";
/// The host of the master. It executes nothing.
const MASTER: &str = "g0";
/// Time for anything that Grid Engine does by itself.
const SOON: Duration = Duration::from_secs(60);
/// What a host does first: it takes the list of hosts and its name, in namespaces of its own.
const HOST: &str = "mount --bind \"$0\" /etc/hosts && hostname \"$1\" && shift && exec \"$@\"";
/// Ports of the two daemons. No one else is in these network namespaces.
const PORTS: [(&str, &str); 2] = [("SGE_QMASTER_PORT", "6444"), ("SGE_EXECD_PORT", "6445")];

/// Why there can be no Grid Engine here. Where scripts/deps.sh was asked for it (RADIC_DEPS), that is a failure.
pub fn missing() -> Option<String> {
    let programs = ["sge_qmaster", "sge_execd", "qsub"].iter().all(|name| Path::new(PROGRAMS).join(name).is_file());
    assert!(
        programs || std::env::var("RADIC_DEPS").as_deref() != Ok("gridengine"),
        "RADIC_DEPS=gridengine is set, and scripts/deps.sh has not installed what this test needs"
    );
    if !programs {
        return Some("there is no Grid Engine: RADIC_DEPS=gridengine scripts/deps.sh, or `make gridengine`".to_owned());
    }
    namespace::available().err()
}

/// A host: a network namespace, held by a process of the cluster.
#[derive(Debug)]
struct Host {
    name: String,
    namespace: PathBuf,
    holder: u32,
    /// How it is entered.
    enter: Vec<OsString>,
}

/// A Grid Engine that runs. Its hosts are called g1, g2, ..., with two slots each in the parallel environment `radic`. It is dropped before its cluster.
#[derive(Debug)]
pub struct GridEngine {
    folder: PathBuf,
    /// The master's first.
    hosts: Vec<Host>,
    daemons: Vec<Running>,
}

impl Host {
    fn new(name: String, namespace: PathBuf, list: &Path) -> Host {
        let mut enter: Vec<OsString> = vec!["nsenter".into(), format!("--net={}", namespace.display()).into(), "--".into()];
        enter.extend(["unshare", "--uts", "--mount", "sh", "-c", HOST].map(Into::into));
        enter.extend([list.as_os_str().to_owned(), (&name).into()]);
        let holder = namespace.iter().find_map(|part| part.to_str()?.parse().ok()).expect("a path in /proc");
        Host { name, namespace, holder, enter }
    }
}

impl GridEngine {
    /// Starts it, and waits until all hosts have said that they are there.
    pub fn start(cluster: &mut Cluster, count: usize) -> GridEngine {
        let folder = cluster.dir().join("gridengine");
        fs::create_dir_all(folder.join("root/default/common")).expect("a new folder");
        fs::create_dir(folder.join("spool")).expect("a new folder");
        for name in ["bin", "lib", "util", "utilbin"] {
            symlink(Path::new(SHARED).join(name), folder.join("root").join(name)).expect("a new link");
        }
        let hosts: Vec<_> = (0..=count).map(|number| cluster.namespace(&format!("g{number}"))).collect();
        let lines = hosts.iter().enumerate().map(|(number, (_, address))| format!("{address} g{number}\n"));
        let list = folder.join("hosts");
        fs::write(&list, format!("127.0.0.1 localhost\n{}", lines.collect::<String>())).expect("a new file");
        let host = |(number, (namespace, _)): (usize, (PathBuf, _))| Host::new(format!("g{number}"), namespace, &list);
        let hosts = hosts.into_iter().enumerate().map(host).collect();
        let mut engine = GridEngine { folder, hosts, daemons: Vec::new() };
        engine.configure(cluster);
        engine.daemon(cluster, MASTER, "sge_qmaster");
        let answers = || engine.master(cluster, "qconf", &["-sh"]).run().code() == Some(0);
        process::eventually(SOON, "the master of Grid Engine", answers);
        engine.add_hosts(cluster);
        let shown = || engine.master(cluster, "qstat", &["-f"]).run().stdout();
        let ready = |line: &&str| line.starts_with("all.q@") && line.trim_end().ends_with("lx-amd64");
        process::eventually(SOON, "all hosts of Grid Engine", || shown().lines().filter(ready).count() == count);
        engine
    }

    /// What the master reads when it starts.
    fn configure(&self, cluster: &Cluster) {
        let common = self.folder.join("root/default/common").display().to_string();
        let spool = format!("{common};{}", self.folder.join("spool").display());
        let bootstrap = format!(
            "admin_user none\ndefault_domain none\nignore_fqdn true\nspooling_method classic\nspooling_lib libspoolc\n\
             spooling_params {spool}\nbinary_path {PROGRAMS}\nqmaster_spool_dir {}\nsecurity_mode none\n\
             listener_threads 2\nworker_threads 2\nscheduler_threads 1\njvm_threads 0\n",
            self.folder.join("spool").display()
        );
        fs::write(format!("{common}/bootstrap"), bootstrap).expect("a new file");
        fs::write(format!("{common}/act_qmaster"), format!("{MASTER}\n")).expect("a new file");
        let ours = [
            ("execd_spool_dir", &*self.folder.join("execd").display().to_string()),
            ("mailer", "/bin/true"),
            ("administrator_mail", "none"),
            ("min_uid", "0"),
            ("min_gid", "0"),
            ("load_report_time", "00:00:02"),
            ("loglevel", "log_info"),
        ];
        fs::create_dir(self.folder.join("execd")).expect("a new folder");
        let defaults = fs::read_to_string("/usr/share/gridengine/default-configuration").expect("it belongs to Debian's package");
        let configuration = self.write("configuration", &replaced(&defaults, &ours));
        let resources = "/usr/share/gridengine/util/resources";
        self.master(cluster, "spoolinit", &["classic", "libspoolc", &spool, "init"]).run().expect(0);
        for (what, file) in [
            ("configuration", configuration),
            ("complexes", format!("{resources}/centry")),
            ("usersets", format!("{resources}/usersets")),
            ("managers", "root".to_owned()),
        ] {
            self.master(cluster, "spooldefaults", &[what, &file]).run().expect(0);
        }
    }

    /// Hosts, the parallel environment and the queue.
    fn add_hosts(&mut self, cluster: &Cluster) {
        let names: Vec<String> = self.hosts.iter().skip(1).map(|host| host.name.clone()).collect();
        let configure = |flag: &str, value: &str| self.master(cluster, "qconf", &[flag, value]).run().expect(0);
        for name in &names {
            configure("-ah", name);
            configure("-as", name);
            let host = format!(
                "hostname {name}\nload_scaling NONE\ncomplex_values NONE\nuser_lists NONE\nxuser_lists NONE\nprojects NONE\n\
                 xprojects NONE\nusage_scaling NONE\nreport_variables NONE\n"
            );
            configure("-Ae", &self.write("host", &host));
        }
        let environment = "pe_name radic\nslots 999\nuser_lists NONE\nxuser_lists NONE\nstart_proc_args NONE\nstop_proc_args NONE\n\
            allocation_rule 2\ncontrol_slaves TRUE\njob_is_first_task FALSE\nurgency_slots min\naccounting_summary FALSE\n\
            qsort_args NONE\n";
        configure("-Ap", &self.write("environment", environment));
        let template = self.master(cluster, "qconf", &["-sq"]).run().expect(0).stdout();
        let ours = [
            ("qname", "all.q"),
            ("hostlist", &*names.join(" ")),
            ("pe_list", "radic"),
            ("slots", "2"),
            ("shell", "/bin/sh"),
            ("shell_start_mode", "unix_behavior"),
            // Other work on this machine is no reason not to begin.
            ("load_thresholds", "NONE"),
        ];
        configure("-Aq", &self.write("queue", &replaced(&template, &ours)));
        names.iter().for_each(|name| self.daemon(cluster, name, "sge_execd"));
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.join(name);
        fs::write(&path, text).expect("a file of ours");
        path.display().to_string()
    }

    fn daemon(&mut self, cluster: &Cluster, host: &str, name: &str) {
        // It stays in the foreground.
        let daemon = self.at(cluster, host, &format!("{PROGRAMS}/{name}"), &[]).env("SGE_ND", "1").start();
        self.daemons.push(daemon);
    }

    fn master(&self, cluster: &Cluster, name: &str, args: &[&str]) -> Invocation {
        self.at(cluster, MASTER, &format!("{PROGRAMS}/{name}"), args).limit(SOON)
    }

    /// A command on a host.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn at(&self, cluster: &Cluster, host: &str, program: &str, args: &[&str]) -> Invocation {
        let words = &self.hosts.iter().find(|known| known.name == host).expect("a host's name").enter;
        let invocation = cluster.invocation(&words[0]).args(&words[1..]).args([program]).args(args);
        let invocation = PORTS.iter().fold(invocation, |invocation, (name, value)| invocation.env(name, value));
        let path = format!("{PROGRAMS}:{}", std::env::var("PATH").unwrap_or_default());
        invocation.env("SGE_ROOT", self.folder.join("root")).env("SGE_CELL", "default").env("PATH", path).dir(&self.folder)
    }

    /// Submits a script for so many slots, from the first host, where it is to run, too. The result is its job's number.
    pub fn submit(&self, cluster: &Cluster, slots: usize, script: &str) -> String {
        let radic = program("radic");
        let path = radic.parent().expect("it is in a folder").display().to_string();
        let script = self.write("script", &format!("#!/bin/sh\nPATH={path}:{PROGRAMS}:$PATH\n{script}"));
        let out = self.folder.join("out.$JOB_ID").display().to_string();
        let slots = slots.to_string();
        let args = ["-terse", "-V", "-j", "yes", "-o", &out, "-pe", "radic", &slots, "-masterq", "all.q@g1", &script];
        let qsub = self.at(cluster, "g1", &format!("{PROGRAMS}/qsub"), &args);
        qsub.run().expect(0).stdout().trim().to_owned()
    }

    /// What the script of a job has printed so far.
    pub fn said(&self, job: &str) -> String {
        fs::read_to_string(self.folder.join(format!("out.{job}"))).unwrap_or_default()
    }

    /// Waits until a job's script has printed this.
    ///
    /// # Panics
    /// If it does not in time.
    pub fn until(&self, job: &str, text: &str, limit: Duration) -> String {
        process::until_said(limit, text, || self.said(job), || format!("\n--- master\n{}", self.log()))
    }

    /// A job's state, as `qstat` shows it; none: it has ended.
    pub fn state(&self, cluster: &Cluster, job: &str) -> Option<String> {
        let shown = self.master(cluster, "qstat", &["-u", "*"]).run().expect(0).stdout();
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(job))?;
        line.split_whitespace().nth(4).map(str::to_owned)
    }

    /// What the master has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("spool/messages")).unwrap_or_default()
    }
}

/// Ends all that runs on its hosts, with what it has started: Grid Engine gives its jobs an environment of its own, without the mark.
impl Drop for GridEngine {
    fn drop(&mut self) {
        self.daemons.clear();
        let namespace = |path: &Path| fs::read_link(path).ok();
        let ours: Vec<_> = self.hosts.iter().filter_map(|host| Some((host.holder, namespace(&host.namespace)?))).collect();
        let is_there = |process: &process::Process| {
            let of = namespace(&PathBuf::from(format!("/proc/{}/ns/net", process.pid())));
            ours.iter().any(|(holder, namespace)| of.as_ref() == Some(namespace) && process.pid() != *holder)
        };
        let left: Vec<_> = process::all().filter(is_there).collect();
        left.iter().for_each(|process| process.signal(rustix::process::Signal::KILL));
        let gone = left.iter().all(|process| process.wait(SOON));
        assert!(gone || std::thread::panicking(), "a process on a host of Grid Engine does not end");
    }
}

/// A list of names and values, with other values for some of the names.
fn replaced(text: &str, ours: &[(&str, &str)]) -> String {
    let line = |line: &str| {
        let name = line.split_whitespace().next().unwrap_or_default();
        let other = ours.iter().find(|(known, _)| *known == name);
        other.map_or_else(|| format!("{line}\n"), |(_, value)| format!("{name} {value}\n"))
    };
    text.lines().map(line).collect()
}
