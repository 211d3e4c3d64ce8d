//! MaxText: a YAML file over its `base.yml`.
//!
//! Keys and rules are those of `configs/types.py` and `configs/base.yml` of 0.2.5: a mesh of named axes, each
//! with a part within a slice (`ici_`, a fast domain of the cluster) and a part between slices (`dcn_`).

use super::args::on_one_line;
use super::facts::{chunks, gcd, lies_as, same, sum_of};
use super::shape::Shape;
use super::slurm::{servers, Script, Start};
use super::{Cannot, Emitted, Framework, Launch};
use crate::cost::cluster::Medium;
use crate::decoder::{Activation, Heads, NormKind, Position, QkNorm, Scores};
use crate::predict::{CpMethod, Module, Order, Precision, Recompute, Role, Schedule};
use std::fmt::Display;

/// Writes the launch files.
pub(super) fn emit(launch: &Launch) -> Emitted {
    let mut y = Yaml::default();
    let mut cannot = Cannot::default();
    y.set("base_config", "base.yml");
    y.set("run_name", "autoshard_plan");
    let tpu = launch.cluster.device.vendor.to_lowercase().contains("google");
    y.set("hardware", if tpu { "tpu" } else { "gpu_multiprocess" });
    model(launch, &mut y, &mut cannot);
    precision(launch.precision, &mut y, &mut cannot);
    mesh(launch, &mut y, &mut cannot);
    context(launch, tpu, &mut y, &mut cannot);
    batch(launch, &mut y, &mut cannot);
    pipeline(launch, &mut y, &mut cannot);
    recompute(&launch.layout.recompute, &mut y, &mut cannot);
    if let Some(order) = launch.layout.order.filter(|o| !lies_as(*o, Order::STAGES_OUTSIDE, launch.layout)) {
        cannot.say(format!("layout={order}"), format!("MaxText's mesh lays ranks out as {}", Order::STAGES_OUTSIDE));
    }
    y.0.push_str("# Not of the plan: data and length of the training.\n");
    y.set("dataset_type", "synthetic");
    y.set("steps", 100);
    let servers = servers(launch, &mut cannot);
    let script = Script {
        framework: Framework::MaxText,
        launch,
        servers,
        cannot: &cannot.0,
        body: String::new(),
        start: if tpu { Start::ProcessPerServer } else { Start::ProcessEach },
        command: "python3 -m maxtext.trainers.pre_train.train maxtext.yml",
    };
    let title = format!("# A plan of autoshard in the words of {}.\n", Framework::MaxText.tool());
    Emitted { files: vec![script.file(), ("maxtext.yml".to_string(), title + &y.0)], cannot: cannot.0 }
}

/// Keys of a file; words without quotes are words of MaxText's.
#[derive(Default)]
struct Yaml(String);

impl Yaml {
    fn set(&mut self, key: &str, value: impl Display) {
        self.0 += &format!("{key}: {}\n", on_one_line(&value.to_string()));
    }
}

fn model(launch: &Launch, y: &mut Yaml, cannot: &mut Cannot) {
    let d = launch.decoder;
    y.set("max_target_length", launch.seq_len);
    y.set("base_num_decoder_layers", d.depth());
    y.set("base_emb_dim", d.hidden);
    y.set("vocab_size", d.vocab);
    y.set("logits_via_embedding", d.tied);
    if !d.mtp.is_empty() {
        y.set("mtp_num_layers", d.mtp.len());
    }
    let Some(shape) = Shape::of(d) else {
        return cannot.say("model", "it has no layers, and there is nothing to train");
    };
    let at = shape.attention();
    y.set("decoder_block", block(launch, &shape, cannot));
    y.set("base_num_query_heads", at.heads);
    y.set("base_num_kv_heads", at.kv_heads);
    match at.kind {
        Heads::Plain { width } => y.set("head_dim", width),
        Heads::Latent { q_latent, kv_latent, nope, rope, value } => {
            y.set("attention_type", "mla");
            y.set("q_lora_rank", q_latent.unwrap_or(0));
            y.set("kv_lora_rank", kv_latent);
            y.set("qk_nope_head_dim", nope);
            y.set("qk_rope_head_dim", rope);
            y.set("v_head_dim", value);
        }
    }
    if let Some(window) = shape.windows.iter().flatten().next() {
        y.set("sliding_window_size", window);
    }
    match (d.position, at.rotary) {
        (Position::Rotary, Some(rotary)) => y.set("rope_max_timescale", rotary.theta.round() as i64),
        (Position::Learned { rows }, _) => y.set("trainable_position_size", rows.unwrap_or(launch.seq_len as usize)),
        (Position::Rotary | Position::Alibi, _) => {}
    }
    y.set("normalization_layer_epsilon", shape.layer.norm.eps);
    y.set("enable_dropout", false);
    networks(&shape, y, cannot);
}

