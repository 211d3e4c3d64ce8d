//! A model in Megatron-Core's flags.

use super::args::Args;
use super::shape::{runs, Shape};
use super::{Cannot, Launch};
use crate::decoder::{Activation, Attention, Experts, Form, Heads, NormKind, Position, QkNorm, Router, Scores};

/// Writes the flags of the model.
pub(super) fn flags(launch: &Launch, a: &mut Args, cannot: &mut Cannot) {
    let d = launch.decoder;
    a.set("--num-layers", d.depth());
    a.set("--hidden-size", d.hidden);
    a.set("--seq-length", launch.seq_len);
    a.set("--max-position-embeddings", d.max_positions.unwrap_or(0).max(launch.seq_len as usize));
    a.set("--vocab-size", d.vocab);
    a.on_if(!d.tied, "--untie-embeddings-and-output-weights");
    if !d.mtp.is_empty() {
        a.set("--mtp-num-layers", d.mtp.len());
    }
    let Some(shape) = Shape::of(d) else {
        cannot.say("model", "it has no layers, and there is nothing to train");
        return;
    };
    attention(&shape, a, cannot);
    positions(launch, &shape, a, cannot);
    norms(&shape, a, cannot);
    network(&shape, a, cannot);
    if let Some(experts) = shape.experts {
        self::experts(&shape, experts, a, cannot);
    }
    others(launch, &shape, cannot);
}

fn attention(shape: &Shape, a: &mut Args, cannot: &mut Cannot) {
    let at = shape.attention();
    a.set("--num-attention-heads", at.heads);
    match at.kind {
        Heads::Plain { width } => {
            a.set("--kv-channels", width);
            if at.kv_heads != at.heads {
                a.on("--group-query-attention");
                a.set("--num-query-groups", at.kv_heads);
            }
        }
        Heads::Latent { q_latent, kv_latent, nope, rope, value } => {
            a.on("--multi-latent-attention");
            if let Some(rank) = q_latent {
                a.set("--q-lora-rank", rank);
            }
            a.set("--kv-lora-rank", kv_latent);
            a.set("--qk-head-dim", nope);
            a.set("--qk-pos-emb-head-dim", rope);
            a.set("--v-head-dim", value);
        }
    }
    let latent = matches!(at.kind, Heads::Latent { .. });
    match at.qk_norm {
        QkNorm::Head => a.on("--qk-layernorm"),
        // The norms of the latents are under the same flag.
        QkNorm::No => a.on_if(latent, "--qk-layernorm"),
        QkNorm::Whole => cannot.say(
            "model",
            "Megatron-Core norms queries and keys of each head, not of all heads together; it norms none",
        ),
    }
    windows(shape, a);
    if at.sinks {
        a.set("--softmax-type", "learnable");
    }
}

/// Sliding windows: Megatron counts the keys to the left of a query, without its own.
fn windows(shape: &Shape, a: &mut Args) {
    let Some(window) = shape.windows.iter().flatten().next() else { return };
    a.set("--window-size", format!("{},0", window.saturating_sub(1)));
    if shape.windows.iter().any(Option::is_none) {
        let narrow: Vec<u8> = shape.windows.iter().map(|w| u8::from(w.is_some())).collect();
        a.set("--window-attn-skip-freq", pattern(&narrow));
    }
}

fn positions(launch: &Launch, shape: &Shape, a: &mut Args, cannot: &mut Cannot) {
    let at = shape.attention();
    match (launch.decoder.position, at.rotary) {
        (Position::Rotary, Some(rotary)) => {
            a.set("--position-embedding-type", "rope");
            a.set("--rotary-base", rotary.theta.round() as i64);
            match at.kind {
                // Latent attention takes the scaled rotation by default; scalings are not in a plan.
                Heads::Latent { .. } => a.set("--rope-type", "rope"),
                Heads::Plain { width } if rotary.width != width => {
                    a.set("--rotary-percent", rotary.width as f64 / width as f64)
                }
                Heads::Plain { .. } => {}
            }
        }
        (Position::Rotary, None) => a.set("--position-embedding-type", "none"),
        (Position::Learned { .. }, _) => a.set("--position-embedding-type", "learned_absolute"),
        (Position::Alibi, _) => {
            a.set("--position-embedding-type", "none");
            cannot.say("model", "Megatron-Core has no ALiBi; positions do not enter");
        }
    }
}

