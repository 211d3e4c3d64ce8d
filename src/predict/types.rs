//! What is predicted and what comes out: plain data.
//!
//! A [`Layout`] says how a training step is spread over devices, a [`Prediction`] what that step takes.

use autoshard_cost::schedule::Kind;
use std::fmt;

/// How a step is spread over devices: degrees as the field prints them (world = tp·cp·pp·dp).
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Ranks that split heads, MLP and vocabulary.
    pub tp: u64,
    /// Ranks that split positions.
    pub cp: u64,
    /// Pipeline stages.
    pub pp: u64,
    /// Ranks that split experts; 1 without experts.
    pub ep: u64,
    /// Ranks that split one expert's matrices.
    pub etp: u64,
    /// The whole data-parallel degree, sharded or not.
    pub dp: u64,
    /// Model chunks of a pipeline rank; 1 is no interleaving.
    pub vpp: u64,
    /// What the data ranks share: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.
    pub zero: u8,
    /// Whether FSDP keeps gathered parameters until the backward pass (reshard_after_forward=false).
    pub keep: bool,
    /// Ranks that share one copy of what `zero` shards; 1 with zero 0.
    pub shard_group: u64,
    /// Whether positions are split over tp between its regions (sequence parallelism).
    pub sp: bool,
    /// How attention sees the positions of other cp ranks.
    pub cp_method: CpMethod,
    /// Sequences of one micro-batch and data rank.
    pub micro_batch: u64,
    /// Micro-batches of a step and data rank.
    pub microbatches: u64,
    /// What the backward computes again.
    pub recompute: Recompute,
    /// Order of forwards and backwards in a pipeline.
    pub schedule: Schedule,
    /// Which ranks are neighbours; `None` is as the stack lays them out.
    pub order: Option<Order>,
}

impl Layout {
    /// Devices that it uses: tp·cp·pp·dp.
    pub fn devices(&self) -> u64 {
        [self.cp, self.pp, self.dp].iter().fold(self.tp, |n, d| n.saturating_mul(*d))
    }

    /// Sequences of a step: dp·micro_batch·microbatches.
    pub fn global_batch(&self) -> u64 {
        self.dp.saturating_mul(self.micro_batch).saturating_mul(self.microbatches)
    }

    /// Data ranks of one expert shard, edp: tp·cp·dp = etp·ep·edp. `None` where it does not divide.
    pub fn expert_data_ranks(&self) -> Option<u64> {
        let ranks = self.tp.saturating_mul(self.cp).saturating_mul(self.dp);
        let split = self.etp.saturating_mul(self.ep);
        (split > 0 && ranks.is_multiple_of(split)).then(|| ranks / split)
    }
}

