//! The vectors of `tests/vectors` as one-node functions. Each test takes what it needs.
#![allow(dead_code)]

use autoshard_ir::core::{Attr, AttrKind, Attrs, BuildError, Builder, DType, Function, Module, OpDef, Semantics, Type};
use autoshard_ir::interp::{self, Tensor};
use autoshard_ir::ops;
use serde_json::Value as Json;

const VECTORS: &str = include_str!("../../../tests/vectors/vectors.json");

/// What needs no numpy to be known.
const SOURCES: &str = r#"[
{"op": "iota", "attrs": {"dim": "s", "size": 5}, "inputs": [], "note": "i32",
 "outputs": [{"dtype": "i32", "dims": [["s", 5]], "data": [0, 1, 2, 3, 4]}]},
{"op": "iota", "attrs": {"dim": "n", "size": 1}, "inputs": [], "note": "f32",
 "outputs": [{"dtype": "f32", "dims": [["n", 1]], "data": [0]}]},
{"op": "constant", "attrs": {"values": [0.5, -2.0, 1e300], "dim": "h"}, "inputs": [], "note": "a list",
 "outputs": [{"dtype": "f64", "dims": [["h", 3]], "data": [0.5, -2.0, 1e300]}]},
{"op": "constant", "attrs": {"values": [0.1]}, "inputs": [], "note": "a scalar, rounded to its type",
 "outputs": [{"dtype": "f32", "dims": [], "data": [0.10000000149011612]}]}
]"#;

/// One node with operands and the results that it must have.
#[derive(Clone, Debug)]
pub struct Case {
    /// Operation.
    pub op: &'static OpDef,
    /// Attributes.
    pub attrs: Attrs,
    /// Operands.
    pub inputs: Vec<Tensor>,
    /// Wanted results.
    pub outputs: Vec<Tensor>,
    /// What it is about.
    pub note: String,
}

impl Case {
    /// Appends the operands as parameters and the node; its results become the function's.
    pub fn build(&self, f: &mut Function) -> Result<(), BuildError> {
        let inputs: Vec<_> =
            self.inputs.iter().enumerate().map(|(i, t)| f.add_param(&format!("x{i}"), t.ty.clone(), false)).collect();
        let results = Builder::new(f).ops(&["y"], self.op.name, &inputs, self.attrs.clone())?;
        f.results.extend(results);
        Ok(())
    }

    /// What the interpreter makes of it.
    pub fn run(&self) -> Vec<Tensor> {
        let mut f = Function::new("f");
        self.build(&mut f).unwrap_or_else(|e| panic!("{self}: {e}"));
        interp::run(&Module::default(), &f, &self.inputs).unwrap_or_else(|e| panic!("{self}: {e}"))
    }

    /// Types of the operands.
    pub fn types(&self) -> Vec<&Type> {
        self.inputs.iter().map(|t| &t.ty).collect()
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let types: Vec<String> = self.types().iter().map(|t| t.to_string()).collect();
        write!(f, "{}({}) {:?} ({})", self.op.name, types.join(", "), self.attrs.0, self.note)
    }
}

/// Operations that compute: all but calls and changes of state.
pub fn computing() -> impl Iterator<Item = &'static OpDef> {
    ops::all().filter(|o| !matches!(o.semantics, Semantics::Call | Semantics::Collective))
}

/// All vectors.
pub fn cases() -> Vec<Case> {
    [VECTORS, SOURCES]
        .into_iter()
        .flat_map(|text| list(&serde_json::from_str(text).unwrap()).iter().map(case).collect::<Vec<_>>())
        .collect()
}

fn list(v: &Json) -> &[Json] {
    v.as_array().unwrap_or_else(|| panic!("{v} is not a list"))
}

fn text(v: &Json) -> &str {
    v.as_str().unwrap_or_else(|| panic!("{v} is not a text"))
}

fn case(v: &Json) -> Case {
    let op = ops::find(text(&v["op"])).unwrap_or_else(|| panic!("unknown operation {}", v["op"]));
    let outputs: Vec<Tensor> = list(&v["outputs"]).iter().map(tensor).collect();
    Case {
        op,
        attrs: attrs(op, &v["attrs"], outputs[0].ty.dtype),
        inputs: list(&v["inputs"]).iter().map(tensor).collect(),
        outputs,
        note: text(&v["note"]).to_string(),
    }
}

/// Attributes as the operation spells them; an element type that the file leaves to the result is
/// written out.
fn attrs(op: &OpDef, given: &Json, dtype: DType) -> Attrs {
    let mut out = Attrs::new();
    for def in op.attrs {
        let value = match given.get(def.name) {
            Some(v) => attr(def.kind, v),
            None if def.name == "dtype" => Attr::Str(dtype.name().to_string()),
            None => continue,
        };
        out = out.with(def.name, value);
    }
    out
}

fn attr(kind: AttrKind, v: &Json) -> Attr {
    let int = |v: &Json| v.as_i64().unwrap();
    let float = |v: &Json| v.as_f64().unwrap();
    match kind {
        AttrKind::Int => Attr::Int(int(v)),
        AttrKind::Float => Attr::Float(float(v)),
        AttrKind::Str if v.is_array() => Attr::Str(list(v).iter().map(text).collect::<Vec<_>>().join(" ")),
        AttrKind::Str => Attr::Str(text(v).to_string()),
        AttrKind::Ints => Attr::Ints(list(v).iter().map(int).collect()),
        AttrKind::Floats => Attr::Floats(list(v).iter().map(float).collect()),
    }
}

fn tensor(v: &Json) -> Tensor {
    let dims: Vec<(&str, usize)> =
        list(&v["dims"]).iter().map(|d| (text(&d[0]), d[1].as_u64().unwrap() as usize)).collect();
    let dtype = DType::from_name(text(&v["dtype"])).unwrap();
    let data: Vec<f64> = list(&v["data"]).iter().map(|x| x.as_f64().unwrap()).collect();
    let ty = Type::new(dtype, &dims);
    assert_eq!(ty.elements(), data.len());
    let tensor = Tensor::new(ty, data.clone());
    assert_eq!(tensor.data, data, "values that {dtype} does not hold");
    tensor
}

/// Panics unless the tensors have one shape and values within `tolerance·(1 + |want|)`.
pub fn assert_close(got: &Tensor, want: &Tensor, tolerance: f64, about: &str) {
    assert!(got.ty.same_shape(&want.ty), "{about}: {} is not {}", got.ty, want.ty);
    if let Some(i) = (0..want.data.len()).find(|i| !close(got.data[*i], want.data[*i], tolerance)) {
        panic!("{about}: element {i} of {} is {}, not {}", want.ty, got.data[i], want.data[i]);
    }
}

/// Whether two numbers are as close as that; equal infinities are.
pub fn close(got: f64, want: f64, tolerance: f64) -> bool {
    got == want || (got - want).abs() <= tolerance * (1.0 + want.abs())
}
