//! Types, buffers and a naive model of collectives for the tests.
#![allow(dead_code)]

use autoshard_ir::core::Partial;
use autoshard_ir::mesh::Mesh;
use autoshard_ir::program::{Collective, CollectiveKind};
use autoshard_ir::{Axis, DType, Dim, Monoid, Type};
use autoshard_runtime::comm::{parts, CollectivePlan, Comm, CommError, Counts, World};
use std::sync::Arc;
use std::time::Duration;

/// `axes("a b")`.
pub fn axes(names: &str) -> Vec<Axis> {
    names.split_whitespace().map(Axis::new).collect()
}

/// A type from sizes with the axes that split them, and partial axes.
pub fn ty(dtype: DType, dims: &[(usize, &str)], partial: &str) -> Type {
    let dim =
        |(i, (size, names)): (usize, &(usize, &str))| Dim { name: format!("d{i}"), size: *size, axes: axes(names) };
    let partial = (!partial.is_empty()).then(|| Partial { monoid: Monoid::Sum, axes: axes(partial) });
    Type { dtype, dims: dims.iter().enumerate().map(dim).collect(), partial }
}

pub fn collective(kind: CollectiveKind, over: &str, from: Type, to: Type) -> Collective {
    Collective { kind, axes: axes(over), from, to, name: "x".into(), control: false }
}

/// A local buffer, aligned for every element type. It holds f64, f32, i32 or bf16 by `dtype`.
pub struct Local {
    pub dtype: DType,
    words: Vec<u64>,
    pub len: usize,
}

impl Local {
    pub fn new(dtype: DType, len: usize) -> Local {
        Local { dtype, words: vec![0; len + 1], len }
    }
    pub fn ptr(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }
    pub fn set(&mut self, i: usize, x: f64) {
        assert!(i < self.len);
        let p = self.ptr();
        unsafe {
            match self.dtype {
                DType::F64 => *p.cast::<f64>().add(i) = x,
                DType::F32 => *p.cast::<f32>().add(i) = x as f32,
                DType::I32 => *p.cast::<i32>().add(i) = x as i32,
                DType::Bf16 => *p.cast::<u16>().add(i) = ((x as f32).to_bits() >> 16) as u16,
            }
        }
    }
    pub fn get(&self, i: usize) -> f64 {
        assert!(i < self.len);
        let p: *const u8 = self.words.as_ptr().cast();
        unsafe {
            match self.dtype {
                DType::F64 => *p.cast::<f64>().add(i),
                DType::F32 => *p.cast::<f32>().add(i) as f64,
                DType::I32 => *p.cast::<i32>().add(i) as f64,
                DType::Bf16 => f32::from_bits((*p.cast::<u16>().add(i) as u32) << 16) as f64,
            }
        }
    }
}

/// For each element of a local buffer: its global index, or `None` in the tail.
pub fn globals(mesh: &Mesh, ty: &Type, rank: usize) -> Vec<Option<Vec<usize>>> {
    let local = parts(mesh, ty, &mesh.coords(rank));
    let sizes = mesh.local_sizes(ty);
    (0..sizes.iter().product())
        .map(|flat: usize| {
            let mut rest = flat;
            let mut index = vec![0; sizes.len()];
            for d in (0..sizes.len()).rev() {
                index[d] = rest % sizes[d];
                rest /= sizes[d];
            }
            let real = index.iter().zip(&local).all(|(i, p)| *i < p.len);
            real.then(|| index.iter().zip(&local).map(|(i, p)| i + p.start).collect())
        })
        .collect()
}

/// What the rank at `coords` contributes at a global index: it depends on the index and on the
/// coordinates along the partial axes.
pub fn contribution(mesh: &Mesh, ty: &Type, coords: &[usize], index: &[usize]) -> f64 {
    let place = ty.partial_axes().iter().fold(1, |n, a| n * 7 + mesh.coord(coords, a));
    let index = index.iter().fold(place * 31, |n, i| n * 13 + i);
    (index * 2654435761 % 1009) as f64 - 500.0
}

