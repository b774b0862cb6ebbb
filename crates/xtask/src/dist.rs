//! Makes what others install: one static executable, and the cargo packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{needs, steps, tree};

const MUSL: &str = "x86_64-unknown-linux-musl";

/// The result of a build on this machine.
pub(crate) enum Built {
    /// The executable.
    At(PathBuf),
    /// The reason why this machine cannot make the executable.
    Nothing(String),
}

/// Makes the static executable, and prints where it is.
pub(crate) fn dist() -> Result<(), String> {
    match static_executable()? {
        Built::At(exeat) => {
            let size = fs::metadata(&exeat).map_err(|error| error.to_string())?.len();
            println!(
                "{} ({:.1} MB); its SHA-256 is in the same directory",
                exeat.display(),
                size as f64 / 1e6
            );
            Ok(())
        }
        Built::Nothing(why) => Err(why),
    }
}

/// Makes one static executable and its checksum in `target/dist`.
pub(crate) fn static_executable() -> Result<Built, String> {
    if !steps::rustup(&["target", "add", MUSL]) {
        return Ok(Built::Nothing(format!("rustup cannot install {MUSL}")));
    }
    if tree::program("musl-gcc").is_none() {
        needs::install_packages(&["musl-tools"])?;
    }
    steps::finish(
        tree::cargo().args(["build", "--release", "--locked", "-p", "exeat-cli", "--target", MUSL]),
        "the build",
    )?;
    let target = tree::target()?;
    let name = format!("exeat-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let dist = target.join("dist");
    let exeat = dist.join(&name);
    let error = |error: std::io::Error| format!("{}: {error}", exeat.display());
    fs::create_dir_all(&dist).map_err(error)?;
    fs::copy(target.join(MUSL).join("release/exeat"), &exeat).map_err(error)?;
    let headers = Command::new("readelf").args(["-lW"]).arg(&exeat).output().map_err(error)?;
    if !headers.status.success() || String::from_utf8_lossy(&headers.stdout).contains("INTERP") {
        return Err(format!("{} is not static", exeat.display()));
    }
    let sum = Command::new("sha256sum").arg(&name).current_dir(&dist).output().map_err(error)?;
    fs::write(dist.join(format!("{name}.sha256")), sum.stdout).map_err(error)?;
    Ok(Built::At(exeat))
}

/// Packages every crate that others may use, and builds the command from the packages alone, outside of the repository
/// and offline.
pub(crate) fn packages(place: &Path) -> Result<(), String> {
    let error = |error: std::io::Error| format!("{}: {error}", place.display());
    if place.exists() {
        fs::remove_dir_all(place).map_err(error)?;
    }
    fs::create_dir_all(place).map_err(error)?;
    let sources = place.join("sources");
    // Skips the build of each package: the build below covers all packages at once.
    let mut package = tree::cargo();
    package.args(["package", "--workspace", "--exclude", "xtask", "--exclude", "e2e", "--no-verify"]);
    steps::finish(package.args(["--allow-dirty", "--target-dir"]).arg(place), "the packaging")?;
    let mut vendor = tree::cargo();
    vendor.args(["vendor", "--locked", "--versioned-dirs"]).arg(&sources).stdout(std::process::Stdio::null());
    steps::finish(&mut vendor, "the copy of the dependencies")?;

    for package in fs::read_dir(place.join("package")).map_err(error)? {
        let package = package.map_err(error)?.path();
        if package.extension().is_some_and(|extension| extension == "crate") {
            let mut tar = Command::new("tar");
            steps::finish(tar.arg("xf").arg(&package).arg("-C").arg(&sources), "the unpacking")?;
            let unpacked = sources.join(package.file_stem().unwrap_or_default());
            // A directory source wants this file of each package (Cargo book, "Source Replacement").
            fs::write(unpacked.join(".cargo-checksum.json"), r#"{"files":{}}"#).map_err(error)?;
        }
    }
    let empty = place.join("empty");
    fs::create_dir_all(&empty).map_err(error)?;
    let version = env!("CARGO_PKG_VERSION");
    let mut install = tree::cargo();
    install.current_dir(&empty).args(["install", "--offline", "--debug", "exeat-cli", "--version", version]);
    install.args(["--config", "source.crates-io.replace-with='packages'", "--config"]);
    install.arg(format!("source.packages.directory='{}'", sources.display()));
    install.arg("--root").arg(place.join("installed")).arg("--target-dir").arg(place.join("build"));
    steps::finish(&mut install, "the installation from the packages")?;
    let mut exeat = Command::new(place.join("installed/bin/exeat"));
    steps::finish(exeat.args(["run", "--", "true"]).current_dir(&empty), "a run of what was installed")
}
