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

/// What a framework does, as opposed to how well.
#[derive(Clone, Debug, PartialEq)]
pub struct Habits {
    /// How loops become kernels.
    pub fusion: Fusion,
    /// Operations that are one library kernel even where nothing is fused, by name.
    pub one_kernel: Vec<String>,
    /// Whether attention is one kernel (flash) or products and a softmax over all scores.
    pub flash_attention: bool,
    /// Whether the cross-entropy reads the logits once.
    pub fused_loss: bool,
    /// Whether products that share an input (q, k, v; gate, up) are one.
    pub joint_products: bool,
    /// Whether weight gradients are added to fp32 main gradients by the product that makes them.
    pub accumulate_fp32: bool,
    /// Whether the backward of a tensor-parallel product gathers its input and reduces its cotangent beside
    /// the other product (Megatron's asynchronous communication).
    pub async_tensor_backward: bool,
    /// Whether the next unit's parameters are gathered while this one computes.
    pub prefetch: bool,
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
}
