//! The configuration that keys of the metadata make, by family.

use candle_core::quantized::gguf_file::Value;
use infer_model::config::{ExpertLayout, ExpertsConfig, LayerConfig, LongRope, QkNorm, RopeScaling};
use infer_model::{ModelConfig, Source};

use super::{NORMAL, made, made_with, tokens};

#[test]
fn positions_are_stretched_by_a_factor_without_a_kind() {
    let vocabulary = tokens(&[("<unk>", 2), ("a", NORMAL)]);
    let scaling = |more: &[(&str, Value)]| {
        let config = ModelConfig::load(&made(&vocabulary, more)).expect("sound");
        config.ropes[0].scaling.clone()
    };
    let kind = |kind: &str| ("llama.rope.scaling.type", Value::String(kind.to_owned()));
    let new = |factor: f32| ("llama.rope.scaling.factor", Value::F32(factor));
    let old = |factor: f32| ("llama.rope.scale_linear", Value::F32(factor));
    let linear = |factor: f64| RopeScaling::Linear { factor };
    for (more, expected) in [
        (vec![], RopeScaling::None),
        (vec![new(4.0)], linear(4.0)),
        (vec![old(4.0)], linear(4.0)),
        (vec![new(2.0), old(4.0)], linear(2.0)),
        (vec![kind("linear"), old(4.0)], linear(4.0)),
        (vec![kind("none"), old(4.0)], RopeScaling::None),
        (vec![old(1.0)], RopeScaling::None),
        (vec![new(0.0)], RopeScaling::None),
    ] {
        assert_eq!(scaling(&more), expected, "{more:?}");
    }
}

#[test]
fn factors_of_frequencies_are_the_only_scaling() {
    let vocabulary = tokens(&[("<unk>", 2), ("a", NORMAL)]);
    let load = |kind: &str, factor: f32| {
        let more = [
            ("llama.rope.scaling.type", Value::String(kind.to_owned())),
            ("llama.rope.scaling.factor", Value::F32(factor)),
        ];
        ModelConfig::load(&made_with(&vocabulary, &more, &[("rope_freqs.weight", &[1.0, 8.0])]))
    };
    for (kind, factor) in [("none", 4.0), ("linear", 1.0)] {
        let config = load(kind, factor).expect("sound");
        assert_eq!(config.ropes[0].scaling, RopeScaling::Factors(vec![1.0, 8.0]), "{kind}");
    }
    for kind in ["linear", "yarn"] {
        let error = load(kind, 4.0).expect_err(kind).message;
        assert!(error.contains("llama.rope.scaling must be none beside tensor rope_freqs.weight"), "{error}");
    }
}

