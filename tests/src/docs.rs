//! The documents: what they name exists.

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Words that ARCHITECTURE.md may have: it is read in one sitting.
    const WORDS: usize = 3_000;
    /// Where a path may be meant to begin.
    const BASES: [&str; 6] = ["", "protector/src", "preload/src", "observer/src", "tests/sim/src", "tests/sim/src/cluster"];

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
    }

    fn documents() -> Vec<PathBuf> {
        let is_ours = |path: &Path| !["target", ".deps", ".git"].iter().any(|other| path.ends_with(other));
        let mut folders = vec![root().to_owned()];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder").flatten() {
                let (path, kind) = (entry.path(), entry.file_type().expect("a kind"));
                match path.extension() {
                    _ if kind.is_dir() && is_ours(&path) => folders.push(path),
                    Some(extension) if extension == "md" && kind.is_file() => found.push(path),
                    _ => {}
                }
            }
        }
        found
    }

    #[test]
    fn every_relative_link_leads_somewhere() {
        let mut seen = 0;
        for document in documents() {
            let text = fs::read_to_string(&document).expect("text");
            for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let file = target.split('#').next().unwrap_or_default();
                if file.is_empty() || file.contains("://") || file.contains(' ') {
                    continue;
                }
                let place = document.parent().expect("a folder").join(file);
                assert!(place.exists(), "{} links to {target}, which is not there", document.display());
                seen += 1;
            }
        }
        assert!(seen > 50, "{seen} links were found");
    }

    #[test]
    fn architecture_is_short_and_every_file_that_is_named_exists() {
        let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("text");
        let words = text.split_whitespace().count();
        assert!(words <= WORDS, "ARCHITECTURE.md has {words} words");
        let glossary = fs::read_to_string(root().join("docs/glossary.md")).expect("text");
        for (name, text) in [("ARCHITECTURE.md", &text), ("docs/glossary.md", &glossary)] {
            let mut seen = 0;
            for path in text.split('`').skip(1).step_by(2).filter(|word| word.ends_with(".rs") && word.contains('/')) {
                let there = BASES.iter().any(|base| root().join(base).join(path).exists());
                assert!(there, "{name} names {path}, which is not there");
                seen += 1;
            }
            assert!(seen > 20, "{name} names {seen} files");
        }
    }
}
