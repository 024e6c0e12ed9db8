//! Matrices of single experts. Their names here are those of checkpoints that store each matrix by itself. Others store one
//! tensor for all experts of a layer, `[expert][row][input]`, in which a matrix is a part of consecutive rows.

/// The name of a matrix of one expert, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertMatrix<'n> {
    /// `layers.N.mlp.experts`.
    pub all: &'n str,
    pub expert: usize,
    /// `gate_proj`, `up_proj` or `down_proj`.
    pub part: &'n str,
}

/// A tensor of a file, and which of equal parts of it is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Within {
    pub tensor: String,
    /// Shape of the whole tensor.
    pub shape: Vec<usize>,
    pub part: usize,
    pub parts: usize,
}

impl<'n> ExpertMatrix<'n> {
    /// Of `layers.N.mlp.experts.E.PART.weight`; `None` for other tensors.
    pub(crate) fn parse(name: &'n str) -> Option<Self> {
        Self::of(name.strip_suffix(".weight")?)
    }

    /// The matrix whose bias it is, of `layers.N.mlp.experts.E.PART.bias`.
    pub(crate) fn parse_bias(name: &'n str) -> Option<Self> {
        Self::of(name.strip_suffix(".bias")?)
    }

    fn of(name: &'n str) -> Option<Self> {
        let (before, part) = name.rsplit_once('.')?;
        let (all, expert) = before.rsplit_once('.')?;
        all.ends_with(".mlp.experts").then_some(Self { all, expert: expert.parse().ok()?, part })
    }

    /// The matrix, of this shape, in a tensor of the matrices of all `experts`.
    pub(crate) fn within(self, tensor: String, experts: usize, shape: &[usize]) -> Within {
        Within { tensor, shape: [&[experts][..], shape].concat(), part: self.expert, parts: experts }
    }

    /// The matrix, of this shape, in the tensors that transformers has in memory, as some tools save them: gate and up of an
    /// expert are one, gate first.
    pub(crate) fn within_fused(self, experts: usize, shape: &[usize]) -> Within {
        let half = match self.part {
            "gate_proj" => 0,
            "up_proj" => 1,
            part => return self.within(format!("{}.{part}", self.all), experts, shape),
        };
        let mut both = self.within(format!("{}.gate_up_proj", self.all), experts, shape);
        if let Some(rows) = both.shape.get_mut(1) {
            *rows *= 2;
        }
        Within { part: 2 * both.part + half, parts: 2 * both.parts, ..both }
    }
}

impl Within {
    /// All of a tensor.
    pub(crate) fn all(tensor: String, shape: &[usize]) -> Self {
        Self { tensor, shape: shape.to_vec(), part: 0, parts: 1 }
    }

    /// The tensor's name, with the index of the part, for messages.
    pub(crate) fn name(self) -> String {
        match self.parts {
            1 => self.tensor,
            _ => format!("{}[{}]", self.tensor, self.part),
        }
    }

    /// The part, of the whole tensor's bytes.
    pub(crate) fn of<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        let len = bytes.len() / self.parts;
        &bytes[self.part * len..][..len]
    }
}

/// The name of a tensor in files of Mixtral, in which experts and their router have names of their own.
pub(super) fn mixtral_name(name: &str) -> String {
    let Some(ExpertMatrix { all, expert, part }) = ExpertMatrix::parse(name) else {
        return name.replace(".mlp.gate.", ".block_sparse_moe.gate.");
    };
    let part = match part {
        "gate_proj" => "w1",
        "up_proj" => "w3",
        "down_proj" => "w2",
        other => other,
    };
    format!("{}.{expert}.{part}.weight", all.replace(".mlp.", ".block_sparse_moe."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_of_mixtral_and_their_router_have_other_names() {
        for (name, in_file) in [
            ("layers.3.mlp.gate.weight", "layers.3.block_sparse_moe.gate.weight"),
            ("layers.3.mlp.experts.11.gate_proj.weight", "layers.3.block_sparse_moe.experts.11.w1.weight"),
            ("layers.3.mlp.experts.0.down_proj.weight", "layers.3.block_sparse_moe.experts.0.w2.weight"),
            ("layers.3.mlp.experts.0.up_proj.weight", "layers.3.block_sparse_moe.experts.0.w3.weight"),
            ("layers.3.self_attn.q_proj.weight", "layers.3.self_attn.q_proj.weight"),
            ("embed_tokens.weight", "embed_tokens.weight"),
        ] {
            assert_eq!(mixtral_name(name), in_file);
        }
    }

    #[test]
    fn names_of_single_experts_are_taken_apart_and_others_left_alone() {
        let name = ExpertMatrix::parse("layers.11.mlp.experts.127.up_proj.weight");
        let expected = ExpertMatrix { all: "layers.11.mlp.experts", expert: 127, part: "up_proj" };
        assert_eq!(name, Some(expected));
        for other in [
            "layers.0.mlp.gate.weight",
            "layers.0.mlp.down_proj.weight",
            "layers.0.mlp.experts.down_proj.weight",
            "layers.0.mlp.experts.x.down_proj.weight",
            "layers.0.mlp.experts.1.down_proj.bias",
            "embed_tokens.weight",
        ] {
            assert_eq!(ExpertMatrix::parse(other), None, "{other}");
        }
        let bias = "layers.11.mlp.experts.127.up_proj.bias";
        assert_eq!((ExpertMatrix::parse_bias(bias), ExpertMatrix::parse(bias)), (Some(expected), None));
        assert_eq!(ExpertMatrix::parse_bias("layers.0.mlp.gate.bias"), None);
    }

    #[test]
    fn matrices_within_tensors_of_all_experts_are_in_order() {
        // Three experts of two rows (gate), two rows (up) and two rows (down), of one byte each.
        let place = |part: &str, expert: usize| {
            let name = format!("layers.0.mlp.experts.{expert}.{part}.weight");
            ExpertMatrix::parse(&name).expect("an expert's").within_fused(3, &[2, 1])
        };
        let bytes: Vec<u8> = (0..12).collect();
        for expert in 0..3 {
            let first = 4 * expert as u8;
            let (gate, up, down) =
                (place("gate_proj", expert), place("up_proj", expert), place("down_proj", expert));
            assert_eq!(
                (gate.tensor.as_str(), &gate.shape[..]),
                ("layers.0.mlp.experts.gate_up_proj", &[3, 4, 1][..])
            );
            assert_eq!(
                (gate.of(&bytes), up.of(&bytes)),
                (&[first, first + 1][..], &[first + 2, first + 3][..])
            );
            assert_eq!(
                (down.tensor.as_str(), &down.shape[..]),
                ("layers.0.mlp.experts.down_proj", &[3, 2, 1][..])
            );
            assert_eq!(down.of(&bytes[..6]), [2 * expert as u8, 2 * expert as u8 + 1]);
        }
        assert_eq!(Within::all("x".to_owned(), &[12]).of(&bytes), bytes);
    }
}
