//! A stage in a process of its own, watched: what is silent for too long is ended and begun again
//! behind the check that hung, and a stage that takes too long is ended for good.

use super::report::{Failure, Line, Record, Status};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// How long a stage is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In all.
    pub stage: Duration,
    /// Without a new line.
    pub silence: Duration,
    /// Times that it is begun again.
    pub restarts: usize,
}

/// What came of a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Its records; a check that hung or crashed has one, too.
    pub records: Vec<Record>,
    /// Whether every check was made.
    pub complete: bool,
    /// Why it was not, if that is no check's fault.
    pub problem: Option<String>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq)]
enum End {
    Done,
    Failed(String),
    Silent,
    Late,
    Stuck,
}

/// How often a process is looked at.
const PERIOD: Duration = Duration::from_millis(25);
/// How long an ended process may take to go.
const GRACE: Duration = Duration::from_secs(10);

/// Runs the stage. `command` gives the command that runs it from a check on, and adds lines to `file`.
pub fn supervise(
    stage: &str,
    file: &Path,
    limits: Limits,
    command: &mut dyn FnMut(usize) -> Command,
) -> Result<Outcome, std::io::Error> {
    let begin = Instant::now();
    std::fs::write(file, "")?;
    let mut from = 0;
    for _ in 0..=limits.restarts {
        let mut child = command(from).spawn()?;
        let end = watch(&mut child, file, limits.silence, begin + limits.stage)?;
        let lines = read(file)?;
        if end == End::Done {
            return Ok(Outcome { records: records(stage, &lines, None).0, complete: true, problem: None });
        }
        let (records, next) = records(stage, &lines, Some(&end));
        let stop = |problem: String| Ok(Outcome { records: records.clone(), complete: false, problem: Some(problem) });
        match end {
            End::Late => return stop(format!("ended after {} s", limits.stage.as_secs())),
            End::Stuck => return stop("a process that hangs cannot be ended".into()),
            End::Failed(why) if next == from => return stop(format!("no check was made: {why}")),
            End::Silent if next == from => return stop("silent before the first check".into()),
            _ => from = next,
        }
        append_failure(file, &records, next)?;
    }
    let (records, _) = records(stage, &read(file)?, None);
    Ok(Outcome {
        records,
        complete: false,
        problem: Some(format!("given up after {} new beginnings", limits.restarts)),
    })
}

/// Waits for a process, or ends it.
fn watch(child: &mut Child, file: &Path, silence: Duration, late: Instant) -> Result<End, std::io::Error> {
    let (mut heard, mut size) = (Instant::now(), 0);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { End::Done } else { End::Failed(ended(status)) });
        }
        let now = std::fs::metadata(file)?.len();
        if now != size {
            (heard, size) = (Instant::now(), now);
        }
        let end = if Instant::now() > late {
            End::Late
        } else if heard.elapsed() > silence {
            End::Silent
        } else {
            std::thread::sleep(PERIOD);
            continue;
        };
        // It may have ended by itself in between; waiting tells.
        let _ = child.kill();
        let killed = Instant::now();
        while child.try_wait()?.is_none() {
            if killed.elapsed() > GRACE {
                return Ok(End::Stuck);
            }
            std::thread::sleep(PERIOD);
        }
        return Ok(end);
    }
}

fn ended(status: ExitStatus) -> String {
    format!("the process ended with {status}")
}

/// The lines of a file; what is no whole line is left out.
fn read(file: &Path) -> Result<Vec<Line>, std::io::Error> {
    let text = std::fs::read(file)?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect())
}

/// Records in order, with one for the check that was under way when the process ended, and the number
/// of the next check.
fn records(stage: &str, lines: &[Line], end: Option<&End>) -> (Vec<Record>, usize) {
    let mut out: Vec<Record> = vec![];
    let mut next = 0;
    let mut under_way = None;
    for line in lines {
        match line {
            Line::Begin { number, check } => under_way = Some((*number, check.clone())),
            Line::End { number, record } => {
                under_way = None;
                next = number + 1;
                out.push(record.clone());
            }
        }
    }
    if let (Some((number, check)), Some(end)) = (under_way, end) {
        let failure = match end {
            End::Failed(why) => Failure::new("crash", why.clone()),
            _ => Failure::new("hang", "it did not end and was ended from outside"),
        };
        let (status, figures) = (Status::Failed, Default::default());
        out.push(Record { stage: stage.into(), check, status, figures, failure: Some(failure) });
        next = number + 1;
    }
    (out, next)
}

