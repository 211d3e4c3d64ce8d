//! The text form: round trips, every error with its place, templates, and a fuzzer.

use autoshard_ir::core::{Attrs, Backward, DType, Dim, ParamOf};
use autoshard_ir::text::{parse, parse_template, print, print_node, template_header, TemplateEnv};
use autoshard_ir::{Attr, Module, NodeId, Strategy};

const LAYER: &str = r#"
mesh @m = [dp: 2, tp.0: 2, tp.1: 2]      ; comments are ignored
func @mlp(%x: f32[b=8, s=4, d=16], param %w: f32[d, f=32]) -> (f32[b, s, d]) {
  %h = einsum %x, %w {spec="b s d, d f -> b s f"} : f32[b, s, f] @ {dp: b, tp.0: f, tp.1: f}
  %y = einsum %h, %w {spec="b s f, d f -> b s d"} : f32[b, s, d] @ {dp: b, tp.0: f, tp.1: f}
  return %y
}

func @block(%x: f32[b=8, s=4, d=16], param %w1: f32[d], param %w: f32[d, f=32]) -> (f32[b, s, d], f32[]) {
  %n = rmsnorm %x, %w1 {eps=1e-5} : f32[b, s, d] @ {dp: b}
  %m = call @mlp(%n, %w) : f32[b, s, d]
  %y = add %x, %m : f32[b, s, d] @ follow
  %z = affine %y {mul=-0.5, add=0.0} : f32[b, s, d] of %y
  %c = constant {values=[1.5], dtype="f32"} : f32[]
  return %z, %c
}

func @block.bwd(%x: f32[b=8], %dy: f32[b]) -> (f32[b]) backward of @block (p0, c1) -> (0) {
  %dx = mul %x, %dy : f32[b] @ {dp: b} of %y
  return %dx
}

entry @block
"#;

