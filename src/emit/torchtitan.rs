//! torchtitan: flags over a configuration function.
//!
//! Since 0.3 a run is `--module M --config F`, a Python function that returns a configuration, and flags that
//! change it; there is no TOML. The function is written here as a small module: it takes the model that ships
//! with torchtitan and says what flags cannot (the modules of each part of a pipeline, quantised products).
//! Names and rules are those of `config/configs.py`, `trainer.py`, `distributed/parallel_dims.py`,
//! `distributed/pipeline_parallel.py` and `distributed/activation_checkpoint.py`.

use super::args::Args;
use super::facts::{chunks, copies, gcd, lies_as, sum_of};
use super::shape::{runs, Shape};
use super::slurm::{servers, Script, Start};
use super::{Cannot, Emitted, Framework, Launch};
use crate::predict::{CpMethod, Module, Order, Precision, Recompute, Schedule};

/// A model that ships with torchtitan.
struct Known {
    /// Its package below `torchtitan.models`.
    package: &'static str,
    /// Its name in that package's registry.
    flavor: &'static str,
    /// The configuration function that has its tokens: its own where there is one that quantises nothing.
    base: &'static str,
    /// Width, layers, query heads, token ids, experts, inner width of a layer's (or an expert's) network.
    sizes: [usize; 6],
}

const fn known(package: &'static str, flavor: &'static str, base: &'static str, sizes: [usize; 6]) -> Known {
    Known { package, flavor, base, sizes }
}

/// `models/*/__init__.py` and `config_registry.py` of 0.3.0.
const KNOWN: [Known; 18] = [
    known("llama3", "1B", "llama3_8b", [2048, 16, 32, 128_256, 0, 8192]),
    known("llama3", "3B", "llama3_8b", [3072, 28, 24, 128_256, 0, 8192]),
    known("llama3", "8B", "llama3_8b", [4096, 32, 32, 128_256, 0, 14_336]),
    known("llama3", "70B", "llama3_70b", [8192, 80, 64, 128_256, 0, 28_672]),
    known("llama3", "405B", "llama3_70b", [16_384, 126, 128, 128_256, 0, 53_248]),
    known("qwen3", "0.6B", "qwen3_0_6b", [1024, 28, 16, 151_936, 0, 3072]),
    known("qwen3", "1.7B", "qwen3_1_7b", [2048, 28, 16, 151_936, 0, 6144]),
    known("qwen3", "4B", "qwen3_14b", [2560, 36, 32, 151_936, 0, 9728]),
    known("qwen3", "8B", "qwen3_14b", [4096, 36, 32, 151_936, 0, 12_288]),
    known("qwen3", "14B", "qwen3_14b", [5120, 40, 40, 151_936, 0, 17_408]),
    known("qwen3", "32B", "qwen3_32b", [5120, 64, 64, 151_936, 0, 25_600]),
    known("qwen3", "30B-A3B", "qwen3_30b_a3b", [2048, 48, 32, 151_936, 128, 768]),
    known("qwen3", "235B-A22B", "qwen3_30b_a3b", [4096, 94, 64, 151_936, 128, 1536]),
    known("deepseek_v3", "16B", "deepseek_v3_16b", [2048, 27, 16, 102_400, 64, 1408]),
    known("deepseek_v3", "236B", "deepseek_v3_16b", [5120, 60, 128, 102_400, 160, 1536]),
    known("deepseek_v3", "671B", "deepseek_v3_671b", [7168, 61, 128, 129_280, 256, 2048]),
    known("gpt_oss", "20b", "gpt_oss_20b", [2880, 24, 64, 201_088, 32, 2880]),
    known("gpt_oss", "120b", "gpt_oss_120b", [2880, 36, 64, 201_088, 128, 2880]),
];

/// Writes the launch files.
pub(super) fn emit(launch: &Launch) -> Emitted {
    let (mut args, mut cannot) = (Args::default(), Cannot::default());
    args.set("--module", "autoshard_plan");
    args.set("--config", "plan");
    let module = module(launch, &mut cannot);
    training(launch, &mut args, &mut cannot);
    ranks(launch, &mut args, &mut cannot);
    sharing(launch, &mut args, &mut cannot);
    pipeline(launch, &mut args, &mut cannot);
    // A choice between configurations is a word behind all flags.
    args.on(recompute(&launch.layout.recompute, &mut cannot));
    let servers = servers(launch, &mut cannot);
    let script = Script {
        framework: Framework::TorchTitan,
        launch,
        servers,
        cannot: &cannot.0,
        body: args.bash("plan_args"),
        start: Start::Torchrun,
        command: "-m torchtitan.train --hf_assets_path \"$MODEL_FOLDER\" \"${plan_args[@]}\"",
    };
    Emitted { files: vec![script.file(), ("autoshard_plan.py".to_string(), module)], cannot: cannot.0 }
}

