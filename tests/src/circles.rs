//! No file of a crate needs a file that needs it. Files of one folder, each with the folder of its own name, form no circle; then a reader can take
//! them one after the other, and each can be tested without those above it.
//!
//! A file needs another one if its code names something of that, by a `use` or in a path. Names that a file has from elsewhere lead there. A file and
//! the files in its folder may name each other: they are one thing in several files. Code for tests alone does not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, Item, ItemUse, Macro, UseTree, VisRestricted};

/// The names of modules on the way from the crate's root to one.
type Module = Vec<String>;

/// Names that lead to others, one after the other, at most.
const STEPS: u32 = 16;

/// What the code of one module says.
#[derive(Debug, Default)]
struct Said {
    /// What is defined here.
    items: BTreeSet<String>,
    /// Names from elsewhere, and where they are from.
    imports: BTreeMap<String, Vec<String>>,
    /// Modules of which all names are here, too.
    globs: Vec<Vec<String>>,
    /// All that is named, as it is written.
    paths: BTreeSet<Vec<String>>,
}

/// The modules of one crate.
#[derive(Debug, Default)]
struct Modules {
    /// The file of each module that has one.
    files: BTreeMap<Module, String>,
    said: BTreeMap<Module, Said>,
    /// Modules for tests alone.
    tests: BTreeSet<Module>,
}

/// One file needs another one.
#[derive(Debug, Clone)]
struct Need {
    from: Module,
    to: Module,
    /// What it names, as it is written.
    path: String,
}

/// Reads the code of one module.
struct Reader<'a> {
    at: Module,
    modules: &'a mut Modules,
}

