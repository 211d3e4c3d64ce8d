//! One run of a kernel: memory before, launches, and what memory must be afterwards.

use super::compare::{compare, same, Errors, Tolerance, CANARY};
use super::kernels::{loosest, operands, Case};
use super::primitives::{Expected, Primitive, BLOCK};
use super::reference::shapes;
use super::report::Failure;
use super::tensor::Tensor;
use autoshard_codegen::{CodegenError, CudaKernel, Launch};
use autoshard_ir::DType;
use autoshard_runtime::cuda::{Abi, CudaError};

/// Bytes before and behind every buffer that nobody may touch.
pub const GUARD: usize = 256;
/// What they hold.
const GUARD_BYTE: u8 = 0xC5;

/// Launches over the same memory, one after another.
#[derive(Clone, Debug)]
pub struct Job {
    /// What the kernel takes.
    pub abi: Abi,
    /// Contents of memory before.
    pub memory: Vec<Vec<u8>>,
    /// Per buffer of the kernel: its place in `memory`. Buffers may share one.
    pub buffers: Vec<usize>,
    /// The workspace's place in `memory`.
    pub workspace: Option<usize>,
    /// Launches in order.
    pub launches: Vec<Launch>,
}

/// What runs jobs.
pub trait Machine {
    /// Runs a job with this image; returns memory afterwards, each piece between its guards.
    fn run(&mut self, image: &[u8], job: &Job) -> Result<Vec<Vec<u8>>, CudaError>;
}

/// A piece of memory between guards.
pub fn guarded(bytes: &[u8]) -> Vec<u8> {
    let guard = [GUARD_BYTE; GUARD];
    [&guard[..], bytes, &guard[..]].concat()
}

/// What a piece of memory must be afterwards.
#[derive(Clone, Debug)]
enum Want {
    /// What it was.
    Same,
    /// Numbers; `None` is not to be touched.
    Numbers(DType, Vec<Option<f64>>, Tolerance),
    /// What a primitive gives.
    Primitive(Expected),
    /// Anything.
    Any,
}

/// Why a trial did not pass.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Memory is not what it must be.
    Wrong(Failure),
    /// The machine did not run it.
    Machine(CudaError),
}

impl Fault {
    /// In the words of a report.
    pub fn failure(&self) -> Failure {
        match self {
            Fault::Wrong(f) => f.clone(),
            Fault::Machine(e) => Failure::new("launch", e.to_string()),
        }
    }
}

/// A job and its judgement.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The job.
    pub job: Job,
    /// Per piece of memory: how it is called, what is expected.
    want: Vec<(String, Want)>,
}

impl Trial {
    /// A kernel on the rank at `coords`.
    pub fn kernel(case: &Case, coords: &[usize], text: &CudaKernel) -> Result<Trial, CodegenError> {
        let kernel = &case.kernel;
        let (tensors, results) = operands(kernel, &case.mesh, coords);
        let tolerance = Tolerance::of(loosest(kernel));
        let mut want: Vec<(String, Want)> = (0..tensors.len()).map(|k| (format!("operand {k}"), Want::Same)).collect();
        let mut memory: Vec<Vec<u8>> = tensors.iter().map(Tensor::bytes).collect();
        let mut buffers: Vec<usize> = (0..tensors.len()).collect();
        for (r, (shape, numbers)) in shapes(kernel)[kernel.operands..].iter().zip(results).enumerate() {
            let shared = case.in_place.iter().find(|(_, result)| *result == kernel.operands + r);
            let name = format!("result {r}");
            match shared.and_then(|(o, _)| Some((*o, tensors.get(*o)?))) {
                Some((o, operand)) if operand.values.len() == numbers.len() => {
                    let (before, numbers) = updated(operand, numbers);
                    memory[o] = before.bytes();
                    want[o] = (name, Want::Numbers(shape.dtype, numbers, tolerance));
                    buffers.push(o);
                }
                _ => {
                    buffers.push(memory.len());
                    memory.push(Tensor { dtype: shape.dtype, values: vec![CANARY; shape.len] }.bytes());
                    want.push((name, Want::Numbers(shape.dtype, numbers, tolerance)));
                }
            }
        }
        let workspace = (text.workspace > 0).then_some(memory.len());
        if workspace.is_some() {
            // NaN in every type.
            memory.push(vec![0xff; text.workspace]);
            want.push(("workspace".into(), Want::Any));
        }
        let launches = text.launches(&text.parts(&case.mesh, coords))?;
        let job = Job { abi: crate::cuda::abi(text), memory, buffers, workspace, launches };
        Ok(Trial { job, want })
    }

