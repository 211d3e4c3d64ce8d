//! From a question to a time: whose table, and what is done where there is none.

use super::base::{Base, Demand};
use super::grid::Grid;
use super::products::Figures;
use super::{attention, Attention, How, Product, Rates, Tables, Time};
use crate::device::{Device, Format};

/// Times of kernels on one device.
#[derive(Clone, Debug)]
pub struct Kernels {
    device: Device,
    tables: Tables,
    rates: Rates,
    /// Seconds of a launch.
    launch: f64,
    /// Bytes/s that a loop reaches.
    streaming: f64,
}

/// Share of the memory bandwidth of a large copy where none was measured: between A100's 0.79 and H100's 0.87
/// (`data/kernels/rates.csv`).
const COPY: f64 = 0.83;

/// Part of the traffic of fp32 accumulation that a product does not hide. Weight gradients that add 8 bytes an
/// element into main gradients, against the same sizes with a bf16 result: the median of (time more) /
/// (time of those bytes alone) is 0.35 of 61 shapes on A100 PCIe and 0.40 of 144 on B200 (SimuMax @4dcaae5,
/// `a100_pcie.json`, `b200_bf16_ceperm.json`).
const UNHIDDEN: f64 = 0.4;

/// Rate of a grouped product over that of one product with all its rows: medians of grouped (0.647) and plain
/// (0.738) products on A100 PCIe (SimuMax @4dcaae5). On B200 it is 0.61, of smaller groups.
const GROUPED: f64 = 0.876;

/// Columns of a product that is little more than reading its left operand.
const THIN: f64 = 64.0;

/// Rows that a group is rounded up to: a group fills its own tiles.
const GROUP_ROWS: f64 = 128.0;

/// Rate of fused attention over that of products at the same peak, where nothing was measured: FlashAttention
/// reaches 0.60–0.62 of A100's and H100's peaks at 16,384 positions (`assets/*.png` @0251105), products 0.78.
const ATTENTION: f64 = 0.78;

/// Formats in the order in which another one stands in. fp8 and int8 have units of the same rate, but a device
/// with int8 units alone (A100) computes fp8 operands in bf16.
fn substitutes(format: Format) -> &'static [Format] {
    match format {
        Format::Fp8 => &[Format::Fp8, Format::Bf16, Format::Fp16],
        Format::Int8 => &[Format::Int8, Format::Fp8, Format::Bf16, Format::Fp16],
        Format::Fp4 => &[Format::Fp4, Format::Fp8, Format::Bf16, Format::Fp16],
        Format::Bf16 => &[Format::Bf16, Format::Fp16],
        Format::Fp16 => &[Format::Fp16, Format::Bf16],
        Format::Tf32 => &[Format::Tf32, Format::Fp32, Format::Bf16, Format::Fp16],
        Format::Fp32 => &[Format::Fp32, Format::Tf32, Format::Bf16, Format::Fp16],
        Format::Fp64 => &[Format::Fp64, Format::Fp32],
    }
}

/// Whether one format's table is as good as the other's: bf16 and fp16 run on the same units at one rate.
fn alike(a: Format, b: Format) -> bool {
    let half = |f| matches!(f, Format::Bf16 | Format::Fp16);
    a == b || (half(a) && half(b))
}

fn peak_in(peaks: &[(Format, f64)], format: Format) -> Option<f64> {
    peaks.iter().find(|(f, _)| *f == format).map(|(_, p)| *p)
}

impl Kernels {
    /// Prices for a device. `tables` may be of a related device, then scaled by the ratio of peaks; or empty.
    pub fn new(device: &Device, tables: Tables, rates: Rates) -> Kernels {
        // The least product of a table is a launch and nothing else; bf16's, because fp8 rows quantise too.
        let table = tables.product(Format::Bf16).or_else(|| tables.products.first().map(|(_, g)| g));
        let launch = table.map_or(Base::TYPICAL.launch, Grid::floor);
        let streaming = device.memory_bandwidth.max(1.0) * rates.copy.unwrap_or(COPY);
        Kernels { device: device.clone(), tables, rates, launch, streaming }
    }

    /// Time of a product as the tables have it, or of `count` equal ones in one launch: then of one product with
    /// all rows, each group's rounded up to whole tiles, at `GROUPED` of its rate, and not before all operands are
    /// read.
    pub fn product(&self, p: &Product) -> Time {
        self.priced(p, false)
    }

