//! Communication beside computation changes no bit, no byte and no order between ranks; what it does
//! change is when ranks wait, and where memory lies.

mod common;

use autoshard::compile::{self, compile_with, plan_mesh, Executable};
use autoshard::data::Dataset;
use autoshard::hardware::Preset;
use autoshard::ir::program::{Buf, CollectiveKind, Program, Step};
use autoshard::ir::DType;
use autoshard::model::{Model, StepShape};
use autoshard::passes::autodiff::AdamW;
use autoshard::runtime::comm::Counts;
use autoshard::runtime::Options;
use autoshard::train::Trainer;
use autoshard::weights::Weights;
use common::{degrees, golden_dir};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Data, weights, both on two axes with positions split, and parts that are not equal.
const MESHES: [&str; 6] = ["dp=4", "fsdp=4", "tp=2,dp=2", "tp=2,dp=2,sp=0", "fsdp=3", "tp=2,fsdp=3"];

/// Two layers of width 64 on a mesh, with communication beside computation or without.
fn build(mesh: &str, overlap: bool) -> Executable {
    let shape = StepShape { batch: 12, seq_len: 16, dtype: DType::F32 };
    let model = Model::load(&golden_dir("llama_tiny"), shape).unwrap();
    let plan = plan_mesh(&model, &degrees(mesh)).unwrap_or_else(|e| panic!("{mesh}: {e}"));
    let options = compile::Options { overlap, ..Default::default() };
    compile_with(&model, &plan, &AdamW::default(), &options).unwrap_or_else(|e| panic!("{mesh}: {e}"))
}

/// What two steps leave behind.
#[derive(Debug, Default, PartialEq)]
struct Run {
    losses: Vec<f64>,
    tensors: BTreeMap<String, (Vec<f64>, Vec<f64>)>,
    /// Per step and rank.
    counts: Vec<Communicated>,
}

/// Bytes, and the names of the collectives in the order of issue.
#[derive(Debug, PartialEq)]
struct Communicated {
    payload: BTreeMap<String, u64>,
    wire: BTreeMap<String, u64>,
    control: u64,
    names: Vec<String>,
}

fn run(exe: Executable) -> Run {
    let m = exe.meta.clone();
    let data = Dataset::golden(0, m.vocab, m.seq_len, m.batch, false).unwrap();
    let preset = Preset::this_machine().unwrap();
    let mut t = Trainer::new(Arc::new(exe), &Weights::Init { seed: 0 }, data, &preset, Options::default()).unwrap();
    let mut out = Run::default();
    for _ in 0..2 {
        let step = t.step().unwrap();
        out.losses.push(step.loss);
        for rank in step.report.ranks {
            let Counts { payload, wire, control, collectives, .. } = rank.counts;
            assert!(rank.waiting_seconds <= rank.communication_seconds);
            assert!(collectives.windows(2).all(|w| w[0].order < w[1].order));
            let names = collectives.iter().map(|c| c.name.to_string()).collect();
            out.counts.push(Communicated { payload, wire, control, names });
        }
    }
    for tensor in &m.tensors {
        let both = (t.value(&tensor.name).unwrap(), t.gradient(&tensor.name).unwrap());
        out.tensors.insert(tensor.name.clone(), both);
    }
    out
}

/// Collectives that something runs beside.
fn beside(program: &Program) -> usize {
    let late = |f: &autoshard::ir::program::ProgramFunction| {
        let soon = |at: usize| f.steps.get(at + 1) == Some(&Step::Wait { issue: at });
        (0..f.steps.len()).filter(|i| matches!(f.steps[*i], Step::Issue { .. }) && !soon(*i)).count()
    };
    program.functions.iter().map(late).sum()
}

#[test]
fn overlap_changes_no_bit_and_no_byte() {
    for mesh in MESHES {
        let [off, on] = [false, true].map(|overlap| build(mesh, overlap));
        assert_eq!(beside(&off.program), 0, "{mesh}");
        assert!(beside(&on.program) > 0, "{mesh}");
        let (mut a, mut b) = (run(off), run(on));
        // The order of issue is another, on all ranks alike.
        for r in [&mut a, &mut b] {
            assert!(r.counts.iter().all(|c| c.names == r.counts[0].names), "{mesh}");
            r.counts.iter_mut().for_each(|c| c.names.sort());
        }
        assert_eq!(a.losses, b.losses, "{mesh}");
        assert_eq!(a.counts, b.counts, "{mesh}");
        assert_eq!(a.tensors, b.tensors, "{mesh}");
    }
}

/// Two calls' gathered weights are alive at most.
#[test]
fn gathers_are_one_call_ahead() {
    let exe = build("fsdp=4", true);
    let f = &exe.program.functions[exe.program.entry];
    let mut gathered = 0;
    let mut at_call = Vec::new();
    for step in &f.steps {
        match step {
            Step::Issue { collective, .. } => {
                let c = &exe.program.collectives[*collective];
                gathered += usize::from(c.kind == CollectiveKind::AllGather);
            }
            Step::Call { .. } => at_call.push(gathered),
            _ => {}
        }
    }
    // Tables, embedding, two blocks, head; head, two blocks, embedding: weights 1, 9, 9, 2; 2, 9, 9.
    assert_eq!(at_call, [1, 1 + 9, 1 + 18, 21, 23, 32, 41, 41, 41]);
}

/// The gradient of the logits is written over the logits, which the forward pass has saved.
#[test]
fn the_gradient_of_the_logits_takes_their_place() {
    let exe = build("", true);
    let head = exe.program.functions.iter().find(|f| f.name == "head.bwd").unwrap();
    let at = head.params.iter().position(|(n, _)| n == "logits").unwrap();
    assert!(head.consumed[at], "{:?}", head.consumed);
    let logits = exe.program.mesh.local_bytes(&head.params[at].1);
    assert!(head.frame < logits, "{} against {logits}", head.frame);
    let writes = |s: &Step| {
        matches!(s, Step::Kernel { kernel, buffers }
        if buffers[exe.program.kernels[*kernel].operands..].contains(&Buf::Param(at)))
    };
    assert_eq!(head.steps.iter().filter(|s| writes(s)).count(), 1);
}
