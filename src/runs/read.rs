//! Reading a file of runs: rows in the full schema.

use super::fields::Fields;
use super::{
    single, Convention, Entry, GradDtype, GroupKey, Measured, MemoryKind, Optimizer, RunRow, RunsError, Skipped, Unit,
};
use crate::json::Document;
use crate::predict::{CpMethod, Layout, Module, Precision, Recompute, Schedule};
use serde_json::Value;
use std::collections::HashSet;

/// Bytes/s of a GB/s.
const GIGA: f64 = 1e9;

/// Reads either kind of file, told apart by its shape.
///
/// # Errors
/// Where it is not such a file, a field has another type, or a word is not in its closed vocabulary.
pub fn read(document: &Document) -> Result<Vec<Entry>, RunsError> {
    let file = document.file.as_str();
    let entries = match &document.value {
        Value::Array(rows) => rows.iter().enumerate().map(|(i, v)| entry(file, i, v)).collect::<Result<_, _>>()?,
        Value::Object(o) if o.contains_key("common") && o.contains_key("rows") => single::read(file, &document.value)?,
        _ => return Err(RunsError::Shape { file: file.into() }),
    };
    unique(file, &entries)?;
    Ok(entries)
}

fn unique(file: &str, entries: &[Entry]) -> Result<(), RunsError> {
    let mut seen = HashSet::new();
    let ids = entries.iter().map(|e| match e {
        Entry::Ready(r) => r.id.as_str(),
        Entry::Skipped(s) => s.id.as_str(),
    });
    for id in ids {
        if !seen.insert(id) {
            return Err(RunsError::Twice { file: file.into(), row: id.into() });
        }
    }
    Ok(())
}

/// One row of the full schema.
fn entry(file: &str, index: usize, value: &Value) -> Result<Entry, RunsError> {
    let place = format!("{} (counted from 1)", index + 1);
    let id = value.get("id").and_then(Value::as_str);
    let f = Fields { file, row: id.unwrap_or(&place), value };
    if id.is_none() {
        let found = value.get("id").map_or("missing".into(), Value::to_string);
        return Err(f.wrong("id", found, "a text"));
    }
    let measured = measured(&f)?;
    let ready = f.flag("sim_ready")? != Some(false);
    let skipped = |why: String| {
        Entry::Skipped(Skipped {
            id: f.row.into(),
            tag: text(&f, "tag"),
            stack: text(&f, "norm.stack"),
            step_seconds: measured.step_seconds,
            memory_gib: measured.memory_gib,
            why,
            ready,
        })
    };
    Ok(match row(&f, &measured)? {
        Ok(row) => Entry::Ready(Box::new(row)),
        Err(why) => skipped(why),
    })
}

/// A text field that may be anything, or absent.
fn text(f: &Fields, path: &str) -> String {
    f.get(path).and_then(Value::as_str).unwrap_or("").to_string()
}

/// The row, or why it cannot be simulated. Closed vocabularies are read before anything is skipped, so that a
/// mistyped word is found in a row that lacks something, too.
fn row(f: &Fields, measured: &Measured) -> Result<Result<RunRow, String>, RunsError> {
    let mut marks = Vec::new();
    let words = Words::read(f)?;
    let sizes = match Sizes::read(f)? {
        Ok(sizes) => sizes,
        Err(missing) => return Ok(Err(missing)),
    };
    let Some(precision) = words.precision else { return Ok(Err("no norm.compute".into())) };
    let recompute = match words.recompute(f, &mut marks)? {
        Ok(r) => r,
        Err(why) => return Ok(Err(why)),
    };
    // A reading of memory, or that it was too much, is judged by the layout alone.
    let judged = measured.memory_gib.is_some() || measured.out_of_memory;
    let ready = f.flag("sim_ready")? != Some(false);
    let measured = if ready || !judged { measured.clone() } else { measured.without_times() };
    let unit = match unit(f, &measured, &mut marks)? {
        Ok(unit) => unit,
        Err(_) if judged => {
            marks.push("memory alone is compared".into());
            Unit::Seconds
        }
        Err(why) => return Ok(Err(why)),
    };
    let layout = match layout(f, &sizes, &words, recompute, &mut marks)? {
        Ok(layout) => layout,
        Err(why) => return Ok(Err(why)),
    };
    if !ready && !judged {
        return Ok(Err("the file marks it as not ready to be simulated".into()));
    }
    if f.flag("verified")? == Some(false) {
        marks.push("not verified".into());
    }
    finish(f, &measured, Known { sizes, words, precision, unit, layout, marks }).map(Ok)
}

