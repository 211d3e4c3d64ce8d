//! The two ways to say a layout, and the way between them.
//!
//! `--mesh` names axes, and they multiply: devices = pp·dp·fsdp·ep·cp·tp. dp replicates, fsdp shards
//! (ZeRO-3), ep carries the batch outside experts. `--fix` and plan files name degrees as the field prints
//! them: dp is the whole data-parallel degree, zero and shard_group say how it is stored:
//! `dp=8,fsdp=8` ⇔ `dp=64,zero=3,shard_group=8`.

use std::fmt::{self, Write};

/// Degrees as the field prints them: world = tp·cp·pp·dp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrees {
    /// Pipeline stages.
    pub pp: u64,
    /// The whole data-parallel degree.
    pub dp: u64,
    /// Ranks that split experts.
    pub ep: u64,
    /// Ranks that split positions.
    pub cp: u64,
    /// Ranks that split heads.
    pub tp: u64,
    /// What data ranks share, 0–3.
    pub zero: u8,
    /// Ranks that share one copy.
    pub shard_group: u64,
}

/// Mesh axes, and what they do not say by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axes {
    /// Pipeline stages.
    pub pp: u64,
    /// Data ranks that replicate parameters.
    pub dp: u64,
    /// Data ranks that share parameters.
    pub fsdp: u64,
    /// Data ranks that split experts.
    pub ep: u64,
    /// Ranks that split positions.
    pub cp: u64,
    /// Ranks that split heads.
    pub tp: u64,
    /// Unless it is 3 with fsdp > 1 and 0 without.
    pub zero: Option<u8>,
    /// Unless it is fsdp.
    pub shard_group: Option<u64>,
}

/// Why a layout has no mesh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AxesError {
    /// Experts are split over more than the data ranks.
    #[error("no mesh of axes says ep={ep} over dp={dp}: ep does not divide dp, so experts are split over cp or tp ranks too; say it with --fix")]
    Experts {
        /// The degree.
        ep: u64,
        /// The data-parallel degree.
        dp: u64,
    },
}

/// Axes of these degrees.
///
/// # Errors
/// Where ep does not divide dp.
pub fn to_axes(d: &Degrees) -> Result<Axes, AxesError> {
    if d.ep == 0 || !d.dp.is_multiple_of(d.ep) {
        return Err(AxesError::Experts { ep: d.ep, dp: d.dp });
    }
    let data = d.dp / d.ep;
    // Only ZeRO-3 is an axis; what it shares beyond the data ranks (over cp or ep) stays a key.
    let fsdp = if d.zero == 3 { gcd(data, d.shard_group) } else { 1 };
    Ok(Axes {
        pp: d.pp,
        dp: data / fsdp,
        fsdp,
        ep: d.ep,
        cp: d.cp,
        tp: d.tp,
        zero: (d.zero != implied_zero(fsdp)).then_some(d.zero),
        shard_group: (d.shard_group != fsdp).then_some(d.shard_group),
    })
}

/// Degrees of these axes.
pub fn to_degrees(a: &Axes) -> Degrees {
    Degrees {
        pp: a.pp,
        dp: a.dp.saturating_mul(a.fsdp).saturating_mul(a.ep),
        ep: a.ep,
        cp: a.cp,
        tp: a.tp,
        zero: a.zero.unwrap_or(implied_zero(a.fsdp)),
        shard_group: a.shard_group.unwrap_or(a.fsdp),
    }
}