#[test]
fn yarn_has_the_attention_factor_of_the_file() {
    let vocabulary = tokens(&[("<unk>", 2), ("a", NORMAL)]);
    let number = |part: &'static str, number: f32| (part, Value::F32(number));
    let load = |more: &[(&'static str, Value)]| {
        let kind = ("llama.rope.scaling.type", Value::String("yarn".to_owned()));
        let all: Vec<_> =
            [kind, number("llama.rope.scaling.factor", 4.0)].into_iter().chain(more.to_vec()).collect();
        ModelConfig::load(&made(&vocabulary, &all))
    };
    let (own, on_top) = ("llama.rope.scaling.yarn_attn_factor", "llama.rope.scaling.attn_factor");
    let extrapolation = "llama.rope.scaling.yarn_ext_factor";
    let computed = 0.1 * 4_f64.ln() + 1.0;
    for (more, expected) in [
        (vec![], computed),
        (vec![number(own, 1.5)], 1.5),
        (vec![number(on_top, 0.5)], 0.5 * computed),
        (vec![number(own, 1.5), number(on_top, 0.5)], 0.75),
        (vec![number(extrapolation, 1.0)], computed),
    ] {
        let config = load(&more).expect("sound");
        let RopeScaling::Yarn(yarn) = &config.ropes[0].scaling else { panic!("{more:?}") };
        assert!((yarn.attention - expected).abs() < 1e-9, "{more:?}: {}", yarn.attention);
    }
    for (key, value, message) in [
        (extrapolation, 0.5, "llama.rope.scaling.yarn_ext_factor must be 1"),
        ("llama.rope.scaling.yarn_log_multiplier", 0.1, "llama.rope.scaling.yarn_log_multiplier must be 0"),
        (own, -1.0, "llama.rope.scaling.yarn_attn_factor must be positive"),
    ] {
        let error = load(&[number(key, value)]).expect_err(key);
        assert!(error.message.contains(message), "{error}");
    }
}

/// A file of this architecture: two heads of four dimensions in each of four layers, and no weights but these.
fn made_as(architecture: &str, more: &[(&str, Value)], rows: &[(&str, &[f32])]) -> Source<'static> {
    let mut keys: Vec<(String, Value)> =
        vec![("general.architecture".to_owned(), Value::String(architecture.to_owned()))];
    for (key, number) in [
        ("block_count", 4),
        ("context_length", 128),
        ("embedding_length", 8),
        ("feed_forward_length", 8),
        ("attention.head_count", 2),
    ] {
        keys.push((format!("{architecture}.{key}"), Value::U32(number)));
    }
    keys.extend(more.iter().map(|(key, value)| (format!("{architecture}.{key}"), value.clone())));
    let keys: Vec<_> = keys.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    made_with(&tokens(&[("<unk>", 2), ("a", NORMAL)]), &keys, rows)
}

