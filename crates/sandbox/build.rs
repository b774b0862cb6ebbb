//! Builds stage2 as a static executable, which the library embeds: one file installs everything, and no search path
//! decides which helper runs.
//!
//! A nested cargo with a target directory of its own, because stage2 needs other flags than the rest: it is freestanding,
//! at a fixed address, and has an entry of its own.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a build script starts cargo, and stops the build when it fails"
)]

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// How stage2 is built. `freestanding` is what its own code asks for.
const FLAGS: [&str; 6] = [
    "--cfg=freestanding",
    "-Ctarget-feature=+crt-static",
    "-Crelocation-model=static",
    "-Clink-arg=-nostartfiles",
    // As for the tables themselves, in stage2/sections.ld.
    "-Clink-arg=-Wl,--no-eh-frame-hdr",
    "-Clink-arg=-T",
];

/// What the last flag takes, below the workspace's root.
const SECTIONS: &str = "stage2/sections.ld";

fn main() {
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| unreachable!("cargo sets {name}"));
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    let target = variable("TARGET");
    let target_dir = PathBuf::from(variable("OUT_DIR")).join("stage2");

    for watched in ["stage2", "crates/contract", "Cargo.lock", "Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", root.join(watched).display());
    }

    let mut flags = format!("{}\u{1f}-Clink-arg={}", FLAGS.join("\u{1f}"), root.join(SECTIONS).display());
    if variable("CARGO_CFG_TARGET_ENV") == "musl" {
        // Rust brings the files of musl's that start a program, and stage2 starts by itself.
        flags.push_str("\u{1f}-Clink-self-contained=no");
    }
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args(["build", "--package", "exeat-stage2", "--profile", "stage2", "--locked", "--target"])
        .arg(&target)
        .arg("--target-dir")
        .arg(&target_dir)
        .current_dir(&root)
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        // A lint run of the workspace must not lint here: its driver would replace the compiler.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("CARGO_MAKEFLAGS");
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "cannot build stage2");

    let built = target_dir.join(&target).join("stage2/stage2");
    println!("cargo::rustc-env=EXEAT_STAGE2={}", built.display());
}
