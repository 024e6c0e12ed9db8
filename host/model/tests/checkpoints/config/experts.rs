//! Layers of experts, of each family that has them.

use infer_kernels::Activation;
use infer_model::config::{ExpertLayout, ExpertsConfig, QkNorm, RopeScaling};
use serde_json::{Value, json};

use super::{llama_config, parse};
use crate::with;

fn qwen3_moe() -> Value {
    let own = json!({
        "model_type": "qwen3_moe", "num_hidden_layers": 6, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32
    });
    with(llama_config(), own)
}

#[test]
fn layers_consist_of_experts_where_the_keys_say() {
    let experts = |changes: Value| {
        let config = parse(qwen3_moe(), changes).expect("sound");
        config.layers.iter().map(|layer| layer.experts).collect::<Vec<_>>()
    };
    let plain = Some(ExpertsConfig {
        count: 8,
        per_token: 2,
        intermediate: 32,
        normalized: false,
        bias: false,
        layout: ExpertLayout::Plain,
    });
    assert_eq!(experts(json!({})), [plain; 6]);
    // As transformers 5 names it.
    let renamed = json!({"num_experts": null, "num_local_experts": 8, "shared_expert_intermediate_size": 0});
    assert_eq!(experts(renamed), [plain; 6]);
    let normalized = plain.map(|plain| ExpertsConfig { normalized: true, ..plain });
    assert_eq!(experts(json!({"norm_topk_prob": true, "mlp_only_layers": []})), [normalized; 6]);
    let some = experts(json!({"decoder_sparse_step": 2, "mlp_only_layers": [3, 77]}));
    assert_eq!(some, [None, plain, None, None, None, plain]);
    assert!(
        parse(llama_config(), json!({})).expect("sound").layers.iter().all(|layer| layer.experts.is_none())
    );

    let config = parse(qwen3_moe(), json!({"mlp_only_layers": [0, 1, 2, 3]})).expect("sound");
    let attention = 6 * 64 * (2 * 64 + 2 * 32);
    let rest = attention + 4 * 3 * 64 * 176 + 2 * 8 * 64;
    assert_eq!(config.layers_weights(), rest + 2 * 8 * 3 * 64 * 32);
    assert_eq!(config.token_weights(), rest + 2 * 2 * 3 * 64 * 32);
}

#[test]
fn window_of_qwen3_moe_is_that_of_all_layers_or_none() {
    let windows = |changes: Value| {
        let config = parse(qwen3_moe(), changes).expect("sound");
        config.layers.iter().map(|layer| layer.window).collect::<Vec<_>>()
    };
    let given =
        |used: bool| json!({"sliding_window": 32, "use_sliding_window": used, "max_window_layers": 4});
    assert_eq!(windows(given(false)), [None; 6]);
    assert_eq!(windows(given(true)), [Some(32); 6]);
    assert_eq!(windows(json!({"sliding_window": 32})), [None; 6]);
}

#[test]
fn wrong_or_unsupported_experts_are_refused_by_name() {
    for (changes, named) in [
        (json!({"num_experts": null}), "num_experts"),
        (json!({"num_experts": 0}), "num_experts"),
        (json!({"num_experts": 100_000}), "num_experts must be a whole number from 1 to 1024"),
        (json!({"num_local_experts": 9}), "num_local_experts must be 8"),
        (json!({"num_experts_per_tok": null}), "num_experts_per_tok"),
        (json!({"num_experts_per_tok": 9}), "num_experts_per_tok must be at most 8"),
        (json!({"moe_intermediate_size": null}), "moe_intermediate_size"),
        (json!({"moe_intermediate_size": -1}), "moe_intermediate_size"),
        (json!({"norm_topk_prob": 1}), "norm_topk_prob"),
        (json!({"decoder_sparse_step": 0}), "decoder_sparse_step"),
        (json!({"mlp_only_layers": 3}), "mlp_only_layers"),
        (json!({"mlp_only_layers": [-1]}), "mlp_only_layers"),
        (json!({"shared_expert_intermediate_size": 64}), "shared_expert_intermediate_size"),
        (json!({"n_shared_experts": 1}), "n_shared_experts"),
        (json!({"mlp_bias": true}), "mlp_bias"),
    ] {
        let error = parse(qwen3_moe(), changes.clone()).err().unwrap_or_else(|| panic!("{changes}"));
        assert!(error.message.contains(named), "{changes}: {error}");
    }
    for key in ["num_experts", "num_local_experts"] {
        let error = parse(llama_config(), json!({key: 8})).expect_err("a family without experts");
        assert!(error.message.contains(&format!("{key} is not supported")), "{error}");
    }
    let error = parse(qwen3_moe(), json!({"model_type": "qwen2_moe"})).expect_err("its experts are others");
    assert!(error.message.contains("qwen2_moe") && error.message.contains("qwen3_moe"), "{error}");
}

