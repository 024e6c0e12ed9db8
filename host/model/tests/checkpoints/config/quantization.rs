//! Forms of quantized matrices: what config.json declares, and which declarations are refused, by the key at fault.

use infer_model::config::{Code, Quantization, Scheme, Shared};
use serde_json::{Value, json};

use super::{llama_config, parse};

fn declared(quantization: Value) -> Result<Option<Quantization>, String> {
    let config = parse(llama_config(), json!({"quantization_config": quantization}));
    config.map(|config| config.quantization).map_err(|error| error.message)
}

fn scaled(schemes: &[(Code, Shared)]) -> Result<Option<Quantization>, String> {
    let scheme = |(code, shared): &(Code, Shared)| Scheme {
        code: *code,
        shared: *shared,
        symmetric: true,
        ordered: false,
    };
    let schemes = schemes.iter().map(scheme);
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
fn integers_of_gptq_are_declared_as_published_checkpoints_do() {
    // Qwen3-30B-A3B-GPTQ-Int4, TheBloke's checkpoints, and what GPTQModel writes.
    for (config, bits, group, ordered) in [
        (
            json!({"bits": 4, "checkpoint_format": "gptq", "damp_percent": 0.01, "desc_act": false, "group_size": 128,
                "model_file_base_name": null, "model_name_or_path": null, "quant_method": "gptq", "static_groups": false,
                "sym": true, "true_sequential": true}),
            4,
            Some(128),
            false,
        ),
        (
            json!({"batch_size": 1, "bits": 8, "block_name_to_quantize": "model.layers", "cache_block_outputs": true,
                "damp_percent": 0.1, "dataset": null, "desc_act": true, "exllama_config": {"version": 1}, "group_size": -1,
                "max_input_length": null, "model_seqlen": 4096, "module_name_preceding_first_block": ["model.embed_tokens"],
                "modules_in_block_to_quantize": null, "pad_token_id": null, "quant_method": "gptq", "sym": false,
                "tokenizer": null, "true_sequential": true, "use_cuda_fp16": false, "use_exllama": true}),
            8,
            None,
            true,
        ),
        (
            json!({"bits": 4, "checkpoint_format": "gptq", "desc_act": false, "dynamic": {"-:.*lm_head": {}}, "format": "gptq",
                "group_size": 32, "hyb_act": false, "lm_head": false, "meta": {"quantizer": ["gptqmodel:2.0.0"]},
                "method": "gptq", "pack_dtype": "int32", "quant_method": "gptq", "sym": true}),
            4,
            Some(32),
            false,
        ),
    ] {
        assert_eq!(
            declared(config.clone()),
            Ok(Some(Quantization::Gptq { bits, group, ordered })),
            "{config}"
        );
    }
}

#[test]
fn integers_of_awq_are_declared_as_published_checkpoints_do() {
    for (config, group) in [
        // Qwen3-8B-AWQ, and TheBloke's checkpoints.
        (
            json!({"backend": "autoawq", "bits": 4, "do_fuse": false, "exllama_config": null, "fuse_max_seq_len": null,
                "group_size": 128, "modules_to_fuse": null, "modules_to_not_convert": null, "quant_method": "awq",
                "version": "gemm", "zero_point": true}),
            Some(128),
        ),
        (
            json!({"bits": 4, "group_size": -1, "modules_to_not_convert": ["gate"], "quant_method": "awq", "version": "GEMM",
                "zero_point": true}),
            None,
        ),
    ] {
        assert_eq!(declared(config.clone()), Ok(Some(Quantization::Awq { group })), "{config}");
    }
}

/// The keys that llm-compressor writes.
fn compressed(format: &str, weights: Value) -> Value {
    let activations =
        json!({"actorder": null, "dynamic": true, "group_size": null, "num_bits": 8, "strategy": "token"});
    json!({
        "config_groups": {"group_0": {"input_activations": activations, "output_activations": null, "targets": ["Linear"],
            "weights": weights}},
        "format": format, "global_compression_ratio": 1.46, "ignore": ["lm_head", "re:.*mlp.gate$"],
        "kv_cache_scheme": null, "quant_method": "compressed-tensors", "quantization_status": "compressed",
        "sparsity_config": {"format": "dense", "global_sparsity": 0.1, "sparsity_structure": "unstructured"},
        "transform_config": {}, "version": "0.11.0"
    })
}

#[test]
fn forms_of_compressed_tensors_are_declared_as_published_checkpoints_do() {
    for (format, weights, code, shared) in [
        // FP8-dynamic, FP8, FP8-block, quantized.w8a8 and quantized.w4a16 of RedHatAI.
        (
            "float-quantized",
            json!({"actorder": null, "block_structure": null, "dynamic": false, "group_size": null, "num_bits": 8,
                "observer": "minmax", "observer_kwargs": {}, "strategy": "channel", "symmetric": true, "type": "float"}),
            Code::Float8,
            Shared::Output,
        ),
        (
            "float-quantized",
            json!({"num_bits": 8, "strategy": "tensor", "type": "float"}),
            Code::Float8,
            Shared::Matrix,
        ),
        (
            "float-quantized",
            json!({"num_bits": 8, "strategy": "block", "block_structure": [128, 128], "type": "float"}),
            Code::Float8,
            Shared::Block([128, 128]),
        ),
        (
            "int-quantized",
            json!({"num_bits": 8, "strategy": "channel", "type": "int"}),
            Code::Byte,
            Shared::Output,
        ),
        (
            "pack-quantized",
            json!({"actorder": "weight", "group_size": 128, "num_bits": 4, "strategy": "group", "symmetric": true,
                "type": "int"}),
            Code::Packed { bits: 4 },
            Shared::Group(128),
        ),
        // Without a strategy the size of groups decides.
        (
            "pack-quantized",
            json!({"group_size": 32, "num_bits": 8}),
            Code::Packed { bits: 8 },
            Shared::Group(32),
        ),
        (
            "pack-quantized",
            json!({"group_size": -1, "num_bits": 4}),
            Code::Packed { bits: 4 },
            Shared::Output,
        ),
        ("naive-quantized", json!({"num_bits": 8}), Code::Byte, Shared::Matrix),
    ] {
        let config = compressed(format, weights);
        assert_eq!(declared(config.clone()), scaled(&[(code, shared)]), "{config}");
        // As it was called once.
        let earlier = parse(llama_config(), json!({"compression_config": config})).expect("supported");
        assert_eq!(Ok(earlier.quantization), scaled(&[(code, shared)]));
    }
    let asked = json!({"actorder": "group", "group_size": 64, "num_bits": 4, "strategy": "group", "symmetric": false});
    let (code, shared) = (Code::Packed { bits: 4 }, Shared::Group(64));
    let scheme = Scheme { code, shared, symmetric: false, ordered: true };
    assert_eq!(declared(compressed("pack-quantized", asked)), Ok(Some(Quantization::Scaled(vec![scheme]))));
}

#[test]
fn forms_of_compressed_tensors_that_are_not_supported_are_refused_by_key() {
    let four = || json!({"num_bits": 4, "group_size": 128, "strategy": "group", "type": "int"});
    for (format, changes, named) in [
        (
            "nvfp4-pack-quantized",
            json!({}),
            "format is \"nvfp4-pack-quantized\"; supported is pack-quantized or",
        ),
        ("marlin-24", json!({}), "format is \"marlin-24\""),
        ("sparse-24-bitmask", json!({}), "format is \"sparse-24-bitmask\""),
        (
            "pack-quantized",
            json!({"num_bits": 3}),
            "group_0: weights: num_bits is 3 of type int in the format pack-quantized",
        ),
        ("pack-quantized", json!({"type": "float"}), "num_bits is 4 of type float"),
        ("float-quantized", json!({}), "num_bits is 4 of type int in the format float-quantized"),
        ("mixed-precision", json!({}), "num_bits can't be read without a format of its group"),
        (
            "pack-quantized",
            json!({"strategy": "tensor_group"}),
            "strategy is \"tensor_group\"; supported are tensor",
        ),
        ("pack-quantized", json!({"strategy": "block"}), "block_structure must be two whole numbers"),
        ("pack-quantized", json!({"group_size": null}), "group_size must be a whole number"),
        ("pack-quantized", json!({"group_size": 0}), "group_size must be a whole number"),
        ("pack-quantized", json!({"dynamic": true}), "dynamic must be false for weights"),
        ("pack-quantized", json!({"actorder": "random"}), "actorder is \"random\""),
        ("pack-quantized", json!({"is_mx": true}), "weights: is_mx is not known"),
    ] {
        let config = compressed(format, crate::with(four(), changes));
        let error = declared(config.clone()).err().unwrap_or_else(|| panic!("{config} was taken"));
        assert!(error.contains("quantization_config: ") && error.contains(named), "{config}: {error}");
    }
    for (changes, named) in [
        (json!({"config_groups": null}), "quantization_config has no config_groups"),
        (json!({"config_groups": {}}), "config_groups must be groups with weights"),
        (json!({"config_groups": {"W4A16": ["Linear"]}}), "config_groups: W4A16 must be an object"),
        (
            json!({"config_groups": {"kv": {"targets": ["k"], "weights": null}}}),
            "config_groups must be groups with weights",
        ),
        (json!({"ignore": "lm_head"}), "ignore must be a list"),
        (json!({"quantization_status": "initialized"}), "quantization_status is \"initialized\""),
        (
            json!({"sparsity_config": {"format": "sparse-24-bitmask"}}),
            "sparsity_config: format is \"sparse-24-bitmask\"",
        ),
        (json!({"transform_config": {"config_groups": {"R1": {}}}}), "transform_config is not supported"),
    ] {
        let error =
            declared(crate::with(compressed("pack-quantized", four()), changes.clone())).expect_err(named);
        assert!(error.contains(named), "{changes}: {error}");
    }
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
        refused(
            json!({"quant_method": method}),
            &format!("quant_method is {method:?}; supported are fp8, gptq, awq, compressed-tensors"),
        );
    }
    let gptq = |changes: Value| {
        let base =
            json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false, "sym": true});
        crate::with(base, changes)
    };
    for (changes, named) in [
        (json!({"bits": 3}), "bits is 3; supported is 4 or 8"),
        (json!({"bits": 2}), "bits is 2; supported is 4 or 8"),
        (json!({"bits": null}), "has no bits"),
        (json!({"bits": 4.5}), "bits must be a whole number"),
        (json!({"group_size": null}), "has no group_size"),
        (json!({"group_size": 0}), "group_size must be a whole number from 1"),
        (json!({"group_size": -2}), "group_size must be a whole number from 1"),
        (json!({"desc_act": "yes"}), "desc_act must be true or false"),
        (json!({"checkpoint_format": "gptq_v2"}), "checkpoint_format is \"gptq_v2\"; supported is gptq"),
        (json!({"checkpoint_format": "marlin"}), "checkpoint_format is \"marlin\""),
        (json!({"format": "bitblas"}), "format is \"bitblas\""),
        (json!({"is_marlin_format": true}), "is_marlin_format must be false"),
        (json!({"pack_dtype": "int16"}), "pack_dtype is \"int16\""),
        (
            json!({"dynamic": {"-:lm_head": {}, ".*down.*": {"bits": 8}}}),
            "dynamic has a rule for \".*down.*\"",
        ),
        (json!({"rotation": "hadamard"}), "rotation is not known"),
        (json!({"adapter": {"rank": 8}}), "adapter is not known"),
    ] {
        refused(gptq(changes), named);
    }
    let awq = |changes: Value| {
        let base = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": true});
        crate::with(base, changes)
    };
    for (changes, named) in [
        (json!({"bits": 8}), "bits is 8; supported is 4"),
        (json!({"version": "gemv"}), "version is \"gemv\"; supported is gemm"),
        (json!({"version": "marlin"}), "version is \"marlin\""),
        (json!({"backend": "llm-awq"}), "backend is \"llm-awq\""),
        (json!({"zero_point": false}), "zero_point must be true"),
        (json!({"group_size": "128"}), "group_size must be a whole number"),
        (json!({"modules_to_not_convert": {"gate": true}}), "modules_to_not_convert must be a list"),
        (json!({"w_bit": 4}), "w_bit is not known"),
    ] {
        refused(awq(changes), named);
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
