//! Finds the libraries that this program needs in a minimal view.

use std::fs;
use std::path::PathBuf;

/// Returns the files of this program besides its executable: those that are mapped as executable (proc_pid_maps(5)).
pub(super) fn libraries() -> Vec<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mapped = maps.lines().filter(|line| line.contains(" r-xp ")).filter_map(|line| line.split_once('/'));
    let mut files: Vec<PathBuf> = mapped.map(|(_, path)| PathBuf::from(format!("/{path}"))).collect();
    let own = std::env::current_exe().unwrap_or_default();
    files.retain(|file| *file != own);
    files.sort();
    files.dedup();
    files
}

/// Returns the words that start a program whose loader and libraries are not at their usual paths (ld.so(8)), as in a view that
/// shows only named paths and so lacks the links to them.
pub(super) fn loader() -> Vec<PathBuf> {
    let files = libraries();
    let named =
        |file: &&PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-"));
    let Some(loader) = files.iter().find(named) else { return Vec::new() };
    let mut directories: Vec<_> = files.iter().filter_map(|file| file.parent()?.to_str()).collect();
    directories.sort_unstable();
    directories.dedup();
    vec![loader.clone(), "--library-path".into(), directories.join(":").into()]
}
