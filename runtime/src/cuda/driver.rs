//! The driver's library: whether it is there, where, and its results as errors.

use super::error::{CudaError, ErrorCode};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{c_char, CStr};

/// All functions of the driver that are called. Each is in every driver that can run a kernel of
/// ours; that they are there is checked before the first call, since a missing one would panic.
const SYMBOLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8_v2",
    "cuMemsetD32_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// Names under which the dynamic linker is asked for the library, the usual ones first.
pub(super) fn names() -> Vec<String> {
    let mut all: Vec<String> = ["cuda", "nvcuda"].iter().flat_map(|l| cudarc::get_lib_name_candidates(l)).collect();
    all.sort_by_key(|n| (!n.starts_with("libcuda.so"), n.len(), n.clone()));
    all.dedup();
    all
}

/// Whether the dynamic linker finds the library.
pub(super) fn present() -> bool {
    // SAFETY: loading the driver's library runs no code but its own initialisation.
    unsafe { sys::is_culib_present() }
}

/// Functions that the library lacks. Call it only where the library is present.
pub(super) fn missing() -> Vec<&'static str> {
    let lacks = |name: &&&str| {
        let symbol = format!("{name}\0");
        // SAFETY: the library is present; the symbol is looked up, and not called or kept.
        unsafe { sys::culib().get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_err()
    };
    SYMBOLS.iter().filter(lacks).copied().collect()
}

/// File that the library was loaded from.
pub(super) fn path() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    loaded(&maps).map(str::to_string)
}

/// The driver's library in a process's memory map.
fn loaded(maps: &str) -> Option<&str> {
    let paths = maps.lines().filter_map(|l| l.find('/').map(|at| &l[at..]));
    paths.into_iter().find(|p| p.rsplit('/').next().is_some_and(|file| file.starts_with("libcuda.so")))
}

/// Milliseconds between two events. Looked up by hand: bindings for recent versions of CUDA know only a
/// second version of it, which drivers before 12.8 lack.
///
/// # Safety
/// The library is present; both events are alive and were recorded.
pub(super) unsafe fn elapsed(start: sys::CUevent, end: sys::CUevent) -> Result<f32, CudaError> {
    type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;
    const NAME: &str = "cuEventElapsedTime";
    // SAFETY: the function has had this signature in every version of the driver.
    let found = unsafe { sys::culib().get::<Elapsed>(b"cuEventElapsedTime\0") };
    let function = found.map_err(|e| CudaError::Unavailable { reason: format!("{NAME}: {e}") })?;
    let mut milliseconds = 0.0;
    // SAFETY: the caller's promise; the pointer is valid for writes.
    check(NAME, unsafe { function(&mut milliseconds, start, end) })?;
    Ok(milliseconds)
}

/// A result as an error. The bindings hold results in an enum; it has every number that these functions
/// are documented to return.
pub(super) fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
    // SAFETY: both pointers are valid for writes; the strings are the library's and stay.
    let (name, text) = unsafe {
        let named = sys::cuGetErrorName(result, &mut name) == CUresult::CUDA_SUCCESS;
        let told = sys::cuGetErrorString(result, &mut text) == CUresult::CUDA_SUCCESS;
        (named.then(|| string(name)).flatten(), told.then(|| string(text)).flatten())
    };
    let name = name.unwrap_or_else(|| format!("{result:?}"));
    let text = text.map_or(name.clone(), |t| format!("{name}: {t}"));
    Err(CudaError::Call { call, code: ErrorCode { code: result as u32, text } })
}

/// # Safety
/// `text` is null or a string that ends with NUL.
unsafe fn string(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_in_a_memory_map() {
        let maps = "7f00-7f01 r--p 00000000 08:01 12 /usr/lib/libcudart.so.12\n\
            7f01-7f02 r-xp 00000000 08:01 13 /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15\n\
            7f02-7f03 rw-p 00000000 00:00 0 \n";
        assert_eq!(loaded(maps), Some("/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15"));
        assert_eq!(loaded("7f02-7f03 rw-p 00000000 00:00 0"), None);
    }

    #[test]
    fn the_names_that_are_looked_for_are_the_usual_ones() {
        assert_eq!(names()[..2], ["libcuda.so", "libcuda.so.1"]);
    }
}