/// What is known of a row that lacks nothing.
struct Known {
    sizes: Sizes,
    words: Words,
    precision: Precision,
    unit: Unit,
    layout: Layout,
    marks: Vec<String>,
}

/// The row, with the fields that may be absent.
fn finish(f: &Fields, measured: &Measured, known: Known) -> Result<RunRow, RunsError> {
    let Known { sizes, words, precision, unit, layout, marks } = known;
    let stack = text(f, "norm.stack");
    let accelerator = text(f, "norm.accelerator");
    let rate = |path| Ok::<_, RunsError>(f.positive(path)?.map(|gb| gb * GIGA));
    let mut inferred = Vec::new();
    for path in ["norm.inferred", "block.inferred"] {
        inferred.extend(f.texts(path)?.unwrap_or_default().into_iter().map(str::to_string));
    }
    let owned = |path| Ok::<_, RunsError>(f.text(path)?.map(str::to_string));
    Ok(RunRow {
        id: f.row.into(),
        tag: text(f, "tag"),
        name: text(f, "model.name"),
        group: GroupKey {
            stack: stack.clone(),
            hidden: sizes.hidden,
            heads: sizes.heads,
            accelerator: accelerator.clone(),
        },
        stack,
        release: owned("norm.release")?,
        cut_of: owned("norm.cut_of")?,
        accelerator,
        cluster: owned("norm.cluster")?,
        gpus: sizes.gpus,
        gpus_per_node: f.count("hardware.gpus_per_node")?.filter(|n| *n > 0).unwrap_or(8),
        bandwidth_inside: rate("hardware.intra_gb_s")?,
        bandwidth_between: rate("hardware.inter_gb_s")?,
        bandwidth_effective: f.flag("norm.bw_effective")?.unwrap_or(false),
        layout,
        layout_key: layout_key(f),
        layers_per_stage: f.counts("norm.layers_per_stage")?,
        layers: sizes.layers,
        hidden: sizes.hidden,
        vocab: sizes.vocab,
        seq_len: sizes.seq_len,
        global_batch: sizes.global_batch,
        model: f.get("model").cloned().unwrap_or(Value::Null),
        block: f.get("block").cloned().unwrap_or(Value::Null),
        precision,
        grad_dtype: words.grad_dtype,
        tp_overlap: f.flag("norm.tp_overlap")?,
        dp_overlap: f.flag("norm.dp_overlap")?,
        compile: f.flag("norm.compile")?,
        dropout: f.flag("norm.dropout")?,
        optimizer: words.optimizer,
        mtp: f.count("norm.mtp")?.unwrap_or(0),
        offload_activation_layers: f.count("norm.offload.activation_layers")?,
        offload_optimizer: f.text("norm.offload.optimizer")?.is_some(),
        measured: measured.clone(),
        unit,
        repeat_key: owned("repeat_key")?,
        inferred,
        marks,
    })
}

/// All that makes a layout, in the row's own words. `zero` in words is left out: `norm.zero` says it.
fn layout_key(f: &Fields) -> String {
    let mut parallel = f.get("parallel").cloned().unwrap_or(Value::Null);
    if let Some(map) = parallel.as_object_mut() {
        map.remove("zero");
    }
    let part = |path| f.get(path).map_or("-".into(), Value::to_string);
    let paths = ["norm.zero", "norm.reshard_after_forward", "micro_batch", "norm.recompute"];
    format!("{parallel} {}", paths.map(part).join(" "))
}

/// Whole numbers that every simulation needs.
struct Sizes {
    gpus: u64,
    layers: u64,
    hidden: u64,
    heads: u64,
    vocab: u64,
    seq_len: u64,
    tp: u64,
    cp: u64,
    pp: u64,
    vpp: u64,
    ep: u64,
    dp: u64,
    micro_batch: u64,
    global_batch: u64,
}

impl Sizes {
    /// The sizes, or which of them are missing.
    fn read(f: &Fields) -> Result<Result<Sizes, String>, RunsError> {
        let mut missing = Vec::new();
        let mut need = |path: &'static str| {
            let n = f.count(path)?.filter(|n| *n > 0);
            if n.is_none() {
                missing.push(path);
            }
            Ok::<_, RunsError>(n.unwrap_or(1))
        };
        let sizes = Sizes {
            gpus: need("gpus")?,
            layers: need("model.layers")?,
            hidden: need("model.hidden")?,
            heads: need("model.heads")?,
            vocab: need("model.vocab")?,
            seq_len: need("model.seq_len")?,
            tp: need("parallel.tp")?,
            cp: need("parallel.cp")?,
            pp: need("parallel.pp")?,
            vpp: need("parallel.vpp")?,
            ep: need("parallel.ep")?,
            dp: need("parallel.dp")?,
            micro_batch: need("micro_batch")?,
            global_batch: need("global_batch")?,
        };
        if f.get("block.attention.kind").is_none() {
            missing.push("block.attention");
        }
        Ok(match missing.is_empty() {
            true => Ok(sizes),
            false => Err(format!("no {}", missing.join(", "))),
        })
    }
}

