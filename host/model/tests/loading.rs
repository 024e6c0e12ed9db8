//! Loading of untrusted checkpoints: both generations of config.json, shards, embedded bytes, and what must be refused, with
//! the key, tensor or file at fault in the message.

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use common::golden;
use infer_kernels::Activation;
use infer_model::config::{ExpertsConfig, QkNorm, RopeConfig, RopeScaling};
use infer_model::{
    DType, ExecutorOptions, KvCacheKind, LoadOptions, Model, ModelConfig, ModelErrorKind, SamplingDefaults,
    Source, Tokenizer, WeightType,
};
use serde_json::{Value, json};

fn llama_config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "eos_token_id": 511
    })
}

/// The configuration with some keys replaced; null removes one.
fn parse(base: Value, changes: Value) -> Result<ModelConfig, infer_model::ModelError> {
    let mut config = base;
    for (key, value) in changes.as_object().expect("an object") {
        config[key] = value.clone();
    }
    ModelConfig::parse(config.to_string().as_bytes(), None)
}

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
fn scaling_that_was_added_to_newer_keys_counts() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024});
    let plain = json!({"rope_type": "default", "rope_theta": 500000.0});
    let both = parse(llama_config(), json!({"rope_scaling": yarn, "rope_parameters": plain}));
    assert_eq!(both, parse(llama_config(), json!({"rope_scaling": yarn, "rope_theta": 500000.0})));
    assert_eq!(both.expect("sound").max_positions, 4_096);
    for nothing in [Value::Null, json!({})] {
        let both = parse(llama_config(), json!({"rope_scaling": nothing, "rope_parameters": plain}));
        assert_eq!(both, parse(llama_config(), json!({"rope_theta": 500000.0})));
    }
}

#[test]
fn sliding_layers_of_gemma_have_their_own_base_whatever_keys_are_there() {
    let ropes = |changes: &[(&str, Value)]| {
        let mut all = json!({"model_type": "gemma3_text", "head_dim": 32, "sliding_window_pattern": 2});
        for (key, value) in changes {
            all[*key] = value.clone();
        }
        parse(llama_config(), all).expect("sound").ropes
    };
    let (plain, linear) = (json!({"rope_type": "default"}), json!({"rope_type": "linear", "factor": 8.0}));
    let expected = |scaling: RopeScaling| {
        let local = RopeConfig { theta: 10_000.0, scaling: RopeScaling::None, share: 1.0 };
        [RopeConfig { theta: 1_000_000.0, scaling, share: 1.0 }, local]
    };
    let by_type =
        |sliding: Value| ("rope_parameters", json!({"full_attention": plain, "sliding_attention": sliding}));
    let alone = ("rope_parameters", json!({"full_attention": plain}));
    for keys in [vec![], vec![alone.clone()], vec![by_type(Value::Null)], vec![by_type(plain.clone())]] {
        assert_eq!(ropes(&keys), expected(RopeScaling::None), "{keys:?}");
        let scaled: Vec<_> = keys.into_iter().chain([("rope_scaling", linear.clone())]).collect();
        assert_eq!(ropes(&scaled), expected(RopeScaling::Linear { factor: 8.0 }), "{scaled:?}");
    }
    let bases = [alone, ("rope_theta", json!(50_000.0)), ("rope_local_base_freq", json!(2_000.0))];
    assert_eq!(ropes(&bases).iter().map(|rope| rope.theta).collect::<Vec<_>>(), [50_000.0, 2_000.0]);
}

