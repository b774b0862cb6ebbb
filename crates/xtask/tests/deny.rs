//! Checks the dependencies against `.deny.toml`: licenses, banned crates and sources, from cargo's metadata.
//!
//! `cargo deny check` reads the same file, and also checks the advisories, which needs the Internet.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test's helpers fail the test")]
#![expect(clippy::disallowed_methods, reason = "asks cargo about the tree")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// The default registry of cargo.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[test]
fn every_dependency_is_one_that_the_lists_let_in() {
    let wrong = faults(&metadata(), &lists());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Plants each kind of fault in the real metadata of this tree.
#[test]
fn each_fault_is_found() {
    let plant = |change: &dyn Fn(&mut Value)| {
        let mut metadata = metadata();
        let packages = metadata["packages"].as_array_mut().unwrap();
        let planted = packages.iter_mut().find(|package| package["name"] == "ring").unwrap();
        change(planted);
        faults(&metadata, &lists())
    };
    for (field, value, said) in [
        ("license", json!("GPL-3.0"), "ring: the license GPL-3.0"),
        ("license", json!("MIT AND (GPL-3.0 OR LGPL-2.1)"), "ring: the license MIT AND"),
        ("license", Value::Null, "ring: no license"),
        ("name", json!("openssl-sys"), "openssl-sys: banned"),
        ("source", json!("git+https://example.com/ring"), "ring: comes from git+"),
        ("source", json!("registry+https://example.com/index"), "ring: comes from registry+"),
        ("dependencies", json!([{"name": "a", "req": "*", "source": CRATES_IO}]), "ring: any version of a"),
        ("source", Value::Null, "ring: comes from a directory"),
    ] {
        let found = plant(&|package| package[field] = value.clone());
        assert!(found.len() == 1 && found[0].starts_with(said), "{field} {value}: {found:?}");
    }
}

/// Lists what is wrong, one line each.
fn faults(metadata: &Value, lists: &toml::Table) -> Vec<String> {
    let allowed: Vec<&str> =
        lists["licenses"]["allow"].as_array().unwrap().iter().filter_map(toml::Value::as_str).collect();
    let banned: Vec<&str> = lists["bans"]["deny"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["crate"].as_str().unwrap())
        .collect();
    assert!(!allowed.is_empty() && !banned.is_empty());
    for rule in ["unknown-registry", "unknown-git"] {
        assert_eq!(lists["sources"][rule].as_str(), Some("deny"), "{rule}");
    }
    let ours = root();
    let mut faults = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let mut fault = |what: String| faults.push(format!("{name}: {what}"));
        match package["license"].as_str() {
            Some(license) if is_allowed(license, &allowed) => (),
            Some(license) => fault(format!("the license {license} is not among those of .deny.toml")),
            None => fault("no license is named".to_owned()),
        }
        if banned.contains(&name) {
            fault("banned by .deny.toml".to_owned());
        }
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
        match package["source"].as_str() {
            Some(CRATES_IO) => (),
            Some(source) => fault(format!("comes from {source}")),
            None if manifest.starts_with(&ours) => (),
            None => fault(format!("comes from a directory outside the repository: {}", manifest.display())),
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            if dependency["req"] == "*" && !dependency["source"].is_null() {
                fault(format!("any version of {} will do", dependency["name"].as_str().unwrap()));
            }
        }
    }
    faults
}

/// Returns whether the allowed licenses meet an SPDX expression: `OR` needs one side, `AND` both, and `/` is an old
/// `OR`.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let expression = expression.trim();
    for (operator, needs_both) in [(" OR ", false), ("/", false), (" AND ", true)] {
        if let Some((left, right)) = split(expression, operator) {
            let met = [left, right].map(|side| is_allowed(side, allowed));
            return if needs_both { met == [true, true] } else { met != [false, false] };
        }
    }
    match expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(inner) => is_allowed(inner, allowed),
        None => allowed.contains(&expression),
    }
}

/// Splits at the first operator that is outside of parentheses.
fn split<'a>(expression: &'a str, operator: &str) -> Option<(&'a str, &'a str)> {
    expression.match_indices(operator).map(|(at, _)| expression.split_at(at)).find_map(|(left, right)| {
        let is_outside = left.matches('(').count() == left.matches(')').count();
        is_outside.then(|| (left, right.strip_prefix(operator).unwrap()))
    })
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let words = ["metadata", "--format-version", "1", "--locked", "--offline"];
    let output = Command::new(cargo).args(words).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn lists() -> toml::Table {
    fs::read_to_string(root().join(".deny.toml")).unwrap().parse().unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}
