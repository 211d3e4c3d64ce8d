//! DeepSpeed: `ds_config.json`.
//!
//! The model and its cut into stages are the training script's; DeepSpeed reads batch, precision, ZeRO, tensor,
//! sequence and expert parallelism from the file. Keys are those of `runtime/config.py`,
//! `runtime/zero/config.py`, `runtime/tensor_parallel/config.py` and `module_inject/auto_ep_config.py` of 0.19.8.

use super::facts::{copies, lies_as, same, sum_of};
use super::slurm::{servers, Script, Start};
use super::{Cannot, Emitted, Framework, Launch};
use crate::predict::{CpMethod, Order, Precision, Recompute, Schedule};
use serde_json::{json, Map, Value};

/// Writes the launch files.
pub(super) fn emit(launch: &Launch) -> Emitted {
    let (mut config, mut cannot) = (Map::new(), Cannot::default());
    batch(launch, &mut config);
    precision(launch.precision, &mut config, &mut cannot);
    zero(launch, &mut config, &mut cannot);
    ranks(launch, &mut config, &mut cannot);
    pipeline(launch, &mut config, &mut cannot);
    recompute(launch, &mut config, &mut cannot);
    let servers = servers(launch, &mut cannot);
    let script = Script {
        framework: Framework::DeepSpeed,
        launch,
        servers,
        cannot: &cannot.0,
        body: format!(
            "# The training script reads the model's file in $MODEL and sequences of $SEQ_LEN positions.\nexport SEQ_LEN={}\n",
            launch.seq_len
        ),
        start: Start::Torchrun,
        command: "\"${TRAIN_SCRIPT:?set it to a training script that calls deepspeed.initialize}\" --deepspeed \
                  --deepspeed_config ds_config.json",
    };
    // An object of numbers and words always prints.
    let text = serde_json::to_string_pretty(&Value::Object(config)).unwrap_or_default() + "\n";
    Emitted { files: vec![script.file(), ("ds_config.json".to_string(), text)], cannot: cannot.0 }
}

fn batch(launch: &Launch, config: &mut Map<String, Value>) {
    let l = launch.layout;
    // The global batch follows: with it in the file, DeepSpeed takes tensor ranks for data ranks.
    config.insert("train_micro_batch_size_per_gpu".into(), json!(l.micro_batch));
    config.insert("gradient_accumulation_steps".into(), json!(l.microbatches));
}

fn precision(precision: Precision, config: &mut Map<String, Value>, cannot: &mut Cannot) {
    match precision {
        Precision::F32 => {}
        Precision::F16 => {
            config.insert("fp16".into(), json!({"enabled": true}));
        }
        Precision::Bf16 => {
            config.insert("bf16".into(), json!({"enabled": true}));
        }
        Precision::Fp8 | Precision::Mxfp8 | Precision::Nvfp4 => {
            config.insert("bf16".into(), json!({"enabled": true}));
            cannot.say(
                format!("precision={precision}"),
                "DeepSpeed has no such products in its file; it runs bf16 unless the training script makes them",
            );
        }
    }
}

fn zero(launch: &Launch, config: &mut Map<String, Value>, cannot: &mut Cannot) {
    let l = launch.layout;
    let mut zero = Map::new();
    // Its pipelines reduce gradients once a step, which sharing them by micro-batch forbids.
    let stage = if l.pp > 1 { l.zero.min(1) } else { l.zero };
    if stage != l.zero {
        cannot.say(format!("zero={}", l.zero), "DeepSpeed's pipelines share optimizer state alone; it runs ZeRO-1");
    }
    zero.insert("stage".into(), json!(stage));
    if stage > 0 {
        zero.insert("overlap_comm".into(), json!(true));
    }
    let copies = copies(l);
    if l.zero > 0 && copies > 1 && stage == 3 {
        zero.insert("zero_hpz_partition_size".into(), json!(l.shard_group));
        cannot.say(
            format!("shard_group={}", l.shard_group),
            "DeepSpeed keeps a second copy of parameters by such groups and shares optimizer state and gradients over \
             all data ranks",
        );
    } else if l.zero > 0 && copies > 1 {
        cannot.say(format!("shard_group={}", l.shard_group), "DeepSpeed shares over all data ranks");
    }
    if l.keep && l.zero == 3 {
        cannot.say("keep=1", "DeepSpeed gathers parameters again in the backward");
    }
    config.insert("zero_optimization".into(), Value::Object(zero));
}

