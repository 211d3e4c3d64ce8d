//! Machine code on a device.

use super::device::Device;
use super::driver::check;
use super::error::CudaError;
use super::launch::{Arguments, Grid};
use cudarc::driver::sys;
use std::ffi::CString;
use std::sync::Arc;

/// A loaded image, unloaded at the end.
#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    kernel: String,
    handle: sys::CUmodule,
}

// SAFETY: modules may be used from any thread; the driver locks what it must.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads machine code (an ELF image) or PTX. `kernel` is for errors.
    pub fn load(device: &Arc<Device>, kernel: &str, image: &[u8]) -> Result<Arc<Module>, CudaError> {
        let problem = |problem: &str| CudaError::Arguments { kernel: kernel.into(), problem: problem.into() };
        let elf = image.starts_with(b"\x7fELF");
        if !elf && !image.starts_with(b"//") {
            return Err(problem("its image is neither machine code nor PTX"));
        }
        // PTX is read up to a NUL.
        let image = if elf { image.to_vec() } else { [image, &[0]].concat() };
        device.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current; the image is whole and outlives the call.
        let loaded = unsafe { sys::cuModuleLoadData(&mut handle, image.as_ptr().cast()) };
        check("cuModuleLoadData", loaded).map_err(|e| e.of(kernel))?;
        Ok(Arc::new(Module { device: device.clone(), kernel: kernel.to_string(), handle }))
    }

    /// An entry point.
    pub fn function(self: &Arc<Module>, entry: &str) -> Result<Function, CudaError> {
        let name = CString::new(entry).map_err(|_| CudaError::Arguments {
            kernel: self.kernel.clone(),
            problem: format!("the name {entry:?} holds a NUL"),
        })?;
        self.device.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module is loaded; the name ends with NUL and outlives the call.
        let found = unsafe { sys::cuModuleGetFunction(&mut handle, self.handle, name.as_ptr()) };
        check("cuModuleGetFunction", found).map_err(|e| e.of(entry))?;
        Ok(Function { module: self.clone(), entry: entry.to_string(), handle })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: functions hold the module, so nobody can launch from it any more. A failure
            // leaks it, no more.
            let _ = unsafe { sys::cuModuleUnload(self.handle) };
        }
    }
}

/// An entry point of a module.
#[derive(Debug)]
pub struct Function {
    module: Arc<Module>,
    entry: String,
    handle: sys::CUfunction,
}

/// Dynamic shared memory that a function may use without being asked.
const DYNAMIC: u32 = 48 << 10;

impl Function {
    /// Queues a launch on the default stream. Errors of the running kernel come out of a later call.
    ///
    /// # Safety
    /// The kernel must take these arguments; every pointer must be memory of this device that is large
    /// enough for what the kernel does with these parts, and stay so until the work is done.
    pub unsafe fn launch(&self, grid: Grid, arguments: &Arguments) -> Result<(), CudaError> {
        self.module.device.bind()?;
        if grid.dynamic_shared > DYNAMIC {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(grid.dynamic_shared).unwrap_or(i32::MAX);
            // SAFETY: the function is of a loaded module.
            let set = unsafe { sys::cuFuncSetAttribute(self.handle, attribute, bytes) };
            check("cuFuncSetAttribute", set).map_err(|e| e.of(&self.entry))?;
        }
        let mut arguments = arguments.clone();
        let mut addresses = arguments.addresses();
        let ([gx, gy, gz], [bx, by, bz]) = (grid.grid, grid.block);
        // SAFETY: the function is of a loaded module of the current context; there are as many
        // arguments, of such sizes, as it takes (the caller's promise); they are read before the call
        // returns. The stream is the default one.
        let launched = unsafe {
            sys::cuLaunchKernel(
                self.handle,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                grid.dynamic_shared,
                std::ptr::null_mut(),
                addresses.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", launched).map_err(|e| e.of(&self.entry))
    }
}
