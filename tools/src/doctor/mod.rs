//! `radic doctor`: before a run, whether a program can be protected (G7: no silent gap), what stands in the way, and the way out.
//!
//! It reads files and executes nothing. [`program`] follows the name to what would be executed, [`libraries`] finds what would be loaded,
//! [`functions`] judges what all that may call, [`counter`] looks for a clock that no library sees, [`machine`] the kernel, the limits and the environment; [`crate::mpi`] knows the MPI library
//! and the settings under which `radic run` would put it.

mod counter;
mod elf;
mod finding;
mod functions;
mod libraries;
mod machine;
mod program;

use std::collections::HashSet;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use crate::format;
use crate::mpi::{self, Flavour, Recognition};
use finding::{Finding, Level};
use libraries::{Library, Place};
use program::Traced;

/// The exit code if the program cannot be protected.
const CANNOT: u8 = 1;
/// The finding that a program would use UCX. It is refused, not run without protection: a setting is in the way, or the library, not the program.
const UCX: &str = "threads-on-sockets";
/// Settings without which ranks share memory, or use sockets in ways that RADIC cannot follow. The others are about speed and networks.
const ESSENTIAL: [&str; 9] = [
    "MPIR_CVAR_CH4_NETMOD",
    "I_MPI_FABRICS",
    "FI_PROVIDER",
    "FI_TCP_IO_URING",
    "UCX_TLS",
    "UCX_MEM_MMAP_HOOK_MODE",
    "OMPI_MCA_pml",
    "OMPI_MCA_btl",
    "OMPI_MCA_osc",
];

/// Flags of `radic doctor`.
#[derive(Args)]
#[command(after_help = "Example:\n  radic doctor -- ./program input\n\n\
    Nothing is executed: files are read, those of this machine, with this shell's environment and limits. \"stop\" means that the program cannot be \
    protected, \"limit\" that something about it will not be, \"note\" what is good to know. What a program loads only while it runs \
    (Python's modules, plugins) is not seen.\n\n\
    Exit codes: 0 if the program can be protected, 1 if not.")]
