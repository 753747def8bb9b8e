//! Pods of Kubernetes, without Kubernetes: what packaging/kubernetes runs in a pod, as the first process of a process namespace, with a network and an address of its own, and
//! restricted as a pod is. A file takes the place of the name service.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use radic_tests::Running;
use radic_tests::client::{Client, Events};
use radic_tests::cluster::{Cluster, Kind, program};
use radic_tests::command::Invocation;
use radic_tests::library::{MPICH, deps};
use radic_tests::process::{self, Process};
use radic_tests::recovery::SOON;
use radic_wire::event::{Event, EventName};
use radic_wire::local::{ClusterStatus, NodeInfo, NodeState};
use radic_wire::membership::Role;
use rustix::process::Signal;

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/kubernetes");
/// Refuses what a container engine refuses by default.
const CONTAINED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/contained.py");
/// Mounts, in a namespace of its own, what a pod has: its hosts, and shared memory of its own. Then it does the rest of its words.
const MOUNTS: &str = r#"mount --bind "$1" /etc/hosts && mount -t tmpfs tmpfs /dev/shm && shift && exec "$@""#;

/// A pod that was started.
struct Pod {
    /// What stands for its machine in the harness: a network namespace with an address.
    machine: String,
    address: Ipv4Addr,
    begun: bool,
    daemon: Option<Running>,
}

/// Pods of one StatefulSet, radic-0, radic-1, ...
struct Pods {
    pods: BTreeMap<usize, Pod>,
    replicas: usize,
    /// Pods with this number and higher ones are spares, as the ConfigMap says it.
    spares_from: usize,
    machines: usize,
    cluster: Cluster,
}

fn name_of(number: usize) -> String {
    format!("radic-{number}")
}

/// A script of the ConfigMap.
fn script(name: &str) -> PathBuf {
    Path::new(PACKAGING).join("base").join(name)
}

impl Pods {
    /// No pod yet; none if this machine has no namespaces. Why is printed.
    fn new(replicas: usize, spares_from: usize) -> Option<Pods> {
        if !Kind::all().contains(&Kind::Namespaces) {
            return None;
        }
        let cluster = Cluster::empty(Kind::Namespaces);
        let pods = Pods { pods: BTreeMap::new(), replicas, spares_from, machines: 0, cluster };
        pods.cluster.make_key();
        fs::copy(pods.cluster.dir().join("key"), pods.secret()).expect("a new file");
        // As Kubernetes mounts it: for the group of the pod.
        fs::set_permissions(pods.secret(), fs::Permissions::from_mode(0o440)).expect("a file of ours");
        fs::write(pods.hosts(), "").expect("a new file");
        Some(pods)
    }

    fn secret(&self) -> PathBuf {
        self.cluster.dir().join("secret")
    }

    fn hosts(&self) -> PathBuf {
        self.cluster.dir().join("hosts")
    }

    /// What a pod has for itself, as long as it is there.
    fn volumes(&self, number: usize) -> PathBuf {
        self.cluster.node_dir(&name_of(number)).join(&self.pods[&number].machine)
    }

    /// A pod with a new address, of which the name service knows. Nothing runs in it yet.
    fn place(&mut self, number: usize) {
        self.machines += 1;
        let machine = format!("machine{}", self.machines);
        let (_, address) = self.cluster.namespace(&machine);
        self.pods.insert(number, Pod { machine, address, begun: false, daemon: None });
        let lines = self.pods.iter().map(|(number, pod)| format!("{} radic-{number}.radic\n", pod.address));
        // Written to in place: it is mounted in every pod.
        fs::write(self.hosts(), lines.collect::<String>()).expect("a file of ours");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(self.volumes(number)).expect("a new folder");
    }

