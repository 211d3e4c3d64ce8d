//! From decisions to a whole layout: defaults for what is not decided, and what cannot be.

use super::axes::{self, Axes, AxesError, Degrees};
use super::fix::Fix;
use super::{CpMethod, Layout, ModelFacts, Order, Recompute, Schedule};

/// What a layout is made for.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The model.
    pub facts: &'a ModelFacts,
    /// Devices to use.
    pub devices: u64,
    /// Positions of a sequence; `None` is min(4096, what the model is made for).
    pub seq_len: Option<u64>,
    /// Sequences of a step; `None` is one per data rank and micro-batch.
    pub global_batch: Option<u64>,
    /// The framework; its habit decides what data ranks share by default.
    pub stack: &'a str,
    /// How the framework lays ranks out.
    pub order: Order,
}

/// One line of what was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Key of `--fix`, or a flag.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// Why, where it is a default; empty where it was given.
    pub default: String,
}

/// A whole layout, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The layout.
    pub layout: Layout,
    /// Positions of a sequence.
    pub seq_len: u64,
    /// Sequences of a step.
    pub global_batch: u64,
    /// Every decision with its origin, in the order of the keys.
    pub lines: Vec<Setting>,
    /// The same layout as mesh axes; an error where axes cannot say it.
    pub mesh: Result<Axes, AxesError>,
}

/// Why no such layout exists; every message names what works.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Impossible {
    #[error("tp={tp} does not split {heads} heads ({kv_heads} kv heads); tp can be {works}")]
    Heads { tp: u64, heads: u64, kv_heads: u64, works: String },
    #[error("tp={tp}·cp={cp}·pp={pp} = {product} does not divide {devices} devices; the product can be {works}")]
    Devices { tp: u64, cp: u64, pp: u64, product: u64, devices: u64, works: String },
    #[error("tp={tp}·cp={cp}·pp={pp}·dp={dp} = {product}, not {devices} devices; dp would be {right}")]
    World { tp: u64, cp: u64, pp: u64, dp: u64, product: u64, devices: u64, right: u64 },
    #[error("a global batch of {batch} is not a multiple of dp={dp}·mbs={mbs} = {unit}; {works}")]
    Batch { batch: u64, dp: u64, mbs: u64, unit: u64, works: String },
    #[error(
        "dp={dp}·mbs={mbs}·microbatches={microbatches} = {product} sequences, not the global batch of {batch}; {works}"
    )]
    Microbatches { dp: u64, mbs: u64, microbatches: u64, product: u64, batch: u64, works: String },
    #[error("ep={ep}: the model has no experts; leave ep and etp out or set them to 1")]
    NoExperts { ep: u64 },
    #[error("ep={ep} does not divide {experts} experts; ep can be {works}")]
    Experts { ep: u64, experts: u64, works: String },
    #[error(
        "etp={etp}·ep={ep} does not divide the tp·cp·dp = {ranks} ranks of a stage; with etp={etp}, ep can be {works}"
    )]
    ExpertMesh { etp: u64, ep: u64, ranks: u64, works: String },
    #[error("cp={cp} does not split {seq_len} positions: each rank takes two chunks, so 2·cp must divide them; cp can be {works}")]
    Positions { cp: u64, seq_len: u64, works: String },
    #[error("cp={cp} with cp_method=ulysses splits the heads of a tp rank, and {per_rank} heads a rank are not a multiple; use cp_method=ring or allgather, or cp of {works}")]
    Ulysses { cp: u64, per_rank: u64, works: String },
    #[error("zero={zero} and shard_group={shard_group} contradict each other: {why}")]
    Sharding { zero: u8, shard_group: u64, why: String },
    #[error("keep=1 and zero={zero} contradict each other: only FSDP keeps gathered parameters; set zero=3 or leave keep out")]
    Keep { zero: u8 },
    #[error("sp=1 splits positions over tp ranks, and tp is 1; leave sp out")]
    Sequence,
    #[error("tp={tp} with sp=1 does not split {positions} positions a cp rank; use sp=0, or tp of {works}")]
    SequenceSplit { tp: u64, positions: u64, works: String },
    #[error("pp={pp}·vpp={vpp} = {product} chunks are more than the {layers} layers of the model with embedding and head; their product can be at most {}", layers + 2)]
    Chunks { pp: u64, vpp: u64, product: u64, layers: u64 },
    #[error("microbatches={microbatches} with schedule=interleaved is not a multiple of pp={pp}: chunks take micro-batches in groups of pp; microbatches can be {works}")]
    Groups { microbatches: u64, pp: u64, works: String },
    #[error("vpp={vpp} interleaves chunks of pipeline ranks, and pp is 1; leave vpp out or set pp")]
    Interleaving { vpp: u64 },
    #[error("vpp={vpp} with schedule={schedule}: it has {has} of a model on each rank; {works}")]
    ChunksOfSchedule { vpp: u64, schedule: Schedule, has: &'static str, works: String },
    #[error("recompute=layers:{n}: the model has {layers} layers")]
    Layers { n: u64, layers: u64 },
    #[error("recompute=stages with {given} numbers: there are {pp} stages; give a number of layers for each")]
    Stages { given: u64, pp: u64 },
}

