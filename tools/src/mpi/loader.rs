//! Where the dynamic loader would find a library: ld.so(8), as far as it matters for telling one libmpi from another.

use std::collections::{HashSet, VecDeque};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::elf::{self, Elf, Program};
use super::environment::Environment;

/// Most libraries that are looked at for one program.
const LIBRARIES: usize = 1024;
/// Largest /etc/ld.so.cache that is read, in bytes.
const CACHE: u64 = 64 << 20;
/// Where the loader looks last. Debian's own directories come first, as its loader has them built in.
const DEFAULTS: [&str; 6] = ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// A library that the program would load.
#[derive(Debug)]
pub(super) struct Library {
    /// Its name, as the file that needs it gives it.
    pub(super) name: String,
    /// Where it is, if it is anywhere.
    pub(super) found: Option<(PathBuf, Elf)>,
}

/// Finds libraries for one program.
#[derive(Debug)]
pub(super) struct Loader<'a> {
    program: &'a Path,
    root: &'a Elf,
    library_path: Vec<PathBuf>,
    preload: Vec<String>,
    /// Name and path, from /etc/ld.so.cache.
    cache: Vec<(String, PathBuf)>,
}

impl<'a> Loader<'a> {
    /// The loader of the ELF file `root` at `program`.
    pub(super) fn new(program: &'a Path, root: &'a Elf, environment: &Environment<'_>) -> Self {
        let library_path = environment.get("LD_LIBRARY_PATH").map(|text| env::split_paths(text).collect()).unwrap_or_default();
        let preload = environment.get("LD_PRELOAD").map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
        let preload = preload.split([' ', ':']).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Loader { program, root, library_path, preload, cache: cache() }
    }

    /// The libraries of the program in the order in which the loader takes them, until one is `wanted`.
    pub(super) fn find(&self, wanted: impl Fn(&str) -> bool) -> Option<Library> {
        let mut seen = HashSet::new();
        let of = |path: &Path, elf: &Elf, program| Search::of(path, elf.runpath.as_deref(), elf.rpath.as_deref(), program);
        let from_root = of(self.program, self.root, None);
        let first = self.preload.iter().chain(&self.root.needed);
        let mut queue: VecDeque<(String, Search)> = first.map(|name| (name.clone(), from_root.clone())).collect();
        while let Some((name, search)) = queue.pop_front() {
            if !seen.insert(name.clone()) || seen.len() > LIBRARIES {
                continue;
            }
            let found = self.locate(&name, &search);
            if wanted(&name) {
                return Some(Library { name, found });
            }
            if let Some((path, elf)) = found {
                let search = of(&path, &elf, Some(&from_root));
                queue.extend(elf.needed.into_iter().map(|name| (name, search.clone())));
            }
        }
        None
    }

    /// The first file for `name` of the program's own class and machine, for a file that is searched for by `search`.
    fn locate(&self, name: &str, search: &Search) -> Option<(PathBuf, Elf)> {
        search.candidates(name, &self.library_path, &self.cache).into_iter().find_map(|path| self.fits(path))
    }

    fn fits(&self, path: PathBuf) -> Option<(PathBuf, Elf)> {
        match elf::read(&path) {
            Ok(Program::Elf(elf)) if elf.kind == self.root.kind => Some((path, elf)),
            _ => None,
        }
    }
}

/// The first library that is `wanted` of those that `program` would load if it were started by this process; none if that is no file.
pub(crate) fn library_of(program: &Path, wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let Ok(Program::Elf(root)) = elf::read(program) else { return None };
    let inherited: Vec<_> = env::vars_os().collect();
    let environment = Environment { inherited: &inherited, explicit: &[] };
    let (path, _) = Loader::new(program, &root, &environment).find(wanted)?.found?;
    Some(path)
}

/// The folders that a file names for what it needs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Search {
    /// DT_RPATH, its own and the program's: before the user's LD_LIBRARY_PATH.
    before: Vec<PathBuf>,
    /// DT_RUNPATH, its own only: after it. A file that has one has no DT_RPATH, not even the program's.
    after: Vec<PathBuf>,
}