    /// Something in a pod's network, with its environment.
    fn within(&mut self, number: usize, words: impl IntoIterator<Item = OsString>) -> Invocation {
        let machine = self.pods[&number].machine.clone();
        let (namespace, address) = self.cluster.namespace(&machine);
        let path = std::env::join_paths(
            [program("radic").parent().expect("a folder").to_owned()]
                .into_iter()
                .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
        );
        let list: Vec<String> = (0..self.replicas).map(|number| format!("radic-{number}.radic")).collect();
        let words =
            ["--net=".to_owned() + &namespace.display().to_string(), "--".into()].map(OsString::from).into_iter().chain(words);
        self.cluster
            .invocation("nsenter")
            .args(words)
            .env("PATH", path.expect("a path without colons"))
            .env("POD_NAME", name_of(number))
            .env("POD_IP", address.to_string())
            .env("POD_KEY", self.secret())
            .env("RADIC_CLUSTER", self.volumes(number).join("cluster"))
            .env("RADIC_STORE", self.volumes(number).join("store"))
            .env("RADIC_SLOTS", "2")
            .env("RADIC_JOIN", list.join(","))
            .env("RADIC_GRACE", "60")
    }

    /// Has the container of a pod begin.
    fn begin(&mut self, number: usize) {
        if self.pods.get(&number).is_none_or(|pod| pod.begun) {
            self.place(number);
        }
        let unshare = "unshare --mount --pid --fork --kill-child --mount-proc -- sh -c".split(' ').map(OsString::from);
        let words: [OsString; 7] = [
            MOUNTS.into(),
            "sh".into(),
            self.hosts().into(),
            "python3".into(),
            CONTAINED.into(),
            "sh".into(),
            script("start.sh").into(),
        ];
        let log = self.cluster.node_dir(&name_of(number)).join("log");
        let log = OpenOptions::new().append(true).create(true).open(log).expect("its log");
        let container = self.within(number, unshare.chain(words)).env("SPARES_FROM", self.spares_from.to_string());
        let daemon = container.limit(SOON).start_with_stderr(Stdio::from(log));
        let pod = self.pods.get_mut(&number).expect("it has its place");
        (pod.begun, pod.daemon) = (true, Some(daemon));
    }

    fn until_member(&mut self, number: usize) {
        let daemon = self.pods.get_mut(&number).and_then(|pod| pod.daemon.as_mut()).expect("it was begun");
        let ready = format!("ready {} ", name_of(number));
        daemon.until("the pod to be a member", |out, _| out.starts_with(&ready).then_some(()));
    }

    /// `kubectl exec`: a script of the ConfigMap.
    fn exec(&mut self, number: usize, name: &str) -> Invocation {
        self.within(number, ["sh".into(), script(name).into()])
    }

    /// `kubectl exec`: a `radic` command.
    fn radic(&mut self, number: usize, args: &[&str]) -> Invocation {
        self.within(number, [program("radic").into()].into_iter().chain(args.iter().map(OsString::from)))
    }

    fn client(&self, number: usize) -> Client {
        let dir = self.volumes(number).join("cluster/nodes").join(name_of(number));
        Client::connect(&dir).unwrap_or_else(|error| panic!("radic-{number}: {error}"))
    }

    fn status(&self, number: usize) -> ClusterStatus {
        self.client(number).status().expect("its status")
    }

    fn events(&self, number: usize) -> Events {
        Events::follow(self.client(number)).expect("its events")
    }

    /// The first process of a pod: radicd.
    fn init(&self, number: usize) -> Process {
        let first = |process: &Process| {
            let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap_or_default();
            status.lines().any(|line| line.starts_with("NSpid:") && line.split_whitespace().skip(2).eq(["1"]))
        };
        self.cluster.processes_of(&self.pods[&number].machine).into_iter().find(first).expect("the pod runs")
    }

    /// Waits for the end of a pod's container; its code.
    fn end_of(&mut self, number: usize) -> Option<i32> {
        self.pods.get_mut(&number).and_then(|pod| pod.daemon.take()).expect("it was begun").give(SOON).wait().code()
    }

