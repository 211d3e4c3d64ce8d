//! Memory of operands and results as numbers.

use autoshard_ir::DType;

/// Memory of one operand or result: values that its type represents exactly.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Values.
    pub values: Vec<f64>,
}

impl Tensor {
    /// As the device stores it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.values.len() * self.dtype.bytes());
        for v in &self.values {
            match self.dtype {
                DType::F64 => out.extend(v.to_le_bytes()),
                DType::F32 => out.extend((*v as f32).to_le_bytes()),
                DType::I32 => out.extend((*v as i32).to_le_bytes()),
                DType::Bf16 => {
                    let word = (DType::Bf16.round(*v) as f32).to_bits() >> 16;
                    out.extend((word as u16).to_le_bytes());
                }
            }
        }
        out
    }

    /// From the device. Bytes beyond the last whole element are left out.
    pub fn from_bytes(dtype: DType, bytes: &[u8]) -> Tensor {
        let word = |c: &[u8]| c.iter().rev().fold(0u64, |w, b| w << 8 | u64::from(*b));
        let value = |c: &[u8]| match dtype {
            DType::F64 => f64::from_bits(word(c)),
            DType::F32 => f64::from(f32::from_bits(word(c) as u32)),
            DType::I32 => f64::from(word(c) as u32 as i32),
            DType::Bf16 => f64::from(f32::from_bits((word(c) as u32) << 16)),
        };
        Tensor { dtype, values: bytes.chunks_exact(dtype.bytes()).map(value).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_back() {
        for dtype in DType::ALL {
            let t = Tensor { dtype, values: vec![0.0, 1.0, -77.0, 96.0, -2.0] };
            assert_eq!(t.bytes().len(), 5 * dtype.bytes());
            assert_eq!(Tensor::from_bytes(dtype, &t.bytes()), t);
        }
        assert!(Tensor { dtype: DType::Bf16, values: vec![f64::NAN] }.bytes()[1] & 0x7f == 0x7f);
    }
}
