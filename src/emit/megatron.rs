//! Megatron-Core's arguments.
//!
//! Names and rules are those of `megatron/training/arguments.py` and `megatron/core/transformer/*` of 0.19.2:
//! `validate_args`, `TransformerConfig`, `PipelineParallelLayerLayout`, and the two orders of ranks that
//! `initialize_model_parallel` is called with.

use super::args::Args;
use super::facts::{again, chunks, copies, lies_as, same, sum_of, Again};
use super::shape::runs;
use super::slurm::{servers, Script, Start};
use super::{megatron_model, Cannot, Emitted, Framework, Launch};
use crate::decoder::Heads;
use crate::predict::{CpMethod, Module, Order, Precision, Recompute, Schedule};

/// Writes the launch files.
pub(super) fn emit(launch: &Launch) -> Emitted {
    let (mut model, mut args, mut cannot) = (Args::default(), Args::default(), Cannot::default());
    megatron_model::flags(launch, &mut model, &mut cannot);
    ranks(launch, &mut args, &mut cannot);
    pipeline(launch, &mut args, &mut cannot);
    sharing(launch, &mut args, &mut cannot);
    recompute(launch, &mut args, &mut cannot);
    precision(launch.precision, &mut args);
    let servers = servers(launch, &mut cannot);
    let fsdp = launch.layout.zero >= 2;
    let body = format!("{}\n{}{}{}", environment(fsdp), model.bash("model_args"), args.bash("plan_args"), yours());
    let script = Script {
        framework: Framework::Megatron,
        launch,
        servers,
        cannot: &cannot.0,
        body,
        start: Start::Torchrun,
        command: "\"${MEGATRON_LM:?set it to a checkout of Megatron-LM}/pretrain_gpt.py\" \"${model_args[@]}\" \
                  \"${plan_args[@]}\" \"${data_args[@]}\"",
    };
    Emitted { files: vec![script.file()], cannot: cannot.0 }
}

/// One hardware queue keeps collectives and kernels in the order in which they were issued, as tensor and
/// context parallelism want before Blackwell; Megatron's FSDP refuses it.
fn environment(fsdp: bool) -> &'static str {
    match fsdp {
        true => "unset CUDA_DEVICE_MAX_CONNECTIONS",
        false => "export CUDA_DEVICE_MAX_CONNECTIONS=1",
    }
}

/// What is not of the plan.
fn yours() -> String {
    let mut a = Args::default();
    a.on("--mock-data");
    a.set("--tokenizer-type", "NullTokenizer");
    a.set("--train-iters", 100);
    a.set("--lr", "3.0e-4");
    format!("# Not of the plan: data, tokenizer, length and rate of the training; rope scaling, where the model has it.\n{}", a.bash("data_args"))
}

fn ranks(launch: &Launch, a: &mut Args, cannot: &mut Cannot) {
    let l = launch.layout;
    a.set("--tensor-model-parallel-size", l.tp);
    a.on_if(l.sp && l.tp > 1, "--sequence-parallel");
    a.set("--pipeline-model-parallel-size", l.pp);
    a.set("--context-parallel-size", l.cp);
    if l.cp > 1 {
        let method = match l.cp_method {
            CpMethod::Ring => "p2p",
            CpMethod::Ulysses => "a2a",
            CpMethod::AllGather => "all_gather",
        };
        a.set("--cp-comm-type", method);
    }
    a.set("--expert-model-parallel-size", l.ep);
    a.set("--expert-tensor-parallel-size", l.etp);
    a.set("--micro-batch-size", l.micro_batch);
    a.set("--global-batch-size", launch.global_batch);
    match l.order {
        None => {}
        Some(order) if lies_as(order, Order::STAGES_OUTSIDE, l) => {}
        Some(order) if lies_as(order, Order::STAGES_INSIDE, l) => a.on("--use-tp-pp-dp-mapping"),
        Some(order) => cannot.say(
            format!("layout={order}"),
            format!(
                "Megatron-Core lays ranks out as {} or {}; it runs the first",
                Order::STAGES_OUTSIDE,
                Order::STAGES_INSIDE
            ),
        ),
    }
}

