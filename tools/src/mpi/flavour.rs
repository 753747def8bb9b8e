//! The MPI libraries that RADIC knows.

use serde::Serialize;

/// `--mpi`: what the user says about the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Choice {
    /// Read it from the executable
    #[default]
    Auto,
    /// MPICH, or a library with its ABI
    Mpich,
    /// Intel MPI
    Intel,
    /// Open MPI 4
    Openmpi,
    /// Open MPI 5
    Openmpi5,
    /// No MPI: leave the environment alone
    None,
}

/// The kinds of libraries that need different settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Flavour {
    /// MPICH and what is derived from it.
    Mpich,
    /// Intel MPI.
    Intel,
    /// Open MPI 4.
    OpenMpi,
    /// Open MPI 5.
    OpenMpi5,
    /// No MPI, says the user.
    None,
    /// Cannot be told from the executable: a script, an interpreter, a static library. It gets the settings of all: they do no harm.
    Unknown,
}
