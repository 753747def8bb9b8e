//! Clusters in a job of a real Grid Engine, of four hosts on this machine. `make gridengine` installs it from Debian and runs this.
#![forbid(unsafe_code)]

use std::time::Duration;

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::gridengine::{self, GridEngine};
use radic_tests::library::MPICH;
use radic_tests::process;
use radic_tests::recovery::{self, RANKS, SOON};

/// Time for a program with a death in it.
const LONG: Duration = Duration::from_secs(120);

/// A cluster's folder and a Grid Engine; none if this machine has none. Why is printed.
fn setup() -> Option<(Cluster, GridEngine)> {
    if let Some(why) = gridengine::missing() {
        println!("SKIPPED: {why}");
        return None;
    }
    let mut cluster = Cluster::empty(Kind::Namespaces);
    let engine = GridEngine::start(&mut cluster, 5);
    Some((cluster, engine))
}

/// The program, and what it prints when nothing happens to it.
fn program() -> (String, Vec<String>) {
    let command =
        recovery::command_of(&MPICH, ("jacobi", &["--size", "400", "--iterations", "3000", "--progress", "100", "--alone", "0"]));
    let undisturbed = Cluster::start(Kind::Logical, 2);
    let due = recovery::due(&MPICH, &undisturbed, &command);
    undisturbed.stop();
    (command.join(" "), due)
}

/// A job of Grid Engine in which something dies: its result is that of the undisturbed program, and its script comes to its end.
fn goes_on(cluster: &Cluster, engine: &GridEngine, what: &str, dies: impl Fn(&str)) {
    let (program, due) = program();
    let folder = cluster.dir().join(what);
    std::fs::create_dir(&folder).expect("a new folder");
    let script = format!(
        "radic cluster start --scheduler gridengine --spares 1 && echo started\n\
         radic run --protect none -- sh -c 'echo rank $RADIC_RANK; env | grep -E \"^(PE_HOSTFILE|SGE_JOB_SPOOL_DIR)=\" || true'\n\
         radic run -n {RANKS} --ckpt-interval 0.5 -- {program} >{result}\necho code $?\nradic cluster stop\necho over\n",
        result = folder.join("result").display(),
    );
    let job = engine.submit(cluster, 10, &script);
    let said = engine.until(&job, "started\n", SOON);
    assert!(said.contains("cluster of 4 nodes and 1 spare"), "{said}");
    recovery::first_checkpoints(&mut cluster.events_at("g1"), RANKS);
    let hosts = cluster.status().nodes.into_iter().filter(|node| !node.ranks.is_empty());
    let victim = hosts.map(|node| node.name.to_string()).find(|name| name != "g1").expect("a node with ranks");
    dies(&victim);
    let said = engine.until(&job, "over\n", LONG);
    assert!(said.contains("code 0\n"), "{said}");
    let result = std::fs::read_to_string(folder.join("result")).expect("the script has made it");
    assert_eq!(result.lines().collect::<Vec<_>>(), due, "{said}");
    // As many ranks as slots, without -n; and nothing of the script's node.
    assert_eq!(said.lines().filter(|line| line.starts_with("rank ")).count(), 10, "{said}");
    assert!(!said.contains("PE_HOSTFILE=") && !said.contains("SGE_JOB_SPOOL_DIR="), "{said}");
    println!("{what}: {victim}");
    process::eventually(LONG, "Grid Engine to forget the job", || engine.state(cluster, &job).is_none());
}

/// The daemon alone first: its host is needed for the job after that.
#[test]
fn a_daemon_and_a_node_are_lost_and_the_script_goes_on_to_its_end() {
    let Some((cluster, engine)) = setup() else { return };
    goes_on(&cluster, &engine, "daemon", |victim| cluster.kill(victim));
    goes_on(&cluster, &engine, "node", |victim| cluster.kill_all_of(victim));
}

/// Grid Engine ends what holds the nodes then. The nodes themselves are none of its processes, and go on until the program has ended.
#[test]
fn the_script_s_node_is_lost() {
    let Some((cluster, engine)) = setup() else { return };
    let (program, due) = program();
    let script = format!(
        "radic cluster start --scheduler gridengine --spares 1 && echo started\n\
         radic run -n {RANKS} --ckpt-interval 0.5 -- {program}\necho never\n"
    );
    let job = engine.submit(&cluster, 10, &script);
    engine.until(&job, "started\n", SOON);
    let of_radic = recovery::first_checkpoints(&mut cluster.events_at("g1"), RANKS);
    let begun = std::time::Instant::now();
    cluster.kill_all_of("g1");
    process::eventually(SOON, "a node to know of the job", || !cluster.status_at("g2").jobs.is_empty());
    let shown = cluster.radic(["attach", &of_radic.to_string()]).limit(LONG).run().expect(0);
    assert_eq!(shown.stdout().lines().collect::<Vec<_>>(), due, "{shown}");
    println!("the program ends {:.1?} after the death of the script's node", begun.elapsed());
    let nodes = || {
        let left = ["g2", "g3", "g4", "g5"].map(|name| cluster.processes_of(name));
        left.iter().flatten().filter(|process| process::command_line(process.pid()).contains("radic")).count()
    };
    process::eventually(SOON, "the nodes to end themselves", || nodes() == 0);
    process::eventually(SOON, "the job of Grid Engine to be told to end", || {
        engine.state(&cluster, &job).is_none_or(|state| state.contains('d'))
    });
    println!("the job of Grid Engine is {:?}; its master says\n{}", engine.state(&cluster, &job), engine.log());
}
