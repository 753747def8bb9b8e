//! `radic doctor` on real programs, made here by gcc, and on files that are out to do harm.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::unistd::{Gid, mkfifo};
use serde_json::Value;

/// A folder of programs.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file that may be executed.
    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A program, or with -shared a library, of this C code.
    fn gcc(&self, name: &str, code: &str, flags: &[&str]) -> PathBuf {
        let (source, path) = (self.path(&format!("{name}.c")), self.path(name));
        fs::write(&source, code).unwrap();
        let mut gcc = Command::new("gcc");
        let output = gcc.arg("-w").arg("-o").arg(&path).arg(&source).args(flags).current_dir(self.0.path()).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        path
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.command_of("doctor");
        command.args(args);
        command
    }

    fn command_of(&self, subcommand: &str) -> Command {
        // A hang ends the test: `timeout` is a part of every Debian.
        let mut command = Command::new("timeout");
        command.args(["20", env!("CARGO_BIN_EXE_radic"), subcommand]);
        command.current_dir(self.0.path()).stdin(Stdio::null());
        for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "FI_TCP_IO_URING", "OMPI_MCA_btl", "MPIR_CVAR_CH4_NETMOD"] {
            command.env_remove(name);
        }
        command
    }

    fn diagnose(&self, path: &Path) -> Diagnosis {
        Diagnosis::of(self.command(&["--json", "--", path.to_str().unwrap(), "-x"]).output().unwrap())
    }
}

#[derive(Debug)]
struct Diagnosis {
    code: i32,
    json: Value,
}

impl Diagnosis {
    fn of(output: Output) -> Self {
        let code = output.status.code().unwrap();
        assert!(code < 2, "{code}: {}", String::from_utf8_lossy(&output.stderr));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["can_be_protected"], code == 0);
        for finding in json["findings"].as_array().unwrap() {
            assert!(!finding["about"].as_str().unwrap().is_empty() && !finding["remedy"].as_str().unwrap().is_empty());
        }
        Diagnosis { code, json }
    }

    /// What is said about `name` at `level`.
    fn about(&self, level: &str, name: &str) -> Option<&str> {
        let mut findings = self.json["findings"].as_array().unwrap().iter();
        findings.find(|f| f["level"] == level && f["name"] == name)?["about"].as_str()
    }

    /// That the program cannot be protected, because of `name` alone, with these words.
    #[track_caller]
    fn stops(&self, name: &str, words: &str) {
        let stops = self.json["findings"].as_array().unwrap().iter().filter(|f| f["level"] == "stop").count();
        assert!(self.code == 1 && stops == 1, "{self:?}");
        assert!(self.about("stop", name).is_some_and(|about| about.contains(words)), "{name}, {words}: {self:?}");
    }
}

const MAIN: &str = "int main(void) { return 0; }";

