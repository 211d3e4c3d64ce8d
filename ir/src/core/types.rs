//! Element types, mesh axis names, dimensions and tensor types.

use std::fmt;
use std::sync::Arc;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// 32-bit signed integer (token ids, positions, step counts).
    I32,
}

impl DType {
    /// All element types, in the order of their text names.
    pub const ALL: [DType; 4] = [DType::F64, DType::F32, DType::Bf16, DType::I32];

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::Bf16 => 2,
        }
    }

    /// Text name, as in `f32[b=8]`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::I32 => "i32",
        }
    }

    /// Inverse of [`DType::name`].
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// The type in which kernels and composites compute on values of this type, and keep statistics: f32
    /// for bf16, else itself.
    pub fn arithmetic(self) -> DType {
        match self {
            DType::Bf16 => DType::F32,
            other => other,
        }
    }

    /// Whether gradients flow through values of this type.
    pub fn is_float(self) -> bool {
        self != DType::I32
    }

    /// The nearest value of this type (ties to even), widened back to f64.
    pub fn round(self, x: f64) -> f64 {
        match self {
            DType::F64 => x,
            DType::F32 => x as f32 as f64,
            DType::Bf16 => {
                let bits = (x as f32).to_bits();
                if f32::from_bits(bits).is_nan() {
                    return f64::NAN;
                }
                let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) & 0xFFFF_0000;
                f32::from_bits(rounded) as f64
            }
            DType::I32 => x.trunc(),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Name of a mesh axis (`dp`, `tp`) or of a piece of one that was cut (`tp.0`).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Axis(Arc<str>);

impl Axis {
    /// An axis of this name.
    pub fn new(name: &str) -> Axis {
        Axis(Arc::from(name))
    }

    /// The whole name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The name of the uncut axis: `tp` for `tp.0`.
    pub fn root(&self) -> &str {
        self.0.split('.').next().unwrap_or(&self.0)
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Associative, commutative combination of partial results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BinaryMonoid {
    /// Addition, identity 0.
    Sum,
    /// Maximum, identity −∞.
    Max,
}

impl BinaryMonoid {
    /// The neutral element.
    pub fn identity(self) -> f64 {
        match self {
            BinaryMonoid::Sum => 0.0,
            BinaryMonoid::Max => f64::NEG_INFINITY,
        }
    }

    /// Combine two values. NaN wins, so that a broken value is never hidden.
    pub fn combine(self, a: f64, b: f64) -> f64 {
        match self {
            BinaryMonoid::Sum => a + b,
            BinaryMonoid::Max if a.is_nan() || b.is_nan() => f64::NAN,
            BinaryMonoid::Max => a.max(b),
        }
    }

    /// Text name: `sum` or `max`.
    pub fn name(self) -> &'static str {
        match self {
            BinaryMonoid::Sum => "sum",
            BinaryMonoid::Max => "max",
        }
    }
}

/// One dimension of a tensor type: a name, the *global* size, and the mesh axes that split it,
/// major to minor. Without axes the dimension is whole on every rank.
///
/// Every rank holds ⌈n/k⌉ entries of a dimension split k ways; nested splits cut the padded chunk
/// (see [`crate::mesh::Mesh::local_size`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// Name, unique within the type.
    pub name: String,
    /// Global number of entries.
    pub size: usize,
    /// Axes that split the dimension, major to minor.
    pub axes: Vec<Axis>,
}

impl Dim {
    /// A whole dimension.
    pub fn new(name: impl Into<String>, size: usize) -> Dim {
        Dim { name: name.into(), size, axes: Vec::new() }
    }
}

/// Axes over which a value is partial: the value is the monoid's combination over these axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Partial {
    /// How the parts combine.
    pub monoid: BinaryMonoid,
    /// Over which axes, in mesh order.
    pub axes: Vec<Axis>,
}

/// Type of a value: element type, dimensions with their placement, and partial axes. A type without
/// axes is global (or replicated, in a local function); the *state* of a value is the axes part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first (row-major storage).
    pub dims: Vec<Dim>,
    /// Unreduced axes, if any.
    pub partial: Option<Partial>,
}

impl Type {
    /// A global type from names and sizes.
    pub fn new(dtype: DType, dims: &[(&str, usize)]) -> Type {
        Type { dtype, dims: dims.iter().map(|(n, s)| Dim::new(*n, *s)).collect(), partial: None }
    }

    /// Global sizes.
    pub fn sizes(&self) -> Vec<usize> {
        self.dims.iter().map(|d| d.size).collect()
    }

    /// Global number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().map(|d| d.size).product()
    }

    /// The same type without any placement.
    pub fn global(&self) -> Type {
        let dims = self.dims.iter().map(|d| Dim::new(d.name.clone(), d.size)).collect();
        Type { dtype: self.dtype, dims, partial: None }
    }

    /// Position of the dimension of this name.
    pub fn dim(&self, name: &str) -> Option<usize> {
        self.dims.iter().position(|d| d.name == name)
    }

    /// Same element type and global sizes, whatever the names and the placement.
    pub fn same_shape(&self, other: &Type) -> bool {
        self.dtype == other.dtype && self.sizes() == other.sizes()
    }

    /// Same placement (dimension axes and partial axes), whatever the names.
    pub fn same_state(&self, other: &Type) -> bool {
        self.partial == other.partial
            && self.dims.len() == other.dims.len()
            && self.dims.iter().zip(&other.dims).all(|(a, b)| a.axes == b.axes)
    }

    /// Axes over which the value is partial (empty when it is not).
    pub fn partial_axes(&self) -> &[Axis] {
        self.partial.as_ref().map_or(&[], |p| &p.axes)
    }

    /// Every axis that the state uses, split or partial.
    pub fn used_axes(&self) -> impl Iterator<Item = &Axis> {
        self.dims.iter().flat_map(|d| &d.axes).chain(self.partial_axes())
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.dims.iter().enumerate() {
            write!(f, "{}{}={}", if i > 0 { ", " } else { "" }, d.name, d.size)?;
            write_axes(f, &d.axes)?;
        }
        f.write_str("]")?;
        match &self.partial {
            Some(p) => write!(f, " partial({}: {})", p.monoid.name(), join_axes(&p.axes)),
            None => Ok(()),
        }
    }
}

fn write_axes(f: &mut fmt::Formatter<'_>, axes: &[Axis]) -> fmt::Result {
    if axes.is_empty() {
        return Ok(());
    }
    write!(f, "@{}", join_axes(axes))
}

/// `dp·fsdp`: axes joined the way types and byte counts print them.
pub(crate) fn join_axes(axes: &[Axis]) -> String {
    axes.iter().map(Axis::name).collect::<Vec<_>>().join("·")
}