    /// A check of a primitive.
    pub fn primitive(p: &Primitive) -> Trial {
        let mut memory = p.inputs.clone();
        memory.push(vec![0xff; p.expected.bytes()]);
        let mut want: Vec<(String, Want)> = (0..p.inputs.len()).map(|k| (format!("input {k}"), Want::Same)).collect();
        want.push(("output".into(), Want::Primitive(p.expected.clone())));
        let launch = Launch {
            entry: p.entry.clone(),
            grid: [p.blocks as u32, 1, 1],
            block: [BLOCK as u32, 1, 1],
            dynamic_shared: 0,
            scalars: vec![],
        };
        let abi = Abi { kernel: p.entry.clone(), buffers: memory.len(), workspace: 0, extents: 0 };
        let buffers = (0..memory.len()).collect();
        Trial { job: Job { abi, memory, buffers, workspace: None, launches: vec![launch] }, want }
    }

    /// Runs it twice from the same memory, and judges. Both runs must give the same bits: kernels have
    /// no atomics, so anything else is a race.
    pub fn run(&self, machine: &mut dyn Machine, image: &[u8]) -> Result<Errors, Fault> {
        let first = machine.run(image, &self.job).map_err(Fault::Machine)?;
        let errors = self.judge(&first).map_err(Fault::Wrong)?;
        let second = machine.run(image, &self.job).map_err(Fault::Machine)?;
        for ((a, b), (name, want)) in first.iter().zip(&second).zip(&self.want) {
            if !matches!(want, Want::Any) {
                same("unstable", &format!("{name} of a second run"), b, a, 1).map_err(Fault::Wrong)?;
            }
        }
        Ok(errors)
    }

    /// Number of elements that must change; a rank whose part is empty has none.
    pub fn written(&self) -> usize {
        let count = |(want, before): (&Want, &Vec<u8>)| match want {
            Want::Numbers(dtype, numbers, _) => {
                let before = Tensor::from_bytes(*dtype, before).values;
                numbers.iter().zip(before).filter(|(want, before)| want.is_some_and(|w| w != *before)).count()
            }
            Want::Primitive(expected) => expected.bytes(),
            Want::Same | Want::Any => 0,
        };
        self.want.iter().map(|(_, w)| w).zip(&self.job.memory).map(count).sum()
    }

    /// Judges memory between guards.
    pub fn judge(&self, memory: &[Vec<u8>]) -> Result<Errors, Failure> {
        if memory.len() != self.want.len() {
            return Err(Failure::new("value", format!("{} pieces of memory, not {}", memory.len(), self.want.len())));
        }
        let mut all = Errors::default();
        for ((got, before), (name, want)) in memory.iter().zip(&self.job.memory).zip(&self.want) {
            let inner = unguarded(got, before.len()).map_err(|f| f.of(name))?;
            let errors = match want {
                Want::Any => Errors::default(),
                Want::Same => same("operand", name, inner, before, 4).map(|()| Errors::default())?,
                Want::Numbers(dtype, numbers, tolerance) => {
                    compare(&Tensor::from_bytes(*dtype, inner), numbers, *tolerance).map_err(|f| f.of(name))?
                }
                Want::Primitive(expected) => primitive(expected, inner).map_err(|f| f.of(name))?,
            };
            all = Errors { l2: all.l2.max(errors.l2), element: all.element.max(errors.element) };
        }
        Ok(all)
    }
}

/// An operand that a result replaces: elements that are not read hold the canary, elements that are
/// not written stay.
fn updated(operand: &Tensor, mut numbers: Vec<Option<f64>>) -> (Tensor, Vec<Option<f64>>) {
    let mut before = operand.clone();
    for (v, want) in before.values.iter_mut().zip(&mut numbers) {
        if v.is_nan() || (operand.dtype == DType::I32 && *v == f64::from(i32::MIN)) {
            *v = CANARY;
        } else if want.is_none() {
            *want = Some(*v);
        }
    }
    (before, numbers)
}

/// The bytes between guards, if those are whole.
fn unguarded(memory: &[u8], bytes: usize) -> Result<&[u8], Failure> {
    if memory.len() != bytes + 2 * GUARD {
        return Err(Failure::new("guard", format!("{} bytes, not {}", memory.len(), bytes + 2 * GUARD)));
    }
    let (before, behind) = (&memory[..GUARD], &memory[GUARD + bytes..]);
    if let Some(i) = before.iter().rposition(|b| *b != GUARD_BYTE) {
        return Err(Failure::new("guard", format!("overwritten {} bytes before its beginning", GUARD - i)));
    }
    if let Some(i) = behind.iter().position(|b| *b != GUARD_BYTE) {
        return Err(Failure::new("guard", format!("overwritten {i} bytes behind its end")).at(i));
    }
    Ok(&memory[GUARD..GUARD + bytes])
}

