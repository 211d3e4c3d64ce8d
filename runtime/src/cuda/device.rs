//! A device with its primary context, and events on it.

use super::driver::{check, elapsed};
use super::error::CudaError;
use super::memory::Buffer;
use super::probe::{probe, DeviceInfo, Probe};
use cudarc::driver::sys;
use std::sync::Arc;

/// The driver's handle of a device. The driver must have started.
pub(super) fn handle(ordinal: usize) -> Result<sys::CUdevice, CudaError> {
    let mut handle = 0;
    let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
    // SAFETY: the pointer is valid for writes.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut handle, number) })?;
    Ok(handle)
}

/// A device's primary context, given back at the end. Work is done in order, on its default stream.
#[derive(Debug)]
pub struct Device {
    info: DeviceInfo,
    handle: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: contexts may be used from any thread; the driver locks what it must.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a device.
    pub fn open(ordinal: usize) -> Result<Arc<Device>, CudaError> {
        Device::of(&probe(), ordinal)
    }

    /// Opens a device that a probe has found.
    pub fn of(found: &Probe, ordinal: usize) -> Result<Arc<Device>, CudaError> {
        if let Some(reason) = found.problem() {
            return Err(CudaError::Unavailable { reason });
        }
        let count = found.devices().len();
        let info = found.devices().get(ordinal).cloned().ok_or(CudaError::NoDevice { ordinal, count })?;
        let handle = handle(ordinal)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver has started; the pointer is valid for writes.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, handle) })?;
        let device = Arc::new(Device { info, handle, context });
        device.bind()?;
        Ok(device)
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Makes its context the one of this thread.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as `self` lives.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Waits until all work is done; errors of earlier kernels come out here.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: a context is current.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Bytes of memory that are free, and all.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; pointers are valid for writes.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// Memory with undefined contents.
    pub fn allocate(self: &Arc<Device>, bytes: usize) -> Result<Buffer, CudaError> {
        Buffer::new(self, bytes)
    }

    /// Records an event after all work so far.
    pub fn event(self: &Arc<Device>) -> Result<Event, CudaError> {
        self.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current; the pointer is valid for writes.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, 0) })?;
        let event = Event { device: self.clone(), handle };
        // SAFETY: the event was made in this context; the stream is the default one.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.handle, std::ptr::null_mut()) })?;
        Ok(event)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: buffers, modules and events hold the device, so nothing of the context is in use.
        // A failure leaks it, no more.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

/// A point in a device's work.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    handle: sys::CUevent,
}

impl Event {
    /// Seconds from this event to a later one; waits for the later one.
    pub fn seconds_until(&self, later: &Event) -> Result<f64, CudaError> {
        self.device.bind()?;
        // SAFETY: both events are alive and were recorded.
        let milliseconds = unsafe {
            check("cuEventSynchronize", sys::cuEventSynchronize(later.handle))?;
            elapsed(self.handle, later.handle)?
        };
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody uses the event any more. A failure leaks it, no more.
        let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe::{CudaVersion, State};
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        let state = State::Ready { version: CudaVersion::new(12, 4), devices: vec![] };
        let mut found = Probe { library: None, kernel_module: true, visible: None, state };
        let e = Device::of(&found, 0).unwrap_err().to_string();
        assert!(e.starts_with("no CUDA device can be used: the driver library works, but sees no device"), "{e}");
        found.state = State::NoLibrary { names: vec!["libcuda.so".into()], path: None };
        assert!(Device::of(&found, 0).unwrap_err().to_string().contains("LD_LIBRARY_PATH is not set"));
        if probe().devices().is_empty() {
            assert!(matches!(Device::open(0), Err(CudaError::Unavailable { .. })));
        }
    }
}
