//! What a kernel cannot be turned into text for.

/// A kernel that has no CUDA text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CodegenError {
    /// The template is not generated.
    #[error("kernel {kernel}: no CUDA text for the template {template}")]
    Template {
        /// Kernel.
        kernel: String,
        /// Template.
        template: &'static str,
    },
    /// The kernel contradicts itself.
    #[error("kernel {kernel} ({template}): {problem}")]
    Malformed {
        /// Kernel.
        kernel: String,
        /// Template.
        template: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Well formed, but beyond what the generator does.
    #[error("kernel {kernel} ({template}): {what} is not supported")]
    Unsupported {
        /// Kernel.
        kernel: String,
        /// Template.
        template: &'static str,
        /// What is asked for.
        what: String,
    },
    /// The real parts of the split extents do not fit the kernel.
    #[error("kernel {kernel}: extent {extent} of {size} entries per rank cannot hold part {start}..{end} of {global}")]
    Part {
        /// Kernel, by the name of its text.
        kernel: String,
        /// Extent.
        extent: String,
        /// Padded local size.
        size: usize,
        /// First global index of the part.
        start: usize,
        /// End of the part.
        end: usize,
        /// Global size.
        global: usize,
    },
    /// Another number of parts than split extents.
    #[error("kernel {kernel} has {expected} split extents, but {found} parts were given")]
    Parts {
        /// Kernel, by the name of its text.
        kernel: String,
        /// Split extents.
        expected: usize,
        /// Parts.
        found: usize,
    },
}

/// Whose errors they are.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub kernel: &'a str,
    pub template: &'static str,
}

impl Site<'_> {
    pub fn malformed(&self, problem: impl Into<String>) -> CodegenError {
        CodegenError::Malformed { kernel: self.kernel.into(), template: self.template, problem: problem.into() }
    }

    pub fn unsupported(&self, what: impl Into<String>) -> CodegenError {
        CodegenError::Unsupported { kernel: self.kernel.into(), template: self.template, what: what.into() }
    }
}
