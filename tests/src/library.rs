//! MPI libraries and test programs, as `make deps` installs them.

use std::path::{Path, PathBuf};

use crate::cluster::Cluster;
use crate::command::Invocation;

/// What `make deps` has made.
///
/// # Panics
/// If it has not.
pub fn deps() -> PathBuf {
    let deps = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join(".deps");
    assert!(deps.join("programs").is_dir(), "{} is missing: run `make deps`", deps.display());
    deps
}

/// A program below .deps/programs, as a word of a command line.
///
/// # Panics
/// If it is not there.
pub fn compiled(folder: &str, name: &str) -> String {
    let path = deps().join("programs").join(folder).join(name);
    assert!(path.is_file(), "{} is missing: run `make deps`", path.display());
    path.display().to_string()
}

/// A script among the sources of the test programs.
pub fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).display().to_string()
}

/// An MPI library.
#[derive(Debug)]
pub struct Library {
    /// Its name, and that of its folder below .deps.
    pub name: &'static str,
    /// Where the programs compiled for it are, below .deps/programs.
    programs: &'static str,
    /// Below .deps: what LD_LIBRARY_PATH is to be.
    library_path: Option<&'static str>,
}

/// MPICH 5.
pub const MPICH: Library = Library { name: "mpich", programs: "mpich", library_path: None };
/// Intel MPI. Its run-time has no compiler wrapper: it runs what MPICH's has made, for the two have one ABI.
pub const INTEL: Library = Library { name: "impi", programs: "mpich", library_path: Some("impi/lib") };
/// Open MPI 4.1.
pub const OPENMPI: Library = Library { name: "openmpi", programs: "openmpi", library_path: None };
/// Open MPI 5.
pub const OPENMPI5: Library = Library { name: "openmpi5", programs: "openmpi5", library_path: None };
/// All of them.
pub static LIBRARIES: [Library; 4] = [MPICH, INTEL, OPENMPI, OPENMPI5];

impl Library {
    /// A compiled program.
    pub fn program(&self, name: &str) -> String {
        compiled(self.programs, name)
    }

    /// The Python interpreter with the mpi4py that uses this library.
    pub fn python(&self) -> String {
        deps().join(self.name).join("bin/python").display().to_string()
    }

    /// What LD_LIBRARY_PATH is to be for its programs, if they need it.
    pub fn library_path(&self) -> Option<PathBuf> {
        self.library_path.map(|path| deps().join(path))
    }

    /// `radic run -n RANKS FLAGS -- COMMAND` with this library. The flags are words separated by blanks.
    pub fn job(&self, cluster: &Cluster, ranks: usize, flags: &str, command: &[&str]) -> Invocation {
        let job = cluster.job(ranks, flags, command);
        match self.library_path() {
            Some(path) => job.env("LD_LIBRARY_PATH", path),
            None => job,
        }
    }
}
