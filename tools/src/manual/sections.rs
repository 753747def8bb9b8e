//! What the definitions of the command lines do not say: exit codes, variables and files, for each page.

use clap::Command;

use crate::explain::codes::{CODES, USAGE};

/// Name and text.
type Entry = (String, String);

fn entry(name: impl Into<String>, text: impl Into<String>) -> Entry {
    (name.into(), text.into())
}

/// What a page says under EXIT STATUS: the codes, and paragraphs before them.
pub(super) fn exit_status(name: &str) -> (Vec<Entry>, Vec<String>) {
    let usage = entry(USAGE.to_string(), "The command line is wrong; nothing was done.");
    let done = |text: &str| entry("0", text);
    let failed = entry("125", "It could not be done; the error says why. `radic explain 125` has more.");
    let of_program = "The exit code is that of the program; 128 + n if signal n ended it.";
    match name {
        "radicd" => {
            let failed = "The settings are not usable, the daemon could not start, or the others have declared this node dead; the error says which.";
            let left = "The daemon has left the cluster as it was asked to (SIGTERM, SIGINT, `radic cluster stop`); with --check-config, the settings are usable.";
            (vec![done(left), entry("1", failed), usage], Vec::new())
        }
        "radic-run" | "radic-attach" | "radic-resume" => {
            let codes = CODES.iter().map(|text| entry(text.code.to_string(), format!("{} {}", text.means, text.next)));
            let others = entry("128+n", "Signal n ended a rank.");
            (codes.chain([others]).collect(), vec!["Any code that is not listed is the program's own.".to_owned()])
        }
        "radic-doctor" => (
            vec![
                done("The program can be protected."),
                entry("1", "It cannot; what stands in the way is printed."),
                usage,
                failed,
            ],
            Vec::new(),
        ),
        "radic-ckpt-run" | "radic-ckpt-restart" => {
            let failed =
                entry("125", "RADIC itself failed: the program could not be started, saved or restored; the error says why.");
            (vec![usage, failed], vec![of_program.to_owned()])
        }
        "radic" => {
            let more =
                "Commands that show a job (run, attach, resume) end with the job's exit code: radic-run(1) lists them. Others:";
            (vec![done("It was done."), usage, failed], vec![more.to_owned()])
        }
        _ => (vec![done("It was done."), usage, failed], Vec::new()),
    }
}

/// Pages of commands that say on a terminal how far they are.
pub(super) const PROGRESS: [&str; 8] = [
    "radic-bench-ckpt",
    "radic-bench-launch",
    "radic-bench-net",
    "radic-bench-recover",
    "radic-checkpoint",
    "radic-replay",
    "radic-resume",
    "radic-suspend",
];

/// What a page says under ENVIRONMENT: the variables that stand for flags, and others that are read or set.
pub(super) fn environment(command: &Command, name: &str) -> Vec<Entry> {
    let variables = command.get_arguments().filter_map(|argument| {
        let variable = argument.get_env()?.to_string_lossy().into_owned();
        let flag = argument.get_long().map(|long| format!("Stands for --{long}, which wins over it. ")).unwrap_or_default();
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        Some(entry(variable, format!("{flag}{help}.")))
    });
    let mut all: Vec<Entry> = variables.collect();
    let mut add = |name: &str, text: &str| all.push(entry(name, text));
    match name {
        "radicd" => add("HOME", "The cluster's folder is below it unless --dir or RADIC_CLUSTER is given."),
        "radic-suspend" | "radic-resume" => {
            add("RADIC_KEY", "The cluster's key file, if it is not the file key in the cluster's folder.")
        }
        "radic-run" => {
            add("PATH", "Where a program that is given without a slash is looked for.");
            add("RADIC_JOB, RADIC_RANK, RADIC_SIZE", "Set for each rank: its job, its number, and how many there are.");
            add("RADIC_NODE", "Set for each rank: the node that has launched it.");
            add(
                "RADIC_KEY",
                "With --suspend-to and --resume-from: the cluster's key file, if it is not the file key in the cluster's folder.",
            );
            add("SLURM_JOB_ID, SBATCH_SIGNAL", "Without --suspend-on: where the signal of --suspend-to is looked for.");
        }
        "radic-top" => {
            add("NO_COLOR", "If it is not empty: no colours.");
            add("COLUMNS, LINES", "The size of the screen that --once prints.");
        }
        "radic-ckpt-restart" => add("TMPDIR", "Where an increment or a packed image is unpacked; without it, beside the image."),
        _ => {}
    }
    if PROGRESS.contains(&name) {
        add("NO_COLOR, TERM", "Of the line on a terminal that says how far it is: no colours; no such line if TERM is dumb.");
    }
    all
}

/// What a page says under FILES.
pub(super) fn files(name: &str) -> Vec<Entry> {
    let cluster = || entry("~/.radic/cluster", "The cluster's folder, unless another is named.");
    let key = || entry("DIR/key", "The cluster's key, mode 0600.");
    let node = || {
        entry(
            "DIR/nodes/NAME",
            "What a node has on this machine: its control socket, its log, and its store unless another is named.",
        )
    };
    match name {
        "radicd" => {
            let config = entry(
                "/etc/radic/radicd.toml",
                "Settings of radicd@.service, the systemd unit; radicd itself reads only the file of --config.",
            );
            vec![config, cluster(), key(), node()]
        }
        "radic" | "radic-cluster-start" | "radic-cluster-stop" => vec![cluster(), key(), node()],
        "radic-key" => vec![key()],
        _ => Vec::new(),
    }
}

/// The pages that belong to this one: its subcommands', and the one that it is a subcommand of.
pub(super) fn see_also(command: &Command, name: &str, parent: Option<&str>) -> String {
    let below = shown(command).map(|sub| format!("{name}-{}(1)", sub.get_name()));
    let above = parent.filter(|parent| *parent != "radic").map(|parent| format!("{parent}(1)"));
    let of_page: &[&str] = match name {
        "radic-run" => &["radic-explain(1)", "radic-doctor(1)", "radic-attach(1)", "radic-suspend(1)"],
        "radic-attach" | "radic-resume" | "radic-suspend" => &["radic-run(1)", "radic-explain(1)"],
        "radic-events" => &["radic-explain(1)", "radic-report(1)"],
        "radic-report" => &["radic-events(1)", "radic-jobs(1)", "radic-top(1)"],
        "radic-explain" => &["radic-run(1)", "radic-events(1)"],
        _ => &[],
    };
    let main = match name {
        "radic" => "radicd(8)",
        "radicd" => "radic(1), radic-key(1)",
        _ => "radic(1), radicd(8)",
    };
    let mut all: Vec<String> = above.into_iter().chain(below).chain(of_page.iter().map(|page| (*page).to_owned())).collect();
    all.push(main.to_owned());
    all.join(", ")
}

/// Those that have a page: a hidden one has one if a user may want to call it.
pub(super) fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() || sub.get_name() == "complete-slurm")
}
