//! Links the unwinder into the binary if possible.
//!
//! The C library's loader needs about a tenth of a millisecond for libgcc_s.so, which is not used unless something
//! panics. Most compilers come with the same code in `libgcc_eh.a`. Without that archive the library is loaded as usual.
#![expect(clippy::disallowed_methods, reason = "a build script asks the compiler")]

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["PATH", "RUSTC_LINKER"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|it| it == value);
    // For another target, `cc` is not the linker to ask.
    let native = env::var("HOST").is_ok_and(|host| is("TARGET", &host));
    if native && is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        let Some(archive) = unwinder() else { return };
        // A linker other than this compiler's does not search this directory.
        let Some(dir) = archive.parent() else { return };
        println!("cargo::rerun-if-changed={}", archive.display());
        println!("cargo::rustc-link-search=native={}", dir.display());
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    }
}

/// Returns the path of the compiler's archive. Without the archive the compiler prints only its name.
fn unwinder() -> Option<PathBuf> {
    let said = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let path = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
    (said.status.success() && path.is_absolute() && path.exists()).then_some(path)
}