/// The model of that name that ships with torchtitan.
fn shipped(launch: &Launch) -> Option<&'static Known> {
    let shape = Shape::of(launch.decoder)?;
    let d = launch.decoder;
    let (experts, width) = match (shape.experts, shape.dense) {
        (Some(x), _) => (x.experts, x.each.width),
        (None, ffn) => (0, ffn?.width),
    };
    let sizes = [d.hidden, d.depth(), shape.attention().heads, d.vocab, experts, width];
    KNOWN.iter().find(|k| k.sizes == sizes)
}

/// The Python module with the function that `--config` names.
fn module(launch: &Launch, cannot: &mut Cannot) -> String {
    let title = format!("\"\"\"What flags of {} cannot say of a plan.\"\"\"\n\n", Framework::TorchTitan.tool());
    let Some(k) = shipped(launch) else {
        cannot.say(
            "model",
            "torchtitan ships no model of these sizes; the function in autoshard_plan.py stops until it returns one",
        );
        return title
            + "\ndef plan():\n    raise NotImplementedError(\"return the configuration of your model: torchtitan ships none of these sizes\")\n";
    };
    let mtp = further_tokens(launch, k, cannot);
    let (imports, converters) = converters(launch, cannot);
    let mut registry = format!("\"{}\"", k.flavor);
    if launch.layout.cp > 1 {
        // The only attention that is split over positions.
        registry += ", attn_backend=\"flex\"";
    }
    if mtp > 0 {
        registry += &format!(", num_mtp_layers={mtp}");
    }
    if !converters.is_empty() {
        registry += &format!(", converters=[{converters}]");
    }
    let parts = parts(launch, cannot);
    let (imports, loss) = match mtp {
        0 => (imports, String::new()),
        _ => (
            imports + "from torchtitan.models.deepseek_v3.mtp import MTPLoss\n",
            format!("    config.loss = MTPLoss.Config(global_vocab_size={})\n", launch.decoder.vocab),
        ),
    };
    let (helper, assign) = match &parts {
        Some(layers) => {
            (HELPER, format!("    config.parallelism.module_fqns_per_model_part = parts({})\n", python_list(layers)))
        }
        None => ("", String::new()),
    };
    let package = k.package;
    format!(
        "{title}{imports}from torchtitan.models.{package} import model_registry\n\
         from torchtitan.models.{package}.config_registry import {base}\n{helper}\n\n\
         def plan():\n    config = {base}()\n    config.model_spec = model_registry({registry})\n{loss}{assign}    return config\n",
        base = k.base
    )
}

/// Layers that predict further tokens: one family has them, and no pipeline does.
fn further_tokens(launch: &Launch, k: &Known, cannot: &mut Cannot) -> usize {
    let mtp = launch.decoder.mtp.len();
    match (mtp, k.package, launch.layout.pp) {
        (0, _, _) => 0,
        (_, "deepseek_v3", 1) => mtp,
        _ => {
            cannot.say(
                "model",
                "torchtitan predicts further tokens with deepseek_v3 alone, and not in a pipeline; this run does not",
            );
            0
        }
    }
}

const HELPER: &str = "

