//! Rotary position embeddings: from the many ways a configuration states them to frequencies.
//!
//! All types end as a list of inverse frequencies (in f64, rounded once to f32) and a multiplier of cos and
//! sin, which is all that the op knows. With `f_i = theta^(-2i/d)`, `d` the head's width:
//!
//! * `default`: `f_i`;
//! * `linear`: `f_i / factor`;
//! * `llama3`: frequencies that turn often over the original context stay, slow ones are divided by
//!   `factor`, those between are blended;
//! * `yarn`: the same idea with the blend linear in the index, and a multiplier of `0.1 ln factor + 1`.
//!
//! The older files say `rope_theta` and `rope_scaling`, the newer ones `rope_parameters`, flat or with one
//! entry per layer type.

use std::f64::consts::TAU;

use serde_json::Value;

use super::config::ConfigError;
use super::families::Family;
use super::read::{nearest, show, Fields, Read};

/// The rotation of one kind of layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f64,
    /// How they are scaled.
    pub scaling: RopeScaling,
    /// Radians per position for each rotated pair (i, i + d/2), `head_dim / 2` of them.
    pub inv_freq: Vec<f32>,
    /// What cos and sin are multiplied by; 1 except for yarn.
    pub multiplier: f64,
}

/// The scaling of rotary frequencies, as `rope_type` names it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor, at least 1.
        factor: f64,
    },
    /// Llama 3.1's scaling.
    Llama3 {
        /// Divisor of the slow frequencies, at least 1.
        factor: f64,
        /// Below this many turns over the original context a frequency is divided.
        low_freq_factor: f64,
        /// Above this many turns a frequency stays.
        high_freq_factor: f64,
        /// The context length before scaling, tokens.
        original_max_positions: usize,
    },
    /// YaRN.
    Yarn {
        /// Divisor of the slow frequencies, at least 1.
        factor: f64,
        /// The context length before scaling, tokens.
        original_max_positions: usize,
        /// Turns over the original context from which a frequency stays.
        beta_fast: f64,
        /// Turns below which a frequency is divided.
        beta_slow: f64,
        /// Whether the ends of the blend are rounded outwards to whole indices.
        truncate: bool,
        /// The multiplier, where the file states one.
        attention_factor: Option<f64>,
    },
}

const TYPES: [&str; 4] = ["default", "linear", "llama3", "yarn"];

impl Rope {
    /// The frequencies for heads of width `head_dim` (even).
    pub fn new(theta: f64, scaling: RopeScaling, head_dim: usize) -> Rope {
        let plain = (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64));
        let inv_freq = match scaling {
            RopeScaling::Default => plain.map(|f| f as f32).collect(),
            RopeScaling::Linear { factor } => plain.map(|f| (f / factor) as f32).collect(),
            RopeScaling::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original_max_positions } => {
                let scaled = plain.map(|f| {
                    let turns = original_max_positions as f64 * f / TAU;
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    f * (kept + (1.0 - kept) / factor)
                });
                scaled.map(|f| f as f32).collect()
            }
            RopeScaling::Yarn { factor, original_max_positions, beta_fast, beta_slow, truncate, .. } => {
                let blend = yarn_blend(theta, head_dim, original_max_positions as f64, beta_fast, beta_slow, truncate);
                plain.enumerate().map(|(i, f)| (f * (1.0 - blend(i)) + f / factor * blend(i)) as f32).collect()
            }
        };
        Rope { theta, scaling, inv_freq, multiplier: multiplier(scaling) }
    }
}

/// The share of the divided frequency at each index.
fn yarn_blend(
    theta: f64,
    head_dim: usize,
    original: f64,
    fast: f64,
    slow: f64,
    truncate: bool,
) -> impl Fn(usize) -> f64 {
    let d = head_dim as f64;
    // The index whose frequency makes this many turns over the original context.
    let index_of = |turns: f64| d * (original / (TAU * turns)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) = (index_of(fast), index_of(slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(d - 1.0));
    if low == high {
        high += 0.001; // As transformers does, so that the ramp stays finite.
    }
    move |i| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0)
}

fn multiplier(scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::Yarn { attention_factor: Some(stated), .. } => stated,
        RopeScaling::Yarn { factor, .. } => 0.1 * factor.ln() + 1.0,
        _ => 1.0,
    }
}

/// The type of a layer's attention as configurations write it.
pub(crate) fn layer_type(window: Option<usize>) -> &'static str {
    match window {
        Some(_) => "sliding_attention",
        None => "full_attention",
    }
}

/// The distinct rotations of a model, and each layer's index into them.
pub(crate) fn ropes(
    fields: Fields,
    family: &Family,
    head_dim: usize,
    windows: &[Option<usize>],
    notes: &mut Vec<String>,
) -> Read<(Vec<Rope>, Vec<usize>)> {
    let top_theta = fields.positive("rope_theta")?;
    let Some(key) = stated_key(fields)? else {
        let theta = theta(fields, family, top_theta, notes)?;
        return Ok((vec![Rope::new(theta, RopeScaling::Default, head_dim)], vec![0; windows.len()]));
    };
    let pointer = format!("/{key}");
    let Some(Value::Object(map)) = fields.map.get(key) else {
        return Err(fields.mistyped(key, &show(&fields.map[key]), "an object { … } or null"));
    };
    let inner = Fields { doc: fields.doc, map, pointer: &pointer };
    if !is_nested(inner) {
        let rope = one_rope(inner, family, top_theta, true, head_dim, notes)?;
        return Ok((vec![rope], vec![0; windows.len()]));
    }
    nested(inner, family, top_theta, head_dim, windows, notes)
}

