//! A decoder at the sizes of one micro-batch: its functions, and the order in which a step calls them.

use crate::decoder::{Decoder, ModuleShape};
use autoshard_ir::DType;
use autoshard_passes::profile::Forward;

/// A function and what the step does with it.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Functions that are called, each once.
    pub functions: Vec<Forward>,
    /// Calls in order, equal neighbours together: function, count.
    pub calls: Vec<(usize, usize)>,
}

impl Shape {
    /// Builds the module of a decoder for `batch` sequences and keeps what a step calls.
    ///
    /// # Errors
    /// Sizes that no module can have.
    pub fn new(decoder: &Decoder, batch: u64, seq_len: u64) -> Result<Shape, String> {
        let shape = ModuleShape {
            batch: batch as usize,
            seq_len: seq_len as usize,
            dtype: DType::Bf16,
            // Published benchmarks force balanced routing; imbalance would be a factor on slots.
            capacity: 1.0,
        };
        let module = decoder.module(&shape).map_err(|e| e.to_string())?;
        let mut out = Shape { functions: Vec::new(), calls: Vec::new() };
        let Some(entry) = module.entry_function() else { return Ok(out) };
        for name in entry.nodes.iter().filter_map(|n| n.callee.as_deref()) {
            let Some(f) = module.function(name).filter(|f| !f.params.is_empty()) else { continue };
            let at = match out.functions.iter().position(|g| g.f.name == f.name) {
                Some(at) => at,
                None => {
                    out.functions.push(Forward::new(f.clone()).map_err(|e| e.to_string())?);
                    out.functions.len() - 1
                }
            };
            match out.calls.last_mut() {
                Some((last, n)) if *last == at => *n += 1,
                _ => out.calls.push((at, 1)),
            }
        }
        Ok(out)
    }

    /// Whether a function is a layer, which recomputation policies speak of.
    pub fn is_layer(&self, function: usize) -> bool {
        self.functions[function].f.name.starts_with("block")
    }
}
