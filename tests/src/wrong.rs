//! That `tests/programs/net_wrong.c` calls every function of the program's that is ours.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Those of which no wrong call is made, and why.
const NOT_CALLED: [(&str, &[&str]); 4] = [
    (
        "it takes nothing that can be wrong",
        &["_Fork", "arc4random", "arc4random_uniform", "clock", "fork", "sched_yield", "vfork"],
    ),
    (
        "a wrong pointer is followed without the kernel: the program dies of it with and without the library",
        &["arc4random_buf", "fileno", "fileno_unlocked", "gettimeofday", "pthread_create", "system", "time", "times"],
    ),
    ("it does not come back", &["_Exit", "_exit", "closefrom", "quick_exit"]),
    ("it is MPI's", &["MPI_Init", "MPI_Init_thread", "MPI_Wtime", "mpi_init_", "mpi_init_thread_", "mpi_wtime_"]),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of sources").map(|entry| entry.expect("its name").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.into_iter().chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

/// What a line declares a hook of.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let (line, end) = match line.strip_prefix("with_caller!(") {
        Some(rest) => (rest, " =>"),
        None => (line.strip_prefix("unsafe fn ")?, "("),
    };
    line.split_once(end).map(|(name, _)| name).filter(|name| !name.starts_with('$') && !name.starts_with("radic_test"))
}

/// The functions of which a file declares hooks: those of a `hooks!` or `hook!`, whose name is followed by that of what is called instead.
fn hooks(text: &str) -> BTreeSet<String> {
    let own = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code: Vec<&str> = own.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let is_hook = |at: usize| {
        code[at].starts_with("with_caller!")
            || code[at..].iter().take(8).take_while(|line| !line.ends_with('}')).any(|line| line.contains("=> on_"))
    };
    (0..code.len()).filter(|at| is_hook(*at)).filter_map(|at| declared(code[at])).map(str::to_owned).collect()
}

#[test]
fn every_hook_is_called_wrongly() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository");
    let program = fs::read_to_string(root.join("tests/programs/net_wrong.c")).expect("a file of ours");
    let hooks: BTreeSet<String> = sources(&root.join("preload/src/hooks"))
        .iter()
        .flat_map(|path| hooks(&fs::read_to_string(path).expect("a source")))
        .collect();
    assert!(hooks.len() > 80, "{hooks:?}");
    let calls = |name: &str| {
        program
            .match_indices(&format!("{name}("))
            .any(|(at, _)| !program[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    let excused: BTreeSet<&str> = NOT_CALLED.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let missing: Vec<&String> = hooks.iter().filter(|name| !calls(name) && !excused.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "no wrong call of {missing:?}: add it to tests/programs/net_wrong.c");
    let unknown: Vec<&&str> = excused.iter().filter(|name| !hooks.contains(**name)).collect();
    assert!(unknown.is_empty(), "{unknown:?} are no hooks any more");
}
