//! Training frameworks that ship as data: `data/stacks/NAME.json`.
//!
//! A stack says what a framework does (its habits) and, where enough runs were measured, how well (at most
//! eight constants, fitted by `autoshard accuracy`). A stack without constants of its own takes its parent's,
//! and predictions say so.

pub mod validated;

use autoshard_cost::device::Device;
use autoshard_cost::stack::{AttentionKernel, Constant, ConstantName, Fusion, Habits, LossKernel, MemoryHabits, Stack};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The stack of GPU clusters where nobody names one.
pub const DEFAULT: &str = "megatron-core-2025";

/// Why a stack cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// No such name.
    #[error("unknown stack {name}; known: {known}{near}")]
    Unknown {
        /// As given.
        name: String,
        /// All names.
        known: String,
        /// The nearest, as advice; or empty.
        near: String,
    },
    /// A file that ships is damaged, which a test rules out.
    #[error("data/stacks/{file}: {message}")]
    Damaged {
        /// File.
        file: String,
        /// What is wrong.
        message: String,
    },
}

/// A stack with where its constants come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The stack, its constants resolved.
    pub stack: Stack,
    /// The ancestor whose constants it takes; None where they are its own.
    pub constants_of: Option<String>,
    /// What they were found on; None for starting values.
    pub fitted_on: Option<FittedOn>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    parent: Option<String>,
    about: String,
    habits: HabitsFile,
    constants: Option<BTreeMap<String, f64>>,
    error: Option<f64>,
    fitted_on: Option<FittedOn>,
}

/// What constants were found on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedOn {
    /// Measured runs.
    pub rows: usize,
    /// Groups of them (stack, hidden size, heads, accelerator).
    pub groups: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HabitsFile {
    fusion: String,
    one_kernel: Vec<String>,
    attention: String,
    fused_loss: bool,
    joint_products: bool,
    dispatch_once: bool,
    accumulate_fp32: bool,
    async_tensor_backward: bool,
    #[serde(default)]
    stages_inside: bool,
    prefetch: bool,
    tensor_overlap: bool,
    data_overlap: bool,
    gradient_bytes: f64,
    zero: u8,
    memory: MemoryFile,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryFile {
    parameters_are_masters: bool,
    low_precision_gradients: bool,
    dummy_weight_gradients: bool,
    flat_update: bool,
    gathers_by_matrix: bool,
    keeps_gathered_inputs: bool,
    keeps_stage_outputs: bool,
    loss: String,
    allocator: f64,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../data/stacks/", $name, ".json")))),*]
    };
}

const FILES: &[(&str, &str)] = files![
    "autoshard",
    "automodel-fsdp2-2026",
    "deepspeed-zero3",
    "fsdp1-2023",
    "internevo-2024",
    "maxtext-2024",
    "megascale-2023",
    "megatron-2021",
    "megatron-2022",
    "megatron-2023",
    "megatron-core-2024",
    "megatron-core-2025",
    "megatron-deepspeed-2022",
    "meta-llama3",
    "nemo-2023",
    "other",
    "primus-2025",
    "simumax-mcore-noverlap",
    "torchtitan-2024",
];

/// Names of all stacks.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(n, _)| *n)
}

/// The stack of a name, with its own constants or those of the nearest ancestor that has some.
///
/// # Errors
/// A name that is not known.
pub fn find(name: &str) -> Result<Loaded, StackError> {
    let file = read(name)?;
    let mut from = read(name)?;
    let mut constants_of = None;
    while from.constants.is_none() {
        let parent = from.parent.clone().ok_or_else(|| damaged(&from.name, "it has neither constants nor a parent"))?;
        from = read(&parent)?;
        constants_of = Some(parent);
    }
    let constants = from.constants.iter().flatten().map(|(n, v)| {
        let name = constant_name(n).ok_or_else(|| damaged(&from.name, &format!("unknown constant {n}")))?;
        Ok(Constant { name, value: *v })
    });
    let constants = constants.collect::<Result<Vec<_>, StackError>>()?;
    let habits = habits(&file)?;
    let stack = Stack {
        name: file.name,
        parent: file.parent,
        about: file.about,
        habits,
        constants,
        error: from.error.unwrap_or(0.0),
    };
    Ok(Loaded { stack, constants_of, fitted_on: from.fitted_on })
}

fn read(name: &str) -> Result<File, StackError> {
    let Some((file, text)) = FILES.iter().find(|(n, _)| *n == name) else {
        let scored = names().map(|k| (strsim::damerau_levenshtein(name, k), k)).min();
        let near = scored.filter(|(d, _)| *d <= 1 + name.len() / 3).map(|(_, k)| format!("; did you mean `{k}`?"));
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(StackError::Unknown { name: name.to_string(), known, near: near.unwrap_or_default() });
    };
    serde_json::from_str(text).map_err(|e| damaged(file, &e.to_string()))
}

fn damaged(file: &str, message: &str) -> StackError {
    StackError::Damaged { file: format!("{file}.json"), message: message.to_string() }
}