/// The largest error in units in the last place is told as that of an element.
fn primitive(expected: &Expected, got: &[u8]) -> Result<Errors, Failure> {
    let (dtype, want, most) = match expected {
        Expected::Bits(bytes, size) => return same("bits", "bits", got, bytes, *size).map(|()| Errors::default()),
        Expected::F32(want, most) => (DType::F32, want, *most),
        Expected::F64(want, most) => (DType::F64, want, *most),
    };
    let got = Tensor::from_bytes(dtype, got).values;
    if got.len() != want.len() {
        return Err(Failure::new("value", format!("{} numbers, not {}", got.len(), want.len())));
    }
    let mut worst = 0.0f64;
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = if g == w { 0.0 } else { (g - w).abs() / ulp(dtype, *w) };
        if off > most || off.is_nan() {
            let text = format!("element {i} is {g:e}, not {w:e} (off by {off:.1} ulp, allowed {most})");
            return Err(Failure::new(if g.is_nan() { "nan" } else { "value" }, text).at(i));
        }
        worst = worst.max(off);
    }
    Ok(Errors { l2: 0.0, element: worst })
}

/// Distance of neighbours of a type at a number.
fn ulp(dtype: DType, x: f64) -> f64 {
    let (digits, least) = if dtype == DType::F32 { (24, -149) } else { (53, -1074) };
    let exponent = ((x.abs().to_bits() >> 52) as i32 - 1022).max(-1021);
    2f64.powi((exponent - digits).max(least))
}

#[cfg(test)]
mod tests {
    use super::super::primitives;
    use super::*;
    use autoshard_codegen::emit;
    use autoshard_ir::core::{Axis, Scalar};
    use autoshard_ir::kernel::{Extent, Instr, Kernel, KernelBody, LoopKernel, LoopOp, Store, View};
    use autoshard_ir::mesh::Mesh;

    /// Answers with what is expected, changed by `f`, and counts its runs.
    struct Fake<F>(Vec<Vec<u8>>, F, usize);

    impl<F: FnMut(usize, &mut Vec<Vec<u8>>)> Machine for Fake<F> {
        fn run(&mut self, _: &[u8], _: &Job) -> Result<Vec<Vec<u8>>, CudaError> {
            let mut out = self.0.clone();
            (self.1)(self.2, &mut out);
            self.2 += 1;
            Ok(out)
        }
    }

    /// y = 2x of 10 entries, split over 4 ranks: the third holds 3, the last 1; a tail each.
    fn doubling(in_place: bool) -> Trial {
        let n = Extent { name: "n".into(), size: 3, global: 10, axes: vec![Axis::new("tp")] };
        let view = |buffer| View { buffer, dtype: DType::F32, offset: 0, strides: vec![1] };
        let instr = |op, args: &[usize]| Instr { op, args: args.to_vec(), dtype: DType::F32, uniform: false };
        let nest = LoopKernel {
            loops: vec![n],
            instrs: vec![instr(LoopOp::Load(view(0)), &[]), instr(LoopOp::Map(Scalar::Add), &[0, 0])],
            stores: vec![Store { view: view(1), reg: 1, combine: None }],
        };
        let body = KernelBody::Loop(vec![nest]);
        let kernel = Kernel { name: "twice".into(), operands: 1, results: 1, flops: 0.0, bytes: 0.0, body };
        let text = emit(&kernel).unwrap();
        let in_place = if in_place { vec![(0, 1)] } else { vec![] };
        let case = Case { label: String::new(), kernel, mesh: Mesh::new(&[("tp", 4)]), in_place };
        Trial::kernel(&case, &[3], &text).unwrap()
    }

    /// Memory as a right kernel leaves it.
    fn right(t: &Trial) -> Vec<Vec<u8>> {
        let after = |(before, (_, want)): (&Vec<u8>, &(String, Want))| match want {
            Want::Numbers(dtype, numbers, _) => {
                let old = Tensor::from_bytes(*dtype, before).values;
                let values = numbers.iter().zip(old).map(|(n, old)| n.unwrap_or(old)).collect();
                guarded(&Tensor { dtype: *dtype, values }.bytes())
            }
            Want::Primitive(Expected::Bits(bytes, _)) => guarded(bytes),
            Want::Primitive(Expected::F32(v, _)) => guarded(&Tensor { dtype: DType::F32, values: v.clone() }.bytes()),
            Want::Primitive(Expected::F64(v, _)) => guarded(&Tensor { dtype: DType::F64, values: v.clone() }.bytes()),
            _ => guarded(before),
        };
        t.job.memory.iter().zip(&t.want).map(after).collect()
    }