def parts(layers):
    \"\"\"Modules of each part of a pipeline, from its number of layers.\"\"\"
    first, out = 0, []
    for count in layers:
        out.append([f\"layers.{i}\" for i in range(first, first + count)])
        first += count
    out[0].insert(0, \"tok_embeddings\")
    out[-1] += [\"norm\", \"lm_head\"]
    return out
";

/// Layers of the parts of a pipeline; `None` without one.
fn parts(launch: &Launch, cannot: &mut Cannot) -> Option<Vec<u64>> {
    let l = launch.layout;
    if l.pp == 1 {
        return None;
    }
    // Without the planned schedule a stage's layers are neighbours.
    let parts = match schedule(l.schedule) {
        Some(_) => chunks(launch),
        None => chunks(launch).map(|_| launch.layers_per_stage.to_vec()),
    };
    if parts.is_none() {
        cannot.say(
            format!("layers_per_stage={}", sum_of(launch.layers_per_stage)),
            "these are not the model's layers by stage; torchtitan spreads layers evenly",
        );
    }
    parts
}

/// `[0] + [1] * 126 + [0]`.
fn python_list(numbers: &[u64]) -> String {
    let parts = runs(numbers).into_iter().map(|(v, n)| if n == 1 { format!("[{v}]") } else { format!("[{v}] * {n}") });
    parts.collect::<Vec<_>>().join(" + ")
}

/// What quantises products, as imports and as a list.
fn converters(launch: &Launch, cannot: &mut Cannot) -> (String, String) {
    let (linear, grouped) = match launch.precision {
        Precision::F32 | Precision::F16 | Precision::Bf16 => return (String::new(), String::new()),
        Precision::Fp8 => ("Float8LinearConverter", Some("Float8GroupedExpertsConverter")),
        Precision::Mxfp8 => ("MXFP8LinearConverter", Some("MXFP8GroupedExpertsConverter")),
        Precision::Nvfp4 => ("NVFP4LinearConverter", None),
    };
    let experts = Shape::of(launch.decoder).is_some_and(|s| s.experts.is_some());
    if experts && grouped.is_none() {
        cannot.say(
            format!("precision={}", launch.precision),
            "torchtitan's experts have no such products; they run bf16",
        );
    }
    let names: Vec<&str> = std::iter::once(linear).chain(grouped.filter(|_| experts)).collect();
    let list: Vec<String> = names.iter().map(|n| format!("{n}.Config()")).collect();
    let imports = format!("from torchtitan.components.quantization import {}\n", names.join(", "));
    (imports, list.join(", "))
}

fn training(launch: &Launch, a: &mut Args, cannot: &mut Cannot) {
    let l = launch.layout;
    a.set("--training.seq_len", launch.seq_len);
    a.set("--training.global_batch_size", launch.global_batch);
    match l.pp {
        1 => a.set("--training.local_batch_size", l.micro_batch),
        // A pipeline cuts a local batch itself.
        _ => {
            a.set("--training.local_batch_size", l.micro_batch.saturating_mul(l.microbatches));
            a.set("--parallelism.pipeline_parallel_microbatch_size", l.micro_batch);
        }
    }
    a.set("--training.dtype", "float32");
    match launch.precision {
        Precision::F32 => a.set("--training.mixed_precision_param", "float32"),
        Precision::F16 => {
            a.set("--training.mixed_precision_param", "bfloat16");
            cannot.say("precision=f16", "torchtitan has no fp16 with loss scaling; it runs bf16");
        }
        Precision::Bf16 | Precision::Fp8 | Precision::Mxfp8 | Precision::Nvfp4 => {
            a.set("--training.mixed_precision_param", "bfloat16")
        }
    }
    // Neither pipelines nor the usual exchange of experts' tokens can be captured.
    a.on_if(l.pp > 1 || l.ep > 1, "--training.disable_cuda_graphs");
}

fn ranks(launch: &Launch, a: &mut Args, cannot: &mut Cannot) {
    let l = launch.layout;
    a.set("--parallelism.tensor_parallel_degree", l.tp);
    a.on(match l.sp {
        true => "--parallelism.enable_sequence_parallel",
        false => "--parallelism.no_enable_sequence_parallel",
    });
    a.set("--parallelism.context_parallel_degree", l.cp);
    if l.cp > 1 && l.cp_method != CpMethod::AllGather {
        cannot.say(
            format!("cp_method={}", l.cp_method),
            "torchtitan's language models gather keys and values over cp ranks (cp_method=allgather)",
        );
    }
    a.set("--parallelism.pipeline_parallel_degree", l.pp);
    // Its experts lie over the ranks of one copy: dp_shard·cp·tp = ep·edp.
    let (_, shard) = data(launch);
    let ranks = shard.saturating_mul(l.cp).saturating_mul(l.tp);
    let ep = if ranks.is_multiple_of(l.ep) { l.ep } else { gcd(l.ep, ranks) };
    a.set("--parallelism.expert_parallel_degree", ep);
    if ep != l.ep {
        cannot.say(
            format!("ep={}", l.ep),
            format!("torchtitan splits experts over the {ranks} ranks that share parameters; it splits them {ep} ways"),
        );
    }
    if l.etp > 1 {
        cannot.say(
            format!("etp={}", l.etp),
            "torchtitan does not split an expert's matrices; each rank has whole experts",
        );
    }
    if let Some(order) = l.order.filter(|o| !lies_as(*o, Order::STAGES_OUTSIDE, l)) {
        cannot.say(format!("layout={order}"), format!("torchtitan lays ranks out as {}", Order::STAGES_OUTSIDE));
    }
}

/// Replicas and data ranks that share: over cp ranks parameters are always shared.
fn data(launch: &Launch) -> (u64, u64) {
    let l = launch.layout;
    let cp = l.cp.max(1);
    match l.zero {
        0 => (l.dp, 1),
        _ if l.shard_group.is_multiple_of(cp) && l.dp.is_multiple_of((l.shard_group / cp).max(1)) => {
            (copies(l), l.shard_group / cp)
        }
        _ => (1, l.dp),
    }
}

fn sharing(launch: &Launch, a: &mut Args, cannot: &mut Cannot) {
    let l = launch.layout;
    let (replicas, shard) = data(launch);
    a.set("--parallelism.data_parallel_replicate_degree", replicas);
    a.set("--parallelism.data_parallel_shard_degree", shard);
    let again = l.zero == 3 && !l.keep;
    a.set("--parallelism.fsdp_reshard_after_forward", if again { "always" } else { "never" });
    match l.zero {
        0 if l.cp > 1 => cannot.say("zero=0", "torchtitan shares parameters over cp ranks whatever dp does"),
        0 | 3 => {}
        zero => cannot.say(
            format!("zero={zero}"),
            "torchtitan shares optimizer state, gradients and parameters alike (FSDP2); parameters are gathered once a \
             step and gradients reduced for every local batch",
        ),
    }
    if l.zero > 0 && l.shard_group != shard.saturating_mul(l.cp) {
        cannot.say(
            format!("shard_group={}", l.shard_group),
            "torchtitan shares over all cp ranks and some of the data ranks; it shares over all of both",
        );
    }
}

/// The name of a schedule in `torch.distributed.pipelining`.
fn schedule(schedule: Schedule) -> Option<&'static str> {
    match schedule {
        Schedule::GPipe => Some("GPipe"),
        Schedule::OneFOneB => Some("1F1B"),
        Schedule::Interleaved => Some("Interleaved1F1B"),
        Schedule::ZbV => Some("ZBVZeroBubble"),
        Schedule::DualPipeV => Some("DualPipeV"),
        Schedule::Naive | Schedule::ZbH1 => None,
    }
}

fn pipeline(launch: &Launch, a: &mut Args, cannot: &mut Cannot) {
    let l = launch.layout;
    if l.pp == 1 {
        return;
    }
    let name = schedule(l.schedule).unwrap_or_else(|| {
        cannot.say(format!("schedule={}", l.schedule), "torchtitan has no schedule of this name; it runs 1F1B");
        "1F1B"
    });
    a.set("--parallelism.pipeline_parallel_schedule", name);
}

fn recompute(recompute: &Recompute, cannot: &mut Cannot) -> &'static str {
    match recompute {
        Recompute::None => "activation-checkpoint:none",
        Recompute::Full => "activation-checkpoint:full",
        Recompute::Selective(modules) if modules[..] == [Module::OpSac] => "activation-checkpoint:selective",
        Recompute::Selective(_) => {
            cannot.say(
                format!("recompute={recompute}"),
                "torchtitan chooses by operation, not by module; it saves every other product (selective:op_sac)",
            );
            "activation-checkpoint:selective"
        }
        Recompute::Layers(_) | Recompute::Stages(_) => {
            cannot.say(
                format!("recompute={recompute}"),
                "torchtitan treats all layers alike; it computes all of them again",
            );
            "activation-checkpoint:full"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_those_that_ship() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/launch/torchtitan.json");
        let table: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        for k in &KNOWN {
            let package = &table["models"][k.package];
            assert_eq!(package["flavors"][k.flavor], serde_json::json!(k.sizes), "{} {}", k.package, k.flavor);
            assert!(package["functions"].as_array().unwrap().contains(&k.base.into()), "{}", k.base);
        }
    }

    #[test]
    fn layers_of_parts_are_a_python_list() {
        assert_eq!(python_list(&[0, 1, 1, 1, 0]), "[0] + [1] * 3 + [0]");
    }
}