#[test]
fn an_ordinary_program_can_be_protected() {
    let folder = Folder::new();
    let program = folder.gcc("program", MAIN, &[]);
    let diagnosis = folder.diagnose(&program);
    assert_eq!(diagnosis.code, 0, "{diagnosis:?}");
    assert_eq!(diagnosis.json["files"][0], program.to_str().unwrap());
    for quiet in ["children", "shared-memory", "threads", "preload", "setuid"] {
        assert!(["limit", "note"].iter().all(|level| diagnosis.about(level, quiet).is_none()), "{quiet}: {diagnosis:?}");
    }
    let output = folder.command(&["--", "./program"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.lines().last().unwrap().starts_with("verdict: can be protected"), "{text}");
}

#[test]
fn nothing_is_executed() {
    let folder = Folder::new();
    let program = folder.gcc("program", "#include <stdio.h>\nint main(void) { fopen(\"witness\", \"w\"); }", &[]);
    folder.put("script", format!("#!{}\n", program.display()));
    assert_eq!(folder.diagnose(&program).code, 0);
    assert_eq!(folder.diagnose(&folder.path("script")).code, 0);
    assert!(!folder.path("witness").exists());
}

#[test]
fn programs_without_glibc_s_loader_cannot() {
    let folder = Folder::new();
    let fixed = folder.diagnose(&folder.gcc("static", MAIN, &["-static"]));
    fixed.stops("static", "statically linked");
    assert!(fixed.about("limit", "imports").is_none(), "{fixed:?}");
    folder.diagnose(&folder.gcc("static-pie", MAIN, &["-static-pie"])).stops("static", "statically linked");
    let musl = ["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"];
    folder.diagnose(&folder.gcc("musl", MAIN, &musl)).stops("libc", "musl");
    let gone = ["-Wl,--dynamic-linker=/nowhere/ld-linux-x86-64.so.2"];
    folder.diagnose(&folder.gcc("gone", MAIN, &gone)).stops("loader", "/nowhere/ld-linux-x86-64.so.2");
    let bare = "void _start(void) { for (;;); }";
    folder.diagnose(&folder.gcc("bare", bare, &["-nostdlib", "-pie", "-fPIE"])).stops("libc", "does not use glibc");
    folder.diagnose(&folder.gcc("object.o", MAIN, &["-c"])).stops("execute", "may not be executed");
    folder.diagnose(&folder.put("object", fs::read(folder.path("object.o")).unwrap())).stops("format", "object file");
}

#[test]
fn programs_for_other_machines_cannot() {
    let folder = Folder::new();
    let bytes = fs::read(folder.gcc("program", MAIN, &[])).unwrap();
    let mut arm = bytes.clone();
    arm[18] = 183;
    folder.diagnose(&folder.put("arm", arm)).stops("architecture", "64-bit program for ARM64");
    // Class 1 is 32-bit, machine 3 the 80386.
    let mut i386 = bytes.clone();
    (i386[4], i386[18]) = (1, 3);
    folder.diagnose(&folder.put("i386", i386)).stops("architecture", "32-bit program for x86");
    let mut x32 = bytes;
    x32[4] = 1;
    folder.diagnose(&folder.put("x32", x32)).stops("architecture", "32-bit program for x86-64");
}

#[test]
fn a_program_that_becomes_another_user_cannot() {
    let folder = Folder::new();
    let program = folder.gcc("program", MAIN, &[]);
    let mode = |mode| fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
    mode(0o4755);
    assert!(folder.diagnose(&program).about("note", "setuid").is_some());
    // Only root can give a file to others; for ordinary users the unit tests of doctor::program stand in.
    if nix::unistd::Uid::effective().is_root() {
        chown(&program, Some(65534), None).unwrap();
        mode(0o4755);
        folder.diagnose(&program).stops("setuid", "is setuid");
        chown(&program, Some(0), Some(Gid::current().as_raw() + 1)).unwrap();
        mode(0o2755);
        folder.diagnose(&program).stops("setgid", "is setgid");
    }
}

/// The loader ignores LD_PRELOAD in a program whose file has capabilities, and the program would run without protection, in silence.
#[test]
fn what_has_capabilities_cannot() {
    const USER: u32 = 64_002;
    // Revision 2: cap_net_raw, permitted and effective, as `setcap cap_net_raw+ep` writes it.
    const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let folder = Folder::new();
    let program = folder.gcc("program", MAIN, &[]);
    let script = folder.put("script", format!("#!{}\n", program.display()));
    if rustix::fs::setxattr(&program, "security.capability", &NET_RAW, rustix::fs::XattrFlags::empty()).is_err() {
        println!("SKIPPED: no capabilities can be given to a file here");
        return;
    }
    fs::set_permissions(folder.0.path(), Permissions::from_mode(0o755)).unwrap();
    for file in [&program, &script] {
        assert!(folder.diagnose(file).about("note", "capabilities").is_some(), "for root they change nothing");
        let mut command = folder.command(&["--json", "--", file.to_str().unwrap()]);
        let Ok(output) = std::os::unix::process::CommandExt::uid(&mut command, USER).output() else {
            println!("SKIPPED: this command cannot be executed by others");
            return;
        };
        Diagnosis::of(output).stops("capabilities", "has capabilities");
    }
}

#[test]
fn scripts_lead_to_their_interpreters() {
    let folder = Folder::new();
    let tool = folder.gcc("tool", MAIN, &[]);
    let path = folder.0.path().to_str().unwrap();
    let chain = |line: String| {
        let script = folder.put("script", line);
        let command =
            folder.command(&["--json", "--", script.to_str().unwrap()]).env("PATH", format!("{path}:/usr/bin:/bin")).output();
        Diagnosis::of(command.unwrap())
    };
    let last = |diagnosis: &Diagnosis| diagnosis.json["files"].as_array().unwrap().last().unwrap().clone();
    for line in [format!("#! {} -x\n", tool.display()), "#!/usr/bin/env tool\n".into(), "#!/usr/bin/env -S A=1 tool -x\n".into()]
    {
        let diagnosis = chain(line.clone());
        assert!(diagnosis.code == 0 && last(&diagnosis) == tool.to_str().unwrap(), "{line}: {diagnosis:?}");
    }
    chain("#!/bin/sh\n".into()).stops("shell", "nothing that it starts");
    chain("#!/nowhere/python\n".into()).stops("interpreter", "/nowhere/python");
    chain("#!/usr/bin/env nosuchtool\n".into()).stops("interpreter", "nosuchtool");
    let dos = chain("#!/bin/sh\r\n".into());
    assert!(dos.json["findings"].to_string().contains("dos2unix"), "{dos:?}");
    chain("#!\n".into()).stops("interpreter", "script");
    let itself = folder.path("script");
    chain(format!("#!{}\n", itself.display())).stops("script", "too many interpreters");
}

#[test]
fn what_is_not_there_or_not_executable_is_said() {
    let folder = Folder::new();
    let program = folder.gcc("program", MAIN, &[]);
    folder.diagnose(Path::new("nosuchprogram4711")).stops("not-found", "not in PATH");
    folder.diagnose(&folder.path("none")).stops("not-found", "No such file");
    let hint = folder.diagnose(Path::new("program"));
    assert!(hint.json["findings"].to_string().contains("write ./"), "{hint:?}");
    fs::set_permissions(&program, Permissions::from_mode(0o644)).unwrap();
    folder.diagnose(&program).stops("execute", "may not be executed");
    symlink("loop", folder.path("loop")).unwrap();
    folder.diagnose(&folder.path("loop")).stops("not-found", "loop");
    folder.diagnose(Path::new("")).stops("not-found", "not in PATH");
    assert_eq!(folder.command(&[]).output().unwrap().status.code(), Some(2));
}

#[test]
fn missing_and_odd_libraries_are_found_at_any_depth() {
    let folder = Folder::new();
    let library =
        |name: &str, flags: &[&str]| folder.gcc(name, "int f(void) { return 1; }", &[&["-shared", "-fPIC"], flags].concat());
    let deep = library("libdeep.so", &[]);
    library("libouter.so", &["-Wl,--no-as-needed", "-L.", "-ldeep"]);
    let flags = ["-Wl,--no-as-needed", "-L.", "-louter", "-Wl,-rpath-link,.", "-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN"];
    let program = folder.gcc("program", MAIN, &flags);
    assert_eq!(folder.diagnose(&program).code, 0);
    fs::remove_file(&deep).unwrap();
    folder.diagnose(&program).stops("library", "libdeep.so, which libouter.so needs");
    mkfifo(&deep, nix::sys::stat::Mode::S_IRWXU).unwrap();
    folder.diagnose(&program).stops("library", "not a regular file");
    fs::remove_file(&deep).unwrap();
    fs::write(&deep, "not a library").unwrap();
    folder.diagnose(&program).stops("library", "not an ELF file");
}

#[test]
fn what_a_program_may_call_is_judged() {
    let folder = Folder::new();
    let calls = "int main(int n) { if (n > 9) { fork(); shm_open(); process_vm_readv(); pthread_create(); } return 0; }";
    let diagnosis = folder.diagnose(&folder.gcc("calls", calls, &[]));
    assert_eq!(diagnosis.code, 0);
    for (level, name, function) in [
        ("limit", "children", "fork"),
        ("limit", "shared-memory", "shm_open"),
        ("limit", "other-memory", "process_vm_readv"),
        ("note", "threads", "pthread_create"),
    ] {
        assert!(diagnosis.about(level, name).is_some_and(|about| about.contains(function)), "{name}: {diagnosis:?}");
    }
    // A function of one's own that is named like the end of another is not that other.
    assert!(
        folder
            .diagnose(&folder.gcc(
                "own",
                "int pitchfork(void) { return 0; } int main(void) { return pitchfork(); }",
                &["-rdynamic"]
            ))
            .about("limit", "children")
            .is_none()
    );
    folder.gcc("liburing.so", "int io_uring_queue_init(void) { return 0; }", &["-shared", "-fPIC"]);
    // Where the section headers are and how many: nowhere, none.
    let mut bare = fs::read(folder.path("calls")).unwrap();
    bare[40..48].fill(0);
    bare[60..64].fill(0);
    let bare = folder.diagnose(&folder.put("bare", bare));
    assert!(bare.code == 0 && bare.about("limit", "imports").is_some_and(|about| about.contains("bare")), "{bare:?}");
    let uring = "int io_uring_queue_init(void); int main(void) { return io_uring_queue_init(); }";
    folder
        .diagnose(&folder.gcc("uring", uring, &["-L.", "-luring", "-Wl,-rpath,$ORIGIN"]))
        .stops("io_uring", "io_uring_queue_init");
}

/// A clock that is read by an instruction: no library sees that, so it is told, and of which file.
#[test]
fn a_program_that_reads_the_processor_s_counter_is_named() {
    let folder = Folder::new();
    let code = |name: &str| format!("unsigned long {name}(void) {{ return __builtin_ia32_rdtsc(); }}");
    for (name, flags) in [("fast", &["-O2"][..]), ("slow", &["-O0"])] {
        let program = folder.gcc(name, &format!("{} {}", code("now"), "int main(void) { return now() == 0; }"), flags);
        let diagnosis = folder.diagnose(&program);
        assert!(
            diagnosis.code == 0 && diagnosis.about("note", "rdtsc").is_some_and(|about| about.contains(name)),
            "{diagnosis:?}"
        );
    }
    folder.gcc("libtick.so", &code("tick"), &["-O2", "-shared", "-fPIC"]);
    let uses = "unsigned long tick(void); int main(void) { return tick() == 0; }";
    let diagnosis = folder.diagnose(&folder.gcc("uses", uses, &["-L.", "-ltick", "-Wl,-rpath,$ORIGIN"]));
    assert!(
        diagnosis.about("note", "rdtsc").is_some_and(|about| about.starts_with(folder.path("libtick.so").to_str().unwrap())),
        "{diagnosis:?}"
    );
    assert!(folder.diagnose(&folder.gcc("plain", MAIN, &[])).about("note", "rdtsc").is_none());
}

/// A library called `libmpi.so.12` that needs `part`, and a program that needs it.
fn mpich(folder: &Folder, part: &str) -> PathBuf {
    folder.gcc(part, "int part(void) { return 1; }", &["-shared", "-fPIC", &format!("-Wl,-soname,{part}")]);
    let code = "int part(void); int MPI_Init(void) { fork(); return shm_open() + part(); }";
    folder.gcc(
        "libmpi.so.12",
        code,
        &["-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", &format!("-l:{part}"), "-L.", "-Wl,-rpath,$ORIGIN"],
    );
    folder.gcc(
        "mpi",
        "int MPI_Init(void); int main(void) { return MPI_Init(); }",
        &["-L.", "-l:libmpi.so.12", "-Wl,-rpath-link,.", "-Wl,-rpath,$ORIGIN"],
    )
}

#[test]
fn mpi_libraries_are_judged_by_the_settings_they_will_have() {
    let folder = Folder::new();
    let program = mpich(&folder, "libfabric.so.1");
    let diagnosis = folder.diagnose(&program);
    assert!(diagnosis.code == 0 && diagnosis.json["mpi"]["flavour"] == "mpich", "{diagnosis:?}");
    assert!(diagnosis.about("limit", "children").is_none(), "what the library may do, RADIC's settings prevent: {diagnosis:?}");
    let with = |name: &str, value: &str| {
        Diagnosis::of(folder.command(&["--json", "--", program.to_str().unwrap()]).env(name, value).output().unwrap())
    };
    with("FI_TCP_IO_URING", "1").stops("io_uring", "FI_TCP_IO_URING=1");
    assert_eq!(with("FI_TCP_IO_URING", "no").code, 0);
    with("MPIR_CVAR_CH4_NETMOD", "ucx").stops("threads-on-sockets", "thread of its own");
    let netmod = with("MPIR_CVAR_CH4_NETMOD", "ucx");
    assert!(format!("{netmod:?}").contains("MPIR_CVAR_CH4_NETMOD=ofi"), "it says what to use instead: {netmod:?}");
    assert!(with("FI_PROVIDER", "shm").about("limit", "setting").is_some_and(|about| about.contains("FI_PROVIDER=shm")));
    assert!(with("FI_TCP_IFACE", "eth0").about("note", "setting").is_some());
    assert!(with("LD_AUDIT", "/x.so").about("limit", "preload").is_some_and(|about| about.contains("/x.so")));
    let none = folder.command(&["--json", "--mpi", "none", "--", program.to_str().unwrap()]).output().unwrap();
    assert!(Diagnosis::of(none).about("limit", "children").is_some(), "without settings it may do what it likes");
    let other = Folder::new();
    other.diagnose(&mpich(&other, "libucp.so.0")).stops("threads-on-sockets", "UCX only");
    let open = Folder::new();
    let diagnosis = open.diagnose(&mpich(&open, "libopen-pal.so.80"));
    assert!(diagnosis.code == 0 && diagnosis.json["mpi"]["flavour"] == "open-mpi5", "{diagnosis:?}");
    let program = open.path("mpi");
    let with = |name: &str, value: &str| {
        Diagnosis::of(open.command(&["--json", "--", program.to_str().unwrap()]).env(name, value).output().unwrap())
    };
    with("OMPI_MCA_pml", "ucx").stops("threads-on-sockets", "thread of its own");
    let pml = with("OMPI_MCA_pml", "ucx");
    assert!(format!("{pml:?}").contains("OMPI_MCA_pml=ob1"), "it says what to use instead: {pml:?}");
    with("OMPI_MCA_osc", "ucx,rdma").stops("threads-on-sockets", "thread of its own");
    assert_eq!(with("OMPI_MCA_osc", "^ucx").code, 0);
    assert_eq!(with("OMPI_MCA_pml", "ob1").code, 0);
}

#[test]
fn run_refuses_ucx_and_says_which_settings_to_use() {
    let (folder, open, only) = (Folder::new(), Folder::new(), Folder::new());
    let libfabric = mpich(&folder, "libfabric.so.1");
    let open_mpi = mpich(&open, "libopen-pal.so.80");
    // There is no cluster: what is refused is refused before one is asked.
    let run = |program: &Path, flags: &[&str], (name, value): (&str, &str)| {
        let mut command = folder.command_of("run");
        command.args(["-n", "2"]).args(flags).arg("--").arg(program).env(name, value).env("HOME", folder.0.path());
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let refused = |program: &Path, setting, way_out: &str| {
        for flags in [&[][..], &["--protect", "on"]] {
            let (code, said, _) = run(program, flags, setting);
            assert!(code == 125 && said.contains("nothing is started") && said.contains(way_out), "{code}: {said}");
            assert!(!said.contains("UNPROTECTED"), "{said}");
        }
        let (_, said, explained) = run(program, &["--explain"], setting);
        assert!(explained.contains("nothing is started") && explained.contains(way_out), "{said}{explained}");
        // Without protection it is the user's own business: then the missing cluster is what is told.
        let (code, said, _) = run(program, &["--protect", "none"], setting);
        assert!(code == 125 && !said.contains("UCX") && said.contains("cluster"), "{code}: {said}");
    };
    refused(&libfabric, ("MPIR_CVAR_CH4_NETMOD", "ucx"), "MPIR_CVAR_CH4_NETMOD=ofi");
    refused(&open_mpi, ("OMPI_MCA_pml", "ucx"), "OMPI_MCA_pml=ob1");
    refused(&open_mpi, ("OMPI_MCA_osc", "ucx"), "OMPI_MCA_osc=^ucx");
    refused(&mpich(&only, "libucp.so.0"), ("A", "b"), "use an MPICH with ofi (libfabric), Intel MPI or Open MPI");
    let (_, said, _) = run(&libfabric, &[], ("OMPI_MCA_pml", "ucx"));
    assert!(!said.contains("UCX"), "what an MPICH does not read does not matter: {said}");
}

#[test]
fn hostile_files_are_findings() {
    let folder = Folder::new();
    let program = fs::read(folder.gcc("program", MAIN, &[])).unwrap();
    mkfifo(&folder.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    folder.diagnose(&folder.path("fifo")).stops("format", "a pipe");
    folder.diagnose(Path::new("/dev/zero")).stops("format", "a device");
    folder.diagnose(folder.0.path()).stops("format", "a folder");
    folder.diagnose(&folder.put("empty", "")).stops("format", "neither");
    folder.diagnose(&folder.put("noise", [0x5a, 0x00, 0xff].repeat(9000))).stops("format", "neither");
    folder.diagnose(&folder.put("magic", "\x7fELF")).stops("read", "not a proper ELF file");
    for cut in [19, 40, 63, 64, 100, 500, 1000] {
        folder.diagnose(&folder.put("cut", &program[..cut])).stops("read", "not a proper ELF file");
    }
    let text = String::from_utf8(folder.command(&["--", "./a\nverdict: can be protected"]).output().unwrap().stdout).unwrap();
    assert!(
        text.lines()
            .filter(|line| line.starts_with("verdict"))
            .eq(["verdict: CANNOT be protected, because of what is marked \"stop\" (1)"]),
        "{text}"
    );
}

#[test]
fn huge_numbers_in_headers_do_no_harm() {
    let folder = Folder::new();
    let program = fs::read(folder.gcc("program", MAIN, &[])).unwrap();
    // Offsets and counts of the ELF header, then everything in the program headers.
    let fields = [(32, 8), (40, 8), (52, 2), (54, 2), (56, 2), (58, 2), (60, 2)];
    let headers = (64..64 + 8 * 56).step_by(8).map(|at| (at, 8));
    let sections = u64::from_le_bytes(program[40..48].try_into().unwrap()) as usize;
    let tables = (sections..program.len() - 8).step_by(24).map(|at| (at, 8));
    for (at, length) in fields.into_iter().chain(headers).chain(tables) {
        let mut bytes = program.clone();
        bytes[at..at + length].fill(0xff);
        // Which is for the field to say; that there is an answer is checked inside.
        folder.diagnose(&folder.put("huge", bytes));
    }
}
