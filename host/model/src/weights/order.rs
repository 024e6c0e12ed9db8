//! The order in which matrices are loaded, and the read-ahead that it allows.

use super::files::Files;
use crate::config::ModelConfig;

/// Matrices that read the same inputs, stacked: names without their suffix, and outputs.
pub(super) struct Stack {
    pub parts: Vec<(String, usize)>,
    pub inputs: usize,
}

/// A layer's stacks, in loading order.
pub(super) struct Stacks {
    pub qkv: Stack,
    pub output: Stack,
    pub gate_up: Stack,
    pub down: Stack,
}

impl Stacks {
    pub(super) fn of(config: &ModelConfig, layer: usize) -> Self {
        let (q, kv) = (config.q_width(), config.kv_width());
        let (hidden, intermediate) = (config.hidden, config.intermediate);
        let stack = |parts: &[(&str, usize)], inputs| Stack {
            parts: parts.iter().map(|(part, n)| (format!("layers.{layer}.{part}"), *n)).collect(),
            inputs,
        };
        Self {
            qkv: stack(
                &[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
                hidden,
            ),
            output: stack(&[("self_attn.o_proj", hidden)], q),
            gate_up: stack(&[("mlp.gate_proj", intermediate), ("mlp.up_proj", intermediate)], hidden),
            down: stack(&[("mlp.down_proj", hidden)], intermediate),
        }
    }
}

/// Requests the next matrices, so that the disk reads while matrices are packed.
pub(super) struct ReadAhead {
    /// All matrices in loading order: name, shape, and the number of bytes before them.
    matrices: Vec<(String, [usize; 2], u64)>,
    asked: usize,
}

impl ReadAhead {
    /// Distance of the read-ahead. A slow disk needs no more, and a fast one finishes it before it is needed.
    const BYTES: u64 = 512 << 20;

    pub(super) fn new(files: &Files<'_>, config: &ModelConfig) -> Self {
        let mut names = vec![("embed_tokens.weight".to_owned(), [config.vocab, config.hidden])];
        if !config.tied_head {
            names.push(("lm_head.weight".to_owned(), [config.vocab, config.hidden]));
        }
        for layer in 0..config.layers.len() {
            let Stacks { qkv, output, gate_up, down } = Stacks::of(config, layer);
            for Stack { parts, inputs } in [qkv, output, gate_up, down] {
                names.extend(parts.into_iter().map(|(name, n)| (format!("{name}.weight"), [n, inputs])));
            }
        }
        let mut before = 0;
        let matrices = names.into_iter().map(|(name, shape)| {
            let bytes = files.tensor(&name, &shape).map_or(0, |tensor| tensor.bytes.len() as u64);
            before += bytes;
            (name, shape, before - bytes)
        });
        Self { matrices: matrices.collect(), asked: 0 }
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
