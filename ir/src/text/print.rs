//! The printer.

use crate::core::{Attr, Attrs, Backward, Function, Module, Node, NodeId, ParamOf, Strategy, Type, ValueId};
use crate::mesh::Mesh;
use crate::verify::join_axes;
use std::collections::HashMap;
use std::fmt::Write;

/// A header longer than this takes one line per parameter.
const WIDTH: usize = 110;

/// Prints a module.
pub fn print(module: &Module) -> String {
    let mut out = mesh_line(&module.mesh);
    for (i, function) in module.functions.iter().enumerate() {
        if i > 0 || !out.is_empty() {
            out.push('\n');
        }
        write_function(&mut out, function);
    }
    if !module.entry.is_empty() {
        let _ = writeln!(out, "\nentry @{}", module.entry);
    }
    out
}

/// Prints one function, after the line of its mesh if that has axes.
pub fn print_function(function: &Function, mesh: &Mesh) -> String {
    let mut out = mesh_line(mesh);
    write_function(&mut out, function);
    out
}

/// Prints one node on a line of its own, every size given.
pub fn print_node(function: &Function, node: NodeId) -> String {
    match function.nodes.get(node.0 as usize) {
        Some(node) => node_text(function, node, &mut Sizes::default()),
        None => format!("; node {} does not exist", node.0),
    }
}

fn mesh_line(mesh: &Mesh) -> String {
    if mesh.axes.is_empty() {
        String::new()
    } else {
        format!("mesh @m = {mesh}\n")
    }
}

fn write_function(out: &mut String, f: &Function) {
    let mut sizes = Sizes::default();
    let params: Vec<String> = f
        .params
        .iter()
        .map(|p| {
            let kind = if p.trainable { "param " } else { "" };
            format!("{kind}{}: {}", value_name(f, p.value), sizes.value(f, p.value))
        })
        .collect();
    let results: Vec<String> = f.results.iter().map(|r| sizes.value(f, *r)).collect();
    let mut tail = format!(") -> ({})", results.join(", "));
    if let Some(b) = &f.backward {
        tail.push_str(&backward_text(b));
    }
    let long = f.name.len() + tail.len() + params.iter().map(|p| p.len() + 2).sum::<usize>() > WIDTH;
    if long && !params.is_empty() {
        let _ = writeln!(out, "func @{}(\n    {}\n{tail} {{", f.name, params.join(",\n    "));
    } else {
        let _ = writeln!(out, "func @{}({}{tail} {{", f.name, params.join(", "));
    }
    for node in &f.nodes {
        let _ = writeln!(out, "  {}", node_text(f, node, &mut sizes));
    }
    let results = names(f, &f.results);
    let _ = writeln!(out, "  return{}{results}\n}}", if results.is_empty() { "" } else { " " });
}

fn backward_text(b: &Backward) -> String {
    let params: Vec<String> = b
        .params
        .iter()
        .map(|p| match p {
            ParamOf::Param(i) => format!("p{i}"),
            ParamOf::Result(i) => format!("r{i}"),
            ParamOf::Cotangent(i) => format!("c{i}"),
        })
        .collect();
    let results: Vec<String> = b.results.iter().map(usize::to_string).collect();
    format!(" backward of @{} ({}) -> ({})", b.of, params.join(", "), results.join(", "))
}

fn node_text(f: &Function, node: &Node, sizes: &mut Sizes) -> String {
    let mut out = String::new();
    if !node.results.is_empty() {
        let _ = write!(out, "{} = ", names(f, &node.results));
    }
    out.push_str(node.op.name);
    match &node.callee {
        Some(callee) => {
            let _ = write!(out, " @{callee}({})", names(f, &node.inputs));
        }
        None if node.inputs.is_empty() => {}
        None => {
            let _ = write!(out, " {}", names(f, &node.inputs));
        }
    }
    write_attrs(&mut out, &node.attrs);
    if !node.results.is_empty() {
        let types: Vec<String> = node.results.iter().map(|r| sizes.value(f, *r)).collect();
        let _ = write!(out, " : {}", types.join(", "));
    }
    match &node.strategy {
        Strategy::Follow => out.push_str(" @ follow"),
        Strategy::Axes(axes) if !axes.is_empty() => {
            let axes: Vec<String> = axes.iter().map(|(a, factor)| format!("{a}: {factor}")).collect();
            let _ = write!(out, " @ {{{}}}", axes.join(", "));
        }
        Strategy::None | Strategy::Axes(_) => {}
    }
    if let Some(of) = &node.of {
        let _ = write!(out, " of %{of}");
    }
    out
}

fn names(f: &Function, values: &[ValueId]) -> String {
    values.iter().map(|v| value_name(f, *v)).collect::<Vec<_>>().join(", ")
}

/// `%name`. The verifier prints broken functions, so an index may be out of range.
fn value_name(f: &Function, v: ValueId) -> String {
    f.values.get(v.0 as usize).map_or(format!("%?{}", v.0), |value| format!("%{}", value.name))
}

fn write_attrs(out: &mut String, attrs: &Attrs) {
    if !attrs.0.is_empty() {
        let attrs: Vec<String> = attrs.0.iter().map(|(n, a)| format!("{n}={}", attr_text(a))).collect();
        let _ = write!(out, " {{{}}}", attrs.join(", "));
    }
}

fn attr_text(attr: &Attr) -> String {
    match attr {
        Attr::Int(v) => v.to_string(),
        Attr::Float(v) => float_text(v),
        Attr::Str(v) => quote(v),
        Attr::Ints(v) => format!("[{}]", v.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")),
        Attr::Floats(v) => format!("[{}]", v.iter().map(float_text).collect::<Vec<_>>().join(", ")),
    }
}

/// The shortest text that reads back as the same number, never that of an integer.
fn float_text(v: &f64) -> String {
    if v.is_nan() {
        "nan".to_string()
    } else {
        format!("{v:?}")
    }
}

fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The size last printed for each dimension name, as the parser tracks it.
#[derive(Default)]
struct Sizes(HashMap<String, usize>);

impl Sizes {
    fn value(&mut self, f: &Function, v: ValueId) -> String {
        f.values.get(v.0 as usize).map_or("?".to_string(), |value| self.ty(&value.ty))
    }

    fn ty(&mut self, ty: &Type) -> String {
        let dims: Vec<String> = ty
            .dims
            .iter()
            .map(|d| {
                let known = self.0.insert(d.name.clone(), d.size) == Some(d.size);
                let size = if known { String::new() } else { format!("={}", d.size) };
                let at = if d.axes.is_empty() { "" } else { "@" };
                format!("{}{size}{at}{}", d.name, join_axes(&d.axes))
            })
            .collect();
        let partial = match &ty.partial {
            Some(p) => format!(" partial({}: {})", p.monoid.name(), join_axes(&p.axes)),
            None => String::new(),
        };
        format!("{}[{}]{partial}", ty.dtype, dims.join(", "))
    }
}
