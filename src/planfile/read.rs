//! Reading a plan file, which anybody may have written.

use super::{axis_names, mesh, Bound, ModelRef, PlanFile, VERSION};
use crate::json::{Document, JsonError};
use crate::predict::{fix, CpMethod, Layout, Order, Precision, Recompute, Role, Schedule};
use crate::words::suggestion;
use serde_json::{Map, Value};

/// Largest degree, count or size that is read: products of four such numbers saturate and are refused.
const MOST: u64 = 1 << 30;

/// Keys that a plan must have.
const NEEDED: [&str; 25] = [
    "version",
    "model",
    "cluster",
    "stack",
    "precision",
    "seq_len",
    "global_batch",
    "devices",
    "tp",
    "cp",
    "pp",
    "ep",
    "etp",
    "dp",
    "vpp",
    "zero",
    "shard_group",
    "keep",
    "sp",
    "cp_method",
    "micro_batch",
    "microbatches",
    "recompute",
    "schedule",
    "layers_per_stage",
];

/// Keys that it may have.
const FURTHER: [&str; 5] = ["memory", "order", "devices_used", "layout", "mesh"];

/// Beside `plan` in what `plan --json` prints; costs are not read.
const BESIDE: [&str; 7] = ["plan", "prediction", "alternatives", "search", "pareto", "rejected", "emitted"];

/// Why a file is no plan. Every message names the file, the key's place and what would be right.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PlanFileError {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error("{place}: a plan is a JSON object, and this is {found}; `autoshard plan … -o plan.json` writes one")]
    NotAnObject { place: String, found: String },
    #[error("{file}: this says that nothing fits, so there is no plan in it; raise the memory or the devices and plan again")]
    Infeasible { file: String },
    #[error("{place}: unknown key `{key}`{near}; the keys are {known}")]
    Unknown { place: String, key: String, near: String, known: String },
    #[error("{file}: `{key}` is missing; `autoshard plan … -o plan.json` writes all keys")]
    Missing { file: String, key: String },
    #[error("{place}: version {found} is not read by this build, which reads version {VERSION}; plan again")]
    Version { place: String, found: String },
    #[error("{place}: `{key}` is {found}: it must be {expected}{near}")]
    Value { place: String, key: String, found: String, expected: String, near: String },
    #[error("{place}: {what}; mend the plan or plan again")]
    Contradiction { place: String, what: String },
}

/// Reads a plan file, or what `plan --json` prints. `file` is its name in messages.
///
/// # Errors
/// Text that is no JSON, keys, versions and values that are unknown, values that contradict each other.
pub fn read(text: &str, file: &str) -> Result<PlanFile, PlanFileError> {
    let doc = Document::parse(file, text.as_bytes())?;
    let whole = Object::new(&doc, &doc.value, "")?;
    if whole.map.contains_key("infeasible") {
        return Err(PlanFileError::Infeasible { file: file.to_string() });
    }
    let plan = match whole.map.get("plan") {
        Some(inner) => {
            whole.only(&BESIDE)?;
            Object::new(&doc, inner, "/plan")?
        }
        None => whole,
    };
    plan.version()?;
    let known: Vec<&str> = NEEDED.into_iter().chain(FURTHER).collect();
    plan.only(&known)?;
    let layout = layout(&plan)?;
    let read = PlanFile {
        model: model(&plan)?,
        cluster: plan.text("cluster")?,
        stack: plan.text("stack")?,
        precision: plan.word("precision", Precision::ALL, Precision::name)?,
        seq_len: plan.count("seq_len")?,
        global_batch: plan.count("global_batch")?,
        devices: plan.count("devices")?,
        memory: memory(&plan)?,
        layers_per_stage: plan.counts("layers_per_stage")?,
        layout,
    };
    agree(&plan, &read)?;
    Ok(read)
}