/// The keys of Mixtral 8x7B, at two layers.
fn mixtral() -> Value {
    json!({
        "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4_096, "intermediate_size": 14_336, "max_position_embeddings": 32_768,
        "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 2,
        "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps": 1e-5,
        "rope_theta": 1e6, "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "vocab_size": 32_000
    })
}

#[test]
fn all_layers_of_mixtral_consist_of_experts_whose_weights_are_normalized() {
    let config = parse(mixtral(), json!({})).expect("sound");
    let experts = ExpertsConfig {
        count: 8,
        per_token: 2,
        intermediate: 14_336,
        normalized: true,
        bias: false,
        layout: ExpertLayout::Mixtral,
    };
    assert!(config.layers.iter().all(|layer| layer.experts == Some(experts) && layer.window.is_none()));
    assert_eq!((config.head_dim, config.qk_norm, config.qkv_bias), (128, QkNorm::None, false));
    // What other families say so has no meaning here, as in transformers.
    let others = json!({"norm_topk_prob": false, "mlp_only_layers": [0], "decoder_sparse_step": 2});
    assert_eq!(parse(mixtral(), others).expect("sound"), config);
    let named =
        json!({"num_experts": 8, "num_local_experts": null, "rope_theta": null, "rms_norm_eps": null});
    assert_eq!(parse(mixtral(), named).expect("sound"), config, "the defaults of transformers");
    let windows = parse(mixtral(), json!({"sliding_window": 4_096})).expect("sound");
    assert!(windows.layers.iter().all(|layer| layer.window == Some(4_096)));
    for (changes, named) in [
        (json!({"num_local_experts": null}), "num_experts"),
        (json!({"num_local_experts": 1}), "num_experts_per_tok must be at most 1"),
        (json!({"intermediate_size": null}), "intermediate_size"),
        (json!({"attention_bias": true}), "attention_bias is not supported"),
        (json!({"mlp_bias": true}), "mlp_bias"),
        (json!({"n_shared_experts": 1}), "n_shared_experts"),
    ] {
        let error = parse(mixtral(), changes.clone()).err().unwrap_or_else(|| panic!("{changes}"));
        assert!(error.message.contains(named), "{changes}: {error}");
    }
}

/// The keys of OLMoE 1B-7B, at two layers.
fn olmoe() -> Value {
    json!({
        "architectures": ["OlmoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "clip_qkv": null,
        "eos_token_id": 50_279, "hidden_act": "silu", "hidden_size": 2_048, "intermediate_size": 1_024,
        "max_position_embeddings": 4_096, "model_type": "olmoe", "norm_topk_prob": false,
        "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 2,
        "num_key_value_heads": 16, "output_router_logits": false, "pad_token_id": 1, "rms_norm_eps": 1e-5,
        "rope_scaling": null, "rope_theta": 10_000.0, "router_aux_loss_coef": 0.01,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 50_304
    })
}

#[test]
fn all_layers_of_olmoe_consist_of_experts_and_its_norms_are_of_all_heads_together() {
    let config = parse(olmoe(), json!({})).expect("sound");
    let experts = ExpertsConfig {
        count: 64,
        per_token: 8,
        intermediate: 1_024,
        normalized: false,
        bias: false,
        layout: ExpertLayout::Plain,
    };
    assert!(config.layers.iter().all(|layer| layer.experts == Some(experts)));
    assert_eq!((config.qk_norm, config.qk_norm_widths()), (QkNorm::Whole, Some([2_048; 2])));
    assert!(config.input_norms && !config.output_norms && !config.qkv_bias);
    let mut absent = olmoe();
    ["attention_bias", "clip_qkv", "norm_topk_prob", "num_key_value_heads", "rms_norm_eps", "rope_theta"]
        .iter()
        .for_each(|key| drop(absent.as_object_mut().expect("an object").remove(*key)));
    assert_eq!(parse(absent, json!({})).expect("sound"), config, "the defaults of transformers");
    let normalized = parse(olmoe(), json!({"norm_topk_prob": true})).expect("sound");
    let expected = Some(ExpertsConfig { normalized: true, ..experts });
    assert!(normalized.layers.iter().all(|layer| layer.experts == expected));
    let biased = parse(olmoe(), json!({"attention_bias": true})).expect("sound");
    assert!(biased.qkv_bias && biased.output_bias);
    for (changes, named) in [
        (json!({"clip_qkv": 8.0}), "clip_qkv is not supported"),
        (json!({"num_experts": null}), "num_experts"),
        (json!({"num_experts_per_tok": 65}), "num_experts_per_tok must be at most 64"),
        (json!({"sliding_window": 32}), "sliding_window is not supported"),
        (json!({"mlp_bias": true}), "mlp_bias"),
    ] {
        let error = parse(olmoe(), changes.clone()).err().unwrap_or_else(|| panic!("{changes}"));
        assert!(error.message.contains(named), "{changes}: {error}");
    }
}

/// The keys of gpt-oss-20b, at two layers.
fn gpt_oss() -> Value {
    json!({
        "attention_bias": true, "eos_token_id": 200_002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2_880, "initial_context_length": 4_096, "intermediate_size": 2_880,
        "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 131_072,
        "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 2,
        "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
        "quantization_config": {
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
            "quant_method": "mxfp4"
        },
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4_096,
            "rope_type": "yarn", "truncate": false
        },
        "rope_theta": 150_000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
        "vocab_size": 201_088
    })
}

