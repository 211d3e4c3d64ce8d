//! Weights and tokens from a seed: the same bits in any language, any element on its own.
//!
//! Every value is integer arithmetic plus at most one f32 rounding. A *word* is the output of a SplitMix64
//! generator in counter form: `key(name, seed)` starts the stream of a tensor and `word(key, i)` is its
//! i-th output, so a rank makes just its own shard and every layout draws the same numbers. A word's top
//! 24 bits become an odd multiple of 2^-24 in (-1, 1), exact in f32, which [`InitKind`] scales.
//!
//! ```
//! use autoshard::weights::init::{InitKind, Stream};
//! let embedding = Stream::new("model.embed_tokens.weight", 0);
//! assert_eq!(embedding.value(InitKind::Matrix { fan_in: 64 }, 0).to_bits(), 0xbdd674a3);
//! ```

use autoshard_ir::ops::GOLDEN;
use std::ops::Range;

pub use autoshard_ir::ops::{fnv1a64, mix};

/// An FNV-1a hash that is being fed.
#[derive(Clone, Copy, Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xCBF2_9CE4_8422_2325)
    }
}

impl Fnv {
    fn bytes(self, bytes: &[u8]) -> Fnv {
        Fnv(bytes.iter().fold(self.0, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3)))
    }
}

/// The hash of token ids that ranks exchange and the goldens record: FNV-1a over little-endian i32.
pub fn token_hash(tokens: &[i32]) -> u64 {
    tokens.iter().fold(Fnv::default(), |h, t| h.bytes(&t.to_le_bytes())).0
}

/// The hash of a tensor's values that the goldens record: FNV-1a over little-endian f32.
pub fn value_hash(values: &[f32]) -> u64 {
    values.iter().fold(Fnv::default(), |h, v| h.bytes(&v.to_le_bytes())).0
}

/// Where the stream of a name starts.
pub fn key(name: &str, seed: u64) -> u64 {
    mix(fnv1a64(name.as_bytes()).wrapping_add(seed.wrapping_mul(GOLDEN)))
}

/// The `index`-th word of the stream that starts at `key`.
pub fn word(key: u64, index: u64) -> u64 {
    mix(key.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// A word as a number in (-1, 1): an odd multiple of 2^-24, never zero, exact in f32.
pub fn unit(word: u64) -> f32 {
    // Below 2^24 in size, so that neither the conversion nor the product rounds.
    let odd = 2 * (word >> 40) as i32 + 1 - (1 << 24);
    odd as f32 * (1.0 / 16_777_216.0)
}

/// How a tensor's initial values follow from the unit values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitKind {
    /// Two-dimensional weights: r · 2^-k with k the largest integer such that 4^k ≤ `fan_in`.
    Matrix {
        /// Inputs that each output sums over: the last dimension of an `[out, in]` weight.
        fan_in: usize,
    },
    /// The weight of a norm that multiplies by it: 1 + r/8.
    Gain,
    /// The weight of a norm that multiplies by one plus it: r/8.
    Gain0,
    /// A bias: r/16.
    Bias,
}

impl InitKind {
    /// The value that a unit value becomes.
    pub fn apply(self, r: f32) -> f32 {
        match self {
            InitKind::Matrix { fan_in } => r * matrix_scale(fan_in),
            InitKind::Gain => 1.0 + r * 0.125,
            InitKind::Gain0 => r * 0.125,
            InitKind::Bias => r * 0.0625,
        }
    }
}

/// 2^-k, k the largest integer with 4^k ≤ `fan_in`: about 1/√fan_in, and exact.
pub fn matrix_scale(fan_in: usize) -> f32 {
    let k = fan_in.max(1).ilog2() / 2;
    1.0 / (1u64 << k) as f32
}

/// The words of one tensor under one seed.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    key: u64,
}

impl Stream {
    /// The stream of the tensor with this checkpoint name.
    pub fn new(name: &str, seed: u64) -> Stream {
        Stream { key: key(name, seed) }
    }

    /// The initial value of the element with this row-major index.
    pub fn value(self, kind: InitKind, index: u64) -> f32 {
        kind.apply(unit(word(self.key, index)))
    }

    /// Appends the values of a range of row-major indices.
    pub fn extend(self, kind: InitKind, range: Range<u64>, out: &mut Vec<f32>) {
        out.extend(range.map(|i| self.value(kind, i)));
    }
}

/// The initial value of one element: its checkpoint name, kind, and row-major index in the checkpoint's
/// shape. For many elements keep a [`Stream`].
pub fn value(name: &str, kind: InitKind, index: u64, seed: u64) -> f32 {
    Stream::new(name, seed).value(kind, index)
}

/// One token of the synthetic data: `position` 0..=`seq_len` of sequence `row` of a step's global batch.
pub fn token(step: u64, row: u64, position: u64, batch: u64, seq_len: u64, vocab: u64, seed: u64) -> u32 {
    token_at(key("input_ids", seed), step.wrapping_mul(batch).wrapping_add(row), position, seq_len, vocab)
}

