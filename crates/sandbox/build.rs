//! Builds stage2 as a static executable, which the library embeds: one file installs everything, and no search path decides which
//! helper runs.
//!
//! stage2 needs other flags than the rest: it is freestanding, at a fixed address, and has its own entry point. It depends on
//! `exeat-contract` alone, so two calls of the compiler build it. The packages of both name their directories, wherever cargo has put
//! them.
#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    reason = "a build script starts the compiler, and stops the build when it fails"
)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiler flags for both crates. The executable is copied into a memory file at every start, so its size is start-up time.
const COMMON: [&str; 6] = [
    "--edition=2024",
    "--cap-lints=allow",
    "--cfg=freestanding",
    "-Copt-level=s",
    "-Cpanic=abort",
    "-Ctarget-feature=+crt-static",
];

/// Compiler flags for the executable.
const LINKED: [&str; 7] = [
    "--crate-type=bin",
    "--crate-name=stage2",
    "-Clto=fat",
    "-Ccodegen-units=1",
    "-Cstrip=symbols",
    "-Crelocation-model=static",
    "-Clink-args=-nostartfiles -Wl,--no-eh-frame-hdr",
];

fn main() {
    let stage2 = PathBuf::from(variable("DEP_EXEAT_STAGE2_DIRECTORY"));
    let contract = PathBuf::from(variable("DEP_EXEAT_STAGE2_CONTRACT"));
    let out = PathBuf::from(variable("OUT_DIR"));
    println!("cargo::rerun-if-changed=build.rs");
    for sources in [&stage2, &contract] {
        println!("cargo::rerun-if-changed={}", sources.display());
    }

    let library = out.join("libexeat_contract.rlib");
    compile(&contract.join("src/lib.rs"), &library, |rustc| {
        rustc.args(["--crate-type=rlib", "--crate-name=exeat_contract", "-Crelocation-model=static"]);
    });

    let program = out.join("stage2");
    compile(&stage2.join("src/main.rs"), &program, |rustc| {
        rustc.args(LINKED).arg("--extern").arg(format!("exeat_contract={}", library.display()));
        rustc.arg(format!("-Clink-arg=-Wl,-T,{}", stage2.join("sections.ld").display()));
        if variable("CARGO_CFG_TARGET_ENV") == "musl" {
            // Rust brings the files of musl that start a program, and stage2 starts by itself.
            rustc.arg("-Clink-self-contained=no");
        }
        // The one that cargo is configured with, for a target that is not the host.
        if let Ok(linker) = env::var("RUSTC_LINKER") {
            rustc.arg(format!("-Clinker={linker}"));
        }
    });
}

/// Calls the compiler. `flags` adds what this crate needs.
fn compile(source: &Path, to: &Path, flags: impl FnOnce(&mut Command)) {
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.arg(source).arg("-o").arg(to).args(["--target", &variable("TARGET")]).args(COMMON);
    flags(&mut rustc);
    let failed = match rustc.status() {
        Ok(status) if status.success() => return,
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    panic!("cannot build stage2: {}: {failed}", source.display());
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo does not set {name}"))
}