#[test]
fn files_of_phi3_have_longropes_factors_in_tensors() {
    let (short, long) = ("rope_factors_short.weight", "rope_factors_long.weight");
    let both: [(&str, &[f32]); 2] = [(short, &[1.5]), (long, &[4.0])];
    let original = ("rope.scaling.original_context_length", Value::U32(64));
    let (turned, attention) =
        (("rope.dimension_count", Value::U32(2)), ("rope.scaling.attn_factor", Value::F32(1.25)));
    let all = [original, turned, attention];
    let config = ModelConfig::load(&made_as("phi3", &all, &both)).expect("sound");
    assert_eq!((config.model_type.as_str(), config.ropes[0].rotated(config.head_dim)), ("phi3", 2));
    let expected = LongRope { short: vec![1.5], long: vec![4.0], original: 64, attention: 1.25 };
    assert_eq!(config.ropes[0].scaling, RopeScaling::Long(expected));

    // Files say 0 if there is no window, and nothing else if nothing is scaled.
    for (window, expected) in [(0, None), (47, Some(47))] {
        let window = ("attention.sliding_window", Value::U32(window));
        let config = ModelConfig::load(&made_as("phi3", &[window], &[])).expect("sound");
        assert_eq!((config.layers[0].window, &config.ropes[0].scaling), (expected, &RopeScaling::None));
    }

    let kind = |kind: &str| ("rope.scaling.type", Value::String(kind.to_owned()));
    let two: [(&str, &[f32]); 2] = [(short, &[1.5, 2.0]), (long, &[4.0, 8.0])];
    type Keys<'a> = &'a [(&'a str, Value)];
    type Rows<'a> = &'a [(&'a str, &'a [f32])];
    let turning = |count| [("rope.dimension_count", Value::U32(count))];
    let (more, none, odd) = (turning(6), turning(0), turning(3));
    let cases: [(Keys<'_>, Rows<'_>, &str); 8] = [
        (&all, &both[..1], "tensor rope_factors_long.weight is missing"),
        (&all, &two, "tensor rope_factors_short.weight must be a list of 1 numbers"),
        (&[kind("longrope")], &[], "tensor rope_factors_short.weight is missing"),
        (
            &[kind("yarn")],
            &both,
            "phi3.rope.scaling.type must be longrope beside tensor rope_factors_long.weight",
        ),
        (
            &[kind("linear"), ("rope.scaling.factor", Value::F32(2.0))],
            &[],
            "phi3.rope.scaling.type is \"linear\"",
        ),
        (&more, &[], "phi3.rope.dimension_count must be an even number up to 4, the width of a head, is 6"),
        (&none, &[], "phi3.rope.dimension_count must be an even number up to 4, the width of a head, is 0"),
        (&odd, &[], "phi3.rope.dimension_count must be an even number up to 4, the width of a head, is 3"),
    ];
    for (keys, rows, named) in cases {
        let error = ModelConfig::load(&made_as("phi3", keys, rows)).expect_err(named);
        assert!(error.message.contains(named), "{named}: {error}");
    }
}

#[test]
fn absent_factors_of_granite_are_llama_cpps() {
    let load = |more: &[(&str, Value)]| ModelConfig::load(&made_as("granite", more, &[])).expect("sound");
    let plain = load(&[]);
    assert_eq!((plain.embedding_scale, plain.query_scale), (1.0, 0.5), "scores have the usual one");
    assert_eq!((plain.branch_scale, plain.logit_divisor), (None, None));
    let number = |part: &'static str, number: f32| (part, Value::F32(number));
    let all = load(&[
        number("embedding_scale", 12.0),
        number("attention.scale", 0.25),
        number("residual_scale", 0.22),
        number("logit_scale", 6.0),
    ]);
    assert_eq!((all.embedding_scale, all.query_scale), (12.0, 0.25));
    assert_eq!((all.branch_scale, all.logit_divisor), (Some(0.22), Some(6.0)));
}

#[test]
fn file_of_granite_without_a_position_embedding_is_refused() {
    let load = |rotates: bool| {
        let key = [("rope.scaling.finetuned", Value::Bool(rotates))];
        ModelConfig::load(&made_as("granite", &key, &[]))
    };
    assert!(load(true).is_ok());
    let error = load(false).expect_err("nothing would be rotated");
    assert!(error.message.contains("granite.rope.scaling.finetuned must be true"), "{error}");
}

#[test]
fn file_whose_tokens_see_those_behind_them_is_refused() {
    for architecture in ["qwen2", "gemma3"] {
        let load = |causal: bool| {
            ModelConfig::load(&made_as(architecture, &[("attention.causal", Value::Bool(causal))], &[]))
        };
        assert!(load(true).is_ok(), "{architecture}");
        let error = load(false).expect_err("they see only those before them");
        assert!(error.message.contains(&format!("{architecture}.attention.causal must be true")), "{error}");
    }
}

#[test]
fn files_of_smollm3_and_olmo_are_those_of_llama_cpp() {
    let load = |architecture: &str, more: &[(&str, Value)]| {
        ModelConfig::load(&made_as(architecture, more, &[])).expect("sound")
    };
    let smollm = load("smollm3", &[]);
    let absent = |layer: &LayerConfig| smollm.ropes[layer.rope].scaling == RopeScaling::Absent;
    assert_eq!(smollm.layers.iter().map(absent).collect::<Vec<_>>(), [false, false, false, true]);
    let two = load("olmo2", &[]);
    assert_eq!((two.model_type.as_str(), two.ropes.len()), ("olmo2", 1));
    let base = ("rope.freq_base", Value::F32(50_000.0));
    let three = load("olmo2", &[base, ("attention.sliding_window", Value::U32(32))]);
    assert_eq!(three.model_type, "olmo3");
    let windows: Vec<_> = three.layers.iter().map(|layer| layer.window).collect();
    assert_eq!(windows, [Some(32), Some(32), Some(32), None]);
    let scaled = [
        ("rope.scaling.type", Value::String("yarn".to_owned())),
        ("rope.scaling.factor", Value::F32(8.0)),
        ("rope.scaling.attn_factor", Value::F32(1.25)),
        ("attention.sliding_window", Value::U32(32)),
    ];
    let scaled = load("olmo2", &scaled);
    let RopeScaling::Yarn(yarn) = &scaled.ropes[0].scaling else { panic!("it is YaRN") };
    assert_eq!(yarn.attention, 1.25, "the whole factor");
    // There is one base for all.
    assert_eq!(three.ropes.iter().map(|rope| rope.theta).collect::<Vec<_>>(), [50_000.0; 2]);
}

/// A file of a model of experts in the second and in no other layer, with these keys.
fn made_of_experts(more: &[(&'static str, Value)]) -> Source<'static> {
    let mut keys = vec![("general.architecture", Value::String("qwen3moe".to_owned()))];
    for (key, number) in [
        ("qwen3moe.block_count", 3),
        ("qwen3moe.context_length", 128),
        ("qwen3moe.embedding_length", 8),
        ("qwen3moe.feed_forward_length", 8),
        ("qwen3moe.attention.head_count", 2),
        ("qwen3moe.expert_count", 4),
        ("qwen3moe.expert_used_count", 2),
        ("qwen3moe.expert_feed_forward_length", 16),
    ] {
        keys.push((key, Value::U32(number)));
    }
    keys.retain(|(key, _)| more.iter().all(|(other, _)| other != key));
    keys.extend(more.iter().cloned());
    let dense: [(&str, &[f32]); 2] =
        [("blk.0.ffn_gate.weight", &[0.0; 8]), ("blk.2.ffn_gate.weight", &[0.0; 8])];
    made_with(&tokens(&[("<unk>", 2), ("a", NORMAL)]), &keys, &dense)
}

#[test]
fn layers_without_a_gate_of_their_own_have_experts_whose_weights_are_normalized() {
    let experts = |more: &[(&'static str, Value)]| {
        let config = ModelConfig::load(&made_of_experts(more)).expect("sound");
        assert_eq!(config.model_type, "qwen3_moe");
        config.layers.iter().map(|layer| layer.experts).collect::<Vec<_>>()
    };
    let normalized = ExpertsConfig {
        count: 4,
        per_token: 2,
        intermediate: 16,
        normalized: true,
        bias: false,
        layout: ExpertLayout::Plain,
    };
    assert_eq!(experts(&[]), [None, Some(normalized), None]);
    let without_effect = [
        ("qwen3moe.expert_weights_norm", Value::Bool(true)),
        ("qwen3moe.expert_weights_scale", Value::F32(1.0)),
        ("qwen3moe.expert_gating_func", Value::U32(1)),
        ("qwen3moe.expert_shared_count", Value::U32(0)),
    ];
    assert_eq!(experts(&without_effect), [None, Some(normalized), None]);
    let said = experts(&[("qwen3moe.expert_weights_norm", Value::Bool(false))]);
    assert_eq!(said[1], Some(ExpertsConfig { normalized: false, ..normalized }));
    for (key, value) in [
        ("qwen3moe.expert_weights_norm", Value::U32(1)),
        ("qwen3moe.expert_weights_scale", Value::F32(2.5)),
        ("qwen3moe.expert_gating_func", Value::U32(2)),
        ("qwen3moe.expert_shared_count", Value::U32(1)),
        ("qwen3moe.expert_shared_feed_forward_length", Value::U32(64)),
        ("qwen3moe.expert_count", Value::U32(0)),
        ("qwen3moe.expert_used_count", Value::U32(5)),
        ("qwen3moe.expert_feed_forward_length", Value::U32(0)),
    ] {
        let error = ModelConfig::load(&made_of_experts(&[(key, value)])).expect_err(key);
        assert!(error.message.contains(key), "{key}: {error}");
    }
}

#[test]
fn files_of_llama_with_experts_are_mixtrals() {
    let count = |key: &'static str, number: u32| (key, Value::U32(number));
    let load = |more: &[(&'static str, Value)]| {
        let mut keys = vec![count("expert_count", 4), count("expert_used_count", 2)];
        keys.extend(more.iter().cloned());
        ModelConfig::load(&made_as("llama", &keys, &[]))
    };
    let config = load(&[]).expect("sound");
    let experts = ExpertsConfig {
        count: 4,
        per_token: 2,
        intermediate: 8,
        normalized: true,
        bias: false,
        layout: ExpertLayout::Mixtral,
    };
    assert_eq!((config.model_type.as_str(), config.ropes[0].theta), ("mixtral", 10_000.0));
    assert!(config.layers.iter().all(|layer| layer.experts == Some(experts) && layer.window.is_none()));
    let said = [
        count("attention.sliding_window", 32),
        ("rope.freq_base", Value::F32(1e6)),
        ("expert_weights_norm", Value::Bool(true)),
    ];
    let config = load(&said).expect("sound");
    assert_eq!((config.model_type.as_str(), config.ropes[0].theta), ("mixtral", 1e6));
    assert!(config.layers.iter().all(|layer| layer.window == Some(32)));
    for (key, value) in [
        ("expert_weights_norm", Value::Bool(false)),
        ("expert_weights_scale", Value::F32(2.5)),
        ("expert_gating_func", Value::U32(2)),
        ("expert_shared_count", Value::U32(1)),
    ] {
        let error = load(&[(key, value)]).expect_err(key);
        assert!(error.message.contains(&format!("llama.{key}")), "{key}: {error}");
    }
    let without = [count("expert_count", 0), count("expert_used_count", 0)];
    let dense = ModelConfig::load(&made_as("llama", &without, &[])).expect("sound");
    assert!(dense.model_type == "llama" && dense.layers.iter().all(|layer| layer.experts.is_none()));
}

#[test]
fn width_of_the_experts_of_gpt_oss_is_named_as_the_file_does() {
    let load = |width: u32| {
        let keys = [("expert_count", 4), ("expert_used_count", 2), ("expert_feed_forward_length", width)];
        ModelConfig::load(&made_as("gpt-oss", &keys.map(|(key, number)| (key, Value::U32(number))), &[]))
    };
    let config = load(16).expect("sound");
    assert!(
        config.layers.iter().all(|layer| layer.experts.is_some_and(|experts| experts.intermediate == 16))
    );
    let error = load(0).expect_err("experts have a width");
    assert!(error.message.contains("gpt-oss.expert_feed_forward_length must be a whole number"), "{error}");
}

#[test]
fn files_with_tensors_of_single_experts_are_to_be_converted_again() {
    let keys = [("expert_count", Value::U32(4)), ("expert_used_count", Value::U32(2))];
    let file = made_as("llama", &keys, &[("blk.0.ffn_gate.0.weight", &[1.0])]);
    let error = ModelConfig::load(&file).expect_err("it can't be read");
    assert!(error.message.contains("blk.0.ffn_gate.0.weight is of a single expert"), "{error}");
    assert!(error.message.contains("convert the model again"), "{error}");
}

#[test]
fn weights_of_experts_of_olmoe_are_normalized_only_if_the_file_says() {
    let count = |key: &'static str, number: u32| (key, Value::U32(number));
    let load = |more: &[(&'static str, Value)]| {
        let mut keys = vec![count("expert_count", 4), count("expert_used_count", 2)];
        keys.extend(more.iter().cloned());
        ModelConfig::load(&made_as("olmoe", &keys, &[]))
    };
    for (more, normalized) in [
        (vec![], false),
        (vec![("expert_weights_norm", Value::Bool(false))], false),
        (vec![("expert_weights_norm", Value::Bool(true))], true),
    ] {
        let config = load(&more).expect("sound");
        assert_eq!((config.model_type.as_str(), config.qk_norm), ("olmoe", QkNorm::Whole));
        let experts = ExpertsConfig {
            count: 4,
            per_token: 2,
            intermediate: 8,
            normalized,
            bias: false,
            layout: ExpertLayout::Plain,
        };
        assert!(config.layers.iter().all(|layer| layer.experts == Some(experts)), "{more:?}");
    }
    let error = load(&[("attention.clamp_kqv", Value::F32(8.0))]).expect_err("nothing would be clamped");
    assert!(error.message.contains("olmoe.attention.clamp_kqv is not supported"), "{error}");
}
