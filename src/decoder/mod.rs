//! Decoders as data: what planning needs to know of a model, of any family.
//!
//! A [`Decoder`] says the sizes of every product, of attention and of every parameter of a language model,
//! and nothing else: a Hugging Face configuration ([`Decoder::from_config`]) and a row of a run file
//! ([`Decoder::from_row`]) become one, [`Decoder::parameters`] counts it and [`Decoder::module`] is the
//! forward module that cost and search walk. Families that can be executed are read by [`crate::import`];
//! there every key must be understood. Here a key that changes no size may be passed over, and
//! [`Decoder::notes`] says which.
//!
//! Left out everywhere, as training stacks do or because it costs nothing: dropout, ALiBi's slopes, caps
//! of attention scores and of activations, multipliers of embeddings and logits, limits to groups of experts.

mod block;
mod build;
mod config;
pub mod families;
mod row;
mod weights;

pub use build::ModuleShape;
pub use row::RowError;
pub use weights::{Use, Weight};

/// A language model, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoder {
    /// `model_type` of a configuration, `block.family` of a run row.
    pub family: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Token ids.
    pub vocab: usize,
    /// How positions enter.
    pub position: Position,
    /// Whether the head is the embedding matrix.
    pub tied: bool,
    /// Whether logits have a bias.
    pub head_bias: bool,
    /// Norm of the embeddings before the first layer (BLOOM); `None` where there is none.
    pub embed_norm: Option<Norm>,
    /// Norm before the head.
    pub final_norm: Norm,
    /// Bound c of logits, c·tanh(x/c), where they have one (Gemma 2).
    pub logit_cap: Option<f64>,
    /// Layers in order, equal neighbours together; at least one.
    pub layers: Vec<Run>,
    /// Extra layers that predict further tokens (DeepSeek-V3), each with norms of the stream and of the
    /// next token's embedding and a product that joins the two.
    pub mtp: Vec<Layer>,
    /// Longest sequence that the model is meant for, tokens; `None` where not stated.
    pub max_positions: Option<usize>,
    /// What a reader should know: defaults that were taken, keys that were passed over.
    pub notes: Vec<String>,
}

/// Neighbouring layers that are equal.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// How many; at least one.
    pub count: usize,
    /// What they are.
    pub layer: Layer,
}

/// How positions enter the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Position {
    /// Queries and keys are rotated, as their layer says.
    Rotary,
    /// A trained table added to the embeddings.
    Learned {
        /// Rows of the table; `None` takes as many as the sequence is long.
        rows: Option<usize>,
    },
    /// Biases of attention scores by distance; they cost nothing in an attention kernel.
    Alibi,
}

/// One kind of transformer layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Every norm over the residual stream.
    pub norm: Norm,
    /// Where norms and sums stand.
    pub form: Form,
    /// Self-attention.
    pub attention: Attention,
    /// What follows it.
    pub mlp: Mlp,
}

/// A normalisation over the last dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Which.
    pub kind: NormKind,
    /// Whether it multiplies by trained gains.
    pub gain: bool,
    /// Whether it adds trained biases (layer norms only).
    pub bias: bool,
    /// Added to the variance or mean square.
    pub eps: f64,
}

/// Which normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// By the root mean square.
    Rms,
    /// By mean and variance.
    Layer,
}

/// Where the norms of a layer stand, and how its two parts join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// x + attention(norm x), then + mlp(norm ·).
    Pre,
    /// x + norm(attention x), then + norm(mlp ·) (OLMo 2).
    Post,
    /// Norms before and after both parts (Gemma 2, GLM-4, Grok).
    Sandwich,
    /// x + attention(norm x) + mlp(norm x), one norm for both (Falcon-7B, Phi, Cohere).
    Parallel,
    /// The same with a norm each (GPT-NeoX, Falcon-40B).
    ParallelTwo,
}

/// Self-attention of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// How queries, keys and values are made.
    pub kind: Heads,
    /// Keys that a query sees, its own included; `None` is all before it.
    pub window: Option<usize>,
    /// Norm of queries and keys before the rotation.
    pub qk_norm: QkNorm,
    /// Whether query, key and value products have biases.
    pub qkv_bias: bool,
    /// Whether the output product has a bias.
    pub o_bias: bool,
    /// Whether each head has a trained logit that takes probability and gives nothing (GPT-OSS). It is
    /// counted, and left out of modules: one number a head.
    pub sinks: bool,
    /// What rotates; `None` where positions enter otherwise.
    pub rotary: Option<Rotary>,
}

