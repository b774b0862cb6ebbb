//! Evaluates all tasks of a directory at the same time, each in its own sandbox, and prints each outcome as a line of JSON.
//!
//! A task is a subdirectory with an executable, `NAME/task`. Beside it, `NAME.toml` is its policy and `NAME.log` gets its output.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use exeat_runner::{Outcome, Running, Stage, Stdio};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: harness DIR")?;
    for outcome in evaluate(&settings(), Path::new(&dir))? {
        writeln!(io::stdout(), "{}", serde_json::to_string(&outcome)?)?;
    }
    Ok(())
}

/// Returns what all tasks have in common.
pub(crate) fn settings() -> Stage {
    let mut stage = Stage::new("./task");
    stage.stdin(Stdio::null()).timeout(Duration::from_secs(60)).label("suite", "nightly");
    stage
}

/// Starts all tasks, then waits for all of them.
pub(crate) fn evaluate(settings: &Stage, dir: &Path) -> Result<Vec<Outcome>, Box<dyn Error>> {
    // A relative path of a stage starts at its own working directory.
    let entries = fs::read_dir(dir.canonicalize()?)?.collect::<io::Result<Vec<_>>>()?;
    let mut tasks: Vec<_> = entries.iter().map(fs::DirEntry::path).filter(|path| path.is_dir()).collect();
    tasks.sort();
    // If one cannot start, the tasks that have started end here: dropping a `Running` ends its stage.
    let running = tasks.iter().map(|task| start(settings.clone(), task)).collect::<Result<Vec<_>, _>>()?;
    running.into_iter().map(|task| Ok(task.wait()?)).collect()
}

/// Starts one task and returns when it runs.
fn start(mut stage: Stage, task: &Path) -> Result<Running, Box<dyn Error>> {
    let name = task.file_name().unwrap_or_default().to_string_lossy();
    let beside = |extension| task.with_file_name(format!("{name}.{extension}"));
    let log = File::create(beside("log"))?;
    stage.current_dir(task).stage_name(&*name).policy_file(beside("toml"));
    stage.stdout(log.try_clone()?).stderr(log);
    Ok(stage.spawn()?)
}