    /// All members end, and nothing of them is left.
    fn stop(mut self, number: usize) {
        self.radic(number, &["cluster", "stop"]).run().expect(0);
        let running: Vec<usize> = self.pods.iter().filter(|(_, pod)| pod.daemon.is_some()).map(|(number, _)| *number).collect();
        running.into_iter().for_each(|number| _ = self.end_of(number));
    }
}

/// What a status says of a pod that is a member.
fn member(status: &ClusterStatus, number: usize) -> &NodeInfo {
    let found = status.nodes.iter().find(|node| node.name.as_str() == name_of(number) && node.state == NodeState::Alive);
    found.unwrap_or_else(|| panic!("radic-{number} is no member: {status:?}"))
}

fn of_rank(rank: u32, name: EventName) -> impl Fn(&Event) -> bool {
    move |event| event.event == name && event.rank.is_some_and(|of| of.0 == rank)
}

#[test]
fn a_pod_that_comes_back_with_another_address_joins_as_a_spare() {
    let Some(mut pods) = Pods::new(4, 3) else { return };
    (0..4).for_each(|number| pods.begin(number));
    (0..4).for_each(|number| pods.until_member(number));
    let roles = [Role::Node, Role::Node, Role::Node, Role::Spare];
    let mut events = pods.events(0);
    process::eventually(SOON, "four members", || pods.status(0).nodes.len() == 4);
    let status = pods.status(0);
    (0..4).for_each(|number| assert_eq!(member(&status, number).role, roles[number], "{status:?}"));

    let jacobi = MPICH.program("jacobi");
    let line = "run -n 3 --nodes radic-0,radic-1,radic-2 --ckpt-interval 0.5 --";
    let args = "--size 800 --iterations 8000 --progress 1000 --alone 0";
    let words: Vec<&str> = line.split(' ').chain([jacobi.as_str()]).chain(args.split(' ')).collect();
    let job = pods.radic(0, &words).limit(Duration::from_secs(120)).start();
    events.expect("a checkpoint of rank 1", SOON, of_rank(1, EventName::Checkpoint));

    // Its machine dies: the spare has the rank, and the pod comes back on another one.
    let before = member(&pods.status(0), 1).address;
    pods.radic(2, &["inject", "kill-node", "radic-1"]).run().expect(0);
    let live = events.expect("rank 1 to live", SOON, of_rank(1, EventName::Live));
    assert_eq!(live.node.as_str(), "radic-3", "{live:?}");
    // The container's first process is what was killed, and nothing outlives that.
    pods.end_of(1);
    pods.begin(1);
    pods.until_member(1);
    let status = pods.status(0);
    let back = member(&status, 1);
    assert_eq!(back.role, Role::Spare, "{status:?}");
    assert_eq!(back.address.ip(), IpAddr::from(pods.pods[&1].address), "{status:?}");
    assert_ne!(back.address, before, "{status:?}");

    // Another machine is drained, as Kubernetes does: the hook, then SIGTERM. What ran there goes on in the pod that has come back.
    let said = pods.radic(2, &["status", "--json"]).run().expect(0).stdout();
    assert!(said.contains("\"degraded\": false"), "leave.sh looks for the other one: {said}");
    pods.exec(2, "leave.sh").run().expect(0);
    pods.init(2).signal(Signal::TERM);
    let leaves = |event: &Event| {
        event.event == EventName::Note && event.text.contains("radic-2 leaves: 3 ranks of the jobs here have made a checkpoint")
    };
    events.expect("the checkpoints", SOON, leaves);
    let live = events.expect("rank 2 to live", SOON, of_rank(2, EventName::Live));
    assert_eq!(live.node.as_str(), "radic-1", "{live:?}");
    assert_eq!(pods.end_of(2), Some(0));
    let finished = job.wait().expect(0);
    assert!(finished.stdout().contains("OK jacobi"), "{finished}");

    // The first of the list, which has founded the cluster, founds no other one.
    pods.cluster.kill_all_of(&pods.pods[&0].machine.clone());
    pods.end_of(0);
    pods.begin(0);
    pods.until_member(0);
    let same = |pods: &Pods| {
        let of = |number| {
            (pods.status(number).view, pods.status(number).nodes.iter().filter(|node| node.state == NodeState::Alive).count())
        };
        of(0) == of(1) && of(1) == of(3) && of(3).1 == 3
    };
    process::eventually(SOON, "three members in one view", || same(&pods));
    assert_eq!(member(&pods.status(3), 0).address.ip(), IpAddr::from(pods.pods[&0].address));
    pods.stop(3);
}