/// The same with the stream's key at hand and the sequence counted over all steps.
pub(crate) fn token_at(key: u64, sequence: u64, position: u64, seq_len: u64, vocab: u64) -> u32 {
    let index = sequence.wrapping_mul(seq_len + 1).wrapping_add(position);
    // 32 random bits times a vocabulary of at most 2^32, so the product fits and the result is below vocab.
    (((word(key, index) >> 32) * vocab) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMBED: &str = "model.embed_tokens.weight";

    #[test]
    fn words_match_the_vectors() {
        assert_eq!(fnv1a64(b"a"), 0xaf63dc4c8601ec8c);
        assert_eq!(mix(GOLDEN), 0xe220a8397b1dcdaf);
        assert_eq!(fnv1a64(EMBED.as_bytes()), 0xa88fd795d5c6d156);
        assert_eq!(key(EMBED, 0), 0x1acb025cf390dc05);
        assert_eq!(key(EMBED, 1), 0x5f0ce47989047d81);
        assert_eq!(key("model.layers.0.self_attn.q_proj.weight", 0), 0x3d33f6d36653c025);
        assert_eq!(key("input_ids", 0), 0x865d4ffc1797b740);
        let words: Vec<u64> = (0..4).map(|i| word(key(EMBED, 0), i)).collect();
        assert_eq!(words, [0x14c5ae35e159aee3, 0x6d6a6dc5def1b6d4, 0x01522141d20d14e6, 0x2e2bede531d6a6c0]);
        let units: Vec<u32> = words.iter().map(|&w| unit(w).to_bits()).collect();
        assert_eq!(units, [0xbf5674a3, 0xbe14ac94, 0xbf7d5bbd, 0xbf23a825]);
    }

    #[test]
    fn the_scale_is_a_power_of_two() {
        for (fan_in, k) in
            [(0, 0), (1, 0), (3, 0), (4, 1), (15, 1), (16, 2), (63, 2), (64, 3), (255, 3), (256, 4), (1024, 5)]
        {
            assert_eq!(matrix_scale(fan_in), 0.5f32.powi(k), "fan_in {fan_in}");
        }
    }

    /// First four values, last value (where the vector gives it), and hash of a whole tensor.
    fn check(name: &str, len: u64, kind: InitKind, first: [u32; 4], last: Option<u32>, hash: u64) {
        let mut values = Vec::new();
        Stream::new(name, 0).extend(kind, 0..len, &mut values);
        let bits: Vec<u32> = values[..4].iter().map(|v| v.to_bits()).collect();
        assert_eq!(bits, first, "{name}");
        if let Some(last) = last {
            assert_eq!(values[values.len() - 1].to_bits(), last, "{name}");
            assert_eq!(value(name, kind, len - 1, 0).to_bits(), last, "{name}");
        }
        assert_eq!(value_hash(&values), hash, "{name}");
    }

    #[test]
    fn tensors_match_the_vectors() {
        let matrix = |fan_in| InitKind::Matrix { fan_in };
        check(
            EMBED,
            256 * 64,
            matrix(64),
            [0xbdd674a3, 0xbc94ac94, 0xbdfd5bbd, 0xbda3a825],
            Some(0x3db69ae1),
            0xe44eefb848c3592a,
        );
        let q = "model.layers.0.self_attn.q_proj.weight";
        check(
            q,
            64 * 64,
            matrix(64),
            [0x3dfa6eb5, 0xbdbde28b, 0x3de77c8d, 0xbd1dfa32],
            Some(0x3d667ada),
            0xcbf09ab319f2a2e9,
        );
        let down = "model.layers.1.mlp.down_proj.weight";
        check(
            down,
            64 * 172,
            matrix(172),
            [0xbdaeab47, 0x3dec3657, 0x3d405506, 0x3ddb0b99],
            Some(0x3dfeb035),
            0xca844d7719504aab,
        );
        let norm = "model.layers.0.input_layernorm.weight";
        check(
            norm,
            64,
            InitKind::Gain,
            [0x3f897b6e, 0x3f6391db, 0x3f71d09b, 0x3f763c88],
            Some(0x3f6822c6),
            0x23367f6adeabb31f,
        );
        check(
            "lm_head.weight",
            256 * 64,
            matrix(64),
            [0xbc8eb464, 0xbdc15333, 0xbdabbf4f, 0xbde9328b],
            Some(0xbda4af59),
            0x26b2cabc24302b46,
        );
        let bias = "transformer.h.0.attn.c_attn.bias";
        check(bias, 192, InitKind::Bias, [0xbd25d07b, 0x3d6abd21, 0xbbe62788, 0xbc30a994], None, 0x5c00b76e6e676805);
        let conv = "transformer.h.0.mlp.c_proj.weight";
        check(conv, 256 * 64, matrix(256), [0x3d56df55, 0xbd353c27, 0xbc88a522, 0xbd2ab53f], None, 0x63b213c275378bd0);
        let gain0 = "model.layers.0.pre_feedforward_layernorm.weight";
        check(gain0, 64, InitKind::Gain0, [0x3d4d77e6, 0xbdfd06f5, 0xbdc5563b, 0xbd756d4e], None, 0xc40d219d3830464c);
    }

    #[test]
    fn tokens_match_the_vectors() {
        let row = |step, row, batch, seq_len, vocab| -> Vec<u32> {
            (0..8).map(|j| token(step, row, j, batch, seq_len, vocab, 0)).collect()
        };
        assert_eq!(row(0, 0, 4, 64, 256), [106, 182, 7, 48, 3, 77, 101, 22]);
        assert_eq!(row(0, 1, 4, 64, 256), [220, 146, 69, 68, 236, 197, 176, 21]);
        assert_eq!(row(3, 0, 4, 64, 256), [246, 198, 38, 203, 67, 134, 231, 123]);
        assert_eq!(row(0, 0, 8, 256, 4096), [1708, 2919, 116, 783, 62, 1241, 1624, 358]);
        let batch: Vec<i32> =
            (0..4).flat_map(|b| (0..=64).map(move |j| token(0, b, j, 4, 64, 256, 0) as i32)).collect();
        assert_eq!(token_hash(&batch), 0x9c2fd941efb89b07);
    }
}
