//! End tokens and sampling parameters, which generation_config.json may set.

use infer_model::{ModelConfig, SamplingDefaults, Source};

use super::llama_config;

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