    fn verdict(t: &Trial, f: impl FnMut(usize, &mut Vec<Vec<u8>>)) -> Option<(String, Option<usize>)> {
        t.run(&mut Fake(right(t), f, 0), &[]).err().map(|f| f.failure()).map(|f| (f.kind, f.index))
    }

    fn put(memory: &mut [u8], at: usize, bytes: [u8; 4]) {
        memory[GUARD + 4 * at..][..4].copy_from_slice(&bytes);
    }

    #[test]
    fn what_a_broken_kernel_leaves_is_caught() {
        let t = doubling(false);
        assert_eq!((t.job.memory.len(), t.job.memory[1].len()), (2, 12));
        assert_eq!(verdict(&t, |_, _| {}), None);
        let caught = |kind: &str, index: Option<usize>, f: &dyn Fn(usize, &mut Vec<Vec<u8>>)| {
            assert_eq!(verdict(&t, |run, m| f(run, m)), Some((kind.to_string(), index)));
        };
        caught("nan", Some(0), &|_, m| put(&mut m[1], 0, f32::NAN.to_le_bytes()));
        caught("value", Some(0), &|_, m| put(&mut m[1], 0, 0.123f32.to_le_bytes()));
        // An element that was never written still holds the canary.
        caught("value", Some(0), &|_, m| put(&mut m[1], 0, (CANARY as f32).to_le_bytes()));
        // The tail belongs to nobody.
        caught("canary", Some(1), &|_, m| put(&mut m[1], 1, 0f32.to_le_bytes()));
        caught("canary", Some(2), &|_, m| put(&mut m[1], 2, f32::NAN.to_le_bytes()));
        caught("operand", Some(0), &|_, m| put(&mut m[0], 0, 9f32.to_le_bytes()));
        caught("guard", Some(0), &|_, m| m[1][GUARD + 12] = 0);
        caught("guard", None, &|_, m| m[0][GUARD - 1] = 0);
        caught("unstable", Some(GUARD), &|run, m| m[1][GUARD] ^= u8::from(run == 1));
        caught("value", None, &|_, m| m.truncate(1));
    }

    #[test]
    fn updates_in_place_are_judged_where_they_lie() {
        let t = doubling(true);
        assert_eq!((t.job.memory.len(), &t.job.buffers[..]), (1, &[0, 0][..]));
        assert_eq!(Tensor::from_bytes(DType::F32, &t.job.memory[0]).values[1..], [CANARY; 2]);
        assert_eq!(verdict(&t, |_, _| {}), None);
        let caught = verdict(&t, |_, m| put(&mut m[0], 1, 1f32.to_le_bytes()));
        assert_eq!(caught, Some(("canary".into(), Some(1))));
        let untouched = t.job.memory[0].clone();
        let caught = verdict(&t, |_, m| m[0] = guarded(&untouched));
        assert_eq!(caught, Some(("value".into(), Some(0))));
    }

    #[test]
    fn primitives_are_judged_bit_for_bit() {
        for p in primitives::all() {
            let t = Trial::primitive(&p);
            let last = t.job.memory.len() - 1;
            assert_eq!(verdict(&t, |_, m| m[last][GUARD] ^= 0), None, "{}", p.name);
            // One bit of the last element.
            let flipped = verdict(&t, |_, m| {
                let at = m[last].len() - GUARD - 2;
                m[last][at] ^= 0x40;
            });
            assert!(flipped.is_some_and(|(kind, index)| kind != "guard" && index.is_some()), "{}", p.name);
            let untouched = t.job.memory[last].clone();
            assert!(verdict(&t, |_, m| m[last] = guarded(&untouched)).is_some(), "{}", p.name);
        }
    }

    #[test]
    fn units_in_the_last_place() {
        assert_eq!(ulp(DType::F32, 1.0), f64::from(f32::EPSILON));
        assert_eq!(ulp(DType::F32, -1.99), f64::from(f32::EPSILON));
        assert_eq!(ulp(DType::F64, 2.0), 2.0 * f64::EPSILON);
        assert_eq!(ulp(DType::F32, 0.0), 2f64.powi(-149));
        assert_eq!(ulp(DType::F32, 1e-44), 2f64.powi(-149));
        assert_eq!(ulp(DType::F64, 0.0), f64::from_bits(1));
    }
}