    /// Time of a product whose operands are in its format already.
    ///
    /// Tables of eight-bit products bring the left operand to eight bits first: 16,384 × 4096 elements times a
    /// matrix of 32 columns take 107 µs on GB200 in fp8 and 22 µs in bf16, and the difference grows with the
    /// elements alone. What the thinnest product of the table takes beyond reading its operand once is taken off.
    pub fn product_of_narrow(&self, p: &Product) -> Time {
        self.priced(p, true)
    }

    fn priced(&self, p: &Product, cast: bool) -> Time {
        let none = !(p.m > 0.0 && p.n > 0.0 && p.k > 0.0 && p.count > 0.0);
        if none {
            return Time { seconds: 0.0, how: How::Roofline };
        }
        let grouped = p.count > 1.0;
        let rows = if grouped { p.count * (p.m / GROUP_ROWS).ceil() * GROUP_ROWS } else { p.m };
        let mut time = self.plain(p.format, rows, p.n, p.k, cast);
        if grouped {
            time.seconds /= GROUPED;
            let bytes = p.format.bytes() * p.count * (p.m * p.k + p.n * p.k);
            time.seconds = time.seconds.max(self.launch + bytes / self.streaming);
        }
        if p.accumulate {
            let bytes = 8.0 * p.m * p.n * p.count;
            let operands = p.format.bytes() * p.count * (p.m * p.k + p.n * p.k);
            let overlapped = time.seconds + UNHIDDEN * bytes / self.streaming;
            time.seconds = overlapped.max(self.launch + (bytes + operands) / self.streaming);
        }
        time
    }

    /// Seconds that a time of an eight-bit grid spends on bringing an operand of m·k elements to eight bits; none
    /// without a grid of the 16-bit format to compare with.
    fn cast(&self, source: Format, grid: &Grid, m: f64, k: f64) -> f64 {
        let wide = self.tables.product(Format::Bf16).filter(|_| source.bytes() < 2.0);
        let Some(wide) = wide else { return 0.0 };
        let (thin, floor) = ([m, THIN, k], wide.floor());
        // The 16-bit product reads two bytes an element, the eight-bit one a half of that.
        let reading = floor + (wide.seconds(thin) - floor).max(0.0) * 0.5;
        (grid.seconds(thin) - reading).max(0.0)
    }

    /// One product. fp16 takes bf16's table: the same units at the same rate. With `cast` its operands are in
    /// the format already.
    fn plain(&self, format: Format, m: f64, n: f64, k: f64, cast: bool) -> Time {
        let found = substitutes(format).iter().find_map(|f| Some((*f, self.tables.product(*f)?)));
        let Some((source, grid)) = found else {
            return Time {
                seconds: self.roofline(format).seconds(&self.figures(format).demand(m, n, k)),
                how: How::Roofline,
            };
        };
        let whole = grid.seconds([m, n, k]);
        let taken = if cast { self.cast(source, grid, m, k) } else { 0.0 };
        let peak = peak_in(&self.tables.peak, source).unwrap_or(f64::INFINITY);
        let least = grid.floor().max(2.0 * m * n * k / peak).min(whole);
        let seconds = (whole - taken).max(least);
        if alike(source, format) && self.own() {
            let how = if grid.covers([m, n, k]) { How::Interpolated } else { How::Extrapolated };
            return Time { seconds, how };
        }
        let d = self.figures(format).demand(m, n, k);
        Time { seconds: self.scaled(seconds, grid.floor(), source, format, &d), how: How::Related }
    }

    /// A time of another device's or format's table, and not less than the bytes take here. Where this one is
    /// faster, what is above a launch shrinks by the ratio of peaks. Where it is slower, the FLOPs' time at the
    /// typical share of the peak grows by it: stretching the table's time would stretch its small falls too.
    fn scaled(&self, seconds: f64, floor: f64, source: Format, format: Format, d: &Demand) -> f64 {
        let there = peak_in(&self.tables.peak, source);
        let here = self.device.peak_of(format).or_else(|| self.device.peak_of(source));
        let ratio = match (there, here) {
            (Some(t), Some(h)) if h > 0.0 => t / h,
            _ => 1.0,
        };
        let share = self.streaming / self.device.memory_bandwidth.max(1.0);
        let scaled = if ratio <= 1.0 {
            floor + (seconds - floor).max(0.0) * ratio
        } else {
            seconds + d.compute * (1.0 - 1.0 / ratio) / Base::TYPICAL.compute_share
        };
        scaled.max(self.launch + d.memory / share)
    }

