//! What a training framework does: habits, and at most eight fitted constants.

/// How a framework turns a layer into kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusion {
    /// One kernel an operation, as eager PyTorch runs it.
    Eager,
    /// Hand-fused kernels for norms, activations, biases with dropout and add (Megatron, Transformer Engine).
    Fused,
    /// A compiler fuses neighbouring loops (torch.compile, XLA, autoshard).
    Compiled,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKernel {
    /// Products and a softmax over all scores, which are written to memory.
    Unfused,
    /// FlashAttention-2 or a kernel of its generation (Dao 2023, arXiv 2307.08691).
    Flash2,
    /// The best of its device, as the tables measure it (FlashAttention-3, cuDNN, TensorRT-LLM).
    Best,
}

/// What a framework does, as opposed to how well.
#[derive(Clone, Debug, PartialEq)]
pub struct Habits {
    /// How loops become kernels.
    pub fusion: Fusion,
    /// Operations that are one library kernel even where nothing is fused, by name.
    pub one_kernel: Vec<String>,
    /// How attention is computed.
    pub attention: AttentionKernel,
    /// Whether dropout runs. A run says so, a stack does not.
    pub dropout: bool,
    /// Whether the cross-entropy reads the logits once.
    pub fused_loss: bool,
    /// Whether products that share an input (q, k, v; gate, up) are one.
    pub joint_products: bool,
    /// Whether a token goes once to each rank, and over the network once to each node, however many of its
    /// experts are there (DeepEP, HybridEP), instead of once to each expert.
    pub dispatch_once: bool,
    /// Whether weight gradients are added to fp32 main gradients by the product that makes them.
    pub accumulate_fp32: bool,
    /// Whether the backward of a tensor-parallel product gathers its input and reduces its cotangent beside
    /// the other product (Megatron's asynchronous communication).
    pub async_tensor_backward: bool,
    /// Whether stages of a pipeline sit inside data ranks (tp, cp, pp, dp from the inside out, as Llama 3 was
    /// trained: Dubey et al. 2024, arXiv 2407.21783, section 3.3.2), instead of outside of them.
    pub stages_inside: bool,
    /// Whether the next unit's parameters are gathered while this one computes.
    pub prefetch: bool,
    /// Whether tensor-parallel messages run piece by piece beside their products, where a run does not say.
    pub tensor_overlap: bool,
    /// Whether data-parallel messages run beside computation, where a run does not say.
    pub data_overlap: bool,
    /// Bytes of an element of a gradient that is reduced, where a run does not say.
    pub gradient_bytes: f64,
    /// What data-parallel ranks share by habit: ZeRO stage 0–3.
    pub zero: u8,
    /// What it keeps in memory.
    pub memory: MemoryHabits,
}

/// How a framework computes the loss, as memory sees it. Bytes are those at the peak for an element of a rank's logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LossKernel {
    /// One kernel reads bf16 logits, and the gradient takes their place: 2 (Transformer Engine, flash-attn with
    /// `inplace_backward`, Liger).
    #[default]
    InPlace,
    /// One kernel reads bf16 logits, and their gradient is a tensor of its own: 4 (compilers, flash-attn).
    OnePass,
    /// Megatron's vocabulary-parallel loss: bf16 logits and an fp32 copy that becomes the softmax (kept) and then
    /// the gradient, in place: 6.
    Megatron,
    /// PyTorch's `cross_entropy` of fp32 logits: bf16 logits, the log-softmax (kept) and the gradients of both
    /// halves in fp32: 14; 18 where the vocabulary is split over ranks (`loss_parallel` has the one-hot part, the
    /// exponential and their sum at once).
    Pytorch,
}

/// What a framework keeps in memory beside what every one does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryHabits {
    /// Whether parameters are their own fp32 masters, and copies in the compute type last as long as they are used
    /// (FSDP's mixed precision); else the fp32 master stands beside a copy that stays.
    pub parameters_are_masters: bool,
    /// Whether gradients in the compute type stay beside main gradients that are wider (DeepSpeed's
    /// `BF16_Optimizer`).
    pub low_precision_gradients: bool,
    /// Whether a buffer in the compute type stays for each distinct matrix of products with weights: Transformer
    /// Engine hands it to autograd in place of a gradient that the product has added to the main gradient
    /// (`get_dummy_wgrad`).
    pub dummy_weight_gradients: bool,
    /// Whether the update copies a rank's share of 16-bit gradients to fp32 in one piece, after it has flattened it
    /// where it is not yet (DeepSpeed's ZeRO optimizers for fp16): no block that activations leave is long enough,
    /// so the allocator takes new ones.
    pub flat_update: bool,
    /// Whether shared parameters are gathered matrix by matrix, as their products want them (XLA); else unit by unit
    /// (FSDP's wrapped modules, DeepSpeed's).
    pub gathers_by_matrix: bool,
    /// Whether an input that was gathered over tensor-parallel ranks is kept for the weight gradient (DTensor);
    /// Megatron keeps the shard and gathers again.
    pub keeps_gathered_inputs: bool,
    /// Whether a stage's output is kept until its backward (DeepSpeed's pipeline engine); Megatron frees it once it
    /// is sent.
    pub keeps_stage_outputs: bool,
    /// How the loss is computed.
    pub loss: LossKernel,
    /// Reserved over allocated bytes at the peak: what the allocator cannot give to later tensors. Published runs that
    /// print both have 1.03–1.09 (SimuMax's layouts on B200, PyTorch 2), so 1.05 where nothing else is known; 1.0 where
    /// a compiler gives buffers their places (XLA); found on all runs of a stack where these are many. Range 1.0–1.4 (pytorch#147179 has 1.4).
    pub allocator: f64,
}

impl Default for MemoryHabits {
    fn default() -> MemoryHabits {
        MemoryHabits {
            parameters_are_masters: false,
            low_precision_gradients: false,
            dummy_weight_gradients: false,
            flat_update: false,
            gathers_by_matrix: false,
            keeps_gathered_inputs: false,
            keeps_stage_outputs: false,
            loss: LossKernel::InPlace,
            allocator: 1.0,
        }
    }
}

/// One fitted constant.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// Which one.
    pub name: ConstantName,
    /// Its value.
    pub value: f64,
}

/// The constants that a stack may fit: never more than these eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConstantName {
    /// Time of a product over the table's.
    Products,
    /// Time of attention over the table's (forward) or the stated ratio (backward).
    Attention,
    /// Bytes that loops move over the bytes that the groups need.
    Loops,
    /// Seconds between kernels that the device waits for the host.
    LaunchGap,
    /// Time of collectives over the table's.
    Collectives,
    /// Slow-down of computation while communication overlaps it.
    Contention,
    /// Seconds of a step that no kernel explains.
    StepOverhead,
    /// Time of the optimizer's loops over their bytes.
    Optimizer,
}

/// A framework.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// Name, as in run files.
    pub name: String,
    /// The stack whose constants it takes where it has none of its own.
    pub parent: Option<String>,
    /// What it stands for.
    pub about: String,
    /// What it does.
    pub habits: Habits,
    /// How well.
    pub constants: Vec<Constant>,
    /// Relative error of a step's time that four of five left-out runs stay within; 0 where not known.
    pub error: f64,
}

impl Stack {
    /// A constant's value, or what it is for a stack that does not state it.
    pub fn value(&self, name: ConstantName, absent: f64) -> f64 {
        self.constants.iter().find(|c| c.name == name).map_or(absent, |c| c.value)
    }
}
