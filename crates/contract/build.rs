//! Names the directory of this crate for the build of stage2, which compiles it once more: see `build.rs` of `exeat-sandbox`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::metadata=DIRECTORY={}", std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
}
