//! `radic cluster complete-slurm` with commands and libraries made here: what Slurm's library is told, and that the job is cancelled where that does not work.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A library that notes what it is told. `HOW` is what it does then.
const LIBRARY: &str = r#"
    #include <stdio.h>
    #include <stdlib.h>
    #include <errno.h>
    #include <unistd.h>
    static void note(const char *what, unsigned job, unsigned status) {
        FILE *file = fopen(getenv("NOTED"), "a");
        fprintf(file, "%s %u %u\n", what, job, status);
        fclose(file);
    }
    void slurm_init(const char *conf) { note(conf ? "named" : "init", 0, 0); }
    const char *slurm_strerror(int number) { return number == 2017 ? "Invalid job id specified" : "?"; }
    int FUNCTION(unsigned job, unsigned status) { note("complete", job, status); HOW; }
"#;

/// An installed Slurm, as far as this command goes.
struct Slurm(tempfile::TempDir);

impl Slurm {
    fn new() -> Slurm {
        let slurm = Slurm(tempfile::tempdir().unwrap());
        ["bin", "lib"].iter().for_each(|folder| fs::create_dir(slurm.path(folder)).unwrap());
        slurm
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A scancel that is a script, and notes what it is told.
    fn scancel(self, code: u8) -> Slurm {
        let path = self.path("bin/scancel");
        fs::write(&path, format!("#!/bin/sh\necho scancel \"$@\" >>\"$NOTED\"\necho not now >&2\nexit {code}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn gcc(&self, to: &str, code: &str, flags: &[&str]) {
        let source = self.path("code.c");
        fs::write(&source, code).unwrap();
        let output = Command::new("gcc").arg("-o").arg(self.path(to)).arg(&source).args(flags).output().unwrap();
        assert!(output.status.success(), "{to}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn library(self, to: &str, function: &str, how: &str) -> Slurm {
        let code = LIBRARY.replace("FUNCTION", function).replace("HOW", how);
        self.gcc(to, &code, &["-shared", "-fPIC"]);
        self
    }

    /// The exit code, what was noted, and standard error.
    fn complete(&self, words: &[&str], code: Option<&str>) -> (Option<i32>, String, String) {
        // A hang ends the test.
        let mut command = Command::new("/usr/bin/timeout");
        command.args(["60", env!("CARGO_BIN_EXE_radic"), "cluster", "complete-slurm"]).args(words);
        command.env("PATH", self.path("bin")).env("NOTED", self.path("noted"));
        command.env_remove("RADIC_EXIT_CODE").env_remove("LD_LIBRARY_PATH").stdin(Stdio::null());
        if let Some(code) = code {
            command.env("RADIC_EXIT_CODE", code);
        }
        let output = command.output().unwrap();
        let noted = fs::read_to_string(self.path("noted")).unwrap_or_default();
        (output.status.code(), noted, String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[test]
fn slurm_s_library_is_told_the_status_that_the_script_would_have_had() {
    let slurm = Slurm::new().scancel(0).library("lib/libslurm.so", "slurm_complete_job", "return 0");
    assert_eq!(slurm.complete(&["7", "0"], None), (Some(0), "init 0 0\ncomplete 7 0\n".to_owned(), String::new()));
    let (code, noted, said) = slurm.complete(&["4294967295"], Some("3"));
    assert_eq!((code, noted.lines().last()), (Some(0), Some("complete 4294967295 768")), "{said}");
    let (code, _, said) = slurm.complete(&["7", "256"], None);
    assert_eq!(code, Some(2), "{said}");
}

/// As Debian has it: in a folder that nothing but the commands know of. A library that happens to be beside them is another one.
#[test]
fn the_library_is_the_one_that_scancel_loads() {
    let slurm = Slurm::new().library("lib/libslurm.so", "slurm_complete_job", "abort()");
    fs::create_dir(slurm.path("lib/own")).unwrap();
    let slurm = slurm.library("lib/own/libslurmfull.so", "slurm_complete_job", "return 0");
    let own = slurm.path("lib/own").display().to_string();
    let flags = ["-Wl,--no-as-needed", "-L", &own, "-lslurmfull", "-Wl,-rpath,$ORIGIN/../lib/own"];
    slurm.gcc("bin/scancel", "int main(void) { return 9; }", &flags);
    assert_eq!(slurm.complete(&["7", "0"], None), (Some(0), "init 0 0\ncomplete 7 0\n".to_owned(), String::new()));
}

#[test]
fn a_job_that_the_library_does_not_end_is_cancelled_and_why_is_told() {
    let no_library = || Slurm::new().scancel(0);
    let with = |function: &str, how: &str| no_library().library("lib/libslurm.so", function, how);
    let broken = no_library();
    fs::write(broken.path("lib/libslurm.so"), "no library").unwrap();
    for (slurm, why) in [
        (no_library(), "loads no libslurm, and there is none beside it"),
        (broken, "libslurm.so: "),
        (with("slurm_other", "return 0"), "it has no slurm_complete_job"),
        (with("slurm_complete_job", "errno = 2017; return -1"), "Slurm refuses it: Invalid job id specified (error 2017)"),
        (with("slurm_complete_job", "puts(\"x\"); abort()"), "signal: 6"),
        (with("slurm_complete_job", "fputs(\"fatal: no configuration\\n\", stderr); exit(1)"), "fatal: no configuration"),
        (with("slurm_complete_job", "for (;;) pause()"), "no answer within 10 s"),
    ] {
        let (code, noted, said) = slurm.complete(&["7", "0"], None);
        assert_eq!((code, noted.lines().last()), (Some(0), Some("scancel 7")), "{why}: {said}");
        assert!(said.contains("so it is cancelled") && said.contains(why), "{why}: {said}");
    }
    let slurm = with("slurm_complete_job", "return 0");
    let (code, noted, said) = slurm.complete(&["7"], None);
    assert_eq!((code, &*noted), (Some(0), "scancel 7\n"), "the code is not known: {said}");
}

/// A controller that is started again meanwhile is to hear of the code, not of a cancellation.
#[test]
fn a_job_is_not_cancelled_because_the_controller_is_away() {
    let slurm = Slurm::new().scancel(0).library("lib/libslurm.so", "slurm_complete_job", "errno = 1800; return -1");
    let (code, noted, said) = slurm.complete(&["7", "0"], None);
    assert_eq!((code, &*noted), (Some(125), "init 0 0\ncomplete 7 0\n"), "{said}");
    assert!(said.contains("job 7 has not been ended") && said.contains("error 1800") && said.contains("again"), "{said}");
    let slurm = Slurm::new().scancel(0).library("lib/libslurm.so", "slurm_complete_job", "errno = 2021; return -1");
    let (code, noted, said) = slurm.complete(&["7", "0"], None);
    assert_eq!((code, &*noted), (Some(0), "init 0 0\ncomplete 7 0\n"), "it has ended already: {said}");
}

#[test]
fn a_job_that_cannot_be_ended_at_all_is_an_error() {
    let (code, _, said) = Slurm::new().scancel(1).complete(&["7", "0"], None);
    assert!(code == Some(125) && said.contains("scancel 7: exit status: 1: not now"), "{said}");
    let (code, _, said) = Slurm::new().complete(&["7", "0"], None);
    assert!(code == Some(125) && said.contains("none of scancel, srun, scontrol is in PATH"), "{said}");
}
