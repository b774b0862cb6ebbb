//! Names the directories of the sources of stage2 for `build.rs` of `exeat-sandbox`, which compiles them.

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::metadata=DIRECTORY={}", var("CARGO_MANIFEST_DIR").unwrap_or_default());
    println!("cargo::metadata=CONTRACT={}", var("DEP_EXEAT_CONTRACT_DIRECTORY").unwrap_or_default());
}