fn habits(file: &File) -> Result<Habits, StackError> {
    let h = &file.habits;
    let unknown = |what: &str, word: &str| damaged(&file.name, &format!("unknown {what} {word}"));
    Ok(Habits {
        fusion: match h.fusion.as_str() {
            "eager" => Fusion::Eager,
            "fused" => Fusion::Fused,
            "compiled" => Fusion::Compiled,
            other => return Err(unknown("fusion", other)),
        },
        one_kernel: h.one_kernel.clone(),
        attention: match h.attention.as_str() {
            "unfused" => AttentionKernel::Unfused,
            "flash2" => AttentionKernel::Flash2,
            "best" => AttentionKernel::Best,
            other => return Err(unknown("attention kernel", other)),
        },
        dropout: false,
        fused_loss: h.fused_loss,
        joint_products: h.joint_products,
        dispatch_once: h.dispatch_once,
        accumulate_fp32: h.accumulate_fp32,
        async_tensor_backward: h.async_tensor_backward,
        stages_inside: h.stages_inside,
        prefetch: h.prefetch,
        tensor_overlap: h.tensor_overlap,
        data_overlap: h.data_overlap,
        gradient_bytes: h.gradient_bytes,
        zero: h.zero,
        memory: memory(file)?,
    })
}

fn memory(file: &File) -> Result<MemoryHabits, StackError> {
    let m = &file.habits.memory;
    if !(1.0..2.0).contains(&m.allocator) {
        return Err(damaged(&file.name, &format!("allocator is {}; it must be in 1–2", m.allocator)));
    }
    Ok(MemoryHabits {
        parameters_are_masters: m.parameters_are_masters,
        low_precision_gradients: m.low_precision_gradients,
        dummy_weight_gradients: m.dummy_weight_gradients,
        flat_update: m.flat_update,
        gathers_by_matrix: m.gathers_by_matrix,
        keeps_gathered_inputs: m.keeps_gathered_inputs,
        keeps_stage_outputs: m.keeps_stage_outputs,
        loss: match m.loss.as_str() {
            "in_place" => LossKernel::InPlace,
            "one_pass" => LossKernel::OnePass,
            "megatron" => LossKernel::Megatron,
            "pytorch" => LossKernel::Pytorch,
            other => return Err(damaged(&file.name, &format!("unknown loss {other}"))),
        },
        allocator: m.allocator,
    })
}

const ATTENTION: &str = include_str!("../../data/stacks/attention.json");

/// Rates of attention kernels, as their authors publish them.
#[derive(Deserialize)]
struct AttentionRates {
    /// Devices whose tables hold a kernel of FlashAttention-3's generation.
    devices: Vec<String>,
    forward_tflops: BTreeMap<String, f64>,
}

/// Time of FlashAttention-2's forward and backward over that of a device's table: above 1 where the table
/// holds a kernel of a later generation.
///
/// # Errors
/// Only if the embedded file is damaged, which a test rules out.
pub fn flash2(device: &Device) -> Result<f64, StackError> {
    let bad = |message: &str| damaged("attention", message);
    let rates: AttentionRates = serde_json::from_str(ATTENTION).map_err(|e| bad(&e.to_string()))?;
    if !rates.devices.contains(&device.id) {
        return Ok(1.0);
    }
    let rate = |name: &str| rates.forward_tflops.get(name).copied().ok_or_else(|| bad("a rate is missing"));
    Ok(rate("flash3")? / rate("flash2")?)
}

/// Names of constants in files.
const CONSTANTS: [(&str, ConstantName); 8] = [
    ("products", ConstantName::Products),
    ("attention", ConstantName::Attention),
    ("loops", ConstantName::Loops),
    ("launch_gap", ConstantName::LaunchGap),
    ("collectives", ConstantName::Collectives),
    ("contention", ConstantName::Contention),
    ("step_overhead", ConstantName::StepOverhead),
    ("optimizer", ConstantName::Optimizer),
];

/// The constant of a name in files.
pub fn constant_name(name: &str) -> Option<ConstantName> {
    CONSTANTS.iter().find(|(n, _)| *n == name).map(|(_, c)| *c)
}

/// The name of a constant in files.
pub fn constant_word(name: ConstantName) -> &'static str {
    CONSTANTS.iter().find(|(_, c)| *c == name).map_or("", |(n, _)| n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stack_that_ships_loads_and_has_at_most_eight_constants() {
        for name in names() {
            let s = find(name).unwrap();
            assert_eq!(s.stack.name, name);
            assert!(!s.stack.constants.is_empty() && s.stack.constants.len() <= 8, "{name}");
            // Only our own runtime has starting values; the rest are found on enough runs, theirs or a parent's.
            let enough = s.fitted_on.is_some_and(|f| f.rows >= 24 && f.groups >= 3 && s.stack.error > 0.0);
            assert_eq!(enough, name != "autoshard", "{name}: {:?}", s.fitted_on);
        }
    }

    #[test]
    fn a_stack_without_constants_takes_its_parents_and_says_so() {
        let s = find("internevo-2024").unwrap();
        assert_eq!(s.constants_of.as_deref(), Some("megatron-core-2025"));
        assert_eq!(s.stack.constants, find("megatron-core-2025").unwrap().stack.constants);
        assert_ne!(s.stack.habits, find("megatron-core-2025").unwrap().stack.habits);
        let e = find("megatron-core-2052").unwrap_err().to_string();
        assert!(e.contains("did you mean `megatron-core-2025`"), "{e}");
    }
}
