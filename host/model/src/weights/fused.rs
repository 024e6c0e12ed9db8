//! Projections that a checkpoint stores as one matrix, as Phi-3 does: queries, keys and values, and gate and up. Everything
//! else names them one by one, and here each is found as consecutive rows of the whole.

use super::codes::Codes;
use super::stored::Stored;
use crate::config::ModelConfig;
use crate::error::ModelError;

/// Outputs of the projections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fused {
    q: usize,
    kv: usize,
    intermediate: usize,
}

/// Which rows of a tensor a projection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub tensor: String,
    /// The first of them.
    first: usize,
    /// Rows of the whole tensor.
    rows: usize,
}

impl Fused {
    /// Of checkpoints of this configuration, if they store projections so.
    pub(super) fn of(config: &ModelConfig) -> Option<Self> {
        let (q, kv, intermediate) = (config.q_width(), config.kv_width(), config.intermediate);
        config.fused.then_some(Self { q, kv, intermediate })
    }

    /// Where a tensor is; `None` for those that are stored by themselves.
    pub(super) fn part(&self, name: &str) -> Option<Part> {
        let Self { q, kv, intermediate } = *self;
        let (module, suffix) = name.rsplit_once('.')?;
        let (place, projection) = module.rsplit_once('.')?;
        let (whole, first, rows) = match projection {
            "q_proj" => ("qkv_proj", 0, q + 2 * kv),
            "k_proj" => ("qkv_proj", q, q + 2 * kv),
            "v_proj" => ("qkv_proj", q + kv, q + 2 * kv),
            "gate_proj" => ("gate_up_proj", 0, 2 * intermediate),
            "up_proj" => ("gate_up_proj", intermediate, 2 * intermediate),
            _ => return None,
        };
        Some(Part { tensor: format!("{place}.{whole}.{suffix}"), first, rows })
    }
}

impl Part {
    /// The shape of the whole tensor, from that of the part.
    pub(super) fn whole(&self, shape: &[usize]) -> Vec<usize> {
        let mut whole = shape.to_vec();
        if let Some(rows) = whole.first_mut() {
            *rows = self.rows;
        }
        whole
    }

    /// The part, of this shape, of the whole.
    ///
    /// # Errors
    /// The whole is a vector of blocks, in which a row has no bytes of its own.
    pub(super) fn of<'a>(&self, whole: Stored<'a>, shape: &[usize]) -> Result<Stored<'a>, ModelError> {
        if let Some(codes) = whole.codes {
            let codes = Codes { rows: (codes.rows.0 + self.first, codes.rows.1), ..codes };
            return Ok(Stored { shape: shape.to_vec(), codes: Some(codes), ..whole });
        }
        if whole.shape.len() == 1 && whole.kind.block().0 > 1 {
            let why = "the projections that share it can't be told apart in blocks";
            return Err(ModelError::weights(format!("tensor {} can't be read: {why}", whole.name)));
        }
        let row = whole.bytes.len() / self.rows;
        let rows = shape.first().copied().unwrap_or(0);
        let bytes = &whole.bytes[self.first * row..][..rows * row];
        Ok(Stored { shape: shape.to_vec(), bytes, ..whole })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::{Mxfp4, RowOrder, StoredType};

    const FUSED: Fused = Fused { q: 4, kv: 2, intermediate: 3 };

    #[test]
    fn projections_are_consecutive_rows_and_all_rows_belong_to_one() {
        // A number of 4 bytes a row.
        for (whole, parts) in [
            (
                "self_attn.qkv_proj",
                &[("self_attn.q_proj", 4), ("self_attn.k_proj", 2), ("self_attn.v_proj", 2)][..],
            ),
            ("mlp.gate_up_proj", &[("mlp.gate_proj", 3), ("mlp.up_proj", 3)][..]),
        ] {
            let rows: usize = parts.iter().map(|(_, rows)| rows).sum();
            let bytes: Vec<u8> = (0..rows as u8).flat_map(|row| [row; 4]).collect();
            let mut found = Vec::new();
            for (name, rows_of) in parts {
                let part = FUSED.part(&format!("layers.7.{name}.weight")).expect("it is a part");
                assert_eq!(part.tensor, format!("layers.7.{whole}.weight"));
                assert_eq!(part.whole(&[*rows_of, 1]), [rows, 1]);
                let stored = Stored {
                    name: part.tensor.clone(),
                    kind: StoredType::F32,
                    shape: part.whole(&[*rows_of, 1]),
                    order: RowOrder::Plain,
                    bytes: &bytes,
                    scales: &[],
                    codes: None,
                };
                let stored = part.of(stored, &[*rows_of, 1]).unwrap();
                assert_eq!((stored.rows(), stored.inputs()), (*rows_of, 1));
                found.extend_from_slice(stored.bytes);
            }
            assert_eq!(found, bytes);
        }
        for other in ["layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight", "norm.weight", "x"]
        {
            assert_eq!(FUSED.part(other), None, "{other}");
        }
    }

    /// As of a GGUF file that has biases in blocks.
    #[test]
    fn vector_of_blocks_is_not_divided() {
        let fused = Fused { q: 64, kv: 32, intermediate: 3 };
        let part = fused.part("layers.7.self_attn.k_proj.bias").expect("it is a part");
        let whole = Stored {
            name: "x".to_owned(),
            kind: StoredType::Mxfp4(Mxfp4::Inside),
            shape: part.whole(&[32]),
            order: RowOrder::Plain,
            bytes: &[127; 17 * 4],
            scales: &[],
            codes: None,
        };
        let error = part.of(whole, &[32]).err().expect("a row has half a byte").to_string();
        assert!(error.contains("tensor x can't be read: the projections that share it"), "{error}");
    }
}