#[test]
fn a_pod_is_ready_as_a_member_of_a_majority() {
    let Some(mut pods) = Pods::new(3, 3) else { return };
    (0..3).for_each(|number| pods.place(number));
    // Without the first of the list nobody founds.
    pods.begin(1);
    pods.begin(2);
    let unready = |pods: &mut Pods, what: &str| {
        let deadline = Instant::now() + SOON;
        loop {
            let said = pods.exec(1, "ready.sh").run();
            if said.code() == Some(1) && said.stderr().contains(what) {
                return;
            }
            assert!(Instant::now() < deadline, "{what} is not said: {said}");
        }
    };
    unready(&mut pods, "is not a member of the cluster yet");
    pods.begin(0);
    (0..3).for_each(|number| pods.until_member(number));
    pods.exec(1, "ready.sh").run().expect(0);
    for number in [0, 2] {
        pods.cluster.kill_all_of(&pods.pods[&number].machine.clone());
        pods.end_of(number);
    }
    unready(&mut pods, "frozen");
    // Nothing of a job is here: the hook does not wait.
    pods.exec(1, "leave.sh").run().expect(0);
    pods.init(1).signal(Signal::KILL);
    pods.end_of(1);
}

/// The name service learns of pods one after the other, and radicd asks it when it begins.
#[test]
fn the_first_pod_founds_the_cluster_though_names_came_after_it_had_begun() {
    let Some(mut pods) = Pods::new(5, 4) else { return };
    pods.place(1);
    pods.begin(0);
    // It asks for names behind that, at once.
    let pid = pods.volumes(0).join("cluster/nodes/radic-0/pid");
    process::eventually(SOON, "the first pod to have begun", || pid.exists());
    // With these it has a majority of five.
    pods.begin(1);
    pods.begin(2);
    (0..3).for_each(|number| pods.until_member(number));
    process::eventually(SOON, "three members", || pods.status(0).nodes.len() == 3);
    pods.stop(0);
}

/// The hook waits for ranks that are on their way back, and for nothing else.
#[test]
fn the_hook_waits_for_ranks_that_are_degraded() {
    let cluster = Cluster::empty(Kind::Logical);
    let fake = cluster.dir().join("radic");
    // Degraded twice, then not.
    let says = "#!/bin/sh\nn=$(cat \"$COUNT\" 2>/dev/null || echo 0)\necho $((n + 1)) >\"$COUNT\"\n[ $n -lt 2 ] && echo '      \"degraded\": true,' || echo '      \"degraded\": false,'\n";
    fs::write(&fake, says).expect("a new file");
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o700)).expect("a file of ours");
    let count = cluster.dir().join("count");
    let path = format!("{}:/usr/bin:/bin", cluster.dir().display());
    cluster.invocation("sh").args([script("leave.sh")]).env("PATH", path).env("COUNT", &count).run().expect(0);
    assert_eq!(fs::read_to_string(count).expect("it was asked").trim(), "3");
}

/// The manifests are what Kubernetes' schemas allow, and fit each other: packaging/kubernetes/check.py.
#[test]
fn the_manifests_fit_the_schemas_and_each_other() {
    let python = deps().join("kubernetes/bin/python");
    assert!(python.is_file(), "{} is missing: run `make deps`", python.display());
    let checked = Invocation::new(python).args([format!("{PACKAGING}/check.py")]).limit(Duration::from_secs(60)).run().expect(0);
    println!("{}", checked.stdout());
}
