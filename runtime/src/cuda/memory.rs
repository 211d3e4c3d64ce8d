//! Memory of a device.

use super::device::Device;
use super::driver::check;
use super::error::CudaError;
use cudarc::driver::sys;
use std::sync::Arc;

/// Bytes on a device, freed at the end. Addresses are multiples of 256.
#[derive(Debug)]
pub struct Buffer {
    device: Arc<Device>,
    address: u64,
    bytes: usize,
}

impl Buffer {
    pub(super) fn new(device: &Arc<Device>, bytes: usize) -> Result<Buffer, CudaError> {
        device.bind()?;
        let mut address = 0;
        // SAFETY: a context is current; the pointer is valid for writes. Zero bytes are refused by the
        // driver, so one is asked for.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) })?;
        Ok(Buffer { device: device.clone(), address, bytes })
    }

    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The device that it is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn fits(&self, offset: usize, bytes: usize) -> Result<(), CudaError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(CudaError::Bounds { offset, bytes, size: self.bytes }),
        }
    }

    /// Copies bytes to the device.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        self.fits(offset, bytes.len())?;
        self.device.bind()?;
        let to = self.address + offset as u64;
        // SAFETY: source and destination hold as many bytes; the call returns when the source was read.
        check("cuMemcpyHtoD", unsafe { sys::cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()) })
    }

    /// Copies bytes from the device, after all work so far.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.fits(offset, bytes.len())?;
        self.device.bind()?;
        let from = self.address + offset as u64;
        // SAFETY: source and destination hold as many bytes; the call returns when they are written.
        check("cuMemcpyDtoH", unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from, bytes.len()) })
    }

    /// All its bytes.
    pub fn to_vec(&self) -> Result<Vec<u8>, CudaError> {
        let mut out = vec![0; self.bytes];
        self.read(0, &mut out)?;
        Ok(out)
    }

    /// Sets bytes.
    pub fn fill(&mut self, offset: usize, bytes: usize, value: u8) -> Result<(), CudaError> {
        self.fits(offset, bytes)?;
        self.device.bind()?;
        // SAFETY: the range lies in this buffer.
        check("cuMemsetD8", unsafe { sys::cuMemsetD8_v2(self.address + offset as u64, value, bytes) })
    }

    /// Sets all whole words of 4 bytes.
    pub fn fill_words(&mut self, value: u32) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: the range lies in this buffer, which is aligned to words.
        check("cuMemsetD32", unsafe { sys::cuMemsetD32_v2(self.address, value, self.bytes / 4) })
    }

    /// Copies all bytes of another buffer of the same device into the first of this one. The copy is
    /// queued behind earlier work; it may be under way when this returns.
    pub fn copy_from(&mut self, other: &Buffer) -> Result<(), CudaError> {
        self.fits(0, other.bytes)?;
        let (expected, found) = (self.device.info().ordinal, other.device.info().ordinal);
        if expected != found {
            return Err(CudaError::OtherDevice { what: "the source of a copy".into(), expected, found });
        }
        self.device.bind()?;
        let (to, from) = (self.address, other.address);
        // SAFETY: both ranges lie in their buffers. Freeing either waits for the copy.
        let copied = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, other.bytes, std::ptr::null_mut()) };
        check("cuMemcpyDtoDAsync", copied)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: nobody else has the address; the driver waits for work in progress. A failure
            // leaks it, no more.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}