/// The closed vocabularies of `norm`.
struct Words {
    precision: Option<Precision>,
    grad_dtype: Option<GradDtype>,
    optimizer: Option<Optimizer>,
    zero: Option<u8>,
    recompute: Option<&'static str>,
    modules: Option<Vec<Module>>,
}

impl Words {
    fn read(f: &Fields) -> Result<Words, RunsError> {
        let precisions: Vec<_> = Precision::ALL.iter().map(|p| (p.name(), *p)).collect();
        let modules: Vec<_> = Module::ALL.iter().map(|m| (m.name(), *m)).collect();
        let grads = [("f32", GradDtype::F32), ("bf16", GradDtype::Bf16), ("f16", GradDtype::F16)];
        let kinds = ["none", "selective", "full", "layers"].map(|k| (k, k));
        for (path, known) in CLOSED {
            f.word(path, &known.iter().map(|w| (*w, ())).collect::<Vec<_>>())?;
        }
        let zero = f.count("norm.zero")?;
        if let Some(z @ 4..) = zero {
            return Err(f.wrong("norm.zero", z.to_string(), "0, 1, 2 or 3"));
        }
        Ok(Words {
            precision: f.word("norm.compute", &precisions)?,
            grad_dtype: f.word("norm.grad_dtype", &grads)?,
            optimizer: f.word("norm.optimizer", &[("adamw", Optimizer::AdamW), ("lamb", Optimizer::Lamb)])?,
            zero: zero.map(|z| z as u8),
            recompute: f.word("norm.recompute.kind", &kinds)?,
            modules: f.words("norm.recompute.modules", &modules)?,
        })
    }

    /// What is recomputed, or why that is not known.
    fn recompute(&self, f: &Fields, marks: &mut Vec<String>) -> Result<Result<Recompute, String>, RunsError> {
        let layers = f.count("norm.recompute.layers")?;
        Ok(match (self.recompute, &self.modules) {
            (None, _) => Err("no norm.recompute.kind".into()),
            (Some("none"), _) => Ok(Recompute::None),
            (Some("full"), _) => Ok(Recompute::Full),
            (Some("layers"), _) => layers.map(Recompute::Layers).ok_or("no norm.recompute.layers".into()),
            (Some(_), Some(modules)) => Ok(Recompute::Selective(modules.clone())),
            (Some(_), None) => {
                // Megatron's own default for selective recomputation.
                marks.push("recomputed modules not stated: core_attn".into());
                Ok(Recompute::Selective(vec![Module::CoreAttn]))
            }
        })
    }
}

/// Closed vocabularies of `block`, which are checked here and read by whoever builds the model.
const CLOSED: [(&str, &[&str]); 4] = [
    ("block.norm", &["rmsnorm", "layernorm"]),
    ("block.activation", &["silu", "gelu", "relu2", "relu"]),
    ("block.position", &["rope", "alibi", "learned", "none"]),
    ("block.attention.kind", &["full", "window", "mla", "hybrid"]),
];

/// What was measured, in SI units but for memory.
fn measured(f: &Fields) -> Result<Measured, RunsError> {
    let from_tflops = f.text("derived.from")? == Some("tflops");
    let derived = if from_tflops { None } else { f.positive("derived.step_s")? };
    let tokens = f.positive("result.tokens_per_s_per_gpu")?;
    let tflops = f.positive("result.tflops_per_gpu")?;
    let kinds = [
        ("allocated", MemoryKind::Allocated),
        ("reserved", MemoryKind::Reserved),
        ("smi", MemoryKind::Device),
        ("device", MemoryKind::Device),
    ];
    // A step that was derived is one of tokens/s; where it was derived of TFLOP/s, those are compared.
    let derived = derived.filter(|_| tokens.is_some());
    Ok(Measured {
        step_seconds: f.positive("result.step_s")?.or(derived),
        tokens_per_second: tokens,
        flops_per_second: tflops.map(|t| t * 1e12),
        mfu: f.positive("result.mfu_pct")?.map(|p| p / 100.0),
        memory_gib: f.positive("result.peak_mem_gib")?,
        memory_kind: f.word("norm.mem_kind", &kinds)?,
        out_of_memory: f.flag("result.oom")?.unwrap_or(false),
    })
}