/// A rotation of heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// Entries of a head that are rotated, the first ones (the last ones in latent attention); even.
    pub width: usize,
    /// Base of the frequencies. Scalings for long contexts change no cost and are left out.
    pub theta: f64,
}

/// How heads are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heads {
    /// Straight from the stream.
    Plain {
        /// Width of a head.
        width: usize,
    },
    /// Through latents: multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).
    Latent {
        /// Width of the query latent; `None` makes queries straight from the stream.
        q_latent: Option<usize>,
        /// Width of the latent of keys and values.
        kv_latent: usize,
        /// Entries of a query or key head without position.
        nope: usize,
        /// Rotated entries; those of the key are one head's, shared by all.
        rope: usize,
        /// Entries of a value head.
        value: usize,
    },
}

impl Heads {
    /// Entries of a query or key head.
    pub fn qk_width(self) -> usize {
        match self {
            Heads::Plain { width } => width,
            Heads::Latent { nope, rope, .. } => nope + rope,
        }
    }

    /// Entries of a value head.
    pub fn value_width(self) -> usize {
        match self {
            Heads::Plain { width } => width,
            Heads::Latent { value, .. } => value,
        }
    }
}

/// Norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    No,
    /// Over each head.
    Head,
    /// Over all heads together (OLMo 2).
    Whole,
}

/// The second half of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Mlp {
    /// One network for all tokens.
    Dense(Ffn),
    /// Each token goes to some experts.
    Experts(Experts),
}

/// A feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ffn {
    /// Its inner width.
    pub width: usize,
    /// Whether a second product gates the first.
    pub gated: bool,
    /// What stands between the products.
    pub activation: Activation,
    /// Whether its products have biases.
    pub bias: bool,
}

/// A scalar function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x·sigmoid(x).
    Silu,
    /// Gaussian error linear unit, in whichever form: modules hold the tanh form.
    Gelu,
    /// max(x, 0).
    Relu,
    /// max(x, 0)².
    Relu2,
}

/// Experts and their router.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// How many.
    pub experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Each of them.
    pub each: Ffn,
    /// A network that all tokens pass beside their experts: shared experts side by side are one wider one.
    pub shared: Option<Ffn>,
    /// Whether a trained gate of one number a token scales the shared network (Qwen2-MoE).
    pub shared_gate: bool,
    /// How experts are chosen.
    pub router: Router,
}

/// How a token's experts and their weights follow from the router's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// From logits to scores.
    pub scores: Scores,
    /// Whether the chosen scores are divided by their sum.
    pub normalise: bool,
    /// Whether logits have a bias.
    pub bias: bool,
    /// Whether a bias that is not trained by gradients is added to scores for the choice alone (DeepSeek-V3).
    pub correction: bool,
    /// Factor of the weights.
    pub scale: f64,
}

/// From logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// Softmax over all experts, then the choice.
    Softmax,
    /// Each by itself, then the choice.
    Sigmoid,
    /// The choice by logits, then softmax over the chosen.
    SoftmaxOfChosen,
}

impl Decoder {
    /// Experts that a token goes to, of the layer that has most; 0 where there are none.
    pub fn most_experts_of_a_token(&self) -> usize {
        let layers = self.layers.iter().map(|run| &run.layer).chain(&self.mtp);
        let of = |layer: &Layer| if let Mlp::Experts(x) = &layer.mlp { x.top_k } else { 0 };
        layers.map(of).max().unwrap_or(0)
    }

    /// Number of layers, without those that predict further tokens.
    pub fn depth(&self) -> usize {
        self.layers.iter().map(|r| r.count).sum()
    }

    /// The kinds of layer in order of first appearance, extra ones last.
    pub fn kinds(&self) -> Vec<&Layer> {
        let mut kinds: Vec<&Layer> = Vec::new();
        for layer in self.layers.iter().map(|r| &r.layer).chain(&self.mtp) {
            if !kinds.contains(&layer) {
                kinds.push(layer);
            }
        }
        kinds
    }

    /// Appends a layer, to the last run where it is equal.
    pub(crate) fn push(layers: &mut Vec<Run>, layer: Layer) {
        match layers.last_mut() {
            Some(run) if run.layer == layer => run.count += 1,
            _ => layers.push(Run { count: 1, layer }),
        }
    }
}