/// Makes the layout of these decisions.
///
/// # Errors
/// Where they cannot hold together, naming what works.
pub fn settle(fix: &Fix, job: &Job) -> Result<Settings, Impossible> {
    let mut lines = Lines::default();
    let (tp, cp, pp) = (
        lines.or(fix.tp, "tp", 1, "not split"),
        lines.or(fix.cp, "cp", 1, "not split"),
        lines.or(fix.pp, "pp", 1, "one stage"),
    );
    let dp = data_ranks(fix, job, tp, cp, pp, &mut lines)?;
    heads(tp, job.facts)?;
    let (ep, etp) = experts(fix, job.facts, tp, tp.saturating_mul(cp).saturating_mul(dp), &mut lines)?;
    let (chunked, why) = match fix.schedule {
        Some(Schedule::ZbV | Schedule::DualPipeV) if pp > 1 => (2, "a V has two chunks on each rank"),
        _ => (1, "no interleaving"),
    };
    let vpp = lines.or(fix.vpp, "vpp", chunked, why);
    chunks(pp, vpp, job.facts)?;
    let seq_len = sequence(job, &mut lines);
    let (global_batch, micro_batch, microbatches) = batch(fix, job, dp, least(fix, pp, vpp), &mut lines)?;
    let (zero, shard_group, keep) = sharding(fix, job.stack, dp, cp, &mut lines)?;
    let sp = lines.or(fix.sp, "sp", tp > 1, "on with tp");
    let cp_method = lines.or(fix.cp_method, "cp_method", CpMethod::Ring, "");
    positions(job.facts, tp, cp, cp_method, sp, fix.sp.is_some(), seq_len)?;
    let order = if vpp > 1 { Schedule::Interleaved } else { Schedule::OneFOneB };
    let schedule = lines.or(fix.schedule, "schedule", order, "");
    chunks_of_schedule(fix.vpp, vpp, schedule)?;
    groups(schedule, pp, microbatches)?;
    let recompute = lines.or(fix.recompute.clone(), "recompute", Recompute::None, "");
    if let Recompute::Layers(n) = recompute {
        if n > job.facts.layers {
            return Err(Impossible::Layers { n, layers: job.facts.layers });
        }
    }
    if let Recompute::Stages(counts) = &recompute {
        if counts.len() as u64 != pp {
            return Err(Impossible::Stages { given: counts.len() as u64, pp });
        }
    }
    let order = lines.or(fix.order, "layout", job.order, "as the stack lays ranks out");
    let mesh = axes::to_axes(&Degrees { pp, dp, ep, cp, tp, zero, shard_group });
    let layout = Layout {
        tp,
        cp,
        pp,
        ep,
        etp,
        dp,
        vpp,
        zero,
        keep,
        shard_group,
        sp,
        cp_method,
        micro_batch,
        microbatches,
        recompute,
        schedule,
        order: Some(order),
    };
    Ok(Settings { layout, seq_len, global_batch, lines: lines.0, mesh })
}

