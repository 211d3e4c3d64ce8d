//! The parameters of a model as its checkpoint stores them.

use super::config::ModelConfig;
use super::families::Role;
use crate::weights::init::InitKind;

/// One tensor of the checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Its Hugging Face name.
    pub name: String,
    /// What it is to the model.
    pub role: Role,
    /// The layer it belongs to; None outside the layers.
    pub layer: Option<usize>,
    /// The checkpoint's shape, row-major; linear weights are `[out, in]`.
    pub shape: Vec<usize>,
    /// How it is initialised where there is no checkpoint.
    pub kind: InitKind,
}

impl ParamSpec {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements; an imported model has no such parameter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Every parameter in checkpoint order: embeddings, the layers, the last norm, the head. A head tied to the
/// embeddings is no parameter of its own and is left out.
pub fn params(config: &ModelConfig) -> Vec<ParamSpec> {
    let layers = (0..config.layers).flat_map(|l| layer_roles(config).map(move |role| spec(config, role, Some(l))));
    let head = (!config.tied).then_some(Role::Head);
    let last = [Role::FinalNorm].into_iter().chain(head);
    let outer = |role| spec(config, role, None);
    std::iter::once(outer(Role::Embed)).chain(layers).chain(last.map(outer)).collect()
}

/// Number of parameters, a tied tensor counted once.
pub fn num_params(config: &ModelConfig) -> u64 {
    let size = |role| shape(config, role).iter().map(|&n| n as u64).product::<u64>();
    let layer: u64 = layer_roles(config).map(size).sum();
    let head = if config.tied { 0 } else { size(Role::Head) };
    size(Role::Embed) + config.layers as u64 * layer + size(Role::FinalNorm) + head
}

/// The parameters of one layer, in checkpoint order.
pub fn layer_roles(config: &ModelConfig) -> impl Iterator<Item = Role> {
    let (q, kv, o, mlp, norm) = (config.q_bias, config.kv_bias, config.o_bias, config.mlp_bias, config.qk_norm);
    let roles = [
        (Role::Q, true),
        (Role::QBias, q),
        (Role::K, true),
        (Role::KBias, kv),
        (Role::V, true),
        (Role::VBias, kv),
        (Role::O, true),
        (Role::OBias, o),
        (Role::QNorm, norm),
        (Role::KNorm, norm),
        (Role::Gate, true),
        (Role::GateBias, mlp),
        (Role::Up, true),
        (Role::UpBias, mlp),
        (Role::Down, true),
        (Role::DownBias, mlp),
        (Role::AttnNorm, true),
        (Role::MlpNorm, true),
    ];
    roles.into_iter().filter(|(_, present)| *present).map(|(role, _)| role)
}

/// The parameter with this role; `layer` is None outside the layers.
pub fn spec(config: &ModelConfig, role: Role, layer: Option<usize>) -> ParamSpec {
    let shape = shape(config, role);
    let kind = init_kind(role, &shape);
    ParamSpec { name: config.family.name(role, layer.unwrap_or(0)), role, layer, shape, kind }
}

/// The checkpoint's shape of a parameter.
pub fn shape(config: &ModelConfig, role: Role) -> Vec<usize> {
    let c = config;
    let (q_rows, kv_rows) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    match role {
        Role::Embed | Role::Head => vec![c.vocab, c.hidden],
        Role::Q => vec![q_rows, c.hidden],
        Role::QBias => vec![q_rows],
        Role::K | Role::V => vec![kv_rows, c.hidden],
        Role::KBias | Role::VBias => vec![kv_rows],
        Role::O => vec![c.hidden, q_rows],
        Role::QNorm | Role::KNorm => vec![c.head_dim],
        Role::Gate | Role::Up => vec![c.ffn, c.hidden],
        Role::GateBias | Role::UpBias => vec![c.ffn],
        Role::Down => vec![c.hidden, c.ffn],
        Role::OBias | Role::DownBias | Role::AttnNorm | Role::MlpNorm | Role::FinalNorm => {
            vec![c.hidden]
        }
    }
}

fn init_kind(role: Role, shape: &[usize]) -> InitKind {
    match role {
        Role::QBias | Role::KBias | Role::VBias | Role::OBias | Role::GateBias | Role::UpBias | Role::DownBias => {
            InitKind::Bias
        }
        Role::QNorm | Role::KNorm | Role::AttnNorm | Role::MlpNorm | Role::FinalNorm => InitKind::Gain,
        // Every matrix of these families is [out, in].
        _ => InitKind::Matrix { fan_in: shape[1] },
    }
}
