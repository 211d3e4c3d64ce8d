//! Results against a reference, so that neither NaN nor an untouched element passes.

use super::jobs::Tensor;
use autoshard::ir::DType;

/// What elements hold that a kernel may not touch. Exact in every type.
pub const CANARY: f64 = -77.0;

/// How far a result may be off.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// ‖got − want‖ / ‖want‖.
    pub l2: f64,
    /// Per element, of its own size and of the result's root mean square.
    pub element: f64,
}

impl Tolerance {
    /// For results and arithmetic of a type.
    pub fn of(dtype: DType) -> Tolerance {
        match dtype {
            DType::F64 => Tolerance { l2: 1e-12, element: 1e-11 },
            DType::F32 => Tolerance { l2: 2e-6, element: 2e-5 },
            DType::Bf16 => Tolerance { l2: 6e-3, element: 3e-2 },
            DType::I32 => Tolerance { l2: 0.0, element: 0.0 },
        }
    }
}

/// What comparing gave.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// ‖got − want‖ / ‖want‖ over the elements that are finite in both.
    pub l2: f64,
    /// Largest error of an element, of its own size and the root mean square.
    pub element: f64,
}

/// Compares a result with its reference (`None`: not to be touched). The error names the kind:
/// `nan`, `canary` or `value`.
pub fn compare(got: &Tensor, want: &[Option<f64>], tolerance: Tolerance) -> Result<Errors, String> {
    if got.values.len() != want.len() {
        return Err(format!("value: {} elements, not {}", got.values.len(), want.len()));
    }
    let real = || got.values.iter().zip(want).enumerate().filter_map(|(i, (g, w))| Some((i, *g, (*w)?)));
    for (i, (g, w)) in got.values.iter().zip(want).enumerate() {
        match w {
            None if *g != CANARY => {
                return Err(format!("canary: element {i} is no real entry, but was overwritten by {g}"))
            }
            Some(w) if g.is_nan() && !w.is_nan() => return Err(format!("nan: element {i} is NaN, not {w}")),
            Some(w) if w.is_nan() && !g.is_nan() => return Err(format!("nan: element {i} is {g}, not NaN")),
            Some(w) if w.is_infinite() && g != w => return Err(format!("value: element {i} is {g}, not {w}")),
            _ => {}
        }
    }
    let finite = || real().filter(|(_, _, w)| w.is_finite());
    let (mut error, mut norm, mut count) = (0.0, 0.0, 0);
    for (_, g, w) in finite() {
        error += (g - w) * (g - w);
        norm += w * w;
        count += 1;
    }
    if count == 0 {
        return Ok(Errors::default());
    }
    let rms = (norm / f64::from(count)).sqrt();
    let mut out = Errors { l2: if error == 0.0 { 0.0 } else { (error / norm).sqrt() }, element: 0.0 };
    for (i, g, w) in finite() {
        let e = if g == w { 0.0 } else { (g - w).abs() / (w.abs() + rms) };
        if e > tolerance.element || e.is_nan() {
            return Err(format!(
                "value: element {i} is {g}, not {w} (off by {e:.1e}, allowed {:.1e})",
                tolerance.element
            ));
        }
        out.element = out.element.max(e);
    }
    if out.l2 > tolerance.l2 || out.l2.is_nan() {
        return Err(format!("value: off by {:.1e} of the norm, allowed {:.1e}", out.l2, tolerance.l2));
    }
    Ok(out)
}