fn networks(shape: &Shape, y: &mut Yaml, cannot: &mut Cannot) {
    if let Some(ffn) = shape.network() {
        let act = match ffn.activation {
            Activation::Silu => "silu",
            Activation::Gelu => "gelu",
            Activation::Relu => "relu",
            Activation::Relu2 => {
                cannot.say("model", "MaxText takes the functions of jax.nn, which has no squared ReLU; it runs ReLU");
                "relu"
            }
        };
        y.set("mlp_activations", if ffn.gated { format!("[\"{act}\", \"linear\"]") } else { format!("[\"{act}\"]") });
        y.set("base_mlp_dim", ffn.width);
    }
    let Some(x) = shape.experts else { return };
    y.set("num_experts", x.experts);
    y.set("num_experts_per_tok", x.top_k);
    y.set("base_moe_mlp_dim", x.each.width);
    let dense = shape.with_experts.iter().take_while(|with| !**with).count();
    if dense > 0 {
        y.set("first_num_dense_layers", dense);
    }
    if let Some(shared) = x.shared {
        y.set("shared_experts", shared.width.div_ceil(x.each.width.max(1)));
    }
    if x.router.scores == Scores::Sigmoid {
        y.set("routed_score_func", "sigmoid");
        y.set("routed_bias", x.router.correction);
    }
    if x.router.scale != 1.0 {
        y.set("routed_scaling_factor", x.router.scale);
    }
    if x.router.scores == Scores::Softmax {
        y.set("norm_topk_prob", x.router.normalise);
    }
}

/// MaxText's kind of layer.
fn block(launch: &Launch, shape: &Shape, cannot: &mut Cannot) -> &'static str {
    let at = shape.attention();
    let experts = shape.experts.is_some();
    let rms = shape.layer.norm.kind == NormKind::Rms;
    match (at.kind, experts, at.qk_norm) {
        _ if shape.differ || shape.layer.form != crate::decoder::Form::Pre => {}
        (Heads::Latent { .. }, true, QkNorm::No) if rms => return "deepseek",
        (Heads::Plain { .. }, true, QkNorm::No) if rms && at.sinks => return "gpt_oss",
        (Heads::Plain { .. }, true, QkNorm::No) if rms && !at.qkv_bias => return "mixtral",
        (Heads::Plain { .. }, true, QkNorm::Head) if rms => return "qwen3_moe",
        (Heads::Plain { .. }, false, QkNorm::Head) if rms => return "qwen3",
        (Heads::Plain { .. }, false, QkNorm::No) if rms && at.qkv_bias => return "qwen2",
        (Heads::Plain { .. }, false, QkNorm::No) if rms => return "llama2",
        (Heads::Plain { .. }, false, QkNorm::No) if matches!(launch.decoder.position, Position::Learned { .. }) => {
            return "gpt3"
        }
        _ => {}
    }
    cannot.say("model", "MaxText has no layer of this form among those known here; it is written as llama2's");
    "llama2"
}

fn precision(precision: Precision, y: &mut Yaml, cannot: &mut Cannot) {
    let dtype = if precision == Precision::F32 { "float32" } else { "bfloat16" };
    y.set("dtype", dtype);
    y.set("weight_dtype", "float32");
    match precision {
        Precision::F32 | Precision::Bf16 => {}
        Precision::F16 => cannot.say("precision=f16", "MaxText scales no losses; it runs bf16"),
        Precision::Fp8 => y.set("quantization", "fp8"),
        Precision::Mxfp8 => y.set("quantization", "te_mxfp8"),
        Precision::Nvfp4 => y.set("quantization", "te_nvfp4"),
    }
}

/// Degrees of MaxText's axes.
struct Degrees {
    tensor: u64,
    context: u64,
    expert: u64,
    fsdp: u64,
    data: u64,
    stage: u64,
}

