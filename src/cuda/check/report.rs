//! What checks say: a record each, lines of a running stage, and the report of all.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// `nan`, `canary`, `value`, `bits`, `guard`, `operand`, `unstable`, `launch`, `pack`, `crash` or
    /// `hang`.
    pub kind: String,
    /// First element that differs, if elements were compared.
    pub index: Option<usize>,
    /// In words.
    pub text: String,
}

impl Failure {
    /// A failure.
    pub fn new(kind: &str, text: impl Into<String>) -> Failure {
        Failure { kind: kind.into(), index: None, text: text.into() }
    }

    /// At an element.
    pub fn at(self, index: usize) -> Failure {
        Failure { index: Some(index), ..self }
    }

    /// Of something.
    pub fn of(self, what: &str) -> Failure {
        Failure { text: format!("{what}: {}", self.text), ..self }
    }
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should.
    Passed,
    /// Otherwise.
    Failed,
    /// It was not made; the text says why.
    Skipped,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Stage.
    pub stage: String,
    /// What was checked.
    pub check: String,
    /// How it ended.
    pub status: Status,
    /// Figures: errors, seconds, GB/s.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
    /// What is wrong, or why it was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// A line that a running stage writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// The check of this number begins.
    Begin {
        /// Number.
        number: usize,
        /// What is checked.
        check: String,
    },
    /// It has ended.
    End {
        /// Number.
        number: usize,
        /// How.
        record: Record,
    },
}

/// A stage of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Name.
    pub name: String,
    /// Checks that passed.
    pub passed: usize,
    /// Checks that failed.
    pub failed: usize,
    /// Checks that were skipped.
    pub skipped: usize,
    /// Whether all checks were made.
    pub complete: bool,
    /// Seconds.
    pub seconds: f64,
}

/// The whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When, UTC.
    pub date: String,
    /// Version of this program.
    pub autoshard: String,
    /// Card.
    pub card: String,
    /// Compute capability.
    pub capability: String,
    /// Version of CUDA that the driver is made for.
    pub driver: String,
    /// The driver's library.
    pub library: String,
    /// Version of NVRTC that made the machine code.
    pub nvrtc: String,
    /// What it was made for.
    pub target: String,
    /// Stages.
    pub stages: Vec<Stage>,
    /// Checks that failed.
    pub failures: Vec<Record>,
    /// All checks.
    pub records: Vec<Record>,
}

impl Report {
    /// Whether every check was made and none failed.
    pub fn fine(&self) -> bool {
        self.failures.is_empty() && self.stages.iter().all(|s| s.complete)
    }
}

impl Stage {
    /// Counts records.
    pub fn of(name: &str, records: &[Record], complete: bool, seconds: f64) -> Stage {
        let count = |s: Status| records.iter().filter(|r| r.status == s).count();
        Stage {
            name: name.into(),
            passed: count(Status::Passed),
            failed: count(Status::Failed),
            skipped: count(Status::Skipped),
            complete,
            seconds,
        }
    }
}

/// Writes JSON beside its place and renames it there, so that a reader never sees half of it.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), std::io::Error> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    let beside = path.with_extension("part");
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, path)
}

/// The date now, `2026-01-31T12:00:00Z`.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date(seconds)
}

/// A date from seconds since 1970.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil calendar, years beginning in March: the leap day is the last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{:04}-{month:02}-{of_month:02}T{h:02}:{m:02}:{s:02}Z", 400 * era + year + next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(date(1_709_210_096), "2024-02-29T12:34:56Z");
    }

    #[test]
    fn lines_and_records_are_read_as_they_were_written() {
        let failure = Some(Failure::new("nan", "element 3 is NaN, not 1").at(3).of("result 0"));
        let figures = [("l2".to_string(), 0.5)].into();
        let record = Record { stage: "kernels".into(), check: "a".into(), status: Status::Failed, figures, failure };
        for line in [Line::Begin { number: 1, check: "a".into() }, Line::End { number: 1, record: record.clone() }] {
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        }
        let stage = Stage::of("kernels", &[record], true, 1.0);
        assert_eq!((stage.passed, stage.failed, stage.skipped), (0, 1, 0));
    }
}
