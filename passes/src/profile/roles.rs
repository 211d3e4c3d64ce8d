//! Which factor of a node each mesh axis splits, and what is left for one rank.
//!
//! tp takes heads (`g`, then `r`), the MLP width (`f`) or the vocabulary (`v`) where a node has them; with
//! sequence parallelism it takes positions (`s`) in the other nodes. cp takes positions everywhere. ep takes
//! experts (`E`), etp the width of an expert.

use super::Context;
use autoshard_ir::core::Rule;

/// Degrees of the axes that split the work of one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shards {
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// Whether tp splits positions outside tensor-parallel regions.
    pub sp: bool,
    /// Context-parallel ranks.
    pub cp: u64,
    /// How keys come to queries.
    pub context: Context,
    /// Expert-parallel ranks.
    pub ep: u64,
    /// Tensor-parallel ranks of an expert.
    pub etp: u64,
}

impl Default for Shards {
    fn default() -> Shards {
        Shards { tp: 1, sp: false, cp: 1, context: Context::Ring, ep: 1, etp: 1 }
    }
}

/// The factor that tp (etp in experts) takes in a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// None: every rank computes the whole.
    None,
    /// Key/value heads and queries per head.
    Heads,
    /// The MLP width.
    Width,
    /// The vocabulary.
    Vocabulary,
    /// Positions (sequence parallelism).
    Positions,
}

impl Takes {
    /// Whether a dimension of this name is split.
    pub(super) fn splits(self, dim: &str) -> bool {
        match self {
            Takes::None => false,
            Takes::Heads => dim == "g" || dim == "r",
            Takes::Width => dim == "f",
            Takes::Vocabulary => dim == "v",
            Takes::Positions => dim == "s",
        }
    }
}

/// The factors of one node and what splits them.
pub(super) struct Split<'a> {
    pub shards: &'a Shards,
    pub takes: Takes,
    /// A node over the slots of experts.
    pub expert: bool,
    /// Key/value heads of the node, if it has them.
    kv_heads: Option<f64>,
}

/// What of a node's factors an axis may split.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// Whether it is over the slots of experts.
    expert: bool,
    heads: bool,
    width: bool,
    vocabulary: bool,
    positions: bool,
    kv_heads: Option<f64>,
}

impl Traits {
    pub(super) fn of(rule: &Rule) -> Traits {
        let has = |name: &str| rule.factor(name).is_some();
        Traits {
            expert: has("E") && has("c"),
            heads: has("g") || has("r"),
            width: has("f"),
            vocabulary: has("v"),
            positions: has("s"),
            kv_heads: rule.factor("g").map(|g| rule.factors[g].size as f64),
        }
    }
}

impl<'a> Split<'a> {
    pub(super) fn of(node: &Traits, shards: &'a Shards) -> Split<'a> {
        let takes = match () {
            () if node.expert && node.width && shards.etp > 1 => Takes::Width,
            () if node.expert || shards.tp == 1 => Takes::None,
            () if node.heads => Takes::Heads,
            () if node.width => Takes::Width,
            () if node.vocabulary => Takes::Vocabulary,
            () if node.positions && shards.sp => Takes::Positions,
            () => Takes::None,
        };
        Split { shards, takes, expert: node.expert, kv_heads: node.kv_heads }
    }

    /// How many ranks share a dimension of this name in this node.
    pub(super) fn ways(&self, dim: &str) -> f64 {
        let s = self.shards;
        let (tp, cp, ep, etp) = (s.tp as f64, s.cp as f64, s.ep as f64, s.etp as f64);
        if self.expert {
            return match dim {
                "E" => ep,
                "f" if self.takes == Takes::Width => etp,
                // A rank holds fewer experts, each with the slots of all ranks that send to it.
                "c" => cp * tp / (ep * etp),
                _ => 1.0,
            };
        }
        let context = if dim == "s" { cp } else { 1.0 };
        let heads = self.kv_heads.map_or(tp, |g| tp.min(g));
        context
            * match (self.takes, dim) {
                (Takes::Heads, "g") => heads,
                (Takes::Heads, "r") => tp / heads,
                (takes, dim) if takes.splits(dim) => tp,
                _ => 1.0,
            }
    }
}
