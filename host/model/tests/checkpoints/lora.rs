//! Adapters that don't fit their model, or aren't sound, are refused with the fault named.

use candle_core::Device;
use infer_model::{DType, Model, ModelConfig, Source};
use serde_json::{Value, json};

use crate::common::{ADAPTED, adapter, golden, model};
use crate::tensors::{Tensors, write_adapter};

/// A golden adapter that loads, as numbers.
fn sound() -> (Value, Tensors) {
    let directory = golden("qwen3-lora").join("some");
    let config = std::fs::read(directory.join("adapter_config.json")).expect("it is there");
    let tensors = candle_core::safetensors::load(directory.join("adapter_model.safetensors"), &Device::Cpu);
    let tensors = tensors.expect("sound").into_iter().map(|(name, tensor)| {
        let wide = tensor.to_dtype(candle_core::DType::F32).expect("numbers");
        let numbers = wide.flatten_all().and_then(|wide| wide.to_vec1::<f32>()).expect("numbers");
        (name, (tensor.dims().to_vec(), numbers))
    });
    (serde_json::from_slice(&config).expect("JSON"), tensors.collect())
}

/// The tensor of a layer's projection.
fn name(layer: usize, target: &str, which: &str) -> String {
    format!("base_model.model.model.layers.{layer}.{target}_proj.lora_{which}.weight")
}

#[test]
fn adapters_that_do_not_fit_are_refused_with_the_fault_named() {
    let base = golden(ADAPTED);
    let config = ModelConfig::load(&Source::Directory(base)).expect("sound");
    type Change = fn(&mut Value, &mut Tensors);
    let cases: [(Change, &str); 13] = [
        (|_, _| (), ""),
        (
            |config, _| config["r"] = json!(7),
            "has shape [8, 64], the model and adapter_config.json require [7, 64]",
        ),
        (|config, _| config["rank_pattern"] = json!({}), "down_proj.lora_A.weight has shape [5, 192]"),
        (
            |_, tensors| {
                tensors.remove(&name(1, "self_attn.q", "B"));
            },
            "model.layers.1.self_attn.q_proj has no lora_B.weight",
        ),
        (
            |_, tensors| {
                tensors.remove(&name(3, "mlp.down", "A"));
            },
            "model.layers.3.mlp.down_proj has no lora_A.weight",
        ),
        (
            |_, tensors| {
                let tensor = tensors.get_mut(&name(1, "self_attn.v", "A")).expect("it is there");
                tensor.0 = vec![tensor.1.len()];
            },
            "has shape [512]",
        ),
        (
            |_, tensors| {
                let tensor = tensors.get_mut(&name(1, "self_attn.v", "B")).expect("it is there");
                tensor.1[9] = f32::NAN;
            },
            "self_attn.v_proj.lora_B.weight has numbers that are infinite or not a number",
        ),
        (|_, tensors| tensors.clear(), "has no tensors"),
        (
            |_, tensors| {
                tensors.insert("base_model.model.lm_head.weight".to_owned(), (vec![1], vec![0.0]));
            },
            "lm_head.weight changes the embedding or the head",
        ),
        (
            |_, tensors| {
                tensors.insert(name(0, "self_attn.qkv", "A"), (vec![1], vec![0.0]));
            },
            "changes self_attn.qkv_proj; supported are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
        ),
        (
            |_, tensors| {
                let one = tensors[&name(1, "self_attn.q", "A")].clone();
                tensors.insert("base_model.model.layers.1.self_attn.q_proj.lora_A.weight".to_owned(), one);
            },
            "are the same matrix",
        ),
        (|config, _| config["use_dora"] = json!(true), "use_dora is not supported"),
        (|config, _| config["peft_type"] = json!("LOHA"), "peft_type \"LOHA\" is not supported"),
    ];
    for (change, said) in cases {
        let (mut settings, mut tensors) = sound();
        change(&mut settings, &mut tensors);
        let directory = tempfile::tempdir().expect("a temporary directory");
        write_adapter(directory.path(), &settings, &tensors);
        let source = Source::Directory(directory.path().to_owned());
        let checked = Model::check_adapter(&source, &config);
        let loaded = model(ADAPTED, DType::F32).add_adapter(&source).map(|_| ());
        assert_eq!(checked, loaded);
        match checked {
            Ok(()) => assert_eq!(said, "", "it is refused"),
            Err(error) => {
                let error = error.to_string();
                assert!(!said.is_empty() && error.contains(said), "{said}: {error}");
            }
        }
    }
}

#[test]
fn adapters_of_other_models_and_other_folders_are_refused() {
    let load = |name: &str| ModelConfig::load(&Source::Directory(golden(name))).expect("sound");
    let refused = |source: &Source<'_>, config: &ModelConfig| {
        Model::check_adapter(source, config).expect_err("it is refused").to_string()
    };
    // The first layer of these consists of experts.
    for name in ["qwen3moe-bf16", "gptoss-bf16"] {
        let of_experts = refused(&adapter("all"), &load(name));
        assert!(of_experts.contains("and layer 0 consists of experts"), "{name}: {of_experts}");
    }
    let of_another = refused(&adapter("all"), &load("gemma3-bf16"));
    assert!(of_another.contains("the model and adapter_config.json require"), "{of_another}");
    let checkpoint = refused(&Source::Directory(golden(ADAPTED)), &load(ADAPTED));
    assert!(checkpoint.contains("has no adapter_config.json; is it an adapter of PEFT?"), "{checkpoint}");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (config, tensors) = sound();
    write_adapter(directory.path(), &config, &tensors);
    let [whole, pickled] =
        ["adapter_model.safetensors", "adapter_model.bin"].map(|file| directory.path().join(file));
    let source = Source::Directory(directory.path().to_owned());
    std::fs::write(&whole, &std::fs::read(&whole).expect("it is there")[..500]).expect("it can be written");
    let truncated = refused(&source, &load(ADAPTED));
    assert!(truncated.contains("is not safetensors, or truncated"), "{truncated}");
    std::fs::rename(&whole, &pickled).expect("it can be moved");
    let only_pickled = refused(&source, &load(ADAPTED));
    assert!(only_pickled.contains("adapter_model.bin is not read"), "{only_pickled}");
    std::fs::remove_file(&pickled).expect("it can be removed");
    let missing = refused(&source, &load(ADAPTED));
    assert!(missing.contains("has no adapter_model.safetensors; is it an adapter of PEFT?"), "{missing}");
}

#[test]
fn files_that_are_copied_are_refused_as_mapped_ones_are_and_beyond_a_bound() {
    let loader = model(ADAPTED, DType::F32).adapter_loader();
    let sound = golden("qwen3-lora").join("all");
    let size = std::fs::metadata(sound.join("adapter_model.safetensors")).expect("it is there").len();
    assert!(loader.read(&sound, size).is_ok());
    let large = loader.read(&sound, size - 1).err().expect("it is larger").to_string();
    assert!(large.contains(&format!("has more than {} bytes", size - 1)), "{large}");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let missing = loader.read(directory.path(), size).err().expect("it is empty").to_string();
    assert!(missing.contains("has no adapter_config.json; is it an adapter of PEFT?"), "{missing}");
    let other = model("gemma3-bf16", DType::F32).adapter_loader();
    let files = other.read(&sound, size).expect("they are read");
    let of_another = other.measure(&files).expect_err("it is refused").to_string();
    assert!(of_another.contains("the model and adapter_config.json require"), "{of_another}");
    assert_eq!(other.load(&files).expect_err("it is refused").to_string(), of_another);
}
