use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use radic_wire::job::placeholder;
use tempfile::TempDir;

use super::elf::{self, Program};
use super::*;

/// A small but proper ELF file: one loaded segment, a dynamic section, a string table.
#[derive(Clone)]
struct Image {
    machine: u16,
    interpreter: bool,
    needed: Vec<&'static str>,
    rpath: Option<String>,
    runpath: Option<String>,
    /// A name among its symbols.
    symbol: &'static str,
}

impl Image {
    fn needing(needed: &[&'static str]) -> Self {
        Image { machine: 62, interpreter: true, needed: needed.to_vec(), rpath: None, runpath: None, symbol: "MPI_Init" }
    }

    fn bytes(&self) -> Vec<u8> {
        const HEADERS: u64 = 64 + 3 * 56;
        let mut strings = vec![0];
        let mut string = |text: &str| {
            let at = strings.len() as u64;
            strings.extend([text.as_bytes(), b"\0"].concat());
            at
        };
        let mut dynamic: Vec<(u64, u64)> = self.needed.iter().map(|name| (1, string(name))).collect();
        dynamic.extend(self.rpath.iter().map(|text| (15, string(text))));
        dynamic.extend(self.runpath.iter().map(|text| (29, string(text))));
        string(self.symbol);
        let table = HEADERS + 16 * (dynamic.len() as u64 + 3);
        dynamic.extend([(5, table), (10, strings.len() as u64), (0, 0)]);
        let whole = table + strings.len() as u64;
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        bytes.extend([3u16, self.machine].iter().flat_map(|n| n.to_le_bytes()));
        bytes.extend(1u32.to_le_bytes());
        bytes.extend([0u64, 64, 0].iter().flat_map(|n| n.to_le_bytes()));
        bytes.extend(0u32.to_le_bytes());
        bytes.extend([64u16, 56, 3, 64, 0, 0].iter().flat_map(|n| n.to_le_bytes()));
        let interpreter = if self.interpreter { 3 } else { 4 };
        for (kind, at, size) in [(1u32, 0, whole), (2, HEADERS, table - HEADERS), (interpreter, 0, 1)] {
            bytes.extend([kind, 4].iter().flat_map(|n| n.to_le_bytes()));
            bytes.extend([at, at, at, size, size, 8].iter().flat_map(|n: &u64| n.to_le_bytes()));
        }
        bytes.extend(dynamic.iter().flat_map(|(tag, value)| [tag.to_le_bytes(), value.to_le_bytes()].concat()));
        bytes.extend(strings);
        bytes
    }

    fn write(&self, folder: &Path, name: &str) -> PathBuf {
        fs::create_dir_all(folder).unwrap();
        let path = folder.join(name);
        fs::write(&path, self.bytes()).unwrap();
        path
    }
}

fn mpich(folder: &Path) -> PathBuf {
    Image::needing(&["libfabric.so.1"]).write(folder, "libmpi.so.12")
}

fn intel(folder: &Path) -> PathBuf {
    Image { symbol: "I_MPI_Check_image_status", ..Image::needing(&[]) }.write(folder, "libmpi.so.12")
}

/// Variables as the shell hands them over.
fn inherited(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    variables.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn explicit(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn recognise(program: &Path, variables: &[(&str, &str)]) -> Result<Recognition, MpiError> {
    let environment = Environment { inherited: &inherited(variables), explicit: &[] };
    plan(Choice::Auto, program, &environment).map(|plan| plan.recognition)
}

fn found(program: &Path, variables: &[(&str, &str)]) -> (Flavour, Option<PathBuf>) {
    let recognition = recognise(program, variables).unwrap();
    (recognition.flavour, recognition.library.map(PathBuf::from))
}

/// A program that names `folder/mpich` by DT_RUNPATH, and libraries of both kinds.
fn program_and_libraries() -> (TempDir, PathBuf, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (mpich, intel) = (mpich(&folder.path().join("mpich")), intel(&folder.path().join("intel")));
    let image = Image { runpath: Some("$ORIGIN/mpich".to_owned()), ..Image::needing(&["libm.so.6", "libmpi.so.12"]) };
    let program = image.write(folder.path(), "program");
    (folder, program, mpich, intel)
}

#[test]
fn libraries_of_one_name_are_told_apart_as_the_loader_finds_them() {
    let (folder, program, mpich, intel) = program_and_libraries();
    let intel_path = intel.parent().unwrap().to_str().unwrap();
    assert_eq!(found(&program, &[]), (Flavour::Mpich, Some(fs::canonicalize(&mpich).unwrap())));
    let by_path = [("LD_LIBRARY_PATH", intel_path)];
    assert_eq!(found(&program, &by_path), (Flavour::Intel, Some(intel.clone())));
    let preload = [("LD_PRELOAD", intel.to_str().unwrap())];
    assert_eq!(found(&program, &preload), (Flavour::Intel, Some(intel.clone())));
    // DT_RPATH goes before LD_LIBRARY_PATH, unless there is a DT_RUNPATH.
    let rpath = Image { rpath: Some("${ORIGIN}/mpich".to_owned()), ..Image::needing(&["libmpi.so.12"]) };
    assert_eq!(found(&rpath.write(folder.path(), "rpath"), &by_path).0, Flavour::Mpich);
    let both = Image { runpath: Some("/nowhere".to_owned()), ..rpath };
    assert_eq!(found(&both.write(folder.path(), "both"), &by_path).0, Flavour::Intel);
}

#[test]
fn libraries_are_found_through_their_wrappers() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    intel(here);
    Image::needing(&["libmpi.so.12"]).write(here, "libmpifort.so.12");
    Image::needing(&["libmpifort.so.12"]).write(here, "libsolver.so");
    let program = Image { rpath: Some("$ORIGIN".to_owned()), ..Image::needing(&["libsolver.so"]) }.write(here, "program");
    assert_eq!(found(&program, &[]).0, Flavour::Intel);
}

#[test]
fn a_library_for_another_machine_is_passed_over() {
    let (folder, program, mpich, _) = program_and_libraries();
    let other = Image { machine: 183, ..Image::needing(&[]) }.write(&folder.path().join("other"), "libmpi.so.12");
    let variables = [("LD_LIBRARY_PATH", other.parent().unwrap().to_str().unwrap())];
    assert_eq!(found(&program, &variables), (Flavour::Mpich, Some(fs::canonicalize(mpich).unwrap())));
}

#[test]
fn versions_of_open_mpi_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let image = Image { rpath: Some("$ORIGIN".to_owned()), ..Image::needing(&["libmpi.so.40"]) };
    let program = image.write(here, "program");
    Image::needing(&["libopen-rte.so.40", "libopen-pal.so.40"]).write(here, "libmpi.so.40");
    assert_eq!(found(&program, &[]).0, Flavour::OpenMpi);
    Image::needing(&["libopen-pal.so.80"]).write(here, "libmpi.so.40");
    assert_eq!(found(&program, &[]).0, Flavour::OpenMpi5);
    let prefix = |library: &Path| {
        let settings = settings::settings(Flavour::OpenMpi5, Some(library), &Environment { inherited: &[], explicit: &[] });
        settings.into_iter().find(|setting| setting.name == "OPAL_PREFIX").map(|setting| setting.value.into_owned())
    };
    assert_eq!(prefix(&here.join("lib/libmpi.so.40")), None, "its other files are elsewhere");
    fs::create_dir_all(here.join("share/openmpi")).unwrap();
    assert_eq!(prefix(&here.join("lib/libmpi.so.40")).as_deref(), here.to_str());
    assert_eq!(prefix(&here.join("x86_64-linux-gnu/libmpi.so.40")), None);
    Image::needing(&["libopen-pal.so.20"]).write(here, "libmpi.so.40");
    assert!(matches!(recognise(&program, &[]), Err(MpiError::OpenMpi { part, .. }) if part == "libopen-pal.so.20"));
    let environment = Environment { inherited: &[], explicit: &[] };
    assert_eq!(plan(Choice::Openmpi, &program, &environment).unwrap().recognition.flavour, Flavour::OpenMpi);
}

#[test]
fn what_cannot_be_told_is_unknown_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let because = |path: &Path| {
        let recognition = recognise(path, &[]).unwrap();
        assert_eq!(recognition.flavour, Flavour::Unknown);
        recognition.because
    };
    fs::write(here.join("script"), "#!/usr/bin/env python3\nimport mpi4py").unwrap();
    assert_eq!(because(&here.join("script")), "it is a script for /usr/bin/env python3");
    fs::write(here.join("data"), [1, 2, 3]).unwrap();
    assert_eq!(because(&here.join("data")), "it is no ELF file");
    fs::write(here.join("empty"), "").unwrap();
    assert_eq!(because(&here.join("empty")), "it is no ELF file");
    let fixed = Image { interpreter: false, ..Image::needing(&[]) }.write(here, "static");
    assert!(because(&fixed).contains("statically linked"));
    assert!(because(&Image::needing(&["libm.so.6"]).write(here, "plain")).contains("no library that it needs"));
    let lost = Image::needing(&["libmpi.so.4711"]).write(here, "lost");
    assert_eq!(because(&lost), "it needs libmpi.so.4711, which is not on this machine");
    assert!(matches!(recognise(&here.join("none"), &[]), Err(MpiError::Unreadable { .. })));
    let whole = Image::needing(&["libmpi.so.12"]).bytes();
    fs::write(here.join("cut"), &whole[..100]).unwrap();
    assert!(recognise(&here.join("cut"), &[]).unwrap_err().to_string().contains("not a proper ELF file"));
}