fn pipeline(launch: &Launch, a: &mut Args, cannot: &mut Cannot) {
    let l = launch.layout;
    if l.pp == 1 {
        return;
    }
    let interleaved = l.schedule == Schedule::Interleaved;
    match l.schedule {
        Schedule::OneFOneB | Schedule::Interleaved => {}
        Schedule::Naive | Schedule::GPipe | Schedule::ZbH1 => cannot.say(
            format!("schedule={}", l.schedule),
            "Megatron-Core has 1F1B and interleaved 1F1B; it runs 1F1B",
        ),
        Schedule::ZbV | Schedule::DualPipeV => cannot.say(
            format!("schedule={}", l.schedule),
            "Megatron-Core has 1F1B and interleaved 1F1B, and no V; it runs 1F1B, one chunk a stage with as many layers",
        ),
    }
    let parts = match interleaved {
        true => chunks(launch),
        // Without the V a stage's layers are neighbours.
        false => (chunks(launch).is_some()).then(|| launch.layers_per_stage.to_vec()),
    };
    let Some(parts) = parts else {
        cannot.say(
            format!("layers_per_stage={}", sum_of(launch.layers_per_stage)),
            "these are not the model's layers by stage; Megatron-Core spreads layers evenly",
        );
        return;
    };
    match same(&parts) {
        Some(_) if interleaved => a.set("--num-virtual-stages-per-pipeline-rank", l.vpp),
        Some(_) => {}
        None => a.set("--pipeline-model-parallel-layout", layout(&parts, launch.decoder.mtp.len())),
    }
}

/// Parts of a pipeline as Megatron reads them: `E|(t|)*126L` is an embedding, 126 parts of one layer, a loss;
/// layers that predict further tokens (`m`) stand before the loss.
fn layout(parts: &[u64], mtp: usize) -> String {
    let last = parts.len() - 1;
    let text = |i: usize, layers: u64| {
        let embedding = if i == 0 { "E" } else { "" };
        let t = match layers {
            0..=3 => "t".repeat(layers as usize),
            n => format!("t*{n}"),
        };
        let end = if i == last { "m".repeat(mtp) + "L" } else { "|".to_string() };
        format!("{embedding}{t}{end}")
    };
    let texts: Vec<String> = parts.iter().enumerate().map(|(i, n)| text(i, *n)).collect();
    let joined = runs(&texts).into_iter().map(|(part, n)| if n == 1 { part } else { format!("({part})*{n}") });
    joined.collect()
}

fn sharing(launch: &Launch, a: &mut Args, cannot: &mut Cannot) {
    let l = launch.layout;
    if l.zero == 0 {
        return a.on("--overlap-grad-reduce");
    }
    a.on("--use-distributed-optimizer");
    a.on("--overlap-grad-reduce");
    a.on("--overlap-param-gather");
    if l.zero >= 2 {
        a.on("--use-megatron-fsdp");
        let strategy = match (l.zero, l.keep) {
            (2, _) | (_, true) => "optim_grads",
            _ => "optim_grads_params",
        };
        a.set("--data-parallel-sharding-strategy", strategy);
        a.set("--ckpt-format", "fsdp_dtensor");
    }
    if l.zero == 3 && l.keep {
        cannot.say(
            "keep=1",
            "Megatron-Core's FSDP gathers parameters again; it runs ZeRO-2, whose parameters stay whole",
        );
    }
    instances(launch, a, cannot);
}

/// Several copies of what is shared: they have to divide the data ranks of experts too.
fn instances(launch: &Launch, a: &mut Args, cannot: &mut Cannot) {
    let l = launch.layout;
    let copies = copies(l);
    if copies <= 1 {
        return;
    }
    match l.expert_data_ranks() {
        Some(ranks) if ranks.is_multiple_of(copies) => a.set("--num-distributed-optimizer-instances", copies),
        _ => cannot.say(
            format!("shard_group={}", l.shard_group),
            format!("{copies} copies do not divide the data ranks of an expert; all dp·cp ranks share one"),
        ),
    }
}

