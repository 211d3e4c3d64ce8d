//! Statements: nodes and returns.

use super::cursor::{fault, Fault, Parsed, Span};
use super::parse::Parser;
use super::{suggest, word_char};
use crate::core::{Attrs, Axis, Def, Node, NodeId, OpDef, Rule, Strategy, Type, Value, ValueId};
use crate::ops;
use crate::verify::{check_strategy, check_type, join_types};

impl Parser<'_> {
    /// `%a, %b = op %x, %y {attrs} : types @ strategy of %n`. If it fails, its results are broken.
    pub(super) fn statement(&mut self) -> Parsed<()> {
        let mut names = Vec::new();
        while self.cur.sees("%") {
            let (name, span) = self.cur.sigil("%", "a value")?;
            names.push((name.to_string(), span));
            if !self.cur.eat(",") {
                self.cur.expect("=", "after the names of the results")?;
                break;
            }
        }
        let outcome = self.node(&names);
        if outcome.is_err() {
            let known = &self.scope.values;
            let broken = names.into_iter().map(|(n, _)| n).filter(|n| !known.contains_key(n));
            self.scope.broken.extend(broken);
        }
        outcome
    }

    fn node(&mut self, names: &[(String, Span)]) -> Parsed<()> {
        for (i, (name, span)) in names.iter().enumerate() {
            self.check_new(name, *span)?;
            if names[..i].iter().any(|(n, _)| n == name) {
                return fault(*span, format!("%{name} is defined twice by this node; rename one of them"));
            }
        }
        let (op, span) = self.cur.word(word_char, "an operation, as in `%y = add %a, %b : f32[d]`")?;
        let Some(def) = ops::find(op) else {
            let hint = suggest(op, "", ops::names());
            return fault(span, format!("unknown operation `{op}`{hint}"));
        };
        if def.name == ops::CALL.name {
            return self.call(def, names);
        }
        let inputs = self.operands()?;
        let attrs = self.attrs(def)?;
        let types: Vec<Type> = inputs.iter().map(|v| self.scope.function.ty(*v).global()).collect();
        let rule = match ops::rule(def, &types.iter().collect::<Vec<_>>(), &attrs) {
            Ok(rule) => rule,
            Err(message) => return fault(span, format!("{op}({}): {}", join_types(&types), message.trim_end())),
        };
        let node = Node { attrs, inputs, ..blank(def) };
        self.finish_node(node, names, &rule.result_types, Some(&rule), op)
    }

    /// `@callee(%x, %w) : types`, after `call`.
    fn call(&mut self, def: &'static OpDef, names: &[(String, Span)]) -> Parsed<()> {
        let (callee, span) = self.cur.sigil("@", "the function to call, as in `call @mlp(%x)`")?;
        self.cur.expect("(", "before the arguments")?;
        let mut inputs = Vec::new();
        while !self.cur.eat(")") {
            if !inputs.is_empty() {
                self.cur.expect(",", "or `)` after an argument")?;
            }
            inputs.push(self.operand()?);
        }
        let attrs = self.attrs(def)?;
        let results = self.check_call(callee, span, &inputs)?;
        let node = Node { attrs, inputs, callee: Some(callee.to_string()), ..blank(def) };
        self.finish_node(node, names, &results, None, callee)
    }

    /// That the arguments fit the callee; the callee's result types.
    fn check_call(&self, callee: &str, span: Span, inputs: &[ValueId]) -> Parsed<Vec<Type>> {
        let signature = match self.signatures.get(callee) {
            Some(Some(signature)) => signature,
            Some(None) if callee == self.scope.function.name => {
                return fault(span, format!("@{callee} calls itself; recursion is not supported"));
            }
            Some(None) => return Err(Fault::Silent),
            None => {
                let known = self.signatures.keys().map(String::as_str).filter(|n| *n != self.scope.function.name);
                let hint = suggest(callee, "@", known);
                let message =
                    format!("unknown function @{callee}; a function is written before those that call it{hint}");
                return fault(span, message);
            }
        };
        let (want, got) = (signature.params.len(), inputs.len());
        if want != got {
            return fault(span, format!("@{callee} takes {want} arguments, this call gives {got}"));
        }
        for (i, (v, param)) in inputs.iter().zip(&signature.params).enumerate() {
            let ty = self.scope.function.ty(*v);
            if !ty.same_shape(param) || !ty.same_state(param) {
                return fault(span, format!("argument {i} of @{callee} is {ty}, but its parameter is {param}"));
            }
        }
        Ok(signature.results.clone())
    }

    /// Types, strategy and `of`; then the node joins the function.
    fn finish_node(
        &mut self,
        mut node: Node,
        names: &[(String, Span)],
        inferred: &[Type],
        rule: Option<&Rule>,
        what: &str,
    ) -> Parsed<()> {
        let types = self.result_types(names, inferred, what)?;
        node.strategy = self.strategy(rule, what)?;
        if self.cur.eat_word("of") {
            node.of = Some(self.cur.sigil("%", "the forward node, as in `of %q`")?.0.to_string());
        }
        let function = &mut self.scope.function;
        let id = NodeId(function.nodes.len() as u32);
        for (i, ((name, span), ty)) in names.iter().zip(types).enumerate() {
            let value = ValueId(function.values.len() as u32);
            function.values.push(Value { name: name.clone(), ty, def: Def::Result(id, i) });
            self.scope.values.insert(name.clone(), (value, span.start));
            node.results.push(value);
        }
        function.nodes.push(node);
        Ok(())
    }

    /// `: types`, compared with those that follow from the operands.
    fn result_types(&mut self, names: &[(String, Span)], inferred: &[Type], what: &str) -> Parsed<Vec<Type>> {
        if names.len() != inferred.len() {
            let span = names.first().map_or(self.cur.span(self.cur.pos), |(_, first)| Span {
                start: first.start,
                end: names.last().map_or(first.end, |(_, last)| last.end),
            });
            let (n, got) = (inferred.len(), names.len());
            return fault(span, format!("{what} has {n} results, but {got} names are given; write one name for each"));
        }
        if names.is_empty() || (self.env.is_some() && !self.cur.sees(":")) {
            return match inferred.iter().find_map(|t| check_type(t, &self.mesh).err()) {
                None => Ok(inferred.to_vec()),
                Some(message) => fault(self.cur.span(self.cur.pos), message),
            };
        }
        self.cur.expect(":", "and the types of the results")?;
        let mut types = Vec::new();
        for (i, (name, _)) in names.iter().enumerate() {
            if i > 0 {
                self.cur.expect(",", "and the type of the next result")?;
            }
            self.cur.space();
            let start = self.cur.pos;
            let ty = self.ty()?;
            if !ty.same_shape(&inferred[i]) {
                let message = format!("%{name} is written as {}, but {what} gives {}", ty.global(), inferred[i]);
                return fault(self.cur.span(start), message);
            }
            types.push(ty);
        }
        Ok(types)
    }

    /// `@ {axis: factor, ...}` or `@ follow`, or nothing.
    fn strategy(&mut self, rule: Option<&Rule>, what: &str) -> Parsed<Strategy> {
        if !self.cur.eat("@") {
            return Ok(Strategy::None);
        }
        self.cur.space();
        let start = self.cur.pos;
        if self.cur.eat_word("follow") {
            return Ok(Strategy::Follow);
        }
        self.cur.expect("{", "or `follow` after `@`")?;
        let mut axes = Vec::new();
        while !self.cur.eat("}") {
            if !axes.is_empty() {
                self.cur.expect(",", "or `}` after an axis and its factor")?;
            }
            let (axis, _) = self.cur.word(word_char, "a mesh axis, as in `@ {tp: d}`")?;
            self.cur.expect(":", "after the axis")?;
            let (factor, _) = self.cur.word(word_char, "a factor of the operation")?;
            axes.push((Axis::new(axis), factor.to_string()));
        }
        let strategy = Strategy::from_axes(axes);
        let outcome = match rule {
            Some(rule) => check_strategy(rule, &strategy, &self.mesh),
            None => Err("a call takes no strategy; the nodes of the function it calls do".to_string()),
        };
        match outcome {
            Ok(()) => Ok(strategy),
            Err(message) => fault(self.cur.span(start), format!("{what}: {message}")),
        }
    }

    fn operands(&mut self) -> Parsed<Vec<ValueId>> {
        let mut inputs = Vec::new();
        if self.cur.sees("%") {
            inputs.push(self.operand()?);
            while self.cur.eat(",") {
                inputs.push(self.operand()?);
            }
        }
        Ok(inputs)
    }

    fn operand(&mut self) -> Parsed<ValueId> {
        let (name, span) = self.cur.sigil("%", "a value, as in `%x`")?;
        if let Some((value, _)) = self.scope.values.get(name) {
            return Ok(*value);
        }
        if self.scope.broken.contains(name) {
            return Err(Fault::Silent);
        }
        if let Some(line) = self.defined_later(name, span) {
            let message = format!(
                "%{name} is used before it is defined (line {line}): nodes are listed in execution order; a cycle cannot be computed"
            );
            return fault(span, message);
        }
        let hint = suggest(name, "%", self.scope.values.keys().map(String::as_str));
        fault(span, format!("%{name} is not defined{hint}"))
    }

    /// The line of this function, this one or a later one, that defines `name`.
    fn defined_later(&self, name: &str, span: Span) -> Option<usize> {
        let first = self.cur.line(span.start);
        // Definitions stand left of the first `=`.
        let defines = |line: &str| {
            line.split('=').next().unwrap_or("").split(',').any(|n| n.trim().strip_prefix('%') == Some(name))
        };
        self.source_lines(first).take_while(|(_, l)| !l.starts_with('}')).find(|(_, l)| defines(l)).map(|(i, _)| i)
    }

    /// `return %a, %b`, after the word.
    pub(super) fn return_values(&mut self, start: usize) -> Parsed<()> {
        let results = self.operands()?;
        let span = self.cur.span(start);
        let want = &self.scope.results;
        if results.len() != want.len() {
            let message = format!("the header promises {} results, this returns {}", want.len(), results.len());
            return fault(span, message);
        }
        for (i, (v, want)) in results.iter().zip(want).enumerate() {
            let value = self.scope.function.value(*v);
            if !value.ty.same_shape(want) || !value.ty.same_state(want) {
                let message = format!("result {i} is %{}: {}, but the header promises {want}", value.name, value.ty);
                return fault(span, message);
            }
        }
        self.scope.function.results = results;
        Ok(())
    }
}

fn blank(op: &'static OpDef) -> Node {
    Node {
        op,
        attrs: Attrs::new(),
        callee: None,
        inputs: Vec::new(),
        results: Vec::new(),
        strategy: Strategy::None,
        of: None,
    }
}
