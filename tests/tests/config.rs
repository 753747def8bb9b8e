//! Configuration of `radicd`, leaving and coming back.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind, program};
use radic_tests::command::Invocation;
use radic_wire::event::EventName;
use radic_wire::local::NodeState;

/// `radicd --check-config` of a cluster, with what the environment would otherwise say removed.
fn check(cluster: &Cluster, args: &[&str]) -> Invocation {
    cluster.invocation(program("radicd")).args(["--check-config"]).args(args)
}

#[test]
fn flags_win_over_variables_and_variables_over_the_file() {
    let cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    let file = cluster.dir().join("radic.toml");
    let text = "name = \"filed\"\nmissed = 7\nheartbeat_ms = 200\nslots = 3\nlisten = \"127.0.0.1:7000\"\nspare = true\n";
    fs::write(&file, text).expect("a new file");
    let config = format!("--config={}", file.display());
    let checked =
        check(&cluster, &[&config, "--name", "flagged"]).env("RADIC_NAME", "variable").env("RADIC_MISSED", "9").run().expect(0);
    let out = checked.stdout();
    let flag = "name = \"flagged\"";
    let variable = "missed = 9";
    let from_file = ["heartbeat_ms = 200", "slots = 3", "listen = \"127.0.0.1:7000\"", "spare = true"];
    let default = "log_level = \"info\"";
    for line in [flag, variable, default].iter().chain(&from_file) {
        assert!(out.lines().any(|l| l == *line), "{line:?} is missing in {checked}");
    }
    // What it prints is a file that says the same.
    fs::write(&file, &out).expect("it can be written");
    let again = check(&cluster, &[]).env("RADIC_CONFIG", &file).env_remove("RADIC_CLUSTER").run().expect(0);
    assert_eq!(again.stdout(), out);
}

/// What packages install as /etc/radic/radicd.toml: usable as it is but for the address, and with every line of it in force.
#[test]
fn the_packages_settings_are_usable() {
    let cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/radicd.toml");
    let config = format!("--config={example}");
    check(&cluster, &[&config]).run().expect(1).expect_stderr(&["--advertise"]);
    check(&cluster, &[&config, "--listen=127.0.0.1:0"]).run().expect(0);
    let text = fs::read_to_string(example).expect("it is in the repository");
    let set =
        |line: &str| line.strip_prefix('#').filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase())).map(str::to_owned);
    let all: Vec<String> = text.lines().map(|line| set(line).unwrap_or_default()).collect();
    let file = cluster.dir().join("all.toml");
    // With networks that this machine has.
    let here = all.join("\n").replace("192.0.2.", "127.0.0.").replace("198.51.100.", "127.0.0.");
    fs::write(&file, here).expect("a new file");
    let key = format!("--key={}", cluster.dir().join("key").display());
    let out = check(&cluster, &[&format!("--config={}", file.display()), &key]).run().expect(0).stdout();
    assert!(out.contains("name = \"node7\"") && out.contains("replay_limit = 180"), "{out}");
}

/// Programs that cannot talk to each other say so by these numbers.
#[test]
fn both_programs_name_their_version_and_the_wire_protocol() {
    let cluster = Cluster::empty(Kind::Logical);
    let version = |name: &str| cluster.invocation(program(name)).args(["--version"]).run().expect(0).stdout();
    let (radic, radicd) = (version("radic"), version("radicd"));
    let protocol = format!("wire protocol {}", radic_wire::PROTOCOL_VERSION);
    assert!(radic.starts_with("radic ") && radic.lines().any(|line| line == protocol), "{radic}");
    assert_eq!(radic.strip_prefix("radic "), radicd.strip_prefix("radicd "), "two builds");
}