fn layout(plan: &Object) -> Result<Layout, PlanFileError> {
    let zero = plan.number("zero", 0, 3)?;
    Ok(Layout {
        tp: plan.count("tp")?,
        cp: plan.count("cp")?,
        pp: plan.count("pp")?,
        ep: plan.count("ep")?,
        etp: plan.count("etp")?,
        dp: plan.count("dp")?,
        vpp: plan.count("vpp")?,
        zero: zero as u8,
        keep: plan.switch("keep")?,
        shard_group: plan.count("shard_group")?,
        sp: plan.switch("sp")?,
        cp_method: plan.word("cp_method", CpMethod::ALL, CpMethod::name)?,
        micro_batch: plan.count("micro_batch")?,
        microbatches: plan.count("microbatches")?,
        recompute: recompute(plan)?,
        schedule: plan.word("schedule", Schedule::ALL, Schedule::name)?,
        order: order(plan)?,
    })
}

fn recompute(plan: &Object) -> Result<Recompute, PlanFileError> {
    let text = plan.text("recompute")?;
    let wrong = |expected: &str| plan.wrong("recompute", expected, "");
    // One reader of these words: that of --fix, whose list ends at a comma.
    if text.contains([',', '=']) {
        return Err(wrong("one word, as in none, full, selective:core_attn, layers:4 or stages:2+1"));
    }
    match fix::parse(&format!("recompute={text}")) {
        Ok(fix) => fix.recompute.ok_or_else(|| wrong("a word, as in none or full")),
        Err(e) => Err(wrong(&format!("as --fix takes it ({e})"))),
    }
}

/// `order`, or else what `layout` lists.
fn order(plan: &Object) -> Result<Option<Order>, PlanFileError> {
    let expected = "tp, cp, dp and pp, innermost first, as in \"tp+cp+dp+pp\", or null for the stack's own";
    match plan.map.get("order") {
        Some(Value::Null) => return Ok(None),
        Some(_) => {
            let order = Order::from_name(&plan.text("order")?);
            return order.map(Some).ok_or_else(|| plan.wrong("order", expected, ""));
        }
        None => {}
    }
    let Some(names) = plan.names("layout")? else { return Ok(None) };
    let mut roles: Vec<Role> = Vec::with_capacity(4);
    for name in &names {
        let role = match name.as_str() {
            "ep" | "fsdp" => Role::Dp,
            other => {
                Role::from_name(other).ok_or_else(|| plan.wrong("layout", AXES, &suggestion(other, AXIS_NAMES)))?
            }
        };
        // The parts of the data ranks stand together.
        if roles.last() != Some(&role) {
            roles.push(role);
        }
    }
    let words: Vec<&str> = roles.iter().map(|r| r.name()).collect();
    match words.is_empty() {
        true => Ok(Some(Order::STAGES_OUTSIDE)),
        false => Order::from_name(&words.join("+")).map(Some).ok_or_else(|| plan.wrong("layout", AXES, "")),
    }
}

const AXIS_NAMES: [&str; 6] = ["tp", "cp", "ep", "fsdp", "dp", "pp"];
const AXES: &str = "a list of axes, innermost first, each once, of tp, cp, ep, fsdp, dp, pp";

fn model(plan: &Object) -> Result<ModelRef, PlanFileError> {
    let m = Object::new(plan.doc, plan.get("model")?, &plan.at("model"))?;
    m.only(&["file", "sha256", "name"])?;
    let out = ModelRef { file: m.text("file")?, sha256: m.text("sha256")?, name: m.text("name")? };
    let hexadecimal = out.sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    match out.sha256.len() == 64 && hexadecimal {
        true => Ok(out),
        false => Err(m.wrong("sha256", "64 lower-case hexadecimal digits", "")),
    }
}

