//! The fuzzer's checks without a fuzzer: they accept their first inputs, and hold for some changes of them. With RADIC_FUZZ_CORPUS, a folder, the first inputs are
//! put there, in a folder for each.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use radic_fuzz::TARGETS;

#[test]
fn the_first_inputs_are_accepted() {
    let corpus = std::env::var_os("RADIC_FUZZ_CORPUS").map(PathBuf::from);
    for target in TARGETS.iter() {
        for (name, input) in (target.first)() {
            assert!((target.check)(&input), "{} of {}", name, target.name);
            assert!(input.len() <= target.longest, "{} of {}", name, target.name);
            if let Some(folder) = corpus.as_ref().map(|corpus| corpus.join(target.name)) {
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join(name), &input).unwrap();
            }
        }
    }
    if let Some(corpus) = corpus {
        let list: String = TARGETS.iter().map(|target| format!("{} {}\n", target.name, target.longest)).collect();
        fs::write(corpus.join("list"), list).unwrap();
    }
}

proptest! {
    #[test]
    fn changed_inputs_do_no_harm(
        which in any::<prop::sample::Index>(),
        input in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let target = which.get(&TARGETS[..]);
        let mut inputs = (target.first)();
        let mut input = inputs.swap_remove(input.index(inputs.len())).1;
        for (at, value) in changes {
            let at = at.index(input.len());
            input[at] = value;
        }
        input.truncate(cut.map_or(input.len(), |cut| cut.index(input.len())));
        (target.check)(&input);
    }
}