fn degrees(launch: &Launch, y: &mut Yaml, cannot: &mut Cannot) -> Degrees {
    let l = launch.layout;
    // Its expert axis carries the batch outside of experts.
    let expert = gcd(l.ep, l.dp);
    if expert != l.ep {
        cannot.say(
            format!("ep={}", l.ep),
            format!("MaxText splits experts over data ranks; it splits them {expert} ways"),
        );
    }
    if crate::predict::facts::of(launch.decoder).experts > 0 && l.etp != l.tp {
        cannot
            .say(format!("etp={}", l.etp), format!("MaxText splits an expert's matrices as all others, {} ways", l.tp));
    }
    let rest = l.dp / expert.max(1);
    let always = expert.saturating_mul(l.cp).max(1);
    let fsdp = match l.zero {
        3 if l.shard_group.is_multiple_of(always) && rest.is_multiple_of((l.shard_group / always).max(1)) => {
            (l.shard_group / always).max(1)
        }
        3 => {
            cannot.say(
                format!("shard_group={}", l.shard_group),
                "MaxText shares over cp and expert ranks and then over data ranks; it shares over all",
            );
            rest
        }
        _ => 1,
    };
    if (1..3).contains(&l.zero) {
        y.set("shard_optimizer_over_data", true);
        if l.shard_group != l.dp.saturating_mul(l.cp) {
            cannot.say(format!("shard_group={}", l.shard_group), "MaxText shares optimizer state over all data ranks");
        }
    }
    if l.zero == 2 {
        cannot.say("zero=2", "MaxText shares optimizer state alone or parameters too; it shares optimizer state");
    }
    if l.zero < 2 && always > 1 {
        cannot.say(
            format!("zero={}", l.zero),
            "MaxText shares parameters over cp and expert ranks whatever data ranks do",
        );
    }
    Degrees { tensor: l.tp, context: l.cp, expert, fsdp, data: rest / fsdp.max(1), stage: l.pp }
}

/// Devices of a fast domain: all tiers within the innermost network.
fn slice(launch: &Launch) -> u64 {
    let inside = launch.cluster.tiers.iter().take_while(|t| t.medium != Medium::Network).count();
    let sizes = launch.cluster.unit_sizes();
    let whole = match inside {
        0 => Some(launch.cluster.devices_per_node),
        n => sizes.get(n - 1).copied().flatten(),
    };
    whole.unwrap_or(u64::MAX).min(launch.layout.devices()).max(1)
}

/// Axes fill a slice from the innermost; what is left of them lies between slices.
fn mesh(launch: &Launch, y: &mut Yaml, cannot: &mut Cannot) {
    let l = launch.layout;
    let d = degrees(launch, y, cannot);
    // Sequence parallelism is another axis over the same matrices.
    let tensor = if l.sp && l.tp > 1 { "tensor_sequence" } else { "tensor" };
    let of = |role: Role| match role {
        Role::Tp => vec![(tensor, d.tensor)],
        Role::Cp => vec![("context", d.context)],
        Role::Dp => vec![("expert", d.expert), ("fsdp", d.fsdp), ("data", d.data)],
        Role::Pp => vec![("pipeline", d.stage)],
    };
    let slice = slice(launch);
    let (mut left, mut lines) = (slice, Vec::new());
    for (axis, degree) in l.order.unwrap_or(Order::STAGES_OUTSIDE).0.into_iter().flat_map(of) {
        let inner = gcd(degree, left).max(1);
        left /= inner;
        lines.push((axis, inner, degree / inner));
    }
    if left > 1 {
        cannot.say(
            format!("devices={}", l.devices()),
            format!("no product of axes fills a slice of {slice} devices; MaxText wants one that does"),
        );
    }
    y.set("num_slices", l.devices() / slice);
    for (axis, inner, _) in &lines {
        y.set(&format!("ici_{axis}_parallelism"), inner);
    }
    for (axis, _, outer) in &lines {
        y.set(&format!("dcn_{axis}_parallelism"), outer);
    }
    if l.keep && l.zero == 3 {
        match l.pp {
            1 => cannot.say("keep=1", "the compiler gathers parameters again where they are computed with again"),
            _ => y.set("pipeline_fsdp_ag_once", true),
        }
    }
}

