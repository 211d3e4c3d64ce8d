//! `--fix tp=8,dp=64,zero=1`: what the user decides of a layout.

use super::{CpMethod, Layout, Module, Order, Recompute, Schedule};
use crate::words::suggestion;

/// Largest degree or count that is taken; beyond it products of degrees could overflow.
const MOST: u64 = 1 << 30;

/// The keys, in the order in which they are explained.
pub const KEYS: [&str; 17] = [
    "tp",
    "cp",
    "pp",
    "ep",
    "dp",
    "vpp",
    "mbs",
    "microbatches",
    "zero",
    "shard_group",
    "keep",
    "etp",
    "sp",
    "cp_method",
    "schedule",
    "recompute",
    "layout",
];

/// Decisions that are made; `None` is left to a default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fix {
    /// Tensor-parallel degree.
    pub tp: Option<u64>,
    /// Context-parallel degree.
    pub cp: Option<u64>,
    /// Pipeline stages.
    pub pp: Option<u64>,
    /// Expert-parallel degree.
    pub ep: Option<u64>,
    /// The whole data-parallel degree.
    pub dp: Option<u64>,
    /// Model chunks of a pipeline rank.
    pub vpp: Option<u64>,
    /// Sequences of a micro-batch.
    pub mbs: Option<u64>,
    /// Micro-batches of a step and data rank.
    pub microbatches: Option<u64>,
    /// What data ranks share, 0–3.
    pub zero: Option<u8>,
    /// Ranks that share one copy.
    pub shard_group: Option<u64>,
    /// FSDP keeps gathered parameters until the backward.
    pub keep: Option<bool>,
    /// Ranks that split one expert.
    pub etp: Option<u64>,
    /// Sequence parallelism.
    pub sp: Option<bool>,
    /// How attention sees other cp ranks.
    pub cp_method: Option<CpMethod>,
    /// Order in a pipeline.
    pub schedule: Option<Schedule>,
    /// What the backward computes again.
    pub recompute: Option<Recompute>,
    /// Which ranks are neighbours.
    pub order: Option<Order>,
}

impl Fix {
    /// The keys that are decided, in the order of [`KEYS`].
    pub fn keys(&self) -> Vec<&'static str> {
        let decided = [
            self.tp.is_some(),
            self.cp.is_some(),
            self.pp.is_some(),
            self.ep.is_some(),
            self.dp.is_some(),
            self.vpp.is_some(),
            self.mbs.is_some(),
            self.microbatches.is_some(),
            self.zero.is_some(),
            self.shard_group.is_some(),
            self.keep.is_some(),
            self.etp.is_some(),
            self.sp.is_some(),
            self.cp_method.is_some(),
            self.schedule.is_some(),
            self.recompute.is_some(),
            self.order.is_some(),
        ];
        KEYS.into_iter().zip(decided).filter(|(_, decided)| *decided).map(|(key, _)| key).collect()
    }
}

/// Every decision of a layout with its value, as `--fix` says them.
pub fn lines(l: &Layout) -> Vec<(&'static str, String)> {
    let bit = |b: bool| u8::from(b).to_string();
    vec![
        ("tp", l.tp.to_string()),
        ("cp", l.cp.to_string()),
        ("cp_method", l.cp_method.to_string()),
        ("pp", l.pp.to_string()),
        ("vpp", l.vpp.to_string()),
        ("schedule", l.schedule.to_string()),
        ("ep", l.ep.to_string()),
        ("etp", l.etp.to_string()),
        ("dp", l.dp.to_string()),
        ("zero", l.zero.to_string()),
        ("shard_group", l.shard_group.to_string()),
        ("keep", bit(l.keep)),
        ("sp", bit(l.sp)),
        ("mbs", l.micro_batch.to_string()),
        ("microbatches", l.microbatches.to_string()),
        ("recompute", l.recompute.to_string()),
        ("layout", l.order.map_or("the stack's".to_string(), |o| o.to_string())),
    ]
}

/// All decisions of a layout as one text that [`parse`] reads.
pub fn words(l: &Layout) -> String {
    let said = lines(l).into_iter().filter(|(key, _)| *key != "layout" || l.order.is_some());
    said.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// Why the text of `--fix` is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum FixError {
    #[error("{part:?} is not of the form key=value, as in tp=8,dp=64")]
    NotAPair { part: String },
    #[error("unknown key {key:?}; the keys are {}{near}", KEYS.join(", "))]
    Unknown { key: String, near: String },
    #[error("{key} is given twice")]
    Twice { key: String },
    #[error("{key}={value}: it must be {expected}{near}")]
    Value { key: String, value: String, expected: String, near: String },
    #[error("{key}={value} is not predicted yet; {instead}")]
    Later { key: String, value: String, instead: String },
}

