//! The tensors of layers of experts: apart, stacked, in 4 bits; and which of them are named when they are missing.

use std::collections::BTreeMap;

use infer_model::{KvCacheKind, Model, ModelError, Source};

use crate::common::{Chunk, Driver};
use crate::read;

/// Tensors in bf16 by name: shape and bytes.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

/// The tensors of a golden checkpoint with experts, each matrix by itself.
fn separate_experts(name: &str) -> Tensors {
    let whole = read(name, "model.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&whole).expect("sound");
    let tensors = tensors.tensors().into_iter();
    tensors.map(|(name, view)| (name, (view.shape().to_vec(), view.data().to_vec()))).collect()
}

/// The same with a layer's experts in two tensors, as transformers has them in memory.
fn fused_experts(name: &str) -> Tensors {
    let mut all = Tensors::new();
    let plain = separate_experts(name).into_iter().map(|(name, tensor)| (plain_name(&name), tensor));
    // An expert's gate comes before its up, and there are fewer than ten experts, whose names are in order.
    for (name, (shape, bytes)) in plain.collect::<Tensors>() {
        let Some((layer, matrix)) = name.split_once(".experts.") else {
            all.insert(name, (shape, bytes));
            continue;
        };
        let part = if matrix.contains("down_proj") { "down_proj" } else { "gate_up_proj" };
        let (fused, numbers) = all
            .entry(format!("{layer}.experts.{part}"))
            .or_insert_with(|| (vec![8, 0, shape[1]], Vec::new()));
        fused[1] += if matrix.starts_with("0.") { shape[0] } else { 0 };
        numbers.extend(bytes);
    }
    all
}

/// The name of a tensor of Mixtral in memory, which is that of other families.
fn plain_name(name: &str) -> String {
    let parts = [(".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj.")];
    let plain = name.replace(".block_sparse_moe.", ".mlp.");
    parts.into_iter().fold(plain, |name, (own, part)| name.replace(own, part))
}

fn load_experts(config: &[u8], tensors: &Tensors) -> Result<Model, ModelError> {
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, shape.clone(), bytes);
        (name.as_str(), view.expect("sizes agree"))
    });
    let weights = safetensors::serialize(views, None).expect("names are unique");
    let files: [(&str, &[u8]); 2] = [("config.json", config), ("model.safetensors", &weights)];
    Model::load(&Source::Embedded(&files), None)
}

#[test]
fn experts_in_one_tensor_are_those_in_tensors_of_their_own() {
    for name in ["qwen3moe-bf16", "mixtral-bf16"] {
        let config = read(name, "config.json");
        let logits = [separate_experts(name), fused_experts(name)].map(|tensors| {
            let model = load_experts(&config, &tensors).expect("sound");
            let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 1);
            driver.run(&[Chunk { sequence: 1, start: 0, tokens: &[306, 3, 9, 77] }]).remove(0).0
        });
        assert_eq!(logits[0], logits[1], "{name}");
    }
}

#[test]
fn missing_or_misshapen_tensors_of_mixtral_are_named_as_they_are_there() {
    let config = read("mixtral-bf16", "config.json");
    for (name, shape, named) in [
        ("layers.2.block_sparse_moe.experts.5.w3.weight", None, "experts.5.w3.weight is missing"),
        ("layers.1.block_sparse_moe.gate.weight", None, "layers.1.block_sparse_moe.gate.weight is missing"),
        (
            "layers.0.block_sparse_moe.experts.7.w2.weight",
            Some(vec![32, 128]),
            "experts.7.w2.weight has shape [32, 128], config.json requires [128, 32]",
        ),
    ] {
        let mut tensors = separate_experts("mixtral-bf16");
        let name = format!("model.{name}");
        let (_, bytes) = tensors.remove(&name).expect("it is there");
        if let Some(shape) = shape {
            tensors.insert(name, (shape, bytes));
        }
        let error = load_experts(&config, &tensors).err().unwrap_or_else(|| panic!("{named}: taken"));
        assert!(error.message.contains(named), "{named}: {error}");
    }
}

