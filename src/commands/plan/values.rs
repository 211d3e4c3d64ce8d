//! Values of `plan`'s flags.

use crate::commands::{suggestion, Failure};
use autoshard::emit::Framework;
use autoshard::predict::Precision;
use autoshard::search::Objective;

/// The one of a closed set that is spelt so.
fn word<T: Copy>(flag: &str, text: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, Failure> {
    all.iter().copied().find(|w| name(*w) == text).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|w| name(*w)).collect();
        let near = suggestion(text, names.iter().copied());
        Failure::Usage(format!("unknown {flag} {text}; known: {}{near}", names.join(", ")))
    })
}

/// The number format: bf16, or f32 where ranks are threads of a CPU.
pub fn precision(text: Option<&str>, cpu: bool) -> Result<Precision, Failure> {
    match text {
        None if cpu => Ok(Precision::F32),
        None => Ok(Precision::Bf16),
        Some(text) => word("--precision", text, Precision::ALL, Precision::name),
    }
}

/// What is made small.
pub fn objective(text: Option<&str>) -> Result<Objective, Failure> {
    let name = |o: Objective| match o {
        Objective::StepTime => "step-time",
        Objective::Goodput => "goodput",
        Objective::Cost => "cost",
    };
    let all = [Objective::StepTime, Objective::Goodput, Objective::Cost];
    text.map_or(Ok(Objective::StepTime), |text| word("--objective", text, &all, name))
}

/// The framework of launch files.
pub fn framework(text: &str) -> Result<Framework, Failure> {
    word("--emit", text, &Framework::ALL, Framework::name)
}

/// A number of tokens with K, M, B or T.
pub fn tokens(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'B' | 'G')) => (&text[..at], 1e9),
        Some((at, 'T')) => (&text[..at], 1e12),
        _ => (text, 1.0),
    };
    let n = number.parse::<f64>().ok().map(|n| n * unit).filter(|n| n.is_finite() && *n > 0.0);
    n.ok_or_else(|| "it must be a number above 0, as in 15T, 300B or 2e12".to_string())
}

/// GiB of a device.
pub fn limit(text: &str) -> Result<f64, String> {
    let gib = text.parse::<f64>().ok().filter(|x| x.is_finite() && *x > 0.0);
    gib.ok_or_else(|| "it must be a number of GiB above 0, as in 74.5".to_string())
}

/// A share: `8%` or `0.08`.
pub fn margin(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().ok().map(|p| p / 100.0),
        None => text.parse::<f64>().ok(),
    };
    share.filter(|s| (0.0..1.0).contains(s)).ok_or_else(|| "it must be a share from 0% to below 100%, as in 8%".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_limits_and_margins_have_units() {
        assert_eq!((tokens("15T"), tokens("2.5B"), tokens("300")), (Ok(15e12), Ok(2.5e9), Ok(300.0)));
        assert!(["", "T", "-1T", "0", "nan", "1X", "é"].iter().all(|t| tokens(t).is_err()));
        assert_eq!((margin("8%"), margin("0.08"), limit("74.5")), (Ok(0.08), Ok(0.08), Ok(74.5)));
        assert!(["100%", "-1%", "x", "1.5"].iter().all(|t| margin(t).is_err()));
        assert!(["0", "-3", "inf", "nan", ""].iter().all(|t| limit(t).is_err()));
    }

    #[test]
    fn words_are_known_or_refused_with_the_nearest() {
        assert!(matches!(objective(Some("cost")), Ok(Objective::Cost)));
        assert!(matches!(precision(None, true), Ok(Precision::F32)));
        let refused = |e: Failure| matches!(e, Failure::Usage(m) if m.contains("did you mean"));
        assert!(objective(Some("costs")).is_err_and(refused));
        assert!(framework("megatrom").is_err_and(refused));
        assert!(precision(Some("bf61"), false).is_err_and(refused));
    }
}