const LOCAL: &str = "
mesh @m = [dp: 2, fsdp: 2, tp: 2]
func @f(%x: f32[b=8@dp·fsdp, d=16@tp], param %w: f32[d@tp, f=5]) -> (f32[b@dp·fsdp, f]) {
  %p = einsum %x, %w {spec=\"b d, d f -> b f\"} : f32[b@dp*fsdp, f] partial(sum: tp) @ {dp: b, fsdp: b, tp: d}
  %y = all_reduce %p {axes=\"tp\"} : f32[b@dp·fsdp, f]
  return %y
}
";

fn round_trip(source: &str) -> Module {
    let module = parse(source, "in.shard").unwrap_or_else(|e| panic!("{e}"));
    let text = print(&module);
    let again = parse(&text, "out.shard").unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(module, again, "{text}");
    assert_eq!(text, print(&again));
    module
}

/// Parses a text with one error and returns how it prints.
fn error(source: &str) -> String {
    match parse(source, "t") {
        Ok(_) => panic!("no error in:\n{source}"),
        Err(e) => e.to_string(),
    }
}

/// A function around `body`, whose lines start at line 2.
fn body(body: &str) -> String {
    format!("func @f(%x: f32[b=8, d=16], %i: i32[b]) -> (f32[b, d]) {{\n{body}\n  return %x\n}}\n")
}

#[test]
fn modules_round_trip() {
    let m = round_trip(LAYER);
    assert_eq!(m.functions.len(), 3);
    assert_eq!(m.entry, "block");
    let block = &m.functions[1];
    assert!(block.params[1].trainable && !block.params[0].trainable);
    assert_eq!(block.nodes[2].strategy, Strategy::Follow);
    assert_eq!(block.nodes[3].of.as_deref(), Some("y"));
    assert_eq!(block.nodes[1].callee.as_deref(), Some("mlp"));
    let backward =
        Backward { of: "block".into(), params: vec![ParamOf::Param(0), ParamOf::Cotangent(1)], results: vec![0] };
    assert_eq!(m.functions[2].backward, Some(backward));
    assert_eq!(m.functions[0].nodes[0].strategy.axes().len(), 3);
}

#[test]
fn local_types_round_trip() {
    let m = round_trip(LOCAL);
    let f = &m.functions[0];
    assert_eq!(f.ty(f.nodes[0].results[0]).partial_axes().len(), 1);
    let node = r#"%p = einsum %x, %w {spec="b d, d f -> b f"} : f32[b=8@dp·fsdp, f=5] partial(sum: tp) @ {dp: b, fsdp: b, tp: d}"#;
    assert_eq!(print_node(f, NodeId(0)), node);
}

#[test]
fn small_texts_round_trip() {
    round_trip("func @f() -> () {\n  return\n}");
    round_trip("func @f(%x: f32[]) -> (f32[]) { return %x } entry @f".replace(" entry", "\nentry").as_str());
    // One name with several sizes: the printer repeats the size whenever it changes.
    round_trip("func @f(%x: f32[a=2], %y: f32[a=3], %z: f32[a=3], %w: f32[a=2]) -> (f32[a=3]) { return %y }");
}

#[test]
fn long_headers_are_wrapped_and_read_back() {
    let params: Vec<String> = (0..20).map(|i| format!("param %weight.{i}: f32[d{i}=4]")).collect();
    let m = round_trip(&format!("func @f({}) -> () {{ return }}", params.join(", ")));
    assert!(print(&m).lines().count() > 20);
}

#[test]
fn attributes_round_trip() {
    let attrs = Attrs::new()
        .int("a", i64::MIN)
        .float("b", 1.0)
        .float("c", 1e300)
        .float("d", f64::NEG_INFINITY)
        .float("e", -0.0)
        .text("f", "a \"quoted\\ text\n; } with\teverything\r ⊕")
        .with("g", Attr::Ints(vec![1, -2]))
        .with("h", Attr::Ints(vec![]))
        .floats("i", vec![1.0, f64::INFINITY, 5e-324, 0.1]);
    // No operation takes all kinds, so the text is checked through those that take each.
    for (name, value) in &attrs.0 {
        let text = match value {
            Attr::Str(_) => "random_uniform {name=V, seed=0, dims=\"a\", sizes=[2], dtype=\"f32\"} : f32[a=2]",
            Attr::Int(_) => "random_uniform {name=\"n\", seed=V, dims=\"a\", sizes=[2], dtype=\"f32\"} : f32[a=2]",
            Attr::Float(_) => "affine %x {mul=V, add=0.0} : f32[]",
            Attr::Ints(v) if v.is_empty() => "broadcast %x {spec=\" -> \", sizes=V} : f32[]",
            Attr::Ints(_) | Attr::Floats(_) => "constant {values=V, dim=\"a\", dtype=\"f32\"} : f32[a=N]",
        };
        let (shown, n) = match value {
            Attr::Int(v) => (v.to_string(), 0),
            Attr::Float(v) => (format!("{v:?}"), 0),
            Attr::Str(_) => (r#""a \"quoted\\ text\n; } with\teverything\r ⊕""#.to_string(), 0),
            Attr::Ints(v) => (format!("{v:?}"), v.len()),
            Attr::Floats(v) => (format!("{v:?}"), v.len()),
        };
        let text = text.replace('V', &shown).replace('N', &n.to_string());
        let m = round_trip(&format!("func @f(%x: f32[]) -> () {{\n  %y = {text}\n  return\n}}"));
        let attrs = &m.functions[0].nodes[0].attrs.0;
        assert!(attrs.iter().any(|(_, v)| v == value), "{name}: {attrs:?}");
    }
}

#[test]
fn an_error_prints_its_line_and_a_caret() {
    let want = "\
t:3:17: error: %xx is not defined; did you mean %x?
  %a = add %a0, %xx : f32[b, d]
                ^^^
";
    let got = error(&body("  %a0 = neg %x : f32[b, d]\n  %a = add %a0, %xx : f32[b, d]"));
    assert_eq!(got, want);
}

/// Every error of one statement: the statement, then column, width and a piece of the message.
#[test]
fn statement_errors() {
    let cases = [
        ("  %a = neg %y : f32[b, d]", 12, 2, "%y is not defined"),
        (
            "  %a = neg %a : f32[b, d]",
            12,
            2,
            "%a is used before it is defined (line 2): nodes are listed in execution order; a cycle cannot be computed",
        ),
        ("  %a = neg %b : f32[b, d]\n  %b = neg %x : f32[b, d]", 12, 2, "%b is used before it is defined (line 3)"),
        ("  %x = neg %x : f32[b, d]", 3, 2, "%x is already defined on line 1"),
        ("  %a, %a = neg %x : f32[b, d]", 7, 2, "defined twice by this node"),
        ("  %a = nge %x : f32[b, d]", 8, 3, "unknown operation `nge`; did you mean neg?"),
        (
            "  %a = affine %x {mul=1.0, add=0.0, foo=1} : f32[b, d]",
            37,
            5,
            "affine has no attribute `foo`; it takes mul, add",
        ),
        ("  %a = affine %x {mul=1.0} : f32[b, d]", 18, 9, "affine needs the attribute `add`; write `{add=...}`"),
        ("  %a = affine %x {mul=\"1\", add=0.0} : f32[b, d]", 19, 7, "attribute `mul` of affine must be a number"),
        ("  %a = affine %x {mul=1.0, mul=2.0} : f32[b, d]", 28, 3, "given twice"),
        ("  %a = affine %x {mul=99999999999999999999, add=0.0} : f32[b, d]", 23, 20, "does not fit in 64 bits"),
        ("  %a = affine %x {mul=a, add=0.0} : f32[b, d]", 23, 1, "neither a number nor a text in quotes"),
        ("  %a = cast %x {dtype=\"f32} : f32[b, d]", 23, 1, "no closing quote"),
        ("  %a = cast %x {dtype=\"\\q\"} : f32[b, d]", 24, 1, "unknown escape"),
        ("  %a = add %x : f32[b, d]", 8, 3, "add(f32[b=8, d=16]): takes 2 operands, got 1"),
        ("  %a = add %x, %i : f32[b, d]", 8, 3, "add(f32[b=8, d=16], i32[b=8]): operands have different"),
        ("  %a = neg %x : f32[b, d=4]", 17, 11, "%a is written as f32[b=8, d=4], but neg gives f32[b=8, d=16]"),
        ("  %a = neg %x : i32[b, d]", 17, 9, "%a is written as i32[b=8, d=16], but neg gives f32[b=8, d=16]"),
        ("  %a, %b = neg %x : f32[b, d]", 3, 6, "neg has 1 results, but 2 names are given"),
        ("  %a = neg %x", 14, 1, "expected `:` and the types of the results, but the line ends here"),
        ("  %a = neg %x : f32[b@tp, d]", 17, 12, "unknown axis tp: the mesh has dp, cp"),
        ("  %a = neg %x : f32[b@dp, d@dp]", 17, 15, "axis dp is used twice"),
        ("  %a = neg %x : f32[b@dp, d] partial(sum: dp)", 17, 29, "axis dp is used twice"),
        ("  %a = neg %x : f32[b, d] partial(min: dp)", 35, 3, "unknown reduction `min`; use `sum` or `max`"),
        ("  %a = neg %x : f32[b, d] @ {tp: d}", 29, 7, "neg: unknown axis tp: the mesh has dp, cp"),
        ("  %a = neg %x : f32[b, d] @ {dp: e}", 29, 7, "neg: no factor e (for dp); its factors: b, d"),
        ("  %a = neg %x : f32[b, d] @ {dp: b, dp: d}", 29, 14, "axis dp is used twice"),
        ("  %a = neg %x : f32[b, d] @ split", 29, 5, "expected `{` or `follow` after `@`, found `split`"),
        ("  %a = neg %x : f16[b, d]", 17, 3, "unknown element type `f16`; use one of f64, f32, bf16, i32"),
        ("  %a = neg %x : f32[b, b]", 17, 9, "dimension `b` appears twice in one type"),
        ("  %a = neg %x : f32[b, d=0]", 17, 11, "dimension `d` has size 0"),
        ("  %a = neg %x : f32[b, d=9999999999999999999999]", 26, 22, "is not a size"),
        ("  %a = neg %x : f32[b, d=999999999999999]", 17, 25, "more than 2^48 elements"),
        ("  %a = neg %x : f32[b, q]", 24, 1, "the size of dimension `q` is not known yet"),
        (
            "  %a = call @g(%x) : f32[b, d]",
            13,
            2,
            "unknown function @g; a function is written before those that call it",
        ),
        ("  %a = call @f(%x, %i) : f32[b, d]", 13, 2, "@f calls itself"),
        ("  %a = call @h(%x) : f32[b, d]", 13, 2, "@h takes 2 arguments, this call gives 1"),
        (
            "  %a = call @h(%x, %x) : f32[b, d]",
            13,
            2,
            "argument 1 of @h is f32[b=8, d=16], but its parameter is i32[b=8]",
        ),
        ("  %a = call @h(%x, %i) : f32[b]", 26, 6, "%a is written as f32[b=8], but h gives f32[b=8, d=16]"),
        ("  %a = call @h(%x, %i) : f32[b, d] @ {dp: b}", 38, 7, "a call takes no strategy"),
        ("  return %i", 3, 9, "result 0 is %i: i32[b=8], but the header promises f32[b=8, d=16]"),
        ("  return %x, %x", 3, 13, "the header promises 1 results, this returns 2"),
        ("  %a = neg %x : f32[b, d] %x", 27, 2, "expected the end of the line after the statement, found `%x`"),
        ("  %% = neg %x : f32[b, d]", 3, 1, "expected a name after `%`"),
        ("  %a neg %x : f32[b, d]", 6, 3, "expected `=` after the names of the results, found `neg`"),
    ];
    for (text, column, width, message) in cases {
        let prefix = "mesh @m = [dp: 2, cp: 2]\nfunc @h(%x: f32[b=8, d=16], %i: i32[b]) -> (f32[b, d]) { return %x }\nfunc @f(%x: f32[b=8, d=16], %i: i32[b]) -> (f32[b, d]) {\n";
        let source = format!("{prefix}{text}\n  return %x\n}}\nentry @f\n");
        // Lines are counted from the function's header.
        let message = message.replace("line 2", "line 4").replace("line 3", "line 5").replace("line 1", "line 3");
        let Err(e) = parse(&source, "t") else { panic!("no error: {text}") };
        let d = &e.0[0];
        assert!(d.message.contains(&message), "{text}\n{e}");
        assert_eq!((d.line, d.column, d.width), (4, column, width), "{e}");
        assert!(e.to_string().contains(&format!("\n{}{}\n", " ".repeat(column - 1), "^".repeat(width))), "{e}");
    }
}

#[test]
fn module_errors() {
    let f = "func @f(%x: f32[b=8]) -> (f32[b]) { return %x }\n";
    let cases = [
        (String::new(), "t:1:1: error: the text ends without a function"),
        (format!("{f}{f}"), "t:2:6: error: function @f is defined twice"),
        (format!("{f}entry @g\n"), "t:2:7: error: entry @g is not a function of this module; did you mean @f?"),
        (format!("{f}entry @f\nentry @f\n"), "t:3:7: error: a second entry"),
        (format!("{f}{}", f.replace("@f", "@g")), "t:3:1: error: the module has several functions and no entry"),
        (format!("{f}mesh @m = [a: 2]\n"), "t:2:6: error: the mesh must be given once, before the functions"),
        (format!("mesh @m = [a: 2, a: 2]\n{f}"), "t:1:12: error: mesh axis a is given twice"),
        (format!("mesh @m = [a: 0]\n{f}"), "t:1:12: error: mesh axis a has size 0"),
        (
            "func @f(%x: f32[b=8]) -> (f32[b]) {\n  return %x\n".into(),
            "t:3:1: error: the text ends inside function @f; close it with `}`",
        ),
        ("func @f(%x: f32[b=8]) -> (f32[b]) {\n".into(), "the text ends inside function @f"),
        ("func @f(%x: f32[b=8".into(), "t:1:20: error: expected `,` or `]` after a dimension, but the text ends here"),
        ("func @f(%x: f32[b=8]) -> (f32[b]) {\n}\n".into(), "t:2:1: error: function @f has no return"),
        (
            "func @f(%x: f32[b=8]) -> (f32[b]) {\n  return %x\n  %y = neg %x : f32[b]\n}\n".into(),
            "t:3:3: error: expected `}` after the return",
        ),
        (
            format!("func @g(%x: f32[b=8]) -> (f32[b]) {{\n  return %x\n{f}"),
            "t:3:1: error: function @g has no closing `}`",
        ),
        ("func @f(%x: f32[b=8], %x: f32[b]) -> () { return }".into(), "t:1:23: error: %x is already defined on line 1"),
        (format!("{f}function @g\n"), "t:2:1: error: expected `mesh`, `func` or `entry`, found `function`"),
        (
            "func @f(%x: f32[b=8@dp]) -> () { return }".into(),
            "unknown axis dp: there is no mesh; start with `mesh @m = [dp: 2]`",
        ),
        ("func @f() -> () backward of @g (q0) -> () { return }".into(), "t:1:33: error: a source is `p0`"),
    ];
    for (source, want) in cases {
        let got = error(&source);
        assert!(got.contains(want), "want {want}\ngot  {got}\nin\n{source}");
    }
}

#[test]
fn errors_are_collected_and_do_not_cascade() {
    let e = parse(&body("  %a = nge %x : f32[b, d]\n  %b = neg %a : f32[b, d]\n  %c = neg %q : f32[b, d]\n  %d = add %b, %c : f32[b, d]"), "t");
    let Err(e) = e else { panic!("no error") };
    let lines: Vec<usize> = e.0.iter().map(|d| d.line).collect();
    assert_eq!(lines, [2, 4], "{e}");
    let many = "  %a = nge %x : f32[b]\n".repeat(50);
    let Err(e) = parse(&body(&many), "t") else { panic!("no error") };
    assert_eq!(e.0.len(), 20);
    // A function that failed still has a signature, so its callers are checked and not blamed.
    let source = format!("{}func @g(%x: f32[b=8, d=16], %i: i32[b]) -> (f32[b, d]) {{\n  %y = call @f(%x, %i) : f32[b, d]\n  return %y\n}}\nentry @g\n", body("  %a = nge %x : f32[b]"));
    let Err(e) = parse(&source, "t") else { panic!("no error") };
    assert_eq!(e.0.len(), 1, "{e}");
}

#[test]
fn templates_are_instantiated() {
    let attrs = Attrs::new().float("eps", 1e-5).int("n", 4).floats("freqs", vec![1.0, 0.5]);
    let env = TemplateEnv {
        dtype: DType::Bf16,
        rest: vec![Dim::new("b", 2), Dim::new("s", 3)],
        dims: vec![("d".into(), 8)],
        attrs: &attrs,
    };
    let source = r#"func @t(%x: T[.., d], %w: T[d], %k: f32[n=$n]) -> (T[..]) {
  %s = reduce_sum %x {spec=".. d -> .."}
  %m = affine %s {mul=1/<d>, add=$eps} : T[..]
  %b = broadcast %w {spec="d -> .. d", sizes=[<..>]} : T[.., d]
  %i = iota {dim="d", size=<d>, dtype="i32"} : i32[d]
  %f = constant {values=$freqs, dim="h", dtype=$T} : T[h=#freqs]
  %g = constant {values=[1-$eps, <d>], dim="h", dtype=$T} : T[h]
  return %m
}"#;
    let f = parse_template(source, &env).unwrap_or_else(|e| panic!("{e}"));
    let nodes: Vec<String> = f.node_ids().map(|n| print_node(&f, n)).collect();
    assert_eq!(nodes[0], r#"%s = reduce_sum %x {spec="b s d -> b s"} : bf16[b=2, s=3]"#);
    assert_eq!(nodes[1], "%m = affine %s {mul=0.125, add=1e-5} : bf16[b=2, s=3]");
    assert_eq!(nodes[2], r#"%b = broadcast %w {spec="d -> b s d", sizes=[2, 3]} : bf16[b=2, s=3, d=8]"#);
    assert_eq!(nodes[3], r#"%i = iota {dim="d", size=8, dtype="i32"} : i32[d=8]"#);
    assert_eq!(nodes[4], r#"%f = constant {values=[1.0, 0.5], dim="h", dtype="bf16"} : bf16[h=2]"#);
    assert_eq!(nodes[5], r#"%g = constant {values=[0.99999, 8.0], dim="h", dtype="bf16"} : bf16[h=2]"#);

    let scalar = TemplateEnv { rest: vec![], ..env };
    let f = parse_template(source, &scalar).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(print_node(&f, NodeId(0)), r#"%s = reduce_sum %x {spec="d ->"} : bf16[]"#);
    let missing = Attrs::new();
    let Err(e) = parse_template(source, &TemplateEnv { attrs: &missing, ..scalar }) else { panic!("no error") };
    assert!(e.to_string().contains("was not given an attribute `n`"), "{e}");
}

#[test]
fn template_headers_need_no_sizes() {
    let header =
        template_header("; body\nfunc @t(%x: T[.., d],\n  %k: i32[], param %n: f32[s=$size, d]) -> (T[..]) {").unwrap();
    let shown: Vec<String> = header.params.iter().map(|p| format!("{} {} {:?}", p.name, p.dtype, p.dims)).collect();
    assert_eq!(shown, [r#"x T ["..", "d"]"#, "k i32 []", r#"n f32 ["s=$size", "d"]"#]);
    assert!(template_header("func @t(%x T[d])").is_err());
    assert!(template_header("").is_err());
}

/// Substitutions belong to templates: in a module they are errors, not values.
#[test]
fn template_syntax_is_refused_in_modules() {
    for text in [
        "%a = affine %x {mul=$s, add=0.0} : f32[b, d]",
        "%a = neg %x : T[b, d]",
        "%a = neg %x : f32[.., d]",
        "%a = neg %x : f32[b=$n, d]",
    ] {
        assert!(parse(&body(text), "t").is_err(), "{text}");
    }
}

/// Linear congruential numbers: the same mutations in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

const PIECES: [&str; 26] = [
    "%x",
    "@f",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ",",
    "=",
    ":",
    ";",
    "\n",
    "\"",
    "·",
    "..",
    "-",
    "0",
    "99999999999999999999",
    " partial(sum: tp)",
    " @ {dp: b}",
    " @ follow",
    "func @g",
    "return",
    "é",
    "<..>",
];

fn mutate(text: &str, random: &mut Random) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..1 + random.below(4) {
        let at = random.below(chars.len());
        let end = (at + random.below(12)).min(chars.len());
        match random.below(5) {
            0 => drop(chars.drain(at..end)),
            1 => chars.truncate(at),
            2 => drop(chars.splice(at..at, PIECES[random.below(PIECES.len())].chars())),
            3 => {
                let copy: Vec<char> = chars[at..end].to_vec();
                let to = random.below(chars.len());
                drop(chars.splice(to..to, copy));
            }
            _ => {
                let piece = PIECES[random.below(PIECES.len())];
                drop(chars.splice(at..end, piece.chars()));
            }
        }
    }
    chars.into_iter().collect()
}

#[test]
fn mutated_texts_never_panic_and_survivors_round_trip() {
    let mut random = Random(7);
    let template = "func @t(%x: T[.., d], %w: T[d=$n]) -> (T[.., d]) {\n  %b = broadcast %w {spec=\"d -> .. d\", sizes=[<..>]} : T[.., d]\n  %y = mul %x, %b : T[.., d]\n  return %y\n}";
    let attrs = Attrs::new().int("n", 8);
    let env =
        TemplateEnv { dtype: DType::F32, rest: vec![Dim::new("b", 2)], dims: vec![("d".into(), 8)], attrs: &attrs };
    let mut parsed = 0;
    for i in 0..6000 {
        let text = mutate([LAYER, LOCAL, template][i % 3], &mut random);
        let _ = template_header(&text);
        let _ = parse_template(&text, &env);
        match parse(&text, "fuzz") {
            Ok(m) => {
                parsed += 1;
                let printed = print(&m);
                assert_eq!(parse(&printed, "again").as_ref(), Ok(&m), "{text}\n{printed}");
                let _ = autoshard_ir::verify::verify(&m);
            }
            Err(e) => {
                assert!(!e.0.is_empty() && e.0.len() <= 20, "{text}");
                let _ = e.to_string();
            }
        }
    }
    assert!(parsed > 50, "only {parsed} mutations parsed: the fuzzer is too coarse");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let source = "func @f(%x: f32[n=2]) -> (f32[n]) {\n  return %x\n}\n";
    assert_eq!(parse(&format!("\u{feff}{source}"), "bom.shard"), parse(source, "plain.shard"));
}
