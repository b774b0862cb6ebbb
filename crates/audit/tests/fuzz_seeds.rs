//! Runs every committed seed of the fuzz targets through the fuzzer's checks, so that no old failure returns.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "helpers of tests may fail loudly, and the checks are a separate crate"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../fuzz/src/lib.rs"]
mod checks;

#[test]
fn every_seed_holds() {
    for (name, check) in checks::TARGETS {
        let mut seeds: Vec<PathBuf> = list(&fuzz().join("corpus").join(name)).into_iter().collect();
        seeds.sort();
        assert!(seeds.len() > 5, "{name} has no seeds");
        for seed in seeds {
            // Name the current seed in the output of a panic.
            println!("{}", seed.display());
            check(&fs::read(&seed).unwrap());
        }
    }
}

/// Every target has a program and seeds, and every program and directory of seeds belongs to a target.
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
