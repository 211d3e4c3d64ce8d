//! What goes wrong with a device.

use std::fmt;

/// A result of the driver that is not success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorCode {
    /// Number, as the driver's header has it.
    pub code: u32,
    /// Name and description, as far as the driver tells them.
    pub text: String,
}

impl ErrorCode {
    /// Whether the process can do nothing more with the device: errors of a running kernel stay with
    /// its context for good.
    pub fn sticky(&self) -> bool {
        // ECC, NVLink, contained errors; illegal address, launch timeout, assertion; hardware stack error
        // to launch failure; tensor memory leak.
        matches!(self.code, 214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text, self.code)
    }
}

/// Why something could not be done with a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver or no device.
    #[error("no CUDA device can be used: {reason}")]
    Unavailable {
        /// What the probe says.
        reason: String,
    },
    /// A device that is not there.
    #[error("there is no CUDA device {ordinal}; {count} are there")]
    NoDevice {
        /// Number of the device.
        ordinal: usize,
        /// Devices.
        count: usize,
    },
    /// A call of the driver fails.
    #[error("{call}: {code}")]
    Call {
        /// Function of the driver.
        call: &'static str,
        /// Its result.
        code: ErrorCode,
    },
    /// A call of the driver for a kernel fails.
    #[error("kernel {kernel}: {call}: {code}")]
    Kernel {
        /// Kernel or entry point.
        kernel: String,
        /// Function of the driver.
        call: &'static str,
        /// Its result.
        code: ErrorCode,
    },
    /// Arguments that a kernel does not take.
    #[error("kernel {kernel}: {problem}")]
    Arguments {
        /// Kernel.
        kernel: String,
        /// What is wrong.
        problem: String,
    },
    /// A copy that does not fit its buffer.
    #[error("a copy of {bytes} bytes at {offset} does not fit a device buffer of {size} bytes")]
    Bounds {
        /// First byte.
        offset: usize,
        /// Bytes.
        bytes: usize,
        /// Size of the buffer.
        size: usize,
    },
    /// The two sides of something lie on different devices.
    #[error("{what} belongs to device {found}, not to device {expected}")]
    OtherDevice {
        /// Buffer or module.
        what: String,
        /// Device that was asked.
        expected: usize,
        /// Device that it is on.
        found: usize,
    },
}

impl CudaError {
    /// The driver's code, if it is the driver that complains.
    pub fn code(&self) -> Option<&ErrorCode> {
        match self {
            CudaError::Call { code, .. } | CudaError::Kernel { code, .. } => Some(code),
            _ => None,
        }
    }

    /// The same for a kernel.
    pub fn of(self, kernel: &str) -> CudaError {
        match self {
            CudaError::Call { call, code } => CudaError::Kernel { kernel: kernel.to_string(), call, code },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_and_call_are_named() {
        let code = ErrorCode { code: 700, text: "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access".into() };
        assert!(code.sticky());
        let e = CudaError::Call { call: "cuCtxSynchronize", code: code.clone() }.of("k1");
        let want = "kernel k1: cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access (700)";
        assert_eq!(e.to_string(), want);
        assert_eq!(e.code(), Some(&code));
        assert!(!ErrorCode { code: 2, text: String::new() }.sticky());
    }
}
