//! Memory that a kernel needs besides its buffers: partial results between its entry points.

/// Bytes handed out so far.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    bytes: usize,
}

impl Workspace {
    /// Room for `n` elements; returns its address in C.
    pub fn take(&mut self, n: usize, element: usize) -> String {
        let at = self.bytes;
        self.bytes = at.saturating_add(n.saturating_mul(element)).next_multiple_of(64);
        format!("(unsigned char*)workspace + {at}ull")
    }

    /// All of it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