/// A closed set of words with one spelling each.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// Its spelling on the command line and in files.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// The one that is spelt so.
            pub fn from_name(name: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|w| w.name() == name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

words! {
    /// What a rank's place in the world counts: the axes of a layout that the order of ranks is about.
    Role {
        /// Ranks that split heads.
        Tp = "tp",
        /// Ranks that split positions.
        Cp = "cp",
        /// Data ranks: those of a shard group, then its replicas.
        Dp = "dp",
        /// Stages.
        Pp = "pp",
    }
}

/// Axes from the innermost, whose ranks are neighbours, to the outermost. Axes of one rank may stand anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Order(pub [Role; 4]);

impl Order {
    /// Stages outermost: what talks least and waits least (Megatron's `tp-cp-ep-dp-pp`).
    pub const STAGES_OUTSIDE: Order = Order([Role::Tp, Role::Cp, Role::Dp, Role::Pp]);
    /// Stages inside of data ranks (Megatron's `--use-tp-pp-dp-mapping`; Llama 3).
    pub const STAGES_INSIDE: Order = Order([Role::Tp, Role::Cp, Role::Pp, Role::Dp]);

    /// A stack's own.
    pub fn of(stages_inside: bool) -> Order {
        match stages_inside {
            true => Order::STAGES_INSIDE,
            false => Order::STAGES_OUTSIDE,
        }
    }

    /// The order that is spelt so, as in `tp+cp+dp+pp`; axes that are left out stand outermost, in the usual order.
    pub fn from_name(text: &str) -> Option<Order> {
        let mut roles = Vec::with_capacity(4);
        for word in text.split('+') {
            let role = Role::from_name(word.trim()).filter(|r| !roles.contains(r))?;
            roles.push(role);
        }
        for role in Order::STAGES_OUTSIDE.0 {
            if !roles.contains(&role) {
                roles.push(role);
            }
        }
        roles.try_into().ok().map(Order)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(&self.0.map(Role::name).join("+"))
    }
}

words! {
    /// How attention sees the positions of other context-parallel ranks.
    CpMethod {
        /// Keys and values travel round a ring.
        Ring = "ring",
        /// Heads are split instead of positions, by all-to-all.
        Ulysses = "ulysses",
        /// Keys and values are gathered.
        AllGather = "allgather",
    }
}

words! {
    /// What selective recomputation computes again; the words of `norm.recompute.modules` in run files.
    Module {
        /// Attention's scores, softmax and products.
        CoreAttn = "core_attn",
        /// The up-projections of multi-head latent attention.
        MlaUpProj = "mla_up_proj",
        /// The norms.
        LayerNorm = "layernorm",
        /// The experts' activation function.
        MoeAct = "moe_act",
        /// The dense MLP.
        Mlp = "mlp",
        /// The expert layer.
        Moe = "moe",
        /// torchtitan's choice by operation: every other product is saved.
        OpSac = "op_sac",
        /// MaxText's `minimal`: the products are saved.
        RematMinimal = "remat_minimal",
        /// MaxText's `qkv_proj_offloaded`: projections go to the host.
        RematQkvProjOffloaded = "remat_qkv_proj_offloaded",
    }
}

words! {
    /// Order of forwards and backwards in a pipeline.
    Schedule {
        /// One micro-batch at a time.
        Naive = "naive",
        /// All forwards, then all backwards.
        GPipe = "gpipe",
        /// One forward, one backward.
        OneFOneB = "1f1b",
        /// 1F1B over several chunks a rank.
        Interleaved = "interleaved",
        /// Zero bubble, with the memory of 1F1B.
        ZbH1 = "zb-h1",
        /// Zero bubble, two chunks a rank in a V.
        ZbV = "zb-v",
        /// Both directions at once, in a V.
        DualPipeV = "dualpipe-v",
    }
}

impl Schedule {
    /// How it is played.
    pub fn kind(self) -> Kind {
        match self {
            Schedule::Naive => Kind::Naive,
            Schedule::GPipe => Kind::GPipe,
            Schedule::OneFOneB => Kind::OneForwardOneBackward,
            Schedule::Interleaved => Kind::Interleaved,
            Schedule::ZbH1 => Kind::ZeroBubbleH1,
            Schedule::ZbV => Kind::ZeroBubbleV,
            Schedule::DualPipeV => Kind::DualPipeV,
        }
    }
}

words! {
    /// The number format of products, with what surrounds it.
    Precision {
        /// fp32 throughout.
        F32 = "f32",
        /// IEEE half with loss scaling.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
        /// 8-bit products with any scaling but MX.
        Fp8 = "fp8",
        /// 8-bit products with MX block scales.
        Mxfp8 = "mxfp8",
        /// 4-bit products with NVFP4 block scales.
        Nvfp4 = "nvfp4",
    }
}

impl Precision {
    /// The format whose peak rate counts for MFU.
    pub fn format(self) -> autoshard_cost::device::Format {
        use autoshard_cost::device::Format;
        match self {
            Precision::F32 => Format::Fp32,
            Precision::F16 => Format::Fp16,
            Precision::Bf16 => Format::Bf16,
            Precision::Fp8 | Precision::Mxfp8 => Format::Fp8,
            Precision::Nvfp4 => Format::Fp4,
        }
    }
}

/// What the backward computes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Nothing.
    None,
    /// These modules, in every layer.
    Selective(Vec<Module>),
    /// Every layer, from its input.
    Full,
    /// Whole layers, in so many of them.
    Layers(u64),
    /// Whole layers, in so many of each pipeline stage.
    Stages(Vec<u64>),
}

impl Recompute {
    /// Share of a stage's layers that are computed again, given the layers of all stages. Where only a number of
    /// layers of the model is known, stages have equal shares of it.
    pub fn share(&self, stage: usize, layers: &[u64]) -> f64 {
        let of = |some: u64, all: u64| if all == 0 { 1.0 } else { (some as f64 / all as f64).min(1.0) };
        match self {
            Recompute::None | Recompute::Selective(_) | Recompute::Full => 1.0,
            Recompute::Layers(n) => of(*n, layers.iter().sum()),
            Recompute::Stages(counts) => match (counts.get(stage), layers.get(stage)) {
                (Some(n), Some(all)) => of(*n, *all),
                _ => 0.0,
            },
        }
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Recompute::None => f.pad("none"),
            Recompute::Full => f.pad("full"),
            Recompute::Layers(n) => f.pad(&format!("layers:{n}")),
            Recompute::Stages(counts) => {
                let counts: Vec<String> = counts.iter().map(u64::to_string).collect();
                f.pad(&format!("stages:{}", counts.join("+")))
            }
            Recompute::Selective(modules) => {
                let names: Vec<&str> = modules.iter().map(|m| m.name()).collect();
                f.pad(&format!("selective:{}", names.join("+")))
            }
        }
    }
}