impl Search {
    /// That of the ELF file at `path`, which is the program or is loaded for it.
    pub(crate) fn of(path: &Path, runpath: Option<&str>, rpath: Option<&str>, program: Option<&Search>) -> Self {
        if let Some(text) = runpath {
            return Search { before: Vec::new(), after: folders(path, text) };
        }
        let mut before = rpath.map(|text| folders(path, text)).unwrap_or_default();
        before.extend(program.into_iter().flat_map(|program| program.before.clone()));
        Search { before, after: Vec::new() }
    }

    /// Where the loader looks for `name`, in order.
    pub(crate) fn candidates(&self, name: &str, library_path: &[PathBuf], cache: &[(String, PathBuf)]) -> Vec<PathBuf> {
        if name.contains('/') {
            return vec![PathBuf::from(name)];
        }
        let folders = self.before.iter().chain(library_path).chain(&self.after).map(|folder| folder.join(name));
        let cached = cache.iter().filter(|(known, _)| known == name).map(|(_, path)| path.clone());
        folders.chain(cached).chain(DEFAULTS.iter().map(|folder| Path::new(folder).join(name))).collect()
    }
}

/// The folders in `text`. Of the loader's variables only $ORIGIN is known; folders with others are left out.
fn folders(path: &Path, text: &str) -> Vec<PathBuf> {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let origin = real.parent().map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
    let expanded = text.split(':').map(|folder| folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin));
    expanded.filter(|folder| !folder.is_empty() && !folder.contains('$')).map(PathBuf::from).collect()
}

/// Names and paths of this machine's /etc/ld.so.cache.
pub(crate) fn cache() -> Vec<(String, PathBuf)> {
    let small = fs::metadata("/etc/ld.so.cache").is_ok_and(|meta| meta.is_file() && meta.len() <= CACHE);
    parse_cache(&if small { fs::read("/etc/ld.so.cache").unwrap_or_default() } else { Vec::new() })
}

/// Names and paths of an ld.so.cache, none if it is not of the format that glibc writes since 2.32. (Older ones put the same behind a table
/// of another kind; the default directories serve then.)
fn parse_cache(bytes: &[u8]) -> Vec<(String, PathBuf)> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    let number = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes);
    let string = |at: usize| {
        let rest = bytes.get(at..)?;
        let rest = &rest[..rest.len().min(4096)];
        std::str::from_utf8(&rest[..rest.iter().position(|&c| c == 0)?]).ok()
    };
    let Some(count) = number(MAGIC.len()).filter(|_| bytes.starts_with(MAGIC)) else { return Vec::new() };
    let entry = |i: usize| {
        let at = HEADER + i * ENTRY;
        let (name, path) = (number(at + 4)? as usize, number(at + 8)? as usize);
        Some((string(name)?.to_owned(), PathBuf::from(string(path)?)))
    };
    (0..count as usize).take(bytes.len() / ENTRY).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A cache as ldconfig writes it.
    fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
        bytes.extend((entries.len() as u32).to_ne_bytes());
        bytes.resize(48, 0);
        let mut strings = Vec::new();
        let base = 48 + 24 * entries.len();
        for (name, path) in entries {
            let at = (base + strings.len()) as u32;
            let numbers = [3, at, at + name.len() as u32 + 1, 0, 0, 0];
            bytes.extend(numbers.iter().flat_map(|n| n.to_ne_bytes()));
            strings.extend([name.as_bytes(), b"\0", path.as_bytes(), b"\0"].concat());
        }
        [bytes, strings].concat()
    }

    #[test]
    fn the_cache_is_read() {
        let entries = [("libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6"), ("libmpi.so.40", "/usr/lib/libmpi.so.40")];
        let expected: Vec<_> = entries.iter().map(|(n, p)| ((*n).to_owned(), PathBuf::from(p))).collect();
        assert_eq!(parse_cache(&cache(&entries)), expected);
        assert_eq!(parse_cache(b"ld.so-1.7.0"), []);
    }

    proptest! {
        #[test]
        fn a_broken_cache_does_no_harm(cut in 0usize..200, at in 20usize..150, byte: u8) {
            let mut bytes = cache(&[("a", "/a"), ("b", "/b")]);
            let end = bytes.len();
            bytes[at.min(end - 1)] = byte;
            bytes.truncate(end.saturating_sub(cut));
            prop_assert!(parse_cache(&bytes).len() <= bytes.len() / 24);
        }
    }
}