    /// Time of fused attention. A backward is the forward times [`attention::backward_ratio`].
    pub fn attention(&self, a: &Attention) -> Time {
        let sizes = [a.batch, a.queries, a.keys, a.heads, a.kv_heads, a.head_dim, a.value_dim, a.share];
        if sizes.iter().any(|s| s.is_nan() || *s <= 0.0) {
            return Time { seconds: 0.0, how: How::Roofline };
        }
        let mut time = match attention::seconds(&self.tables.attention, a) {
            Some((seconds, inside)) if self.own() => {
                Time { seconds, how: if inside { How::Interpolated } else { How::Extrapolated } }
            }
            Some((seconds, _)) => {
                let d = self.attention_demand(a);
                let seconds = self.scaled(seconds, self.launch, Format::Bf16, Format::Bf16, &d);
                Time { seconds, how: How::Related }
            }
            None => {
                let mut base = self.roofline(Format::Bf16);
                base.compute_share *= ATTENTION;
                Time { seconds: base.seconds(&self.attention_demand(a)), how: How::Roofline }
            }
        };
        if a.backward {
            time.seconds *= attention::backward_ratio(attention::square(a)[1]);
            time.how = time.how.max(How::Related);
        }
        time
    }

    /// Two products of `share` of the scores; queries, keys, values and results once, in 16 bits.
    fn attention_demand(&self, a: &Attention) -> Demand {
        let f = self.figures(Format::Bf16);
        let width = a.head_dim + a.value_dim;
        let flops = 2.0 * a.batch * a.heads * a.queries * a.keys * a.share * width;
        let bytes = 2.0 * a.batch * width * (a.heads * a.queries + a.kv_heads * a.keys);
        Demand { compute: flops / f.peak, memory: bytes / f.bandwidth, chain: 2.0 * a.share * a.keys / 1000.0 }
    }

    /// Time of a loop that moves `bytes` to and from memory: a launch, and the bytes at the rate of a large
    /// copy. Small loops reach a small share of the bandwidth because the launch does not shrink.
    pub fn loop_(&self, bytes: f64) -> Time {
        let how = match (self.rates.copy, self.own()) {
            (Some(_), true) => How::Interpolated,
            (None, true) => How::Related,
            _ => How::Roofline,
        };
        if bytes.is_nan() || bytes <= 0.0 {
            return Time { seconds: 0.0, how };
        }
        Time { seconds: self.launch + bytes / self.streaming, how }
    }

    /// Whether the tables are this device's.
    fn own(&self) -> bool {
        !self.tables.device.is_empty() && self.tables.device == self.device.id
    }

    /// Figures in a format, or in the next that the device has a peak for.
    fn figures(&self, format: Format) -> Figures {
        let here = substitutes(format).iter().find(|f| self.device.peak_of(**f).is_some());
        Figures { bytes: format.bytes(), ..Figures::of(&self.device, here.copied().unwrap_or(format)) }
    }

