//! What an operation is: the declaration from which shapes, sharding rules, the interpreter,
//! gradients and loop kernels follow.

use super::{Attrs, BinaryMonoid, BuildError, Builder, DType, NodeId, Type, ValueId};

/// Declaration of one operation. An operation without a rule, a reference and a gradient (or the
/// reason why it has none) cannot be written down.
pub struct OpDef {
    /// Name in the text form.
    pub name: &'static str,
    /// One line for the reference page.
    pub doc: &'static str,
    /// Accepted attributes.
    pub attrs: &'static [AttrDef],
    /// Kernel template that executes it.
    pub template: Template,
    /// What it computes.
    pub semantics: Semantics,
    /// How cotangents flow back.
    pub gradient: Gradient,
}

impl std::fmt::Debug for OpDef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for OpDef {
    fn eq(&self, other: &OpDef) -> bool {
        self.name == other.name
    }
}

/// An attribute that an operation accepts.
#[derive(Clone, Copy, Debug)]
pub struct AttrDef {
    /// Name.
    pub name: &'static str,
    /// Kind of value.
    pub kind: AttrKind,
    /// Whether the node is an error without it.
    pub required: bool,
}

/// Kind of an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrKind {
    /// Integer.
    Int,
    /// Real number.
    Float,
    /// Text.
    Str,
    /// List of integers.
    Ints,
    /// List of real numbers.
    Floats,
}

/// The closed set of kernel templates. Code generation and runtime match on these, never on
/// operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Template {
    /// Loops over rows with vector work along one lane dimension.
    Loop,
    /// Products: contraction of two operands.
    Gemm,
    /// Blocked online-softmax attention, forward.
    Attention,
    /// Its backward.
    AttentionBackward,
    /// Rows of a table by index.
    Gather,
    /// Rows added to a table by index.
    Scatter,
    /// Order: the largest entries, places in a queue.
    Sort,
    /// Copies of boxes: reshape, slice, concat, pad.
    View,
    /// Moves data between ranks.
    Collective,
    /// Calls another function.
    Call,
}

/// What an operation computes.
pub enum Semantics {
    /// One tensor expression: the rule holds the factors, their maps and the scalar body.
    Primitive(RuleFn),
    /// A function of primitives, as IR text. The header of the text is the pattern that operands
    /// are matched with; see [`crate::ops::compose`].
    Composite(&'static str),
    /// The identity on global tensors, a change of state on shards.
    Collective,
    /// A call of a function of the module.
    Call,
}

/// Computes the rule of a primitive from its operands' types and attributes.
pub type RuleFn = fn(&[&Type], &Attrs) -> Result<Rule, String>;

/// Index of a factor in a [`Rule`].
pub type FactorId = usize;

/// A named index range of a tensor expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factor {
    /// Name, unique within the rule.
    pub name: String,
    /// Number of values.
    pub size: usize,
    /// What splitting it means.
    pub kind: FactorKind,
}

/// What happens when ranks each take a part of a factor's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorKind {
    /// Results that carry it are split; results that lack it are reduced by the monoid.
    Free(BinaryMonoid),
    /// Something inside the composite becomes partial and is combined there: the body must be
    /// expanded before partition.
    Inner,
    /// It cannot be split.
    Whole,
}

/// How one dimension of an operand or result is indexed: the mixed-radix number of `factors`
/// (major to minor) plus `offset`. An operand index outside the dimension reads `fill`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DimMap {
    /// Factors, major to minor.
    pub factors: Vec<FactorId>,
    /// Added to the index (slices and pads).
    pub offset: isize,
}

impl DimMap {
    /// Indexed by one factor.
    pub fn factor(f: FactorId) -> DimMap {
        DimMap { factors: vec![f], offset: 0 }
    }
}

/// Scalar body of a primitive: the value at one point of the factor space.
#[derive(Clone, Debug, PartialEq)]
pub enum ScalarBody {
    /// A scalar function of the operands.
    Map(Scalar),
    /// The product of the operands.
    Product,
    /// The sum of the operands, where an operand outside its range reads as `0`; a lone operand
    /// outside its range reads as the value held here (concat and pad).
    Sum(f64),
    /// The global index of factor 0.
    Iota,
    /// A constant per index of factor 0 (or one constant, without factors).
    Values(Vec<f64>),
    /// Counter-based random number in (−1, 1): key, counted by the global row-major index of the
    /// result (SplitMix64 in counter form).
    Random(u64),
    /// `table[ids[..], d]`: operand 0's first dimension is indexed by the values of operand 1.
    Gather,
    /// Rows of operand 0 added at the indices of operand 1.
    ScatterAdd,
    /// Where the largest entries of operand 0's last dimension stand, by their rank.
    TopK,
    /// The slot of each choice at its expert, which is the factor that results lack; −1 for all others and
    /// beyond the capacity.
    Slots {
        /// Slots of an expert.
        capacity: usize,
    },
    /// Rows of operand 0, times operand 2 where there is one, added at the slots of operand 1: a slot is the
    /// index of the result's first two dimensions as one number, −1 is nowhere.
    Dispatch,
    /// Rows of operand 0 at the slots of operand 1 times operand 2, added up.
    Combine,
}

/// In which operands a primitive is linear, so that partial sums may pass through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linearity {
    /// In none.
    None,
    /// In all of them together (sums, slices, transposes): all must be partial over the same axes.
    Joint,
    /// In each by itself (products): one may be partial.
    Each,
    /// In the first operand alone (gathers by index, masks).
    First,
}