fn recompute(launch: &Launch, a: &mut Args, cannot: &mut Cannot) {
    if let Recompute::Selective(modules) = &launch.layout.recompute {
        return selective(launch, modules, a, cannot);
    }
    let recompute = &launch.layout.recompute;
    // A part that is not interleaved is a stage.
    let parts = match launch.layout.schedule {
        Schedule::Interleaved => chunks(launch),
        _ => chunks(launch).map(|_| launch.layers_per_stage.to_vec()),
    };
    let by_chunk = parts.as_deref().and_then(|parts| again(launch, parts));
    let whole = |a: &mut Args, method: &str, layers: u64| {
        a.set("--recompute-granularity", "full");
        a.set("--recompute-method", method);
        a.set("--recompute-num-layers", layers);
    };
    match (recompute, by_chunk) {
        (Recompute::None, _) | (_, Some(Again::Nothing)) => {}
        (_, Some(Again::Each(layers))) => whole(a, "block", layers),
        (_, Some(Again::NoLess(layers))) => {
            whole(a, "block", layers);
            cannot.say(
                format!("recompute={recompute}"),
                format!("Megatron-Core computes the same number of layers of every chunk again; it takes {layers}, so that no stage saves more than planned"),
            );
        }
        (Recompute::Full, _) | (_, Some(Again::All)) => whole(a, "uniform", 1),
        _ => {
            whole(a, "uniform", 1);
            cannot.say(
                format!("recompute={recompute}"),
                "its stages are not those of the model; all layers are computed again",
            );
        }
    }
}

fn selective(launch: &Launch, modules: &[Module], a: &mut Args, cannot: &mut Cannot) {
    let latent = launch.decoder.layers.iter().any(|r| matches!(r.layer.attention.kind, Heads::Latent { .. }));
    let known = |m: &Module| match m {
        Module::CoreAttn | Module::LayerNorm | Module::Mlp | Module::Moe | Module::MoeAct => true,
        Module::MlaUpProj => latent,
        Module::OpSac | Module::RematMinimal | Module::RematQkvProjOffloaded => false,
    };
    let (can, not): (Vec<Module>, Vec<Module>) = modules.iter().partition(|m| known(m));
    if !can.is_empty() {
        a.set("--recompute-granularity", "selective");
        a.list("--recompute-modules", can.iter().map(|m| m.name().to_string()).collect());
    }
    if !not.is_empty() {
        let names: Vec<&str> = not.iter().map(|m| m.name()).collect();
        cannot.say(
            format!("recompute=selective:{}", names.join("+")),
            "Megatron-Core has no such part to compute again; it saves it",
        );
    }
}

fn precision(precision: Precision, a: &mut Args) {
    match precision {
        Precision::F32 => {}
        Precision::F16 => a.on("--fp16"),
        Precision::Bf16 => a.on("--bf16"),
        Precision::Fp8 => {
            a.on("--bf16");
            a.set("--fp8-format", "hybrid");
            a.set("--fp8-recipe", "tensorwise");
        }
        Precision::Mxfp8 => {
            a.on("--bf16");
            a.set("--fp8-format", "e4m3");
            a.set("--fp8-recipe", "mxfp8");
        }
        Precision::Nvfp4 => {
            a.on("--bf16");
            a.set("--fp4-format", "e2m1");
            a.set("--fp4-recipe", "nvfp4");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_pipeline_are_written_as_megatron_reads_them() {
        let mut llama = vec![1; 128];
        (llama[0], llama[127]) = (0, 0);
        assert_eq!(layout(&llama, 0), "E|(t|)*126L");
        assert_eq!(layout(&[7, 8, 8, 6], 1), "Et*7|(t*8|)*2t*6mL");
        assert_eq!(layout(&[2, 2, 1], 0), "Ett|tt|tL");
    }
}
