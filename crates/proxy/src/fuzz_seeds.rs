//! Runs every committed fuzz seed through the checks of the fuzzer, so that fixed bugs stay fixed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../fuzz/src/checks.rs"]
pub(crate) mod checks;

/// P05 to P09, T03, T10, as far as the seeds reach.
#[test]
fn every_seed_holds() {
    for (name, check) in checks::TARGETS {
        let seeds = list(&fuzz().join("corpus").join(name));
        assert!(seeds.len() > 5, "{name} has no seeds");
        for seed in seeds {
            // The name of the current seed, in case the check panics.
            println!("{}", seed.display());
            check(&fs::read(&seed).unwrap());
        }
    }
}

/// The targets, their programs and their seeds are the same set.
#[test]
fn every_target_has_a_program_and_seeds() {
    let known: BTreeSet<String> = checks::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let stems = |directory: &str| -> BTreeSet<String> {
        let files = list(&fuzz().join(directory)).into_iter();
        files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(stems("src/bin"), known);
    assert_eq!(stems("corpus"), known);
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn list(directory: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}