/// The lines as they are decided.
#[derive(Default)]
struct Lines(Vec<Setting>);

impl Lines {
    /// Takes what was given, or the default with its reason; records which.
    fn or<T: Shown>(&mut self, given: Option<T>, key: &'static str, default: T, why: &str) -> T {
        let origin = match given {
            Some(_) => String::new(),
            None if why.is_empty() => "default".into(),
            None => format!("default: {why}"),
        };
        let value = given.unwrap_or(default);
        self.0.push(Setting { key, value: value.shown(), default: origin });
        value
    }
}

/// How a decision prints: as `--fix` takes it.
trait Shown {
    fn shown(&self) -> String;
}

impl Shown for bool {
    fn shown(&self) -> String {
        u8::from(*self).to_string()
    }
}

macro_rules! shown_as_displayed {
    ($($t:ty),+) => { $(impl Shown for $t { fn shown(&self) -> String { self.to_string() } })+ };
}
shown_as_displayed!(u64, u8, CpMethod, Schedule, Recompute, Order);

fn data_ranks(fix: &Fix, job: &Job, tp: u64, cp: u64, pp: u64, lines: &mut Lines) -> Result<u64, Impossible> {
    let product = tp.saturating_mul(cp).saturating_mul(pp);
    let devices = job.devices;
    if !devices.is_multiple_of(product) {
        // A planner may leave some idle; a layout that is given uses all.
        let works = if product > devices { format!("at most {devices}") } else { list(divisors(devices)) };
        return Err(Impossible::Devices { tp, cp, pp, product, devices, works });
    }
    let right = devices / product;
    match fix.dp {
        Some(dp) if dp != right => {
            Err(Impossible::World { tp, cp, pp, dp, product: product.saturating_mul(dp), devices, right })
        }
        dp => Ok(lines.or(dp, "dp", right, &format!("{devices} devices over tp·cp·pp"))),
    }
}

/// Whether so many ranks split the heads: kv groups first and queries of a group then, t = t₀·t₁ with t₀ | g, t₁ | r.
pub fn splits_heads(tp: u64, facts: &ModelFacts) -> bool {
    let (g, r) = (facts.kv_heads, facts.heads / facts.kv_heads.max(1));
    divisors(g).iter().any(|t0| tp.is_multiple_of(*t0) && r.is_multiple_of(tp / t0))
}

fn heads(tp: u64, facts: &ModelFacts) -> Result<(), Impossible> {
    if splits_heads(tp, facts) {
        return Ok(());
    }
    let works = list(divisors(facts.heads).into_iter().filter(|t| splits_heads(*t, facts)).collect());
    Err(Impossible::Heads { tp, heads: facts.heads, kv_heads: facts.kv_heads, works })
}

fn experts(fix: &Fix, facts: &ModelFacts, tp: u64, ranks: u64, lines: &mut Lines) -> Result<(u64, u64), Impossible> {
    let ep = lines.or(fix.ep, "ep", 1, "experts not split");
    if facts.experts == 0 {
        // Without experts the expert mesh is empty: etp stays 1 and is not a decision.
        return match (ep, fix.etp.unwrap_or(1)) {
            (1, 1) => Ok((1, 1)),
            _ => Err(Impossible::NoExperts { ep }),
        };
    }
    if !facts.experts.is_multiple_of(ep) {
        return Err(Impossible::Experts { ep, experts: facts.experts, works: list(divisors(facts.experts)) });
    }
    let divides = |etp: u64, ep: u64| ranks.is_multiple_of(etp.saturating_mul(ep));
    let (default, why) = if divides(tp, ep) { (tp, "tp, which divides") } else { (1, "tp does not divide") };
    let etp = lines.or(fix.etp, "etp", default, why);
    if !divides(etp, ep) {
        let works = divisors(facts.experts).into_iter().filter(|e| divides(etp, *e)).collect();
        return Err(Impossible::ExpertMesh { etp, ep, ranks, works: list(works) });
    }
    Ok((ep, etp))
}

