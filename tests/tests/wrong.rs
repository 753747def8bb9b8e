//! Wrong calls of `radic` and `radicd` where there is a cluster: each error says what is wrong, where, and what to do next. `tools/tests/errors.rs` has those that want none.
#![forbid(unsafe_code)]

use std::fs;

use radic_tests::cluster::{Cluster, Kind, program};

/// The command line, the exit code, what must be said. `JOB` is a job of two ranks that runs, `DIR` a folder with `text`, a file, and `empty`, a folder.
type Wrong = (&'static str, i32, &'static [&'static str]);

const NO_JOB: &[&str] = &["there is no job", "zz", "`radic jobs --all` lists"];

const WRONG: &[Wrong] = &[
    ("attach zz", 125, NO_JOB),
    ("kill zz", 125, NO_JOB),
    ("checkpoint zz", 125, NO_JOB),
    ("suspend zz DIR/new", 125, NO_JOB),
    ("log show zz 0", 125, NO_JOB),
    ("replay zz 0", 125, NO_JOB),
    ("report zz", 125, NO_JOB),
    ("top zz --once", 125, NO_JOB),
    ("inject kill-rank zz 0", 125, NO_JOB),
    ("inject kill-rank JOB 8", 125, &["job JOB has ranks 0 to 1, not 8"]),
    ("log show JOB 7", 125, &["job JOB has ranks 0 to 1, not 7"]),
    ("replay JOB 9", 125, &["job JOB has ranks 0 to 1, not 9"]),
    ("inject kill-node n9", 125, &["there is no node n9", "`radic nodes` lists them"]),
    ("inject pause-node n9 1", 125, &["there is no node n9", "`radic nodes` lists them"]),
    ("inject kill-node n9 --at-event live", 125, &["there is no node n9", "`radic nodes` lists them"]),
    ("suspend JOB DIR/text", 125, &["DIR/text is no folder", "name the folder itself"]),
    ("suspend JOB DIR/none/new", 125, &["cannot make the folder DIR/none/new", "see whether its path is right"]),
    ("suspend JOB DIR", 125, &["the folder DIR is not empty", "name a new folder"]),
    ("resume DIR/none", 125, &["cannot open the folder DIR/none", "see whether its path is right"]),
    ("resume DIR/text", 125, &["cannot open the folder DIR/text", "name a folder"]),
    ("resume DIR/empty", 125, &["DIR/empty/manifest: no job is suspended there", "`radic suspend` has written"]),
    ("run -n 1 -- ./none", 127, &["./none: no such file", "give the program's path"]),
    ("run -n 1 -- no-such-program", 127, &["no-such-program: not found in PATH", "give its path"]),
    ("run -n 1 -- DIR/text", 126, &["DIR/text: may not be executed", "chmod +x"]),
    ("run -n 1 -- DIR/empty", 126, &["DIR/empty: is a directory", "give the program itself"]),
    ("run -n 1 --nodes n9 -- true", 125, &["there is no node n9", "the nodes are n1, n2, n3"]),
    ("run -N 5 -- true", 125, &["-N 5: the cluster has 3 nodes", "`radic nodes` shows them"]),
    (
        "run -n 1 --suspend-to DIR/text --suspend-on USR1 -- true",
        125,
        &["--suspend-to: DIR/text is no folder", "name the folder itself"],
    ),
    ("top", 125, &["no terminal", "radic top --once"]),
    ("web", 125, &["no daemon in", "--http"]),
    ("report JOB --html DIR/text", 125, &["DIR/text is there already", "name another file"]),
    ("report JOB --svg DIR/none/x.svg", 125, &["DIR/none/x.svg cannot be written", "a folder that is there"]),
];

/// Of `radicd`, whose exit code is 1 then. `CLUSTER` is the cluster's folder.
const WRONG_DAEMONS: &[(&str, &[&str])] = &[
    ("--config DIR/none", &["configuration file DIR/none: No such file", "--config or RADIC_CONFIG"]),
    ("--config DIR/text", &["configuration file DIR/text: ", "name = value", "man radicd"]),
    ("--key CLUSTER/key", &["0.0.0.0:7117 is every address", "--advertise or --control-network"]),
    ("--key DIR/none --listen 127.0.0.1:0 --dir DIR/d", &["cluster key DIR/none: No such file", "radic key FILE"]),
    ("--key DIR/text --listen 127.0.0.1:0 --dir DIR/d", &["DIR/text has mode 0644", "chmod 600"]),
    (
        "--key CLUSTER/key --listen 127.0.0.1:0 --name n1 --dir CLUSTER",
        &["nodes/n1/store is in use by another protector", "--store"],
    ),
    ("--key CLUSTER/key --listen 192.0.2.1:1 --dir DIR/d", &["cannot listen on 192.0.2.1:1", "a free port"]),
    (
        "--key CLUSTER/key --listen 127.0.0.1:0 --dir DIR/d --http 192.0.2.1",
        &["--http: cannot listen on 192.0.2.1:7118", "leave --http out"],
    ),
    ("--listen 127.0.0.1:0 --heartbeat-ms 1", &["heartbeat-ms is 1", "10 to 60000 milliseconds"]),
    ("--listen 127.0.0.1:0 --spare --witness", &["spare and witness exclude each other"]),
];

/// Runs until its standard input ends.
const SCRIPT: &str = "echo ready; [ $RADIC_RANK = 0 ] || exec sleep 1000; read line; exit 3";

#[test]
fn each_error_says_what_where_and_what_next() {
    let cluster = Cluster::start(Kind::Logical, 3);
    let folder = cluster.dir().join("given");
    fs::create_dir_all(folder.join("empty")).expect("a folder");
    fs::write(folder.join("text"), "neither settings nor a program\n").expect("a file");
    let dir = folder.display().to_string();
    let mut running = cluster.job(2, "", &["sh", "-c", SCRIPT]).stdin_open().start();
    running.until("both ranks", |out, _| (out.matches("ready").count() == 2).then_some(()));
    let job = cluster.status().jobs[0].job.to_string();
    let filled = |text: &str| {
        text.replace("DIR/", &format!("{dir}/"))
            .replace("DIR", &dir)
            .replace("CLUSTER", &cluster.dir().to_string_lossy())
            .replace("JOB", &job)
    };
    for (line, code, parts) in WRONG {
        let line = filled(line);
        let finished = cluster.radic(line.split(' ')).run().expect(*code);
        let parts: Vec<String> = parts.iter().map(|part| filled(part)).collect();
        finished.expect_stderr(&parts.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for (line, parts) in WRONG_DAEMONS {
        let line = filled(line);
        let finished = cluster.invocation(program("radicd")).args(line.split(' ')).env_remove("RADIC_CLUSTER").run().expect(1);
        let parts: Vec<String> = parts.iter().map(|part| filled(part)).collect();
        finished.expect_stderr(&parts.iter().map(String::as_str).collect::<Vec<_>>());
    }
    running.close_stdin();
    running.wait().expect(3);
    cluster.stop();
}