/// Notes the record of a check that did not end, so that the file stays whole.
fn append_failure(file: &Path, records: &[Record], next: usize) -> Result<(), std::io::Error> {
    use std::io::Write;
    let noted = read(file)?.iter().filter(|l| matches!(l, Line::End { .. })).count();
    let mut out = std::fs::OpenOptions::new().append(true).open(file)?;
    for record in records.iter().skip(noted) {
        let line = Line::End { number: next.saturating_sub(1), record: record.clone() };
        // A line that was cut off by the end of the process stays alone.
        writeln!(out, "\n{}", serde_json::to_string(&line)?)?;
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn line(number: usize, end: bool) -> String {
        let record = Record {
            stage: "s".into(),
            check: format!("c{number}"),
            status: Status::Passed,
            figures: Default::default(),
            failure: None,
        };
        let check = format!("c{number}");
        let line = if end { Line::End { number, record } } else { Line::Begin { number, check } };
        format!("echo '{}' >> \"$0\"\n", serde_json::to_string(&line).unwrap())
    }

    /// Runs a stage of 4 checks, whose second does `bad`.
    fn stage(bad: &str, stage: u64) -> Outcome {
        let d = tempfile::tempdir().unwrap();
        let file = d.path().join("lines");
        let mut command = |from: usize| {
            let mut script = String::new();
            for n in from..4 {
                script += &line(n, false);
                if n == 1 {
                    script += &format!("{bad}\n");
                }
                script += &line(n, true);
            }
            let mut c = Command::new("sh");
            c.arg("-c").arg(script).arg(&file);
            c
        };
        let limits = Limits { stage: Duration::from_millis(stage), silence: Duration::from_millis(1500), restarts: 2 };
        supervise("s", &file, limits, &mut command).unwrap()
    }

    fn kinds(o: &Outcome) -> Vec<String> {
        let kind = |r: &Record| r.failure.as_ref().map_or(String::new(), |f| f.kind.clone());
        o.records.iter().map(|r| format!("{} {}", r.check, kind(r)).trim().to_string()).collect()
    }

    #[test]
    fn a_hang_costs_its_check_alone() {
        let o = stage("exec sleep 60", 60_000);
        assert_eq!((kinds(&o), o.complete), (["c0", "c1 hang", "c2", "c3"].map(String::from).into(), true));
    }

    #[test]
    fn a_crash_costs_its_check_alone() {
        let o = stage("exit 3", 60_000);
        assert_eq!((kinds(&o), o.complete), (["c0", "c1 crash", "c2", "c3"].map(String::from).into(), true));
        // Half a line is no line.
        let o = stage("printf '{\"begin\"' >> \"$0\"; kill -9 $$", 60_000);
        assert_eq!((kinds(&o), o.complete), (["c0", "c1 crash", "c2", "c3"].map(String::from).into(), true));
    }

    #[test]
    fn a_stage_that_takes_too_long_is_ended() {
        let o = stage("exec sleep 60", 700);
        assert_eq!((kinds(&o), o.complete), (["c0", "c1 hang"].map(String::from).into(), false));
        assert!(o.problem.is_some_and(|p| p.starts_with("ended after")));
    }

    #[test]
    fn a_stage_that_does_not_begin_is_not_begun_again() {
        let d = tempfile::tempdir().unwrap();
        let file = d.path().join("lines");
        let limits = Limits { stage: Duration::from_secs(9), silence: Duration::from_secs(9), restarts: 5 };
        let mut begun = 0;
        let o = supervise("s", &file, limits, &mut |_| {
            begun += 1;
            Command::new("false")
        });
        let o = o.unwrap();
        assert_eq!((begun, o.complete, o.records.len()), (1, false, 0));
        assert!(o.problem.is_some_and(|p| p.contains("no check was made")));
    }
}