fn chunks(pp: u64, vpp: u64, facts: &ModelFacts) -> Result<(), Impossible> {
    if vpp > 1 && pp == 1 {
        return Err(Impossible::Interleaving { vpp });
    }
    match pp.saturating_mul(vpp) {
        // The embedding and the head may be chunks by themselves, as in Llama 3 (126 layers on 128 chunks).
        product if product > facts.layers.saturating_add(2) => {
            Err(Impossible::Chunks { pp, vpp, product, layers: facts.layers })
        }
        _ => Ok(()),
    }
}

/// Interleaved chunks take micro-batches in groups of pp (Megatron's schedule); pp·vpp need not divide them.
fn groups(schedule: Schedule, pp: u64, microbatches: u64) -> Result<(), Impossible> {
    if schedule != Schedule::Interleaved || microbatches.is_multiple_of(pp) {
        return Ok(());
    }
    let works = match microbatches / pp * pp {
        0 => pp.to_string(),
        below => format!("{below} or {}", below.saturating_add(pp)),
    };
    Err(Impossible::Groups { microbatches, pp, works })
}

/// Only interleaved 1F1B has as many chunks as one likes; schedules in a V have two, whether vpp says so or not.
fn chunks_of_schedule(given: Option<u64>, vpp: u64, schedule: Schedule) -> Result<(), Impossible> {
    let (has, works) = match schedule {
        Schedule::Interleaved => return Ok(()),
        Schedule::ZbV | Schedule::DualPipeV if given.is_none_or(|v| v == 2) => return Ok(()),
        Schedule::ZbV | Schedule::DualPipeV => ("two chunks", "leave vpp out or set vpp=2"),
        _ if vpp == 1 => return Ok(()),
        _ => ("one chunk", "leave vpp out or use schedule=interleaved"),
    };
    Err(Impossible::ChunksOfSchedule { vpp, schedule, has, works: works.to_string() })
}

fn sequence(job: &Job, lines: &mut Lines) -> u64 {
    let most = job.facts.max_positions.unwrap_or(4096);
    lines.or(job.seq_len, "seq-len", most.min(4096), "min(4096, max_position_embeddings)")
}

/// Micro-batches where neither they nor the batch are given.
fn least(fix: &Fix, pp: u64, vpp: u64) -> (u64, &'static str) {
    match fix.schedule.map_or(vpp > 1, |s| s == Schedule::Interleaved) {
        true => (pp, "interleaved: a group of pp"),
        false => (1, "one a step"),
    }
}

/// Global batch, micro-batch, micro-batches: two of them give the third.
fn batch(
    fix: &Fix,
    job: &Job,
    dp: u64,
    (least, least_why): (u64, &str),
    lines: &mut Lines,
) -> Result<(u64, u64, u64), Impossible> {
    let derived = match (fix.mbs, fix.microbatches, job.global_batch) {
        (None, Some(m), Some(b)) if b.is_multiple_of(dp.saturating_mul(m)) => Some(b / (dp * m)),
        _ => None,
    };
    let why = if derived.is_some() { "global batch over dp·microbatches" } else { "one sequence" };
    let mbs = lines.or(fix.mbs, "mbs", derived.unwrap_or(1), why);
    let unit = dp.saturating_mul(mbs);
    let Some(batch) = job.global_batch else {
        let m = lines.or(fix.microbatches, "microbatches", least, least_why);
        let batch = lines.or(None, "global-batch", unit.saturating_mul(m), "dp·mbs·microbatches");
        return Ok((batch, mbs, m));
    };
    if !batch.is_multiple_of(unit) {
        return Err(Impossible::Batch { batch, dp, mbs, unit, works: batches(batch, dp, unit) });
    }
    let m = lines.or(fix.microbatches, "microbatches", batch / unit, "global batch over dp·mbs");
    lines.or(Some(batch), "global-batch", batch, "");
    if unit.saturating_mul(m) != batch {
        let works = format!("with mbs={mbs}, microbatches would be {}", batch / unit);
        let product = unit.saturating_mul(m);
        return Err(Impossible::Microbatches { dp, mbs, microbatches: m, product, batch, works });
    }
    Ok((batch, mbs, m))
}