fn memory(plan: &Object) -> Result<Bound, PlanFileError> {
    let Some(value) = plan.map.get("memory") else { return Ok(Bound::default()) };
    let m = Object::new(plan.doc, value, &plan.at("memory"))?;
    m.only(&["limit_gib", "margin"])?;
    let number = |key: &str, fits: fn(f64) -> bool, expected: &str| match m.map.get(key) {
        None | Some(Value::Null) if m.doc.non_finite(&m.at(key)).is_none() => Ok(None),
        other => match other.and_then(Value::as_f64).filter(|x| fits(*x)) {
            Some(x) => Ok(Some(x)),
            None => Err(m.wrong(key, expected, "")),
        },
    };
    Ok(Bound {
        limit_gib: number("limit_gib", |x| x.is_finite() && x > 0.0, "a number of GiB above 0, or null")?,
        margin: number("margin", |x| (0.0..1.0).contains(&x), "a share from 0 to below 1, or null")?,
    })
}

/// Refuses what does not hold together.
fn agree(plan: &Object, p: &PlanFile) -> Result<(), PlanFileError> {
    let l = &p.layout;
    let wrong = |key: &str, what: String| Err(PlanFileError::Contradiction { place: plan.place(key), what });
    let used = l.devices();
    if plan.map.contains_key("devices_used") && plan.count("devices_used")? != used {
        let (tp, cp, pp, dp) = (l.tp, l.cp, l.pp, l.dp);
        let said = plan.count("devices_used")?;
        return wrong(
            "devices_used",
            format!("`devices_used` is {said}, but tp·cp·pp·dp = {tp}·{cp}·{pp}·{dp} = {used}"),
        );
    }
    if used > p.devices {
        return wrong("devices", format!("the layout uses {used} devices, more than `devices` = {}", p.devices));
    }
    if l.global_batch() != p.global_batch {
        let (dp, mbs, m) = (l.dp, l.micro_batch, l.microbatches);
        let made = l.global_batch();
        return wrong(
            "global_batch",
            format!("`global_batch` is {}, but dp·micro_batch·microbatches = {dp}·{mbs}·{m} = {made}", p.global_batch),
        );
    }
    let stages = p.layers_per_stage.len() as u64;
    if stages != l.pp {
        return wrong("layers_per_stage", format!("`layers_per_stage` has {stages} numbers for pp = {} stages", l.pp));
    }
    if let Recompute::Stages(counts) = &l.recompute {
        let fewer = counts.iter().zip(&p.layers_per_stage).any(|(again, all)| again > all);
        if counts.len() as u64 != l.pp || fewer {
            let what = format!("`recompute` is {}, which is not a part of the layers of {} stages", l.recompute, l.pp);
            return wrong("recompute", what);
        }
    }
    let said = plan.names("layout")?;
    if let Some(said) = said.filter(|said| *said != axis_names(l)) {
        let (said, right) = (said.join(", "), axis_names(l).join(", "));
        return wrong("layout", format!("`layout` lists [{said}], but degrees and order make it [{right}]"));
    }
    let said = plan.map.get("mesh").and_then(Value::as_str);
    if plan.map.get("mesh").is_some_and(|m| !m.is_null()) && said != mesh(l).as_deref() {
        let right = mesh(l).map_or("null: no axes say it".to_string(), |m| format!("{m:?}"));
        return wrong("mesh", format!("`mesh` is {}, but the degrees make it {right}", plan.shown("mesh")));
    }
    Ok(())
}

/// An object of the file, and where it stands.
struct Object<'a> {
    doc: &'a Document,
    map: &'a Map<String, Value>,
    pointer: String,
}