#[test]
fn scaled_position_embedding_extends_the_context_length() {
    let scaled = |settings: Value| parse(llama_config(), json!({"rope_scaling": settings})).expect("sound");
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024});
    assert_eq!(scaled(yarn).max_positions, 4_096);
    let shrinks = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128});
    assert_eq!(scaled(shrinks).max_positions, 1_024);
    assert_eq!(scaled(json!({"type": "linear", "factor": 4.0})).max_positions, 4_096);
    assert_eq!(scaled(json!({"type": "linear", "factor": 0.5})).max_positions, 1_024);
    // Llama 3.1 and Gemma 3 declare their positions after scaling.
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128});
    assert_eq!(scaled(llama3).max_positions, 1_024);
    let gemma = json!({"model_type": "gemma3_text", "head_dim": 32, "sliding_window_pattern": 2,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}});
    assert_eq!(parse(llama_config(), gemma).expect("sound").max_positions, 1_024);
    // A dynamic base would grow only beyond the trained positions, which this host refuses.
    let dynamic = scaled(json!({"type": "dynamic", "factor": 4.0}));
    assert_eq!((&dynamic.ropes[0].scaling, dynamic.max_positions), (&RopeScaling::None, 1_024));
    // Frequencies with 32 or more turns within the training are kept, those with one or fewer are stretched.
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024});
    let (plain, stretched) = (scaled(json!({"type": "default"})), scaled(yarn));
    let frequencies = |config: &ModelConfig| config.ropes[0].inverse_frequencies(16, 1);
    let ratios: Vec<f32> =
        frequencies(&plain).iter().zip(frequencies(&stretched)).map(|(plain, now)| plain / now).collect();
    assert_eq!((ratios[0], ratios[7]), (1.0, 4.0), "{ratios:?}");
    assert!(ratios.windows(2).all(|pair| pair[0] <= pair[1]), "{ratios:?}");
}

