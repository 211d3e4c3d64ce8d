//! The answers as tables.

use super::alternatives::Alternative;
use super::change::Outcome;
use super::diff::Difference;
use super::value::{behind, Site};
use super::Subject;
use crate::predict::fix::words;
use crate::predict::{PartKind, Prediction};
use crate::report::{bytes, grouped, seconds};
use autoshard_cost::collectives::Kind;
use std::fmt::Write;

/// Parts that are named as what binds.
const LARGEST: usize = 5;

/// What binds a plan, and its neighbours.
pub fn why(s: &Subject, alternatives: &[Alternative]) -> String {
    let mut out = head(s);
    binds(&mut out, s, alternatives);
    out.push_str("one decision changed, the others kept; in brackets what had to follow:\n");
    table(&mut out, s, alternatives.iter().map(|a| (a.name.as_str(), &a.outcome)));
    out
}

/// Which plan it is.
fn head(s: &Subject) -> String {
    let (p, f, l) = (&s.plan, &s.facts, &s.plan.layout);
    format!(
        "{}: {} layers on {} devices of {}, {}, stack {}, {} sequences of {}\n  {}\n",
        f.name,
        f.layers,
        l.devices(),
        s.cluster.id,
        p.precision,
        s.stack.name,
        p.global_batch,
        p.seq_len,
        decisions(s)
    )
}

/// Decisions in one line, as `--fix` takes them.
fn decisions(s: &Subject) -> String {
    let layout = crate::predict::Layout { order: Some(s.order()), ..s.plan.layout.clone() };
    words(&layout)
}

fn binds(out: &mut String, s: &Subject, alternatives: &[Alternative]) {
    let p = &s.prediction;
    let rate = s.tokens() / p.step_seconds;
    let _ = writeln!(out, "a step takes {}: {} tokens/s; what binds it:", seconds(p.step_seconds), grouped(rate));
    let mut parts: Vec<(String, f64)> = Vec::new();
    for part in p.parts.iter().filter(|x| x.exposed) {
        match parts.iter_mut().find(|(name, _)| *name == part.name) {
            Some((_, all)) => *all += part.seconds,
            None => parts.push((part.name.clone(), part.seconds)),
        }
    }
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (name, x) in parts.iter().take(LARGEST) {
        let _ = writeln!(out, "  {name:<26} {:>10} {:>6.1} %", seconds(*x), 100.0 * x / p.step_seconds);
    }
    let rest: f64 = parts.iter().skip(LARGEST).map(|(_, x)| x).sum();
    if rest > 0.0 {
        let share = 100.0 * rest / p.step_seconds;
        let _ = writeln!(out, "  {:<26} {:>10} {share:>6.1} %", "the rest", seconds(rest));
    }
    stages(out, p);
    memory(out, s, alternatives);
}

/// Which stage works longest, and what that costs the others.
fn stages(out: &mut String, p: &Prediction) {
    let busy = || p.stages.iter().map(|s| s.busy).enumerate();
    let (Some(most), Some(least)) =
        (busy().max_by(|a, b| a.1.total_cmp(&b.1)), busy().min_by(|a, b| a.1.total_cmp(&b.1)))
    else {
        return;
    };
    if p.stages.len() > 1 {
        let _ = writeln!(
            out,
            "  stage {} of {} works longest, {}; stage {} least, {}; the one that ends last waits {} for others",
            most.0 + 1,
            p.stages.len(),
            seconds(most.1),
            least.0 + 1,
            seconds(least.1),
            seconds(p.exposed(PartKind::Bubble))
        );
    }
}

fn memory(out: &mut String, s: &Subject, alternatives: &[Alternative]) {
    let Some((stage, m)) = s.prediction.fullest() else {
        out.push_str("  memory is not predicted here\n");
        return;
    };
    let needed = m.device * (1.0 + s.room.margin);
    let left = s.room.bytes - needed;
    let whose = if s.room.given { "the limit" } else { "the device" };
    let word = if left >= 0.0 { "free" } else { "TOO MUCH" };
    let _ = writeln!(
        out,
        "  memory: stage {} is the fullest with {}; with {:.0} % margin {} of the {} of {whose} are {word}",
        stage + 1,
        bytes(m.device),
        100.0 * s.room.margin,
        bytes(left.abs()),
        bytes(s.room.bytes)
    );
    let faster = |a: &&Alternative| match &a.outcome {
        Outcome::Changed(c) => c.fits == Some(false) && c.prediction.step_seconds < s.prediction.step_seconds,
        Outcome::Same | Outcome::Refused(_) => false,
    };
    let blocked: Vec<&str> = alternatives.iter().filter(faster).map(|a| a.name.as_str()).collect();
    if !blocked.is_empty() {
        let _ = writeln!(out, "  memory forbids what would be faster: {}", blocked.join(", "));
    }
}

