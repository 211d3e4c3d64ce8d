//! Writing C: lines, blocks, numbers.

use autoshard_ir::core::DType;

/// Indented lines.
#[derive(Default)]
pub(super) struct Text {
    out: String,
    depth: usize,
}

impl Text {
    /// A line.
    pub fn line(&mut self, line: impl AsRef<str>) {
        for l in line.as_ref().lines() {
            self.out.extend(std::iter::repeat_n("  ", self.depth));
            self.out.push_str(l);
            self.out.push('\n');
        }
    }

    /// A line that opens a block: `head {`.
    pub fn open(&mut self, head: impl AsRef<str>) {
        let head = head.as_ref();
        self.line(if head.is_empty() { "{".to_string() } else { format!("{head} {{") });
        self.depth += 1;
    }

    /// Closes a block.
    pub fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.line("}");
    }

    /// The text.
    pub fn finish(self) -> String {
        self.out
    }
}

/// C type of a register.
pub(super) fn ctype(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        DType::F32 | DType::Bf16 => "float",
        DType::I32 => "int",
    }
}

/// A float literal; the shortest decimal that gives the same number.
pub(super) fn float(x: f32) -> String {
    if x.is_finite() {
        format!("{x:?}f")
    } else {
        format!("bits_f32({:#x}u)", x.to_bits())
    }
}

/// A double literal.
pub(super) fn double(x: f64) -> String {
    if x.is_finite() {
        format!("{x:?}")
    } else {
        let bits = x.to_bits();
        format!("words_f64({:#x}u, {:#x}u)", bits as u32, (bits >> 32) as u32)
    }
}

/// A number as a register of this type.
pub(super) fn number(x: f64, dtype: DType) -> String {
    let x = dtype.round(x);
    match dtype {
        DType::F64 => double(x),
        DType::F32 | DType::Bf16 => float(x as f32),
        // The least int has no literal.
        DType::I32 if x as i32 == i32::MIN => "(-2147483647 - 1)".to_string(),
        DType::I32 => (x as i32).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_value() {
        assert_eq!(number(0.1, DType::F32), "0.1f");
        assert_eq!(number(1e-7, DType::F32), "1e-7f");
        assert_eq!(number(3.0, DType::F64), "3.0");
        assert_eq!(number(1.0 + 1.0 / 512.0, DType::Bf16), "1.0f");
        assert_eq!(number(f64::NEG_INFINITY, DType::F32), "bits_f32(0xff800000u)");
        assert_eq!(number(f64::INFINITY, DType::F64), "words_f64(0x0u, 0x7ff00000u)");
        assert_eq!(number(-7.9, DType::I32), "-7");
        assert_eq!(number(-1e30, DType::I32), "(-2147483647 - 1)");
    }
}