/// Which of the two keys states the rotation; both may be there only if they say the same.
fn stated_key(fields: Fields) -> Read<Option<&'static str>> {
    match (fields.given("rope_scaling")?, fields.given("rope_parameters")?) {
        (Some(old), Some(new)) if old != new => {
            Err(fields.invalid("rope_parameters", "rope_scaling says something else; keep one of the two"))
        }
        (_, Some(_)) => Ok(Some("rope_parameters")),
        (Some(_), None) => Ok(Some("rope_scaling")),
        (None, None) => Ok(None),
    }
}

fn is_nested(inner: Fields) -> bool {
    inner.map.keys().any(|k| k.ends_with("_attention"))
}

/// One entry per layer type: each layer takes that of its own type.
fn nested(
    inner: Fields,
    family: &Family,
    top_theta: Option<f64>,
    head_dim: usize,
    windows: &[Option<usize>],
    notes: &mut Vec<String>,
) -> Read<(Vec<Rope>, Vec<usize>)> {
    let known = [layer_type(None), layer_type(Some(1))];
    let mut ropes: Vec<Rope> = Vec::new();
    let mut by_type: Vec<(&str, usize)> = Vec::new();
    for (key, value) in inner.map {
        let pointer = format!("{}/{key}", inner.pointer);
        let (true, Value::Object(map)) = (known.contains(&key.as_str()), value) else {
            return Err(inner.invalid(
                key,
                format!(
                    "is not a layer type with an object; beside another layer type only {} are known",
                    known.join(" and ")
                ),
            ));
        };
        let rope =
            one_rope(Fields { doc: inner.doc, map, pointer: &pointer }, family, top_theta, false, head_dim, notes)?;
        let index = ropes.iter().position(|r| *r == rope).unwrap_or(ropes.len());
        if index == ropes.len() {
            ropes.push(rope);
        }
        by_type.push((key, index));
    }
    let of_layer = windows.iter().map(|w| {
        let wanted = layer_type(*w);
        let found = by_type.iter().find(|(k, _)| *k == wanted);
        found.map(|(_, i)| *i).ok_or_else(|| inner.missing(wanted))
    });
    let of_layer = of_layer.collect::<Read<Vec<usize>>>()?;
    Ok((ropes, of_layer))
}

/// `rope_theta` from the places it may stand in.
fn theta(fields: Fields, family: &Family, stated: Option<f64>, notes: &mut Vec<String>) -> Read<f64> {
    let theta = stated.unwrap_or_else(|| {
        notes.push(format!(
            "rope_theta is absent: {} is taken, the default of {}",
            family.rope_theta, family.model_type
        ));
        family.rope_theta
    });
    if theta <= 1.0 {
        return Err(fields.invalid("rope_theta", format!("{theta} must be above 1")));
    }
    Ok(theta)
}

fn one_rope(
    inner: Fields,
    family: &Family,
    top_theta: Option<f64>,
    flat: bool,
    head_dim: usize,
    notes: &mut Vec<String>,
) -> Read<Rope> {
    let own = inner.positive("rope_theta")?;
    if let (Some(own), Some(top), true) = (own, top_theta, flat) {
        if own != top {
            return Err(inner
                .invalid("rope_theta", format!("{own} here, but {top} at the top of the file; keep one of the two")));
        }
    }
    let kind = rope_type(inner)?;
    check_keys(inner, kind)?;
    let scaling = scaling(inner, kind)?;
    let theta = theta(inner, family, own.or(top_theta), notes)?;
    Ok(Rope::new(theta, scaling, head_dim))
}

/// The type, from either spelling of its key.
fn rope_type(inner: Fields) -> Read<&'static str> {
    let (new, old) = (inner.text("rope_type")?, inner.text("type")?);
    let (key, written) = match (new, old) {
        (Some(new), Some(old)) if new != old => {
            return Err(
                inner.invalid("type", format!("\"{old}\" here, but rope_type is \"{new}\"; keep one of the two"))
            )
        }
        (Some(new), _) => ("rope_type", new),
        (None, Some(old)) => ("type", old),
        (None, None) if inner.map.contains_key("factor") => return Err(inner.missing("rope_type")),
        (None, None) => return Ok("default"),
    };
    let known = TYPES.iter().find(|t| **t == written);
    known.copied().ok_or_else(|| {
        inner.invalid(key, format!("\"{written}\" is not supported; the known rope types are {}", TYPES.join(", ")))
    })
}