/// The unit in which the time is compared, or why it cannot be.
fn unit(f: &Fields, m: &Measured, marks: &mut Vec<String>) -> Result<Result<Unit, String>, RunsError> {
    if m.step_seconds.is_some() {
        return Ok(Ok(Unit::Seconds));
    }
    let unit: fn(Convention) -> Unit = match (m.flops_per_second, m.mfu) {
        (Some(_), _) => Unit::Flops,
        (None, Some(_)) => Unit::Mfu,
        (None, None) if m.out_of_memory => return Ok(Err("ran out of memory: no time".into())),
        (None, None) => return Ok(Err("no time or rate".into())),
    };
    let printed = text(f, "flop_convention");
    let Some((convention, doubt)) = Convention::of(&printed) else {
        return Ok(Err(format!("only a rate, and its FLOP convention is not known: {}", shortened(&printed))));
    };
    marks.push(format!(
        "compared by {}{}",
        convention.name(),
        if doubt { ", which the source leaves open" } else { "" }
    ));
    Ok(Ok(unit(convention)))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
}

/// The layout, or why its numbers contradict each other.
fn layout(
    f: &Fields,
    s: &Sizes,
    words: &Words,
    recompute: Recompute,
    marks: &mut Vec<String>,
) -> Result<Result<Layout, String>, RunsError> {
    let world = [s.cp, s.pp, s.dp].iter().fold(s.tp, |n, d| n.saturating_mul(*d));
    if world != s.gpus {
        return Ok(Err("tp·cp·pp·dp is not the number of devices".into()));
    }
    let unit = s.dp.saturating_mul(s.micro_batch);
    if !s.global_batch.is_multiple_of(unit) {
        return Ok(Err("the global batch is not a multiple of dp·micro-batch".into()));
    }
    let zero = words.zero.unwrap_or_else(|| {
        marks.push("zero not stated: 0".into());
        0
    });
    let whole = if zero == 0 { 1 } else { s.dp.saturating_mul(s.cp) };
    let schedule = match schedule(f, s) {
        Ok(schedule) => schedule,
        Err(why) => return Ok(Err(why)),
    };
    let layout = Layout {
        tp: s.tp,
        cp: s.cp,
        pp: s.pp,
        ep: s.ep,
        etp: f.count("norm.etp")?.unwrap_or_else(|| expert_split(f, s)),
        dp: s.dp,
        vpp: s.vpp,
        zero,
        keep: f.flag("norm.reshard_after_forward")? == Some(false),
        shard_group: f.count("norm.shard_group")?.filter(|n| *n > 0).unwrap_or(whole),
        sp: f.flag("norm.sp")?.unwrap_or(false),
        // Llama 3 gathers keys and values (Dubey et al. 2024, arXiv 2407.21783, section 3.3.2).
        cp_method: if text(f, "norm.stack") == "meta-llama3" { CpMethod::AllGather } else { CpMethod::Ring },
        micro_batch: s.micro_batch,
        microbatches: s.global_batch / unit,
        recompute,
        schedule,
        order: None,
    };
    match layout.expert_data_ranks() {
        Some(_) => Ok(Ok(layout)),
        None => Ok(Err("etp·ep does not divide tp·cp·dp".into())),
    }
}

/// Ranks that split one expert where nothing says it: tp when that divides, else 1; 1 without experts.
fn expert_split(f: &Fields, s: &Sizes) -> u64 {
    let ranks = s.tp.saturating_mul(s.cp).saturating_mul(s.dp);
    let divides = ranks.is_multiple_of(s.tp.saturating_mul(s.ep));
    if f.get("block.moe").is_some() && divides {
        s.tp
    } else {
        1
    }
}

/// The order in a pipeline: by the words that sources use, else what vpp says.
fn schedule(f: &Fields, s: &Sizes) -> Result<Schedule, String> {
    let implied = if s.vpp > 1 { Schedule::Interleaved } else { Schedule::OneFOneB };
    let printed = text(f, "parallel.extra.schedule");
    match printed.to_lowercase().replace(' ', "").as_str() {
        "" => Ok(implied),
        "1f1b" => Ok(Schedule::OneFOneB),
        "interleaved1f1b" | "interleaved" => Ok(Schedule::Interleaved),
        "gpipe" => Ok(Schedule::GPipe),
        "zbv" | "zb-v" => Ok(Schedule::ZbV),
        "zb-h1" | "zbh1" => Ok(Schedule::ZbH1),
        "dualpipev" | "dualpipe-v" => Ok(Schedule::DualPipeV),
        _ => Err(format!("schedule {printed} is not known")),
    }
}
