//! Values from nothing: index ranges, constants, counter-based random numbers.

use super::{arity, Factors};
use crate::core::{
    dtype_attr, AttrDef, AttrKind, Attrs, Dim, Gradient, Linearity, OpDef, Rule, ScalarBody, Semantics, Template, Type,
};
use crate::Monoid;

const DTYPE: AttrDef = AttrDef { name: "dtype", kind: AttrKind::Str, required: true };
const NONE: Gradient = Gradient::None("it has no operands");

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "iota",
        doc: "The global index along a dimension.",
        attrs: &[
            AttrDef { name: "dim", kind: AttrKind::Str, required: true },
            AttrDef { name: "size", kind: AttrKind::Int, required: true },
            DTYPE,
        ],
        template: Template::Loop,
        semantics: Semantics::Primitive(iota),
        gradient: NONE,
    },
    OpDef {
        name: "constant",
        doc: "One number, or with `dim` a list of numbers along a dimension.",
        attrs: &[
            AttrDef { name: "values", kind: AttrKind::Floats, required: true },
            AttrDef { name: "dim", kind: AttrKind::Str, required: false },
            DTYPE,
        ],
        template: Template::Loop,
        semantics: Semantics::Primitive(constant),
        gradient: NONE,
    },
    OpDef {
        name: "random_uniform",
        doc: "Numbers in (−1, 1): SplitMix64 in counter form, keyed by a name and a seed and counted by the \
              global row-major index, so that every layout draws the same.",
        attrs: &[
            AttrDef { name: "name", kind: AttrKind::Str, required: true },
            AttrDef { name: "seed", kind: AttrKind::Int, required: true },
            AttrDef { name: "dims", kind: AttrKind::Str, required: true },
            AttrDef { name: "sizes", kind: AttrKind::Ints, required: true },
            DTYPE,
        ],
        template: Template::Loop,
        semantics: Semantics::Primitive(random),
        gradient: NONE,
    },
];

fn source(dims: Vec<Dim>, attrs: &Attrs, body: ScalarBody) -> Result<Rule, String> {
    let result = Type { dtype: dtype_attr(attrs)?, dims, partial: None };
    let mut factors = Factors::default();
    Ok(Rule {
        operands: Vec::new(),
        results: vec![factors.map(&result)?],
        result_types: vec![result],
        factors: factors.with_monoid(Monoid::Sum),
        body: Some(body),
        linear: Linearity::None,
    })
}

fn iota(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 0)?;
    source(vec![Dim::new(attrs.get_text("dim")?, attrs.get_size("size")?)], attrs, ScalarBody::Iota)
}

fn constant(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 0)?;
    let values = attrs.get_floats("values")?;
    let dims = match attrs.get("dim") {
        Some(_) => vec![Dim::new(attrs.get_text("dim")?, values.len())],
        None if values.len() == 1 => Vec::new(),
        None => return Err(format!("{} values need a dim", values.len())),
    };
    source(dims, attrs, ScalarBody::Values(values))
}

fn random(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 0)?;
    let sizes = attrs.get_sizes("sizes")?;
    let names: Vec<&str> = attrs.get_text("dims")?.split_whitespace().collect();
    if names.len() != sizes.len() {
        return Err(format!("{} dims and {} sizes", names.len(), sizes.len()));
    }
    let dims = names.iter().zip(&sizes).map(|(n, s)| Dim::new(*n, *s)).collect();
    let seed = attrs.get_int("seed")? as u64;
    let key = mix(fnv1a64(attrs.get_text("name")?.as_bytes()).wrapping_add(seed.wrapping_mul(GOLDEN)));
    source(dims, attrs, ScalarBody::Random(key))
}

/// Increment of SplitMix64 (Steele, Lea, Flood 2014, *Fast splittable pseudorandom number generators*).
pub const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// FNV-1a hash, 64 bits.
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3))
}

/// Finaliser of SplitMix64.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Number in (−1, 1) at a counter: an odd multiple of 2⁻²⁴, exact in f32.
#[inline]
pub fn random_unit(key: u64, counter: u64) -> f64 {
    let word = mix(key.wrapping_add(counter.wrapping_add(1).wrapping_mul(GOLDEN)));
    let odd = 2 * (word >> 40) as i64 + 1 - (1 << 24);
    odd as f64 / (1u64 << 24) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_random_numbers_of_the_goldens() {
        let key = mix(fnv1a64(b"model.embed_tokens.weight"));
        assert_eq!(key, 0x1acb_025c_f390_dc05);
        for (i, bits) in [0xbf56_74a3u32, 0xbe14_ac94, 0xbf7d_5bbd, 0xbf23_a825].into_iter().enumerate() {
            assert_eq!(random_unit(key, i as u64), f64::from(f32::from_bits(bits)));
        }
    }
}