pub(crate) struct DoctorArgs {
    /// The MPI library, as for `radic run`
    #[arg(long, value_enum, default_value_t = mpi::Choice::Auto)]
    mpi: mpi::Choice,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Everything that was found out.
#[derive(Debug, Serialize)]
struct Report {
    can_be_protected: bool,
    /// The file, then its interpreter if it is a script, and so on.
    files: Vec<String>,
    /// The MPI library, if it could be asked for.
    mpi: Option<Recognition>,
    kernel: String,
    /// The worst first.
    findings: Vec<Finding>,
}

/// `radic doctor`. The result is the exit code.
pub(crate) fn run(args: &DoctorArgs) -> Result<u8> {
    let here = env::current_dir().context("the current directory")?;
    let traced = program::trace(&args.command[0], env::var_os("PATH").as_deref(), &here);
    let report = examine(args, traced);
    if args.json {
        format::print_json(&report)?
    } else {
        format::print(&in_words(&report))?
    }
    Ok(if report.can_be_protected { 0 } else { CANNOT })
}

fn examine(args: &DoctorArgs, traced: Traced) -> Report {
    let inherited: Vec<_> = env::vars_os().collect();
    let environment = mpi::Environment { inherited: &inherited, explicit: &[] };
    let plan = |file: &Path| mpi::plan(args.mpi, file, &environment).map_err(|error| error.to_string());
    let Examined { files, mpi, mut findings, code } = examine_program(traced, &environment, plan);
    findings.extend(counter::examine(&code));
    let (kernel, of_machine) = machine::examine();
    findings.extend(of_machine);
    findings.extend(machine::environment());
    findings.sort_by_key(|finding| finding.level);
    Report {
        can_be_protected: findings.iter().all(|finding| finding.level != Level::Stop),
        files: files.iter().map(|file| file.display().to_string()).collect(),
        mpi,
        kernel,
        findings,
    }
}

/// What was found out about a program, whatever the machine.
struct Examined {
    files: Vec<PathBuf>,
    mpi: Option<Recognition>,
    findings: Vec<Finding>,
    /// The files whose own code matters: the program, and its libraries but for those of the system, of the compiler and of MPI.
    code: Vec<PathBuf>,
}

/// `plan` decides about the MPI library of the file that it is given.
fn examine_program(
    traced: Traced,
    environment: &mpi::Environment<'_>,
    plan: impl FnOnce(&Path) -> Result<mpi::Plan, String>,
) -> Examined {
    let Traced { files, elf, mut findings } = traced;
    let (mut recognition, mut code) = (None, Vec::new());
    // What is no program of this machine has no libraries that could be asked for.
    if let (Some(elf), Some(last)) = (&elf, files.last()) {
        let (libraries, complete) = libraries::all(last, elf, environment.get("LD_LIBRARY_PATH"), functions::watched);
        findings.extend(about_libraries(elf, &libraries, complete));
        let mut settled = HashSet::new();
        // A library that cannot be read would trouble the recognition, too.
        if !libraries.iter().any(|library| matches!(library.place, Place::Unusable(..))) {
            match plan(&files[0]) {
                Ok(plan) => {
                    settled = settled_by(&plan, &libraries);
                    findings.extend(about_mpi(&plan, &settled));
                    recognition = Some(plan.recognition);
                }
                Err(error) => findings.push(Finding::new(
                    Level::Stop,
                    "mpi",
                    error,
                    "use a library that RADIC supports; if this is not the one, say which it is: --mpi",
                )),
            }
        }
        // A static program imports nothing, and has been told so.
        let imports = if elf.interpreter.is_none() { Some(&[][..]) } else { elf.imports.as_deref() };
        findings.extend(functions::judge(&last.display().to_string(), imports, &libraries, &settled));
        code.push(last.clone());
        code.extend(functions::of_program(&libraries, &settled).filter_map(|library| match &library.place {
            Place::Found(path, _) => Some(path.clone()),
            _ => None,
        }));
    }
    Examined { files, mpi: recognition, findings, code }
}

/// Why a program that is about to be run cannot be protected, or only a part of it, as [`examine_program`] sees it: what `radic run` tells (G7).
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Obstacles {
    /// It cannot: why, and the way out. Empty: it can.
    pub(crate) stops: Vec<String>,
    /// The same, but it could with other settings: it is not to be run without protection by accident.
    pub(crate) refusals: Vec<String>,
    /// It can, but not what it starts.
    pub(crate) children: Option<String>,
}

/// What is in the way of protecting `program`, which `radic run` would start with this plan.
pub(crate) fn obstacles(program: &Path, plan: &mpi::Plan, environment: &mpi::Environment<'_>) -> Obstacles {
    let here = env::current_dir().unwrap_or_default();
    let traced = program::trace(program.as_os_str(), environment.get("PATH"), &here);
    let examined = examine_program(traced, environment, |_| Ok(plan.clone()));
    let mut obstacles = Obstacles::default();
    for finding in examined.findings.into_iter().filter(|finding| finding.level == Level::Stop) {
        let text = clean(&format!("{} (way out: {})", finding.about, finding.remedy));
        match finding.name {
            // What it executes in its own place joins anew: scripts often end like that.
            program::SHELL => obstacles.children = Some(text),
            UCX => obstacles.refusals.push(text),
            _ => obstacles.stops.push(text),
        }
    }
    obstacles
}

/// Whether the program can be loaded at all, and with glibc.
fn about_libraries(elf: &elf::Elf, libraries: &[Library], complete: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for Library { name, needed_by, place } in libraries {
        match place {
            Place::Found(..) => {}
            Place::Missing => findings.push(Finding::new(
                Level::Stop,
                "library",
                format!("{name}, which {needed_by} needs, is not on this machine"),
                "install it, or add its folder to LD_LIBRARY_PATH; on every node",
            )),
            Place::Unusable(path, why) => findings.push(Finding::new(
                Level::Stop,
                "library",
                format!("{name}, which {needed_by} needs, leads to {}, which cannot be loaded: {why}", path.display()),
                "remove or replace that file",
            )),
        }
    }
    if !complete {
        findings.push(Finding::new(
            Level::Stop,
            "library",
            "it needs more libraries than can be looked at",
            "link fewer of them",
        ));
    }
    // A program without a loader has been reported above. One with glibc's loader and without glibc makes its system calls itself.
    if elf.interpreter.is_some() && complete && !libraries.iter().any(|library| library.name == "libc.so.6") {
        findings.push(Finding::new(
            Level::Stop,
            "libc",
            "it does not use glibc (libc.so.6), so its system calls do not pass through RADIC's library",
            "build it with glibc",
        ));
    }
    findings
}

/// The names of the libraries that the MPI library brings along: RADIC's settings keep them from what they could do.
fn settled_by<'a>(plan: &mpi::Plan, libraries: &'a [Library]) -> HashSet<&'a str> {
    let mut settled = HashSet::new();
    let file = plan.recognition.library.as_deref();
    let is_mpi = |library: &&Library| matches!(&library.place, Place::Found(path, _) if Some(&*path.to_string_lossy()) == file);
    let mut todo: Vec<&'a Library> = libraries.iter().filter(is_mpi).collect();
    while let Some(library) = todo.pop() {
        if let (true, Place::Found(_, elf)) = (settled.insert(library.name.as_str()), &library.place) {
            todo.extend(libraries.iter().filter(|next| elf.needed.contains(&next.name)));
        }
    }
    settled
}

