//! What one family alone has: factors, norms, layers without a position embedding.

use infer_model::ModelConfig;
use infer_model::config::{QkNorm, RopeScaling};
use serde_json::{Value, json};

use super::{llama_config, parse, phi3};
use crate::with;

#[test]
fn scores_of_gemma_are_divided_by_the_root_of_256_unless_its_key_says() {
    let scale = |changes: Value| parse(llama_config(), changes).expect("sound").query_scale;
    let gemma = json!({"model_type": "gemma3_text", "head_dim": 64, "sliding_window_pattern": 2});
    assert_eq!(scale(gemma.clone()), 1.0 / 16.0);
    let mut other = gemma;
    other["query_pre_attn_scalar"] = json!(64);
    assert_eq!(scale(other), 1.0 / 8.0);
    assert_eq!(scale(json!({"head_dim": 64})), 1.0 / 8.0);
}

#[test]
fn factors_of_granite_are_those_of_its_keys_and_1_without() {
    let granite = |changes: Value| parse(llama_config(), with(json!({"model_type": "granite"}), changes));
    let factors = |changes: Value| {
        let ModelConfig { embedding_scale, query_scale, branch_scale, logit_divisor, .. } =
            granite(changes).expect("sound");
        (embedding_scale, query_scale, branch_scale, logit_divisor)
    };
    let all = json!({"embedding_multiplier": 12, "attention_multiplier": 0.015_625, "residual_multiplier": 0.22,
        "logits_scaling": 8.0});
    assert_eq!(factors(all.clone()), (12.0, 0.015_625, Some(0.22), Some(8.0)));
    assert_eq!(factors(json!({})), (1.0, 1.0, None, None));
    for key in ["embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"] {
        for wrong in [json!(0.0), json!(-1.0), json!("x")] {
            let error = granite(json!({key: wrong})).expect_err(key);
            assert!(error.message.contains(key), "{error}");
        }
    }
    // They mean nothing in other families.
    assert_eq!(parse(llama_config(), all), parse(llama_config(), json!({})));
}

