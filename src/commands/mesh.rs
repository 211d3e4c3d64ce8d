//! `--mesh dp=2,fsdp=2,tp=2`.

use super::{suggestion, Failure};
use autoshard::ir::Mesh;
use autoshard::passes::search::Degrees;

/// Largest degree, and largest product of degrees.
const MOST: usize = 1 << 30;

/// Axes that are executed.
const EXECUTED: [&str; 4] = ["dp", "fsdp", "tp", "sp"];

/// Keys of the mesh language that come later, each with the value that asks for nothing.
const LATER: [(&str, &str); 12] = [
    ("pp", "1"),
    ("ep", "1"),
    ("etp", "1"),
    ("cp", "1"),
    ("vpp", "1"),
    ("mbs", "1"),
    ("microbatches", "1"),
    ("keep", "0"),
    ("zero", "0"),
    ("recompute", "none"),
    ("schedule", "naive"),
    ("cp_method", "none"),
];

/// Reads the value of `--mesh`.
pub fn parse(text: &str) -> Result<Degrees, Failure> {
    let mut d = Degrees { dp: 1, fsdp: 1, tp: 1, sequence_parallel: true };
    let mut seen: Vec<&str> = Vec::new();
    for part in text.split(',').map(str::trim) {
        let Some((key, value)) = part.split_once('=') else {
            return Err(usage(format!("{part:?} is not of the form axis=degree, as in dp=2,tp=4")));
        };
        if seen.contains(&key) {
            return Err(usage(format!("{key} is given twice")));
        }
        seen.push(key);
        match key {
            "dp" => d.dp = degree(key, value)?,
            "fsdp" => d.fsdp = degree(key, value)?,
            "tp" => d.tp = degree(key, value)?,
            "sp" => d.sequence_parallel = switch(value)?,
            _ => later(key, value)?,
        }
    }
    ranks(&d).map(|_| d)
}

/// Number of ranks of these degrees.
pub fn ranks(d: &Degrees) -> Result<usize, Failure> {
    let product = d.dp.checked_mul(d.fsdp).and_then(|n| n.checked_mul(d.tp)).filter(|n| *n <= MOST);
    product.ok_or_else(|| usage(format!("dp={} · fsdp={} · tp={} is more than {MOST} ranks", d.dp, d.fsdp, d.tp)))
}

/// Degrees of a mesh that a plan holds; pieces of an axis multiply.
pub fn of(mesh: &Mesh, sequence_parallel: bool) -> Degrees {
    let size = |root: &str| mesh.axes.iter().filter(|(a, _)| a.root() == root).map(|(_, n)| n).product();
    Degrees { dp: size("dp"), fsdp: size("fsdp"), tp: size("tp"), sequence_parallel }
}

fn degree(key: &str, value: &str) -> Result<usize, Failure> {
    let n = value.parse::<usize>().ok().filter(|n| (1..=MOST).contains(n));
    n.ok_or_else(|| usage(format!("{key}={value}: a degree must be a whole number from 1 to {MOST}")))
}

fn switch(value: &str) -> Result<bool, Failure> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(usage(format!("sp={value}: it must be 0 or 1"))),
    }
}

/// Accepts a key of later versions at its neutral value only.
fn later(key: &str, value: &str) -> Result<(), Failure> {
    match LATER.iter().find(|(k, _)| *k == key) {
        Some((_, neutral)) if value == *neutral => Ok(()),
        Some((_, neutral)) => Err(Failure::Failed(format!(
            "--mesh: {key}={value} is not executed yet; only {key}={neutral} is, with dp, fsdp, tp and sp free"
        ))),
        None => {
            let known = EXECUTED.into_iter().chain(LATER.iter().map(|(k, _)| *k));
            let near = suggestion(key, known);
            Err(usage(format!("unknown axis {key:?}; the axes are dp, fsdp, tp (and sp=0|1){near}")))
        }
    }
}

fn usage(message: String) -> Failure {
    Failure::Usage(format!("--mesh: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        match parse(text) {
            Ok(d) => format!("{d:?}"),
            Err(Failure::Usage(m) | Failure::Failed(m)) => m,
        }
    }

    #[test]
    fn degrees_are_read_or_refused_by_name() {
        let d = Degrees { dp: 2, fsdp: 3, tp: 4, sequence_parallel: false };
        assert_eq!(parse("dp=2,fsdp=3, tp=4,sp=0,pp=1").ok(), Some(d));
        assert_eq!(ranks(&d).ok(), Some(24));
        for (text, part) in [
            ("fdsp=2", "did you mean `fsdp`"),
            ("dp=2,dp=2", "dp is given twice"),
            ("dp=0", "dp=0: a degree must be a whole number from 1"),
            ("dp=-2", "dp=-2"),
            ("dp", "\"dp\" is not of the form"),
            ("sp=2", "sp=2: it must be 0 or 1"),
            ("pp=2", "pp=2 is not executed yet"),
            ("microbatches=4", "microbatches=4 is not executed yet"),
            ("dp=1000000,tp=1000000", "more than 1073741824 ranks"),
        ] {
            assert!(message(text).contains(part), "{text}: {}", message(text));
        }
    }
}