/// A line for each change that can be, then those that cannot.
fn table<'a>(out: &mut String, s: &Subject, rows: impl Iterator<Item = (&'a str, &'a Outcome)>) {
    let _ = writeln!(out, "  {:<30} {:>10} {:>10} {:>11}", "", "step", "", "memory");
    let base = (s.prediction.step_seconds, device(&s.prediction));
    let fits = crate::report::stages::fits(&s.prediction, &s.room);
    let _ = writeln!(out, "{}", line("as it is", base, base, fits));
    let mut refused = Vec::new();
    for (name, outcome) in rows {
        match outcome {
            Outcome::Same => {}
            Outcome::Refused(why) => refused.push((name, why)),
            Outcome::Changed(c) => {
                let now = (c.prediction.step_seconds, device(&c.prediction));
                let mut text = line(name, base, now, c.fits);
                if !c.followed.is_empty() {
                    let _ = write!(text, "  [{}]", c.followed.join(", "));
                }
                let _ = writeln!(out, "{text}");
            }
        }
    }
    if !refused.is_empty() {
        out.push_str("what cannot be:\n");
    }
    for (name, why) in refused {
        let _ = writeln!(out, "  {name:<30} {why}");
    }
}

fn device(p: &Prediction) -> Option<f64> {
    p.fullest().map(|(_, m)| m.device)
}

type Figures = (f64, Option<f64>);

fn line(name: &str, base: Figures, now: Figures, fits: Option<bool>) -> String {
    let share = 100.0 * (now.0 / base.0 - 1.0);
    let delta = if base == now { String::new() } else { format!("{share:+.1} %") };
    let memory = now.1.map_or("–".to_string(), bytes);
    let more = match (base.1, now.1) {
        (Some(a), Some(b)) if base != now => signed(b - a, bytes),
        _ => String::new(),
    };
    let verdict = if fits == Some(false) { "  does not fit" } else { "" };
    let text = format!("  {name:<30} {:>10} {delta:>10} {memory:>11} {more:>12}{verdict}", seconds(now.0));
    text.trim_end().to_string()
}

/// A difference with its sign.
fn signed(x: f64, unit: fn(f64) -> String) -> String {
    let sign = if x < 0.0 { "-" } else { "+" };
    format!("{sign}{}", unit(x.abs()))
}

/// One value or operation.
pub fn value(s: &Subject, sites: &[Site]) -> String {
    let mut out = head(s);
    for site in sites {
        let calls = if site.calls == 1 { "once" } else { &format!("{} times", site.calls) };
        let _ = writeln!(out, "\n@{}, called {calls} a micro-batch:\n  {}", site.function, site.text.trim());
        if !site.factors.is_empty() {
            out.push_str("factors, and the axes that carry them:\n");
        }
        for (factor, carrier) in &site.factors {
            let _ = writeln!(out, "  {factor:<12} {carrier}");
        }
        out.push_str("state:\n");
        for (name, state) in &site.states {
            let _ = writeln!(out, "  {name}: {state}");
        }
        messages(&mut out, s, site);
    }
    out
}

fn messages(out: &mut String, s: &Subject, site: &Site) {
    if site.trained {
        stored(out, s);
    }
    if site.messages.is_empty() {
        out.push_str("messages: none of a micro-batch\n");
        return;
    }
    out.push_str("messages of one call and micro-batch, bytes as the group holds them together:\n");
    for (m, cause) in &site.messages {
        let times = if m.count > 1.0 { format!("{:.0} × ", m.count) } else { String::new() };
        let how = behind(m);
        let hidden = if how.is_empty() { String::new() } else { format!(", {how}") };
        let _ = writeln!(
            out,
            "  {:<15} %{}: {times}{} over {} {}, {} on {}: {}, exposed {}{hidden}\n  {:<15} because {cause}",
            m.phase.name(),
            m.value,
            spelt(m.kind),
            m.axis.name(),
            m.ranks,
            bytes(m.bytes),
            m.tier,
            seconds(m.seconds),
            seconds(m.exposed),
            ""
        );
    }
}

