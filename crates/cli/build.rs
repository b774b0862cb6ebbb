//! Links the unwinder into the binary where that can be done.
//!
//! The C library's loader needs about a tenth of a millisecond for libgcc_s.so, nothing of which is used unless something
//! panics. The same code is in `libgcc_eh.a`, which most compilers come with. Without that the library is loaded as before.
#![expect(clippy::disallowed_methods, reason = "a build script asks the compiler")]

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|it| it == value);
    // Another target's linker would have to be asked.
    let native = env::var("HOST").is_ok_and(|host| is("TARGET", &host));
    if native && is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") && has_unwinder() {
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    }
}

/// Whether the linker has the archive: for one that it does not have, it prints the name alone.
fn has_unwinder() -> bool {
    let Ok(said) = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output() else { return false };
    let path = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    said.status.success() && Path::new(&path).is_absolute() && Path::new(&path).exists()
}
