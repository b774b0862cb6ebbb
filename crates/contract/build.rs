//! Names the directory of this crate for the build of stage2, which compiles it once more: see `build.rs` of `exeat-sandbox`.
#![expect(clippy::disallowed_methods, reason = "cargo hands its settings to build scripts as variables")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::metadata=DIRECTORY={}", std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
}
