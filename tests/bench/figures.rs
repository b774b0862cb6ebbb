//! Figures, aims, and the file that stores the last run.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

/// The aim of a figure.
#[derive(Clone, Copy)]
pub(crate) enum Aim {
    /// The figure is only printed.
    None,
    /// At most this, in this unit.
    AtMost(f64, &'static str),
    /// At least this, in this unit.
    AtLeast(f64, &'static str),
}

/// A line of the table.
pub(crate) struct Figure {
    /// The name of the measurement. It is also the key in the file, so it must not change.
    pub(crate) name: String,
    /// The value with exeat, and its unit.
    pub(crate) value: String,
    /// The value without exeat, and its unit; empty without a comparison.
    pub(crate) base: String,
    /// The number that is compared with the aim, and stored.
    pub(crate) number: f64,
    pub(crate) aim: Aim,
}

impl Figure {
    /// Makes a figure without a comparison.
    pub(crate) fn alone(name: &str, number: f64, unit: &str, aim: Aim) -> Self {
        Self { name: name.into(), value: format!("{number:.2} {unit}"), base: String::new(), number, aim }
    }

    fn met(&self) -> Option<bool> {
        match self.aim {
            Aim::None => None,
            Aim::AtMost(most, _) => Some(self.number <= most),
            Aim::AtLeast(least, _) => Some(self.number >= least),
        }
    }

    fn aim(&self) -> String {
        match self.aim {
            Aim::None => String::new(),
            Aim::AtMost(most, unit) => format!("<= {most} {unit}"),
            Aim::AtLeast(least, unit) => format!(">= {least} {unit}"),
        }
    }
}

/// The figures of one run.
#[derive(Default)]
pub(crate) struct Report {
    figures: Vec<Figure>,
    notes: Vec<String>,
    /// The lines that `--check` tests: name, number and maximum.
    checks: Vec<(String, f64, f64)>,
}

impl Report {
    /// Adds a line.
    pub(crate) fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// Adds a line for two lanes that were measured in turns. Its number is the median of the rounds' ratios, because
    /// two neighboring measurements had the same machine.
    pub(crate) fn beside(&mut self, name: &str, unit: &str, ours: &[f64], theirs: &[f64], aim: Aim) {
        let told = |values| match median(values) {
            value if value < 1.0 => format!("{value:.3} {unit}"),
            value if value < 100.0 => format!("{value:.2} {unit}"),
            value => format!("{value:.0} {unit}"),
        };
        let number = median_of(ours, theirs, |ours, theirs| ours / theirs);
        self.add(Figure { name: name.into(), value: told(ours), base: told(theirs), number, aim });
    }

    /// Adds a sentence after the table.
    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Makes `--check` fail if the number of the last line exceeds this.
    pub(crate) fn check(&mut self, most: f64) {
        self.checks.extend(self.figures.last().map(|figure| (figure.name.clone(), figure.number, most)));
    }

    /// Prints each bound of `--check`, and returns whether all of them hold.
    pub(crate) fn holds(&self) -> bool {
        for (name, number, most) in &self.checks {
            let mark = if number <= most { "holds" } else { "BROKEN" };
            println!("check: {name}, {number:.2} x hardened bubblewrap, at most {most}: {mark}");
        }
        self.checks.iter().all(|(_, number, most)| number <= most)
    }

    /// Prints the table.
    pub(crate) fn print(&self) {
        println!("{:<38} {:>12} {:>12} {:>8}  {:<16}", "", "exeat", "without", "ratio", "aim");
        for figure in &self.figures {
            let ratio = if figure.base.is_empty() { String::new() } else { format!("{:.2}", figure.number) };
            let mark = match figure.met() {
                None => "",
                Some(true) => "pass",
                Some(false) => "MISS",
            };
            let line = format!(
                "{:<38} {:>12} {:>12} {:>8}  {:<16} {mark}",
                figure.name,
                figure.value,
                figure.base,
                ratio,
                figure.aim()
            );
            println!("{}", line.trim_end());
        }
        for note in &self.notes {
            println!("{note}");
        }
    }

    /// Reports what changed by more than a tenth since the last run, and stores this run.
    pub(crate) fn save(&self, file: &Path) {
        let last: Option<Map<String, Value>> =
            fs::read_to_string(file).ok().and_then(|text| serde_json::from_str(&text).ok());
        match &last {
            None => println!("\nno earlier run to compare with"),
            Some(last) => {
                let changes: Vec<String> = self
                    .figures
                    .iter()
                    .filter_map(|figure| Some((figure, last.get(&figure.name)?.as_f64()?)))
                    .filter(|(figure, was)| (figure.number / was - 1.0).abs() > 0.1)
                    .map(|(figure, was)| format!("  {}: {:.3}, was {was:.3}", figure.name, figure.number))
                    .collect();
                if changes.is_empty() {
                    println!("\nwithin a tenth of the last run");
                } else {
                    println!("\nsince the last run:\n{}", changes.join("\n"));
                }
            }
        }
        let now: Map<String, Value> =
            self.figures.iter().map(|figure| (figure.name.clone(), json!(figure.number))).collect();
        if let Err(error) = fs::write(file, format!("{:#}\n", Value::Object(now))) {
            eprintln!("bench: cannot write {}: {error}", file.display());
        }
    }
}

/// Returns the median of a function of each pair of values.
pub(crate) fn median_of(ours: &[f64], theirs: &[f64], compare: impl Fn(f64, f64) -> f64) -> f64 {
    let compared: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| compare(*ours, *theirs)).collect();
    median(&compared)
}

/// Returns the median.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
