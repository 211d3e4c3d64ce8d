//! Every device primitive on inputs that tell elements apart, with what it must give, bit for bit.
//!
//! What is expected is computed here, from the meaning that the list of primitives gives each of
//! them; a test holds these numbers against the bodies that run under emulation, on the same inputs.
//! Functions of the C library are compared in units in the last place instead: their bounds are those
//! of the CUDA programming guide's table of maximum errors, plus one for the host's own.

use autoshard_codegen::cuda::{PRIMITIVES, SUPPORT};
use autoshard_ir::ops::random_unit;
use sha2::{Digest, Sha256};

/// Threads of a block.
pub const BLOCK: usize = 256;

/// What an output must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// These bytes, of elements of so many bytes.
    Bits(Vec<u8>, usize),
    /// These f32 numbers, up to so many units in the last place.
    F32(Vec<f64>, f64),
    /// The same in f64.
    F64(Vec<f64>, f64),
}

/// A check: a text with one entry point of blocks of [`BLOCK`] threads, whose parameters are the
/// inputs and the output.
#[derive(Clone, Debug)]
pub struct Primitive {
    /// What it checks.
    pub name: &'static str,
    /// Name of the entry point, from a hash of the text.
    pub entry: String,
    /// The text.
    pub source: String,
    /// Blocks.
    pub blocks: usize,
    /// Bytes of the inputs.
    pub inputs: Vec<Vec<u8>>,
    /// What the output must be.
    pub expected: Expected,
    /// Whether the emulation, too, gives exactly this.
    pub emulated: bool,
}

impl Expected {
    /// Bytes of the output.
    pub fn bytes(&self) -> usize {
        match self {
            Expected::Bits(b, _) => b.len(),
            Expected::F32(v, _) => 4 * v.len(),
            Expected::F64(v, _) => 8 * v.len(),
        }
    }
}

/// Builds a check of `n` threads. In `body`, `i` is the thread's number, `a`, `b` the inputs and `out`
/// the output, as pointers to unsigned.
fn make(
    name: &'static str,
    n: usize,
    prelude: &str,
    body: &str,
    inputs: Vec<Vec<u8>>,
    expected: Expected,
) -> Primitive {
    let parameters: Vec<String> = (0..=inputs.len()).map(|b| format!("void* b{b}")).collect();
    let mut lines = format!("\n{prelude}\nKERNEL({BLOCK}) ENTRY({}) {{\n", parameters.join(", "));
    // Shared memory is declared first.
    let (shared, rest): (Vec<&str>, Vec<&str>) = body.lines().partition(|l| l.trim_start().starts_with("SHARED("));
    shared.iter().for_each(|l| lines += &format!("{l}\n"));
    lines += &format!("  const unsigned i = blockIdx.x * {BLOCK}u + threadIdx.x;\n");
    for (k, pointer) in ["a", "b"].iter().enumerate().take(inputs.len()) {
        lines += &format!("  const unsigned* {pointer} = (const unsigned*)b{k};\n");
    }
    lines += &format!("  unsigned* out = (unsigned*)b{};\n", inputs.len());
    rest.iter().for_each(|l| lines += &format!("{l}\n"));
    let source = format!("{PRIMITIVES}\n{SUPPORT}\n{lines}}}\nEXPORT_KERNEL(ENTRY)\n");
    let hash = Sha256::digest(source.as_bytes());
    let entry = hash[..8].iter().fold("p".to_string(), |s, b| format!("{s}{b:02x}"));
    let source = source.replace("ENTRY", &entry);
    Primitive { name, entry, source, blocks: n / BLOCK, inputs, expected, emulated: true }
}