impl Axes {
    /// Names and sizes of the axes, outermost first.
    pub fn sizes(&self) -> [(&'static str, u64); 6] {
        [("pp", self.pp), ("dp", self.dp), ("fsdp", self.fsdp), ("ep", self.ep), ("cp", self.cp), ("tp", self.tp)]
    }
}

/// As `--mesh` takes it; axes of one are left out.
impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut text = String::new();
        let sizes = self.sizes().into_iter().filter(|(_, n)| *n > 1);
        let keys = [("zero", self.zero.map(u64::from)), ("shard_group", self.shard_group)];
        let keys = keys.into_iter().filter_map(|(k, v)| v.map(|v| (k, v)));
        for (name, n) in sizes.chain(keys) {
            let comma = if text.is_empty() { "" } else { "," };
            write!(text, "{comma}{name}={n}")?;
        }
        f.pad(if text.is_empty() { "dp=1" } else { &text })
    }
}

/// As `--fix` takes it.
impl fmt::Display for Degrees {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Degrees { pp, dp, ep, cp, tp, zero, shard_group } = self;
        f.pad(&format!("tp={tp},cp={cp},pp={pp},ep={ep},dp={dp},zero={zero},shard_group={shard_group}"))
    }
}

fn implied_zero(fsdp: u64) -> u8 {
    if fsdp > 1 {
        3
    } else {
        0
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Axes = Axes { pp: 1, dp: 1, fsdp: 1, ep: 1, cp: 1, tp: 1, zero: None, shard_group: None };

    #[test]
    fn the_example_of_the_command_line_holds_both_ways() {
        let axes = Axes { dp: 8, fsdp: 8, ..ONE };
        let degrees = Degrees { pp: 1, dp: 64, ep: 1, cp: 1, tp: 1, zero: 3, shard_group: 8 };
        assert_eq!(to_degrees(&axes), degrees);
        assert_eq!(to_axes(&degrees), Ok(axes));
        assert_eq!(axes.to_string(), "dp=8,fsdp=8");
        assert_eq!(degrees.to_string(), "tp=1,cp=1,pp=1,ep=1,dp=64,zero=3,shard_group=8");
    }

    #[test]
    fn what_axes_cannot_say_stays_a_key() {
        let zero1 = Degrees { pp: 4, dp: 16, ep: 8, cp: 2, tp: 4, zero: 1, shard_group: 32 };
        let axes = to_axes(&zero1).unwrap();
        assert_eq!(axes.to_string(), "pp=4,dp=2,ep=8,cp=2,tp=4,zero=1,shard_group=32");
        assert_eq!(to_degrees(&axes), zero1);
        // FSDP over data and context ranks.
        let over_cp = Degrees { pp: 1, dp: 8, ep: 1, cp: 2, tp: 1, zero: 3, shard_group: 16 };
        assert_eq!(to_axes(&over_cp).unwrap().to_string(), "fsdp=8,cp=2,shard_group=16");
        let wide = Degrees { ep: 16, ..zero1 };
        assert!(to_axes(&Degrees { ep: 32, ..wide }).unwrap_err().to_string().contains("ep=32 over dp=16"));
        assert_eq!(ONE.to_string(), "dp=1");
    }

    proptest::proptest! {
        #[test]
        fn degrees_come_back(pp in 1u64..9, dp in 1u64..65, e in 1u64..9, cp in 1u64..5, tp in 1u64..9, zero in 0u8..4, share in 1u64..65) {
            let shard_group = if zero == 0 { 1 } else { share };
            let d = Degrees { pp, dp: dp * e, ep: e, cp, tp, zero, shard_group };
            let axes = to_axes(&d).unwrap();
            proptest::prop_assert_eq!(to_degrees(&axes), d);
            let product: u64 = axes.sizes().iter().map(|(_, n)| n).product();
            proptest::prop_assert_eq!(product, pp * dp * e * cp * tp);
        }

        #[test]
        fn axes_come_back(pp in 1u64..9, dp in 1u64..9, fsdp in 1u64..9, ep in 1u64..9, cp in 1u64..5, tp in 1u64..9) {
            let a = Axes { pp, dp, fsdp, ep, cp, tp, ..ONE };
            proptest::prop_assert_eq!(to_axes(&to_degrees(&a)).unwrap(), a);
        }
    }
}
