//! The libraries that the dynamic loader would load for a program: ld.so(8) without what no MPI program uses.

use std::collections::VecDeque;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::elf::{self, Elf, Executable};
use crate::mpi::loader::{self, Search};

/// Most libraries that are looked at for one program.
const LIBRARIES: usize = 1024;
/// A library that the program would load.
#[derive(Debug)]
pub(super) struct Library {
    /// Its name, as the file that needs it gives it.
    pub(super) name: String,
    /// The file that needs it.
    pub(super) needed_by: String,
    /// Where it is.
    pub(super) place: Place,
}

/// Where a library is.
#[derive(Debug)]
pub(super) enum Place {
    /// Here.
    Found(PathBuf, Elf),
    /// Nowhere, or only for other machines.
    Missing,
    /// Here, where the loader will find it, but it cannot be read as a library: why.
    Unusable(PathBuf, String),
}

/// All libraries of the program, in the order in which they are loaded. `false` if there are more than a program can need.
pub(super) fn all(
    program: &Path,
    root: &Elf,
    library_path: Option<&OsStr>,
    watched: impl Fn(&str) -> bool + Copy,
) -> (Vec<Library>, bool) {
    let cache = loader::cache();
    let library_path: Vec<PathBuf> = library_path.map(|text| env::split_paths(text).collect()).unwrap_or_default();
    let of = |path: &Path, elf: &Elf, program| Search::of(path, elf.runpath.as_deref(), elf.rpath.as_deref(), program);
    let from_root = of(program, root, None);
    let shown = program.display().to_string();
    let mut queue: VecDeque<(String, String, Search)> =
        root.needed.iter().map(|name| (name.clone(), shown.clone(), from_root.clone())).collect();
    let mut libraries: Vec<Library> = Vec::new();
    while let Some((name, needed_by, search)) = queue.pop_front() {
        if libraries.iter().any(|known| known.name == name) {
            continue;
        }
        if libraries.len() == LIBRARIES {
            return (libraries, false);
        }
        let place = locate(&name, &search, &library_path, &cache, watched);
        if let Place::Found(path, elf) = &place {
            let search = of(path, elf, Some(&from_root));
            queue.extend(elf.needed.iter().map(|next| (next.clone(), name.clone(), search.clone())));
        }
        libraries.push(Library { name, needed_by, place });
    }
    (libraries, true)
}

fn locate(
    name: &str,
    search: &Search,
    library_path: &[PathBuf],
    cache: &[(String, PathBuf)],
    watched: impl Fn(&str) -> bool + Copy,
) -> Place {
    for path in search.candidates(name, library_path, cache) {
        // The loader takes the first that can be opened, but for those of another machine, which it passes over.
        let Ok(meta) = fs::metadata(&path) else { continue };
        if !meta.is_file() {
            return Place::Unusable(path, "it is not a regular file".into());
        }
        match elf::read(&path, watched) {
            Ok(Executable::Elf(elf)) => return Place::Found(path, elf),
            Ok(Executable::Foreign(..)) => {}
            Ok(_) => return Place::Unusable(path, "it is not an ELF file".into()),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
            Err(error) => return Place::Unusable(path, error.to_string()),
        }
    }
    Place::Missing
}