/// Refuses keys that the type does not read.
fn check_keys(inner: Fields, kind: &str) -> Read<()> {
    let own: &[&str] = match kind {
        "linear" => &["factor"],
        "llama3" => &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
        "yarn" => {
            &["factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate", "attention_factor"]
        }
        _ => &[],
    };
    let known = || ["rope_type", "type", "rope_theta", "partial_rotary_factor"].into_iter().chain(own.iter().copied());
    for (key, value) in inner.map {
        if key == "partial_rotary_factor" && !value.is_null() && value.as_f64() != Some(1.0) {
            let meaning = "rotating only a part of each head is not supported";
            return Err(ConfigError::Unsupported {
                place: inner.place(key),
                key: inner.name(key),
                value: show(value),
                meaning,
                accepted: "1.0 or null".into(),
            });
        }
        if !known().any(|k| k == key) && !value.is_null() {
            let known: Vec<&str> = known().collect();
            let near = nearest(key, known.iter().copied()).map_or_else(String::new, |n| format!("; did you mean {n}?"));
            return Err(
                inner.invalid(key, format!("is not a key of rope type {kind} (its keys: {}){near}", known.join(", ")))
            );
        }
    }
    Ok(())
}

fn scaling(inner: Fields, kind: &str) -> Read<RopeScaling> {
    let number = |key: &str| inner.positive(key)?.ok_or_else(|| inner.missing(key));
    let factor = || match number("factor")? {
        f if f < 1.0 => Err(inner.invalid("factor", format!("{f} must be at least 1"))),
        f => Ok(f),
    };
    match kind {
        "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
        "llama3" => {
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            if low >= high {
                return Err(inner.invalid("high_freq_factor", format!("{high} must be above low_freq_factor, {low}")));
            }
            let original_max_positions = inner.required_size("original_max_position_embeddings")?;
            Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_positions,
            })
        }
        "yarn" => {
            let optional = |key: &str| {
                if inner.given(key)?.is_some() {
                    inner.positive(key)
                } else {
                    Ok(None)
                }
            };
            let (beta_fast, beta_slow) =
                (optional("beta_fast")?.unwrap_or(32.0), optional("beta_slow")?.unwrap_or(1.0));
            if beta_slow >= beta_fast {
                return Err(inner.invalid("beta_fast", format!("{beta_fast} must be above beta_slow, {beta_slow}")));
            }
            Ok(RopeScaling::Yarn {
                factor: factor()?,
                original_max_positions: inner.required_size("original_max_position_embeddings")?,
                beta_fast,
                beta_slow,
                truncate: inner.flag("truncate")?.unwrap_or(true),
                attention_factor: optional("attention_factor")?,
            })
        }
        _ => Ok(RopeScaling::Default),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(theta: f64, scaling: RopeScaling, head_dim: usize) -> Vec<u32> {
        Rope::new(theta, scaling, head_dim).inv_freq.iter().map(|f| f.to_bits()).collect()
    }

    #[test]
    fn default_frequencies_match_the_vectors() {
        assert_eq!(
            bits(1e4, RopeScaling::Default, 16),
            [0x3f800000, 0x3ea1e89b, 0x3dcccccd, 0x3d0186e2, 0x3c23d70a, 0x3b4f3e37, 0x3a83126f, 0x39a5cb5f]
        );
        assert_eq!(
            bits(15e4, RopeScaling::Default, 16),
            [0x3f800000, 0x3e66d3fa, 0x3d502195, 0x3c3baa82, 0x3b293696, 0x3a189328, 0x3909928c, 0x37f81728]
        );
        assert_eq!(
            bits(1e6, RopeScaling::Default, 16),
            [0x3f800000, 0x3e361887, 0x3d0186e2, 0x3bb8449c, 0x3a83126f, 0x393a7753, 0x3804a2b3, 0x36bcb0c1]
        );
        assert_eq!(bits(1e4, RopeScaling::Default, 8), [0x3f800000, 0x3dcccccd, 0x3c23d70a, 0x3a83126f]);
    }

    #[test]
    fn llama3_frequencies_match_the_vector() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 32,
        };
        assert_eq!(
            bits(1e4, scaling, 16),
            [0x3f800000, 0x3dc447c1, 0x3c4ccccd, 0x3b8186e2, 0x3aa3d70a, 0x39cf3e37, 0x3903126f, 0x3825cb5f]
        );
    }

    #[test]
    fn yarn_frequencies_match_the_vector() {
        let scaling = RopeScaling::Yarn {
            factor: 32.0,
            original_max_positions: 32,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: false,
            attention_factor: None,
        };
        assert_eq!(
            bits(15e4, scaling, 16),
            [0x3f800000, 0x3cd16d30, 0x3ad02195, 0x39bbaa82, 0x38a93696, 0x37989328, 0x3689928c, 0x35781728]
        );
        assert!((multiplier(scaling) - 1.3465735902799727).abs() < 1e-15);
    }

    #[test]
    fn linear_divides() {
        let halves = Rope::new(1e4, RopeScaling::Linear { factor: 2.0 }, 16).inv_freq;
        let plain = Rope::new(1e4, RopeScaling::Default, 16).inv_freq;
        assert!(halves.iter().zip(&plain).all(|(h, p)| h * 2.0 == *p));
    }
}
