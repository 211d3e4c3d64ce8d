//! Reads and writes the entry's parameters and results between steps.
//!
//! Data are a rank's *real* part (see [`Runtime::parts`]) in row-major order; tails are neither read
//! nor written.

use super::error::RuntimeError;
use super::rank::Place;
use super::Runtime;
use crate::comm::{parts, BoxCopy};
use crate::cpu::Buffer;
use autoshard_ir::mesh::Part;
use autoshard_ir::program::Buf;
use autoshard_ir::{DType, Type};

impl Runtime {
    /// Position of the entry's parameter of this name.
    pub fn param_index(&self, name: &str) -> Option<usize> {
        self.entry().params.iter().position(|(n, _)| n == name)
    }

    /// Position of the entry's result of this name.
    pub fn result_index(&self, name: &str) -> Option<usize> {
        self.entry().results.iter().position(|(n, _)| n == name)
    }

    /// Name and type of a parameter or result of the entry.
    ///
    /// # Errors
    /// [`RuntimeError::NoBuffer`].
    pub fn describe(&self, buf: Buf) -> Result<&(String, Type), RuntimeError> {
        let entry = self.entry();
        let (list, what, index) = match buf {
            Buf::Param(p) => (&entry.params[..], "parameter", p),
            Buf::Result(r) => (&entry.results[..], "result", r),
            Buf::Frame(at) => (&[][..], "accessible frame offset", at),
        };
        list.get(index).ok_or(RuntimeError::NoBuffer { what, index, count: list.len() })
    }

    /// The global indices that a rank holds, per dimension.
    ///
    /// # Errors
    /// [`RuntimeError::NoRank`], [`RuntimeError::NoBuffer`].
    pub fn parts(&self, rank: usize, buf: Buf) -> Result<Vec<Part>, RuntimeError> {
        let (_, ty) = self.describe(buf)?;
        self.rank_at(rank)?;
        Ok(parts(&self.program.mesh, ty, &self.program.mesh.coords(rank)))
    }

    /// Writes a rank's part of a parameter, as bytes in the parameter's element type.
    ///
    /// # Errors
    /// [`RuntimeError::Length`] if `data` is not exactly the real part; [`RuntimeError::NoRank`],
    /// [`RuntimeError::NoBuffer`].
    pub fn write(&mut self, rank: usize, param: usize, data: &[u8]) -> Result<(), RuntimeError> {
        let view = self.view(rank, Buf::Param(param))?;
        view.expect_len(rank, "bytes", data.len(), view.bytes())?;
        let e = view.dtype.bytes();
        view.copy.rows(0..view.copy.elements(), |at, packed, n| {
            // SAFETY: the run lies in the buffer (see `View`) and in `data`, whose length was
            // checked; `&mut self` says that no rank runs.
            unsafe {
                let from = data.as_ptr().add(packed * e);
                std::ptr::copy_nonoverlapping(from, view.buffer.ptr.add(at * e), n * e);
            }
        });
        Ok(())
    }

    /// Reads a rank's part of a parameter or result, as bytes in its element type.
    ///
    /// # Errors
    /// [`RuntimeError::NoRank`], [`RuntimeError::NoBuffer`].
    pub fn read(&self, rank: usize, buf: Buf) -> Result<Vec<u8>, RuntimeError> {
        let view = self.view(rank, buf)?;
        let mut data = vec![0; view.bytes()];
        let e = view.dtype.bytes();
        view.copy.rows(0..view.copy.elements(), |at, packed, n| {
            // SAFETY: as in `write`; ranks run only within `step`, which borrows `self` mutably.
            unsafe {
                let to = data.as_mut_ptr().add(packed * e);
                std::ptr::copy_nonoverlapping(view.buffer.ptr.add(at * e), to, n * e);
            }
        });
        Ok(data)
    }

    /// Writes a rank's part of a parameter, rounded to its element type.
    ///
    /// # Errors
    /// Those of [`Runtime::write`], and [`RuntimeError::Integer`].
    pub fn write_f64(&mut self, rank: usize, param: usize, data: &[f64]) -> Result<(), RuntimeError> {
        let view = self.view(rank, Buf::Param(param))?;
        view.expect_len(rank, "elements", data.len(), view.copy.elements())?;
        let (dtype, name) = (view.dtype, view.name);
        if dtype == DType::I32 {
            let integer = |v: f64| v.fract() == 0.0 && v >= i32::MIN as f64 && v <= i32::MAX as f64;
            if let Some(value) = data.iter().find(|v| !integer(**v)) {
                return Err(RuntimeError::Integer { name: name.to_string(), value: *value });
            }
        }
        let bytes = encode(dtype, data);
        self.write(rank, param, &bytes)
    }

    /// Reads a rank's part of a parameter or result, widened to f64.
    ///
    /// # Errors
    /// Those of [`Runtime::read`].
    pub fn read_f64(&self, rank: usize, buf: Buf) -> Result<Vec<f64>, RuntimeError> {
        let (_, ty) = self.describe(buf)?;
        Ok(decode(ty.dtype, &self.read(rank, buf)?))
    }

