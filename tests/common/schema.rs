//! A checker for the part of JSON Schema (draft 2020-12) that `docs/plan.schema.json` uses. A keyword that it does
//! not know is an error, so a schema cannot say more than is checked.

use serde_json::Value;

/// Holds a value against a schema; the error names the place and the keyword.
pub fn check(schema: &Value, value: &Value) -> Result<(), String> {
    at(schema, schema, value, "")
}

fn at(root: &Value, schema: &Value, v: &Value, place: &str) -> Result<(), String> {
    for (keyword, rule) in schema.as_object().ok_or("a schema must be an object")? {
        let holds = match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" => true,
            "$ref" => {
                let pointer = rule.as_str().and_then(|r| r.strip_prefix('#')).ok_or("a reference starts with #")?;
                let target = root.pointer(pointer).ok_or_else(|| format!("{pointer} is not there"))?;
                at(root, target, v, place)?;
                true
            }
            "type" => match rule {
                Value::Array(all) => all.iter().any(|t| is(t, v)),
                one => is(one, v),
            },
            "const" => v == rule,
            "enum" => rule.as_array().is_some_and(|all| all.contains(v)),
            "minimum" => compare(v, rule, |x, y| x >= y),
            "maximum" => compare(v, rule, |x, y| x <= y),
            "exclusiveMinimum" => compare(v, rule, |x, y| x > y),
            "exclusiveMaximum" => compare(v, rule, |x, y| x < y),
            "minLength" => v.as_str().is_none_or(|s| s.chars().count() as u64 >= rule.as_u64().unwrap_or(0)),
            "minItems" => v.as_array().is_none_or(|a| a.len() as u64 >= rule.as_u64().unwrap_or(0)),
            "uniqueItems" => v.as_array().is_none_or(|a| (1..a.len()).all(|i| !a[..i].contains(&a[i]))),
            "pattern" => match (v.as_str(), rule.as_str()) {
                (Some(text), Some(pattern)) => matches(pattern, text)?,
                _ => true,
            },
            "items" => {
                for (i, item) in v.as_array().into_iter().flatten().enumerate() {
                    at(root, rule, item, &format!("{place}/{i}"))?;
                }
                true
            }
            "properties" => {
                for (key, inner) in rule.as_object().into_iter().flatten() {
                    if let Some(x) = v.get(key) {
                        at(root, inner, x, &format!("{place}/{key}"))?;
                    }
                }
                true
            }
            "required" => {
                let names = rule.as_array().into_iter().flatten().filter_map(Value::as_str);
                v.as_object().is_none_or(|m| names.into_iter().all(|n| m.contains_key(n)))
            }
            "additionalProperties" => {
                assert_eq!(rule, &Value::Bool(false));
                let known = schema["properties"].as_object();
                let all = |m: &serde_json::Map<String, Value>| {
                    m.keys().all(|k| known.is_some_and(|known| known.contains_key(k)))
                };
                v.as_object().is_none_or(all)
            }
            other => return Err(format!("{place}: the keyword {other} is not known")),
        };
        if !holds {
            return Err(format!("{place}: {v} breaks {keyword} = {rule}"));
        }
    }
    Ok(())
}

fn is(ty: &Value, v: &Value) -> bool {
    match ty.as_str() {
        Some("object") => v.is_object(),
        Some("array") => v.is_array(),
        Some("string") => v.is_string(),
        Some("boolean") => v.is_boolean(),
        Some("null") => v.is_null(),
        Some("number") => v.is_number(),
        Some("integer") => v.as_f64().is_some_and(|x| x.fract() == 0.0),
        _ => false,
    }
}

fn compare(v: &Value, rule: &Value, holds: fn(f64, f64) -> bool) -> bool {
    v.as_f64().is_none_or(|x| rule.as_f64().is_some_and(|y| holds(x, y)))
}

fn matches(pattern: &str, text: &str) -> Result<bool, String> {
    let re = regex::Regex::new(pattern).map_err(|e| format!("{pattern}: {e}"))?;
    Ok(re.is_match(text))
}