#[test]
fn what_is_wrong_is_named_and_nothing_starts() {
    let cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    let local = "--listen=127.0.0.1:0";
    let file = cluster.dir().join("bad.toml");
    let config = format!("--config={}", file.display());
    for (text, part) in [("colour = 1", "colour"), ("missed = \"many\"", "missed"), ("name = \"a b\"", "a b"), ("[", "bad.toml")]
    {
        fs::write(&file, text).expect("a file of ours");
        check(&cluster, &[local, &config]).run().expect(1).expect_stderr(&["bad.toml", part]);
    }
    let missing = cluster.dir().join("missing.toml");
    check(&cluster, &[local, &format!("--config={}", missing.display())]).run().expect(1).expect_stderr(&["missing.toml"]);
    check(&cluster, &["--listen=0.0.0.0:0"]).run().expect(1).expect_stderr(&["--advertise"]);
    for (flag, part) in
        [("--missed=1", "missed"), ("--heartbeat-ms=5", "heartbeat-ms"), ("--slots=0", "slots"), ("--log-level=loud", "loud")]
    {
        check(&cluster, &[local, flag]).run().expect(1).expect_stderr(&[part]);
    }
    check(&cluster, &["--listen=no-such-host.invalid"])
        .run()
        .expect(1)
        .expect_stderr(&["no-such-host.invalid:7117", "name this machine"]);
    for flag in ["--name=a/b", "--listen=a:b", "--join=x:y", "--colour=1"] {
        check(&cluster, &[flag]).run().expect(2).expect_stderr(&[flag.split_once('=').expect("a value").0]);
    }
    check(&cluster, &[local]).env("RADIC_MISSED", "few").run().expect(2).expect_stderr(&["few"]);
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let cluster = Cluster::empty(Kind::Logical);
    let key = cluster.dir().join("key");
    let checked = || check(&cluster, &["--listen=127.0.0.1:0"]).run();
    checked().expect(1).expect_stderr(&[&key.display().to_string()]);
    cluster.make_key();
    assert_eq!(fs::metadata(&key).expect("it is there").permissions().mode() & 0o7777, 0o600);
    checked().expect(0);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).expect("a file of ours");
    checked().expect(1).expect_stderr(&["0640", "chmod 600"]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("a file of ours");
    // An existing key is never overwritten.
    let before = fs::read(&key).expect("it can be read");
    cluster.radic(["key".as_ref(), key.as_os_str()]).run().expect(125).expect_stderr(&["key"]);
    assert_eq!(fs::read(&key).expect("it can be read"), before);
    fs::write(&key, "no key").expect("a file of ours");
    checked().expect(1).expect_stderr(&["radic key"]);
}

#[test]
fn a_protector_with_another_key_does_not_join() {
    let mut cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    cluster.start_node("n1", &[]);
    let other = cluster.dir().join("other");
    cluster.radic(["key".as_ref(), other.as_os_str()]).run().expect(0);
    let stranger = cluster.spawn_node("n2", &[&format!("--key={}", other.display())]);
    let mut events = cluster.events_at("n1");
    let refused = events.expect("a refusal", Duration::from_secs(5), |event| event.event == EventName::Refused);
    assert!(refused.text.contains("does not hold this cluster's key"), "{}", refused.text);
    assert_eq!(stranger.stdout(), "", "it says that it is ready");
    let told = || cluster.log("n2").contains("could not ask to join");
    radic_tests::process::eventually(Duration::from_secs(5), "the log of the refused", told);
    drop(stranger);
    assert_eq!(cluster.status_at("n1").nodes.len(), 1);
    cluster.stop();
}

