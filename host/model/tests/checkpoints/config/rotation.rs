//! How positions are embedded, and scaled beyond those of the training.

use infer_model::ModelConfig;
use infer_model::config::{RopeConfig, RopeScaling};
use serde_json::{Value, json};

use super::{llama_config, parse, phi3};
use crate::with;

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

/// Settings of a head of 32, of which 24 dimensions are rotated.
fn longrope(more: Value) -> Value {
    let growing = |by: f64| (0..12).map(|pair| 1.0 + by * f64::from(pair)).collect::<Vec<_>>();
    let own = json!({"rope_type": "longrope", "short_factor": growing(0.1), "long_factor": growing(0.5)});
    json!({
        "partial_rotary_factor": 0.75, "original_max_position_embeddings": 256, "rope_scaling": with(own, more)
    })
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