/// A pattern of a counter: every bit varies.
fn pattern(i: usize, salt: u64) -> u64 {
    (i as u64 + 1 + (salt << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17) ^ i as u64
}

fn words(n: usize, f: impl Fn(usize) -> u32) -> Vec<u8> {
    (0..n).flat_map(|i| f(i).to_le_bytes()).collect()
}

fn shorts(n: usize, f: impl Fn(usize) -> u16) -> Vec<u8> {
    (0..n).flat_map(|i| f(i).to_le_bytes()).collect()
}

fn longs(n: usize, f: impl Fn(usize) -> u64) -> Vec<u8> {
    (0..n).flat_map(|i| f(i).to_le_bytes()).collect()
}

fn bits32(bytes: Vec<u8>) -> Expected {
    Expected::Bits(bytes, 4)
}

/// Nearest bf16, ties to even; NaN gives 0x7fff.
fn to_bf16(bits: u32) -> u16 {
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return 0x7fff;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// The larger, as the hardware has it: NaN (0x7fffffff) if either is, +0 over −0.
fn max_bits(a: u32, b: u32) -> u32 {
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    if x.is_nan() || y.is_nan() {
        0x7fff_ffff
    } else if x == y {
        a & b
    } else if x > y {
        a
    } else {
        b
    }
}

/// Numbers whose order and sign matter, and NaNs.
const SPECIAL: [u32; 16] = [
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffc0_0001,
    0x7f80_0001,
    0x0000_0001,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x3f80_0001,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x4049_0fdb,
    0xc2f7_0000,
];

/// All checks.
pub fn all() -> Vec<Primitive> {
    let mut out = vec![];
    out.extend(geometry());
    out.extend(conversions());
    out.extend(memory());
    out.extend(warps());
    out.extend(maxima());
    out.extend(functions());
    out
}

fn geometry() -> Vec<Primitive> {
    let n = 8 * BLOCK;
    let index = bits32(words(n, |i| (i / BLOCK * 1000 + i % BLOCK) as u32));
    let index =
        make("KERNEL, blockIdx, threadIdx", n, "", "  out[i] = blockIdx.x * 1000u + threadIdx.x;", vec![], index);
    let input = words(n, |i| pattern(i, 1) as u32);
    let reversed = bits32(words(n, |i| pattern(i / BLOCK * BLOCK + (BLOCK - 1 - i % BLOCK), 1) as u32));
    let body =
        "  SHARED(unsigned, s, 256);\n  s[threadIdx.x] = a[i];\n  __syncthreads();\n  out[i] = s[255u - threadIdx.x];";
    let shared = make("SHARED, __syncthreads", n, "", body, vec![input], reversed);
    // An odd array first: the second must be aligned all the same.
    let input = words(4 * n, |i| pattern(i, 2) as u32);
    let moved = |i: usize| {
        let (thread, word) = (i / 4, i % 4);
        pattern(4 * (thread / BLOCK * BLOCK + (thread % BLOCK + 37) % BLOCK) + word, 2) as u32
    };
    let body = "  SHARED(unsigned, odd, 3);\n  SHARED(unsigned, s, 1024);\n  if (threadIdx.x < 3) odd[threadIdx.x] = a[i];\n  \
        store16(s + 4 * threadIdx.x, load16(a + 4 * i));\n  __syncthreads();\n  \
        store16(out + 4 * i, load16(s + 4 * ((threadIdx.x + 37u) % 256u)));\n  \
        if (threadIdx.x == 0 && odd[0] == 12345u && odd[1] == 54321u) out[4 * i] = odd[2];";
    let aligned = make("SHARED alignment, load16, store16", n, "", body, vec![input], bits32(words(4 * n, moved)));
    let table: Vec<String> = (0..64).map(|i| format!("{}u", pattern(i, 3) as u32)).collect();
    let prelude = format!("CONSTANT unsigned table[64] = {{{}}};", table.join(", "));
    let sums = bits32(words(n, |i| (0..4).fold(0u32, |s, k| s.wrapping_add(pattern((i + k) % 64, 3) as u32))));
    let body =
        "  unsigned sum = 0;\n  UNROLL for (unsigned k = 0; k < 4; ++k) sum += table[(i + k) % 64u];\n  out[i] = sum;";
    vec![index, shared, aligned, make("CONSTANT, UNROLL", n, &prelude, body, vec![], sums)]
}

fn conversions() -> Vec<Primitive> {
    let n = 1 << 16;
    let any = |i: usize| pattern(i, 4) as u32;
    let same = bits32(words(n, any));
    let float = "  out[i] = f32_bits(((const float*)a)[i]);";
    let bits = "  ((float*)out)[i] = bits_f32(a[i]);";
    let wide = bits32(words(n, |i| (i as u32) << 16));
    let halves = shorts(n, |i| i as u16);
    // Every upper half with the lower halves around a tie.
    let lows = [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
    let value = |i: usize| ((i / lows.len()) as u32) << 16 | lows[i % lows.len()];
    let many = n * lows.len();
    let narrow = Expected::Bits(shorts(many, |i| to_bf16(value(i))), 2);
    let double = |i: usize| pattern(i, 5);
    let halves_of =
        "  out[2 * i] = f64_low(((const double*)a)[i]);\n  out[2 * i + 1] = f64_high(((const double*)a)[i]);";
    let random = |i: usize| pattern(i, 6);
    let units = (0..n).flat_map(|i| (random_unit(42, random(i)) as f32).to_bits().to_le_bytes()).collect();
    let unit = "  ((float*)out)[i] = random_unit(42ull, ((const unsigned long long*)a)[i]);";
    vec![
        make("f32_bits", n, "", float, vec![words(n, any)], same.clone()),
        make("bits_f32", n, "", bits, vec![words(n, any)], same),
        make(
            "bf16_to_f32",
            n,
            "",
            "  ((float*)out)[i] = bf16_to_f32(((const unsigned short*)a)[i]);",
            vec![halves],
            wide,
        ),
        make(
            "f32_to_bf16",
            many,
            "",
            "  ((unsigned short*)out)[i] = f32_to_bf16(((const float*)a)[i]);",
            vec![words(many, value)],
            narrow,
        ),
        make(
            "words_f64",
            n,
            "",
            "  ((double*)out)[i] = words_f64(a[2 * i], a[2 * i + 1]);",
            vec![longs(n, double)],
            Expected::Bits(longs(n, double), 8),
        ),
        make("f64_low, f64_high", n, "", halves_of, vec![longs(n, double)], Expected::Bits(longs(n, double), 4)),
        make("random_unit", n, "", unit, vec![longs(n, random)], bits32(units)),
    ]
}

fn memory() -> Vec<Primitive> {
    let n = 1 << 12;
    let from = |i: usize| (i * 5 + 3) % n;
    let input = |per: usize| words(per * n, |i| pattern(i, 7) as u32);
    let moved = |per: usize| bits32(words(per * n, |i| pattern(per * from(i / per) + i % per, 7) as u32));
    let turned = |per: usize| bits32(words(per * n, |i| pattern(per * (i / per) + (per - 1 - i % per), 7) as u32));
    let from = format!("(i * 5u + 3u) % {n}u");
    let wide = format!("  store16(out + 4 * i, load16(a + 4 * ({from})));");
    let half = format!("  store8(out + 2 * i, load8(a + 2 * ({from})));");
    let wide_parts = "  uint4 v = load16(a + 4 * i);\n  out[4 * i] = v.w;\n  out[4 * i + 1] = v.z;\n  out[4 * i + 2] = v.y;\n  out[4 * i + 3] = v.x;";
    let half_parts = "  uint2 v = load8(a + 2 * i);\n  out[2 * i] = v.y;\n  out[2 * i + 1] = v.x;";
    vec![
        make("load16, store16", n, "", &wide, vec![input(4)], moved(4)),
        make("load16's parts", n, "", wide_parts, vec![input(4)], turned(4)),
        make("load8, store8", n, "", &half, vec![input(2)], moved(2)),
        make("load8's parts", n, "", half_parts, vec![input(2)], turned(2)),
    ]
}

/// Masks of exchanges: all single bits, and all.
const MASKS: [usize; 7] = [1, 2, 4, 8, 16, 31, 0];

fn warps() -> Vec<Primitive> {
    let n = 4 * BLOCK;
    let exchange = |name, salt: u64, size: usize, statement: &str| {
        let bytes = |i: usize| pattern(i, salt).to_le_bytes()[..size].to_vec();
        let input = (0..n).flat_map(bytes).collect();
        let output =
            MASKS.iter().flat_map(|m| (0..n).flat_map(move |i| pattern(i ^ m, salt).to_le_bytes()[..size].to_vec()));
        let lines: Vec<String> = MASKS
            .iter()
            .enumerate()
            .map(|(k, m)| statement.replace("AT", &format!("{} + i", k * n)).replace("MASK", &m.to_string()))
            .collect();
        make(name, n, "", &lines.join("\n"), vec![input], Expected::Bits(output.collect(), size))
    };
    let float = "  ((float*)out)[AT] = shfl_xor_f32(((const float*)a)[i], MASK);";
    let double = "  ((double*)out)[AT] = shfl_xor_f64(((const double*)a)[i], MASK);";
    // Bit `lane` of the warp's word is the thread's vote; votes are any number but 0.
    let word = |warp: usize| pattern(warp, 8) as u32;
    let votes = words(n, |i| if word(i / 32) >> (i % 32) & 1 == 1 { 1 << (i % 31) } else { 0 });
    let all = bits32(words(n, |i| word(i / 32)));
    let counts = bits32(words(n, |i| (pattern(i, 9) as u32 & (pattern(i, 10) as u32)).count_ones()));
    let counted = words(n, |i| pattern(i, 9) as u32 & (pattern(i, 10) as u32));
    vec![
        exchange("shfl_xor_f32", 11, 4, float),
        exchange("shfl_xor_f64", 12, 8, double),
        make("ballot", n, "", "  out[i] = ballot((int)a[i]);", vec![votes], all),
        make("popcount", n, "", "  out[i] = (unsigned)popcount(a[i]);", vec![counted], counts),
    ]
}

fn maxima() -> Vec<Primitive> {
    let n = 4 * BLOCK;
    let pair = |i: usize| match i {
        0..=255 => (SPECIAL[i / 16], SPECIAL[i % 16]),
        _ => (pattern(i, 13) as u32, pattern(i, 14) as u32),
    };
    let body = "  out[i] = f32_bits(max_f32(((const float*)a)[i], ((const float*)b)[i]));";
    let inputs = vec![words(n, |i| pair(i).0), words(n, |i| pair(i).1)];
    let wanted = bits32(words(n, |i| max_bits(pair(i).0, pair(i).1)));
    let max = make("max_f32", n, "", body, inputs, wanted);
    // Zeros of both signs: the emulation gives one of them.
    let zero = |i: usize| ((i as u32 & 1) << 31, (i as u32 >> 1 & 1) << 31);
    let inputs = vec![words(BLOCK, |i| zero(i).0), words(BLOCK, |i| zero(i).1)];
    let wanted = bits32(words(BLOCK, |i| max_bits(zero(i).0, zero(i).1)));
    let zeros = make("max_f32 of zeros", BLOCK, "", body, inputs, wanted);
    vec![max, Primitive { emulated: false, ..zeros }]
}

/// A number of a counter between two ends.
fn between(i: usize, salt: u64, low: f64, high: f64) -> f64 {
    low + (high - low) * (pattern(i, salt) >> 11) as f64 / (1u64 << 53) as f64
}

/// A function in C, its range, its truth in f64, and its bound.
type Function = (&'static str, &'static str, (f64, f64), fn(f64, f64) -> f64, f64);

const FUNCTIONS: &[Function] = &[
    ("expf", "expf(x)", (-100.0, 88.0), |x, _| x.exp(), 3.0),
    ("logf", "logf(x)", (1e-30, 1e4), |x, _| x.ln(), 2.0),
    ("sinf", "sinf(x)", (-1e5, 1e5), |x, _| x.sin(), 3.0),
    ("cosf", "cosf(x)", (-1e5, 1e5), |x, _| x.cos(), 3.0),
    ("tanhf", "tanhf(x)", (-10.0, 10.0), |x, _| x.tanh(), 3.0),
    ("sqrtf", "sqrtf(x)", (0.0, 1e10), |x, _| x.sqrt(), 0.5),
    ("fabsf", "fabsf(x)", (-1e3, 1e3), |x, _| x.abs(), 0.0),
    ("truncf", "truncf(x)", (-1e3, 1e3), |x, _| x.trunc(), 0.0),
    ("powf", "powf(x, y)", (0.1, 10.0), f64::powf, 9.0),
    ("division of floats", "x / y", (-1e3, 1e3), |x, y| x / y, 0.5),
];

const DOUBLES: &[Function] = &[
    ("exp", "exp(x)", (-700.0, 700.0), |x, _| x.exp(), 2.0),
    ("log", "log(x)", (1e-30, 1e4), |x, _| x.ln(), 2.0),
    ("sin", "sin(x)", (-1e5, 1e5), |x, _| x.sin(), 3.0),
    ("cos", "cos(x)", (-1e5, 1e5), |x, _| x.cos(), 3.0),
    ("tanh", "tanh(x)", (-10.0, 10.0), |x, _| x.tanh(), 3.0),
    ("sqrt", "sqrt(x)", (0.0, 1e10), |x, _| x.sqrt(), 0.0),
    ("fabs", "fabs(x)", (-1e3, 1e3), |x, _| x.abs(), 0.0),
    ("trunc", "trunc(x)", (-1e3, 1e3), |x, _| x.trunc(), 0.0),
    ("pow", "pow(x, y)", (0.1, 10.0), f64::powf, 3.0),
    ("division of doubles", "x / y", (-1e3, 1e3), |x, y| x / y, 0.0),
];

fn functions() -> Vec<Primitive> {
    let n = 16 * BLOCK;
    let float = FUNCTIONS.iter().enumerate().map(|(k, (name, c, (low, high), f, ulps))| {
        let at = |i: usize, salt: u64| between(i, salt + k as u64, *low, *high) as f32;
        let input = |salt: u64| words(n, move |i| at(i, salt).to_bits());
        let wanted = (0..n).map(|i| f(at(i, 20).into(), at(i, 40).into())).collect();
        let body = format!(
            "  const float x = ((const float*)a)[i], y = ((const float*)b)[i];\n  (void)y;\n  ((float*)out)[i] = {c};"
        );
        make(name, n, "", &body, vec![input(20), input(40)], Expected::F32(wanted, *ulps))
    });
    let double = DOUBLES.iter().enumerate().map(|(k, (name, c, (low, high), f, ulps))| {
        let at = |i: usize, salt: u64| between(i, salt + k as u64, *low, *high);
        let input = |salt: u64| longs(n, move |i| at(i, salt).to_bits());
        let wanted = (0..n).map(|i| f(at(i, 60), at(i, 80))).collect();
        let body = format!("  const double x = ((const double*)a)[i], y = ((const double*)b)[i];\n  (void)y;\n  ((double*)out)[i] = {c};");
        make(name, n, "", &body, vec![input(60), input(80)], Expected::F64(wanted, *ulps))
    });
    float.chain(double).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_primitive_of_the_list_is_checked() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|p| p.name).collect();
        assert_eq!(names.len(), all.len());
        let own: String = all.iter().map(|p| p.source[PRIMITIVES.len() + SUPPORT.len()..].to_string()).collect();
        let macros = PRIMITIVES.lines().filter_map(|l| l.strip_prefix("#define ")?.split(['(', ' ']).next());
        let functions =
            PRIMITIVES.lines().filter_map(|l| l.strip_prefix("DEVICE ")?.split('(').next()?.split(' ').next_back());
        // All functions are defined with DEVICE.
        let names: Vec<&str> = macros.chain(functions).filter(|n| *n != "DEVICE").collect();
        assert!(names.len() > 20, "{names:?}");
        for name in names {
            assert!(own.contains(name), "{name} has no check");
        }
        for p in &all {
            assert_eq!(p.expected.bytes() % p.blocks, 0, "{}", p.name);
            assert!(p.source.contains(&format!("EXPORT_KERNEL({})", p.entry)), "{}", p.name);
        }
    }

    #[test]
    fn what_is_expected_is_what_types_do() {
        use autoshard_ir::DType;
        for x in [1.0f32, -1.003_906_2, 1.011_718_8, 3.4e38, 1e-40, -0.0, f32::INFINITY] {
            let want = DType::Bf16.round(x.into()) as f32;
            assert_eq!(u32::from(to_bf16(x.to_bits())) << 16, want.to_bits(), "{x}");
        }
        assert_eq!(to_bf16(f32::NAN.to_bits()), 0x7fff);
        assert_eq!(max_bits(0x8000_0000, 0), 0);
        assert_eq!(max_bits(0x8000_0000, 0x8000_0000), 0x8000_0000);
        assert_eq!(max_bits(2.0f32.to_bits(), (-3.0f32).to_bits()), 2.0f32.to_bits());
    }
}