#[test]
fn gpt_oss_attends_with_sinks_and_consists_of_experts() {
    let config = parse(gpt_oss(), json!({})).expect("sound");
    assert!(config.sinks && config.qkv_bias && config.output_bias && !config.mlp_bias);
    assert_eq!(config.activation, Activation::ClampedSwish { alpha: 1.702, limit: 7.0 });
    assert_eq!(config.max_positions, 131_072);
    let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
    assert_eq!(windows, [Some(128), None]);
    let experts = ExpertsConfig {
        count: 32,
        per_token: 4,
        intermediate: 2_880,
        normalized: true,
        bias: true,
        layout: ExpertLayout::Interleaved,
    };
    assert!(config.layers.iter().all(|layer| layer.experts == Some(experts)));
    let RopeScaling::Yarn(yarn) = &config.ropes[0].scaling else { panic!("{:?}", config.ropes) };
    assert!(!yarn.truncate && config.ropes.len() == 1);
    // transformers' defaults, which are those of the published checkpoints.
    let absent = [
        "attention_bias",
        "layer_types",
        "sliding_window",
        "rope_scaling",
        "rope_theta",
        "swiglu_limit",
        "rms_norm_eps",
    ];
    let mut short = gpt_oss();
    absent.iter().for_each(|key| drop(short.as_object_mut().expect("an object").remove(*key)));
    assert_eq!(parse(short.clone(), json!({})).expect("sound"), config);
    assert_eq!(parse(short, json!({"rope_parameters": null, "layer_types": null})).expect("sound"), config);
    let other = parse(gpt_oss(), json!({"swiglu_limit": 2.5, "swiglu_alpha": 1.5})).expect("sound");
    assert_eq!(other.activation, Activation::ClampedSwish { alpha: 1.5, limit: 2.5 });
    for (changes, named) in [
        (
            json!({"quantization_config": {"quant_method": "fp8"}}),
            "quantization_config: quant_method must be mxfp4 for this model_type",
        ),
        (json!({"swiglu_limit": 0}), "swiglu_limit must be positive"),
        (json!({"swiglu_alpha": -1.0}), "swiglu_alpha must be positive"),
        // Infinite in 32 bits, and with it the products with 0 are no numbers.
        (json!({"swiglu_alpha": 1e300}), "swiglu_alpha must be positive"),
        (json!({"hidden_act": "gelu_pytorch_tanh"}), "hidden_act must be silu"),
        (json!({"num_local_experts": null}), "num_experts"),
        (json!({"num_experts_per_tok": 33}), "num_experts_per_tok must be at most 32"),
        (json!({"mlp_bias": true}), "mlp_bias"),
    ] {
        let error = parse(gpt_oss(), changes.clone()).err().unwrap_or_else(|| panic!("{changes}"));
        assert!(error.message.contains(named), "{changes}: {error}");
    }
    let elsewhere = json!({"quantization_config": {"quant_method": "mxfp4"}});
    let error = parse(llama_config(), elsewhere).expect_err("only gpt-oss has such tensors");
    assert!(error.message.contains("quant_method is \"mxfp4\"; supported are fp8"), "{error}");
}