fn context(launch: &Launch, tpu: bool, y: &mut Yaml, cannot: &mut Cannot) {
    let l = launch.layout;
    if l.cp == 1 {
        return;
    }
    let strategy = match (l.cp_method, tpu) {
        (CpMethod::Ring, _) => "ring",
        (CpMethod::AllGather, _) => "all_gather",
        (CpMethod::Ulysses, true) => "ulysses",
        (CpMethod::Ulysses, false) => {
            cannot.say("cp_method=ulysses", "MaxText exchanges heads on TPUs alone; it gathers keys and values");
            "all_gather"
        }
    };
    y.set("context_parallel_strategy", strategy);
    if tpu && strategy == "ring" {
        y.set("attention", "flash");
        y.set("use_tokamax_splash", true);
    }
    if !tpu {
        y.set("attention", "cudnn_flash_te");
    }
}

fn batch(launch: &Launch, y: &mut Yaml, cannot: &mut Cannot) {
    let l = launch.layout;
    let devices = l.devices().max(1);
    // A pipeline cuts the batch itself; without one, micro-batches are steps of accumulation.
    let (sequences, steps) = match l.pp {
        1 => (l.dp.saturating_mul(l.micro_batch), l.microbatches),
        _ => (launch.global_batch, 1),
    };
    y.set("per_device_batch_size", per_device(sequences, devices));
    y.set("gradient_accumulation_steps", steps);
    if l.pp == 1 {
        return;
    }
    if l.microbatches.is_multiple_of(l.pp) {
        return y.set("num_pipeline_microbatches", l.microbatches);
    }
    y.set("num_pipeline_microbatches", l.pp);
    cannot.say(
        format!("microbatches={}", l.microbatches),
        format!("MaxText wants a multiple of its stages; it cuts the batch into {}", l.pp),
    );
}

/// Sequences of a device, such that MaxText's product with the devices, cut to a whole number, is theirs.
fn per_device(sequences: u64, devices: u64) -> f64 {
    let mut each = sequences as f64 / devices as f64;
    while ((each * devices as f64) as u64) < sequences {
        each = each.next_up();
    }
    each
}

fn pipeline(launch: &Launch, y: &mut Yaml, cannot: &mut Cannot) {
    let l = launch.layout;
    if l.pp == 1 {
        return;
    }
    let repeats = if l.schedule == Schedule::Interleaved { l.vpp } else { 1 };
    if l.schedule != Schedule::GPipe {
        cannot.say(
            format!("schedule={}", l.schedule),
            "MaxText runs all forwards of a step, then all backwards, in rounds over the stages where they have several chunks",
        );
    }
    // Dense layers before those with experts stay outside of the pipeline.
    let shape = Shape::of(launch.decoder);
    let latent = shape.as_ref().is_some_and(|s| matches!(s.attention().kind, Heads::Latent { .. }));
    let dense = match (&shape, latent) {
        (Some(s), true) => s.with_experts.iter().filter(|with| !**with).count() as u64,
        _ => 0,
    };
    let inside = (launch.decoder.depth() as u64).saturating_sub(dense);
    let parts = l.pp.saturating_mul(repeats).max(1);
    let each = inside / parts;
    let even = match repeats {
        1 => same(launch.layers_per_stage),
        _ => chunks(launch).and_then(|c| same(&c)),
    };
    if dense > 0 || even != Some(each) || each.saturating_mul(parts) != inside {
        cannot.say(
            format!("layers_per_stage={}", sum_of(launch.layers_per_stage)),
            format!("MaxText's stages are alike: {parts} parts of {each} layers; the other layers run on all stages"),
        );
    }
    y.set("num_layers_per_pipeline_stage", each);
    y.set("num_pipeline_repeats", repeats);
    y.set("pipeline_parallel_layers", each.saturating_mul(parts));
}

fn recompute(recompute: &Recompute, y: &mut Yaml, cannot: &mut Cannot) {
    let policy = match recompute {
        Recompute::None => "none",
        Recompute::Full => "full",
        Recompute::Selective(modules) if modules[..] == [Module::RematMinimal] => "minimal",
        Recompute::Selective(modules) if modules[..] == [Module::RematQkvProjOffloaded] => "qkv_proj_offloaded",
        Recompute::Selective(_) => {
            cannot.say(
                format!("recompute={recompute}"),
                "MaxText's policies name products; it saves them all (selective:remat_minimal)",
            );
            "minimal"
        }
        Recompute::Layers(_) | Recompute::Stages(_) => {
            cannot.say(
                format!("recompute={recompute}"),
                "MaxText treats all layers alike; it computes all of them again",
            );
            "full"
        }
    };
    y.set("remat_policy", policy);
}