#[test]
fn missing_or_misshapen_experts_are_named() {
    const NAME: &str = "qwen3moe-bf16";
    let config = read(NAME, "config.json");
    let cases: [(Tensors, &str, Option<&[usize]>, &str); 6] = [
        (
            separate_experts(NAME),
            "model.layers.2.mlp.experts.5.up_proj.weight",
            None,
            "tensor model.layers.2.mlp.experts.5.up_proj.weight is missing",
        ),
        (
            separate_experts(NAME),
            "model.layers.0.mlp.experts.7.down_proj.weight",
            Some(&[32, 64]),
            "experts.7.down_proj.weight has shape [32, 64], config.json requires [64, 32]",
        ),
        (
            separate_experts(NAME),
            "model.layers.1.mlp.up_proj.weight",
            None,
            "model.layers.1.mlp.up_proj.weight is",
        ),
        (
            separate_experts(NAME),
            "model.layers.3.mlp.gate.weight",
            Some(&[16, 32]),
            "model.layers.3.mlp.gate.weight has shape [16, 32], config.json requires [8, 64]",
        ),
        (
            fused_experts(NAME),
            "model.layers.2.mlp.experts.down_proj",
            None,
            "model.layers.2.mlp.experts.0.down_proj.weight is missing",
        ),
        (
            fused_experts(NAME),
            "model.layers.0.mlp.experts.gate_up_proj",
            Some(&[4, 128, 64]),
            "experts.gate_up_proj has shape [4, 128, 64], config.json requires [8, 64, 64]",
        ),
    ];
    for (mut tensors, name, shape, named) in cases {
        let (_, bytes) = tensors.remove(name).expect("it is there");
        if let Some(shape) = shape {
            tensors.insert(name.to_owned(), (shape.to_vec(), bytes));
        }
        let error = load_experts(&config, &tensors).err().unwrap_or_else(|| panic!("{named}: taken"));
        assert!(error.message.contains(named), "{named}: {error}");
    }
}

#[test]
fn tensors_of_gpt_oss_that_are_missing_or_other_are_named() {
    let config = read("gptoss-mxfp4", "config.json");
    let whole = read("gptoss-mxfp4", "model.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&whole).expect("sound").tensors();
    for (name, other, named) in [
        ("mlp.experts.down_proj_scales", None, "mlp.experts.down_proj_scales is missing"),
        // Without its blocks it would be one of floats.
        ("mlp.experts.gate_up_proj_blocks", None, "mlp.experts.gate_up_proj is missing"),
        ("mlp.experts.gate_up_proj_bias", None, "mlp.experts.gate_up_proj_bias is missing"),
        ("mlp.router.bias", None, "mlp.router.bias is missing"),
        ("self_attn.sinks", None, "self_attn.sinks is missing"),
        ("self_attn.sinks", Some(vec![4]), "self_attn.sinks has shape [4]"),
        (
            "mlp.experts.gate_up_proj_blocks",
            Some(vec![8, 128, 32, 1]),
            "gate_up_proj_blocks has shape [8, 128, 32, 1], config.json requires [8, 128, 2, 16]",
        ),
    ] {
        let views = tensors.iter().filter_map(|(tensor, view)| {
            if *tensor != format!("model.layers.2.{name}") {
                return Some((tensor.clone(), view.clone()));
            }
            let shape = other.clone()?;
            let len =
                view.data().len() / view.shape().iter().product::<usize>() * shape.iter().product::<usize>();
            let view = safetensors::tensor::TensorView::new(view.dtype(), shape, &view.data()[..len]);
            Some((tensor.clone(), view.expect("sizes agree")))
        });
        let weights = safetensors::serialize(views.collect::<Vec<_>>(), None).expect("names are unique");
        let files: [(&str, &[u8]); 2] = [("config.json", &config), ("model.safetensors", &weights)];
        let error =
            Model::load(&Source::Embedded(&files), None).err().unwrap_or_else(|| panic!("{named}: taken"));
        assert!(error.message.contains(named), "{named}: {error}");
    }
}