    /// The formula of a device without a table: the typical one, at its best measured rate where one is known.
    fn roofline(&self, format: Format) -> Base {
        let best = substitutes(format).iter().find_map(|f| peak_in(&self.rates.products, *f));
        let typical = Base::TYPICAL;
        let memory_share = self.streaming / self.device.memory_bandwidth.max(1.0);
        Base { compute_share: best.unwrap_or(typical.compute_share), memory_share, ..typical }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::rows::{ProductRow, Rows};

    fn device(id: &str, bf16: f64, bandwidth: f64) -> Device {
        let peak = vec![(Format::Bf16, bf16), (Format::Fp8, 2.0 * bf16)];
        Device { id: id.into(), peak, memory_bandwidth: bandwidth, units: Some(100), ..Device::default() }
    }

    fn product(format: Format, m: f64, n: f64, k: f64) -> Product {
        Product { format, m, n, k, count: 1.0, accumulate: false }
    }

    fn tables() -> Tables {
        let sizes = [64.0, 256.0, 1024.0, 4096.0];
        let each = |m| sizes.map(|n| sizes.map(|k| (m, n, k)));
        let shapes = sizes.map(each).into_iter().flatten().flatten();
        let us = |m: f64, n: f64, k: f64| 3.0 + 2.0 * m * n * k / 0.8e14 * 1e6;
        let rows = shapes.map(|(m, n, k)| ProductRow { format: Format::Bf16, m, n, k, us: us(m, n, k) });
        Tables::of(&Rows::Products(rows.collect()), &device("own", 1e14, 1e12))
    }

    #[test]
    fn how_says_where_a_time_comes_from() {
        let own = Kernels::new(&device("own", 1e14, 1e12), tables(), Rates::default());
        let p = product(Format::Bf16, 1024.0, 1024.0, 1024.0);
        assert_eq!(own.product(&p).how, How::Interpolated);
        assert_eq!(own.product(&product(Format::Bf16, 1e5, 64.0, 64.0)).how, How::Extrapolated);
        let half = own.product(&Product { format: Format::Fp8, ..p });
        assert_eq!(half.how, How::Related);
        assert!(half.seconds < own.product(&p).seconds);
        let related = Kernels::new(&device("other", 0.5e14, 1e12), tables(), Rates::default());
        let ratio = related.product(&p).seconds / own.product(&p).seconds;
        assert!(related.product(&p).how == How::Related && ratio > 1.7 && ratio <= 2.0, "{ratio}");
        let bare = Kernels::new(&device("own", 1e14, 1e12), Tables::default(), Rates::default());
        assert_eq!(bare.product(&p).how, How::Roofline);
    }

    #[test]
    fn a_narrow_product_is_free_of_its_cast() {
        let sizes = [64.0, 256.0, 1024.0, 4096.0, 16384.0];
        let each = |m| sizes.map(|n| sizes.map(|k| (m, n, k)));
        let shapes: Vec<_> = sizes.map(each).into_iter().flatten().flatten().collect();
        // A cast takes 10 bytes an element, a product its FLOPs at 0.8 of the peak or its left operand's bytes.
        let row = |format: Format, cast: f64, (m, n, k): (f64, f64, f64)| {
            let flops = 2.0 * m * n * k / (0.8e14 * 2.0 / format.bytes());
            let us = 3.0 + 1e6 * (flops.max(format.bytes() * m * k / 1e12) + cast * m * k / 1e12);
            ProductRow { format, m, n, k, us }
        };
        let rows = shapes.iter().flat_map(|s| [row(Format::Bf16, 0.0, *s), row(Format::Fp8, 10.0, *s)]);
        let d = device("own", 1e14, 1e12);
        let tables = Tables::of(&Rows::Products(rows.collect()), &d);
        let k = Kernels::new(&d, tables, Rates::default());
        let p = product(Format::Fp8, 16384.0, 4096.0, 4096.0);
        let (whole, alone) = (k.product(&p).seconds, k.product_of_narrow(&p).seconds);
        let (cast, flops) = (10.0 * 16384.0 * 4096.0 / 1e12, 2.0 * 16384.0 * 4096.0 * 4096.0 / 1.6e14);
        assert!((alone / (flops + 3e-6) - 1.0).abs() < 0.15 && (whole - alone) / cast > 0.8, "{whole} {alone} {cast}");
        // 16-bit products have no cast.
        let wide = product(Format::Bf16, 16384.0, 4096.0, 4096.0);
        assert_eq!(k.product(&wide), k.product_of_narrow(&wide));
    }

    #[test]
    fn groups_and_accumulation_cost_more() {
        let k = Kernels::new(&device("own", 1e14, 1e12), tables(), Rates::default());
        let one = product(Format::Bf16, 512.0, 1024.0, 1024.0);
        let eight = Product { count: 8.0, ..one };
        let whole = Product { m: 4096.0, ..one };
        assert!(k.product(&eight).seconds > k.product(&whole).seconds);
        assert!(k.product(&Product { accumulate: true, ..one }).seconds > k.product(&one).seconds);
        assert_eq!(k.product(&Product { m: 0.0, ..one }).seconds, 0.0);
        assert_eq!(k.product(&Product { m: f64::NAN, ..one }).seconds, 0.0);
    }

    #[test]
    fn loops_and_attention_grow_with_work() {
        let k = Kernels::new(&device("bare", 1e14, 1e12), Tables::default(), Rates::default());
        assert!(k.loop_(1e3).seconds > 1e-6 && k.loop_(1e9).seconds > 1e-3);
        let a = Attention {
            batch: 1.0,
            queries: 4096.0,
            keys: 4096.0,
            heads: 32.0,
            kv_heads: 8.0,
            head_dim: 128.0,
            value_dim: 128.0,
            share: 0.5,
            backward: false,
        };
        let forward = k.attention(&a);
        assert!(k.attention(&Attention { share: 1.0, ..a }).seconds > 1.8 * forward.seconds);
        assert!(k.attention(&Attention { backward: true, ..a }).seconds > 2.5 * forward.seconds);
        assert!(k.attention(&Attention { head_dim: 192.0, ..a }).seconds > forward.seconds);
    }
}