/// The value that `rank` must hold at a global index after the collective, worked out element by
/// element from the meaning of the two states.
pub fn expected(mesh: &Mesh, c: &Collective, rank: usize, index: &[usize]) -> f64 {
    let monoid = c.from.partial.as_ref().or(c.to.partial.as_ref()).map_or(Monoid::Sum, |p| p.monoid);
    let mine = mesh.coords(rank);
    let holds = |coords: &[usize]| {
        let local = parts(mesh, &c.from, coords);
        index.iter().zip(local).all(|(i, p)| *i >= p.start && *i < p.start + p.len)
    };
    for axis in c.to.partial_axes().iter().filter(|a| !c.from.partial_axes().contains(a)) {
        let split = c.from.dims.iter().any(|d| d.axes.contains(axis));
        if if split { !holds(&mine) } else { mesh.coord(&mine, axis) != 0 } {
            return monoid.identity();
        }
    }
    let reduced: Vec<Axis> =
        c.from.partial_axes().iter().filter(|a| !c.to.partial_axes().contains(a)).cloned().collect();
    let group = mesh.group(rank, &reduced);
    let value = |r: &usize| contribution(mesh, &c.from, &mesh.coords(*r), index);
    group.iter().map(value).reduce(|a, b| monoid.combine(a, b)).unwrap()
}

/// Bytes that a tail is filled with before a collective: they must never come out.
pub const TAIL: f64 = 77777.0;
/// What outputs hold before a collective.
pub const BEFORE: f64 = -99999.0;

/// Runs collectives one after the other on every rank and returns outputs (by case, then by rank)
/// and counts by rank.
pub fn run_all(mesh: &Mesh, cases: &[Collective]) -> Result<(Vec<Vec<Local>>, Vec<Counts>), CommError> {
    let world = World::new(mesh, Duration::from_secs(20))?;
    let shared: Vec<Arc<Collective>> = cases.iter().map(|c| Arc::new(c.clone())).collect();
    struct Case {
        plan: CollectivePlan,
        input: Local,
        output: Local,
    }
    let mut ranks: Vec<Vec<Case>> = Vec::new();
    for rank in 0..mesh.ranks() {
        let case = |c: &Arc<Collective>| {
            let plan = CollectivePlan::new(&world, rank, c)?;
            let dtype = c.from.dtype;
            let held = globals(mesh, &c.from, rank);
            let mut input = Local::new(dtype, held.len());
            for (i, index) in held.iter().enumerate() {
                let value = |x: &Vec<usize>| contribution(mesh, &c.from, &mesh.coords(rank), x);
                input.set(i, index.as_ref().map_or(TAIL, value));
            }
            let n = globals(mesh, &c.to, rank).len();
            let mut output = Local::new(dtype, n);
            (0..n).for_each(|i| output.set(i, BEFORE));
            Ok(Case { plan, input, output })
        };
        ranks.push(shared.iter().map(case).collect::<Result<_, CommError>>()?);
    }
    let counts = world.run(ranks.iter_mut().collect(), |comm: &mut Comm, cases: &mut Vec<Case>| {
        for case in cases {
            // SAFETY: sized by the plan's types; `ranks` outlives the run.
            unsafe { comm.collective(&case.plan, case.input.ptr(), case.output.ptr())? };
        }
        Ok::<_, CommError>(comm.counts.clone())
    })?;
    let mut outputs: Vec<Vec<Local>> = cases.iter().map(|_| Vec::new()).collect();
    for rank in ranks {
        rank.into_iter().zip(&mut outputs).for_each(|(case, out)| out.push(case.output));
    }
    Ok((outputs, counts))
}

/// Runs collectives and compares every element with the naive model, tails included.
pub fn check_all(mesh: &Mesh, cases: &[Collective]) -> Vec<Counts> {
    let (outputs, counts) = run_all(mesh, cases).unwrap();
    for (c, by_rank) in cases.iter().zip(&outputs) {
        for (rank, out) in by_rank.iter().enumerate() {
            for (i, index) in globals(mesh, &c.to, rank).iter().enumerate() {
                let what = format!("{mesh} {} rank {rank}: {} to {} at {index:?}", c.kind.name(), c.from, c.to);
                match index {
                    Some(index) => {
                        let mut want = expected(mesh, c, rank, index);
                        if c.from.dtype == DType::I32 && want == f64::NEG_INFINITY {
                            want = i32::MIN as f64;
                        }
                        assert_eq!(out.get(i), c.from.dtype.round(want), "{what}");
                    }
                    // Written with the identity, or not at all.
                    None => assert!(out.get(i) != TAIL, "{what}"),
                }
            }
        }
    }
    counts
}