#[test]
fn every_library_has_its_settings_and_the_unknown_those_of_all() {
    let names = |choice| {
        let environment = Environment { inherited: &[], explicit: &[] };
        let plan = plan(choice, Path::new("/bin/program"), &environment).unwrap();
        plan.templates().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert!(names(Choice::Mpich).contains(&"MPIR_CVAR_CH4_NETMOD".to_owned()));
    assert!(names(Choice::Intel).contains(&"I_MPI_FABRICS".to_owned()));
    assert!(names(Choice::Openmpi).contains(&"FLUX_PMI_LIBRARY_PATH".to_owned()));
    assert!(names(Choice::Openmpi5).contains(&"LD_PRELOAD".to_owned()));
    assert!(names(Choice::None).is_empty());
    let all = settings::settings(Flavour::Unknown, None, &Environment { inherited: &[], explicit: &[] });
    for choice in [Choice::Mpich, Choice::Intel, Choice::Openmpi, Choice::Openmpi5] {
        assert!(names(choice).iter().all(|name| all.iter().any(|setting| setting.name == name)), "{choice:?}");
    }
}

#[test]
fn every_placeholder_is_one_that_nodes_know() {
    use placeholder::{ADDRESS, IFACE, JOBNUM, PREFIX, RADIC_PMI, RADIC_PMIX, RANK};
    let known = [ADDRESS, IFACE, JOBNUM, PREFIX, RADIC_PMI, RADIC_PMIX, RANK];
    for setting in settings::settings(Flavour::Unknown, None, &Environment { inherited: &[], explicit: &[] }) {
        let rest = known.iter().fold(setting.value.clone().into_owned(), |text, name| text.replace(name, ""));
        assert!(!rest.contains(['{', '}']), "{}={}", setting.name, setting.value);
    }
}

#[test]
fn what_the_user_sets_wins() {
    let shell = inherited(&[
        ("FI_PROVIDER", "sockets"),
        ("OMPI_MCA_btl_tcp_if_exclude", "eth1"),
        ("OMPI_MCA_btl", "tcp,vader,self"),
        ("LD_PRELOAD", "mine.so"),
    ]);
    let flags = explicit(&[("OMPI_MCA_btl", "tcp,self"), ("MPIR_CVAR_CH4_NETMOD", "ucx")]);
    let environment = Environment { inherited: &shell, explicit: &flags };
    let settings = settings::settings(Flavour::Unknown, None, &environment);
    let by = |name: &str| {
        let setting = settings.iter().find(|setting| setting.name == name).unwrap();
        setting.overridden.as_ref().map(|by| (by.name.as_str(), by.value.as_str(), by.by_flag))
    };
    assert_eq!(by("FI_PROVIDER"), Some(("FI_PROVIDER", "sockets", false)));
    assert_eq!(by("OMPI_MCA_btl"), Some(("OMPI_MCA_btl", "tcp,self", true)));
    assert_eq!(
        by("OMPI_MCA_btl_tcp_if_include"),
        Some(("OMPI_MCA_btl_tcp_if_exclude", "eth1", false)),
        "they exclude each other"
    );
    assert_eq!(by("MPIR_CVAR_CH4_NETMOD"), Some(("MPIR_CVAR_CH4_NETMOD", "ucx", true)));
    assert_eq!(by("UCX_TLS"), None);
    assert_eq!(by("LD_PRELOAD"), None, "the user's own come after it");
    // Where the library is not known, no variable is set twice.
    let names: std::collections::HashSet<_> = settings.iter().map(|setting| setting.name).collect();
    assert_eq!(names.len(), settings.len());
}

#[test]
fn variables_of_another_launcher_do_not_pass() {
    let names = ["PMI_RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK", "FLUX_JOB_ID", "SLURM_STEP_ID"];
    let of_nodes = ["PBS_NODEFILE", "PBS_NODENUM", "PE_HOSTFILE", "SGE_JOB_SPOOL_DIR", "LSB_DJOB_HOSTFILE", "LSB_BIND_CPU_LIST"];
    let harmless = ["PATH", "SLURM_JOB_ID", "OMPI_MCA_coll", "I_MPI_DEBUG", "PMIRROR", "PBS_JOBID", "JOB_ID", "LSB_JOBID"];
    let shell: Vec<_> = names.iter().chain(&of_nodes).chain(&harmless).map(|name| (*name, "x")).collect();
    let shell = inherited(&shell);
    let flags = explicit(&[("SLURM_STEP_ID", "7")]);
    let environment = Environment { inherited: &shell, explicit: &flags };
    let made = plan(Choice::Openmpi, Path::new("/bin/program"), &environment).unwrap();
    for name in names[..4].iter().chain(&of_nodes) {
        assert!(made.removes(OsStr::new(name)), "{name}");
    }
    for name in harmless.iter().chain(&names[4..]) {
        assert!(!made.removes(OsStr::new(name)), "{name}");
    }
    // Flux's own job does not count as the user's wish.
    assert!(made.templates().contains(&("FLUX_JOB_ID".to_owned(), placeholder::JOBNUM.to_owned())));
    assert_eq!(plan(Choice::None, Path::new("/bin/program"), &environment).unwrap().removed, []);
}

#[test]
fn a_plan_explains_itself() {
    let (_folder, program, mpich, _) = program_and_libraries();
    let shell = inherited(&[("FI_PROVIDER", "sockets"), ("PMI_FD", "3")]);
    let plan = plan(Choice::Auto, &program, &Environment { inherited: &shell, explicit: &[] }).unwrap();
    let text = plan.to_string();
    let mpich = fs::canonicalize(mpich).unwrap();
    for part in [
        "MPICH (it needs libmpi.so.12)",
        mpich.to_str().unwrap(),
        "MPIR_CVAR_CH4_NETMOD=ofi",
        "FI_PROVIDER=sockets",
        "\n  PMI_FD",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["recognition"]["flavour"], "mpich");
    assert_eq!(json["removed"][0]["name"], "PMI_FD");
    assert_eq!(json["settings"][1]["overridden"]["value"], "sockets");
}

proptest! {
    #[test]
    fn a_hostile_file_is_an_error_or_a_program(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in 0usize..600,
    ) {
        let image = Image { runpath: Some("$ORIGIN".to_owned()), ..Image::needing(&["libmpi.so.12", "libc.so.6"]) };
        let mut bytes = image.bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len().saturating_sub(cut / 2));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        if let Ok(Program::Elf(elf)) = elf::read(&path) {
            prop_assert!(elf.needed.len() <= 4096);
            let _ = elf::has_name(&path, &elf, "I_MPI_");
        }
    }
}
