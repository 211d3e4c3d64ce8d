//! Attention, forward and backward.

use super::Lowering;
use autoshard_ir::kernel::{AttentionKernel, Extent};

pub fn lower(l: &Lowering) -> Result<AttentionKernel, String> {
    let extent = |name: &str| -> Result<Extent, String> {
        let f = l.rule.factor(name).ok_or_else(|| format!("no factor {name}"))?;
        Ok(l.extent(f))
    };
    let attrs = &l.node.attrs;
    let window = attrs.get_int("window")?;
    Ok(AttentionKernel {
        b: extent("b")?,
        s: extent("s")?,
        t: extent("t")?,
        g: extent("g")?,
        r: extent("r")?,
        e: extent("e")?,
        h: extent("h")?,
        scale: attrs.get_float("scale")?,
        causal: attrs.get_int("causal")? != 0,
        window: usize::try_from(window).map_err(|_| format!("window {window} is negative"))?,
        dtype: l.inputs[0].dtype,
    })
}
