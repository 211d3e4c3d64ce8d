//! What a person or a script reads about a plan and a run. Everything here returns text or JSON; the
//! commands decide where it goes.

mod plan;
pub mod prediction;
pub mod search;
pub mod stages;
mod steps;
pub mod sweep;
pub mod trace;
pub mod validation;

pub use plan::{candidates, collectives, degrees, memory, plan, CollectiveLine};
pub use steps::{peak_memory_mib, step_line, summary_line, Summary};

/// Bytes in the unit that keeps the number short: `924,160 B`, `1.25 MiB`.
pub fn bytes(n: f64) -> String {
    match n {
        n if n < 1e6 => format!("{} B", grouped(n)),
        n if n < (1u64 << 30) as f64 => format!("{:.2} MiB", n / (1u64 << 20) as f64),
        n => format!("{:.2} GiB", n / (1u64 << 30) as f64),
    }
}

/// Seconds in the unit that keeps the number short.
pub fn seconds(s: f64) -> String {
    match s {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// A whole number with its thousands apart: `5,006,336`.
pub fn grouped(n: f64) -> String {
    let digits = format!("{:.0}", n);
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 && !out.ends_with('-') {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A name in which every number between dots is `*`, so that layers of one kind read the same.
pub fn pattern(name: &str) -> String {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|p| if digits(p) { "*" } else { p }).collect();
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(5_006_336.0), "5,006,336");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(bytes(924_160.0), "924,160 B");
        assert_eq!(bytes(1_310_720.0), "1.25 MiB");
        assert_eq!(seconds(0.0123), "12.30 ms");
        assert_eq!(pattern("model.layers.12.mlp.up_proj.weight"), "model.layers.*.mlp.up_proj.weight");
    }
}