impl Reader<'_> {
    fn said(&mut self) -> &mut Said {
        self.modules.said.entry(self.at.clone()).or_default()
    }

    /// What is named by a part of a `use`, which begins as `path` says.
    fn import(&mut self, mut path: Vec<String>, tree: &UseTree) {
        let (name, last) = match tree {
            UseTree::Path(next) => {
                path.push(next.ident.to_string());
                return self.import(path, &next.tree);
            }
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.import(path.clone(), tree)),
            UseTree::Glob(_) => {
                self.said().paths.insert(path.clone());
                return self.said().globs.push(path);
            }
            UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
            UseTree::Rename(other) => (other.rename.to_string(), other.ident.to_string()),
        };
        let name = if name == "self" { path.last().cloned().unwrap_or_default() } else { name };
        if last != "self" {
            path.push(last);
        }
        self.said().paths.insert(path.clone());
        self.said().imports.insert(name, path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = parts(item);
        let is_test = attributes.iter().any(is_for_tests);
        if let Item::Mod(module) = item {
            self.at.push(module.ident.to_string());
            if is_test {
                self.modules.tests.insert(self.at.clone());
            } else if module.content.is_some() {
                self.said();
                visit::visit_item(self, item);
            }
            self.at.pop();
        } else if !is_test {
            self.said().items.extend(name);
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !function.attrs.iter().any(is_for_tests) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            self.import(Vec::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.said().paths.insert(names);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.said().paths.extend(paths_in(&call.tokens.to_string()));
    }

    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// The attributes of an item, and the name that it defines.
fn parts(item: &Item) -> (&[Attribute], Option<String>) {
    match item {
        Item::Const(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Enum(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Fn(item) => (&item.attrs, Some(item.sig.ident.to_string())),
        Item::Impl(item) => (&item.attrs, None),
        Item::Macro(item) => (&item.attrs, item.ident.as_ref().map(ToString::to_string)),
        Item::Mod(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Static(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Struct(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Trait(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Type(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Union(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Use(item) => (&item.attrs, None),
        _ => (&[], None),
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    let is_cfg = attribute.path().is_ident("cfg");
    attribute.path().is_ident("test") || is_cfg && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
}

/// The paths of more than one name in what a macro is given, which may be no Rust. Text between quotes has none.
fn paths_in(tokens: &str) -> Vec<Vec<String>> {
    let code: String = tokens.replace("\\\"", "").split('"').step_by(2).collect::<Vec<_>>().join(" ; ");
    let joined = code.replace(" ::", "::").replace(":: ", "::");
    let words = joined.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    let paths = words.map(|word| word.trim_matches(':').split("::").map(str::to_owned).collect::<Vec<_>>());
    paths.filter(|path| path.len() > 1 && path.iter().all(|name| !name.is_empty())).collect()
}

/// The module that a file is, by its path below the crate's `src`.
fn module_of(path: &str) -> Module {
    let mut names: Module = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if names.last().is_some_and(|last| last == "mod") || ["lib", "main"].contains(&names.join("/").as_str()) {
        names.pop();
    }
    names
}

impl Modules {
    /// The modules of a crate with these files: their paths below `src`, and what is in them.
    fn read(files: &[(String, String)]) -> Modules {
        let mut modules = Modules::default();
        for (path, text) in files {
            let at = module_of(path);
            let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path} is no Rust: {error}"));
            modules.files.insert(at.clone(), path.clone());
            modules.said.entry(at.clone()).or_default();
            Reader { at, modules: &mut modules }.visit_file(&file);
        }
        modules
    }

    /// The module in which that is which `path` names in module `at`. None: it is of another crate, or a local name.
    fn find(&self, at: &[String], path: &[String], is_first: bool, steps: u32) -> Option<Module> {
        let Some((first, rest)) = path.split_first() else { return Some(at.to_vec()) };
        let steps = steps.checked_sub(1)?;
        match first.as_str() {
            "crate" => return self.find(&[], rest, false, steps),
            "self" => return self.find(at, rest, false, steps),
            "super" => return self.find(at.split_last()?.1, rest, false, steps),
            _ => {}
        }
        let (child, said) = ([at, std::slice::from_ref(first)].concat(), self.said.get(at)?);
        if self.said.contains_key(&child) {
            return self.find(&child, rest, false, steps);
        }
        if said.items.contains(first) {
            return Some(at.to_vec());
        }
        if let Some(import) = said.imports.get(first) {
            return self.find(at, &[&import[..], rest].concat(), true, steps);
        }
        let by_glob = |glob: &Vec<String>| {
            let there = self.find(at, glob, true, steps).filter(|there| self.has(there, first))?;
            self.find(&there, path, false, steps)
        };
        // What a macro defines is not seen.
        said.globs.iter().find_map(by_glob).or_else(|| (!is_first).then(|| at.to_vec()))
    }

    /// Whether a module has something of this name.
    fn has(&self, module: &[String], name: &str) -> bool {
        let child = [module, &[name.to_owned()]].concat();
        let said = self.said.get(module);
        self.said.contains_key(&child) || said.is_some_and(|said| said.items.contains(name) || said.imports.contains_key(name))
    }

    /// The innermost module around this one that is a file.
    fn file_of(&self, module: &[String]) -> Option<Module> {
        (0..=module.len())
            .rev()
            .map(|length| &module[..length])
            .find(|part| self.files.contains_key(*part))
            .map(<[String]>::to_vec)
    }

    fn is_for_tests(&self, module: &[String]) -> bool {
        self.tests.iter().any(|test| module.starts_with(test))
    }

    /// Which file needs which other one, but for those in folders of each other.
    fn needs(&self) -> Vec<Need> {
        let mut needs = Vec::new();
        for (module, said) in self.said.iter().filter(|(module, _)| !self.is_for_tests(module)) {
            for path in &said.paths {
                let to = self.find(module, path, true, STEPS).and_then(|to| self.file_of(&to));
                let (Some(from), Some(to)) = (self.file_of(module), to) else { continue };
                if !from.starts_with(&to) && !to.starts_with(&from) && !self.is_for_tests(&to) {
                    needs.push(Need { from, to, path: path.join("::") });
                }
            }
        }
        needs
    }

    /// What each circle consists of: of every file in a circle the shortest one, and none twice.
    fn circles(&self) -> Vec<Vec<Need>> {
        let mut graph: BTreeMap<Module, BTreeMap<Module, Need>> = BTreeMap::new();
        for need in self.needs() {
            // Those of one folder in which the two are.
            let common = need.from.iter().zip(&need.to).take_while(|(one, other)| one == other).count();
            let (one, other) = (need.from[..=common].to_vec(), need.to[..=common].to_vec());
            let known = graph.entry(one).or_default().entry(other).or_insert_with(|| need.clone());
            // A `use` says more than the name that it gives.
            if need.path.len() > known.path.len() {
                *known = need;
            }
        }
        let (mut circles, mut known) = (Vec::new(), BTreeSet::new());
        for start in graph.keys() {
            let Some(circle) = shortest(&graph, start).filter(|_| !known.contains(start)) else { continue };
            known.extend(circle.iter().map(|(one, _)| one.clone()));
            circles.push(circle.into_iter().map(|(_, need)| need).collect());
        }
        circles
    }

    /// The same in words.
    fn complaints(&self, folder: &str) -> Vec<String> {
        let file = |module: &Module| format!("{folder}/{}", self.files[module]);
        let step = |need: &Need| format!("  {} needs {}, for it names {}", file(&need.from), file(&need.to), need.path);
        let circle = |needs: &Vec<Need>| needs.iter().map(step).collect::<Vec<_>>().join("\n");
        self.circles().iter().map(|needs| format!("files form a circle:\n{}", circle(needs))).collect()
    }
}

/// The shortest way from `start` back to it, with what each step is made for.
fn shortest(graph: &BTreeMap<Module, BTreeMap<Module, Need>>, start: &Module) -> Option<Vec<(Module, Need)>> {
    let (mut before, mut queue) = (BTreeMap::<&Module, (&Module, &Need)>::new(), VecDeque::from([start]));
    while let Some(at) = queue.pop_front() {
        for (next, need) in graph.get(at).into_iter().flatten() {
            if !before.contains_key(next) {
                before.insert(next, (at, need));
                queue.push_back(next);
            }
        }
    }
    let (mut way, mut at) = (Vec::new(), start);
    loop {
        let (last, need) = before.get(at)?;
        way.push(((*last).clone(), (*need).clone()));
        at = last;
        if at == start {
            way.reverse();
            return Some(way);
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository")
}

/// The folders of the workspace's crates, as its Cargo.toml has them; but for the simulator, whose parts are one world that each of them changes.
fn crates() -> Vec<String> {
    let text = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace's Cargo.toml");
    let members = text.lines().find_map(|line| line.strip_prefix("members = ")).expect("members in one line");
    members.split('"').skip(1).step_by(2).filter(|folder| *folder != "tests/sim").map(str::to_owned).collect()
}

/// The Rust files in a folder and below it: their paths within `src`, and what is in them.
fn sources(src: &Path, below: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(src.join(below)).unwrap_or_else(|error| panic!("{}: {error}", src.join(below).display())) {
        let entry = entry.expect("its name");
        let name = format!("{below}{}", entry.file_name().to_str().expect("a name of letters"));
        if entry.path().is_dir() {
            files.extend(sources(src, &format!("{name}/")));
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(entry.path()).expect("a file of text");
            files.push((name, text));
        }
    }
    files
}

fn of_crate(folder: &str) -> Modules {
    Modules::read(&sources(&root().join(folder).join("src"), ""))
}

#[test]
fn files_form_no_circle() {
    let complaints: Vec<String> =
        crates().iter().flat_map(|folder| of_crate(folder).complaints(&format!("{folder}/src"))).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// What happens in a call of the program is below the hooks, which only lead there.
#[test]
fn only_the_constructor_of_the_library_needs_its_hooks() {
    let of_hooks = |need: &Need| need.to[0] == "hooks" && !["hooks", "start"].contains(&need.from[0].as_str());
    let needs: Vec<Need> = of_crate("preload").needs().into_iter().filter(of_hooks).collect();
    assert!(needs.is_empty(), "{needs:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Modules::read(&files).complaints("x/src")
    }

    #[test]
    fn a_circle_by_uses_is_found_and_named() {
        let files = [
            ("lib.rs", "mod one; mod two; mod three; mod apart;"),
            ("one.rs", "use crate::two::{self, Two}; pub struct One;"),
            ("two.rs", "use super::three::Three as Other; pub struct Two;"),
            ("three.rs", "use crate::one::One; pub struct Three;"),
            ("apart.rs", "use crate::one::One;"),
        ];
        let expected = "files form a circle:\n  x/src/one.rs needs x/src/two.rs, for it names crate::two::Two\n  \
                        x/src/two.rs needs x/src/three.rs, for it names super::three::Three\n  \
                        x/src/three.rs needs x/src/one.rs, for it names crate::one::One";
        assert_eq!(complaints(&files), [expected]);
    }

    #[test]
    fn a_circle_by_a_path_in_an_expression_is_found() {
        let by = |text: &str| {
            let files = [("lib.rs", "mod one; mod two;"), ("one.rs", "pub fn one() {}"), ("two.rs", text)];
            let one = ("one.rs", "pub fn one() { crate::two::two() }");
            (complaints(&files), complaints(&[files[0], one, files[2]]))
        };
        for text in ["pub fn two() { super::one::one() }", "pub fn two() { assert!(crate::one::one() == (), \"a \\\" b\"); }"] {
            let (without, with) = by(text);
            assert!(without.is_empty() && with.len() == 1, "{text}: {without:?} {with:?}");
            assert!(with[0].contains("x/src/two.rs needs x/src/one.rs, for it names"), "{with:?}");
        }
        let (_, said) = by("pub fn two() { println!(\"crate::one::one\") }");
        assert!(said.is_empty(), "a text: {said:?}");
    }

    /// Where a name is from counts, not the file by which it comes.
    #[test]
    fn a_circle_through_the_folder_s_file_is_found() {
        let lib = ("lib.rs", "mod a;");
        let one = ("a/one.rs", "use super::Two; pub struct One;");
        let two = ("a/two.rs", "use super::*; pub struct Two(One);");
        let found = complaints(&[lib, ("a/mod.rs", "mod one; mod two; pub use one::One; pub use two::Two;"), one, two]);
        assert!(found.len() == 1 && found[0].contains("x/src/a/one.rs needs x/src/a/two.rs"), "{found:?}");
    }

    #[test]
    fn a_circle_of_folders_is_found() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod low; mod high; pub use low::LOW;"),
            ("a/low.rs", "pub const LOW: u8 = 1;"),
            ("a/high.rs", "use crate::b::b;"),
            ("b.rs", "use crate::a::LOW; pub fn b() {}"),
        ];
        let found = complaints(&files);
        assert!(
            found.len() == 1 && found[0].contains("x/src/b.rs needs x/src/a/low.rs, for it names crate::a::LOW"),
            "{found:?}"
        );
    }

    #[test]
    fn a_folder_and_its_file_are_one_thing_and_tests_do_not_count() {
        let files = [
            ("lib.rs", "mod a; mod b; pub fn top() { a::one() }"),
            ("a.rs", "mod inner; #[cfg(test)] mod tests; pub fn one() { inner::two() }"),
            ("a/inner.rs", "pub fn two() { super::one(); crate::top() }"),
            ("a/tests.rs", "use crate::b::b;"),
            ("b.rs", "use crate::a::one; use radic_wire::a; pub fn b() {} #[cfg(test)] mod tests { use crate::b::b; }"),
        ];
        assert_eq!(complaints(&files), Vec::<String>::new());
    }
}