fn ranks(launch: &Launch, config: &mut Map<String, Value>, cannot: &mut Cannot) {
    let l = launch.layout;
    if l.tp > 1 {
        config.insert("tensor_parallel".into(), json!({"autotp_size": l.tp}));
    }
    if l.tp > 1 && l.pp > 1 {
        cannot.say(
            format!("tp={}", l.tp),
            "stages of a PipelineModule are split by the topology that the training script gives it",
        );
    }
    if l.sp && l.tp > 1 {
        cannot.say("sp=1", "DeepSpeed's tensor parallelism reduces whole activations and splits no positions between");
    }
    sequence(launch, config, cannot);
    let experts = crate::predict::facts::of(launch.decoder).experts > 0;
    if experts {
        config.insert(
            "expert_parallel".into(),
            json!({"enabled": l.ep > 1, "autoep_size": l.ep, "expert_tensor_parallel_size": l.etp}),
        );
    }
    if let Some(order) = l.order.filter(|o| !lies_as(*o, Order::STAGES_OUTSIDE, l)) {
        cannot.say(format!("layout={order}"), format!("DeepSpeed lays ranks out as {}", Order::STAGES_OUTSIDE));
    }
}

/// Its mesh of data and sequence ranks has to be the whole world.
fn sequence(launch: &Launch, config: &mut Map<String, Value>, cannot: &mut Cannot) {
    let l = launch.layout;
    if l.cp == 1 {
        return;
    }
    if l.tp > 1 || l.pp > 1 {
        return cannot.say(
            format!("cp={}", l.cp),
            "DeepSpeed's file splits positions where data ranks are all others; beside tp and pp, the training script \
             has to make the groups",
        );
    }
    config.insert("data_parallel_size".into(), json!(l.dp));
    config.insert("sequence_parallel_size".into(), json!(l.cp));
    if l.cp_method != CpMethod::Ulysses {
        cannot.say(format!("cp_method={}", l.cp_method), "DeepSpeed splits heads by all-to-all (cp_method=ulysses)");
    }
}

fn pipeline(launch: &Launch, config: &mut Map<String, Value>, cannot: &mut Cannot) {
    let l = launch.layout;
    if l.pp == 1 {
        return;
    }
    let mut pipeline = Map::new();
    pipeline.insert("stages".into(), json!(l.pp));
    cannot.say(
        format!("pp={}", l.pp),
        format!("DeepSpeed's stages are made by the training script: PipelineModule(num_stages={})", l.pp),
    );
    match l.schedule {
        Schedule::OneFOneB => {}
        Schedule::DualPipeV => {
            // That engine refuses both.
            pipeline.insert("pipe_partitioned".into(), json!(false));
            pipeline.insert("grad_partitioned".into(), json!(false));
            cannot.say(
                "schedule=dualpipe-v",
                "the training script has to make a DualPipeVModule in place of a PipelineModule",
            );
        }
        other => {
            cannot.say(format!("schedule={other}"), "DeepSpeed has 1F1B and DualPipeV; a PipelineModule runs 1F1B")
        }
    }
    if l.vpp > 1 && l.schedule == Schedule::Interleaved {
        cannot.say(format!("vpp={}", l.vpp), "a PipelineModule has one chunk a stage");
    }
    if same(launch.layers_per_stage).is_none() {
        cannot.say(
            format!("layers_per_stage={}", sum_of(launch.layers_per_stage)),
            "a PipelineModule cuts by its own partition_method; give it one that cuts so",
        );
    }
    if l.pp > 1 && launch.layout.recompute == Recompute::Full {
        pipeline.insert("activation_checkpoint_interval".into(), json!(1));
    }
    config.insert("pipeline".into(), Value::Object(pipeline));
}

fn recompute(launch: &Launch, config: &mut Map<String, Value>, cannot: &mut Cannot) {
    let l = launch.layout;
    if l.recompute == Recompute::None {
        return;
    }
    config.insert("activation_checkpointing".into(), json!({"partition_activations": false}));
    if l.recompute == Recompute::Full && l.pp > 1 {
        return;
    }
    cannot.say(
        format!("recompute={}", l.recompute),
        "DeepSpeed computes again what the training script wraps in deepspeed.checkpointing.checkpoint, and nothing else",
    );
}
