//! The times of one operation inside one kind of node: a law, what it leaves over, a grid of both.

use super::fit;
use super::grid::Grid;
use super::kriging::Field;
use super::law::Law;
use super::table::{Constants, DeviceTable};
use super::{Algorithm, Kind, Row};
use crate::kernels::How;

/// Rank counts that grids hold.
const RANKS: [f64; 18] =
    [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 72.0, 96.0, 128.0, 192.0, 256.0];

/// One operation of one device.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The fitted law.
    pub law: Law,
    grid: Grid,
    bytes: (f64, f64),
    ranks: (f64, f64),
    related: bool,
}

/// What a curve says of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Seconds.
    pub seconds: f64,
    /// How far from a measurement.
    pub how: How,
    /// What is fastest.
    pub algorithm: Algorithm,
}

impl Curve {
    /// Seconds of the operation over a whole buffer between two ranks or more.
    pub fn point(&self, ranks: f64, bytes: f64) -> Point {
        let (seconds, algorithm) = self.grid.seconds(ranks, bytes);
        let inside = |x: f64, (low, high): (f64, f64)| (low..=high).contains(&x);
        let how = match (self.related, inside(ranks, self.ranks) && inside(bytes, self.bytes)) {
            (true, _) => How::Related,
            (false, true) => How::Interpolated,
            (false, false) => How::Extrapolated,
        };
        Point { seconds, how, algorithm }
    }
}

/// Curves of a device's operations, by [`Kind::MEASURED`]; `None` where the table has no rows.
///
/// `ratio`: bandwidth of the links over that of those in the table; other than 1 the curves count as related.
/// `domain`: most ranks that a node or fabric joins.
pub fn curves(table: &DeviceTable, ratio: f64, related: bool, domain: u64, of: &Constants) -> [Option<Curve>; 4] {
    let kinds: Vec<Kind> = Kind::MEASURED.into_iter().filter(|k| fit::has(&table.rows, *k)).collect();
    let priors: Vec<Law> = kinds.iter().map(|k| Law::prior(*k, table.fabric, table.link, &of.law)).collect();
    let laws = fit::laws(&priors, &table.rows, &of.fit, &of.law);
    let made = laws.iter().map(|law| curve(law, &table.rows, ratio, related, domain, of));
    let mut out = [None, None, None, None];
    for (curve, kind) in made.zip(&kinds) {
        if let Some(i) = kind.index() {
            out[i] = Some(curve);
        }
    }
    out
}

fn curve(law: &Law, rows: &[Row], ratio: f64, related: bool, domain: u64, of: &Constants) -> Curve {
    let rows: Vec<&Row> = rows.iter().filter(|r| r.kind == law.kind && r.nodes == 1).collect();
    let at = rows.iter().map(|r| [r.bytes.log2(), (r.ranks as f64).log2()]).collect();
    let left: Vec<f64> =
        rows.iter().map(|r| (r.seconds / law.seconds(r.ranks as f64, r.bytes, &of.law)).ln()).collect();
    let shift = if law.kind == Kind::AllToAll { of.kriging.peer_shift } else { of.kriging.shift };
    let field = Field::new(at, &left, shift, of.kriging);
    let scaled = law.scaled(ratio);
    let most = domain.max(rows.iter().map(|r| r.ranks).max().unwrap_or(2)).max(4) as f64;
    let kept: Vec<f64> = RANKS.into_iter().filter(|g| *g <= most).collect();
    let grid = Grid::new(&kept, |g, bytes| {
        // Faster links reach the same point of the curve at more bytes.
        let over = field.value((bytes / ratio).log2(), g.log2());
        let (seconds, algorithm) = scaled.fastest(g, bytes, &of.law);
        (seconds * over.exp(), algorithm)
    });
    let range = |f: fn(&Row) -> f64| {
        let values = rows.iter().map(|r| f(r));
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)))
    };
    Curve { law: scaled, grid, bytes: range(|r| r.bytes), ranks: range(|r| r.ranks as f64), related }
}