#[test]
fn sliding_layers_of_olmo3_have_a_position_embedding_without_scaling() {
    let olmo = |family: &str, changes: Value| {
        parse(llama_config(), with(json!({"model_type": family, "num_hidden_layers": 5}), changes))
    };
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512});
    let old = olmo("olmo3", json!({"rope_theta": 500_000.0, "rope_scaling": yarn, "sliding_window": 32}));
    let mut full = yarn.clone();
    full["rope_theta"] = json!(500_000.0);
    let by_type = json!({"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0}});
    let new = olmo("olmo3", json!({"rope_parameters": by_type, "sliding_window": 32}));
    assert_eq!(old, new);
    let config = old.expect("sound");
    let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
    assert_eq!(windows, [Some(32), Some(32), Some(32), None, Some(32)]);
    for layer in &config.layers {
        let scaled = matches!(config.ropes[layer.rope].scaling, RopeScaling::Yarn(_));
        assert_eq!(scaled, layer.window.is_none());
    }
    assert_eq!((config.qk_norm, config.input_norms, config.output_norms), (QkNorm::Whole, false, true));
    assert_eq!(config.qk_norm_widths(), Some([64, 32]));
    // Beside their own base another for the rest says nothing about them.
    let by_type = json!({"full_attention": {}, "sliding_attention": {"rope_theta": 20_000.0}});
    let own = olmo("olmo3", json!({"rope_theta": 10_000.0, "rope_parameters": by_type})).expect("sound");
    assert_eq!((own.ropes[0].theta, own.ropes[1].theta), (10_000.0, 20_000.0));
    let plain = olmo("olmo3", json!({})).expect("sound");
    assert_eq!((plain.ropes[0].theta, plain.ropes[1].theta), (500_000.0, 500_000.0));
    assert_eq!(plain.layers[0].window, Some(4_096), "transformers' default");

    let two =
        olmo("olmo2", json!({"rope_scaling": yarn, "mlp_bias": true, "rms_norm_eps": null})).expect("sound");
    assert_eq!((two.ropes.len(), two.ropes[0].theta, two.norm_epsilon), (1, 10_000.0, 1e-5));
    assert!(!two.mlp_bias, "this family has none");
    for (family, changes, named) in [
        ("olmo3", json!({"sliding_window": null}), "sliding_window"),
        ("olmo3", json!({"rope_theta": 10_000.0}), "rope_theta must be 500000 unless rope_parameters has"),
        ("olmo3", json!({"rope_parameters": yarn}), "rope_parameters must be complete"),
        ("olmo2", json!({"sliding_window": 32}), "sliding_window is not supported"),
        ("olmo2", json!({"clip_qkv": 8.0}), "clip_qkv is not supported"),
    ] {
        let error = olmo(family, changes.clone()).err().unwrap_or_else(|| panic!("{changes}"));
        assert!(error.message.contains(named), "{changes}: {error}");
    }
}

#[test]
fn phi3_has_projections_in_one_and_a_window_only_if_a_number_is_there() {
    let config = phi3(json!({})).expect("sound");
    assert!(config.fused && !config.tied_head && !parse(llama_config(), json!({})).expect("sound").fused);
    let windows =
        |changes: Value| phi3(changes).expect("sound").layers.iter().map(|l| l.window).collect::<Vec<_>>();
    assert_eq!(windows(json!({})), [None; 2]);
    assert_eq!(windows(json!({"sliding_window": null})), [None; 2]);
    assert_eq!(windows(json!({"sliding_window": 2_047})), [Some(2_047); 2]);
    let epsilon = phi3(json!({"rms_norm_eps": null})).expect("sound").norm_epsilon;
    assert_eq!(epsilon, 1e-5, "transformers' default");
}

#[test]
fn layers_of_smollm3_have_no_position_embedding_where_the_keys_say() {
    let config = |changes: Value| {
        parse(llama_config(), with(json!({"model_type": "smollm3", "num_hidden_layers": 9}), changes))
    };
    let without = |changes: Value| {
        let config = config(changes).expect("sound");
        let absent = |layer: &usize| config.ropes[config.layers[*layer].rope].scaling == RopeScaling::Absent;
        (0..config.layers.len()).filter(absent).collect::<Vec<_>>()
    };
    assert_eq!(without(json!({})), [3, 7]);
    assert_eq!(without(json!({"no_rope_layer_interval": 3})), [2, 5, 8]);
    // The list counts, and may be longer than the model.
    let list = json!({"no_rope_layers": [1, 0, 1, 1, 1, 1, 1, 1, 0, 0], "no_rope_layer_interval": 3});
    assert_eq!(without(list), [1, 8]);
    assert_eq!(without(json!({"no_rope_layers": [1, 1, 1, 1, 1, 1, 1, 1, 1]})), [] as [usize; 0]);
    for wrong in [json!([1, 1, 0]), json!([1, 1, 1, 1, 2, 1, 1, 1, 1]), json!("none")] {
        let error = config(json!({"no_rope_layers": wrong})).expect_err("a layer is missing");
        assert!(error.message.contains("no_rope_layers"), "{error}");
    }
    let error = config(json!({"no_rope_layer_interval": 0})).expect_err("no layer is the zeroth");
    assert!(error.message.contains("no_rope_layer_interval"), "{error}");

    // Nothing is rotated there, even if the others' frequencies are scaled.
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let scaled = config(json!({"rope_scaling": yarn})).expect("sound");
    let (cosines, sines) = (vec![1.0; 8], vec![0.0; 8]);
    let table = scaled.ropes[scaled.layers[3].rope].table(16, 100);
    assert_eq!(table.at(99), (cosines.as_slice(), sines.as_slice()));

    // Windows are those of layers without, if there are any.
    let windows = |changes: Value| {
        let config = config(changes).expect("sound");
        config.layers.iter().map(|layer| layer.window).collect::<Vec<_>>()
    };
    assert_eq!(windows(json!({"use_sliding_window": true})), [None; 9]);
    assert_eq!(windows(json!({"sliding_window": 32})), [None; 9]);
    let some = windows(json!({"sliding_window": 32, "use_sliding_window": true}));
    assert_eq!((some[2], some[3], some[7], some[8]), (None, Some(32), Some(32), None));

    let defaults = config(json!({})).expect("sound");
    assert_eq!((defaults.ropes[0].theta, defaults.tied_head), (2_000_000.0, true));
}
