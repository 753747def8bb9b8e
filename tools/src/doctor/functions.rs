//! What the functions that a program imports say about it: what they may be for, and what RADIC cannot protect of it.

use std::collections::HashSet;

use super::finding::{Finding, Level, listed};
use super::libraries::{Library, Place};

/// Functions that mean the same to RADIC.
struct Group {
    level: Level,
    name: &'static str,
    what: &'static str,
    functions: &'static [&'static str],
    means: &'static str,
    remedy: &'static str,
    /// Whether libraries count, too, not only the program itself: what hardly any library does by the way.
    in_libraries: bool,
}

#[rustfmt::skip]
const GROUPS: &[Group] = &[
    Group { level: Level::Stop, name: "io_uring", what: "io_uring", functions: &["io_uring_setup", "io_uring_queue_init", "io_uring_queue_init_params", "io_uring_queue_init_mem", "io_uring_submit", "io_uring_enter"], in_libraries: true,
        means: "that uses sockets and files where no library sees it, so nothing of that could be logged or replayed",
        remedy: "build it without io_uring (liburing), or use its ordinary sockets" },
    Group { level: Level::Limit, name: "shared-memory", what: "shared memory", functions: &["shm_open", "shmget", "shmat"], in_libraries: false,
        means: "what is shared with others changes without a message, so neither checkpoint nor replay can account for it",
        remedy: "see that it shares memory with no other process, or switch to messages; memory that it only shares with itself does no harm" },
    Group { level: Level::Limit, name: "other-memory", what: "other processes' memory", functions: &["process_vm_readv", "process_vm_writev"], in_libraries: false,
        means: "RADIC sees nothing of what is read and written there",
        remedy: "see that it does not do so between ranks, or switch that off in favour of TCP" },
    Group { level: Level::Limit, name: "children", what: "child processes", functions: &["fork", "vfork", "_Fork", "execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp", "fexecve", "system", "popen", "posix_spawn", "posix_spawnp"], in_libraries: true,
        means: "what it starts runs unprotected, and is lost with the node or at a restart",
        remedy: "let the ranks themselves do what matters; a child that has ended before the next checkpoint does no harm" },
    Group { level: Level::Note, name: "threads", what: "threads", functions: &["pthread_create", "thrd_create", "GOMP_parallel", "__kmpc_fork_call"], in_libraries: false,
        means: "the order of their calls is logged; what they tell each other through plain memory is not, and a restart that depends on it is given up",
        remedy: "with MPI: no more than MPI_THREAD_SERIALIZED, and calls from the thread that called MPI_Init" },
];

/// Whether a function of this name matters.
pub(super) fn watched(function: &str) -> bool {
    GROUPS.iter().any(|group| group.functions.contains(&function))
}

/// Judges the program `program` by its own imports and those of its libraries. The libraries `settled` are under RADIC's own settings.
pub(super) fn judge(program: &str, own: Option<&[String]>, libraries: &[Library], settled: &HashSet<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let others = of_program(libraries, settled).filter_map(|library| match &library.place {
        Place::Found(_, elf) => Some((library.name.as_str(), elf.imports.as_deref())),
        _ => None,
    });
    let files: Vec<(&str, Option<&[String]>)> = std::iter::once((program, own)).chain(others).collect();
    let silent: Vec<&str> = files.iter().filter(|(_, imports)| imports.is_none()).map(|(file, _)| *file).collect();
    if !silent.is_empty() {
        findings.push(Finding::new(
            Level::Limit,
            "imports",
            format!("{}: without section headers, so what is called from there cannot be told", listed(&silent)),
            "look at a copy that was not stripped of them",
        ));
    }
    for group in GROUPS {
        let counted = if group.in_libraries { &files[..] } else { &files[..1] };
        let users = counted.iter().filter_map(|(file, imports)| {
            let used: Vec<&str> =
                imports.iter().copied().flatten().map(String::as_str).filter(|name| group.functions.contains(name)).collect();
            (!used.is_empty()).then(|| format!("{file} ({})", listed(&used)))
        });
        let users: Vec<String> = users.collect();
        if !users.is_empty() {
            let users: Vec<&str> = users.iter().map(String::as_str).collect();
            let about = format!("{} may use {}: {}", listed(&users), group.what, group.means);
            findings.push(Finding::new(group.level, group.name, about, group.remedy));
        }
    }
    findings
}

/// The libraries that do what they do for the program: neither of the system, nor `settled`.
pub(super) fn of_program<'a>(libraries: &'a [Library], settled: &HashSet<&str>) -> impl Iterator<Item = &'a Library> {
    libraries.iter().filter(|library| !settled.contains(library.name.as_str()) && !is_system(&library.name))
}

/// Whether the library is a part of the C library or of the compiler, which do such things only on behalf of others.
fn is_system(name: &str) -> bool {
    let stem = name.split(".so").next().unwrap_or(name);
    ["libc", "libpthread", "libdl", "librt", "libutil", "libm", "libresolv", "libanl", "libnsl", "ld-linux-x86-64"]
        .contains(&stem)
        || ["libstdc++", "libgcc_s", "libgfortran", "libquadmath", "libgomp", "libasan", "libubsan"].contains(&stem)
}
