//! In which order matrices are loaded, and the reading ahead that this allows.

use super::files::Files;
use crate::config::ModelConfig;

/// Matrices that read the same inputs, stacked: names without their ending, and outputs.
pub(super) struct Stack {
    pub parts: Vec<(String, usize)>,
    pub inputs: usize,
}

/// A layer's stacks, in the order in which they are loaded.
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

/// Asks for what comes next, so that a disk reads while matrices are packed.
pub(super) struct ReadAhead {
    /// All matrices in the order in which they are loaded: name, shape, and how many bytes come before.
    matrices: Vec<(String, [usize; 2], u64)>,
    asked: usize,
}

impl ReadAhead {
    /// How far ahead. A slow disk needs no more; a quick one is done with it before it is wanted.
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

    /// Names and shapes in that order.
    pub(super) fn matrices(&self) -> Vec<(String, [usize; 2])> {
        self.matrices.iter().map(|(name, shape, _)| (name.clone(), *shape)).collect()
    }

    /// Asks for all that is near, where so many bytes were read.
    pub(super) fn ask(&mut self, files: &Files<'_>, done: u64) {
        while let Some((name, shape, before)) = self.matrices.get(self.asked)
            && *before < done + Self::BYTES
        {
            // What is missing or has another shape is told when it is loaded.
            if let Ok(tensor) = files.tensor(name, shape) {
                files.expect(&tensor);
            }
            self.asked += 1;
        }
    }
}