/// The MPI library, and what the user has decided about it.
fn about_mpi(plan: &mpi::Plan, settled: &HashSet<&str>) -> Vec<Finding> {
    const ASYNC: &str = "UCX accepts and sets up connections in a thread of its own, which cannot be replayed yet";
    let recognition = &plan.recognition;
    let mut findings = Vec::new();
    if recognition.flavour == Flavour::Unknown {
        let about = format!("no MPI library is seen ({}): the settings of all of them are made", recognition.because);
        findings.push(Finding::new(Level::Note, "mpi", about, "if you know it, say so: --mpi"));
    }
    let has = |stem: &str| settled.iter().any(|name| name.starts_with(stem));
    if recognition.flavour == Flavour::Mpich && has("libucp") && !has("libfabric") {
        let about = format!("this MPICH has UCX only, not libfabric: {ASYNC}");
        findings.push(Finding::new(Level::Stop, UCX, about, "use an MPICH with ofi (libfabric), Intel MPI or Open MPI"));
    }
    for setting in &plan.settings {
        let Some(by) = setting.overridden.as_ref().filter(|by| by.value != setting.value) else { continue };
        let (name, value) = (setting.name, by.value.to_ascii_lowercase());
        let about = format!("you set {}={}, which wins over {name}={}: {}", by.name, by.value, setting.value, setting.why);
        let (level, kind, about) = match name {
            "FI_TCP_IO_URING" if !["0", "n", "no", "false", "off"].contains(&value.as_str()) => (Level::Stop, "io_uring", about),
            "FI_TCP_IO_URING" => continue,
            "MPIR_CVAR_CH4_NETMOD" | "OMPI_MCA_pml" | "OMPI_MCA_osc" if asks_for_ucx(&value) => {
                (Level::Stop, UCX, format!("{about}. {ASYNC}"))
            }
            essential if ESSENTIAL.contains(&essential) => (Level::Limit, "setting", about),
            _ => (Level::Note, "setting", about),
        };
        findings.push(Finding::new(level, kind, about, format!("unset {}, then it is {name}={}", by.name, setting.value)));
    }
    findings
}

/// Whether a list of components has UCX in it; `^` in front says which ones not to take.
fn asks_for_ucx(list: &str) -> bool {
    !list.starts_with('^') && list.split(',').any(|component| component.trim() == "ucx")
}

/// Names from files must not play tricks on a terminal, nor pass for lines of ours.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// For people: the findings, and the verdict at the end, where it is read first.
fn in_words(report: &Report) -> String {
    let files: Vec<String> = report.files.iter().map(|file| clean(file)).collect();
    let mut text = format!("program  {}\n", files.join("\n      -> "));
    if let Some(mpi) = &report.mpi {
        let file = mpi.library.as_deref().unwrap_or("no MPI library found");
        text.push_str(&format!("library  {} ({})\n", clean(file), clean(&mpi.because)));
    }
    text.push_str(&format!("kernel   {}\n", report.kernel));
    if !report.findings.is_empty() {
        text.push_str("\nLEVEL  ABOUT               FINDING, AND THE WAY OUT\n");
    }
    for finding in &report.findings {
        let level = match finding.level {
            Level::Stop => "stop",
            Level::Limit => "limit",
            Level::Note => "note",
        };
        let (about, remedy) = (clean(&finding.about), clean(&finding.remedy));
        text.push_str(&format!("{level:<5}  {:<18}  {about}\n{:27}-> {remedy}\n", finding.name, ""));
    }
    let count = |level| report.findings.iter().filter(|finding| finding.level == level).count();
    let verdict = match (count(Level::Stop), count(Level::Limit)) {
        (0, 0) => "can be protected".to_owned(),
        (0, limits) => format!("can be protected, but for what is marked \"limit\" ({limits})"),
        (stops, _) => format!("CANNOT be protected, because of what is marked \"stop\" ({stops})"),
    };
    text.push_str(&format!("\nverdict: {verdict}\n"));
    text
}
