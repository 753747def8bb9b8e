//! Which MPI library a program would load.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::elf::{self, Elf, Program};
use super::environment::Environment;
use super::flavour::{Choice, Flavour};
use super::loader::{Library, Loader};

/// Why a program cannot run under RADIC as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MpiError {
    /// The executable, or its libmpi, cannot be read.
    #[error("cannot read {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another Open MPI.
    #[error(
        "{program} uses a version of Open MPI that RADIC does not know ({library} needs {part}): it knows Open MPI 4 \
         (libopen-pal.so.40) and 5 (libopen-pal.so.80), MPICH and Intel MPI (say --mpi openmpi or --mpi openmpi5 to try it all the same)"
    )]
    OpenMpi {
        /// The executable.
        program: PathBuf,
        /// Its libmpi.
        library: PathBuf,
        /// The part of it that tells the version.
        part: String,
    },
}

/// What was found out about a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Recognition {
    /// The executable.
    pub(crate) program: String,
    /// The kind of its library.
    pub(crate) flavour: Flavour,
    /// The library's file, if one was found.
    pub(crate) library: Option<String>,
    /// How it was found out.
    pub(crate) because: String,
}

/// Finds out which library `program` would load in `environment`.
pub(super) fn recognise(choice: Choice, program: &Path, environment: &Environment<'_>) -> Result<Recognition, MpiError> {
    let told = |flavour| Ok(recognition(program, flavour, None, "--mpi says so".to_owned()));
    match choice {
        Choice::Auto => {}
        Choice::Mpich => return told(Flavour::Mpich),
        Choice::Intel => return told(Flavour::Intel),
        Choice::Openmpi => return told(Flavour::OpenMpi),
        Choice::Openmpi5 => return told(Flavour::OpenMpi5),
        Choice::None => return told(Flavour::None),
    }
    let unknown = |because: String| Ok(recognition(program, Flavour::Unknown, None, because));
    let elf = match elf::read(program).map_err(|error| MpiError::Unreadable { path: program.to_owned(), error })? {
        Program::Script(interpreter) => return unknown(format!("it is a script for {interpreter}")),
        Program::Other => return unknown("it is no ELF file".to_owned()),
        Program::Elf(elf) if elf.needed.is_empty() && !elf.has_interpreter => {
            return unknown("it is statically linked, so it can run but never be protected: link it dynamically".to_owned());
        }
        Program::Elf(elf) => elf,
    };
    match Loader::new(program, &elf, environment).find(is_mpi) {
        Some(library) => from_library(program, library),
        None => unknown("no library that it needs is an MPI library; it may load one later, as Python does".to_owned()),
    }
}

/// Whether a library of this name is the core of an MPI library, not one of its wrappers, which need the core.
fn is_mpi(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    ["libmpi.so", "libmpich.so", "libmpi_abi.so"].iter().any(|stem| file.starts_with(stem))
}

fn from_library(program: &Path, library: Library) -> Result<Recognition, MpiError> {
    let Library { name, found } = library;
    let Some((path, elf)) = found else {
        let flavour = if name.starts_with("libmpich.so") { Flavour::Mpich } else { Flavour::Unknown };
        return Ok(recognition(program, flavour, None, format!("it needs {name}, which is not on this machine")));
    };
    let flavour = match elf.needed.iter().find(|needed| needed.starts_with("libopen-pal.so")) {
        Some(part) if part == "libopen-pal.so.40" => Flavour::OpenMpi,
        Some(part) if part == "libopen-pal.so.80" => Flavour::OpenMpi5,
        Some(part) => return Err(MpiError::OpenMpi { program: program.to_owned(), library: path, part: part.clone() }),
        None if is_intel(&path, &elf)? => Flavour::Intel,
        None => Flavour::Mpich,
    };
    Ok(recognition(program, flavour, Some(&path), format!("it needs {name}")))
}

/// MPICH and Intel MPI have the same ABI and the same library name; the names of Intel's own functions tell them apart.
fn is_intel(path: &Path, elf: &Elf) -> Result<bool, MpiError> {
    elf::has_name(path, elf, "I_MPI_").map_err(|error| MpiError::Unreadable { path: path.to_owned(), error })
}

fn recognition(program: &Path, flavour: Flavour, library: Option<&Path>, because: String) -> Recognition {
    let text = |path: &Path| path.display().to_string();
    Recognition { program: text(program), flavour, library: library.map(text), because }
}
