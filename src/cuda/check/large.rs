//! Speed: the kernels of a large model's step as a share of a copy's bytes a second.

use super::device::Loaded;
use super::kernels::{integers, Case};
use super::reference::{shapes, Shape};
use super::report::{Failure, Record, Status};
use autoshard_codegen::CudaKernel;
use autoshard_ir::DType;
use autoshard_runtime::cuda::{Buffer, CudaError, Device, Pointer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name of the check that measures the copy.
pub const COPY: &str = "device-to-device copy";
/// Name of a rate.
pub const RATE: &str = "GB/s";
/// Name of a share of the copy's rate.
pub const SHARE: &str = "share of copy";

/// Bytes that the copy moves at once; it reads and writes them.
const COPY_BYTES: usize = 2 << 30;
/// Runs that are not counted, and runs that are.
const WARM: usize = 3;
const RUNS: usize = 10;
/// Floats of every type that are small and not zero.
const SMALL: u32 = 0x3c00_3c00;
/// Memory that is left free.
const RESERVE: usize = 1 << 30;

/// Seconds of each counted run.
fn time(device: &Arc<Device>, mut run: impl FnMut() -> Result<(), CudaError>) -> Result<Vec<f64>, CudaError> {
    for _ in 0..WARM {
        run()?;
    }
    device.synchronize()?;
    let mut events = vec![device.event()?];
    for _ in 0..RUNS {
        run()?;
        events.push(device.event()?);
    }
    device.synchronize()?;
    events.windows(2).map(|e| e[0].seconds_until(&e[1])).collect()
}

/// Rate and times of runs that move so many bytes each.
fn figures(bytes: usize, seconds: &[f64]) -> BTreeMap<String, f64> {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(median) = sorted.get(sorted.len() / 2).copied().filter(|m| *m > 0.0) else { return BTreeMap::new() };
    let figures = [
        (RATE, bytes as f64 / median / 1e9),
        ("bytes", bytes as f64),
        ("microseconds", 1e6 * median),
        ("fastest microseconds", 1e6 * sorted[0]),
        ("slowest microseconds", 1e6 * sorted[sorted.len() - 1]),
    ];
    figures.into_iter().map(|(k, v)| (k.to_string(), v)).collect()
}

/// Measures the copy.
pub fn copy(device: &Arc<Device>) -> Result<BTreeMap<String, f64>, CudaError> {
    let mut from = device.allocate(COPY_BYTES)?;
    let mut to = device.allocate(COPY_BYTES)?;
    from.fill_words(SMALL)?;
    let seconds = time(device, || to.copy_from(&from))?;
    Ok(figures(2 * COPY_BYTES, &seconds))
}

/// Measures a kernel; `Err(Ok(reason))` if there is no room for it.
pub fn measure(
    device: &Arc<Device>,
    case: &Case,
    text: &CudaKernel,
    image: &[u8],
) -> Result<BTreeMap<String, f64>, Result<Failure, CudaError>> {
    let shapes = shapes(&case.kernel);
    let shared = |k: usize| case.in_place.iter().find(|(_, result)| *result == k).map(|(o, _)| *o);
    let own = shapes.iter().enumerate().filter(|(k, _)| shared(*k).is_none());
    let need = own.map(|(_, s)| s.len * s.dtype.bytes()).sum::<usize>() + text.workspace;
    let (free, _) = device.memory().map_err(Err)?;
    if need.saturating_add(RESERVE) > free {
        let gib = |n: usize| n as f64 / (1u64 << 30) as f64;
        let text = format!("it takes {:.1} GiB, {:.1} are free", gib(need), gib(free));
        return Err(Ok(Failure::new("memory", text)));
    }
    seconds(device, case, text, image, &shapes, &shared)
        .map(|s| figures(case.kernel.touched().iter().sum(), &s))
        .map_err(Err)
}

fn seconds(
    device: &Arc<Device>,
    case: &Case,
    text: &CudaKernel,
    image: &[u8],
    shapes: &[Shape],
    shared: &dyn Fn(usize) -> Option<usize>,
) -> Result<Vec<f64>, CudaError> {
    let mut memory: Vec<Option<Buffer>> = vec![];
    for (k, shape) in shapes.iter().enumerate() {
        memory.push(if shared(k).is_none() { Some(filled(device, case, k, shape)?) } else { None });
    }
    let workspace = if text.workspace > 0 { Some(device.allocate(text.workspace)?) } else { None };
    let pointer = |b: &Buffer| Pointer { address: b.address(), bytes: b.bytes() };
    let slots = (0..shapes.len()).map(|k| shared(k).unwrap_or(k));
    let buffers: Option<Vec<Pointer>> = slots.map(|s| memory.get(s)?.as_ref().map(pointer)).collect();
    let kernel = || text.name.clone();
    let buffers = buffers.ok_or_else(|| CudaError::Arguments {
        kernel: kernel(),
        problem: "a result shares memory with a result".into(),
    })?;
    let workspace = workspace.as_ref().map(pointer);
    let coords = vec![0; case.mesh.axes.len()];
    let launches = text.launches(&text.parts(&case.mesh, &coords));
    let launches = launches.map_err(|e| CudaError::Arguments { kernel: kernel(), problem: e.to_string() })?;
    let loaded = Loaded::new(device, &crate::cuda::abi(text), &launches, image)?;
    // SAFETY: every buffer has the size that the kernel's views reach; all live until the end of this
    // function, and `time` waits for the device; on errors, freeing waits.
    let timed = time(device, || unsafe { loaded.launch(&buffers, workspace) });
    timed.map_err(|e| e.of(&text.name))
}

/// A buffer of numbers that a kernel can live with.
fn filled(device: &Arc<Device>, case: &Case, k: usize, shape: &Shape) -> Result<Buffer, CudaError> {
    let mut buffer = device.allocate((shape.len * shape.dtype.bytes()).next_multiple_of(4))?;
    if shape.dtype == DType::I32 && k < case.kernel.operands {
        let (first, count) = integers(&case.kernel);
        let value = |i: usize| (first + i.wrapping_mul(7919) % count.max(1)) as i32;
        let bytes: Vec<u8> = (0..shape.len).flat_map(|i| value(i).to_le_bytes()).collect();
        buffer.write(0, &bytes)?;
    } else {
        buffer.fill_words(SMALL)?;
    }
    Ok(buffer)
}

/// Adds each rate's share of the copy's.
pub fn shares(records: &mut [Record]) {
    let copy = records.iter().find(|r| r.check == COPY && r.status == Status::Passed);
    let Some(copy) = copy.and_then(|r| r.figures.get(RATE).copied()) else { return };
    for r in records.iter_mut() {
        if let Some(rate) = r.figures.get(RATE).copied() {
            r.figures.insert(SHARE.to_string(), rate / copy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_medians_and_shares_are_of_the_copy() {
        let f = figures(4_000_000_000, &[0.002, 0.001, 0.004]);
        assert_eq!((f[RATE], f["fastest microseconds"], f["slowest microseconds"]), (2000.0, 1000.0, 4000.0));
        assert!(figures(1, &[]).is_empty() && figures(1, &[0.0]).is_empty());
        let record = |check: &str, rate: f64| Record {
            stage: "speed".into(),
            check: check.into(),
            status: Status::Passed,
            figures: [(RATE.to_string(), rate)].into(),
            failure: None,
        };
        let mut records = vec![record(COPY, 4000.0), record("rmsnorm", 3000.0)];
        shares(&mut records);
        assert_eq!(records[1].figures[SHARE], 0.75);
        let mut alone = vec![record("rmsnorm", 3000.0)];
        shares(&mut alone);
        assert_eq!(alone[0].figures.len(), 1);
    }
}
