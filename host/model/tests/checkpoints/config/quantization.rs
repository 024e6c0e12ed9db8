//! Forms of quantized matrices: what config.json declares, and which declarations are refused, by the key at fault.

use infer_model::config::{Code, Quantization, Scheme, Shared};
use serde_json::{Value, json};

use super::{llama_config, parse};

fn declared(quantization: Value) -> Result<Option<Quantization>, String> {
    let config = parse(llama_config(), json!({"quantization_config": quantization}));
    config.map(|config| config.quantization).map_err(|error| error.message)
}

fn scaled(schemes: &[(Code, Shared)]) -> Result<Option<Quantization>, String> {
    let schemes = schemes.iter().map(|(code, shared)| Scheme { code: *code, shared: *shared });
    Ok(Some(Quantization::Scaled(schemes.collect())))
}

#[test]
fn floats_of_8_bits_are_declared_as_published_checkpoints_do() {
    // Qwen3-8B-FP8, DeepSeek V3.1, and what AutoFP8 writes.
    let blocks = scaled(&[(Code::Float8, Shared::Block([128, 128]))]);
    for config in [
        json!({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}),
        json!({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]}),
    ] {
        assert_eq!(declared(config.clone()), blocks, "{config}");
    }
    let auto = json!({"activation_scheme": "static", "quant_method": "fp8", "ignored_layers": ["lm_head"],
        "kv_cache_scheme": "static"});
    assert_eq!(declared(auto), scaled(&[(Code::Float8, Shared::Matrix), (Code::Float8, Shared::Output)]));
    let absent = parse(llama_config(), json!({"quantization_config": null})).expect("sound");
    assert_eq!(absent.quantization, None);
}

#[test]
fn forms_that_would_be_read_wrongly_are_refused_by_key() {
    let refused = |config: Value, named: &str| {
        let error = declared(config.clone()).err().unwrap_or_else(|| panic!("{config} was taken"));
        assert!(error.contains("quantization_config") && error.contains(named), "{config}: {error}");
    };
    refused(json!({"bits": 4}), "has no quant_method");
    refused(json!("fp8"), "must be an object");
    for method in ["bitsandbytes", "modelopt", "fbgemm_fp8", "torchao", "hqq", "eetq", "quark", "mxfp4"] {
        refused(json!({"quant_method": method}), &format!("quant_method is {method:?}; supported are fp8"));
    }
    let fp8 = |changes: Value| {
        let base = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]});
        crate::with(base, changes)
    };
    for (changes, named) in [
        (json!({"fmt": "e5m2"}), "fmt is \"e5m2\"; supported is e4m3"),
        (json!({"activation_scheme": "none"}), "activation_scheme is \"none\""),
        (json!({"scale_fmt": "log2"}), "scale_fmt is \"log2\""),
        (json!({"expert_dtype": "fp4"}), "expert_dtype is \"fp4\""),
        (json!({"weight_block_size": 128}), "weight_block_size must be a list"),
        (json!({"weight_block_size": [128]}), "weight_block_size must be two whole numbers"),
        (json!({"weight_block_size": [0, 128]}), "weight_block_size must be two whole numbers"),
        (json!({"weight_block_size": [128, 99_999_999]}), "weight_block_size must be two whole numbers"),
        (json!({"modules_to_not_convert": "lm_head"}), "modules_to_not_convert must be a list"),
        (json!({"ignored_layers": [3]}), "ignored_layers must be a list of names"),
        (json!({"rotation": "hadamard"}), "rotation is not known"),
    ] {
        refused(fp8(changes), named);
    }
}