/// The solved tensor expression of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Index ranges.
    pub factors: Vec<Factor>,
    /// Per operand, per dimension: how it is indexed. An empty map is a dimension that cannot be
    /// split.
    pub operands: Vec<Vec<DimMap>>,
    /// The same for results.
    pub results: Vec<Vec<DimMap>>,
    /// Result types (global).
    pub result_types: Vec<Type>,
    /// Scalar body; `None` for composites and collectives.
    pub body: Option<ScalarBody>,
    /// Linearity.
    pub linear: Linearity,
}

impl Rule {
    /// Position of the factor of this name.
    pub fn factor(&self, name: &str) -> Option<FactorId> {
        self.factors.iter().position(|f| f.name == name)
    }

    /// The monoid that combines the factors missing from results.
    pub fn monoid(&self, f: FactorId) -> BinaryMonoid {
        match self.factors[f].kind {
            FactorKind::Free(m) => m,
            FactorKind::Inner | FactorKind::Whole => BinaryMonoid::Sum,
        }
    }

    /// Names of the factors that may be split without expanding a body.
    pub fn free_factors(&self) -> impl Iterator<Item = &Factor> {
        self.factors.iter().filter(|f| matches!(f.kind, FactorKind::Free(_)))
    }
}

/// How cotangents flow back through an operation.
pub enum Gradient {
    /// Written once, generically, from the maps and the scalar derivative.
    Derived(GradientFn),
    /// A hand-written backward composite: `op` takes the named values (`operand` names and result
    /// names of the body's header, `d.NAME` for a result's cotangent) and returns the cotangents of
    /// the operands listed in `wrt`.
    Backward {
        /// Name of the backward operation.
        op: &'static str,
        /// Its operands: `0..` operands, `r0..` results, `d0..` cotangents of results.
        args: &'static [GradArg],
        /// Operands that its results are cotangents of.
        wrt: &'static [usize],
        /// Attributes of the forward node that it takes.
        attrs: &'static [&'static str],
    },
    /// By inlining the body and differentiating that.
    Body,
    /// No gradient, and why.
    None(&'static str),
}

/// An operand of a hand-written backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradArg {
    /// Operand i of the forward node.
    Operand(usize),
    /// Result i of the forward node.
    Result(usize),
    /// Cotangent of result i.
    Cotangent(usize),
}

/// Emits the nodes that compute the cotangents of a node's operands. The builder's function holds
/// the node; `cotangents` are those of its results (`None`: zero). Returns one entry per operand.
pub type GradientFn = fn(&mut Builder, NodeId, &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>, BuildError>;

/// Scalar functions: the closed set that the interpreter, the CPU's vector machine and code
/// generation execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Scalar {
    Neg,
    Exp,
    Log,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Sin,
    Cos,
    Tanh,
    Sigmoid,
    Abs,
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    Pow,
    Less,
    Equal,
    Select,
    Affine { mul: Bits, add: Bits },
    Identity,
}

/// A real number compared by its bits, so that scalar bodies are `Eq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bits(u64);

impl Bits {
    /// From a number.
    pub fn new(x: f64) -> Bits {
        Bits(x.to_bits())
    }

    /// Back to the number.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl Scalar {
    /// Number of arguments.
    pub fn arity(self) -> usize {
        use Scalar::*;
        match self {
            Neg
            | Exp
            | Log
            | Sqrt
            | Rsqrt
            | Reciprocal
            | Sin
            | Cos
            | Tanh
            | Sigmoid
            | Abs
            | Affine { .. }
            | Identity => 1,
            Add | Sub | Mul | Div | Max | Min | Pow | Less | Equal => 2,
            Select => 3,
        }
    }

    /// The value at f64; the caller rounds to the value's type.
    pub fn eval(self, a: &[f64]) -> f64 {
        use Scalar::*;
        match self {
            Neg => -a[0],
            Exp => a[0].exp(),
            Log => a[0].ln(),
            Sqrt => a[0].sqrt(),
            Rsqrt => 1.0 / a[0].sqrt(),
            Reciprocal => 1.0 / a[0],
            Sin => a[0].sin(),
            Cos => a[0].cos(),
            Tanh => a[0].tanh(),
            Sigmoid => 1.0 / (1.0 + (-a[0]).exp()),
            Abs => a[0].abs(),
            Add => a[0] + a[1],
            Sub => a[0] - a[1],
            Mul => a[0] * a[1],
            Div => a[0] / a[1],
            Max => BinaryMonoid::Max.combine(a[0], a[1]),
            Min => -BinaryMonoid::Max.combine(-a[0], -a[1]),
            Pow => a[0].powf(a[1]),
            Less => f64::from(a[0] < a[1]),
            Equal => f64::from(a[0] == a[1]),
            Select => {
                if a[0] != 0.0 {
                    a[1]
                } else {
                    a[2]
                }
            }
            Affine { mul, add } => a[0] * mul.get() + add.get(),
            Identity => a[0],
        }
    }
}

/// Reads a `dtype` attribute.
pub(crate) fn dtype_attr(attrs: &Attrs) -> Result<DType, String> {
    let name = attrs.get_text("dtype")?;
    DType::from_name(name).ok_or_else(|| {
        let known: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
        format!("unknown element type {name:?}; known: {}", known.join(", "))
    })
}
