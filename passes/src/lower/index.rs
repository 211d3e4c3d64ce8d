//! Gathers and scatters.

use super::Lowering;
use autoshard_ir::core::ScalarBody;
use autoshard_ir::kernel::GatherKernel;

/// A gather: operand `table` holds the rows, operand `ids` the indices.
pub fn lower(l: &Lowering, table: usize, ids: usize) -> Result<GatherKernel, String> {
    let factors = |maps: &[autoshard_ir::core::DimMap]| -> Vec<usize> {
        maps.iter().filter_map(|m| m.factors.first().copied()).collect()
    };
    kernel(l, &factors(&l.rule.operands[table]), &factors(&l.rule.operands[ids]))
}

/// A scatter: the result is the table.
pub fn lower_scatter(l: &Lowering) -> Result<GatherKernel, String> {
    let factors = |maps: &[autoshard_ir::core::DimMap]| -> Vec<usize> {
        maps.iter().filter_map(|m| m.factors.first().copied()).collect()
    };
    kernel(l, &factors(&l.rule.results[0]), &factors(&l.rule.operands[1]))
}

fn kernel(l: &Lowering, table: &[usize], ids: &[usize]) -> Result<GatherKernel, String> {
    if let Some(ScalarBody::Dispatch | ScalarBody::Combine) = l.rule.body {
        return Err("there is no kernel between tokens and experts: modules with experts are for planning".to_string());
    }
    let [v, d] = table else { return Err("the table must have two dimensions".to_string()) };
    Ok(GatherKernel {
        rows: ids.iter().map(|f| l.extent(*f)).collect(),
        table: l.extent(*v),
        d: l.extent(*d),
        dtype: l.results[0].dtype,
    })
}