    /// Writes a whole parameter: each rank gets its part of the global row-major `data`.
    ///
    /// # Errors
    /// [`RuntimeError::Partial`] for a partial parameter, and those of [`Runtime::write_f64`].
    pub fn write_global(&mut self, param: usize, data: &[f64]) -> Result<(), RuntimeError> {
        for rank in 0..self.ranks.len() {
            let copy = self.global_copy(rank, Buf::Param(param), data.len())?;
            let mut local = vec![0.0; copy.elements()];
            copy.rows(0..copy.elements(), |at, packed, n| {
                local[packed..packed + n].copy_from_slice(&data[at..at + n]);
            });
            self.write_f64(rank, param, &local)?;
        }
        Ok(())
    }

    /// Reads a whole parameter or result, in global row-major order. Where several ranks hold an
    /// element, the last one's is taken.
    ///
    /// # Errors
    /// [`RuntimeError::Partial`] for a partial value, and those of [`Runtime::read`].
    pub fn read_global(&self, buf: Buf) -> Result<Vec<f64>, RuntimeError> {
        let (_, ty) = self.describe(buf)?;
        let mut data = vec![0.0; ty.elements()];
        for rank in 0..self.ranks.len() {
            let copy = self.global_copy(rank, buf, data.len())?;
            let local = self.read_f64(rank, buf)?;
            copy.rows(0..copy.elements(), |at, packed, n| {
                data[at..at + n].copy_from_slice(&local[packed..packed + n]);
            });
        }
        Ok(data)
    }

    /// The copy from a global tensor of `given` elements to a rank's packed part.
    fn global_copy(&self, rank: usize, buf: Buf, given: usize) -> Result<BoxCopy, RuntimeError> {
        let (name, ty) = self.describe(buf)?;
        if let Some(p) = &ty.partial {
            let axes = p.axes.iter().map(|a| a.name()).collect::<Vec<_>>().join("·");
            return Err(RuntimeError::Partial { name: name.clone(), axes });
        }
        let (name, expected) = (name.clone(), ty.elements());
        if given != expected {
            return Err(RuntimeError::Length { name, rank, unit: "elements", given, expected });
        }
        let local = self.parts(rank, buf)?;
        let whole: Vec<Part> = ty.dims.iter().map(|d| Part { start: 0, len: d.size }).collect();
        let packed: Vec<usize> = local.iter().map(|p| p.len).collect();
        Ok(BoxCopy::new(&local, (&ty.sizes(), &whole), (&packed, &local)))
    }

    fn rank_at(&self, rank: usize) -> Result<&super::rank::Rank, RuntimeError> {
        self.ranks.get(rank).ok_or(RuntimeError::NoRank { rank, ranks: self.ranks.len() })
    }

    fn view(&self, rank: usize, buf: Buf) -> Result<View<'_>, RuntimeError> {
        let (name, ty) = self.describe(buf)?;
        let local = self.parts(rank, buf)?;
        let memory = self.rank_at(rank)?;
        let place: Option<Place> = match buf {
            Buf::Param(p) => memory.params.get(p).copied(),
            Buf::Result(r) => memory.results.get(r).copied(),
            Buf::Frame(_) => None,
        };
        let place = place.ok_or(RuntimeError::NoBuffer { what: "buffer", index: 0, count: 0 })?;
        let copy = BoxCopy::pack(&self.program.mesh.local_sizes(ty), &local);
        Ok(View { name, dtype: ty.dtype, buffer: memory.buffer(place), copy })
    }
}

/// A rank's buffer. The copy runs from the buffer, of the type's local sizes, to the packed real
/// part; so all its source offsets lie in the buffer.
struct View<'a> {
    name: &'a str,
    dtype: DType,
    buffer: Buffer,
    copy: BoxCopy,
}

impl View<'_> {
    fn bytes(&self) -> usize {
        self.copy.elements() * self.dtype.bytes()
    }

    fn expect_len(&self, rank: usize, unit: &'static str, given: usize, expected: usize) -> Result<(), RuntimeError> {
        if given == expected {
            return Ok(());
        }
        Err(RuntimeError::Length { name: self.name.to_string(), rank, unit, given, expected })
    }
}

/// Numbers as bytes of an element type, rounded to nearest (integers are exact).
fn encode(dtype: DType, data: &[f64]) -> Vec<u8> {
    let upper = |x: f64| ((dtype.round(x) as f32).to_bits() >> 16) as u16;
    match dtype {
        DType::F64 => data.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        DType::F32 => data.iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect(),
        DType::I32 => data.iter().flat_map(|x| (*x as i32).to_ne_bytes()).collect(),
        DType::Bf16 => data.iter().flat_map(|x| upper(*x).to_ne_bytes()).collect(),
    }
}

/// Bytes of an element type as numbers.
fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        let element = |c: &[u8]| {
            let mut e = [0; N];
            e.copy_from_slice(c);
            f(e)
        };
        bytes.chunks_exact(N).map(element).collect()
    }
    match dtype {
        DType::F64 => each(bytes, f64::from_ne_bytes),
        DType::F32 => each(bytes, |e| f32::from_ne_bytes(e) as f64),
        DType::I32 => each(bytes, |e| i32::from_ne_bytes(e) as f64),
        DType::Bf16 => each(bytes, |e| f32::from_bits((u16::from_ne_bytes(e) as u32) << 16) as f64),
    }
}
