//! A backend with a formula that tests can compute by hand. It is no predictor.

#![allow(dead_code)] // Each test uses a part of it.

use autoshard::predict::{
    facts, Backend, ModelFacts, Part, PartKind, PredictError, Prediction, Request, Stage, TableKind, TableScore,
};
use autoshard::runs::RunRow;
use autoshard_cost::cluster::{Cluster, Medium, Tier};
use autoshard_cost::device::{Device, Format, ScaleUp};
use autoshard_cost::stack::{Constant, ConstantName, Stack};
use std::path::Path;

/// What it says of a row.
pub enum Answer {
    /// The measured time (or one second where only a rate is measured) times this.
    Scaled(f64),
    /// Constant 0 times the row's work, plus constant 1.
    Work,
}

/// The backend.
pub struct Fake(pub Answer);

/// Seconds of work at a constant of 1: 10 TFLOP/s a device, 24·h²·(1 + s/6h)·L FLOPs a token.
pub fn work(row: &RunRow) -> f64 {
    let (h, s, l) = (row.hidden as f64, row.seq_len as f64, row.layers as f64);
    24.0 * h * h * (1.0 + s / (6.0 * h)) * l * row.tokens() / (row.gpus as f64 * 1e13)
}

pub fn device(id: &str) -> Device {
    let peak = [Format::Fp32, Format::Bf16, Format::Fp16, Format::Fp8].map(|f| (f, 1e14));
    let scale_up = ScaleUp { bandwidth: 3e11, domain: 8, ..ScaleUp::default() };
    Device {
        id: id.into(),
        peak: peak.to_vec(),
        memory: 80e9,
        scale_up,
        network_bandwidth: Some(5e10),
        sustained: 1.0,
        sustained_eight_bit: 1.0,
        ..Device::default()
    }
}

pub fn cluster(id: &str) -> Cluster {
    let tier = |name: &str, fanout, bandwidth, medium| Tier {
        name: name.into(),
        fanout,
        bandwidth,
        oversubscription: 1.0,
        latency: 1e-5,
        medium,
        nics_per_node: None,
        in_network_reduction: false,
        torus: Vec::new(),
        assumed: Vec::new(),
        notes: String::new(),
        ..Default::default()
    };
    Cluster {
        id: id.into(),
        device: device("fake-device"),
        devices_per_node: 8,
        devices: None,
        tiers: vec![tier("inside", Some(8), 3e11, Medium::ScaleUp), tier("between", None, 5e10, Medium::Network)],
        failures: None,
        price: Some(2.0),
        verified: false,
        sources: Vec::new(),
        notes: String::new(),
        ..Default::default()
    }
}

pub fn stack(name: &str) -> Stack {
    let constant = |name, value| Constant { name, value };
    Stack {
        name: name.into(),
        parent: (name == "child").then(|| "megatron-deepspeed-2022".to_string()),
        about: String::new(),
        habits: autoshard::stacks::find("torchtitan-2024").map(|s| s.stack.habits).expect("it ships"),
        error: 0.0,
        constants: vec![constant(ConstantName::Products, 1.0), constant(ConstantName::StepOverhead, 0.0)],
    }
}

/// A prediction of these seconds, half in products and half in an exposed collective; a quarter is hidden.
fn prediction(seconds: f64, flops: f64) -> Prediction {
    let part = |name: &str, kind, share, exposed, bytes| Part {
        name: name.into(),
        kind,
        seconds: seconds * share,
        exposed,
        bytes,
        tier: if kind == PartKind::Collective { "inside".into() } else { String::new() },
    };
    Prediction {
        step_seconds: seconds,
        low: 0.9 * seconds,
        high: 1.2 * seconds,
        parts: vec![
            part("products", PartKind::Products, 0.5, true, 0.0),
            part("tp all-reduce", PartKind::Collective, 0.5, true, 1e9),
            part("tp all-reduce", PartKind::Collective, 0.25, false, 1e9),
        ],
        model_flops_causal: flops,
        model_flops_full: 1.25 * flops,
        hardware_flops: 1.5 * flops,
        stages: vec![Stage { layers: 80, busy: seconds, memory: None }],
        marks: vec!["fake".into()],
    }
}

impl Backend for Fake {
    fn model(&self, path: &Path) -> Result<ModelFacts, PredictError> {
        facts::read(path)
    }

    fn cluster(&self, name: &str) -> Result<Cluster, PredictError> {
        Ok(cluster(name))
    }

    fn device(&self, name: &str) -> Result<Device, PredictError> {
        Ok(device(name))
    }

    fn stack(&self, name: &str) -> Result<Stack, PredictError> {
        match name {
            "other" => Err(PredictError::Unknown {
                what: "stack",
                name: name.into(),
                known: "all others".into(),
                near: String::new(),
            }),
            _ => Ok(stack(name)),
        }
    }

    fn predict(&self, request: &Request) -> Result<Prediction, PredictError> {
        let tokens = (request.layout.global_batch() * request.seq_len) as f64;
        Ok(prediction(tokens / 1e4 / request.devices as f64, tokens * 2.5e9))
    }

    fn predict_row(&self, row: &RunRow, machine: &Cluster, stack: &Stack) -> Result<Prediction, PredictError> {
        if row.layout.pp > 1 {
            return Err(PredictError::Later { what: "a pipeline".into(), instead: "leave it out".into() });
        }
        assert!(!machine.tiers.is_empty());
        let seconds = match self.0 {
            Answer::Scaled(factor) => row.measured.step_seconds.unwrap_or(1.0) * factor,
            Answer::Work => stack.constants[0].value * work(row) + stack.constants[1].value,
        };
        Ok(prediction(seconds, work(row) * row.gpus as f64 * 1e13))
    }

    fn score_kernels(&self, _: TableKind, _: &Device, _: &str, text: &str) -> Result<TableScore, PredictError> {
        Ok(TableScore { rows: text.lines().count() - 1, ..TableScore::default() })
    }

    fn score_collectives(&self, _: &Device, _: &str, _: &str) -> Result<TableScore, PredictError> {
        Ok(TableScore::default())
    }
}
