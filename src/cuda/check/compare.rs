//! Results against a reference, so that neither NaN nor an untouched or foreign element passes.

use super::report::Failure;
use super::tensor::Tensor;
use autoshard_ir::DType;

/// What elements hold that a kernel may not touch. Exact in every type.
pub const CANARY: f64 = -77.0;

/// How far a result may be off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// ‖got − want‖ / ‖want‖.
    pub l2: f64,
    /// Per element, of its own size and of the result's root mean square.
    pub element: f64,
}

impl Tolerance {
    /// For arithmetic of a type.
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

/// Compares a result with its reference (`None`: not to be touched). The failure names the kind
/// (`nan`, `canary` or `value`) and the first element.
pub fn compare(got: &Tensor, want: &[Option<f64>], tolerance: Tolerance) -> Result<Errors, Failure> {
    if got.values.len() != want.len() {
        return Err(Failure::new("value", format!("{} elements, not {}", got.values.len(), want.len())));
    }
    for (i, (g, w)) in got.values.iter().zip(want).enumerate() {
        let wrong = match w {
            None if *g != CANARY => ("canary", format!("no real entry, but was overwritten by {g}")),
            Some(w) if g.is_nan() && !w.is_nan() => ("nan", format!("NaN, not {w}")),
            Some(w) if w.is_nan() && !g.is_nan() => ("nan", format!("{g}, not NaN")),
            Some(w) if w.is_infinite() && g != w => ("value", format!("{g}, not {w}")),
            _ => continue,
        };
        return Err(Failure::new(wrong.0, format!("element {i} is {}", wrong.1)).at(i));
    }
    let finite = || got.values.iter().zip(want).enumerate().filter_map(|(i, (g, w))| Some((i, *g, (*w)?)));
    let finite = || finite().filter(|(_, _, w)| w.is_finite());
    let (mut error, mut norm, mut count) = (0.0, 0.0, 0.0);
    for (_, g, w) in finite() {
        error += (g - w) * (g - w);
        norm += w * w;
        count += 1.0;
    }
    if count == 0.0 {
        return Ok(Errors::default());
    }
    let rms = f64::sqrt(norm / count);
    let mut out = Errors { l2: if error == 0.0 { 0.0 } else { f64::sqrt(error / norm) }, element: 0.0 };
    for (i, g, w) in finite() {
        let e = if g == w { 0.0 } else { (g - w).abs() / (w.abs() + rms) };
        if e > tolerance.element || e.is_nan() {
            let allowed = tolerance.element;
            let text = format!("element {i} is {g}, not {w} (off by {e:.1e}, allowed {allowed:.1e})");
            return Err(Failure::new("value", text).at(i));
        }
        out.element = out.element.max(e);
    }
    if out.l2 > tolerance.l2 || out.l2.is_nan() {
        let text = format!("off by {:.1e} of the norm, allowed {:.1e}", out.l2, tolerance.l2);
        return Err(Failure::new("value", text));
    }
    Ok(out)
}

/// Compares bytes; the failure names the first that differs, as an element of `size` bytes.
pub fn same(kind: &'static str, what: &str, got: &[u8], want: &[u8], size: usize) -> Result<(), Failure> {
    if got.len() != want.len() {
        return Err(Failure::new(kind, format!("{what}: {} bytes, not {}", got.len(), want.len())));
    }
    let Some(byte) = got.iter().zip(want).position(|(g, w)| g != w) else { return Ok(()) };
    let index = byte / size.max(1);
    let hex = |b: &[u8]| {
        let element = &b[index * size.max(1)..b.len().min((index + 1) * size.max(1))];
        element.iter().rev().fold("0x".to_string(), |s, b| s + &format!("{b:02x}"))
    };
    let text = format!("{what}: element {index} is {}, not {}", hex(got), hex(want));
    Err(Failure::new(kind, text).at(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_refuse_what_is_no_number() {
        let tolerance = Tolerance::of(DType::F32);
        let got = |values: &[f64]| Tensor { dtype: DType::F32, values: values.to_vec() };
        let want = [Some(1.0), None, Some(-2.0), Some(0.0)];
        assert_eq!(compare(&got(&[1.0, CANARY, -2.0, 0.0]), &want, tolerance), Ok(Errors::default()));
        let refused = |values: &[f64]| {
            let f = compare(&got(values), &want, tolerance).unwrap_err();
            (f.kind, f.index)
        };
        let (nan, infinite) = (f64::NAN, f64::INFINITY);
        assert_eq!(refused(&[nan, CANARY, -2.0, 0.0]), ("nan".into(), Some(0)));
        assert_eq!(refused(&[1.0, 0.0, -2.0, 0.0]), ("canary".into(), Some(1)));
        assert_eq!(refused(&[1.0, nan, -2.0, 0.0]), ("canary".into(), Some(1)));
        assert_eq!(refused(&[1.0, CANARY, -2.0, infinite]), ("value".into(), Some(3)));
        assert_eq!(refused(&[1.0, CANARY, -2.001, 0.0]), ("value".into(), Some(2)));
        assert_eq!(refused(&[1.0, CANARY, -2.0]), ("value".into(), None));
        // Elements may each be right enough, and the whole not.
        let off = compare(&got(&vec![1.0 + 1e-5; 1000]), &vec![Some(1.0); 1000], tolerance).unwrap_err();
        assert!(off.text.starts_with("off by"), "{off:?}");
        // A reference without a number wants none.
        assert!(compare(&got(&[nan]), &[Some(nan)], tolerance).is_ok());
        assert!(compare(&got(&[1.0]), &[Some(nan)], tolerance).is_err());
        assert!(compare(&got(&[1.0]), &[Some(infinite)], tolerance).is_err());
    }

    #[test]
    fn bytes_name_the_first_element() {
        assert_eq!(same("bits", "out", &[1, 2, 3, 4], &[1, 2, 3, 4], 4), Ok(()));
        let f = same("bits", "out", &[1, 2, 3, 4, 9, 0], &[1, 2, 3, 4, 5, 0], 2).unwrap_err();
        assert_eq!((f.text.as_str(), f.index), ("out: element 2 is 0x0009, not 0x0005", Some(2)));
        assert!(same("bits", "out", &[1], &[1, 2], 2).unwrap_err().text.contains("1 bytes, not 2"));
    }
}
