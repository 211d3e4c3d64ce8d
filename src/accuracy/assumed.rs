//! Rows that lack the number of chunks of a pipeline rank, predicted with several.
//!
//! Llama 3's paper (arXiv 2407.21783, table 4) tells an interleaved schedule and not how many chunks a rank has.
//! Such rows are no evidence, so they are neither fitted nor counted; they are printed with 4 and with 8 chunks,
//! the second being our inference: layers are cut so that a chunk holds one (126 layers on 16·8).

use super::score::prepare;
use crate::json::Document;
use crate::predict::Backend;
use crate::runs::{self, Entry, RunsError};
use serde_json::{json, Value};

/// The source.
pub const TAG: &str = "llama3_t4";
/// Chunks that are tried.
pub const CHUNKS: [u64; 2] = [4, 8];

/// A row with an assumption.
#[derive(Clone, Debug, PartialEq)]
pub struct AssumedLine {
    /// The row.
    pub id: String,
    /// Chunks of a rank that are assumed.
    pub chunks: u64,
    /// Share of the peak rate (0–1) that was printed.
    pub measured: Option<f64>,
    /// Predicted, with causal attention counted once, and with the whole square; or why there is none.
    pub predicted: Result<(f64, f64), String>,
}

/// Predicts the rows of [`TAG`] in a file of runs by the constants in the product.
///
/// # Errors
/// Where a row cannot be read.
pub fn assumed(document: &Document, backend: &dyn Backend) -> Result<Vec<AssumedLine>, RunsError> {
    let mut out = Vec::new();
    for chunks in CHUNKS {
        let rows: Vec<Value> = rows(&document.value, chunks);
        let text = Value::Array(rows).to_string();
        let entries = runs::read(&Document::parse(&document.file, text.as_bytes())?)?;
        for (entry, prepared) in entries.iter().zip(prepare(&entries, backend, None)) {
            let (id, measured) = match entry {
                Entry::Ready(row) => (row.id.clone(), row.measured.mfu),
                Entry::Skipped(s) => (s.id.clone(), None),
            };
            let predicted = prepared.and_then(|p| {
                let prediction = backend.predict_row(p.row, &p.machine, &p.stack).map_err(|e| e.to_string())?;
                let peak = p.peak().ok_or("no peak rate")?;
                let share = |flops: f64| prediction.utilisation(flops, p.row.gpus, peak);
                Ok((share(prediction.model_flops_causal), share(prediction.model_flops_full)))
            });
            out.push(AssumedLine { id, chunks, measured, predicted });
        }
    }
    out.sort_by(|a, b| a.id.cmp(&b.id).then(a.chunks.cmp(&b.chunks)));
    Ok(out)
}

/// The source's rows with so many chunks; micro-batches of one sequence and nothing recomputed where not stated.
fn rows(file: &Value, chunks: u64) -> Vec<Value> {
    let mine = file.as_array().into_iter().flatten().filter(|r| r["tag"] == TAG && r["parallel"]["vpp"].is_null());
    let made = mine.cloned().map(|mut row| {
        set(&mut row, &["parallel", "vpp"], json!(chunks));
        set(&mut row, &["sim_ready"], json!(true));
        // The paper states no FLOP convention, without which a row is not read; both are printed instead.
        set(&mut row, &["flop_convention"], json!("palm/torchtitan"));
        if row["micro_batch"].is_null() {
            set(&mut row, &["micro_batch"], json!(1));
        }
        if row["norm"]["recompute"]["kind"].is_null() {
            set(&mut row, &["norm", "recompute", "kind"], json!("none"));
        }
        row
    });
    made.collect()
}

/// Sets a field, where what holds it is an object.
fn set(row: &mut Value, path: &[&str], value: Value) {
    let Some((last, before)) = path.split_last() else { return };
    let holder = before.iter().try_fold(row, |v, key| v.get_mut(*key)).and_then(Value::as_object_mut);
    if let Some(object) = holder {
        object.insert(last.to_string(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_stated_is_assumed() {
        let file = json!([
            {"tag": TAG, "parallel": {"vpp": null, "pp": 16}, "micro_batch": 2, "norm": {"recompute": {"kind": null}}},
            {"tag": TAG, "parallel": {"vpp": 2}},
            {"tag": "other", "parallel": {"vpp": null}}
        ]);
        let rows = rows(&file, 8);
        assert_eq!(rows.len(), 1);
        assert_eq!((&rows[0]["parallel"]["vpp"], &rows[0]["micro_batch"]), (&json!(8), &json!(2)));
        assert_eq!(rows[0]["norm"]["recompute"]["kind"], "none");
    }
}