impl<'a> Object<'a> {
    fn new(doc: &'a Document, value: &'a Value, pointer: &str) -> Result<Object<'a>, PlanFileError> {
        match value {
            Value::Object(map) => Ok(Object { doc, map, pointer: pointer.to_string() }),
            other => Err(PlanFileError::NotAnObject { place: doc.place(pointer), found: shown(other) }),
        }
    }

    fn at(&self, key: &str) -> String {
        format!("{}/{key}", self.pointer)
    }

    fn place(&self, key: &str) -> String {
        self.doc.place(&self.at(key))
    }

    fn get(&self, key: &str) -> Result<&'a Value, PlanFileError> {
        let pointer = self.at(key);
        let name = pointer.trim_start_matches('/').replace('/', ".");
        self.map.get(key).ok_or_else(|| PlanFileError::Missing { file: self.doc.file.clone(), key: name })
    }

    fn shown(&self, key: &str) -> String {
        match self.doc.non_finite(&self.at(key)) {
            Some(word) => word.to_string(),
            None => self.map.get(key).map_or("missing".to_string(), shown),
        }
    }

    fn wrong(&self, key: &str, expected: &str, near: &str) -> PlanFileError {
        PlanFileError::Value {
            place: self.place(key),
            key: key.to_string(),
            found: self.shown(key),
            expected: expected.to_string(),
            near: near.to_string(),
        }
    }

    /// Refuses keys that are not among these.
    fn only(&self, known: &[&str]) -> Result<(), PlanFileError> {
        let Some(key) = self.map.keys().find(|k| !known.contains(&k.as_str())) else { return Ok(()) };
        let escaped = key.replace('~', "~0").replace('/', "~1");
        Err(PlanFileError::Unknown {
            place: self.place(&escaped),
            key: key.chars().take(60).collect(),
            near: suggestion(key, known.iter().copied()),
            known: known.join(", "),
        })
    }

    /// The version is judged first: another one may have other keys.
    fn version(&self) -> Result<(), PlanFileError> {
        match self.get("version")?.as_u64() {
            Some(VERSION) => Ok(()),
            _ => Err(PlanFileError::Version { place: self.place("version"), found: self.shown("version") }),
        }
    }

    fn number(&self, key: &str, least: u64, most: u64) -> Result<u64, PlanFileError> {
        let n = self.get(key)?.as_u64().filter(|n| (least..=most).contains(n));
        n.ok_or_else(|| self.wrong(key, &format!("a whole number from {least} to {most}"), ""))
    }

    fn count(&self, key: &str) -> Result<u64, PlanFileError> {
        self.number(key, 1, MOST)
    }

    /// A list of numbers that may be 0.
    fn counts(&self, key: &str) -> Result<Vec<u64>, PlanFileError> {
        let one = |v: &Value| v.as_u64().filter(|n| *n <= MOST);
        let all = self.get(key)?.as_array().and_then(|list| list.iter().map(one).collect());
        all.ok_or_else(|| self.wrong(key, "a list of whole numbers", ""))
    }

    fn names(&self, key: &str) -> Result<Option<Vec<String>>, PlanFileError> {
        let Some(value) = self.map.get(key) else { return Ok(None) };
        let one = |v: &Value| v.as_str().map(str::to_string);
        let all = value.as_array().and_then(|list| list.iter().map(one).collect());
        all.map(Some).ok_or_else(|| self.wrong(key, AXES, ""))
    }

    fn switch(&self, key: &str) -> Result<bool, PlanFileError> {
        self.get(key)?.as_bool().ok_or_else(|| self.wrong(key, "true or false", ""))
    }

    fn text(&self, key: &str) -> Result<String, PlanFileError> {
        let text = self.get(key)?.as_str().filter(|t| !t.is_empty());
        text.map(str::to_string).ok_or_else(|| self.wrong(key, "a text", ""))
    }

    fn word<T: Copy>(&self, key: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T, PlanFileError> {
        let text = self.text(key)?;
        all.iter().copied().find(|w| name(*w) == text).ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|w| name(*w)).collect();
            self.wrong(key, &format!("one of {}", names.join(", ")), &suggestion(&text, names.iter().copied()))
        })
    }
}

/// A value as a message shows it: its JSON, cut where that is long.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.chars().count() > LONGEST {
        true => text.chars().take(LONGEST).chain("…".chars()).collect(),
        false => text,
    }
}
