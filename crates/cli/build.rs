//! Links the unwinder into the binary where that can be done.
//!
//! The C library's loader needs about a tenth of a millisecond for libgcc_s.so, nothing of which is used unless something
//! panics. The same code is in `libgcc_eh.a`, which most compilers come with. Without that the library is loaded as before.
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
    // Another target's linker would have to be asked.
    let native = env::var("HOST").is_ok_and(|host| is("TARGET", &host));
    if native && is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        let Some(archive) = unwinder() else { return };
        // Another linker than this compiler's does not know where that is.
        let Some(dir) = archive.parent() else { return };
        println!("cargo::rerun-if-changed={}", archive.display());
        println!("cargo::rustc-link-search=native={}", dir.display());
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    }
}

/// Where the compiler has the archive: of one that it does not have, it prints the name alone.
fn unwinder() -> Option<PathBuf> {
    let said = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let path = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
    (said.status.success() && path.is_absolute() && path.exists()).then_some(path)
}
