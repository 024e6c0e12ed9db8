//! Keys of all families: both generations mean the same, absent ones have transformers' defaults, and unsupported ones are
//! refused.

use infer_model::config::RopeScaling;
use infer_model::{DType, ModelErrorKind};
use serde_json::{Value, json};

use super::{llama_config, parse};

#[test]
fn both_generations_of_keys_mean_the_same() {
    let llama3 = json!({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"});
    let mut v5 = llama3.clone();
    v5["rope_theta"] = json!(500000.0);
    let old = parse(
        llama_config(),
        json!({"rope_theta": 500000.0, "rope_scaling": llama3, "torch_dtype": "bfloat16"}),
    );
    let new = parse(llama_config(), json!({"rope_parameters": v5, "dtype": "bfloat16"}));
    assert_eq!(old, new);
    let config = new.expect("sound");
    assert!(matches!(config.ropes[0].scaling, RopeScaling::Llama3 { original: 8192.0, .. }));
    assert_eq!(config.stored_dtype, Some(DType::Bf16));
    assert_eq!(config.head_dim, 16);

    let gemma = json!({"model_type": "gemma3_text", "head_dim": 32, "sliding_window": 16,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64, "num_hidden_layers": 7});
    let mut old = gemma.clone();
    old["sliding_window_pattern"] = json!(6);
    old["rope_local_base_freq"] = json!(10000.0);
    old["rope_theta"] = json!(1000000.0);
    old["rope_scaling"] = json!({"rope_type": "linear", "factor": 8.0});
    let mut new = gemma;
    let types = [
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
        "sliding_attention",
    ];
    new["layer_types"] = json!(types);
    new["rope_parameters"] = json!({
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}});
    let config = parse(llama_config(), old).expect("sound");
    assert_eq!(Ok(&config), parse(llama_config(), new).as_ref());
    let windows: Vec<_> = config.layers.iter().map(|layer| layer.window.is_some()).collect();
    assert_eq!(windows, [true, true, true, true, true, false, true]);
    assert!((config.query_scale - 0.125).abs() < 1e-7 && config.tied_head && config.norm_offset);
}

#[test]
fn absent_window_is_the_default_of_transformers() {
    let windows = |changes: Value| {
        let config = parse(llama_config(), changes).expect("sound");
        config.layers.iter().map(|layer| layer.window).collect::<Vec<_>>()
    };
    let gemma = json!({"model_type": "gemma3_text", "head_dim": 32, "sliding_window_pattern": 2});
    assert_eq!(windows(gemma.clone()), [Some(4_096), None]);
    let mut null = gemma;
    null["sliding_window"] = Value::Null;
    assert_eq!(windows(null), [None, None]);
    assert_eq!(windows(json!({"model_type": "mistral"})), [Some(4_096), Some(4_096)]);
    assert_eq!(windows(json!({})), [None, None]);
}

#[test]
fn unsupported_arithmetic_is_refused_by_name() {
    for (changes, named) in [
        (json!({"model_type": "falcon"}), "falcon"),
        (json!({"model_type": null}), "model_type"),
        (json!({"model_type": "gemma3", "text_config": {"model_type": "gemma3"}}), "model_type"),
        (json!({"hidden_size": null}), "hidden_size"),
        (json!({"hidden_size": -3}), "hidden_size"),
        (json!({"num_hidden_layers": 1e9}), "num_hidden_layers"),
        (json!({"num_hidden_layers": 100000}), "num_hidden_layers"),
        (json!({"num_key_value_heads": 3}), "num_key_value_heads"),
        (json!({"num_attention_heads": 0}), "num_attention_heads"),
        (json!({"head_dim": 15}), "head_dim"),
        (json!({"head_dim": 1024}), "head_dim"),
        (json!({"hidden_act": "relu"}), "hidden_act"),
        (json!({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}), "rope_type is \"longrope\""),
        (json!({"rope_scaling": {"type": "su"}}), "\"su\""),
        (json!({"rope_scaling": {"rope_type": null, "type": "su"}}), "\"su\""),
        (json!({"rope_scaling": {"rope_type": 3}}), "rope_type is 3"),
        (json!({"rope_scaling": "linear"}), "rope_scaling must be an object, is \"linear\""),
        (json!({"rope_parameters": [8.0]}), "rope_parameters must be an object"),
        (json!({"rope_scaling": {"rope_type": "yarn"}}), "factor"),
        (json!({"rope_scaling": {"rope_type": "yarn", "factor": 0}}), "factor must be positive"),
        (json!({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": "x"}}), "beta_fast"),
        (json!({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": 1}}), "truncate"),
        (json!({"rope_scaling": {"rope_type": "dynamic"}}), "factor"),
        (json!({"rope_parameters": {"partial_rotary_factor": 0.25}}), "partial_rotary_factor"),
        (json!({"rope_scaling": {"type": "linear"}}), "factor"),
        (json!({"rope_theta": -1.0}), "rope_theta"),
        (json!({"rms_norm_eps": -1e-5}), "rms_norm_eps"),
        (json!({"attn_logit_softcapping": 0.0}), "attn_logit_softcapping"),
        (json!({"final_logit_softcapping": -30.0}), "final_logit_softcapping"),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        (json!({"quantization_config": {"bits": 4}}), "quantization_config has no quant_method"),
        (json!({"quantization": {"group_size": 64, "bits": 4}}), "quantization is not supported"),
        (json!({"use_bidirectional_attention": true}), "use_bidirectional_attention must be false"),
        (json!({"is_causal": false}), "is_causal must be true"),
        (json!({"sliding_window": 128}), "sliding_window"),
        (json!({"eos_token_id": "end"}), "eos_token_id"),
        (json!({"torch_dtype": "int8"}), "dtype"),
        (json!({"layer_types": ["full_attention"]}), "layer_types"),
        (json!({"layer_types": "full_attention"}), "layer_types must be a list"),
    ] {
        let error = parse(llama_config(), changes.clone()).err().unwrap_or_else(|| panic!("{changes}"));
        assert!(error.message.contains(named), "{changes}: {error}");
        assert!(matches!(error.kind, ModelErrorKind::Config | ModelErrorKind::Unsupported), "{error}");
    }
}

#[test]
fn pretraining_tp_is_ignored() {
    let plain = parse(llama_config(), json!({}));
    assert_eq!(parse(llama_config(), json!({"pretraining_tp": 2})), plain);
}
