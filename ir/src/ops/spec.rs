//! Specs such as `"b s d, g r e d -> b s g r e"` and `"b (g r) -> b g r"`.

/// A parsed spec: names per operand and for the result.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Names per operand.
    pub operands: Vec<Vec<String>>,
    /// Names of the result.
    pub result: Vec<String>,
}

/// Parses a spec without parentheses.
pub fn parse(text: &str) -> Result<Spec, String> {
    let (left, right) = text.split_once("->").ok_or_else(|| format!("spec {text:?} has no \"->\""))?;
    let names = |s: &str| -> Result<Vec<String>, String> {
        let names: Vec<String> = s.split_whitespace().map(str::to_string).collect();
        for (i, n) in names.iter().enumerate() {
            if !n.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '\'') {
                return Err(format!("spec {text:?}: {n:?} is not a name"));
            }
            if names[..i].contains(n) {
                return Err(format!("spec {text:?} names {n} twice in one tensor"));
            }
        }
        Ok(names)
    };
    let operands = left.split(',').map(names).collect::<Result<Vec<_>, _>>()?;
    let result = names(right)?;
    if let Some(n) = result.iter().find(|n| !operands.iter().flatten().any(|o| o == *n)) {
        return Err(format!("spec {text:?}: {n} is in the result and in no operand"));
    }
    Ok(Spec { operands, result })
}

/// Prints a spec.
pub fn print(operands: &[Vec<String>], result: &[String]) -> String {
    let left: Vec<String> = operands.iter().map(|o| o.join(" ")).collect();
    format!("{} -> {}", left.join(", "), result.join(" ")).trim().to_string()
}

/// Parses one side of a reshape: each dimension is a name or a parenthesised list of names.
pub fn groups(side: &str) -> Result<Vec<Vec<String>>, String> {
    let mut out: Vec<Vec<String>> = Vec::new();
    let mut open: Option<Vec<String>> = None;
    let spaced = side.replace('(', " ( ").replace(')', " ) ");
    for token in spaced.split_whitespace() {
        match (token, &mut open) {
            ("(", None) => open = Some(Vec::new()),
            (")", Some(names)) if names.is_empty() => return Err(format!("empty parentheses in {side:?}")),
            (")", Some(_)) => out.extend(open.take()),
            ("(" | ")", _) => return Err(format!("unbalanced parentheses in {side:?}")),
            (name, Some(group)) => group.push(name.to_string()),
            (name, None) => out.push(vec![name.to_string()]),
        }
    }
    if open.is_some() {
        return Err(format!("unbalanced parentheses in {side:?}"));
    }
    Ok(out)
}