/// Which batches and micro-batches would do instead.
fn batches(batch: u64, dp: u64, unit: u64) -> String {
    let near = match (batch / unit).saturating_mul(unit) {
        0 => unit.to_string(),
        below => format!("{below} or {}", below.saturating_add(unit)),
    };
    match batch % dp {
        0 => format!("the batch could be {near}, or mbs {}", list(divisors(batch / dp))),
        _ => format!("the batch could be {near}"),
    }
}

/// Stacks whose habit is to share parameters, not optimizer states alone.
const FULLY_SHARDED: [&str; 6] = ["fsdp", "torchtitan", "automodel", "maxtext", "deepspeed-zero3", "autoshard"];

/// What data ranks share when nobody says: as the stack is mostly run (`norm.zero` of published runs).
pub fn habitual_zero(stack: &str) -> u8 {
    if FULLY_SHARDED.iter().any(|s| stack.starts_with(s)) {
        3
    } else {
        1
    }
}

fn sharding(fix: &Fix, stack: &str, dp: u64, cp: u64, lines: &mut Lines) -> Result<(u8, u64, bool), Impossible> {
    let ranks = dp.saturating_mul(cp);
    let implied = match (fix.shard_group, fix.keep) {
        (Some(1), _) => (0, "a shard group of one"),
        (_, Some(true)) => (3, "keep is FSDP's"),
        _ if ranks == 1 => (0, "one data rank"),
        _ => (habitual_zero(stack), "as the stack is mostly run"),
    };
    let zero = lines.or(fix.zero, "zero", implied.0, implied.1);
    let all = if zero == 0 { 1 } else { ranks };
    let why = if zero == 0 { "nothing is shared" } else { "all dp·cp ranks" };
    let shard_group = lines.or(fix.shard_group, "shard_group", all, why);
    let contradiction = |why: String| Err(Impossible::Sharding { zero, shard_group, why });
    if zero == 0 && shard_group > 1 {
        return contradiction("zero=0 shares nothing; set zero to 1, 2 or 3, or shard_group=1".into());
    }
    if zero > 0 && !ranks.is_multiple_of(shard_group) {
        return contradiction(format!(
            "a group must divide the dp·cp = {ranks} ranks; shard_group can be {}",
            list(divisors(ranks))
        ));
    }
    let keep = lines.or(fix.keep, "keep", false, "parameters are gathered again");
    if keep && zero < 2 {
        return Err(Impossible::Keep { zero });
    }
    Ok((zero, shard_group, keep))
}

fn positions(
    facts: &ModelFacts,
    tp: u64,
    cp: u64,
    method: CpMethod,
    sp: bool,
    asked: bool,
    seq_len: u64,
) -> Result<(), Impossible> {
    if cp > 1 && !seq_len.is_multiple_of(cp.saturating_mul(2)) {
        let works = divisors(seq_len).into_iter().filter(|c| *c == 1 || seq_len.is_multiple_of(2 * c)).collect();
        return Err(Impossible::Positions { cp, seq_len, works: list(works) });
    }
    let per_rank = facts.heads / tp;
    if cp > 1 && method == CpMethod::Ulysses && !per_rank.is_multiple_of(cp) {
        return Err(Impossible::Ulysses { cp, per_rank, works: list(divisors(per_rank)) });
    }
    if sp && tp == 1 && asked {
        return Err(Impossible::Sequence);
    }
    let positions = seq_len / cp;
    if sp && !positions.is_multiple_of(tp) {
        return Err(Impossible::SequenceSplit { tp, positions, works: list(divisors(positions)) });
    }
    Ok(())
}

/// Divisors in rising order.
pub fn divisors(n: u64) -> Vec<u64> {
    let low: Vec<u64> = (1..).take_while(|d| d * d <= n).filter(|d| n.is_multiple_of(*d)).collect();
    let high = low.iter().rev().map(|d| n / d).filter(|d| d * d > n);
    low.iter().copied().chain(high).collect()
}

/// Numbers with commas; the first two dozen of many.
fn list(numbers: Vec<u64>) -> String {
    let words: Vec<String> = numbers.iter().take(24).map(u64::to_string).collect();
    words.join(",") + if numbers.len() > 24 { ",…" } else { "" }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