impl FixError {
    /// Whether the text is right and only not served yet: a failure, not a mistake in usage.
    pub fn is_later(&self) -> bool {
        matches!(self, FixError::Later { .. })
    }
}

/// Reads the value of `--fix`.
///
/// # Errors
/// On keys and values that do not exist, naming the nearest that do.
pub fn parse(text: &str) -> Result<Fix, FixError> {
    let mut fix = Fix::default();
    let mut seen: Vec<&str> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let Some((key, value)) = part.split_once('=').map(|(k, v)| (k.trim(), v.trim())) else {
            return Err(FixError::NotAPair { part: part.into() });
        };
        if seen.contains(&key) {
            return Err(FixError::Twice { key: key.into() });
        }
        seen.push(key);
        set(&mut fix, key, value)?;
    }
    Ok(fix)
}

fn set(fix: &mut Fix, key: &str, value: &str) -> Result<(), FixError> {
    match key {
        "tp" => fix.tp = Some(count(key, value)?),
        "cp" => fix.cp = Some(count(key, value)?),
        "pp" => fix.pp = Some(count(key, value)?),
        "ep" => fix.ep = Some(count(key, value)?),
        "dp" => fix.dp = Some(count(key, value)?),
        "vpp" => fix.vpp = Some(count(key, value)?),
        "mbs" => fix.mbs = Some(count(key, value)?),
        "microbatches" => fix.microbatches = Some(count(key, value)?),
        "shard_group" => fix.shard_group = Some(count(key, value)?),
        "etp" => fix.etp = Some(count(key, value)?),
        "zero" => fix.zero = Some(zero(value)?),
        "keep" => fix.keep = Some(switch(key, value)?),
        "sp" => fix.sp = Some(switch(key, value)?),
        "cp_method" => fix.cp_method = Some(word(key, value, CpMethod::ALL, CpMethod::name)?),
        "schedule" => fix.schedule = Some(word(key, value, Schedule::ALL, Schedule::name)?),
        // What `auto` asks for is what an open decision is: the search's.
        "recompute" if value == "auto" => fix.recompute = None,
        "recompute" => fix.recompute = Some(recompute(value)?),
        "layout" => fix.order = Some(order(value)?),
        _ => return Err(FixError::Unknown { key: key.into(), near: suggestion(key, KEYS) }),
    }
    Ok(())
}

fn wrong(key: &str, value: &str, expected: impl Into<String>) -> FixError {
    FixError::Value { key: key.into(), value: value.into(), expected: expected.into(), near: String::new() }
}

fn count(key: &str, value: &str) -> Result<u64, FixError> {
    let n = value.parse::<u64>().ok().filter(|n| (1..=MOST).contains(n));
    n.ok_or_else(|| wrong(key, value, format!("a whole number from 1 to {MOST}")))
}

fn zero(value: &str) -> Result<u8, FixError> {
    let n = value.parse::<u8>().ok().filter(|n| *n <= 3);
    n.ok_or_else(|| wrong("zero", value, "0, 1, 2 or 3"))
}

fn switch(key: &str, value: &str) -> Result<bool, FixError> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(wrong(key, value, "0 or 1")),
    }
}

fn word<T: Copy>(key: &str, value: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T, FixError> {
    all.iter().copied().find(|w| name(*w) == value).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|w| name(*w)).collect();
        let near = suggestion(value, names.iter().copied());
        FixError::Value { key: key.into(), value: value.into(), expected: names.join(", "), near }
    })
}

/// Axes, innermost first.
fn order(value: &str) -> Result<Order, FixError> {
    let expected = "axes, innermost first, each once: tp, cp, dp, pp, as in tp+cp+dp+pp";
    Order::from_name(value).ok_or_else(|| wrong("layout", value, expected))
}

