//! Jobs on a device.

use super::report::Failure;
use super::trial::{guarded, Job, Machine, GUARD};
use crate::cuda::grid;
use autoshard_codegen::Launch;
use autoshard_runtime::cuda::{Abi, Buffer, CudaError, Device, Function, Module, Pointer};
use std::sync::Arc;

/// A kernel's entry points, loaded.
#[derive(Debug)]
pub struct Loaded {
    device: Arc<Device>,
    abi: Abi,
    launches: Vec<(Function, Launch)>,
}

impl Loaded {
    /// Loads an image.
    pub fn new(device: &Arc<Device>, abi: &Abi, launches: &[Launch], image: &[u8]) -> Result<Loaded, CudaError> {
        let module = Module::load(device, &abi.kernel, image)?;
        let launches = launches.iter().map(|l| Ok((module.function(&l.entry)?, l.clone())));
        let launches = launches.collect::<Result<_, CudaError>>()?;
        Ok(Loaded { device: device.clone(), abi: abi.clone(), launches })
    }

    /// Queues all launches.
    ///
    /// # Safety
    /// The pointers must be memory of the device, of the sizes that the kernel was emitted for, until
    /// the work is done.
    pub unsafe fn launch(&self, buffers: &[Pointer], workspace: Option<Pointer>) -> Result<(), CudaError> {
        for (function, launch) in &self.launches {
            let arguments = self.abi.arguments(buffers, workspace, &launch.scalars)?;
            // SAFETY: the arguments are those of the kernel's own calling convention; the rest is the
            // caller's promise.
            unsafe { function.launch(grid(launch), &arguments) }?;
        }
        Ok(())
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

/// A GPU.
#[derive(Debug)]
pub struct Gpu(pub Arc<Device>);

impl Machine for Gpu {
    fn run(&mut self, image: &[u8], job: &Job) -> Result<Vec<Vec<u8>>, CudaError> {
        let loaded = Loaded::new(&self.0, &job.abi, &job.launches, image)?;
        let mut memory: Vec<Buffer> = vec![];
        for bytes in &job.memory {
            let whole = guarded(bytes);
            let mut buffer = self.0.allocate(whole.len())?;
            buffer.write(0, &whole)?;
            memory.push(buffer);
        }
        let pointer = |slot: usize| -> Result<Pointer, CudaError> {
            let (buffer, bytes) = memory.get(slot).zip(job.memory.get(slot)).ok_or_else(|| CudaError::Arguments {
                kernel: job.abi.kernel.clone(),
                problem: format!("there is no memory {slot}"),
            })?;
            Ok(Pointer { address: buffer.address() + GUARD as u64, bytes: bytes.len() })
        };
        let buffers = job.buffers.iter().map(|s| pointer(*s)).collect::<Result<Vec<_>, _>>()?;
        let workspace = job.workspace.map(pointer).transpose()?;
        // SAFETY: every buffer has the size that the kernel's views reach; all live until the device
        // has been waited for.
        unsafe { loaded.launch(&buffers, workspace) }?;
        self.0.synchronize().map_err(|e| e.of(&job.abi.kernel))?;
        memory.iter().map(Buffer::to_vec).collect()
    }
}

/// An error of the device as a failure.
pub fn failure(e: &CudaError) -> Failure {
    Failure::new("launch", e.to_string())
}