/// How data ranks hold parameters, and what that costs a step.
fn stored(out: &mut String, s: &Subject) {
    let l = &s.plan.layout;
    let how = match l.zero {
        0 => "each data rank has a copy of it, its gradient and its optimizer state".to_string(),
        1 => format!("each data rank has a copy of it; optimizer state is shared by {}", l.shard_group),
        2 => format!("each data rank has a copy of it; gradient and optimizer state are shared by {}", l.shard_group),
        _ => format!("it, its gradient and its optimizer state are shared by {} data ranks", l.shard_group),
    };
    let _ = writeln!(out, "stored: {how} (zero={})", l.zero);
    for part in s.prediction.parts.iter().filter(|p| p.name.starts_with("dp ") || p.name.starts_with("edp ")) {
        let seen = if part.exposed { "exposed" } else { "hidden" };
        let _ = writeln!(
            out,
            "  {} of all parameters of a rank in a step: {} on {}, {} {seen}",
            part.name,
            bytes(part.bytes),
            part.tier,
            seconds(part.seconds)
        );
    }
}

fn spelt(kind: Kind) -> &'static str {
    match kind {
        Kind::AllReduce => "all-reduce",
        Kind::AllGather => "all-gather",
        Kind::ReduceScatter => "reduce-scatter",
        Kind::AllToAll => "all-to-all",
        Kind::SendRecv => "send",
    }
}

/// Two plans side by side.
pub fn diff(a: &Subject, b: &Subject, d: &Difference) -> String {
    let mut out = format!("A  {}B  {}", head(a), head(b));
    rows(&mut out, "what they were made for differs:", &d.asked);
    rows(&mut out, "decisions that differ:", &d.decisions);
    if d.decisions.is_empty() {
        out.push_str("no decision differs\n");
    }
    let _ = writeln!(out, "{:<34} {:>11} {:>11} {:>12}", "", "A", "B", "B - A");
    sums(&mut out, "step", a.prediction.step_seconds, b.prediction.step_seconds, seconds);
    for (name, x, y) in &d.time {
        sums(&mut out, &format!("  {name}"), *x, *y, seconds);
    }
    let rate = |s: &Subject| s.tokens() / s.prediction.step_seconds / s.plan.layout.devices() as f64;
    sums(&mut out, "tokens/s a device", rate(a), rate(b), grouped);
    if let (Some(x), Some(y)) = (device(&a.prediction), device(&b.prediction)) {
        sums(&mut out, "memory of the fullest stage", x, y, bytes);
    }
    for (name, x, y) in &d.memory {
        sums(&mut out, &format!("  {name}"), *x, *y, bytes);
    }
    if !d.asked.is_empty() {
        out.push_str("they answer different questions, so single changes are not compared\n");
    } else if !d.single.is_empty() {
        single(&mut out, a, b, d);
    }
    out
}

fn single(out: &mut String, a: &Subject, b: &Subject, d: &Difference) {
    out.push_str("from A, one group of B's decisions at a time; in brackets what had to follow:\n");
    table(out, a, d.single.iter().map(|(name, o)| (name.as_str(), o)));
    let base = a.prediction.step_seconds;
    let alone = |o: &Outcome| match o {
        Outcome::Changed(c) => c.prediction.step_seconds - base,
        Outcome::Same | Outcome::Refused(_) => 0.0,
    };
    let sum: f64 = d.single.iter().map(|(_, o)| alone(o)).sum();
    let all = b.prediction.step_seconds - base;
    let _ = writeln!(
        out,
        "all of them: {} a step; the single changes add up to {}",
        signed(all, seconds),
        signed(sum, seconds)
    );
}

fn rows(out: &mut String, title: &str, rows: &[[String; 3]]) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "{title}");
    for [key, a, b] in rows {
        let _ = writeln!(out, "  {key:<17} {a:<24} {b}");
    }
}

fn sums(out: &mut String, name: &str, a: f64, b: f64, unit: fn(f64) -> String) {
    let share = if a > 0.0 && b > 0.0 { format!("{:+.1} %", 100.0 * (b / a - 1.0)) } else { String::new() };
    let delta = if a == b { String::new() } else { signed(b - a, unit) };
    let share = if a == b { "" } else { &share };
    let shown = |x: f64| if x == 0.0 { "–".to_string() } else { unit(x) };
    let line = format!("{name:<34} {:>11} {:>11} {delta:>12} {share:>9}", shown(a), shown(b));
    let _ = writeln!(out, "{}", line.trim_end());
}