/// `none`, `full`, `selective` (attention's core), `selective:mlp+layernorm`, `layers:N`, `stages:N+N`, `every:1`.
fn recompute(value: &str) -> Result<Recompute, FixError> {
    let later =
        |instead: &str| Err(FixError::Later { key: "recompute".into(), value: value.into(), instead: instead.into() });
    match value.split_once(':').unwrap_or((value, "")) {
        ("none", "") => Ok(Recompute::None),
        ("full", "") | ("every", "1") => Ok(Recompute::Full),
        ("selective", "") => Ok(Recompute::Selective(vec![Module::CoreAttn])),
        ("selective", list) => modules(list).map(Recompute::Selective),
        ("layers", n) => count("recompute=layers", n).map(Recompute::Layers),
        ("stages", list) => {
            let one = |n: &str| n.parse::<u64>().ok().filter(|n| *n <= MOST);
            let counts = list.split('+').map(one).collect::<Option<Vec<u64>>>();
            counts.map(Recompute::Stages).ok_or_else(|| {
                wrong("recompute=stages", list, "a number of layers for each stage, as in stages:3+2+1+0")
            })
        }
        ("every", n) if n.parse::<u64>().is_ok_and(|n| n > 0) => {
            later("use full, layers:N for whole layers in N of them, or stages:N+N+… by stage")
        }
        _ => {
            let words = ["none", "selective", "full", "layers", "stages", "every", "auto"];
            let expected = "none, selective, selective:MODULE+MODULE, full, layers:N, stages:N+N+…, every:1, auto";
            let near = suggestion(value, words);
            Err(FixError::Value { key: "recompute".into(), value: value.into(), expected: expected.into(), near })
        }
    }
}

fn modules(list: &str) -> Result<Vec<Module>, FixError> {
    list.split('+').map(|m| word("recompute=selective", m, Module::ALL, Module::name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read() {
        let text = "tp=8,cp=1,pp=16,ep=1,dp=64,vpp=8,mbs=1,zero=1,shard_group=64,recompute=none,schedule=1f1b,\
                    microbatches=32,keep=0,etp=2,sp=1,cp_method=ulysses,layout=tp+pp+cp+dp";
        let fix = parse(text).unwrap();
        assert_eq!((fix.tp, fix.pp, fix.dp, fix.vpp, fix.mbs), (Some(8), Some(16), Some(64), Some(8), Some(1)));
        assert_eq!((fix.zero, fix.shard_group, fix.keep), (Some(1), Some(64), Some(false)));
        assert_eq!((fix.schedule, fix.cp_method), (Some(Schedule::OneFOneB), Some(CpMethod::Ulysses)));
        assert_eq!(
            (fix.recompute, fix.microbatches, fix.etp, fix.sp),
            (Some(Recompute::None), Some(32), Some(2), Some(true))
        );
        assert_eq!(fix.order.map(|o| o.to_string()).as_deref(), Some("tp+pp+cp+dp"));
        assert_eq!(parse(text).unwrap().keys(), KEYS);
        assert_eq!(parse("zero=1,tp=2").unwrap().keys(), ["tp", "zero"]);
        // Every key that is listed is known, and says so when its value is not.
        for key in KEYS {
            assert!(matches!(parse(&format!("{key}=?")), Err(FixError::Value { .. })), "{key}");
        }
    }

    #[test]
    fn recompute_has_its_own_words() {
        let of = |v: &str| parse(&format!("recompute={v}")).map(|f| f.recompute.unwrap().to_string());
        assert_eq!(of("selective").unwrap(), "selective:core_attn");
        assert_eq!(of("selective:mlp+layernorm").unwrap(), "selective:mlp+layernorm");
        assert_eq!(of("every:1").unwrap(), "full");
        assert_eq!(of("layers:5").unwrap(), "layers:5");
        assert_eq!(of("stages:3+0").unwrap(), "stages:3+0");
        assert!(of("stages:3+x").is_err() && of("stages:").is_err());
        assert!(of("every:2").unwrap_err().is_later());
        assert_eq!(parse("recompute=auto").unwrap(), Fix::default());
        assert!(of("selectiv").unwrap_err().to_string().contains("did you mean `selective`?"));
        assert!(of("selective:mlq").unwrap_err().to_string().contains("did you mean `mlp`?"));
        assert!(of("layers:0").is_err() && of("every:0").is_err());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("tp", "\"tp\" is not of the form key=value"),
            ("tp=2,tp=2", "tp is given twice"),
            ("tpp=2", "did you mean `tp`?"),
            ("shardgroup=2", "did you mean `shard_group`?"),
            ("tp=0", "tp=0: it must be a whole number from 1"),
            ("dp=-2", "dp=-2: it must be a whole number"),
            ("tp=1e3", "tp=1e3"),
            ("zero=4", "zero=4: it must be 0, 1, 2 or 3"),
            ("sp=yes", "sp=yes: it must be 0 or 1"),
            ("schedule=1b1f", "did you mean `1f1b`?"),
            ("cp_method=rings", "did you mean `ring`?"),
        ] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
