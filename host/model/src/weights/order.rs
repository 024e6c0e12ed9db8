//! The order in which matrices are loaded, and the read-ahead that it allows.

use super::files::Files;
use crate::config::{ExpertsConfig, ModelConfig};

/// Matrices that read the same inputs, stacked: names without their suffix, and outputs.
pub(super) struct Stack {
    pub parts: Vec<(String, usize)>,
    pub inputs: usize,
    /// Whether it is held in f32, whatever other matrices become.
    pub exact: bool,
}

impl Stack {
    /// A matrix that isn't stacked.
    pub(super) fn one(name: &str, [outputs, inputs]: [usize; 2]) -> Self {
        Self { parts: vec![(name.to_owned(), outputs)], inputs, exact: false }
    }

    /// Names and shapes of the tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (String, [usize; 2])> {
        self.parts.iter().map(|(name, outputs)| (format!("{name}.weight"), [*outputs, self.inputs]))
    }

    /// Outputs of all parts.
    pub(super) fn outputs(&self) -> usize {
        self.parts.iter().map(|(_, outputs)| outputs).sum()
    }
}

/// A layer's stacks, in loading order.
pub(super) struct Stacks {
    pub qkv: Stack,
    pub output: Stack,
    pub mlp: MlpStacks,
}

/// Those of a feed-forward layer.
pub(super) enum MlpStacks {
    Dense(GatedStacks),
    Experts { config: ExpertsConfig, router: Stack, experts: Vec<GatedStacks> },
}

/// Those of a gated layer.
pub(super) struct GatedStacks {
    pub gate_up: Stack,
    pub down: Stack,
}

impl Stacks {
    pub(super) fn of(config: &ModelConfig, layer: usize) -> Self {
        let (q, kv) = (config.q_width(), config.kv_width());
        let hidden = config.hidden;
        let stack = |parts: &[(&str, usize)], inputs| Stack {
            parts: parts.iter().map(|(part, n)| (format!("layers.{layer}.{part}"), *n)).collect(),
            inputs,
            exact: false,
        };
        let gated = |place: &str, width: usize| {
            let [gate, up, down] = ["gate", "up", "down"].map(|part| format!("{place}.{part}_proj"));
            GatedStacks {
                gate_up: stack(&[(gate.as_str(), width), (up.as_str(), width)], hidden),
                down: stack(&[(down.as_str(), hidden)], width),
            }
        };
        let mlp = match config.layers[layer].experts {
            None => MlpStacks::Dense(gated("mlp", config.intermediate)),
            Some(config) => MlpStacks::Experts {
                config,
                // It decides for one expert or another, so rounding could change an output by a whole expert.
                router: Stack { exact: true, ..stack(&[("mlp.gate", config.count)], hidden) },
                experts: (0..config.count)
                    .map(|expert| gated(&format!("mlp.experts.{expert}"), config.intermediate))
                    .collect(),
            },
        };
        Self {
            qkv: stack(
                &[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
                hidden,
            ),
            output: stack(&[("self_attn.o_proj", hidden)], q),
            mlp,
        }
    }

    fn in_order(self) -> impl Iterator<Item = Stack> {
        let (router, gated) = match self.mlp {
            MlpStacks::Dense(gated) => (None, vec![gated]),
            MlpStacks::Experts { router, experts, .. } => (Some(router), experts),
        };
        let gated = gated.into_iter().flat_map(|GatedStacks { gate_up, down }| [gate_up, down]);
        [self.qkv, self.output].into_iter().chain(router).chain(gated)
    }
}

/// The embedding, and the head unless it is the embedding.
pub(super) fn ends(config: &ModelConfig) -> (Stack, Option<Stack>) {
    let shape = [config.vocab, config.hidden];
    (Stack::one("embed_tokens", shape), (!config.tied_head).then(|| Stack::one("lm_head", shape)))
}

/// All stacks in loading order.
pub(super) fn stacks(config: &ModelConfig) -> impl Iterator<Item = Stack> {
    let (embedding, head) = ends(config);
    let layers = (0..config.layers.len()).flat_map(|layer| Stacks::of(config, layer).in_order());
    std::iter::once(embedding).chain(head).chain(layers)
}

/// Requests the next matrices, so that the disk reads while matrices are packed.
pub(super) struct ReadAhead {
    /// The matrices in loading order: name, shape, and the number of bytes before them. All, or up to the first that is missing
    /// or has another shape.
    matrices: Vec<(String, [usize; 2], u64)>,
    asked: usize,
}

impl ReadAhead {
    /// Distance of the read-ahead. A slow disk needs no more, and a fast one finishes it before it is needed.
    const BYTES: u64 = 512 << 20;

    pub(super) fn new(files: &Files<'_>, config: &ModelConfig) -> Self {
        let (mut matrices, mut before) = (Vec::new(), 0);
        for (name, shape) in stacks(config).flat_map(|stack| stack.tensors().collect::<Vec<_>>()) {
            let tensor = files.tensor(&name, &shape);
            matrices.push((name, shape, before));
            // Loading ends there, and a configuration may claim a million more.
            let Ok(tensor) = tensor else { break };
            before += tensor.own_len();
        }
        Self { matrices, asked: 0 }
    }

    /// Names and shapes in loading order.
    pub(super) fn matrices(&self) -> Vec<(String, [usize; 2])> {
        self.matrices.iter().map(|(name, shape, _)| (name.clone(), *shape)).collect()
    }

    /// Requests all matrices within reach after `read` bytes.
    pub(super) fn ask(&mut self, files: &Files<'_>, done: u64) {
        while let Some((name, shape, before)) = self.matrices.get(self.asked)
            && *before < done + Self::BYTES
        {
            // Loading reports tensors that are missing or have another shape.
            if let Ok(tensor) = files.tensor(name, shape) {
                files.expect(&tensor);
            }
            self.asked += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::source::Source;

    #[test]
    fn nothing_is_listed_behind_a_matrix_that_is_missing() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/qwen3moe-bf16");
        let source = Source::Directory(golden);
        let mut config = ModelConfig::load(&source).unwrap();
        let list = |config: &ModelConfig| {
            let files = Files::open(&source, config).unwrap();
            ReadAhead::new(&files, config).matrices()
        };
        let sound = list(&config);
        assert_eq!(config.layers.len(), 4);
        config.layers.extend([config.layers[0]; 1_000]);
        let claimed = list(&config);
        assert_eq!(claimed[..sound.len()], sound);
        let missing: Vec<&str> = claimed[sound.len()..].iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(missing, ["layers.4.self_attn.q_proj.weight"]);
    }
}