fn norms(shape: &Shape, a: &mut Args, cannot: &mut Cannot) {
    let norm = shape.layer.norm;
    a.set("--normalization", if norm.kind == NormKind::Rms { "RMSNorm" } else { "LayerNorm" });
    a.set("--norm-epsilon", norm.eps);
    if shape.layer.form != Form::Pre {
        let form = match shape.layer.form {
            Form::Pre => "before each part",
            Form::Post => "behind each part",
            Form::Sandwich => "before and behind each part",
            Form::Parallel | Form::ParallelTwo => "before two parts side by side",
        };
        cannot.say(
            "model",
            format!("its norms stand {form}; Megatron-Core's layer norms before each of two parts in a row"),
        );
    }
    if !norm.gain || (norm.kind == NormKind::Layer && !norm.bias) {
        cannot.say("model", "its norms lack gains or biases; Megatron-Core trains both");
    }
}

fn network(shape: &Shape, a: &mut Args, cannot: &mut Cannot) {
    let Some(ffn) = shape.network() else { return };
    a.set("--ffn-hidden-size", ffn.width);
    match (ffn.gated, ffn.activation) {
        (true, Activation::Silu) => a.on("--swiglu"),
        (false, Activation::Gelu) => {}
        (false, Activation::Relu2) => a.on("--squared-relu"),
        (true, Activation::Gelu) => {
            a.on("--quick-geglu");
            cannot.say("model", "its gate is GELU; Megatron-Core's is the quick form, x·sigmoid(1.702x)");
        }
        (gated, activation) => {
            let gate = if gated { "gated " } else { "" };
            cannot.say(
                "model",
                format!("Megatron-Core has no {gate}{activation:?} network; it runs GELU without a gate"),
            );
        }
    }
    let Attention { qkv_bias, o_bias, .. } = *shape.attention();
    // One flag drops all biases; a second brings those of queries, keys and values back.
    match (o_bias, ffn.bias, qkv_bias) {
        (true, true, true) => {}
        (false, false, _) => {
            a.on("--disable-bias-linear");
            a.on_if(qkv_bias, "--add-qkv-bias");
        }
        _ => cannot.say("model", "some of its products have biases and some not; Megatron-Core gives all of them one"),
    }
    a.set("--attention-dropout", 0);
    a.set("--hidden-dropout", 0);
}

fn experts(shape: &Shape, x: &Experts, a: &mut Args, cannot: &mut Cannot) {
    a.set("--num-experts", x.experts);
    a.set("--moe-router-topk", x.top_k);
    a.set("--moe-ffn-hidden-size", x.each.width);
    if shape.with_experts.iter().any(|with| !with) {
        let with: Vec<u8> = shape.with_experts.iter().map(|w| u8::from(*w)).collect();
        a.set("--moe-layer-freq", pattern(&with));
    }
    if let Some(shared) = x.shared {
        a.set("--moe-shared-expert-intermediate-size", shared.width);
        a.on_if(x.shared_gate, "--moe-shared-expert-gate");
    }
    a.on("--moe-grouped-gemm");
    a.set("--moe-token-dispatcher-type", "alltoall");
    router(&x.router, a, cannot);
}

fn router(r: &Router, a: &mut Args, cannot: &mut Cannot) {
    match r.scores {
        Scores::Sigmoid => a.set("--moe-router-score-function", "sigmoid"),
        Scores::Softmax | Scores::SoftmaxOfChosen => a.set("--moe-router-score-function", "softmax"),
    }
    // A softmax over all that is divided by the sum of the chosen is a softmax over the chosen, the default.
    a.on_if(r.scores == Scores::Softmax && !r.normalise, "--moe-router-pre-softmax");
    if r.scores == Scores::Sigmoid && !r.normalise {
        cannot.say("model", "its router's sigmoids are not divided by their sum; Megatron-Core divides them");
    }
    a.on_if(r.correction, "--moe-router-enable-expert-bias");
    if r.scale != 1.0 {
        a.set("--moe-router-topk-scaling-factor", r.scale);
    }
    if r.bias {
        cannot.say("model", "its router's logits have a bias; Megatron-Core's have none");
    }
}

fn others(launch: &Launch, shape: &Shape, cannot: &mut Cannot) {
    let d = launch.decoder;
    if shape.differ {
        cannot.say("model", "its layers differ in more than windows and experts; all are made like the last");
    }
    if d.head_bias || d.embed_norm.is_some() || d.logit_cap.is_some() {
        cannot.say("model", "biases of logits, norms of embeddings and bounds of logits are left out");
    }
}

/// A list of ones and zeros as Megatron reads it: `[0]*3+[1]*58`.
fn pattern(values: &[u8]) -> String {
    let parts: Vec<String> = runs(values).iter().map(|(v, n)| format!("[{v}]*{n}")).collect();
    parts.join("+")
}