#[test]
fn a_node_that_leaves_is_nobody_s_suspect_and_may_come_back() {
    for kind in Kind::all() {
        let mut cluster = Cluster::empty(kind);
        cluster.make_key();
        ["n1", "n2", "n3"].iter().for_each(|node| cluster.start_node(node, &[]));
        // A node that is in use may leave, too: its ranks are ended, and the job says why.
        let mut job = cluster.job(2, "--protect none --nodes n2,n3", &["sh", "-c", "echo $RADIC_NODE; exec sleep 1000"]).start();
        job.until("two ranks", |out, _| (out.lines().count() == 2).then_some(()));
        let mut events = cluster.events_at("n1");
        let then = Instant::now();
        cluster.protector("n3").signal(rustix::process::Signal::TERM);
        events
            .expect("the view to shrink", Duration::from_secs(1), |e| e.event == EventName::View && e.text.contains("gone: n3"));
        println!("{kind:?}: n3 has left after {} ms", then.elapsed().as_millis());
        cluster.wait_for_end_of("n3", Duration::from_secs(5)).expect(0);
        println!("{kind:?}: its protector ended after {} ms", then.elapsed().as_millis());
        assert!(then.elapsed() < Duration::from_secs(1), "leaving took {:?}", then.elapsed());
        job.wait().expect(113).expect_stderr(&["n3"]);
        cluster.assert_idle();
        let status = cluster.status();
        let left: Vec<_> = status.nodes.iter().filter(|n| n.state == NodeState::Left).map(|n| n.name.as_str()).collect();
        assert_eq!(left, ["n3"], "{status:?}");
        assert!(events.seen().iter().all(|event| !matches!(event.event, EventName::Suspect | EventName::Confirm)));
        cluster.start_node("n3", &[]);
        assert_eq!(cluster.status().nodes.iter().filter(|n| n.state == NodeState::Alive).count(), 3);
        cluster.stop();
    }
}

#[test]
fn a_name_that_is_in_use_is_refused() {
    let mut cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    ["n1", "n2"].iter().for_each(|node| cluster.start_node(node, &[]));
    // In another directory, as on another machine: nothing local gives the clash away.
    let elsewhere = cluster.dir().join("elsewhere");
    let address = cluster.status().nodes[0].address;
    let double = cluster
        .invocation(program("radicd"))
        .args([format!("--dir={}", elsewhere.display()), format!("--key={}", cluster.dir().join("key").display())])
        .args(["--name=n2", "--listen=127.0.0.1:0", &format!("--join={address}")])
        .start();
    let mut double = double;
    let refusal =
        double.until("a refusal", |_, err| err.lines().find(|line| line.contains("cannot join yet")).map(str::to_owned));
    assert!(refusal.contains("n2"), "{refusal}");
    println!("{refusal}");
    double.signal(rustix::process::Signal::TERM);
    double.wait();
    assert_eq!(cluster.status().nodes.len(), 2);
    cluster.stop();
}

#[test]
fn the_same_list_on_every_node_founds_one_cluster_and_the_first_comes_back_into_it() {
    let cluster = Cluster::empty(Kind::Logical);
    cluster.make_key();
    // Held until all are known, so that they differ; then the nodes take them.
    let free: Vec<_> = (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    let ports: Vec<u16> = free.iter().map(|free| free.local_addr().expect("it is bound").port()).collect();
    drop(free);
    let list = ports.iter().map(|port| format!("localhost:{port}")).collect::<Vec<_>>().join(",");
    let start = |number: usize| {
        let args = [format!("--name=n{}", number + 1), format!("--listen=localhost:{}", ports[number]), format!("--join={list}")];
        cluster.invocation(program("radicd")).args(args).start()
    };
    let until_ready =
        |node: &mut radic_tests::Running| node.until("it to be ready", |out, _| out.starts_with("ready ").then_some(()));
    let mut first = start(0);
    // Alone it founds nothing; neither do the others without it.
    assert!(!first.ends_within(Duration::from_secs(2)) && first.stdout().is_empty(), "{}", first.stderr());
    let mut others = [start(1), start(2)];
    until_ready(&mut first);
    others.iter_mut().for_each(until_ready);
    let members = |node: &str| cluster.status_at(node).nodes.iter().filter(|n| n.state == NodeState::Alive).count();
    radic_tests::process::eventually(Duration::from_secs(5), "three members", || members("n1") == 3);
    first.signal(rustix::process::Signal::KILL);
    first.wait();
    let mut first = start(0);
    until_ready(&mut first);
    radic_tests::process::eventually(Duration::from_secs(5), "three members again", || members("n1") == 3 && members("n2") == 3);
    cluster.stop();
}