/// Frequencies of four pairs of a head of 32, and the factor of queries and keys, as transformers 5.23.0 computes them.
#[test]
fn yarn_scales_like_transformers() {
    let cases = [
        (
            json!({"factor": 2.5, "original_max_position_embeddings": 512}),
            [0.289_122_52, 0.074_285_716, 0.018_070_158, 0.002_249_365_2],
            1.091_629,
        ),
        (
            json!({"factor": 8.0, "original_max_position_embeddings": 256, "beta_fast": 16.0, "beta_slow": 2.0,
            "truncate": false}),
            [0.287_408_6, 0.042_441_797, 0.003_952_847_3, 0.000_702_926_66],
            1.207_944_2,
        ),
        (
            json!({"factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.3}),
            [0.221_359_43, 0.04, 0.007_905_695, 0.001_405_853_3],
            1.3,
        ),
        (
            json!({"factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 1.1}),
            [0.221_359_43, 0.04, 0.007_905_695, 0.001_405_853_3],
            0.951_885_34,
        ),
        (json!({"factor": 4.0}), [0.316_227_76, 0.078_571_43, 0.018_070_158, 0.001_405_853_3], 1.138_629_4),
    ];
    for (mut settings, frequencies, scale) in cases {
        settings["rope_type"] = json!("yarn");
        let config = parse(llama_config(), json!({"head_dim": 32, "rope_scaling": settings})).expect("sound");
        let computed = config.ropes[0].inverse_frequencies(32, 1);
        for (pair, want) in [2, 4, 6, 9].into_iter().zip(frequencies) {
            let got: f32 = computed[pair];
            assert!((got / want - 1.0).abs() < 1e-6, "{settings}, pair {pair}: {got} instead of {want}");
        }
        let table = config.ropes[0].table(32, 1);
        let (cosines, sines) = table.at(0);
        assert!((cosines[0] / scale - 1.0).abs() < 1e-6 && sines[0] == 0.0, "{settings}: {cosines:?}");
    }
}

fn phi3(changes: Value) -> Result<ModelConfig, infer_model::ModelError> {
    let mut all = json!({"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 2});
    for (key, value) in changes.as_object().expect("an object") {
        all[key] = value.clone();
    }
    parse(llama_config(), all)
}

/// Settings of a head of 32, of which 24 dimensions are rotated.
fn longrope(more: Value) -> Value {
    let growing = |by: f64| (0..12).map(|pair| 1.0 + by * f64::from(pair)).collect::<Vec<_>>();
    let mut settings =
        json!({"rope_type": "longrope", "short_factor": growing(0.1), "long_factor": growing(0.5)});
    for (key, value) in more.as_object().expect("an object") {
        settings[key] = value.clone();
    }
    json!({"partial_rotary_factor": 0.75, "original_max_position_embeddings": 256, "rope_scaling": settings})
}

/// Frequencies of four pairs for sequences of up to and of more than the original positions, and the factor of queries and
/// keys, as transformers 5.23.0 computes them.
#[test]
fn longrope_scales_like_transformers_by_the_longest_sequence() {
    let short = [1.0, 0.076_923_08, 0.002_730_346_8, 0.000_102_592_116];
    let long = [1.0, 0.04, 0.001_031_464_3, 3.314_514e-5];
    for (more, scale) in [
        (json!({}), 1.118_034),
        (json!({"attention_factor": 1.3}), 1.3),
        (json!({"factor": 16.0, "rope_type": "su"}), 1.224_744_9),
    ] {
        let config = phi3(longrope(more.clone())).expect("sound");
        assert_eq!((config.head_dim, config.max_positions), (32, 1_024), "they are declared after scaling");
        let rope = &config.ropes[0];
        for (positions, want) in [(1, short), (256, short), (257, long), (1_024, long)] {
            let got = rope.inverse_frequencies(32, positions);
            for (pair, want) in [0, 3, 7, 11].into_iter().zip(want) {
                let got: f32 = got[pair];
                assert!(
                    (got / want - 1.0).abs() < 1e-6,
                    "{more}, {positions}, pair {pair}: {got}, not {want}"
                );
            }
            assert_eq!(got[12..], [0.0; 4], "these aren't rotated");
            let table = rope.table(32, positions);
            let (cosines, sines) = table.at(0);
            assert!((cosines[11] / scale - 1.0).abs() < 1e-6, "{more}: {cosines:?}");
            assert_eq!((&cosines[12..], sines), (&[1.0; 4][..], &[0.0; 16][..]), "nor scaled");
        }
    }
    // Without the key, it is transformers' default for this family.
    let mut without = longrope(json!({}));
    without["original_max_position_embeddings"] = Value::Null;
    let config = phi3(without).expect("sound");
    let RopeScaling::Long(long) = &config.ropes[0].scaling else { panic!("it is longrope") };
    assert_eq!((long.original, long.attention), (4_096, 1.0));
}

#[test]
fn factors_of_granite_are_those_of_its_keys_and_1_without() {
    let granite = |changes: Value| {
        let mut all = json!({"model_type": "granite"});
        for (key, value) in changes.as_object().expect("an object") {
            all[key] = value.clone();
        }
        parse(llama_config(), all)
    };
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
        let mut all = json!({"model_type": family, "num_hidden_layers": 5});
        for (key, value) in changes.as_object().expect("an object") {
            all[key] = value.clone();
        }
        parse(llama_config(), all)
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
fn wrong_or_unsupported_rotation_of_phi3_is_refused_by_name() {
    for (changes, named) in [
        (longrope(json!({"short_factor": null})), "short_factor must be a list of positive numbers"),
        (
            longrope(json!({"long_factor": [1.0, 2.0]})),
            "long_factor must be a list of 12 numbers, is \"2 of them\"",
        ),
        (longrope(json!({"long_factor": [1.0, 0.0]})), "long_factor must be a list of positive numbers"),
        (longrope(json!({"short_mscale": 1.1})), "short_mscale is not supported"),
        (longrope(json!({"attention_factor": -1.0})), "attention_factor must be positive"),
        (
            longrope(json!({"rope_type": "linear", "factor": 2.0})),
            "rope_type is \"linear\"; supported for this",
        ),
        (
            json!({"original_max_position_embeddings": 1, "rope_scaling": longrope(json!({}))["rope_scaling"]}),
            "original_max_position_embeddings must be above 1",
        ),
        (json!({"partial_rotary_factor": 0.1}), "partial_rotary_factor must be so large"),
        (json!({"partial_rotary_factor": 0.01}), "partial_rotary_factor must be so large"),
        (json!({"partial_rotary_factor": 1.5}), "partial_rotary_factor must be above 0 and at most 1"),
        (
            json!({"rope_parameters": {"partial_rotary_factor": -1.0}}),
            "partial_rotary_factor must be above 0",
        ),
        (json!({"attention_bias": true}), "attention_bias"),
    ] {
        let error = phi3(changes.clone()).err().unwrap_or_else(|| panic!("{changes}"));
        assert!(error.message.contains(named), "{changes}: {error}");
    }
}

#[test]
fn unsupported_arithmetic_is_refused_by_name() {
    for (changes, named) in [
        (json!({"model_type": "mixtral"}), "mixtral"),
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
        (json!({"rope_scaling": {"rope_type": 3}}), "rope_type is 3"),
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
        (json!({"quantization_config": {"bits": 4}}), "quantization_config"),
        (json!({"quantization": {"group_size": 64, "bits": 4}}), "quantization is not supported"),
        (json!({"sliding_window": 128}), "sliding_window"),
        (json!({"eos_token_id": "end"}), "eos_token_id"),
        (json!({"torch_dtype": "int8"}), "dtype"),
        (json!({"layer_types": ["full_attention"]}), "layer_types"),
    ] {
        let error = parse(llama_config(), changes.clone()).err().unwrap_or_else(|| panic!("{changes}"));
        assert!(error.message.contains(named), "{changes}: {error}");
        assert!(matches!(error.kind, ModelErrorKind::Config | ModelErrorKind::Unsupported), "{error}");
    }
}

#[test]
fn layers_of_smollm3_have_no_position_embedding_where_the_keys_say() {
    let config = |changes: Value| {
        let mut all = json!({"model_type": "smollm3", "num_hidden_layers": 9});
        for (key, value) in changes.as_object().expect("an object") {
            all[key] = value.clone();
        }
        parse(llama_config(), all)
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

fn qwen3_moe() -> Value {
    let mut config = llama_config();
    for (key, value) in [
        ("model_type", json!("qwen3_moe")),
        ("num_hidden_layers", json!(6)),
        ("num_experts", json!(8)),
        ("num_experts_per_tok", json!(2)),
        ("moe_intermediate_size", json!(32)),
    ] {
        config[key] = value;
    }
    config
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
        interleaved: false,
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
        interleaved: true,
    };
    assert!(config.layers.iter().all(|layer| layer.experts == Some(experts)));
    let RopeScaling::Yarn(yarn) = &config.ropes[0].scaling else { panic!("{:?}", config.ropes) };
    assert!(!yarn.truncate && config.ropes.len() == 1);
    let mut dense = config.clone();
    dense.layers.iter_mut().for_each(|layer| layer.experts = None);
    for (config, what) in [(&config, "layers of experts"), (&dense, "attention sinks")] {
        let why = config.only_on_cpus().expect("there are no kernels");
        assert_eq!(why, format!("{what} (model_type gpt_oss) have no kernels on GPUs"));
    }
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
        (json!({"quantization_config": {"quant_method": "gptq"}}), "quantization_config"),
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
    assert!(error.message.contains("quantization_config"), "{error}");
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

#[test]
fn generation_config_overrides_end_tokens() {
    let config = llama_config().to_string();
    let ends = |generation: Option<&str>| {
        ModelConfig::parse(config.as_bytes(), generation.map(str::as_bytes)).expect("sound").stop_tokens
    };
    assert_eq!(ends(None), [511]);
    assert_eq!(ends(Some("{}")), [511]);
    assert_eq!(ends(Some(r#"{"eos_token_id": [1, 2]}"#)), [1, 2]);
    assert_eq!(ends(Some(r#"{"eos_token_id": 7}"#)), [7]);
}

#[test]
fn generation_config_sets_default_sampling_parameters() {
    let parse = |text: &str| SamplingDefaults::parse(text.as_bytes());
    let silent = SamplingDefaults::default();
    for (text, expected) in [
        (r#"{"eos_token_id": 7, "do_sample": false}"#, silent),
        (r#"{"temperature": null, "top_k": null}"#, silent),
        (
            r#"{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05}"#,
            SamplingDefaults {
                temperature: Some(0.6),
                top_p: Some(0.95),
                top_k: Some(20),
                min_p: Some(0.0),
                repetition_penalty: Some(1.05),
            },
        ),
        (
            r#"{"top_k": -1, "temperature": 0}"#,
            SamplingDefaults { top_k: Some(0), temperature: Some(0.0), ..silent },
        ),
    ] {
        assert_eq!(parse(text), Ok(expected), "{text}");
    }
    for (text, named) in [
        (r#"{"temperature": -1}"#, "temperature must be from 0 to 100, is -1"),
        (r#"{"temperature": "warm"}"#, "temperature"),
        (r#"{"top_p": 0}"#, "top_p"),
        (r#"{"top_k": 2.5}"#, "top_k"),
        (r#"{"top_k": -2}"#, "top_k"),
        (r#"{"min_p": 2}"#, "min_p"),
        (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
        ("[]", "object"),
    ] {
        let error = parse(text).expect_err(text);
        assert!(error.message.contains("generation_config.json") && error.message.contains(named), "{error}");
    }
    let embedded = [("generation_config.json", &b"{\"top_k\": 3}"[..])];
    let loaded = SamplingDefaults::load(&Source::Embedded(&embedded));
    assert_eq!(loaded, Ok(SamplingDefaults { top_k: Some(3), ..silent }));
    assert_eq!(SamplingDefaults::load(&Source::Embedded(&[])), Ok(silent));
}

#[test]
fn pretraining_tp_is_ignored() {
    let plain = parse(llama_config(), json!({}));
    assert_eq!(parse(llama_config(), json!({"pretraining_tp": 2})), plain);
}

fn read(name: &str, file: &str) -> Vec<u8> {
    std::fs::read(golden(name).join(file)).expect("golden files are there")
}

#[test]
fn shards_embedded_bytes_and_one_file_load_the_same_weights() {
    let (config, whole) = (read("llama-f32", "config.json"), read("llama-f32", "model.safetensors"));
    let tensors = safetensors::SafeTensors::deserialize(&whole).expect("sound");
    let (mut shards, mut map) = ([Vec::new(), Vec::new()], serde_json::Map::new());
    for (i, (name, view)) in tensors.tensors().into_iter().enumerate() {
        map.insert(name.clone(), json!(format!("shard-{}.safetensors", i % 2)));
        shards[i % 2].push((name, view));
    }
    let shards = shards.map(|shard| safetensors::serialize(shard, None).expect("sound"));
    let index = json!({"weight_map": map}).to_string();
    let embedded: Vec<(&str, &[u8])> = vec![
        ("config.json", &config),
        ("model.safetensors.index.json", index.as_bytes()),
        ("shard-0.safetensors", &shards[0]),
        ("shard-1.safetensors", &shards[1]),
    ];
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, bytes) in &embedded {
        std::fs::write(directory.path().join(name), bytes).expect("it can be written");
    }
    // A single file wins over an index of others, as in transformers.
    let left = json!({"weight_map": {"model.norm.weight": "gone.safetensors"}}).to_string();
    let both: Vec<(&str, &[u8])> = vec![
        ("config.json", &config),
        ("model.safetensors", &whole),
        ("model.safetensors.index.json", left.as_bytes()),
    ];
    let both_in = tempfile::tempdir().expect("a temporary directory");
    for (name, bytes) in &both {
        std::fs::write(both_in.path().join(name), bytes).expect("it can be written");
    }
    let sources = [
        Source::Directory(golden("llama-f32")),
        Source::Embedded(&embedded),
        Source::Directory(directory.path().to_owned()),
        Source::Embedded(&both),
        Source::Directory(both_in.path().to_owned()),
    ];
    let logits = sources.map(|source| {
        let model = Model::load(&source, None).expect("sound");
        let mut driver = common::Driver::new(&model, infer_model::KvCacheKind::Paged, 16, 1);
        driver.run(&[common::Chunk { sequence: 1, start: 0, tokens: &[506, 3, 9] }]).remove(0).0
    });
    for other in &logits[1..] {
        assert_eq!(&logits[0], other);
    }
}

#[test]
fn broken_weights_are_refused_with_the_tensor_or_file_at_fault() {
    let (config, whole) = (read("llama-f32", "config.json"), read("llama-f32", "model.safetensors"));
    let changed = |changes: Value| {
        let mut value: Value = serde_json::from_slice(&config).expect("JSON");
        for (key, new) in changes.as_object().expect("an object") {
            value[key] = new.clone();
        }
        value.to_string().into_bytes()
    };
    let index = |shard: &str| json!({"weight_map": {"model.norm.weight": shard}}).to_string().into_bytes();
    let with_index = |shard: &str| {
        vec![
            ("config.json", config.clone()),
            ("shard.safetensors", whole.clone()),
            ("model.safetensors.index.json", index(shard)),
        ]
    };
    let plain = |config: Vec<u8>, weights: &[u8]| {
        vec![("config.json", config), ("model.safetensors", weights.to_vec())]
    };
    type Files = Vec<(&'static str, Vec<u8>)>;
    let cases: Vec<(Files, &str)> = vec![
        (plain(changed(json!({"intermediate_size": 180})), &whole), "mlp.gate_proj.weight"),
        (plain(changed(json!({"vocab_size": 600})), &whole), "model.embed_tokens.weight"),
        (plain(changed(json!({"tie_word_embeddings": false})), &whole), "lm_head.weight"),
        (plain(changed(json!({"num_hidden_layers": 5})), &whole), "model.layers.4"),
        (plain(config.clone(), &whole[..whole.len() - 10]), "model.safetensors"),
        (plain(config.clone(), b"no tensors here"), "model.safetensors"),
        (
            vec![("config.json", config.clone())],
            "no file model.safetensors and no model.safetensors.index.json",
        ),
        // Parts without the file that names them.
        (
            vec![("config.json", config.clone()), ("model-00001-of-00002.safetensors", whole.clone())],
            "no file model.safetensors and no model.safetensors.index.json",
        ),
        (vec![("model.safetensors", whole.clone())], "config.json"),
        (with_index("../secret.safetensors"), ".."),
        (with_index("/etc/passwd"), "/etc/passwd"),
        (with_index("absent.safetensors"), "absent.safetensors"),
    ];
    for (files, named) in cases {
        let borrowed: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (*n, b.as_slice())).collect();
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (name, bytes) in &borrowed {
            std::fs::write(directory.path().join(name), bytes).expect("it can be written");
        }
        for source in [Source::Embedded(&borrowed), Source::Directory(directory.path().to_owned())] {
            let error = Model::load(&source, None).err().unwrap_or_else(|| panic!("{named} was taken"));
            assert!(error.message.contains(named), "{named}: {error}");
        }
    }
}

/// Tensors in bf16 by name: shape and bytes.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

/// The tensors of the golden checkpoint with experts, each matrix by itself.
fn separate_experts() -> Tensors {
    let whole = read("qwen3moe-bf16", "model.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&whole).expect("sound");
    let tensors = tensors.tensors().into_iter();
    tensors.map(|(name, view)| (name, (view.shape().to_vec(), view.data().to_vec()))).collect()
}

/// The same with a layer's experts in two tensors, as transformers has them in memory.
fn fused_experts() -> Tensors {
    let mut all = Tensors::new();
    // An expert's gate comes before its up, and there are fewer than ten experts, whose names are in order.
    for (name, (shape, bytes)) in separate_experts() {
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

fn load_experts(config: &[u8], tensors: &Tensors) -> Result<Model, infer_model::ModelError> {
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
    let config = read("qwen3moe-bf16", "config.json");
    let logits = [separate_experts(), fused_experts()].map(|tensors| {
        let model = load_experts(&config, &tensors).expect("sound");
        let mut driver = common::Driver::new(&model, infer_model::KvCacheKind::Paged, 16, 1);
        driver.run(&[common::Chunk { sequence: 1, start: 0, tokens: &[506, 3, 9, 77] }]).remove(0).0
    });
    assert_eq!(logits[0], logits[1]);
}

#[test]
fn missing_or_misshapen_experts_are_named() {
    let config = read("qwen3moe-bf16", "config.json");
    let cases: [(Tensors, &str, Option<&[usize]>, &str); 6] = [
        (
            separate_experts(),
            "model.layers.2.mlp.experts.5.up_proj.weight",
            None,
            "tensor model.layers.2.mlp.experts.5.up_proj.weight is missing",
        ),
        (
            separate_experts(),
            "model.layers.0.mlp.experts.7.down_proj.weight",
            Some(&[32, 64]),
            "experts.7.down_proj.weight has shape [32, 64], config.json requires [64, 32]",
        ),
        (
            separate_experts(),
            "model.layers.1.mlp.up_proj.weight",
            None,
            "model.layers.1.mlp.up_proj.weight is",
        ),
        (
            separate_experts(),
            "model.layers.3.mlp.gate.weight",
            Some(&[16, 32]),
            "model.layers.3.mlp.gate.weight has shape [16, 32], config.json requires [8, 64]",
        ),
        (
            fused_experts(),
            "model.layers.2.mlp.experts.down_proj",
            None,
            "model.layers.2.mlp.experts.0.down_proj.weight is missing",
        ),
        (
            fused_experts(),
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
fn pointers_in_place_of_large_files_are_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("config.json"), read("llama-f32", "config.json")).expect("it can be written");
    let files = ["tokenizer.json", "model.safetensors", "model.gguf"];
    for name in files {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4519\n";
        std::fs::write(at(name), pointer).expect("it can be written");
    }
    let source = Source::Directory(directory.path().to_owned());
    let errors = [
        Tokenizer::load(&source).err(),
        Model::load(&source, None).err(),
        Source::gguf(&at("model.gguf")).err(),
    ];
    for (name, error) in files.into_iter().zip(errors) {
        let error = error.expect(name).message;
        assert!(error.contains(&format!("{name} is a Git LFS pointer")), "{error}");
    }
}

#[test]
fn load_reports_every_matrix_and_can_be_cancelled() {
    for name in ["llama-f32", "qwen3moe-bf16", "gptoss-bf16", "gptoss-mxfp4"] {
        let source = Source::Directory(golden(name));
        let (mut seen, mut total) = (Vec::new(), 0);
        let model = Model::load_with(&source, &LoadOptions::default(), &mut |progress| {
            seen.push(progress.done_bytes);
            total = progress.total_bytes;
            ControlFlow::Continue(())
        });
        assert!(model.is_ok() && seen.is_sorted_by(|a, b| a < b), "{name}: {seen:?}");
        let copied = Model::copy_weights(&source).expect("sound").0;
        assert_eq!(seen.last(), Some(&copied), "{name}");
        // All matrices, each of their bytes once.
        let whole = read(name, "model.safetensors");
        let tensors = safetensors::SafeTensors::deserialize(&whole).expect("sound").tensors();
        let vectors = tensors.iter().filter(|(name, view)| view.shape().len() == 1 || name.ends_with("bias"));
        let left: usize = vectors.map(|(_, view)| view.data().len()).sum();
        assert_eq!(copied + left as u64, total, "{name}");
    }

    let source = Source::Directory(golden("llama-f32"));
    let mut calls = 0;
    let given_up = Model::load_with(&source, &LoadOptions::default(), &mut |_| {
        calls += 1;
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((given_up.err().map(|error| error.kind), calls), (Some(ModelErrorKind::Weights), 3));
}

#[test]
fn half_precision_checkpoints_keep_their_precision() {
    let whole = read("llama-f32", "model.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&whole).expect("sound");
    let halves: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let numbers = view.data().chunks_exact(4);
            let numbers = numbers.map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")));
            let bytes = numbers.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect();
            (name, view.shape().to_vec(), bytes)
        })
        .collect();
    let views = halves.iter().map(|(name, shape, bytes)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F16, shape.clone(), bytes);
        (name.as_str(), view.expect("sizes agree"))
    });
    let weights = safetensors::serialize(views, None).expect("names are unique");
    let config = String::from_utf8(read("llama-f32", "config.json")).expect("text");
    let config = config.replace("\"float32\"", "\"float16\"");
    let files: [(&str, &[u8]); 2] = [("config.json", config.as_bytes()), ("model.safetensors", &weights)];
    let load = |files: &[(&str, &[u8])], dtype, for_gpu| {
        let options = LoadOptions { dtype, for_gpu, ..LoadOptions::default() };
        let model = Model::load_with(&Source::Embedded(files), &options, &mut |_| ControlFlow::Continue(()));
        model.map(|model| (model.dtype, model.weight_type)).map_err(|error| error.to_string())
    };
    assert_eq!(load(&files, None, false), Ok((DType::F32, WeightType::F32)));
    assert_eq!(load(&files, None, true), Ok((DType::F16, WeightType::F16)));
    assert!(load(&files, Some(DType::F16), false).is_err_and(|error| error.contains("GPUs")));

    let (config, weights) = (read("gemma3-f32", "config.json"), read("gemma3-f32", "model.safetensors"));
    let config = String::from_utf8(config).expect("text").replace("\"float32\"", "\"float16\"");
    let gemma: [(&str, &[u8]); 2] = [("config.json", config.as_bytes()), ("model.safetensors", &weights)];
    assert_eq!(load(&gemma, None, true), Ok((DType::F32, WeightType::F32)));
    assert!(load(&gemma, Some(DType::F16), true).is_err_and(|error| error.contains("overflow")));
}

#[test]
fn models_larger_than_memory_are_refused_before_allocation() {
    let small = parse(llama_config(), json!({"head_dim": 128, "max_position_embeddings": u32::MAX}));
    let small = small.expect("sound");
    let vast = ModelConfig { vocab: 1 << 40, ..small.clone() };
    for weights in [WeightType::F32, WeightType::Bf16, WeightType::Q8, WeightType::Q4, WeightType::Mxfp4] {
        let error = Model::random(vast.clone(), weights, 1).err().expect("64 TiB");
        assert!(error.message.starts_with("the weights don't fit: they take "), "{error}");
        assert!(error.message.contains(" MiB are available"), "{error}");
    }
    // Two TiB of sines and cosines, and almost no cache.
    let model = Model::random(small, WeightType::Bf16, 1).expect("a small one");
    let options = ExecutorOptions {
        kv_cache: KvCacheKind::Paged,
        block_size: 16,
        total_blocks: 4,
        max_running: 1,
        max_seq_len: u32::MAX,
        prompt_cache_entries: 0,
        threads: 1,
    };
    let error = model.executor(options).err().expect("no machine has so much");
    assert!(error.message.contains("a KV cache of 64 tokens and 4294967295 positions take"), "{error}");
}