/// What a part of a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PartKind {
    /// Matrix products.
    Products,
    /// Attention's kernels.
    Attention,
    /// Loops over elements: norms, activations, losses.
    Loops,
    /// The device waits for the host between kernels.
    LaunchGaps,
    /// A collective between ranks.
    Collective,
    /// The optimizer's loops.
    Optimizer,
    /// Pipeline ranks wait for each other.
    Bubble,
    /// What no kernel explains.
    Overhead,
}

/// One entry of where a step's time goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name, such as `products` or `tp all-reduce`.
    pub name: String,
    /// What it is.
    pub kind: PartKind,
    /// Seconds of the step on the slowest device.
    pub seconds: f64,
    /// Whether the step is longer for it; the exposed parts add up to the step. What is hidden runs beside
    /// other parts.
    pub exposed: bool,
    /// Payload bytes of a collective, bytes moved by a loop; 0 where not counted.
    pub bytes: f64,
    /// The outermost tier that a collective crosses; empty elsewhere.
    pub tier: String,
}

/// Where a step's time goes; a collective that is partly hidden has two entries of one name.
pub type Parts = Vec<Part>;

/// What a step takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Lower end of the range that is expected of the measurement, s.
    pub low: f64,
    /// Upper end, s.
    pub high: f64,
    /// Where the time goes.
    pub parts: Parts,
    /// FLOPs of a step on all devices: forward and backward products, causal attention counted once.
    pub model_flops_causal: f64,
    /// The same with the whole square of attention.
    pub model_flops_full: f64,
    /// FLOPs that the devices execute, recomputation included.
    pub hardware_flops: f64,
    /// By pipeline rank, first to last; one without a pipeline.
    pub stages: Vec<Stage>,
    /// What to know about it: extrapolated, a related device's table, a parent's constants.
    pub marks: Vec<String>,
}

/// One pipeline rank of a prediction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stage {
    /// Decoder layers of all its chunks.
    pub layers: u64,
    /// Seconds of a step in which it computes, messages that kernels wait for included.
    pub busy: f64,
    /// Its memory; `None` where that is not predicted.
    pub memory: Option<Memory>,
}

/// Peak memory of a device, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// What takes it; the parts add up to `device`.
    pub parts: Vec<MemoryPart>,
    /// Bytes in tensors.
    pub allocated: f64,
    /// Bytes that the allocator holds: what is allocated, and what it cannot give back.
    pub reserved: f64,
    /// Bytes of the device: what is reserved, and what is outside of the allocator.
    pub device: f64,
}

/// One entry of what takes memory.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPart {
    /// Name, such as `optimizer` or `saved activations`.
    pub name: &'static str,
    /// Bytes at the peak.
    pub bytes: f64,
}

impl Prediction {
    /// Seconds of parts that are of a kind and exposed.
    pub fn exposed(&self, kind: PartKind) -> f64 {
        self.parts.iter().filter(|p| p.exposed && p.kind == kind).map(|p| p.seconds).sum()
    }

    /// The stage that needs most memory, and how much.
    pub fn fullest(&self) -> Option<(usize, &Memory)> {
        let all = self.stages.iter().enumerate().filter_map(|(i, s)| Some((i, s.memory.as_ref()?)));
        all.max_by(|a, b| a.1.device.total_cmp(&b.1.device))
    }

    /// Share of `peak` FLOP/s a device that `flops` a step make.
    pub fn utilisation(&self, flops: f64, devices: u64, peak: f64) -> f64 {
        flops / (self.step_seconds * devices as f64 * peak)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back() {
        for s in Schedule::ALL {
            assert_eq!(Schedule::from_name(s.name()), Some(*s));
        }
        for m in Module::ALL {
            assert_eq!(Module::from_name(m.name()), Some(*m));
        }
        assert_eq!(Precision::from_name("bf32"), None);
        for order in [Order::STAGES_OUTSIDE, Order::STAGES_INSIDE] {
            assert_eq!(Order::from_name(&order.to_string()), Some(order));
        }
        assert_eq!(Order::from_name("pp"), Order::from_name("pp+tp+cp+dp"));
        assert_eq!((Order::from_name("tp+tp"), Order::from_name("ep")), (None, None));
        assert_eq!(Recompute::Stages(vec![2, 1]).to_string(), "stages:2+1");
        assert_eq!(Recompute::Selective(vec![Module::CoreAttn, Module::Mlp]).to_string(), "selective:core_attn+mlp");
    }
}
