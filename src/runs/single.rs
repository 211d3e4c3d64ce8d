//! vTrain's runs on one server: a table of `common` facts and short rows (VIA-Research/vTrain,
//! data/ground_truth_single.csv; MICRO 2024, arXiv 2312.12391).
//!
//! A row is a GPT block on A100s of the cluster `vtrain-a100`: fp16, full recomputation, 1F1B, no ZeRO, the
//! framework `megatron-deepspeed-2022`, as in the runs of the same source on many servers.

use super::fields::Fields;
use super::{Entry, GroupKey, Measured, Optimizer, RunRow, RunsError, Skipped, Unit};
use crate::predict::{CpMethod, Layout, Precision, Recompute, Schedule};
use serde_json::{json, Value};

/// Tag of these rows.
const TAG: &str = "vtrain_single";
/// Their framework.
const STACK: &str = "megatron-deepspeed-2022";
/// Their accelerator and cluster.
const ACCELERATOR: &str = "a100-sxm4-80gb";
const CLUSTER: &str = "vtrain-a100";

/// Common facts that this reader is written for, and what each must be.
const COMMON: [(&str, &str); 5] =
    [("gpu", "A100"), ("ffn_hidden", "4*hidden"), ("recompute", "full"), ("schedule", "1F1B"), ("zero", "none")];

/// All rows.
///
/// # Errors
/// Where a common fact is another than this reader is written for, or a row lacks a number.
pub fn read(file: &str, value: &Value) -> Result<Vec<Entry>, RunsError> {
    let common = Fields { file, row: "common", value: value.get("common").unwrap_or(&Value::Null) };
    for (path, known) in COMMON {
        common.word(path, &[(known, ())])?;
    }
    let vocab = common.count("vocab")?.unwrap_or(50257);
    let per_node = common.count("gpus_per_node")?.unwrap_or(8);
    let rows = value.get("rows").and_then(Value::as_array);
    let rows = rows.ok_or_else(|| RunsError::Shape { file: file.into() })?;
    let one = |(i, v): (usize, &Value)| {
        let id = format!("{TAG}-{:04}", i + 1);
        row(&Fields { file, row: &id, value: v }, vocab, per_node)
    };
    rows.iter().enumerate().map(one).collect()
}

fn row(f: &Fields, vocab: u64, gpus_per_node: u64) -> Result<Entry, RunsError> {
    let step = f.positive("step_s")?;
    let need = |path: &'static str| Ok::<_, RunsError>(f.count(path)?.filter(|n| *n > 0).ok_or(path));
    let numbers = (|| {
        let mut out = [0; 10];
        let paths = ["gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "seq_len", "tp", "dp", "pp"];
        for (n, path) in out.iter_mut().zip(paths) {
            match need(path)? {
                Ok(found) => *n = found,
                Err(missing) => return Ok::<_, RunsError>(Err(format!("no {missing}"))),
            }
        }
        Ok(Ok(out))
    })()?;
    let skipped = |why: String| {
        let (id, tag, stack) = (f.row.to_string(), TAG.to_string(), STACK.to_string());
        Ok(Entry::Skipped(Skipped { id, tag, stack, step_seconds: step, memory_gib: None, why, ready: true }))
    };
    let [gpus, global_batch, micro_batch, hidden, heads, layers, seq_len, tp, dp, pp] = match numbers {
        Ok(n) => n,
        Err(why) => return skipped(why),
    };
    if step.is_none() {
        return skipped("no time or rate".into());
    }
    if tp.saturating_mul(dp).saturating_mul(pp) != gpus {
        return skipped("tp·cp·pp·dp is not the number of devices".into());
    }
    if !global_batch.is_multiple_of(dp.saturating_mul(micro_batch)) {
        return skipped("the global batch is not a multiple of dp·micro-batch".into());
    }
    let layout = Layout {
        tp,
        cp: 1,
        pp,
        ep: 1,
        etp: 1,
        dp,
        vpp: 1,
        zero: 0,
        keep: false,
        shard_group: 1,
        sp: false,
        cp_method: CpMethod::Ring,
        micro_batch,
        microbatches: global_batch / (dp * micro_batch),
        recompute: Recompute::Full,
        schedule: Schedule::OneFOneB,
        order: None,
    };
    let sizes = Sizes { gpus, gpus_per_node, global_batch, hidden, heads, layers, seq_len, vocab };
    Ok(Entry::Ready(Box::new(complete(f.row, &sizes, layout, step))))
}

struct Sizes {
    gpus: u64,
    gpus_per_node: u64,
    global_batch: u64,
    hidden: u64,
    heads: u64,
    layers: u64,
    seq_len: u64,
    vocab: u64,
}

fn complete(id: &str, s: &Sizes, layout: Layout, step_seconds: Option<f64>) -> RunRow {
    let name = format!("GPT h{} L{}", s.hidden, s.layers);
    RunRow {
        id: id.into(),
        tag: TAG.into(),
        name: name.clone(),
        stack: STACK.into(),
        release: None,
        group: GroupKey { stack: STACK.into(), hidden: s.hidden, heads: s.heads, accelerator: ACCELERATOR.into() },
        cut_of: None,
        accelerator: ACCELERATOR.into(),
        cluster: Some(CLUSTER.into()),
        gpus: s.gpus,
        gpus_per_node: s.gpus_per_node,
        // The usable rates of the same source's configuration, as in the rows on many servers.
        bandwidth_inside: Some(150e9),
        bandwidth_between: Some(12.5e9),
        bandwidth_effective: true,
        layout_key: format!("tp={} dp={} pp={} mbs={}", layout.tp, layout.dp, layout.pp, layout.micro_batch),
        layers_per_stage: stages(s.layers, layout.pp),
        layout,
        layers: s.layers,
        hidden: s.hidden,
        vocab: s.vocab,
        seq_len: s.seq_len,
        global_batch: s.global_batch,
        model: model(&name, s),
        block: block(s),
        precision: Precision::F16,
        grad_dtype: None,
        tp_overlap: Some(false),
        dp_overlap: Some(false),
        compile: Some(false),
        dropout: None,
        optimizer: Some(Optimizer::AdamW),
        mtp: 0,
        offload_activation_layers: None,
        offload_optimizer: false,
        measured: Measured { step_seconds, ..Measured::default() },
        unit: Unit::Seconds,
        repeat_key: None,
        inferred: ["accelerator", "compute", "optimizer"].map(String::from).to_vec(),
        marks: Vec::new(),
    }
}

/// Equal stages; `None` where the layers do not divide, or are too many to be a model.
fn stages(layers: u64, pp: u64) -> Option<Vec<u64>> {
    (layers < 1 << 16 && layers.is_multiple_of(pp)).then(|| vec![layers / pp; pp as usize])
}

/// `model` in the full schema.
fn model(name: &str, s: &Sizes) -> Value {
    json!({
        "name": name, "layers": s.layers, "hidden": s.hidden, "ffn_hidden": 4 * s.hidden, "heads": s.heads,
        "kv_heads": s.heads, "vocab": s.vocab, "seq_len": s.seq_len, "params_b": null, "moe": null,
        "activation": "gelu", "head_dim": s.hidden / s.heads, "extra": null
    })
}

/// `block` of a GPT in the full schema.
fn block(s: &Sizes) -> Value {
    json!({
        "family": "gpt", "norm": "layernorm", "gated": false, "activation": "gelu", "bias": true,
        "position": "learned", "tied": true, "parallel_block": false,
        "attention": {"kind": "full", "heads": s.heads, "kv_heads": s.heads, "head_dim": s.hidden / s.heads},
        "moe": null, "mtp": 0
    })
}
