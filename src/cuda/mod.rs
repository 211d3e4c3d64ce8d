//! Where code generation and CUDA devices meet: which architecture texts are compiled for
//! ([`select`]), what a process takes besides its tensors ([`overhead`]), how a generated kernel is
//! called ([`abi`], [`grid`]), and the checks that a machine with a GPU runs ([`check`]).

pub mod check;
pub mod overhead;
pub mod select;

use autoshard_codegen::{CudaKernel, Launch};
use autoshard_runtime::cuda::{Abi, Grid};

/// What a generated kernel takes.
pub fn abi(kernel: &CudaKernel) -> Abi {
    Abi {
        kernel: kernel.name.clone(),
        buffers: kernel.buffers,
        workspace: kernel.workspace,
        extents: kernel.extents.len(),
    }
}

/// Geometry of a generated launch.
pub fn grid(launch: &Launch) -> Grid {
    Grid { grid: launch.grid, block: launch.block, dynamic_shared: launch.dynamic_shared }
}

#[cfg(test)]
mod tests {
    use super::*;
    use autoshard_codegen::emit;
    use autoshard_ir::core::{Axis, BinaryMonoid, Scalar};
    use autoshard_ir::kernel::{Extent, Instr, Kernel, KernelBody, LoopKernel, LoopOp, Store, View};
    use autoshard_ir::mesh::Mesh;
    use autoshard_ir::DType;
    use autoshard_runtime::cuda::Pointer;

    /// Column sums of a matrix whose rows are split over `tp`, and its doubled entries.
    fn kernel() -> Kernel {
        let rows = Extent { name: "s".into(), size: 400, global: 1200, axes: vec![Axis::new("tp")] };
        let columns = Extent { name: "d".into(), size: 24, global: 24, axes: vec![] };
        let view =
            |buffer, strides: [usize; 2]| View { buffer, dtype: DType::F32, offset: 0, strides: strides.to_vec() };
        let instr = |op, args: &[usize]| Instr { op, args: args.to_vec(), dtype: DType::F32, uniform: false };
        let nest = LoopKernel {
            loops: vec![rows, columns],
            instrs: vec![instr(LoopOp::Load(view(0, [24, 1])), &[]), instr(LoopOp::Map(Scalar::Add), &[0, 0])],
            stores: vec![
                Store { view: view(1, [24, 1]), reg: 1, combine: None },
                Store { view: view(2, [0, 1]), reg: 0, combine: Some(BinaryMonoid::Sum) },
            ],
        };
        let body = KernelBody::Loop(vec![nest]);
        Kernel { name: "sums".into(), operands: 1, results: 2, flops: 0.0, bytes: 0.0, body }
    }

    /// Bytes of each parameter of an entry point, as its text declares them.
    fn declared(source: &str, entry: &str) -> Vec<usize> {
        let head = source.split(&format!(" {entry}(")).nth(1).unwrap().split(')').next().unwrap();
        let bytes = |p: &str| match p.trim().rsplit_once(' ').unwrap().0 {
            "void*" => 8,
            "unsigned" => 4,
            other => panic!("parameter of type {other}"),
        };
        head.split(',').map(bytes).collect()
    }

    #[test]
    fn arguments_are_those_that_the_text_declares() {
        let k = emit(&kernel()).unwrap();
        let abi = abi(&k);
        assert!((abi.buffers, abi.extents) == (3, 1) && abi.workspace > 0, "{abi:?}");
        let mesh = Mesh::new(&[("tp", 3)]);
        let launches = k.launches(&k.parts(&mesh, &[2])).unwrap();
        assert_eq!(launches.len(), k.entries.len());
        let pointer = |address, bytes| Pointer { address, bytes };
        let buffers: Vec<Pointer> = (1..4).map(|i| pointer(0x1000 * i, 0x1000)).collect();
        let workspace = pointer(0x8000, abi.workspace);
        for l in &launches {
            let arguments = abi.arguments(&buffers, Some(workspace), &l.scalars).unwrap();
            assert_eq!(arguments.sizes(), declared(&k.source, &l.entry), "{}", l.entry);
            let bytes = arguments.bytes();
            assert_eq!(bytes[3], 0x8000u64.to_le_bytes());
            // The last third: 800, of 400 rows.
            assert_eq!((&bytes[4][..], &bytes[5][..]), (&800u32.to_le_bytes()[..], &400u32.to_le_bytes()[..]));
            assert_eq!(grid(l).block, l.block);
        }
        assert!(abi.arguments(&buffers, None, &launches[0].scalars).is_err());
    }
}
